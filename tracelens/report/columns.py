"""Every column of the project once: key, header, unit, number format, meaning. And the ``@sheet`` mark.

Frames of an analysis have keys in snake_case (``kernel_us_sum``); people see headers (``Kernel Time (µs)_sum``).
Headers follow what users of this kind of workbook know, so one quantity may go by a second name in another sheet: that
is ``Column.renamed``, not a second column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from tracelens.errors import UsageError
from tracelens.registry import mark

if TYPE_CHECKING:
    import pandas as pd

F = TypeVar("F", bound=Callable[..., Any])

#: How a column is shown beyond its number format.
Look = Literal["plain", "share", "of_limit"]

TEXT, COUNT, US, MS, MB, RATE, PERCENT = "@", "#,##0", "#,##0.00", "#,##0.000", "#,##0.000", "#,##0.000", "0.0"
#: An integer that names something rather than counts it.
IDENTIFIER = "0"
SPREAD = ("mean", "median", "std", "min", "max")
TOTALED = (*SPREAD, "sum")
_OVER = {
    "mean": "Mean over the calls.",
    "median": "Median over the calls.",
    "std": "Standard deviation over the calls (n - 1); empty for one call.",
    "min": "Smallest of the calls.",
    "max": "Largest of the calls.",
    "sum": "Sum over the calls.",
    "count": "Number of kernels.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. ``unit`` is printed in its note; ``width`` caps it, in characters.

    ``look``: ``share`` gets data bars, ``of_limit`` a color scale up to 100 % and red above. An ``optional`` column is
    left out of a sheet in which it would be empty (``empty_at_zero``: or zero throughout). ``family`` is the header
    without its statistic, under which the ``about`` sheet explains all of them in one line.
    """

    key: str
    header: str
    meaning: str
    unit: str = ""
    number_format: str = TEXT
    width: int = 28
    look: Look = "plain"
    optional: bool = False
    empty_at_zero: bool = False
    family: str = ""
    statistic: str = ""

    @property
    def is_text(self) -> bool:
        return self.number_format == TEXT

    @property
    def note(self) -> str:
        """What the comment on the header says."""
        parts = [self.meaning, _OVER.get(self.statistic, ""), f"Unit: {self.unit}." if self.unit else ""]
        return " ".join(part for part in parts if part)

    def renamed(self, header: str) -> Column:
        """The same quantity under the name it has in another sheet."""
        return replace(self, header=header, family=header.replace(self.statistic, "*") if self.statistic else header)


#: Column by key, in the order in which a sheet shows them.
ColumnSet = Mapping[str, Column]


def column_set(*columns: Column | Iterable[Column]) -> dict[str, Column]:
    """By key, in order; UsageError when two columns share a key or a header."""
    flat = [c for entry in columns for c in ((entry,) if isinstance(entry, Column) else entry)]
    by_key = {column.key: column for column in flat}
    if len(by_key) != len(flat) or len({column.header for column in flat}) != len(flat):
        raise UsageError(f"columns share a key or a header: {', '.join(sorted(c.header for c in flat))}")
    return by_key


def statistics(over: Iterable[str], *, key: str, header: str, meaning: str, **common: Any) -> tuple[Column, ...]:
    """One column per statistic; ``header`` has ``{}`` where its name stands."""
    return tuple(
        Column(
            key=f"{key}_{statistic}",
            header=header.format(statistic),
            meaning=meaning,
            family=header.format("*"),
            statistic=statistic,
            **common,
        )
        for statistic in over
    )


def column_for(key: str, columns: ColumnSet) -> Column:
    """The column of ``key``; one that shows the key itself where nothing says more (``param: M``, extensions)."""
    if key in columns:
        return columns[key]
    if key.startswith("param: "):
        return Column(key=key, header=key, meaning=_PARAMETER, number_format="General", width=24, family="param: *")
    return Column(key=key, header=key, meaning="Added by an extension.", number_format="General")


_PARAMETER = "A dimension or property that the perf model read from the recorded arguments."

