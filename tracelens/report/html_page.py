"""``report.html``: the whole report on one page, in one file that opens offline and asks the network for nothing.

What a reader needs first stands in the page itself; the script adds sorting, filtering, the timeline and the tree from
data that is packed with it. The Content-Security-Policy admits this script and this style sheet by their hashes and
nothing else. The same input gives the same bytes.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import Labels
from tracelens.analysis.idle.idle_time import CAUSES
from tracelens.analysis.page_charts import (
    MAX_NODES,
    MAX_RECTS,
    Drilldown,
    Icicle,
    Lane,
    Roofs,
    StepTimeline,
    drilldown,
    icicle,
    roofs,
    step_timelines,
)
from tracelens.analysis.sheets import coll_analysis, perf_summary
from tracelens.analysis.sheets.module_time import lines_of_events
from tracelens.analysis.step_rectangles import HostLanes, StepIdle
from tracelens.analysis.verdict.summary import DeviceSummary, Summary
from tracelens.files.cells import plain_columns
from tracelens.files.documents import json_encoded
from tracelens.files.safe_text import short_kernel_name
from tracelens.report import page_sections
from tracelens.report.assembly import Analyzed, Sheet, by_title, make_sheet
from tracelens.report.charts import color_classes
from tracelens.report.document import shown_text
from tracelens.report.explanation import explain_plain
from tracelens.report.figures import scope_text, steps_text
from tracelens.report.markup import Markup, asset, framed, tag
from tracelens.report.page_tables import COLLECTIVES, CPU_OPS, KERNELS, OPS, PageTable, page_table
from tracelens.trace.table import Kind, TraceTable
from tracelens.types.records import Record


class Pictures(Record, frozen=True, kw_only=True):
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
    ("input_types", "types"), ("input_strides", "strides"), ("concrete_inputs", "scalars"), ("thread_name", "thread"),
    ("note", "note"), ("kernel_details_short", "kernels behind it"), ("parent_module", "in"),
    ("call_stack", "called from"),
)  # fmt: skip


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


#: Largest page, in bytes; one that would be larger is written with fewer rows, rectangles and nodes.
MAX_BYTES = 1_500_000
#: What runs in the page, in this order.
SCRIPTS = ("page.js", "timeline.js", "tree.js", "drill.js")


class PageLimits(Record, frozen=True, kw_only=True):
    """How much of everything the page holds."""

    rows: int = 1000
    rects: int = MAX_RECTS
    nodes: int = MAX_NODES

    def halved(self) -> PageLimits:
        """For the next attempt."""
        return PageLimits(rows=self.rows // 2, rects=self.rects // 2, nodes=self.nodes // 2)


def html_bytes(sheets: Sequence[Sheet], summary: Summary, result: Analyzed, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The page, at most ``max_bytes`` long as long as halving what it holds helps."""
    limits = PageLimits()
    while True:
        page = _page(sheets, summary, result, limits)
        if len(page) <= max_bytes or limits.rows <= 1:
            return page
        limits = limits.halved()


def _page(sheets: Sequence[Sheet], summary: Summary, result: Analyzed, limits: PageLimits) -> bytes:
    pictures = Pictures.of(result, max_rects=limits.rects, max_nodes=limits.nodes)
    ops, kernels, collectives, cpu = (
        by_title(sheets, title)
        for title in (
            perf_summary.UNIFIED_PERF_SUMMARY_TITLE, perf_summary.KERNEL_SUMMARY_TITLE, coll_analysis.TITLE,
            perf_summary.CPU_OPS_TITLE,
        )
    )  # fmt: skip
    added = {f"added-{number}": made for number, made in enumerate((s for s in sheets if s.is_added), 1)}
    shown: dict[str, tuple[Sheet | None, Sequence[str]]] = {
        "ops": (_overview(ops, kernels), OPS), "kernels": (kernels, KERNELS),
        "collectives": (collectives, COLLECTIVES), "cpu-ops": (cpu, CPU_OPS),
        **{key: (made, [column.key for column in made.columns]) for key, made in added.items()},
    }  # fmt: skip
    found = (page_table(key, sheet, keys, limits.rows) for key, (sheet, keys) in shown.items())
    tables = {table.key: table for table in found if table is not None}
    colors = color_classes([row.name for row in summary.categories])
    body = _sections(summary, sheets, tables, pictures, colors, added)
    script = "\n".join(map(asset, SCRIPTS))
    # As gzip in base64; without a date, so the same data gives the same text
    packed = gzip.compress(json_encoded(_data(summary, tables, pictures, ops, colors)), 6, mtime=0)
    return framed(f"{summary.input.file} · trace report", body, script=script, data=base64.b64encode(packed).decode())


