"""The timeline of the page: every event in it, idle time by density, ways between rows, findings and kernels."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tests.conftest import part
from tests.report.headless import Browser, needs_browser
from tests.report.test_html_report import Page, unpacked
from tests.trace.event_texts import read_events
from tracelens.analysis.loaded_trace import Trace
from tracelens.report.html_page import html_bytes
from tracelens.report.page_timeline import PackedColumns

WHOLE = st.integers(-(2**50), 2**50)


@given(st.lists(st.lists(WHOLE, max_size=30), max_size=4))
def test_packed_columns_are_unpacked_as_they_were(columns):
    packed = PackedColumns()
    places = [packed.add(np.array(column, np.int64)) for column in columns]
    assert [unpacked(bytes(packed.content), *place) for place in places] == columns


def launched(number: int, at: float, duration: float, *, name: str = "k") -> list[dict[str, Any]]:
    return [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at - 5, "dur": 1, "args": {"correlation": number}},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": duration, "args": {"correlation": number, "stream": 7, "device": 0}},
    ]  # fmt: skip


@pytest.mark.sweep
def test_each_of_twenty_thousand_kernels_is_in_the_page_and_of_more_as_many_rectangles():
    events = [each for i in range(20_000) for each in launched(i + 1, 10 * i + 10, 3 + i % 5)]
    report = tracelens.report(Trace.of(read_events(events, source="many.json")))
    page = Page(html_bytes(report.sheets, report.summary, report.result))
    drawn = page.columns(0)
    assert drawn["kind"].count(0) == 20_000
    assert set(drawn["count"][-20_000:]) == {1}
    assert "The page holds each of them" in page.text
    more = events + [each for i in range(20_000, 30_000) for each in launched(i + 1, 10 * i + 10, 3)]
    report = tracelens.report(Trace.of(read_events(more, source="more.json")))
    content = html_bytes(report.sheets, report.summary, report.result)
    page = Page(content)
    drawn = page.columns(0)
    device = [count for count, kind in zip(drawn["count"], drawn["kind"], strict=True) if kind == 0]
    assert sum(device) == 30_000
    assert 5_000 < len(device) <= 20_000
    assert f"The page holds {len(device):,} rectangles for them" in page.text
    assert len(content) < 600_000


def test_a_box_knows_its_rows(moe_report: tracelens.Report):
    """Kernels of a row of ops, by name, add up to its count over the steps that the page has."""
    page = Page(html_bytes(moe_report.sheets, moe_report.summary, moe_report.result))
    steps = [page.columns(step) for step in range(3)]
    kernels = moe_report.result.frames["kernel_summary"]
    found: Counter[int] = Counter()
    for drawn in steps:
        found.update(row for row, kind in zip(drawn["kernel"], drawn["kind"], strict=True) if kind == 0)
    assert -1 not in found
    assert [found[row] for row in range(len(kernels))] == kernels["kernels"].tolist()
    texts = page.data["texts"]
    for drawn in steps:
        for name, row, kind in zip(drawn["name"], drawn["kernel"], drawn["kind"], strict=True):
            assert kind != 0 or texts[name] == kernels["kernel_name"][row]


def test_findings_open_to_the_figures_of_their_sentence_and_to_rows_of_their_sheets(moe_report: tracelens.Report):
    page = Page(html_bytes(moe_report.sheets, moe_report.summary, moe_report.result))
    ops = moe_report.result.frames["unified_perf_summary"]
    wanted = next(each for each in moe_report.summary.findings if each.op == "primus_turbo::grouped_gemm_impl")
    start = page.text.index(wanted.why)
    shown = page.text[start : page.text.index("Predicted by", start)]
    assert "calls24" in shown
    assert "of the roofline61.1 %" in shown
    mine = ops[ops["name"] == wanted.op].head(5)
    for time_us in mine["kernel_us_sum"]:
        assert f"{time_us:,.2f}" in shown
    number = moe_report.summary.findings.index(wanted) + 1
    of_finding = page.data["findings"][number - 1]["rows"]
    assert set(ops["name"].iloc[of_finding]) == {wanted.op}


def test_a_gain_has_a_word_for_its_share_of_the_step(moe_report: tracelens.Report):
    """2.41 ms of 16.4 are 15 %, 0.619 are 4 %, 0.458 are 3 % less a little."""
    page = Page(html_bytes(moe_report.sheets, moe_report.summary, moe_report.result))
    words = [each["class"].split()[1] for each in page.named("span") if each.get("class", "").startswith("pill")]
    assert words[:6] == ["major", "sure-low", "moderate", "sure-medium", "minor", "sure-medium"]
    for word in ("major", "moderate", "minor"):
        assert f"ms {word}" in page.text


def settled(page: Browser) -> None:
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def data_of(moe_page: Path) -> Page:
    return Page(moe_page.read_bytes())


def found(page: Browser) -> str:
    return page.texts("#timeline-drawing .controls .count")[0]


class TestInABrowser:
    pytestmark = needs_browser

    def test_columns_are_unpacked_as_they_were(self, page):
        packed = PackedColumns()
        values = [0, -1, 5, 2**50, -(2**50), 7, 7, 300, -70_000]
        place = packed.add(np.array(values, np.int64))
        content = json.dumps(list(packed.content))
        assert page.evaluate(f"unpackedColumn(new Uint8Array({content}), {json.dumps(place)})") == values

    def test_the_idle_share_of_a_column_is_that_of_its_time(self, page):
        """Ten columns of 100 ns: a gap over the first one and a half, three of 10 ns in the third, and a rectangle
        of gaps that are half of its 400 ns."""
        idle = {
            "start": [0, 200, 240, 280, 600], "length": [150, 10, 10, 10, 400], "idle": [150, 10, 10, 10, 200],
            "cause": [1, 2, 2, 1, 1],
        }  # fmt: skip
        shown = f"{{data: {{idle: {json.dumps(idle)}}}, from: 0, to: 1000}}"
        shares = page.evaluate(f"Timeline.prototype.idleShares.call({shown}, 10, new Set())")
        assert shares == pytest.approx([1, 0.5, 0.3, 0, 0, 0, 0.5, 0.5, 0.5, 0.5])
        of_one = page.evaluate(f"Timeline.prototype.idleShares.call({shown}, 10, new Set([2]))")
        assert of_one == pytest.approx([0, 0, 0.2, 0, 0, 0, 0, 0, 0, 0])

    def test_kernels_that_share_a_box_are_not_counted_as_one_row(self, page):
        step = "{count: [1, 3, 1], busy: [1500, 9000, 500]}"
        counted = f"Timeline.prototype.counted({step}, [0, 1, 2])"
        assert page.evaluate(counted) == "2 kernels, 2.00 µs, 1 box shared with neighbors"

    def test_idle_time_over_a_busy_step_is_no_solid_block(self, page, moe_page):
        """Painted is about the idle share of the lane (0.9 %), a pixel where there is less; never half of it."""
        settled(page)
        color = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--idle').trim()")
        wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        painted = page.evaluate(
            f"""(() => {{ const c = document.querySelector('#timeline-drawing canvas'); const tall = 25 * devicePixelRatio;
            const top = c.height - Math.round((26 + 7) * devicePixelRatio);
            const p = c.getContext('2d').getImageData(0, top, c.width, tall).data; let hits = 0;
            for (let i = 0; i < p.length; i += 4) if ([0, 1, 2].every((k) => Math.abs(p[i + k] - {wanted}[k]) < 3)) hits++;
            return hits / (p.length / 4); }})()"""
        )
        assert 0.0005 < painted < 0.08

    @pytest.mark.parametrize(("table", "column"), part([("ops", "row"), ("kernels", "kernel")], 2))
    def test_a_click_on_a_row_marks_its_kernels_in_the_timeline(self, page, moe_page, table, column):
        drawn = data_of(moe_page).columns(0)
        wanted = next(row for row in range(5) if row in drawn[column])
        count = sum(row == wanted and kind == 0 for row, kind in zip(drawn[column], drawn["kind"], strict=True))
        page.click(f"#{table}-{wanted} td:nth-child(2)")
        settled(page)
        assert f": {count} kernel" in found(page)
        assert page.evaluate("document.activeElement === document.querySelector('#timeline-drawing .top')")
        top = page.evaluate("document.querySelector('#timeline-drawing .top').getBoundingClientRect().top")
        assert 0 <= top < 900
        assert page.texts("#timeline-drawing .record tbody td")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
        settled(page)
        assert found(page) == ""

    def test_the_row_of_a_kernel_is_reached_by_keys_and_so_is_the_timeline(self, page):
        page.evaluate("document.querySelector('#ops-1 .to-timeline').focus()")
        for kind in ("keyDown", "keyUp"):
            page.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
            )
        settled(page)
        assert "aten::_fused_adamw_: " in found(page)
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13)
        assert page.evaluate("document.querySelector('#ops tr.found').id") == "ops-1"
        assert page.complaints() == []

    def test_a_row_without_a_kernel_in_the_typical_step_opens_one_that_has_some(self, page, moe_page):
        data = data_of(moe_page)
        rows = [{row for row in data.columns(step)["row"] if row >= 0} for step in range(3)]
        wanted = min(rows[1] - rows[0])
        while not page.evaluate(f"Boolean(document.getElementById('ops-{wanted}'))"):
            page.click("#section-ops .more")
        page.click(f"#ops-{wanted} td:nth-child(2)")
        settled(page)
        assert page.evaluate("document.querySelector('#timeline-drawing select').value") == "1"
        assert "kernel" in found(page)
        assert "no kernel" not in found(page)

    @pytest.mark.shared
    def test_a_finding_leads_to_its_kernels_and_an_idle_one_to_its_gaps(self, browser, page, shared_traces, tmp_path):
        page.click("#finding-2 > tr > td:nth-child(3)")
        settled(page)
        assert found(page).startswith("finding 2: ")
        assert "kernels" in found(page)
        report = tracelens.report(shared_traces / "mi300" / "facebook_timesformer-base-finetuned-k400__1016002.json.gz")
        number = next(
            i
            for i, each in enumerate(report.summary.findings, 1)
            if {row.sheet for row in each.evidence} == {"idle_causes"}
        )
        browser.open(report.to_html(tmp_path / "idle.html"))
        browser.click(f"#finding-{number} .to-timeline")
        settled(browser)
        assert browser.texts("#timeline-drawing .controls .count")[0].startswith(f"finding {number}: idle ")

    def test_a_click_on_a_link_or_a_selection_stays_where_it_is(self, page):
        page.click("#finding-2 summary")
        assert page.evaluate("document.querySelector('#finding-2 details').open")
        assert found(page) == ""
        page.click("#ops-0 .open")
        assert found(page) == ""

    @pytest.mark.parametrize("mode", part(["light", "dark"], 2))
    def test_the_timeline_is_on_paper_too(self, browser, moe_page, mode):
        """As a picture; what is drawn while the browser prints is lost."""
        with browser.showing(prefers_color_scheme=mode):
            browser.open(moe_page)
            settled(browser)
            printed = base64.b64decode(browser.call("Page.printToPDF")["data"])
        assert re.search(rb"/Subtype\s*/Image", printed)

    def test_the_switch_shows_the_step_that_was_replayed(self, page, moe_report):
        together = moe_report.summary.together
        now, then = (f"{us / 1000:.1f} ms" for us in (together.step_us[0], together.step_us[-1]))
        assert page.texts(".tile strong > :not([hidden])") == [now]
        page.click("#what-if")
        assert page.texts(".tile strong > :not([hidden])") == [f"{then} predicted"]
        assert len(page.texts(".fixed")) == len(together.findings) + 1
        bars = page.texts(".predicted td.n")
        assert [bar.split(" ms")[0] for bar in bars] == [f"{us / 1000:.1f}" for us in together.step_us]
        page.click("#what-if")
        assert page.texts(".tile strong > :not([hidden])") == [now]
        assert page.complaints() == []
