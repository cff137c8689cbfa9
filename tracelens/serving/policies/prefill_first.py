"""Waiting prompts first: a step is either prompts or decoding."""

from __future__ import annotations

from tracelens.serving.scheduling import LaneView, Plan, policy


@policy("prefill-first")
def plan(lane: LaneView) -> Plan:
    """As vLLM before its version 1: whole prompts up to the token budget; without any that fits, decode.

    A prompt longer than the budget goes alone.
    """
    left = lane.budget
    while (tokens := lane.first_waiting()) is not None and (tokens <= left or not lane.partial):
        if lane.admit() is None:
            break
        left -= tokens
    if lane.partial:
        return list(lane.partial.items()), False
    if lane.decoding:
        lane.make_room()
    return [], lane.decoding > 0
