"""Launch configurations of Megatron-LM and Primus say what a projection needs; what was not read is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.predict.workload.launch_files import read_launch
from tracelens.predict.workload.model_config import ModelConfig

LLAMA = r"""
# Llama 3.1 8B
--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear
--untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256
--tensor-model-parallel-size 2 --pipeline-model-parallel-size=4 --num-layers-per-virtual-pipeline-stage 4
--sequence-parallel --use-distributed-optimizer --seq-length 8192 --micro-batch-size 1 --global-batch-size 64 --bf16
--recompute-granularity selective --recompute-modules core_attn layernorm --lr 1e-4
"""
PRIMUS = """
modules:
  pre_trainer:
    model: ${PRIMUS_MODEL:deepseek_v3}.yaml   # the model
    overrides:
      micro_batch_size: 2
      seq_length: ${PRIMUS_SEQ_LENGTH:4096}
      pipeline_model_parallel_size: ${PRIMUS_PP:16}
      expert_model_parallel_size: 8
      moe_use_legacy_grouped_gemm: true
      recompute_granularity: full
      enable_primus_turbo: true
      use_turbo_grouped_mlp: false
      use_turbo_deepep: true
      fp8: hybrid
      save: null
"""


@pytest.fixture
def written(tmp_path: Path):
    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_megatrons_arguments_are_a_model_and_options(written) -> None:
    found = read_launch(written("args.sh", LLAMA))
    assert found.model is not None
    assert found.model.parameters().total == ModelConfig.load("llama3.1-8b").parameters().total
    assert found.options == {
        "tp": 2, "pp": 4, "vpp": 2, "sequence": 8192, "micro_batch": 1, "global_batch": 64, "precision": "bf16",
        "bf16_layers": "0,0", "gradients": "fp32", "recompute": "selective", "recompute_modules": "core_attn,layernorm", "zero": 1, "dispatcher": "alltoall",
        "sequential_experts": False, "no_sequence_parallel": False, "tp_overlap": "backward", "ep_overlap": False,
        "graphs": "none", "attention": "flash", "moments": "fp32", "activation_inputs": "bf16", "fused_loss": False,
        "offload_layers": 0,
    }  # fmt: skip
    assert found.ignored == ("lr",)


@pytest.mark.parametrize(
    ("said", "name", "value"),
    [
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16", "moments", "bf16"),
        ("--activation-func-fp8-input-store", "activation_inputs", "fp8"),
        ("--cpu-offloading --cpu-offloading-num-layers 12", "offload_layers", 12),
        ("--cpu-offloading-num-layers 12", "offload_layers", 0),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "fused_loss", True),
        ("--cross-entropy-loss-fusion", "fused_loss", False),
        ("--transformer-impl local", "attention", "unfused"),
        ("--transformer-impl local --use-flash-attn", "attention", "flash"),
    ],
)
def test_what_a_step_keeps_is_read(written, said: str, name: str, value: object) -> None:
    found = read_launch(written("args.sh", f"{LLAMA} {said}"))
    assert found.options[name] == value
    assert found.ignored == (
        ("lr",) if "cpu-offloading-num" not in said or value else ("cpu_offloading_num_layers", "lr")
    )


def test_moments_of_an_unknown_type_are_refused(written) -> None:
    with pytest.raises(InputError, match=r"args.sh: exp_avg_dtype must be one of fp32, bf16, fp8, got 'int8'"):
        read_launch(written("args.sh", f"{LLAMA} --exp-avg-dtype int8"))


def test_arguments_that_do_not_say_otherwise_drop_out(written) -> None:
    """Megatron's default is a share of 0.1 of each; Primus' files say theirs."""
    for said, is_so in (
        ("", True),
        ("--hidden-dropout 0.0 --attention-dropout 0", False),
        ("--hidden-dropout 0", True),
    ):
        model = read_launch(written("args.sh", f"{LLAMA} {said}")).model
        assert model is not None
        assert model.dropout == is_so


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        ("--first-last-layers-bf16", "1,1"),
        ("--first-last-layers-bf16 --num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 3", "0,3"),
        ("--num-layers-at-end-in-bf16 3", "0,0"),
    ],
)
def test_layers_that_stay_in_16_bits_need_their_switch(written, arguments: str, layers: str) -> None:
    assert read_launch(written("args.sh", f"{LLAMA} {arguments}")).options["bf16_layers"] == layers


def test_groups_of_query_heads_need_their_switch(written) -> None:
    """As in Megatron-LM, where ``--num-query-groups`` alone changes nothing."""
    found = read_launch(written("args.sh", LLAMA.replace("--group-query-attention", "")))
    assert found.model is not None
    assert found.model.kv_heads == 32


def test_primus_yaml_names_its_model_and_its_turbo_switches(written) -> None:
    found = read_launch(written("pretrain.yaml", PRIMUS))
    assert found.model == ModelConfig.load("deepseek-v3")
    options = dict(found.options)
    assert (options["pp"], options["ep"], options["sequence"], options["precision"]) == (16, 8, 4096, "fp8")
    assert (options["dispatcher"], options["sequential_experts"]) == ("deepep", True)
    assert options["recompute"] == "full"
    assert found.ignored == ("save",)


@pytest.mark.parametrize(
    ("line", "option", "value"),
    [
        ("use_turbo_grouped_mlp: true", "sequential_experts", False),
        ("enable_primus_turbo: false", "dispatcher", "alltoall"),
        ("moe_enable_deepep: true", "dispatcher", "deepep"),
        ("fp8_recipe: mxfp8", "precision", "mxfp8"),
        ("use_torch_fsdp2: true", "zero", 3),
        ("grad_reduce_in_bf16: true", "gradients", "bf16"),
        ("recompute_num_layers: 0", "recompute", "none"),
        ("overlap_moe_expert_parallel_comm: true", "ep_overlap", True),
        ("cuda_graph_impl: full_iteration", "graphs", "full"),
    ],
)
def test_a_switch_changes_its_option(written, line: str, option: str, value: object) -> None:
    assert read_launch(written("one.yaml", f"{PRIMUS}      {line}\n")).options[option] == value


def test_yaml_is_read_as_yaml(written) -> None:
    text = """
