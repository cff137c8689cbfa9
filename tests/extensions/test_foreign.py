"""Extensions written for TraceLens load as they are."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.reading.catalog import Catalog
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.extensions import load_extension
from tracelens.perf_models import EPComm, Normalization
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

FILE = """
import math
from TraceLens.PerfModel import EPComm, GEMM, Normalization, SDPA, UnaryElementwise, extract_sdpa_cfg, name2bpe
from TraceLens.PerfModel.perf_model import SomethingElse


class my_gemm(GEMM):
    @staticmethod
    def get_param_details(event):
        (m, k), (_, n) = event["args"]["Input Dims"][:2]
        return {"M": m, "N": n, "K": k, "bias": False, "dtype_A_B": tuple(event["args"]["Input type"][:2])}

    def bytes(self):
        width = name2bpe(self.param_details["dtype_A_B"][0])
        return super().bytes(bpe_mat1=width, bpe_mat2=width, bpe_bias=width, bpe_output=2)


class my_attention(SDPA):
    @staticmethod
    def get_param_details(event):
        q, k, v = event["args"]["Input Dims"][:3]
        return {**extract_sdpa_cfg(q, k, v, (0, 2, 1, 3)), "causal": True, "dropout": 0.0, "flash_impl": True}


class my_exchange(EPComm):
    @staticmethod
    def get_param_details(event):
        return {}


class my_copy(UnaryElementwise):
    @staticmethod
    def get_param_details(event):
        return {"op_shape": tuple(event["args"]["Input Dims"][0]), "dtype_in_out": (event["args"]["Input type"][0], None)}


class my_norm(Normalization):
    category = "NORM_bwd"

    @staticmethod
    def get_param_details(event):
        shape = tuple(event["args"]["Input Dims"][0])
        return {
            "op_shape": shape, "dtype_in_out": (event["args"]["Input type"][0], None), "num_channels": shape[-1],
            "has_bias": True, "is_affine": True, "is_training": True,
        }

    def flops(self):
        mask = [True, self.is_affine, self.has_bias]
        return self.flops_func_bwd(self.has_bias, self.is_affine, True, self.num_elems, self.num_channels, mask)


class my_own(SomethingElse):
    category = "MINE"

    @staticmethod
    def get_param_details(event):
        return {"n": math.prod(event["args"]["Input Dims"][0])}

    def flops(self):
        return 7 * self.n

    def bytes(self):
        return 3 * self.param_details["n"]


class broken(GEMM):
    pass


def tree_postprocess_extension(tree):
    raise RuntimeError("not to be run")


