"""Fits what serving engines add to a device's work to published points; writes ``tracelens/predict/serving/engines``.

    python benchmarks/fit_engines.py FOLDER [--write] [--first] [--predictions FILE.csv]

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
import datetime
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tracelens.predict.serving.engines as engines_room
from tracelens.backends.base import system_of
from tracelens.errors import TracelensError
from tracelens.laboratory.configuration_rows import (
    LIMITS,
    PointEstimate,
    PointSimulator,
    ServingPoint,
    median_step,
    point_of,
)
from tracelens.laboratory.inferencex import PER_USER
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import compute_of

#: (before anything is known, one standard deviation in ln of a vendor's engines together, and of one beside them).
PULL = {
    "device_scale": (1.0, 0.05, 0.03), "layer_us": (4.0, 0.8, 0.5), "prompt_layer_us": (60.0, 0.5, 0.3),
    "sequence_us": (5.0, 0.8, 0.5), "prompt_scale": (1.3, 0.2, 0.1), "request_us": (20_000.0, 0.8, 0.5),
    "token_us": (2.0, 0.5, 0.3),
}  # fmt: skip
#: What releases differ by, and one standard deviation in ln; the second of vLLM alone.
STEPS = {"layer_us": 0.7, "sequence_us": 0.7}
STEPPED = [list(PULL).index(name) for name in STEPS]
OF_SEQUENCES = "vllm"
#: Engine and major.minor of the device -> (version, first day of its rows, of vLLM its own). Builds of December 2025
#: differ by the day. Kernels of attention and what graphs hold of them differ by device: vLLM 0.11's layers do, too.
RELEASES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("vllm", "9.0"): (("0.11", "2025-11-18"), ("0.12", "2025-12-03")),
    ("vllm", "10.0"): (("0.11", "2025-11-18"), ("0.12", "2025-12-03")),
    ("sglang", "9.0"): (("2025-12", "2025-12-10"), ("0.5.9", "2026-03-07"), ("0.5.12", "2026-05-13")),
    ("trtllm", "9.0"): (("1.1.0rc2", "2025-11-02"), ("1.3.0rc14", "2026-05-18")),
    ("sglang-rocm", "9.4"): (("2025-12", "2025-12-10"), ("0.5.9", "2026-01-05"), ("0.5.12", "2026-05-18")),
    ("sglang-rocm", "9.5"): (
        ("2025-10", "2025-10-06"), ("2025-12-13", "2025-12-13"), ("2025-12-19", "2025-12-19"), ("0.5.9", "2026-01-27"),
        ("0.5.12", "2026-05-19"),
    ),
    ("atom-rocm", "9.5"): (("0.1.1", "2026-01-14"), ("2026-05", "2026-05-20")),
}  # fmt: skip
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
    counts: tuple[float, float, float, float, float, float, float]
    exchange_ms: float
    batch: int
    compute: str
    release: Release | None = None
    is_first: bool = False

    @property
    def source(self) -> str:
        """The file that the point is from: times per token of serving_points.csv have no date."""
        if self.is_gap:
            return "ML.ENERGY"
        return "aiconfigurator" if self.point.date is None else "InferenceX"

    @property
    def is_gap(self) -> bool:
        """Whether the median time between tokens was measured, in a batch of a known size."""
        return self.point.is_batch

    @property
    def is_fitted(self) -> bool:
        """Not where prompts of unknown lengths are in the step."""
        return not (self.is_gap and self.counts[2])

    @property
    def measured_ms(self) -> float:
        return float(self.row["ttft_ms" if self.is_first else "median_itl_ms" if self.is_gap else "tpot_ms"])

    @property
    def running(self) -> float:
        """Requests that were computed at once, by the point's own times (Little's law)."""
        if self.is_gap:
            return float(self.row["output_throughput_tokens_per_sec"]) * self.measured_ms / 1e3
        answer_ms = (self.point.output_tokens - 1) * self.measured_ms
        return self.point.concurrency * answer_ms / (answer_ms + float(self.row["ttft_ms"]))

    @property
    def band(self) -> str:
        return next(name for most, name in BANDS if self.batch <= most)


def read(folder: Path, queued: float = QUEUED) -> list[Served]:
    """Aggregated serving with a measured time per token; disaggregated points have two pools, which differ. Points that
    ran at most a share ``queued`` of what they had room for are left out, and rows that cannot be served.
    """
    rows = [
        row
        for name in ("serving_points.csv", "tables/serving_inferencex.csv")
        for row in pd.read_csv(folder / name).to_dict("records")
        if row.get("disagg") is not True and row.get("quality") != "C" and row["tpot_ms"] > 0
    ]
    simulator = PointSimulator(LIMITS, engine_named="ideal")
    found = [served(row, point_of(row), simulator.cost(point_of(row))) for row in rows] + gaps(folder, simulator)
    found = [one for one in found if one.running > queued * one.batch]
    # Points of serving_points.csv state neither how many prompts there were nor a warm-up
    alone = [one for one in found if one.point.concurrency <= ALONE and one.point.date is not None]
    return found + [first_token(one, simulator.cost(one.point)) for one in alone]


def gaps(folder: Path, simulator: PointSimulator) -> list[Served]:
    """Rows of ML.ENERGY, all on vLLM 0.11, whose models are known."""
    found = []
    for row in pd.read_csv(folder / "tables" / "mlenergy_serving.csv").to_dict("records"):
        point = point_of(row)
        try:
            found.append(gap(row, point, simulator.cost(point)))
        except TracelensError:
            continue
    return found


def gap(row: Mapping[str, Any], point: ServingPoint, cost: StepCost) -> Served:
    """The median step of a batch: see ``median_step``."""
    asked, prompts = median_step(point, cost)
    (step, exchange), (doubled, _) = (each.mixed_time(*asked) for each in (cost, with_prompts_twice(cost)))
    prompt_ms, layers = (doubled - step) / 1e12, len(cost.layers) / 1e3
    family = f"{point.model} on {point.system} in {point.precision}, {row['task']}"
    compute = compute_of(cost.system.device)
    return Served(
        row={**row, "id": f"mlenergy {family} {row['max_num_seqs']} of {row['num_gpus']}"}, point=point,
        engine=point.engine, family=family, group=cost.deployment.model.name,
        counts=(
            step / 1e12 - prompt_ms, 0.0 if prompts else layers, layers if prompts else 0.0,
            cost.own(asked[4]) / 1e3, prompt_ms, 0.0, 0.0,
        ),
        exchange_ms=exchange / 1e12, batch=asked[4],
        compute=compute, release=release_of("vllm", compute, None, "0.11"),
    )  # fmt: skip


def served(row: Mapping[str, Any], point: ServingPoint, cost: StepCost) -> Served:
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
    eager = decoding if cost.is_eager else 0.0
    sequences = cost.own(active) * (decoding + (0.0 if point.engine in PROMPTS_FIRST else times * len(steps)))
    is_rocm = cost.system.device.vendor == "amd"
    engine = point.engine + ("-rocm" if is_rocm else "")
    family = f"{point.model} on {point.system} in {point.precision or 'its own type'}"
    return Served(
        row=row, point=point, engine=engine, family=family, group=family if is_rocm else cost.deployment.model.name,
        release=release_of(engine, compute_of(cost.system.device), point.date, str(row["backend_version"])),
        counts=(
            decode_ms + step_ms - prompt_ms, (decoding - eager) * layers / 1e3,
            (times * len(steps) + eager) * layers / 1e3, sequences / 1e3, prompt_ms, 0.0, 0.0,
        ),
        exchange_ms=decoding * line.exchange / 1e12 + prompt_exchange_ms, batch=active,
        compute=compute_of(cost.system.device),
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
    # Of a run's requests the first come at once, and wait for half of the others' prompts
    waits = 1 + (one.point.concurrency - 1) / 2 / PER_USER
    return replace(
        one, is_first=True, family=f"{one.family}, first token", exchange_ms=exchange_ms * waits + wait_ms,
        counts=(
            (whole_ms - prompt_ms) * waits, 0.0, len(chunks) * layers / 1e3 * waits, 0.0, prompt_ms * waits, 1e-3,
            given / 1e3,
        ),
    )  # fmt: skip


Release = tuple[str, str, str]


def release_of(engine: str, compute: str, day: datetime.date | None, version: str = "") -> Release | None:
    """``version``; else the last one that was out on ``day``, the first where none was, the newest where the day is not
    known.
    """
    known = RELEASES.get((engine, compute), ())
    stated = [name for name, _ in known if version.startswith(name)]
    out = stated or [name for name, since in known if day is None or since <= str(day)]
    return (engine, compute, out[-1] if out else known[0][0]) if known else None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Constants in ln, with what engines and releases differ by: those that all engines have first."""

    places: Mapping[str | Release, int]
    at: np.ndarray

    def logs(self, engine: str, release: Release | None = None) -> np.ndarray:
        """An engine's constants, of a release where it is known: those of all engines where none of its own is."""
        found: np.ndarray = self.at[: len(PULL)].copy()
        if engine in self.places:
            start = self.places[engine]
            found += self.at[start : start + len(PULL)]
        if release in self.places:
            found[STEPPED] += self.at[self.places[release] : self.places[release] + len(STEPPED)]
        return found

    def terms_ms(self, some: Sequence[Served]) -> np.ndarray:
        """What each constant contributes to a token's time; the last column is the exchanges'."""
        terms = np.array([(*o.counts, o.exchange_ms) for o in some])
        terms[:, :-1] *= np.exp([self.logs(o.engine, o.release) for o in some])
        return terms

    def projected_ms(self, some: Sequence[Served]) -> np.ndarray:
        return self.terms_ms(some).sum(axis=1)


