"""The page as a file: what stands in it without the script, what can run, how large it gets."""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tracelens
from tests.conftest import part
from tests.trace.event_texts import read_events
from tracelens.analysis.loaded_trace import Trace
from tracelens.report.html_page import MAX_BYTES, html_bytes
from tracelens.report.result import Report
from tracelens.types.units import shown_ms

VOID = {"br", "hr", "input", "link", "meta", "wbr"}


def unpacked(content: bytes, at: int, count: int, width: int) -> list[int]:
    """A packed column, as the script unpacks it."""
    planes = [content[at + byte * count :][:count] for byte in range(width)]
    coded = [int.from_bytes(each, "little") for each in zip(*planes, strict=True)] or [0] * count
    return list(itertools.accumulate(-(each // 2) - 1 if each % 2 else each // 2 for each in coded))


class Page(HTMLParser):
    """Elements with their attributes, visible text, contents of scripts and styles; the nesting must be right."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(content.decode())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag in self.raw:
            self.raw[tag].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]][-1] += data
        else:
            self.text += data

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.packed[4 : 4 + int.from_bytes(self.packed[:4], "little")])

    @property
    def packed(self) -> bytes:
        """The length of the data, the data, the columns of the timelines."""
        return gzip.decompress(base64.b64decode(self.raw["script"][0]))

    def columns(self, step: int, part: str = "columns") -> dict[str, list[int]]:
        """The columns of a timeline, unpacked as the script does."""
        start = 4 + int.from_bytes(self.packed[:4], "little")
        return {key: unpacked(self.packed[start:], *place) for key, place in self.data["timeline"][step][part].items()}

    @property
    def policy(self) -> dict[str, str]:
        (content,) = [m["content"] for m in self.named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
        return {name: value for name, _, value in (entry.strip().partition(" ") for entry in content.split(";"))}


@pytest.fixture(scope="module")
def moe(moe_report: Report) -> Report:
    return moe_report


@pytest.fixture(scope="module")
def moe_page(moe: Report, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(moe.to_html(tmp_path_factory.mktemp("page") / "x.html").read_bytes())


def test_sections_stand_in_order(moe_page):
    sections = [attributes["id"] for attributes in moe_page.named("section")]
    assert sections == [
        "verdict", "first", "time", "drill", "roofline", "timeline", "tree", "section-ops", "section-kernels",
        "section-collectives", "health",
    ]  # fmt: skip
    links = [a["href"] for a in moe_page.named("a") if a["href"].removeprefix("#") in sections]
    assert links[: len(sections)] == [f"#{section}" for section in sections]


def test_what_is_per_step_and_what_is_a_total_says_so(moe_page, moe):
    steps = moe.summary.steps
    assert f"The {steps.count} complete steps, {steps.count * steps.time_us / 1e3:.1f} ms" in moe_page.text
    assert moe_page.text.count("Totals over the 3 complete steps, not per step.") == 3
    assert "Device time of 3 steps (ProfilerStep 10-12) by category" in moe_page.text


def test_the_rates_that_shares_of_the_roofline_are_of_give_its_times(moe_page, moe):
    """GFLOP over TFLOPS/s, MB over TB/s and MB over GB/s; the page says which."""
    said = "Rates: bf16 matrix 708 TFLOPS/s (best measured), HBM 5.3 TB/s (data sheet), link 448 GB/s (data sheet)"
    assert said in moe_page.text
    rows = moe.result.frames["unified_perf_summary"]
    matrix = rows["compute_spec"] == "matrix_bf16"
    wire = rows["expected_remote_mb"].fillna(rows["wire_mb"])
    for bound, some, us in (
        ("compute", matrix, rows["gflops"] / 708 * 1000),
        ("memory", True, rows["hbm_mb"] / 5.3),
        ("wire", True, wire / 448 * 1000),
    ):
        of = (rows["roofline_bound"] == bound) & some
        assert of.any()
        assert rows.loc[of, "roofline_us"].to_numpy() == pytest.approx(us[of].to_numpy(), rel=1e-6)


def test_ids_are_unique(moe_page):
    assert len(set(moe_page.ids)) == len(moe_page.ids)


def test_the_answers_are_text_of_the_page(moe_page, moe):
    text = moe_page.text
    assert f"{100 * moe.summary.busy.busy:.1f} %" in text
    for row in moe.summary.categories:
        assert row.name in text
    for finding in moe.summary.findings:
        assert finding.why in text
    for figure in moe.summary.device.figures:
        assert figure.source in text
    assert moe.ops["name"][0] in text


def test_only_the_scripts_and_styles_whose_hashes_the_policy_has_can_run(moe_page):
    assert len(moe_page.raw["script"]) == 2
    (style,) = moe_page.raw["style"]
    for text, directive in ((moe_page.raw["script"][1], "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert moe_page.policy[directive] == f"'sha256-{digest}'"
    assert moe_page.policy["default-src"] == "'none'"
    assert moe_page.policy["img-src"] == "data:"
    assert set(moe_page.policy) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}


def test_nothing_points_outside_the_page(moe_page):
    for _, attributes in moe_page.elements:
        assert not {key for key in attributes if key.startswith("on") or key in ("style", "src", "action")}
        assert attributes.get("href", "#")[0] == "#" or attributes["href"] == "data:,"
    (style,) = moe_page.raw["style"]
    assert not re.search(r"url\(|@import", style)
    assert not re.search(
        r"innerHTML|insertAdjacentHTML|outerHTML|eval\(|document\.write|fetch\(", moe_page.raw["script"][1]
    )


def test_the_data_holds_every_row_and_an_explanation_of_each(moe_page, moe):
    ops = moe_page.data["tables"]["ops"]["columns"]
    assert {len(column["values"]) for column in ops} == {len(moe.ops)}
    assert [column["header"] for column in ops][:3] == ["Name", "Category", "Shapes"]
    assert len(moe_page.data["explanations"]) == len(moe.ops)
    first = [moe_page.data["texts"][line] for line in moe_page.data["explanations"][0]]
    assert any(line.startswith("measured: ") for line in first)


def test_the_timeline_and_the_tree_hold_the_device_time(moe_page, moe):
    timeline, tree = moe_page.columns(0), moe_page.data["icicle"]
    activity = moe.result.activity
    assert tree["time"][0] == int(activity.duration.sum())
    assert sum(timeline["count"]) == len(timeline["more"])
    categories = {moe_page.data["texts"][code] for code in timeline["category"] if code >= 0}
    assert categories <= {row.name for row in moe.summary.categories}


def test_arrows_lead_from_the_thread_that_launched_to_the_stream(moe_page, moe):
    """The box of the host holds the launch, which is before what it launched."""
    drawn = moe_page.columns(0)
    launched = [i for i, box in enumerate(drawn["from"]) if box >= 0]
    assert len(launched) > 40
    for i in launched:
        box = drawn["from"][i]
        launch = drawn["start"][i] - drawn["ahead"][i]
        assert drawn["kind"][i] == 0 != drawn["kind"][box]
        assert drawn["start"][box] <= launch <= drawn["start"][box] + drawn["length"][box]
        assert drawn["ahead"][i] >= 0


def test_the_leaves_of_the_drill_down_hold_all_device_time(moe_page, moe):
    """Added up by row they are the device time of the rows of ops, but for collectives, which have none."""
    leaves, activity = moe_page.data["drilldown"], moe.result.activity
    assert sum(leaves["time"]) + leaves["rest"] == int(activity.duration.sum())
    assert sum(leaves["count"]) == len(activity)
    by_row: dict[int, int] = {}
    for row, time in zip(leaves["op"], leaves["time"], strict=True):
        by_row[row] = by_row.get(row, 0) + time
    category = moe.result.frames["unified_perf_summary"]["category"]
    for row, code in zip(leaves["op"], leaves["category"], strict=True):
        assert row < 0 or category[row] == moe_page.data["texts"][code]


def test_the_waterfall_leads_from_the_measured_step_to_the_sum_of_the_sheet(moe_page, moe):
    headroom = moe.result.frames["headroom"]
    gains = (headroom["own_us"] - headroom["achievable_own_us"]).clip(lower=0)
    text = moe_page.text
    assert f"measured step{shown_ms(headroom['own_us'].sum())} ms" in text
    assert f"achievable{shown_ms(headroom['own_us'].sum() - gains.sum())} ms" in text


def test_the_timeline_holds_the_idle_time_of_its_step_by_cause(moe_page, moe):
    idle, texts = moe_page.columns(0, "idle"), moe_page.data["texts"]
    shown: dict[str, int] = {}
    for cause, length, less in zip(idle["cause"], idle["length"], idle["less"], strict=True):
        shown[f"idle: {texts[cause]}"] = shown.get(f"idle: {texts[cause]}", 0) + length - less
    path = moe.result.frames["critical_path"]
    on_path = path[path["kind"].str.startswith("idle: ")]
    assert shown
    assert shown == {kind: round(1000 * us) for kind, us in zip(on_path["kind"], on_path["time_us"], strict=True)}


def test_the_same_input_gives_the_same_bytes(moe, moe_page, tmp_path, repository):
    again = tracelens.report(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    first, second = moe.to_html(tmp_path / "a.html"), again.to_html(tmp_path / "b.html")
    assert first.read_bytes() == second.read_bytes()
    assert str(tmp_path).encode() not in first.read_bytes()


def test_frames_that_no_trace_stands_behind_make_a_page_without_drawings(analysis, summary):
    page = Page(html_bytes(Report(analysis, summary).sheets, summary, analysis))
    sections = [attributes["id"] for attributes in page.named("section")]
    assert sections == ["verdict", "first", "time", "roofline", "section-ops", "section-kernels", "health"]
    assert "184.0 ms" in page.text
    assert "no roofs" in page.text


def test_the_table_of_categories_adds_up_to_the_step(analysis, summary):
    """The categories hold 63.1 % and (idle) 8.2; the step of 184 ms is busy for 91.8 %."""
    busy = replace(summary.busy, compute=0.484, idle=0.382, idle_causes=(("launch-bound", 0.382),))
    shared = replace(summary, busy=busy)
    assert "(overlap)-2.39-1.3" in Page(html_bytes(Report(analysis, shared).sheets, shared, analysis)).text
    assert "launch-bound70.338.2" in Page(html_bytes(Report(analysis, shared).sheets, shared, analysis)).text
    text = Page(html_bytes(Report(analysis, summary).sheets, summary, analysis)).text
    assert "(idle)15.18.2" in text
    assert "210 GB/s" in text
    assert "Look here first (counts of all 4 steps)" in text


def test_rates_above_the_device_are_marked_in_words_too(analysis, summary):
    above = replace(summary, categories=(replace(summary.categories[0], of_roofline=1.5),))
    page = Page(html_bytes(Report(analysis, above).sheets, above, analysis))
    assert "150 %" in page.text
    assert any("Faster than" in attributes.get("title", "") for attributes in page.named("abbr"))


def test_a_cpu_only_trace_has_a_page_of_cpu_ops(repository, tmp_path):
    report = tracelens.report(repository / "example_traces" / "transformer_step_cpu.json.gz", cpu=True)
    page = Page(report.to_html(tmp_path / "x.html").read_bytes())
    assert [s["id"] for s in page.named("section")] == ["verdict", "time", "tree", "section-cpu-ops", "health"]
    assert page.data["icicle"]["cpu"] is True
    assert "CPU time by category" in page.text


HOSTILE = (
    '=HYPERLINK("http://x")', "+1", "@SUM(A1)", "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b[0m", "../../x", "\"' onload=alert(1) x='", "$title ${data}", "\ud800\x00\u202e", "a" * 5000,
)  # fmt: skip


def hostile_trace() -> Trace:
    events: list[dict[str, Any]] = []
    for i, name in enumerate(HOSTILE):
        at = 100 * i
        events += [
            {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 60},
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at + 1, "dur": 50, "args": {"Input Dims": [[4, 4]], "Input type": [name]}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 2, "dur": 1, "args": {"correlation": i + 1}},
            {"ph": "X", "cat": "kernel", "name": f"{name} kernel", "pid": 0, "tid": 7, "ts": at + 5, "dur": 40, "args": {"correlation": i + 1, "stream": 7, "device": 0}},
        ]  # fmt: skip
    return Trace.of(read_events(events, source="<script>alert(1)</script>.json"))


def test_names_from_a_trace_never_become_markup(tmp_path):
    content = tracelens.report(hostile_trace()).to_html(tmp_path / "x.html").read_bytes()
    page = Page(content)
    assert len(page.named("script")) == 2
    assert page.named("img") == []
    for name, attributes in page.elements:
        assert not {key for key in attributes if key.startswith("on")}, name
        assert attributes.get("href", "#")[0] == "#" or attributes["href"] == "data:,"
    assert '=HYPERLINK("http://x")' in page.text
    assert "<script>alert(1)</script>" in page.text
    assert "␛[31mred␛[0m" in page.text
    assert not re.search(rb"[\x00-\x08\x0b-\x1f]", content)
    packed = json.dumps(page.data, ensure_ascii=False)
    assert "\\u001b" not in packed
    assert "\u202e" not in packed
    assert "a" * 501 not in packed


def test_a_page_that_would_be_too_large_holds_fewer_rows_and_says_how_many(moe):
    whole = html_bytes(moe.sheets, moe.summary, moe.result)
    limit = len(whole) - 20_000
    smaller = html_bytes(moe.sheets, moe.summary, moe.result, max_bytes=limit)
    assert len(smaller) <= limit
    page = Page(smaller)
    kept = len(page.data["tables"]["ops"]["columns"][0]["values"])
    assert kept < len(moe.ops)
    assert f"the {kept} rows with most time of {len(moe.ops)}" in page.text


@pytest.mark.sweep
def test_many_long_rows_stay_below_the_limit(analysis, summary):
    row = analysis.frames["unified_perf_summary"].iloc[[0]]
    many = pd.concat([row] * 3000, ignore_index=True)
    noise = [hashlib.sha512(str(i).encode()).hexdigest() * 4 for i in range(len(many))]
    analysis.frames["unified_perf_summary"] = many.assign(name=noise, input_dims=noise[::-1], input_types=noise)
    page = html_bytes(Report(analysis, summary).sheets, summary, analysis)
    assert len(page) <= MAX_BYTES
    assert "of 3,000; the workbook" in Page(page).text


REAL = (
    "mi300/resnet_act_checkpoint.json.gz",
    "inference/vllm_decode_full/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz",
    "inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "hta/trace_filter/sampled_rank-0.json.gz",
)


@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize("name", part(REAL, 3))
def test_pages_of_real_traces_are_small_and_well_formed(shared_traces, name):
    report = tracelens.report(shared_traces / name)
    content = html_bytes(report.sheets, report.summary, report.result)
    assert len(content) < 600_000
    page = Page(content)
    assert len(set(page.ids)) == len(page.ids)
    assert page.data["icicle"]["time"][0] == int(report.result.activity.duration.sum())


def test_writing_the_page_replaces_it_whole(moe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "x.html"
    target.write_text("old")
    broken: Callable[..., bytes] = lambda *_: (_ for _ in ()).throw(RuntimeError("interrupted"))  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr("tracelens.report.html_page.html_bytes", broken)
        with pytest.raises(RuntimeError, match="interrupted"):
            moe.to_html(target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]
