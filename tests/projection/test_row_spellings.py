"""Rows as authors write them: names, devices, precisions and recomputation that no file spells so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.backends.base import system_of
from tracelens.errors import UsageError
from tracelens.files.data_table import number
from tracelens.laboratory.configuration_rows import point_of
from tracelens.laboratory.training_rows import project_row, recomputation_of, sharding_of, stated
from tracelens.predict.serving.deployment import ServingPrecision
from tracelens.predict.workload.model_config import ModelConfig


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("A100 80GB", "a100-sxm-80gb"), ("A100-40GB", "a100-sxm-40gb"), ("H100 80GB", "h100-sxm"),
        ("8x H100-SXM5-80GB", "h100-sxm"), ("H200 141GB", "h200-sxm"), ("B200 180GB", "b200"), ("GB200 NVL72", "gb200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("AMD Instinct MI300X", "mi300x"), ("2xA100-80GB", "a100-sxm-80gb"),
        ("H100-96GB-HBM2e-500W", "h100-sxm-96gb-hbm2e"), ("A100 40GB PCIe", "a100-pcie-40gb"), ("H100 x8", "h100-sxm"),
        ("BM.GPU.H100.8", "h100-sxm"),
    ],
)  # fmt: skip
def test_devices(said: str, name: str) -> None:
    assert system_of(said)[0].device.name == name


@pytest.mark.parametrize("said", ["H100 40GB", "B200 80GB", "H300"])
def test_a_size_that_a_device_does_not_have_is_another_device(said: str) -> None:
    with pytest.raises(UsageError, match="no device"):
        system_of(said)


@pytest.mark.parametrize(("said", "by"), [("A800", "its own link"), ("L40S", "PCIe at 32 GB/s")])
def test_a_device_without_a_node_of_its_own_stands_in_a_common_one_and_says_so(said: str, by: str) -> None:
    system = system_of(said)[0]
    assert system.topology is not None
    assert system.topology.ranks_per_node == 8
    assert by in (system.note or "")


@pytest.mark.parametrize(
    ("said", "kind", "modules"),
    [
        ("False", "none", ()), ("n/a", "none", ()), ("-", "none", ()), ("disabled", "none", ()), ("0", "none", ()),
        ("True", "full", ()), ("1", "full", ()), ("full activation checkpointing", "full", ()),
        ("gradient checkpointing", "full", ()), ("block, 12 layers", "full", ()),
        ("moe_act", "selective", ("moe_act",)), ("mla_up_proj,mlp", "selective", ("mla_up_proj", "mlp")),
        ("minimal", "selective", ("layernorm", "mlp_act")), ("selective", "selective", ()), ("N", "none", ()),
        ("✓", "full", ()), ("attn", "selective", ("core_attn",)), ("recompute 10 layers", "full", ()),
    ],
)  # fmt: skip
def test_recomputation(said: str, kind: str, modules: tuple[str, ...]) -> None:
    found = recomputation_of(said)
    assert found is not None
    assert (found.kind, found.modules) == (kind, modules)


ROW = {"model": "Llama 3.1 8B", "gpu": "H100", "n_gpus": "8", "mbs": "1", "gbs": "64", "seq_len": "4096"}


@pytest.mark.parametrize(
    ("said", "level", "ranks"),
    [
        ("fsdp", 3, None), ("FSDP1", 3, None), ("FSDP 64", 3, 64), ("fsdp16", 3, 16), ("FSDP2 64", 3, 64),
        ("FULL_SHARD (ZeRO-3)", 3, None), ("8 (intra-node)", 3, 8), ("64 ranks", 3, 64), ("-1", 3, None),
        ("stage 2", 2, None), ("dist-opt", 1, None), ("DDP", 0, None), ("", 1, None),
    ],
)  # fmt: skip
def test_sharding(said: str, level: int, ranks: int | None) -> None:
    assert sharding_of(said, 1) == (level, ranks)


@pytest.mark.parametrize(
    ("cells", "read"),
    [
        ({"n_gpus": "8 nodes"}, {"nodes": "8"}), ({"n_gpus": "16 nodes (128 GPUs)"}, {"n_gpus": "128"}),
        ({"GPUs": "16x4 GB200"}, {"n_gpus": "64", "gpu": "GB200"}), ({"GPUs": "8x8"}, {"n_gpus": "64"}),
        ({"gpu": "H100 x8"}, {"n_gpus": "8", "gpu": "H100"}), ({"gpu": "GB200 NVL36x2"}, {"gpu": "GB200 NVL36x2"}),
        ({"Global batch size (tokens)": "4M", "seq_len": "4k"}, {"gbs": "1024"}), ({"gbs": "64", "tokens": "4M"}, {"gbs": "64"}),
        ({"ZeRO stage": "2"}, {"fsdp_shard": "zero2"}), ({"schedule": "none", "precision": "-"}, {"schedule": "", "precision": ""}),
    ],
)  # fmt: skip
def test_cells_that_say_two_things(cells: dict[str, str], read: dict[str, str]) -> None:
    assert stated(cells).items() >= read.items()


@pytest.mark.parametrize(
    ("cell", "value"),
    [("4 096", 4096), ("1,048,576", 1048576), ("1M", 1048576), ("~128", 128), ("TP=2", 2), ("64 (8x8)", 64), ("8192.0", 8192)],
)  # fmt: skip
def test_numbers_keep_every_digit(cell: str, value: int) -> None:
    assert number(cell) == str(value)


def test_a_power_is_no_number() -> None:
    """Two would be read of it."""
    assert number("2^12") == "2^12"


def test_a_schedule_of_one_stage_need_not_be_known() -> None:
    assert project_row(ROW | {"pp": "1", "schedule": "LoopedBFS"}).projection is not None
    assert project_row(ROW | {"pp": "2", "schedule": "LoopedBFS"}).reason == "schedule 'LoopedBFS' is not modeled"


#: What a cell may hold, of which any mixture is projected, or refused with the one thing that is missing.
CELLS = {
    "model": ("meta-llama/Llama-3.1-8B", "LLAMA3_8B", "Qwen/Qwen3-30B-A3B", "gpt-oss-20b", "Llama3 8b (SFT)"),
    "gpu": ("H100-SXM5-80GB", "GB200 NVL72", "MI355X", "8xH100", "A100 SXM 80GB", "b200_sxm", "H300"),
    "n_gpus": ("64", "8x8", "64 GPUs", "", "16 nodes", "16x4 GB200", "some"),
    "tp": ("1", "2.0", "", "-", "TP=2"), "pp": ("1", "2", ""), "gbs": ("1,024", "1 024", "4M tokens", "", "auto", "2^10"),
    "seq_len": ("4k", "4,096", "4 096", ""), "precision": ("BF16", "FP8-CS", "mx-fp8", "NVFP4", "", "W1A1"),
    "recompute": ("", "full", "Y", "attn", "10 layers", "some"), "fsdp_shard": ("", "FSDP", "HSDP 8", "some"),
    "framework": ("NeMo 25.04", "torchtitan v0.2", "axolotl", ""), "schedule": ("", "1F1B", "none", "some"),
}  # fmt: skip


@settings(max_examples=examples(25), deadline=None)
@given(st.fixed_dictionaries({name: st.sampled_from(cells) for name, cells in CELLS.items()}))
def test_any_row_is_projected_or_says_the_one_thing_that_is_missing(row: dict[str, str]) -> None:
    point = project_row(row)
    assert (point.projection is None) != (point.reason is None)
    if point.reason is not None:
        assert "\n" not in point.reason.strip()
        assert len(point.reason) < 400


@pytest.mark.parametrize(
    ("row", "read"),
    [
        ({"model": "Llama 3.1 70B", "GPU": "8xH200", "ISL/OSL": "1k/8k", "Concurrency": "32"}, (8, 1024, 8192, False)),
        ({"model": "gpt-oss-120b", "hw": "B200", "isl": "1k", "osl": "1,024", "conc": "64", "num_gpus": "4"}, (4, 1024, 1024, False)),
        ({"model": "DeepSeek-R1", "hw": "H200 x8", "isl": "8 192", "osl": "1k", "conc": "64 users", "mtp": "MTP-3"}, (8, 8192, 1024, True)),
        ({"model": "DeepSeek-R1", "hw": "B200", "isl": "1k", "osl": "1k", "conc": "8", "tp": "TP8", "precision": "none"}, (8, 1024, 1024, False)),
    ],
)  # fmt: skip
def test_served_rows_as_authors_write_them(row: dict[str, str], read: tuple[int, int, int, bool]) -> None:
    found = point_of(row)
    assert (found.parallelism.tp, found.input_tokens, found.output_tokens, found.speculation == "mtp") == read


def test_a_row_that_says_disaggregated_in_a_column_of_its_own_is_not_simulated_as_one_replica() -> None:
    row = {"model_path": "qwen3-32b", "system": "h100_sxm", "isl": 128, "osl": 128, "concurrency": 4}
    assert point_of(row | {"disagg": False}).concurrency == 4
    with pytest.raises(UsageError, match="disaggregated"):
        point_of(row | {"disagg": True})


def test_one_layer_in_so_many_is_that_part_of_the_layers() -> None:
    point = project_row(ROW | {"recompute": "selective (every 4)"})
    assert point.projection is not None
    assert point.projection.parallel.recompute_layers == 8


def test_chunks_make_1f1b_the_interleaved_schedule() -> None:
    point = project_row(ROW | {"pp": "4", "vp": "2", "schedule": "1F1B"})
    assert point.projection is not None, point.reason
    assert point.projection.schedule == "interleaved"


#: Rows invented as authors write them, and what they are read as: (model, ranks, precision).
INVENTED = (
    ({"model": "meta-llama/Llama-3.1-70B", "gpu": "H100 SXM5", "n_gpus": "64", "tp": "4", "pp": "4", "vp": "5",
      "precision": "FP8 (delayed scaling)", "recompute": "none", "framework": "NeMo 25.04", "schedule": "1F1B"}, "fp8"),
    ({"model": "GLM-4.5-Air", "kind": "moe", "gpu": "H100", "n_gpus": "64", "tp": "2", "pp": "4", "ep": "8",
      "precision": "fp8 blockwise", "recompute": "full (1 layer)", "framework": "Megatron"}, "fp8"),
    ({"model": "Llama2-13B", "gpu": "8x A100", "n_gpus": "8", "tp": "2", "pp": "4", "precision": "bf16",
      "recompute": "yes", "framework": "Megatron-DeepSpeed"}, "bf16"),
    ({"model": "Bloom-176B", "gpu": "A100 80GB", "n_gpus": "384", "tp": "4", "pp": "12", "dp": "8", "mbs": "2",
      "gbs": "2048", "seq_len": "2048", "precision": "bf16", "framework": "Megatron-DeepSpeed"}, "bf16"),
    ({"model": "InternLM 20B", "gpu": "A800", "n_gpus": "128", "tp": "4", "framework": "InternEvo"}, "bf16"),
    ({"model": "GPT-18.4B", "gpu": "A100-80GB", "n_gpus": "256", "tp": "8", "gbs": "1536", "mbs": "8",
      "seq_len": "2048", "precision": "fp16", "recompute": "full", "framework": "Megatron-LM (Selene)"}, "fp16"),
)  # fmt: skip


@pytest.mark.parametrize(("row", "precision"), INVENTED)
def test_rows_as_authors_write_them_are_projected(row: dict[str, str], precision: str) -> None:
    point = project_row(row)
    assert point.projection is not None, point.reason
    assert point.projection.parallel.precision == precision
    assert point.projection.parallel.ranks == int(row["n_gpus"])


@pytest.mark.parametrize(
    ("said", "type_"),
    [
        ("fp8_block", "fp8"),
        ("NVFP4", "fp4"),
        ("mxfp4", "fp4"),
        ("w4a16", "int4"),
        ("AWQ", "int4"),
        ("w8a16", "int8"),
        ("bfloat16", "bf16"),
    ],
)
def test_weights_of_served_rows(said: str, type_: str) -> None:
    dtype = ServingPrecision.named(said, ModelConfig.load("qwen3-32b")).linear
    assert dtype is not None
    assert type_ in (dtype.rate, dtype.label)


@pytest.mark.parametrize("mode", ["agg", "aggregated", "IFB", "", "none"])
def test_modes_in_which_one_replica_does_both(mode: str) -> None:
    row = {"model_path": "qwen3-32b", "system": "h100_sxm", "isl": 128, "osl": 128, "concurrency": 4, "mode": mode}
    assert point_of(row).concurrency == 4


def test_a_framework_s_default_stands_for_expert_ranks_that_are_not_stated() -> None:
    row = {"model": "DeepSeek-V3-16B", "kind": "moe", "gpu": "MI325X", "n_gpus": "8", "mbs": "8", "precision": "BF16"}
    point = project_row(row | {"framework": "Primus/torchtitan"})
    assert point.projection is not None, point.reason
    assert (point.projection.parallel.ep, point.projection.parallel.zero) == (8, 3)
    assert "ep 8, which is primus-torchtitan's default" in point.assumptions
    assert "ep 1, which is torchtitan's default" in project_row(row | {"framework": "torchtitan"}).assumptions
    said = "ep 8: the ranks of experts are not stated"
    assert said in project_row(row | {"framework": "Primus/Megatron-LM"}).assumptions


@pytest.mark.parametrize("device", ["mi350x", "mi355x"])
def test_fp8_products_of_a_device_without_constants_do_not_reach_the_peak(device: str) -> None:
    from tracelens.backends import System
    from tracelens.backends.chain import chain
    from tracelens.perf_models import GEMM, WorkColumns
    from tracelens.types.dtypes import DType

    gemm = GEMM(m=8192, n=8192, k=8192, dtype=DType.FP8_E4M3FN)
    found = chain("tile,collectives").estimate_many(WorkColumns.of([gemm]), System.load(device))
    assert found.backend[0] == "tile"
    peak = System.load(device).device.rate("matrix", DType.FP8_E4M3FN)
    assert peak is not None
    assert 2 * 8192**3 / found.time_us[0] / 1e6 < 0.8 * peak.peak_tflops_s
