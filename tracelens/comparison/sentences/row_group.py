"""Rows that one sentence speaks of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tracelens.comparison.compared import ComparedRow, RankChange, RowSide
from tracelens.comparison.sentences.amounts_in_words import calls_text, named_and_more, signed_ms
from tracelens.files.safe_text import clipped
from tracelens.lazy.records import dataclass

#: Characters of an op that a sentence names.
_WIDEST_OP = 48


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one sentence, and how the ranks changed."""

    rows: tuple[ComparedRow, ...]
    ranks: Sequence[RankChange] = ()

    @property
    def a(self) -> tuple[RowSide, ...]:
        return tuple(row.a for row in self.rows if row.a)

    @property
    def b(self) -> tuple[RowSide, ...]:
        return tuple(row.b for row in self.rows if row.b)

    @property
    def change_ms(self) -> float:
        return sum(row.change_ms for row in self.rows)

    @property
    def kernel_ms(self) -> tuple[float, float]:
        """Of A and of B."""
        return sum(side.kernel_ms for side in self.a), sum(side.kernel_ms for side in self.b)

    @property
    def calls(self) -> str:
        """``24 calls`` of a step of B; of A where B has none."""
        return calls_text(sum(side.calls for side in self.b or self.a))

    def ops(self, sides: Sequence[RowSide]) -> str:
        """``aten::add, aten::mul``."""
        ops = dict.fromkeys(op for side in sides for op in side.ops)
        return named_and_more([clipped(op, _WIDEST_OP) for op in ops])

    def alone(self, sides: Sequence[RowSide], what: str) -> str:
        """``aten::add is new``."""
        several = len({op for side in sides for op in side.ops}) > 1
        return f"{self.ops(sides)} {'are' if several else 'is'} {what}, {self.calls}"

    def amount(self, sides: Sequence[RowSide]) -> str:
        """``2.2 ms of aten::add, aten::mul (48 calls)``."""
        ms, calls = sum(side.ms for side in sides), sum(side.calls for side in sides)
        return f"{signed_ms(ms)[1:]} of {self.ops(sides)} ({calls_text(calls)})"

    def is_of_several_categories(self) -> bool:
        return len({row.category for row in self.rows}) > 1

    def by_category(self) -> str:
        """``GEMM +0.6 ms, elementwise +0.09 ms``: the changes of most time."""
        by_category: dict[str, float] = defaultdict(float)
        for row in self.rows:
            by_category[row.category] += row.change_ms
        largest = sorted(by_category.items(), key=lambda each: -abs(each[1]))
        return named_and_more([f"{category} {signed_ms(ms)}" for category, ms in largest])
