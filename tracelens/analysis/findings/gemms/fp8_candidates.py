"""GEMMs left in 16 bits by a program that computes others in FP8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import percent
from tracelens.analysis.verdict.summary import Said
from tracelens.dtypes import DType

_WIDE = (DType.BF16, DType.FP16)
#: Share of its time that FP8 must save of a GEMM.
_LEAST_SAVED = 0.1


@finding(
    "fp8_candidates",
    Advice(
        sees="GEMMs in BF16 or FP16, of shapes that gain from FP8, in a program that computes others in FP8. Whether a "
        "program without any may use it, a trace cannot say: `tracelens whatif --precision fp8` prices that.",
        costs="FP8 doubles the rate of the matrix units and halves the bytes of the operands.",
        remedy="FP8 for the large linear layers: Transformer Engine, torchao float8, or an engine's quantization",
        wrong_when="Accuracy does not allow it, or quantizing the inputs takes what the GEMM saves.",
        references=("Micikevicius et al., FP8 formats for deep learning, 2022, arXiv:2209.05433",),
        is_general=True,
    ),
)
def fp8_candidates(seen: Observed) -> Iterator[Candidate]:
    """Gain: as much of their time as the tile model says that FP8 saves; at least none of it."""
    device = seen.device
    if device is None or device.rate("matrix", DType.FP8_E4M3FN) is None:
        return
    rows, models = seen.gemms
    types = [model.dtype for model in models]
    if not any(each is not None and each.rate == "fp8" for each in types):
        return
    wide = np.array([each in _WIDE for each in types], np.bool_)
    rows, models = rows[wide], models[wide].tolist()
    before, _ = seen.expected_us(models)
    fp8 = DType.FP8_E4M3FN
    after, _ = seen.expected_us([replace(m, dtype=fp8, dtype_b=fp8, dtype_out=m.dtype) for m in models])
    saved = np.nan_to_num(1 - after / before)
    rows, saved = rows[saved > _LEAST_SAVED], saved[saved > _LEAST_SAVED]
    if rows.empty:
        return
    share = float((saved * rows["kernel_us_sum"]).sum() / rows["kernel_us_sum"].sum())
    rest = Candidate(
        why=f" in BF16 or FP16; FP8 would take {percent(share)} less, by estimate",
        claimed=seen.calls(rows, saved, low=0.0),
        computed="each GEMM's time, times 1 - FP8 / 16 bits by the tile model; at least none of it",
        certainty="low",
        figures=(Said(what="saved", value=share, unit="share"),),
    )
    yield from candidate_of_calls(seen, rows, "GEMM", rest)
