"""Text that is almost JSON, made JSON: what profilers and their hosts are known to write wrongly.

Outside strings: ``NaN`` and ``Infinity`` in any spelling become ``null``, a comma before a closing bracket is dropped.
In strings: control characters, invalid escapes, lone surrogates and invalid UTF-8 become something readable.
The result is a function of the text alone, so a piece that is read again is repaired the same way.
"""

from __future__ import annotations

import re

from tracelens.lazy.patterns import lazy_pattern

#: A JSON string, as a pattern. One without an end reaches to the end of the text: as it matches there, what is in it is
#: not searched again from each of its quotes, which would take the square of its length.
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_TOKEN = lazy_pattern(STRING + rb"|-?\b(?:NaN|nan|Infinity|infinity|inf|Inf|INF)\b|,(?=\s*+[}\]])", re.DOTALL)
_SUSPECT = lazy_pattern(rb"[\x00-\x1f\\\x80-\xff]")
_CONTROL = lazy_pattern(rb"[\x00-\x1f]")
_ESCAPE = lazy_pattern(
    rb"\\(?:(?P<valid>[\"\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})|(?P<surrogate>u[dD][89a-fA-F][0-9a-fA-F]{2}))?"
)


def repaired(text: bytes) -> tuple[bytes, int]:
    """The text with every known fault put right, and how many values that were. It may still be no JSON."""
    count = 0

    def fix(match: re.Match[bytes]) -> bytes:
        nonlocal count
        token = match[0]
        if token[:1] == b'"':
            if _SUSPECT.search(token) is None:
                return token
            fixed = _repaired_string(token)
            count += fixed != token
            return fixed
        count += 1
        return b"" if token == b"," else b"null"

    return _TOKEN.sub(fix, text), count


def _repaired_string(token: bytes) -> bytes:
    token = _ESCAPE.sub(_repaired_escape, token)
    token = _CONTROL.sub(lambda m: b"\\u%04x" % m[0][0], token)
    try:
        token.decode()
    except UnicodeDecodeError:
        token = token.decode("utf-8", "replace").encode()
    return token


def _repaired_escape(match: re.Match[bytes]) -> bytes:
    if match["valid"]:
        return match[0]
    return rb"\ufffd" if match["surrogate"] else rb"\\"
