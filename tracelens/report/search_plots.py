"""Pictures of search results as SVG: scaling, time and memory by part, degrees, heat maps, the landscape."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tracelens.errors import UsageError
from tracelens.files.atomic_write import whole_folder
from tracelens.report.html.markup import COLORS, Markup, log_ticks, round_ticks, tag
from tracelens.units import S_PER_DAY

if TYPE_CHECKING:
    import pandas as pd


#: Seconds by strategy and number of devices.
Ranking: TypeAlias = Mapping[tuple[str, int], Sequence[float]]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1180.0, 380.0, 74.0, 190.0, 44.0, 56.0
_FOOT, _TALL = _HEIGHT - _BOTTOM, _HEIGHT - _TOP - _BOTTOM
TIMES = {
    "t_comp": "computing", "t_mem": "memory-bound", "t_tp_comm": "tensor, context", "t_ep_comm": "experts",
    "t_recompute": "recomputation", "t_host": "host", "t_pp_comm": "stage to stage", "t_bubble": "bubble",
    "t_dp_comm": "weights, gradients", "t_optimizer": "optimizer",
}  # fmt: skip
MEMORY = {
    "wts_mem": "weights", "wts_grad_mem": "gradients", "wts_optimizer_states_mem": "optimizer",
    "acts_mem": "activations", "logits_mem": "logits", "other_mem": "other",
}  # fmt: skip
#: Strategy -> how its splits are called, in a legend and below a bar.
_SPLITS = {
    "1d": ("no context parallel", "no cp"),
    "2d-seqp": ("context parallel", "cp"),
    "2d": ("2D grid (SUMMA)", "grid"),
}
#: How columns of swept figures begin.
_SWEPT = "set_"
#: Pale on white and on black.
_GRID: dict[str, Any] = {"stroke": "#8b95a3", "stroke_opacity": 0.35}
_DEGREES = {"tp1": "tp 1", "tp2": "tp 2", "pp": "pp", "vpp": "vpp", "dp": "dp", "ep": "ep", "mbs": "micro-batch"}
#: Points of a line of the landscape, evenly over the logarithm of the ranking.
_LANDSCAPE = 300


def write_plots(folder: Path, table: pd.DataFrame, ranking: Ranking) -> list[Path]:
    """Whatever the table has: scaling, components and degrees over device counts; heat maps over swept figures.

    ``ranking``: seconds of every feasible configuration, fastest first, by strategy and devices. Returns the files.
    """
    pictures: dict[str, Callable[[], Markup]] = {}
    best = _best(table)
    if best["n_gpus"].nunique() > 1:
        pictures["scaling"] = lambda: scaling(table)
        pictures["degrees"] = lambda: degrees(table)
        pictures["time_shares"] = lambda: components(table, TIMES, "percent of the step", of_whole=True)
    pictures["time"] = lambda: components(table, TIMES, "seconds per step")
    pictures["memory"] = lambda: components(table, MEMORY, "GB per device")
    swept = [str(name) for name in table if str(name).startswith(_SWEPT) and table[name].nunique() > 1]
    for y, x in itertools.combinations(swept, 2):
        pictures[f"{y.removeprefix(_SWEPT)}_{x.removeprefix(_SWEPT)}"] = functools.partial(heat_map, table, x, y)
    if ranking:
        pictures["landscape"] = lambda: landscape(ranking)
    with whole_folder(folder) as staging:
        for name, picture in pictures.items():
            (staging / f"{name}.svg").write_bytes(picture().encode())
    return [folder / f"{name}.svg" for name in pictures]


def scaling(table: pd.DataFrame) -> Markup:
    """Throughput of the best configuration over devices, per strategy; dotted: as fast per device as at the start."""
    best = _best(table)
    lines = {
        _split(strategy)[0]: list(zip(each["n_gpus"], each["throughput"], strict=True))
        for strategy, each in best.groupby("strategy")
    }
    first = best.sort_values("n_gpus").iloc[0]
    ideal = [(n, first["throughput"] / first["n_gpus"] * n) for n in sorted(best["n_gpus"].unique())]
    return _lines({**lines, "ideal": ideal}, "GPUs", "samples/s", dotted={"ideal"})


def training_days(table: pd.DataFrame, tokens_per_sample: int) -> Markup:
    """Days that 10^12 tokens take on the best configuration over devices, per strategy."""
    lines = {
        _split(strategy)[0]: [
            (n, days_of(rate * tokens_per_sample)) for n, rate in zip(each["n_gpus"], each["throughput"], strict=True)
        ]
        for strategy, each in _best(table).groupby("strategy")
    }
    return _lines(lines, "GPUs", "days for 10¹² tokens")


def days_of(tokens_per_s: float) -> float:
    """Days that 10^12 tokens take."""
    return 1e12 / tokens_per_s / S_PER_DAY


def degrees(table: pd.DataFrame) -> Markup:
    """Degrees of the fastest configuration over devices."""
    best = _best(table).sort_values("throughput").groupby("n_gpus").tail(1).sort_values("n_gpus")
    shown = [name for name in _DEGREES if name in best and best[name].max() > 1]
    lines = {_DEGREES[name]: list(zip(best["n_gpus"], best[name], strict=True)) for name in shown}
    return _lines(lines, "GPUs", "degree of the fastest")


def components(table: pd.DataFrame, parts: Mapping[str, str], unit: str, *, of_whole: bool = False) -> Markup:
    """A bar per device count and strategy of the best configuration, stacked by ``parts``; ``of_whole``: each in
    percent of its sum.
    """
    best = _best(table)
    labels = [
        (f"{gpus:,} GPUs", _split(strategy)[1]) for gpus, strategy in zip(best["n_gpus"], best["strategy"], strict=True)
    ]
    shown = {name: word for name, word in parts.items() if name in best and best[name].max() > 0}
    values = best[list(shown)].to_numpy(float)
    sums = values.sum(axis=1)
    if of_whole:
        values = 100 * values / np.where(sums > 0, sums, 1)[:, None]
    ticks = round_ticks(100.0 if of_whole else float(sums.max(initial=0)) or 1.0)
    per_unit, wide = _TALL / ticks[-1], (_WIDTH - _LEFT - _RIGHT) / max(len(labels), 1)
    drawn = [_y_tick(value, _FOOT - value * per_unit) for value in ticks]
    for i, (label, column) in enumerate(zip(labels, values.tolist(), strict=True)):
        x, base = _LEFT + (i + 0.1) * wide, _FOOT
        for color, (word, value) in enumerate(zip(shown.values(), column, strict=True)):
            base -= value * per_unit
            tip, fill = tag("title", f"{', '.join(label)}: {word} {value:.4g}"), COLORS[color % len(COLORS)]
            drawn.append(tag("rect", tip, x=x, y=base, width=0.8 * wide, height=value * per_unit, fill=fill))
    named = dict.fromkeys(_split(strategy) for strategy in best["strategy"])
    below = "; ".join(f"{short}: {name}" for name, short in named)
    return _page(unit, below, [*drawn, *_bar_labels(labels, wide), *_legend(list(shown.values()))])


def _split(strategy: object) -> tuple[str, str]:
    """How splits of a strategy are called, in full and in short."""
    return _SPLITS.get(str(strategy), (str(strategy),) * 2)


def _bar_labels(labels: Sequence[tuple[str, str]], wide: float) -> Iterator[Markup]:
    """Below the bars, in two lines; in one, and turned, where they would run into each other."""
    is_narrow = 7 * max((len(line) for label in labels for line in label), default=0) > wide
    for i, label in enumerate(labels):
        x, y = _LEFT + (i + 0.5) * wide, _FOOT + 14
        if is_narrow:
            text = f"{label[0].removesuffix(' GPUs')} {label[1]}"
            yield tag("text", text, x=x, y=y, text_anchor="end", transform=f"rotate(-40 {x:.1f} {y - 2:.1f})")
        else:
            yield from (tag("text", line, x=x, y=y + 14 * row, text_anchor="middle") for row, line in enumerate(label))


def heat_map(table: pd.DataFrame, x: str, y: str) -> Markup:
    """Seconds per step of the best configuration for each pair of figures; empty where nothing fits."""
    if x not in table or y not in table:
        raise UsageError(f"the table has no columns {x} and {y}")
    fastest = table.groupby([y, x])["t"].min()
    columns, rows = (sorted(table[name].unique(), key=float) for name in (x, y))
    low, high = float(fastest.min()), float(fastest.max())
    wide, tall = (_WIDTH - _LEFT - _RIGHT) / len(columns), _TALL / len(rows)
    drawn: list[Markup] = []
    for i, row in enumerate(rows):
        top = _FOOT - (i + 1) * tall
        drawn.append(tag("text", str(row), x=_LEFT - 6, y=top + tall / 2, text_anchor="end"))
        for j, column in enumerate(columns):
            value = fastest.get((row, column))
            if value is None:
                continue
            share = 0.0 if high == low else math.log(value / low) / math.log(high / low)
            fill = f"rgb({int(60 + 180 * share)},{int(110 + 90 * (1 - share))},{int(200 - 150 * share)})"
            left = _LEFT + j * wide
            tip = tag("title", f"{y} {row}, {x} {column}: {value:.4g} s")
            drawn.append(tag("rect", tip, x=left, y=top, width=wide, height=tall, fill=fill))
            drawn.append(tag("text", f"{value:.3g}", x=left + wide / 2, y=top + tall / 2, text_anchor="middle"))
    for j, column in enumerate(columns):
        drawn.append(tag("text", str(column), x=_LEFT + (j + 0.5) * wide, y=_FOOT + 18, text_anchor="middle"))
    return _page(f"seconds per step; {y.removeprefix('set_')} up", x.removeprefix(_SWEPT), drawn)


def landscape(ranking: Ranking) -> Markup:
    """Every feasible configuration's seconds per step, fastest first: how much a bad choice costs."""
    lines = {}
    for (strategy, gpus), times in ranking.items():
        label = f"{gpus:,} GPUs, {_split(strategy)[1]}"
        places = sorted({round(len(times) ** (i / _LANDSCAPE)) for i in range(_LANDSCAPE + 1)})
        lines[label] = [(place, times[place - 1]) for place in places]
    return _lines(lines, "configurations, fastest first", "seconds per step")


