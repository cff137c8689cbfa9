"""What a trace says of an op beyond its own record: the calls and kernels around it, the operations inside it, and
the forward of a backward.

PyTorch records neither the element type of a tensor list nor, in older versions, the sizes in it. The kernel's name,
the launch, the gradient's record and the calling op say them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tracelens.registry import Mark, mark
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature

#: Attributes of an op's signature under which bindings find what ``traced_as(asks=...)`` asked for.
LAUNCH, GRADIENT, CALLER, FOLLOWER = "launch", "gradient", "caller", "follower"
#: What ``asks`` may hold; a ``Launch`` has its grid only where ``GRID`` is among them.
KERNEL, GRID = "kernel", "grid"

# The type stands near the beginning; what a name says later is not read.
_LONGEST_NAME = 2000
_OPAQUE = re.compile(r"\bOpaqueType<(?:\(unsigned int\))?(\d+)u?>")
_COPIED = re.compile(r"\bCatArrayBatchedCopy\w*<([\w: ]+?)(?:,|>)")
_COPIED_LISTS = re.compile(r"\bCopyFunctor<([\w: ]+?), ([\w: ]+?),")
_ONE_TYPE_COPY = re.compile(r"\bUnaryOpFunctor<[^<>]*>.*?\bCopy<")
_FILLED = re.compile(r"\bFillFunctor<([\w: ]+?)>")
_LISTED = re.compile(r"multi_tensor_apply_kernel<.*?Functor<([\w: ]+?)(?:,|>)")


class Launch(Record, frozen=True, kw_only=True):
    """An op's first kernel: its name, and how many blocks it was launched with in x, y and z where it is the only one.

    ``grid`` is None where nobody asked for it, or the op has several kernels.
    """

    kernel: str
    grid: tuple[int, int, int] | None = None


def launch_of(op: OpSignature) -> Launch | None:
    """What was recorded of the op's launch; None where it was not asked for."""
    found = op.attribute(LAUNCH)
    return found if isinstance(found, Launch) else None


def _call(which: str, op: OpSignature) -> OpSignature | None:
    """A call around an op; None where none was recorded, or it was not asked for."""
    found = op.attribute(which)
    return found if isinstance(found, OpSignature) else None


#: The op's backward node, whose first input is the gradient of the op's result.
gradient_of = partial(_call, GRADIENT)
#: The nearest op above the op whose inputs were recorded.
caller_of = partial(_call, CALLER)
#: The next op of the thread outside of the op's callers that share its inputs.
follower_of = partial(_call, FOLLOWER)


def copied_type(kernel: str) -> tuple[DType | None, int | None]:
    """(type, bytes) of the elements that PyTorch's concatenation kernel copies; older versions name the type.

    >>> copied_type("CatArrayBatchedCopy_contig<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 3>")
    (None, 2)
    """
    if "CatArrayBatchedCopy" not in kernel:
        return None, None
    kernel = kernel[:_LONGEST_NAME]
    if match := _OPAQUE.search(kernel):
        return None, int(match[1])
    match = _COPIED.search(kernel)
    dtype = DType.parse(match[1]) if match else None
    return dtype, None


def copied_list_types(kernel: str) -> tuple[DType | None, DType | None]:
    """The element types that a copy of lists writes and reads; before PyTorch 2.7 they are one.

    >>> [dtype.label for dtype in copied_list_types("multi_tensor_apply<CopyFunctor<float, c10::BFloat16, 2>>")]
    ['fp32', 'bf16']
    """
    kernel = kernel[:_LONGEST_NAME]
    if _ONE_TYPE_COPY.search(kernel):
        return (list_type(kernel),) * 2
    match = _COPIED_LISTS.search(kernel)
    return (DType.parse(match[1]), DType.parse(match[2])) if match else (None, None)


def filled_type(kernel: str) -> DType | None:
    """The element type that PyTorch's fill kernel writes."""
    match = _FILLED.search(kernel[:_LONGEST_NAME])
    return DType.parse(match[1]) if match else None


def list_type(kernel: str) -> DType | None:
    """The element type that a kernel over lists of tensors is compiled for.

    >>> list_type("multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float, 1, 1, 0>, float>")
    fp32
    """
    match = _LISTED.search(kernel[:_LONGEST_NAME])
    return DType.parse(match[1]) if match else None


F = TypeVar("F", bound=Callable[..., Any])


class OpCall(Record, frozen=True, kw_only=True):
    """One call of an op and what it launched.

    ``kernels``: names of the kernels launched in it, in order of launch. ``below``: the ops called in it, by start.
    ``forward``: of a backward op the forward op's call, None where that is not known.
    """

    signature: OpSignature
    kernels: tuple[str, ...]
    below: tuple[OpSignature, ...] = ()
    forward: OpSignature | None = None


class InnerOp(Record, frozen=True, kw_only=True):
    """An operation within a call, as an op of its own: the ``kernel``-th kernel of the call under this signature."""

    kernel: int
    signature: OpSignature


def holds_ops(*names: str) -> Callable[[F], F]:
    """Marks ``reader(call: OpCall) -> Iterable[InnerOp]`` for ops that launch several operations' kernels themselves.

    The inner ops become rows under the call, with bindings by their own names; kernels that no inner op takes stay with
    the call. SignatureError says why there are none; a report shows the reason and how many calls it is for.
    """
    return mark("holds_ops", *names)


class BackwardOf(Record, frozen=True, kw_only=True):
    """Backward ops whose forward is a call of ``forward``: a module-level constant, found by collection.

    Needed where a trace's sequence numbers do not lead there: the last call before it that has no backward yet is the
    one. A backward op without a binding of its own costs what its forward's ``backward()`` says.
    """

    forward: str
    names: tuple[str, ...]

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return (Mark(kind="backward_of", keys=self.names, options={"forward": self.forward}),)


class BackwardPairs(Record, frozen=True, kw_only=True):
    """``BackwardOf`` for several forward ops at once: (forward op, its backward op)."""

    pairs: tuple[tuple[str, str], ...]

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return tuple(
            Mark(kind="backward_of", keys=(backward,), options={"forward": forward}) for forward, backward in self.pairs
        )
