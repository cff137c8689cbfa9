"""``kernels``: every analyzed device event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.schema import column_set, flag, identifier, table, text, us
from tracelens.trace.table import Kind
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from tracelens.analysis.analyze import Analysis


COLUMNS = column_set(
    identifier("kernel", "Number of the event in the trace."),
    text("kernel_name", "Name of the kernel, copy or memset."),
    text("category", "Category of the op row that it is counted in."),
    text("parent_op", "Name of the op that launched it; NULL where none is known."),
    identifier("call", "The call of calls that launched it."),
    identifier("step", "Number of the step that launched it; NULL outside of all."),
    identifier("device", "Number of the device."),
    identifier("stream", "Number of the stream."),
    us("start_us", "Since the first event of the trace."),
    us("duration_us", "How long it ran."),
    us("gap_before_us", "How long its stream had been idle; NULL for the first event of a stream."),
    flag("is_communication", "Whether it is a collective or another exchange between ranks."),
    flag("is_memcpy", "Whether it is a copy."),
)


@table("kernels", columns=COLUMNS)
def kernels(analysis: Analysis) -> pd.DataFrame:
    """A row per analyzed device event: kernels, copies and memsets."""
    import pandas as pd

    events, trace = analysis.activity, analysis.trace.table
    names = np.array(trace.names, object)
    linked = events.op >= 0
    gap = np.where(events.gap_before < 0, np.nan, events.gap_before / NS_PER_US)
    return pd.DataFrame(
        {
            "kernel": events.rows,
            "kernel_name": names[events.name],
            "category": analysis.event_category.tolist(),
            "parent_op": pd.Series(names[trace.name[events.op]]).where(linked),
            "call": _or_null(np.where(linked & (trace.kind[events.op] == Kind.CPU_OP), events.op, -1)),
            "step": _or_null(analysis.step_numbers),
            "device": _or_null(trace.device[events.rows]),
            "stream": _or_null(events.stream),
            "start_us": (events.start - int(trace.start_ns.min())) / NS_PER_US,
            "duration_us": events.duration_us(),
            "gap_before_us": gap,
            "is_communication": events.communication,
            "is_memcpy": events.memcpy,
        }
    )


def _or_null(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """-1 as NULL."""
    return np.where(numbers < 0, np.nan, numbers)
