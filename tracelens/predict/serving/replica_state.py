"""What a replica is made of before any step: its line of requests, its paged key-value cache, and
what it records, times per request and sums over steps.

Times are femtoseconds; those per request, and gaps, as floats: 64-bit whole numbers would end after 2.6 hours.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.backends import System
from tracelens.errors import UsageError
from tracelens.predict.serving.costs import Mix, StageWork, StepCost
from tracelens.predict.serving.event_queue import EventQueue, Process
from tracelens.predict.serving.requests import Requests
from tracelens.predict.serving.scheduling import Plan
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GIB

#: Runs of steps of one kind that a log keeps at most.
MOST_KEPT = 2048


class RequestLog(Record, frozen=False, kw_only=True):
    """One entry per request; -1 is never."""

    arrival: array[float]
    scheduled: array[float]
    first: array[float]
    last: array[float]
    preempted: array[int]
    rejected: dict[int, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, count: int) -> RequestLog:
        def never() -> array[float]:
            return array("d", [-1]) * count

        return cls(arrival=never(), scheduled=never(), first=never(), last=never(), preempted=array("q", [0]) * count)


class RanSteps(Record, frozen=False, kw_only=True):
    """Steps that followed each other, with prompts or all of one batch: how many, when the first began, how long they
    took, and what they computed, as ``StepCost.mixed`` takes it but for the context; ``contexts`` is its sum.
    """

    start: int
    duration: int
    count: int
    contexts: float
    mix: Mix

    @property
    def step_fs(self) -> float:
        return self.duration / self.count

    @property
    def middle(self) -> Mix:
        """What a step computed at the mean context."""
        return (*self.mix[:5], round(self.contexts / self.count))


class StepSample(Record, frozen=False, kw_only=True):
    """The steps of one kind, how long they took in all, and every ``every``-th run of them."""

    total_fs: int = 0
    every: int = 1
    seen: int = 0
    kept: list[RanSteps] = msgspec.field(default_factory=list)

    def add(self, ran: RanSteps) -> None:
        """One more, which counts towards ``total_fs`` whether it is kept or not."""
        if self.seen % self.every == 0:
            self.kept.append(ran)
            if len(self.kept) > MOST_KEPT:
                del self.kept[1::2]
                self.every *= 2
        self.seen += 1

    def times_fs(self, start: float, end: float) -> npt.NDArray[np.float64]:
        """How much of the time from ``start`` to ``end`` each run that was kept takes, with those it stands for."""
        began, took = np.array([(ran.start, ran.duration) for ran in self.kept], np.float64).reshape(-1, 2).T
        within = np.clip(np.minimum(began + took, end) - np.maximum(began, start), 0, None)
        found: npt.NDArray[np.float64] = within * (self.total_fs / took.sum() if len(took) else 1.0)
        return found


class StepLog(Record, frozen=False, kw_only=True):
    """Sums over the steps of one replica, and every gap between two tokens of one sequence.

    Gaps are runs: ``count`` steps that take ``first``, ``first + growth`` ..., each ends a gap of ``weight`` sequences.
    """

    decode_steps: int = 0
    prompt_steps: int = 0
    decoded: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    disk_fs: int = 0
    busy: int = 0
    context_time: int = 0
    compute_events: int = 0
    exchange_events: int = 0
    transfer_events: int = 0
    gap_first: array[float] = msgspec.field(default_factory=lambda: array("d"))
    gap_growth: array[float] = msgspec.field(default_factory=lambda: array("d"))
    gap_count: array[int] = msgspec.field(default_factory=lambda: array("q"))
    gap_weight: array[int] = msgspec.field(default_factory=lambda: array("q"))
    series: list[tuple[int, int, int, int, int, int]] | None = None
    prompts: StepSample = msgspec.field(default_factory=StepSample)
    decoding: StepSample = msgspec.field(default_factory=StepSample)
    last_run: RanSteps | None = None

    def ran(self, start: int, duration: int, mix: Mix, *, steps: int = 1, context: float | None = None) -> None:
        """Takes in ``steps`` steps, of a mean ``context`` where they are several; decode steps of one batch that follow
        each other are one run, so the level of detail makes no difference.
        """
        contexts = steps * (mix[5] if context is None else context)
        if mix[1]:
            self.last_run = None
            self.prompts.total_fs += duration
            self.prompts.add(RanSteps(start=start, duration=duration, count=1, contexts=contexts, mix=mix))
            return
        self.decoding.total_fs += duration
        last = self.last_run
        if last is not None and last.mix[4] == mix[4]:
            last.duration += duration
            last.count += steps
            last.contexts += contexts
            return
        self.last_run = last = RanSteps(start=start, duration=duration, count=steps, contexts=contexts, mix=mix)
        self.decoding.add(last)

    @property
    def steps(self) -> int:
        """Those that decode, and those of prompts alone."""
        return self.decode_steps + self.prompt_steps

    def gap(self, first: float, weight: int, growth: float = 0, count: int = 1) -> None:
        """Adds a run of gaps."""
        self.gap_first.append(first)
        self.gap_growth.append(growth)
        self.gap_count.append(count)
        self.gap_weight.append(weight)

    def gaps(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Every gap and how many sequences had it."""
        first, growth = (np.array(column, dtype=np.float64) for column in (self.gap_first, self.gap_growth))
        count, weight = (np.array(column, dtype=np.int64) for column in (self.gap_count, self.gap_weight))
        if not len(first) or int(count.max()) == 1:
            return first, weight
        starts = np.repeat(np.cumsum(count) - count, count)
        index = np.arange(int(count.sum())) - starts
        return np.repeat(first, count) + np.repeat(growth, count) * index, np.repeat(weight, count)


