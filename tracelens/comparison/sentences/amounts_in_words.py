"""Changes, counts and ratios in words."""

from __future__ import annotations

from collections.abc import Sequence

#: What a sentence names of many.
_MOST_NAMED = 3


def signed_ms(ms: float) -> str:
    """``+3.1 ms``."""
    size = abs(ms)
    text = f"{size:,.1f}" if size >= 10 else f"{size:.3g}" if size >= 0.001 else f"{size:.2g}"
    return f"{'+' if ms >= 0 else '-'}{text} ms"


def named_and_more(texts: Sequence[str]) -> str:
    """``GEMM, elementwise, reduce and 2 more``."""
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more


def count_text(value: float) -> str:
    """A mean count: whole where it is."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.005 else f"{value:,.1f}"


def calls_text(count: float) -> str:
    """``24 calls``."""
    return f"{count_text(count)} {'call' if count_text(count) == '1' else 'calls'}"


def slower_text(before: float, after: float) -> str:
    """``30 % slower``, ``12 % faster``, ``2.5 times as long``."""
    if before and after >= 1.95 * before:
        ratio = after / before
        return f"{ratio:.0f} times as long" if ratio >= 9.95 else f"{ratio:.2g} times as long"
    share = 100 * (after / before - 1) if before else 0.0
    size = f"{abs(share):.0f}" if abs(share) >= 9.5 else f"{abs(share):.2g}"
    return f"{size} % {'slower' if share > 0 else 'faster'}"
