"""The page in a real browser."""

from __future__ import annotations

import functools
import http.server
import itertools
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import tracelens
from tests.conftest import part
from tests.report.headless import SECONDS, Browser, needs_browser
from tests.trace.event_texts import read_events
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.page_charts import step_timelines

pytestmark = needs_browser


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def numbers(texts: list[str]) -> list[float]:
    return [float(text.replace(",", "")) for text in texts if text]


def column(browser: Browser, table: str, header: str) -> int:
    """The position of a column from 1, for nth-child."""
    return browser.texts(f"#{table} thead th").index(header) + 1


def test_the_page_makes_no_request_and_has_no_complaint(page, moe_page):
    assert page.requests() == [moe_page.as_uri()]
    assert page.complaints() == []
    for selector in (
        "#timeline-drawing button",
        "#timeline-drawing .top",
        "#icicle-drawing .hit",
        "#ops thead button",
        "#ops .open",
    ):
        page.click(selector)
    assert page.requests() == [moe_page.as_uri()]
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
    calls = column(page, "ops", "Calls")
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
    names = page.texts("#ops tbody tr > td:first-child .lead > :nth-child(2)")
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
    assert set(page.texts("#ops tbody tr > td:first-child .lead > :nth-child(2)")) == {name}


def test_the_tree_zooms_into_a_box_and_back(page):
    page.evaluate("document.querySelectorAll('#icicle-drawing .hit')[1].classList.add('wanted')")
    page.click("#icicle-drawing .wanted")
    inside = page.texts("#icicle-drawing .crumbs")[0]
    assert inside.startswith("rank0.json.gz › ")
    page.click("#icicle-drawing .controls button:nth-child(2)")
    assert page.texts("#icicle-drawing .crumbs") == ["rank0.json.gz"]


def shown_stretch(page: Browser) -> tuple[float, float]:
    """What the timeline shows, in ms."""
    first, last = page.texts("#timeline-drawing .controls .count")[-1].split(" to ")
    return tuple(float(text.split()[0]) / (1 if text.endswith("ms") else 1000) for text in (first, last))  # type: ignore[return-value]


def timeline_box(page: Browser) -> dict[str, float]:
    return page.evaluate(
        "(() => { const c = document.querySelector('#timeline-drawing .top'); c.scrollIntoView({block: 'center'});"
        "const b = c.getBoundingClientRect(); return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
    )


def settled(page: Browser) -> None:
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_the_wheel_the_keys_and_the_buttons_zoom_the_timeline_and_dragging_moves_it(page):
    first, last = shown_stretch(page)
    assert (first, last) == (0, 16.392)
    box = timeline_box(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + 60
    for at in (x - 5, x):
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=at, y=y)
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-200)
    settled(page)
    by_wheel = shown_stretch(page)
    assert 0 < by_wheel[0] < by_wheel[1] < 16.392
    page.call("Input.dispatchKeyEvent", type="keyDown", key="w", text="w")
    settled(page)
    by_key = shown_stretch(page)
    assert by_wheel[0] < by_key[0] < by_key[1] < by_wheel[1]
    for kind, at in (("mousePressed", x), ("mouseMoved", x - 200), ("mouseReleased", x - 200)):
        page.call("Input.dispatchMouseEvent", type=kind, x=at, y=y, button="left", buttons=1, clickCount=1)
    settled(page)
    moved = shown_stretch(page)
    assert moved[0] > by_key[0]
    assert moved[1] - moved[0] == pytest.approx(by_key[1] - by_key[0], abs=0.002)
    page.click("#timeline-drawing .controls button:nth-of-type(5)")
    settled(page)
    assert shown_stretch(page) == (0, 16.392)


def test_the_search_of_the_timeline_leads_to_a_box_and_that_to_its_row(page):
    page.click("#timeline-drawing .controls input")
    page.call("Input.insertText", text="GemmPipeline")
    assert int(page.texts("#timeline-drawing .controls .count")[0].split(" found, ")[0]) > 5
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter")
    settled(page)
    details = page.texts("#timeline-drawing .details")[0]
    assert "GroupedGemmKernel" in details
    assert "launched by primus_turbo_cpp_extension::ck_grouped_gemm" in details
    assert "before it began" in details
    page.click("#timeline-drawing .details button")
    assert page.texts("#ops tr.found .lead > :nth-child(2)") == ["primus_turbo::grouped_gemm_impl"]


def test_another_step_of_the_timeline_can_be_chosen(page):
    steps = page.texts("#timeline-drawing select option")
    assert len(steps) == 3
    assert steps[0] == "step 10, 16.392 ms (typical)"
    page.evaluate("(() => { const s = document.querySelector('#timeline-drawing select'); s.value = '1';"
                  "s.dispatchEvent(new Event('change')); })()")  # fmt: skip
    settled(page)
    assert f"{shown_stretch(page)[1]:.3f} ms" in steps[1]


