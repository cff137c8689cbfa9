"""Ops that hold several operations are taken apart; a backward op without a binding costs what its forward says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.verdict.verdict import summarize
from tracelens.errors import SignatureError
from tracelens.extensions import load_extension
from tracelens.perf_models import GEMM, BackwardOf, InnerOp, OpCall, holds_ops, traced_as
from tracelens.types.signature import OpSignature

Build = Callable[[], Any]
T, IN, OUT = 1024, 512, 2048
PRODUCT = 2 * T * IN * OUT
BF16 = "c10::BFloat16"


def arguments(*slots: tuple[int, ...] | str) -> dict[str, Any]:
    """Tensors in BF16 by shape, scalars as recorded."""
    tensors = [isinstance(slot, tuple) for slot in slots]
    return {
        "Input Dims": [list(slot) if known else [] for slot, known in zip(slots, tensors, strict=True)],
        "Input type": [BF16 if known and slot else "" for slot, known in zip(slots, tensors, strict=True)],
        "Concrete Inputs": ["" if known else slot for slot, known in zip(slots, tensors, strict=True)],
    }  # fmt: skip


def linear(*, fp8: str = "False", tokens: int = T) -> dict[str, Any]:
    """(weight, input, bias, is_first_microbatch, fp8)."""
    return arguments((OUT, IN), (tokens // 4, 4, IN), (), "", fp8)


def unified(found: Analysis) -> pd.DataFrame:
    assert found.trace.tree.self_check() == []
    rows = found.frames["unified_perf_summary"]
    assert rows["kernel_us_sum"].sum() == pytest.approx(found.activity.duration.sum() / 1e3)
    return rows.set_index("name")


def forward(made: Any, at: float, kernels: tuple[str, ...] = ("cast_kernel", "nvjet_hsh_128x256"), **more: Any) -> None:
    made.op("_Linear", at, 50, **{"Sequence number": 7, **linear(), **more})
    for k, kernel in enumerate(kernels):
        made.launch(at + 1 + k, kernel, at + 20 + 10 * k, 2 + k)


def backward(
    made: Any, at: float, kernels: tuple[str, ...] = ("nvjet_a", "nvjet_b"), tid: int = 2, **more: Any
) -> None:
    made.op("autograd::engine::evaluate_function: _LinearBackward", at, 80, tid, **{"Sequence number": 7, **more})
    made.op("_LinearBackward", at + 1, 70, tid, **{"Sequence number": 7, **arguments((T // 4, 4, OUT)), **more})
    for k, kernel in enumerate(kernels):
        made.launch(at + 2 + k, kernel, at + 20 + 10 * k, 4 + k, tid=tid)


def test_the_gemm_of_a_linear_is_a_row_of_its_own_beside_the_other_kernels(build: Build):
    made = build()
    forward(made, 0)
    rows = unified(analyze(made.trace(), AnalysisOptions(), on_demand=True))
    assert rows.loc["_Linear_yfwd_mm", "gflops"] == pytest.approx(PRODUCT / 1e9)
    assert rows.loc["_Linear_yfwd_mm", "hbm_mb"] == pytest.approx(2 * (T * IN + IN * OUT + T * OUT) / 1e6)
    assert rows["kernel_us_sum"].to_dict() == {"_Linear_yfwd_mm": 3.0, "_Linear->cast_kernel (Synthetic Op)": 2.0}


def test_a_backward_is_the_inputs_gradient_then_the_weights(build: Build):
    made = build()
    forward(made, 0)
    backward(made, 100)
    rows = unified(analyze(made.trace(), AnalysisOptions(), on_demand=True))
    xgrad, wgrad = rows.loc["_LinearBackward_xgrad_mm"], rows.loc["_LinearBackward_wgrad_mm"]
    assert (xgrad["kernel_us_sum"], wgrad["kernel_us_sum"]) == (4.0, 5.0)
    assert xgrad["input_dims"] == f"(({T}, {OUT}), ({OUT}, {IN}))"
    assert wgrad["input_dims"] == f"(({OUT}, {T}), ({T}, {IN}))"
    assert xgrad["gflops"] == wgrad["gflops"] == pytest.approx(PRODUCT / 1e9)


def test_fp8_operands_have_one_byte_and_the_result_two(build: Build):
    made = build()
    forward(made, 0, **linear(fp8="True"))
    rows = unified(analyze(made.trace(), AnalysisOptions(), on_demand=True))
    assert rows.loc["_Linear_yfwd_mm", "hbm_mb"] == pytest.approx((T * IN + IN * OUT + 2 * T * OUT) / 1e6)
    assert rows.loc["_Linear_yfwd_mm", "compute_spec"] == "matrix_fp8_e4m3fn"


def test_a_gathered_input_has_the_rows_of_all_ranks(build: Build):
    made = build()
    made.op("_Linear", 0, 50, **linear())
    made.op("record_param_comms", 1, 5, **{"Collective name": "_allgather_base", "Out msg nelems": 8 * T * IN})
    made.launch(10, "nvjet_hsh", 20, 3)
    rows = unified(analyze(made.trace(), AnalysisOptions(), on_demand=True))
    assert rows.loc["_Linear_yfwd_mm", "gflops"] == pytest.approx(8 * PRODUCT / 1e9)


def test_another_number_of_gemms_leaves_the_call_whole_and_says_so(build: Build):
    made = build()
    forward(made, 0, kernels=("nvjet_a", "nvjet_b"))
    found = analyze(made.trace(), AnalysisOptions())
    assert unified(found).loc["_Linear", "kernel_us_sum"] == 5.0
    texts = [notice.text for notice in summarize(found).notices]
    assert "1 call could not be split into operations: _Linear: 2 GEMM kernels instead of 1" in texts


def test_version_1_keeps_the_gemms_that_it_records_itself(build: Build):
    made = build()
    made.op("_Linear", 0, 50, **linear()).op("tex_ts::te_gemm_ts", 1, 20).launch(2, "nvjet_a", 30, 3)
    assert list(unified(analyze(made.trace(), AnalysisOptions(), on_demand=True)).index) == ["tex_ts::te_gemm_ts"]


def test_recomputed_forwards_belong_to_their_backward_last_in_first_out(build: Build):
    """Two layers of 512 -> 2048 and 512 -> 1024 under one checkpoint: no sequence number leads to a forward."""
    narrow = arguments((1024, IN), (T // 4, 4, IN), (), "", "False")
    made = build()
    bare = {"Sequence number": -1}
    forward(made, 0, **bare)
    forward(made, 100, **bare, **narrow)
    made.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", 1000, 900, 2)
    made.op("CheckpointFunctionBackward", 1001, 890, 2)
    for at, sizes in ((1010, linear()), (1100, narrow)):
        made.op("_Linear", at, 50, 2, **sizes).launch(at + 1, "nvjet_a", at + 20, 1, tid=2)
    backward(made, 1300, **bare, **arguments((T // 4, 4, 1024)))
    backward(made, 1500, **bare, **arguments((T // 4, 4, OUT)))
    rows = analyze(made.trace(), AnalysisOptions(), on_demand=True).frames["unified_perf_summary"]
    xgrad = rows[rows["name"] == "_LinearBackward_xgrad_mm"]
    assert sorted(xgrad["input_dims"]) == [f"(({T}, 1024), (1024, {IN}))", f"(({T}, {OUT}), ({OUT}, {IN}))"]


def test_an_mlp_has_two_gemms_forward_and_four_backward(build: Build):
    """Hidden 512, gated: fc1 512 -> 4096, fc2 2048 -> 512."""
    sizes = arguments((T, IN), (IN,), (), (2 * OUT, IN), (), (IN, OUT), (), "1e-5", "", "False")
    made = build()
    made.op("_LayerNormMLP", 0, 50, **sizes, **{"Sequence number": 7})
    for k, kernel in enumerate(("ln_fwd_kernel", "nvjet_1", "swiglu_kernel", "nvjet_2")):
        made.launch(1 + k, kernel, 20 + 10 * k, 1)
    made.op("_LayerNormMLPBackward", 100, 70, 2, **arguments((T, IN)), **{"Sequence number": 7})
    for k in range(4):
        made.launch(101 + k, f"nvjet_{k}", 120 + 10 * k, 1 + k, tid=2)
    rows = unified(analyze(made.trace(), AnalysisOptions(), on_demand=True))
    assert rows.loc["_LayerNormMLP_fc1_yfwd_mm", "gflops"] == pytest.approx(2 * T * IN * 2 * OUT / 1e9)
    assert rows.loc["_LayerNormMLP_fc2_yfwd_mm", "gflops"] == pytest.approx(PRODUCT / 1e9)
    times = {name: us for name, us in rows["kernel_us_sum"].items() if "MLPBackward" in str(name)}
    assert times == {
        "_LayerNormMLPBackward_fc2_xgrad_mm": 1.0, "_LayerNormMLPBackward_fc2_wgrad_mm": 2.0,
        "_LayerNormMLPBackward_fc1_xgrad_mm": 3.0, "_LayerNormMLPBackward_fc1_wgrad_mm": 4.0,
    }  # fmt: skip
    assert rows.loc["_LayerNormMLPBackward_fc2_wgrad_mm", "input_dims"] == f"(({IN}, {T}), ({T}, {OUT}))"


def test_a_grouped_linear_reads_every_groups_weight_and_costs_twice_backward(build: Build):
    made = build()
    made.op("_GroupedLinear", 0, 50, **arguments((T, IN), "", "", *[(OUT, IN)] * 4), **{"Sequence number": 7})
    made.launch(1, "nvjet_1", 20, 3)
    made.op("_GroupedLinearBackward", 100, 50, 2, **arguments((T, OUT)), **{"Sequence number": 7})
    made.launch(101, "nvjet_2", 120, 3, tid=2)
    rows = unified(analyze(made.trace(), AnalysisOptions(), on_demand=True))
    assert rows["gflops"].to_dict() == pytest.approx(
        {"_GroupedLinear": PRODUCT / 1e9, "_GroupedLinearBackward": 2 * PRODUCT / 1e9}
    )
    assert rows["category"].to_dict() == {
        "_GroupedLinear": "GroupedGEMM_fwd", "_GroupedLinearBackward": "GroupedGEMM_bwd"
    }  # fmt: skip
    assert rows.loc["_GroupedLinear", "hbm_mb"] == pytest.approx(2 * (T * IN + 4 * IN * OUT + T * OUT) / 1e6)


def test_a_backward_op_without_a_binding_takes_its_forwards_backward(build: Build):
    """Apex' convolution with bias: x [2,3,8,8], w [5,3,3,3]; its backward records the gradient alone."""
    made = build()
    sizes = arguments((2, 3, 8, 8), (5, 3, 3, 3), (5,), "1", "1")
    made.op("ConvBias_", 0, 50, **sizes, **{"Sequence number": 3}).launch(1, "implicit_gemm_fprop", 20, 3)
    made.op("autograd::engine::evaluate_function: ConvBias_Backward", 100, 60, 2, **{"Sequence number": 3})
    made.op("ConvBias_Backward", 101, 50, 2, **arguments((2, 5, 8, 8)), **{"Sequence number": 3})
    made.launch(102, "implicit_gemm_dgrad", 120, 6, tid=2)
    rows = unified(analyze(made.trace(), AnalysisOptions(), on_demand=True))
    assert rows.loc["ConvBias_Backward", "category"] == "CONV_bwd"
    # dgrad and wgrad cost as the forward's products, and the bias' gradient one addition per element of dY
    products = 2 * 27 * 2 * 5 * 64
    assert rows.loc["ConvBias_Backward", "gflops"] * 1e9 == pytest.approx(2 * products + 2 * 5 * 64)
    assert rows.loc["ConvBias_Backward", "note"] == "as the backward of ConvBias_"


