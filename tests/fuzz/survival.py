"""What every damaged trace must come out of: a report or one sentence, in time, with nothing readable lost."""

from __future__ import annotations

import csv
import gzip
import json
import re
import signal
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.mutation import Row
from tracelens.cli import main
from tracelens.files.safe_text import xml_text
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import TraceTable

#: Far above what the slowest sample takes: longer is a hang.
TIME_LIMIT_S = 20
#: What the command may end with: a report, an unreadable input, nothing to analyze.
EXIT_CODES = (0, 1, 3)
_SUPERFLUOUS = re.compile(rb"[\s\x00]*,(?:[\s\x00]*,)+|[\v\x00]+")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Fails the test instead of letting it hang; CPU seconds, as a busy machine is no hang."""

    def too_long(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} CPU s")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def rows_of(table: TraceTable) -> Counter[Row]:
    return Counter((start, table.name_of(i)) for i, start in enumerate(table.start_ns.tolist()))


def reported(content: bytes, kernels: Counter[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Runs ``tracelens report`` on the bytes, with all it writes; returns its exit code.

    Fails on anything but the codes allowed, when a loss is not stated, and when ``kernels``, how often each must be
    there, are not in the report.
    """
    path = folder / ("t.json.gz" if content.startswith(b"\x1f\x8b") else "t.json")
    path.write_bytes(content)
    output = folder / "out"
    code = main(["report", str(path), "-o", str(output), "--cpu", "--csv", "--steps", "file"])
    shown = capsys.readouterr()
    assert code in EXIT_CODES, (code, shown.err)
    assert "Traceback" not in shown.err
    if code:
        assert shown.err.startswith("error: t.json"), shown.err
        assert len(shown.err.splitlines()) == 1, shown.err
        return code
    document = json.loads((output / "report.json").read_text())
    losses = read_trace(path).losses
    warned = [w["text"] for w in document["warnings"] if w["id"] == "damaged_input"]
    assert warned == list(losses.notes)
    if losses.notes:
        assert losses.notes[0].split()[0] in shown.out
    if not any("this report covers rank" in w["text"] for w in document["warnings"]):
        found = kernel_counts(output / "csv" / "kernel_summary.csv")
        missing = {name: count for name, count in kernels.items() if found[xml_text(name)] < count}
        assert not missing, f"readable kernels are not in the report: {missing}, it has {found}"
    return code


def kernel_counts(path: Path) -> Counter[str]:
    """How often each kernel occurs, by its sheet; empty where there is none."""
    counts: Counter[str] = Counter()
    if path.exists():
        with path.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                counts[row["kernel_name"]] += int(float(row["kernels"]))
    return counts


def survives(content: bytes, readable: Counter[Row], folder: Path) -> TraceTable:
    """Reads the bytes: every readable row is there, and a text that is no JSON is not taken for sound.

    What costs no event needs no word: bytes that are no UTF-8 in a field nobody reads, blanks and commas too many.
    """
    path = folder / "read.json"
    path.write_bytes(content)
    table = read_trace(path)
    found = rows_of(table)
    missing = {row: count for row, count in readable.items() if found[row] < count}
    assert not missing, f"{len(missing)} readable events are lost, one is {next(iter(missing))}"
    if not table.losses:
        text = _SUPERFLUOUS.sub(lambda match: b"," if b"," in match[0] else b" ", _plain(content))
        json.loads(text.decode("utf-8-sig", "replace"), strict=False)
    return table


def _plain(content: bytes) -> bytes:
    return zlib.decompress(content, 31) if content.startswith(b"\x1f\x8b") else content


def zipped(content: bytes) -> bytes:
    """The bytes as a gzip file, the same each time."""
    return gzip.compress(content, compresslevel=1, mtime=0)
