"""The simulated timeline of one device as a recorded trace, which ``tracelens report`` reads like any other."""

from __future__ import annotations

from pathlib import Path

from tracelens.hardware.recognition import recorded_properties
from tracelens.perf_models import PerfModel, recorded_signature
from tracelens.serving.costs import StepCost
from tracelens.serving.replica_state import Step
from tracelens.serving.step_time.exchanges import Exchange
from tracelens.signature import OpSignature
from tracelens.trace.writer import HostThread, RecordedKernel, RecordedLaunch, RecordedOp, RecordedTrace, write_trace

FS_PER_NS = 1_000_000


class Timeline:
    """Collects the first ``most`` steps of replica 0 and writes what its first device did in them.

    Every step is an annotation, every operation a kernel that ends when the simulation says, in whole nanoseconds; the
    host's time is the gap before a step's first kernel. Products and attention have their shapes and types; other
    operations their name alone. In a pipeline it is the first stage's device.
    """

    def __init__(self, cost: StepCost, *, most: int = 200) -> None:
        self._cost = cost
        self._most = most
        self._steps: list[Step] = []

    def __call__(self, replica: int, step: Step) -> None:
        """Takes a step in, as ``Simulation(record=...)`` hands it over."""
        if replica == 0 and len(self._steps) < self._most:
            self._steps.append(step)

    @property
    def is_full(self) -> bool:
        """Whether later steps were left out."""
        return len(self._steps) == self._most

    def write(self, path: Path) -> Path:
        """OutputError when the file cannot be written; UsageError without a step."""
        calls = tuple(self._step(number, step) for number, step in enumerate(self._steps))
        trace = RecordedTrace(
            threads=(HostThread(thread_id=1, calls=calls, name="server"),),
            devices=(recorded_properties(self._cost.system.device),),
            labels=(("generated_by", "tracelens serve: a simulation, no device ran this"),),
        )
        return write_trace(trace, path)

    def _step(self, number: int, step: Step) -> RecordedOp:
        calls = []
        time = step.start
        before, after = self._cost.end_operations(step.tokens, step.batch * self._cost.queries + len(step.chunks))
        kinds = iter(self._cost.stages[0])
        last_stage = len(step.stages) == 1
        work = step.stages[0]
        total = sum(run.count for run in work.layers)
        index = 0
        for run in work.layers:
            for _ in range(run.count):
                ops = self._cost.layer_operations(next(kinds), step.tokens, step.chunks, step.batch, step.context)
                if index == 0:
                    ops = [*before, *ops]
                if index == total - 1 and last_stage:
                    ops = [*ops, *after]
                index += 1
                # What the layer takes beyond its operations is the host's time before them
                end = time + run.compute_fs
                time = max(time, end - sum(fs for _, _, fs in ops))
                for name, model, fs in ops:
                    calls.append(_op(name, model, time, min(time + fs, end)))
                    time = min(time + fs, end)
                time = end
                for exchange in run.exchanges:
                    calls.append(_exchange(exchange, time))
                    time += exchange.time_fs
        start_ns, end_ns = step.start // FS_PER_NS, max(step.end, time) // FS_PER_NS
        return RecordedOp(
            signature=OpSignature(name=f"ProfilerStep#{number}"),
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            calls=tuple(calls),
            category="user_annotation",
        )


def _op(name: str, model: PerfModel, start: int, end: int) -> RecordedOp:
    signature = recorded_signature(model) or OpSignature(name=f"serve::{name}")
    return _launched(signature, name, start, end)


def _exchange(exchange: Exchange, start: int) -> RecordedOp:
    word = exchange.name.partition("/")[0]
    kernel = f"ncclDevKernel_{''.join(part.title() for part in word.split('_'))}_Sum_bf16_RING_LL"
    return _launched(OpSignature(name=f"serve::{word}"), kernel, start, start + exchange.time_fs)


def _launched(signature: OpSignature, kernel: str, start: int, end: int) -> RecordedOp:
    """An op that spans its kernel, so that calls nest whatever the durations are."""
    start_ns, end_ns = start // FS_PER_NS, end // FS_PER_NS
    recorded = RecordedKernel(name=kernel, start_ns=start_ns, duration_ns=end_ns - start_ns, stream=7)
    launch = RecordedLaunch(
        name="cudaLaunchKernel", start_ns=start_ns, duration_ns=end_ns - start_ns, kernels=(recorded,)
    )
    return RecordedOp(signature=signature, start_ns=start_ns, duration_ns=end_ns - start_ns, calls=(launch,))
