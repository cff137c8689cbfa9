"""Pictures of search results as SVG: scaling, what time and memory go to, degrees, heat maps, the landscape."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import UsageError
from tracelens.files.atomic_write import whole_folder
from tracelens.report.charts.markup import Markup, tag
from tracelens.units import S_PER_DAY

if TYPE_CHECKING:
    import pandas as pd

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900.0, 520.0, 80.0, 190.0, 50.0, 60.0
_COLORS = ("#3b6ea5", "#c0692b", "#4c9a5b", "#a5488f", "#8a8a2a", "#5b5b5b", "#2aa198", "#c0392b", "#7d6bb3", "#b58900")
TIMES = {
    "t_comp": "computing", "t_mem": "memory-bound", "t_tp_comm": "tensor, context", "t_ep_comm": "experts",
    "t_recompute": "recomputation", "t_host": "host", "t_pp_comm": "stage to stage", "t_bubble": "bubble",
    "t_dp_comm": "weights, gradients", "t_optimizer": "optimizer",
}  # fmt: skip
MEMORY = {
    "wts_mem": "weights", "wts_grad_mem": "gradients", "wts_optimizer_states_mem": "optimizer",
    "acts_mem": "activations", "logits_mem": "logits", "other_mem": "other",
}  # fmt: skip
#: How columns of swept figures begin.
_SWEPT = "set_"
_DEGREES = ("tp1", "tp2", "pp", "vpp", "dp", "ep", "mbs")
#: Points of a line of the landscape, evenly over the logarithm of the ranking.
_LANDSCAPE = 300


def write_plots(folder: Path, table: pd.DataFrame, ranking: Mapping[str, Sequence[float]]) -> list[Path]:
    """Whatever the table has: scaling, components and degrees over device counts; heat maps over swept figures.

    ``ranking``: seconds of every feasible configuration, fastest first, by label. Returns the files.
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
        str(strategy): list(zip(each["n_gpus"], each["throughput"], strict=True))
        for strategy, each in best.groupby("strategy")
    }
    first = best.sort_values("n_gpus").iloc[0]
    ideal = [(n, first["throughput"] / first["n_gpus"] * n) for n in sorted(best["n_gpus"].unique())]
    return _lines({**lines, "ideal": ideal}, "devices", "samples/s", dotted={"ideal"})


def training_days(table: pd.DataFrame, tokens_per_sample: int) -> Markup:
    """Days that 10^12 tokens take on the best configuration over devices, per strategy."""
    lines = {
        str(strategy): [
            (n, days_of(rate * tokens_per_sample)) for n, rate in zip(each["n_gpus"], each["throughput"], strict=True)
        ]
        for strategy, each in _best(table).groupby("strategy")
    }
    return _lines(lines, "devices", "days for 10^12 tokens")


def days_of(tokens_per_s: float) -> float:
    """Days that 10^12 tokens take."""
    return 1e12 / tokens_per_s / S_PER_DAY


def degrees(table: pd.DataFrame) -> Markup:
    """Degrees of the fastest configuration over devices."""
    best = _best(table).sort_values("throughput").groupby("n_gpus").tail(1).sort_values("n_gpus")
    shown = [name for name in _DEGREES if name in best and best[name].max() > 1]
    return _lines({name: list(zip(best["n_gpus"], best[name], strict=True)) for name in shown}, "devices", "degree")


def components(table: pd.DataFrame, parts: Mapping[str, str], unit: str, *, of_whole: bool = False) -> Markup:
    """A bar per device count and strategy of the best configuration, stacked by ``parts``; ``of_whole``: each in
    percent of its sum.
    """
    best = _best(table)
    labels = [f"{row.strategy} {row.n_gpus}" for row in best.itertuples()]
    shown = {name: word for name, word in parts.items() if name in best}
    wholes = [float(value) / 100 or 1.0 for value in best[list(shown)].sum(axis=1)] if of_whole else [1.0] * len(best)
    values = [[float(value) / whole for value, whole in zip(best[name], wholes, strict=True)] for name in shown]
    top = max((sum(column) for column in zip(*values, strict=True)), default=0.0) or 1.0
    wide = (_WIDTH - _LEFT - _RIGHT) / max(len(labels), 1)
    drawn: list[Markup] = [_y_labels(0.0, top)]
    for i, label in enumerate(labels):
        x, base = _LEFT + i * wide, _HEIGHT - _BOTTOM
        for color, (word, column) in enumerate(zip(shown.values(), values, strict=True)):
            height = column[i] / top * (_HEIGHT - _TOP - _BOTTOM)
            base -= height
            tip = tag("title", f"{label}: {word} {column[i]:.4g}")
            drawn.append(
                tag("rect", tip, x=x + 0.1 * wide, y=base, width=0.8 * wide, height=height, fill=_COLORS[color % 10])
            )
        middle = x + wide / 2
        turned = f"rotate(-40 {middle:.1f} {_HEIGHT - _BOTTOM + 14:.1f})"
        drawn.append(
            tag("text", label, x=middle, y=_HEIGHT - _BOTTOM + 14, font_size=9, text_anchor="end", transform=turned)
        )
    return _page(unit, "", [*drawn, *_legend(list(shown.values()))])


