"""Writes the JSON Schema of every document that commands print or write: ``python -m docs.generate_schemas``.

Of dataclasses and tables the schema is what they declare; report.schema.json is written by hand.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tracelens.analysis.ranks.rank_comparison import rank_sheets
from tracelens.comparison.compared import ComparedRow, Comparison, EnergyCompared, RankChange
from tracelens.comparison.whatif.what_if import OpChange, StepFigures
from tracelens.predict.calibration.scoring import Score
from tracelens.report.json_report import BRIEF_SCHEMA, schema

FOLDER = Path(__file__).resolve().parents[1] / "tracelens" / "report" / "schemas"
Json = dict[str, Any]
TEXT: Json = {"type": "string"}
#: A number that could not be determined, or is not finite, is null.
NUMBER: Json = {"type": ["number", "null"]}
CELL: Json = {"type": ["string", "number", "boolean", "null"]}
_SCALARS: dict[Any, Json] = {str: TEXT, int: {"type": "integer"}, float: NUMBER, bool: {"type": "boolean"}, Any: {}}


def of(declared: Any) -> Json:
    """The schema of values of a type: a dataclass, a mapping, a tuple or list, one or None, a scalar."""
    if declared in _SCALARS:
        return _SCALARS[declared]
    if isinstance(declared, type) and is_dataclass(declared):
        hints = typing.get_type_hints(declared)
        about = (declared.__doc__ or "").strip().partition("\n\n")[0]
        return {
            "description": " ".join(about.split()),
            **an_object({f.name: of(hints[f.name]) for f in fields(declared)}),
        }
    origin, given = typing.get_origin(declared), typing.get_args(declared)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [*(of(each) for each in given if each is not type(None)), {"type": "null"}]}
    if origin is typing.Literal:
        return {"enum": list(given)}
    if origin is tuple and given[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [of(each) for each in given], "minItems": len(given), "items": False}
    if origin in (tuple, list):
        return a_list(of(given[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": of(given[1])}
    raise TypeError(f"no schema is known for {declared}")


def an_object(properties: Mapping[str, Json], optional: Iterable[str] = ()) -> Json:
    """All of these keys; within a version keys are only added."""
    required = [key for key in properties if key not in set(optional)]
    return {"type": "object", "required": required, "properties": dict(properties)}


def a_list(items: Json) -> Json:
    return {"type": "array", "items": items}


def rows(*columns: str) -> Json:
    """A table: an object of cells per row; ``columns``: those that are always there."""
    return a_list({"type": "object", "required": list(columns), "additionalProperties": CELL})


def document(name: str, about: str, properties: Mapping[str, Json], optional: Iterable[str] = ()) -> Json:
    """The schema of a versioned document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        "title": name,
        "description": f"{about} null: not determined. Within a version keys are only added.",
        **an_object({"schema": {"const": name}, **properties}, optional),
    }


def _with_change(row: Json) -> Json:
    """The schema of a row whose change is written beside its fields."""
    properties = {"change_ms": NUMBER, **row["properties"]}
    return {**row, "required": list(properties), "properties": properties}


