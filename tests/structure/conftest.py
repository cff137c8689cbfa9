"""Syntax trees of the package for all tests of its structure."""

from __future__ import annotations

import ast
import gc
from functools import cache


@cache
def walked(source: str) -> tuple[ast.AST, ...]:
    """Every node of a module, itself first; parsed and walked once."""
    is_on = gc.isenabled()
    gc.disable()  # what it would look at stays
    try:
        return tuple(ast.walk(ast.parse(source)))
    finally:
        if is_on:
            gc.enable()
