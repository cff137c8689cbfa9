"""Fits the constants of training frameworks to published steps, and writes them with their errors into the files of
``tracelens/predict/projection/frameworks``.

    python benchmarks/fit_profiles.py FOLDER [--write] [--predictions FILE.csv]

FOLDER holds training_points.csv and tables/mlperf_training.csv. Every family is scored with constants fitted without
it: a family is a model in one release of a framework; ``without model`` leaves the model out of all releases,
``unseen`` each device, then each precision, ``elsewhere`` each framework as a whole. Errors are
|projected / measured - 1| of the step time in percent. Rows of frameworks left out are weighted by n^-0.5 of their
framework, so that a large table does not speak for all, and their bounds reach further by (1 + 1/n)^0.5 in ln for n
frameworks: so much wider than what was seen is the interval of a further one. ``beyond`` leaves out all steps with more
of a trait than each number of it, such as more than one context rank: by how much half and nine tenths of their errors
exceed, in quadrature, those of the same steps by families. ``--predictions`` writes the left-out projections for
``tracelens score``.

A step is a sum of parts that constants scale, and the host's time beside them: how the step changes with each constant
is projected once per row, and the fit runs on that. The least mean of |ln(projected / measured)| with a pull of each
constant towards a value that stands below decides; rows of a model with many rows count less (their square root).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tracelens.predict.projection.frameworks as frameworks_room
from tracelens.backends.base import system_of
from tracelens.laboratory.training_rows import RowOptions, configuration, project_row
from tracelens.predict.projection.frameworks import KINDS, TRAITS, traits
from tracelens.predict.projection.step import Projection
from tracelens.types.dtypes import Precision

#: Constant -> (its value before anything is known, how far from it in ln one standard deviation is). ``grace``: a
#: PyTorch Linear takes 33.2 us of the host on GH200, 37.1 on GB200, 13.5 on a Xeon 8480C (issue 2053 of
#: NVIDIA/TransformerEngine).
PULL = {
    "products": (1.05, 0.2), "attention": (1.0, 0.4), "memory": (1.3, 0.3), "scan": (4.0, 0.7),
    "biased_experts": (1.0, 0.7), "host_us_per_op": (15.0, 1.0), "experts_us": (500.0, 1.2), "overlap_us": (500.0, 1.2),
    "graphed": (0.6, 0.2), "scale_loss": (0.01, 0.7), "grace": (2.6, 0.7),
}  # fmt: skip
#: Products of one device or one precision beside the framework's own factor.
SINGLE_PULL = 0.1
#: An error that is usual, in ln.
USUAL = 0.06
_ALL = (
    "products", "memory", "scan", "biased_experts", "host_us_per_op", "experts_us", "overlap_us", "grace", "graphed",
    "scale_loss",
)  # fmt: skip
#: Which constants each framework's rows can tell apart.
FITTED = {
    "llm-foundry": ("products", "attention", "memory", "scale_loss"),
    "torchtitan": ("products", "memory", "scale_loss"),
    "megatron": _ALL,
    "pooled": _ALL,
}
#: Those whose products differ by device and precision.
BY_DEVICE = frozenset({"megatron"})
#: One die at one power limit: products of one factor.
SAME_DIE = {"h200-sxm": "h100-sxm"}
#: Rows of a framework whose own residuals say what to expect; with fewer, those of all.
MANY = 20
_SCALED = ("products", "attention", "memory", "scan", "biased_experts")
_HOSTED = ("host_us_per_op", "experts_us", "overlap_us")
_BARE = {"products": 1.0, "attention": 1.0, "memory": 1.0, "scan": 1.0, "biased_experts": 1.0,
         "host_us_per_op": 0.0, "experts_us": 0.0, "overlap_us": 0.0, "scale_loss": 0.0}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published step: what it is without a host, and what each constant adds; ``lost``: the share that a loss with
    scale of 1 adds.
    """

    row: Mapping[str, str]
    framework: str
    device: str
    cpu: str | None
    precision: str
    graphs: str
    kind: str
    measured_us: float
    bare_us: float
    slopes: Mapping[str, float]
    host: Mapping[str, float]
    lost: float
    traits: Mapping[str, int]

    @property
    def key(self) -> str:
        """The precision that constants are told apart by."""
        return Precision.of(self.precision).calibrated.value

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
            if _hosts(name, found)}  # fmt: skip
    tokens = found.parallel.global_batch * found.sequence / found.parallel.ranks
    return Row(
        row=row, framework=framework.name, device=found.system.device.name, cpu=found.system.device.cpu,
        precision=str(found.parallel.precision), graphs=found.parallel.graphs,
        kind="lora" if found.parallel.lora else row["kind"],
        measured_us=1e6 * tokens / float(row["tokens_s_gpu"]), bare_us=bare, slopes=slopes, host=host,
        lost=_step(row, {"attention": attention, "scale_loss": 1.0}) / bare - 1,
        traits=traits(found.parallel, found.sequence),
    )  # fmt: skip


