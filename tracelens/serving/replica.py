"""One replica: its waiting requests, its cache, and the steps of its lanes.

A step costs time proportional to what changes in it, not to the batch: all sequences of a lane advance together, so
their contexts are one sum, their ends a heap of step numbers, and who needs a new block when is a count per step number
modulo the block size.

Levels of detail differ in how a step passes: ``high`` has an event per layer and device and per link transfer,
``medium`` one per device and one per stage's collectives, ``low`` one for all decode steps up to the next change.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias

from tracelens.errors import UsageError
from tracelens.event_queue import EventQueue, Process, Resource
from tracelens.serving.cache import BlockPool
from tracelens.serving.costs import DecodeLine, LayerWork, StageWork, StepCost
from tracelens.serving.log import RequestLog, StepLog
from tracelens.serving.requests import Requests
from tracelens.serving.step_time.exchanges import Exchange

LEVELS = ("high", "medium", "low")
PlanFunction: TypeAlias = Callable[["Lane"], tuple[list[tuple[int, int]], bool]]
# Tokens per step as a fraction of this, so that sums of steps stay whole numbers.
_ONE = 1 << 20


class Conduct(NamedTuple):
    """How a replica runs: what its steps take on, and in how much detail they pass.

    ``level`` is high, medium or low; ``contention`` makes collectives and hand-overs wait for the devices' ports.
    """

    plan: PlanFunction
    level: str = "medium"
    contention: bool = False
    order: str = "fcfs"
    series: bool = False


class Listeners(NamedTuple):
    """Who is told: ``finished(replica, request)`` when an answer is complete, ``hand_over``, where given, when a prompt
    is complete that decodes elsewhere, ``record`` after each step.
    """

    finished: Callable[[Replica, int], None]
    hand_over: Callable[[Replica, int], None] | None = None
    record: Callable[[Step], None] | None = None


class Replica:
    """A copy of the model with its own queue, cache and lanes."""

    def __init__(
        self, queue: EventQueue, cost: StepCost, requests: Requests, log: RequestLog, conduct: Conduct, to: Listeners
    ) -> None:
        engine, parallel = cost.deployment.engine, cost.deployment.parallelism
        self.queue, self.cost, self.requests, self.log = queue, cost, requests, log
        self.plan, self.level, self.contention, order, series = conduct
        self.finished, self.hand_over, self.record = to
        self.steps = StepLog(series=[] if series else None)
        total = cost.pool_tokens() // engine.block_tokens
        self.pool = BlockPool(total, engine.block_tokens, requests.piece_tokens)
        self.watermark = round(total * engine.watermark)
        self.waiting: Waiting = Waiting(self._key(order))
        self.done: dict[int, int] = {}
        self.kept: set[int] = set()
        self.outstanding = 0
        self.stages = [queue.resource(f"stage {index}") for index in range(parallel.pp)]
        self.ports = [
            [queue.resource(f"port {stage}.{rank}") for rank in range(parallel.stage_devices)]
            for stage in range(parallel.pp)
        ]
        speculation = cost.deployment.speculation
        self.advance = _ONE if speculation is None else round(speculation.tokens_per_step * _ONE)
        self.swap_fs_per_token = self._swap_fs_per_token() if engine.preemption == "swap" else 0
        self.lanes = [Lane(self) for _ in range(parallel.pp)]
        for lane in self.lanes:
            queue.start(lane.run())

    def enqueue(self, request: int, *, kept: bool = False) -> None:
        """A request arrives now; ``kept``: its prompt was computed elsewhere and its cache came with it."""
        requests = self.requests
        tokens = requests.input_tokens[request] + requests.output_tokens[request]
        if self.pool.blocks(tokens) > self.pool.total:
            self.log.rejected[request] = (
                f"{tokens} tokens do not fit a key-value cache of {self.pool.total * self.pool.block_tokens}"
            )
            self.finished(self, request)
            return
        self.outstanding += 1
        if kept:
            self.kept.add(request)
            self.done[request] = 1
        self.waiting.append(request)
        for lane in self.lanes:
            lane.notice()

    @property
    def passes_runs(self) -> bool:
        """Whether many decode steps may pass as one: nobody looks between them, and each yields whole tokens."""
        is_watched = self.record is not None or self.steps.series is not None or self.level == "high"
        return len(self.lanes) == 1 and not is_watched and self.advance % _ONE == 0

    def cached_pieces(self, pieces: Sequence[int]) -> int:
        """How many leading pieces of a prompt the cache holds."""
        return self.pool.cached(pieces)

    def _key(self, order: str) -> Callable[[int], Any] | None:
        requests = self.requests
        if order == "fcfs":
            return None
        if order == "sjf":
            return lambda request: (requests.input_tokens[request] + requests.output_tokens[request], request)
        if order == "priority":
            if not requests.priority:
                raise UsageError("order priority needs requests with a priority")
            return lambda request: (requests.priority[request], request)
        raise UsageError.unknown("order", order, ("fcfs", "sjf", "priority"))

    def _swap_fs_per_token(self) -> int:
        rate = self.cost.system.device.pcie_gb_s
        if rate is None:
            raise UsageError(f"{self.cost.system.device.name}: swapping needs its PCIe rate, which is unknown")
        devices = self.cost.deployment.parallelism.devices
        return round(self.cost.kv_bytes_per_token() / devices / (rate * 1e3) * 1e9)


class Waiting:
    """Requests in line: first come, first served, or the smallest key first; preempted ones come back to the front."""

    __slots__ = ("_front", "_heap", "_key", "_line")

    def __init__(self, key: Callable[[int], Any] | None) -> None:
        self._key = key
        self._front: deque[int] = deque()
        self._line: deque[int] = deque()
        self._heap: list[tuple[Any, int]] = []

    def __len__(self) -> int:
        return len(self._front) + len(self._line) + len(self._heap)

    @property
    def is_ordered(self) -> bool:
        """Whether a newcomer can overtake."""
        return self._key is not None

    def append(self, request: int) -> None:
        if self._key is None:
            self._line.append(request)
        else:
            heappush(self._heap, (self._key(request), request))

    def put_back(self, request: int) -> None:
        self._front.appendleft(request)

    def first(self) -> int:
        if self._front:
            return self._front[0]
        return self._heap[0][1] if self._heap else self._line[0]

    def take(self) -> int:
        if self._front:
            return self._front.popleft()
        return heappop(self._heap)[1] if self._heap else self._line.popleft()


class Step(NamedTuple):
    """What one step of a lane did, for whoever records steps."""

    start: int
    end: int
    tokens: int
    batch: int
    context: int
    chunks: list[tuple[int, int]]
    stages: tuple[StageWork, ...]


class Lane:
    """A micro-batch: the whole running batch where there is no pipeline.

    ``decoding`` sequences attend to ``context`` keys in all in the coming decode step, which is number ``number``.
    """

    def __init__(self, replica: Replica) -> None:
        engine, parallel = replica.cost.deployment.engine, replica.cost.deployment.parallelism
        self.replica, self.pool, self.log, self.queue = replica, replica.pool, replica.log, replica.queue
        self.limit = -(-engine.max_num_seqs // parallel.pp)
        self.budget = engine.max_batched_tokens
        self.decoding = 0
        self.context = 0
        self.number = 0
        self.partial: dict[int, int] = {}
        self._members: dict[int, tuple[int, int, int, int]] = {}
        self._ends: list[tuple[int, int, tuple[int, int, int, int]]] = []
        self._phases = [0] * engine.block_tokens
        self._grows: dict[int, bool] = {}
        self._hits: dict[int, int] = {}
        self._fresh: dict[int, float] = {}
        self._last_decode = 0
        self._reserved = False
        self._stuck = False
        self._extra = 0
        self._idle = replica.queue.signal()
        self._is_idle = False
        self._cut = False
        self._timer = replica.queue.timer()
        self._jump: tuple[int, int, int, int] | None = None

    def __len__(self) -> int:
        return len(self._members) + len(self.partial)

    def notice(self) -> None:
        """Something arrived: wake up, or end a jump at the next step's end."""
        if self.replica.waiting.is_ordered or len(self.replica.waiting) == 1:
            self._stuck = False
        if self._is_idle:
            self._is_idle = False
            self._idle.fire()
        elif self._stuck:
            return
        elif self._jump is None:
            self._cut = True
        else:
            start, first, growth, steps = self._jump
            elapsed = self.queue.now - start
            cut = _steps_until(elapsed, first, growth, steps)
            if cut < steps:
                self._jump = (start, first, growth, cut)
                self._timer.set(start + _sum(cut, first, growth))

    def room(self) -> None:
        """Blocks came back."""
        self._stuck = False
        if self._is_idle and self.replica.waiting:
            self._is_idle = False
            self._idle.fire()

    def first_waiting(self) -> int | None:
        """Tokens that the next waiting prompt lacks; None when nothing waits."""
        waiting = self.replica.waiting
        if not waiting:
            return None
        request = waiting.first()
        return 0 if request in self.replica.kept else self._prompt(request) - self._cached(request)

    def admit(self, *, whole: bool = False) -> int | None:
        """See ``policies.base.LaneView``."""
        replica, pool = self.replica, self.pool
        if not self._has_place():
            return None
        request = replica.waiting.first()
        requests = replica.requests
        whole = whole or replica.advance != _ONE
        prompt = self._prompt(request)
        kept = request in replica.kept
        tokens = requests.input_tokens[request] + requests.output_tokens[request] if whole else prompt
        pieces = requests.pieces[request] if requests.pieces else ()
        found = pool.cached(pieces)
        blocks = pool.blocks(tokens) - len(pieces) * pool.piece_blocks
        # A sequence that joins a step whose blocks are reserved brings the one for its next token
        missing = (len(pieces) - found) * pool.piece_blocks + kept
        watermark = replica.watermark if len(self) else 0
        if blocks + missing + pool.idle_among(pieces[:found]) + watermark > pool.available:
            return None
        replica.waiting.take()
        if pieces:
            pool.hold(pieces)
        pool.take(blocks)
        self._grows[request] = not whole
        if self.log.scheduled[request] < 0:
            self.log.scheduled[request] = self.queue.now
        if kept:
            self._resume(request, prompt)
            return 0
        cached = min(found * pool.piece_blocks * pool.block_tokens, prompt - 1)
        self._hits[request] = cached
        replica.steps.cached_tokens += cached
        self.partial[request] = prompt - cached
        return prompt - cached

    def make_room(self) -> bool:
        """See ``policies.base.LaneView``."""
        if self._reserved:
            return False
        preempted = False
        phases, slot = self._phases, self.number % len(self._phases)
        while phases[slot] > self.pool.available:
            preempted = True
            if self.partial:
                self._preempt_partial()
            else:
                self._preempt_decoding()
        self.pool.take(phases[slot])
        self._reserved = True
        if preempted:
            self._stuck = False
        return preempted

    def _has_place(self) -> bool:
        """Whether a request waits for which this lane, the shortest one, has a sequence left."""
        lanes = self.replica.lanes
        if not self.replica.waiting or len(self) >= self.limit:
            return False
        return len(lanes) == 1 or len(self) <= min(len(lane) for lane in lanes)

    def _resume(self, request: int, prompt: int) -> None:
        """``request`` decodes on with the cache that was kept for it."""
        replica, preempted = self.replica, self.log.preempted[request]
        replica.kept.discard(request)
        if replica.swap_fs_per_token and preempted:
            self._extra += prompt * replica.swap_fs_per_token
        # Without others to decode, there is nothing to reserve but its own next block
        self._reserved = self._reserved or not self.decoding
        since = self.log.last[request] if preempted else self.log.first[request]
        self._join(request, prompt, replica.done[request], since)

    def run(self) -> Process:
        """The lane's life: plan a step, let it pass, account for it."""
        replica, queue = self.replica, self.queue
        looks_ahead = replica.passes_runs
        chunks: list[tuple[int, int]]
        while True:
            if self.decoding and not self.partial and (self._stuck or not replica.waiting):
                steps, line = self._ahead() if looks_ahead else (0, None)
                if steps > 0 and line is not None:
                    yield from self._run_decodes(steps, line)
                    continue
                self.make_room()
                chunks, decode = [], self.decoding > 0
                if not decode:
                    continue
            else:
                chunks, decode = self._plan()
                if not chunks and not decode:
                    self._is_idle = True
                    yield self._idle
                    continue
            if chunks:
                yield from self._run_mixed(chunks, decode)
            else:
                yield from self._run_decode(queue)

    def _plan(self) -> tuple[list[tuple[int, int]], bool]:
        """What the policy takes into the next step; a step without decoding gives back what was reserved for it."""
        chunks, decode = self.replica.plan(self)
        self._stuck = not chunks and bool(self.replica.waiting)
        if chunks and not decode and self._reserved:
            self.pool.give(self._phases[self.number % len(self._phases)])
            self._reserved = False
        return chunks, decode

    def _run_decode(self, queue: EventQueue) -> Process:
        """One decode step in all its parts."""
        replica, cost = self.replica, self.replica.cost
        start, batch, context = queue.now, self.decoding, self.context
        works = cost.decode_work(batch, context)
        yield from self._pass(works)
        if replica.record is not None:
            replica.record(Step(start, queue.now, batch * cost.queries, batch, context, [], works))
        self._end_decode(queue.now - start, 0, 1)

    def _run_mixed(self, chunks: list[tuple[int, int]], decode: bool) -> Process:
        replica, cost, queue = self.replica, self.replica.cost, self.queue
        start = queue.now
        batch, context = (self.decoding, self.context) if decode else (0, 0)
        pairs, prompt_tokens, ending, started = [], 0, 0, 0
        for request, tokens in chunks:
            lacking = self.partial[request]
            past = self._prompt(request) - lacking
            pairs.append((tokens, past))
            prompt_tokens += tokens
            ending += tokens == lacking
            started += past == self._hits[request]
        total = prompt_tokens + batch * cost.queries
        rows = ending + batch * cost.queries
        if replica.level == "high" or replica.record is not None or len(replica.lanes) > 1:
            works = cost.mixed(total, pairs, rows, started, batch, context)
            yield from self._pass(works)
            if replica.record is not None:
                replica.record(Step(start, queue.now, total, batch, context, pairs, works))
        else:
            compute, exchange = cost.mixed_time(total, pairs, rows, started, batch, context)
            shards = cost.deployment.parallelism.stage_devices
            extra, self._extra = self._extra, 0
            yield compute + extra if shards == 1 else (compute + extra, shards)
            if exchange:
                yield exchange
                replica.steps.exchange_events += 1
            replica.steps.compute_events += shards
            replica.steps.busy += compute + exchange
        replica.steps.prefill_tokens += prompt_tokens
        if decode:
            self._end_decode(queue.now - start, 0, 1)
        else:
            self._count_steps(1, queue.now - start, 0, 0, 0)
        for request, tokens in chunks:
            if request in self.partial:
                self.partial[request] -= tokens
                if not self.partial[request]:
                    self._end_prompt(request)

    def _pass(self, works: tuple[StageWork, ...]) -> Process:
        """The stages one after the other; each is held by one lane at a time."""
        replica, steps = self.replica, self.replica.steps
        several = len(replica.lanes) > 1
        shards = replica.cost.deployment.parallelism.stage_devices
        for index, work in enumerate(works):
            if several:
                yield replica.stages[index]
            extra, self._extra = self._extra, 0
            ports = replica.ports[index] if replica.contention else None
            if replica.level == "high":
                for layer in work.layers:
                    yield from self._pass_layers(layer, extra, ports)
                    extra = 0
            else:
                compute = work.compute_fs + extra
                yield compute if shards == 1 else (compute, shards)
                steps.compute_events += shards
                exchange_fs = work.exchange_fs
                if exchange_fs:
                    steps.exchange_events += 1
                    if ports is not None:
                        yield from _held(ports, exchange_fs)
                    else:
                        yield exchange_fs
            steps.busy += work.compute_fs + work.exchange_fs
            if several:
                replica.stages[index].release()
            if work.handover is not None:
                if ports is not None:
                    yield from _held(ports[:1], work.handover.time_fs)
                else:
                    yield work.handover.time_fs
                steps.transfer_events += 1

    def _pass_layers(self, layer: LayerWork, extra: int, ports: list[Resource] | None) -> Process:
        """Layer by layer, transfer by transfer; ``extra`` is for the first of them."""
        shards = self.replica.cost.deployment.parallelism.stage_devices
        for _ in range(layer.count):
            compute = layer.compute_fs + extra
            extra = 0
            yield compute if shards == 1 else (compute, shards)
            for exchange in layer.exchanges:
                if ports is not None:
                    yield from self._contended_steps(exchange, ports)
                else:
                    pair = (exchange.step_fs, exchange.transfers)
                    for _ in range(exchange.steps):
                        yield pair
        steps = self.replica.steps
        steps.compute_events += layer.count * shards
        moved = sum(exchange.steps * exchange.transfers for exchange in layer.exchanges)
        steps.transfer_events += layer.count * moved

    def _contended_steps(self, exchange: Exchange, ports: list[Resource]) -> Process:
        """Every transfer of a step holds the port that it leaves by; the step ends with its last transfer."""
        for _ in range(exchange.steps):
            left = [exchange.transfers]
            done = self.queue.signal()
            for index in range(exchange.transfers):
                self.queue.start(_transfer(ports[index % len(ports)], exchange.step_fs, left, done))
            yield done

    def _run_decodes(self, steps: int, line: DecodeLine) -> Process:
        """``steps`` decode steps of one batch: an event each, or all at once; an arrival may cut them short."""
        queue, replica, log = self.queue, self.replica, self.replica.steps
        start = queue.now
        first = line.fixed + line.slope * self.context
        growth = line.slope * self.decoding * (replica.advance // _ONE)
        shards = replica.cost.deployment.parallelism.stage_devices
        if self._extra:
            # The first step also pays for swapping, so it passes alone
            steps, extra, self._extra = 1, self._extra, 0
            first, growth = first + extra, 0
            log.busy -= extra
        if replica.level == "low":
            self._jump = (start, first, growth, steps)
            self._timer.set(start + _sum(steps, first, growth))
            yield self._timer
            steps = self._jump[3]
            self._jump = None
            log.compute_events += shards
        else:
            duration, exchange, done = first, line.exchange, 0
            self._cut = False
            while done < steps and not self._cut:
                if shards == 1:
                    yield duration
                else:
                    yield duration - exchange, shards
                    if exchange:
                        yield exchange
                duration += growth
                done += 1
            steps = done
            log.compute_events += shards * steps
            log.exchange_events += steps if exchange else 0
        self._grow(steps)
        log.busy += _sum(steps, first, growth)
        self._end_decode(first, growth, steps)

    def _ahead(self) -> tuple[int, DecodeLine | None]:
        """How many decode steps pass before anything changes, and what they cost."""
        if self._reserved:
            return 0, None
        batch, context = self.decoding, self.context
        self._drop_stale()
        advance = self.replica.advance // _ONE
        line = self.replica.cost.decode_line(batch, context)
        steps = min(self._ends[0][0] - self.number, -(-(line.high - context) // (batch * advance)))
        available, phases = self.pool.available, self._phases
        if -(-steps // len(phases)) * batch > available:
            possible, size = 0, len(phases)
            while possible < steps:
                available -= phases[(self.number + possible) % size]
                if available < 0:
                    break
                possible += 1
            steps = possible
        return steps, line

    def _grow(self, steps: int) -> None:
        """Takes the blocks that ``steps`` decode steps need."""
        phases, size = self._phases, len(self._phases)
        cycles, rest = divmod(steps, size)
        need = sum(phases[(self.number + index) % size] for index in range(rest))
        if cycles:
            need += cycles * sum(phases)
        self.pool.take(need)

    def _end_decode(self, first: int, growth: int, steps: int) -> None:
        """Accounts for ``steps`` decode steps that ended now, of which the first took ``first``."""
        replica, log, now = self.replica, self.replica.steps, self.queue.now
        batch = self.decoding
        before = (self.number * replica.advance) >> 20
        after = ((self.number + steps) * replica.advance) >> 20
        duration = _sum(steps, first, growth)
        first_end = now - duration + first
        old = batch - len(self._fresh)
        if old:
            log.gap(first_end - self._last_decode, old)
        if self._fresh:
            for time in self._fresh.values():
                log.gap(first_end - time, 1)
            self._fresh.clear()
        if steps > 1:
            log.gap(first + growth, batch, growth, steps - 1)
        together = after - before - steps
        if together > 0:
            log.gap(0, together * batch)
        self._count_steps(steps, first, growth, batch, self.context)
        self._last_decode = now
        self.number += steps
        self.context += batch * (after - before)
        self._reserved = False
        ends = self._ends
        while ends and ends[0][0] <= self.number:
            _, request, member = heappop(ends)
            if self._members.get(request) is member:
                self._leave(request)
                self.log.last[request] = now
                self._complete(request)

    def _count_steps(self, steps: int, first: int, growth: int, batch: int, context: int) -> None:
        """Sums over steps; the cache's fill times its duration is a sum of products of two arithmetic series."""
        log = self.replica.steps
        log.steps += steps
        if batch:
            log.decode_steps += steps
            log.decoded += steps * batch
            if steps == 1:
                log.context_time += context * first
            else:
                ones, squares = steps * (steps - 1) // 2, (steps - 1) * steps * (2 * steps - 1) // 6
                step_growth = batch * (self.replica.advance // _ONE)
                log.context_time += (
                    steps * context * first + ones * (context * growth + step_growth * first)
                ) + squares * step_growth * growth
        if log.series is not None:
            log.series.append(
                (self.queue.now, batch, len(self.replica.waiting), len(self.partial), context, self.pool.in_use)
            )

    def _end_prompt(self, request: int) -> None:
        """The prompt is complete: its last step yields a token."""
        replica, now = self.replica, self.queue.now
        prompt = self._prompt(request)
        done = replica.done.get(request, 0) + 1
        del self.partial[request]
        self._hits.pop(request, None)
        if self.log.first[request] < 0:
            self.log.first[request] = now
        if done > 1:  # what it had produced was computed again
            replica.steps.gap(now - self.log.last[request], 1)
        left = replica.requests.output_tokens[request] - done
        if left == 0 or replica.hand_over is not None:
            self._release(request, prompt)
            self.log.last[request] = now
            if left == 0:
                self._complete(request)
            elif replica.hand_over is not None:
                replica.outstanding -= 1
                replica.hand_over(replica, request)
            return
        self._join(request, prompt, done, now)

    def _join(self, request: int, prompt: int, done: int, since: float) -> None:
        """``request`` decodes from the next step on; ``done`` tokens are out, the last of them ``since``."""
        replica = self.replica
        left = replica.requests.output_tokens[request] - done
        before = (self.number * replica.advance) >> 20
        end = -(-((before + left) << 20) // replica.advance)
        member = (self.number, prompt, before, done)
        self._members[request] = member
        heappush(self._ends, (end, request, member))
        self.context += prompt + 1
        self.decoding += 1
        if self._grows[request]:
            size = len(self._phases)
            self._phases[(self.number - prompt) % size] += 1
            if self._reserved and prompt % size == 0:
                self.pool.take(1)
        self._fresh[request] = since

    def _leave(self, request: int) -> int:
        """Takes a sequence out; returns how many tokens it has produced in all."""
        joined, prompt, before, done = self._members.pop(request)
        decoded = ((self.number * self.replica.advance) >> 20) - before
        self.context -= prompt + 1 + decoded
        self.decoding -= 1
        if self._grows[request]:
            self._phases[(joined - prompt) % len(self._phases)] -= 1
        self._release(request, prompt + self.number - joined)
        return done + decoded

    def _complete(self, request: int) -> None:
        replica = self.replica
        replica.outstanding -= 1
        replica.done.pop(request, None)
        replica.finished(replica, request)

    def _release(self, request: int, tokens: int) -> None:
        requests = self.replica.requests
        pieces = requests.pieces[request] if requests.pieces else ()
        if not self._grows.pop(request):
            tokens = requests.input_tokens[request] + requests.output_tokens[request]
        self.pool.give(self.pool.blocks(tokens) - len(pieces) * self.pool.piece_blocks)
        if pieces:
            self.pool.drop(pieces)
        for lane in self.replica.lanes:
            lane.room()

    def _preempt_partial(self) -> None:
        request = next(reversed(self.partial))
        del self.partial[request]
        self._hits.pop(request, None)
        self._release(request, self._prompt(request))
        self._give_up(request)

    def _preempt_decoding(self) -> None:
        request = next(reversed(self._members))
        replica = self.replica
        self.log.last[request] = self._fresh.pop(request, self._last_decode)
        replica.done[request] = self._leave(request)
        if replica.swap_fs_per_token:
            replica.kept.add(request)
            self._extra += self._prompt(request) * replica.swap_fs_per_token
        self._give_up(request)

    def _give_up(self, request: int) -> None:
        self.log.preempted[request] += 1
        self.replica.waiting.put_back(request)

    def _prompt(self, request: int) -> int:
        """Tokens whose keys must be computed before the request can decode.

        After recomputing, those that it had produced are among them; where the cache was kept, all but the last.
        """
        replica = self.replica
        done = replica.done.get(request, 0)
        if request in replica.kept:
            done -= 1
        return replica.requests.input_tokens[request] + done

    def _cached(self, request: int) -> int:
        requests = self.replica.requests
        if not requests.pieces:
            return 0
        found = self.pool.cached(requests.pieces[request])
        return min(found * self.pool.piece_blocks * self.pool.block_tokens, self._prompt(request) - 1)

    def _drop_stale(self) -> None:
        ends = self._ends
        while ends and self._members.get(ends[0][1]) is not ends[0][2]:
            heappop(ends)
        if len(ends) > 4 * len(self._members) + 64:
            self._ends = [end for end in ends if self._members.get(end[1]) is end[2]]
            heapify(self._ends)


def _sum(steps: int, first: int, growth: int) -> int:
    """first + (first + growth) + ... of ``steps`` terms."""
    return steps * first + growth * (steps * (steps - 1) // 2)


def _steps_until(elapsed: int, first: int, growth: int, most: int) -> int:
    """The least number of steps, at least 1 and at most ``most``, that take at least ``elapsed``."""
    if growth == 0:
        steps = -(-elapsed // first) if first else most
    else:
        twice = 2 * first - growth
        steps = (math.isqrt(max(twice * twice + 8 * growth * elapsed, 0)) - twice) // (2 * growth)
    steps = min(max(steps, 1), most)
    while steps < most and _sum(steps, first, growth) < elapsed:
        steps += 1
    while steps > 1 and _sum(steps - 1, first, growth) >= elapsed:
        steps -= 1
    return steps


def _held(ports: Sequence[Resource], duration: int) -> Process:
    """Takes all ports, in one order so that overlapping groups cannot wait for each other, and holds them."""
    for port in ports:
        yield port
    yield duration
    for port in ports:
        port.release()


def _transfer(port: Resource, duration: int, left: list[int], done: Any) -> Process:
    yield port
    yield duration
    port.release()
    left[0] -= 1
    if not left[0]:
        done.fire()
