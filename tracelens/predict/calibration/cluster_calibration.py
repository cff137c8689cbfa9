"""A cluster's rates and overheads from measured collectives: of nccl-tests, rccl-tests, or any table like theirs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.backends.base import System
from tracelens.backends.collective_times import MessageColumns, message_us
from tracelens.errors import InputError
from tracelens.files.data_table import TIME, faults, measured_rows, numbers, texts
from tracelens.predict.calibration.device import Floats, Mask, mean_error, quoted, replaced_tables, rounded
from tracelens.predict.calibration.fitting import Bounds, Fit, fitted, logarithmic
from tracelens.predict.estimation.communication import SIZES, collective_groups, plain_word, system_name
from tracelens.predict.network.topology import Tier, Topology
from tracelens.types.records import Record, pd
from tracelens.types.units import BYTES_PER_MB

#: What a column of times is called, and how many us its unit has; ``time-o`` is nccl-tests' out of place.
TIMES = {"time-o": 1.0, "time_us": 1.0, "latency_us": 1.0, "measured_us": 1.0, "latency_ms": 1e3}
NEEDED = ("op", "size", "num_nodes", "gpus_per_node")
TIERS = ("node", "network")
# Node counts: as many give two halves.
_LEAST_COUNTS = 4
_INERTIA = 0.05
_RATE_FACTORS = (1.0, 0.8, 0.64, 0.5, 0.4, 0.3, 0.2)
#: Of an all-to-all between nodes: its wait, and what each peer costs.
_WAITS_US = ((0.1, 0.1), (30.0, 0.1), (0.1, 1.0), (30.0, 1.0))
_EVALUATIONS = 150


class ClusterOutcome(Record, frozen=True, kw_only=True):
    """``before`` and ``after`` are mean errors in percent, ``unseen`` that on node counts that were not fitted.

    ``constants`` by their place in a cluster file, e.g. ``network.protocol.ll.hop_us``; ``open`` are those that the
    data do not determine, which stayed as they were.
    """

    rows: int
    before: float | None
    after: float | None
    unseen: float | None
    constants: Mapping[str, float]
    open: tuple[str, ...]


def calibrate_cluster(table: pd.DataFrame, system: System, name: str) -> ClusterOutcome:
    """Constants of ``system``'s cluster that the measured collectives determine. InputError for other tables, and for
    a cell of a row with a time that is no size or time.
    """
    column = next((each for each in TIMES if each in table), None)
    if column is None or any(each not in table for each in NEEDED):
        raise InputError(
            f"{name}: a table of collectives needs the columns {', '.join(NEEDED)} and a time ({', '.join(TIMES)}); "
            f"it has {', '.join(map(str, table))}"
        )
    kinds = {each: SIZES[each] for each in NEEDED[1:]} | {column: TIME}
    measured = measured_rows(table, column, faults(table, kinds, name), name)
    table = table.assign(**{each: numbers(table, each, kind) for each, kind in kinds.items()})[measured]
    time = table[column].to_numpy(np.float64) * TIMES[column]
    words = [plain_word(op) for op in texts(table, "op")]
    columns = MessageColumns(
        word=words, nbytes=table["size"].to_numpy(np.float64), group=collective_groups(table, system.joined())
    )
    own, everything = system.joined(), np.ones(len(table), bool)
    estimated = _estimate(columns, system, own, everything)
    known = np.isfinite(estimated)
    if not known.any():
        raise InputError(f"{name}: none of its collectives has an algorithm on {system_name(system)}")
    nodes = table["num_nodes"].to_numpy(np.float64)
    kept, undetermined = _fit(columns, system, own, nodes, time, known)
    return ClusterOutcome(
        rows=int(known.sum()),
        before=mean_error(estimated, time),
        after=mean_error(_estimate(columns, system, _with(own, kept), everything), time),
        unseen=_unseen(columns, system, own, nodes, time, known),
        constants=kept,
        open=undetermined,
    )


def cluster_file(text: str, topology: Topology, outcome: ClusterOutcome, source: str) -> str:
    """The text of a cluster file with the fitted tables in place of its own."""
    places = {place: value for place, value in _constants(topology).items() if value} | dict(outcome.constants)
    written = {place.rpartition(".")[0] for place in outcome.constants}
    # A cluster's own protocols replace all of its library's, so they are written together.
    tiers = {table.split(".")[0] for table in written if ".protocol." in table}
    tables: dict[str, list[str]] = {}
    for place, value in places.items():
        table, _, key = place.rpartition(".")
        if table in written or (".protocol." in table and table.split(".")[0] in tiers):
            tables.setdefault(table, []).append(f"{key} = {rounded(value)}")
    return replaced_tables(text, {table: [*lines, f"source = {quoted(source)}"] for table, lines in tables.items()})


def _constants(topology: Topology) -> dict[str, float]:
    """What a cluster file may say of the two innermost tiers, by its place in the file."""
    found: dict[str, float] = {}
    for name, tier in zip(TIERS, topology.tiers, strict=False):
        for field in dataclasses.fields(tier.link.rates):
            value = getattr(tier.link.rates, field.name)
            if field.name != "peak_gb_s" and value is not None:
                found[f"{name}.rates.{field.name}"] = value
        for protocol in tier.link.protocols:
            for key in ("base_us", "hop_us", "tree_hop_us", "rate_share"):
                found[f"{name}.protocol.{protocol.name}.{key}"] = getattr(protocol, key)
        for key in ("peer_us", "sync_us"):
            found[f"{name}.all_to_all.{key}"] = getattr(tier.link, key)
    found["pipeline.chunk_mb"] = topology.chunk_bytes / BYTES_PER_MB
    return found


def _limits(topology: Topology, words: set[str]) -> dict[str, Bounds]:
    """Start, least and most of each constant that could matter for these collectives."""
    peaks = {name: tier.link.rates.peak_gb_s for name, tier in zip(TIERS, topology.tiers, strict=False)}
    starts = {f"{name}.rates.all_gather_gb_s": 0.8 * peak for name, peak in peaks.items()} | _constants(topology)
    if "all_to_all" in words:
        starts = {f"{name}.rates.all_to_all_gb_s": 0.7 * peak for name, peak in peaks.items()} | starts
    limits: dict[str, Bounds] = {}
    for place, start in starts.items():
        tier, kind, key = place.split(".")[0], place.split(".")[1], place.rpartition(".")[2]
        if (kind == "all_to_all" or tier == "pipeline") and "all_to_all" not in words:
            continue
        if key == "rate_share":
            if start < 1:
                limits[place] = (start, 0.02, 1.0)
        elif kind == "rates":
            limits[place] = (start, start / 10, peaks[tier])
        elif tier == "pipeline":
            limits[place] = (start, start / 20, start * 20)
        else:
            limits[place] = (max(start, 0.1), 0.02, max(start, 10.0) * 20)
    return limits


def _with(topology: Topology, constants: Mapping[str, float]) -> Topology:
    """The topology with some constants, by their place in a cluster file."""
    tiers = [_tier(tier, name, constants) for name, tier in zip(TIERS, topology.tiers, strict=False)]
    chunk = constants.get("pipeline.chunk_mb")
    return replace(
        topology,
        tiers=(*tiers, *topology.tiers[len(tiers) :]),
        chunk_bytes=topology.chunk_bytes if chunk is None else chunk * BYTES_PER_MB,
    )


def _tier(tier: Tier, name: str, constants: Mapping[str, float]) -> Tier:
    def given(table: str) -> dict[str, Any]:
        prefix = f"{name}.{table}."
        return {place.removeprefix(prefix): v for place, v in constants.items() if place.startswith(prefix)}

    link = tier.link
    protocols = tuple(replace(protocol, **given(f"protocol.{protocol.name}")) for protocol in link.protocols)
    rates = replace(link.rates, **given("rates"))
    return replace(tier, link=replace(link, rates=rates, protocols=protocols, **given("all_to_all")))


def _estimate(columns: MessageColumns, system: System, topology: Topology, rows: Mask) -> Floats:
    at = np.flatnonzero(rows).tolist()
    some = MessageColumns(
        word=[columns.word[i] for i in at], nbytes=columns.nbytes[rows], group=[columns.group[i] for i in at]
    )
    return message_us(some, replace(system, topology=topology))[0]


def _fit(
    columns: MessageColumns, system: System, own: Topology, nodes: Floats, time: Floats, rows: Mask
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The constants that the rows determine, and the names of the others.

    Collectives within a node say what its links do, those between nodes what the network adds: one after the other,
    since a slow node and a slow network look alike from outside. Without the former, both at once.
    """
    limits = _limits(own, {columns.word[i] for i in np.flatnonzero(rows).tolist()})
    inside = rows & (nodes == 1)
    of_node = {place: limit for place, limit in limits.items() if place.startswith("node.")}
    others = {place: limit for place, limit in limits.items() if place not in of_node}
    kept: dict[str, float] = {}
    undetermined: tuple[str, ...] = ()
    stages = ((inside, of_node), (rows & ~inside, others)) if inside.any() else ((rows, limits),)
    for some, bounds in stages:
        found = None if not some.any() else _stage(columns, system, _with(own, kept), bounds, time, some)
        open_ = tuple(bounds) if found is None else found.undetermined
        undetermined += open_
        kept |= {} if found is None else {key: v for key, v in found.constants.items() if key not in open_}
    return kept, undetermined


