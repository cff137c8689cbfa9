"""Every distinct call of the analyzed window, with its times, work and estimates; the sheets of perf-model families.

Calls of the same op, arguments, process and thread are one row, with statistics of their times. Rows are sorted by time
descending, ties broken on the text columns, so the same trace gives the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity, Labels, Timeline
from tracelens.analysis.attribution.calls import (
    COPY,
    LAUNCH,
    SYNTHETIC,
    Calls,
    ExecutedWork,
    KnownWork,
    Limits,
    executed_work,
    grouped_calls,
    launchers,
    modelled_calls,
)
from tracelens.analysis.attribution.host_scopes import BACKWARD, all_in, with_places
from tracelens.analysis.attribution.window import Attribution, Recording, Window, coverage
from tracelens.analysis.grouping import ByGroup, Codes, Spread, first_of_each, numbered
from tracelens.analysis.intervals import Bools, Floats, Ints
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.reading.catalog import Reading
from tracelens.analysis.reading.op_readings import Callers, OpReadings
from tracelens.analysis.reading.process_groups import EVERY_ROW, ExpertExchange
from tracelens.analysis.sheets import columns_of
from tracelens.analysis.verdict.summary import Coverage
from tracelens.backends.base import System
from tracelens.backends.chain import chain
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.reduce import Reduce
from tracelens.schema import PARAMETER_PREFIX, SPREAD, TOTALED
from tracelens.trace.table import RowColumn, TraceTable, has_host_time
from tracelens.types.records import Record
from tracelens.types.signature import recorded_text
from tracelens.types.units import BYTES_PER_MB, FLOPS_PER_GFLOP, NS_PER_US, TERA_PER_S_IN_PER_US

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


def by_time(frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """``sorted_by`` with ``percent`` and ``cumulative_percent`` of the column's sum; 0 where there is no time."""
    frame = sorted_by(frame, key)
    total = frame[key].sum()
    frame["percent"] = 100 * frame[key] / total if total else 0.0
    frame["cumulative_percent"] = frame["percent"].cumsum()
    return frame


def statistics_of(
    columns: Mapping[str, Floats], by_group: ByGroup, *, totals: Collection[str] = ()
) -> dict[str, Floats]:
    """Mean, median, std (n - 1), min and max of each column per group as ``<column>_mean``, and so on, by column.

    Missing values count nowhere. ``totals``: the columns with a sum as well. Of small tables a frame costs more than
    its figures.
    """
    found: dict[str, Floats] = {}
    for key, values in columns.items():
        figures = Spread(values, by_group)
        found |= {f"{key}_{name}": getattr(figures, name) for name in SPREAD}
        if key in totals:
            found[f"{key}_sum"] = figures.sum
    return found


def identity_columns(
    table: TraceTable, rows: Sequence[int], categories: Sequence[str], names: Sequence[str] | None = None
) -> dict[str, Any]:
    """The nine columns that say which call a row is; text as tuples, ``None`` where the trace recorded nothing."""
    signatures = [table.signature_of(row) for row in rows]
    lanes = [(table.pid_of(row), table.tid_of(row)) for row in rows]
    columns: dict[str, Iterable[Any]] = {
        "name": names if names is not None else (s.name for s in signatures),
        "category": categories,
        "process_name": (table.process_names.get(pid) for pid, _ in lanes),
        "process_label": (table.process_labels.get(pid) for pid, _ in lanes),
        "thread_name": (table.thread_names.get(lane) for lane in lanes),
    }
    columns |= {key: [recorded_text(getattr(s, argument)) for s in signatures] for key, argument in _ARGUMENTS}
    return {key: objects(values) for key, values in columns.items()}


#: Stands for arguments in which the calls of one row differ.
DIFFERENT = "*"
_ARGUMENTS = (
    ("input_dims", "shapes"), ("input_types", "dtypes"), ("input_strides", "strides"), ("concrete_inputs", "scalars"),
)  # fmt: skip


