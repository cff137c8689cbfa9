"""What every perf model answers, how a traced name is bound to one, and the work of many models as arrays.

Letters used for dimensions: ``b`` batch, ``s`` sequence, ``m n k`` GEMM, ``h`` hidden, ``q``/``kv`` heads,
``d_qk``/``d_v`` head dims, ``f`` ffn, ``e`` experts, ``t`` tokens, ``p`` ranks.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields
from math import prod
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, dataclass_transform, get_args, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.perf_models.kernels import ComputeType
from tracelens.registry import Claim, Mark, mark
from tracelens.types.dtypes import DType
from tracelens.types.records import Record, RecordType
from tracelens.types.signature import OpSignature, Shape

F = TypeVar("F", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound="PerfModel")
M = TypeVar("M", bound="_ModelType")
#: The family of operations that only stream memory.
MEMORY = "memory"


class Like(enum.Enum):
    """Default of an operand's dtype: that of the first operand, whatever that is (None is *unknown*)."""

    FIRST = "as the first operand"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


_FIRST = Like.FIRST
#: (elements, dtype) of each part of what device memory reads and writes.
Moved: TypeAlias = tuple[tuple[int | float, DType | Like | None], ...]
#: Name in reports -> the attribute, or the attributes, that it shows.
Shown: TypeAlias = Mapping[str, str | tuple[str, ...]]


class PerfModel:
    """An operation's work, from its dimensions alone. None means *not determined by what was recorded*.

    A model says its ``flops``, and what it reads and writes in ``moved``, from which its bytes follow.
    ``category`` is the name in reports; ``engine`` is what does the arithmetic: ``"matrix"``, ``"vector"``, or
    ``"none"`` for pure data movement.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    category: ClassVar[str] = "other"
    engine: ClassVar[str] = "vector"
    #: The sheet that lists calls of this model where it is not the category's.
    family: ClassVar[str | None] = None
    #: The family of operations whose backends and pricers are asked (``"gemm"``). None: ``"memory"`` where nothing is
    #: multiplied, else general backends only.
    priced_as: ClassVar[str | None] = None
    #: Whether it is priced as the gradient of its family.
    gradient: ClassVar[bool] = False
    #: The row of ``[calibrated.memory_bound]`` that says how it streams memory.
    stream: ClassVar[str] = "stream"
    #: Whether the work is concluded from names and sizes that do not determine it, and so may be too much.
    inferred: ClassVar[bool] = False
    #: What reports show of it; None: every field under its own name.
    shown: ClassVar[Shown | None] = None

    def flops(self) -> int | float | None:
        """Floating-point operations; a fused multiply-add counts as two, as in torch.utils.flop_counter."""
        if self.engine == "none":
            return 0
        raise NotImplementedError

    def moved(self) -> Moved | None:
        """The least that device memory must read and write; None where that was not recorded."""
        raise NotImplementedError

    def hbm_bytes(self) -> int | float | None:
        """The bytes of what is ``moved``; None when a width is unknown."""
        moved = self.moved()
        return None if moved is None else total_bytes(*moved, first=getattr(self, "dtype", None))

    def wire_bytes(self) -> int | float | None:
        """Bytes that leave the device over its interconnect; 0 for everything that is no communication."""
        return 0

    @property
    def at_most(self) -> str:
        """Why FLOPs and bytes are an upper bound of what was done; empty where the recording determines them."""
        return ""

    @property
    def compute_dtype(self) -> DType | None:
        """The element type whose compute rate applies; None when unknown."""
        return getattr(self, "dtype", None)

    @property
    def sheet(self) -> str:
        return self.family or self.category

    @classmethod
    def price_family(cls) -> str | None:
        """The family as ``priced_as`` says it."""
        return cls.priced_as or (MEMORY if cls.engine in ("vector", "none") else None)

    def parameters(self) -> dict[str, Any]:
        """Name -> value of the dimensions, as the ``param_*`` columns show them."""
        if self.shown is None:
            return {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: self._shown(of) if isinstance(of, str) else tuple(map(self._shown, of))
            for name, of in self.shown.items()
        }

    def _shown(self, name: str) -> Any:
        """The value of an attribute; a dtype in the trace's spelling."""
        value = getattr(self, name)
        if type(value) is Like:
            value = getattr(self, "dtype", None)
        return value.traced if type(value) is DType else value


#: What the header of a perf model's class may say of it, see ``PerfModel``.
_FACTS = frozenset({"category", "engine", "family", "priced_as", "gradient", "stream", "inferred"})


class _ModelType(RecordType):
    """Makes perf models of a header: ``class GEMM(ModelRecord, category="GEMM", engine="matrix")``."""

    def __new__(mcls: type[M], name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **said: Any) -> M:
        facts = {key: said.pop(key) for key in _FACTS & said.keys()}
        return super().__new__(mcls, name, bases, namespace | facts, **said)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class ModelRecord(PerfModel, Record, frozen=True, kw_only=True, metaclass=_ModelType):
    """A perf model as a frozen record, whose header says the facts of its class."""


