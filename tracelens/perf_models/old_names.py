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
RENAMED = {
    "memory": "data_movement",
    "columns": "work_columns",
    "foreign": "amd_tracelens_hooks",
    "tracelens_adapter": "amd_tracelens_hooks",
    "precision": "compute_type",
}


class OldNames(MetaPathFinder, Loader):
    """Finds ``gemm`` of this package in its room ``matrix``, and says so."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for a module that has moved, None for any other."""
        return spec_from_loader(fullname, self) if new_name(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module of today's name in the place of the old one."""
        new = str(new_name(module.__name__))
        warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(new)


def new_name(name: str) -> str | None:
    """What a moved module is called today; None where nothing of that name has moved."""
    parent, _, stem = name.rpartition(".")
    if parent != PACKAGE:
        return None
    found = next(iter(FOLDER.rglob(f"{RENAMED.get(stem, stem)}.py")), None)
    return ".".join((PACKAGE, *found.relative_to(FOLDER).with_suffix("").parts)) if found else None


def find_moved_modules() -> None:
    """Lets ``import`` find modules under their old names; they are looked for there last."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.append(OldNames())
