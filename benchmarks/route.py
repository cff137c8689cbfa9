"""Speed and memory of `tracelens route`'s parts, and how near DeepEP's published V1 tables are.

    python benchmarks/route.py [--data ../shared/data] [--large]

Rates are over one core's CPU time, the best of some runs. ``--large`` adds 10 million tokens on 1,024 ranks, in a
process of its own whose peak memory is printed. The V1 constants are fitted leaving each EP size out in turn; errors
are predicted time over published time - 1, in %.
"""

from __future__ import annotations

import argparse
import csv
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.predict.network.deepep import distinct
from tracelens.predict.network.packets import MeshRules, simulate
from tracelens.predict.network.ports import Exchange, Ports, simulate_ports
from tracelens.predict.network.traffic import Copies, Traffic
from tracelens.predict.routing.exchange import payload
from tracelens.predict.workload.token_routing import Skew, route, route_group_limited, sample
from tracelens.types.dtypes import DType

HIDDEN, TOPK, EXPERTS, RANKS_PER_NODE = 7168, 8, 256, 8
#: H800, as DeepEP's README gives them beside the tables: GB/s of a rank's NVLink and of its network card.
LINK_GB_S, CARD_GB_S = 160.0, 50.0
#: At most this many nodes per token (the tables' "top-4 groups").
MOST_NODES = 4


def best(action: Callable[[], Any], runs: int = 3) -> tuple[float, Any]:
    seconds, result = math.inf, None
    for _ in range(runs):
        started = time.process_time()
        result = action()
        seconds = min(seconds, time.process_time() - started)
    return seconds, result


