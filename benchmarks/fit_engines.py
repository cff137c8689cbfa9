"""Fits what serving engines add to a device's work to published points; writes ``tracelens/predict/serving/engines``.

    python benchmarks/fit_engines.py FOLDER [--write] [--predictions FILE.csv]
    python benchmarks/fit_engines.py FOLDER --apart

FOLDER holds serving_points.csv and tables/serving_inferencex.csv. Constants per engine and vendor: a factor on the
device's work, for decoding and for prompts, the host's and launches' time per layer of a step (replayed from a graph,
or with prompts in it), per sequence and per request, and by how much releases got faster: from times per token, and
from times to the first token of few requests at once. Every group is scored with constants fitted without it: a whole
model on NVIDIA's devices; on AMD's, where there is one model, that model in one precision on one device. Where an
engine has one group only, all engines of that vendor together stand in. Errors are |projected / measured - 1| of the
time per output token in percent, and with ``--write`` of the simulated time to the first. ``--predictions`` writes
the left-out projections for ``tracelens score``, with intervals of other groups' residuals.
"""

from __future__ import annotations

import argparse
import copy
import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tracelens.predict.serving.engines as engines_room
from tracelens.laboratory.configuration_rows import LIMITS, PointSimulator, ServingPoint, point_of
from tracelens.predict.serving.costs import StepCost

#: (before anything is known, one standard deviation in ln).
PULL = {
    "device_scale": (1.05, 0.15), "layer_us": (4.0, 0.8), "prompt_layer_us": (60.0, 0.8), "sequence_us": (5.0, 0.8),
    "prompt_scale": (1.3, 0.3), "request_us": (30_000.0, 0.8), "layer_gain_per_year": (1.0, 1.0),
}  # fmt: skip
LAYER = list(PULL).index("layer_us")
#: Engines that compute waiting prompts before any answer goes on; others decode in the same step.
PROMPTS_FIRST = ("sglang",)
#: Engines whose cache has another type beside quantized weights: ModelOpt's checkpoints say kv_cache_quant_algo FP8.
QUANTIZED_KV = {"trtllm": "fp8"}
USUAL = 0.08
#: Of so many requests at once the time to the first token is a prompt's own, with half a step that it waits for.
ALONE = 4
#: A server that by a point's own times ran fewer than this share of the requests that it had room for is not the one
#: that the point states. Nine points of vLLM at 512 (all that there are) ran 96 to 106 at once whatever their lengths
#: and GPUs, while its points at 128 and 144 ran 96 to 99 % in the median: something before the server let 100 pass.
#: Six of SGLang on one GPU ran 5 requests of 1,100 tokens and 2 of 2,300: its cache held some 6,000, not stated why.
QUEUED = 0.5
BANDS = ((8, "at most 8"), (32, "9 to 32"), (128, "33 to 128"), (10**9, "more"))


@dataclass(frozen=True, kw_only=True)
class Served:
    """A published point: how often each constant counts in a token's time, in ms, and what is none's. ``is_first``: in
    the time to the first token.
    """

    row: Mapping[str, Any]
    point: ServingPoint
    engine: str
    family: str
    group: str
    counts: tuple[float, float, float, float, float, float]
    exchange_ms: float
    batch: int
    years: float
    is_first: bool = False

    @property
    def measured_ms(self) -> float:
        return float(self.row["ttft_ms" if self.is_first else "tpot_ms"])

    @property
    def running(self) -> float:
        """Requests that were computed at once, by the point's own times (Little's law)."""
        answer_ms = (self.point.output_tokens - 1) * self.measured_ms
        return self.point.concurrency * answer_ms / (answer_ms + float(self.row["ttft_ms"]))

    @property
    def band(self) -> str:
        return next(name for most, name in BANDS if self.batch <= most)


def read(folder: Path, queued: float = QUEUED) -> list[Served]:
    """Aggregated serving with a measured time per token; disaggregated points have two pools, which differ. Points that
    ran at most a share ``queued`` of what they had room for are left out.
    """
    rows = [
        row
        for name in ("serving_points.csv", "tables/serving_inferencex.csv")
        for row in pd.read_csv(folder / name).to_dict("records")
        if row.get("disagg") is not True and row.get("quality") != "C" and row["tpot_ms"] > 0
    ]
    simulator, points = PointSimulator(LIMITS, engine_named="ideal"), [point_of(row) for row in rows]
    newest = max(point.date for point in points if point.date is not None)
    found = [
        served(row, point, simulator.cost(point), 0.0 if point.date is None else (newest - point.date).days / 365)
        for row, point in zip(rows, points, strict=True)
    ]
    found = [one for one in found if one.running > queued * one.batch]
    # Points of serving_points.csv state neither how many prompts there were nor a warm-up
    alone = [one for one in found if one.point.concurrency <= ALONE and one.point.date is not None]
    return found + [first_token(one, simulator.cost(one.point)) for one in alone]


