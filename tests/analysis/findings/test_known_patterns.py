"""What an experienced engineer says: each pattern on a small trace of its form, and where it must stay silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.analysis.conftest import MI300X
from tests.analysis.work.test_rates import H100, add, found
from tests.conftest import RealAnalysis
from tracelens.analysis.verdict.summary import Finding, Unseen
from tracelens.analysis.verdict.verdict import summarize
from tracelens.report.terminal import verdict

Build = Callable[[], Any]
SGEMM, TF32 = "ampere_sgemm_128x64_tn", "cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4"


def gemm(b: Any, dims: list[list[int]], at: float, start: float, duration: float, **kind: str) -> Any:
    """``aten::mm`` or ``aten::bmm`` with its one kernel."""
    dtype = kind.get("dtype", "c10::BFloat16")
    strides = [[*([dim[-2] * dim[-1]] if len(dim) == 3 else []), dim[-1], 1] for dim in dims]
    b.op(
        "aten::mm" if len(dims[0]) == 2 else "aten::bmm", at, 5,
        **{"Input Dims": dims, "Input type": [dtype] * 2, "Input Strides": strides, "Concrete Inputs": ["", ""]},
    )  # fmt: skip
    return b.launch(at + 1, kind.get("kernel", "Cijk_Ailk_Bljk_BBS"), start, duration)


def findings(b: Any, device: dict[str, Any] = MI300X) -> dict[str, Finding]:
    return {finding.id: finding for finding in summarize(found(b, device)).findings}


def softmax(b: Any, dims: list[int], at: float, start: float, duration: float, name: str = "aten::_softmax") -> Any:
    args = {"Input Dims": [dims, [], []], "Input type": ["c10::BFloat16", "Scalar", "Scalar"],
            "Input Strides": [[dims[-1], 1], [], []], "Concrete Inputs": ["", "-1", "False"]}  # fmt: skip
    return b.op(name, at, 5, **args).launch(at + 1, "softmax_warp_forward", start, duration)


def test_tf32_kernels_are_rated_against_tf32(build: Build) -> None:
    """An H100 does 494.7 TFLOPS/s in TF32 and 66.9 in FP32; 2048^3 in 60 µs are 286."""
    analysis = found(gemm(build(), [[2048, 2048]] * 2, 0, 10, 60, dtype="float", kernel=TF32), H100)
    row = analysis.frames["unified_perf_summary"].iloc[0]
    tflops = 2 * 2048**3 / 60 / 1e6
    assert (row["compute_spec"], row["computed_in"]) == ("matrix_tf32", "tf32")
    assert row["percent_of_peak"] == pytest.approx(100 * tflops / 494.7)
    rate = summarize(analysis).throughput
    assert rate is not None
    assert (rate.dtype, rate.of_peak) == ("tf32", pytest.approx(tflops / 494.7))


@pytest.mark.parametrize(
    ("kernel", "spec", "peak"),
    [
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x16", "matrix_tf32", 494.7),
        ("ampere_scudnn_128x64_relu_interior_nn_v1", "matrix_fp32", 66.9),
    ],
)
def test_a_convolution_is_rated_against_the_precision_of_its_kernel(
    build: Build, kernel: str, spec: str, peak: float
) -> None:
    """32 images of 256 x 56 x 56 through 256 windows of 256 x 3 x 3 are 118 GFLOP."""
    args = {"Input Dims": [[32, 256, 56, 56], [256, 256, 3, 3], [], [1, 1], [1, 1], [1, 1], [], [0, 0], []],
            "Input type": ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"],
            "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]}  # fmt: skip
    b = build().op("aten::convolution", 0, 5, **args).launch(1, kernel, 10, 2000)
    row = found(b, H100).frames["unified_perf_summary"].iloc[0]
    tflops = 2 * 32 * 256 * 56 * 56 * 256 * 9 / 2000 / 1e6
    assert (row["compute_spec"], row["percent_of_peak"]) == (spec, pytest.approx(100 * tflops / peak))


def test_calls_of_one_shape_are_told_apart_by_precision(build: Build) -> None:
    b = gemm(build(), [[2048, 2048]] * 2, 0, 10, 60, dtype="float", kernel=TF32)
    gemm(b, [[2048, 2048]] * 2, 80, 100, 400, dtype="float", kernel=SGEMM)
    rows = found(b, H100).frames["unified_perf_summary"]
    assert dict(zip(rows["computed_in"], rows["kernel_us_sum"], strict=True)) == {"tf32": 60, "fp32": 400}


def test_fp32_gemms_without_tf32_are_a_finding(build: Build) -> None:
    """400 µs at FP32's roofline; TF32's takes the part 66.9 / 494.7 of it."""
    finding = findings(gemm(build(), [[2048, 2048]] * 2, 0, 10, 400, dtype="float", kernel=SGEMM), H100)[
        "fp32_without_tf32"
    ]
    assert finding.gain_us == pytest.approx(400 * (1 - 66.9 / 494.7))
    assert finding.why.startswith("1 FP32 GEMM or convolution call without TF32 takes 100 % of GPU time")


@pytest.mark.parametrize(("kernel", "dtype"), [(TF32, "float"), ("triton_tem_fused_mm_0", "float"), (SGEMM, "double")])
def test_tf32_double_and_silent_kernels_are_none(build: Build, kernel: str, dtype: str) -> None:
    assert "fp32_without_tf32" not in findings(
        gemm(build(), [[2048, 2048]] * 2, 0, 10, 400, dtype=dtype, kernel=kernel), H100
    )


def attention(b: Any, softmax_dims: list[int], name: str = "aten::_softmax") -> Any:
    """96 heads of 1024 x 1024 scores: 200 + 300 + 100 µs, and 50 of a multiplication between."""
    gemm(b, [[96, 1024, 64], [96, 64, 1024]], 0, 100, 200)
    add(b, [96, 1024, 1024], 10, 300, 50)
    softmax(b, softmax_dims, 20, 350, 300, name)
    return gemm(b, [[96, 1024, 1024], [96, 1024, 64]], 30, 650, 100)


@pytest.mark.parametrize("dims", [[96, 1024, 1024], [8, 12, 1024, 1024]])
def test_bmm_softmax_bmm_is_attention(build: Build, dims: list[int]) -> None:
    """Attention of 96 heads is 25.8 GFLOP: 36.4 µs at the MI300X's 708 TFLOPS/s, of 650 measured."""
    made = findings(attention(build(), dims))
    finding = made["attention_from_parts"]
    assert finding.gain_high_us == pytest.approx(650 - 4 * 96 * 1024 * 1024 * 64 / 708e6, rel=0.02)
    # the tile model expects more of a real kernel
    assert 0.8 * 650 < (finding.gain_us or 0) < (finding.gain_high_us or 0)
    assert finding.why.startswith("unfused attention (bmm, softmax, bmm) runs 1 time and takes 100 % of GPU time")
    # its time is spoken of once
    assert "op_below_roofline" not in made, "the addition between the parts included"


