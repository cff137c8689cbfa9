"""What the ranks of a pipeline do during a step, a line each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracelens.report.charts.axis_ticks import round_ticks
from tracelens.report.html.charts import legend
from tracelens.report.html.markup import Markup, tag
from tracelens.units import US_PER_MS

if TYPE_CHECKING:
    from tracelens.projection.job import Run

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
_WIDTH, _LEFT, _ROW, _BELOW = 1180.0, 74.0, 26.0, 34.0


def pipeline_chart(ran: Run) -> Markup:
    """A box per task, none where a rank waits: the bubble."""
    ranks = min(len(ran.tasks), MAX_RANKS)
    height = ranks * _ROW + _BELOW
    scale = (_WIDTH - _LEFT) / ran.step_us
    drawn = [*_axis(ran.step_us, ranks * _ROW)]
    for rank in range(ranks):
        y = rank * _ROW
        drawn.append(tag("text", f"rank {rank}", x=_LEFT - 8, y=y + _ROW / 2 + 4, class_="tick", text_anchor="end"))
        for begin, end, color, text in _boxes(ran, rank, MAX_TASKS // ranks):
            tip = tag("title", f"{text}: {begin / US_PER_MS:,.3f} to {end / US_PER_MS:,.3f} ms")
            x, width = _LEFT + begin * scale, max((end - begin) * scale, 0.3)
            drawn.append(tag("rect", tip, x=x, y=y + 2, width=width, height=_ROW - 4, class_=color))
    used = {task.kind for tasks in ran.tasks[:ranks] for task in tasks}
    entries = [pair for kind, pair in _KINDS.items() if kind in used]
    shape = f"0 0 {_WIDTH:g} {height:g}"
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
            x = _LEFT + value / step_ms * (_WIDTH - _LEFT)
            yield tag("line", x1=x, x2=x, y1=0, y2=bottom, class_="grid")
            anchor = "middle" if 0 < value < 0.97 * step_ms else "end" if value else "start"
            yield tag("text", f"{value:,.6g} ms", x=x, y=bottom + 18, class_="tick", text_anchor=anchor)