def identity_of_groups(
    table: TraceTable, calls: Calls, group: Grouping, categories: Sequence[str], names: Sequence[str] | None = None
) -> dict[str, Any]:
    """``identity_columns`` of each group's example; ``DIFFERENT`` where calls differ, as in rows of one kernel."""
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
        # Lanes with the same process and thread names count as one.
        labels: dict[tuple[Any, ...], int] = {}
        ranks = []
        for pid, tid in table.lanes:
            label = (
                table.process_names.get(pid),
                table.process_labels.get(pid),
                table.thread_names.get((pid, tid), None if (pid, tid) in table.thread_names else tid),
            )
            ranks.append(labels.setdefault(label, len(labels)))
        self.of_call = numbered(
            table.name[row], signature, np.array(ranks or [0], np.int32)[table.lane[row]], kernel_name, *apart
        )
        self.first = first_of_each(self.of_call)
        self.example = row[self.first].tolist()


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
            plain = text.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
            short[key].append(f"{plain if len(plain) <= 48 else f'{plain[:47]}…'} x{count} {mean:.2f} µs")
    return {
        "kernel_details": ["[" + ", ".join(long[k]) + "]" if k in long else None for k in range(groups)],
        "kernel_details_short": [
            "; ".join(short[k]) + (" ..." if len(long[k]) > 3 else "") if k in long else None for k in range(groups)
        ],
    }


def launching_calls(
    table: TraceTable, activity: DeviceActivity, own: tuple[RowColumn, Ints], direct: Calls, apart: Codes | Bools
) -> pd.DataFrame:
    """One row per distinct launching op call and category of its kernels: direct and subtree kernel time (us).

    ``own``: ops and their subtree time (ns); ``direct``: the same ops as calls, one per category. A call of several
    categories has its subtree time in the row of the one that took most; ``_calls`` counts it there only. Calls with
    another ``apart`` are in other rows.
    """
    group = Grouping(table, direct.row, direct.kernel_name, direct.category.code, apart)
    # Which call is the longest of each row, the first of equals; calls of one row stand together.
    again = direct.row[1:] == direct.row[:-1]
    main: Bools = ~(np.append(again, False) | np.append(False, again))
    several = np.flatnonzero(~main)
    ordered = several[np.lexsort((-direct.kernel_ns[several], direct.row[several]))]
    main[ordered[np.unique(direct.row[ordered], return_index=True)[1]]] = True
    place = np.searchsorted(own[0], direct.row)
    subtree = np.where(main, own[1][place] / NS_PER_US, np.nan)
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
    return by_time(frame, "direct_us_sum")


def with_unlinked(unique: pd.DataFrame, unlinked: pd.DataFrame) -> pd.DataFrame:
    """Rows of launching ops, and those of the kernels that no recorded op launched."""
    if unlinked.empty:
        return unique
    rows = unlinked[["name", "category", "operation_count"]].copy()
    rows["_calls"] = rows["operation_count"]
    rows["direct_us_sum"] = rows["subtree_us_sum"] = unlinked["kernel_us_sum"]
    return pd.concat([unique[rows.columns], rows], ignore_index=True)


#: A frame while it is made: adding a column to a dictionary costs nothing.
Columns = dict[str, Any]