NAME = Column(key="name", header="name", meaning="The op as the trace names it.", width=46)
CATEGORY = Column(
    key="category",
    header="op category",
    meaning="The perf model's family, else what the op's first kernel is.",
    width=18,
)
PROCESS = (
    Column(key="process_name", header="process_name", meaning="Process of the call.", width=14),
    Column(key="process_label", header="process_label", meaning="What the trace calls the process.", width=14),
    Column(key="thread_name", header="thread_name", meaning="Thread of the call.", width=20),
)
DIMS = Column(
    key="input_dims", header="Input Dims", meaning="Recorded shapes; () is a scalar or absent argument.", width=44
)
TYPES = Column(key="input_types", header="Input type", meaning="Recorded element types.", width=30)
STRIDES = Column(key="input_strides", header="Input Strides", meaning="Recorded strides, in elements.", width=30)
SCALARS = Column(
    key="concrete_inputs", header="Concrete Inputs", meaning="Recorded scalar arguments, as text.", width=30
)
ARGUMENTS = (DIMS, TYPES, STRIDES, SCALARS)
CALLS = Column(key="operation_count", header="operation_count", meaning="Number of calls.", number_format=COUNT)
EXAMPLE = Column(
    key="example_row",
    header="ex_UID",
    meaning="Position of one of the calls among the trace's complete events; trace.event(n) shows it in full.",
    number_format=IDENTIFIER,
)
KERNELS_BEHIND = (
    Column(
        key="kernel_details",
        header="kernel_details_summary",
        meaning="Kernels behind the row: name, stream, count, total and mean duration (µs).",
        width=48,
    ),
    Column(
        key="kernel_details_short",
        header="trunc_kernel_details",
        meaning="The longest of the kernels behind the row, names shortened.",
        width=48,
    ),
)
PERCENTAGES = (
    Column(
        key="percent",
        header="Percentage (%)",
        meaning="Share of the sheet's summed time.",
        unit="%",
        number_format=PERCENT,
        look="share",
    ),
    Column(
        key="cumulative_percent",
        header="Cumulative Percentage (%)",
        meaning="Share of this row and all above it.",
        unit="%",
        number_format=PERCENT,
    ),
)
OF_TOTAL = Column(
    key="percent_of_total",
    header="Percent of total time (%)",
    meaning="Kernel durations as a share of the window; streams overlap, so the column may sum to more than 100.",
    unit="%",
    number_format=PERCENT,
    look="share",
)
PARENT = Column(key="parent_op", header="Parent cpu_op", meaning="The op that launched the kernel.", width=40)
KERNEL = Column(key="kernel_name", header="Kernel name", meaning="The kernel as the trace names it.", width=70)
STREAM = Column(key="stream", header="Kernel stream", meaning="Device stream.", number_format=IDENTIFIER)

TIMELINE = column_set(
    Column(
        key="type",
        header="type",
        meaning="Part of the window. computation + exposed_comm + exposed_memcpy + idle = total; "
        "exposed: nothing before it in this list ran at the same time.",
        width=24,
    ),
    Column(key="time_ms", header="time ms", meaning="Interval union.", unit="ms", number_format=MS),
    Column(
        key="percent", header="percent", meaning="Share of total_time.", unit="%", number_format=PERCENT, look="share"
    ),
)

_DIRECT = "Busy time of the kernels that the op itself launched."
_SUBTREE = "Busy time of the kernels that the op or any op below it launched."

