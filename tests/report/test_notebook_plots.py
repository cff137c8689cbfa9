"""Pictures of a report in a notebook: what they draw is what its sheets say."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracelens as tl
from tracelens.analysis.page_charts import step_timelines
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.report.result import Report


@pytest.fixture(scope="module")
def report(moe_report: Report) -> Report:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    return moe_report


@pytest.fixture(autouse=True)
def closed() -> Any:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def test_the_roofline_has_a_mark_for_every_op_of_known_work(report: Report) -> None:
    axes = report.plot.roofline()
    ops = report.result.frames["unified_perf_summary"]
    known = ops[(ops["flops_per_byte"] > 0) & (ops["tflops_s_mean"] > 0)]
    assert sum(len(each.get_offsets()) for each in axes.collections) == len(known) > 10
    roofs = [line for line in axes.lines if len(np.asarray(line.get_xdata())) > 1]
    assert "matrix bf16 peak, 1,307 TFLOPS/s" in [roof.get_label() for roof in roofs]
    assert len({(roof.get_color(), roof.get_linestyle()) for roof in roofs}) == len(roofs) > 2


def test_no_two_categories_of_the_roofline_share_a_color(report: Report) -> None:
    axes = report.plot.roofline()
    legends = axes.findobj(match=lambda artist: type(artist).__name__ == "Legend")
    entries = {
        title.get_text(): line.get_color()
        for legend in legends
        for title, line in zip(legend.get_texts(), legend.legend_handles, strict=True)
        if line.get_marker() == "o"
    }
    assert len(report.result.frames["unified_perf_summary"]["category"].unique()) > len(entries) == 10
    assert len(set(entries.values())) == 10
    assert "others" in entries


@pytest.mark.parametrize("name", ["roofline", "headroom", "timeline", "heatmap"])
def test_every_axis_of_numbers_names_its_unit(report: Report, name: str) -> None:
    axes = getattr(report.plot, name)()
    said = {
        "roofline": (axes.get_xlabel() + axes.get_ylabel(), ("FLOPs per byte", "TFLOPS/s")),
        "headroom": (axes.get_xlabel(), ("(ms)",)),
        "timeline": (axes.get_xlabel(), ("(ms)",)),
        "heatmap": (axes.get_title(), ("(ms)",)),
    }
    text, units = said[name]
    assert all(unit in text for unit in units)


def test_the_bars_of_the_headroom_lead_from_the_measured_to_the_achievable(report: Report) -> None:
    bars = report.plot.headroom().patches
    frame = report.result.frames["headroom"]
    assert bars[0].get_width() == pytest.approx(frame["own_us"].sum() / 1e3)
    assert bars[-1].get_width() == pytest.approx(bars[0].get_width() - sum(bar.get_width() for bar in bars[1:-1]))
    for above, below in pairwise(list(bars)[1:-1]):
        assert below.get_x() + below.get_width() == pytest.approx(above.get_x())


def test_the_timeline_draws_every_box_of_the_typical_step_in_its_category(report: Report) -> None:
    axes = report.plot.timeline()
    drawn = step_timelines(report.result)[0]  # type: ignore[arg-type]
    assert sum(len(each.get_paths()) for each in axes.collections) == len(drawn.lane)
    kernels = report.tables["kernels"]
    whole = kernels["duration_us"].to_numpy()[drawn.event]
    single = drawn.count == 1
    assert whole[single] * 1000 == pytest.approx(drawn.kernel_ns[single])


def test_the_cells_of_the_heat_map_add_up_to_the_kernel_time_of_the_steps(report: Report) -> None:
    axes = report.plot.heatmap()
    kernels = report.tables["kernels"].dropna(subset=["step"])
    shown = [label.get_text() for label in axes.get_yticklabels()]
    total = kernels[kernels["category"].isin(shown)]["duration_us"].sum() / 1000
    assert sum(float(text.get_text()) for text in axes.texts) == pytest.approx(total, rel=0.01)


def test_a_picture_is_drawn_where_it_is_asked_to_be(report: Report) -> None:
    from matplotlib import pyplot

    axes = pyplot.figure().subplots()
    assert report.plot.headroom(axes) is axes


def test_what_cannot_be_drawn_is_said(repository: Path, monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    cpu = tl.report(repository / "example_traces" / "transformer_step_cpu.json.gz", cpu=True)
    with pytest.raises(NothingToAnalyzeError, match="no device events"):
        cpu.plot.timeline()
    with pytest.raises(NothingToAnalyzeError):
        cpu.plot.headroom()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"tracelens-perf\[notebook\]"):
        report.plot.roofline()


def test_show_opens_the_page(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = report.show()
    assert opened == [page.as_uri()]
    assert page.read_bytes().startswith(b"<!doctype html>")


def test_what_a_notebook_prints_is_short(repository: Path, report: Report) -> None:
    trace = tl.load(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    shown = (
        trace, report.plot, tl.serve("llama3-8b", "h100", rate=2, requests=4), tl.project("llama3-8b", "dgx-h100", gpus=8, tp=8)
    )  # fmt: skip
    for each in shown:
        assert len(repr(each)) < 200
    assert f"{report.summary.input.events:,} events" in repr(trace)
    assert "The report of a trace" in (tl.report.__doc__ or "")
    assert not {"Any", "sys", "importlib", "ModuleType"} & set(dir(tl))