def modelled_table(
    table: TraceTable,
    activity: DeviceActivity,
    calls: Calls,
    work: KnownWork,
    exchanges: Mapping[int, ExpertExchange],
    group: Grouping,
) -> pd.DataFrame:
    """One row per distinct call: measured time beside work, achieved rates and estimate (keys: ``unified``).

    Rates are flops or bytes over the busy time of the kernels, their mean of all calls together: a ratio of sums.
    ``hbm_*`` is device memory; ``effective_interconnect_*`` is wire bytes over the whole kernel duration, waiting
    included. ``group`` says which calls are in one row; ``rows_of_events`` finds them again.
    """
    readings = work.readings
    kernel_name, categories = calls.kernel_name[group.first].tolist(), calls.category[group.first].tolist()
    names = [
        table.name_of(row) + ("" if kernel < 0 else f"->{table.names[kernel]}{'' if category == COPY else SYNTHETIC}")
        for row, kernel, category in zip(group.example, kernel_name, categories, strict=True)
    ]
    frame = identity_of_groups(table, calls, group, categories, names)
    rows = len(group.first)
    code = readings.code_of(calls.row[group.first])
    code = np.where(calls.kernel_name[group.first] >= 0, -1, code)
    position = np.where(code >= 0, work.position[np.maximum(code, 0)], -1)
    of_call, by_call = group.of_call, ByGroup(group.of_call)
    kernel_us = calls.kernel_ns / NS_PER_US
    frame["example_row"], frame["_group"] = group.example, np.arange(rows)
    frame["operation_count"] = np.bincount(of_call, minlength=rows)
    duration_us = np.where(has_host_time(table, calls.row), table.duration_ns[calls.row] / NS_PER_US, np.nan)
    exchange = [exchanges.get(c) for c in code.tolist()]
    done, wire = _add_work(frame, work, position, exchange)
    amounts = {key: amount / TERA_PER_S_IN_PER_US for key, amount in done.items()}
    timed_us = np.where(kernel_us > 0, kernel_us, np.nan)
    rates = {key: amount[of_call] / timed_us for key, amount in amounts.items()}
    columns = {"host_us": duration_us, "kernel_us": kernel_us, **rates}
    measured = statistics_of(columns, by_call, totals=("host_us", "kernel_us"))
    measured["host_us_sum"][np.isnan(measured["host_us_mean"])] = np.nan
    timed, total_us = np.bincount(of_call[kernel_us > 0], minlength=rows), measured["kernel_us_sum"]
    for key, amount in amounts.items():
        # All amounts of a row over all its time
        measured[f"{key}_mean"] = amount * timed / np.where(total_us > 0, total_us, np.nan)
    _add_models(frame, [readings.readings[c] if c >= 0 else None for c in code.tolist()])
    frame["note"] = [
        "kernels that no perf model of the op covers"
        if kernel >= 0
        else readings.readings[c].note or None
        if c >= 0
        else None
        for c, kernel in zip(code.tolist(), kernel_name, strict=True)
    ]
    _add_exchanges(frame, exchange, wire)
    gap = activity.gap_before[calls.first_event].astype(float)
    kernels = np.bincount(of_call[calls.call_of_event], minlength=rows)
    frame["kernels_per_call"] = kernels / frame["operation_count"]
    frame["launch_gap_us"] = by_call.medians(np.where(gap < 0, np.nan, gap) / NS_PER_US)
    frame |= measured
    _add_estimate(frame, work, position, timed_us, by_call)
    frame |= kernel_details(table, activity, calls.events, of_call[calls.call_of_event], rows)
    return by_time(pd.DataFrame(frame), "kernel_us_sum")


def rows_of_events(frame: pd.DataFrame, group: Grouping, calls: Calls, events: int) -> Codes:
    """Which row of ``modelled_table`` (sorted, and joined with others) each event is counted in, -1 for none."""
    row_of_group: Codes = np.full(len(group.first) + 1, -1, np.int32)
    if len(group.first):
        numbers = frame["_group"].fillna(-1).to_numpy(np.int64)
        row_of_group[numbers] = np.arange(len(frame))
    row_of_group[-1] = -1
    result: Codes = np.full(events, -1, np.int32)
    result[calls.events] = row_of_group[group.of_call[calls.call_of_event]]
    return result


