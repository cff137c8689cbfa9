"""Fits the constants of training frameworks to published steps, and writes them with their errors into the files of
``tracelens/predict/projection/frameworks``.

    python benchmarks/fit_profiles.py FOLDER [--write] [--predictions FILE.csv]

FOLDER holds training_points.csv and tables/mlperf_training.csv. Every family is scored with constants fitted without
it: a family is a model in one release of a framework; ``without model`` leaves the model out of all releases. Errors
are |projected / measured - 1| of the step time in percent. ``--predictions`` writes the left-out projections for
``tracelens score``.

A step is a sum of parts that constants scale, and the host's time beside them: how the step changes with each constant
is projected once per row, and the fit runs on that. The least mean of |ln(projected / measured)| with a pull of each
constant towards a value that stands below decides; rows of a model with many rows count less (their square root).
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tracelens.predict.projection.frameworks as frameworks_room
from tracelens.backends.base import system_of
from tracelens.laboratory.training_rows import RowOptions, configuration, project_row
from tracelens.predict.projection.frameworks import KINDS
from tracelens.predict.projection.step import Projection

#: Constant -> (its value before anything is known, how far from it in ln one standard deviation is).
PULL = {
    "products": (1.05, 0.2), "attention": (1.0, 0.15), "memory": (1.3, 0.3), "scan": (4.0, 0.7),
    "biased_experts": (1.0, 0.7), "host_us_per_op": (15.0, 1.0), "experts_us": (500.0, 1.2), "graphed": (0.6, 0.2),
}  # fmt: skip
#: Products of one device or one precision beside the framework's own factor.
SINGLE_PULL = 0.1
#: An error that is usual, in ln.
USUAL = 0.06
#: Which constants each framework's rows can tell apart.
FITTED = {
    "llm-foundry": ("products", "attention", "memory"),
    "megatron": ("products", "memory", "scan", "biased_experts", "host_us_per_op", "experts_us", "graphed"),
    "pooled": ("products", "memory", "scan", "biased_experts", "host_us_per_op", "experts_us", "graphed"),
}
#: Those whose products differ by device and precision.
BY_DEVICE = frozenset({"megatron"})
#: Rows of a framework whose own residuals say what to expect; with fewer, those of all.
MANY = 20
_SCALED = ("products", "attention", "memory", "scan", "biased_experts")
_HOSTED = ("host_us_per_op", "experts_us")
_BARE = {"products": 1.0, "attention": 1.0, "memory": 1.0, "scan": 1.0, "biased_experts": 1.0,
         "host_us_per_op": 0.0, "experts_us": 0.0}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published step: what it is without a host, and what each constant adds."""

    row: Mapping[str, str]
    framework: str
    device: str
    precision: str
    graphs: str
    kind: str
    measured_us: float
    bare_us: float
    slopes: Mapping[str, float]
    host: Mapping[str, float]

    @property
    def model(self) -> str:
        return re.sub(r"\s*\(.*", "", self.row["model"])

    @property
    def family(self) -> str:
        """A model in one release."""
        return f"{self.model} in {self.row['framework']}"

    @property
    def configuration(self) -> tuple[str, ...]:
        """What submitters of one configuration share."""
        return tuple(self.row[name] for name in ("model", "gpu", "n_gpus", "tp", "pp", "cp", "mbs", "gbs", "precision"))


