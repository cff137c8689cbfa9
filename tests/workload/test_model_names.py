"""Shapes of published models beyond those of recorded and measured steps: their parameters are the published ones."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.conftest import row_by_row
from tracelens.errors import UsageError
from tracelens.predict.workload.model_config import ModelConfig, spelling_key, without_point

#: Parameters as the model card, the repository's metadata or the paper of the file's source says, in 1e9.
PUBLISHED = {
    "mistral-7b": 7.24, "mistral-nemo-12b": 12.25, "mistral-small-24b": 23.57, "mistral-large-2": 122.61,
    "gemma-2b": 2.51, "gemma-7b": 8.54, "gemma2-2b": 2.61, "gemma2-9b": 9.24, "gemma2-27b": 27.23, "gemma3-1b": 1,
    "gemma3-4b": 3.88, "gemma3-12b": 11.77, "gemma3-27b": 27, "falcon-40b": 41.84, "falcon-180b": 179.52,
    "bloom-176b": 176.25, "gpt-neox-20b": 20.55, "opt-175b": 174.6, "opt-66b": 65.7, "gpt2": 0.12444,
    "gpt2-xl": 1.5576, "gpt3-6.7b": 6.7, "gpt3-13b": 13, "gpt3-20b": 20.3, "gpt-1.7b": 1.7, "gpt-3.6b": 3.6,
    "gpt-7.5b": 7.5, "gpt-18.4b": 18.4, "gpt-39.1b": 39.1, "gpt-76.1b": 76.1, "gpt-145.6b": 145.6,
    "gpt-310.1b": 310.1, "internlm-7b": 7.32, "internlm-20b": 20.1, "internlm2-20b": 19.86, "phi-3-mini": 3.82,
    "phi-4": 14.66, "tinyllama-1.1b": 1.1, "llama-33b": 32.53, "llama-65b": 65.29, "codellama-34b": 33.74,
    "llama3.2-1b": 1.236, "llama3.2-3b": 3.213, "llama4-maverick": 400, "yi-6b": 6.06, "yi-34b": 34.39,
    "olmo2-7b": 7.3, "olmo2-13b": 13.72, "olmo2-32b": 32.23, "olmoe-1b-7b": 6.92, "baichuan2-13b": 13.9,
    "qwen2-57b-a14b": 57.41, "qwen1.5-moe-a2.7b": 14.32, "qwen3-coder-480b-a35b": 480.15, "qwen3-next-80b-a3b": 79.67,
    "qwen3.5-397b-a17b": 397, "glm-4.5": 352.8, "glm-4.5-air": 106.85, "glm-4-9b": 9.4, "grok-1": 314, "dbrx": 131.6,
    "nemotron-3-8b": 8.54, "nemotron-4-15b": 15.6, "nemotron-4-340b": 341, "nemotron-h-8b": 8.1,
    "nemotron-h-56b": 56.3, "ernie-4.5-300b-a47b": 300, "ernie-4.5-21b-a3b": 21.8, "hunyuan-a13b": 80.4,
    "command-r": 34.98, "command-r-plus": 103.81, "apertus-70b": 70.6, "smollm3-3b": 3.08, "starcoder2-15b": 15.96,
    "deepseek-llm-67b": 67.42, "deepseek-llm-7b": 6.91, "deepseek-coder-33b": 33.34, "deepseek-moe-16b": 16.38,
    "moonlight-16b-a3b": 15.96,
}  # fmt: skip
#: The names of these say less exactly how many there are.
ROUNDED = {"gpt-1.7b": 0.03, "gpt-3.6b": 0.02, "gpt3-13b": 0.02, "gpt3-6.7b": 0.01, "grok-1": 0.01}


@row_by_row("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    counted = ModelConfig.load(name).parameters().total
    assert counted == pytest.approx(1e9 * PUBLISHED[name], rel=ROUNDED.get(name, 0.005))


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama3.1-70b"),
        ("llama31_8b", "llama3.1-8b"),
        ("Kimi K2 1T", "kimi-k2"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking"),
        ("Kimi-K2.5", "kimi-k2-thinking"),
        ("Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"),
        ("GLM-4.5-Air 106B-A12B", "glm-4.5-air"),
        ("nvidia/DeepSeek-R1-0528-NVFP4", "deepseek-v3"),
        ("DeepSeekV4 Flash", "deepseek-v4-flash"),
        ("Grok-1 314B", "grok-1"),
        ("Llama-4-Scout-17B-16E", "llama4-scout"),
    ],
)
def test_words_that_change_no_shape_do_not_matter(said: str, name: str) -> None:
    assert ModelConfig.load(said).name == name


@pytest.mark.parametrize("said", ["GPT-3 15B", "gpt-17b", "Llama-3-13B", "Llama-3.2-11B", "Kimi K2 2T"])
def test_another_size_is_another_model(said: str) -> None:
    with pytest.raises(UsageError, match="no model named"):
        ModelConfig.load(said)


def test_no_two_models_have_one_spelling() -> None:
    said: dict[str, set[str]] = defaultdict(set)
    for model in ModelConfig.all():
        for name in (model.name, *model.aliases):
            said[spelling_key(name)].add(model.name)
            said[spelling_key(without_point(name))].add(model.name)
    assert {key: names for key, names in said.items() if len(names) > 1} == {}
