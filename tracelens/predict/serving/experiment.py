"""Everything a simulated run needs in one value, and an experiment file that says it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tracelens.backends import System
from tracelens.errors import InputError, NothingToAnalyzeError, UsageError
from tracelens.files.documents import normalized, settings_of
from tracelens.files.option_fields import build_options, takes
from tracelens.files.say import with_progress
from tracelens.hardware import HardwareSpec
from tracelens.hardware.power import Facility
from tracelens.predict.serving import engines
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import (
    LEFT_OUT,
    Adapters,
    Deployment,
    Engine,
    Parallelism,
    ServingPrecision,
    Speculation,
    as_served,
)
from tracelens.predict.serving.metrics import (
    FACILITY,
    Objectives,
    per_request,
    per_step,
    served_requests,
    summary,
    within,
)
from tracelens.predict.serving.profile import Profile, model_of_profile, step_cost
from tracelens.predict.serving.replica_state import DiskCache, Options, Step
from tracelens.predict.serving.requests import Arrivals, Lengths, Requests, Workload, read_requests
from tracelens.predict.serving.serving_options import DeploymentOptions, EngineOptions, ServingConfig, names_of
from tracelens.predict.serving.simulation import Outcome, Simulation
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.model_config import weights_of_name
from tracelens.predict.workload.token_routing import Skew
from tracelens.types.dtypes import DType
from tracelens.types.records import Record, pd
from tracelens.types.units import duration_s, shown_share


class Experiment(Record, frozen=True, kw_only=True):
    """A deployment, how it is run, and what it is asked. ``replay`` replaces ``workload`` by requests of a file.
    ``prefill``: what prefill replicas are, where they are others.
    """

    deployment: Deployment
    options: Options = msgspec.field(default_factory=Options)
    workload: Workload = msgspec.field(default_factory=Workload)
    replay: Requests | None = None
    profile: Profile | None = None
    prefill: Deployment | None = None
    objectives: Objectives | None = None
    price_per_gpu_hour: float | None = None
    facility: Facility = FACILITY

    def __post_init__(self) -> None:
        price = self.price_per_gpu_hour
        if price is not None and not 0 <= price < float("inf"):
            raise UsageError(f"a price per hour must be 0 or more, not {price:g}")

    def requests(self) -> Requests:
        """What is served. NothingToAnalyzeError without a request."""
        found = self.replay if self.replay is not None else self.workload.generate()
        if not len(found):
            raise NothingToAnalyzeError("no requests to serve: raise --requests, --rate or --duration")
        return found

    def under(self, **arrivals: Any) -> Experiment:
        """The same with other arrivals: fields of ``Arrivals``, and ``count`` of requests."""
        count = arrivals.pop("count", self.workload.count)
        changed = dataclasses.replace(self.workload.arrivals, **arrivals)
        return dataclasses.replace(self, workload=dataclasses.replace(self.workload, arrivals=changed, count=count))

    def cost(self) -> StepCost:
        """The step cost, which runs of one deployment may share."""
        return step_cost(self.deployment, self.profile)

    def run(
        self,
        *,
        cost: StepCost | None = None,
        prefilling: StepCost | None = None,
        record: Callable[[int, Step], None] | None = None,
        settled: bool = False,
    ) -> ServingResult:
        """Simulates and sums up. ``prefilling``: the step cost of prefill replicas that are others; ``settled``: notes
        are of the requests of the steady part.
        """
        decoding = cost or self.cost()
        outcome = Simulation(
            self.deployment,
            self.requests(),
            self.options,
            cost=decoding if self.prefill is None else (decoding, prefilling or step_cost(self.prefill, self.profile)),
            record=record,
        ).run()
        figures = summary(outcome, self.objectives, price_per_gpu_hour=self.price_per_gpu_hour, facility=self.facility)
        served, asked = self.deployment, outcome.requests
        beyond = served.model.too_long(max(map(sum, zip(asked.input_tokens, asked.output_tokens, strict=True))))
        known = (*served.notes, beyond) if beyond else served.notes
        expected = self._expected(outcome, served_requests(outcome, settled=settled))
        notes = (*expected, *known, *outcome.notes, *_saturation(outcome))
        return ServingResult(experiment=self, outcome=outcome, summary=figures, notes=notes)

    def _expected(self, outcome: Outcome, of: pd.DataFrame) -> Iterator[str]:
        """Where the times of these requests are expected, by servers that the engine's fit left out, and what that
        makes of goodput.
        """
        served, most = self.deployment, {}
        if served.unscored:
            yield served.unscored
        about = f" ({served.engine.name} constants; --engine chooses others)"
        for name, residuals in (("tpot", "residuals"), ("ttft", "first_residuals")):
            median = float(of[f"{name}_ms"].median())
            spans = served.spans(residuals, is_apart=bool(self.options.prefill_replicas))
            if math.isnan(median) or spans is None:
                continue
            most[name] = spans.most
            half, nine = (f"{_three(median / by)} to {_three(median * by)} ms" for by in (spans.half, spans.most))
            yield (
                f"{name.upper()} p50 is expected within {half} in half of all cases and {nine} in 9 of 10, as "
                f"{spans.rows:,} rows of {LEFT_OUT[spans.left_out]}{about}"
            )
            about = ""
        if self.objectives is not None and most:
            yield self._goodput(of, self.objectives, most)
        if beyond := served.beyond(outcome.devices):
            yield beyond

    @staticmethod
    def _goodput(frame: pd.DataFrame, objectives: Objectives, most: Mapping[str, float]) -> str:
        """How many requests keep the limits with all times at an end of their interval of 9 in 10."""
        ends = []
        for sign in (1, -1):
            times = {f"{name}_ms": frame[f"{name}_ms"] * factor**sign for name, factor in most.items()}
            ends.append(shown_share(float(within(frame.assign(**times), objectives).mean())))
        what = f"{' and '.join(name.upper() for name in most)} at the upper ends of 9 in 10, {ends[1]} at the lower"
        return f"goodput inherits these errors: {ends[0]} of requests keep the limits with {what}"


class ServingResult(Record, frozen=True, kw_only=True):
    """What a run gave: ``summary`` by name, frames on demand, ``notes`` a reader must know."""

    experiment: Experiment
    outcome: Outcome
    summary: Mapping[str, float | int | None]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        """What is served on what, how many requests per second, how fast."""
        figures = self.summary
        speed = [
            f"{_shown(value)} {unit}"
            for name, unit in (
                ("requests_per_s", "requests/s"),
                ("ttft_p50_ms", "ms to the first token (p50)"),
                ("tpot_p50_ms", "ms per token (p50)"),
            )
            if (value := figures.get(name)) is not None
        ]
        return f"{self.title}: {', '.join(speed) or 'no request completed'}"

    @property
    def title(self) -> str:
        """What is served on which devices: all of those that decode, and those that only prefill."""
        asked, options = self.experiment, self.experiment.options
        on = _devices(asked.deployment, options.replicas)
        if options.prefill_replicas:
            on += f" and {_devices(asked.prefill or asked.deployment, options.prefill_replicas)} for prefill"
        return f"{asked.deployment.model.label} on {on}"

    @property
    def requests(self) -> Any:
        """A DataFrame, one row per request."""
        return per_request(self.outcome)

    @property
    def steps(self) -> Any:
        """A DataFrame, one row per step; empty unless the options asked for the series."""
        return per_step(self.outcome)

    def to_json(self) -> str:
        """Summary and notes; the same run gives the same text but for the time that simulating took."""
        return json.dumps(self.document(), indent=2) + "\n"

    def document(self) -> dict[str, Any]:
        """As ``to_json``. ``wall_clock_s``: how long simulating took, which alone differs between equal runs."""
        return {
            "schema": "tracelens.serve/1", "summary": dict(self.summary), "wall_clock_s": self.outcome.wall_s,
            "notes": list(self.notes),
        }  # fmt: skip


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"


@takes(ServingConfig)
def serve(
    model: str | Path | ModelConfig, cluster: str | Path | System, config: ServingConfig | None = None, **given: Any
) -> ServingResult:
    """Simulates a server, as ``tracelens serve`` does with options of the same names.

    ``config`` is what ``given`` keywords change. ``requests`` is a number, or requests that ``read_requests`` read;
    ``input`` and ``output`` are other names of ``input_tokens`` and ``output_tokens``. UsageError for options that do
    not fit.
    """
    asked = build_options(ServingConfig, given, config)
    said = model if isinstance(model, str) else ""
    return experiment_of(deployment_of(model, cluster, asked), asked, said=said).run()


def engine_of(asked: EngineOptions, device: HardwareSpec | None = None) -> Engine:
    """The engine, with the limits that were given."""
    engine = Engine() if asked.engine is None else asked.engine
    if not isinstance(engine, Engine):
        engine = _named_engine(str(engine), device)
    names = sorted(names_of(EngineOptions) - {"engine", "backend"})
    given: dict[str, Any] = {name: value for name in names if (value := getattr(asked, name)) is not None}
    if "max_num_seqs" in given and "max_batched_tokens" not in given:
        given["max_batched_tokens"] = max(engine.max_batched_tokens, given["max_num_seqs"])
    return dataclasses.replace(engine, **given)


def _named_engine(said: str, device: HardwareSpec | None) -> Engine:
    """A file, or an engine of this package on ``device``."""
    if device is None or "/" in said or said.endswith(".toml"):
        return Engine.load(said)
    return engines.named(said, device)


def _speculation(asked: DeploymentOptions, model: ModelConfig, device: HardwareSpec) -> Speculation | None:
    if not asked.speculate:
        return None
    if asked.speculate.startswith("mtp"):
        return Speculation.of_model(model, asked.speculate)
    found = Speculation.parse(asked.speculate, asked.draft_model)
    return found if found.draft is None else dataclasses.replace(found, draft=as_served(found.draft, device))


def deployment_of(
    model: str | Path | ModelConfig, cluster: str | Path | System, asked: DeploymentOptions
) -> Deployment:
    """What is served and on what. UsageError for options that do not fit.

    An engine that is not named has the pooled constants of its device's vendor; beside a measured profile, none.
    """
    if asked.engine is None:
        is_measured = isinstance(asked, ServingConfig) and asked.profile is not None
        asked = dataclasses.replace(asked, engine=engines.IDEAL if is_measured else engines.POOLED)
    kv = DType.parse(asked.kv) if asked.kv else None
    if asked.kv and (kv is None or not kv.is_floating):
        raise UsageError(f"--kv must be bf16, fp16, fp8 or fp4, not {asked.kv!r}")
    if asked.draft_model and not asked.speculate:
        raise UsageError("--draft-model needs --speculate")
    system = cluster if isinstance(cluster, System) else System.load(cluster)
    engine = engine_of(asked, system.device)
    config, weights = _typed(model, asked, system)
    return Deployment(
        model=config,
        system=system,
        parallelism=Parallelism(
            **_same(asked, "tp", "pp", "dp", "ep", "redundant_experts", "imbalance"),
            skew=Skew.parse(asked.skew) if asked.skew else None,
        ),
        precision=engine.cached(dataclasses.replace(ServingPrecision.named(weights, config), kv=kv)),
        engine=engine,
        backend=asked.backend,
        collective=None if asked.collective == "auto" else asked.collective,
        speculation=_speculation(asked, config, system.device),
        adapters=Adapters.of(asked.lora, asked.adapters, asked.max_loras),
    )


def _typed(model: str | Path | ModelConfig, asked: DeploymentOptions, system: System) -> tuple[ModelConfig, str | None]:
    """The model as the device serves it, and the type of its weights: as asked, else as its name says, with a note."""
    said = weights_of_name(model)
    weights = asked.weights or said
    config = as_served(_model(model, asked), system.device, weights)
    if said and not asked.weights:
        note = f"weights in {said}, as the name {model} says; --weights sets another type"
        config = dataclasses.replace(config, notes=(*config.notes, note))
    return config, weights


def _model(model: str | Path | ModelConfig, asked: DeploymentOptions) -> ModelConfig:
    """The model, by name also one that only the profile knows."""
    if isinstance(model, ModelConfig):
        return model
    try:
        return ModelConfig.load(model)
    except UsageError:
        path = asked.profile if isinstance(asked, ServingConfig) else None
        devices = asked.tp * asked.pp * asked.dp
        found = None if path is None else model_of_profile(Path(path), str(model), tp=asked.tp, devices=devices)
        if found is None:
            raise
        return found


def experiment_of(deployment: Deployment, asked: ServingConfig, *, series: bool = False, said: str = "") -> Experiment:
    """The run that the options ask for. ``series``: a row per step is kept. ``said``: the model as it was named."""
    deployment, replay = _replayed(deployment, asked)
    if asked.concurrency is None and asked.rate is None and replay is None:
        raise UsageError("give --rate, --concurrency or --replay")
    return Experiment(
        deployment=deployment,
        prefill=_prefill(deployment, asked),
        options=Options(
            **_same(asked, "policy", "router", "replicas", "prefill_replicas", "contention", "jitter", "order"),
            levels=tuple(asked.lod.split(",")),
            kv_link_gb_s=asked.kv_link,
            kv_transfer=asked.kv_transfer,
            cpu_cache_gib=asked.cpu_cache,
            disk_cache=DiskCache.parse(str(asked.disk_cache)) if asked.disk_cache is not None else None,
            series=series,
        ),
        workload=_workload(deployment, asked),
        replay=replay,
        profile=None if asked.profile is None else Profile.load(asked.profile, deployment.model.name, said),
        objectives=Objectives.parse(asked.slo) if asked.slo else None,
        price_per_gpu_hour=asked.price_per_gpu_hour,
        facility=Facility(pue=asked.pue, usd_per_kwh=asked.price_per_kwh, co2_g_per_kwh=asked.co2_per_kwh),
    )


def _same(asked: DeploymentOptions, *names: str) -> dict[str, Any]:
    """Options that have the same name in what is made of them."""
    return {name: getattr(asked, name) for name in names}


def _replayed(deployment: Deployment, asked: ServingConfig) -> tuple[Deployment, Requests | None]:
    """The requests of a file, or those that were given; with as many adapters as they name."""
    replay = asked.requests if isinstance(asked.requests, Requests) else None
    if asked.replay is not None:
        replay = read_requests(asked.replay, run=asked.run_name).requests
    if replay is None or deployment.adapters is None:
        return deployment, replay
    replay = replay.choosing(deployment.adapters.count, asked.seed)
    adapters = Adapters.of(asked.lora, len(set(replay.adapters)) or 1, asked.max_loras)
    return dataclasses.replace(deployment, adapters=adapters), replay


def _devices(of: Deployment, replicas: int) -> str:
    """``8 x NVIDIA H100 SXM5 80GB, 2 replicas of tp 4``."""
    shared = of.parallelism
    split = " ".join(f"{name} {n}" for name in ("tp", "pp", "dp", "ep") if (n := getattr(shared, name)) > 1)
    on = f"{replicas * shared.devices} x {of.system.device.label}"
    many = f", {replicas} replicas{' of' * bool(split)}" if replicas > 1 else ""
    return f"{on}{many} {split}".rstrip()


def _workload(deployment: Deployment, asked: ServingConfig) -> Workload:
    closed = asked.concurrency is not None
    duration = duration_s(asked.duration) if asked.duration else None
    count = asked.requests if isinstance(asked.requests, int) else None
    if asked.think_time and Lengths.of(asked.turns) == Lengths():
        raise UsageError("--think-time needs --turns: it is the pause between the requests of a session")
    return Workload(
        arrivals=Arrivals(
            kind="closed" if closed else asked.arrivals, **_same(asked, "rate", "variation", "concurrency")
        ),
        input=Lengths.of(asked.input_tokens),
        output=Lengths.of(asked.output_tokens),
        count=1000 if count is None and duration is None else count,
        duration_s=duration,
        seed=asked.seed,
        shared_tokens=asked.shared_prefix,
        shared_groups=asked.shared_groups,
        adapters=1 if deployment.adapters is None else deployment.adapters.count,
        turns=Lengths.of(asked.turns),
        think_s=duration_s(asked.think_time) if asked.think_time else 0.0,
    )


def _prefill(deployment: Deployment, asked: ServingConfig) -> Deployment | None:
    """What prefill replicas are, where they are not as the others. UsageError where there are none."""
    names = ("cluster", "tp", "dp", "ep", "pp", "weights", "engine", "max_batched_tokens")
    given = {name: value for name in names if (value := getattr(asked, f"prefill_{name}")) is not None}
    if not given:
        return None
    if not asked.prefill_replicas:
        said = ", ".join(f"--prefill-{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{said}: no replica computes prompts alone; give --prefill-replicas")
    kept = {"tp": asked.tp, "dp": asked.dp, "pp": asked.pp, "ep": asked.ep}
    if given.keys() & {"tp", "dp", "pp"}:
        kept |= {"dp": 1, "pp": 1}
    split = kept | {name: given[name] for name in kept if name in given}
    if "ep" not in given:
        split["ep"] = min(split["ep"], split["tp"] * split["dp"])
    others = {name: given[name] for name in ("weights", "engine", "max_batched_tokens") if name in given}
    as_asked = dataclasses.replace(asked, speculate=None, draft_model=None, **split, **others)
    found = deployment_of(deployment.model, given.get("cluster", deployment.system), as_asked)
    return dataclasses.replace(found, adapters=deployment.adapters)


#: Share of the passing time by which waits grow where chance does not explain it.
_FALLS_BEHIND = 0.1


def _saturation(outcome: Outcome) -> tuple[str, ...]:
    """Open arrivals that come faster than they are served: the queue grows as long as they come."""
    arrival = outcome.requests.arrival_fs
    if arrival is None or len(arrival) < 20:
        return ()
    frame = per_request(outcome)
    served = frame[~frame["rejected"]]
    if len(served) < 20:
        return ()
    span, drained = float(served["arrival_ms"].max()), float((served["arrival_ms"] + served["e2e_ms"]).max())
    third = len(served) // 3
    early, late = float(served["queue_ms"].iloc[:third].mean()), float(served["queue_ms"].iloc[-third:].mean())
    typical = float((served["e2e_ms"] - served["queue_ms"]).median())
    # The queue of a server that falls behind grows by a steady part of the time that passes
    falls_behind = len(served) >= 100 and late - early > _FALLS_BEHIND * (2 / 3) * span
    if late > 2 * early and (late > typical or falls_behind) and drained > span:
        waited = f"those of the last third waited {late / 1e3:.1f} s, of the first {early / 1e3:.1f} s"
        arrive = f"{1e3 * (len(served) - 1) / span:.3g} requests/s arrive"
        return (f"the server is saturated, {arrive}: {waited}; latencies grow with the length of the run",)
    return ()


def find_max_goodput(
    experiment: Experiment, rates: tuple[float, ...], *, cost: StepCost | None = None
) -> list[tuple[float, ServingResult]]:
    """A run per rate, in order. UsageError when the requests are replayed: their rate is the file's."""
    if experiment.replay is not None:
        raise UsageError("a sweep of rates needs generated requests, not replayed ones")
    shared = cost or experiment.cost()
    return [
        (rate, experiment.under(rate=rate).run(cost=shared)) for rate in with_progress(rates, "simulating", "rates")
    ]


