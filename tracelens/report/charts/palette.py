"""The colors of the pages, for pictures that stand alone."""

from __future__ import annotations

#: By Okabe and Ito, to be told apart by color-blind readers too; the last ones are for what is left.
COLORS = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#7a5ca8", "#a3a02f", "#8b95a3", "#4d5866",
)  # fmt: skip
