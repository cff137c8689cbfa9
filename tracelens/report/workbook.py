"""The workbook of a report: ``about``, then every sheet with formats, notes and charts. Same input, same bytes."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from tracelens.analysis.sheets import perf_summary
from tracelens.analysis.verdict.summary import STEPS, Steps, Summary, Utilization
from tracelens.files.atomic_write import whole_file
from tracelens.files.cells import Value, plain_columns, plain_values
from tracelens.files.safe_text import is_formula_like, xml_text
from tracelens.report import figures
from tracelens.report import xlsx_file as xlsx
from tracelens.report.assembly import Sheet
from tracelens.report.xlsx_file import Chart, ColumnStyles, Note, Style, Styles, Worksheet, edge, font, solid
from tracelens.schema import COUNT, MS, TEXT, US, TableColumn, column_title
from tracelens.schema import PERCENT as PERCENT_OF_100
from tracelens.types.records import Record, pd
from tracelens.types.units import FLOPS_PER_TFLOP

PERCENT, _MS = "0.0%", "#,##0.000"


class Line(Record, frozen=True, kw_only=True):
    """A row of ``about``; ``link``: sheet of its first cell; ``number_format``: of the second, ``then``: of others."""

    cells: tuple[Value, ...]
    kind: Literal["title", "said", "section", "head", "row"] = "row"
    number_format: str = "General"
    then: str = COUNT
    link: str = ""


def about_lines(
    summary: Summary, sheets: Sequence[tuple[str, Sheet]], further: Sequence[Sheet] = (), said: Sequence[str] = ()
) -> list[Line]:
    """All rows, top to bottom: the answer, the sheets, what it rests on. ``sheets``: (title in the workbook, sheet);
    ``further``: those that the workbook leaves out; ``said``: sentences at the top, before those of the summary.
    """
    sentences = filter(None, (*said, figures.bound_sentence(summary), figures.first_fix(summary)))
    return [
        Line(cells=(f"Trace report: {summary.input.file}",), kind="title"),
        *(Line(cells=(sentence,), kind="said") for sentence in sentences),
        *_time(summary),
        *_energy(summary),
        *_findings(summary),
        *_together(summary),
        *_sheets(sheets, summary),
        *_further(further),
        *_input(summary),
        *_coverage(summary),
        *_utilization(summary.utilization),
        *_device(summary),
        *_columns([sheet for _, sheet in sheets]),
    ]


def _section(title: str) -> Line:
    return Line(cells=(title, None, None, None), kind="section")


def _head(*cells: str) -> Line:
    return Line(cells=(*cells, *(None,) * (4 - len(cells))), kind="head")


def _row(*cells: Value, number_format: str = "General", then: str = COUNT) -> Line:
    return Line(cells=cells, number_format=number_format, then=then)


def _input(summary: Summary) -> Iterator[Line]:
    source = summary.input
    yield _section("Input")
    yield _row("File", source.file)
    yield _row("Events in the file", source.events, number_format=COUNT)
    if source.ranks:
        ranks = ", ".join(map(str, source.ranks))
        yield _row("Rank", f"{ranks} of {source.world_size}" if source.world_size else ranks)
    yield from _scope(summary)
    if summary.steps:
        yield from _steps(summary.steps)
    if source.torch_version:
        yield _row("PyTorch", source.torch_version)
    if summary.extensions:
        yield _row("Extensions used", ", ".join(summary.extensions))
    for notice in summary.notices:
        yield _row("Note", notice.id, notice.count, notice.text)
    for missing in summary.cannot_answer:
        yield _row("Cannot be answered", missing.question, None, missing.because)


def _scope(summary: Summary) -> Iterator[Line]:
    """What all sheets are of, and what of the file they are not of: device events and their summed durations."""
    scope, chosen = summary.scope, "--steps file takes the whole file" if summary.scope.kind == STEPS else None
    yield _row("Scope of all sheets", figures.scope_text(scope), None, chosen)
    if summary.busy is None:
        return
    yield _head("GPU work", "Summed durations (ms)", "Device events", "")
    yield _row("  in scope", scope.time_us / 1e3, scope.events, number_format=_MS)
    for part in scope.excluded:
        yield _row("  excluded", part.time_us / 1e3, part.events, part.why, number_format=_MS)
    if scope.excluded:
        whole_us = scope.time_us + sum(part.time_us for part in scope.excluded)
        events = scope.events + sum(part.events for part in scope.excluded)
        yield _row("  in the file", whole_us / 1e3, events, number_format=_MS)


def _steps(steps: Steps) -> Iterator[Line]:
    left_out = f"Left out: {steps.left_out}" if steps.left_out else None
    yield _row("Steps", steps.count, steps.name, left_out, number_format=COUNT)
    yield _row("Step time, mean (ms)", steps.time_us / 1e3, number_format=_MS)
    if steps.spread is not None:
        yield _row("Step time, std (% of the mean)", steps.spread, number_format=PERCENT)
    for figure, what, note in (
        (steps.shortest_us, "min", None),
        (steps.longest_us, "max", None),
        (steps.host_us, "host", None),
        (steps.host_work_us, "host work", "Host time without calls that wait for the GPU."),
    ):
        if figure is not None:
            yield _row(f"Step time, {what} (ms)", figure / 1e3, None, note, number_format=_MS)
    if steps.unseen_us:
        note = "The GPU ran work launched before profiling began, which was not recorded; in no step."
        yield _row("Before the first step (ms)", steps.unseen_us / 1e3, None, note, number_format=_MS)
    if steps.skipped_us:
        what, note = (
            "Left out of the first step",
            "Idle time while the host waited for work launched before profiling began",
        )
        if steps.recorded_us is not None:
            what, note = "Between the steps", "Time between two steps that the device recorded"
        yield _row(f"{what} (ms)", steps.skipped_us / 1e3, None, f"{note}; in no step.", number_format=_MS)


_COVERAGE = (
    ("perf_model", "With a perf model", "FLOPs or bytes are known from the recorded arguments."),
    ("categorised", "With a known category", "Every category but 'other'."),
    ("unlinked", "Not linked to an op", "Launched before profiling began, or the launch was not recorded."),
    ("communication", "Communication", "By kernel name: NCCL, RCCL, DeepEP and custom collectives."),
)


def _coverage(summary: Summary) -> Iterator[Line]:
    shares = [(getattr(summary.coverage, key), label, meaning) for key, label, meaning in _COVERAGE]
    if all(share is None for share, _, _ in shares):
        return
    yield _section("Coverage (share of GPU time)")
    for share, label, meaning in shares:
        yield _row(label, _known(share), None, meaning, number_format=PERCENT)
    yield _row("Shapes recorded", "yes" if summary.coverage.shapes else "no", None, "record_shapes=True")
    yield _row("Python stacks recorded", "yes" if summary.coverage.stacks else "no", None, "with_stack=True")
    if summary.late_host_events:
        meaning = "Each belongs to the innermost event that contains it; calls in an overlong frame stay in their op."
        yield _row("Host events that end after their caller", summary.late_host_events, None, meaning)


def _time(summary: Summary) -> Iterator[Line]:
    busy = summary.busy
    if busy is not None:
        yield _section("GPU time")
        if busy.total_us is not None:
            of = "Window" if summary.steps is None else figures.steps_text(summary.steps).capitalize()
            yield _row(f"{of} (ms)", busy.total_us / 1e3, number_format=_MS)
        yield _row("Computation", busy.compute, number_format=PERCENT)
        note = "Not hidden by computation."
        yield _row("Exposed communication", busy.exposed_comm, None, note, number_format=PERCENT)
        note = "Not hidden by computation or communication."
        yield _row("Exposed copies", busy.memcpy, None, note, number_format=PERCENT)
        yield _row("Idle", busy.idle, number_format=PERCENT)
    rate = summary.throughput
    if rate is not None:
        if rate.window_of_peak is not None:
            least = "At least: some calls have unknown FLOPs." if rate.is_lower_bound else None
            yield _row(f"Share of {rate.peak_name}", rate.window_of_peak, None, least, number_format=PERCENT)
        yield _row("Compute rate of matrix ops (TFLOPS/s)", rate.tflops_s, rate.dtype, number_format="#,##0.0")
        yield _row("  share of GPU time", rate.device_share, number_format=PERCENT)
        if rate.of_peak is not None:
            yield _row("  share of the dense peak", rate.of_peak, number_format=PERCENT)
        if rate.of_achievable is not None:
            yield _row("  share of the best measured rate", rate.of_achievable, number_format=PERCENT)


def _energy(summary: Summary) -> Iterator[Line]:
    """What the terminal says of joules and watts."""
    modelled, measured = summary.energy, summary.measured_power
    if modelled is None and measured is None:
        return
    yield _section(f"Energy of the device, {'per step' if summary.steps else 'in the window'}")
    if modelled is not None:
        whose = f"Energies of {modelled.constants_of}, docs/energy.md"
        told = None if modelled.energy_j is not None else figures.energy_text(modelled, summary.device.id)
        yield _row("Modelled (J)", _known(modelled.energy_j), None, told or whose, number_format=_MS)
        yield _row("  at least (J)", _known(modelled.low_j), number_format=_MS)
        yield _row("  at most (J)", _known(modelled.high_j), number_format=_MS)
        yield _row("  power, mean (W)", _known(modelled.power_w), number_format=_MS)
        yield _row("  power limit (W)", modelled.limit_w, number_format=_MS)
        if modelled.per_token_j is not None:
            yield _row("  tokens", _known(modelled.tokens), number_format=COUNT)
            yield _row("  per token (J)", modelled.per_token_j, number_format="0.0000")
    if measured is not None:
        yield _row("Measured (J)", _known(measured.energy_j), None, figures.measured_text(measured), number_format=_MS)
        yield _row("  power, mean (W)", _known(measured.power_w), number_format=_MS)


def _utilization(used: Utilization | None) -> Iterator[Line]:
    if used is None:
        return
    yield _section("FLOPs utilization (matrix FLOPs of a step / step time / dense peak)")
    yield _row("Model", used.model, used.work, "Training if a step has backward ops, else inference.")
    yield _row("Tokens per step", used.tokens, None, used.tokens_source, number_format=COUNT)
    yield _row("Sequence length (tokens)", used.sequence, number_format=COUNT)
    yield _row("Ranks that share these tokens", used.ranks, None, used.ranks_source, number_format=COUNT)
    yield _row("Step time, mean (ms)", used.time_us / 1e3, number_format=_MS)
    model, executed = used.model_flops / FLOPS_PER_TFLOP, None
    yield _row("Model work per step (TFLOP)", model, None, "Share of this device.", number_format=_MS)
    if used.hardware_flops is not None:
        executed = used.hardware_flops / FLOPS_PER_TFLOP
    note = "From calls with a perf model."
    yield _row("Executed work per step (TFLOP)", _known(executed), None, note, number_format=_MS)
    yield _row("  share of GPU time", _known(used.hardware_coverage), number_format=PERCENT)
    for label, share, achievable in (
        ("MFU (model FLOPs utilization)", used.mfu, used.mfu_of_achievable),
        ("HFU (hardware FLOPs utilization)", used.hfu, used.hfu_of_achievable),
    ):
        yield _row(label, _known(share), None, f"Of the dense {used.dtype} peak.", number_format=PERCENT)
        yield _row("  share of the best measured rate", _known(achievable), number_format=PERCENT)
    if used.steps:
        yield _head("Step", "Step time (ms)", "MFU", "HFU")
    for step in used.steps:
        shares = (_known(step.mfu), _known(step.hfu))
        yield _row(f"  {step.step}", step.time_us / 1e3, *shares, number_format=_MS, then=PERCENT)


def _findings(summary: Summary) -> Iterator[Line]:
    if summary.unseen is not None:
        yield _section("Limits of the findings")
        unseen = filter(None, (figures.unseen_text(summary.unseen), summary.unseen.command))
        yield _row("Not seen", None, None, "; ".join(unseen))
    if not summary.findings:
        return
    per = "step" if summary.steps else "window"
    yield _section("Look here first")
    yield _head("Finding", f"Gain per {per}, up to (ms)", "Certainty", "Why")
    for number, finding in enumerate(summary.findings, 1):
        gain = None if finding.gain_us is None else finding.gain_us / 1e3
        name = f"{number}. {(finding.kind or finding.id).replace('_', ' ')}"
        yield _row(name, _known(gain), finding.certainty, finding.why, number_format=_MS)
        said = (("range", gain is not None and figures.gain_range(finding)), ("try", finding.remedy))
        for label, text in (*said, ("limited by", finding.limited_by)):
            if text:
                yield _row(f"    {label}", None, None, text)
        for figure in finding.figures:
            # A share in percent, else with its unit in brackets
            shape, unit = PERCENT, ""
            if figure.unit != "share":
                shape = COUNT if figure.unit == "count" else "#,##0.0"
                unit = {"count": "", "ratio": "", "us": " (µs)"}.get(figure.unit, f" ({figure.unit})")
            yield _row(f"    {figure.what}{unit}", figure.value, number_format=shape)


def _together(summary: Summary) -> Iterator[Line]:
    """The step now, after the first finding's fix, after those of the first two, ..."""
    if summary.together is None:
        return
    yield _row("Fixes together", None, None, figures.together_text(summary.together))
    for number, us in enumerate(summary.together.step_us):
        name = "now" if not number else "after 1" if number == 1 else f"after 1-{number}"
        yield _row(f"    {name} (ms)", us / 1e3, number_format=_MS)


