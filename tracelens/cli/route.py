"""Show where an MoE layer's tokens go, and how long dispatch and combine take.

On a cluster (--cluster, or --ranks-per-node, --link-gb-s and --inter-gb-s; default: dgx-h100): loads, traffic, times in
us, and the gain of EPLB. --rules mesh: packets on a full mesh, in ms, with the parameters of the original simulator;
--rules original: also its rules and log (docs/routing.md).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.errors import UsageError
from tracelens.files import option_fields
from tracelens.files.atomic_write import write_whole
from tracelens.files.option_fields import add_options, byte_count, duration_in, integer, option, output_option
from tracelens.files.say import emit, say, say_lines
from tracelens.predict.routing.config import (
    BYTES_PER_MS_IN_GB_S,
    MESH_ONLY,
    METADATA,
    NEVER_USED,
    PARAMETERS,
    Parameter,
    RouteOptions,
    element_type,
    read_config,
    settled,
)

if TYPE_CHECKING:
    from tracelens.predict.network.ports import Ports
    from tracelens.predict.network.topology import Topology
    from tracelens.predict.routing.exchange import RouteResult, Routing
    from tracelens.predict.workload.expert_placement import Placement


#: The cluster where neither one nor a mesh is asked for.
ASSUMED = "dgx-h100"
_FORMER_RULES = {"seed": "original", "default": "mesh"}
_UNITS = {"_bytes": "BYTES", "delay_ms": "MS", "gb_s": "GB/s"}
_OF_EXPERTS = ("experts", "tokens", "topk", "ranks", "hot_ratio", "hot_weight", "layers", "hidden", "seed")


def _rules(text: str) -> str:
    """The rules under their former names too, with a hint."""
    now = _FORMER_RULES.get(text, text)
    if now != text:
        option_fields.hint(f"--rules {text} is called --rules {now} now")
    return now


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCommand(RouteOptions):
    """The options of ``tracelens.route``, the parameters of ``PARAMETERS`` and the options of the command alone."""

    config: Path | None = option(
        "parameters by their names here, or by the original simulator's in capitals", kind=Path, metavar="FILE.toml"
    )
    skew: str | None = option(
        "distribution of tokens over experts: uniform, balanced, hot:RATIO,WEIGHT, zipf:S, dirichlet:A, power_law:A; "
        "default: uniform on clusters, else hot",
        metavar="zipf:1.1",
    )
    routing: Path | None = option(
        "recorded routing: folder with routing.csv, .npz or .csv of logits, chosen experts or counts, or a trace",
        kind=Path, metavar="DIR|FILE",
    )  # fmt: skip
    save_routing: Path | None = option("write routing.csv and weights.csv", kind=Path, metavar="DIR")
    log: Path | None = option(
        "write the packet log of a mesh; with --rules original in the original's format", kind=Path, metavar="FILE"
    )
    rules: str | None = option(
        "packets on a full mesh instead of a cluster; original: follow the original simulator, bugs included",
        kind=_rules, choices=("mesh", "original"),
    )  # fmt: skip
    placement: str = option(
        "rank of each expert; FILE has one rank per line", "contiguous", metavar="contiguous|round-robin|FILE"
    )
    cluster: str | None = option(
        f"cluster, or device in its standard node; default: {ASSUMED}", metavar="NAME|FILE.toml"
    )
    link_gb_s: float | None = option(
        "bandwidth of a rank's link inside its node, one direction", kind=float, metavar="GB/s"
    )
    compare: Path | None = option(
        "compare the prediction with the exchanges measured in these traces", kind=Path, metavar="TRACE_DIR"
    )
    output: tuple[Path, ...] = output_option(
        "write the result to a file; repeatable", (), repeat=True, metavar="FILE.xlsx|.html|.json|.svg"
    )
    format: str = option_fields.output_format("text")


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, RouteCommand)
    moe, mesh = parser.add_argument_group("experts and tokens"), parser.add_argument_group("links and packets")
    for parameter in PARAMETERS:
        name, has_default = parameter.name, parameter.production is not None and parameter.name not in NEVER_USED
        text = f"{parameter.help}; default: {parameter.production:g}" if has_default else parameter.help
        unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "N")
        group = moe if name in _OF_EXPERTS else mesh
        group.add_argument(f"--{name.replace('_', '-')}", type=_reader(parameter), metavar=unit, help=text)


def _reader(parameter: Parameter) -> Callable[[str], float]:
    if parameter.name.endswith("_ms") and "_per_" not in parameter.name:
        return duration_in("ms")
    if parameter.name.endswith("_bytes"):
        return byte_count
    return integer if parameter.kind is int else float


def run(args: argparse.Namespace) -> int:
    from tracelens.report.route_report import refuse_unknown, route_json, route_text, write_route

    refuse_unknown(args.output)
    result = _routed(args)
    if args.save_routing:
        result.table.save(args.save_routing)
    if args.log:
        write_whole(args.log, result.log or "")
    for path in args.output:
        write_route(result, path)
    if args.format == "json":
        emit(route_json(result) + "\n")
    else:
        say_lines(route_text(result))
        for path in (*args.output, *filter(None, (args.log, args.save_routing))):
            say(f"wrote {path}")
    return 0


def _routed(args: argparse.Namespace) -> RouteResult:
    config = read_config(args.config) if args.config else {}
    values = settled(vars(args), config)
    is_named = args.cluster is not None or args.link_gb_s is not None
    # Packets on a mesh are asked for by their rules, their log or their figures
    is_mesh = args.rules is not None or args.log is not None
    is_mesh = is_mesh or any(name in config or getattr(args, name) is not None for name in _OF_A_MESH)
    is_cluster = is_named or not is_mesh
    _refuse_together(args, config, is_named=is_named, is_cluster=is_cluster)
    if args.rules == "original":
        values |= dict.fromkeys(NEVER_USED)
    if is_named:
        result = _on_cluster(args, values, config)
    elif is_cluster:
        args.cluster = ASSUMED
        result = _on_cluster(args, values, config)
        result = dataclasses.replace(result, summary={"assumed_cluster": ASSUMED, **result.summary})
    else:
        result = _on_mesh(args, values, config)
    if not args.compare:
        return result
    from tracelens.predict.routing.route import compared

    return compared(result, args.compare)


def _refuse_together(args: argparse.Namespace, config: dict[str, Any], *, is_named: bool, is_cluster: bool) -> None:
    """UsageError for options that do not go with each other."""
    if args.rules == "mesh" and is_named:
        raise UsageError("--rules mesh has no cluster: leave out --cluster and --link-gb-s")
    if args.rules == "original":
        _check_seed(args, config, is_cluster=is_cluster)
    if args.best_groups is not None and args.groups is None:
        raise UsageError("--best-groups needs --groups")
    _refuse(args, config, *((MESH_ONLY, "a mesh") if is_cluster else (_CLUSTER_ONLY, "a cluster")))
    if args.log and is_cluster:
        raise UsageError("--log records the packets of a mesh; omit --cluster and --link-gb-s")


#: Figures that only a mesh reads where no cluster is named.
_OF_A_MESH = (*MESH_ONLY, "ranks_per_node", "inter_gb_s")


#: What a mesh would not use.
_CLUSTER_ONLY = ("dispatch", "dispatch_dtype", "slots", "steps", "drift", "compare")


def _refuse(args: argparse.Namespace, config: dict[str, Any], names: Iterable[str], where: str) -> None:
    """UsageError for options that would silently be without effect; a note for such keys of a configuration."""
    if given := [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None]:
        needed = "--cluster, or --ranks-per-node with --link-gb-s and --inter-gb-s"
        hint = f"name one: {needed}" if where == "a cluster" else "leave out --cluster and --link-gb-s"
        raise UsageError(f"only {where} has {', '.join(given)}; {hint}")
    if ignored := [name for name in names if name in config]:
        say(f"without effect here: {', '.join(ignored)}; only {where} has them", to_stderr=True)


def _check_seed(args: argparse.Namespace, config: dict[str, Any], *, is_cluster: bool) -> None:
    """UsageError for options that the original rules would not use; a note for such keys of a configuration."""
    others: tuple[str, ...] = ("skew", "groups", "best_groups", "capacity", "ranks_per_node", "cluster", *_CLUSTER_ONLY)
    others = others[1:] if args.skew == "balanced" else others
    named = [f"--{name.replace('_', '-')}" for name in (*NEVER_USED, *others) if getattr(args, name) is not None]
    if named or is_cluster:
        given = ", ".join(named) or "--link-gb-s"
        raise UsageError(f"--rules original does not support {given}; omit --rules original")
    if ignored := [name for name in NEVER_USED if name in config]:
        say(f"--rules original ignores {', '.join(ignored)}", to_stderr=True)


def _routing(args: argparse.Namespace, values: dict[str, Any], fallback: str) -> Routing:
    from tracelens.predict.routing.exchange import Routing
    from tracelens.predict.workload.token_routing import Skew

    return Routing(
        **{name: values[name] for name in ("tokens", "experts", "topk", "ranks", "seed")},
        **{name: getattr(args, name) for name in ("groups", "best_groups", "capacity")},
        skew=Skew.parse(args.skew or fallback),
        file=args.routing,
    )


def _placement(args: argparse.Namespace, values: dict[str, Any]) -> Placement:
    from tracelens.predict.workload.expert_placement import Placement
    from tracelens.predict.workload.token_routing import read_numbers

    experts, ranks = values["experts"], values["ranks"]
    if args.placement == "contiguous":
        return Placement.filled(experts, ranks)
    if args.placement == "round-robin":
        return Placement.round_robin(experts, ranks)
    ranks_of = read_numbers(Path(args.placement)).ravel()
    if len(ranks_of) != experts:
        raise UsageError(f"{args.placement} places {len(ranks_of)} experts, but there are {experts}")
    return Placement.from_map(ranks_of.astype(int), ranks)


#: Parameters that are called alike in ``MeshRules``.
_OF_PACKETS = (
    "links", "packet_bytes", "packet_delay_ms", "packets_per_turn", "nic_bytes_per_round", "initial_delay_ms",
    "ranks_per_node",
)  # fmt: skip


def _on_mesh(args: argparse.Namespace, values: dict[str, Any], config: dict[str, Any]) -> RouteResult:
    from tracelens.predict.network.packets import MeshRules
    from tracelens.predict.routing.exchange import MeshScenario, route_mesh

    inter = values["inter_gb_s"]
    if inter is not None and values["ranks_per_node"] is None:
        if "inter_gb_s" not in config:
            raise UsageError("--inter-gb-s needs --ranks-per-node")
        say("inter_gb_s has no effect: without ranks_per_node all ranks are one node", to_stderr=True)
        inter = None
    rules = MeshRules(
        **{name: values[name] for name in _OF_PACKETS},
        link_bytes_per_ms=values["intra_bytes_per_ms"],
        round_delay_ms=values["base_delay_ms"],
        overlap=values["overlap"] or 1.0,
        inter_bytes_per_ms=None if inter is None else inter / BYTES_PER_MS_IN_GB_S,
    )
    scenario = MeshScenario(
        routing=_routing(args, values, f"hot:{values['hot_ratio']},{values['hot_weight']}"),
        rules=rules,
        **{name: values[name] for name in ("hot_ratio", "hot_weight", "unit_bytes", "hidden")},
        dtype=element_type(args.combine_dtype),
        layers=values["layers"] or 1,
    )
    is_original = args.rules == "original"
    return route_mesh(
        scenario,
        seed_rules=is_original,
        placement=_placement(args, values),
        log_rounds=bool(args.log) and not is_original,
    )


def _on_cluster(args: argparse.Namespace, values: dict[str, Any], config: dict[str, Any]) -> RouteResult:
    from tracelens.predict.routing.exchange import PortScenario, route_ports

    ports, topology = _ports(args, values, config)
    given = _given(args, config)
    is_hot = not given.keys().isdisjoint(("hot_ratio", "hot_weight"))
    has_metadata = not given.keys().isdisjoint(METADATA)
    scenario = PortScenario(
        routing=_routing(args, values, f"hot:{values['hot_ratio']},{values['hot_weight']}" if is_hot else "uniform"),
        ports=ports,
        topology=topology,
        hidden=values["hidden"] or 7168,
        dispatch_dtype=element_type(args.dispatch_dtype or "fp8"),
        combine_dtype=element_type(args.combine_dtype),
        metadata_bytes=values["unit_bytes"] if has_metadata else 0.0,
        placement=_placement(args, values),
        way=args.dispatch or "hierarchical",
        slots=args.slots,
        layers=values["layers"] or 1,
        steps=1 if args.steps is None else args.steps,
        drift=args.drift or 0.0,
    )
    return route_ports(scenario)


def _given(args: argparse.Namespace, config: dict[str, Any]) -> dict[str, Any]:
    """Parameters that an option or the configuration names."""
    options = {p.name: getattr(args, p.name) for p in PARAMETERS}
    return config | {name: value for name, value in options.items() if value is not None}


def _ports(args: argparse.Namespace, values: dict[str, Any], config: dict[str, Any]) -> tuple[Ports, Topology | None]:
    from tracelens.predict.network.ports import Ports
    from tracelens.predict.routing.route import cluster_system

    packets: dict[str, Any] = {"overlap": values["overlap"] or 1.0}
    for key, name, factor in (
        ("packet_bytes", "packet_bytes", 1),
        ("packet_delay_ms", "packet_us", 1000),
        ("packets_per_turn", "packets_per_turn", 1),
        ("initial_delay_ms", "initial_us", 1000),
    ):
        if key in _given(args, config):
            packets[name] = values[key] * factor
    if args.cluster is None:
        if values["ranks_per_node"] is None or values["inter_gb_s"] is None:
            raise UsageError("without --cluster give --ranks-per-node, --link-gb-s and --inter-gb-s")
        ports = Ports(
            ranks_per_node=values["ranks_per_node"], link_gb_s=args.link_gb_s, card_gb_s=values["inter_gb_s"], **packets
        )
        return ports, None
    system, topology = cluster_system(args.cluster)
    if system.note:
        say(system.note, to_stderr=True)
    ports = dataclasses.replace(Ports.of_topology(topology), **packets)
    if args.link_gb_s is not None:
        ports = dataclasses.replace(ports, link_gb_s=args.link_gb_s)
    if values["inter_gb_s"] is not None:
        ports = dataclasses.replace(ports, card_gb_s=values["inter_gb_s"])
    return ports, topology
