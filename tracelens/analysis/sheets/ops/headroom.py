"""Measured, achievable and least time by category: from the measured step to one as fast as its kernels can be."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.grouping import distinct_rows
from tracelens.analysis.idle.idle_time import BEFORE_RECORDING, CAUSES
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.shared_columns import CATEGORY
from tracelens.schema import column_set, percent, sheet, us
from tracelens.units import NS_PER_US

TITLE = "headroom"
#: What the device does while it does nothing.
IDLE = "idle"
COLUMNS = column_set(
    CATEGORY,
    us(
        "own_us",
        "Time per step (without steps: in the window) in which nothing else keeps the device busy: computation before "
        "communication, that before copies, of one class what began first. With the row idle the column adds up to the "
        "step.",
    ),
    us(
        "achievable_own_us",
        "Own time if every call of known work took what the tile model (or --backend) expects of it; the others stay "
        "as measured, and idle time goes, but for waits for work from before recording.",
    ),
    us("roofline_own_us", "Own time if every call of known work ran at its roofline."),
    us("headroom_us", "Own time less achievable time."),
    percent("percent_of_step", "Own time as a share of the step (or the window)."),
    percent("known_percent", "Share of the own time in calls of known work."),
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=18, json=25)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """By category, the largest headroom first: a waterfall from the measured step to the achievable one."""
    priced, timeline, steps = context.priced, context.timeline, max(1, len(context.selected))
    if not timeline.total_ns:
        return None
    category, own = context.event_category, context.own_time[2]
    codes = distinct_rows(category.code, len(category.texts))
    sums = {"own_us": np.bincount(category.code, own)[codes]}
    mean = priced.rows["kernel_us_mean"].to_numpy(np.float64) if len(priced.rows) else np.zeros(0)
    known = np.zeros(0)
    for key, of_call in (("achievable_own_us", "_achievable_us"), ("roofline_own_us", "roofline_us")):
        least = priced.rows[of_call].to_numpy(np.float64) if of_call in priced.rows else np.full(len(mean), np.nan)
        # One more for events that are in no row
        share = np.append(np.divide(least, mean, out=np.full(len(mean), np.nan), where=mean > 0), np.nan)
        kept = np.where(np.isnan(share), 1.0, np.fmin(share, 1.0))
        sums[key] = np.bincount(category.code, own * kept[priced.row_of_event])[codes]
        known = ~np.isnan(share)
    found = pd.DataFrame({"category": [category.texts[code] for code in codes.tolist()], **sums})
    known_ns = np.bincount(category.code, own * known[priced.row_of_event])[codes]
    found["known_percent"] = 100 * known_ns / np.maximum(sums["own_us"], 1)
    # Who waits for work that was not recorded is not idle
    stays = float(context.idle_parts.by_cause[CAUSES.index(BEFORE_RECORDING)])
    idle = {"category": IDLE, "own_us": timeline.idle_ns, "achievable_own_us": stays, "roofline_own_us": stays}
    found = pd.concat([found, pd.DataFrame([{**idle, "known_percent": np.nan}])], ignore_index=True)
    found["percent_of_step"] = 100 * found["own_us"] / timeline.total_ns
    found["headroom_us"] = found["own_us"] - found["achievable_own_us"]
    found = found[(found["own_us"] > 0)].sort_values(["headroom_us", "category"], ascending=[False, True])
    for key in (*sums, "headroom_us"):
        found[key] /= NS_PER_US * steps
    return found[list(COLUMNS)].reset_index(drop=True)