def test_a_gemm_has_two_gemms_as_its_backward(build: Build):
    @traced_as("my::gemm")
    def _read(op: OpSignature) -> GEMM:
        (m, k), (_, n) = op.shape(0, rank=2), op.shape(1, rank=2)
        return GEMM(m=m, n=n, k=k, dtype=op.dtype(0))

    made = build()
    made.op("my::gemm", 0, 50, **arguments((T, IN), (IN, OUT)), **{"Sequence number": 3}).launch(1, "my_kernel", 20, 3)
    made.op("MyGemmBackward", 100, 50, 2, **{"Sequence number": 3}).launch(101, "my_kernel_bwd", 120, 6, tid=2)
    rows = unified(analyze(made.trace(), AnalysisOptions(extensions=(load_extension(_read),)), on_demand=True))
    assert rows.loc["MyGemmBackward", "gflops"] == pytest.approx(2 * PRODUCT / 1e9)
    assert rows.loc["MyGemmBackward", "category"] == "GEMM"


def test_an_op_below_with_a_model_of_its_own_keeps_its_kernels(build: Build):
    made = build()
    made.mm(T, IN, OUT, at=0, start=20, duration=3)
    made.events[0]["args"]["Sequence number"] = 3
    made.op("MmBackward0", 100, 50, 2, **{"Sequence number": 3})
    made.mm(T, OUT, IN, at=101, start=120, duration=3, tid=2)
    made.events[-3]["tid"] = 2
    assert set(unified(analyze(made.trace(), AnalysisOptions(), on_demand=True)).index) == {"aten::mm"}


