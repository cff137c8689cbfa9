"""A side of a comparison as a file: a baseline that a repository keeps."""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.comparison.sides import Call, Rates, Recorded, Side
from tracelens.errors import InputError, UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.before_reading import before_reading
from tracelens.files.json_bytes import decoded, encoded
from tracelens.files.safe_text import json_safe
from tracelens.lazy.patterns import lazy_pattern

SCHEMA = "tracelens.baseline/1"
#: What stands before the name of a baseline where a side is asked for.
PREFIX = "baseline:"
_ENDING = ".json.gz"
_NAME = lazy_pattern(r"\w[\w.-]{0,99}", re.ASCII)


def baseline_path(name: str, folder: Path) -> Path:
    """UsageError for a name that is no plain file name."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} is no name for a baseline: letters, digits, '.', '_' and '-', at most 100")
    return folder / f"{name}{_ENDING}"


def baselines(folder: Path) -> list[str]:
    """The names of the baselines in a folder."""
    return sorted(path.name.removesuffix(_ENDING) for path in folder.glob(f"*{_ENDING}"))


def write_side(side: Side, path: Path) -> None:
    """Writes ``path`` whole or not at all; the same side gives the same bytes."""
    document = {
        "schema": SCHEMA,
        "name": side.name,
        "notes": list(side.notes),
        "runs": [[_plain(one) for one in run] for run in side.parts],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, gzip.compress(encoded(json_safe(document)), mtime=0))


def _plain(one: Recorded) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(one):
        value = getattr(one, field.name)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        elif field.name in ("calls", "rates"):
            value = [[getattr(each, own.name) for own in fields(each)] for each in value]
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def is_stored(path: Path) -> bool:
    """Whether a file is a baseline, by its first bytes."""
    try:
        with gzip.open(path) as file:
            return file.read(60).startswith(b'{"schema":"tracelens.baseline/')
    except (OSError, EOFError):
        return False


def read_side(path: Path) -> Side:
    """InputError where the file is no baseline of this version, or damaged."""
    before_reading(path)
    try:
        document = decoded(gzip.decompress(path.read_bytes()))
        if document["schema"] != SCHEMA:
            raise InputError(f"{path} is a {document['schema']}; this version reads {SCHEMA}: save the baseline again")
        parts = tuple(tuple(_recorded(one) for one in run) for run in document["runs"])
        if not parts or not all(parts):
            raise ValueError("no recordings")
        return Side(name=document["name"], parts=parts, notes=tuple(document["notes"]))
    except FileNotFoundError:
        known = ", ".join(baselines(path.parent)) or "none"
        raise InputError(f"there is no baseline {path}; known in {path.parent}: {known}") from None
    except (
        OSError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        zlib.error,
    ) as error:
        raise InputError(f"{path} is no baseline, or it is damaged ({error}): save it again") from error


def _recorded(found: dict[str, Any]) -> Recorded:
    texts = {"source", "device", "device_label", "torch", "typical", "rank", "has_steps", "is_ordered"}
    values: dict[str, Any] = {}
    for field in fields(Recorded):
        value = found[field.name]
        if field.name in texts:
            values[field.name] = value
        elif field.name == "calls":
            values[field.name] = tuple(Call(**_named(Call, each)) for each in value)
        elif field.name == "rates":
            values[field.name] = tuple(_rates(each) for each in value)
        else:
            kind = np.float64 if field.name == "repeats" else np.int64
            values[field.name] = tuple(value) if field.name == "kernel_names" else np.array(value, kind)
    one = Recorded(**values)
    _refuse_out_of_range(one)
    return one


def _rates(values: list[Any]) -> Rates:
    """Unknown numbers are null in the file."""
    *numbers, bound, engine = values
    flops, hbm_bytes, roofline_us = (np.nan if value is None else float(value) for value in numbers)
    return Rates(flops=flops, hbm_bytes=hbm_bytes, roofline_us=roofline_us, bound=bound, engine=engine)


def _named(kind: type, values: list[Any]) -> dict[str, Any]:
    return dict(zip((field.name for field in fields(kind)), values, strict=True))


def _refuse_out_of_range(one: Recorded) -> None:
    """ValueError where a column points beyond what it indexes."""
    units, steps = len(one.call), len(one.durations_ns)
    limits = (
        (one.call, len(one.calls)), (one.step, steps), (one.piece_unit, units), (one.piece_step, steps),
        (one.event_unit, units), (one.event_kernel, len(one.kernel_names)),
    )  # fmt: skip
    if any(len(column) and not 0 <= column.min() <= column.max() < most for column, most in limits):
        raise ValueError("a column points beyond its table")
    same = (
        (one.piece_unit, one.piece_ns), (one.event_unit, one.event_ns), (one.call, one.kernel_ns),
        (one.call, one.step), (one.call, one.repeats), (one.calls, one.rates),
        (one.piece_unit, one.piece_step), (one.event_unit, one.event_kernel),
    )  # fmt: skip
    if not steps or not 0 <= one.typical < steps or any(len(a) != len(b) for a, b in same):
        raise ValueError("columns of different lengths")
