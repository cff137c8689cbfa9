"""Traces of which one thing grows, and nothing else: what the benchmark of scaling reads, and tests of it.

Each function yields the events of ``count`` of something, times in us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Event = dict[str, Any]


def host(name: str, at: int, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {"External id": at, **args},
    }


def kernel(name: str, at: int, ts: float, dur: float = 2, stream: int = 7, pid: int = 0, device: int = 0) -> Event:
    """The kernel of launch ``at``."""
    args = {"External id": at, "correlation": at, "stream": stream, "device": device}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": pid, "tid": stream, "ts": ts, "dur": dur, "args": args}


def launched(name: str, at: int, ts: float, tid: int = 1, stream: int = 7, dims: object = None) -> Iterator[Event]:
    """An op of 8 us, its launch and its kernel."""
    shapes = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * 2} if dims else {}
    yield host(name, at, ts, 8, tid=tid, **shapes)
    yield host("cudaLaunchKernel", at, ts + 1, 5, cat="cuda_runtime", tid=tid, correlation=at)
    yield kernel(f"{name}_kernel", at, ts + 6, 3, stream=stream)


def kernels(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from launched(f"aten::op{at % 50}", at, 10 * at)


def names(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from launched(f"aten::op{at}", at, 10 * at)


def signatures(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from launched("aten::mm", at, 10 * at, dims=[[8, 16 + at], [16 + at, 8]])


def steps(count: int) -> Iterator[Event]:
    for at in range(count):
        yield host(f"ProfilerStep#{at}", at, 10 * at, 9, cat="user_annotation")
        yield from launched("aten::op", at + count, 10 * at + 0.5)


def frames(count: int) -> Iterator[Event]:
    """A Python stack as deep as the trace is long."""
    for at in range(count):
        yield host(f"f{at % 100}.py(1): f", at, at, 2 * (count - at) + 10, cat="python_function")
    yield from launched("aten::op", count + 1, count)


def nested_ops(count: int) -> Iterator[Event]:
    """Ops 500 deep, again and again."""
    for at in range(count):
        depth, pile = at % 500, at // 500
        yield host(f"aten::op{depth}", at, 1100 * pile + depth, 2 * (500 - depth) + 20)
        if depth == 499:
            yield from launched("aten::leaf", count + pile, 1100 * pile + 500)


def threads(count: int) -> Iterator[Event]:
    """Ten ops in each of many threads."""
    for at in range(count):
        yield from launched(f"aten::op{at % 50}", at, 10 * at, tid=1 + at // 10)


def streams(count: int) -> Iterator[Event]:
    """Ten kernels on each of many streams."""
    for at in range(count):
        yield from launched(f"aten::op{at % 50}", at, 10 * at, stream=7 + at // 10)


MATRICES = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["c10::BFloat16"] * 2}


def same_time(count: int, dur: float = 0) -> Iterator[Event]:
    """Ops and launches that a clock tells no time between."""
    for at in range(1, count + 1):
        yield host("aten::mm", at, 0, dur, **MATRICES)
        yield host("cudaLaunchKernel", at, 0, dur, cat="cuda_runtime", correlation=at)
        yield kernel("sm90_gemm_bf16", at, 10 + 3 * at)


def same_span(count: int) -> Iterator[Event]:
    """Ops that begin and end together: each lies in the one before."""
    return same_time(count, 1)


def deep_ops(count: int, overlap: bool = False) -> Iterator[Event]:
    """Modeled ops as deep as the trace is long, each of which launches a kernel."""
    for at in range(1, count + 1):
        yield host("aten::mm", at, 3 * at, 6 * (count - at) + 10, **MATRICES)
        yield host("cudaLaunchKernel", at, 3 * at + 1, 1, cat="cuda_runtime", correlation=at)
        yield kernel("sm90_gemm_bf16", at, 3 * at + 15, 50 if overlap else 2, stream=7 + at % 2 * overlap)


def deep_ops_at_once(count: int) -> Iterator[Event]:
    """The same with kernels that run at the same time."""
    return deep_ops(count, overlap=True)


def processes(count: int) -> Iterator[Event]:
    """An op and its kernel in each of many processes."""
    for at in range(1, count + 1):
        for event in launched("aten::mm", at, 10 * at, dims=[[64, 64], [64, 64]]):
            yield event if event["cat"] == "kernel" else {**event, "pid": at}


def devices(count: int) -> Iterator[Event]:
    """A kernel on each of many devices."""
    for at in range(1, count + 1):
        for event in launched("aten::mm", at, 10 * at, dims=[[64, 64], [64, 64]]):
            args = {**event["args"], "device": at}
            yield event if event["cat"] != "kernel" else {**event, "pid": 100 + at, "args": args}


def fused_words(count: int) -> Iterator[Event]:
    """One Triton kernel that fuses many ops, and twenty that do not."""
    for at, ops in enumerate(["add_" * count, *(f"add_mul_{at}" for at in range(20))], 1):
        yield from launched(f"triton_poi_fused_{ops}", at, 10 * at, dims=[[64, 64], [64, 64]])


MM = [[64, 64], [64, 64]]


def plain(count: int) -> Iterator[Event]:
    """Ops of one kind, which other shapes add to."""
    for at in range(1, count + 1):
        yield from launched("aten::mm", at, 10 * at, dims=MM)


def meta(kind: str, pid: int, tid: int = 0, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def ranges(count: int, cat: str = "user_annotation", name: str = "range {}", deep: bool = False) -> Iterator[Event]:
    """An op in each of many ranges, side by side or in each other."""
    for at in range(1, count + 1):
        dur = 20 * (count - at) + 15 if deep else 9
        yield host(name.format(at % 100), count + at, 10 * at - 0.5, dur, cat=cat)
        yield from launched("aten::mm", at, 10 * at, dims=MM)


def modules_deep(count: int) -> Iterator[Event]:
    return ranges(count, "python_function", "nn.Module: Linear_{}", deep=True)


def modules_wide(count: int) -> Iterator[Event]:
    return ranges(count, "python_function", "nn.Module: Linear_{}")


def annotations_deep(count: int) -> Iterator[Event]:
    return ranges(count, deep=True)


def annotations_wide(count: int) -> Iterator[Event]:
    return ranges(count)


def device_annotations(count: int) -> Iterator[Event]:
    return ranges(count, "gpu_user_annotation")


def executed(count: int) -> Iterator[Event]:
    """Ops that only pass calls on, in each other."""
    return ranges(count, "cpu_op", "execute", deep=True)


def annotation_names(count: int) -> Iterator[Event]:
    for at in range(1, count + 1):
        yield host(f"user {at} asks", count + at, 10 * at - 0.5, 9, cat="user_annotation")
        yield from launched("aten::mm", at, 10 * at, dims=MM)


def module_classes(count: int) -> Iterator[Event]:
    for at in range(1, count + 1):
        yield host(f"nn.Module: Block{at}x_0", count + at, 10 * at - 0.5, 9, cat="python_function")
        yield from launched("aten::mm", at, 10 * at, dims=MM)


def frames_wide(count: int) -> Iterator[Event]:
    """A line of its own for each op."""
    for at in range(1, count + 1):
        yield host(f"model.py({at}): forward", count + at, 10 * at - 0.5, 9, cat="python_function")
        yield from launched("aten::mm", at, 10 * at, dims=MM)


def frames_that_outlive(count: int) -> Iterator[Event]:
    """Frames that end after their callers do."""
    for at in range(1, count + 1):
        yield host(f"f{at % 100}.py(1): f", count + at, 10 * at - 0.5, 15, cat="python_function")
        yield from launched("aten::mm", at, 10 * at, dims=MM)


def kernel_names(count: int) -> Iterator[Event]:
    for event in plain(count):
        name = f"void kernel_{event['ts']}<int>" if event["cat"] == "kernel" else event["name"]
        yield {**event, "name": name}


def kernels_per_op(count: int) -> Iterator[Event]:
    """Many kernels of one op."""
    yield host("aten::mm", 1, 0, 10 * count + 10, **MATRICES)
    for at in range(1, count + 1):
        yield host("cudaLaunchKernel", 1, 10 * at, 5, cat="cuda_runtime", correlation=at)
        yield kernel(f"gemm_{at % 20}", at, 10 * at + 6)


def kernels_at_once(count: int) -> Iterator[Event]:
    """Kernels that all run to the end of the trace, each on a stream."""
    for event in plain(count):
        if event["cat"] == "kernel":
            event |= {
                "tid": int(event["ts"]),
                "dur": 20 * count - event["ts"],
                "args": {**event["args"], "stream": int(event["ts"])},
            }
        yield event


def of_category(count: int, cat: str, name: str, **args: Any) -> Iterator[Event]:
    """Device events of another kind instead of the kernels."""
    for event in plain(count):
        is_kernel = event["cat"] == "kernel"
        yield {**event, "cat": cat, "name": name, "args": {**event["args"], **args}} if is_kernel else event


def copies(count: int) -> Iterator[Event]:
    return of_category(count, "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", bytes=4096)


def sets(count: int) -> Iterator[Event]:
    return of_category(count, "gpu_memset", "Memset (Device)", bytes=4096)


def collectives(count: int) -> Iterator[Event]:
    return of_category(
        count, "kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", dtype="BFloat16",
        **{"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 8,
           "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"},
    )  # fmt: skip


def groups(count: int) -> Iterator[Event]:
    """A process group for each collective."""
    for at, event in enumerate(collectives(count)):
        yield {**event, "args": {**event["args"], "Process Group Name": str(at)}} if event["cat"] == "kernel" else event


def group_ranks(count: int) -> Iterator[Event]:
    """One group of many ranks."""
    ranks = str(list(range(count)))
    for event in collectives(10):
        args = {**event["args"], "Process Group Ranks": ranks, "Group size": count}
        yield {**event, "args": args} if event["cat"] == "kernel" else event


def unlinked(count: int) -> Iterator[Event]:
    for event in plain(count):
        if event["cat"] == "kernel":
            yield {**event, "args": {"stream": 7, "device": 0}}


def one_correlation(count: int) -> Iterator[Event]:
    """Kernels of one launch."""
    yield from launched("aten::mm", 1, 0, dims=MM)
    for at in range(1, count):
        yield kernel("gemm", 1, 10 * at)


def graphs(count: int) -> Iterator[Event]:
    """Replays of a graph, 100 kernels each."""
    for at in range(1, count + 1):
        if at % 100 == 1:
            yield host("cudaGraphLaunch", at, 10 * at, 5, cat="cuda_runtime", correlation=at)
        yield {**kernel(f"gemm_{at % 100}", at - (at - 1) % 100, 10 * at + 6)}


def long_graph(count: int) -> Iterator[Event]:
    """One replay of many kernels."""
    yield host("cudaGraphLaunch", 1, 0, 5, cat="cuda_runtime", correlation=1)
    for at in range(1, count + 1):
        yield kernel(f"gemm_{at % 100}", 1, 10 * at)


def drivers(count: int) -> Iterator[Event]:
    """Launches of the driver in those of the runtime."""
    for event in plain(count):
        yield event
        if event["cat"] == "cuda_runtime":
            yield {**event, "cat": "cuda_driver", "name": "cuLaunchKernel", "ts": event["ts"] + 1, "dur": 3}


def waits(count: int) -> Iterator[Event]:
    """The host waits for the device after each op."""
    for event in plain(count):
        yield event
        if event["cat"] == "kernel":
            yield host("cudaDeviceSynchronize", 0, event["ts"] + 1.5, 2, cat="cuda_runtime")


def stream_waits(count: int) -> Iterator[Event]:
    """Two streams that wait for each other's events."""
    for at in range(1, count + 1):
        yield from launched("aten::mm", at, 20 * at, dims=MM, stream=7 + at % 2)
        yield host("cudaEventRecord", at, 20 * at + 9, 1, cat="cuda_runtime", correlation=count + at)
        yield host("cudaStreamWaitEvent", at, 20 * at + 11, 1, cat="cuda_runtime", correlation=2 * count + at)


