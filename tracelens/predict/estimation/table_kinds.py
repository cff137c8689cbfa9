"""Tables that ``estimate --batch`` takes, of operations, measured layers and engines' kernels: their columns, the loads
of ranks, and their rows as column batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from tracelens.backends.base import ColumnBatch, Floats
from tracelens.backends.kernels.kernel_costs import KernelColumns, KernelTable
from tracelens.backends.roofline_and_tile import POWER_BASIS, POWER_FIGURES
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.gemm_tiles import EXPERT_BLOCKS, GEMMColumns, MoEColumns
from tracelens.errors import UsageError
from tracelens.files.data_table import COUNT, LARGEST, SIZE, Number, faults, is_blank, numbers, shown, text_codes, texts
from tracelens.predict.estimation.communication import require_columns
from tracelens.predict.workload.expert_placement import eplb
from tracelens.predict.workload.token_routing import expert_loads
from tracelens.types.records import Record, pd

#: Draws whose mean stands for the expectation of a random distribution, with fixed seeds.
DRAWS = 8
#: Balancing takes a hundred times longer than drawing, and leaves less to chance.
_BALANCED_DRAWS = 2
_BALANCED = "_eplb"


@functools.cache
def rank_load(distribution: str, tokens: int, experts: int, topk: int, ranks: int) -> tuple[float, ...]:
    """(rows, active experts, blocks of each of ``moe.BLOCKS``) of the most loaded rank, mean over draws."""
    draws = 1 if distribution == "balanced" else DRAWS
    total = np.zeros(2 + len(EXPERT_BLOCKS))
    for seed in range(draws):
        by_rank = expert_loads(distribution, tokens, experts, topk, ranks, seed).reshape(ranks, -1)
        counts = by_rank[by_rank.sum(axis=1).argmax()]
        blocks = [np.ceil(counts / rows).sum() for rows in EXPERT_BLOCKS]
        total += [counts.sum(), np.count_nonzero(counts), *blocks]
    return tuple((total / draws).tolist())


@functools.cache
def slot_load(distribution: str, tokens: int, experts: int, topk: int, ranks: int, slots: int) -> tuple[float, ...]:
    """As ``rank_load``; with a distribution ``..._eplb`` experts are replicated into ``slots`` and packed evenly."""
    if not distribution.endswith(_BALANCED):
        return rank_load(distribution, tokens, experts, topk, ranks)
    total = np.zeros(2 + len(EXPERT_BLOCKS))
    for seed in range(_BALANCED_DRAWS):
        counts = expert_loads(distribution.removesuffix(_BALANCED), tokens, experts, topk, 1, seed)
        placed = eplb(counts, slots=slots, ranks=ranks)
        busiest = int(placed.rank_loads(counts).argmax())
        copies = np.bincount(placed.expert_of_slot, minlength=experts)
        own = placed.expert_of_slot[placed.rank_of_slot == busiest]
        share = (counts / copies)[own]
        total += [share.sum(), np.minimum(share, 1).sum(), *(np.ceil(share / rows).sum() for rows in EXPERT_BLOCKS)]
    return tuple((total / _BALANCED_DRAWS).tolist())


_ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step")
_MLA = ("batch_size", "isl", "num_heads", "step")
_FLAG = replace(SIZE, most=1.0)
#: A size that a row may leave open.
_OPEN = replace(SIZE, blank=0.0)
_ONE = replace(COUNT, blank=1.0)
_RANKS = replace(_ONE, most=1e6)
#: Sizes by column; what is not named is a count.
_SIZES = {
    "step": SIZE,
    "num_tokens": replace(COUNT, most=1e8),
    **dict.fromkeys(("num_experts", "num_slots", "topk", "moe_ep_size"), replace(COUNT, most=1e6)),
}
#: DeepSeek-V3's latent attention, whose tables name no sizes: 128 + 64 and 128 per head for new tokens; absorbed into
#: the projections around it, rows of 512 + 64 of which 512 are the value.
_MLA_HEAD, _MLA_ROW = (192.0, 128.0), (576.0, 512.0)
_MOE = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
#: The one layer of the measured tables without a gate: with a third matrix it would stream weights above the HBM peak.
_UNGATED_HIDDEN = 2688
#: Columns of tables that hold measured layers of inference engines, as aiconfigurator publishes them.
_OF_LAYERS = ("framework", "version", "kernel_source", "latency", "latency_ms")


class TableKind(Record, frozen=True, kw_only=True):
    """How a table of one kind is read: its columns, the one that names the type, and rows to a column batch.

    ``optional``: columns that may be absent; ``apart``: those of text in which the rows of one batch are alike.
    """

    needed: tuple[str, ...]
    dtype: str
    columns: Callable[[pd.DataFrame, str], ColumnBatch]
    optional: Mapping[str, Number] = msgspec.field(default_factory=dict)
    apart: tuple[str, ...] = ()


def size_faults(table: pd.DataFrame, kind: TableKind, name: str = "") -> list[str]:
    """Per row what is wrong with its sizes, "" where nothing is; ``name`` is the file's."""
    return faults(table, _size_columns(table, kind), name)


