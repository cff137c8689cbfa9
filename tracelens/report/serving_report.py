"""A served load, a load curve and a sweep of rates as lines of a terminal and as pages, and the scenarios in lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.files.atomic_write import whole_folder, write_whole
from tracelens.files.cells import frame_csv
from tracelens.files.say import aligned
from tracelens.hardware.power import FacilityEnergy
from tracelens.predict.serving.load_curve import KEPT_BY, SLO_SOURCE, WAITING
from tracelens.predict.serving.metrics import FACILITY, OF_FACILITY, energies_of, energy_of
from tracelens.report.charts import bars, line_chart, stacked_bars
from tracelens.report.document import Document, section, table
from tracelens.report.export import frame_json, write_frame
from tracelens.report.markup import Markup, tag
from tracelens.types.records import pd
from tracelens.types.units import MS_PER_S, counted, shared_by_all, shown_figure, shown_share

if TYPE_CHECKING:
    from tracelens.laboratory.scenarios import ScenarioComparison
    from tracelens.predict.serving.best_deployment import DeploymentPlan, Planned
    from tracelens.predict.serving.experiment import ServingResult
    from tracelens.predict.serving.load_curve import LoadCurve, LoadPoint

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
    "mean_waiting": "waiting requests", "mean_batch": "requests per decode step", "utilization": "GPU busy",
    "compute_events": "of compute", "wall_clock_s": "wall clock s",
    "kv_pool_tokens": "room", "kv_peak_tokens": "peak in one replica", "mean_context_tokens": "mean in all",
    "cached_prompt_tokens": "found in it",
}  # fmt: skip


def write_folder(result: ServingResult, folder: Path) -> None:
    """summary.json, requests.csv and steps.csv, all or none."""
    with whole_folder(folder) as staging:
        (staging / "summary.json").write_text(result.to_json(), encoding="utf-8")
        (staging / "requests.csv").write_bytes(frame_csv(result.requests))
        (staging / "steps.csv").write_bytes(frame_csv(result.steps))


def served_text(result: ServingResult) -> str:
    """What was served to which requests, goodput and cost where asked for, latencies, throughput, load, and notes."""
    figures = {**result.summary, "wall_clock_s": result.outcome.wall_s}
    asked = {name: value for name, value in figures.items() if name.startswith(("good", "cost_"))}
    lines = [
        repr(result),
        f"  {requests_text(result)}",
        *(
            f"{name.replace('_', ' ') + (', USD' if name.startswith('cost_') else ''):<34} {_number(value)}"
            for name, value in asked.items()
        ),
    ]
    for title, names in _KEYS:
        cells = [f"{_label(name)} {_number(figures.get(name), is_share=name == 'utilization')}" for name in names]
        lines.append(f"{title:<18} {'   '.join(cells)}")
    lines += drawn_text(result)
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def drawn_text(result: ServingResult) -> list[str]:
    """What the devices draw, and whose energies say so; no line where it would be their limits."""
    figures = result.summary
    if "power_w_per_gpu" not in figures:
        return []
    drawn = f"W per GPU {_number(figures['power_w_per_gpu'])}"
    joules = f"J per output token {_number(figures['energy_j_per_output_token'])}"
    whose = f"without hosts and fans; energies measured on {energies_of(result.outcome)}"
    lines = [f"{'energy':<18} {drawn}   {joules}   ({whose})"]
    # The same with hosts and the data center, as far as they are known or asked for
    host_w, (j_per_token, usd, grams) = energy_of(result.outcome), (figures.get(name) for name in OF_FACILITY)
    if j_per_token is None or host_w is None:
        return lines
    found = FacilityEnergy(
        host_w=host_w.host_w, pue=result.experiment.facility.pue, j_per_token=j_per_token, usd_per_mtoken=usd,
        co2_g_per_mtoken=grams,
    )  # fmt: skip
    return [*lines, f"{'':<18} {found.words(result.outcome.devices, 'output token')}"]


def requests_text(result: ServingResult) -> str:
    """How many requests, how long they are, and when they come."""
    asked, workload = result.outcome.requests, result.experiment.workload
    lengths = [f"{sum(lengths) / len(lengths):,.0f}" for lengths in (asked.input_tokens, asked.output_tokens)]
    is_fixed = all(min(lengths) == max(lengths) for lengths in (asked.input_tokens, asked.output_tokens))
    of = f"{lengths[0]} prompt and {lengths[1]} output tokens {'each' if is_fixed else 'on average'}"
    if asked.sessions:
        of += f", in {len(set(asked.sessions)):,} sessions"
    if asked.concurrency is not None:
        when = f"{asked.concurrency:,} at a time"
    elif result.experiment.replay is not None:
        when = f"as recorded in {asked.source}"
    else:
        when = f"{workload.arrivals.kind} arrivals {'of sessions ' * bool(asked.after)}at {workload.arrivals.rate:g}/s"
    return f"{counted(len(asked), 'request')}, {of}, {when}"


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
    lines += [f"note: {note}" for note in shared_by_all([result.notes for _, result in rows])]
    return "\n".join([f"{rows[0][1].title}, {counted(len(rows), 'rate')}", *(_best_rate(rows) if best else ()), *lines])


def _holds(curve: LoadCurve) -> str:
    """How many requests the server holds, and why not more."""
    on, held, broken = curve.points[0].result.title, curve.held, curve.broken
    if held is None:
        return f"{on} does not keep the SLO, not even for {curve.points[0].at_once}"
    rate = f"{_number(held.figures['requests_per_s'])} requests/s"
    most = "at least" if broken is None else "up to"
    return f"{on} holds {most} {held.at_once} within the SLO, {rate}"


def _curve_facts(curve: LoadCurve) -> Iterator[str]:
    """The SLO and where it breaks, and what was simulated."""
    source = f"assumed: {SLO_SOURCE}; --slo sets another" if curve.is_assumed else "--slo"
    yield f"SLO: {KEPT_BY:.0%} of requests within {curve.objectives} ({source})".replace("%", " %")
    broken, last = curve.broken, curve.points[-1]
    if broken is None:
        deployment, ranks = last.result.experiment.deployment, last.result.experiment.options.replicas
        is_full = last.concurrency >= deployment.engine.max_num_seqs * deployment.parallelism.dp * ranks
        why = f"the engine decodes {last.concurrency} requests at once (--max-num-seqs)"
        yield f"The SLO does not break: {why if is_full else 'the curve ends there (--requests, --sweep)'}"
    else:
        yield f"The SLO breaks at {broken.at_once}: {_broke(broken, curve)}; {_bound_by(broken)}"
    asked = curve.points[0].result.outcome.requests
    prompt, answer = (f"{sum(each) / len(each):,.0f}" for each in (asked.input_tokens, asked.output_tokens))
    yield (
        f"A request has {prompt} prompt and {answer} output tokens on average (--input-tokens, --output-tokens); "
        "tokens/s counts output tokens"
    )
    counts = [len(point.result.outcome.requests) for point in curve.points]
    said = f"{min(counts):,} to {max(counts):,}" if min(counts) < max(counts) else f"{counts[0]:,}"
    level = ", ".join(curve.experiment.options.levels)
    yield f"Each line simulates a closed loop of {said} requests (--requests) at level of detail {level} (--lod)"


def _broke(point: LoadPoint, curve: LoadCurve) -> str:
    """The limits that fewer requests keep than the SLO asks for, each with its percentile."""
    part, over = f"p{100 * KEPT_BY:.0f}", []
    for name in ("ttft", "tpot", "e2e"):
        limit, value = getattr(curve.objectives, f"{name}_ms"), point.figures[f"{name}_{part}_ms"]
        if limit is not None and value is not None and value > limit:
            over.append(f"{name.upper()} {part} {_number(value)} ms")
    return ", ".join(over) or f"{_number(point.figures['good_share'], is_share=True)} of requests keep all limits"


def _bound_by(point: LoadPoint) -> str:
    name, share = point.bound
    if share is None:
        return "the bound is unknown (--profile)"
    if name in WAITING:
        return f"requests wait {_number(share, is_share=True)} of their time ({name})"
    return f"{name} takes {_number(share, is_share=True)} of step time"


#: Columns that are left out where nobody measured energies of the devices.
_DRAWN = (("W/GPU", "power_w_per_gpu"), ("J/token", "energy_j_per_output_token"))
_AROUND = tuple(zip(("J/token, facility", "USD/M tokens", "g CO2/M tokens"), OF_FACILITY, strict=True))
_CURVE = (
    ("at once", "concurrency"), ("requests/s", "requests_per_s"), ("tokens/s/GPU", "output_tokens_per_s_per_gpu"),
    ("tokens/s/user", "tokens_per_s_per_user"), ("TTFT p50 ms", "ttft_p50_ms"), ("TTFT p99 ms", "ttft_p99_ms"),
    ("TPOT p99 ms", "tpot_p99_ms"), *_DRAWN,
)  # fmt: skip


def curve_text(curve: LoadCurve) -> str:
    """How many requests the server holds, the SLO and where it breaks, a line per number of requests, notes."""
    around = _AROUND if curve.experiment.facility != FACILITY else ()
    columns = [each for each in (*_CURVE, *around) if each[1] in curve.points[0].row]
    rows = [[*(title for title, _ in columns), "SLO", "bound by"]]
    for point in curve.points:
        name, share = point.bound
        found, part = point.row, "" if share is None else f" {_number(share, is_share=True)}"
        cells = (_number(found[key]) for _, key in columns)
        rows.append([*cells, "kept" if point.keeps_slo else "broken", name + part])
    facts = [f"  {fact}" for fact in _curve_facts(curve)]
    table = aligned(rows, words=[len(columns), len(columns) + 1])
    return "\n".join([_holds(curve), *facts, "", table, *(f"note: {note}" for note in curve.notes)])


def curve_json(curve: LoadCurve) -> str:
    """What was asked and answered, and a row per point."""
    return frame_json(curve.frame, curve.about()).decode()


def write_curve(curve: LoadCurve, path: Path) -> None:
    """A page, a table, or a folder with summary.json and load_curve.csv."""
    if path.suffix == ".html":
        write_whole(path, curve_page(curve))
    elif path.suffix in (".csv", ".json", ".xlsx"):
        write_frame(path, curve.frame, curve.about())
    else:
        with whole_folder(path) as staging:
            (staging / "summary.json").write_text(curve_json(curve), encoding="utf-8")
            (staging / "load_curve.csv").write_bytes(frame_csv(curve.frame))


def curve_page(curve: LoadCurve) -> bytes:
    """Throughput against speed per user, latencies over the load, and where the time of steps goes."""
    shown = curve.held or curve.points[0]
    below = f"at {shown.at_once}"
    tiles = [
        ("Holds", "0 requests" if curve.held is None else shown.at_once.removesuffix(" at once"),
         "at once within the SLO"),
        *(
            (name, f"{_number(shown.figures[key])} {unit}", below)
            for name, key, unit in (
                ("Requests", "requests_per_s", "/s"), ("Per GPU", "output_tokens_per_s_per_gpu", "tokens/s"),
                ("Per user", "tokens_per_s_per_user", "tokens/s"), ("TTFT p99", "ttft_p99_ms", "ms"),
                ("TPOT p99", "tpot_p99_ms", "ms"),
            )
        ),
    ]  # fmt: skip

    def line(up: str, across: str = "concurrency") -> list[tuple[float, float]]:
        pairs = [(point.row[across], point.row[up]) for point in curve.points]
        return sorted((float(x), float(y)) for x, y in pairs if x is not None and y is not None)

    charts = [
        line_chart({"": line("output_tokens_per_s_per_gpu", "tokens_per_s_per_user")}, "tokens/s per user",
                   "output tokens/s per GPU"),
        *(
            line_chart({part: line(f"{name}_{part}_ms") for part in ("p50", "p99")}, "requests at once",
                       f"{name.upper()}, ms")
            for name in ("ttft", "tpot")
        ),
    ]  # fmt: skip
    parts = [
        (str(point.concurrency), list(point.shares.items()), _bound_by(point)) for point in curve.points if point.shares
    ]
    made = [section("curve", "Load curve", charts)]
    if parts:
        made.append(section("bound", "What bounds each load", stacked_bars(parts, "Share of step time", 1.0)))
    titles = {key: title for title, key in (*_CURVE, *_AROUND)}
    made.append(section("points", "Points", table(curve.frame, "Points", titles)))
    title = shown.result.title
    return Document(title=title, kind="load curve", facts=[_holds(curve), *_curve_facts(curve)], tiles=tiles,
                    notes=curve.notes, sections=made).page()  # fmt: skip


_PLANNED = (
    ("tokens/s/GPU", "output_tokens_per_s_per_gpu"), ("tokens/s/user", "tokens_per_s_per_user"), ("GPUs", "devices"),
    ("at once", "concurrency"), ("requests/s", "requests_per_s"), ("TTFT p99 ms", "ttft_p99_ms"),
    ("TPOT p99 ms", "tpot_p99_ms"), *_DRAWN,
)  # fmt: skip


def _planned_facts(found: DeploymentPlan) -> Iterator[str]:
    """The winner and the command that simulates it, the SLO, and what was searched."""
    asked, refused = found.wanted.asked, ", ".join(f"{n} because it {why}" for why, n in found.refused.items())
    drawn = [each for each in found.points if _DRAWN[1][1] in each.row]
    if found.best is not None:
        best = found.points[found.best]
        yield f"expected {_range(best)} tokens/s per user in 9 of 10 cases" if _range(best) else "no interval is known"
        yield str(best.row["command"])
    least = min(drawn, key=lambda each: float(each.row[_DRAWN[1][1]]), default=None)
    if least is not None and (found.wanted.objective == "energy" or least is not found.points[found.best or 0]):
        speed = f"{_number(least.row['tokens_per_s_per_user'])} tokens/s per user"
        yield f"least energy: {_number(least.row[_DRAWN[1][1]])} J per token at {speed}: {least.words}"
    source = "--slo" if asked.slo else f"assumed: {SLO_SOURCE}; --slo sets another"
    yield f"SLO: {100 * KEPT_BY:.0f} % of requests within {found.limits} ({source})"
    load = "every load" if asked.concurrency is None else f"{asked.concurrency:,} requests at once"
    load = load if asked.rate is None else f"{asked.rate:g} requests/s"
    yield (
        f"{counted(found.looked, 'deployment')} estimated in closed form under {load}, of {asked.input_tokens} "
        f"prompt and {asked.output_tokens} output tokens; those below are simulated"
        + (f"; splits refused: {refused}" * bool(refused))
    )


def _range(point: Planned) -> str:
    low, high = (point.row[f"tokens_per_s_per_user_{end}"] for end in ("low", "high"))
    return "" if low is None else f"{_number(low)} to {_number(high)}"


def _planned_title(found: DeploymentPlan) -> str:
    name = f"{found.label} on {found.device}"
    if found.best is None:
        return f"{name}: no deployment of {found.looked:,} keeps the SLO"
    best = found.points[found.best]
    row = best.row
    return (
        f"{name}: {_number(row['output_tokens_per_s_per_gpu'])} tokens/s per GPU at "
        f"{_number(row['tokens_per_s_per_user'])} tokens/s per user on {counted(row['devices'], 'GPU')}: {best.words}"
    )


def plan_text(found: DeploymentPlan) -> str:
    """The best deployment, and a line per point of the front."""
    names = [(title, key) for title, key in _PLANNED if any(each.row.get(key) is not None for each in found.points)]
    rows = [[*(title for title, _ in names), "deployment"]]
    rows += [[*(_number(each.row[key]) for _, key in names), each.words] for each in found.points]
    lines = [_planned_title(found), *(f"  {fact}" for fact in _planned_facts(found))]
    if found.best is None:
        return "\n".join(lines)
    notes = (f"note: {note}" for note in found.points[found.best].notes)
    return "\n".join([*lines, "", aligned(rows, words=[len(names)]), *notes])


def write_plan(found: DeploymentPlan, path: Path) -> None:
    best = None if found.best is None else found.points[found.best].row["command"]
    about = {
        "schema": "tracelens.search.serve/1", "model": found.wanted.model, "cluster": found.wanted.cluster,
        "slo": str(found.limits), "deployments": found.looked, "refused": dict(found.refused), "best": best,
    }  # fmt: skip
    if path.suffix == ".html":
        write_whole(path, plan_page(found))
    else:
        write_frame(path, found.frame, about)


def plan_page(found: DeploymentPlan) -> bytes:
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in found.points:
        kind = "separate prefill" if point.row["prefill_replicas"] else "all in one"
        lines.setdefault(kind, []).append(
            (float(point.row["tokens_per_s_per_user"]), float(point.row["output_tokens_per_s_per_gpu"]))
        )
    made = []
    if found.points:
        shown = {kind: sorted(line) for kind, line in sorted(lines.items())}
        chart = line_chart(shown, "tokens/s per user", "output tokens/s per GPU")
        # What the terminal shows; files have every option, and the command of each.
        rows = found.frame.reindex(columns=[key for _, key in _PLANNED if key in found.points[0].row])
        rows.insert(0, "deployment", [point.words for point in found.points])
        made = [
            section("front", "Pareto front", chart),
            section("deployments", "Deployments", table(rows, "Front", {key: title for title, key in _PLANNED})),
        ]
    notes = () if found.best is None else found.points[found.best].notes
    return Document(title=_planned_title(found), kind="search of a server", facts=list(_planned_facts(found)),
                    tiles=[], notes=notes, sections=made).page()  # fmt: skip


def _most_goodput(rows: Sequence[tuple[float, ServingResult]]) -> tuple[float, float]:
    """The rate with most goodput, and that goodput, 0 where no rate keeps the limits."""
    rate, most = max(rows, key=lambda row: (row[1].summary.get("goodput_requests_per_s") or 0.0, -row[0]))
    return rate, most.summary.get("goodput_requests_per_s") or 0.0


def _best_rate(rows: Sequence[tuple[float, ServingResult]]) -> list[str]:
    """What the sweep answers, and whether its edge is what limits the answer."""
    rate, goodput = _most_goodput(rows)
    if not goodput:
        return ["no rate of the sweep keeps the limits", ""]
    is_edge = len(rows) > 1 and rate == max(each for each, _ in rows)
    edge = ["note: this is the highest rate of the sweep; a higher rate may give more"] if is_edge else []
    return [f"most goodput at rate {rate:g}: {_number(goodput)} requests/s within the limits", *edge, ""]


def _label(name: str) -> str:
    if name in _NAMED:
        return _NAMED[name]
    words = name.split("_")
    short = [word for word in words if word in _SHORT]
    return short[0] if short else name.replace("_per_s", "").replace("_", " ")


def _number(value: float | int | None, *, is_share: bool = False) -> str:
    if value is None:
        return "-"
    if is_share:
        return f"{100 * value:.3g} %"
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
    for each in found:
        total = int(each.high["events"] or 1)
        compute, sent = (
            f"{100 * int(each.high[f'{what}_events'] or 0) / total:.0f} %" for what in ("compute", "transfer")
        )
        lines.append(f"{each.scenario.name}: in detail {compute} of events are compute, {sent} link transfers")
    return "\n".join([*lines, conclusion(found)])


_LATENCIES = (("ttft", "to the first token"), ("tpot", "per token"), ("itl", "between tokens"), ("e2e", "end to end"))
_POINTS = 300
_PERCENTILES = ("mean", "p50", "p90", "p99")
#: The figures that answer: (what, key, unit, below it).
_SERVED = (
    ("Requests", "requests_per_s", "/s", "completed"), ("Output", "output_tokens_per_s", "tokens/s", "all GPUs"),
    ("First token", "ttft_p99_ms", "ms", "99 of 100 requests take no longer"),
    ("Per token", "tpot_p99_ms", "ms", "99 of 100 requests take no longer"),
)  # fmt: skip


def served_page(result: ServingResult) -> bytes:
    """Latencies by percentile, throughput, and what the replicas did over time."""
    figures = result.summary
    tiles = [
        (name, "-" if (value := figures.get(key)) is None else f"{shown_figure(value)} {unit}", below)
        for name, key, unit, below in _SERVED
    ]
    charts: list[Markup] = []
    for key, words in _LATENCIES:
        known = [(part, figures.get(f"{key}_{part}_ms")) for part in _PERCENTILES]
        rows = [(part, float(value), f"{shown_figure(value)} ms") for part, value in known if value is not None]
        if rows:
            charts.append(tag("div", bars(rows, f"Latency {words}")))
    made = [section("latency", "Latency", tag("div", charts, class_="columns"))]
    steps = result.steps
    if len(steps):
        listed = tag("details", tag("summary", "step by step"), table(steps, "Steps"))
        made.append(section("replica", "A replica over time", *_replica(steps), listed))
    made.append(section("requests", "Requests", table(result.requests, "Requests")))
    completed = f"{figures['completed'] or 0:,} completed in {shown_figure(figures['window_s'] or 0)} s"
    busy = figures.get("utilization")
    facts = [requests_text(result), completed, *([] if busy is None else [f"GPU busy {shown_share(busy)}"])]
    return Document(title=result.title, kind="served load", facts=facts, tiles=tiles, notes=result.notes,
                    sections=made).page()  # fmt: skip


def _replica(steps: pd.DataFrame) -> Iterator[Markup]:
    """What the first replica has to do and keeps in its cache, at most ``_POINTS`` points a line, each the most."""
    own = steps[steps["replica"] == steps["replica"].iloc[0]]
    width = max(float(own["time_ms"].max() - own["time_ms"].min()) / _POINTS, 1e-9)
    part = ((own["time_ms"] - own["time_ms"].min()) // width).astype(int)
    most = own.groupby(part.rename("part")).max()
    seconds = most["time_ms"] / MS_PER_S
    for names, words in (
        (("decoding", "prefilling", "waiting"), "requests"),
        (("blocks_in_use",), "blocks of the cache"),
    ):
        lines = {name.replace("_", " "): list(zip(seconds, most[name].astype(float), strict=True)) for name in names}
        yield line_chart(lines, "seconds", words)


def sweep_page(rows: Sequence[tuple[float, ServingResult]]) -> bytes:
    """Goodput and latency over the rate of requests."""

    def lines(names: dict[str, str]) -> dict[str, list[tuple[float, float]]]:
        known = {
            word: [(rate, float(value)) for rate, each in rows if (value := each.summary.get(name)) is not None]
            for name, word in names.items()
        }
        return {word: line for word, line in known.items() if line}

    (rate, good), rates = _most_goodput(rows), sorted(rate for rate, _ in rows)
    edge, tiles = [], []
    if good:
        tiles = [("Most goodput", f"{shown_figure(good)} requests/s", f"at {rate:g} requests/s that arrive")]
        if rate == rates[-1]:
            edge = ["the most goodput is at the highest rate of the sweep; a higher one may give more"]
    names = {"goodput_requests_per_s": "within the limits", "requests_per_s": "completed"}
    first_token = {f"ttft_{part}_ms": f"first token {part}" for part in _PERCENTILES}
    per_token = {f"tpot_{part}_ms": f"per token {part}" for part in _PERCENTILES}
    drawn = ((names, "requests/s"), (first_token, "ms to the first token"), (per_token, "ms per token"))
    charts = [line_chart(found, "requests/s that arrive", up) for each, up in drawn if (found := lines(each))]
    return Document(title=rows[0][1].title, kind="sweep", tiles=tiles, warnings=edge,
                    facts=[f"{len(rows)} rates, {rates[0]:g} to {rates[-1]:g} requests/s"],
                    sections=[section("curves", "Over the rate", charts)]).page()  # fmt: skip
