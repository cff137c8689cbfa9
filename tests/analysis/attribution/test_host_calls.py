"""Which calls of the host wait for the device, by name or because a copy was done before its call; which lie in none."""

from __future__ import annotations

import pytest

from tests.analysis.conftest import Builder
from tracelens.analysis.attribution.host_time import blocking_calls, host_calls


@pytest.mark.parametrize(
    ("name", "category", "waits"),
    [
        ("cudaDeviceSynchronize", "cuda_runtime", True),
        ("hipStreamSynchronize", "cuda_runtime", True),
        ("cuStreamSynchronize_ptsz", "cuda_driver", True),
        ("cudaMemcpy", "cuda_runtime", True),
        ("cuMemcpyDtoH_v2", "cuda_driver", True),
        ("hipMemcpyWithStream", "cuda_runtime", True),
        ("cudaMemcpyAsync", "cuda_runtime", False),
        ("cudaLaunchKernel", "cuda_runtime", False),
        ("cudaDeviceSynchronize", "cpu_op", False),  # an op of that name
    ],
)
def test_calls_that_wait_by_their_documentation(name: str, category: str, waits: bool):
    trace = Builder().op(name, 0, 5, cat=category).trace()
    assert blocking_calls(trace.table).tolist() == [waits]
    assert host_calls(trace.table, trace.tree).blocking.tolist() == [waits]


@pytest.mark.parametrize("category", ["cuda_runtime", "cuda_driver"])
@pytest.mark.parametrize(
    ("copy", "waits"),
    [
        ((10, 40), True),  # done at 50, with its call of [5, 50]
        ((10, 41), False),  # still running when the call returned
        ((0, 5), False),  # clocks that differ: done before the call began
        ((0, 6), True),
    ],
)
def test_a_copy_that_is_done_before_its_call_returns_made_it_wait(category: str, copy: tuple[int, int], waits: bool):
    start, duration = copy
    b = Builder().op("cudaMemcpyAsync", 5, 45, cat=category, correlation=1)
    trace = b.kernel("Memcpy HtoD", start, duration, cat="gpu_memcpy", correlation=1).trace()
    assert host_calls(trace.table, trace.tree).blocking.tolist() == [waits, False]


def test_a_copy_without_a_recorded_launch_makes_no_call_wait():
    trace = Builder().op("cudaMemcpyAsync", 5, 45, cat="cuda_runtime").kernel("Memcpy", 10, 5, cat="gpu_memcpy").trace()
    assert not host_calls(trace.table, trace.tree).blocking.any()


def test_the_outermost_calls_cover_the_time_of_the_host():
    """An op of [0, 20] with one of [2, 6] and a launch in it, a call of [30, 35], and frames, which are no calls."""
    b = Builder().op("outer", 0, 20).op("inner", 2, 4).op("cudaLaunchKernel", 3, 1, cat="cuda_runtime")
    b.op("cudaEventRecord", 30, 5, cat="cuda_runtime").op("train.py(1): f", 0, 100, cat="python_function")
    trace = b.op("cuLaunchKernel", 40, 5, tid=2, cat="cuda_driver").trace()
    found = host_calls(trace.table, trace.tree)
    names = [trace.table.name_of(row) for row in found.outermost.tolist()]
    assert names == ["outer", "cudaEventRecord", "cuLaunchKernel"]
    assert set(found.process.tolist()) == {0}  # two threads of one process


@pytest.mark.parametrize(
    ("calls", "at"),
    [
        # (name, start, length), with a launch at 10
        ([("cudaDeviceSynchronize", 20, 5)], 20),
        ([("cudaDeviceSynchronize", 20, 5), ("cudaDeviceSynchronize", 30, 5)], 30),
        ([("cudaDeviceSynchronize", 5, 3)], None),  # before the launch
        ([("cudaDeviceSynchronize", 20, 5), ("cudaStreamSynchronize", 30, 5)], None),
        ([("cudaStreamSynchronize", 20, 5)], None),
    ],
)
def test_the_profiler_synchronizes_as_it_stops(calls: list[tuple[str, int, int]], at: int | None):
    b = Builder().launch(10, "k", 12, 2)
    for name, start, length in calls:
        b.op(name, start, length, cat="cuda_runtime")
    trace = b.trace()
    found = host_calls(trace.table, trace.tree).stop.tolist()
    since_launch_us = [(trace.table.start_ns[row] - trace.table.start_ns[0]) / 1000 for row in found]
    assert since_launch_us == ([] if at is None else [at - 10])
