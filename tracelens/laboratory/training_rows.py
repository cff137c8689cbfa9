"""Rows of published tables of training steps: their headings, words and recipes read, and one projection per row or the
one thing that it lacks.

Reads the columns id, model, kind, gpu, n_gpus, tp, pp, vp, cp, ep, etp, dp, fsdp_shard, mbs, gbs, seq_len, precision,
recompute, framework, schedule, graphs, notes, under these names or as other tables head them. What a row leaves
open is settled by its framework's file, else by rules that ``ProjectedRow.assumptions`` names.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tracelens.backends.base import System, system_of
from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files.data_table import Headings, Number, is_file_name, is_unsaid, number, shown
from tracelens.files.documents import toml_of
from tracelens.files.option_fields import BACKENDS
from tracelens.files.say import with_progress
from tracelens.hardware.power import beyond_design
from tracelens.predict.projection.frameworks import Framework
from tracelens.predict.projection.from_measured import Anchor
from tracelens.predict.projection.schedules import schedules
from tracelens.predict.projection.step import Projection, energy_of, project
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import MODULES, Dispatcher, Graphs, Moments, ParallelConfig, Recompute
from tracelens.predict.workload.token_routing import UNIFORM, Skew
from tracelens.types.dtypes import TRAINED, Precision, spelled_type
from tracelens.types.records import Record
from tracelens.types.units import US_PER_S

_TABLES = toml_of(Path(__file__).with_name("training_tables.toml"))
HEADINGS = Headings(_TABLES["headings"])
_NAMES, _NONE_IN, _NONE, _NOTHING, _OFF = (
    frozenset(_TABLES["words"][name]) for name in ("names", "none_in", "none", "nothing", "off")
)
_COUNTED = re.compile(r"([0-9]{1,9}) ?[x×*] ?(?=[a-z])|(?<=[a-z0-9])(?<!nvl36) ?[x×*] ?([0-9]{1,9})$", re.IGNORECASE)
_TIMES = re.compile(r"([0-9]{1,6}) ?[x×*] ?([0-9]{1,6})(?: (?=[a-z])|$)", re.IGNORECASE)
_IN_NODES = re.compile(r"([0-9]{1,6}) ?nodes?\b(?: ?\(?([0-9]{1,7}) ?gpus?)?", re.IGNORECASE)
_DEGREE = re.compile(r"\b(tp|pp|vpp?|cp|ep|etp|dp|fsdp) ?[=:_-]? ?([0-9]+)", re.IGNORECASE)


def stated(row: Mapping[str, str]) -> dict[str, str]:
    """The row under the names of ``HEADINGS``. Cells that say nothing are empty; counts of devices stand apart from
    their names, and degrees that one column lists in columns of their own.
    """
    made = dict.fromkeys(("model", "gpu", "n_gpus"), "")
    in_tokens = ""
    for name in HEADINGS.first(row):
        named = HEADINGS.name(name)
        text = _cell(name, named, str(row[name] or "").strip())
        if named == "gbs" and "tok" in f"{name} {text}".lower():
            in_tokens, text = text, ""
        if not made.get(named):
            made[named] = text
    _count_apart(made)
    if in_tokens and not made.get("gbs"):
        made["gbs"] = in_tokens
        with contextlib.suppress(ValueError, ZeroDivisionError):
            made["gbs"] = f"{float(number(in_tokens)) / float(number(made.get('seq_len', ''))):.0f}"
    for degree, value in _DEGREE.findall(made.get("layout", "")):
        name = {"fsdp": "fsdp_shard", "vpp": "vp"}.get(degree.lower(), degree.lower())
        made[name] = made.get(name) or value
    return made


def _cell(heading: str, named: str, text: str) -> str:
    """What it says; nothing where that is elsewhere."""
    if named not in _NAMES and (is_unsaid(text) or (named in _NONE_IN and text.lower() in _NONE)):
        return ""
    return f"zero{text}" if "zero" in heading.lower() and text in ("0", "1", "2", "3") else text


def _count_apart(made: dict[str, str]) -> None:
    """``8x H100`` and ``H100 x8`` as a device and a number, ``4x8`` devices as their product, ``8 nodes`` as such."""
    product, nodes = _TIMES.match(made["n_gpus"]), _IN_NODES.match(made["n_gpus"])
    if product:
        device = made["n_gpus"][product.end() :]
        made["n_gpus"] = f"{int(product[1]) * int(product[2])}{'x' if device else ''}{device}"
    elif nodes:
        made["n_gpus"], made["nodes"] = nodes[2] or "", nodes[1]
    for name in ("n_gpus", "gpu"):
        counted = _COUNTED.search(made[name])
        if counted:
            device, count = _COUNTED.sub("", made[name]), counted[1] or counted[2]
            made["gpu"] = device if name == "gpu" else made["gpu"] or device
            made["n_gpus"] = count if name == "n_gpus" else made["n_gpus"] or count


#: torchtitan's selective checkpointing per operation saves attention and every other matrix product.
PER_OP = ("attention_out", "layernorm", "mlp_act", "mlp_down", "rope")
#: Megatron-LM's modules, the longer names before those that they begin with.
_MODULES = re.compile(rf"\b({'|'.join(sorted(MODULES, key=len, reverse=True)).replace('_', ' ')})\b")
#: Words for recomputing every layer.
_WHOLE = re.compile(
    r"[✓✔]|(recompute )?[0-9]{1,4}( of [0-9]{1,4})? (layers?|blocks?)"
    r"|(full|yes|y|true|on|1|enabled|all|every|block|uniform|ac|activation (checkpointing|recomputation)"
    r"|gradient checkpointing|checkpointing)\b"
)
_GRAPHS = re.compile(r"\b(?:(\w{1,16})[ _-])?cuda[ _-]?graphs?(?: ?[=:] ?(\w{1,16}))?")
_TP_OVERLAP = re.compile(r"\btp[ _-](?:comm[ _-])?overlap ?[=:] ?(\w{1,16})")
#: A step that no compiler fuses.
_EAGER = re.compile(r"\beager\b")
#: ``min(n,512)``, with ``->128 beyond 256`` behind it: ranks to shard over of a job of n.
_SHARD_RULE = re.compile(r"min\(n, ?(\d{1,6})\)(?: ?-> ?(\d{1,6}) beyond (\d{1,6}))?")


def graphs_of(text: str, *, has_experts: bool) -> Graphs | None:
    """What CUDA graphs replay, as notes say; None where they do not. Graphs of layers hold all that a dense layer
    launches.

    >>> graphs_of("full cuda graph=0; mcore cuda graph=1", has_experts=True), graphs_of("no graphs", has_experts=True)
    ('partial', None)
    """
    found = _GRAPHS.findall(text.lower())
    used = [kind for kind, said in found if kind not in _OFF and said not in _OFF]
    if not used:
        return "none" if found else None
    return "full" if "full" in used or not has_experts else "partial"


def precision_of(text: str) -> Precision | None:
    """The precision of GEMMs with weights. None for a word that names none.

    >>> precision_of("amp_fp8"), precision_of("FP8 (delayed)"), precision_of("bf16-mixed"), precision_of("see doc")
    ('fp8', 'fp8', 'bf16', None)
    """
    found = Precision.parse(spelled_type(text) or "")
    return found if found in TRAINED else None


class Recomputation(Record, frozen=True, kw_only=True):
    """``modules`` empty: those of ``kind``. ``layers``: of how many, full recomputation; None: of all, or of one in
    ``every`` so many.
    """

    kind: Recompute
    modules: tuple[str, ...] = ()
    layers: int | None = None
    every: int = 1


def recomputation_of(text: str) -> Recomputation | None:
    """What the backward repeats. None for words that name nothing known.

    >>> recomputation_of("per-op SAC").modules, recomputation_of("full, 72 of 80 layers").layers
    (('attention_out', 'layernorm', 'mlp_act', 'mlp_down', 'rope'), 72)
    """
    word = re.sub(r"[\s_\-]+", " ", text.strip().lower()).strip()
    if text.strip().lower() in _NOTHING or word in _NOTHING:
        return Recomputation(kind="none")
    if re.search(r"\b(per op|op sac|op selective|selective op|op)\b", word):
        return Recomputation(kind="selective", modules=PER_OP)
    if word in _TABLES["policies"]:
        return Recomputation(kind="selective", modules=tuple(_TABLES["policies"][word]))
    modules = tuple(found.replace(" ", "_") for found in _MODULES.findall(word))
    if modules:
        return Recomputation(kind="selective", modules=modules)
    every = re.search(r"every (\d+)", word)
    counted = re.search(r"(\d+)( of \d+)? (layers?|blocks?)|layers? (\d+)", word)
    if _WHOLE.match(word) or every:
        number = counted and (counted[1] or counted[4])
        return Recomputation(kind="full", layers=int(number) if number else None, every=int(every[1]) if every else 1)
    return Recomputation(kind="selective") if "selective" in word or word == "sac" else None


def schedule_of(text: str) -> str | None:
    """The schedule that a table names. None for one that is not modeled."""
    word = re.sub(r"[\s_\-]+", "", text.strip().lower()).removeprefix("schedule")
    known: dict[str, str] = {name.replace("-", ""): name for name in schedules()} | _TABLES["schedules"]
    return known.get(word.replace("zerobubble", "zb"))


def sharding_of(text: str, default: int, ranks: int | None = None) -> tuple[int, int | None]:
    """(ZeRO level, ranks to shard over where a number says). UsageError for another word.

    A launch script's rule is read for a job of ``ranks``:

    >>> sharding_of("min(n,512)->128 beyond 256", 1, 128), sharding_of("min(n,512)->128 beyond 256", 1, 1024)
    ((3, 128), (3, 128))
    >>> sharding_of("min(n,512)->128 beyond 256", 1, 256)
    (3, 256)
    """
    levels: Mapping[str, int] = _TABLES["sharded"]
    rule = _SHARD_RULE.match(text.strip().lower())
    if rule and ranks:
        most, beyond, few = (int(figure) for figure in rule.groups(default=str(ranks)))
        return 3, beyond if ranks > few else min(ranks, most)
    parts = re.split(r"[\s_\-=:]+", text.lower().partition("(")[0].strip(" -"))
    word = "".join(parts).removeprefix("deepspeed")
    if not word or word in ("0", "0.0", "no", "none"):
        return default, None
    # torchtitan's data_parallel_shard_degree = -1 is over all ranks
    if word in levels or text.strip() == "-1":
        return levels.get(word, 3), None
    first, shards = re.findall(r"^([a-z]*)(\d*)", word)[0]
    kind = "".join(parts[:-1]) if parts[-1].isdigit() else first
    shards = parts[-1] if parts[-1].isdigit() else shards
    if not shards or (kind and kind not in levels):
        raise UsageError(f"fsdp_shard {text!r} is not known; known: {', '.join(levels)}, or a number of ranks")
    return levels.get(kind, 3), int(shards)


class Recipe(Record, frozen=True, kw_only=True):
    """Settings of one model's script, for ``gpus``, ``precisions`` and ``tasks`` that rows' notes begin with (empty:
    all) from release ``since`` on.

    The releases at which a script changed are those between which its rows became faster at equal degrees, and of which
    a commit was read. ``modules`` empty: nothing is recomputed.
    """

    model: str
    gpus: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    since: str = ""
    graphs: Graphs = "none"
    modules: tuple[str, ...] = ()
    ep_overlap: bool = False
    bf16_layers: tuple[int, int] = (0, 0)
    dispatcher: Dispatcher = "deepep"
    offload_layers: int = 0
    moments: Moments = "fp32"
    source: str

    @classmethod
    def of_table(cls, given: Mapping[str, Any]) -> Recipe:
        """A recipe as ``training_tables.toml`` has it."""
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        return cls(**{**values, "source": _TABLES["sources"][given["source"]]})

    def of(self, parallel: ParallelConfig) -> ParallelConfig:
        """``parallel`` with these settings."""
        return replace(
            parallel,
            recompute="selective" if self.modules else "none",
            recompute_modules=self.modules or parallel.recompute_modules,
            graphs=self.graphs,
            ep_overlap=self.ep_overlap,
            bf16_layers=self.bf16_layers,
            dispatcher=self.dispatcher,
            grouped=self.graphs == "full",
            # Megatron offloads without a pipeline only; the scripts do so with FSDP.
            offload_layers=self.offload_layers if parallel.zero == 3 else 0,
            moments=self.moments,
        )

    def __str__(self) -> str:
        graphs = {"none": "no graphs", "partial": "partial graphs", "full": "graphs of the whole step"}[self.graphs]
        parts = [f"{' and '.join(self.modules)} recomputed" if self.modules else "no recomputation", graphs]
        parts += ["exchanges overlapped"] if self.ep_overlap else []
        parts += ["tokens sent to each expert (alltoall)"] if self.dispatcher == "alltoall" else []
        parts += [f"the last {self.bf16_layers[1]} layers in BF16"] if self.bf16_layers[1] else []
        parts += [f"moments in {self.moments.upper()}"] if self.moments != "fp32" else []
        parts += [f"activations of {self.offload_layers} layers offloaded with FSDP"] if self.offload_layers else []
        return f"{', '.join(parts)} ({self.source})"


#: The last that fits counts.
RECIPES = tuple(Recipe.of_table(given) for given in _TABLES["recipe"])
#: Layers that scripts of MLPerf's fine-tuning recompute (ACL=21 of config_MI300X_1x8x1.sh and _2x8x1.sh, v5.0 at
#: 0fdc28f and v5.1 at 4da2d1c; on larger AMD devices none): NVIDIA's scripts name it otherwise, so
#: that tables say "none".
_MLPERF_LAYERS = {"MI300X": 21}


def mlperf_layers(row: Mapping[str, str]) -> int | None:
    """Layers recomputed in a row of MLPerf's fine-tuning that its table leaves out."""
    is_mlperf = "mlperf" in row.get("framework", "").lower()
    return _MLPERF_LAYERS.get(row["gpu"].upper().split("-")[0]) if is_mlperf else None