def _matters(name: str, found: Projection) -> bool:
    if name == "scan":
        return "M" in found.model.blocks
    return name != "biased_experts" or (found.model.experts is not None and found.model.experts.bias)


def _hosts(name: str, found: Projection) -> bool:
    overlaps = name != "overlap_us" or found.parallel.ep_overlap
    return name == "host_us_per_op" or (found.model.experts is not None and overlaps)


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
        parts = ("products", f"device:{SAME_DIE.get(device, device)}", f"precision:{precision}")
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
        shares, cpus = {"none": 1.0, "partial": self.of("graphed", 0.6), "full": 0.0}, {"grace": self.of("grace")}
        left = np.array([shares[one.graphs] * cpus.get(one.cpu or "", 1.0) for one in rows])
        host = sum(
            self.of(name, default) * np.array([one.host.get(name, 0.0) for one in rows])
            for name, default in zip(_HOSTED, (5.0, 0.0, 0.0), strict=True)
        )
        alone = np.cbrt(device**3 + (left * host) ** 3)
        return alone * (1 + self.of("scale_loss", 0.0) * np.array([one.lost for one in rows]))


class Beyond(NamedTuple):
    """A step, projected over measured by constants of steps with less of ``trait``, and without its family."""

    row: Row
    trait: str
    without: float
    by_family: float


def fitted(rows: Sequence[Row], names: Sequence[str], *, by_device: bool) -> Constants:
    """By reweighted least squares; the numerical slopes of ln(step) in ln(constant)."""
    keys = list(names)
    if by_device:
        keys += sorted({f"device:{SAME_DIE.get(one.device, one.device)}" for one in rows})
        keys += sorted({f"precision:{one.precision}" for one in rows})
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
    """(row, projected over measured) of every row, by constants that were fitted without its family. None of a family
    that is all there is.
    """
    scored = []
    for family in sorted({of(one) for one in rows}):
        rest = [one for one in rows if of(one) != family]
        if not rest:
            continue
        constants = fitted(rest, FITTED[name], by_device=name in BY_DEVICE)
        mine = [one for one in rows if of(one) == family]
        found = constants.projected_us(mine).tolist()
        scored += [(one, us / one.measured_us) for one, us in zip(mine, found, strict=True)]
    return scored


#: Of how many of a trait's numbers all steps beyond are left out, and how many have to stay.
THRESHOLDS, STAY = 6, 20