def _size_columns(table: pd.DataFrame, kind: TableKind) -> Mapping[str, Number]:
    needed = {name: _SIZES.get(name, COUNT) for name in kind.needed}
    return needed | {name: number for name, number in kind.optional.items() if name in table}


def with_sizes(table: pd.DataFrame, kind: TableKind) -> pd.DataFrame:
    """``table`` whose sizes are numbers, NaN where ``size_faults`` names a reason."""
    return table.assign(**{name: numbers(table, name, number) for name, number in _size_columns(table, kind).items()})


def _numbers(table: pd.DataFrame, *names: str) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    return [table[name].to_numpy(np.float64) for name in names]


def _optional(table: pd.DataFrame, name: str, absent: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return table[name].to_numpy(np.float64) if name in table else np.full(len(table), absent)


def are_layers(table: pd.DataFrame) -> bool:
    """Whether rows are linear layers of an inference engine, as measured tables hold them; else products alone."""
    return any(name in table for name in _OF_LAYERS)


def _gemm_columns(table: pd.DataFrame, precision: str) -> GEMMColumns:
    m, n, k = _numbers(table, "m", "n", "k")
    b = _optional(table, "b", 1.0) * _optional(table, "batch", 1.0)
    return replace(GEMMColumns.of(precision, m, n, k, b), as_layer=are_layers(table))


def _grouped_columns(table: pd.DataFrame, precision: str) -> GEMMColumns:
    """``rows`` of every group ("128,4096,0,77"), or ``m`` in all, divided evenly among ``groups``."""
    n, k = _numbers(table, "n", "k")
    given = table["rows"].tolist() if "rows" in table else [None] * len(table)
    m, groups = _optional(table, "m", 0.0).tolist(), _optional(table, "groups", 1.0).tolist()
    rows = [
        evenly(int(total), int(count)) if is_blank(text) else group_rows(str(text))
        for text, total, count in zip(given, m, groups, strict=True)
    ]
    return GEMMColumns.ragged(precision, rows, n, k)


def evenly(m: int, groups: int) -> list[int]:
    """``m`` rows divided among groups."""
    if m < 1:
        raise UsageError("a grouped GEMM needs the rows of each group (rows) or of all groups (m)")
    return [m // groups + (i < m % groups) for i in range(groups)]


def group_rows(text: str) -> list[int]:
    """Rows of each group. UsageError for a text that names none."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--rows takes whole numbers separated by commas, got {shown(text)}") from None
    if min(found) < 0 or not 0 < sum(found) <= LARGEST:
        raise UsageError("--rows needs at least one row, and no value below 0")
    return found


def _sdpa_columns(table: pd.DataFrame, precision: str) -> AttentionColumns:
    """The attention kernel alone; sizes of the keys that are left open are those of the queries."""
    s, heads, d = _numbers(table, "s_q", "q_heads", "d_qk")
    b, causal, latent = (_optional(table, *pair) for pair in (("b", 1.0), ("causal", 1.0), ("latent", 0.0)))
    usual = {"s_kv": s, "kv_heads": heads, "d_v": d, "window": np.full(len(table), np.inf)}
    open_ = {name: _optional(table, name, 0.0) for name in usual}
    keys, kv_heads, d_v, window = (np.where(open_[name] > 0, open_[name], same) for name, same in usual.items())
    which = texts(table, "pass", "forward")[0] if "pass" in table else "forward"
    if which not in ("forward", "backward"):
        raise UsageError.unknown("pass", which, ("forward", "backward"))
    gradient, latent_row = which == "backward", bool(latent[0])
    if latent_row and (gradient or ((s > 1) | (kv_heads > 1) | (d_v > d)).any()):
        raise UsageError("--latent needs --s-q 1, --kv-heads 1 and --d-v at most --d-qk (decoding with one key head)")
    for at in np.flatnonzero((keys < s) | (heads % kv_heads != 0))[:1]:
        raise UsageError(
            f"{s[at]:g} queries over {keys[at]:g} keys with {heads[at]:g} query and {kv_heads[at]:g} key heads: give "
            "at least as many keys as queries, and a multiple of the key heads as query heads"
        )
    return AttentionColumns(
        precision=precision, b=b, s=s, past=keys - s, q_heads=heads, kv_heads=kv_heads, d_qk=d, d_v=d_v, window=window,
        causal=causal, value_in_key=latent_row, gradient=gradient,
    )  # fmt: skip


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
    given = texts(table, "distribution", "balanced") if "distribution" in table else ["balanced"] * len(table)
    tp, ep = _optional(table, "moe_tp_size", 1.0), _optional(table, "moe_ep_size", 1.0)
    values = zip(given, *(table[name] for name in ("num_tokens", "num_experts", "topk")), ep.tolist(), strict=True)
    loads = np.array([rank_load(d, int(t), int(e), int(k), int(p)) for d, t, e, k, p in values])
    loads = loads.reshape(len(table), -1)
    tokens, hidden, inter = _numbers(table, "num_tokens", "hidden_size", "inter_size")
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
        blocks={rows: loads[:, 2 + i] for i, rows in enumerate(EXPERT_BLOCKS)},
        as_layer=True,
    )


_WINDOW, _BATCHED = {"window_size": _OPEN}, {"b": _ONE, "batch": _ONE}
KINDS: Mapping[str, TableKind] = {
    "gemm": TableKind(needed=("m", "n", "k"), dtype="gemm_dtype", columns=_gemm_columns, optional=_BATCHED),
    **dict.fromkeys(
        ("context-attention", "generation-attention"),
        TableKind(needed=_ATTENTION, dtype="kv_cache_dtype", columns=_attention_columns, optional=_WINDOW),
    ),
    "context-mla": TableKind(
        needed=_MLA, dtype="kv_cache_dtype", columns=functools.partial(_latent_columns, absorbed=False)
    ),
    "generation-mla": TableKind(
        needed=_MLA, dtype="kv_cache_dtype", columns=functools.partial(_latent_columns, absorbed=True)
    ),
    "moe": TableKind(
        needed=_MOE, dtype="moe_dtype", columns=moe_columns,
        optional={"gated": replace(_FLAG, blank=1.0), "moe_tp_size": _RANKS, "moe_ep_size": _RANKS},
    ),
    "grouped-gemm": TableKind(
        needed=("n", "k"), dtype="gemm_dtype", columns=_grouped_columns, optional={"m": _OPEN, "groups": _ONE}
    ),
    "sdpa": TableKind(
        needed=("s_q", "q_heads", "d_qk"), dtype="kv_cache_dtype", columns=_sdpa_columns, apart=("pass", "latent"),
        optional={
            "b": _ONE, "s_kv": _OPEN, "kv_heads": _OPEN, "d_v": _OPEN, "window": _OPEN,
            "causal": replace(_FLAG, blank=1.0), "latent": replace(_FLAG, blank=0.0),
        },
    ),
}  # fmt: skip
#: What names the kernels of a row, beside the table's own cases.
KERNEL = ("framework", "version", "kernel_source")
#: Libraries that ``--library`` chooses from.
LIBRARIES = ("vllm", "sglang", "trtllm")
_ROUTED = ("num_tokens", "num_experts", "topk", "moe_ep_size", "num_slots")


def case_columns(table: KernelTable, frame: pd.DataFrame) -> list[str]:
    """The columns of a frame that choose constants."""
    return [name for name in (*KERNEL, *table.cases) if name in frame]


def batches(
    table: KernelTable, frame: pd.DataFrame, rows: np.ndarray[Any, np.dtype[np.intp]], library: str | None = None
) -> Iterator[tuple[np.ndarray[Any, np.dtype[np.intp]], KernelColumns]]:
    """Rows that are alike in their case, and their columns. ``library``: for rows that name no framework."""
    part = frame.iloc[rows]
    named = {name: text_codes(part, name) for name in case_columns(table, frame)}
    meant: dict[str, Callable[[str], str]] = dict.fromkeys(
        _typed(table, named), lambda text: table.type_named(text) or text
    )
    meant["kernel_source"] = table.kernel
    alike = np.zeros(len(part), np.intp)
    for codes, found in named.values():
        _, alike = np.unique(alike * len(found) + codes, return_inverse=True)
    sizes, order = _sizes(table, part), np.argsort(alike, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(alike[order])) + 1) if len(order) else ():
        cells = {name: found[codes[at[0]]] for name, (codes, found) in named.items()}
        case = {name: meant.get(name, str)(cell) for name, cell in cells.items() if cell}
        if library is not None:
            case.setdefault("framework", library)
        own = {name: values[at] for name, values in sizes.items()}
        yield rows[at], KernelColumns(precision="bf16", table=table, case=tuple(sorted(case.items())), sizes=own)


def _typed(table: KernelTable, columns: Iterable[str]) -> list[str]:
    """The columns that name types."""
    return [name for name in columns if name in table.cases and name.endswith(("dtype", "_type"))]


def _type_faults(table: KernelTable, frame: pd.DataFrame) -> list[str]:
    found = [""] * len(frame)
    for column in _typed(table, case_columns(table, frame)):
        codes, given = text_codes(frame, column)
        unknown = np.array([bool(text) and table.type_named(text) is None for text in given])
        for row in np.flatnonzero(unknown[codes]).tolist():
            found[row] = f"there are no estimates for type {given[codes[row]]!r} in {column}"
    return found


def kernel_size_faults(table: KernelTable, frame: pd.DataFrame) -> list[str]:
    """Per row what is wrong with its sizes and types, "" where nothing is. UsageError where a column is missing."""
    require_columns(frame, table.name, table.sizes)
    optional = {column: replace(COUNT, blank=usual) for column, usual in table.optional.items() if column in frame}
    found = faults(frame, {column: _SIZES.get(column, COUNT) for column in table.sizes} | optional)
    found = [size or kind for size, kind in zip(found, _type_faults(table, frame), strict=True)]
    if not table.loads:
        return found
    for row, load in enumerate(_load_arguments(frame)):
        if not found[row]:
            try:
                slot_load(*load)
            except UsageError as error:
                found[row] = str(error)
    return found


def _sizes(table: KernelTable, part: pd.DataFrame) -> Mapping[str, Floats]:
    sizes = {name: numbers(part, name, _SIZES.get(name, COUNT)) for name in table.sizes}
    for name, usual in table.optional.items():
        number = replace(COUNT, blank=usual)
        sizes[name] = numbers(part, name, number) if name in part else np.full(len(part), usual)
    if table.described is not None:
        name, meant = table.described
        codes, found = text_codes(part, name) if name in part else (np.zeros(len(part), np.intp), [""])
        sizes |= {size: values[codes] for size, values in meant(found).items()}
    if table.loads:
        # of the most loaded rank
        names = ("rows", "active", *(f"blocks_{rows}" for rows in EXPERT_BLOCKS))
        loads = np.array([slot_load(*load) for load in _load_arguments(part)]).reshape(len(part), len(names))
        sizes |= dict(zip(names, loads.T, strict=True))
    return sizes


def _load_arguments(part: pd.DataFrame) -> Iterator[tuple[str, int, int, int, int, int]]:
    """What ``slot_load`` takes, per row; sizes that are no numbers are 0."""
    rows = len(part)
    given = texts(part, "distribution", "balanced") if "distribution" in part else ["balanced"] * rows
    counts = {name: np.nan_to_num(numbers(part, name, _SIZES.get(name, COUNT))) for name in _ROUTED if name in part}
    tokens, experts, topk = (counts[name].astype(int).tolist() for name in _ROUTED[:3])
    ranks = counts["moe_ep_size"].astype(int).tolist() if "moe_ep_size" in counts else [1] * rows
    slots = counts["num_slots"].astype(int).tolist() if "num_slots" in counts else experts
    return zip(given, tokens, experts, topk, ranks, slots, strict=True)


def with_power(found: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """``found`` with the columns of watts and mJ; ours ends in ``_est`` where the table has one of that name."""
    return found.assign(
        **{f"{name}_est" if name in found else name: columns[name] for name in (*POWER_FIGURES, POWER_BASIS)}
    )
