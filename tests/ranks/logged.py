"""The logs that a planted job would have left without a profiler: NCCL Inspector's files and the flight recorder's dumps
of the very schedule of which ``planted.Job`` writes traces. Imports nothing of tracelens.
"""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

from tests.ranks.planted import FACTORS, WIDTHS, Job

NAMES = {"allreduce": "AllReduce", "_allgather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter"}
RECORDED = {
    "allreduce": "all_reduce",
    "_allgather_base": "_all_gather_base",
    "_reduce_scatter_base": "_reduce_scatter_base",
}
EPOCH_US = 1_750_000_000_000_000


def calls(job: Job, rank: int) -> list[tuple[str, int, int, int]]:
    """(group, number, start, duration) in whole µs of the collectives of a rank, in their order."""
    found = [
        (group, number, round(starts[rank]), round(job.ends[group, number][rank] - starts[rank]))
        for (group, number), starts in job.starts.items() if rank in starts
    ]  # fmt: skip
    return sorted(found, key=lambda call: call[2])


def members(job: Job) -> dict[str, list[int]]:
    return {group: lists[0] for group, lists in job.groups().items()}


def inspector_lines(job: Job, rank: int, *, verbose: bool, version: str = "v4.2") -> list[str]:
    lines, groups = [], members(job)
    for group, number, start, took in calls(job, rank):
        collective, full = job.shapes[group]
        n = len(groups[group])
        header = {"id": f"0x{int(group) + 0xABC:x}", "comm_name": "unknown", "rank": groups[group].index(rank),
                  "n_ranks": n, "nnodes": 1}  # fmt: skip
        metadata = {"inspector_output_format_version": version, "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
                    "dump_timestamp_us": EPOCH_US + 90_000_000 + len(lines) + 1000 * rank,
                    "hostname": f"node-{job.host(rank)}", "pid": 4000 + rank}  # fmt: skip
        size = int(full) if collective == "allreduce" else int(full) // n
        algo = full / took / 1e3
        perf = {"coll": NAMES[collective], "coll_algo": "RING", "coll_proto": "SIMPLE", "coll_sn": number,
                "coll_msg_size_bytes": size, "coll_exec_time_us": took, "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": round(algo, 6), "coll_busbw_gbs": round(algo * FACTORS[collective](n), 6)}  # fmt: skip
        if verbose:
            stop = EPOCH_US + start + took
            perf["event_trace_sn"] = {"coll_start_sn": 1, "coll_stop_sn": 2, "kernel_events": []}
            perf["event_trace_ts"] = {
                "coll_start_ts": stop - took - 20, "coll_stop_ts": stop - took - 15,
                # Noticed by the host a little later than they happen, on each rank another little
                "kernel_events": [{"channel_id": c, "kernel_start_ts": stop - took + 9, "kernel_stop_ts": stop + 7 * rank,
                                   "kernel_record_ts": stop} for c in range(2)],
            }  # fmt: skip
        if version == "v4.3":
            stats = {"coll_records": 1, "coll_dropped_since_last_dump": 0, "p2p_records": 0}
            lines += [
                json.dumps({"header": header, "metadata": metadata, "dump_stats": stats}),
                json.dumps({"coll_perf": perf}),
            ]
        else:
            lines.append(json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}))
    return lines


def write_inspector(
    job: Job, folder: Path, *, verbose: bool = True, version: str = "v4.2", packed: bool = False
) -> None:
    for rank in range(job.ranks):
        text = "\n".join(inspector_lines(job, rank, verbose=verbose, version=version)) + "\n"
        name = f"node-{job.host(rank)}-pid{4000 + rank}.log"
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text)


def dump(job: Job, rank: int, *, timing: bool = True) -> dict:
    """As PyTorch 2.13 writes it (``FlightRecorderDetail.hpp``)."""
    groups, dtype = members(job), job.collectives[0][1]
    entries = []
    for number, (group, sequence, start, took) in enumerate(calls(job, rank)):
        collective, full = job.shapes[group]
        n, elements = len(groups[group]), int(full) // WIDTHS[dtype]
        begun, noticed = EPOCH_US + start, EPOCH_US + (start + took) // 100_000 * 100_000 + 100_000
        entry = {
            "frames": [{"name": "step", "filename": "/job/train.py", "line": 88}],
            "record_id": number, "pg_id": int(group), "process_group": (group, "default_pg" if group == "0" else "undefined"),
            "thread_name": "python", "thread_id": "1", "collective_seq_id": sequence + 1, "p2p_seq_id": 0,
            "op_id": sequence + 1, "profiling_name": f"nccl:{RECORDED[collective]}", "time_created_ns": (begun - 20) * 1000,
            "input_sizes": [[elements // n if "gather" in collective else elements]], "input_dtypes": [dtype],
            "output_sizes": [[elements // n if "scatter" in collective else elements]], "output_dtypes": [dtype],
            "state": "completed", "time_discovered_started_ns": noticed * 1000 if timing else None,
            "time_discovered_completed_ns": noticed * 1000, "retired": True, "timeout_ms": 600_000, "is_p2p": False,
        }  # fmt: skip
        entries.append(entry | ({"duration_ms": took / 1000} if timing else {}))
    config = {g: {"name": g, "desc": "default_pg" if g == "0" else "undefined", "ranks": str(m)}
              for g, m in groups.items() if rank in m}  # fmt: skip
    return {"version": "2.10", "pg_config": config, "comm_lib_version": "2.29.3", "pg_status": {}, "entries": entries}


def unended(job_dump: dict, after: int, *, state: str | None) -> dict:
    """The dump of a rank whose job stopped at call ``after`` of its only group: that call in ``state``, None: never made."""
    entries = [e for e in job_dump["entries"] if e["collective_seq_id"] <= after]
    last = {"state": state, "retired": False, "time_discovered_completed_ns": None}
    entries = entries[:-1] + ([{k: v for k, v in (entries[-1] | last).items() if k != "duration_ms"}] if state else [])
    return job_dump | {"entries": entries}


def write_dump(content: dict, path: Path, protocol: int = 2) -> None:
    """As JSON where the name says so, else as a pickle."""
    if path.suffix == ".json":
        plain = [{k: 0 if v is None else v for k, v in entry.items() if k != "frames"} for entry in content["entries"]]
        path.write_text(json.dumps(content | {"entries": plain}, sort_keys=True))
    else:
        path.write_bytes(pickle.dumps(content, protocol=protocol))