def steps_of(release: Release) -> list[float]:
    return [spread if name == "layer_us" or release[0] == OF_SEQUENCES else 1e-6 for name, spread in STEPS.items()]


def fitted(points: Sequence[Served]) -> Fit:
    """By reweighted least squares of ln; families count alike."""
    some = [o for o in points if o.is_fitted]
    engines, releases = sorted({o.engine for o in some}), sorted({o.release for o in some if o.release})
    width, steps = len(PULL), len(STEPS)
    places: dict[str | Release, int] = {name: width * (1 + at) for at, name in enumerate(engines)}
    places |= {name: width * (1 + len(engines)) + steps * at for at, name in enumerate(releases)}
    value, vendor, own = (np.array(part) for part in zip(*PULL.values(), strict=True))
    center = np.concatenate([np.log(value), np.zeros(width * len(engines) + steps * len(releases))])
    spread = np.concatenate([vendor, np.tile(own, len(engines)), *map(steps_of, releases)])
    many = Counter(o.family for o in some)
    weight = np.array([many[o.family] ** -0.5 for o in some])
    weight *= len(some) / weight.sum()
    measured, rows = np.log([o.measured_ms for o in some]), np.arange(len(some))
    start = np.array([places[o.engine] for o in some])
    stepped = np.array([at for at, o in enumerate(some) if o.release], dtype=int)
    release = np.array([places[o.release] for o in some if o.release], dtype=int)
    at = center.copy()
    for _ in range(60):
        terms = Fit(places=places, at=at).terms_ms(some)
        whole = terms.sum(axis=1)
        now = np.log(whole) - measured
        shares = terms / whole[:, None]
        slopes = np.zeros((len(some), len(center)))
        slopes[:, :width] = shares[:, :-1]
        for k in range(width):
            slopes[rows, start + k] = shares[:, k]
        for k, name in enumerate(STEPPED):
            slopes[stepped, release + k] = shares[stepped, name]
        pull = weight / (USUAL * np.maximum(np.abs(now), USUAL / 2))
        step = np.linalg.solve(
            slopes.T @ (pull[:, None] * slopes) + np.diag(spread**-2.0),
            -slopes.T @ (pull * now) - (at - center) / spread**2,
        )
        at = at + np.clip(step, -0.3, 0.3)
        if np.abs(step).max() < 1e-4:
            break
    return Fit(places=places, at=at)


