"""One perf model of each family of the core, by the size of its batch."""

from __future__ import annotations

from collections.abc import Callable

from tracelens.perf_models import (
    GEMM,
    SDPA,
    AttentionSums,
    BinaryElementwise,
    CacheWrite,
    CausalConv1d,
    CausalConv1dBackward,
    Conv,
    CrossEntropy,
    CrossEntropyBackward,
    DynamicQuantGEMM,
    Elementwise,
    GEMMBackward,
    GroupedGEMM,
    GroupedGEMMVariableK,
    GroupQuant,
    HyperConnectionCoefficients,
    HyperConnectionPost,
    HyperConnectionPostPre,
    HyperConnectionPre,
    IndexerScores,
    InferenceAttention,
    LinearAttention,
    MambaChunkScan,
    MoEAux,
    MoEDown,
    MoEFused,
    MoEUp,
    Movement,
    MultiTensor,
    Normalization,
    Operand,
    PerfModel,
    PooledLookup,
    Pooling,
    PoolingBackward,
    Reduce,
    RMSNorm,
    RoPE,
    SelectiveAttention,
    Softmax,
    Sort,
    SparseAttention,
    StateSpaceScan,
    TopKRows,
    UnaryElementwise,
)
from tracelens.perf_models.conv import FourierTransform, GridSampler, GridSamplerBackward
from tracelens.perf_models.normalization import (
    FusedRMSNorm,
    FusedRMSNormBackward,
    NormalizationPart,
    NormalizationPartBackward,
)
from tracelens.perf_models.recurrent_layers import Recurrent
from tracelens.perf_models.triton_kernels import FusedKernel
from tracelens.types.dtypes import DType

Make = Callable[[int, DType | None], PerfModel]


def _gemm_backward(forward: GEMM) -> GEMMBackward:
    grad_a, grad_b = forward.backward()
    return GEMMBackward(grad_a=grad_a, grad_b=grad_b)


def _conv(b: int, dtype: DType | None) -> Conv:
    return Conv(x=(b, 3, 9, 9), w=(5, 3, 3, 3), stride=(1, 1), padding=(0, 0), dilation=(1, 1), output_padding=(0, 0),
                bias=True, dtype=dtype)  # fmt: skip


def _recurrent(b: int, dtype: DType | None) -> Recurrent:
    return Recurrent(steps=6 * b, features=5, hidden=8, gates=4, layers=2, directions=2, projected=3, dtype=dtype)


