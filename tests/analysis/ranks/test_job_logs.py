"""NCCL Inspector's files and the flight recorder's dumps: beside the traces of the same schedule, damaged, and of jobs
that stopped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import pickletools
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import row_by_row
from tests.ranks import logged
from tests.ranks.planted import Clock, Job
from tracelens.analysis.ranks.job_logs import read_job_log
from tracelens.analysis.ranks.rank_comparison import RanksAnalysis, compare_ranks
from tracelens.analysis.ranks.rank_files import find_traces
from tracelens.errors import InputError
from tracelens.files.executors import Serial
from tracelens.report.rank_report import RankReport
from tracelens.trace.reading.read import read_trace

LATE_RANK, LATE_US = 2, 350.0


def planted(traces: Path | None = None, **more) -> Job:
    """A job whose times are whole µs: 8 MB at 200 GB/s take 60 µs among 4 ranks, and 40 µs among 2."""
    asked = {"ranks": 4, "straggler": LATE_RANK, "late_us": LATE_US, "jitter_us": 0.0, "steps": 2, "rounds": 3} | more
    job = Job(**{"collectives": (("allreduce", "BFloat16", 4_000_000),)} | asked)
    with tempfile.TemporaryDirectory() as other:
        job.write(traces or Path(other))
    return job


def compared(folder: Path) -> RanksAnalysis:
    return compare_ranks(find_traces([str(folder)]), executor=Serial(), name="job")


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def stragglers(result: RanksAnalysis) -> list[dict]:
    frame = result.frames["straggler_summary"]
    return [{k: round(v, 6) for k, v in row.items()} for row in frame.to_dict("records")]


def late(result: RanksAnalysis) -> list[str]:
    return [line for line in RankReport(result).verdict().splitlines() if "late on its own" in line]


KINDS = ("inspector", "inspector v4.3", "inspector packed", "pickle", "json")


def write_logs(job: Job, where: Path, kind: str) -> None:
    if kind.startswith("inspector"):
        logged.write_inspector(job, where, version="v4.3" if "4.3" in kind else "v4.2", packed="packed" in kind)
        return
    for rank in range(job.ranks):
        name = f"nccl_trace_rank_{rank}" + (".json" if kind == "json" else "")
        logged.write_dump(logged.dump(job, rank), where / name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_straggler_is_that_of_the_traces_of_the_same_schedule(tmp_path, kind):
    """Rank, delay, waits: to the ns. Each round the late rank comes 350 µs late to the world and again to its pair,
    ten groups' worth over which the laws share it out.
    """
    job = planted(traces := folder(tmp_path, "traces"))
    twin = compared(traces)
    write_logs(job, logs := folder(tmp_path, "logs"), kind)
    result = compared(logs)
    assert stragglers(result) == stragglers(twin)
    assert stragglers(result)[0]["rank"] == LATE_RANK
    assert late(result) == late(twin) != []
    assert "no common order" not in RankReport(result).verdict()
    # The world's six collectives and the pair's six, all of which it is late to by itself
    assert stragglers(result)[0]["cost_us"] == pytest.approx(12 * LATE_US, abs=12)


def test_clocks_and_the_dump_thread_do_not_matter(tmp_path):
    """Hosts whose clocks are minutes apart, and files that say only when they were written."""
    job = planted(ranks_per_host=2, clocks={1: Clock(offset_us=90e6)})
    logged.write_inspector(job, logs := folder(tmp_path, "logs"), verbose=False)
    result = compared(logs)
    assert [(row["rank"], round(row["cost_us"])) for row in stragglers(result)[:1]] == [
        (LATE_RANK, round(12 * LATE_US))
    ]
    said = " ".join(RankReport(result).verdict().split())
    assert "not needed: durations alone" in said
    assert "calls of several communicators are in no common order" in said


@pytest.mark.parametrize("kind", ["inspector", "pickle"])
def test_nobody_is_late_where_nobody_was(tmp_path, kind):
    write_logs(planted(straggler=None), tmp_path, kind)
    result = compared(tmp_path)
    assert late(result) == []
    assert (result.frames["straggler_summary"]["cost_us"] == 0).all()
    ended = " have ended and" if kind == "pickle" else ""
    assert f"all 48 logged collective calls{ended} are alike on all ranks" in RankReport(result).verdict()


@pytest.mark.parametrize("kind", ["inspector", "pickle"])
@pytest.mark.parametrize("read", [(1,), (0, 1), (1, 2)])
def test_nothing_is_said_of_ranks_whose_logs_were_not_read(tmp_path, kind, read):
    """Of ranks 0 and 1 alone, which both wait for rank 2, nothing says that the world's call is mostly transfer."""
    write_logs(planted(), tmp_path, kind)
    for rank, path in enumerate(sorted(tmp_path.iterdir())):
        if rank not in read:
            path.unlink()
    result = compared(tmp_path)
    said = " ".join(RankReport(result).verdict().split())
    assert "on all ranks " not in said.replace("ends on all ranks", "")
    ranks, calls = f"{read[0]}-{read[-1]}", 12 * len(read)
    if len(read) > 1:
        assert f"alike on ranks {ranks} of 4" in said
        kinds = result.frames["nccl_summary_implicit_sync"].set_index("group_size")["verdict"].to_dict()
        assert kinds[4] == ("arrival-skew-dominated" if LATE_RANK in read else "inconclusive")
        assert kinds.get(2, "transfer-dominated") == "transfer-dominated"
    else:
        assert "alike" not in said
        assert (f"all {calls} logged collective calls have ended on rank 1" in said) == (kind == "pickle")


