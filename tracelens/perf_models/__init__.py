"""What an operation computes and moves, from its dimensions alone."""

from __future__ import annotations

from functools import cache, partial

from tracelens.perf_models.base import (
    CategoryOf,
    Like,
    Moved,
    PerfModel,
    WorkColumns,
    bind,
    category_of,
    recorded_as,
    total_bytes,
    traced_as,
)
from tracelens.perf_models.collective import AllReduceRMSNorm, Collective, CustomCollective, EPComm
from tracelens.perf_models.conv import Conv, ConvBackward, Pooling, PoolingBackward
from tracelens.perf_models.data_movement import Movement, PooledLookup, PooledLookupBackward, Sort
from tracelens.perf_models.elementwise import (
    BinaryElementwise,
    Elementwise,
    GroupQuant,
    MultiTensor,
    Operand,
    UnaryElementwise,
)
from tracelens.perf_models.gemm import (
    GEMM,
    DynamicQuantGEMM,
    GEMMBackward,
    GroupedGEMM,
    GroupedGEMMBackward,
    GroupedGEMMVariableK,
)
from tracelens.perf_models.inference_attention import (
    AttentionSums,
    CacheWrite,
    IndexerScores,
    IndexerScoresBackward,
    InferenceAttention,
    InferenceStep,
    RoPE,
    RoPEBackward,
    SelectiveAttention,
    SelectiveAttentionBackward,
    SparseAttention,
    TopKRows,
    annotated_as,
    attention_sums,
)
from tracelens.perf_models.kernels import KernelPattern, classify, kernel_patterns
from tracelens.perf_models.moe import MoEAux, MoEDown, MoEFused, MoEUp
from tracelens.perf_models.normalization import (
    HyperConnectionCoefficients,
    HyperConnectionPost,
    HyperConnectionPostPre,
    HyperConnectionPre,
    Normalization,
    NormalizationBackward,
    RMSNorm,
    RMSNormBackward,
)
from tracelens.perf_models.recurrent_layers import (
    CausalConv1d,
    CausalConv1dBackward,
    LinearAttention,
    LinearAttentionBackward,
    MambaChunkScan,
    StateSpaceScan,
    StateSpaceScanBackward,
)
from tracelens.perf_models.reduce import CrossEntropy, CrossEntropyBackward, Reduce, Softmax, SoftmaxBackward
from tracelens.perf_models.sdpa import SDPA, SDPABackward
from tracelens.perf_models.surroundings import BackwardOf, BackwardPairs, InnerOp, OpCall, holds_ops
from tracelens.registry import Registry
from tracelens.types.signature import OpSignature

__all__ = [
    "GEMM", "SDPA", "AllReduceRMSNorm", "AttentionSums", "BackwardOf", "BackwardPairs", "BinaryElementwise",
    "CacheWrite", "CategoryOf", "CausalConv1d", "CausalConv1dBackward", "Collective", "Conv", "ConvBackward",
    "CrossEntropy", "CrossEntropyBackward", "CustomCollective", "DynamicQuantGEMM", "EPComm", "Elementwise",
    "GEMMBackward", "GroupQuant", "GroupedGEMM", "GroupedGEMMBackward", "GroupedGEMMVariableK",
    "HyperConnectionCoefficients", "HyperConnectionPost", "HyperConnectionPostPre", "HyperConnectionPre",
    "IndexerScores", "IndexerScoresBackward", "InferenceAttention", "InferenceStep", "InnerOp", "KernelPattern", "Like",
    "LinearAttention", "LinearAttentionBackward", "MambaChunkScan", "MoEAux", "MoEDown", "MoEFused", "MoEUp", "Moved",
    "Movement", "MultiTensor", "Normalization", "NormalizationBackward", "OpCall", "Operand", "PerfModel",
    "PooledLookup", "PooledLookupBackward", "Pooling", "PoolingBackward", "RMSNorm", "RMSNormBackward", "Reduce",
    "RoPE", "RoPEBackward", "SDPABackward", "SelectiveAttention", "SelectiveAttentionBackward", "Softmax",
    "SoftmaxBackward", "Sort", "SparseAttention", "StateSpaceScan", "StateSpaceScanBackward", "TopKRows",
    "UnaryElementwise", "WorkColumns", "annotated_as", "annotation_readers", "attention_sums", "bind", "bindings",
    "categories", "category_of", "classify", "holds_ops", "inverses", "kernel_patterns", "pattern_bindings",
    "recorded_as", "recorded_signature", "total_bytes", "traced_as",
]  # fmt: skip

_CALLED: dict[type[PerfModel], str] = {
    GEMM: "aten::mm",
    GroupedGEMM: "aten::_grouped_mm",
    GroupedGEMMVariableK: "aten::_grouped_mm",
    SDPA: "aten::_scaled_dot_product_flash_attention",
    SDPABackward: "aten::_scaled_dot_product_flash_attention_backward",
}


@cache
def _marked(kind: str) -> Registry:
    """What the modules of this package mark as ``kind``. Extensions are laid over it per report."""
    return Registry.collect_below(kind, __name__)


#: Traced name -> binding.
bindings = partial(_marked, "traced_as")
#: Regular expression of traced names -> binding.
pattern_bindings = partial(_marked, "traced_as_pattern")
#: Prefix of step annotations -> reader of an ``InferenceStep``. Engines' formats are extensions'.
annotation_readers = partial(_marked, "annotated_as")
#: Traced name -> function from a perf model to the signature that a trace would record.
inverses = partial(_marked, "recorded_as")
#: Traced name -> ``CategoryOf``, for names without a perf model.
categories = partial(_marked, "category")


def recorded_signature(model: PerfModel) -> OpSignature | None:
    """What a trace would record of ``model`` as PyTorch calls it; None where no inverse is of its kind."""
    name = _CALLED.get(type(model))
    if name is None:
        return None
    if name == "aten::mm" and getattr(model, "b", 1) > 1:
        name = "aten::bmm"
    return inverses()[name].target(model)