base: &base {micro_batch_size: 4, recompute_modules: [core_attn, mlp]}
modules:
  pre_trainer:
    model: "llama3.1-8b"
    overrides:
      <<: *base
      recompute_granularity: 'selective'  # every layer
      seq_length:
        8192
"""
    options = dict(read_launch(written("flow.yaml", text)).options)
    assert (options["micro_batch"], options["sequence"]) == (4, 8192)
    assert (options["recompute"], options["recompute_modules"]) == ("selective", "core_attn,mlp")


def test_the_last_of_a_key_counts_whatever_its_depth(written) -> None:
    text = "seq_length: 1\nmodules:\n  overrides:\n    seq_length: 2\nmicro_batch_size: 3\n"
    assert dict(read_launch(written("deep.yaml", text)).options)["sequence"] == 2


@pytest.mark.parametrize("text", ["a: [1, 2", "a: b: c", "\tseq_length: 1", "[" * 5000, "own: &own [*own]"])
def test_a_file_that_is_no_yaml_is_refused(written, text: str) -> None:
    with pytest.raises(InputError, match="is not a launch configuration"):
        read_launch(written("damaged.yaml", text))


def test_anchors_that_multiply_are_read_once(written) -> None:
    """Each level names the one before ten times: a billion lists if they were spelled out."""
    levels = ["l0: &l0 [seq_length, x]", *(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 10))]
    found = read_launch(written("bomb.yaml", "\n".join([*levels, "seq_length: 64"])))
    assert dict(found.options)["sequence"] == 64


def test_layers_with_experts_are_a_period_or_runs(written) -> None:
    moe = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 100 --num-experts 8"
    blocks = []
    for frequency in ("2", "([0]*1+[1]*3)"):
        found = read_launch(written("moe.sh", f"{moe} --moe-layer-freq '{frequency}'"))
        blocks.append(None if found.model is None else found.model.blocks)
    assert blocks == ["*E*-*E*-", "*-*E*E*E"]
    with pytest.raises(InputError, match="does not fit 4 layers"):
        read_launch(written("moe.sh", f"{moe} --moe-layer-freq '([0]*1)'"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--tensor-model-parallel-size two", "tensor_model_parallel_size must be a whole number, got 'two'"),
        ("--num-layers 2 --hidden-size 8 --num-attention-heads 1", "vocab_size is missing"),
        ("--swiglu maybe", "swiglu must be true or false, got 'maybe'"),
        ("--lr '", "is not a launch configuration"),
    ],
)
def test_wrong_values_are_named(written, text: str, message: str) -> None:
    if text.startswith("--swiglu"):
        text += " --num-layers 2 --hidden-size 8 --num-attention-heads 1 --vocab-size 8"
    with pytest.raises(InputError, match=message):
        read_launch(written("args.sh", text))


def test_the_command_takes_a_launch_file_and_its_own_options_win(written, capsys: pytest.CaptureFixture[str]) -> None:
    path = written("args.sh", LLAMA)
    assert main(["project", "--launch", str(path), "--cluster", "dgx-h100", "--nodes", "1", "--pp", "2"]) == 0
    printed = capsys.readouterr().out
    assert "not read: lr" in printed
    assert "tp 2 pp 2 vpp 2 cp 1 dp 2" in printed
    assert main(["project", "--launch", str(path), "--cluster", "dgx-h100", "--nodes", "1", "--tp", "1"]) in (0, 3)
    assert "tp 1 " in capsys.readouterr().out


def test_experts_are_divided_as_the_tensor_ranks_unless_it_says_otherwise(written) -> None:
    """``expert_tensor_parallel_size`` is ``tensor_model_parallel_size`` in Megatron-LM where it is not given."""
    arguments = LLAMA + " --num-experts 8"
    assert read_launch(written("args.sh", arguments)).options["etp"] == 2
    assert read_launch(written("args.sh", arguments + " --expert-tensor-parallel-size 1")).options["etp"] == 1
    assert "etp" not in read_launch(written("args.sh", LLAMA)).options


EXAMPLE = """
framework: megatron
config: pre_trainer.yaml
model: llama3.1_8B.yaml
overrides: {pipeline_model_parallel_size: 2}
"""


def test_base_files_count_below_the_file_that_extends_them(written, tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    written("bases/first.yaml", "seq_length: 1024\nmicro_batch_size: 4\nsave: here\n")
    written("bases/second.yaml", "extends: first.yaml\nmicro_batch_size: 2\n")
    found = read_launch(written("own.yaml", "extends:\n  - bases/second.yaml\nmodel: llama3.1-8b\nseq_length: 8192\n"))
    assert (found.options["sequence"], found.options["micro_batch"]) == (8192, 2)
    with pytest.raises(InputError, match=r"extends gone\.yaml: there is no such file in its folder"):
        read_launch(written("own.yaml", "extends: gone.yaml\n"))
    written("one.yaml", "extends: other.yaml\n")
    with pytest.raises(InputError, match="extends nothing itself"):
        read_launch(written("other.yaml", "extends: one.yaml\n"))


def test_primus_files_that_a_launch_names_are_found_above_it(written, tmp_path: Path) -> None:
    for folder in ("primus/configs/modules/megatron", "primus/configs/models/megatron", "examples"):
        (tmp_path / folder).mkdir(parents=True)
    written(
        "primus/configs/modules/megatron/pre_trainer.yaml", "use_distributed_optimizer: false\nmicro_batch_size: 8\n"
    )
    written(
        "primus/configs/models/megatron/mine.yaml",
        "num_layers: 4\nhidden_size: 64\nnum_attention_heads: 4\nvocab_size: 100\n",
    )
    found = read_launch(written("examples/mine.yaml", EXAMPLE.replace("llama3.1_8B", "mine") + "num_layers: 6\n"))
    assert found.model is not None
    assert (found.model.hidden, len(found.model.layers)) == (64, 6)
    assert (found.options["zero"], found.options["micro_batch"], found.options["pp"]) == (0, 8, 2)


def test_what_primus_base_file_says_is_known_where_it_is_not_at_hand(written) -> None:
    found = read_launch(written("example.yaml", EXAMPLE))
    assert (found.options["zero"], found.options["global_batch"], found.options["sequence"]) == (1, 16, 1024)
    assert found.ignored == ("framework",)
    assert "zero" in read_launch(written("bare.yaml", "model: llama3.1-8b\n")).options
    assert read_launch(written("bare.yaml", "model: llama3.1-8b\n")).options["zero"] == 0


def test_what_changes_a_named_model_is_applied(written) -> None:
    whole = ModelConfig.load("llama3.1-8b")
    found = read_launch(written("small.yaml", "model: llama3.1_8B.yaml\nnum_layers: 4\nvocab_size: 1000\n"))
    assert found.model is not None
    assert (len(found.model.layers), found.model.vocab, found.model.hidden) == (4, 1000, whole.hidden)
    assert found.ignored == ()
    text = "model: deepseek-v3\nnum_layers: 5\nnum_experts: 64\nmoe_layer_freq: ([0]*1+[1]*4)\nkv_lora_rank: 256\n"
    found = read_launch(written("experts.yaml", text))
    assert found.model is not None
    assert found.model.experts is not None
    assert found.model.latent_attention is not None
    assert (found.model.blocks, found.model.experts.count) == ("*-*E*E*E*E", 64)
    assert found.model.latent_attention.kv_rank == 256
    text = "model: llama3.1-8b\nmulti_latent_attention: false\nmtp_num_layers: null\n"
    found = read_launch(written("same.yaml", text))
    assert (found.model, found.ignored) == (whole, ())


@pytest.mark.parametrize(
    "line", ["num_experts: 8", "multi_latent_attention: true", "swiglu: false", "kv_lora_rank: 512"]
)
def test_what_makes_another_model_of_the_named_one_is_refused(written, line: str) -> None:
    with pytest.raises(InputError, match="give the whole shape"):
        read_launch(written("other.yaml", f"model: llama3.1-8b\n{line}\n"))


@pytest.mark.parametrize(
    ("lines", "layers"),
    [
        ("recompute_method: block\nrecompute_num_layers: 5", 10),
        ("recompute_method: block\nrecompute_num_layers: 16", None),
        ("recompute_method: uniform\nrecompute_num_layers: 5", None),
    ],
)
def test_a_part_of_the_layers_is_recomputed(written, lines: str, layers: int | None) -> None:
    """``block`` counts layers of each of the two stages; all 32, and pieces of any size, are full recomputation."""
    text = f"model: llama3.1-8b\npipeline_model_parallel_size: 2\nrecompute_granularity: full\n{lines}\n"
    options = read_launch(written("some.yaml", text)).options
    assert (options["recompute"], options.get("recompute_layers")) == ("full", layers)


@pytest.mark.parametrize("key", ["use_turbo_grouped_mlp", "use_turbo_grouped_gemm"])
def test_both_names_of_primus_grouped_kernel_count(written, key: str) -> None:
    text = PRIMUS.replace("use_turbo_grouped_mlp: false", f"{key}: true")
    assert read_launch(written("turbo.yaml", text)).options["sequential_experts"] is False


#: Primus' examples of Llama on MI325X: the lines of theirs that a projection reads.
FULLY_SHARDED = """
use_torch_fsdp2: true
use_distributed_optimizer: false
recompute_granularity: full
recompute_method: block
recompute_num_layers: 72
"""
FP8 = "fp8: hybrid\nfp8_recipe: delayed\n"


@pytest.mark.parametrize(
    ("text", "asked", "published"),
    [
        (f"model: llama3.1_70B.yaml\nmicro_batch_size: 3{FULLY_SHARDED}", ("--gpus", "64", "--global-batch", "768"), 1174),
        (f"model: llama3.1_70B.yaml\nmicro_batch_size: 1{FULLY_SHARDED}{FP8}", ("--gpus", "64", "--global-batch", "128"), 1726),
        (f"model: llama3.1_8B.yaml\nmicro_batch_size: 4\nglobal_batch_size: 128\n{FP8}", ("--gpus", "8"), 16186),
    ],
)  # fmt: skip
def test_primus_examples_are_within_a_tenth_of_what_it_published(
    written, capsys: pytest.CaptureFixture[str], text: str, asked: tuple[str, ...], published: float
) -> None:
    """Tokens/s/GPU as published; the batches of 70B are the example's on as many nodes, which are not stated."""
    path = written("example.yaml", f"config: pre_trainer.yaml\n{text}seq_length: 8192\nenable_primus_turbo: true\n")
    assert main(["project", "--launch", str(path), "--cluster", "mi325x", *asked]) == 0
    printed = capsys.readouterr().out
    assert "does not fit" not in printed
    assert float(re.search(r"([\d,]+) tokens/s/GPU", printed)[1].replace(",", "")) == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize(
    ("lines", "sequential"),
    [
        (["enable_primus_turbo: false"], True),
        (["enable_primus_turbo: true", "use_turbo_grouped_mlp: false"], True),
        (["use_turbo_grouped_mlp: false"], True),
        (["enable_primus_turbo: true", "use_turbo_grouped_mlp: true"], False),
        (["enable_primus_turbo: true"], False),
        ([], False),
        (["enable_primus_turbo: false", "moe_use_legacy_grouped_gemm: false"], False),
        (["enable_primus_turbo: true", "use_turbo_grouped_gemm: true", "use_turbo_grouped_mlp: false"], False),
    ],
)
def test_turning_the_turbo_kernel_off_alone_means_one_product_per_expert(written, lines, sequential) -> None:
    text = "\n".join(
        ["modules:", "  pre_trainer:", "    model: deepseek_v3.yaml", "    overrides:", "      seq_length: 4096"]
    )
    text += "".join(f"\n      {line}" for line in lines)
    assert read_launch(written("one.yaml", text)).options["sequential_experts"] is sequential
