"""How much memory a process may take for somebody else's file, and what is checked before such a file is opened."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from tracelens.errors import InputError, MemoryLimitError, TracelensError
from tracelens.types.records import Record

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: What the default leaves to the rest of the machine, and to the analysis after reading.
DEFAULT_SHARE = 0.75
_GB = 1_000_000_000
#: What a process may take beyond the limit until it has looked, as a factor; and what it is never refused: importing
#: libraries takes more than an eighth of a small limit between two looks, and Python tries for ever where it is refused
#: a small object while it unwinds an exception (``exception_unwind`` of its ceval.c).
_HEADROOM, _NEVER_REFUSED_BYTES = 1.12, 225_000_000
#: It looks every so many seconds of processor time, and not again for so many after it has said that there is too much.
_LOOK_S, _PAUSE_S = 0.02, 1.0
#: A process below this does not look for memory to give back.
_SMALL_BYTES = 200_000_000
#: A file below this is read whatever is left.
_SMALL_FILE_BYTES = 1_000_000
_STATUS = Path("/proc/self/status")
#: What Python and the system's loader of libraries say where there is no memory for a thread's stack, or for a library.
_REFUSED = re.compile(
    "can't start new thread|cannot (allocate|map|create|enable)|failed to map|out of memory", re.IGNORECASE
)
#: The share of the limit from which errors of other libraries are taken for its effect.
_AT_LIMIT = 0.9
#: What the system sets aside for a thread.
_STACK_BYTES = 2**23
_CONTROL_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
#: Of the command that this process runs, and of the last one; (bytes, name) of the largest file that it read.
_limit: MemoryLimit | None = None
_last: MemoryLimit | None = None
_largest = (0, "")


class MemoryLimit(Record, frozen=True, kw_only=True):
    """The most that this process may have resident, in bytes, everything in it included."""

    most_bytes: int

    @classmethod
    def of_gb(cls, gb: float | None) -> MemoryLimit:
        """``gb`` (1e9 bytes); None: the command's, or three quarters of what the machine, or the container, has."""
        if gb is None and _limit is not None:
            return _limit
        return cls(most_bytes=int((machine_bytes() * DEFAULT_SHARE) if gb is None else gb * _GB))

    def check(self, source: str, *, text_bytes: int, file_bytes: int) -> None:
        """InputError when the process has grown beyond the limit, with how much was read by then."""
        resident = resident_bytes()
        if resident is not None and resident > self.most_bytes:
            raise InputError(
                f"{source} does not fit: {resident / _GB:.3g} GB of memory are in use after {_size(text_bytes)} of "
                f"text ({_size(file_bytes)} of the file), --max-memory is {self.most_bytes / _GB:.3g} GB; raise it, or "
                "record fewer steps"
            )

    def check_unpacked(self, source: str, unpacked_bytes: int) -> None:
        """InputError when what a file unpacks to, on disk, is larger than the memory it would be read into."""
        if unpacked_bytes > self.most_bytes:
            raise InputError(
                f"{source} unpacks to more than the {self.most_bytes / _GB:.3g} GB of --max-memory: if you trust the "
                "file, unpack it first or raise --max-memory"
            )


@contextmanager
def limited(gb: float | None) -> Iterator[None]:
    """Around a command: the system gives this process no more than ``gb`` (as ``MemoryLimit.of_gb``) and an eighth, or
    225 MB where that is less.

    MemoryLimitError where it asks for more, e.g. for arrays that analysis makes of many small events. Only where the
    system counts a process's data (Linux); what checks ``MemoryLimit`` while it reads does so everywhere.
    """
    global _limit
    before, rlimit, hook = _limit, _data_limit(), sys.unraisablehook
    handler = signal.getsignal(signal.SIGVTALRM) if _can_watch() else None
    try:
        sys.unraisablehook = _tell_unraisable
        limit_process(MemoryLimit.of_gb(gb))
        yield
    except Exception as error:
        # What is said of it is neither refused nor interrupted again
        _set_data_limit(rlimit)
        if handler is not None:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if not lacks_memory(error):
            raise
        raise MemoryLimitError(shortage()) from error
    finally:
        if handler is not None:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, handler)
        _limit, sys.unraisablehook = before, hook
        _set_data_limit(rlimit)


def _tell_unraisable(lost: sys.UnraisableHookArgs) -> None:
    """A refusal that came in a finalizer or a weak reference's callback, where Python drops it, comes again soon."""
    if not lacks_memory(lost.exc_value):
        sys.__unraisablehook__(lost)


def limit_process(limit: MemoryLimit) -> None:
    """Does as ``limited`` for the rest of a process that works for a command.

    MemoryError in the main thread once more than the limit is in use in two looks: what is refused memory for each
    object that it makes does not end otherwise, or not soon.
    """
    global _limit, _last, _largest
    _limit, _last, _largest = limit, limit, (0, "")
    # Libraries start a thread per core, whose stacks they hardly use
    _limit_data(unused_bytes=_STACK_BYTES * (os.cpu_count() or 1))
    if not _can_watch():
        return
    times = 0

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal times
        times = times + 1 if _limit is not None and (resident_bytes() or 0) > _limit.most_bytes else 0
        if times > 1:
            times = 0
            # What ends on this account writes nothing, and takes its temporary files along
            signal.setitimer(signal.ITIMER_VIRTUAL, _PAUSE_S, _LOOK_S)
            raise MemoryError

    signal.signal(signal.SIGVTALRM, look)
    signal.siginterrupt(signal.SIGVTALRM, False)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_S, _LOOK_S)


