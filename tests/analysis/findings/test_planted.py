"""One bottleneck planted in a small trace: it is the first finding, with its gain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.analysis.conftest import MI300X, Builder
from tests.analysis.work.test_rates import H100, add, found
from tracelens.analysis.verdict.summary import Finding
from tracelens.analysis.verdict.verdict import summarize
from tracelens.laboratory.report_laws import each_number_of_a_finding_is_a_figure

Build = Callable[[], Any]
#: A GEMM of 4096^3 takes 194 µs at an MI300X's 708 TFLOPS/s: near what the tile model expects.
HEALTHY_US = 210.0
A100 = {**H100, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "numSms": 108}


def first(b: Builder, device: dict[str, Any] = MI300X) -> Finding:
    return found(b, device).findings[0]


def healthy(b: Builder, start: float, at: float = 0.0) -> Builder:
    """Work without much to gain, before what is planted."""
    return b.mm(4096, 4096, 4096, at=at, start=start, duration=HEALTHY_US)


def copy(b: Builder, dims: list[int], types: tuple[str, str], at: float, start: float, strides: Any = None) -> Builder:
    args = {"Input Dims": [dims, dims, []], "Input type": [*types, "Scalar"], "Concrete Inputs": ["", "", "False"],
            "Input Strides": [*(strides or [[dims[1], 1]] * 2), []]}  # fmt: skip
    return b.op("aten::copy_", at, 5, **args).launch(at + 1, "void at::native::elementwise_kernel", start, 100)


def test_casts(build: Build) -> None:
    """Three casts of 100 µs with a GEMM between each two, so that they are no chain."""
    b = build()
    for i in range(3):
        healthy(b, 100 + 310 * i, at=20 * i)
        copy(b, [4096, 4096], ("c10::BFloat16", "float"), 20 * i + 10, 310 + 310 * i)
    finding = first(b)
    assert (finding.id, finding.gain_us) == ("type_casts", pytest.approx(300))
    assert finding.why == "3 casts take 32 % of GPU time only to change a tensor's type"


def test_copies_into_another_layout(build: Build) -> None:
    b = build()
    for i in range(2):
        healthy(b, 100 + 310 * i, at=20 * i)
        copy(b, [4096, 2048], ("float", "float"), 20 * i + 10, 310 + 310 * i, [[2048, 1], [1, 4096]])
    finding = first(b)
    assert (finding.id, finding.gain_us) == ("layout_copies", pytest.approx(200))
    # an expanded source, or a copy that keeps the layout, is none
    same = copy(healthy(build(), 100), [4096, 2048], ("float", "float"), 20, 310)
    assert "layout_copies" not in {f.id for f in found(same).findings}


def test_a_loop_over_parameters_in_the_optimizer(build: Build) -> None:
    """Adam's passes over four parameters of 16 M elements each: 60, 60, 60 and 80 µs."""
    b = healthy(build(), 10)
    b.op("Optimizer.step#AdamW.step", 50, 400, cat="user_annotation")
    args = {"Input Dims": [[4096, 4096]] * 3, "Input type": ["float"] * 3, "Input Strides": [[4096, 1]] * 3}
    start, at = 220.0, 60.0
    for _ in range(4):
        for name, took in (("lerp_", 60), ("mul_", 60), ("sqrt", 60), ("addcdiv_", 80)):
            b.op(f"aten::{name}", at, 5, **args).launch(at + 1, f"void at::native::{name}_kernel", start, took)
            at, start = at + 10, start + took
    finding = first(b)
    total, longest = 4 * 260, 4 * 80
    assert (finding.id, finding.gain_us) == ("optimizer_passes", pytest.approx(total - 7 / 4 * longest, abs=0.02))
    assert finding.why.startswith("16 kernels of 4 ops in Optimizer.step")


def test_a_cache_that_grows_by_a_token(build: Build) -> None:
    b = healthy(build(), 10)
    args = {"Input Dims": [[[8, 32, 4000, 128], [8, 32, 1, 128]], []], "Input type": ["TensorList", "Scalar"],
            "Concrete Inputs": ["", "-2"]}  # fmt: skip
    for i in range(4):
        b.op("aten::cat", 20 + 10 * i, 5, **args).launch(21 + 10 * i, "CatArrayBatchedCopy", 220 + 150 * i, 150)
    finding = first(b)
    assert (finding.id, finding.gain_us) == ("growing_cache", pytest.approx(600))
    assert finding.why == "4 copies take 74 % of GPU time; the KV cache grows by one token at a time"


