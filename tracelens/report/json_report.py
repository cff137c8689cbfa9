"""``report.json``: what scripts, diffs and agents read (schema ``tracelens.report/1``).

The JSON Schema is ``tracelens/schemas/report.schema.json``. Within a version fields are only added. null is
*not determined*.
Nothing in it depends on the day, the folder or the machine, and keys stand in a fixed order: same input, same bytes.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from importlib import resources
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from tracelens.analysis.verdict.summary import (
    Busy,
    CategoryRow,
    DeviceSummary,
    Finding,
    InputSummary,
    Notice,
    Steps,
    Summary,
    Utilization,
)
from tracelens.files.atomic_write import whole_file
from tracelens.files.safe_text import escaped_json, json_safe
from tracelens.report.cells import Value, plain_values
from tracelens.units import BYTES_PER_MB, FLOPS_PER_GFLOP

if TYPE_CHECKING:
    import pandas as pd

SCHEMA, BRIEF_SCHEMA = "tracelens.report/1", "tracelens.report.brief/1"
#: What the brief form says of a finding.
_BRIEF_FINDING = ("id", "op", "gain_us", "gain_low_us", "gain_high_us", "certainty", "why", "remedy", "command")
#: Rows that the document keeps of a view; the workbook has all.
MAX_VIEW_ROWS = 50
NO_VIEWS: Mapping[str, pd.DataFrame] = MappingProxyType({})

Json: TypeAlias = dict[str, Any]


def write_json(
    path: str | PathLike[str], summary: Summary, ops: pd.DataFrame | None, views: Mapping[str, pd.DataFrame] = NO_VIEWS
) -> None:
    """Writes ``path`` whole or not at all; OutputError when the folder is not writable."""
    with whole_file(Path(path)) as file:
        file.write(json_bytes(summary, ops, views))


def json_bytes(summary: Summary, ops: pd.DataFrame | None, views: Mapping[str, pd.DataFrame] = NO_VIEWS) -> bytes:
    """The document, indented by two, UTF-8, ending in a line feed. NaN and infinities are null."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    content = _content(summary, ops, views)
    try:
        return escaped_json(orjson.dumps(content, option=option))
    except orjson.JSONEncodeError:
        # A lone surrogate or a huge integer: rare, and looking for one everywhere takes longer than all the rest.
        return escaped_json(orjson.dumps(json_safe(content), option=option))


def schema() -> Json:
    """The JSON Schema of the document."""
    text = resources.files("tracelens").joinpath("schemas", "report.schema.json").read_bytes()
    loaded: Json = orjson.loads(text)
    return loaded


def document(summary: Summary, ops: pd.DataFrame | None, views: Mapping[str, pd.DataFrame] = NO_VIEWS) -> Json:
    """``ops``: the frame of ``unified_perf_summary``, by keys; None without device work. ``views``: by sheet name."""
    cleaned: Json = json_safe(_content(summary, ops, views))
    return cleaned


def brief_document(whole: Json) -> Json:
    """The same in a twentieth of the space: without ops, views and sources; numbers to five digits."""
    kept = {key: whole[key] for key in whole if key not in ("ops", "views", "extensions")}
    device = {key: value for key, value in whole["device"].items() if key != "figures"}
    findings = [{key: found[key] for key in _BRIEF_FINDING if key in found} for found in whole["findings"]]
    shortened: Json = _rounded({**kept, "schema": BRIEF_SCHEMA, "device": device, "findings": findings})
    return shortened


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


def _content(summary: Summary, ops: pd.DataFrame | None, views: Mapping[str, pd.DataFrame]) -> Json:
    return {
        "schema": SCHEMA,
        "input": _input(summary.input),
        "device": _device(summary.device),
        "extensions": list(summary.extensions),
        "coverage": _fields(summary.coverage),
        "step": _step(summary.steps),
        "busy": _busy(summary.busy),
        "throughput": None if summary.throughput is None else _fields(summary.throughput),
        "utilization": _utilization(summary.utilization),
        "categories": [_category(row) for row in summary.categories],
        "findings": [_finding(found) for found in summary.findings],
        "unseen": None if summary.unseen is None else {**_fields(summary.unseen), "ops": list(summary.unseen.ops)},
        "ops": [] if ops is None else op_records(ops, summary.steps),
        "views": {title: _records(frame) for title, frame in views.items()},
        "cannot_answer": [_fields(missing) for missing in summary.cannot_answer],
        "warnings": [_warning(notice) for notice in summary.notices],
    }


def _finding(found: Finding) -> Json:
    return {
        **_fields(found),
        "figures": [_fields(said) for said in found.figures],
        "where": None if found.where is None else _fields(found.where),
        "evidence": [{"sheet": proof.sheet, "row": dict(proof.row)} for proof in found.evidence],
    }