def _fuses_adapters(row: Mapping[str, str]) -> bool:
    """MLPerf's fine-tuning with NeMo fuses what adapters add without tensor ranks (USE_TE_OPTS=1 of its scripts), which
    takes Transformer Engine 2.7 (lora_layers.py of Megatron-Bridge), as containers of v5.1 have.
    """
    release = re.search(r"MLPerf v(\d+\.\d+)", row.get("framework", ""))
    if release is None or Framework.load(row["framework"]).name != "megatron":
        return False
    return float(release[1]) >= 5.1 and _whole(row, "tp", 1) == 1


def recipe_of(row: Mapping[str, str]) -> Recipe | None:
    """The recipe of a Megatron-Bridge row; None for a model that none was read of."""
    if not row["framework"].startswith("Megatron-Bridge "):
        return None
    release = row["framework"].removeprefix("Megatron-Bridge ").split(" ")[0]
    found = None
    for recipe in RECIPES:
        fits_gpu = not recipe.gpus or row["gpu"].split("-")[0] in recipe.gpus
        fits_precision = not recipe.precisions or row["precision"] in recipe.precisions
        fits_task = row.get("notes", "").startswith(recipe.tasks or "")
        fits = fits_gpu and fits_precision and fits_task
        if row["model"].startswith(recipe.model) and fits and release >= recipe.since:
            found = recipe
    return found


