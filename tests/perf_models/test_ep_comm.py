"""Expert-parallel exchanges: wire bytes, an upper bound unless the routing is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.perf_models import EPComm


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
def test_the_expectation_never_exceeds_the_upper_bound(tokens: int, hidden: int, ranks: int):
    model = EPComm(tokens=tokens, hidden=hidden, ranks=ranks)
    assert 0 <= model.expected_wire_bytes() <= model.wire_bytes()  # type: ignore[operator]


def test_the_docstring_states_the_three_limits():
    text = EPComm.__doc__ or ""
    for limit in ("*effective* rate", "not device memory", "upper bound"):
        assert limit in " ".join(text.split())
