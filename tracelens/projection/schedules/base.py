"""What a pipeline schedule is: where the parts of a model stand, and an ordered list of tasks per rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.registry import mark

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a schedule is made for. Times in microseconds are those of a chunk, the mean over all; a schedule may look
    at them, and runs correctly with any others. ``ahead``: forwards that a rank may run before it must, so that its
    backwards have another micro-batch's forward beside them.
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
