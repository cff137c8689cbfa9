"""Rows as authors write them: names, devices, precisions and recomputation that no file spells so."""

from __future__ import annotations

import pytest

from tracelens.backends.system_names import system_of
from tracelens.errors import UsageError
from tracelens.projection.batch_rows import project_row
from tracelens.projection.frameworks.row_words import recomputation_of
from tracelens.serving.configuration_rows import point_of
from tracelens.serving.deployment import Precision
from tracelens.workload.model_config import ModelConfig


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("A100 80GB", "a100-sxm-80gb"), ("A100-40GB", "a100-sxm-40gb"), ("H100 80GB", "h100-sxm"),
        ("8x H100-SXM5-80GB", "h100-sxm"), ("H200 141GB", "h200-sxm"), ("B200 180GB", "b200"), ("GB200 NVL72", "gb200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("AMD Instinct MI300X", "mi300x"), ("2xA100-80GB", "a100-sxm-80gb"),
        ("H100-96GB-HBM2e-500W", "h100-sxm-96gb-hbm2e"), ("A100 40GB PCIe", "a100-pcie-40gb"),
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
        ("minimal", "selective", ("layernorm", "mlp_act")), ("selective", "selective", ()),
    ],
)  # fmt: skip
def test_recomputation(said: str, kind: str, modules: tuple[str, ...]) -> None:
    found = recomputation_of(said)
    assert found is not None
    assert (found.kind, found.modules) == (kind, modules)


ROW = {"model": "Llama 3.1 8B", "gpu": "H100", "n_gpus": "8", "mbs": "1", "gbs": "64", "seq_len": "4096"}


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
        ("bfloat16", "bf16"),
    ],
)
def test_weights_of_served_rows(said: str, type_: str) -> None:
    dtype = Precision.named(said, ModelConfig.load("qwen3-32b")).linear
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
    from tracelens.dtypes import DType
    from tracelens.perf_models import GEMM, WorkColumns

    gemm = GEMM(m=8192, n=8192, k=8192, dtype=DType.FP8_E4M3FN)
    found = chain("tile,collectives").estimate_many(WorkColumns.of([gemm]), System.load(device))
    assert found.backend[0] == "tile"
    peak = System.load(device).device.rate("matrix", DType.FP8_E4M3FN)
    assert peak is not None
    assert 2 * 8192**3 / found.time_us[0] / 1e6 < 0.8 * peak.peak_tflops_s