def _device(summary: Summary) -> Iterator[Line]:
    device = summary.device
    if device.id is None and not device.label:
        return
    yield _section("Device figures and their sources")
    yield _row("Device", device.label, device.spec, device.note or f"matched by {device.matched_by}")
    for doubtful in device.doubtful:
        yield _row("Doubtful figure", doubtful)
    if device.figures:
        yield _head("Figure", "Value", "Unit", "Source")
    for figure in device.figures:
        yield _row(figure.what, _known(figure.value), figure.unit, figure.source, number_format="#,##0.0###")


def _sheets(sheets: Sequence[tuple[str, Sheet]], summary: Summary) -> Iterator[Line]:
    totals = (
        f": totals over the {figures.steps_text(summary.steps)}, unless a sheet says otherwise" if summary.steps else ""
    )
    yield _section(f"Sheets{totals}")
    yield _head("Sheet", "Rows", "", "Content")
    for title, sheet in sheets:
        yield Line(cells=(title, len(sheet.frame), None, sheet.text), link=title, number_format=COUNT)


def _further(sheets: Sequence[Sheet]) -> Iterator[Line]:
    """The sheets that the workbook leaves out; those of categories share a line."""
    if not sheets:
        return
    yield _section("Further sheets: --all-sheets adds them (Python: all_sheets=True)")
    yield _head("Sheet", "Rows", "", "Content")
    for sheet in sheets:
        if not sheet.is_family:
            yield _row(sheet.title, len(sheet.frame), None, sheet.text, number_format=COUNT)
    families = [sheet for sheet in sheets if sheet.is_family]
    if families:
        rows = sum(len(sheet.frame) for sheet in families)
        titles = f"Calls by perf model: {', '.join(sheet.title for sheet in families)}"
        yield _row(f"{len(families)} sheets of categories", rows, None, titles, number_format=COUNT)


