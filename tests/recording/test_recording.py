"""A recording of a CPU program reports without a warning; it records what was asked, where and when."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.report.recorder import RecordingOptions, StepRecorder, TrainerCallback, question_of, questions, snippet
from tracelens.trace.table import Kind

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'tracelens-perf[record]'")


@pytest.fixture
def train_step(torch):
    weight = torch.randn(96, 96, requires_grad=True)

    def step(batch=None):
        for _ in range(4):
            (torch.randn(32, 96) @ weight).relu().sum().backward()

    return step


def record(recorder, train_step, steps: int):
    with recorder:
        for _ in range(steps):
            train_step()
            recorder.step()
    return recorder


def test_a_recording_has_the_steps_asked_for_and_reports_without_a_warning(train_step, tmp_path):
    recorder = record(tl.profile(tmp_path, skip=1, warmup=1), train_step, 12)
    (file,) = recorder.files
    assert file == tmp_path / "rank0.json.gz"
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.json.gz"]
    report = tl.report(file, cpu=True)
    assert not report.summary.notices
    trace = tl.load(file)
    assert trace.table.has_shapes
    steps = {
        trace.table.name_of(row) for row in range(len(trace.table)) if trace.table.kind[row] == Kind.USER_ANNOTATION
    }
    # skip 1, warm up 1, see the size of 1, skip 1, warm up 1, record 3
    assert {name for name in steps if name.startswith("ProfilerStep#")} == {f"ProfilerStep#{n}" for n in (5, 6, 7)}
    assert recorder.forecast_bytes is not None


def test_a_size_limit_leaves_the_steps_that_fit(train_step, tmp_path):
    first = record(tl.profile(tmp_path / "a", skip=0, warmup=1, steps=8), train_step, 16)
    step_mb = first.forecast_bytes / 8 / 1e6
    with pytest.warns(UserWarning, match=r"so 2 of 8 steps are recorded"):
        bounded = record(tl.profile(tmp_path / "b", skip=0, warmup=1, steps=8, limit_mb=2.6 * step_mb), train_step, 16)
    assert bounded.steps == 2
    with pytest.warns(UserWarning, match=r"so 1 of 8 steps are recorded"):
        least = record(tl.profile(tmp_path / "c", skip=0, warmup=1, steps=8, limit_mb=0.001), train_step, 16)
    sizes = [len(tl.load(recorder.files[0])) for recorder in (least, bounded, first)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] / 4


def test_a_run_that_ends_early_leaves_what_it_recorded(train_step, tmp_path):
    recorder = record(tl.profile(tmp_path, skip=0, warmup=1), train_step, 3)
    assert len(recorder.files) == 1
    assert len(tl.load(recorder.files[0]))


def test_a_rank_that_is_not_asked_for_records_nothing(train_step, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert record(tl.profile(tmp_path, ranks=(0, 1)), train_step, 2).files == ()
    assert not list(tmp_path.iterdir())
    assert [f.name for f in record(tl.profile(tmp_path, ranks=(3,), skip=0, warmup=1), train_step, 9).files] == [
        "rank3.json.gz"
    ]


def test_the_handler_serves_the_profiler_itself(torch, train_step, tmp_path):
    ready = tl.handler(tmp_path, report=True)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=2)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, record_shapes=True, on_trace_ready=ready
    ) as profiler:
        for _ in range(5):
            train_step()
            profiler.step()
    assert [path.name for path in sorted(ready.files)] == ["rank0.json.gz", "rank0_2.json.gz"]
    assert json.loads((tmp_path / "rank0.report" / "report.json").read_bytes())["schema"] == "tracelens.report/2"


def test_nothing_is_added_to_a_step(torch, train_step, tmp_path):
    """``step`` is the profiler's own; what the schedule takes instead of PyTorch's is far under 2 % of a step."""
    recorder = tl.profile(tmp_path, limit_mb=None)
    with recorder:
        assert recorder.step == recorder._profiler.step
        began = time.process_time()
        for number in range(20_000):
            recorder.action_of(number % 10)
        of_a_step = (time.process_time() - began) / 20_000
        began = time.process_time()
        for _ in range(20):
            train_step()
        assert of_a_step < 0.02 * (time.process_time() - began) / 20


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.words.split()[0])
def test_a_snippet_records_what_its_question_needs(question, train_step, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = snippet(question).replace('"traces"', '"traces", skip=0, warmup=1')
    names = {"batches": range(16), "train_step": train_step}
    exec(compile(text, "snippet", "exec"), names)  # noqa: S102
    (file,) = names["recorder"].files
    assert file == Path("traces/rank0.json.gz")
    table = tl.load(file).table
    assert table.has_shapes
    assert table.has_stacks == bool(question.options.get("stacks"))
    assert bool(len(table.allocations)) == bool(question.options.get("memory"))


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("why is rank 3 slow", "why is rank 3 slow, or communication"),
        ("why is the GPU idle?", "why is the GPU idle"),
        ("which line launches this kernel", "which line of my code or which module is slow"),
        ("where does the time go", "where does the time go"),
        ("out of memory in the backward pass", "what takes the memory"),
        ("what is my MFU", "how far are the kernels from the hardware's limit"),
        ("did the new version regress, slower than before?", "is it slower than before"),
    ],
)
def test_a_question_finds_what_to_record(asked, text):
    found = question_of(asked)
    assert found is not None
    assert found.text == text


def test_the_command_prints_the_snippet(capsys):
    assert main(["record", "--for", "why is rank 3 slow"]) == 0
    said = capsys.readouterr().out
    assert snippet(questions()[1]) in said
    assert "tracelens collectives traces/" in said
    assert main(["record", "--for", "xyzzy"]) == 2
    assert main(["record", "--list"]) == 0


def test_trainers_call_back(torch, train_step, tmp_path):
    """As Hugging Face's and Lightning's trainers call: every hook by name, with whatever they pass."""
    for begin, end in (("on_train_begin", "on_step_end"), ("on_train_start", "on_train_batch_end")):
        folder = tmp_path / begin
        callback = TrainerCallback(StepRecorder(folder, RecordingOptions(skip=0, warmup=1, steps=1)))
        for hook in ("setup", begin, "on_epoch_begin", *[end] * 6, "on_save", "on_train_end", "teardown"):
            getattr(callback, hook)("arguments", "state", control=None)
        assert len(callback._recorder.files) == 1
    assert callback.state_dict() == {}
    assert not hasattr(callback, "unknown")


def test_without_pytorch_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.profiler", None)
    with pytest.raises(UsageError, match=r"tracelens-perf\[record\]"), tl.profile(tmp_path):
        pass


def test_counts_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(UsageError, match="at least 1"):
        tl.profile(tmp_path, steps=0)
    with pytest.raises(UsageError, match="did you mean"):
        tl.profile(tmp_path, stack=True)