class BlockPool:
    """``total`` blocks of ``block_tokens`` tokens; ``peak`` is the most that were in use at once.

    Shared beginnings are kept under the hash of each piece of ``piece_tokens`` tokens, as whole blocks. While nobody
    uses a piece it counts as available, and the least recently used one gives way first: to
    ``lower_pieces`` pieces of host memory, of which again the least recently used one goes to ``disk_pieces`` of disks,
    and of those it is forgotten.
    """

    def __init__(
        self, total: int, block_tokens: int, piece_tokens: int = 0, lower_pieces: int = 0, disk_pieces: int = 0
    ) -> None:
        self.total = total
        #: Blocks that can be taken: free ones, and cached pieces that nobody uses.
        self.available = self._least = total
        self.block_tokens = block_tokens
        self.piece_blocks = piece_tokens // block_tokens
        #: Of a piece, those that whole blocks hold.
        self.piece_tokens = self.piece_blocks * block_tokens
        self._pieces: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.lower_pieces = lower_pieces
        self._below: OrderedDict[int, None] = OrderedDict()
        self.disk_pieces = disk_pieces
        self._disk: OrderedDict[int, None] = OrderedDict()

    @property
    def in_use(self) -> int:
        return self.total - self.available

    @property
    def peak(self) -> int:
        return self.total - self._least

    def blocks(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_tokens)

    def take(self, blocks: int) -> None:
        """UsageError when there are not as many."""
        left = self.available - blocks
        if left < 0:
            raise UsageError(f"{blocks} blocks requested, but {self.available} of {self.total} are free")
        self.available = left
        if left < self._least:
            self._least = left
        while self._idle and left < len(self._idle) * self.piece_blocks:
            piece, _ = self._idle.popitem(last=False)
            del self._pieces[piece]
            self._keep_below(piece)

    def give(self, blocks: int) -> None:
        """Returns blocks. UsageError when more come back than were taken."""
        self.available += blocks
        if self.available > self.total:
            raise UsageError(f"{self.available} free blocks of {self.total}: more were freed than allocated")

    def cached(self, pieces: Sequence[int]) -> int:
        """How many leading pieces are there."""
        count = 0
        for piece in pieces:
            if piece not in self._pieces:
                break
            count += 1
        return count

    def below(self, pieces: Sequence[int]) -> int:
        """How many of the leading pieces host memory has, which counts as using them."""
        count = 0
        for piece in pieces:
            if piece not in self._below:
                break
            self._below.move_to_end(piece)
            count += 1
        return count

    def on_disk(self, pieces: Sequence[int]) -> list[int]:
        """Those that disks have, of the leading pieces that no device has and host memory or disks have."""
        found = []
        for piece in pieces[self.cached(pieces) :]:
            if piece in self._below:
                continue
            if piece not in self._disk:
                break
            found.append(piece)
        return found

    def lift(self, pieces: Sequence[int]) -> None:
        """These pieces were read from disks into host memory, the first of them to be kept longest."""
        for piece in reversed(pieces):
            self._disk.pop(piece, None)
            self._keep_below(piece)

    def _keep_below(self, piece: int) -> None:
        if not self.lower_pieces:
            return
        self._below[piece] = None
        self._below.move_to_end(piece)
        if len(self._below) > self.lower_pieces:
            gone, _ = self._below.popitem(last=False)
            if self.disk_pieces:
                self._disk[gone] = None
                self._disk.move_to_end(gone)
                if len(self._disk) > self.disk_pieces:
                    self._disk.popitem(last=False)

    def idle_among(self, pieces: Sequence[int]) -> int:
        """Blocks of those pieces that count as available now, and will not once they are held."""
        return sum(piece in self._idle for piece in pieces) * self.piece_blocks

    def hold(self, pieces: Sequence[int]) -> int:
        """A request uses these pieces; those that are missing take blocks. Returns how many were there already."""
        found = self.cached(pieces)
        for piece in pieces:
            if piece in self._pieces:
                self._pieces[piece] += 1
                if piece in self._idle:
                    del self._idle[piece]
                    self.available -= self.piece_blocks
            else:
                self.take(self.piece_blocks)
                self._pieces[piece] = 1
        self._least = min(self._least, self.available)
        return found

    def keep(self, pieces: Sequence[int]) -> None:
        """The blocks of these pieces were just given back: they stay as cached, the last ones the first to give way."""
        for piece in reversed(pieces):
            if piece not in self._pieces:
                self._pieces[piece] = 0
                self._idle[piece] = None

    def drop(self, pieces: Sequence[int], computed: int | None = None) -> None:
        """A request no longer uses these pieces; the last piece of a prompt becomes the first to give way. Of those
        after the ``computed`` ones there is nothing to keep; None: of all there is.
        """
        for index in reversed(range(len(pieces))):
            piece = pieces[index]
            self._pieces[piece] -= 1
            if not self._pieces[piece]:
                self.available += self.piece_blocks
                if computed is None or index < computed:
                    self._idle[piece] = None
                else:
                    del self._pieces[piece]


