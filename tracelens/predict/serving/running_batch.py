"""The sequences of a lane: who joins and leaves, and the blocks of the cache that they take.

The sequences of a lane: who joins and leaves, and the blocks of the cache that they take.

A step costs time proportional to what changes in it, not to the batch: all sequences of a lane advance together, so
their contexts are one sum, their ends a heap of step numbers, and who needs a new block when is a count per step number
modulo the block size.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TypeAlias

from tracelens.predict.serving.replica_state import ONE_TOKEN, ReplicaState

#: A sequence that decodes: its first step's number, its prompt, and how many tokens were out before then: of its lane's
#: steps, and of its own.
Member: TypeAlias = tuple[int, int, int, int]


class RunningBatch:
    """A micro-batch: the whole running batch where there is no pipeline.

    ``decoding`` sequences attend to ``context`` keys in all in the coming decode step, which is number ``number``.
    """

    __slots__ = (
        "_ends",
        "_extra",
        "_fresh",
        "_hits",
        "_last_decode",
        "_members",
        "_phases",
        "_reserved",
        "_shares",
        "_stuck",
        "_whole",
        "budget",
        "context",
        "decoding",
        "limit",
        "log",
        "number",
        "partial",
        "pool",
        "queue",
        "replica",
        "requests",
        "steps",
        "waiting",
    )

    def __init__(self, replica: ReplicaState) -> None:
        engine, parallel = replica.cost.deployment.engine, replica.cost.deployment.parallelism
        self.replica, self.pool, self.log, self.queue = replica, replica.pool, replica.log, replica.queue
        self.waiting, self.requests, self.steps = replica.waiting, replica.requests, replica.steps
        self.limit = -(-engine.max_num_seqs // parallel.pp)
        self.budget = engine.max_batched_tokens
        self.decoding = 0
        self.context = 0
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
        self._extra = 0

    def __len__(self) -> int:
        return self.decoding + len(self.partial)

    def first_waiting(self) -> int | None:
        """Tokens that the next waiting prompt lacks; None when nothing waits."""
        if not self.waiting:
            return None
        request = self.waiting.first()
        return 0 if request in self.replica.kept else self._prompt(request) - self._cached(request)

    def admit(self, *, whole: bool = False) -> int | None:
        """See ``policies.base.LaneView``."""
        if not self.waiting or not self._has_place():
            return None
        replica, pool, requests = self.replica, self.pool, self.requests
        request = self.waiting.first()
        kept, prompt = request in replica.kept, self._prompt(request)
        whole = whole or replica.advance != ONE_TOKEN
        tokens = requests.input_tokens[request] + requests.output_tokens[request] if whole else prompt
        pieces = requests.pieces[request] if requests.pieces else ()
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
        if whole:
            self._whole.add(request)
        if self.log.scheduled[request] < 0:
            self.log.scheduled[request] = self.queue.now
        if kept:
            self._resume(request, prompt)
            return 0
        cached = min((found + again) * pool.piece_tokens, prompt - 1)
        self._extra += again * pool.piece_tokens * replica.reload_fs_per_token
        self._hits[request] = cached
        self.steps.cached_tokens += cached
        self.partial[request] = prompt - cached
        return prompt - cached

    def make_room(self) -> bool:
        """See ``policies.base.LaneView``."""
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

    def _has_place(self) -> bool:
        """Whether this lane, the shortest one, has a sequence left."""
        size = len(self)
        return size < self.limit and (not self._shares or size <= min(len(lane) for lane in self.replica.lanes))

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
                self._leave(request)
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
        else:
            log.first[request] = now
        del self.partial[request]
        if self._hits:
            self._hits.pop(request, None)
        left = self.requests.output_tokens[request] - done
        if left and replica.hand_over is None:
            self._join(request, prompt, done, now)
            return
        self._release(request, prompt)
        log.last[request] = now
        if not left:
            self._complete(request)
        elif replica.hand_over is not None:
            replica.outstanding -= 1
            replica.hand_over(replica, request)

    def _join(self, request: int, prompt: int, done: int, since: float) -> None:
        """``request`` decodes from the next step on; ``done`` tokens are out, the last of them ``since``."""
        number, tokens = self.number, self._tokens(self.number)
        end = -(-((tokens + self.requests.output_tokens[request] - done) << 20) // self.replica.advance)
        self._members[request] = member = (number, prompt, tokens, done)
        heappush(self._ends, (end, request, member))
        self.context += prompt + 1
        self.decoding += 1
        if request not in self._whole:
            phases = self._phases
            phases[(number - prompt) % len(phases)] += 1
            if self._reserved and prompt % len(phases) == 0:
                self.pool.take(1)
        self._fresh[request] = since

    def _leave(self, request: int) -> int:
        """Takes a sequence out; returns how many tokens it has produced in all."""
        joined, prompt, tokens, done = self._members.pop(request)
        decoded = self._tokens(self.number) - tokens
        self.context -= prompt + 1 + decoded
        self.decoding -= 1
        if request not in self._whole:
            phases = self._phases
            phases[(joined - prompt) % len(phases)] -= 1
        self._release(request, prompt + self.number - joined)
        return done + decoded

    def _tokens(self, steps: int) -> int:
        """What each sequence of the lane has got in its first ``steps`` decode steps."""
        return (steps * self.replica.advance) // ONE_TOKEN

    def _complete(self, request: int) -> None:
        replica = self.replica
        replica.outstanding -= 1
        if replica.done:
            replica.done.pop(request, None)
        if replica.finished is not None:
            replica.finished(replica, request)

    def _release(self, request: int, tokens: int) -> None:
        requests, pool = self.requests, self.pool
        if request in self._whole:
            self._whole.remove(request)
            tokens = requests.input_tokens[request] + requests.output_tokens[request]
        blocks = -(-tokens // pool.block_tokens)
        if requests.pieces:
            pieces = requests.pieces[request]
            blocks -= len(pieces) * pool.piece_blocks
            pool.drop(pieces)
        pool.give(blocks)
        self._stuck = False
        if self._shares:
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
        pieces = self.requests.pieces[request]
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
