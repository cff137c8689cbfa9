"""A server under more and more requests at once: throughput, latencies, where the SLO breaks, and what bounds it.

Each point is a closed loop. Its figures are those of the steady part, without the requests that arrive together at the
start and those that finish while the load falls: throughput follows from Little's law. What bounds a point is where
the time of its steps goes: of steps spread evenly over the run, every operation counts for the rate that limits it.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tracelens.errors import UsageError
from tracelens.files.say import with_progress
from tracelens.perf_models import PerfModel
from tracelens.predict.serving.costs import Mix, StepCost
from tracelens.predict.serving.experiment import Experiment, ServingResult, deployment_of, experiment_of
from tracelens.predict.serving.metrics import (
    FS_PER_S,
    Objectives,
    energy_of,
    facility_figures,
    percentile_of,
    served_requests,
    within,
)
from tracelens.predict.serving.profile import ProfileCost
from tracelens.predict.serving.requests import Lengths
from tracelens.predict.serving.serving_options import ServingConfig
from tracelens.predict.serving.simulation import Outcome
from tracelens.types.records import Record, pd
from tracelens.types.units import MS_PER_S

#: MLPerf Inference's limits for Llama 2 70B, interactive (mlcommons/inference, submission checker of v6.0), which 99 of
#: 100 requests keep.
ASSUMED_SLO = "ttft=450ms,tpot=40ms"
SLO_SOURCE = "MLPerf Inference's interactive limits for Llama 2 70B"
KEPT_BY = 0.99
#: Equal requests of a closed loop fall into step and wait for each other, which real ones do not: InferenceX draws
#: lengths within a fifth (--random-range-ratio 0.8).
_SPREAD = 0.2
#: Requests of a point: so many per user, and at least so many.
_PER_USER, _LEAST = 8, 64
#: Steps of a point whose operations are looked at.
_LOOKED_AT = 64
_GOLDEN = (5**0.5 - 1) / 2
#: Share of its time that a request waits above which waiting, not the work of a step, bounds the point.
_WAITS = 0.2
#: Share of the KV cache above which it is full: admission leaves some of it free.
_FULL = 0.9
#: What requests wait for: room for their tokens, or replicas that only prefill.
WAITING = ("KV cache", "prefill replicas")
_MOST_TP = 64
#: Parts of a step's time, as columns of the curve have them.
PARTS = ("prefill compute", "prefill HBM", "decode compute", "decode HBM", "collectives", "host")


#: Operations of a step: name, perf model and time in fs; the share of it that prompts have; how often they run.
OpGroup: TypeAlias = tuple[Sequence[tuple[str, PerfModel, int]], float, float]


def shares_of(outcome: Outcome) -> dict[str, float]:
    """Where the time of a run's steps goes, by ``PARTS``, as shares of it; empty where operations are not known, as
    from a profile.
    """
    if any(isinstance(cost, ProfileCost) for cost in outcome.costs):
        return {}
    linear, ends = functools.cache(_linear), functools.cache(_ends)
    picked = [(cost, mix, list(_groups(cost, mix, linear, ends))) for cost, mix in _spread(outcome)]
    bounds: dict[StepCost, dict[PerfModel, str | None]] = {}
    for cost in dict.fromkeys(cost for cost, *_ in picked):
        models = dict.fromkeys(
            model for one, _, groups in picked if one is cost for ops, *_ in groups for _, model, _ in ops
        )
        bounds[cost] = dict(zip(models, cost.estimates(list(models)).bound, strict=True))
    total: dict[str, float] = dict.fromkeys(PARTS if picked else (), 0.0)
    for cost, mix, groups in picked:
        for name, share in _parts(cost, mix, groups, bounds[cost]).items():
            total[name] += share / _LOOKED_AT
    return total


def _spread(outcome: Outcome) -> Iterator[tuple[StepCost, Mix]]:
    """What steps computed at moments spread over all steps' time by multiples of the golden ratio: evenly, and never in
    time with the requests.
    """
    ran = [
        (each.start, cost, each, fs)
        for cost, log in zip(outcome.costs, outcome.steps, strict=True)
        for kind in (log.prompts, log.decoding)
        for each, fs in zip(kind.kept, kind.times_fs(0, outcome.end_fs).tolist(), strict=True)
    ]
    ran.sort(key=lambda each: each[0])
    ends = list(itertools.accumulate(fs for *_, fs in ran))
    for number in range(_LOOKED_AT if ran else 0):
        _, cost, each, _ = ran[bisect.bisect_left(ends, number * _GOLDEN % 1 * ends[-1])]
        yield cost, each.middle


def _groups(cost: StepCost, mix: Mix, linear: Callable[..., Any], ends: Callable[..., Any]) -> Iterator[OpGroup]:
    """The operations of one step. Tokens share what layers do for all of them."""
    tokens, chunks, rows, _, batch, context = mix
    prompt = sum(new for new, _ in chunks) / max(tokens, 1)
    # The table is of steps with prompts alone, which may take longer, or of steps that decode
    scale = cost.prompt_share_scale(tokens, batch) / cost.prompt_share_scale(tokens, 0) if chunks else 1.0
    for kind, count in Counter(cost.layers).items():
        yield linear(cost, kind, tokens, 0 if chunks else batch), prompt, count * scale
        yield cost.core_operations(kind, chunks, 0, 0), 1, count
        yield cost.core_operations(kind, (), batch, context), 0, count
    yield ends(cost, tokens, rows), prompt, 1


def _parts(
    cost: StepCost, mix: Mix, groups: Sequence[OpGroup], bounds: Mapping[PerfModel, str | None]
) -> defaultdict[str, float]:
    """The parts of one step, as shares of it: what operations take counts for what limits them, compute or HBM."""
    found: defaultdict[str, float] = defaultdict(float)
    for ops, of_prompt, count in groups:
        for _, model, fs in ops:
            bound = "compute" if bounds[model] == "compute" else "HBM"
            found[f"prefill {bound}"] += count * fs * of_prompt
            found[f"decode {bound}"] += count * fs * (1 - of_prompt)
    stages = cost.mixed(*mix) if mix[1] else cost.decode_work(*mix[4:])
    found["host"] = max(sum(work.compute_fs for work in stages) - sum(found.values()), 0)
    found["collectives"] = sum(work.exchange_fs for work in stages)
    whole = sum(found.values()) or 1
    return defaultdict(float, {name: fs / whole for name, fs in found.items()})


def _linear(cost: StepCost, kind: str, tokens: int, batch: int) -> list[tuple[str, PerfModel, int]]:
    """A layer's operations but cores of attention."""
    cores = {name for name, *_ in cost.core_operations(kind, (), batch, 0)}
    return [op for op in cost.layer_operations(kind, tokens, [], batch, 0) if op[0] not in cores]


