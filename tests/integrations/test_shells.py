"""What tracelens gives other tools, without them: metrics, pages below a log folder, a trace handed to a browser."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens as tl
from tests.conftest import examples
from tracelens import integrations
from tracelens.cli import main
from tracelens.errors import InputError, UsageError
from tracelens.report.export import frame_metrics
from tracelens.report.json_report import Metric, exposition, otlp_line

TOOLS = ("tensorboard", "wandb", "mlflow", "opentelemetry", "ipywidgets", "IPython", "prometheus_client")
#: As Prometheus' page on the text format has them: a label's value ends at a quote that no backslash precedes.
_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\} (\S+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\[\\"n])*)"')


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples of an exposition; AssertionError for a line that is none, a name in two groups or a series twice."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    groups: list[str] = []
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, line
        if groups[-1:] != [sample[1]]:
            assert sample[1] not in groups, f"{sample[1]} is in two groups"
            groups.append(sample[1])
        unescaped = (
            (key, re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text))
            for key, text in _LABEL.findall(sample[2])
        )
        series = (sample[1], tuple(unescaped))
        assert series not in found, line
        found[series] = float(sample[3])
    return found


def test_a_report_imports_none_of_the_tools_nor_their_shells(repository: Path, tmp_path: Path) -> None:
    trace = repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
    code = (
        "import sys; from tracelens.cli import main\n"
        f"assert main(['report', {str(trace)!r}, '-o', {str(tmp_path / 'out')!r}]) == 0\n"
        f"print(sorted({{*{TOOLS!r}, 'tracelens.integrations'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_tool_is_a_dependency_of_the_core(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=!;\[ ]", need)[0].lower() for need in project["dependencies"]}
    assert not needed & {
        "tensorboard",
        "wandb",
        "mlflow",
        "mlflow-skinny",
        "opentelemetry-sdk",
        "ipywidgets",
        "prometheus-client",
    }
    (entry,) = project["entry-points"]["tensorboard_plugins"].values()
    assert entry == "tracelens.integrations:TracelensPlugin"


@pytest.mark.parametrize(
    ("call", "extra"),
    [
        (integrations.log_to_wandb, "wandb"),
        (integrations.log_to_mlflow, "mlflow"),
        (lambda report: integrations.export_otlp(report, None), "otlp"),
        (integrations.widget, "jupyter"),
        (lambda _: integrations.TracelensPlugin, "tensorboard"),
    ],
)
def test_a_tool_that_is_missing_is_named_with_its_extra(
    call: Any, extra: str, moe_report: Any, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    for tool in TOOLS:
        monkeypatch.setitem(sys.modules, tool, None)
    with pytest.raises(UsageError, match=re.escape(f"pip install 'tracelens-perf[{extra}]'")):
        call(moe_report)
    assert extra in tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_ending_of_the_output_makes_metrics(repository: Path, moe_report: Any, tmp_path: Path) -> None:
    trace = str(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    assert main(["report", trace, "-o", str(tmp_path / "figures.prom")]) == 0
    assert main(["report", trace, "-o", str(tmp_path / "figures.jsonl")]) == 0
    samples = read((tmp_path / "figures.prom").read_text())
    of_trace = (("file", "rank0.json.gz"), ("rank", "0"), ("device", "mi300x"))
    assert samples["tracelens_step_seconds", of_trace] == moe_report.summary.steps.time_us / 1e6
    for row in moe_report.summary.categories:
        assert samples["tracelens_category_seconds", (*of_trace, ("category", row.name))] == row.time_us / 1e6
    (line,) = (tmp_path / "figures.jsonl").read_text().splitlines()
    (resource,) = json.loads(line)["resourceMetrics"]
    sent = {
        (f"tracelens_{gauge['name'].removeprefix('tracelens.')}", tuple((a["key"], a["value"]["stringValue"]) for a in point["attributes"])): point["asDouble"]
        for gauge in resource["scopeMetrics"][0]["metrics"]
        for point in gauge["gauge"]["dataPoints"]
    }  # fmt: skip
    # Two findings of one kind and op are one series of Prometheus, and two points of OpenTelemetry
    assert {(name, labels[3:]): value for (name, labels), value in samples.items()}.keys() == sent.keys()
    assert integrations.figures(moe_report)["step_seconds"] == moe_report.summary.steps.time_us / 1e6
    assert len(integrations.figures(moe_report)) == len(samples)


def test_ranks_have_no_metrics_and_that_is_said(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = repository / "example_traces" / "moe_ep8"
    assert main(["collectives", str(folder), "-o", str(tmp_path / "x.prom")]) == 2
    assert "metrics are of one trace" in capsys.readouterr().err
    assert not (tmp_path / "x.prom").exists()


def test_otlp_bears_the_time_of_the_recording_where_that_is_known(
    moe_report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def times() -> set[str]:
        metrics = json.loads(moe_report.to_otlp())["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
        return {point["timeUnixNano"] for gauge in metrics for point in gauge["gauge"]["dataPoints"]}

    before = time.time_ns()
    (written,) = times()  # the example's clock is not the calendar's
    assert before <= int(written) <= time.time_ns()
    table = moe_report.result.trace.table
    monkeypatch.setitem(table.metadata, "baseTimeNanoseconds", 1_764_000_000_000_000_000)
    assert times() == {str(1_764_000_000_000_000_000 + int(table.start_ns.min()))}


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.text(), st.text()), max_size=5), st.floats(allow_nan=False, allow_infinity=False))
def test_no_text_of_a_label_breaks_out_of_it(texts: list[tuple[str, str]], value: float) -> None:
    metrics = [Metric(name="x", about="a\nb", unit="1", value=value, labels=(("a", a), ("b", b))) for a, b in texts]
    metrics.append(Metric(name="last", about="", unit="1", value=1.5))
    samples = read(exposition(metrics, (("file", 'x"}\n'),)).encode().decode())
    assert {name for name, _ in samples} == {"tracelens_last"} | ({"tracelens_x"} if texts else set())
    assert all(len(labels) in (1, 3) for _, labels in samples)
    assert len(otlp_line(metrics).splitlines()) == 1


def test_a_table_of_a_lake_is_metrics_in_base_units() -> None:
    frame = pd.DataFrame(
        {
            "run": ["a", 'b"'], "rank": pd.array([0, None], "Int64"), "whole": [True, False], "traces": [2, 1],
            "step_us_median": [1500.0, math.nan], "busy_percent": [80.0, math.inf], "tflops_s_mean": [3.0, 4.0],
        }
    )  # fmt: skip
    found = {(m.name, m.labels[0][1]): (m.value, m.unit) for m in frame_metrics(frame, "runs", {"rank"})}
    assert found == {
        ("runs_traces", "a"): (2.0, "1"),
        ("runs_traces", 'b"'): (1.0, "1"),
        ("runs_step_seconds_median", "a"): (pytest.approx(0.0015), "s"),
        ("runs_busy_ratio", "a"): (0.8, "1"),
        ("runs_tflops_s_mean", "a"): (3.0, "1"),
        ("runs_tflops_s_mean", 'b"'): (4.0, "1"),
    }
    labels = {m.labels for m in frame_metrics(frame, "runs", {"rank"})}
    assert labels == {
        (("run", "a"), ("rank", "0"), ("whole", "True")),
        (("run", 'b"'), ("rank", ""), ("whole", "False")),
    }


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"op": ["a", "a"], "us": [1, 2]}, "2 have op 'a'"),
        ({"us": [1, 2]}, "2 have no text at all"),
        ({"op": ["a"], "x y": [1], "x_y": [2]}, "x y, x_y"),
        ({"a b": ["a"], "a_b": ["b"], "us": [1]}, "a b, a_b"),
    ],
)
def test_rows_and_columns_that_metrics_cannot_tell_apart_are_refused(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        list(frame_metrics(pd.DataFrame(columns), "query", set()))


@pytest.mark.sweep
def test_a_lake_is_exported_by_the_ending(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("duckdb")
    lake = tmp_path / "lake"
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in (0, 1):
        shutil.copy(repository / "example_traces" / "moe_ep8" / f"rank{rank}.json.gz", traces)
    assert main(["ingest", str(traces), "--to", str(lake), "--jobs", "1"]) == 0
    assert main(["query", str(lake), "--ready", "runs", "-o", str(tmp_path / "runs.prom")]) == 0
    assert main(["query", str(lake), "--ready", "runs", "-o", str(tmp_path / "runs.json")]) == 0
    rows = json.loads((tmp_path / "runs.json").read_text())["rows"]
    samples = {
        (name, dict(labels)["run"]): value
        for (name, labels), value in read((tmp_path / "runs.prom").read_text()).items()
    }
    assert len(rows) == 2
    for row in rows:
        assert samples["tracelens_runs_step_seconds_median", row["run"]] == pytest.approx(row["step_us_median"] / 1e6)
        assert samples["tracelens_runs_busy_ratio", row["run"]] == pytest.approx(row["busy_percent"] / 100)
        assert samples["tracelens_runs_traces", row["run"]] == 1
    assert {name for name, _ in samples} == {
        f"tracelens_runs_{each}" for each in ("traces", "steps", "step_seconds_median", "busy_ratio")
    }


def test_the_dashboard_asks_for_metrics_that_there_are(repository: Path, moe_report: Any) -> None:
    dashboard = json.loads((repository / "docs" / "pipelines" / "grafana.json").read_text())
    written = {name for name, _ in read(moe_report.to_prometheus())}
    runs = pd.DataFrame({"run": ["a"], "traces": [1], "steps": [2], "step_us_median": [1.0], "busy_percent": [1.0]})
    written |= {f"tracelens_{metric.name}" for metric in frame_metrics(runs, "runs", set())}
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(asked) >= 6
    for expression in asked:
        names = set(re.findall(r"\btracelens_\w+", expression))
        assert names, expression
        assert names <= written, expression
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert "http" not in json.dumps(dashboard)


def test_names_of_metrics_hold_nothing_that_is_a_folder_or_markup() -> None:
    for text in ("../../etc/passwd", "<b>x</b>", "..", "a\nb", "", "\ud800", "\u202egnp", "x" * 9000, "a//b"):
        safe = integrations._safe(text)
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", safe), safe
        assert safe.strip(".")
    assert integrations._safe("x" * 9000) != integrations._safe("x" * 9001)
    assert integrations._safe("aten::mm") == "aten_mm"


class Context:
    def __init__(self, logdir: str) -> None:
        self.logdir = logdir


def asked(app: Any, query: str = "") -> tuple[str, dict[str, str], bytes]:
    said: list[Any] = []
    body = b"".join(app({"QUERY_STRING": query, "REQUEST_METHOD": "GET"}, lambda *given: said.append(given)))
    ((status, headers),) = said
    return status, dict(headers), body


@pytest.fixture(scope="module")
def moe_page(tmp_path_factory: pytest.TempPathFactory, moe_report: Any) -> Path:
    path: Path = moe_report.to_html(tmp_path_factory.mktemp("page") / "report.html")
    return path


@pytest.fixture
def logs(tmp_path: Path, moe_page: Path) -> Path:
    folder = tmp_path / "logs"
    (folder / "run" / "a.report").mkdir(parents=True)
    (folder / "run" / "a.report" / "report.html").write_bytes(moe_page.read_bytes())
    (folder / "foreign.html").write_text("<html><script>alert(1)</script></html>")
    (folder / "notes.txt").write_text('<meta name="generator" content="tracelens">')
    (tmp_path / "outside.html").write_bytes(moe_page.read_bytes())
    return folder


def test_the_tab_offers_pages_of_ours_and_nothing_else(logs: Path, moe_page: Path) -> None:
    (logs / "link.html").symlink_to(logs.parent / "outside.html")
    (logs / "linked").symlink_to(logs.parent, target_is_directory=True)
    (logs / "late.html").write_bytes(moe_page.read_bytes())
    os.utime(logs / "late.html", (2e9, 2e9))
    os.mkfifo(logs / "pipe.html")
    tab = integrations.ReportPages(Context(str(logs)))
    apps = tab.get_plugin_apps()
    assert tab.is_active()
    assert json.loads(asked(apps["/pages"])[2]) == ["late.html", "run/a.report/report.html"]
    status, headers, body = asked(apps["/page"], "name=run%2Fa.report%2Freport.html")
    assert (status, body) == ("200 OK", moe_page.read_bytes())
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    own = re.search(r'Content-Security-Policy" content="([^"]*)"', moe_page.read_text())
    assert own is not None
    written = dict(part.strip().split(" ", 1) for part in own[1].replace("&#x27;", "'").split(";"))
    assert policy == {**written, "frame-ancestors": "'self'"}
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    for name in (
        "foreign.html",
        "notes.txt",
        "link.html",
        "linked/outside.html",
        "../outside.html",
        "/etc/passwd",
        "pipe.html",
        "",
        "run",
    ):
        assert asked(apps["/page"], f"name={name}")[0] == "404 Not Found", name
    assert asked(apps["/page"])[0] == "404 Not Found"
    (logs / "late.html").unlink()
    (logs / "late.html").symlink_to(logs.parent / "outside.html")
    assert asked(apps["/page"], "name=late.html")[0] == "404 Not Found"


def test_the_tab_is_not_there_without_a_page(tmp_path: Path) -> None:
    assert not integrations.ReportPages(Context(str(tmp_path))).is_active()
    assert not integrations.ReportPages(Context("gs://bucket/logs")).is_active()
    assert not integrations.ReportPages(Context("")).is_active()


def test_the_script_of_the_tab_puts_names_in_as_text(logs: Path) -> None:
    status, headers, body = asked(integrations.ReportPages(Context(str(logs))).get_plugin_apps()["/index.js"])
    assert (status, headers["Content-Type"]) == ("200 OK", "text/javascript; charset=utf-8")
    assert b"innerHTML" not in body
    assert b'"sandbox", "allow-scripts")' in body


def test_perfetto_is_shown_the_slowest_step_or_the_longest_call_of_a_kernel(moe_report: Any) -> None:
    table = moe_report.result.trace.table
    steps = moe_report.sql("SELECT step, start_us, duration_us FROM steps WHERE complete ORDER BY duration_us DESC")
    place = integrations.perfetto_place(moe_report)
    assert place["visEnd"] - place["visStart"] == pytest.approx(steps["duration_us"][0] * 1e3, abs=1)
    assert place["visStart"] == round(steps["start_us"][0] * 1e3) + int(table.start_ns.min())
    assert integrations.perfetto_place(moe_report, step=int(steps["step"].iloc[-1])) != place
    kernels = moe_report.sql("SELECT kernel_name, start_us, duration_us FROM kernels ORDER BY duration_us DESC LIMIT 1")
    found = integrations.perfetto_place(moe_report, kernel=kernels["kernel_name"][0])
    assert found["ts"] == round(kernels["start_us"][0] * 1e3) + int(table.start_ns.min())
    assert found["dur"] == round(kernels["duration_us"][0] * 1e3)
    assert found["visStart"] < found["ts"] < found["ts"] + found["dur"] < found["visEnd"]
    with pytest.raises(UsageError, match="no kernel named 'nope'"):
        integrations.perfetto_place(moe_report, kernel="nope")
    with pytest.raises(UsageError, match="no step named '99'"):
        integrations.perfetto_place(moe_report, step=99)


@pytest.mark.sweep
def test_a_trace_goes_to_perfetto_once_under_a_name_that_nobody_guesses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "a b.json"
    trace.write_text('{"traceEvents": []}')
    monkeypatch.setattr(integrations, "PERFETTO_PORT", 0)
    seen: dict[str, Any] = {}
    real = integrations.http.server.ThreadingHTTPServer

    def server(address: Any, handler: Any) -> Any:
        made = real(address, handler)
        monkeypatch.setattr(integrations, "PERFETTO_PORT", made.server_port)
        return made

    def open_browser(address: str) -> None:
        def fetch() -> None:
            parts = parse_qs(urlsplit(address).fragment.partition("?")[2])
            (url,) = parts["url"]
            with pytest.raises(HTTPError, match="404"):
                urlopen(url.rpartition("/")[0] + "/other.json")  # noqa: S310 - our own server
            with urlopen(url) as answer:  # noqa: S310
                seen.update(parts, body=answer.read(), allowed=answer.headers["Access-Control-Allow-Origin"])

        threading.Thread(target=fetch).start()

    monkeypatch.setattr(integrations.http.server, "ThreadingHTTPServer", server)
    monkeypatch.setattr(integrations.webbrowser, "open", open_browser)
    address = integrations.open_in_perfetto(trace, {"visStart": 5, "visEnd": 9}, seconds=30)
    assert address.startswith("https://ui.perfetto.dev/#!/?url=http%3A%2F%2F127.0.0.1%3A")
    assert (seen["body"], seen["allowed"]) == (trace.read_bytes(), "https://ui.perfetto.dev")
    assert (seen["visStart"], seen["visEnd"]) == (["5"], ["9"])
    with pytest.raises(UsageError, match=r"no browser asked for a b\.json"):
        integrations.open_in_perfetto(trace, seconds=0.01, browser=False)
    with pytest.raises(InputError, match="is not a file"):
        integrations.open_in_perfetto(tmp_path / "missing.json")


def test_a_port_that_is_taken_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "t.json"
    trace.write_text("{}")
    with integrations.http.server.HTTPServer(
        ("127.0.0.1", 0), integrations.http.server.BaseHTTPRequestHandler
    ) as other:
        monkeypatch.setattr(integrations, "PERFETTO_PORT", other.server_port)
        with pytest.raises(UsageError, match=f"port {other.server_port}, from which Perfetto reads, is not free"):
            integrations.open_in_perfetto(trace, browser=False)


def test_a_report_of_frames_has_no_place_in_perfetto() -> None:
    assert callable(tl.report)
    with pytest.raises(UsageError, match="not made from a trace"):
        integrations.perfetto_place(type("Frames", (), {"result": None})())
