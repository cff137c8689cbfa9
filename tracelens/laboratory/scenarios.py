"""What levels of detail cost and keep: three deployments, each simulated in detail and abstracted."""

from __future__ import annotations

import cProfile
import dataclasses
import statistics
from collections import defaultdict
from pathlib import Path
from types import CodeType

import msgspec

from tracelens.backends import System
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import Deployment, Parallelism
from tracelens.predict.serving.metrics import differences, summary
from tracelens.predict.serving.replica_state import Options
from tracelens.predict.serving.requests import Arrivals, Lengths, Requests, Workload
from tracelens.predict.serving.simulation import Outcome, simulate
from tracelens.predict.workload import ModelConfig
from tracelens.types.records import Record

#: The metrics that are compared one by one.
COMPARED = ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms", "requests_per_s", "output_tokens_per_s", "completed")


class Scenario(Record, frozen=True):
    """A deployment and a workload; ``name`` and ``title`` as in the table."""

    name: str
    title: str
    model: str
    parallelism: Parallelism


SCENARIOS = (
    Scenario("A", "80 layers, 1 device", "llama3.1-70b", Parallelism()),
    Scenario("B", "32 layers, 4 devices, TP 4", "llama3.1-8b", Parallelism(tp=4)),
    Scenario("C", "126 layers, 8 devices, PP 2 x TP 4", "llama3.1-405b", Parallelism(tp=4, pp=2)),
)
_COUNTED = (
    "high_events", "medium_events", "high_compute_events", "medium_compute_events", "layers_only_events",
    "collectives_only_events",
)  # fmt: skip
#: Large enough for every model here, so that scenarios are about event counts and not about memory.
_KV_TOKENS = 200_000


class ScenarioComparison(Record, frozen=True, kw_only=True):
    """One scenario at both levels. ``*_only_events`` are those with one of the two abstractions alone."""

    scenario: Scenario
    high_wall_s: float
    medium_wall_s: float
    high_events: int
    medium_events: int
    high_compute_events: int
    medium_compute_events: int
    layers_only_events: int
    collectives_only_events: int
    high: dict[str, float | int | None]
    medium: dict[str, float | int | None]
    differences: dict[str, float]
    #: By level: module of the simulator -> its share of the profiled time; empty without a profile.
    profile: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)

    @property
    def speed_up(self) -> float:
        """Wall clock of high over medium."""
        return self.high_wall_s / self.medium_wall_s

    @property
    def event_reduction(self) -> float:
        """Events of high over medium."""
        return self.high_events / self.medium_events

    @property
    def largest_difference(self) -> float:
        """The largest relative difference of any metric."""
        return max(self.differences.values(), default=0.0)


def bundled(scenario: Scenario, system: str) -> Deployment:
    deployment = Deployment(
        model=ModelConfig.load(scenario.model), system=System.load(system), parallelism=scenario.parallelism
    )
    return dataclasses.replace(deployment, engine=dataclasses.replace(deployment.engine, kv_tokens=_KV_TOKENS))


def of_deployment(deployment: Deployment) -> Scenario:
    """Any deployment as a scenario."""
    shared, layers = deployment.parallelism, len(deployment.model.layers)
    degrees = " x ".join(f"{name.upper()} {getattr(shared, name)}" for name in ("pp", "tp", "dp"))
    title = f"{deployment.model.label}, {layers} layers, {degrees}"
    return Scenario("given", title, deployment.model.name, shared)


def load_of(requests: int) -> Requests:
    """What scenarios serve unless another load is given."""
    return Workload(
        arrivals=Arrivals(rate=2.0), input=Lengths(mean=512), output=Lengths(mean=64), count=requests, seed=0
    ).generate()