def _ends(cost: StepCost, tokens: int, rows: int) -> list[tuple[str, PerfModel, int]]:
    return list(itertools.chain(*cost.end_operations(tokens, rows)))


class LoadPoint(Record, frozen=True, kw_only=True):
    """A closed loop of ``concurrency`` requests. ``figures`` by name, of its steady part; ``shares`` by ``PARTS``."""

    concurrency: int
    result: ServingResult
    figures: Mapping[str, float | int | None]
    shares: Mapping[str, float]

    @property
    def at_once(self) -> str:
        """``8 requests at once``, or sessions, where requests have turns."""
        one = "session" if self.result.outcome.requests.after else "request"
        return f"{self.concurrency:,} {one}{'s' * (self.concurrency != 1)} at once"

    @property
    def keeps_slo(self) -> bool:
        return (self.figures["good_share"] or 0.0) >= KEPT_BY

    @property
    def bound(self) -> tuple[str, float | None]:
        """What bounds the point, and its share of the steps' time, or of a request's where requests wait."""
        waits = self.figures["waiting_share"] or 0.0
        if waits > _WAITS and (self.figures["kv_share"] or 0.0) >= _FULL:
            return WAITING[0], waits
        if waits > _WAITS and self.result.experiment.options.prefill_replicas:
            return WAITING[1], waits
        if not self.shares:
            return "unknown (--profile)", None
        name = max(PARTS, key=lambda part: self.shares[part])
        return name, self.shares[name]

    @property
    def row(self) -> dict[str, Any]:
        """All of it, as the files of a curve have it."""
        bound, share = self.bound
        parts = {f"{name.replace(' ', '_').lower()}_share": self.shares.get(name) for name in PARTS}
        return {
            "concurrency": self.concurrency, **self.figures, "keeps_slo": self.keeps_slo, "bound": bound,
            "bound_share": share, **parts,
        }  # fmt: skip


