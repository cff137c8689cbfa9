"""Every error raised on purpose. ``cli`` catches ``TracelensError`` once and exits with the code of its class."""

from __future__ import annotations

from collections.abc import Iterable


class TracelensError(Exception):
    """Base class. The message is one clear sentence: what, where, and what to do."""

    exit_code = 1


class InputError(TracelensError):
    """An input is missing or cannot be read as what it should be (exit 1)."""

    exit_code = 1


class OutputError(TracelensError):
    """What was asked for cannot be written (exit 1)."""

    exit_code = 1


class UsageError(TracelensError):
    """A name, option or extension that the caller gave does not fit (exit 2)."""

    exit_code = 2

    @classmethod
    def unknown(cls, what: str, given: str, known: Iterable[str]) -> UsageError:
        """``no device named 'mi30x'; did you mean mi300x?``"""
        import difflib

        known = sorted(set(known))
        by_lower = {name.lower(): name for name in known}
        close = difflib.get_close_matches(given.lower(), by_lower, n=3, cutoff=0.6)
        if close:
            return cls(f"no {what} named {given!r}; did you mean {' or '.join(by_lower[name] for name in close)}?")
        shown = ", ".join(known[:40]) + (" ..." if len(known) > 40 else "")
        return cls(f"no {what} named {given!r}; known: {shown or 'none'}")


class NothingToAnalyzeError(TracelensError):
    """The input is readable and holds nothing that the command could work on (exit 3)."""

    exit_code = 3


class SignatureError(TracelensError):
    """A recorded op call does not have the shape, type or scalar that its perf model reads.

    Inside a report this costs the op its model, not the report: the message becomes the row's note.
    """
