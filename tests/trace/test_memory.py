"""The limit on memory: from the machine, as given, and what it says when it is reached."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tracelens.errors import InputError
from tracelens.files import memory_limit
from tracelens.files.memory_limit import DEFAULT_SHARE, MemoryLimit, limited, machine_bytes, resident_bytes


def test_the_default_is_a_share_of_the_machine() -> None:
    assert MemoryLimit.of_gb(None).most_bytes == int(machine_bytes() * DEFAULT_SHARE)
    assert 2**28 < machine_bytes() < 2**50


def test_a_container_with_less_than_the_machine_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1000000000\n")
    (tmp_path / "unlimited").write_text("max\n")
    monkeypatch.setattr(
        memory_limit, "_CONTROL_GROUPS", (tmp_path / "unlimited", tmp_path / "memory.max", tmp_path / "none")
    )
    assert machine_bytes() == 1_000_000_000
    assert MemoryLimit.of_gb(None).most_bytes == 750_000_000


def test_the_message_has_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "resident_bytes", lambda: 2_100_000_000)
    limit = MemoryLimit.of_gb(2)
    with pytest.raises(InputError) as caught:
        limit.check("t.json.gz", text_bytes=1_500_000_000, file_bytes=3_000_000)
    assert str(caught.value) == (
        "t.json.gz does not fit: 2.1 GB of memory are in use after 1.5 GB of text (3.0 MB of the file), "
        "--max-memory is 2 GB; raise it, or record fewer steps"
    )
    monkeypatch.setattr(memory_limit, "resident_bytes", lambda: None)
    limit.check("t.json.gz", text_bytes=1, file_bytes=1)


@pytest.mark.skipif(not hasattr(signal, "SIGVTALRM"), reason="no timer of processor time")
def test_work_that_is_over_the_limit_and_makes_little_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses nothing here: objects are made and forgotten. Looking at memory ends it, and ends with it."""
    before = signal.getsignal(signal.SIGVTALRM)
    monkeypatch.setattr(memory_limit, "_limit_data", lambda **_: None)

    def work() -> None:
        with limited(0.5):
            monkeypatch.setattr(memory_limit, "resident_bytes", lambda: 600_000_000)
            ends = time.process_time() + 20
            while time.process_time() < ends:
                str(ends)

    with pytest.raises(InputError, match=r"more than the 0\.5 GB of --max-memory; 0\.6 GB were in use"):
        work()
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_what_a_process_holds_is_known_here() -> None:
    assert (resident_bytes() or 0) > 10_000_000