def beyond(name: str, rows: Sequence[Row], by_family: Sequence[tuple[Row, float]]) -> list[Beyond]:
    """Steps of a framework without those that have as much of a trait."""
    known = {id(one): ratio for one, ratio in by_family}
    found = []
    for trait in TRAITS:
        numbers = sorted({one.traits[trait] for one in rows})[:-1]
        for at in numbers[:: -(-len(numbers) // THRESHOLDS) or 1]:
            rest = [one for one in rows if one.traits[trait] <= at]
            if len(rest) < STAY:
                continue
            constants = fitted(rest, FITTED[name], by_device=name in BY_DEVICE)
            out = [one for one in rows if one.traits[trait] > at]
            us = constants.projected_us(out).tolist()
            found += [
                Beyond(one, trait, each / one.measured_us, known[id(one)]) for one, each in zip(out, us, strict=True)
            ]
    return found


def further(found: Sequence[Beyond]) -> dict[str, dict[str, float]]:
    """By trait, what is added to half and nine tenths of errors, as factors."""
    made = {}
    for trait in TRAITS:
        mine = [one for one in found if one.trait == trait]
        if not mine:
            continue
        errors = np.abs(np.log([(one.without, one.by_family) for one in mine]))
        (half, least_half), (most, least) = np.percentile(errors, (50, 90), axis=0)
        added = {"half": half**2 - least_half**2, "most": most**2 - least**2}
        made[trait] = {"rows": len({id(one.row) for one in mine})} | {
            name: float(np.exp(max(square, 0.0) ** 0.5)) for name, square in added.items()
        }
    return made


def widened(spanned: dict[str, float], one: Row, rest: Sequence[Row], above: Sequence[Beyond]) -> dict[str, float]:
    """``spanned`` of a step that has more of some trait than ``rest``, which was fitted."""
    more = [trait for trait in TRAITS if one.traits[trait] > max(each.traits[trait] for each in rest)]
    added = further([each for each in above if each.trait in more]).values() if more else ()
    return spanned | {
        name: float(np.exp(np.hypot.reduce(np.log([spanned[name], *(each[name] for each in added)]))))
        for name in ("half", "most")
    }


def spans(ratios: Sequence[float], groups: Sequence[str] | None = None) -> dict[str, float]:
    """Errors of projected over measured, and by which factor at most half and nine tenths of the measured steps were
    longer or shorter than projected; with few rows the outer ones stand for more (split-conformal quantiles). With
    ``groups`` a row weighs n^-0.5 of the n rows of its group, and the steps are another group's: they spread more than
    those of m groups by (1 + 1/m)^0.5.
    """
    count = len(ratios)
    many = Counter(groups or ())
    weight = np.array([many[group] ** -0.5 for group in groups]) if groups else np.ones(count)
    off = np.abs(np.log(ratios))
    order = np.argsort(off)
    # The share of the weight at or below each row, the row to come among them
    below = np.cumsum(weight[order]) / (weight.sum() + weight.mean())
    further = (1 + 1 / len(many)) ** 0.5 if groups else 1.0

    def within(share: float) -> float:
        return float(np.exp(further * np.interp(share, below, off[order])))

    error = np.abs(np.array(ratios) - 1)
    return {
        "rows": count, "median": float(np.median(error)), "p90": float(np.percentile(error, 90)),
        "half": within(0.5), "most": within(0.9),
    }  # fmt: skip


def fitted_part(
    name: str,
    rows: Sequence[Row],
    errors: Mapping[str, Mapping[str, Mapping[str, float]]],
    today: str,
    further: Mapping[str, float],
) -> str:
    """The generated end of a framework's file. ``errors``: by table and kind, see ``spans``; ``further`` figures."""
    constants = fitted(rows, FITTED[name], by_device=name in BY_DEVICE)
    models = sorted({one.model for one in rows})
    said = (
        f"{len(rows)} published steps of {len(models)} models: {', '.join(models)}; benchmarks/fit_profiles.py, {today}"
    )
    lines = [f'fitted_on = "{said}"', *(f"{key} = {value:.4g}" for key, value in further.items()), "", "[constants]"]
    lines += [f"{key} = {constants.of(key):.4g}" for key in FITTED[name] if key != "products"]
    seen: dict[str, set[str]] = defaultdict(set)
    for one in rows:
        seen[one.device].add(one.key)
    for device in sorted(seen) if name in BY_DEVICE else ():
        lines += ["", f"[products.{device}]"]
        lines += [f"{key} = {constants.products(device, key):.4g}" for key in ("bf16", "fp8", "mxfp8", "nvfp4")]
    lines += ["", "[products.any]"]
    lines += [f"{key} = {constants.products('', key):.4g}" for key in ("bf16", "fp8", "mxfp8", "nvfp4")]
    lines += ["", "[seen]", *(f"{device} = {json.dumps(sorted(seen[device]))}" for device in sorted(seen))]
    lines += ["", "[reach]", *(f"{trait} = {max(one.traits[trait] for one in rows)}" for trait in TRAITS)]
    for table, kinds in errors.items():
        for kind, figures in sorted(kinds.items()):
            lines += ["", f"[{table}.{kind}]", *(f"{key} = {value:.4g}" for key, value in figures.items())]
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


def by_kind(scored: Sequence[tuple[Row, float]]) -> dict[str, list[tuple[Row, float]]]:
    found: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    for one, ratio in scored:
        found[one.kind].append((one, ratio))
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
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    args = parser.parse_args()
    report(read(args.folder), args.write, args.predictions, args.date)


def report(rows: Sequence[Row], is_written: bool, predictions: Path | None, today: str) -> list[tuple[Row, float]]:
    """Scores, and where asked for the files; each row with projected over measured, its family left out."""
    print("| left out | rows | median | p90 | signed |\n|---|---|---|---|---|")
    told: list[tuple[Row, float]] = []
    adapted = [one for one in rows if one.kind == "lora"]
    trained = [one for one in rows if one.kind != "lora"]
    elsewhere = left_out("pooled", trained, lambda one: one.framework)
    elsewhere += [(one, us / one.measured_us) for one, us in _pooled(adapted, trained)]
    above: list[Beyond] = []
    for name in FITTED:
        mine = [one for one in trained if name == "pooled" or one.framework == name]
        errors: dict[str, dict[str, dict[str, float]]] = {}
        if name == "pooled":
            errors["elsewhere"] = {kind: _spans(of_kind) for kind, of_kind in by_kind(elsewhere).items()}
            errors["beyond"] = further(above)
        elif len({one.family for one in mine}) > 1:
            scored = _families(name, mine, [one for one in adapted if one.framework == name])
            told += scored
            above += beyond(name, mine, scored)
            unseen = left_out(name, mine, lambda one: one.device) + left_out(name, mine, lambda one: one.key)
            errors["residuals"] = {kind: _spans(of_kind, whole=True) for kind, of_kind in by_kind(scored).items()}
            errors["unseen"] = {
                kind: _wider(_spans(of_kind, whole=True), errors["residuals"][kind])
                for kind, of_kind in by_kind(unseen).items()
            }
            of_models = by_kind(left_out(name, mine, lambda one: one.model))
            for title, groups in (("", by_kind(scored)), (" unseen", by_kind(unseen)), (" without model", of_models)):
                for kind, of_kind in groups.items():
                    print(line(f"{name} {kind}{title}", [ratio for _, ratio in of_kind]))
        if is_written:
            split = {"split_spread": spread_within(told)[0]} if name == "pooled" else {}
            write(name, fitted_part(name, mine, errors, today, split))
    own = {one.framework for one, _ in told}
    others = [(one, ratio) for one, ratio in elsewhere if one.framework not in own]
    print_frameworks(elsewhere, above)
    print(line("MLPerf, each configuration once", mlperf(told + others, KINDS)))
    print(line("MLPerf without adapters, each configuration once", mlperf(told + others, ("dense", "moe"))))
    print(
        "spread within model, framework, precision and devices: {:.3f} of {} steps in {}".format(*spread_within(told))
    )
    if predictions is not None:
        write_predictions(predictions, told, elsewhere, above)
    return told + others


def _families(name: str, mine: Sequence[Row], adapted: Sequence[Row]) -> list[tuple[Row, float]]:
    """Rows of one framework, their families left out; nothing is fitted to adapters."""
    constants = fitted(mine, FITTED[name], by_device=name in BY_DEVICE)
    tuned = [(one, us / one.measured_us) for one, us in zip(adapted, constants.projected_us(adapted), strict=True)]
    return left_out(name, mine, lambda one: one.family) + tuned


def _pooled(adapted: Sequence[Row], trained: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """Adapters by constants of all other frameworks."""
    for framework in sorted({one.framework for one in adapted}):
        mine = [one for one in adapted if one.framework == framework]
        constants = fitted([one for one in trained if one.framework != framework], FITTED["pooled"], by_device=False)
        yield from zip(mine, constants.projected_us(mine).tolist(), strict=True)


def _spans(scored: Sequence[tuple[Row, float]], *, whole: bool = False) -> dict[str, float]:
    return spans([ratio for _, ratio in scored], None if whole else [one.framework for one, _ in scored])


def _wider(found: dict[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Less is never known of what was not seen."""
    return found | {name: max(found[name], other[name]) for name in ("half", "most")}


def _elsewhere(one: Row, elsewhere: Sequence[tuple[Row, float]], above: Sequence[Beyond]) -> dict[str, float]:
    """What other frameworks, each left out as a whole, say of a step."""
    others = [pair for pair in elsewhere if pair[0].framework != one.framework]
    rest = [each for each, _ in others if each.kind != "lora"]
    found = _spans([pair for pair in others if pair[0].kind == one.kind])
    return widened(found, one, rest, [each for each in above if each.row.framework != one.framework])


def print_frameworks(elsewhere: Sequence[tuple[Row, float]], above: Sequence[Beyond]) -> None:
    """Each framework left out as a whole: its errors, and what share of its rows the intervals of the others hold."""
    print("\n| framework left out | rows | median | p90 | signed | inside half, % | inside 9 of 10, % |")
    print("|---|---|---|---|---|---|---|")
    inside: list[tuple[bool, bool]] = []
    for name in sorted({one.framework for one, _ in elsewhere}):
        mine, held = [], []
        for one, ratio in elsewhere:
            if one.framework == name:
                bounds = _elsewhere(one, elsewhere, above)
                mine.append(ratio)
                held.append(tuple(abs(np.log(ratio)) <= np.log(bounds[key]) for key in ("half", "most")))
        inside += held
        print(f"{line(name, mine)} {_percent(held)}")
    print(f"{line('all', [ratio for _, ratio in elsewhere])} {_percent(inside)}\n")


def _percent(held: Sequence[tuple[bool, bool]]) -> str:
    half, most = 100 * np.mean(np.array(held, float), axis=0)
    return f"{half:.0f} | {most:.0f} |"


def write_predictions(
    path: Path, told: Sequence[tuple[Row, float]], elsewhere: Sequence[tuple[Row, float]], above: Sequence[Beyond]
) -> None:
    """Left-out projections for ``tracelens score``: families by area ``training KIND``, with the interval of the others
    of their framework where there are enough; frameworks by area ``training framework left out``.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("id", "area", "source", "family", "measured", "predicted", "low", "high"))
        for one, ratio in told:
            others = [pair for pair in told if pair[0].kind == one.kind and pair[0].family != one.family]
            same = [pair for pair in others if pair[0].framework == one.framework]
            spanned = _spans(same, whole=True) if len(same) >= MANY else _spans(others)
            trained = [each for each, _ in told if each.framework == one.framework and each.kind != "lora"]
            rest = [each for each in trained if each.family != one.family]
            spanned = widened(spanned, one, rest, [each for each in above if each.row.family != one.family])
            _write_row(out, one, f"training {one.kind}", one.family, ratio, spanned["most"])
        for one, ratio in elsewhere:
            most = _elsewhere(one, elsewhere, above)["most"]
            _write_row(out, one, "training framework left out", one.framework, ratio, most)


def _write_row(out: Any, one: Row, area: str, family: str, ratio: float, most: float) -> None:
    measured = one.measured_us / 1e6
    found = measured * ratio
    out.writerow((one.row["id"], area, one.row["source"], family, measured, found, found / most, found * most))


def spread_within(told: Iterable[tuple[Row, float]]) -> tuple[float, int, int]:
    """Standard deviation of the logarithm of errors among steps that share model, framework, precision and devices, how
    many such steps there are, and in how many groups: what a search ranks splits wrongly by, at most, as steps of a
    group differ in sequence or batch too. A configuration counts once.
    """
    groups: dict[tuple[str, ...], dict[tuple[str, ...], float]] = defaultdict(dict)
    for one, ratio in told:
        key = tuple(one.row[name] for name in ("model", "gpu", "n_gpus", "precision", "framework"))
        groups[key].setdefault((*one.configuration, one.row["seq_len"], one.row["recompute"]), math.log(ratio))
    several = [np.array(list(each.values())) for each in groups.values() if len(each) > 1]
    off = np.concatenate([each - each.mean() for each in several])
    return math.sqrt(float(off @ off) / (len(off) - len(several))), len(off), len(several)


def mlperf(told: Sequence[tuple[Row, float]], kinds: Sequence[str]) -> list[float]:
    """Projected over measured of MLPerf's steps: partners submit one configuration many times, which counts once."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for one, ratio in told:
        if "MLPerf" in one.row["framework"] and one.kind in kinds:
            found[one.configuration].append(ratio)
    return [float(np.median(ratios)) for ratios in found.values()]


if __name__ == "__main__":
    main()
