"""Many tiny GEMMs of the same weights' shape: experts that run one after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.work.limits import rate_of
from tracelens.units import FLOPS_PER_GFLOP, TERA_PER_S_IN_PER_US

#: GEMMs of one weight shape, and different numbers of rows among them, from which they are taken for experts.
_MANY, _DIFFERENT = 16, 3
#: Longest mean time of such a GEMM.
_SHORT_US = 50.0


@finding(
    "expert_loop",
    Advice(
        sees="Many short GEMMs with weights of one shape and changing numbers of rows: experts one after the other.",
        costs="Each expert's few tokens fill a part of the device for a few microseconds, and cost a launch each.",
        remedy="one grouped GEMM for all experts: torch._grouped_mm, grouped_gemm, Triton or the engine's fused MoE",
        wrong_when="Each expert has thousands of tokens: its own GEMM then fills the device.",
        references=("Gale et al., MegaBlocks, 2022, arXiv:2211.15841",),
    ),
)
def expert_loop(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time above that of their FLOPs and bytes at the device's rates."""
    device, (rows, models) = seen.device, seen.gemms
    short = (rows["kernel_us_mean"].to_numpy() < _SHORT_US) & (rows["gflops"].to_numpy() > 0)
    if device is None or device.hbm is None or device.hbm.tb_s is None or not short.any():
        return
    rows, models = rows[short], models[short]
    calls, heights = Counter[tuple[int, int]](), defaultdict[tuple[int, int], set[int]](set)
    for model, count in zip(models.tolist(), rows["operation_count"].tolist(), strict=True):
        calls[model.n, model.k] += count
        heights[model.n, model.k].add(model.m)
    experts = {
        weights for weights in calls if calls[weights] >= _MANY * seen.steps and len(heights[weights]) >= _DIFFERENT
    }
    rows = rows[np.array([(model.n, model.k) in experts for model in models], np.bool_)]
    if rows.empty:
        return
    rates = [rate_of(device, str(spec)) for spec in rows["compute_spec"]]
    tflops = np.array([np.nan if rate is None else rate.tflops_s for rate in rates], np.float64)
    least_us = np.fmax(
        rows["gflops"] * FLOPS_PER_GFLOP / tflops / TERA_PER_S_IN_PER_US, rows["hbm_mb"] / device.hbm.tb_s
    )
    rest = Candidate(
        why=": experts one after the other",
        claimed=seen.calls(rows, 1 - least_us / rows["kernel_us_mean"], spares_launches=True),
        computed="their time, less that of their FLOPs and bytes at the device's rates in one grouped GEMM",
    )
    yield from candidate_of_calls(seen, rows, "short GEMM", rest)