def sampled(row: Mapping[str, str]) -> Row | None:
    """None for a row without a measurement or a projection."""
    if not row["tokens_s_gpu"] or row["kind"] not in KINDS or row["quality"] == "C":
        return None
    first = project_row(row, RowOptions(constants=_BARE))
    if first.projection is None:
        return None
    found, configured = first.projection, configuration(row)
    framework, parallel = configured.framework, configured.parallel
    kernel = framework.software(system_of(row["gpu"])[0], parallel.precision, framework.runs(parallel.attention))
    attention = kernel.attention / framework.constants.get("attention", 1.0)
    bare = _step(row, {"attention": attention})
    slopes = {name: _step(row, {"attention": attention, name: 2.0 * (attention if name == "attention" else 1.0)}) - bare
              for name in _SCALED if _matters(name, found)}  # fmt: skip
    large = 1e9
    host = {name: _step(row, {name: large, "graphed": 1.0}, graphs="none") / large for name in _HOSTED
            if name == "host_us_per_op" or found.model.experts is not None}  # fmt: skip
    tokens = found.parallel.global_batch * found.sequence / found.parallel.ranks
    return Row(
        row=row, framework=framework.name, device=found.system.device.name,
        precision=str(found.parallel.precision), graphs=found.parallel.graphs,
        kind="lora" if found.parallel.lora else row["kind"],
        measured_us=1e6 * tokens / float(row["tokens_s_gpu"]), bare_us=bare, slopes=slopes, host=host,
    )  # fmt: skip


def _matters(name: str, found: Projection) -> bool:
    if name == "scan":
        return "M" in found.model.blocks
    return name != "biased_experts" or (found.model.experts is not None and found.model.experts.bias)


