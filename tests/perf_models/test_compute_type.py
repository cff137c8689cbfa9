"""What matrix kernels compute in, by names as public traces hold them."""

from __future__ import annotations

import math

from tests.conftest import row_by_row
from tracelens.perf_models.kernels import ComputeType, is_open, precisions
from tracelens.types.dtypes import DType


@row_by_row(("kernel", "recorded", "label"), [
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", DType.FP32, "tf32"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4>(Params)", DType.FP32, "tf32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x16_stage4_warpsize2x2x1", DType.FP32, "tf32"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x16", DType.FP32, "tf32"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x64_16x4>", DType.FP32, "tf32"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize64x64x32_cgasize1x1x1", DType.FP32, "tf32"),
        ("cutlass3x_sm90_tensorop_s64x128x8gemm_f32_f32_f32_f32_f32_64x128x32", DType.FP32, "tf32"),
        ("Cijk_Ailk_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x128x32", DType.FP32, "tf32"),
        ("ampere_sgemm_128x64_tn", DType.FP32, "fp32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma", DType.FP32, "fp32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", DType.FP32, "fp32"),
        ("ampere_scudnn_128x64_relu_interior_nn_v1", DType.FP32, "fp32"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_MI32x32x1x2_SN", DType.FP32, "fp32"),
        ("igemm_fwd_gtcx3_nhwc_fp32_bx0_ex0_bt256x128x16", DType.FP32, "fp32"),
        ("sm100_xmma_gemm_bf16x9_f32f32_f32_tn_n", DType.FP32, "bf16x9"),
        ("Cijk_Ailk_Bljk_S_bf16x3gemm_MT128", DType.FP32, "bf16x3"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", DType.FP32, None),
        ("void at::native::vectorized_elementwise_kernel<4, tf32>", DType.FP32, None),
        ("triton_tem_fused_mm_0", DType.FP32, None),
        ("sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x64", DType.BF16, "fp8"),
        ("Cijk_Alik_Bljk_F8BS_BH_Bias_MT256x256x128", DType.BF16, "fp8"),
        ("nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT", DType.BF16, "fp8"),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", DType.BF16, "fp8"),
        ("nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT", None, "fp8"),
        ("nvjet_ootst_128x256_256x4_2x2_2cta_h_bz_Avec16UE4M3_Bvec16UE4M3_TNT", DType.BF16, "fp4"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", DType.BF16, None),
        ("nvjet_sm100_tst_16x64_64x16_4x1_v_bz_TNN", DType.BF16, None),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", DType.BF16, None),
        ("ampere_igemm_int8_128x128_ldg4_relu_i8816_nn", None, "int8"),
        ("void cublas::ozaki_gemm_i8_slices", DType.FP64, "fp64_emulated"),
        ("sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize128x64x16", DType.FP64, None),
    ])  # fmt: skip
def test_names_say_what_products_run_in(kernel: str, recorded: DType | None, label: str | None) -> None:
    (found,) = precisions([kernel], recorded)
    assert (None if found is None else found.label) == label


def test_a_narrow_type_is_what_it_says() -> None:
    assert not is_open(DType.FP8_E4M3FN)
    assert precisions(["cutlass_80_tensorop_s1688gemm"], DType.INT8) == [None]


def test_labels_stand_for_rates() -> None:
    assert ComputeType.parse("bf16x9") == ComputeType("bf16x9", DType.BF16, 9)
    assert ComputeType.parse("tf32") == ComputeType("tf32", DType.TF32)
    assert ComputeType.parse("fp16") == ComputeType("fp16", DType.FP16)
    assert ComputeType.parse("nothing") is None
    emulated = ComputeType.parse("fp64_emulated")
    assert emulated is not None
    assert math.isnan(emulated.passes)
