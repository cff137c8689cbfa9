"""Files of other profilers and packers, told by how they begin: named at once instead of being searched for events."""

from __future__ import annotations

import re

# Other contents people hand over, by their first bytes.
_SIGNATURES = (
    (b"SQLite format 3\x00", "a SQLite database, but not of Nsight Systems or rocprof: export the report again"),
    (b"<", "HTML or XML: hand over the profiler's JSON instead"),
    (
        b"\x80",
        "a Python pickle, which can run code when it is opened, and is not: for a memory snapshot export its JSON",
    ),
)
_NO_TIMES = "which has shapes but no times: hand over the Kineto trace of the same run"
_PATTERNS = (
    # GlobalMetadata, its length before it: a version (field 1), or attributes (2) with a name each; or the same as JSON
    (
        re.compile(rb"[\x03-\x7f](?:\n[\x01-\x1f]\d{1,4}\.\d|\x12[\x00-\x7f]\n\x06schema)"),
        f"a Chakra execution trace, {_NO_TIMES}",
    ),
    (re.compile(rb'\s*+\{\s*+"(?:version"\s*+:\s*+"\d|attr"\s*+:\s*+\[)'), f"a Chakra execution trace, {_NO_TIMES}"),
    (re.compile(rb'\s*+\{\s*+"schema"\s*+:\s*+"\d'), f"a PyTorch execution trace, {_NO_TIMES}"),
)
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


def named(text: bytes, name: str = "") -> str | None:
    """What a file is that begins with ``text``, and what to do with it; None for what may be a trace.

    ``name`` counts where nothing else speaks: reports of Nsight Systems are sealed.
    """
    if name.endswith(_REPORTS):
        return f"a report of Nsight Systems: export it with 'nsys export --type sqlite {name}', and hand that over"
    for pattern, what in _PATTERNS:
        if pattern.match(text):
            return what
    for start, what in _SIGNATURES:
        if text.startswith(start):
            return what
    return None
