"""Measured memory beside projected.

    python -m benchmarks.project_memory FOLDER

FOLDER holds tables/megatron_memory.csv, the peaks of Megatron-LM's own functional tests, which are scored; without it
three other sources are shown row by row, in GiB, as they print it. What PyTorch's allocator handed out at most stands
beside the projection without what is outside the model; what it reserved, and what the device says is in use, beside
the whole of it.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

import tracelens as tl
from tracelens.backends.base import System
from tracelens.errors import TracelensError
from tracelens.predict.projection.step import Projection, project
from tracelens.predict.workload.launch_files import read_launch
from tracelens.predict.workload.memory import StageMemory
from tracelens.predict.workload.model_config import ModelConfig, expanded
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.types.units import BYTES_PER_GIB


@dataclass(frozen=True, kw_only=True)
class Measured:
    """``blocks`` None: the whole model. ``allocated`` and ``reserved`` by PyTorch's allocator, of the fullest rank."""

    model: str
    blocks: str | None = None
    device: str
    sequence: int
    degrees: Mapping[str, Any]
    recompute: str = "none"
    precision: str = "bf16"
    allocated: float | None = None
    reserved: float

    def projected(self) -> Projection:
        degrees = {"micro_batches": 4, **self.degrees}
        parallel = ParallelConfig(
            **degrees,
            eager_loss=self.precision == "fp8",
            sequence_parallel=degrees.get("tp", 1) > 1,
            recompute=self.recompute,
            precision=self.precision,
        )
        return project(loaded(self.model, self.blocks), parallel, System.load(self.device), sequence=self.sequence)


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """Schedule, chunks, tokens/s/GPU, and the memory in use on the device of a rank that is not named."""

    schedule: str
    chunks: int = 1
    tokens_per_s_per_gpu: float
    used: float


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """Steps that differ in their schedule only."""

    label: str
    model: str
    blocks: str | None = None
    device: str
    degrees: Mapping[str, Any]
    rows: tuple[Scheduled, ...]


