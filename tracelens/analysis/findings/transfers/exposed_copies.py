"""Copies during which nothing else runs on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import MIN_GAIN, Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.sheets.ops import copies
from tracelens.analysis.verdict.summary import Evidence, Said

if TYPE_CHECKING:
    import pandas as pd

#: What is left to do where the host's memory is pinned already, and between devices (None).
_NOT_PAGEABLE = {
    "pinned": "non_blocking=True on another stream beside other work, or keep the data on the device",
    None: "copy on another stream beside other work, or keep the data where it is used",
}
#: Where there is no other work, and the copies are far below the rate of their path.
_SLOW_ALONE = "fewer and larger copies, host memory on the GPU's own NUMA node, or keep the data on the device"
#: Share of the link's rate that a copy from pageable memory, which the driver first copies on the host, stays below.
_PAGEABLE_REACHES = 0.6
#: Share of the copies below which other work hides nothing worth a word.
_HARDLY = 0.05


@finding(
    "exposed_copies",
    Advice(
        sees="Copies during which nothing else runs on the device.",
        costs="The compute units wait for a link that is tens of times slower than the device's memory.",
        remedy="use pinned memory and non_blocking=True on another stream, or keep the data on the device",
        wrong_when="The next kernel needs the data at once and there is no other work to do.",
        references=("https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html",),
    ),
)
def exposed_copies(seen: Observed) -> Iterator[Candidate]:
    """Time in which the device did nothing but copy, and how fast the copies that took most were.

    Gain: with pinned memory what a copy takes beyond its path's own rate, else what other work can hide.
    """
    frame = seen.context.frames.get(copies.TITLE)
    between = seen.activity.between_memories
    only_ns = copies.only_copies_ns(seen.activity)
    share = only_ns / max(1, seen.window_ns)
    if frame is None or share <= MIN_GAIN:
        return
    top = frame.iloc[0]
    how = " ".join(word for word in (top["direction"], top["host_memory"]) if word not in (None, "unknown"))
    why = f"the GPU only copies for {100 * share:.0f} % of the time: mostly {top['parent_op']} {how}"
    figures = [Said(what="share of the time", value=share, unit="share")]
    if top["gb_s"] > 0:
        why += f" at {top['gb_s']:.1f} GB/s"
        figures.append(Said(what="achieved", value=float(top["gb_s"]), unit="GB/s"))
        if top["path"]:
            why += f", {top['path']} has {top['path_gb_s']:.0f}"
            figures.append(Said(what=str(top["path"]), value=float(top["path_gb_s"]), unit="GB/s"))
    faster = 1 - copies.at_rate_of_path(seen.table, seen.activity, seen.device)
    work_ns = int(seen.own_ns[~between].sum())
    hidden = min(1.0, work_ns / only_ns)
    remedy = _NOT_PAGEABLE.get("pinned" if _is_fast(top) else top["host_memory"])
    if remedy is None:
        gain, computed = np.nan_to_num(faster, nan=hidden), "what the copies take beyond their path's own rate"
    elif hidden < _HARDLY and np.nansum(faster) > 0:
        gain, computed, remedy = np.nan_to_num(faster), "what the copies take beyond their path's own rate", _SLOW_ALONE
    else:
        gain, computed = (
            np.full(len(faster), hidden),
            "the copies, as far as the other work is long enough to hide them",
        )
    yield Candidate(
        why=why,
        claimed=seen.kernels(between, gain, low=0.0, high=np.fmax(gain, hidden)),
        computed=f"{computed}; at least none of it",
        certainty="low",
        remedy=remedy,
        figures=tuple(figures),
        evidence=(Evidence(sheet=copies.TITLE, row={"parent_op": top["parent_op"], "direction": top["direction"]}),),
    )


def _is_fast(top: pd.Series) -> bool:
    """Whether a copy of memory of which nothing was recorded is as fast as only one of pinned memory is."""
    return bool(top["host_memory"] == "unknown" and top["path"] and top["gb_s"] > _PAGEABLE_REACHES * top["path_gb_s"])
