"""Columns that several sheets show, each declared once."""

from __future__ import annotations

from tracelens.schema import (
    MB,
    SPREAD,
    TOTALED,
    US,
    TableColumn,
    count,
    flag,
    identifier,
    mb,
    number,
    percent,
    statistics,
    text,
    us,
)

NAME = text("name", "Name of the op in the trace.", width=46)
CATEGORY = text("category", "The perf model's family, else what the op's first kernel is.", width=18)
PROCESS = (
    text("process_name", "Process of the call.", width=14),
    text("process_label", "Label of the process in the trace.", width=14),
    text("thread_name", "Thread of the call.", width=20),
)
DIMS = text("input_dims", "Recorded shapes; () is a scalar or absent argument. Here and below *: not "
            "the same in all calls of the row.", width=44)  # fmt: skip
TYPES = text("input_types", "Recorded element types.", width=30)
STRIDES = text("input_strides", "Recorded strides, in elements.", width=30)
SCALARS = text("concrete_inputs", "Recorded scalar arguments, as text.", width=30)
ARGUMENTS = (DIMS, TYPES, STRIDES, SCALARS)
CALLS = count("operation_count", "Number of calls.")
EXAMPLE = identifier(
    "example_row",
    "Position of one of the calls among the trace's complete events; trace.event(n) shows it in full.",
)
KERNELS_BEHIND = (
    text("kernel_details", "Kernels behind the row: name, stream, count, total and mean duration (µs).", width=48),
    text("kernel_details_short", "The longest of the kernels behind the row, names shortened.", width=48),
)
PERCENTAGES = (
    percent("percent", "Share of the sheet's summed time."),
    percent("cumulative_percent", "Share of this row and all above it.", look="plain"),
)
OF_TOTAL = percent(
    "percent_of_window",
    "Kernel durations as a share of the window; streams overlap, so the column may sum to more than 100.",
)
PARENT = text("parent_op", "The op that launched the kernel.", width=40)
KERNEL = text("kernel_name", "Name of the kernel in the trace.", width=70)
STREAM = identifier("stream", "Device stream.")

_DIRECT = "Busy time of the kernels that the op itself launched."
_SUBTREE = "Busy time of the kernels that the op or any op below it launched."
DIRECT = statistics(TOTALED, us("direct_us", _DIRECT))
SUBTREE = statistics(TOTALED, us("subtree_us", _SUBTREE))
PLACES = (
    flag(
        "is_recompute",
        "Whether activation checkpointing ran these calls again, in the backward pass; such calls have rows of "
        "their own.",
        optional=True,
    ),
    text(
        "parent_module",
        "The nn.Modules around the example, outermost first; of a backward op those of its forward.",
        width=40,
        optional=True,
    ),
    text(
        "call_stack",
        "Python frames around the example, the innermost 12 first; of a backward op those of its forward.",
        width=60,
        optional=True,
    ),
)
HAS_PERF_MODEL = flag("has_perf_model", "Whether the row's work is known.", width=12)

ACHIEVABLE = (
    us("estimated_us", "Achievable time of one call, by the backend that --backend chose.", optional=True),
    percent(
        "percent_of_achievable",
        "Estimated time over mean measured kernel time. Above 100 the kernel is faster than the estimate.",
        look="of_limit",
        optional=True,
    ),
    text("estimated_by", "Backend that made the estimate.", width=14, optional=True),
)
ESTIMATED_TOTAL = (
    us(
        "estimated_us_sum",
        "Total over the calls in unified_perf_summary that the backend of --backend has an estimate for.",
        optional=True,
    ),
    ACHIEVABLE[1],
)

