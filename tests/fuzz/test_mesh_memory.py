"""Rounds of packets in C read and write nothing that is not their own, and move all bytes within every limit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.fuzz.watched import watched_program
from tracelens.network import packets


def test_no_round_leads_out_of_the_arrays(tmp_path: Path) -> None:
    program = watched_program("played_rounds.c", Path(packets.__file__).with_name("packets.c"), tmp_path)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    # 3 * 20 meshes of each number of ranks; one rank alone has nothing to send
    assert int(done.stdout) > 8 * 3 * 20
