"""The sections and tables of the page, top to bottom, as they read without the script; tables also as data for it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard

from tracelens.analysis.page_charts import CLOCK, Drilldown, Icicle, Roofs, StepTimeline
from tracelens.analysis.sheets import device_timeline, perf_summary
from tracelens.analysis.step_rectangles import MAX_LEVELS
from tracelens.analysis.verdict.summary import Busy, CategoryRow, FixesTogether, Steps, Summary
from tracelens.files.cells import Value, plain_rows, plain_value, plain_values
from tracelens.files.safe_text import short_kernel_name, trace_name
from tracelens.report import charts, figures
from tracelens.report.assembly import Sheet, by_title, shown_number
from tracelens.report.charts import Part, Point
from tracelens.report.document import breakable, prose, shown_text
from tracelens.report.explanation import ceilings
from tracelens.report.markup import Content, Markup, asset, headings, joined, tag
from tracelens.report.markup import table as scrolled
from tracelens.schema import TableColumn
from tracelens.types.records import Record
from tracelens.types.units import (
    NS_PER_MS,
    NS_PER_US,
    US_PER_MS,
    shown_figure,
    shown_ms,
    shown_percent,
    shown_rate,
    shown_share,
)

#: Rows that stand in the page itself, readable without the script.
STATIC_ROWS = 15
#: Texts above this many characters are cut after three lines; the tooltip has all of it.
LONG_TEXT = 40
#: Digits that numbers keep in the data; shown are fewer.
_DIGITS = 6
#: Columns whose texts are shown in a readable form.
_NAMES = ("kernel_name", "name")


@cache
def texts() -> dict[str, Any]:
    """What stands on the page whatever the trace, by name: below a title, or how figures were computed; ``columns`` of
    its tables, what a window of 1200 pixels does not show last, and those that a reader has to ask for (``hidden``).
    """
    return tomllib.loads(asset("texts.toml"))


class PageTable(Record, frozen=True, kw_only=True):
    """The columns of a sheet that the page shows. ``rows``: the first of ``total``; ``key`` is its id in the page."""

    key: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Value, ...], ...]
    total: int
    sheet: str

    def data(self) -> dict[str, Any]:
        """For the script: columns with their values, numbers with six digits."""
        values = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return {
            "columns": [
                {
                    "header": column.title,
                    "decimals": None if column.is_text else _decimals(column),
                    "share": column.look == "share",
                    "limit": column.look == "of_limit",
                    "hidden": self._is_hidden(column),
                    "shown": _shortened(cells) if column.key in _NAMES else None,
                    "values": [
                        plain_value(float(f"{value:.{_DIGITS}g}")) if isinstance(value, float) else value
                        for value in cells
                    ],
                }
                for column, cells in zip(self.columns, values, strict=True)
            ]
        }

    def markup(self) -> Markup:
        head = [
            tag("th", tag("button", breakable(column.title), type="button"), title=column.note or None, scope="col",
                class_=None if column.is_text else "n", hidden="" if self._is_hidden(column) else None)
            for column in self.columns
        ]  # fmt: skip
        shown = (zip(self.columns, row, strict=True) for row in self.rows[:STATIC_ROWS])
        rows = [
            tag("tr", [column_cell(c, value, is_hidden=self._is_hidden(c)) for c, value in row], id=f"{self.key}-{i}")
            for i, row in enumerate(shown)
        ]
        table = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows), id=self.key)
        return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=f"Table {self.sheet}")

    def _is_hidden(self, column: TableColumn) -> bool:
        return column.key in texts()["hidden"].get(self.key, ())


def _shortened(names: Iterable[Value]) -> list[str] | None:
    """None where no name has a shorter form."""
    given = [str(name) for name in names]
    short = [short_kernel_name(name) for name in given]
    return short if short != given else None


def page_table(key: str, sheet: Sheet | None, keys: Iterable[str], max_rows: int) -> PageTable | None:
    """Those of ``keys`` that the sheet has and that are not empty throughout; None without rows."""
    if sheet is None or not len(sheet.frame):
        return None
    by_key = {column.key: column for column in sheet.columns}
    frame = sheet.frame.head(max_rows)
    shown = [by_key[key] for key in keys if key in by_key and not frame[key].isna().all()]
    cells: list[list[Value]] = []
    for column in shown:
        values = (str(value).upper() if isinstance(value, bool) else value for value in plain_values(frame[column.key]))
        cells.append([shown_text(value) if isinstance(value, str) else value for value in values])
    return PageTable(
        key=key, columns=tuple(shown), rows=tuple(zip(*cells, strict=True)), total=len(sheet.frame), sheet=sheet.title
    )


def column_cell(column: TableColumn, value: Value, *, is_hidden: bool = False) -> Markup:
    hidden = "" if is_hidden else None
    if column.is_text or isinstance(value, str):
        text = "" if value is None else str(value)
        shown = short_kernel_name(text) if column.key in _NAMES else text
        is_cut = shown != text or len(text) > LONG_TEXT
        return tag("td", tag("div", shown, class_="clip", title=text) if is_cut else text, hidden=hidden)
    return tag("td", "" if value is None else shown_number(value, _decimals(column)), class_="n", hidden=hidden)


def _decimals(column: TableColumn) -> int:
    return len(column.number_format.partition(".")[2]) if column.number_format != "General" else 0


#: Lines of a list of notices; an extension can fail in very many ways.
MAX_NOTICES = 40
#: Marks on the roofline; the ops with most device time.
MAX_POINTS = 150
_LEGEND = 12
#: Work whose joules are unknown, and a share of all joules that would show as nothing.
_UNKNOWN, _LEAST_SHARE = "unknown work", 1e-3
#: Time on the critical path that would show as nothing.
_LEAST_US = 0.05


def verdict(summary: Summary) -> Markup:
    """What was read, and the figures that answer: how long, how busy, how fast, how much of it is known."""
    sentences = filter(None, (figures.bound_sentence(summary), figures.first_fix(summary)))
    return joined(
        tag("h1", shown_text(trace_name(summary.input.file))),
        tag("ul", [tag("li", shown_text(text)) for text in _facts(summary)], class_="facts"),
        *(tag("p", prose(text), class_="sentence") for text in sentences),
        tag("div", list(_tiles(summary)), class_="tiles"),
        tag("p", *_coverage(summary), class_="coverage"),
        _notice_line(summary),
    )


def _facts(summary: Summary) -> Iterator[str]:
    source, device = summary.input, summary.device
    yield device.shown
    if source.ranks:
        several = len(source.ranks) > 1
        of_world = f" of {source.world_size}" if source.world_size else ""
        yield f"rank{'s' if several else ''} {', '.join(map(str, source.ranks))}{of_world}"
    yield f"scope: {figures.scope_text(summary.scope)}"
    if excluded := figures.excluded_text(summary):
        yield excluded
    if source.torch_version:
        yield f"torch {source.torch_version}"
    yield f"{source.events:,} events"
    if summary.extensions:
        yield f"extensions: {', '.join(summary.extensions)}"


def _tiles(summary: Summary) -> Iterator[Markup]:
    busy = summary.busy
    yield from _time_tile(summary.steps, busy, summary.together)
    if busy is not None:
        yield _tile(
            "GPU busy", shown_percent(busy.busy), f"idle {shown_percent(busy.idle)}",
            texts()["busy_tile"],
        )  # fmt: skip
    if (rate := summary.throughput) is not None:
        value, _, of = figures.headline_text(rate).partition(" of ")
        run, title = figures.while_matrix_ops_run(rate), "Share of peak" if value else "Throughput"
        below = f"of {of}; {run}" if value else run
        note = texts()["throughput_tile"].format(tflops_s=shown_rate(rate.tflops_s))
        yield _tile(title, value or f"{shown_rate(rate.tflops_s)} TFLOPS/s", below, note)
    used = summary.utilization
    if used is not None and used.mfu is not None:
        mark = " (!)" if figures.is_impossible(used.mfu) else ""
        hardware = "" if used.hfu is None else f", hardware FLOPs {shown_percent(used.hfu)}"
        yield _tile(
            "Model FLOPs utilization", f"{shown_percent(used.mfu)}{mark}", f"of dense {used.dtype} peak{hardware}",
            f"FLOPs that {used.model} needs for {used.tokens:,} tokens ({used.tokens_source}), divided among "
            f"{used.ranks} ranks ({used.ranks_source}), over the step's time and the data sheet's rate.",
        )  # fmt: skip
    yield from _energy_tile(summary)
    if summary.coverage.perf_model is not None:
        yield _tile(
            "Coverage", shown_share(summary.coverage.perf_model), "of GPU time has a perf model",
            texts()["coverage_tile"],
        )  # fmt: skip


def _energy_tile(summary: Summary) -> Iterator[Markup]:
    """What the terminal says of joules and watts."""
    modelled, measured = summary.energy, summary.measured_power
    joules, below = None, [] if measured is None else [figures.measured_text(measured)]
    if modelled is not None:
        joules = modelled.energy_j
        below.insert(0, figures.beside_energy(modelled, summary.device.id))
    elif measured is not None:
        joules = measured.energy_j
    if below:
        yield _tile(
            f"Energy {'per step' if summary.steps else 'in the window'}",
            "unknown" if joules is None else f"{shown_figure(joules, 3)} J", "; ".join(below),
            texts()["energy_tile"],
        )  # fmt: skip


def _time_tile(steps: Steps | None, busy: Busy | None, together: FixesTogether | None) -> Iterator[Markup]:
    if steps is not None:
        time: Content = f"{shown_ms(steps.time_us)} ms"
        if together is not None:  # the switch below the findings shows one or the other
            then = f"{shown_ms(together.step_us[-1])} ms predicted"
            time = joined(tag("span", time, class_="now"), tag("span", then, class_="then", hidden=""))
        spread = "one complete step" if steps.spread is None else figures.step_range(steps)
        yield _tile(
            "Step time", time, spread,
            f"Mean over complete steps, {'from one start to the next' if busy is not None else 'as annotated'}."
            + "".join(f" {note[0].upper()}{note[1:]}." for note in figures.step_notes(steps)),
        )  # fmt: skip
    elif busy is not None and busy.total_us is not None:
        yield _tile(
            "Window", f"{shown_ms(busy.total_us)} ms", "no steps were annotated",
            "From the start of the first device event to the end of the last.",
        )  # fmt: skip


def _tile(title: str, value: Content, below: str, note: str) -> Markup:
    said = tag("summary", tag("span", title, class_="what"), tag("strong", value), tag("span", below), title=note)
    return tag("details", said, tag("p", note), class_="tile")


def _coverage(summary: Summary) -> Iterator[Content]:
    coverage = summary.coverage
    shares = (
        ("in a definite category", coverage.categorised, "Events whose category is not 'other'."),
        ("not linked to an op", coverage.unlinked, "Launched before the recording, or the launch was not recorded."),
        ("communication", coverage.communication, "By kernel name: NCCL, RCCL, DeepEP and custom collectives."),
    )  # fmt: skip
    parts = [
        tag("span", f"{shown_share(value)} {name}", title=note) for name, value, note in shares if value is not None
    ]
    parts.append(tag("span", f"shapes {'recorded' if coverage.shapes else 'not recorded'}", title="record_shapes=True"))
    parts.append(tag("span", f"stacks {'recorded' if coverage.stacks else 'not recorded'}", title="with_stack=True"))
    yield "Of GPU time: " if len(parts) > 2 else ""
    for number, part in enumerate(parts):
        yield " · " if number else ""
        yield part


def _notice_line(summary: Summary) -> Markup | None:
    """The first two notices: a reader must know them before trusting a figure."""
    said = [*filter(None, (figures.impossible_text(summary),)), *(notice.text for notice in summary.notices[:2])]
    if not said:
        return None
    items, more = [tag("li", prose(text)) for text in said], len(summary.notices) - 2
    if more > 0:
        items.append(tag("li", tag("a", f"{more} more note{'s' if more > 1 else ''}", href="#health")))
    return tag("ul", items, class_="notices")


def where_time_goes(summary: Summary, colors: Mapping[str, str], sheets: Sequence[Sheet] = ()) -> Markup | None:
    """The window and the categories as bars, the categories, headroom, idle causes and the critical path as tables."""
    if not summary.categories and summary.busy is None:
        return None
    per = "per step" if summary.steps else "in the window"
    unit = "device" if summary.busy is not None else "CPU"
    caption = f"{unit[0].upper()}{unit[1:]} time by category"
    path, whole = by_title(sheets, device_timeline.CRITICAL_PATH_TITLE), "step" if summary.steps else "window"
    return joined(
        tag("h2", "Where time goes"),
        _window_bar(summary),
        _shares_bar([(row.name, row.time_us) for row in summary.categories], colors, caption)
        if summary.categories
        else None,
        _energy_bar(summary, colors),
        _category_table(summary, colors, per, unit) if summary.categories else None,
        _ceilings(summary, by_title(sheets, perf_summary.UNIFIED_PERF_SUMMARY_TITLE)),
        _waterfall(by_title(sheets, perf_summary.HEADROOM_TITLE), whole),
        _idle_table(summary),
        _path_table(path, whole),
        how(
            texts()["window"] if summary.busy is not None else None,
            texts()["bar"].format(unit=unit),
            texts()["rates"],
            texts()["headroom"] if by_title(sheets, perf_summary.HEADROOM_TITLE) is not None else None,
            texts()["idle"] if summary.busy is not None and summary.busy.idle_causes else None,
            texts()["path"] if path is not None else None,
        ),
    )  # fmt: skip


def _window_bar(summary: Summary) -> Markup | None:
    busy = summary.busy
    if busy is None:
        return None
    parts = (
        Part(label="compute", share=busy.compute, color="compute", note="At least one kernel that computes ran."),
        Part(label="exposed communication", share=busy.exposed_comm, color="comm", note="Not hidden by computation."),
        Part(label="exposed copies", share=busy.memcpy, color="copies", note="Not hidden by either."),
        Part(label="idle", share=busy.idle, color="idle", note="Nothing ran on the device."),
    )
    shown = [part for part in parts if part.share > 0]
    key = charts.legend([(f"{part.label} {shown_percent(part.share)}", part.color) for part in shown])
    length = "" if busy.total_us is None else f", {shown_ms(busy.total_us)} ms"
    window = (
        "The window" if summary.steps is None else f"The {figures.steps_text(summary.steps)}".removeprefix("The 1 ")
    )
    window = f"{window[:1].upper()}{window[1:]}"
    return tag("figure", tag("figcaption", f"{window}{length}"), charts.stacked_bar(shown, window), key)


def _energy_bar(summary: Summary, colors: Mapping[str, str]) -> Markup | None:
    """Joules by category, and of idle time; none where they are unknown."""
    use = summary.energy
    if use is None or use.energy_j is None:
        return None
    known = {each.name: each.energy_j for each in use.categories if each.energy_j is not None}
    rest_j = max(use.energy_j - sum(known.values()) - use.idle_j, 0.0)
    order = [row.name for row in summary.categories if row.name in known]
    values = [*((name, known[name]) for name in order), (_UNKNOWN, rest_j), ("idle", use.idle_j)]
    shown = [(name, joules) for name, joules in values if joules > _LEAST_SHARE * use.energy_j]
    per = "per step" if summary.steps else "in the window"
    caption = f"Modelled energy by category: {shown_figure(use.energy_j, 3)} J {per}"
    return _shares_bar(shown, {**colors, "idle": "idle"}, caption)


def _shares_bar(values: Sequence[tuple[str, float]], colors: Mapping[str, str], caption: str) -> Markup:
    total = sum(value for _, value in values) or 1.0
    large = [(name, value) for name, value in values if colors.get(name, charts.REST) != charts.REST]
    parts = [Part(label=name, share=value / total, color=colors[name]) for name, value in large]
    small = [(name, value) for name, value in values if colors.get(name, charts.REST) == charts.REST]
    if small:
        label = small[0][0] if len(small) == 1 else f"{len(small)} more"
        label = f"{_UNKNOWN} and others" if len(small) > 1 and _UNKNOWN in dict(small) else label
        parts.append(Part(label=label, share=sum(value for _, value in small) / total, color=charts.REST))
    key = charts.legend([(f"{part.label} {shown_share(part.share)}", part.color) for part in parts])
    return tag("figure", tag("figcaption", caption), charts.stacked_bar(parts, caption), key)


def _idle_table(summary: Summary) -> Markup | None:
    busy = summary.busy
    if busy is None or not busy.idle_causes:
        return None
    steps = summary.steps.count if summary.steps else 1
    rows = [
        (cause, "-" if busy.total_us is None else shown_ms(share * busy.total_us / steps), f"{100 * share:.1f}")
        for cause, share in busy.idle_causes
    ]
    per = "ms per step" if summary.steps else "ms"
    return _small_table("Why the GPU was idle", ("cause", per, "% of the window"), rows)


def _waterfall(sheet: Sheet | None, whole: str) -> Markup | None:
    if sheet is None:
        return None
    shown = plain_rows(sheet.frame, ("category", "own_us", "achievable_own_us", "roofline_own_us"))
    rows = [
        (str(name), float(own or 0) / US_PER_MS, float(best or 0) / US_PER_MS, float(least or 0) / US_PER_MS)
        for name, own, best, least in shown
    ]
    return charts.headroom_chart(rows, whole)


def _path_table(path: Sheet | None, whole: str) -> Markup | None:
    if path is None:
        return None
    shown = plain_rows(path.frame, ("kind", "time_us", "percent_of_step"))
    rows = [
        (str(kind), shown_ms(us), f"{percent:.1f}")
        for kind, us, percent in shown
        if isinstance(us, float) and us >= _LEAST_US
    ]
    where = "a step" if whole == "step" else "the window"
    return _small_table(f"The critical path through {where}", ("kind", "ms", f"% of the {whole}"), rows)


def _small_table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Markup:
    cells = [
        tag("tr", tag("th", first, scope="row"), [tag("td", text, class_="n") for text in rest])
        for first, *rest in rows
    ]
    return joined(tag("h3", title), scrolled(headings(*heads, figures=heads[1:]), cells, kind="categories"))


def _category_table(summary: Summary, colors: Mapping[str, str], per: str, unit: str) -> Markup:
    head = ["category", f"ms {per}", "% of the window" if unit == "device" else "%"]
    if unit == "device":
        head += ["TFLOPS/s", "TB/s", "bound by", "of roofline"]
    rows = [tag("tr", list(_category_cells(row, colors, unit))) for row in figures.lines_of_window(summary)]
    return scrolled(headings(*head, figures=set(head) - {"category", "bound by"}), rows, kind="categories")


def _ceilings(summary: Summary, ops: Sheet | None) -> Markup | None:
    """What a share of the roofline is of."""
    rates = [] if ops is None else ceilings(ops.frame, summary.device)
    if not rates or not any(row.of_roofline for row in summary.categories):
        return None
    return tag(
        "p", "Of roofline is the time at the bounding rate over the measured time. "
        f"Rates: {', '.join(rates)}; the launch bound is the shortest time of a kernel.", class_="below",
    )  # fmt: skip


def _category_cells(row: CategoryRow, colors: Mapping[str, str], unit: str) -> Iterator[Markup]:
    """Shared and idle time are no categories: without color and rates."""
    swatch = None
    if row.name in colors:
        box = tag("rect", width=12, height=12, class_=colors[row.name])
        swatch = tag("svg", box, class_="key", width=12, height=12, aria_hidden="true")
    yield tag("th", swatch, row.name, scope="row")
    yield tag("td", shown_ms(row.time_us), class_="n")
    yield tag("td", f"{100 * row.share:.1f}", class_="n")
    if unit != "device" or swatch is None:
        return
    yield tag("td", figures.shown_tflops(row) or "–", class_="n")
    yield tag("td", figures.shown_tb_s(row) or "–", class_="n")
    yield tag("td", figures.bound_text(row))
    yield tag("td", *_of_roofline(row.of_roofline), class_="n")


def _of_roofline(share: float | None) -> Iterator[Content]:
    if share is None:
        return
    width = 60 * min(share, 1.0)
    yield tag(
        "svg", tag("rect", width=60, height=8, class_="gauge"), tag("rect", width=width, height=8, class_="gauge-in"),
        class_="gauge-box", width=60, height=8, aria_hidden="true",
    )  # fmt: skip
    yield tag("span", shown_share(share), class_="beside")
    if figures.is_impossible(share):
        why = "Faster than the best rates measured on such a device; above its peak, a perf model is wrong."
        yield tag("abbr", " (!)", title=why)


def roofline(
    ops: Sheet | None, table: PageTable | None, roofs: Roofs | None, colors: Mapping[str, str]
) -> Markup | None:
    """Ops by arithmetic intensity and achieved rate."""
    points, known = _points(ops, table)
    if not points:
        return None
    shapes = charts.marker_shapes(colors)
    used = [name for name in colors if any(point.category == name for point in points)]
    count = f"All {known} ops" if known > 1 else "The op"
    if known > len(points):
        count = f"The {len(points)} largest of {known} ops"
    no_roofs = " The device is not known, so there are no roofs." if roofs is None else ""
    return joined(
        tag("h2", "Roofline"),
        tag(
            "p",
            f"{count} with both FLOPs and bytes known; the area of a mark is its share of device time. Select a mark "
            f"to go to its row below.{no_roofs}",
        ),
        tag("div", charts.roofline_chart(points, roofs, colors), class_="wide", tabindex="0"),
        charts.legend([(name, colors[name]) for name in used[:_LEGEND]], shapes),
        how(texts()["roofline"]),
    )


def _is_positive(value: object) -> TypeGuard[float]:
    return isinstance(value, float) and value > 0


def _points(ops: Sheet | None, table: PageTable | None) -> tuple[list[Point], int]:
    """(marks, how many ops could have one)."""
    needed = ("name", "category", "input_dims", "flops_per_byte", "tflops_s_mean", "kernel_us_sum", "percent")
    if ops is None or table is None or not set(needed) <= {column.key for column in ops.columns}:
        return [], 0
    points: list[Point] = []
    known = 0
    shown = plain_rows(ops.frame, needed)
    for row, (name, category, dims, intensity, rate, time_us, percent) in enumerate(shown):
        if not (_is_positive(intensity) and _is_positive(rate) and time_us):
            continue
        known += 1
        if row < len(table.rows) and len(points) < MAX_POINTS:
            label = f"{name} {dims or ''}".rstrip()
            points.append(
                Point(
                    row=row, label=shown_text(label)[:160], intensity=intensity, tflops_s=rate, time_us=float(time_us),
                    share=float(percent or 0) / 100, category=str(category),
                )
            )  # fmt: skip
    return points, known


def _device_lines(lines: Mapping[str, Sequence[tuple[float, float]]], what: str) -> Iterator[Markup]:
    """Charts of ``power_lines``: W, and MHz where clocks were sampled."""
    watts, clock = ({k: v for k, v in lines.items() if (k == CLOCK) == is_clock} for is_clock in (False, True))
    if watts:
        yield charts.line_chart(watts, f"ms of {what}", f"Power of the device, W ({' and '.join(watts)})")
    if clock:
        yield charts.line_chart(clock, f"ms of {what}", "SM clock of the device, MHz (measured)")


def timeline(
    steps: Sequence[StepTimeline], power: Mapping[str, Sequence[tuple[float, float]]] | None = None
) -> Markup | None:
    """Room for the timelines of the steps, the typical one first, for the script; below it the power of that."""
    if not steps:
        return None
    drawn, host = steps[0], steps[0].host
    what = "everything analyzed" if drawn.step is None else f"step {drawn.step}"
    held = " The page holds each of them: zoom down to one kernel."
    if drawn.merged_below_ns:
        held = (
            f" The page holds {len(drawn.lane):,} rectangles for them: neighbors shorter than "
            f"{drawn.merged_below_ns / NS_PER_US:,.1f} µs share one."
        )
    if host is not None and len(host.row) < host.count.sum():
        held += f" {len(host.row):,} boxes stand for {host.count.sum():,} events of the host."
    streams = f"{len(drawn.lanes)} stream{'s' if len(drawn.lanes) != 1 else ''}"
    threads = unseen = ""
    if host is not None:
        threads = f"{len(host.threads)} thread{'s' if len(host.threads) != 1 else ''} of the host and "
    if host is not None and host.left_out:
        unseen = f"{host.left_out:,} host events of the step are deeper than {MAX_LEVELS} levels or on further threads."
    return joined(
        tag("h2", "Timeline"),
        tag(
            "p",
            f"{threads[:1].upper()}{threads[1:]}{'the' if threads else 'The'} device during {what}: {drawn.events:,} "
            f"events on {streams} in {drawn.duration_ns / NS_PER_MS:,.3f} ms.{held}",
        ),
        _drawing("timeline"),
        *_device_lines(power or {}, what),
        how(
            None if drawn.step is None else "This is the complete step whose time is nearest the median.",
            texts()["lanes"],
            None if drawn.idle is None else texts()["idle_lane"],
            unseen,
        ),
    )


def drill(drawn: Drilldown | None, scope: str) -> Markup | None:
    """Room for the way from a category down to a line of Python; the script draws it."""
    if drawn is None:
        return None
    last = (
        "line of Python" if drawn.line is not None else "and no further: Python frames were not recorded (with_stack)"
    )
    return joined(
        tag("h2", "Drill down"),
        tag("p", f"Device time of {scope} by category, then op, kernel, {last}. Select a name to open it."),
        _drawing("drill"),
        how(texts()["drill"]),
    )


def memory_over_time(sheets: Sequence[Sheet]) -> Markup | None:
    """A chart per device of what its allocator handed out."""
    summary, timeline = by_title(sheets, "memory"), by_title(sheets, "memory_timeline")
    if summary is None or timeline is None:
        return None
    drawn: list[Content] = []
    parts = {str(device): part for device, part in timeline.frame.groupby("device", sort=False)}
    for device, op in plain_rows(summary.frame, ("device", "peak_op")):
        part = parts.get(str(device))
        if part is None:
            continue
        chart = charts.memory_chart(
            part["at_us"].tolist(), part["allocated_mb"].tolist(), None if op is None else str(op)
        )
        drawn.append(tag("figure", tag("figcaption", str(device)), tag("div", chart, class_="wide", tabindex="0")))
    text = texts()["memory"]
    return joined(tag("h2", "Memory"), tag("p", text), *drawn) if drawn else None


def tree(drawn: Icicle | None, scope: str) -> Markup | None:
    if drawn is None:
        return None
    left_out = f" {drawn.left_out:,} small ones are left out." if drawn.left_out else ""
    if drawn.is_cpu:
        what, of = "CPU self time by module and op", "of CPU self time"
    else:
        what, of = "Device time by module, op and kernel", "of summed kernel durations"
    return joined(
        tag("h2", "Tree"),
        tag("p", f"{what}, of {scope}; select a box to zoom in.{left_out}"),
        _drawing("icicle"),
        how(
            f"The width of a box is its share {of}. Equal paths are added up over the window.",
            texts()["tree_backward"],
            texts()["tree_alike"],
        ),
    )


def _drawing(name: str) -> Markup:
    without = tag("noscript", tag("p", "This drawing needs JavaScript; its figures are also in the tables."))
    return joined(tag("div", class_="drawing", id=f"{name}-drawing"), without)


def table(title: str, made: PageTable | None, text: str) -> Markup | None:
    """A table with what stands above it; without the script its first rows."""
    if made is None:
        return None
    held = len(made.rows)
    shown = min(STATIC_ROWS, held)
    most = f" The page holds the {held:,} rows with most time of {made.total:,}; "
    left_out = f"{most}the workbook's sheet {made.sheet} has them all." if made.total > held else ""
    count = f"first {shown} of {made.total:,} rows" if made.total > shown else f"{made.total:,} rows"
    return joined(
        tag("h2", title),
        tag("p", f"{text}{left_out}"),
        tag("div", tag("span", count, class_="count"), class_="tools", id=f"{made.key}-tools"),
        made.markup(),
    )


def health(summary: Summary) -> Markup:
    """What the reader must know, what the trace cannot answer, and where the device's figures come from."""
    device = summary.device
    pieces: list[Content] = [tag("h2", "Notes and sources")]
    if summary.notices:
        notices = [
            tag("li", prose(notice.text), " ", tag("code", notice.id)) for notice in summary.notices[:MAX_NOTICES]
        ]
        more = len(summary.notices) - len(notices)
        if more:
            notices.append(tag("li", f"{more:,} more in report.json"))
        pieces += [tag("h3", "Notes"), tag("ul", notices)]
    if summary.cannot_answer:
        unanswered = [tag("li", prose(f"{m.question}: {m.because}")) for m in summary.cannot_answer]
        pieces += [tag("h3", "What this trace cannot answer"), tag("ul", unanswered)]
    matched = device.spec if device.id is None else f"{device.id}, matched by {device.matched_by}"
    # A note that names the device says how it was recognized
    named = "" if device.label in device.note else f"{device.label} ({matched}). "
    pieces += [tag("h3", "The device"), tag("p", shown_text(f"{named}{device.note}".rstrip()))]
    if device.doubtful:
        pieces.append(tag("p", f"Doubtful figures: {', '.join(device.doubtful)}."))
    if device.figures:
        values = ["not known" if figure.value is None else f"{figure.value:,.6g}" for figure in device.figures]
        rows = [
            tag("tr", tag("td", f.what), tag("td", value, class_="n"), tag("td", f.unit), tag("td", f.source))
            for f, value in zip(device.figures, values, strict=True)
        ]
        pieces.append(scrolled(headings("figure", "value", "unit", "source", figures=("value",)), rows))
    return joined(*pieces)


def how(*texts: str | None) -> Markup:
    """What opens to say how figures were computed."""
    return tag(
        "details", tag("summary", "How this was computed"), [tag("p", text) for text in texts if text], class_="how"
    )