class LoadCurve(Record, frozen=True, kw_only=True):
    """Points by concurrency. ``is_assumed``: nobody gave the SLO. ``notes``: what was chosen or taken for granted."""

    experiment: Experiment
    points: tuple[LoadPoint, ...]
    is_assumed: bool
    notes: tuple[str, ...] = ()

    @property
    def objectives(self) -> Objectives:
        return self.experiment.objectives or Objectives()

    @property
    def held(self) -> LoadPoint | None:
        """The last point before the SLO breaks."""
        broken = self.broken
        kept = [point for point in self.points if broken is None or point.concurrency < broken.concurrency]
        return kept[-1] if kept else None

    @property
    def broken(self) -> LoadPoint | None:
        """The first point that does not keep the SLO."""
        return next((point for point in self.points if not point.keeps_slo), None)

    @property
    def frame(self) -> pd.DataFrame:
        """A row per point."""
        return pd.DataFrame([point.row for point in self.points])

    def about(self) -> dict[str, Any]:
        """What was asked and what the curve answers, without its points."""
        served, held, broken = self.experiment.deployment, self.held, self.broken
        return {
            "schema": "tracelens.serve.curve/1", "model": served.model.name, "device": served.system.device.name,
            "parallelism": {name: getattr(served.parallelism, name) for name in ("tp", "pp", "dp", "ep")},
            "slo": msgspec.to_builtins(self.objectives) | {"kept_by": KEPT_BY, "is_assumed": self.is_assumed},
            "held_concurrency": None if held is None else held.concurrency,
            "held_requests_per_s": None if held is None else held.figures["requests_per_s"],
            "breaks_at_concurrency": None if broken is None else broken.concurrency, "notes": list(self.notes),
        }  # fmt: skip


