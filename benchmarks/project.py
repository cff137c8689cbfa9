"""Measures the step projection against published training steps, and prints the tables of docs/projection.md.

    python benchmarks/project.py FOLDER [--rows FILE.csv --left-out P.csv] [--fit] [--vtrain]

FOLDER holds training_points.csv and vtrain.csv. Errors are |projected / measured - 1| of the step time in percent:
median, 90th percentile, median with its sign. ``--rows`` writes docs/projection_rows.csv from the projections that
``fit_profiles.py --predictions`` made with constants fitted without the row's family. ``--fit`` scores fitted
constants: every model is projected with those that are best on all other models of its framework (vTrain: on the other
hidden size), and with one measured step of the same model and device as a factor on the unfitted projection. Fits run
on the breakdowns of unfitted projections; scores are full projections.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.backends.base import System
from tracelens.errors import TracelensError
from tracelens.laboratory.training_rows import RowOptions, project_row
from tracelens.predict.projection.overheads import PLAIN, Software
from tracelens.predict.projection.step import Projection, project
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig

#: Framework -> the constants of ``Software`` that are fitted; the others keep their defaults.
FITTED = {
    "llm-foundry": ("products", "attention", "memory"),
    "Megatron-Bridge": ("products", "memory", "host_us_per_op", "experts_us"),
    "vTrain": ("products", "host_us_per_op"),
}
#: Fits minimize the mean of |ln(projected / measured)| to this power, which outliers pull less than at 1.
POWER = 0.75
#: Where factors can hardly be told apart (products, memory, the host), squared logarithms times this are added.
RIDGE = {"Megatron-Bridge": 0.03, "vTrain": 0.03}
#: Where every family counts the same: sizes of one model. Elsewhere every row does.
BALANCED = frozenset({"llm-foundry"})
#: Values that are tried.
TRIED = {
    "products": np.geomspace(0.8, 2.0, 185), "attention": np.geomspace(0.8, 3.0, 265),
    "memory": np.geomspace(0.8, 2.5, 230), "host_us_per_op": np.geomspace(2, 250, 240),
    "experts_us": np.geomspace(100, 30000, 240),
}  # fmt: skip
#: Parts of a breakdown that each factor scales.
PARTS = {
    "products": ("gemm", "experts", "vocabulary"), "attention": ("attention",),
    "memory": ("memory", "quantize", "routing"),
}  # fmt: skip
#: Nothing fitted.
BARE = RowOptions(framework="ideal")
_ONCE = ("pipeline bubble", "dp", "pp", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A published step and its unfitted projection."""

    row: Mapping[str, str]
    found: Projection
    step_us: float
    again: Callable[[Software], Projection]

    def error(self, found: Projection) -> float:
        return found.step_us / self.step_us - 1


