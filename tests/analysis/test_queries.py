"""Every documented query runs on the example traces; DuckDB's answers are those of another engine and of the DataFrames."""

from __future__ import annotations

import gzip
import json
import math
import re
import sqlite3
from importlib import resources

import pandas as pd
import pytest

import tracelens as tl
from docs.generate_query import PAGE, page
from tracelens.analysis.tables import built_in_tables
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.files.sql import query, ready_queries, sql_type

pytest.importorskip("duckdb", reason="the query extra is not installed")
READY = ready_queries("tracelens.analysis.tables")
#: What SQLite has no word for; these have their own tests below.
ONLY_DUCKDB = {"slowest_kernel_calls", "memory_peak", "lines_of_kernels"}


@pytest.fixture(scope="module")
def job(moe_report):
    return moe_report


@pytest.fixture(scope="module", params=["job", "cpu"])
def report(request, job, repository):
    cpu = "example_traces/transformer_step_cpu.json.gz"
    return job if request.param == "job" else tl.report(repository / cpu, cpu=True)


def rows(frame: pd.DataFrame) -> list[tuple]:
    """In any order, floats to ten digits."""
    plain = frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)
    return sorted(
        (tuple(float(f"{v:.10g}") if isinstance(v, float | int) else v for v in row) for row in plain), key=repr
    )


def test_there_are_twenty_ready_queries_and_they_are_on_the_page():
    assert len(READY) >= 20
    assert page() == PAGE.read_text(encoding="utf-8")
    assert all(f"```sql\n{ready.statement}\n```" in page() for ready in READY.values())


@pytest.fixture(scope="module")
def other(report):
    """The same tables in another engine."""
    made = sqlite3.connect(":memory:")
    for table, frame in report.tables.items():
        frame.to_sql(table, made, index=False)
    yield made
    made.close()


@pytest.mark.parametrize("name", sorted(set(READY) - ONLY_DUCKDB))
def test_a_ready_query_answers_as_another_engine_does(report, other, name):
    statement = READY[name].statement
    assert rows(report.sql(statement)) == rows(pd.read_sql_query(statement, other))


@pytest.mark.sweep
def test_ready_queries_find_what_the_job_did(job, repository):
    """An answer without rows would agree with anything."""
    whole = tl.report(repository / "example_traces" / "moe_ep8" / "rank0.json.gz", steps="file")
    empty = {name for name, ready in READY.items() if whole.sql(ready.statement).empty}
    assert empty == {"memory_peak"}  # recorded without profile_memory
    unlinked = job.sql(READY["unlinked_kernels"].statement)
    assert unlinked.empty, "what no op launched was queued before recording, and is in no step"


def test_a_kernel_is_compared_with_the_median_of_its_name(job):
    kernels = job.tables["kernels"]
    times = kernels.duration_us / kernels.groupby("kernel_name").duration_us.transform("median")
    found = job.sql(READY["slowest_kernel_calls"].statement)
    assert found.times_median.tolist() == pytest.approx(sorted(times, reverse=True)[:20])


def test_the_peak_of_memory_is_that_of_its_moment():
    memory = pd.DataFrame(
        {"device": ["cuda:0"] * 3, "at_us": [1.0, 2, 3], "allocated_mb": [10.0, 30, 20], "parent_op": ["a", "b", "c"]}
    )
    assert query({"memory": memory}, READY["memory_peak"].statement).values.tolist() == [["cuda:0", 30.0, 2.0, "b"]]


def test_a_line_of_a_kernel_is_the_innermost_outside_of_pytorch():
    """Two shapes from one line are one row; frames of PyTorch and built-in functions are none; without stacks no line."""
    stack = "<built-in mm> <- torch/nn/linear.py(1): forward <- model.py(7): forward <- train.py(3): step"
    ops = pd.DataFrame(
        {"name": ["aten::mm", "aten::mm", "aten::add"], "parent_module": ["M", "M", None],
         "call_stack": [stack, stack, None], "kernel_us_sum": [1.0, 4.0, 2.0], "kernel_details_short": ["a x1", "b x2", "c x3"]}
    )  # fmt: skip
    answer = query({"ops": ops}, READY["lines_of_kernels"].statement)
    assert list(answer) == ["kernels", "op", "module", "line", "kernel_us_sum"]
    assert rows(answer) == [
        ("b x2", "aten::mm", "M", "model.py(7): forward", 5.0),
        ("c x3", "aten::add", None, None, 2.0),
    ]


