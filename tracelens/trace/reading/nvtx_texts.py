"""Ranges that programs announce by name (NVTX, ROCTX): PyTorch's own are ops, with what their texts say; others are
annotations."""

from __future__ import annotations

import msgspec
import numpy as np

from tracelens.lazy.records import dataclass
from tracelens.signature import OpSignature, freeze
from tracelens.trace.reading.row_blocks import Ints, RowBlocks


@dataclass(frozen=True, slots=True)
class _Op:
    """What torch.autograd.profiler.emit_nvtx says: "aten::mm, seq = 7, op_id = 12, sizes = [[2, 3], [3, 4]]"."""

    name: str
    sequence_number: int
    sizes: str

    @classmethod
    def of(cls, text: str) -> _Op | None:
        head, found, rest = text.partition(", op_id = ")
        # A range of the program itself has PyTorch's form too: "ProfilerStep#3, op_id = 5".
        if not found or "#" in head:
            return None
        name, _, number = head.partition(", seq = ")
        sizes = rest.partition(", sizes = ")[2].partition(", input_op_ids = ")[0]
        return cls(name, int(number) if number.isdecimal() and len(number) < 19 else -1, sizes)


def add_ranges(rows: RowBlocks, texts: list[str], start_ns: Ints, end_ns: Ints, lane: Ints) -> None:
    """The ranges as rows: ops with sequence number and shapes where PyTorch wrote them, else annotations."""
    ops = [_Op.of(text) for text in texts]
    is_op = np.array([op is not None for op in ops], np.bool_)
    name = rows.name_codes(
        text.partition(", op_id = ")[0] if op is None else op.name for op, text in zip(ops, texts, strict=True)
    )
    here = ~is_op
    rows.add("user_annotation", start_ns=start_ns[here], end_ns=end_ns[here], name=name[here], lane=lane[here])
    known = [op for op in ops if op is not None]
    codes = {sizes: _signature(rows, sizes) for sizes in dict.fromkeys(op.sizes for op in known)}
    rows.add(
        "cpu_op",
        start_ns=start_ns[is_op],
        end_ns=end_ns[is_op],
        name=name[is_op],
        lane=lane[is_op],
        sequence_number=np.array([op.sequence_number for op in known], np.int64),
        signature=np.array([codes[op.sizes] for op in known], np.int64),
    )


def _signature(rows: RowBlocks, sizes: str) -> int:
    try:
        shapes = msgspec.json.decode(sizes, type=list)
    except (msgspec.DecodeError, RecursionError):
        return -1
    return rows.signatures.code_of(OpSignature(name="", shapes=freeze(shapes)))
