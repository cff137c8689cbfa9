"""``tl.load``: one recorded trace with its op tree, and the options of an analysis of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.analysis.attribution.steps import device_steps
from tracelens.errors import UsageError
from tracelens.extensions import Extension, detect_bundled, load_extension
from tracelens.files.memory_limit import end_stage
from tracelens.trace.links import needed_flows
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import DEVICE_KINDS, Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record, pd
from tracelens.types.units import NS_PER_US

if TYPE_CHECKING:
    from tracelens.hardware import HardwareSpec
    from tracelens.predict.workload import ModelConfig
    from tracelens.trace.reading.compiled_code import CompiledCode
    from tracelens.trace.reading.counter_files import CountedKernels
    from tracelens.trace.reading.read import DeviceMemory
    from tracelens.trace.tree import OpNode


class Trace(Record, frozen=False, eq=False):
    """A trace's columns and its op tree. Keep it and ask often: nothing is read twice."""

    table: TraceTable
    tree: OpTree

    @classmethod
    def of(cls, table: TraceTable) -> Trace:
        """With the tree built over a table, which lets go of arrows that no other tree over its events could need."""
        tree = OpTree(table)
        table.flows = needed_flows(table.flows, table.categories, tree.linked_by, tree.ambiguous)
        end_stage()
        return cls(table=table, tree=tree)

    def ops(self) -> pd.DataFrame:
        """One row per recorded CPU op: name, shapes as text, start_us, duration_us, kernel_us of all kernels below."""
        import numpy as np

        table = self.table
        rows = np.flatnonzero(table.kind == Kind.CPU_OP)
        launched = np.zeros(len(table), np.int64)
        device = np.flatnonzero(self.tree.op >= 0)
        np.add.at(launched, self.tree.op[device], table.duration_ns[device])
        below = self.tree.subtree_sum(launched)
        first = int(table.start_ns.min()) if len(table) else 0
        signatures = [table.signature_of(row) for row in rows.tolist()]
        return pd.DataFrame(
            {
                "name": [s.name for s in signatures],
                "shapes": [None if s.shapes is None else repr(s.shapes) for s in signatures],
                "start_us": (table.start_ns[rows] - first) / NS_PER_US,
                "host_us": table.duration_ns[rows] / NS_PER_US,
                "kernel_us": below[rows] / NS_PER_US,
                "depth": self.tree.depth[rows],
                "row": rows,
            }
        )

    def steps(self) -> pd.DataFrame:
        """One row per step or iteration: start, duration and busy time in us, device events (see ``StepTimes``)."""
        rows = self.table.rows_of(DEVICE_KINDS)
        _, times, _ = device_steps(self.table, self.tree, rows)
        return times.frame(int(self.table.start_ns.min()) if len(self) else 0)

    def node(self, row: int) -> OpNode:
        """The op at a table row, with its children and kernels."""
        return self.tree.node(row)

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return f"<Trace {self.table.source}: {self.table.events_total:,} events>"


def load(
    path: str | PathLike[str], *, progress: Callable[[int, int], None] | None = None, max_memory_gb: float | None = None
) -> Trace:
    """Reads a trace of any profiler (docs/formats.md). InputError, in one sentence, when it is none, or too large.

    ``progress`` is called with (compressed bytes read, bytes in all). ``max_memory_gb`` (1e9 bytes) is what the process
    may take while it reads; None: three quarters of the machine's memory.
    """
    return Trace.of(read_trace(path, progress=progress, max_memory_gb=max_memory_gb))


#: ``Options.overlap``: device events of one stream that run into the next stay as recorded, or end where it starts.
KEEP, CLIP = "keep", "clip"
#: ``Options.steps``: all of the file as one window, whatever steps it has.
FILE = "file"


class StepWork(Record, frozen=True, kw_only=True):
    """What the caller says about a step: the model, and as much about its tokens as the trace does not record.

    ``tokens`` in one step, or ``batch`` sequences of ``sequence`` tokens. ``ranks``: among how many devices the work on
    these tokens is divided; None where the caller did not say.
    """

    model: ModelConfig
    tokens: int | None = None
    batch: int | None = None
    sequence: int | None = None
    ranks: int | None = None

    def __post_init__(self) -> None:
        """UsageError for figures that contradict or miss one another."""
        if self.batch is not None and self.tokens is not None:
            raise UsageError("--tokens-per-step and --batch mean the same; give only one")
        if self.batch is not None and self.sequence is None:
            raise UsageError("--batch needs --sequence (tokens per sequence)")


class AnalysisOptions(Record, frozen=True, kw_only=True):
    """What the caller chose. ``device``: None recognizes it from the trace. ``extensions``: loaded ones.

    ``bundled``: let bundled extensions switch themselves on. ``ep_size``: ranks of the expert-parallel group, where the
    trace does not record it. ``steps``: ``3``, ``3-5``, ``steady``, ``file`` for all of the file, or None for
    the complete steps (all of the file where there are none).
    ``overlap``: ``keep`` or ``clip`` device events of one stream that run into the next. ``cpu``: tables of the CPU ops
    too, and a report at all where there is no GPU work. ``work``: the model that the
    trace's steps run, for its FLOPs utilization. ``capture``: the trace in which the graphs that this one replays were
    captured. ``shapes``: a trace of the same program with the shapes that this one lacks. ``memory_snapshot``: of the
    allocator of the same run. ``inductor``: what torch.compile wrote of its code. ``power``: a log of what the device
    drew. ``counters``: hardware counters by launch.
    ``rank``: of a file in which several ranks were merged, the one to analyze; None is the first.
    """

    device: HardwareSpec | None = None
    extensions: tuple[Extension, ...] = ()
    bundled: bool = True
    steps: str | None = None
    ep_size: int | None = None
    overlap: str = KEEP
    cpu: bool = False
    backend: str = "roofline"
    clock_mhz: float | None = None
    work: StepWork | None = None
    capture: Trace | None = None
    shapes: Trace | None = None
    memory_snapshot: tuple[DeviceMemory, ...] | None = None
    inductor: CompiledCode | None = None
    power: Path | None = None
    counters: tuple[CountedKernels, ...] = ()
    rank: int | None = None


def active_extensions(names: Iterable[str], options: AnalysisOptions) -> tuple[Extension, ...]:
    """The caller's extensions, then the bundled ones whose op names occur in the trace."""
    given = {extension.name for extension in options.extensions}
    bundled = [load_extension(name) for name in detect_bundled(names) if name not in given] if options.bundled else []
    return (*options.extensions, *bundled)
