"""What a user may compare, read as a side: a trace, a report, a stored baseline, or a folder of ranks or runs."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.ranks.rank_files import find_traces
from tracelens.comparison.compared import AT_ONCE, IDLE
from tracelens.comparison.sides import Call, CallWork, Floats, Recorded, Side, StepJoules
from tracelens.comparison.traced_side import recorded_ranks
from tracelens.errors import InputError, UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.documents import is_report, json_decoded, json_encoded, report_ops
from tracelens.files.memory_limit import before_reading
from tracelens.files.safe_text import json_safe
from tracelens.types.units import BYTES_PER_MB, FLOPS_PER_GFLOP, NS_PER_US

#: Version 1 called the columns of ops otherwise.
_SCHEMAS = ("tracelens.report/2", "tracelens.report/1")
#: What a report calls all collectives together, and the device events that no op launched.
_COLLECTIVES, _UNLINKED = "collectives", "(unlinked kernels)"
#: What reading a file of ours raises that is not whole.
_DAMAGED = (
    OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, msgspec.ValidationError
)  # fmt: skip


def read_report(path: Path, name: str) -> Side:
    """InputError where the document is damaged, of another version, or has no device work."""
    before_reading(path)
    try:
        document = json_decoded(path.read_bytes())
        if document["schema"] not in _SCHEMAS:
            raise InputError(
                f"{path} is a {document['schema']}; this version reads {_SCHEMAS[0]}: write the report again"
            )
        if document["busy"] is None:
            raise InputError(f"{path} has no device work: there is nothing to compare")
        one = _typed(_plain(_recorded_of_report(document)))
    except _DAMAGED as error:
        raise InputError(f"{path} is not a complete report ({error}): run 'tracelens report' again") from error
    steps = document["step"]["count"] if document["step"] else 1
    mean = f"the mean of {steps} steps as one and " if steps > 1 else ""
    note = f"{name} is a report, so it has {mean}ops by kernel time without order; overlap is a separate row"
    return Side(name=name, parts=((one,),), notes=(note,))


def _recorded_of_report(document: Mapping[str, Any]) -> Recorded:
    """One step with a unit per op; what ops do at the same time is subtracted once, in a row of its own."""
    step, busy = document["step"], document["busy"]
    steps = step["count"] if step else 1
    total_ns = round((step["time_us"] if step else busy["total_us"]) * NS_PER_US)
    units: list[tuple[Call, CallWork, float, int]] = []
    for op in report_ops(document):
        own = op.get("per_step") or {
            "count": op["operation_count"] / steps, "us": op["operation_count"] * op["kernel_us_mean"] / steps
        }  # fmt: skip
        if own["count"]:
            units.append((_call(op), _rates_of_op(op), own["count"], round(own["us"] * NS_PER_US)))
    collectives = Call(name=_COLLECTIVES, category=_COLLECTIVES)
    units += [
        (collectives, CallWork(), 1.0, round(row["time_us"] * NS_PER_US))
        for row in document["categories"] if row["name"] == _COLLECTIVES
    ]  # fmt: skip
    kernels = len(units)
    for cause in busy["idle_causes"]:
        units.append((Call(name=cause["cause"], category=IDLE), CallWork(), 1.0, round(cause["share"] * total_ns)))
    at_once_ns = total_ns - sum(ns for *_, ns in units)
    calls, rates, count, ns = zip(
        *units, (Call(name=AT_ONCE, category=AT_ONCE), CallWork(), 1.0, at_once_ns), strict=True
    )
    return Recorded(
        source=document["input"]["file"],
        calls=calls,
        rates=rates,
        call=np.arange(len(ns)),
        step=np.zeros(len(ns), np.int64),
        kernel_ns=np.array([*ns[:kernels], *([0] * (len(ns) - kernels))], np.int64),
        piece_unit=np.arange(len(ns)),
        piece_step=np.zeros(len(ns), np.int64),
        piece_ns=np.array(ns, np.int64),
        durations_ns=np.array([total_ns], np.int64),
        event_unit=np.zeros(0, np.int64),
        event_kernel=np.zeros(0, np.int64),
        event_ns=np.zeros(0, np.int64),
        kernel_names=(),
        repeats=np.array(count),
        device=document["device"]["id"],
        device_label=document["device"]["label"],
        torch=document["input"]["torch"],
        rank=next(iter(document["input"]["ranks"]), None),
        has_steps=step is not None,
        is_ordered=False,
        joules=_joules_of_report(document),
    )


def _joules_of_report(document: Mapping[str, Any]) -> StepJoules | None:
    """Of the mean step; None where the report knows neither modelled nor measured ones."""
    modelled, measured = document.get("energy") or {}, document.get("measured_power") or {}
    own = [modelled[key] for key in ("energy_j", "low_j", "high_j") if modelled.get(key) is not None]
    modelled_j, low, high = ((own[at],) if len(own) == 3 else () for at in range(3))
    joules = measured.get("energy_j")
    found = StepJoules(modelled=modelled_j, low=low, high=high, measured=() if joules is None else (joules,))
    return found if found.modelled or found.measured else None


def _call(op: Mapping[str, Any]) -> Call:
    name, _, kernel = str(op["name"]).partition("->")
    shapes, dtypes = (_tupled(op[key]) for key in ("input_dims", "input_types"))
    return Call(
        name=name,
        category=op["category"],
        kernel=kernel.removesuffix(" (Synthetic Op)"),
        shapes=None if shapes is None or kernel else repr(shapes),
        dtypes=None if dtypes is None or kernel else repr(dtypes),
    )


def _rates_of_op(op: Mapping[str, Any]) -> CallWork:
    def known(key: str, unit: int = 1) -> float:
        return float("nan") if op[key] is None else float(op[key]) * unit

    return CallWork(
        flops=known("gflops", FLOPS_PER_GFLOP),
        hbm_bytes=known("hbm_mb", BYTES_PER_MB),
        roofline_us=known("roofline_us"),
        bound=op["roofline_bound"],
    )


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def as_reported(side: Side) -> Side:
    """A side of traces as a report would have it: beside one, it is compared by what both say."""
    if not side.first.is_ordered:
        return side
    return replace(side, parts=tuple(tuple(map(_without_order, run)) for run in side.parts))


def _without_order(one: Recorded) -> Recorded:
    steps = len(one.durations_ns)
    idle = np.array([call.is_idle for call in one.calls], bool)[one.call]
    of_idle = idle[one.piece_unit]
    used = np.bincount(one.step, one.kernel_ns, minlength=steps).astype(np.int64)
    used += np.bincount(one.piece_step[of_idle], one.piece_ns[of_idle], minlength=steps).astype(np.int64)
    busy, units = np.flatnonzero(~idle), len(one.call)
    return replace(
        one,
        calls=(*map(_reported, one.calls), Call(name=AT_ONCE, category=AT_ONCE)),
        rates=(*one.rates, CallWork()),
        call=np.append(one.call, np.full(steps, len(one.calls))),
        step=np.append(one.step, np.arange(steps)),
        kernel_ns=np.append(one.kernel_ns, np.zeros(steps, np.int64)),
        repeats=np.append(one.repeats, np.ones(steps)),
        piece_unit=np.concatenate((busy, one.piece_unit[of_idle], units + np.arange(steps))),
        piece_step=np.concatenate((one.step[busy], one.piece_step[of_idle], np.arange(steps))),
        piece_ns=np.concatenate((one.kernel_ns[busy], one.piece_ns[of_idle], one.durations_ns - used)),
        is_ordered=False,
    )


def _reported(call: Call) -> Call:
    if call.category == _COLLECTIVES:
        return Call(name=_COLLECTIVES, category=_COLLECTIVES)
    if call.kernel and not call.name:
        return Call(name=_UNLINKED, category=call.category)
    return replace(call, module=None, work=None)


def as_whole_ops(one: Side, other: Side) -> tuple[Side, Side]:
    """Two sides ``as_reported``: an op that one has whole and the other kernel by kernel, as calls of other ops are
    below it, is one call without its arguments on both.

    A report counts such kernels by the op above them, a trace by themselves: here they count as one call per step, and
    so do those without ops and collectives.
    """
    parted, whole = _parted(one, other)
    first, second = (
        replace(side, parts=tuple(tuple(_with_whole(each, parted, whole) for each in run) for run in side.parts))
        for side in (one, other)
    )
    return first, second


def _parted(one: Side, other: Side) -> tuple[set[tuple[str, str]], dict[str, str]]:
    """(op, kernel) of what one side alone has by kernel; and the category of ops of these names that are whole."""
    known = [
        [pair for each in side.recordings for pair in zip(each.calls, map(_is_bare, each.rates), strict=True)]
        for side in (one, other)
    ]
    kernels = [{(call.name, call.kernel) for call, _ in own if call.kernel and call.name} for own in known]
    parted = kernels[0] ^ kernels[1]
    names = {name for name, _ in parted}
    calls = (call for call, is_bare in chain(*known) if is_bare and not call.kernel)
    return parted, {call.name: call.category for call in calls if call.name in names}


def _with_whole(one: Recorded, parted: set[tuple[str, str]], whole: dict[str, str]) -> Recorded:
    def alike(call: Call, work: CallWork) -> Call:
        is_part = (call.name, call.kernel) in parted if call.kernel else _is_bare(work)
        return Call(name=call.name, category=whole[call.name]) if is_part and call.name in whole else call

    calls = tuple(map(alike, one.calls, one.rates))
    number = {call: at for at, call in enumerate(dict.fromkeys(calls))}
    row = np.array([number[call] for call in calls], np.int64)[one.call]
    is_one = [
        bool(call.kernel) or call.name in (_UNLINKED, _COLLECTIVES) or call != given
        for call, given in zip(calls, one.calls, strict=True)
    ]
    share = len(one.durations_ns) / np.bincount(row)[row]
    return replace(one, calls=calls, repeats=np.where(np.array(is_one, bool)[one.call], share, one.repeats))


def _is_bare(work: CallWork) -> bool:
    """Whether nothing is known of it."""
    return bool(np.isnan(work.flops) and np.isnan(work.hbm_bytes))


SCHEMA = "tracelens.baseline/1"
#: What stands before the name of a baseline where a side is asked for.
PREFIX = "baseline:"
_ENDING = ".json.gz"
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def baseline_path(name: str, folder: Path) -> Path:
    """UsageError for a name that is no plain file name."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} cannot name a baseline: use letters, digits, '.', '_' and '-', at most 100")
    return folder / f"{name}{_ENDING}"


