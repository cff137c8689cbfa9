"""A file written for TraceLens is never worse than none: its classes' figures, its ops in the tree, ours elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.conftest import part
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.verdict.verdict import summarize
from tracelens.extensions import load_extension
from tracelens.laboratory import amd_tracelens_tree

Build = Callable[[], Any]
T, IN, OUT = 1024, 512, 2048
PRODUCT = 2 * T * IN * OUT
B, S, H, D = 2, 256, 8, 64
GROUPS = 4
BF16 = "c10::BFloat16"

FILE = """
import math
from TraceLens.PerfModel import GEMM, GroupedGemm, Normalization, SDPA, extract_sdpa_cfg, name2bpe


def tree_postprocess_extension(tree):
    print("noise of a hook")
    for uid in list(tree.name2event_uids["_LayerNormLinear"]):
        ahead = tree.get_UID2event(uid)
        x, scale, weight = (ahead["args"]["Input Dims"][i] for i in (0, 1, 3))
        rows = math.prod(x[:-1])
        (back,) = [tree.get_UID2event(b) for b in ahead.get("bwd_events") or tree.get_subtree_bwd_events(uid)]
        back["args"]["norm_shape"] = x
        put(tree, ahead, 1, "_LayerNormLinear_yfwd_mm", [[rows, x[-1]], weight[::-1]])
        put(tree, back, 0, "_LayerNormLinearBackward_xgrad_mm", [[rows, weight[0]], weight])
        put(tree, back, 1, "_LayerNormLinearBackward_wgrad_mm", [[weight[0], rows], [rows, x[-1]]])


def put(tree, call, place, name, dims):
    kernel = tree.get_UID2event(call["gpu_events"][place])
    launch = tree.get_parent_event(kernel)
    above = tree.get_parent_event(launch)
    uid = len(tree.events)
    made = {
        "UID": uid, "ph": "X", "cat": "cpu_op", "name": name, "pid": above["pid"], "tid": above["tid"],
        "args": {"Input Dims": dims, "Input type": ["c10::BFloat16"] * 2, "Input Strides": [], "Concrete Inputs": []},
        "parent": above["UID"], "children": [launch["UID"]], "gpu_events": [kernel["UID"]],
    }
    tree.events.append(made)
    tree.events_by_uid[uid] = made
    tree.seq_num2event_uids_map[call["args"]["Sequence number"]].append(uid)
    above["children"].remove(launch["UID"])
    above["children"].append(uid)
    launch["parent"] = uid


class product(GEMM):
    @staticmethod
    def get_param_details(event):
        (m, k), (_, n) = event["args"]["Input Dims"]
        return {"M": m, "N": n, "K": k, "bias": False, "dtype_A_B": tuple(event["args"]["Input type"])}

    def flops_bwd(self):
        raise NotImplementedError("no backward of a single product")


class norm(Normalization):
    category = "NORM_fwd"

    @staticmethod
    def get_param_details(event):
        shape = tuple(event["args"]["Input Dims"][0])
        return {
            "op_shape": shape, "num_channels": shape[-1], "has_bias": False, "is_affine": True, "is_training": True,
            "dtype_in_out": (event["args"]["Input type"][0], None),
        }


class norm_backward(norm):
    category = "NORM_bwd"

    @staticmethod
    def get_param_details(event):
        if "norm_shape" not in event["args"]:
            raise ValueError("the hook did not run")
        args = {**event["args"], "Input Dims": [event["args"]["norm_shape"]]}
        return norm.get_param_details({"args": args})


class attention(SDPA):
    @staticmethod
    def get_param_details(event):
        q, k, v = event["args"]["Input Dims"][9:12]
        return {**extract_sdpa_cfg(q, k, v, (1, 2, 0, 3)), "causal": True}

    def flops_bwd(self):
        return 1000 * self.flops()

    def bytes_bwd(self):
        return 10 * self.bytes()


class groups(GroupedGemm):
    @staticmethod
    def get_param_details(event):
        (m, k), (g, _, n) = event["args"]["Input Dims"][:2]
        width = name2bpe(event["args"]["Input type"][0])
        return {"M": m, "K": k, "N": n, "G": g, "bpe_in": width, "bpe_out": 2}


