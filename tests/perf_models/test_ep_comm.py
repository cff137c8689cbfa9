"""Expert-parallel exchanges: rows, those that leave their rank, and the way back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import UsageError
from tracelens.perf_models import EPComm
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature


def test_wire_bytes_are_tokens_times_hidden_times_width():
    assert EPComm(tokens=4096, hidden=7168).wire_bytes() == 4096 * 7168 * 2
    assert EPComm(tokens=4096, hidden=7168, dtype=DType.FP32).wire_bytes() == 4096 * 7168 * 4


def test_there_is_no_arithmetic_and_no_claim_about_device_memory():
    model = EPComm(tokens=1, hidden=1)
    assert (model.flops(), model.hbm_bytes()) == (0, None)
    assert (model.category, model.engine) == ("EP_Communication", "none")


def test_an_unknown_dtype_gives_no_bytes():
    model = EPComm(tokens=1, hidden=1, dtype=DType.parse("Foo"), ranks=8)
    assert (model.wire_bytes(), model.expected_wire_bytes()) == (None, None)


def test_a_known_remote_share_scales_the_bytes():
    assert EPComm(tokens=100, hidden=8, remote_share=0.25).wire_bytes() == 100 * 8 * 2 * 0.25


def test_uniform_routing_leaves_one_rank_in_p_at_home():
    model = EPComm(tokens=100, hidden=8, ranks=8)
    assert model.expected_wire_bytes() == 100 * 8 * 2 * 7 / 8
    assert model.expected_wire_bytes(2) == 100 * 8 * 2 / 2
    assert EPComm(tokens=100, hidden=8).expected_wire_bytes() is None


def test_a_group_without_ranks_is_refused():
    with pytest.raises(UsageError, match="at least one rank, not 0"):
        EPComm(tokens=1, hidden=1).expected_wire_bytes(0)


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(1, 1024))
def test_the_expectation_never_exceeds_every_row(tokens: int, hidden: int, ranks: int):
    model = EPComm(tokens=tokens, hidden=hidden, ranks=ranks)
    assert 0 <= model.expected_wire_bytes() <= model.wire_bytes()  # type: ignore[operator]


def test_the_docstring_states_the_limits():
    text = EPComm.__doc__ or ""
    for limit in ("*effective* rate", "not device memory", "does not travel", "only the tokens are counted"):
        assert limit in " ".join(text.split())


def test_rows_are_copies_of_tokens_and_an_unknown_share_gives_no_wire_bytes():
    model = EPComm(tokens=100, hidden=8, rows=350, remote_share=0.75, phase="dispatch")
    assert (model.copies, model.exchanged_bytes(), model.wire_bytes()) == (3.5, 350 * 16, 350 * 16 * 0.75)
    unknown = EPComm(tokens=100, hidden=8, remote_share=None)
    assert (unknown.exchanged_bytes(), unknown.wire_bytes()) == (100 * 16, None)
    assert EPComm(tokens=100, hidden=None).exchanged_bytes() is None


def test_the_backward_of_a_dispatch_is_a_combine_of_its_copies_and_the_other_way_round():
    dispatch = EPComm(tokens=100, hidden=8, rows=350, phase="dispatch", dtype=DType.FP8_E4M3FN)
    back = dispatch.backward()
    assert (back.phase, back.copies, back.exchanged_bytes()) == ("combine", 3.5, 350 * 8 * 2)
    combine = EPComm(tokens=350, hidden=8, own_tokens=100, phase="combine")
    assert (combine.backward().phase, combine.backward().exchanged_bytes()) == ("dispatch", 350 * 16)


def test_a_backward_ops_own_tensor_says_what_it_sends():
    gradient = OpSignature(name="Back", shapes=((360, 8), ()), dtypes=("float", ""))
    back = EPComm(tokens=100, hidden=8, phase="dispatch").backward(gradient)
    assert (back.tokens, back.hidden, back.dtype, back.phase) == (360, 8, DType.FP32, "combine")
    without = OpSignature(name="Back", shapes=((), (360, 4)), dtypes=("", "float"))
    assert EPComm(tokens=100, hidden=8, phase="dispatch").backward(without).tokens == 100