def vendor_of(engine: str) -> str:
    return "amd" if engine.endswith("-rocm") else "nvidia"


def without_each(points: Sequence[Served]) -> Iterator[tuple[Fit, list[Served]]]:
    """The constants that are fitted without a group, whatever the engine, and that group's points; for each."""
    for vendor in sorted({vendor_of(o.engine) for o in points}):
        mine = [o for o in points if vendor_of(o.engine) == vendor]
        for group in sorted({o.group for o in mine}):
            yield fitted([o for o in mine if o.group != group]), [o for o in mine if o.group == group]


def left_out(points: Sequence[Served]) -> list[tuple[Served, float]]:
    """(point, projected over measured) of the times per token."""
    scored: list[tuple[Served, float]] = []
    for fit, group in without_each(points):
        scored += ratios_of(fit, group)
    return scored


def ratios_of(fit: Fit, points: Sequence[Served]) -> list[tuple[Served, float]]:
    some = [o for o in points if not o.is_first]
    ratios = fit.projected_ms(some) / np.array([o.measured_ms for o in some])
    return list(zip(some, ratios.tolist(), strict=True))


def all_left_out(points: Sequence[Served], kind: str) -> list[tuple[Served, float]]:
    """As ``left_out``, of a source, an engine or a kind of device that is left out as a whole, for each of a vendor."""
    key = {"source": lambda o: o.source, "engine": lambda o: o.engine, "device": lambda o: o.compute}[kind]
    scored: list[tuple[Served, float]] = []
    for vendor in sorted({vendor_of(o.engine) for o in points}):
        mine = [o for o in points if vendor_of(o.engine) == vendor]
        for one in sorted({key(o) for o in mine}):
            rest, gone = ([o for o in mine if (key(o) == one) == is_gone] for is_gone in (False, True))
            if rest:
                scored += ratios_of(fitted(rest), gone)
    return scored


