"""Adapters beside frozen weights: no gradients and no optimizer state of what is frozen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.backends import System
from tracelens.errors import UsageError
from tracelens.laboratory.training_rows import configuration, project_row
from tracelens.predict.projection.chunk_timing import Builder
from tracelens.predict.projection.step import project
from tracelens.predict.workload import memory, rank_ops
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig

MODEL = ModelConfig.load("llama2-70b")
WHOLE = ParallelConfig(dp=8, micro_batches=1)
ADAPTED = replace(WHOLE, lora=16)


def test_a_layer_trains_its_adapters_alone() -> None:
    whole, adapted = (rank_ops.block(MODEL, each, "*", 4096) for each in (WHOLE, ADAPTED))
    assert adapted.frozen == whole.dense
    # query, key and value together are 8,192 x 10,240, the output 8,192 x 8,192: two products of rank 16 beside each
    assert adapted.dense == 16 * (8192 + 10240) + 16 * (8192 + 8192)
    gradients = [op.name for op in adapted.ops if op.phase == "wgrad"]
    assert gradients
    assert all(".adapter_" in name for name in gradients)
    assert {op.name for op in whole.ops if op.phase == "dgrad"} <= {
        op.name for op in adapted.ops if op.phase == "dgrad"
    }


def test_what_gradients_of_weights_need_is_not_done_for_frozen_ones() -> None:
    """Their inputs are not gathered again, and not written a second time as products over tokens read them."""
    divided = {"tp": 4, "sequence_parallel": True, "dp": 2, "precision": "fp8"}
    whole, adapted = ([*rank_ops.block(MODEL, replace(each, **divided), "-", 4096).ops] for each in (WHOLE, ADAPTED))
    gathers = [[op for op in ops if op.phase == "dgrad" and "gather.all_gather" in op.name] for ops in (whole, adapted)]
    assert list(map(len, gathers)) == [1, 0]
    rows = 4096 // 4 * 8192
    # BF16 is read twice, for the scale and to write one byte: 2 x 2 + 2 x 1, and without the copy 2 x 2 + 1
    narrowed = [next(op for op in ops if op.name == "mlp.up.quantize") for ops in (whole, adapted)]
    assert [op.model.hbm_bytes() for op in narrowed] == [6 * rows, 5 * rows]


def test_an_adapter_streams_its_dropout_scale_and_sum() -> None:
    """Forward 2 + 2 + 1 bytes per input (dropout with mask), 2 + 2 and 2 + 2 + 2 per result; backward 2 + 2 per result,
    2 + 1 + 2 and 2 + 2 + 2 per input.
    """
    ops = rank_ops.block(MODEL, ADAPTED, "*", 4096).ops
    streamed = sum(op.model.hbm_bytes() or 0 for op in ops if ".adapter_" in op.name and op.part == "memory")
    assert streamed == 4096 * (16 * (8192 + 8192) + 14 * (10240 + 8192))


def test_a_fused_adapter_streams_its_dropout_and_what_its_products_add_to() -> None:
    """Forward 2 + 2 + 1 bytes per input, 2 per result; backward 2 + 1 + 2 and 2 per input. No launch of scale or sum."""
    ops = rank_ops.block(MODEL, replace(ADAPTED, fused_adapters=True), "*", 4096).ops
    streams = [op for op in ops if ".adapter_" in op.name and op.part == "memory"]
    assert sum(op.model.hbm_bytes() or 0 for op in streams) == 4096 * (12 * (8192 + 8192) + 2 * (10240 + 8192))
    assert len(streams) == 2 * 2


@pytest.mark.parametrize(
    ("said", "is_fused"),
    [
        ({}, True),
        ({"framework": "NVIDIA NeMo 25.04 (MLPerf v5.0)"}, False),
        ({"tp": "4"}, False),
        ({"framework": "ROCm PyTorch (MLPerf v5.1)", "gpu": "MI355X"}, False),
        ({"framework": "Megatron-Bridge 26.06 NeMo Container"}, False),
    ],
)
def test_adapters_are_fused_where_the_scripts_of_mlperf_fuse_them(said: dict[str, str], is_fused: bool) -> None:
    row = {
        "model": "Llama-2-70B", "kind": "lora", "gpu": "B300", "n_gpus": "8", "gbs": "8", "seq_len": "8192",
        "framework": "NVIDIA NeMo 25.09 (MLPerf v5.1)", "precision": "FP8",
    }  # fmt: skip
    assert configuration(row | said).parallel.fused_adapters is is_fused


def test_adapted_products_are_gathered_before_and_not_beside() -> None:
    """Adapters of attention read the gathered input as well; collectives of the MLP run in pieces as ever."""
    divided = replace(ADAPTED, tp=4, sequence_parallel=True, dp=2, tp_overlap="all")
    exposed = {}
    for letter in "*-":
        builder = Builder(parallel=divided, price=lambda op: 0.5 if op.part == "tp" else 1.0, host_us=0.0)
        exposed[letter] = builder.layer([rank_ops.block(MODEL, divided, letter, 4096)])["F"].parts["tp"]
    # Half a microsecond each. In four pieces the first is exposed: of the attention's scatter, and of both of the MLP
    assert exposed == {"*": 0.5 + 0.5 / 4, "-": 2 * 0.5 / 4}


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_frozen_weights_have_no_gradients_and_no_optimizer_state(zero: int) -> None:
    layers = [rank_ops.block(MODEL, replace(ADAPTED, zero=zero), "-", 4096)]
    held = memory.stage_memory(
        stage=0, layers=layers, parallel=replace(ADAPTED, zero=zero), kept_bytes=0.0, logits=0.0, capacity=None
    )
    assert (held.gradients, held.optimizer) == (0, 0)
    # up and gate 8,192 x 57,344, down 28,672 x 8,192, the norm
    frozen = 8192 * 57344 + 28672 * 8192 + 8192
    assert held.weights == pytest.approx(2 * frozen / (8 if zero == 3 else 1) + (2 * 2 * frozen if zero == 3 else 0))


def test_a_step_is_shorter_and_smaller_by_what_is_frozen() -> None:
    system = System.load("h100-sxm")
    whole, adapted = (
        project(MODEL, replace(each, tp=4, sequence_parallel=True, dp=2), system, sequence=4096)
        for each in (WHOLE, ADAPTED)
    )
    assert 0.55 < adapted.step_us / whole.step_us < 0.85
    assert adapted.peak_memory.optimizer < whole.peak_memory.optimizer / 100
    assert adapted.peak_memory.activations < whole.peak_memory.activations


@pytest.mark.parametrize("said", [{"kind": "lora"}, {"notes": "LoRA Performance"}, {"model": "Llama 2 70B LoRA"}])
def test_a_row_says_lora_in_one_column_or_another(said: dict[str, str]) -> None:
    row = {"model": "llama2-70b", "gpu": "H100 80GB", "n_gpus": "8", "tp": "4", "gbs": "8", "seq_len": "4096"} | said
    point = project_row(row)
    assert point.projection is not None, point.reason
    assert point.projection.parallel.lora == 16
    assert any(text.startswith("LoRA: adapters of rank 16") for text in point.assumptions)


def test_a_rank_below_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="lora"):
        ParallelConfig(lora=-1)
