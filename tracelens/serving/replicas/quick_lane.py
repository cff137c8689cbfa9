"""Steps of a lane that no other can notice, in the usual case, without a queue of events.

Half of the time that a simulated request takes is calls; here a step is a handful of them. Times, logs and counts of
events are those of ``Lane``, to the bit.
"""

from __future__ import annotations

from heapq import heappop, heappush

from tracelens.serving.costs import DecodeLine
from tracelens.serving.event_queue import Process
from tracelens.serving.lanes import Lane, steps_until
from tracelens.serving.replica_state import ONE_TOKEN, ReplicaState


class QuickLane(Lane):
    """The only lane of a replica that runs alone, where ``suits`` says so.

    While a sequence that was preempted has not ended, steps pass as in ``Lane``.
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