def _columns(sheets: Sequence[Sheet]) -> Iterator[Line]:
    """One line per column; the statistics of one quantity share a line."""
    found: dict[tuple[str, str], tuple[TableColumn, list[str]]] = {}
    for sheet in sheets:
        for column in sheet.columns:
            _, used = found.setdefault((column.family, column.meaning), (column, []))
            if sheet.title not in used:
                used.append(sheet.title)
    yield _section("Columns (MB: 1e6 bytes, TB/s: 1e12 bytes per second; an empty cell is unknown)")
    yield _head("Column", "Key in CSV, JSON, SQL and frames", "Sheets", "Meaning")
    for (key, _), (column, used) in sorted(found.items(), key=lambda entry: entry[1][0].family_title.lower()):
        where = ", ".join(used[:3]) + (f" and {len(used) - 3} more" if len(used) > 3 else "")
        yield _row(column.family_title, key, where, column.meaning or None)


def _known(value: float | None) -> Value:
    return "unknown" if value is None else value


_MOST_COLUMNS, _MOST_BARS = 6, 16


def charted_columns(columns: Sequence[TableColumn]) -> tuple[int, int] | None:
    """(column of the names, column of the shares), from 1, of a sheet small enough to draw; None otherwise."""
    shares = [index for index, column in enumerate(columns, 1) if column.look == "share"]
    if len(columns) > _MOST_COLUMNS or len(shares) != 1 or not columns[0].is_text:
        return None
    return 1, shares[0]


