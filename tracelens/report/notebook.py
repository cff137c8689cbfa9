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
from tracelens.types.records import pd
from tracelens.types.units import NS_PER_MS, US_PER_MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

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


#: What the categories of too little time are called together.
OTHERS = "others"
#: Of the compute roofs, most used first; none is the color of a category.
_ROOF_COLORS = ("#1b2430", "#a6093d", "#2f7d32")
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

        ops = self._frame("unified_perf_summary")
        ops = ops[(ops["flops_per_byte"] > 0) & (ops["tflops_s_mean"] > 0)]
        _refuse_empty(ops, "no op has known FLOPs and bytes; record with record_shapes=True, or add an extension")
        axes = _axes(axes, width=10)
        time = ops.groupby("category", observed=True)["kernel_us_sum"].sum()
        named = _most_time({str(name): float(us) for name, us in time.items()})
        shown = ops["category"].astype(str).where(ops["category"].isin(named), OTHERS)
        marks = []
        for place, category in enumerate(name for name in (*named, OTHERS) if (shown == name).any()):
            rows = ops[shown == category]
            area = 900 * rows["kernel_us_sum"] / ops["kernel_us_sum"].sum() + 12
            axes.scatter(rows["flops_per_byte"], rows["tflops_s_mean"], s=area, color=_color(place), alpha=0.7,
                         edgecolors="white")  # fmt: skip
            marks.append(axes.plot([], [], "o", color=_color(place), label=category)[0])
        lines = self._roofs(axes, float(ops["flops_per_byte"].min()), float(ops["flops_per_byte"].max()))
        axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOPs per byte of HBM traffic)",
                 ylabel="achieved rate (TFLOPS/s)", title="Roofline")  # fmt: skip
        beside = {"fontsize": "small", "title_fontsize": "small", "alignment": "left", "frameon": False}
        first = axes.legend(
            handles=marks, title="ops (area: GPU time)", loc="upper left", bbox_to_anchor=(1.01, 1), **beside
        )
        if lines:
            axes.add_artist(first)
            axes.legend(handles=lines, title="roofs", loc="lower left", bbox_to_anchor=(1.01, 0), **beside)
        return axes

    def _roofs(self, axes: Axes, lowest: float, highest: float) -> list[Line2D]:
        """A color per compute rate: dashed the data sheet's, solid the best measured; nothing without a device."""
        from tracelens.analysis.analyze import Analysis
        from tracelens.analysis.page_charts import roofs

        known = roofs(self._result) if isinstance(self._result, Analysis) else None
        if known is None:
            return []
        x = np.geomspace(lowest / 2, highest * 2, 64)
        lines: list[Line2D] = []
        peak = known.hbm_peak_tb_s or np.inf
        for roof, color in zip(known.compute, _ROOF_COLORS, strict=False):
            name = roof.spec.replace("_", " ")
            rates = (
                ("peak", "--", roof.peak_tflops_s, peak),
                ("achievable", "-", roof.achievable_tflops_s, known.hbm_achievable_tb_s or peak),
            )
            for what, style, rate, slope in rates:
                if rate is not None:
                    y = np.minimum(rate, x * slope)
                    label = f"{name} {what}, {rate:,.4g} TFLOPS/s"
                    lines += axes.plot(x, y, color=color, linewidth=1.2, linestyle=style, label=label)
        return lines

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
        bars = axes.barh(names, widths, left=starts, color=colors)
        axes.bar_label(bars, [f"{width:,.3g}" for width in widths], padding=3, fontsize="small")
        axes.margins(x=0.08)
        axes.invert_yaxis()
        axes.set(xlabel="time of a step (ms)", title="Headroom: from the measured to the achievable step")
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
        first = _most_time(time)
        for place, name in enumerate([*first, *([OTHERS] if len(time) > len(first) else [])]):
            mine = np.flatnonzero(category == name if name in first else ~np.isin(category, first))
            for lane in np.unique(drawn.lane[mine]).tolist():
                at = mine[drawn.lane[mine] == lane]
                spans = np.column_stack((drawn.start_ns[at], drawn.end_ns[at] - drawn.start_ns[at])) / NS_PER_MS
                axes.broken_barh(spans.tolist(), (lane - 0.4, 0.8), color=_color(place))
            axes.plot([], [], color=_color(place), linewidth=6, label=name)
        axes.set_yticks(range(len(drawn.lanes)), [f"stream {lane.stream}" for lane in drawn.lanes])
        axes.invert_yaxis()
        axes.set_xlim(0, drawn.duration_ns / NS_PER_MS)
        what = "everything analyzed" if drawn.step is None else f"step {drawn.step}"
        axes.set(xlabel="time since its start (ms)", title=f"Timeline of {what}")
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
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
        axes.set(xlabel="step", title="Kernel time by category and step (ms)")
        axes.figure.colorbar(image, ax=axes, label="time over the category's mean (1: as usual)")
        return axes

    def _frame(self, title: str) -> pd.DataFrame:
        frame: pd.DataFrame | None = self._result.frames.get(title)
        if frame is None:
            raise NothingToAnalyzeError(f"the report has no sheet {title}")
        return frame


def _most_time(time: Mapping[str, float]) -> list[str]:
    """The names with most time, as many as have a color of their own; the last color is that of the others."""
    names = sorted(time, key=lambda name: (-time[name], name))
    return names if len(names) <= len(COLORS) else names[: len(COLORS) - 1]


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
        return axes
    return pyplot.subplots(figsize=(width, 4.5), layout="constrained")[1]
