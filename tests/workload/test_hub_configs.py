"""Configs of released models beside those of ../shared: parameters, operations and what each has a model for.

``hub_configs.json``: what their ``config.json`` says of the layers, and the parameters of the repository's metadata
(granite-4.0-h-small, ERNIE-4.5-300B and LongCat-Flash: of the card), both from memory.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import row_by_row
from tracelens.backends import System
from tracelens.backends.chain import chain
from tracelens.errors import InputError
from tracelens.perf_models import WorkColumns
from tracelens.predict.workload import ModelConfig, forward_ops

HUB = json.loads(Path(__file__).with_name("hub_configs.json").read_text(encoding="utf-8"))


def loaded(folder: Path, config: dict[str, object]) -> ModelConfig:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return ModelConfig.load(path)


@row_by_row("name", HUB)
def test_a_released_model_has_its_parameters_and_every_operation_a_time(tmp_path, name):
    model = loaded(tmp_path, HUB[name]["config"])
    counted = model.parameters()
    assert counted.total == pytest.approx(HUB[name]["parameters"], rel=0.005)
    ops = forward_ops(model, batch=1, sequence=1)
    assert [op.name for op in ops if op.model.category == "other"] == []
    times = chain("tile").estimate_many(WorkColumns.of([op.model for op in ops]), System.load("dgx-h100")).time_us
    assert (times > 0).all()
    # a token multiplies each active weight once, the logits' too, and looks up one row of the embedding
    products = counted.active - (0 if model.tied_embeddings else model.vocab * model.hidden)
    assert sum(op.forward_flops for op in ops) == pytest.approx(2 * products, rel=0.03)


def test_keys_that_a_type_fills_in_are_named(tmp_path):
    """Gemma 3's 4B leaves out heads and vocabulary; a head is 256 wide, not an equal part of the hidden state."""
    model = loaded(tmp_path, HUB["gemma-3-4b-it"]["config"])
    assert (model.q_heads, model.kv_heads, model.head_dim, model.vocab) == (8, 4, 256, 262_208)
    assert "config.json: num_attention_heads is its type's default, 8" in model.notes
    with pytest.raises(InputError, match="missing: num_attention_heads, vocab_size"):
        loaded(tmp_path, {**HUB["gemma-3-4b-it"]["config"]["text_config"], "model_type": "llama"})


def test_attention_beside_a_state_space_model_and_two_halves_of_a_layer(tmp_path):
    """Falcon-H1 runs both on the same tokens; LongCat's layer has two attentions, and 8 of 12 choices compute."""
    beside = loaded(tmp_path, HUB["Falcon-H1-7B"]["config"])
    assert beside.blocks == "M*-" * 44
    shortcut = loaded(tmp_path, HUB["LongCat-Flash"]["config"])
    assert shortcut.blocks == "*-*-E" * 28
    assert shortcut.experts.top_k == 8
    assert any("8 of 12 chosen experts compute" in note for note in shortcut.notes)
