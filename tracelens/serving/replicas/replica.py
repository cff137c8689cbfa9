"""One replica: requests come to its line, and its lanes serve them."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.serving.costs import StepCost
from tracelens.serving.event_queue import Arrivals, EventQueue
from tracelens.serving.lanes import Lane
from tracelens.serving.log import RequestLog
from tracelens.serving.replica_state import Conduct, Listeners, ReplicaState
from tracelens.serving.replicas.quick_lane import QuickLane
from tracelens.serving.requests import Requests


class Replica(ReplicaState):
    """A copy of the model with its own queue, cache and lanes."""

    def __init__(
        self, queue: EventQueue, cost: StepCost, requests: Requests, log: RequestLog, conduct: Conduct, to: Listeners
    ) -> None:
        super().__init__(queue, cost, requests, log, conduct, to)
        kind = QuickLane if self.alone and QuickLane.suits(self) else Lane
        self.lanes = self._lanes = [kind(self) for _ in self.stages]

    def start(self) -> None:
        """Its lanes begin on the queue, which others may share."""
        for lane in self._lanes:
            self.queue.start(lane.run())

    def run_alone(self, requests: Sequence[int]) -> None:
        """Its life, from the arrival of the first of ``requests`` to its last answer; of a single lane."""
        taken = [request for request in requests if self._takes(request)]
        times = self.requests.arrival_fs or ()
        self.arrivals = Arrivals([times[request] for request in taken], taken)
        self.queue.run_alone(self._lanes[0].run(), self.arrivals, self.enqueue)

    def enqueue(self, request: int, *, kept: bool = False) -> None:
        """A request arrives now; ``kept``: its prompt was computed elsewhere and its cache came with it."""
        if not self._takes(request):
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

    def cached_pieces(self, pieces: Sequence[int]) -> int:
        """How many leading pieces of a prompt the cache holds."""
        return self.pool.cached(pieces)

    def _takes(self, request: int) -> bool:
        """Whether it fits the cache; it is rejected where not."""
        tokens = self.requests.input_tokens[request] + self.requests.output_tokens[request]
        room = self.pool.total * self.pool.block_tokens
        if tokens > room:
            self.log.rejected[request] = f"{tokens} tokens do not fit a key-value cache of {room}"
        return tokens <= room