def _best(table: pd.DataFrame) -> pd.DataFrame:
    order = table.sort_values(["strategy", "n_gpus", "t"], kind="stable")
    return order.groupby(["strategy", "n_gpus"], as_index=False).head(1)


def _lines(
    lines: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, dotted: Iterable[str] = ()
) -> Markup:
    """Both axes logarithmic."""
    points = [point for line in lines.values() for point in line]
    bounds = [_log_bounds([point[axis] for point in points]) for axis in (0, 1)]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        shares = [
            (math.log(v) - math.log(low)) / math.log(high / low) for v, (low, high) in zip(point, bounds, strict=True)
        ]
        return (_LEFT + shares[0] * (_WIDTH - _LEFT - _RIGHT), _FOOT - shares[1] * _TALL)

    drawn = [*_grid(bounds, place)]
    for color, (label, line) in enumerate(lines.items()):
        path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(map(place, line)))
        dash = "4 4" if label in dotted else None
        stroke = COLORS[color % len(COLORS)]
        drawn.append(tag("path", d=path, fill="none", stroke=stroke, stroke_width=2, stroke_dasharray=dash))
        if len(line) <= 64:
            for point in line:
                (x, y), (cx, cy) = point, place(point)
                drawn.append(tag("circle", tag("title", f"{label}: {x:.6g}, {y:.4g}"), cx=cx, cy=cy, r=3, fill=stroke))
    return _page(y_label, x_label, [*drawn, *_legend(list(lines))])


