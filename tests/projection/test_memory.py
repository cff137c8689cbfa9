"""Projected memory beside measured, and what changes it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

import tracelens as tl
from tracelens.backends.base import System
from tracelens.laboratory.training_rows import project_row
from tracelens.predict.projection.project import Result
from tracelens.predict.projection.step import Projection, project
from tracelens.predict.workload.launch_files import read_launch
from tracelens.predict.workload.model_config import ModelConfig, expanded
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.types.units import BYTES_PER_GIB

EXPERTS = "1(*-) 3(*E)"


def step(model: str, blocks: str, p: ParallelConfig) -> Projection:
    whole = ModelConfig.load(model)
    # The 405B that was measured has 16 key heads
    kv_heads = 16 if model == "llama3.1-405b" else whole.kv_heads
    cut = replace(whole, blocks=expanded(blocks), mtp_layers=0, kv_heads=kv_heads)
    return project(cut, replace(p, sequence_parallel=p.tp > 1, micro_batches=4), System.load("b200"), sequence=4096)


# MooreThreads/SimuMax at e691807, docs/b200/b200_release_v1.2_summary.json: most that PyTorch's allocator handed out, GiB.
@pytest.mark.parametrize(
    ("model", "blocks", "p", "measured", "error"),
    [
        ("llama3.1-70b", "12(*-)", ParallelConfig(pp=2, dp=4), 66.55, -0.032),
        ("llama3.1-70b", "12(*-)", ParallelConfig(tp=2, dp=4), 60.68, -0.010),
        ("llama3.1-70b", "12(*-)", ParallelConfig(tp=8), 28.29, -0.011),
        ("llama3.1-405b", "4(*-)", ParallelConfig(pp=2, dp=4), 87.08, -0.086),
        ("llama3.1-405b", "4(*-)", ParallelConfig(tp=8), 38.57, -0.033),
        ("deepseek-v2", EXPERTS, ParallelConfig(pp=2, dp=4, ep=4), 44.70, 0.019),
        ("deepseek-v3", EXPERTS, ParallelConfig(dp=8, ep=8), 104.30, 0.002),
    ],
)
def test_measured_peaks_of_megatron(model: str, blocks: str, p: ParallelConfig, measured: float, error: float) -> None:
    fullest = step(model, blocks, p).peak_memory
    projected = (fullest.peak - fullest.outside) / BYTES_PER_GIB
    assert projected / measured - 1 == pytest.approx(error, abs=0.001)


def test_gradients_in_16_bits_halve_their_buffer_and_their_sum() -> None:
    """Per step and parameter: 4 or 2 bytes scattered, 2 gathered."""
    p = ParallelConfig(dp=8)
    wide, narrow = (step("llama3.1-70b", "12(*-)", replace(p, gradients=each)) for each in ("fp32", "bf16"))
    assert wide.peak_memory.gradients == 2 * narrow.peak_memory.gradients
    times = [Result(projection=each).communication.set_index("stream").time_us["dp"] for each in (wide, narrow)]
    assert times[1] / times[0] == pytest.approx((2 + 2) / (4 + 2), rel=0.02)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("case", "vocabulary", "low", "high"),
    [
        ("mixtral_8x7b_alltoall_tp2pp4ep4_release", 32000, -0.15, 0.03),
        ("mixtral_8x7b_tp1pp4ep8vpp8_release", 32000, -0.15, 0.03),
        ("gpt3_15b_8t_release", 256000, -0.15, 0.10),
    ],
)
def test_golden_peaks_of_megatrons_own_tests(
    case: str, vocabulary: int, low: float, high: float, tmp_path: Path, shared_traces: Path
) -> None:
    """The last pipeline rank's peak, of the arguments as the file has them and a tokenizer's vocabulary."""
    with (shared_traces.parent / "tables/megatron_memory.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["case"] == case and row["mem_peak_bytes"]]
    assert rows
    for row in {row["device"]: row for row in rows}.values():
        names = list(row)[list(row).index("num-layers") : list(row).index("all_args")]
        said = {name: row[name] for name in names if row[name] not in ("", "false", "None")}
        words = [f"--{name}" if value == "true" else f"--{name} {value}" for name, value in said.items()]
        arguments = tmp_path / f"{row['device']}.txt"
        arguments.write_text(" ".join([*words, f"--vocab-size {vocabulary}"]))
        launch = read_launch(arguments)
        ranks = int(float(row["n_gpus"] or 64))
        options = {**launch.options, "global_batch": 8 * ranks}
        options["sequence_parallel"] = not options.pop("no_sequence_parallel", False)
        assert launch.model is not None
        found = tl.project(launch.model, row["device"], gpus=ranks, **options).projection
        last = found.stages[-1]
        assert low <= (last.peak - last.outside) / float(row["mem_peak_bytes"]) - 1 <= high, row["device"]


@pytest.mark.shared
def test_no_fine_tuning_step_that_ran_is_called_too_large(shared_traces: Path) -> None:
    """MLPerf's steps, LoRA and dense, one of each configuration: none exceeds its device by more than 3 %."""
    with (shared_traces.parent / "tables/mlperf_training.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["quality"] == "A"]
    names = ("model", "gpu", "tp", "pp", "cp", "mbs", "precision")
    ran = {tuple(row[name] for name in names): row for row in rows}
    excess = {}
    for key, row in ran.items():
        found = project_row({name: value or "" for name, value in row.items()}).projection
        assert found is not None, key
        capacity = found.peak_memory.capacity
        assert capacity is not None
        excess[key] = found.peak_memory.peak / capacity - 1
    assert len(excess) > 15
    assert {key: share for key, share in excess.items() if share > 0.03} == {}
