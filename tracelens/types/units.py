"""Conversion constants, sizes and durations as people type them, numbers as people read them. 1 GB = 1e9 bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from tracelens.errors import UsageError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
US_PER_MS = 1_000
US_PER_S = 1_000_000
MS_PER_S = 1_000
S_PER_DAY = 86_400
BYTES_PER_MB = 1_000_000
BYTES_PER_GB = 1_000_000_000
BYTES_PER_MIB = 1 << 20
BYTES_PER_GIB = 1 << 30
FLOPS_PER_GFLOP = 1_000_000_000
FLOPS_PER_TFLOP = 1_000_000_000_000
# 1 tera-unit per second is 1e6 units per microsecond; 1 GB/s is 1e3 bytes per microsecond.
TERA_PER_S_IN_PER_US = 1_000_000
GB_PER_S_IN_BYTES_PER_US = 1_000
GB_PER_TB = 1_000

_WRITTEN = re.compile(r"([+-]?(?:\d[\d_]*+(?:\.\d++)?|\.\d++))(?:[eE]([+-]?\d{1,2}+))?\s*+([A-Za-zµ]*+)", re.ASCII)
_DECIMAL = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}
#: As often as one: thousands are decimal everywhere, ``Ki`` and its like are powers of 1,024.
COUNTS = {name: Fraction(1000) ** power for name, power in _DECIMAL.items()} | {
    f"{name.upper()}i": Fraction(1024) ** power for name, power in _DECIMAL.items() if name
}
BYTES = COUNTS | {f"{name}B": factor for name, factor in COUNTS.items()}
SECONDS = {
    "ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000),
    "s": Fraction(1), "m": Fraction(60), "min": Fraction(60), "h": Fraction(3600), "d": Fraction(86400),
}  # fmt: skip


def count(text: str, *, least: int | None = None) -> int:
    """``8192``, ``8k`` (8,000), ``8Ki`` (8,192), ``1e6``. UsageError for what is no whole number, or below ``least``.

    >>> count("1.5k"), count("2Ki")
    (1500, 2048)
    """
    value = _read(text, COUNTS)
    if value is None or value.denominator != 1 or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise UsageError(f"must be a whole number{bound}, like 8192, 8k or 1e6, got {text!r}")
    return int(value)


def size_bytes(text: str) -> int:
    """``64000000``, ``64MB``, ``1GiB``, ``64e6``. UsageError for anything else."""
    value = _read(text, BYTES)
    if value is None or value.denominator != 1:
        raise UsageError(f"must be a number of bytes, like 64MB, 1GiB or 65536, got {text!r}")
    return int(value)


def duration_s(text: str, *, unit: str | None = None) -> float:
    """``500ms``, ``2.5s``, ``1h`` in seconds; a number without its unit is one of ``unit``, else a UsageError.

    >>> duration_s("250ms"), duration_s("3", unit="us")
    (0.25, 3e-06)
    """
    units = SECONDS if unit is None else SECONDS | {"": SECONDS[unit]}
    value = _read(text, units)
    if value is not None and value >= 0:
        return float(value)
    if _read(text, {"": Fraction(1)}):
        raise UsageError(f"a duration needs its unit: write {text}ms or {text}s, not {text}")
    raise UsageError(f"a duration looks like 500ms, 2.5s or 1h, not {text!r}")


def _read(text: str, units: Mapping[str, Fraction]) -> Fraction | None:
    """The number times its unit, spelled as in ``units`` or in other cases where that is only one; None for others."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        return None
    number, power, unit = found.groups()
    alike = {factor for name, factor in units.items() if name.lower() == unit.lower()}
    factor = units.get(unit, alike.pop() if len(alike) == 1 else None)
    return None if factor is None else Fraction(number.replace("_", "")) * Fraction(10) ** int(power or 0) * factor


def shared_by_all(lists: Sequence[Sequence[str]]) -> list[str]:
    """The texts of the first list that are in every list, in its order."""
    return [text for text in dict.fromkeys(lists[0] if lists else ()) if all(text in each for each in lists)]


def counted(count: int, what: str, plural: str = "") -> str:
    """A number of things, in words.

    >>> counted(1, "gap"), counted(1200, "gap"), counted(2, "copy", "copies")
    ('1 gap', '1,200 gaps', '2 copies')
    """
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def takes(count: int, verb: str = "take") -> str:
    """The verb of so many things.

    >>> takes(1), takes(3), takes(1, "reach")
    ('takes', 'take', 'reaches')
    """
    return verb if count != 1 else f"{verb}es" if verb.endswith("ch") else f"{verb}s"


def duration(us: float) -> str:
    """A length of time in µs, ms or s, with up to three digits.

    >>> duration(54), duration(6_543), duration(493_284), duration(12_190_000)
    ('54 µs', '6.54 ms', '493 ms', '12.2 s')
    """
    for unit, name in ((1.0, "µs"), (1e3, "ms")):
        if us < 999.5 * unit:
            return f"{us / unit:.3g} {name}"
    return f"{us / 1e6:,.1f} s" if us < 999.5e6 else f"{us / 1e6:,.0f} s"


def shortened(text: str, most: int = 40) -> str:
    """As much of a text as fits in a sentence."""
    return text if len(text) <= most else text[: most - 1] + "…"


def percent(share: float, decimals: int = 0) -> str:
    """A share, in percent.

    >>> percent(0.123), percent(0.123, 1)
    ('12 %', '12.3 %')
    """
    return f"{100 * share:.{decimals}f} %"


def size(mb: float) -> str:
    """A number of bytes, given in MB, in kB, MB or GB with up to three digits.

    >>> size(0.0246), size(799), size(16_985)
    ('24.6 kB', '799 MB', '17 GB')
    """
    for unit, name in ((1e-3, "kB"), (1.0, "MB")):
        if mb < 999.5 * unit:
            return f"{mb / unit:.3g} {name}"
    return f"{mb / 1e3:,.0f} GB" if mb >= 10_000 else f"{mb / 1e3:.3g} GB"


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
    """A fraction more or less, in percent with its sign; none is neither.

    >>> shown_change(0.0312), shown_change(-0.0001), shown_change(0.0)
    ('+3.1 %', '0.0 %', '0.0 %')
    """
    text = f"{100 * share:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def shown_share(share: float) -> str:
    """A fraction in whole percent; a tenth where that is all there is."""
    return shown_percent(share) if 0 < share < 0.01 else f"{100 * share:.0f} %"


def signed_ms(ms: float) -> str:
    """``+3.1 ms``."""
    size = abs(ms)
    text = f"{size:,.1f}" if size >= 10 else f"{size:.3g}" if size >= 0.001 else f"{size:.2g}"
    return f"{'+' if ms >= 0 else '-'}{text} ms"


def count_text(value: float) -> str:
    """A mean count: whole where it is."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.005 else f"{value:,.1f}"


def slower_text(before: float, after: float) -> str:
    """``30 % slower``, ``12 % faster``, ``2.5 times as long``."""
    if before and after >= 1.95 * before:
        ratio = after / before
        return f"{ratio:.0f} times as long" if ratio >= 9.95 else f"{ratio:.2g} times as long"
    share = 100 * (after / before - 1) if before else 0.0
    size = f"{abs(share):.0f}" if abs(share) >= 9.5 else f"{abs(share):.2g}"
    return f"{size} % {'slower' if share > 0 else 'faster'}"