GFLOPS = number(
    "gflops",
    "Arithmetic of one call: 1e9 floating-point operations, a fused multiply-add counts as two. Not a rate.",
    unit="1e9 operations",
)
HBM_MB = mb(
    "hbm_mb",
    "Least device-memory (HBM) traffic of one call: each operand read once, each result written once.",
    optional=True,
    empty_at_zero=True,
)
INTENSITY = number(
    "flops_per_byte",
    "Arithmetic intensity: operations per byte of HBM traffic.",
    shape=US,
    unit="operations per byte",
    optional=True,
)
SPEC = text("compute_spec", "Engine and element type whose peak rate applies.", width=18)
HBM_RATE = statistics(
    SPREAD,
    number(
        "hbm_tb_s",
        "HBM: hbm_mb over the busy time of the call's kernels. Never interconnect traffic.",
        unit="TB/s (1e12 bytes per second), HBM",
        optional=True,
        empty_at_zero=True,
    ),
)
COMPUTE_RATE = statistics(
    SPREAD,
    number("tflops_s", "Arithmetic over the busy time of the call's kernels.", unit="1e12 operations per second"),
)
KERNEL_TIME = statistics(TOTALED, us("kernel_us", "Busy time (interval union) of the kernels of one call."))
WIRE = (
    mb(
        "wire_mb",
        "Wire: bytes of one call; of a token exchange every copy of a token, including those for the own rank, "
        "as DeepEP's own tables count.",
        optional=True,
    ),
    *statistics(
        SPREAD,
        number(
            "effective_interconnect_tb_s",
            "Wire: bytes that leave the rank (of a token exchange expected_remote_mb) over the kernels' whole "
            "duration, in which a rank also waits for the slowest sender: a lower bound of what the links achieved. "
            "Of wire_mb where remote_from says every row. Never HBM traffic.",
            shape="#,##0.0000",
            unit="TB/s (1e12 bytes per second), wire",
            optional=True,
        ),
    ),
)
EXCHANGE = (
    mb(
        "expected_remote_mb",
        "Wire: the share of wire_mb that leaves the rank; the roofline of an exchange uses it.",
        optional=True,
    ),
    text(
        "remote_from",
        "Where that share comes from: recorded split sizes or token counts, else what was assumed. Every row: nothing "
        "says which share leaves the rank, and the effective rate is of all rows, at most what left.",
        width=34,
        optional=True,
    ),
    number(
        "copies_per_token",
        "Rows exchanged per own token: one per destination rank. Mean of the calls.",
        shape="0.00",
        optional=True,
    ),
    text(
        "rows_from",
        "Where the number of copies comes from: the layer's combine, which returns a row per copy, else even "
        "routing by top-k, experts and ranks.",
        width=34,
        optional=True,
    ),
    us(
        "deepep_us",
        "Time that DeepEP's kernels take for one call by the model fitted to their measurements, including the "
        "exchange of counts, in the device's standard node under even routing.",
        optional=True,
    ),
)
ROOFLINE = (
    us(
        "roofline_us",
        "Least time of one call at the device's achievable rates: the largest of compute, HBM and wire time "
        "and of the launch of its kernels. Empty where the FLOPs are not known.",
        optional=True,
    ),
    text("roofline_bound", "What the roofline time is limited by.", width=16, optional=True),
    *statistics(
        SPREAD,
        percent(
            "percent_of_roofline",
            "Roofline time over measured kernel time; the mean is of all calls together (a ratio of sums). Above 100 "
            "the kernel is faster than the best measured rates, or its bytes came from a cache (served_from).",
            look="of_limit",
            optional=True,
        ),
    ),
    percent(
        "percent_of_peak",
        "Time at data-sheet rates over mean measured kernel time. Above 100 the perf model or a device figure is "
        "wrong.",
        look="of_limit",
        optional=True,
    ),
    text(
        "served_from",
        "The last-level cache, where a call is faster than HBM and its bytes fit in it (in part: the rest "
        "came from HBM).",
        width=16,
        optional=True,
    ),
    text("backend", "Backend that estimated the row.", width=14, optional=True),
    text(
        "work_at_most",
        "Why FLOPs or bytes are an upper bound: rates of the row are at most, shares above 100 are left out, and "
        "the single figures of the report leave the row out.",
        width=34,
        optional=True,
    ),
)

START = "Time since the trace's first event."
DURATIONS = "Durations of the device events, added up."
STEP_DURATION = "As in the sheet steps: from its start to the next step's; the last to its own end."
COMPLETE = flag("complete", "FALSE: the recording ended inside it.", width=10)
CAUSE = text(
    "cause",
    "Why the GPU was idle. While its queue was empty, by what the launching thread was doing: launch-bound "
    "(in ops and launches), first-time loading (of a kernel, library or context), allocator, compilation, "
    "Python garbage collection, blocking copy or synchronization, data loading, communication on the host, "
    "waiting for requests or the scheduler (frames of a serving engine, or a wait for a socket), graph capture, "
    "profiler overhead, Python or other host work. While something was in the queue: event "
    "wait, another rank, copy engine busy, stream dependency, work from before recording (for the first kernel of "
    "a stream), between queued kernels, launch latency; device wait, cause not recorded: longer than launches take, "
    "and nothing recorded says why. Unknown: the launch was not recorded.",
    width=32,
)
PATH_KIND = text(
    "kind",
    "Kind of work on the path. idle: the GPU was idle, for the cause in the sheet idle_causes. GPU busy: the path "
    "waited while something else ran, for another stream, a launch, the return of a synchronization or the next "
    "queued kernel, no longer than ready work usually takes to start; longer waits are not on the path.",
    width=30,
)
HELD = "In use on the whole device, according to the allocator."
RESERVED = "Reserved by the allocator, used or not."


def memory_mb(key: str, meaning: str) -> TableColumn:
    """A column of amounts of memory."""
    return TableColumn(key=key, meaning=meaning, unit="1e6 bytes", number_format=MB)
