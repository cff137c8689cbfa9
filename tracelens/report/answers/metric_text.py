"""The main figures of a report as metrics: Prometheus' text format, and OpenTelemetry's JSON (OTLP).

Nothing depends on the day: times are those of the recording's program, a sample has no timestamp of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import orjson

from tracelens.files.safe_text import escaped_json, json_safe, terminal_text
from tracelens.lazy.records import dataclass
from tracelens.units import US_PER_S

if TYPE_CHECKING:
    from tracelens.analysis.verdict.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A gauge: ``name`` without the prefix, in base units (seconds, ratio)."""

    name: str
    about: str
    unit: str
    value: float | None
    labels: tuple[tuple[str, str], ...] = ()


def metrics(summary: Summary) -> Iterator[Metric]:
    """What a dashboard follows; a figure that was not determined is left out."""
    for metric in _metrics(summary):
        if metric.value is not None:
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
    for row in summary.categories:
        label = (("category", row.name),)
        about = "Summed durations of a category's device events, per step where there are steps."
        yield Metric(name="category_seconds", about=about, unit="s", value=_seconds(row.time_us), labels=label)
    for row in summary.categories:
        about = "Roofline over measured time of a category."
        label = (("category", row.name),)
        yield Metric(name="category_roofline_ratio", about=about, unit="1", value=row.of_roofline, labels=label)
    for found in summary.findings:
        about = "What a finding could gain, per step where there are steps."
        of = (("finding", found.id), ("op", found.op or ""))
        yield Metric(name="finding_gain_seconds", about=about, unit="s", value=_seconds(found.gain_us), labels=of)


def prometheus_text(summary: Summary) -> str:
    """Prometheus' exposition format, for a file that the node exporter's textfile collector or a push gateway takes."""
    lines: list[str] = []
    named: set[str] = set()
    seen: set[str] = set()
    for metric in metrics(summary):
        name = f"tracelens_{metric.name}"
        if name not in named:
            lines += [f"# HELP {name} {metric.about}", f"# TYPE {name} gauge"]
            named.add(name)
        labels = ",".join(f'{key}="{_label(text)}"' for key, text in (*_of_trace(summary), *metric.labels))
        if f"{name}{labels}" not in seen:  # two findings of one kind and op are one series
            lines.append(f"{name}{{{labels}}} {metric.value!r}")
            seen.add(f"{name}{labels}")
    return "\n".join(lines) + "\n"


def otlp_json(summary: Summary) -> str:
    """An ``ExportMetricsServiceRequest`` of OpenTelemetry's protocol as JSON, for a collector to receive."""
    by_name: dict[str, list[Metric]] = {}
    for metric in metrics(summary):
        by_name.setdefault(metric.name, []).append(metric)
    gauges = [
        {
            "name": f"tracelens.{name}",
            "description": group[0].about,
            "unit": group[0].unit,
            "gauge": {
                "dataPoints": [
                    {"asDouble": each.value, "timeUnixNano": "0", "attributes": _attributes(each.labels)}
                    for each in group
                ]
            },
        }
        for name, group in by_name.items()
    ]
    document = {
        "resourceMetrics": [
            {
                "resource": {"attributes": _attributes((("service.name", "tracelens"), *_of_trace(summary)))},
                "scopeMetrics": [{"scope": {"name": "tracelens"}, "metrics": gauges}],
            }
        ]
    }
    return escaped_json(orjson.dumps(json_safe(document), option=orjson.OPT_INDENT_2)).decode() + "\n"


def _of_trace(summary: Summary) -> tuple[tuple[str, str], ...]:
    rank = ",".join(map(str, summary.input.ranks))
    return ("file", summary.input.file), ("rank", rank), ("device", summary.device.id or "")


def _attributes(labels: tuple[tuple[str, str], ...]) -> list[dict[str, object]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in labels]


def _label(text: str) -> str:
    return terminal_text(text).replace("\\", "\\\\").replace('"', '\\"')


def _seconds(time_us: float | None) -> float | None:
    return None if time_us is None else time_us / US_PER_S
