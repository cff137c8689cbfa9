"""What the page's script draws: the timeline of one step, the tree, and how each op's figures were computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.idle.idle_time import CAUSES
from tracelens.analysis.page.icicle import Icicle, icicle
from tracelens.analysis.page.roofs import Roofs, roofs
from tracelens.analysis.page.step_idle import StepIdle
from tracelens.analysis.page.step_timeline import Lane, StepTimeline, step_timeline
from tracelens.analysis.verdict.summary import DeviceSummary
from tracelens.report.assembly import Analyzed, Sheet
from tracelens.report.cells import plain_values
from tracelens.report.explanation import explain
from tracelens.report.html.page_tables import shown_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """What the page draws beside its tables; None where there is nothing to draw."""

    analysis: Analysis | None = None
    roofs: Roofs | None = None
    timeline: StepTimeline | None = None
    icicle: Icicle | None = None

    @classmethod
    def of(cls, result: Analyzed, *, max_rects: int, max_nodes: int) -> Pictures:
        """The pictures of an analyzed trace; none for frames without a trace."""
        if not isinstance(result, Analysis):
            return cls()
        return cls(
            analysis=result,
            roofs=roofs(result),
            timeline=step_timeline(result, max_rects=max_rects),
            icicle=icicle(result, max_nodes=max_nodes),
        )


class Pool:
    """Texts by index, each once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}

    def add(self, text: str) -> int:
        """The index of a text, as it is shown."""
        shown = shown_text(text)
        if shown not in self._index:
            self._index[shown] = len(self.texts)
            self.texts.append(shown)
        return self._index[shown]


def timeline_data(drawn: StepTimeline, analysis: Analysis, pool: Pool) -> dict[str, Any]:
    """Columns over the rectangles; times in ns from the window's start."""
    table, activity, events = analysis.trace.table, analysis.activity, drawn.event
    ops = activity.op[events].tolist()
    return {
        "duration": drawn.duration_ns,
        "lanes": lane_labels(drawn.lanes),
        "lane": drawn.lane.tolist(),
        "start": drawn.start_ns.tolist(),
        "length": (drawn.end_ns - drawn.start_ns).tolist(),
        "busy": drawn.kernel_ns.tolist(),
        "count": drawn.count.tolist(),
        "name": [pool.add(table.names[code]) for code in activity.name[events].tolist()],
        "category": [pool.add(str(text)) for text in analysis.event_category[events].tolist()],
        "op": [pool.add(table.name_of(row)) if row >= 0 else -1 for row in ops],
        "idle": None if drawn.idle is None else idle_data(drawn.idle, pool),
    }


def idle_data(drawn: StepIdle, pool: Pool) -> dict[str, Any]:
    """Columns over the rectangles of idle time."""
    return {
        "start": drawn.start_ns.tolist(),
        "length": (drawn.end_ns - drawn.start_ns).tolist(),
        "idle": drawn.idle_ns.tolist(),
        "cause": [pool.add(CAUSES[code]) for code in drawn.cause.tolist()],
    }


def lane_labels(lanes: Sequence[Lane]) -> list[str]:
    """What a lane is called; the device is named only where there are several."""
    several = len({lane.device for lane in lanes}) > 1
    return [f"{f'device {lane.device} ' if several else ''}stream {lane.stream}" for lane in lanes]


def icicle_data(tree: Icicle, pool: Pool) -> dict[str, Any]:
    """Columns over the nodes, parents first."""
    nodes = tree.nodes
    return {
        "parent": [node.parent for node in nodes],
        "name": [pool.add(node.name) for node in nodes],
        "kind": [node.kind for node in nodes],
        "time": [node.time_ns for node in nodes],
        "calls": [node.calls for node in nodes],
        "category": [-1 if node.category is None else pool.add(node.category) for node in nodes],
        "cpu": tree.is_cpu,
    }


_DETAILS = (
    ("input_types", "types"),
    ("input_strides", "strides"),
    ("concrete_inputs", "scalars"),
    ("thread_name", "thread"),
    ("note", "note"),
    ("kernel_details_short", "kernels behind it"),
    ("parent_module", "in"),
    ("call_stack", "called from"),
)


def explanations(sheet: Sheet, rows: int, device: DeviceSummary, pool: Pool) -> list[list[int]]:
    """The lines, by index into the pool, that say how the first ``rows`` ops' figures were computed."""
    frame = sheet.frame.head(rows)
    keys = [column.key for column in sheet.columns]
    found = []
    for values in zip(*(plain_values(frame[key]) for key in keys), strict=True):
        row = dict(zip(keys, values, strict=True))
        lines = [*explain(row, device).lines]
        lines += [f"{label}: {row[key]}" for key, label in _DETAILS if row.get(key)]
        found.append([pool.add(line) for line in lines])
    return found