@pytest.mark.parametrize("collective", ["allreduce", "_allgather_base", "_reduce_scatter_base"])
def test_bandwidth_is_that_of_the_files_own(tmp_path, collective):
    """Inspector's rates of the rank that waited least, and the planted 200 GB/s, are what both formats give."""
    job = planted(straggler=None, collectives=((collective, "BFloat16", 4_000_000),))
    own = []
    for kind in ("inspector", "pickle"):
        write_logs(job, where := folder(tmp_path, kind), kind)
        frame = compared(where).frames["nccl_implicit_sync"]
        own.append(sorted(frame["bus_gb_s"]))
        assert frame["full_mb"].tolist() == [8.0] * len(frame)
    theirs = [json.loads(line)["coll_perf"]["coll_busbw_gbs"] for rank in (0, 2)
              for line in logged.inspector_lines(job, rank, verbose=False)]  # fmt: skip
    assert own[0] == pytest.approx(own[1])
    assert set(np.round(own[0], 3)) == set(np.round(theirs, 3))


#: The two records that the README of NCCL's plugin shows (plugins/profiler/inspector, v4.0).
SHOWN = [
    ("AllReduce", 17_179_869_184, 61_974, 277.210914, 485.119099),
    ("ReduceScatter", 2_147_483_648, 41_057, 418.439467, 366.134533),
]


@pytest.mark.parametrize(("name", "size", "took_us", "algo", "bus"), SHOWN)
def test_bandwidths_of_nccls_own_examples(tmp_path, name, size, took_us, algo, bus):
    for rank in range(8):
        perf = {"coll": name, "coll_sn": 1407, "coll_msg_size_bytes": size, "coll_exec_time_us": took_us,
                "coll_algobw_gbs": algo, "coll_busbw_gbs": bus}  # fmt: skip
        header = {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 8, "nnodes": 1}
        metadata = {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
                    "dump_timestamp_us": 1748030377748202, "hostname": "example-hostname", "pid": 1639453 + rank}  # fmt: skip
        record = {"header": header, "metadata": metadata, "coll_perf": perf}
        (tmp_path / f"{rank}.log").write_text(json.dumps(record) + "\n")
    result = compared(tmp_path)
    row = result.frames["nccl_implicit_sync"].iloc[0]
    assert (row["algo_gb_s"], row["bus_gb_s"]) == pytest.approx((algo, bus), rel=1e-6)
    assert "is not its size over its time" not in RankReport(result).verdict()


def test_bandwidths_that_do_not_add_up_are_said(tmp_path):
    logged.write_inspector(planted(), tmp_path)
    path = next(iter(tmp_path.iterdir()))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["coll_perf"]["coll_algobw_gbs"] *= 2
    path.write_text("\n".join(map(json.dumps, lines)))
    assert "of 1 calls Inspector's bandwidth is not its size over its time" in " ".join(
        RankReport(compared(tmp_path)).verdict().split()
    )


