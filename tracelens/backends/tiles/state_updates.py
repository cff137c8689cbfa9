"""Linear attention by the constants of engines' kernels: gated DeltaNet and Kimi delta attention.

The fastest measured kernel counts. A gradient is two such calls: each product of the forward has two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.backends.column_batch import Priced, pricer
from tracelens.backends.kernels.kernel_columns import KernelColumns
from tracelens.backends.kernels.kernel_costs import KernelTable
from tracelens.backends.kernels.tile_model_kernels import GDN, KDA
from tracelens.dtypes import DType
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.attention.linear_attention import LinearAttention
from tracelens.perf_models.work_columns import WorkColumns

#: Table, and kernels that stand for its state updates (not for its convolutions), by what a token does to the state.
_TABLES: Mapping[str, tuple[KernelTable, str]] = {"delta": (GDN, "gated_delta_rule"), "channel_delta": (KDA, "kda")}
#: Tokens of a sequence up to which its state is updated one by one: a decode step and its drafts.
_STEP_TOKENS = 8


@pricer("linear-attention")
def state_updates(work: WorkColumns, device: HardwareSpec) -> Priced:
    """Calls by rule and phase; without a number of sequences all tokens are one. NaN for rules nobody measured."""
    models: tuple[Any, ...] = work.models
    batches: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, model in enumerate(models):
        if model.rule in _TABLES and model.dtype in (DType.BF16, DType.FP16):
            is_step = model.sequences is not None and model.tokens <= _STEP_TOKENS * model.sequences
            batches[model.rule, "generation" if is_step else "context"].append(row)
    parts = []
    for (rule, phase), rows in batches.items():
        table, kernel = _TABLES[rule]
        columns = np.array([_sizes(models[row]) for row in rows], np.float64).T
        batch = KernelColumns(
            precision="bf16",
            table=table,
            case=(("kernel_source", kernel), ("phase", phase)),
            sizes=dict(zip(table.sizes, columns, strict=True)),
        )
        parts.append((rows, batch.price(device)))
    found = Priced.summed(len(work), parts)
    calls = np.array([2.0 if model.gradient else 1.0 for model in models])
    return replace(found, time_us=np.maximum(found.time_us * calls, found.peak_us * calls))


def _sizes(model: LinearAttention) -> tuple[float, ...]:
    """As the tables' ``sizes``: sequences, tokens of each, key heads, value heads."""
    sequences = model.sequences or 1
    return sequences, model.tokens / sequences, model.k_heads, model.d_k, model.v_heads, model.d_v
