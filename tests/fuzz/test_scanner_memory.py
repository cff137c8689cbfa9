"""The scanner in C reads and writes nothing that is not its own, whatever a piece of an event list holds."""

from __future__ import annotations

import gzip
import struct
import subprocess
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.watched import watched_program
from tracelens.trace.reading.chrome.scanned_events import SOURCE

EXAMPLES = Path(__file__).resolve().parents[2] / "example_traces"
#: What mutations put between: what JSON is made of, its edges, and numbers at the limits of types.
_PARTS = (
    b'"', b"\\", b"\\u12", b"\\ud800", b"{", b"}", b"[", b"]", b",", b":", b"-", b".", b"e9", b"null", b"\x00", b"\xff",
    b"9223372036854775808", b"18446744073709551616", b"99999999999999999999999", b"0.00000000000000000001",
    b"1e308", b'"args":{', b'"ts":', b'"Input Dims":[[', b'"bytes":', b'"stream":"', b'"ph":"M",', b"[" * 80, b"},{" * 40,
)  # fmt: skip


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return watched_program("scanned_pieces.c", SOURCE, tmp_path_factory.mktemp("watched"))


def pieces(count: int, random: Random) -> list[bytes]:
    """Events of recorded traces, most of them changed, and many cut off."""
    found = []
    for path in sorted(EXAMPLES.rglob("*.json.gz")):
        text = gzip.decompress(path.read_bytes())
        start = text.index(b"[", text.index(b"traceEvents")) + 1
        for _ in range(count):
            at = text.find(b"{", random.randrange(start, max(start + 1, len(text) - 8000)))
            piece = bytearray(text[at : text.rfind(b"}", at, at + random.randrange(30, 6000)) + 1])
            for _ in range(random.choice((0, 1, 1, 2, 4))):
                place = random.randrange(len(piece) + 1)
                piece[place : place + random.choice((0, 1, 7))] = random.choice(_PARTS)
            found.append(bytes(piece[: random.randrange(len(piece) + 1)] if random.random() < 0.2 else piece))
    return found


@pytest.mark.parametrize("count", [10, pytest.param(4000, marks=pytest.mark.sweep)])
def test_no_piece_leads_out_of_the_arrays(count: int, watched: Path, tmp_path: Path) -> None:
    made = pieces(count, Random(count))
    file = tmp_path / "pieces"
    file.write_bytes(b"".join(struct.pack("<I", len(piece)) + piece for piece in made))
    done = subprocess.run([watched, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(made) / 20 < int(done.stdout) < 2 * len(made)
