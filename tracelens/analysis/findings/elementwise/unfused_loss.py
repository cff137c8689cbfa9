"""A cross-entropy over a large vocabulary, from parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.signature import OpSignature

#: Classes from which the loss is that of a language model.
_LARGE = 8192
_PARTS = ("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::nll_loss_forward", "aten::nll_loss_backward",
          "aten::log_softmax", "aten::nll_loss", "aten::nll_loss_nd", "aten::cross_entropy_loss")  # fmt: skip


@finding(
    "unfused_loss",
    Advice(
        sees="Log-softmax, loss and their backward over a large vocabulary as kernels of their own.",
        costs="The logits, tokens times vocabulary, are written and read several times, mostly in FP32.",
        remedy="a fused linear + cross-entropy in chunks (Liger Kernel, torchtune), or torch.compile the loss",
        wrong_when="The log-probabilities themselves are needed.",
        references=("Hsu et al., Liger Kernel, 2024, arXiv:2410.10989",),
    ),
)
def unfused_loss(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time, less that of reading the logits and writing their gradient once."""
    rows, device = seen.rows_where(seen.named(*_PARTS)), seen.device
    rows = rows[np.array([_vocabulary(op) >= _LARGE for op in seen.signatures(rows)], np.bool_)]
    if device is None or device.hbm is None or device.hbm.tb_s is None or rows.empty:
        return
    # One read and one write of the logits: what the forward softmax alone moves
    once_us = float((rows["hbm_mb"] / device.hbm.tb_s * rows["operation_count"]).max())
    total_us = float(rows["kernel_us_sum"].sum())
    if not once_us > 0:
        return
    rest = Candidate(
        why=": the cross-entropy over a large vocabulary is not fused",
        claimed=seen.calls(rows, 1 - min(once_us, total_us) / total_us, spares_launches=True),
        computed="their time, less that of the bytes of the largest of them at the rate of HBM",
    )
    yield from candidate_of_calls(seen, rows, "call", rest)


def _vocabulary(op: OpSignature) -> int:
    shapes = (op.shape_or_scalar(i) for i in range(len(op.shapes or ())))
    return max((shape[-1] for shape in shapes if len(shape) >= 2), default=0)
