"""What programs read of a report: ``report.json`` (schema ``tracelens.report/2``), and its main figures as metrics for
Prometheus and OpenTelemetry.

The JSON Schema is ``tracelens/schemas/report.schema.json``. Within a version fields are only added. null is
*not determined*. Nothing depends on the day, the folder or the machine, and keys stand in a fixed order: same input,
same bytes; of OpenTelemetry's points the time is that of the recording, of writing where it is unknown.
"""

from __future__ import annotations

import ast
import functools
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from os import PathLike
from types import MappingProxyType
from typing import Any, TypeAlias

import orjson

from tracelens.analysis.verdict.summary import Summary
from tracelens.files.atomic_write import write_whole
from tracelens.files.cells import Value, plain_records, plain_tree, plain_values
from tracelens.files.documents import json_encoded
from tracelens.files.safe_text import escaped_json, json_safe, terminal_text
from tracelens.report.figures import bound_sentence, first_fix
from tracelens.types.records import Record, pd
from tracelens.types.units import US_PER_S

SCHEMA, BRIEF_SCHEMA = "tracelens.report/2", "tracelens.report.brief/2"
#: What the brief form says of a finding.
_BRIEF_FINDING = (
    "id", "op", "gain_us", "gain_low_us", "gain_high_us", "certainty", "why", "limited_by", "remedy", "command"
)  # fmt: skip
#: Rows that the document keeps of a view; CSV files have all.
MAX_VIEW_ROWS = 50
NO_VIEWS: Mapping[str, pd.DataFrame] = MappingProxyType({})

Json: TypeAlias = dict[str, Any]


def write_json(
    path: str | PathLike[str], summary: Summary, ops: pd.DataFrame | None, views: Mapping[str, pd.DataFrame] = NO_VIEWS
) -> None:
    """Writes ``path`` whole or not at all; OutputError when the folder is not writable."""
    write_whole(path, json_bytes(summary, ops, views))


def json_bytes(summary: Summary, ops: pd.DataFrame | None, views: Mapping[str, pd.DataFrame] = NO_VIEWS) -> bytes:
    """The document, indented by two, UTF-8, ending in a line feed; NaN and infinities are null.

    ``ops``: the frame of ``unified_perf_summary``, by keys; None without device work. ``views``: by sheet name.
    """
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    content = _content(summary, ops, views)
    try:
        return escaped_json(json_encoded(content, option))
    except orjson.JSONEncodeError:
        # A lone surrogate or a huge integer: rare, and looking for one everywhere takes longer than all the rest.
        return escaped_json(json_encoded(json_safe(content), option))


def schema() -> Json:
    text = resources.files("tracelens.report").joinpath("schemas", "report.schema.json").read_bytes()
    return orjson.loads(text)


def brief_document(whole: Json) -> Json:
    """The same in a twentieth of the space: without ops, views and sources; numbers to five digits."""
    kept = {key: whole[key] for key in whole if key not in ("ops", "views", "extensions")}
    device = {key: value for key, value in whole["device"].items() if key != "figures"}
    findings = [{key: found[key] for key in _BRIEF_FINDING if key in found} for found in whole["findings"]]
    return _rounded({**kept, "schema": BRIEF_SCHEMA, "device": device, "findings": findings})


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


def _content(summary: Summary, ops: pd.DataFrame | None, views: Mapping[str, pd.DataFrame]) -> Json:
    says = plain_tree(summary)
    if summary.busy is not None:
        says["busy"]["idle_causes"] = [
            dict(zip(("cause", "share"), each, strict=True)) for each in says["busy"]["idle_causes"]
        ]
    return {
        "schema": SCHEMA,
        "input": {"torch" if key == "torch_version" else key: value for key, value in says["input"].items()},
        **{key: says[key] for key in ("device", "scope", "extensions", "coverage")},
        "step": says["steps"],
        "headline": _headline(summary),
        **{key: says[key] for key in ("busy", "throughput", "utilization")},
        **{key: says[key] for key in ("energy", "measured_power") if says[key] is not None},
        **{key: says[key] for key in ("categories", "findings", "together", "unseen")},
        "ops": [] if ops is None else op_records(ops),
        "views": {
            title: plain_records(frame.iloc[:MAX_VIEW_ROWS], list(frame.columns)) for title, frame in views.items()
        },
        "cannot_answer": says["cannot_answer"],
        "warnings": says["notices"],
    }


def _headline(summary: Summary) -> Json:
    """The first figures and sentences of terminal and page."""
    rate, said = summary.throughput, (bound_sentence(summary), first_fix(summary))
    share = None if rate is None else rate.window_of_peak
    return {
        "share_of_peak": share,
        "peak": rate.peak_name if rate is not None and share is not None else None,
        "is_at_least": rate is not None and share is not None and rate.is_lower_bound,
        "sentences": [text for text in said if text],
    }


#: What the document has of an op, by the keys of ``unified_perf_summary``; arguments are lists, dimensions objects.
_OF_OP = (
    "name", "category", "input_dims", "input_types", "input_strides", "concrete_inputs", "model", "perf_params",
    "operation_count", "kernel_us_mean", "kernel_us_median", "kernel_us_std", "kernel_us_min", "roofline_us",
    "roofline_bound", "backend", "gflops", "hbm_mb", "wire_mb", "effective_interconnect_tb_s_mean", "remote_from",
    "launch_gap_us", "note",
)  # fmt: skip
_AS_TEXT = ("input_dims", "input_types", "input_strides", "concrete_inputs", "perf_params")


