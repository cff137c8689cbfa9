"""The figures of a language model's shape, whichever file they come from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self, TypeAlias

from tracelens.types.dtypes import DType
from tracelens.types.records import Record

Norm: TypeAlias = Literal["rms", "layer"]
#: Where letters of variants begin: a plane of Unicode for private use, 128 letters for each variant.
_VARIANTS, _LETTERS = 0xF0000, 128
MOST_VARIANTS = (0xFFFFD - _VARIANTS) // _LETTERS


def variant_letter(letter: str, number: int) -> str:
    """The letter of variant ``number`` of a block type's ``letter``.

    >>> base_letter(variant_letter("*", 3)), base_letter("*")
    ('*', '*')
    """
    return chr(_VARIANTS + _LETTERS * number + ord(letter))


def base_letter(letter: str) -> str:
    """The block type's letter of a variant's, or of any other letter itself."""
    return chr((ord(letter) - _VARIANTS) % _LETTERS) if ord(letter) >= _VARIANTS else letter


class LatentAttention(Record, frozen=True, kw_only=True):
    """Multi-head latent attention: keys and values come from a latent of ``kv_rank``, queries from one of ``q_rank``.

    A head's query and key have ``d_nope`` + ``d_rope`` elements, its value ``d_v``. ``q_rank`` None: queries are
    projected from the hidden state.
    """

    q_rank: int | None
    kv_rank: int
    d_nope: int
    d_rope: int
    d_v: int


class Experts(Record, frozen=True, kw_only=True):
    """A mixture of experts: each token goes to ``top_k`` of ``count`` experts of width ``ffn``.

    ``shared_ffn`` is the width of all shared experts together, through which every token goes. ``latent``: the routed
    experts work on a projection of this width instead of the hidden state. ``shared_gate``: a gate scales the shared
    experts' result. ``bias``: of the router and of the routed experts. ``latent_norm``: of the routed experts' sum
    before it is projected back.
    """

    count: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    latent: int | None = None
    shared_gate: bool = False
    bias: bool = False
    latent_norm: bool = False


class Mamba(Record, frozen=True, kw_only=True):
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


class Indexer(Record, frozen=True, kw_only=True):
    """What selects the rows that a token attends to: ``heads`` queries of ``head_dim`` score a key per row.

    ``top_k`` are selected: single rows, or blocks of ``block`` keys.
    """

    heads: int
    head_dim: int
    top_k: int
    block: int = 1


class CompressedAttention(Record, frozen=True, kw_only=True):
    """Attention whose keys, which are its values, stand for ``ratio`` tokens each (DeepSeek-V4, arXiv 2606.19348).

    Queries come from a latent of ``q_rank``; the heads' results are projected in ``o_groups`` groups to ``o_rank``
    each, and then together. ``ratio`` 0: the window alone. ``overlap``: a row is pooled from twice as many tokens.
    ``selects``: an indexer chooses among the rows.
    """

    q_rank: int
    o_rank: int
    o_groups: int
    ratio: int = 0
    overlap: bool = False
    selects: bool = False


class LinearHeads(Record, frozen=True, kw_only=True):
    """Heads of linear attention: ``v_heads`` states of ``d_k`` x ``d_v``, with ``k_heads`` queries and keys.

    A convolution of ``conv`` taps precedes them (0: none). ``gate_rank``: of the output gate's projection, 0: full.
    """

    k_heads: int
    v_heads: int
    d_k: int
    d_v: int
    conv: int = 0
    gate_rank: int = 0

    @property
    def keys(self) -> int:
        """Elements of a token's keys, and of its queries."""
        return self.k_heads * self.d_k

    @property
    def values(self) -> int:
        """Elements of a token's values."""
        return self.v_heads * self.d_v


