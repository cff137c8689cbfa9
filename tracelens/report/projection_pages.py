"""Pages of a projected step and of a search, with charts of a pipeline and of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from tracelens.report import search_plots
from tracelens.report.figures import shown_change, shown_percent
from tracelens.report.html.charts import bars, legend, stacked_bars
from tracelens.report.html.markup import Markup, framed, round_ticks, tag
from tracelens.report.html.page_tables import head, picture, section, table
from tracelens.report.projection_text import (
    best_of_each,
    change_of,
    expected_of_best,
    expected_of_step,
    part_words,
    shown_rows,
    tokens_per_s,
)
from tracelens.units import BYTES_PER_GB, US_PER_MS

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.predict.projection.job import Run
    from tracelens.predict.projection.project import Result
    from tracelens.predict.projection.search.request import Answer
    from tracelens.predict.projection.step import Projection


#: By kind of task: what it is, its color.
_KINDS = {
    "F": ("forward", "c0"),
    "B": ("backward", "c2"),
    "D": ("input gradient", "c2"),
    "W": ("weight gradient", "c4"),
}
_FINISH = ("gradients and optimizer", "c5")
#: Ranks and tasks that are drawn.
MAX_RANKS, MAX_TASKS = 32, 3000
_PIPELINE_WIDTH, _LEFT, _PIPELINE_ROW, _BELOW = 1180.0, 74.0, 26.0, 34.0


def pipeline_chart(ran: Run) -> Markup:
    """A box per task, none where a rank waits: the bubble."""
    ranks = min(len(ran.tasks), MAX_RANKS)
    height = ranks * _PIPELINE_ROW + _BELOW
    scale = (_PIPELINE_WIDTH - _LEFT) / ran.step_us
    drawn = [*_axis(ran.step_us, ranks * _PIPELINE_ROW)]
    for rank in range(ranks):
        y = rank * _PIPELINE_ROW
        drawn.append(
            tag("text", f"rank {rank}", x=_LEFT - 8, y=y + _PIPELINE_ROW / 2 + 4, class_="tick", text_anchor="end")
        )
        for begin, end, color, text in _boxes(ran, rank, MAX_TASKS // ranks):
            tip = tag("title", f"{text}: {begin / US_PER_MS:,.3f} to {end / US_PER_MS:,.3f} ms")
            x, width = _LEFT + begin * scale, max((end - begin) * scale, 0.3)
            drawn.append(tag("rect", tip, x=x, y=y + 2, width=width, height=_PIPELINE_ROW - 4, class_=color))
    used = {task.kind for tasks in ran.tasks[:ranks] for task in tasks}
    entries = [pair for kind, pair in _KINDS.items() if kind in used]
    shape = f"0 0 {_PIPELINE_WIDTH:g} {height:g}"
    chart = tag("svg", drawn, class_="roofline", role="img", aria_label="Tasks of the pipeline's ranks", viewBox=shape)
    return tag("figure", tag("div", chart, class_="wide", tabindex="0"), legend([*entries, _FINISH]))


def _boxes(ran: Run, rank: int, most: int) -> Iterator[tuple[float, float, str, str]]:
    """(begin, end, color, what) of a rank's first tasks and of what comes after all of them.

    Between the norm of its own gradients and the sum over all ranks a rank waits.
    """
    starts, ends = ran.pipeline.starts_us[rank], ran.pipeline.ends_us[rank]
    for task, begin, end, _ in zip(ran.tasks[rank], starts, ends, range(most), strict=False):
        word, color = _KINDS[task.kind]
        yield begin, end, color, f"{word} of micro-batch {task.micro_batch}, chunk {task.chunk}"
    finish = ran.finish[rank]
    (_, norm_us), (_, sum_us), _ = finish.ops
    for begin, end in ((ends[-1], finish.reduced_us + norm_us), (finish.summed_us - sum_us, finish.end_us)):
        yield begin, end, _FINISH[1], _FINISH[0]


def _axis(step_us: float, bottom: float) -> Iterator[Markup]:
    step_ms = step_us / US_PER_MS
    for value in round_ticks(step_ms):
        if value <= step_ms:
            x = _LEFT + value / step_ms * (_PIPELINE_WIDTH - _LEFT)
            yield tag("line", x1=x, x2=x, y1=0, y2=bottom, class_="grid")
            anchor = "middle" if 0 < value < 0.97 * step_ms else "end" if value else "start"
            yield tag("text", f"{value:,.6g} ms", x=x, y=bottom + 18, class_="tick", text_anchor=anchor)


_SWEEP_WIDTH, _LABELS, _FIGURES, _SWEEP_ROW, _TOP = 980.0, 300.0, 150.0, 22.0, 46.0
_FITS, _DOES_NOT = "#4F81BD", "#C9C9C9"
_FONT = "font: 12px sans-serif; fill: #222"


def sweep_chart(table: pd.DataFrame, names: Sequence[str], title: str) -> str:
    """Tokens per second and GPU of every row of ``table``, labelled with its ``names``; gray where it does not fit, a
    reason where there is none.
    """
    most = float(table["tokens_s_gpu"].max(skipna=True)) if len(table) else 0.0
    height = _TOP + _SWEEP_ROW * len(table) + 14
    rows = [_row(row, names, at, most) for at, row in enumerate(table.to_dict("records"))]
    heading = tag("text", f"{title}: tokens/s/GPU (gray: does not fit)", x=10, y=24, style="font: bold 14px sans-serif")
    return tag(
        "svg", heading, rows, xmlns="http://www.w3.org/2000/svg", width=_SWEEP_WIDTH, height=height,
        viewBox=f"0 0 {_SWEEP_WIDTH:g} {height:g}", role="img", aria_label=title,
    )  # fmt: skip


def _row(row: Mapping[Any, Any], names: Sequence[str], at: int, most: float) -> Markup:
    label = ", ".join(f"{name.replace('_', ' ')} {_plain(row[name])}" for name in names)
    y = _TOP + _SWEEP_ROW * at
    value = row["tokens_s_gpu"]
    pieces = [tag("text", label, x=_LABELS - 8, y=y + 14, text_anchor="end", style=_FONT)]
    if isinstance(value, float) and value == value:
        width = max((_SWEEP_WIDTH - _LABELS - _FIGURES) * value / most, 1.0) if most else 1.0
        fits = not isinstance(row["does_not_fit"], str)
        pieces.append(
            tag("rect", x=_LABELS, y=y + 3, width=width, height=_SWEEP_ROW - 6, fill=_FITS if fits else _DOES_NOT)
        )
        figures = f"{value:,.0f}  ({row['memory_gb']:,.0f} GB)"
        pieces.append(tag("text", figures, x=_LABELS + width + 6, y=y + 14, style=_FONT))
    else:
        pieces.append(tag("text", str(row["reason"])[:90], x=_LABELS, y=y + 14, style=_FONT))
    return tag("g", pieces)


def _plain(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


_MEMORY = ("weights", "gradients", "optimizer", "activations", "logits", "outside", "peak")


def step_page(result: Result) -> bytes:
    """Time and where it goes, memory of every stage beside what the device has, levers, operations."""
    found = result.projection
    warnings = [f"does not fit: {found.infeasible}"] if found.infeasible else []
    parts = sorted(found.breakdown_us.items(), key=lambda item: -item[1])
    time = [
        (part_words(name), us, f"{us / US_PER_MS:,.1f} ms · {shown_percent(us / found.step_us)}") for name, us in parts
    ]
    stages = [
        {"stage": stage.stage, **{f"{name}_gb": getattr(stage, name) / BYTES_PER_GB for name in _MEMORY}}
        for stage in found.stages
    ]
    fits = found.infeasible is None
    levers = [
        (lever.change, lever.gain if fits else 1 - lever.gain, shown_change(-lever.gain)) for lever in result.levers
    ]
    many = sum(map(len, result.run.tasks)) > MAX_TASKS or len(result.run.tasks) > MAX_RANKS
    said = f"A box is a micro-batch on a rank of the pipeline; a gap is waiting.{' The first ones are drawn.' * many}"
    sections = [
        head(found.model.label, _facts(found), _tiles(found), [*expected_of_step(result), *found.notes], warnings),
        section("time", "Where the time goes", bars(time, "Busiest pipeline rank; exposed communication only")),
        section("pipeline", "Timeline of the pipeline", tag("p", said), pipeline_chart(result.run)),
        section("memory", "Memory", _memory_bars(found), table(pd.DataFrame(stages), "Memory by stage")),
    ]
    if levers:
        saved, needed = "Time of the step that each saves alone", "What would fit: time of the step, beside this one"
        sections.append(section("levers", "Levers", bars(levers, saved if fits else needed)))
    ops = result.ops(result.run.busiest)
    ops = ops.assign(time_ms=ops["time_us"] / US_PER_MS).drop(columns="time_us")
    sections.append(section("ops", "Operations of the busiest rank", table(ops, "Operations")))
    return framed(f"{found.model.label} · projected step", sections)


def _memory_bars(found: Projection) -> Markup:
    """What each stage keeps at its peak, in front of a track as long as the device's memory where that is known."""
    capacity = found.peak_memory.capacity
    rows = [
        (f"stage {each.stage}", [(name, getattr(each, name) / BYTES_PER_GB) for name in _MEMORY[:-1]],
         f"{each.peak / BYTES_PER_GB:,.1f} GB")
        for each in found.stages
    ]  # fmt: skip
    of = "" if capacity is None else f"; the line is at the {capacity / BYTES_PER_GB:,.1f} GB of the device"
    return stacked_bars(rows, f"Peak by stage{of}", 0.0 if capacity is None else capacity / BYTES_PER_GB)