perf_model_extension = {
    "my::gemm": my_gemm, "my::attention": my_attention, "MyDispatch": my_exchange, "my::copy": my_copy,
    "my::own": my_own, "my::norm": my_norm, "my::broken": broken,
}
dict_cat2names_extension = {"SDPA_fwd": ["my::attention"], "Reduce": ["my::sum"]}
"""
BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fn"


def written(tmp_path: Path, text: str = FILE) -> Path:
    path = tmp_path / "for_tracelens.py"
    path.write_text(text, encoding="utf-8")
    return path


def catalog(tmp_path: Path) -> Catalog:
    return Catalog((load_extension(written(tmp_path)),))


def call(name: str, *shapes: tuple[int, ...], dtype: str = BF16) -> OpSignature:
    return OpSignature(name=name, shapes=shapes, dtypes=(dtype,) * len(shapes), scalars=("",) * len(shapes))


def test_a_class_counts_what_it_counted_there(tmp_path: Path):
    found = catalog(tmp_path).read(call("my::gemm", (8, 16), (16, 32), dtype=FP8))
    assert found.model is not None
    assert (found.category, found.model.engine, found.model.compute_dtype) == ("GEMM", "matrix", DType.FP8_E4M3FN)
    assert found.model.flops() == 2 * 8 * 16 * 32
    assert found.model.hbm_bytes() == 8 * 16 + 16 * 32 + 2 * 8 * 32
    assert found.model.parameters()["M"] == 8


def test_base_classes_have_their_formulas(tmp_path: Path):
    read = catalog(tmp_path).read
    heads = (2, 128, 4, 64)
    attention = read(call("my::attention", heads, heads, heads)).model
    assert attention is not None
    assert attention.flops() == 2 * 2 * 4 * (128 * 129 // 2) * (64 + 64)
    copied = read(call("my::copy", (8, 4))).model
    assert copied is not None
    assert (copied.flops(), copied.hbm_bytes()) == (32, 32 * 4)
    norm = read(call("my::norm", (8, 4))).model
    own = Normalization(shape=(8, 4), channels=4, statistics=8, weight=True, bias=True, dtype=DType.BF16)
    assert norm is not None
    assert (norm.flops(), norm.hbm_bytes()) == (own.backward().flops(), own.hbm_bytes())


def test_an_unknown_base_leaves_the_counting_to_the_class(tmp_path: Path):
    found = catalog(tmp_path).read(call("my::own", (5, 2)))
    assert found.model is not None
    assert (found.category, found.model.flops(), found.model.hbm_bytes()) == ("MINE", 70, 30)


def test_an_exchange_of_tokens_crosses_the_interconnect(tmp_path: Path):
    found = catalog(tmp_path).read(call("MyDispatch", (100, 8)))
    assert found.model is not None
    assert (found.category, found.model.hbm_bytes(), found.model.wire_bytes()) == ("EP_Communication", None, 1600)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("MyDispatch", "dispatch"),
        ("MyCombine", "combine"),
        ("MyDispatchBackward", "combine"),
        ("MyCombineBackward", "dispatch"),
        ("MyExchange", None),
    ],
)
def test_a_gradient_goes_the_other_way(tmp_path: Path, name: str, phase: str | None):
    text = FILE.replace('"MyDispatch"', f'"{name}"')
    model = Catalog((load_extension(written(tmp_path, text)),)).read(call(name, (100, 8))).model
    assert model is not None
    assert model.phase == phase  # type: ignore[attr-defined]


def test_a_category_without_a_class_is_one(tmp_path: Path):
    text = FILE.replace('"Reduce": ["my::sum"]', '"Reduce": ["my::sum"], "Sort": ["my::sort"]')
    read = Catalog((load_extension(written(tmp_path, text)),)).read
    found = [read(call(name, (4,))).category for name in ("my::sum", "my::sort")]
    assert found == ["Reduce", "Sort"]


def test_a_class_that_fails_costs_its_op_and_says_so(tmp_path: Path):
    made = catalog(tmp_path)
    assert made.read(call("my::broken", (4, 4))).model is None
    assert "NotImplementedError: get_param_details" in made.failures[0].error


def test_loading_leaves_no_module_of_the_other_program_behind(tmp_path: Path):
    load_extension(written(tmp_path))
    assert not [name for name in sys.modules if name.partition(".")[0] == "TraceLens"]


def test_what_a_file_adds_and_what_of_it_is_not_used_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["extensions", "check", str(written(tmp_path, FILE + "kernel_filters = {}\n"))]) == 0
    printed = capsys.readouterr().out
    assert "my::gemm" in printed
    assert re.search(r"for_tracelens\.py:\d+ \(tree_postprocess_extension\)", printed)
    assert "kernel_filters not used" in printed


def test_a_file_may_hold_a_hook_alone(tmp_path: Path):
    found = load_extension(written(tmp_path, "def tree_postprocess_extension(tree):\n    pass\n"))
    assert [kind for kind, _, _ in found.additions()] == ["tree_postprocess_extension"]


COUNTING = """
from TraceLens.PerfModel import EPComm


class sent(EPComm):
    @staticmethod
    def get_param_details(event):
        tokens, hidden = event["args"]["Input Dims"][0]
        return {"num_tokens": tokens, "hidden_dim": hidden, "dtype": event["args"]["Input type"][0]}


class copies(sent):
    def bytes(self):
        return 7 * super().bytes()

    def bytes_bwd(self):
        return 5


