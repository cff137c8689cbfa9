"""The best deployment of a server: every one by its steady state in closed form, those of the front by simulation.

The step times are those of the simulation, ``StepCost``; what a step holds is its mean. With b sequences that decode
and answers of D steps, b / D requests end in a step and as many prompts come. From b follow the requests in flight, by
Little's law: nothing is solved for. Percentiles take the waits of a queue with one server and constant service.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.backends import System
from tracelens.errors import UsageError
from tracelens.files.say import with_progress
from tracelens.predict.serving.costs import FS_PER_US, Chunk, StageWork, StepCost
from tracelens.predict.serving.deployment import Deployment
from tracelens.predict.serving.experiment import Experiment, ServingResult, deployment_of, experiment_of
from tracelens.predict.serving.load_curve import ASSUMED_SLO, KEPT_BY, as_closed_loop, load_point
from tracelens.predict.serving.metrics import Objectives
from tracelens.predict.serving.requests import Lengths
from tracelens.predict.serving.serving_options import ServingConfig
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.model_config import weights_of_name
from tracelens.types.records import Record, pd
from tracelens.types.units import MS_PER_S

_FS_PER_S = FS_PER_US * 1e6
#: Of 100 requests, one waits longer.
_TAIL = 100.0
#: Standard deviations above the mean that one of 100 of a normal distribution exceeds.
_NORMAL_TAIL = 2.326
#: Above this use of its capacity a queue grows without limit for any chance variation.
_MOST_USE = 0.98

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class MeanLengths(NamedTuple):
    """Mean tokens of prompts and of answers."""

    prompt: float
    answer: float


class SteadyStates(Record, frozen=True, kw_only=True, eq=False):
    """A server's steady states, an entry per number of sequences that decode; seconds, and requests per second.

    ``flight``: requests in the server. ``first_s`` and ``token_s``: mean times to the first token and per token,
    ``first_tail_s`` and ``token_tail_s`` those that 99 of 100 requests keep. NaN where prompts come faster than
    they can be computed.
    """

    rate: Floats
    flight: Floats
    first_s: Floats
    first_tail_s: Floats
    token_s: Floats
    token_tail_s: Floats

    def only(self, chosen: npt.NDArray[Any]) -> Self:
        """The entries that are chosen, by a mask or in that order."""
        return type(self)(**{name: getattr(self, name)[chosen] for name in self.__struct_fields__})

    def under(self, target: float | None, name: str, *, steps: float) -> tuple[Ints, SteadyStates]:
        """Of states in rows, each of rising loads: in which row, and which, those are at which ``name`` is ``target``,
        between two loads; without a target, all.

        Rows that end below the target have none. A load below a row's first is as fast as it.
        """
        known = np.isfinite(self.rate)
        if target is None:
            return np.nonzero(known)[0], self.only(known)
        rising = np.where(known, getattr(self, name), np.inf)
        place = (rising < target).sum(axis=1)
        rows = np.flatnonzero((place < rising.shape[1]) & np.isfinite(rising).any(axis=1))
        rows = rows[np.isfinite(rising[rows, place[rows]])]
        after, before = place[rows], np.maximum(place[rows] - 1, 0)
        low, high = rising[rows, before], rising[rows, after]
        part = np.where(high > low, (target - low) / np.where(high > low, high - low, 1.0), 0.0).clip(0.0)
        found = {}
        for each in SteadyStates.__struct_fields__:
            values = getattr(self, each)
            found[each] = values[rows, before] * (1 - part) + values[rows, after] * part
        stay = found["first_s"] + steps * found["token_s"]
        found["flight"] = np.full(len(rows), target) if name == "flight" else target * stay
        found["rate"] = np.full(len(rows), target) if name == "rate" else target / stay
        return rows, SteadyStates(**found)


class PrefillPool(NamedTuple):
    """A replica that only computes prompts: requests per second at most, and seconds of a prompt that comes alone, of
    one of those in a full step, and of what every request waits for: the engine's front end, its cache's transfer.
    """

    capacity: float
    alone_s: float
    each_s: float
    apart_s: float

    def waits_s(self, rate: Floats, others: Floats) -> tuple[Floats, Floats]:
        """At ``rate`` requests per second, the mean and the tail of the wait for other requests, whose share of all
        is ``others``: for the step that runs, or in the queue. NaN where more than ``_MOST_PREFILL_USE`` is used.
        """
        use = rate / self.capacity
        use = np.where(use > _MOST_PREFILL_USE, np.nan, use)
        queue = self.each_s / (2 * (1 - use))
        running = -np.expm1(-rate * self.alone_s)
        mean = np.maximum(use * queue, running * self.alone_s / 2)
        tail = np.maximum(queue * np.log(np.maximum(_TAIL * use, 1.0)), (running > 1 / _TAIL) * self.alone_s)
        return others * mean, others * tail


class _Mix(NamedTuple):
    """A step with prompts beside ``batch`` sequences that decode: in what share of all steps, with how many chunks of
    ``chunk`` on average.
    """

    batch: int
    context: int
    share: float
    chunk: Chunk
    together: float
    #: Such steps that a prompt takes, and the share of what prompts could get that they use.
    steps: float = 1.0
    use: float = 0.0

    @property
    def counts(self) -> tuple[int, ...]:
        """The whole numbers of chunks around the mean."""
        least = max(int(self.together), 1)
        return (least,) if self.together <= least else (least, least + 1)


class ClosedForm:
    """The steady states of one replica at any budget of new tokens per step. ``batches``: sequences that decode."""

    def __init__(self, cost: StepCost, lengths: MeanLengths, batches: Sequence[int]) -> None:
        self.cost, self.lengths, self.batches = cost, lengths, tuple(batches)
        served = cost.deployment
        self._ranks, self._lanes = served.parallelism.dp, served.parallelism.pp
        self._request_s = served.engine.request_us / 1e6
        speculation = served.speculation
        self._tokens_per_step = 1.0 if speculation is None else speculation.tokens_per_step
        self._steps = max(lengths.answer - 1, 1) / self._tokens_per_step

    def foresee(self, budgets: Sequence[int]) -> None:
        """Has all steps priced that ``serving``, ``decoding`` and ``prefill`` ask for, together."""
        mixes = [mix for budget in budgets for batch in self.batches if (mix := self._mix(batch, budget)) is not None]
        mixes += [self._prompts(count, budget) for budget in budgets for count in (1, self._fitting(budget))]
        steps = {(mix.batch * self.cost.queries, mix.chunk, count) for mix in mixes for count in mix.counts}
        counts = {(decoded + chunk[0] * count, self._busiest(decoded, chunk, count)) for decoded, chunk, count in steps}
        rows = {decoded + count for decoded, _, count in steps}
        longest = round(self.lengths.prompt + self.lengths.answer)
        self.cost.foresee(self.batches, counts, rows, longest=longest)

    def _busiest(self, decoded: int, chunk: Chunk, count: int) -> int:
        """New tokens of the busiest data-parallel rank."""
        tokens = decoded + chunk[0] * count
        return self.cost.busiest(tokens, (chunk,) * count, decoded // self.cost.queries)

    def serving(self, budget: int) -> SteadyStates:
        """A replica that computes prompts and decodes."""
        states = np.array([self._state(batch, budget) for batch in self.batches], dtype=np.float64).reshape(-1, 4)
        first, first_tail, step, tail = states.T
        return self._states(first, first_tail, step, tail)

    def decoding(self) -> SteadyStates:
        """A replica that only decodes; ``first_s`` is the wait for the step that takes a request in."""
        step = np.array([self._decode_s(batch) for batch in self.batches])
        return self._states(step / 2, step, step, step)

    def _states(self, first: Floats, first_tail: Floats, step: Floats, tail: Floats) -> SteadyStates:
        decoding = np.array(self.batches) * self._lanes
        rate = decoding / (self._steps * step)
        return SteadyStates(
            rate=rate, flight=decoding + rate * first, first_s=first, first_tail_s=first_tail,
            token_s=step / self._tokens_per_step, token_tail_s=tail / self._tokens_per_step,
        )  # fmt: skip

    def prefill(self, budget: int) -> PrefillPool:
        """A replica that only computes prompts."""
        count = self._fitting(budget)
        alone_s, step_s = ((mix := self._prompts(n, budget)).steps * self._mixed_s(mix) for n in (1, count))
        nbytes = self.cost.kv_bytes_per_token() * self.lengths.prompt
        transfer_s = self.cost.transfer_fs(nbytes) / _FS_PER_S
        link = self._ranks / transfer_s if transfer_s else math.inf
        capacity = min(count * self._lanes / step_s, link)
        handed_s = transfer_s + self.cost.deployment.engine.handover_us / 1e6
        return PrefillPool(capacity, alone_s, step_s / count, self._request_s + handed_s)

    def _fitting(self, budget: int) -> int:
        """Whole prompts in a step of all data-parallel ranks."""
        return self._ranks * max(int(budget // self.lengths.prompt), 1)

    def _prompts(self, count: float, budget: int) -> _Mix:
        """A step of ``count`` prompts, whole, or of their chunks where the policy makes some of a long one."""
        prompt = self.lengths.prompt
        is_whole = self.cost.deployment.engine.policy == "prefill-first"
        steps = 1 if is_whole else max(math.ceil(prompt / budget), 1)
        size = max(round(prompt / steps), 1)
        chunk = size, max(round((prompt - size) / 2), 0)
        return _Mix(batch=0, context=0, share=0.0, chunk=chunk, together=count, steps=steps)

    def _mix(self, batch: int, budget: int) -> _Mix | None:
        """The mean step with prompts; None where prompts come faster than they are computed."""
        prompt, per_step = self.lengths.prompt, batch / self._steps
        if self.cost.deployment.engine.policy == "prefill-first":
            share = -math.expm1(-per_step)
            together = per_step / share
            count = min(together, self._fitting(budget))
            return self._prompts(count, budget)._replace(share=share, steps=max(together / count, 1.0))
        room = budget - -(-batch // self._ranks) * self.cost.queries
        if room < 1:
            return None
        steps = max(prompt / room, 1.0)
        use = per_step * prompt / room / self._ranks
        if use > _MOST_USE:
            return None
        share = min(max(use, -math.expm1(-per_step * steps)), 1.0)
        size = max(round(prompt / steps), 1)
        past = max(round((prompt - size) / 2), 0)
        return _Mix(batch, self._keys(batch), share, (size, past), per_step * steps / share, steps, use)

    def _mixed_s(self, mix: _Mix) -> float:
        """Seconds of the step, between those with the whole numbers of chunks around the mean."""
        times = [self._with_prompts_s(mix, count) for count in mix.counts]
        part = mix.together - mix.counts[0] if len(times) > 1 else 0.0
        return times[0] * (1 - part) + times[-1] * part

    def _with_prompts_s(self, mix: _Mix, count: int) -> float:
        decoded = mix.batch * self.cost.queries
        tokens = decoded + mix.chunk[0] * count
        # Of a prompt in several chunks, one is the first
        started = max(round(count / mix.steps), 1)
        asked = tokens, (mix.chunk,) * count, decoded + count, started, mix.batch, mix.context
        if self._lanes == 1:
            return sum(self.cost.mixed_time(*asked)) / _FS_PER_S
        return self._cycle_s(self.cost.mixed(*asked))

    def _decode_s(self, batch: int) -> float:
        context = self._keys(batch)
        if self._lanes > 1:
            return self._cycle_s(self.cost.decode_work(batch, context))
        line = self.cost.decode_line(batch, context)
        return (line.fixed + line.slope * context) / _FS_PER_S

    def _keys(self, batch: int) -> int:
        context = round(batch * (self.lengths.prompt + self.lengths.answer / 2))
        return self.cost.spread_out(batch, context, self.lengths.answer)

    def _cycle_s(self, stages: Sequence[StageWork]) -> float:
        """What a micro-batch takes through a pipeline that is full of them: the slowest stage sets the pace."""
        times = [
            stage.compute_fs + stage.exchange_fs + (0 if stage.handover is None else stage.handover.time_fs)
            for stage in stages
        ]
        return len(times) * max(times) / _FS_PER_S

    def _state(self, batch: int, budget: int) -> tuple[float, ...]:
        """Mean and tail of the times to the first token and of a decode step, while a lane of ``batch`` decodes."""
        mix = self._mix(batch, budget)
        if mix is None:
            return (math.nan,) * 4
        is_apart = not mix.batch
        decode_s, mixed_s = self._decode_s(batch), self._mixed_s(mix) * (mix.steps if is_apart else 1)
        longer = mixed_s if is_apart else max(mixed_s - decode_s, 0.0)
        # A request meets the others' prompts, not its own; of micro-batches in a pipeline, the longest delays all
        others = 1 - 1 / (batch * self._lanes)
        share = others * -math.expm1(self._lanes * math.log1p(-min(mix.share, 1 - 1e-9)))
        step = decode_s + share * longer
        spread = math.sqrt(share * (1 - share) * (1 if is_apart else mix.steps) / self._steps)
        tail = min(step + _NORMAL_TAIL * longer * spread, decode_s + longer)
        # A request comes while a step runs, most likely a long one
        rest = others * (decode_s**2 * (1 - share) + share * (decode_s + longer) ** 2) / (2 * step)
        service = mixed_s if is_apart else mix.steps * mixed_s + (math.ceil(mix.steps) - mix.steps) * decode_s
        wait = others * mix.use / (2 * (1 - mix.use)) * service / self._ranks
        longest = wait / mix.use * math.log(_TAIL * mix.use) if mix.use * _TAIL > 1 else 0.0
        first = self._request_s + rest + wait + service
        first_tail = self._request_s + others * (decode_s + longer * (share > 1 / _TAIL)) + longest + service
        return first, first_tail, step, tail


class Wanted(Record, frozen=True, kw_only=True):
    """What a deployment is searched for. ``counts``: device counts; ``fixed``: values of ``tracelens.serve``'s options
    by name. ``asked``: lengths, SLO, and either ``concurrency``, of the whole deployment, or ``rate``; with neither
    every load is tried. ``objective``: ``time`` is most tokens/s per device, with a rate fewest devices, and
    ``energy`` least J per token of the deployments that are simulated.
    """

    model: str
    cluster: str
    counts: tuple[int, ...]
    asked: ServingConfig
    engines: tuple[str | None, ...] = (None,)
    weights: tuple[str | None, ...] = (None,)
    fixed: Mapping[str, Any] = msgspec.field(default_factory=dict)
    top: int = 10
    objective: str = "time"

    def kinds(self) -> list[tuple[str | None, str | None]]:
        """Engine and weights of every kind of replica; weights that are not given are as the model's name says."""
        said = weights_of_name(self.model)
        return list(itertools.product(self.engines, [weights or said for weights in self.weights]))


