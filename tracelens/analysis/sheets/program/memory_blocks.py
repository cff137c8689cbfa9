"""What held the memory of a device, by the line that allocated it, from a snapshot of PyTorch's allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.shared_columns import memory_mb
from tracelens.schema import column_set, count, sheet, text
from tracelens.units import BYTES_PER_MB

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext

COLUMNS = column_set(
    text("device", "Name as in torch.device; ROCm devices are cuda too.", width=14),
    text("held_by", "Innermost Python lines outside PyTorch that allocated the blocks.", width=70),
    memory_mb("peak_mb", "When the blocks held most, of what the snapshot's history recorded."),
    memory_mb("end_mb", "In the snapshot. A device's rows add up to what it reserved."),
    count("blocks", "Blocks in the snapshot."),
    memory_mb("largest_mb", "The largest of these blocks."),
)


@sheet("memory_blocks", columns=COLUMNS, order=70, json=170)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Of the whole run: what held device memory at the peak and in the --memory-snapshot, by the allocating line."""
    import pandas as pd

    rows = [
        {
            "device": f"cuda:{memory.device}",
            "held_by": stack,
            "peak_mb": memory.peak_bytes[stack] / BYTES_PER_MB,
            "end_mb": memory.end_bytes[stack] / BYTES_PER_MB,
            "blocks": memory.blocks[stack],
            "largest_mb": memory.largest_bytes[stack] / BYTES_PER_MB,
        }
        for memory in context.options.memory_snapshot or ()
        for stack in sorted(
            {*memory.peak_bytes, *memory.end_bytes}, key=lambda s: (-memory.peak_bytes[s], -memory.end_bytes[s], s)
        )
        if memory.peak_bytes[stack] or memory.end_bytes[stack]
    ]
    return pd.DataFrame(rows) if rows else None
