"""DeepEP's four ops as expert-parallel communication, and Megatron's grouped GEMM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import SignatureError
from tracelens.extensions import load_extension, overlay
from tracelens.perf_models.base import category_of
from tracelens.perf_models.collective import EPComm
from tracelens.perf_models.gemm import GroupedGEMM
from tracelens.registry import Registry
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

ALL_FOUR = ("DeepEPDispatch", "DeepEPCombine", "DeepEPDispatchBackward", "DeepEPCombineBackward")
MEGATRON = load_extension("megatron")
BINDINGS = overlay(Registry("traced_as", {}), [MEGATRON])
INVERSES = Registry.collect("recorded_as", MEGATRON.sources)


def read(name: str, tokens: int, hidden: int, dtype: str = "c10::BFloat16", **more: object) -> EPComm:
    signature = OpSignature(name=name, shapes=((tokens, hidden),), dtypes=(dtype,), **more)  # type: ignore[arg-type]
    return BINDINGS[name].target(signature)


@pytest.mark.parametrize("name", ALL_FOUR)
def test_each_of_the_four_is_bound(name: str):
    assert name in MEGATRON.traced_names
    assert (read(name, 4096, 7168).tokens, read(name, 4096, 7168).hidden) == (4096, 7168)


@pytest.mark.parametrize("name", ALL_FOUR)
def test_each_inherits_from_ep_comm(name: str):
    assert isinstance(read(name, 1, 1), EPComm)
    assert type(read(name, 1, 1)) is not EPComm


@pytest.mark.parametrize("name", ALL_FOUR)
def test_the_category_is_ep_communication_even_without_shapes(name: str):
    assert read(name, 1, 1).category == "EP_Communication"
    assert category_of(BINDINGS[name]) == "EP_Communication"


@pytest.mark.parametrize("name", ALL_FOUR)
def test_wire_bytes_are_tokens_times_hidden_times_the_width(name: str):
    assert read(name, 4096, 7168, "c10::BFloat16").wire_bytes() == 4096 * 7168 * 2 == 58_720_256
    assert read(name, 4096, 7168, "float").wire_bytes() == 4096 * 7168 * 4 == 117_440_512
    assert read(name, 4096, 7168, "c10::Float8_e4m3fn").wire_bytes() == 4096 * 7168


@pytest.mark.parametrize("name", ALL_FOUR)
def test_there_is_no_arithmetic_so_the_rate_is_zero_and_not_unknown(name: str):
    flops = read(name, 4096, 7168).flops()
    assert flops == 0
    kernel_us = 350.0
    assert flops / kernel_us / 1e6 == 0.0  # TFLOPS/s


@pytest.mark.parametrize("name", ALL_FOUR)
def test_the_bytes_are_no_device_memory_traffic(name: str):
    assert read(name, 4096, 7168).hbm_bytes() is None


@pytest.mark.parametrize("name", ALL_FOUR)
@pytest.mark.parametrize("dtype", ["", "Foo", "c10::Float3"])
def test_an_unknown_dtype_gives_none_and_no_default_width(name: str, dtype: str):
    model = read(name, 4096, 7168, dtype)
    assert model.dtype is None
    assert model.wire_bytes() is None
    assert model.expected_wire_bytes(8) is None


@pytest.mark.parametrize("name", ALL_FOUR)
def test_an_absent_type_slot_gives_none_too(name: str):
    signature = OpSignature(name=name, shapes=((4096, 7168),))
    assert BINDINGS[name].target(signature).wire_bytes() is None


@pytest.mark.parametrize("name", ALL_FOUR)
def test_a_record_without_shapes_says_so(name: str):
    with pytest.raises(SignatureError, match="record_shapes=True was not set"):
        BINDINGS[name].target(OpSignature(name=name))


def test_a_combine_moves_more_than_its_dispatch_by_the_copies():
    local_tokens, copies = 4096, 3  # each token went to three ranks
    dispatch = read("DeepEPDispatch", local_tokens, 7168)
    combine = read("DeepEPCombine", local_tokens * copies, 7168)
    assert combine.wire_bytes() == copies * dispatch.wire_bytes()


def test_the_backward_of_a_dispatch_is_a_combine_and_the_other_way_round():
    kinds = {name: type(read(name, 1, 1)).__name__ for name in ALL_FOUR}
    assert kinds == {
        "DeepEPDispatch": "DeepEPDispatch",
        "DeepEPCombine": "DeepEPCombine",
        "DeepEPDispatchBackward": "DeepEPCombine",
        "DeepEPCombineBackward": "DeepEPDispatch",
    }


@pytest.mark.parametrize("name", ALL_FOUR)
def test_the_expected_remote_bytes_leave_out_the_own_rank(name: str):
    model = read(name, 4096, 7168)
    assert model.expected_wire_bytes() is None  # the group was not recorded
    assert model.expected_wire_bytes(8) == 58_720_256 * 7 / 8
    recorded = read(name, 4096, 7168, attributes=(("Group size", 16),))
    assert recorded.expected_wire_bytes() == 58_720_256 * 15 / 16
    assert recorded.wire_bytes() == 58_720_256  # the upper bound stays


@pytest.mark.parametrize("name", ALL_FOUR)
def test_what_remains_open_stands_in_the_docstring(name: str):
    text = type(read(name, 1, 1)).__doc__ or ""
    assert "What remains open" in text
    assert "effective rate" in text


@given(
    name=st.sampled_from(ALL_FOUR),
    tokens=st.integers(0, 1 << 20),
    hidden=st.integers(1, 1 << 15),
    dtype=st.sampled_from([*DType]),
    ranks=st.none() | st.integers(1, 1024),
)
def test_binding_and_inverse_round_trip(name: str, tokens: int, hidden: int, dtype: DType, ranks: int | None):
    if dtype is DType.TF32 or DType.parse(dtype.traced) is not dtype or not dtype.is_floating:
        return  # no trace spells this type, or it is no token's
    model = read(name, tokens, hidden, dtype.traced, attributes=() if ranks is None else (("Group size", ranks),))
    assert BINDINGS[name].target(INVERSES[name].target(model)) == model


@pytest.mark.parametrize(("weights", "transposed"), [((8, 2048, 1408), "False"), ((8, 1408, 2048), "True")])
def test_grouped_gemm_reads_n_by_the_transposition_flag(weights: tuple[int, ...], transposed: str):
    signature = OpSignature(
        name="GroupedGemm",
        shapes=((4096, 2048), weights, (8,), ()),
        dtypes=("c10::BFloat16", "c10::BFloat16", "long int", ""),
        scalars=("", "", "", transposed),
    )
    model = BINDINGS["GroupedGemm"].target(signature)
    assert model == GroupedGEMM(m=4096, n=1408, k=2048, groups=8, dtype=DType.BF16, dtype_b=DType.BF16)
    assert model.flops() == 2 * 4096 * 1408 * 2048
    if transposed == "False":
        recorded = INVERSES["GroupedGemm"].target(model)
        assert (recorded.shapes, recorded.dtypes) == (signature.shapes, signature.dtypes)


def test_a_grouped_gemm_whose_transposition_was_not_recorded_is_not_guessed():
    signature = OpSignature(name="GroupedGemm", shapes=((4096, 2048), (8, 1408, 2048)), dtypes=("c10::BFloat16",) * 2)
    with pytest.raises(SignatureError, match="inner dims differ, 2048 and 1408"):
        BINDINGS["GroupedGemm"].target(signature)


def test_the_backward_of_the_grouped_gemm_has_a_category_though_no_model():
    claims = Registry.collect("category", MEGATRON.sources)
    assert claims["GroupedGemmBackward"].options["category"] == "GroupedGEMM_bwd"
    assert "GroupedGemmBackward" not in BINDINGS


def test_the_core_does_not_know_the_names(repository: Path):
    names = [name.encode() for name in ALL_FOUR] + [b'GroupedGemm"', b"MoEDispatch", b"MoECombine"]
    knowing = [
        f"{path.relative_to(repository)}: {name.decode()}"
        for path in sorted((repository / "tracelens").rglob("*"))
        if path.is_file() and path.suffix in {".py", ".toml", ".json"}
        for name in names
        if name in path.read_bytes()
    ]
    assert knowing == []


def test_the_registry_of_the_core_does_not_know_the_names():
    from tracelens import perf_models

    assert not set(MEGATRON.traced_names) & set(perf_models.bindings())
    assert not set(MEGATRON.traced_names) & set(perf_models.categories())
