"""What a replica is made of before any step: how it is conducted, who is told, what its lanes share."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence, Sized
from typing import Any, NamedTuple, Protocol, TypeAlias

from tracelens.errors import UsageError
from tracelens.serving.cache import BlockPool
from tracelens.serving.costs import StageWork, StepCost
from tracelens.serving.event_queue import Arrivals, EventQueue
from tracelens.serving.log import RequestLog, StepLog
from tracelens.serving.replicas.waiting import waiting_line
from tracelens.serving.requests import Requests
from tracelens.serving.scheduling import Plan

LEVELS = ("high", "medium", "low")
PlanFunction: TypeAlias = Callable[[Any], Plan]
# Tokens per step as a fraction of this, so that sums of steps stay whole numbers.
ONE_TOKEN = 1 << 20


class Conduct(NamedTuple):
    """How a replica runs: what its steps take on, and in how much detail they pass.

    ``level`` is high, medium or low; ``contention`` makes collectives and hand-overs wait for the devices' ports;
    ``jitter`` is how much a layer's time varies.
    ``cpu_cache_bytes``: host memory for prefixes. ``alone``: nothing else is on the replica's queue of events.
    """

    plan: PlanFunction
    level: str = "medium"
    contention: bool = False
    jitter: float = 0.0
    order: str = "fcfs"
    series: bool = False
    cpu_cache_bytes: float = 0.0
    alone: bool = False


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
    a prompt is complete that decodes elsewhere, ``record`` after each step.
    """

    finished: Callable[[Any, int], None] | None = None
    hand_over: Callable[[Any, int], None] | None = None
    record: Callable[[Step], None] | None = None


class Sharer(Sized, Protocol):
    """A lane, as others see it: how many sequences it has, and what it is told."""

    def notice(self) -> None:
        """Something arrived."""
        ...

    def room(self) -> None:
        """Blocks came back."""
        ...


class ReplicaState:
    """What the lanes of a replica share: the requests and their line, the cache, the logs, how steps pass."""

    def __init__(
        self, queue: EventQueue, cost: StepCost, requests: Requests, log: RequestLog, conduct: Conduct, to: Listeners
    ) -> None:
        engine, parallel = cost.deployment.engine, cost.deployment.parallelism
        self.queue, self.cost, self.requests, self.log = queue, cost, requests, log
        self.plan, self.level, self.contention, jitter, order, series, cpu_cache_bytes, self.alone = conduct
        self.jitter = Jitter(jitter) if jitter and self.level != "low" else None
        self.finished, self.hand_over, self.record = to
        self.steps = StepLog(series=[] if series else None)
        total = cost.pool_tokens() // engine.block_tokens
        piece_bytes = requests.piece_tokens * cost.kv_bytes_per_token()
        lower = int(cpu_cache_bytes / piece_bytes) if piece_bytes else 0
        self.pool = BlockPool(total, engine.block_tokens, requests.piece_tokens, lower)
        self.watermark = round(total * engine.watermark)
        self.waiting = waiting_line(order, requests)
        self.done: dict[int, int] = {}
        self.kept: set[int] = set()
        self.outstanding = 0
        self.stages = [queue.resource(f"stage {index}") for index in range(parallel.pp)]
        self.hops = [queue.resource(f"hop {index}") for index in range(parallel.pp)]
        self.ports = [
            [queue.resource(f"port {stage}.{rank}") for rank in range(parallel.stage_devices)]
            for stage in range(parallel.pp)
        ]
        speculation = cost.deployment.speculation
        self.advance = ONE_TOKEN if speculation is None else round(speculation.tokens_per_step * ONE_TOKEN)
        self.swap_fs_per_token = self._pcie_fs_per_token() if engine.preemption == "swap" else 0
        self.reload_fs_per_token = self._pcie_fs_per_token() if lower else 0
        self.lanes: Sequence[Sharer] = ()
        self.arrivals = Arrivals((), ())

    @property
    def passes_runs(self) -> bool:
        """Whether many decode steps may pass as one: nobody looks between them, and each yields whole tokens."""
        is_watched = self.record is not None or self.steps.series is not None or self.level == "high"
        return len(self.stages) == 1 and not is_watched and self.jitter is None and self.advance % ONE_TOKEN == 0

    def _pcie_fs_per_token(self) -> int:
        rate = self.cost.system.device.pcie_gb_s
        if rate is None:
            raise UsageError(
                f"{self.cost.system.device.name}: moving caches to the host needs its PCIe rate, which is unknown"
            )
        devices = self.cost.deployment.parallelism.devices
        return round(self.cost.kv_bytes_per_token() / devices / (rate * 1e3) * 1e9)