def frame(name: str, at: float, duration: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": duration}


def test_the_way_down_leads_from_a_category_to_op_kernel_and_line_and_back(browser, tmp_path):
    events = [
        frame("train.py(7): step", 0, 90), frame("torch/nn/functional.py(1): linear", 1, 80),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 2, "dur": 20,
         "args": {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 1, "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "sgemm_128x64", "pid": 0, "tid": 7, "ts": 9, "dur": 40, "args": {"correlation": 1, "stream": 7, "device": 0}},
    ]  # fmt: skip
    report = tracelens.report(Trace.of(read_events(events, source="stacks.json")))
    browser.open(report.to_html(tmp_path / "stacks.html"))
    for wanted in ("GEMM", "aten::mm (64, 64), (64, 64)", "sgemm_128x64"):
        assert browser.texts("#drill-drawing tbody th button:first-child") == [wanted]
        browser.click("#drill-drawing tbody th button")
    assert browser.texts("#drill-drawing tbody th") == ["train.py(7): step"]
    assert browser.texts("#drill-drawing .crumbs button") == ["all categories", "GEMM", "aten::mm (64, 64), (64, 64)"]
    browser.click("#drill-drawing .crumbs button:nth-of-type(2)")
    browser.click("#drill-drawing tbody th button:nth-of-type(2)")
    assert browser.evaluate("document.querySelector('#ops tr.found').id") == "ops-0"


def test_the_tree_is_searched_and_turned_round(page):
    page.click("#icicle-drawing input[type=search]")
    page.call("Input.insertText", text="Cijk")
    assert page.texts("#icicle-drawing .count[aria-live]")[0].endswith("% of all")
    share = page.texts("#icicle-drawing .count[aria-live]")
    page.click("#icicle-drawing input[type=checkbox]")
    assert page.texts("#icicle-drawing .count[aria-live]") == share


def test_columns_are_chosen_and_the_name_stays_in_sight(page):
    header = "document.querySelector('#ops thead th:last-child')"
    assert page.evaluate(f"{header}.hidden")
    page.click("#ops-tools summary")
    page.click("#ops-tools .chooser label:last-child input")
    assert not page.evaluate(f"{header}.hidden")
    left = page.evaluate(
        "(() => { const box = document.querySelector('#ops').parentNode; box.scrollLeft = 400;"
        "return document.querySelector('#ops tbody td').getBoundingClientRect().left - box.getBoundingClientRect().left; })()"
    )
    assert 0 <= left <= 2


def test_what_can_be_used_has_a_name_and_marks_are_not_told_by_color_alone(page):
    """What axe-core's rules on names, ids and roles ask, in one pass over the page."""
    wrong = page.evaluate(
        """[...document.querySelectorAll('button, a[href], input, select, summary, [tabindex], [role=img], [role=application]')]
        .filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label') || e.title || (e.labels && e.labels.length)))
        .map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert wrong == []
    twice = page.evaluate(
        "(() => { const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);"
        "return ids.filter((id, i) => ids.indexOf(id) !== i); })()"
    )
    assert twice == []
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize("mode", part(["light", "dark"], 2))
def test_texts_stand_out_from_what_is_behind_them(browser, moe_page, mode):
    """WCAG 2 AA: 4.5 to 1 for the texts of the page on its panels."""
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
    try:
        browser.open(moe_page)
        colors = browser.evaluate(
            "(() => { const s = getComputedStyle(document.documentElement);"
            "return Object.fromEntries(['ink', 'dim', 'accent', 'warn', 'panel', 'soft', 'warn-soft']"
            ".map((n) => [n, s.getPropertyValue('--' + n).trim()])); })()"
        )
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])
    pairs = [
        ("ink", "panel"),
        ("ink", "soft"),
        ("dim", "panel"),
        ("dim", "soft"),
        ("accent", "panel"),
        ("warn", "warn-soft"),
    ]
    for front, behind in pairs:
        assert contrast(colors[front], colors[behind]) >= 4.5, (front, behind)


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it, of two colors ``#rrggbb``."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_table_copies_as_markdown(page):
    text = page.evaluate(
        "new Promise((done) => { navigator.clipboard.writeText = async (t) => done(t);"
        "document.querySelector('#collectives-tools button').click(); })"
    )
    head, rule, *rows = text.strip().split("\n")
    assert head.startswith("| Collective | Process group |")
    assert rule.startswith("| --- | --- |")
    assert len(rows) == len(page.texts("#collectives tbody tr"))


def test_without_the_script_the_answers_and_first_rows_are_there(browser, moe_page):
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
        browser.call("Page.navigate", url=moe_page.as_uri())
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
    trace = Trace.of(read_events(events, source='<img src=x onerror="window.hit = 1">.json'))
    written = tracelens.report(trace).to_html(tmp_path / "hostile.html")
    browser.heard.clear()
    browser.open(written)
    for selector in ("#ops thead button", "#ops .open", "#icicle-drawing .hit", "#timeline-drawing .top"):
        browser.click(selector)
    browser.evaluate("document.querySelectorAll('#ops .open').forEach((opener) => opener.click())")
    assert browser.evaluate("window.hit === undefined")
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert browser.requests() == [written.as_uri()]
    assert browser.complaints() == []
    names = set(browser.texts("#ops tbody tr > td:first-child .lead > :nth-child(2)"))
    assert {'=HYPERLINK("http://x")', "<script>window.hit = 1</script>", "\u241b[31mred", "../../x"} <= names


@pytest.mark.sweep
def test_perfetto_gets_the_chosen_trace_at_the_part_in_view(browser, moe_page, moe_report, tmp_path):
    trace = tmp_path / "t.json"
    trace.write_text('{"traceEvents": []}')
    handler = functools.partial(QuietHandler, directory=str(moe_page.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.heard.clear()
        browser.call("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/{moe_page.name}")
        deadline = time.monotonic() + SECONDS
        while not browser.evaluate("document.body && document.body.dataset.ready === 'yes'"):
            assert time.monotonic() < deadline
        before = browser.requests()
        found = browser.call(
            "Runtime.evaluate", expression="document.querySelector('#timeline-drawing input[type=file]')"
        )
        browser.call("DOM.setFileInputFiles", files=[str(trace)], objectId=found["result"]["objectId"])
        browser.evaluate(
            "window.sent = []; const port = new MessageChannel().port1; port.postMessage = (...given) => sent.push(given);"
            "window.open = (url) => { window.opened = url; return port; }; window.port = port"
        )
        press = "[...document.querySelectorAll('#timeline-drawing button')].find((b) => b.textContent === 'Perfetto').click()"
        browser.evaluate(press)
        place = parse_qs(urlsplit(browser.evaluate("window.opened")).fragment.partition("?")[2])
        (drawn, *_) = step_timelines(moe_report.result)
        assert place == {"visStart": [str(drawn.first_ns)], "visEnd": [str(drawn.first_ns + drawn.duration_ns)]}
        while not browser.evaluate("sent.length"):
            assert time.monotonic() < deadline
        assert browser.evaluate("sent[0]") == ["PING", "*"]
        say = "window.dispatchEvent(new MessageEvent('message', {{data: 'PONG', origin: {!r}, source: port}}))"
        browser.evaluate(say.format("https://evil.example"))
        assert browser.evaluate("sent.every(([what]) => what === 'PING')")
        browser.evaluate(say.format("https://ui.perfetto.dev"))
        handed, to = browser.evaluate(
            "sent.filter(([what]) => what !== 'PING')"
            ".map(([what, to]) => [new TextDecoder().decode(what.perfetto.buffer) + what.perfetto.title, to])[0]"
        )
        assert (handed, to) == (trace.read_text() + "t.json", "https://ui.perfetto.dev")
        many = browser.evaluate("sent.length")
        time.sleep(0.25)
        assert browser.evaluate("sent.length") == many
        assert [url for url in browser.requests() if url not in before and "favicon" not in url] == []
        assert browser.complaints() == []
        server.shutdown()


def test_an_event_that_is_chosen_is_chosen_in_perfetto(page, moe_report):
    (drawn, *_) = step_timelines(moe_report.result)
    place = page.evaluate(
        "(() => { const kept = {}; const old = Timeline.prototype.render; Timeline.prototype.render = function () { kept.it = this; old.call(this); };"
        "window.dispatchEvent(new Event('resize')); return new Promise((done) => setTimeout(() => { const t = kept.it;"
        "const box = t.data.kind.findIndex((kind, i) => kind === 'device' && t.data.count[i] === 1); t.choose(box);"
        "done([t.perfettoPlace(), t.data.start[box], t.data.busy[box]]); }, 400)); })()"
    )
    url, start, busy = place
    asked = parse_qs(urlsplit(url).fragment.partition("?")[2])
    assert asked["ts"] == [str(drawn.first_ns + start)]
    assert asked["dur"] == [str(busy)]
    activity = moe_report.result.activity
    assert (drawn.first_ns + start, busy) in set(zip(activity.start.tolist(), activity.duration.tolist(), strict=True))


def test_a_page_from_a_file_says_what_perfetto_needs(page):
    page.evaluate(
        "[...document.querySelectorAll('#timeline-drawing button')].find((b) => b.textContent === 'Perfetto').click()"
    )
    assert "python3 -m http.server --bind 127.0.0.1" in page.texts("#timeline-drawing .details")[0]
    assert page.complaints() == []