def _add_work(
    frame: Columns, work: KnownWork, position: Ints, exchange: Sequence[ExpertExchange | None]
) -> tuple[dict[str, Floats], Floats]:
    """Adds FLOPs and bytes; returns what rates are of (of an exchange maybe all rows) and bytes leaving the rank."""
    flops, hbm, wire = (
        work.take(v, position) for v in (work.columns.flops, work.columns.hbm_bytes, work.columns.wire_bytes)
    )
    wire = np.where(wire > 0, wire, np.nan)
    every_row, rated = wire.copy(), wire.copy()
    for i, found in enumerate(exchange):
        if found is not None and found.exchanged_bytes:
            every_row[i] = found.exchanged_bytes
            if found.share.source == EVERY_ROW:
                rated[i] = found.exchanged_bytes
    frame["gflops"] = flops / FLOPS_PER_GFLOP
    frame["hbm_mb"] = hbm / BYTES_PER_MB
    with np.errstate(over="ignore"):  # an extension may claim a millionth of a byte
        frame["flops_per_byte"] = np.divide(flops, hbm, out=np.full(len(flops), np.nan), where=hbm > 0)
    frame["wire_mb"] = every_row / BYTES_PER_MB
    return {"tflops_s": flops, "hbm_tb_s": hbm, "effective_interconnect_tb_s": rated}, wire


def _add_models(frame: Columns, spoken: Sequence[Reading | None]) -> None:
    models = [None if reading is None else reading.model for reading in spoken]
    frame["model"] = [None if m is None else type(m).__name__ for m in models]
    frame["has_perf_model"] = [m is not None for m in models]
    frame["compute_spec"] = [getattr(reading, "compute_spec", None) for reading in spoken]
    precision = [None if r is None or r.computed_in is None else r.computed_in.label for r in spoken]
    frame["computed_in"] = precision
    frame["work_at_most"] = [getattr(model, "at_most", "") or None for model in models]
    frame["perf_params"] = [None if m is None else repr(m.parameters()) for m in models]


def _add_exchanges(frame: Columns, exchange: Sequence[ExpertExchange | None], wire: Floats) -> None:
    """What is known of token exchanges only."""
    known = [np.nan if e is None or e.copies is None else e.copies for e in exchange]
    frame["copies_per_token"] = np.array(known, np.float64)
    frame["rows_from"] = [None if e is None else e.rows_from for e in exchange]
    frame["expected_remote_mb"] = np.where([e is not None for e in exchange], wire, np.nan) / BYTES_PER_MB
    frame["remote_from"] = [None if e is None else e.share.source for e in exchange]
    deepep = [np.nan if e is None or e.deepep_us is None else e.deepep_us for e in exchange]
    frame["deepep_us"] = np.array(deepep, np.float64)


def _add_estimate(frame: Columns, work: KnownWork, position: Ints, timed_us: Floats, by_call: ByGroup) -> None:
    """``timed_us``: kernel time of each call, NaN where there is none."""
    estimates, limits = work.estimates, work.limits
    if estimates is None or limits is None:
        unknown = np.full(len(position), np.nan)
        nothing = objects([None] * len(position))
        frame["roofline_us"] = unknown
        frame["roofline_bound"] = frame["backend"] = frame["served_from"] = nothing
        frame["percent_of_peak"] = unknown
        frame |= {f"percent_of_roofline_{name}": unknown for name in SPREAD}
    else:
        mean, kernels = frame["kernel_us_mean"], frame["kernels_per_call"]
        time_us, peak_us = work.take(estimates.time_us, position), work.take(estimates.peak_us, position)
        floor_us = limits.floor_us(kernels, mean)
        bound = [estimates.bound[p] if p >= 0 else None for p in position.tolist()]
        frame["roofline_us"] = np.where(np.isnan(time_us), np.nan, np.fmax(time_us, floor_us))
        frame["roofline_bound"] = [
            LAUNCH if at_floor else b for at_floor, b in zip(floor_us > time_us, bound, strict=True)
        ]
        who = zip(np.isfinite(time_us).tolist(), position.tolist(), strict=True)
        frame["backend"] = [estimates.backend[p] if known else None for known, p in who]
        frame["percent_of_peak"] = 100 * np.divide(peak_us, mean, out=np.full(len(mean), np.nan), where=mean > 0)
        served = limits.served_from(frame["hbm_mb"] * BYTES_PER_MB, peak_us, mean, kernels)
        frame["served_from"] = served
        # Statistics over each call's own roofline, which its launches are part of; the mean is the group's.
        least_us = time_us[by_call.group]
        own = np.fmax(least_us, limits.floor_us(frame["kernels_per_call"][by_call.group], timed_us))
        own[np.isnan(least_us)] = np.nan
        share = 100 * own / timed_us
        mean = np.where(frame["kernel_us_mean"] > 0, frame["kernel_us_mean"], np.nan)
        found = statistics_of({"percent_of_roofline": share}, by_call)
        frame |= {**found, "percent_of_roofline_mean": 100 * frame["roofline_us"] / mean}
    # What a call should take: the expected time, at least the roofline, and no more than was achieved
    roofline_us, mean = frame["roofline_us"], frame["kernel_us_mean"]
    expected = roofline_us if work.expected is None else work.take(work.expected.time_us, position)
    frame["_achievable_us"] = np.where(np.isnan(roofline_us), np.nan, np.fmin(np.fmax(expected, roofline_us), mean))
    if (achievable := work.achievable) is not None:
        time_us = work.take(achievable.time_us, position)
        frame["estimated_us"] = time_us
        frame["percent_of_achievable"] = 100 * np.divide(time_us, mean, out=np.full(len(mean), np.nan), where=mean > 0)
        who = zip(np.isfinite(time_us).tolist(), position.tolist(), strict=True)
        frame["estimated_by"] = [achievable.backend[p] if known and p >= 0 else None for known, p in who]
    _forget_impossible_shares(frame)


