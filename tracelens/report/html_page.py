"""``report.html``: the whole report on one page, in one file that opens offline and asks the network for nothing.

What a reader needs first stands in the page itself; the script adds sorting, filtering, the timeline and the tree from
data that is packed with it. The Content-Security-Policy admits this script and this style sheet by their hashes and
nothing else. The same input gives the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.analysis import page_charts
from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import Labels
from tracelens.analysis.page_charts import drilldown, icicle, roofs
from tracelens.analysis.sheets import coll_analysis, perf_summary
from tracelens.analysis.sheets.module_time import lines_of_events
from tracelens.analysis.verdict.summary import DeviceSummary, Summary
from tracelens.files.cells import plain_columns
from tracelens.files.documents import json_encoded
from tracelens.report import page_findings, page_sections
from tracelens.report.assembly import Analyzed, Sheet, by_title, make_sheet
from tracelens.report.charts import color_classes
from tracelens.report.explanation import explain_plain
from tracelens.report.figures import scope_text, steps_text
from tracelens.report.markup import Markup, asset, framed, tag
from tracelens.report.page_findings import SheetRows
from tracelens.report.page_sections import PageTable, page_table
from tracelens.report.page_timeline import PackedColumns, PageRows, Pool, timeline_data
from tracelens.types.records import Record


class Pictures(Record, frozen=True, kw_only=True):
    """What the page draws beside its tables; None where there is nothing to draw."""

    analysis: Analysis | None = None
    roofs: page_charts.Roofs | None = None
    steps: tuple[page_charts.StepTimeline, ...] = ()
    icicle: page_charts.Icicle | None = None
    lines: Labels | None = None
    drilldown: page_charts.Drilldown | None = None
    power: Mapping[str, Sequence[tuple[float, float]]] | None = None

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
            steps=tuple(page_charts.step_timelines(result, max_rects=max_rects)),
            icicle=icicle(result, max_nodes=max_nodes),
            power=page_charts.power_lines(result),
        )


#: What stands for the line of work without recorded frames of its own.
NO_LINE = "(no Python frames of the program)"


def drilldown_data(drawn: page_charts.Drilldown, names: Sequence[str], rows: int, pool: Pool) -> dict[str, Any]:
    """Columns over the leaves; ``op`` is a row of the table of ops, which has so many, -1 for others."""
    line = drawn.line
    return {
        "category": pool.codes(drawn.category.texts, drawn.category.code).tolist(),
        "op": np.where(drawn.row < rows, drawn.row, -1).tolist(),
        "kernel": pool.codes(names, drawn.kernel).tolist(),
        "line": None if line is None else pool.codes([text or NO_LINE for text in line.texts], line.code).tolist(),
        "time": drawn.time_ns.tolist(),
        "count": drawn.count.tolist(),
        "rest": drawn.left_out_ns,
    }


def icicle_data(tree: page_charts.Icicle, pool: Pool) -> dict[str, Any]:
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
#: Rows of a table of the page.
_MOST_ROWS = 1000
#: What runs in the page, in this order.
SCRIPTS = ("page.js", "timeline.js", "tree.js", "drill.js")


def html_bytes(sheets: Sequence[Sheet], summary: Summary, result: Analyzed, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The page, at most ``max_bytes`` long as long as halving what it holds helps."""
    for halved in itertools.count():
        page = _page(sheets, summary, result, halved)
        if len(page) <= max_bytes or _MOST_ROWS >> halved <= 1:
            break
    return page


def _page(sheets: Sequence[Sheet], summary: Summary, result: Analyzed, halved: int) -> bytes:
    """``halved``: how many times what the page holds is halved."""
    pictures = Pictures.of(
        result, max_rects=page_charts.MAX_RECTS >> halved, max_nodes=page_charts.MAX_NODES >> halved
    )  # fmt: skip
    titles = (
        perf_summary.UNIFIED_PERF_SUMMARY_TITLE, perf_summary.KERNEL_SUMMARY_TITLE, coll_analysis.TITLE,
        perf_summary.CPU_OPS_TITLE,
    )  # fmt: skip
    ops, kernels, collectives, cpu = (by_title(sheets, title) for title in titles)
    overview = None  # the rows of ``unified_perf_summary`` as readable lines
    if ops is not None:
        gpu_us = ops.frame["kernel_us_sum"].sum() if kernels is None else kernels.frame["duration_us_sum"].sum()
        frame = perf_summary.overview(ops.frame, float(gpu_us))
        overview = make_sheet(perf_summary.PERF_SUMMARY_TITLE, frame, perf_summary.PERF_SUMMARY_COLUMNS, ops.text)
    read = SheetRows(sheets, overview)
    added = {f"added-{number}": made for number, made in enumerate((s for s in sheets if s.is_added), 1)}
    of_page = {"ops": overview, "kernels": kernels, "collectives": collectives, "cpu-ops": cpu}
    shown: dict[str, tuple[Sheet | None, Sequence[str]]] = {
        **{key: (sheet, page_sections.texts()["columns"][key]) for key, sheet in of_page.items()},
        **{key: (made, [column.key for column in made.columns]) for key, made in added.items()},
    }
    found = (page_table(key, sheet, keys, _MOST_ROWS >> halved) for key, (sheet, keys) in shown.items())
    tables = {table.key: table for table in found if table is not None}
    colors = color_classes([row.name for row in summary.categories])
    body = _sections(summary, read, tables, pictures, colors, added)
    script = "\n".join(map(asset, SCRIPTS))
    packed = PackedColumns()
    data = json_encoded(_data(summary, read, tables, pictures, colors, packed))
    # The length of the text, the text, the columns, as gzip in base64; without a date: the same data, the same bytes
    whole = gzip.compress(b"".join((len(data).to_bytes(4, "little"), data, packed.content)), 6, mtime=0)
    return framed(f"{summary.input.file} · trace report", body, script=script, data=base64.b64encode(whole).decode())


