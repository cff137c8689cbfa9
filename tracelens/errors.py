"""Every error raised on purpose. ``cli`` catches ``TracelensError`` once and exits with the code of its class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: How many names an error lists, and how much less alike than the nearest another name may be to be suggested too.
_SHOWN, _LONGEST, _AS_NEAR = 15, 70, 0.05


class TracelensError(Exception):
    """Base class. The message is one clear sentence: what, where, and what to do."""

    exit_code = 1


class InputError(TracelensError):
    """An input is missing or cannot be read as what it should be (exit 1)."""

    exit_code = 1


class MemoryLimitError(InputError):
    """The command asked for more memory than it may have (exit 1)."""


class OutputError(TracelensError):
    """What was asked for cannot be written (exit 1)."""

    exit_code = 1


class UsageError(TracelensError):
    """A name, option or extension that the caller gave does not fit (exit 2)."""

    exit_code = 2

    @classmethod
    def unknown(cls, what: str, given: str, known: Iterable[str], *, listed: str = "") -> UsageError:
        """``no device named 'mi30x'; did you mean mi300x?``; without a near name ``listed``, or the names."""
        names = sorted(set(known))
        if near := _nearest(given, names):
            return cls(f"no {what} named {given!r}; did you mean {' or '.join(near)}?")
        clipped = (name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..." for name in names[:_SHOWN])
        shown = ", ".join(clipped) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        return cls(f"no {what} named {given!r}; {listed or 'known: ' + (shown or 'none')}")


def _nearest(given: str, known: Sequence[str]) -> list[str]:
    """The names that are about as near as the nearest, at most three; else those that contain what was given."""
    import difflib

    asked = given.lower().lstrip("-")
    by_lower = {name.lower().lstrip("-"): name for name in known}
    close = difflib.get_close_matches(asked, by_lower, n=3, cutoff=0.6)
    matcher = difflib.SequenceMatcher(b=asked)
    ratios = {}
    for name in close:
        matcher.set_seq1(name)
        ratios[name] = matcher.ratio()
    near = [name for name in close if ratios[name] >= ratios[close[0]] - _AS_NEAR]
    if not near and len(asked) > 1:
        near = [name for name in by_lower if asked in name][:3]
    return [by_lower[name] for name in near]


class NothingToAnalyzeError(TracelensError):
    """The input is readable and holds nothing that the command could work on (exit 3)."""

    exit_code = 3


class SignatureError(TracelensError):
    """A recorded op call does not have the shape, type or scalar that its perf model reads.

    Inside a report this costs the op its model, not the report: the message becomes the row's note.
    """
