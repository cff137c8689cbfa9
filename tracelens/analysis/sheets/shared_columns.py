"""Columns that several sheets show, each declared once."""

from __future__ import annotations

from tracelens.schema import (
    MB,
    SPREAD,
    TOTALED,
    US,
    Column,
    count,
    flag,
    identifier,
    mb,
    ms,
    number,
    percent,
    statistics,
    text,
    us,
)

NAME = text("name", "name", "Name of the op in the trace.", 46)
CATEGORY = text("category", "op category", "The perf model's family, else what the op's first kernel is.", 18)
PROCESS = (
    text("process_name", "process_name", "Process of the call.", 14),
    text("process_label", "process_label", "Label of the process in the trace.", 14),
    text("thread_name", "thread_name", "Thread of the call.", 20),
)
DIMS = text("input_dims", "Input Dims", "Recorded shapes; () is a scalar or absent argument. Here and below *: not "
            "the same in all calls of the row.", 44)  # fmt: skip
TYPES = text("input_types", "Input type", "Recorded element types.", 30)
STRIDES = text("input_strides", "Input Strides", "Recorded strides, in elements.", 30)
SCALARS = text("concrete_inputs", "Concrete Inputs", "Recorded scalar arguments, as text.", 30)
ARGUMENTS = (DIMS, TYPES, STRIDES, SCALARS)
CALLS = count("operation_count", "operation_count", "Number of calls.")
EXAMPLE = identifier(
    "example_row",
    "ex_UID",
    "Position of one of the calls among the trace's complete events; trace.event(n) shows it in full.",
)
KERNELS_BEHIND = (
    text(
        "kernel_details",
        "kernel_details_summary",
        "Kernels behind the row: name, stream, count, total and mean duration (µs).",
        48,
    ),
    text(
        "kernel_details_short",
        "trunc_kernel_details",
        "The longest of the kernels behind the row, names shortened.",
        48,
    ),
)
PERCENTAGES = (
    percent("percent", "Percentage (%)", "Share of the sheet's summed time."),
    percent("cumulative_percent", "Cumulative Percentage (%)", "Share of this row and all above it.", look="plain"),
)
OF_TOTAL = percent(
    "percent_of_total",
    "Percent of total time (%)",
    "Kernel durations as a share of the window; streams overlap, so the column may sum to more than 100.",
)
PARENT = text("parent_op", "Parent cpu_op", "The op that launched the kernel.", 40)
KERNEL = text("kernel_name", "Kernel name", "Name of the kernel in the trace.", 70)
STREAM = identifier("stream", "Kernel stream", "Device stream.")

LAUNCHING_CALLS = count("count", "Count", "Number of calls that launched kernels.")
_DIRECT = "Busy time of the kernels that the op itself launched."
_SUBTREE = "Busy time of the kernels that the op or any op below it launched."
DIRECT_MS = ms("direct_ms", "total_direct_kernel_time_ms", _DIRECT)
SUBTREE_MS = ms("subtree_ms", "total_subtree_kernel_time_ms", _SUBTREE)
DIRECT = statistics(TOTALED, us("direct_us", "total_direct_kernel_time_{}", _DIRECT))
SUBTREE = statistics(TOTALED, us("subtree_us", "total_subtree_kernel_time_{}", _SUBTREE))
PLACES = (
    flag(
        "is_recompute",
        "is_recompute",
        "Whether activation checkpointing ran these calls again, in the backward pass; such calls have rows of "
        "their own.",
        optional=True,
    ),
    text(
        "parent_module",
        "parent_module",
        "The nn.Modules around the example, outermost first; of a backward op those of its forward.",
        40,
        optional=True,
    ),
    text(
        "call_stack",
        "call_stack",
        "Python frames around the example, the innermost 12 first; of a backward op those of its forward.",
        60,
        optional=True,
    ),
)
HAS_PERF_MODEL = flag("has_perf_model", "has_perf_model", "Whether the row's work is known.", width=12)

ACHIEVABLE = (
    us(
        "estimated_us",
        "Estimated Time (µs)_first",
        "Achievable time of one call, by the backend that --backend chose.",
        optional=True,
    ),
    percent(
        "percent_of_achievable",
        "Pct Achievable",
        "Estimated time over mean measured kernel time. Above 100 the kernel is faster than the estimate.",
        look="of_limit",
        optional=True,
    ),
    text("estimated_by", "estimated by", "Backend that made the estimate.", 14, optional=True),
)
ESTIMATED_TOTAL = (
    ms(
        "estimated_ms",
        "Estimated Time (ms)",
        "Total over the calls in unified_perf_summary that the backend of --backend has an estimate for.",
        optional=True,
    ),
    ACHIEVABLE[1],
)