class UnknownWork(ModelRecord, engine="none"):
    """An operation of known dimensions, ``of``, whose work is not known after all."""

    of: PerfModel

    def flops(self) -> None:
        return

    def moved(self) -> None:
        return

    @property
    def sheet(self) -> str:
        return self.of.sheet

    def parameters(self) -> dict[str, Any]:
        return self.of.parameters()


def with_fields_of(model: PerfModel, kind: type[Kind], **changed: Any) -> Kind:
    """A ``kind`` with the fields that ``model`` shares with it, but for the ``changed`` ones."""
    shared = {f.name: getattr(model, f.name) for f in fields(kind) if hasattr(model, f.name)}
    return kind(**shared | changed)


def total_bytes(*parts: tuple[int | float, DType | Like | None], first: DType | None = None) -> int | float | None:
    """Sum of (elements, dtype) in bytes, ``first`` being the first operand's; None as soon as one is unknown."""
    total: int | float = 0
    for elements, dtype in parts:
        if not elements:
            continue
        if dtype is _FIRST:
            dtype = first
        if dtype is None:
            return None
        nbytes = elements * dtype.width_bytes
        total += int(nbytes) if nbytes == int(nbytes) else nbytes
    return total


def distinct_elements(shape: Shape, stride: Shape | None) -> int:
    """Elements of a tensor in memory: a dim of stride 0 repeats one; all of them where strides were not recorded."""
    if stride is None or len(stride) != len(shape):
        return prod(shape)
    return prod(size for size, step in zip(shape, stride, strict=True) if step != 0 or size == 0)