def share_chart(title: str, bars: tuple[int, int], rows: int, place: int, heading: str) -> Chart:
    """A bar per row of its share in percent, largest on top, in column ``place``; ``heading``: what it shows."""
    names, shares = (xlsx.column_letter(column) for column in bars)
    last = 1 + min(rows, _MOST_BARS)
    sheet = xlsx.escape_xml(xlsx.reference(title))
    xml = xlsx.part("chart", heading=xlsx.escape_xml(heading), sheet=sheet, names=names, shares=shares, last=last)
    return Chart(xml=xml, column=place, width_cm=18, height_cm=3 + 0.7 * (last - 1))


#: Limits of the format.
MAX_ROWS = 1_048_576
MAX_TITLE = 31

ABOUT = "about"
_INK, _PALE, _LINE = "1F3A5F", "EEF2F7", "C9D3E0"
_HEADER = Style(
    font=font(bold=True, color="FFFFFF"),
    fill=solid(_INK),
    border=edge("right", "thin", "5B7391"),
    alignment='horizontal="left" vertical="center" wrapText="1"',
)
_INDENTED = 'horizontal="left" indent="1"'
_BODY_FONT, _NAME_FONT, _LINK_FONT = font(), font(bold=True), font(color="1155CC", underlined=True)
_TAB_FIXED, _TAB_FAMILY = _INK, "2E8B7A"
_WIDEST_NUMBER, _WIDEST_TEXT, _NARROWEST = 24, 60, 8
#: Cells of a sheet that are kept from the column widths to the rows; beyond, memory is worth more than time.
_FEW_CELLS = 20_000


