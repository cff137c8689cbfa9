"""The model files of the package against published parameter counts and published FLOPs per token."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import row_by_row
from tracelens.errors import InputError, UsageError
from tracelens.files.documents import normalized
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.model_config import FOLDER, expanded
from tracelens.predict.workload.model_shape import PARTS

HUB = "Hugging Face, safetensors metadata of the repository"
#: name -> (parameters, relative tolerance, source)
PUBLISHED = {
    "llama2-7b": (6_738_415_616, 0, HUB),
    "llama2-70b": (68_976_648_192, 0, HUB),
    "llama3.1-8b": (8_030_261_248, 0, HUB),
    "llama3.1-70b": (70_553_706_496, 0, HUB),
    "llama3.1-405b": (405_853_388_800, 0, HUB),
    "qwen2.5-0.5b": (494_032_768, 0, HUB),
    "qwen2.5-7b": (7_615_616_512, 0, HUB),
    "qwen2.5-72b": (72_706_203_648, 0, HUB),
    "qwen3-0.6b": (596_049_920, 0, HUB),
    "qwen3-8b": (8_190_735_360, 0, HUB),
    "qwen3-30b-a3b": (30_532_122_624, 0, HUB),
    "qwen3-235b-a22b": (235_093_634_560, 0, HUB),
    "mixtral-8x7b": (46_702_792_704, 0, HUB),
    "mixtral-8x22b": (140.6e9, 0.001, "Mistral, model card"),
    "deepseek-v2": (236e9, 0.002, "arXiv 2405.04434"),
    "deepseek-v2-lite": (15_706_484_224, 0, HUB),
    # 58 x 256 of them are the routers' correction biases, which no gradient reaches
    "deepseek-v3": (671_026_419_200 - 58 * 256, 0, HUB + ", main model"),
    "kimi-k2": (1.026408e12, 0.0001, HUB),
    "gpt-oss-20b": (20.91e9, 0.001, "gpt-oss model card, table 1"),
    "gpt-oss-120b": (116.83e9, 0.001, "gpt-oss model card, table 1"),
    "gpt3-175b": (175e9, 0.01, "arXiv 2205.05198, table 3"),
    "megatron-22b": (22e9, 0.01, "arXiv 2205.05198, table 3"),
    "mt-nlg-530b": (530e9, 0.01, "arXiv 2205.05198, table 3"),
    "megatron-1t": (1008e9, 0.001, "arXiv 2104.04473, table 1"),
    "nemotron-3-nano": (31.6e9, 0.001, "NVIDIA, model card"),
    "nemotron-3-super": (120.6e9, 0.001, "NVIDIA, model card"),
    "nemotron-3-ultra": (550e9, 0.002, "NVIDIA, model card"),
    # sequence 2048, github mosaicml/llm-foundry scripts/train/benchmarking/README.md
    "mpt-1b": (1_315_950_592, 0, "llm-foundry"),
    "mpt-760m": (760_470_528, 0, "llm-foundry"),
    "mpt-3b": (2_651_837_440, 0, "llm-foundry"),
    "mpt-7b": (6_658_859_008, 0, "llm-foundry"),
    "mpt-13b": (12_853_954_560, 0, "llm-foundry"),
    "mpt-30b": (29_975_214_080, 0, "llm-foundry"),
    "mpt-70b": (64_862_437_376, 0, "llm-foundry"),
}
#: name -> (active parameters, relative tolerance): embedding included
ACTIVE = {
    "mixtral-8x7b": (12.9e9, 0.01),
    "deepseek-v2": (21e9, 0.02),
    "deepseek-v3": (37e9, 0.02),
    "qwen3-30b-a3b": (3.3e9, 0.02),
    "qwen3-235b-a22b": (22e9, 0.01),
    "kimi-k2": (32e9, 0.03),
    "nemotron-3-nano": (3.6e9, 0.01),
    "nemotron-3-super": (12.7e9, 0.01),
    "nemotron-3-ultra": (55e9, 0.02),
}
#: Of training_points.csv, without a file: attention for which there is no model.
UNMODELED = {"KDA hybrid"}


@row_by_row("name", sorted(PUBLISHED))
def test_parameters_are_the_published_ones(name):
    published, tolerance, _ = PUBLISHED[name]
    assert ModelConfig.load(name).parameters().total == pytest.approx(published, rel=tolerance, abs=0.5)


@pytest.mark.parametrize("name", sorted(ACTIVE))
def test_active_parameters_are_the_published_ones(name):
    published, tolerance = ACTIVE[name]
    assert ModelConfig.load(name).parameters().active == pytest.approx(published, rel=tolerance)


def test_gpt_oss_counts_its_active_parameters_without_the_embedding():
    model = ModelConfig.load("gpt-oss-120b")
    # model card, table 1: 5.13 B; the lookup table is 201,088 x 2,880
    assert model.parameters().active - 201_088 * 2_880 == pytest.approx(5.13e9, rel=0.001)


def test_a_dense_model_has_all_parameters_active():
    for model in ModelConfig.all():
        counted = model.parameters()
        assert (counted.active == counted.total) == (model.experts is None), model.name


@row_by_row("name", ModelConfig.names())
def test_every_file_has_a_source_and_a_type(name):
    model = ModelConfig.load(name)
    assert model.source.strip()
    assert model.dtype is not None


def test_no_two_models_share_a_name_or_alias():
    claimed = defaultdict(set)
    for model in ModelConfig.all():
        for spelling in (model.name, *model.aliases):
            claimed[normalized(spelling)].add(model.name)
    assert {spelling: names for spelling, names in claimed.items() if len(names) > 1} == {}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("LLAMA3.1_405B", "llama3.1-405b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3.1-70b"),
        ("Qwen3_235B_a22B (tokendrop)", "qwen3-235b-a22b"),
        ("DeepSeek-V3-16B", "deepseek-v2-lite"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("Nemotron_3_5_Lightning", "nemotron-3.5-lightning"),
    ],
)
def test_spellings_met_in_data_are_understood(spelling, name):
    assert ModelConfig.load(spelling).name == name


VARIANTS = """
source = "x"
blocks = "2(a-) *f"
hidden = 8
vocab = 16
q_heads = 2
kv_heads = 2
head_dim = 4
ffn = 32
[variants.a]
block = "w"
window = 4
kv_heads = 1
[variants.f]
block = "-"
ffn = 16
"""


def test_blocks_with_other_figures_have_letters_of_their_own(tmp_path):
    path = tmp_path / "m.toml"
    path.write_text(VARIANTS)
    model = ModelConfig.load(path)
    near, full = 8 * (2 + 1 + 1) * 4 + 8 * 8, 8 * (2 + 2 + 2) * 4 + 8 * 8
    assert model.parameters().total == 2 * 16 * 8 + 2 * near + full + 2 * 2 * 8 * 32 + 2 * 8 * 16 + 7 * 8
    assert [model.of(letter).window for letter in model.blocks] == [4, None, 4, None, None, None]
    assert model.layers == (model.blocks[:2], model.blocks[2:4], model.blocks[4:])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('block = "w"', 'block = "Q"', "variants.a.block must be one of the letters"),
        ("window = 4", "widow = 4", "variants.a.widow is not a key of a model file; did you mean variants.a.window?"),
        ("2(a-)", "2(b-)", "blocks must be runs of the letters"),
        ("window = 4\n", "", "blocks have 'w', but window is missing"),
    ],
)
def test_a_wrong_variant_is_one_clear_error(tmp_path, old, new, message):
    path = tmp_path / "m.toml"
    path.write_text(VARIANTS.replace(old, new))
    with pytest.raises(InputError) as caught:
        ModelConfig.load(path)
    assert message in str(caught.value)


def test_an_unknown_name_proposes_a_near_one():
    with pytest.raises(UsageError, match=r"no model named 'lama3\.1-8b'; did you mean llama3\.1-8b"):
        ModelConfig.load("lama3.1-8b")


def test_the_two_deepseek_v3_differ_in_multi_token_prediction_alone():
    own = ("label", "aliases", "mtp_")
    both = [
        [line for line in (FOLDER / f"{name}.toml").read_text().splitlines() if not line.startswith(own)]
        for name in ("deepseek-v3", "deepseek-v3-without-mtp")
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("runs", "blocks"), [("3(*-)", "*-*-*-"), ("1(*-) 2(*E)", "*-*E*E"), ("MEM*E", "MEM*E"), ("2(wE*E)", "wE*EwE*E")]
)
def test_blocks_are_written_as_runs(runs, blocks):
    assert expanded(runs) == blocks


@pytest.mark.parametrize("runs", ["3(*-", "x", "(*-)", "2 *-", "999999999(*-)"])
def test_other_texts_are_no_blocks(runs):
    with pytest.raises(ValueError, match="MM " + re.escape(runs)):
        expanded(f"MM {runs}")


GOOD = 'source = "x"\nblocks = "2(*-)"\nhidden = 8\nvocab = 16\nq_heads = 2\nkv_heads = 1\nhead_dim = 4\nffn = 32\n'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "x"\n', "", "m.toml: source must say where the figure comes from, but is missing"),
        ("hidden = 8", "hidden = 0", "m.toml: hidden must be a whole number, at least 1, got 0"),
        ("hidden = 8\n", "", "m.toml: hidden must be a whole number, at least 1, but is missing"),
        ("2(*-)", "2(*Q)", "m.toml: blocks must be runs of the letters"),
        ("ffn = 32\n", "", "model m: blocks have '-', but ffn is missing"),
        ("head_dim = 4\n", "", "model m: blocks have '*', but head_dim is missing"),
        ("q_heads = 2\nkv_heads = 1", "q_heads = 3\nkv_heads = 2", "3 query heads are not a multiple of 2 key heads"),
        ("ffn = 32", "ffn = 32\nfnn = 3", "m.toml: fnn is not a key of a model file; did you mean ffn?"),
        ("ffn = 32", 'ffn = 32\ndtype = "bf61"', "m.toml: dtype must be an element type"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, old, new, message):
    path = tmp_path / "m.toml"
    path.write_text(GOOD)
    assert ModelConfig.load(path).parameters().total > 0
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        ModelConfig.load(path)
    assert message in str(caught.value)


@pytest.mark.shared
def test_every_measured_model_has_a_file_or_a_reason(shared_traces: Path):
    with (shared_traces.parent / "training_points.csv").open() as file:
        models = {row["model"] for row in csv.DictReader(file)}
    unknown = set()
    for name in models:
        try:
            ModelConfig.load(name)
        except UsageError:
            unknown.add(name)
    assert unknown == UNMODELED


#: model -> (lowest, highest) of published over own FLOPs per token. Megatron-Bridge counts attention halved, as here.
PUBLISHED_FLOPS = {
    "LLAMA3_8B": (0.999, 1.001),
    "LLAMA3.1_405B": (0.98, 1.013),
    "Qwen3_30B_a3B": (0.985, 1.003),
    "Qwen3_235B_a22B": (0.99, 1.001),
    "DeepSeekV3": (0.995, 1.0),
    "DeepSeekV3 (w/ MTP)": (0.995, 1.0),
    "DeepSeekV3 (w/o MTP)": (0.995, 1.0),
    "Kimi_K2": (0.99, 1.0),
    "Nemotron_3_Super": (0.98, 1.0),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", sorted(PUBLISHED_FLOPS))
def test_flops_per_token_are_what_published_rates_rest_on(shared_traces: Path, name):
    low, high = PUBLISHED_FLOPS[name]
    model = ModelConfig.load(name)
    with (shared_traces.parent / "training_points.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["model"] == name and r["tflops_gpu"] and r["tokens_s_gpu"]]
    assert rows
    for row in rows:
        published = float(row["tflops_gpu"]) * 1e12 / float(row["tokens_s_gpu"])
        assert low <= published / model.flops_per_token(int(float(row["seq_len"]))).training <= high, row["id"]


@pytest.mark.shared
def test_vtrain_shapes_are_files_with_its_figures(shared_traces: Path):
    with (shared_traces.parent / "vtrain.csv").open() as file:
        shapes = {
            (int(r["hidden size"]), int(r["# layers"]), int(r["attention heads"]), int(r["sequence length"]))
            for r in csv.DictReader(file)
        }
    for hidden, layers, heads, sequence in shapes:
        model = ModelConfig.load(f"gpt-{hidden}x{layers}")
        assert (model.hidden, model.attention_blocks, model.q_heads, model.positions) == (
            hidden,
            layers,
            heads,
            sequence,
        )


def test_models_with_windows_are_all_whose_layers_have_one():
    """They are chosen by their files' text before they are parsed: none may be overlooked by how it is written."""
    with_windows = tuple(model for model in ModelConfig.all() if model.window is not None)
    assert with_windows
    assert ModelConfig.with_windows() == with_windows


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("deepseek-v3", "deepseek-ai--DeepSeek-V3"),
        ("deepseek-v3.2", "deepseek-ai--DeepSeek-V3.2"),
        ("deepseek-v4-flash", "deepseek-ai--DeepSeek-V4-Flash"),
        ("kimi-k2", "moonshotai--Kimi-K2-Instruct"),
        ("kimi-k3", "moonshotai--Kimi-K3"),
        ("minimax-m2.5", "MiniMaxAI--MiniMax-M2.5"),
        ("gpt-oss-20b", "openai--gpt-oss-20b"),
        ("gpt-oss-120b", "openai--gpt-oss-120b"),
        ("llama3.1-70b", "meta-llama--Meta-Llama-3.1-70B"),
        ("qwen3-235b-a22b", "Qwen--Qwen3-235B-A22B"),
    ],
)
def test_a_bundled_model_has_the_weights_that_it_was_released_with(shared_data: Path, name: str, config: str) -> None:
    ours = ModelConfig.load(name).quantization
    released = ModelConfig.load(shared_data / "model_configs" / f"{config}.json").quantization
    assert (ours is None) == (released is None)
    if ours is not None and released is not None:
        assert [getattr(ours, part) for part in PARTS] == [getattr(released, part) for part in PARTS]


def test_released_weights_are_read_part_by_part(tmp_path: Path) -> None:
    text = (FOLDER / "gpt-oss-20b.toml").read_text()
    held = ModelConfig.load("gpt-oss-20b").quantization
    assert held is not None
    assert (held.attention, held.logits) == (None, None)
    # Four bits and a byte of scale for 32 weights: 4.25 bits
    assert held.experts is not None
    assert held.experts.bytes_per_weight * 8 == 4.25
    for wrong, message in (
        ('"fp4_e2m1"', "must be an element type"),
        ('"bf16", group', "computed must be an element type"),
    ):
        file = tmp_path / "wrong.toml"
        file.write_text(text.replace(wrong, wrong.replace("fp4_e2m1", "fp3").replace('"bf16"', '"none"')))
        with pytest.raises(InputError, match=message):
            ModelConfig.load(file)
