"""Ops of a trace as scripts that run them alone, and the first version of an extension for one."""

from __future__ import annotations

import ast
import functools
import math
import pprint
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.analysis.analyze import analyze
from tracelens.analysis.attribution.host_scopes import Scopes
from tracelens.analysis.grouping import Floats, Ints, first_of_each
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.sheets import perf_summary
from tracelens.comparison.whatif.plan import Subject
from tracelens.comparison.whatif.what_if import step_by_factor
from tracelens.errors import InputError, NothingToAnalyzeError, UsageError
from tracelens.files.atomic_write import whole_folder
from tracelens.trace.table import Kind
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature
from tracelens.types.units import NS_PER_US

#: What an op may be called to become part of a script: ``aten::mm``.
_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)", re.ASCII)
#: Types of arguments that are no tensors.
_NO_TENSOR = ("", "Scalar", "ScalarList", "Device", "Layout", "Generator")
#: A recorded text that a script may hold: a mode, a device; no path.
_WORD = re.compile(r"\w[\w:-]{0,40}", re.ASCII)
#: What is written for every op, and where its calls stand in it.
_SCRIPT, _PLACE = "replay_script.template", "RECORDED: dict[str, Any] = {}  # what was recorded\n"
#: A script has the calls with most device time that make up this share of its op's.
COVERED = 0.95
#: Columns of the report that stand beside a measured time.
_EXPECTED = (
    ("mean kernel time of the recording", "kernel_us_mean"),
    ("roofline of the recording's device", "roofline_us"),
    ("estimate for the recording's device", "estimated_us"),
)