def _forget_impossible_shares(frame: Columns) -> None:
    """Of work that is an upper bound, a share above 100 % says that less was done, and nothing of how fast."""
    is_bound = np.array([each is not None for each in frame["work_at_most"]], bool)
    for share in ("percent_of_roofline", "percent_of_peak", "percent_of_achievable"):
        keys = [key for key in frame if key == share or key.startswith(f"{share}_")]
        main = frame.get(f"{share}_mean", frame.get(share))
        if main is not None and (above := is_bound & (main > 100)).any():
            frame |= {key: np.where(above, np.nan, frame[key]) for key in keys}


def unlinked_rows(table: TraceTable, activity: DeviceActivity, categories: Labels) -> pd.DataFrame:
    """One row per category of the device events that no recorded op launched; ``categories``: of each event."""
    index = np.flatnonzero((activity.op < 0) & ~activity.collective).astype(np.int32)
    if not len(index):
        return pd.DataFrame()
    category = categories[index]
    group = numbered(category.code)
    first = first_of_each(group)
    us, rows = activity.duration_us(index), len(first)
    frame: Columns = {"name": objects([UNLINKED_NAME] * rows), "category": objects(category[first].tolist())}
    frame["operation_count"] = np.bincount(group)
    frame["has_perf_model"] = [False] * rows
    frame["note"] = ["launched before the recorded window, or its launch was not recorded"] * rows
    frame["example_row"] = activity.rows[index[first]].tolist()
    frame |= statistics_of({"kernel_us": us}, ByGroup(group), totals=("kernel_us",))
    return pd.DataFrame(frame | kernel_details(table, activity, index, group, rows))


def with_estimated_totals(frame: pd.DataFrame, unified: pd.DataFrame, key: str) -> pd.DataFrame:
    """``frame`` with summed estimates by ``key`` and their share of these calls' time; as it is without a backend."""
    if "estimated_us" not in unified:
        return frame
    priced = unified[unified["estimated_us"].notna()]
    sums = pd.DataFrame(
        {
            key: priced[key],
            "estimated_us": priced["estimated_us"] * priced["operation_count"],
            "kernel_us": priced["kernel_us_sum"],
        }
    ).groupby(key)[["estimated_us", "kernel_us"]].sum()  # fmt: skip
    share = 100 * sums["estimated_us"] / sums["kernel_us"].where(sums["kernel_us"] > 0)
    return frame.assign(
        estimated_us_sum=frame[key].map(sums["estimated_us"]), percent_of_achievable=frame[key].map(share)
    )


