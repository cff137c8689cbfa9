"""Kinds of tables of measured layers: their columns, and their rows as column batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.backends.column_batch import ColumnBatch
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.expert_layer import BLOCKS, MoEColumns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.estimation.rank_loads import rank_load
from tracelens.files.data_table import COUNT, SIZE, Number, faults, numbers
from tracelens.lazy.records import dataclass

if TYPE_CHECKING:
    import pandas as pd

_ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step")
_MLA = ("batch_size", "isl", "num_heads", "step")
#: Sizes by column; what is not named is a count.
_SIZES = {
    "step": SIZE, "window_size": replace(SIZE, blank=0.0), "gated": replace(SIZE, most=1.0, blank=1.0),
    "num_tokens": replace(COUNT, most=1e8), "num_experts": replace(COUNT, most=1e6), "topk": replace(COUNT, most=1e6),
    "moe_tp_size": replace(COUNT, most=1e6), "moe_ep_size": replace(COUNT, most=1e6),
}  # fmt: skip
#: DeepSeek-V3's latent attention, whose tables name no sizes: 128 + 64 and 128 per head for new tokens; absorbed into
#: the projections around it, rows of 512 + 64 of which 512 are the value.
_MLA_HEAD, _MLA_ROW = (192.0, 128.0), (576.0, 512.0)
_MOE = (
    "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "distribution",
)  # fmt: skip
#: The one layer of the measured tables without a gate: with a third matrix it would stream weights above the HBM peak.
_UNGATED_HIDDEN = 2688


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a table of one kind is read: its columns, the one that names the type, and rows to a column batch."""

    needed: tuple[str, ...]
    dtype: str
    columns: Callable[[pd.DataFrame, str], ColumnBatch]


def size_faults(table: pd.DataFrame, kind: Kind, name: str = "") -> list[str]:
    """Per row what is wrong with its sizes, "" where nothing is; ``name`` is the file's."""
    return faults(table, {each: _of_column(each) for each in _size_columns(table, kind)}, name)


def _size_columns(table: pd.DataFrame, kind: Kind) -> list[str]:
    optional = [name for name in ("window_size", "gated") if name in table]
    return [name for name in (*kind.needed, *optional) if name != "distribution"]


def _of_column(column: str) -> Number:
    return _SIZES.get(column, COUNT)


def with_sizes(table: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """``table`` whose sizes are numbers, NaN where ``size_faults`` names a reason."""
    return table.assign(**{name: numbers(table, name, _of_column(name)) for name in _size_columns(table, kind)})


def _numbers(table: pd.DataFrame, *names: str) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    return [table[name].to_numpy(np.float64) for name in names]


def _gemm_columns(table: pd.DataFrame, precision: str) -> GEMMColumns:
    m, n, k = _numbers(table, "m", "n", "k")
    return replace(GEMMColumns.of(precision, m, n, k), as_layer=True)


def _attention_columns(table: pd.DataFrame, precision: str) -> AttentionColumns:
    """Rows of measured attention tables: causal, head dimension the same for keys and values; window 0 is none."""
    b, s, heads, kv_heads, d, past = _numbers(table, *_ATTENTION)
    window = table["window_size"].fillna(0).to_numpy(np.float64) if "window_size" in table else np.zeros(len(table))
    return AttentionColumns(
        precision=precision, b=b, s=s, past=past, q_heads=heads, kv_heads=kv_heads, d_qk=d, d_v=d,
        window=np.where(window > 0, window, np.inf), causal=np.ones(len(table)), as_layer=True,
    )  # fmt: skip


def _latent_columns(table: pd.DataFrame, precision: str, *, absorbed: bool) -> AttentionColumns:
    b, s, heads, past = _numbers(table, *_MLA)
    one, (d_qk, d_v) = np.ones(len(table)), _MLA_ROW if absorbed else _MLA_HEAD
    return AttentionColumns(
        precision=precision, b=b, s=s, past=past, q_heads=heads, kv_heads=one if absorbed else heads, d_qk=d_qk * one,
        d_v=d_v * one, window=one * np.inf, causal=one, as_layer=True, value_in_key=absorbed,
    )  # fmt: skip


def moe_columns(table: pd.DataFrame, precision: str) -> MoEColumns:
    """Rows of measured MoE tables (``num_tokens``, ``hidden_size``, ``moe_ep_size``, ...); ``gated`` where given."""
    names = ("distribution", "num_tokens", "num_experts", "topk", "moe_ep_size")
    values = zip(*(table[name] for name in names), strict=True)
    loads = np.array([rank_load(str(d), int(t), int(e), int(k), int(p)) for d, t, e, k, p in values])
    loads = loads.reshape(len(table), -1)
    tokens, hidden, inter, tp, ep = _numbers(
        table, "num_tokens", "hidden_size", "inter_size", "moe_tp_size", "moe_ep_size"
    )
    gated = table["gated"].to_numpy(np.float64) if "gated" in table else (hidden != _UNGATED_HIDDEN).astype(np.float64)
    return MoEColumns(
        precision=precision,
        tokens=tokens,
        hidden=hidden,
        ffn=inter / tp,
        gated=gated,
        ranks=ep,
        topk=table["topk"].to_numpy(np.float64),
        local_experts=table["num_experts"].to_numpy(np.float64) / ep,
        rows=loads[:, 0],
        active=loads[:, 1],
        blocks={rows: loads[:, 2 + i] for i, rows in enumerate(BLOCKS)},
        as_layer=True,
    )


KINDS: Mapping[str, Kind] = {
    "gemm": Kind(needed=("m", "n", "k"), dtype="gemm_dtype", columns=_gemm_columns),
    "context-attention": Kind(needed=_ATTENTION, dtype="kv_cache_dtype", columns=_attention_columns),
    "generation-attention": Kind(needed=_ATTENTION, dtype="kv_cache_dtype", columns=_attention_columns),
    "context-mla": Kind(
        needed=_MLA, dtype="kv_cache_dtype", columns=functools.partial(_latent_columns, absorbed=False)
    ),
    "generation-mla": Kind(
        needed=_MLA, dtype="kv_cache_dtype", columns=functools.partial(_latent_columns, absorbed=True)
    ),
    "moe": Kind(needed=_MOE, dtype="moe_dtype", columns=moe_columns),
}
