"""Every ATen name that the core binds, on arguments as PyTorch 2.13 records them (``record_aten.py`` wrote the table)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tracelens.perf_models import bindings
from tracelens.signature import OpSignature, freeze

TABLE: dict[str, list[Any]] = json.loads(Path(__file__).with_name("recorded_aten.json").read_text(encoding="utf-8"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "ops.md"
#: What these move depends on values, or on the shapes of a list that PyTorch does not record.
UNDETERMINED = {"aten::index", "aten::masked_select", "aten::nonzero"}


def recorded(name: str) -> OpSignature:
    dims, types, strides, scalars = TABLE[name]
    texts = tuple(str(value) for value in scalars)
    return OpSignature(name=name, shapes=freeze(dims), dtypes=tuple(types), strides=freeze(strides), scalars=texts)


@pytest.mark.parametrize("name", sorted(set(TABLE) - UNDETERMINED))
def test_a_recorded_call_has_flops_or_bytes(name: str):
    model = bindings()[name].target(recorded(name))
    assert model is not None
    assert model.flops() is not None or model.hbm_bytes() is not None
    assert model.parameters()


@pytest.mark.parametrize("name", sorted(set(TABLE) - UNDETERMINED))
def test_bytes_are_unknown_only_where_the_types_of_a_list_are(name: str):
    """PyTorch records ``TensorList`` as the type of a list, whatever its elements are."""
    lists = any(kind in ("TensorList", "GenericList") for kind in TABLE[name][1])
    assert lists or bindings()[name].target(recorded(name)).hbm_bytes() is not None


def test_every_bound_aten_name_is_recorded_or_listed_as_unverified():
    unverified = set(re.findall(r"`([^`]+)`", PAGE.read_text(encoding="utf-8").partition("## Unverified")[2]))
    bound = {name for name in bindings() if name.startswith("aten::")}
    assert set(TABLE) <= bound
    assert bound - set(TABLE) - unverified == set()


@pytest.mark.parametrize(
    ("name", "flops", "nbytes"),
    [
        # dgrad and wgrad of [2,4,8,8] * [6,4,3,3] padded by 1: 2 * 36 per output element each, and the bias' sums
        ("aten::convolution_backward_overrideable", 2 * (2 * 36 * 2 * 6 * 64) + 2 * 6 * 64, None),
        # flash attention, causal: 2 batches, 4 heads, 16 * 17 / 2 pairs, sizes 8 and 8
        ("aten::_scaled_dot_product_flash_attention", 2 * 2 * 4 * 136 * 16, 4 * 4 * 2 * 4 * 16 * 8),
        # 15 x 16 times 16 x 32
        ("aten::_scaled_mm", 2 * 15 * 16 * 32, None),
        # [2,3,8,8] by 2 x 2, padded by 1, every second place: 5 x 5 columns of 3 * 4
        ("aten::im2col", 0, 4 * 2 * (3 * 64 + 12 * 25)),
    ],
)
def test_worked_examples_on_recorded_arguments(name: str, flops: int, nbytes: int | None):
    model = bindings()[name].target(recorded(name))
    assert model.flops() == flops
    assert nbytes is None or model.hbm_bytes() == nbytes


def test_values_put_by_index_are_written_once():
    op = OpSignature(
        name="aten::index_put_", shapes=((100, 8), (), (5, 8), ()), dtypes=("float", "", "float", "Scalar"),
        scalars=("", "", "", "True"),
    )  # fmt: skip
    model = bindings()[op.name].target(op)
    # 40 values read, 40 elements read, added to and written
    assert (model.flops(), model.hbm_bytes()) == (40, 4 * (40 + 40 + 40))
