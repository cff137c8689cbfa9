"""Fused files: disjoint ids, rank order, one clock, nesting tracks, filters."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.event_texts import read_events
from tracelens.errors import UsageError
from tracelens.trace.rewriting import CounterTrack, EventFilter, FusedRank, fuse, parse_window, sublanes


def slice_(name, start, duration, pid=1, tid=1, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": args}


def flow(phase, number, pid, tid, time):
    return {"ph": phase, "cat": "ac2g", "name": "ac2g", "id": number, "pid": pid, "tid": tid, "ts": time, "bp": "e"}


EVENTS = [
    {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0, "args": {"labels": "GPU 0"}},
    slice_("aten::mm", 100, 50),
    slice_("cudaLaunchKernel", 110, 5, cat="cuda_runtime", correlation=7),
    slice_("gemm", 200, 100, pid=0, tid=7, cat="kernel", correlation=7, stream=7, device=0),
    slice_("overlapping", 250, 100, pid=0, tid=7, cat="kernel", correlation=8, stream=7, device=0),
    flow("s", 7, 1, 1, 110),
    flow("f", 8, 0, 7, 250),
]


def fused(tmp_path, ranks=(0, 1), kept=None, ahead=None, name="all.json", counters=(), events=EVENTS):
    tables = {rank: read_events(events, {"baseTimeNanoseconds": 10**18}) for rank in ranks}
    ahead = dict.fromkeys(ranks, 0) | (ahead or {})
    entries = (
        FusedRank(rank=rank, table=table, corrected=partial(np.add, -ahead[rank]), counters=counters)
        for rank, table in tables.items()
    )
    counts = fuse(entries, tmp_path / name, origin_ns=10**18 + 100_000, kept=kept)
    path = tmp_path / name
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    written = json.loads(content)["traceEvents"]
    assert counts.events == len(written)
    return written, counts


def rank_of_pid(written):
    return {e["pid"]: e["args"]["name"].split()[1] for e in written if e["name"] == "process_name"}


def test_processes_flows_and_correlations_of_ranks_are_disjoint(tmp_path):
    written, _ = fused(tmp_path)
    ranks = rank_of_pid(written)
    for key in ("id", "correlation"):
        of = defaultdict(set)
        for event in written:
            value = event.get("id") if key == "id" else event.get("args", {}).get("correlation")
            if value is not None:
                of[ranks[event["pid"]]].add(value)
        assert of["0"]
        assert not of["0"] & of["1"]
        assert len(of["0"]) == len(of["1"]) == 2


def test_processes_are_named_and_sorted_by_rank(tmp_path):
    written, counts = fused(tmp_path, ranks=(3, 11))
    names = {e["pid"]: e["args"]["name"] for e in written if e["name"] == "process_name"}
    order = {e["pid"]: e["args"]["sort_index"] for e in written if e["name"] == "process_sort_index"}
    assert [names[pid] for pid in sorted(order, key=order.get)] == [
        "rank 3 · 1",
        "rank 3 · GPU 0",
        "rank 11 · 1",
        "rank 11 · GPU 0",
    ]
    assert counts.ranks == 2


def test_times_are_on_the_common_clock_and_start_at_the_origin(tmp_path):
    written, _ = fused(tmp_path, ahead={1: 30_000})
    ranks = rank_of_pid(written)
    starts = {ranks[e["pid"]]: e["ts"] for e in written if e["name"] == "aten::mm"}
    # rank 1's clock shows 30 µs more
    assert starts == {"0": 0.0, "1": -30.0}
    assert [e["dur"] for e in written if e["name"] == "gemm"] == [100.0, 100.0]


def test_an_overlapping_slice_goes_to_a_lane_below_and_takes_its_flow_along(tmp_path):
    written, counts = fused(tmp_path, ranks=(0,))
    place = {e["name"]: (e["pid"], e["tid"]) for e in written if e["ph"] == "X"}
    assert place["gemm"][0] == place["overlapping"][0]
    assert place["gemm"][1] == 7 != place["overlapping"][1]
    assert counts.moved_slices == 1
    end = next(e for e in written if e["ph"] == "f")
    assert (end["pid"], end["tid"]) == place["overlapping"]
    lanes = {e["tid"]: e["args"]["name"] for e in written if e["name"] == "thread_name"}
    assert lanes[place["overlapping"][1]] == "7 (2)"


def test_window_and_categories_choose(tmp_path):
    written, _ = fused(tmp_path, ranks=(0,), kept=EventFilter(categories=frozenset({"kernel"})))
    assert [e["name"] for e in written if e["ph"] != "M"] == ["gemm", "overlapping"]
    # 120 to 180 µs after the origin at 100 µs is 220 to 280: both kernels run in it, no host event does
    written, _ = fused(tmp_path, ranks=(0,), kept=EventFilter(window_ns=(120_000, 180_000)))
    assert [e["name"] for e in written if e["ph"] == "X"] == ["gemm", "overlapping"]


def test_counters_get_a_process_of_their_own_and_only_changes_are_written(tmp_path):
    times = np.array([10**5, 2 * 10**5, 3 * 10**5])
    track = CounterTrack(name="busy", unit="share", times_ns=times, values=np.array([0.5, 0.5, 0.0]))
    written, _ = fused(tmp_path, ranks=(0,), counters=(track,))
    counted = [e for e in written if e["ph"] == "C"]
    assert [(e["ts"], e["args"]) for e in counted] == [(0.0, {"share": 0.5}), (200.0, {"share": 0.0})]
    assert {e["args"]["name"] for e in written if e["name"] == "process_name" and e["pid"] == counted[0]["pid"]} == {
        "rank 0 · rates"
    }


def test_a_gz_name_gives_gzip_and_the_same_bytes_each_time(tmp_path):
    fused(tmp_path, name="a.json.gz")
    fused(tmp_path, name="b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_events_that_cannot_be_placed_are_left_out_and_huge_numbers_stay(tmp_path):
    odd = [{"ph": "C", "name": "c", "ts": 1e300}, {"ph": "i", "name": "i", "ts": float("nan")},
           {"ph": "i", "name": "i", "ts": 3, "pid": 1, "tid": [1]}]  # fmt: skip
    huge = slice_("huge", 500, 5, **{"External id": 10**30, "text": "\ud800"})
    written, _ = fused(tmp_path, ranks=(0,), events=[*EVENTS, *odd, huge])
    assert not [event for event in written if event["ph"] in "Ci"]
    assert next(event for event in written if event["name"] == "huge")["args"]["External id"] > 10**29


def test_a_fused_file_is_a_trace_again(tmp_path):
    from tracelens.trace.reading.read import read_trace
    from tracelens.trace.tree import OpTree

    fused(tmp_path)
    table = read_trace(tmp_path / "all.json")
    assert (table.losses.notes, len(table)) == ((), 8)
    tree = OpTree(table)
    assert tree.self_check() == []
    # the kernels with correlation 7 are linked to their own rank's launch
    linked = [row for row in range(len(table)) if tree.launch[row] >= 0 and table.name_of(row) == "gemm"]
    assert len({int(tree.launch[row]) for row in linked}) == 2


@pytest.mark.parametrize(("other", "kept"), [("H100", True), ("A100", False)])
def test_what_all_ranks_say_alike_of_the_job_is_kept(tmp_path, other, kept):
    def entry(rank, device):
        metadata = {
            "deviceProperties": [{"id": 0, "name": device}],
            "distributedInfo": {"rank": rank, "world_size": 2},
            "with_stack": 1,
            "trace_id": f"of rank {rank}",
        }
        return FusedRank(rank=rank, table=read_events(EVENTS, metadata), corrected=lambda times: times)

    fuse([entry(0, "H100"), entry(1, other)], tmp_path / "all.json", origin_ns=0)
    said = json.loads((tmp_path / "all.json").read_bytes())
    assert ("deviceProperties" in said) == kept
    assert said["distributedInfo"] == {"world_size": 2}
    assert said["with_stack"] == 1
    assert "trace_id" not in said


@pytest.mark.parametrize("text", ["", "5", "a:b", "5:5", "7:3", "0:inf", "nan:1"])
def test_a_window_that_is_none_is_said(text):
    with pytest.raises(UsageError, match="window"):
        parse_window(text)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=25))
def test_in_every_lane_slices_nest(slices):
    lane = np.array([s[0] for s in slices], np.int64)
    start = np.array([s[1] for s in slices], np.int64)
    end = start + np.array([s[2] for s in slices], np.int64)
    below = sublanes(lane, start, end)
    for i in range(len(slices)):
        for j in range(len(slices)):
            if lane[i] == lane[j] and below[i] == below[j]:
                crossing = start[i] < start[j] < end[i] < end[j]
                assert not crossing
