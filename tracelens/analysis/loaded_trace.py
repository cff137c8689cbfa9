"""``tl.load``: one recorded trace, ready to be asked."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from tracelens.analysis.attribution.steps import device_steps
from tracelens.files.memory_limit import end_stage
from tracelens.lazy.records import dataclass
from tracelens.trace.links import needed_flows
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import DEVICE_KINDS, Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.trace.tree import OpNode


@dataclass(slots=True, eq=False)
class Trace:
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
        import pandas as pd

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
    path: str | PathLike[str],
    *,
    progress: Callable[[int, int], None] | None = None,
    max_memory_gb: float | None = None,
) -> Trace:
    """Reads a trace of any profiler (docs/formats.md). InputError, in one sentence, when it is none, or too large.

    ``progress`` is called with (compressed bytes read, bytes in all). ``max_memory_gb`` (1e9 bytes) is what the process
    may take while it reads; None: three quarters of the machine's memory.
    """
    return Trace.of(read_trace(path, progress=progress, max_memory_gb=max_memory_gb))