def _log_bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low / 2, high * 2)


def _grid(
    bounds: Sequence[tuple[float, float]], place: Callable[[tuple[float, float]], tuple[float, float]]
) -> Iterator[Markup]:
    (left, right), (low, high) = bounds
    for value in _powers(left, right):
        x, y = place((value, low))
        yield tag("line", x1=x, x2=x, y1=y, y2=_TOP, **_GRID)
        yield tag("text", f"{value:,g}", x=x, y=y + 18, text_anchor="middle")
    for value in log_ticks(low, high):
        yield _y_tick(value, place((left, value))[1])


def _powers(low: float, high: float) -> list[float]:
    """Powers of two, as devices come, or of ten where those are too many."""
    base = 2 if high / low <= 2**13 else 10
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    return [float(base) ** i for i in range(first, last + 1)] or [low, high]


def _y_tick(value: float, y: float) -> Markup:
    line = tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, **_GRID)
    return tag("g", line, tag("text", f"{value:,.6g}", x=_LEFT - 6, y=y + 4, text_anchor="end"))


def _legend(labels: Sequence[str]) -> Iterator[Markup]:
    for i, label in enumerate(labels):
        y = _TOP + 20 * i
        yield tag("rect", x=_WIDTH - _RIGHT + 20, y=y, width=12, height=12, fill=COLORS[i % len(COLORS)])
        yield tag("text", label, x=_WIDTH - _RIGHT + 38, y=y + 11)


def _page(title: str, below: str, drawn: Iterable[Markup]) -> Markup:
    return tag(
        "svg",
        tag("rect", width=_WIDTH, height=_HEIGHT, fill="white", class_="paper"),
        tag("text", title, x=_LEFT, y=26, font_size=15),
        tag("text", below, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 12, text_anchor="middle"),
        list(drawn),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        font_family="sans-serif",
        font_size=12,
    )
