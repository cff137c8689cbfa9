"""What the token exchanges of a trace move: rows by the layer's ops, and the share of them that leaves the rank.

A dispatch is not told how many copies of a token it makes, and where its tokens are an FP8 pair not even their size. A
layer's combine is: it returns one row per copy, and the gradients of both come back in the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.analysis.calls import OpReadings
from tracelens.analysis.catalog import Reading
from tracelens.analysis.remote_share import RemoteShare, even_routing, remote_share
from tracelens.analysis.trace import Trace
from tracelens.backends.collectives import exchange_us, fabric, notification_us
from tracelens.backends.system import System
from tracelens.errors import UsageError
from tracelens.network.deepep import DEFAULT_SMS, Exchanges, distinct
from tracelens.perf_models import EPComm
from tracelens.perf_models.ep_comm import COMBINE, DISPATCH

Floats = npt.NDArray[np.float64]

#: Where the number of exchanged rows comes from.
RECORDED, OF_COMBINE, AS_GIVEN = "recorded", "rows of the layer's combine", "each token once: its copies are not known"
PADDED = "recorded: padded rows, or one per token and expert"
NO_SHARE = "unknown: the ranks of the exchange were not recorded (--ep-size)"
NO_SIZE = "its tokens were not recorded (an FP8 pair), and no combine of the same layer says their size"

# The first number among the template arguments, after at most one type or flag
_INTRANODE, _INTERNODE = (
    re.compile(rf"\bdeep_ep::{where}::\w+<(?:[^<>,\d][^<>,]*, ?)?(\d+)\b") for where in ("intranode", "internode")
)
# NUM_MAX_NVL_PEERS of DeepEP's csrc/kernels/configs.cuh
_RANKS_OF_A_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Of one distinct exchange op: the bytes of every row, which share leaves the rank, and where both come from.

    ``deepep_us``: the time that DeepEP's kernels are estimated to take on this device's standard node; None where no
    measurement of them carries over, or where the router is not known.
    """

    exchanged_bytes: float | None
    copies: float | None
    rows_from: str
    share: RemoteShare
    deepep_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroup:
    """What is known of the expert-parallel group: this rank, the group's ranks, how many they are."""

    rank: int | None
    members: tuple[int, ...]
    size: int | None


def ranks_of_kernels(names: Iterable[str]) -> int | None:
    """Ranks that DeepEP's kernels are built for, a template argument of theirs; None unless all say the same."""
    sizes = set()
    for name in names:
        if "deep_ep::int" not in name:
            continue
        if match := _INTRANODE.search(name):
            sizes.add(int(match[1]))
        elif match := _INTERNODE.search(name):
            sizes.add(_RANKS_OF_A_NODE * int(match[1]))
    return sizes.pop() if len(sizes) == 1 else None


def exchanges_of(
    trace: Trace, readings: OpReadings, group: ExpertGroup, system: System | None
) -> tuple[OpReadings, Mapping[int, Exchange]]:
    """``readings`` with what their exchanges move, and reading code -> exchange.

    An exchange whose tokens' size nothing tells loses its model.
    """
    codes = {code: r.model for code, r in enumerate(readings.readings) if isinstance(r.model, EPComm)}
    if not codes:
        return readings, {}
    at = np.isin(readings.code, list(codes))
    code = readings.code[at]
    layers = _Layers(trace, readings.rows[at].astype(np.int64), [codes[c] for c in code.tolist()])
    found: dict[int, Exchange] = {}
    made: dict[int, Reading] = {}
    for each, model in codes.items():
        reading = readings.readings[each]
        routed = layers.of_calls(np.flatnonzero(code == each))
        if model.hidden is None and routed.hidden is None:
            made[each] = replace(reading, model=None, note=NO_SIZE)
            continue
        signature = trace.table.signature_of(int(readings.example[each]))
        share = remote_share(model, signature, rank=group.rank, members=group.members, ep_size=group.size)
        ranks = _size(signature.attribute("Group size")) or model.ranks or group.size
        if share is None and ranks is not None:
            share = even_routing(ranks)
        model = replace(
            model, hidden=model.hidden or routed.hidden, topk=model.topk or routed.topk,
            experts=model.experts or routed.experts, ranks=ranks,
        )  # fmt: skip
        model, rows_from = _with_rows(model, routed)
        if share is None:
            model = replace(model, remote_share=None)
        elif model.remote_share == 1:
            model = replace(model, remote_share=share.share)
        made[each] = replace(reading, model=model)
        found[each] = Exchange(
            exchanged_bytes=model.exchanged_bytes(), copies=model.copies, rows_from=rows_from,
            share=share or RemoteShare(share=float("nan"), source=NO_SHARE),
            deepep_us=_deepep_us(model, signature.name, system),
        )  # fmt: skip
    return readings.with_readings(made), found


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Routed:
    """Means over calls: ``own`` tokens of the rank, ``rows`` of them with copies, ``sorted_rows`` one per expert."""

    own: float | None
    rows: float | None
    sorted_rows: float | None
    hidden: int | None
    topk: int | None
    experts: int | None
    is_padded: bool


