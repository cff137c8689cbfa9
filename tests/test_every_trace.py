"""Every recorded trace: what is read, linked, analyzed and reported of it obeys the laws of each room.

Each goes through ``tracelens report`` once, for all tests. ``pytest -s`` prints the table of coverage.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import tracelens
from tests.analysis.attribution.test_event_category import check_sums
from tests.analysis.attribution.test_steps import times_of
from tests.analysis.sheets.test_critical_path import path_of
from tests.analysis.sheets.test_idle import gaps_of
from tests.analysis.sheets.test_modules import activity_of
from tests.conftest import device_traces, part, part_of_traces, recorded_traces
from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import gpu_timeline
from tracelens.analysis.attribution.host_scopes import phases
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.sheets.module_time import call_stacks, modules
from tracelens.cli import main
from tracelens.comparison.compare import compare_sides
from tracelens.comparison.sides import Side
from tracelens.comparison.traced_side import recorded as compared
from tracelens.report.figures import bound_sentence, first_fix, together_text
from tracelens.report.result import Report
from tracelens.trace.table import DEVICE_KINDS
from tracelens.types.units import shown_ms, shown_percent

pytestmark = pytest.mark.shared

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(tracelens.__file__).parent / "report" / "schemas" / "report.schema.json").read_text())
)
#: Trace of graph replays -> the trace of its graphs' capture.
CAPTURES = {
    "inference/vllm_decode_full/graph_execution.json.gz": (
        "inference/vllm_decode_full/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz"
    ),
    "inference/vllm_prefilldecode_piecewise/graph_execution.json.gz": (
        "inference/vllm_prefilldecode_piecewise/capture_traces/graph_capture_rank_0.pt.trace.json.gz"
    ),
}
#: Start of a path -> why calls that recorded no shapes take more than ``1 - WITH_WORK`` of the time.
WITHOUT_SHAPES = {
    "hta/trace_filter/sampled_rank-0": "its Kineto records no sizes of tensor lists: concatenations have none",
    "more/ao/": "graph launches without their capture, or compiled regions of a torch that records no arguments",
    "more/flashinfer/": "its kernels were launched by a library below no op",
}
#: Made by hand, no recordings.
HAND_MADE = "more/tracelens_handmade_pairs/test01"
WITH_WORK, CATEGORISED = 0.97, 0.99
#: Counted by their bytes on links, not in the device's memory.
ELSEWHERE = ("CustomCollective", "EP_Communication", "copy")
#: The rank-0 file of HTA has times of 19 digits: read as floats, 531 of its events outlive their callers.
#: file -> (host events, device events, those without a launch, host events that outlive their caller)
REAL = {
    "mi300/resnet_act_checkpoint.json.gz": (45_533, 3_653, 968, 24),
    "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (10_593, 1_517, 463, 2),
    "inference/vllm_decode_full/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz": (
        126_849, 10, 0, 152,
    ),
    "inference/vllm_decode_full/graph_execution.json.gz": (1_105, 434, 0, 0),
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": (39_309, 6_095, 0, 0),
    "hta/nccl_parser_config/nccl_data.json.gz": (23_128, 3_774, 0, 0),
}  # fmt: skip
#: Device events that were launched before the window, of the other traces that have any.
UNLINKED = {
    "more/kineto/samples/resnet50_num_workers_0/2021-01-10_515e6115_2d19c6_worker0.pt.trace.json.gz": 765,
    "more/param/dlrm_8rank/worker1_step_12.1694128201556.pt.trace.json.gz": 64,
    "more/param/dlrm_8rank/worker3_step_12.1694128201557.pt.trace.json.gz": 64,
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace.json.gz": 93,
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank1.pt.trace.json.gz": 93,
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank2.pt.trace.json.gz": 66,
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank3.pt.trace.json.gz": 93,
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5_qcomm_runA/rank0.pt.trace.json.gz": 98,
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5_qcomm_runA/rank1.pt.trace.json.gz": 98,
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5_qcomm_runA/rank2.pt.trace.json.gz": 72,
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5_qcomm_runA/rank3.pt.trace.json.gz": 97,
}

READINGS = tomllib.loads((Path(__file__).parent / "expert_readings.toml").read_text(encoding="utf-8"))["reading"]
#: What tells the rows apart that prove a finding.
PROOF = ("name", "category", "input_dims")
#: Findings that speak of all calls of the rows that they name.
ALL_ROWS_PROVE = {
    "layout_copies", "type_casts", "growing_cache", "unfused_loss", "expert_loop", "low_batch_decode", "wave_quantization",
    "unaligned_gemms", "slow_convolutions", "fp32_without_tf32", "fp8_candidates",
}  # fmt: skip

DEVICE = device_traces()
#: Those without device events last: both lists then number the others alike, and each trace has its tests in a row.
ALL = [*DEVICE, *sorted(set(recorded_traces()) - set(DEVICE))]
of_every_trace = pytest.mark.parametrize("recorded", part_of_traces(ALL), indirect=True, scope="module")
of_device_traces = pytest.mark.parametrize("recorded", part_of_traces(DEVICE), indirect=True, scope="module")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A trace with what ``tracelens report`` said and wrote; no report of one without device events."""

    name: str
    path: Path
    trace: Trace
    report: Report | None
    code: int
    shown: str
    document: dict[str, Any] | None

    @property
    def analysis(self) -> Analysis:
        assert self.report is not None
        assert isinstance(self.report.result, Analysis)
        return self.report.result


