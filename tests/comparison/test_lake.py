"""A lake is the same however it was made: killed and resumed, by processes or dask; a broken trace costs itself only."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyarrow", reason="the lake extra is not installed")
pytest.importorskip("duckdb", reason="the query extra is not installed")
import tracelens as tl
from tests.conftest import part
from tests.ranks import logged
from tests.ranks.planted import Job
from tracelens.analysis.tables import built_in_tables
from tracelens.cli import main
from tracelens.errors import InputError, UsageError
from tracelens.files.executors import Serial
from tracelens.files.sql import query, ready_queries
from tracelens.report import lake as lake_room
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
    return list((lake / "parts").glob("run=*/rank=*/date=*/git_revision=*/tag=*/trace_device=*/*"))


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


@pytest.mark.sweep
def test_what_is_said_after_a_kill_is_true(folder, tmp_path):
    """SIGTERM after two parts: they are counted and kept; before the first one nothing is, as the sentence says."""
    for attempt in range(5):  # on a busy machine it may be done before the signal comes
        to = tmp_path / f"lake{attempt}"
        command = [sys.executable, "-m", "tracelens", "ingest", str(folder), "--to", str(to), "--executor", "serial"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while len(parts_of(to)) < 2 and process.poll() is None:
            time.sleep(0.005)
        process.terminate()
        errors = process.communicate()[1].splitlines()
        if process.returncode:
            break
    said, held = errors[-1], len(parts_of(to))
    assert process.returncode == 143
    assert 2 <= held < RUNS * RANKS
    assert said == f"terminated; {to} has {held} traces; the same command adds the others"
    assert ask(to, "SELECT count(DISTINCT trace) AS n FROM ops").n[0] == held
    assert ingest(folder, to, Serial()).known == held


def test_a_verb_that_writes_whole_files_says_after_a_kill_that_nothing_was_written(capsys, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("tracelens.load", interrupted)
    assert main(["query", "trace.json", "FROM ops"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; nothing was written"


def revision(number: int) -> str:
    """In no order, as git's are."""
    return hashlib.sha256(str(number).encode()).hexdigest()[:10]


REVISIONS, DRIFT, DRIFTS_FROM = 12, 1.02, 6


def drifting(to: Path, copies: int, *, noise: float = 0.0, base_ns: Callable[[int], int] = lambda number: 0) -> Path:
    """``copies`` of one recording per revision, the first six as fast as each other, each later one 2 % slower."""
    random = np.random.default_rng(7)
    for number in range(REVISIONS * copies):
        code = number // copies
        slower = DRIFT ** max(0, code - DRIFTS_FROM + 1) * (1 + noise * random.standard_normal())
        about = {"git_revision": revision(code), "tag": f"v1.{code}", "baseTimeNanoseconds": base_ns(number)}
        small_traces.write(to / f"night{number + 1}.json", rank=0, steps=1, kernel_us=100 * slower, about=about)
    return to


def found_in(folder: Path, name: str) -> pd.DataFrame:
    lake = folder.with_name(f"{folder.name}.lake")
    if not lake.exists():
        ingest(folder, lake, Serial())
    return ask(lake, ready_queries("tracelens.report.lake")[name].statement)


@pytest.mark.sweep
def test_a_drift_of_2_percent_a_revision_is_found_on_every_axis_but_the_calendar(tmp_path):
    """All copies have one clock's time, as slim copies of one recording have: their names say the order."""
    folder = drifting(tmp_path / "copies", 2)
    found = found_in(folder, "regressions")
    slower = list(range(REVISIONS - 1, DRIFTS_FROM - 1, -1))
    expected = {
        "git_revision": [(revision(number), revision(number - 1)) for number in slower],
        "tag": [(f"v1.{number}", f"v1.{number - 1}") for number in slower],
        "run": [(f"night{2 * number + 1}", f"night{2 * number}") for number in slower],
    }
    assert list(dict.fromkeys(found["axis"])) == list(expected)
    for axis, pairs in expected.items():
        mine = found[found["axis"] == axis]
        assert list(zip(mine["position"], mine["before"], strict=True)) == pairs
        assert mine["percent"].tolist() == pytest.approx([2.0] * len(pairs), abs=0.02)
        assert mine["times_chance"].isna().all(), "copies do not differ"
    assert set(found_in(folder, "trend")["axis"]) == {"git_revision", "tag", "run"}, "no clock, no day"


@pytest.mark.sweep
def test_of_300_copies_that_differ_by_chance_too_the_drift_is_found_and_nothing_else(tmp_path):
    found = found_in(drifting(tmp_path / "copies", 25, noise=0.01), "regressions")
    mine = found[found["axis"] == "git_revision"]
    # 1 % / sqrt(25) a revision: 2 % is seven times what two of them differ by
    assert mine["position"].tolist() == [revision(number) for number in range(REVISIONS - 1, DRIFTS_FROM - 1, -1)]
    assert mine["percent"].tolist() == pytest.approx([2.0] * 6, abs=4 * 0.01 * (2 / 25) ** 0.5 * 100)
    assert (mine["times_chance"] >= 4).all()
    assert found[found["axis"] == "run"].empty, "of two single copies 1 % each hides 2 %"