def traced_as(
    *names: str,
    category: str | None = None,
    leaf_only: bool = False,
    per_step: bool = False,
    asks: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Marks ``binding(op: OpSignature) -> PerfModel | None`` as the reading of these traced names.

    The category in reports is ``category``, else that of the class in the return annotation, so an op whose shapes
    were not recorded still has one. A binding returns None, or raises SignatureError, when the recorded arguments do
    not determine the dimensions. ``leaf_only`` is for wrappers (``aten::linear``): their model counts only where the
    op launches kernels itself, since otherwise an op below it (``aten::addmm``) is the row. ``per_step``: the binding
    also reads what the step around the op was annotated with (``inference_attention.attention_sums``).
    ``asks``: where the binding cannot tell the bytes from the op alone, it is asked again with what stands round the
    op (``surroundings``): its ``kernel``, its launch's ``grid``, its ``gradient``, its ``caller``.
    """
    return mark("traced_as", *names, category=category, leaf_only=leaf_only, per_step=per_step, asks=asks)


def traced_as_pattern(
    *patterns: str, category: str | None = None, per_step: bool = False, asks: tuple[str, ...] = ()
) -> Callable[[F], F]:
    """Like ``traced_as``, for names that a regular expression describes; an exact name wins over a pattern."""
    return mark("traced_as_pattern", *patterns, category=category, leaf_only=False, per_step=per_step, asks=asks)


def bind(
    read: Callable[..., Any],
    *names: str,
    category: str | None = None,
    leaf_only: bool = False,
    per_step: bool = False,
    asks: tuple[str, ...] = (),
    **slots: Any,
) -> functools.partial[Any]:
    """A row of a table of bindings: calls of ``names`` are ``read(op, **slots)``; options as for ``traced_as``.

    The slots are those of the recorded signature in which ``read`` finds the operands. Tuples of rows at the top level
    of a module are found. Where a reader makes several kinds of model, the slot ``kind`` says which.
    """
    row = functools.partial(read, **slots)
    return traced_as(*names, category=category, leaf_only=leaf_only, per_step=per_step, asks=asks)(row)


def aten(names: str, *suffixes: str) -> tuple[str, ...]:
    """Names in ATen's namespace, each with every one of the ``suffixes``.

    >>> aten("add mul", "", "_")
    ('aten::add', 'aten::add_', 'aten::mul', 'aten::mul_')
    """
    return tuple(f"aten::{name}{suffix}" for name in names.split() for suffix in suffixes or ("",))


def recorded_as(*names: str) -> Callable[[F], F]:
    """Marks ``inverse(model) -> OpSignature``: what a trace would record for a perf model (inverse of a binding)."""
    return mark("recorded_as", *names)


def category_of(claim: Claim) -> str | None:
    """The category of a ``traced_as`` claim: its option, else that of the class its binding says it returns."""
    if claim.options.get("category"):
        return str(claim.options["category"])
    return next((str(model.category) for model in models_of(claim)), None)


def models_of(claim: Claim) -> tuple[type[PerfModel], ...]:
    """The perf models that a ``traced_as`` claim's binding says it returns."""
    target = claim.target
    if isinstance(target, functools.partial):
        kind, target = target.keywords.get("kind"), target.func
        if isinstance(kind, type):
            return (kind,)
    # A marked object of an extension may be of any class: only functions are sure to be hashable.
    is_function = isinstance(target, FunctionType)
    return _models_returned_by(target) if is_function else _models_returned_by.__wrapped__(target)


@functools.cache
def _models_returned_by(binding: Callable[..., Any]) -> tuple[type[PerfModel], ...]:
    try:
        returned = get_type_hints(binding).get("return")
    except (NameError, TypeError):
        return ()
    candidates = (returned, *get_args(returned))
    return tuple(c for c in candidates if isinstance(c, type) and issubclass(c, PerfModel))


def resolved(dtype: DType | Like | None, first: DType | None) -> DType | None:
    """``dtype``, where ``Like.FIRST`` stands for ``first``."""
    return first if isinstance(dtype, Like) else dtype


def traced_name(dtype: DType | None) -> str | None:
    """A dtype as ``param_dtype_*`` columns show it: the trace's spelling."""
    return None if dtype is None else dtype.traced


class Slot(NamedTuple):
    """An argument as a trace records it; of none, every field is empty."""

    shape: Shape = ()
    dtype: str = ""
    stride: Shape = ()
    scalar: str = ""

    @classmethod
    def tensor(cls, shape: Shape, dtype: DType | None, stride: Shape | None = None) -> Slot:
        """A tensor, contiguous unless its ``stride`` is given."""
        return cls(shape, traced_name(dtype) or "", stride or tuple(prod(shape[i + 1 :]) for i in range(len(shape))))


def recorded_call(name: str, *slots: Slot) -> OpSignature:
    shapes, dtypes, strides, scalars = zip(*slots, strict=True)
    return OpSignature(name=name, shapes=shapes, dtypes=dtypes, strides=strides, scalars=scalars)


def number(value: object) -> Slot:
    return Slot(dtype="Scalar", scalar=str(value))


def scalar_type(recorded: object) -> DType | None:
    """The type that an ``at::ScalarType`` argument means, which traces record as its number (c10/core/ScalarType.h)."""
    return _SCALAR_TYPES.get(recorded) if isinstance(recorded, int) and not isinstance(recorded, bool) else None


_SCALAR_TYPES: dict[int, DType] = {
    0: DType.UINT8, 1: DType.INT8, 2: DType.INT16, 3: DType.INT32, 4: DType.INT64, 5: DType.FP16, 6: DType.FP32,
    7: DType.FP64, 9: DType.COMPLEX64, 10: DType.COMPLEX128, 11: DType.BOOL, 15: DType.BF16, 23: DType.FP8_E5M2,
    24: DType.FP8_E4M3FN, 25: DType.FP8_E5M2FNUZ, 26: DType.FP8_E4M3FNUZ, 44: DType.FP8_E8M0FNU,
    45: DType.FP4_E2M1_X2,
}  # fmt: skip


class CategoryOf(Record, frozen=True, kw_only=True):
    """Traced names whose category is known though no perf model is: a module-level constant, found by collection."""

    category: str
    names: tuple[str, ...]

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return (Mark(kind="category", keys=self.names, options={"category": self.category}),)


class WorkColumns(Record, frozen=True, kw_only=True, eq=False):
    """One row per perf model, in the order given. NaN and None mean unknown.

    ``passes``: products in ``dtype`` that stand for one of the model's, where wider ones are emulated.
    """

    flops: npt.NDArray[np.float64]
    hbm_bytes: npt.NDArray[np.float64]
    wire_bytes: npt.NDArray[np.float64]
    engine: tuple[str, ...]
    dtype: tuple[DType | None, ...]
    models: tuple[PerfModel, ...]
    passes: npt.NDArray[np.float64]

    @classmethod
    def of(cls, models: Iterable[PerfModel], computed_in: Sequence[ComputeType | None] | None = None) -> WorkColumns:
        """The columns of ``models``. ``computed_in``: what products run in where it is not the model's own type."""
        rows = tuple(models)
        said = tuple(computed_in) if computed_in is not None else (None,) * len(rows)
        return cls(
            flops=_column(m.flops() for m in rows),
            hbm_bytes=_column(m.hbm_bytes() for m in rows),
            wire_bytes=_column(m.wire_bytes() for m in rows),
            engine=tuple(m.engine for m in rows),
            dtype=tuple(m.compute_dtype if p is None else p.dtype for m, p in zip(rows, said, strict=True)),
            models=rows,
            passes=np.array([1.0 if p is None else p.passes for p in said], dtype=np.float64),
        )

    def __len__(self) -> int:
        return len(self.models)

    def take(self, rows: Sequence[int]) -> WorkColumns:
        at = np.asarray(rows, dtype=np.intp)
        taken: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, column in taken.items():
            taken[name] = column[at] if isinstance(column, np.ndarray) else tuple(column[row] for row in rows)
        return WorkColumns(**taken)


def _column(values: Iterable[float | None]) -> npt.NDArray[np.float64]:
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
