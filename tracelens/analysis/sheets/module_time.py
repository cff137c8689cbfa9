"""Sheets of device time by place in the program: per nn.Module and per Python call stack."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution import host_scopes
from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.steps import is_step_annotation
from tracelens.analysis.grouping import first_of_each, last_begun, numbered
from tracelens.analysis.intervals import Bools, Ints
from tracelens.analysis.sheets import built_in, sheet_rows
from tracelens.trace.table import XLA_PROGRAMS, Kind, RowColumn, TraceTable, has_host_time
from tracelens.trace.tree import MODULE_PREFIX, OpTree
from tracelens.types.records import Record, pd
from tracelens.types.units import NS_PER_US, US_PER_S

if TYPE_CHECKING:
    from tracelens.analysis.sheets.context import SheetContext
    from tracelens.trace.reading.compiled_code import Compilation, CompiledKernel


NO_MODULE = "(in no module)"
# "jit_train_step(8217364)": the same program compiled again has another number.
_FINGERPRINT = re.compile(r"\(\d++\)\Z")


@built_in("modules")
def module_time_frame(context: SheetContext) -> pd.DataFrame | None:
    """Time by path of nn.Module classes, parents first."""
    phases, stem = context.attribution.phases, context.window.stem
    table, tree, activity = context.trace.table, context.trace.tree, context.activity
    programs = table.ranges_on(XLA_PROGRAMS)
    if len(programs) and (tree.launch[activity.rows] < 0).all():
        return _programs(table, activity, programs[context.in_scope(programs)])
    return modules(table, tree, activity, phases, stem, context.in_scope)


class ModulePaths(Record, frozen=True, kw_only=True, eq=False):
    """``scopes``: the modules (or annotated ranges) of a trace; ``path``: of each its path of ``classes``.

    ``of_launch``: the path in which each launch lies, 0 for none.
    """

    scopes: host_scopes.Scopes
    paths: host_scopes.Paths
    path: Ints
    classes: Sequence[str]
    of_launch: Ints

    def text(self, path: int) -> str:
        """``Model/Block/Linear``; empty for path 0, and of a deep path the innermost modules."""
        return host_scopes.path_text(
            [self.classes[code] for code in self.paths.codes_of(path, host_scopes.MAX_MODULES + 1)]
        )


def module_paths(table: TraceTable, tree: OpTree, launches: RowColumn, step_stem: str) -> ModulePaths | None:
    """None without modules and without annotated ranges but the steps'."""
    scopes = _scopes(table, tree, step_stem)
    if scopes is None:
        return None
    name = table.name[scopes.rows]
    number: dict[str, int] = {}
    class_of = np.full(len(table.names), -1, np.int64)
    for code in np.unique(name).tolist():
        class_of[code] = number.setdefault(host_scopes.module_class(table.names[code]), len(number))
    paths = host_scopes.Paths()
    path = paths.of(np.arange(len(scopes)), scopes.above, class_of[name])
    scope = host_scopes.around_launches(tree, scopes, launches)
    of_launch = np.where(scope >= 0, path[scope], 0)
    return ModulePaths(scopes=scopes, paths=paths, path=path, classes=list(number), of_launch=of_launch)