ACHIEVABLE = (
    Column(
        key="estimated_us",
        header="Estimated Time (µs)_first",
        meaning="What a good kernel should take, by the backend that --backend chose.",
        unit="µs",
        number_format=US,
        optional=True,
    ),
    Column(
        key="percent_of_achievable",
        header="Pct Achievable",
        meaning="Estimated time over mean measured kernel time. Above 100 the kernel beats the estimate.",
        unit="%",
        number_format=PERCENT,
        look="of_limit",
        optional=True,
    ),
    Column(key="estimated_by", header="estimated by", meaning="Which backend answered.", width=14, optional=True),
)
ESTIMATED_TOTAL = (
    Column(
        key="estimated_ms",
        header="Estimated Time (ms)",
        meaning="In all, of the calls in unified_perf_summary that the backend of --backend has an estimate for.",
        unit="ms",
        number_format=MS,
        optional=True,
    ),
    ACHIEVABLE[1],
)
BY_CATEGORY = column_set(
    CATEGORY,
    Column(key="count", header="Count", meaning="Number of calls that launched kernels.", number_format=COUNT),
    Column(key="direct_ms", header="total_direct_kernel_time_ms", meaning=_DIRECT, unit="ms", number_format=MS),
    PERCENTAGES,
    ESTIMATED_TOTAL,
)
DIRECT = statistics(
    TOTALED, key="direct_us", header="total_direct_kernel_time_{}", meaning=_DIRECT, unit="µs", number_format=US
)
SUBTREE = statistics(
    TOTALED, key="subtree_us", header="total_subtree_kernel_time_{}", meaning=_SUBTREE, unit="µs", number_format=US
)
BY_NAME = column_set(
    NAME,
    DIRECT[-1],
    SUBTREE[-1],
    BY_CATEGORY["direct_ms"],
    Column(key="subtree_ms", header="total_subtree_kernel_time_ms", meaning=_SUBTREE, unit="ms", number_format=MS),
    BY_CATEGORY["count"],
    Column(key="categories", header="Categories", meaning="Categories of the op's calls.", width=30),
    PERCENTAGES,
    ESTIMATED_TOTAL,
)
PLACES = (
    Column(
        key="is_recompute",
        header="is_recompute",
        meaning="Whether activation checkpointing ran these calls again, in the backward pass; such calls have rows of "
        "their own.",
        number_format="General",
        optional=True,
    ),
    Column(
        key="parent_module",
        header="parent_module",
        meaning="The nn.Modules round the example, outermost first; of a backward op those of its forward.",
        width=40,
        optional=True,
    ),
    Column(
        key="call_stack",
        header="call_stack",
        meaning="Python frames round the example, the innermost 12 first; of a backward op those of its forward.",
        width=60,
        optional=True,
    ),
)
UNIQUE_ARGUMENTS = column_set(
    NAME, CATEGORY, PROCESS, ARGUMENTS, CALLS, DIRECT, SUBTREE, EXAMPLE, KERNELS_BEHIND, PLACES, PERCENTAGES
)  # fmt: skip

