"""A program is simulated as it is and changed; the change asked of the recording of the first gives the second."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from tests.analysis.conftest import Builder
from tests.conftest import part
from tracelens.comparison.whatif.what_if import what_if

#: Of what is ready: us until it starts on the device, and on a stream that waits for another one.
LAUNCH_US, WAIT_US = 5, 2
COMPUTE, SEND = 7, 20


@dataclass(frozen=True)
class Op:
    """``host_us`` before its launch and ``kernel_us`` on its stream; what a collective sends all later kernels need."""

    name: str
    host_us: float
    kernel_us: float
    is_collective: bool = False


def program(seed: int, host: tuple[int, int]) -> list[Op]:
    draw = random.Random(seed)  # noqa: S311
    names = ("aten::mm", "aten::relu", "aten::add")
    ops = [Op(draw.choice(names), draw.randint(*host), draw.randint(20, 60)) for _ in range(24)]
    for at in (8, 17):
        ops[at] = Op("c10d::allreduce_", draw.randint(*host), 100, is_collective=True)
    return ops


def recorded(ops: Sequence[Op]) -> Builder:
    """Ops one after the other on a thread; a stream for kernels, one for collectives; a synchronization at the end."""
    built, now, free = Builder(), 0.0, {COMPUTE: 0.0, SEND: 0.0}
    for op in ops:
        stream = SEND if op.is_collective else COMPUTE
        built.op(op.name, now, op.host_us)
        now += op.host_us
        other = free[COMPUTE] + WAIT_US if op.is_collective and free[COMPUTE] else 0.0
        start = max(now - 1 + LAUNCH_US, free[stream], other)
        kernel = "ncclDevKernel_AllReduce_Sum_bf16" if op.is_collective else f"{op.name[6:]}_kernel"
        built.launch(now - 1, kernel, start, op.kernel_us, stream=stream)
        free[stream] = start + op.kernel_us
        if op.is_collective:
            free[COMPUTE] = free[SEND] + WAIT_US
    end = max(now, free[COMPUTE]) + 3
    return built.op("cudaDeviceSynchronize", now, end - now, 1, "cuda_runtime")


def step_us(ops: Sequence[Op]) -> float:
    return what_if(recorded(ops).trace()).before.step_us


@pytest.mark.parametrize("host", [(2, 6), (30, 60), (70, 110)], ids=["device-bound", "both", "host-bound"])
@pytest.mark.parametrize("seed", part(range(3), 3))
def test_a_change_is_what_the_changed_program_takes(seed: int, host: tuple[int, int]) -> None:
    ops = program(seed, host)
    trace = recorded(ops).trace()
    asked = {
        "scale": (("aten::mm=0.5",), [replace(op, kernel_us=op.kernel_us / 2) if op.name == "aten::mm" else op for op in ops]),
        "remove": (("aten::relu",), [op for op in ops if op.name != "aten::relu"]),
    }  # fmt: skip
    for option, (value, changed) in asked.items():
        assert what_if(trace, **{option: value}).after.step_us == pytest.approx(step_us(changed), rel=0.03), option
    quicker = [replace(op, kernel_us=op.kernel_us / 2) if op.is_collective else op for op in ops]
    assert what_if(trace, scale=("collectives=0.5",)).after.step_us == pytest.approx(step_us(quicker), rel=0.03)
    faster = [replace(op, host_us=1 + (op.host_us - 1) / 2) for op in ops]
    found, truth = what_if(trace, scale=("host=0.5",)).after.step_us, step_us(faster)
    # Kernels launched after a collective ended may wait for it or not: such a recording does not say
    assert 0.9 * truth <= found <= 1.03 * truth
    if max(host) < 70:
        assert found == pytest.approx(truth, rel=0.03)