def modules(
    table: TraceTable, tree: OpTree, activity: DeviceActivity, phases: host_scopes.Phases, step_stem: str,
    in_scope: Callable[[RowColumn], Bools] | None = None,
) -> pd.DataFrame | None:  # fmt: skip
    """One row per path of module classes (``Model/Block/Linear``), parents before what is in them, by time.

    ``kernel_us`` sums the durations of device events launched in the module or below it, and by backward ops of what
    it ran; ``kernel_self_us`` without the modules in it. The row of no module keeps the rest, so that
    ``kernel_self_us`` adds up to all device time. ``in_scope``: which calls count; None for all. None without modules
    and without annotated ranges.
    """
    found = module_paths(table, tree, tree.launch[activity.rows], step_stem)
    if found is None:
        return None
    scopes, paths, path, classes = found.scopes, found.paths, found.path, found.classes
    n, parent = len(paths), np.array(paths.parent)
    own = np.zeros((len(host_scopes.PHASES), n), np.int64)
    np.add.at(own, (phases.phase, found.of_launch), activity.duration)
    total = own.copy()
    for child in range(n - 1, 0, -1):
        total[:, parent[child]] += total[:, child]
    called = np.ones(len(path), bool) if in_scope is None else in_scope(scopes.rows)
    host, rows, path = np.zeros(n, np.int64), scopes.rows[called], path[called]
    np.add.at(host, path, np.where(has_host_time(table, rows), table.duration_ns[rows], 0))
    depth = np.full(n, -1)
    for child in range(1, n):
        depth[child] = depth[parent[child]] + 1
    texts = [found.text(i) for i in range(n)]
    calls = np.bincount(path, minlength=n)
    time = total.sum(axis=0)
    shown = _by_time(parent, np.where((calls > 0) | (time > 0), time, -1), texts)
    everything = max(int(total[:, 0].sum()), 1)
    # Path 0 stands for what is in no module: nothing is below it
    total[:, 0] = own[:, 0]
    if own[:, 0].any():
        shown.append(0)

    def counted(values: Ints) -> Any:
        return pd.array([int(values[i]) if i else None for i in shown], "Int64")

    return pd.DataFrame(
        {
            "module": [texts[i] if i else NO_MODULE for i in shown],
            "class": [classes[paths.code[i]] if i else None for i in shown],
            "depth": counted(depth),
            "instances": counted(np.bincount(np.unique(path << 32 | table.name[rows]) >> 32, minlength=n)),
            "calls": counted(calls),
            "host_us": np.where(np.array(shown) > 0, host[shown] / NS_PER_US, np.nan),
            "kernel_us": total.sum(axis=0)[shown] / NS_PER_US,
            "kernel_self_us": own.sum(axis=0)[shown] / NS_PER_US,
            **{
                f"{phase}_us": total[host_scopes.PHASES.index(phase)][shown] / NS_PER_US
                for phase in (host_scopes.FORWARD, host_scopes.RECOMPUTE, host_scopes.BACKWARD)
            },
            "percent_of_kernels": 100 * total.sum(axis=0)[shown] / everything,
        }
    )


def _programs(table: TraceTable, activity: DeviceActivity, runs: RowColumn) -> pd.DataFrame:
    """One row per compiled program, whose ``runs`` on devices XLA's profiler wrote, by what ran there during them."""
    runs = runs[np.lexsort((table.start_ns[runs], table.device[runs]))]
    texts = [_FINGERPRINT.sub("", table.name_of(row)) for row in runs.tolist()]
    names = [*dict.fromkeys(texts), NO_MODULE]
    number = {name: i for i, name in enumerate(names)}
    program, none = np.array([number[text] for text in texts]), len(names) - 1
    of_event = np.full(len(activity), none)
    run = last_begun(table.device[runs], table.start_ns[runs], table.device[activity.rows], activity.start)
    during = (run >= 0) & (np.append(table.ends_ns(runs), 0)[run] > activity.start)
    of_event[during] = program[run[during]]
    total = np.zeros(len(names), np.int64)
    np.add.at(total, of_event, activity.duration)
    calls = np.bincount(program, minlength=len(names))
    frame = pd.DataFrame(
        {
            "module": names,
            "class": [*names[:-1], None],
            "depth": pd.array([*[0] * none, None], "Int64"),
            "instances": pd.array([*[1] * none, None], "Int64"),
            "calls": pd.array([*calls[:-1].tolist(), None], "Int64"),
            "host_us": np.nan,
            "kernel_us": total / NS_PER_US,
            "self_us": total / NS_PER_US,
            **{f"{phase}_us": np.nan for phase in (host_scopes.FORWARD, host_scopes.RECOMPUTE, host_scopes.BACKWARD)},
            "percent": 100 * total / max(int(total.sum()), 1),
        }
    )
    order = sorted(range(none), key=lambda i: (-total[i], names[i]))
    return frame.iloc[[*order, none] if total[none] else order].reset_index(drop=True)