def _step(row: Mapping[str, str], constants: Mapping[str, float], graphs: str | None = None) -> float:
    given = {**_BARE, **constants}
    if graphs == "none":
        given["graphed"] = 1.0
    found = project_row(row, RowOptions(constants=given)).projection
    assert found is not None
    if graphs == "none" and found.parallel.graphs == "full":
        return 0.0
    return found.step_us


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Logarithms by name; products of a device and of a precision stand as ``device:...`` and ``precision:...``."""

    logs: Mapping[str, float]

    def of(self, name: str, default: float = 1.0) -> float:
        return float(np.exp(self.logs[name])) if name in self.logs else default

    def products(self, device: str, precision: str) -> float:
        parts = ("products", f"device:{device}", f"precision:{precision}")
        return float(np.exp(sum(self.logs.get(part, 0.0) for part in parts)))

    def projected_us(self, rows: Sequence[Row]) -> np.ndarray:
        """The steps of ``rows``."""
        pairs = {pair: self.products(*pair) for pair in {(one.device, one.precision) for one in rows}}
        products = np.array([pairs[one.device, one.precision] for one in rows])
        slopes = {name: np.array([one.slopes.get(name, 0.0) for one in rows]) for name in _SCALED}
        device = np.array([one.bare_us for one in rows]) + (products - 1) * slopes["products"]
        for name in _SCALED[1:]:
            # What experts' products take on top is itself scaled as products are.
            device += (self.of(name) - 1) * slopes[name] * (products if name == "biased_experts" else 1.0)
        shares = {"none": 1.0, "partial": self.of("graphed", 0.6), "full": 0.0}
        host = sum(
            self.of(name, default) * np.array([one.host.get(name, 0.0) for one in rows])
            for name, default in (("host_us_per_op", 5.0), ("experts_us", 0.0))
        )
        return np.cbrt(device**3 + (np.array([shares[one.graphs] for one in rows]) * host) ** 3)


def fitted(rows: Sequence[Row], names: Sequence[str], *, by_device: bool) -> Constants:
    """By reweighted least squares; the numerical slopes of ln(step) in ln(constant)."""
    keys = list(names)
    if by_device:
        keys += sorted({f"device:{one.device}" for one in rows} | {f"precision:{one.precision}" for one in rows})
    center = np.array([np.log(PULL[key][0]) if key in PULL else 0.0 for key in keys])
    spread = np.array([PULL[key][1] if key in PULL else SINGLE_PULL for key in keys])
    many = Counter(one.model for one in rows)
    weight = np.array([many[one.model] ** -0.5 for one in rows])
    weight *= len(rows) / weight.sum()
    measured = np.log([one.measured_us for one in rows])

    def errors(at: np.ndarray) -> np.ndarray:
        return np.log(Constants(logs=dict(zip(keys, at, strict=True))).projected_us(rows)) - measured

    at = center.copy()
    for _ in range(25):
        now = errors(at)
        slopes = np.stack([(errors(at + 1e-3 * unit) - now) / 1e-3 for unit in np.eye(len(keys))], axis=1)
        pull = weight / (USUAL * np.maximum(np.abs(now), USUAL / 2))
        left = slopes.T @ (pull[:, None] * slopes) + np.diag(spread**-2)
        step = np.linalg.solve(left, -slopes.T @ (pull * now) - (at - center) / spread**2)
        at = at + np.clip(step, -0.3, 0.3)
        if np.max(np.abs(step)) < 1e-4:
            break
    return Constants(logs=dict(zip(keys, at.tolist(), strict=True)))


def left_out(name: str, rows: Sequence[Row], of: Callable[[Row], str]) -> list[tuple[Row, float]]:
    """(row, projected over measured) of every row, by constants that were fitted without its family."""
    scored = []
    for family in sorted({of(one) for one in rows}):
        rest = [one for one in rows if of(one) != family]
        constants = fitted(rest, FITTED[name], by_device=name in BY_DEVICE)
        mine = [one for one in rows if of(one) == family]
        found = constants.projected_us(mine).tolist()
        scored += [(one, us / one.measured_us) for one, us in zip(mine, found, strict=True)]
    return scored


def spans(ratios: Sequence[float]) -> dict[str, float]:
    """Errors of projected over measured, and by which factor at most half and nine tenths of the measured steps were
    longer or shorter than projected; with few rows the outer ones stand for more (split-conformal quantiles).
    """
    count, off = len(ratios), np.sort(np.abs(np.log(ratios)))

    def within(share: float) -> float:
        return float(np.exp(np.interp(share * (count + 1) - 1, np.arange(count), off)))

    error = np.abs(np.array(ratios) - 1)
    return {
        "rows": count, "median": float(np.median(error)), "p90": float(np.percentile(error, 90)),
        "half": within(0.5), "most": within(0.9),
    }  # fmt: skip


def fitted_part(name: str, rows: Sequence[Row], residuals: Mapping[str, Sequence[float]], today: str) -> str:
    """The generated end of a framework's file."""
    constants = fitted(rows, FITTED[name], by_device=name in BY_DEVICE)
    models = sorted({one.model for one in rows})
    said = (
        f"{len(rows)} published steps of {len(models)} models: {', '.join(models)}; benchmarks/fit_profiles.py, {today}"
    )
    lines = [f'fitted_on = "{said}"', "", "[constants]"]
    lines += [f"{key} = {constants.of(key):.4g}" for key in FITTED[name] if key != "products"]
    combined: dict[str, set[str]] = defaultdict(set)
    for one in rows if name in BY_DEVICE else ():
        combined[one.device].add(one.precision)
    for device in sorted(combined):
        lines += ["", f"[products.{device}]"]
        lines += [f"{key} = {constants.products(device, key):.4g}" for key in ("bf16", "fp8", "mxfp8", "nvfp4")]
    lines += ["", "[products.any]"]
    lines += [f"{key} = {constants.products('', key):.4g}" for key in ("bf16", "fp8", "mxfp8", "nvfp4")]
    for kind, ratios in sorted(residuals.items()):
        lines += ["", f"[residuals.{kind}]"]
        lines += [f"{key} = {value:.4g}" for key, value in spans(ratios).items()]
    return "\n".join(lines) + "\n"


