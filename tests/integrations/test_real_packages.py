"""The shells with the tools themselves, offline: what each holds afterwards is what the report says.

``.ci/run`` runs these with the versions of ``.ci/integrations.txt`` and sets TRACELENS_INTEGRATIONS, where none may be
missing; elsewhere a tool that is not installed skips its test.
"""

from __future__ import annotations

import http.server
import importlib
import json
import os
import re
import threading
import time
from html.parser import HTMLParser
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import tracelens as tl
from tests.report.headless import CHROMIUM, SECONDS, Browser
from tests.test_hostile import events
from tracelens import integrations
from tracelens.report.json_report import metrics, otlp_json

# Others' warnings are not ours
pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("default")]


def needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        if os.environ.get("TRACELENS_INTEGRATIONS"):
            raise
        pytest.skip(f"{module} is not installed: pip install 'tracelens-perf[integrations]'")


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a trace whose names are markup, formulas, paths and control characters, its file's too."""
    path = tmp_path_factory.mktemp("hostile") / '=1+1 <b>"}\\.json'
    path.write_text(json.dumps({"traceEvents": events()}))
    return tl.report(path)


@pytest.fixture(params=["example", "hostile"])
def report(request: pytest.FixtureRequest, moe_report: Any, hostile_report: Any) -> Any:
    return moe_report if request.param == "example" else hostile_report


def expected(report: Any) -> dict[str, float]:
    return {f"tracelens/{name}": value for name, value in integrations.figures(report).items()}


