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


#: With the smallest of its sizes.
SHAPES: dict[str, tuple[Callable[[int], Iterator[Event]], int]] = {
    "kernels": (kernels, 100_000),
    "names": (names, 5_000),
    "signatures": (signatures, 5_000),
    "steps": (steps, 5_000),
    "frames": (frames, 10_000),
    "nested_ops": (nested_ops, 100_000),
    "threads": (threads, 50_000),
    "streams": (streams, 20_000),
    "processes": (processes, 10_000),
    "devices": (devices, 10_000),
    "fused_words": (fused_words, 100_000),
    "same_time": (same_time, 10_000),
    "same_span": (same_span, 10_000),
    "deep_ops": (deep_ops, 10_000),
    "deep_ops_at_once": (deep_ops_at_once, 10_000),
}
