"""DeepEP's kernels: what they move, the laws of their times, and the published bandwidths."""

from __future__ import annotations

import dataclasses
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InputError, UsageError
from tracelens.predict.network.deepep import (
    DeepEP,
    Exchanges,
    Fabric,
    LowLatencyConstants,
    NormalConstants,
    _read,
    bound_us,
    distinct,
    low_latency_us,
    normal_us,
    notify_us,
)

HOPPER = Fabric(link_gb_s=450, nic_gb_s=50, ranks_per_node=8, compute_units=132)
DEEPSEEK = Exchanges(phase="dispatch", tokens=4096.0, hidden=7168.0, topk=8.0, experts=256.0, nodes=1.0)


@pytest.mark.parametrize(
    ("places", "experts", "topk", "expected"), [(8, 256, 8, 5.29), (32, 256, 8, 7.27), (8, 8, 2, 2.0), (1, 16, 4, 1.0)]
)
def test_expected_distinct_places(places, experts, topk, expected):
    assert float(distinct(places, experts, topk)) == pytest.approx(expected, rel=2e-3)


def test_distinct_is_drawing_without_replacement():
    assert float(distinct(4, 16, 3)) == pytest.approx(4 * (1 - comb(12, 3) / comb(16, 3)))


def test_more_choices_than_experts_is_an_error():
    with pytest.raises(UsageError, match="at most the number of experts"):
        distinct(8, 4, 5)


def test_a_dispatched_token_is_fp8_with_scales_and_a_combined_one_bf16():
    assert DEEPSEEK.token_bytes == 7168 + 4 * 56
    assert dataclasses.replace(DEEPSEEK, phase="combine").token_bytes == 14336


@pytest.mark.parametrize(("phase", "published"), [("dispatch", 153), ("combine", 158)])
def test_h800_within_a_node_reaches_the_published_bandwidth(phase, published):
    # nothing was fitted there: the share of the link is H200's; their figure counts copies that stay, too
    given_ = dataclasses.replace(DEEPSEEK, phase=phase, sms=24.0)
    time = normal_us(given_, dataclasses.replace(HOPPER, link_gb_s=200))
    assert 4096 * float(given_.copies(8)) * given_.token_bytes / float(time) / 1e3 == pytest.approx(published, rel=0.08)


@pytest.mark.parametrize(
    ("phase", "published"), [("dispatch", (118, 155, 173, 192, 194)), ("combine", (195, 273, 314, 369, 360))]
)
def test_h800_low_latency_at_16_to_256_ranks(phase, published):
    # DeepEP's README: 128 tokens, hidden 7168, top 8 of 256
    nodes = np.array([2.0, 4, 8, 16, 32])
    shape = dataclasses.replace(DEEPSEEK, phase=phase, tokens=128.0, nodes=nodes)
    off = low_latency_us(shape, dataclasses.replace(HOPPER, link_gb_s=200)) / np.array(published) - 1
    assert np.abs(off).mean() < 0.065
    assert np.abs(off).max() < 0.15


SHAPES = st.builds(
    Exchanges,
    phase=st.sampled_from(["dispatch", "combine"]),
    tokens=st.floats(1, 1e6),
    hidden=st.floats(128, 16384),
    topk=st.sampled_from([1.0, 2.0, 8.0]),
    experts=st.sampled_from([8.0, 64.0, 256.0]),
    nodes=st.sampled_from([1.0, 2.0, 4.0, 16.0]),
    sms=st.floats(4, 64),
)
KERNELS = st.sampled_from([normal_us, low_latency_us])


@given(KERNELS, SHAPES, st.sampled_from(["tokens", "hidden"]), st.floats(1, 10))
def test_more_work_never_takes_less_time(kernels, shape, dimension, factor):
    more = dataclasses.replace(shape, **{dimension: getattr(shape, dimension) * factor})
    assert kernels(shape, HOPPER) <= kernels(more, HOPPER) * (1 + 1e-12)


@given(SHAPES, st.floats(1, 4))
def test_more_sms_are_never_slower(shape, factor):
    assert normal_us(dataclasses.replace(shape, sms=shape.sms * factor), HOPPER) <= normal_us(shape, HOPPER) * (
        1 + 1e-12
    )


