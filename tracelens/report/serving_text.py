"""A served load, a sweep of rates and the scenarios as lines of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.files.atomic_write import whole_folder

if TYPE_CHECKING:
    from tracelens.laboratory.scenarios import ScenarioComparison
    from tracelens.predict.serving.experiment import ServingResult


_KEYS = (
    ("requests", ("completed", "rejected", "preempted", "window_s")),
    ("first token ms", ("ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms")),
    ("  from scheduling", tuple(f"scheduled_to_first_{part}_ms" for part in ("mean", "p50", "p90", "p99"))),
    ("per token ms", ("tpot_mean_ms", "tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms")),
    ("between tokens ms", ("itl_mean_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms")),
    ("end to end ms", ("e2e_mean_ms", "e2e_p50_ms", "e2e_p90_ms", "e2e_p99_ms")),
    ("throughput /s", ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")),
    ("load", ("mean_waiting", "mean_batch", "utilization")),
    ("simulator", ("wall_clock_s", "events", "compute_events")),
    ("KV cache tokens", ("kv_pool_tokens", "kv_peak_tokens", "mean_context_tokens", "cached_prompt_tokens")),
)
_SHORT = {"mean", "p50", "p90", "p99"}
_NAMED = {
    "mean_waiting": "waiting requests", "mean_batch": "running requests", "utilization": "GPU busy",
    "compute_events": "of compute", "wall_clock_s": "wall clock s",
    "kv_pool_tokens": "room", "kv_peak_tokens": "peak", "cached_prompt_tokens": "found in it",
}  # fmt: skip


def write_folder(result: ServingResult, folder: Path) -> None:
    """summary.json, requests.csv and steps.csv, all or none."""
    with whole_folder(folder) as staging:
        (staging / "summary.json").write_text(result.to_json(), encoding="utf-8")
        result.requests.to_csv(staging / "requests.csv", index=False, lineterminator="\n")
        result.steps.to_csv(staging / "steps.csv", index=False, lineterminator="\n")


def served_text(result: ServingResult) -> str:
    """What was served to which requests, goodput and cost where asked for, latencies, throughput, load, and notes."""
    figures = {**result.summary, "wall_clock_s": result.outcome.wall_s}
    asked = {name: value for name, value in figures.items() if name.startswith(("good", "cost_"))}
    lines = [
        repr(result),
        f"  {requests_text(result)}",
        *(f"{_asked_label(name):<34} {_number(value)}" for name, value in asked.items()),
    ]
    for title, names in _KEYS:
        cells = [f"{_label(name)} {_shown(name, figures.get(name))}" for name in names]
        lines.append(f"{title:<18} {'   '.join(cells)}")
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def requests_text(result: ServingResult) -> str:
    """How many requests, how long they are, and when they come."""
    asked, workload = result.outcome.requests, result.experiment.workload
    lengths = [f"{sum(lengths) / len(lengths):,.0f}" for lengths in (asked.input_tokens, asked.output_tokens)]
    is_fixed = all(min(lengths) == max(lengths) for lengths in (asked.input_tokens, asked.output_tokens))
    of = f"{lengths[0]} prompt and {lengths[1]} output tokens {'each' if is_fixed else 'on average'}"
    if asked.concurrency is not None:
        when = f"{asked.concurrency:,} at a time"
    elif result.experiment.replay is not None:
        when = f"as recorded in {asked.source}"
    else:
        when = f"{workload.arrivals.kind} arrivals at {workload.arrivals.rate:g}/s"
    return f"{len(asked):,} requests, {of}, {when}"


def sweep_text(rows: Sequence[tuple[float, ServingResult]], *, best: bool) -> str:
    """What was served, then a line per rate; ``best``: below the rate with most goodput."""
    lines = [f"{'rate':>8} {'ttft p99 ms':>12} {'tpot p99 ms':>12} {'requests/s':>11} {'goodput/s':>10} {'good':>6}"]
    cells = (
        ("ttft_p99_ms", 12), ("tpot_p99_ms", 12), ("requests_per_s", 11), ("goodput_requests_per_s", 10),
        ("good_share", 6),
    )  # fmt: skip
    for rate, result in rows:
        figures = result.summary
        lines.append(f"{rate:>8g} " + " ".join(f"{_number(figures.get(name)):>{width}}" for name, width in cells))
    deployment = rows[0][1].experiment.deployment
    what = f"{deployment.model.label} on {deployment.parallelism.devices} x {deployment.system.device.label}"
    return "\n".join([f"{what}, {len(rows)} rates", *(_best_rate(rows) if best else ()), *lines])


def _best_rate(rows: Sequence[tuple[float, ServingResult]]) -> list[str]:
    """What the sweep answers, and whether its edge is what limits the answer."""
    rate, most = max(rows, key=lambda row: (row[1].summary.get("goodput_requests_per_s") or 0.0, -row[0]))
    goodput = most.summary.get("goodput_requests_per_s")
    if not goodput:
        return ["no rate of the sweep keeps the limits", ""]
    is_edge = len(rows) > 1 and rate == max(each for each, _ in rows)
    edge = "note: that is the highest rate of the sweep; a higher one may give more"
    return [
        f"most goodput at rate {rate:g}: {_number(goodput)} requests/s within the limits",
        *([edge] if is_edge else []), "",
    ]  # fmt: skip


def _shown(name: str, value: float | int | None) -> str:
    return f"{100 * value:.3g} %" if name == "utilization" and value is not None else _number(value)


def _asked_label(name: str) -> str:
    return name.replace("_", " ") + (", USD" if name.startswith("cost_") else "")


def _label(name: str) -> str:
    if name in _NAMED:
        return _NAMED[name]
    words = name.split("_")
    short = [word for word in words if word in _SHORT]
    return short[0] if short else name.replace("_per_s", "").replace("_", " ")


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


#: A line per figure of two runs of one scenario.
_COMPARISON: tuple[tuple[str, Callable[[ScenarioComparison], str]], ...] = (
    ("", lambda each: f"{each.scenario.name}: {each.scenario.title}"),
    ("wall clock high s", lambda each: f"{each.high_wall_s:.4f}"),
    ("wall clock medium s", lambda each: f"{each.medium_wall_s:.4f}"),
    ("speed-up", lambda each: f"{each.speed_up:.1f}"),
    ("events high", lambda each: f"{each.high_events:,}"),
    ("events medium", lambda each: f"{each.medium_events:,}"),
    ("event reduction", lambda each: f"{each.event_reduction:.1f}"),
    ("compute events", lambda each: f"{each.high_compute_events / each.medium_compute_events:.0f}x"),
    ("layers abstracted alone", lambda each: f"{each.high_events / each.layers_only_events:.2f}x fewer events"),
    ("collectives alone", lambda each: f"{each.high_events / each.collectives_only_events:.2f}x fewer events"),
)


def _profile_rows(found: list[ScenarioComparison]) -> list[tuple[str, list[str]]]:
    """Of each level the modules that took most of its profiled time in any comparison."""
    rows = []
    for level in ("high", "medium"):
        for name in dict.fromkeys(name for each in found for name in list(each.profile.get(level, ()))[:5]):
            cells = [f"{100 * each.profile[level].get(name, 0.0):.0f} %" for each in found]
            rows.append((f"{level}: time in {name}", cells))
    return rows


def scenarios_text(found: list[ScenarioComparison]) -> str:
    """The comparisons side by side, and what follows from them."""
    from tracelens.laboratory.scenarios import COMPARED, conclusion

    rows = [(title, [cell(each) for each in found]) for title, cell in _COMPARISON]
    for name in COMPARED:
        rows.append((f"{name} high", [_number(each.high.get(name)) for each in found]))
        rows.append((f"{name} medium", [_number(each.medium.get(name)) for each in found]))
        rows.append(("  difference", [f"{100 * each.differences.get(name, 0.0):.1e} %" for each in found]))
    rows += _profile_rows(found)
    widths = [max(len(row[1][column]) for row in rows) for column in range(len(found))]
    lines = []
    for title, cells in rows:
        shown = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{title:<28} {shown}")
    lines += [f"{each.scenario.name}: {_where(each.high)}" for each in found]
    return "\n".join([*lines, conclusion(found)])


def _where(figures: Mapping[str, float | int | None]) -> str:
    compute, transfer = int(figures["compute_events"] or 0), int(figures["transfer_events"] or 0)
    total = int(figures["events"] or 1)
    return (
        f"in detail {100 * compute / total:.0f} % of events are compute, {100 * transfer / total:.0f} % link transfers"
    )
