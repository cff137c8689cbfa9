"""Measures the step projection against published training steps, and prints the tables of docs/projection.md.

    python benchmarks/project.py FOLDER [--rows] [--fit]

FOLDER holds training_points.csv and vtrain.csv. Errors are |projected / measured - 1| of the step time in percent:
median, 90th percentile, median with its sign. Nothing is fitted on these rows. ``--rows`` also prints every row.
``--fit`` shows what fitted constants of each framework do: products, attention, memory (vTrain: products and host time
per operation). They are chosen on the other models (vTrain: on the other hidden size), never on the rows scored.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tracelens.backends.system import System
from tracelens.errors import TracelensError
from tracelens.projection.points import Point, project_row
from tracelens.projection.software import PLAIN, Software
from tracelens.projection.step import Projection, project
from tracelens.workload.model_config import ModelConfig
from tracelens.workload.parallel_config import ParallelConfig

#: Factors of ``Software``, and which parts of a breakdown they scale.
CONSTANTS = ("products", "attention", "memory")
PARTS = {
    "products": ("gemm", "experts", "vocabulary"),
    "attention": ("attention",),
    "memory": ("memory", "routing", "quantize", "optimizer"),
}
#: vTrain: host time per operation in us, and factor of products.
GRID = tuple((us, products) for us in (60.0, 80.0, 100.0, 120.0, 150.0) for products in (1.0, 1.2, 1.4, 1.6))


def group(row: Mapping[str, str]) -> str:
    """Framework, kind, and whether recomputation is stated."""
    framework = row["framework"].split(" 2")[0] or "not stated"
    stated = "recipe" if row["recompute"] == "recipe" else "stated"
    return f"{framework} {row['kind']}, recompute {stated}"


def line(name: str, errors: Sequence[float]) -> str:
    e = np.array(errors) * 100
    size = np.abs(e)
    return f"| {name} | {len(e)} | {np.median(size):.1f} | {np.percentile(size, 90):.1f} | {np.median(e):+.1f} |"


def table(title: str, groups: Mapping[str, Sequence[float]]) -> None:
    print(f"\n| {title} | rows | median | p90 | signed |\n|---|---|---|---|---|")
    for name in sorted(groups):
        print(line(name, groups[name]))


def error_of(point: Point, row: Mapping[str, str]) -> float | None:
    if point.projection is None or not row["step_time_s"]:
        return None
    return point.projection.step_us / 1e6 / float(row["step_time_s"]) - 1


def training_points(path: Path, *, rows_too: bool) -> list[dict[str, str]]:
    rows = list(csv.DictReader(path.open(newline="", encoding="utf-8")))
    by_group, by_gpu, by_precision = (defaultdict(list) for _ in range(3))
    reasons: list[str] = []
    infeasible = 0
    for row in rows:
        point = project_row(row)
        error = error_of(point, row)
        if rows_too:
            shown = point.reason if error is None else f"{error:+.1%}"
            print(
                f"| {row['id']} | {row['model']} | {row['gpu']} | {row['precision']} | {row['recompute']} | {shown} |"
            )
        if point.reason is not None:
            reasons.append(f"{row['id']}: {point.reason}")
        if error is None:
            continue
        infeasible += point.projection is not None and point.projection.infeasible is not None
        by_group[group(row)].append(error)
        by_gpu[f"{row['kind']} {row['gpu']}"].append(error)
        by_precision[f"{row['kind']} {row['precision']}"].append(error)
    table("group", by_group)
    table("device", by_gpu)
    table("precision", by_precision)
    print(f"\n{len(reasons)} of {len(rows)} rows have a reason:")
    print("\n".join(reasons))
    print(f"\n{infeasible} measured rows are called infeasible")
    return rows


def fitted(name: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Scores every family with the constants that are best on all other families of the framework."""
    mine = [row for row in rows if row["framework"].startswith(name.split(",")[0]) and row["step_time_s"]]
    mine = [row for row in mine if row["kind"] == name.split(", ")[1]]
    plain = [(row, point) for row in mine if (point := project_row(row)).projection is not None]
    scored: list[float] = []
    print(f"\n{name}: constants chosen on the other models")
    for family in sorted({row["model"] for row, _ in plain}):
        others = [(r, p.projection) for r, p in plain if r["model"] != family and p.projection is not None]
        constants = best_constants(others)
        software = replace(PLAIN, **dict(zip(CONSTANTS, constants, strict=True)))
        errors = [error_of(project_row(row, software=software), row) for row, _ in plain if row["model"] == family]
        known = [error for error in errors if error is not None]
        shown = ", ".join(f"{key} {value:.2f}" for key, value in zip(CONSTANTS, constants, strict=True))
        print(f"{line(family, known)} {shown}")
        scored += known
    print(line("all", scored))


