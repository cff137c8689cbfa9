"""Kernels that only turn images from one memory layout into another for a convolution."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted
from tracelens.analysis.verdict.summary import Said
from tracelens.lazy.patterns import lazy_pattern

_TURNS = lazy_pattern(r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|^batched_transpose_\d")
#: MIOpen's, which PyTorch hands channels last by default from ROCm 7 on (pytorch/pytorch#63617, #170947).
_OF_MIOPEN = "batched_transpose_"
_MIOPEN = "model and input to(memory_format=torch.channels_last); before ROCm 7 with PYTORCH_MIOPEN_SUGGEST_NHWC=1"


@finding(
    "conv_layout_changes",
    Advice(
        sees="Kernels before and after convolutions that only turn channels-first images into channels-last ones, or "
        "back.",
        costs="The fast convolution kernels want channels last: each call reads and writes its whole input and output "
        "once more.",
        remedy="model and input to(memory_format=torch.channels_last), and torch.backends.cudnn.benchmark = True",
        wrong_when="An op between the convolutions works on channels first only: the layout then changes there.",
        references=("https://pytorch.org/tutorials/intermediate/memory_format_tutorial.html",),
    ),
)
def conv_layout_changes(seen: Observed) -> Iterator[Candidate]:
    """Gain: all of their time."""
    names = seen.table.names
    codes = [code for code in np.unique(seen.activity.name).tolist() if _TURNS.search(names[code])]
    events = np.flatnonzero(np.isin(seen.activity.name, codes))
    if not len(events):
        return
    time_us = float(seen.activity.duration_us(events).sum())
    yield Candidate(
        why=f"{counted(len(events), 'kernel')} only change the layout of images, {seen.share_text(time_us)}",
        claimed=seen.kernels(events, spares_launches=True),
        computed="their time: with channels last there are none",
        certainty="high",
        remedy=_MIOPEN if any(names[code].startswith(_OF_MIOPEN) for code in codes) else None,
        figures=(Said(what="kernels", value=len(events), unit="count"), seen.gpu_share(time_us)),
        evidence=seen.evidence(np.unique(seen.row_of_event[events[seen.row_of_event[events] >= 0]])),
        row=int(seen.activity.op[events[0]]) if seen.activity.op[events[0]] >= 0 else None,
    )