def points(path: Path) -> tuple[list[Measured], list[dict[str, str]], dict[str, str]]:
    """Rows with a projection and a time, all rows, and the reason or the error of each by id."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    made, said = [], {}
    for row in rows:
        point = project_row(row, BARE)
        found, measured = point.projection, row["step_time_s"]
        if found is None:
            said[row["id"]] = point.reason or ""
            continue
        if not measured:
            said[row["id"]] = f"{found.step_us / 1e6:.2f} s; no measured step time"
            continue
        made.append(
            Measured(row=row, found=found, step_us=1e6 * float(measured), again=lambda s, r=row: _projection(r, s))
        )
        said[row["id"]] = f"{made[-1].error(found):+.1%}"
    return made, rows, said


def _projection(row: Mapping[str, str], software: Software) -> Projection:
    found = project_row(row, replace(BARE, constants=asdict(software))).projection
    assert found is not None
    return found


def group(row: Mapping[str, str]) -> str:
    """Framework, kind, and whether recomputation is stated."""
    framework = row["framework"].split(" 2")[0] or "not stated"
    return f"{framework} {row['kind']}, recompute {'recipe' if row['recompute'] == 'recipe' else 'stated'}"


def line(name: str, errors: Sequence[float]) -> str:
    e = np.array(errors) * 100
    size = np.abs(e)
    return (
        f"| {name} | {len(e)} | {np.median(size):.1f} | {np.percentile(size, 90):.1f} | {np.median(e):+.1f} | "
        f"{size.max():.1f} |"
    )


def table(title: str, groups: Mapping[str, Sequence[float]]) -> None:
    print(f"\n| {title} | rows | median | p90 | signed | largest |\n|---|---|---|---|---|---|")
    for name in sorted(groups):
        print(line(name, groups[name]))


def by(made: Sequence[Measured], key: Callable[[Mapping[str, str]], str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for each in made:
        found[key(each.row)].append(each.error(each.found))
    return found


class Fit:
    """Steps as functions of constants, from breakdowns: factors scale their parts, recomputation as the forward does on
    average; the host's time joins the device's in a cubic norm.
    """

    def __init__(self, made: Sequence[Measured]) -> None:
        self.parts = {c: self._sum(made, PARTS[c]) for c in PARTS}
        scaled = sum(self.parts.values())
        self.again = self._sum(made, ("recompute",)) / scaled
        self.pipe = np.array([sum(v for k, v in m.found.breakdown_us.items() if k not in _ONCE) for m in made])
        self.fixed = self.pipe - scaled * (1 + self.again) - self._sum(made, ("host",))
        self.bubble = self._sum(made, ("pipeline bubble",)) / self.pipe
        self.once = self._sum(made, ("dp", "pp"))
        self.optimizer = self._sum(made, ("optimizer",))
        self.measured = np.array([m.step_us for m in made])
        self.graphs = [m.found.parallel.graphs for m in made]
        self.host = {name: np.array([self._host(m, name) for m in made]) for name in ("host_us_per_op", "experts_us")}

    @staticmethod
    def _sum(made: Sequence[Measured], parts: Iterable[str]) -> np.ndarray:
        return np.array([sum(m.found.breakdown_us.get(part, 0.0) for part in parts) for m in made])

    @staticmethod
    def _host(one: Measured, name: str) -> float:
        """How often the busiest rank's host spends this time in a step."""
        large = 1e9
        software = replace(replace(PLAIN, host_us_per_op=0.0), **{name: large})
        f = one.found
        bound = project(
            f.model, replace(f.parallel, graphs="none"), f.system,
            sequence=f.sequence, schedule=f.schedule if f.parallel.pp > 1 else None, software=software,
        )  # fmt: skip
        return sum(v for k, v in bound.breakdown_us.items() if k not in _ONCE) / large

    def ratios(self, software: Software, rows: np.ndarray) -> np.ndarray:
        """Projected over measured."""
        scaled = sum(getattr(software, c) * self.parts[c] for c in PARTS)
        left = {graphs: software.left(graphs) for graphs in set(self.graphs)}
        host = sum(
            np.array([getattr(left[graphs], name) for graphs in self.graphs]) * times
            for name, times in self.host.items()
        )
        pipe = np.cbrt((scaled * (1 + self.again) + self.fixed) ** 3 + host**3)
        step = pipe * (1 + self.bubble) + self.once + software.memory * self.optimizer
        return (step / self.measured)[rows]

    def best(self, names: Sequence[str], rows: np.ndarray, weights: np.ndarray, ridge: float) -> Software:
        """From several starts, one constant after the other until nothing improves; the best of all."""

        def loss(software: Software) -> float:
            error = np.average(np.abs(np.log(self.ratios(software, rows))) ** POWER, weights=weights)
            return float(error) + ridge * float(np.log(software.products) ** 2 + np.log(software.memory) ** 2)

        found = []
        for products in (1.0, 1.15):
            best = replace(PLAIN, products=products)
            for _ in range(10):
                before = loss(best)
                for name in names:
                    tried = [replace(best, **{name: float(value)}) for value in TRIED[name]]
                    best = min([best, *tried], key=loss)
                if before - loss(best) < 1e-5:
                    break
            found.append(best)
        return min(found, key=loss)


