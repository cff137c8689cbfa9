"""Numbers in words, as sentences of a report print them."""

from __future__ import annotations


def counted(count: int, what: str, plural: str = "") -> str:
    """A number of things, in words.

    >>> counted(1, "gap"), counted(1200, "gap"), counted(2, "copy", "copies")
    ('1 gap', '1,200 gaps', '2 copies')
    """
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def takes(count: int) -> str:
    """The verb of so many things.

    >>> takes(1), takes(3)
    ('takes', 'take')
    """
    return "takes" if count == 1 else "take"


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