class FirstComeQueue(deque[int]):
    """First come, first served; preempted ones come back to the front."""

    __slots__ = ()

    #: Whether a newcomer can overtake.
    is_ordered = False

    def bring(self, fits: Callable[[int], bool]) -> bool:
        """Moves the first one that fits to the front; whether there is one."""
        for index, request in enumerate(self):
            if fits(request):
                del self[index]
                self.appendleft(request)
                return True
        return False

    put_back = deque.appendleft
    take = deque.popleft

    def first(self) -> int:
        return self[0]


class OrderedLine:
    """The smallest key first; preempted ones come back to the front."""

    __slots__ = ("_front", "_heap", "_key")

    #: Whether a newcomer can overtake.
    is_ordered = True

    def __init__(self, key: Callable[[int], Any]) -> None:
        self._key = key
        self._front: deque[int] = deque()
        self._heap: list[tuple[Any, int]] = []

    def __len__(self) -> int:
        return len(self._front) + len(self._heap)

    def append(self, request: int) -> None:
        heappush(self._heap, (self._key(request), request))

    def bring(self, fits: Callable[[int], bool]) -> bool:
        """See ``FirstComeQueue``."""
        found = next(
            (request for request in (*self._front, *(each for _, each in sorted(self._heap))) if fits(request)), None
        )
        if found is None:
            return False
        if found in self._front:
            self._front.remove(found)
        else:
            self._heap.remove((self._key(found), found))
            heapify(self._heap)
        self._front.appendleft(found)
        return True

    def put_back(self, request: int) -> None:
        self._front.appendleft(request)

    def first(self) -> int:
        return self._front[0] if self._front else self._heap[0][1]

    def take(self) -> int:
        return self._front.popleft() if self._front else heappop(self._heap)[1]


def waiting_line(order: str, requests: Requests) -> FirstComeQueue | OrderedLine:
    """An empty line in ``order``: ``fcfs``, ``sjf`` or ``priority``. UsageError for an order that is none."""
    if order == "fcfs":
        return FirstComeQueue()
    if order == "sjf":
        return OrderedLine(lambda request: requests.input_tokens[request] + requests.output_tokens[request])
    if order == "priority":
        if not requests.priority:
            raise UsageError("order priority needs requests with a priority")
        return OrderedLine(lambda request: requests.priority[request])
    raise UsageError.unknown("order", order, ("fcfs", "sjf", "priority"))


LEVELS = ("high", "medium", "low")
PlanFunction: TypeAlias = Callable[[Any], Plan]
# Tokens per step as a fraction of this, so that sums of steps stay whole numbers.
ONE_TOKEN = 1 << 20


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


