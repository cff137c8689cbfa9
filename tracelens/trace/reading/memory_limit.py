"""How much memory a process may take while it reads a file that somebody else wrote."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracelens.errors import InputError
from tracelens.lazy.records import dataclass

#: What the default leaves to the rest of the machine, and to the analysis after reading.
DEFAULT_SHARE = 0.75
_GB = 1_000_000_000
#: Reading says on its own what did not fit; the system says so a little later.
_HEADROOM = 1.1
#: A process below this does not look for memory to give back.
_SMALL_BYTES = 200_000_000
_STATUS = Path("/proc/self/status")
_SHARES = Path("/proc/self/smaps_rollup")
_CONTROL_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The most that this process may have resident, in bytes, everything in it included."""

    most_bytes: int

    @classmethod
    def of_gb(cls, gb: float | None) -> MemoryLimit:
        """``gb`` (1e9 bytes) as given; None: three quarters of what the machine, or the process's container, has."""
        return cls(most_bytes=int((machine_bytes() * DEFAULT_SHARE) if gb is None else gb * _GB))

    def leaves(self, more_bytes: int) -> bool:
        """Whether that much more would not be too much."""
        return (resident_bytes() or 0) + more_bytes <= self.most_bytes

    def check(self, source: str, *, text_bytes: int, file_bytes: int) -> None:
        """InputError when the process has grown beyond the limit, with how much was read by then."""
        resident = resident_bytes()
        if resident is not None and resident > self.most_bytes:
            raise InputError(
                f"{source} does not fit: {resident / _GB:.1f} GB of memory are in use after {_size(text_bytes)} of "
                f"text from {_size(file_bytes)} of file, and --max-memory is {self.most_bytes / _GB:.3g} GB"
            )

    def check_unpacked(self, source: str, unpacked_bytes: int) -> None:
        """InputError when what a file unpacks to, on disk, is larger than the memory it would be read into."""
        if unpacked_bytes > self.most_bytes:
            raise InputError(
                f"{source} unpacks to more than the {self.most_bytes / _GB:.3g} GB of --max-memory: unpack it first, "
                "if it is what it should be"
            )


@contextmanager
def hard_limit(gb: float | None, source: str) -> Iterator[None]:
    """Around all work on a trace: the process gets no more memory than ``gb`` (1e9 bytes) and a tenth; None: no limit.

    InputError where it asks for more, e.g. for arrays that analysis makes of many small events. Only where the system
    counts a process's data (Linux).
    """
    resident, taken = resident_bytes(), _data_bytes()
    if gb is None or resident is None or taken is None:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    room = max(int(gb * _GB * _HEADROOM) - resident, 0)
    most = taken + room if before[1] == resource.RLIM_INFINITY else min(taken + room, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    except MemoryError as error:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        raise InputError(
            f"{source} does not fit: its report needs more than the {gb:.3g} GB of --max-memory; "
            f"{(resident_bytes() or 0) / _GB:.1f} GB were in use when it asked for more"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_bytes() -> int | None:
    """What counts towards the system's limit on a process's data; None where it has none."""
    try:
        found = re.search(rb"VmData:\s+(\d+) kB", _STATUS.read_bytes())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def give_back_freed() -> None:
    """Hands memory that was freed, and that the C library keeps for later, back to the system; only glibc can.

    Reading leaves freed arrays of all sizes behind: at 1 GB of JSON 90 of 350 MB, and as much again after the op tree.
    A small process keeps what it has: the next trace that it reads takes the same pages again.
    """
    if (resident_bytes() or 0) < _SMALL_BYTES:
        return
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int | None:
    """What the process has in memory now (on systems without /proc: the most it ever had); None where unknown."""
    try:
        found = re.search(rb"VmRSS:\s+(\d+) kB", _STATUS.read_bytes())
        return int(found[1]) * 1024 if found else None
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, KiB elsewhere.
    return peak if os.uname().sysname == "Darwin" else peak * 1024


def private_bytes() -> int:
    """What the process has in memory that no other one shares; 0 where unknown."""
    try:
        found = re.findall(rb"Private_(?:Clean|Dirty):\s+(\d+) kB", _SHARES.read_bytes())
    except OSError:
        return 0
    return 1024 * sum(map(int, found))


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