class VisionTower(Record, frozen=True, kw_only=True):
    """An encoder of images: ``layers`` of attention without a mask and a feed-forward of width ``ffn`` on patches.

    A patch has ``patch_elements`` numbers; ``merged`` neighboring patches together become one token of the language
    model by a projector of width ``projector`` (0: one product). ``taps``: further projectors, for deeper layers.
    ``bias``: of all products. ``positions``: rows of a learned position table.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    head_dim: int
    patch_elements: int
    merged: int
    out: int
    projector: int = 0
    taps: int = 0
    gated: bool = False
    bias: bool = True
    positions: int = 0
    norm: Norm = "layer"
    qk_norm: bool = False
    post_norms: bool = False


class NarrowWeights(Record, frozen=True, kw_only=True):
    """Weights in a narrow type: ``computed``: what their products are computed in (None: that type too).

    ``group``: weights that share a scale (0: a scale per row or for all, which weighs nothing).
    """

    dtype: DType
    computed: DType | None = None
    group: int = 0

    @property
    def bytes_per_weight(self) -> float:
        """With its share of a scale: of a byte, of two with integers, of four with a block of hundreds of weights."""
        if not self.group:
            return self.dtype.width_bytes
        scale = 4 if self.group > 1024 else 2 if self.dtype in (DType.INT4, DType.INT8) else 1
        return self.dtype.width_bytes + scale / self.group


#: The parts of a model whose weights may be held in a type of their own.
PARTS = ("attention", "dense", "shared", "experts", "logits")


class Quantization(Record, frozen=True, kw_only=True):
    """How a checkpoint holds its weights; None: in the model's own type. ``name`` as it calls itself.

    ``attention``: projections of attention and of other token mixers, ``dense``: of dense feed-forwards, ``shared``: of
    shared experts, ``experts``: of routed ones, ``logits``: the output table. ``kv``: the type of keys and values.
    """

    name: str
    attention: NarrowWeights | None = None
    dense: NarrowWeights | None = None
    shared: NarrowWeights | None = None
    experts: NarrowWeights | None = None
    logits: NarrowWeights | None = None
    kv: DType | None = None

    def of(self, name: str) -> NarrowWeights | None:
        """The weights of a product of that name."""
        part, _, rest = name.partition(".")
        if part == "experts":
            if rest.startswith("shared."):
                return self.shared
            return self.experts if rest in ("up", "down", "layer") else None
        if part == "logits":
            return self.logits
        if part in ("embedding", "positions", "mtp", "residual", "vision"):
            return None
        return self.dense if part == "mlp" else self.attention


class ModelShape(Record, frozen=True, kw_only=True):
    """Everything that the operations of a model follow from, per whole model: how it is divided is not part of it.

    ``blocks`` has one letter per residual block, each of a file in ``predict/workload/blocks``: ``*`` attention, ``w``
    attention within ``window`` keys, ``M`` Mamba-2, ``-`` dense feed-forward, ``E`` mixture of experts. A transformer
    layer is two of them. Blocks of one type whose figures differ have letters of their own, which ``variants`` explains
    (``variant_letter``): the letter, and the fields of this shape that are different there.

    ``head_dim`` is None where ``latent_attention`` says the head's sizes. ``gated``: a gate projection beside each
    feed-forward's up projection. ``positions``: rows of a learned position table, 0 for none. ``mtp_layers``: how many
    further tokens are predicted in training, each by ``mtp_blocks``. ``bidirectional``: attention has no causal mask.
    ``dropout``: training drops elements of unfused attention's probabilities and behind blocks, and keeps the masks.
    ``document``: tokens per document where a sequence packs several: attention stays within a document, and there are
    as many whole ones as come nearest. ``vocab`` 0: the model's tokens are no words, embedding and logits are left out.
    ``block_figures``: (table's name, figures) of block types that are not built in.

    ``gate_width``: elements per query head of a gate on attention's result. ``value_dim``: elements of a head's value
    where they are not ``head_dim``. ``key_is_value``: values are the keys
    before their norm, and need no projection. ``qk_norm_joint``: the norm of queries and keys goes over all heads.
    ``post_norms``: a norm after each block too. ``streams``: residual streams of hyper-connections (0: one, plain).
    ``residual_block``: every so many layers, their sum is kept, and each block reads a mixture of all that are kept (0:
    a plain residual stream). ``chunk``: attention of a token ends where its chunk of so many tokens begins.
    """

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
    dropout: bool = False
    document: int | None = None
    positions: int = 0
    dtype: DType | None = None
    mtp_layers: int = 0
    mtp_blocks: str = ""
    latent_attention: LatentAttention | None = None
    experts: Experts | None = None
    mamba: Mamba | None = None
    block_figures: tuple[tuple[str, Any], ...] = ()
    variants: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    gate_width: int = 0
    value_dim: int | None = None
    key_is_value: bool = False
    qk_norm_joint: bool = False
    post_norms: bool = False
    streams: int = 0
    residual_block: int = 0
    chunk: int | None = None
    indexer: Indexer | None = None
    compressed: CompressedAttention | None = None
    linear: LinearHeads | None = None
    vision: VisionTower | None = None
    quantization: Quantization | None = None

    def of(self, letter: str) -> Self:
        """The shape as a block of ``letter`` has it: that of a model of such blocks alone where it is a variant."""
        changes = dict(self.variants).get(letter)
        if changes is None:
            return self
        blocks = base_letter(letter) * len(self.blocks)
        return replace(self, blocks=blocks, mtp_blocks="", variants=(), **dict(changes))

    @property
    def d_qk(self) -> int:
        """Elements of one head's query and key."""
        latent = self.latent_attention
        return self.head_dim or 0 if latent is None else latent.d_nope + latent.d_rope

    @property
    def d_v(self) -> int:
        """Elements of one head's value."""
        latent = self.latent_attention
        return self.value_dim or self.head_dim or 0 if latent is None else latent.d_v

    def document_length(self, sequence: int) -> int:
        """Tokens of the longest document in a sequence of that many."""
        return min(self.document or sequence, sequence)
