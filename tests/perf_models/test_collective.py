"""Bus factors: nccl-tests' figures, and what a rank sends in the bandwidth-optimal exchange."""

import pytest

from tracelens.perf_models.collective import Collective, bus_factor


@pytest.mark.parametrize(
    ("word", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("all_to_allv", 0.875), ("gather", 0.875), ("broadcast", 1.0)],
)
def test_bus_factors_of_eight_ranks_are_those_of_nccl_tests(word, factor):
    assert bus_factor(word, 8) == factor


def test_a_bus_factor_is_unknown_without_ranks_or_for_no_collective():
    assert bus_factor("all_reduce", None) is None
    assert bus_factor("barrier", 8) is None


@pytest.mark.parametrize("ranks", [2, 3, 8, 72])
@pytest.mark.parametrize("word", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_the_bus_carries_what_a_rank_sends(word, ranks):
    full = 3 * 8 * 72
    gathers = word == "all_gather"
    model = Collective(kind=word, elements_in=full // ranks if gathers else full, elements_out=full, ranks=ranks)
    assert model.wire_bytes() == pytest.approx(bus_factor(word, ranks) * full * 2)
