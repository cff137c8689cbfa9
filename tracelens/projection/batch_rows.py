"""Many steps from a table of configurations, one projection per row or the reason why there is none.

Reads the columns id, model, kind, gpu, n_gpus, tp, pp, vp, cp, ep, etp, dp, fsdp_shard, mbs, gbs, seq_len, precision,
recompute, framework, schedule, notes. Nothing that a row leaves open is guessed, but what ``ASSUMED`` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tracelens.backends.system import System
from tracelens.dtypes import TRAINED, Precision
from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files.data_table import Number, is_file_name, shown
from tracelens.projection.anchor import Anchor
from tracelens.projection.overheads import PLAIN, Software
from tracelens.projection.projection_options import BACKENDS
from tracelens.projection.recipes import recipe_of
from tracelens.projection.step import Projection, project
from tracelens.training_options import Attention, Gradients, Recompute, TPOverlap
from tracelens.workload.model_config import ModelConfig
from tracelens.workload.parallel_config import ParallelConfig
from tracelens.workload.token_routing import UNIFORM, Skew

#: A row without one of these is not complete. ep is 1 in a dense model, vp with pp 1, etp where nothing is said.
NEEDED = ("model", "gpu", "n_gpus", "tp", "pp", "cp", "dp", "mbs", "gbs", "seq_len", "precision", "recompute")
#: Ranks, batches and tokens of a row.
_COUNT = Number(least=0, most=1e9, whole=True)
_SECONDS = Number(least=1e-6, most=1e9)
#: What is taken where a table says "recipe": the setting is in a launch script, not in the table.
ASSUMED = "recipe: no recomputation"
#: Megatron-Bridge fine-tunes on packed SQuAD examples, which have some 100 to 400 tokens; between those a step of these
#: tables differs by less than 1 %.
SFT_DOCUMENT = 256
PACKED = f"texts of {SFT_DOCUMENT} tokens packed (SQuAD: llama3_llm_finetune.py of the scripts at 0b928cd)"
_RECOMPUTE: dict[str, Recompute] = {
    "none": "none", "selective": "selective", "selective+sp": "selective", "full": "full", "recipe": "none",
}  # fmt: skip
_SCHEDULES = {"1f1b": "1f1b", "1f1b-interleaved": "interleaved", "gpipe": "gpipe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a framework does that tables of its measurements do not repeat. ``source`` says where that is written."""

    name: str
    sequence_parallel: bool
    attention: Attention
    tp_overlap: TPOverlap
    nvfp4_tp_overlap: TPOverlap
    gradients: Gradients = "fp32"
    source: str