def _records(frame: pd.DataFrame) -> list[Json]:
    shown = frame.iloc[:MAX_VIEW_ROWS]
    columns = [plain_values(shown[key]) for key in shown.columns]
    return [dict(zip(shown.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def op_records(ops: pd.DataFrame, steps: Steps | None) -> list[Json]:
    """One record per distinct op call. Times are µs of one call: ``measured_us`` is the mean over ``count`` calls."""
    take = _Columns(ops)
    names = take.many("name", "category", "input_dims", "input_types", "input_strides", "concrete_inputs")
    numbers = take.many(
        "kernel_us_mean", "kernel_us_median", "kernel_us_std", "kernel_us_min", "roofline_us", "launch_gap_us"
    )
    work = take.many("model", "perf_params", "operation_count", "gflops", "hbm_mb", "wire_mb")
    words, in_steps = take.many("backend", "roofline_bound", "note"), take.many("_step_count", "_step_us")
    records = []
    for (name, category, dims, types, strides, scalars), times, amounts, (backend, bound, note), (calls, us) in zip(
        names, numbers, work, words, in_steps, strict=True
    ):
        mean, median, std, least, estimated, gap = times
        model, parameters, count, gflops, hbm_mb, wire_mb = amounts
        records.append(
            {
                "signature": {
                    "name": name,
                    "shapes": _recorded(dims),
                    "dtypes": _recorded(types),
                    "strides": _recorded(strides),
                    "scalars": _recorded(scalars),
                },
                "category": category,
                "model": model,
                "dims": _recorded(parameters),
                "count": _whole(count),
                "measured_us": mean,
                "measured_median_us": median,
                "measured_std_us": std,
                "measured_min_us": least,
                "estimated_us": estimated,
                "flops": _whole(gflops, FLOPS_PER_GFLOP),
                "hbm_bytes": _whole(hbm_mb, BYTES_PER_MB),
                "wire_bytes": _whole(wire_mb, BYTES_PER_MB),
                "backend": backend,
                "bound": bound,
                "launch_gap_us": gap,
                "note": note,
            }
        )
        if steps is not None and calls not in (None, count):
            records[-1]["per_step"] = {"count": calls / steps.count, "us": us / steps.count}
    return records


class _Columns:
    """A frame's columns as plain values; a key that it lacks is None throughout."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def many(self, *keys: str) -> Iterable[tuple[Any, ...]]:
        return zip(*(self._one(key) for key in keys), strict=True)

    def _one(self, key: str) -> Sequence[Value]:
        if key not in self._frame.columns:
            return [None] * len(self._frame)
        return plain_values(self._frame[key])


@functools.lru_cache(maxsize=4096)
def _recorded(text: Value) -> Any:
    """A frame's text of tuples or a dict as JSON lists or an object; null where nothing was recorded.

    Frames hold the ``repr`` of what a signature holds, so this is a literal by construction.
    """
    if not isinstance(text, str):
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _whole(value: Any, factor: int = 1) -> int | None:
    return None if value is None else round(value * factor)


def _fields(value: Any) -> Json:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _input(source: InputSummary) -> Json:
    return {
        "file": source.file,
        "events": source.events,
        "ranks": list(source.ranks),
        "world_size": source.world_size,
        "window": source.window,
        "left_out": source.left_out,
        "torch": source.torch_version,
    }


def _device(device: DeviceSummary) -> Json:
    return {
        "id": device.id,
        "label": device.label,
        "matched_by": device.matched_by,
        "note": device.note,
        "doubtful": list(device.doubtful),
        "figures": [_fields(figure) for figure in device.figures],
    }


def _step(steps: Steps | None) -> Json | None:
    return None if steps is None else _fields(steps)


def _busy(busy: Busy | None) -> Json | None:
    if busy is None:
        return None
    return _fields(busy) | {"idle_causes": [{"cause": cause, "share": share} for cause, share in busy.idle_causes]}


def _utilization(used: Utilization | None) -> Json | None:
    return None if used is None else _fields(used) | {"steps": [_fields(step) for step in used.steps]}


def _category(row: CategoryRow) -> Json:
    return {
        "name": row.name,
        "time_us": row.time_us,
        "share": row.share,
        "tflops": row.tflops_s,
        "hbm_tb_s": row.hbm_tb_s,
        "wire_tb_s": row.wire_tb_s,
        "bound": row.bound,
        "of_roofline": row.of_roofline,
        "of_peak": row.of_peak,
        "backend": row.backend,
        "flops_share": row.flops_share,
    }


def _warning(notice: Notice) -> Json:
    return {"id": notice.id, "count": notice.count, "text": notice.text}