def _overview(ops: Sheet | None, kernels: Sheet | None) -> Sheet | None:
    """The rows of ``unified_perf_summary`` as readable lines."""
    if ops is None:
        return None
    gpu_us = ops.frame["kernel_us_sum"].sum() if kernels is None else kernels.frame["duration_us_sum"].sum()
    return make_sheet(
        perf_summary.PERF_SUMMARY_TITLE,
        perf_summary.overview(ops.frame, float(gpu_us)),
        perf_summary.PERF_SUMMARY_COLUMNS,
        ops.text,
    )


def _sections(
    summary: Summary,
    sheets: Sequence[Sheet],
    tables: dict[str, PageTable],
    pictures: Pictures,
    colors: dict[str, str],
    added: Mapping[str, Sheet],
) -> list[tuple[str, str, Markup]]:
    """(id, title, markup), top to bottom, of what there is; ``added``: sheets of extensions, by key."""
    ops = by_title(sheets, perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    scope = scope_text(summary.scope)
    totalled = f" Totals over the {steps_text(summary.steps)}, not per step." if summary.steps else ""
    made = (
        ("verdict", "Verdict", page_sections.verdict(summary)),
        ("first", "Look here first", page_sections.look_here_first(summary)),
        ("time", "Where time goes", page_sections.where_time_goes(summary, colors, sheets)),
        ("drill", "Drill down", page_sections.drill(pictures.drilldown, scope)),
        ("roofline", "Roofline", page_sections.roofline(ops, tables.get("ops"), pictures.roofs, colors)),
        ("timeline", "Timeline", page_sections.timeline(pictures.steps)),
        ("tree", "Tree", page_sections.tree(pictures.icicle, scope)),
        ("memory", "Memory", page_sections.memory_over_time(sheets)),
        *(
            (f"section-{key}", title, page_sections.table(title, tables.get(key), text))
            for key, title, text in (
                ("ops", "Ops", page_sections.OPS_TEXT + totalled),
                ("kernels", "Kernels", page_sections.KERNELS_TEXT + totalled),
                ("collectives", "Collectives", page_sections.COLLECTIVES_TEXT + totalled),
                ("cpu-ops", "CPU ops", page_sections.CPU_TEXT),
                *((key, sheet.title, sheet.text) for key, sheet in added.items()),
            )
        ),
        ("health", "Notes and sources", page_sections.health(summary)),
    )
    return [(key, title, tag("section", content, id=key)) for key, title, content in made if content is not None]


def _data(
    summary: Summary, tables: dict[str, PageTable], pictures: Pictures, ops: Sheet | None, colors: dict[str, str]
) -> dict[str, object]:
    pool = Pool()
    data: dict[str, object] = {
        "tables": {key: table.data() for key, table in tables.items()},
        "colors": [[pool.add(name), color] for name, color in colors.items()],
    }
    if ops is not None and "ops" in tables:
        data["explanations"] = explanations(ops, len(tables["ops"].rows), summary.device, pool)
    named: set[int] = set()
    rows = len(tables["ops"].rows) if "ops" in tables else 0
    if pictures.drilldown is not None and pictures.analysis is not None:
        leaves = drilldown_data(pictures.drilldown, pictures.analysis.trace.table.names, rows, pool)
        data["drilldown"] = leaves
        named.update(leaves["kernel"])
    if pictures.steps and pictures.analysis is not None:
        steps = data["timeline"] = timeline_data(pictures.steps, pictures.analysis, rows, pictures.lines, pool)
        named.update(at for step in steps for key in ("name", "op") for at in step[key])
    if pictures.icicle is not None:
        tree = data["icicle"] = icicle_data(pictures.icicle, pool)
        named.update(tree["name"])
    data["short"] = pool.short(named)
    data["texts"] = pool.texts
    return data
