"""How published tables spell what a projection asks for: precisions, recomputation, schedules, sharding, devices."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracelens.backends.system import System
from tracelens.dtypes import TRAINED, Precision
from tracelens.errors import UsageError
from tracelens.files.toml_figures import normalized
from tracelens.projection.schedules import schedules
from tracelens.training_options import Recompute

#: torchtitan's selective checkpointing per operation saves attention and every other matrix product.
PER_OP = ("attention_out", "layernorm", "mlp_act", "mlp_down")
#: Scaling recipes of FP8: per tensor with the current or a delayed scale, per row, per block.
_FP8 = re.compile(r"fp8-(cs|ds|sc|(tensor|row|block)-?wise|delayed|current|hybrid|block|e4m3|.*scaling)")
_SCHEDULES = {
    "1f1b": "1f1b", "interleaved": "interleaved", "1f1binterleaved": "interleaved", "interleaved1f1b": "interleaved",
    "vpp": "interleaved", "gpipe": "gpipe", "zbvformatted": "zb-v",
}  # fmt: skip
_SHARDED = {
    "fullshard": 3, "yes": 3, "true": 3, "fsdp": 3, "fsdp2": 3, "zero3": 3, "hsdp": 3, "hybridshard": 3,
    "shardgradop": 2, "zero2": 2, "zero1": 1, "distributedoptimizer": 1, "noshard": 0, "zero0": 0, "ddp": 0,
}  # fmt: skip
#: Words of a device's name that no file's name or alias needs.
_PLAIN_WORDS = frozenset({"nvidia", "amd", "instinct", "gpu", "tensor", "core", "google", "hbm3", "hbm3e", "oam"})


def precision_of(text: str) -> Precision | None:
    """The precision of GEMMs with weights. None for a word that names none.

    >>> precision_of("amp_fp8"), precision_of("FP8-rowwise"), precision_of("bf16-mixed"), precision_of("see doc")
    ('fp8', 'fp8', 'bf16', None)
    """
    word = normalized(text).removeprefix("amp-").removesuffix("-mixed").replace("float8", "fp8")
    word = {"fp4": "nvfp4", "fp8-mxfp8": "mxfp8"}.get(word, word)
    found = Precision.parse(word) or (Precision.FP8 if _FP8.fullmatch(word) else None)
    return found if found in TRAINED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """``modules`` empty: those of ``kind``. ``layers``: of how many, full recomputation; None: of all."""

    kind: Recompute
    modules: tuple[str, ...] = ()
    layers: int | None = None


def recomputation_of(text: str) -> Recomputation | None:
    """What the backward repeats. None for words that name nothing known.

    >>> recomputation_of("per-op SAC").modules, recomputation_of("full, 72 of 80 layers").layers
    (('attention_out', 'layernorm', 'mlp_act', 'mlp_down'), 72)
    """
    word = re.sub(r"[\s_\-]+", " ", text.strip().lower())
    if word in ("none", "no", "off", "no ac", "no recompute", "recipe"):
        return Recomputation(kind="none")
    if re.search(r"\b(per op|op sac|op selective|selective op|op)\b", word):
        return Recomputation(kind="selective", modules=PER_OP)
    counted = re.search(r"(\d+)( of \d+)? (layers|blocks)|layers? (\d+)", word)
    if word.startswith(("full", "yes", "all", "block", "uniform")):
        number = counted and (counted[1] or counted[4])
        return Recomputation(kind="full", layers=int(number) if number else None)
    return Recomputation(kind="selective") if "selective" in word or word == "sac" else None


def schedule_of(text: str) -> str | None:
    """The schedule that a table names. None for one that is not modeled."""
    word = re.sub(r"[\s_\-]+", "", text.strip().lower())
    known = {re.sub(r"-", "", name): name for name in schedules()} | _SCHEDULES
    return known.get(word.replace("zerobubble", "zb"))


def sharding_of(text: str, default: int) -> tuple[int, int | None]:
    """(ZeRO level, ranks to shard over where a number says). UsageError for another word."""
    word = re.sub(r"[\s_\-]+", "", text.strip().lower())
    if not word or word in ("0", "0.0", "no", "none"):
        return default, None
    number = re.match(r"\d+", word)
    if number:
        return 3, int(number[0])
    named = re.match(r"[a-z]+[0-3]?", word)
    ranks = re.search(r"\d+$", word.removeprefix(named[0] if named else ""))
    if named is None or named[0] not in _SHARDED:
        raise UsageError(f"fsdp_shard {text!r} is not known; known: {', '.join(_SHARDED)}, or a number of ranks")
    return _SHARDED[named[0]], int(ranks[0]) if ranks else None


def system_of(text: str) -> tuple[System, str | None]:
    """The device, limited to the power that its name states (``H100-96GB-HBM2e-500W``), and what was read as what."""
    try:
        return System.load(text), None
    except UsageError as error:
        unknown = error
    word = normalized(re.sub(r"[(),]", " ", text)).strip("-")
    watts = re.search(r"(?:^|-)(\d{3,4})-?w(?:atts?)?(?:-|$)", word)
    if watts:
        word = word.replace(watts[0], "-", 1).strip("-")
    parts = [part for part in word.split("-") if part not in _PLAIN_WORDS]
    sizes = [part for part in parts if re.fullmatch(r"\d+gi?b", part)]
    others = [part for part in parts if part not in sizes]
    for tried in (parts, [*others, *sizes], [*others[:1], *sizes, *others[1:]], [p for p in parts if "sxm" not in p]):
        try:
            found = System.load("-".join(tried))
        except UsageError:
            continue
        note = f"{text} read as {found.device.name}"
        return found.at_power(float(watts[1]) if watts else None), note + (f" at {watts[1]} W" if watts else "")
    raise unknown
