"""A program whose host and device are simulated: healthy GEMMs, into which a test plants one bottleneck."""

from __future__ import annotations

from typing import Any

from tests.analysis.conftest import MI300X, Builder
from tests.analysis.work.test_rates import H100
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.verdict.summary import Summary
from tracelens.analysis.verdict.verdict import summarize
from tracelens.hardware import HardwareSpec
from tracelens.types.dtypes import DType

PROPERTIES = {"h100-sxm": H100, "mi300x": MI300X}
#: µs: the host's time for an op, from a launch to its kernel on an idle device, and for a call of the runtime.
DISPATCH, LATENCY, CALL = 8.0, 5.0, 0.5
#: A healthy kernel's share of the device's achievable rate.
HEALTHY = 0.97
KERNELS = {"h100-sxm": "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN", "mi300x": "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64"}


class Program:
    """One host thread that launches on one stream. ``host`` and ``free`` (when the device has finished) are in µs."""

    def __init__(self, device: str) -> None:
        self.device, self.spec = device, HardwareSpec.load(device)
        self.built = Builder()
        self.host, self.free = 0.0, 0.0
        self._step = 0.0

    def op(self, name: str, kernel: str, duration: float, dims: list[list[int]], **more: Any) -> None:
        """An op with one kernel: bf16 unless ``dtype`` says else; ``scalars`` by position."""
        dtype, scalars = more.get("dtype", "c10::BFloat16"), more.get("scalars", [""] * len(dims))
        strides = [_contiguous(dim) for dim in dims]
        types = [dtype if dim else "Scalar" for dim in dims]
        self.built.op(
            name, self.host, DISPATCH - 1, **{"Input Dims": dims, "Input type": types, "Input Strides": strides,
                                              "Concrete Inputs": scalars},
        )  # fmt: skip
        self.launch(kernel, duration, at=self.host + 1, **more.get("kernel_args", {}))
        self.host += DISPATCH

    def launch(self, kernel: str, duration: float, *, at: float, cat: str = "kernel", **args: Any) -> None:
        start = max(self.free, at + LATENCY)
        self.built.launch(at, kernel, start, duration, cat=cat, **args)
        self.free = start + duration

    def gemm(self, m: int = 4096, n: int = 4096, k: int = 4096, **more: Any) -> float:
        """``aten::mm`` near the device's best rate, or ``slowdown`` times as long. Returns the kernel's µs."""
        duration = 2 * m * n * k / self.tflops("matrix", "bf16") / 1e6 / HEALTHY * more.pop("slowdown", 1.0)
        self.op("aten::mm", more.pop("kernel", KERNELS[self.device]), duration, [[m, k], [k, n]], **more)
        return duration

    def tflops(self, engine: str, dtype: str) -> float:
        """The best measured rate, else the data sheet's."""
        rate = self.spec.rate(engine, DType.parse(dtype))
        assert rate is not None
        return rate.achievable_tflops_s or rate.peak_tflops_s

    def healthy(self, count: int = 40) -> None:
        for _ in range(count):
            self.gemm()

    def wait(self) -> None:
        """The host waits for the device."""
        end = self.free + 2
        self.built.op("cudaStreamSynchronize", self.host, end - self.host, 1, "cuda_runtime")
        self.host = end

    def busy(self, name: str, idle: float, cat: str = "python_function", **args: Any) -> None:
        """The host is at something recorded until the device has been idle for ``idle`` µs, less the next launch."""
        end = self.free + idle - LATENCY - 1
        self.built.op(name, self.host, end - self.host, 1, cat, **args)
        self.host = end

    def step(self) -> None:
        """Everything since the last step was one step of training."""
        number = sum(event["name"].startswith("ProfilerStep") for event in self.built.events)
        self.built.op(f"ProfilerStep#{number}", self._step, self.host - self._step, 1, "user_annotation")
        self._step = self.host = self.host + 1

    def summary(self) -> Summary:
        return summarize(analyze(self.built.trace(deviceProperties=[PROPERTIES[self.device]]), AnalysisOptions()))


def _contiguous(dims: list[int]) -> list[int]:
    strides = [1] * len(dims)
    for i in range(len(dims) - 2, -1, -1):
        strides[i] = strides[i + 1] * dims[i + 1]
    return strides
