"""Columns of the sheets that compare ranks. What both kinds of report show stands in ``columns``."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.report.columns import (
    CALLS,
    COLLECTIVES,
    COUNT,
    IDENTIFIER,
    MB,
    MS,
    NAME,
    PERCENT,
    RATE,
    STREAM,
    US,
    Column,
    ColumnSet,
    column_set,
    statistics,
)

_GB_S, _TB_S = "GB/s (1e9 bytes per second), wire", "TB/s (1e12 bytes per second), wire"
_MEGABYTES = "MB (1e6 bytes)"


def _us(key: str, header: str, meaning: str, *, optional: bool = False) -> Column:
    return Column(key=key, header=header, meaning=meaning, unit="µs", number_format=US, optional=optional)


def _mb(key: str, header: str, meaning: str) -> Column:
    return Column(key=key, header=header, meaning=meaning, unit=_MEGABYTES, number_format=MB)


def _percent(key: str, header: str, meaning: str) -> Column:
    return Column(key=key, header=header, meaning=meaning, unit="%", number_format=PERCENT, look="share")


def _number(key: str, header: str, meaning: str) -> Column:
    return Column(key=key, header=header, meaning=meaning, number_format=COUNT)


def _name(key: str, header: str, meaning: str) -> Column:
    return Column(key=key, header=header, meaning=meaning, number_format=IDENTIFIER)


RANK = COLLECTIVES["rank"]
GROUP, SIZE, COLLECTIVE, DTYPE = (COLLECTIVES[k] for k in ("group_name", "group_size", "collective", "dtype"))
STEP = _name("step", "step", "Number of the step in which it was launched; empty outside of steps.")
ID = _name("collective_id", "collective_id", "Calls of one number on different ranks are one collective.")
HOST = Column(
    key="host", header="host", meaning="Hosts are numbered, not named; ranks of one host share a clock.", width=18
)

_LATENCY = (
    "Shortest duration over the ranks: that of the rank that came last and waited for nobody. No clock is involved."
)
_WAIT = "From the rank's start to the latest start on any rank, at most the call's duration."
_START_SKEW = "Latest less earliest start over the ranks, on one clock."
_ALGORITHM = "Full message over comm latency."
_BUS = (
    "Algorithm bandwidth times 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter, all-to-all, gather and "
    "scatter, else 1 (as in nccl-tests): comparable with a link's rate."
)
FULL = _mb(
    "full_mb", "Full msg size (MB)", "Output of an all-gather or gather, mean input of an all-to-all-v, else input."
)
LATENCY = _us("latency_us", "comm_latency", _LATENCY)
WAIT_MEAN = _us("wait_us_mean", "avg_wait_time", f"Mean over the ranks. {_WAIT}")
SKEW = _us("start_skew_us", "skew in start time", _START_SKEW)
ALGORITHM = Column(key="algo_gb_s", header="algo bw (GB/s)", meaning=_ALGORITHM, unit=_GB_S, number_format=RATE)
BUS = Column(key="bus_gb_s", header="bus bw (GB/s)", meaning=_BUS, unit=_GB_S, number_format=RATE)
PRESENT = _number("ranks_present", "ranks present", "Ranks of the group whose trace holds the call.")
LAST = _name("last_rank", "last rank", "Rank that started last.")
FIRST = _name("first_rank", "first rank", "Rank that started first.")
WAITING_SHARE = _percent(
    "waiting_share", "Waiting (%)", "Waiting as a share of waiting and transfer, mean over the ranks."
)

RANKS = column_set(
    RANK,
    Column(key="file", header="file", meaning="Name of the trace.", width=40),
    HOST,
    _number("events", "events", "Events in the file."),
    _number("communication_calls", "communication calls", "Communication kernels, or gloo's calls on the host."),
    *(
        Column(key=f"{key}_ms", header=f"{key} ms", meaning=meaning, unit="ms", number_format=MS)
        for key, meaning in (
            ("total", "From the first device event to the end of the last."),
            ("computation", "Time in which kernels computed."),
            ("exposed_comm", "Time in which communication ran and no computation did."),
            ("total_comm", "Time in which communication ran."),
            ("idle", "Time in which nothing ran."),
        )
    ),
    Column(key="note", header="note", meaning="What of the file could not be used.", width=44, optional=True),
)
CLOCKS = column_set(
    HOST,
    Column(key="ranks", header="ranks", meaning="Ranks of the host.", width=30),
    _us("offset_us", "clock offset (µs)", "Ahead of the first host's clock, in mid-trace; taken away."),
    Column(
        key="drift_ppm", header="clock drift (ppm)", meaning="How much faster the clock runs; taken away.",
        unit="µs per second", number_format="0.000",
    ),
    _us(
        "residual_us", "clock residual (µs)",
        "Robust standard deviation (1.4826 MAD) of the end times' differences after the correction. Skew below it is "
        "no finding.",
    ),
    _number("points", "collectives used", "Collectives shared with the host it was fitted to."),
    Column(key="fitted_to", header="fitted to", meaning="Host whose clock it was compared with.", width=18),
)  # fmt: skip
GROUPS = column_set(
    GROUP,
    COLLECTIVES["group_ranks"],
    SIZE,
    _number("matched", "matched", "Collectives found on two ranks or more."),
    _number("unmatched", "unmatched", "Calls whose counterpart is in no trace."),
)
STRAGGLERS = column_set(
    RANK,
    _us(
        "cost_us", "cost_us",
        "Over the collectives in which the rank started last: how much later than the last but one. What is saved if "
        "it alone were on time.",
    ),
    _us("caused_wait_us", "caused_wait_time_us", "Waiting of all other ranks in the collectives in which it was last."),
    _number("times_arrived_last", "times_arrived_last", "Collectives in which the rank started last."),
    _number("times_arrived_first", "times_arrived_first", "Collectives in which the rank started first."),
    _percent("percent_arrived_last", "pct_arrived_last", "Share of its collectives in which the rank started last."),
    _us("total_wait_us", "total_wait_time_us", f"Sum over its collectives. {_WAIT}"),
    _us("mean_wait_us", "mean_wait_time_us", f"Mean over its collectives. {_WAIT}"),
    _number("num_collectives", "num_collectives", "Matched collectives of the rank."),
    _us("total_duration_us", "total_nccl_dur_us", "Sum of their durations, waiting included."),
)  # fmt: skip
_OVER = ("mean", "median", "min", "max")
IMPLICIT_SUMMARY = column_set(
    GROUP, SIZE, COLLECTIVE, DTYPE, FULL,
    _us("waiting_us_sum", "total avg_wait_time", "Mean waiting of the ranks, summed over the collectives."),
    WAITING_SHARE,
    Column(
        key="verdict", header="verdict",
        meaning="transfer-dominated (waiting below 30 %), arrival-skew-dominated (above 70 %), mixed, or inconclusive: "
        "the clocks are less certain than the skew is large.",
        width=26,
    ),
    *(
        column
        for key, header, meaning, unit, shape in (
            ("latency_us", "comm_latency_{}", _LATENCY, "µs", US),
            ("algo_gb_s", "algo bw (GB/s)_{}", _ALGORITHM, _GB_S, RATE),
            ("bus_gb_s", "bus bw (GB/s)_{}", _BUS, _GB_S, RATE),
            ("start_skew_us", "skew in start time_{}", _START_SKEW, "µs", US),
            ("wait_us_mean", "avg_wait_time_{}", f"Mean over the ranks. {_WAIT}", "µs", US),
        )
        for column in statistics(_OVER, key=key, header=header, meaning=meaning, unit=unit, number_format=shape)
    ),
    CALLS,
)  # fmt: skip
IMPLICIT = column_set(
    ID, GROUP, SIZE, COLLECTIVE, DTYPE, STEP, FULL, PRESENT, LATENCY, WAIT_MEAN, SKEW,
    _us("end_skew_us", "skew in end time", "Latest less earliest end over the ranks, on one clock."),
    ALGORITHM, BUS, LAST, FIRST,
)  # fmt: skip
_IN_MB, _OUT_MB = (
    COLLECTIVES[k].renamed(h) for k, h in (("in_mb", "In msg size (MB)"), ("out_mb", "Out msg size (MB)"))
)
WAIT_SUM = _us("wait_us_sum", "wait_time_sum", f"Sum over the matched calls. {_WAIT}")
LONG_SUMMARY = column_set(
    COLLECTIVE, GROUP, SIZE, DTYPE, COLLECTIVES["in_nelems"], COLLECTIVES["out_nelems"], _IN_MB,
    statistics(
        ("sum", "mean", "median", "std", "min", "max"), key="duration_us", header="dur_{}",
        meaning="Duration of one rank's call, in which it also waits for the others.", unit="µs", number_format=US,
    ),
    WAIT_SUM, CALLS,
)  # fmt: skip
LONG = column_set(
    RANK, ID, GROUP, COLLECTIVE, SIZE, DTYPE,
    *(COLLECTIVES[k] for k in ("in_nelems", "out_nelems", "in_split", "out_split")), STREAM.renamed("stream"), STEP,
    _us("start_us", "ts", "Start on the first host's clock, from the earliest call."),
    _us("duration_us", "dur", "Duration, waiting included."),
    _us("wait_us", "wait_time", f"{_WAIT} Empty without a counterpart."),
    _us("transfer_us", "transfer_time", "Duration less waiting. Empty without a counterpart."),
    _us("exposed_us", "exposed_time", "Part of the duration in which the rank computed nothing."),
    _IN_MB, _OUT_MB,
)  # fmt: skip
THROUGHPUT = Column(
    key="throughput_gb_s", header="throughput (GB/s)",
    meaning="What all ranks sent over wall time; waiting and each rank's share for itself included.", unit=_GB_S,
    number_format=RATE,
)  # fmt: skip
WALL = _us("wall_us", "wall time", "From the earliest start to the latest end.")
TOTAL = _mb("total_mb", "Total sent (MB)", "Sum of all ranks' inputs.")
IMBALANCE = Column(
    key="size_imbalance", header="size_imbalance", meaning="Largest over mean input of a rank.", number_format="0.000"
)
_ALL2ALL_MEANS = tuple(
    Column(
        key=f"{column.key}_mean", header=f"{column.header}_mean", meaning=column.meaning, unit=column.unit,
        number_format=column.number_format, family=f"{column.header}_*", statistic="mean",
    )
    for column in (TOTAL, WALL, THROUGHPUT, IMBALANCE, SKEW)
)  # fmt: skip
ALL2ALL_SUMMARY = column_set(
    GROUP, SIZE, COLLECTIVE, DTYPE, _ALL2ALL_MEANS,
    Column(
        key="size_imbalance_max", header="size_imbalance_max", meaning=IMBALANCE.meaning, number_format="0.000",
        family="size_imbalance_*", statistic="max",
    ),
    CALLS,
)  # fmt: skip
ALL2ALL = column_set(
    ID, GROUP, SIZE, COLLECTIVE, DTYPE, PRESENT, TOTAL, WALL, LATENCY, SKEW, THROUGHPUT,
    Column(
        key="rank_gb_s_max", header="max rank throughput (GB/s)", meaning="Largest input over duration of a rank.",
        unit=_GB_S, number_format=RATE,
    ),
    Column(
        key="rank_gb_s_min", header="min rank throughput (GB/s)", meaning="Smallest input over duration of a rank.",
        unit=_GB_S, number_format=RATE,
    ),
    IMBALANCE, LAST,
)  # fmt: skip
HEAT_MAP = column_set(
    _name("src_rank", "src_rank", "Global rank that sends."),
    _name("dst_rank", "dst_rank", "Global rank that receives; a rank's share for itself is left out."),
    _mb("total_sent_mb", "total_sent", "Wire: by recorded split sizes, even where an all-to-all has none."),
    _mb("avg_sent_mb", "avg_sent", "Wire: mean over the calls."),
    _number("count", "count", "All-to-alls."),
)
_EFFECTIVE = "Expected Remote Data over all kernels' whole duration, waiting for the slowest rank included."
_TRUE = "over the token-moving kernels from the moment their last rank has started. Never HBM traffic."
EXCHANGE_RATES = (
    Column(
        key="effective_tb_s", header="Effective Interconnect TB/s", meaning=f"Wire: {_EFFECTIVE}", unit=_TB_S,
        number_format="#,##0.0000",
    ),
    Column(
        key="true_tb_s", header="True Interconnect TB/s", meaning=f"Wire: Expected Remote Data {_TRUE}", unit=_TB_S,
        number_format="#,##0.0000",
    ),
)  # fmt: skip
EXCHANGE_BYTES = (
    _number("rows", "Exchanged Rows", "Rows that travel or stay: every copy of a token counts."),
    Column(
        key="rows_from", header="Exchanged Rows From", width=32,
        meaning="Recorded, or the rows of the layer's combine: on one rank those that the dispatch receives, over "
        "all ranks of the group those that are sent.",
    ),
    _mb("wire_mb", "Interconnect Data (MB)", "Wire: every exchanged row, those for the own rank too."),
    _mb("remote_mb", "Expected Remote Data (MB)", "Wire: what leaves the rank; unknown without the group's size."),
    Column(
        key="remote_from", header="Remote Data From", width=32,
        meaning="Recorded split sizes or token counts, else even routing over the group.",
    ),
)  # fmt: skip
EXCHANGE_SUMMARY = column_set(
    NAME, GROUP, SIZE, RANK, CALLS, EXCHANGE_RATES, WAITING_SHARE, EXCHANGE_BYTES,
    _us("busy_us_mean", "kernel time_mean", "Busy time of one call's kernels, waiting included."),
    _us("wait_us_mean", "wait_time_mean", f"Over the call's kernels. {_WAIT}"),
    _us("transfer_us_mean", "transfer_time_mean", "Token-moving kernels, from their last rank's start."),
)  # fmt: skip
EXCHANGE_LONG = column_set(
    NAME, GROUP, SIZE, RANK, STEP, EXCHANGE_RATES, EXCHANGE_BYTES,
    _number("tokens", "tokens", "Rows that the op was given."),
    _number("hidden", "hidden", "Width of a row, in elements."),
    _number("kernels", "kernels", "Communication kernels of the call."),
    _us("busy_us", "kernel time", "Busy time of the call's kernels, waiting included."),
    _us("wait_us", "wait_time", f"Over the call's kernels. {_WAIT}"),
    _us("transfer_us", "transfer_time", "Token-moving kernels, from their last rank's start."),
    LAST,
)  # fmt: skip
OVERLAP = column_set(
    GROUP, COLLECTIVE, CALLS,
    _us("duration_us_sum", "dur_sum", "Durations of all ranks' calls; calls side by side count twice."),
    _us("exposed_us", "exposed_time_sum", "Part in which the rank computed nothing."),
    _percent("exposed_percent", "exposed (%)", "Share of the durations."),
    _us("hidden_us", "hidden_time_sum", "Part beside computation."),
    Column(
        key="hidden_by", header="hidden by", meaning="Computation that ran beside it, as shares of the durations.",
        width=60,
    ),
)  # fmt: skip
STEP_COST = column_set(
    STEP,
    _us("step_us", "step (µs)", "Median over the ranks."),
    _us("step_us_min", "step (µs)_min", "Shortest over the ranks."),
    _us("step_us_max", "step (µs)_max", "Longest over the ranks."),
    _name("slowest_rank", "slowest rank", "Rank that waited least for the others."),
    _us("slowest_wait_us", "its wait_time", "What it waited itself."),
    _us("others_wait_us", "others' wait_time_mean", "What the other ranks waited, mean."),
    _us("cost_us", "cost_us", "others' mean less its own: what the step gains at most if it were like the others."),
)
BUBBLES = column_set(
    _name("pipeline", "pipeline", "Ranks joined by sends and receives."),
    _name("stage", "stage", "Position among the pipeline's ranks."),
    RANK,
    CALLS.renamed("steps"),
    _us("step_us", "step (µs)", "Mean."),
    _us("compute_us", "computation (µs)", "Mean per step."),
    _us("p2p_exposed_us", "exposed send/recv (µs)", "Sends and receives beside which nothing computed."),
    _us("other_exposed_us", "other exposed (µs)", "Other communication and copies beside which nothing computed."),
    _us("idle_us", "idle (µs)", "Nothing ran."),
    _us(
        "bubble_us", "bubble (µs)", "Exposed sends and receives, and idle time. An upper bound: a host may be late too."
    ),
    _percent("bubble_percent", "bubble (%)", "Share of the steps."),
)

#: Every column set of this module by sheet, for the tests that hold for all columns.
RANK_SETS: Mapping[str, ColumnSet] = {
    "ranks": RANKS, "clocks": CLOCKS, "groups": GROUPS, "straggler_summary": STRAGGLERS,
    "nccl_summary_implicit_sync": IMPLICIT_SUMMARY, "nccl_summary_long": LONG_SUMMARY,
    "nccl_summary_all2allv": ALL2ALL_SUMMARY, "nccl_implicit_sync": IMPLICIT, "nccl_long": LONG,
    "nccl_all2allv": ALL2ALL, "nccl_all2allv_heatmap": HEAT_MAP, "ep_summary": EXCHANGE_SUMMARY,
    "ep_by_rank": EXCHANGE_SUMMARY, "ep_long": EXCHANGE_LONG, "overlap": OVERLAP, "step_cost": STEP_COST,
    "pipeline_bubbles": BUBBLES,
}  # fmt: skip