@pytest.mark.parametrize("table", sorted(built_in_tables()))
def test_a_table_is_its_data_frame(report, table):
    answer, frame = report.sql(f"FROM {table}"), report.tables[table]
    assert list(answer) == list(frame) == list(built_in_tables()[table].options["columns"])
    assert rows(answer) == rows(frame)
    described = dict(report.sql(f"DESCRIBE {table}")[["column_name", "column_type"]].itertuples(index=False))
    assert described == {key: sql_type(column) for key, column in built_in_tables()[table].options["columns"].items()}


def test_tables_add_up_as_the_sheets_do(job):
    """Kernel time of the table, of its rows by op, and of the sheet of kernels."""
    total = job.sql("SELECT sum(duration_us) AS us FROM kernels").us[0]
    assert total == pytest.approx(job.result.frames["kernel_summary"].duration_us_sum.sum())
    linked = job.sql(
        "SELECT count(*) AS n FROM kernels JOIN calls USING (call) WHERE kernels.parent_op = calls.name"
    ).n[0]
    assert linked == job.sql("SELECT count(call) AS n FROM kernels").n[0] > 0
    nested = job.sql("SELECT count(*) AS n FROM calls a JOIN calls b ON a.parent = b.call WHERE a.depth <= b.depth")
    assert nested.n[0] == 0


def test_the_statement_of_the_command_page_is_the_sheet(job, repository):
    (statement,) = re.findall(r'"(SELECT [^".]+)"', (repository / "docs" / "cli.md").read_text(encoding="utf-8"))
    sheet = job.result.frames["unified_perf_summary"]
    assert rows(job.sql(statement)) == rows(sheet[["name", "kernel_us_sum"]])


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM repository",
        "COPY ops TO '/tmp/never.csv'",
        "ATTACH '/tmp/never.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit='100GB'",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT",
        "",
    ],
)
def test_a_statement_reads_its_tables_and_nothing_else(statement):
    repository = pd.DataFrame({"secret": [1]})  # a Python variable, which DuckDB would find by its name
    with pytest.raises(UsageError):
        query({"ops": repository}, statement)


def test_a_column_that_is_not_there_says_where_they_are_listed():
    with pytest.raises(UsageError, match=r"^no column named 'ms'; tracelens query --list shows every column$"):
        query({"ops": pd.DataFrame({"kernel_us": [1.0]})}, "SELECT ms FROM ops")
    with pytest.raises(UsageError, match=r"^no column named 'kernel_su'; did you mean kernel_us\?$"):
        query({"ops": pd.DataFrame({"kernel_us": [1.0]})}, "SELECT kernel_su FROM ops")
    with pytest.raises(UsageError, match=r"^no table named 'opss'; did you mean ops\?$"):
        query({"ops": pd.DataFrame({"kernel_us": [1.0]})}, "SELECT kernel_us FROM opss")


def test_a_statement_that_needs_more_memory_than_it_may_take_is_refused(monkeypatch):
    monkeypatch.setattr("tracelens.files.sql.MEMORY_GB", 0.03)
    with pytest.raises(UsageError, match="of memory: select fewer"):
        query({}, "SELECT list(range) FROM range(10000000)")


