"""What the sheets of a job are made from, the columns that several of them show, and the registry of its sheets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from importlib import import_module

import msgspec

from tracelens.analysis.intervals import Ints
from tracelens.analysis.ranks.matching import Clocks, Instances, JobCalls, instances, waiting_ns
from tracelens.analysis.ranks.rank_summary import RankSummary
from tracelens.analysis.sheets import collect_sheets
from tracelens.analysis.sheets.coll_analysis import COLUMNS as _COLLECTIVES
from tracelens.analysis.sheets.context import Frames
from tracelens.registry import Registry
from tracelens.schema import count, identifier, mb, number, percent, text, us
from tracelens.types.records import Record


@cache
def rank_sheets() -> Registry:
    """Title -> sheet function of the multi-rank report."""
    modules = ("rank_collectives", "rank_times")
    return collect_sheets([import_module(f"{__package__}.{name}") for name in modules])


RANK = _COLLECTIVES["rank"]
GROUP, SIZE, COLLECTIVE, DTYPE = (_COLLECTIVES[k] for k in ("group_name", "group_size", "collective", "dtype"))
GROUP_RANKS, IN_NELEMS, OUT_NELEMS, IN_SPLIT, OUT_SPLIT = (
    _COLLECTIVES[k] for k in ("group_ranks", "in_nelems", "out_nelems", "in_split", "out_split")
)
IN_MB, OUT_MB = _COLLECTIVES["in_mb"], _COLLECTIVES["out_mb"]
STEP = identifier("step", "Step in which the call was launched; empty outside of steps.")
ID = identifier("collective_id", "Number of the collective; calls on different ranks share it.")
HOST = text("host", "Number of the host; ranks of one host share a clock.", width=18)

WAITING = "From the start on this rank to the latest start on any rank, at most the duration."
FULL = mb("full_mb", "Output of an all-gather or gather, mean input of an all-to-all-v, else the input.")
LATENCY = us(
    "comm_latency_us",
    "Shortest duration over the ranks: that of the last rank, which waited for nobody. Independent of clocks.",
)
WAIT_MEAN = us("wait_per_rank_us", f"Mean over the ranks. {WAITING}")
SKEW = us("start_skew_us", "Latest - earliest start over the ranks, on one clock.")
ALGORITHM = number("algo_gb_s", "Full message / communication latency.", unit="GB/s")
BUS = number(
    "bus_gb_s",
    "Algorithm bandwidth x 2(n-1)/n for all-reduce, x (n-1)/n for all-gather, reduce-scatter, all-to-all, gather and "
    "scatter, else x 1, as in nccl-tests; comparable with the bandwidth of a link.",
    unit="GB/s",
)
PRESENT = count("ranks_present", "Ranks of the group whose trace contains the call.")
LAST = identifier("last_rank", "Rank that started last.")
WAITING_SHARE = percent("waiting_percent", "Wait time / (wait time + transfer), mean over the ranks.")

THROUGHPUT = number(
    "throughput_gb_s",
    "Bytes sent by all ranks / wall time, including waiting and the share that stays on a rank.",
    unit="GB/s",
)
WALL = us("wall_us", "From the earliest start to the latest end.")
TOTAL = mb("total_sent_mb", "Sum of the inputs of all ranks.")
IMBALANCE = number("size_imbalance", "Largest / mean input of a rank.", shape="0.000")

EXCHANGE_RATES = (
    number(
        "effective_interconnect_tb_s",
        "Expected remote data / kernel time, waiting included.",
        shape="#,##0.0000",
        unit="TB/s",
    ),
    number(
        "true_interconnect_tb_s",
        "Expected remote data / time of the token-moving kernels after the last rank started.",
        shape="#,##0.0000",
        unit="TB/s",
    ),
)
EXCHANGE_BYTES = (
    count("rows", "Rows exchanged, also those that stay on the rank: every copy of a token counts."),
    text(
        "rows_from",
        "Recorded, or rows of the combine of the layer: on one rank those the dispatch receives, over the group those "
        "sent.",
        width=32,
    ),
    mb("wire_mb", "Interconnect bytes of every exchanged row, also rows that stay on the rank."),
    mb("expected_remote_mb", "Interconnect bytes that leave the rank; empty if the group size is unknown."),
    text("remote_from", "Recorded split sizes or token counts, else even routing over the group.", width=32),
)


class DeviceUse(Record, frozen=True, kw_only=True):
    """Means of a log's samples of a rank's device, from its first to its last call; None where not sampled."""

    power_w: float | None
    clock_mhz: float | None


class JobContext(Record, frozen=True, kw_only=True, eq=False, dict=True):
    """The ranks of a job and their calls on the first host's clock. ``devices``: logged use of a rank's device."""

    ranks: Mapping[int, RankSummary]
    calls: JobCalls
    clocks: Clocks
    devices: Mapping[int, DeviceUse] = msgspec.field(default_factory=dict)

    @cached_property
    def found(self) -> Instances:
        """The matched collectives."""
        return instances(self.calls)

    @cached_property
    def waited(self) -> Ints:
        """How long (ns) each call waited for the last rank."""
        return waiting_ns(self.calls, self.found)

    @cached_property
    def frames(self) -> Frames:
        """The frames of all sheets by title."""
        return Frames(rank_sheets(), self)
