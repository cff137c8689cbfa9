"""The routing of the original simulator, number for number, and its two files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import InputError, UsageError
from tracelens.files.atomic_write import whole_folder
from tracelens.files.data_table import LARGEST, Number
from tracelens.files.documents import text_of
from tracelens.lazy.records import dataclass

ROUTING_FILE = "routing.csv"
WEIGHTS_FILE = "weights.csv"
#: Those rules store an expert id in 8 signed bits and a token id in 16.
_MOST_EXPERTS, _MOST_TOKENS = 128, 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTable:
    """Chosen experts and their weights, [tokens, topk], and the rank each token comes from."""

    experts: NDArray[np.integer[Any]]
    weights: NDArray[np.float32]
    source: NDArray[np.integer[Any]]

    @classmethod
    def of_choices(cls, experts: NDArray[np.integer[Any]], ranks: int) -> RoutingTable:
        """Even weights; token i comes from rank i mod ``ranks``."""
        weights = np.full(experts.shape, 1 / max(1, experts.shape[1]), np.float32)
        return cls(experts=experts, weights=weights, source=np.arange(len(experts)) % ranks)

    def save(self, folder: Path) -> None:
        """Writes routing.csv (k expert ids per row) and weights.csv (k weights, rank, token id), without headers."""
        with whole_folder(folder) as staging:
            with (staging / ROUTING_FILE).open("w") as file:  # of a name numpy asks for the current folder
                np.savetxt(file, self.experts, fmt="%d", delimiter=",")
            columns = [*self.weights.T.astype(np.float64), self.source, np.arange(len(self.source))]
            formats = ["%.7g"] * self.weights.shape[1] + ["%d", "%d"]
            with (staging / WEIGHTS_FILE).open("w") as file:
                np.savetxt(file, np.column_stack(columns), fmt=formats, delimiter=",")

    @classmethod
    def load(cls, folder: Path, *, ranks: int) -> RoutingTable:
        """Reads both files; without weights.csv weights are 1/k and token i comes from rank i mod ``ranks``.

        InputError when routing.csv is missing, ragged or holds no whole numbers, or the two do not fit.
        """
        experts = read_numbers(folder / ROUTING_FILE)
        if (experts != np.floor(experts)).any() or (experts < 0).any():
            raise InputError(f"{folder / ROUTING_FILE}: an expert id must be a whole number of at least 0")
        tokens, topk = experts.shape
        chosen = experts.astype(np.int32)
        if not (folder / WEIGHTS_FILE).exists():
            return cls.of_choices(chosen, ranks)
        table = read_numbers(folder / WEIGHTS_FILE)
        if table.shape != (tokens, topk + 2):
            raise InputError(
                f"{folder / WEIGHTS_FILE}: {tokens} rows of {topk} weights, rank and token expected, "
                f"it has {table.shape[0]} rows of {table.shape[1]}"
            )
        source = table[:, topk].astype(np.int64)
        return cls(experts=chosen, weights=table[:, :topk].astype(np.float32), source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotExperts:
    """The share of the experts that are hot, and the probability that a draw goes to one of them."""

    ratio: float
    weight: float


def seed_routing(*, tokens: int, experts: int, topk: int, hot: HotExperts, ranks: int, seed: int) -> RoutingTable:
    """``random.sample`` picks the hot experts, ``numpy.random.choice`` the experts of each token, without replacement.

    Both generators start from ``seed``. Of n hot experts each is drawn with probability weight / n, a cold one with
    (1 - weight) / cold; drawing without replacement lowers the share that the hot ones get. UsageError beyond 128
    experts or 32,768 tokens, where those rules wrap to negative ids.
    """
    if experts > _MOST_EXPERTS or tokens > _MOST_TOKENS:
        raise UsageError(
            f"--rules original supports at most {_MOST_EXPERTS} experts and {_MOST_TOKENS:,} tokens, "
            f"got {experts} and {tokens:,}; the default rules have no such limit"
        )
    if tokens < 1:
        raise UsageError(f"tokens, experts and top-k must be at least 1, got {tokens}, {experts} and {topk}")
    if not 1 <= topk <= experts:
        raise UsageError(f"top-k {topk} needs at least as many experts, there are {experts}")
    if experts % ranks:
        raise UsageError(f"{experts} experts do not divide over {ranks} ranks; give a map of experts to ranks")
    count, weight = int(experts * hot.ratio), hot.weight
    if not 0 < count <= experts or not 0 <= weight <= 1:
        raise UsageError(
            f"hot ratio {hot.ratio} of {experts} experts with hot weight {weight} is not a valid distribution"
        )
    picker, generator = random.Random(seed), np.random.RandomState(seed)  # noqa: S311 - reproduces a simulation
    hot_experts = picker.sample(range(experts), count)
    order = hot_experts + [e for e in range(experts) if e not in set(hot_experts)]
    cold = experts - count
    chance = [weight / count] * count + [(1 - weight) / cold] * cold if cold else [1 / count] * count
    if np.count_nonzero(chance) < topk:
        raise UsageError(
            f"top-k {topk} needs as many experts with a probability above 0; hot weight {weight:g} leaves fewer"
        )
    chosen = np.array([generator.choice(order, topk, replace=False, p=chance) for _ in range(tokens)])
    weights = generator.uniform(size=(tokens, topk)).astype(np.float32)
    return RoutingTable(experts=chosen.reshape(tokens, topk), weights=weights, source=np.arange(tokens) % ranks)


def read_numbers(path: Path) -> NDArray[np.float64]:
    """A CSV without header as a matrix of numbers. InputError when it is missing, empty, ragged or holds text."""
    lines = [line for line in text_of(path, "a table of numbers").splitlines() if line.strip()]
    rows = [line.split(",") for line in lines]
    if not rows:
        raise InputError(f"{path}: no rows")
    kind = Number(least=-LARGEST)
    for at, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise InputError(f"{path}, row {at}: all rows must have the same number of numbers, {len(rows[0])}")
    try:
        matrix = np.array([[float(cell) for cell in row] for row in rows])
    except ValueError:
        matrix = np.full((1, 1), np.nan)
    if not (np.abs(matrix) <= LARGEST).all():
        cells = ((at, column, cell) for at, row in enumerate(rows, 1) for column, cell in enumerate(row, 1))
        for at, column, cell in cells:
            kind.of(cell, f"{path} has no header, its row {at}, column {column}")
    return matrix
