"""A key-value cache that is copied as a whole for every token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.signature import OpSignature

#: Shortest cache that is taken for one.
_LEAST_LENGTH = 16


@finding(
    "growing_cache",
    Advice(
        sees="Concatenation of a long tensor with one more row of it: a key-value cache that grows by a token.",
        costs="The whole cache of every layer is read and written anew for each token.",
        remedy="cache_implementation='static' (Transformers), or an engine with a paged cache (vLLM, SGLang, "
        "FlashInfer)",
        wrong_when="Sequences are short: the copy is then no longer than its launch.",
        references=("Kwon et al., PagedAttention, 2023, arXiv:2309.06180",),
    ),
)
def growing_cache(seen: Observed) -> Iterator[Candidate]:
    """Gain: all of their time."""
    rows = seen.rows_where(seen.column("name") == "aten::cat")
    rows = rows[np.array([_grows(op) for op in seen.signatures(rows)], np.bool_)]
    rest = Candidate(
        why=": the key-value cache grows by a token at a time",
        claimed=seen.calls(rows, spares_launches=True),
        computed="their time: a cache of fixed pages is written in place",
    )
    yield from candidate_of_calls(seen, rows, "copy", rest, plural="copies")


def _grows(op: OpSignature) -> bool:
    """Whether the first of two tensors is long where the second has one row, and alike elsewhere."""
    tensors = op.shapes[0] if op.shapes else ()
    if len(tensors) != 2 or not all(isinstance(shape, tuple) for shape in tensors):
        return False
    first, second = tensors
    apart = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
    return len(first) == len(second) >= 3 and len(apart) == 1 and apart[0][0] >= _LEAST_LENGTH and apart[0][1] == 1
