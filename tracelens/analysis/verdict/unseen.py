"""What findings cannot speak of: device time whose work is not known, and what opens it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import numpy as np

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.reading.captured_graphs import graph_launches
from tracelens.analysis.reading.catalog import COMMUNICATION, NO_MODEL
from tracelens.analysis.sheets.distinct_calls import UNLINKED_NAME
from tracelens.analysis.sheets.ops import unified_perf_summary
from tracelens.analysis.verdict.summary import Unseen
from tracelens.trace.lacks import no_shapes
from tracelens.units import NS_PER_US

#: Share of the device time from which it is said first.
_MUCH = 0.1
#: Names that are shown.
_NAMES = 3


def unseen(analysis: Analysis) -> Unseen | None:
    """None where little is unknown. ``analysis``: the part that figures are made of."""
    rows, activity = analysis.frames[unified_perf_summary.TITLE], analysis.activity
    known = rows[["gflops", "hbm_mb", "wire_mb"]].notna().any(axis=1)
    moves = set(analysis.event_category[activity.communication | activity.memcpy].tolist())
    unknown = rows[~known & ~rows["category"].isin({*COMMUNICATION, *moves})]
    device_us = float(activity.duration.sum()) / NS_PER_US
    share = float(unknown["kernel_us_sum"].sum()) / max(device_us, 1e-9)
    if share <= _MUCH:
        return None
    by_name = unknown["kernel_us_sum"].groupby(unknown["name"].astype(str).str.partition("->")[0]).sum()
    names = [str(name) for name in by_name.sort_values(ascending=False, kind="stable").index if name != UNLINKED_NAME]
    is_op = unknown["input_dims"].astype(str).str.contains(r"\d") & ~unknown["name"].astype(str).str.contains("->")
    notes = dict(zip(unknown["name"][is_op], unknown["note"][is_op], strict=True))
    because, command = _opened_by(analysis, {name: notes[name] for name in names if name in notes})
    return Unseen(share=share, ops=tuple(names[:_NAMES]), because=because, command=command)


def _opened_by(analysis: Analysis, ops: Mapping[str, object]) -> tuple[str, str | None]:
    """(why the work is not known, what to type); ``ops``: those with recorded shapes, the longest first, each with what
    its perf model misses, if it has one.
    """
    table, source = analysis.trace.table, shlex.quote(analysis.trace.table.source)
    behind = np.isin(analysis.trace.tree.launch[analysis.activity.rows], graph_launches(table))
    replayed = float(analysis.activity.duration[behind].sum())
    if analysis.graphs is None and 2 * replayed > analysis.activity.duration.sum():
        return "kernels of replayed graphs", f"tracelens report {source} --capture CAPTURE_TRACE"
    if not table.has_shapes:
        return str(no_shapes(table)), None
    if not ops:
        return "no arguments of these were recorded", None
    name, note = next(iter(ops.items()))
    if isinstance(note, str) and note not in ("", NO_MODEL):
        # An extension would miss the same
        return note.removeprefix(f"{name}: "), None
    return NO_MODEL, f"tracelens extensions new {shlex.quote(name)} --from {source} -o my_ops.py"