GFLOPS = Column(
    key="gflops",
    header="GFLOPS",
    meaning="Arithmetic of one call: 1e9 floating-point operations, a fused multiply-add counts as two. Not a rate.",
    unit="1e9 operations",
    number_format=RATE,
)
HBM_MB = Column(
    key="hbm_mb",
    header="Data Moved (MB)",
    meaning="Least device-memory (HBM) traffic of one call: each operand read once, each result written once.",
    unit="MB (1e6 bytes)",
    number_format=MB,
    optional=True,
    empty_at_zero=True,
)
INTENSITY = Column(
    key="flops_per_byte",
    header="FLOPS/Byte",
    meaning="Arithmetic intensity: operations per byte of HBM traffic.",
    unit="operations per byte",
    number_format=US,
    optional=True,
)
SPEC = Column(
    key="compute_spec", header="Compute Spec", meaning="Engine and element type whose peak rate applies.", width=18
)
HBM_RATE = statistics(
    SPREAD,
    key="hbm_tb_s",
    header="TB/s_{}",
    meaning="HBM: Data Moved (MB) over the busy time of the call's kernels. Never interconnect traffic.",
    unit="TB/s (1e12 bytes per second), HBM",
    number_format=RATE,
    optional=True,
    empty_at_zero=True,
)
COMPUTE_RATE = statistics(
    SPREAD,
    key="tflops_s",
    header="TFLOPS/s_{}",
    meaning="GFLOPS over the busy time of the call's kernels.",
    unit="1e12 operations per second",
    number_format=RATE,
)
KERNEL_TIME = statistics(
    TOTALED,
    key="kernel_us",
    header="Kernel Time (µs)_{}",
    meaning="Busy time (interval union) of the kernels of one call.",
    unit="µs",
    number_format=US,
)
WIRE = (
    Column(
        key="wire_mb",
        header="Interconnect Data (MB)",
        meaning="Wire: bytes of one call; of a token exchange every copy of a token, those for the own rank too, as "
        "DeepEP's own tables count.",
        unit="MB (1e6 bytes)",
        number_format=MB,
        optional=True,
    ),
    *statistics(
        SPREAD,
        key="effective_interconnect_tb_s",
        header="Effective Interconnect TB/s_{}",
        meaning="Wire: bytes that leave the rank (of a token exchange Expected Remote Data) over the kernels' whole "
        "duration, in which a rank also waits for the slowest sender: the links did at least this. Never HBM traffic.",
        unit="TB/s (1e12 bytes per second), wire",
        number_format="#,##0.0000",
        optional=True,
    ),
)
EXCHANGE = (
    Column(
        key="expected_remote_mb",
        header="Expected Remote Data (MB)",
        meaning="Wire: the share of Interconnect Data (MB) that leaves the rank; an exchange's roofline is of this.",
        unit="MB (1e6 bytes)",
        number_format=MB,
        optional=True,
    ),
    Column(
        key="remote_from",
        header="Remote Data From",
        meaning="Where that share comes from: recorded split sizes or token counts, else what was assumed.",
        width=34,
        optional=True,
    ),
    Column(
        key="copies_per_token",
        header="Copies per Token",
        meaning="Rows exchanged per token of the rank's own: one per rank that it goes to. Mean of the calls.",
        number_format="0.00",
        optional=True,
    ),
    Column(
        key="rows_from",
        header="Exchanged Rows From",
        meaning="Where the number of copies comes from: the layer's combine, which returns a row per copy, else even "
        "routing by top-k, experts and ranks.",
        width=34,
        optional=True,
    ),
    Column(
        key="deepep_us",
        header="DeepEP Estimate (µs)",
        meaning="Time that DeepEP's kernels take for one call by the model fitted to their measurements, agreeing on "
        "counts included, in the device's standard node under even routing.",
        unit="µs",
        number_format=US,
        optional=True,
    ),
)
ROOFLINE = (
    Column(
        key="roofline_us",
        header="Roofline Time (µs)_first",
        meaning="Least time of one call at the device's achievable rates: the largest of compute, HBM and wire time "
        "and of the launch of its kernels. Empty where the FLOPs are not known.",
        unit="µs",
        number_format=US,
        optional=True,
    ),
    Column(
        key="roofline_bound",
        header="Roofline Bound",
        meaning="What the roofline time is limited by.",
        width=16,
        optional=True,
    ),
    *statistics(
        SPREAD,
        key="percent_of_roofline",
        header="Pct Roofline_{}",
        meaning="Roofline time over measured kernel time; the mean is of all calls together (a ratio of sums). "
        "Above 100 the kernel beats the best rates measured, or its bytes came from a cache (Served From).",
        unit="%",
        number_format=PERCENT,
        look="of_limit",
        optional=True,
    ),
    Column(
        key="percent_of_peak",
        header="Pct Peak",
        meaning="Time at data-sheet rates over mean measured kernel time. Above 100 the model or a figure is wrong.",
        unit="%",
        number_format=PERCENT,
        look="of_limit",
        optional=True,
    ),
    Column(
        key="served_from",
        header="Served From",
        meaning="The last-level cache, where a call is faster than HBM and its bytes fit in it (in part: the rest "
        "came from HBM).",
        width=16,
        optional=True,
    ),
    Column(key="backend", header="backend", meaning="What estimated the row.", width=14, optional=True),
)
_HOST = "From the op's start on the host to its end on the host; device time is Kernel Time (µs)."
HOST_TIME = (
    *statistics(
        ("sum", "mean", "std"), key="duration_us", header="{}_duration_us", meaning=_HOST, unit="µs", number_format=US
    ),
    *statistics(
        ("median", "min", "max"), key="duration_us", header="duration_us_{}", meaning=_HOST, unit="µs", number_format=US
    ),
)
UNIFIED = column_set(
    NAME, CATEGORY, PROCESS, ARGUMENTS, EXAMPLE, CALLS,
    HOST_TIME[0].renamed("total_duration_us"), HOST_TIME[1:3], GFLOPS, HBM_MB, INTENSITY, SPEC,
    HBM_RATE, COMPUTE_RATE, KERNEL_TIME, WIRE, EXCHANGE, ROOFLINE, ACHIEVABLE, HOST_TIME[3:],
    KERNELS_BEHIND,
    Column(key="perf_params", header="perf_params", meaning=_PARAMETER, width=40),
    Column(key="model", header="perf model", meaning="Class of the perf model.", width=20),
    Column(
        key="has_perf_model",
        header="has_perf_model",
        meaning="Whether the row's work is known.",
        number_format="General",
        width=12,
    ),
    Column(
        key="computed_in",
        header="Computed In",
        meaning="What the names of the kernels say that products run in, where the recorded type leaves it open.",
        width=12,
        optional=True,
    ),
    Column(
        key="kernels_per_call",
        header="Kernels per Call",
        meaning="Kernels, copies and memsets of one call, on average.",
        number_format="#,##0.0",
        optional=True,
    ),
    Column(
        key="launch_gap_us",
        header="Launch Gap (µs)",
        meaning="Median over the calls: time the device stood idle just before the call's first kernel.",
        unit="µs",
        number_format=US,
        optional=True,
    ),
    PLACES,
    Column(key="note", header="note", meaning="Why no perf model, or what the row is.", width=44, optional=True),
    PERCENTAGES,
)  # fmt: skip


