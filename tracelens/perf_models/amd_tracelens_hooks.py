"""Extensions written for TraceLens (AMD-AGI/TraceLens): their classes as perf models.

Such a file maps op names to classes (``perf_model_extension``), and categories to names or names to categories
(``dict_cat2names_extension``, ``op_category_extension``). A class is made of one recorded event and answers ``flops()``
and ``bytes()``, of the gradients ``flops_bwd()`` and ``bytes_bwd()``; it builds on that package's base classes, or on
those of ``amd_tracelens_classes``. ``tree_postprocess_extension`` changes the tree of calls
(``tracelens.analysis.reading.amd_tracelens_tree``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, ClassVar, cast

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import CategoryOf, PerfModel, traced_as
from tracelens.perf_models.collective import COMBINE, DISPATCH, EPComm, given_tokens
from tracelens.registry import mark
from tracelens.signature import OpSignature

MODELS, NAMES_OF, CATEGORY_OF = "perf_model_extension", "dict_cat2names_extension", "op_category_extension"
#: The hook that changes the tree of calls, and the kind of mark under which it is found.
TREE_HOOK = "tree_postprocess_extension"
#: An attribute of an exchange's class: True where its ``bytes()`` counts every token of the rank once, so that copies
#: and the share that stays on the rank are still to be counted.
TOKENS_ONCE = "counts_tokens_once"
_BACKWARD = re.compile("_fwd$")
_MATRIX = ("GEMM", "GroupedGEMM", "SDPA", "CONV", "Inference", "MoE_fused", "MoE_unfused")
_EXCHANGES = ("EP_Communication", "MoE_comm_fwd", "MoE_comm_bwd")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel(PerfModel):
    """What a class written for TraceLens counts for one call: its operations and its bytes.

    ``details``: the dimensions that it read, as texts and numbers. ``made``: the instance, which counts the gradients.
    """

    operations: int | float | None
    moved_bytes: int | float | None
    dtype: DType | None
    details: tuple[tuple[str, Any], ...]
    made: Any = field(default=None, compare=False, repr=False)

    def flops(self) -> int | float | None:
        return self.operations

    def hbm_bytes(self) -> int | float | None:
        return self.moved_bytes

    def parameters(self) -> dict[str, Any]:
        return dict(self.details)

    def backward(self) -> ForeignModel | None:
        """What its class counts for the gradients; None where it counts none."""
        operations, moved = _counted(self.made, "flops_bwd"), _counted(self.made, "bytes_bwd")
        if operations is None and moved is None:
            return None
        category = str(getattr(self.made, "bwd_category", None) or _BACKWARD.sub("_bwd", self.category))
        kind = _model_class(type(self).__name__, category, self.engine)
        return kind(operations=operations, moved_bytes=moved, dtype=self.dtype, details=self.details)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignExchange(EPComm):
    """Tokens exchanged, of which a class written for TraceLens counts the bytes: they are shown as it counts them.

    ``counted``: of all rows; ``leaving``: of those that leave the rank, where the class says so, else all of them;
    ``back``: of the gradient's rows.
    """

    counts_bytes: ClassVar[bool] = True

    counted: float
    leaving: float | None = None
    back: float | None = None

    def exchanged_bytes(self) -> float:
        return self.counted

    def wire_bytes(self) -> float:
        return self.counted if self.leaving is None else self.leaving

    @property
    def known_share(self) -> float:
        return self.wire_bytes() / self.counted if self.counted else 1.0

    def backward(self, gradient: OpSignature | None = None) -> EPComm:
        """The gradient's way back, of as many bytes as the class counts for it."""
        back = cast(ForeignExchange, EPComm.backward(self, gradient))
        counted = self.counted if self.back is None else self.back
        return replace(back, counted=counted, leaving=None if self.leaving is None else counted * self.known_share)


def adapted(held: Mapping[str, Any], *, where: str) -> tuple[object, ...]:
    """The marked objects that a file's hooks amount to. UsageError for hooks of another form."""
    models = _mapping(held, MODELS, where)
    categories = dict(_mapping(held, CATEGORY_OF, where))
    for category, names in _mapping(held, NAMES_OF, where).items():
        if not isinstance(names, list | tuple | set):
            raise UsageError(f"extension {where}: {NAMES_OF}[{category!r}] is not a list of names")
        categories |= dict.fromkeys(names, category)
    made: list[object] = []
    for name, kind in models.items():
        if not callable(kind):
            raise UsageError(f"extension {where}: {MODELS}[{name!r}] is not a class")
        category = str(getattr(kind, "category", None) or categories.get(name) or "other")
        made.append(traced_as(str(name), category=category)(_reader(kind, category)))
    for category in sorted({str(c) for name, c in categories.items() if name not in models}):
        names = sorted(str(name) for name, c in categories.items() if str(c) == category and name not in models)
        made.append(CategoryOf(category=category, names=tuple(names)))
    if callable(hook := held.get(TREE_HOOK)):
        made.append(_tree_hook(hook, where))
    if not made:
        raise UsageError(f"extension {where}: its hooks name no op")
    return tuple(made)


