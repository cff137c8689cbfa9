"""The shape of a language model, from a TOML file of this package or any Hugging Face ``config.json``."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tracelens.dtypes import DType
from tracelens.errors import InputError, UsageError
from tracelens.toml_figures import Table, normalized
from tracelens.workload import layers

FOLDER = Path(__file__).resolve().parent / "models"
Norm: TypeAlias = Literal["rms", "layer"]
# More than any model has: a larger number is a slip, and would be spelled out block by block.
_MOST_REPEATS = 10_000
_LAYER = re.compile(r"[*wM]?[-E]|.")
_RUN = re.compile(r"(?:(\d{1,9})\(([*wME-]+)\)|([*wME-]+))\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values come from a latent of ``kv_rank``, queries from one of ``q_rank``.

    A head's query and key have ``d_nope`` + ``d_rope`` elements, its value ``d_v``. ``q_rank`` None: queries are
    projected from the hidden state.
    """

    q_rank: int | None
    kv_rank: int
    d_nope: int
    d_rope: int
    d_v: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: each token goes to ``top_k`` of ``count`` experts of width ``ffn``.

    ``shared_ffn`` is the width of all shared experts together, through which every token goes. ``latent``: the routed
    experts work on a projection of this width instead of the hidden state. ``shared_gate``: a gate scales the shared
    experts' result. ``bias``: of the router and of the routed experts.
    """

    count: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    latent: int | None = None
    shared_gate: bool = False
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """A Mamba-2 layer: ``heads`` of ``head_dim`` with a state of ``state``, B and C shared in ``groups``.

    A convolution of ``conv`` taps precedes the scan, which works in chunks of ``chunk`` tokens.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int
    chunk: int

    @property
    def inner(self) -> int:
        """Channels of the scan."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: those of the scan, B and C."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """``active``: without the experts that a token is not sent to. Prediction layers beyond the next token are out."""

    total: int
    active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsPerToken:
    """Floating-point operations of one token's matrix products, averaged over a sequence."""

    forward: float
    training: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model's shape. Everything is per whole model: how it is divided among devices is not part of it.

    ``blocks`` has one letter per residual block: ``*`` attention, ``w`` attention within ``window`` keys, ``M``
    Mamba-2, ``-`` dense feed-forward, ``E`` mixture of experts. A transformer layer is two of them.

    ``head_dim`` is None where ``latent_attention`` says the head's sizes. ``gated``: a gate projection beside each
    feed-forward's up projection. ``positions``: rows of a learned position table, 0 for none. ``mtp_layers``: how many
    further tokens are predicted in training, each by ``mtp_blocks``. ``bidirectional``: attention has no causal mask.
    ``document``: tokens of each of the texts that a sequence packs, if several: attention stays within a text,
    and there are as many whole ones as come nearest.
    ``vocab`` 0: the model's tokens are no words, embedding and logits are left out. ``notes``: what a reader of figures
    must know.
    """

    name: str
    label: str
    source: str
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    blocks: str
    hidden: int
    vocab: int
    ffn: int | None = None
    gated: bool = False
    q_heads: int
    kv_heads: int
    head_dim: int | None = None
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    norm: Norm = "rms"
    norm_bias: bool = False
    tied_embeddings: bool = False
    bidirectional: bool = False
    document: int | None = None
    positions: int = 0
    dtype: DType | None = None
    mtp_layers: int = 0
    mtp_blocks: str = ""
    latent_attention: LatentAttention | None = None
    experts: Experts | None = None
    mamba: Mamba | None = None

    def __post_init__(self) -> None:
        """InputError when a block is of no known kind or needs a figure that is missing."""
        unknown = sorted(set(self.blocks + self.mtp_blocks) - set("*wM-E"))
        if unknown:
            raise InputError(f"model {self.name}: no block is written {' or '.join(map(repr, unknown))}")
        for letter, needed, present in (
            ("-", "ffn", self.ffn),
            ("E", "experts", self.experts),
            ("M", "mamba", self.mamba),
            ("w", "window", self.window),
            ("*", "head_dim", self.head_dim or self.latent_attention),
            ("w", "head_dim", self.head_dim or self.latent_attention),
        ):
            if letter in self.blocks + self.mtp_blocks and present is None:
                raise InputError(f"model {self.name}: blocks have {letter!r}, but {needed} is missing")
        if self.document is not None and self.document < 1:
            raise InputError(f"model {self.name}: a text has at least one token, not {self.document}")
        if self.experts is not None and self.experts.top_k > self.experts.count:
            raise InputError(f"model {self.name}: a token goes to {self.experts.top_k} of {self.experts.count} experts")
        if self.q_heads % self.kv_heads:
            raise InputError(
                f"model {self.name}: {self.q_heads} query heads do not share {self.kv_heads} key and value heads evenly"
            )

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> ModelConfig:
        """A model of this package by name or alias; a model file (``.toml``), ``config.json`` or its folder by path.

        Case, ``-``, ``_``, ``/`` and blanks do not matter in names. UsageError for an unknown name, InputError for a
        file that is missing or wrong.
        """
        path = Path(name)
        if isinstance(name, os.PathLike) or path.suffix in (".toml", ".json") or path.is_dir():
            return _from_path(path)
        wanted = normalized(name)
        if wanted in cls.names():
            return _bundled(wanted)
        by_alias = {normalized(alias): model for model in cls.all() for alias in model.aliases}
        try:
            return by_alias[wanted]
        except KeyError:
            raise UsageError.unknown("model", name, [*cls.names(), *by_alias]) from None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the models of this package, sorted. Reads the folder, not the files."""
        return _names()

    @classmethod
    def all(cls) -> tuple[ModelConfig, ...]:
        """Every model of this package, in the order of ``names``."""
        return tuple(_bundled(name) for name in cls.names())

    @property
    def d_qk(self) -> int:
        """Elements of one head's query and key."""
        latent = self.latent_attention
        return self.head_dim or 0 if latent is None else latent.d_nope + latent.d_rope

    @property
    def d_v(self) -> int:
        """Elements of one head's value."""
        return self.head_dim or 0 if self.latent_attention is None else self.latent_attention.d_v

    def text(self, sequence: int) -> int:
        """Tokens of the longest text in a sequence of that many."""
        return min(self.document or sequence, sequence)

    @property
    def layers(self) -> tuple[str, ...]:
        """``blocks`` in layers: a mixer and the feed-forward after it, or whatever stands alone."""
        return tuple(_LAYER.findall(self.blocks))

    @property
    def attention_blocks(self) -> int:
        """How many blocks are attention."""
        return self.blocks.count("*") + self.blocks.count("w")

    def parameters(self) -> ParameterCount:
        """Elements of all weights, from the same list of operations that FLOPs come from."""
        ops = layers.forward_ops(self, batch=1, sequence=1)
        return ParameterCount(
            total=sum(op.count * op.weights for op in ops), active=sum(op.count * op.active_weights for op in ops)
        )

    def flops_per_token(self, sequence: int) -> FlopsPerToken:
        """Sums of perf models over a sequence of ``sequence`` tokens, per token. Attention is causal.

        Only matrix products count, as in published model FLOPs: no normalization, activation or lookup. ``training``
        is forward and backward, prediction of further tokens included, without what is computed twice.
        """
        forward = layers.forward_ops(self, batch=1, sequence=sequence)
        training = (*forward, *layers.further_token_ops(self, batch=1, sequence=sequence))
        return FlopsPerToken(
            forward=sum(op.forward_flops for op in forward) / sequence,
            training=sum(op.forward_flops + op.backward_flops for op in training) / sequence,
        )