def _stage(
    columns: MessageColumns, system: System, own: Topology, limits: Mapping[str, Bounds], time: Floats, rows: Mask
) -> Fit:
    limits = _nearer(columns, system, own, limits, time, rows)
    names = list(limits)
    origin = np.array([limits[name][0] for name in names])

    def estimate(constants: dict[str, float]) -> Floats:
        moved = np.array([constants[name] for name in names]) / origin
        return np.concatenate([_estimate(columns, system, _with(own, constants), rows), moved**_INERTIA])

    target = np.concatenate([time[rows], np.ones(len(names))])
    return fitted(estimate, target, limits, error_of=logarithmic, evaluations=_EVALUATIONS)


def _nearer(
    columns: MessageColumns, system: System, own: Topology, limits: Mapping[str, Bounds], time: Floats, rows: Mask
) -> Mapping[str, Bounds]:
    """The limits with rates and all-to-all's wait between nodes started where they fit best: from above a faster
    tier's rate nothing shows the way down, and what a peer costs would take the wait's place.
    """

    def started(rate: float, waits_us: tuple[float, float]) -> dict[str, Bounds]:
        found = {
            place: (max(start * rate, least), least, most) if ".rates." in place else (start, least, most)
            for place, (start, least, most) in limits.items()
        }
        for name, start in zip(("sync_us", "peer_us"), waits_us, strict=True):
            if (place := f"network.all_to_all.{name}") in found:
                found[place] = (max(limits[place][0], start), *limits[place][1:])
        return found

    def cost(candidate: dict[str, Bounds]) -> float:
        constants = {place: start for place, (start, _, _) in candidate.items()}
        return float(np.abs(np.log(_estimate(columns, system, _with(own, constants), rows) / time[rows])).mean())

    return min(itertools.starmap(started, itertools.product(_RATE_FACTORS, _WAITS_US)), key=cost)


def _unseen(
    columns: MessageColumns, system: System, own: Topology, nodes: Floats, time: Floats, known: Mask
) -> float | None:
    """Each half of the node counts by constants of the other; None where there are too few."""
    counts: Sequence[float] = np.unique(nodes[known]).tolist()
    if len(counts) < _LEAST_COUNTS:
        return None
    errors = []
    for side in (0, 1):
        other = known & np.isin(nodes, counts[side::2])
        kept, _ = _fit(columns, system, own, nodes, time, known & ~other)
        errors.append(np.abs(_estimate(columns, system, _with(own, kept), other) / time[other] - 1))
    return float(np.concatenate(errors).mean() * 100)
