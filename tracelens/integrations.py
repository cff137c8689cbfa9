"""A report in tools that people have open: TensorBoard, W&B, MLflow, OpenTelemetry, Jupyter, ui.perfetto.dev.

    from tracelens.integrations import log_to_wandb
    log_to_wandb(tl.report("trace.json.gz"))  # to the run of wandb.init()

Each is a thin shell round what a report has already, its page and its figures, and needs an extra of its own
(``tracelens-perf[wandb]``); no report imports any of this. The tab of TensorBoard comes by an entry point where
TensorBoard is installed. Texts of a trace stay text: names of metrics are letters, digits, ``_``, ``-`` and ``.``.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import importlib
import json
import os
import re
import secrets
import stat
import threading
import time
import webbrowser
from collections.abc import Callable, Iterable, Mapping
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode

from tracelens.errors import InputError, NothingToAnalyzeError, UsageError

if TYPE_CHECKING:
    from tracelens.report.result import Report

#: What W&B and MLflow call our part of a run.
_PREFIX = "tracelens"
_PAGE, _DOCUMENT = "report.html", "report.json"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
#: Characters of a part of a metric's name; a longer one ends in a digest of all of it.
_LONGEST = 60


def figures(report: Report) -> dict[str, float]:
    """The figures that ``report -o FILE.prom`` has, in seconds and ratios, by name: ``category_seconds/GEMM``."""
    from tracelens.report.json_report import metrics

    found: dict[str, float] = {}
    for metric in metrics(report.summary):
        parts = [_safe(text) for _, text in metric.labels if text]
        found.setdefault("/".join((metric.name, *parts)), float(metric.value or 0))
    return found


def log_to_wandb(report: Report, run: Any = None, *, step: int | None = None) -> None:
    """The page as a panel and, with report.json, as an artifact of type ``report``; the figures as metrics.

    ``run``: what ``wandb.init()`` returned; None is the run that is open. ``step``: of the metrics; None is W&B's next
    one. UsageError where no run is open.
    """
    wandb = _imported("wandb", "wandb")
    run = run if run is not None else wandb.run
    if run is None:
        raise UsageError("there is no open W&B run: call wandb.init() first, or give the run")
    page, document = _page(report), report.to_json()
    artifact = wandb.Artifact(f"{_PREFIX}-{_safe(report.summary.input.file)}", type="report")
    for name, text in ((_PAGE, page), (_DOCUMENT, document)):
        with artifact.new_file(name, mode="w", encoding="utf-8") as file:
            file.write(text)
    run.log_artifact(artifact)
    shown = {f"{_PREFIX}/{name}": value for name, value in figures(report).items()}
    run.log({**shown, f"{_PREFIX}/page": wandb.Html(page, inject=False)}, step=step)


def log_to_mlflow(report: Report, run_id: str | None = None, *, step: int | None = None) -> None:
    """Page and report.json as artifacts, figures as metrics of ``run_id``, else the open run (UsageError: none)."""
    mlflow = _imported("mlflow", "mlflow")
    if run_id is None:
        active = mlflow.active_run()
        if active is None:
            raise UsageError("there is no open MLflow run: log inside of mlflow.start_run(), or give run_id")
        run_id = active.info.run_id
    mlflow.log_metrics(
        {f"{_PREFIX}/{name}": value for name, value in figures(report).items()}, step=step, run_id=run_id
    )
    for name, text in ((_PAGE, _page(report)), (_DOCUMENT, report.to_json())):
        mlflow.MlflowClient().log_text(run_id, text, f"{_PREFIX}/{name}")


def export_otlp(report: Report, exporter: Any) -> None:
    """Sends the figures by a metric exporter of opentelemetry-sdk, such as an ``OTLPMetricExporter``, and closes it.

    Without a collector to send to, ``tracelens report TRACE -o figures.jsonl`` writes what one reads from a file.
    UsageError where the exporter says that it failed.
    """
    from tracelens.report.json_report import metrics, of_trace

    api = _imported("opentelemetry.sdk.metrics.export", "otlp")
    sdk = _imported("opentelemetry.sdk.metrics", "otlp")
    resources = _imported("opentelemetry.sdk.resources", "otlp")
    reader = api.InMemoryMetricReader()
    about = resources.Resource({"service.name": _PREFIX, **dict(of_trace(report.summary))})
    provider = sdk.MeterProvider(metric_readers=[reader], resource=about, shutdown_on_exit=False)
    meter, made = provider.get_meter(_PREFIX), dict[str, Any]()
    for metric in metrics(report.summary):
        if metric.name not in made:
            name = f"{_PREFIX}.{metric.name}"
            made[metric.name] = meter.create_gauge(name, unit=metric.unit, description=metric.about)
        made[metric.name].set(metric.value, dict(metric.labels))
    result = exporter.export(reader.get_metrics_data())
    provider.shutdown()
    exporter.shutdown()
    if result is not api.MetricExportResult.SUCCESS:
        raise UsageError(f"{type(exporter).__name__} did not send the metrics: is a collector running there?")


def widget(report: Report, *, height_px: int = 720) -> Any:
    """The whole page as a widget of ipywidgets, in a frame that may run the page's script and reach nothing else.

    ``report`` alone in a cell shows the verdict, the findings and where the time goes, without this.
    """
    widgets = _imported("ipywidgets", "jupyter")
    frame = (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(_page(report))}" title="tracelens" width="100%" '
        f'height="{int(height_px)}" style="border:0"></iframe>'
    )
    return widgets.HTML(value=frame, layout=widgets.Layout(width="100%"))


def _page(report: Report) -> str:
    from tracelens.report.html_page import html_bytes

    return html_bytes(report.sheets, report.summary, report.result).decode()


def _safe(text: str) -> str:
    """A part of a name that every tool takes, without folder or markup; different texts may give one part."""
    safe = _UNSAFE.sub("_", text).strip(".") or "_"
    if len(safe) > _LONGEST:
        safe = f"{safe[: _LONGEST - 9]}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"
    return safe


def _imported(module: str, extra: str) -> Any:
    """UsageError, naming the extra, where a package is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        what = module.partition(".")[0]
        raise UsageError(f"this needs {what}: pip install 'tracelens-perf[{extra}]'") from None


