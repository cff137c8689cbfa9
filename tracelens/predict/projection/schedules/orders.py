"""What a pipeline schedule is, and the schedules GPipe, 1F1B, interleaved 1F1B and DualPipe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from tracelens.errors import UsageError
from tracelens.registry import mark
from tracelens.types.records import Record

T = TypeVar("T", bound="type[Order]")
#: ``"F"`` forward, ``"B"`` the whole backward, ``"D"`` the gradient of the input alone, ``"W"`` that of the weights.
Kind: TypeAlias = Literal["F", "B", "D", "W"]
#: (rank, chunk) of each part of the model, from the first to the last.
Route: TypeAlias = Sequence[tuple[int, int]]


class Task(NamedTuple):
    """One micro-batch through one chunk of a rank's layers.

    A tuple, because a step of a large job has 100,000 of them, and a frozen dataclass takes 1.7 times as long.
    """

    kind: Kind
    micro_batch: int
    chunk: int


class Plan(Record, frozen=True, kw_only=True):
    """What a schedule is made for. Times in microseconds are those of a chunk, the mean over all; a schedule may look
    at them, and runs correctly with any others. ``ahead``: forwards that a rank may run before it must, so that its
    backwards overlap with another micro-batch's forward.
    """

    ranks: int
    chunks: int
    micro_batches: int
    forward_us: float = 1.0
    dgrad_us: float = 1.0
    wgrad_us: float = 1.0
    transfer_us: float = 0.0
    ahead: int = 0


class Order(Protocol):
    """A schedule."""

    #: As in ``@schedule(name)``, which sets it.
    name: ClassVar[str]
    #: How many chunks a rank has; None: as many as are configured.
    own_chunks: ClassVar[int | None] = 1

    def chunks(self, asked: int) -> int:
        """How many chunks a rank has where ``asked`` are configured; 1 leaves it to the schedule. UsageError when the
        schedule cannot do that.
        """
        own = self.own_chunks or asked
        if asked not in (1, own):
            several = f"{own} chunk{'s' if own > 1 else ''} per rank"
            raise UsageError(
                f"schedule {self.name} needs {several}, not {asked}; interleaved and gpipe take any number"
            )
        return own

    def routes(self, ranks: int, chunks: int) -> Sequence[Route]:
        """The ways of micro-batches through the ranks; each passes the whole model. No two share a chunk.

        Part i of the model stands on rank i mod p.
        """
        return [[(part % ranks, part // ranks) for part in range(ranks * chunks)]]

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        """What each rank runs, in order. UsageError for numbers that the schedule cannot do."""
        ...


def schedule(name: str) -> Callable[[T], T]:
    """Marks a class (called without arguments) as the schedule ``name``, e.g. ``"1f1b"``."""

    def named(order: T) -> T:
        order.name = name
        return mark("schedule", name)(order)

    return named


def v_shaped_routes(ranks: int) -> list[Route]:
    """A V: chunk 0 of the ranks in order, then chunk 1 in reverse, so the first rank has both ends of the model."""
    return [[*((rank, 0) for rank in range(ranks)), *((rank, 1) for rank in reversed(range(ranks)))]]


@schedule("gpipe")
class GPipe(Order):
    """Balanced stages take (m + p - 1)(F + B), and every stage keeps m micro-batches."""

    own_chunks = None

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        forward = [Task("F", m, c) for c in range(plan.chunks) for m in range(plan.micro_batches)]
        backward = [Task("B", m, c) for c in reversed(range(plan.chunks)) for m in range(plan.micro_batches)]
        return [forward + backward] * plan.ranks


@schedule("1f1b")
class OneForwardOneBackward(Order):
    """Balanced stages take (m + p - 1)(F + B); stage r keeps min(p - r + ahead, m) micro-batches."""

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        return [in_turn(plan, plan.ranks - rank - 1 + plan.ahead, "B") for rank in range(plan.ranks)]


def in_turn(plan: Plan, ahead: int, backward: Kind) -> list[Task]:
    """``ahead`` forwards, then one forward and one backward in turn, then the backwards that are left."""
    m = plan.micro_batches
    ahead = min(ahead, m)
    order = [Task("F", i, 0) for i in range(ahead)]
    for i in range(m - ahead):
        order += [Task("F", ahead + i, 0), Task(backward, i, 0)]
    return order + [Task(backward, i, 0) for i in range(m - ahead, m)]


@schedule("interleaved")
class Interleaved(Order):
    """Balanced chunks take (m + (p-1)/v)(F + B), where F and B are a rank's whole share of a micro-batch.

    Micro-batches go in groups of p through each chunk in turn, so p must divide m.
    """

    own_chunks = None

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        if plan.micro_batches % plan.ranks:
            raise UsageError(
                f"schedule interleaved: {plan.ranks} pipeline ranks do not divide {plan.micro_batches} micro-batches"
            )
        # In groups of p micro-batches through each chunk in turn
        forward = [
            (group + m, c)
            for group in range(0, plan.micro_batches, plan.ranks)
            for c in range(plan.chunks)
            for m in range(plan.ranks)
        ]
        forwards = [Task("F", m, c) for m, c in forward]
        backwards = [Task("B", m, plan.chunks - 1 - c) for m, c in forward]
        return [self._of(rank, plan, forwards, backwards) for rank in range(plan.ranks)]

    def _of(self, rank: int, plan: Plan, forwards: Sequence[Task], backwards: Sequence[Task]) -> list[Task]:
        total = len(forwards)
        ahead = min(2 * (plan.ranks - rank - 1) + (plan.chunks - 1) * plan.ranks + plan.ahead, total)
        order = list(forwards[:ahead])
        for pair in zip(forwards[ahead:], backwards, strict=False):
            order += pair
        return [*order, *backwards[total - ahead :]]


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