#: A row without one of these is not projected.
NEEDED = ("model", "gpu", "n_gpus")
#: Ranks, batches and tokens of a row.
_COUNT = Number(least=1, most=1e9, whole=True)
_SECONDS = Number(least=1e-6, most=1e9)
_RATE = Number(least=1e-6, most=1e12)
#: Published FLOPs of a token are at most this many times the model's: recomputation is counted as a third more,
#: attention without its mask up to twice.
_MOST_FLOPS = 2.5
#: Micro-batches of a step whose batch a table does not state: enough that more change little.
MICRO_BATCHES = 32
#: Tokens per sequence where a table does not say, as of the command.
SEQUENCE = 4096
#: What is taken where a table says "recipe": the setting is in a launch script, not in the table.
ASSUMED = "recipe: no recomputation"
#: What is taken where a row says nothing and its step fits; and words for settings that a table does not repeat.
NOTHING = "no recomputation"
_ELSEWHERE = ("recipe", "custom")
#: Of MLPerf's fine-tuning benchmark, and of Megatron-Bridge's recipe for Llama 3 70B.
LORA_RANK = 16
#: Megatron-Bridge fine-tunes on packed SQuAD examples, which have some 100 to 400 tokens; between those a step of these
#: tables differs by less than 1 %.
SFT_DOCUMENT = 256
PACKED = f"texts of {SFT_DOCUMENT} tokens packed (SQuAD: llama3_llm_finetune.py of the scripts at 0b928cd)"


