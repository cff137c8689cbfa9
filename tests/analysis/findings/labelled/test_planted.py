"""Each bottleneck planted in a healthy program is its first finding, with the planted time as the gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.analysis.findings.labelled.program import DISPATCH, LATENCY, Program
from tests.conftest import part

DEVICES = ("h100-sxm", "mi300x")


@dataclass(frozen=True, kw_only=True)
class Case:
    """``plant`` adds one bottleneck to a program and returns the time (µs) that is lost to it, for each step."""

    name: str
    device: str
    kind: str
    plant: Callable[[Program], float]
    steps: int = 0

    def __str__(self) -> str:
        return f"{self.name}-{self.device}"


#: kind -> events of the host that are it, as (category, name).
HOST_EVENTS = {
    "idle: Python or other host work": [("python_function", "train.py(31): augment")],
    "idle: first-time loading": [("cuda_runtime", "cuLibraryLoadData"), ("cuda_driver", "cuModuleLoadData")],
    "idle: allocator": [("cuda_runtime", "cudaMalloc"), ("cuda_runtime", "cudaFree"), ("cuda_runtime", "hipMalloc")],
    "idle: Python garbage collection": [("user_annotation", "Python GC")],
    "idle: compilation": [("user_annotation", "compile_fx_inner (dynamo_timed)"), ("cpu_op", "CachingAutotuner.benchmark_all_configs")],
    "idle: data loading": [("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")],
    "idle: communication on the host": [("user_annotation", "gloo:all_reduce")],
    "idle: profiler overhead": [("overhead", "Activity Buffer Request")],
}  # fmt: skip


def pause(cat: str, name: str, idle: float) -> Callable[[Program], float]:
    def plant(program: Program) -> float:
        program.busy(name, idle, cat)
        return idle - LATENCY

    return plant


def synchronized(count: int) -> Callable[[Program], float]:
    """Each wait empties the queue: the device idles for the return of the call, a dispatch and a launch."""

    def plant(program: Program) -> float:
        for _ in range(count):
            program.wait()
            program.host += 20
            program.gemm()
        return count * (2 + 20 + 1 + LATENCY)

    return plant


def optimizer_on_the_host(cat: str, name: str, each: float) -> Callable[[Program], float]:
    """The host waits for gradients, then computes with them: its own work is what the device idles for."""

    def plant(program: Program) -> float:
        program.wait()
        idle = program.host - program.free
        for _ in range(4):
            program.built.op(name, program.host, each, 1, cat)
            program.host += each
        program.gemm()
        return idle + 4 * each + 1 + LATENCY

    return plant


def launch_bound(count: int, each: float) -> Callable[[Program], float]:
    """Kernels of ``each`` µs behind launches of 8: the rest of the 8 is idle."""

    def plant(program: Program) -> float:
        program.wait()
        for _ in range(count):
            program.op("mine::tiny", "tiny_kernel", each, [[64]])
        return count * (DISPATCH - each)

    return plant


def fp32(m: int) -> Callable[[Program], float]:
    def plant(program: Program) -> float:
        slow, fast = (program.tflops("vector", "fp32"), program.tflops("matrix", "tf32"))
        duration = 2 * m**3 / slow / 1e6
        program.op("aten::mm", "ampere_sgemm_128x64_tn", duration, [[m, m], [m, m]], dtype="float")
        return duration * (1 - slow / fast)

    return plant


def attention(batch: int, length: int) -> Callable[[Program], float]:
    """Scores of ``batch`` x ``length`` x ``length`` through HBM: three times as long as the fused kernel's roofline."""

    def plant(program: Program) -> float:
        flops = 4 * batch * length * length * 64
        fused = flops / program.tflops("matrix", "bf16") / 1e6
        q, s = [batch, length, 64], [batch, length, length]
        parts = (fused * 4, fused * 6, fused * 2)
        program.op("aten::bmm", "Cijk_bmm", parts[0], [q, [batch, 64, length]])
        program.op("aten::_softmax", "softmax_warp_forward", parts[1], [s, [], []], scalars=["", "-1", "False"])
        program.op("aten::bmm", "Cijk_bmm", parts[2], [s, q])
        return sum(parts) - fused

    return plant


def slow_gemm(slowdown: float) -> Callable[[Program], float]:
    """38 x 32 tiles of 256 x 256 are four whole waves on the 304 units of an MI300X: such a GEMM can be as fast as the
    healthy ones, beyond which it takes the planted time. (256 tiles cannot: 48 units have none.)
    """

    def plant(program: Program) -> float:
        return sum(program.gemm(9728, 8192, 8192, slowdown=slowdown) * (1 - 1 / slowdown) for _ in range(4))

    return plant