perf_model_extension = {
    "_LayerNormLinear_yfwd_mm": product, "_LayerNormLinearBackward_xgrad_mm": product,
    "_LayerNormLinearBackward_wgrad_mm": product, "_LayerNormLinear": norm,
    "_LayerNormLinearBackward": norm_backward, "FusedAttnFunc": attention, "GroupedGemm": groups,
}
op_category_extension = {"FusedAttnFuncBackward": "SDPA_bwd", "GroupedGemmBackward": "GroupedGEMM_bwd"}
"""


def arguments(*slots: tuple[int, ...] | str) -> dict[str, Any]:
    return {
        "Input Dims": [list(slot) if isinstance(slot, tuple) else [] for slot in slots],
        "Input type": [BF16 if isinstance(slot, tuple) and slot else "" for slot in slots],
        "Concrete Inputs": [slot if isinstance(slot, str) else "" for slot in slots],
    }


def training(build: Build) -> Any:
    """A normalized linear layer, attention and a grouped GEMM, and the backward of each; kernels of 10 us."""
    made, at, us = build(), 0, 1000
    calls = {
        "_LayerNormLinear": (arguments((T // 4, 4, IN), (IN,), (), (OUT, IN), "", "", "", "False"), 2),
        "FusedAttnFunc": (arguments(*["True"] * 9, *[(S, B, H, D)] * 3), 1),
        "GroupedGemm": (arguments((T, IN), (GROUPS, IN, OUT), (GROUPS,), "False"), 1),
    }
    gradients = {
        "_LayerNormLinear": (arguments((T // 4, 4, OUT)), ("nvjet_x", "nvjet_w", "ln_bwd_kernel")),
        "FusedAttnFunc": (arguments((S, B, H * D)), ("fmha_bwd",)),
        "GroupedGemm": (arguments((T, OUT)), ("grouped_bwd",)),
    }
    for number, (name, (recorded, kernels)) in enumerate(calls.items()):
        made.op(name, at, 50, **recorded, **{"Sequence number": number})
        names = ("ln_fwd_kernel", "nvjet_y")[:kernels] if kernels == 2 else (f"{name}_kernel",)
        for k, kernel in enumerate(names):
            made.launch(at + 1 + k, kernel, us, 10)
            us += 20
        at += 100
    for number, (name, (recorded, kernels)) in enumerate(gradients.items()):
        engine = f"autograd::engine::evaluate_function: {name}Backward"
        made.op(engine, at, 80, 2, **{"Sequence number": number})
        made.op(f"{name}Backward", at + 1, 70, 2, **recorded, **{"Sequence number": number})
        for k, kernel in enumerate(kernels):
            made.launch(at + 2 + k, kernel, us, 10, tid=2)
            us += 20
        at += 100
    return made.trace()


def analyzed(build: Build, tmp_path: Path, text: str | None = FILE) -> Analysis:
    extensions = ()
    if text is not None:
        path = tmp_path / "written_for_tracelens.py"
        path.write_text(text, encoding="utf-8")
        extensions = (load_extension(path),)
    return analyze(training(build), AnalysisOptions(extensions=extensions))


def rows(found: Analysis) -> pd.DataFrame:
    assert found.trace.tree.self_check() == []
    table = found.frames["unified_perf_summary"]
    assert table["kernel_us_sum"].sum() == pytest.approx(found.activity.duration.sum() / 1e3)
    return table.set_index("name")


def test_the_backward_of_attention_and_of_a_grouped_gemm_have_the_classes_own_figures(build: Build, tmp_path: Path):
    found = rows(analyzed(build, tmp_path))
    # a causal mask: S (S + 1) / 2 pairs per head, two products of width D each
    pairs = B * H * S * (S + 1) // 2
    assert found.loc["FusedAttnFunc", "gflops"] * 1e9 == pytest.approx(2 * pairs * 2 * D)
    assert found.loc["FusedAttnFuncBackward", "gflops"] * 1e9 == pytest.approx(1000 * 2 * pairs * 2 * D)
    assert found.loc["FusedAttnFuncBackward", "hbm_mb"] == pytest.approx(10 * found.loc["FusedAttnFunc", "hbm_mb"])
    assert found.loc["FusedAttnFuncBackward", "category"] == "SDPA_bwd"
    assert found.loc["GroupedGemmBackward", "gflops"] * 1e9 == pytest.approx(2 * 2 * T * IN * OUT)
    assert found.loc["GroupedGemmBackward", "category"] == "GroupedGEMM_bwd"
    assert found.loc["GroupedGemmBackward", "note"] == "as the backward of GroupedGemm"


def test_the_precision_is_that_of_the_calls_first_tensor_where_the_class_says_none(build: Build, tmp_path: Path):
    found = rows(analyzed(build, tmp_path))
    assert set(found.loc[["GroupedGemm", "FusedAttnFunc", "GroupedGemmBackward"], "compute_spec"]) == {"matrix_bf16"}


def test_ops_that_a_hook_puts_round_launches_are_rows_and_the_rest_of_the_call_has_its_own_model(
    build: Build, tmp_path: Path
):
    found = rows(analyzed(build, tmp_path))
    assert found["kernel_us_sum"].to_dict() == {
        "_LayerNormLinear_yfwd_mm": 10, "_LayerNormLinear": 10, "FusedAttnFunc": 10, "GroupedGemm": 10,
        "_LayerNormLinearBackward_xgrad_mm": 10, "_LayerNormLinearBackward_wgrad_mm": 10,
        "_LayerNormLinearBackward": 10, "FusedAttnFuncBackward": 10, "GroupedGemmBackward": 10,
    }  # fmt: skip
    products = [name for name in found.index if str(name).endswith("_mm")]
    assert (found.loc[products, "gflops"] * 1e9).tolist() == pytest.approx([PRODUCT] * 3)
    assert set(found.loc[products, "model"]) == {"product"}
    assert found.loc["_LayerNormLinear", "category"] == "NORM_fwd"
    assert found.loc["_LayerNormLinearBackward", "category"] == "NORM_bwd"


def gemm_us(found: Analysis) -> float:
    table = rows(found)
    return float(table.loc[(table["category"] == "GEMM") & table["has_perf_model"], "kernel_us_sum"].sum())


#: No hook; a hook that fails at once, after a change, or that finds no calls; classes that fail.
VARIANTS = {
    "as it is": FILE,
    "without its hook": FILE.replace("def tree_postprocess_extension", "def not_the_hook"),
    "a hook that fails": FILE.replace('print("noise of a hook")', 'raise SystemExit("no")'),
    "a hook that fails half-way": FILE.replace(" = x\n", ' = x\n        raise KeyError("x")\n'),
    "a class that fails": FILE.replace("q, k, v = ", "q, k, v, w = "),
}


@pytest.mark.parametrize("text", part(list(VARIANTS.values()), 5), ids=VARIANTS)
def test_a_file_is_never_worse_than_none(build: Build, tmp_path: Path, text: str):
    without, with_it = analyzed(build, tmp_path, None), analyzed(build, tmp_path, text)
    assert gemm_us(with_it) >= gemm_us(without) == 30
    known = rows(without).pipe(lambda table: table[table["has_perf_model"]]).index
    assert rows(with_it).loc[known, "has_perf_model"].all()
    assert (rows(with_it).loc[known, "gflops"] > 0).all()


def test_the_gemms_of_a_call_that_stays_whole_are_not_counted_as_its_norm(build: Build, tmp_path: Path):
    made = build()
    recorded = arguments((T // 4, 4, IN), (IN,), (), (OUT, IN), "", "", "", "False")
    made.op("_LayerNormLinear", 0, 50, **recorded)
    for k, kernel in enumerate(("ln_fwd_kernel", "nvjet_1", "nvjet_2")):
        made.launch(1 + k, kernel, 100 + 20 * k, 10)
    path = tmp_path / "written_for_tracelens.py"
    path.write_text(VARIANTS["without its hook"], encoding="utf-8")
    found = rows(analyze(made.trace(), AnalysisOptions(extensions=(load_extension(path),)), on_demand=True))
    assert found.groupby("category")["kernel_us_sum"].sum().to_dict() == {"NORM_fwd": 10, "GEMM": 20}


def test_a_hook_that_fails_costs_only_what_it_would_change_and_is_said(build: Build, tmp_path: Path):
    found = analyzed(build, tmp_path, VARIANTS["a hook that fails half-way"])
    texts = [notice.text for notice in summarize(found).notices if notice.id == "extension_failed"]
    assert any("which stay as recorded" in text and "KeyError" in text for text in texts)


def test_a_class_that_fails_leaves_its_ops_to_the_model_that_it_replaced(build: Build, tmp_path: Path):
    found = analyzed(build, tmp_path, VARIANTS["a class that fails"])
    row = rows(found).loc["FusedAttnFunc"]
    assert row["model"] == "FusedAttention"
    texts = [notice.text for notice in summarize(found).notices if notice.id == "extension_failed"]
    assert any("FusedAttnFunc, which has the model that the extension replaced" in text for text in texts)


def test_a_hook_that_does_not_end_is_stopped(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(amd_tracelens_tree, "HOOK_LIMIT_S", 0.2)
    text = FILE.replace('print("noise of a hook")', "while True: pass")
    found = analyzed(build, tmp_path, text)
    assert any("not done after 0.2 s of processor time" in failure.error for failure in found.failures)
    assert gemm_us(found) == 30


def test_what_a_hook_prints_is_not_among_the_answers(build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    analyzed(build, tmp_path)
    assert "noise" not in capsys.readouterr().out


def test_an_op_that_cannot_stand_in_the_recorded_calls_is_left_out_and_said(build: Build, tmp_path: Path):
    text = FILE.replace('"children": [launch["UID"]]', '"children": [above["UID"]]')
    found = analyzed(build, tmp_path, text)
    texts = [notice.text for notice in summarize(found).notices if notice.id == "whole_calls"]
    assert any("_LayerNormLinear_yfwd_mm, made by tree_postprocess_extension" in text for text in texts)
    assert gemm_us(found) == 30


def test_a_hook_may_rename_a_call_and_change_its_arguments(build: Build, tmp_path: Path):
    text = FILE.split("def tree_post")[0] + (
        "def tree_postprocess_extension(tree):\n"
        '    for uid in tree.name2event_uids["GroupedGemm"]:\n'
        "        event = tree.get_UID2event(uid)\n"
        f'        event["name"] = "aten::mm"\n'
        f'        event["args"]["Input Dims"] = [[{T}, {IN}], [{IN}, 8]]\n'
    )
    found = rows(analyzed(build, tmp_path, text))
    assert found.loc["aten::mm", "gflops"] * 1e9 == pytest.approx(2 * T * IN * 8)
