"""Modules of perf models under the names that they had before: extensions may import those."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

PACKAGE = "tracelens.perf_models"
FOLDER = Path(__file__).resolve().parent
#: Folders that once held modules of this package.
ROOMS = frozenset({"attention", "communication", "generated", "matrix", "memory_bound"})
#: What stands in a module of another name today.
JOINED = {
    "base": ("columns", "work_columns"),
    "collective": ("ep_comm",),
    "conv": ("conv_gradients", "fourier", "grid_sampler", "pooling"),
    "data_movement": ("embedding", "memory"),
    "elementwise": ("optimizer", "quantization"),
    "gemm": ("grouped_gemm", "weight_only_gemm"),
    "inference_attention": ("rope", "selective_attention"),
    "kernels": ("compute_type", "precision", "required_words"),
    "moe": ("moe_kernels",),
    "normalization": ("hyper_connection",),
    "recurrent_layers": ("linear_attention", "recurrent", "ssm"),
    "reduce": ("cross_entropy", "softmax"),
    "sdpa": ("flex_attention",),
    "surroundings": ("inner_ops",),
    "triton_kernels": ("fused", "fused_arguments", "fused_names"),
}
TODAY = {old: new for new, olds in JOINED.items() for old in olds}


class OldNames(MetaPathFinder, Loader):
    """Finds ``matrix.gemm`` of this package in ``gemm``, ``softmax`` in ``reduce``, and says so."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for a module that has moved, None for any other."""
        if fullname in {f"{PACKAGE}.{room}" for room in ROOMS}:
            return spec_from_loader(fullname, self, is_package=True)
        return spec_from_loader(fullname, self) if new_name(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module of today's name in the place of the old one; a folder that has gone stays empty."""
        new = new_name(module.__name__)
        if new is not None:
            warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
            sys.modules[module.__name__] = import_module(new)


def new_name(name: str) -> str | None:
    """What a moved module is called today; None where nothing of that name has moved."""
    parent, _, stem = name.rpartition(".")
    if parent != PACKAGE and parent.removeprefix(f"{PACKAGE}.") not in ROOMS:
        return None
    today = f"{PACKAGE}.{TODAY.get(stem, stem)}"
    exists = (FOLDER / f"{TODAY.get(stem, stem)}.py").is_file()
    return today if exists and today != name else None


def find_moved_modules() -> None:
    """Lets ``import`` find modules under their old names; they are looked for there last."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.append(OldNames())
