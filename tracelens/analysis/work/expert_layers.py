"""Rows that the token exchanges of a layer move, read from one another.

A dispatch is not told how many copies of a token it makes, and where its tokens are an FP8 pair not even their size. A
layer's combine is: it returns one row per copy, and the gradients of both come back in the same numbers.

On one rank these are the copies that its dispatch *receives*; over all ranks of a group as many are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.loaded_trace import Trace
from tracelens.lazy.records import dataclass
from tracelens.network.deepep import distinct
from tracelens.perf_models.communication.ep_comm import COMBINE, DISPATCH, EPComm
from tracelens.trace.table import RowColumn

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]
Lanes = npt.NDArray[np.int32]

#: Where the number of exchanged rows comes from.
RECORDED, OF_COMBINE, AS_GIVEN = "recorded", "rows of the layer's combine", "each token once: its copies are not known"
BY_MODEL = "bytes as its perf model counts them"
PADDED = "recorded: padded rows, or one per token and expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Means over calls: ``own`` tokens of the rank, ``rows`` of them with copies, ``sorted_rows`` one per expert."""

    own: float | None
    rows: float | None
    sorted_rows: float | None
    hidden: int | None
    topk: int | None
    experts: int | None
    is_padded: bool


class Layers:
    """Exchange ops joined into layers: by autograd's links, else a combine with the nearest dispatch before it."""

    def __init__(self, trace: Trace, rows: Ints, models: Sequence[EPComm], model: Ints) -> None:
        """``model``: which of the ``models`` each of these rows has."""
        is_dispatch = np.array([m.phase == DISPATCH for m in models], bool)
        is_combine = np.array([m.phase == COMBINE for m in models], bool)
        sorts = np.array([m.per_expert for m in models], bool)
        given = np.array([m.tokens for m in models], np.float64)
        own_tokens = _column(m.own_tokens for m in models)
        rows_moved = _column(m.rows for m in models)
        self._known = np.stack(
            [
                np.where(is_dispatch, given, own_tokens),
                np.where(is_combine & ~sorts, given, rows_moved),
                np.where(is_combine & sorts, given, np.nan),
                *(_column(getattr(m, name) for m in models) for name in ("hidden", "topk", "experts", "buffer_rows")),
            ]
        )[:, model]
        # Views of its lines
        self.own, self.rows, self.sorted_rows, self.hidden, self.topk, self.experts, self.buffer = self._known
        is_dispatch, is_combine = is_dispatch[model], is_combine[model]
        place: RowColumn = np.full(len(trace.table), -1, np.int32)
        place[rows] = np.arange(len(rows))
        forward = trace.tree.forward[rows]
        ahead = np.where(forward >= 0, place[forward], -1)
        linked = (ahead >= 0) & (is_dispatch != is_dispatch[ahead])
        self._spread(np.flatnonzero(linked), ahead[linked])
        lane = trace.table.lane[rows]
        order = np.lexsort((trace.table.start_ns[rows], lane))
        order = order[(is_dispatch | is_combine)[order]]
        self._join(self._join_next(order, is_dispatch, lane), is_dispatch, lane)
        self._spread(np.flatnonzero(linked), ahead[linked])
        self.rows[self.rows == self.buffer] = np.nan

    def _join_next(self, order: Ints, is_dispatch: Bools, lane: Lanes) -> Ints:
        """Joins dispatches with the combines that come right after them, again and again; what is left of ``order``."""
        while True:
            one, other = order[:-1], order[1:]
            fits = is_dispatch[one] & ~is_dispatch[other] & (lane[one] == lane[other]) & self._fit(one, other)
            if not fits.any():
                return order
            self._spread(one[fits], other[fits])
            order = order[~(np.append(fits, False) | np.append(False, fits))]

    def _join(self, order: Ints, is_dispatch: Bools, lane: Lanes) -> None:
        waiting: dict[int, list[int]] = {}
        for at in order.tolist():
            calls = waiting.setdefault(int(lane[at]), [])
            if is_dispatch[at]:
                calls.append(at)
                continue
            fits = np.flatnonzero(self._fit(np.array(calls, np.int64), np.array([at])))
            if len(fits):
                self._spread(np.array([calls.pop(fits[-1])]), np.array([at]))

    def _fit(self, one: Ints, other: Ints) -> Bools:
        """Where nothing that is known of both differs."""
        a, b = self._known[:, one], self._known[:, other]
        found: Bools = ((a == b) | np.isnan(a) | np.isnan(b)).all(axis=0)
        return found

    def _spread(self, one: Ints, other: Ints) -> None:
        for to, of in ((one, other), (other, one)):
            known = self._known[:, to]
            self._known[:, to] = np.where(np.isnan(known), self._known[:, of], known)

    def of_calls(self, at: Ints) -> Routed:
        own, rows, sorted_rows = (_mean(column[at]) for column in (self.own, self.rows, self.sorted_rows))
        hidden, topk, experts = (_first(column[at]) for column in (self.hidden, self.topk, self.experts))
        return Routed(
            own=own, rows=rows, sorted_rows=sorted_rows, hidden=hidden, topk=topk, experts=experts,
            is_padded=rows is None and not np.isnan(self.buffer[at]).all(),
        )  # fmt: skip


def _column(values: Iterable[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _first(values: Floats) -> int | None:
    known = values[~np.isnan(values)]
    return int(known[0]) if len(known) else None


def with_rows(model: EPComm, routed: Routed, ranks: int | None, counts: tuple[int, ...] | None) -> tuple[EPComm, str]:
    """``model`` of a group of ``ranks`` with its layer's sizes and its rows, and where their number comes from.

    ``counts``: rows per rank or expert, where recorded; where they add up to the rows given, these are the copies.
    Where neither a router nor a group was recorded, nothing says that a combine's rows are copies of the tokens.
    """
    model = _with_sizes(model, routed, ranks)
    if model.counts_bytes:
        return model, BY_MODEL
    if model.phase == DISPATCH and counts and sum(counts) == model.tokens:
        return replace(model, rows=model.tokens), RECORDED
    is_padded = routed.is_padded or model.per_expert
    if model.rows is not None or (model.phase != DISPATCH and not is_padded):
        return model, RECORDED
    is_bare = ranks is None and model.topk is None and model.experts is None
    if routed.rows is not None and not is_bare:
        return replace(model, rows=routed.rows), OF_COMBINE
    return _evenly_routed(model, routed)


def _with_sizes(model: EPComm, routed: Routed, ranks: int | None) -> EPComm:
    model = replace(
        model, hidden=model.hidden or routed.hidden, topk=model.topk or routed.topk,
        experts=model.experts or routed.experts, ranks=ranks,
    )  # fmt: skip
    return replace(model, own_tokens=routed.own) if model.phase == COMBINE and model.own_tokens is None else model


def _evenly_routed(model: EPComm, routed: Routed) -> tuple[EPComm, str]:
    """With the copies that even routing makes, where the router is known."""
    own = model.tokens if model.phase == DISPATCH else model.own_tokens
    topk, source = model.topk, f"even routing: top-{model.topk}"
    if topk is None and routed.sorted_rows and own:
        topk = max(1, round(routed.sorted_rows / own))
        source = f"even routing: {routed.sorted_rows / own:.3g} experts per token"
    if own is None or not topk or not model.experts or not model.ranks or topk > model.experts:
        return model, AS_GIVEN if model.phase == DISPATCH else PADDED
    copies = float(distinct(model.ranks, model.experts, topk))
    return replace(model, rows=own * copies), f"{source} of {model.experts} experts over {model.ranks} ranks"
