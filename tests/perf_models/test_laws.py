"""Laws that hold for every family: additive over the batch, at least the minimum, monotone, None when unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.dtypes import DType
from tracelens.perf_models import (
    GEMM,
    SDPA,
    Collective,
    Conv,
    EPComm,
    GroupedGEMM,
    Normalization,
    PerfModel,
    Reduce,
    RMSNorm,
    Softmax,
)

Make = Callable[[int, DType | None], PerfModel]


def _conv(b: int, dtype: DType | None) -> Conv:
    return Conv(x=(b, 3, 9, 9), w=(5, 3, 3, 3), stride=(1, 1), padding=(0, 0), dilation=(1, 1), output_padding=(0, 0),
                bias=True, dtype=dtype)  # fmt: skip


#: One model of each family with a batch of ``b``, and its FLOPs that do not scale with the batch.
FAMILIES: dict[str, tuple[Make, int]] = {
    "gemm": (lambda b, d: GEMM(b=b, m=3, n=5, k=7, bias=True, dtype=d), 0),
    "gemm_rows": (lambda b, d: GEMM(m=b, n=5, k=7, bias=True, dtype=d), 0),
    "grouped_gemm": (lambda b, d: GroupedGEMM(m=b, n=5, k=7, groups=3, dtype=d), 0),
    "grouped_gemm_backward": (lambda b, d: GroupedGEMM(m=b, n=5, k=7, groups=3, dtype=d).backward(), 0),
    "sdpa": (lambda b, d: SDPA(b=b, s_q=9, s_kv=11, q_heads=4, kv_heads=2, d_qk=8, d_v=6, mask="bottom_right", dtype=d), 0),
    "sdpa_backward": (lambda b, d: SDPA(b=b, s_q=9, s_kv=11, q_heads=4, kv_heads=2, d_qk=8, d_v=6, dtype=d).backward(), 0),
    "conv": (_conv, 0),
    "conv_backward": (lambda b, d: _conv(b, d).backward(), 0),
    "layer_norm": (lambda b, d: Normalization(shape=(b, 16), channels=16, statistics=b, weight=True, dtype=d), 6 * 16),
    "rms_norm": (lambda b, d: RMSNorm(shape=(b, 16), channels=16, statistics=b, weight=True, dtype=d), 0),
    "rms_norm_backward": (lambda b, d: RMSNorm(shape=(b, 16), channels=16, statistics=b, dtype=d).backward(), 0),
    "softmax": (lambda b, d: Softmax(shape=(b, 16), dtype=d), 0),
    "reduce": (lambda b, d: Reduce(elements=16 * b, results=b, kind="sum", dtype=d), 0),
}  # fmt: skip
BATCH = st.integers(1, 10_000)
every_family = pytest.mark.parametrize(("make", "fixed"), FAMILIES.values(), ids=FAMILIES)


@every_family
@given(BATCH, BATCH)
def test_flops_are_additive_over_the_batch(make: Make, fixed: int, a: int, b: int):
    together, apart = make(a + b, DType.BF16).flops(), [make(n, DType.BF16).flops() for n in (a, b)]
    assert together - fixed == sum(f - fixed for f in apart)  # type: ignore[operator,misc]


@every_family
@given(BATCH)
def test_bytes_grow_with_the_batch_and_with_the_width(make: Make, fixed: int, b: int):
    nbytes = make(b, DType.BF16).hbm_bytes()
    assert nbytes is not None
    assert make(b + 1, DType.BF16).hbm_bytes() > nbytes  # type: ignore[operator]
    assert make(b, DType.FP32).hbm_bytes() > nbytes  # type: ignore[operator]


@every_family
def test_an_unknown_dtype_gives_no_bytes_and_keeps_the_flops(make: Make, fixed: int):
    assert make(3, DType.parse("Foo")).hbm_bytes() is None
    assert make(3, DType.parse("Foo")).flops() == make(3, DType.BF16).flops()


@every_family
def test_what_does_not_communicate_has_no_wire_bytes(make: Make, fixed: int):
    assert make(3, DType.BF16).wire_bytes() == 0


@given(st.integers(0, 10**6), st.integers(1, 8192), st.floats(0, 1))
def test_wire_bytes_never_exceed_the_tensor(tokens: int, hidden: int, share: float):
    assert 0 <= EPComm(tokens=tokens, hidden=hidden, remote_share=share).wire_bytes() <= tokens * hidden * 2  # type: ignore[operator]


@given(st.integers(1, 10**9), st.integers(1, 1024))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(n: int, ranks: int):
    def wire(kind: str, n_in: int, n_out: int) -> float:
        return Collective(kind=kind, elements_in=n_in, elements_out=n_out, ranks=ranks).wire_bytes()  # type: ignore[return-value]

    assert wire("all_reduce", n, n) == pytest.approx(
        wire("reduce_scatter", n, n // ranks) + wire("all_gather", n // ranks, n)
    )
