"""Requests through a deployment: routers, replicas with their lanes, and the end of the run."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracelens.backends import System
from tracelens.errors import UsageError
from tracelens.predict.serving.costs import FS_PER_US, StepCost
from tracelens.predict.serving.deployment import Deployment
from tracelens.predict.serving.event_queue import EventQueue, Process
from tracelens.predict.serving.lanes import SequentialLane
from tracelens.predict.serving.replica_state import LEVELS, Conduct, Listeners, ReplicaState, RequestLog, Step, StepLog
from tracelens.predict.serving.requests import Requests
from tracelens.predict.serving.scheduling import Arrived, ReplicaView, policies, routers
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GB, BYTES_PER_GIB

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

    def until_received(self, number: int) -> int:
        """Time in fs until the scheduler looks for the ``number``-th arrival: every ``recv_interval`` steps while
        sequences decode and no prompt is computed (SGLang's SchedulerRecvSkipper). Arrivals are spread evenly over the
        interval, by multiples of the golden ratio, so that a run repeats itself.
        """
        interval = self.cost.deployment.engine.recv_interval
        batch: int = sum(lane.decoding for lane in self.lanes)
        if interval == 1 or not batch or any(lane.partial for lane in self.lanes):
            return 0
        context: int = sum(lane.keys() for lane in self.lanes)
        line = self.cost.decode_line(batch, context)
        return round(number * _GOLDEN % 1 * (interval - 1) * (line.fixed + line.slope * context))

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


def _of_pools(made: StepCost | tuple[StepCost, StepCost], options: Options) -> tuple[StepCost, StepCost]:
    """The costs of replicas that decode and of those that compute prompts, if apart."""
    decoding, prefilling = made if isinstance(made, tuple) else (made, made)
    if not options.prefill_replicas:
        return decoding, prefilling
    return decoding.apart("decode"), prefilling.apart("prefill")


class DiskCache(Record, frozen=True, kw_only=True):
    """Disks of a replica for prefixes that left host memory: ``gib`` GiB, read at ``gb_s`` GB/s; None: as the file of
    the cluster says.
    """

    gib: float
    gb_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> DiskCache | None:
        """``2000`` or ``2000@12``; None for disks without bytes. UsageError for anything else, no speed too."""
        size, at, rate = text.partition("@")
        try:
            gib, gb_s = float(size), float(rate) if at else None
        except ValueError:
            raise UsageError(f"--disk-cache takes GIB or GIB@GB/s, e.g. 2000@12, not {text!r}") from None
        if not (0 <= gib < float("inf") and (gb_s is None or 0 < gb_s < float("inf"))):
            raise UsageError(f"--disk-cache takes 0 GiB or more at more than 0 GB/s, not {text}; leave it out for none")
        return cls(gib=gib, gb_s=gb_s) if gib else None

    def check(self, system: System, devices: int) -> None:
        """UsageError where the devices' share of their nodes has no such disks."""
        if (
            self.gb_s is None
            and system.disk_tb is not None
            and self.gib * BYTES_PER_GIB > system.disk_tb * devices * 1e12
        ):
            raise UsageError(
                f"--disk-cache {self.gib:g} GiB: {devices} x {system.device.name} have {system.disk_tb * devices:.3g} "
                "TB of their nodes' disks; give --disk-cache GIB@GB/s for others"
            )


TRANSFERS = ("whole", "chunk", "layer")


class Options(Record, frozen=True, kw_only=True):
    """How a deployment is run. ``levels`` has a level of detail per replica, or one for all.

    ``prefill_replicas`` > 0 separates the phases: those replicas compute prompts, ``replicas`` decode. A cache travels
    over the link of its data-parallel rank, one at a time, at ``kv_link_gb_s`` or the network's rate, and the first
    token reaches the client when the decoding replica takes the request, as with SGLang and Dynamo. ``kv_transfer``:
    it leaves ``whole`` after its prompt, or by ``chunk`` or ``layer`` while the rest of the prompt is computed.
    ``jitter``: the standard deviation of a layer's time on a device over its mean. ``cpu_cache_gib`` and
    ``disk_cache``: of each replica, for prefixes that left its devices.
    """

    policy: str | None = None
    router: str = "round-robin"
    replicas: int = 1
    prefill_replicas: int = 0
    cpu_cache_gib: float = 0.0
    disk_cache: DiskCache | None = None
    levels: tuple[str, ...] = ("medium",)
    contention: bool = False
    jitter: float = 0.0
    order: str = "fcfs"
    kv_link_gb_s: float | None = None
    kv_transfer: str = "whole"
    series: bool = False

    def __post_init__(self) -> None:
        if self.replicas < 1 or self.prefill_replicas < 0:
            raise UsageError("a deployment needs at least one replica")
        if len(self.levels) not in (1, self.replicas + self.prefill_replicas):
            raise UsageError(
                f"{len(self.levels)} levels of detail for {self.replicas + self.prefill_replicas} replicas"
            )
        if not 0 <= self.jitter <= 1:
            raise UsageError(f"jitter is a share of the mean time from 0 to 1, not {self.jitter:g}")
        if not 0 <= self.cpu_cache_gib < float("inf"):
            raise UsageError(f"the host's cache must be 0 GiB or more, not {self.cpu_cache_gib:g}")
        if self.disk_cache is not None and not self.cpu_cache_gib:
            raise UsageError("--disk-cache needs --cpu-cache: what disks have comes through host memory")
        if self.kv_transfer not in TRANSFERS:
            raise UsageError.unknown("cache transfer", self.kv_transfer, TRANSFERS)
        if self.kv_link_gb_s is not None and not self.kv_link_gb_s > 0:
            raise UsageError(f"the cache link needs a rate above 0 GB/s, not {self.kv_link_gb_s:g}")
        for level in self.levels:
            if level not in LEVELS:
                raise UsageError.unknown("level of detail", level, LEVELS)

    def level(self, index: int) -> str:
        """The level of detail of replica ``index``."""
        return self.levels[index if len(self.levels) > 1 else 0]


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
        policy = options.policy or deployment.engine.policy
        for known, name, what in ((policies(), policy, "policy"), (routers(), options.router, "router")):
            if name not in known:
                raise UsageError.unknown(what, name, known)
        self._pick, self._plan = routers()[options.router].target, policies()[policy].target
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
                plan=self._plan,
                level=options.level(index),
                contention=options.contention,
                jitter=options.jitter,
                order=options.order,
                series=options.series,
                cpu_cache_bytes=options.cpu_cache_gib * BYTES_PER_GIB,
                disk_cache_bytes=options.disk_cache.gib * BYTES_PER_GIB if options.disk_cache else 0.0,
                disk_gb_s=options.disk_cache.gb_s if options.disk_cache else None,
                only_arrivals=is_alone or not (is_answered or options.prefill_replicas),
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
        replica, receiving = self._routed(request, arrived, self._entry), []
        if self.options.prefill_replicas:
            # A decoding replica sets the transfer up before the prompt is computed
            receiving = [self._decoders[arrived.number % len(self._decoders)]]
        wait_fs = max(each.until_received(arrived.number) for each in (replica, *receiving))
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

    def _hand_over(self, replica: Replica, request: int) -> None:
        self.queue.start(self._travel(request))

    def _travel(self, request: int) -> Process:
        """The prompt's cache goes to a decoding replica; a link carries one at a time."""
        tokens, link = self.requests.input_tokens[request], self._kv_links[request % len(self._kv_links)]
        before = self.queue.now - self.log.scheduled[request]
        yield link
        yield self._left_fs(tokens, before)
        link.release()
        if self._handover_fs:
            yield self._handover_fs
        arrived = self._as_arrived(request, self._handed)
        self._handed += 1
        self._routed(request, arrived, self._decoders).enqueue(request, kept=True)

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
