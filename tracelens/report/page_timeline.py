"""The timelines of a page as data for its script: columns of whole numbers, packed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import Labels
from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.idle.idle_time import CAUSES
from tracelens.analysis.intervals import Ints
from tracelens.analysis.page_charts import StepTimeline
from tracelens.analysis.sheets.priced_calls import UNLINKED_NAME
from tracelens.analysis.step_rectangles import HostLanes
from tracelens.files.safe_text import short_kernel_name
from tracelens.report.assembly import Sheet
from tracelens.report.document import shown_text
from tracelens.trace.table import Kind, TraceTable
from tracelens.types.records import Record


class Pool:
    """Texts by index, each once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}
        self._given: dict[str, int] = {}

    def add(self, text: str) -> int:
        known = self._given.get(text)
        if known is None:
            shown = shown_text(text)
            known = self._given[text] = self._index.setdefault(shown, len(self.texts))
            if known == len(self.texts):
                self.texts.append(shown)
        return known

    def codes(self, texts: Sequence[str], codes: npt.NDArray[np.integer]) -> Ints:
        used, at = np.unique(codes, return_inverse=True)
        return np.array([self.add(texts[code]) for code in used.tolist()], np.int64)[at]

    def short(self, texts: Iterable[int]) -> dict[str, str]:
        """Readable forms of those of these texts that are long for a box."""
        forms = ((at, short_kernel_name(self.texts[at])) for at in sorted(set(texts)) if at >= 0)
        return {str(at): form for at, form in forms if form != self.texts[at]}


class PackedColumns:
    """Integer columns as well-compressing bytes: differences, zigzag, split by byte; ``page.js`` unpacks them."""

    def __init__(self) -> None:
        self.content = bytearray()

    def add(self, values: npt.NDArray[np.integer]) -> list[int]:
        """(where the column begins, how many numbers it has, bytes of each)."""
        wide = values.astype(np.int64)
        change: Ints = wide - np.concatenate((np.zeros(1, np.int64), wide[:-1]))[: len(wide)]
        zigzag = (change << 1) ^ (change >> 63)
        width = (int(zigzag.max(initial=0)).bit_length() + 7) // 8
        at = len(self.content)
        self.content += zigzag.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()
        return [at, len(values), width]


class PageRows(Record, frozen=True, kw_only=True, eq=False):
    """Where an event stands in the tables of the page: of ``ops`` the first so many rows are in it; ``kernels``."""

    ops: int
    kernels: Mapping[tuple[object, ...], int]

    @classmethod
    def of(cls, ops: int, kernels: Sheet | None, shown: int) -> PageRows:
        """``shown``: how many rows of kernels the page has."""
        if kernels is None:
            return cls(ops=ops, kernels={})
        frame = kernels.frame.head(shown)
        keys = zip(*(frame[key].tolist() for key in ("category", "parent_op", "kernel_name", "stream")), strict=True)
        return cls(ops=ops, kernels={key: row for row, key in enumerate(keys)})

    def of_ops(self, analysis: Analysis, events: Codes) -> Ints:
        """The row of ops of each device event, -1 for none."""
        row = analysis.row_of_event
        return np.full(len(events), -1) if row is None else np.where(row[events] < self.ops, row[events], -1)

    def of_kernels(self, analysis: Analysis, events: Codes) -> Ints:
        """The row of kernels of each device event, -1 for none."""
        activity, table, category = analysis.activity, analysis.trace.table, analysis.event_category
        op = activity.op[events]
        parent = np.where(op >= 0, table.name[op], np.int32(-1))
        columns = category.code[events], parent, activity.name[events], activity.stream[events]
        group = numbered(*columns)
        found = [
            self.kernels.get(
                (category.texts[code], UNLINKED_NAME if above < 0 else table.names[above], table.names[name], stream),
                -1,
            )
            for code, above, name, stream in zip(*(c[first_of_each(group)].tolist() for c in columns), strict=True)
        ]
        return np.array(found, np.int64)[group]


#: Kinds of boxes; a column has their codes.
KINDS = ("device", "op", "annotation", "module", "call")
_HOST_KINDS = {Kind.CPU_OP: "op", Kind.USER_ANNOTATION: "annotation", Kind.PYTHON_FUNCTION: "module"}


