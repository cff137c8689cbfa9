"""A lake of many traces: killed twice and resumed, by processes and by dask; its cost, memory and queries.

    python benchmarks/lake.py [--traces 1000] [--jobs 2] [--largest-megabytes 20] [--no-dask] [--keep FOLDER]

Small made-up traces (tests/agents/small_traces.py), ten ranks a run, and one large one. An ingest is killed
(SIGKILL) after a third and after two thirds and resumed; its files are compared with those of one that is left alone.
Costs are CPU seconds of all processes, those of starting them included; a report is ``tracelens.report`` of a tenth of
the traces in processes that are warm, without writing files.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "agents"))
DAY_NS = 86_400 * 10**9
#: Targets: cost of ingest over that of reports; seconds of a query over all ops.
MOST_RATIO, MOST_QUERY_S = 1.1, 1.0

_REPORTS = """
import sys, time
import tracelens
from tracelens.analysis.ranks.rank_files import find_traces
paths = find_traces([sys.argv[1]])
tracelens.report(paths[0])
began = time.process_time()
for path in paths:
    tracelens.report(path)
print(time.process_time() - began)
"""
_INGEST = """
import json, re, resource, sys, time
from pathlib import Path
from tracelens.files.executors import open_executor
from tracelens.report.lake.ingest import ingest
def main():
    with open_executor(sys.argv[3], jobs=int(sys.argv[4])) as executor:
        found = ingest(Path(sys.argv[1]), Path(sys.argv[2]), executor)
    both = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"added": found.added, "known": found.known, "failed": len(found.failed),
        "cpu_s": round(sum(of.ru_utime + of.ru_stime for of in both), 1),
        "largest_process_mb": round(max(of.ru_maxrss for of in both) / 1e3)}))
if __name__ == "__main__":
    main()
"""
_QUERY = """
import sys, time
from pathlib import Path
from tracelens.report.lake.ingest import ask
text = "SELECT name, count(*) AS calls, sum(kernel_us_sum) AS us FROM ops GROUP BY name ORDER BY us DESC"
ask(Path(sys.argv[1]), "SELECT 1")
began = time.perf_counter()
rows = ask(Path(sys.argv[1]), text)
print(time.perf_counter() - began, int(rows["calls"].sum()))
"""
_DASK = """
import sys
from distributed import LocalCluster
import subprocess
def main():
    with LocalCluster(int(sys.argv[4]), threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        subprocess.run([sys.executable, "-m", "tracelens", "ingest", sys.argv[1], "--to", sys.argv[2], "--executor",
                        address], check=True)
if __name__ == "__main__":
    main()
"""


def write_traces(folder: Path, count: int) -> None:
    """Ten ranks a run, a run a day, each day a little slower; rank 7 is the slow one."""
    import small_traces

    for number in range(count):
        run, rank = divmod(number, 10)
        about = {"baseTimeNanoseconds": (20_000 + run) * DAY_NS, "git_revision": f"rev{run}"}
        kernel_us = 100 + 0.5 * run + 20 * (rank == 7)
        path = folder / f"run{run:04d}" / f"rank{rank}.json.gz"
        small_traces.write(path, rank=rank, kernel_us=kernel_us, about=about)


def write_large(folder: Path, megabytes: float) -> Path:
    """One trace of about that much JSON."""
    import small_traces

    step_bytes = len(json.dumps(small_traces.events(steps=1)))
    return small_traces.write(folder / "large.json", steps=max(1, round(megabytes * 1e6 / step_bytes)))


def run(script: str, *arguments: object) -> str:
    """What a script prints, run with this interpreter; from a file, which worker processes import."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.py"
        file.write_text(script)
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, str(file), *map(str, arguments)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def killed(traces: Path, lake: Path, jobs: int, parts: int) -> int:
    """An ingest, killed once the lake has ``parts`` parts; how many it has then."""
    command = [sys.executable, "-m", "tracelens", "ingest", str(traces), "--to", str(lake), "--jobs", str(jobs)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=REPOSITORY)
    while (there := sum(1 for _ in lake.glob("parts/*/*/*/*/*/*"))) < parts:
        if process.poll() is not None:
            raise RuntimeError("the ingest ended before it was killed")
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(2)  # its workers end by themselves
    return there


def content(lake: Path) -> dict[str, bytes]:
    """Every table and the mark of a lake."""
    return {path.relative_to(lake).as_posix(): path.read_bytes() for path in lake.rglob("*.parquet")}


def main() -> int:
    """The measurement; 1 where a lake differs or a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--largest-megabytes", type=float, default=20)
    parser.add_argument("--no-dask", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for traces and lakes; default: a temporary one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        base = asked.keep or Path(temporary)
        return measure(base, asked)


def measure(base: Path, asked: argparse.Namespace) -> int:
    """Prints a line per figure."""
    traces, large = base / "traces", base / "large"
    write_traces(traces, asked.traces)
    write_large(large, asked.largest_megabytes)
    whole = json.loads(run(_INGEST, traces, base / "whole", "processes", asked.jobs))
    print(f"left alone: {whole}", flush=True)
    there = [killed(traces, base / "killed", asked.jobs, asked.traces * third // 3) for third in (1, 2)]
    resumed = json.loads(run(_INGEST, traces, base / "killed", "processes", asked.jobs))
    same = content(base / "killed") == content(base / "whole")
    print(
        f"killed with {there[0]} and {there[1]} parts, resumed: {resumed}; byte for byte the same: {same}", flush=True
    )
    some = sorted(traces.iterdir())[:: max(1, asked.traces // 100)][:10]
    report_s = sum(float(run(_REPORTS, folder)) for folder in some) / sum(len(list(each.iterdir())) for each in some)
    ratio = whole["cpu_s"] / asked.traces / report_s
    print(f"a report: {report_s:.3f} CPU s; ingest of a trace {ratio:.2f} times that", flush=True)
    ten = json.loads(run(_INGEST, traces / "run0000", base / "ten", "processes", 1))
    largest = json.loads(run(_INGEST, large, base / "lake-of-large", "processes", 1))
    peaks = [each["largest_process_mb"] for each in (ten, whole, largest)]
    print(f"largest process, MB: {peaks[0]} for 10 traces, {peaks[1]} for {asked.traces}, {peaks[2]} for the large one")
    query_s, calls = run(_QUERY, base / "whole").split()
    print(f"query over the {calls} rows of ops: {float(query_s):.2f} s", flush=True)
    if not asked.no_dask:
        run(_DASK, traces, base / "dask", "dask", asked.jobs)
        agree = content(base / "dask") == content(base / "whole")
        print(f"dask makes the same lake: {agree}", flush=True)
        same = same and agree
    return 0 if same and ratio <= MOST_RATIO and float(query_s) <= MOST_QUERY_S else 1


if __name__ == "__main__":
    sys.exit(main())