def _first(column: Column) -> Column:
    return column.renamed(f"{column.header}_first")


FAMILY = column_set(
    NAME, _first(GFLOPS), _first(HBM_MB), _first(INTENSITY), HBM_RATE, COMPUTE_RATE,
    _first(WIRE[0]), WIRE[1:], *(_first(column) for column in EXCHANGE), SPEC, ROOFLINE, ACHIEVABLE, KERNEL_TIME,
    CALLS.renamed("name_count"), EXAMPLE.renamed("UID_first"),
    Column(
        key="nested",
        header="nested",
        meaning="TRUE: the call lies inside another modeled call, and its kernels are in both rows; "
        "sum over the FALSE rows.",
        number_format="General",
        width=10,
    ),
    CATEGORY, (_first(column) for column in (*PROCESS, *ARGUMENTS)),
    KERNELS_BEHIND[0].renamed("kernel_details__summarize_kernel_stats"), KERNELS_BEHIND[1],
)  # fmt: skip

KERNELS = column_set(
    Column(
        key="parent_category",
        header="Parent op category",
        meaning="Category of the op that launched the kernel.",
        width=20,
    ),
    PARENT, KERNEL, STREAM,
    statistics(
        ("sum",), key="kernel_us", header="Kernel duration (µs)_{}", meaning="Durations of the kernels.",
        unit="µs", number_format=US,
    ),
    statistics(
        ("count",), key="kernel_us", header="Kernel duration (µs)_{}", meaning="", number_format=COUNT
    ),
    statistics(
        ("mean", "min", "max"), key="kernel_us", header="Kernel duration (µs)_{}", meaning="Durations of the kernels.",
        unit="µs", number_format=US,
    ),
    Column(
        key="percent_of_kernels", header="Percent of kernels time (%)", meaning="Share of all kernel durations.",
        unit="%", number_format=PERCENT, look="share",
    ),
    OF_TOTAL,
)  # fmt: skip

HISTOGRAM = column_set(
    Column(key="bin_start_us", header="bin_start", meaning="Shortest duration.", unit="µs", number_format=US),
    Column(key="bin_end_us", header="bin_end", meaning="Longest duration.", unit="µs", number_format=US),
    Column(key="count", header="count", meaning="Kernels of such a duration.", number_format=COUNT),
)
_SHORT = "Kernels below the threshold for short ones (10 µs)."
SHORT_KERNELS = column_set(
    PARENT, DIMS.renamed("Input dims"), STRIDES.renamed("Input strides"), SCALARS, KERNEL,
    Column(key="short_kernel_count", header="Short Kernel count", meaning=_SHORT, number_format=COUNT),
    statistics(
        ("sum", "mean"), key="short_kernel_us", header="Short Kernel duration (µs) {}", meaning=_SHORT, unit="µs",
        number_format=US,
    ),
    OF_TOTAL.renamed("Short Kernel duration (µs) percent of total time"),
)  # fmt: skip