def stopped(where: Path, states: list[str | None], after: int = 4, **more) -> str:
    """The verdict on a job that stopped at call ``after`` of the world, each rank's state in it."""
    job = planted(**more)
    for rank, state in enumerate(states):
        world = logged.dump(job, rank)
        world["entries"] = [entry for entry in world["entries"] if entry["process_group"][0] == "0"]
        logged.write_dump(logged.unended(world, after, state=state), where / f"nccl_trace_rank_{rank}")
    return " ".join(RankReport(compared(where)).verdict().split())


def test_the_rank_that_did_not_come_is_named(tmp_path):
    said = stopped(tmp_path, ["started", "started", None, "started"])
    assert (
        "call 4 of group '0' has not ended, all_reduce of 8 MB (BFloat16): ranks 0-1, 3 wait in it, rank 2 has not called it"
        in said
    )
    assert "rank 2 waits in no other group, its last call here is 3 (all_reduce, at train.py:88 step)" in said
    page = RankReport(compared(tmp_path)).to_html(tmp_path / "x.html").read_text()
    assert ("Not called" in page, "rank 2 has not called it" in page) == (True, True)


def test_a_rank_that_is_stuck_elsewhere_is_said_to_be(tmp_path):
    """Rank 2 is missing in the world because it waits for rank 3 in their pair, which rank 3 never called."""
    job = planted(straggler=None)
    for rank in range(4):
        content = logged.dump(job, rank)
        own = [e for e in content["entries"] if e["process_group"][0] == ("0" if rank < 2 else "2")]
        mine = logged.unended(content | {"entries": own}, 3, state=None if rank == 3 else "started")
        first = [e for e in content["entries"] if e["process_group"][0] == "0" and e["collective_seq_id"] < 3]
        mine["entries"] = first * (rank > 1) + mine["entries"]
        logged.write_dump(mine, tmp_path / f"nccl_trace_rank_{rank}")
    said = " ".join(RankReport(compared(tmp_path)).verdict().split())
    assert "ranks 0-1 wait in it, ranks 2-3 have not called it; rank 2 itself waits in all_reduce 3 of 2" in said
    assert "rank 3 waits in no other group" in said


def test_without_timing_nobody_is_said_to_wait(tmp_path):
    """PyTorch notes that a call has begun only where it times calls."""
    said = stopped(tmp_path, ["scheduled", "scheduled", None, "scheduled"])
    assert "ranks 0-1, 3 have enqueued it, rank 2 has not called it" in said
    assert "wait in it" not in said


def test_a_transfer_that_does_not_end_names_no_rank(tmp_path):
    said = stopped(tmp_path, ["started"] * 4)
    assert "ranks 0-3 wait in it, no rank is missing" in said
    assert "not called it" not in said


def test_a_dump_that_is_older_than_the_others_is_no_hang(tmp_path):
    """Rank 2 was dumped a call earlier; all that the others called has ended."""
    said = stopped(tmp_path, ["completed", "completed", None, "completed"])
    assert "not called it" not in said
    assert "not ended" not in said


def test_a_missing_log_is_not_a_missing_rank(tmp_path):
    stopped(tmp_path, ["started"] * 4)
    (tmp_path / "nccl_trace_rank_2").unlink()
    said = " ".join(RankReport(compared(tmp_path)).verdict().split())
    assert "there is no log of rank 2" in said
    assert "not called it" not in said


def test_the_first_call_that_differs(tmp_path):
    """One rank gathers where the others reduce, and everything after it differs as well."""
    job, traces = planted(), tmp_path
    for rank in range(4):
        content = logged.dump(job, rank)
        for entry in content["entries"]:
            if rank == 1 and entry["process_group"][0] == "0" and entry["collective_seq_id"] >= 3:
                entry |= {"profiling_name": "nccl:_all_gather_base", "input_sizes": [[1_000_000]]}
        logged.write_dump(content, traces / f"nccl_trace_rank_{rank}")
    frame = compared(traces).frames["unended"]
    row = frame.iloc[0]
    assert len(frame) == 1
    assert (row["group_name"], row["sequence"], row["problem"], row["ranks"]) == (
        "0",
        3,
        "differs",
        "1",
    )
    assert row["text"] == (
        "call 3 of group '0' differs: ranks 0, 2-3 all_reduce of 8 MB (BFloat16), rank 1 _all_gather_base of 2 MB (BFloat16)"
    )


