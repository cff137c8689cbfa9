"""A search by names, its winner tried on the event graph, and many searches over every combination of figures,
models and clusters.

The event graph tries on one configuration, dimension by dimension, what the table of a search does not vary: schedules
without a closed form, overlap of tensor-parallel collectives and of experts' exchanges, tensor ranks of experts, shards
within a node (HSDP).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields, replace
from typing import Any, get_args

import msgspec
import numpy as np

from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files.executors import outcomes
from tracelens.files.option_fields import BACKENDS, build_options, takes
from tracelens.predict.projection.frameworks import Residuals, named
from tracelens.predict.projection.projection_options import (
    STRATEGIES,
    Objective,
    PaperAttention,
    RuleSet,
    SearchOptions,
    Strategy,
)
from tracelens.predict.projection.search import (
    ANYTHING,
    REACH,
    Constraints,
    Feasible,
    Rules,
    evaluate,
    fastest,
    pareto,
    winners_curse,
)
from tracelens.predict.projection.search.pipeline_time import Floats
from tracelens.predict.projection.search.space import SCHEDULES, Space, Splits, distinct
from tracelens.predict.projection.search.systems import AS_THEY_ARE, Figures, load_model
from tracelens.predict.projection.search.whole_step import CorrectedRules
from tracelens.predict.projection.step import Projection, project
from tracelens.predict.workload.parallel_config import PrecisionName
from tracelens.types.records import Record, pd

#: Schedules that only the event graph knows.
_FURTHER = ("zb-1p", "v-half", "v-min", "dualpipe")
_SAVES = 1e-3


class Refined(Record, frozen=True, kw_only=True):
    """``found`` is the best step; ``changes``: the options of ``tracelens project`` that make it of the first one."""

    found: Projection
    changes: tuple[tuple[str, str], ...]
    tried: int


def refined(first: Projection, *, headroom: float = 0.0) -> Refined:
    """``first`` with every dimension at its best value, taken one after the other; one that saves less than a
    thousandth stays, and so does one that does not fit.
    """
    best, changes, tried = first, dict[str, str](), 0
    for trials in _DIMENSIONS:
        base = best
        for options, given in trials(base):
            with contextlib.suppress(TracelensError):
                schedule = options.get("schedule", base.schedule if base.parallel.pp > 1 else None)
                other = first.but(replace(base.parallel, **given), schedule)
                tried += 1
                peak, capacity = other.peak_memory.peak, other.peak_memory.capacity
                fits = capacity is None or peak <= (1 - headroom) * capacity
                if fits and other.step_us < (1 - _SAVES) * best.step_us:
                    best = other
                    changes |= options
    return Refined(found=best, changes=tuple(changes.items()), tried=tried)


#: Options of ``tracelens project``, and the fields of ``ParallelConfig`` that they set.
_Trial = tuple[dict[str, str], dict[str, Any]]


def _overlaps(found: Projection) -> Iterator[_Trial]:
    p = found.parallel
    if p.tp > 1 and p.tp_overlap != "all" and p.summa_blocks is None:
        yield {"tp-overlap": "all"}, {"tp_overlap": "all"}
    if p.ep > 1 and not p.ep_overlap and p.zero != 3:
        yield {"ep-overlap": ""}, {"ep_overlap": True}


def _expert_ranks(found: Projection) -> Iterator[_Trial]:
    p, degree = found.parallel, 2
    while found.model.experts is not None and p.ep * degree <= p.stage_ranks and degree <= p.tp:
        for ep in dict.fromkeys((p.ep, max(p.ep // degree, 1))):
            yield {"etp": str(degree), "ep": str(ep)}, {"etp": degree, "ep": ep}
        degree *= 2


def _shards(found: Projection) -> Iterator[_Trial]:
    p, topology = found.parallel, found.system.topology
    ranks = 0 if topology is None else (topology.ranks_per_node or 0) // p.tp
    if p.zero == 3 and p.shard is None and 1 < ranks < p.copies and p.copies % ranks == 0:
        yield {"shard": str(ranks)}, {"shard": ranks}


def _schedules(found: Projection) -> Iterator[_Trial]:
    """DualPipe holds weights twice and is made for exchanges of one direction beside the other's computing: it is tried
    with those and with more expert ranks, too.
    """
    p = found.parallel
    for name in _FURTHER if p.pp > 1 else ():
        yield {"schedule": name, "vpp": "1"}, {"vpp": 1}
    for ep in (p.ep, 2 * p.ep, 4 * p.ep) if p.ep > 1 and p.pp > 1 and p.zero < 3 else ():
        options = {"schedule": "dualpipe", "vpp": "1", "ep-overlap": "", "ep": str(ep)}
        yield options, {"vpp": 1, "ep_overlap": True, "ep": ep}


_DIMENSIONS = (_overlaps, _expert_ranks, _shards, _schedules)
OBJECTIVES: Mapping[Objective, str] = {"time": "t", "cost": "usd_per_mtoken", "energy": "j_per_token"}
_DEGREES = ("gpus", "dp", "m1", "m2", "pp", "ep", "micro_batch", "precision")
_SECONDS_PER_HOUR = 3600
_MILLION = 1e6
#: Dimensions whose alternatives say why a configuration wins.
_COMPARED = (
    "tp1", "tp2", "pp", "vpp", "mbs", "ep", "zero", "recompute", "schedule", "precision", "nb", "nv_tp1", "nv_dp",
)  # fmt: skip
#: Parts of a step, in seconds; a rule set has some of them.
PARTS = (
    "t_comp", "t_mem", "t_tp_comm", "t_ep_comm", "t_recompute", "t_host", "t_pp_comm", "t_bubble", "t_dp_comm",
    "t_optimizer", "t_scale_loss",
)  # fmt: skip
# A hundred times as many as any cluster has, and as any step takes: their divisors are still found at once.
_MOST_GPUS, _MOST_BATCH = 1 << 24, 1 << 32


#: Options that a request has as they are.
_AS_ASKED = (
    "global_batch", "rules", "attention", "top", "sequence", "framework", "objective", "price_per_gpu_hour",
)  # fmt: skip


class Request(Record, frozen=True, kw_only=True):
    """What to search. ``model`` and ``cluster`` are names as in ``systems``; ``gpus`` device counts.

    ``sequence`` None: the model's own. ``figures`` replace the system's. ``framework``: whose fitted constants apply,
    None: pooled ones. ``price_per_gpu_hour`` in dollars. UsageError
    for an unknown word, a count below 1, or a cost without a price.
    """

    model: str
    cluster: str
    gpus: tuple[int, ...]
    global_batch: int
    strategies: tuple[Strategy, ...]
    rules: RuleSet = "corrected"
    attention: PaperAttention = "fused"
    top: int = 10
    sequence: int | None = None
    precisions: tuple[PrecisionName, ...] = ("bf16",)
    backends: str = BACKENDS
    framework: str | None = None
    wanted: Constraints = ANYTHING
    figures: Figures = AS_THEY_ARE
    objective: Objective = "time"
    price_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        for what, given, known in (
            *(("strategy", each, STRATEGIES) for each in self.strategies),
            ("rule set", self.rules, get_args(RuleSet)),
            ("objective", self.objective, OBJECTIVES),
        ):
            if given not in known:
                raise UsageError.unknown(what, given, known)
        if not self.gpus or min(*self.gpus, self.global_batch, self.top) < 1:
            raise UsageError("device counts, global batch and number of results must all be at least 1")
        for number, most, what in (
            (max(self.gpus), _MOST_GPUS, "devices"), (self.global_batch, _MOST_BATCH, "sequences"),
        ):  # fmt: skip
            if number > most:
                raise UsageError(f"a search takes at most {most:,} {what}, got {number:,}")
        self._refuse_other_rules()
        if self.price_per_gpu_hour is not None and not 0 < self.price_per_gpu_hour < np.inf:
            raise UsageError(f"--price-per-gpu-hour must be above 0 and finite, not {self.price_per_gpu_hour}")
        if self.objective == "cost" and self.price_per_gpu_hour is None:
            raise UsageError("--objective cost needs --price-per-gpu-hour")

    def _refuse_other_rules(self) -> None:
        """UsageError for what the rules do not know."""
        own = (self.precisions, self.backends, self.framework) == (("bf16",), BACKENDS, None)
        if self.rules != "corrected" and not own:
            raise UsageError(
                f"rules {self.rules} use their own 16-bit GEMM model: omit --precision, --backend and --framework"
            )
        if self.rules == "corrected" and self.attention != "fused":
            raise UsageError(f"--attention {self.attention} needs --rules paper or repaired")
        if self.attention == "summa" and set(self.strategies) != {"2d"}:
            raise UsageError("--attention summa needs --strategy 2d")

    @classmethod
    def of(cls, model: str, cluster: str, asked: SearchOptions) -> Request:
        """What the options ask for. UsageError where they do not fit."""
        return cls(
            model=model,
            cluster=cluster,
            gpus=asked.device_counts(),
            strategies=asked.strategies(),
            precisions=tuple(asked.precision),
            backends=asked.backend,
            wanted=Constraints(fixed=asked.fixed(), forbidden=frozenset(asked.forbid), headroom=asked.headroom()),
            **{name: getattr(asked, name) for name in _AS_ASKED},
        )

    def rule_sets(self) -> list[Rules[Any]]:
        """One per strategy."""
        from tracelens.laboratory.paper_systems import load_system, paper_system

        if self.rules == "corrected":
            model, sequence = load_model(self.model, self.sequence)
            system, framework = load_system(self.cluster, self.figures), named(self.framework)
            kernel = framework.runs("flash")
            software = tuple(framework.software(system, each, kernel) for each in self.precisions)
            spaces = (
                Space(
                    model=model, strategy=strategy, sequence=sequence, precisions=self.precisions,
                    is_beside_1d="1d" in self.strategies,
                )
                for strategy in self.strategies
            )  # fmt: skip
            return [
                CorrectedRules(space=space, system=system, backends=self.backends, software=software)
                for space in spaces
            ]
        from tracelens.laboratory.paper_rules import REPAIRS, PaperRules
        from tracelens.laboratory.paper_systems import paper_shape

        repairs = frozenset(REPAIRS if self.rules == "repaired" else ())
        shape, priced_on = paper_shape(self.model, self.sequence), paper_system(self.cluster, self.figures)
        return [
            PaperRules(shape=shape, strategy=strategy, system=priced_on, repairs=repairs, attention=self.attention)
            for strategy in self.strategies
        ]


class Reason(Record, frozen=True, kw_only=True):
    """The best configuration with another value of each of ``dimensions``: what it has in which the winner differs.

    ``slower`` by that share of the winner's step; ``parts_s``: by how many seconds each part of the step changes.
    ``more_energy``: by which share, where the winner is that of least energy.
    """

    dimensions: tuple[str, ...]
    differs: dict[str, Any]
    slower: float
    parts_s: dict[str, float]
    more_energy: float | None = None


class Answer(Record, frozen=True, kw_only=True, eq=False):
    """What was found. Methods that take ``place`` mean the row of ``best`` with that number, 0 the winner."""

    request: Request
    rule_sets: list[Rules[Any]]
    found: list[Feasible[Any]]
    table: pd.DataFrame
    #: Of each row of the table, which rule set it is from and where among its candidates.
    origin: list[tuple[int, int]] = msgspec.field(default_factory=list)

    @property
    def fits(self) -> pd.DataFrame:
        """``table`` without configurations that need more memory than there is."""
        return self.table[self.table["mem"] <= self._capacity()]

    @property
    def best(self) -> pd.DataFrame:
        """``table`` by the objective, best first; what does not fit comes last."""
        order = np.lexsort((self.table[OBJECTIVES[self.request.objective]], self.table["mem"] > self._capacity()))
        return self.table.iloc[order]

    @property
    def expected(self) -> Residuals | None:
        """How far measured steps of such models were from their projections; None for rules with nothing fitted."""
        if self.table.empty:
            return None
        rules, one = self._at(0)
        if not isinstance(rules, CorrectedRules):
            return None
        parallel = rules.parallel(one, 0, global_batch=self.request.global_batch)
        return named(self.request.framework).expected(
            rules.model, rules.system, parallel, rules.space.sequence, self.request.backends
        )

    @property
    def winners_curse(self) -> float:
        """By which share the winner is likely to take longer than estimated, since it is the best of many; places in a
        node do not make another split. 0 where nothing is fitted.
        """
        best: list[Floats] = []
        spread = named(None).split_spread
        for rules, found in zip(self.rule_sets, self.found, strict=True):
            if (
                not isinstance(rules, CorrectedRules)
                or self.expected is None
                or self.request.wanted.is_one_configuration
            ):
                return 0.0
            split = found.candidates
            least = found.least * (split.gpus if self.request.objective == "cost" else 1.0)
            order = np.argsort(least, kind="stable")
            order = order[least[order] < np.exp(REACH * spread) * least.min(initial=np.inf)]
            first, _ = distinct([getattr(split, name)[order] for name in _DEGREES])
            best.append(least[order[first]])
        return winners_curse(np.concatenate(best), spread)

    def front(self) -> pd.DataFrame:
        """Configurations that none of the same strategy beats in time, devices and memory at once; where least energy
        is searched for, that none beats in time and energy, the fastest first.
        """
        origin = [(i, at) for i, found in enumerate(self.found) for at in pareto(found).tolist()]
        made = _evaluated(self.request, self.rule_sets, self.found, origin)
        if any(found.step_j is None for found in self.found):
            return made
        made = made.sort_values(["t", "j_per_token"], kind="stable", ignore_index=True)
        return made[made["j_per_token"] < made["j_per_token"].cummin().shift(fill_value=np.inf)]

    def ranking(self) -> dict[tuple[str, int], list[float]]:
        """Seconds per step of all that fits, fastest first, by strategy and device count."""
        return {
            (str(rules.strategy), n): np.sort(found.step_s[found.candidates.gpus == n]).tolist()
            for rules, found in zip(self.rule_sets, self.found, strict=True)
            for n in np.unique(found.candidates.gpus).tolist()
        }

    def explained(self, place: int = 0) -> pd.DataFrame:
        """An operation per row; ``forward_s`` and ``backward_s`` of all rows add up to the step."""
        rules, one = self._at(place)
        frame = pd.DataFrame(rules.explained(one, global_batch=self.request.global_batch))
        numbers = [name for name in EXPLAINED if name.endswith(("_s", "_gb", "_tflop", "times"))]
        frame = frame.reindex(columns=EXPLAINED)
        words = [name for name in EXPLAINED if name not in numbers]
        frame[numbers] = frame[numbers].fillna(0.0)
        frame[words] = frame[words].astype(object).fillna("")
        return frame

    def reasons(self, place: int = 0) -> list[Reason]:
        """What each dimension's best alternative costs, on as many devices with the same strategy; dearest first.

        A configuration that is the best alternative of several dimensions is one reason.
        """
        which, at = self._origin(place)
        rules, found = self.rule_sets[which], self.found[which]
        same = np.flatnonzero(found.candidates.gpus == found.candidates.gpus[at])
        degrees = {
            name: column for name, column in rules.degrees(found.candidates.take(same)).items() if name in _COMPARED
        }
        here = int(np.flatnonzero(same == at)[0])
        best_of: dict[int, list[str]] = {}
        for name, column in degrees.items():
            different = np.flatnonzero(column != column[here])
            if len(different):
                best_of.setdefault(int(different[found.least[same][different].argmin()]), []).append(name)
        if not best_of:
            return []
        rows = found.candidates.take(same[[here, *best_of]])
        table = evaluate(rules, rows, global_batch=self.request.global_batch)
        step_s = table["t"].to_numpy(float)
        parts = [name for name in PARTS if name in table]
        change = table[parts].to_numpy(float) - table[parts].to_numpy(float)[0]
        energy = None if found.step_j is None else found.step_j[same[[here, *best_of]]]
        reasons = [
            Reason(
                dimensions=tuple(names),
                differs={
                    name: column[other].item() for name, column in degrees.items() if column[other] != column[here]
                },
                slower=float(step_s[row] / step_s[0] - 1),
                parts_s=dict(zip(parts, change[row].tolist(), strict=True)),
                more_energy=None if energy is None else float(energy[row] / energy[0] - 1),
            )
            for row, (other, names) in enumerate(best_of.items(), 1)
        ]
        return sorted(reasons, key=lambda reason: (-(reason.more_energy or 0), -reason.slower, reason.dimensions))

    def rechecked(self, place: int = 0) -> Projection | None:
        """The same step as the event graph has it; None for rules that it does not share a model with."""
        rules, one = self._at(place)
        if not isinstance(rules, CorrectedRules) or not isinstance(one, Splits):
            return None
        parallel = rules.parallel(one, 0, global_batch=self.request.global_batch)
        return project(
            rules.model, parallel, rules.system, sequence=rules.tokens_per_sample, backends=rules.backends,
            schedule=SCHEDULES[int(one.schedule[0])] if one.schedule[0] else None,
            software=rules.software_in(int(one.precision[0])),
        )  # fmt: skip

    def refined(self, place: int = 0) -> Refined | None:
        """The step with what the table does not vary: further schedules, overlap, experts' tensor ranks, shards; None
        for rules that share no model with the event graph.
        """
        found = self.rechecked(place)
        return None if found is None else refined(found, headroom=self.request.wanted.headroom)

    def _capacity(self) -> float:
        return self.rule_sets[0].capacity_gb * (1 - self.request.wanted.headroom)

    def _origin(self, place: int) -> tuple[int, int]:
        if not 0 <= place < len(self.table):
            raise UsageError(f"there is no row {place}; the table has {len(self.table)}, counted from 0")
        return self.origin[int(self.best.index[place])]

    def _at(self, place: int) -> tuple[Rules[Any], Any]:
        which, at = self._origin(place)
        return self.rule_sets[which], self.found[which].candidates.take(np.array([at]))


_OF_A_SIDE = ("tflop", "hbm_gb", "comm", "group", "volume_gb", "s")
#: Columns of ``Answer.explained``. ``volume_gb`` is what one device sends, or a rule set's message.
EXPLAINED = [
    "op", "times", *(f"forward_{what}" for what in _OF_A_SIDE), *(f"backward_{what}" for what in _OF_A_SIDE),
    "weights_gb", "activations_gb",
]  # fmt: skip


def answer(request: Request) -> Answer:
    """Runs the search. UsageError for names that are not known and dimensions that do not exist."""
    rule_sets = request.rule_sets()
    counts = sorted(set(request.gpus))
    asked: Any = {"global_batch": request.global_batch, "wanted": request.wanted}
    found = [rules.feasible(counts, **asked) for rules in rule_sets]
    found = [
        rules.widened(each, top=request.top, **asked) if isinstance(rules, CorrectedRules) else each
        for rules, each in zip(rule_sets, found, strict=True)
    ]
    if request.objective == "energy":
        found = [
            replace(each, step_j=_step_j(request, rules, each.candidates, each.step_s))
            for rules, each in zip(rule_sets, found, strict=True)
        ]
    origin = [(i, at) for i, each in enumerate(found) for at in fastest(each, counts, request.top).tolist()]
    table = _evaluated(request, rule_sets, found, origin)
    return Answer(request=request, rule_sets=rule_sets, found=found, table=table, origin=origin)


def _step_j(request: Request, rules: Rules[Any], candidates: Any, step_s: Floats) -> Floats | None:
    """J per step of each configuration, where energies of the device are known."""
    if not isinstance(rules, CorrectedRules):
        return None
    return rules.step_j(candidates, step_s, global_batch=request.global_batch)


@takes(SearchOptions)
def search(
    model: str,
    cluster: str,
    gpus: int | Collection[int] | None = None,
    global_batch: int | None = None,
    options: SearchOptions | None = None,
    **given: Any,
) -> pd.DataFrame:
    """The ``top`` configurations per device count and strategy that fit, best by ``objective`` first.

    >>> tl.search("gpt3-1t", "b200-nvs8", [512, 1024], 4096, strategy="1d")                       # doctest: +SKIP

    Columns as ``tracelens search -o`` writes them: t in s, mem and *_mem in GB, throughput in samples/s. ``options``
    are what the keywords change. UsageError for names that are not known and dimensions that do not exist.
    """
    named = {name: value for name, value in (("gpus", gpus), ("global_batch", global_batch)) if value is not None}
    request = Request.of(model, cluster, build_options(SearchOptions, {**named, **given}, options))
    return answer(request).best.reset_index(drop=True)


def _evaluated(
    request: Request, rule_sets: Sequence[Rules[Any]], found: Sequence[Feasible[Any]], origin: Sequence[tuple[int, int]]
) -> pd.DataFrame:
    frames = []
    for i, (rules, each) in enumerate(zip(rule_sets, found, strict=True)):
        chosen = np.array([at for which, at in origin if which == i], np.intp)
        frame = evaluate(rules, each.candidates.take(chosen), global_batch=request.global_batch, model=request.model)
        tokens = request.global_batch * rules.tokens_per_sample
        device_s = frame["t"] * frame["n_gpus"]
        if request.price_per_gpu_hour is not None:
            dollars = device_s / _SECONDS_PER_HOUR * request.price_per_gpu_hour
            frame["usd_per_mtoken"] = dollars / tokens * _MILLION
        watts = rules.system.device.tdp_w if isinstance(rules, CorrectedRules) else None
        joules = _step_j(request, rules, each.candidates.take(chosen), frame["t"].to_numpy(float))
        if joules is not None:
            frame["j_per_token"], frame["power_w_gpu"] = joules / tokens, joules / device_s
        elif watts is not None:
            frame["j_per_token"] = device_s * watts / tokens
        elif request.objective == "energy":
            raise UsageError(f"{request.cluster}: these rules have no power of the device; choose another --objective")
        frames.append(frame)
    kept = [frame for frame in frames if len(frame)] or frames[:1]
    return pd.concat(kept, ignore_index=True)


FIGURES = tuple(each.name for each in fields(Figures))
#: Axes of a sweep, and the columns that name a point; an own figure of the system is empty.
AXES = ("model", "cluster", *FIGURES)
#: Values of an evenly divided range.
_MOST_VALUES = 1000
#: Column that says what else was asked of every point.
_ASKED = "asked"
_COLUMN = {name: f"set_{name}" for name in FIGURES} | {"model": "model", "cluster": "cluster"}


def parse_axes(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """``flops=1250/2500/5000,hbm_gb=96..384,ib_gb_s=50..200:4``: values by ``/``, from..to by doubling, or so many
    values evenly between. UsageError for others.
    """
    axes: dict[str, tuple[Any, ...]] = {}
    for item in (part for text in texts for part in text.split(",")):
        name, equals, values = (part.strip() for part in item.partition("="))
        if not equals or name not in AXES:
            raise UsageError(
                f"--sweep takes NAME=V/V/V, NAME=V..V or NAME=V..V:COUNT with NAME of {', '.join(AXES)}; got {item!r}"
            )
        axes[name] = tuple(values.split("/")) if name in ("model", "cluster") else tuple(_numbers(name, values))
    return axes


def points(request: Request, axes: Mapping[str, Sequence[Any]]) -> list[Request]:
    """One request per combination of values, the last axis fastest."""
    made = []
    for values in itertools.product(*axes.values()):
        given = dict(zip(axes, values, strict=True))
        figures = {name: given.pop(name) for name in FIGURES if name in given}
        made.append(replace(request, **given, figures=replace(request.figures, **figures)))
    return made


def key(request: Request) -> tuple[str, ...]:
    """What tells a point from the others, as its rows in a file do."""
    figures = (getattr(request.figures, name) for name in FIGURES)
    return (request.model, request.cluster, *("" if value is None else f"{value:g}" for value in figures))


def asked(request: Request) -> str:
    """All of a request that no axis varies; rows of a file that say otherwise answer another question."""
    wanted = request.wanted
    parts = {
        "rules": request.rules,
        "attention": "" if request.attention == "fused" else request.attention,
        "strategies": "/".join(request.strategies),
        "gpus": "/".join(map(str, sorted(set(request.gpus)))),
        "global batch": request.global_batch,
        "sequence": request.sequence,
        "precisions": "/".join(request.precisions),
        "backends": request.backends,
        "framework": request.framework,
        "fixed": "/".join(f"{name}={value}" for name, value in sorted(wanted.fixed.items())),
        "forbidden": "/".join(sorted(wanted.forbidden)),
        "headroom": wanted.headroom,
        "objective": "energy" if request.objective == "energy" else "",
        "price": request.price_per_gpu_hour,
        "top": request.top,
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items() if value)


def rows(request: Request) -> pd.DataFrame:
    """The best configurations of one point, with the columns that name it."""
    table = answer(request).fits.copy()
    named = dict(zip(AXES, key(request), strict=True))
    for name in ("cluster", *FIGURES):
        table[_COLUMN[name]] = named[name]
    table[_ASKED] = asked(request)
    return table


def sweep(
    requests: Sequence[Request],
    executor: Executor,
    *,
    done: pd.DataFrame | None = None,
    save: Callable[[pd.DataFrame], None] = lambda table: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """All points' rows in the order of ``requests``, and why any point has none. ``save`` gets all after each point.

    ``done``: rows of an earlier run; points that they have are not searched again. A point where nothing fits has no
    row, and is searched again. InputError for rows of a run that asked something else.
    """
    order = {key(request): place for place, request in enumerate(requests)}
    known = _by_point(done, asked(requests[0])) if done is not None else {}
    found = {point: frame for point, frame in known.items() if point in order}
    errors: list[str] = []
    table = pd.DataFrame()
    waiting = [request for request in requests if key(request) not in found]
    progress(len(requests) - len(waiting), len(requests))
    for count, outcome in enumerate(outcomes(executor, rows, waiting), len(requests) - len(waiting) + 1):
        point = key(outcome.item)
        if outcome.value is None:
            errors.append(f"{', '.join(filter(None, point))}: {outcome.error}")
        elif len(outcome.value):
            found[point] = outcome.value
        table = _joined(found, order)
        save(table)
        progress(count, len(requests))
    return table if waiting else _joined(found, order), tuple(errors)


def _joined(found: Mapping[tuple[str, ...], pd.DataFrame], order: Mapping[tuple[str, ...], int]) -> pd.DataFrame:
    frames = [found[point] for point in sorted(found, key=order.__getitem__)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _by_point(table: pd.DataFrame, same: str) -> dict[tuple[str, ...], pd.DataFrame]:
    columns = [_COLUMN[name] for name in AXES]
    missing = [name for name in (*columns, _ASKED) if name not in table]
    if missing:
        raise InputError(
            f"the table to resume from was not written by `search --sweep`: it lacks the columns {', '.join(missing)}"
        )
    if other := sorted(set(table[_ASKED].astype(str)) - {same}):
        raise InputError(
            f"the table to resume from is of another search ({other[0]}, not {same}): choose another file with -o"
        )
    named = table.copy()
    for name in columns:
        named[name] = [
            value if isinstance(value, str) else "" if value is None or value != value else f"{value:g}"
            for value in named[name]
        ]
    return {point: named.loc[where] for point, where in named.groupby(columns).groups.items()}  # type: ignore[misc]


def _numbers(name: str, text: str) -> Iterator[float]:
    first, dots, last = text.partition("..")
    whole = int if name == "nvs" else float
    try:
        if not dots:
            yield from (whole(value) for value in text.split("/"))
            return
        last, colon, count = last.partition(":")
        value, end = whole(first), whole(last)
        if colon:
            steps = int(count)
            if not (0 < value <= end and 1 < steps <= _MOST_VALUES):
                raise ValueError
            yield from (whole(value + (end - value) * step / (steps - 1)) for step in range(steps))
            return
    except ValueError:
        raise UsageError(f"--sweep {name}: not numbers: {text!r}") from None
    if not 0 < value <= end <= 2**60 * value:
        raise UsageError(f"--sweep {name}: {text!r} is empty, endless, or does not start above 0")
    while value <= end:
        yield value
        value *= 2
