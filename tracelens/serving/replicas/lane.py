"""How the steps of a lane pass.

Levels of detail differ in how a step passes: ``high`` has an event per layer and device and per link transfer,
``medium`` one per device and one per stage's collectives, ``low`` one for all decode steps up to the next change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracelens.serving.costs import DecodeLine, LayerWork, StageWork
from tracelens.serving.event_queue import EventQueue, Process, Resource
from tracelens.serving.replicas.replica_state import ONE_TOKEN, ReplicaState, Step
from tracelens.serving.replicas.running_batch import RunningBatch, sum_of_steps
from tracelens.serving.step_time.exchanges import Exchange


class Lane(RunningBatch):
    """A batch whose steps pass one after the other, as long as there are requests."""

    def __init__(self, replica: ReplicaState) -> None:
        super().__init__(replica)
        self._idle = replica.queue.signal()
        self._is_idle = False
        self._cut = False
        self._timer = replica.queue.timer()
        self._jump: tuple[int, int, int, int] | None = None

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
                self._timer.set(start + sum_of_steps(cut, first, growth))

    def room(self) -> None:
        """Blocks came back."""
        self._stuck = False
        if self._is_idle and self.replica.waiting:
            self._is_idle = False
            self._idle.fire()

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
                # One after the other, so that no step overtakes another between stages
                shared = ports if ports is not None and replica.cost.stays_in_node(index) else ()
                yield from _held([replica.hops[index], *shared], work.handover.time_fs)
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
        growth = line.slope * self.decoding * (replica.advance // ONE_TOKEN)
        shards = replica.cost.deployment.parallelism.stage_devices
        if self._extra:
            # The first step also pays for swapping, so it passes alone
            steps, extra, self._extra = 1, self._extra, 0
            first, growth = first + extra, 0
            log.busy -= extra
        if replica.level == "low":
            self._jump = (start, first, growth, steps)
            self._timer.set(start + sum_of_steps(steps, first, growth))
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
        log.busy += sum_of_steps(steps, first, growth)
        self._end_decode(first, growth, steps)

    def _ahead(self) -> tuple[int, DecodeLine | None]:
        """How many decode steps pass before anything changes, and what they cost."""
        if self._reserved:
            return 0, None
        batch, context = self.decoding, self.context
        self._drop_stale()
        advance = self.replica.advance // ONE_TOKEN
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


def _steps_until(elapsed: int, first: int, growth: int, most: int) -> int:
    """The least number of steps, at least 1 and at most ``most``, that take at least ``elapsed``."""
    if growth == 0:
        steps = -(-elapsed // first) if first else most
    else:
        twice = 2 * first - growth
        steps = (math.isqrt(max(twice * twice + 8 * growth * elapsed, 0)) - twice) // (2 * growth)
    steps = min(max(steps, 1), most)
    while steps < most and sum_of_steps(steps, first, growth) < elapsed:
        steps += 1
    while steps > 1 and sum_of_steps(steps - 1, first, growth) >= elapsed:
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
