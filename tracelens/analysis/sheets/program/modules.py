"""Device and host time per nn.Module, added up over equal paths; per annotated range where no modules were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.host_paths import Paths, Scopes, around_launches, module_class
from tracelens.analysis.attribution.steps import is_step_annotation
from tracelens.analysis.attribution.training_phases import BACKWARD, FORWARD, PHASES, RECOMPUTE, Phases
from tracelens.analysis.intervals import Ints
from tracelens.schema import column_set, count, identifier, percent, sheet, text, us
from tracelens.trace.extended import has_host_time
from tracelens.trace.table import Kind, TraceTable
from tracelens.trace.tree import MODULE_PREFIX, OpTree
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext

NO_MODULE = "(in no module)"


COLUMNS = column_set(
    text(
        "module",
        "module",
        "Classes of the modules, outermost first, their instances taken together; annotated ranges where no "
        "modules were recorded.",
        70,
    ),
    text("class", "class", "Innermost module class."),
    identifier("depth", "depth", "Nesting depth: number of modules around it."),
    count("instances", "instances", "Distinct modules of the row."),
    count("calls", "calls", "Number of their calls."),
    us("host_us", "host time (µs)", "From start to end of the calls on the host."),
    us(
        "kernel_us",
        "kernel time (µs)",
        "Kernel time of everything they launched, including modules inside them and the backward pass.",
    ),
    us(
        "self_us",
        "self kernel time (µs)",
        "Kernel time without the modules inside them; the column adds up to all kernel time.",
    ),
    us("forward_us", "forward (µs)", "Part of the kernel time: first runs of the forward pass."),
    us("recompute_us", "recompute (µs)", "Part of the kernel time: forward repeated by checkpointing."),
    us("backward_us", "backward (µs)", "Part of the kernel time: backward of the ops that ran in them."),
    percent("percent", "percent (%)", "Kernel time as a share of all kernel time."),
)


@sheet("modules", columns=COLUMNS, order=44, json=120)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Time per path of nn.Module classes, parents before the modules inside them."""
    phases = context.attribution.phases
    return modules(context.trace.table, context.trace.tree, context.activity, phases, context.window.stem)


def modules(
    table: TraceTable, tree: OpTree, activity: DeviceActivity, phases: Phases, step_stem: str
) -> pd.DataFrame | None:
    """One row per path of module classes (``Model/Block/Linear``), parents before what is in them, by time.

    ``kernel_us`` sums the durations of device events launched in the module or below it, and by backward ops of what
    it ran; ``self_us`` without the modules in it. The row of no module keeps the rest, so that ``self_us`` adds up to
    all device time. None without modules and without annotated ranges.
    """
    import pandas as pd

    order = tree.order
    kind = table.kind[order]
    named = np.array([name.startswith(MODULE_PREFIX) for name in table.names] or [False], bool)
    is_scope = (kind == Kind.PYTHON_FUNCTION) & named[table.name[order]]
    if not is_scope.any():
        step = np.array([is_step_annotation(name, step_stem) for name in table.names] or [False], bool)
        is_scope = (kind == Kind.USER_ANNOTATION) & ~step[table.name[order]]
    if not is_scope.any():
        return None
    scopes = Scopes(tree, is_scope)
    name = table.name[scopes.rows]
    classes: dict[str, int] = {}
    class_of = np.array(
        [
            classes.setdefault(module_class(name), len(classes)) if scope else -1
            for name, scope in zip(table.names, np.isin(np.arange(len(table.names)), name).tolist(), strict=True)
        ],
        np.int64,
    )
    paths = Paths()
    path = paths.of(np.arange(len(scopes)), scopes.above, class_of[name])
    n, parent = len(paths), np.array(paths.parent)
    scope = around_launches(tree, scopes, tree.launch[activity.rows])
    owner = np.where(scope >= 0, path[scope], 0)
    own = np.zeros((len(PHASES), n), np.int64)
    np.add.at(own, (phases.phase, owner), activity.duration)
    total = own.copy()
    for child in range(n - 1, 0, -1):
        total[:, parent[child]] += total[:, child]
    calls = np.bincount(path, minlength=n)
    host = np.zeros(n, np.int64)
    np.add.at(host, path, np.where(has_host_time(table, scopes.rows), table.duration_ns[scopes.rows], 0))
    instances = np.bincount(np.unique(path << 32 | name) >> 32, minlength=n)
    names = list(classes)
    depth = [len(paths.codes_of(i)) - 1 for i in range(n)]
    texts = ["/".join(names[code] for code in reversed(paths.codes_of(i))) for i in range(n)]
    shown = _by_time(parent, total.sum(axis=0), texts)
    everything = max(int(total[:, 0].sum()), 1)
    # Path 0 stands for what is in no module: nothing is below it
    total[:, 0] = own[:, 0]
    if own[:, 0].any():
        shown.append(0)

    def counted(values: list[int]) -> Any:
        return pd.array([None if i == 0 else value for i, value in zip(shown, values, strict=True)], "Int64")

    return pd.DataFrame(
        {
            "module": [texts[i] if i else NO_MODULE for i in shown],
            "class": [names[paths.code[i]] if i else None for i in shown],
            "depth": counted([depth[i] for i in shown]),
            "instances": counted(instances[shown].tolist()),
            "calls": counted(calls[shown].tolist()),
            "host_us": np.where(np.array(shown) > 0, host[shown] / NS_PER_US, np.nan),
            "kernel_us": total.sum(axis=0)[shown] / NS_PER_US,
            "self_us": own.sum(axis=0)[shown] / NS_PER_US,
            **{
                f"{phase}_us": total[PHASES.index(phase)][shown] / NS_PER_US for phase in (FORWARD, RECOMPUTE, BACKWARD)
            },
            "percent": 100 * total.sum(axis=0)[shown] / everything,
        }
    )


def _by_time(parent: Ints, time: Ints, texts: list[str]) -> list[int]:
    """Every path but the empty one, parents before children, siblings by time."""
    below: dict[int, list[int]] = {}
    for child, above in enumerate(parent.tolist()):
        below.setdefault(above, []).append(child)
    found, waiting = [], [0]
    while waiting:
        path = waiting.pop()
        found.append(path)
        waiting += sorted(below.get(path, ()), key=lambda i: (time[i], texts[i]))
    return found[1:]
