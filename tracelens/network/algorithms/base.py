"""What a collective algorithm is: a function of bytes, group and topology."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tracelens.network.topology import Crossing, Topology, Values
from tracelens.registry import mark

F = TypeVar("F", bound=Callable[..., Values])


def algorithm(name: str, libraries: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Marks ``f(nbytes, group, topology) -> us`` as ``"word/name"``, e.g. ``"all_gather/ring"``.

    ``libraries`` (``"nccl"``) choose from it; without any it counts where a cluster's file or a user names it.
    It grows with ``nbytes``, is never below volume over bandwidth, never slower over a wider link, and infinite where
    the topology cannot do it.
    """
    return mark("algorithm", name, libraries=libraries)


def fastest_protocol(topology: Topology, time_us: Callable[[str], Values]) -> Values:
    """The least ``time_us(protocol)`` over the topology's protocols."""
    return functools.reduce(np.minimum, [time_us(protocol) for protocol in topology.protocols])


def base_us(crossings: tuple[Crossing, ...], protocol: str) -> float:
    """What a collective pays once: at the outermost tier that it crosses."""
    return crossings[-1].link.protocol(protocol).base_us