def speeds() -> None:
    tokens = 1_000_000
    for text in ("uniform", "zipf:1.1", "zipf:2", "hot:0.05,0.8"):
        seconds, chosen = best(lambda t=text: route(Skew.parse(t), tokens=tokens // 4, experts=EXPERTS, topk=TOPK), 2)
        print(f"sampling without replacement, {text:12} {len(chosen) / seconds / 1e6:6.2f} M tokens/s")
    chosen = route(Skew.parse("zipf:1.1"), tokens=tokens, experts=EXPERTS, topk=TOPK)
    place = np.arange(EXPERTS) // 4
    seconds, _ = best(lambda: Copies.from_assignment(chosen, place, ranks=64, ranks_per_node=8))
    print(f"load matrices by expert, rank and node, 64 ranks  {tokens / seconds / 1e6:6.2f} M tokens/s")
    rng = np.random.default_rng(0)
    for ranks in (8, 64):
        traffic = Traffic(wire_bytes=rng.integers(1_000, 100_000, (ranks, ranks)).astype(float))
        for name, rules in (("", MeshRules()), (", NIC binds", MeshRules(nic_bytes_per_round=20 * ranks))):
            seconds, times = best(lambda t=traffic, r=rules: simulate(t, r))
            print(f"mesh packets, {ranks:2} ranks{name:12} {times.packets / seconds / 1e6:7.2f} M packets/s")
    seconds, times = best(lambda: simulate(Traffic.even(16e6, 8), replace(MeshRules(), packet_bytes=20)), 1)
    print(f"mesh packets, even load         {times.packets / seconds / 1e6:6.1f} M packets/s")
    copies = Copies.from_assignment(chosen[: 64 * 4096], place, ranks=64, ranks_per_node=8)
    ports = Ports(ranks_per_node=8, link_gb_s=LINK_GB_S, card_gb_s=CARD_GB_S, packet_bytes=7392)
    for name, exchange in (
        ("direct", Exchange.direct(Traffic(wire_bytes=copies.per_rank * 7392.0), 8)),
        ("hierarchical", Exchange.hierarchical(copies, 7392.0)),
    ):
        seconds, found = best(lambda e=exchange: simulate_ports(e, ports))
        print(f"port packets, {name:12}      {found.packets / seconds / 1e6:6.2f} M packets/s")


def large() -> None:
    """10 million tokens on 1,024 ranks; prints its own peak memory."""
    weights = Skew.parse("zipf:1.1").weights(1024, seed=0)
    started = time.process_time()
    chosen = sample(weights, tokens=10_000_000, topk=TOPK)
    sampled = time.process_time()
    copies = Copies.from_assignment(chosen, np.arange(1024), ranks=1024, ranks_per_node=8)
    counted = time.process_time()
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(
        f"10 M tokens, 1,024 ranks: sampled in {sampled - started:.1f} s, counted in {counted - sampled:.1f} s, "
        f"{copies.mean_ranks:.2f} ranks per token, peak {peak_gb:.2f} GB"
    )


def published(data: Path) -> dict[str, dict[int, float]]:
    """Error in % of each row of DeepEP's V1 tables by kernel and EP size, from constants fitted without that size."""
    with (data / "deepep_published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["version"] == "V1"]
    low = _low_latency_errors([row for row in rows if row["kernel"] == "low_latency"])
    normal = _normal_errors([row for row in rows if row["kernel"] == "normal"])
    found = {f"low latency {phase}": errors for phase, errors in low.items()}
    return found | {f"normal {phase}": errors for phase, errors in normal.items()}


def show_published(data: Path) -> None:
    found = published(data)
    for kernel, errors in found.items():
        print(f"V1 {kernel:20} " + "  ".join(f"EP{ep} {error:+.1f}" for ep, error in errors.items()))
    print(f"largest error {max(abs(error) for errors in found.values() for error in errors.values()):.1f} %")


def _low_latency_errors(rows: list[dict[str, str]]) -> dict[str, dict[int, float]]:
    """t = alpha + max(X / link peak, X (EP - 8)/EP / card rate), X all copies; alpha is one for both phases.

    Three constants (alpha, a card rate per phase) by least squares of the logarithms.
    """
    alpha = np.linspace(0, 60, 241)[:, None, None]
    rate = np.linspace(34, CARD_GB_S, 161)[None, :, None]
    grids = {}
    for phase in ("dispatch", "combine"):
        mine = [row for row in rows if row["op"] == phase]
        ep, measured = (np.array([float(row[key]) for row in mine]) for key in ("ep", "latency_us"))
        copy = _token_bytes(phase) + (16 if phase == "dispatch" else 0)
        sent = float(mine[0]["tokens"]) * TOPK * copy
        remote = sent * (ep - RANKS_PER_NODE) / ep
        predicted = alpha + np.maximum(sent / LINK_GB_S / 1e3, remote / rate / 1e3)
        grids[phase] = (ep, measured, predicted)
    errors: dict[str, dict[int, float]] = {phase: {} for phase in grids}
    for left_out in grids["dispatch"][0]:
        losses = {p: (np.log(g[2] / g[1])[..., g[0] != left_out] ** 2).sum(-1) for p, g in grids.items()}
        at_alpha = int(sum(loss.min(axis=1) for loss in losses.values()).argmin())  # type: ignore[union-attr]
        for phase, (ep, measured, predicted) in grids.items():
            at_rate = int(losses[phase][at_alpha].argmin())
            here = ep == left_out
            errors[phase][int(left_out)] = 100 * float((predicted[at_alpha, at_rate, here] / measured[here] - 1)[0])
    return errors


def _normal_errors(rows: list[dict[str, str]]) -> dict[str, dict[int, float]]:
    """t = p8(U (R-1)/R y / (a link), Un (N-1)/N y / (b card)), p8 the 8-norm: bytes that leave their rank.

    The tables print all bytes over t: of U copies within a node, of Un between nodes. Two constants per phase.
    """
    link_share, card_share = np.linspace(0.6, 1, 401)[:, None], np.linspace(0.6, 1, 401)[None, :]
    errors: dict[str, dict[int, float]] = {}
    for phase in ("dispatch", "combine"):
        y = _token_bytes(phase)
        ratio = {}
        for row in (row for row in rows if row["op"] == phase):
            ranks, nodes = int(row["ep"]), int(row["nodes"])
            unique_ranks, unique_nodes = _unique(ranks, nodes)
            inside = unique_ranks * (ranks - 1) / ranks * y / (link_share * LINK_GB_S * 1e3) + 0 * card_share
            across = unique_nodes * (nodes - 1) / nodes * y / (card_share * CARD_GB_S * 1e3) + 0 * link_share
            time_us = (inside**8 + across**8) ** 0.125
            printed = (unique_ranks if nodes == 1 else unique_nodes) * y / float(row["bandwidth_gbps"]) / 1e3
            ratio[ranks] = time_us / printed
        errors[phase] = {}
        for left_out in ratio:
            loss = sum(np.log(r) ** 2 for ep, r in ratio.items() if ep != left_out)
            errors[phase][left_out] = 100 * float(ratio[left_out].ravel()[np.argmin(loss)] - 1)
    return errors


def _token_bytes(phase: str) -> float:
    """Dispatch in FP8 with scales, combine in BF16."""
    return payload(HIDDEN, DType.FP8_E4M3FN if phase == "dispatch" else DType.BF16).copy_bytes


def _unique(ranks: int, nodes: int) -> tuple[float, float]:
    """Distinct ranks and nodes of a token, its own included, at most ``MOST_NODES`` nodes."""
    if nodes <= MOST_NODES:
        return float(distinct(ranks, EXPERTS, TOPK)), float(distinct(nodes, EXPERTS, TOPK))
    chosen = route_group_limited(
        np.full(EXPERTS, 1 / EXPERTS), tokens=50_000, topk=TOPK, groups=nodes, best_groups=MOST_NODES
    )
    place = np.arange(EXPERTS) * ranks // EXPERTS
    copies = Copies.from_assignment(chosen, place, ranks=ranks, ranks_per_node=RANKS_PER_NODE)
    return copies.mean_ranks, copies.mean_nodes


def main() -> None:
    parser = argparse.ArgumentParser(description="Routing: speed, memory, DeepEP's published V1 tables")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--large", action="store_true", help="10 million tokens on 1,024 ranks")
    parser.add_argument("--only-large", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only_large:
        large()
        return
    if (args.data / "deepep_published.csv").exists():
        show_published(args.data)
    speeds()
    if args.large:
        subprocess.run([sys.executable, __file__, "--only-large"], check=True)


if __name__ == "__main__":
    main()
