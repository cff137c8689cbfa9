"""Expressions that are compiled when first used."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tracelens
from tracelens.lazy.patterns import lazy_pattern


def test_it_is_the_compiled_expression() -> None:
    lazy, compiled = (
        lazy_pattern(r"(?P<word>\w+)-(\d)", re.IGNORECASE),
        re.compile(r"(?P<word>\w+)-(\d)", re.IGNORECASE),
    )
    text = "Ab-1 c-2"
    assert lazy.findall(text) == compiled.findall(text)
    assert [m.span() for m in lazy.finditer(text)] == [m.span() for m in compiled.finditer(text)]
    assert lazy.sub("x", text) == compiled.sub("x", text)
    assert (lazy.pattern, lazy.flags, lazy.groups) == (compiled.pattern, compiled.flags, compiled.groups)
    assert dict(lazy.groupindex) == dict(compiled.groupindex)


def test_nothing_is_compiled_before_it_is_used() -> None:
    broken = lazy_pattern("(")
    with pytest.raises(re.error):
        broken.search("")


def test_it_is_handed_to_nothing_that_wants_the_compiled_one() -> None:
    """Functions of ``re`` and pandas' ``.str`` refuse it: they get ``NAME.pattern``."""
    wrong = []
    for path in Path(tracelens.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "lazy_pattern(" not in text:
            continue
        tree = ast.parse(text)
        lazy = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and "lazy_pattern(" in ast.unparse(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if re.match(r"re\.\w+$|.*\.str\.\w+$", ast.unparse(call.func), re.DOTALL):
                wrong += [f"{path}:{call.lineno}" for given in call.args if getattr(given, "id", None) in lazy]
    assert not wrong
