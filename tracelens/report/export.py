"""Frames as files: CSV, JSON, workbooks, metrics."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from tracelens.errors import UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.cells import columns_csv, frame_csv, plain_records, plain_values
from tracelens.files.documents import json_encoded
from tracelens.files.safe_text import escaped_json
from tracelens.report.json_report import OTLP, Labels, Metric, exposition, otlp_line
from tracelens.schema import column_title
from tracelens.types.records import pd


def write_frame(path: Path, frame: pd.DataFrame, about: Mapping[str, Any]) -> None:
    """Writes ``path`` whole or not at all, by its ending (else UsageError); ``about``: what was asked, for JSON."""
    write_whole(path, _WRITERS[refuse_unknown(path)](frame, about))


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Writes rows as CSV, whole or not at all."""
    write_whole(path, columns_csv(columns, [[row.get(name) for row in rows] for name in columns]))


def refuse_unknown(path: Path, *others: str) -> str:
    """The ending of ``path``; UsageError for one that nothing writes. ``others``: what the caller writes itself."""
    if path.suffix not in (*_WRITERS, *others):
        raise UsageError(f"{path}: the name of a table must end in {', '.join((*_WRITERS, *others))}")
    return path.suffix


def frame_json(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    """A frame as JSON: ``about`` and its ``rows``, an object each."""
    document = {**about, "rows": plain_records(frame, list(frame.columns))}
    return escaped_json(json_encoded(document, orjson.OPT_INDENT_2)) + b"\n"


def meanings(verb: str) -> dict[str, str]:
    """What the figures and columns of a verb's files mean, by key (``meanings.toml``)."""
    text = resources.files("tracelens.report").joinpath("meanings.toml").read_text("utf-8")
    return tomllib.loads(text)[verb]


#: How a column's key says its unit, the base unit that a metric's name says instead, and the factor to it.
_UNITS = {"ns": ("seconds", 1e-9), "us": ("seconds", 1e-6), "ms": ("seconds", 1e-3), "percent": ("ratio", 0.01)}
_UNIT = re.compile(rf"(?<![^_])({'|'.join(_UNITS)})(?![^_])")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


def write_metrics(path: Path, frame: pd.DataFrame, name: str, identifiers: Container[str]) -> None:
    """Writes ``frame_metrics``, whole or not at all: for Prometheus, or as OTLP where ``path`` ends in .jsonl."""
    found = list(frame_metrics(frame, name, identifiers))
    write_whole(path, (otlp_line if path.suffix == OTLP else exposition)(found))


def frame_metrics(frame: pd.DataFrame, name: str, identifiers: Container[str]) -> Iterator[Metric]:
    """A column of numbers as a metric: ``step_us_median`` of ``runs`` is ``runs_step_seconds_median``. Texts, truth
    values and the columns of ``identifiers`` are labels; what is not determined is left out.

    UsageError where two rows have the same labels, and for columns that would have one name.
    """
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    kinds = [(key, frame[key].dtype) for key in frame.columns if key not in identifiers]
    figures = [key for key, kind in kinds if is_numeric_dtype(kind) and not is_bool_dtype(kind)]
    rows = _labels(frame.drop(columns=figures))
    named = {key: _metric_name(name, key) for key in figures}
    if len({title for title, _, _ in named.values()}) < len(named):
        raise _alike(figures)
    for key, (title, unit, factor) in named.items():
        for value, labels in zip(plain_values(frame[key]), rows, strict=True):
            if value is not None and math.isfinite(float(value)):
                about = f"Column {key} of {name}."
                yield Metric(name=title, about=about, unit=unit, value=float(value) * factor, labels=labels)


def _labels(frame: pd.DataFrame) -> list[Labels]:
    """Of each row; UsageError where two have the same ones."""
    keys = [_NOT_IN_A_NAME.sub("_", str(key)) for key in frame.columns]
    if len(set(keys)) < len(keys):
        raise _alike(map(str, frame.columns))
    texts = (["" if value is None else str(value) for value in plain_values(frame[key])] for key in frame.columns)
    rows = [tuple(zip(keys, row, strict=True)) for row in zip(*texts, strict=True)] or [()] * len(frame)
    for labels, count in Counter(rows).items():
        if count > 1:
            shown = ", ".join(f"{key} {text!r}" for key, text in labels) or "no text at all"
            raise UsageError(f"metrics need rows with different names, and {count} have {shown}")
    return rows


def _alike(columns: Iterable[str]) -> UsageError:
    return UsageError(f"columns of metrics need names that differ in letters and digits: {', '.join(columns)}")


def _metric_name(table: str, key: str) -> tuple[str, str, float]:
    """(name, unit as OpenTelemetry writes it, what to multiply by): base units, as Prometheus wants them."""
    found = _UNIT.search(key)
    unit, factor = _UNITS[found[1]] if found else ("", 1)
    title = _UNIT.sub(unit, key, count=1) if found else key
    return _NOT_IN_A_NAME.sub("_", f"{table}_{title}"), "s" if unit == "seconds" else "1", factor


def _xlsx(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    from tracelens.report.workbook import tables_xlsx

    # Who wrote a statement has named its columns
    return tables_xlsx({"table": frame}, {}, titles=str if "query" in about else column_title)


_WRITERS: dict[str, Callable[[Any, Mapping[str, Any]], bytes]] = {
    ".csv": lambda frame, _: frame_csv(frame),
    ".json": frame_json,
    ".xlsx": _xlsx,
}
