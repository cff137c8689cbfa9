"""The event queue: order, waits, and the same events at the same times as SimPy."""

from __future__ import annotations

import pytest
import simpy

from tracelens.errors import UsageError
from tracelens.predict.serving.event_queue import EventQueue


def test_ties_happen_in_the_order_in_which_they_were_made():
    queue, seen = EventQueue(), []

    def process(name):
        yield 5
        seen.append(name)

    for name in "abc":
        queue.start(process(name))
    queue.run()
    assert seen == ["a", "b", "c"]


def test_what_was_added_for_a_time_comes_before_what_else_happens_then():
    queue, seen = EventQueue(), []

    def process(name, delay):
        if delay:
            yield delay
        seen.append((queue.now, name))
        yield 0

    queue.start(process("late", 7))
    queue.at(7, process("urgent", 0))
    queue.run()
    assert seen == [(7, "urgent"), (7, "late")]


def test_equal_activities_end_together_and_each_is_an_event():
    queue, seen = EventQueue(), []

    def process():
        yield 3, 4
        seen.append(queue.now)

    queue.start(process())
    queue.run()
    assert seen == [3]
    assert queue.processed == 1 + 4  # the start, and four ends


def test_a_resource_is_granted_first_come_first_served_and_counts_its_busy_time():
    queue, seen = EventQueue(), []
    device = queue.resource("device")

    def process(name, arrives, holds):
        yield arrives
        yield device
        yield holds
        seen.append((name, queue.now))
        device.release()

    for name, arrives, holds in (("a", 0, 5), ("b", 1, 2), ("c", 2, 1)):
        queue.start(process(name, arrives, holds))
    queue.run()
    assert seen == [("a", 5), ("b", 7), ("c", 8)]
    assert device.busy == 5 + 2 + 1


def test_a_moved_timer_ends_once_at_its_last_time():
    queue, seen = EventQueue(), []
    timer = queue.timer()

    def sleeper():
        timer.set(100)
        yield timer
        seen.append(queue.now)

    def mover():
        yield 10
        timer.set(20)

    queue.start(sleeper())
    queue.start(mover())
    queue.run()
    assert seen == [20]


def test_releasing_what_nobody_holds_is_an_error():
    with pytest.raises(UsageError, match="not held"):
        EventQueue().resource("port 3").release()


def test_the_past_is_closed():
    queue = EventQueue()

    def process():
        yield 5
        queue.at(3, process())

    queue.start(process())
    with pytest.raises(UsageError, match="at 3 cannot be added at 5"):
        queue.run()


def test_simpy_has_the_same_events_at_the_same_times():
    plans = [(index % 3, 1 + (index * 7) % 5, 1 + index % 4) for index in range(40)]

    def ours():
        queue, seen = EventQueue(), []
        devices = [queue.resource() for _ in range(3)]

        def process(name, device, before, holds):
            yield before
            yield devices[device]
            seen.append((queue.now, name, "got"))
            yield holds
            devices[device].release()
            seen.append((queue.now, name, "gave"))

        for name, (device, before, holds) in enumerate(plans):
            queue.start(process(name, device, before, holds))
        queue.run()
        return seen

    def theirs():
        env, seen = simpy.Environment(), []
        devices = [simpy.Resource(env, capacity=1) for _ in range(3)]

        def process(name, device, before, holds):
            yield env.timeout(before)
            with devices[device].request() as request:
                yield request
                seen.append((env.now, name, "got"))
                yield env.timeout(holds)
            seen.append((env.now, name, "gave"))

        for name, (device, before, holds) in enumerate(plans):
            env.process(process(name, device, before, holds))
        env.run()
        return seen

    assert sorted(ours()) == sorted(theirs())
    assert len(ours()) == 2 * len(plans)