def test_a_softmax_that_launches_itself_is_attention_too(build: Build) -> None:
    assert "attention_from_parts" in findings(attention(build(), [96, 1024, 1024], "aten::softmax"))


def test_a_softmax_of_something_else_is_no_attention(build: Build) -> None:
    assert "attention_from_parts" not in findings(attention(build(), [96, 1024, 512]))


def test_unaligned_rows_of_gemms_are_a_finding(build: Build) -> None:
    """5185 columns of 2 bytes: the second row starts 10,370 bytes in. 5185 rows of 768 are aligned."""
    finding = findings(gemm(build(), [[768, 768], [768, 5185]], 0, 10, 400))["unaligned_gemms"]
    assert finding.why.startswith("1 GEMM takes 100 % of GPU time; their rows of 5185 elements")
    assert 0 < (finding.gain_us or 0) < 400
    assert "unaligned_gemms" not in findings(gemm(build(), [[5185, 768], [768, 3072]], 0, 10, 400))
    assert "unaligned_gemms" not in findings(gemm(build(), [[768, 768], [768, 1]], 0, 10, 400))


def test_rows_that_are_padded_in_memory_are_aligned(build: Build) -> None:
    """5185 columns of a matrix whose rows are 5192 apart, and 768 of one whose rows are 769 apart."""
    for dims, strides in (([5185, 5185], [5192, 1]), ([5185, 768], [769, 1])):
        b = build().op(
            "aten::mm", 0, 5,
            **{"Input Dims": [dims, [dims[1], 768]], "Input type": ["c10::BFloat16"] * 2,
               "Input Strides": [strides, [768, 1]], "Concrete Inputs": ["", ""]},
        )  # fmt: skip
        made = findings(b.launch(1, "Cijk_Ailk_Bljk_BBS", 10, 4000))
        assert ("unaligned_gemms" in made) == (strides[0] == 769)


