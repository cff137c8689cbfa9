"""Every communication call of a rank, matched or not; EP kernels included."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.intervals import Ints
from tracelens.analysis.ranks.matching import JobCalls
from tracelens.analysis.ranks.sheets import rank_columns as shared
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.waits import matched_rows
from tracelens.analysis.sheets.shared_columns import STREAM
from tracelens.schema import column_set, sheet, us
from tracelens.units import BYTES_PER_MB, NS_PER_US

TITLE = "nccl_long"
COLUMNS = column_set(
    shared.RANK, shared.ID, shared.GROUP, shared.COLLECTIVE, shared.SIZE, shared.DTYPE, shared.IN_NELEMS,
    shared.OUT_NELEMS,
    shared.IN_SPLIT, shared.OUT_SPLIT, STREAM, shared.STEP,
    us("start_us", "Start on the first host's clock, from the earliest call."),
    us("duration_us", "Duration, waiting included."),
    us("wait_us", f"{shared.WAITING} Empty without a counterpart."),
    us("transfer_us", "Duration less waiting. Empty without a counterpart."),
    us("exposed_us", "Part of the duration in which the rank computed nothing."),
    shared.IN_MB, shared.OUT_MB,
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=670, json=None)
def frame(job: JobContext) -> pd.DataFrame:
    """One row per communication call of a rank."""
    calls, waited = job.calls, job.waited
    n = len(calls.start)
    first = int(calls.start.min()) if n else 0
    matched = np.zeros(n, bool)
    matched[matched_rows(calls)] = True
    messages = _Messages(calls)
    labels = np.array([channel.label for channel in calls.channels] or [""], object)
    exchange = messages.column("is_exchange").astype(bool) & (calls.instance >= 0)
    group = messages.column("group")
    group[exchange] = labels[calls.channel_of[calls.instance[exchange]]]
    return pd.DataFrame(
        {
            "rank": np.array(calls.ranks, np.int64)[calls.rank] if n else np.zeros(0, np.int64),
            "collective_id": _known(calls.instance),
            "group_name": group,
            **{key: messages.column(key) for key in ("name", "size", "dtype", "elements_in", "elements_out")},
            "in_split": [None if s is None else str(list(s)) for s in messages.column("in_split")],
            "out_split": [None if s is None else str(list(s)) for s in messages.column("out_split")],
            "stream": messages.column("stream"),
            "step": _known(calls.step),
            "start_us": (calls.start - first) / NS_PER_US,
            "duration_us": (calls.end - calls.start) / NS_PER_US,
            "wait_us": np.where(matched, waited / NS_PER_US, np.nan),
            "transfer_us": np.where(matched, (calls.end - calls.start - waited) / NS_PER_US, np.nan),
            "exposed_us": calls.exposed / NS_PER_US,
            "in_mb": [None if b is None else b / BYTES_PER_MB for b in messages.column("in_bytes")],
            "out_mb": [None if b is None else b / BYTES_PER_MB for b in messages.column("out_bytes")],
        }
    ).rename(
        columns={
            "name": "collective", "size": "group_size", "elements_in": "in_nelems",
            "elements_out": "out_nelems",
        }
    )  # fmt: skip


def _known(numbers: Ints) -> npt.NDArray[np.object_]:
    """Numbers with None for those below 0."""
    result = numbers.astype(object)
    result[numbers < 0] = None
    return result


class _Messages:
    """Fields of the messages behind calls, looked up once per distinct message."""

    def __init__(self, calls: JobCalls) -> None:
        self._calls = calls

    def column(self, key: str) -> npt.NDArray[np.object_]:
        values = np.empty(len(self._calls.messages), object)
        values[:] = [getattr(message, key) for message in self._calls.messages]
        return values[self._calls.message]
