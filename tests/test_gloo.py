"""Two ranks that PyTorch's gloo backend recorded on CPUs run through: the recorded example, and a fresh recording."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tracelens.analysis.ranks.rank_comparison import RanksAnalysis, compare_ranks
from tracelens.analysis.ranks.rank_files import find_traces
from tracelens.files.executors import Serial
from tracelens.report.rank_report import RankReport

STEPS, ELEMENTS = 3, 1 << 20


def compared(folder: Path) -> RanksAnalysis:
    """The comparison, with everything checked that does not depend on how busy the recording machine was."""
    result = compare_ranks(find_traces([str(folder)]), executor=Serial(), name="gloo")
    frame = result.frames["nccl_implicit_sync"]
    counts = frame["collective"].value_counts().to_dict()
    assert counts == {"all_reduce": 6, "all_gather": 3, "broadcast": 3, "all_to_all": 3, "send/recv": 3, "barrier": 3}
    assert (frame["ranks_present"] == 2).all()
    assert set(frame["step"]) == {0, 1, 2}
    reduced = frame[frame["collective"] == "all_reduce"]
    # 4 MB of floats; the bus moves 2 * (2 - 1) / 2 of it
    assert reduced["full_mb"].tolist() == pytest.approx([ELEMENTS * 4 / 1e6] * 6)
    assert reduced["bus_gb_s"].tolist() == reduced["algo_gb_s"].tolist()
    assert [clock.offset_ns for clock in result.clocks.hosts] == [0.0]
    # gloo records the sizes, but not how they were split
    assert result.frames["nccl_all2allv_heatmap"].empty
    # Ranks send to each other, but have no device whose idle time would be a pipeline's bubble
    assert "pipeline" not in RankReport(result).verdict()
    return result


def test_recorded_example(repository):
    result = compared(repository / "example_traces" / "gloo_ranks2")
    frame = result.frames["nccl_implicit_sync"]
    # rank 1 sleeps 20 ms before each step's first collective
    first = frame[frame["collective"] == "all_reduce"].iloc[::2]
    assert first["last_rank"].tolist() == [1] * STEPS
    assert (first["start_skew_us"] > 10_000).all()
    assert result.frames["straggler_summary"]["rank"].iloc[0] == 1


def test_a_fresh_recording(repository, tmp_path):
    python = os.environ.get("TRACELENS_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else "")
    if not python:
        pytest.skip("PyTorch is not installed here, and TRACELENS_TORCH_PYTHON names no Python that has it")
    command = [python, "-m", "example_traces.record_gloo_ranks", str(tmp_path)]
    subprocess.run(command, cwd=repository, check=True, capture_output=True, timeout=600)
    compared(tmp_path)