COLLECTIVES = column_set(
    Column(key="rank", header="rank", meaning="Rank whose trace this is.", number_format=IDENTIFIER),
    Column(key="group_name", header="Process Group Name", meaning="As recorded.", width=20),
    Column(key="group_ranks", header="Process Group Ranks", meaning="As recorded.", width=26),
    Column(key="collective", header="Collective name", meaning="As recorded.", width=24),
    Column(key="group_size", header="Group size", meaning="Number of ranks.", number_format=IDENTIFIER),
    Column(key="dtype", header="dtype", meaning="Element type.", width=14),
    Column(key="in_nelems", header="In msg nelems", meaning="Elements this rank sends.", number_format=COUNT),
    Column(key="out_nelems", header="Out msg nelems", meaning="Elements this rank receives.", number_format=COUNT),
    Column(key="in_split", header="In split size", meaning="Elements to each rank; [] is even.", width=26),
    Column(key="out_split", header="Out split size", meaning="Elements from each rank; [] is even.", width=26),
    STREAM.renamed("stream"),
    Column(
        key="in_mb", header="In msg size (MB)_first", meaning="Wire: bytes this rank sends.", unit="MB (1e6 bytes)",
        number_format=MB,
    ),
    Column(
        key="out_mb", header="Out msg size (MB)_first", meaning="Wire: bytes this rank receives.",
        unit="MB (1e6 bytes)", number_format=MB,
    ),
    Column(
        key="remote_mb", header="Remote Data (MB)", unit="MB (1e6 bytes)", number_format=MB, optional=True,
        meaning="Wire: of an all-to-all's bytes, those for other ranks.",
    ),
    Column(
        key="remote_from", header="Remote Data From", meaning="The split sizes that say so; even split: [].",
        width=18, optional=True,
    ),
    statistics(
        ("sum", "mean", "std", "min", "max"), key="duration_us", header="dur_{}",
        meaning="Duration of the kernel, in which the rank also waits for the others.", unit="µs", number_format=US,
    ),
    CALLS,
    Column(
        key="bus_gb_s_mean", header="Bus GB/s_mean", unit="GB/s", number_format=RATE,
        meaning="Bus bandwidth as nccl-tests counts it, over the mean duration, waiting included.",
    ),
    Column(
        key="bus_gb_s_min", header="Bus GB/s_of dur_min", unit="GB/s", number_format=RATE,
        meaning="The same over the shortest duration, with the least waiting.",
    ),
    Column(
        key="sizes_from", header="Sizes From", width=30, optional=True,
        meaning="Where sizes are from that the collective's own metadata does not hold.",
    ),
    ACHIEVABLE,
)  # fmt: skip

STEPS = column_set(
    Column(key="step", header="step", meaning="Number that the trace gives the step.", number_format=IDENTIFIER),
    Column(key="start_us", header="start (µs)", meaning="In the trace's own clock.", unit="µs", number_format=US),
    Column(
        key="duration_us", header="duration (µs)", unit="µs", number_format=US,
        meaning="From its beginning to the next step's, the last to the end of its host code and device work.",
    ),
    Column(
        key="busy_us", header="busy (µs)", unit="µs", number_format=US,
        meaning="Union of the device events that were launched in it.",
    ),
    Column(key="idle_us", header="idle (µs)", meaning="The rest of its duration.", unit="µs", number_format=US),
    Column(
        key="device_events", header="device events", number_format=COUNT,
        meaning="Kernels and copies that were launched in it.",
    ),
    Column(
        key="complete", header="complete", meaning="FALSE: the recording ended inside it.", number_format="General",
        width=10,
    ),
    Column(
        key="begins_with", header="begins with", number_format="General", width=20,
        meaning="host: its first line of code. device: the host ran ahead, and the step begins when the device has "
        "finished earlier work. before the first step: work that was in the queue as recording began, in no step.",
    ),
    Column(
        key="host_period_us", header="host period (µs)", unit="µs", number_format=US,
        meaning="From the start of its annotation to the next step's, of the last to the end of what it launched.",
    ),
    Column(
        key="device_period_us", header="device period (µs)", unit="µs", number_format=US,
        meaning="From its first kernel to the next step's, of the last to its end, on the stream with most events.",
    ),
    Column(
        key="outside_us", header="beside neighbors (µs)", unit="µs", number_format=US,
        meaning="Its device work on other streams while a neighboring step had the device; in no busy time.",
    ),
    Column(
        key="left_out_us", header="left out (µs)", unit="µs", number_format=US,
        meaning="Idle time of a first step whose host waited for work from before recording, until the queue was full "
        "again; not in the duration.",
    ),
)  # fmt: skip