def test_prometheus_reads_what_is_written(report: Any) -> None:
    parser = needed("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(report.to_prometheus()))
    read = {(s.name, tuple(s.labels.items())): s.value for family in families for s in family.samples}
    assert {family.type for family in families} == {"gauge"}
    assert {name for name, _ in read} == {f"tracelens_{metric.name}" for metric in metrics(report.summary)}
    first: dict[tuple[str, int], float] = {}
    for metric in metrics(report.summary):
        first.setdefault((f"tracelens_{metric.name}", hash(metric.labels)), metric.value or 0)
    assert sorted(read.values()) == sorted(first.values())
    for _, labels in read:
        assert dict(labels)["device"] == (report.summary.device.id or "")
        assert re.sub(r"\W", "", dict(labels)["file"]) == re.sub(r"\W", "", report.summary.input.file)


def test_opentelemetry_reads_the_file_and_the_exporter_sends_the_same(report: Any) -> None:
    service = needed("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    read = needed("google.protobuf.json_format").Parse(otlp_json(report.summary), service.ExportMetricsServiceRequest())
    sent = {
        (metric.name, tuple((a.key, a.value.string_value) for a in point.attributes)): point.as_double
        for metric in read.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.gauge.data_points
    }
    api = needed("opentelemetry.sdk.metrics.export")
    kept: list[Any] = []

    class Exporter(api.MetricExporter):  # type: ignore[misc, name-defined]
        closed = False

        def export(self, metrics_data: Any, timeout_millis: float = 0, **kwargs: Any) -> Any:
            kept.append(metrics_data)
            return self.answer

        def force_flush(self, timeout_millis: float = 0) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None:
            self.closed = True

        answer = api.MetricExportResult.SUCCESS

    exporter = Exporter()
    integrations.export_otlp(report, exporter)
    (resource,) = kept[0].resource_metrics
    exported = {
        (metric.name, tuple(point.attributes.items())): point.value
        for metric in resource.scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    assert exported.keys() == sent.keys()
    assert dict(resource.resource.attributes)["file"] == report.summary.input.file
    assert exporter.closed
    for name, labels in sent:
        if name == "tracelens.category_seconds":
            assert exported[name, labels] == sent[name, labels]
    exporter.answer = api.MetricExportResult.FAILURE
    with pytest.raises(tl.TracelensError, match="Exporter did not send the metrics"):
        integrations.export_otlp(report, exporter)


def test_a_collector_receives_the_figures(moe_report: Any) -> None:
    service = needed("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    http_exporter = needed("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    received: list[Any] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, service.ExportMetricsServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/v1/metrics"
        integrations.export_otlp(moe_report, http_exporter.OTLPMetricExporter(endpoint=address))
        server.shutdown()
    ((path, request),) = received
    assert path == "/v1/metrics"
    (resource,) = request.resource_metrics
    assert {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"] == "tracelens"
    by_name = {metric.name: metric.gauge.data_points for metric in resource.scope_metrics[0].metrics}
    assert [point.as_double for point in by_name["tracelens.step_seconds"]] == [moe_report.summary.steps.time_us / 1e6]
    assert len(by_name["tracelens.category_seconds"]) == len(moe_report.summary.categories)


def test_wandb_holds_page_and_figures(report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb = needed("wandb")
    with pytest.raises(tl.TracelensError, match="no open W&B run"):
        integrations.log_to_wandb(report)
    run = wandb.init(project="tracelens", mode="offline", dir=str(tmp_path))
    logged: list[Any] = []
    real = run.log_artifact
    monkeypatch.setattr(type(run), "log_artifact", lambda self, artifact: logged.append(artifact) or real(artifact))
    integrations.log_to_wandb(report)
    summary = dict(run.summary)
    files = Path(run.dir)
    run.finish()
    for name, value in expected(report).items():
        assert summary[name] == value, name
    (page,) = (files / "media" / "html" / "tracelens").glob("*.html")
    assert page.read_text(encoding="utf-8") == integrations._page(report)
    (artifact,) = logged
    assert artifact.type == "report"
    assert set(artifact.manifest.entries) == {"report.html", "report.json"}
    local = Path(artifact.manifest.entries["report.json"].local_path)
    assert json.loads(local.read_text(encoding="utf-8"))["schema"] == "tracelens.report/2"


def test_mlflow_holds_page_and_figures(report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = needed("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with pytest.raises(tl.TracelensError, match="no open MLflow run"):
        integrations.log_to_mlflow(report)
    with mlflow.start_run() as run:
        integrations.log_to_mlflow(report, step=7)
    client = mlflow.MlflowClient()
    assert client.get_run(run.info.run_id).data.metrics == expected(report)
    assert client.get_metric_history(run.info.run_id, "tracelens/coverage_ratio")[0].step == 7
    kept = {each.path: each.file_size for each in client.list_artifacts(run.info.run_id, "tracelens")}
    assert set(kept) == {"tracelens/report.html", "tracelens/report.json"}
    assert kept["tracelens/report.html"] == len(integrations._page(report).encode())
    other = client.create_run(run.info.experiment_id)
    integrations.log_to_mlflow(report, other.info.run_id)
    assert client.get_run(other.info.run_id).data.metrics == expected(report)


def test_a_widget_holds_the_page_in_a_frame_that_reaches_nothing(report: Any) -> None:
    widgets = needed("ipywidgets")
    shown = integrations.widget(report, height_px=500)
    assert isinstance(shown, widgets.HTML)
    tags: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign, assignment]
    parser.feed(shown.value)
    ((tag, attributes),) = tags
    assert (tag, attributes["sandbox"], attributes["height"]) == ("iframe", "allow-scripts", "500")
    assert attributes["srcdoc"] == integrations._page(report)


@pytest.fixture
def board(tmp_path: Path, moe_report: Any) -> Any:
    """TensorBoard itself over a log folder with a report, by the entry point of the installed package."""
    default = needed("tensorboard.default")
    program = needed("tensorboard.program")
    moe_report.write(tmp_path / "run1.report")
    (tmp_path / "foreign.html").write_text("<script>alert(1)</script>")
    plugins = [*default.get_static_plugins()[:1], integrations.TracelensPlugin]
    board = program.TensorBoard(plugins=plugins)
    board.configure(
        argv=["", "--logdir", str(tmp_path), "--port", "0", "--load_fast", "false", "--reload_interval", "0"]
    )
    return board


def test_tensorboard_serves_the_page_and_knows_the_tab(board: Any, tmp_path: Path) -> None:
    server = board._make_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = server.get_url().rstrip("/")
    base = base.replace(re.search(r"//([^:]+):", base)[1], "localhost")  # type: ignore[index]
    try:
        with urlopen(f"{base}/data/plugins_listing") as answer:  # noqa: S310
            listed = json.loads(answer.read())["tracelens"]
        assert listed["enabled"] is True
        assert listed["tab_name"] == "tracelens"
        with urlopen(f"{base}/data/plugin/tracelens/pages") as answer:  # noqa: S310
            assert json.loads(answer.read()) == ["run1.report/report.html"]
        with urlopen(f"{base}/data/plugin/tracelens/page?name=run1.report/report.html") as answer:  # noqa: S310
            assert answer.read() == (tmp_path / "run1.report" / "report.html").read_bytes()
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        with urlopen(f"{base}/data/plugin_entry.html?name=tracelens") as answer:  # noqa: S310
            assert b"./index.js" in answer.read()
        if CHROMIUM is not None:
            page = f"{base}/data/plugin/tracelens/page?name=run1.report/report.html"
            look_at(f"{base}/data/plugin_entry.html?name=tracelens", page, tmp_path)
    finally:
        server.shutdown()


def look_at(address: str, page: str, folder: Path) -> None:
    """In a browser the tab has the page in a frame without origin, and what is sent with a page lets our script run,
    no other one."""
    browser = Browser(folder / "profile")
    try:
        browser.call("Page.navigate", url=address)
        wait_for(browser, "document.querySelectorAll('iframe').length === 1")
        assert browser.texts("option") == ["run1.report/report.html"]
        assert browser.evaluate("document.querySelector('iframe').getAttribute('sandbox')") == "allow-scripts"
        assert browser.evaluate("document.querySelector('iframe').contentDocument === null")
        while not any(url.endswith("report.html") for url in browser.requests()):
            wait_for(browser, "true")
        browser.call("Page.navigate", url=page)
        wait_for(browser, "document.body && document.body.dataset.ready === 'yes'")
        kept = folder / "run1.report" / "report.html"
        kept.write_bytes(kept.read_bytes().replace(b"</main>", b"</main><script>window.ran = 1</script>"))
        browser.call("Page.navigate", url=page)
        wait_for(browser, "document.body && document.body.dataset.ready === 'yes'")
        assert browser.evaluate("document.scripts.length") == 3
        assert browser.evaluate("window.ran === undefined")
        assert all("favicon" in each or "Content Security Policy" in each for each in browser.complaints())
    finally:
        browser.close()


def wait_for(browser: Browser, condition: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not browser.evaluate(condition):
        assert time.monotonic() < deadline, browser.complaints()
        time.sleep(0.02)


def test_the_entry_point_names_the_plugin() -> None:
    base = needed("tensorboard.plugins.base_plugin")
    assert issubclass(integrations.TracelensPlugin, base.TBPlugin)
    found = [each.value for each in entry_points(group="tensorboard_plugins") if each.name == "tracelens"]
    if os.environ.get("TRACELENS_INTEGRATIONS"):
        assert "tracelens.integrations:TracelensPlugin" in found
