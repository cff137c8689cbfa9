"""How long the cores of attention take: prompts chunk by chunk, decoding as lines between knots. Times in fs.

Decoding is piecewise linear in the batch's summed context, with knots at powers of two of the mean context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from tracelens.backends import EstimateTable
from tracelens.perf_models import PerfModel
from tracelens.workload import batch_ops
from tracelens.workload.ranks.inference_rank import InferenceRank

#: New tokens, and those before them whose keys are cached.
Chunk: TypeAlias = tuple[int, int]
#: Above, tables would hold counts that do not come again.
LARGEST_TABULATED = 16_384
#: Points that span the range, at which a backend is asked whether it is linear.
_PROBES = ((64, 0), (2048, 0), (1, 4096), (512, 512), (16, 30000), (8192, 8192), (3, 1), (300, 100_000))


class Piece(NamedTuple):
    """A line between two knots: ``fixed + slope * context`` at a summed context of ``context`` keys."""

    fixed: int
    slope: int

    def at(self, context: int) -> int:
        return self.fixed + self.slope * context


class Prices(NamedTuple):
    """What a backend says of operations: in full, and as times in fs, of which a microsecond is ``unit``."""

    estimates: Callable[[Sequence[PerfModel]], EstimateTable]
    priced: Callable[[Sequence[PerfModel]], list[int]]
    unit: float


def knot_index(batch: int, context: int) -> int:
    """Between which knots a batch is with a summed context of ``context`` keys."""
    return ((context // batch) or 1).bit_length() - 1


def span(batch: int, index: int) -> tuple[int, int]:
    """From which summed context on, and up to which, ``knot_index`` is ``index``."""
    return (batch << index) if index else 0, batch << (index + 1)


class AttentionTimes:
    """The cores of one type of block on one device, ``queries`` tokens per sequence and decode step."""

    def __init__(self, rank: InferenceRank, letter: str, queries: int, prices: Prices) -> None:
        self._rank, self._letter, self._queries, self._prices = rank, letter, queries, prices
        self._knots: dict[int, list[int]] = {}
        self._pieces: dict[tuple[int, int], Piece] = {}
        self._chunks: dict[Chunk, int] = {}
        self._rates = self._linear_rates()

    def cores(self, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        return batch_ops.core_ops(self._rank, self._letter, b=b, new=new, past=past)

    def decoding(self, batch: int, index: int) -> Piece:
        """A decode step of ``batch`` sequences while the ``knot_index`` of their summed context is ``index``."""
        piece = self._pieces.get((batch, index))
        if piece is None:
            values = self._values(batch, index)
            low, high = batch << index, batch << (index + 1)
            slope = (values[index + 1] - values[index]) // (high - low)
            piece = self._pieces[batch, index] = Piece(values[index] - slope * low, slope)
        return piece

    def _values(self, batch: int, index: int) -> list[int]:
        """Times at the knots, up to the one after ``index``."""
        values = self._knots.get(batch)
        if values is None or index + 1 >= len(values):
            own, size = self._rank.own(batch), max(index + 2, 14)
            steps = [self.cores(b=own, new=self._queries, past=max((1 << i) - 1, 0)) for i in range(size)]
            priced = iter(self._prices.priced([model for models in steps for model in models]))
            values = self._knots[batch] = [sum(next(priced) for _ in models) for models in steps]
        return values

    def chunk(self, new: int, past: int) -> int:
        """``new`` tokens of one prompt after ``past``."""
        found = self._chunks.get((new, past))
        if found is None:
            models = self.cores(b=1, new=new, past=past)
            if self._rates is None:
                found = sum(self._prices.priced(models))
            else:
                compute, memory = self._rates
                found = sum(round(max((m.flops() or 0) * compute, (m.hbm_bytes() or 0) * memory)) for m in models)
            if self._rates is None or len(self._chunks) < LARGEST_TABULATED:
                self._chunks[new, past] = found
        return found

    def _linear_rates(self) -> tuple[float, float] | None:
        """Time per FLOP and per byte of a single core, where a backend answers the larger of two linear terms.

        Compute time is then proportional to the flops, memory time linear in new tokens and keys: no call of it per
        chunk is needed.
        """
        probes = [self.cores(b=1, new=new, past=past) for new, past in _PROBES]
        if any(len(models) != 1 for models in probes):
            return None
        models = [model for (model,) in probes]
        table = self._prices.estimates(models)
        flops = np.array([model.flops() or 0 for model in models], dtype=float)
        nbytes = np.array([model.hbm_bytes() or 0 for model in models], dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            per_flop = table.compute_us / flops
            per_byte = table.memory_us / nbytes
            largest = np.fmax(table.compute_us, table.memory_us)
            is_linear = (
                np.allclose(per_flop, per_flop[0], rtol=1e-9)
                and np.allclose(per_byte, per_byte[0], rtol=1e-9)
                and np.allclose(largest, table.time_us, rtol=1e-9)
            )
        return (float(per_flop[0]) * self._prices.unit, float(per_byte[0]) * self._prices.unit) if is_linear else None
