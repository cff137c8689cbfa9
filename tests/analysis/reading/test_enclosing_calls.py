"""Collectives without process-group metadata: name, bytes and bandwidth from the ops above the kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.trace.event_texts import read_events
from tracelens.analysis.attribution.activity import device_activity
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.ranks.rank_comparison import RanksAnalysis, compare_ranks
from tracelens.analysis.sheets.coll_analysis import collective_rows
from tracelens.files.executors import Serial
from tracelens.perf_models.kernels import kernel_patterns
from tracelens.trace.reading.read import read_trace

FP16_64_MIB = [4096, 8192]


def call(
    number: int, chain: list[tuple[str, list[Any], list[str]]], kernel: str, dur: float, launched_at: float
) -> list[dict[str, Any]]:
    """Ops, outermost first, each with its recorded dims and types; a launch in the innermost; its kernel."""
    lane = {"ph": "X", "pid": 1, "tid": 1}
    made = [
        lane
        | {"cat": "cpu_op", "name": name, "ts": launched_at + i, "dur": 50 - 2 * i, "args": {"Input Dims": dims, "Input type": types}}
        for i, (name, dims, types) in enumerate(chain)
    ]  # fmt: skip
    launch = {
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "ts": launched_at + 10,
        "dur": 5,
        "args": {"correlation": number},
    }
    args = {"correlation": number, "stream": 20, "device": 0}
    device = {
        "ph": "X",
        "cat": "kernel",
        "name": kernel,
        "pid": 0,
        "tid": 20,
        "ts": launched_at + 100,
        "dur": dur,
        "args": args,
    }
    return [*made, lane | launch, device]


def all_reduce(number: int, dims: list[int], dur: float, at: float) -> list[dict[str, Any]]:
    chain = [
        ("c10d::allreduce_", [[], [], [], []], ["TensorList", "", "", "Scalar"]),
        ("nccl:all_reduce", [dims], ["c10::Half"]),
    ]
    return call(number, chain, "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*)", dur, at)


def job(rank: int = 0, world: int = 8) -> dict[str, Any]:
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}


def rows(events: list[dict[str, Any]], values: dict[str, Any]) -> pd.DataFrame:
    trace = Trace.of(read_events(events, values))
    return collective_rows(trace.table, trace.tree, device_activity(trace.table, trace.tree, kernel_patterns()))


def test_sizes_and_bandwidth_come_from_the_enclosing_op_and_the_job() -> None:
    """64 MiB in 603 us over 8 ranks: 67.1 MB * 2 * 7/8 / 603 us = 194.8 GB/s on the bus."""
    row = rows([*all_reduce(1, FP16_64_MIB, 603, 0), *all_reduce(2, FP16_64_MIB, 1206, 1000)], job()).iloc[0]
    assert (row["collective"], row["group_size"], row["dtype"]) == ("all_reduce", 8, "c10::Half")
    assert (row["in_nelems"], row["out_nelems"], row["in_mb"]) == (4096 * 8192, 4096 * 8192, 67.108864)
    assert row["effective_bus_gb_s_shortest"] == pytest.approx(67.108864e6 * 2 * 7 / 8 / 603 / 1e3)
    assert row["effective_bus_gb_s"] == pytest.approx(67.108864e6 * 2 * 7 / 8 / 904.5 / 1e3)
    assert row["sizes_from"] == "dims of nccl:all_reduce; group size: the job's world size"


def test_an_all_to_all_is_named_by_its_op_and_counts_output_before_input() -> None:
    chain = [("c10d::alltoall_base_", [[768], [3392], [], [], [], []], ["int", "int", "", "", "", "Scalar"])]
    row = rows(call(1, chain, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", 131, 0), job()).iloc[0]
    assert (row["collective"], row["in_nelems"], row["out_nelems"]) == ("alltoall_base", 3392, 768)
    assert row["effective_bus_gb_s"] == pytest.approx(3392 * 4 * 7 / 8 / 131 / 1e3)


def test_a_gather_shows_its_group_by_output_and_input() -> None:
    """16.8 MB of each of 64 ranks in a job of 128."""
    chain = [("c10d::_allgather_base_", [[2**30], [2**24], []], ["signed char", "signed char", ""])]
    row = rows(call(1, chain, "ncclKernel_AllGather_RING_LL_Sum_int8_t", 5000, 0), job(world=128)).iloc[0]
    assert (row["group_size"], row["in_nelems"], row["out_nelems"]) == (64, 2**24, 2**30)
    assert row["effective_bus_gb_s"] == pytest.approx(2**30 * 63 / 64 / 5000 / 1e3)
    assert row["sizes_from"] == "dims of c10d::_allgather_base_; group size: output and input"


@pytest.mark.parametrize(
    ("values", "dims", "known"),
    [
        ({}, FP16_64_MIB, ("all_reduce", None, 4096 * 8192)),
        (job(), [], ("all_reduce", 8, 1)),
        (
            {"distributedInfo": {"rank": 0, "world_size": 8, "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]}},
            FP16_64_MIB,
            ("all_reduce", None, 4096 * 8192),
        ),
    ],
    ids=["no job", "a scalar", "groups of another size"],
)  # fmt: skip
def test_what_is_not_known_stays_unknown(values: dict[str, Any], dims: list[int], known: tuple[object, ...]) -> None:
    row = rows(all_reduce(1, dims, 603, 0), values).iloc[0]
    assert tuple(row[["collective", "group_size", "in_nelems"]]) == known
    assert (row["effective_bus_gb_s"] is None) == (known[1] is None)


def test_recorded_metadata_goes_first() -> None:
    events = all_reduce(1, FP16_64_MIB, 603, 0)
    events[-1]["args"] |= {
        "Collective name": "allreduce",
        "Group size": 4,
        "dtype": "Float",
        "In msg nelems": 10,
        "Out msg nelems": 10,
    }
    row = rows(events, job()).iloc[0]
    assert tuple(row[["collective", "group_size", "in_nelems", "sizes_from"]]) == ("allreduce", 4, 10, None)


def written(folder: Path, ranks: int, *, grouped: tuple[int, ...] = ()) -> list[Path]:
    """``ranks`` files with an all-reduce of 64 MiB (number 1) and one of 4 KiB (number 2); ``grouped`` name a group."""
    paths = []
    for rank in range(ranks):
        events = []
        for number, dims, dur in ((1, FP16_64_MIB, 603), (2, [2048], 20)):
            made = all_reduce(number, dims, dur + 10 * (ranks - 1 - rank), 1000 * number + 10 * rank)
            if number in grouped:
                made[-1]["args"] |= {
                    "Collective name": "allreduce", "Group size": ranks, "dtype": "Half", "Process Group Name": "7",
                    "In msg nelems": dims[0] * (dims[1] if len(dims) > 1 else 1), "Process Group Ranks": str([*range(ranks)]),
                }  # fmt: skip
            events += made
        paths.append(folder / f"rank{rank}.json")
        paths[-1].write_text(json.dumps({**job(rank, ranks), "traceEvents": events}))
    return paths


def notice(analysis: RanksAnalysis) -> str:
    return next(n.text for n in analysis.notices if n.id == "group_unknown")


def test_ranks_without_process_groups_show_bandwidth(tmp_path: Path) -> None:
    analysis = compare_ranks(written(tmp_path, 8), executor=Serial())
    found = next(frame for frame in analysis.frames.values() if "bus_gb_s" in frame)
    large = found[found["full_mb"] == 67.108864].iloc[0]
    assert large["bus_gb_s"] == pytest.approx(67.108864e6 * 2 * 7 / 8 / 603 / 1e3)
    assert notice(analysis) == (
        "no process groups were recorded: calls that end together are paired; bandwidth assumes that the group is the whole job"
    )


def test_one_call_without_a_group_takes_that_of_its_stream_and_this_is_said(tmp_path: Path) -> None:
    analysis = compare_ranks(written(tmp_path, 2, grouped=(1,)), executor=Serial())
    assert [n.text for n in analysis.notices if n.id == "group_of_stream"] == [
        "2 of 4 communication calls lack their process group: that of the other calls of their stream is used"
    ]


def test_a_file_of_several_ranks_is_compared_as_the_ranks_it_holds(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for rank, path in enumerate(written(tmp_path, 4)):
        for event in json.loads(path.read_text())["traceEvents"]:
            args = event["args"] | (
                {"correlation": 10 * rank + event["args"]["correlation"]} if "correlation" in event["args"] else {}
            )
            events.append(event | {"pid": 10 * rank + event["pid"] + 1, "args": args})
        events += [
            {"ph": "M", "name": "process_name", "pid": 10 * rank + pid, "args": {"name": f"rank {rank}: {what}"}}
            for pid, what in ((2, "python"), (1, "GPU"))
        ]
        path.unlink()
    merged = tmp_path / "all.json"
    merged.write_text(json.dumps({"distributedInfo": {"world_size": 4}, "traceEvents": events}))
    analysis = compare_ranks([merged], executor=Serial())
    assert sorted(analysis.ranks) == [0, 1, 2, 3]
    found = next(frame for frame in analysis.frames.values() if "bus_gb_s" in frame)
    large = found[found["full_mb"] == 67.108864].iloc[0]
    assert large["bus_gb_s"] == pytest.approx(67.108864e6 * 2 * 3 / 4 / 603 / 1e3)


@pytest.mark.shared
def test_all_to_alls_of_real_traces_are_named_and_sized(shared_traces: Path) -> None:
    path = next(iter(sorted((shared_traces / "more" / "param" / "dlrm_8rank").glob("worker0*"))))
    trace = Trace.of(read_trace(path))
    found = collective_rows(trace.table, trace.tree, device_activity(trace.table, trace.tree, kernel_patterns()))
    assert found["collective"].value_counts().to_dict() == {"all_to_all": 4, "all_reduce": 3}
    assert found["effective_bus_gb_s"].notna().all()
    reduced = found[found["in_nelems"] == 394_241].iloc[0]
    assert reduced["effective_bus_gb_s"] == pytest.approx(394_241 * 4 * 2 * 7 / 8 / 246 / 1e3)
    path = shared_traces / "more" / "torchrec_pr1460" / "sst_long_a2a_optimizer_5" / "rank0.pt.trace.json.gz"
    trace = Trace.of(read_trace(path))
    found = collective_rows(trace.table, trace.tree, device_activity(trace.table, trace.tree, kernel_patterns()))
    assert set(found["collective"]) == {"all_to_all", "all_reduce", None}
