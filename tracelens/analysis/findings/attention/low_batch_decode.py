"""GEMMs of a few rows that only read weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding

#: Most rows of such a GEMM, and the share of the device time that they must have.
_FEW_ROWS, _MOST_OF_IT = 16, 0.3


@finding(
    "low_batch_decode",
    Advice(
        sees="GEMMs of up to 16 rows, bound by reading their weights, are most of the device time: decoding few "
        "sequences.",
        costs="The weights are read once per step whatever the batch: more sequences would share that time.",
        remedy="decode more sequences at once (continuous batching), speculative decoding, or narrower weights",
        wrong_when="One sequence's latency is what matters and weights are as narrow as they may be.",
        references=("Yu et al., Orca, OSDI 2022", "Leviathan et al., speculative decoding, 2022, arXiv:2211.17192"),
        is_general=True,
    ),
)
def low_batch_decode(seen: Observed) -> Iterator[Candidate]:
    """Gain, for the same number of tokens: twice the batch reads the weights half as often; at least none."""
    rows, models = seen.gemms
    bounds = zip(models.tolist(), rows["roofline_bound"].tolist(), strict=True)
    few = np.array([min(gemm.m, gemm.n) <= _FEW_ROWS and bound in ("memory", "launch") for gemm, bound in bounds], bool)
    if rows["kernel_us_sum"].to_numpy()[few].sum() <= _MOST_OF_IT * seen.device_us:
        return
    rows = rows[few]
    rest = Candidate(
        why=": they have a few rows each and only read weights, so twice the batch would take hardly longer",
        claimed=seen.calls(rows, 0.5, low=0.0),
        computed="for the same tokens: half of their time, as twice the batch reads the weights half as often",
        certainty="low",
    )
    yield from candidate_of_calls(seen, rows, "GEMM", rest)
