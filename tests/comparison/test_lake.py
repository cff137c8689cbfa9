"""A lake is the same however it was made: killed and resumed, by processes or dask; a broken trace costs itself only."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from html import escape
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("pyarrow", reason="the lake extra is not installed")
pytest.importorskip("duckdb", reason="the query extra is not installed")
import tracelens as tl
from tests.conftest import part
from tracelens.analysis.tables import built_in_tables
from tracelens.cli import main
from tracelens.errors import InputError, UsageError
from tracelens.files.executors import Serial
from tracelens.files.sql import ready_queries
from tracelens.report.lake.ingest import ORIGIN, ask, ingest

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
                base / f"run{run}" / f"rank{rank}.json.gz",
                rank=rank,
                steps=2,
                kernel_us=100 + 5 * run + slow,
                about=about,
            )
    (base / "run0" / "broken.json").write_text('{"traceEvents": 7')
    return base


@pytest.fixture(scope="module")
def lake(folder, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("made") / "lake"
    found = ingest(folder, to, Serial())
    assert (found.added, found.known, [name for name, _ in found.failed]) == (RUNS * RANKS, 0, ["run0/broken.json"])
    return to


def parts_of(lake: Path) -> list[Path]:
    return list((lake / "parts").glob("run=*/rank=*/date=*/git_revision=*/trace_device=*/*"))


def content(lake: Path) -> dict[str, bytes]:
    return {path.relative_to(lake).as_posix(): path.read_bytes() for path in lake.rglob("*") if path.is_file()}


def tables(lake: Path, run: str) -> dict[str, bytes]:
    """Of each file of a run, its bytes by partition and name; parts are also named after where the trace stands."""
    found = (lake / "parts" / f"run={run}").rglob("*.parquet")
    return {f"{path.parents[1].relative_to(lake)}/{path.name}": path.read_bytes() for path in found}


@pytest.mark.parametrize("kills", part([((3,),), ((1, 3),)], 2), ids=len)
def test_killed_and_resumed_is_byte_for_byte_the_same(kills, folder, lake, tmp_path):
    to = tmp_path / "lake"
    command = [sys.executable, "-m", "tracelens", "ingest", str(folder), "--to", str(to), "--executor", "serial"]
    for parts in kills:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(parts_of(to)) < parts:
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert parts <= len(parts_of(to)) < RUNS * RANKS
    (to / "making" / "half").mkdir(parents=True, exist_ok=True)
    found = ingest(folder, to, Serial())
    assert found.known >= 3
    assert found.known + found.added == RUNS * RANKS
    assert content(to) == content(lake)


def some_of(folder, tmp_path) -> Path:
    return shutil.copytree(folder / "run1", tmp_path / "some" / "run1", copy_function=shutil.copy2).parent


@pytest.mark.sweep
def test_dask_makes_the_same_lake(folder, lake, tmp_path):
    distributed = pytest.importorskip("distributed", reason="the dask extra is not installed")
    with (
        distributed.LocalCluster(1, processes=False, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        client.get_executor(pure=False) as executor,
    ):
        ingest(some_of(folder, tmp_path), tmp_path / "dask", executor)
    assert tables(tmp_path / "dask", "run1") == tables(lake, "run1")


def test_a_trace_that_changed_stands_in_place_of_what_it_was(folder, tmp_path):
    trace, to = tmp_path / "some" / "nightly.json", tmp_path / "lake"
    for kernel_us in (100, 200):
        small_traces.write(trace, steps=1, kernel_us=kernel_us)
        assert ingest(trace.parent, to, Serial()).added == 1
        assert ask(to, "SELECT round(min(duration_us)) AS us FROM kernels")["us"].tolist() == [kernel_us]
    assert ingest(trace.parent, to, Serial()).known == 1


def test_a_trace_without_a_folder_is_a_run_of_its_whole_name(tmp_path):
    for name in ("Qwen1.5-0.5B.pt.trace.json", "Qwen1.7B.json"):
        small_traces.write(tmp_path / "some" / name, steps=1)
    ingest(tmp_path / "some", tmp_path / "lake", Serial())
    runs = ask(tmp_path / "lake", "SELECT DISTINCT run FROM ops ORDER BY run")
    assert runs["run"].tolist() == ["Qwen1.5-0.5B", "Qwen1.7B"]


def test_what_a_trace_says_of_itself_is_a_folder_of_that_name_and_no_other(tmp_path):
    said = "../../x/'=%\n\u202e" + "long" * 40
    small_traces.write(tmp_path / "some" / "a=b %2F'c" / "t.json", steps=1, about={"git_revision": said})
    ingest(tmp_path / "some", tmp_path / "lake", Serial())
    (row,) = ask(tmp_path / "lake", "SELECT DISTINCT run, git_revision FROM ops").itertuples(index=False)
    assert row.run == "a=b %2F'c"
    assert row.git_revision.partition("~")[0] == said[: len(row.git_revision) - 9]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "some"]


def test_a_defect_costs_its_trace_only(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tracelens.report.lake.ingest.origin_of", lambda analysis, name: {}[name])
    found = ingest(folder / "run1", tmp_path / "lake", Serial())
    assert found.added == 0
    assert [name for name, why in found.failed if "KeyError" in why] == ["rank0.json.gz", "rank1.json.gz"]


def test_the_rows_of_a_lake_are_those_of_its_traces(folder, lake):
    report = tl.report(folder / "run2" / "rank1.json.gz")
    for name in ("ops", "kernels", "steps"):
        rows = ask(lake, f"FROM {name} WHERE trace = 'run2/rank1.json.gz'")
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
    ready = ready_queries("tracelens.report.lake")
    answers = {name: ask(lake, each.statement) for name, each in ready.items()}
    assert not [name for name, frame in answers.items() if frame.empty]
    assert answers["outlier_ranks"]["rank"].tolist()[:RUNS] == [1] * RUNS
    assert answers["runs"]["git_revision"].tolist() == [f"rev{run}" for run in range(RUNS)]
    assert answers["trend"]["step_us_median"].is_monotonic_increasing
    found = answers["regressions"]
    assert set(found["name"]) == {"aten::mm"}
    # 100 and 120 us, 110 on average, and 5 us more each week; the last week first
    assert found["percent"].round(1).tolist() == [round(100 * 5 / before, 1) for before in (115, 110)]
    page = (Path(__file__).resolve().parents[2] / "docs" / "lake.md").read_text(encoding="utf-8")
    assert all(each.statement in page and each.about in page for each in ready.values())
    assert main(["query", str(lake), "--ready", "runs", "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") >= RUNS


def test_ready_queries_answer_as_data_frames_do(lake):
    ready = {name: ask(lake, each.statement) for name, each in ready_queries("tracelens.report.lake").items()}
    assert set(ready) == {"outlier_ranks", "regressions", "runs", "top_ops", "trend"}  # regressions: as planted, above
    ops, kernels = ask(lake, "FROM ops"), ask(lake, "FROM kernels")
    steps = ask(lake, "FROM steps WHERE step IS NOT NULL AND complete")
    own = kernels[~kernels.is_communication].groupby(["run", "rank"])
    compute_us = own.duration_us.sum() / own.step.nunique()
    outliers = ready["outlier_ranks"].set_index(["run", "rank"]).sort_index()
    assert outliers.computation_us.tolist() == pytest.approx(list(compute_us))
    times = compute_us / compute_us.groupby("run").transform("median")
    assert outliers.times_median.tolist() == pytest.approx(list(times))
    assert ready["outlier_ranks"].times_median.is_monotonic_decreasing
    runs = steps.groupby("run")
    assert ready["runs"].run.tolist() == [f"run{run}" for run in range(RUNS)]
    assert ready["runs"].steps.tolist() == runs.size().tolist()
    assert ready["runs"].traces.tolist() == [RANKS] * RUNS
    assert ready["runs"].step_us_median.tolist() == pytest.approx(list(runs.duration_us.median()))
    assert ready["runs"].busy_percent.tolist() == pytest.approx(list(100 * runs.busy_us.sum() / runs.duration_us.sum()))
    assert ready["trend"].step_us_median.tolist() == pytest.approx(list(steps.groupby("date").duration_us.median()))
    named = ops.groupby(["name", "category"])
    top = ready["top_ops"].set_index(["name", "category"]).sort_index()
    assert top.traces.tolist() == named.trace.nunique().tolist()
    assert top.operation_count.tolist() == named.operation_count.sum().tolist()
    assert top.kernel_us_sum.tolist() == pytest.approx(list(named.kernel_us_sum.sum()))


def test_the_statement_of_the_page_answers_as_a_data_frame_does(lake):
    page = (Path(__file__).resolve().parents[2] / "docs" / "lake.md").read_text(encoding="utf-8")
    (statement,) = re.findall(r'^    tracelens query lake/ "(SELECT .*)"$', page, re.MULTILINE)
    steps = ask(lake, "FROM steps WHERE complete")
    found = ask(lake, statement).sort_values("run").iloc[:, 1]
    assert found.tolist() == pytest.approx(list(steps.groupby("run").duration_us.median()))


def test_the_dashboard_shows_what_the_queries_answer(folder, lake, tmp_path, capsys):
    to = tmp_path / "<b>lake"
    shutil.copytree(lake, to)
    assert main(["ingest", str(folder), "--to", str(to), "--executor", "serial"]) == 0
    assert "broken.json" in capsys.readouterr().err
    page = (to / "dashboard.html").read_text(encoding="utf-8")
    assert "<b>lake" not in page
    assert "<script" not in page
    ready = ready_queries("tracelens.report.lake")
    assert all(escape(each.about) in page for each in ready.values())
    # rank 1 takes 20 us more than the 100 of rank 0: 120 over the median of 110
    assert "run0 rank 1</th>" in page
    assert f"{120 / 110:.3f} x" in page
    assert "h100-sxm: " not in page.partition("From day to day")[0]
    points = re.findall(r"h100-sxm: ([\d.]+) at (\d+)", page)
    assert [int(day) for _, day in points] == [0, 7, 14]
    assert [float(ms) for ms, _ in points] == pytest.approx(
        ask(to, ready["trend"].statement)["step_us_median"] / 1e3, rel=1e-3
    )
    first = (to / "dashboard.html").read_bytes()
    assert main(["ingest", str(folder), "--to", str(to), "--executor", "serial"]) == 0
    assert (to / "dashboard.html").read_bytes() == first


def test_merged_tables_answer_as_their_parts_do(lake, tmp_path, monkeypatch):
    """Every row in the same place; made anew when parts came, left alone otherwise, not made of large tables."""
    parts = tmp_path / "parts"
    shutil.copytree(lake, parts, ignore=shutil.ignore_patterns("merged"))
    for name in built_in_tables():
        pd.testing.assert_frame_equal(ask(lake, f"FROM {name}"), ask(parts, f"FROM {name}"))
    assert {path.stem for path in lake.glob("merged/*.parquet")} == set(built_in_tables())
    small_traces.write(tmp_path / "more" / "new.json", steps=1)
    shutil.copytree(lake, tmp_path / "lake")
    count = "SELECT count(DISTINCT trace) AS n FROM ops"
    for limit, left in ((10**9, set(built_in_tables())), (0, set())):
        monkeypatch.setattr("tracelens.report.lake.ingest._MOST_MERGED_BYTES", limit)
        small_traces.write(tmp_path / "more" / f"new{limit}.json", steps=1)
        ingest(tmp_path / "more", tmp_path / "lake", Serial())
        assert set(json.loads((tmp_path / "lake" / "merged" / "lake.json").read_text())["tables"]) == left
        assert ask(tmp_path / "lake", count).n[0] == RUNS * RANKS + (2 if limit else 3)
    before = (tmp_path / "lake" / "merged").stat()
    assert ingest(tmp_path / "more", tmp_path / "lake", Serial()).added == 0
    assert (tmp_path / "lake" / "merged").stat() == before


def test_a_folder_of_which_nothing_can_be_read_is_an_error(tmp_path, capsys):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "broken.json").write_text('{"traceEvents": 7')
    assert main(["ingest", str(tmp_path / "some"), "--to", str(tmp_path / "lake"), "--executor", "serial"]) == 1
    assert "none of the traces" in capsys.readouterr().err


def test_a_query_reaches_the_lake_only(lake, tmp_path):
    (tmp_path / "x.csv").write_text("a\n1\n")
    for statement in (f"FROM '{tmp_path}/x.csv'", "FROM read_text('/etc/passwd')", f"COPY ops TO '{lake}/x.csv'"):
        with pytest.raises((UsageError, InputError)):
            ask(lake, statement)


def test_the_command_prints_the_answer_and_nothing_else(lake):
    command = [sys.executable, "-m", "tracelens", "query", str(lake), "SELECT 7 AS x", "--format", "csv"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == b"7"
    assert done.stderr == b""


def test_what_is_no_lake_is_not_written_to(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match="is not a lake"):
        ingest(folder, tmp_path / "mine", Serial())
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_lake_of_an_earlier_version_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lake.json").write_text('{"schema": "tracelens.lake/2", "tables": []}')
    assert main(["query", str(tmp_path), "FROM ops"]) == 2
    assert "is a tracelens.lake/2, whose columns had other names" in capsys.readouterr().err