def compare(
    scenario: Scenario,
    deployment: Deployment,
    load: Requests,
    options: Options | None = None,
    *,
    repeats: int = 3,
    profiled: bool = False,
) -> ScenarioComparison:
    """Both levels in turn, ``repeats`` times; wall clocks are medians. Tables are filled before the clock starts.

    ``profiled``: each once more under Python's profiler.
    """
    options = options or Options()
    cost = StepCost(deployment)
    _run(deployment, load, cost, options, "medium")
    if repeats > 1:
        _run(deployment, load, cost, options, "high")
    walls: dict[str, list[float]] = {"high": [], "medium": []}
    outcomes: dict[str, Outcome] = {}
    for _ in range(repeats):
        for level, seen in walls.items():
            outcomes[level] = _run(deployment, load, cost, options, level)
            seen.append(outcomes[level].wall_s)
    found = {level: summary(outcome) for level, outcome in outcomes.items()}
    high, medium = outcomes["high"], outcomes["medium"]
    # Layers alone: transfers stay single events. Collectives alone: layers stay, each of their exchanges is one event.
    per_step = sum(run.count * len(run.exchanges) for work in cost.decode_work(1, 1) for run in work.layers)
    exchanges = high.steps[0].steps * (per_step + cost.deployment.parallelism.pp - 1)
    steps, wide = high.steps[0], medium.steps[0]
    layers_only = high.events - steps.compute_events + wide.compute_events
    collectives_only = high.events - steps.transfer_events + exchanges
    return ScenarioComparison(
        scenario=scenario,
        high_wall_s=statistics.median(walls["high"]),
        medium_wall_s=statistics.median(walls["medium"]),
        high_events=high.events,
        medium_events=medium.events,
        high_compute_events=steps.compute_events,
        medium_compute_events=wide.compute_events,
        layers_only_events=layers_only,
        collectives_only_events=collectives_only,
        high=found["high"],
        medium=found["medium"],
        differences=differences(found["high"], found["medium"]),
        profile={level: _profile(deployment, load, cost, options, level) for level in walls} if profiled else {},
    )


def _profile(deployment: Deployment, load: Requests, cost: StepCost, options: Options, level: str) -> dict[str, float]:
    """Module -> its own share of a run's time under the profiler, the largest first; built-ins count as ``python``."""
    profiler = cProfile.Profile()
    profiler.runcall(_run, deployment, load, cost, options, level)
    spent: defaultdict[str, float] = defaultdict(float)
    for entry in profiler.getstats():
        name = entry.code.co_filename if isinstance(entry.code, CodeType) else ""
        spent[Path(name).stem if "tracelens" in name else "python"] += entry.inlinetime
    whole = sum(spent.values()) or 1.0
    return {module: time / whole for module, time in sorted(spent.items(), key=lambda item: -item[1])}


def _run(deployment: Deployment, load: Requests, cost: StepCost, options: Options, level: str) -> Outcome:
    return simulate(deployment, load, dataclasses.replace(options, levels=(level,)), cost=cost)


def figures(comparison: ScenarioComparison) -> dict[str, str | float | int | None]:
    """A comparison as a row: what each level took, each compared metric of both, and how far they are apart."""
    scenario = comparison.scenario
    found: dict[str, str | float | int | None] = {
        "scenario": scenario.name, "title": scenario.title, "model": scenario.model,
        "wall_high_s": comparison.high_wall_s, "wall_medium_s": comparison.medium_wall_s,
        "speed_up": comparison.speed_up,
        **{name: getattr(comparison, name) for name in _COUNTED},
        "event_reduction": comparison.event_reduction,
        "largest_difference": comparison.largest_difference,
    }  # fmt: skip
    for name in COMPARED:
        found |= {f"{name}_high": comparison.high.get(name), f"{name}_medium": comparison.medium.get(name)}
        found[f"{name}_difference"] = comparison.differences.get(name)
    return found


def conclusion(comparisons: list[ScenarioComparison]) -> str:
    worst = max(comparison.largest_difference for comparison in comparisons)
    speed = ", ".join(f"{each.scenario.name} {each.speed_up:.0f}x" for each in comparisons)
    events = ", ".join(f"{each.scenario.name} {each.event_reduction:.0f}x" for each in comparisons)
    return (
        f"medium is faster than high by {speed}, with fewer events by {events}; "
        f"the largest difference in any metric is {worst:.1e}."
    )