#: Dimensions of the search by their names as options of ``serve``.
DIMENSIONS = (
    "tp", "pp", "dp", "ep", "replicas", "prefill_replicas", "prefill_tp", "prefill_pp", "prefill_dp", "prefill_ep",
    "max_batched_tokens", "max_num_seqs",
)  # fmt: skip
#: New tokens per step that are tried, beside the engine's own limit.
_BUDGETS = (2048, 4096, 8192, 16384)
#: Sequences at once on a data-parallel rank: an engine's usual limit, and the most that is tried.
_USUAL_SEQUENCES, _MOST_SEQUENCES = 256, 1024
_STAGES = (1, 2, 4, 8)
#: Prefill replicas that are tried.
_PREFILLS = tuple(sorted({n << i for n in (1, 3) for i in range(10)}))
#: By how much the closed form's tails may break a limit: the simulation decides.
_MARGIN = 1.1
#: Figures that differ by less are the same to the closed form.
_EQUAL = 1e-3
#: Deployments that are simulated in search of the best, before those along the front.
_TRIES = 8
#: From so many requests at once on, so many per user are simulated: two of them make the steady part.
_MANY, _PER_USER = 128, 4
#: A rate is simulated for so long, with at least and at most so many requests.
_RATE_S, _FEWEST, _MOST = 60.0, 1000, 20_000
#: Of prompts that prefill replicas can compute, the most that come.
_MOST_PREFILL_USE = 0.9


