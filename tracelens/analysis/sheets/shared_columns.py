"""Columns that several sheets show, each declared once."""

from __future__ import annotations

from tracelens.schema import SPREAD, TOTALED, US, count, flag, identifier, mb, number, percent, statistics, text, us

NAME = text("name", "Name of the op in the trace.", width=46)
CATEGORY = text("category", "Family of the perf model, else the kind of the first kernel.", width=18)
PROCESS = (
    text("process_name", "Process of the call.", width=14),
    text("process_label", "Label of the process in the trace.", width=14),
    text("thread_name", "Thread of the call.", width=20),
)
DIMS = text(
    "input_dims", "Shapes of the inputs; () is a scalar or absent argument, * differs between the calls.", width=44
)
TYPES = text("input_types", "Element types of the inputs.", width=30)
STRIDES = text("input_strides", "Strides of the inputs, in elements.", width=30)
SCALARS = text("concrete_inputs", "Scalar arguments, as text.", width=30)
ARGUMENTS = (DIMS, TYPES, STRIDES, SCALARS)
CALLS = count("operation_count", "Number of calls.")
EXAMPLE = identifier(
    "example_row", "Position of an example call among the complete events of the trace; trace.event(n) shows it."
)
KERNELS_BEHIND = (
    text("kernel_details", "Kernels of the row: name, stream, count, total and mean duration (µs).", width=48),
    text("kernel_details_short", "Kernels with most time, names shortened.", width=48),
)
PERCENTAGES = (
    percent("percent", "Share of the total of this sheet."),
    percent("cumulative_percent", "Share of this row and all rows above.", look="plain"),
)
OF_TOTAL = percent(
    "percent_of_window", "Kernel time / time of the window. Streams overlap: the column may add up to more than 100."
)
PARENT = text("parent_op", "Op that launched the kernel.", width=40)
KERNEL = text("kernel_name", "Name of the kernel in the trace.", width=70)
STREAM = identifier("stream", "Device stream.")

_DIRECT = "Busy time of kernels that the op itself launched."
_SUBTREE = "Busy time of kernels that the op, or an op inside it, launched."
DIRECT = statistics(TOTALED, us("direct_us", _DIRECT))
SUBTREE = statistics(TOTALED, us("subtree_us", _SUBTREE))
PLACES = (
    flag("is_recompute", "TRUE: activation checkpointing repeated these calls in the backward pass.", optional=True),
    text(
        "parent_module",
        "nn.Modules around the example, outermost first; a backward op has those of its forward op.",
        width=40,
        optional=True,
    ),
    text(
        "call_stack",
        "Python frames around the example, innermost 12 first; a backward op has those of its forward op.",
        width=60,
        optional=True,
    ),
)
HAS_PERF_MODEL = flag("has_perf_model", "TRUE: FLOPs or bytes are known.", width=12)

ACHIEVABLE = (
    us("estimated_us", "Achievable time per call, from the cost model that --backend names.", optional=True),
    percent(
        "percent_of_achievable",
        "Estimated time / mean kernel time. Above 100 the kernel beats the estimate.",
        look="of_limit",
        optional=True,
    ),
    text("estimated_by", "Cost model behind the estimate.", width=14, optional=True),
)
ESTIMATED_TOTAL = (
    us(
        "estimated_us_sum",
        "Sum of the estimated times of the calls for which the cost model of --backend has an estimate.",
        optional=True,
    ),
    ACHIEVABLE[1],
)

