"""An extension that imports a perf model's module under its old name gets today's module, and is told its name."""

from __future__ import annotations

import importlib
import sys

import pytest

from tracelens.perf_models.data_movement import Movement
from tracelens.perf_models.gemm import GEMM


@pytest.mark.parametrize(
    ("old", "new", "name", "target"),
    [
        ("tracelens.perf_models.matrix." + "gemm", "tracelens.perf_models.gemm", "GEMM", GEMM),
        (
            "tracelens.perf_models." + "memory",
            "tracelens.perf_models.data_movement",
            "Movement",
            Movement,
        ),
    ],
)
def test_an_old_name_is_todays_module(
    old: str, new: str, name: str, target: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        module = importlib.import_module(old)
    assert getattr(module, name) is target
    assert module.__name__ == new


def test_a_name_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_model"):
        importlib.import_module("tracelens.perf_models.no_such_model")
