"""Longest paths: the compiled loops and the plain ones give the same, and what a definition gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis.idle import dependencies
from tracelens.analysis.idle.dependencies import NONE, DependencyPaths, Ways, longest, period

NODES = st.integers(0, 7)
#: (source, target, length) of dependencies that lead forward, and of those to the next round.
FORWARD = st.lists(st.tuples(NODES, NODES, st.integers(0, 50)).filter(lambda e: e[0] < e[1]), max_size=20)
ACROSS = st.lists(st.tuples(NODES, NODES, st.integers(0, 50)), max_size=6)


def columns(edges: list[tuple[int, int, int]]) -> list[np.ndarray]:
    ordered = sorted(edges, key=lambda edge: edge[1])
    return [np.array(column, np.int64) for column in (zip(*ordered, strict=True) if ordered else ((), (), ()))]


def paths(edges: list[tuple[int, int, int]]) -> DependencyPaths:
    source, target, length = columns(edges)
    return DependencyPaths(nodes=8, source=source, target=target, length=length)


def ways(edges: list[tuple[int, int, int]]) -> Ways:
    source, target, length = columns(edges)
    return Ways(source=source, target=target, length=length)


@given(FORWARD, ACROSS)
def test_the_compiled_loops_give_what_the_plain_ones_give(forward, across) -> None:
    first = np.where(np.arange(8) % 3 == 0, np.arange(8) * 10, NONE)
    found = longest(paths(forward), first), period(paths(forward), ways(across))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dependencies, "library", lambda *_: None)
        plain = longest(paths(forward), first), period(paths(forward), ways(across))
    assert found[0].tolist() == plain[0].tolist()
    assert found[1][0] == plain[1][0]
    assert found[1][1].tolist() == plain[1][1].tolist()


@given(FORWARD, ACROSS)
def test_a_period_is_the_largest_mean_of_all_circles(forward, across) -> None:
    """Circles of up to six different ways, each reached from the one before along the longest path."""
    distance = np.full((8, 8), -np.inf)
    np.fill_diagonal(distance, 0.0)
    for source, target, length in sorted(forward, key=lambda edge: edge[1]):
        distance[:, target] = np.maximum(distance[:, target], distance[:, source] + length)
    means = [0.0]
    for count in range(1, len(across) + 1):
        for circle in itertools.permutations(across, count):
            pairs = zip(circle, (*circle[1:], circle[0]), strict=True)
            total = sum(one[2] + distance[one[1], other[0]] for one, other in pairs)
            means.append(total / count)
    assert period(paths(forward), ways(across))[0] == pytest.approx(max(means), abs=0.01)