def test_uneven_collectives_may_differ_in_size(tmp_path):
    job, traces = planted(), tmp_path
    for rank in range(4):
        content = logged.dump(job, rank)
        for entry in content["entries"]:
            entry |= {"profiling_name": "nccl:all_to_all_v_single", "input_sizes": [[1000 * (rank + 1)]]}
        logged.write_dump(content, traces / f"nccl_trace_rank_{rank}")
    assert compared(traces).frames["unended"].empty


def test_a_buffer_that_has_wrapped_begins_later_on_one_rank(tmp_path):
    """What a ring has lost is not called missing, and calls are matched by number."""
    job, traces = planted(), tmp_path
    for rank in range(4):
        content = logged.dump(job, rank)
        content["entries"] = content["entries"][5 * (rank == 1) :]
        logged.write_dump(content, traces / f"nccl_trace_rank_{rank}")
    result = compared(traces)
    assert result.frames["unended"].empty
    assert result.frames["nccl_implicit_sync"]["ranks_present"].value_counts().to_dict() == {4: 3, 3: 3, 2: 10}
    # The late rank's own pair, and the world after it, in which its neighbour is late too
    assert set(result.frames["nccl_implicit_sync"]["start_skew_us"].round(6)) <= {0, 350, 700}
    assert stragglers(result)[0]["rank"] == LATE_RANK


def test_ranks_without_a_common_communicator_are_numbered_by_process(tmp_path):
    """Only the pairs' communicators were recorded: 0x2 of ranks 0 and 1, 0x3 of ranks 2 and 3."""
    job = planted()
    logs = folder(tmp_path, "logs")
    for rank in range(4):
        lines = [
            line
            for line in logged.inspector_lines(job, rank, verbose=True)
            if json.loads(line)["header"]["n_ranks"] == 2
        ]
        (logs / f"node-0-pid{4000 + rank}.log").write_text("\n".join(lines))
    result = compared(logs)
    assert sorted(result.ranks) == [0, 1, 2, 3]
    assert result.world_size is None
    assert sorted(result.frames["groups"]["group_ranks"]) == ["0-1", "2-3"]
    assert stragglers(result)[0]["rank"] == LATE_RANK
    assert "ranks are numbered by host and process" in " ".join(RankReport(result).verdict().split())


def test_files_put_together_and_a_process_with_several_ranks(tmp_path):
    job = planted(traces := folder(tmp_path, "traces"))
    lines = [line for rank in range(4) for line in logged.inspector_lines(job, rank, verbose=True)]
    (path := tmp_path / "all.jsonl").write_text("\n".join(lines))
    twin = stragglers(compared(traces))
    assert stragglers(compared(path)) == twin
    # One process for all: which rank of the pairs is which is not written, so the world's six calls remain
    path.write_text("\n".join(re.sub(r'"pid": \d+', '"pid": 77', line) for line in lines))
    result = compared(path)
    assert [row["num_collectives"] for row in stragglers(result)] == [6] * 4
    assert stragglers(result)[0]["rank"] == LATE_RANK
    assert "24 records of other communicators" in " ".join(RankReport(result).verdict().split())


def test_other_verbs_say_which_one_reads_it(tmp_path):
    logged.write_inspector(planted(), tmp_path)
    path = next(iter(tmp_path.iterdir()))
    with pytest.raises(InputError, match=r"log of a job's collectives \(NCCL Inspector\).*use 'tracelens collectives"):
        read_trace(path)


class Malicious:
    def __reduce__(self):
        return os.system, ("touch /tmp/tracelens-was-attacked",)


