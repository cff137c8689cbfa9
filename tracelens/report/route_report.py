"""A routing result as text, JSON, a workbook, a page or a picture of who sends to whom."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
from numpy.typing import NDArray

from tracelens.errors import UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.documents import json_encoded
from tracelens.predict.routing.exchange import RouteResult
from tracelens.report.document import Document, section, table
from tracelens.report.export import meanings
from tracelens.report.markup import Markup, tag
from tracelens.types.units import counted, shown_figure, shown_percent

#: What a reader should know of times that no measurement stands behind.
UNMEASURED = (
    "The expected error is unknown: links run at their rates, without the kernels of a library. "
    "`tracelens estimate ep` uses measured kernels of DeepEP."
)
#: The same of a mesh, whose links and delays are the original simulator's.
MESH = (
    "packets on a full mesh with the parameters of the original simulator, not a network of today: "
    "give --cluster, e.g. dgx-h100"
)


def route_text(result: RouteResult) -> str:
    """Loads, the time of each phase, what an uneven load costs, and what EPLB would gain."""
    s = result.summary
    reach = f"a token goes to {s['mean_ranks']:.2f} ranks on {s['mean_nodes']:.2f} nodes on average"
    busiest = f"busiest expert {s['expert_imbalance']:.2f} x, busiest rank {s['rank_imbalance']:.2f} x the mean"
    where = (
        f"{counted(s['tokens'], 'token')}, top {s['topk']} of {s['experts']} experts on {counted(s['ranks'], 'rank')}"
    )
    lines = [
        *_assumed(s),
        f"{where}: {reach}",
        f"{busiest}; {100 * s['remote_share']:.1f} % of the traffic leaves its rank",
    ]
    if s["dropped_share"]:
        lines.append(f"{100 * s['dropped_share']:.1f} % of the routings are dropped")
    if "time_ms" in s:
        lines.append(
            f"dispatch {s['time_ms']:.2f} ms, {s['rounds']} rounds, {s['packets']:,} packets, "
            f"{s['moved_bytes']:,.0f} bytes moved, {s['local_bytes']:,.0f} local ({s['rules']} rules)"
        )
        lines.append(f"an even load would take {s['even_ms']:.2f} ms{_by_formula(s)}")
        if "combine_ms" in s:
            lines.append(f"combine {s['combine_ms']:.2f} ms")
        if s["layers"] > 1:
            lines.append(f"{s['layers']} layers {s['layers_ms']:.2f} ms")
        lines.append(MESH)
        return "\n".join(lines)
    for row in result.frames["phases"].to_dict(orient="records"):
        lines.append(
            f"{row['phase']:8} {row['time_us']:,.1f} µs in {row['dtype']}; GB/s per rank: effective "
            f"{row['logical_effective_gb_s']:.1f} logical "
            f"and {row['remote_effective_gb_s']:.1f} remote-only; true {row['logical_true_gb_s']:.1f} and "
            f"{row['remote_true_gb_s']:.1f}; busiest port {row['hottest']}"
        )
        if row.get("collective_us"):
            lines.append(f"         all-to-all ({row['collective']}): {row['collective_us']:,.1f} µs")
    added = s["imbalance_us"]
    is_slower = f"imbalance adds {added:,.1f} µs to dispatch and combine"
    lines.append(is_slower if added >= 0 else f"as many copies to every rank would take {-added:,.1f} µs more")
    gain = s["eplb_gain_us"]
    lines.append(
        f"EPLB with {s['eplb_slots']} slots: busiest rank {s['eplb_rank_imbalance']:.2f} x the mean, "
        f"{abs(gain):,.1f} µs {'less' if gain >= 0 else 'more'}"
    )
    lines.append(UNMEASURED)
    if "layers_us" in s:
        lines.append(f"all layers and steps {s['layers_us']:,.1f} µs")
    if "comparison" in result.frames:
        lines += _compared_lines(result)
    return "\n".join(lines)


def _assumed(s: dict[str, Any]) -> list[str]:
    if "assumed_cluster" not in s:
        return []
    return [f"assumed: {s['assumed_cluster']} (--cluster names another, --rules mesh simulates packets on a full mesh)"]


def _by_formula(s: dict[str, Any]) -> str:
    """The closed form beside the simulation, and under the original's rules the one that its text prints as well."""
    if "formula_ms" not in s:
        return ""
    at_least = "" if s["formula_is_exact"] else " at least, its conditions do not hold:"
    rounds = f"{s['formula_rounds']:.4g} rounds of {s['formula_round_ms']:.4g} ms"
    text = f"; by the closed form{at_least} {s['formula_ms']:.2f} ms ({rounds})"
    if "printed_ms" in s:
        text += (
            f"; the original's text also prints rounds of {s['printed_round_ms']:.4g} ms, "
            f"in all {s['printed_ms']:.2f} ms, which its simulation contradicts"
        )
    return text