def best_constants(points: Sequence[tuple[Mapping[str, str], Projection]]) -> list[float]:
    """Least mean |ln(projected / measured)|, one constant after the other, on the breakdowns of the plain steps.

    Recomputation is scaled as the forward is on average; what overlaps is taken to stay as exposed as it is.
    """
    parts = np.array([[sum(p.breakdown_us.get(k, 0.0) for k in PARTS[c]) for c in CONSTANTS] for _, p in points])
    again = np.array([p.breakdown_us.get("recompute", 0.0) for _, p in points])
    bubble = np.array([1 / (1 - p.bubble_share) for _, p in points])
    rest = np.array([p.step_us for _, p in points]) - (parts.sum(axis=1) + again) * bubble
    measured = np.array([float(row["step_time_s"]) * 1e6 for row, _ in points])

    def loss(constants: Sequence[float]) -> float:
        scaled = parts @ np.array(constants)
        repeated = again * scaled / parts.sum(axis=1)
        return float(np.mean(np.abs(np.log(((scaled + repeated) * bubble + rest) / measured))))

    best = [1.0] * len(CONSTANTS)
    for _ in range(12):
        for at in range(len(best)):
            tried = [[*best[:at], value, *best[at + 1 :]] for value in np.geomspace(0.6, 4.0, 96)]
            best = min([best, *tried], key=loss)
    return best


def vtrain_row(row: Mapping[str, str], software: Software) -> float | None:
    """Error of one vTrain row: FP16, unfused attention, no sequence parallelism, an A100 node (vTrain, 2023)."""
    names = {
        "tp": "tensor parallelism", "dp": "data parallelism", "pp": "pipeline parallelism",
        "micro_batch": "micro batch", "global_batch": "global batch", "ranks": "# GPUs",
    }  # fmt: skip
    try:
        found = project(
            ModelConfig.load(f"gpt-{row['hidden size']}x{row['# layers']}"),
            ParallelConfig.of(
                **{key: int(row[name]) for key, name in names.items()},  # type: ignore[arg-type]
                zero=0, precision="fp16", attention="unfused",
            ),
            System.load("A100-80GB-SXM"),
            sequence=int(row["sequence length"]),
            software=software,
        )  # fmt: skip
    except TracelensError as error:
        print(f"vtrain row without a projection: {error}")
        return None
    return found.step_us / 1e3 / float(row["iteration time (ms)"]) - 1


def vtrain(path: Path, *, fit: bool) -> None:
    rows = list(csv.DictReader(path.open(newline="", encoding="utf-8")))
    errors = [vtrain_row(row, PLAIN) for row in rows]
    plain = [e for e in errors if e is not None]
    print(f"\nvTrain, nothing fitted: mean {100 * np.mean(np.abs(plain)):.1f}")
    by_batch = defaultdict(list)
    for row, error in zip(rows, errors, strict=True):
        if error is not None:
            by_batch[f"micro-batch {row['micro batch']}"].append(error)
    table("vTrain", by_batch | {"all": plain})
    if not fit:
        return
    at = {(us, x): [vtrain_row(row, Software(host_us_per_op=us, products=x)) for row in rows] for us, x in GRID}
    sizes, scored = [row["hidden size"] for row in rows], []
    for size in sorted(set(sizes)):
        best = min(at, key=lambda c: mean_log(e for e, k in zip(at[c], sizes, strict=True) if k != size))
        mine = [e for e, k in zip(at[best], sizes, strict=True) if k == size and e is not None]
        print(f"{line(f'hidden size {size}', mine)} host {best[0]:g} us per operation, products {best[1]:g}")
        scored += mine
    print(f"{line('all', scored)} mean {100 * np.mean(np.abs(scored)):.1f}")


def mean_log(errors: Iterable[float | None]) -> float:
    return float(np.mean([abs(math.log1p(e)) for e in errors if e is not None]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--fit", action="store_true")
    args = parser.parse_args()
    start = time.perf_counter()
    rows = training_points(args.folder / "training_points.csv", rows_too=args.rows)
    if args.fit:
        for name in ("llm-foundry, dense", "Megatron-Bridge, dense", "Megatron-Bridge, moe"):
            fitted(name, rows)
    vtrain(args.folder / "vtrain.csv", fit=args.fit)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
