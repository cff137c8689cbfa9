"""Runs a function in a child process that is killed at its n-th system call, by ptrace; Linux on x86-64 and arm64."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_TRACEME, _SYSCALL, _SETOPTIONS, _TRACESYSGOOD, _EXITKILL = 0, 24, 0x4200, 1, 0x100000


def killed_at(run: Callable[[], None], number: int) -> bool:
    """True where the child was killed at system call ``number`` (each counts on its way in and out), False if it ended.

    OSError where processes may not be traced.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if libc.ptrace(_TRACEME, 0, None, None) == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
                run()
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        raise OSError("processes may not be traced here")
    libc.ptrace(_SETOPTIONS, child, None, _TRACESYSGOOD | _EXITKILL)
    seen, passed_on = 0, 0
    while True:
        libc.ptrace(_SYSCALL, child, None, passed_on)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the child failed"
            return False
        if os.WIFSIGNALED(status):
            raise AssertionError("the child died of another signal")
        stopped = os.WSTOPSIG(status)
        passed_on = 0 if stopped in (signal.SIGTRAP | 0x80, signal.SIGTRAP) else stopped
        seen += stopped == signal.SIGTRAP | 0x80
        if seen == number:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
