"""How the steps of a lane pass, as events and, where no other lane can notice, without a queue of events.

How the steps of a lane pass.

Levels of detail differ in how a step passes: ``high`` has an event per layer and device and per link transfer,
``medium`` one per device and one per stage's collectives, ``low`` one for all decode steps up to the next change.

Steps of a lane that no other can notice, in the usual case, without a queue of events.

Half of the time that a simulated request takes is calls; here a step is a handful of them. Times, logs and counts of
events are those of ``Lane``, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, TypeAlias

from tracelens.predict.serving.costs import CollectiveSteps, DecodeLine, LayerWork, StageWork
from tracelens.predict.serving.event_queue import NEVER, Process, Resource
from tracelens.predict.serving.replica_state import ONE_TOKEN, ReplicaState, Step
from tracelens.predict.serving.running_batch import RunningBatch, sum_of_steps

#: What a step computes, as ``StepCost.mixed`` takes it.
Mix: TypeAlias = tuple[int, list[tuple[int, int]], int, int, int, int]
#: Decode steps of one batch: how many, how long the first takes, by how much each next one grows, and how much of each
#: is exchanges.
Run: TypeAlias = tuple[int, int, int, int]


class SequentialLane(RunningBatch):
    """A batch whose steps pass one after the other, as long as there are requests."""

    __slots__ = ("_cut", "_is_idle", "_jump", "_layers", "_passes_parts", "_shards", "_timer")

    def __init__(self, replica: ReplicaState) -> None:
        super().__init__(replica)
        self._shards = replica.cost.deployment.parallelism.stage_devices
        self._passes_parts = replica.level == "high" or replica.record is not None or len(replica.stages) > 1
        self._layers = len(replica.cost.layers)
        self._is_idle = False
        self._cut = False
        self._timer = replica.queue.timer()
        self._jump: tuple[int, int, int, int] | None = None

    def notice(self) -> None:
        """Something arrived: wake up, or end a jump at the next step's end."""
        if len(self.waiting) == 1 or self.waiting.is_ordered:
            self._stuck = False
        if self._is_idle:
            self._is_idle = False
            self._timer.set(self.queue.now)
        elif self._stuck:
            return
        elif self._jump is None:
            self._cut = True
        elif not self._cut:
            self._cut = True
            start, first, growth, steps = self._jump
            cut = steps_until(self.queue.now - start, first, growth, steps)
            if cut < steps:
                self._jump = (start, first, growth, cut)
                self._timer.set(start + sum_of_steps(cut, first, growth))

    def room(self) -> None:
        """Blocks came back."""
        self._stuck = False
        if self._is_idle and self.waiting:
            self._is_idle = False
            self._timer.set(self.queue.now)

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
            self._is_idle = True
            self._timer.set(NEVER)
            yield self._timer

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
        yield compute + extra if shards == 1 else (compute + extra, shards)
        if exchange:
            yield exchange
            log.exchange_events += 1
        log.compute_events += shards
        log.busy += compute + exchange

    def _pass(self, works: tuple[StageWork, ...]) -> Process:
        """The stages one after the other; each is held by one lane at a time."""
        replica, steps = self.replica, self.steps
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
                if replica.jitter is not None:
                    compute = replica.jitter.slowest(compute, shards, sum(layer.count for layer in work.layers))
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
        shards, jitter = self.replica.cost.deployment.parallelism.stage_devices, self.replica.jitter
        for _ in range(layer.count):
            compute = layer.compute_fs + extra
            extra = 0
            if jitter is not None:
                compute = jitter.slowest(compute, shards, 1)
            yield compute if shards == 1 else (compute, shards)
            for exchange in layer.exchanges:
                if ports is not None:
                    yield from self._contended_steps(exchange, ports)
                else:
                    pair = (exchange.step_fs, exchange.transfers)
                    for _ in range(exchange.steps):
                        yield pair
        steps = self.steps
        steps.compute_events += layer.count * shards
        moved = sum(exchange.steps * exchange.transfers for exchange in layer.exchanges)
        steps.transfer_events += layer.count * moved

    def _contended_steps(self, exchange: CollectiveSteps, ports: list[Resource]) -> Process:
        """Every transfer of a step holds the port that it leaves by; the step ends with its last transfer."""
        for _ in range(exchange.steps):
            left = [exchange.transfers]
            done = self.queue.signal()
            for index in range(exchange.transfers):
                self.queue.start(_transfer(ports[index % len(ports)], exchange.step_fs, left, done))
            yield done

    def _run_decodes(self, run: Run) -> Process:
        """Decode steps of one batch: an event each, or all at once; an arrival may cut them short."""
        queue, log, shards = self.queue, self.steps, self._shards
        steps, first, growth, exchange = run
        self._cut = False
        if self.replica.level == "low":
            start = queue.now
            self._jump = (start, first, growth, steps)
            self._timer.set(start + sum_of_steps(steps, first, growth))
            yield self._timer
            steps = self._jump[3]
            self._jump = None
            log.compute_events += shards
        else:
            duration, done = first, 0
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
        duration = sum_of_steps(steps, first, growth)
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


