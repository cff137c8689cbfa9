"""A trace format is one file, of this package or of another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracelens.analysis.loaded_trace import load
from tracelens.trace.reading import formats

FILE = '''
"""Lines of "start duration name", after the word LINES."""
import numpy as np
from tracelens.trace.reading.source import reader
from tracelens.trace.reading.source import RowBlocks
from tracelens.trace.table import Recorder

@reader("lines", recognizes=lambda source: source.start.startswith(b"LINES"))
def read(source):
    rows = RowBlocks(source.name)
    lines = [line.split() for line in source.whole().decode().splitlines()[1:]]
    start = np.array([int(line[0]) for line in lines])
    zero = np.zeros(len(lines), np.int64)
    rows.add("kernel", start_ns=start, end_ns=start + [int(line[1]) for line in lines],
             name=rows.name_codes(line[2] for line in lines), lane=rows.lane_codes(zero, zero), stream=0, device=0)
    return rows.table(Recorder(file="a list of lines"))
'''


@pytest.fixture
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package beside this one that announces the module ``outside_reader``."""
    (tmp_path / "outside_reader.py").write_text(FILE)
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{formats.ENTRY_POINTS}]\nlines = outside_reader\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    formats.readers.cache_clear()
    yield
    formats.readers.cache_clear()
    sys.modules.pop("outside_reader", None)


@pytest.mark.usefixtures("_outside")
def test_an_installed_file_adds_a_format(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("LINES\n10 5 k\n20 7 k\n")
    trace = load(path)
    assert trace.table.duration_ns.tolist() == [5, 7]
    assert trace.table.recorder.file == "a list of lines"
    assert "lines" in formats.readers()