def communication(ms: float) -> Callable[[Program], float]:
    def plant(program: Program) -> float:
        program.op("nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1e3 * ms, [[1024, 1024]])
        return 1e3 * ms

    return plant


def copies(ms: float) -> Callable[[Program], float]:
    def plant(program: Program) -> float:
        size = int(ms * 20e6)  # 20 GB/s
        program.built.op("aten::copy_", program.host, DISPATCH)
        program.launch("Memcpy HtoD (Pageable -> Device)", 1e3 * ms, at=program.host + 1, cat="gpu_memcpy", bytes=size)
        program.host += DISPATCH
        return 1e3 * ms * (1 - 20 / 64)  # PCIe 5.0 x16 has 64 GB/s

    return plant


def retries(count: int, each: float, prefix: str) -> Callable[[Program], float]:
    """Two calls that free and one that allocates while the device is idle for ``each`` µs, ``count`` times."""

    def plant(program: Program) -> float:
        for _ in range(count):
            begin, took = program.free, (each - LATENCY - 1) / 3
            for i, call in enumerate(("Free", "Free", "Malloc")):
                program.built.op(f"{prefix}{call}", begin + i * took, took, 1, "cuda_runtime")
            program.host = begin + 3 * took
            program.gemm()
        return count * (each - LATENCY)

    return plant


def fragmented(count: int, each: float) -> Callable[[Program], float]:
    """The driver is asked again and again, while 40 of 60 GB that the allocator holds are free."""

    def plant(program: Program) -> float:
        for _ in range(count):
            program.busy("hipMalloc", each, "cuda_runtime")
            program.built.events.append({
                "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
                "ts": program.host, "args": {"Bytes": 10**9, "Device Type": 1, "Device Id": 0, "Addr": 1,
                                             "Total Allocated": 20 * 10**9, "Total Reserved": 60 * 10**9},
            })  # fmt: skip
            program.gemm()
        return count * (each - LATENCY)

    return plant


def uneven_exchange(splits: list[int], ms: float) -> Callable[[Program], float]:
    """The rank that is sent most decides: with even splits the exchange takes mean over largest of its time."""

    def plant(program: Program) -> float:
        args = {"Collective name": "all_to_allv", "In msg nelems": sum(splits), "Out msg nelems": sum(splits),
                "Group size": len(splits), "dtype": "BFloat16", "In split size": str(splits),
                "Out split size": str(splits), "Process Group Ranks": str(list(range(len(splits))))}  # fmt: skip
        kernel = "ncclDevKernel_SendRecv"
        program.op("nccl:all_to_all", kernel, 1e3 * ms, [[sum(splits)]], kernel_args=args)
        return 1e3 * ms * (1 - sum(splits) / len(splits) / max(splits))

    return plant


def cases() -> Iterator[Case]:
    for prefix, device in (("cuda", "h100-sxm"), ("hip", "mi300x")):
        for count, each in ((3, 1_500.0), (20, 300.0)):
            plant = retries(count, each, prefix)
            yield Case(name=f"{count} retries", device=device, kind="allocator_retries", plant=plant)
            yield Case(
                name=f"{count} fragmented", device=device, kind="memory_fragmentation", plant=fragmented(count, each)
            )
        for splits in ([40_000, 5_000, 5_000, 6_000], [1_000] * 7 + [9_000]):
            plant = uneven_exchange(splits, 4.0)
            yield Case(name=f"experts {len(splits)}", device=device, kind="expert_imbalance", plant=plant)
    for device in DEVICES:
        for kind, events in HOST_EVENTS.items():
            for cat, name in events:
                for idle in (900.0, 4_000.0):
                    yield Case(name=f"{name}-{idle:g}", device=device, kind=kind, plant=pause(cat, name, idle))
        for cat, name in (("cpu_op", "aten::_fused_adamw_"), ("user_annotation", "Optimizer.step#CPUAdam.step")):
            plant = optimizer_on_the_host(cat, name, 2_000.0)
            yield Case(name=f"{name} on the host", device=device, kind="idle: Python or other host work", plant=plant)
        for count in (20, 80):
            yield Case(name=f"{count} waits", device=device, kind="queue_drained_by_waits", plant=synchronized(count))
        for each in (1.0, 3.0):
            yield Case(
                name=f"kernels of {each:g}", device=device, kind="idle: launch-bound", plant=launch_bound(400, each)
            )
        for batch, length in ((96, 2048), (32, 4096)):
            yield Case(
                name=f"attention {length}", device=device, kind="attention_from_parts", plant=attention(batch, length)
            )
        for slowdown in (1.5, 2.0, 3.0, 5.0):
            yield Case(
                name=f"gemm x{slowdown:g}", device=device, kind="op_below_roofline: compute", plant=slow_gemm(slowdown)
            )
        for ms in (1.0, 5.0):
            yield Case(
                name=f"all-reduce {ms:g} ms", device=device, kind="exposed_communication", plant=communication(ms)
            )
            yield Case(name=f"copy {ms:g} ms", device=device, kind="exposed_copies", plant=copies(ms))
    for m in (4096, 8192):
        yield Case(name=f"fp32 {m}", device="h100-sxm", kind="fp32_without_tf32", plant=fp32(m))


@pytest.mark.parametrize("case", part(list(cases()), 12), ids=str)
def test_the_planted_bottleneck_is_the_first_finding(case: Case) -> None:
    program = Program(case.device)
    program.healthy()
    planted = case.plant(program)
    program.healthy()
    program.wait()
    first, *_ = program.summary().findings or [None]
    assert first is not None, "nothing found"
    assert first.kind == case.kind, [(each.kind, each.gain_us, each.why) for each in program.summary().findings]
    assert first.gain_us == pytest.approx(planted, rel=0.1)


def test_host_work_is_named_where_it_was_recorded() -> None:
    program = Program("h100-sxm")
    program.healthy()
    optimizer_on_the_host("user_annotation", "Optimizer.step#CPUAdam.step", 8_000.0)(program)
    program.healthy()
    program.wait()
    (first, *_) = program.summary().findings
    assert "most of the longest is in Optimizer.step#CPUAdam.step" not in first.why, (
        "none of the four lasted for most of it"
    )
    program = Program("h100-sxm")
    program.healthy()
    pause("user_annotation", "Optimizer.step#CPUAdam.step", 8_000.0)(program)
    program.healthy()
    (first, *_) = program.summary().findings
    assert first.why.endswith("most of the longest is in Optimizer.step#CPUAdam.step")


@pytest.mark.parametrize(("gb_s", "advised"), [(12, True), (50, False)])
def test_a_copy_near_the_rate_of_its_link_is_not_told_to_use_pinned_memory(gb_s: int, advised: bool) -> None:
    """ROCm's copies do not say what memory they are of; one from pageable memory stays far below PCIe's 64 GB/s."""
    program = Program("mi300x")
    program.healthy()
    program.built.op("aten::copy_", program.host, DISPATCH)
    program.launch("CopyHostToDevice", 5_000, at=program.host + 1, cat="gpu_memcpy", bytes=gb_s * 5_000_000)
    program.host += DISPATCH
    (finding,) = (each for each in program.summary().findings if each.kind == "exposed_copies")
    assert ("pinned memory" in finding.remedy) == advised


def test_values_that_are_read_back_are_the_cause_of_what_python_does_then() -> None:
    """10 times 4 products of 0.17 ms, .item(), and 500 µs of Python, which the host would do beside the products."""
    program = Program("h100-sxm")
    for _ in range(10):
        program.healthy(4)
        program.built.op("aten::item", program.host, program.free - program.host + 10)
        program.built.op("aten::_local_scalar_dense", program.host + 1, program.free - program.host + 8)
        program.host += 2
        program.wait()
        program.host += 506
    program.healthy(4)
    first, *_ = program.summary().findings
    assert first.kind == "queue_drained_by_waits"
    assert "for the GPU in aten::item; the GPU then idles" in first.why
    assert first.gain_us == pytest.approx(10 * 500, rel=0.05)


def test_a_wait_spares_no_more_than_it_lasted() -> None:
    """40 products of 0.17 ms behind a wait for the last of them, then 20 waits of 50 µs before gaps of 300: that the
    first wait was long hides nothing of the others' gaps.
    """
    program = Program("h100-sxm")
    program.healthy()
    synchronized(1)(program)
    for _ in range(20):
        program.host = max(program.host, program.free - 50)
        program.wait()
        program.built.op("aten::view", program.host, 275)
        program.host += 275
        program.gemm()
    (finding,) = (each for each in program.summary().findings if each.kind == "queue_drained_by_waits")
    assert finding.gain_us == pytest.approx(20 * 50, rel=0.1)
    assert finding.time_us == pytest.approx(20 * 280, rel=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", part([200, 20], 2))
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_healthy_program_has_no_finding_above_three_percent(device: str, count: int, steps: int) -> None:
    program = Program(device)
    for _ in range(max(1, steps)):
        program.healthy(count)
        if steps:
            program.step()
    program.wait()
    summary = program.summary()
    window_us = summary.steps.time_us if summary.steps else summary.busy.total_us
    assert [(each.kind, each.gain_us / window_us) for each in summary.findings if each.gain_us > 0.03 * window_us] == []