def _tree_hook(hook: Callable[[Any], Any], where: str) -> Callable[[Any], Any]:
    @mark(TREE_HOOK, where)
    def run(tree: Any) -> None:
        hook(tree)

    run.__stands_for__ = hook  # type: ignore[attr-defined]
    return run


def _mapping(held: Mapping[str, Any], hook: str, where: str) -> Mapping[Any, Any]:
    value = held.get(hook, {})
    if not isinstance(value, Mapping):
        raise UsageError(f"extension {where}: {hook} is a {type(value).__name__}, not a dict")
    return value


def _reader(kind: Callable[..., Any], category: str) -> Callable[[OpSignature], PerfModel]:
    def read(op: OpSignature) -> PerfModel:
        made = kind(event_of(op))
        if category in _EXCHANGES:
            return _exchange(op, made, category)
        engine = _answer(made, "get_maf_type") or ("matrix" if category.startswith(_MATRIX) else "vector")
        details = getattr(made, "param_details", None)
        return _model_class(str(getattr(kind, "__name__", "ForeignModel")), category, str(engine))(
            operations=_number(made.flops()),
            moved_bytes=_number(made.bytes()),
            dtype=_computed_in(op, made),
            details=tuple((str(k), _shown(v)) for k, v in details.items()) if isinstance(details, Mapping) else (),
            made=made,
        )

    read.__name__ = read.__qualname__ = str(getattr(kind, "__name__", "read"))
    read.__stands_for__ = kind  # type: ignore[attr-defined]
    return read


def _computed_in(op: OpSignature, made: Any) -> DType | None:
    """The precision that the class says, else the type of the call's first tensor of floating-point numbers."""
    precision = _answer(made, "get_compute_precision")
    if isinstance(precision, str) and (said := DType.parse(precision)) is not None:
        return said
    recorded = (op.dtype(i) for i in range(len(op.dtypes or ())) if op.has(i))
    return next((dtype for dtype in recorded if dtype is not None and dtype.is_floating), None)


@functools.lru_cache(maxsize=1024)
def _model_class(name: str, category: str, engine: str) -> type[ForeignModel]:
    engine = engine if engine in ("matrix", "vector") else "vector"
    held = {"__slots__": (), "category": category, "engine": engine, "__doc__": ForeignModel.__doc__}
    return type(name, (ForeignModel,), held)


def _exchange(op: OpSignature, made: Any, category: str) -> EPComm:
    """Rows of tokens of which the class counts the bytes that cross the interconnect.

    They are shown as it counts them: ``wire_bytes()`` what leaves the rank, where it has that method, ``bytes()`` all
    of them. A class without bytes, and one of ``TOKENS_ONCE``, leaves copies and the rank's own share to ``EPComm``.
    """
    (tokens, hidden), dtype = given_tokens(op)
    name = op.name.lower()
    phase = COMBINE if "combine" in name else DISPATCH if "dispatch" in name else None
    if phase is not None and "backward" in name:
        phase = COMBINE if phase == DISPATCH else DISPATCH
    sizes: dict[str, Any] = {"tokens": tokens, "hidden": hidden, "dtype": dtype, "phase": phase}
    counted = _number(made.bytes())
    if counted is None or getattr(made, TOKENS_ONCE, False):
        model = _of_category(EPComm, category)(**sizes)
        row = model.row_bytes
        return replace(model, rows=counted / row) if counted and row else model
    leaving = _number(_answer(made, "wire_bytes"))
    return _of_category(ForeignExchange, category)(
        **sizes, counted=counted, leaving=leaving, back=_counted(made, "bytes_bwd")
    )


@functools.lru_cache(maxsize=8)
def _of_category(kind: type[EPComm], category: str) -> Callable[..., EPComm]:
    held = {"__slots__": (), "category": category, "__doc__": kind.__doc__}
    return kind if category == kind.category else type(kind.__name__, (kind,), held)


def _counted(made: Any, method: str) -> int | float | None:
    """A number that a class's method counts; None without one, or where it is one of those that it does not define."""
    try:
        return _number(_answer(made, method))
    except (NotImplementedError, TypeError):
        return None


def _answer(made: Any, method: str) -> Any:
    ask = getattr(made, method, None)
    return ask() if callable(ask) else None


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def event_of(op: OpSignature) -> dict[str, Any]:
    """A recorded call as that package hands it to a class: an event of the trace, its arguments as lists."""
    args: dict[str, Any] = dict(op.attributes)
    recorded = (op.shapes, op.dtypes, op.strides, op.scalars)
    for key, value in zip(("Input Dims", "Input type", "Input Strides", "Concrete Inputs"), recorded, strict=True):
        if value is not None:
            args[key] = _as_lists(value)
    return {"name": op.name, "cat": "cpu_op", "ph": "X", "args": args, "kernel_details": [], "kernel_names": []}


def _as_lists(value: Any) -> Any:
    return [_as_lists(each) for each in value] if isinstance(value, tuple) else value
