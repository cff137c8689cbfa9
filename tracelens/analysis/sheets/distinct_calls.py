"""Calls of the same op, arguments, process and thread as one row, with statistics of their times.

Rows are sorted by time descending, ties broken on the text columns, so the same trace gives the same table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.attribution.activity import Bools, DeviceActivity
from tracelens.analysis.attribution.calls import Calls, Launchers
from tracelens.analysis.grouping import ByGroup, Codes, Spread, first_of_each, numbered
from tracelens.signature import recorded_text
from tracelens.trace.table import RowColumn, TraceTable
from tracelens.units import NS_PER_US

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

STATISTICS = ("mean", "median", "std", "min", "max")
UNLINKED_NAME = "(unlinked kernels)"
IDENTITY = (
    "name", "category", "process_name", "process_label", "thread_name",
    "input_dims", "input_types", "input_strides", "concrete_inputs",
)  # fmt: skip
_TEXT_KEYS = (*IDENTITY, "kernel_name", "parent_op", "collective", "group_name", "model")


def sorted_by(frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """``key`` descending, ties broken on every text column there is; missing values last."""
    values = -frame[key].to_numpy(float)
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    tied = np.flatnonzero(count[place] > 1)
    keys = [_text_ranks(frame[column], tied) for column in _TEXT_KEYS if len(tied) and column in frame.columns]
    ordered = frame.iloc[np.lexsort((*reversed(keys), values))]
    ordered.index = pd.RangeIndex(len(ordered))  # reset_index copies, in twenty times the time
    return ordered


def _text_ranks(column: pd.Series, rows: Ints) -> Ints:
    """The place of each of these rows' texts among them in order; 0 in all other rows."""
    texts = [_LAST if v is None or v != v else str(v) for v in column.iloc[rows].tolist()]
    rank = {text: number for number, text in enumerate(sorted(set(texts)))}
    ranks = np.zeros(len(column), np.int64)
    ranks[rows] = [rank[text] for text in texts]
    return ranks


#: Behind every text that a trace can hold.
_LAST = "\U0010ffff"