def expanded(runs: str) -> str:
    """Blocks written as runs: ``3(*-) 2(*E)`` is ``*-*-*-*E*E``. ValueError for anything else."""
    text, blocks = runs.strip(), ""
    while text:
        found = _RUN.match(text)
        if found is None or int(found[1] or 1) > _MOST_REPEATS:
            raise ValueError(runs)
        blocks += found[2] * int(found[1]) if found[1] else found[3]
        text = text[found.end() :]
    return blocks


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@functools.cache
def _bundled(name: str) -> ModelConfig:
    return _from_toml(FOLDER / f"{name}.toml")


def _from_path(path: Path) -> ModelConfig:
    from tracelens.workload.huggingface import read_config

    if path.is_dir():
        path = path / "config.json"
    return _from_toml(path) if path.suffix == ".toml" else read_config(path)


def _from_toml(path: Path) -> ModelConfig:
    root = Table.of_file(path, kind="model")
    dtype = root.text("dtype")
    blocks = root.text("blocks")
    norm = root.text("norm") or "rms"
    if norm not in ("rms", "layer"):
        raise root.error("norm", 'must be "rms" or "layer"')
    try:
        letters = expanded(blocks or "")
    except ValueError:
        raise root.error("blocks", 'must be runs of the letters * w M - E, like "3(*-) 58(*E)"') from None
    if not letters:
        raise root.error("blocks", 'must say the residual blocks, like "32(*-)"')
    if dtype is not None and DType.parse(dtype) is None:
        raise root.error("dtype", "must be an element type, like bf16")
    model = ModelConfig(
        name=path.stem,
        label=root.text("label") or path.stem,
        source=root.source("source"),
        aliases=root.texts("aliases"),
        notes=root.texts("notes"),
        blocks=letters,
        hidden=_needed(root, "hidden"),
        vocab=_needed(root, "vocab", least=0),
        ffn=root.whole("ffn"),
        gated=root.flag("gated"),
        q_heads=_needed(root, "q_heads"),
        kv_heads=_needed(root, "kv_heads"),
        head_dim=root.whole("head_dim"),
        window=root.whole("window"),
        qkv_bias=root.flag("qkv_bias"),
        out_bias=root.flag("out_bias"),
        mlp_bias=root.flag("mlp_bias"),
        qk_norm=root.flag("qk_norm"),
        sinks=root.flag("sinks"),
        norm="layer" if norm == "layer" else "rms",
        norm_bias=root.flag("norm_bias"),
        tied_embeddings=root.flag("tied_embeddings"),
        bidirectional=root.flag("bidirectional"),
        positions=root.whole("positions") or 0,
        dtype=DType.parse(dtype),
        mtp_layers=root.whole("mtp_layers") or 0,
        mtp_blocks=root.text("mtp_blocks") or "",
        latent_attention=_latent_attention(root.table("latent_attention")),
        experts=_experts(root.table("experts")),
        mamba=_mamba(root.table("mamba")),
    )
    root.finish()
    return model