_SEVENTY, _FOUR_HUNDRED = "12(*-)", "4(*-)"
_EXPERTS = "1(*-) 3(*E)"
#: MooreThreads/SimuMax, docs/b200/b200_release_v1.2_summary.json at e691807: Megatron-LM 23e00ed, Transformer Engine
#: 2.11, models cut to few layers, micro-batch 1, bf16 with fp32 gradients, distributed optimizer, sequence parallelism,
#: flash attention, fused cross entropy, nothing recomputed (simu_tools/megatron_scripts/scripts at 5c8e402, 1b8ca90).
SIMUMAX = tuple(
    Measured(
        model=model, blocks=blocks, device="b200", sequence=sequence, degrees=degrees, allocated=allocated,
        reserved=reserved,
    )
    for model, blocks, sequence, degrees, allocated, reserved in (
        ("llama3.1-70b", _SEVENTY, 4096, {"pp": 2, "dp": 4}, 66.55, 70.88),
        ("llama3.1-70b", _SEVENTY, 4096, {"tp": 2, "dp": 4}, 60.68, 62.53),
        ("llama3.1-70b", _SEVENTY, 4096, {"tp": 4, "dp": 2}, 39.07, 40.18),
        ("llama3.1-70b", _SEVENTY, 4096, {"tp": 8}, 28.29, 29.12),
        ("llama3.1-70b", _SEVENTY, 32768, {"tp": 2, "cp": 4}, 68.43, 70.33),
        ("llama3.1-70b", _SEVENTY, 32768, {"cp": 8}, 104.51, 111.94),
        ("llama3.1-70b", _SEVENTY, 131072, {"tp": 2, "cp": 4}, 112.67, 121.40),
        ("llama3.1-70b", _SEVENTY, 131072, {"cp": 8}, 147.99, 159.65),
        ("llama3.1-405b", _FOUR_HUNDRED, 4096, {"pp": 2, "dp": 4}, 87.08, 92.26),
        ("llama3.1-405b", _FOUR_HUNDRED, 4096, {"tp": 2, "dp": 4}, 81.59, 84.70),
        ("llama3.1-405b", _FOUR_HUNDRED, 4096, {"tp": 4, "dp": 2}, 52.89, 54.65),
        ("llama3.1-405b", _FOUR_HUNDRED, 4096, {"tp": 8}, 38.57, 39.83),
        ("llama3.1-405b", _FOUR_HUNDRED, 32768, {"tp": 2, "cp": 4}, 87.03, 91.15),
        ("llama3.1-405b", _FOUR_HUNDRED, 32768, {"cp": 8}, 139.22, 152.14),
        ("llama3.1-405b", _FOUR_HUNDRED, 131072, {"tp": 2, "cp": 4}, 118.13, 127.50),
        ("deepseek-v2", _EXPERTS, 4096, {"dp": 8, "ep": 8}, 45.63, 48.79),
        ("deepseek-v2", _EXPERTS, 4096, {"pp": 2, "dp": 4, "ep": 4}, 44.70, 47.05),
        ("deepseek-v3", _EXPERTS, 4096, {"dp": 8, "ep": 8}, 104.30, 110.18),
        ("deepseek-v3", _EXPERTS, 4096, {"pp": 2, "dp": 4, "ep": 4}, 114.00, 118.61),
    )
)  # fmt: skip
#: pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md at 31a17bf, tables 2 and 4: FSDP, FP8, every layer
#: recomputed; the sequence of table 4 is that of train_configs/llama3_70b.toml.
TORCHTITAN = tuple(
    Measured(
        model=model, device="h100", sequence=sequence, degrees={"zero": 3, "micro_batches": 1, **degrees},
        recompute="full", precision="fp8", reserved=reserved,
    )
    for model, sequence, degrees, reserved in (
        ("llama3.1-8b", 32768, {"dp": 8}, 83.9),
        ("llama3.1-8b", 65536, {"dp": 4, "cp": 2}, 84.2),
        ("llama3.1-8b", 131072, {"dp": 2, "cp": 4}, 84.0),
        ("llama3.1-8b", 262144, {"cp": 8}, 84.5),
        ("llama3.1-70b", 8192, {"tp": 8, "dp": 32, "micro_batch": 16}, 71.9),
    )
)  # fmt: skip
#: AMD-AGI/Primus, docs_deprecated/tech_blogs/primus_pipeline/primus_pipeline.md (yudigege86/Primus at 6a6bcd9).
#: TFLOPS over tokens/s is 23.44 GFLOP per token of "Llama-2-7B", which 16 layers of 4096 tokens do, attention without
#: its mask (23.436); and 148.0 of Qwen3, all 94 layers of 4096 tokens with the mask (148.04 without routers).
PRIMUS = (
    Schedules(
        label="Llama-2-7B, 16 layers, 8 MI300X, pp 8", model="llama2-7b", blocks="16(*-)", device="mi300x",
        degrees={"pp": 8},
        rows=(
            Scheduled(schedule="1f1b", tokens_per_s_per_gpu=10057, used=16.26),
            Scheduled(schedule="interleaved", chunks=2, tokens_per_s_per_gpu=10974, used=21.40),
            Scheduled(schedule="zb-v", tokens_per_s_per_gpu=11347, used=18.11),
            Scheduled(schedule="v-half", tokens_per_s_per_gpu=10894, used=14.06),
            Scheduled(schedule="v-min", tokens_per_s_per_gpu=8897, used=11.90),
        ),
    ),
    Schedules(
        label="Qwen3-235B, 32 MI355X, pp 4, ep 8", model="qwen3-235b-a22b", device="mi355x",
        degrees={"pp": 4, "dp": 8, "ep": 8},
        rows=(
            Scheduled(schedule="1f1b", tokens_per_s_per_gpu=2742, used=261.58),
            Scheduled(schedule="interleaved", chunks=3, tokens_per_s_per_gpu=3012, used=287.13),
            Scheduled(schedule="interleaved", chunks=4, tokens_per_s_per_gpu=3024, used=278.82),
            Scheduled(schedule="zb-1p", tokens_per_s_per_gpu=2963, used=272.13),
            Scheduled(schedule="zb-v", tokens_per_s_per_gpu=2953, used=284.36),
            Scheduled(schedule="v-half", tokens_per_s_per_gpu=2913, used=257.84),
            Scheduled(schedule="v-min", tokens_per_s_per_gpu=2201, used=228.28),
        ),
    ),
)  # fmt: skip
MICRO_BATCHES = (16, 32, 64)


