"""A deterministic event queue: generator processes on a heap, ties in the order in which they were made.

A process is a generator that yields what it waits for: a whole number (a delay), a pair ``(delay, count)`` (``count``
equal activities that end together: one entry of the heap, each counted as an event), a ``Resource`` (granted first
come, first served; the process calls ``release``), a ``Timer`` or a ``Signal``. Times are whole numbers of whatever
unit the caller counts in, so sums are exact and ties are ties.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator
from heapq import heappop, heappush
from typing import Any, TypeAlias

from tracelens.errors import UsageError

#: What a process yields, see the module.
Process: TypeAlias = Generator[Any, None, None]
#: When a timer ends that is not set: later than anything that happens.
NEVER = 1 << 120
# Sequence numbers of urgent processes start below all others, so that they come first in a tie.
_URGENT = -(1 << 60)


class EventQueue:
    """``now`` is the time of the event that is happening, ``processed`` how many have happened.

    >>> queue, seen = EventQueue(), []
    >>> def clock(name, period):
    ...     for _ in range(2):
    ...         yield period
    ...         seen.append((queue.now, name))
    >>> queue.start(clock("slow", 3)); queue.start(clock("fast", 2)); queue.run(); seen
    [(2, 'fast'), (3, 'slow'), (4, 'fast'), (6, 'slow')]
    """

    __slots__ = ("_heap", "_urgent", "now", "number", "processed")

    def __init__(self) -> None:
        self.now = 0
        self.processed = 0
        self.number = itertools.count()
        self._urgent = itertools.count(_URGENT)
        self._heap: list[tuple[int, int, Any]] = []

    def start(self, process: Process) -> None:
        """Runs ``process`` up to its first wait at the current time, after what is already due now."""
        heappush(self._heap, (self.now, next(self.number), process))

    def at(self, time: int, process: Process) -> None:
        """Starts ``process`` at ``time``, before everything else that happens then."""
        if time < self.now:
            raise UsageError(f"an event at {time} cannot be added at {self.now}")
        heappush(self._heap, (time, next(self._urgent), process))

    def resource(self, name: str = "") -> Resource:
        """Something that one process at a time can hold."""
        return Resource(self, name)

    def timer(self) -> Timer:
        """A wait whose end can be moved."""
        return Timer(self)

    def signal(self) -> Signal:
        """A wait for whoever calls ``fire``."""
        return Signal(self)

    def resume(self, process: Process) -> None:
        """Lets a waiting process go on at the current time."""
        heappush(self._heap, (self.now, next(self.number), process))

    def push(self, time: int, entry: object) -> None:
        """For waits that put themselves on the heap."""
        heappush(self._heap, (time, next(self.number), entry))

    def run(self) -> None:
        """Until nothing is left to happen."""
        heap, number = self._heap, self.number
        while heap:
            time, _, entry = heappop(heap)
            if type(entry) is Timer:
                if entry.due != time or entry.process is None:
                    continue  # it was moved
                process, entry.process = entry.process, None
                entry = process
            self.processed += 1
            self.now = time
            wait = next(entry, None)
            if type(wait) is int:
                heappush(heap, (time + wait, next(number), entry))
            elif type(wait) is tuple:
                delay, count = wait
                self.processed += count - 1
                heappush(heap, (time + delay, next(number), entry))
            elif wait is not None:
                wait.add(entry)


class Resource:
    """One holder at a time, first come, first served; ``busy`` is how long it was held."""

    __slots__ = ("_held_since", "_queue", "_waiting", "busy", "name")

    def __init__(self, queue: EventQueue, name: str) -> None:
        self.name = name
        self.busy = 0
        self._queue = queue
        self._held_since: int | None = None
        self._waiting: deque[Process] = deque()

    def add(self, process: Process) -> None:
        """What ``yield resource`` does: go on once it is free."""
        if self._held_since is None:
            self._held_since = self._queue.now
            self._queue.resume(process)
        else:
            self._waiting.append(process)

    def release(self) -> None:
        """Hands it to the next in line. UsageError when nobody holds it."""
        if self._held_since is None:
            raise UsageError(f"{self.name or 'a resource'} is released but not held")
        now = self._queue.now
        self.busy += now - self._held_since
        if self._waiting:
            self._held_since = now
            self._queue.resume(self._waiting.popleft())
        else:
            self._held_since = None


class Timer:
    """``set`` it, then ``yield timer``; ``set`` again while waiting moves the end. ``set(NEVER)`` waits for that."""

    __slots__ = ("_queue", "due", "process")

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self.due = NEVER
        self.process: Process | None = None

    def set(self, due: int) -> None:
        """The end of the wait, in absolute time."""
        self.due = due
        if self.process is not None:
            self._queue.push(due, self)

    def add(self, process: Process) -> None:
        """What ``yield timer`` does."""
        self.process = process
        if self.due != NEVER:
            self._queue.push(self.due, self)


class Signal:
    """Processes that ``yield signal`` go on when it fires."""

    __slots__ = ("_queue", "_waiting")

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._waiting: list[Process] = []

    def add(self, process: Process) -> None:
        """What ``yield signal`` does."""
        self._waiting.append(process)

    def fire(self) -> None:
        """Everyone who waits goes on at the current time."""
        waiting, self._waiting = self._waiting, []
        for process in waiting:
            self._queue.resume(process)
