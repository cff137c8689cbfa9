"""A routing result as a picture (SVG): who sends to whom, what each rank receives, and the figures beside."""

from __future__ import annotations

import html
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tracelens.routing.route_result import RouteResult

#: A matrix of more ranks is joined to blocks before it is drawn.
MOST_CELLS = 128
_LEFT, _TOP, _SIDE, _BARS = 70.0, 70.0, 460.0, 110.0
_TEXT, _WIDTH, _HEIGHT = 560.0, 900, 740
_INK, _GREY, _BLUE, _PALE, _RED = "#1f3a5f", "#666", "#0072b2", "#9fcbe6", "#d55e00"


def picture(result: RouteResult) -> str:
    """The SVG document. Bars stand under the column of the rank that receives."""
    blocks, step = blocks_of(result)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white" class="paper"/>',
        _text(_LEFT, 28, _title(result), size=16, fill=_INK),
        _text(_LEFT, 48, "dispatch, bytes from rank (down) to rank (right)"),
        *_matrix(result),
        *_figures(result, step, float(blocks.max(initial=0))),
    ]
    return "\n".join((*parts, "</svg>"))


def matrix_picture(result: RouteResult) -> str:
    """The matrix and the bars below it, without title and figures."""
    shape = f"0 {_TOP - 22:g} {_LEFT + _SIDE + 10:g} {_SIDE + _BARS + 60:g}"
    name = f"{_title(result)}: who sends how much to whom"
    return "\n".join((f'<svg viewBox="{shape}" role="img" aria-label="{name}">', *_matrix(result), "</svg>"))


def blocks_of(result: RouteResult) -> tuple[NDArray[np.float64], int]:
    """Bytes from rank to rank, and how many ranks a row stands for."""
    matrix = result.traffic.wire_bytes
    step = -(-len(matrix) // MOST_CELLS)
    edges = np.arange(0, len(matrix), step)
    return np.add.reduceat(np.add.reduceat(matrix, edges, axis=0), edges, axis=1), step


def _matrix(result: RouteResult) -> Iterator[str]:
    blocks, step = blocks_of(result)
    ranks = result.frames["ranks"]
    edges = np.arange(0, len(ranks), step)
    yield from _heat_map(blocks, step)
    yield from _ticks(len(blocks), step)
    yield from _node_borders(result, len(ranks))
    after = "routings_eplb" if "routings_eplb" in ranks else None
    routings = np.add.reduceat(ranks.routings.to_numpy(float), edges)
    balanced = None if after is None else np.add.reduceat(ranks[after].to_numpy(float), edges)
    yield from _bars(routings, balanced)


def _heat_map(blocks: NDArray[np.float64], step: int) -> Iterator[str]:
    cell, top = _SIDE / len(blocks), float(blocks.max(initial=0)) or 1.0
    for (row, column), nbytes in np.ndenumerate(blocks):
        x, y = _LEFT + column * cell, _TOP + row * cell
        yield (
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{cell:.2f}" height="{cell:.2f}" fill="{_BLUE}" '
            f'fill-opacity="{nbytes / top:.3f}">'
            f"<title>{row * step} to {column * step}: {nbytes:,.0f} bytes</title></rect>"
        )


def _ticks(cells: int, step: int) -> Iterator[str]:
    """Rank numbers at both sides, at most eight."""
    cell, every = _SIDE / cells, max(1, -(-cells // 8))
    for index in range(0, cells, every):
        middle = (index + 0.5) * cell
        yield _text(_LEFT - 6, _TOP + middle + 4, str(index * step), anchor="end")
        yield _text(_LEFT + middle, _TOP - 4, str(index * step), anchor="middle")


def _node_borders(result: RouteResult, ranks: int) -> Iterator[str]:
    """Lines between nodes, up to 32 of them."""
    per_node = result.summary.get("ranks_per_node") or ranks
    if not 1 < ranks // per_node <= 32:
        return
    for border in range(per_node, ranks, per_node):
        at = _SIDE * border / ranks
        yield _line(_LEFT + at, _TOP, _LEFT + at, _TOP + _SIDE)
        yield _line(_LEFT, _TOP + at, _LEFT + _SIDE, _TOP + at)


def _bars(routings: NDArray[np.float64], balanced: NDArray[np.float64] | None) -> Iterator[str]:
    """Routings that each rank gets, and with EPLB; a line at the mean."""
    foot, cell = _TOP + _SIDE + 30 + _BARS, _SIDE / len(routings)
    most = float(routings.max(initial=0)) or 1.0
    pale = "" if balanced is None else "; pale: with EPLB's placement"
    yield _text(_LEFT, foot - _BARS - 10, f"routings that the rank receives; line: mean{pale}")
    for values, fill, share in ((balanced, _PALE, 1.0), (routings, _BLUE, 1.0 if balanced is None else 0.5)):
        for index, value in enumerate(() if values is None else values.tolist()):
            height = _BARS * min(value / most, 1.0)
            yield (
                f'<rect x="{_LEFT + index * cell:.2f}" y="{foot - height:.2f}" width="{0.9 * share * cell:.2f}" '
                f'height="{height:.2f}" fill="{fill}"/>'
            )
    mean = foot - _BARS * float(routings.mean()) / most
    yield f'<line x1="{_LEFT}" x2="{_LEFT + _SIDE}" y1="{mean:.1f}" y2="{mean:.1f}" stroke="{_RED}"/>'


def _figures(result: RouteResult, step: int, darkest: float) -> Iterator[str]:
    s = result.summary
    unit, word = ("ms", "ms") if "time_ms" in s else ("us", "µs")
    lines = [
        ("a token reaches", f"{s['mean_ranks']:.2f} ranks on {s['mean_nodes']:.2f} nodes"),
        ("leaves its rank", f"{s['remote_share']:.1%} of the bytes"),
        ("busiest expert", f"{s['expert_imbalance']:.2f} x the mean"),
        ("busiest rank", f"{s['rank_imbalance']:.2f} x the mean"),
        *((row["phase"], f"{row[f'time_{unit}']:,.1f} {word}") for row in result.frames["phases"].to_dict("records")),
        ("imbalance costs", f"{s[f'imbalance_{unit}']:,.1f} {word}"),
    ]
    if "hottest" in s:
        lines += [("hottest", s["hottest"])]
    if "eplb_gain_us" in s:
        lines += [
            ("EPLB, busiest rank", f"{s['eplb_rank_imbalance']:.2f} x the mean"),
            (f"EPLB with {s['eplb_slots']} slots gains", f"{s['eplb_gain_us']:,.1f} µs"),
        ]
    lines += [("a cell", f"{step} rank{'s' * (step > 1)}; darkest {darkest:,.0f} bytes")]
    for number, (name, value) in enumerate(lines):
        y = _TOP + 14 + 38 * number
        yield _text(_TEXT, y, name)
        yield _text(_TEXT, y + 17, value, size=14, fill=_INK)


def _title(result: RouteResult) -> str:
    s = result.summary
    return f"{s['tokens']:,} tokens, top {s['topk']} of {s['experts']} experts, {s['ranks']} ranks"


def _text(x: float, y: float, text: str, *, size: int = 12, fill: str = _GREY, anchor: str = "start") -> str:
    look = f'font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{html.escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="#999" stroke-width="0.5"/>'
