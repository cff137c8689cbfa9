"""What copies between memories moved, as the trace records it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.trace.table import TraceTable

Floats = npt.NDArray[np.float64]


def copied_bytes(table: TraceTable, activity: DeviceActivity) -> Floats:
    """Bytes that each copy between memories moved; NaN where that was not recorded, and for all other events."""
    result = np.full(len(activity), np.nan)
    at = np.flatnonzero(activity.between_memories)
    code = table.signature[activity.rows[at]]
    distinct, inverse = np.unique(code, return_inverse=True)
    recorded = [table.signatures.signature("", c).attribute("bytes") for c in distinct.tolist()]
    known = [float(n) if isinstance(n, int) and not isinstance(n, bool) and n >= 0 else np.nan for n in recorded]
    result[at] = np.array(known, np.float64)[inverse]
    return result