def with_percent(frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """Adds ``percent`` and ``cumulative_percent`` of the column's sum; 0 where there is no time."""
    total = frame[key].sum()
    frame["percent"] = 100 * frame[key] / total if total else 0.0
    frame["cumulative_percent"] = frame["percent"].cumsum()
    return frame


def statistics(columns: Mapping[str, Floats], group: Codes, *, totals: Collection[str] = ()) -> pd.DataFrame:
    """Mean, median, std (n - 1), min and max of each column per group as ``<column>_mean``, and so on.

    ``group`` as ``numbered`` gives it. Missing values count nowhere. ``totals``: the columns with a sum as well.
    """
    return pd.DataFrame(statistics_of(columns, ByGroup(group), totals=totals))


def statistics_of(
    columns: Mapping[str, Floats], by_group: ByGroup, *, totals: Collection[str] = ()
) -> dict[str, Floats]:
    """As ``statistics``, by column: of small tables a frame costs more than its figures."""
    found: dict[str, Floats] = {}
    for key, values in columns.items():
        figures = Spread(values, by_group)
        found |= {f"{key}_{name}": getattr(figures, name) for name in STATISTICS}
        if key in totals:
            found[f"{key}_sum"] = figures.sum
    return found


def identity(
    table: TraceTable, rows: Sequence[int], categories: Sequence[str], names: Sequence[str] | None = None
) -> pd.DataFrame:
    """The nine columns that say which call a row is; text as tuples, ``None`` where the trace recorded nothing."""
    return pd.DataFrame(identity_columns(table, rows, categories, names), dtype=object)


def identity_columns(
    table: TraceTable, rows: Sequence[int], categories: Sequence[str], names: Sequence[str] | None = None
) -> dict[str, Any]:
    """As ``identity``, by column."""
    signatures = [table.signature_of(row) for row in rows]
    lanes = [(table.pid_of(row), table.tid_of(row)) for row in rows]
    columns: dict[str, Iterable[Any]] = {
        "name": names if names is not None else (s.name for s in signatures),
        "category": categories,
        "process_name": (table.process_names.get(pid) for pid, _ in lanes),
        "process_label": (table.process_labels.get(pid) for pid, _ in lanes),
        "thread_name": (table.thread_names.get(lane) for lane in lanes),
        "input_dims": (recorded_text(s.shapes) for s in signatures),
        "input_types": (recorded_text(s.dtypes) for s in signatures),
        "input_strides": (recorded_text(s.strides) for s in signatures),
        "concrete_inputs": (recorded_text(s.scalars) for s in signatures),
    }
    return {key: objects(values) for key, values in columns.items()}


#: Stands for arguments in which the calls of one row differ.
DIFFERENT = "*"
_ARGUMENTS = (
    ("input_dims", "shapes"), ("input_types", "dtypes"), ("input_strides", "strides"), ("concrete_inputs", "scalars"),
)  # fmt: skip


def identity_of_groups(
    table: TraceTable, calls: Calls, group: Grouping, categories: Sequence[str], names: Sequence[str] | None = None
) -> dict[str, Any]:
    """``identity_columns`` of every group's example, ``DIFFERENT`` where its calls differ.

    They can where a row is of one kernel, whatever its op was called with.
    """
    columns = identity_columns(table, group.example, categories, names)
    call = np.flatnonzero(calls.kernel_name >= 0)
    signature = table.signature[calls.row[call]].astype(np.int64)
    pair = group.of_call[call] * np.int64(signature.max(initial=0) + 2) + signature + 1
    call = call[np.unique(pair, return_index=True)[1]]
    texts = {key: columns[key].tolist() for key, _ in _ARGUMENTS}
    for at, row in zip(group.of_call[call].tolist(), calls.row[call].tolist(), strict=True):
        recorded = table.signature_of(row)
        for key, argument in _ARGUMENTS:
            if texts[key][at] != DIFFERENT and recorded_text(getattr(recorded, argument)) != texts[key][at]:
                texts[key][at] = DIFFERENT
    return columns | {key: objects(values) for key, values in texts.items()}


def objects(values: Iterable[Any]) -> Any:
    """A column of anything, which pandas leaves as it is."""
    return pd.Series(list(values), dtype=object)


class Grouping:
    """Calls of the same name, arguments, process and thread; one row each. ``apart`` tells more calls apart."""

    def __init__(self, table: TraceTable, row: RowColumn, kernel_name: Codes, *apart: Codes | Bools) -> None:
        signature = np.where(kernel_name >= 0, np.int32(-1), table.signature[row])
        self.of_call = numbered(table.name[row], signature, _lane_rank(table)[table.lane[row]], kernel_name, *apart)
        self.first = first_of_each(self.of_call)
        self.example = row[self.first].tolist()


def _lane_rank(table: TraceTable) -> Codes:
    """Lanes with the same process and thread names count as one."""
    labels: dict[tuple[Any, ...], int] = {}
    ranks = []
    for pid, tid in table.lanes:
        label = (
            table.process_names.get(pid),
            table.process_labels.get(pid),
            table.thread_names.get((pid, tid), None if (pid, tid) in table.thread_names else tid),
        )
        ranks.append(labels.setdefault(label, len(labels)))
    return np.array(ranks or [0], np.int32)


def kernel_details(
    table: TraceTable, activity: DeviceActivity, events: Codes, group: Codes, groups: int
) -> dict[str, Any]:
    """``kernel_details`` and ``kernel_details_short`` per group: name, stream, count, total and mean of each kernel."""
    part = numbered(group, activity.name[events], activity.stream[events])
    first = first_of_each(part)
    total_ns = np.bincount(part, activity.duration[events])
    texts = [table.names[code] for code in activity.name[events[first]].tolist()]
    parts = zip(
        group[first].tolist(), (-total_ns).tolist(), texts, activity.stream[events[first]].tolist(),
        np.bincount(part).tolist(), strict=True,
    )  # fmt: skip
    long: dict[int, list[str]] = {}
    short: dict[int, list[str]] = {}
    for key, minus_ns, text, stream, count in sorted(parts):
        total = -minus_ns / NS_PER_US
        mean = total / count
        detail = {
            "name": text, "stream": stream, "count": count,
            "total_duration_us": round(total, 3), "mean_duration_us": round(mean, 3),
        }  # fmt: skip
        long.setdefault(key, []).append(repr(detail))
        if len(short.setdefault(key, [])) < 3:
            short[key].append(f"{_shorten(text)} x{count} {mean:.2f} µs")
    return {
        "kernel_details": ["[" + ", ".join(long[k]) + "]" if k in long else None for k in range(groups)],
        "kernel_details_short": [
            "; ".join(short[k]) + (" ..." if len(long[k]) > 3 else "") if k in long else None for k in range(groups)
        ],
    }


def _shorten(name: str, width: int = 48) -> str:
    name = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return name if len(name) <= width else name[: width - 1] + "…"


def launching_calls(
    table: TraceTable, activity: DeviceActivity, launchers: Launchers, direct: Calls, apart: Codes | Bools
) -> pd.DataFrame:
    """One row per distinct launching op call and category of its kernels: direct and subtree kernel time (us).

    ``direct``: the same launchers as calls, one per category. A call of several categories has its subtree time in the
    row of the one that took most; ``_calls`` counts it there only. Calls with another ``apart`` are in other rows.
    """
    group = Grouping(table, direct.row, direct.kernel_name, direct.category.code, apart)
    main, place = _main_parts(direct), np.searchsorted(launchers.row, direct.row)
    subtree = np.where(main, launchers.subtree_ns[place] / NS_PER_US, np.nan)
    times = {"direct_us": direct.kernel_ns / NS_PER_US, "subtree_us": subtree}
    frame = pd.DataFrame(
        {
            **identity_of_groups(table, direct, group, direct.category[group.first].tolist()),
            "operation_count": np.bincount(group.of_call),
            "_calls": np.bincount(group.of_call, weights=main).astype(np.int64),
            **statistics_of(times, ByGroup(group.of_call), totals=tuple(times)),
            "example_row": group.example,
            **kernel_details(table, activity, direct.events, group.of_call[direct.call_of_event], len(group.first)),
        }
    )
    return with_percent(sorted_by(frame, "direct_us_sum"), "direct_us_sum")


def _main_parts(calls: Calls) -> Bools:
    """Which call is the longest of each row, the first of equals; calls of one row stand together."""
    again = calls.row[1:] == calls.row[:-1]
    main: Bools = ~(np.append(again, False) | np.append(False, again))
    several = np.flatnonzero(~main)
    ordered = several[np.lexsort((-calls.kernel_ns[several], calls.row[several]))]
    main[ordered[np.unique(calls.row[ordered], return_index=True)[1]]] = True
    return main


def with_unlinked(unique: pd.DataFrame, unlinked: pd.DataFrame) -> pd.DataFrame:
    """Rows of launching ops, and those of the kernels that no recorded op launched."""
    if unlinked.empty:
        return unique
    rows = unlinked[["name", "category", "operation_count"]].copy()
    rows["_calls"] = rows["operation_count"]
    rows["direct_us_sum"] = rows["subtree_us_sum"] = unlinked["kernel_us_sum"]
    return pd.concat([unique[rows.columns], rows], ignore_index=True)
