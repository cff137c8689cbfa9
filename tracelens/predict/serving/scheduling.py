"""Routers, which pick a replica for a request, and batching policies, which say what a lane's next step does."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from tracelens.registry import Registry, mark

F = TypeVar("F", bound=Callable[..., Any])


class Arrived(NamedTuple):
    """What a router sees of a request: the how manieth arrival it is, from 0; its session's number, its own without
    sessions; and the pieces of its prompt.
    """

    number: int
    session: int
    pieces: Sequence[int] = ()


class ReplicaView(Protocol):
    """What a router sees of a replica, or of one of its data-parallel ranks."""

    @property
    def outstanding(self) -> int:
        """Requests that it has and has not finished."""
        ...

    def cached_pieces(self, pieces: Sequence[int]) -> int:
        """How many leading pieces of a prompt its cache holds."""
        ...


def router(name: str) -> Callable[[F], F]:
    """Marks ``pick(arrived, replicas) -> index`` as the router ``name``."""
    return mark("router", name)


@router("round-robin")
def round_robin(arrived: Arrived, replicas: Sequence[ReplicaView]) -> int:
    """The ``number``-th arrival goes to replica ``number`` modulo their count."""
    return arrived.number % len(replicas)


@router("random")
def by_chance(arrived: Arrived, replicas: Sequence[ReplicaView]) -> int:
    """Any replica, the same in every run."""
    return int(np.random.default_rng(arrived.number).integers(len(replicas)))


@router("session-affinity")
def session_affinity(arrived: Arrived, replicas: Sequence[ReplicaView]) -> int:
    """All requests of a session go to one replica, sessions in turns; requests without sessions in turns, too."""
    return arrived.session % len(replicas)


@router("least-loaded")
def least_loaded(arrived: Arrived, replicas: Sequence[ReplicaView]) -> int:
    """The first of equals."""
    return min(range(len(replicas)), key=lambda index: replicas[index].outstanding)


#: A replica this many requests above the least loaded is passed over, so that one popular text does not fill it alone.
MOST_AHEAD = 8


@router("prefix-aware")
def prefix_aware(arrived: Arrived, replicas: Sequence[ReplicaView]) -> int:
    """The longest cached beginning among replicas that are not far ahead of the least loaded; ties to the latter."""
    least = min(replica.outstanding for replica in replicas)
    near = [index for index, replica in enumerate(replicas) if replica.outstanding <= least + MOST_AHEAD]
    return max(near, key=lambda index: (replicas[index].cached_pieces(arrived.pieces), -replicas[index].outstanding))


@functools.cache
def routers() -> Registry:
    """Every router of this package by name."""
    return Registry.collect("router", [sys.modules[__name__]])


#: Prompts and how many of their tokens the step takes, and whether the lane's sequences decode.
Plan: TypeAlias = tuple[list[tuple[int, int]], bool]


class LaneView(Protocol):
    """What a policy sees and may do. A lane is a replica, or one of the micro-batches of its pipeline."""

    #: Sequences that decode.
    decoding: int
    #: Prompts that were admitted and not finished, and how many tokens they lack, in order of admission.
    partial: dict[int, int]

    @property
    def budget(self) -> int:
        """Most new tokens of a step on one data-parallel rank, each of which has a scheduler of its own."""
        ...

    def rooms(self, decoding: int) -> list[int]:
        """New tokens that each data-parallel rank has left beside its share of ``decoding`` sequences."""
        ...

    def place(self, request: int) -> int | None:
        """The data-parallel rank that computes its prompt; None for the one with most room."""
        ...

    def first_waiting(self) -> int | None:
        """Tokens that the next waiting prompt lacks; None when nothing waits."""
        ...

    def admit(self, *, whole: bool = False, part: bool = False) -> int | None:
        """Takes the next waiting request in: it is then the last of ``partial``, or decodes (its cache was kept).

        Returns how many prompt tokens it lacks. None when nothing waits or it does not fit now. ``whole`` reserves room
        for the answer, too; with ``part``, a data-parallel rank with any tokens left takes a prompt.
        """
        ...

    def make_room(self) -> bool:
        """Reserves the blocks of the next decode step, preempting the last admitted; whether any was preempted."""
        ...


def policy(name: str) -> Callable[[F], F]:
    """Marks ``plan(lane: LaneView) -> Plan`` as the batching policy ``name``, e.g. ``"static"``."""
    return mark("policy", name)


def _taken(rooms: list[int], lacking: int, place: int | None) -> int:
    """What a prompt gets on its rank, which computes it alone; it is taken from there."""
    at = max(range(len(rooms)), key=rooms.__getitem__) if place is None else place
    tokens = min(lacking, max(rooms[at], 0))
    rooms[at] -= tokens
    return tokens


@policy("static")
def static(lane: LaneView) -> Plan:
    """All prompts of the batch in one step; answers that are complete leave, their places stay empty."""
    if not lane.decoding and not lane.partial:
        while lane.admit(whole=True) is not None:
            pass
    return list(lane.partial.items()), not lane.partial and lane.decoding > 0


@policy("prefill-first")
def prefill_first(lane: LaneView) -> Plan:
    """As vLLM before its version 1: whole prompts up to the token budget; without any that fits, decode.

    A prompt longer than the budget goes alone.
    """
    rooms = lane.rooms(0)
    while (tokens := lane.first_waiting()) is not None and (tokens <= max(rooms) or not lane.partial):
        if lane.admit() is None:
            break
        if tokens:
            _taken(rooms, tokens, lane.place(next(reversed(lane.partial))))
    if lane.partial:
        return list(lane.partial.items()), False
    if lane.decoding:
        lane.make_room()
    return [], lane.decoding > 0


@policy("continuous")
def continuous(lane: LaneView) -> Plan:
    """As Orca (Yu et al., 2022): decode everything, and with it whole prompts while the token budget lasts."""
    preempted = lane.make_room() if lane.decoding else False
    rooms = lane.rooms(lane.decoding)
    while not preempted:
        tokens = lane.first_waiting()
        if tokens is None or (tokens > max(rooms) and (lane.partial or tokens <= lane.budget)):
            break
        if lane.admit() is None:
            break
        if tokens:
            _taken(rooms, tokens, lane.place(next(reversed(lane.partial))))
    return list(lane.partial.items()), lane.decoding > 0


@policy("chunked-prefill")
def chunked_prefill(lane: LaneView) -> Plan:
    """As Sarathi-Serve (Agrawal et al., 2024) and vLLM 1: what decoding leaves of the budget goes to prompts.

    Prompts that have begun come first. In a step that had to preempt, none is admitted.
    """
    preempted = lane.make_room() if lane.decoding else False
    rooms, chunks = lane.rooms(lane.decoding), []
    for request, lacking in lane.partial.items():
        if max(rooms) <= 0:
            break
        if tokens := _taken(rooms, lacking, lane.place(request)):
            chunks.append((request, tokens))
    while max(rooms) > 0 and not preempted and (lacks := lane.admit(part=True)) is not None:
        if lacks:
            request = next(reversed(lane.partial))
            chunks.append((request, _taken(rooms, lacks, lane.place(request))))
    return chunks, lane.decoding > 0


@functools.cache
def policies() -> Registry:
    """Every policy of this package by name."""
    return Registry.collect("policy", [sys.modules[__name__]])