class ProjectedRow(Record, frozen=True, kw_only=True):
    """A row's answer: a projection, or the reason. ``assumptions`` are what the row did not say, the batch among them
    where ``is_batch_assumed``; ``doubt`` is how its own figures contradict each other.
    """

    projection: Projection | None = None
    reason: str | None = None
    assumptions: tuple[str, ...] = ()
    framework: Framework | None = None
    is_batch_assumed: bool = False
    doubt: str = ""


class RowOptions(Record, frozen=True, kw_only=True):
    """What a command changes for all rows. ``framework``: whose constants, in place of the row's own framework's;
    ``constants``: single ones of ``Software``.
    """

    framework: str | None = None
    constants: Mapping[str, float] = msgspec.field(default_factory=dict)
    backends: str = BACKENDS
    gpu_clock_mhz: float | None = None
    power_w: float | None = None
    skew: Skew = UNIFORM


AS_IS = RowOptions()


def project_row(row: Mapping[str, str], options: RowOptions = AS_IS) -> ProjectedRow:
    """The row's step, or the one thing why there is none."""
    try:
        return _projected(stated(row), options)
    except TracelensError as error:
        return ProjectedRow(reason=str(error))


def _projected(row: Mapping[str, str], options: RowOptions) -> ProjectedRow:
    reason = _not_modeled(row)
    if reason is not None:
        return ProjectedRow(reason=reason)
    model = ModelConfig.named(row["model"])
    configured = configuration(row)
    assumptions = list(configured.assumptions)
    if "SFT" in row.get("notes", "") and row.get("framework", "").startswith("Megatron-Bridge "):
        model = replace(model, document=SFT_DOCUMENT)
        assumptions.append(PACKED)
    system, read_as = system_of(row["gpu"])
    system = system.at_clock(options.gpu_clock_mhz).at_power(options.power_w)
    framework = configured.framework if options.framework is None else Framework.load(options.framework)
    step = functools.partial(_step, row, model, system, framework, options)
    found = step(configured.parallel)
    if configured.open_recomputation:
        found, repeated = _fitting(found, step)
        assumptions += [repeated] if repeated != NOTHING or not row.get("recompute") else []
    notes = (note for note in found.notes if note != system.note)
    said = (*assumptions, *filter(None, (read_as, beyond_design(system.device, options.power_w))), *notes)
    return ProjectedRow(
        projection=found, assumptions=said, framework=framework, is_batch_assumed=_is_batch_open(row),
        doubt=_contradiction(row, found),
    )  # fmt: skip


