"""What is served of a model whose file states less than a server needs, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tracelens as tl
from tracelens.cli import main
from tracelens.hardware import HardwareSpec
from tracelens.predict.serving.deployment import as_served
from tracelens.predict.workload import ModelConfig
from tracelens.types.dtypes import DType

#: Gemma 2 2B as its repository has it, published in FP32.
GEMMA = {
    "model_type": "gemma2", "torch_dtype": "float32", "hidden_size": 2304, "intermediate_size": 9216,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 26,
    "vocab_size": 256000, "sliding_window": 4096, "max_position_embeddings": 8192,
}  # fmt: skip
SHORT = ["--requests", "3", "--concurrency", "1", "--output-tokens", "16"]


def _file(folder: Path, **changes: object) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in (GEMMA | changes).items() if value is not None}))
    return str(path)


@pytest.mark.parametrize(("stated", "said"), [("float32", "fp32"), (None, "no stated type")])
def test_a_checkpoint_without_a_16_bit_type_is_served_as_one(tmp_path: Path, stated: str | None, said: str) -> None:
    """Engines do not multiply in FP32 because a checkpoint was published in it: as fast as the same in BF16."""
    found = tl.serve(_file(tmp_path, torch_dtype=stated), "h100", concurrency=1, requests=3, output_tokens=16)
    same = tl.serve(_file(tmp_path, torch_dtype="bfloat16"), "h100", concurrency=1, requests=3, output_tokens=16)
    assert found.summary == same.summary
    assert any(f"is of {said}: served in bf16" in note for note in found.notes)
    assert not any("served in" in note for note in same.notes)


def test_a_device_without_bf16_serves_in_fp16() -> None:
    model = replace(ModelConfig.load("gpt2"), dtype=DType.FP32)
    volta = HardwareSpec.load("v100-sxm-32gb")
    assert "bf16" not in volta.matrix
    assert as_served(model, volta).dtype is DType.FP16


@pytest.mark.parametrize(
    "verb",
    [
        ["serve", *SHORT],
        ["project", "--gpus", "8", "--zero", "3", "--micro-batch", "1"],
        ["search", "--gpus", "8", "--global-batch", "8", "--top", "1"],
    ],
    ids=lambda verb: verb[0],
)
def test_every_prediction_says_what_was_assumed_of_the_model(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, model_type="new_kind", torch_dtype="bfloat16")
    main([verb[0], "--model", path, "--cluster", "h100", *verb[1:]])
    assert "note: config.json: model_type 'new_kind' is not known: read by its structure" in capsys.readouterr().out


def test_sequences_beyond_a_learned_table_of_positions_are_said() -> None:
    """GPT-2 has 1,024: a prompt of 1,024 and an answer of 128 have no row for the last ones. Llama's are rotary."""
    said = "gpt2 has 1,024 learned positions: sequences of 1,152 tokens are beyond it"
    sizes = {"rate": 5, "requests": 5, "output_tokens": 128}
    assert said in tl.serve("gpt2", "h100", input_tokens=1024, **sizes).notes
    assert said not in tl.serve("gpt2", "h100", input_tokens=512, **sizes).notes
    assert any("beyond" in note for note in tl.project("gpt2", "h100", gpus=8).projection.notes)
    assert not any("beyond" in note for note in tl.project("gpt2", "h100", gpus=8, sequence=1024).projection.notes)
    assert ModelConfig.load("llama3.2-1b").too_long(10**6) is None


def test_weights_are_of_the_type_that_a_checkpoint_s_name_says():
    """AWQ has four bits; an option comes first."""
    asked = {"concurrency": 1, "requests": 2}
    named, given, plain = (
        tl.serve(name, "h100-sxm", **asked, **weights)
        for name, weights in (("Qwen/Qwen3-8B-AWQ", {}), ("qwen3-8b", {"weights": "int4"}), ("qwen3-8b", {}))
    )
    assert named.summary["tpot_p50_ms"] == given.summary["tpot_p50_ms"] < 0.6 * plain.summary["tpot_p50_ms"]
    assert "weights in int4, as the name Qwen/Qwen3-8B-AWQ says; --weights sets another type" in named.notes
    kept = tl.serve("Qwen/Qwen3-8B-AWQ", "h100-sxm", weights="bf16", **asked)
    assert kept.summary["tpot_p50_ms"] == plain.summary["tpot_p50_ms"]