def first_left_out(points: Sequence[Served]) -> list[tuple[Served, float]]:
    """(point, simulated over measured) of the times to the first token, whatever the load: equal points run once."""
    scored: list[tuple[Served, float]] = []
    for fit, group in without_each(points):
        some = [o for o in group if not o.is_first and o.point.date is not None]
        for engine, release in sorted({(o.engine, o.release) for o in some}, key=str):
            simulator, known = simulator_of(fit, engine, release), {}
            for one in (o for o in some if (o.engine, o.release) == (engine, release)):
                point = replace(one.point, date=None)
                if str(point) not in known:
                    known[str(point)] = simulator.estimate(point).ttft_ms
                if (found := known[str(point)]) is not None:
                    scored.append((one, found / float(one.row["ttft_ms"])))
    return scored


def simulator_of(fit: Fit, engine: str, release: Release | None) -> PointSimulator:
    policy = "prefill-first" if engine.removesuffix("-rocm") in PROMPTS_FIRST else LIMITS.policy
    given = constants_of(fit.logs(engine, release))
    return PointSimulator(replace(LIMITS, policy=policy, **given), engine_named="ideal")


def apart(folder: Path, points: Sequence[Served]) -> dict[str, list[tuple[Served, float]]]:
    """Disaggregated rows, none of which is fitted, by constants without their model or family: (row, simulated over
    measured) of the time per token and of the one to the first. A release is known where the rest of the fit has it.
    """
    rows = pd.read_csv(folder / "tables" / "serving_inferencex.csv").to_dict("records")
    found: dict[str, list[tuple[Served, float]]] = {"tpot_ms": [], "ttft_ms": []}
    fits = {group[0].group: fit for fit, group in without_each(points)}
    simulators: dict[tuple[str, str, Release | None], PointSimulator] = {}
    known: dict[tuple[str, Release | None], PointEstimate] = {}
    for row in rows:
        if row["mode"] != "disagg" or row["quality"] == "C":
            continue
        point = point_of(row)
        device = system_of(point.system)[0].device
        engine = point.engine + ("-rocm" if device.vendor == "amd" else "")
        family = f"{point.model} on {point.system} in {point.precision}"
        group = family if device.vendor == "amd" else "deepseek-v3"
        release = release_of(engine, compute_of(device), point.date)
        place = engine, group, release if release in fits[group].places else None
        if place not in simulators:
            simulators[place] = simulator_of(fits[group], engine, place[2])
        point = replace(point, date=None)
        asked = str(point), place[2]
        if asked not in known:
            known[asked] = simulators[place].estimate(point)
        one = Served(
            row=row, point=point, engine=engine, family=family, group=group, counts=(0.0,) * 7, exchange_ms=0.0,
            batch=point.concurrency, compute=compute_of(device),
        )  # fmt: skip
        for name, ratios in found.items():
            value = getattr(known[asked], name)
            ratios.append((one, float("nan") if value is None else value / row[name]))
    return found