def answer(name: str, copies: list[dict[str, object]]) -> pd.DataFrame:
    """A ready query's answer over one row per copy: what ``traces`` and ``ops`` say of it."""
    rows = pd.DataFrame(copies)
    places = {"run": rows["trace"], "rank": 0, "date": None, "git_revision": None, "tag": None, "trace_device": "h100"}
    traces = pd.DataFrame({**places, "began": None, **rows}).astype(
        {"date": "string", "tag": "string", "began": "string"}
    )
    ops = traces.assign(**{"name": "aten::mm", "input_dims": None, "operation_count": 1, **rows}).astype(
        {"input_dims": "string"}
    )
    axes = query({"traces": traces}, (Path(lake_room.__file__).parent / "axes.sql").read_text())
    return query({"ops": ops, "axes": axes}, ready_queries("tracelens.report.lake")[name].statement)


def test_chance_is_no_regression_and_no_change_point():
    """100 ops of three copies of each of twelve revisions, which differ by 3 % each: a change is claimed of five at most."""
    random = np.random.default_rng(3)
    copies = [
        {"trace": f"night{number}", "git_revision": revision(number // 3), "name": f"op{op}", "kernel_us_sum": us}
        for op in range(100)
        for number, us in enumerate(100 * (1 + 0.03 * random.standard_normal(36)))
    ]
    for name in ("regressions", "change_points"):
        found = answer(name, copies)
        assert found["name"].nunique() <= 5, (name, found)
        assert len(found) <= 5


def test_a_change_of_level_is_dated_and_revisions_stand_in_the_order_of_their_clocks():
    """Ten revisions, recorded in the opposite order of their names, 1 % noise; the last four are 8 % faster."""
    random = np.random.default_rng(5)
    copies = [
        {"trace": f"night{99 - number}", "git_revision": revision(number // 2), "began": f"2026-11-{number + 1:02}T08:00",
         "kernel_us_sum": 100 * (0.92 if number >= 12 else 1.0) * (1 + 0.01 * random.standard_normal())}
        for number in range(20)
    ]  # fmt: skip
    found = answer("change_points", copies)
    mine = found[found["axis"] == "git_revision"].iloc[0]
    assert (mine["position"], mine["before"], mine["places"]) == (revision(6), revision(5), 10)
    assert mine["percent"] == pytest.approx(-8, abs=1.5)
    assert mine["us"] / mine["before_us"] == pytest.approx(1 + mine["percent"] / 100)
    assert answer("regressions", copies).empty, "faster is no regression"
    last_run = found[found["axis"] == "run"].iloc[0]
    assert (last_run["position"], last_run["before"]) == ("night87", "night88")


@pytest.mark.parametrize(
    ("base_ns", "date"),
    part(
        [
            (0, None),
            (50 * DAY_NS, None),
            (13_000 * DAY_NS, None),
            (20_000 * DAY_NS, "2024-10-04"),
            (-5, None),
            ("x", None),
        ],
        4,
    ),
)
def test_a_clock_that_counts_from_the_machines_start_gives_no_date(base_ns, date, tmp_path):
    small_traces.write(tmp_path / "some" / "t.json", steps=1, about={"baseTimeNanoseconds": base_ns})
    ingest(tmp_path / "some", tmp_path / "lake", Serial())
    (row,) = ask(tmp_path / "lake", "SELECT date, began FROM traces").itertuples(index=False)
    # The first event is 999 us after the base
    said = [None if pd.isna(value) else value for value in row]
    assert said == ([date, f"{date}T00:00:00.000999"] if date else [None, None])


def test_ranks_are_compared_with_themselves():
    """Rank 1 is 20 % slower than rank 0 and alone in the second revision: that is no regression."""
    copies = [
        {"trace": f"{code}/{rank}", "git_revision": f"r{code}", "rank": rank, "kernel_us_sum": 100.0 + 20 * rank}
        for code, ranks in ((0, (0, 1)), (1, (1,)))
        for rank in ranks
    ]
    assert answer("regressions", copies).empty
    slower = [copy | {"kernel_us_sum": 132.0} if copy["git_revision"] == "r1" else copy for copy in copies]
    assert answer("regressions", slower)["percent"].tolist() == pytest.approx([10.0] * 2), "132 after 120"


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


@pytest.mark.sweep
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
    assert [name for name, frame in answers.items() if frame.empty] == ["change_points"]  # three weeks are too few
    assert answers["outlier_ranks"]["rank"].tolist()[:RUNS] == [1] * RUNS
    assert answers["runs"]["git_revision"].tolist() == [f"rev{run}" for run in range(RUNS)]
    found = answers["regressions"]
    assert set(found["name"]) == {"aten::mm"}
    assert list(dict.fromkeys(found["axis"])) == ["git_revision", "week", "run"]
    assert found["times_chance"].isna().all(), "nothing was repeated"
    for axis, part_of in found.groupby("axis"):
        # 100 and 120 us, 110 on average, and 5 us more each week; the last week first
        assert part_of["percent"].round(1).tolist() == [round(100 * 5 / before, 1) for before in (115, 110)], axis
    for _, part_of in answers["trend"].groupby("axis"):
        assert part_of["step_us_median"].is_monotonic_increasing
    page = (Path(__file__).resolve().parents[2] / "docs" / "lake.md").read_text(encoding="utf-8")
    assert all(each.statement in page and each.about in page for each in ready.values())
    assert main(["query", str(lake), "--ready", "runs", "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") >= RUNS


def test_ready_queries_answer_as_data_frames_do(lake):
    ready = {name: ask(lake, each.statement) for name, each in ready_queries("tracelens.report.lake").items()}
    # regressions and change_points: as planted, above and below
    assert set(ready) == {"change_points", "outlier_ranks", "regressions", "runs", "top_ops", "trend"}
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
    for axis, column in (("day", "date"), ("git_revision", "git_revision"), ("run", "run")):
        found = ready["trend"][ready["trend"].axis == axis]
        medians = steps.groupby(column).duration_us.median()
        assert found.set_index("position").step_us_median.to_dict() == pytest.approx(medians.to_dict())
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
    assert all((escape(each.about) in page) == (each.name != "change_points") for each in ready.values())
    # rank 1 takes 20 us more than the 100 of rank 0: 120 over the median of 110
    assert "run0 rank 1</th>" in page
    assert f"{120 / 110:.3f} x" in page
    assert "h100-sxm: " not in page.partition("From day to day")[0]
    points = re.findall(r"h100-sxm: ([\d.]+) at (\d+)", page)
    assert [int(place) for _, place in points] == [0, 7, 14, 0, 1, 2]
    trend = ask(to, ready["trend"].statement)
    assert [float(ms) for ms, _ in points] == pytest.approx(
        trend[trend["axis"].isin(["day", "git_revision"])]["step_us_median"] / 1e3, rel=1e-3
    )
    first = (to / "dashboard.html").read_bytes()
    assert main(["ingest", str(folder), "--to", str(to), "--executor", "serial"]) == 0
    assert (to / "dashboard.html").read_bytes() == first


@pytest.mark.sweep
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


@pytest.mark.sweep
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
    (tmp_path / "lake.json").write_text('{"schema": "tracelens.lake/3", "tables": []}')
    assert main(["query", str(tmp_path), "FROM ops"]) == 2
    assert "is a tracelens.lake/3, whose tables were others" in capsys.readouterr().err


def test_logs_of_a_job_stand_beside_its_traces(tmp_path):
    """Two ranks' logs of either kind: their collectives, and nothing in the tables that they do not answer."""
    job = Job(ranks=2, steps=1, rounds=3, jitter_us=0, collectives=(("allreduce", "BFloat16", 4_000_000),))
    (folder := tmp_path / "jobs" / "traces").mkdir(parents=True)
    job.write(folder)
    for kind in ("inspector", "recorder"):
        (tmp_path / kind).mkdir()
    logged.write_inspector(job, tmp_path / "inspector")
    for rank in range(2):
        logged.write_dump(logged.dump(job, rank), tmp_path / "recorder" / f"nccl_trace_rank_{rank}")
    for name in ("inspector", "recorder", "jobs"):
        assert ingest(tmp_path / name, tmp_path / "lake", Serial()).failed == ()
    shown = ask(
        tmp_path / "lake",
        "SELECT rank, in_mb, group_size, operation_count AS n, round(duration_us_sum, 3) AS us, effective_bus_gb_s AS bus "
        "FROM collectives WHERE rank IS NOT NULL ORDER BY rank, group_name, trace",
    )
    rows = [tuple(row) for row in shown.round(6).itertuples(index=False)]
    # Two groups of the same two ranks; each in three files
    assert len(rows) == 12
    assert len(set(rows[:6])) == len(set(rows[6:])) == 1
    assert rows[0][:4] == (0, 8.0, 2, 3)
    dates = ask(tmp_path / "lake", "SELECT DISTINCT date FROM traces WHERE date IS NOT NULL")["date"].tolist()
    assert dates == ["2025-06-15"]
    assert len(ask(tmp_path / "lake", "SELECT * FROM kernels")) == len(
        ask(tmp_path / "lake", "SELECT * FROM kernels WHERE trace LIKE 'traces/%'")
    )
