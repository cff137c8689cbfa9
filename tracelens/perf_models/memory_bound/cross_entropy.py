"""Cross entropy of logits, fused with its softmax."""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy(PerfModel):
    """Softmax cross entropy over ``vocabulary`` logits of each row, and its gradient in place.

    flops = 5 per logit; bytes = one read and one write of the logits, the least that the gradient in place needs.
    """

    category: ClassVar[str] = "CrossEntropy_fwd"

    rows: int
    vocabulary: int
    dtype: DType | None

    def flops(self) -> int:
        return 5 * self.rows * self.vocabulary

    def hbm_bytes(self) -> int | float | None:
        return total_bytes((2 * self.rows * self.vocabulary, self.dtype))

    def backward(self) -> CrossEntropyBackward:
        """The backward over the same logits."""
        return CrossEntropyBackward(**{f.name: getattr(self, f.name) for f in fields(CrossEntropy)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropyBackward(CrossEntropy):
    """The gradient that the forward left in place, times the loss' gradient: 1 flop per logit, read and written."""

    category: ClassVar[str] = "CrossEntropy_bwd"

    def flops(self) -> int:
        return self.rows * self.vocabulary