def op_records(ops: pd.DataFrame) -> list[Json]:
    """One record per distinct op call; a key that the frame lacks is None throughout."""
    keys = (*_OF_OP, *(key for key in ("power_w", "energy_j") if key in ops.columns))
    columns: dict[str, list[Any]] = {
        key: plain_values(ops[key]) if key in ops.columns else [None] * len(ops) for key in keys
    }
    columns |= {key: list(map(_recorded, columns[key])) for key in _AS_TEXT}
    columns["operation_count"] = [None if count is None else round(count) for count in columns["operation_count"]]
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@functools.lru_cache(maxsize=4096)
def _recorded(text: Value) -> Any:
    """A frame's text, the ``repr`` of tuples or a dict, as JSON; null where nothing was recorded."""
    if not isinstance(text, str):
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


#: Endings of the files of metrics.
PROMETHEUS, OTLP = ".prom", ".jsonl"
#: (name, value) of each.
Labels: TypeAlias = tuple[tuple[str, str], ...]


#: Of the texts of Prometheus' labels.
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"'})


class Metric(Record, frozen=True, kw_only=True):
    """A gauge: ``name`` without the prefix, in base units (seconds, ratio)."""

    name: str
    about: str
    unit: str
    value: float | None
    labels: Labels = ()


def metrics(summary: Summary) -> Iterator[Metric]:
    """What a dashboard follows; a figure that was not determined is left out."""
    for metric in _metrics(summary):
        if metric.value is not None and math.isfinite(metric.value):
            yield metric


def _metrics(summary: Summary) -> Iterator[Metric]:
    steps, busy = summary.steps, summary.busy
    if steps is not None:
        yield Metric(name="step_seconds", about="Time of a step.", unit="s", value=_seconds(steps.time_us))
        yield Metric(name="step_spread_ratio", about="Spread of step times.", unit="1", value=steps.spread)
    if busy is not None:
        about = "Share of the time, by what the device was at."
        for part in ("compute", "exposed_comm", "memcpy", "idle"):
            yield Metric(name="time_ratio", about=about, unit="1", value=getattr(busy, part), labels=(("part", part),))
    yield Metric(
        name="coverage_ratio", about="Share of device time with a perf model.", unit="1",
        value=summary.coverage.perf_model,
    )  # fmt: skip
    about = "Summed durations of a category's device events, per step where there are steps."
    for row in summary.categories:
        of: Labels = (("category", row.name),)
        yield Metric(name="category_seconds", about=about, unit="s", value=_seconds(row.time_us), labels=of)
    about = "Roofline over measured time of a category."
    for row in summary.categories:
        of = (("category", row.name),)
        yield Metric(name="category_roofline_ratio", about=about, unit="1", value=row.of_roofline, labels=of)
    about = "What a finding could gain, per step where there are steps."
    for found in summary.findings:
        of = (("finding", found.id), ("op", found.op or ""))
        yield Metric(name="finding_gain_seconds", about=about, unit="s", value=_seconds(found.gain_us), labels=of)


def prometheus_text(summary: Summary) -> str:
    """Prometheus' exposition format, for a file that the node exporter's textfile collector or a push gateway takes."""
    return exposition(metrics(summary), of_trace(summary))


def exposition(metrics: Iterable[Metric], common: Labels = ()) -> str:
    """Metrics in Prometheus' exposition format, those of one name together; ``common``: labels of all of them."""
    lines: list[str] = []
    named: set[str] = set()
    seen: set[str] = set()
    for metric in metrics:
        name = f"tracelens_{metric.name}"
        if name not in named:
            lines += [f"# HELP {name} {terminal_text(metric.about)}", f"# TYPE {name} gauge"]
            named.add(name)
        texts = ((key, terminal_text(text)) for key, text in (*common, *metric.labels))
        labels = ",".join(f'{key}="{text.translate(_ESCAPED)}"' for key, text in texts)
        if f"{name}{labels}" not in seen:  # two findings of one kind and op are one series
            lines.append(f"{name}{{{labels}}} {metric.value!r}")
            seen.add(f"{name}{labels}")
    return "\n".join(lines) + "\n"


def otlp_json(summary: Summary, recorded_ns: int | None = None) -> str:
    """The figures of a report as ``otlp_line``."""
    return otlp_line(metrics(summary), of_trace(summary), recorded_ns)


def otlp_line(metrics: Iterable[Metric], common: Labels = (), recorded_ns: int | None = None) -> str:
    """A line of an OTLP file (.jsonl), which is what a collector receives by HTTP too: ``MetricsData`` as JSON.

    ``recorded_ns``: since the epoch; the time of writing where that is unknown, as the protocol requires one.
    """
    by_name: dict[str, list[Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric.name, []).append(metric)
    at = str(time.time_ns() if recorded_ns is None else recorded_ns)
    gauges = [
        {
            "name": f"tracelens.{name}",
            "description": group[0].about,
            "unit": group[0].unit,
            "gauge": {
                "dataPoints": [
                    {"asDouble": each.value, "timeUnixNano": at, "attributes": _attributes(each.labels)}
                    for each in group
                ]
            },
        }
        for name, group in by_name.items()
    ]
    document = {
        "resourceMetrics": [
            {
                "resource": {"attributes": _attributes((("service.name", "tracelens"), *common))},
                "scopeMetrics": [{"scope": {"name": "tracelens"}, "metrics": gauges}],
            }
        ]
    }
    return escaped_json(orjson.dumps(json_safe(document))).decode() + "\n"


def of_trace(summary: Summary) -> Labels:
    """What every metric of a report bears: its file, ranks and device."""
    rank = ",".join(map(str, summary.input.ranks))
    return ("file", summary.input.file), ("rank", rank), ("device", summary.device.id or "")


def _attributes(labels: Labels) -> list[dict[str, object]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in labels]


def _seconds(time_us: float | None) -> float | None:
    return None if time_us is None else time_us / US_PER_S