def test_layout_changes_round_convolutions(build: Build) -> None:
    b = healthy(build(), 10)
    b.op("aten::cudnn_convolution", 20, 30)
    for i in range(3):
        b.launch(21 + i, "void cudnn::ops::nchwToNhwcKernel<float>", 220 + 40 * i, 40)
    finding = first(b, H100)
    assert (finding.id, finding.gain_us) == ("conv_layout_changes", pytest.approx(120))


def test_the_last_wave_of_tiles(build: Build) -> None:
    """20 x 16 tiles of 256 x 256 are 320 on 304 units: two waves, of which 1 - 320 / 608 are idle."""
    b = build().mm(5120, 8192, 4096, at=0, start=10, duration=1000)
    kernel = "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64_MI32x32x8_SN"
    b.events[-1]["name"] = kernel
    finding = first(b)
    assert (finding.id, finding.gain_us) == ("wave_quantization", pytest.approx(1000 * (1 - 320 / 608)))
    b.events[-1]["name"] = f"{kernel}_GSU4"
    assert "wave_quantization" not in {f.id for f in found(b).findings}


def test_a_last_wave_is_nothing_to_a_gemm_that_reads_weights(build: Build) -> None:
    """8 rows through 4096 x 28672 weights by tiles of 64 x 8: 448 tiles are 3.4 waves on 132 units, 235 MB 70 µs."""
    b = build()
    for i in range(10):
        b.mm(8, 4096, 28672, at=6 * i, start=100 + 90 * i, duration=90)
        b.events[-1]["name"] = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
    ids = [finding.id for finding in found(b, H100).findings]
    assert "low_batch_decode" in ids
    assert "wave_quantization" not in ids


def test_units_without_a_tile_slow_a_gemm_that_reads_weights(build: Build) -> None:
    """8 rows through 4096 x 4096 weights by tiles of 64 x 8: 64 tiles, and 68 of 132 units read nothing."""
    b = build().mm(8, 4096, 4096, at=0, start=10, duration=40)
    b.events[-1]["name"] = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
    finding = next(finding for finding in found(b, H100).findings if finding.id == "wave_quantization")
    assert "52 % of the compute units' time unused" in finding.why
    assert finding.gain_us == pytest.approx(40 * (1 - 64 / 132), rel=0.01)
    b.events[-1]["dur"] = 13
    assert "wave_quantization" not in {each.id for each in found(b, H100).findings}, "near what the tile model expects"


def test_experts_one_after_the_other(build: Build) -> None:
    """32 GEMMs of 8, 16, 24 and 32 tokens with weights of 1024 x 1024, 20 µs each for 2 MB: 0.6 µs at 3.6 TB/s."""
    b = build().op("aten::topk", 0, 2).launch(0.5, "void at::native::sbtopk::gatherTopK", 280, 5)
    for i in range(32):
        b.mm(8 * (1 + i % 4), 1024, 1024, at=3 + 6 * i, start=300 + 20 * i, duration=20)
    finding = first(b)
    assert finding.id == "expert_loop"
    assert finding.gain_us == pytest.approx(32 * 20, rel=0.1)
    # a diffusion model has as many of as many heights, and no router
    b.events[0]["name"], b.events[2]["name"] = "aten::sort", "void at::native::sortKernel"
    assert "expert_loop" not in {each.id for each in found(b).findings}


