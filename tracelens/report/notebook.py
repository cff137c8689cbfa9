"""A report in a notebook: its page without script, and its plots as matplotlib axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.analysis.verdict.summary import Summary
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.files.safe_text import short_kernel_name
from tracelens.report import page_findings, page_sections
from tracelens.report.assembly import Sheet
from tracelens.report.charts import color_classes
from tracelens.report.markup import COLORS, Markup, asset, joined, tag
from tracelens.types.units import NS_PER_MS, US_PER_MS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from tracelens.report.assembly import Analyzed


#: What the page's style sheet says of the whole document; in a notebook it holds for our part alone.
_WHOLE_DOCUMENT = re.compile(r"^(\s*)(?::root(?::not\(\[data-print\]\))?|body)(?= \{)", re.MULTILINE)


def notebook_html(summary: Summary, sheets: Sequence[Sheet]) -> str:
    """Markup that styles itself, runs no script and loads nothing."""
    colors = color_classes([row.name for row in summary.categories])
    made = (
        page_sections.verdict(summary),
        page_findings.look_here_first(summary, page_findings.SheetRows(sheets)),
        page_sections.where_time_goes(summary, colors, sheets),
    )
    own = _WHOLE_DOCUMENT.sub(r"\1&", asset("page.css"))
    style = Markup(f".tracelens {{ {own} .to-ops {{ display: none; }} }}")
    body = [tag("section", content) for content in made if content is not None]
    return joined(tag("div", tag("style", style), *body, class_="tracelens"))


#: Categories that are shown; the others have too little time to be seen.
_MOST = 12
#: Bars of a timeline.
MOST_BARS = 4000


class Plots:
    """``report.plot.roofline()`` and its like: each draws on ``axes``, or on new ones, and returns them."""

    def __init__(self, result: Analyzed, tables: Callable[[], Mapping[str, pd.DataFrame]]) -> None:
        """``tables``: those of SQL, made when they are needed."""
        self._result, self._tables = result, tables

    def __repr__(self) -> str:
        return "plots of a report: roofline(), timeline(), headroom(), heatmap()"

    def roofline(self, axes: Axes | None = None) -> Axes:
        """Ops by arithmetic intensity and achieved rate below the device's roofs; area: share of the device time."""
        from tracelens.analysis.analyze import Analysis
        from tracelens.analysis.page_charts import roofs

        ops = self._frame("unified_perf_summary")
        ops = ops[(ops["flops_per_byte"] > 0) & (ops["tflops_s_mean"] > 0)]
        _refuse_empty(ops, "FLOPs and bytes are known of no op")
        axes = _axes(axes)
        for place, (category, rows) in enumerate(_by_time(ops, "category", "kernel_us_sum")):
            area = 900 * rows["kernel_us_sum"] / ops["kernel_us_sum"].sum() + 12
            axes.scatter(rows["flops_per_byte"], rows["tflops_s_mean"], s=area, color=_color(place), alpha=0.7,
                         label=category, edgecolors="white")  # fmt: skip
        known = roofs(self._result) if isinstance(self._result, Analysis) else None
        for roof in () if known is None else known.compute:
            slope = known.hbm_peak_tb_s if known is not None else None
            x = np.geomspace(ops["flops_per_byte"].min() / 2, ops["flops_per_byte"].max() * 2, 64)
            y = np.minimum(roof.peak_tflops_s, x * slope if slope else np.inf)
            axes.plot(x, y, color="#1b2430", linewidth=1, linestyle="--", label=f"{roof.spec} peak")
        axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte of HBM", ylabel="TFLOPS/s", title="Roofline")
        axes.legend(fontsize="small")
        return axes

    def headroom(self, axes: Axes | None = None) -> Axes:
        """From the measured step to the achievable one, a bar for what each category has above it."""
        rows = self._frame("headroom")
        rows = rows.assign(gain=(rows["own_us"] - rows["achievable_own_us"]) / US_PER_MS)
        gains = rows[rows["gain"] > 0].head(_MOST)
        _refuse_empty(gains, "nothing is known to be slower than what can be achieved")
        axes = _axes(axes)
        measured = float(rows["own_us"].sum()) / US_PER_MS
        names = ["measured", *gains["category"].astype(str), "achievable"]
        widths = [measured, *gains["gain"], measured - float(gains["gain"].sum())]
        starts = [0.0, *(measured - gains["gain"].cumsum()), 0.0]
        colors = [COLORS[0], *([COLORS[1]] * len(gains)), COLORS[2]]
        axes.barh(names, widths, left=starts, color=colors)
        axes.invert_yaxis()
        axes.set(xlabel="ms", title="Headroom")
        return axes

    def timeline(self, axes: Axes | None = None) -> Axes:
        """What the streams did during the typical step, a line each; colors are categories."""
        from tracelens.analysis.analyze import Analysis
        from tracelens.analysis.page_charts import step_timelines

        result = self._result
        steps = step_timelines(result, max_rects=MOST_BARS) if isinstance(result, Analysis) else []
        if not steps or not isinstance(result, Analysis):
            raise NothingToAnalyzeError("the report has no device events to draw")
        drawn, events = steps[0], self._tables()["kernels"]
        category = events["category"].to_numpy(dtype=object)[drawn.event]
        axes = _axes(axes, width=11)
        time = {name: int(drawn.kernel_ns[category == name].sum()) for name in set(category.tolist())}
        first = sorted(time, key=lambda name: -time[name])[: len(COLORS) - 1]
        for place, name in enumerate([*first, *(["others"] if len(time) > len(first) else [])]):
            mine = np.flatnonzero(category == name if name in first else ~np.isin(category, first))
            for lane in np.unique(drawn.lane[mine]).tolist():
                at = mine[drawn.lane[mine] == lane]
                spans = np.column_stack((drawn.start_ns[at], drawn.end_ns[at] - drawn.start_ns[at])) / NS_PER_MS
                axes.broken_barh(spans.tolist(), (lane - 0.4, 0.8), color=_color(place))
            axes.plot([], [], color=_color(place), linewidth=6, label=name)
        axes.set_yticks(range(len(drawn.lanes)), [f"stream {lane.stream}" for lane in drawn.lanes])
        axes.invert_yaxis()
        what = "everything analyzed" if drawn.step is None else f"step {drawn.step}"
        axes.set(xlabel="ms", title=f"Timeline of {what}")
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
        return axes

    def heatmap(self, axes: Axes | None = None) -> Axes:
        """Kernel time by category and step: which part makes a step slower than the others."""
        kernels = self._tables()["kernels"].dropna(subset=["step"])
        _refuse_empty(kernels, "the trace has no steps")
        kernels = kernels.assign(ms=kernels["duration_us"] / US_PER_MS)
        times = kernels.pivot_table(index="category", columns="step", values="ms", aggfunc="sum", observed=True)
        times = times.loc[times.sum(axis=1).sort_values(ascending=False).index[:_MOST]]
        axes = _axes(axes)
        shown = times.to_numpy(dtype=float)
        mean = np.nanmean(shown, axis=1, keepdims=True)
        over = shown / mean
        low, high = min(0.9, float(np.nanmin(over))), max(1.1, float(np.nanmax(over)))
        image = axes.imshow(over, aspect="auto", cmap="cividis", vmin=low, vmax=high)
        for (row, column), value in np.ndenumerate(shown):
            if np.isfinite(value):
                ink = "black" if over[row, column] > (low + high) / 2 else "white"
                axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize="small", color=ink)
        axes.set_yticks(range(len(times)), [short_kernel_name(str(name)) for name in times.index])
        axes.set_xticks(range(len(times.columns)), [str(step) for step in times.columns])
        axes.set(xlabel="step", title="Kernel time by category and step, ms")
        axes.figure.colorbar(image, ax=axes, label="over the category's mean")
        return axes

    def _frame(self, title: str) -> pd.DataFrame:
        frame: pd.DataFrame | None = self._result.frames.get(title)
        if frame is None:
            raise NothingToAnalyzeError(f"the report has no sheet {title}")
        return frame


def _by_time(ops: pd.DataFrame, by: str, time: str) -> Sequence[tuple[str, pd.DataFrame]]:
    groups = [(str(name), rows) for name, rows in ops.groupby(by, observed=True)]
    return sorted(groups, key=lambda group: -float(group[1][time].sum()))


def _color(place: int) -> str:
    return COLORS[min(place, len(COLORS) - 1)]


def _refuse_empty(rows: pd.DataFrame, why: str) -> None:
    if not len(rows):
        raise NothingToAnalyzeError(f"nothing to draw: {why}")


def _axes(axes: Any, *, width: float = 8) -> Axes:
    """UsageError, naming the extra, where matplotlib is missing."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise UsageError("plots need matplotlib: pip install 'tracelens-perf[notebook]'") from None
    if axes is not None:
        made: Axes = axes
        return made
    return pyplot.subplots(figsize=(width, 4.5), layout="constrained")[1]