def refused(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read_job_log(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def content(tmp_path) -> dict:
    job = planted()
    return logged.dump(job, 0)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_calls_something_is_not_carried_out(tmp_path, content, protocol):
    marker = Path("/tmp/tracelens-was-attacked")  # noqa: S108
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(content | {"nccl_comm_state": Malicious()}, protocol=protocol))
    assert "asks for opcode" in refused(path)
    assert not marker.exists()
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    assert len(read_job_log(path)[0].start) == len(content["entries"])


@row_by_row("code", [op.code for op in pickletools.opcodes])
def test_any_opcode_in_a_dump_is_read_or_refused(tmp_path, content, code):
    whole = pickle.dumps(content, protocol=2)
    path = tmp_path / "nccl_trace_rank_0"
    for at in (2, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + code.encode("latin-1") + b"\xff\xff\xff\x7f" + whole[at:])
        with suppress(InputError):
            read_job_log(path)


def test_a_forged_number_takes_no_memory_and_a_deep_key_no_stack(tmp_path):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(b"\x80\x02X\x09\x00\x00\x00pg_configr\xff\xff\xff\xff.")
    assert "damaged" in refused(path)
    path.write_bytes(b"\x80\x02}X\x09\x00\x00\x00pg_config)" + b"\x85" * 500_000 + b"K\x01s.")
    assert "damaged" in refused(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"duration_ms": float("nan")}, "float"), ({"duration_ms": -1.0}, ">= 0"), ({"time_created_ns": -5}, ">= 0"),
        ({"collective_seq_id": 2**70}, ""), ({"collective_seq_id": "x"}, "int"), ({"input_sizes": [[-4]]}, ">= 0"),
        ({"process_group": 5}, "array"), ({"profiling_name": None}, "str"),
    ],
)  # fmt: skip
def test_impossible_values_are_refused(tmp_path, content, change, why):
    content["entries"][3] |= change
    path = tmp_path / "nccl_trace_rank_0"
    logged.write_dump(content, path)
    assert why in refused(path)


def test_numbers_far_apart_take_no_time(tmp_path):
    """Sequence numbers are the file's: one that was forged stands alone."""
    job = planted()
    for rank in range(4):
        content = logged.dump(job, rank)
        content["entries"][-1]["collective_seq_id"] = 2**61 if rank == 0 else 9
        logged.write_dump(content, tmp_path / f"nccl_trace_rank_{rank}")
    assert compared(tmp_path).frames["unended"].empty


