"""Pages of other answers than a report."""

from __future__ import annotations

import re

import pandas as pd
import pytest

import tracelens
from tracelens.report import charts
from tracelens.report.assembly import make_sheet
from tracelens.report.charts import headroom_chart, line_chart, memory_chart, stacked_bars
from tracelens.report.document import head, heat_map, section, table
from tracelens.report.fleet_pages import ranks_page
from tracelens.report.markup import framed
from tracelens.report.projection_report import expected_of_step, part_words, pipeline_chart, step_page
from tracelens.report.serving_report import served_page
from tracelens.types.units import shown_figure


def test_a_page_without_data_runs_no_script_and_loads_nothing():
    content = framed("<b>", [head("<i>", ["x"], [("What", "1 ms", "below")])]).decode()
    assert "<script" not in content
    assert "script-src" not in content
    assert "default-src 'none'" in content
    assert "&lt;b&gt;" in content
    assert "<i>" not in content


def test_a_table_says_how_many_rows_it_left_out_and_shows_unknown_as_empty():
    text = table(pd.DataFrame({"name": ["a"] * 300, "ms": [1.5, None] * 150}), "rows")
    assert "The first 200 of 300 rows." in text
    assert '<td class="n">1.500</td>' in text
    assert '<td class="n"></td>' in text


def test_cells_of_a_heat_map_have_their_figures():
    text = heat_map(["rank 0"], ["allreduce", "dispatch"], [[10.0, None]], "µs")
    assert '<td class="heat5">10.0</td>' in text
    assert '<td class="heat0"></td>' in text


def test_the_waterfall_ends_at_what_the_bars_leave():
    """10 ms less 3 of GEMM and 1 of idle are 6."""
    text = headroom_chart([("GEMM", 7.0, 4.0, 3.5), ("idle", 1.0, 0.0, 0.0), ("other", 2.0, 2.0, 2.0)], "step")
    figures = [float(each) for each in re.findall(r"([\d.]+) ms", re.sub("<[^>]*>", " ", text).replace("−", "-"))]
    assert figures == [10, 3, 1, 6, 5.5]


def test_the_waterfall_has_no_bars_of_nothing():
    """2 and 1 µs of 10 ms are one bar."""
    rows = [("GEMM", 7.0, 4.0, 4.0), ("sort", 2.0, 1.998, 1.998), ("index", 1.0, 0.999, 0.999)]
    text = headroom_chart(rows, "step")
    assert re.findall(r'<th scope="row">([^<]*)<', text) == [
        "measured step", "GEMM", "2 more", "achievable", "at the roofline",
    ]  # fmt: skip


def test_the_peak_of_memory_is_named():
    assert "peak 40.0 MB in aten::mm" in memory_chart([0.0, 1000.0, 2000.0], [10.0, 40.0, 5.0], "aten::mm")


def test_every_point_of_a_short_line_says_its_figures():
    text = line_chart({"p99": [(1.0, 20.0), (2.0, 30.0)]}, "rate", "ms")
    assert "p99: 30 at 2" in text


def test_the_page_of_ranks_names_who_is_late():
    late = pd.DataFrame({"rank": [3, 0], "cost_us": [2500.0, 10.0]})
    calls = pd.DataFrame(
        {"rank": [0, 3], "collective": ["allreduce"] * 2, "duration_us": [5.0, 6.0], "wait_us": [4.0, 0.0]}
    )
    sheets = [
        make_sheet(title, frame, {}, "What a row is.")
        for title, frame in (("straggler_summary", late), ("nccl_long", calls))
    ]
    text = ranks_page("job", [], sheets, ["see `tracelens report`"]).decode()
    assert "2.500 ms" in text
    assert "waiting for others" in text
    assert "What a row is." in text
    assert "Cost (µs)" in text
    assert "<code>tracelens report</code>" in text


def test_a_projected_step_has_a_page_with_its_figures():
    found = tracelens.project("llama3-8b", "dgx-h100", gpus=8, tp=8)
    text = step_page(found).decode()
    assert f"{found.projection.step_us / 1e6:,.3f} s" in text
    for name in found.projection.breakdown_us:
        assert part_words(name) in text
    error, spread = expected_of_step(found)
    assert error in text
    assert spread in text
    assert f"{found.summary['step_time_s_low']:.3f} to {found.summary['step_time_s_high']:.3f} s" in spread