GFLOPS = number(
    "gflops", "Floating-point operations per call; a fused multiply-add counts as two. Not a rate.", unit="GFLOP"
)
HBM_MB = mb(
    "hbm_mb",
    "Least HBM traffic per call: each operand read once, each result written once.",
    optional=True,
    empty_at_zero=True,
)
INTENSITY = number(
    "flops_per_byte", "Floating-point operations per byte of HBM traffic.", shape=US, unit="FLOP/byte", optional=True
)
SPEC = text("compute_spec", "Compute unit and element type whose peak rate applies.", width=18)
HBM_RATE = statistics(
    SPREAD,
    number("hbm_tb_s", "HBM data moved / busy time of the kernels.", unit="TB/s", optional=True, empty_at_zero=True),
)
COMPUTE_RATE = statistics(SPREAD, number("tflops_s", "Work / busy time of the kernels.", unit="TFLOPS/s"))
KERNEL_TIME = statistics(TOTALED, us("kernel_us", "Busy time of the kernels of one call; overlaps count once."))
WIRE = (
    mb(
        "wire_mb",
        "Bytes per call over the interconnect. A token exchange counts every copy of a token, as DeepEP does, also "
        "copies that stay on the rank.",
        optional=True,
    ),
    *statistics(
        SPREAD,
        number(
            "effective_interconnect_tb_s",
            "Bytes that leave the rank / kernel time, including the wait for the slowest sender: a lower bound of the "
            "interconnect bandwidth. An upper bound where remote data is from 'every row'.",
            shape="#,##0.0000",
            unit="TB/s",
            optional=True,
        ),
    ),
)
EXCHANGE = (
    mb(
        "expected_remote_mb",
        "Interconnect data that leaves the rank; the roofline of a token exchange uses it.",
        optional=True,
    ),
    text(
        "remote_from",
        "Source of the share that leaves the rank: recorded split sizes or token counts, else an assumption. Every "
        "row: the share is unknown, and the effective bandwidth counts all rows.",
        width=34,
        optional=True,
    ),
    number("copies_per_token", "Rows exchanged per token: one per destination rank.", shape="0.00", optional=True),
    text(
        "rows_from",
        "Source of the number of copies: the combine of the layer, which returns a row per copy, else even routing by "
        "top-k, experts and ranks.",
        width=34,
        optional=True,
    ),
    us(
        "deepep_us",
        "Time of one call in the model fitted to DeepEP's published measurements: standard node of the device, even "
        "routing, exchange of counts included.",
        optional=True,
    ),
)
ROOFLINE = (
    us(
        "roofline_us",
        "Least time per call at achievable rates: the longest of compute, HBM and interconnect time and kernel "
        "launch. Empty if FLOPs are unknown.",
        optional=True,
    ),
    text("roofline_bound", "Limit that sets the roofline time.", width=16, optional=True),
    *statistics(
        SPREAD,
        percent(
            "percent_of_roofline",
            "Roofline time / kernel time; the mean is the ratio of the sums over all calls. Above 100 the kernel "
            "beats the best measured rates, or a cache served its data.",
            look="of_limit",
            optional=True,
        ),
    ),
    percent(
        "percent_of_peak",
        "Time at data-sheet rates / mean kernel time. Above 100 the perf model or a device figure is wrong.",
        look="of_limit",
        optional=True,
    ),
    text(
        "served_from",
        "Last-level cache, if the call beats HBM bandwidth and its data fits in the cache; in part: the rest came "
        "from HBM.",
        width=16,
        optional=True,
    ),
    text("backend", "Cost model of the row.", width=14, optional=True),
    text(
        "work_at_most",
        "Why FLOPs or bytes are an upper bound. Rates are then upper bounds, shares above 100 are left out, and "
        "totals of the report skip the row.",
        width=34,
        optional=True,
    ),
)

POWER = number(
    "power_w",
    "Modelled power of the device while kernels of the row run alone (docs/energy.md); empty where their work is "
    "unknown.",
    shape="#,##0.0",
    unit="W",
    optional=True,
)
ENERGY = number(
    "energy_j",
    "Modelled energy of the row's kernels: of the time in which they keep the device busy, and what they add behind "
    "others. With idle time, it adds up to that of the steps.",
    shape="#,##0.0000", unit="J", optional=True,
)  # fmt: skip

START = "Time since the first event of the trace."
DURATIONS = "Sum of the kernel and copy durations."
STEP_DURATION = "From the start of the step to the start of the next; the last step ends with its own work."
COMPLETE = flag("complete", "FALSE: the recording ended inside the step.", width=10)
CAUSE = text(
    "cause",
    "Why the GPU was idle. With an empty queue, what the launching thread did: launch-bound (ops and launches), "
    "first-time loading (of a kernel, library or context), allocator, compilation, Python garbage collection, "
    "blocking copy or synchronization, data loading, communication on the host, waiting for requests or the "
    "scheduler, graph capture, profiler overhead, Python or other host work. With work queued, what the work waited "
    "for: event wait, another rank, copy engine busy, stream dependency, work from before recording, between queued "
    "kernels, launch latency; or device wait, cause not recorded. Unknown: the launch was not recorded.",
    width=32,
)
PATH_KIND = text(
    "kind",
    "Kind of work on the path. idle: the GPU was idle, with the cause as in idle_causes. GPU busy: the path waited "
    "for another stream, a launch, a synchronization or the next queued kernel while the GPU ran something else; "
    "longer waits are not on the path.",
    width=30,
)
HELD = "Allocated memory of the device, as the allocator reports it."
RESERVED = "Memory the allocator reserved, used or not."
