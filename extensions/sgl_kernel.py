"""SGLang's kernel library beside its products: norms, rotary embeddings, quantization, routing and sampling.

Slots follow ``sgl-kernel/csrc/common_extension.cc``.
"""

from __future__ import annotations

from math import prod

from tracelens import OpSignature, traced_as
from tracelens.perf_models import Movement, RoPE, bind
from tracelens.perf_models.elementwise import quantized
from tracelens.perf_models.inference_attention import rotated
from tracelens.perf_models.moe import all_operands
from tracelens.perf_models.normalization import rms_norm


@traced_as("sgl_kernel::apply_rope_pos_ids_cos_sin_cache")
def _rope(op: OpSignature) -> RoPE:
    """(q [t,h,d], k [t,h,d], results of both, cos_sin_cache [.., turned], positions, ...)."""
    return rotated(op, 0, 1, share=op.shape(4, rank=2)[1] / op.shape(0, rank=3)[2])


@traced_as("sgl_kernel::shuffle_rows")
def _shuffle(op: OpSignature) -> Movement:
    """(x, row of x per row of the result, result)."""
    moved, rows = prod(op.shape(2)), prod(op.shape(1))
    return Movement(read=((moved, op.dtype(0)), (rows, op.dtype(1))), written=((moved, op.dtype(2)),), permutes=True)


@traced_as("sgl_kernel::apply_shuffle_mul_sum")
def _combine(op: OpSignature) -> Movement:
    """(x [t*k,h], result [t,h], permutation, factors): each row scaled, then added up."""
    rows, result = prod(op.shape(0)), prod(op.shape(1))
    places = tuple((prod(op.shape(slot)), op.dtype(slot)) for slot in (2, 3) if op.has(slot))
    return Movement(
        read=((rows, op.dtype(0)), *places), written=((result, op.dtype(1)),), added=2 * rows - result, permutes=True
    )


@traced_as(
    "sgl_kernel::top_k_top_p_sampling_from_probs", "sgl_kernel::top_p_sampling_from_probs",
    "sgl_kernel::min_p_sampling_from_probs", "sgl_kernel::top_k_renorm_probs", "sgl_kernel::top_p_renorm_probs",
    category="sort",
)  # fmt: skip
def _sample(op: OpSignature) -> Movement:
    """(probabilities [b,v], result, ...): searched for the largest, each read once at least."""
    return Movement(read=((prod(op.shape(0)), op.dtype(0)),), written=((prod(op.shape(1)), op.dtype(1)),))


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    # (out, x, weight, eps, ...)
    bind(rms_norm, "sgl_kernel::gemma_rmsnorm", x=1, weight=2, out=0),
    # (x, residual, weight, eps, ...): both in place
    bind(rms_norm, "sgl_kernel::gemma_fused_add_rmsnorm", x=0, weight=2, residual=True),
    # (x, result, scales, ...)
    bind(
        quantized, "sgl_kernel::sgl_per_token_group_quant_fp8", "sgl_kernel::sgl_per_token_group_quant_int8",
        "sgl_kernel::sgl_per_token_group_quant_8bit", "sgl_kernel::sgl_per_tensor_quant_fp8",
        "sgl_kernel::sgl_per_token_quant_fp8", x=0, out=1, scale=2,
    ),
    # (result [m,k/2], x [m,k], scales of the groups, scale of the tensor)
    bind(quantized, "sgl_kernel::scaled_fp4_quant", x=1, out=0, scale=2),
    bind(
        all_operands, "sgl_kernel::topk_softmax", "sgl_kernel::moe_align_block_size", "sgl_kernel::moe_fused_gate",
        "sgl_kernel::prepare_moe_input", "sgl_kernel::get_cutlass_w4a8_moe_mm_data",
    ),
)  # fmt: skip