def _is_batch_open(row: Mapping[str, str]) -> bool:
    return not row.get("gbs") and not row.get("ga")


def _contradiction(row: Mapping[str, str], found: Projection) -> str:
    """A row's TFLOPS over its tokens per second are FLOPs of a token, which the model has, too; "" where they agree."""
    tflops, tokens = (number(row.get(name) or "") for name in ("tflops_gpu", "tokens_s_gpu"))
    try:
        said = _RATE.of(tflops, "tflops_gpu") * 1e3 / _RATE.of(tokens, "tokens_s_gpu")
    except InputError:
        return ""
    counted = found.tflops_gpu * 1e3 / found.tokens_per_s_per_gpu
    if said <= _MOST_FLOPS * counted:
        return ""
    return (
        f"its {tflops} TFLOPS at {tokens} tokens/s are {said:.0f} GFLOP per token, {said / counted:.1f} times the"
        f" model's {counted:.0f}: its batch, its layers or its FLOPs are others than it says"
    )


def _fitting(found: Projection, step: Callable[[ParallelConfig], Projection]) -> tuple[Projection, str]:
    """A step that does not say what it recomputes, and what was taken: nothing more where it fits; under full sharding,
    which wraps whole models, every layer; else as few layers as let it fit.
    """
    capacity = found.peak_memory.capacity
    if found.infeasible is None or capacity is None:
        return found, NOTHING
    whole = step(replace(found.parallel, recompute="full"))
    if whole.peak_memory.peak >= found.peak_memory.peak:
        return found, NOTHING
    layers, every = 0, len(found.model.layers)
    if whole.infeasible is None and found.parallel.zero < 3:
        saved = (found.peak_memory.peak - whole.peak_memory.peak) / every
        layers = math.ceil((found.peak_memory.peak - capacity) / saved)
    for count in range(layers, every) if layers else ():
        some = step(replace(found.parallel, recompute="full", recompute_layers=count))
        if some.infeasible is None:
            return some, f"{count} of {every} layers recomputed, the fewest with which the step fits"
    return whole, "every layer recomputed, because the step does not fit without"


