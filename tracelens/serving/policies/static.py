"""A batch is formed, runs until its last answer is complete, and only then the next one is formed."""

from __future__ import annotations

from tracelens.serving.scheduling import LaneView, Plan, policy


@policy("static")
def plan(lane: LaneView) -> Plan:
    """All prompts of the batch in one step; answers that are complete leave, their places stay empty."""
    if not lane.decoding and not lane.partial:
        while lane.admit(whole=True) is not None:
            pass
    return list(lane.partial.items()), not lane.partial and lane.decoding > 0