def write_workbook(path: str | PathLike[str], sheets: Sequence[Sheet], summary: Summary, **options: Any) -> None:
    """Writes ``path`` whole or not at all, as ``write_workbook_to``; OutputError when the folder is not writable."""
    with whole_file(Path(path)) as file:
        write_workbook_to(file, sheets, summary, **options)


def write_workbook_to(
    file: BinaryIO,
    sheets: Sequence[Sheet],
    summary: Summary,
    *,
    max_rows: int = MAX_ROWS,
    further: Sequence[Sheet] = (),
    said: Sequence[str] = (),
) -> None:
    """The bytes of the workbook. A sheet of more than ``max_rows`` rows, header included, goes on in ``<title> (2)``.

    ``about`` begins with the sentences ``said`` and names the ``further`` sheets as left out.
    """
    parts = list(_parts(sheets, max_rows))
    styles = Styles()
    lines = about_lines(summary, [(part.title, part.sheet) for part in parts], further, said)
    about = _about(lines, styles, _main_chart(parts))
    scope = figures.scope_text(summary.scope)
    tables = [_worksheet(part, styles, scope) for part in parts]
    title = f"Trace report of {summary.input.file}"
    xlsx.write_xlsx(file, [about, *tables], styles, title=title, differences=_RED)


def tables_xlsx(
    frames: Mapping[str, pd.DataFrame], meanings: Mapping[str, str], *, titles: Callable[[str], str] = column_title
) -> bytes:
    """A sheet per frame with rows, ``meanings`` as notes on headers; without a date: same frames, same bytes."""
    styles, content = Styles(), io.BytesIO()
    full = {title: frame for title, frame in frames.items() if len(frame)} or dict([*frames.items()][:1])
    made = [_plain_sheet(title, frame, meanings, titles) for title, frame in full.items()]
    xlsx.write_xlsx(
        content, [_worksheet(part, styles, "") for part in _parts(made, MAX_ROWS)], styles, differences=_RED
    )
    return content.getvalue()