def _scopes(table: TraceTable, tree: OpTree, step_stem: str) -> host_scopes.Scopes | None:
    """Calls of modules; where none were recorded, annotated ranges but the steps'; None without either."""
    kind, name = table.kind[tree.order], table.name[tree.order]

    def wanted(of: Kind, is_named: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        named = np.array([is_named(text) for text in table.names] or [False], bool)
        return (kind == of) & named[name]

    found = wanted(Kind.PYTHON_FUNCTION, lambda text: text.startswith(MODULE_PREFIX))
    if not found.any():
        found = wanted(Kind.USER_ANNOTATION, lambda text: not is_step_annotation(text, step_stem))
    return host_scopes.Scopes(tree, found) if found.any() else None


def _by_time(parent: Ints, time: Ints, texts: list[str]) -> list[int]:
    """Every path but the empty one, parents before children, siblings by time; those of less than 0 are left out."""
    below: dict[int, list[int]] = {}
    for child, above in enumerate(parent.tolist()):
        below.setdefault(above, []).append(child)
    found, waiting = [], [0]
    while waiting:
        path = waiting.pop()
        found.append(path)
        waiting += sorted(below.get(path, ()), key=lambda i: (time[i], texts[i]))
    return [path for path in found[1:] if time[path] >= 0]


#: Stacks that are shown, by device time; the row of the rest adds them up.
MAX_STACKS = 200
#: Frames of a stack that are shown, the innermost first.
MAX_FRAMES = 40
OTHER_STACKS, NO_STACK = "(other stacks)", "(no Python frames)"

# Frames of the framework rather than of the program: "torch/nn/modules/linear.py(130): forward", "<built-in ...>",
# "<frozen ...>"; site-packages are cut off by the profiler.
_FRAMEWORK = re.compile(r"^(?:<|torch/|.*/torch/|nn\.Module: |PyCapsule|threading\.py|runpy\.py|contextlib\.py)")


def call_stacks(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> pd.DataFrame | None:
    """One row per distinct stack of Python frames that launched device work; None without recorded frames.

    Work of the backward pass counts for the stack of its forward op. ``kernel_us`` sums durations: with the rows of
    what has no frames and of the smaller stacks, it adds up to all device time.
    """
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
    rows, lines = [], _own_lines(paths, names)
    for i in shown.tolist():
        stack = " <- ".join(names[code] for code in paths.codes_of(i, MAX_FRAMES))
        rows.append((lines[i], stack, int(kernels[i]), int(total[i])))
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
    lines = _own_lines(paths, names)
    return Labels.of(inverse.reshape(-1), [lines[path] or "" for path in distinct.tolist()])


def _own_lines(paths: host_scopes.Paths, names: list[str]) -> list[str | None]:
    """Of each path the innermost frame outside the framework, None without one."""
    own = [None if _FRAMEWORK.match(text) else text for text in names]
    found: list[str | None] = [None]
    for parent, code in zip(paths.parent[1:], paths.code[1:], strict=True):
        found.append(own[code] or found[parent])
    return found


def _stacks(
    table: TraceTable, tree: OpTree, activity: DeviceActivity
) -> tuple[host_scopes.Paths, list[str], Ints] | None:
    """(distinct stacks, texts of their codes, the stack of each device event); None without recorded frames."""
    order = tree.order
    named = np.array([not name.startswith(MODULE_PREFIX) for name in table.names] or [False], bool)
    is_frame = (table.kind[order] == Kind.PYTHON_FUNCTION) & named[table.name[order]]
    if not is_frame.any():
        return None
    frames = host_scopes.Scopes(tree, is_frame & host_scopes.reached(tree, tree.launch[activity.rows]))
    frame = host_scopes.around_launches(tree, frames, tree.launch[activity.rows])
    paths = host_scopes.Paths()
    texts: dict[str, int] = {}
    code_of = np.array([texts.setdefault(host_scopes.frame_text(name), len(texts)) for name in table.names], np.int64)
    # One more at the end, which index -1 reaches: path 0 is the empty one
    path = np.append(paths.of(frame[frame >= 0], frames.above, code_of[table.name[frames.rows]]), 0)
    return paths, list(texts), path[frame]


#: What the Triton kernels of Inductor are called.
_TRITON = re.compile(r"^triton_(?:poi|per|red|spl|tem|for|unk|mix)_")
#: Ranges that PyTorch puts round the calls of compiled code: by key of the FX graph, and by compilation.
_GRAPH = re.compile(r"^## Call CompiledFxGraph (\w+) ##$")
REGION = re.compile(r"^Torch-Compiled Region: (\S+)$")
COMPILED_KERNELS_TITLE, GRAPH_BREAKS_TITLE = "compiled_kernels", "graph_breaks"
#: ``joined_by`` of kernels that the files do not have.
NOT_JOINED = "not in the files"


def compiled_regions(table: TraceTable, tree: OpTree, pattern: re.Pattern[str]) -> tuple[host_scopes.Scopes, list[str]]:
    """The ranges whose name fits, in preorder, and what the pattern's group is in each."""
    said = {code: found[1] for code, text in enumerate(table.names) if (found := pattern.match(text))}
    name, kind = table.name[tree.order], table.kind[tree.order]
    scopes = host_scopes.Scopes(
        tree, np.isin(name, list(said)) & ((kind == Kind.CPU_OP) | (kind == Kind.USER_ANNOTATION))
    )
    return scopes, [said[code] for code in table.name[scopes.rows].tolist()]


def _compiled_kernels(context: SheetContext) -> pd.DataFrame | None:
    """One row per compiled kernel and the graph in which it ran, by time."""
    code, table, tree, activity = context.options.inductor, context.trace.table, context.trace.tree, context.activity
    if code is None:
        return None
    known: dict[str, list[CompiledKernel]] = {}
    for kernel in code.kernels:
        known.setdefault(kernel.name, []).append(kernel)
    wanted = np.array([text in known or _TRITON.match(text) is not None for text in table.names] or [False], bool)
    at = np.flatnonzero(wanted[activity.name])
    launch = tree.launch[activity.rows[at]]
    is_shared = np.array([len(known.get(text, ())) > 1 for text in table.names] or [False], bool)
    hashes = _hashes(table, tree, launch, is_shared[activity.name[at]])
    places = [*(_ranges_around(table, tree, launch, pattern) for pattern in (_GRAPH, REGION)), hashes]
    group = numbered(activity.name[at], *(which + 1 for _, which in places))
    kernels = np.bincount(group)
    us, total_us = np.bincount(group, activity.duration_us(at)), float(activity.duration_us().sum()) or 1.0
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for i, first in enumerate(first_of_each(group).tolist()):
        place = [texts[which[first]] if which[first] >= 0 else "" for texts, which in places]
        name = table.names[activity.name[at[first]]]
        said = _said_of(*_fitting(known.get(name, []), *place))
        row = rows.setdefault(
            (name, *said.values()),
            {"kernel_name": name, "kernels": 0, "duration_us_sum": 0.0, "percent_of_kernels": 0.0, **said},
        )
        row["kernels"] += int(kernels[i])
        row["duration_us_sum"] += us[i]
        row["percent_of_kernels"] += 100 * us[i] / total_us
    order = ["duration_us_sum", "kernel_name", "graph"]
    frame = pd.DataFrame([*rows.values()])
    return frame.sort_values(order, ascending=[False, True, True], ignore_index=True) if rows else None


def _ranges_around(
    table: TraceTable, tree: OpTree, launch: RowColumn, pattern: re.Pattern[str]
) -> tuple[list[str], Ints]:
    """What the ranges of a pattern say, and which of that is round each launch; -1 for none."""
    scopes, texts = compiled_regions(table, tree, pattern)
    distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    of_scope = np.array([*(distinct[text] for text in texts), -1], np.int64)
    return list(distinct), of_scope[scopes.around(launch)]


def _hashes(table: TraceTable, tree: OpTree, launch: RowColumn, is_wanted: Bools) -> tuple[list[str], Ints]:
    """Hashes of generated code, and which of them each launch has, as PyTorch records it of Triton's; -1 for none."""
    number: dict[str, int] = {}
    which = np.full(len(launch), -1, np.int64)
    for i in np.flatnonzero(is_wanted & (launch >= 0)).tolist():
        around = int(tree.parent[launch[i]])
        found = table.args(around).get("kernel_hash") if around >= 0 else None
        if isinstance(found, str):
            which[i] = number.setdefault(found, len(number))
    return list(number), which


def _fitting(kernels: list[CompiledKernel], key: str, region: str, code: str) -> tuple[list[CompiledKernel], str]:
    """Those of a graph (``key``), else of a compilation (``region``), else all; of several those of one ``code``; by
    what. Empty: not recorded.
    """
    found, by = kernels, "name"
    if of_graph := [kernel for kernel in kernels if key and kernel.key == key]:
        found, by = of_graph, "FX graph"
    elif of_region := [kernel for kernel in kernels if region and kernel.graph == region]:
        found, by = of_region, "compilation"
    of_code = [kernel for kernel in found if code and kernel.hash == code]
    return (of_code, "hash of its code") if len(found) > 1 and of_code else (found, by)


def _said_of(kernels: list[CompiledKernel], by: str) -> dict[str, str]:
    """What the files say of a kernel, as far as it can be told from others of its name: what all of these are."""
    alike = len({(kernel.ops, kernel.nodes, kernel.lines) for kernel in kernels}) == 1
    graphs = list(dict.fromkeys(kernel.graph for kernel in kernels))
    return {
        "graph": ", ".join(graphs if len(graphs) <= 4 else [*graphs[:4], "..."]),
        "ops": _joined([kernel.ops for kernel in kernels], ", "),
        "source_nodes": _joined([kernel.nodes for kernel in kernels], ", "),
        "source_lines": _joined([kernel.lines for kernel in kernels], "; "),
        "joined_by": NOT_JOINED if not kernels else by if alike else f"{by}, of {len(kernels)} kernels",
    }


def _joined(of_kernels: Sequence[Sequence[str]], between: str) -> str:
    return between.join(dict.fromkeys(text for texts in of_kernels for text in texts))


def _graph_breaks(context: SheetContext) -> pd.DataFrame | None:
    """Graph breaks and recompilations, alike ones together."""
    code = context.options.inductor
    if code is None:
        return None
    rows: dict[tuple[str, str | None, str], dict[str, Any]] = {}
    each: Compilation
    for event, each in (
        *(("graph break", each) for each in code.breaks),
        *(("recompilation", each) for each in code.recompilations),
    ):
        row = rows.setdefault(
            (event, each.line, each.reason),
            {"event": event, "source_line": each.line, "reason": each.reason, "times": 0, "graph": each.graph,
             "compile_us": np.nan},
        )  # fmt: skip
        row["times"] += 1
        took_s = getattr(each, "took_s", None)
        if took_s is not None:
            row["compile_us"] = np.nansum([row["compile_us"], took_s * US_PER_S])
    return pd.DataFrame(list(rows.values())) if rows else None


SHEETS = sheet_rows(
    {
        COMPILED_KERNELS_TITLE: _compiled_kernels,
        GRAPH_BREAKS_TITLE: _graph_breaks,
        "call_stacks": lambda c: call_stacks(c.trace.table, c.trace.tree, c.activity),
    }
)
