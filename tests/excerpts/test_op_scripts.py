"""Scripts that run one op: what is in them, what never is, and one run on PyTorch for CPUs."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tests.conftest import RealTrace, examples, part
from tracelens.comparison.whatif.what_if import what_if
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.report.excerpts.op_scripts import op_scripts, write_scripts
from tracelens.trace.table import Kind

#: A Python with PyTorch: scripts need nothing else. .ci/run makes one.
PYTHON = os.environ.get("TRACELENS_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else "")
torch_only = pytest.mark.skipif(not PYTHON, reason="PyTorch is not installed, and TRACELENS_TORCH_PYTHON is not set")


def recorded(text: str) -> dict[str, Any]:
    """The literal of a script."""
    (found,) = [
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "RECORDED"
    ]
    return ast.literal_eval(found)


def test_the_arguments_are_those_recorded() -> None:
    (script,) = op_scripts(Builder().mm(16, 8, 4, 0, 10, 5).trace(), op="aten::mm")
    said = recorded(script.text)
    (call,) = said["calls"]
    assert (said["namespace"], said["name"], said["device"]) == ("aten", "mm", "mi300x")
    assert call["arguments"] == [
        {"kind": "tensor", "shape": [16, 8], "dtype": "c10::BFloat16", "strides": [8, 1]},
        {"kind": "tensor", "shape": [8, 4], "dtype": "c10::BFloat16", "strides": [4, 1]},
    ]
    assert call["expected_us"]["mean kernel time of the recording"] == 5


@pytest.mark.parametrize(
    "name", ["aten::mm'); import os; ('", "__import__('os').system('x')::mm", "aten::m m", "aten::mm\n", "aten"]
)
def test_a_name_that_is_no_identifier_never_becomes_code(name: str) -> None:
    built = Builder().op(name, 0, 9, **{"Input Dims": [[4]], "Input type": ["float"]}).launch(1, "kernel", 20, 5)
    with pytest.raises(NothingToAnalyzeError, match="no op of a library"):
        op_scripts(built.trace(), top=1)


@pytest.mark.parametrize("text", ["'); __import__('os').system('touch /tmp/evil'); ('", "/etc/passwd", "..", "x" * 99])
def test_texts_that_are_no_words_are_never_in_a_script(text: str) -> None:
    built = Builder().op(
        "aten::gelu", 0, 9, **{"Input Dims": [[4], []], "Input type": ["float", ""], "Concrete Inputs": ["", text]}
    )
    with pytest.raises(NothingToAnalyzeError, match="a string of more than one word"):
        op_scripts(built.launch(1, "gelu", 20, 5).trace(), op="aten::gelu")


def test_an_op_without_shapes_is_left_out_with_the_reason() -> None:
    built = Builder().op("aten::relu", 0, 9).launch(1, "relu", 20, 500).mm(16, 8, 4, 30, 540, 5)
    left_out, made = op_scripts(built.trace(), top=1)
    assert (left_out.file, left_out.why) == (None, "its shapes were not recorded")
    assert made.file == "002_aten_mm.py"
    with pytest.raises(UsageError, match="did you mean aten::mm"):
        op_scripts(built.trace(), op="aten::mn")


@pytest.mark.sweep
@given(durations=st.lists(st.integers(1, 1000), min_size=1, max_size=20))
@settings(max_examples=examples(40))
def test_a_script_has_the_fewest_calls_that_make_up_95_percent(durations: list[int]) -> None:
    built, now = Builder(), 0
    for i, us in enumerate(durations):
        built.mm(16 + i, 8, 4, now, now + 10, us)
        now += us + 20
    (script,) = op_scripts(built.trace(), op="aten::mm")
    shares = [call["share"] for call in recorded(script.text)["calls"]]
    expected = sorted(durations, reverse=True)
    whole = sum(durations)
    fewest = next(n for n in range(1, len(expected) + 1) if sum(expected[:n]) >= 0.95 * whole - 1e-9)
    assert shares == pytest.approx([us / whole for us in expected[:fewest]], abs=1e-6)
    assert (script.written, script.distinct) == (fewest, len(durations))
    assert script.covered == pytest.approx(sum(expected[:fewest]) / whole)


def two_products() -> Builder:
    """Eight calls, 80 us of 32x64x16 and 20 us of 8x16x8, behind one another on a stream that never waits."""
    built = Builder()
    for i in range(4):
        built.mm(32, 64, 16, 10 * i, 100 + 25 * i, 20).mm(8, 16, 8, 10 * i + 5, 120 + 25 * i, 5)
    return built


def test_the_step_of_a_script_is_that_of_whatif() -> None:
    trace = two_products().trace()
    module = module_of(op_scripts(trace, op="aten::mm")[0].text)
    for factor in (0.0, 0.3, 0.61, 1.0, 1.7, 2.0):
        said = what_if(trace, scale=(f"aten::mm={factor}",)).after.step_us
        assert module.step_us(factor) == pytest.approx(said, rel=2e-4)
    assert module.step_us(2.1) is None


@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    part(
        ["mi300/resnet_act_checkpoint", "torch_compile_triton/trace", "inference/vllm_decode_full/graph_execution"], 3
    ),
)
def test_the_steps_of_real_traces_are_those_of_whatif(real_trace: RealTrace, name: str) -> None:
    trace = real_trace(name)
    for script in [each for each in op_scripts(trace, top=3) if each.file]:
        module = module_of(script.text)
        kernels = what_if(trace, scale=(f"{script.name}=0.37",))
        assert module.step_us(0.37) == pytest.approx(kernels.after.step_us, rel=2e-4)


def module_of(text: str) -> ModuleType:
    """A script, imported: it needs no PyTorch for that."""
    module = ModuleType("script")
    exec(compile(text, "script.py", "exec"), module.__dict__)  # noqa: S102 (what tracelens wrote)
    return module


class NumpyBench:
    """What a script asks of PyTorch, with NumPy: products whose time is what a test says."""

    xp, device = np, "numpy"

    def __init__(self, module: ModuleType, op: Callable[..., Any], us: tuple[float, float] = (10.0, 5.0)) -> None:
        self._module, self._op, self._us = module, op, us
        self.rng = np.random.default_rng(0)

    def prepare(self, call: Any) -> list[str]:
        return []

    def op(self, arguments: Any) -> Any:
        return arguments.given_to(self._op)

    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def arguments(self, call: Any, seed: int) -> Any:
        self.seed(seed)
        made = [self.rng.standard_normal(slot["shape"]).astype(np.float32) for slot in call["arguments"]]
        return self._module.Arguments(made, [""] * len(made), [False] * len(made))

    def exact(self, call: Any, seed: int) -> Any:
        wide = [each.astype(np.float64) for each in self.arguments(call, seed).values]
        return [self._op(*wide)]

    def comparable(self, array: Any) -> Any:
        return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)

    def done(self, found: list[Any]) -> list[Any]:
        return [each.copy() if isinstance(each, np.ndarray) else each for each in found]

    def refill(self, old: Any, new: Any) -> None:
        old[...] = new

    def times_us(self, functions: list[Callable[[], Any]]) -> list[float]:
        for function in functions:
            function()
        return list(self._us[: len(functions)])


def tried(candidate: Callable[..., Any], op: Callable[..., Any] = np.matmul) -> tuple[int, str]:
    """Exit code and text of a script of two products."""
    module = module_of(op_scripts(two_products().trace(), op="aten::mm")[0].text)
    code, lines = module.run(NumpyBench(module, op), candidate)
    return code, "\n".join(lines)


def test_a_right_candidate_is_told_what_the_op_and_the_step_gain() -> None:
    """80 of 100 us and 20 of 100 us at half their time: the op takes 0.5 times as long."""
    code, said = tried(lambda a, b: (b.T @ a.T).T)
    assert code == 0
    assert "(4 calls, 80.0 % of the op's device time)" in said
    assert "(4 calls, 20.0 % of the op's device time)" in said
    assert "        5.00 us the candidate, 2.00x as fast" in said
    assert "right for 2 distinct calls, 100.0 % of the op's device time" in said
    assert "the op: 2.00x as fast, weighted by recorded time" in said
    step_us = what_if(two_products().trace(), scale=("aten::mm=0.5",)).after.step_us
    assert f"-> {step_us / 1e3:.3f} ms" in said
    assert "as `tracelens whatif TRACE --scale aten::mm=0.5000` says" in said


class FakeGpu:
    """What a script asks of torch.cuda: work is queued on a stream; the time of an event is known when that is done."""

    def __init__(self, hip: str | None = None) -> None:
        self.queued_us, self.done_us, self.is_cold, self.flushed, self.chosen = 0.0, -1.0, False, 0, -1
        self.version, self.int8, self.cuda = SimpleNamespace(hip=hip), "int8", self
        self.device = lambda text: SimpleNamespace(index=int(text.partition(":")[2] or -1) if ":" in text else None)

    def set_device(self, number: int) -> None:
        self.chosen = number

    def empty(self, size: int, *, dtype: str, device: str) -> Any:
        self.flushed = size
        return SimpleNamespace(zero_=lambda: self.queue(100, is_cold=True))

    def queue(self, us: float, *, is_cold: bool = False) -> None:
        self.queued_us, self.is_cold = self.queued_us + us, is_cold

    def synchronize(self) -> None:
        self.done_us = self.queued_us

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802 (as PyTorch has it)
        assert enable_timing
        event = SimpleNamespace(at=None)

        def elapsed_ms(end: Any) -> float:
            assert max(event.at, end.at) <= self.done_us, "the device is not done"
            return (end.at - event.at) / 1e3

        event.record, event.elapsed_time = lambda: setattr(event, "at", self.queued_us), elapsed_ms
        return event


@pytest.mark.parametrize(("hip", "flushed"), [(None, 256 << 20), ("7.0", 512 << 20)])
def test_device_time_is_that_of_the_stream_with_cold_caches(hip: str | None, flushed: int) -> None:
    """Of 40 and 7 us, 4 and 6 us where the caches hold what the last call left; neither the flush nor the queue count."""
    module, gpu = module_of(op_scripts(two_products().trace(), op="aten::mm")[0].text), FakeGpu(hip)
    bench = module.Bench(gpu, "cuda:1", 5)
    assert (gpu.chosen, gpu.flushed) == (1, flushed)
    calls: list[int] = []

    def function(number: int, cold_us: float, warm_us: float) -> Callable[[], None]:
        def run() -> None:
            calls.append(number)
            gpu.queue(cold_us if gpu.is_cold else warm_us)

        return run

    assert bench.times_us([function(0, 40, 4), function(1, 7, 6)]) == pytest.approx([40, 7])
    assert calls == [0, 1] * (3 + 5), "warmed up, then by turns"
    assert module.Bench(gpu, "cuda", 1).on_gpu
    assert gpu.chosen == 0


@pytest.mark.parametrize(("arguments", "why"), [
    ([], "this script needs PyTorch, which cannot be imported: ModuleNotFoundError"),
    (["--candidate", "nowhere.py"], "this script needs PyTorch"),
])  # fmt: skip
def test_what_cannot_be_judged_is_no_wrong_candidate(tmp_path: Path, arguments: list[str], why: str) -> None:
    """Exit code 2, not that of a wrong candidate, and help, on a machine without PyTorch."""
    (script,) = op_scripts(Builder().mm(16, 8, 4, 0, 10, 5).trace(), op="aten::mm")
    (tmp_path / "one.py").write_text(script.text)
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch')")
    command = [sys.executable, str(tmp_path / "one.py")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith(why)
    assert "--candidate" in subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


@torch_only
@pytest.mark.parametrize("arguments", [["--import", "no_such_library"], ["--device", "no_such_device"]])
def test_a_library_or_device_that_is_not_there_is_one_sentence(tmp_path: Path, arguments: list[str]) -> None:
    (script,) = op_scripts(Builder().mm(16, 8, 4, 0, 10, 5).trace(), op="aten::mm")
    (tmp_path / "one.py").write_text(script.text)
    done = subprocess.run(
        [PYTHON, str(tmp_path / "one.py"), *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith(" ".join(arguments))


def test_a_candidate_that_was_judged_for_a_part_alone_is_not_said_to_be_right() -> None:
    """The calls that can't be called here took 20 of 100 us: exit code 2, and nothing of the step."""
    module = module_of(op_scripts(two_products().trace(), op="aten::mm")[0].text)
    small = module.RECORDED["calls"][1]

    class PartBench(NumpyBench):
        def prepare(self, call: Any) -> list[str]:
            if call is small:
                raise module.UnjudgedError("it has no implementation")
            return super().prepare(call)

    code, lines = module.run(PartBench(module, np.matmul), lambda a, b: (b.T @ a.T).T)
    assert code == 2
    assert lines[-2:] == [
        "right for 1 distinct calls, 80.0 % of the op's device time in the recording",
        "not judged as a whole: that takes 95 %",
    ]
    assert "the step" not in "\n".join(lines)
    small["share"], module.RECORDED["calls"][0]["share"] = 0.05, 0.95
    assert module.run(PartBench(module, np.matmul), lambda a, b: (b.T @ a.T).T)[0] == 0