def _step(
    row: Mapping[str, str],
    model: ModelConfig,
    system: System,
    framework: Framework,
    options: RowOptions,
    parallel: ParallelConfig,
) -> Projection:
    software = framework.software(system, parallel.precision, framework.runs(parallel.attention))
    software = replace(software, **options.constants)
    if _EAGER.search(row.get("notes", "").lower()):
        software = framework.eager(software)
    # Of several chunks per rank, "1F1B" is the interleaved one
    named = schedule_of(row["schedule"]) if row.get("schedule") else None
    is_default = parallel.pp == 1 or (named == "1f1b" and parallel.vpp > 1)
    return project(
        model,
        replace(parallel, skew=options.skew),
        system,
        sequence=_whole(row, "seq_len", SEQUENCE),
        schedule=None if is_default else named,
        backends=options.backends,
        software=software,
    )


#: Columns that ``project_rows`` adds.
ESTIMATES = (
    "step_time_s_est", "step_time_s_low", "step_time_s_high", "step_time_s_half_low", "step_time_s_half_high",
    "tokens_s_gpu_est", "tflops_gpu_est", "power_w_gpu_est", "memory_gb_est", "fits", "batch_assumed", "assumed",
    "doubtful", "reason",
)  # fmt: skip


def project_rows(
    rows: Sequence[Mapping[str, str]], *, anchor: str | None = None, options: RowOptions = AS_IS
) -> tuple[list[dict[str, str]], int]:
    """The rows with ``ESTIMATES``, and how many were projected. ``anchor``: the id of a row measured as a factor.

    ``step_time_s_low`` and ``step_time_s_high``: between them nine of ten measured steps were where as little was
    known as of this row (``Framework.expected``), half of them between ``step_time_s_half_low`` and
    ``step_time_s_half_high``; empty for an anchored step. ``power_w_gpu_est``: empty where nobody measured energies of
    the device's architecture.
    """
    base = RowAnchor.of([stated(row) for row in rows], anchor, options) if anchor else None
    answers, answered = [], 0
    for row in with_progress(rows, "projecting", "rows"):
        point = project_row(row, options)
        answered += point.projection is not None
        point = point if base is None else base.on(point, stated(row))
        answers.append({**row, **_figures(point, is_anchored=base is not None), "reason": point.reason or ""})
    return answers, answered


def _figures(point: ProjectedRow, *, is_anchored: bool) -> dict[str, str]:
    figures = {"assumed": "; ".join(point.assumptions), "doubtful": point.doubt}
    found = point.projection
    if found is None:
        return figures
    step_s, expected = found.step_us / US_PER_S, None
    if not is_anchored and point.framework is not None:
        expected = point.framework.expected(found.model, found.system, found.parallel, found.sequence, found.backends)
    if expected is not None:
        bounds = zip(("low", "high", "half_low", "half_high"), (*expected.most, *expected.half), strict=True)
        figures |= {f"step_time_s_{name}": f"{step_s * share:.4f}" for name, share in bounds}
    energy = energy_of(found)
    return figures | {
        "power_w_gpu_est": "" if energy is None else f"{energy.power_w:.0f}",
        "step_time_s_est": f"{step_s:.4f}",
        "tokens_s_gpu_est": f"{found.tokens_per_s_per_gpu:.1f}",
        "tflops_gpu_est": f"{found.tflops_gpu:.1f}",
        "memory_gb_est": f"{found.peak_memory.peak / 1e9:.1f}",
        "fits": "" if found.peak_memory.capacity is None else "no" if found.infeasible else "yes",
        "batch_assumed": "yes" if point.is_batch_assumed else "no",
    }


class RowAnchor(Record, frozen=True, kw_only=True):
    """A measured row as a factor on the rows of its model and device."""

    anchor: Anchor
    row: Mapping[str, str]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, str]], row_id: str, options: RowOptions = AS_IS) -> RowAnchor:
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
        point = project_row(row, options)
        if point.projection is None:
            raise UsageError(f"--anchor {row_id}: {point.reason}")
        return cls(anchor=Anchor.of(point.projection, measured_us, f"row {row_id}"), row=row)

    def on(self, point: ProjectedRow, row: Mapping[str, str]) -> ProjectedRow:
        """``point`` of ``row``, anchored where model and device are the same."""
        same = all(row[name].strip().lower() == self.row[name].strip().lower() for name in ("model", "gpu"))
        if point.projection is None or not same:
            return point
        found = self.anchor.on(point.projection)
        return replace(point, projection=found, assumptions=(*point.assumptions, found.notes[-1]))


class Configured(Record, frozen=True, kw_only=True):
    """What a row says of its step. ``open_recomputation``: it does not say itself what is recomputed."""

    parallel: ParallelConfig
    framework: Framework
    open_recomputation: bool
    assumptions: tuple[str, ...]


