"""Every ATen name that the core binds, on arguments as PyTorch 2.13 records them (``record_aten.py`` wrote the table)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import row_by_row
from tracelens.perf_models import Elementwise, bindings, inverses
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, freeze

TABLE: dict[str, list[Any]] = json.loads(Path(__file__).with_name("recorded_aten.json").read_text(encoding="utf-8"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "ops.md"
#: What these move depends on values, or on the shapes of a list that PyTorch does not record.
UNDETERMINED = {"aten::index", "aten::masked_select", "aten::nonzero"}


def recorded(name: str) -> OpSignature:
    dims, types, strides, scalars = TABLE[name]
    texts = tuple(str(value) for value in scalars)
    return OpSignature(name=name, shapes=freeze(dims), dtypes=tuple(types), strides=freeze(strides), scalars=texts)


@row_by_row("name", sorted(set(TABLE) - UNDETERMINED))
def test_a_recorded_call_has_flops_or_bytes(name: str):
    model = bindings()[name].target(recorded(name))
    assert model is not None
    assert model.flops() is not None or model.hbm_bytes() is not None
    assert model.parameters()


@row_by_row("name", sorted(set(TABLE) - UNDETERMINED))
def test_bytes_are_unknown_only_where_the_types_of_a_list_are(name: str):
    """PyTorch records ``TensorList`` as the type of a list, whatever its elements are."""
    lists = any(kind in ("TensorList", "GenericList") for kind in TABLE[name][1])
    assert lists or bindings()[name].target(recorded(name)).hbm_bytes() is not None


def test_every_bound_aten_name_is_recorded_or_listed_as_unverified():
    unverified = set(re.findall(r"`([^`]+)`", PAGE.read_text(encoding="utf-8").partition("## Unverified")[2]))
    bound = {name for name in bindings() if name.startswith("aten::")}
    assert set(TABLE) <= bound
    assert bound - set(TABLE) - unverified == set()


#: Elementwise ops that compute nothing, that only write, whose results are bool; operations per element where not one.
COPIES = {"_conj_physical", "_reshape_alias_copy", "clone", "contiguous", "copy", "copy_", "flip", "repeat", "reshape",
          "roll", "masked_fill", "masked_fill_"}  # fmt: skip
FILLS = {"bernoulli_", "cauchy_", "exponential_", "fill", "fill_", "geometric_", "log_normal_", "normal_", "random_",
         "uniform_", "zero", "zero_"}  # fmt: skip
TO_BOOL = {"eq", "ne", "lt", "le", "gt", "ge", "isclose", "isfinite", "isinf", "isnan", "signbit", "isneginf", "isposinf", "logical_and",
           "logical_or", "logical_xor", "logical_not"}  # fmt: skip
OPERATIONS = {
    **dict.fromkeys(("addcdiv", "addcdiv_", "addcmul", "addcmul_", "lerp", "lerp_"), 3),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                     "binary_cross_entropy_with_logits", "mse_loss_backward", "smooth_l1_loss_backward"), 2),
}  # fmt: skip
#: Their last recorded tensor is written (``out=``, the destination of a copy, a buffer that is empty on a GPU).
WITH_OUT = {"abs", "hardtanh", "logit", "triu", "tril", "sigmoid", "conj_physical", "copy_", "copy", "logical_and",
            "logical_or", "logical_not", "log_sigmoid_backward"}  # fmt: skip
#: Masks, other sizes or types of results, and unions of both: worked below.
OTHERWISE = {"_fused_dropout", "native_dropout", "_to_copy", "to", "where", "clamp_min_", "constant_pad_nd", "glu",
             "glu_backward"}  # fmt: skip
RESAMPLED = ("upsample_", "reflection_pad", "replication_pad")


def tensors(name: str) -> list[tuple[tuple[int, ...], int, float]]:
    """(shape, distinct elements, bytes of one) of every recorded tensor."""
    dims, types, strides, _ = TABLE[name]
    return [
        (tuple(shape), prod(n for n, step in zip(shape, steps, strict=True) if step), DType.parse(kind).bits / 8)
        for shape, kind, steps in zip(dims, types, strides, strict=True)
        if kind not in ("", "Scalar", "ScalarList", "TensorList")
    ]


def is_plain(name: str) -> bool:
    short = name.removeprefix("aten::")
    return short not in OTHERWISE and not short.startswith(RESAMPLED)


ELEMENTWISE = [
    name
    for name in sorted(set(TABLE) - UNDETERMINED)
    if is_plain(name) and isinstance(bindings()[name].target(recorded(name)), Elementwise)
]


@row_by_row("name", ELEMENTWISE)
def test_an_elementwise_op_reads_its_tensors_once_and_writes_one_of_their_broadcast_shape(name: str):
    short, found = name.removeprefix("aten::"), tensors(name)
    _, distinct, width = found[0]
    results = prod(np.broadcast_shapes(*(shape for shape, _, _ in found)))
    read = found[:-1] if short in WITH_OUT else [] if short in FILLS else found
    written = results * (1 if short in TO_BOOL else width)
    if short.endswith("_"):
        written = distinct * width  # in place
    flops = 0 if short in COPIES | FILLS else OPERATIONS.get(short, 1) * results
    model = bindings()[name].target(recorded(name))
    assert (model.flops(), model.hbm_bytes()) == (flops, sum(n * each for _, n, each in read) + written)


#: FLOPs and bytes of other ops' recorded calls; float32 and int64 where nothing else is said.
WORKED: dict[str, tuple[float, float]] = {
    # a keep or drop per element, of one byte
    "native_dropout": (32, 4 * (32 + 32) + 32),
    "_fused_dropout": (32, 4 * (32 + 32) + 32),
    # one bool to int64; 400 of float32 to its own type
    "_to_copy": (0, 1 + 8),
    "to": (0, 4 * (400 + 400)),
    # a condition per element, two numbers: 1 and 25 of which one is repeated
    "where": (25, 25 + 4 * (1 + 1 + 25)),
    "constant_pad_nd": (6, 4 * (3 + 6)),
    "reflection_pad2d": (2 * 3 * 10 * 10, 4 * 2 * 3 * (8 * 8 + 10 * 10)),
    "replication_pad2d": (5 * 3 * 4 * 5, 4 * 5 * 3 * (4 * 4 + 4 * 5)),
    "upsample_nearest1d": (2 * 3 * 3, 4 * 2 * 3 * (4 + 3)),
    "upsample_nearest2d": (2 * 3 * 256, 4 * 2 * 3 * (64 + 256)),
    # a gradient of 54 that a sum expanded from one value, to 2 x 3 x 4 x 4
    "upsample_bilinear2d_backward": (54, 4 * (1 + 96)),
    # [8,2] in halves along its rows; the gradient was expanded
    "glu": (5 * 8, 4 * (16 + 8)),
    "glu_backward": (9 * 8, 4 * (1 + 16 + 16)),
    # 25 rows of 5 looked up in a table of 10 rows, which is read once at most; its gradient adds up as many
    "embedding": (0, 4 * (50 + 125) + 8 * 25),
    "embedding_dense_backward": (125, 4 * (125 + 50) + 8 * 25),
    # 5 rows of 5 with a weight each into 2 bags; 6 rows of 8 into 3
    "_embedding_bag": (2 * 25, 4 * (25 + 5 + 10) + 8 * (5 + 2)),
    "_embedding_bag_forward_only": (48, 4 * (48 + 24) + 8 * (6 + 3)),
    "gather": (0, 4 * 2 + 8),
    "index_select": (0, 4 * 2 * 25 + 8),
    "take": (0, 4 * (1 + 3) + 8 * 3),
    "take_along_dim": (0, 4 * (25 + 25) + 8 * 25),
    # in place the rows are read and written; else all of the tensor is copied
    "index_add_": (3, 4 * (3 + 3 + 3) + 8),
    "index_add": (1, 4 * (1 + 1 + 1) + 8),
    "index_copy_": (0, 4 * (25 + 25) + 8 * 5),
    "index_copy": (0, 4 * (25 + 25 + 25) + 8 * 5),
    "index_fill_": (0, 4 + 8),
    "index_put": (10, 4 * (25 + 10 + 25)),
    "scatter": (0, 4 * (50 + 50) + 4 * 25),
    "scatter_": (0, 4 * 3 + 8 * 3),
    "scatter_add": (25, 4 * (50 + 25 + 50) + 8 * 25),
    "scatter_add_": (3, 4 * (3 + 3 + 3) + 8 * 3),
    "scatter_reduce": (25, 4 * (50 + 25 + 50) + 8 * 25),
    "scatter_reduce_": (25, 4 * (25 + 25 + 25) + 8 * 25),
    "unfold_backward": (1125, 4 * (1125 + 625)),
    "pixel_shuffle": (0, 4 * 2 * 36),
    "split_with_sizes_copy": (0, 4 * 2 * 125),
    "nll_loss_forward": (2, 4 * (2 + 1) + 8 * 2),
    "nll_loss_backward": (0, 4 * 2 + 8 * 2),
    "arange": (0, 2 * 4),
    "linspace": (0, 4),
    # values and positions
    "sort": (0, 4 * (10 + 10) + 8 * 10),
    "msort": (0, 4 * (250 + 250) + 8 * 250),
    "topk": (0, 4 * (30 + 9) + 8 * 9),
    "max": (5, 4 * (5 + 1) + 8),
    "argmax": (1, 4 + 8),
    "count_nonzero": (1, 4 + 8),
    "all": (25, 25 + 5),
    "any": (125, 125 + 1),
    "amax": (4, 4 * (4 + 1)),
    "sum": (400, 4 * (400 + 1)),
    "cumsum": (4, 4 * (4 + 4)),
    "linalg_vector_norm": (25, 4 * (25 + 5)),
    "logsumexp": (25, 4 * (25 + 5)),
    "var_mean": (25, 4 * (25 + 1)),
    "item": (0, 4),
    # 8 x [1,8] to [1,5]: windows of ceil(8/5)
    "avg_pool2d": (3 * 4 * 6, 4 * 3 * (9 + 4)),
    "avg_pool2d_backward": (3 * 4 * 6, 4 * 3 * (9 + 4)),
    "avg_pool3d": (6 * 4 * 8, 4 * 6 * (48 + 4)),
    "max_pool2d_with_indices": (2 * 3, 4 * 2 * (3 + 1) + 8 * 2),
    "max_pool2d_with_indices_backward": (2, 4 * 2 * (3 + 1) + 8 * 2),
    "max_pool3d_with_indices_backward": (8, 4 * 2 * (90 + 4) + 8 * 8),
    "softmax": (5 * 25, 4 * (25 + 25)),
    "_softmax_backward_data": (4 * 25, 4 * 3 * 25),
    "_log_softmax": (5 * 6, 4 * (6 + 6)),
    # training: statistics made and written, running ones read and written; evaluation: running ones read
    "native_batch_norm": (5 * 3 + 6, 4 * (3 + 3 + 2 + 2 + 2 * 2)),
    "_batch_norm_no_update": (2 * 512 + 6 * 4, 4 * (512 + 512 + 2 * 4 + 2 * 4)),
    "native_batch_norm_backward": (9 * 3, 4 * (3 * 3 + 1 + 2 + 2)),
    "cudnn_batch_norm_backward": (9 * 512, 4 * (3 * 512 + 4 + 2 * 4 + 2 * 4)),
    "native_group_norm": (5 * 18 + 6 * 6, 4 * (18 + 18 + 2 * 6 + 2 * 2)),
    "native_layer_norm": (5 * 6 + 6 * 6, 4 * (6 + 6 + 6 + 2)),
    "native_layer_norm_backward": (9 * 6, 4 * (3 * 6 + 2 + 6)),
    # 2 x 4 channels x 64 in passes whose operations are those of the ops above: 3 + 2 forward, 4 + 5 backward
    "batch_norm_stats": (3 * 512, 4 * (512 + 2 * 4)),
    "batch_norm_elemt": (2 * 512, 4 * (2 * 512 + 4 * 4)),
    "batch_norm_backward_reduce": (4 * 512, 4 * (2 * 512 + 6 * 4)),
    "batch_norm_backward_elemt": (5 * 512, 4 * (3 * 512 + 5 * 4)),
    "rms_norm": (4 * 12 + 2 * 2, 4 * (12 + 12 + 6 + 2)),
    # products
    "addmm": (2 * 2 * 2 * 3 + 2 * 3, 4 * (4 + 6 + 6 + 1)),
    "addmv": (2 * 5 * 10 + 5, 4 * (50 + 10 + 5 + 5)),
    "mv": (2 * 10 * 5, 4 * (50 + 5 + 10)),
    "dot": (2 * 5, 4 * (5 + 5 + 1)),
    "vdot": (2 * 5, 4 * (5 + 5 + 1)),
    "linear": (2 * 8 * 3 * 4, 4 * (24 + 12 + 32)),
    "matmul": (2 * 125, 4 * 3 * 25),
    "baddbmm": (5 * (2 * 5 * 5 * 10 + 5 * 10), 4 * (125 + 250 + 250 + 1)),
    "_grouped_mm": (2 * 32 * 16 * 32, 2 * (32 * 16 + 4 * 16 * 32 + 32 * 32)),
    "_scaled_mm": (2 * 15 * 16 * 32, 15 * 16 + 16 * 32 + 2 * 15 * 32 + 2 * 4),
    "_scaled_mm_v2": (2 * 15 * 16 * 32, 15 * 16 + 16 * 32 + 2 * 15 * 32 + 2 * 4),
    "addmm_": (2 * 2 * 2 * 3 + 2 * 3, 4 * (4 + 6 + 6 + 1)),
    # transposed, [2,2,4] by [2,2,4]: 2 * 4 products of each input; 3 * 3 - 2 * 1 + 4 * 3 + 2 + 1 = 22 results of 4 channels
    "convolution": (2 * 8 * 16 + 2 * 4 * 22, 4 * (16 + 16 + 4 + 2 * 4 * 22)),
    "conv2d": (3 * 9 * (2 * 27 + 1), 4 * (48 + 81 + 3 + 27)),
    "_conv_depthwise2d": (2 * 4 * 64 * (2 * 9 + 1), 4 * (512 + 36 + 4 + 512)),
    # 2 x [4,8,8] by [6,4,3,3], padded by 1: 2 * 36 per output for each gradient, and sums for the bias
    "convolution_backward_overrideable": (2 * (2 * 36 * 768) + 768, 4 * (2 * (768 + 512 + 216) + 6)),
    "im2col": (0, 4 * (2 * 3 * 64 + 2 * 12 * 25)),
    # 2 batches, 4 heads, 16 * 17 / 2 pairs, sizes 8 and 8; backward scores again, dV, dP, dQ and dK
    "_scaled_dot_product_flash_attention": (2 * 2 * 4 * 136 * 16, 4 * 4 * 2 * 4 * 16 * 8),
    "_scaled_dot_product_flash_attention_backward": (2 * 2 * 4 * 136 * 40, 4 * 7 * 2 * 4 * 16 * 8),
    "_flash_attention_forward": (2 * 2 * 4 * 136 * 16, 4 * 4 * 2 * 4 * 16 * 8),
    "_scaled_dot_product_flash_attention_for_cpu": (2 * 2 * 4 * 136 * 16, 4 * 4 * 2 * 4 * 16 * 8),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (2 * 2 * 4 * 136 * 40, 4 * 7 * 2 * 4 * 16 * 8),
    # 4 steps of 2 sequences: four gates of 16 from 8 features and 16 of the state, each with two biases
    "mkldnn_rnn_layer": (2 * 8 * 64 * (8 + 16), 4 * (64 * (8 + 16) + 64 * 2 + 8 * (8 + 16))),
}


@row_by_row("name", WORKED)
def test_worked_examples_on_recorded_arguments(name: str):
    model = bindings()[f"aten::{name}"].target(recorded(f"aten::{name}"))
    assert (model.flops(), model.hbm_bytes()) == WORKED[name]


#: Updates of lists of tensors: operations, reads and writes per element; 0 writes: one result per tensor.
LISTS = {
    "_foreach_abs": (1, 1, 1), "_foreach_add_": (1, 2, 1), "_foreach_zero_": (0, 0, 1), "_foreach_norm": (2, 1, 0),
    "_foreach_max": (1, 1, 0), "_foreach_addcmul": (3, 3, 1), "_foreach_addcdiv_": (3, 3, 1),
    "_foreach_lerp": (3, 2, 1), "_amp_foreach_non_finite_check_and_unscale_": (2, 1, 1), "_fused_sgd_": (6, 3, 2),
    "_fused_adam_": (15, 4, 3), "_fused_adamw_": (15, 4, 3), "_fused_adagrad_": (8, 3, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_work_per_element_of_lists_of_tensors(name: str):
    operations, reads, writes = LISTS[name]
    model = bindings()[f"aten::{name}"].target(recorded(f"aten::{name}"))
    sizes = [prod(shape) for shape in TABLE[f"aten::{name}"][0][0]]
    moved = replace(model, dtype=DType.FP32).hbm_bytes()
    results = 0 if writes else len(sizes)
    assert (model.flops(), moved) == (operations * sum(sizes), 4 * ((reads + writes) * sum(sizes) + results))


def test_without_momentum_a_step_reads_and_writes_less():
    lists = ((4, 8), (8,))
    op = OpSignature(name="aten::_fused_sgd_", shapes=(lists, lists, ()), dtypes=("TensorList", "TensorList", ""))
    model = replace(bindings()[op.name].target(op), dtype=DType.FP32)
    assert (model.flops(), model.hbm_bytes()) == (4 * 40, 4 * 3 * 40)


def test_values_put_by_index_are_written_once():
    op = OpSignature(
        name="aten::index_put_", shapes=((100, 8), (), (5, 8), ()), dtypes=("float", "", "float", "Scalar"),
        scalars=("", "", "", "True"),
    )  # fmt: skip
    model = bindings()[op.name].target(op)
    # 40 values read, 40 elements read, added to and written
    assert (model.flops(), model.hbm_bytes()) == (40, 4 * (40 + 40 + 40))


@pytest.mark.parametrize("name", sorted(name for name in set(inverses()) & set(TABLE) if "attention" in name))
def test_what_would_be_recorded_of_attention_is_what_was(name: str):
    """Shapes of tensors, and the scalars that both have: lengths, dropout and mask."""
    op = recorded(name)
    again = inverses()[name].target(bindings()[name].target(op))
    assert [mine for mine, theirs in zip(again.shapes, op.shapes, strict=False) if mine not in (theirs, ())] == []
    values = [(literal(a), literal(b)) for a, b in zip(again.scalars, op.scalars, strict=False) if a and b]
    assert len(values) >= 2
    assert [pair for pair in values if pair[0] != pair[1]] == []


def literal(text: str) -> object:
    return text if text in ("True", "False") or text.startswith("[") else float(text)


GRADIENTS = [name for name in sorted(TABLE) if "norm" in name and "backward" in name]


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_normalizations_gradient_is_read_in_its_own_type(name: str):
    """A gradient in BF16 of a tensor in float32 is half of its bytes less to read."""
    op = recorded(name)
    at = 1 if name.startswith(("aten::miopen_batch", "aten::cudnn_batch")) else 0  # (x, dy, ...)
    dtypes = tuple("c10::BFloat16" if i == at else kind for i, kind in enumerate(op.dtypes))
    wide, narrow = (bindings()[name].target(each).hbm_bytes() for each in (op, replace(op, dtypes=dtypes)))
    assert wide - narrow == 2 * prod(op.shapes[at])
