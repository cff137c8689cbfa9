"""Communication by group and collective: exposed, and what hid the rest."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.ranks.matching import JobCalls
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.sheets.rank_columns import COLLECTIVE, GROUP
from tracelens.analysis.sheets.shared_columns import CALLS
from tracelens.schema import column_set, percent, sheet, text, us
from tracelens.units import NS_PER_US

COLUMNS = column_set(
    GROUP,
    COLLECTIVE,
    CALLS,
    us("duration_us_sum", "Durations of all ranks' calls; overlapping calls count twice."),
    us("exposed_us_sum", "Part in which the rank computed nothing."),
    percent("exposed_percent", "Share of the durations."),
    us("hidden_us_sum", "Part overlapped with computation."),
    text("hidden_by", "Overlapped computation, as shares of the durations.", width=60),
)


@sheet("overlap", columns=COLUMNS, order=590)
def frame(job: JobContext) -> pd.DataFrame:
    """Communication by group and collective: exposed, and what hid the rest.

    Durations are summed over calls, so calls that ran side by side count twice. Categories of computation that ran side
    by side each count, so their shares may exceed the hidden one.
    """
    calls = job.calls
    totals: dict[tuple[str, str], dict[str, float]] = {}
    beside: dict[tuple[str, str], dict[str, float]] = {}
    label = _labels(calls)
    offset = 0
    for position, rank in enumerate(calls.ranks):
        summary = job.ranks[rank]
        mine = slice(*np.searchsorted(calls.rank, (position, position + 1)).tolist())
        local = calls.message[mine] - offset
        n = len(summary.messages)
        duration = np.bincount(local, weights=(calls.end - calls.start)[mine], minlength=n)
        exposed = np.bincount(local, weights=calls.exposed[mine], minlength=n)
        count = np.bincount(local, minlength=n)
        for code, message in enumerate(summary.messages):
            key = (label[offset + code], message.word if message.is_exchange else message.name)
            row = totals.setdefault(key, {"duration": 0.0, "exposed": 0.0, "count": 0.0})
            row["duration"] += duration[code]
            row["exposed"] += exposed[code]
            row["count"] += count[code]
            for category, hidden in zip(summary.categories, summary.hidden[code].tolist(), strict=True):
                if hidden:
                    parts = beside.setdefault(key, {})
                    parts[category] = parts.get(category, 0.0) + hidden
        offset += n
    records = []
    for key, row in totals.items():
        hiding = sorted(beside.get(key, {}).items(), key=lambda part: (-part[1], part[0]))
        records.append(
            {
                "group_name": key[0],
                "collective": key[1],
                "operation_count": int(row["count"]),
                "duration_us_sum": row["duration"] / NS_PER_US,
                "exposed_us_sum": row["exposed"] / NS_PER_US,
                "exposed_percent": 100 * row["exposed"] / row["duration"] if row["duration"] else 0.0,
                "hidden_us_sum": (row["duration"] - row["exposed"]) / NS_PER_US,
                "hidden_by": ", ".join(f"{name} {100 * ns / row['duration']:.1f} %" for name, ns in hiding[:5]) or None,
            }
        )
    rows = pd.DataFrame(records)
    if rows.empty:
        return rows
    by = ["exposed_us_sum", "group_name", "collective"]
    return rows.sort_values(by, ascending=[False, True, True], kind="stable").reset_index(drop=True)


def _labels(calls: JobCalls) -> list[str]:
    """The channel of each message, as tables name it; the recorded group where nothing of it was matched."""
    label = [m.group or "no group recorded" for m in calls.messages]
    rows = np.flatnonzero(calls.instance >= 0)
    codes, first = np.unique(calls.message[rows], return_index=True)
    for code, row in zip(codes.tolist(), rows[first].tolist(), strict=True):
        channel = calls.channels[int(calls.channel_of[calls.instance[row]])]
        if not channel.is_point_to_point:
            label[code] = channel.label
    return label