def _plain_sheet(title: str, frame: pd.DataFrame, meanings: Mapping[str, str], titles: Callable[[str], str]) -> Sheet:
    """A frame without declared columns: what they hold is seen from their values and, of numbers, from their unit."""
    columns = []
    for name in map(str, frame.columns):
        values = plain_values(frame[name])
        shown = titles(name)
        columns.append(
            TableColumn(
                key=name,
                meaning=meanings.get(name, ""),
                number_format=_seen_format(shown, values),
                width=_WIDEST_TEXT,
                shown_as=shown,
            )
        )
    return Sheet(title=title, frame=frame.set_axis([column.key for column in columns], axis=1), columns=tuple(columns))


def _seen_format(title: str, values: Sequence[Value]) -> str:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not numbers or any(isinstance(value, str) for value in values):
        return TEXT
    if not any(isinstance(value, float) for value in numbers):
        return COUNT
    return {"µs": US, "ms": MS, "%": PERCENT_OF_100}.get(title.rpartition(" (")[2].removesuffix(")"), "#,##0.###")


class _Part(Record, frozen=True, kw_only=True):
    """What goes on one worksheet: rows ``start`` to ``stop`` of a sheet."""

    title: str
    sheet: Sheet
    start: int
    stop: int
    kept: dict[str, list[Value]] = msgspec.field(default_factory=dict)

    def values(self, column: TableColumn) -> list[Value]:
        """The cells of a column; those of a small part are kept, a large one's are taken from the frame each time."""
        if not self.kept and (self.stop - self.start) * len(self.sheet.columns) <= _FEW_CELLS:
            small = self.sheet.frame.iloc[self.start : self.stop]
            self.kept.update(zip(small.columns, plain_columns(small), strict=True))
        if self.kept:
            return self.kept[column.key]
        return plain_values(self.sheet.frame[column.key].iloc[self.start : self.stop])


def _parts(sheets: Sequence[Sheet], max_rows: int) -> Iterator[_Part]:
    taken = {ABOUT, "history"}
    body = max_rows - 1
    for sheet in sheets:
        # Excel takes the sheet "memory" and the category "Memory" for one name
        named = f"{sheet.title} ops" if sheet.is_family and sheet.title.lower() in taken else sheet.title
        for number, start in enumerate(range(0, max(1, len(sheet.frame)), body), 1):
            title = _free_title(named, "" if number == 1 else f" ({number})", taken)
            yield _Part(title=title, sheet=sheet, start=start, stop=min(start + body, len(sheet.frame)))


def _free_title(title: str, suffix: str, taken: set[str]) -> str:
    """At most 31 characters, none of ``[]:*?/\\``, unique whatever the case."""
    clean = re.sub(r"[\[\]:*?/\\]", "_", xml_text(title)).strip().strip("'") or "sheet"
    candidate, number = clean[: MAX_TITLE - len(suffix)] + suffix, 1
    while candidate.lower() in taken:
        number += 1
        ending = f"~{number}{suffix}"
        candidate = clean[: MAX_TITLE - len(ending)] + ending
    taken.add(candidate.lower())
    return candidate


def _worksheet(part: _Part, styles: Styles, scope: str) -> Worksheet:
    """``scope``: what its totals are of, where its text does not say."""
    sheet = part.sheet
    columns = sheet.columns
    rows = part.stop - part.start
    widths = [_width(column, part.values(column), is_first=i == 0) for i, column in enumerate(columns)]
    lines = max((_header_lines(column.title, width) for column, width in zip(columns, widths, strict=True)), default=1)
    headers = [column.title for column in columns]
    header = xlsx.row_xml(1, 8 + 14 * lines, headers, [styles.index(_HEADER)] * len(columns)).encode()
    body = _rows(part, [_column_styles(column, styles, is_first=i == 0) for i, column in enumerate(columns)])
    bars = charted_columns(columns)
    # What each column means; the first also says what a row is and what the totals are of
    notes = [column.note for column in columns]
    of = "" if sheet.text.startswith(OF_WHOLE_FILE) or not scope else f" Scope: {scope}."
    notes[:1] = [f"{sheet.text}{of} {note}".strip() for note in notes[:1]]
    return Worksheet(
        title=part.title,
        rows=chain([header], body),
        widths=widths,
        tab=_TAB_FAMILY if sheet.is_family else _TAB_FIXED,
        zoom=90,
        filtered=f"A1:{xlsx.column_letter(max(1, len(columns)))}{rows + 1}",
        rules=list(_rules(columns, rows + 1)),
        notes=[
            Note(column=number, text=text, height=28 + 18 * math.ceil(len(text) / 42))
            for number, text in enumerate(notes, 1)
            if text
        ],
        chart=share_chart(part.title, bars, rows, len(columns) + 2, sheet.text) if bars else None,
    )