PERFETTO = "https://ui.perfetto.dev"
#: The one port of this machine from which ui.perfetto.dev may read (Perfetto's tools/open_trace_in_ui).
PERFETTO_PORT = 9001


def perfetto_place(report: Report, *, step: int | None = None, kernel: str | None = None) -> dict[str, int]:
    """Which part of the trace ui.perfetto.dev shows: its parameters, in ns on the trace's own clock.

    A step by its number, the longest call of a kernel by its name, else the longest of the complete steps.
    UsageError for one that the report lacks.
    """
    import numpy as np

    from tracelens.analysis.analyze import Analysis

    result = report.result
    if not isinstance(result, Analysis):
        raise UsageError("this report was not made from a trace: there is nothing to show in Perfetto")
    activity, times = result.activity, result.step_times
    if kernel is not None:
        names = {result.trace.table.names[code]: code for code in np.unique(activity.name[:]).tolist()}
        if kernel not in names:
            raise UsageError.unknown("kernel", kernel, names)
        own = np.flatnonzero(activity.name == names[kernel])
        at = int(own[np.argmax(activity.duration[own])])
        start, length = int(activity.start[at]), int(activity.duration[at])
        return {"visStart": start - 10 * length, "visEnd": start + 11 * length, "ts": start, "dur": length}
    numbers = {times.steps[each].number: each for each in result.complete_steps}
    if step is not None and step not in numbers:
        raise UsageError.unknown("step", str(step), map(str, numbers))
    if not numbers:
        raise NothingToAnalyzeError("the trace has no complete step: name a kernel")
    at = numbers[step] if step is not None else max(numbers.values(), key=lambda each: int(times.duration_ns[each]))
    return {"visStart": int(times.start_ns[at]), "visEnd": int(times.end_ns[at])}


def open_in_perfetto(
    trace: str | PathLike[str], place: Mapping[str, int] | None = None, *, seconds: float = 60, browser: bool = True
) -> str:
    """Opens a trace in ui.perfetto.dev, at ``perfetto_place``; returns the address when the page has read the file.

    The file goes from this machine into its own browser: it is served once, at 127.0.0.1 under a name that cannot be
    guessed, to ui.perfetto.dev alone. Perfetto reads Kineto's JSON; of other recordings, give it what ``tracelens
    perfetto`` wrote. ``browser``: False prints nothing and opens nothing, but waits for the address to be opened.
    InputError for a file that cannot be read, UsageError where nothing asked for it in ``seconds``.
    """
    path = Path(trace)
    if not path.is_file():
        raise InputError(f"{path} is not a file that can be read")
    held, sent = f"/{secrets.token_urlsafe(16)}/{quote(path.name)}", threading.Event()
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", PERFETTO_PORT), _handler(path, held, sent))
    except OSError as error:
        raise UsageError(f"port {PERFETTO_PORT}, from which Perfetto reads, is not free: {error.strerror}") from None
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"{PERFETTO}/#!/?{urlencode({'url': f'http://127.0.0.1:{PERFETTO_PORT}{held}', **(place or {})})}"
        if browser:
            webbrowser.open(address)
        sent.wait(seconds)
        server.shutdown()
    if not sent.is_set():
        raise UsageError(f"no browser asked for {path.name} within {seconds:g} s: {address}")
    return address


def _handler(path: Path, held: str, sent: threading.Event) -> type[http.server.BaseHTTPRequestHandler]:
    class TraceHandler(http.server.BaseHTTPRequestHandler):
        """One file under one name; others do not exist."""

        def do_GET(self) -> None:
            if self.path != held:
                self.send_error(404)
                return
            with path.open("rb") as file:
                self.send_response(200)
                self.send_header("Access-Control-Allow-Origin", PERFETTO)
                self.send_header("Cache-Control", "no-store")
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
                self.end_headers()
                while piece := file.read(1 << 20):
                    self.wfile.write(piece)
            sent.set()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            pass

    return TraceHandler