def test_gemms_of_attention_are_not_unaligned_too(build: Build) -> None:
    """3137 keys: rows of scores that are not aligned, in what flash attention would replace as a whole."""
    b = gemm(build(), [[12, 3137, 64], [12, 64, 3137]], 0, 100, 200)
    softmax(b, [12, 3137, 3137], 20, 350, 300)
    gemm(b, [[12, 3137, 3137], [12, 3137, 64]], 30, 650, 100)
    made = findings(b)
    assert "attention_from_parts" in made
    assert "unaligned_gemms" not in made


def test_elementwise_kernels_are_claimed_by_their_chain_alone(build: Build) -> None:
    """Three slow additions in a row: the chain's gain, and none below its roofline or for short kernels beside it."""
    b = add(add(add(build(), [4096, 4096], 0, 100, 300), [4096, 4096], 10, 400, 300), [4096, 4096], 20, 700, 300)
    made = findings(b)
    assert made["unfused_elementwise"].gain_us == pytest.approx(600)
    assert "op_below_roofline" not in made


def test_elementwise_kernels_in_a_row_are_unfused(build: Build) -> None:
    """Chains of 30 + 20 + 10 and of 40 µs alone: fused, the first takes at least 30."""
    b = add(add(add(build(), [4096, 4096], 0, 100, 30), [4096, 4096], 10, 130, 20), [4096, 4096], 20, 150, 10)
    gemm(b, [[1024, 1024]] * 2, 30, 160, 50)
    add(b, [4096, 4096], 40, 210, 40)
    finding = findings(b)["unfused_elementwise"]
    assert finding.gain_us == pytest.approx(30)
    assert finding.why.startswith("3 unfused elementwise kernels take 40 % of GPU time")


def test_elementwise_kernels_alone_are_no_chain(build: Build) -> None:
    b = gemm(add(build(), [4096, 4096], 0, 100, 30), [[1024, 1024]] * 2, 10, 130, 50)
    assert "unfused_elementwise" not in findings(add(b, [4096, 4096], 20, 180, 30))


def test_a_large_category_without_a_model_is_said(build: Build) -> None:
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50)
    shapes = {"Input Dims": [[4, 6]], "Input type": ["float"]}
    b.op("mine::unknown", 80, 10, **shapes).launch(81, "my_kernel", 60, 150)
    unseen = summarize(found(b)).unseen
    assert unseen == Unseen(
        share=0.75, ops=("mine::unknown",), because="no perf model",
        command="tracelens extensions new mine::unknown --from built.json -o my_ops.py",
    )  # fmt: skip
    assert " cannot see 75 % of GPU time (no perf model), mostly mine::unknown" in verdict(summarize(found(b)))
    bare = found(build().mm(1024, 2048, 4096, 0, 10, 50).op("bare", 80, 10).launch(81, "my_kernel", 60, 150))
    assert summarize(bare).unseen == Unseen(share=0.75, ops=("bare",), because="their arguments were not recorded")


def test_what_an_op_misses_is_said_and_no_extension_advised(build):
    """Its perf model is known: an extension would know no more of how long the sequences are."""
    b = build()
    b.op(
        "vllm::unified_attention_with_output", 0, 10,
        **{"Input Dims": [[8, 32, 128], [8, 8, 128], [8, 8, 128]], "Input type": ["c10::BFloat16"] * 3},
    )  # fmt: skip
    b.launch(1, "void flash_fwd_splitkv_kernel", 20, 100)
    said = verdict(summarize(found(b)))
    assert " cannot see 100 % of GPU time (no step annotation gives the context length" in " ".join(said.split())
    assert "extensions new" not in said


