"""What an extension says of ops that hold several operations, and of ops whose forward is another op's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tracelens.lazy.records import dataclass
from tracelens.registry import Mark, mark
from tracelens.signature import OpSignature

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """One call of an op and what it launched.

    ``kernels``: names of the kernels launched in it, in order of launch. ``below``: the ops called in it, by start.
    ``forward``: of a backward op the forward op's call, None where that is not known.
    """

    signature: OpSignature
    kernels: tuple[str, ...]
    below: tuple[OpSignature, ...] = ()
    forward: OpSignature | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerOp:
    """An operation within a call, as an op of its own: the ``kernel``-th kernel of the call under this signature."""

    kernel: int
    signature: OpSignature


def holds_ops(*names: str) -> Callable[[F], F]:
    """Marks ``reader(call: OpCall) -> Iterable[InnerOp]`` for ops that launch several operations' kernels themselves.

    The inner ops become rows under the call, with bindings by their own names; kernels that no inner op takes stay with
    the call. SignatureError says why there are none; a report shows the reason and how many calls it is for.
    """
    return mark("holds_ops", *names)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardOf:
    """Backward ops whose forward is a call of ``forward``: a module-level constant, found by collection.

    Needed where a trace's sequence numbers do not lead there: the last call before it that has no backward yet is the
    one. A backward op without a binding of its own costs what its forward's ``backward()`` says.
    """

    forward: str
    names: tuple[str, ...]

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return (Mark(kind="backward_of", keys=self.names, options={"forward": self.forward}),)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardPairs:
    """``BackwardOf`` for several forward ops at once: (forward op, its backward op)."""

    pairs: tuple[tuple[str, str], ...]

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return tuple(
            Mark(kind="backward_of", keys=(backward,), options={"forward": forward}) for forward, backward in self.pairs
        )