_CPU_TOTAL = "From the op's start on the host to its end, what it called included."
_CPU_SELF = "Time in the op itself, without the ops it called on its thread."
CPU_BY_NAME = column_set(
    NAME, CATEGORY, BY_CATEGORY["count"].renamed("Count"),
    Column(key="self_us", header="self CPU time (µs)", meaning=_CPU_SELF, unit="µs", number_format=US),
    Column(key="total_us", header="total CPU time (µs)", meaning=_CPU_TOTAL, unit="µs", number_format=US),
    PERCENTAGES,
)  # fmt: skip
CPU_UNIQUE_ARGUMENTS = column_set(
    NAME, CATEGORY, PROCESS, ARGUMENTS, CALLS,
    statistics(
        TOTALED, key="self_us", header="self CPU time (µs)_{}", meaning=_CPU_SELF, unit="µs", number_format=US
    ),
    statistics(
        TOTALED, key="total_us", header="total CPU time (µs)_{}", meaning=_CPU_TOTAL, unit="µs", number_format=US
    ),
    EXAMPLE, GFLOPS,
    Column(
        key="tflops_s", header="CPU TFLOPS/s", meaning="GFLOPS over the op's mean total CPU time.",
        unit="1e12 operations per second", number_format=RATE,
    ),
    UNIFIED["has_perf_model"], PERCENTAGES,
)  # fmt: skip

#: Every column set, for the tests that hold for all columns.
ALL_SETS: Mapping[str, ColumnSet] = {
    "gpu_timeline": TIMELINE,
    "ops_summary_by_category": BY_CATEGORY,
    "ops_summary": BY_NAME,
    "ops_unique_args": UNIQUE_ARGUMENTS,
    "unified_perf_summary": UNIFIED,
    "family": FAMILY,
    "kernel_summary": KERNELS,
    "short_kernel_histogram": HISTOGRAM,
    "short_kernels_summary": SHORT_KERNELS,
    "coll_analysis": COLLECTIVES,
    "steps": STEPS,
    "cpu_ops_summary": CPU_BY_NAME,
    "cpu_ops_unique_args": CPU_UNIQUE_ARGUMENTS,
}


class Analyzed(Protocol):
    """What an analysis hands to a report: frames by sheet name, and frames by perf-model family."""

    @property
    def frames(self) -> Mapping[str, pd.DataFrame]: ...
    @property
    def families(self) -> Mapping[str, pd.DataFrame]: ...


#: Where sheets without a place of their own go: after the families.
LAST = 1000


def sheet(title: str, *, columns: ColumnSet | None = None, order: int = LAST) -> Callable[[F], F]:
    """Marks ``function(result) -> DataFrame | None`` as the sheet ``title``; None or no rows leaves the sheet out.

    ``result`` is what the analysis gives (``result.frames["unified_perf_summary"]``, ``result.families["GEMM"]``).
    The function's docstring says what a row is. ``columns`` gives keys their headers and order; a key that it does
    not have is shown as it is, keys that begin with ``_`` are not shown. Sheets stand by ``order``, then title; the
    families stand at 100.
    """
    return mark("sheet", title, columns=columns or UNIFIED, order=order)
