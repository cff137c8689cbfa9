"""Extensions written for TraceLens (AMD-AGI/TraceLens): their classes as perf models.

Such a file maps op names to classes (``perf_model_extension``), and categories to names or names to categories
(``dict_cat2names_extension``, ``op_category_extension``). A class is made of one recorded event and answers ``flops()``
and ``bytes()``; it builds on that package's base classes, or on those of ``amd_tracelens_classes``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import CategoryOf, PerfModel, traced_as
from tracelens.perf_models.communication.ep_comm import COMBINE, DISPATCH, EPComm, given_tokens
from tracelens.signature import OpSignature

MODELS, NAMES_OF, CATEGORY_OF = "perf_model_extension", "dict_cat2names_extension", "op_category_extension"
_MATRIX = ("GEMM", "GroupedGEMM", "SDPA", "CONV", "Inference", "MoE_fused", "MoE_unfused")
_EXCHANGES = ("EP_Communication", "MoE_comm_fwd", "MoE_comm_bwd")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel(PerfModel):
    """What a class written for TraceLens counts for one call: its operations and its bytes.

    ``details``: the dimensions that it read, as texts and numbers.
    """

    operations: int | float | None
    moved_bytes: int | float | None
    dtype: DType | None
    details: tuple[tuple[str, Any], ...]

    def flops(self) -> int | float | None:
        return self.operations

    def hbm_bytes(self) -> int | float | None:
        return self.moved_bytes

    def parameters(self) -> dict[str, Any]:
        return dict(self.details)


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
    if not made:
        raise UsageError(f"extension {where}: its hooks name no op")
    return tuple(made)


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
        precision = _answer(made, "get_compute_precision")
        engine = _answer(made, "get_maf_type") or ("matrix" if category.startswith(_MATRIX) else "vector")
        details = getattr(made, "param_details", None)
        return _model_class(str(getattr(kind, "__name__", "ForeignModel")), category, str(engine))(
            operations=_number(made.flops()),
            moved_bytes=_number(made.bytes()),
            dtype=DType.parse(precision) if isinstance(precision, str) else None,
            details=tuple((str(k), _shown(v)) for k, v in details.items()) if isinstance(details, Mapping) else (),
        )

    read.__name__ = read.__qualname__ = str(getattr(kind, "__name__", "read"))
    return read


@functools.lru_cache(maxsize=1024)
def _model_class(name: str, category: str, engine: str) -> type[ForeignModel]:
    engine = engine if engine in ("matrix", "vector") else "vector"
    held = {"__slots__": (), "category": category, "engine": engine, "__doc__": ForeignModel.__doc__}
    return type(name, (ForeignModel,), held)


def _exchange(op: OpSignature, made: Any, category: str) -> EPComm:
    """Rows of tokens, whose bytes cross the interconnect: as many as it counts bytes, else its first tensor's."""
    (tokens, hidden), dtype = given_tokens(op)
    name = op.name.lower()
    phase = COMBINE if "combine" in name else DISPATCH if "dispatch" in name else None
    if phase is not None and "backward" in name:
        phase = COMBINE if phase == DISPATCH else DISPATCH
    kind = EPComm if category == EPComm.category else _exchange_class(category)
    model = kind(tokens=tokens, hidden=hidden, dtype=dtype, phase=phase)
    counted, row = _number(made.bytes()), model.row_bytes
    if counted is None or not row or counted == model.exchanged_bytes():
        return model
    return replace(model, rows=counted / row)


@functools.lru_cache(maxsize=8)
def _exchange_class(category: str) -> type[EPComm]:
    return type("EPComm", (EPComm,), {"__slots__": (), "category": category, "__doc__": EPComm.__doc__})


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
