"""Kernels that quantize what a collective exchanges: part of that exchange, which the other side does as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from tracelens.comparison.alignment.numbered_calls import Numbered, Row
from tracelens.comparison.alignment.work_roles import COMMUNICATION, STREAMING, call_role
from tracelens.comparison.places import QUANTIZED_A, QUANTIZED_B
from tracelens.comparison.sides import Call
from tracelens.lazy.patterns import lazy_pattern

#: An op, a kernel or the range around it that says so: ``dequantize``, ``encoder fp16``, ``cast_to_fp8``.
_QUANTIZES = lazy_pattern(
    r"(?i)quant(?!ile|ity|um)|(?:encod|decod|compress|cast)\w{0,8}?.?(?:(?:mx|nv|h|b)?fp|bfloat|float|u?int|e\dm)\d"
)

Bools = npt.NDArray[np.bool_]


def with_quantized(rows: Sequence[Row], one: Numbered, other: Numbered) -> list[Row]:
    """The rows, exchanges of both sides that one of them quantizes marked as such with what does that.

    Only kernels that one side alone has, and that stand right before or after a collective that the other side has too:
    the same exchange, done in another way.
    """
    marked: dict[int, str] = {}
    for side, which, how in ((one, attrgetter("a"), QUANTIZED_A), (other, attrgetter("b"), QUANTIZED_B)):
        beside = _beside(side, [(which(row), bool(row.a and row.b)) for row in rows])
        marked |= {number: how for number, row in enumerate(rows) if which(row) and beside[list(which(row))].all()}
    return [replace(row, how=marked[number]) if number in marked else row for number, row in enumerate(rows)]


def _quantizes(call: Call) -> bool:
    around = (call.module or "").rpartition("/")[2]
    return call_role(call) == STREAMING and any(map(_QUANTIZES.search, (around, call.name, call.kernel)))


def _beside(side: Numbered, rows: Iterable[tuple[tuple[int, ...], bool]]) -> Bools:
    """By call: whether it quantizes beside an exchange, or is that; ``rows``: calls, and whether both have them."""
    quantizes, exchanges, found = np.zeros((3, len(side.calls)), bool)
    for calls, both in rows:
        for call in calls:
            exchanges[call] = both and call_role(side.calls[call]) == COMMUNICATION
            quantizes[call] = not both and _quantizes(side.calls[call])
    for step in side.steps if quantizes.any() else ():
        sent = np.flatnonzero(exchanges[step])
        for begin, end in zip(*_runs(quantizes[step]), strict=True):
            near = sent[(sent == begin - 1) | (sent == end)]
            if len(near):
                found[step[begin:end]] = True
                found[step[near]] = True
    return found


def _runs(mask: Bools) -> tuple[list[int], list[int]]:
    """Where the runs of true values begin and end."""
    edges = np.diff(np.concatenate(([0], mask.view(np.int8), [0])))
    return np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
