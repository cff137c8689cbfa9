"""Where tokens go on a cluster and what it costs (``tl.route``), and predicted next to measured communication."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.reading.process_groups import recorded_ep_size
from tracelens.analysis.sheets import perf_summary
from tracelens.backends.base import System
from tracelens.errors import InputError, NothingToAnalyzeError, UsageError
from tracelens.files.option_fields import build_options, takes
from tracelens.predict.network.ports import Ports
from tracelens.predict.network.topology import Topology
from tracelens.predict.routing.config import RouteOptions, element_type
from tracelens.predict.routing.exchange import PortScenario, RouteResult, Routing, route_ports
from tracelens.predict.workload.token_routing import Skew
from tracelens.trace.reading.bytestream import TRACE_ENDINGS
from tracelens.types.units import BYTES_PER_MB


@takes(RouteOptions)
def route(
    *,
    tokens: int,
    experts: int,
    topk: int,
    ranks: int,
    cluster: str | os.PathLike[str],
    seed: int = 0,
    hidden: int = 7168,
    layers: int = 1,
    options: RouteOptions | None = None,
    **given: Any,
) -> RouteResult:
    """Where ``tokens`` tokens of all ranks go on a cluster, and what it costs (``tl.route``).

    ``options`` are what ``given`` keywords change, spelled as the command spells them; ``way`` is another name of
    ``dispatch``. ``route_ports`` takes a ``PortScenario`` instead. UsageError for unknown names and for figures that do
    not fit.
    """
    asked = build_options(RouteOptions, given, options)
    topology = cluster_system(cluster)[1]
    routing = Routing(
        tokens=tokens, experts=experts, topk=topk, ranks=ranks, skew=Skew.parse(asked.skew or "uniform"), seed=seed,
        groups=asked.groups, best_groups=asked.best_groups, capacity=asked.capacity,
    )  # fmt: skip
    scenario = PortScenario(
        routing=routing,
        ports=Ports.of_topology(topology),
        topology=topology,
        hidden=hidden,
        dispatch_dtype=element_type(asked.dispatch_dtype or "fp8"),
        combine_dtype=element_type(asked.combine_dtype),
        way=asked.dispatch or "hierarchical",
        slots=asked.slots,
        layers=layers,
        steps=1 if asked.steps is None else asked.steps,
        drift=asked.drift or 0.0,
    )
    return route_ports(scenario)


def cluster_system(name: str | os.PathLike[str]) -> tuple[System, Topology]:
    """A cluster, or a device in its standard node, by name or file; and its links. UsageError where it has none."""
    system = System.load(name)
    return system, system.joined()


_CATEGORY = "EP_Communication"


def compared(result: RouteResult, folder: Path) -> RouteResult:
    """The result with a frame ``comparison``: one row per exchange op and shape of each trace in ``folder``.

    The predicted time is the phase's, scaled by the op's bytes over the phase's bytes of one rank: of a
    dispatch those of its rank's tokens, of a combine those of the copies that its rank received; the backward of one is
    the other. A measured time holds the wait for the slowest rank. InputError without traces, NothingToAnalyzeError
    without exchanges in them, UsageError for a mesh result, or where the traces recorded a group of another size.
    """
    phases = result.frames["phases"].set_index("phase")
    if "time_us" not in phases:
        raise UsageError("--compare needs a cluster: --cluster, or --ranks-per-node with --link-gb-s and --inter-gb-s")
    paths = sorted(path for path in folder.glob("*") if path.name.endswith(TRACE_ENDINGS))
    if not paths:
        raise InputError(f"{folder} contains no trace (a name that ends in .json, .json.gz ...)")
    ranks = result.summary["ranks"]
    rows = {"dispatch": result.summary["tokens"] / ranks, "combine": result.frames["ranks"].tokens_received.mean()}
    bytes_of_rank = {phase: count * phases.copy_bytes[phase] for phase, count in rows.items()}
    measured = [
        {"trace": path.name, **_beside(op, bytes_of_rank, phases.time_us)}
        for path in paths
        for op in _exchanges(path, ranks)
    ]
    if not measured:
        raise NothingToAnalyzeError(f"no expert-parallel exchange in the traces of {folder}")
    frame = pd.DataFrame(measured).astype({"predicted_us": float, "wire_mb": float})
    frame["measured_over_predicted"] = frame.measured_us / frame.predicted_us
    return dataclasses.replace(result, frames={**result.frames, "comparison": frame})


def _exchanges(path: Path, ranks: int) -> list[dict[Any, Any]]:
    """The exchange ops of a trace, each with its shape. UsageError where their group has not ``ranks`` ranks."""
    trace = load(path)
    recorded = recorded_ep_size(trace.table)
    if recorded not in (None, ranks):
        raise UsageError(f"{path}: its expert-parallel group has {recorded} ranks, but the prediction {ranks}")
    ops = analyze(trace, AnalysisOptions(cpu=True)).frames.get(perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    return [] if ops is None else ops[ops.category == _CATEGORY].to_dict(orient="records")


def _beside(op: Mapping[Any, Any], bytes_of_rank: Mapping[str, float], predicted_us: pd.Series) -> dict[str, Any]:
    """An op's measured time, and the predicted one of its phase."""
    name = str(op["name"]).lower()
    phase = "combine" if ("combine" in name) != ("backward" in name) else "dispatch"
    copies = op["copies_per_token"] if phase == "dispatch" and op["copies_per_token"] > 0 else 1.0
    given = op["wire_mb"] * BYTES_PER_MB / copies
    known = pd.notna(given) and bytes_of_rank[phase] > 0
    return {
        "op": op["name"],
        "phase": phase,
        "calls": int(op["operation_count"]),
        "wire_mb": op["wire_mb"],
        "measured_us": op["kernel_us_mean"],
        "predicted_us": predicted_us[phase] * (given / bytes_of_rank[phase]) if known else None,
    }
