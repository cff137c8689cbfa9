"""How published tables spell what a projection asks for: precisions, recomputation, schedules, sharding."""

from __future__ import annotations

import re

from tracelens.dtypes import TRAINED, Precision, spelled_type
from tracelens.errors import UsageError
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.projection.schedules import schedules
from tracelens.training_options import MODULES, Graphs, Recompute

#: torchtitan's selective checkpointing per operation saves attention and every other matrix product.
PER_OP = ("attention_out", "layernorm", "mlp_act", "mlp_down")
#: MaxText's policies by what they do not save, and words for a module.
_POLICIES = {
    "minimal": ("layernorm", "mlp_act"),
    "save dot except mlp": ("layernorm", "mlp"),
    "save dot except mlpwi": ("layernorm", "mlp_act"),
    "save qkv proj": ("core_attn", "attention_out", "layernorm", "mlp"),
    "save out proj": ("core_attn", "layernorm", "mlp"),
    **dict.fromkeys(("attn", "attention", "attention only", "attn only"), ("core_attn",)),
    **dict.fromkeys(("norm", "norms", "rmsnorm"), ("layernorm",)),
}
_NOTHING = frozenset({
    "none", "no", "n", "✗", "off", "false", "0", "na", "n/a", "-", "disabled", "without", "w/o", "recipe", "no ac",
    "no recompute", "no recomputation", "not used", "no activation checkpointing",
})  # fmt: skip
#: Megatron-LM's modules, the longer names before those that they begin with.
_MODULES = lazy_pattern(rf"\b({'|'.join(sorted(MODULES, key=len, reverse=True)).replace('_', ' ')})\b")
#: Words for recomputing every layer.
_WHOLE = lazy_pattern(
    r"[✓✔]|(recompute )?[0-9]{1,4}( of [0-9]{1,4})? (layers?|blocks?)"
    r"|(full|yes|y|true|on|1|enabled|all|every|block|uniform|ac|activation (checkpointing|recomputation)"
    r"|gradient checkpointing|checkpointing)\b"
)
_OFF = frozenset({"0", "false", "no", "off", "none", "disabled", "without"})
_GRAPHS = lazy_pattern(r"\b(?:(\w{1,16})[ _-])?cuda[ _-]?graphs?(?: ?[=:] ?(\w{1,16}))?")
_TP_OVERLAP = lazy_pattern(r"\btp[ _-](?:comm[ _-])?overlap ?[=:] ?(\w{1,16})")
_SCHEDULES = {
    "1f1b": "1f1b", "interleaved": "interleaved", "1f1binterleaved": "interleaved", "interleaved1f1b": "interleaved",
    "vpp": "interleaved", "gpipe": "gpipe", "afab": "gpipe", "zbvformatted": "zb-v", "zbvzb": "zb-v",
}  # fmt: skip
_SHARDED = {
    "fullshard": 3, "yes": 3, "true": 3, "fsdp": 3, "fsdp1": 3, "fsdp2": 3, "zero3": 3, "z3": 3, "stage3": 3, "hsdp": 3,
    "hybridshard": 3, "hybrid": 3, "fullyshard": 3, "full": 3, "megatronfsdp": 3, "shardgradop": 2, "zero2": 2, "z2": 2,
    "stage2": 2, "zero1": 1, "z1": 1, "stage1": 1, "distributedoptimizer": 1, "distopt": 1, "noshard": 0, "zero0": 0,
    "stage0": 0, "ddp": 0,
}  # fmt: skip

#: ``min(n,512)``, with ``->128 beyond 256`` behind it: ranks to shard over of a job of n.
_SHARD_RULE = lazy_pattern(r"min\(n, ?(\d{1,6})\)(?: ?-> ?(\d{1,6}) beyond (\d{1,6}))?")


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
    """Whether notes say that tensor parallelism's collectives run beside products."""
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
    if word in _POLICIES:
        return Recomputation(kind="selective", modules=_POLICIES[word])
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
    known = {re.sub(r"-", "", name): name for name in schedules()} | _SCHEDULES
    return known.get(word.replace("zerobubble", "zb"))


def sharding_of(text: str, default: int, ranks: int | None = None) -> tuple[int, int | None]:
    """(ZeRO level, ranks to shard over where a number says). UsageError for another word.

    A launch script's rule is read for a job of ``ranks``:

    >>> sharding_of("min(n,512)->128 beyond 256", 1, 128), sharding_of("min(n,512)->128 beyond 256", 1, 1024)
    ((3, 128), (3, 128))
    >>> sharding_of("min(n,512)->128 beyond 256", 1, 256)
    (3, 256)
    """
    rule = _SHARD_RULE.match(text.strip().lower())
    if rule and ranks:
        most, beyond, few = (int(figure) for figure in rule.groups(default=str(ranks)))
        return 3, beyond if ranks > few else min(ranks, most)
    parts = re.split(r"[\s_\-=:]+", text.lower().partition("(")[0].strip(" -"))
    word = "".join(parts).removeprefix("deepspeed")
    if not word or word in ("0", "0.0", "no", "none"):
        return default, None
    # torchtitan's data_parallel_shard_degree = -1 is over all ranks
    if word in _SHARDED or text.strip() == "-1":
        return _SHARDED.get(word, 3), None
    first, shards = re.findall(r"^([a-z]*)(\d*)", word)[0]
    kind = "".join(parts[:-1]) if parts[-1].isdigit() else first
    shards = parts[-1] if parts[-1].isdigit() else shards
    if not shards or (kind and kind not in _SHARDED):
        raise UsageError(f"fsdp_shard {text!r} is not known; known: {', '.join(_SHARDED)}, or a number of ranks")
    return _SHARDED.get(kind, 3), int(shards)