class QuickLane(SequentialLane):
    """The only lane of a replica that runs alone, where ``suits`` says so.

    While a sequence that was preempted has not ended, steps pass as in ``SequentialLane``.
    """

    __slots__ = ("_answers", "_has_late", "_is_low", "_lines", "_prompts")

    def __init__(self, replica: ReplicaState) -> None:
        super().__init__(replica)
        self._prompts, self._answers = replica.requests.input_tokens, replica.requests.output_tokens
        self._lines: dict[int, DecodeLine] = {}
        self._has_late = False
        self._is_low = replica.level == "low"

    @staticmethod
    def suits(replica: ReplicaState) -> bool:
        """Whether decode steps may pass many at once, yield a token each, and prompts share no beginnings."""
        return replica.passes_runs and replica.advance == ONE_TOKEN and not replica.requests.pieces

    def run(self) -> Process:
        while True:
            self._pass_steps()
            yield from self._step()

    def _pass_steps(self) -> None:
        """Steps, until one has to preempt, or nothing is left that could pass."""
        replica, waiting, partial = self.replica, self.waiting, self.partial
        cost, arrivals, pool, phases = replica.cost, replica.arrivals, self.pool, self._phases
        if not replica.done and len(self._ends) > len(self._members):
            self._drop_stale()
        self._has_late = True
        while not replica.done:
            if self.decoding:
                if not partial and (self._stuck or not waiting):
                    if not self._leap():
                        return
                    continue
                if phases[self.number % len(phases)] > pool.available:
                    return
            elif not partial and not waiting:
                if arrivals.are_over:
                    return
                self._wait(arrivals.time - self.queue.now, 1)
            chunks, decode = self._plan()
            if chunks:
                self._mix_quickly(chunks, decode)
            elif decode:
                line = cost.decode_line(self.decoding, self.context)
                duration = line.fixed + line.slope * self.context
                self._compute(duration, line.exchange)
                self._end_steps(duration, 0, 1, duration)
            else:
                return

    def admit(self, *, whole: bool = False) -> int | None:
        waiting = self.waiting
        if not waiting:
            return None
        if self.replica.done:
            return super().admit(whole=whole)
        log, pool, size = self.log, self.pool, self.decoding + len(self.partial)
        if size >= self.limit:
            return None
        request = waiting.first()
        tokens = prompt = self._prompts[request]
        if whole:
            tokens += self._answers[request]
        blocks = -(-tokens // pool.block_tokens)
        if blocks + (self.replica.watermark if size else 0) > pool.available:
            return None
        waiting.take()
        pool.take(blocks)
        if whole:
            self._whole.add(request)
        if log.scheduled[request] < 0:
            log.scheduled[request] = self.queue.now
        self.partial[request] = prompt
        return prompt

    def _mix_quickly(self, chunks: list[tuple[int, int]], decode: bool) -> None:
        """One step of prompts, and of decoding where ``decode``."""
        compute, exchange = self.replica.cost.mixed_time(*self._mix(chunks, decode))
        duration = compute + exchange
        self._compute(duration, exchange)
        if decode:
            self._end_steps(duration, 0, 1, duration)
        else:
            self.steps.prompt_steps += 1
            self._has_late = True
        self._end_chunks(chunks)

    def _compute(self, duration: int, exchange: int) -> None:
        """One step passes, of which ``exchange`` comes after its compute."""
        log, events = self.steps, self._shards
        log.compute_events += events
        log.busy += duration
        if exchange:
            log.exchange_events += 1
            events += 1
        self._wait(duration, events)

    def _leap(self) -> bool:
        """Decode steps up to the next change, or to the end of the one in which something arrives; whether any."""
        replica, number, batch, context = self.replica, self.number, self.decoding, self.context
        log, pool, phases, size = self.steps, self.pool, self._phases, len(self._phases)
        line = self._lines.get(batch)
        if line is None or not line.low <= context < line.high:
            line = self._lines[batch] = replica.cost.decode_line(batch, context)
        steps, last = -((context - line.high) // batch), self._ends[0][0] - number
        if last < steps:
            steps = last
        if -(-steps // size) * batch > pool.available:
            return False
        first, growth = line.fixed + line.slope * context, line.slope * batch
        duration = steps * first + growth * (steps * (steps - 1) // 2)
        left = replica.arrivals.time - self.queue.now
        if left <= duration and (self.waiting.is_ordered or not self._stuck):
            steps = steps_until(left, first, growth, steps)
            duration = steps * first + growth * (steps * (steps - 1) // 2)
        slot = number % size
        if slot + steps > size:
            self._grow(steps)
        elif need := sum(phases[slot : slot + steps]):
            pool.take(need)
        log.busy += duration
        events = shards = self._shards
        if self._is_low:
            log.compute_events += shards
            events = 1
        else:
            log.compute_events += shards * steps
            if line.exchange:
                log.exchange_events += steps
                events += shards > 1
            events *= steps
        self._wait(duration, events)
        self._end_steps(first, growth, steps, duration)
        return True

    def _wait(self, duration: int, events: int) -> None:
        """Time passes, and requests come."""
        queue, arrivals = self.queue, self.replica.arrivals
        queue.now = now = queue.now + duration
        queue.processed += events
        if arrivals.time <= now:
            for request in arrivals.until(now):
                self.replica.outstanding += 1
                self.waiting.append(request)
            if self.waiting.is_ordered:
                self._stuck = False

    def _end_steps(self, first: int, growth: int, steps: int, duration: int) -> None:
        """As ``_end_decode``."""
        log, now, batch, context = self.steps, self.queue.now, self.decoding, self.context
        on_time = batch
        if self._has_late:
            self._has_late = False
            on_time = self._gaps_before(now - duration, first)
        else:
            self._fresh.clear()
        if on_time:
            log.gap(first, on_time, growth, steps)
        log.decode_steps += steps
        log.decoded += steps * batch
        filled = context * duration
        if steps > 1:
            ones = steps * (steps - 1) // 2
            filled += batch * (ones * first + ones * (2 * steps - 1) // 3 * growth)
            if on_time < batch:
                log.gap(first + growth, batch - on_time, growth, steps - 1)
        log.context_time += filled
        self._last_decode = now
        self.number = number = self.number + steps
        self.context = context + batch * steps
        self._reserved = False
        ends = self._ends
        while ends and ends[0][0] <= number:
            self._finish(heappop(ends)[1])

    def _end_prompt(self, request: int) -> None:
        if self.replica.done:
            super()._end_prompt(request)
            return
        now, prompt, number, left = self.queue.now, self._prompts[request], self.number, self._answers[request] - 1
        del self.partial[request]
        self.log.first[request] = now
        if not left:
            self._release(request, prompt)
            self.log.last[request] = now
            self._complete(request)
            return
        self._members[request] = member = (number, prompt, number, 1)
        heappush(self._ends, (number + left, request, member))
        self.context += prompt + 1
        self.decoding += 1
        if request not in self._whole:
            phases = self._phases
            phases[(number - prompt) % len(phases)] += 1
        self._fresh[request] = now

    def _finish(self, request: int) -> None:
        replica, pool = self.replica, self.pool
        joined, prompt, _, _ = self._members.pop(request)
        tokens = prompt + self.number - joined
        self.context -= tokens + 1
        self.decoding -= 1
        if request in self._whole:
            self._whole.remove(request)
            tokens = self._prompts[request] + self._answers[request]
        else:
            phases = self._phases
            phases[(joined - prompt) % len(phases)] -= 1
        pool.give(-(-tokens // pool.block_tokens))
        self._stuck = False
        self.log.last[request] = self.queue.now
        replica.outstanding -= 1
        if replica.finished is not None:
            replica.finished(replica, request)