def _can_watch() -> bool:
    return hasattr(signal, "SIGVTALRM") and threading.current_thread() is threading.main_thread()


def command_limit() -> MemoryLimit | None:
    """The limit of the command that this process runs; None in other programs."""
    return _limit


def lacks_memory(error: BaseException | None) -> bool:
    """Whether the system refused memory: for data, the stack of a thread, or a library that was being loaded.

    Libraries say so in errors of any kind, ``SystemError`` without a word: at the limit, all that is no error of ours.
    """
    if error is None or isinstance(error, TracelensError | BrokenPipeError):
        return False
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if isinstance(error, RuntimeError | ImportError) and _REFUSED.search(str(error)):
        return True
    return (_is_at_limit() and not isinstance(error, OSError)) or lacks_memory(error.__cause__ or error.__context__)


def raise_at_limit(error: BaseException) -> None:
    """To be called first where an error of foreign code costs only what that code was to add: raises a MemoryError
    again in a process that has come to its limit, as that is the command's and not the code's.
    """
    if isinstance(error, MemoryError) and _is_at_limit():
        raise error


def _is_at_limit() -> bool:
    return _limit is not None and (resident_bytes() or 0) > _AT_LIMIT * _limit.most_bytes


def excess(limit: MemoryLimit | None = None) -> str:
    """What it means that memory is refused here, or below ``limit``."""
    limit = limit or _limit
    most = "there is" if limit is None else f"the {limit.most_bytes / _GB:.3g} GB of --max-memory"
    return f"it needs more than {most}"


def shortage() -> str:
    """What a command that was refused memory says, also where a second refusal came on the way out of ``limited``."""
    what = f"{_largest[1]} does not fit" if _largest[1] else "not enough memory"
    in_use = f"{(resident_bytes() or 0) / _GB:.3g} GB were in use when it asked for more"
    return f"{what}: {excess(_last)}; {in_use}"


def _limit_data(*, unused_bytes: int = 0) -> None:
    """The system counts what a process asked for, the limit what it uses: the difference there is so far is allowed."""
    resident, taken, before = resident_bytes(), _status("VmData"), _data_limit()
    if _limit is None or resident is None or taken is None or before is None:
        return
    allowed = max(int(_limit.most_bytes * _HEADROOM), _NEVER_REFUSED_BYTES)
    most = taken + max(allowed - resident, 0) + unused_bytes
    _set_data_limit((most if before[1] < 0 else min(most, before[1]), before[1]))


def _data_limit() -> tuple[int, int] | None:
    """(limit, the most it may be set to) of a process's data, negative: none; None where there is no such thing."""
    return None if resource is None else resource.getrlimit(resource.RLIMIT_DATA)


def _set_data_limit(limit: tuple[int, int] | None) -> None:
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, limit)


def _status(name: str) -> int | None:
    """Bytes that the system counts for this process under a name (``VmRSS``, ``VmData``); None where it does not."""
    try:
        found = re.search(rb"%s:\s+(\d+) kB" % name.encode(), _STATUS.read_bytes())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def end_stage() -> None:
    """Between two stages of work: gives freed memory back, and counts anew what the command may still take.

    The C library keeps freed arrays of all sizes for later, and glibc can hand them back: at 1 GB of JSON 90 of 350 MB
    after reading, and as much again after the op tree. A small process keeps what it has: the next trace that it reads
    takes the same pages again. MemoryError where the command has taken more than it may.
    """
    if (resident_bytes() or 0) >= _SMALL_BYTES:
        with suppress(OSError, AttributeError, TypeError):
            import ctypes

            ctypes.CDLL(None).malloc_trim(0)
    _refuse_excess()


@contextmanager
def unrefused() -> Iterator[None]:
    """Around a library that does not survive to be refused memory: what it took is counted afterwards.

    MemoryError where that is too much.
    """
    before = None if _limit is None else _data_limit()
    if before is not None:
        _set_data_limit((before[1], before[1]))
    try:
        yield
    finally:
        _set_data_limit(before)
    _refuse_excess()


def _refuse_excess() -> None:
    if _limit is not None and (resident_bytes() or 0) > _limit.most_bytes:
        raise MemoryError
    _limit_data()


def resident_bytes() -> int | None:
    """What the process has in memory now (on systems without /proc: the most it ever had); None where unknown."""
    resident = _status("VmRSS")
    if resident is not None or resource is None:
        return resident
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, KiB elsewhere.
    return peak if os.uname().sysname == "Darwin" else peak * 1024


def machine_bytes() -> int:
    """Memory of the machine, or of the control group where that is less; 2**62 where neither is known."""
    known = []
    with suppress(AttributeError, ValueError, OSError):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CONTROL_GROUPS:
        try:
            known.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    return min((value for value in known if value > 0), default=2**62)


def _size(count: int) -> str:
    return f"{count / _GB:.1f} GB" if count >= _GB else f"{count / 1e6:.1f} MB"


def before_reading(path: Path) -> None:
    """To be called before a file is opened; what else is wrong with it is said there.

    InputError for a pipe or a device: it may never end, and nothing of it can be read twice. What the command may still
    take is counted anew, as the libraries for the file are loaded now.
    """
    global _largest
    try:
        found = path.stat()
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path} is a pipe or a device: copy its content into a file first")
    _largest = max(_largest, (found.st_size, path.name))
    if found.st_size < _SMALL_FILE_BYTES:
        _limit_data()
    else:  # at the limit, every object that Python makes costs refused calls of the system: a crawl
        end_stage()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around code that opens a file, see ``before_reading``: that it cannot be read is an InputError."""
    before_reading(path)
    try:
        yield
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror or error}") from error
