"""How a trace was recorded: what it lacks and why, and which rank recorded which event of a merged file."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.trace.table import COLUMNS, DEVICE_KINDS, Identifier, Kind, Recorder, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record

#: PyTorch names steps in a trace only where the profiler has a schedule: ``record_steps``, torch/profiler/profiler.py.
STEPS_ADVICE = "profile with schedule=torch.profiler.schedule(...) and call profiler.step() once per iteration"
_RANGES_ADVICE = "put each iteration into a range with its number ('iteration 7')"


class Lack(Record, frozen=True, kw_only=True):
    """``what`` is missing, ``because`` of what, and the ``option`` that records it: empty where it was set."""

    what: str
    because: str
    option: str

    def __str__(self) -> str:
        return f"{self.what}: {self.advice}" if self.option else self.what

    @property
    def advice(self) -> str:
        """What to do; empty where nothing helps."""
        return f"use {self.option}" if "(" in self.option or "=" in self.option else self.option


def no_shapes(table: TraceTable) -> Lack:
    recorder = table.recorder
    if recorder == Recorder() and not (table.kind == Kind.CPU_OP).any():
        what = "no CPU ops were recorded"
        return Lack(what=what, because=what, option="add ProfilerActivity.CPU to activities")
    if _was_on(table, "record_shapes"):
        what = "no op has shapes, although record_shapes was on"
        return Lack(what=what, because=what, option="")
    return Lack(what="no shapes were recorded", because=recorder.no_shapes, option=recorder.shapes_option)


def no_stacks(table: TraceTable) -> Lack:
    what = "no Python frames were recorded"
    if _was_on(table, "with_stack"):
        because = "the file has no Python frames, although with_stack was on"
        return Lack(what=what, because=because, option="")
    return Lack(what=what, because=table.recorder.no_stacks, option="with_stack=True")


def steps_advice(table: TraceTable) -> str:
    """What makes steps of a recording like this one."""
    return STEPS_ADVICE if _by_torch(table) else _RANGES_ADVICE


def no_runtime_calls(table: TraceTable) -> str:
    advice = "add ProfilerActivity.CPU to activities" if _by_torch(table) else "trace the CUDA or HIP API too"
    return f"no runtime calls were recorded: {advice}"


def without(table: TraceTable, what: str, option: str) -> str:
    """Why a trace has no ``what`` (plural), which torch.profiler records with an ``option``."""
    if _by_torch(table):
        return f"no {what} were recorded: pass {option} to the profiler"
    none = f"{table.recorder.file} has no {what}"
    # Where torch.profiler could record the shapes, it could record these
    return f"{none}; torch.profiler records them with {option}" if "torch" in table.recorder.shapes_option else none


def lacks_sync_events(table: TraceTable) -> bool:
    """Whether CUDA's profiler was not told to record which event a stream waits for; ROCm's cannot."""
    return "cudaStreamWaitEvent" in table.names and not len(table.event_waits)


def _by_torch(table: TraceTable) -> bool:
    return table.recorder.file == Recorder().file


def _was_on(table: TraceTable, option: str) -> bool:
    """Kineto notes the options of the profiler that were on."""
    return table.metadata.get(option) == 1


Ints = npt.NDArray[np.int64]

# What whoever merged the traces called the processes: "rank 3 · GPU 3", "[rank3]: python".
_RANK_OF_PROCESS = re.compile(r"\brank[\s_\-:\[]*(\d{1,6})", re.IGNORECASE)
# Events that may be of any rank (of processes without a launch) and events that may be of several, left out of all.
_OF_ALL, _OF_NONE = -1, -2
# Ranks of one job launch alike: a process with less than this share of the busiest one's launches is a helper, or a
# damaged process id.
_LEAST_OF_BUSIEST = 0.25


class MergedRanks(Record, frozen=True, kw_only=True, eq=False):
    """The ranks of one file. ``numbers`` are those in the processes' names (``is_named``), else 0, 1, ... by first
    appearance of their host process; ``labels``: what each one's first process is called.

    ``rank_of_row``: position in ``numbers`` per table row, -1 for rows of every rank, -2 for device events that could
    be of several; ``ambiguous`` is how many of those there are. ``chosen``: the number that is looked at.
    """

    numbers: tuple[int, ...]
    labels: tuple[str, ...]
    is_named: bool
    rank_of_row: npt.NDArray[np.int32]
    ambiguous: int
    chosen: int | None = None

    def table(self, table: TraceTable, number: int) -> TraceTable:
        """The rows of one rank; UsageError, naming all, when it is none of them."""
        if number not in self.numbers:
            known = ", ".join(map(str, self.numbers))
            raise UsageError(f"{table.source} has ranks {known}, not {number}")
        position = self.numbers.index(number)
        rows = np.flatnonzero((self.rank_of_row == position) | (self.rank_of_row == _OF_ALL))
        foreign = np.unique(table.lane[self.rank_of_row >= 0])
        own = np.unique(table.lane[rows])
        others = np.setdiff1d(foreign, own)
        info = table.metadata.get("distributedInfo")
        metadata = dict(table.metadata)
        metadata["distributedInfo"] = {**(info if isinstance(info, dict) else {}), "rank": number}
        if not self.is_named:
            metadata["distributedInfo"].pop("rank")
        kept = {name: getattr(table, name)[rows] for name in COLUMNS}
        for name in ("flows", "event_waits", "allocations", "dram_samples"):
            part = getattr(table, name)
            kept[name] = part.where(~np.isin(part.lane, others))
        return replace(table, **kept, metadata=metadata)


def merged_ranks(table: TraceTable, tree: OpTree) -> MergedRanks | None:
    """How the file divides into ranks; None when it holds one, or when nothing tells them apart.

    A process is of the rank in its name. Where names say nothing, every host process that launched much device work is
    a rank. A device event is of the rank of its process, else of its launch's, else of the one rank that its process
    serves otherwise.
    """
    by_pid: dict[Identifier, int] = {}
    for pid in dict.fromkeys(pid for pid, _ in table.lanes):
        text = f"{table.process_names.get(pid, '')}\n{table.process_labels.get(pid, '')}"
        if match := _RANK_OF_PROCESS.search(text):
            by_pid[pid] = int(match[1])
    is_named = len(set(by_pid.values())) > 1
    if not is_named:
        # Host processes that launched what a device ran, by first appearance; without those that launched little
        launched: dict[Identifier, int] = {}
        for lane, count in enumerate(np.bincount(table.lane[tree.launch[tree.launch >= 0]]).tolist()):
            if count:
                pid = table.lanes[lane][0]
                launched[pid] = launched.get(pid, 0) + count
        enough = max(launched.values(), default=0) * _LEAST_OF_BUSIEST
        by_pid = {pid: number for number, pid in enumerate(pid for pid, count in launched.items() if count >= enough)}
    numbers = tuple(sorted(set(by_pid.values())))
    if len(numbers) < 2:
        return None
    first_pid = {number: pid for pid, number in reversed(by_pid.items())}
    position = {number: place for place, number in enumerate(numbers)}
    of_lane = np.array([position.get(by_pid.get(pid, -1), _OF_ALL) for pid, _ in table.lanes], np.int32)
    rank = of_lane[table.lane]
    device = np.flatnonzero(table.is_of((*DEVICE_KINDS, Kind.GPU_USER_ANNOTATION, Kind.SYNC)) & (rank == _OF_ALL))
    launch = tree.launch[device]
    rank[device] = np.where(launch >= 0, of_lane[table.lane[launch]], _OF_NONE)
    _settle(table, device, rank)
    return MergedRanks(
        numbers=numbers,
        labels=tuple(f"{table.process_names.get(pid, 'process')} {pid}" for pid in map(first_pid.__getitem__, numbers)),
        is_named=is_named,
        rank_of_row=rank,
        ambiguous=int((rank == _OF_NONE).sum()),
    )


def _settle(table: TraceTable, device: Ints, rank: npt.NDArray[np.int32]) -> None:
    """Device events without a launch are of the rank that their process serves, when that is one only."""
    pids = [pid for pid, _ in table.lanes]
    served: dict[Identifier, set[int]] = {}
    for lane, position in set(zip(table.lane[device].tolist(), rank[device].tolist(), strict=True)):
        if position >= 0:
            served.setdefault(pids[lane], set()).add(position)
    single = {pid: min(found) for pid, found in served.items() if len(found) == 1}
    only = np.array([single.get(pid, _OF_NONE) for pid in pids], np.int32)
    free = device[rank[device] < 0]
    rank[free] = only[table.lane[free]]
