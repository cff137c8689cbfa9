"""Published model configurations: every file loads, has its published parameters, and its forward pass is priced."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import row_by_row
from tests.workload.plain_forward import plain_flops
from tracelens.backends import System
from tracelens.backends.chain import chain
from tracelens.perf_models import WorkColumns
from tracelens.predict.workload import ModelConfig, forward_ops

pytestmark = pytest.mark.shared
with (Path(__file__).parents[2] / "docs" / "published_counts.csv").open(encoding="utf-8", newline="") as _file:
    PUBLISHED = [(row["config"], float(row["parameters"]), row["counts"]) for row in csv.DictReader(_file)]
#: A file in another type -> the file whose shape it has.
SAME_SHAPE = {
    "nvidia--DeepSeek-V3.1-NVFP4": "deepseek-ai--DeepSeek-V3",
    "nvidia--DeepSeek-V3.2-NVFP4": "deepseek-ai--DeepSeek-V3.2",
    "nvidia--DeepSeek-V4-Flash-NVFP4": "deepseek-ai--DeepSeek-V4-Flash",
    "nvidia--GLM-5-NVFP4": "zai-org--GLM-5",
    "zai-org--GLM-5-FP8": "zai-org--GLM-5",
    "moonshotai--Kimi-K2.5": "nvidia--Kimi-K2.5-NVFP4",
    "nvidia--MiniMax-M2.5-NVFP4": "MiniMaxAI--MiniMax-M2.5",
    "nvidia--MiniMax-M2.7-NVFP4": "MiniMaxAI--MiniMax-M2.5",
    "nvidia--Llama-3.1-70B-Instruct-FP8": "meta-llama--Meta-Llama-3.1-70B",
    "nvidia--Qwen3-235B-A22B-NVFP4": "Qwen--Qwen3-235B-A22B",
    "Qwen--Qwen3-235B-A22B-FP8": "Qwen--Qwen3-235B-A22B",
    "Qwen--Qwen3-30B-A3B-FP8": "Qwen--Qwen3-30B-A3B",
    "Qwen--Qwen3-32B-FP8": "Qwen--Qwen3-32B",
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": "Qwen--Qwen3-32B",
    "nvidia--Qwen3.5-122B-A10B-NVFP4": "Qwen--Qwen3.5-122B-A10B",
    "nvidia--Qwen3.6-27B-NVFP4": "Qwen--Qwen3.5-27B",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "stepfun-ai--Step-3.7-Flash-FP8": "stepfun-ai--Step-3.7-Flash",
}
#: Moonshot's two files of one model differ in a flag of the loss alone.
WITHOUT_A_ROW = {"nvidia--Kimi-K2.5-NVFP4"}


@pytest.fixture(scope="module")
def configs(shared_traces: Path) -> dict[str, Path]:
    folder = shared_traces.parent / "model_configs"
    return {path.stem: path for path in sorted(folder.glob("*.json")) if not path.stem.endswith("hf_quant")}


@cache
def loaded(path: Path) -> ModelConfig:
    return ModelConfig.load(path)


def test_every_file_loads_and_stands_in_the_table_or_is_another_type_of_one_that_does(configs):
    assert len(configs) == 58
    assert {name for name, *_ in PUBLISHED} | set(SAME_SHAPE) | WITHOUT_A_ROW == set(configs)
    for path in configs.values():
        assert loaded(path).parameters().total > 0


@row_by_row(("name", "published", "what"), PUBLISHED)
def test_parameters_are_within_half_a_percent_of_the_published(configs, name, published, what):
    count = loaded(configs[name]).parameters()
    added = {"all": 0, "language": -count.vision, "with further": count.further}[what]
    digits = 0.015 if published == 1.7e9 else 0.005  # 1.7 B is 1.72 B to two digits
    assert count.total + added == pytest.approx(published, rel=digits)


def test_kimi_k3_activates_its_published_parameters_beside_the_embedding(configs):
    """104.2 B, arXiv 2607.24653, table 1; DeepSeek-V4-Flash 13 B, arXiv 2606.19348."""
    for name, published in (("moonshotai--Kimi-K3", 104.2e9), ("deepseek-ai--DeepSeek-V4-Flash", 13e9)):
        model = loaded(configs[name])
        embedding = model.vocab * model.hidden
        assert model.parameters().active - embedding == pytest.approx(published, rel=0.025)


@row_by_row(("name", "other"), SAME_SHAPE.items())
def test_another_type_of_a_model_has_the_same_shape(configs, name, other):
    assert loaded(configs[name]).parameters() == loaded(configs[other]).parameters()


def test_every_operation_of_a_forward_pass_is_priced_and_has_a_category(configs):
    system = System.load("dgx-h100")
    for name, path in configs.items():
        ops = forward_ops(loaded(path), batch=1, sequence=4096)
        for backend in ("roofline", "tile"):
            times = chain(backend).estimate_many(WorkColumns.of([op.model for op in ops]), system).time_us
            unpriced = [op.name for op, time in zip(ops, times, strict=True) if not time > 0]
            assert unpriced == [], (name, backend)
        assert [op.name for op in ops if op.model.category == "other"] == [], name


@pytest.mark.parametrize("sequence", [1, 300, 2500])
def test_flops_are_those_of_a_plain_sum_over_layers_and_tokens(configs, sequence):
    for name, path in configs.items():
        ops = forward_ops(loaded(path), batch=1, sequence=sequence)
        assert sum(op.forward_flops for op in ops) == pytest.approx(plain_flops(path, sequence), rel=1e-12), name


def test_kept_bytes_of_a_checkpoint_are_those_that_were_published(configs):
    """Kimi K3's files have 1,560.9 GB, gpt-oss-120b's 65.25 GB, Kimi K2 Thinking's 594 GB (sizes of their shards)."""
    from tracelens.predict.estimation.model_summary import model_summary

    assert model_summary(loaded(configs["moonshotai--Kimi-K3"])).weight_bytes == pytest.approx(1560.9e9, rel=0.005)
    assert model_summary(loaded(configs["openai--gpt-oss-120b"])).weight_bytes == pytest.approx(65.25e9, rel=0.01)
    thinking, same_type = ModelConfig.load("kimi-k2-thinking"), loaded(configs["moonshotai--Kimi-K2.5"])
    assert model_summary(thinking).weight_bytes == pytest.approx(594e9, rel=0.005)
    assert thinking.quantization is not None
    assert same_type.quantization is not None
    assert thinking.quantization.experts == same_type.quantization.experts


def test_no_time_is_lost_where_two_backends_price_the_same(configs):
    """The tile model's time of every operation is at least the roofline at data-sheet rates."""
    system = System.load("dgx-h100")
    for name in ("moonshotai--Kimi-K3", "zai-org--GLM-5", "deepseek-ai--DeepSeek-V4-Flash", "Qwen--Qwen3.5-27B"):
        columns = WorkColumns.of([op.model for op in forward_ops(loaded(configs[name]), batch=1, sequence=4096)])
        tile = chain("tile").estimate_many(columns, system).time_us
        least = chain("roofline").estimate_many(columns, system).time_us
        assert np.all(tile >= 0.5 * least), name