def arrows(count: int) -> Iterator[Event]:
    """A flow from each launch to its kernel."""
    for event in plain(count):
        yield event
        at = event["args"]["External id"]
        flow = {"cat": "ac2g", "name": "ac2g", "id": at, "pid": event["pid"], "tid": event["tid"], "ts": event["ts"]}
        if event["cat"] in ("cuda_runtime", "kernel"):
            yield {**flow, "ph": "s"} if event["cat"] == "cuda_runtime" else {**flow, "ph": "f", "bp": "e"}


def backwards(count: int, flows: bool = False) -> Iterator[Event]:
    """Forward ops, and on another thread their backward ops."""
    for at in range(1, count + 1):
        yield host("aten::mm", at, 10 * at, 8, **MATRICES, **{"Sequence number": at, "Fwd thread id": 0})
        ts = 10 * (2 * count - at) + 100
        node = {"Sequence number": at, "Fwd thread id": 1}
        yield host("autograd::engine::evaluate_function: MmBackward0", count + at, ts, 9, tid=2, **node)
        yield host("MmBackward0", 2 * count + at, ts + 0.5, 8, tid=2, **node)
        yield host("cudaLaunchKernel", 3 * count + at, ts + 1, 2, cat="cuda_runtime", tid=2, correlation=at)
        yield kernel("gemm", at, ts + 5)
        if flows:
            yield {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": at, "pid": 1, "tid": 1, "ts": 10 * at}
            yield {
                "ph": "f",
                "bp": "e",
                "cat": "fwdbwd",
                "name": "fwdbwd",
                "id": at,
                "pid": 1,
                "tid": 2,
                "ts": ts + 0.5,
            }


def backward_arrows(count: int) -> Iterator[Event]:
    return backwards(count, flows=True)


def recomputed(count: int) -> Iterator[Event]:
    """Checkpointed calls that run again in their backward."""
    for at in range(1, count + 1):
        if at % 10 == 1:
            yield host("CheckpointFunctionBackward", 3 * count + at, 10 * at - 0.5, 100, **{"Sequence number": at})
        yield from launched("aten::mm", at, 10 * at, dims=MM)


def allocations(count: int) -> Iterator[Event]:
    for at, event in enumerate(plain(count)):
        yield event
        args = {
            "Device Type": 1,
            "Device Id": 0,
            "Addr": 4096 * at,
            "Bytes": 512 if at % 2 else -512,
            "Total Allocated": 10_000,
        }
        yield {
            "ph": "i",
            "s": "t",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": event["ts"],
            "args": args,
        }


def allocating_devices(count: int) -> Iterator[Event]:
    """One allocation on each of many devices."""
    for at, event in enumerate(allocations(count)):
        yield {**event, "args": {**event["args"], "Device Id": at}} if event["ph"] == "i" else event


def counters(count: int) -> Iterator[Event]:
    for event in plain(count):
        yield event
        yield {"ph": "C", "name": "GPU 0 power", "pid": 0, "ts": event["ts"], "args": {"W": 300}}


def instants(count: int) -> Iterator[Event]:
    for event in plain(count):
        yield event
        yield {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": event["ts"]}


def process_names(count: int) -> Iterator[Event]:
    yield from (meta("process_name", 1000 + at, name=f"python {at}") for at in range(count))
    yield from plain(10)


def thread_names(count: int) -> Iterator[Event]:
    yield from (meta("thread_name", 1, at, name=f"thread {at}") for at in range(count))
    yield from plain(10)


def named_ranks(count: int) -> Iterator[Event]:
    """A rank in each of many processes."""
    for at in range(count):
        yield meta("process_name", at + 1, name=f"rank {at}")
    yield from processes(count)


def unknown_categories(count: int) -> Iterator[Event]:
    for at, event in enumerate(plain(count)):
        yield event
        yield {**event, "cat": f"kind {at}", "tid": 3}


def halves(count: int) -> Iterator[Event]:
    """Events that are told by their beginnings and ends."""
    for event in plain(count):
        if event["cat"] == "cpu_op":
            yield {**event, "ph": "B"}
            yield {**event, "ph": "E", "ts": event["ts"] + event["dur"]}
        else:
            yield event


def external_ids(count: int) -> Iterator[Event]:
    """Kernels that find their ops by an id that all of them share."""
    for event in plain(count):
        if event["cat"] != "cuda_runtime":
            yield {**event, "args": {**event["args"], "External id": 1, "correlation": 0}}


def loaders(count: int) -> Iterator[Event]:
    return ranges(count, name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")


def engine_steps(count: int) -> Iterator[Event]:
    return ranges(count, name="execute_context_0(0)_generation_{0}({0})")


def optimizers(count: int) -> Iterator[Event]:
    return ranges(count, name="Optimizer.step#AdamW.step")


def gaps(count: int) -> Iterator[Event]:
    """A device that idles a ms between kernels."""
    for at in range(1, count + 1):
        yield from launched("aten::mm", at, 1000 * at, dims=MM)


def queued(count: int) -> Iterator[Event]:
    """Kernels that begin when all have been launched."""
    for event in plain(count):
        yield event if event["cat"] != "kernel" else {**event, "ts": event["ts"] + 10 * count}


def triton(count: int) -> Iterator[Event]:
    """Fused kernels, each with a name of its own."""
    for at in range(1, count + 1):
        yield from launched(f"triton_poi_fused_add_mul_{at}", at, 10 * at, dims=MM)


def op_kernels(count: int) -> Iterator[Event]:
    """Attention, norms and convolutions of many sizes."""
    for at in range(1, count + 1):
        name = ("aten::native_layer_norm", "aten::_flash_attention_forward", "aten::convolution")[at % 3]
        yield from launched(name, at, 10 * at, dims=[[4, 16, 64, at], [4, 16, 64, at]])


def with_text(field: str, unit: str) -> Callable[[int], Iterator[Event]]:
    """Ten ops, in one of which a text is long."""

    def events(count: int) -> Iterator[Event]:
        for at, event in enumerate(plain(10)):
            changed = at == 3 if field == "name" else at == 5
            yield {**event, "name": event["name"] + unit * count} if changed else event

    return events


def with_argument(key: str, value: Callable[[int], Any]) -> Callable[[int], Iterator[Event]]:
    """Ten ops, in one of which an argument is long."""

    def events(count: int) -> Iterator[Event]:
        for at, event in enumerate(plain(10)):
            yield {**event, "args": {**event["args"], key: value(count)}} if at == 3 else event

    return events


#: With the smallest of its sizes.
SHAPES: dict[str, tuple[Callable[[int], Iterator[Event]], int]] = {
    "kernels": (kernels, 30_000),
    "names": (names, 5_000),
    "signatures": (signatures, 5_000),
    "steps": (steps, 5_000),
    "frames": (frames, 10_000),
    "nested_ops": (nested_ops, 50_000),
    "threads": (threads, 20_000),
    "streams": (streams, 20_000),
    "processes": (processes, 10_000),
    "devices": (devices, 10_000),
    "fused_words": (fused_words, 100_000),
    "same_time": (same_time, 10_000),
    "same_span": (same_span, 10_000),
    "deep_ops": (deep_ops, 10_000),
    "deep_ops_at_once": (deep_ops_at_once, 10_000),
    "modules_deep": (modules_deep, 5_000),
    "modules_wide": (modules_wide, 20_000),
    "module_classes": (module_classes, 5_000),
    "annotations_deep": (annotations_deep, 5_000),
    "annotations_wide": (annotations_wide, 20_000),
    "annotation_names": (annotation_names, 5_000),
    "device_annotations": (device_annotations, 20_000),
    "executed": (executed, 5_000),
    "frames_wide": (frames_wide, 10_000),
    "frames_that_outlive": (frames_that_outlive, 20_000),
    "kernel_names": (kernel_names, 5_000),
    "kernels_per_op": (kernels_per_op, 50_000),
    "kernels_at_once": (kernels_at_once, 10_000),
    "copies": (copies, 20_000),
    "sets": (sets, 20_000),
    "collectives": (collectives, 10_000),
    "groups": (groups, 5_000),
    "group_ranks": (group_ranks, 20_000),
    "unlinked": (unlinked, 50_000),
    "one_correlation": (one_correlation, 50_000),
    "graphs": (graphs, 50_000),
    "long_graph": (long_graph, 50_000),
    "drivers": (drivers, 20_000),
    "waits": (waits, 20_000),
    "stream_waits": (stream_waits, 20_000),
    "arrows": (arrows, 20_000),
    "backwards": (backwards, 10_000),
    "backward_arrows": (backward_arrows, 10_000),
    "recomputed": (recomputed, 20_000),
    "allocations": (allocations, 20_000),
    "allocating_devices": (allocating_devices, 1_000),
    "counters": (counters, 20_000),
    "instants": (instants, 20_000),
    "process_names": (process_names, 50_000),
    "thread_names": (thread_names, 50_000),
    "named_ranks": (named_ranks, 5_000),
    "unknown_categories": (unknown_categories, 10_000),
    "halves": (halves, 20_000),
    "external_ids": (external_ids, 20_000),
    "loaders": (loaders, 20_000),
    "engine_steps": (engine_steps, 5_000),
    "optimizers": (optimizers, 20_000),
    "gaps": (gaps, 20_000),
    "queued": (queued, 20_000),
    "triton": (triton, 5_000),
    "op_kernels": (op_kernels, 5_000),
    "op_name": (with_text("name", "a"), 500_000),
    "op_name_of_templates": (with_text("name", "<a"), 500_000),
    "op_name_of_calls": (with_text("name", "(a"), 500_000),
    "op_name_of_scopes": (with_text("name", "::a"), 500_000),
    "op_name_of_digits": (with_text("name", "1"), 500_000),
    "op_name_of_words": (with_text("name", "_a"), 500_000),
    "kernel_name": (with_text("kernel", "a"), 500_000),
    "kernel_name_of_templates": (with_text("kernel", "<a"), 500_000),
    "kernel_name_of_scopes": (with_text("kernel", "::a"), 500_000),
    "kernel_name_of_commas": (with_text("kernel", ", a"), 500_000),
    "dims": (with_argument("Input Dims", lambda count: [[64, 64]] * count), 50_000),
    "dims_of_one": (with_argument("Input Dims", lambda count: [[1] * count, [1]]), 100_000),
    "strides": (with_argument("Input Strides", lambda count: [[1] * count]), 100_000),
    "scalars": (with_argument("Concrete Inputs", lambda count: ["[1, 2]"] * count), 50_000),
    "scalar": (with_argument("Concrete Inputs", lambda count: ["1" * count]), 500_000),
    "input_types": (with_argument("Input type", lambda count: ["float"] * count), 50_000),
    "unknown_argument": (with_argument("note", lambda count: "x" * count), 500_000),
}
