"""Columns that several sheets of the multi-rank report show, each declared once."""

from __future__ import annotations

from tracelens.analysis.sheets.ops.coll_analysis import COLUMNS as _COLLECTIVES
from tracelens.schema import count, identifier, mb, number, percent, text, us

GB_S, TB_S = "GB/s (1e9 bytes per second), wire", "TB/s (1e12 bytes per second), wire"

RANK = _COLLECTIVES["rank"]
GROUP, SIZE, COLLECTIVE, DTYPE = (_COLLECTIVES[k] for k in ("group_name", "group_size", "collective", "dtype"))
GROUP_RANKS, IN_NELEMS, OUT_NELEMS, IN_SPLIT, OUT_SPLIT = (
    _COLLECTIVES[k] for k in ("group_ranks", "in_nelems", "out_nelems", "in_split", "out_split")
)
IN_MB, OUT_MB = _COLLECTIVES["in_mb"].renamed("In msg size (MB)"), _COLLECTIVES["out_mb"].renamed("Out msg size (MB)")
STEP = identifier("step", "step", "Number of the step in which it was launched; empty outside of steps.")
ID = identifier("collective_id", "collective_id", "Calls of one number on different ranks are one collective.")
HOST = text("host", "host", "Hosts are numbered, not named; ranks of one host share a clock.", 18)

WAITING = "From the rank's start to the latest start on any rank, at most the call's duration."
FULL = mb(
    "full_mb", "Full msg size (MB)", "Output of an all-gather or gather, mean input of an all-to-all-v, else input."
)
LATENCY = us(
    "latency_us",
    "comm_latency",
    "Shortest duration over the ranks: that of the rank that came last and waited for nobody. No clock is involved.",
)
WAIT_MEAN = us("wait_us_mean", "avg_wait_time", f"Mean over the ranks. {WAITING}")
SKEW = us("start_skew_us", "skew in start time", "Latest less earliest start over the ranks, on one clock.")
ALGORITHM = number("algo_gb_s", "algo bw (GB/s)", "Full message over comm latency.", unit=GB_S)
BUS = number(
    "bus_gb_s",
    "bus bw (GB/s)",
    "Algorithm bandwidth times 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter, all-to-all, gather and "
    "scatter, else 1 (as in nccl-tests): comparable with a link's rate.",
    unit=GB_S,
)
PRESENT = count("ranks_present", "ranks present", "Ranks of the group whose trace contains the call.")
LAST = identifier("last_rank", "last rank", "Rank that started last.")
WAITING_SHARE = percent(
    "waiting_share", "Waiting (%)", "Waiting as a share of waiting and transfer, mean over the ranks."
)

THROUGHPUT = number(
    "throughput_gb_s",
    "throughput (GB/s)",
    "Bytes sent by all ranks over wall time, including waiting and each rank's share for itself.",
    unit=GB_S,
)
WALL = us("wall_us", "wall time", "From the earliest start to the latest end.")
TOTAL = mb("total_mb", "Total sent (MB)", "Sum of all ranks' inputs.")
IMBALANCE = number("size_imbalance", "size_imbalance", "Largest over mean input of a rank.", "0.000")

EXCHANGE_RATES = (
    number(
        "effective_tb_s",
        "Effective Interconnect TB/s",
        "Wire: Expected Remote Data over all kernels' whole duration, including waiting for the slowest rank.",
        "#,##0.0000",
        TB_S,
    ),
    number(
        "true_tb_s",
        "True Interconnect TB/s",
        "Wire: Expected Remote Data over the token-moving kernels from the moment their last rank has started. "
        "Never HBM traffic.",
        "#,##0.0000",
        TB_S,
    ),
)
EXCHANGE_BYTES = (
    count("rows", "Exchanged Rows", "Rows exchanged, including those that stay: every copy of a token counts."),
    text(
        "rows_from",
        "Exchanged Rows From",
        "Recorded, or the rows of the layer's combine: on one rank those that the dispatch receives, over "
        "all ranks of the group those that are sent.",
        32,
    ),
    mb("wire_mb", "Interconnect Data (MB)", "Wire: every exchanged row, including those for the own rank."),
    mb("remote_mb", "Expected Remote Data (MB)", "Wire: bytes that leave the rank; unknown without the group's size."),
    text(
        "remote_from", "Remote Data From", "Recorded split sizes or token counts, else even routing over the group.", 32
    ),
)
