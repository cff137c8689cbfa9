"""Fusing a job: clocks are put right, counters hold the work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.trace.event_texts import read_events
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.ranks.rank_files import RankOptions, find_traces, parse_ranks, read_ranks
from tracelens.analysis.ranks.rank_fusion import fuse_ranks, rank_counters
from tracelens.analysis.ranks.rank_summary import summarize_rank
from tracelens.errors import UsageError
from tracelens.files.executors import Serial

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ranks"))
from planted import Clock, Job


def test_collectives_end_together_in_the_fused_file(tmp_path):
    (tmp_path / "job").mkdir()
    Job(ranks=4, ranks_per_host=2, clocks={1: Clock(offset_us=11e6, drift=20e-6)}, end_jitter_us=1).write(
        tmp_path / "job"
    )
    read = read_ranks(find_traces([str(tmp_path / "job")]), RankOptions(), executor=Serial())
    for align, most in ((True, 10.0), (False, 12e6)):
        fuse_ranks(read, RankOptions(), tmp_path / "f.json", align=align)
        events = json.loads((tmp_path / "f.json").read_text())["traceEvents"]
        world = [e for e in events if e.get("args", {}).get("Group size") == 4]
        ends = sorted(e["ts"] + e["dur"] for e in world)[:4]
        apart = max(ends) - min(ends)
        assert apart < most if align else apart > 1e3
        assert min(e["ts"] for e in events) >= 0


def test_only_the_wanted_ranks_are_fused(tmp_path):
    (tmp_path / "job").mkdir()
    Job(ranks=4).write(tmp_path / "job")
    read = read_ranks(find_traces([str(tmp_path / "job")]), RankOptions(), executor=Serial())
    fused, _ = fuse_ranks(read, RankOptions(), tmp_path / "f.json.gz", wanted=parse_ranks("1-2,9"))
    assert fused.ranks == 2
    with pytest.raises(UsageError, match="no trace for ranks 9"):
        fuse_ranks(read, RankOptions(), tmp_path / "f.json", wanted=parse_ranks("9"))


def test_counters_hold_all_work_that_is_known():
    mm = {"Input Dims": [[1000, 1000], [1000, 1000]], "Input type": ["c10::BFloat16"] * 2, "Input Strides": [[1000, 1]] * 2,
          "Concrete Inputs": ["", ""]}  # fmt: skip

    def event(cat, name, start, duration, pid, tid, **args):
        return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": args}

    reduced = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2,
               "dtype": "Float", "In msg nelems": 10**6, "Out msg nelems": 10**6}  # fmt: skip
    events = [
        event("cpu_op", "aten::mm", 0, 10, 1, 1, **mm),
        event("cuda_runtime", "cudaLaunchKernel", 1, 2, 1, 1, correlation=1),
        event("kernel", "Cijk_Ailk", 100, 100, 0, 7, correlation=1, stream=7, device=0),
        event("kernel", "ncclDevKernel_AllReduce", 300, 50, 0, 20, correlation=2, stream=20, device=0, **reduced),
    ]
    trace = Trace.of(read_events(events, {"distributedInfo": {"rank": 0, "world_size": 2}}))
    tracks = {t.name: t for t in rank_counters(trace, summarize_rank(trace, AnalysisOptions()), AnalysisOptions())}
    sums = {}
    for name, track in tracks.items():
        width = int(track.times_ns[1] - track.times_ns[0])
        sums[name] = float(track.values.sum()) * width
    # 2 * 1000**3 operations; in 1e12 per s times ns they are divided by 1e3. 150 µs busy. 4 MB sent at 2 * 1/2.
    assert sums["TFLOPS/s"] == pytest.approx(2e9 / 1e3)
    assert sums["busy"] == pytest.approx(150_000)
    assert sums["interconnect"] == pytest.approx(4e6 / 1e3)
    assert tracks["TFLOPS/s"].values.max() == pytest.approx(2e9 / 100_000 / 1e3)