def timeline_data(
    steps: Sequence[StepTimeline],
    analysis: Analysis,
    rows: PageRows,
    lines: Labels | None,
    pool: Pool,
    packed: PackedColumns,
) -> list[dict[str, Any]]:
    """Of each step columns over the boxes, the threads' before the streams'; times in ns from the step's start.

    ``row``, ``kernel``: of the tables of ops and kernels; ``from``: the box that a device event was launched in,
    ``ahead`` how long before it began; ``more``: what the sum of its events is longer than the box.
    """
    made = []
    for drawn in steps:
        columns = _device_columns(drawn, analysis, rows, lines, pool)
        several = len({lane.device for lane in drawn.lanes}) > 1  # devices, which a lane names only then
        labels = [
            {"label": f"{f'device {lane.device} ' if several else ''}stream {lane.stream}", "levels": 1}
            for lane in drawn.lanes
        ]
        if drawn.host is not None:
            host = _host_columns(drawn.host, analysis.trace.table, pool)
            columns = {
                key: np.concatenate((host.get(key, np.full(len(drawn.host.row), -1)), columns[key])) for key in columns
            }
            table, threads = analysis.trace.table, []
            for number, lane in enumerate(drawn.host.threads):  # those without a name by number
                name = table.thread_names.get(table.lanes[lane]) or f"thread {table.lanes[lane][1]}"
                label = shown_text(name.partition(" (")[0])
                threads.append({"label": label, "levels": drawn.host.levels[number], "host": True})
            labels = [*threads, *labels]
        idle = None
        if (spans := drawn.idle) is not None:
            length = spans.end_ns - spans.start_ns
            # Over the rectangles of idle time; ``less``: what the device was idle less than the rectangle is long
            idle = {"start": spans.start_ns, "length": length, "less": length - spans.idle_ns,
                    "cause": pool.codes(CAUSES, spans.cause)}  # fmt: skip
        made.append({
            # Of its clock, in which ns are more than a number of the script can be
            "step": drawn.step, "first": str(drawn.first_ns), "duration": drawn.duration_ns, "lanes": labels,
            "columns": {key: packed.add(values) for key, values in columns.items()},
            "idle": None if idle is None else {key: packed.add(values) for key, values in idle.items()},
        })  # fmt: skip
    return made


def _device_columns(
    drawn: StepTimeline, analysis: Analysis, rows: PageRows, lines: Labels | None, pool: Pool
) -> dict[str, Ints]:
    table, activity, events, host = analysis.trace.table, analysis.activity, drawn.event, drawn.host
    none, length = np.full(len(events), -1), drawn.end_ns - drawn.start_ns
    op = activity.op[events]
    named = np.where(op >= 0, table.name[op], np.int32(-1))
    return {
        "lane": drawn.lane.astype(np.int64) + (0 if host is None else len(host.threads)),
        "level": np.zeros(len(events), np.int64),
        "start": drawn.start_ns,
        "length": length,
        "more": drawn.kernel_ns - length,
        "count": drawn.count,
        "kind": np.zeros(len(events), np.int64),
        "name": pool.codes(table.names, activity.name[events]),
        "category": pool.codes(analysis.event_category.texts, analysis.event_category.code[events]),
        "op": np.where(op >= 0, pool.codes(["", *table.names], named + 1), -1),
        "line": none if lines is None else pool.codes(lines.texts, lines.code[events]),
        "row": rows.of_ops(analysis, events),
        "kernel": rows.of_kernels(analysis, events),
        "ahead": drawn.start_ns - drawn.launch_ns,
        "from": none if host is None else host.launched_in,
    }


def _host_columns(host: HostLanes, table: TraceTable, pool: Pool) -> dict[str, Ints]:
    zero = np.zeros(len(host.row), np.int64)
    code_of = np.array([KINDS.index(_HOST_KINDS.get(kind, "call")) for kind in Kind])
    return {
        "lane": host.thread.astype(np.int64), "level": host.level.astype(np.int64), "start": host.start_ns,
        "length": host.end_ns - host.start_ns, "more": zero, "count": host.count, "ahead": zero,
        "kind": code_of[table.kind[host.row]], "name": pool.codes(table.names, table.name[host.row]),
    }  # fmt: skip