def _column_styles(column: TableColumn, styles: Styles, *, is_first: bool) -> ColumnStyles:
    """For the cells below a header; a text right of a number would touch it."""
    fonted = _NAME_FONT if is_first else _BODY_FONT
    text = Style(font=fonted, alignment="" if is_first else _INDENTED)
    number_format = "General" if column.is_text else column.number_format
    return ColumnStyles(
        number=styles.index(Style(font=fonted, number_format=number_format)),
        text=styles.index(text),
        quoted=styles.index(text._replace(quoted=True)),
    )


def _rows(part: _Part, styles: Sequence[ColumnStyles]) -> Iterator[bytes]:
    """The values are taken from the frame again when the sheet is written: one sheet's are in memory, not all."""
    yield from xlsx.rows_xml([part.values(column) for column in part.sheet.columns], styles, first_row=2)


#: How a share above its limit looks.
_RED = (
    '<dxf><font><b/><color rgb="FFFFFFFF"/></font><fill><patternFill patternType="solid"><bgColor rgb="FFC00000"/>'
    "</patternFill></fill></dxf>"
)
_BAR = (
    '<cfRule type="dataBar" priority="{}"><dataBar><cfvo type="num" val="0"/><cfvo type="num" val="100"/>'
    '<color rgb="FF7FA8D9"/></dataBar></cfRule>'
)
_OF_LIMIT = (
    '<cfRule type="cellIs" dxfId="0" priority="{}" stopIfTrue="1" operator="greaterThan"><formula>100</formula>'
    "</cfRule>"
    '<cfRule type="colorScale" priority="{}"><colorScale><cfvo type="num" val="0"/><cfvo type="num" val="50"/>'
    '<cfvo type="num" val="100"/><color rgb="FFF8B4A6"/><color rgb="FFFFF0B3"/><color rgb="FFA9D8A4"/></colorScale>'
    "</cfRule>"
)


def _rules(columns: Sequence[TableColumn], last: int) -> Iterator[tuple[str, str]]:
    """Bars in columns of shares; what reaches its limit in green, what exceeds it in red."""
    for number, column in enumerate(columns, 1):
        cells = f"{xlsx.column_letter(number)}2:{xlsx.column_letter(number)}{last}"
        if column.look == "share":
            yield cells, _BAR.format(2 * number)
        elif column.look == "of_limit" and column.statistic != "std":
            yield cells, _OF_LIMIT.format(2 * number, 2 * number + 1)


def _width(column: TableColumn, values: Sequence[Value], *, is_first: bool) -> float:
    """In characters: what the values need, capped; a header breaks into lines."""
    texts = [len(value) for value in values if isinstance(value, str)]
    numbers = [value for value in values if value is not None and not isinstance(value, str)]
    longest = max(texts, default=0)
    if numbers:
        # Of numbers under one format the longest is the largest or the smallest.
        extremes = numbers if column.number_format in _UNFORMATTED else (min(numbers), max(numbers))
        longest = max(longest, *(_printed_length(value, column) for value in extremes))
    cap = column.width if texts else _WIDEST_NUMBER
    word = max(map(len, column.title.split()), default=0)
    width = max(min(longest, cap) + 1.5, min(word, 26) + 3.5, _NARROWEST)
    return round(max(width, 18.0) if is_first else width, 1)


def _header_lines(header: str, width: float) -> int:
    """Lines a header takes at a width; the filter button covers about three characters."""
    lines, used = 1, 0.0
    for word in header.split():
        pieces = max(1, math.ceil(len(word) / max(1.0, width - 3)))
        if used and used + 1 + len(word) > width - 3:
            lines, used = lines + 1, 0.0
        lines += pieces - 1
        used += len(word) + (1 if used else 0)
    return lines


