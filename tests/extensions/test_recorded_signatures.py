"""One recorded signature per op name of the serving and kernel libraries, with the arithmetic of its FLOPs and bytes.

Names whose signature no public source shows are read as the tables here say and listed as unverified in docs/ops.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import row_by_row
from tracelens import perf_models
from tracelens.errors import SignatureError
from tracelens.extensions import bundled_extensions, load_extension, overlay
from tracelens.perf_models import AttentionSums, PerfModel
from tracelens.perf_models.inference_attention import SUMS
from tracelens.registry import Registry
from tracelens.types.signature import OpSignature

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ops.md"
BF16, FP8, FP32, BYTE, FP4 = "c10::BFloat16", "c10::Float8_e4m3fnuz", "float", "unsigned char", "c10::Float4_e2m1fn_x2"
E8M0, INT32, INT64, INT8, UINT32 = "c10::Float8_e8m0fnu", "int", "long int", "signed char", "unsigned int"


@dataclass(frozen=True)
class Slot:
    shape: tuple[int, ...] = ()
    dtype: str = ""
    scalar: str = ""


NONE = Slot()


def t(*shape: int, of: str = BF16) -> Slot:
    """A tensor."""
    return Slot(shape=shape, dtype=of)


def c(value: object) -> Slot:
    """A scalar, as recorded."""
    return Slot(dtype="Scalar", scalar=str(value))


@dataclass(frozen=True)
class Call:
    names: tuple[str, ...]
    slots: tuple[Slot, ...]
    model: str
    flops: float
    hbm: float | None = None
    wire: float | None = 0
    sums: AttentionSums | None = None


def call(names: str, *slots: Slot, model: str, flops: float, hbm: float | None = None, wire: float | None = 0,
         sums: AttentionSums | None = None) -> Call:  # fmt: skip
    """``names`` are separated by blanks; ``hbm`` and ``wire`` in bytes."""
    return Call(tuple(names.split()), slots, model, flops, hbm, wire, sums)


def under(prefix: str, names: str) -> str:
    return " ".join(prefix + name for name in names.split())


M, N, K = 48, 64, 96
X, W_NT, OUT = M * K, N * K, M * N
PRODUCT = 2 * M * N * K
ROWS, H = 6, 128
NORM = ROWS * H  # elements of a normalized tensor; 4 flops each with a weight, 2 per row for its statistic
GEMMS = [
    call("bitsandbytes::int8_linear_matmul", t(M, K, of=INT8), t(N, K, of=INT8),
         model="GEMM", flops=PRODUCT, hbm=X + W_NT + 4 * OUT),
    call("trtllm::cublas_scaled_mm", t(M, K, of=FP8), t(K, N, of=FP8), t(1, of=FP32), t(1, of=FP32), t(N), c(15),
         model="GEMM", flops=PRODUCT + OUT, hbm=X + W_NT + 2 * OUT + 2 * N + 2 * 4),
    call("trtllm::cublas_mm", t(M, K), t(K, N), NONE, NONE, model="GEMM", flops=PRODUCT, hbm=2 * (X + W_NT + OUT)),
    call("aiter::gemm_a4w4 aiter::_gemm_a4w4_asm", t(M, K // 2, of=FP4), t(N, K // 2, of=FP4),
         t(M, K // 32, of=E8M0), t(N, K // 32, of=E8M0), NONE, c(15),
         model="GEMM", flops=PRODUCT, hbm=(X + W_NT) // 2 + (X + W_NT) // 32 + 2 * OUT),
    call("aiter::gemm_afp4wfp4_", t(M, K // 2, of=BYTE), t(N, K // 2, of=BYTE), t(M, K // 32, of=BYTE),
         t(N, K // 32, of=BYTE), c(15), model="GEMM", flops=PRODUCT, hbm=(X + W_NT) // 2 + (X + W_NT) // 32 + 2 * OUT),
    call(under("aiter::", "gemm_a8w8_ck gemm_a8w8_bpreshuffle gemm_a8w8_bpreshuffle_ck gemm_a8w8_blockscale_ck"
               " gemm_a8w8_blockscale_cktile gemm_a8w8_blockscale_bpreshuffle_ck"
               " gemm_a8w8_blockscale_bpreshuffle_cktile flatmm_a8w8_blockscale_asm gfx950_a8w8_blockscale_asm"
               " _gemm_a8w8_blockscale_bpreshuffle_asm"),
         t(M, K, of=FP8), t(N, K, of=FP8), t(M, 1, of=FP32), t(1, 1, of=FP32), t(M, N),
         model="GEMM", flops=PRODUCT, hbm=X + W_NT + 4 * (M + 1) + 2 * OUT),
    call(under("vllm::", "rocm_aiter_triton_gemm_a8w8_blockscale _rocm_aiter_preshuffled_per_token_w8a8_gemm"
               " rocm_aiter_gemm_a8w8_blockscale"),
         t(M, K, of=FP8), t(N, K, of=FP8), t(M, 1, of=FP32), t(1, 1, of=FP32),
         model="GEMM", flops=PRODUCT, hbm=X + W_NT + 4 * (M + 1) + 2 * OUT),
    call(under("sglang_profiler::", "fp8_utils_gemm_a8w8_blockscale_12 gemm_a8w8_blockscale_gemm_a8w8_blockscale"),
         t(M, K, of=FP8), t(N, K, of=FP8), t(M, 1, of=FP32), t(1, 1, of=FP32),
         model="GEMM", flops=PRODUCT, hbm=X + W_NT + 4 * (M + 1) + 2 * OUT),
    call("aiter::gemm_a16w16", t(M, K), t(N, K), NONE, c(15), NONE, NONE, NONE,
         model="GEMM", flops=PRODUCT, hbm=2 * (X + W_NT + OUT)),
    call("aiter::gemm_a16w16_atomic_ sglang_profiler::gemm_kernels_flydsl_hgemm_3", t(M, K), t(N, K), NONE,
         t(M, N, of=FP32), model="GEMM", flops=PRODUCT, hbm=2 * (X + W_NT) + 4 * OUT),
    call("aiter::_gemm_a16w16_asm", t(M, K), t(N, K), t(M, N, of=FP32),
         model="GEMM", flops=PRODUCT, hbm=2 * (X + W_NT) + 4 * OUT),
    call("vllm::rocm_unquantized_gemm", t(M, K), t(N, K), t(N),
         model="GEMM", flops=PRODUCT + OUT, hbm=2 * (X + W_NT + OUT + N)),
    call("vllm::gemm_with_dynamic_quant", t(M, K), t(N, K // 2, of=BYTE), t(N, K // 32, of=BYTE),
         model="DynamicQuantGEMM", flops=PRODUCT, hbm=2 * X + W_NT // 2 + W_NT // 32 + 2 * OUT),
    call("aiter::batched_gemm_a16wfp4_", t(3, M, K), t(3, N, K // 2, of=BYTE), t(3, N, K // 32, of=BYTE), c(15),
         model="DynamicQuantGEMM", flops=3 * PRODUCT, hbm=3 * (2 * X + W_NT // 2 + W_NT // 32 + 2 * OUT)),
    call("sglang_profiler::batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant_"
         "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant_7",
         t(M, 3, K), t(3, N, K, of=FP8), model="DynamicQuantGEMM", flops=3 * PRODUCT, hbm=3 * (2 * X + W_NT + 2 * OUT)),
    call("_C::cutlass_scaled_mm", t(M, N), t(M, K, of=FP8), t(K, N, of=FP8), t(M, 1, of=FP32), t(1, N, of=FP32), NONE,
         model="GEMM", flops=PRODUCT, hbm=X + W_NT + 2 * OUT + 4 * (M + N)),
]  # fmt: skip

B, S, HQ, HKV, D = 2, 16, 8, 2, 32
Q, KV, DO = t(B, S, HQ, D), t(B, S, HKV, D), t(B, S, HQ, D)
CAUSAL_PAIRS = B * S * (S + 1) // 2
FORWARD = 2 * HQ * CAUSAL_PAIRS * (D + D)
BACKWARD = 2 * HQ * CAUSAL_PAIRS * 5 * D + B * S * (HQ - HKV) * 2 * D
QE, KE = B * S * HQ * D, B * S * HKV * D
LSE = t(B, HQ, S, of=FP32)
# 3 prompts of 16 without a past, 5 generating requests with 40 keys each
SUMS_HERE = AttentionSums(
    c_sq=48, c_sk=48, c_sqsq=3 * 16 * 16, c_sqsk=3 * 16 * 16, g_sq=5, g_sk=5 * 40, g_sqsq=5, g_sqsk=5 * 40
)
SERVED = HQ * 2 * D * (3 * 256 + 2 * 200)  # 2*c_sqsk - c_sqsq = 3*256
SERVED_BYTES = 2 * (53 * (HQ + HKV) * 2 * D + (200 - 5) * HKV * 2 * D)
CACHE = t(900, 16, HKV, D)
ATTENTION = [
    call(under("aiter::", "_flash_attn_forward mha_fwd fmha_v3_fwd"), Q, KV, KV, c("0."), c(0.17), c("True"),
         model="SDPA", flops=FORWARD, hbm=2 * (2 * QE + 2 * KE)),
    call("aiter::wrapper_fmha_v3_fwd", DO, Q, KV, KV, c("0."), c(0.17), c("True"),
         model="SDPA", flops=FORWARD, hbm=2 * (2 * QE + 2 * KE)),
    call("aiter::_flash_attn_backward", DO, Q, KV, KV, DO, LSE, Q, KV, KV, NONE, c("0."), c(0.17), c("True"),
         model="SDPABackward", flops=BACKWARD, hbm=2 * (3 * QE + 4 * KE)),
    call("aiter::wrapper_fmha_v3_bwd", DO, Q, KV, KV, DO, LSE, NONE, c("0."), c(0.17), c("True"),
         model="SDPABackward", flops=BACKWARD, hbm=2 * (3 * QE + 4 * KE)),
    call("aiter::mha_bwd", DO, Q, KV, KV, DO, LSE, c("0."), c(0.17), c("True"),
         model="SDPABackward", flops=BACKWARD, hbm=2 * (3 * QE + 4 * KE)),
    call("EvoformerAttention EvoformerFusedAttention", *[t(B, 3, S, HQ, D)] * 3,
         model="SDPA", flops=2 * HQ * (B * 3) * S * S * 2 * D, hbm=2 * 4 * 3 * QE),
    call("vllm::unified_attention_with_output vllm::unified_attention", t(53, HQ, D), t(53, HKV, D), t(53, HKV, D),
         t(53, HQ, D), sums=SUMS_HERE, model="InferenceAttention", flops=SERVED, hbm=SERVED_BYTES),
    call("sglang::unified_attention_with_output", t(53, HQ * D), t(53, HKV, D), t(53, HKV, D), t(53, HQ * D),
         sums=SUMS_HERE, model="InferenceAttention", flops=SERVED, hbm=SERVED_BYTES),
    call("aiter::mha_varlen_fwd aiter::fmha_v3_varlen_fwd aiter::mha_batch_prefill pseudo_mla_prefill_fwd",
         t(53, HQ, D), CACHE, CACHE, sums=SUMS_HERE, model="InferenceAttention", flops=SERVED, hbm=SERVED_BYTES),
    call("pseudo_mla_decode_fwd", t(53, HQ, D), CACHE, sums=SUMS_HERE,
         model="InferenceAttention", flops=SERVED, hbm=SERVED_BYTES),
    call("sglang_profiler::attention_paged_attention_ragged_41", NONE, NONE, t(53, HQ, D), CACHE, CACHE, sums=SUMS_HERE,
         model="InferenceAttention", flops=SERVED, hbm=SERVED_BYTES),
    # decode only, FP8 cache, a window of 10: 5 requests see at most 10 keys each
    call("aiter::pa_decode_gluon", t(5, HQ, D), NONE, t(900, HKV, 4, 16, 8, of=FP8), *[NONE] * 16, c(10),
         sums=SUMS_HERE, model="InferenceAttention", flops=HQ * 2 * D * 2 * 5 * 10,
         hbm=2 * 5 * (HQ + HKV) * 2 * D + (50 - 5) * HKV * 2 * D),
    call("aiter::pa_sparse_prefill_opus_fwd", t(5, HQ, D), t(900, D, of=FP8), t(300, of=INT32), NONE, NONE,
         t(100, of=INT32), model="SparseAttention", flops=2 * 400 * HQ * 2 * D, hbm=2 * 5 * HQ * 2 * D + 400 * D),
    call("sglang_profiler::tilelang_kernel_tilelang_sparse_fwd_9", t(5, HQ, 36), t(900, 1, 36), t(5, 1, 64, of=INT32),
         c(0.1), c(D), model="SparseAttention", flops=2 * 5 * 64 * HQ * (36 + D),
         hbm=2 * (5 * HQ * (36 + D) + 5 * 64 * 36)),
    # 2 key heads of 32 and 4 value heads of 32: a joint width of 2*2*32 + 4*32
    call("vllm::gdn_attention_core aiter::linear_attention_with_output_base", t(5, 2 * 2 * D + 4 * D), t(5, 4), t(5, 4),
         t(5, 4, D), model="LinearAttention", flops=7 * 5 * 4 * D * D, hbm=2 * 5 * (8 * D + 4 * 2 + 4 * D)),
    call("_C_cache_ops::reshape_and_cache_flash _C_cache_ops::reshape_and_cache sglang::store_cache",
         t(5, HKV, D), t(5, HKV, D), t(900, 16, HKV, D, of=FP8), t(900, 16, HKV, D, of=FP8), t(5, of=INT64),
         model="CacheWrite", flops=0, hbm=2 * 5 * HKV * D * (2 + 1)),
    call("_C_cache_ops::concat_and_cache_mla", t(5, 512), t(5, 64), t(900, 16, 576), t(5, of=INT64),
         model="CacheWrite", flops=0, hbm=5 * 576 * (2 + 2)),
]  # fmt: skip

VECTOR, WEIGHT = t(ROWS, H), t(H)
PLAIN = 4 * NORM + 2 * ROWS
NORMS = [
    call("aiter::rms_norm aiter::rmsnorm2d_fwd_ck vllm::rocm_aiter_rms_norm", VECTOR, WEIGHT, c(1e-6), c(0),
         model="RMSNorm", flops=PLAIN, hbm=2 * (2 * NORM + H)),
    call("aiter::rmsnorm _C::rms_norm sgl_kernel::rmsnorm", VECTOR, VECTOR, WEIGHT, c(1e-6),
         model="RMSNorm", flops=PLAIN, hbm=2 * (2 * NORM + H)),
    call("_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm vllm::rocm_aiter_rmsnorm2d_fwd_with_add",
         VECTOR, VECTOR, WEIGHT, c(1e-6), model="RMSNorm", flops=PLAIN + NORM, hbm=2 * (4 * NORM + H)),
    # a scale of the tensor, and one per row
    call("_C::rms_norm_static_fp8_quant", t(ROWS, H, of=FP8), VECTOR, WEIGHT, t(1, of=FP32), c(1e-6),
         model="RMSNorm", flops=PLAIN + 2 * NORM, hbm=2 * (NORM + H) + NORM + 4),
    call("_C::fused_add_rms_norm_static_fp8_quant", t(ROWS, H, of=FP8), VECTOR, VECTOR, WEIGHT, t(1, of=FP32), c(1e-6),
         model="RMSNorm", flops=PLAIN + 3 * NORM, hbm=2 * (3 * NORM + H) + NORM + 4),
    call("_C::rms_norm_dynamic_per_token_quant _C::rms_norm_per_block_quant", t(ROWS, H, of=FP8), VECTOR, WEIGHT, t(ROWS, 1, of=FP32), c(1e-6), NONE,
         VECTOR, model="RMSNorm", flops=PLAIN + 3 * NORM, hbm=2 * (3 * NORM + H) + NORM + 4 * ROWS),
    call("aiter::rmsnorm2d_fwd_with_add_ck aiter::add_rmsnorm", *[VECTOR] * 4, WEIGHT, c(1e-6),
         model="RMSNorm", flops=PLAIN + NORM, hbm=2 * (4 * NORM + H)),
    call("aiter::rmsnorm2d_fwd_with_dynamicquant_ck aiter::rmsnorm_quant", t(ROWS, H, of=FP8), VECTOR,
         t(ROWS, 1, of=FP32), WEIGHT, model="RMSNorm", flops=PLAIN + 2 * NORM, hbm=2 * (NORM + H) + NORM + 4 * ROWS),
    call("aiter::fused_add_rmsnorm_pad_ vllm::rocm_aiter_triton_add_rmsnorm_pad", VECTOR, WEIGHT, c(1e-6), VECTOR,
         model="RMSNorm", flops=PLAIN + NORM, hbm=2 * (4 * NORM + H)),
    call("aiter::_fuse_rmsnorm_fp4_quant sglang_profiler::fused_mxfp4_quant_fused_rms_mxfp4_quant_5",
         VECTOR, WEIGHT, c(1e-6), NONE, NONE, c(0), VECTOR, model="RMSNorm", flops=PLAIN + NORM + 2 * NORM,
         hbm=2 * (3 * NORM + H) + NORM // 2 + NORM // 32),
    call("vllm::rocm_aiter_rmsnorm_fp8_group_quant", VECTOR, WEIGHT, c(1e-6), c(64),
         model="RMSNorm", flops=PLAIN + 2 * NORM, hbm=2 * (NORM + H) + NORM + 4 * NORM // 64),
    call("vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant", VECTOR, VECTOR, WEIGHT, c(1e-6), c(64),
         model="RMSNorm", flops=PLAIN + 3 * NORM, hbm=2 * (3 * NORM + H) + NORM + 4 * NORM // 64),
    call("LigerRMSNormFunction", VECTOR, WEIGHT, c(1e-6), model="RMSNorm", flops=PLAIN,
         hbm=2 * (2 * NORM + H) + 4 * ROWS),
    call("LigerRMSNormFunctionBackward", VECTOR, model="RMSNormBackward", flops=10 * NORM,
         hbm=2 * (3 * NORM + 2 * H) + 4 * ROWS),
    call("LigerLayerNormFunction", VECTOR, WEIGHT, WEIGHT, c(1e-6), model="Normalization", flops=5 * NORM + 6 * H,
         hbm=2 * (2 * NORM + 2 * H) + 4 * 2 * ROWS),
    # 8 groups over 16 channels of 2 x 4 points
    call("aiter::_groupnorm_run", t(ROWS, 16, 2, 4), c(8), t(16), t(16), c(1e-6),
         model="Normalization", flops=5 * NORM + 6 * 16, hbm=2 * (2 * NORM + 2 * 16) + 4 * 2 * ROWS * 8),
    call("aiter::fused_allreduce_rmsnorm", t(1, of=INT64), NONE, *[VECTOR] * 4, WEIGHT, c(1e-6),
         model="AllReduceRMSNorm", flops=PLAIN + NORM, hbm=None, wire=None),
    call("aiter::fused_allreduce_rmsnorm_", VECTOR, VECTOR, WEIGHT, c(1e-6),
         model="AllReduceRMSNorm", flops=PLAIN + NORM, hbm=None, wire=None),
]  # fmt: skip

# 7 tokens choose 2 of 8 experts of 64 -> 32 -> 64; an expert is missed by a token with probability 3/4
T, E, F, HID, TOP = 7, 8, 32, 64, 2
TOUCHED = E * (1 - 0.75**T)
UP, DOWN = 2 * T * HID * F * TOP, 2 * T * HID * F * TOP
FUSED = 2 * UP + DOWN + T * HID * (2 * TOP - 1)
WEIGHTS_UP, WEIGHTS_DOWN = TOUCHED * 2 * HID * F, TOUCHED * HID * F
W1, W2 = t(E, 2 * F, HID), t(E, HID, F)
FUSED_BYTES = 2 * (2 * T * HID + WEIGHTS_UP + WEIGHTS_DOWN)
IDS = t(T, TOP, of=INT32)
MOE = [
    call("aiter::fmoe_fp8_blockscale_g1u1 aiter::fmoe_g1u1", t(T, HID), t(T, HID, of=FP8), t(E, 2 * F, HID, of=FP8),
         t(E, HID, F, of=FP8), NONE, NONE, NONE, NONE, c(TOP), model="MoEFused", flops=FUSED,
         hbm=3 * T * HID + WEIGHTS_UP + WEIGHTS_DOWN),
    call("pseudo_op::moe_aiter_fused_1stage vllm::outplace_fused_experts vllm::inplace_fused_experts"
         " vllm::rocm_aiter_fused_moe sglang::outplace_fused_experts sglang::inplace_fused_experts",
         t(T, HID), W1, W2, t(T, TOP, of=FP32), IDS, model="MoEFused", flops=FUSED, hbm=FUSED_BYTES),
    call("trtllm::fused_moe", t(T, HID), IDS, t(T, TOP, of=FP32), W1, W2,
         model="MoEFused", flops=FUSED, hbm=FUSED_BYTES),
    call("aiter::moe_cktile2stages_gemm1_ck", t(T, HID), t(E, 2 * F, HID // 2, of=BYTE), t(T, TOP, F),
         model="MoEUp", flops=2 * UP, hbm=2 * T * HID + WEIGHTS_UP / 2 + 2 * T * TOP * F),
    call("aiter::moe_cktile2stages_gemm2_ck", t(T, TOP, F), t(E, HID, F // 2, of=BYTE), t(T, HID),
         model="MoEDown", flops=DOWN, hbm=2 * T * TOP * F + WEIGHTS_DOWN / 2 + 2 * T * HID),
    call("aiter::ck_moe_stage1 aiter::ck_moe_stage1_fwd", t(T, HID // 2, of=FP4), t(E, 2 * F, HID // 2, of=FP4),
         t(E, HID, F // 2, of=FP4), NONE, NONE, NONE, t(T, TOP, F),
         model="MoEUp", flops=2 * UP, hbm=T * HID / 2 + WEIGHTS_UP / 2 + 2 * T * TOP * F),
    call("aiter::ck_moe_stage2 aiter::ck_moe_stage2_fwd", t(T, TOP, F // 2, of=FP4), t(E, 2 * F, HID // 2, of=FP4),
         t(E, HID, F // 2, of=FP4), NONE, NONE, NONE, t(T, HID),
         model="MoEDown", flops=DOWN, hbm=T * TOP * F / 2 + WEIGHTS_DOWN / 2 + 2 * T * HID),
    call("sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel_8", t(T, HID), t(E, 2 * F, HID), NONE,
         t(T, TOP, 2 * F), NONE, NONE, NONE, t(T, TOP, of=FP32), IDS,
         model="MoEUp", flops=2 * UP, hbm=2 * (T * HID + WEIGHTS_UP + T * TOP * 2 * F)),
    call("sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel", t(T * TOP, F), t(E, HID, F), NONE,
         t(T, TOP, HID), NONE, NONE, NONE, t(T, TOP, of=FP32), IDS,
         model="MoEDown", flops=DOWN, hbm=2 * (T * TOP * F + WEIGHTS_DOWN + T * HID)),
    call("pseudo_op::moe_gptq_awq_up", t(T, HID), t(E, 2 * F, HID // 2, of=BYTE), t(E, HID, F // 2, of=BYTE),
         t(T, TOP, of=FP32), IDS, model="MoEUp", flops=2 * UP, hbm=2 * T * HID + WEIGHTS_UP / 2 + 2 * T * TOP * F),
    call("pseudo_op::moe_triton_unfused_up", t(T, HID), t(E, HID // 2, 2 * F, of=FP4), t(E, F // 2, HID, of=FP4), IDS,
         model="MoEUp", flops=2 * UP, hbm=2 * T * HID + WEIGHTS_UP * (1 / 2 + 1 / 32) + 2 * T * TOP * F),
    call("pseudo_op::moe_triton_unfused_down", t(T, HID), t(E, HID // 2, 2 * F, of=FP4), t(E, F // 2, HID, of=FP4), IDS,
         model="MoEDown", flops=DOWN, hbm=2 * T * TOP * F + WEIGHTS_DOWN * (1 / 2 + 1 / 32) + 2 * T * HID),
    call("pseudo_op::moe_gptq_awq_down", t(T, HID), t(E, 2 * F, HID // 2, of=BYTE), t(E, HID, F // 2, of=BYTE),
         t(T, TOP, of=FP32), IDS, model="MoEDown", flops=DOWN, hbm=2 * T * TOP * F + WEIGHTS_DOWN / 2 + 2 * T * HID),
    call(under("aiter::", "moe_sorting_fwd mxfp4_moe_sort_hip biased_grouped_topk_hip topk_softplus"
               " moe_sorting_opus_fwd moe_align_block_size moe_sum topk_softmax topk_softmax_asm topk_sigmoid grouped_topk"
               " moe_fused_gate")
         + " _moe_C::topk_softmax _moe_C::moe_sum _moe_C::moe_align_block_size TopK SortTokens"
           " sglang_profiler::fused_moe_triton_kernels_fused_append_shared_experts_2",
         t(T, E), c(TOP), IDS, model="MoEAux", flops=0, hbm=2 * T * E + 4 * T * TOP),
]  # fmt: skip

REST = [
    call("aiter::silu_and_mul _C::silu_and_mul sgl_kernel::silu_and_mul", t(M, K), t(M, 2 * K),
         model="UnaryElementwise", flops=5 * X, hbm=2 * 3 * X),
    call("aiter::gelu_and_mul _C::gelu_and_mul sgl_kernel::gelu_and_mul", t(M, K), t(M, 2 * K),
         model="UnaryElementwise", flops=8 * X, hbm=2 * 3 * X),
    call("aiter::gelu_tanh_and_mul _C::gelu_tanh_and_mul sgl_kernel::gelu_tanh_and_mul", t(M, K), t(M, 2 * K),
         model="UnaryElementwise", flops=10 * X, hbm=2 * 3 * X),
    call("LigerSiLUMulFunction", t(M, K), t(M, K), model="BinaryElementwise", flops=5 * X, hbm=2 * 3 * X),
    call("LigerGELUMulFunction", t(M, K), t(M, K), model="BinaryElementwise", flops=10 * X, hbm=2 * 3 * X),
    call("aiter::mixed_sample_outer_exponential", t(M, of=INT32), t(M, K), t(M, K, of=FP32), t(M, of=FP32), c(1e-10),
         model="Elementwise", flops=X, hbm=2 * X + 4 * X + 4 * M),
    call("aiter::rope_cached_positions_2c_fwd_impl", *[t(S, B, HQ, D), t(S, B, HKV, D)] * 2, t(900, D), t(900, D),
         model="RoPE", flops=3 * (QE + KE), hbm=2 * 2 * (QE + KE)),
    # 24 of the 32 elements of each head turn
    call("sgl_kernel::rotary_embedding _C::rotary_embedding", t(S, of=INT64), t(S, HQ * D), t(S, HKV * D), c(D),
         t(900, 24), c("True"), model="RoPE", flops=3 * S * (HQ + HKV) * 24, hbm=2 * 2 * S * (HQ + HKV) * D),
    call("aiter::fused_qk_rope_cat_and_cache_mla aiter::fused_qk_rope_concat_and_cache_mla", t(S, HQ, 512),
         t(S, HQ, 64), t(S, 512), t(S, 64), t(900, 16, 576, of=FP8), model="RoPE", flops=3 * (S * HQ * 64 + S * 64),
         hbm=2 * 2 * S * HQ * 576 + S * 576 * (2 + 1)),
    call("LigerRopeFunction", t(B, HQ, S, D), t(B, HKV, S, D), t(1, S, D), t(1, S, D),
         model="RoPE", flops=3 * (QE + KE), hbm=2 * 2 * (QE + KE)),
    call("LigerRopeFunctionBackward", t(B, HQ, S, D), t(B, HKV, S, D),
         model="RoPEBackward", flops=3 * (QE + KE), hbm=2 * 2 * (QE + KE)),
    call("LigerCrossEntropyFunction", t(M, 1000), t(M, of=INT64),
         model="CrossEntropy", flops=5 * M * 1000, hbm=2 * 2 * M * 1000),
    call("aiter::dynamic_per_token_scaled_quant aiter::dynamic_per_group_scaled_quant aiter::dynamic_per_tensor_quant"
         " _C::static_scaled_fp8_quant _C::dynamic_scaled_fp8_quant _C::dynamic_per_token_scaled_fp8_quant",
         t(M, K, of=FP8), t(M, K), t(M, 1, of=FP32), model="GroupQuant", flops=2 * X, hbm=(2 + 1) * X + 4 * M),
    call("aiter::dynamic_per_group_scaled_quant_fp4", t(M, K // 2, of=BYTE), t(M, K), t(M, K // 32, of=BYTE),
         model="GroupQuant", flops=2 * X, hbm=2 * X + X // 2 + X // 32),
    call("aiter::fused_dynamic_mxfp4_quant_moe_sort_hip aiter::fused_dynamic_mx_quant_moe_sort_hip",
         t(M, K // 2, of=BYTE), t(M, K // 32, of=BYTE), t(M, K),
         model="GroupQuant", flops=2 * X, hbm=2 * X + X // 2 + X // 32),
    call("vllm::triton_per_token_group_quant_fp8", t(M, K), c(32),
         model="GroupQuant", flops=2 * X, hbm=2 * X + X + 4 * X // 32),
    call("sglang_profiler::quant_dynamic_mxfp4_quant_6 sglang_profiler::fused_mxfp4_quant_fused_flatten_mxfp4_quant",
         t(M, K), model="GroupQuant", flops=2 * X, hbm=2 * X + X // 2 + X // 32),
    # 9 tables of 1000 rows of 160 in all, of which 4 x 9 bags take 500 rows: the moments, one per row, give the width
    call("fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function", t(0, of=FP32), t(9000 * 160, of="c10::Half"),
         t(0, of="c10::Half"), NONE, t(9, of=INT32), t(9, of=INT64), t(10, of=INT32), NONE, NONE, t(10, of=INT64), NONE,
         t(500, of=INT64), t(37, of=INT64), *[NONE] * 7, t(9000, of=FP32), t(0, of=FP32),
         model="PooledLookup", flops=500 * 160, hbm=500 * 160 * 2 + 8 * (500 + 37) + 36 * 160 * 4),
    call("fbgemm::split_embedding_codegen_lookup_approx_rowwise_adagrad_function "
         "fbgemm::split_embedding_codegen_lookup_rowwise_weighted_adagrad_function "
         "fbgemm::split_embedding_codegen_lookup_adagrad_function fbgemm::split_embedding_codegen_lookup_sgd_function "
         "fbgemm::split_embedding_codegen_lookup_approx_sgd_function "
         "fbgemm::split_embedding_codegen_lookup_lars_sgd_function "
         "fbgemm::split_embedding_codegen_lookup_adam_function fbgemm::split_embedding_codegen_lookup_lamb_function "
         "fbgemm::split_embedding_codegen_lookup_partial_rowwise_adam_function "
         "fbgemm::split_embedding_codegen_lookup_partial_rowwise_lamb_function "
         "fbgemm::split_embedding_codegen_lookup_none_function",
         t(0, of=FP32), t(9000 * 160, of=FP32), t(0, of=FP32), NONE, t(9, of=INT32), t(9, of=INT64), t(10, of=INT32),
         c(9 * 160), NONE, t(10, of=INT64), NONE, t(500, of=INT64), t(37, of=INT64),
         model="PooledLookup", flops=500 * 160, hbm=500 * 160 * 4 + 8 * (500 + 37) + 36 * 160 * 4),
    call("fbgemm::dense_embedding_codegen_lookup_function", t(112, of=FP32), t(2, of=INT64), t(3, of=INT32), c(32),
         NONE, t(3, of=INT64), NONE, t(500, of=INT64), t(33, of=INT64),
         # The 500 look-ups read a table of 112 elements again and again
         model="PooledLookup", flops=500 * 16, hbm=112 * 4 + 8 * (500 + 33) + 32 * 16 * 4),
    call("fbgemm::permute_2D_sparse_data fbgemm::permute_sparse_features", t(30, of=INT32), t(20, 8, of=INT32),
         t(700, of=INT32), NONE, NONE, model="Movement", flops=0, hbm=4 * (2 * 700 + 20 * 8 + 30 * 8)),
    call("fbgemm::permute_1D_sparse_data", t(30, of=INT32), t(20, of=INT32), t(700, of=INT32), t(700, of=FP32), c(900),
         model="Movement", flops=0, hbm=4 * (700 + 900 + 20 + 30 + 2 * 900)),
    call("fbgemm::bounds_check_indices", t(9, of=INT64), t(500, of=INT64), t(37, of=INT64),
         model="Movement", flops=0, hbm=8 * (9 + 500 + 37)),
    call("fbgemm::asynchronous_complete_cumsum", t(36, of=INT32), model="Movement", flops=36, hbm=4 * (36 + 37)),
    call("fbgemm::asynchronous_inclusive_cumsum", t(36, of=INT32), model="Movement", flops=36, hbm=4 * (36 + 36)),
    call("fbgemm::FloatToHFP8Quantized", t(X, of=FP32), model="GroupQuant", flops=2 * X, hbm=4 * X + X),
    call("fbgemm::HFP8QuantizedToFloat", t(X, of=BYTE), model="GroupQuant", flops=2 * X, hbm=X + 4 * X),
    call("fbgemm::FloatToFP8RowwiseQuantized", t(M, K, of=FP32), c("True"),
         model="GroupQuant", flops=2 * X, hbm=4 * X + X + 8 * M),
    call("fbgemm::FP8RowwiseQuantizedToFloat", t(M, K + 8, of=BYTE), c("True"),
         model="GroupQuant", flops=2 * X, hbm=X + 4 * X + 8 * M),
    call("fbgemm::permute_pooled_embs_auto_grad fbgemm::permute_pooled_embs", t(M, K, of=FP32),
         model="Movement", flops=0, hbm=2 * 4 * X),
    call("_C_custom_ar::all_reduce _C_custom_ar::qr_all_reduce sgl_kernel::all_reduce_reg sgl_kernel::qr_all_reduce",
         NONE, VECTOR, VECTOR, model="CustomCollective", flops=0, hbm=None, wire=None),
    call("trtllm::allreduce", VECTOR, model="CustomCollective", flops=0, hbm=None, wire=None),
    # 4 ranks: 3/4 of the larger side leaves the rank
    call("aiter::reduce_scatter", NONE, t(4 * ROWS, H), VECTOR,
         model="CustomCollective", flops=0, hbm=None, wire=2 * 4 * NORM * 3 / 4),
    call("aiter::all_gather_reg", NONE, VECTOR, t(4 * ROWS, H),
         model="CustomCollective", flops=0, hbm=None, wire=2 * 4 * NORM * 3 / 4),
    call("sglang::reg_all_gather_into_tensor", t(4 * ROWS, H), VECTOR, NONE,
         model="CustomCollective", flops=0, hbm=None, wire=2 * 4 * NORM * 3 / 4),
    call("deepep::dispatch deepep::combine hybridep::dispatch hybridep::combine FusedDispatch FusedCombine"
         " FusedDispatchBackward FusedCombineBackward deep_ep::intranode_dispatch deep_ep::intranode_combine"
         " deep_ep::internode_dispatch deep_ep::internode_combine HybridEPDispatch HybridEPCombine"
         " HybridEPDispatchBackward HybridEPCombineBackward", t(T, HID), t(T, TOP, of=INT64),
         model="EPComm", flops=0, wire=2 * T * HID),
    call("deep_ep::low_latency_dispatch", t(T, HID), t(T, TOP, of=INT64),
         model="EPComm", flops=0, wire=2 * T * TOP * HID),
    call("deep_ep::low_latency_combine", t(4, 512, HID), t(T, TOP, of=INT64),
         model="EPComm", flops=0, wire=2 * T * TOP * HID),
    # 5 tokens, 4 streams of 64 channels, 24 coefficients
    call("aiter::mhc_post", t(5, 4, 64), t(5, 64), t(5, 4, 64),
         model="HyperConnectionPost", flops=2 * 5 * 4 * 64 * 5, hbm=2 * (2 * 5 * 4 * 64 + 5 * 64)),
    call("aiter::mhc_pre_gemm_sqrsum", t(1, 5, 24, of=FP32), t(1, 5, of=FP32), t(5, 4, 64), t(24, 256, of=FP32),
         model="HyperConnectionCoefficients", flops=2 * 5 * 24 * 256, hbm=2 * 5 * 256 + 4 * 24 * 256 + 4 * 5 * 25),
    call("aiter::mhc_pre_big_fuse_rmsnorm", NONE, NONE, t(5, 64), NONE, NONE, NONE, NONE, t(5, 4, 64), t(64),
         model="HyperConnectionPre", flops=2 * 5 * 256 + 5 * 5 * 64, hbm=2 * (5 * 256 + 5 * 64 + 64)),
    call("aiter::mhc_fused_post_pre_gemm_sqrsum", NONE, NONE, t(5, 4, 64), t(5, 64), t(5, 4, 64), NONE, NONE,
         t(24, 256, of=FP32), model="HyperConnectionPostPre", flops=2 * 5 * 4 * 64 * 5 + 2 * 5 * 24 * 256,
         hbm=2 * (2 * 5 * 256 + 5 * 64) + 4 * 24 * 256 + 4 * 5 * 25),
    call("DaoAILab::_causal_conv1d_fwd_cpp", t(B, K, S), t(K, 4), t(K),
         model="CausalConv1d", flops=2 * B * K * S * 4, hbm=2 * (2 * B * K * S + 5 * K)),
    call("DaoAILab::_causal_conv1d_update_cpp", t(B, K, 1), t(B, K, 4), t(K, 4), t(K),
         model="CausalConv1d", flops=2 * B * K * 4, hbm=2 * (2 * B * K + 5 * K)),
    call("DaoAILab::_causal_conv1d_bwd_cpp", t(B, K, S), t(K, 4), t(K), t(B, K, S),
         model="CausalConv1dBackward", flops=4 * B * K * S * 4, hbm=2 * (3 * B * K * S + 9 * K)),
    # 4 heads of 8, 1 group, a state of 16: w = 2*4*8 + 2*16 + 4 = 100; the convolution runs over x, B and C: 64 channels
    call("MambaSplitConv1dScanCombinedFn", t(B, S, 100), t(64, 4), t(64), t(4), t(4), t(4), c(8), *[NONE] * 8, c(8), c(1),
         model="MambaChunkScan",
         flops=2 * B * S * 64 * 4 + 2 * B * S * 8 * 16 + 2 * B * S * 4 * 8 * 8 + 4 * B * S * 4 * 16 * 8,
         hbm=2 * B * S * (100 + 32)),
    # 2 key heads shared by 4 value heads of 8; a gate and a weight of the update per value head
    call("ChunkGatedDeltaRuleFunction", t(B, S, 2, 8), t(B, S, 2, 8), t(B, S, 4, 8), t(B, S, 4, of=FP32), t(B, S, 4),
         model="LinearAttention", flops=7 * B * S * 4 * 64, hbm=2 * B * S * (2 * 16 + 32 + 4 * 2 + 32)),
    call("ChunkKDAFunction", t(B, S, 4, 8), t(B, S, 4, 8), t(B, S, 4, 8), t(B, S, 4, 8, of=FP32), t(B, S, 4),
         model="LinearAttention", flops=7 * B * S * 4 * 64, hbm=2 * B * S * (3 * 32 + 4 * 9 + 32)),
    call("ConvBias_ ConvBiasReLU_", t(B, 3, 8, 8), t(5, 3, 3, 3), t(5), c(1), c(1),
         model="Conv", flops=2 * 27 * B * 5 * 64 + B * 5 * 64, hbm=2 * (B * 3 * 64 + 135 + B * 5 * 64 + 5)),
]  # fmt: skip


def in_primus(names: str) -> str:
    return " ".join(under(f"{space}::", names) for space in ("primus_turbo", "primus_turbo_cpp_extension"))


def te_gemm() -> tuple[Slot, ...]:
    """A [m,k] transposed, B [n,k] not, out [n,m]; types as numbers, an empty bias."""
    return (
        t(M, K), NONE, NONE, c(5), c(1), t(N, K), NONE, NONE, c(5), c(0), t(N, M), NONE, c(5), NONE, t(0), c(5),
        t(0), c(0), t(8, of=BYTE),
    )  # fmt: skip


G = 4  # groups
W_G = G * W_NT
LENGTHS, OFFSETS, SCALE = t(G, of=INT64), t(G + 1, of=INT64), t(1, of=FP32)
PACKED = (t(B + 1, of=INT32), t(B + 1, of=INT32), c(S), c(S), c("0."), c(0.17), c("True"))
Q_ROWS, KV_ROWS = t(B * S, HQ, D), t(B * S, HKV, D)
TRAINING = [
    call("FlashAttnFunc flash_attn::_flash_attn_forward", Q, KV, KV, c("0."), c(0.17), c("True"),
         model="SDPA", flops=FORWARD, hbm=2 * (2 * QE + 2 * KE)),
    call("flash_attn::_flash_attn_backward", DO, Q, KV, KV, DO, LSE, Q, KV, KV, c("0."), c(0.17), c("True"),
         model="SDPABackward", flops=BACKWARD, hbm=2 * (3 * QE + 4 * KE)),
    call("flash_attn_3::fwd", Q, KV, KV, *[NONE] * 21, c("True"),
         model="SDPA", flops=FORWARD, hbm=2 * (2 * QE + 2 * KE)),
    call("flash_attn_3::bwd", DO, Q, KV, KV, DO, LSE, Q, KV, KV, *[NONE] * 7, c("True"),
         model="SDPABackward", flops=BACKWARD, hbm=2 * (3 * QE + 4 * KE)),
    call("flash_attn_3::fwd", Q_ROWS, KV_ROWS, KV_ROWS, *[NONE] * 4, *PACKED[:2], *[NONE] * 3, *PACKED[2:4], *[NONE] * 10,
         c("True"), model="SDPA", flops=FORWARD, hbm=2 * (2 * QE + 2 * KE)),
    call("xformers_flash::flash_fwd", Q, KV, KV, *[NONE] * 3, c(S), c(S), c("0."), c(0.17), c("True"), c(-1), c(-1),
         model="SDPA", flops=FORWARD, hbm=2 * (2 * QE + 2 * KE)),
    call("xformers_flash::flash_bwd", c("True"), Q_ROWS, Q_ROWS, KV_ROWS, KV_ROWS, Q_ROWS, LSE, *PACKED,
         model="SDPABackward", flops=BACKWARD, hbm=2 * (3 * QE + 4 * KE)),
    # two sequences, both as long as the longest
    call("flash_attn::_flash_attn_varlen_forward", Q_ROWS, KV_ROWS, KV_ROWS, *PACKED,
         model="SDPA", flops=FORWARD, hbm=2 * (2 * QE + 2 * KE)),
    call("flash_attn::_flash_attn_varlen_backward", Q_ROWS, Q_ROWS, KV_ROWS, KV_ROWS, Q_ROWS, LSE, Q_ROWS, KV_ROWS,
         KV_ROWS, *PACKED, model="SDPABackward", flops=BACKWARD, hbm=2 * (3 * QE + 4 * KE)),
    # layout s b h d, two sequences
    call("FusedAttnFunc", NONE, c(S), c(S), t(B + 1, of=INT32), t(B + 1, of=INT32), *[NONE] * 4, t(S, B, HQ, D),
         t(S, B, HKV, D), t(S, B, HKV, D), model="FusedAttention", flops=FORWARD, hbm=2 * (2 * QE + 2 * KE)),
    call("DeepEPDispatch DeepEPCombineBackward", t(T, HID), model="DeepEPDispatch", flops=0, wire=2 * T * HID),
    call("DeepEPCombine DeepEPDispatchBackward", t(T, HID), model="DeepEPCombine", flops=0, wire=2 * T * HID),
    call("MoEDispatch MoECombine", t(T, HID), model="MoETransfer", flops=0, wire=2 * T * HID),
    call("MoEDispatchBackward MoECombineBackward", t(T, HID), model="MoETransferBackward", flops=0, wire=2 * T * HID),
    call("GroupedGemm", t(M, K), t(G, K, N), LENGTHS, c("False"),
         model="GroupedGEMM", flops=PRODUCT, hbm=2 * (X + W_G + OUT)),
    call("_GroupedLinear", t(M, K), NONE, NONE, *[t(N, K)] * G,
         model="GroupedGEMM", flops=PRODUCT, hbm=2 * (X + W_G + OUT)),
    call(in_primus("grouped_gemm grouped_gemm_impl ck_grouped_gemm ck_grouped_gemm_impl hipblaslt_grouped_gemm"),
         t(M, K), t(G, N, K), LENGTHS, OFFSETS, model="GroupedGEMM", flops=PRODUCT, hbm=2 * (X + W_G + OUT)),
    call(in_primus("grouped_gemm_fp8 ck_grouped_gemm_fp8 hipblaslt_grouped_gemm_fp8"), t(M, K, of=FP8),
         t(G, N, K, of=FP8), SCALE, SCALE, LENGTHS, OFFSETS, c("False"), c("True"), c(15),
         model="GroupedGEMM", flops=PRODUCT, hbm=X + W_G + 2 * OUT),
    # one result per group
    call(in_primus("grouped_gemm_variable_k grouped_gemm_variable_k_impl ck_grouped_gemm_variable_k"
                   " ck_grouped_gemm_variable_k_impl"), t(M, K), t(M, N), LENGTHS, OFFSETS,
         model="GroupedGEMMVariableK", flops=PRODUCT, hbm=2 * (X + OUT + W_G)),
    call(in_primus("grouped_gemm_fp8_variable_k ck_grouped_gemm_fp8_variable_k"), t(M, K, of=FP8), t(M, N, of=FP8),
         SCALE, SCALE, LENGTHS, OFFSETS, c("True"), c("False"), c(15),
         model="GroupedGEMMVariableK", flops=PRODUCT, hbm=X + OUT + 2 * W_G),
    call(in_primus("hipblaslt_gemm_fp8 turbo_gemm_fp8"), t(M, K, of=FP8), SCALE, t(N, K, of=FP8), SCALE, c(15),
         c("False"), c("True"), c("False"), model="GEMM", flops=PRODUCT, hbm=X + W_NT + 2 * OUT + 2 * 4),
    call(in_primus("hipblaslt_gemm_fp4"), t(M, K // 2, of=FP4), t(M, K // 32, of=E8M0), t(N, K // 2, of=FP4),
         t(N, K // 32, of=E8M0), c(15), c("False"), c("True"), c("False"),
         model="GEMM", flops=PRODUCT, hbm=(X + W_NT) // 2 + (X + W_NT) // 32 + 2 * OUT),
    call(in_primus("quantize_fp8_tensorwise"), t(M, K), c(24), model="UnaryElementwise", flops=X, hbm=(2 + 1) * X),
    call(in_primus("quantize_mxfp4_dual") + " primus::quantize_mxfp4_dual", t(M, K),
         model="DualQuantization", flops=2 * X, hbm=2 * X + 2 * (X // 2 + X // 32)),
    call("primus::fused_ln_modulate", VECTOR, model="FusedLayerNormModulate", flops=12 * NORM, hbm=2 * 2 * NORM),
    call("primus::fused_ln_modulate_backward", VECTOR,
         model="FusedLayerNormModulateBackward", flops=15 * NORM, hbm=2 * 3 * NORM),
    call("tex_ts::te_gemm_ts", *te_gemm(), model="GEMM", flops=PRODUCT, hbm=2 * (X + W_NT + OUT)),
    call("_Linear_yfwd_mm _LayerNormLinear_yfwd_mm _LinearBackward_xgrad_mm _LinearBackward_wgrad_mm"
         " _LayerNormLinearBackward_xgrad_mm _LayerNormLinearBackward_wgrad_mm _LayerNormMLP_fc1_yfwd_mm"
         " _LayerNormMLP_fc2_yfwd_mm _LayerNormMLPBackward_fc1_xgrad_mm _LayerNormMLPBackward_fc1_wgrad_mm"
         " _LayerNormMLPBackward_fc2_xgrad_mm _LayerNormMLPBackward_fc2_wgrad_mm",
         t(M, K), t(K, N), model="GEMM", flops=PRODUCT, hbm=2 * (X + W_NT + OUT)),
    call("LayerNormFn", VECTOR, WEIGHT, WEIGHT, model="Normalization", flops=5 * NORM + 6 * H,
         hbm=2 * (2 * NORM + 2 * H) + 4 * 2 * ROWS),
    call("LayerNormFnBackward", VECTOR, model="NormalizationBackward", flops=9 * NORM,
         hbm=2 * (3 * NORM + 3 * H) + 4 * 2 * ROWS),
    call("FusedRoPEFunc", t(S, B, HQ, D), model="RoPE", flops=3 * QE, hbm=2 * 2 * QE),
    call("FusedRoPEFunc", t(S, B, HQ, D), t(S, 1, 1, D // 2), model="RoPE", flops=3 * QE // 2, hbm=2 * 2 * QE),
    call("FusedRoPEFuncBackward", t(S, B, HQ, D), model="RoPEBackward", flops=3 * QE, hbm=2 * 2 * QE),
    call("CrossEntropyFunction", t(B, 1, 1000), model="CrossEntropy", flops=5 * B * 1000, hbm=2 * 2 * B * 1000),
    call(under("symm_mem::", "one_shot_all_reduce one_shot_all_reduce_out two_shot_all_reduce_ two_shot_all_reduce_out"
               " multimem_all_reduce_ multimem_one_shot_all_reduce multimem_one_shot_all_reduce_out"),
         VECTOR, c("sum"), c("0"), model="CustomCollective", flops=0, hbm=None, wire=None),
    call("symm_mem::one_shot_all_reduce_copy symm_mem::one_shot_all_reduce_copy_out", VECTOR, VECTOR, c("sum"), c("0"),
         model="CustomCollective", flops=0, hbm=None, wire=None),
    call("symm_mem::multimem_all_gather_out", VECTOR, c("0"), t(4 * ROWS, H),
         model="CustomCollective", flops=0, hbm=None, wire=2 * 4 * NORM * 3 / 4),
    call("symm_mem::reduce_scatter_out", t(4 * ROWS, H), c("0"), c("False"), VECTOR,
         model="CustomCollective", flops=0, hbm=None, wire=2 * 4 * NORM * 3 / 4),
]  # fmt: skip
SCALES = t(K // 32, N)
INT4_BYTES = 2 * X + W_NT / 2 + 2 * OUT + 2 * (K // 32) * N
PACKED_WEIGHT, WORKSPACE = t(K // 16, N * 2, of=INT32), t(100, of=INT32)
TRIPLE = (c(M), c(N), c(K))
LOGITS = t(ROWS, 4096, of=FP32)
PRODUCTS = [
    # vLLM's Marlin with a bias slot, its newer one with scales of A, and SGLang's: the sizes are where they are found
    call("_C::gptq_marlin_gemm", t(M, K), NONE, PACKED_WEIGHT, NONE, SCALES, NONE, NONE, NONE, NONE, WORKSPACE, c(4),
         *TRIPLE, c("True"), model="GEMM", flops=PRODUCT, hbm=INT4_BYTES),
    call("_C::marlin_gemm", t(M, K), NONE, PACKED_WEIGHT, NONE, SCALES, NONE, NONE, NONE, NONE, NONE, WORKSPACE, c(4),
         *TRIPLE, c("True"), model="GEMM", flops=PRODUCT, hbm=INT4_BYTES),
    call("sgl_kernel::gptq_marlin_gemm", t(M, K), NONE, PACKED_WEIGHT, SCALES, NONE, NONE, NONE, NONE, WORKSPACE, c(4),
         *TRIPLE, c("True"), model="GEMM", flops=PRODUCT, hbm=INT4_BYTES),
    call("_C::gptq_marlin_24_gemm", t(M, K), PACKED_WEIGHT, SCALES, WORKSPACE, c(4), *TRIPLE,
         model="GEMM", flops=PRODUCT, hbm=INT4_BYTES),
    call("_C::fp8_marlin_gemm", t(M, K), t(K // 16, N * 4, of=INT32), t(1, N), WORKSPACE, c(8), *TRIPLE,
         model="GEMM", flops=PRODUCT, hbm=2 * X + W_NT + 2 * OUT + 2 * N),
    call("_C::awq_gemm", t(M, K), t(K, N // 8, of=INT32), SCALES, t(K // 32, N // 8, of=INT32), c(8),
         model="GEMM", flops=PRODUCT, hbm=INT4_BYTES),
    call("_C::gptq_gemm sgl_kernel::gptq_gemm", t(M, K), t(K // 8, N, of=INT32), t(K // 32, N // 8, of=INT32), SCALES,
         t(K, of=INT32), c("True"), c(4), model="GEMM", flops=PRODUCT, hbm=INT4_BYTES),
    call("_C::machete_mm", t(M, K), t(K // 8, N, of=INT32), c(4), NONE, SCALES, NONE, c(32), NONE, NONE, NONE,
         model="GEMM", flops=PRODUCT, hbm=INT4_BYTES),
    call("_C::awq_dequantize sgl_kernel::awq_dequantize", t(K, N // 8, of=INT32), SCALES, t(K // 32, N // 8, of=INT32),
         model="Movement", flops=2 * W_NT,
         hbm=4 * K * N // 8 + 2 * (K // 32) * N + 4 * (K // 32) * (N // 8) + 2 * W_NT),
    call("sgl_kernel::fp8_scaled_mm sgl_kernel::fp8_blockwise_scaled_mm", t(M, K, of=FP8), t(K, N, of=FP8),
         t(M, of=FP32), t(N, of=FP32), c(15), model="GEMM", flops=PRODUCT, hbm=X + W_NT + 2 * OUT + 4 * (M + N)),
    call("sgl_kernel::int8_scaled_mm", t(M, K, of=INT8), t(K, N, of=INT8), t(M, of=FP32), t(N, of=FP32), c(5), t(N),
         model="GEMM", flops=PRODUCT + OUT, hbm=X + W_NT + 2 * OUT + 4 * (M + N) + 2 * N),
    call("_C::cutlass_scaled_fp4_mm sgl_kernel::cutlass_scaled_fp4_mm", t(M, N), t(M, K // 2, of=BYTE),
         t(N, K // 2, of=BYTE), t(M, K // 16, of=FP8), t(N, K // 16, of=FP8), t(1, of=FP32),
         model="GEMM", flops=PRODUCT, hbm=(X + W_NT) / 2 + 2 * OUT + (M + N) * (K // 16)),
    call("sgl_kernel::bmm_fp8", t(B, M, K, of=FP8), t(B, K, N, of=FP8), t(B, M, N), t(1, of=FP32), t(1, of=FP32),
         model="GEMM", flops=B * PRODUCT, hbm=B * (X + W_NT + 2 * OUT) + 8),
    call("sgl_kernel::dsv3_fused_a_gemm sgl_kernel::dsv3_router_gemm _C::dsv3_fused_a_gemm", t(M, N), t(M, K), t(N, K),
         model="GEMM", flops=PRODUCT, hbm=2 * (X + W_NT + OUT)),
    call("_C::cutlass_moe_mm", t(M, N), t(M, K, of=FP8), t(E, K, N, of=FP8), t(M, of=FP32), t(E, of=FP32),
         t(E, of=INT32), model="GroupedGEMM", flops=PRODUCT, hbm=X + E * W_NT + 2 * OUT + 4 * (M + E)),
    call("sgl_kernel::fp8_blockwise_scaled_grouped_mm", t(M, N), *[t(E, of=INT64)] * 5, t(M, K, of=FP8),
         t(E, K, N, of=FP8), t(M, 4, of=FP32), t(E, 4, of=FP32),
         model="GroupedGEMM", flops=PRODUCT, hbm=X + E * W_NT + 2 * OUT + 16 * (M + E)),
    call("sgl_kernel::cutlass_fp4_group_mm _C::cutlass_fp4_group_mm", t(M, N), t(M, K // 2, of=BYTE),
         t(E, N, K // 2, of=BYTE), t(M, K // 16, of=FP8), t(E, N, K // 16, of=FP8),
         model="GroupedGEMM", flops=PRODUCT, hbm=(X + E * W_NT) / 2 + 2 * OUT + (M + E * N) * (K // 16)),
    call("sgl_kernel::cutlass_w4a8_moe_mm", t(M, N), t(M, K, of=FP8), t(E, N, K // 2, of=INT8), *[NONE] * 9, c(TOP),
         model="GroupedGEMM", flops=PRODUCT, hbm=X + E * W_NT / 2 + 2 * OUT),
    call("_moe_C::moe_wna16_marlin_gemm sgl_kernel::moe_wna16_marlin_gemm", t(T, HID), NONE,
         t(E, HID // 16, F * 2, of=INT32), t(E, HID // 32, F), NONE, NONE, NONE, WORKSPACE, t(64, of=INT32),
         t(E, of=INT32), t(1, of=INT32), t(T, TOP, of=FP32), c(16), c(TOP), c("True"), c("False"), c(4), c(T), c(F),
         c(HID), model="MoEUp", flops=UP, hbm=2 * T * HID + TOUCHED * HID * F / 2 + 2 * T * TOP * F),
    call("trtllm::fp8_block_scale_moe_runner flashinfer::trtllm_fp8_block_scale_moe"
         " vllm::flashinfer_fused_moe_blockscale_fp8", t(T, E, of=FP32), t(E), t(T, HID, of=FP8), t(1, T, of=FP32),
         t(E, 2 * F, HID, of=FP8), t(E, 1, 1, of=FP32), t(E, HID, F, of=FP8), t(E, 1, 1, of=FP32), c(E), c(TOP),
         model="MoEFused", flops=FUSED, hbm=2 * T * HID + WEIGHTS_UP + WEIGHTS_DOWN),
    call("trtllm::fp4_block_scale_moe_runner flashinfer::trtllm_fp4_block_scale_moe", t(T, E), NONE, t(T, HID, of=FP8),
         NONE, t(E, 2 * F, HID // 2, of=BYTE), t(E, 2 * F, 4, of=BYTE), *[NONE] * 4, t(E, HID, F // 2, of=BYTE),
         t(E, HID, 2, of=BYTE), NONE, NONE, NONE, NONE, c(E), c(TOP),
         model="MoEFused", flops=FUSED, hbm=2 * T * HID + (WEIGHTS_UP + WEIGHTS_DOWN) / 2),
    call("sageattention_qattn_sm89::qk_int8_sv_f8_accum_f32_attn", t(B, S, HQ, D, of=INT8), t(B, S, HKV, D, of=INT8),
         t(B, D, HKV, S, of=FP8), t(B, S, HQ, D), t(B, HQ, 1, of=FP32), t(B, HKV, 1, of=FP32), c(0), c(1), c(3), c(0.1),
         c(0), model="SDPA", flops=FORWARD, hbm=QE + KE + KE + 2 * QE),
    call("sgl_kernel::gemma_rmsnorm", VECTOR, VECTOR, WEIGHT, c(1e-6),
         model="RMSNorm", flops=PLAIN, hbm=2 * (2 * NORM + H)),
    call("sgl_kernel::gemma_fused_add_rmsnorm", VECTOR, VECTOR, WEIGHT, c(1e-6),
         model="RMSNorm", flops=PLAIN + NORM, hbm=2 * (4 * NORM + H)),
    call("sgl_kernel::apply_rope_pos_ids_cos_sin_cache", t(ROWS, HQ, D), t(ROWS, HKV, D), t(ROWS, HQ, D),
         t(ROWS, HKV, D), t(4096, D, of=FP32), t(ROWS, of=INT64),
         model="RoPE", flops=3 * ROWS * (HQ + HKV) * D, hbm=2 * 2 * ROWS * (HQ + HKV) * D),
    call("sgl_kernel::sgl_per_token_group_quant_fp8 sgl_kernel::sgl_per_token_quant_fp8 "
         "sgl_kernel::sgl_per_tensor_quant_fp8", VECTOR, t(ROWS, H, of=FP8), t(ROWS, of=FP32),
         model="GroupQuant", flops=2 * NORM, hbm=3 * NORM + 4 * ROWS),
    call("sgl_kernel::sgl_per_token_group_quant_int8 sgl_kernel::sgl_per_token_group_quant_8bit", VECTOR,
         t(ROWS, H, of=INT8), t(ROWS, of=FP32), model="GroupQuant", flops=2 * NORM, hbm=3 * NORM + 4 * ROWS),
    call("_C::scaled_fp4_quant", VECTOR, t(1, of=FP32), c("True"), model="GroupQuant", flops=2 * NORM,
         hbm=2 * NORM + NORM / 2 + NORM / 16),
    call("_C::static_scaled_int8_quant _C::dynamic_scaled_int8_quant", t(ROWS, H, of=INT8), VECTOR, t(1, of=FP32), NONE,
         model="GroupQuant", flops=2 * NORM, hbm=(2 + 1) * NORM + 4),
    call("_C::silu_and_mul_quant", t(M, K, of=FP8), t(M, 2 * K), t(1, of=FP32),
         model="UnaryElementwise", flops=6 * X, hbm=2 * 2 * X + X),
    call("_C::scaled_fp4_quant sgl_kernel::scaled_fp4_quant", t(ROWS, H // 2, of=BYTE), VECTOR, t(ROWS, H // 16, of=FP8), t(1, of=FP32),
         model="GroupQuant", flops=2 * NORM, hbm=2 * NORM + NORM / 2 + NORM / 16),
    call("sgl_kernel::topk_softmax sgl_kernel::moe_align_block_size sgl_kernel::moe_fused_gate "
         "sgl_kernel::prepare_moe_input sgl_kernel::get_cutlass_w4a8_moe_mm_data", t(T, TOP, of=FP32), IDS,
         model="MoEAux", flops=0, hbm=8 * T * TOP),
    call("sgl_kernel::shuffle_rows", t(T, HID), t(T * TOP, of=INT32), t(T * TOP, HID),
         model="Movement", flops=0, hbm=2 * 2 * T * TOP * HID + 4 * T * TOP),
    call("sgl_kernel::apply_shuffle_mul_sum", t(T * TOP, HID), t(T, HID), t(T * TOP, of=INT32), t(T * TOP, of=FP32),
         model="Movement", flops=(2 * TOP - 1) * T * HID, hbm=2 * (TOP + 1) * T * HID + 8 * T * TOP),
    call("sgl_kernel::top_k_top_p_sampling_from_probs sgl_kernel::top_p_sampling_from_probs "
         "sgl_kernel::min_p_sampling_from_probs", LOGITS, t(ROWS, of=INT32),
         model="Movement", flops=0, hbm=4 * ROWS * 4096 + 4 * ROWS),
    call("sgl_kernel::top_k_renorm_probs sgl_kernel::top_p_renorm_probs", LOGITS, LOGITS,
         model="Movement", flops=0, hbm=2 * 4 * ROWS * 4096),
]  # fmt: skip

CALLS = [*GEMMS, *ATTENTION, *NORMS, *MOE, *REST, *TRAINING, *PRODUCTS]


EXACT = overlay(Registry("traced_as", {}), bundled_extensions())
PATTERNS = [
    (re.compile(key), claim) for key, claim in overlay(Registry("traced_as_pattern", {}), bundled_extensions()).items()
]
#: Names of the core that are no ATen ops (those are in tests/perf_models/test_recorded_aten.py).
CORE = {name: claim for name, claim in perf_models.bindings().items() if name.startswith("symm_mem::")}


def read(name: str, made: Call) -> PerfModel:
    exact = EXACT.get(name) or CORE.get(name)
    claim = exact or next(claim for pattern, claim in PATTERNS if pattern.match(name))
    signature = OpSignature(
        name=name,
        shapes=tuple(slot.shape for slot in made.slots),
        dtypes=tuple(slot.dtype for slot in made.slots),
        scalars=tuple(slot.scalar for slot in made.slots),
        attributes=() if made.sums is None else ((SUMS, made.sums),),
    )
    model = claim.target(signature)
    assert perf_models.category_of(claim) == (claim.options["category"] or model.category)
    return model


@row_by_row(("name", "made"), [(n, made) for made in CALLS for n in made.names])
def test_a_recorded_call_costs_what_its_dimensions_say(name: str, made: Call):
    model = read(name, made)
    assert type(model).__name__ == made.model
    assert model.flops() == pytest.approx(made.flops, rel=1e-12)
    for found, expected in ((model.hbm_bytes(), made.hbm), (model.wire_bytes(), made.wire)):
        assert found == (expected if expected is None else pytest.approx(expected, rel=1e-12))
    assert model.parameters()


@row_by_row("made", CALLS)
def test_an_unknown_type_gives_no_bytes_and_never_a_default_width(made: Call):
    unknown = Call(
        made.names, tuple(Slot(s.shape, "Foo" if s.shape else s.dtype, s.scalar) for s in made.slots), made.model,
        made.flops, sums=made.sums,
    )  # fmt: skip
    model = read(made.names[0], unknown)
    assert (model.hbm_bytes(), model.flops()) == (None, pytest.approx(made.flops))


@pytest.mark.parametrize("made", [made for made in CALLS if made.sums], ids=lambda made: made.names[0])
def test_attention_without_its_steps_annotation_has_no_model(made: Call):
    bare = Call(made.names, made.slots, made.model, made.flops)
    with pytest.raises(SignatureError, match="no step annotation gives the context length"):
        read(made.names[0], bare)


def test_every_name_has_a_signature_here():
    shown = {name for made in CALLS for name in made.names}
    with_blanks = {name for name in EXACT if " " in name}  # a C++ type, read like the forward op beside it
    assert {*EXACT, *CORE} - shown - with_blanks == set()
    elsewhere = {"sage_fwd"}  # its FLOPs are unknown: tests/perf_models/test_flex_attention.py
    assert [p.pattern for p, _ in PATTERNS if not any(p.match(name) for name in shown | elsewhere)] == []


def test_the_page_lists_as_unverified_only_names_that_are_read():
    section = PAGE.read_text(encoding="utf-8").partition("## Unverified")[2]
    unverified = re.findall(r"`([^`]+)`", section.partition("\n\n")[2])
    core = set(perf_models.bindings())
    assert unverified
    assert [
        n for n in unverified if n not in EXACT and n not in core and not any(p.match(n) for p, _ in PATTERNS)
    ] == []
    assert len(unverified) == len(set(unverified))


def test_experts_that_are_touched_are_an_assumption_that_shows():
    model = read("aiter::fmoe_g1u1", MOE[0])
    parameters = model.parameters()
    assert parameters["assumed"] == "uniform routing"
    assert parameters["touched_experts"] == round(8 * (1 - 0.75**7), 3) == 6.932


def test_a_product_narrowed_on_the_way_computes_in_the_narrow_type():
    model = next(made for made in GEMMS if made.names == ("vllm::gemm_with_dynamic_quant",))
    assert read(model.names[0], model).compute_dtype.label == "fp4_e2m1"  # type: ignore[union-attr]


def test_categories_of_the_table_are_the_ones_reports_use():
    assert {read(made.names[0], made).category for made in CALLS} == {
        "GEMM", "SDPA_fwd", "SDPA_bwd", "InferenceAttention", "RMSNorm", "NORM_fwd", "NORM_bwd", "CustomCollective",
        "MoE_fused", "MoE_unfused", "MoE_aux", "elementwise", "RoPE_fwd", "RoPE_bwd", "CrossEntropy_fwd", "GroupQuant",
        "memory", "EP_Communication", "mHC", "SSM_fwd", "SSM_bwd", "CONV_fwd", "index", "GroupedGEMM_fwd",
        "GroupedGEMM_bwd", "MoE_comm_fwd", "MoE_comm_bwd",
    }  # fmt: skip


def test_a_bundled_name_is_read_in_one_file():
    names = [name for e in bundled_extensions() for name in e.traced_names]
    assert len(names) == len(set(names))
    assert load_extension("vllm").name_patterns == ("capture_", "execute_")