#: One model of each family with a batch of ``b``, and its FLOPs that do not scale with the batch.
FAMILIES: dict[str, tuple[Make, int]] = {
    "gemm": (lambda b, d: GEMM(b=b, m=3, n=5, k=7, bias=True, dtype=d), 0),
    "gemm_rows": (lambda b, d: GEMM(m=b, n=5, k=7, bias=True, dtype=d), 0),
    "grouped_gemm": (lambda b, d: GroupedGEMM(m=b, n=5, k=7, groups=3, dtype=d), 0),
    "grouped_gemm_backward": (lambda b, d: GroupedGEMM(m=b, n=5, k=7, groups=3, dtype=d).backward(), 0),
    "sdpa": (lambda b, d: SDPA(b=b, s_q=9, s_kv=11, q_heads=4, kv_heads=2, d_qk=8, d_v=6, mask="bottom_right", dtype=d), 0),
    "sdpa_backward": (lambda b, d: SDPA(b=b, s_q=9, s_kv=11, q_heads=4, kv_heads=2, d_qk=8, d_v=6, dtype=d).backward(), 0),
    "conv": (_conv, 0),
    "conv_backward": (lambda b, d: _conv(b, d).backward(), 0),
    "layer_norm": (lambda b, d: Normalization(shape=(b, 16), channels=16, statistics=b, weight=True, dtype=d), 6 * 16),
    "norm_part": (lambda b, d: NormalizationPart(shape=(b, 16), channels=16, of_channels=32, writes=1, dtype=d), 0),
    "norm_part_backward": (lambda b, d: NormalizationPartBackward(shape=(b, 16), channels=16, of_channels=32, dtype=d), 0),
    "rms_norm": (lambda b, d: RMSNorm(shape=(b, 16), channels=16, statistics=b, weight=True, dtype=d), 0),
    "rms_norm_backward": (lambda b, d: RMSNorm(shape=(b, 16), channels=16, statistics=b, dtype=d).backward(), 0),
    "softmax": (lambda b, d: Softmax(shape=(b, 16), dtype=d), 0),
    "moe_fused": (lambda b, d: MoEFused(tokens=b, hidden=8, ffn=4, experts=8, top_k=2, dtype=d), 0),
    "moe_up": (lambda b, d: MoEUp(tokens=b, hidden=8, ffn=4, experts=8, top_k=2, dtype=d), 0),
    "moe_down": (lambda b, d: MoEDown(tokens=b, hidden=8, ffn=4, experts=8, top_k=2, dtype=d), 0),
    "rope": (lambda b, d: RoPE(elements=16 * b, rotated=8 * b, copied=4 * b, dtype=d), 0),
    "rope_backward": (lambda b, d: RoPE(elements=16 * b, rotated=8 * b, dtype=d).backward(), 0),
    "cross_entropy": (lambda b, d: CrossEntropy(rows=b, vocabulary=16, dtype=d), 0),
    "cross_entropy_backward": (lambda b, d: CrossEntropyBackward(rows=b, vocabulary=16, dtype=d), 0),
    "group_quant": (lambda b, d: GroupQuant(elements=16 * b, scale_elements=b, dtype=d, dtype_out=DType.FP8_E4M3FN), 0),
    "causal_conv": (lambda b, d: CausalConv1d(b=b, channels=4, length=8, width=4, bias=True, dtype=d), 0),
    "causal_conv_backward": (lambda b, d: CausalConv1dBackward(b=b, channels=4, length=8, width=4, dtype=d), 0),
    "chunk_scan": (lambda b, d: MambaChunkScan(b=b, tokens=8, width=100, conv_channels=64, conv_width=4, heads=4,
                                               head_dim=8, state=16, groups=1, chunk=4, dtype=d), 0),
    "hyper_connection_post": (lambda b, d: HyperConnectionPost(tokens=b, streams=4, channels=8, dtype=d), 0),
    "hyper_connection_pre": (lambda b, d: HyperConnectionPre(tokens=b, streams=4, channels=8, dtype=d), 0),
    "hyper_connection_coefficients": (lambda b, d: HyperConnectionCoefficients(
        tokens=b, streams=4, channels=8, outputs=24, dtype=d, dtype_weight=DType.FP32), 0),
    "hyper_connection_post_pre": (lambda b, d: HyperConnectionPostPre(
        tokens=b, streams=4, channels=8, outputs=24, dtype=d, dtype_weight=DType.FP32), 0),
    "linear_attention": (lambda b, d: LinearAttention(tokens=b, v_heads=4, d_k=8, d_v=8, qkv_width=64, dtype=d), 0),
    "linear_attention_state": (lambda b, d: LinearAttention(tokens=4 * b, v_heads=4, d_k=8, d_v=8, qkv_width=64, dtype=d,
                                                            rule="channel_delta", sequences=b), 0),
    "linear_attention_backward": (lambda b, d: LinearAttention(tokens=b, v_heads=4, d_k=8, d_v=8, qkv_width=64, dtype=d,
                                                               rule="decay").backward(), 0),
    "state_space_scan": (lambda b, d: StateSpaceScan(b=b, tokens=9, heads=4, head_dim=8, state=16, groups=2, chunk=4,
                                                     cached=True, dtype=d), 0),
    "state_space_scan_backward": (lambda b, d: StateSpaceScan(b=b, tokens=9, heads=4, head_dim=8, state=16, groups=2,
                                                              chunk=4, dtype=d).backward(), 0),
    "selective_attention": (lambda b, d: SelectiveAttention(b=b, s_q=9, s_kv=40, q_heads=4, d_qk=8, d_v=6, ratio=4,
                                                            top_k=3, window=5, dtype=d), 0),
    "selective_attention_backward": (lambda b, d: SelectiveAttention(b=b, s_q=9, s_kv=40, q_heads=4, d_qk=8, d_v=6,
                                                                     dtype=d).backward(), 0),
    "indexer": (lambda b, d: IndexerScores(b=b, s_q=9, s_kv=40, heads=4, d=8, dtype=d), 0),
    "indexer_backward": (lambda b, d: IndexerScores(b=b, s_q=9, s_kv=40, heads=4, d=8, dtype=d).backward(), 0),
    "top_k_rows": (lambda b, d: TopKRows(b=b, s_q=9, s_kv=40, top_k=3, dtype=d), 0),
    "sparse_attention": (lambda b, d: SparseAttention(tokens=b, q_heads=4, d_qk=8, d_v=8, pairs=9 * b, dtype=d), 0),
    "inference_attention": (lambda b, d: InferenceAttention(
        tokens=b, q_heads=4, kv_heads=2, d_qk=8, d_v=8, dtype=d,
        sums=AttentionSums(c_sq=4 * b, c_sk=9 * b, c_sqsq=16 * b, c_sqsk=36 * b, g_sq=b, g_sk=7 * b, g_sqsq=b, g_sqsk=7 * b)), 0),
    "cache_write": (lambda b, d: CacheWrite(elements=16 * b, dtype=d), 0),
    "reduce": (lambda b, d: Reduce(elements=16 * b, results=b, kind="sum", dtype=d), 0),
    "gemm_backward": (lambda b, d: _gemm_backward(GEMM(b=b, m=3, n=5, k=7, dtype=d)), 0),
    "dynamic_quant_gemm": (lambda b, d: DynamicQuantGEMM(b=b, m=3, n=5, k=7, dtype=d, dtype_b=DType.FP4_E2M1), 0),
    "grouped_gemm_variable_k": (lambda b, d: GroupedGEMMVariableK(m=3, n=5, k=b, groups=3, dtype=d), 0),
    "layer_norm_backward": (lambda b, d: Normalization(shape=(b, 16), channels=16, statistics=b, weight=True,
                                                       dtype=d).backward(), 0),
    "fused_rms_norm": (lambda b, d: FusedRMSNorm(shape=(b, 16), channels=16, statistics=b, weight=True, dtype=d), 0),
    "fused_rms_norm_backward": (lambda b, d: FusedRMSNormBackward(shape=(b, 16), channels=16, statistics=b, weight=True,
                                                                  dtype=d, output_mask=(True, True)), 0),
    "softmax_backward": (lambda b, d: Softmax(shape=(b, 16), dtype=d).backward(), 0),
    "unary": (lambda b, d: UnaryElementwise(shape=(b, 16), inputs=(Operand(shape=(b, 16), dtype=d),),
                                            outputs=(Operand(shape=(b, 16), dtype=d),), flops_per_element=3), 0),
    "binary": (lambda b, d: BinaryElementwise(shape=(b, 16), inputs=(Operand(shape=(b, 16), dtype=d),) * 2,
                                              outputs=(Operand(shape=(b, 16), dtype=d),)), 0),
    "elementwise": (lambda b, d: Elementwise(shape=(b, 16), inputs=(Operand(shape=(b, 16), dtype=d),) * 3,
                                             outputs=(Operand(shape=(b, 16), dtype=d),)), 0),
    "movement": (lambda b, d: Movement(read=((16 * b, d),), written=((16 * b, d),), added=16 * b), 0),
    "sort": (lambda b, d: Sort(shape=(b, 16), results=4 * b, dtype=d), 0),
    "moe_aux": (lambda b, d: MoEAux(operands=((16 * b, d), (b, DType.INT32))), 0),
    "multi_tensor": (lambda b, d: MultiTensor(tensors=3, elements=16 * b, flops_per_element=12, reads=4, writes=3,
                                              dtype=d), 0),
    "pooling": (lambda b, d: Pooling(x=(b, 3, 8, 8), out=(b, 3, 4, 4), window=4, dtype=d), 0),
    "pooling_backward": (lambda b, d: PoolingBackward(x=(b, 3, 8, 8), out=(b, 3, 4, 4), window=4, dtype=d), 0),
    "pooled_lookup": (lambda b, d: PooledLookup(looked_up=6 * b, width=16, bags=b, dtype=d), 0),
    "pooled_lookup_backward": (lambda b, d: PooledLookup(looked_up=6 * b, width=16, bags=b, dtype=d).backward(), 0),
    "recurrent": (_recurrent, 0),
    "recurrent_backward": (lambda b, d: _recurrent(b, d).backward(), 0),
    "fourier": (lambda b, d: FourierTransform(batch=b, points=16, is_real=True, read=16 * b, written=9 * b, dtype=d,
                                              dtype_out=d), 0),
    "grid_sampler": (lambda b, d: GridSampler(image=27 * b, grid=8 * b, results=12 * b, taps=4, dtype=d), 0),
    "grid_sampler_backward": (lambda b, d: GridSamplerBackward(image=27 * b, grid=8 * b, results=12 * b, taps=4,
                                                               dtype=d), 0),
    "compiled": (lambda b, d: FusedKernel(ops=("mul", "silu"), xnumel=16 * b, operands=((16 * b, d),) * 2, dtype=d), 0),
}  # fmt: skip
