"""Requests in line: first come, first served, or the smallest key first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tracelens.errors import UsageError
from tracelens.serving.requests import Requests


class Waiting:
    """Requests in line: first come, first served, or the smallest key first; preempted ones come back to the front."""

    __slots__ = ("_front", "_heap", "_key", "_line")

    def __init__(self, key: Callable[[int], Any] | None) -> None:
        self._key = key
        self._front: deque[int] = deque()
        self._line: deque[int] = deque()
        self._heap: list[tuple[Any, int]] = []

    def __len__(self) -> int:
        return len(self._front) + len(self._line) + len(self._heap)

    @property
    def is_ordered(self) -> bool:
        """Whether a newcomer can overtake."""
        return self._key is not None

    def append(self, request: int) -> None:
        if self._key is None:
            self._line.append(request)
        else:
            heappush(self._heap, (self._key(request), request))

    def put_back(self, request: int) -> None:
        self._front.appendleft(request)

    def first(self) -> int:
        if self._front:
            return self._front[0]
        return self._heap[0][1] if self._heap else self._line[0]

    def take(self) -> int:
        if self._front:
            return self._front.popleft()
        return heappop(self._heap)[1] if self._heap else self._line.popleft()


def order_key(order: str, requests: Requests) -> Callable[[int], Any] | None:
    """What the requests in line are sorted by; None: as they come. UsageError for an order that is none."""
    if order == "fcfs":
        return None
    if order == "sjf":
        return lambda request: (requests.input_tokens[request] + requests.output_tokens[request], request)
    if order == "priority":
        if not requests.priority:
            raise UsageError("order priority needs requests with a priority")
        return lambda request: (requests.priority[request], request)
    raise UsageError.unknown("order", order, ("fcfs", "sjf", "priority"))