def family(row: Mapping[str, str]) -> str:
    """The model; variants of it (with and without further tokens predicted) together."""
    return row["model"].split(" (")[0]


def fitted(name: str, made: Sequence[Measured], of: Callable[[Mapping[str, str]], str]) -> list[tuple[Measured, float]]:
    """Every family with the constants that are best on the framework's others."""
    fit, families = Fit(made), np.array([of(m.row) for m in made])
    weights = np.array([1 / np.sum(families == each) if name in BALANCED else 1.0 for each in families])
    ridge = RIDGE.get(name, 0.0)
    scored: list[tuple[Measured, float]] = []
    print(f"\n{name}: constants chosen on the other families\n")
    print("| left out | rows | median | p90 | signed | largest | constants |\n|---|---|---|---|---|---|---|")
    for each in sorted(set(families)):
        software = fit.best(FITTED[name], families != each, weights[families != each], ridge)
        mine = [(m, m.error(m.again(software))) for m, f in zip(made, families, strict=True) if f == each]
        print(f"{line(each, [e for _, e in mine])} {_shown(software, FITTED[name])} |")
        scored += mine
    print(f"all rows: {_shown(fit.best(FITTED[name], weights > 0, weights, ridge), FITTED[name])}")
    return scored


def _shown(software: Software, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {getattr(software, name):.3g}" for name in names)


def anchored(scored: Sequence[tuple[Measured, float]], *same: str) -> list[float]:
    """Every row with the measured step of every other of the same model and ``same`` columns as a factor.

    An anchor divides the row's projected over measured time by the other's.
    """
    return [
        (1 + error) / (1 + error_of_other) - 1
        for one, error in scored
        for other, error_of_other in scored
        if one is not other
        and family(one.row) == family(other.row)
        and all(one.row[key] == other.row[key] for key in same)
    ]


def ranked(made: Sequence[Measured]) -> None:
    """Spearman's correlation of projected and measured tokens/s/GPU within a model's rows."""
    found = {}
    for each in sorted({family(m.row) for m in made}):
        mine = [m for m in made if family(m.row) == each]
        if len(mine) >= 4:
            measured = [m.found.tokens_per_s_per_gpu * m.found.step_us / m.step_us for m in mine]
            ranks = [np.argsort(np.argsort(v)) for v in ([m.found.tokens_per_s_per_gpu for m in mine], measured)]
            found[each] = float(np.corrcoef(*ranks)[0, 1])
    print("\nrank correlation of tokens/s/GPU, nothing fitted: " + ", ".join(f"{k} {v:.2f}" for k, v in found.items()))


def amd(rows: Sequence[Mapping[str, str]]) -> None:
    """Rows of AMD devices that state all but the batch: 32 micro-batches are assumed, and recomputation where the step
    does not fit without.
    """
    print(
        "\n| id | model | device | recompute | tokens/s/GPU measured | projected | error |\n"
        "|---|---|---|---|---|---|---|"
    )
    for row in rows:
        said = all(
            row[name] for name in ("n_gpus", "tp", "pp", "cp", "dp", "mbs", "seq_len", "precision", "tokens_s_gpu")
        )
        if not row["gpu"].startswith("MI") or row["gbs"] or not said:
            continue
        batch = str(32 * float(row["mbs"]) * float(row["dp"]))
        for recompute in ("none", "full"):
            found = project_row({**row, "gbs": batch, "recompute": recompute}, BARE).projection
            if found is not None and (found.infeasible is None or recompute == "full"):
                measured = float(row["tokens_s_gpu"])
                cells = (
                    row["id"],
                    row["model"],
                    row["gpu"],
                    recompute,
                    f"{measured:.0f}",
                    f"{found.tokens_per_s_per_gpu:.0f}",
                )
                print(f"| {' | '.join(cells)} | {found.tokens_per_s_per_gpu / measured - 1:+.0%} |")
                break


def with_left_out(said: Mapping[str, str], path: Path) -> dict[str, str]:
    """What is said of each row, with the errors of ``tracelens score``'s file where it has the row."""
    scored = {
        row["id"]: float(row["predicted"]) / float(row["measured"]) - 1
        for row in csv.DictReader(path.open(newline="", encoding="utf-8"))
        if row["predicted"]
    }
    return {name: f"{scored[name]:+.1%}" if name in scored else text for name, text in said.items()}


def write_rows(path: Path, rows: Sequence[Mapping[str, str]], said: Mapping[str, str]) -> None:
    """docs/projection_rows.csv: projected / measured - 1 of each row's step time, or why there is no projection."""
    keys = ("id", "model", "gpu", "precision", "recompute")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*keys, "error_or_reason"])
        writer.writerows([*(row[key] for key in keys), said[row["id"]]] for row in rows)


