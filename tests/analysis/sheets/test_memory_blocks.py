"""A snapshot of PyTorch's allocator: what held memory at the peak and at the end, and files that are none."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.trace.reading.read import NO_FRAMES, UNUSED, read_memory_snapshot

MB = 1_000_000


def frames(name: str) -> list[dict[str, Any]]:
    """As with stacks="all": C++ first, then PyTorch's Python, then the program's."""
    return [
        {"filename": "??", "line": 0, "name": "c10::cuda::malloc"},
        {"filename": "/env/site-packages/torch/nn/linear.py", "line": 125, "name": "forward"},
        {"filename": "/home/me/train.py", "line": 7, "name": name},
    ]


def change(action: str, address: int, size: int, name: str = "") -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames(name) if name else []}


def snapshot(path: Path, blocks: list[tuple[int, str]], reserved: int, changes: list[dict[str, Any]]) -> Path:
    held = [{"size": size, "state": "active_allocated", "frames": frames(name)} for size, name in blocks]
    free = {"size": reserved - sum(size for size, _ in blocks), "state": "inactive", "frames": []}
    segments = [{"device": 0, "address": 1, "total_size": reserved, "stream": 0, "blocks": [*held, free]}]
    path.write_text(json.dumps({"segments": segments, "device_traces": [changes], "allocator_settings": {}}))
    return path


def test_the_peak_lies_before_the_snapshot_and_names_its_lines(tmp_path: Path, build: Callable[[], Builder]) -> None:
    """Weights of 100 MB stay; activations of 300 MB and 50 MB of before the history go; 30 MB come after."""
    changes = [
        change("segment_alloc", 9, 500 * MB),
        change("alloc", 2, 300 * MB, "forward"),
        change("free_requested", 2, 300 * MB),
        change("free_completed", 2, 300 * MB),
        change("free_completed", 5, 50 * MB),
        change("segment_free", 8, 200 * MB),
        change("alloc", 3, 30 * MB, "forward"),
    ]
    path = snapshot(tmp_path / "s.json", [(100 * MB, "weights"), (30 * MB, "forward")], 600 * MB, changes)
    trace = build().mm(64, 64, 64, at=10, start=100, duration=20).trace()
    frame = analyze(trace, AnalysisOptions(memory_snapshot=read_memory_snapshot(path)), on_demand=True).frames[
        "memory_blocks"
    ]
    shown = frame[["held_by", "peak_mb", "end_mb", "blocks", "largest_mb"]].to_numpy().tolist()
    assert shown == [
        [UNUSED, 350, 470, 0, 0],
        ["train.py:7 forward", 300, 30, 1, 30],
        ["train.py:7 weights", 100, 100, 1, 100],
        [NO_FRAMES, 50, 0, 0, 0],
    ]
    assert frame["end_mb"].sum() == 600
    assert frame["peak_mb"].sum() == 800


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc"), st.booleans()), max_size=30))
def test_the_peak_is_that_of_the_allocations_replayed_forwards(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[int, str, bool]]
) -> None:
    held: dict[int, tuple[int, str]] = {}
    changes, peak = [], 0
    for address, (size, name, released) in enumerate(calls):
        if released and held:
            oldest = min(held)
            changes.append(change("free_completed", oldest, held.pop(oldest)[0]))
        changes.append(change("alloc", address, size, name))
        held[address] = (size, name)
        peak = max(peak, sum(size for size, _ in held.values()))
    path = snapshot(tmp_path_factory.mktemp("s") / "s.json", list(held.values()), 1000, changes)
    (memory,) = read_memory_snapshot(path)
    assert memory.peak_bytes.total() == memory.end_bytes.total() == 1000
    assert 1000 - memory.peak_bytes[UNUSED] == peak
    assert min(memory.peak_bytes.values()) >= 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps({"segments": []}), "a Python pickle, which can run code when it is opened, and is not"),
        (b'{"traceEvents": []}', "not a memory snapshot in JSON"),
        (b'{"segments": 3}', "not a memory snapshot in JSON"),
        (b'{"segments": [' + b'{"blocks":[' * 50, "not a memory snapshot in JSON"),
        (b"", "not a memory snapshot in JSON"),
        (b"\xff\xfe", "not a memory snapshot in JSON"),
    ],
)
def test_what_is_no_snapshot_is_refused_in_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_memory_snapshot(path)
    assert str(caught.value).startswith("s.json is ")
    assert "\n" not in str(caught.value)


def test_the_command_takes_it(tmp_path: Path, build: Callable[[], Builder], capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps({"traceEvents": build().mm(64, 64, 64, at=10, start=100, duration=20).events}))
    path = snapshot(tmp_path / "s.json", [(MB, "weights")], 2 * MB, [])
    command = ["report", str(trace), "-o", str(tmp_path / "out.json"), "--memory-snapshot"]
    assert main([*command, str(path)]) == 0
    assert "train.py:7 weights" in (tmp_path / "out.json").read_text()
    assert main([*command, str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