def with_unlinked_rows(modelled: pd.DataFrame, unlinked: pd.DataFrame) -> pd.DataFrame:
    """``modelled_table`` and ``unlinked_rows`` as one table."""
    if unlinked.empty:
        return modelled
    absent: dict[str, Any] = {
        str(column): np.nan if pd.api.types.is_numeric_dtype(values) else None
        for column, values in modelled.items()
        if column not in unlinked
    }
    rows = unlinked.assign(**absent)[list(modelled.columns)]
    joined = pd.concat([modelled, rows], ignore_index=True) if len(modelled) else rows
    return by_time(joined.drop(columns=["percent", "cumulative_percent"]), "kernel_us_sum")


#: The sheet of reductions in the backward pass.
REDUCE_BACKWARD = "Reduce_bwd"


FAMILY_COLUMNS = columns_of("(families)")


def families(
    table: TraceTable,
    calls: pd.DataFrame,
    readings: OpReadings,
    unified_rows: RowColumn,
    in_backward: npt.NDArray[np.bool_],
) -> dict[str, pd.DataFrame]:
    """Sheet name -> frame, from the table of all modelled calls (nested ones included).

    A call inside another modelled call (``aten::native_layer_norm`` below ``aten::layer_norm``) is marked ``nested``:
    its kernels are in both rows, so sums over a sheet take the rows where it is False.
    ``unified_rows``: of the calls of the unified table. ``in_backward``: of each row of the trace, whether the backward
    pass launched it; its reductions have a sheet of their own.
    """
    frames: dict[str, list[dict[str, Any]]] = {}
    example = calls["example_row"].to_numpy(np.int64)
    code, nested = readings.code_of(example), ~np.isin(example, unified_rows)
    kept = [key for key in _CALL_COLUMNS if key in calls.columns]
    for position, row in enumerate(calls[["name", *kept]].to_dict("records")):
        model = readings.readings[int(code[position])].model
        if model is None:
            continue
        parameters = {
            f"{PARAMETER_PREFIX}{key}": value if value is None or isinstance(value, _PLAIN) else repr(value)
            for key, value in model.parameters().items()
        }
        record = {"name": row["name"], **parameters, **{key: row[key] for key in kept}}
        recorded = table.signature_of(int(row["example_row"]))
        arguments = {key: getattr(recorded, argument) for key, argument in _ARGUMENTS}
        record |= {key: None if value is None else repr(_as_lists(value)) for key, value in arguments.items()}
        record["nested"] = bool(nested[position])
        is_gradient = model.sheet == Reduce.family and in_backward[example[position]]
        frames.setdefault(REDUCE_BACKWARD if is_gradient else model.sheet, []).append(record)
    return {name: sorted_by(pd.DataFrame(records), "kernel_us_sum") for name, records in sorted(frames.items())}


_RATES = ("hbm_tb_s", "tflops_s", "effective_interconnect_tb_s", "percent_of_roofline")
_CALL_COLUMNS = (
    "category", "gflops", "hbm_mb", "flops_per_byte", "wire_mb", "expected_remote_mb", "remote_from",
    "copies_per_token", "rows_from", "deepep_us",
    *(f"{rate}_{s}" for rate in _RATES for s in SPREAD),
    "compute_spec", "roofline_us", "roofline_bound", "percent_of_peak", "backend", "work_at_most",
    "estimated_us", "percent_of_achievable", "estimated_by",
    *(f"kernel_us_{s}" for s in TOTALED),
    "operation_count", "example_row", "kernel_details", "kernel_details_short",
    "process_name", "process_label", "thread_name",
)  # fmt: skip


#: What a cell holds as it is.
_PLAIN = (bool, int, float, str)


def _as_lists(value: Any) -> Any:
    """``((4,), ())`` as ``[[4], []]``: how the recorded arguments look in the file."""
    return [_as_lists(each) for each in value] if isinstance(value, tuple) else value


