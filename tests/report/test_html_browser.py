"""The page in a real browser: headless Chromium, asked over its remote debugging pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelens

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (Debian: apt-get install chromium)"),
]
SECONDS = 60


class Browser:
    """One tab. ``heard`` keeps every event, so that a test can say that nothing was requested or complained about."""

    def __init__(self, profile: Path) -> None:
        to_browser, commands = os.pipe()
        answers, from_browser = os.pipe()

        def wire() -> None:
            # The browser reads commands from descriptor 3 and writes to 4
            os.dup2(os.dup(to_browser), 3)
            os.dup2(os.dup(from_browser), 4)

        self.process = subprocess.Popen(
            [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(3, 4, to_browser, from_browser), preexec_fn=wire, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.commands, self.answers = commands, answers
        self.buffer = b""
        self.number = 0
        self.session: str | None = None
        self.heard: list[dict[str, Any]] = []
        os.set_blocking(answers, False)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.message(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.heard.append(answer)

    def message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            try:
                piece = os.read(self.answers, 1 << 16)
                assert piece, "the browser ended"
                self.buffer += piece
            except BlockingIOError:
                assert time.monotonic() < deadline, "the browser does not answer"
                time.sleep(0.005)
        one, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(one)

    def evaluate(self, expression: str) -> Any:
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + SECONDS
        while not self.evaluate("document.readyState === 'complete' && document.body.dataset.ready === 'yes'"):
            assert time.monotonic() < deadline, f"the page did not get ready: {self.complaints()}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of the first element found: what covers it would get the click instead."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def texts(self, selector: str) -> list[str]:
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")

    def complaints(self) -> list[str]:
        wrong = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.heard if event.get("method") in wrong]

    def requests(self) -> list[str]:
        sent = [e["params"]["request"]["url"] for e in self.heard if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
        os.close(self.commands)
        os.close(self.answers)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    report = tracelens.report(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    return report.to_html(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def page(browser: Browser, written: Path) -> Browser:
    browser.heard.clear()
    browser.open(written)
    return browser


def numbers(texts: list[str]) -> list[float]:
    return [float(text.replace(",", "")) for text in texts if text]


def column(browser: Browser, table: str, header: str) -> int:
    """The position of a column from 1, for nth-child."""
    return browser.texts(f"#{table} thead th").index(header) + 1


def test_the_page_makes_no_request_and_has_no_complaint(page, written):
    assert page.requests() == [written.as_uri()]
    assert page.complaints() == []
    for selector in ("#timeline-drawing button", "#icicle-drawing .hit", "#ops thead button", "#ops .open"):
        page.click(selector)
    assert page.requests() == [written.as_uri()]
    assert page.complaints() == []


def test_what_the_page_says_about_its_policy_is_true(page):
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
    assert page.evaluate("fetch('https://example.invalid/').then(() => 'sent', () => 'refused')") == "refused"
    assert page.evaluate("window.ran === undefined")
    assert any("Content Security Policy" in complaint for complaint in page.complaints())


def test_a_click_on_a_header_sorts_and_a_second_one_turns_the_order_round(page):
    calls = column(page, "ops", "calls")
    cells = f"#ops tbody tr > td:nth-child({calls})"
    before = numbers(page.texts(cells))
    page.click(f"#ops thead th:nth-child({calls}) button")
    falling = numbers(page.texts(cells))
    assert falling == sorted(falling, reverse=True)
    assert falling != before
    page.click(f"#ops thead th:nth-child({calls}) button")
    rising = numbers(page.texts(cells))
    assert rising == sorted(rising)
    assert page.evaluate(f"document.querySelector('#ops thead th:nth-child({calls})').ariaSort") == "ascending"


def test_text_columns_sort_by_text(page):
    page.click("#kernels thead th:nth-child(1) button")
    names = page.texts("#kernels tbody tr > td:nth-child(1)")
    assert names == sorted(names)


def test_the_filter_keeps_the_rows_that_have_the_text_in_them(page):
    page.click("#ops-tools input")
    page.call("Input.insertText", text="aten::MM")
    names = page.texts("#ops tbody tr > td:first-child .lead > :last-child")
    assert names
    assert set(names) == {"aten::mm"}
    assert page.texts("#ops-tools .count")[0].startswith(f"{len(names)} of ")


def test_a_mark_of_the_roofline_leads_to_its_row_even_when_that_was_filtered_away(page):
    page.click("#ops-tools input")
    page.call("Input.insertText", text="nothing is called so")
    assert page.texts("#ops tbody tr") == []
    wanted = page.evaluate("document.querySelector('a.point:last-of-type').dataset.row")
    page.click("a.point:last-of-type")
    assert page.evaluate("document.querySelector('#ops tr.found').id") == f"ops-{wanted}"
    box = page.evaluate("(() => { const b = document.querySelector('#ops tr.found').getBoundingClientRect();"
                        "return [b.top, b.bottom, innerHeight]; })()")  # fmt: skip
    assert 0 <= box[0] < box[1] <= box[2]
    assert "perf model" in page.texts("#ops tr.found + tr.detail pre")[0]


def test_a_finding_shows_the_rows_of_its_op(page):
    name = page.evaluate("document.querySelector('a.to-ops').dataset.filter")
    page.click("a.to-ops")
    assert set(page.texts("#ops tbody tr > td:first-child .lead > :last-child")) == {name}


def test_the_tree_zooms_into_a_box_and_back(page):
    page.evaluate("document.querySelectorAll('#icicle-drawing .hit')[1].classList.add('wanted')")
    page.click("#icicle-drawing .wanted")
    inside = page.texts("#icicle-drawing .crumbs")[0]
    assert inside.startswith("rank0.json.gz › ")
    page.click("#icicle-drawing .controls button:nth-child(2)")
    assert page.texts("#icicle-drawing .crumbs") == ["rank0.json.gz"]


def test_the_timeline_zooms_and_a_box_of_it_finds_its_kernel(page):
    whole = len(page.texts("#timeline-drawing .hit"))
    for _ in range(3):
        page.click("#timeline-drawing .controls button:first-child")
    assert 0 < len(page.texts("#timeline-drawing .hit")) < whole
    page.click("#timeline-drawing .controls button:nth-child(5)")
    assert len(page.texts("#timeline-drawing .hit")) == whole
    page.click("#timeline-drawing .hit")
    wanted = page.evaluate("document.querySelector('#kernels-tools input').value")
    assert wanted
    assert set(page.texts("#kernels tbody tr > td:first-child")) == {wanted}


def test_a_table_copies_as_markdown(page):
    text = page.evaluate(
        "new Promise((done) => { navigator.clipboard.writeText = async (t) => done(t);"
        "document.querySelector('#collectives-tools button').click(); })"
    )
    head, rule, *rows = text.strip().split("\n")
    assert head.startswith("| Collective name | Process Group Name |")
    assert rule.startswith("| --- | --- |")
    assert len(rows) == len(page.texts("#collectives tbody tr"))


def test_without_the_script_the_answers_and_first_rows_are_there(browser, written):
    texts = (
        "Step time",
        "GPU busy",
        "Coverage",
        "Look here first",
        "GroupedGEMM_fwd",
        "aten::mm",
        "needs JavaScript",
    )
    browser.heard.clear()
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.call("Page.navigate", url=written.as_uri())
        deadline = time.monotonic() + SECONDS
        # The page shows as it loads, so the first text is not all of it
        while any(text not in (shown := visible_text(browser)) for text in texts) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    for text in texts:
        assert text in shown


def visible_text(browser: Browser) -> str:
    """What the tab shows, read from outside the page."""
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    return "\n".join(str(node["name"].get("value", "")) for node in nodes if "name" in node)


HOSTILE = (
    '=HYPERLINK("http://x")', "+1", "<script>window.hit = 1</script>", "</script><script>window.hit = 1</script>",
    "\x1b[31mred", "../../x", '"><img src=x onerror="window.hit = 1">', "${7*7}", "javascript:window.hit=1", "\u202egnp.exe",
)  # fmt: skip


def test_names_of_a_trace_stay_text(browser, tmp_path):
    events: list[dict[str, Any]] = []
    for i, name in enumerate(HOSTILE):
        at = 100 * i
        events += [
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 50, "args": {"Input Dims": [[4, 4]], "Input type": [name]}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 1, "dur": 1, "args": {"correlation": i + 1}},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at + 5, "dur": 40, "args": {"correlation": i + 1, "stream": 7, "device": 0}},
        ]  # fmt: skip
    from tracelens.analysis.loaded_trace import Trace
    from tracelens.trace.table import TraceTable

    trace = Trace.of(TraceTable.from_events(events, source='<img src=x onerror="window.hit = 1">.json'))
    written = tracelens.report(trace).to_html(tmp_path / "hostile.html")
    browser.heard.clear()
    browser.open(written)
    for selector in ("#ops thead button", "#ops .open", "#icicle-drawing .hit", "#timeline-drawing .hit"):
        browser.click(selector)
    browser.evaluate("document.querySelectorAll('#ops .open').forEach((opener) => opener.click())")
    assert browser.evaluate("window.hit === undefined")
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert browser.requests() == [written.as_uri()]
    assert browser.complaints() == []
    names = set(browser.texts("#ops tbody tr > td:first-child .lead > :last-child"))
    assert {'=HYPERLINK("http://x")', "<script>window.hit = 1</script>", "\u241b[31mred", "../../x"} <= names
