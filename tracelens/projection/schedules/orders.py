"""DualPipe: micro-batches enter the pipeline at both ends (DeepSeek-AI, 2024, arXiv 2412.19437, section 3.2.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tracelens.errors import UsageError
from tracelens.projection.schedules.base import Order, Plan, Route, Task, schedule


@schedule("dualpipe")
class DualPipe(Order):
    """Every rank holds two parts of the model, one for each direction, so weights are held twice.

    Balanced stages take m(F + B) and a bubble of at most (p/2 - 1)(FB + B - 3W), which counts a pair's forward as done
    with its backward, FB = F + B; (p/2 - 1) W where F, D and W take as long. A stage keeps at most p + 1
    micro-batches. Half of them go each way, so both m and p are even, and m is at least 2p.
    """

    def chunks(self, asked: int) -> int:
        if asked != 1:
            raise UsageError(f"schedule dualpipe needs one chunk per rank and direction, not {asked}")
        return 2

    def routes(self, ranks: int, chunks: int) -> Sequence[Route]:
        return [[(rank, 0) for rank in range(ranks)], [(rank, 1) for rank in reversed(range(ranks))]]

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        p, m = plan.ranks, plan.micro_batches
        if p % 2 or m % 2 or m < 2 * p:
            raise UsageError(
                f"schedule dualpipe: needs an even number of ranks and an even number of micro-batches, at least 2 per "
                f"rank; got {p} and {m}"
            )
        return [_Rank(rank, p, m).order() for rank in range(p)]


class _Rank:
    """The eight phases of the paper's figure 5. ``near`` is the direction that enters at this half of the pipeline."""

    def __init__(self, rank: int, ranks: int, micro_batches: int) -> None:
        second_half = rank >= ranks // 2
        self.near, self.far = (1, 0) if second_half else (0, 1)
        # From the ends, 0, to the middle
        self.inner = ranks - 1 - rank if second_half else rank
        self.half, self.ranks, self.each = ranks // 2, ranks, micro_batches // 2
        self.made: list[Task] = []
        self.later: deque[tuple[int, int]] = deque()
        self.next = {(kind, chunk): chunk * self.each for kind in "FB" for chunk in (0, 1)}

    def order(self) -> list[Task]:
        outer = self.half - self.inner - 1
        for _ in range(2 * outer):
            self.forward(self.near)
        for _ in range(self.inner + 1):
            self.forward(self.near)
            self.forward(self.far)
        for _ in range(outer):
            self.backward(self.far, split=True)
            self.weights()
            self.forward(self.far)
        for _ in range(self.each - self.ranks + self.inner + 1):
            self.forward(self.near)
            self.backward(self.far)
            self.forward(self.far)
            self.backward(self.near)
        for _ in range(outer):
            self.backward(self.far)
            self.forward(self.far)
            self.backward(self.near)
        split = False
        for i in range(self.inner + 1):
            split |= i == (self.inner + 1) // 2 and self.inner % 2 == 1
            self.backward(self.far, split=split)
            split |= i == (self.inner + 1) // 2 and self.inner % 2 == 0
            self.backward(self.near, split=split)
        for _ in range(outer):
            self.weights()
            self.backward(self.near, split=True)
        while self.later:
            self.weights()
        return self.made

    def forward(self, chunk: int) -> None:
        self.made.append(Task("F", self._next("F", chunk), chunk))

    def backward(self, chunk: int, *, split: bool = False) -> None:
        m = self._next("B", chunk)
        self.made.append(Task("D" if split else "B", m, chunk))
        if split:
            self.later.append((m, chunk))

    def weights(self) -> None:
        self.made.append(Task("W", *self.later.popleft()))

    def _next(self, kind: str, chunk: int) -> int:
        m = self.next[kind, chunk]
        self.next[kind, chunk] += 1
        return m
