"""The registry of traced names: collected by scanning, free of any framework's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.extensions import load_extension, overlay
from tracelens.perf_models import EPComm, PerfModel, bindings, categories, category_of, inverses
from tracelens.registry import Registry
from tracelens.types.signature import OpSignature

#: ``pseudo_op::moe_`` are the operations that a MoE layer's kernels are taken apart into, for every engine that ships them.
ALLOWED_PREFIXES = ("aten::", "symm_mem::", "record_param_comms", "pseudo_op::moe_")


def test_the_core_binds_aten_names_and_the_profilers_own_only():
    foreign = [name for name in bindings() if not name.startswith(ALLOWED_PREFIXES)]
    assert foreign == []


@pytest.mark.parametrize("name", ["DeepEPDispatch", "DeepEPCombine", "DeepEPDispatchBackward", "DeepEPCombineBackward"])
def test_the_core_does_not_know_deepep_ops(name: str, repository: Path):
    assert name not in bindings()
    assert name not in categories()
    sources = sorted((repository / "tracelens").rglob("*.py")) + sorted((repository / "tracelens").rglob("*.toml"))
    assert [str(p.relative_to(repository)) for p in sources if name in p.read_text(encoding="utf-8")] == []


def test_no_core_binding_makes_an_expert_parallel_exchange():
    assert [name for name, claim in bindings().items() if category_of(claim) == EPComm.category] == []


def test_every_binding_has_a_category_without_reading_a_call():
    unknown = [name for name, claim in bindings().items() if category_of(claim) in (None, PerfModel.category)]
    assert unknown == []


def test_every_inverse_has_a_binding():
    assert set(inverses()) <= set(bindings())


def test_what_the_reference_has_no_row_for_counts_only_where_it_launches_kernels():
    for wrapper in ("aten::linear", "aten::matmul", "aten::softmax", "aten::scaled_dot_product_attention", "aten::to",
                    "aten::contiguous", "aten::conv2d", "aten::_convolution", "aten::relu", "aten::zero_",
                    "aten::embedding", "aten::mse_loss"):  # fmt: skip
        assert bindings()[wrapper].options["leaf_only"], wrapper
    for row in ("aten::addmm", "aten::convolution", "aten::layer_norm", "aten::batch_norm", "aten::mm", "aten::copy_"):
        assert not bindings()[row].options["leaf_only"], row


def test_a_row_of_a_table_binds_a_name_to_known_mathematics(tmp_path: Path):
    """The product of x [3,5] and a weight [7,5]: 2 * 3 * 7 * 5 operations."""
    path = tmp_path / "rows.py"
    path.write_text(
        "from tracelens.perf_models import bind\n"
        "from tracelens.perf_models.gemm import times_transposed\n"
        "ROWS = (bind(times_transposed, 'my_lib::linear', leaf_only=True, a=0, b=1),)\n",
        encoding="utf-8",
    )
    claim = overlay(Registry("traced_as", {}), [load_extension(path)])["my_lib::linear"]
    types = ("c10::BFloat16",) * 2
    model = claim.target(OpSignature(name="my_lib::linear", shapes=((3, 5), (7, 5)), dtypes=types))
    assert (model.flops(), model.hbm_bytes()) == (210, 2 * (15 + 35 + 21))
    assert (category_of(claim), claim.options["leaf_only"]) == ("GEMM", True)
    assert "times_transposed" in claim.origin
