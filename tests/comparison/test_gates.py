"""Gates: what they limit, what they say, and a build from end to end."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens as tl
from tests.comparison.edits import original, read_again
from tests.comparison.planted import Edit, sync
from tests.comparison.test_sentences import LAYER
from tests.comparison.test_sentences import side as built
from tests.conftest import REPOSITORY, TRACES
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.comparison.compare import compare_sides
from tracelens.comparison.gates import Gate
from tracelens.comparison.inputs import baseline_path, read_side, side_of, write_side
from tracelens.comparison.sides import COMMUNICATION, CallWork, Side, call_role
from tracelens.errors import InputError, NothingToAnalyzeError, UsageError
from tracelens.report.comparison_report import comparison_html, comparison_json

TRACE = REPOSITORY / "example_traces" / "moe_ep8" / "rank0.json.gz"


@pytest.fixture(scope="module")
def side() -> Side:
    return side_of(TRACE, AnalysisOptions())


def test_a_recording_without_any_op_is_compared_by_its_kernels(small_trace: Path, tmp_path: Path) -> None:
    document = orjson.loads(small_trace.read_bytes())
    document["traceEvents"] = [event for event in document["traceEvents"] if event["cat"] == "kernel"]
    path = tmp_path / "kernels.json"
    path.write_bytes(orjson.dumps(document))
    alone = side_of(path, AnalysisOptions())
    compared = compare_sides(alone, alone)
    assert compared.a.step_ms == compared.b.step_ms > 0
    assert (compared.rows, compared.matched_share) == ((), (1.0, 1.0))
    assert {call.kernel for call in alone.first.calls if not call.is_idle} == {"Cijk"}


def slower(side: Side, factor: float) -> Side:
    """All pieces of all steps ``factor`` times as long."""
    one = side.first
    ns = (one.piece_ns * factor).astype(int)
    total = [int(ns[one.piece_step == step].sum()) for step in range(len(one.durations_ns))]
    scaled = replace(one, piece_ns=ns, durations_ns=one.durations_ns * 0 + total)
    return replace(side, parts=((scaled,),))


@pytest.mark.parametrize(
    "text", ["step", "step<", "step<3", "coverage>-1%", "GEMM.percent_of_roofline>-2ms", "step=3%", "<3%"]
)
def test_what_is_no_gate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="gate"):
        Gate.parse(text)


def test_a_gate_passes_below_its_limit_and_fails_beyond(side: Side) -> None:
    gates = [Gate.parse(text) for text in ("step<+3%", "step<+30%", "step<+0.001ms", "coverage>-1")]
    found = compare_sides(side, slower(side, 1.1), gates)
    assert [gate.passed for gate in found.gates] == [False, True, False, True]
    assert found.gates[0].value == pytest.approx(10, abs=0.1)
    assert "failed, changed by +10" in found.gates[0].text


@settings(max_examples=10)
@given(st.floats(0.1, 100))
def test_coverage_is_no_matter_of_how_long_ranks_wait(side: Side, factor: float) -> None:
    one = side.first
    sent = np.array([call_role(call) == COMMUNICATION for call in one.calls])[one.call]
    waited = replace(one, kernel_ns=np.where(sent, one.kernel_ns * factor, one.kernel_ns).astype(np.int64))
    found = compare_sides(side, replace(side, parts=((waited,),)), [Gate.parse("coverage>-0.001")])
    assert sent.any()
    assert (found.gates[0].passed, found.gates[0].value) == (True, 0)


def test_coverage_is_of_all_ranks(side: Side) -> None:
    """Of two ranks, one of which has other ops of unknown work, half as much is known, whichever comes first."""
    one = side.first
    others = tuple(call if call.is_idle else replace(call, name=f"{call.name}_") for call in one.calls)
    bare = replace(one, calls=others, rates=(CallWork(),) * len(one.rates))
    job = [Side(name="job", parts=(ranks,)) for ranks in ((one, one), (one, bare), (bare, one))]
    known = [compare_sides(each, each).a.coverage for each in job]
    assert known[0] is not None
    assert known == [known[0], pytest.approx(known[0] / 2), pytest.approx(known[0] / 2)]


def test_a_gate_on_something_absent_is_no_pass(side: Side) -> None:
    with pytest.raises(NothingToAnalyzeError, match="no_such_op"):
        compare_sides(side, side, [Gate.parse("no_such_op<+3%")])


def test_a_baseline_is_the_side_that_was_saved(side: Side, tmp_path: Path) -> None:
    path = baseline_path("main", tmp_path / "baselines")
    write_side(side, path)
    again = tmp_path / "again.json.gz"
    write_side(side, again)
    assert path.read_bytes() == again.read_bytes()
    found = compare_sides(read_side(path), side)
    assert (found.change_ms, found.rows, found.matched_share) == (0, (), (1.0, 1.0))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a" * 200])
def test_a_baseline_has_a_plain_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="baseline"):
        baseline_path(name, tmp_path)


def test_a_damaged_baseline_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="save it again"):
        read_side(path)


def test_the_document_adds_up_as_numbers(side: Side) -> None:
    document = orjson.loads(comparison_json(compare_sides(side, slower(side, 1.07))))
    assert sum(row["change_ms"] for row in document["rows"]) == document["change_ms"]
    assert len(document["matched_share"]) == 2


def test_text_of_a_trace_is_no_markup(side: Side) -> None:
    named = replace(side, name="<script>alert(1)</script>")
    page = comparison_html(compare_sides(named, slower(named, 1.1)))
    assert b"<script" not in page
    assert b"&lt;script&gt;" in page


@pytest.mark.shared
@pytest.mark.sweep
def test_a_build_from_end_to_end(shared_traces: Path, tmp_path: Path) -> None:
    name = "gaunernst_bert-small-uncased__1016001.json.gz"
    script = Path(__file__).with_name("gate.sh")
    command = Path(sys.executable).with_name("tracelens")
    arguments = [str(command), str(TRACES / "mi300" / name), str(TRACES / "h100" / name)]
    done = subprocess.run(
        ["/bin/sh", str(script), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_workbook_stands_for_the_document_beside_it(tmp_path: Path) -> None:
    (tmp_path / "report.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"without a report\.json in its folder"):
        side_of(tmp_path / "report.xlsx", AnalysisOptions())
    (tmp_path / "report.json").write_text('{"schema": "tracelens.report/0"}')
    with pytest.raises(InputError, match="write the report again"):
        side_of(tmp_path / "report.xlsx", AnalysisOptions())


def test_a_report_is_said_to_be_the_mean_of_its_steps(small_trace: Path, tmp_path: Path) -> None:
    document = orjson.loads(tl.report(small_trace).to_json())
    document["step"] = {"count": 4, "time_us": document["busy"]["total_us"]}
    (tmp_path / "report.json").write_bytes(orjson.dumps(document))
    (note,) = side_of(tmp_path / "report.json", AnalysisOptions()).notes
    assert "report.json is a report, so it has the mean of 4 steps as one and ops by kernel time" in note


def test_a_gate_speaks_of_kernels_and_of_names_with_angle_brackets() -> None:
    """Of 4 layers of 600 + 30 + 10 + 50 ns one kernel takes 60 ns, not 30: 4 * 30 = 120 ns more."""
    gate = Gate.parse("CppNode<Lookup<float>><+3%")
    assert (gate.subject, gate.below, gate.limit, gate.unit) == ("CppNode<Lookup<float>>", True, 3.0, "%")
    slow = [(call, [(name, ns * 2 if name == "mean" else ns) for name, ns in kernels]) for call, kernels in LAYER]
    texts = ("mean<+10%", "mean<+0.0001ms", "mean.calls<+1", "scale<+10%")
    found = compare_sides(built(LAYER * 4), built(slow * 4), [Gate.parse(text) for text in texts])
    assert [(each.passed, each.value) for each in found.gates] == [
        (False, pytest.approx(100)), (False, pytest.approx(1.2e-4)), (True, 0), (True, 0)
    ]  # fmt: skip
    with pytest.raises(NothingToAnalyzeError, match="no category or op on either side named 'meen'; did you mean mean"):
        compare_sides(built(LAYER), built(LAYER), [Gate.parse("meen<+3%")])


@pytest.mark.shared
def test_a_gate_fails_where_a_sentence_tells_the_change_whatever_the_steps_spread(shared_traces: Path) -> None:
    """5 % of a step that waits in a call that is new; the two steps are 607 and 623 ms."""
    before = original(TRACES / "hta/trace_filter/sampled_rank-0.json.gz")
    planted = sync(Edit(before))
    after = read_again(before, planted.events[0])
    (own, other) = compare_sides(before.side, after, [Gate.parse("idle<+5%"), Gate.parse("step<+6%")]).gates
    assert not own.passed
    assert own.text.endswith("what the sentences tell of it is beyond chance")
    assert other.passed  # 5 %
    assert compare_sides(before.side, before.side, [Gate.parse("idle<+0%")]).gates[0].passed
