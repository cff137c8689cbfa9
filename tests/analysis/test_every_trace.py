"""Every recorded trace: the laws hold, tables sum by the same categories, and how much a report can speak about.

Each is analyzed once, for all tests. ``pytest -s`` prints the table of coverage.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.test_event_category import check_sums
from tests.conftest import device_traces
from tracelens.analysis.analyze import Analysis, Options, analyze
from tracelens.analysis.selfcheck.laws import check_report
from tracelens.analysis.trace import load
from tracelens.analysis.verdict import summarize

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
_NO_CAPTURE = "most kernels hang on graph launches or compiled regions of a torch that records no arguments of theirs"
_OLD_LISTS = "its Kineto records no sizes of tensor lists: concatenations of the forward pass have none"
_NO_LINKS = "PyTorch 1.8 before its release: no window sizes of pooling, and kernels launched below no op"
_BARE = "its kernels were launched by a library below no op: there are no shapes to them"
_HAND_MADE = "made by hand, no recording: the fused op says no top-k"
#: Start of a path -> (least share of the time with work, why it is below ``WITH_WORK``).
EXCEPTIONS = {
    "hta/trace_filter/": (0.95, _OLD_LISTS),
    "more/ao/": (0.0, _NO_CAPTURE),
    "more/flashinfer/": (0.0, _BARE),
    "more/kineto/samples/resnet50_num_workers_0/2021": (0.96, _NO_LINKS),
    "more/tracelens_handmade_pairs/test01": (0.0, _HAND_MADE),
}
WITH_WORK, CATEGORISED = 0.97, 0.99
#: The same of categories.
UNNAMED = {"more/kineto/samples/resnet50_num_workers_0/2021": 0.98}
#: Counted by their bytes on links, not in the device's memory.
ELSEWHERE = ("CustomCollective", "EP_Communication", "copy")


def share_with_work(found: Analysis) -> float:
    """Of the linked kernel time that neither communicates nor copies from host to device, the share with work."""
    rows = found.frames["unified_perf_summary"]
    rows = rows[(rows["name"] != "(unlinked kernels)") & ~rows["category"].isin(ELSEWHERE)]
    known = (rows["gflops"] > 0) | rows["hbm_mb"].notna()
    total = rows["kernel_us_sum"].sum()
    return float(rows.loc[known, "kernel_us_sum"].sum() / total) if total else 1.0


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
    work = share_with_work(found) if found.coverage.shapes else None
    shown = "no shapes" if work is None else f"work {work:7.2%}"
    print(f"\n{name[:76]:76} category {found.coverage.categorised:7.2%}  {shown}", end="")  # noqa: T201
    bar = next((bar for start, (bar, _) in EXCEPTIONS.items() if name.startswith(start)), WITH_WORK)
    named = next((bar for start, bar in UNNAMED.items() if name.startswith(start)), CATEGORISED)
    assert found.coverage.categorised >= named
    assert work is None or work >= bar


def test_a_graph_replay_without_its_capture_has_categories_by_kernel(shared_traces: Path):
    found = analyze(load(shared_traces / "inference/vllm_decode_full/graph_execution.json.gz"), Options())
    assert found.coverage.categorised > 0.9999
