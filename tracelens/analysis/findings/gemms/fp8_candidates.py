"""GEMMs left in 16 bits by a program that computes others in FP8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import percent
from tracelens.analysis.verdict.summary import Said
from tracelens.dtypes import DType
from tracelens.perf_models.matrix.gemm import GEMM

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
    rows = seen.rows[(seen.rows["model"] == "GEMM") & (seen.rows["roofline_us"] > 0)]
    models = [seen.model_of(row) for row in rows["example_row"].tolist()]
    types = [_type(model) for model in models]
    rows = rows[np.array([each in _WIDE for each in types], np.bool_)]
    if rows.empty or not any(each is not None and each.rate == "fp8" for each in types):
        return
    wide = [model for model in models if isinstance(model, GEMM) and model.dtype in _WIDE]
    before, _ = seen.expected_us(wide)
    fp8 = DType.FP8_E4M3FN
    after, _ = seen.expected_us([replace(m, dtype=fp8, dtype_b=fp8, dtype_out=m.dtype) for m in wide])
    saved = np.nan_to_num(1 - after / before)
    rows, saved = rows[saved > _LEAST_SAVED], saved[saved > _LEAST_SAVED]
    if rows.empty:
        return
    text, figures = seen.said_of(rows, "GEMM")
    share = float((saved * rows["kernel_us_sum"]).sum() / rows["kernel_us_sum"].sum())
    yield Candidate(
        why=f"{text}, in BF16 or FP16: FP8 would take {percent(share)} less, by estimate",
        claimed=seen.calls(rows, saved, low=0.0),
        computed="each GEMM's time, times 1 - FP8 / 16 bits by the tile model; at least none of it",
        certainty="low",
        figures=(*figures, Said(what="saved", value=share, unit="share")),
        evidence=seen.evidence(rows.index),
        row=seen.example_of(rows.index[0]),
    )


def _type(model: object) -> DType | None:
    """What a GEMM computes in."""
    return model.dtype if isinstance(model, GEMM) else None
