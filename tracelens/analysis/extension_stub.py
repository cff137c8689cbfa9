"""The first version of an extension, written from the arguments that a trace recorded for one op."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches

import numpy as np

from tracelens.analysis.loaded_trace import Trace
from tracelens.errors import InputError
from tracelens.trace.table import Kind
from tracelens.types.signature import OpSignature

#: Distinct calls that the stub lists.
MOST_LISTED = 10


def extension_stub(trace: Trace, op: str) -> str:
    """A Python module whose perf model of ``op`` reads every recorded tensor once and writes one like the first.

    Text of the trace stands in it as escaped literals only. InputError where the trace has no such op, or recorded no
    shapes of it.
    """
    calls = Counter(_signatures(trace, op))
    if not any(_has_tensors(call) for call in calls):
        has_lists = any(call.has(i) for call in calls for i in range(len(call.shapes or ())))
        hint = "it takes only lists of unknown type" if has_lists else "record with record_shapes=True"
        raise InputError(f"{trace.table.source}: {op!r} has no recorded tensor shapes; {hint}")
    listed = "\n".join(
        f"#   {count} x {call.shapes!a} {call.dtypes!a} {call.scalars!a}"
        for call, count in calls.most_common(MOST_LISTED)
    )
    return _MODULE.format(name=ascii(op), calls=listed)


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


def _has_tensors(call: OpSignature) -> bool:
    return any(call.shape_or_scalar(i) for i in range(len(call.shapes or ())))


_MODULE = '''\
"""Perf model of an op, begun from recorded arguments. Correct what it counts, then:

tracelens extensions check THIS_FILE
tracelens report TRACE --extension THIS_FILE
"""

from math import prod

from tracelens import OpSignature, traced_as
from tracelens.perf_models import Movement

# Recorded calls, most frequent first: shapes, types, scalars.
{calls}


@traced_as({name})
def read(op: OpSignature) -> Movement | None:
    """Reads every recorded tensor once and writes one like the first: a guess until somebody corrects it.

    For matrix work return GEMM(m=, n=, k=, dtype=), for attention SDPA, for an exchange of tokens EPComm:
    docs/extensions.md.
    """
    slots = [i for i in range(len(op.shapes or ())) if op.shape_or_scalar(i) and op.dtype(i)]
    tensors = tuple((prod(op.shape(i)), op.dtype(i)) for i in slots)
    return Movement(read=tensors, written=tensors[:1]) if tensors else None
'''
