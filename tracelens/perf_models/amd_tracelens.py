"""Stand-ins for the base classes of TraceLens (AMD-AGI/TraceLens), where it is not installed.

They stand under that package's module names, so that a file loads that only wants to say where the dimensions are.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from types import ModuleType
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.perf_models.collective import EPComm
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.grouped_gemm import GroupedGEMM
from tracelens.perf_models.normalization import Normalization
from tracelens.perf_models.sdpa import SDPA

#: The package that such files import from.
PACKAGE = "TraceLens"


class _Base:
    """A class made of one event: ``param_details``, and each of them as an attribute."""

    category: ClassVar[str | None] = None

    def __init__(self, event: dict[str, Any], arch: Any = None, python_path: Any = None, **_: Any) -> None:
        self.event, self.arch, self.python_path = event, arch, python_path
        self.param_details = dict(self.get_param_details(event))
        for key, value in self.param_details.items():
            if not callable(getattr(self, key, None)):
                setattr(self, key, value)

    @staticmethod
    def get_param_details(event: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError("get_param_details")

    def flops(self) -> Any:
        raise NotImplementedError("flops")

    def bytes(self) -> Any:
        raise NotImplementedError("bytes")

    def flops_bwd(self) -> Any:
        raise NotImplementedError("flops_bwd")

    def bytes_bwd(self) -> Any:
        raise NotImplementedError("bytes_bwd")

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


class _GroupedGemm(_Base):
    category = "GroupedGEMM_fwd"

    def flops(self) -> Any:
        return self._own.flops()

    def bytes(self) -> Any:
        m, n, k, groups = (self.param_details[key] for key in "MNKG")
        read, written = self.param_details.get("bpe_in"), self.param_details.get("bpe_out")
        return None if read is None or written is None else read * (m * k + groups * k * n) + written * m * n

    def flops_bwd(self) -> Any:
        return self._own.backward().flops()

    def bytes_bwd(self) -> Any:
        """Of both gradients: each operand is moved twice."""
        moved = self.bytes()
        return None if moved is None else 2 * moved

    @property
    def _own(self) -> GroupedGEMM:
        m, n, k, groups = (self.param_details[key] for key in "MNKG")
        return GroupedGEMM(m=m, n=n, k=k, groups=groups)


class _SDPA(_Base):
    category = "SDPA_fwd"

    def flops(self) -> Any:
        return self._own.flops()

    def bytes(self, bytes_per_element: Any = None) -> Any:
        own = self._own.hbm_bytes()
        if bytes_per_element is None or own is None:
            return own
        return own / DType.BF16.width_bytes * bytes_per_element

    def flops_bwd(self) -> Any:
        return self._own.backward().flops()

    def bytes_bwd(self, bytes_per_element: Any = None) -> Any:
        own = self._own.backward().hbm_bytes()
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


class _Normalization(_UnaryElementwise):
    category = "NORM_fwd"
    has_bias = is_affine = is_training = True

    def flops(self) -> Any:
        return self._own.flops()

    def bytes(self) -> Any:
        return self._own.hbm_bytes()

    def flops_func_bwd(self, *_: Any) -> Any:
        return self._own.backward().flops()

    def bytes_func_bwd(self, *_: Any) -> Any:
        return self._own.backward().hbm_bytes()

    def flops_bwd(self) -> Any:
        return self._own.backward().flops()

    def bytes_bwd(self, *_: Any) -> Any:
        return self._own.backward().hbm_bytes()

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