def baselines(folder: Path) -> list[str]:
    """The names of the baselines in a folder."""
    return sorted(path.name.removesuffix(_ENDING) for path in folder.glob(f"*{_ENDING}"))


def write_side(side: Side, path: Path) -> None:
    """Writes ``path`` whole or not at all; the same side gives the same bytes."""
    document = {
        "schema": SCHEMA,
        "name": side.name,
        "notes": list(side.notes),
        "runs": [[_plain(one) for one in run] for run in side.parts],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, gzip.compress(json_encoded(json_safe(document)), mtime=0))


def _plain(one: Recorded) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(one, enc_hook=np.ndarray.tolist)
    return {key: found[key] for key in found if found[key] or key not in ("joules", "is_skewed")}


def _typed(found: dict[str, Any]) -> Recorded:
    """ValidationError where a value has another type than its field; unknown numbers may be null."""
    rates = [[np.nan if value is None else value for value in each[:3]] + each[3:] for each in found["rates"]]
    return msgspec.convert({**found, "rates": rates}, Recorded, dec_hook=_column)


def _column(kind: Any, values: Any) -> Any:
    return np.array(values, np.float64 if kind == Floats else np.int64)


def is_stored(path: Path) -> bool:
    """Whether a file is a baseline, by its first bytes."""
    try:
        with gzip.open(path) as file:
            return file.read(60).startswith(b'{"schema":"tracelens.baseline/')
    except (OSError, EOFError):
        return False


