"""Fit the constants of collectives and DeepEP on part of each table and say how far off the other part is.

``python benchmarks/fit_network.py ../shared/data`` prints the tables of docs/network.md and the constants that
tracelens/predict/network/clusters/perlmutter.toml and tracelens/predict/network/deepep.toml hold. Tables are split by
group (node counts, model shapes), never by row. Errors are |estimate / measured - 1| in percent.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.backends.base import System
from tracelens.predict.calibration.fitting import fitted, logarithmic
from tracelens.predict.network.algorithms import bound_us, collective_us
from tracelens.predict.network.deepep import (
    Exchanges,
    Fabric,
    LowLatencyConstants,
    NormalConstants,
    Phase,
    low_latency_us,
    normal_us,
    notify_us,
)
from tracelens.predict.network.deepep import bound_us as exchange_bound_us
from tracelens.predict.network.topology import Group, Protocol, Rates, Tier, TierLink, Topology

Floats = npt.NDArray[np.float64]
Constants = dict[str, float]
Mask = npt.NDArray[np.bool_]
MIB = 1 << 20
WORDS = {"allgather": "all_gather", "reducescatter": "reduce_scatter", "allreduce": "all_reduce"}
HOPPER = Fabric(link_gb_s=450, nic_gb_s=50, ranks_per_node=8, compute_units=132)


def fit(
    model: Callable[[Constants], Floats], start: Constants, free: Sequence[str], measured: Floats, use: Mask
) -> Constants:
    """Constants with the least mean |ln(estimate / measured)| on the rows ``use``; shares stay at most 1."""
    bounds = {
        name: (start[name], start[name] / 10, 1.0 if name.endswith("share") else start[name] * 10) for name in free
    }
    found = fitted(lambda c: model(start | c)[use], measured[use], bounds, error_of=logarithmic, evaluations=1000)
    if found.undetermined:
        print(f"  not determined: {', '.join(found.undetermined)}")
    return start | found.constants


def errors(estimated: Floats, measured: Floats) -> Floats:
    return np.abs(estimated / measured - 1) * 100


def summary(error: Floats) -> str:
    return f"{error.mean():.1f}/{np.median(error):.1f}/{np.quantile(error, 0.9):.0f}" if len(error) else "-"


def held_out(
    model: Callable[[Constants], Floats],
    start: Constants,
    free: Sequence[str],
    measured: Floats,
    parts: Iterable[Mask],
    rows: Mask,
) -> Floats:
    """Error of each row of ``rows`` under constants fitted without its part; NaN elsewhere."""
    error = np.full(len(measured), np.nan)
    for part in parts:
        found = fit(model, start, free, measured, rows & ~part)
        chosen = rows & part
        error[chosen] = errors(model(found), measured)[chosen]
    return error


NCCL_START: Constants = {
    "node_base": 9, "network_base": 16, "network_simple_hop": 22, "node_simple_hop": 8, "network_ll_hop": 6.5,
    "node_ll_hop": 1.07, "node_ll_share": 0.4, "network_ll_share": 0.175, "node_pair_gb_s": 66.9, "card_gb_s": 17.1,
    "alone_gb_s": 14.5, "tree": 2.4,
}  # fmt: skip


def perlmutter(c: Constants) -> Topology:
    """Four A100 in a mesh, four Slingshot cards of 25 GB/s."""

    def protocols(tier: str, tree: float) -> tuple[Protocol, ...]:
        return tuple(
            Protocol(
                name=name, base_us=c[f"{tier}_base"], hop_us=c[f"{tier}_{name}_hop"],
                tree_hop_us=tree * c[f"{tier}_{name}_hop"], rate_share=share,
            )
            for name, share in (("ll", c[f"{tier}_ll_share"]), ("simple", 1.0))
        )  # fmt: skip

    node = TierLink(
        rates=Rates(peak_gb_s=300, all_gather_gb_s=min(300.0, 3 * c["node_pair_gb_s"])),
        protocols=protocols("node", 1.0),
    )
    rates = Rates(peak_gb_s=25, all_gather_gb_s=min(25.0, c["card_gb_s"]), alone_gb_s=min(25.0, c["alone_gb_s"]))
    network = TierLink(rates=rates, protocols=protocols("network", c["tree"]))
    return Topology(
        tiers=(Tier(ranks=4, shape="mesh", link=node), Tier(ranks=None, cards=4, link=network)),
        algorithms=("all_gather/ring", "reduce_scatter/ring", "all_reduce/ring", "all_reduce/tree"),
    )


def nccl(table: pd.DataFrame, topology: Topology) -> Floats:
    """Estimates for the rows of nccl_perlmutter.csv."""
    result = np.empty(len(table))
    for (op, nodes, per_node), rows in table.groupby(["op", "num_nodes", "gpus_per_node"]).indices.items():
        group = Group(ranks=nodes * per_node, stride=4 // per_node)
        result[rows] = collective_us(WORDS[op], table["size"].to_numpy(float)[rows], group, topology)[0]
    return result


def peak_bound(table: pd.DataFrame, topology: Topology) -> Floats:
    result = np.empty(len(table))
    for (op, nodes, per_node), rows in table.groupby(["op", "num_nodes", "gpus_per_node"]).indices.items():
        group = Group(ranks=nodes * per_node, stride=4 // per_node)
        result[rows] = bound_us(WORDS[op], table["size"].to_numpy(float)[rows], group, topology)
    return result


def show_nccl(data: Path) -> None:
    table = pd.read_csv(data / "nccl_perlmutter.csv")
    measured, size = table["time-o"].to_numpy(float), table["size"].to_numpy()
    nodes, per_node = table["num_nodes"].to_numpy(), table["gpus_per_node"].to_numpy()
    everything = np.ones(len(table), dtype=bool)

    def model(c: Constants) -> Floats:
        return nccl(table, perlmutter(c))

    free = list(NCCL_START)
    parts = [np.isin(nodes, [2, 8]), np.isin(nodes, [4, 16])]
    by_nodes = held_out(model, NCCL_START, free, measured, parts, everything)
    two = held_out(model, NCCL_START, free, measured, [per_node == 2], everything)
    found = fit(model, NCCL_START, free, measured, everything)
    on_all = errors(model(found), measured)
    roofline = errors(peak_bound(table, perlmutter(found)), measured)
    print("\n## NCCL, A100 and Slingshot (nccl_perlmutter.csv): mean/median/p90 of the error in %")
    print("| size | " + " | ".join(WORDS) + " | all | gpus_per_node 2 from 1 and 4 | fitted on all | roofline |")
    bands = {
        ">= 64 MiB": size >= 64 * MIB, "1-32 MiB": (size >= MIB) & (size < 64 * MIB), "< 1 MiB": size < MIB,
        "all": everything,
    }  # fmt: skip
    known = ~np.isnan(by_nodes)
    for name, band in bands.items():
        cells = [summary(by_nodes[band & known & (table["op"] == op)]) for op in WORDS]
        cells += [
            summary(by_nodes[band & known]),
            summary(two[band & (per_node == 2)]),
            summary(on_all[band]),
            summary(roofline[band]),
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    show(found)


def between_nodes(topology: Topology, c: Constants) -> Topology:
    """The topology with latencies between nodes times ``hops``, and LL's share of the rate there. The library's file
    has 3.2 times NCCL's own latencies, as fitted from these: ``hops`` is what remains.
    """
    node, network = topology.tiers
    protocols = tuple(
        dataclasses.replace(
            each, hop_us=each.hop_us * c["hops"], tree_hop_us=each.tree_hop_us * c["hops"],
            rate_share=c["ll_share"] if each.name == "ll" else each.rate_share,
        )
        for each in network.link.protocols
    )  # fmt: skip
    link = dataclasses.replace(network.link, protocols=protocols)
    return dataclasses.replace(topology, tiers=(node, dataclasses.replace(network, link=link)))


def show_infiniband() -> None:
    """All-reduces of 16 ranks in two nodes, published by others: each cluster by constants fitted on the others."""
    table = pd.read_csv(Path(__file__).with_name("nccl_infiniband.csv"))
    measured, rows = table["time_us"].to_numpy(float), table.groupby("cluster").indices
    topologies = {name: System.load(name).topology for name in rows}

    def model(c: Constants) -> Floats:
        result = np.empty(len(table))
        for name, chosen in rows.items():
            size, topology = table["size"].to_numpy(float)[chosen], between_nodes(topologies[name], c)
            result[chosen] = collective_us("all_reduce", size, Group(ranks=16), topology)[0]
        return result

    start, everything = {"hops": 1.0, "ll_share": 0.06}, np.ones(len(table), dtype=bool)
    parts = [table["cluster"].to_numpy() == name for name in rows]
    by_cluster = held_out(model, start, list(start), measured, parts, everything)
    print("\n## NCCL over InfiniBand (nccl_infiniband.csv): fitted on the other clusters, and as the library's file is")
    for name, chosen in rows.items():
        as_is = errors(model(start), measured)
        print(f"| {name} | {summary(by_cluster[chosen])} | {summary(as_is[chosen])} |")
    show(fit(model, start, list(start), measured, everything))


def show(constants: Mapping[str, float]) -> None:
    print("  " + ", ".join(f"{name} = {value:.4g}" for name, value in constants.items()))


NORMAL_ONE = (
    "floor_us",
    "floor_us_per_khidden",
    "token_ns",
    "copy_ns",
    "copy_ns_per_byte",
    "token_ns_per_byte",
    "link_share",
)
NORMAL_MANY = ("peer_us", "fill_us", "sm_gb_s")
#: A combine's notification looks at every copy that it will send, a dispatch's waits for buffers; the fit finds no need
#: of the other term.
NOTIFY: dict[Phase, tuple[str, ...]] = {
    "dispatch": ("notify_us", "notify_peer_us", "notify_fill_us"),
    "combine": ("notify_us", "notify_peer_us", "notify_copy_ns"),
}
#: The fit drives a combine's time per token to 0, where it stays.
LOW_ONE: dict[Phase, tuple[str, ...]] = {
    "dispatch": ("floor_us", "expert_ns", "link_share", "unit_gb_s", "token_ns"),
    "combine": ("floor_us", "expert_ns", "link_share", "unit_gb_s"),
}
LOW_MANY = ("nodes_us", "step_us", "nic_share")
NORMAL_START: dict[Phase, Constants] = {
    "dispatch": {
        "floor_us": 26.0, "floor_us_per_khidden": 0.18, "token_ns": 254, "copy_ns": 80, "copy_ns_per_byte": 0.0314,
        "token_ns_per_byte": 0.027, "link_share": 0.76, "peer_us": 3.5, "fill_us": 20, "sm_gb_s": 15, "notify_us": 20,
        "notify_peer_us": 10, "notify_fill_us": 10,
    },
    "combine": {
        "floor_us": 25.5, "floor_us_per_khidden": 3.0, "token_ns": 31, "copy_ns": 26, "copy_ns_per_byte": 0.029,
        "token_ns_per_byte": 0.108, "link_share": 0.75, "peer_us": 4.6, "fill_us": 30, "sm_gb_s": 12, "notify_us": 20,
        "notify_peer_us": 10, "notify_copy_ns": 20,
    },
}  # fmt: skip
LOW_START: dict[Phase, Constants] = {
    "dispatch": {
        "floor_us": 7.6, "expert_ns": 12.8, "link_share": 0.66, "unit_gb_s": 18, "token_ns": 1700, "nodes_us": 4.4,
        "step_us": 5.0, "nic_share": 0.95,
    },
    "combine": {
        "floor_us": 9.2, "expert_ns": 5.7, "link_share": 0.57, "unit_gb_s": 24.0, "nodes_us": 12.6,
        "step_us": 1.7, "nic_share": 0.93,
    },
}  # fmt: skip


def exchanges(table: pd.DataFrame, phase: Phase) -> Exchanges:
    column = {
        name: table[name].to_numpy(float) for name in table.columns if name.startswith(("num_", "hidden", "node"))
    }
    sms = table[f"{phase}_sms"].to_numpy(float) if f"{phase}_sms" in table else 20.0
    return Exchanges(
        phase=phase, tokens=column["num_token"], hidden=column["hidden_size"], topk=column["num_topk"],
        experts=column["num_experts"], nodes=column["node_num"], sms=sms,
    )  # fmt: skip


def shape_halves(table: pd.DataFrame) -> list[Mask]:
    """Every second (hidden, topk, experts), in order, and the others."""
    shape = table.groupby(["hidden_size", "num_topk", "num_experts"]).ngroup().to_numpy()
    return [shape % 2 == 0, shape % 2 == 1]


#: Buckets of the tables by size: tokens per rank, at least and below.
SIZES = ((1, 17), (17, 129), (129, 1025), (1025, 1 << 30))


def show_by_size(title: str, tokens: Floats, cells: Sequence[tuple[Floats, Mask]]) -> None:
    """A line per size: the errors of each of ``cells`` on its rows."""
    for least, below in SIZES:
        band = (tokens >= least) & (tokens < below)
        last = int(tokens[band].max(initial=0))
        shown = " | ".join(summary(error[band & rows]) for error, rows in cells)
        print(f"| {title} | {least}-{last} | {shown} |")
    print(f"| {title} | all | " + " | ".join(summary(error[rows]) for error, rows in cells) + " |")


def halves(values: npt.NDArray[np.int64]) -> list[Mask]:
    """Every second of the distinct values, in order, and the others."""
    odd = np.isin(values, np.unique(values)[::2])
    return [odd, ~odd]


def show_low_latency(data: Path, phase: Phase) -> Constants:
    table = pd.read_csv(data / "deepep_ll.csv")
    measured, nodes = table[f"{phase}_avg_t_us"].to_numpy(float), table["node_num"].to_numpy()
    given, one = exchanges(table, phase), nodes == 1

    def model(c: Constants) -> Floats:
        return np.asarray(low_latency_us(given, HOPPER, LowLatencyConstants(**c, source="fit")))

    by_shape = held_out(model, LOW_START[phase], LOW_ONE[phase], measured, shape_halves(table), one)
    found = fit(model, LOW_START[phase], LOW_ONE[phase], measured, one)
    by_experts = held_out(model, found, LOW_MANY, measured, halves(table["num_experts"].to_numpy()), ~one)
    by_nodes = held_out(model, found, LOW_MANY, measured, [nodes == 2, nodes == 4], ~one)
    found = fit(model, found, LOW_MANY, measured, ~one)
    show_by_size(
        f"low latency {phase}",
        table["num_token"].to_numpy(float),
        [(by_shape, one), *((by_experts, nodes == n) for n in (2, 4)), *((by_nodes, nodes == n) for n in (2, 4))],
    )
    few = one & (table["num_experts"].to_numpy() <= 16)
    top = one & (table["num_topk"].to_numpy() <= 2)
    roofline = errors(np.asarray(exchange_bound_us(given, HOPPER)), measured)
    print(f"  at most 16 experts {summary(by_shape[few])}, top-1 and top-2 {summary(by_shape[top])}", end="; ")
    print(f"roofline {roofline[one].mean():.0f} one node, {roofline[~one].mean():.0f} several")
    return found


def show_normal(data: Path, phase: Phase, nic_share: float) -> Constants:
    table = pd.read_csv(data / "deepep_normal.csv")
    measured = table[f"{phase}_transmit_us"].to_numpy(float)
    nodes, sms = table["node_num"].to_numpy(), table[f"{phase}_sms"].to_numpy()
    given, one = exchanges(table, phase), nodes == 1
    start = NORMAL_START[phase] | {"nic_share": nic_share}

    def model(c: Constants) -> Floats:
        return np.asarray(normal_us(given, HOPPER, NormalConstants(**c, source="fit")))

    by_shape = held_out(model, start, NORMAL_ONE, measured, shape_halves(table), one)
    found = fit(model, start, NORMAL_ONE, measured, one)
    by_sms = held_out(model, found, NORMAL_MANY, measured, halves(sms), ~one)
    by_nodes = held_out(model, found, NORMAL_MANY, measured, [nodes == 2, nodes == 4], ~one)
    found = fit(model, found, NORMAL_MANY, measured, ~one)
    show_by_size(
        f"normal {phase}",
        table["num_token"].to_numpy(float),
        [(by_shape, one), *((by_sms, nodes == n) for n in (2, 4)), *((by_nodes, nodes == n) for n in (2, 4))],
    )
    roofline = errors(np.asarray(exchange_bound_us(given, HOPPER)), measured)
    odd = (nodes == 2) & (sms == 12)
    print(f"  2 nodes, 12 SMs {summary(by_sms[odd])}", end="; ")
    print(f"roofline {roofline[one].mean():.0f} one node, {roofline[~one].mean():.0f} several")
    return found | show_notify(table[~one], phase, found)


def show_notify(table: pd.DataFrame, phase: Phase, found: Constants) -> Constants:
    """The notification between nodes, apart."""
    measured, given = table[f"{phase}_notify_us"].to_numpy(float), exchanges(table, phase)
    nodes, sms = table["node_num"].to_numpy(), table[f"{phase}_sms"].to_numpy()

    def model(c: Constants) -> Floats:
        return np.asarray(notify_us(given, HOPPER, NormalConstants(**c, source="fit")))

    everything = np.ones(len(table), dtype=bool)
    by_sms = held_out(model, found, NOTIFY[phase], measured, halves(sms), everything)
    by_nodes = held_out(model, found, NOTIFY[phase], measured, [nodes == 2, nodes == 4], everything)
    show_by_size(
        f"notify, {phase}",
        table["num_token"].to_numpy(float),
        [(by_sms, nodes < 0), *((by_sms, nodes == n) for n in (2, 4)), *((by_nodes, nodes == n) for n in (2, 4))],
    )
    return fit(model, found, NOTIFY[phase], measured, everything)


def show_published(data: Path, low: Mapping[Phase, Constants]) -> None:
    """The H800 rows, which nothing was fitted on."""
    table = pd.read_csv(data / "deepep_published.csv")
    rows = table[(table["kernel"] == "low_latency") & (table["nodes"] > 1)]
    h800 = dataclasses.replace(HOPPER, link_gb_s=200)
    for phase, constants in low.items():
        part = rows[rows["op"] == phase]
        shape = Exchanges(
            phase=phase, tokens=128.0, hidden=7168.0, topk=8.0, experts=256.0, nodes=part["nodes"].to_numpy(float)
        )
        estimated = low_latency_us(shape, h800, LowLatencyConstants(**constants, source="fit"))
        off = (np.asarray(estimated) / part["latency_us"].to_numpy() - 1) * 100
        print(f"  {phase}, H800, EP {part['ep'].tolist()}: " + " ".join(f"{value:+.0f}" for value in off))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data",
        type=Path,
        help="folder with nccl_perlmutter.csv, deepep_normal.csv, deepep_ll.csv, deepep_published.csv",
    )
    data = parser.parse_args().data
    show_nccl(data)
    show_infiniband()
    print("\n## DeepEP: mean/median/p90 of the error in %, on rows that were not fitted")
    print("One node: the other half of the shapes; several: of the SMs (normal) or of the experts (low latency)")
    print("| kernels | tokens | H200, 1 node | H100, 2 nodes | H100, 4 nodes | 2 nodes from 4 | 4 nodes from 2 |")
    low: dict[Phase, Constants] = {}
    found: dict[str, Constants] = {}
    for phase in ("dispatch", "combine"):
        low[phase] = found[f"low_latency.{phase}"] = show_low_latency(data, phase)
        found[f"normal.{phase}"] = show_normal(data, phase, low[phase]["nic_share"])
    show_published(data, low)
    for name, constants in found.items():
        print(name)
        show(constants)


if __name__ == "__main__":
    main()
