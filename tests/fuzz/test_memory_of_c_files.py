"""C files read and write nothing that is not their own; what the programs that run them make up, they also check."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fuzz.watched import watched_program
from tracelens.predict.network import packets
from tracelens.trace import tree


@pytest.mark.parametrize(
    ("program", "module", "source", "least"),
    [
        # Rounds: 3 * 20 meshes of each number of ranks; one rank alone has nothing to send
        ("played_rounds.c", packets, "packets.c", 8 * 3 * 20),
        # Intervals in another one, of up to 200 at a time
        ("nested_intervals.c", tree, "nest.c", 10_000),
    ],
)
def test_nothing_leads_out_of_the_arrays(program: str, module: object, source: str, least: int, tmp_path: Path) -> None:
    watched = watched_program(program, Path(module.__file__).with_name(source), tmp_path)
    done = subprocess.run([watched], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > least
