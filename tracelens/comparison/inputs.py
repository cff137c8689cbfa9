"""A report as a side of a comparison: ops by their time per step, without their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.comparison.compared import AT_ONCE, IDLE
from tracelens.comparison.sides import Call, Rates, Recorded, Side
from tracelens.errors import InputError
from tracelens.files.before_reading import before_reading
from tracelens.files.documents import report_ops
from tracelens.files.json_bytes import decoded
from tracelens.units import BYTES_PER_MB, FLOPS_PER_GFLOP, NS_PER_US

#: Version 1 called the columns of ops otherwise.
_SCHEMAS = ("tracelens.report/2", "tracelens.report/1")
#: What a report calls all collectives together, and the device events that no op launched.
_COLLECTIVES, _UNLINKED = "collectives", "(unlinked kernels)"


def read_report(path: Path, name: str) -> Side:
    """InputError where the document is damaged, of another version, or has no device work."""
    before_reading(path)
    try:
        document = decoded(path.read_bytes())
        if document["schema"] not in _SCHEMAS:
            raise InputError(
                f"{path} is a {document['schema']}; this version reads {_SCHEMAS[0]}: write the report again"
            )
        if document["busy"] is None:
            raise InputError(f"{path} has no device work: there is nothing to compare")
        one = _recorded(document)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{path} is no complete report ({error}): write it again") from error
    steps = document["step"]["count"] if document["step"] else 1
    mean = f"the mean of {steps} steps as one, " if steps > 1 else ""
    note = f"{name} is a report: {mean}ops by their kernel time, without order; what runs at once is a row of its own"
    return Side(name=name, parts=((one,),), notes=(note,))


def _recorded(document: Mapping[str, Any]) -> Recorded:
    """One step with a unit per op; what ops do at the same time is subtracted once, in a row of its own."""
    step, busy = document["step"], document["busy"]
    steps = step["count"] if step else 1
    total_ns = round((step["time_us"] if step else busy["total_us"]) * NS_PER_US)
    calls, rates, count, ns = [], [], [], []
    for op in report_ops(document):
        own = op.get("per_step") or {
            "count": op["operation_count"] / steps, "us": op["operation_count"] * op["kernel_us_mean"] / steps
        }  # fmt: skip
        if not own["us"]:
            continue
        calls.append(_call(op))
        rates.append(_rates(op))
        count.append(own["count"])
        ns.append(round(own["us"] * NS_PER_US))
    for row in document["categories"]:
        if row["name"] == _COLLECTIVES:
            calls.append(Call(name=_COLLECTIVES, category=_COLLECTIVES))
            rates.append(Rates())
            count.append(1.0)
            ns.append(round(row["time_us"] * NS_PER_US))
    kernel_ns = list(ns)
    idle = [(each["cause"], round(each["share"] * total_ns)) for each in busy["idle_causes"]]
    for cause, time in idle:
        calls.append(Call(name=cause, category=IDLE))
        ns.append(time)
    calls.append(Call(name=AT_ONCE, category=AT_ONCE))
    ns.append(total_ns - sum(ns))
    empty = len(ns) - len(kernel_ns)
    return Recorded(
        source=document["input"]["file"],
        calls=tuple(calls),
        rates=(*rates, *(Rates() for _ in range(empty))),
        call=np.arange(len(ns)),
        step=np.zeros(len(ns), np.int64),
        kernel_ns=np.array([*kernel_ns, *([0] * empty)], np.int64),
        piece_unit=np.arange(len(ns)),
        piece_step=np.zeros(len(ns), np.int64),
        piece_ns=np.array(ns, np.int64),
        durations_ns=np.array([total_ns], np.int64),
        event_unit=np.zeros(0, np.int64),
        event_kernel=np.zeros(0, np.int64),
        event_ns=np.zeros(0, np.int64),
        kernel_names=(),
        repeats=np.array([*count, *([1.0] * empty)]),
        device=document["device"]["id"],
        device_label=document["device"]["label"],
        torch=document["input"]["torch"],
        rank=next(iter(document["input"]["ranks"]), None),
        has_steps=step is not None,
        is_ordered=False,
    )


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


def _rates(op: Mapping[str, Any]) -> Rates:
    def known(key: str, unit: int = 1) -> float:
        return float("nan") if op[key] is None else float(op[key]) * unit

    return Rates(
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
        rates=(*one.rates, Rates()),
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