class PricedCalls(Record, frozen=True, kw_only=True, eq=False):
    """Every distinct call beside its work and its estimates.

    ``launchers``: by launching op; ``modelled``: every event in exactly one row, but for the ``unlinked`` ones, which
    no recorded op launched; ``rows``: both. ``row_of_event``: which of ``rows`` each event is counted in, -1 for
    collectives and events without an op. ``executed``: None where no model's utilization was asked for. ``chosen``:
    what the backend that the caller chose says is achievable. ``work``: of every reading.
    """

    launchers: pd.DataFrame
    modelled: pd.DataFrame
    unlinked: pd.DataFrame
    rows: pd.DataFrame
    row_of_event: Codes
    families: dict[str, pd.DataFrame]
    coverage: Coverage
    timeline: Timeline
    executed: ExecutedWork | None
    chosen: Callable[[Any], Any] | None
    work: KnownWork

    @classmethod
    def of(
        cls, recording: Recording, window: Window, attribution: Attribution, options: AnalysisOptions
    ) -> PricedCalls:
        """Estimates are at the clock that the caller chose."""
        table, tree, device = recording.trace.table, recording.trace.tree, recording.device
        activity, readings, repeated = attribution.activity, attribution.readings, attribution.repeated
        roofline, tile = (_estimator(device, backend, options.clock_mhz) for backend in ("roofline", "tile"))
        chosen = _estimator(device, options.backend, options.clock_mhz) if options.backend != "roofline" else None
        work = KnownWork(readings, roofline, chosen, None if device is None else Limits.of(device), tile)

        def grouped(calls: Calls, apart: Codes | Bools) -> Grouping:
            """Calls that are one row: with another number ``apart`` they are in other rows."""
            reading = np.where(calls.kernel_name >= 0, np.int32(-1), readings.code_of(calls.row))
            return Grouping(table, calls.row, calls.kernel_name, reading, calls.category.code, apart)

        def priced(calls: Calls, group: Grouping) -> pd.DataFrame:
            return modelled_table(table, activity, calls, work, attribution.exchanges, group)

        callers = Callers.of(tree, activity)
        linked, of_event = activity.of_ops(), attribution.event_category
        no_kernel = np.full(len(linked), -1, np.int32)
        # What each op launched itself, one call per category of its kernels
        direct = grouped_calls(activity, linked, activity.op[linked], no_kernel, of_event[linked])
        own = launchers(callers, activity)
        unique = launching_calls(table, activity, own, direct, repeated[direct.row])
        calls, unified = modelled_calls(activity, readings, callers), attribution.unified
        nested = priced(calls, grouped(calls, 2 * repeated[calls.row] + ~np.isin(calls.row, unified.row)))
        del callers, calls, direct, own
        category, group = attribution.event_category, grouped(unified, repeated[unified.row])
        modelled = with_places(priced(unified, group), tree, attribution.phases, repeated)
        unlinked = unlinked_rows(table, activity, category)
        rows = with_unlinked_rows(modelled, unlinked)
        in_backward = all_in(BACKWARD, attribution.phases, tree, activity)
        step_of, asked = window.step_of if window.selected else None, options.work is not None
        return cls(
            launchers=unique,
            modelled=modelled,
            unlinked=unlinked,
            rows=rows,
            row_of_event=rows_of_events(rows, group, unified, len(activity)),
            families=families(table, nested, readings, unified.row, in_backward),
            coverage=coverage(table, activity, unified, readings, category),
            timeline=window.timeline(activity),
            executed=executed_work(unified, readings, step_of, len(window.times)) if asked else None,
            chosen=chosen,
            work=work,
        )


def _estimator(device: HardwareSpec | None, backend: str, clock_mhz: float | None) -> Callable[[Any], Any] | None:
    if device is None:
        return None
    answers, system = chain(backend), System.of_device(device).at_clock(clock_mhz)
    return lambda columns: answers.estimate_many(columns, system)
