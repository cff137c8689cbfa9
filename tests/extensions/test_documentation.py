"""The examples in docs/own_op.md and docs/extensions.md are run as written."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import tracelens
from tests.trace.event_texts import read_events
from tracelens.analysis.loaded_trace import Trace
from tracelens.extensions import bundled_extensions, bundled_names, load_extension, overlay
from tracelens.perf_models import OpCall
from tracelens.perf_models.base import PerfModel
from tracelens.registry import Registry
from tracelens.types.signature import OpSignature

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extensions.md"
EXAMPLES = [
    example
    for page in (PAGE.with_name("own_op.md"), PAGE)
    for example in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
]


MEGATRON, MEGATRON_TEST, NOTEBOOK, FIRST, CLASS, INNER, RULE, SHEET = range(8)


def test_there_are_eight_examples():
    assert len(EXAMPLES) == 8


def test_a_new_op_is_four_lines_and_its_test_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_dispatch.py").write_text(EXAMPLES[MEGATRON], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_dispatch", raising=False)
    lines = EXAMPLES[MEGATRON].partition("@")[2].strip().splitlines()
    assert len(lines) == 4
    test = tmp_path / "test_my_dispatch.py"
    test.write_text(EXAMPLES[MEGATRON_TEST], encoding="utf-8")
    runpy.run_path(str(test))["test_a_dispatch_sends_every_token_once"]()
    monkeypatch.delitem(sys.modules, "my_dispatch")


def test_the_new_op_is_in_a_report_of_a_trace_that_has_it(tmp_path: Path):
    path = tmp_path / "my_dispatch.py"
    path.write_text(EXAMPLES[MEGATRON], encoding="utf-8")
    args = {"Input Dims": [[4096, 7168]], "Input type": ["c10::BFloat16"], "Concrete Inputs": [""]}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "DeepEPDispatch", "pid": 1, "tid": 1, "ts": 0, "dur": 20, "args": args},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 1,
         "args": {"correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "deep_ep::intranode::dispatch", "pid": 0, "tid": 7, "ts": 30, "dur": 200,
         "args": {"correlation": 7, "stream": 7}},
    ]  # fmt: skip
    trace = Trace.of(read_events(events))
    sheet = tracelens.report(trace, extensions=[path], bundled=False)["EP_Communication"]
    assert sheet["name"].tolist() == ["DeepEPDispatch"]


def test_the_products_of_a_module_are_taken_apart(tmp_path: Path):
    path = tmp_path / "my_ops.py"
    path.write_text(EXAMPLES[INNER], encoding="utf-8")
    extension = load_extension(path)
    reader = overlay(Registry("holds_ops", {}), [extension])["my_lib::swiglu_mlp"].target
    bindings = overlay(Registry("traced_as", {}), [extension])
    signature = OpSignature(
        name="my_lib::swiglu_mlp", shapes=((64, 32), (48, 32), (32, 48)), dtypes=("c10::BFloat16",) * 3
    )
    inner = reader(OpCall(signature=signature, kernels=("my_gemm_1", "silu", "my_gemm_2")))
    assert [op.kernel for op in inner] == [0, 2]
    assert [bindings[op.signature.name].target(op.signature).flops() for op in inner] == [2 * 64 * 48 * 32] * 2


@pytest.mark.parametrize("number", [MEGATRON, FIRST, CLASS, INNER, RULE, SHEET, NOTEBOOK])
def test_each_example_is_an_extension(number: int, tmp_path: Path):
    path = tmp_path / f"example_{number}.py"
    path.write_text(EXAMPLES[number], encoding="utf-8")
    assert load_extension(path).additions()


def test_the_first_example_reads_what_its_comments_say(tmp_path: Path):
    path = tmp_path / "my_ops.py"
    path.write_text(EXAMPLES[FIRST], encoding="utf-8")
    extension = load_extension(path)
    bindings = overlay(Registry("traced_as", {}), [extension])

    def read(name: str, *shapes: tuple[int, ...]) -> PerfModel:
        signature = OpSignature(name=name, shapes=shapes, dtypes=("c10::BFloat16",) * len(shapes))
        return bindings[name].target(signature)

    assert read("my_lib::linear", (64, 32), (16, 32)).flops() == 2 * 64 * 16 * 32
    assert read("my_lib::combine", (64, 32)).wire_bytes() == 64 * 32 * 2
    assert {kind for kind, _, _ in extension.additions()} == {"traced_as", "category", "kernel_pattern"}


def test_the_page_names_every_bundled_extension_and_its_main_ops():
    page = PAGE.read_text(encoding="utf-8")
    assert [extension.name for extension in bundled_extensions()] == [
        n for n in bundled_names() if f"| `{n}` |" in page
    ]
    known = {name for extension in bundled_extensions() for name in extension.traced_names}
    for name in (
        "DeepEPDispatch",
        "DeepEPCombine",
        "GroupedGemm",
        "MoEDispatch",
        "tex_ts::te_gemm_ts",
        "FusedAttnFunc",
    ):
        assert name in known
        assert f"`{name}`" in page