#: Families of Megatron's tests that are decoders of attention, feed-forward blocks and experts.
DECODERS = ("gpt", "moe", "mixtral")
#: Words of ``tokenizer-model``, and how many words it has; GPT-2's where none is named.
VOCABULARIES = {"nemotron_2_256k": 256_000, "tokenizer.model": 32_000, "": 50_257}
#: The table cuts arguments that it has no column for after so many characters.
CUT = 395


def main() -> None:
    parser = argparse.ArgumentParser(description="Measured memory beside projected")
    parser.add_argument("folder", type=Path, nargs="?")
    folder = parser.parse_args().folder
    if folder is None:
        by_row()
        return
    found, left_out = golden_peaks(folder / "tables" / "megatron_memory.csv")
    print("| Megatron-LM's tests | rows | median | 90th percentile | signed |\n|---|---|---|---|---|")
    for name, rows in groups_of(found).items():
        for part in ("peak", "added"):
            ratio = (rows[f"{part}_predicted"] / rows[f"{part}_measured"]).dropna()
            error = (ratio - 1).abs()
            figures = f"{error.median():.1%} | {error.quantile(0.9):.1%} | {ratio.median() - 1:+.1%}"
            print(f"| {name}, {part} | {len(ratio)} | {figures} |")
    for reason, count in left_out.most_common():
        print(f"left out: {count} rows: {reason}")


