"""The first version of an extension, written from the arguments that a trace recorded for one op."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches

import numpy as np

from tracelens.analysis.loaded_trace import Trace
from tracelens.errors import InputError
from tracelens.signature import OpSignature
from tracelens.trace.table import Kind

#: Distinct calls that the stub lists.
MOST_LISTED = 10


def extension_stub(trace: Trace, op: str) -> str:
    """A Python module whose perf model of ``op`` reads every recorded tensor once and writes one like the first.

    Text of the trace stands in it as escaped literals only. InputError where the trace has no such op, or recorded no
    shapes of it.
    """
    calls = Counter(_signatures(trace, op))
    tensors = max(
        ((_tensors(call), count) for call, count in calls.items()), key=lambda each: (bool(each[0]), each[1])
    )[0]
    if not tensors:
        raise InputError(
            f"{trace.table.source}: no shapes of tensors are recorded for {op!r}; record with record_shapes=True"
        )
    listed = "\n".join(
        f"#   {count} x {call.shapes!a} {call.dtypes!a} {call.scalars!a}"
        for call, count in calls.most_common(MOST_LISTED)
    )
    return _MODULE.format(name=ascii(op), calls=listed, slots=ascii(tensors))


def _signatures(trace: Trace, op: str) -> list[OpSignature]:
    table = trace.table
    rows = np.flatnonzero(table.kind == Kind.CPU_OP)
    names = [table.name_of(row) for row in rows.tolist()]
    found = [table.signature_of(row) for row, name in zip(rows.tolist(), names, strict=True) if name == op]
    if not found:
        near = get_close_matches(op, sorted(set(names)), n=3)
        raise InputError(
            f"{table.source}: no CPU op is called {op!r}" + (f"; near: {', '.join(map(repr, near))}" if near else "")
        )
    return found


def _tensors(call: OpSignature) -> tuple[int, ...]:
    """Slots that hold one tensor with a recorded shape."""
    return tuple(i for i, slot in enumerate(call.shapes or ()) if slot and not isinstance(slot[0], tuple))


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
def read(op: OpSignature) -> Movement:
    """Reads every recorded tensor once and writes one like the first: a guess until somebody corrects it.

    For matrix work return GEMM(m=, n=, k=, dtype=), for attention SDPA, for an exchange of tokens EPComm:
    docs/extensions.md.
    """
    tensors = tuple((prod(op.shape(i)), op.dtype(i)) for i in {slots})
    return Movement(read=tensors, written=tensors[:1])
'''
