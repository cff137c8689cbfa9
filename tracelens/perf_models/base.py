"""What every perf model answers, and how a traced name is bound to one.

Letters used for dimensions: ``b`` batch, ``s`` sequence, ``m n k`` GEMM, ``h`` hidden, ``q``/``kv`` heads,
``d_qk``/``d_v`` head dims, ``f`` ffn, ``e`` experts, ``t`` tokens, ``p`` ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from tracelens.dtypes import DType
from tracelens.registry import Mark, mark

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfModel:
    """An operation's work, from its dimensions alone. None means *not determined by what was recorded*.

    ``category`` is the name in reports; ``engine`` is what does the arithmetic: ``"matrix"``, ``"vector"``, or
    ``"none"`` for pure data movement.
    """

    category: ClassVar[str] = "other"
    engine: ClassVar[str] = "vector"

    def flops(self) -> int | float | None:
        """Floating-point operations; a fused multiply-add counts as two, as in torch.utils.flop_counter."""
        raise NotImplementedError

    def hbm_bytes(self) -> int | float | None:
        """The least bytes that device memory must read and write; None when a width is unknown."""
        raise NotImplementedError

    def wire_bytes(self) -> int | float | None:
        """Bytes that leave the device over its interconnect; 0 for everything that is no communication."""
        return 0

    @property
    def compute_dtype(self) -> DType | None:
        """The element type whose compute rate applies; None when unknown."""
        return getattr(self, "dtype", None)

    def parameters(self) -> dict[str, Any]:
        """Name -> value of the dimensions, as the ``param: *`` columns show them."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def total_bytes(*parts: tuple[int | float, DType | None]) -> int | float | None:
    """Sum of (elements, dtype) in bytes; None as soon as one dtype with elements is unknown."""
    total: int | float = 0
    for elements, dtype in parts:
        if not elements:
            continue
        if dtype is None:
            return None
        nbytes = elements * dtype.width_bytes
        total += int(nbytes) if nbytes == int(nbytes) else nbytes
    return total


def traced_as(*names: str, category: str | None = None) -> Callable[[F], F]:
    """Marks ``binding(op: OpSignature) -> PerfModel | None`` as the reading of these traced names.

    The category in reports is ``category``, else that of the class in the return annotation, so an op whose shapes
    were not recorded still has one. A binding returns None, or raises SignatureError, when the recorded arguments do
    not determine the dimensions.
    """
    return mark("traced_as", *names, category=category)


def recorded_as(*names: str) -> Callable[[F], F]:
    """Marks ``inverse(model) -> OpSignature``: what a trace would record for a perf model (inverse of a binding)."""
    return mark("recorded_as", *names)


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryOf:
    """Traced names whose category is known though no perf model is: a module-level constant, found by collection."""

    category: str
    names: tuple[str, ...]

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return (Mark(kind="category", keys=self.names, options={"category": self.category}),)