def test_batches_that_change_between_steps_are_no_experts(build: Build) -> None:
    """The same 64 GEMMs, of one step's rows after those of another, as a dense model serves batches of 8 to 32."""
    b = build()
    for i in range(64):
        b.mm(8 * (1 + i // 16), 1024, 1024, at=6 * i, start=300 + 20 * i, duration=20)
    assert "expert_loop" not in {finding.id for finding in found(b).findings}


def test_calls_of_changing_length_are_one_finding(build: Build) -> None:
    """400 GEMMs of other numbers of rows each, at half of their roofline: each alone is a quarter of a percent of the
    window, less than is worth a line; together they are half of it. 708 TFLOPS/s are 7.08e8 FLOPs per µs.
    """
    b, at = build(), 3000.0
    for i in range(400):
        m = 2048 + i
        took = 2 * 2 * m * 4096 * 4096 / 7.08e8
        b.mm(m, 4096, 4096, at=6 * i, start=at, duration=took)
        at += took
    finding = first(b)
    assert finding.kind == "op_below_roofline: compute"
    assert (
        "400 calls of aten::mm (*, 4096), (4096, 4096) with 400 sizes for * reach 50 % of the bf16 compute roofline"
        in finding.why
    )
    assert finding.where is not None
    assert finding.where.shapes == "(*, 4096), (4096, 4096)"
    assert finding.time_us == pytest.approx(at - 3000, rel=1e-3)


def test_calls_of_one_op_are_one_finding_that_names_each_signature(build: Build) -> None:
    """Four GEMMs of the same work, 194 µs at 708 TFLOPS/s: two of one shape take twice that, one of another five times,
    and one of a third is near its roofline, no part of the finding. 3 of 2 + 2 + 5 are 33 %.
    """
    b, at, least = build(), 100.0, 2 * 4096**3 / 7.08e8
    for i, (m, n, times) in enumerate([(4096, 4096, 2.0), (4096, 4096, 2.0), (2048, 8192, 5.0), (8192, 2048, 1.01)]):
        b.mm(m, 4096, n, at=6 * i, start=at, duration=times * least)
        at += times * least
    (finding,) = (each for each in found(b).findings if each.id == "op_below_roofline")
    assert finding.why == (
        "3 calls of aten::mm in 2 shapes reach 33 % of the bf16 compute roofline; most of the gain is in (2048, 4096), (4096, 8192)"
    )
    assert finding.time_us == pytest.approx(9 * least, rel=1e-4)
    assert finding.gain_high_us == pytest.approx(6 * least, rel=0.01)
    assert finding.where is not None
    assert finding.where.shapes == "(2048, 4096), (4096, 8192); (4096, 4096), (4096, 4096)"
    dims = ["[[2048, 4096], [4096, 8192]]", "[[4096, 4096], [4096, 4096]]"]
    assert [str(proof.row["input_dims"]).replace("(", "[").replace(")", "]") for proof in finding.evidence] == dims


def test_a_slow_read_of_weights_asks_for_another_kernel_and_not_for_fusion(build: Build) -> None:
    """64 rows through 8192 x 8192 weights, 136 MB: 26 µs at 5.3 TB/s."""
    finding = first(build().mm(64, 8192, 8192, at=0, start=100, duration=200))
    assert finding.kind == "op_below_roofline: memory"
    assert finding.why.endswith("13 % of the memory roofline")
    assert (finding.remedy or "").startswith("use a kernel tuned for these shapes")


def test_calls_of_one_length_and_different_types_are_different_signatures(build: Build) -> None:
    """A GEMM in BF16 and one in FP32, at half of their rooflines: the same shapes are not two sizes."""
    b = build().mm(4096, 4096, 4096, at=0, start=100, duration=400)
    b.mm(4096, 4096, 4096, at=10, start=600, duration=3000)
    second = [event for event in b.events if event["name"] == "aten::mm"][-1]
    second["args"]["Input type"] = ["float", "float"]
    (finding,) = (finding for finding in found(b).findings if finding.id == "op_below_roofline")
    assert "2 calls of aten::mm in 2 signatures reach " in finding.why
    assert "*" not in finding.why


def test_decoding_few_sequences_is_bound_by_reading_weights(build: Build) -> None:
    """8 rows through 8192 x 8192 weights, 134 MB: twice the batch would read them half as often. No FP8 on an A100."""
    b = build()
    for i in range(10):
        b.mm(8, 8192, 8192, at=6 * i, start=100 + 80 * i, duration=80)
    finding = first(b, A100)
    assert (finding.id, finding.gain_us, finding.gain_low_us) == ("low_batch_decode", pytest.approx(400), 0)


def test_sixteen_bit_gemms_of_a_program_that_uses_fp8(build: Build) -> None:
    """Two healthy GEMMs in BF16: a finding where a third is in FP8, and never on an A100, which has none."""
    b = healthy(healthy(build(), 10), 220, at=20)
    assert "fp8_candidates" not in {f.id for f in found(b).findings}
    dims, fp8 = [[4096, 4096], [4096, 4096], [1], [1], [], [], []], "c10::Float8_e4m3fnuz"
    b.op(
        "aten::_scaled_mm", 40, 5,
        **{"Input Dims": dims, "Input type": [fp8, fp8, "float", "float", "", "", "Scalar"],
           "Input Strides": [[4096, 1], [1, 4096], [1], [1], [], [], []],
           "Concrete Inputs": ["", "", "", "", "", "", "15"]},
    ).launch(41, "Cijk_F8", 430, 110)  # fmt: skip
    finding = first(b)
    assert finding.id == "fp8_candidates"
    assert 0.3 * 420 < (finding.gain_us or 0) < 0.6 * 420
    assert finding.gain_low_us == 0
    assert "fp8_candidates" not in {f.id for f in found(b, A100).findings}


def test_a_language_models_loss_from_parts(build: Build) -> None:
    """4096 tokens, 32,000 classes in FP32: 1.05 GB at 3.6 TB/s once, in the place of 3 x 600 µs."""
    b = healthy(build(), 10)
    dims = {"Input Dims": [[4096, 32000], [], []], "Input type": ["float", "Scalar", "Scalar"],
            "Input Strides": [[32000, 1], [], []], "Concrete Inputs": ["", "1", "False"]}  # fmt: skip
    for i in range(3):
        b.op("aten::_log_softmax", 20 + 10 * i, 5, **dims).launch(21 + 10 * i, "softmax_forward", 220 + 600 * i, 600)
        add(b, [64, 64], 26 + 10 * i, 220 + 600 * (i + 1) - 1, 1)
    finding = first(b)
    assert finding.id == "unfused_loss"
    assert 0 < (finding.gain_us or 0) < 3 * 600


def test_prompts_that_hold_up_decoding(build: Build) -> None:
    """Of five steps four take 200 µs, and one with a prompt 2 ms: 1.8 ms longer, per step a fifth of that."""
    b, at = build(), 0.0
    for took in (200, 200, 2000, 200, 200):
        context = 1 if took > 200 else 0
        name = f"execute_context_{context}({512 * context})_generation_8(8)"
        b.op(name, at, took, cat="user_annotation").op("mine::model", at + 1, 5)
        b.launch(at + 2, "my_kernel", at + 10, took - 20)
        b.op("cudaStreamSynchronize", at + 5, took - 14, cat="cuda_runtime")
        at += took
    made = {f.id: f for f in found(b).findings}
    assert made["prefill_stalls_decode"].gain_us == pytest.approx(1800 / 5, rel=0.1)


@pytest.mark.parametrize(
    ("waits_us", "said", "gain_us"),
    [
        ((500, 500, 500), "the GPU idles for the first 500 µs of each step", 400),
        # beside the 400 µs of its own step at most: what one step waits is not hidden in the others
        ((2000, 0, 0), "the GPU idles for the first 2 ms of 1 of 3 steps", 400 / 3),
        ((600, 600, 0), "the GPU idles for the first 600 µs of 2 of 3 steps", 800 / 3),
    ],
)
def test_a_wait_before_the_first_launch_is_of_the_steps_that_have_it(
    build: Build, waits_us: tuple[int, ...], said: str, gain_us: float
) -> None:
    b, at = build(), 0.0
    for number, wait in enumerate(waits_us):
        b.op(f"ProfilerStep#{number}", at, wait + 400, cat="user_annotation")
        b.mm(1024, 2048, 4096, at=at + wait, start=at + wait + 2, duration=398)
        at += wait + 400
    analysis = found(b)
    (finding,) = (each for each in analysis.findings if each.id == "host_before_first_launch")
    assert finding.why.startswith(said)
    assert finding.gain_us == pytest.approx(gain_us, rel=0.02)
    assert not list(each_number_of_a_finding_is_a_figure(analysis, summarize(analysis)))
