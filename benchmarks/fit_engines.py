"""Fits what serving engines add to the device's work to published points, and writes ``tracelens/serving/engines``.

    python benchmarks/fit_engines.py FOLDER [--write] [--predictions FILE.csv]

FOLDER holds serving_points.csv and tables/serving_inferencex.csv. Three constants per engine and vendor: a factor on
the device's work, and the host's and launches' time per layer and per sequence of a step. Every family is scored with
constants fitted without it: a family is a model in one precision on a device; where an engine has one only, all engines
of that vendor together stand in. Errors are |projected / measured - 1| of the time per output token in percent.
``--predictions`` writes the left-out projections for ``tracelens score``, with intervals of other families' residuals.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tracelens.serving.engines as engines_room
from tracelens.serving.configuration_rows import LIMITS, PointSimulator, point_of

#: (before anything is known, one standard deviation in ln).
PULL = {"device_scale": (1.05, 0.15), "layer_us": (4.0, 0.8), "sequence_us": (5.0, 0.8)}
USUAL = 0.08
BANDS = ((8, "at most 8"), (32, "9 to 32"), (128, "33 to 128"), (10**9, "more"))


@dataclass(frozen=True, kw_only=True)
class Served:
    """A published point: the device's work per step, and how often the other terms count in a token's time."""

    row: Mapping[str, Any]
    engine: str
    family: str
    compute_ms: float
    exchange_ms: float
    steps: float
    layers: int
    batch: int

    @property
    def measured_ms(self) -> float:
        return float(self.row["tpot_ms"])

    @property
    def band(self) -> str:
        return next(name for most, name in BANDS if self.batch <= most)


def read(folder: Path) -> list[Served]:
    """Aggregated serving with a measured time per token; disaggregated points have two pools, which differ."""
    simulator, found = PointSimulator(LIMITS, engine_named="ideal"), []
    for name in ("serving_points.csv", "tables/serving_inferencex.csv"):
        for row in pd.read_csv(folder / name).to_dict("records"):
            if row.get("disagg") is True or row.get("quality") == "C" or not row["tpot_ms"] > 0:
                continue
            found.append(served(row, simulator))
    return found


def served(row: Mapping[str, Any], simulator: PointSimulator) -> Served:
    """One decode step at mid-answer, and the prompts of the others in between."""
    point = point_of(row)
    cost = simulator.cost(point)
    length = point.input_tokens + point.output_tokens
    active = max(1, min(point.concurrency, cost.pool_tokens() // length))
    context = active * (point.input_tokens + point.output_tokens // 2)
    line = cost.decode_line(active, context)
    prompt, exchange = cost.mixed_time(point.input_tokens, [(point.input_tokens, 0)], 1, 1, 0, 0)
    speculation = cost.deployment.speculation
    made = 1.0 if speculation is None else speculation.tokens_per_step
    others = (active - 1) / point.output_tokens
    engine = point.engine + ("-rocm" if cost.system.device.vendor == "amd" else "")
    return Served(
        row=row, engine=engine, family=f"{point.model} on {point.system} in {point.precision or 'its own type'}",
        compute_ms=((line.fixed - line.exchange + line.slope * context) / made + others * prompt) / 1e12,
        exchange_ms=(line.exchange / made + others * exchange) / 1e12,
        steps=1 / made + others, layers=len(cost.layers), batch=active,
    )  # fmt: skip


def projected_ms(logs: np.ndarray, some: Sequence[Served]) -> np.ndarray:
    scale, layer_us, sequence_us = np.exp(logs)
    compute, exchange, steps, layers, batch = np.array(
        [(o.compute_ms, o.exchange_ms, o.steps, o.layers, o.batch) for o in some]
    ).T
    return scale * compute + exchange + steps * (layer_us * layers + sequence_us * batch) / 1e3


def fitted(some: Sequence[Served]) -> np.ndarray:
    """By reweighted least squares of ln; families count alike."""
    center, spread = (np.array(part) for part in zip(*((np.log(v), s) for v, s in PULL.values()), strict=True))
    many = Counter(o.family for o in some)
    weight = np.array([many[o.family] ** -0.5 for o in some])
    weight *= len(some) / weight.sum()
    measured = np.log([o.measured_ms for o in some])
    at = center.copy()
    for _ in range(40):
        now = np.log(projected_ms(at, some)) - measured
        slopes = np.stack(
            [(np.log(projected_ms(at + 1e-3 * u, some)) - measured - now) / 1e-3 for u in np.eye(3)], axis=1
        )
        pull = weight / (USUAL * np.maximum(np.abs(now), USUAL / 2))
        step = np.linalg.solve(
            slopes.T @ (pull[:, None] * slopes) + np.diag(spread**-2.0),
            -slopes.T @ (pull * now) - (at - center) / spread**2,
        )
        at = at + np.clip(step, -0.3, 0.3)
    return at


def left_out(points: Sequence[Served]) -> list[tuple[Served, float]]:
    """(point, projected over measured)."""
    scored: list[tuple[Served, float]] = []
    for engine in sorted({o.engine for o in points}):
        mine = [o for o in points if o.engine == engine]
        for family in sorted({o.family for o in mine}):
            rest = [o for o in mine if o.family != family]
            if not rest:
                vendor = engine.endswith("-rocm")
                rest = [o for o in points if o.family != family and o.engine.endswith("-rocm") == vendor]
            some = [o for o in mine if o.family == family]
            ratios = projected_ms(fitted(rest), some) / np.array([o.measured_ms for o in some])
            scored += zip(some, ratios.tolist(), strict=True)
    return scored


def line(title: str, ratios: Sequence[float]) -> str:
    error = 100 * (np.array(ratios) - 1)
    size = np.abs(error)
    return (
        f"| {title} | {len(error)} | {np.median(size):.1f} | {np.percentile(size, 90):.1f} | {np.median(error):+.1f} |"
    )


def spans(scored: Sequence[tuple[Served, float]], engine: str, without: Served | None = None) -> list[float]:
    """Between which multiples of an estimate nine tenths and half of measured points were, of all engines on that
    vendor's devices: an engine's own families are too few. Every family counts alike; that of ``without`` not at all.
    """
    is_rocm = engine.endswith("-rocm")
    hidden = None if without is None else (without.engine, without.family)
    some = [(o, r) for o, r in scored if o.engine.endswith("-rocm") == is_rocm and (o.engine, o.family) != hidden]
    many = Counter((o.engine, o.family) for o, _ in some)
    measured = np.array([1 / r for _, r in some])
    weight = np.array([1 / many[o.engine, o.family] for o, _ in some])
    order = np.argsort(measured)
    below = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    return [float(np.interp(share, below, measured[order])) for share in (0.05, 0.25, 0.75, 0.95)]


def write(points: Sequence[Served], scored: Sequence[tuple[Served, float]], today: str) -> None:
    folder = Path(engines_room.__file__).parent
    names = sorted({o.engine for o in points})
    for name in [*names, "pooled", "pooled-rocm"]:
        rocm = name.endswith("-rocm")
        mine = [
            o for o in points if o.engine == name or (name.startswith("pooled") and o.engine.endswith("-rocm") == rocm)
        ]
        constants = dict(zip(PULL, np.exp(fitted(mine)).tolist(), strict=True))
        families = ", ".join(sorted({o.family for o in mine}))
        lines = [
            f'name = "{name}"',
            f'source = "{len(mine)} published points: {families}; fit_engines.py, {today}"',
            *(f"{key} = {value:.4g}" for key, value in constants.items()),
            "",
            "[residuals]",
            *(f"{key} = {value:.4g}" for key, value in
              zip(("most_low", "half_low", "half_high", "most_high"), spans(scored, name), strict=True)),
        ]  # fmt: skip
        (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--predictions", type=Path, metavar="FILE.csv")
    parser.add_argument("--date", default="2026-11-22")
    args = parser.parse_args()
    points = read(args.folder)
    scored = left_out(points)
    groups: dict[str, list[float]] = defaultdict(list)
    for one, ratio in scored:
        further = " with MTP" if one.row.get("spec_decoding") == "mtp" else ""
        for title in ("all", one.engine + further, f"{one.engine}{further}, {one.band} at once", one.family):
            groups[title].append(ratio)
    print("| left out | points | median | p90 | signed |\n|---|---|---|---|---|")
    for title in sorted(groups):
        print(line(title, groups[title]))
    for name in sorted({o.engine for o in points}):
        print(name, dict(zip(PULL, np.exp(fitted([o for o in points if o.engine == name])).round(3), strict=True)))
    if args.write:
        write(points, scored, args.date)
    if args.predictions is not None:
        with args.predictions.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(("id", "area", "family", "measured", "predicted", "low", "high"))
            known: dict[tuple[str, str], list[float]] = {}
            for one, ratio in scored:
                key = one.engine, one.family
                low, _, _, high = known[key] if key in known else known.setdefault(key, spans(scored, one.engine, one))
                family, found = f"{one.engine} {one.family}", one.measured_ms * ratio
                out.writerow((one.row["id"], "serving TPOT", family, one.measured_ms, found, low * found, high * found))


if __name__ == "__main__":
    main()