def test_a_served_load_has_a_page_with_its_latencies():
    found = tracelens.serve("llama3-8b", "h100", rate=2, requests=8)
    text = served_page(found).decode()
    assert f"{shown_figure(found.summary['ttft_p99_ms'])} ms" in text
    assert "8 requests, 1,024 prompt and 128 output tokens each, poisson arrivals at 2/s" in text
    assert text.count("<section") == text.count("</section>") >= 3


def test_memory_stands_before_a_track_as_long_as_the_device_has():
    """6 of 8 GB are three quarters of the track; 10 GB go beyond one of 8, whose end is at four fifths of them."""
    rows = [("stage 0", [("weights", 6.0)], "6 GB")]
    track, bar = re.findall(r'<rect[^>]* width="([\d.]+)%"', stacked_bars(rows, "memory", 8.0))
    assert (float(track), float(bar)) == (100, 75)
    track, bar = re.findall(r'<rect[^>]* width="([\d.]+)%"', stacked_bars([("0", [("weights", 10.0)], "")], "", 8.0))
    assert (float(track), float(bar)) == (80, 100)


def test_a_pipeline_is_drawn_box_by_box():
    """4 ranks x 8 micro-batches, forward and backward, and what each rank does after them: its gradients' norm, a wait
    for the others', the sum and the optimizer."""
    found = tracelens.project("llama3-8b", "dgx-h100", gpus=8, tp=2, pp=4, global_batch=8)
    text = pipeline_chart(found.run)
    assert text.count("<rect") == 4 * (2 * 8 + 2)
    spans = re.findall(r"gradients and optimizer: ([\d.,]+) to ([\d.,]+) ms", text)
    drawn_ms = [float(end.replace(",", "")) - float(begin.replace(",", "")) for begin, end in spans]
    for rank, finish in enumerate(found.run.finish):
        busy_us = finish.reduced_us - found.run.pipeline.ends_us[rank][-1] + sum(time_us for _, time_us in finish.ops)
        assert sum(drawn_ms[2 * rank : 2 * rank + 2]) == pytest.approx(busy_us / 1000, abs=0.002)
    last = max(float(end.replace(",", "")) for end in re.findall(r"to ([\d.,]+) ms", text))
    assert last == pytest.approx(found.projection.step_us / 1000, abs=0.001)


def test_a_step_that_does_not_fit_says_so_first():
    text = step_page(tracelens.project("llama3.1-405b", "dgx-h100", gpus=8, tp=8)).decode()
    assert text.index("Does not fit") < text.index("tokens/s per GPU")


@pytest.mark.parametrize("key", ["a", "b"])
def test_sections_are_linked(key):
    content = framed("t", [section(key, "Title", "text")]).decode()
    assert f'href="#{key}"' in content
    assert f'<section id="{key}">' in content


def test_bars_of_shares_all_reach_a_hundred_percent_and_days_follow_the_rate():
    """2 and 6 s of parts are 25 and 75 %; 1e6 tokens/s compute 10^12 tokens in 11.57 days."""
    times = {name: [0.0, 0.0] for name in charts.TIMES} | {"t_comp": [2.0, 1.0], "t_mem": [6.0, 1.0]}
    frame = pd.DataFrame(
        {"strategy": ["1d", "1d"], "n_gpus": [8, 16], "t": [8.0, 2.0], "throughput": [1e3, 2e3], **times}
    )
    text = str(charts.components(frame, charts.TIMES, "percent of the step", of_whole=True))
    assert re.findall(r"8 GPUs, no cp: ([a-z-]+) (\d+)<", text)[:2] == [("computing", "25"), ("memory-bound", "75")]
    assert re.findall(r"16 GPUs, no cp: ([a-z-]+) (\d+)<", text)[:2] == [("computing", "50"), ("memory-bound", "50")]
    assert [">8 GPUs<" in text, ">16 GPUs<" in text, "no cp: no context parallel" in text] == [True] * 3
    assert charts.days_of(1e6) == pytest.approx(11.574, rel=1e-4)
    assert "days for 10¹² tokens" in str(charts.training_days(frame, 1000))
