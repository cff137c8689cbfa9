"""What the token exchanges of a trace move: rows by the layer's ops, and the share of them that leaves the rank.

Where the rows come from: ``tracelens.analysis.work.expert_layers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from tracelens.analysis.grouping import Codes
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import Reading
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.analysis.work.expert_layers import (
    Layers,
    RemoteShare,
    even_routing,
    ranks_of,
    recorded_counts,
    remote_share,
    with_rows,
)
from tracelens.backends.base import System
from tracelens.backends.collective_times import exchange_us, fabric, notification_us
from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.network.deepep import DEFAULT_SMS, Exchanges
from tracelens.perf_models import EPComm
from tracelens.perf_models.collective import COMBINE, DISPATCH

#: The share that leaves the rank is unknown: rates are of every row, which is at most what left.
EVERY_ROW = "every row: at most, the ranks were not recorded (--ep-size)"
NO_SIZE = "its tokens were not recorded (an FP8 pair), and no combine of the same layer says their size"

_PHASES: dict[str | None, Literal["dispatch", "combine"]] = {DISPATCH: "dispatch", COMBINE: "combine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExchange:
    """One distinct exchange op: the bytes of all its rows, which share leaves the rank, and where both come from.

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


def exchanges_of(
    trace: Trace, readings: OpReadings, group: ExpertGroup, system: System | None
) -> tuple[OpReadings, Mapping[int, ExpertExchange]]:
    """``readings`` with what their exchanges move, and reading code -> exchange.

    An exchange whose tokens' size nothing tells loses its model.
    """
    codes = {code: r.model for code, r in enumerate(readings.readings) if isinstance(r.model, EPComm)}
    if not codes:
        return readings, {}
    number: Codes = np.full(len(readings.readings), -1, np.int32)
    number[list(codes)] = np.arange(len(codes))
    model_of = number[readings.code]
    rows, model_of = readings.rows[model_of >= 0], model_of[model_of >= 0]
    layers = Layers(trace, rows, list(codes.values()), model_of)
    found: dict[int, ExpertExchange] = {}
    made: dict[int, Reading] = {}
    for each, model in codes.items():
        reading = readings.readings[each]
        routed = layers.of_calls(np.flatnonzero(model_of == number[each]))
        if model.hidden is None and routed.hidden is None:
            made[each] = replace(reading, model=None, note=NO_SIZE)
            continue
        signature = trace.table.signature_of(int(readings.example[each]))
        share = remote_share(model, signature, rank=group.rank, members=group.members, ep_size=group.size)
        ranks = ranks_of(signature, model) or group.size
        if share is None and ranks is not None:
            share = even_routing(ranks)
        model, rows_from = with_rows(model, routed, ranks, recorded_counts(signature)[0])
        if share is None:
            model = replace(model, remote_share=None)
        elif model.known_share is None:
            model = replace(model, remote_share=share.share)
        made[each] = replace(reading, model=model)
        found[each] = ExpertExchange(
            exchanged_bytes=model.exchanged_bytes(), copies=model.copies, rows_from=rows_from,
            share=share or RemoteShare(share=float("nan"), source=EVERY_ROW),
            deepep_us=_deepep_us(model, signature.name, system),
        )  # fmt: skip
    return readings.with_readings(made), found


def _deepep_us(model: EPComm, name: str, system: System | None) -> float | None:
    """What DeepEP's own kernels are estimated to take, counts agreed on; None where that is not known."""
    if system is None or system.topology is None or not system.topology.ranks_per_node:
        return None
    shape = _shape(model, system.topology.ranks_per_node)
    if shape is None:
        return None
    try:
        fabric(system)
    except UsageError:
        return None
    if "low_latency" in name:
        return float(exchange_us(shape, "low_latency", system)[0])
    return float((exchange_us(shape, "normal", system) + notification_us(shape, system))[0])


def _shape(model: EPComm, ranks_per_node: int) -> Exchanges | None:
    """The exchange as DeepEP's kernels see it; None where they make no such, or not all of it is known."""
    phase, width = model.phase, None if model.dtype is None else model.dtype.width_bytes
    if phase not in _PHASES or model.per_expert or (phase == COMBINE and model.own_tokens is None):
        return None
    if not model.topk or not model.experts or not model.hidden or model.topk > model.experts:
        return None
    if width is None or model.ranks is None or model.ranks % ranks_per_node:
        return None
    return Exchanges(
        phase=_PHASES[phase],
        tokens=float(model.tokens if model.own_tokens is None else model.own_tokens),
        hidden=float(model.hidden), topk=float(model.topk), experts=float(model.experts),
        nodes=model.ranks / ranks_per_node,
        sms=float(DEFAULT_SMS), element_bytes=width + 4 / 128 if width == 1 else float(width),
    )  # fmt: skip
