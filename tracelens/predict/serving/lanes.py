"""The running batch of a lane, and how its steps pass as a process on the queue of events.

A step costs time proportional to what changes in it, not to the batch: all sequences of a lane advance together, so
their contexts are one sum, their ends a heap of step numbers, and who needs a new block when is a count per step number
modulo the block size.

Levels of detail differ in how a step passes: ``high`` has an event per layer and device and per link transfer,
``medium`` one per device and one per stage's collectives, ``low`` one for all decode steps up to the next change.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from tracelens.predict.serving.costs import Chunk, CollectiveSteps, LayerWork, Mix, PlacedChunks, StageWork
from tracelens.predict.serving.event_queue import NEVER, Process, Resource
from tracelens.predict.serving.replica_state import ONE_TOKEN, ReplicaState, Step

#: A sequence that decodes: its first step's number, its prompt, and how many tokens were out before then: of its lane's
#: steps, and of its own.
Member: TypeAlias = tuple[int, int, int, int]


class RunningBatch:
    """A micro-batch: the whole running batch where there is no pipeline.

    ``decoding`` sequences attend to ``context`` keys in all in the coming decode step, which is number ``number``.
    """

    def __init__(self, replica: ReplicaState) -> None:
        engine, parallel = replica.cost.deployment.engine, replica.cost.deployment.parallelism
        self.replica, self.pool, self.log, self.queue = replica, replica.pool, replica.log, replica.queue
        self.waiting, self.requests, self.steps = replica.waiting, replica.requests, replica.steps
        self.limit = -(-engine.max_num_seqs * parallel.dp // parallel.pp)
        self.budget, self._ranks = engine.max_batched_tokens, parallel.dp
        self._rooms = [self.budget] * self._ranks
        self.decoding = 0
        self.context = 0
        self._started = self._squares = 0
        self.number = 0
        self.partial: dict[int, int] = {}
        self._members: dict[int, Member] = {}
        self._ends: list[tuple[int, int, Member]] = []
        self._phases = [0] * engine.block_tokens
        self._whole: set[int] = set()
        self._hits: dict[int, int] = {}
        self._fresh: dict[int, float] = {}
        self._shares = parallel.pp > 1
        self._last_decode = 0
        self._reserved = False
        self._stuck = False
        self._extra = self._load = self._sending = 0
        #: LoRA adapters of its sequences and prompts, and how many of them need each.
        self.adapters: Counter[int] = Counter()

    def __len__(self) -> int:
        return self.decoding + len(self.partial)

    def first_waiting(self) -> int | None:
        """Tokens that the next waiting prompt lacks; None when nothing waits."""
        request = self._next()
        if request is None:
            return None
        if request in self.replica.kept:
            return 0
        loaded = self.replica.loaded.get(request)
        return self._prompt(request) - (self._cached(request) if loaded is None else loaded[0])

    def rooms(self, decoding: int) -> list[int]:
        """See ``scheduling.LaneView``."""
        each, more = divmod(decoding, self._ranks)
        self._rooms = [self.budget - each - (rank < more) for rank in range(self._ranks)]
        return self._rooms

    def place(self, request: int) -> int | None:
        """See ``scheduling.LaneView``."""
        return self.replica.places[request] if self.replica.places else None

    def _fits(self, request: int) -> bool:
        """Whether the rank of a request has room for its prompt, or nothing else to do."""
        room = self._rooms[self.replica.places[request]]
        return room == self.budget or room >= self._prompt(request)

    def admit(self, *, whole: bool = False, part: bool = False) -> int | None:
        """See ``scheduling.LaneView``."""
        while (request := self._next(part=part) if self._has_place() else None) is not None:
            if request in self.replica.loaded:
                self.waiting.take()
                return self._begin(request, *self.replica.loaded.pop(request))
            taken = self._take_in(request, whole=whole or self.replica.advance != ONE_TOKEN)
            if taken is None:
                return None
            cached, again, whole_answer = taken
            if again and self.replica.cache_load == "beside":
                self.queue.start(self.replica.load(request, again, (cached, whole_answer)))
                continue
            self._load += again * self.pool.piece_tokens * self.replica.reload_fs_per_token
            return self._begin(request, cached, whole_answer)
        return None

    def _take_in(self, request: int, *, whole: bool) -> tuple[int, int, bool] | None:
        """Takes the next waiting request out of the line, with blocks for its prompt, or for the answer too: how many
        of its tokens are cached, how many pieces of them in host memory, and ``whole``; None where it does not fit now.
        """
        replica, pool, requests = self.replica, self.pool, self.requests
        kept, prompt = request in replica.kept, self._prompt(request)
        tokens = requests.input_tokens[request] + requests.output_tokens[request] if whole else prompt
        pieces = replica.pieces(request)
        found = pool.cached(pieces)
        again = pool.below(pieces[found:])
        blocks = pool.blocks(tokens) - len(pieces) * pool.piece_blocks
        # A sequence that joins a step whose blocks are reserved brings the one for its next token
        missing = (len(pieces) - found) * pool.piece_blocks + kept
        watermark = replica.watermark if len(self) else 0
        if blocks + missing + pool.idle_among(pieces[:found]) + watermark > pool.available:
            return None
        self.waiting.take()
        if pieces:
            pool.hold(pieces)
        pool.take(blocks)
        if kept:
            return 0, 0, whole
        self.steps.host_tokens += again * pool.piece_tokens
        return min((found + again) * pool.piece_tokens, prompt - 1), again, whole

    def _begin(self, request: int, cached: int, whole: bool) -> int:
        """A request with its blocks becomes one of the lane's; returns how many tokens it lacks."""
        replica, prompt, adapters = self.replica, self._prompt(request), self.requests.adapters
        if replica.adapter_slots:
            self._extra += replica.load_adapter(adapters[request])
            self.adapters[adapters[request]] += 1
        if whole:
            self._whole.add(request)
        if self.log.scheduled[request] < 0:
            self.log.scheduled[request] = self.queue.now
        if request in replica.kept:
            self._resume(request, prompt)
            return 0
        self._hits[request] = cached
        self.steps.cached_tokens += cached
        self.partial[request] = prompt - cached
        return prompt - cached

    def make_room(self) -> bool:
        """See ``scheduling.LaneView``."""
        if self._reserved:
            return False
        preempted = False
        pool, phases, slot = self.pool, self._phases, self.number % len(self._phases)
        while phases[slot] > pool.available:
            preempted = True
            if self.partial:
                self._preempt_partial()
            else:
                self._preempt_decoding()
        if phases[slot]:
            pool.take(phases[slot])
        self._reserved = True
        if preempted:
            self._stuck = False
        return preempted

    def _next(self, *, part: bool = False) -> int | None:
        """The next waiting request; as in vLLM, one is passed over whose adapter finds no slot beside the batch's."""
        most = self.replica.adapter_slots
        if self.replica.places and self.waiting:
            return self._next_with_room(part)
        if not most:
            return self.waiting.first() if self.waiting else None
        known, full, of = self.adapters, len(self.adapters) >= most, self.requests.adapters
        return self.waiting.first() if self.waiting.bring(lambda each: not full or of[each] in known) else None

    def _next_with_room(self, part: bool) -> int | None:
        """The next waiting request whose data-parallel rank has room for it and a sequence left."""
        places, most = self.replica.places, self.replica.cost.deployment.engine.max_num_seqs
        least = 1 if part else min(self.replica.shortest, self.budget)
        held = Counter(places[each] for each in self.partial)
        is_open = {rank for rank, room in enumerate(self._rooms) if room >= least and held[rank] < most}
        found = is_open and self.waiting.bring(lambda each: places[each] in is_open and (part or self._fits(each)))
        return self.waiting.first() if found else None

    def _has_place(self) -> bool:
        """Whether this lane, the shortest one, has a sequence left."""
        size = len(self) + self._sending
        return size < self.limit and (not self._shares or size <= min(len(lane) for lane in self.replica.lanes))

    def _resume(self, request: int, prompt: int) -> None:
        """``request`` decodes on with the cache that was kept for it, or that came from a prefill replica: the answer's
        stream is the decoding replica's, so its first token reaches the client now.
        """
        replica, preempted = self.replica, self.log.preempted[request]
        replica.kept.discard(request)
        if self.log.first[request] < 0:
            self.log.first[request] = self.queue.now
        if replica.swap_fs_per_token and preempted:
            self._extra += prompt * replica.swap_fs_per_token
        # Without others to decode, there is nothing to reserve but its own next block
        self._reserved = self._reserved or not self.decoding
        since = self.log.last[request] if preempted else self.log.first[request]
        self._join(request, prompt, replica.done[request], since)

    def keys(self) -> int:
        """``context`` as the slowest data-parallel rank has it: see ``StepCost.uneven``. All sequences grow alike, so
        lengths when the lane's first step began deviate as those of now do.
        """
        if self._ranks == 1:
            return self.context
        return self.context - self._started + self.replica.cost.uneven(self.decoding, self._started, self._squares)

    def _grow(self, steps: int) -> None:
        """Takes the blocks that ``steps`` decode steps need."""
        phases, size = self._phases, len(self._phases)
        cycles, rest = divmod(steps, size)
        start = self.number % size
        need = sum(phases[start : start + rest])
        if start + rest > size:
            need += sum(phases[: start + rest - size])
        if cycles:
            need += cycles * sum(phases)
        if need:
            self.pool.take(need)

    def _end_decode(self, first: int, growth: int, steps: int, duration: int) -> None:
        """Accounts for ``steps`` decode steps that ended now after ``duration``, of which the first took ``first`` and
        each further one ``growth`` more.
        """
        replica, now, batch, context = self.replica, self.queue.now, self.decoding, self.context
        log = self.steps
        on_time = self._gaps_before(now - duration, first)
        if on_time:
            log.gap(first, on_time, growth, steps)
        log.decode_steps += steps
        log.decoded += steps * batch
        more = steps
        if replica.advance != ONE_TOKEN:
            more = self._tokens(self.number + steps) - self._tokens(self.number)
        self.number = number = self.number + steps
        # The cache's fill times a step's duration: products of two arithmetic series
        filled = context * duration
        if steps > 1:
            ones = steps * (steps - 1) // 2
            filled += batch * (replica.advance // ONE_TOKEN) * (ones * first + ones * (2 * steps - 1) // 3 * growth)
            if on_time < batch:
                log.gap(first + growth, batch - on_time, growth, steps - 1)
        log.context_time += filled
        if more > steps:
            log.gap(0, (more - steps) * batch)
        if log.series is not None:
            self._log_series(batch, context)
        self.context = context + batch * more
        self._last_decode = now
        self._reserved = False
        while self._ends and self._ends[0][0] <= number:
            _, request, member = heappop(self._ends)
            if self._members.get(request) is member:
                self._leave(request, is_complete=True)
                self.log.last[request] = now
                self._complete(request)

    def _gaps_before(self, start: int, first: int) -> int:
        """Logs the first gap of sequences whose last token is older than ``start``; of how many it is not."""
        fresh, on_time = self._fresh, self.decoding
        old = on_time - len(fresh)
        if old and self._last_decode != start:
            self.steps.gap(start + first - self._last_decode, old)
            on_time -= old
        if fresh:
            for since in fresh.values():
                if since != start:
                    self.steps.gap(start + first - since, 1)
                    on_time -= 1
            fresh.clear()
        return on_time

    def _log_series(self, batch: int, context: int) -> None:
        series = self.steps.series
        if series is not None:
            series.append((self.queue.now, batch, len(self.waiting), len(self.partial), context, self.pool.in_use))

    def _end_prompt(self, request: int) -> None:
        """The prompt is complete: its last step yields a token."""
        replica, log, now = self.replica, self.log, self.queue.now
        prompt, done = self.requests.input_tokens[request], 1
        if request in replica.done:  # what it had produced was computed again
            done += replica.done[request]
            prompt += done - 1
            self.steps.gap(now - log.last[request], 1)
        elif replica.hand_over is None or self.requests.output_tokens[request] == 1:
            log.first[request] = now
        del self.partial[request]
        if self._hits:
            self._hits.pop(request, None)
        left = self.requests.output_tokens[request] - done
        if left and replica.hand_over is None:
            self._join(request, prompt, done, now)
            return
        log.last[request] = now
        if left and replica.hand_over is not None and replica.cost.deployment.engine.keeps_sent:
            self._sending += 1
            replica.hand_over(replica, request, functools.partial(self._end_sending, request, prompt))
            return
        self._release(request, prompt)
        if not left:
            self._complete(request)
        elif replica.hand_over is not None:
            self._forget(request)
            replica.hand_over(replica, request, None)

    def _end_sending(self, request: int, prompt: int) -> None:
        """A prompt's cache is where it goes on: its place here is free."""
        self._sending -= 1
        self._release(request, prompt)
        self._forget(request)
        for lane in self.replica.lanes:
            lane.room()

    def _forget(self, request: int) -> None:
        self.replica.outstanding -= 1
        self.replica.rank_of.pop(request, None)

    def _join(self, request: int, prompt: int, done: int, since: float) -> None:
        """``request`` decodes from the next step on; ``done`` tokens are out, the last of them ``since``."""
        number, tokens = self.number, self._tokens(self.number)
        end = -(-((tokens + self.requests.output_tokens[request] - done) << 20) // self.replica.advance)
        self._members[request] = member = (number, prompt, tokens, done)
        heappush(self._ends, (end, request, member))
        self._started += prompt + 1 - tokens
        self._squares += (prompt + 1 - tokens) ** 2
        self.context += prompt + 1
        self.decoding += 1
        if request not in self._whole:
            phases = self._phases
            phases[(number - prompt) % len(phases)] += 1
            if self._reserved and prompt % len(phases) == 0:
                self.pool.take(1)
        self._fresh[request] = since

    def _leave(self, request: int, *, is_complete: bool = False) -> int:
        """Takes a sequence out; returns how many tokens it has produced in all. What a session may say again stays
        cached once it is complete.
        """
        joined, prompt, tokens, done = self._members.pop(request)
        decoded = self._tokens(self.number) - tokens
        self._started -= prompt + 1 - tokens
        self._squares -= (prompt + 1 - tokens) ** 2
        self.context -= prompt + 1 + decoded
        self.decoding -= 1
        if request not in self._whole:
            phases = self._phases
            phases[(joined - prompt) % len(phases)] -= 1
        self._release(request, prompt + self.number - joined, keeps=is_complete)
        return done + decoded

    def _tokens(self, steps: int) -> int:
        """What each sequence of the lane has got in its first ``steps`` decode steps."""
        return (steps * self.replica.advance) // ONE_TOKEN

    def _complete(self, request: int) -> None:
        replica = self.replica
        self._forget(request)
        if replica.done:
            replica.done.pop(request, None)
        if replica.finished is not None:
            replica.finished(replica, request)

    def _release(self, request: int, tokens: int, *, keeps: bool = False, lacking: int = 0) -> None:
        requests, pool = self.requests, self.pool
        if self.replica.adapter_slots:
            self.adapters.subtract((requests.adapters[request],))
            self.adapters = +self.adapters
        if request in self._whole:
            self._whole.remove(request)
            tokens = requests.input_tokens[request] + requests.output_tokens[request]
        blocks = -(-tokens // pool.block_tokens)
        pieces = self.replica.pieces(request)
        pool.give(blocks - len(pieces) * pool.piece_blocks)
        if keeps and requests.answered:
            rank = self.replica.rank_of.get(request, 0)
            pool.keep(self.replica.on_rank(requests.answered[request][len(pieces) :], rank))
        pool.drop(pieces, (tokens - lacking) // pool.piece_tokens if lacking and pieces else None)
        self._stuck = False
        if self._shares:
            for lane in self.replica.lanes:
                lane.room()

    def _preempt_partial(self) -> None:
        request = next(reversed(self.partial))
        lacking = self.partial.pop(request)
        self._hits.pop(request, None)
        self._release(request, self._prompt(request), lacking=lacking)
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
        self.waiting.put_back(request)

    def _prompt(self, request: int) -> int:
        """Tokens whose keys must be computed before the request can decode.

        After recomputing, those that it had produced are among them; where the cache was kept, all but the last.
        """
        replica, tokens = self.replica, self.requests.input_tokens[request]
        if replica.done:
            tokens += replica.done.get(request, 0) - (request in replica.kept)
        return tokens

    def _cached(self, request: int) -> int:
        if not self.requests.pieces:
            return 0
        pieces = self.replica.pieces(request)
        found = self.pool.cached(pieces)
        found += self.pool.below(pieces[found:])
        return min(found * self.pool.piece_tokens, self._prompt(request) - 1)

    def _drop_stale(self) -> None:
        ends = self._ends
        while ends and self._members.get(ends[0][1]) is not ends[0][2]:
            heappop(ends)
        if len(ends) > 4 * len(self._members) + 64:
            self._ends = [end for end in ends if self._members.get(end[1]) is end[2]]
            heapify(self._ends)


def sum_of_steps(steps: int, first: int, growth: int) -> int:
    """first + (first + growth) + ... of ``steps`` terms."""
    return steps * first + growth * (steps * (steps - 1) // 2)


#: Decode steps of one batch: how many, how long the first takes, by how much each next one grows, and how much of each
#: is exchanges.
Run: TypeAlias = tuple[int, int, int, int]


class SequentialLane(RunningBatch):
    """A batch whose steps pass one after the other, as long as there are requests."""

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
        if len(self.waiting) == 1 or self.waiting.is_ordered or self.replica.adapter_slots:
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
        """Blocks or places came back."""
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
        start, batch, context = queue.now, self.decoding, self.keys()
        if self._passes_parts or replica.contention:
            works = cost.decode_work(batch, context)
            yield from self._pass(works)
            if replica.record is not None:
                replica.record(Step(start, queue.now, batch * cost.queries, batch, context, [], works))
        else:
            line = cost.decode_line(batch, context)
            yield from self._pass_whole(line.fixed - line.exchange + line.slope * context, line.exchange)
        self._ran_decoding(start, 1, self.context)
        self._end_decode(queue.now - start, 0, 1, queue.now - start)

    def _ran_decoding(self, start: int, steps: int, context: float) -> None:
        """Logs decode steps that ended now, at a mean context."""
        rows = self.decoding * self.replica.cost.queries
        mix: Mix = (rows, [], rows, 0, self.decoding, self.context)
        self.steps.ran(start, self.queue.now - start, mix, steps=steps, context=context)

    def _run_mixed(self, chunks: list[tuple[int, int]], decode: bool) -> Process:
        replica, queue = self.replica, self.queue
        start, mix = queue.now, self._mix(chunks, decode)
        asked = (*mix[:5], self.keys() if decode else 0)
        if self._passes_parts:
            works = replica.cost.mixed(*asked)
            yield from self._pass(works)
            if replica.record is not None:
                tokens, pairs, _, _, batch, context = asked
                replica.record(Step(start, queue.now, tokens, batch, context, pairs, works))
        else:
            yield from self._pass_whole(*replica.cost.mixed_time(*asked))
        self.steps.ran(start, queue.now - start, mix)
        self._end_mixed(chunks, decode, queue.now - start)

    def _mix(self, chunks: list[tuple[int, int]], decode: bool) -> Mix:
        """What a step of ``chunks``, and of the decoding sequences where ``decode``, computes."""
        partial, hits, redone, lengths = self.partial, self._hits, self.replica.done, self.requests.input_tokens
        batch, context = (self.decoding, self.context) if decode else (0, 0)
        rows = batch * self.replica.cost.queries
        total, started = rows, 0
        pairs: list[Chunk] = []
        for request, tokens in chunks:
            lacking = partial[request]
            past = (self._prompt(request) if redone else lengths[request]) - lacking
            pairs.append((tokens, past))
            total += tokens
            rows += tokens == lacking
            started += past == (hits.get(request, 0) if hits else 0)
        if places := self.replica.places:
            pairs = PlacedChunks(pairs)
            pairs.ranks = [places[request] for request, _ in chunks]
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
        extra = self._late(compute)
        if self.replica.jitter is not None:
            compute = self.replica.jitter.slowest(compute, shards, self._layers)
        yield compute + extra if shards == 1 else (compute + extra, shards)
        if exchange:
            yield exchange
            log.exchange_events += 1
        log.compute_events += shards
        log.busy += compute + exchange

    def _late(self, step: int | tuple[StageWork, ...]) -> int:
        """By how much a step, or one of so much compute, is longer: caches that are swapped, and prefixes that come
        from host memory: before it, or layer by layer while it computes, of which the first layer's are not hidden.
        """
        extra, load, self._extra, self._load = self._extra, self._load, 0, 0
        if load and self.replica.cache_load == "layer":
            compute = step if isinstance(step, int) else sum(each.compute_fs for each in step)
            load = max(load - compute, -(-load // len(self.replica.cost.layers)))
        return extra + load

    def _pass(self, works: tuple[StageWork, ...]) -> Process:
        """The stages one after the other; each is held by one lane at a time."""
        replica, steps = self.replica, self.steps
        several, late = len(replica.lanes) > 1, self._late(works)
        shards = replica.cost.deployment.parallelism.stage_devices
        for index, work in enumerate(works):
            if several:
                yield replica.stages[index]
            extra, late = late, 0
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
        """Decode steps of one batch; an arrival may cut them short. Where the replica leaps, they pass in one wait."""
        queue, log, shards = self.queue, self.steps, self._shards
        most, first, growth, exchange = run
        self._cut = False
        start = queue.now
        if self.replica.leaps:
            self._jump = (start, first, growth, most)
            self._timer.set(start + sum_of_steps(most, first, growth))
            yield self._timer
            steps, self._jump = self._jump[3], None
        else:
            duration, steps = first, 0
            while steps < most and not self._cut:
                if shards == 1:
                    yield duration
                else:
                    yield duration - exchange, shards
                    if exchange:
                        yield exchange
                duration += growth
                steps += 1
        if self.replica.level == "low":
            log.compute_events += shards
        else:
            log.compute_events += shards * steps
            log.exchange_events += steps if exchange else 0
            if self.replica.leaps:
                queue.processed += steps * (shards + (shards > 1 and exchange > 0)) - 1
        duration = sum_of_steps(steps, first, growth)
        self._grow(steps)
        log.busy += duration
        grown = self.decoding * (self.replica.advance // ONE_TOKEN)
        self._ran_decoding(start, steps, self.context + grown * (steps - 1) / 2)
        self._end_decode(first, growth, steps, duration)

    def _ahead(self) -> Run | None:
        """The decode steps that pass before anything changes; None where room must be made for the next one."""
        if self._reserved:
            return None
        if len(self._ends) > len(self._members):
            self._drop_stale()
        replica, batch, context, number = self.replica, self.decoding, self.keys(), self.number
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