def heat_map(table: pd.DataFrame, x: str, y: str) -> Markup:
    """Seconds per step of the best configuration for each pair of figures; empty where nothing fits."""
    if x not in table or y not in table:
        raise UsageError(f"the table has no columns {x} and {y}")
    fastest = table.groupby([y, x])["t"].min()
    columns, rows = (sorted(table[name].unique(), key=float) for name in (x, y))
    low, high = float(fastest.min()), float(fastest.max())
    wide, tall = (_WIDTH - _LEFT - _RIGHT) / len(columns), (_HEIGHT - _TOP - _BOTTOM) / len(rows)
    drawn: list[Markup] = []
    for i, row in enumerate(rows):
        top = _HEIGHT - _BOTTOM - (i + 1) * tall
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
        drawn.append(
            tag("text", str(column), x=_LEFT + (j + 0.5) * wide, y=_HEIGHT - _BOTTOM + 18, text_anchor="middle")
        )
    return _page(f"seconds per step; {y.removeprefix('set_')} up", x.removeprefix(_SWEPT), drawn)


def landscape(ranking: Mapping[str, Sequence[float]]) -> Markup:
    """Every feasible configuration's seconds per step, fastest first: how much a bad choice costs."""
    lines = {}
    for label, times in ranking.items():
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
        return (
            _LEFT + shares[0] * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - shares[1] * (_HEIGHT - _TOP - _BOTTOM),
        )

    drawn = [*_grid(bounds, place)]
    for color, (label, line) in enumerate(lines.items()):
        path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(map(place, line)))
        dash = "4 4" if label in dotted else None
        stroke = _COLORS[color % len(_COLORS)]
        drawn.append(tag("path", d=path, fill="none", stroke=stroke, stroke_width=2, stroke_dasharray=dash))
        if len(line) <= 64:
            drawn += [
                tag(
                    "circle",
                    tag("title", f"{label}: {x:.6g}, {y:.4g}"),
                    cx=place((x, y))[0],
                    cy=place((x, y))[1],
                    r=3,
                    fill=stroke,
                )
                for x, y in line
            ]
    return _page(y_label, x_label, [*drawn, *_legend(list(lines))])


def _log_bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low / 2, high * 2)


def _grid(
    bounds: Sequence[tuple[float, float]], place: Callable[[tuple[float, float]], tuple[float, float]]
) -> Iterator[Markup]:
    (left, right), (low, high) = bounds
    for value in _ticks(left, right):
        x, y = place((value, low))
        yield tag("line", x1=x, x2=x, y1=y, y2=_TOP, stroke="#ddd")
        yield tag("text", f"{value:g}", x=x, y=y + 18, text_anchor="middle")
    for value in _ticks(low, high):
        x, y = place((left, value))
        yield tag("line", x1=x, x2=_WIDTH - _RIGHT, y1=y, y2=y, stroke="#ddd")
        yield tag("text", f"{value:g}", x=x - 6, y=y + 4, text_anchor="end")


def _ticks(low: float, high: float) -> list[float]:
    """Powers of two, or of ten where those are too many."""
    base = 2 if high / low <= 2**13 else 10
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    return [float(base) ** i for i in range(first, last + 1)] or [low, high]


def _y_labels(low: float, high: float) -> Markup:
    step = 10 ** math.floor(math.log10(high - low)) or 1.0
    drawn = []
    value = low
    while value <= high:
        y = _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)
        drawn.append(tag("text", f"{value:.4g}", x=_LEFT - 6, y=y + 4, text_anchor="end"))
        value += step
    return tag("g", drawn)


def _legend(labels: Sequence[str]) -> Iterator[Markup]:
    for i, label in enumerate(labels):
        y = _TOP + 20 * i
        yield tag("rect", x=_WIDTH - _RIGHT + 20, y=y, width=12, height=12, fill=_COLORS[i % len(_COLORS)])
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
