"""``report.html``: the whole report on one page, in one file that opens offline and asks the network for nothing.

What a reader needs first stands in the page itself; the script adds sorting, filtering, the timeline and the tree from
data that is packed beside it. The Content-Security-Policy admits this script and this style sheet by their hashes and
nothing else. The same input gives the same bytes.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence

from tracelens.analysis.page.op_charts import MAX_NODES
from tracelens.analysis.page.step_timeline import MAX_RECTS
from tracelens.analysis.sheets import coll_analysis, cpu_ops, kernel_time, perf_summary
from tracelens.analysis.verdict.summary import Summary
from tracelens.files.json_bytes import encoded
from tracelens.lazy.records import dataclass
from tracelens.report.assembly import Analyzed, Sheet, by_title, make_sheet
from tracelens.report.html import page_sections as sections
from tracelens.report.html.charts import color_classes
from tracelens.report.html.frame import asset, framed
from tracelens.report.html.markup import Markup, tag
from tracelens.report.html.page_data import Pictures, Pool, drilldown_data, explanations, icicle_data, timeline_data
from tracelens.report.html.page_tables import COLLECTIVES, CPU_OPS, KERNELS, OPS, PageTable, page_table
from tracelens.report.step_figures import scope_text, steps_text

#: Largest page, in bytes; one that would be larger is written with fewer rows, rectangles and nodes.
MAX_BYTES = 1_500_000
#: What runs in the page, in this order.
SCRIPTS = ("page.js", "timeline.js", "tree.js", "drill.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of everything the page holds."""

    rows: int = 1000
    rects: int = MAX_RECTS
    nodes: int = MAX_NODES

    def halved(self) -> Limits:
        """For the next attempt."""
        return Limits(rows=self.rows // 2, rects=self.rects // 2, nodes=self.nodes // 2)


def html_bytes(sheets: Sequence[Sheet], summary: Summary, result: Analyzed, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The page, at most ``max_bytes`` long as long as halving what it holds helps."""
    limits = Limits()
    while True:
        page = _page(sheets, summary, result, limits)
        if len(page) <= max_bytes or limits.rows <= 1:
            return page
        limits = limits.halved()


def _page(sheets: Sequence[Sheet], summary: Summary, result: Analyzed, limits: Limits) -> bytes:
    pictures = Pictures.of(result, max_rects=limits.rects, max_nodes=limits.nodes)
    ops, kernels = (
        by_title(sheets, perf_summary.UNIFIED_PERF_SUMMARY_TITLE),
        by_title(sheets, kernel_time.KERNEL_SUMMARY_TITLE),
    )
    tables = {
        table.key: table
        for table in (
            page_table("ops", _overview(ops, kernels), OPS, limits.rows),
            page_table("kernels", kernels, KERNELS, limits.rows),
            page_table("collectives", by_title(sheets, coll_analysis.TITLE), COLLECTIVES, limits.rows),
            page_table("cpu-ops", by_title(sheets, cpu_ops.CPU_OPS_TITLE), CPU_OPS, limits.rows),
        )
        if table is not None
    }
    added = {f"added-{number}": made for number, made in enumerate((s for s in sheets if s.is_added), 1)}
    for key, made in added.items():
        if (found := page_table(key, made, [column.key for column in made.columns], limits.rows)) is not None:
            tables[key] = found
    colors = color_classes([row.name for row in summary.categories])
    body = _sections(summary, sheets, tables, pictures, colors)
    body[-1:-1] = _added_sections(added, tables)
    script = "\n".join(map(asset, SCRIPTS))
    data = _packed(_data(summary, tables, pictures, ops, colors))
    return framed(f"{summary.input.file} · trace report", body, script=script, data=data)


def _overview(ops: Sheet | None, kernels: Sheet | None) -> Sheet | None:
    """The rows of ``unified_perf_summary`` as readable lines."""
    if ops is None:
        return None
    gpu_us = ops.frame["kernel_us_sum"].sum() if kernels is None else kernels.frame["duration_us_sum"].sum()
    return make_sheet(
        ops.title, perf_summary.overview(ops.frame, float(gpu_us)), perf_summary.PERF_SUMMARY_COLUMNS, ops.text
    )


def _sections(
    summary: Summary, sheets: Sequence[Sheet], tables: dict[str, PageTable], pictures: Pictures, colors: dict[str, str]
) -> list[tuple[str, str, Markup]]:
    """(id, title, markup), top to bottom, of what there is."""
    ops = by_title(sheets, perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    scope = scope_text(summary.scope)
    totalled = f" Totals over the {steps_text(summary.steps)}, not per step." if summary.steps else ""
    made = (
        ("verdict", "Verdict", sections.verdict(summary)),
        ("first", "Look here first", sections.look_here_first(summary)),
        ("time", "Where time goes", sections.where_time_goes(summary, colors, sheets)),
        ("drill", "Drill down", sections.drill(pictures.drilldown, scope)),
        ("roofline", "Roofline", sections.roofline(ops, tables.get("ops"), pictures.roofs, colors)),
        ("timeline", "Timeline", sections.timeline(pictures.steps)),
        ("tree", "Tree", sections.tree(pictures.icicle, scope)),
        ("memory", "Memory", sections.memory_over_time(sheets)),
        ("section-ops", "Ops", sections.table("Ops", tables.get("ops"), sections.OPS_TEXT + totalled)),
        (
            "section-kernels",
            "Kernels",
            sections.table("Kernels", tables.get("kernels"), sections.KERNELS_TEXT + totalled),
        ),
        (
            "section-collectives",
            "Collectives",
            sections.table("Collectives", tables.get("collectives"), sections.COLLECTIVES_TEXT + totalled),
        ),
        ("section-cpu-ops", "CPU ops", sections.table("CPU ops", tables.get("cpu-ops"), sections.CPU_TEXT)),
        ("health", "Notes and sources", sections.health(summary)),
    )
    return [
        (key, title, tag("section", content, id=key)) for key, title, content in made if content is not None
    ]  # fmt: skip


def _added_sections(added: Mapping[str, Sheet], tables: Mapping[str, PageTable]) -> list[tuple[str, str, Markup]]:
    """A section for each sheet of an extension."""
    made = [(key, sheet, sections.table(sheet.title, tables.get(key), sheet.text)) for key, sheet in added.items()]
    return [
        (f"section-{key}", sheet.title, tag("section", content, id=f"section-{key}"))
        for key, sheet, content in made
        if content is not None
    ]


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


def _packed(data: dict[str, object]) -> str:
    """As gzip in base64; without a date, so the same data gives the same text."""
    return base64.b64encode(gzip.compress(encoded(data), 6, mtime=0)).decode()
