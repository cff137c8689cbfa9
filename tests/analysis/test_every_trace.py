"""Every recorded trace: the laws hold, tables sum by the same categories, and how much a report can speak about.

Each is analyzed once, for all tests. ``pytest -s`` prints the table of coverage.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.test_event_category import check_sums
from tests.conftest import device_traces
from tracelens.analysis.analyze import Analysis, Options, analyze
from tracelens.analysis.loaded_trace import load
from tracelens.analysis.selfcheck.laws import check_report
from tracelens.analysis.verdict.verdict import summarize

pytestmark = pytest.mark.shared

#: Trace of graph replays -> the trace of its graphs' capture.
CAPTURES = {
    "inference/vllm_decode_full/graph_execution.json.gz": (
        "inference/vllm_decode_full/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz"
    ),
    "inference/vllm_prefilldecode_piecewise/graph_execution.json.gz": (
        "inference/vllm_prefilldecode_piecewise/capture_traces/graph_capture_rank_0.pt.trace.json.gz"
    ),
}
WITH_WORK, CATEGORISED = 0.97, 0.99
#: Start of a path -> why calls that recorded no shapes take more than ``1 - WITH_WORK`` of the time.
WITHOUT_SHAPES = {
    "hta/trace_filter/sampled_rank-0": "its Kineto records no sizes of tensor lists: concatenations have none",
    "more/ao/": "graph launches without their capture, or compiled regions of a torch that records no arguments",
    "more/flashinfer/": "its kernels were launched by a library below no op",
}
#: Made by hand, no recordings.
HAND_MADE = "more/tracelens_handmade_pairs/test01"
#: Counted by their bytes on links, not in the device's memory.
ELSEWHERE = ("CustomCollective", "EP_Communication", "copy")


def shares(found: Analysis) -> tuple[float, float]:
    """(with work, recorded without any shape) of the linked kernel time that neither communicates nor copies.

    The first is of the time of calls that recorded a shape, or whose work is known all the same.
    """
    rows = found.frames["unified_perf_summary"]
    rows = rows[(rows["name"] != "(unlinked kernels)") & ~rows["category"].isin(ELSEWHERE)]
    known = (rows["gflops"] > 0) | rows["hbm_mb"].notna()
    speaks = known | rows["input_dims"].astype(str).str.contains(r"\d")
    of_known, of_speaking, total = (float(rows.loc[of, "kernel_us_sum"].sum()) for of in (known, speaks, speaks | True))
    return (of_known / of_speaking if of_speaking else 1.0), (1 - of_speaking / total if total else 0.0)


@pytest.fixture(scope="module", params=device_traces())
def analyzed(request: pytest.FixtureRequest, shared_traces: Path) -> tuple[str, Analysis]:
    """Name and analysis of a trace, with the capture of its graphs where there is one."""
    name = str(request.param)
    captured = CAPTURES.get(name)
    options = Options(capture=load(shared_traces / captured) if captured else None)
    return name, analyze(load(shared_traces / name), options)


def test_a_report_obeys_every_law(analyzed: tuple[str, Analysis], shared_traces: Path):
    name, found = analyzed
    checked = check_report(found, summarize(found), shared_traces / name)
    assert checked.broken == ()
    assert checked.unchecked == ""


def test_every_table_sums_by_the_same_categories(analyzed: tuple[str, Analysis]):
    check_sums(analyzed[1])


def test_time_has_a_category_and_where_shapes_were_recorded_work(analyzed: tuple[str, Analysis]):
    """A trace counts as having shapes when any event records ``Input Dims`` (``record_shapes=True``)."""
    name, found = analyzed
    with_work, without_shapes = shares(found) if found.coverage.shapes else (None, 1.0)
    shown = "no shapes" if with_work is None else f"work {with_work:7.2%} without shapes {without_shapes:7.2%}"
    print(f"\n{name[:76]:76} category {found.coverage.categorised:7.2%}  {shown}", end="")  # noqa: T201
    assert found.coverage.categorised >= CATEGORISED
    if with_work is not None and not name.startswith(HAND_MADE):
        assert with_work >= WITH_WORK
        assert without_shapes <= 1 - WITH_WORK or name.startswith(tuple(WITHOUT_SHAPES))


def test_a_graph_replay_without_its_capture_has_categories_by_kernel(shared_traces: Path):
    found = analyze(load(shared_traces / "inference/vllm_decode_full/graph_execution.json.gz"), Options())
    assert found.coverage.categorised > 0.9999
