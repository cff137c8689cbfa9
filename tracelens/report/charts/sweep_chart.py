"""The plot of a sweep: a bar per configuration, as a picture that stands alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracelens.report.html.markup import Markup, tag

if TYPE_CHECKING:
    import pandas as pd

_WIDTH, _LABELS, _FIGURES, _ROW, _TOP = 980.0, 300.0, 150.0, 22.0, 46.0
_FITS, _DOES_NOT = "#4F81BD", "#C9C9C9"
_FONT = "font: 12px sans-serif; fill: #222"


def sweep_chart(table: pd.DataFrame, names: Sequence[str], title: str) -> str:
    """Tokens per second and GPU of every row of ``table``, labelled with its ``names``; gray where it does not fit, a
    reason where there is none.
    """
    most = float(table["tokens_s_gpu"].max(skipna=True)) if len(table) else 0.0
    height = _TOP + _ROW * len(table) + 14
    rows = [_row(row, names, at, most) for at, row in enumerate(table.to_dict("records"))]
    heading = tag("text", f"{title}: tokens/s/GPU (gray: does not fit)", x=10, y=24, style="font: bold 14px sans-serif")
    return tag(
        "svg", heading, rows, xmlns="http://www.w3.org/2000/svg", width=_WIDTH, height=height,
        viewBox=f"0 0 {_WIDTH:g} {height:g}", role="img", aria_label=title,
    )  # fmt: skip


def _row(row: Mapping[Any, Any], names: Sequence[str], at: int, most: float) -> Markup:
    label = ", ".join(f"{name.replace('_', ' ')} {_plain(row[name])}" for name in names)
    y = _TOP + _ROW * at
    value = row["tokens_s_gpu"]
    pieces = [tag("text", label, x=_LABELS - 8, y=y + 14, text_anchor="end", style=_FONT)]
    if isinstance(value, float) and value == value:
        width = max((_WIDTH - _LABELS - _FIGURES) * value / most, 1.0) if most else 1.0
        fits = not isinstance(row["does_not_fit"], str)
        pieces.append(tag("rect", x=_LABELS, y=y + 3, width=width, height=_ROW - 6, fill=_FITS if fits else _DOES_NOT))
        figures = f"{value:,.0f}  ({row['memory_gb']:,.0f} GB)"
        pieces.append(tag("text", figures, x=_LABELS + width + 6, y=y + 14, style=_FONT))
    else:
        pieces.append(tag("text", str(row["reason"])[:90], x=_LABELS, y=y + 14, style=_FONT))
    return tag("g", pieces)


def _plain(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