#: What WSGI calls with the status and the headers.
Start = Callable[[str, list[tuple[str, str]]], object]
#: Pages that the tab offers, the newest ones; bytes of the largest, and of a page's head in which it says what it is.
_MOST_PAGES, _MOST_BYTES, _HEAD_BYTES = 500, 64_000_000, 4096
_MARK = b'<meta name="generator" content="tracelens">'
#: Seconds for which a list of pages is not made again.
_FRESH_S = 5.0


class ReportPages:
    """The tab of TensorBoard: pages of reports below its log folder, in a frame without origin, script of ours alone.

    Only files in the folder itself and below it, links aside, that say that tracelens wrote them. Whoever else wrote
    one: the policy sent with it admits the script and the style of this version by their hashes and loads nothing.
    """

    plugin_name = _PREFIX

    def __init__(self, context: Any) -> None:
        """``context``: TensorBoard's; its log folder may be a remote one, where no page is found."""
        self._folder = Path(context.logdir or os.devnull)
        self._pages: dict[str, Path] = {}
        self._looked_s: float | None = None

    def get_plugin_apps(self) -> dict[str, Callable[[Mapping[str, Any], Start], Iterable[bytes]]]:
        """By path below the plugin's."""
        return {"/index.js": self._script, "/pages": self._list, "/page": self._show}

    def is_active(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.pages())

    def frontend_metadata(self) -> Any:
        """The name of the tab and the script that fills it."""
        base = _imported("tensorboard.plugins.base_plugin", "tensorboard")
        return base.FrontendMetadata(es_module_path="/index.js", tab_name=_PREFIX)

    def pages(self) -> dict[str, Path]:
        """The pages by their paths below the log folder, the newest first."""
        if self._looked_s is None or time.monotonic() - self._looked_s > _FRESH_S:
            walked = (Path(folder, name) for folder, _, names in os.walk(self._folder) for name in names)
            known = ((path, _of_ours(path, _HEAD_BYTES)) for path in walked if path.suffix == ".html")
            found = sorted((-ours[0], path.relative_to(self._folder).as_posix()) for path, ours in known if ours)
            self._pages = {name: self._folder / name for _, name in found[:_MOST_PAGES]}
            self._looked_s = time.monotonic()
        return self._pages

    def _script(self, environ: Mapping[str, Any], start: Start) -> Iterable[bytes]:
        from tracelens.report.markup import asset

        return _answer(start, "text/javascript; charset=utf-8", asset("tensorboard.js").encode())

    def _list(self, environ: Mapping[str, Any], start: Start) -> Iterable[bytes]:
        return _answer(start, "application/json", json.dumps(list(self.pages())).encode())

    def _show(self, environ: Mapping[str, Any], start: Start) -> Iterable[bytes]:
        from tracelens.report.html_page import SCRIPTS
        from tracelens.report.markup import asset, policy

        (name,) = parse_qs(str(environ.get("QUERY_STRING", ""))).get("name", [""])[:1]
        path = self.pages().get(name)
        ours = None if path is None else _of_ours(path, _MOST_BYTES)
        if ours is None:
            return _answer(start, "text/plain; charset=utf-8", b"there is no such page", status="404 Not Found")
        allowed = f"{policy(chr(10).join(map(asset, SCRIPTS)), asset('page.css'))}; frame-ancestors 'self'"
        return _answer(start, "text/html; charset=utf-8", ours[1], allowed)


def _of_ours(path: Path, size: int) -> tuple[float, bytes] | None:
    """When a page of ours was written, and its first ``size`` bytes; None for any other file, also behind a link."""
    try:
        path.as_posix().encode()
        with open(path, "rb", opener=_not_through_links) as file:
            state, content = os.fstat(file.fileno()), file.read(size)
    except (OSError, ValueError):
        return None
    is_ours = stat.S_ISREG(state.st_mode) and state.st_size <= _MOST_BYTES and _MARK in content[:_HEAD_BYTES]
    return (state.st_mtime, content) if is_ours else None


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _answer(
    start: Start, kind: str, content: bytes, allowed: str = "default-src 'none'", *, status: str = "200 OK"
) -> Iterable[bytes]:
    headers = [("Content-Type", kind), ("Content-Length", str(len(content))), ("Content-Security-Policy", allowed)]
    start(status, [*headers, ("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")])
    return [content]


@functools.cache
def _plugin() -> Any:
    base = _imported("tensorboard.plugins.base_plugin", "tensorboard")
    return type("TracelensPlugin", (ReportPages, base.TBPlugin), {})


def __getattr__(name: str) -> Any:
    """``TracelensPlugin``, which TensorBoard's entry point names: its base is TensorBoard's."""
    if name == "TracelensPlugin":
        return _plugin()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