class leaving(copies):
    def wire_bytes(self):
        return 3


class tokens_once(sent):
    counts_tokens_once = True


perf_model_extension = {"my_dispatch": KIND}
"""


def exchange(tmp_path: Path, kind: str) -> Catalog:
    return Catalog((load_extension(written(tmp_path, COUNTING.replace("KIND", kind))),))


@pytest.mark.parametrize(
    ("kind", "all_rows", "leaves", "back"),
    [
        ("sent", 1600, 1600, 1600),
        ("copies", 11_200, 11_200, 5),
        ("leaving", 11_200, 3, 5),
        ("tokens_once", 1600, 1600, 1600),
    ],
)
def test_bytes_of_an_exchange_are_those_that_its_class_counts(
    tmp_path: Path, kind: str, all_rows: float, leaves: float, back: float
):
    """100 tokens of 8 BF16 numbers are 1600 bytes."""
    model = exchange(tmp_path, kind).read(call("my_dispatch", (100, 8))).model
    assert isinstance(model, EPComm)
    assert (model.exchanged_bytes(), model.wire_bytes(), model.backward().exchanged_bytes()) == (all_rows, leaves, back)
    assert model.counts_bytes is (kind != "tokens_once")


@pytest.mark.parametrize(
    ("kind", "wire_mb", "remote_mb"), [("copies", 7, 7), ("leaving", 7, 3e-6), ("tokens_once", 1, 7 / 8)]
)
def test_a_report_multiplies_no_bytes_that_a_class_counts(tmp_path: Path, kind: str, wire_mb: float, remote_mb: float):
    """1 MB of tokens over 8 ranks; only where the class counts tokens once is the own rank's eighth taken off."""
    args = {"Input Dims": [[1000, 500]], "Input type": [BF16], "Concrete Inputs": [""], "Group size": 8}
    path = trace_of(tmp_path, "my_dispatch", args)
    extension = load_extension(written(tmp_path, COUNTING.replace("KIND", kind)))
    row = (
        analyze(load(path), AnalysisOptions(extensions=(extension,)), on_demand=True)
        .families["EP_Communication"]
        .iloc[0]
    )
    assert (row["wire_mb"], row["expected_remote_mb"]) == pytest.approx((wire_mb, remote_mb))
    assert (row["remote_from"] == "its perf model") is (kind != "tokens_once")


def trace_of(tmp_path: Path, name: str, args: dict[str, Any]) -> Path:
    """One call with one kernel."""
    host = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        {**host, "cat": "cpu_op", "name": name, "ts": 0, "dur": 20, "args": args},
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 5, "dur": 2, "args": {"correlation": 1}},
        {
            "ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": 30, "dur": 10, "name": "k",
            "args": {"correlation": 1, "device": 0, "stream": 7},
        },
    ]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


def test_a_report_uses_it(tmp_path: Path):
    args = {"Input Dims": [[64, 64], [64, 64]], "Input type": [BF16, BF16], "Concrete Inputs": ["", ""]}
    path = trace_of(tmp_path, "my::gemm", args)
    analysis = analyze(load(path), AnalysisOptions(extensions=(load_extension(written(tmp_path)),)), on_demand=True)
    row = analysis.frames["unified_perf_summary"].iloc[0]
    assert (row["name"], row["model"], row["has_perf_model"]) == ("my::gemm", "my_gemm", True)
    assert row["gflops"] == pytest.approx(2 * 64**3 / 1e9)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("perf_model_extension = [1]\n", "perf_model_extension is a list, not a dict"),
        ("perf_model_extension = {'a': 1}\n", "perf_model_extension['a'] is not a class"),
        ("dict_cat2names_extension = {'a': 'b'}\n", "dict_cat2names_extension['a'] is not a list of names"),
        ("perf_model_extension = {}\n", "its hooks name no op"),
    ],
)
def test_hooks_of_another_form_are_refused(tmp_path: Path, text: str, answer: str):
    with pytest.raises(UsageError) as refused:
        load_extension(written(tmp_path, text))
    assert answer in str(refused.value)