def test_a_gap_with_several_causes_is_one_gap(build: Build) -> None:
    """Kernels of 4 µs every 10 µs: Python, the launch and its latency share each gap of 6 µs."""
    b = build()
    for i in range(20):
        b.op(f"op_{i}", 10 * i, 5).launch(10 * i + 1, "some_kernel", 10 * i + 4, 4)
    finding = findings(b)["idle"]
    # 19 gaps in 194 µs, each 2.5 µs from the launch's end, 2 µs before the op and 1.5 µs in it
    causes = "launch latency 24 %, Python or other host work 20 %, launch-bound 15 %"
    assert f"the GPU waits for the host 59 % of the time ({causes}), in 19 gaps of up to 6 µs" in finding.why
    figures = {figure.what: figure.value for figure in finding.figures}
    named = {what.removeprefix("idle: "): share for what, share in figures.items() if what.startswith("idle: ")}
    assert sum(named.values()) == pytest.approx(figures["idle share of the time"])
    sheet = found(b).frames["idle_causes"].set_index("cause")["percent_of_window"]
    assert all(100 * share <= sheet[cause] + 1e-9 for cause, share in named.items())


def test_kernels_that_wait_are_named_with_exposed_communication(build: Build) -> None:
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50)
    b.op("mine::exchange", 80, 10).launch(81, "void deep_ep::intranode::cached_notify_combine<8>", 100, 3000)
    why = findings(b)["exposed_communication"].why
    assert "kernels that only wait for other ranks (notify, barrier) take 3 ms" in why


def collective(b: Any, name: str, at: float, lasts_us: list[float], elements: int = 6144, **more: Any) -> Any:
    """Calls of one collective among eight ranks, one behind the other from ``at`` on."""
    sizes = {"In msg nelems": elements, "Out msg nelems": elements, "Group size": 8, "dtype": "Float",
             "Collective name": name, **more}  # fmt: skip
    for lasts in lasts_us:
        b.launch(81, "ncclDevKernel_Generic", at, lasts, **sizes)
        at += lasts
    return b


@pytest.mark.parametrize(
    ("name", "lasts_us", "why", "first"),
    [
        ("allreduce", 5000.0, "so it waits for a late rank or takes a slower path", "find the late rank"),
        ("allreduce", 40.0, "a message this small is all latency", "send fewer and larger messages"),
        ("recv", 20.0, "a message this small is all latency", "send fewer and larger messages"),
        ("recv", 5000.0, "so it waits for another stage or takes a slower path", "use more micro-batches"),
    ],
)
def test_a_collective_far_below_the_links_rate_waits_or_is_small(
    build: Build, name: str, lasts_us: float, why: str, first: str
) -> None:
    """24 kB over 450 GB/s is a matter of 0.1 µs; among eight nodes the model of NCCL says 39 µs for an all-reduce and 10
    for a message to the next: what takes more than twice that waits.
    """
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50)
    found = findings(collective(b, name, 100, [lasts_us]), H100)["exposed_communication"]
    assert f"{name} of 24.6 kB reaches" in found.why
    assert found.why.endswith(why)
    assert found.remedy.startswith(first)


@pytest.mark.parametrize(
    ("lasts_us", "elements", "said", "unsaid"),
    [
        # 67 MB: the shortest reaches 199 GB/s, the mean 20
        ([590.0, 5800.0, 11_000.0, 5800.0], 1 << 24, "at least 590 µs (199 GB/s), so it mostly waits for a late rank", "slower path"),
        ([5800.0, 5900.0, 5700.0, 5800.0], 1 << 24, "so it waits for a late rank or takes a slower path", "mostly waits"),
        ([40.0, 900.0, 1700.0], 6144, "so it mostly waits for a late rank", "all latency"),
        ([40.0, 42.0, 44.0], 6144, "a message this small is all latency", "waits"),
        # one sign alone: they spread, but even the shortest is far above what the links need
        ([2000.0, 9000.0, 8000.0], 6144, "so it waits for a late rank or takes a slower path", "mostly waits"),
    ],
)  # fmt: skip
def test_waiting_for_a_rank_is_told_from_a_slow_path_and_from_latency(
    build: Build, lasts_us: list[float], elements: int, said: str, unsaid: str
) -> None:
    b = collective(build().mm(1024, 2048, 4096, at=0, start=10, duration=50), "allreduce", 100, lasts_us, elements)
    found = findings(b, H100)["exposed_communication"]
    assert found.why.endswith(said)
    assert unsaid not in found.why
    assert "FP8" not in found.remedy
    assert "tensor-parallel size" not in found.remedy


