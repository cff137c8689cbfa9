"""Files of other tools are named in the error sentence, from their first bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tracelens.errors import InputError
from tracelens.trace.reading.read import other_format, read_trace

ROCPROF = b'{ "traceEvents":[{}\n,{"ph":"X","name":"k","pid":"6","args":{"BeginNs":"1","EndNs":"2","DurationNs":"1"}}]}'
PACKETS = b"\x0a\x03\x50\x01\x18" * 3


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"\x0a\xc7\xa9\x01\x12\x0e/host:metadata" + b"x" * 90_000, "an XPlane profile"),
        (PACKETS, "a Perfetto trace, but damaged at byte"),
        (PACKETS[:5], "a Perfetto trace, but damaged at byte"),
        (b"SQLite format 3\x00" + bytes(80), "a SQLite database, but not of Nsight Systems or rocprof"),
        (b'{"rocprofiler-sdk-tool":[{"metadata":{}}]}', "a trace of rocprofv3"),
        (ROCPROF.replace(b'"BeginNs":"1"', b'"BeginNs":"x"'), "a trace of rocprof (v1 or v2)"),
    ],
)
def test_a_file_of_another_tool_is_named_at_once(start: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(start)
    with pytest.raises(InputError, match="t.json is " + what.replace("(", "[(]").replace(")", "[)]")):
        read_trace(path)


def test_the_rest_of_a_foreign_file_is_not_read(tmp_path: Path) -> None:
    """Behind its first bytes stands what no reader accepts, and the sentence is the same."""
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"rocprofiler-sdk-tool":[' + b"{" * 2_000_000)[:-4_0])
    with pytest.raises(InputError, match="rocprofv3"):
        read_trace(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"\n\n",
        b"\n[]",
        b'\n{"traceEvents": []}',
        b'{"traceEvents": [{"cat": "kernel", "args": {"BeginNs": 1, "EndNs": 2, "DurationNs": 3}}]}',
        b'{"a": "rocprofiler-sdk-tool", "traceEvents": []}',
    ],
)
def test_what_may_be_a_trace_is_not_taken_for_another_tools(text: bytes) -> None:
    assert other_format(text) is None
