"""Where work on many inputs runs: processes of this machine, a dask cluster, MPI; a lost input costs only itself.

Anything that is a ``concurrent.futures.Executor`` serves; ``open_executor`` makes one by name. Results travel between
processes, so functions are module-level and results small.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Generic, TypeVar

from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files.memory_limit import MemoryLimit, command_limit, excess, lacks_memory, limit_process
from tracelens.types.records import Record

Item = TypeVar("Item")
Result = TypeVar("Result")

PROCESSES, SERIAL, MPI, DASK = "processes", "serial", "mpi", "dask://"
DIED = "the worker process that read it died (killed, or out of memory)"
DEFECT = "a defect of tracelens, which a report on it alone shows with -vv"
#: How often an input is given to a new worker after its worker died: once may be bad luck, twice is the input.
_RETRIES = 1
_SAFE_PATH = "PYTHONSAFEPATH"
#: Seconds in which a dask scheduler has to answer.
ANSWERS_S = 10
#: Microseconds of processor time, in so many of wall time, that a container gets; "max" or -1 where there is no limit.
_CPU_QUOTAS = (
    (Path("/sys/fs/cgroup/cpu.max"),),
    (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")),
)
_starting = threading.Lock()


class InputOutcome(Record, Generic[Item, Result], frozen=True, kw_only=True):
    """What became of one input: its ``value``, or why there is none (``error``, one sentence)."""

    item: Item
    value: Result | None = None
    error: str = ""


def available_cores() -> int:
    """Cores that this process may use; no more than its container has time of, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in _CPU_QUOTAS:
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = " ".join(path.read_text() for path in files).split()
            if int(quota) > 0:
                return min(cores, math.ceil(int(quota) / int(period)))
    return cores


@contextlib.contextmanager
def open_executor(name: str = PROCESSES, *, jobs: int | None = None) -> Iterator[Executor]:
    """``processes``, ``serial`` (in this process), ``dask://HOST:PORT`` or ``mpi``, shut down when the block ends.

    ``jobs``: worker processes, for ``processes``; default: one per core. ``mpi`` runs on the workers that
    ``mpiexec -n N python -m mpi4py.futures`` started. UsageError for another name, or where the package is missing;
    InputError when the cluster does not answer.
    """
    if name == PROCESSES:
        with IsolatedProcesses(jobs or available_cores()) as executor:
            yield executor
    elif name == SERIAL:
        yield Serial()
    elif name.startswith(DASK):
        yield from _dask(name.removeprefix(DASK))
    elif name == MPI:
        with _imported("mpi4py.futures", MPI).MPIPoolExecutor() as executor:
            yield executor
    else:
        raise UsageError(f"no executor {name!r}; there are {PROCESSES}, {SERIAL}, {DASK}HOST:PORT and {MPI}")


def outcomes(
    executor: Executor, function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[InputOutcome[Item, Result]]:
    """``function`` of every item, in the order in which they finish; exactly one outcome per item.

    Whatever the function raises, or a worker that dies, becomes the ``error`` of that item: among thousands, one that
    meets a defect costs itself only.
    """
    waiting: dict[Future[Result], tuple[Item, int]] = {executor.submit(function, item): (item, 0) for item in items}
    try:
        while waiting:
            again: dict[Future[Result], tuple[Item, int]] = {}
            for future in as_completed(list(waiting)):
                item, tries = waiting.pop(future)
                try:
                    value = future.result()
                except TracelensError as error:
                    yield InputOutcome(item=item, error=str(error))
                except Exception as error:  # noqa: BLE001 - of thousands, it costs one
                    if lacks_memory(error):
                        yield InputOutcome(item=item, error=f"it does not fit: {excess()}")
                    # dask's class for a task whose worker died too often is not imported for its name's sake
                    elif not isinstance(error, BrokenProcessPool) and type(error).__name__ != "KilledWorker":
                        yield InputOutcome(item=item, error=f"{DEFECT} ({type(error).__name__}: {str(error)[:200]})")
                    elif tries < _RETRIES and isinstance(error, BrokenProcessPool):
                        again[executor.submit(function, item)] = (item, tries + 1)
                    else:
                        yield InputOutcome(item=item, error=DIED)
                else:
                    yield InputOutcome(item=item, value=value)
            waiting |= again
    finally:
        for future in waiting:
            future.cancel()


class Serial(Executor):
    """Runs each call when it is submitted, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            future.set_exception(error)
        return future


class IsolatedProcesses(ThreadPoolExecutor):
    """Worker processes that die alone.

    When one worker of a ``ProcessPoolExecutor`` dies, all its pending calls fail and nobody can say whose fault it was.
    Here each worker is a pool of its own, which a thread starts, anew after a death: only the call that it was running
    fails, with BrokenProcessPool. ``jobs`` >= 1 workers; they are spawned, import from this process's path, not from
    the current folder, and do not run the script that started them: what they call and are handed is of modules.
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise UsageError(f"jobs must be at least 1, not {jobs}")
        if sys.flags.ignore_environment and not sys.flags.safe_path:
            raise UsageError(
                "with python -E, workers would import from the current folder: start python with -I or -EP"
            )
        super().__init__(jobs)
        self._worker = threading.local()
        self._pools: list[ProcessPoolExecutor] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queues the call; a worker starts when there is work for it."""
        return super().submit(self._run, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the workers once the queue is empty; ``cancel_futures`` empties it."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for pool in self._pools:
            pool.shutdown(wait)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            with _spawning():
                pool = getattr(self._worker, "pool", None)
                if pool is None:
                    # Forking a process that has threads, as this one does, can deadlock
                    spawn = multiprocessing.get_context("spawn")
                    pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin, initargs=(command_limit(),))
                    self._worker.pool = pool
                    self._pools.append(pool)
                running = pool.submit(fn, *args, **kwargs)
            return running.result()
        except BrokenProcessPool:
            self._worker.pool = None
            raise


def _begin(limit: MemoryLimit | None) -> None:
    """In a worker: the command's limit holds for it too, and it ends when its parent is killed instead of waiting."""
    if limit is not None:
        limit_process(limit)

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _spawning() -> Iterator[None]:
    """Interpreters started in this block neither look for modules in the current folder nor run this one's script.

    A spawned worker, and the tracker of its resources, is ``python -c ...``: it would import the standard library from
    the current folder, which may hold foreign files, before it takes over this process's path. The script may have no
    file (standard input), and without ``if __name__ == "__main__"`` would begin all over.
    """
    with _starting:
        before, script = os.environ.get(_SAFE_PATH), sys.modules["__main__"]
        hidden: dict[str, Any] = {
            name: vars(script).pop(name) for name in ("__file__", "__spec__") if name in vars(script)
        }
        script.__spec__ = None
        os.environ[_SAFE_PATH] = "1"
        try:
            yield
        finally:
            vars(script).update(hidden)
            if before is None:
                del os.environ[_SAFE_PATH]
            else:
                os.environ[_SAFE_PATH] = before


def _dask(address: str) -> Iterator[Executor]:
    distributed = _imported("distributed", "dask")
    try:
        client = distributed.Client(address, timeout=ANSWERS_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no dask scheduler answers at {address!r}: {error}") from error
    with client, client.get_executor(pure=False) as executor:
        yield executor


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"--executor {extra} needs tracelens-perf[{extra}]: {error}") from error
