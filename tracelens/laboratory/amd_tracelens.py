"""Extensions written for TraceLens (AMD-AGI/TraceLens): stand-ins for its base classes where it is not installed, and
its classes as perf models.

The stand-ins have that package's module names, so that a file loads that only wants to say where the dimensions are.
Such a file maps op names to classes (``perf_model_extension``), and categories to names or names to categories
(``dict_cat2names_extension``, ``op_category_extension``). A class is made of one recorded event and answers ``flops()``
and ``bytes()``, of the gradients ``flops_bwd()`` and ``bytes_bwd()``; it builds on that package's base classes, or on
the stand-ins. ``tree_postprocess_extension`` changes the tree of calls
(``tracelens.laboratory.amd_tracelens_tree``).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from types import ModuleType
from typing import Any, ClassVar, cast

from tracelens.errors import UsageError
from tracelens.extensions import TREE_HOOK
from tracelens.perf_models.base import CategoryOf, PerfModel, traced_as
from tracelens.perf_models.collective import COMBINE, DISPATCH, EPComm, given_tokens
from tracelens.perf_models.gemm import GEMM, GroupedGEMM
from tracelens.perf_models.normalization import Normalization
from tracelens.perf_models.sdpa import SDPA
from tracelens.registry import mark
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

#: The package that such files import from.
PACKAGE = "TraceLens"


def _undefined(name: str) -> Any:
    def ask(*_: Any) -> Any:
        raise NotImplementedError(name)

    return ask


class _Base:
    """A class made of one event: ``param_details``, and each of them as an attribute."""

    category: ClassVar[str | None] = None

    def __init__(self, event: dict[str, Any], arch: Any = None, python_path: Any = None, **_: Any) -> None:
        self.event, self.arch, self.python_path = event, arch, python_path
        self.param_details: dict[str, Any] = dict(self.get_param_details(event))
        for key, value in self.param_details.items():
            if not callable(getattr(self, key, None)):
                setattr(self, key, value)

    get_param_details: Any = _undefined("get_param_details")
    flops: Any = _undefined("flops")
    bytes: Any = _undefined("bytes")
    flops_bwd: Any = _undefined("flops_bwd")
    bytes_bwd: Any = _undefined("bytes_bwd")

    def get_compute_precision(self) -> str | None:
        """The first element type among the details."""
        return torch_dtype_map(self._named_type())

    def _named_type(self) -> str | None:
        for key in ("dtype_A_B", "dtype_in_out", "dtype_in1_in2_out", "dtype", "dtype_in"):
            value = self.param_details.get(key)
            text = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(text, str):
                return text
        return None


class _GEMM(_Base):
    category = "GEMM"
    M: int
    N: int
    K: int

    def __init__(self, event: dict[str, Any], *args: Any, **named: Any) -> None:
        self.B, self.bias = 1, False
        super().__init__(event, *args, **named)
        for key in ("B", "bias"):
            setattr(self, key, self.param_details.setdefault(key, getattr(self, key)))

    @staticmethod
    def flops_func(M: int, N: int, K: int, bias: bool) -> int:
        return GEMM(m=M, n=N, k=K, bias=bool(bias)).flops()

    def flops(self) -> Any:
        return self.B * self.flops_func(self.M, self.N, self.K, self.bias)

    @staticmethod
    def bytes_func(
        M: int, N: int, K: int, bias: bool, bpe_mat1: Any, bpe_mat2: Any, bpe_bias: Any, bpe_output: Any
    ) -> Any:
        if None in (bpe_mat1, bpe_mat2, bpe_bias, bpe_output):
            return None
        return M * K * bpe_mat1 + K * N * bpe_mat2 + M * N * bpe_output + (N * bpe_bias if bias else 0)

    def bytes(self, bpe_mat1: Any = None, bpe_mat2: Any = None, bpe_bias: Any = None, bpe_output: Any = None) -> Any:
        types = self.param_details.get("dtype_A_B") or (None, None)
        first, second = name2bpe(types[0]), name2bpe(types[-1])
        widths = [bpe_mat1 or first, bpe_mat2 or second, bpe_bias or first, bpe_output or first]
        moved = self.bytes_func(self.M, self.N, self.K, self.bias, *widths)
        return None if moved is None else self.B * moved


class _Counted(_Base):
    """What a perf model of this package counts, ``_own``."""

    @property
    def _own(self) -> Any:
        raise NotImplementedError

    def flops(self) -> Any:
        return self._own.flops()

    def flops_bwd(self) -> Any:
        return self._own.backward().flops()


class _GroupedGemm(_Counted):
    category = "GroupedGEMM_fwd"

    def bytes(self) -> Any:
        m, n, k, groups = (self.param_details[key] for key in "MNKG")
        read, written = self.param_details.get("bpe_in"), self.param_details.get("bpe_out")
        return None if read is None or written is None else read * (m * k + groups * k * n) + written * m * n

    def bytes_bwd(self) -> Any:
        """Of both gradients: each operand is moved twice."""
        moved = self.bytes()
        return None if moved is None else 2 * moved

    @property
    def _own(self) -> GroupedGEMM:
        m, n, k, groups = (self.param_details[key] for key in "MNKG")
        return GroupedGEMM(m=m, n=n, k=k, groups=groups)


class _SDPA(_Counted):
    category = "SDPA_fwd"

    def bytes(self, bytes_per_element: Any = None) -> Any:
        return self._moved(self._own, bytes_per_element)

    def bytes_bwd(self, bytes_per_element: Any = None) -> Any:
        return self._moved(self._own.backward(), bytes_per_element)

    @staticmethod
    def _moved(model: Any, bytes_per_element: Any) -> Any:
        own = model.hbm_bytes()
        if bytes_per_element is None or own is None:
            return own
        return own / DType.BF16.width_bytes * bytes_per_element

    @property
    def _own(self) -> SDPA:
        d = self.param_details
        size = d["d_h_qk"] if "d_h_qk" in d else d["d_h"]
        named = self._named_type()
        return SDPA(
            b=d["B"], s_q=d["N_Q"], s_kv=d["N_KV"], q_heads=d["H_Q"], kv_heads=d["H_KV"], d_qk=size,
            d_v=d.get("d_h_v", size), mask="top_left" if d.get("causal") else None,
            dtype=DType.BF16 if named is None else DType.parse(named),
        )  # fmt: skip


class _UnaryElementwise(_Base):
    """One operation per element of ``op_shape``, read once per input and written once."""

    category = "elementwise"
    inputs: ClassVar[int] = 1
    types: ClassVar[str] = "dtype_in_out"

    def __init__(self, event: dict[str, Any], *args: Any, **named: Any) -> None:
        super().__init__(event, *args, **named)
        self.nelems = self.num_elems = prod(self.param_details.get("op_shape", ()))
        types = tuple(self.param_details.get(self.types) or ())
        self.bpe_in = name2bpe(types[0]) if types else None
        self.bpe_out = name2bpe(types[-1]) if types and types[-1] else self.bpe_in

    def flops(self) -> Any:
        return self.nelems

    def bytes(self) -> Any:
        if self.bpe_in is None or self.bpe_out is None:
            return None
        return self.nelems * (self.inputs * self.bpe_in + self.bpe_out)


class _BinaryElementwise(_UnaryElementwise):
    inputs = 2
    types = "dtype_in1_in2_out"


class _Normalization(_Counted, _UnaryElementwise):
    category = "NORM_fwd"
    has_bias = is_affine = is_training = True

    def bytes(self) -> Any:
        return self._own.hbm_bytes()

    def bytes_bwd(self, *_: Any) -> Any:
        return self._own.backward().hbm_bytes()

    def flops_func_bwd(self, *_: Any) -> Any:
        return self.flops_bwd()

    bytes_func_bwd = bytes_bwd

    @property
    def _own(self) -> Normalization:
        d = self.param_details
        shape, types = tuple(d["op_shape"]), d.get("dtype_in_out") or (None,)
        channels = int(d.get("num_channels") or shape[-1])
        return Normalization(
            shape=shape, channels=channels, statistics=self.nelems // max(channels, 1),
            weight=bool(d.get("is_affine")), bias=bool(d.get("has_bias")),
            dtype=DType.parse(types[0]) if isinstance(types[0], str) else None,
        )  # fmt: skip


class _EPComm(_Base):
    category = EPComm.category

    def flops(self) -> int:
        return 0

    def flops_bwd(self) -> int:
        return 0

    def bytes(self) -> Any:
        """Tokens x hidden x width by the details' names for them; None without them."""
        tokens, hidden = (self.param_details.get(key) for key in ("num_tokens", "hidden_dim"))
        width = self.param_details.get("bpe") or name2bpe(self._named_type())
        return None if tokens is None or hidden is None or width is None else tokens * hidden * width

    def bytes_bwd(self) -> Any:
        return self.bytes()