def test_look_ups_pair_with_their_backward_last_in_first_out(build: Build):
    lookup = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
    gradient = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"

    def sizes(indices: int) -> dict[str, Any]:
        slots: list[Any] = [()] * 22
        slots[1], slots[6], slots[11], slots[12], slots[20] = (1600,), (2,), (indices,), (5,), (10,)
        return arguments(*slots)

    made = build()
    for i, indices in enumerate((100, 300)):
        made.op(lookup, 100 * i, 50, **sizes(indices)).launch(100 * i + 1, "forward_kernel", 100 * i + 20, 1)
    for i in range(2):
        at = 1000 + 100 * i
        made.op(gradient, at, 50, 2, **arguments((4, 160)))
        made.op("aten::zero_", at + 1, 10, 2, **arguments((1,))).launch(at + 2, "fill_kernel", at + 20, 1, tid=2)
        made.launch(at + 15, "backward_kernel", at + 30, 2, tid=2)
    rows = analyze(made.trace(), AnalysisOptions(), on_demand=True).frames["unified_perf_summary"]
    rows = rows[rows["name"] == gradient].sort_values("example_row")
    # 5 operations per element of 160: 300 indices first, whose forward came last
    assert (rows["gflops"] * 1e9).tolist() == pytest.approx([5 * 300 * 160, 5 * 100 * 160])
    assert rows["kernel_us_sum"].tolist() == [3.0, 3.0]


