"""Requests through a deployment: routers, replicas with their lanes, and the end of the run."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tracelens.errors import UsageError
from tracelens.predict.serving.costs import FS_PER_US, StepCost
from tracelens.predict.serving.deployment import Deployment
from tracelens.predict.serving.event_queue import EventQueue, Process
from tracelens.predict.serving.lanes import SequentialLane
from tracelens.predict.serving.replica_state import Conduct, Listeners, Options, ReplicaState, RequestLog, Step, StepLog
from tracelens.predict.serving.requests import Requests
from tracelens.predict.serving.scheduling import Arrived, ReplicaView, policies, routers
from tracelens.registry import Registry
from tracelens.types.units import BYTES_PER_GB

#: Share of the time above which reading disks bounds a replica.
_WAITING_FOR_DISKS = 0.7
_GOLDEN = (5**0.5 - 1) / 2


class Replica(ReplicaState):
    """A copy of the model with its own queue, cache and lanes."""

    def __init__(
        self, queue: EventQueue, cost: StepCost, requests: Requests, log: RequestLog, conduct: Conduct, to: Listeners
    ) -> None:
        super().__init__(queue, cost, requests, log, conduct, to)
        self.lanes = self._lanes = [SequentialLane(self) for _ in self.stages]
        self._ranks = cost.deployment.parallelism.dp

    def start(self) -> None:
        """Its lanes begin on the queue, which replicas share."""
        for lane in self._lanes:
            self.queue.start(lane.run())

    def enqueue(self, request: int, *, kept: bool = False) -> None:
        """A request arrives now; ``kept``: its prompt was computed elsewhere and its cache came with it."""
        if not self._takes(request):
            self.rank_of.pop(request, None)
            if self.finished is not None:
                self.finished(self, request)
            return
        self.outstanding += 1
        if kept:
            self.kept.add(request)
            self.done[request] = 1
        self.waiting.append(request)
        for lane in self.lanes:
            lane.notice()

    def until_received(self, number: int, *, is_elsewhere: bool = False) -> int:
        """Time in fs until the scheduler looks for the ``number``-th arrival: every ``recv_interval`` steps while
        sequences decode and no prompt is computed (SGLang's SchedulerRecvSkipper). Arrivals are spread evenly over the
        interval, by multiples of the golden ratio, so that a run repeats itself. The last step of the interval counts
        where the prompt ``is_elsewhere`` and waits until this replica has room for its cache; the lane waits for its
        end itself otherwise.
        """
        engine = self.cost.deployment.engine
        steps = engine.recv_interval - (not (is_elsewhere and engine.launches_ahead))
        if not steps or any(lane.partial for lane in self.lanes):
            return 0
        return round(number * _GOLDEN % 1 * steps * self._decode_fs())

    def until_joined(self) -> int:
        """Time in fs that a cache has been here before its sequence may join: the step that was launched ahead."""
        return self._decode_fs() if self.cost.deployment.engine.launches_ahead else 0

    def _decode_fs(self) -> int:
        """A decode step as of now; 0 where nothing decodes."""
        batch: int = sum(lane.decoding for lane in self.lanes)
        if not batch:
            return 0
        context: int = sum(lane.keys() for lane in self.lanes)
        line = self.cost.decode_line(batch, context)
        return line.fixed + line.slope * context

    def cached_pieces(self, pieces: Sequence[int]) -> int:
        """How many leading pieces of a prompt the cache of a data-parallel rank holds at most."""
        return max(self.pool.cached(self.on_rank(pieces, rank)) for rank in range(self._ranks))

    def assign(self, request: int, arrived: Arrived, pick: Callable[[Arrived, Sequence[ReplicaView]], int]) -> None:
        """Chooses the data-parallel rank in whose cache the prompt's pieces are, as replicas are chosen. How a step's
        tokens are divided over ranks does not depend on it.
        """
        if self._ranks > 1 and self.requests.pieces:
            self.rank_of[request] = pick(arrived, [RankView(self, rank) for rank in range(self._ranks)])

    def read_from_disk(self, request: int) -> Process:
        """A request whose prefix disks have waits until it is in host memory, where SGLang's HiCache and LMCache fetch
        it ahead; the disks serve one at a time.
        """
        yield self.disk
        pieces = self.pool.on_disk(self.pieces(request))
        if pieces:
            duration = len(pieces) * self.disk_piece_fs
            yield duration
            self.steps.disk_fs += duration
            self.pool.lift(pieces)
            self.steps.disk_tokens += len(pieces) * self.pool.piece_tokens
        self.disk.release()
        self.enqueue(request)

    def _takes(self, request: int) -> bool:
        """Whether it fits the cache; it is rejected where not."""
        tokens = self.requests.input_tokens[request] + self.requests.output_tokens[request]
        room = self.pool.total * self.pool.block_tokens // self.cost.deployment.parallelism.dp
        if tokens > room:
            self.log.rejected[request] = f"{tokens:,} tokens do not fit a key-value cache of {room:,}"
        return tokens <= room


class RankView:
    """What a router sees of a data-parallel rank."""

    def __init__(self, replica: Replica, rank: int) -> None:
        self._replica, self._rank = replica, rank

    @property
    def outstanding(self) -> int:
        """Requests that it has and has not finished."""
        return sum(rank == self._rank for rank in self._replica.rank_of.values())

    def cached_pieces(self, pieces: Sequence[int]) -> int:
        """How many leading pieces of a prompt its cache holds."""
        return self._replica.pool.cached(self._replica.on_rank(pieces, self._rank))


def _named(known: Registry, name: str, what: str) -> Callable[..., Any]:
    """What a router or a policy of this name does. UsageError for a name that there is not."""
    if name not in known:
        raise UsageError.unknown(what, name, known)
    return known[name].target


def _of_pools(made: StepCost | tuple[StepCost, StepCost], options: Options) -> tuple[StepCost, StepCost]:
    """The costs of replicas that decode and of those that compute prompts, if apart."""
    decoding, prefilling = made if isinstance(made, tuple) else (made, made)
    if not options.prefill_replicas:
        return decoding, prefilling
    return decoding.apart("decode"), prefilling.apart("prefill")


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a run recorded. ``wall_s``, the time that simulating took, is all that differs between equal runs.
    ``costs``: the step cost of each replica.
    """

    requests: Requests
    log: RequestLog
    steps: list[StepLog]
    pool_tokens: int
    peak_blocks: list[int]
    block_tokens: int
    left_blocks: int
    end_fs: int
    events: int
    devices: int
    stages: int
    notes: tuple[str, ...]
    costs: tuple[StepCost, ...] = dataclasses.field(compare=False)
    wall_s: float = dataclasses.field(compare=False)


class Simulation:
    """One run of ``requests`` through ``deployment``. ``cost``: of all replicas, or of those that decode and of those
    that only prefill. ``queue``: another event kernel of this interface.
    """

    def __init__(
        self,
        deployment: Deployment,
        requests: Requests,
        options: Options | None = None,
        *,
        cost: StepCost | tuple[StepCost, StepCost] | None = None,
        queue: EventQueue | None = None,
        record: Callable[[int, Step], None] | None = None,
    ) -> None:
        self.options = options = options or Options()
        if options.disk_cache is not None:
            options.disk_cache.check(deployment.system, deployment.parallelism.devices)
        self._asked, self.requests = requests, requests.in_blocks(deployment.engine.block_tokens)
        self._followers = {before: index for index, before in enumerate(requests.after) if before >= 0}
        self._due: deque[int] = deque()
        self._arrived, self._first = 0, requests.comes_by_itself
        self.cost, self._prefill_cost = _of_pools(cost or StepCost(deployment), options)
        self._prefill_cost.foresee_prompts(set(requests.input_tokens))
        self._plans = [
            _named(policies(), options.policy or each.deployment.engine.policy, "policy")
            for each in (self.cost, self._prefill_cost)
        ]
        self._pick = _named(routers(), options.router, "router")
        self.queue = queue or EventQueue()
        self.log = RequestLog.of(len(requests))
        self._next = 0
        self._free = 0
        self._feeding = False
        entries = options.prefill_replicas * self._prefill_cost.deployment.parallelism.dp
        self._kv_links = [self.queue.resource(f"kv link {rank}") for rank in range(entries)]
        engine = self._prefill_cost.deployment.engine
        self._request_fs, self._token_fs = (round(us * FS_PER_US) for us in (engine.request_us, engine.token_us))
        self._handover_fs = round(self.cost.deployment.engine.handover_us * FS_PER_US)
        self._kv_bytes_per_token = self.cost.kv_bytes_per_token()
        self.replicas = [self._replica(index, record) for index in range(options.replicas + options.prefill_replicas)]
        self._entry = self.replicas[options.replicas :] or self.replicas
        self._decoders = self.replicas[: options.replicas]
        self._handed = 0

    def _replica(self, index: int, record: Callable[[int, Step], None] | None) -> Replica:
        options, decodes = self.options, index < self.options.replicas
        is_alone = options.replicas + options.prefill_replicas == 1
        # Whether what arrives depends on what was answered
        is_answered = self.requests.arrival_fs is None or bool(self._followers)
        return Replica(
            self.queue,
            self.cost if decodes else self._prefill_cost,
            self.requests,
            self.log,
            Conduct(
                options,
                self._plans[0 if decodes else 1],
                options.level(index),
                is_alone or not (is_answered or options.prefill_replicas),
            ),
            Listeners(
                finished=self._finished if is_answered else None,
                hand_over=None if decodes else self._hand_over,
                record=None if record is None else functools.partial(record, index),
            ),
        )

    def run(self) -> Outcome:
        """Until every request is complete or rejected."""
        started = time.perf_counter()
        for replica in self.replicas:
            replica.start()
        if self.requests.arrival_fs is None:
            self._feed(self.requests.concurrency or 0)
        elif len(self.requests):
            self.queue.at(self.requests.arrival_fs[0], self._arrivals())
        self.queue.run()
        return Outcome(
            requests=self._asked,
            log=self.log,
            steps=[replica.steps for replica in self.replicas],
            pool_tokens=sum(replica.pool.total * replica.pool.block_tokens for replica in self._decoders),
            peak_blocks=[replica.pool.peak for replica in self.replicas],
            block_tokens=self.replicas[0].pool.block_tokens,
            left_blocks=sum(replica.pool.in_use for replica in self.replicas),
            end_fs=self.queue.now,
            events=self.queue.processed,
            devices=sum(replica.cost.deployment.parallelism.devices for replica in self.replicas),
            stages=self.cost.deployment.parallelism.pp,
            notes=self._notes(),
            costs=tuple(replica.cost for replica in self.replicas),
            wall_s=time.perf_counter() - started,
        )

    def _arrivals(self) -> Process:
        """Every arrival comes before whatever else happens at its time, so it is a process of its own each time."""
        arrival = self.requests.arrival_fs
        if arrival is None:
            return
        index = self._next
        now = self.queue.now
        while index < len(arrival) and arrival[index] <= now:
            self._arrive(index)
            index += 1
        self._next = index
        if index < len(arrival):
            self.queue.at(arrival[index], self._arrivals())
        return
        yield

    def _feed(self, count: int, *due: int) -> None:
        """Lets ``due`` requests arrive, and ``count`` further ones of a closed loop; a rejected one makes room for the
        next.
        """
        self._free += count
        self._due.extend(due)
        if self._feeding:
            return
        self._feeding = True
        while self._due or (self._free and self._next < self._first):
            if self._due:
                self._arrive(self._due.popleft())
                continue
            self._free -= 1
            self._next += 1
            self._arrive(self._next - 1)
        self._feeding = False

    def _arrive(self, request: int) -> None:
        self.log.arrival[request] = self.queue.now
        arrived = self._as_arrived(request, self._arrived)
        self._arrived += 1
        read_fs = self._request_fs + self._token_fs * self.requests.input_tokens[request]
        self._after(read_fs, self._enter, request, arrived)

    def _as_arrived(self, request: int, number: int) -> Arrived:
        sessions, pieces = self.requests.sessions, self.requests.pieces
        return Arrived(number, sessions[request] if sessions else number, pieces[request] if pieces else ())

    def _after(self, wait_fs: int, action: Callable[..., None], *given: object) -> None:
        """Does it, now where there is nothing to wait for."""
        if wait_fs:
            self.queue.at(self.queue.now + wait_fs, _once(action, *given))
        else:
            action(*given)

    def _enter(self, request: int, arrived: Arrived) -> None:
        replica = self._routed(request, arrived, self._entry)
        wait_fs = replica.until_received(arrived.number)
        if self.options.prefill_replicas:
            # A decoding replica sets the transfer up before the prompt is computed
            receiving = self._decoders[arrived.number % len(self._decoders)]
            wait_fs = max(wait_fs, receiving.until_received(arrived.number, is_elsewhere=True))
        self._after(wait_fs, self._take_in, replica, request)

    def _take_in(self, replica: Replica, request: int) -> None:
        if replica.disk_piece_fs and replica.pool.on_disk(replica.pieces(request)):
            self.queue.start(replica.read_from_disk(request))
        else:
            replica.enqueue(request)

    def _routed(self, request: int, arrived: Arrived, replicas: Sequence[Replica]) -> Replica:
        """The replica that gets the request, and there the data-parallel rank with its cache."""
        found = replicas[self._pick(arrived, replicas) if len(replicas) > 1 else 0]
        number, session = arrived.number // len(replicas), arrived.session // len(replicas)
        found.assign(request, Arrived(number, session, arrived.pieces), self._pick)
        return found

    def _finished(self, replica: Replica, request: int) -> None:
        follower = self._followers.get(request)
        if follower is None:
            self._feed(self.requests.arrival_fs is None)
        else:
            self._after(self.requests.think_fs, self._feed, 0, follower)

    def _hand_over(self, replica: Replica, request: int, sent: Callable[[], None] | None) -> None:
        self.queue.start(self._travel(request, sent))

    def _travel(self, request: int, sent: Callable[[], None] | None) -> Process:
        """The prompt's cache goes to a decoding replica; a link carries one at a time. Who must know it is ``sent``."""
        tokens, link = self.requests.input_tokens[request], self._kv_links[request % len(self._kv_links)]
        before = self.queue.now - self.log.scheduled[request]
        yield link
        yield self._left_fs(tokens, before)
        link.release()
        if self._handover_fs:
            yield self._handover_fs
        if sent is not None:
            sent()
        arrived = self._as_arrived(request, self._handed)
        self._handed += 1
        replica = self._routed(request, arrived, self._decoders)
        if late_fs := replica.until_joined():
            yield late_fs
        replica.enqueue(request, kept=True)

    def _left_fs(self, tokens: int, before: float) -> int:
        """How long a prompt's cache still travels that was computed in the ``before`` fs until now: what did not fit in
        them, at least the last chunk's or layer's part.
        """
        cost, way = self._prefill_cost, self.options.kv_transfer
        whole = cost.transfer_fs(tokens * self._kv_bytes_per_token, self.options.kv_link_gb_s)
        if way == "whole":
            return whole
        parts = len(cost.layers) if way == "layer" else -(-tokens // cost.deployment.engine.max_batched_tokens)
        return max(-(-whole // parts), round(whole - before * (parts - 1) / parts))

    def _notes(self) -> tuple[str, ...]:
        costs = dict.fromkeys((self.cost, self._prefill_cost))
        notes = list(dict.fromkeys(note for cost in costs for note in (*cost.placed(len(costs)), *cost.notes)))
        if states := self.cost.states_bytes():
            most = self.cost.deployment.engine.max_num_seqs
            notes.append(
                f"the states of {most} sequences (--max-num-seqs) take {states / BYTES_PER_GB:.1f} GB per device "
                "from the KV cache"
            )
        if served := self.cost.deployment.adapters:
            taken = served.slots * self.cost.adapter_bytes() / BYTES_PER_GB
            notes.append(f"{served.slots} LoRA adapters (--max-loras) take {taken:.2g} GB per device from the KV cache")
        busy = max(replica.steps.disk_fs for replica in self.replicas)
        if busy > _WAITING_FOR_DISKS * self.queue.now:
            notes.append(
                f"disks are read {busy / self.queue.now:.0%} of the time, for which requests wait: faster ones, or "
                "more host memory (--cpu-cache), would help"
            )
        if self.log.rejected:
            reason = next(iter(self.log.rejected.values()))
            notes.append(f"{len(self.log.rejected)} of {len(self.requests)} requests were rejected: {reason}")
        return tuple(note for note in notes if note)


def _once(action: Callable[..., None], *given: object) -> Process:
    """A process that does only this."""
    action(*given)
    return
    yield


def simulate(
    deployment: Deployment, requests: Requests, options: Options | None = None, *, cost: StepCost | None = None
) -> Outcome:
    """Runs ``requests`` through ``deployment``. ``cost`` may be shared between runs of one deployment."""
    return Simulation(deployment, requests, options, cost=cost).run()