def load_curve(
    model: Any, cluster: Any, asked: ServingConfig, *, takes_tp: bool, levels: Sequence[int] = ()
) -> LoadCurve:
    """Doubles the number of requests at once up to what the server holds, then closes in on where the SLO breaks.

    ``levels``: these numbers of requests at once instead. ``takes_tp``: nobody gave a tensor-parallel degree, so the
    smallest that fits is taken. UsageError where none does.
    """
    is_assumed, count = asked.slo is None, asked.requests if isinstance(asked.requests, int) else None
    asked = as_closed_loop(asked)
    base, cost, chosen = _fitting(model, cluster, asked, takes_tp=takes_tp)
    at = functools.partial(load_point, base, cost, count=count)
    points = {n: at(n) for n in with_progress(levels or _doubling(base, cost, count), "simulating", "loads")}
    good, bad = _around(points)
    while not levels and bad is not None and bad - good > max(good // 8, 1):
        points[(good + bad) // 2] = at((good + bad) // 2)
        good, bad = _around(points)
    ordered = tuple(points[n] for n in sorted(points))
    curve = LoadCurve(experiment=base, points=ordered, is_assumed=is_assumed)
    shown = curve.held or ordered[0]
    notes = [
        f"with {shown.at_once}: {note}" if note.startswith(("TPOT", "TTFT", "goodput")) else note
        for note in shown.result.notes
    ]
    return dataclasses.replace(curve, notes=(*chosen, *notes))


def as_closed_loop(asked: ServingConfig) -> ServingConfig:
    """What a curve's points are asked, of one request at once: lengths that vary, and an SLO."""
    return dataclasses.replace(
        asked, concurrency=1, slo=asked.slo or ASSUMED_SLO,
        input_tokens=_varied(asked.input_tokens), output_tokens=_varied(asked.output_tokens),
    )  # fmt: skip


def load_point(
    base: Experiment, cost: StepCost, concurrency: int, *, count: int | None = None, prefilling: StepCost | None = None
) -> LoadPoint:
    """``base`` with so many requests at once, of ``count`` in all. ``prefilling``: the step cost of prefill replicas
    that are others.
    """
    if prefilling is None:
        prefilling = cost if base.prefill is None else dataclasses.replace(base, deployment=base.prefill).cost()
    requests = max(_PER_USER * concurrency, _LEAST) if count is None else count
    result = base.under(concurrency=concurrency, count=requests).run(cost=cost, prefilling=prefilling, settled=True)
    shares = shares_of(result.outcome)
    return LoadPoint(concurrency=concurrency, result=result, figures=_steady(result), shares=shares)


def _varied(given: int | str | Lengths) -> Lengths:
    """Lengths within ``_SPREAD`` of one that is given as a plain number; ``fixed:1024`` stays."""
    found = Lengths.of(given)
    if found.kind != "fixed" or (isinstance(given, str) and given.startswith("fixed")):
        return found
    return Lengths(kind="uniform", mean=found.mean, spread=_SPREAD)


def _around(points: Mapping[int, LoadPoint]) -> tuple[int, int | None]:
    """The last number before the SLO breaks, 0 where it never holds, and the first at which it does not."""
    bad = min((n for n, point in points.items() if not point.keeps_slo), default=None)
    return max((n for n in points if bad is None or n < bad), default=0), bad


def _fitting(
    model: Any, cluster: Any, asked: ServingConfig, *, takes_tp: bool
) -> tuple[Experiment, StepCost, tuple[str, ...]]:
    """The experiment, its cost, and a note on the degree that was chosen."""
    tp, first = asked.tp, None
    while True:
        said = model if isinstance(model, str) else ""
        try:
            one = dataclasses.replace(asked, tp=tp)
            base = experiment_of(deployment_of(model, cluster, one), one, said=said)
            cost = base.cost()
            cost.pool_tokens()
        except UsageError as error:
            first = first or error
            tp *= 2
            if not takes_tp or tp > _MOST_TP or "does not fit" not in str(first):
                raise first from None
            continue
        note = f"tp {tp} is the smallest tensor-parallel degree (--tp) that fits; with tp {asked.tp}, {first}"
        return base, cost, (note,) if first is not None else ()


def _doubling(base: Experiment, cost: StepCost, count: int | None) -> list[int]:
    """1, 2, 4 ... up to as many sequences as the engine decodes at once, or one step beyond the KV cache;
    of ``count`` requests a fourth at once.
    """
    workload, replicas = base.workload, base.options.replicas
    # In the mean of a session's turns, with all that was said before
    tokens = (workload.input.mean + workload.output.mean) * (workload.turns.mean + 1) / 2
    places = base.deployment.engine.max_num_seqs * base.deployment.parallelism.dp * replicas
    room = max(cost.pool_tokens() * replicas / tokens, 1)
    top = min(places, 1 << (int(room).bit_length())) if room < places else places
    if count is not None:
        top = max(min(top, count // 4), 1)
    return [*(1 << i for i in range(top.bit_length()) if 1 << i < top), top]


def _steady(result: ServingResult) -> dict[str, float | int | None]:
    """The figures of the settled part."""
    asked, outcome = result.outcome.requests, result.outcome
    users, replicas = asked.concurrency or 1, result.experiment.options.replicas
    served = served_requests(outcome, settled=True)
    if not len(served):
        raise UsageError(next(iter(outcome.log.rejected.values()), "no request is left without the first and the last"))
    e2e, pause = float(served["e2e_ms"].mean()), asked.think_fs / FS_PER_S * MS_PER_S if asked.after else 0.0
    if pause:
        pause *= 1 - asked.comes_by_itself / len(asked)
    rate = users * MS_PER_S / (e2e + pause)
    objectives = result.experiment.objectives or Objectives()
    times = {
        f"{name}_p{part}_ms": percentile_of(served[f"{name}_ms"].to_numpy(float), part)
        for name in ("ttft", "tpot", "e2e")
        for part in (50, 99)
    }
    tpot = times["tpot_p50_ms"]
    return {
        "requests": len(served),
        "requests_per_s": rate,
        "output_tokens_per_s_per_gpu": rate * float(served["output_tokens"].mean()) / outcome.devices,
        "tokens_per_s_per_user": MS_PER_S / tpot if tpot > 0 else None,
        **times,
        "good_share": float(within(served, objectives).mean()),
        "waiting_share": float(served["queue_ms"].mean()) / e2e,
        "kv_share": max(outcome.peak_blocks[:replicas]) * outcome.block_tokens * replicas / max(outcome.pool_tokens, 1),
        **_energy(result, users, rate * float(served["output_tokens"].mean())),
    }  # fmt: skip


def _energy(result: ServingResult, users: int, tokens_per_s: float) -> dict[str, float | int | None]:
    """Watts per GPU from when the first requests have left until the last one comes, and J per output token at a rate;
    nothing where nobody measured energies.
    """
    outcome = result.outcome
    arrivals = sorted(outcome.log.arrival)
    start, end = arrivals[users] if len(arrivals) > users else 0, arrivals[-1]
    start, end = (start, end) if end > start else (0, outcome.end_fs)
    found = energy_of(outcome, start, end)
    if found is None or found.is_limit:
        return {}
    power_w = float(found.waiting_w + found.over_j / (end - start) * FS_PER_S)
    around = result.experiment.facility.of(power_w, found.host_w, 1.0, tokens_per_s)
    return {
        "power_w_per_gpu": power_w / outcome.devices, "energy_j_per_output_token": power_w / tokens_per_s,
        **facility_figures(around),
    }  # fmt: skip