def _compared_lines(result: RouteResult) -> list[str]:
    """One line per op: the mean over its calls in all traces; a call without sizes has no prediction."""
    from tracelens.files.safe_text import terminal_text

    lines = []
    for op, rows in result.frames["comparison"].groupby("op", sort=True):
        sized = rows[rows.predicted_us.notna()]
        shown = rows if sized.empty else sized
        calls = shown.calls.sum()
        measured, predicted = ((shown[f"{name}_us"] * shown.calls).sum() / calls for name in ("measured", "predicted"))
        lines.append(
            f"{terminal_text(str(op))}: {calls} calls in {shown.trace.nunique()} traces, measured {measured:,.1f} µs "
            f"(waiting included), "
            + (
                "not predicted: no sizes"
                if sized.empty
                else f"predicted {predicted:,.1f} µs, {measured / predicted:.2f} x"
            )
        )
    return lines


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
    cells, top = len(blocks), float(blocks.max(initial=0)) or 1.0
    cell, every = _SIDE / cells, max(1, -(-cells // 8))
    for (row, column), nbytes in np.ndenumerate(blocks):
        x, y = _LEFT + column * cell, _TOP + row * cell
        yield (
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{cell:.2f}" height="{cell:.2f}" fill="{_BLUE}" '
            f'fill-opacity="{nbytes / top:.3f}">'
            f"<title>{row * step} to {column * step}: {nbytes:,.0f} bytes</title></rect>"
        )
    # Rank numbers at both sides, at most eight
    for index in range(0, cells, every):
        middle = (index + 0.5) * cell
        yield _text(_LEFT - 6, _TOP + middle + 4, str(index * step), anchor="end")
        yield _text(_LEFT + middle, _TOP - 4, str(index * step), anchor="middle")
    per_node = result.summary.get("ranks_per_node") or len(ranks)
    # Lines between nodes, up to 32 of them
    for border in range(per_node, len(ranks), per_node) if 1 < len(ranks) // per_node <= 32 else ():
        at = _SIDE * border / len(ranks)
        yield _line(_LEFT + at, _TOP, _LEFT + at, _TOP + _SIDE)
        yield _line(_LEFT, _TOP + at, _LEFT + _SIDE, _TOP + at)
    after = "routings_eplb" if "routings_eplb" in ranks else None
    routings = np.add.reduceat(ranks.routings.to_numpy(float), edges)
    balanced = None if after is None else np.add.reduceat(ranks[after].to_numpy(float), edges)
    yield from _bars(routings, balanced)


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
        ("imbalance adds", f"{s[f'imbalance_{unit}']:,.1f} {word}"),
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


def route_page(result: RouteResult) -> bytes:
    """Who sends to whom, how evenly, and what it costs."""
    figures, title = result.summary, _title(result)
    unit, word = ("ms", "ms") if "time_ms" in figures else ("us", "µs")
    tiles = [
        *(
            (str(row["phase"]).capitalize(), f"{shown_figure(row[f'time_{unit}'])} {word}", "until the last packet")
            for row in result.frames["phases"].to_dict("records")
        ),
        ("Imbalance", f"{shown_figure(figures[f'imbalance_{unit}'], 3)} {word}", "more than an even load"),
        ("A token reaches", f"{figures['mean_ranks']:.2f} ranks", f"on {figures['mean_nodes']:.2f} nodes"),
        ("Leaves its rank", shown_percent(figures["remote_share"]), "of the bytes"),
        ("Busiest expert", f"{figures['expert_imbalance']:.2f} x", "the mean"),
        ("Busiest rank", f"{figures['rank_imbalance']:.2f} x", "the mean"),
    ]
    # The matrix and the bars below it, without title and figures
    shape = f"0 {_TOP - 22:g} {_LEFT + _SIDE + 10:g} {_SIDE + _BARS + 60:g}"
    name = f"{title}: who sends how much to whom"
    svg = "\n".join((f'<svg viewBox="{shape}" role="img" aria-label="{name}">', *_matrix(result), "</svg>"))
    drawn = tag("div", Markup(svg), class_="wide picture square", tabindex="0")
    most = blocks_of(result)[0].max(initial=0)
    said = f"Bytes of the dispatch from rank (down) to rank (right); the darkest cell is {most:,.0f} bytes."
    traffic = section("traffic", "Traffic", tag("p", said), drawn)
    tables = [section(f"table-{name}", name.capitalize(), table(each, name)) for name, each in result.frames.items()]
    notes = [*_assumed(figures), *([UNMEASURED] if "expected_error_percent" in figures else [])]
    return Document(title=title, kind="routing", tiles=tiles, notes=notes, sections=[traffic, *tables]).page()


#: Of a larger traffic matrix as many pairs are written.
_MOST_PAIRS = 10_000


def route_json(result: RouteResult) -> str:
    """All figures and frames; the traffic matrix in bytes."""
    return json_encoded(result.to_dict(), orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2).decode()


def write_route(result: RouteResult, path: Path) -> None:
    """Writes ``path`` whole or not at all, in the format of its ending. UsageError for another ending."""
    write_whole(path, _WRITERS[refuse_unknown([path])[0]](result))


def refuse_unknown(paths: Sequence[Path]) -> list[str]:
    """The endings of ``paths``; UsageError for one that nothing writes."""
    for path in paths:
        if path.suffix not in _WRITERS:
            raise UsageError(f"{path}: the name of a routing result must end in {', '.join(_WRITERS)}")
    return [path.suffix for path in paths]


def _traffic_frame(result: RouteResult) -> pd.DataFrame:
    """The matrix; of more than ``MOST_CELLS`` ranks the pairs with most bytes."""
    matrix = result.traffic.wire_bytes
    if len(matrix) <= MOST_CELLS:
        traffic = pd.DataFrame(matrix, columns=[f"to {rank}" for rank in range(len(matrix))])
        traffic.insert(0, "from", [f"rank {rank}" for rank in range(len(matrix))])
        return traffic
    source, target = np.nonzero(matrix >= np.partition(matrix.ravel(), -_MOST_PAIRS)[-_MOST_PAIRS])
    return pd.DataFrame({"from": source, "to": target, "bytes": matrix[source, target]})


def _workbook(result: RouteResult) -> bytes:
    """One sheet per frame, the summary first, the traffic last."""
    from tracelens.report.workbook import tables_xlsx

    known = meanings("route")
    rows = [(key, value, known.get(key, "")) for key, value in result.summary.items()]
    summary = pd.DataFrame(rows, columns=["figure", "value", "meaning"], dtype=object)
    return tables_xlsx({"summary": summary, **result.frames, "traffic_bytes": _traffic_frame(result)}, known)


_WRITERS: dict[str, Callable[[RouteResult], bytes]] = {
    ".json": lambda result: route_json(result).encode() + b"\n",
    ".xlsx": _workbook,
    ".svg": lambda result: picture(result).encode(),
    ".html": route_page,
}
