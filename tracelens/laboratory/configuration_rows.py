"""Many served configurations at once: rows in, estimates or a reason out."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracelens.backends import System
from tracelens.backends.base import system_of
from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files import data_table
from tracelens.files.atomic_write import write_whole
from tracelens.files.cells import frame_csv
from tracelens.files.data_table import Headings, Number, is_blank
from tracelens.files.documents import toml_of
from tracelens.files.option_fields import BACKENDS
from tracelens.hardware.power import power_constants
from tracelens.laboratory.inferencex import INFERENCEX, launched, speculates, text_of
from tracelens.predict.serving import engines
from tracelens.predict.serving.costs import Mix, StepCost
from tracelens.predict.serving.deployment import (
    Deployment,
    Engine,
    Parallelism,
    ServingPrecision,
    Speculation,
    as_served,
)
from tracelens.predict.serving.metrics import FS_PER_S, energy_of, over_waiting_j
from tracelens.predict.serving.replica_state import Options
from tracelens.predict.serving.requests import LONGEST, Requests
from tracelens.predict.serving.simulation import Outcome, Simulation
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.model_config import weights_of_name
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import MS_PER_S

FS_PER_MS = 10**12
#: Requests, tokens and ranks of a row.
_SERVED = Number(least=1, most=LONGEST, whole=True)
_MEAN = Number(least=1, most=LONGEST)
#: Limits of engines that published points do not state.
LIMITS = Engine(max_num_seqs=1024, max_batched_tokens=8192)
#: What a published row was run with where 0.9 of the memory is too little: launch lines of SGLang that fill a device
#: say --mem-fraction-static 0.95.
LARGEST_MEMORY_SHARE = 0.95
#: Columns that ``batch`` adds; nine of ten measured times lie between ``_low`` and ``_high``.
ESTIMATES = ("ttft_ms_est", "tpot_ms_est", "tpot_ms_low", "tpot_ms_high", "ttft_ms_low", "ttft_ms_high")
#: In place of them, of a table that states the batch that ran: the median time between tokens.
GAP_ESTIMATES = ("itl_ms_est", "itl_ms_low", "itl_ms_high")
#: How many lengths prompts have: of few, steps with the same tokens come again and are priced once.
LENGTHS = 16
#: Added where energies of a row's device are measured.
ENERGY_ESTIMATES = ("energy_per_token_j_est", "energy_per_token_j_low", "energy_per_token_j_high", "power_w_gpu_est")
#: Between which factors of estimated J per token nine of ten of ML.ENERGY's 380 rows of known models are. Of each model
#: 89 % are between those of the others (2026-11-29).
ENERGY_SPAN = (0.817, 1.551)
#: What ML.ENERGY's rows were run with (ml-energy/benchmark, README: vllm-openai:v0.11.1) and that release's day.
ML_ENERGY = {"backend": "vllm", "date": "2025-11-18"}
#: Prompt tokens by ML.ENERGY's tasks, which publish none: of chats the mean of LMSYS-Chat-1M (arXiv 2309.11998, table
#: 1), others assumed; the last of any other task.
PROMPT_TOKENS = {
    "lm-arena-chat": 70, "gpqa": 256, "sourcegraph-fim": 1024, "image-chat": 1024, "video-chat": 4096, "": 512
}  # fmt: skip
HEADINGS = Headings(toml_of(Path(__file__).with_name("serving_headings.toml")))
_COUNTS = frozenset({
    "isl", "osl", "concurrency", "batch_size", "batch_in_flight", "tp_size", "pp_size", "attention_dp_size",
    "moe_ep_size", "n_gpus", "recv_interval",
})  # fmt: skip
#: ``1k/8k``, ``8x H100``, ``MTP-3``.
_LENGTHS = re.compile(r"([0-9][0-9.,]{0,11}k?) ?(?:/|:|->|→) ?([0-9][0-9.,]{0,11}k?)", re.IGNORECASE)
_COUNTED = re.compile(r"([0-9]{1,5}) ?[x×] ?(?=[a-z])|(?<=[a-z0-9]) ?[x×] ?([0-9]{1,5})$", re.IGNORECASE)
_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
#: When PyPI had SGLang 0.5.8.
_TURNS = datetime.date(2026, 1, 23)
#: Modes in which other replicas compute prompts.
_APART = ("disagg", "disaggregated", "pd", "p/d")
#: Modes in which one replica computes prompts and answers.
_TOGETHER = ("", "agg", "aggregated", "ifb", "inflight", "colocated", "co-located", "monolithic", "none")
NEEDED = ("model_path", "system", "isl", "osl")


class ServingPoint(Record, frozen=True, kw_only=True):
    """One row: what is served, and ``concurrency`` requests of equal lengths in flight at any time. ``prefill``: how
    the devices of each of ``prefill_replicas`` share the work, where these compute the prompts.
    """

    model: str
    system: str
    precision: str | None
    input_tokens: int
    output_tokens: int
    concurrency: int
    parallelism: Parallelism
    engine: str = ""
    #: The type of attention's and dense layers' weights, and that where prompts are computed apart; empty: as
    #: ``precision`` says.
    linear: str = ""
    prompt_linear: str = ""
    #: As the engine's where prompts are computed apart; empty: as that does.
    prompt_overlap: str = ""
    #: As ``Speculation.of_model`` reads it; empty: none.
    speculation: str = ""
    #: Lengths are drawn evenly from so far below and above their means, as a share of them.
    spread: float = 0.0
    date: datetime.date | None = None
    replicas: int = 1
    prefill: Parallelism | None = None
    prefill_replicas: int = 0
    #: Whether engines were fitted to rows of the same source.
    is_known: bool = False
    #: As the engine's.
    recv_interval: int = 1
    #: As the engine's; empty: as that does.
    chance_ranks: str = ""
    eager_drafts: str = ""
    gathers: str = ""
    latent: str = ""
    overlap: str = ""
    #: The type of the key-value cache; empty: as the engine has it. Of the memory, what is for weights and cache; 0: as
    #: ``LIMITS``, or more where a model needs it.
    kv: str = ""
    memory_share: float = 0.0
    #: Sequences that a data-parallel rank decodes at most; 0: as many as there are.
    slots: int = 0
    #: Where prompts are computed apart, requests that a data-parallel rank takes at once (0: as many as there are), and
    #: new tokens of its step, to which the last prompt is cut (0: as ``LIMITS``, and none is cut).
    prompt_slots: int = 0
    prompt_tokens: int = 0
    #: As ``Options.router``.
    router: str = "round-robin"
    #: How many requests of a run there are per user; 0: not known, its figures are those of a steady state.
    per_user: int = 0
    #: Whether times are medians over requests, not means.
    is_median: bool = False
    #: Whether ``concurrency`` is the mean batch that a row measured, beside the median time between tokens.
    is_batch: bool = False

    @property
    def devices(self) -> int:
        """Of all replicas."""
        prefill = 0 if self.prefill is None else self.prefill_replicas * self.prefill.devices
        return self.replicas * self.parallelism.devices + prefill


class PointEstimate(Record, frozen=True, kw_only=True):
    """What a row states of its run or steady state, or the reason why there is none."""

    ttft_ms: float | None = None
    ttft_ms_low: float | None = None
    ttft_ms_high: float | None = None
    tpot_ms: float | None = None
    tpot_ms_low: float | None = None
    tpot_ms_high: float | None = None
    itl_ms: float | None = None
    itl_ms_low: float | None = None
    itl_ms_high: float | None = None
    energy_per_token_j: float | None = None
    energy_per_token_j_low: float | None = None
    energy_per_token_j_high: float | None = None
    power_w_gpu: float | None = None
    reason: str = ""


def point_of(row: Mapping[str, Any], where: str = "") -> ServingPoint:
    """A row with serving_points.csv's columns, or ``HEADINGS``. UsageError or InputError, after ``where``: what it
    lacks.
    """
    row = _stated(row)
    for column in ("model_path", "system"):
        if not text_of(row, column):
            raise UsageError(f"{where}{column} is empty")
    if data_table.is_file_name(text_of(row, "system")):
        raise UsageError(
            f"{where}system must name a device or a cluster, not a file: {data_table.shown(row['system'])}"
        )
    whole = functools.partial(_whole, row, where)
    pools = _pools(row, where, whole)
    batch = next((name for name in ("concurrency", "batch_in_flight", "batch_size") if not is_blank(row.get(name))), "")
    if is_batch := batch == "batch_in_flight":
        row |= _of_batch(row, where)
    date = None
    with contextlib.suppress(ValueError):
        date = datetime.date.fromisoformat(text_of(row, "date")[:10])
    is_inferencex = text_of(row, "source").startswith(INFERENCEX)
    said, users = text_of(row, "precision").lower(), whole(batch or "concurrency")
    run = {"chance_ranks": _chance_ranks(row, date), "speculation": "mtp" if speculates(row) else "", **pools}
    run |= launched(row, date, users, whole("isl", 0), pools)
    if asked := whole("recv_interval", 0):
        run["recv_interval"] = asked
    return ServingPoint(
        model=text_of(row, "model_path"),
        system=text_of(row, "system"),
        precision=weights_of_name(text_of(row, "model_path")) if said in ("", "none", "no", "-") else said,
        input_tokens=_length(row, whole, "isl"),
        output_tokens=_length(row, whole, "osl"),
        concurrency=users,
        is_batch=is_batch,
        is_known=is_inferencex or not is_blank(row.get("energy_per_token_joules")),
        is_median=text_of(row, "stat").lower() == "median",
        engine=text_of(row, "backend"),
        **run,
        # ``osl`` is the upper end of lengths whose mean a row says
        spread=min(max(whole("osl") / _length(row, whole, "osl") - 1, 0.0), 1.0),
        date=date,
    )


def _chance_ranks(row: Mapping[str, Any], date: datetime.date | None) -> str:
    """``both`` for SGLang before 0.5.8 (2026-01-23), whose decoding replicas took a request's random number for its
    rank, too (sglang#16110); a row that says no release ran the day's.
    """
    release = _RELEASE.search(text_of(row, "backend_version"))
    numbers = tuple(map(int, release.groups())) if release else None
    is_old = numbers < (0, 5, 8) if numbers else date is not None and date < _TURNS
    return "both" if is_old and text_of(row, "backend").lower() == "sglang" else ""


def _of_batch(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Whole numbers for the means that a row of ML.ENERGY states, and what it does not."""
    batch = _MEAN.of(row["batch_in_flight"], f"{where}avg_batch_size")
    found: dict[str, Any] = {"batch_in_flight": round(batch)}
    if is_blank(row.get("backend")) and not is_blank(row.get("energy_per_token_joules")):
        found |= ML_ENERGY
    if is_blank(row.get("isl")):
        found["isl"] = PROMPT_TOKENS.get(text_of(row, "task"), PROMPT_TOKENS[""])
    if is_blank(row.get("osl")) and not is_blank(row.get("osl_actual_mean")):
        found["osl"] = round(_MEAN.of(row["osl_actual_mean"], f"{where}avg_output_len"))
    return found


def _pools(row: Mapping[str, Any], where: str, whole: Callable[..., int]) -> dict[str, Any]:
    """The replicas that a row states: those that decode, and those that compute prompts where the two stand apart."""
    is_apart = text_of(row, "disagg").lower() in ("true", "yes", "1", "1.0")
    mode = (text_of(row, "mode") or ("disaggregated" if is_apart else "")).lower()
    if mode in _TOGETHER:
        pp, dp = whole("pp_size", 1), whole("attention_dp_size", 1)
        ep, over_all = whole("moe_ep_size", 1), max(whole("n_gpus", 1) // (pp * dp), 1)
        tp = whole("tp_size", over_all)
        # vLLM spreads experts over all devices, and attention with them
        tp = over_all if tp * dp < ep == over_all * dp else tp
        return {"parallelism": Parallelism(tp=tp, pp=pp, dp=dp, ep=ep)}
    if mode not in _APART:
        raise UsageError(f"{where}mode must be one of {', '.join(filter(None, (*_TOGETHER, *_APART)))}, not {mode!r}")
    found = []
    for pool in ("prefill", "decode"):
        tp, dp = whole(f"{pool}_tp_size", 0), whole(f"{pool}_attention_dp_size", 1)
        if not tp:
            raise UsageError(
                f"{where}{pool}_tp_size is empty: a disaggregated row states both pools in prefill_num_workers, "
                "prefill_tp_size, decode_num_workers, decode_tp_size (and _attention_dp_size, _moe_ep_size)"
            )
        ep = whole(f"{pool}_moe_ep_size", 1)
        found.append((Parallelism(tp=tp, dp=dp, ep=min(ep, tp * dp)), whole(f"{pool}_num_workers", 1)))
    (prefill, prefill_replicas), (parallelism, replicas) = found
    return {
        "parallelism": parallelism, "replicas": replicas, "prefill": prefill, "prefill_replicas": prefill_replicas
    }  # fmt: skip


def _stated(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row under this module's names; numbers without units, cells empty that say nothing."""
    made: dict[str, Any] = {}
    for heading in HEADINGS.first(row):
        name, cell = HEADINGS.name(heading), row[heading]
        if isinstance(cell, str):
            cell = None if data_table.is_unsaid(cell) else data_table.number(cell) if name in _COUNTS else cell
        if is_blank(made.get(name)):
            made[name] = cell
    lengths = _LENGTHS.fullmatch(text_of(made, "lengths"))
    if lengths and is_blank(made.get("isl")):
        made["isl"], made["osl"] = data_table.number(lengths[1]), data_table.number(lengths[2])
    counted = _COUNTED.search(text_of(made, "system"))
    if counted and is_blank(made.get("n_gpus")):
        made["n_gpus"] = counted[1] or counted[2]
    return made


def _length(row: Mapping[str, Any], whole: Callable[[str], int], name: str) -> int:
    """The mean of lengths that were drawn, where a row says it, else the length itself."""
    mean = row.get(f"{name}_actual_mean")
    return whole(name) if is_blank(mean) else max(1, round(_MEAN.of(mean, f"{name}_actual_mean")))


def engine_name(point: ServingPoint) -> str:
    """The file of the point's engine."""
    return engines.engine_name(point.engine, system_of(point.system)[0].device)


def _whole(row: Mapping[str, Any], where: str, name: str, default: int | None = None) -> int:
    value = row.get(name)
    if default is not None and (is_blank(value) or value == 0):
        return default
    return _SERVED.count(value, f"{where}{name}")


class PointSimulator:
    """Estimates points; step costs are shared between points that differ in load alone. ``engine`` has the limits;
    ``engine_named``: whose fitted constants, in place of each row's own engine's; ``"ideal"``: those of ``engine``.
    """

    def __init__(
        self, engine: Engine, *, backend: str = BACKENDS, collective: str | None = None, engine_named: str | None = None
    ) -> None:
        self._engine = engine
        self._engine_named = engine_named
        self._backend = backend
        self._collective = collective
        self._costs: dict[tuple[object, ...], StepCost] = {}
        self._known: dict[tuple[ServingPoint, Engine], PointEstimate] = {}

    def estimate(self, point: ServingPoint) -> PointEstimate:
        """A reason instead of figures where the point cannot be served."""
        return self.estimates([point])[0]

    def estimates(self, points: Sequence[ServingPoint]) -> list[PointEstimate]:
        """One of each point, or a reason. Batches on one deployment are priced together."""
        alike: dict[tuple[object, ...], list[int]] = {}
        for at, point in enumerate(points):
            if point.is_batch:
                alike.setdefault((*self._key(point), point.date), []).append(at)
        drawn: dict[int, dict[str, Any]] = {}
        for places in alike.values():
            batches = [points[at] for at in places]
            with contextlib.suppress(TracelensError):
                cost = self.cost(batches[0]).released(batches[0].date)
                drawn |= zip(places, batch_energy(batches, cost), strict=True)
        found = []
        for at, point in enumerate(points):
            try:
                each = self._simulated(point)
            except TracelensError as error:
                each = PointEstimate(reason=str(error))
            found.append(each if each.itl_ms is None else dataclasses.replace(each, **drawn.get(at, {})))
        return found

    def _simulated(self, point: ServingPoint) -> PointEstimate:
        """Rows that differ in their day alone, and had the same release, run once."""
        cost = self.cost(point).released(point.date)
        key = dataclasses.replace(point, date=None), cost.deployment.engine
        if key not in self._known:
            self._known[key] = self._run(point, cost)
        return self._known[key]

    def _run(self, point: ServingPoint, cost: StepCost) -> PointEstimate:
        if point.slots:
            cost = cost.limited(max_num_seqs=point.slots)
        if point.is_batch:
            return _ranged(PointEstimate(itl_ms=median_gap_ms(point, cost)), cost.deployment, point)
        requests = closed_loop(point, in_waves=cost.deployment.engine.policy == "prefill-first")
        options = Options(
            levels=("low",), replicas=point.replicas, prefill_replicas=point.prefill_replicas, router=point.router
        )
        costs: StepCost | tuple[StepCost, StepCost] = cost
        if point.prefill is not None:
            prompts = dataclasses.replace(
                point, parallelism=point.prefill, speculation="", linear=point.prompt_linear,
                overlap=point.prompt_overlap,
            )  # fmt: skip
            prefill = self.cost(prompts).released(point.date)
            if tokens := point.prompt_tokens:
                most = min(point.prompt_slots or LIMITS.max_num_seqs, tokens)
                prefill = prefill.limited(max_batched_tokens=tokens, max_num_seqs=most, policy="chunked-prefill")
            costs = (cost, prefill)
        outcome = Simulation(cost.deployment, requests, options, cost=costs).run()
        if outcome.log.rejected:
            return PointEstimate(reason=next(iter(outcome.log.rejected.values())))
        found = stated_times(outcome, point)
        found = dataclasses.replace(found, **steady_energy(outcome, point, found))
        return _ranged(found, cost.deployment, point)

    def cost(self, point: ServingPoint) -> StepCost:
        key = self._key(point)
        found = self._costs.get(key)
        if found is None:
            system = system_of(point.system)[0]
            model = as_served(ModelConfig.named(point.model), system.device, point.precision)
            # With the habits that the row says or whose release had them
            engine = self._engine_on(system, point)
            habits = ("chance_ranks", "eager_drafts", "gathers", "latent", "memory_share", "overlap")
            said = {name: getattr(point, name) or getattr(engine, name) for name in habits}
            precision = ServingPrecision.named(point.precision, model)
            if point.linear:
                precision = dataclasses.replace(precision, linear=DType.parse(point.linear))
            if point.kv:
                precision = dataclasses.replace(precision, kv=DType.parse(point.kv))
            deployment = Deployment(
                model=model,
                system=system,
                parallelism=point.parallelism,
                precision=engines.fitted_engine(point.engine, system.device).cached(precision),
                engine=dataclasses.replace(engine, recv_interval=point.recv_interval, **said),
                speculation=Speculation.of_model(model, point.speculation) if point.speculation else None,
                backend=self._backend,
                collective=self._collective,
            )
            found = self._costs[key] = self._with_room(StepCost(deployment))
        return found

    def _key(self, point: ServingPoint) -> tuple[object, ...]:
        """What points of one step cost have in common."""
        return (
            point.model, point.system, point.precision, point.linear, point.kv, point.memory_share,
            point.parallelism, point.engine, point.speculation, point.recv_interval, point.chance_ranks,
            point.eager_drafts, point.gathers, point.latent, point.overlap,
        )  # fmt: skip

    def _with_room(self, cost: StepCost) -> StepCost:
        """``cost``, or with a larger share of the memory where the usual one is too small: a row was run as it says."""
        deployment = cost.deployment
        try:
            cost.pool_tokens()
        except UsageError:
            engine = dataclasses.replace(deployment.engine, memory_share=LARGEST_MEMORY_SHARE)
            return StepCost(dataclasses.replace(deployment, engine=engine))
        return cost

    def _engine_on(self, system: System, point: ServingPoint) -> Engine:
        """The engine's limits with the fitted constants of the one that the row names."""
        if self._engine_named == engines.IDEAL:
            return engines.with_habits(self._engine, engines.engine_name(point.engine, system.device))
        fitted = engines.fitted_engine(self._engine_named or point.engine, system.device)
        names = (
            "name", "source", "device_scale", "prompt_scale", "request_us", "token_us", "handover_us", "layer_us",
            "prompt_layer_us", "sequence_us", "releases", "policy", "residuals", "first_residuals",
            "computes", "most_devices",
        )  # fmt: skip
        known = dataclasses.replace(self._engine, **{name: getattr(fitted, name) for name in names})
        return engines.with_habits(known, engines.engine_name(fitted.name, system.device))


def _ranged(found: PointEstimate, served: Deployment, point: ServingPoint) -> PointEstimate:
    """With the intervals of what the point is like."""
    ends: dict[str, Any] = {}
    for name, of in (("tpot_ms", "residuals"), ("itl_ms", "residuals"), ("ttft_ms", "first_residuals")):
        value = getattr(found, name)
        spans = served.spans(of, is_apart=bool(point.prefill_replicas), is_known=point.is_known)
        if value is not None and spans is not None:
            ends |= {f"{name}_low": value / spans.most, f"{name}_high": value * spans.most}
    return dataclasses.replace(found, **ends)


def median_step(point: ServingPoint, cost: StepCost) -> tuple[Mix, int]:
    """The median step of a batch of ``concurrency`` sequences, and how many prompts are in it.

    A prompt takes the place of each sequence that ends, so the number of prompts in a step is Poisson's, whose median
    is near mean + 1/3 - 0.02 / mean (Choi, 1994).
    """
    batch, given, answer = point.concurrency, point.input_tokens, point.output_tokens
    mean, decoded = batch / answer, batch * cost.queries
    prompts = max(math.floor(mean + 1 / 3 - 0.02 / mean), 0)
    room = max(LIMITS.max_batched_tokens - decoded, 0)
    chunks = [(new, 0) for at in range(prompts) if (new := min(given, room - at * given)) > 0]
    new = sum(tokens for tokens, _ in chunks)
    keys = cost.spread_out(batch, batch * (given + answer // 2), answer)
    asked = (new + decoded, chunks, decoded + len(chunks), len(chunks), batch, keys)
    return asked, len(chunks)


def median_gap_ms(point: ServingPoint, cost: StepCost) -> float:
    """The median time between tokens of a batch."""
    asked, prompts = median_step(point, cost)
    if prompts:
        return sum(cost.mixed_time(*asked)) / FS_PER_MS
    *_, batch, context = asked
    line = cost.decode_line(batch, context)
    return (line.fixed + line.slope * context) / FS_PER_MS


def closed_loop(point: ServingPoint, *, in_waves: bool) -> Requests:
    """A run's requests, ``per_user`` of each of the users, who all begin at once; enough for a steady state where it is
    not known. Equal answers stay in phase for ever: with ``in_waves``, as when all prompts come before any answer goes
    on, the first ones begin at once there, too; else they are as far along as chance has it.
    """
    at_once = point.concurrency
    count = at_once * point.per_user or max(at_once * (3 if at_once >= 32 else 5), 8)
    draw = np.random.default_rng(0)
    apart = (draw.integers(LENGTHS, size=count) + 0.5) / LENGTHS * 2 - 1, draw.uniform(-1, 1, count)
    given, made = (
        np.maximum(np.rint(mean * (1 + point.spread * each)), 1).astype(int)
        for mean, each in zip((point.input_tokens, point.output_tokens), apart, strict=True)
    )
    if not (in_waves or point.per_user):
        made[:at_once] = np.maximum(made[:at_once] * (np.arange(at_once) + 1) // at_once, 1)
    return Requests(
        arrival_fs=None, input_tokens=given.tolist(), output_tokens=made.tolist(), concurrency=at_once
    )  # fmt: skip


def stated_times(outcome: Outcome, point: ServingPoint) -> PointEstimate:
    """Means or medians, as the row has them, over all requests of a run of so many per user; of a steady state over
    those that neither arrived in the first burst nor ran while the last ones drained.
    """
    log, concurrency = outcome.log, point.concurrency
    count = len(outcome.requests)
    first, last, arrival = (np.array(part, dtype=np.float64) / FS_PER_MS for part in (log.first, log.last, log.arrival))
    output, typical = np.asarray(outcome.requests.output_tokens), np.median if point.is_median else np.mean
    is_whole = bool(point.per_user) or count <= 2 * concurrency
    inner = slice(0, count) if is_whole else slice(concurrency, count - concurrency)
    made = output[inner] - 1
    per_token = (last - first)[inner][made > 0] / made[made > 0]
    tpot = float(typical(per_token)) if len(per_token) else None
    return PointEstimate(ttft_ms=float(typical((first - arrival)[inner])), tpot_ms=tpot)


def steady_energy(outcome: Outcome, point: ServingPoint, means: PointEstimate) -> dict[str, Any]:
    """Watts per GPU between the first answer's end and the last arrival, and J per token at the rate that the means
    say; nothing where nobody measured energies.
    """
    arrivals, made = outcome.log.arrival, point.output_tokens
    start, end = arrivals[point.concurrency] if len(arrivals) > point.concurrency else 0, max(arrivals)
    start, end = (start, end) if end > start else (0, outcome.end_fs)
    energy = energy_of(outcome, start, end)
    if energy is None or energy.is_limit or means.ttft_ms is None:
        return {}
    power_w = energy.waiting_w + energy.over_j / (end - start) * FS_PER_S
    answer_s = (means.ttft_ms + (made - 1) * (means.tpot_ms or 0.0)) / MS_PER_S
    joules = power_w * answer_s / (point.concurrency * made)
    return _energy_figures(joules, power_w / outcome.devices)


def _energy_figures(joules: float, power_w: float) -> dict[str, Any]:
    low, high = (joules * factor for factor in ENERGY_SPAN)
    return {
        "energy_per_token_j": joules, "energy_per_token_j_low": low, "energy_per_token_j_high": high,
        "power_w_gpu": power_w,
    }  # fmt: skip


def batch_energy(points: Sequence[ServingPoint], cost: StepCost) -> list[dict[str, Any]]:
    """Of batches on one deployment, the figures of ``steady_energy``. Fills the tables of ``cost`` for all of them."""
    alone, with_prompts, shares = zip(*(_steps_of_batch(point, cost) for point in points), strict=True)
    batches = [point.concurrency for point in points]
    mixed = [*with_prompts, *(median_step(point, cost)[0] for point in points)]
    counts = [(tokens, cost.busiest(tokens, chunks, batch)) for tokens, chunks, *_, batch, _ in mixed if chunks]
    cost.foresee(batches, counts, [rows for _, _, rows, *_ in mixed], longest=1)
    constants, devices = power_constants(cost.system.device), cost.deployment.parallelism.devices
    if constants is None:
        return [{} for _ in points]
    mixes = list(itertools.chain.from_iterable(zip(alone, with_prompts, strict=True)))
    over_j = over_waiting_j(cost, mixes).reshape(-1, 2)
    times_s = np.array([sum(cost.step_parts(mix)) / FS_PER_S for mix in mixes]).reshape(-1, 2)
    share = np.array(shares)
    over, step_s = (each[:, 0] + share * (each[:, 1] - each[:, 0]) for each in (over_j, times_s))
    power_w = constants.idle_w * devices + over / step_s
    return [
        _energy_figures(float(energy), float(watts))
        for energy, watts in zip(power_w * step_s / batches, power_w / devices, strict=True)
    ]


def _steps_of_batch(point: ServingPoint, cost: StepCost) -> tuple[Mix, Mix, float]:
    """A step that decodes alone, one with prompts in it, and in what share of steps as many come as answers end.

    Where data-parallel ranks pad to the longest all take as many prompts as the one with most: of Poisson's numbers,
    since each rank's answers end by chance.
    """
    batch, given, ranks = point.concurrency, point.input_tokens, 1
    decoded, context = batch * cost.queries, batch * (given + point.output_tokens // 2)
    ending, room = batch / point.output_tokens, max(LIMITS.max_batched_tokens - decoded, 1)
    if cost.deployment.engine.pads_prompts and point.parallelism.dp > 1:
        ranks, ending = point.parallelism.dp, most_of(point.parallelism.dp, ending / point.parallelism.dp)
        room = max(LIMITS.max_batched_tokens - decoded // ranks, 1)
    new = min(given, room)
    count = max(min(round(ending), room // new), 1)
    alone: Mix = (decoded, [], decoded, 0, batch, context)
    prompts = count * ranks
    with_prompts = (decoded + prompts * new, [(new, 0)] * prompts, decoded + prompts, prompts, batch, context)
    return alone, with_prompts, ending * given / new / count


def most_of(draws: int, mean: float) -> float:
    """The mean of the largest of so many numbers of Poisson's distribution around ``mean``."""
    numbers = np.arange(int(mean + 10 * math.sqrt(mean)) + 10)
    logs = numbers * math.log(mean) - mean - np.cumsum(np.log(np.maximum(numbers, 1)))
    return float((1 - np.minimum(np.cumsum(np.exp(logs)), 1) ** draws).sum())


def read_points(path: Path) -> pd.DataFrame:
    """The rows of a CSV file. InputError where columns are missing."""
    frame = data_table.read_table(path)
    columns = {HEADINGS.name(name) for name in frame.columns}
    columns |= {"isl", "osl"} if "lengths" in columns else set()
    if {"batch_in_flight", "osl_actual_mean"} <= columns:
        columns |= {"isl", "osl"}
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(f"{path}: no column {', '.join(missing)}")
    return frame


def estimated(
    rows: Sequence[Mapping[str, Any]], engine: Engine, *, backend: str = BACKENDS, engine_named: str | None = None
) -> Iterator[PointEstimate]:
    """An estimate per row, in order."""
    simulator = PointSimulator(engine, backend=backend, engine_named=engine_named)
    points: list[ServingPoint | str] = []
    for place, row in enumerate(rows, data_table.FIRST_ROW):
        try:
            points.append(point_of(row, f"row {place}: "))
        except (UsageError, InputError) as error:
            points.append(str(error))
    found = iter(simulator.estimates([point for point in points if not isinstance(point, str)]))
    for point in points:
        yield PointEstimate(reason=point) if isinstance(point, str) else next(found)


def batch(
    path: Path, output: Path, engine: Engine, *, backend: str = BACKENDS, engine_named: str | None = None
) -> tuple[int, int]:
    """Writes ``path`` with ``ESTIMATES`` added; (rows, rows with an estimate)."""
    frame = read_points(path)
    found = list(
        estimated([dict(row) for _, row in frame.iterrows()], engine, backend=backend, engine_named=engine_named)
    )
    states_batch = any(HEADINGS.name(name) == "batch_in_flight" for name in frame.columns)
    has_energy = any(each.power_w_gpu is not None for each in found)
    for name in (*(GAP_ESTIMATES if states_batch else ESTIMATES), *(ENERGY_ESTIMATES if has_energy else ())):
        frame[name] = [getattr(each, name.removesuffix("_est")) for each in found]
    frame["reason"] = [each.reason for each in found]
    write_whole(output, frame_csv(frame))
    return len(frame), sum(not each.reason for each in found)
