"""How the steps of a lane pass, as a SimPy process.

Levels of detail differ in how a step passes: ``high`` has an event per layer and device and per link transfer,
``medium`` one per device and one per stage's collectives, ``low`` one for all decode steps up to the next change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import simpy

from tracelens.predict.serving.costs import CollectiveSteps, LayerWork, StageWork
from tracelens.predict.serving.replica_state import ONE_TOKEN, Process, ReplicaState, ServerPart, Step
from tracelens.predict.serving.running_batch import RunningBatch, sum_of_steps

#: What a step computes, as ``StepCost.mixed`` takes it.
Mix: TypeAlias = tuple[int, list[tuple[int, int]], int, int, int, int]
#: Decode steps of one batch: how many, how long the first takes, by how much each next one grows, and how much of each
#: is exchanges.
Run: TypeAlias = tuple[int, int, int, int]


class SequentialLane(RunningBatch):
    """A batch whose steps pass one after the other, as long as there are requests."""

    __slots__ = ("_cut", "_idle", "_layers", "_leap", "_passes_parts", "_process", "_shards", "idle_since")

    def __init__(self, replica: ReplicaState) -> None:
        super().__init__(replica)
        self._shards = replica.cost.deployment.parallelism.stage_devices
        self._passes_parts = replica.level == "high" or replica.record is not None or len(replica.stages) > 1
        self._layers = len(replica.cost.layers)
        self._cut = False
        self._idle: simpy.Event | None = None
        self._leap: tuple[int, int, int, int] | None = None
        self._process: simpy.Process | None = None
        #: When it last had nothing to do.
        self.idle_since = 0

    def start(self) -> None:
        """Its life begins now, after what is already due."""

        def begin(_: simpy.Event) -> None:
            self._process = self.queue.process(self.run())

        self.queue.after(0).callbacks.append(begin)

    def notice(self) -> None:
        """Something arrived: wake up, or let decode steps end with the one that passes now."""
        if len(self.waiting) == 1 or self.waiting.is_ordered:
            self._stuck = False
        if self._idle is not None:
            self._wake(self._idle)
        elif not self._stuck and not self._cut:
            self._cut = True
            if self._leap is not None and self._process is not None:
                start, first, growth, steps = self._leap
                cut = steps_until(self.queue.now - start, first, growth, steps)
                if cut < steps:
                    self._leap = (start, first, growth, cut)
                    self._process.interrupt()

    def room(self) -> None:
        """Blocks came back."""
        self._stuck = False
        if self._idle is not None and self.waiting:
            self._wake(self._idle)

    def _wake(self, idle: simpy.Event) -> None:
        self._idle = None
        self.queue.processed += 1
        idle.succeed()

    def run(self) -> Process:
        """The lane's life."""
        while True:
            yield from self._step()

    def _step(self) -> Process:
        """Plans a step, or some that follow each other, lets it pass, accounts for it."""
        if self.decoding and not self.partial and (self._stuck or not self.waiting):
            if self.replica.passes_runs and (run := self._ahead()) is not None:
                yield from self._run_decodes(run)
                return
            self.make_room()
            if self.decoding:
                yield from self._run_decode()
            return
        chunks, decode = self._plan()
        if chunks:
            yield from self._run_mixed(chunks, decode)
        elif decode:
            yield from self._run_decode()
        else:
            self.idle_since = self.queue.now
            self._idle = self.queue.event()
            yield self._idle

    def _plan(self) -> tuple[list[tuple[int, int]], bool]:
        """What the policy takes into the next step; a step without decoding gives back what was reserved for it."""
        chunks, decode = self.replica.plan(self)
        self._stuck = not chunks and bool(self.waiting)
        if chunks and not decode and self._reserved:
            self.pool.give(self._phases[self.number % len(self._phases)])
            self._reserved = False
        return chunks, decode

    def _run_decode(self) -> Process:
        """One decode step."""
        replica, cost, queue = self.replica, self.replica.cost, self.queue
        start, batch, context = queue.now, self.decoding, self.context
        if self._passes_parts or replica.contention:
            works = cost.decode_work(batch, context)
            yield from self._pass(works)
            if replica.record is not None:
                replica.record(Step(start, queue.now, batch * cost.queries, batch, context, [], works))
        else:
            line = cost.decode_line(batch, context)
            yield from self._pass_whole(line.fixed - line.exchange + line.slope * context, line.exchange)
        self._end_decode(queue.now - start, 0, 1, queue.now - start)

    def _run_mixed(self, chunks: list[tuple[int, int]], decode: bool) -> Process:
        replica, queue = self.replica, self.queue
        start, mix = queue.now, self._mix(chunks, decode)
        if self._passes_parts:
            works = replica.cost.mixed(*mix)
            yield from self._pass(works)
            if replica.record is not None:
                tokens, pairs, _, _, batch, context = mix
                replica.record(Step(start, queue.now, tokens, batch, context, pairs, works))
        else:
            yield from self._pass_whole(*replica.cost.mixed_time(*mix))
        self._end_mixed(chunks, decode, queue.now - start)

    def _mix(self, chunks: list[tuple[int, int]], decode: bool) -> Mix:
        """What a step of ``chunks``, and of the decoding sequences where ``decode``, computes."""
        partial, hits, redone, lengths = self.partial, self._hits, self.replica.done, self.requests.input_tokens
        batch, context = (self.decoding, self.context) if decode else (0, 0)
        rows = batch * self.replica.cost.queries
        total, started, pairs = rows, 0, []
        for request, tokens in chunks:
            lacking = partial[request]
            past = (self._prompt(request) if redone else lengths[request]) - lacking
            pairs.append((tokens, past))
            total += tokens
            rows += tokens == lacking
            started += past == (hits.get(request, 0) if hits else 0)
        return total, pairs, rows, started, batch, context

    def _end_mixed(self, chunks: list[tuple[int, int]], decode: bool, duration: int) -> None:
        """Accounts for a step that ended now."""
        log = self.steps
        if decode:
            self._end_decode(duration, 0, 1, duration)
        else:
            log.prompt_steps += 1
            if log.series is not None:
                self._log_series(0, 0)
        self._end_chunks(chunks)

    def _end_chunks(self, chunks: list[tuple[int, int]]) -> None:
        log, partial = self.steps, self.partial
        for request, tokens in chunks:
            log.prefill_tokens += tokens
            if partial[request] == tokens:
                self._end_prompt(request)
            else:
                partial[request] -= tokens

    def _pass_whole(self, compute: int, exchange: int) -> Process:
        """A step of one stage: its compute on every device, then its exchanges."""
        log, shards = self.steps, self._shards
        extra, self._extra = self._extra, 0
        if self.replica.jitter is not None:
            compute = self.replica.jitter.slowest(compute, shards, self._layers)
        yield self.queue.after(compute + extra, shards)
        if exchange:
            yield self.queue.after(exchange)
            log.exchange_events += 1
        log.compute_events += shards
        log.busy += compute + exchange

    def _pass(self, works: tuple[StageWork, ...]) -> Process:
        """The stages one after the other; each is held by one lane at a time."""
        replica, steps, queue = self.replica, self.steps, self.queue
        several = len(replica.lanes) > 1
        shards = replica.cost.deployment.parallelism.stage_devices
        for index, work in enumerate(works):
            if several:
                yield replica.stages[index].take()
            extra, self._extra = self._extra, 0
            ports = replica.ports[index] if replica.contention else None
            if replica.level == "high":
                for layer in work.layers:
                    yield from self._pass_layers(layer, extra, ports)
                    extra = 0
            else:
                compute = work.compute_fs + extra
                if replica.jitter is not None:
                    compute = replica.jitter.slowest(compute, shards, sum(layer.count for layer in work.layers))
                yield queue.after(compute, shards)
                steps.compute_events += shards
                exchange_fs = work.exchange_fs
                if exchange_fs:
                    steps.exchange_events += 1
                    if ports is not None:
                        yield from self._hold(ports, exchange_fs)
                    else:
                        yield queue.after(exchange_fs)
            steps.busy += work.compute_fs + work.exchange_fs
            if several:
                replica.stages[index].release()
            if work.handover is not None:
                # One after the other, so that no step overtakes another between stages
                shared = ports if ports is not None and replica.cost.stays_in_node(index) else ()
                yield from self._hold([replica.hops[index], *shared], work.handover.time_fs)
                steps.transfer_events += 1

    def _pass_layers(self, layer: LayerWork, extra: int, ports: list[ServerPart] | None) -> Process:
        """Layer by layer, transfer by transfer; ``extra`` is for the first of them."""
        shards, jitter = self.replica.cost.deployment.parallelism.stage_devices, self.replica.jitter
        for _ in range(layer.count):
            compute = layer.compute_fs + extra
            extra = 0
            if jitter is not None:
                compute = jitter.slowest(compute, shards, 1)
            yield self.queue.after(compute, shards)
            for exchange in layer.exchanges:
                if ports is not None:
                    yield from self._contended_steps(exchange, ports)
                else:
                    for _ in range(exchange.steps):
                        yield self.queue.after(exchange.step_fs, exchange.transfers)
        steps = self.steps
        steps.compute_events += layer.count * shards
        moved = sum(exchange.steps * exchange.transfers for exchange in layer.exchanges)
        steps.transfer_events += layer.count * moved

    def _contended_steps(self, exchange: CollectiveSteps, ports: list[ServerPart]) -> Process:
        """Every transfer of a step holds the port that it leaves by; the step ends with its last transfer."""
        for _ in range(exchange.steps):
            left = exchange.transfers
            done = self.queue.event()

            def transfer(port: ServerPart, done: simpy.Event = done) -> Process:
                nonlocal left
                yield from self._hold([port], exchange.step_fs)
                left -= 1
                if not left:
                    done.succeed()

            for index in range(exchange.transfers):
                self.queue.start(transfer(ports[index % len(ports)]))
            self.queue.processed += 1
            yield done

    def _hold(self, parts: Sequence[ServerPart], duration: int) -> Process:
        """Takes all, in one order so that overlapping groups cannot wait for each other, and holds them."""
        for part in parts:
            yield part.take()
        yield self.queue.after(duration)
        for part in parts:
            part.release()

    def _run_decodes(self, run: Run) -> Process:
        """Decode steps of one batch; an arrival may cut them short. Where the replica leaps, they pass in one wait."""
        queue, log, shards = self.queue, self.steps, self._shards
        most, first, growth, exchange = run
        self._cut = False
        if self.replica.leaps:
            start, steps, duration = queue.now, most, most * first + growth * (most * (most - 1) // 2)
            self._leap = (start, first, growth, most)
            try:
                yield queue.timeout(duration)
            except simpy.Interrupt:
                steps = self._leap[3]
                duration = sum_of_steps(steps, first, growth)
                yield queue.timeout(start + duration - queue.now)
            self._leap = None
        else:
            steps = duration = 0
            while steps < most and not self._cut:
                step = first + growth * steps
                yield queue.timeout(step - exchange)
                if exchange:
                    yield queue.timeout(exchange)
                duration += step
                steps += 1
        if self.replica.level == "low":
            queue.processed += 1
            log.compute_events += shards
        else:
            queue.processed += steps * (shards + (shards > 1 and exchange > 0))
            log.compute_events += shards * steps
            log.exchange_events += steps if exchange else 0
        self._grow(steps)
        log.busy += duration
        self._end_decode(first, growth, steps, duration)

    def _ahead(self) -> Run | None:
        """The decode steps that pass before anything changes; None where room must be made for the next one."""
        if self._reserved:
            return None
        if len(self._ends) > len(self._members):
            self._drop_stale()
        replica, batch, context, number = self.replica, self.decoding, self.context, self.number
        growing = batch * (replica.advance // ONE_TOKEN)
        line = replica.cost.decode_line(batch, context)
        steps = -((context - line.high) // growing)
        if self._ends[0][0] - number < steps:
            steps = self._ends[0][0] - number
        available, phases, size = self.pool.available, self._phases, len(self._phases)
        if -(-steps // size) * batch > available:
            possible = 0
            while possible < steps:
                available -= phases[(number + possible) % size]
                if available < 0:
                    break
                possible += 1
            steps = possible
        if not steps:
            return None
        first = line.fixed + line.slope * context
        if self._extra:
            # The first step also pays for swapping, so it passes alone
            extra, self._extra = self._extra, 0
            self.steps.busy -= extra
            return 1, first + extra, 0, line.exchange
        return steps, first, line.slope * growing, line.exchange


def steps_until(elapsed: int, first: int, growth: int, most: int) -> int:
    """The least number of steps, at least 1 and at most ``most``, that take at least ``elapsed``."""
    half = first - growth / 2
    below = half + math.sqrt(max(half * half + 2.0 * growth * elapsed, 0.0))
    steps = min(max(math.ceil(2 * elapsed / below), 1), most) if below > 0 else most if elapsed else 1
    duration = sum_of_steps(steps, first, growth)
    while duration < elapsed and steps < most:
        duration += first + growth * steps
        steps += 1
    while steps > 1 and duration - (first + growth * (steps - 1)) >= elapsed:
        steps -= 1
        duration -= first + growth * steps
    return steps
