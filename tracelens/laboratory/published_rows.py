"""How published tables of training steps are read: their headings, words and recipes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from tracelens.dtypes import TRAINED, Precision, spelled_type
from tracelens.errors import UsageError
from tracelens.files.data_table import Headings, is_unsaid, number
from tracelens.lazy.records import dataclass
from tracelens.predict.projection.schedules import schedules
from tracelens.training_options import MODULES, Dispatcher, Graphs, Recompute
from tracelens.workload.parallel_config import ParallelConfig

_TABLES: Mapping[str, Any] = tomllib.loads(
    files(__package__).joinpath("published_tables.toml").read_text(encoding="utf-8")
)
HEADINGS, SERVING_HEADINGS = (Headings(_TABLES[f"{kind}_headings"]) for kind in ("training", "serving"))
#: Columns whose words are names, whatever they say.
_NAMES = frozenset({"id", "model", "gpu", "framework", "notes", "source"})
#: Columns in which a word for nothing stands where there is none.
_NONE_IN = frozenset({
    "n_gpus", "nodes", "gpus_per_node", "tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs", "gbs", "ga", "seq_len",
    "precision", "schedule",
})  # fmt: skip
_NONE = frozenset({"-", "--", "none", "n/a", "na", "no", "off"})
_COUNTED = re.compile(r"([0-9]{1,9}) ?[x×*] ?(?=[a-z])|(?<=[a-z0-9])(?<!nvl36) ?[x×*] ?([0-9]{1,9})$", re.IGNORECASE)
_TIMES = re.compile(r"([0-9]{1,6}) ?[x×*] ?([0-9]{1,6})(?: (?=[a-z])|$)", re.IGNORECASE)
_IN_NODES = re.compile(r"([0-9]{1,6}) ?nodes?\b(?: ?\(?([0-9]{1,7}) ?gpus?)?", re.IGNORECASE)
_DEGREE = re.compile(r"\b(tp|pp|vpp?|cp|ep|etp|dp|fsdp) ?[=:_-]? ?([0-9]+)", re.IGNORECASE)


def stated(row: Mapping[str, str]) -> dict[str, str]:
    """The row under the names of ``batch_rows``. Cells that say nothing are empty; counts of devices stand apart from
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
        made["gbs"] = _sequences(in_tokens, made.get("seq_len", ""))
    for degree, value in _DEGREE.findall(made.get("layout", "")):
        name = {"fsdp": "fsdp_shard", "vpp": "vp"}.get(degree.lower(), degree.lower())
        made[name] = made.get(name) or value
    return made


def _cell(heading: str, named: str, text: str) -> str:
    """What it says; nothing where that is elsewhere."""
    if named not in _NAMES and (is_unsaid(text) or (named in _NONE_IN and text.lower() in _NONE)):
        return ""
    return f"zero{text}" if "zero" in heading.lower() and text in ("0", "1", "2", "3") else text


def _sequences(tokens: str, length: str) -> str:
    """A batch in tokens as sequences of ``length``; as it is where that is none."""
    try:
        return f"{float(number(tokens)) / float(number(length)):.0f}"
    except (ValueError, ZeroDivisionError):
        return tokens


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
PER_OP = ("attention_out", "layernorm", "mlp_act", "mlp_down")
_NOTHING = frozenset({
    "none", "no", "n", "✗", "off", "false", "0", "na", "n/a", "-", "disabled", "without", "w/o", "recipe", "no ac",
    "no recompute", "no recomputation", "not used", "no activation checkpointing",
})  # fmt: skip
#: Megatron-LM's modules, the longer names before those that they begin with.
_MODULES = re.compile(rf"\b({'|'.join(sorted(MODULES, key=len, reverse=True)).replace('_', ' ')})\b")
#: Words for recomputing every layer.
_WHOLE = re.compile(
    r"[✓✔]|(recompute )?[0-9]{1,4}( of [0-9]{1,4})? (layers?|blocks?)"
    r"|(full|yes|y|true|on|1|enabled|all|every|block|uniform|ac|activation (checkpointing|recomputation)"
    r"|gradient checkpointing|checkpointing)\b"
)
_OFF = frozenset({"0", "false", "no", "off", "none", "disabled", "without"})
_GRAPHS = re.compile(r"\b(?:(\w{1,16})[ _-])?cuda[ _-]?graphs?(?: ?[=:] ?(\w{1,16}))?")
_TP_OVERLAP = re.compile(r"\btp[ _-](?:comm[ _-])?overlap ?[=:] ?(\w{1,16})")
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


def is_tp_overlapped(text: str) -> bool | None:
    """Whether notes say that tensor parallelism's collectives overlap products."""
    found = _TP_OVERLAP.search(text.lower())
    return None if found is None else found[1] not in _OFF


def precision_of(text: str) -> Precision | None:
    """The precision of GEMMs with weights. None for a word that names none.

    >>> precision_of("amp_fp8"), precision_of("FP8 (delayed)"), precision_of("bf16-mixed"), precision_of("see doc")
    ('fp8', 'fp8', 'bf16', None)
    """
    found = Precision.parse(spelled_type(text) or "")
    return found if found in TRAINED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
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
    (('attention_out', 'layernorm', 'mlp_act', 'mlp_down'), 72)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of one model's script, for ``gpus`` and ``precisions`` (empty: all) from release ``since`` on.

    The releases at which a script changed are those between which its rows became faster at equal degrees: the
    repository's branches were not read one by one. ``modules`` empty: nothing is recomputed.
    """

    model: str
    gpus: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    since: str = ""
    graphs: Graphs = "none"
    modules: tuple[str, ...] = ()
    ep_overlap: bool = False
    bf16_layers: tuple[int, int] = (0, 0)
    dispatcher: Dispatcher = "deepep"
    offload_layers: int = 0
    source: str

    @classmethod
    def of_table(cls, given: Mapping[str, Any]) -> Recipe:
        """A recipe as ``published_tables.toml`` has it."""
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
        )

    def __str__(self) -> str:
        parts = [f"{' and '.join(self.modules)} recomputed" if self.modules else "no recomputation"]
        parts.append(
            {"none": "no graphs", "partial": "partial graphs", "full": "graphs of the whole step"}[self.graphs]
        )
        parts += ["exchanges overlapped"] if self.ep_overlap else []
        parts += [f"the last {self.bf16_layers[1]} layers in BF16"] if self.bf16_layers[1] else []
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


def recipe_of(row: Mapping[str, str]) -> Recipe | None:
    """The recipe of a Megatron-Bridge row; None for a model that none was read of."""
    if not row["framework"].startswith("Megatron-Bridge "):
        return None
    release = row["framework"].removeprefix("Megatron-Bridge ").split(" ")[0]
    found = None
    for recipe in RECIPES:
        fits_gpu = not recipe.gpus or row["gpu"].split("-")[0] in recipe.gpus
        fits_precision = not recipe.precisions or row["precision"] in recipe.precisions
        if row["model"].startswith(recipe.model) and fits_gpu and fits_precision and release >= recipe.since:
            found = recipe
    return found
