"""The figures of a language model's shape, whichever file they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tracelens.dtypes import DType

Norm: TypeAlias = Literal["rms", "layer"]


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
class ModelShape:
    """Everything that the operations of a model follow from, per whole model: how it is divided is not part of it.

    ``blocks`` has one letter per residual block, each of a file in ``workload/blocks``: ``*`` attention, ``w``
    attention within ``window`` keys, ``M`` Mamba-2, ``-`` dense feed-forward, ``E`` mixture of experts. A transformer
    layer is two of them.

    ``head_dim`` is None where ``latent_attention`` says the head's sizes. ``gated``: a gate projection beside each
    feed-forward's up projection. ``positions``: rows of a learned position table, 0 for none. ``mtp_layers``: how many
    further tokens are predicted in training, each by ``mtp_blocks``. ``bidirectional``: attention has no causal mask.
    ``document``: tokens per document where a sequence packs several: attention stays within a document, and there are
    as many whole ones as come nearest. ``vocab`` 0: the model's tokens are no words, embedding and logits are left out.
    ``block_figures``: (table's name, figures) of block types that are not built in.
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
    document: int | None = None
    positions: int = 0
    dtype: DType | None = None
    mtp_layers: int = 0
    mtp_blocks: str = ""
    latent_attention: LatentAttention | None = None
    experts: Experts | None = None
    mamba: Mamba | None = None
    block_figures: tuple[tuple[str, Any], ...] = ()

    @property
    def d_qk(self) -> int:
        """Elements of one head's query and key."""
        latent = self.latent_attention
        return self.head_dim or 0 if latent is None else latent.d_nope + latent.d_rope

    @property
    def d_v(self) -> int:
        """Elements of one head's value."""
        return self.head_dim or 0 if self.latent_attention is None else self.latent_attention.d_v

    def document_length(self, sequence: int) -> int:
        """Tokens of the longest document in a sequence of that many."""
        return min(self.document or sequence, sequence)
