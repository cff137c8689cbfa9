"""Token exchanges as PyTorch records autograd functions written in Python (``record_autograd.py`` wrote the table)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracelens.errors import SignatureError
from tracelens.extensions import bundled_extensions, overlay
from tracelens.perf_models import EPComm, bindings
from tracelens.perf_models.base import PerfModel
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, freeze

TABLE: dict[str, Any] = json.loads(Path(__file__).with_name("recorded_autograd.json").read_text(encoding="utf-8"))
BINDINGS = overlay(bindings(), bundled_extensions())
TOKENS, RECEIVED, HIDDEN, TOP_K, EXPERTS = 512, 1408, 7168, 8, 64
EXCHANGES = ["megatron", "megatron_hybrid", "primus", "primus_fp8", "deep_ep", "deep_ep_fp8"]


def signature(event: dict[str, Any]) -> OpSignature:
    return OpSignature(
        name=event["name"], shapes=freeze(event["Input Dims"]), dtypes=tuple(event["Input type"]),
        strides=freeze(event["Input Strides"]), scalars=tuple(event["Concrete Inputs"]),
    )  # fmt: skip


def read(case: str, number: int) -> PerfModel:
    op = signature(TABLE[case][number])
    return BINDINGS[op.name].target(op)


def test_a_profiler_drops_pairs_and_objects_from_the_arguments_and_keeps_none():
    assert TABLE["primus_fp8"][0]["Input type"] == ["long int", "float", "Scalar", "Scalar", "Scalar", "Scalar"]
    assert TABLE["primus"][1]["Input type"] == ["c10::BFloat16", "", "Scalar", "Scalar"]
    assert TABLE["megatron_hybrid"][0]["Input type"][6:8] == ["", ""]


@pytest.mark.parametrize("case", ["megatron", "primus", "deep_ep"])
def test_top_k_and_experts_are_recorded(case: str):
    model = read(case, 0)
    assert isinstance(model, EPComm)
    assert (model.tokens, model.hidden, model.dtype) == (TOKENS, HIDDEN, DType.BF16)
    assert (model.topk, model.experts, model.phase) == (TOP_K, EXPERTS, "dispatch")


@pytest.mark.parametrize("case", ["megatron", "primus", "deep_ep"])
def test_packed_fp4_tokens_are_a_byte_per_recorded_element(case: str):
    """``Float4_e2m1fn_x2`` holds two values in an element: 1024 rows of 2048 are 2.10 MB, not 1.05."""
    event = {**TABLE[case][0]}
    event["Input Dims"] = [[1024, 2048], [1024, TOP_K], [1024, TOP_K], *event["Input Dims"][3:]]
    event["Input type"] = ["c10::Float4_e2m1fn_x2", *event["Input type"][1:]]
    op = signature(event)
    assert BINDINGS[op.name].target(op).wire_bytes() == 1024 * 2048


@pytest.mark.parametrize("case", ["primus_fp8", "deep_ep_fp8"])
def test_the_indices_of_an_fp8_dispatch_are_no_tokens(case: str):
    model = read(case, 0)
    assert isinstance(model, EPComm)
    assert (model.tokens, model.hidden, model.dtype) == (TOKENS, None, DType.FP8_E4M3FN)
    assert (model.topk, model.experts) == (TOP_K, EXPERTS)
    assert model.wire_bytes() is None


def test_a_routing_map_says_the_experts_and_not_the_top_k():
    model = read("megatron_hybrid", 0)
    assert isinstance(model, EPComm)
    assert (model.tokens, model.hidden, model.topk, model.experts) == (TOKENS, HIDDEN, None, EXPERTS)


@pytest.mark.parametrize("case", EXCHANGES)
def test_a_combine_and_the_gradient_of_a_dispatch_have_the_copies(case: str):
    for number in (1, 3):
        model = read(case, number)
        assert isinstance(model, EPComm)
        assert (model.tokens, model.hidden, model.phase) == (RECEIVED, HIDDEN, "combine")
    back = read(case, 2)
    assert isinstance(back, EPComm)
    assert (back.tokens, back.hidden, back.phase) == (TOKENS, HIDDEN, "dispatch")


@pytest.mark.parametrize("kind", ["long int", "int", "unsigned char"])
@pytest.mark.parametrize("name", ["FusedCombine", "MoECombine", "DeepEPCombine", "MoEDispatchBackward"])
def test_integers_are_never_tokens(name: str, kind: str):
    with pytest.raises(SignatureError, match="has integers, not tokens"):
        BINDINGS[name].target(OpSignature(name=name, shapes=((512, 8),), dtypes=(kind,)))


def test_tokens_kept_as_bytes_are_not_read_as_indices():
    shapes, types = ((512, 7168), (512, 8), (512, 8)), ("unsigned char", "long int", "float")
    with pytest.raises(SignatureError, match="has integers, not tokens"):
        BINDINGS["FusedDispatch"].target(OpSignature(name="FusedDispatch", shapes=shapes, dtypes=types))


def test_rotary_embedding_has_a_category_each_way():
    forward, backward = read("rope", 0), read("rope", 1)
    assert (forward.category, backward.category) == ("RoPE_fwd", "RoPE_bwd")
    elements = 128 * 2 * 16 * 64
    assert forward.flops() == backward.flops() == 3 * elements
    assert forward.hbm_bytes() == backward.hbm_bytes() == 2 * 2 * elements