def served(row: Mapping[str, Any], point: ServingPoint, cost: StepCost, years: float) -> Served:
    """One decode step at mid-answer, and the steps with prompts of the others in between.

    Prompts come one by one, except where equal answers that are computed after all prompts stay in phase: there the
    first of a wave waits for all its prompts, the last for none.
    """
    given, answer = point.input_tokens, point.output_tokens
    active = max(1, min(point.concurrency, cost.pool_tokens() // (given + answer)))
    middle = given + answer // 2
    line = cost.decode_line(active, active * middle)
    speculation = cost.deployment.speculation
    made = 1.0 if speculation is None else speculation.tokens_per_step
    budget, queries, layers = LIMITS.max_batched_tokens, cost.queries, len(cost.layers)
    twice = with_prompts_twice(cost)
    if point.engine in PROMPTS_FIRST:
        in_phase = not point.spread
        together = min(active, max(1, budget // given)) if in_phase else 1
        asked = [(together * given, [(given, 0)] * together, together, together, 0, 0)]
        times = (active - together) / together / (2 if in_phase else 1) / answer
        decoding = 1 / made
    else:
        others, room = active - 1, budget - (active - 1) * queries
        chunks = [(min(room, given - start), start) for start in range(0, given, room)]
        asked = [
            (new + others * queries, [(new, past)], 1 + others * queries, 0, others, others * middle)
            for new, past in chunks
        ]
        times = others / answer
        decoding = max(1 / made - times * len(asked), 0.0)
    steps, doubled = ([each.mixed_time(*one) for one in asked] for each in (cost, twice))
    step_ms, prompt_exchange_ms = (times * sum(step[i] for step in steps) / 1e12 for i in (0, 1))
    prompt_ms = times * sum(step[0] for step in doubled) / 1e12 - step_ms
    decode_ms = decoding * (line.fixed - line.exchange + line.slope * active * middle) / 1e12
    sequences = active * (decoding + (0.0 if point.engine in PROMPTS_FIRST else times * len(steps)))
    is_rocm = cost.system.device.vendor == "amd"
    family = f"{point.model} on {point.system} in {point.precision or 'its own type'}"
    return Served(
        row=row, point=point, engine=point.engine + ("-rocm" if is_rocm else ""), family=family,
        group=family if is_rocm else point.model,
        counts=(
            decode_ms + step_ms - prompt_ms, decoding * layers / 1e3, times * len(steps) * layers / 1e3,
            sequences / 1e3, prompt_ms, 0.0,
        ),
        exchange_ms=decoding * line.exchange / 1e12 + prompt_exchange_ms, batch=active, years=years,
    )  # fmt: skip


def with_prompts_twice(cost: StepCost) -> StepCost:
    """The cost of steps in which prompts take twice as long: the difference is the prompts' part."""
    twice = copy.copy(cost)
    twice._prompt_scale = 2.0
    return twice


def first_token(one: Served, cost: StepCost) -> Served:
    """The time to the first token of a point with few requests: half a step, then the prompt in chunks."""
    given, budget, layers = one.point.input_tokens, LIMITS.max_batched_tokens, len(cost.layers)
    chunks = [(min(budget, given - start), start) for start in range(0, given, budget)]
    asked = [(new, [(new, past)], 1, 0, 0, 0) for new, past in chunks]
    steps, doubled = ([each.mixed_time(*step) for step in asked] for each in (cost, with_prompts_twice(cost)))
    whole_ms, exchange_ms = (sum(step[i] for step in steps) / 1e12 for i in (0, 1))
    prompt_ms = sum(step[0] for step in doubled) / 1e12 - whole_ms
    wait_ms = cost.deployment.speculation.tokens_per_step if cost.deployment.speculation else 1.0
    wait_ms *= float(one.row["tpot_ms"]) / 2
    return replace(
        one, is_first=True, family=f"{one.family}, first token", exchange_ms=exchange_ms + wait_ms,
        counts=(whole_ms - prompt_ms, 0.0, len(chunks) * layers / 1e3, 0.0, prompt_ms, 1e-3),
    )  # fmt: skip


def terms_ms(logs: np.ndarray, some: Sequence[Served]) -> np.ndarray:
    """What each constant contributes to a token's time; the last column is the exchanges'."""
    terms = np.array([(*o.counts, o.exchange_ms) for o in some])
    terms[:, :-1] *= np.exp(logs[:-1])
    terms[:, LAYER] *= np.exp(np.exp(logs[-1]) * np.array([o.years for o in some]))
    return terms


def projected_ms(logs: np.ndarray, some: Sequence[Served]) -> np.ndarray:
    return terms_ms(logs, some).sum(axis=1)


def fitted(some: Sequence[Served]) -> np.ndarray:
    """By reweighted least squares of ln; families count alike."""
    center, spread = (np.array(part) for part in zip(*((np.log(v), s) for v, s in PULL.values()), strict=True))
    many = Counter(o.family for o in some)
    weight = np.array([many[o.family] ** -0.5 for o in some])
    weight *= len(some) / weight.sum()
    measured = np.log([o.measured_ms for o in some])
    years = np.array([o.years for o in some])
    at = center.copy()
    for _ in range(60):
        terms = terms_ms(at, some)
        whole = terms.sum(axis=1)
        now = np.log(whole) - measured
        slopes = terms / whole[:, None]
        slopes[:, -1] = slopes[:, LAYER] * years * np.exp(at[-1])
        pull = weight / (USUAL * np.maximum(np.abs(now), USUAL / 2))
        step = np.linalg.solve(
            slopes.T @ (pull[:, None] * slopes) + np.diag(spread**-2.0),
            -slopes.T @ (pull * now) - (at - center) / spread**2,
        )
        at = at + np.clip(step, -0.3, 0.3)
    return at


def without_each(points: Sequence[Served]) -> Iterator[tuple[np.ndarray, list[Served]]]:
    """The constants that are fitted without a group of an engine, and that group's points; for each."""
    for engine in sorted({o.engine for o in points}):
        mine = [o for o in points if o.engine == engine]
        for group in sorted({o.group for o in mine}):
            rest = [o for o in mine if o.group != group]
            if not rest:
                vendor = engine.endswith("-rocm")
                rest = [o for o in points if o.group != group and o.engine.endswith("-rocm") == vendor]
            yield fitted(rest), [o for o in mine if o.group == group]


def left_out(points: Sequence[Served]) -> list[tuple[Served, float]]:
    """(point, projected over measured) of the times per token."""
    scored: list[tuple[Served, float]] = []
    for logs, group in without_each(points):
        some = [o for o in group if not o.is_first]
        ratios = projected_ms(logs, some) / np.array([o.measured_ms for o in some])
        scored += zip(some, ratios.tolist(), strict=True)
    return scored


def first_left_out(points: Sequence[Served]) -> list[tuple[Served, float]]:
    """(point, simulated over measured) of the times to the first token, whatever the load: equal points run once."""
    scored: list[tuple[Served, float]] = []
    for logs, group in without_each(points):
        some = [o for o in group if not o.is_first and o.point.date is not None]
        policy = "prefill-first" if some and some[0].point.engine in PROMPTS_FIRST else LIMITS.policy
        given = {name: value for name, value in constants_of(logs).items() if name != "layer_gain_per_year"}
        simulator, known = PointSimulator(replace(LIMITS, policy=policy, **given), engine_named="ideal"), {}
        for one in some:
            point = replace(one.point, date=None)
            if str(point) not in known:
                known[str(point)] = simulator.estimate(point).ttft_ms
            if (found := known[str(point)]) is not None:
                scored.append((one, found / float(one.row["ttft_ms"])))
    return scored


def apart(folder: Path) -> None:
    """Disaggregated rows, none of which is fitted: errors of both times, and the share inside their intervals."""
    rows = pd.read_csv(folder / "tables" / "serving_inferencex.csv").to_dict("records")
    simulator, known = PointSimulator(LIMITS), {}
    found: dict[str, list[tuple[float, bool]]] = {"tpot_ms": [], "ttft_ms": []}
    rows = [row for row in rows if row["mode"] == "disagg" and row["quality"] != "C"]
    for row in rows:
        point = replace(point_of(row), date=None)
        if str(point) not in known:
            known[str(point)] = simulator.estimate(point)
        for name, ratios in found.items():
            value, low, high = (getattr(known[str(point)], f"{name}{end}") for end in ("", "_low", "_high"))
            if value is not None:
                ratios.append((value / row[name], low <= row[name] <= high))
    print(f"{len(rows)} disaggregated rows")
    for name, ratios in found.items():
        print(line(name, [ratio for ratio, _ in ratios]), f"inside {np.mean([inside for _, inside in ratios]):.0%}")


def constants_of(logs: np.ndarray) -> dict[str, float]:
    """As engines' files have them: the prompts' scale on top of the device's."""
    found = dict(zip(PULL, np.exp(logs).tolist(), strict=True))
    return found | {"prompt_scale": found["prompt_scale"] / found["device_scale"]}


def line(title: str, ratios: Sequence[float]) -> str:
    error = 100 * (np.array(ratios) - 1)
    size = np.abs(error)
    return (
        f"| {title} | {len(error)} | {np.median(size):.1f} | {np.percentile(size, 90):.1f} | {np.median(error):+.1f} |"
    )


def spans(scored: Sequence[tuple[Served, float]], engine: str, without: Served | None = None) -> list[float]:
    """By which factor at most half and nine tenths of the measured points were longer or shorter than estimated, of all
    engines on that vendor's devices: an engine's own families are too few. Every family counts alike; those of the
    group of ``without`` not at all.
    """
    is_rocm = engine.endswith("-rocm")
    hidden = None if without is None else (without.engine, without.group)
    some = [(o, r) for o, r in scored if o.engine.endswith("-rocm") == is_rocm and (o.engine, o.group) != hidden]
    many = Counter((o.engine, o.family) for o, _ in some)
    off = np.abs(np.log([r for _, r in some]))
    weight = np.array([1 / many[o.engine, o.family] for o, _ in some])
    order = np.argsort(off)
    below = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    return [float(np.exp(np.interp(share, below, off[order]))) for share in (0.5, 0.9)]


def write(
    points: Sequence[Served], scored: Sequence[tuple[Served, float]], first: Sequence[tuple[Served, float]], today: str
) -> None:
    folder = Path(engines_room.__file__).parent
    names = sorted({o.engine for o in points})
    for name in [*names, "pooled", "pooled-rocm"]:
        rocm = name.endswith("-rocm")
        mine = [
            o for o in points if o.engine == name or (name.startswith("pooled") and o.engine.endswith("-rocm") == rocm)
        ]
        constants = constants_of(fitted(mine))
        days = sorted(str(o.row["date"]) for o in mine if isinstance(o.row.get("date"), str))
        if not days:
            del constants["layer_gain_per_year"]
        texts = {"oldest": days[0], "newest": days[-1]} if days else {}
        if name.removesuffix("-rocm") in PROMPTS_FIRST:
            texts["policy"] = "prefill-first"
        if name in QUANTIZED_KV:
            texts["quantized_kv"] = QUANTIZED_KV[name]
        families = ", ".join(sorted({o.family for o in mine if not o.is_first}))
        lines = [
            f'name = "{name}"',
            f'source = "{sum(not o.is_first for o in mine)} published points: {families}; fit_engines.py, {today}"',
            *(f"{key} = {value:.4g}" for key, value in constants.items()),
            *(f'{key} = "{value}"' for key, value in texts.items()),
            "",
            "[residuals]",
            *(f"{key} = {value:.4g}" for key, value in zip(("half", "most"), spans(scored, name), strict=True)),
            "",
            "[first_residuals]",
            *(f"{key} = {value:.4g}" for key, value in zip(("half", "most"), spans(first, name), strict=True)),
        ]
        (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--predictions", type=Path, metavar="FILE.csv")
    parser.add_argument("--apart", action="store_true", help="score disaggregated rows with the written files instead")
    parser.add_argument("--date", default="2026-11-22")
    args = parser.parse_args()
    if args.apart:
        apart(args.folder)
        return
    report(read(args.folder), args.write, args.predictions, args.date)


def report(
    points: Sequence[Served], is_written: bool, predictions: Path | None, today: str
) -> list[tuple[Served, float]]:
    """Scores, and where asked for the files; each point with projected over measured, its group left out."""
    scored = left_out(points)
    groups: dict[str, list[float]] = defaultdict(list)
    for one, ratio in scored:
        further = " with MTP" if one.row.get("spec_decoding") == "mtp" else ""
        for title in {
            "all",
            f"all, {one.band} at once",
            one.engine,
            one.engine + further,
            f"{one.engine}{further}, {one.band} at once",
            one.family,
        }:
            groups[title].append(ratio)
    print("| left out | points | median | p90 | signed |\n|---|---|---|---|---|")
    for title in sorted(groups):
        print(line(title, groups[title]))
    for name in sorted({o.engine for o in points}):
        print(name, dict(zip(PULL, np.exp(fitted([o for o in points if o.engine == name])).round(3), strict=True)))
    first = first_left_out(points) if is_written else []
    titled = {f"first token, {title}": [] for title in ("all", *sorted({o.engine for o, _ in first}))} if first else {}
    for one, ratio in first:
        titled["first token, all"].append(ratio)
        titled[f"first token, {one.engine}"].append(ratio)
    for title, ratios in titled.items():
        print(line(title, ratios))
    if is_written:
        write(points, scored, first, today)
    if predictions is not None:
        with predictions.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(("id", "area", "family", "measured", "predicted", "low", "high"))
            known: dict[tuple[str, str], list[float]] = {}
            for one, ratio in scored:
                key = one.engine, one.group
                _, most = known[key] if key in known else known.setdefault(key, spans(scored, one.engine, one))
                family, found = f"{one.engine} {one.family}", one.measured_ms * ratio
                low, high = found / most, found * most
                out.writerow((one.row["id"], "serving TPOT", family, one.measured_ms, found, low, high))
    return list(scored)


if __name__ == "__main__":
    main()