def test_other_calls_of_the_group_show_what_moving_takes(build: Build) -> None:
    """24.6 kB in 2 and 9 ms, and 2 kB of the same group in 10 µs: twelve times the bytes are moved in 120 µs at most."""
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50)
    collective(collective(b, "allreduce", 100, [2000.0, 9000.0, 8000.0]), "allreduce", 20_000, [10.0], elements=512)
    why = findings(b, H100)["exposed_communication"].why
    assert "other calls of its group suggest 120 µs, so it mostly waits for a late rank" in why


def test_without_sizes_a_few_long_collectives_are_said_and_not_explained(build: Build) -> None:
    """One of eight exchanges takes a second, the others 1 to 22 ms: that rank waits, or the message is far larger."""
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50)
    lasts = [1e3, 22e3, 3e3, 1e6, 5e3, 9e3, 8e3, 7e3]
    named = {"Collective name": "all_to_all", "Group size": 4}
    for i, each in enumerate(lasts):
        b.launch(81, "ncclKernel_SendRecv(x)", 100 + sum(lasts[:i]), each, **named)
    found = findings(b, H100)["exposed_communication"]
    assert found.why == (
        "exposed communication takes 100 % of the time, mostly all-to-all; the longest of 8 collectives takes"
        " at least 1.0 s (95 % of all), no other more than 22 ms, so a rank is late or they move far more data (their"
        " sizes were not recorded)"
    )
    assert found.remedy == "find the late rank with `tracelens collectives` on the traces of all ranks"


@pytest.mark.parametrize(
    ("kernel", "args", "kind", "remedy"),
    [
        ("ncclDevKernel_AllGather_RING_LL(x)", {}, "all-gather", "gather a layer ahead"),
        (
            "ncclDevKernel_Generic_1(x)",
            {"Collective name": "_reduce_scatter_base"},
            "reduce-scatter",
            "overlap it with",
        ),
        ("ncclDevKernel_SendRecv(x)", {"Collective name": "all_to_allv"}, "all-to-all", "overlap it with other work"),
        ("ncclDevKernel_SendRecv(x)", {}, "send/recv", "use more micro-batches"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(x)", {}, "all-reduce of activations", "use a smaller tensor"),
        (
            "void vllm::cross_device_reduce_1stage<__half, 8>(x)",
            {},
            "all-reduce of activations",
            "use a smaller tensor",
        ),
        ("void deep_ep::internode_ll::combine<true, 7168>(x)", {}, "all-to-all", "overlap it with other work"),
    ],
)
def test_exposed_communication_is_named_with_what_hides_its_kind(
    build: Build, kernel: str, args: dict[str, Any], kind: str, remedy: str
) -> None:
    """300 µs of it, and 100 µs of a kernel that says nothing: 75 %. A batch of sends has no record of its own."""
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50).op("c10d::send", 70, 5)
    b.launch(81, kernel, 100, 300, **args).launch(90, "ncclDevKernel_Generic_4(x)", 400, 100)
    found = findings(b)["exposed_communication"]
    # Kernels of an engine's own are no collectives of the sheet: nothing is said of their sizes
    unsized, late = (
        (
            "; their sizes were not recorded, so waiting and transfer cannot be separated",
            "find the late rank with `tracelens",
        )
        if kernel.startswith("nccl")
        else ("", remedy)
    )
    assert found.why == f"exposed communication takes 82 % of the time, mostly {kind}{unsized}"
    assert found.remedy.startswith(late)
    assert remedy in found.remedy
    assert {figure.what: figure.value for figure in found.figures}[f"of that, {kind}"] == pytest.approx(0.75)