def test_the_command_prints_what_the_report_answers(job, repository, tmp_path, capsys):
    jsonschema = pytest.importorskip("jsonschema")
    trace = str(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    statement = "SELECT step, duration_us FROM steps WHERE step IS NOT NULL ORDER BY step"
    assert main(["query", trace, statement, "--format", "json", "-o", str(tmp_path / "steps.csv")]) == 0
    said = json.loads(capsys.readouterr().out)
    jsonschema.validate(
        said, json.loads(resources.files("tracelens").joinpath("report", "schemas", "query.schema.json").read_bytes())
    )
    assert [row["duration_us"] for row in said["rows"]] == job.sql(statement).duration_us.tolist()
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 4
    assert main(["query", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name} " in listed for name in READY)
    assert main(["query", trace, "--ready", "top_opz"]) == 2
    assert "did you mean top_ops" in capsys.readouterr().err
    assert main(["query", trace, statement, "--ready", "steps"]) == 2


def test_ranges_hold_what_was_launched_in_them_and_counters_their_values(tmp_path):
    """Layer 0 around an op that launches 5 us, and a launch of 7 us of its own; beside it a backward thread's 11 us."""

    def event(category, name, start, duration, tid=1, pid=1, **args):
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "ts": start,
            "dur": duration,
            "pid": pid,
            "tid": tid,
            "args": args,
        }

    launches = [
        event("cuda_runtime", "cudaLaunchKernel", at, 1, thread, correlation=number, **{"External id": number})
        for number, (at, thread) in enumerate([(112, 1), (125, 1), (115, 2)], 1)
    ]
    kernels = [
        event("kernel", "k", at, lasts, 7, 0, correlation=number, stream=7, device=0)
        for number, (at, lasts) in enumerate([(120, 5), (130, 7), (140, 11)], 1)
    ]
    events = [
        event("user_annotation", "step", 100, 60),
        event("user_annotation", "layer 0", 105, 40),
        event("cpu_op", "aten::relu", 110, 6, **{"External id": 1}),
        *launches, *kernels,
        event("gpu_user_annotation", "layer 0", 120, 17, 7, 0, stream=7),
        {"ph": "C", "name": "GPU power", "pid": 0, "ts": 101.5, "args": {"watts": 300, "limit": 700.5, "state": "P0", "on": True}},
        {"ph": "C", "name": "GPU power", "pid": 0, "ts": "late", "args": {"watts": 1}},
        {"ph": "C", "name": "GPU power", "pid": 0, "ts": 121.5, "args": {"watts": 650}},
    ]  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    report = tl.report(tmp_path / "t.json")
    found = report.sql('SELECT "range", kind, name, thread, parent, call, kernel_us FROM ranges ORDER BY kind, "range"')
    assert rows(found) == rows(
        pd.DataFrame(
            [
                (0, "annotation", "step", "1/1", None, None, 12.0),
                (1, "annotation", "layer 0", "1/1", 0, None, 12.0),
                (9, "device annotation", "layer 0", "0/7", None, None, None),
                (3, "runtime", "cudaLaunchKernel", "1/1", 1, 2, 5.0),
                (4, "runtime", "cudaLaunchKernel", "1/1", 1, None, 7.0),
                (5, "runtime", "cudaLaunchKernel", "1/2", None, None, 11.0),
            ],
            columns=list(found),
        )
    )
    joined = report.sql("SELECT c.name FROM ranges r JOIN calls c USING (call) WHERE r.kernel_us = 5")
    assert joined.name.tolist() == ["aten::relu"]
    counters = report.sql("SELECT process, name, series, at_us, value FROM counters ORDER BY at_us, series")
    assert rows(counters) == rows(
        pd.DataFrame(
            [("0", "GPU power", series, at, value)
             for series, at, value in [("limit", 1.5, 700.5), ("watts", 1.5, 300.0), ("watts", 21.5, 650.0)]],
            columns=list(counters),
        )
    )  # fmt: skip


@pytest.mark.shared
def test_nvtx_ranges_of_an_nsight_file_are_those_of_its_own_table(shared_traces, tmp_path):
    packed = shared_traces / "more" / "nsys-ai" / "mfu_2gpu_after.sqlite.gz"
    (tmp_path / "t.sqlite").write_bytes(gzip.decompress(packed.read_bytes()))
    database = sqlite3.connect(tmp_path / "t.sqlite")
    own = database.execute(
        "SELECT coalesce(e.text, s.value), count(*), sum(end - start) / 1e3 FROM NVTX_EVENTS e LEFT JOIN StringIds s "
        "ON e.textId = s.id WHERE eventType IN (59, 60, 70, 71) AND end IS NOT NULL "
        "AND coalesce(e.text, s.value) NOT LIKE '%, op_id = %' "  # those of emit_nvtx are ops
        "AND (globalTid >> 24 & 16777215) = 148 GROUP BY 1"  # a report of two ranks' file is of the first
    ).fetchall()
    database.close()
    report = tl.report(packed, steps="file")
    found = report.sql(
        "SELECT name, count(*) AS n, sum(duration_us) AS us FROM ranges WHERE kind = 'annotation' GROUP BY name"
    )
    assert rows(found) == rows(pd.DataFrame(own, columns=list(found)))
    assert len(found) > 1


def test_what_was_not_recorded_is_null(report):
    frame = report.sql("SELECT avg(gflops) AS known, avg(estimated_us) AS unknown FROM ops")
    assert math.isnan(frame.unknown[0])
