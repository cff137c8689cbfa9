"""Where tokens go on a cluster and what it costs: routing, placement and traffic in one answer (``tl.route``)."""

from __future__ import annotations

import os
from typing import Any

from tracelens.backends.base import System
from tracelens.errors import UsageError
from tracelens.network.ports import Ports
from tracelens.network.topology import Topology
from tracelens.option_fields import made, takes
from tracelens.routing.config import RouteOptions, element_type
from tracelens.routing.exchange import PortScenario, route_ports
from tracelens.routing.route_result import RouteResult
from tracelens.routing.token_choice import Routing
from tracelens.workload.token_routing import Skew


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
    asked = made(RouteOptions, given, options)
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
    if system.topology is None:
        raise UsageError(f"{str(name)!r} does not define the links between its ranks")
    return system, system.topology