#: How the text of a sheet begins that is of all of the file, whatever the steps.
OF_WHOLE_FILE = "Of the whole"
_UNFORMATTED = ("General", "@")


def _printed_length(value: bool | int | float, column: TableColumn) -> int:
    if isinstance(value, bool):
        return 5
    if column.number_format in _UNFORMATTED:
        return min(12, len(str(value)))
    decimals = len(column.number_format.partition(".")[2])
    return len(f"{value:,.{decimals}f}")


_ABOUT_WIDTHS = (34, 40, 30, 92)
_ABOUT_HEIGHTS = {"title": 30, "section": 24, "head": 15}
#: Characters of the size of a sentence at the top that fit in the four columns.
_SAID_WIDTH = 200


def _main_chart(parts: Sequence[_Part]) -> Chart | None:
    """Time by category, or what else is small enough to draw, for the first sheet."""
    drawn = [(part, bars) for part in parts if (bars := charted_columns(part.sheet.columns))]
    for part, bars in sorted(drawn, key=lambda each: each[0].title != perf_summary.OPS_SUMMARY_BY_CATEGORY_TITLE):
        return share_chart(part.title, bars, part.stop - part.start, len(_ABOUT_WIDTHS) + 2, part.sheet.text)
    return None


def _about(lines: Iterable[Line], styles: Styles, chart: Chart | None) -> Worksheet:
    rows, links, merged = [], {}, []
    for number, line in enumerate(lines, 1):
        cells = (*line.cells, *(None,) * (4 - len(line.cells)))
        numbers = [styles.index(_about_style(line, index, value)) for index, value in enumerate(cells)]
        rows.append(xlsx.row_xml(number, _about_height(line), cells, numbers))
        if line.link:
            links[f"A{number}"] = line.link
        if line.kind == "said":
            merged.append(f"A{number}:{xlsx.column_letter(len(_ABOUT_WIDTHS))}{number}")
    return Worksheet(
        title=ABOUT,
        rows=["".join(rows).encode()],
        widths=_ABOUT_WIDTHS,
        frozen=(0, 1),
        tab="D9822B",
        grid=False,
        printed=f"$A$1:${xlsx.column_letter(len(_ABOUT_WIDTHS))}${len(rows)}",
        links=links,
        merged=merged,
        chart=chart,
    )


def _about_height(line: Line) -> float:
    if line.kind in _ABOUT_HEIGHTS:
        return _ABOUT_HEIGHTS[line.kind]
    if line.kind == "said":
        return 18.0 * len(textwrap.wrap(str(line.cells[0]), _SAID_WIDTH))
    # What fits is on one line; finding that out by wrapping takes a hundred times as long
    texts = zip(line.cells, _ABOUT_WIDTHS, strict=False)
    wide = ((value, int(width * 1.2)) for value, width in texts if isinstance(value, str))
    long = [(text, width) for text, width in wide if len(text.expandtabs()) > width]
    return 14.5 * max([1, *(len(textwrap.wrap(text, width)) for text, width in long)])


def _about_style(line: Line, index: int, value: Value) -> Style:
    style = _ABOUT_STYLES.get(line.kind) or (_FIRST if index == 0 and value is not None else _OTHER)
    if index == 0 and line.link:
        style = style._replace(font=_LINK_FONT)
    if isinstance(value, str):
        return style._replace(quoted=is_formula_like(value))
    return style if value is None else style._replace(number_format=line.number_format if index == 1 else line.then)


_ABOUT_STYLES = {
    "title": Style(font=font(16, bold=True, color=_INK), alignment='vertical="center"'),
    "said": Style(font=font(11), alignment='vertical="center" wrapText="1"'),
    "section": Style(
        font=font(12, bold=True, color=_INK), border=edge("bottom", "medium", _INK), alignment='vertical="bottom"'
    ),
    "head": Style(font=font(bold=True, color=_INK), fill=solid(_PALE)),
}
_OTHER = Style(border=edge("bottom", "hair", _LINE), alignment='horizontal="left" vertical="top" wrapText="1"')
_FIRST = _OTHER._replace(font=_NAME_FONT)