@given(SHAPES)
def test_a_notification_is_between_nodes_only(shape):
    assert (notify_us(shape, HOPPER) > 0) == (shape.nodes > 1)


@given(KERNELS, SHAPES, st.floats(1, 4), st.floats(1, 4))
def test_a_wider_link_is_never_slower(kernels, shape, link, nic):
    wide = dataclasses.replace(HOPPER, link_gb_s=450 * link, nic_gb_s=50 * nic)
    assert kernels(shape, wide) <= kernels(shape, HOPPER) * (1 + 1e-12)


@given(KERNELS, SHAPES)
def test_no_kernel_beats_remote_bytes_over_the_peak_rates(kernels, shape):
    assert kernels(shape, HOPPER) >= bound_us(shape, HOPPER)


#: Round figures, each another, so that a figure in the wrong place shows. Rates: 100,000 and 25,000 bytes per us.
FIGURES = Fabric(link_gb_s=200, nic_gb_s=100, ranks_per_node=2, compute_units=4)
NORMAL = NormalConstants(
    floor_us=10, floor_us_per_khidden=3, token_ns=40, copy_ns=60, copy_ns_per_byte=0.02, token_ns_per_byte=0.01,
    link_share=0.5, peer_us=7, fill_us=5, nic_share=0.25, sm_gb_s=2, notify_us=11, notify_peer_us=13,
    notify_fill_us=17, notify_copy_ns=500, source="",
)  # fmt: skip
#: 4000 bytes a token; every one of the 4 experts is chosen, so that a token goes to every rank.
EVERY = Exchanges(phase="combine", tokens=256.0, hidden=2000.0, topk=4.0, experts=4.0, nodes=1.0, sms=10.0)


def p(power, *terms):
    return sum(term**power for term in terms) ** (1 / power)


def test_equally_busy_resources_do_not_overlap_without_gaps():
    # each 1 us: 2 copies of 4000 bytes / 8,000 bytes per us, and 10,000 ns / 10 SMs: p8(1, 1) = 2^(1/8)
    even = dataclasses.replace(
        NORMAL, token_ns=10_000 - 2 * 60, copy_ns_per_byte=0, token_ns_per_byte=0, link_share=0.04, floor_us=0,
        floor_us_per_khidden=0,
    )  # fmt: skip
    assert float(normal_us(EVERY, FIGURES, even)) == pytest.approx(256 * 2 ** (1 / 8))


def test_a_normal_exchange_by_hand():
    # 1 node: (40 + 2 * 60 + (2 * 0.02 + 0.01) * 4000) ns / 10 SMs = 0.036 us; link 2 * 4000 / 100,000 = 0.08 us
    floor = 10 + 3 * 2000 / 1024
    assert float(normal_us(EVERY, FIGURES, NORMAL)) == pytest.approx(floor + 256 * p(8, 0.036, 0.08))
    # 2 nodes, 4 ranks: a token crosses once, 4000 / 25,000 = 0.16 us; link 4 * 4000 / 100,000 = 0.16;
    # forwarded 5 * 4000 / (2000 * 10) = 1; half of the buffers are filled at 256 tokens
    two = dataclasses.replace(EVERY, nodes=2.0)
    expected = floor + 7 * 1 + 5 * 2 * 256 / 512 + 256 * p(8, 0.16, 0.16, 1)
    assert float(normal_us(two, FIGURES, NORMAL)) == pytest.approx(expected)
    # 11 + 13 + 17 / 2 + 500 ns * 256 tokens * 5 copies / 10 SMs
    assert float(notify_us(two, FIGURES, NORMAL)) == pytest.approx(11 + 13 + 8.5 + 64)


