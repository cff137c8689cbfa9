"""A type of residual block in one file outside the package: counted, divided, kept, projected, searched and served."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tracelens.backends import System
from tracelens.errors import InputError, UsageError
from tracelens.perf_models import GEMM
from tracelens.predict.projection.search.request import Request, answer
from tracelens.predict.projection.step import project
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import Deployment, Parallelism
from tracelens.predict.workload import ModelConfig, blocks, memory, rank_ops
from tracelens.predict.workload.parallel_config import ParallelConfig

#: A linear recurrence: one projection in, one out, nothing between them that multiplies matrices.
FILE = """
from dataclasses import dataclass
from tracelens.predict.workload.blocks import BlockType

@dataclass(frozen=True, kw_only=True)
class Figures:
    width: int
    gates: int = 2

class Recurrence(BlockType):
    name, table, figures, mixes_tokens = "recurrence", "recurrence", Figures, True

    def ops(self, batch):
        own = self.figures_of(batch.shape)
        yield batch.norm("recurrence.norm")
        yield batch.linear("recurrence.in", own.width * (1 + own.gates), batch.shape.hidden, split="column")
        yield batch.linear("recurrence.out", batch.shape.hidden, own.width, split="row")

    def kept_bytes(self, kept):
        return 2 * kept.tokens * self.figures_of(kept.shape).width / kept.parallel.tp

    def parts(self, shape):
        return (self.figures_of(shape).width,)

RECURRENCE = Recurrence(letter="R")
"""
MODEL = """
source = "made up"
blocks = "2(R-) *-"
hidden = 1024
vocab = 32000
ffn = 4096
q_heads = 8
kv_heads = 8
head_dim = 128
dtype = "bf16"
[recurrence]
width = 2048
"""


@pytest.fixture
def outside(tmp_path: Path) -> ModuleType:
    path = tmp_path / "recurrence.py"
    path.write_text(FILE)
    spec = importlib.util.spec_from_file_location("recurrence", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recurrent.toml"
    path.write_text(MODEL)
    return path


def test_a_block_from_outside_is_counted_divided_kept_projected_searched_and_served(outside, file):
    with blocks.added(outside):
        model = ModelConfig.load(file)
        assert model.layers == ("R-", "R-", "*-")
        mlp, attention, norms = 2 * 1024 * 4096, 4 * 1024 * 1024, 7 * 1024
        recurrence = 1024 * 2048 * 3 + 2048 * 1024
        assert model.parameters().total == 2 * 32000 * 1024 + 3 * mlp + attention + norms + 2 * recurrence

        parallel = ParallelConfig(tp=4, dp=2, micro_batches=4, sequence_parallel=True)
        block = rank_ops.block(model, parallel, "R", 2048)
        shapes = {op.name: op.model for op in block.ops if op.phase == "forward" and isinstance(op.model, GEMM)}
        assert (shapes["recurrence.in"].n, shapes["recurrence.out"].k) == (3 * 2048 // 4, 2048 // 4)
        assert block.dense == recurrence // 4 + 1024
        assert {op.name for op in block.ops if op.part == "tp"} == {
            "block.gather.all_gather", "block.gather.reduce_scatter", "block.scatter.reduce_scatter",
            "block.scatter.all_gather",
        }  # fmt: skip
        # norm's input and output on a quarter of the tokens; a quarter of the products' width on all of them
        assert memory.activation_bytes(model, parallel, "R", 2048) == 512 * 1024 * 4 + 2 * 2048 * 2048 / 4

        system = System.load("dgx-h100")
        step = project(model, parallel, system, sequence=2048)
        assert step.step_us > 0
        row = answer(Request(model=str(file), cluster="dgx-h100", gpus=(8,), global_batch=8, strategies=("1d",))).best
        assert row["t"].iloc[0] > 0
        cost = StepCost(Deployment(model=model, system=system, parallelism=Parallelism(tp=4)))
        names = [name for name, _, _ in cost.layer_operations("R-", 64, [], 64, 64 * 100)]
        assert names[:3] == ["recurrence.norm", "recurrence.in", "recurrence.out"]
        # One cache of keys and values, in the last of three layers
        assert cost.kv_bytes_per_token() == 2 * 8 * 128 * 2


def test_outside_of_the_with_block_its_letter_is_unknown(outside, file):
    with blocks.added(outside):
        ModelConfig.load(file)
    with pytest.raises(InputError, match="must be runs of the letters"):
        ModelConfig.load(file)


def test_a_model_without_the_table_of_a_block_it_has_is_refused(outside, file):
    file.write_text(MODEL.partition("[recurrence]")[0])
    with blocks.added(outside), pytest.raises(InputError, match="blocks have 'R', but recurrence is missing"):
        ModelConfig.load(file)


def test_two_blocks_outside_with_one_letter_are_refused(outside):
    with (
        pytest.raises(UsageError, match="block 'R' is claimed by both"),
        blocks.added(
            outside,
            outside.Recurrence(
                letter="R",
            ),
        ),
    ):
        pass  # pragma: no cover
