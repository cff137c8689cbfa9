"""What the page's script draws: the timeline of one step, the tree, and how each op's figures were computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import Labels
from tracelens.analysis.idle.idle_time import CAUSES
from tracelens.analysis.page.op_charts import Drilldown, Icicle, Roofs, drilldown, icicle, roofs
from tracelens.analysis.page.step_rectangles import HostLanes, StepIdle
from tracelens.analysis.page.step_timeline import Lane, StepTimeline, step_timelines
from tracelens.analysis.sheets.module_time import lines_of_events
from tracelens.analysis.verdict.summary import DeviceSummary
from tracelens.files.short_names import short_kernel_name
from tracelens.lazy.records import dataclass
from tracelens.report.assembly import Analyzed, Sheet
from tracelens.report.cells import plain_columns
from tracelens.report.explanation import explain_plain
from tracelens.report.html.page_tables import shown_text
from tracelens.trace.table import Kind, TraceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """What the page draws beside its tables; None where there is nothing to draw."""

    analysis: Analysis | None = None
    roofs: Roofs | None = None
    steps: tuple[StepTimeline, ...] = ()
    icicle: Icicle | None = None
    lines: Labels | None = None
    drilldown: Drilldown | None = None

    @classmethod
    def of(cls, result: Analyzed, *, max_rects: int, max_nodes: int) -> Pictures:
        """The pictures of an analyzed trace; none for frames without a trace."""
        if not isinstance(result, Analysis):
            return cls()
        lines = (
            lines_of_events(result.trace.table, result.trace.tree, result.activity) if len(result.activity) else None
        )
        return cls(
            analysis=result,
            lines=lines,
            drilldown=drilldown(result, lines, max_leaves=max_nodes),
            roofs=roofs(result),
            steps=tuple(step_timelines(result, max_rects=max_rects)),
            icicle=icicle(result, max_nodes=max_nodes),
        )


#: What stands for the line of work without recorded frames of its own.
NO_LINE = "(no Python frames of the program)"


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

    def names(self, texts: Sequence[str], codes: npt.NDArray[np.integer]) -> list[int]:
        """The indices of texts by code."""
        known = {code: self.add(texts[code]) for code in np.unique(codes).tolist()}
        return [known[code] for code in codes.tolist()]

    def short(self, texts: Iterable[int]) -> dict[str, str]:
        """Readable forms of those of these texts that are long for a box."""
        forms = ((at, short_kernel_name(self.texts[at])) for at in sorted(set(texts)) if at >= 0)
        return {str(at): form for at, form in forms if form != self.texts[at]}


def timeline_data(
    steps: Sequence[StepTimeline], analysis: Analysis, rows: int, lines: Labels | None, pool: Pool
) -> list[dict[str, Any]]:
    """Of each step columns over the boxes, the threads' before the streams'; times in ns from the step's start.

    ``row``: of the table of ops, which has so many; ``from``: the box that a device event was launched in.
    """
    return [_step_data(drawn, analysis, rows, lines, pool) for drawn in steps]


def _step_data(drawn: StepTimeline, analysis: Analysis, rows: int, lines: Labels | None, pool: Pool) -> dict[str, Any]:
    table, activity, events, host = analysis.trace.table, analysis.activity, drawn.event, drawn.host
    row = analysis.row_of_event
    counted_in = np.full(len(events), -1) if row is None else np.where(row[events] < rows, row[events], -1)
    threads = 0 if host is None else len(host.threads)
    columns: dict[str, list[Any]] = {
        "lane": (drawn.lane + threads).tolist(),
        "level": [0] * len(events),
        "start": drawn.start_ns.tolist(),
        "length": (drawn.end_ns - drawn.start_ns).tolist(),
        "busy": drawn.kernel_ns.tolist(),
        "count": drawn.count.tolist(),
        "kind": ["device"] * len(events),
        "name": pool.names(table.names, activity.name[events]),
        "category": pool.names(analysis.event_category.texts, analysis.event_category.code[events]),
        "op": [pool.add(table.name_of(at)) if at >= 0 else -1 for at in activity.op[events].tolist()],
        "line": [-1] * len(events) if lines is None else pool.names(lines.texts, lines.code[events]),
        "row": counted_in.tolist(),
        "launch": drawn.launch_ns.tolist(),
        "from": [-1] * len(events) if host is None else host.launched_in.tolist(),
    }
    labels = [{"label": label, "levels": 1} for label in lane_labels(drawn.lanes)]
    if host is not None:
        columns = {key: [*values, *columns[key]] for key, values in _host_columns(host, table, pool).items()}
        labels = [*_thread_labels(host, table), *labels]
    idle = None if drawn.idle is None else idle_data(drawn.idle, pool)
    return {"step": drawn.step, "duration": drawn.duration_ns, "lanes": labels, "idle": idle, **columns}


def _host_columns(host: HostLanes, table: TraceTable, pool: Pool) -> dict[str, list[Any]]:
    length, none = (host.end_ns - host.start_ns).tolist(), [-1] * len(host.row)
    kinds = [
        "module" if kind == Kind.PYTHON_FUNCTION else _HOST_KINDS.get(Kind(kind), "call")
        for kind in table.kind[host.row].tolist()
    ]
    return {
        "lane": host.thread.tolist(), "level": host.level.tolist(), "start": host.start_ns.tolist(), "length": length,
        "busy": length, "count": host.count.tolist(), "kind": kinds,
        "name": pool.names(table.names, table.name[host.row]),
        "category": none, "op": none, "line": none, "row": none, "launch": none, "from": none,
    }  # fmt: skip


_HOST_KINDS = {Kind.CPU_OP: "op", Kind.USER_ANNOTATION: "annotation"}


def _thread_labels(host: HostLanes, table: TraceTable) -> list[dict[str, Any]]:
    """Names of threads; those without one by number."""
    made: list[dict[str, Any]] = []
    for number, lane in enumerate(host.threads):
        name = (table.thread_names.get(table.lanes[lane]) or f"thread {table.lanes[lane][1]}").partition(" (")[0]
        made.append({"label": shown_text(name), "levels": host.levels[number], "host": True})
    return made


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


def drilldown_data(drawn: Drilldown, names: Sequence[str], rows: int, pool: Pool) -> dict[str, Any]:
    """Columns over the leaves; ``op`` is a row of the table of ops, which has so many, -1 for others."""
    line = drawn.line
    return {
        "category": pool.names(drawn.category.texts, drawn.category.code),
        "op": np.where(drawn.row < rows, drawn.row, -1).tolist(),
        "kernel": pool.names(names, drawn.kernel),
        "line": None if line is None else pool.names([text or NO_LINE for text in line.texts], line.code),
        "time": drawn.time_ns.tolist(),
        "count": drawn.count.tolist(),
        "rest": drawn.left_out_ns,
    }


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
    for values in zip(*plain_columns(frame[keys]), strict=True):
        row = dict(zip(keys, values, strict=True))
        lines = [*explain_plain(row, device).lines]
        lines += [f"{label}: {row[key]}" for key, label in _DETAILS if row.get(key)]
        found.append([pool.add(line) for line in lines])
    return found