def read_settings(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """An experiment file (TOML, JSON or YAML): the name of each of its frameworks and its command-line options by name.

    Sections: ``simulation`` (``duration``, ``requests``, ``seed``, ``lod``), ``hardware`` (``cluster``), ``model`` (a
    name, or a table with ``name`` and ``profile``), ``framework`` or a list of ``frameworks`` (``name``: that of an
    engine has its constants; ``policy``, ``lod``, ``replicas``, ``parallelism`` with ``strategy``, ``tp_degree``,
    ``pp_stages``), ``workload``. Any option of the command may stand in any section under its own name. InputError for
    what is none of them.
    """
    document = settings_of(path, "an experiment file")
    frameworks = document.get("frameworks", [{}])
    if not isinstance(frameworks, list) or not frameworks or not all(isinstance(one, Mapping) for one in frameworks):
        raise InputError(f"{path}: frameworks must be a list of tables")
    shared = {key: value for key, value in document.items() if key != "frameworks"}
    known = {*engines.names(), engines.IDEAL}
    found: list[tuple[str, dict[str, Any]]] = []
    for number, one in enumerate(frameworks, 1):
        given: dict[str, Any] = {}
        name = one.get("name")
        if isinstance(name, str) and normalized(name) in known:
            given["engine"] = normalized(name)
        _take(shared, given)
        _take(one, given)
        _check_strategy(one.get("parallelism", document.get("parallelism")), f"{path}: framework {name or number}")
        found.append((str(number) if name is None else str(name), given))
    return found


#: Which degrees may be above 1 under a strategy.
_STRATEGIES = {"none": (), "tp": ("tp_degree",), "pp": ("pp_stages",), "tp_pp": ("tp_degree", "pp_stages")}
_RENAMED = {"tp_degree": "tp", "pp_stages": "pp", "ep_degree": "ep", "num_replicas": "replicas", "device": "cluster"}


def _take(section: Mapping[str, Any], found: dict[str, Any]) -> None:
    for key, value in section.items():
        if isinstance(value, Mapping):
            if key == "model":
                found["model"] = value.get("name")
            _take({k: v for k, v in value.items() if k != "name"}, found)
        elif key not in ("strategy", "name", "type"):
            found[_RENAMED.get(key, key).replace("-", "_")] = value


def _check_strategy(section: object, where: str) -> None:
    """InputError for degrees that the strategy does not divide the model by."""
    if not isinstance(section, Mapping) or "strategy" not in section:
        return
    strategy = str(section["strategy"]).lower()
    if strategy not in _STRATEGIES:
        raise InputError(f"{where}: strategy must be None, TP, PP or TP_PP, not {section['strategy']!r}")
    for degree in ("tp_degree", "pp_stages"):
        if section.get(degree, 1) != 1 and degree not in _STRATEGIES[strategy]:
            raise InputError(f"{where}: {degree} {section[degree]!r} does not go with strategy {section['strategy']}")
