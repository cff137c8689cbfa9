"""A lake is the same however it was made: killed and resumed, by processes or dask; a broken trace costs itself only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("pyarrow", reason="the lake extra is not installed")
pytest.importorskip("duckdb", reason="the query extra is not installed")
import tracelens as tl
from tracelens.cli import main
from tracelens.errors import InputError, UsageError
from tracelens.executors import IsolatedProcesses, Serial
from tracelens.lake.ingest import ORIGIN, ingest, patterns
from tracelens.sql import query_files, ready_queries

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "agents"))
import small_traces

DAY_NS = 86_400 * 10**9
RUNS, RANKS = 3, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three runs, a week apart, of two ranks, one of them slow; each run 5 us slower than the one before."""
    base = tmp_path_factory.mktemp("traces")
    for run in range(RUNS):
        about = {"baseTimeNanoseconds": (20_000 + 7 * run) * DAY_NS, "git_revision": f"rev{run}"}
        for rank in range(RANKS):
            slow = 20 * (rank == 1)
            small_traces.write(
                base / f"run{run}" / f"rank{rank}.json.gz", rank=rank, kernel_us=100 + 5 * run + slow, about=about
            )
    (base / "run0" / "broken.json").write_text('{"traceEvents": 7')
    return base


@pytest.fixture(scope="module")
def lake(folder, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("made") / "lake"
    found = ingest(folder, to, Serial())
    assert (found.added, found.known, [name for name, _ in found.failed]) == (RUNS * RANKS, 0, ["run0/broken.json"])
    return to


def content(lake: Path) -> dict[str, bytes]:
    return {path.relative_to(lake).as_posix(): path.read_bytes() for path in lake.rglob("*") if path.is_file()}


def test_killed_twice_and_resumed_is_byte_for_byte_the_same(folder, lake, tmp_path):
    to = tmp_path / "lake"
    command = [sys.executable, "-m", "tracelens", "ingest", str(folder), "--to", str(to), "--executor", "serial"]
    for parts in (1, 3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(list((to / "parts").glob("*"))) < parts:
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert parts <= len(list((to / "parts").glob("*"))) < RUNS * RANKS
    (to / "making" / "half").mkdir(parents=True, exist_ok=True)
    found = ingest(folder, to, Serial())
    assert found.known >= 3
    assert found.known + found.added == RUNS * RANKS
    assert content(to) == content(lake)


def test_processes_and_dask_make_the_same_lake(folder, lake, tmp_path):
    with IsolatedProcesses(1) as processes:
        ingest(folder, tmp_path / "processes", processes)
    assert content(tmp_path / "processes") == content(lake)
    distributed = pytest.importorskip("distributed", reason="the dask extra is not installed")
    with (
        distributed.LocalCluster(1, processes=False, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        client.get_executor(pure=False) as executor,
    ):
        ingest(folder, tmp_path / "dask", executor)
    assert content(tmp_path / "dask") == content(lake)


def test_the_rows_of_a_lake_are_those_of_its_traces(folder, lake):
    report = tl.report(folder / "run2" / "rank1.json.gz")
    for name in ("ops", "kernels", "steps"):
        rows = query_files(patterns(), lake, f"FROM {name} WHERE trace = 'run2/rank1.json.gz'")
        own = report.tables[name]
        pd.testing.assert_frame_equal(
            rows[list(own.columns)].astype(object).where(rows[list(own.columns)].notna(), None),
            own.astype(object).where(own.notna(), None),
            check_dtype=False,
        )
        assert set(rows["git_revision"]) == {"rev2"}
        assert set(rows["date"]) == {str(pd.Timestamp((20_000 + 14) * DAY_NS).date())}
        assert list(rows)[: len(ORIGIN)] == list(ORIGIN)


def test_ready_queries_find_what_was_planted(lake, capsys):
    ready = ready_queries("tracelens.lake")
    answers = {name: query_files(patterns(), lake, each.statement) for name, each in ready.items()}
    assert not [name for name, frame in answers.items() if frame.empty]
    assert answers["outlier_ranks"]["rank"].tolist()[:RUNS] == [1] * RUNS
    assert answers["runs"]["git_revision"].tolist() == [f"rev{run}" for run in range(RUNS)]
    assert answers["trend"]["step_ms"].is_monotonic_increasing
    worst = answers["regressions"].iloc[0]
    # 100 and 120 us, 110 on average, and 5 us more a week later
    assert (worst["name"], round(worst["percent"], 1)) == ("aten::mm", round(100 * 5 / 110, 1))
    page = (Path(__file__).resolve().parents[2] / "docs" / "lake.md").read_text(encoding="utf-8")
    assert all(each.statement in page and each.about in page for each in ready.values())
    assert main(["query", str(lake), "--ready", "runs", "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") >= RUNS


def test_a_query_reaches_the_lake_only(lake, tmp_path):
    (tmp_path / "x.csv").write_text("a\n1\n")
    for statement in (f"FROM '{tmp_path}/x.csv'", "FROM read_text('/etc/passwd')", f"COPY ops TO '{lake}/x.csv'"):
        with pytest.raises((UsageError, InputError)):
            query_files(patterns(), lake, statement)


def test_what_is_no_lake_is_not_written_to(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match="is not a lake"):
        ingest(folder, tmp_path / "mine", Serial())
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
