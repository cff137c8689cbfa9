"""Serving engines as files: what each adds to the device's work, fitted to published points
(``benchmarks/fit_engines.py``), on NVIDIA and, as ``*-rocm``, on AMD devices.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from tracelens.errors import UsageError
from tracelens.files.documents import normalized, toml_of
from tracelens.hardware import HardwareSpec
from tracelens.predict.serving.deployment import Engine

#: Of an engine that no file names; and nothing fitted.
POOLED, IDEAL = "pooled", "ideal"
_FOLDER = Path(__file__).parent
#: What engines do unless told otherwise.
HABITS = toml_of(_FOLDER.with_name("habits.toml"))
_WORDS = {"tensorrt-llm": "trtllm", "trt": "trtllm", "tensorrt": "trtllm", "mori-sglang": "sglang"}


def names() -> tuple[str, ...]:
    """Engines of this package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def engine_name(said: str, device: HardwareSpec) -> str:
    """The file of the engine that a table or an option calls ``said`` on such a device."""
    word = normalized(said)
    word = _WORDS.get(word, word)
    ending = "-rocm" if device.vendor == "amd" else ""
    found = word.removesuffix("-rocm") + ending
    return found if found in names() else POOLED + ending


@functools.cache
def fitted_engine(said: str, device: HardwareSpec) -> Engine:
    """The engine with its fitted constants, and the usual limits. ``ideal``: none."""
    if normalized(said) == IDEAL:
        return Engine(name=IDEAL)
    name = engine_name(said, device)
    return with_habits(Engine.load(_FOLDER / f"{name}.toml").released(None, device), name)


def with_habits(engine: Engine, name: str) -> Engine:
    """``engine`` with what the one called ``name`` does by default, where it says nothing else."""
    habits = HABITS.get(name.removesuffix("-rocm"), {})
    return dataclasses.replace(engine, **{key: getattr(engine, key) or said for key, said in habits.items()})


def named(said: str, device: HardwareSpec) -> Engine:
    """What ``--engine`` says by name. UsageError for one that is neither a file's name nor a known engine."""
    known = {*(name.removesuffix("-rocm") for name in names()), *_WORDS, IDEAL}
    if normalized(said) not in known:
        raise UsageError.unknown("engine", said, sorted(known))
    return fitted_engine(said, device)
