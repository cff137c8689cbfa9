"""Collective kernels of one rank: what was sent over which group, and how long it took, waiting included."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.grouping import first_of_each, numbered
from tracelens.analysis.reading import process_groups
from tracelens.analysis.sheets import built_in
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.priced_calls import sorted_by
from tracelens.analysis.verdict.summary import LEAST_KNOWN, CategoryRow
from tracelens.backends import EstimateTable
from tracelens.perf_models import Collective, WorkColumns
from tracelens.trace.table import TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.dtypes import DType
from tracelens.types.units import GB_PER_TB, NS_PER_US

_ATTRIBUTES = {
    "group_name": "Process Group Name", "group_ranks": "Process Group Ranks", "collective": "Collective name",
    "group_size": "Group size", "dtype": "dtype", "in_nelems": "In msg nelems", "out_nelems": "Out msg nelems",
    "in_split": "In split size", "out_split": "Out split size", "sizes_from": process_groups.SIZES_FROM,
}  # fmt: skip
_KEYS = ("rank", *_ATTRIBUTES, "stream", "remote_share", "remote_from")


TITLE = "coll_analysis"


@built_in(TITLE)
def frame(context: SheetContext) -> pd.DataFrame:
    """Collectives of this rank by distinct call."""
    rows = collective_rows(context.trace.table, context.trace.tree, context.activity)
    return with_estimates(rows, context.priced.chosen)


def collective_rows(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> pd.DataFrame:
    """One row per distinct collective call of this rank; a field that was not recorded is None and groups as such.

    Recorded on the kernel, else on the ``record_param_comms`` above its launch, else read from the ops above it.
    """
    index = np.flatnonzero(activity.collective)
    if not len(index):
        return pd.DataFrame()
    attributes, call = process_groups.attributes_of_calls(table, tree, activity.rows[index])
    part = numbered(call, activity.stream[index])
    first = first_of_each(part)
    code_of: dict[tuple[Any, ...], int] = {}
    code = np.zeros(len(first), np.int64)
    for place in np.argsort(first).tolist():
        at = first[place]
        record = _record(attributes[call[at]], table.rank, int(activity.stream[index[at]]))
        code[place] = code_of.setdefault(record, len(code_of))
    group = code[part]
    # As objects: numbers beside a missing one would become floats
    result = pd.DataFrame(list(code_of), columns=list(_KEYS), dtype=object)
    times = pd.Series(activity.duration[index] / NS_PER_US).groupby(group).agg(["sum", "mean", "std", "min", "max"])
    result = result.join(times.add_prefix("duration_us_"))
    result["operation_count"] = np.bincount(group)
    for side in ("in", "out"):
        result[f"{side}_mb"] = list(map(process_groups.message_mb, result[f"{side}_nelems"], result["dtype"]))
    result["expected_remote_mb"] = [
        None if share is None or nbytes is None else share * nbytes
        for share, nbytes in zip(result.pop("remote_share"), result["in_mb"], strict=True)
    ]
    result["effective_bus_gb_s"] = process_groups.bus_gb_s(result, result["duration_us_mean"])
    result["effective_bus_gb_s_shortest"] = process_groups.bus_gb_s(result, result["duration_us_min"])
    return sorted_by(result, "duration_us_sum")


def _record(attributes: dict[str, Any], rank: int | None, stream: int) -> tuple[Any, ...]:
    """What tells collective calls apart, in the order of ``_KEYS``."""
    record = {key: _plain(attributes.get(name)) for key, name in _ATTRIBUTES.items()}
    share = (
        process_groups.all_to_all_share(attributes, rank)
        if process_groups.collective_word(record["collective"]) == "all_to_all"
        else None
    )
    record |= {"remote_share": share and share.share, "remote_from": share and share.source}
    record |= {"rank": rank, "stream": stream}
    return tuple(record[key] for key in _KEYS)


def with_bus_rate(row: CategoryRow, frame: pd.DataFrame) -> CategoryRow:
    """The category of collectives with their bus bandwidth, waiting included, where most of its time has one."""
    if frame.empty:
        return row
    rate, time_us = (frame[name].to_numpy(float) for name in ("effective_bus_gb_s", "duration_us_sum"))
    known = ~np.isnan(rate)
    if not time_us[known].sum() > LEAST_KNOWN * time_us.sum():
        return row
    gb_s = (rate * time_us)[known].sum() / time_us[known].sum()
    return replace(row, wire_tb_s=float(gb_s) / GB_PER_TB)


def with_estimates(frame: pd.DataFrame, estimate: Callable[[WorkColumns], EstimateTable] | None) -> pd.DataFrame:
    """``collective_rows`` with ``estimated_us``, ``percent_of_achievable`` (of the mean, waiting included) and who
    answered; as they are without a chosen backend. No estimate where the group's members were not recorded, or do not
    stand at even distances.
    """
    if estimate is None or frame.empty:
        return frame
    models = collective_models(frame)
    time, who = np.full(len(frame), np.nan), np.full(len(frame), None, object)
    known = [index for index, model in enumerate(models) if model is not None]
    found = estimate(WorkColumns.of(model for model in models if model is not None))
    time[known], who[known] = found.time_us, found.backend
    mean = frame["duration_us_mean"].to_numpy(float)
    share = np.divide(100 * time, mean, out=np.full(len(frame), np.nan), where=mean > 0)
    return frame.assign(estimated_us=time, percent_of_achievable=share, estimated_by=who)


def collective_models(frame: pd.DataFrame, *, stride: int | None = None) -> list[Collective | None]:
    """The collective of each row, None where incomplete; ``stride``: of ranks not recorded or unevenly spaced."""
    columns = ("collective", "dtype", "in_nelems", "out_nelems", "group_size")
    recorded = zip(*(frame[name] for name in columns), strict=True)
    return [
        _model(*values, stride=_stride(ranks) or stride)
        for values, ranks in zip(recorded, frame["group_ranks"], strict=True)
    ]


def _model(kind: Any, dtype: Any, n_in: Any, n_out: Any, size: Any, *, stride: int | None) -> Collective | None:
    numbers = all(isinstance(value, int) for value in (n_in, n_out, size))
    if not isinstance(kind, str) or not isinstance(dtype, str) or not numbers or stride is None:
        return None
    return Collective(
        kind=kind, elements_in=n_in, elements_out=n_out, ranks=size, dtype=DType.parse(dtype), stride=stride
    )


def _stride(ranks: Any) -> int | None:
    """The distance between the recorded ranks ``"[0, 4, 8]"``; None where it is not the same everywhere."""
    try:
        members = json.loads(ranks)
    except (TypeError, ValueError):
        return None
    if not isinstance(members, list) or not members or not all(isinstance(rank, int) for rank in members):
        return None
    inside = sorted(members)
    steps = {after - before for before, after in itertools.pairwise(inside)}
    return 1 if not steps else steps.pop() if len(steps) == 1 and min(steps) > 0 else None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str):
        return value
    return repr(list(value)) if isinstance(value, tuple) else repr(value)