class _Layers:
    """Exchange ops joined into layers: by autograd's links, else a combine with the nearest dispatch before it."""

    def __init__(self, trace: Trace, rows: npt.NDArray[np.int64], models: list[EPComm]) -> None:
        self._rows, self._models = rows, models
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
        )
        # Views of its lines
        self.own, self.rows, self.sorted_rows, self.hidden, self.topk, self.experts, self.buffer = self._known
        place = np.full(len(trace.table), -1, np.int64)
        place[rows] = np.arange(len(rows))
        forward = trace.tree.forward[rows]
        ahead = np.where(forward >= 0, place[forward], -1)
        linked = (ahead >= 0) & (is_dispatch != is_dispatch[ahead])
        self._spread(np.flatnonzero(linked), ahead[linked])
        order = np.lexsort((trace.table.start_ns[rows], trace.table.lane[rows]))
        self._join(order[(is_dispatch | is_combine)[order]], is_dispatch, trace.table.lane[rows])
        self._spread(np.flatnonzero(linked), ahead[linked])
        self.rows[self.rows == self.buffer] = np.nan

    def _join(self, order: npt.NDArray[np.int64], is_dispatch: npt.NDArray[np.bool_], lane: Any) -> None:
        waiting: dict[int, list[int]] = {}
        for at in order.tolist():
            calls = waiting.setdefault(int(lane[at]), [])
            if is_dispatch[at]:
                calls.append(at)
                continue
            for position in reversed(range(len(calls))):
                if self._fit(calls[position], at):
                    self._spread(np.array([calls.pop(position)]), np.array([at]))
                    break

    def _fit(self, one: int, other: int) -> bool:
        """Whether nothing that is known of both differs."""
        a, b = self._known[:, one], self._known[:, other]
        return bool(((a == b) | np.isnan(a) | np.isnan(b)).all())

    def _spread(self, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> None:
        for to, of in ((one, other), (other, one)):
            known = self._known[:, to]
            self._known[:, to] = np.where(np.isnan(known), self._known[:, of], known)

    def of_calls(self, at: npt.NDArray[np.int64]) -> _Routed:
        own, rows, sorted_rows = (_mean(column[at]) for column in (self.own, self.rows, self.sorted_rows))
        hidden, topk, experts = (_first(column[at]) for column in (self.hidden, self.topk, self.experts))
        return _Routed(
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


def _with_rows(model: EPComm, routed: _Routed) -> tuple[EPComm, str]:
    """``model`` with the rows that it exchanges, and where their number comes from."""
    if model.phase == COMBINE and model.own_tokens is None:
        model = replace(model, own_tokens=routed.own)
    is_padded = routed.is_padded or model.per_expert
    if model.rows is not None or (model.phase != DISPATCH and not is_padded):
        return model, RECORDED
    if routed.rows is not None:
        return replace(model, rows=routed.rows), OF_COMBINE
    own = model.tokens if model.phase == DISPATCH else model.own_tokens
    topk, source = model.topk, f"even routing: top-{model.topk}"
    if topk is None and routed.sorted_rows and own:
        topk = max(1, round(routed.sorted_rows / own))
        source = f"even routing: {routed.sorted_rows / own:.3g} experts per token"
    if own is None or not topk or not model.experts or not model.ranks or topk > model.experts:
        return model, AS_GIVEN if model.phase == DISPATCH else PADDED
    copies = float(distinct(model.ranks, model.experts, topk))
    return replace(model, rows=own * copies), f"{source} of {model.experts} experts over {model.ranks} ranks"


def _deepep_us(model: EPComm, name: str, system: System | None) -> float | None:
    """What DeepEP's own kernels are estimated to take, counts agreed on; None where that is not known."""
    own = model.tokens if model.own_tokens is None else model.own_tokens
    topology = system.topology if system is not None else None
    phase, width = model.phase, None if model.dtype is None else model.dtype.width_bytes
    if system is None or topology is None or not topology.ranks_per_node or model.ranks is None or width is None:
        return None
    if (phase != DISPATCH and phase != COMBINE) or not model.topk or not model.experts or not model.hidden:
        return None
    if model.ranks % topology.ranks_per_node or model.topk > model.experts or model.per_expert:
        return None
    if phase == COMBINE and model.own_tokens is None:
        return None
    shape = Exchanges(
        phase="dispatch" if phase == DISPATCH else "combine", tokens=float(own), hidden=float(model.hidden),
        topk=float(model.topk), experts=float(model.experts), nodes=model.ranks / topology.ranks_per_node,
        sms=float(DEFAULT_SMS), element_bytes=width + 4 / 128 if width == 1 else float(width),
    )  # fmt: skip
    try:
        fabric(system)
    except UsageError:
        return None
    if "low_latency" in name:
        return float(exchange_us(shape, "low_latency", system)[0])
    return float((exchange_us(shape, "normal", system) + notification_us(shape, system))[0])
