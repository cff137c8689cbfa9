"""Decoding first, then pieces of prompts up to a token budget."""

from __future__ import annotations

from tracelens.serving.scheduling import LaneView, Plan, policy


@policy("chunked-prefill")
def plan(lane: LaneView) -> Plan:
    """As Sarathi-Serve (Agrawal et al., 2024) and vLLM 1: what decoding leaves of the budget goes to prompts.

    Prompts that have begun come first. In a step that had to preempt, none is admitted.
    """
    preempted = lane.make_room() if lane.decoding else False
    left = lane.budget - lane.decoding
    chunks = []
    for request, lacking in lane.partial.items():
        if left <= 0:
            break
        tokens = min(lacking, left)
        chunks.append((request, tokens))
        left -= tokens
    while left > 0 and not preempted and (lacks := lane.admit()) is not None:
        if lacks:
            tokens = min(lacks, left)
            chunks.append((next(reversed(lane.partial)), tokens))
            left -= tokens
    return chunks, lane.decoding > 0