def test_an_extension_that_fails_or_names_a_kernel_twice_costs_its_call_only(build: Build):
    @holds_ops("my::module")
    def _twice(call: OpCall) -> list[InnerOp]:
        return [InnerOp(kernel=0, signature=call.signature)] * 2

    made = build().op("my::module", 0, 50).launch(1, "my_kernel", 20, 3)
    found = analyze(made.trace(), AnalysisOptions(extensions=(load_extension(_twice),)))
    assert list(unified(found).index) == ["my::module"]
    assert "returned kernels [0, 0] for a call with 1" in found.failures[0].error


def test_inner_ops_see_the_ops_below_and_the_forward_of_a_marked_backward(build: Build):
    seen: list[OpCall] = []

    @holds_ops("MyBackward")
    def _look(call: OpCall) -> list[InnerOp]:
        seen.append(call)
        raise SignatureError("seen")

    made = build()
    made.op("my::forward", 0, 50, **arguments((8, 16))).launch(1, "my_kernel", 20, 3)
    made.op("MyBackward", 100, 50, 2).op("my::inner", 101, 20, 2, **arguments((4,)))
    made.launch(102, "my_kernel_bwd", 120, 3, tid=2)
    pairs = BackwardOf(forward="my::forward", names=("MyBackward",))
    analyze(made.trace(), AnalysisOptions(extensions=(load_extension(_look), load_extension(pairs))))
    (call,) = seen
    assert call.kernels == ("my_kernel_bwd",)
    assert [op.name for op in call.below] == ["my::inner"]
    assert call.forward is not None
    assert call.forward.shapes == ((8, 16),)
