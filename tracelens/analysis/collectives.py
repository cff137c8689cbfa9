"""Collective kernels of one rank: what was sent over which group, and how long it took, waiting included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tracelens.analysis.activity import DeviceActivity
from tracelens.analysis.recorded_groups import recorded_attributes
from tracelens.analysis.tables import sorted_by
from tracelens.dtypes import DType
from tracelens.trace.table import TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import BYTES_PER_MB, NS_PER_US

_ATTRIBUTES = {
    "group_name": "Process Group Name",
    "group_ranks": "Process Group Ranks",
    "collective": "Collective name",
    "group_size": "Group size",
    "dtype": "dtype",
    "in_nelems": "In msg nelems",
    "out_nelems": "Out msg nelems",
    "in_split": "In split size",
    "out_split": "Out split size",
}
_KEYS = ("rank", *_ATTRIBUTES, "stream")


def collective_rows(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> pd.DataFrame:
    """One row per distinct collective call of this rank; a field that was not recorded is None and groups as such.

    Recorded on the kernel, else on the ``record_param_comms`` above its launch.
    """
    index = np.flatnonzero(activity.collective)
    records = []
    for i in index.tolist():
        row = int(activity.rows[i])
        attributes = recorded_attributes(table, tree, row)
        record: dict[str, Any] = {key: _plain(attributes.get(name)) for key, name in _ATTRIBUTES.items()}
        record |= {"rank": table.rank, "stream": int(activity.stream[i]), "us": activity.duration[i] / NS_PER_US}
        records.append(record)
    if not records:
        return pd.DataFrame()
    frame = pd.DataFrame(records).astype(dict.fromkeys(_KEYS, object))
    grouped = frame.groupby(list(_KEYS), sort=False, dropna=False)["us"].agg(
        ["sum", "mean", "std", "min", "max", "size"]
    )
    grouped = grouped.rename(columns={k: f"duration_us_{k}" for k in ("sum", "mean", "std", "min", "max")})
    result = grouped.rename(columns={"size": "operation_count"}).reset_index()
    result[list(_KEYS)] = result[list(_KEYS)].astype(object).where(result[list(_KEYS)].notna(), None)
    widths = [DType.parse(text) if isinstance(text, str) else None for text in result["dtype"]]
    for side in ("in", "out"):
        result[f"{side}_mb"] = [
            count * dtype.width_bytes / BYTES_PER_MB if isinstance(count, int | float) and dtype is not None else None
            for count, dtype in zip(result[f"{side}_nelems"], widths, strict=True)
        ]
    return sorted_by(result, "duration_us_sum")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str):
        return value
    return repr(list(value)) if isinstance(value, tuple) else repr(value)