class Server(NamedTuple):
    """A replica that is possible: the options of ``serve`` that describe it, and its figures. ``kind``: its engine and
    weights.
    """

    options: dict[str, Any]
    cost: StepCost
    states: SteadyStates
    kind: tuple[str | None, str | None]
    prefill: PrefillPool | None = None

    @property
    def devices(self) -> int:
        return self.cost.deployment.parallelism.devices


def _levels(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12 ... up to ``most``."""
    found = sorted({n << i for n in (1, 3) for i in range(max(most, 1).bit_length())})
    return [n for n in found if n <= most]


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


class ServerSearch:
    """Every replica of a model that a deployment could have. ``refused``: how many splits, by reason."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted, self.refused = wanted, Counter[str]()
        self.system = System.load(wanted.cluster)
        self.model = ModelConfig.load(wanted.model)
        asked = wanted.asked
        means = (Lengths.of(given).mean for given in (asked.input_tokens, asked.output_tokens))
        self.lengths = MeanLengths(*means)
        if self.lengths.answer < 2:
            raise UsageError("--serve compares times per token: give --output-tokens of 2 or more")
        self.serving: list[Server] = []
        self.decoding: list[Server] = []
        self.computing: list[Server] = []
        sizes = {d for n in wanted.counts for d in _divisors(n)}
        sizes |= {1 << i for i in range(max(wanted.counts).bit_length()) if 1 << i < max(wanted.counts)}
        kinds = wanted.kinds()
        self.splits = [split for size in sorted(sizes) for split in self._splits(size)]
        first: UsageError | None = None
        for kind, split in with_progress(list(itertools.product(kinds, self.splits)), "estimating", "replicas"):
            try:
                self._take(kind, split)
            except UsageError as error:
                first = first or error
                self.refused["does not fit" if "does not fit" in str(error) else "does not divide the model"] += 1
        if not self.serving:
            raise first or UsageError("no split of these device counts is left: change --gpus, --fix or --forbid")

    def _splits(self, size: int) -> Iterator[dict[str, int]]:
        """Ways to divide ``size`` devices; without experts, data parallelism is what more replicas are."""
        node = None if self.system.topology is None else self.system.topology.ranks_per_node
        experts = self.model.experts is not None
        for tp in _divisors(size):
            for pp in _divisors(size // tp):
                dp = size // tp // pp
                if (tp > (node or tp)) or pp not in _STAGES or (dp > 1 and not experts):
                    continue
                for ep in _divisors(tp * dp) if experts else (1,):
                    yield {"tp": tp, "pp": pp, "dp": dp, "ep": ep}

    def _roles(self, split: dict[str, int]) -> tuple[bool, bool]:
        """Whether replicas that decode, and others that only compute prompts, may be split so."""
        fixed = self.wanted.fixed
        decodes, computes = (
            all(fixed.get(prefix + name, value) == value for name, value in split.items())
            for prefix in ("", "prefill_")
        )
        return decodes, computes and fixed.get("prefill_replicas") != 0

    def _take(self, kind: tuple[str | None, str | None], split: dict[str, int]) -> None:
        """Adds the servers of one split. UsageError, as of ``serve``, where the model does not fit it."""
        decodes, computes = self._roles(split)
        if not decodes and not computes:
            return
        options: dict[str, Any] = {**split, "engine": kind[0], "weights": kind[1]}
        given = {name: value for name, value in self.wanted.fixed.items() if name not in DIMENSIONS}
        asked = dataclasses.replace(self.wanted.asked, **given, **options)
        cost = StepCost(deployment_of(self.model, self.system, asked))
        rooms = self._rooms(cost)
        most = self.wanted.fixed.get("max_num_seqs", _MOST_SEQUENCES) * split["dp"]
        lanes = split["pp"]
        levels = _levels(min(int(max(rooms.values())), most) // lanes)
        if not levels:
            raise UsageError(f"{self.model.name} does not fit: its KV cache has no room for a request")
        form = ClosedForm(cost, self.lengths, levels)
        form.foresee(tuple(rooms))
        decoding = form.decoding()
        for number, (budget, room) in enumerate(rooms.items()):
            usual = cost.deployment.engine.max_batched_tokens
            said = options if budget == usual else {**options, "max_batched_tokens": budget}
            fits = np.array(levels) * lanes <= room
            if decodes:
                self.serving.append(Server(said, cost, form.serving(budget).only(fits), kind))
            if computes:
                self.computing.append(Server(said, cost, decoding, kind, form.prefill(budget)))
            if decodes and not number:
                self.decoding.append(Server(said, cost, decoding.only(fits), kind))

    def _rooms(self, cost: StepCost) -> dict[int, float]:
        """How many requests the KV cache holds, by new tokens per step. UsageError where not even the fewest fit."""
        fixed, found = self.wanted.fixed, {}
        least = min(fixed.get("max_num_seqs", _USUAL_SEQUENCES), cost.deployment.engine.max_num_seqs)
        budgets = (
            [fixed["max_batched_tokens"]] if "max_batched_tokens" in fixed else [n for n in _BUDGETS if n >= least]
        )
        for budget in budgets:
            try:
                found[budget] = cost.limited(max_batched_tokens=budget).pool_tokens() / sum(self.lengths)
            except UsageError:
                if not found:
                    raise
        return found


class Points(SteadyStates, frozen=True, kw_only=True, eq=False):
    """Deployments under loads, an entry each: how many replicas of which server, and its figures as in a steady state.

    ``prefill`` is -1 where each replica computes its prompts.
    """

    server: Ints
    prefill: Ints
    replicas: Ints
    prefills: Ints
    devices: Ints

    def __len__(self) -> int:
        return len(self.devices)

    def per_gpu(self, lengths: MeanLengths) -> Floats:
        """Output tokens per second and device."""
        return self.rate * lengths.answer / self.devices

    @property
    def per_user(self) -> Floats:
        """Tokens per second of one request."""
        return 1 / self.token_s


def front(across: Floats, up: Floats) -> Ints:
    """The entries that no other beats in both figures, the largest ``up`` first. Figures that differ by less than
    ``_EQUAL`` are the same; of equals the first.
    """
    across, up = (np.round(np.log(figures) / _EQUAL) for figures in (across, up))
    order = np.lexsort((np.arange(len(up)), -across, -up))
    before = np.maximum.accumulate(across[order])
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = before[1:] > before[:-1]
    return order[is_new]


def deployments(found: ServerSearch) -> tuple[Points, int]:
    """All deployments of the servers under the load that is wanted, and how many were looked at."""
    parts, looked = [], 0
    for at, server in enumerate(found.serving):
        counts = np.array([n for n in found.wanted.counts if n % server.devices == 0], dtype=np.int64)
        alone = np.zeros_like(counts)
        parts.append(_under(found, at, counts // server.devices, alone - 1, alone, counts))
        looked += len(counts)
    for at, server in enumerate(found.decoding):
        rows = [
            (decoders, other, prefills, n)
            for other, computing in enumerate(found.computing)
            if computing.kind == server.kind
            for n in found.wanted.counts
            for prefills in _PREFILLS
            if (decoders := (n - prefills * computing.devices) // server.devices) > 0
            and decoders * server.devices + prefills * computing.devices == n
        ]
        if rows:
            replicas, others, prefills, counts = np.array(rows, dtype=np.int64).T
            parts.append(_under(found, at, replicas, others, prefills, counts))
            looked += len(rows)
    columns = {name: [getattr(part, name) for part in parts] for name in Points.__struct_fields__}
    return Points(**{name: np.concatenate(column) for name, column in columns.items()}), looked


def _under(found: ServerSearch, at: int, replicas: Ints, others: Ints, prefills: Ints, devices: Ints) -> Points:
    """Deployments of one server, with ``prefills`` replicas of ``others`` where they are not -1, under the load."""
    wanted, asked = found.wanted, found.wanted.asked
    is_whole = bool(len(others)) and others[0] >= 0
    server = (found.decoding if is_whole else found.serving)[at]
    keep = np.ones(len(replicas), dtype=bool)
    for name, values in (("replicas", replicas), ("prefill_replicas", prefills)):
        keep &= values == wanted.fixed.get(name, values)
    if asked.concurrency is not None:
        keep &= replicas <= asked.concurrency
    replicas, others, prefills, devices = (each[keep] for each in (replicas, others, prefills, devices))
    own, times = server.states, replicas[:, None]
    rate = own.rate * times
    decoding = (own.flight - own.rate * own.first_s) * times
    first, first_tail = own.first_s + 0 * times, own.first_tail_s + 0 * times
    if is_whole:
        pools = [found.computing[other].prefill for other in others.tolist()]
        columns = np.array([pool for pool in pools if pool is not None], dtype=np.float64).reshape(-1, 4)
        figures: Any = [column[:, None] for column in columns.T]
        pool = PrefillPool(*figures)
        shares = 1 - 1 / np.maximum(decoding, 1)
        wait, tail = pool.waits_s(rate / prefills[:, None], shares)
        first = first + pool.apart_s + pool.alone_s + wait
        first_tail = first_tail + pool.apart_s + pool.alone_s + tail
    rate = np.where(np.isfinite(first), rate, np.nan)
    states = SteadyStates(
        rate=rate, flight=decoding + rate * first, first_s=first, first_tail_s=first_tail,
        token_s=own.token_s + 0 * times, token_tail_s=own.token_tail_s + 0 * times,
    )  # fmt: skip
    name, target = ("rate", asked.rate) if asked.concurrency is None else ("flight", float(asked.concurrency))
    rows, chosen = states.under(target, name, steps=found.lengths.answer - 1)
    return Points(
        server=np.full(len(rows), at), prefill=others[rows], replicas=replicas[rows], prefills=prefills[rows],
        devices=devices[rows], **{name: getattr(chosen, name) for name in chosen.__struct_fields__},
    )  # fmt: skip


def within(points: Points, limits: Objectives, lengths: MeanLengths) -> npt.NDArray[np.bool_]:
    """Which keep the limits, or nearly, so that a simulation must decide."""
    whole = points.first_tail_s + (lengths.answer - 1) * points.token_tail_s
    keep = np.ones(len(points), dtype=bool)
    for tail, limit in (
        (points.first_tail_s, limits.ttft_ms), (points.token_tail_s, limits.tpot_ms), (whole, limits.e2e_ms),
    ):  # fmt: skip
        if limit is not None:
            keep &= tail <= _MARGIN * limit / MS_PER_S
    return keep


class Planned(Record, frozen=True, kw_only=True):
    """A deployment of the front as it was simulated. ``row``: its options and figures; ``notes``: of the simulation."""

    row: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def words(self) -> str:
        """Replicas and their splits."""
        row, parts = self.row, []
        for prefix, what in (("prefill_", "prefill "), ("", "decode " if self.row["prefill_replicas"] else "")):
            count = row[f"{prefix}replicas"]
            if count:
                split = [f"{name} {row[prefix + name]}" for name in ("tp", "pp", "dp", "ep") if row[prefix + name] > 1]
                split.append(f"batch {row[prefix + 'max_batched_tokens']:,}")
                parts.append(f"{count} x {what}{' '.join(split)}")
        kind = [str(row[name]) for name in ("engine", "weights") if row[name] is not None]
        return ", ".join([*parts, *kind])


class DeploymentPlan(Record, frozen=True, kw_only=True):
    """What a search found. ``points``: the fronts, most tokens/s per device first; ``looked``: deployments that were
    estimated, ``fitting`` of them within the limits at some load; ``refused``: splits, by reason. ``best``: a place in
    ``points``, None where nothing keeps the SLO.
    """

    wanted: Wanted
    label: str
    device: str
    points: tuple[Planned, ...]
    looked: int
    fitting: int
    refused: Mapping[str, int]
    best: int | None

    @property
    def limits(self) -> Objectives:
        return Objectives.parse(self.wanted.asked.slo or ASSUMED_SLO)

    @property
    def frame(self) -> pd.DataFrame:
        """A row per point."""
        frame = pd.DataFrame([dict(point.row) for point in self.points])
        return frame.astype({name: "Int64" for name in frame.columns if name.startswith("prefill_")})


def plan(wanted: Wanted) -> DeploymentPlan:
    """The best deployment within the SLO, and the front of tokens/s per device against tokens/s per user; where
    energies are known, that of J per token against tokens/s per user too.

    Every deployment is estimated in closed form; those of the front are simulated, and only what the simulation says
    is told. UsageError for a model that no split fits, and for options that do not go together.
    """
    asked = wanted.asked
    if asked.concurrency is not None and asked.rate is not None:
        raise UsageError("give --concurrency or --rate, not both")
    if wanted.objective not in ("time", "energy"):
        raise UsageError(f"--objective {wanted.objective} is of a search without --serve; give time or energy")
    found = ServerSearch(wanted)
    points, looked = deployments(found)
    kept = points.only(within(points, Objectives.parse(asked.slo or ASSUMED_SLO), found.lengths))
    good = _confirmed(found, kept)
    user, gpu = (np.array([each.row[name] for each in good], dtype=np.float64) for name in _FRONT)
    places = front(user, gpu).tolist()
    if good and _DRAWN[1] in good[0].row:
        least = front(user, 1 / np.array([each.row[_DRAWN[1]] for each in good], dtype=np.float64))
        places = sorted({*places, *least.tolist()}, key=lambda at: -gpu[at])
    shown = [good[at] for at in places]
    return DeploymentPlan(
        wanted=wanted, label=found.model.label, device=found.system.device.label, points=tuple(shown), looked=looked,
        fitting=len(kept), refused=found.refused, best=_best(found, shown),
    )  # fmt: skip


def _best(found: ServerSearch, shown: Sequence[Planned]) -> int | None:
    """Which of the points, most tokens/s per device first, is what was asked for; None where there are none."""
    wanted = found.wanted
    if shown and wanted.objective == "energy":
        if _DRAWN[1] not in shown[0].row:
            raise UsageError(f"{found.system.device.name}: its energies are unknown; choose another --objective")
        return min(range(len(shown)), key=lambda at: (shown[at].row[_DRAWN[1]], at))
    if shown and wanted.asked.rate is not None:
        return min(range(len(shown)), key=lambda at: (shown[at].row["devices"], at))
    return 0 if shown else None


def _confirmed(found: ServerSearch, kept: Points) -> list[Planned]:
    """Points of the front that keep the SLO in a simulation: from the top down until one does, then spread over it."""
    places = front(kept.per_user, kept.per_gpu(found.lengths)).tolist()
    if found.wanted.asked.rate is not None and len(kept):
        few = np.flatnonzero(kept.devices == kept.devices.min())
        places = [int(few[np.argmax(kept.per_user[few])]), *places]
    good: list[Planned] = []
    tried = -1
    while not good and tried + 1 < min(len(places), _TRIES):
        tried += 1
        good += _simulated(found, kept, places[tried])
    rest, more = places[tried + 1 :], found.wanted.top - 1
    if not good or not rest or not more:
        return good
    spread = {round(i * (len(rest) - 1) / max(more - 1, 1)) for i in range(more)}
    for at in with_progress(sorted(spread), "simulating", "deployments"):
        good += _simulated(found, kept, rest[at])
    return good


_FRONT = ("tokens_per_s_per_user", "output_tokens_per_s_per_gpu")


def options_of_point(found: ServerSearch, points: Points, place: int) -> dict[str, Any]:
    """What ``serve`` is told to run one of the points, beside the model, the cluster and the load."""
    other, fixed = int(points.prefill[place]), found.wanted.fixed
    server = (found.serving if other < 0 else found.decoding)[int(points.server[place])]
    options = {name: value for name, value in fixed.items() if name not in DIMENSIONS} | server.options
    options["replicas"] = replicas = int(points.replicas[place])
    if other >= 0:
        options["prefill_replicas"] = int(points.prefills[place])
        for name, value in found.computing[other].options.items():
            if name not in ("engine", "weights"):
                options[f"prefill_{name}"] = value
    # Round robin gives some replicas more than their share
    each = math.ceil(1.25 * float(points.flight[place]) / replicas / server.cost.deployment.parallelism.dp)
    if "max_num_seqs" in fixed:
        options["max_num_seqs"] = fixed["max_num_seqs"]
    elif each > _USUAL_SEQUENCES:
        options["max_num_seqs"] = 1 << (each - 1).bit_length()
    return options


def _simulated(found: ServerSearch, points: Points, place: int) -> list[Planned]:
    """One point as ``serve`` has it; none where it refuses, or where the SLO breaks."""
    wanted, options = found.wanted, options_of_point(found, points, place)
    load: dict[str, Any] = {"concurrency": (users := max(round(float(points.flight[place])), 1))}
    if users >= _MANY:
        load["requests"] = _PER_USER * users
    if wanted.asked.rate is not None:
        count = min(max(math.ceil(_RATE_S * wanted.asked.rate), _FEWEST), _MOST)
        load = {"rate": wanted.asked.rate, "requests": count}
    asked = dataclasses.replace(wanted.asked, slo=wanted.asked.slo or ASSUMED_SLO, **options, **load)
    asked = asked if wanted.asked.rate is not None else as_closed_loop(asked)
    experiment = experiment_of(deployment_of(found.model, found.system, asked), asked)
    other, server = int(points.prefill[place]), int(points.server[place])
    cost = _limited((found.serving if other < 0 else found.decoding)[server], experiment.deployment)
    prefilling = _limited(found.computing[other], experiment.prefill or experiment.deployment) if other >= 0 else None
    try:
        cost.pool_tokens()
        result, figures = _figures(experiment, cost, prefilling, load)
    except UsageError:
        return []
    if (figures["good_share"] or 0.0) < KEPT_BY or not figures[_FRONT[0]]:
        return []
    row = {
        **_described(experiment, options),
        "concurrency": load.get("concurrency"),
        "rate": load.get("rate"),
        **{name: figures[name] for name in (*_SHOWN, *(_DRAWN if _DRAWN[0] in figures else ()))},
        **_interval(experiment.deployment, figures[_FRONT[0]], is_apart=experiment.prefill is not None),
        "estimated_tokens_per_s_per_gpu": float(points.per_gpu(found.lengths)[place]),
        "estimated_tokens_per_s_per_user": float(points.per_user[place]),
        "estimated_ttft_ms": float(points.first_s[place]) * MS_PER_S,
        "command": shlex.join(_command(wanted, options | load)),
    }
    return [Planned(row=row, notes=tuple(result.notes))]


_SHOWN = (
    "requests_per_s", *reversed(_FRONT), "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "good_share",
)  # fmt: skip
#: Figures of a deployment on devices whose energies are known.
_DRAWN = ("power_w_per_gpu", "energy_j_per_output_token")


def _figures(
    experiment: Experiment, cost: StepCost, prefilling: StepCost | None, load: Mapping[str, Any]
) -> tuple[ServingResult, dict[str, Any]]:
    """A run, and its figures by the names of a load curve."""
    if "concurrency" in load:
        point = load_point(experiment, cost, load["concurrency"], count=load.get("requests"), prefilling=prefilling)
        return point.result, dict(point.figures)
    result = experiment.run(cost=cost, prefilling=prefilling)
    figures, tpot = dict(result.summary), result.summary["tpot_p50_ms"]
    figures["output_tokens_per_s_per_gpu"] = (figures["output_tokens_per_s"] or 0.0) / result.outcome.devices
    figures["tokens_per_s_per_user"] = MS_PER_S / tpot if tpot else None
    return result, figures


def _described(experiment: Experiment, options: Mapping[str, Any]) -> dict[str, Any]:
    """What is deployed: devices, replicas, splits, limits; no split of prefill replicas where there are none."""
    served, run = experiment.deployment, experiment.options
    pools = [("", served, run.replicas), ("prefill_", experiment.prefill or served, run.prefill_replicas)]
    row: dict[str, Any] = {"devices": sum(each.parallelism.devices * count for _, each, count in pools)}
    for prefix, each, count in pools:
        row[f"{prefix}replicas"] = count
        split = {name: getattr(each.parallelism, name) for name in _SPLIT}
        split["max_batched_tokens"] = each.engine.max_batched_tokens
        row |= {f"{prefix}{name}": value if count else None for name, value in split.items()}
    row["max_num_seqs"] = served.engine.max_num_seqs
    return {**row, "engine": options["engine"], "weights": options["weights"]}


def _interval(served: Deployment, speed: float, *, is_apart: bool) -> dict[str, float | None]:
    """Between which tokens/s per user nine of ten servers were, of those that the engine's fit left out."""
    found = served.spans("residuals", is_apart=is_apart)
    low, high = (None, None) if found is None else (speed / found.most, speed * found.most)
    return {f"{_FRONT[0]}_low": low, f"{_FRONT[0]}_high": high}


_SPLIT = ("tp", "pp", "dp", "ep")


def _limited(server: Server, deployment: Deployment) -> StepCost:
    """The server's step cost, whose tables are filled, with the limits of ``deployment``."""
    engine = deployment.engine
    return server.cost.limited(max_batched_tokens=engine.max_batched_tokens, max_num_seqs=engine.max_num_seqs)


def _command(wanted: Wanted, options: Mapping[str, Any]) -> Iterator[str]:
    """The words of the command that simulates the point."""
    yield from ("tracelens", "serve", "--model", wanted.model, "--cluster", wanted.cluster)
    usual, asked = ServingConfig(), wanted.asked
    given = {**options, **{name: getattr(asked, name) for name in ("input_tokens", "output_tokens", "backend")}}
    given["slo"] = asked.slo or ASSUMED_SLO
    for name, value in given.items():
        if name == "concurrency":
            yield from ("--sweep", f"concurrency={value}")
        elif name == "tp" or value != getattr(usual, name):
            yield from (f"--{name.replace('_', '-')}", str(value))