def kept(made: dict[str, Any], name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    made[name] = function(*arguments, **options)
    return made[name]


def reported(path: Path, folder: Path, *options: object) -> tuple[int, str, Trace | None, Report | None]:
    """Exit code, output, trace and report of the command."""
    made: dict[str, Any] = {"load": None, "report": None}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as shown:
        for name in made:
            patch.setattr(tracelens, name, partial(kept, made, name, getattr(tracelens, name)))
        code = main(["report", str(path), "-o", str(folder), *map(str, options)])
    return code, shown.getvalue(), made["load"], made["report"]


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest, shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """With the capture of its graphs where there is one."""
    name = str(request.param)
    path = shared_traces / name
    folder = tmp_path_factory.mktemp("every") / "r"
    captured = CAPTURES.get(name)
    code, shown, trace, report = reported(path, folder, *(["--capture", shared_traces / captured] if captured else []))
    document = json.loads((folder / "report.json").read_text()) if report else None
    assert trace is not None
    return Recorded(name=name, path=path, trace=trace, report=report, code=code, shown=shown, document=document)


@of_device_traces
def test_its_workbook_has_at_most_14_sheets(recorded: Recorded) -> None:
    assert recorded.report is not None
    shown, further = recorded.report.of_workbook(all_sheets=False)
    assert len(shown) <= 13
    assert shown[0].title == "ops"
    assert len(shown) + len(further) == len(recorded.report)


@of_every_trace
def test_it_reads_as_json_does(recorded: Recorded) -> None:
    whole = json.loads(gzip.decompress(recorded.path.read_bytes()))
    if isinstance(whole, list):  # of PyTorch 1.8: the events alone
        whole = {"traceEvents": whole}
    events = whole.pop("traceEvents")
    complete = [e for e in events if e["ph"] == "X"]
    table = recorded.trace.table
    assert table.events_total == len(events)
    assert table.counts_by_phase == Counter(e["ph"] for e in events)
    assert table.metadata == whole
    assert [table.names[c] for c in table.name] == [e["name"] for e in complete]
    assert table.correlation.tolist() == [e.get("args", {}).get("correlation", -1) for e in complete]
    assert table.event(len(table) // 2) == complete[len(table) // 2]
    assert not table.losses


@of_every_trace
def test_its_tree_is_sound_and_only_what_was_launched_before_its_window_is_unlinked(recorded: Recorded) -> None:
    table, tree, name = recorded.trace.table, recorded.trace.tree, recorded.name
    assert tree.self_check() == []
    linked = tree.launch >= 0
    found = (len(tree), int(linked.sum()) + len(tree.unlinked), len(tree.unlinked), tree.overlaps)
    if name in REAL:
        assert found == REAL[name]
    else:
        assert len(tree.unlinked) == UNLINKED.get(name, 0)
    assert (table.correlation[tree.unlinked] < table.correlation[tree.launch[linked]].min(initial=2**62)).all()
    # the engine's wrapper has a forward op exactly where something before it was recorded with its number
    is_wrapper = np.char.startswith(np.array(table.names), "autograd::engine::evaluate_function")[table.name]
    wrappers = np.flatnonzero(is_wrapper & (table.sequence_number >= 0))
    first: dict[int, int] = {}
    for number, start in zip(table.sequence_number.tolist(), table.start_ns.tolist(), strict=True):
        first[number] = min(start, first.get(number, start))
    is_late = [
        first[n] < start
        for n, start in zip(table.sequence_number[wrappers].tolist(), table.start_ns[wrappers].tolist(), strict=True)
    ]
    assert (tree.forward[wrappers] >= 0).tolist() == is_late


@of_every_trace
def test_no_step_is_busy_for_longer_than_it_lasts(recorded: Recorded) -> None:
    """Of pipelined ranks a few ms of a step run beside its neighbors; nothing else does."""
    times = times_of(recorded.trace)
    assert (times.busy_ns <= times.duration_ns).all()
    assert (times.outside_ns <= 0.03 * times.duration_ns).all()


@of_device_traces
def test_no_sheet_and_no_rule_fails_or_warns(recorded: Recorded) -> None:
    """A warning is an error here: it would stand on the terminal of whoever has such a trace."""
    assert recorded.analysis.rule_failures == ()
    assert recorded.analysis.failures == ()


@of_device_traces
def test_the_views_hold_all_device_time(recorded: Recorded) -> None:
    table, tree, activity = recorded.trace.table, recorded.trace.tree, activity_of(recorded.trace)
    found = phases(table, tree, activity)
    sums = [found.frame(activity)["kernel_us"].sum()]
    for frame, column in (
        (modules(table, tree, activity, found, ""), "kernel_self_us"),
        (call_stacks(table, tree, activity), "kernel_us"),
    ):
        sums += [frame[column].sum()] if frame is not None else []
    assert [round(1000 * us) for us in sums] == [int(activity.duration.sum())] * len(sums)


@of_device_traces
def test_the_causes_of_idle_time_add_up(recorded: Recorded) -> None:
    assert int(gaps_of(recorded.trace).idle.sum()) == gpu_timeline(activity_of(recorded.trace)).idle_ns


@of_device_traces
def test_the_critical_path_is_at_most_the_window_and_at_least_the_busiest_stream(recorded: Recorded) -> None:
    path = path_of(recorded.trace)
    assert path.busiest_stream_ns <= path.length_ns <= path.window_ns


@of_device_traces
def test_the_command_reports(recorded: Recorded) -> None:
    assert recorded.code == 0
    assert_fits_the_schema(recorded.shown, recorded.document)


def assert_fits_the_schema(shown: str, document: Any) -> None:
    assert len(shown.splitlines()) <= 38  # a window of 40 lines shows it with the command and the next prompt
    SCHEMA.validate(document)
    busy = document["busy"]
    # conserved up to the digits of the document
    assert sum(busy[part] for part in ("compute", "exposed_comm", "memcpy", "idle")) == pytest.approx(1, abs=1e-9)


@of_device_traces
def test_it_has_not_changed_against_itself(recorded: Recorded) -> None:
    side = Side(name=recorded.name, parts=((compared(recorded.trace, AnalysisOptions()),),))
    found = compare_sides(side, side)
    assert found.change_ms == 0
    assert found.rows == ()
    assert found.changes == ()
    assert found.matched_share == (1.0, 1.0)


@of_device_traces
def test_its_report_obeys_every_law(recorded: Recorded) -> None:
    assert recorded.report is not None
    checked = recorded.report.check(recorded.path)
    assert checked.broken == ()
    assert checked.unchecked == ""


@of_device_traces
def test_every_table_sums_by_the_same_categories(recorded: Recorded) -> None:
    check_sums(recorded.analysis)


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


@of_device_traces
def test_time_has_a_category_and_where_shapes_were_recorded_work(recorded: Recorded) -> None:
    """A trace counts as having shapes when any event records ``Input Dims`` (``record_shapes=True``)."""
    name, found = recorded.name, recorded.analysis
    with_work, without_shapes = shares(found) if found.coverage.shapes else (None, 1.0)
    shown = "no shapes" if with_work is None else f"work {with_work:7.2%} without shapes {without_shapes:7.2%}"
    print(f"\n{name[:76]:76} category {found.coverage.categorised:7.2%}  {shown}", end="")  # noqa: T201
    assert found.coverage.categorised >= CATEGORISED
    if with_work is not None and not name.startswith(HAND_MADE):
        assert with_work >= WITH_WORK
        assert without_shapes <= 1 - WITH_WORK or name.startswith(tuple(WITHOUT_SHAPES))


def reading_of(name: str) -> dict[str, Any]:
    """What an expert said of a trace."""
    (found,) = [each for each in READINGS if any(fnmatch(name, pattern) for pattern in each["traces"])]
    return found


@of_device_traces
def test_the_first_finding_is_the_experts(recorded: Recorded) -> None:
    reading, summary = reading_of(recorded.name), recorded.report.summary if recorded.report else None
    assert summary is not None
    assert (summary.findings[0].kind if summary.findings else "") == reading["first"], reading["why"]
    if reading.get("unseen"):
        assert summary.unseen is not None
        first = recorded.shown.index("\n 1 ") if summary.findings else len(recorded.shown)
        assert " cannot see " in recorded.shown[:first]


@of_device_traces
def test_scope_and_what_is_excluded_are_the_file(recorded: Recorded) -> None:
    """Events and nanoseconds, counted in the file's own table; the tables of the scope add up to the scope."""
    analysis, scope = recorded.analysis, recorded.report.summary.scope
    events = analysis.trace.table.rows_of(DEVICE_KINDS)
    parts = [(scope.events, scope.time_us), *((part.events, part.time_us) for part in scope.excluded)]
    assert sum(count for count, _ in parts) == len(events)
    file_us = int(analysis.trace.table.duration_ns[events].sum()) / 1e3
    assert sum(us for _, us in parts) == pytest.approx(file_us, rel=1e-12)
    assert analysis.frames["kernel_summary"]["duration_us_sum"].sum() == pytest.approx(scope.time_us, rel=1e-9)
    busy = recorded.report.summary.busy
    timeline = analysis.frames["gpu_timeline"].set_index("type")["time_us"] / 1e3
    assert timeline["total_time"] * 1e3 == pytest.approx(busy.total_us)
    assert timeline["idle_time"] * 1e3 == pytest.approx(busy.idle * busy.total_us, abs=1e-6)


@of_device_traces
def test_the_first_sentences_say_what_the_sheets_do(recorded: Recorded) -> None:
    """Busy and idle are of gpu_timeline, host and step of the sheet of steps, the cause of idle_causes, the category's
    time of its kernels, the gain of the first finding that has one.
    """
    frames, summary = recorded.analysis.frames, recorded.report.summary
    sentence = bound_sentence(summary)
    timeline = frames["gpu_timeline"].set_index("type")
    busy = 100 * timeline["time_us"]["busy_time"] / timeline["time_us"]["total_time"]
    printed = [
        float(number.replace(",", "")) for number in re.findall(r"(?<![\w.])[\d,]+\.?\d*(?= %| ms| of)", sentence)
    ]
    assert any(abs(number - busy) <= 0.0501 for number in printed) or "<0.1 %" in sentence, (sentence, busy)
    steps = frames.get("steps")
    if sentence.startswith("The host bounds"):
        chosen = steps[
            steps["step"].isin(
                [recorded.analysis.step_times.steps[at].number for at in recorded.analysis.complete_steps]
            )
        ]
        work, whole = (chosen[key].astype(float).mean() for key in ("host_work_us", "duration_us"))
        assert work >= 0.95 * whole
        took, of = shown_ms(work), shown_ms(whole)
        assert f"takes {'all' if took == of or work >= whole else took} of {of} ms" in sentence
    elif ", mainly " in sentence:
        causes = frames["idle_causes"]
        assert f"{causes['cause'].iloc[0]} ({shown_percent(causes['percent_of_window'].iloc[0] / 100)})" in sentence
    elif sentence.startswith("The GPU bounds"):
        assert busy >= 90 - 1e-9
    fix = first_fix(summary)
    assert (fix != "") == any(each.gain_us for each in summary.findings)
    if fix:
        first = next(each for each in summary.findings if each.gain_us)
        assert f"{shown_ms(first.gain_us)} ms (" in fix
        if summary.together is not None:
            now_us = summary.steps.time_us if summary.steps else summary.busy.total_us
            assert summary.together.step_us[0] == pytest.approx(now_us, rel=1e-6)
            assert f"{shown_ms(now_us)} ms now" in together_text(summary.together)
        name = (first.kind or first.id).replace("_", " ")
        assert fix.startswith(f"Fix finding {summary.findings.index(first) + 1} ({name}) first to save ")
        assert f", {first.certainty} certainty): " in fix


@of_device_traces
def test_no_finding_contradicts_a_sheet(recorded: Recorded) -> None:
    analysis = recorded.analysis
    steps = max(1, len(analysis.complete_steps))
    step_us, gpu_us = analysis.timeline.total_ns / 1e3 / steps, float(analysis.activity.duration.sum()) / 1e3
    rows = analysis.frames["unified_perf_summary"]
    keys = [str(list(key)) for key in zip(*(rows[key].to_numpy().tolist() for key in PROOF), strict=True)]
    idle_us = analysis.timeline.idle_ns / 1e3 / steps
    found = analysis.findings
    assert sum(each.gain_us or 0 for each in found) <= step_us * (1 + 1e-9)
    for each in found:
        low, gain, high = each.gain_low_us or 0.0, each.gain_us or 0.0, each.gain_high_us or 0.0
        assert 0 <= low <= gain + 1e-3 <= high + 2e-3 <= (each.time_us or 0.0) + 1, each
        assert each.where is not None
        assert each.where.share == pytest.approx((each.time_us or 0.0) / step_us, abs=1e-6)
        said = {figure.what: figure.value for figure in each.figures}
        assert all(0 <= figure.value <= 1 + 1e-9 for figure in each.figures if figure.unit == "share"), each
        if each.id == "idle":
            assert (each.time_us or 0.0) <= idle_us * (1 + 1e-9)
        proof = [row.row for row in each.evidence if row.sheet == "unified_perf_summary"]
        mine = rows[np.array([key in {str(list(one.values())) for one in proof} for key in keys], bool)]
        assert len(mine) >= len(proof)
        if each.id == "op_below_roofline" and len(mine) == 1:
            row = mine.iloc[0]
            assert said["calls"] == row["operation_count"]
            assert (each.time_us or 0.0) <= row["kernel_us_sum"] / steps + 1
            if "of the roofline" in said:
                assert said["of the roofline"] == pytest.approx(row["roofline_us"] / row["kernel_us_mean"])
        elif proof and len(proof) < 10 and len(mine) == len(proof) and each.id in ALL_ROWS_PROVE:
            assert said["share of GPU time"] == pytest.approx(mine["kernel_us_sum"].sum() / gpu_us)
            assert gain <= mine["kernel_us_sum"].sum() / steps + 1


@pytest.mark.parametrize("name", part(list(CAPTURES), 2))
def test_a_graph_replay_without_its_capture_has_categories_by_kernel(
    shared_traces: Path, tmp_path: Path, name: str
) -> None:
    code, shown, _, report = reported(shared_traces / name, tmp_path / "r")
    assert code == 0
    assert_fits_the_schema(shown, json.loads((tmp_path / "r" / "report.json").read_text()))
    assert report is not None
    assert report.summary.coverage.categorised > 0.9999
    assert report.check(shared_traces / name).broken == ()