def test_other_versions_and_cut_files_are_refused(tmp_path, content):
    path = tmp_path / "nccl_trace_rank_0"
    logged.write_dump(content | {"version": "1.5"}, path)
    assert "version '1.5'" in refused(path)
    whole = pickle.dumps(content, protocol=2)
    for cut in (len(whole) // 3, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert "damaged" in refused(path)


@pytest.mark.parametrize(
    "change",
    [
        {"coll_exec_time_us": -1},
        {"coll_exec_time_us": "nan"},
        {"coll_msg_size_bytes": -8},
        {"coll_sn": None},
        {"coll": 7},
    ],
)
def test_impossible_lines_of_inspector_are_refused(tmp_path, change):
    job = planted()
    lines = [json.loads(line) for line in logged.inspector_lines(job, 0, verbose=True)]
    lines[2]["coll_perf"] |= change
    (path := tmp_path / "a.log").write_text("\n".join(map(json.dumps, lines)))
    assert refused(path).startswith("a.log, line 3: not a record")


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    job = planted()
    text = "\n".join(logged.inspector_lines(job, 0, verbose=True))
    (path := tmp_path / "a.log").write_text(text[:-40])
    assert len(read_job_log(path)[0].start) == text.count("\n")
    (path := tmp_path / "b.log").write_text('{"header": {"n_ranks": 2}, "dump_stats"')
    assert "line 1" in refused(path)


def test_a_call_without_a_header_belongs_to_no_one(tmp_path):
    path = tmp_path / "a.log"
    job = planted()
    lines = logged.inspector_lines(job, 0, verbose=True, version="v4.3")
    path.write_text(lines[0].replace("dump_stats", "x", 1) + "\n" + lines[1] + '\n{"dump_stats": {}}')
    assert "without a header" in refused(path)


@pytest.mark.sweep
@given(late=st.lists(st.integers(0, 400), min_size=4, max_size=4), moving=st.integers(5, 90))
def test_waits_are_differences_of_durations(tmp_path_factory, late, moving):
    """One all-reduce of four ranks: who comes last waits for nobody, the others by how much sooner they came."""
    where = tmp_path_factory.mktemp("logs")
    for rank, at in enumerate(late):
        took = max(late) - at + moving
        line = {
            "header": {"id": "0x1", "rank": rank, "n_ranks": 4, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 10**15 + 50_000 * rank,
                         "hostname": "h", "pid": rank},
            "coll_perf": {"coll": "AllReduce", "coll_sn": 0, "coll_msg_size_bytes": 8_000_000, "coll_exec_time_us": took},
        }  # fmt: skip
        (where / f"{rank}.log").write_text(json.dumps(line))
    frame = compared(where).frames
    waits = frame["nccl_long"].set_index("rank")["wait_us"]
    assert [waits[rank] for rank in range(4)] == [max(late) - at for at in late]
    # 2 * 3/4 of 8 MB over the shortest duration
    assert frame["nccl_implicit_sync"]["bus_gb_s"].iloc[0] == pytest.approx(12_000 / moving)


RECORD = """
import os, sys, time
import torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d
rank, where, port = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
dist.init_process_group("gloo", rank=rank, world_size=2)
tensor = torch.ones(1 << 18)
for _ in range(3):
    dist.all_reduce(tensor)
    dist.all_gather([torch.empty_like(tensor) for _ in range(2)], tensor)
dist.barrier()
time.sleep(1)
open(f"{where}/nccl_trace_rank_{rank}", "wb").write(c10d._dump_fr_trace())
open(f"{where}/json/rank_{rank}.json", "wb").write(c10d._dump_fr_trace_json())
dist.destroy_process_group()
"""


def with_torch() -> str:
    python = os.environ.get("TRACELENS_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else "")
    if not python:
        pytest.skip("PyTorch is not installed here, and TRACELENS_TORCH_PYTHON names no Python that has it")
    return python


@pytest.mark.sweep
def test_pytorchs_own_analyzer_names_the_same_call_and_rank(tmp_path):
    """``torch.distributed.flight_recorder.fr_trace`` reads the planted dumps too, and finds what was planted."""
    command = [
        with_torch(),
        "-m",
        "torch.distributed.flight_recorder.fr_trace",
        "-p",
        "nccl_trace_rank_",
        str(tmp_path),
    ]
    stopped(tmp_path, ["started", "started", None, "started"])
    theirs = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    said = theirs.stdout + theirs.stderr
    assert "Not all ranks joining collective, sequence number: 4" in said
    assert "missing ranks: {2}" in said
    own = compared(tmp_path).frames["unended"].iloc[0]
    assert (own["sequence"], own["ranks"], own["problem"]) == (4, "2", "not called")
    for rank in range(4):
        content = logged.dump(planted(), rank)
        for entry in content["entries"]:
            if rank == 1 and entry["process_group"][0] == "0" and entry["collective_seq_id"] >= 3:
                entry |= {"input_sizes": [[1_000_000]], "output_sizes": [[1_000_000]]}
        logged.write_dump(content, tmp_path / f"nccl_trace_rank_{rank}")
    theirs = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    said = theirs.stdout + theirs.stderr
    assert "sequence number: 3" in said
    assert "Culprit rank 1" in said
    own = compared(tmp_path).frames["unended"].iloc[0]
    assert (own["sequence"], own["ranks"], own["problem"]) == (3, "1", "differs")


@pytest.mark.sweep
def test_dumps_of_the_real_recorder(tmp_path):
    """PyTorch's own, of gloo (2.13): without durations, retired though never said to be completed."""
    python = with_torch()
    (tmp_path / "json").mkdir()
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "100"}
    port = str(20_000 + os.getpid() % 20_000)
    both = [
        subprocess.Popen([python, "-c", RECORD, str(rank), str(tmp_path), port], env=environment) for rank in (0, 1)
    ]
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    for paths in ([tmp_path / f"nccl_trace_rank_{rank}" for rank in (0, 1)], [tmp_path / "json"]):
        result = compare_ranks(find_traces([str(path) for path in paths]), executor=Serial(), name="gloo")
        assert [summary.events for summary in result.ranks.values()] == [7, 7]
        messages = [(m.word, m.in_bytes) for m in result.ranks[1].messages]
        assert messages == [("all_reduce", 4 << 18), ("all_gather", 4 << 18), ("barrier", None)]
        assert result.frames["unended"].empty
        assert result.world_size == 2
        assert "no call has a duration" in " ".join(RankReport(result).verdict().split())