def name2bpe(name: Any) -> int | float | None:
    """Bytes per element of a recorded type; None where it is unknown."""
    dtype = DType.parse(name) if isinstance(name, str) else None
    return None if dtype is None else dtype.width_bytes


def torch_dtype_map(name: Any) -> str | None:
    """``bf16`` for ``c10::BFloat16``."""
    dtype = DType.parse(name) if isinstance(name, str) else None
    return None if dtype is None else dtype.rate or dtype.label


def extract_sdpa_cfg(q: Sequence[int], k: Sequence[int], v: Sequence[int], order: Sequence[int]) -> dict[str, int]:
    """Sizes of an attention call, whose tensors' dims are ``order`` = where batch, heads, tokens and size stand."""
    batch, heads, tokens, size = order
    return {
        "B": q[batch], "N_Q": q[tokens], "H_Q": q[heads], "N_KV": k[tokens], "H_KV": k[heads],
        "d_h_qk": q[size], "d_h_v": v[size],
    }  # fmt: skip


#: By their names in the package, which are the classes' own behind the underscore.
_STAND_INS: Mapping[str, Any] = {
    **{
        kind.__name__.removeprefix("_"): kind
        for kind in (_GEMM, _GroupedGemm, _SDPA, _UnaryElementwise, _BinaryElementwise, _Normalization, _EPComm)
    },
    "name2bpe": name2bpe, "torch_dtype_map": torch_dtype_map, "extract_sdpa_cfg": extract_sdpa_cfg,
    "parse_bool": lambda value: str(value).strip().lower() in ("true", "1"),
    "op_to_perf_model_class_map": {}, "dict_cat2names": defaultdict(list), "dict_base_class2category": {},
}  # fmt: skip


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _STAND_INS.get(name) or type(name, (_Base,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the package as one of stand-ins."""

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: its names are made when asked for."""


@contextmanager
def stand_ins() -> Iterator[None]:
    """Within it the package can be imported from, installed or not."""
    if PACKAGE in sys.modules or importlib.util.find_spec(PACKAGE) is not None:
        yield
        return
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


MODELS, NAMES_OF, CATEGORY_OF = "perf_model_extension", "dict_cat2names_extension", "op_category_extension"
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
    made: Any = dataclasses.field(default=None, compare=False, repr=False)

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
            details=tuple(
                (str(k), v if v is None or isinstance(v, bool | int | float | str) else repr(v))
                for k, v in (details.items() if isinstance(details, Mapping) else ())
            ),
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


def event_of(op: OpSignature) -> dict[str, Any]:
    """A recorded call as that package hands it to a class: an event of the trace, its arguments as lists."""
    args: dict[str, Any] = dict(op.attributes)
    recorded = (op.shapes, op.dtypes, op.strides, op.scalars)
    for key, value in zip(("Input Dims", "Input type", "Input Strides", "Concrete Inputs"), recorded, strict=True):
        if value is not None:
            args[key] = as_lists(value)
    return {"name": op.name, "cat": "cpu_op", "ph": "X", "args": args, "kernel_details": [], "kernel_names": []}


def as_lists(value: Any) -> Any:
    """Lists in place of tuples, at any depth."""
    return [as_lists(each) for each in value] if isinstance(value, list | tuple) else value