class Conduct(NamedTuple):
    """How a replica runs: ``level`` is its own of those in ``options``. ``only_arrivals``: nothing but a request that
    arrives from outside reaches the replica while a step passes.
    """

    options: Options
    plan: PlanFunction
    level: str
    only_arrivals: bool


class Jitter:
    """Times that vary: log-normal factors of mean 1, the same ones for the same run.

    ``deviation``: of one layer on one device, over its mean.
    """

    def __init__(self, deviation: float) -> None:
        self._variance = deviation * deviation
        self._draw = random.Random(0).lognormvariate  # noqa: S311 - times, not secrets

    def slowest(self, duration: int, devices: int, layers: int) -> int:
        """How long the slowest of ``devices`` takes for ``layers`` that take ``duration`` together in the mean."""
        sigma = math.sqrt(math.log1p(self._variance / max(layers, 1)))
        mean = -sigma * sigma / 2
        return round(duration * max(self._draw(mean, sigma) for _ in range(devices)))


class Step(NamedTuple):
    """What one step of a lane did, for whoever records steps."""

    start: int
    end: int
    tokens: int
    batch: int
    context: int
    chunks: list[tuple[int, int]]
    stages: tuple[StageWork, ...]


class Listeners(NamedTuple):
    """Who is told: ``finished(replica, request)`` when an answer is complete or a request rejected, ``hand_over`` when
    a prompt is complete that decodes elsewhere, with whom to tell that its cache is there, ``record`` after each step.
    """

    finished: Callable[[Any, int], None] | None = None
    hand_over: Callable[[Any, int, Callable[[], None] | None], None] | None = None
    record: Callable[[Step], None] | None = None


