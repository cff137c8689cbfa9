"""DeepEP's kernels: what they move, the laws of their times, and the published bandwidths."""

from __future__ import annotations

import dataclasses
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InputError, UsageError
from tracelens.network.deepep import (
    DeepEP,
    Exchanges,
    Fabric,
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
