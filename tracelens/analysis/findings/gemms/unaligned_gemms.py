"""GEMMs with rows that do not start at multiples of a load instruction's width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted, takes
from tracelens.analysis.verdict.summary import Said
from tracelens.perf_models.matrix.gemm import GEMM

#: Bytes that one load instruction fetches; GEMM kernels fall back to narrower ones where rows start in between.
ALIGNMENT_BYTES = 16
#: Elements that rows are padded to, see the remedy.
_PADDED_TO = 64
#: Narrower operands are vectors.
_LEAST_COLUMNS = 8


@finding(
    "unaligned_gemms",
    Advice(
        sees="GEMMs with rows that do not start at multiples of a load instruction's width.",
        costs="Kernels for such operands load two or four bytes at a time in the place of sixteen, and often leave the "
        "matrix units waiting.",
        remedy="pad the odd dimension (vocabulary, hidden size, classes) to a multiple of 64 elements",
        wrong_when="The padded work costs more than the faster kernel saves: small dims.",
        references=(
            "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html",
        ),
    ),
)
def unaligned_gemms(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time above the roofline."""
    rows, models = seen.gemms
    odd = [unaligned_dims(model) for model in models]
    unaligned = np.array([bool(dims) for dims in odd], bool)
    rows, models = rows[unaligned], models[unaligned]
    if rows.empty:
        return
    by_dim: dict[int, float] = {}
    for us, dims in zip(rows["kernel_us_sum"], filter(None, odd), strict=True):
        by_dim |= {dim: by_dim.get(dim, 0.0) + us for dim in dims}
    most = sorted(by_dim, key=lambda dim: (-by_dim[dim], dim))[:2]
    padded_us, _ = seen.expected_us([_padded(model) for model in models])
    calls, time_us = int(rows["operation_count"].sum()), float(rows["kernel_us_sum"].sum())
    yield Candidate(
        why=f"{counted(calls, 'GEMM')} {takes(calls)} {seen.share_text(time_us)}: rows of "
        f"{', '.join(map(str, most))} elements are not aligned to {ALIGNMENT_BYTES} bytes; pad them",
        claimed=seen.calls(
            rows,
            1 - padded_us / rows["kernel_us_mean"],
            low=0.0,
            high=1 - np.fmin(rows["roofline_us"], padded_us) / rows["kernel_us_mean"],
        ),
        computed="their time above what the tile model expects of the padded GEMM, at most that above the roofline",
        certainty="low",
        figures=(
            Said(what="unaligned GEMMs", value=calls, unit="count"),
            seen.gpu_share(time_us),
            *(Said(what="elements of a row", value=dim, unit="count") for dim in most),
        ),
        evidence=seen.evidence(rows.index),
        row=seen.example_of(rows.index[0]),
    )


def _padded(model: GEMM) -> GEMM:
    """With N and K of multiples of 64 elements."""
    n, k = (-(-dim // _PADDED_TO) * _PADDED_TO for dim in (model.n, model.k))
    return replace(model, n=n, k=k, stride_a=None, stride_b=None)


def unaligned_dims(gemm: GEMM) -> list[int]:
    """Lengths of rows, as they lie in memory, that are no multiple of 16 bytes."""
    if gemm.dtype is None or min(gemm.m, gemm.n, gemm.k) < _LEAST_COLUMNS:
        return []
    elements = max(1, int(ALIGNMENT_BYTES / gemm.dtype.width_bytes))
    row_a, row_b = _row_length(gemm.stride_a, gemm.k), _row_length(gemm.stride_b, gemm.n)
    return sorted({dim for dim in (row_a, row_b, gemm.n) if dim % elements})


def _row_length(stride: tuple[int, ...] | None, columns: int) -> int:
    """Elements from the start of one row of a matrix to the next in memory, of a column where these lie together."""
    if stride is None or len(stride) < 2 or 1 not in stride[-2:]:
        return columns
    return max(stride[-2:])