def _facts(found: Projection) -> Iterator[str]:
    p = found.parallel
    yield f"{p.ranks} x {found.system.device.label}"
    yield from (f"{name} {value}" for name in ("tp", "pp", "cp", "dp", "ep") if (value := getattr(p, name)) > 1)
    yield f"{p.micro_batches} micro-batches of {p.micro_batch} x {found.sequence:,} tokens"
    yield p.precision


def _tiles(found: Projection) -> list[tuple[str, str, str]]:
    """What does not fit is said before how fast it would be."""
    worst = found.peak_memory
    capacity = "" if worst.capacity is None else f"of {worst.capacity / BYTES_PER_GB:,.1f} GB, "
    need = f"{worst.peak / BYTES_PER_GB:,.1f} GB"
    tiles = [("Step", f"{found.step_us / 1e6:,.3f} s", f"{found.tokens_per_s_per_gpu:,.0f} tokens/s per GPU")]
    if found.mfu is not None:
        tiles.append(("Model FLOPs utilization", shown_percent(found.mfu), f"{found.tflops_gpu:,.0f} TFLOPS per GPU"))
    room = ("Memory" if worst.fits else "Does not fit", need, f"{capacity}fullest stage")
    return [*tiles, room] if worst.fits else [room, *tiles]


def search_page(found: Answer) -> bytes:
    """The best split, what its time and memory go to, how much a bad choice costs, and the front."""
    request, rules = found.request, found.rule_sets[0]
    title = f"{request.model} on {request.cluster}"
    batch = f"{request.global_batch:,} sequences of {rules.tokens_per_sample:,} tokens per step"
    facts = [batch, f"rules {request.rules}", f"{sum(map(len, found.ranking().values())):,} splits fit"]
    if not len(found.fits):
        return framed(f"{title} · search", [head(title, facts, (), warnings=["no split that was tried fits"])])
    fits, front = found.fits, found.front()
    fastest = fits.sort_values("t").iloc[0]
    speed = tokens_per_s(found, fastest)
    tiles = [
        ("Fastest step", f"{fastest['t']:,.4g} s", f"on {fastest['n_gpus']:,} GPUs"),
        ("Throughput", f"{speed:,.0f} tokens/s", "per GPU"),
        ("10¹² tokens", f"{search_plots.days_of(speed * int(fastest['n_gpus'])):,.3g} days", "of training"),
        ("Memory", f"{fastest['mem']:,.1f} GB", f"of {rules.capacity_gb:,.1f} GB per GPU"),
    ]  # fmt: skip
    asked = sorted(set(request.gpus) - set(fits["n_gpus"]))
    warnings = [f"nothing fits on {', '.join(map(str, asked))} GPUs"] if asked else []
    sections = [
        head(title, facts, tiles, expected_of_best(found, float(fastest["t"])), warnings),
        section("best", "The best by number of GPUs", _shown(found, best_of_each(found)[0], "Best splits")),
    ]
    if reasons := found.reasons():
        rows = [(change_of(each), each.slower, f"+{shown_percent(each.slower)}") for each in reasons]
        sections.append(
            section("reasons", "Why not otherwise", bars(rows, "Time of the step that each other choice adds"))
        )
    times = [picture(search_plots.components(fits, search_plots.TIMES, "seconds per step"))]
    if fits["n_gpus"].nunique() > 1:
        days = search_plots.training_days(fits, rules.tokens_per_sample)
        pictures = (search_plots.scaling(fits), days, search_plots.degrees(fits))
        sections.append(section("scaling", "Scaling", *map(picture, pictures)))
        times.append(picture(search_plots.components(fits, search_plots.TIMES, "percent of the step", of_whole=True)))
    sections.append(section("time", "Where the time goes", *times))
    sections.append(
        section("memory", "Memory", picture(search_plots.components(fits, search_plots.MEMORY, "GB per device")))
    )
    if ranking := found.ranking():
        sections.append(section("landscape", "What a bad choice costs", picture(search_plots.landscape(ranking))))
    sections.append(section("front", "Pareto front of time, devices and memory", _shown(found, front, "Pareto front")))
    return framed(f"{title} · search", sections)


def _shown(found: Answer, rows: pd.DataFrame, label: str) -> Markup:
    titles, *cells = shown_rows(found, rows)
    return table(pd.DataFrame(cells, columns=titles), label)