def schemas() -> dict[str, Json]:
    """Every generated schema by its file's name without ending."""
    figures: Json = {"type": "object", "additionalProperties": CELL}
    lines = a_list(TEXT)
    compared = {key: a_list(_with_change(of(kind))) for key, kind in
                (("rows", ComparedRow), ("unchanged", ComparedRow), ("ranks", RankChange))}  # fmt: skip
    energy = of(EnergyCompared)
    energy = {**energy, **an_object({"change_j": NUMBER, **energy["properties"]})}
    comparison = {**of(Comparison)["properties"], "change_ms": NUMBER, **compared, "energy": energy}
    op_change = of(OpChange)
    op_change["properties"]["change_us"] = NUMBER
    step = dict.fromkeys(("before_us", "after_us", "low_us", "high_us", "change_us"), NUMBER)
    tables = {
        title: a_list(
            an_object({key: _cell(column) for key, column in claim.options["columns"].items()}, _optional(claim))
        )
        for title, claim in rank_sheets().items()
        if claim.options["json"] is not None and claim.options["columns"]
    }
    clocks = an_object({"residual_us": NUMBER, "hosts_from": TEXT})
    warning = an_object({"id": TEXT, "count": {"type": ["integer", "null"]}, "text": TEXT})
    job = an_object({"name": TEXT, "ranks": a_list({"type": "integer"}), "world_size": {"type": ["integer", "null"]}})
    made = (
        document("tracelens.compare/1", "What compare prints; times are ms per step.", comparison, ("energy",)),
        document(
            "tracelens.whatif/1",
            "What whatif prints; times are us per step.",
            {
                "input": an_object({"file": TEXT, "steps": {"type": "integer"}}),
                "asked": {"type": "object"},
                "step": an_object(step),
                "before": of(StepFigures),
                "after": of(StepFigures),
                "explained": NUMBER,
                "rows": a_list(op_change),
                "notes": lines,
            },
        ),
        document(
            "tracelens.collectives/2",
            "What collectives writes; sheets without rows are left out.",
            {
                "input": job,
                "clocks": clocks,
                "warnings": a_list(warning),
                "tables": {"type": "object", "properties": tables},
            },
        ),
        document(
            "tracelens.project/1",
            "What project writes.",
            {
                "summary": figures,
                "breakdown": rows("part", "time_us", "share"),
                "communication": rows("stream", "time_us", "calls", "exposed_us"),
                "memory": rows("stage", "peak_gb", "capacity_gb"),
                "ops": rows("op", "calls", "time_us"),
                "levers": rows("change", "gain"),
                "expected_error": {"type": ["object", "null"]},
                "notes": lines,
            },
        ),
        document("tracelens.project.sweep/1", "What project --sweep writes.", {"model": TEXT, "rows": rows()}),
        document(
            "tracelens.search/1",
            "What search writes; rows are the splits that fit, the fastest first.",
            {"model": TEXT, "cluster": TEXT, "rules": TEXT, "rows": rows()},
        ),
        document(
            "tracelens.serve/1", "What serve prints.", {"summary": figures, "wall_clock_s": NUMBER, "notes": lines}
        ),
        document(
            "tracelens.serve.frameworks/1",
            "What serve prints for an experiment file with several frameworks: name, summary and notes of each.",
            {"frameworks": a_list({"type": "object"})},
        ),
        document(
            "tracelens.route/1",
            "What route prints: figures, tables, and the bytes that each rank sends to each.",
            {"summary": figures, "traffic_bytes": a_list(a_list(NUMBER))},
        ),
        document("tracelens.model/1", "What models show prints; models list, a list of them.", {"name": TEXT}),
        document("tracelens.score/1", "What score prints.", {"scores": a_list(of(Score))}),
        document(
            "tracelens.query/1",
            "What query prints: the rows that a statement answers.",
            {"query": TEXT, "scope": TEXT, "rows": rows()},
        ),
    )
    named = {each["title"].removeprefix("tracelens.").rpartition("/")[0]: each for each in made}
    return {**named, "report.brief": brief()}


def brief() -> Json:
    """The report's own schema, without what the short form leaves out."""
    whole = schema()
    left_out = ("ops", "views", "extensions")
    kept = {key: value for key, value in whole["properties"].items() if key not in left_out}
    return {
        **whole,
        "$id": BRIEF_SCHEMA,
        "title": BRIEF_SCHEMA,
        "description": "What report --format json --brief prints: the report in short, figures to five digits.",
        "required": [key for key in whole["required"] if key not in left_out],
        "properties": {
            **kept,
            "schema": {"const": BRIEF_SCHEMA},
            "device": {"type": "object"},
            "findings": {"type": "array", "items": {"type": "object"}},
        },
    }


def _cell(column: Any) -> Json:
    kind = "string" if column.is_text else "boolean" if column.is_flag else "number"
    return {"type": [kind, "null"]} if kind != "boolean" else CELL


def _optional(claim: Any) -> list[str]:
    return [key for key, column in claim.options["columns"].items() if column.optional]


def text(made: Json) -> str:
    """The file's content."""
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for stem, made in schemas().items():
        (FOLDER / f"{stem}.schema.json").write_text(text(made), encoding="utf-8")
