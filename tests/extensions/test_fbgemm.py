"""FBGEMM's look-ups in embedding tables: widths from the gradient, the gradient's cost by its optimizer."""

from __future__ import annotations

import pytest

from tracelens.extensions import load_extension, overlay
from tracelens.perf_models import PooledLookup
from tracelens.registry import Registry
from tracelens.types.signature import OpSignature

LOOKUPS = overlay(Registry("traced_as", {}), (load_extension("fbgemm"),))
LOOKED_UP, BAGS, BATCH, TABLES, WIDTH = 32, 32, 16, 2, 16
ROWS = LOOKED_UP * WIDTH


def lookup(optimizer: str) -> PooledLookup:
    """Two tables of 16 columns, 16 bags each, as DLRM records them: the widths only in the gradient [16, 32]."""
    slots: list[tuple[int, ...]] = [()] * 13
    slots[1], slots[6], slots[11], slots[12] = (5000,), (TABLES + 1,), (LOOKED_UP,), (BAGS + 1,)
    name = f"fbgemm::split_embedding_codegen_lookup_{optimizer}_function"
    gradient = OpSignature(name="torch::autograd::CppNode<>", shapes=((BATCH, TABLES * WIDTH),), dtypes=("float",))
    types = ("", "float", *[""] * 9, "long int", "long int")
    op = OpSignature(name=name, shapes=tuple(slots), dtypes=types, attributes=(("gradient", gradient),))
    model = LOOKUPS[name].target(op)
    assert isinstance(model, PooledLookup)
    return model


def test_the_gradient_says_how_wide_the_tables_are():
    model = lookup("adagrad")
    assert (model.width, model.flops()) == (WIDTH, ROWS)
    assert model.hbm_bytes() == 4 * ROWS + 8 * (LOOKED_UP + BAGS + 1) + 4 * BAGS * WIDTH


@pytest.mark.parametrize(
    ("optimizer", "flops", "state"),
    [("sgd", 3, 0), ("rowwise_adagrad", 5, 1), ("adagrad", 5, WIDTH), ("adam", 5, 2 * WIDTH),
     ("partial_rowwise_adam", 5, WIDTH + 1)],
)  # fmt: skip
def test_the_gradient_reads_and_writes_what_the_optimizer_keeps_of_a_row(optimizer: str, flops: int, state: int):
    backward = lookup(optimizer).backward()
    assert backward.flops() == flops * ROWS
    rows_and_state = 2 * 4 * ROWS + 2 * 4 * state * LOOKED_UP
    assert backward.hbm_bytes() == rows_and_state + 8 * (LOOKED_UP + BAGS + 1) + 4 * BAGS * WIDTH