def groups_of(found: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows of ``golden_peaks``: all, and those of the current container by what their attention does."""
    current = found[~found["old"]]
    return {
        "all": found,
        "current container": current,
        "scores in memory": current[current["attention"] == "unfused"],
        "attention as Transformer Engine chose": current[current["attention"] != "unfused"],
        "experts": current[current["family"] != "gpt"],
    }


def golden_peaks(table: Path) -> tuple[pd.DataFrame, Counter[str]]:
    """GB of the last pipeline rank, measured and predicted without what is outside the model; why rows are left out.

    ``peak``: the most that was allocated; unknown where states are divided among unknown ranks. ``added``: beyond what
    stays allocated between steps, which depends on no number of ranks. ``old``: of the long-term support container.
    """
    found, left_out = [], Counter[str]()
    with table.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        reason = not_modeled(row)
        try:
            step = None if reason else launched(row)
        except TracelensError as error:
            reason = str(error)
        if reason or step is None:
            left_out[reason] += 1
            continue
        last, named = step.stages[-1], {key: row[key] for key in ("case", "family", "device")}
        added = last.activations + last.logits
        peak, between = (float(row[f"mem_{name}_bytes"] or "nan") for name in ("peak", "allocated"))
        is_known = row["n_gpus"] or not step.parallel.zero
        found.append(
            named
            | {
                "old": row["variant"].startswith("lts"), "attention": step.parallel.attention,
                "peak_measured": peak / 1e9,
                "peak_predicted": (last.peak - last.outside) / 1e9 if is_known else math.nan,
                "added_measured": (peak - between) / 1e9, "added_predicted": added / 1e9,
            }
        )  # fmt: skip
    return pd.DataFrame(found), left_out


def not_modeled(row: Mapping[str, str]) -> str:
    """Why a row cannot be projected as it ran; empty where it can."""
    if row["family"] not in DECODERS:
        return f"{row['family']} is another architecture"
    if not row["mem_peak_bytes"]:
        return "no peak"
    if not row["num-layers"]:
        return "no model shape"
    if row["case"].startswith("gpt_grpo"):
        return "reinforcement learning, which holds an engine's cache too"
    if row["multi-latent-attention"] and "kv-lora-rank" not in row["all_args"]:
        return "the sizes of latent attention are cut off"
    return "another optimizer" if row["optimizer"] == "muon" else ""


def launched(row: Mapping[str, str]) -> Projection:
    """The step of a row's arguments; no dropout where arguments were cut. TracelensError where it has none."""
    names = list(row)[list(row).index("num-layers") : list(row).index("all_args")]
    said = {name: row[name].partition("#")[0].strip() for name in names if row[name] not in ("", "false", "None")}
    others = dict(part.partition("=")[::2] for part in row["all_args"].split("; ") if part)
    words = next(size for word, size in VOCABULARIES.items() if word in others.get("tokenizer-model", ""))
    multiple = int(said.get("make-vocab-size-divisible-by", 128)) * int(said.get("tensor-model-parallel-size", 1))
    said["vocab-size"] = str(-(-int(said.get("vocab-size", words)) // multiple) * multiple)
    if len(row["all_args"]) >= CUT:
        others |= {"hidden-dropout": "0", "attention-dropout": "0"}
    known = ("max-position-embeddings", "position-embedding-type", "qk-layernorm", "moe-layer-freq")
    said |= {name: value for name, value in others.items() if name in known or name.endswith("-dropout")}
    arguments = " ".join(f"--{name}" if value == "true" else f"--{name} {value}" for name, value in said.items())
    return stepped(arguments, int(float(row["n_gpus"] or 0)))


@functools.cache
def stepped(arguments: str, ranks: int) -> Projection:
    """On GB200, as memory does not depend on the device. ``ranks`` 0: the fewest that the degrees allow, 8 or more."""
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "arguments.txt"
        file.write_text(arguments)
        launch = read_launch(file)
    options: dict[str, Any] = dict(launch.options)
    options["sequence_parallel"] = not options.pop("no_sequence_parallel")
    tp, pp, ep = (options.get(name, 1) for name in ("tp", "pp", "ep"))
    fewest = max(8, math.lcm(tp, ep * options.get("etp", 1)) * pp)
    if not ranks or "global_batch" not in options:
        options["global_batch"] = 8 * (ranks or fewest)
    assert launch.model is not None
    return tl.project(launch.model, "gb200", gpus=ranks or fewest, **options).projection


def by_row() -> None:
    print(
        "| step | allocated, measured | projected | | reserved, measured | projected | |\n|---|---|---|---|---|---|---|"
    )
    for row in (*SIMUMAX, *TORCHTITAN):
        fullest = row.projected().peak_memory
        inside = (fullest.peak - fullest.outside) / BYTES_PER_GIB
        layers = "" if row.blocks is None else f", {len(loaded(row.model, row.blocks).layers)} layers"
        degrees = " ".join(
            f"{name} {count}" for name, count in row.degrees.items() if name in ("tp", "pp", "cp", "dp", "ep")
        )
        step = f"{ModelConfig.load(row.model).label}{layers}, {row.sequence} tokens, {degrees}"
        print(f"| {step} | {beside(row.allocated, inside)} | {beside(row.reserved, gib(fullest))} |")
    names = " | ".join(f"{count} micro-batches" for count in MICRO_BATCHES)
    print(f"\n| | tokens/s/GPU, measured | {names} | GiB, measured | last rank | fullest rank |")
    print("|---|---|---|---|---|---|---|---|")
    for each in PRIMUS:
        for row in each.rows:
            print(f"| {each.label}, {row.schedule} {row.chunks} | {scheduled(each, row)} |")


def scheduled(each: Schedules, row: Scheduled) -> str:
    model, system = loaded(each.model, each.blocks), System.load(each.device)
    found = [
        project(
            model, ParallelConfig(**each.degrees, vpp=row.chunks, micro_batches=count), system,
            sequence=4096, schedule=row.schedule,
        )
        for count in MICRO_BATCHES
    ]  # fmt: skip
    projected = " | ".join(f"{one.tokens_per_s_per_gpu:.0f}" for one in found)
    last, fullest = gib(found[-1].stages[-1]), gib(found[-1].peak_memory)
    return f"{row.tokens_per_s_per_gpu:.0f} | {projected} | {row.used:.1f} | {last:.1f} | {fullest:.1f}"


def loaded(model: str, blocks: str | None) -> ModelConfig:
    whole = ModelConfig.load(model)
    if blocks is None:
        return whole
    # SimuMax' 405B has 16 (configs/models/llama3-405b.json, run_pretrain_llama3.sh)
    kv_heads = 16 if model == "llama3.1-405b" else whole.kv_heads
    return replace(whole, blocks=expanded(blocks), mtp_layers=0, kv_heads=kv_heads)


def gib(stage: StageMemory) -> float:
    return stage.peak / BYTES_PER_GIB


def beside(measured: float | None, projected: float) -> str:
    return " | | " if measured is None else f"{measured:.1f} | {projected:.1f} | {projected / measured - 1:+.1%}"


if __name__ == "__main__":
    main()
