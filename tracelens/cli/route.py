"""Show where an MoE layer's tokens go, and how long dispatch and combine take.

On a cluster (--cluster, or --ranks-per-node with --link-gb-s and --inter-gb-s): loads, traffic, times in us, what EPLB
would gain. Without one: packets on a full mesh, in ms, with the parameters of the original simulator;
--rules seed follows that simulator's own rules and log.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.errors import UsageError
from tracelens.routing.config import MESH_ONLY, METADATA, NEVER_USED, PARAMETERS, read_config, settled

if TYPE_CHECKING:
    from tracelens.network.ports import Ports
    from tracelens.network.topology import Topology
    from tracelens.routing.route import RouteResult, Routing
    from tracelens.workload.placement import Placement


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for parameter in PARAMETERS:
        text = parameter.help if parameter.production is None else f"{parameter.help} ({parameter.production:g})"
        add(f"--{parameter.name.replace('_', '-')}", type=parameter.kind, metavar=parameter.original or "N", help=text)
    add("--config", type=Path, metavar="FILE.toml", help="parameters under these names, or the original's in capitals")
    add(
        "--skew", metavar="zipf:1.1",
        help="uniform, balanced, hot:RATIO,WEIGHT, zipf:S, dirichlet:A, power_law:A; default: hot; on clusters uniform",
    )  # fmt: skip
    add(
        "--routing", type=Path, metavar="DIR|FILE",
        help="recorded routing: folder with routing.csv, .npz or .csv of logits, chosen experts or counts, or a trace",
    )  # fmt: skip
    add("--save-routing", type=Path, metavar="DIR", help="write routing.csv and weights.csv")
    add("--log", type=Path, metavar="FILE", help="write the packet log (--rules seed)")
    add(
        "--rules",
        choices=("default", "seed"),
        default="default",
        help="seed: like the original simulator, bugs included",
    )
    add("--groups", type=int, metavar="N", help="group-limited gating: expert groups (DeepSeek-V3: 8)")
    add("--best-groups", type=int, metavar="N", help="groups a token may choose from (DeepSeek-V3: 4)")
    add("--capacity", type=float, metavar="FACTOR", help="experts drop tokens above FACTOR times the mean load")
    add("--placement", metavar="contiguous|round-robin|FILE", default="contiguous", help="FILE: one rank per line")
    add("--slots", type=int, metavar="N", help="physical experts for EPLB; default: one spare per rank")
    add("--steps", type=int, metavar="N", help="number of steps, for --drift")
    add("--drift", type=float, metavar="0..1", help="share of the experts' log weight that changes each step")
    add("--cluster", metavar="NAME|FILE.toml", help="nodes, links and network cards; a device means its standard node")
    add("--link-gb-s", type=float, metavar="GB/s", help="bandwidth of a rank's link inside its node, one direction")
    add(
        "--way", choices=("hierarchical", "direct", "per-expert"),
        help="copies of a token: one per node, forwarded there (default); one per rank; one per expert (low latency)",
    )  # fmt: skip
    add("--dispatch-dtype", metavar="DTYPE", help="fp8 (with scales)")
    add("--combine-dtype", default="bf16", metavar="DTYPE", help="bf16")
    add(
        "--compare",
        type=Path,
        metavar="TRACE_DIR",
        help="traces whose measured exchanges are shown beside the prediction",
    )
    add(
        "-o", "--output", type=Path, action="append", default=[], metavar="FILE.xlsx|.json|.svg", help="repeatable",
    )  # fmt: skip
    add("--format", choices=("text", "json"), default="text", help="what to print")


def run(args: argparse.Namespace) -> int:
    from tracelens.report.route_files import refuse_unknown, route_json, write_route

    refuse_unknown(args.output)
    config = read_config(args.config) if args.config else {}
    values = settled(vars(args), config)
    is_cluster = args.cluster is not None or args.link_gb_s is not None
    if args.rules == "seed":
        _check_seed(args, config, is_cluster=is_cluster)
        values |= dict.fromkeys(NEVER_USED)
    if args.best_groups is not None and args.groups is None:
        raise UsageError("--best-groups needs --groups")
    _refuse(args, config, *((MESH_ONLY, "a mesh") if is_cluster else (_CLUSTER_ONLY, "a cluster")))
    if args.log and args.rules != "seed":
        raise UsageError("--log needs --rules seed")
    result = _on_cluster(args, values, config) if is_cluster else _on_mesh(args, values, config)
    if args.compare:
        from tracelens.routing.comparison import compared

        result = compared(result, args.compare)
    if args.save_routing:
        result.table.save(args.save_routing)
    if args.log:
        _write_log(args.log, result.log or "")
    for path in args.output:
        write_route(result, path)
    if args.format == "json":
        sys.stdout.write(route_json(result) + "\n")
    else:
        for line in _lines(result):
            print(line)
        for path in (*args.output, *filter(None, (args.log, args.save_routing))):
            print(f"wrote {path}")
    return 0


#: What a mesh would not use.
_CLUSTER_ONLY = ("way", "dispatch_dtype", "slots", "steps", "drift", "compare")


def _refuse(args: argparse.Namespace, config: dict[str, Any], names: Iterable[str], where: str) -> None:
    """UsageError for options that would silently be without effect; a note for such keys of a configuration."""
    if given := [_option(name) for name in names if getattr(args, name) is not None]:
        needed = "--cluster, or --ranks-per-node with --link-gb-s and --inter-gb-s"
        hint = f"name one: {needed}" if where == "a cluster" else "leave out --cluster and --link-gb-s"
        raise UsageError(f"only {where} has {', '.join(given)}; {hint}")
    if ignored := [name for name in names if name in config]:
        print(f"without effect here: {', '.join(ignored)}; only {where} has them", file=sys.stderr)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_seed(args: argparse.Namespace, config: dict[str, Any], *, is_cluster: bool) -> None:
    """UsageError for options that the original rules would not use; a note for such keys of a configuration."""
    others = ("skew", "groups", "best_groups", "capacity", "ranks_per_node", "cluster", *_CLUSTER_ONLY)
    named = [_option(name) for name in (*NEVER_USED, *others) if getattr(args, name) is not None]
    if named or is_cluster:
        raise UsageError(f"--rules seed does not support {', '.join(named) or '--link-gb-s'}; omit --rules seed")
    if ignored := [name for name in NEVER_USED if name in config]:
        print(f"--rules seed ignores {', '.join(ignored)}", file=sys.stderr)


def _routing(args: argparse.Namespace, values: dict[str, Any], fallback: str) -> Routing:
    from tracelens.routing.route import Routing
    from tracelens.workload.token_routing import Skew

    return Routing(
        tokens=values["tokens"],
        experts=values["experts"],
        topk=values["topk"],
        ranks=values["ranks"],
        skew=Skew.parse(args.skew or fallback),
        seed=values["seed"],
        groups=args.groups,
        best_groups=args.best_groups,
        capacity=args.capacity,
        file=args.routing,
    )


def _placement(args: argparse.Namespace, values: dict[str, Any]) -> Placement:
    from tracelens.workload.original_routing import read_numbers
    from tracelens.workload.placement import Placement

    experts, ranks = values["experts"], values["ranks"]
    if args.placement == "contiguous":
        return Placement.contiguous(experts, ranks)
    if args.placement == "round-robin":
        return Placement.round_robin(experts, ranks)
    ranks_of = read_numbers(Path(args.placement)).ravel()
    if len(ranks_of) != experts:
        raise UsageError(f"{args.placement} places {len(ranks_of)} experts, but there are {experts}")
    return Placement.from_map(ranks_of.astype(int), ranks)


def _on_mesh(args: argparse.Namespace, values: dict[str, Any], config: dict[str, Any]) -> RouteResult:
    from tracelens.network.packets import MeshRules
    from tracelens.routing.config import BYTES_PER_MS_IN_GB_S
    from tracelens.routing.route import MeshScenario, route_mesh

    inter = values["inter_gb_s"]
    if inter is not None and values["ranks_per_node"] is None:
        if "inter_gb_s" not in config:
            raise UsageError("--inter-gb-s needs --ranks-per-node")
        print("inter_gb_s has no effect: without ranks_per_node all ranks are one node", file=sys.stderr)
        inter = None
    rules = MeshRules(
        links=values["links"],
        link_bytes_per_ms=values["intra_bytes_per_ms"],
        packet_bytes=values["packet_bytes"],
        packet_delay_ms=values["packet_delay_ms"],
        packets_per_turn=values["packets_per_turn"],
        nic_bytes_per_round=values["nic_bytes_per_round"],
        round_delay_ms=values["base_delay_ms"],
        initial_delay_ms=values["initial_delay_ms"],
        overlap=values["overlap"] or 1.0,
        ranks_per_node=values["ranks_per_node"],
        inter_bytes_per_ms=None if inter is None else inter / BYTES_PER_MS_IN_GB_S,
    )
    scenario = MeshScenario(
        routing=_routing(args, values, f"hot:{values['hot_ratio']},{values['hot_weight']}"),
        rules=rules,
        hot_ratio=values["hot_ratio"],
        hot_weight=values["hot_weight"],
        unit_bytes=values["unit_bytes"],
        hidden=values["hidden"],
        dtype=_dtype(args.combine_dtype),
        layers=values["layers"] or 1,
    )
    return route_mesh(scenario, seed_rules=args.rules == "seed", placement=_placement(args, values))


def _on_cluster(args: argparse.Namespace, values: dict[str, Any], config: dict[str, Any]) -> RouteResult:
    from tracelens.routing.route import route_ports

    ports, topology = _ports(args, values, config)
    given = _given(args, config)
    is_hot = not given.keys().isdisjoint(("hot_ratio", "hot_weight"))
    has_metadata = not given.keys().isdisjoint(METADATA)
    return route_ports(
        _routing(args, values, f"hot:{values['hot_ratio']},{values['hot_weight']}" if is_hot else "uniform"),
        ports,
        topology=topology,
        hidden=values["hidden"] or 7168,
        dispatch_dtype=_dtype(args.dispatch_dtype or "fp8"),
        combine_dtype=_dtype(args.combine_dtype),
        metadata_bytes=values["unit_bytes"] if has_metadata else 0.0,
        placement=_placement(args, values),
        way=args.way or "hierarchical",
        slots=args.slots,
        layers=values["layers"] or 1,
        steps=1 if args.steps is None else args.steps,
        drift=args.drift or 0.0,
    )


def _given(args: argparse.Namespace, config: dict[str, Any]) -> dict[str, Any]:
    """Parameters that an option or the configuration names."""
    options = {p.name: getattr(args, p.name) for p in PARAMETERS}
    return config | {name: value for name, value in options.items() if value is not None}


def _ports(args: argparse.Namespace, values: dict[str, Any], config: dict[str, Any]) -> tuple[Ports, Topology | None]:
    from tracelens.network.ports import Ports
    from tracelens.routing.route import cluster_system

    packets: dict[str, Any] = {"overlap": values["overlap"] or 1.0}
    for option, name, factor in (
        ("packet_bytes", "packet_bytes", 1),
        ("packet_delay_ms", "packet_us", 1000),
        ("packets_per_turn", "packets_per_turn", 1),
        ("initial_delay_ms", "initial_us", 1000),
    ):
        if option in _given(args, config):
            packets[name] = values[option] * factor
    if args.cluster is None:
        if values["ranks_per_node"] is None or values["inter_gb_s"] is None:
            raise UsageError("without --cluster give --ranks-per-node, --link-gb-s and --inter-gb-s")
        ports = Ports(
            ranks_per_node=values["ranks_per_node"],
            link_gb_s=args.link_gb_s,
            card_gb_s=values["inter_gb_s"],
            **packets,
        )
        return ports, None
    system, topology = cluster_system(args.cluster)
    if system.note:
        print(system.note, file=sys.stderr)
    ports = dataclasses.replace(Ports.of_topology(topology), **packets)
    if args.link_gb_s is not None:
        ports = dataclasses.replace(ports, link_gb_s=args.link_gb_s)
    if values["inter_gb_s"] is not None:
        ports = dataclasses.replace(ports, card_gb_s=values["inter_gb_s"])
    return ports, topology


def _dtype(text: str) -> Any:
    from tracelens.dtypes import DType

    found = DType.parse(text)
    if found is None:
        raise UsageError(f"no element type {text!r}; try fp8, bf16, fp16, fp32 or fp4")
    return found


def _write_log(path: Path, text: str) -> None:
    from tracelens.atomic_write import whole_file

    with whole_file(path) as file:
        file.write(text.encode())


def _lines(result: RouteResult) -> list[str]:
    s = result.summary
    reach = f"{s['mean_ranks']:.2f} ranks on {s['mean_nodes']:.2f} nodes"
    busiest = f"busiest expert {s['expert_imbalance']:.2f} x, busiest rank {s['rank_imbalance']:.2f} x the mean"
    lines = [
        f"{s['tokens']:,} tokens, top {s['topk']} of {s['experts']} experts on {s['ranks']} ranks: one reaches {reach}",
        f"{busiest}; {100 * s['remote_share']:.1f} % of the traffic leaves its rank",
    ]
    if s["dropped_share"]:
        lines.append(f"{100 * s['dropped_share']:.1f} % of the routings are dropped")
    if "time_ms" in s:
        lines.append(
            f"dispatch {s['time_ms']:.2f} ms, {s['rounds']} rounds, {s['packets']:,} packets, "
            f"{s['moved_bytes']:,.0f} bytes moved, {s['local_bytes']:,.0f} local ({s['rules']} rules)"
        )
        lines.append(f"an even load would take {s['even_ms']:.2f} ms")
        if "combine_ms" in s:
            lines.append(f"combine {s['combine_ms']:.2f} ms")
        if s["layers"] > 1:
            lines.append(f"{s['layers']} layers {s['layers_ms']:.2f} ms")
        return lines
    for row in result.frames["phases"].to_dict(orient="records"):
        lines.append(
            f"{row['phase']:8} {row['time_us']:,.1f} us; GB/s a rank: effective "
            f"{row['logical_effective_gb_s']:.1f} logical "
            f"and {row['remote_effective_gb_s']:.1f} remote-only; true {row['logical_true_gb_s']:.1f} and "
            f"{row['remote_true_gb_s']:.1f}; hottest {row['hottest']}"
        )
        if row.get("collective_us"):
            lines.append(f"         all-to-all ({row['collective']}): {row['collective_us']:,.1f} us")
    lines.append(f"imbalance costs {s['imbalance_us']:,.1f} us of the two")
    gain = s["eplb_gain_us"]
    lines.append(
        f"EPLB with {s['eplb_slots']} slots: busiest rank {s['eplb_rank_imbalance']:.2f} x, "
        f"{'gains' if gain >= 0 else 'costs'} {abs(gain):,.1f} us"
    )
    if "layers_us" in s:
        lines.append(f"all layers and steps {s['layers_us']:,.1f} us")
    if "comparison" in result.frames:
        lines += _compared_lines(result)
    return lines


def _compared_lines(result: RouteResult) -> list[str]:
    """One line per op: the mean over its calls in all traces; a call without sizes has no prediction."""
    from tracelens.report.text import terminal_text

    lines = []
    for op, rows in result.frames["comparison"].groupby("op", sort=True):
        sized = rows[rows.predicted_us.notna()]
        shown = rows if sized.empty else sized
        calls = shown.calls.sum()
        measured, predicted = ((shown[f"{name}_us"] * shown.calls).sum() / calls for name in ("measured", "predicted"))
        lines.append(
            f"{terminal_text(str(op))}: {calls} calls in {shown.trace.nunique()} traces, measured {measured:,.1f} us "
            f"(waiting included), "
            + (
                "not predicted: no sizes"
                if sized.empty
                else f"predicted {predicted:,.1f} us, {measured / predicted:.2f} x"
            )
        )
    return lines