def read_side(path: Path) -> Side:
    """InputError where the file is no baseline of this version, or damaged."""
    before_reading(path)
    try:
        document = json_decoded(gzip.decompress(path.read_bytes()))
        if document["schema"] != SCHEMA:
            raise InputError(f"{path} is a {document['schema']}; this version reads {SCHEMA}: save the baseline again")
        parts = tuple(tuple(map(_typed, run)) for run in document["runs"])
        for one in chain(*parts):
            _refuse_out_of_range(one)
        if not parts or not all(parts):
            raise ValueError("no recordings")
        return Side(name=document["name"], parts=parts, notes=tuple(document["notes"]))
    except FileNotFoundError:
        known = ", ".join(baselines(path.parent)) or "none"
        raise InputError(f"there is no baseline {path}; known in {path.parent}: {known}") from None
    except (*_DAMAGED, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a baseline, or it is damaged ({error}): save it again") from error


#: A float tells numbers of calls apart below this.
_MOST_CALLS = 2**53


def _refuse_out_of_range(one: Recorded) -> None:
    """ValueError where a column points beyond what it indexes."""
    units, steps = len(one.call), len(one.durations_ns)
    limits = (
        (one.call, len(one.calls)), (one.step, steps), (one.piece_unit, units), (one.piece_step, steps),
        (one.event_unit, units), (one.event_kernel, len(one.kernel_names)),
    )  # fmt: skip
    if any(len(column) and not 0 <= column.min() <= column.max() < most for column, most in limits):
        raise ValueError("a column points beyond its table")
    same = (
        (one.piece_unit, one.piece_ns), (one.event_unit, one.event_ns), (one.call, one.kernel_ns),
        (one.call, one.step), (one.call, one.repeats), (one.calls, one.rates),
        (one.piece_unit, one.piece_step), (one.event_unit, one.event_kernel),
    )  # fmt: skip
    if not np.all((one.repeats >= 0) & (one.repeats < _MOST_CALLS)):
        raise ValueError("a call that stands for more calls than there are")
    if one.joules is not None and not {len(one.joules.modelled), len(one.joules.measured)} <= {0, steps}:
        raise ValueError("joules of another number of steps")
    if any(len(each.count) != steps or len(each.ns) != steps for each in one.host):
        raise ValueError("host calls of another number of steps")
    if not steps or not 0 <= one.typical < steps or any(len(a) != len(b) for a, b in same):
        raise ValueError("columns of different lengths")


def side_of(given: str | Path, options: AnalysisOptions, baselines: Path | None = None) -> Side:
    """A path, or ``baseline:NAME``. InputError for what cannot be read, NothingToAnalyzeError without device work."""
    if str(given).startswith(PREFIX):
        return read_side(baseline_path(str(given).removeprefix(PREFIX), baselines or Path()))
    path = Path(given)
    if path.suffix == ".xlsx" and path.is_file():
        path = _document_beside(path)
    report = path / "report.json" if (path / "report.json").is_file() else path
    if is_report(report):
        return read_report(report, path.name or str(path))
    if path.is_file() and is_stored(path):
        return read_side(path)
    found = [one for file in find_traces([str(path)]) for one in recorded_ranks(load(file), options)]
    return Side(name=path.name or str(path), parts=_runs(found))


def _document_beside(workbook: Path) -> Path:
    """The report.json of a report's folder or of ``NAME.xlsx``. InputError where there is none."""
    for document in (workbook.with_name("report.json"), workbook.with_suffix(".json")):
        if is_report(document):
            return document
    raise InputError(
        f"{workbook} is a workbook without a report.json in its folder: give the report's folder, or its trace"
    )


def _runs(found: Sequence[Recorded]) -> tuple[tuple[Recorded, ...], ...]:
    """Files of different ranks are one run; the n-th files of every rank the n-th run."""
    by_rank: dict[int | None, list[Recorded]] = defaultdict(list)
    for one in found:
        by_rank[one.rank].append(one)
    most = max(len(files) for files in by_rank.values())
    ranks = sorted(by_rank, key=lambda rank: -1 if rank is None else rank)
    return tuple(tuple(by_rank[rank][n] for rank in ranks if n < len(by_rank[rank])) for n in range(most))
