"""A routing result as JSON, as a workbook, as a picture."""

from __future__ import annotations

import html
import io
import zipfile
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import orjson
import pandas as pd
from openpyxl import Workbook
from openpyxl.styles import Font
from openpyxl.utils import get_column_letter

from tracelens.analysis.route import RouteResult
from tracelens.errors import UsageError
from tracelens.whole import whole_file

#: A matrix of more ranks is joined to blocks before it is drawn or written.
_MOST_CELLS = 128
_EPOCH = datetime(1980, 1, 1)


def route_json(result: RouteResult) -> str:
    """All figures and frames; the traffic matrix in bytes."""
    return orjson.dumps(result.to_dict(), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2).decode()


def write_route(result: RouteResult, path: Path) -> None:
    """Writes ``path`` whole or not at all, in the format of its ending. UsageError for another ending."""
    content = _WRITERS[refuse_unknown([path])[0]](result)
    with whole_file(path) as file:
        file.write(content)


def refuse_unknown(paths: Sequence[Path]) -> list[str]:
    """The endings of ``paths``; UsageError for one that nothing writes."""
    for path in paths:
        if path.suffix not in _WRITERS:
            raise UsageError(f"{path}: a routing result is written as {', '.join(_WRITERS)}")
    return [path.suffix for path in paths]


def _json(result: RouteResult) -> bytes:
    return route_json(result).encode() + b"\n"


def _xlsx(result: RouteResult) -> bytes:
    """One sheet per frame, the summary first, the traffic last; no date inside, so equal results are equal files."""
    summary = pd.DataFrame({"figure": list(result.summary), "value": list(result.summary.values())})
    matrix = result.traffic.wire_bytes
    if len(matrix) <= _MOST_CELLS:
        traffic = pd.DataFrame(matrix, columns=[f"to {rank}" for rank in range(len(matrix))])
        traffic.insert(0, "from", [f"rank {rank}" for rank in range(len(matrix))])
    else:
        source, target = np.nonzero(matrix >= np.partition(matrix.ravel(), -10_000)[-10_000])
        traffic = pd.DataFrame({"from": source, "to": target, "bytes": matrix[source, target]})
    workbook = Workbook()
    workbook.remove(workbook.worksheets[0])
    workbook.properties.creator = "tracelens"
    workbook.properties.created = workbook.properties.modified = _EPOCH
    for title, frame in {"summary": summary, **result.frames, "traffic_bytes": traffic}.items():
        sheet = workbook.create_sheet(title)
        sheet.append(list(frame.columns))
        for row in frame.itertuples(index=False):
            sheet.append([value.item() if isinstance(value, np.generic) else value for value in row])
        for cell in sheet[1]:
            cell.font = Font(bold=True)
        for number, name in enumerate(frame.columns, 1):
            sheet.column_dimensions[get_column_letter(number)].width = max(12, len(str(name)) + 2)
        sheet.freeze_panes = "B2"
    raw, dateless = io.BytesIO(), io.BytesIO()
    workbook.save(raw)
    with zipfile.ZipFile(raw) as source_zip, zipfile.ZipFile(dateless, "w", zipfile.ZIP_DEFLATED) as target_zip:
        for name in source_zip.namelist():
            content = source_zip.read(name)
            if name == "docProps/core.xml":
                content = _without_time(content)
            target_zip.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return dateless.getvalue()


def _without_time(core: bytes) -> bytes:
    """openpyxl writes the time of saving whatever the properties say."""
    begin, end = core.find(b"<dcterms:modified"), core.find(b"</dcterms:modified>")
    if begin < 0 or end < 0:
        return core
    inside = core.find(b">", begin) + 1
    return core[:inside] + b"1980-01-01T00:00:00Z" + core[end:]


def _svg(result: RouteResult) -> bytes:
    """Traffic from rank to rank as a heat map, what each rank receives as bars beside it."""
    matrix = result.traffic.wire_bytes
    step = -(-len(matrix) // _MOST_CELLS)
    edges = np.arange(0, len(matrix), step)
    blocks = np.add.reduceat(np.add.reduceat(matrix, edges, axis=0), edges, axis=1)
    received = np.add.reduceat(result.frames["ranks"].routings.to_numpy(float), edges)
    n, side = len(blocks), 480.0
    cell = side / n
    top = float(blocks.max()) or 1.0
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 600" font-family="sans-serif" font-size="13">',
        '<rect width="900" height="600" fill="white"/>',
        f'<text x="60" y="30" font-size="16">{html.escape(_title(result))}</text>',
        '<text x="60" y="52" fill="#555">dispatch bytes, from rank (down) to rank (right)</text>',
        '<text x="580" y="52" fill="#555">routings per rank; line: mean</text>',
    ]
    for row in range(n):
        for column in range(n):
            depth = int(255 - 200 * blocks[row, column] / top)
            x, y = 60 + column * cell, 64 + row * cell
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.2f}" width="{cell:.2f}" height="{cell:.2f}" fill="rgb({depth},{depth},255)">'
                f"<title>{row * step} to {column * step}: {blocks[row, column]:,.0f} bytes</title></rect>"
            )
    longest = float(received.max()) or 1.0
    for row in range(n):
        width = 290 * received[row] / longest
        y = 64 + row * cell
        parts.append(f'<rect x="580" y="{y:.2f}" width="{width:.2f}" height="{0.85 * cell:.2f}" fill="#3b6ea5"/>')
    mean = 580 + 290 * float(received.mean()) / longest
    parts.append(f'<line x1="{mean:.1f}" x2="{mean:.1f}" y1="60" y2="{64 + side:.0f}" stroke="#c0392b"/>')
    parts.append(f'<text x="60" y="570" fill="#555">{step} rank(s) per cell; darkest {top:,.0f} bytes</text></svg>')
    return "\n".join(parts).encode()


def _title(result: RouteResult) -> str:
    s = result.summary
    return f"{s['tokens']:,} tokens, top {s['topk']} of {s['experts']} experts, {s['ranks']} ranks"


_WRITERS: dict[str, Callable[[RouteResult], bytes]] = {".json": _json, ".xlsx": _xlsx, ".svg": _svg}