class ReplicaState:
    """What the lanes of a replica share: the requests and their line, the cache, the logs, how steps pass."""

    def __init__(
        self, queue: EventQueue, cost: StepCost, requests: Requests, log: RequestLog, conduct: Conduct, to: Listeners
    ) -> None:
        engine, parallel = cost.deployment.engine, cost.deployment.parallelism
        self.queue, self.cost, self.requests, self.log = queue, cost, requests, log
        options = conduct.options
        self.plan, self.level, self.contention = conduct.plan, conduct.level, options.contention
        self.jitter = Jitter(options.jitter) if options.jitter and self.level != "low" else None
        self.finished, self.hand_over, self.record = to
        self.steps = StepLog(series=[] if options.series else None)
        total = cost.pool_tokens() // engine.block_tokens
        self.pool = self._pool(total, options)
        self.watermark = round(total * engine.watermark)
        self.waiting = waiting_line(options.order, requests)
        self.done: dict[int, int] = {}
        self.kept: set[int] = set()
        self.outstanding = 0
        #: Where data-parallel ranks have prefixes of their own: which rank has which of the requests.
        self.rank_of: dict[int, int] = {}
        self.stages = [queue.resource(f"stage {index}") for index in range(parallel.pp)]
        self.hops = [queue.resource(f"hop {index}") for index in range(parallel.pp)]
        self.ports = [
            [queue.resource(f"port {stage}.{rank}") for rank in range(parallel.stage_devices)]
            for stage in range(parallel.pp)
        ]
        speculation = cost.deployment.speculation
        self.advance = ONE_TOKEN if speculation is None else round(speculation.tokens_per_step * ONE_TOKEN)
        self.swap_fs_per_token = self._pcie_fs_per_token() if engine.preemption == "swap" else 0
        self.disk, self._pcie = queue.resource("disk"), queue.resource("pcie")
        #: Requests that wait with their blocks and prefixes: how many tokens are cached, whether for the answer, too.
        self.loaded: dict[int, tuple[int, bool]] = {}
        served = cost.deployment.adapters if requests.adapters else None
        #: LoRA adapters in the devices' memory, least recently used first, and how many may be.
        self.adapters: OrderedDict[int, None] = OrderedDict()
        self.adapter_slots = 0 if served is None else served.slots * parallel.dp
        self.adapter_fs = self._pcie_fs(cost.adapter_bytes()) if self.adapter_slots else 0
        #: Where prompts go to data-parallel ranks by chance: each one's rank; and the least tokens of a prompt.
        self.places = self._drawn()
        self.shortest = min(requests.input_tokens, default=0)
        #: ``lanes.SequentialLane``, one per stage.
        self.lanes: Sequence[Any] = ()
        #: Whether decode steps up to the next change pass in one wait, which an arrival cuts.
        self.leaps = self.level == "low" or conduct.only_arrivals

    def _drawn(self) -> Sequence[int]:
        """A rank by chance for each request, the same in every run, where no cached prefix or adapter names it."""
        if not self.cost.by_chance or self.hand_over is None or self.requests.pieces or self.adapter_slots:
            return ()
        ranks = self.cost.deployment.parallelism.dp
        drawn: list[int] = np.random.default_rng(0).integers(0, ranks, len(self.requests)).tolist()
        return drawn

    def _pool(self, total: int, options: Options) -> BlockPool:
        """The cache of ``total`` blocks with its tiers, and how fast these are."""
        engine, piece_tokens = self.cost.deployment.engine, self.requests.piece_tokens
        piece_bytes = piece_tokens * self.cost.kv_bytes_per_token()
        disks = options.disk_cache
        tiers_gib = (options.cpu_cache_gib, 0.0 if disks is None else disks.gib)
        lower, disk = (int(gib * BYTES_PER_GIB / piece_bytes) if piece_bytes else 0 for gib in tiers_gib)
        self.reload_fs_per_token = self._pcie_fs_per_token() if lower else 0
        self.cache_load = engine.cache_load
        self.disk_piece_fs = self._disk_fs(piece_bytes, disks.gb_s) if disks and disk else 0
        return BlockPool(total, engine.block_tokens, piece_tokens, lower, disk)

    def pieces(self, request: int) -> Sequence[int]:
        """The pieces of its prompt, as its data-parallel rank has them."""
        return self.on_rank(self.requests.pieces[request], self.rank_of.get(request, 0)) if self.requests.pieces else ()

    def on_rank(self, pieces: Sequence[int], rank: int) -> Sequence[int]:
        """The names of pieces in the cache of a data-parallel rank, which shares none with others."""
        ranks = self.cost.deployment.parallelism.dp
        if ranks == 1 or not pieces:
            return pieces
        if isinstance(pieces, range):
            return range(pieces.start * ranks + rank, pieces.stop * ranks + rank, ranks)
        return [piece * ranks + rank for piece in pieces]

    @property
    def passes_runs(self) -> bool:
        """Whether many decode steps may pass as one: nobody looks between them, at what they evict to disks either, and
        each yields whole tokens.
        """
        is_seen = self.steps.series is not None or self.disk_piece_fs > 0
        is_watched = self.record is not None or is_seen or self.level == "high"
        return len(self.stages) == 1 and not is_watched and self.jitter is None and self.advance % ONE_TOKEN == 0

    def _disk_fs(self, nbytes: float, gb_s: float | None) -> int:
        """The time to read bytes from the disks of the replica's devices' share of their nodes, or at ``gb_s``."""
        system, devices = self.cost.system, self.cost.deployment.parallelism.devices
        rate = gb_s if gb_s is not None else None if system.disk_gb_s is None else devices * system.disk_gb_s
        if rate is None:
            raise UsageError(
                f"{system.device.name}: the rate of its node's disks is unknown; give --disk-cache GIB@GB/s"
            )
        return round(nbytes / (rate * 1e3) * 1e9)

    def _pcie_fs_per_token(self) -> int:
        return self._pcie_fs(self.cost.kv_bytes_per_token() / self.cost.deployment.parallelism.devices)

    def _pcie_fs(self, nbytes: float) -> int:
        """The time of bytes between the host and each device."""
        rate = self.cost.system.device.pcie_gb_s
        if rate is None:
            raise UsageError(
                f"{self.cost.system.device.name}: its PCIe rate is unknown, so caches and adapters cannot move to and "
                "from the host"
            )
        return round(nbytes / (rate * 1e3) * 1e9)

    def load(self, request: int, pieces: int, loaded: tuple[int, bool]) -> Process:
        """Pieces come from host memory while steps go on; then the request, which has its blocks, is the next one."""
        yield self._pcie
        yield pieces * self.pool.piece_tokens * self.reload_fs_per_token
        self._pcie.release()
        self.loaded[request] = loaded
        self.waiting.put_back(request)
        for lane in self.lanes:
            lane.room()
            lane.notice()

    def load_adapter(self, adapter: int) -> int:
        """For how long a step waits that needs this adapter: until it is in a slot, for which the least recently used
        one makes room that no sequence needs.
        """
        if adapter in self.adapters:
            self.adapters.move_to_end(adapter)
            return 0
        if len(self.adapters) >= self.adapter_slots:
            idle = (each for each in self.adapters if all(each not in lane.adapters for lane in self.lanes))
            del self.adapters[next(idle, next(iter(self.adapters)))]
        self.adapters[adapter] = None
        return self.adapter_fs
