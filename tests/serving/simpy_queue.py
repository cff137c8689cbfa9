"""The serving simulation's processes on SimPy: a kernel with the interface of ``EventQueue``."""

from __future__ import annotations

import simpy

from tracelens.predict.serving.event_queue import NEVER


class SimPyQueue:
    """Runs the same generator processes; what they yield becomes SimPy events."""

    def __init__(self):
        self.env = simpy.Environment()
        self.processed = 0

    @property
    def now(self):
        return self.env.now

    def start(self, process):
        self.env.process(self._driven(process))

    def at(self, time, process):
        # Before everything else at that time: SimPy's urgent priority
        event = self.env.event()
        event.callbacks.append(lambda _: self._begin(process))
        event._ok, event._value = True, None
        self.env.schedule(event, priority=simpy.events.URGENT, delay=time - self.env.now)

    def resource(self, name=""):
        return _Resource(self)

    def signal(self):
        return _Signal(self)

    def timer(self):
        return _Timer(self)

    def run(self):
        self.env.run()

    def _begin(self, process):
        for wait in process:
            raise AssertionError(f"an urgent process waits for {wait}")

    def _driven(self, process):
        for wait in process:
            if type(wait) is int:
                self.processed += 1
                yield self.env.timeout(wait)
            elif type(wait) is tuple:
                delay, count = wait
                self.processed += count
                yield self.env.all_of([self.env.timeout(delay) for _ in range(count)])
            else:
                yield wait.event()


class _Resource:
    def __init__(self, queue):
        self.resource = simpy.Resource(queue.env, capacity=1)
        self.held = []

    def event(self):
        request = self.resource.request()
        self.held.append(request)
        return request

    def release(self):
        self.resource.release(self.held.pop(0))


class _Signal:
    def __init__(self, queue):
        self.queue = queue
        self.waiting = []

    def event(self):
        self.waiting.append(self.queue.env.event())
        return self.waiting[-1]

    def fire(self):
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            event.succeed()


class _Timer:
    def __init__(self, queue):
        self.queue = queue
        self.due = NEVER
        self.woken = None

    def set(self, due):
        self.due = due
        if self.woken is not None:
            self._arm(due)

    def event(self):
        self.woken = self.queue.env.event()
        if self.due != NEVER:
            self._arm(self.due)
        return self.woken

    def _arm(self, due):
        woken = self.woken
        timeout = self.queue.env.timeout(due - self.queue.env.now)

        def end(_):
            if woken is self.woken and due == self.due:
                self.woken = None
                woken.succeed()

        timeout.callbacks.append(end)
