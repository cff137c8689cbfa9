"""Iteration-level scheduling: prompts join the running batch whole, in the step that decodes it."""

from __future__ import annotations

from tracelens.serving.scheduling import LaneView, Plan, policy


@policy("continuous")
def plan(lane: LaneView) -> Plan:
    """As Orca (Yu et al., 2022): decode everything, and with it whole prompts while the token budget lasts."""
    preempted = lane.make_room() if lane.decoding else False
    left = lane.budget - lane.decoding
    while not preempted:
        tokens = lane.first_waiting()
        if tokens is None or (tokens > left and (lane.partial or tokens <= lane.budget)):
            break
        if lane.admit() is None:
            break
        left -= tokens
    return list(lane.partial.items()), lane.decoding > 0
