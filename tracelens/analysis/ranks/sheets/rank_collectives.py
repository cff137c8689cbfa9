"""Every matched collective: sizes, latency, skew, bandwidth."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.ranks.messages import Message
from tracelens.analysis.ranks.sheets import rank_columns as shared
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.perf_models.communication.collective import bus_factor
from tracelens.schema import column_set, identifier, sheet, us
from tracelens.units import BYTES_PER_MB, GB_PER_S_IN_BYTES_PER_US, NS_PER_US

TITLE = "nccl_implicit_sync"
COLUMNS = column_set(
    shared.ID, shared.GROUP, shared.SIZE, shared.COLLECTIVE, shared.DTYPE, shared.STEP, shared.FULL, shared.PRESENT,
    shared.LATENCY, shared.WAIT_MEAN, shared.SKEW,
    us("end_skew_us", "Latest less earliest end over the ranks, on one clock."),
    shared.ALGORITHM, shared.BUS, shared.LAST, identifier("first_rank", "Rank that started first."),
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=650, json=None)
def frame(job: JobContext) -> pd.DataFrame:
    """One row per matched collective.

    Sizes, latency, skew, bandwidth. EP kernels have sheets of their own.
    """
    calls, found, waited = job.calls, job.found, job.waited
    rows = np.flatnonzero(calls.instance >= 0)
    by_instance = rows[np.argsort(calls.instance[rows], kind="stable")]
    at = np.searchsorted(calls.instance[by_instance], np.arange(calls.instances + 1))
    wait_sum = np.bincount(calls.instance[rows], weights=waited[rows], minlength=calls.instances)
    known: dict[tuple[int, ...], tuple[float | None, float | None]] = {}
    records = []
    for i in range(calls.instances):
        channel = calls.channels[int(calls.channel_of[i])]
        if channel.is_exchange or found.present[i] < 2:
            continue
        codes = tuple(sorted(set(calls.message[by_instance[at[i] : at[i + 1]]].tolist())))
        message = calls.messages[int(calls.message[found.example[i]])]
        size = channel.size or message.size
        if codes not in known:
            full = _full_bytes([calls.messages[code] for code in codes], message.word)
            known[codes] = (full, bus_factor(message.word, size))
        full, factor = known[codes]
        shortest_us = found.shortest[i] / NS_PER_US
        is_sized = channel.has_group or channel.is_point_to_point or message.size is not None
        algo = _rate_gb_s(full, shortest_us) if is_sized else None
        records.append(
            {
                "collective_id": i,
                "group_name": channel.label,
                "group_size": size,
                "collective": "send/recv" if channel.is_point_to_point else message.name,
                "dtype": message.dtype,
                "step": int(calls.step[found.example[i]]),
                "full_mb": None if full is None else full / BYTES_PER_MB,
                "ranks_present": int(found.present[i]),
                "comm_latency_us": shortest_us,
                "wait_per_rank_us": wait_sum[i] / found.present[i] / NS_PER_US,
                "start_skew_us": (found.latest_start[i] - found.earliest_start[i]) / NS_PER_US,
                "end_skew_us": (found.latest_end[i] - found.earliest_end[i]) / NS_PER_US,
                "algo_gb_s": algo,
                "bus_gb_s": None if algo is None or factor is None else algo * factor,
                "last_rank": calls.ranks[int(found.last[i])],
                "first_rank": calls.ranks[int(found.first[i])],
            }
        )
    result = pd.DataFrame(records)
    if not result.empty:
        result["step"] = result["step"].astype(object).where(result["step"] >= 0, None)
    return result


def _rate_gb_s(nbytes: float | None, time_us: float) -> float | None:
    return None if nbytes is None or time_us <= 0 else nbytes / time_us / GB_PER_S_IN_BYTES_PER_US


def _full_bytes(messages: list[Message], word: str) -> float | None:
    """Bytes of the whole message, as bandwidths are counted: what nccl-tests calls the size.

    The output of an all-gather and a gather's at its root, the input of what is scattered, the mean input of an
    all-to-all-v's ranks, else the input. None where a size or an element type was not recorded.
    """
    sizes_in = [m.in_bytes for m in messages if m.in_bytes is not None]
    sizes_out = [m.out_bytes for m in messages if m.out_bytes is not None]
    if word == "all_to_allv":
        return sum(sizes_in) / len(sizes_in) if len(sizes_in) == len(messages) else None
    if word in ("all_gather", "gather"):
        return max(sizes_out, default=None)
    if word == "recv":
        return max(sizes_out or sizes_in, default=None)
    return max(sizes_in, default=None)
