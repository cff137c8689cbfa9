"""Columns of the views: idle causes, launch overhead, streams. What other sheets show too stands in ``columns``."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.report.columns import COUNT, IDENTIFIER, MB, PERCENT, US, Column, ColumnSet, column_set


def _us(key: str, header: str, meaning: str) -> Column:
    return Column(key=key, header=header, meaning=meaning, unit="µs", number_format=US)


def _percent(key: str, header: str, meaning: str) -> Column:
    return Column(key=key, header=header, meaning=meaning, unit="%", number_format=PERCENT, look="share")


def _number(key: str, header: str, meaning: str) -> Column:
    return Column(key=key, header=header, meaning=meaning, number_format=COUNT)


def _mean(key: str, meaning: str) -> Column:
    return Column(key=key, header=key, meaning=meaning, number_format="#,##0.0")


def _text(key: str, header: str, meaning: str, width: int = 46) -> Column:
    return Column(key=key, header=header, meaning=meaning, width=width)


def _identifier(key: str, header: str, meaning: str) -> Column:
    return Column(key=key, header=header, meaning=meaning, number_format=IDENTIFIER)


_START = "Time since the trace's first event."
_CAUSE = _text(
    "cause",
    "cause",
    "Why the device stood idle. While its queue was empty, by what the launching thread was at: launch-bound (in ops "
    "and launches), first-time loading (of a kernel, library or context), allocator, compilation, Python garbage "
    "collection, blocking copy or synchronization, data loading, communication on the host, graph capture, profiler "
    "overhead, Python or other host work. While something was in the queue: event wait, another rank, copy engine "
    "busy, stream dependency, between queued kernels, launch latency; device wait, cause not recorded: longer than "
    "launches take, and nothing says why. Unknown: the launch was not recorded.",
    32,
)
_KIND = _text(
    "kind",
    "kind",
    "What the path went through. idle: the device stood idle, for the cause of the sheet idle_causes. While it "
    "was busy: wait for another stream, launch latency, return of a synchronization, between queued kernels: no longer "
    "than what is ready usually takes to start; what is longer is not on the path.",
    30,
)
_STEP_DURATION = "As in the sheet steps: from its beginning to the next step's; the last to its own end."
_CALL = "From the start to the end of the call on the host."
_LATENCY = (
    "From the start of the call to the start of its first kernel, of calls whose stream had nothing left to do and had "
    "not just been told to wait."
)
_DEPTH = (
    "Kernels of the same stream that were launched and not finished when the call began, those queued before the "
    "recording began too."
)

_KERNELS = "Durations of the device events, added up."
_MB_HELD = "In use, as the allocator says of the whole device."


def _mb(key: str, header: str, meaning: str) -> Column:
    return Column(key=key, header=header, meaning=meaning, unit="1e6 bytes", number_format=MB)


#: Column set by sheet.
VIEW_SETS: Mapping[str, ColumnSet] = {
    "inference_phases": column_set(
        _text("phase", "phase", "Of the complete steps; the steady window once more by itself.", 18),
        _number("steps", "steps", "Engine steps of the phase."),
        _identifier("first_step", "first step", "Number of the first of them."),
        _identifier("last_step", "last step", "Number of the last of them."),
        _mean("requests_mean", "Requests in a step."),
        _mean("tokens_mean", "New tokens in a step."),
        _us("duration_us_median", "duration_median (µs)", _STEP_DURATION),
        _us("duration_us_min", "duration_min (µs)", _STEP_DURATION),
        _us("duration_us_max", "duration_max (µs)", _STEP_DURATION),
        _percent("busy_percent", "busy (%)", "Share of the steps' time in which the device did anything."),
        _percent("attention_percent", "attention (%)", "Share of the busy time in attention over the cache."),
        _number("tokens_s", "tokens/s", "New tokens over the steps' time: of a decode, tokens generated."),
    ),
    "inference_iterations": column_set(
        _identifier("step", "step", "Engine steps are numbered from 0, as --steps takes them."),
        _text("phase", "phase", "By the requests that the step's annotation tells.", 10),
        _number("context_requests", "context requests", "Requests whose prompt is read."),
        _number("context_tokens", "context tokens", "New tokens of those."),
        _number("generation_requests", "generation requests", "Requests that generate."),
        _number("generation_tokens", "generation tokens", "New tokens of those."),
        _number("padded_requests", "padded requests", "The batch size of the captured graph that ran."),
        _number("past_tokens", "past tokens", "Keys in the cache before the step, of all requests."),
        _us("duration_us", "duration (µs)", _STEP_DURATION),
        _us("busy_us", "busy (µs)", "Union of its device events."),
        _us("attention_us", "attention (µs)", "Union of its attention over the cache, writes to the cache included."),
        _us("communication_us", "communication (µs)", "Union of its communication."),
        _number("tokens_s", "tokens/s", "New tokens over its duration."),
        _number("device_events", "device events", "Kernels and copies."),
        Column(
            key="complete",
            header="complete",
            meaning="FALSE: the recording ended inside it.",
            number_format="General",
            width=10,
        ),
        Column(
            key="steady",
            header="steady",
            meaning="TRUE: in the steady window, which --steps steady takes.",
            number_format="General",
            width=10,
        ),
    ),
    "idle_causes": column_set(
        _CAUSE,
        _number("gaps", "gaps", "Gaps in which no stream of the device was busy, and that have this cause."),
        _us("idle_us", "idle (µs)", "Time of this cause; the column adds up to idle_time of gpu_timeline."),
        _us("mean_us", "mean (µs)", "Mean time of this cause in a gap."),
        _us("max_us", "max (µs)", "The most of this cause in one gap."),
        _percent("percent_of_idle", "percent of idle (%)", "Share of all idle time."),
        _percent("percent_of_window", "percent of window (%)", "Share of total_time of gpu_timeline."),
    ),
    "idle_gaps": column_set(
        _us("start_us", "start (µs)", _START),
        _us("idle_us", "idle (µs)", "Length of the gap."),
        _CAUSE,
        _percent(
            "percent_of_gap", "percent of gap (%)", "Share of the gap that has this cause, the largest of its causes."
        ),
        _us(
            "queue_empty_us",
            "queue empty (µs)",
            "Time until the host had launched something; the rest the device waited.",
        ),
        _text("kernel_before", "kernel before", "The device event that ended last.", 60),
        _text("kernel_after", "kernel after", "The device event that ended the gap.", 60),
        _text("op_after", "op after", "The op that launched it."),
    ),
    "copies": column_set(
        _text("op", "op", "The op that launched the copies."),
        _text("direction", "direction", "HtoD: host to device; DtoH: device to host; PtoP: to another device.", 10),
        _text(
            "host_memory",
            "host memory",
            "Pinned, or pageable (the driver then copies twice, and the call waits), as the copy's name says; unknown "
            "where it does not say; empty between devices.",
            14,
        ),
        _number("copies", "copies", "Number of copies."),
        _us("copies_us", "time (µs)", _KERNELS),
        _mb("copied_mb", "Data Moved (MB)", "Bytes copied; empty where no copy recorded them."),
        Column(
            key="gb_s",
            header="GB/s",
            meaning="Bytes over time, of the copies whose bytes were recorded.",
            unit="GB/s",
            number_format="#,##0.00",
        ),
        _text(
            "path",
            "path",
            "What the copies go over: C2C (to the CPU of the same package) or PCIe to the host; the devices' own link, "
            "else PCIe, between devices.",
            8,
        ),
        Column(
            key="path_gb_s",
            header="path GB/s",
            meaning="Its peak in one direction, as the device file says; between devices of one pair of them.",
            unit="GB/s",
            number_format="#,##0.0",
        ),
        _percent("percent_of_path", "percent of path (%)", "Achieved rate over the path's peak."),
    ),
    "critical_path": column_set(
        _KIND,
        _identifier("step", "step", "The typical step, whose path it is; empty: the whole window."),
        _number("segments", "segments", "Parts of the path that are of this kind."),
        _us("time_us", "time (µs)", "Time on the path; with the time not on the path, the column adds up to the step."),
        _percent("percent_of_path", "percent of path (%)", "Share of the path's length."),
        _percent("percent_of_step", "percent of step (%)", "Share of the step's time."),
    ),
    "critical_path_segments": column_set(
        _us("start_us", "start (µs)", _START),
        _us("time_us", "time (µs)", "Length of the segment."),
        _KIND,
        _text("name", "name", "The kernel that ran, or was to run; of host work the op that it led to.", 60),
        _identifier("stream", "stream", "Stream of the kernel; empty for host work."),
    ),
    "launch_overhead": column_set(
        _text("launch_call", "launch call", "Runtime or driver call; all: every call that launched device work.", 32),
        _number("launches", "launches", "Number of calls that launched device work."),
        _number("kernels", "kernels", "Kernels, copies and memsets that they launched."),
        _us("host_us_sum", "host time (µs)_sum", _CALL),
        _us("host_us_mean", "host time (µs)_mean", _CALL),
        _us("host_us_median", "host time (µs)_median", _CALL),
        _us("host_us_max", "host time (µs)_max", _CALL),
        _us("latency_us_median", "launch latency (µs)_median", _LATENCY),
        _us("latency_us_mean", "launch latency (µs)_mean", _LATENCY),
        _us("latency_us_max", "launch latency (µs)_max", _LATENCY),
        Column(key="depth_mean", header="queue depth_mean", meaning=_DEPTH, number_format="#,##0.0"),
        _number("depth_max", "queue depth_max", _DEPTH),
        _percent("percent_queue_empty", "queue empty (%)", "Share of the calls at queue depth 0."),
    ),
    "stream_overlap": column_set(
        _identifier("device_a", "device A", "Device of the first stream; -1 where not recorded."),
        _identifier("stream_a", "stream A", "The first stream."),
        _identifier("device_b", "device B", "Device of the second stream; -1 where not recorded."),
        _identifier("stream_b", "stream B", "The second stream."),
        _us("busy_a_us", "busy A (µs)", "Union of the device events of stream A."),
        _us("busy_b_us", "busy B (µs)", "Union of the device events of stream B."),
        _us("both_us", "both busy (µs)", "Time in which both streams were busy."),
        _percent("percent_of_a", "percent of A (%)", "Both busy, as a share of busy A."),
        _percent("percent_of_b", "percent of B (%)", "Both busy, as a share of busy B."),
    ),
    "phases": column_set(
        _text(
            "phase",
            "phase",
            "By where the work was launched: backward, what autograd's engine runs; recompute, the forward ops that "
            "checkpointing repeats there; optimizer, inside Optimizer.step; forward, all else.",
            22,
        ),
        _number("kernels", "kernels", "Device events of the phase; each is in exactly one."),
        _us("kernel_us", "kernel time (µs)", _KERNELS),
        _us("busy_us", "busy (µs)", "Union of the device events."),
        _percent("percent", "percent (%)", "Share of all kernel time."),
        _percent("percent_of_forward", "percent of forward (%)", "Share of first runs and repeated ones together."),
    ),
    "recompute": column_set(
        _text("name", "name", "The op that launched the work."),
        _number("first_calls", "first runs", "Calls in the forward pass."),
        _us("first_us", "first runs (µs)", _KERNELS),
        _number("recompute_calls", "repeated runs", "Calls that checkpointing repeated during the backward pass."),
        _us("recompute_us", "repeated runs (µs)", _KERNELS),
    ),
    "modules": column_set(
        _text(
            "module",
            "module",
            "Classes of the modules from the outside in, their instances taken together; annotated ranges where no "
            "modules were recorded.",
            70,
        ),
        _text("class", "class", "The innermost of them.", 28),
        _identifier("depth", "depth", "How many are around it."),
        _number("instances", "instances", "Distinct modules of the row."),
        _number("calls", "calls", "Calls of them."),
        _us("host_us", "host time (µs)", "From start to end of the calls on the host."),
        _us("kernel_us", "kernel time (µs)", "Of all that they launched, of modules in them too, backward included."),
        _us("self_us", "self kernel time (µs)", "Without the modules in them; the column adds up to all kernel time."),
        _us("forward_us", "forward (µs)", "Of kernel time: first runs of the forward pass."),
        _us("recompute_us", "recompute (µs)", "Of kernel time: forward repeated by checkpointing."),
        _us("backward_us", "backward (µs)", "Of kernel time: backward ops of what ran in them."),
        _percent("percent", "percent (%)", "Kernel time as a share of all kernel time."),
    ),
    "call_stacks": column_set(
        _text("line", "line", "The innermost frame that is not the framework's.", 56),
        _text("stack", "stack", "Python frames, the innermost first; backward work has those of its forward op.", 90),
        _number("kernels", "kernels", "Device events launched from there."),
        _us("kernel_us", "kernel time (µs)", _KERNELS),
        _percent("percent", "percent (%)", "Share of all kernel time."),
    ),
    "memory": column_set(
        _text("device", "device", "As torch.device calls it; devices of ROCm are cuda too.", 14),
        _number("allocations", "allocations", "Recorded allocations."),
        _number("releases", "releases", "Recorded releases."),
        _mb("allocated_mb", "allocated in all (MB)", "Sizes of the allocations, added up."),
        _mb("first_mb", "at start (MB)", _MB_HELD),
        _mb("peak_mb", "peak (MB)", _MB_HELD),
        _mb("last_mb", "at end (MB)", _MB_HELD),
        _mb("peak_reserved_mb", "peak reserved (MB)", "Taken from the device by the allocator, used or not."),
        _us("peak_at_us", "peak at (µs)", _START),
        _text("peak_op", "peak op", "The innermost op that was open when the peak was reached."),
        Column(
            key="counts_from_start",
            header="counts from start",
            meaning="TRUE: totals were not recorded; amounts add up the recorded events from 0.",
            number_format="General",
            width=10,
        ),
    ),
    "memory_timeline": column_set(
        _text("device", "device", "As torch.device calls it.", 14),
        _us("time_us", "time (µs)", _START),
        _mb("allocated_mb", "allocated (MB)", _MB_HELD),
        _mb("reserved_mb", "reserved (MB)", "Taken from the device by the allocator, used or not."),
        _mb("change_mb", "change (MB)", "Size of the allocation; negative for a release."),
        _text("op", "op", "The innermost op that was open on the thread."),
    ),
}
