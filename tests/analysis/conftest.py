"""Small traces, written as Kineto writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.trace.event_texts import read_events
from tracelens.analysis.loaded_trace import Trace

MI300X = {
    "id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4,
    "warpSize": 64, "numSms": 304,
}  # fmt: skip


class Builder:
    """Events in µs; ``launch`` adds the runtime call and its kernel."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.correlation = 0

    def op(self, name: str, start: float, duration: float, tid: int = 1, cat: str = "cpu_op", **args: Any) -> Builder:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": duration, "args": args}
        )
        return self

    def launch(
        self,
        at: float,
        kernel: str,
        start: float,
        duration: float,
        *,
        stream: int = 7,
        tid: int = 1,
        cat: str = "kernel",
        **args: Any,
    ) -> Builder:
        self.correlation += 1
        self.op("cudaLaunchKernel", at, 0.5, tid, "cuda_runtime", correlation=self.correlation)
        return self.kernel(kernel, start, duration, stream=stream, cat=cat, correlation=self.correlation, **args)

    def kernel(
        self, name: str, start: float, duration: float, *, stream: int = 7, cat: str = "kernel", **args: Any
    ) -> Builder:
        event = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": duration}
        self.events.append({**event, "args": {"stream": stream, "device": 0, **args}})
        return self

    def mm(self, m: int, k: int, n: int, at: float, start: float, duration: float, **more: Any) -> Builder:
        """An ``aten::mm`` in bf16 with its one kernel."""
        self.op(
            "aten::mm", at, 5,
            **{"Input Dims": [[m, k], [k, n]], "Input type": ["c10::BFloat16"] * 2, "Input Strides": [[k, 1], [n, 1]],
               "Concrete Inputs": ["", ""]},
        )  # fmt: skip
        return self.launch(at + 1, "Cijk_Ailk_Bljk", start, duration, **more)

    def trace(self, **metadata: Any) -> Trace:
        return Trace.of(read_events(self.events, {"deviceProperties": [MI300X], **metadata}, source="built.json"))


@pytest.fixture
def build() -> Callable[[], Builder]:
    return Builder
