"""Libraries made of the C files of this package when it is installed, where a compiler is.

Each has a module beside it that does the same without, when there is none or ``TRACELENS_PURE_PYTHON=1`` is in the
environment.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import numpy.typing as npt

SUFFIX = ".shared"


def library(source: Path, layout: int) -> ctypes.CDLL | None:
    """What was made of the C file ``source``; None where that is not wanted, not there, or of another layout."""
    return None if os.environ.get("TRACELENS_PURE_PYTHON") else _loaded(source, layout)


@functools.cache
def _loaded(source: Path, layout: int) -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(str(source.with_suffix(SUFFIX)))
    except OSError:
        return None
    # A clone that was not installed anew has an older one
    return found if found.tracelens_layout() == layout else None


def address(array: npt.NDArray[Any]) -> int:
    """Where an array begins, for a C function that keeps to its length."""
    return array.__array_interface__["data"][0]
