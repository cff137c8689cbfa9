"""All-to-alls of uneven splits: one rank is sent far more than the others, and all wait for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Floats, Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted, takes
from tracelens.analysis.reading.recorded_groups import attributes_of_calls
from tracelens.analysis.sheets.ops import coll_analysis
from tracelens.analysis.verdict.summary import Evidence, Said
from tracelens.analysis.work.remote_share import split_sizes
from tracelens.units import NS_PER_US

#: How many times the mean of an exchange its largest part must be.
_UNEVEN = 2.0
#: Categories whose time goes with the rows that a rank was sent.
_EXPERTS = ("GroupedGEMM_fwd", "GroupedGEMM_bwd", "MoE_fused", "MoE_unfused")


@finding(
    "expert_imbalance",
    Advice(
        sees="All-to-alls whose recorded split sizes are uneven: one rank is sent twice its share or more, or this "
        "rank's experts are given far more rows than it sends.",
        costs="An exchange is done when its largest part is, and the step when the rank with most rows has computed.",
        remedy="even out what the router sends (auxiliary loss, capacity, redundant experts), or reshard the embedding "
        "tables: `tracelens route`",
        wrong_when="The exchange waits for a late rank more than it moves: `tracelens collectives` tells them apart.",
        references=(
            "Fedus et al., Switch Transformers, 2021, arXiv:2101.03961",
            "https://github.com/deepseek-ai/EPLB",
        ),
        command="tracelens route --help",
    ),
)
def expert_imbalance(seen: Observed) -> Iterator[Candidate]:
    """Gain: of each uneven exchange what its largest part takes longer than the mean; of the experts' kernels what
    they were given beyond what this rank sends.
    """
    frame = seen.context.frames[coll_analysis.TITLE]
    if "in_split" not in frame or not frame["in_split"].map(lambda split: bool(split_sizes(split))).any():
        return
    events = np.flatnonzero(seen.activity.collective)
    most, sent, received = _splits(seen, events)
    uneven = most >= _UNEVEN
    at, share = events[uneven], 1 - 1 / most[uneven]
    claimed = seen.kernels(at, share)
    surplus = float(received.sum() / sent.sum()) if sent.sum() else 1.0
    rows = seen.rows_where([category in _EXPERTS for category in seen.column("category")])
    overloaded = surplus >= _UNEVEN and not rows.empty
    if overloaded:
        claimed += seen.calls(rows, 1 - 1 / surplus, low=0.0)
    elif not len(at):
        return
    time_us = float(seen.activity.duration[at].sum()) / NS_PER_US
    texts, figures = [], []
    if len(at):
        largest = float(np.average(most[uneven], weights=seen.activity.duration[at] + 1))
        exchanges = counted(len(at), "all-to-all")
        texts.append(
            f"{exchanges} {takes(len(at))} {seen.share_text(time_us)}: one rank is sent {largest:.1f} times the mean"
        )
        figures += [Said(what="uneven all-to-alls", value=len(at), unit="count"), seen.gpu_share(time_us),
                    Said(what="largest part over the mean", value=largest, unit="ratio")]  # fmt: skip
    if overloaded:
        texts.append(f"this rank's experts are given {surplus:.1f} times the rows that it sends")
        figures.append(Said(what="rows received over sent", value=surplus, unit="ratio"))
    uneven_rows = frame[frame["in_split"].map(lambda split: bool(split_sizes(split)))]
    yield Candidate(
        why="; ".join(texts),
        claimed=claimed,
        computed="each uneven exchange for as long as its mean part is of its largest; the experts' kernels for as "
        "many rows as this rank sends",
        figures=tuple(figures),
        evidence=tuple(
            Evidence(sheet=coll_analysis.TITLE, row={"collective": kind, "in_split": split})
            for kind, split in zip(uneven_rows["collective"][:10], uneven_rows["in_split"][:10], strict=True)
        ),
    )


def _splits(seen: Observed, events: npt.NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """Of each device event (largest part over the mean, elements sent, elements received): 1, 0, 0 where not known."""
    calls, call = attributes_of_calls(seen.table, seen.tree, seen.activity.rows[events])
    most, sent, received = np.ones(len(calls)), np.zeros(len(calls)), np.zeros(len(calls))
    for i, attributes in enumerate(calls):
        into, out = (split_sizes(attributes.get(f"{side} split size")) for side in ("In", "Out"))
        if into and sum(into):
            most[i], sent[i] = max(into) * len(into) / sum(into), sum(into)
            received[i] = sum(out) if out else sum(into)
    return most[call], sent[call], received[call]