def _sections(
    summary: Summary,
    read: SheetRows,
    tables: dict[str, PageTable],
    pictures: Pictures,
    colors: dict[str, str],
    added: Mapping[str, Sheet],
) -> list[tuple[str, str, Markup]]:
    """(id, title, markup), top to bottom, of what there is; ``added``: sheets of extensions, by key."""
    sheets, texts = read.sheets, page_sections.texts()
    ops = by_title(sheets, perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    scope = scope_text(summary.scope)
    totalled = f" Totals over the {steps_text(summary.steps)}, not per step." if summary.steps else ""
    if pictures.steps:
        totalled += texts["select"]
    made = (
        ("verdict", "Verdict", page_sections.verdict(summary)),
        ("first", "Look here first", page_findings.look_here_first(summary, read)),
        ("time", "Where time goes", page_sections.where_time_goes(summary, colors, sheets)),
        ("drill", "Drill down", page_sections.drill(pictures.drilldown, scope)),
        ("roofline", "Roofline", page_sections.roofline(ops, tables.get("ops"), pictures.roofs, colors)),
        ("timeline", "Timeline", page_sections.timeline(pictures.steps, pictures.power)),
        ("tree", "Tree", page_sections.tree(pictures.icicle, scope)),
        ("memory", "Memory", page_sections.memory_over_time(sheets)),
        *(
            (f"section-{key}", title, page_sections.table(title, tables.get(key), text))
            for key, title, text in (
                ("ops", "Ops", texts["ops"] + totalled),
                ("kernels", "Kernels", texts["kernels"] + totalled),
                ("collectives", "Collectives", texts["collectives"] + totalled),
                ("cpu-ops", "CPU ops", texts["cpu_ops"]),
                *((key, sheet.title, sheet.text) for key, sheet in added.items()),
            )
        ),
        ("health", "Notes and sources", page_sections.health(summary)),
    )
    return [(key, title, tag("section", content, id=key)) for key, title, content in made if content is not None]


def _data(
    summary: Summary,
    read: SheetRows,
    tables: dict[str, PageTable],
    pictures: Pictures,
    colors: dict[str, str],
    packed: PackedColumns,
) -> dict[str, object]:
    pool, ops = Pool(), by_title(read.sheets, perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    kernels = by_title(read.sheets, perf_summary.KERNEL_SUMMARY_TITLE)
    data: dict[str, object] = {
        "tables": {key: table.data() for key, table in tables.items()},
        "colors": [[pool.add(name), color] for name, color in colors.items()],
    }
    rows = len(tables["ops"].rows) if "ops" in tables else 0
    if ops is not None and rows:
        data["explanations"] = explanations(ops, rows, summary.device, pool)
    named: set[int] = set()
    if pictures.drilldown is not None and pictures.analysis is not None:
        leaves = drilldown_data(pictures.drilldown, pictures.analysis.trace.table.names, rows, pool)
        data["drilldown"] = leaves
        named.update(leaves["kernel"])
    if pictures.steps and pictures.analysis is not None:
        shown = PageRows.of(rows, kernels, len(tables["kernels"].rows) if "kernels" in tables else 0)
        first = len(pool.texts)
        data["timeline"] = timeline_data(pictures.steps, pictures.analysis, shown, pictures.lines, pool, packed)
        named.update(range(first, len(pool.texts)))
    if pictures.icicle is not None:
        tree = data["icicle"] = icicle_data(pictures.icicle, pool)
        named.update(tree["name"])
    data["findings"] = page_findings.finding_data(summary, read, rows, pictures.analysis, pool)
    if summary.together is not None:
        data["together"] = list(summary.together.step_us)
    data["short"] = pool.short(named)
    data["texts"] = pool.texts
    return data