def test_what_no_file_states_costs_nothing():
    none = NormalConstants(
        floor_us=1, floor_us_per_khidden=0, link_share=1, peer_us=0, fill_us=0, nic_share=1, sm_gb_s=1, notify_us=5,
        notify_peer_us=0, source="",
    )  # fmt: skip
    # 2 copies of 4000 bytes over 200,000 bytes per us, and nothing beside them
    assert float(normal_us(EVERY, FIGURES, none)) == pytest.approx(1 + 256 * 0.04)
    assert float(notify_us(dataclasses.replace(EVERY, nodes=2.0), FIGURES, none)) == pytest.approx(5)
    low = LowLatencyConstants(floor_us=1, link_share=1, unit_gb_s=1e9, step_us=0, nic_share=1, source="")
    assert float(low_latency_us(EVERY, FIGURES, low)) == pytest.approx(1 + 256 * 4 * 0.02)
    assert float(low_latency_us(dataclasses.replace(EVERY, nodes=2.0), FIGURES, low)) == pytest.approx(
        1 + 256 * 4 * p(6, 0.02, 0.02)
    )


def test_a_low_latency_exchange_by_hand():
    constants = LowLatencyConstants(
        floor_us=10, expert_ns=500, link_share=0.5, unit_gb_s=50, nodes_us=3, step_us=4, nic_share=0.25,
        token_ns=1000, source="",
    )  # fmt: skip
    # 100 tokens * 4 copies * 4000 bytes = 1.6 MB: 16 us over the link; (100 + 32) us of one unit, 4 of 4 units: 33
    given_ = dataclasses.replace(EVERY, tokens=100.0)
    assert float(low_latency_us(given_, FIGURES, constants)) == pytest.approx(10 + 2 + p(6, 16, 33))
    # 8 experts on 4 units, 4 nodes: 3/4 of it over the card, 1.2 MB / 25,000 = 48 us; 2 doublings of nodes
    four = dataclasses.replace(given_, nodes=4.0, experts=8.0)
    expected = 10 + 4 + 3 + 4 * 2 + p(6, 16, 33, 48)
    assert float(low_latency_us(four, FIGURES, constants)) == pytest.approx(expected)
    # a dispatched copy: 2000 * (1 + 4/128) + 16 bytes
    sent = 100 * 4 * (2062.5 + 16)
    expected = 10 + 2 + p(6, sent / 100_000, (100 + sent / 50_000) / 4)
    found = low_latency_us(dataclasses.replace(given_, phase="dispatch"), FIGURES, constants)
    assert float(found) == pytest.approx(expected)


def test_the_bound_by_hand():
    # 2 nodes: one copy over a card of 100 GB/s, 40 ns; of 4 copies half leave their rank's place, 2 over 200 GB/s: 40
    two = dataclasses.replace(EVERY, nodes=2.0, tokens=1.0)
    assert float(bound_us(two, FIGURES)) == pytest.approx(0.04)
    assert float(bound_us(two, dataclasses.replace(FIGURES, nic_gb_s=50))) == pytest.approx(0.08)
    assert float(bound_us(two, dataclasses.replace(FIGURES, link_gb_s=100))) == pytest.approx(0.08)
    assert float(bound_us(dataclasses.replace(two, element_bytes=1.0), FIGURES)) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": -1.0}, "tokens per rank must be 0 or more"),
        ({"hidden": 0.0}, "hidden of an exchange must be above 0"),
        ({"nodes": 0.0}, "nodes of an exchange must be above 0"),
        ({"sms": np.array([1.0, 0.0])}, "sms of an exchange must be above 0"),
    ],
)
def test_an_exchange_that_cannot_be_is_an_error(wrong, message):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(EVERY, **wrong)
    assert normal_us(dataclasses.replace(EVERY, tokens=0.0), FIGURES, NORMAL) == 10 + 3 * 2000 / 1024


def test_the_constants_say_what_they_were_fitted_on():
    constants = DeepEP.load()
    for phases in (constants.normal, constants.low_latency):
        assert all(
            "fit_network.py" in each.source and 0 < each.link_share <= 1 and 0 < each.nic_share <= 1
            for each in phases.values()
        )


def test_other_libraries_say_where_their_constants_come_from():
    constants = DeepEP.load("uccl")
    for phases in (constants.normal, constants.low_latency):
        assert all("uccl-project/uccl" in each.source and each.nic_share <= 1 for each in phases.values())


def test_a_file_without_a_phase_is_an_error(tmp_path):
    path = tmp_path / "deepep.toml"
    path.write_text("")
    with pytest.raises(InputError, match=r"deepep.toml: normal must have the table dispatch"):
        _read(path)
