"""Rows under the headings and in the words of other tables: every one is projected, and read as it was meant."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import part
from tracelens.errors import UsageError
from tracelens.files.data_table import number
from tracelens.laboratory.configuration_rows import LIMITS, PointSimulator, point_of
from tracelens.laboratory.training_rows import HEADINGS, project_row, stated
from tracelens.predict.workload.model_config import ModelConfig

#: (row, what of the configuration is read): invented, in the shape of each kind of table.
ROWS: tuple[tuple[dict[str, str], dict[str, Any]], ...] = (
    # NeMo's and Megatron-Bridge's performance summaries
    ({"Model": "LLAMA3_8B", "System": "DGX-GB200", "#-GPUs": "8", "Precision": "FP8-CS", "GBS": "128", "MBS": "1",
      "Sequence Length": "8192", "FSDP": "0", "TP": "1", "PP": "1", "CP": "1", "VP": "n/a", "EP": "n/a", "GA": "16",
      "framework": "Megatron-Bridge 26.02 NeMo Container"}, {"ranks": 8, "global_batch": 128, "precision": "fp8"}),
    ({"Model": "DeepSeekV3", "System": "DGX-H100", "#-GPUs": "1024", "Precision": "FP8-SC", "GBS": "8192", "MBS": "1",
      "Sequence Length": "4096", "FSDP": "0", "TP": "2", "PP": "8", "CP": "1", "VP": "4", "EP": "64", "GA": "256"},
     {"ranks": 1024, "ep": 64, "vpp": 4}),
    ({"Model": "LLAMA3.1-405B", "System": "DGX-B200", "#-GPUs": "256", "Precision": "MXFP8", "GBS": "1,536",
      "MBS": "1", "Sequence Length": "8,192", "TP": "4", "PP": "8", "CP": "2", "VP": "8"},
     {"global_batch": 1536, "cp": 2, "precision": "mxfp8"}),
    ({"Model": "Nemotron4-340B", "#-GPUs": "128", "GBS": "32", "MBS": "1", "Sequence Length": "4096", "TP": "8",
      "PP": "8", "VP": "12", "CP": "1", "System": "DGX H100", "Precision": "FP8", "Task": "Pre-training"},
     {"tp": 8, "pp": 8}),
    ({"Task": "LoRA", "Model": "Llama3 70B", "System": "H100", "#-GPUs": "8", "GBS": "32", "MBS": "1",
      "Packed Sequence Length": "4096", "TP": "2", "PP": "4", "VP": "20", "Precision": "BF16"}, {"lora": 16}),
    ({"Task": "SFT", "Model": "Qwen3 30B A3B", "System": "GB200", "#-GPUs": "8", "GBS": "8", "MBS": "1",
      "Sequence Length": "4096", "TP": "1", "PP": "1", "EP": "8", "Precision": "MXFP8"}, {"ep": 8}),
    # MLPerf's results
    ({"model": "Llama-3.1-8B", "gpu": "B200", "n_gpus": "16.0", "gbs": "16", "seq_len": "8192", "precision": "NVFP4",
      "framework": "PyTorch NVIDIA Release 25.09 (MLPerf v5.1)", "recompute": "none", "mbs": "2.0", "tp": "1.0",
      "pp": "1.0", "cp": "4.0", "dp": "4.0", "notes": "tp overlap=False; full cuda graph=1; mcore cuda graph=1"},
     {"graphs": "full", "cp": 4}),
    ({"model": "Llama-3.1-8B", "gpu": "H200", "n_gpus": "64", "gbs": "32", "seq_len": "8192",
      "framework": "NeMo (MLPerf v5.1)"}, {"cp": 2, "dp": 32}),
    ({"model": "Llama-2-70B", "kind": "lora", "gpu": "MI325X", "n_gpus": "8", "gbs": "8", "mbs": "1",
      "seq_len": "8192", "precision": "FP8", "recompute": "none", "framework": "PyTorch 2.6.0, ROCm 6.4 (MLPerf v5.0)",
      "notes": "GovReport packed to 8192; LoRA rank 16 on attention"}, {"lora": 16, "recompute": "none"}),
    ({"model": "GPT3-175B", "gpu": "H100-80GB-SXM", "n_gpus": "512", "tp": "4", "pp": "8", "vp": "6", "mbs": "2",
      "gbs": "2048", "seq_len": "2048", "precision": "FP8", "framework": "NVIDIA NEMO (MLPerf v4.1)"}, {"dp": 16}),
    # torchtitan's documentation
    ({"model": "Llama 3.1 8B", "GPUs": "8x H100", "Parallelism": "FSDP 8", "Local batch size": "2",
      "Sequence length": "8192", "Precision": "torch.compile + Float8", "TPS/GPU": "8,000", "framework": "torchtitan",
      "Activation checkpointing": "selective AC (op)"}, {"ranks": 8, "zero": 3, "precision": "fp8"}),
    ({"model": "Llama 3.1 405B", "# GPUs": "512", "gpu": "H100 SXM", "Parallelism": "FSDP 32, TP 8, PP 2",
      "local batch size": "32", "microbatch": "1", "seq len": "8K", "dtype": "bfloat16", "framework": "torchtitan",
      "Schedule": "Interleaved1F1B", "AC": "full"}, {"tp": 8, "pp": 2, "zero": 3, "recompute": "full"}),
    ({"model": "deepseek-ai/DeepSeek-V3", "hardware": "256 x B200", "parallelism": "EP 32, PP 8, FSDP 32",
      "local_batch_size": "16", "seq_len": "4096", "quantization": "mxfp8", "framework": "torchtitan"},
     {"ranks": 256, "pp": 8, "ep": 32, "precision": "mxfp8"}),
    # llm-foundry's tables
    ({"Model": "mpt-13b", "SeqLen (T)": "2048", "# GPUs": "64", "GPU": "h100_80gb",
      "MicroBatchSize": "16", "GradAccum": "1", "GlobalBatchSize": "1024", "Precision": "amp_fp8",
      "ActivationCheckpointing": "True", "Sharding": "FULL_SHARD", "framework": "llm-foundry"},
     {"precision": "fp8", "recompute": "full", "zero": 3}),
    # MaxText's tables
    ({"Model": "Llama2-70B", "Hardware": "A3 Mega H100", "Num chips": "128", "Per Device Batch Size": "4",
      "Max Target Length": "4096", "Remat Policy": "save_qkv_proj", "Data Type": "bf16", "framework": "MaxText"},
     {"ranks": 128, "micro_batch": 4, "recompute": "selective"}),
    ({"Model": "mixtral-8x7b", "gpu": "H100", "Num devices": "256", "per_device_batch_size": "5", "dtype": "fp8",
      "remat_policy": "minimal", "framework": "MaxText"}, {"micro_batch": 5, "precision": "fp8"}),
    # Primus' and AMD's documents
    ({"Model": "Llama 3.1 70B", "GPU": "MI355X", "Nodes": "1", "Precision": "FP8", "Batch size": "24", "MBS": "3",
      "Seq length": "8192", "FSDP": "yes", "framework": "Primus/Megatron-LM", "Tokens/s/GPU": "2,800"},
     {"ranks": 8, "micro_batch": 3, "zero": 3}),
    ({"Model": "Mixtral 8x7B", "GPU": "AMD Instinct MI300X", "Num nodes": "2", "GPUs per node": "8", "EP": "8",
      "Micro batch size": "2", "Global batch size": "256", "Sequence length": "4096", "Precision": "BF16",
      "framework": "Primus (Megatron)"}, {"ranks": 16, "ep": 8}),
    ({"model": "deepseek_v2_lite", "kind": "moe", "gpu": "MI325X", "n_gpus": "8", "mbs": "12", "precision": "BF16",
      "framework": "Primus/Megatron-LM"}, {"ep": 8}),
    ({"model": "DeepSeek-V3 (4 layers)", "gpu": "MI355X", "n_gpus": "8", "ep": "8", "mbs": "2", "gbs": "128",
      "precision": "see doc", "recompute": "full", "framework": "Primus/Megatron"}, {"ranks": 8, "precision": "bf16"}),
    ({"Model": "Llama3.3-70B", "Accelerator": "MI300X", "GPU count": "32", "TP size": "8", "Micro-batch size": "4",
      "Global batch": "256", "Context length": "8192", "Data type": "BF16", "framework": "Megatron-LM (ROCm)"},
     {"tp": 8, "dp": 4}),
    # Megatron-LM's README, papers, blogs
    ({"Model": "GPT 145.6B", "gpu": "H100 SXM 80GB", "Number of GPUs": "128", "tensor-model-parallel-size": "8",
      "pipeline_model_parallel_size": "8", "Batch size": "152", "seq": "2048", "framework": "Megatron-LM"}, {"pp": 8}),
    ({"model": "GPT-3 175B", "GPUs": "64", "gpu type": "A100 80GB", "tensor parallel": "8", "pipeline parallel": "8",
      "batch size": "64", "sequence": "2048", "precision": "fp16 mixed", "recomputation": "selective"},
     {"tp": 8, "precision": "fp16", "recompute": "selective"}),
    ({"model": "Qwen2.5-72B", "gpu": "H200", "world size": "128", "TP": "4", "PP": "4", "micro batches": "32",
      "mbs": "1", "seq_len": "32k", "precision": "BF16", "framework": "Megatron-Core"},
     {"ranks": 128, "global_batch": 32 * 8}),
    ({"model": "meta-llama/Meta-Llama-3-8B", "gpu": "NVIDIA A100-SXM4-80GB", "GPUs": "16", "zero stage": "3",
      "micro batch size": "2", "gradient accumulation steps": "4", "max seq len": "4096", "dtype": "bf16",
      "gradient checkpointing": "true", "framework": "DeepSpeed"}, {"zero": 3, "global_batch": 128}),
    ({"model": "Grok-1", "gpu": "GB200 NVL72", "gpus": "256", "tp": "4", "pp": "8", "ep": "8", "vpp": "1",
      "gbs": "1024", "precision": "fp8", "framework": "NeMo"}, {"ep": 8, "tp": 4}),
    ({"Architecture": "gpt-oss-120b", "Chip": "B300", "World size": "64", "Expert parallel size": "64",
      "Global BS": "512", "Local BS": "1", "Numeric format": "MXFP8", "Stack": "Megatron-Bridge"}, {"ep": 64}),
    ({"model": "Llama-4-Maverick", "gpu": "GB300", "nodes": "16", "gpus/node": "4", "TP": "1", "PP": "4", "VP": "12",
      "EP": "16", "GBS": "512", "precision": "FP8-CS"}, {"ranks": 64, "ep": 16}),
    ({"model": "Qwen/Qwen3-30B-A3B-Base", "gpu": "H100", "n_gpus": "8", "gbs": "512", "mbs": "4", "ep": "8",
      "seq_len": "4096", "precision": "BF16", "framework": "NeMo AutoModel"}, {"zero": 3, "ep": 8}),
    ({"model": "Kimi-K2", "system": "DGX-GB300", "num gpus": "256", "TP": "1", "PP": "4", "EP": "64", "VP": "4",
      "GBS": "4096", "MBS": "2", "precision": "FP8-MX", "CUDA graphs": "partial"}, {"graphs": "partial", "ep": 64}),
)  # fmt: skip


@pytest.mark.parametrize(("row", "meant"), part(ROWS, 5), ids=[str(number) for number in range(len(ROWS))])
def test_rows_of_other_tables_are_projected_as_they_were_meant(row: dict[str, str], meant: dict[str, Any]) -> None:
    point = project_row(row)
    assert point.projection is not None, point.reason
    parallel = point.projection.parallel
    read = {name: getattr(parallel, name) for name in meant}
    assert read == meant


@pytest.mark.parametrize(
    ("said", "name"),
    [("# GPUs", "n_gpus"), ("Micro-Batch Size", "mbs"), ("Seq Len (T)", "seq_len"), ("tokens/sec/GPU", "tokens_s_gpu"),
     ("id", "id"), ("colour", "colour")],
)  # fmt: skip
def test_headings(said: str, name: str) -> None:
    assert HEADINGS.name(said) == name


@pytest.mark.parametrize(
    ("said", "read"), [("1,536", "1536"), ("8K", "8192"), ("64 GPUs", "64"), ("64.0", "64"), ("many", "many")]
)
def test_numbers_with_units(said: str, read: str) -> None:
    assert number(said) == read


def test_a_column_under_its_own_name_counts_before_another_s_spelling() -> None:
    assert stated({"Batch size": "7", "gbs": "64", "model": "x", "GPUs": "4 x MI300X"}) == {
        "model": "x", "gpu": "MI300X", "n_gpus": "4", "gbs": "64",
    }  # fmt: skip


def test_steps_of_unknown_recomputation_repeat_the_fewest_layers_that_let_them_fit() -> None:
    row = {"model": "Mixtral 8x22B", "gpu": "MI355X", "n_gpus": "64", "pp": "4", "vp": "2", "ep": "8", "mbs": "2",
           "seq_len": "8192", "framework": "Primus/Megatron-LM"}  # fmt: skip
    point = project_row(row)
    assert point.projection is not None
    layers = point.projection.parallel.recompute_layers
    assert layers is not None
    assert f"{layers} of 56 layers recomputed, the fewest with which the step fits" in point.assumptions
    assert point.projection.infeasible is None
    fewer = project_row(row | {"recompute": f"full, {layers - 1} layers"}).projection
    assert fewer is not None
    assert fewer.infeasible is not None


@pytest.mark.parametrize(("device", "layers"), [("MI300X", 21), ("MI325X", None)])
def test_mlperf_s_fine_tuning_recomputes_on_the_smallest_device(device: str, layers: int | None) -> None:
    row = {"model": "Llama-2-70B", "kind": "lora", "gpu": device, "n_gpus": "8", "gbs": "8", "seq_len": "8192",
           "precision": "FP8", "recompute": "none", "framework": "ROCm (MLPerf v5.1)"}  # fmt: skip
    point = project_row(row)
    assert point.projection is not None
    assert point.projection.parallel.recompute_layers == layers
    own = project_row(row | {"framework": "ROCm"})
    assert own.projection is not None
    assert own.projection.parallel.recompute == "none"


@pytest.mark.sweep
@pytest.mark.shared
def test_measured_steps_are_projected_and_fit(shared_data: Path) -> None:
    """Nineteen of twenty whose configuration is certain; none is called too large for its device by more than 3 %."""
    rows = []
    for name in ("training_points.csv", "tables/mlperf_training.csv"):
        with (shared_data / name).open(newline="", encoding="utf-8") as file:
            rows += [row for row in csv.DictReader(file) if row["quality"] == "A"]
    some = rows[::7]
    found = [project_row(row).projection for row in some]
    assert sum(each is not None for each in found) >= 0.95 * len(some)
    over = [each.peak_memory.peak / each.peak_memory.capacity for each in found if each and each.peak_memory.capacity]
    assert max(over) <= 1.03


@pytest.mark.shared
def test_published_steps_of_primus_are_within_a_tenth(shared_data: Path) -> None:
    """Ten of those whose configuration is known; nothing is fitted to them."""
    with (shared_data / "training_points.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if "Primus" in row["framework"] and row["n_gpus"]]
    close = []
    for row in rows:
        found = project_row(row).projection
        assert found is not None, row["id"]
        if abs(found.tokens_per_s_per_gpu / float(row["tokens_s_gpu"]) - 1) <= 0.1:
            close.append(row["id"])
    assert len(rows) == 12
    assert len(close) >= 10


@pytest.mark.shared
def test_the_file_of_errors_has_rows_of_the_published_table(shared_data: Path) -> None:
    """docs/projection_rows.csv, in the table's order; by pooled constants where a framework has none fitted; docs/accuracy.md counts Primus'."""
    docs = Path(__file__).resolve().parents[2] / "docs"
    with (shared_data / "training_points.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    with (docs / "projection_rows.csv").open(newline="", encoding="utf-8") as file:
        listed = list(csv.DictReader(file))
    errors = {row["id"]: row["error_or_reason"] for row in listed}
    assert len(errors) == len(listed) == 334
    assert [text for text in errors.values() if not re.fullmatch(r"[+-]\d+\.\d%|.*\D{5}.*", text)] == []
    keys = ("id", "model", "gpu", "precision", "recompute")
    assert [[row[key] for key in keys] for row in listed] == [
        [row[key] for key in keys] for row in table if row["id"] in errors
    ]
    primus = [float(errors[row["id"]][:-1]) for row in table if "Primus" in row["framework"] and row["n_gpus"]]
    within = [sum(abs(error) <= most for error in primus) for most in (10, 14)]
    assert (len(primus), within, errors["560"]) == (12, [7, 9], "+21.7%")
    assert "ten are within 10 %, nothing fitted (pooled: seven)" in (docs / "accuracy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("said", "graphs"),
    [("full cuda graph=1; mcore cuda graph=1", "full"), ("full cuda graph=0; mcore cuda graph=0", "none"),
     ("mcore cuda graph=1", "full"), ("", "none")],
)  # fmt: skip
def test_notes_say_what_graphs_replay(said: str, graphs: str) -> None:
    row = {"model": "Llama 2 70B", "gpu": "H100", "n_gpus": "8", "tp": "4", "gbs": "8", "framework": "NeMo 25.04"}
    quiet, noted = project_row(row).projection, project_row(row | {"notes": f"{said}; tp overlap=False"}).projection
    assert quiet is not None
    assert noted is not None
    assert noted.parallel.graphs == graphs
    assert (quiet.parallel.tp_overlap, noted.parallel.tp_overlap) == ("all", "none")
    assert noted.breakdown_us["tp"] > quiet.breakdown_us["tp"]


def test_the_first_layers_of_a_model() -> None:
    cut, whole = ModelConfig.load("DeepSeek-V3 (4 layers)"), ModelConfig.load("DeepSeek-V3")
    assert cut.layers == whole.layers[:4]
    with pytest.raises(UsageError, match="has 61 layers, not 90"):
        ModelConfig.load("DeepSeek-V3-90L")


#: Invented, in the shape of benchmarks of serving engines, and what they are read as.
SERVED: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"model": "openai/gpt-oss-120b", "hw": "H200", "framework": "vLLM", "precision": "fp4", "isl": "1k", "osl": "8k",
      "tp": 2, "conc": 64}, {"input_tokens": 1024, "output_tokens": 8192, "concurrency": 64}),
    ({"Model": "deepseek-ai/DeepSeek-R1-0528", "GPU": "8x MI355X", "Engine": "SGLang", "Input length": "1,024",
      "Output length": "1,024", "Max concurrency": "32", "TP": "8", "Quantization": "FP8", "MTP": "yes"},
     {"concurrency": 32, "speculation": "mtp"}),
    ({"model_id": "meta-llama/Llama-3.3-70B-Instruct", "device": "H100", "random_input_len": 1000,
      "random_output_len": 1000, "max_concurrency": 16, "tensor_parallel_size": 4, "dtype": "auto"}, {"output_tokens": 1000}),
    ({"Model": "nvidia/Llama-3.1-70B-Instruct-FP4", "System": "B200", "Runtime": "TensorRT-LLM", "ISL": 2048, "OSL": 128,
      "Concurrency": 8, "TP": 1, "Precision": "NVFP4"}, {"input_tokens": 2048}),
)  # fmt: skip


@pytest.mark.parametrize(("row", "meant"), SERVED, ids=[str(number) for number in range(len(SERVED))])
def test_rows_of_serving_benchmarks_are_estimated(row: dict[str, Any], meant: dict[str, Any]) -> None:
    point = point_of(row)
    assert {name: getattr(point, name) for name in meant} == meant
    cost = PointSimulator(LIMITS).cost(point)
    assert cost.pool_tokens() > point.input_tokens
    assert cost.deployment.parallelism.tp == int(row.get("tp") or row.get("TP") or row["tensor_parallel_size"])