def test_times_of_a_cpu_say_nothing_of_the_recorded_step() -> None:
    module = module_of(op_scripts(two_products().trace(), op="aten::mm")[0].text)
    bench = NumpyBench(module, lambda a, b: a @ b)
    bench.device = "cpu"
    code, lines = module.run(bench, lambda a, b: (b.T @ a.T).T)
    assert (code, lines[-1]) == (0, "the window: not said of mi300x by times of a CPU")
    assert lines[-2].startswith("the op: 2.00x as fast")


def remembered() -> Callable[..., Any]:
    """Gives the result of its first call with these shapes, and of the memory it had then."""
    known: dict[Any, Any] = {}

    def product(a: Any, b: Any) -> Any:
        key = a.__array_interface__["data"][0], a.shape
        return known.setdefault(key, a @ b)

    return product


def spoiled(a: Any, b: Any) -> Any:
    result = a @ b
    a[0, 0] = 0
    return result


def failing(a: Any, b: Any) -> Any:
    raise ValueError("no such kernel")


def one_off(a: Any, b: Any) -> Any:
    result = a @ b
    result[-1, -1] += 0.01
    return result


WRONG = {
    "nothing computed": (lambda a, b: np.zeros((len(a), b.shape[1]), np.float32), "elements are wrong"),
    "one product of 64 left out": (lambda a, b: a[:, 1:] @ b[1:], "elements are wrong"),
    "in half precision": (lambda a, b: (a.astype("f2") @ b.astype("f2")).astype("f4"), "elements are wrong"),
    "not a number": (lambda a, b: (a @ b) * np.float32("nan"), "elements are wrong"),
    "one element": (one_off, "1 of 512 elements are wrong, one by 0.01"),
    "another type": (lambda a, b: a.astype("f8") @ b.astype("f8"), "it is [32, 16] of float64, and not [32, 16] of"),
    "another shape": (lambda a, b: (a @ b)[:1], "it is [1, 16] of float32, and not [32, 16]"),
    "no array": (lambda a, b: None, "it is NoneType"),
    "two results": (lambda a, b: (a @ b, a), "it gives 2 results, the op 1"),
    "an argument changed": (spoiled, "it changes an argument that the op leaves as it was"),
    "an exception": (failing, "it fails: ValueError: no such kernel"),
    "remembered": (remembered(), "elements are wrong"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("what", part(WRONG, 4))
def test_a_candidate_that_is_fast_and_wrong_is_refused_without_a_speed_up(what: str) -> None:
    candidate, why = WRONG[what]
    code, said = tried(candidate)
    assert code == 1
    assert said.startswith("aten::mm [32, 64]; [64, 16]: the candidate is refused: ")
    assert why in said
    assert "x as fast" not in said
    assert "step" not in said


def test_what_has_nothing_to_compare_is_not_judged() -> None:
    rng = np.random.default_rng(1)
    shape = (4, 4)
    for op, why in (
        (lambda a, b: rng.standard_normal(shape), "its result is random"),
        (lambda a, b: np.zeros(shape), "its result is the same whatever its random values are"),
        (lambda a, b: np.full(shape, np.nan), "its result is not finite for random values"),
    ):
        code, said = tried(op, op)
        assert code == 2, why
        assert why in said
        assert "x as fast" not in said


RUN_ALL = """
import contextlib, io, json, runpy, sys
for script, *more in json.loads(sys.argv[1]):
    sys.argv, said = [script, "--device", "cpu", "--repeats", "2", *more], io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        print(json.dumps([ended.code, said.getvalue()]))
"""


def run(*scripts: tuple[Path | str, ...]) -> list[tuple[int, str]]:
    """(exit code, text) of each script and its options, in one process: most of the time is PyTorch's import."""
    asked = json.dumps([[str(each) for each in script] for script in scripts])
    done = subprocess.run([PYTHON, "-c", RUN_ALL, asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def files(folder: Path) -> list[tuple[Path]]:
    return [(path,) for path in sorted(folder.iterdir())]


@torch_only
def test_a_script_runs_and_yields_the_recorded_shapes(tmp_path: Path) -> None:
    write_scripts(op_scripts(Builder().mm(16, 8, 4, 0, 10, 5).trace(), op="aten::mm"), tmp_path / "ops")
    ((code, output),) = run(*files(tmp_path / "ops"))
    assert code == 0
    assert output.startswith("aten::mm [16, 8]; [8, 4] -> [16, 4]   (1 calls, 100.0 % of the op's device time)\n")
    assert "measured now on cpu" in output
    assert "5.00 us mean kernel time of the recording" in output


@torch_only
def test_a_script_judges_candidates(tmp_path: Path) -> None:
    built = two_products()
    built.op("aten::add_", 300, 9, **{"Input Dims": [[8], [8], []], "Input type": ["float", "float", "Scalar"],
                                      "Concrete Inputs": ["", "", "2"]})  # fmt: skip
    built.launch(301, "add", 310, 9)
    write_scripts(op_scripts(built.trace(), top=2), tmp_path / "ops")
    (mm,), (add,) = files(tmp_path / "ops")
    (tmp_path / "right.py").write_text(
        "import torch\n"
        "def mm(self, mat2): return torch.einsum('ik,kj->ij', self, mat2)\n"
        "def add_(self, other, *, alpha): self.copy_(self + alpha * other); return self\n"
    )
    (tmp_path / "wrong.py").write_text(
        "import torch\n"
        "def mm(self, mat2): return self[:, 1:] @ mat2[1:]\n"
        "def add_(self, other, *, alpha): return self + alpha * other\n"
    )
    (tmp_path / "empty.py").write_text("")
    asked = [(script, "--candidate", tmp_path / f"{name}.py") for name in ("right", "wrong") for script in (mm, add)]
    right, right_, wrong, wrong_, none = run(*asked, (mm, "--candidate", tmp_path / "empty.py"))
    assert (right[0], right_[0], wrong[0], wrong_[0], none[0]) == (0, 0, 1, 1, 2)
    assert "right for 2 distinct calls, 100.0 % of the op's device time in the recording\nthe op: " in right[1]
    assert right[1].endswith("measured on a CPU; recorded on mi300x\n")
    assert "elements are wrong" in wrong[1]
    assert "result 2: 8 of 8 elements are wrong" in wrong_[1]
    assert "as fast" not in wrong[1] + wrong_[1]
    assert none[1].endswith("empty.py has no function mm\n")


@torch_only
def test_a_script_says_in_a_sentence_what_is_missing(tmp_path: Path) -> None:
    built = Builder().op("fbgemm::f", 0, 9, **{"Input Dims": [[4]], "Input type": ["float"]}).launch(1, "f", 20, 9)
    clamped = {"Input Dims": [[4], []], "Input type": ["float", "Scalar"]}
    built.op("aten::clamp_min", 30, 9, **clamped).launch(31, "clamp", 50, 8)
    built.op("aten::index", 60, 9, **{"Input Dims": [[4], []], "Input type": ["float", ""]}).launch(61, "i", 80, 7)
    built.op("aten::relu", 90, 9, **{"Input Dims": [[1 << 50]], "Input type": ["float"]}).launch(91, "r", 110, 6)
    write_scripts(op_scripts(built.trace(), top=4), tmp_path / "ops")
    unknown, clamp, index, large = run(*files(tmp_path / "ops"))
    assert [code for code, _ in (unknown, clamp, index, large)] == [2, 0, 2, 2]
    assert "PyTorch has no such op here; name the library that registers it with --import" in unknown[1]
    head, taken, *_ = clamp[1].splitlines()
    assert head.startswith("aten::clamp_min [4]; None -> [4]")
    assert taken == "not recorded, so taken as: min=1"
    assert "cannot be called here: indices was not recorded" in index[1]
    assert "not enough memory on cpu: its tensors take 4503599.63 GB" in large[1]


@torch_only
@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "h100/gaunernst_bert-small-uncased__1016001",
        "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto",
        "perf_model/normalization/normalization_layer_test",
    ],
)
def test_the_ops_of_real_traces_run_and_yield_recorded_shapes(real_trace: RealTrace, name: str, tmp_path: Path) -> None:
    """Each result is what some recorded call takes, so its shape is among those of the trace."""
    trace = real_trace(name)
    table = trace.table
    shapes = {shape for row in table.rows_of((Kind.CPU_OP,)).tolist() for shape in table.signature_of(row).shapes or ()}
    write_scripts(op_scripts(trace, top=60), tmp_path / "ops")
    for _, output in run(*files(tmp_path / "ops")):
        for line in output.splitlines():
            _, arrow, result = line.partition("   (")[0].partition(" -> ")
            for shape in nested(json.loads(result.replace("None", "[]"))) if arrow else ():
                assert not shape or tuple(shape) in shapes, output
            assert "cannot be called here" not in line or "has no implementation for cpu" in line


def nested(result: Any) -> list[Any]:
    return result if result and isinstance(result[0], list) else [result]


@torch_only
@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize("name", ["h100/gaunernst_bert-small-uncased__1016001"])
def test_every_op_of_a_real_trace_is_a_right_candidate_for_itself_and_a_wrong_one_when_it_is_off(
    real_trace: RealTrace, name: str, tmp_path: Path
) -> None:
    """Off: an element of the first result in eight is 10 % larger, or the other of two answers."""
    write_scripts(op_scripts(real_trace(name), top=60), tmp_path / "ops")
    asked = []
    for (script,) in files(tmp_path / "ops"):
        said = recorded(script.read_text())
        op = f"torch.ops.{said['namespace']}.{said['name']}"
        (tmp_path / f"right_{script.name}").write_text(f"import torch\n{said['name']} = {op}\n")
        (tmp_path / f"wrong_{script.name}").write_text(
            f"import torch\ndef {said['name']}(*given, **named):\n"
            f"    result = {op}(*given, **named)\n"
            f"    first = result[0] if isinstance(result, (list, tuple)) else result\n"
            f"    off = first.reshape(-1)[::8]\n"
            f"    off.copy_(off * 1.1 if off.dtype.is_floating_point else ~off)\n"
            f"    return result\n"
        )
        asked += [(script, "--candidate", tmp_path / f"{kind}_{script.name}") for kind in ("right", "wrong")]
    outcomes = run(*asked)
    for (right, _), (wrong, said) in zip(outcomes[::2], outcomes[1::2], strict=True):
        assert (right, wrong) in ((0, 1), (2, 1), (2, 2)), said