def handed_over(
    found: Sequence[tuple[Served, float]],
) -> tuple[list[tuple[Served, float]], dict[str, float]]:
    """Times to the first token of disaggregated rows with what handing over adds to them, by other families than their
    own; and what it adds by all of a vendor, in us: of each family's rows of few requests at once, the median of how
    much longer the median was than simulated without it. Means hold a run's start. Vendors differ in what hands over:
    Dynamo on NVIDIA's devices, SGLang's own router and MoRI on AMD's.
    """
    late: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, ratio in found:
        if one.point.concurrency <= ALONE and ratio == ratio:
            mean, middle = float(one.row["ttft_ms"]), float(one.row["median_ttft_ms"])
            own = (mean if middle != middle else middle) - ratio * mean
            late[vendor_of(one.engine)][one.family].append(own)
    medians = {
        vendor: {family: float(np.median(each)) for family, each in by_family.items()}
        for vendor, by_family in late.items()
    }

    def added_ms(vendor: str, without: str = "") -> float:
        return float(np.median([value for family, value in medians[vendor].items() if family != without]))

    with_it = [
        (one, ratio + added_ms(vendor_of(one.engine), one.family) / float(one.row["ttft_ms"])) for one, ratio in found
    ]
    return with_it, {vendor: 1e3 * added_ms(vendor) for vendor in medians}


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


def spans(scored: Sequence[tuple[Served, float]], vendor: str) -> tuple[float, float, int]:
    """By which factor at most half and nine tenths of the measured points were longer or shorter than estimated, of all
    engines on that vendor's devices: an engine's own families are too few. Every family counts alike. And how many
    points there are.
    """
    some = [(o, r) for o, r in scored if vendor_of(o.engine) == vendor and r == r]
    many = Counter((o.engine, o.family) for o, _ in some)
    off = np.abs(np.log([r for _, r in some]))
    weight = np.array([1 / many[o.engine, o.family] for o, _ in some])
    order = np.argsort(off)
    below = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    half, most = (float(np.exp(np.interp(share, below, off[order]))) for share in (0.5, 0.9))
    return half, most, len(some)


#: What was left out -> (point, projected over measured).
Scores = Mapping[str, Sequence[tuple[Served, float]]]