def vtrain(path: Path) -> list[Measured]:
    """FP16, unfused attention, no sequence parallelism, an A100 node (vTrain, 2023)."""
    names = {
        "tp": "tensor parallelism", "dp": "data parallelism", "pp": "pipeline parallelism",
        "micro_batch": "micro batch", "global_batch": "global batch", "ranks": "# GPUs",
    }  # fmt: skip
    system, made = System.load("A100-80GB-SXM"), []
    for row in csv.DictReader(path.open(newline="", encoding="utf-8")):
        degrees: dict[str, Any] = {key: int(row[name]) for key, name in names.items()}
        try:
            parallel = ParallelConfig.of(**degrees, zero=0, precision="fp16", attention="unfused")
        except TracelensError as error:
            print(f"vtrain row without a projection: {error}")
            continue
        model, s = ModelConfig.load(f"gpt-{row['hidden size']}x{row['# layers']}"), int(row["sequence length"])

        def again(software: Software, m: Any = model, p: Any = parallel, s: int = s) -> Projection:
            return project(m, p, system, sequence=s, software=software)

        made.append(Measured(row=row, found=again(PLAIN), step_us=1e3 * float(row["iteration time (ms)"]), again=again))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=Path, metavar="FILE.csv")
    parser.add_argument("--left-out", type=Path, metavar="P.csv")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--vtrain", action="store_true")
    args = parser.parse_args()
    start = time.perf_counter()
    made, rows, said = points(args.folder / "training_points.csv")
    table("nothing fitted", by(made, group))
    table("device", by(made, lambda row: f"{row['kind']} {row['gpu']}"))
    table("precision", by(made, lambda row: f"{row['kind']} {row['precision']}"))
    ranked(made)
    amd(rows)
    print(f"\n{len(rows) - len(made)} of {len(rows)} rows without an error, each with a reason")
    print(f"{sum(m.found.infeasible is not None for m in made)} measured rows are called infeasible")
    if args.rows:
        write_rows(args.rows, rows, with_left_out(said, args.left_out) if args.left_out else said)
    if args.fit:
        scored: dict[str, list[float]] = {}
        for name in ("llm-foundry", "Megatron-Bridge"):
            mine = [m for m in made if m.row["framework"].startswith(name)]
            errors = fitted(name, mine, family)
            for kind in sorted({m.row["kind"] for m in mine}):
                some = [(m, error) for m, error in errors if m.row["kind"] == kind]
                plain = [(m, m.error(m.found)) for m, _ in some]
                scored[f"{name} {kind}"] = [error for _, error in some]
                for constants, each in (("nothing fitted", plain), ("fitted on other models", some)):
                    scored[f"{name} {kind}, anchored, {constants}"] = anchored(each, "gpu")
                    scored[f"{name} {kind}, anchored in the same precision, {constants}"] = anchored(
                        each, "gpu", "precision"
                    )
        table("not fitted on the model scored", scored)
    if args.vtrain:
        steps = vtrain(args.folder / "vtrain.csv")
        table("vTrain, nothing fitted", by(steps, lambda row: f"micro-batch {row['micro batch']}"))
        errors = [error for _, error in fitted("vTrain", steps, lambda row: row["hidden size"])]
        table("vTrain", {"all": errors})
        print(f"mean {100 * np.mean(np.abs(errors)):.1f}")
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
