"""Single figures as people read them: the terminal and the page say them alike."""

from __future__ import annotations

import math

from tracelens.analysis.verdict.summary import CategoryRow, Finding, FixesTogether, Unseen
from tracelens.backends.base import bound_name
from tracelens.files.short_names import short_kernel_name
from tracelens.units import GB_PER_TB


def bound_text(row: CategoryRow) -> str:
    """What bounds a category: ``no model`` where none of its work is known, ``unknown`` where not enough of it is."""
    if row.bound is not None:
        return bound_name(row.bound)
    known = (row.tflops_s, row.hbm_tb_s, row.wire_tb_s, row.backend)
    return "no model" if known == (None,) * 4 else "unknown"


def shown_tb_s(row: CategoryRow) -> str | None:
    """A category's bytes per second: TB/s of HBM, GB/s of a link or PCIe; None where they are not known."""
    if row.wire_tb_s is not None:
        return f"{'≤ ' if row.wire_at_most else ''}{shown_rate(row.wire_tb_s * GB_PER_TB)} GB/s"
    return None if row.hbm_tb_s is None else f"{'≤ ' if row.work_at_most else ''}{shown_rate(row.hbm_tb_s)} HBM"


def shown_tflops(row: CategoryRow) -> str | None:
    """A category's TFLOPS/s; None where they are not known."""
    return None if row.tflops_s is None else f"{'≤ ' if row.work_at_most else ''}{shown_rate(row.tflops_s)}"


def shown_ms(time_us: float) -> str:
    """A time in ms, without the unit."""
    ms = time_us / 1e3
    size = abs(ms)
    return f"{ms:,.1f}" if size >= 10 else f"{ms:#.3g}" if size >= 0.01 else f"{ms:.4f}" if ms else "0"


def shown_figure(value: float, digits: int = 4) -> str:
    """With so many digits, zeros at the end included, or as many as it has before the point.

    >>> [shown_figure(each) for each in (0, 0.00001234, 32.0, 7.117, 12345.6, 3)]
    ['0', '0.000012', '32.00', '7.117', '12,346', '3']
    """
    if not value or isinstance(value, int):
        return f"{int(value):,}"
    if not math.isfinite(value):
        return str(value)
    digits = digits if abs(value) >= 0.001 else 2
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(decimals, 0)}f}"


def shown_rate(value: float) -> str:
    """TFLOPS/s or TB/s, without the unit."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.005 or not value else "<0.01"


def shown_percent(share: float) -> str:
    """A fraction in percent, with a tenth."""
    return "<0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def shown_change(share: float) -> str:
    """A fraction more or less, in percent with its sign."""
    return f"{100 * share:+.1f} %"


def shown_share(share: float) -> str:
    """A fraction in whole percent; a tenth where that is all there is."""
    return shown_percent(share) if 0 < share < 0.01 else f"{100 * share:.0f} %"


def gain_range(finding: Finding) -> str:
    """``0-4.20 ms`` between the least and the most of a gain, ``4.20 ms`` where both are one; empty where not known."""
    if finding.gain_low_us is None or finding.gain_high_us is None:
        return ""
    low, high = shown_ms(finding.gain_low_us), shown_ms(finding.gain_high_us)
    return f"{high} ms" if low == high else f"{low}\N{EN DASH}{high} ms"


def together_text(together: FixesTogether) -> str:
    """``33.7 ms now, 29.5 after 1, 29.5 after 1-2: then the host limits``."""
    now, *after = map(shown_ms, together.step_us)
    applied = ["1", *(f"1-{n}" for n in range(2, len(after) + 1))]
    parts = [f"{now} ms now", *(f"{ms} after {which}" for ms, which in zip(after, applied, strict=False))]
    limit = {"host": "the host", "device": "the GPU"}.get(together.limited_by or "")
    return ", ".join(parts) + (f": then {limit} limits" if limit else "")


def is_impossible(share: float | None) -> bool:
    """Whether a share of a peak, a roofline or the best measured rate prints as more than 100 %."""
    return share is not None and round(100 * share) > 100


def limit_text(share: float) -> str:
    """A share of a limit in whole percent; marked where it cannot be."""
    return f"{shown_share(share)}{' (!)' if is_impossible(share) else ''}"


def unseen_text(unseen: Unseen) -> str:
    """``75 % of GPU time (no perf model): mine::unknown``."""
    names = f": {', '.join(map(short_kernel_name, unseen.ops))}" if unseen.ops else ""
    return f"{100 * unseen.share:.0f} % of GPU time ({unseen.because}){names}"