@functools.cache
def _template(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@functools.cache
def _script_types() -> frozenset[str]:
    """Types of tensors, as traces have them, that a script can make: those of its own table."""
    table = _template(_SCRIPT).partition("\n_TYPES = ")[2].partition("  # fmt")[0]
    return frozenset(ast.literal_eval(table))


class OpScript(Record, frozen=True, kw_only=True):
    """``file``: its name; None where the op cannot be run, and ``why`` not.

    ``kernel_us``: mean device time of a recorded call; ``distinct`` calls, of which the script has ``written``, that
    are the share ``covered`` of the op's device time.
    """

    name: str
    calls: int
    kernel_us: float
    distinct: int = 0
    written: int = 0
    covered: float = 0.0
    file: str | None = None
    text: str = ""
    why: str = ""


def op_scripts(trace: Trace, *, op: str | None = None, top: int | None = None) -> list[OpScript]:
    """One for ``op``, or for each of the ``top`` ones with most kernel time; those without a script too.

    UsageError for an op that launched nothing, NothingToAnalyzeError where no call can be run.
    """
    options = AnalysisOptions(backend="tile")
    analysis = analyze(trace, options)
    frame = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    names = frame.groupby("name", sort=True)["kernel_us_sum"].sum().sort_values(ascending=False, kind="stable")
    if op is not None and op not in names:
        raise UsageError.unknown("op with device time", op, frame["name"].tolist())
    rows: dict[int, dict[Any, Any]] = {int(row["example_row"]): row for row in frame.to_dict("records")}
    recorded = _Recorded(Subject.of(trace, options), rows)
    made: list[OpScript] = []
    for name in [op] if op is not None else [str(each) for each in names.index]:
        if top is not None and sum(script.file is not None for script in made) >= top:
            break
        of_name = frame[frame["name"] == name]
        calls, kernel_us = int(of_name["operation_count"].sum()), float(names[name])
        plain = OpScript(name=name, calls=calls, kernel_us=kernel_us / max(calls, 1))
        made.append(recorded.script(plain, len(made) + 1))
    if not any(script.file for script in made):
        reasons = "; ".join(dict.fromkeys(f"{script.name}: {script.why}" for script in made[:3]))
        raise NothingToAnalyzeError(f"{trace.table.source}: no op can be run alone ({reasons})")
    return made


def write_scripts(scripts: list[OpScript], folder: Path) -> None:
    """All scripts, or none."""
    with whole_folder(folder) as staging:
        for script in scripts:
            if script.file is not None:
                (staging / script.file).write_text(script.text, encoding="utf-8")


class _Recorded:
    """The calls of each op of a trace with their device time. ``rows``: of the report, by table row of an example."""

    def __init__(self, subject: Subject, rows: dict[int, dict[Any, Any]]) -> None:
        self._subject = subject
        table = subject.table
        self._row_of = {(int(table.name[row]), int(table.signature[row])): found for row, found in rows.items()}

    def script(self, plain: OpScript, number: int) -> OpScript:
        """With the file, or with why there is none."""
        found = _NAME.fullmatch(plain.name)
        if found is None:
            return replace(plain, why="no op of a library")
        calls, count, us = self._distinct(plain.name)
        total_us, literals, why = float(us.sum()), [], ""
        covered = 0.0
        for at in np.argsort(-us, kind="stable").tolist():
            if covered >= COVERED - 1e-9 or not us[at]:
                break
            try:
                arguments = list(_arguments(self._subject.table.signature_of(calls[at])))
            except ValueError as error:
                why = why or str(error)
                continue
            share = float(us[at]) / total_us
            expected = self._expected(calls[at], float(us[at]) / int(count[at]))
            literals.append({"count": int(count[at]), "share": round(share, 6), "expected_us": expected,
                             "arguments": arguments})  # fmt: skip
            covered += share
        if not literals:
            return replace(plain, why=why or "it launched nothing")
        step = [(factor, round(us, 3)) for factor, us in step_by_factor(self._subject, plain.name)]
        device = self._subject.recording.device
        recorded = {
            "namespace": found[1], "name": found[2], "device": "an unknown device" if device is None else device.name,
            "step": {"what": "step" if self._subject.window.complete_steps else "window", "us_by_factor": step},
            "calls": literals,
        }  # fmt: skip
        literal = pprint.pformat(recorded, width=110, sort_dicts=False)
        return replace(
            plain, calls=int(count.sum()), kernel_us=total_us / int(count.sum()), distinct=int((us > 0).sum()),
            written=len(literals), covered=covered, file=f"{number:03d}_{found[1]}_{found[2]}.py",
            text=_template(_SCRIPT).replace(_PLACE, f"RECORDED: dict[str, Any] = {literal}\n"), why=why,
        )  # fmt: skip

    def _distinct(self, name: str) -> tuple[list[int], Ints, Floats]:
        """Of each distinct call of an op: an example's row, how many launched something, and their device time (us).

        A call has what is below it; of one within another of the same op the inner one does.
        """
        table, tree, activity = self._subject.table, self._subject.tree, self._subject.activity
        code = {text: i for i, text in enumerate(table.names)}.get(name, -1)
        scopes = Scopes(tree, (table.name[tree.order] == code) & (table.kind[tree.order] == Kind.CPU_OP))
        rows, at = scopes.rows, scopes.around(np.where(self._subject.counted, tree.launch[activity.rows], -1))
        ns = np.bincount(at[at >= 0], activity.duration[at >= 0], minlength=len(rows))
        signatures, group = np.unique(table.signature[rows], return_inverse=True)
        examples = rows[first_of_each(group)].tolist() if len(rows) else []
        return (
            examples,
            np.bincount(group, ns > 0, len(signatures)),
            np.bincount(group, ns, len(signatures)) / NS_PER_US,
        )

    def _expected(self, row: int, mean_us: float) -> dict[str, float]:
        """Times to show beside a measured one."""
        table = self._subject.table
        known = self._row_of.get((int(table.name[row]), int(table.signature[row])), {})
        times = {}
        for what, key in _EXPECTED:
            time = mean_us if key == "kernel_us_mean" else known.get(key)
            if isinstance(time, int | float) and math.isfinite(time):
                times[what] = round(float(time), 3)
        return times


def _arguments(signature: OpSignature) -> Iterator[dict[str, Any]]:
    """ValueError, saying why, where what was recorded does not say what the op was called with."""
    shapes, types = signature.shapes, signature.dtypes
    if shapes is None or types is None or len(shapes) != len(types):
        raise ValueError("its shapes were not recorded")
    strides, scalars = signature.strides or (), signature.scalars or ()
    for i, (shape, dtype) in enumerate(zip(shapes, types, strict=True)):
        stride = strides[i] if i < len(strides) else None
        scalar = scalars[i] if i < len(scalars) else ""
        yield _argument(_plain(shape), dtype, _plain(stride), scalar)


def _argument(shape: Any, dtype: Any, stride: Any, scalar: Any) -> dict[str, Any]:
    if isinstance(shape, list) and any(isinstance(each, list) for each in shape):
        types = (
            list(dtype) if isinstance(dtype, tuple | list) else [None if dtype == "TensorList" else dtype] * len(shape)
        )
        fits = isinstance(stride, list) and len(stride) == len(shape) and all(isinstance(each, list) for each in stride)
        tensors = [_tensor(s, t, stride[i] if fits else None)
                   for i, (s, t) in enumerate(zip(shape, types, strict=False))]  # fmt: skip
        return {"kind": "tensors", "tensors": tensors}
    if isinstance(dtype, str) and dtype not in _NO_TENSOR:
        return {"kind": "tensor", **_tensor(shape or [], dtype, stride)}
    return {"kind": "value", "value": _literal(scalar)}


def _tensor(shape: Any, dtype: Any, stride: Any) -> dict[str, Any]:
    if not isinstance(dtype, str) or dtype not in _script_types():
        raise ValueError("the types of its tensors were not recorded")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError("its recorded shapes are not sizes")
    known = isinstance(stride, list) and all(isinstance(step, int) and step >= 0 for step in stride)
    return {"shape": shape, "dtype": dtype, "strides": stride if known else None}


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _literal(text: Any) -> Any:
    """A recorded scalar as a value; None where there is none. ValueError for what is neither."""
    if not isinstance(text, str):
        return _plain(text) if text is None or isinstance(text, int | float | tuple | list) else None
    if text in ("", "None"):
        return None
    if text.strip("-") in ("inf", "nan"):
        raise ValueError(f"an argument is {text}")
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = text
    if isinstance(found, str):
        if not _WORD.fullmatch(found):
            raise ValueError("an argument is a string of more than one word")
        return found
    return _plain(found)


#: Distinct calls that the stub lists.
MOST_LISTED = 10


def extension_stub(trace: Trace, op: str) -> str:
    """A Python module whose perf model of ``op`` reads every recorded tensor once and writes one like the first.

    Text of the trace stands in it as escaped literals only. InputError where the trace has no such op, or recorded no
    shapes of it.
    """
    calls = Counter(_signatures(trace, op))
    if not any(call.shape_or_scalar(i) for call in calls for i in range(len(call.shapes or ()))):
        has_lists = any(call.has(i) for call in calls for i in range(len(call.shapes or ())))
        hint = "it takes only lists of unknown type" if has_lists else "record with record_shapes=True"
        raise InputError(f"{trace.table.source}: {op!r} has no recorded tensor shapes; {hint}")
    listed = "\n".join(
        f"#   {count} x {call.shapes!a} {call.dtypes!a} {call.scalars!a}"
        for call, count in calls.most_common(MOST_LISTED)
    )
    return _template("extension_stub.txt").format(name=ascii(op), calls=listed)


def _signatures(trace: Trace, op: str) -> list[OpSignature]:
    table = trace.table
    rows = np.flatnonzero(table.kind == Kind.CPU_OP)
    names = {table.names[code]: code for code in np.unique(table.name[rows]).tolist()}
    found = [table.signature_of(row) for row in rows[table.name[rows] == names.get(op, -1)].tolist()]
    if not found:
        near = get_close_matches(op, sorted(names), n=3)
        raise InputError(
            f"{table.source}: no CPU op named {op!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
    return found