def test_with_a_backward_pass_an_all_reduce_is_one_of_gradients(build: Build) -> None:
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50)
    b.op("MmBackward0", 20, 10).launch(21, "Cijk_Ailk_Bljk", 60, 50).launch(81, "ncclDevKernel_AllReduce_x", 110, 300)
    found = findings(b)["exposed_communication"]
    assert found.why == "exposed communication takes 75 % of the time, mostly all-reduce"
    assert found.remedy.startswith("overlap it with the backward pass")


def test_exposed_communication_of_no_kind_alone_is_named_by_none(build: Build) -> None:
    """One third each; and pairs of sends that exchanges could have made as well."""
    b = build().op("c10d::send", 0, 5).op("c10d::alltoall_base_", 6, 5)
    for i, name in enumerate(("AllGather", "ReduceScatter", "SendRecv")):
        b.launch(10 + i, f"ncclDevKernel_{name}_RING_LL(x)", 100 + 50 * i, 50)
    assert findings(b)["exposed_communication"].why.startswith("exposed communication takes 100 % of the time; ")


@pytest.mark.parametrize(
    ("copy", "said", "remedy"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD pageable", "use pinned memory"),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD pinned", "copy with non_blocking=True on another stream"),
        ("CopyHostToDevice", "HtoD", "use pinned memory"),
        ("Memcpy PtoP (Device -> Device)", "PtoP", "copy on another stream"),
    ],
)
def test_exposed_copies_are_not_told_to_use_what_they_use(build: Build, copy: str, said: str, remedy: str) -> None:
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50).launch(20, copy, 60, 900, cat="gpu_memcpy")
    found = findings(b)["exposed_copies"]
    assert found.why.endswith(f"mostly cudaLaunchKernel {said}")
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("copy", "work_us", "gain_us", "high_us", "remedy"),
    [
        # 9 MB in 900 µs are 10 GB/s; a MI300X's PCIe of 64 GB/s takes 140.6 µs for them
        ("Memcpy HtoD (Pageable -> Device)", 50, 900 - 140.625, 900 - 140.625, "use pinned memory"),
        ("Memcpy HtoD (Pageable -> Device)", 850, 900 - 140.625, 850, "use pinned memory"),
        ("Memcpy HtoD (Pinned -> Device)", 600, 600, 600, "copy with non_blocking=True on another stream"),
        ("Memcpy HtoD (Pinned -> Device)", 0, 900 - 140.625, 900 - 140.625, "use fewer and larger copies"),
    ],
)
def test_a_copy_gains_what_its_link_or_other_work_allows(
    build: Build, copy: str, work_us: float, gain_us: float, high_us: float, remedy: str
) -> None:
    b = build().launch(20, copy, 60, 900, cat="gpu_memcpy", bytes=9_000_000)
    if work_us:
        b.mm(1024, 2048, 4096, at=25, start=960, duration=work_us)
    found = findings(b)["exposed_copies"]
    assert found.gain_low_us == 0
    assert (found.gain_us, found.gain_high_us) == (pytest.approx(gain_us), pytest.approx(high_us))
    assert found.remedy.startswith(remedy)


def launches_with_gaps(b: Any, call: str = "cudaLaunchKernel", kernel: str = "void at::native::add") -> Any:
    """Kernels of 5 µs, a launch of 40 µs before each."""
    for at in range(0, 5000, 50):
        b.op(call, at, 40, cat="cuda_runtime", correlation=1000 + at)
        b.kernel(kernel, at + 42, 5, correlation=1000 + at)
    return b


@pytest.mark.parametrize(
    ("call", "kernel", "remedy"),
    [
        ("cudaLaunchKernel", "void at::native::add", "use CUDA or HIP graphs, torch.compile"),
        ("cudaLaunchKernel", "loop_add_fusion", "use CUDA or HIP graphs (in XLA, command buffers)"),
        ("cudaGraphLaunch", "void at::native::add", "use fewer and larger graphs"),
    ],
)
def test_launches_are_not_told_to_use_what_they_use(build: Build, call: str, kernel: str, remedy: str) -> None:
    first = summarize(found(launches_with_gaps(build(), call, kernel))).findings[0]
    assert first.kind == "idle: launch-bound"
    assert first.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("kernel", "remedy"),
    [("batched_transpose_16x32_half", "before ROCm 7, set PYTORCH_MIOPEN_SUGGEST_NHWC=1"),
     ("void cudnn::ops::nchwToNhwcKernel", "torch.backends.cudnn.benchmark = True")],
)  # fmt: skip
def test_images_stay_channels_last_by_what_their_library_asks(build: Build, kernel: str, remedy: str) -> None:
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50).launch(20, kernel, 60, 90)
    assert findings(b)["conv_layout_changes"].remedy.endswith(remedy)


