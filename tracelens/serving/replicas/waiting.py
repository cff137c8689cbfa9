"""Requests in line: first come, first served, or the smallest key first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tracelens.errors import UsageError
from tracelens.serving.requests import Requests


class Line(deque[int]):
    """First come, first served; preempted ones come back to the front."""

    __slots__ = ()

    #: Whether a newcomer can overtake.
    is_ordered = False

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

    def put_back(self, request: int) -> None:
        self._front.appendleft(request)

    def first(self) -> int:
        return self._front[0] if self._front else self._heap[0][1]

    def take(self) -> int:
        return self._front.popleft() if self._front else heappop(self._heap)[1]


def waiting_line(order: str, requests: Requests) -> Line | OrderedLine:
    """An empty line in ``order``: ``fcfs``, ``sjf`` or ``priority``. UsageError for an order that is none."""
    if order == "fcfs":
        return Line()
    if order == "sjf":
        return OrderedLine(lambda request: requests.input_tokens[request] + requests.output_tokens[request])
    if order == "priority":
        if not requests.priority:
            raise UsageError("order priority needs requests with a priority")
        return OrderedLine(lambda request: requests.priority[request])
    raise UsageError.unknown("order", order, ("fcfs", "sjf", "priority"))
