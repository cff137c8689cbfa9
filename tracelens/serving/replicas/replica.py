"""One replica: requests come to its line, and its lanes serve them."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.serving.costs import StepCost
from tracelens.serving.event_queue import EventQueue
from tracelens.serving.log import RequestLog
from tracelens.serving.replicas.lane import Lane
from tracelens.serving.replicas.replica_state import Conduct, Listeners, ReplicaState
from tracelens.serving.requests import Requests


class Replica(ReplicaState):
    """A copy of the model with its own queue, cache and lanes."""

    def __init__(
        self, queue: EventQueue, cost: StepCost, requests: Requests, log: RequestLog, conduct: Conduct, to: Listeners
    ) -> None:
        super().__init__(queue, cost, requests, log, conduct, to)
        self.lanes = lanes = [Lane(self) for _ in self.stages]
        for lane in lanes:
            queue.start(lane.run())

    def enqueue(self, request: int, *, kept: bool = False) -> None:
        """A request arrives now; ``kept``: its prompt was computed elsewhere and its cache came with it."""
        requests = self.requests
        tokens = requests.input_tokens[request] + requests.output_tokens[request]
        if self.pool.blocks(tokens) > self.pool.total:
            self.log.rejected[request] = (
                f"{tokens} tokens do not fit a key-value cache of {self.pool.total * self.pool.block_tokens}"
            )
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
