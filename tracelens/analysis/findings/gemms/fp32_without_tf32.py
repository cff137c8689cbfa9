"""FP32 GEMMs and convolutions that leave TF32 unused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted, takes
from tracelens.analysis.verdict.summary import Said
from tracelens.analysis.work.limits import launch_floor_us
from tracelens.dtypes import DType
from tracelens.perf_models.compute_type import FP32
from tracelens.units import FLOPS_PER_GFLOP, TERA_PER_S_IN_PER_US


@finding(
    "fp32_without_tf32",
    Advice(
        sees="FP32 GEMMs or convolutions whose kernels, by their names, did not use TF32 on a device that has it.",
        costs="FP32 runs on the vector units, TF32 on the matrix units, which do several times as many FLOPs.",
        remedy="torch.set_float32_matmul_precision('high') (torch.backends.cudnn.allow_tf32 = True), or autocast "
        "to BF16",
        wrong_when="The model needs all 24 bits of FP32's significand.",
        references=("https://pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices",),
    ),
)
def fp32_without_tf32(seen: Observed) -> Iterator[Candidate]:
    """Gain: the time of these calls at the same share of the roofline, with TF32's rate."""
    device = seen.device
    rates = [device.rate("matrix", dtype) for dtype in (DType.FP32, DType.TF32)] if device is not None else [None, None]
    if device is None or rates[1] is None or (rates[0] is not None and rates[1].tflops_s <= rates[0].tflops_s):
        return
    rows = seen.rows_where(
        (seen.column("computed_in") == FP32.label) & (seen.column("roofline_us") > 0) & (seen.column("gflops") > 0)
    )
    if rows.empty:
        return
    compute_us = rows["gflops"] * FLOPS_PER_GFLOP / rates[1].tflops_s / TERA_PER_S_IN_PER_US
    memory = device.hbm.tb_s if device.hbm is not None else None
    memory_us = rows["hbm_mb"] / memory if memory is not None else rows["roofline_us"]
    floor_us = rows["kernels_per_call"] * launch_floor_us(device)
    least_us = np.minimum(np.fmax(np.fmax(compute_us, memory_us), floor_us), rows["roofline_us"])
    calls, time_us = int(rows["operation_count"].sum()), float(rows["kernel_us_sum"].sum())
    yield Candidate(
        why=f"{counted(calls, 'FP32 GEMM or convolution call')} without TF32 {takes(calls)} "
        f"{seen.share_text(time_us)}; allow TF32 where its 10-bit mantissa is enough",
        claimed=seen.calls(rows, 1 - least_us / rows["roofline_us"]),
        computed="each call's time, at the same share of its roofline with TF32's rate in the place of FP32's",
        figures=(Said(what="calls in FP32", value=calls, unit="count"), seen.gpu_share(time_us)),
        evidence=seen.evidence(rows.index),
        row=seen.example_of(rows.index[0]),
    )
