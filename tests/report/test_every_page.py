"""Pages of every kind in a browser: no complaint, no request, no overflow, nothing that axe calls serious.

With ``TRACELENS_EVERY_PAGE`` the page of every shared trace too, half an hour or so.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tracelens
from tests.conftest import TRACES, device_traces, part
from tests.report.headless import Browser, needs_browser
from tracelens.cli import main

pytestmark = needs_browser

#: Of each kind, the command that writes its page; {} is the repository.
COMMANDS = {
    "report": "report {}/example_traces/moe_ep8/rank0.json.gz",
    "cpu": "report {}/example_traces/transformer_step_cpu.json.gz --cpu",
    "compare": "compare {}/example_traces/moe_ep8/rank0.json.gz {}/example_traces/moe_ep8/rank3.json.gz",
    "collectives": "collectives {}/example_traces/gloo_ranks2 --executor serial",
    "project": "project --model llama3-8b --cluster dgx-h100 --gpus 8 --tp 2 --pp 4 --global-batch 16",
    "search": "search --model llama3-8b --cluster dgx-h100 --gpus 4,8 --global-batch 32 --strategy 1d",
    "serve": "serve --model llama3-8b --device h100 --rate 4 --requests 20 --lod low",
    "sweep": "serve --model llama3-8b --device h100 --sweep rate=1..5..2 --requests 10 --slo ttft=500ms --lod low",
    "route": "route --cluster dgx-h100 --ranks 16",
    "lake": "ingest {}/example_traces/gloo_ranks2 --executor serial",
    "mesh": "route --ranks 4 --tokens 64",
}
WIDTHS = (420, 1024, 1920)
#: Of the real traces' pages.
ONE_PAGE_IN = 16


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def written(kind: str, folder: Path, repository: Path) -> Path:
    """The page of a kind, made when first asked for."""
    path = folder / f"{kind}.html" if kind != "lake" else folder / "lake" / "dashboard.html"
    if not path.exists():
        if kind == "lake":
            pytest.importorskip("pyarrow")
            pytest.importorskip("duckdb")
        place = ["--to", str(path.parent)] if kind == "lake" else ["-o", str(path)]
        assert main([*COMMANDS[kind].replace("{}", str(repository)).split(), *place]) == 0
    return path


def look(browser: Browser, path: Path) -> None:
    """At every width, light and dark."""
    for mode in ("light", "dark"):
        with browser.showing(prefers_color_scheme=mode):
            browser.heard.clear()
            browser.widen(WIDTHS[0])
            browser.open(path)
            for width in WIDTHS:
                browser.widen(width)
                assert browser.overflow() <= 0, (mode, width)
            assert browser.complaints() == []
            assert browser.requests() == [path.as_uri()]


@pytest.mark.parametrize("kind", part(list(COMMANDS), 6))
def test_no_page_complains_asks_or_overflows(kind, browser, pages, repository):
    look(browser, written(kind, pages, repository))


@pytest.mark.parametrize("kind", part(["report", "compare"], 2))
def test_a_very_long_word_breaks(kind, browser, pages, repository):
    browser.open(written(kind, pages, repository))
    browser.evaluate(
        "for (const e of document.querySelectorAll('section p, section li, h1, td, th, .tile span'))"
        "e.append(' torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)'.repeat(2).replaceAll(' ', ''))"
    )
    with browser.showing():
        browser.widen(WIDTHS[0])
        assert browser.overflow() <= 0
        beyond = "Math.max(...[...document.querySelectorAll('.tile')].map(e => e.scrollWidth - e.clientWidth))"
        assert browser.evaluate(beyond) <= 0


@pytest.mark.parametrize("kind", part(sorted(COMMANDS), len(COMMANDS), ("cpu",)))
def test_axe_finds_nothing_serious(kind, browser, pages, repository):
    for mode in ("light", "dark"):
        with browser.showing(prefers_color_scheme=mode):
            assert browser.serious(written(kind, pages, repository)) == []


def test_axe_would_find_something(browser, tmp_path):
    path = tmp_path / "wrong.html"
    path.write_text('<!doctype html><html lang="en"><title>t</title><main><h1>t</h1><button></button></main></html>')
    assert [each.split(":")[0] for each in browser.serious(path)] == ["button-name"]


@pytest.mark.parametrize("kind", part(["report", "compare"], 2))
def test_a_page_can_be_printed(kind, browser, pages, repository):
    browser.open(written(kind, pages, repository))
    assert len(browser.call("Page.printToPDF")["data"]) > 50_000


def test_a_sentence_of_a_comparison_leads_to_its_rows(browser, pages, repository):
    browser.open(written("compare", pages, repository))
    browser.click("#changes a")
    number = browser.texts("#changes a")[0]
    assert browser.evaluate("document.querySelector('tr:target').id") == f"row-{number}"


@pytest.mark.shared
@pytest.mark.sweep
@pytest.mark.parametrize("name", device_traces())
def test_the_page_of_every_trace(name, browser, tmp_path):
    """``TRACELENS_EVERY_PAGE=1`` opens all, which takes half an hour; else some."""
    if "TRACELENS_EVERY_PAGE" not in os.environ and device_traces().index(name) % ONE_PAGE_IN:
        pytest.skip("TRACELENS_EVERY_PAGE is not set")
    page = tracelens.report(TRACES / name).to_html(tmp_path / "report.html")
    assert page.stat().st_size <= 1_500_000
    look(browser, page)