STACKS = (
    Stack(
        name="Megatron-LM (Selene)", sequence_parallel=False, attention="unfused", tp_overlap="none",
        nvfp4_tp_overlap="none",
        source="arXiv 2205.05198, section 6: sequence parallelism is its own column; 2022, before flash attention",
    ),
    Stack(
        name="Megatron-Bridge", sequence_parallel=True, attention="flash", tp_overlap="all",
        nvfp4_tp_overlap="backward", gradients="bf16",
        source="Megatron-Bridge's performance recipes: sequence parallelism and tensor-parallel overlap with tp > 1; "
        "in NVFP4 not through user buffers (scripts/performance/configs/llama at 0013c9a and 2a0d46e), so TE's own; "
        "grad_reduce_in_fp32 = False for every model (*_llm_pretrain.py there: kimi 013180a, qwen 05c0c90, "
        "gpt_oss 0501207, nemotronh 13d58bb)",
    ),
)  # fmt: skip
_OTHER = Stack(
    name="", sequence_parallel=True, attention="flash", tp_overlap="none", nvfp4_tp_overlap="none",
    source="current frameworks",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A row's answer: a projection, or the reason. ``assumptions`` are what the row did not say."""

    projection: Projection | None = None
    reason: str | None = None
    assumptions: tuple[str, ...] = ()


def project_row(
    row: Mapping[str, str],
    *,
    backends: str = BACKENDS,
    gpu_clock_mhz: float | None = None,
    software: Software = PLAIN,
    skew: Skew = UNIFORM,
) -> Point:
    """The row's step, or why there is none: what is missing, what is not modeled, what does not fit."""
    reason = _not_modeled(row)
    if reason is not None:
        return Point(reason=reason)
    try:
        model = ModelConfig.load(row["model"])
        parallel, assumptions = configuration(row)
        if "SFT" in row.get("notes", "") and row.get("framework", "").startswith("Megatron-Bridge "):
            model, assumptions = replace(model, document=SFT_DOCUMENT), (*assumptions, PACKED)
        if is_file_name(row["gpu"]):
            return Point(reason=f"gpu names a device or a cluster, not a file: {shown(row['gpu'])}")
        system = System.load(row["gpu"]).at_clock(gpu_clock_mhz)
        found = project(
            model,
            replace(parallel, skew=skew),
            system,
            sequence=_whole(row, "seq_len"),
            schedule=_schedule(row, parallel),
            backends=backends,
            software=software,
        )
    except TracelensError as error:
        return Point(reason=str(error))
    return Point(projection=found, assumptions=(*assumptions, *(note for note in found.notes if note != system.note)))


#: Columns that ``project_rows`` adds.
ESTIMATES = ("step_time_s_est", "tokens_s_gpu_est", "tflops_gpu_est", "memory_gb_est", "assumed", "reason")


def project_rows(
    rows: Sequence[Mapping[str, str]],
    *,
    anchor: str | None = None,
    backends: str = BACKENDS,
    gpu_clock_mhz: float | None = None,
    software: Software = PLAIN,
    skew: Skew = UNIFORM,
) -> tuple[list[dict[str, str]], int]:
    """The rows with ``ESTIMATES``, and how many were projected. ``anchor``: the id of a row measured as a factor."""
    base = RowAnchor.of(rows, anchor, backends=backends, software=software) if anchor else None
    answers, answered = [], 0
    for row in rows:
        point = project_row(row, backends=backends, gpu_clock_mhz=gpu_clock_mhz, software=software, skew=skew)
        answered += point.projection is not None
        point = point if base is None else base.on(point, row)
        figures: dict[str, str] = {}
        if (found := point.projection) is not None:
            figures = {
                "step_time_s_est": f"{found.step_us / 1e6:.4f}",
                "tokens_s_gpu_est": f"{found.tokens_per_s_per_gpu:.1f}",
                "tflops_gpu_est": f"{found.tflops_gpu:.1f}",
                "memory_gb_est": f"{found.peak_memory.peak / 1e9:.1f}",
            }
        answers.append({**row, **figures, "assumed": "; ".join(point.assumptions), "reason": point.reason or ""})
    return answers, answered


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnchor:
    """A measured row as a factor on the rows of its model and device."""

    anchor: Anchor
    row: Mapping[str, str]

    @classmethod
    def of(
        cls, rows: Iterable[Mapping[str, str]], row_id: str, *, backends: str = BACKENDS, software: Software = PLAIN
    ) -> RowAnchor:
        """The row whose ``id`` is ``row_id``. UsageError where there is none, or it has no ``step_time_s``, or no
        projection.
        """
        row = next((row for row in rows if row.get("id") == row_id), None)
        if row is None:
            raise UsageError(f"--anchor {row_id}: no row has this id")
        try:
            measured_us = 1e6 * _SECONDS.of(row.get("step_time_s"), "step_time_s")
        except InputError as error:
            raise UsageError(f"--anchor {row_id}: {error}") from None
        point = project_row(row, backends=backends, software=software)
        if point.projection is None:
            raise UsageError(f"--anchor {row_id}: {point.reason}")
        return cls(anchor=Anchor.of(point.projection, measured_us, f"row {row_id}"), row=row)

    def on(self, point: Point, row: Mapping[str, str]) -> Point:
        """``point`` of ``row``, anchored where model and device are the same."""
        same = all(row[name].strip().lower() == self.row[name].strip().lower() for name in ("model", "gpu"))
        if point.projection is None or not same:
            return point
        found = self.anchor.on(point.projection)
        return replace(point, projection=found, assumptions=(*point.assumptions, found.notes[-1]))


def configuration(row: Mapping[str, str]) -> tuple[ParallelConfig, tuple[str, ...]]:
    """The row's parallel configuration, and what was assumed. UsageError where it is none."""
    stack = next((s for s in STACKS if row.get("framework", "").startswith(s.name)), _OTHER)
    recompute = _RECOMPUTE[row["recompute"].lower()]
    tp, precision = _whole(row, "tp"), Precision.of(_spelling(row["precision"]))
    sharded, shard = _sharding(row)
    recipe = recipe_of(row) if row["recompute"] == "recipe" else None
    assumptions = []
    if row["recompute"] == "recipe":
        assumptions.append(f"recipe: {recipe}" if recipe is not None else ASSUMED)
    if row.get("fsdp_shard", "") == "" and _whole(row, "dp") > 1:
        assumptions.append("optimizer state divided among data-parallel ranks")
    parallel = ParallelConfig.of(
        ranks=_whole(row, "n_gpus"),
        global_batch=_whole(row, "gbs"),
        tp=tp,
        sequence_parallel=tp > 1 and (stack.sequence_parallel or row["recompute"].lower().endswith("+sp")),
        pp=_whole(row, "pp"),
        vpp=_whole(row, "vp", 1),
        cp=_whole(row, "cp"),
        dp=_whole(row, "dp"),
        ep=_whole(row, "ep", 1),
        etp=_whole(row, "etp", 1),
        zero=3 if sharded else 1,
        shard=shard,
        micro_batch=_whole(row, "mbs"),
        precision=precision,
        gradients=stack.gradients,
        recompute=recompute,
        attention=stack.attention,
        tp_overlap=stack.nvfp4_tp_overlap if precision == "nvfp4" else stack.tp_overlap,
    )
    return recipe.of(parallel) if recipe is not None else parallel, tuple(assumptions)


def _not_modeled(row: Mapping[str, str]) -> str | None:
    missing = [name for name in NEEDED if not row.get(name, "").strip()]
    if row.get("kind") == "moe" and not row.get("ep", "").strip():
        missing.append("ep")
    if missing:
        return f"incomplete: {', '.join(missing)} not stated"
    if "lora" in row.get("notes", "").lower():
        return "LoRA: most weights have no gradient, which is not modeled"
    if Precision.parse(_spelling(row["precision"])) not in TRAINED:
        return f"precision {row['precision']!r} is not modeled"
    if row["recompute"].lower() not in _RECOMPUTE:
        return f"recomputation {row['recompute']!r} is not modeled"
    named = row.get("schedule", "").strip().lower()
    return f"schedule {named!r} is not modeled" if named and named not in _SCHEDULES else None


def _schedule(row: Mapping[str, str], parallel: ParallelConfig) -> str | None:
    named = _SCHEDULES.get(row.get("schedule", "").strip().lower())
    return named if parallel.pp > 1 else None


def _sharding(row: Mapping[str, str]) -> tuple[bool, int | None]:
    """Whether weights are sharded, and among how many ranks where a number says."""
    text = row.get("fsdp_shard", "").strip()
    if text.upper() in ("FULL_SHARD", "YES"):
        return True, None
    found = re.match(r"\d+", text)
    ranks = int(found[0]) if found else 0
    return ranks > 0, ranks or None


def _whole(row: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = row.get(name, "").strip()
    if not text and default is not None:
        return default
    try:
        return _COUNT.count(text, name)
    except InputError as error:
        raise UsageError(str(error)) from None


def _spelling(precision: str) -> str:
    return precision.strip().lower().replace("_", "-")