def configuration(row: Mapping[str, str]) -> Configured:
    """The row's parallel configuration, and what was assumed. UsageError or InputError where it is none."""
    row = stated(row)
    framework, model = Framework.load(row.get("framework", "")), ModelConfig.named(row["model"])
    said, recipe, assumptions = _recomputation(row, framework)
    ranks = _ranks(row)
    micro_batch, cp = _whole(row, "mbs", 1), _context(row, ranks)
    tp, pp = _whole(row, "tp", 1), _whole(row, "pp", 1)
    replicas = _whole(row, "dp", max(ranks // (tp * pp * cp), 1))
    batch = _whole(row, "gbs", _whole(row, "ga", MICRO_BATCHES) * micro_batch * replicas)
    precision = precision_of(row.get("precision", "") or framework.precision)
    if precision is None:
        raise UsageError(f"precision {row.get('precision')!r} is not modeled")
    ep = _expert_ranks(row, model, framework, ranks // pp)
    assumptions += _open_figures(row, framework, micro_batch, replicas, cp)
    if model.experts is not None and not row.get("ep"):
        whose = f", which is {framework.name}'s default" if framework.ep else ": the ranks of experts are not stated"
        assumptions.append(f"ep {ep}{whose}")
    lora = LORA_RANK * _is_lora(row)
    if lora:
        assumptions.append(f"LoRA: adapters of rank {LORA_RANK} beside attention's products")
    zero, shard = sharding_of(row.get("fsdp_shard", ""), framework.zero, ranks)
    parallel = ParallelConfig.of(
        ranks=ranks,
        global_batch=batch,
        tp=tp,
        sequence_parallel=tp > 1 and (framework.sequence_parallel or row.get("recompute", "").lower().endswith("+sp")),
        pp=pp,
        vpp=_whole(row, "vp", 1),
        cp=cp,
        dp=replicas,
        ep=ep,
        etp=_whole(row, "etp", 1),
        zero=zero,
        # All replicas: with the ranks that have their context, as where no number is given
        shard=None if shard in (None, replicas) or replicas * cp % shard else shard,
        micro_batch=micro_batch,
        precision=precision,
        gradients=framework.gradients,
        fused_loss=framework.has_fused_loss,
        eager_loss=framework.has_eager_loss,
        lora=lora,
        fused_adapters=_fuses_adapters(row),
        attention="unfused" if framework.attention == "unfused" else "flash",
        scales_by_row=framework.scales_by_row and "rowwise" in re.sub(r"[\s_-]", "", row.get("precision", "").lower()),
        tp_overlap=framework.nvfp4_tp_overlap if precision == "nvfp4" else framework.tp_overlap,
        **_recomputing(said, model, framework),
    )
    return Configured(
        parallel=_launched(row, model, parallel if recipe is None else recipe.of(parallel)),
        framework=framework,
        open_recomputation=row.get("recompute", "").lower() in ("", *_ELSEWHERE),
        assumptions=tuple(assumptions),
    )


def _launched(row: Mapping[str, str], model: ModelConfig, parallel: ParallelConfig) -> ParallelConfig:
    """``parallel`` with what the row says of graphs and of overlap, in columns or in its notes."""
    said = row.get("graphs", "")
    notes = f"{said} cuda graph={said}" if said else row.get("notes", "")
    graphs = graphs_of(notes, has_experts=model.experts is not None)
    overlapped = _TP_OVERLAP.search(row.get("notes", "").lower())
    is_off = overlapped is not None and overlapped[1] in _OFF
    return replace(parallel, graphs=graphs or parallel.graphs, tp_overlap="none" if is_off else parallel.tp_overlap)


def _ranks(row: Mapping[str, str]) -> int:
    """Of the job: stated, or in its nodes, or in its degrees."""
    if row["n_gpus"]:
        return _whole(row, "n_gpus")
    if row.get("nodes"):
        topology = system_of(row["gpu"])[0].topology
        node = 8 if topology is None else topology.ranks_per_node or 8
        return _whole(row, "nodes") * _whole(row, "gpus_per_node", node)
    return math.prod(_whole(row, name, 1) for name in ("tp", "pp", "cp", "dp"))


def _context(row: Mapping[str, str], ranks: int) -> int:
    """Context parallelism; where a row states no layout and has fewer sequences than GPUs, as many share each."""
    batch, micro_batch = _whole(row, "gbs", 0), _whole(row, "mbs", 1)
    if any(row.get(name) for name in ("tp", "pp", "cp", "dp")) or not 0 < batch < ranks * micro_batch:
        return _whole(row, "cp", 1)
    return ranks * micro_batch // batch if ranks * micro_batch % batch == 0 else 1


def _expert_ranks(row: Mapping[str, str], model: ModelConfig, framework: Framework, ranks: int) -> int:
    """Expert parallelism; where neither row nor framework says, as far as experts and a stage's ranks divide, at most
    among 8: a node.
    """
    if row.get("ep") or framework.ep or model.experts is None:
        return _whole(row, "ep", framework.ep or 1)
    return max(size for size in (1, 2, 4, 8) if ranks % size == 0 == model.experts.count % size)


def _open_figures(
    row: Mapping[str, str], framework: Framework, micro_batch: int, replicas: int, cp: int
) -> Iterator[str]:
    """What is taken where the row has no figure."""
    if not row.get("fsdp_shard") and framework.zero == 1 and replicas > 1:
        yield "optimizer state divided among data-parallel ranks"
    if cp > 1 and not row.get("cp"):
        yield f"cp {cp}: the batch has fewer sequences than there are GPUs"
    if _is_batch_open(row):
        yield f"{MICRO_BATCHES} micro-batches of {micro_batch} per replica: the batch is not stated"
    elif not row.get("mbs"):
        yield "micro-batches of 1 sequence"
    if not row.get("seq_len"):
        yield f"sequences of {SEQUENCE} tokens"
    if not row.get("precision"):
        yield f"{framework.precision}: the precision is not stated"


def _recomputation(row: Mapping[str, str], framework: Framework) -> tuple[Recomputation, Recipe | None, list[str]]:
    text = row.get("recompute", "")
    layers = mlperf_layers(row) if text == "none" and _is_lora(row) else None
    if layers is not None:
        said = f"{layers} layers recomputed, as MLPerf's script for {row['gpu']} sets"
        return Recomputation(kind="full", layers=layers), None, [said]
    if text.lower() not in _ELSEWHERE and (text or not framework.recompute_modules):
        return recomputation_of(text or "none") or Recomputation(kind="none"), None, []
    recipe = recipe_of(row)
    if recipe is None and framework.recompute_modules:
        modules = framework.recompute_modules
        return Recomputation(kind="selective", modules=modules), None, [f"recipe: {', '.join(modules)} recomputed"]
    return Recomputation(kind="none"), recipe, [f"recipe: {recipe}" if recipe is not None else ASSUMED]


def _recomputing(said: Recomputation, model: ModelConfig, framework: Framework) -> dict[str, Any]:
    layers = said.layers
    if said.every > 1:
        layers = max(len(model.layers) // said.every, 1)
    made: dict[str, Any] = {"recompute": said.kind, "recompute_layers": layers}
    modules = said.modules or (framework.selective_modules if said.kind == "selective" else ())
    return made | ({"recompute_modules": modules} if modules else {})


def _not_modeled(row: Mapping[str, str]) -> str | None:
    if is_file_name(row.get("gpu", "")):
        return f"gpu names a device or a cluster, not a file: {shown(row['gpu'])}"
    missing = [name for name in NEEDED if not row[name]]
    if missing == ["n_gpus"] and any(row.get(name) for name in ("nodes", "dp")):
        missing = []
    if missing:
        return f"{missing[0]} is not stated"
    for name, what, read in _WORDS:
        said = row.get(name, "")
        if said and read(said) is None and (name != "schedule" or row.get("pp", "1") not in ("", "1")):
            return f"{what} {said!r} is not modeled"
    return None


def _is_lora(row: Mapping[str, str]) -> bool:
    """Whether adapters are trained, which tables say in one column or another."""
    return any("lora" in (row.get(name) or "").lower() for name in ("kind", "model", "notes"))


#: Columns whose words are spelled in many ways: what they say, and what reads them.
_WORDS: tuple[tuple[str, str, Callable[[str], object]], ...] = (
    ("precision", "precision", precision_of),
    ("recompute", "recomputation", lambda text: text.lower() == "custom" or recomputation_of(text)),
    ("schedule", "schedule", schedule_of),
)


def _whole(row: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = number(row.get(name) or "")
    if not text and default is not None:
        return default
    return _COUNT.count(text, name)