def write(name: str, part: str) -> None:
    path = Path(frameworks_room.__file__).parent / f"{name}.toml"
    kept = re.split(r"^fitted_on = ", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[0]
    path.write_text(kept + part, encoding="utf-8")


def line(title: str, ratios: Sequence[float]) -> str:
    error = 100 * (np.array(ratios) - 1)
    size = np.abs(error)
    return (
        f"| {title} | {len(error)} | {np.median(size):.1f} | {np.percentile(size, 90):.1f} | {np.median(error):+.1f} |"
    )


def by_kind(scored: Sequence[tuple[Row, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for one, ratio in scored:
        found[one.kind].append(ratio)
    return found


def read(folder: Path) -> list[Row]:
    rows = []
    for name in ("training_points.csv", "tables/mlperf_training.csv"):
        with (folder / name).open(newline="", encoding="utf-8") as file:
            rows += list(csv.DictReader(file))
    with ProcessPoolExecutor(2) as pool:
        return [one for one in pool.map(sampled, rows, chunksize=8) if one is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--predictions", type=Path, metavar="FILE.csv")
    parser.add_argument("--date", default="2026-11-22")
    args = parser.parse_args()
    report(read(args.folder), args.write, args.predictions, args.date)


def report(rows: Sequence[Row], is_written: bool, predictions: Path | None, today: str) -> list[tuple[Row, float]]:
    """Scores, and where asked for the files; each row with projected over measured, its family left out."""
    print("| left out | rows | median | p90 | signed |\n|---|---|---|---|---|")
    told: list[tuple[Row, float]] = []
    adapted = [one for one in rows if one.kind == "lora"]
    trained = [one for one in rows if one.kind != "lora"]
    for name in FITTED:
        mine = [one for one in trained if name == "pooled" or one.framework == name]
        scored = left_out(name, mine, (lambda one: one.framework) if name == "pooled" else (lambda one: one.family))
        constants = fitted(mine, FITTED[name], by_device=name in BY_DEVICE)
        some = [one for one in adapted if one.framework == name]
        tuned = [(one, us / one.measured_us) for one, us in zip(some, constants.projected_us(some), strict=True)]
        told += tuned + (scored if name != "pooled" else [])
        if name == "pooled":
            tuned = [pair for pair in told if pair[0].kind == "lora"] + _as_filed(adapted)
        for kind, ratios in by_kind(scored + tuned).items():
            print(line(f"{name} {kind}", ratios))
        if name != "pooled":
            for kind, ratios in by_kind(left_out(name, mine, lambda one: one.model)).items():
                print(line(f"{name} {kind} without model", ratios))
        if is_written:
            write(name, fitted_part(name, mine, by_kind(scored + tuned), today))
    bare = _as_filed(rows)
    for name in sorted({one.framework for one, _ in bare}):
        print(line(f"{name}, nothing fitted", [ratio for one, ratio in bare if one.framework == name]))
    told += bare
    print(line("MLPerf, each configuration once", mlperf(told, KINDS)))
    print(line("MLPerf without adapters, each configuration once", mlperf(told, ("dense", "moe"))))
    if predictions is not None:
        with predictions.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(("id", "area", "family", "measured", "predicted", "low", "high"))
            for one, ratio in told:
                measured = one.measured_us / 1e6
                others = [r for o, r in told if o.kind == one.kind and o.family != one.family]
                same = [r for o, r in told if o.framework == one.framework and r in others]
                most, found = spans(same if len(same) >= MANY else others)["most"], measured * ratio
                low, high = found / most, found * most
                out.writerow((one.row["id"], f"training {one.kind}", one.family, measured, found, low, high))
    return told


def mlperf(told: Sequence[tuple[Row, float]], kinds: Sequence[str]) -> list[float]:
    """Projected over measured of MLPerf's steps: partners submit one configuration many times, which counts once."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for one, ratio in told:
        if "MLPerf" in one.row["framework"] and one.kind in kinds:
            found[one.configuration].append(ratio)
    return [float(np.median(ratios)) for ratios in found.values()]


def _as_filed(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """Projected over measured of frameworks that nothing is fitted for, with their files as they are."""
    found = []
    for one in rows:
        if one.framework not in FITTED:
            projection = project_row(one.row).projection
            assert projection is not None
            found.append((one, projection.step_us / one.measured_us))
    return found


if __name__ == "__main__":
    main()