GFLOPS = number(
    "gflops",
    "GFLOPS",
    "Arithmetic of one call: 1e9 floating-point operations, a fused multiply-add counts as two. Not a rate.",
    unit="1e9 operations",
)
HBM_MB = mb(
    "hbm_mb",
    "Data Moved (MB)",
    "Least device-memory (HBM) traffic of one call: each operand read once, each result written once.",
    optional=True,
    empty_at_zero=True,
)
INTENSITY = number(
    "flops_per_byte",
    "FLOPS/Byte",
    "Arithmetic intensity: operations per byte of HBM traffic.",
    US,
    "operations per byte",
    optional=True,
)
SPEC = text("compute_spec", "Compute Spec", "Engine and element type whose peak rate applies.", 18)
HBM_RATE = statistics(
    SPREAD,
    number(
        "hbm_tb_s",
        "TB/s_{}",
        "HBM: Data Moved (MB) over the busy time of the call's kernels. Never interconnect traffic.",
        unit="TB/s (1e12 bytes per second), HBM",
        optional=True,
        empty_at_zero=True,
    ),
)
COMPUTE_RATE = statistics(
    SPREAD,
    number(
        "tflops_s", "TFLOPS/s_{}", "GFLOPS over the busy time of the call's kernels.", unit="1e12 operations per second"
    ),
)
KERNEL_TIME = statistics(
    TOTALED, us("kernel_us", "Kernel Time (µs)_{}", "Busy time (interval union) of the kernels of one call.")
)
WIRE = (
    mb(
        "wire_mb",
        "Interconnect Data (MB)",
        "Wire: bytes of one call; of a token exchange every copy of a token, including those for the own rank, "
        "as DeepEP's own tables count.",
        optional=True,
    ),
    *statistics(
        SPREAD,
        number(
            "effective_interconnect_tb_s",
            "Effective Interconnect TB/s_{}",
            "Wire: bytes that leave the rank (of a token exchange Expected Remote Data) over the kernels' whole "
            "duration, in which a rank also waits for the slowest sender: a lower bound of what the links achieved. "
            "Of Interconnect Data where Remote Data From says every row. Never HBM traffic.",
            "#,##0.0000",
            "TB/s (1e12 bytes per second), wire",
            optional=True,
        ),
    ),
)
EXCHANGE = (
    mb(
        "expected_remote_mb",
        "Expected Remote Data (MB)",
        "Wire: the share of Interconnect Data (MB) that leaves the rank; the roofline of an exchange uses it.",
        optional=True,
    ),
    text(
        "remote_from",
        "Remote Data From",
        "Where that share comes from: recorded split sizes or token counts, else what was assumed. Every row: nothing "
        "says which share leaves the rank, and the effective rate is of all rows, at most what left.",
        34,
        optional=True,
    ),
    number(
        "copies_per_token",
        "Copies per Token",
        "Rows exchanged per own token: one per destination rank. Mean of the calls.",
        "0.00",
        optional=True,
    ),
    text(
        "rows_from",
        "Exchanged Rows From",
        "Where the number of copies comes from: the layer's combine, which returns a row per copy, else even "
        "routing by top-k, experts and ranks.",
        34,
        optional=True,
    ),
    us(
        "deepep_us",
        "DeepEP Estimate (µs)",
        "Time that DeepEP's kernels take for one call by the model fitted to their measurements, including the "
        "exchange of counts, in the device's standard node under even routing.",
        optional=True,
    ),
)
ROOFLINE = (
    us(
        "roofline_us",
        "Roofline Time (µs)_first",
        "Least time of one call at the device's achievable rates: the largest of compute, HBM and wire time "
        "and of the launch of its kernels. Empty where the FLOPs are not known.",
        optional=True,
    ),
    text("roofline_bound", "Roofline Bound", "What the roofline time is limited by.", 16, optional=True),
    *statistics(
        SPREAD,
        percent(
            "percent_of_roofline",
            "Pct Roofline_{}",
            "Roofline time over measured kernel time; the mean is of all calls together (a ratio of sums). Above 100 "
            "the kernel is faster than the best measured rates, or its bytes came from a cache (Served From).",
            look="of_limit",
            optional=True,
        ),
    ),
    percent(
        "percent_of_peak",
        "Pct Peak",
        "Time at data-sheet rates over mean measured kernel time. Above 100 the perf model or a device figure is "
        "wrong.",
        look="of_limit",
        optional=True,
    ),
    text(
        "served_from",
        "Served From",
        "The last-level cache, where a call is faster than HBM and its bytes fit in it (in part: the rest "
        "came from HBM).",
        16,
        optional=True,
    ),
    text("backend", "backend", "Backend that estimated the row.", 14, optional=True),
    text(
        "work_at_most",
        "Work At Most",
        "Why FLOPs or bytes are an upper bound: rates of the row are at most, shares above 100 are left out, and "
        "the single figures of the report leave the row out.",
        34,
        optional=True,
    ),
)

START = "Time since the trace's first event."
DURATIONS = "Durations of the device events, added up."
STEP_DURATION = "As in the sheet steps: from its start to the next step's; the last to its own end."
COMPLETE = flag("complete", "complete", "FALSE: the recording ended inside it.", width=10)
CAUSE = text(
    "cause",
    "cause",
    "Why the GPU was idle. While its queue was empty, by what the launching thread was doing: launch-bound "
    "(in ops and launches), first-time loading (of a kernel, library or context), allocator, compilation, "
    "Python garbage collection, blocking copy or synchronization, data loading, communication on the host, "
    "waiting for requests or the scheduler (frames of a serving engine, or a wait for a socket), graph capture, "
    "profiler overhead, Python or other host work. While something was in the queue: event "
    "wait, another rank, copy engine busy, stream dependency, work from before recording (for the first kernel of "
    "a stream), between queued kernels, launch latency; device wait, cause not recorded: longer than launches take, "
    "and nothing recorded says why. Unknown: the launch was not recorded.",
    32,
)
PATH_KIND = text(
    "kind",
    "kind",
    "Kind of work on the path. idle: the GPU was idle, for the cause in the sheet idle_causes. GPU busy: the path "
    "waited while something else ran, for another stream, a launch, the return of a synchronization or the next "
    "queued kernel, no longer than ready work usually takes to start; longer waits are not on the path.",
    30,
)
HELD = "In use on the whole device, according to the allocator."
RESERVED = "Reserved by the allocator, used or not."


def memory_mb(key: str, header: str, meaning: str) -> Column:
    """A column of amounts of memory."""
    return Column(key=key, header=header, meaning=meaning, unit="1e6 bytes", number_format=MB)