@pytest.mark.parametrize(("call", "asked"), [("cudaStreamWaitEvent", True), ("hipStreamWaitEvent", False)])
def test_synchronization_events_are_asked_for_where_a_profiler_records_them(
    build: Build, call: str, asked: bool
) -> None:
    b = build().launch(0, "k", 5, 5, stream=8).launch(1, "k", 5, 5).op(call, 2, 1, cat="cuda_runtime")
    b.launch(11, "k", 15, 5).launch(21, "k", 900, 50, stream=8)
    (found_wait,) = (each for each in found(b).findings if each.kind == "idle: device wait, cause not recorded")
    assert ("enable_cuda_sync_events" in found_wait.remedy) == asked


@pytest.mark.parametrize("frames", [True, False])
def test_a_host_that_recorded_stacks_was_slowed_by_that(build: Build, frames: bool) -> None:
    b = launches_with_gaps(build())
    if frames:
        b.op("train.py(7): step", -5, 5100, cat="python_function")
    first = summarize(found(b)).findings[0]
    assert first.why.startswith("the GPU waits for the host ")
    assert first.why.endswith("; recording stacks slows the host") == frames


@pytest.mark.parametrize(("frames", "asked"), [(True, False), (False, True)])
def test_stacks_are_asked_for_where_they_were_not_recorded(build: Build, frames: bool, asked: bool) -> None:
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50).mm(1024, 2048, 4096, at=9000, start=9010, duration=50)
    if frames:
        b.op("train.py(7): step", -5, 9100, cat="python_function")
    (finding,) = (each for each in summarize(found(b)).findings if each.kind == "idle: Python or other host work")
    assert ("with_stack=True" in finding.remedy) == asked


@pytest.mark.shared
def test_timesformer_is_told_to_use_flash_attention(real_analysis: RealAnalysis) -> None:
    analysis = real_analysis("mi300/facebook_timesformer-base-finetuned-k400__1016002")
    made = {finding.id: finding for finding in summarize(analysis).findings}
    assert made["attention_from_parts"].why.startswith("unfused attention (bmm, softmax, bmm) runs 24 times")
    # the bmms of 3137 keys are part of attention, whose time is spoken of once
    assert "unaligned_gemms" not in made
    spoken_of = analysis.activity.duration.sum() / 1e3
    assert all((finding.gain_us or 0) < spoken_of for finding in made.values() if finding.op)


@pytest.mark.shared
def test_qwen_is_told_of_its_unfused_elementwise_kernels(real_analysis: RealAnalysis) -> None:
    summary = summarize(real_analysis("mi300/Qwen_Qwen1.5-0.5B-Chat__1016005"))
    assert "unfused elementwise kernels take" in verdict(summary)
    # two host events that end after their caller did are no warning
    assert "host_overlaps" not in {notice.id for notice in summary.notices}


@pytest.mark.parametrize(("used_gb", "is_said"), [(40, True), (180, False)])
def test_recomputation_is_a_finding_where_memory_is_left(build: Build, used_gb: int, is_said: bool) -> None:
    """192 GiB are 206 GB: with 40 GB in use 166 GB are free. A product of 100 µs runs again in the backward pass."""
    b = build().mm(4096, 4096, 4096, 0, 10, 100)
    b.op("CheckpointFunctionBackward", 50, 40).mm(4096, 4096, 4096, 60, 110, 100)
    args = {"Bytes": 512, "Addr": 1, "Device Id": 0, "Device Type": 1, "Total Allocated": used_gb * 10**9}
    event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5}
    b.events.append({**event, "args": args})
    said = findings(b).get("recomputation")
    assert (said is not None) is is_said
    if said is not None:
        assert said.gain_us == pytest.approx(100)
        assert said.gain_low_us == 0
        assert "recomputed forward ops take 50 % of GPU time while 166 GB of 206 GB is free at the peak" in said.why
