"""Which of a serving step's attention calls see a sliding window, where the engine records none.

vLLM's attention op records neither its layer nor its window. A step calls attention once per layer, in order: where
the calls' number, heads and head width are those of a model with windows, that model says which layers have one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.reading.engine_steps import annotated_rows
from tracelens.perf_models.attention.inference_attention import (
    SUMS,
    WINDOW,
    AttentionSums,
    InferenceAttention,
    LayerWindow,
)
from tracelens.trace.table import RowColumn, TraceTable

if TYPE_CHECKING:
    from tracelens.workload import ModelConfig


def layer_windows(
    table: TraceTable, catalog: Catalog, rows: RowColumn, model: ModelConfig | None
) -> dict[int, tuple[tuple[str, LayerWindow], ...]]:
    """Row of an attention call -> the attribute that its binding finds its window in; no rows without windows.

    ``model`` is the one that the caller named; else every model of the package with windows is tried.
    """
    codes = np.unique(table.name[rows])
    asking = [code for code in codes.tolist() if catalog.is_per_step(table.names[code])]
    calls = rows[np.isin(table.name[rows], asking)] if asking else rows[:0]
    if not len(calls):
        return {}
    calls = calls[np.argsort(table.start_ns[calls], kind="stable")]
    step = annotated_rows(table, catalog, calls)
    kinds = list(zip(table.name[calls].tolist(), table.signature[calls].tolist(), strict=True))
    shape_of = {kind: _shape(table, catalog, row) for kind, row in zip(kinds, calls.tolist(), strict=True)}
    shapes = [shape_of[kind] for kind in kinds]
    known = np.flatnonzero((step >= 0) & np.array([shape is not None for shape in shapes], bool))
    order = known[np.argsort(step[known], kind="stable")]
    found: dict[int, tuple[tuple[str, LayerWindow], ...]] = {}
    for _, group in groupby(order.tolist(), key=lambda at: int(step[at])):
        inside = list(group)
        layers = _letters(len(inside), {shapes[at] for at in inside}, model)
        if layers is not None:
            letters, window = layers
            found |= {
                int(calls[at]): ((WINDOW, window),)
                for at, letter in zip(inside, letters, strict=True)
                if letter == _WINDOWED
            }
    return found


_WINDOWED = "w"


def _shape(table: TraceTable, catalog: Catalog, row: int) -> tuple[int, int, int] | None:
    """Query heads, key-value heads and head width of a call whose window was not recorded."""
    signature = table.signature_of(row)
    empty = replace(signature, attributes=(*signature.attributes, (SUMS, AttentionSums())))
    model = catalog.read(empty).model
    if not isinstance(model, InferenceAttention) or model.window is not None:
        return None
    return model.q_heads, model.kv_heads, model.d_qk


def _letters(
    calls: int, shapes: set[tuple[int, int, int] | None], named: ModelConfig | None
) -> tuple[str, LayerWindow] | None:
    """A letter per layer, and the window of those with one; None where no model fits, or several that differ."""
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None:
        return None
    from tracelens.workload import ModelConfig  # 20 modules, and most traces have no such call

    heads, kv_heads, width = shape
    fitting = {}
    for config in (named,) if named is not None else ModelConfig.with_windows():
        letters = "".join(letter for letter in config.blocks if letter in "*w")
        ranks = config.q_heads // heads if heads else 0
        fits = ranks >= 1 and (config.q_heads, config.kv_heads) == (ranks * heads, ranks * kv_heads)
        if config.window is not None and len(letters) == calls and config.head_dim == width and fits:
            fitting[letters, config.window] = LayerWindow(keys=config.window, model=config.label)
    if len(fitting) != 1:
        return None
    (letters, _), window = fitting.popitem()
    return letters, window
