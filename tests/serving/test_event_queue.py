"""What is waited for: ties, equal activities, and the parts of a server that one process at a time can hold."""

from __future__ import annotations

import pytest

from tracelens.errors import UsageError
from tracelens.predict.serving.replica_state import EventQueue, ServerPart


def test_ties_happen_in_the_order_in_which_they_were_made():
    queue, seen = EventQueue(), []

    def process(name):
        yield queue.after(5)
        seen.append(name)

    for name in "abc":
        queue.start(process(name))
    queue.run()
    assert seen == ["a", "b", "c"]


def test_equal_activities_end_together_and_each_is_an_event():
    queue, seen = EventQueue(), []

    def process():
        yield queue.after(3, 4)
        seen.append(queue.now)

    queue.start(process())
    queue.run()
    assert seen == [3]
    assert queue.processed == 1 + 4  # the start, and four ends


def test_a_part_is_granted_first_come_first_served_and_counts_its_busy_time():
    queue, seen = EventQueue(), []
    device = ServerPart(queue)

    def process(name, arrives, holds):
        yield queue.after(arrives)
        yield device.take()
        yield queue.after(holds)
        seen.append((name, queue.now))
        device.release()

    for name, arrives, holds in (("a", 0, 5), ("b", 1, 2), ("c", 2, 1)):
        queue.start(process(name, arrives, holds))
    queue.run()
    assert seen == [("a", 5), ("b", 7), ("c", 8)]
    assert device.busy == 5 + 2 + 1


def test_a_part_that_is_released_is_the_next_ones_before_what_else_begins_then():
    queue, seen = EventQueue(), []
    device = ServerPart(queue)

    def process(name, arrives):
        yield queue.after(arrives)
        yield device.take()
        seen.append((queue.now, name))
        yield queue.after(5)
        device.release()
        yield queue.after(0)
        seen.append((queue.now, name, "after"))

    for name, arrives in (("a", 0), ("b", 1)):
        queue.start(process(name, arrives))
    queue.run()
    assert seen == [(0, "a"), (5, "b"), (5, "a", "after"), (10, "b", "after")]


def test_releasing_what_nobody_holds_is_an_error():
    with pytest.raises(UsageError, match="not held"):
        ServerPart(EventQueue()).release()
