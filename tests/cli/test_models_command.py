"""``tracelens models list|show``."""

from __future__ import annotations

import argparse
import json

import pytest

from tracelens.cli import main, models_and_devices
from tracelens.errors import InputError, UsageError
from tracelens.predict.estimation.model_summary import model_summary
from tracelens.predict.workload import ModelConfig

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 1000,
    "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "bfloat16",
}  # fmt: skip


def run(*words):
    parser = argparse.ArgumentParser()
    models_and_devices.configure_models(parser)
    return models_and_devices.run_models(parser.parse_args(words))


def test_list_has_a_line_per_model(capsys):
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines[: lines.index("")]) == 1 + len(ModelConfig.names())
    (v3,) = [line.split() for line in lines if line.startswith("deepseek-v3 ")]
    # 61 layers; 512 + 64 elements of two bytes in each
    assert v3[:7] == ["deepseek-v3", "671", "G", "37.55", "G", "61", "70272"]


def test_list_as_json_has_the_same_models(capsys):
    assert run("list", "--format", "json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(ModelConfig.names())


def test_show_as_json_counts_a_small_model_by_hand(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert run("show", str(path), "--format", "json", "--sequence", "3") == 0
    shown = json.loads(capsys.readouterr().out)
    attention, mlp = 64 * (4 + 2 * 2) * 16 + 64 * 64, 3 * 64 * 128
    assert shown["parameters_total"] == 2 * 1000 * 64 + 2 * (attention + mlp) + 5 * 64
    assert shown["parameters_active"] == shown["parameters_total"]
    assert shown["flops_per_token"] == {
        # 1 + 2 + 3 keys in 3 tokens, 2 for each of query and value, 2 layers
        "attention": 2 * 4 * 4 * 16 * 6 / 3,
        "attention_projections": 2 * 2 * attention,
        "mlp": 2 * 2 * mlp,
        "logits": 2 * 64 * 1000,
    }
    assert shown["flops_per_token_total"] == sum(shown["flops_per_token"].values())
    assert shown["mlp_to_attention_ratio"] == pytest.approx(2 * 2 * mlp / (2 * 2 * attention + 2 * 4 * 4 * 16 * 2))
    assert shown["cache_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
    assert shown["state_bytes_per_sequence"] == 0
    assert shown["weight_bytes"] == 2 * shown["parameters_total"]
    assert shown["assumed"] == []


def test_show_says_what_was_assumed_and_what_a_sequence_keeps(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"model_type": "unheard_of", "sliding_window": 8}))
    assert run("show", str(path)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "model_type 'unheard_of' is not known: read by its structure" in shown
    assert "every layer attends within sliding_window" in shown
    # 8 keys and values of 2 heads of 16 in 2 layers
    assert f"kept per sequence {8 * 2 * 2 * 2 * 16 * 2 / 1e3:.4g} kB" in shown


def test_what_is_no_model_is_one_clear_error(tmp_path):
    with pytest.raises(UsageError, match="no model named"):
        run("show", "no-such-model")
    with pytest.raises(InputError, match="cannot be read"):
        run("show", str(tmp_path / "config.json"))


def test_an_unknown_element_type_leaves_bytes_unknown(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in LLAMA.items() if key != "torch_dtype"}))
    summary = model_summary(ModelConfig.load(path))
    assert (summary.dtype, summary.weight_bytes, summary.cache_bytes_per_token) == (None, None, None)


def test_a_name_alone_is_shown(capsys):
    pages = []
    for words in (
        ["models", "llama3.1-8b"],
        ["models", "show", "llama3.1-8b"],
        ["devices", "t4"],
        ["devices", "show", "t4"],
    ):
        assert main(words) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1] != pages[2] == pages[3]
