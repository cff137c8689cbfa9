"""The sequences of a lane: who joins and leaves, and the blocks of the cache that they take.

A step costs time proportional to what changes in it, not to the batch: all sequences of a lane advance together, so
their contexts are one sum, their ends a heap of step numbers, and who needs a new block when is a count per step number
modulo the block size.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from tracelens.serving.replicas.replica_state import ONE_TOKEN, ReplicaState


class RunningBatch:
    """A micro-batch: the whole running batch where there is no pipeline.

    ``decoding`` sequences attend to ``context`` keys in all in the coming decode step, which is number ``number``.
    """

    def __init__(self, replica: ReplicaState) -> None:
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

    def __len__(self) -> int:
        return len(self._members) + len(self.partial)

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
        whole = whole or replica.advance != ONE_TOKEN
        prompt = self._prompt(request)
        kept = request in replica.kept
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
        piece = pool.piece_blocks * pool.block_tokens
        cached = min((found + again) * piece, prompt - 1)
        self._extra += again * piece * replica.reload_fs_per_token
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
        duration = sum_of_steps(steps, first, growth)
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
                step_growth = batch * (self.replica.advance // ONE_TOKEN)
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
        pieces = requests.pieces[request]
        found = self.pool.cached(pieces)
        found += self.pool.below(pieces[found:])
        return min(found * self.pool.piece_blocks * self.pool.block_tokens, self._prompt(request) - 1)

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
