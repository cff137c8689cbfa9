"""Device time per Python call stack, where stacks were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.host_scopes import Paths, Scopes, around_launches, frame_text, reached
from tracelens.analysis.intervals import Ints
from tracelens.analysis.sheets.shared_columns import DURATIONS
from tracelens.lazy.patterns import lazy_pattern
from tracelens.schema import column_set, count, percent, sheet, text, us
from tracelens.trace.table import Kind, TraceTable
from tracelens.trace.tree import MODULE_PREFIX, OpTree
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext

#: Stacks that are shown, by device time; the row of the rest adds them up.
MAX_STACKS = 200
#: Frames of a stack that are shown, the innermost first.
MAX_FRAMES = 40
OTHER_STACKS, NO_STACK = "(other stacks)", "(no Python frames)"

# Frames of the framework rather than of the program: "torch/nn/modules/linear.py(130): forward", "<built-in ...>",
# "<frozen ...>"; site-packages are cut off by the profiler.
_FRAMEWORK = lazy_pattern(r"^(?:<|torch/|.*/torch/|nn\.Module: |PyCapsule|threading\.py|runpy\.py|contextlib\.py)")


COLUMNS = column_set(
    text("line", "Innermost frame outside the framework.", width=56),
    text("stack", "Python frames, the innermost first; backward work has those of its forward op.", width=90),
    count("kernels", "Device events launched from this stack."),
    us("kernel_us", DURATIONS),
    percent("percent_of_kernels", "Share of all kernel time."),
)


@sheet("call_stacks", columns=COLUMNS, order=66, json=130)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Device time per Python call stack; the 200 with most of it, then the rest."""
    return call_stacks(context.trace.table, context.trace.tree, context.activity)


def call_stacks(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> pd.DataFrame | None:
    """One row per distinct stack of Python frames that launched device work; None without recorded frames.

    Work of the backward pass counts for the stack of its forward op. ``kernel_us`` sums durations: with the rows of
    what has no frames and of the smaller stacks, it adds up to all device time.
    """
    import pandas as pd

    found = _stacks(table, tree, activity)
    if found is None:
        return None
    paths, names, owner = found
    total = np.zeros(len(paths), np.int64)
    np.add.at(total, owner, activity.duration)
    kernels = np.bincount(owner, minlength=len(paths))
    with_time = np.flatnonzero(kernels)
    with_time = with_time[with_time > 0]
    shown = with_time[np.lexsort((with_time, -total[with_time]))]
    shown, small = shown[:MAX_STACKS], shown[MAX_STACKS:]
    rows = []
    for i in shown.tolist():
        stack = [names[code] for code in paths.codes_of(i)]
        rows.append((_own_line(stack), " <- ".join(stack[:MAX_FRAMES]), int(kernels[i]), int(total[i])))
    rows.sort(key=lambda row: (-row[3], row[1]))
    if len(small):
        rows.append((None, OTHER_STACKS, int(kernels[small].sum()), int(total[small].sum())))
    if kernels[0]:
        rows.append((None, NO_STACK, int(kernels[0]), int(total[0])))
    result = pd.DataFrame(rows, columns=["line", "stack", "kernels", "kernel_us"])
    result["percent_of_kernels"] = 100 * result["kernel_us"] / max(int(total.sum()), 1)
    result["kernel_us"] = result["kernel_us"] / NS_PER_US
    return result


def lines_of_events(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> Labels | None:
    """The line of each device event: the innermost frame outside the framework, "" without one; None without frames."""
    found = _stacks(table, tree, activity)
    if found is None:
        return None
    paths, names, owner = found
    distinct, inverse = np.unique(owner, return_inverse=True)
    lines = [_own_line([names[code] for code in paths.codes_of(path)]) or "" for path in distinct.tolist()]
    return Labels.of(inverse.reshape(-1), lines)


def _own_line(stack: list[str]) -> str | None:
    return next((text for text in stack if not _FRAMEWORK.match(text)), None)


def _stacks(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> tuple[Paths, list[str], Ints] | None:
    """(distinct stacks, texts of their codes, the stack of each device event); None without recorded frames."""
    order = tree.order
    named = np.array([not name.startswith(MODULE_PREFIX) for name in table.names] or [False], bool)
    is_frame = (table.kind[order] == Kind.PYTHON_FUNCTION) & named[table.name[order]]
    if not is_frame.any():
        return None
    frames = Scopes(tree, is_frame & reached(tree, tree.launch[activity.rows]))
    frame = around_launches(tree, frames, tree.launch[activity.rows])
    paths = Paths()
    texts: dict[str, int] = {}
    code_of = np.array([texts.setdefault(frame_text(name), len(texts)) for name in table.names], np.int64)
    # One more at the end, which index -1 reaches: path 0 is the empty one
    path = np.append(paths.of(frame[frame >= 0], frames.above, code_of[table.name[frames.rows]]), 0)
    return paths, list(texts), path[frame]
