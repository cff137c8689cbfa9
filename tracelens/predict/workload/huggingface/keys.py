"""A config's keys: which were read, which are missing, and what configs of a model type do not say of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from tracelens.errors import InputError
from tracelens.files.data_table import LARGEST, shown
from tracelens.files.documents import toml_of
from tracelens.predict.workload.model_shape import VisionTower
from tracelens.types.records import Record

#: More than any model has; a larger number is a damaged file, and would be spelled out block by block.
_MOST_LAYERS = 10_000


class Keys:
    """A config's keys. Remembers which were read, which were needed and are missing, and what was assumed."""

    def __init__(self, file: str, values: dict[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.file = file
        filled = {name: value for name, value in (defaults or {}).items() if values.get(name) is None}
        self.values = values | filled
        self.read: set[str] = set()
        self.missing: list[str] = []
        self.assumed = [f"{name} is its type's default, {value}" for name, value in filled.items()]

    def get(self, *names: str) -> Any:
        """The first of ``names`` that is there and not null; all of them count as read."""
        self.read.update(names)
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def whole(self, *names: str) -> int | None:
        """A whole number, at least 0; None when absent."""
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
            raise InputError(f"{self.file}: {names[0]} must be a whole number, got {shown(value)}")
        return value

    def needed(self, *names: str) -> int:
        """A whole number above 0; a missing one is reported by ``finish``, with all others."""
        value = self.whole(*names)
        if not value:
            self.missing.append(names[0])
        return value or 1

    def all_needed(self, **names: str) -> dict[str, int]:
        """The needed whole numbers of a part of the shape: field -> key."""
        return {field: self.needed(name) for field, name in names.items()}

    def layers(self, *names: str) -> int:
        """A needed number of layers; InputError for one that no model has."""
        value = self.needed(*names)
        if value > _MOST_LAYERS:
            raise InputError(f"{self.file}: {names[0]} is {value}, which is too large for any model")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def listed(self, name: str, kind: type) -> list[Any]:
        """A list of texts or of whole numbers; empty when absent."""
        value = self.get(name)
        if value is not None and not (isinstance(value, list) and all(type(each) is kind for each in value)):
            words = "strings" if kind is str else "objects" if kind is dict else "whole numbers"
            raise InputError(f"{self.file}: {name} must be a list of {words}, got {shown(value)}")
        return value or []

    def per_layer(self, name: str, layers: int, kind: type = int) -> list[Any]:
        """A list as ``listed``, one per layer and perhaps more for further tokens; empty when absent."""
        values = self.listed(name, kind)
        if values and len(values) < layers:
            raise InputError(f"{self.file}: {name} has {len(values)} entries for {layers} layers")
        return values[:layers]

    def section(self, name: str) -> Keys:
        """The keys inside; none when absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise InputError(f"{self.file}: {name} must be an object, got {shown(value)}")
        made = Keys(f"{self.file}: {name}", value or {})
        made.missing, made.assumed = self.missing, self.assumed
        return made

    def unread(self) -> tuple[str, ...]:
        """Names of keys that were not read and may matter."""
        told = told_by_type()
        free, prefixes = {*told["without_cost"], *told["sampler"]}, tuple(told["without_cost_prefixes"])
        return tuple(
            name
            for name, value in sorted(self.values.items())
            if name not in self.read
            and name not in free
            and not name.startswith(prefixes)
            and not name.endswith(("_token_id", "_token_ids", "_token_index"))
            and value not in (None, False, 0, "", [], {})
            and not isinstance(value, str)
        )

    def finish(self) -> tuple[str, ...]:
        """``unread``. InputError when a needed key is missing."""
        if self.missing:
            missing = ", ".join(sorted(set(self.missing)))
            raise InputError(f"{self.file}: not a complete model config, missing: {missing}")
        return self.unread()


class Family(Record, frozen=True, kw_only=True):
    """Facts of a model type's code, each only where the config says nothing.

    ``qkv_bias``: queries, keys and values have one; ``out_bias_too``: ``attention_bias`` means the output's as well.
    ``qk_norm``: per head, or ``joint`` over all of them. ``output_gate``: attention's result has a gate per channel.
    ``shared_gate``: a gate scales the shared experts. ``shared_like_experts``: one shared expert, as wide as a routed
    one. ``windows``: what a config with a window and no list of layers means: each layer, each second, the last of six
    not, or none unless ``use_sliding_window`` is set. ``norm_bias`` with ``norm`` layer. ``post_norms``: a norm after
    each block too. ``gated``: None: by the activation's name. ``vision``: the tower of the released models.
    ``shortcut``: a layer is two of attention and feed-forward, with experts beside the second. ``defaults``: what the
    type's code fills in for keys that are not there.
    """

    is_known: bool = True
    qkv_bias: bool = False
    out_bias_too: bool = True
    qk_norm: Literal["", "head", "joint"] = ""
    sinks: bool = False
    output_gate: bool = False
    shared_gate: bool = False
    shared_like_experts: bool = False
    expert_bias: bool = False
    tied: bool = False
    windows: Literal["every", "second", "sixth", "switched"] = "every"
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    post_norms: bool = False
    gated: bool | None = None
    qwen_full_layers: bool = False
    nope_interval: int = 0
    vision: VisionTower | None = None
    linear: Literal["delta", "kimi", "lightning"] = "delta"
    shortcut: bool = False
    defaults: Mapping[str, int] = msgspec.field(default_factory=dict)


@cache
def told_by_type() -> dict[str, Any]:
    """What ``families.toml`` says: keys without cost, and the families."""
    return toml_of(Path(__file__).with_name("families.toml"))


@cache
def families() -> dict[str, Family]:
    """Families by what model types' configs call themselves."""
    found: dict[str, Family] = {}
    for given in told_by_type()["family"]:
        facts = {name: value for name, value in given.items() if name not in ("types", "vision")}
        vision = VisionTower(**given["vision"]) if "vision" in given else None
        found |= dict.fromkeys(given["types"], Family(vision=vision, **facts))
    return found