def _needed(table: Table, name: str, *, least: int = 1) -> int:
    value = table.whole(name, least=least)
    if value is None:
        raise table.error(name, f"must be a whole number, at least {least}")
    return value


def _latent_attention(table: Table | None) -> LatentAttention | None:
    if table is None:
        return None
    found = LatentAttention(
        q_rank=table.whole("q_rank"),
        kv_rank=_needed(table, "kv_rank"),
        d_nope=_needed(table, "d_nope"),
        d_rope=_needed(table, "d_rope"),
        d_v=_needed(table, "d_v"),
    )
    table.finish()
    return found


def _experts(table: Table | None) -> Experts | None:
    if table is None:
        return None
    found = Experts(
        count=_needed(table, "count"),
        top_k=_needed(table, "top_k"),
        ffn=_needed(table, "ffn"),
        shared_ffn=table.whole("shared_ffn") or 0,
        latent=table.whole("latent"),
        shared_gate=table.flag("shared_gate"),
        bias=table.flag("bias"),
    )
    table.finish()
    return found


def _mamba(table: Table | None) -> Mamba | None:
    if table is None:
        return None
    found = Mamba(
        heads=_needed(table, "heads"),
        head_dim=_needed(table, "head_dim"),
        groups=_needed(table, "groups"),
        state=_needed(table, "state"),
        conv=_needed(table, "conv"),
        chunk=_needed(table, "chunk"),
    )
    table.finish()
    return found