def write(
    points: Sequence[Served], scores: Scores, first: Scores, handover_us: Mapping[str, float], most: int, today: str
) -> None:
    """Every engine's file; ``handover_us``: of each vendor; ``most``: on how many devices points ran at most."""
    folder = Path(engines_room.__file__).parent
    for vendor, pooled in (("nvidia", "pooled"), ("amd", "pooled-rocm")):
        all_of_it = [o for o in points if vendor_of(o.engine) == vendor]
        fit = fitted(all_of_it)
        for name in (*sorted({o.engine for o in all_of_it}), pooled):
            mine = [o for o in all_of_it if name in (o.engine, pooled)]
            texts = {}
            if name.removesuffix("-rocm") in PROMPTS_FIRST:
                texts["policy"] = "prefill-first"
            if name in QUANTIZED_KV:
                texts["quantized_kv"] = QUANTIZED_KV[name]
            releases = sorted((r for r in fit.places if r[0] == name), key=lambda r: (r[1], since_of(r)))
            families = ", ".join(sorted({f"{o.group} ({o.source})" for o in mine if not o.is_first}))
            computes = ", ".join(f'"{each}"' for each in sorted({o.compute for o in all_of_it}))
            lines = [
                f'name = "{name}"',
                f'source = "{sum(not o.is_first for o in mine)} published points: {families}; fit_engines.py, {today}"',
                *(f"{key} = {value:.4g}" for key, value in constants_of(fit.logs(name)).items()),
                *(f'{key} = "{value}"' for key, value in texts.items()),
                f"computes = [{computes}]", f"handover_us = {handover_us[vendor]:.4g}", f"most_devices = {most}",
                *residual_lines("residuals", scores, vendor), *residual_lines("first_residuals", first, vendor),
                *(each for release in releases for each in release_lines(fit, release)),
            ]  # fmt: skip
            (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def residual_lines(name: str, scores: Scores, vendor: str) -> Iterator[str]:
    for left_out, scored in scores.items():
        if any(vendor_of(o.engine) == vendor for o, _ in scored):
            half, most, rows = spans(scored, vendor)
            yield from ("", f"[{name}.{left_out}]", f"half = {half:.4g}", f"most = {most:.4g}", f"rows = {rows}")


def since_of(release: Release) -> str:
    engine, compute, version = release
    return dict(RELEASES[engine, compute])[version]


def release_lines(fit: Fit, release: Release) -> list[str]:
    engine, compute, version = release
    logs = fit.logs(engine, release)
    said = {"version": version, "since": since_of(release)} | ({"compute": compute} if compute else {})
    changed = [name for name in STEPS if name == "layer_us" or engine == OF_SEQUENCES]
    values = {name: np.exp(logs[list(PULL).index(name)]) for name in changed}
    return [
        "", "[[releases]]", *(f'{key} = "{value}"' for key, value in said.items()),
        *(f"{key} = {value:.4g}" for key, value in values.items()),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--predictions", type=Path, metavar="FILE.csv")
    parser.add_argument("--first", action="store_true", help="with times to the first token and disaggregated rows")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    args = parser.parse_args()
    points = read(args.folder)
    scores, first = report(points)
    if args.write or args.first:
        found = apart(args.folder, points)
        first_apart, handover_us = handed_over(found["ttft_ms"])
        scores = {**scores, "apart": found["tpot_ms"]}
        first = {"model": first_left_out(points), "apart": first_apart}
        told = {"first token": first["model"], "apart": scores["apart"], "apart, first token": first["apart"]}
        for title, scored in told.items():
            print_lines(title, scored)
    if args.write:
        most = max(one.point.devices for one, _ in scores["apart"])
        write(points, scores, first, handover_us, most, args.date)
    if args.predictions is not None:
        predictions(args.predictions, scores, first)


def print_lines(title: str, scored: Sequence[tuple[Served, float]]) -> None:
    groups: dict[str, list[float]] = defaultdict(list)
    for one, ratio in scored:
        further = " with MTP" if one.row.get("spec_decoding") == "mtp" else ""
        for name in {
            "all", f"{one.band} at once", one.engine, one.engine + further, one.source, f"{one.source}, {one.engine}",
            f"{one.source}, {vendor_of(one.engine)}", f"{one.engine} {one.group}",
        }:  # fmt: skip
            groups[name].append(ratio)
    for name in sorted(groups):
        known = [ratio for ratio in groups[name] if ratio == ratio]
        unknown = len(groups[name]) - len(known)
        print(line(f"{title}: {name}{f', {unknown} without' if unknown else ''}", known))


def report(points: Sequence[Served]) -> tuple[Scores, Scores]:
    """Each point with projected over measured, by what was left out; printed by group."""
    print("| left out | points | median | p90 | signed |\n|---|---|---|---|---|")
    scores = {"model": left_out(points)} | {kind: all_left_out(points, kind) for kind in ("source", "engine", "device")}
    for kind, scored in scores.items():
        print_lines(kind, scored)
    for vendor in ("nvidia", "amd"):
        fit = fitted([o for o in points if vendor_of(o.engine) == vendor])
        for name in (vendor, *(each for each in fit.places if isinstance(each, str))):
            print(name, dict(zip(PULL, np.exp(fit.logs(name)).round(3).tolist(), strict=True)))
    return scores, {}


#: What interval a left-out point is scored with: of residuals without those that share this with it.
SHARED = {
    "model": lambda o: o.group, "first": lambda o: (o.engine, o.group), "source": lambda o: o.source,
    "engine": lambda o: o.engine, "device": lambda o: o.compute, "apart": lambda o: o.family,
}  # fmt: skip


def predictions(path: Path, scores: Scores, first: Scores) -> None:
    """For ``tracelens score``: an area per time and what was left out, intervals of other groups' residuals."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("id", "area", "source", "family", "measured", "predicted", "low", "high"))
        for times, what in ((scores, "TPOT"), (first, "TTFT")):
            for kind, scored in times.items():
                known: dict[tuple[str, object], float] = {}
                # One model has times to the first token on NVIDIA: the other engine stands for other groups
                shared = SHARED["first" if what == "TTFT" and kind == "model" else kind]
                for one, ratio in scored:
                    key = vendor_of(one.engine), shared(one)
                    if key not in known:
                        rest = [(o, r) for o, r in scored if shared(o) != key[1]]
                        known[key] = spans(rest, key[0])[1]
                    measured = float(one.row["ttft_ms"]) if what == "TTFT" else one.measured_ms
                    area = f"serving {'ITL' if one.is_gap else what}{'' if kind == 'model' else f', {kind} left out'}"
                    values = (measured, measured * ratio, measured * ratio / known[key], measured * ratio * known[key])
                    texts = ["" if value != value else value for value in values]
                    out.writerow((one.row["id"], area, one.source, f"{kind} {one.engine} {one.family}", *texts))


if __name__ == "__main__":
    main()
