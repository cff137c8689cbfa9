"""What the name of a kernel that Inductor generated says: which ATen ops it fused, and their arithmetic."""

from __future__ import annotations

from tracelens.lazy.patterns import lazy_pattern

# Operations per element of the iteration space, by ATen op name. Moving data is 0. A transcendental function counts as
# the handful of operations its polynomial takes; the convention is the one of existing reports of this kind.
_MOVED = (
    "view _unsafe_view reshape permute transpose t expand expand_as unsqueeze squeeze slice select split "
    "split_with_sizes chunk narrow cat stack clone copy copy_ _to_copy to alias detach detach_ embedding index gather "
    "index_select arange full full_like zeros zeros_like ones empty constant_pad_nd unbind scalar_tensor lift_fresh "
    "repeat flip roll as_strided new_zeros iota fill new_empty new_full new_ones empty_like ones_like rand randn "
    "rand_like randn_like randint index_put index_put_ _unsafe_index scatter as_strided_scatter slice_scatter "
    "select_scatter tril triu one_hot nll_loss_forward sort argsort topk unfold transpose_copy squeeze_copy "
    "_unsafe_index_put lift_fresh_copy diagonal movedim contiguous flatten view_as_complex view_as_real eye linspace "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d pixel_shuffle pixel_unshuffle im2col "
    "inductor_seeds inductor_lookup_seed inductor_random inductor_randint _reshape_alias split_copy "
    "split_with_sizes_copy slice_backward select_backward embedding_dense_backward max_pool2d_with_indices_backward "
    "index_fill masked_scatter device_put scalar_tensor sym_size item _local_scalar_dense"
)
_ONE = (
    "add sub rsub mul neg abs relu where maximum minimum fmax fmin clamp clamp_min clamp_max eq ne lt le gt ge sum "
    "mean amax amin max min logical_and logical_or logical_not logical_xor bitwise_and bitwise_or masked_fill "
    "threshold_backward any all sign sgn floor ceil round trunc frac remainder fmod isnan isinf isfinite bitwise_not "
    "bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ hardtanh hardtanh_backward leaky_relu "
    "leaky_relu_backward relu6 native_dropout bernoulli cumsum cumprod scatter_add scatter_reduce index_add prod "
    "argmax argmin count_nonzero floor_divide square copysign signbit nan_to_num hypot "
    "mm addmm bmm baddbmm _scaled_mm _int_mm convolution max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d "
    "nll_loss_backward l1_loss"
)
# The products above run in kernels of their own: in a fused name they stand for the bias that was added here.
_TWO = (
    "pow rsqrt sqrt reciprocal div addcmul addcdiv linalg_vector_norm mse_loss mse_loss_backward lerp aminmax "
    "hardsigmoid hardsigmoid_backward smooth_l1_loss huber_loss"
)
_FOUR = (
    "exp log sigmoid silu sin cos tan asin acos atan atan2 sinh cosh tanh log1p log2 log10 exp2 expm1 erf erfc erfinv "
    "var_mean var std std_mean logsumexp sigmoid_backward tanh_backward log_sigmoid_forward log_sigmoid_backward "
    "_softmax_backward_data _log_softmax_backward_data hardswish hardswish_backward softplus softplus_backward elu "
    "elu_backward celu selu mish logaddexp prepare_softmax_online upsample_bilinear2d _upsample_bilinear2d_aa "
    "grid_sampler_2d binary_cross_entropy_with_logits"
)
_FIVE = (
    "_softmax softmax _log_softmax log_softmax native_layer_norm native_group_norm native_batch_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training "
    "_fused_rms_norm rms_norm silu_backward"
)
_NINE = "native_layer_norm_backward native_batch_norm_backward native_group_norm_backward _fused_rms_norm_backward"
# Ops that run in kernels of their own; in a fused name they say whose operands or results the kernel arranges.
_ELSEWHERE = (
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable_backward "
    "_scaled_dot_product_attention_math scaled_dot_product_attention _flash_attention_forward "
    "_flash_attention_backward _efficient_attention_forward _efficient_attention_backward flex_attention "
    "flex_attention_backward convolution_backward _grouped_mm _scaled_grouped_mm all_reduce "
    "all_gather_into_tensor reduce_scatter_tensor all_to_all_single wait_tensor"
)
FLOPS_PER_ELEMENT: dict[str, int] = {
    name: flops
    for flops, names in (
        (0, _MOVED),
        (0, _ELSEWHERE),
        (1, _ONE),
        (2, _TWO),
        (4, _FOUR),
        (5, _FIVE),
        (8, "gelu"),
        (9, _NINE),
        (10, "gelu_backward"),
    )
    for name in names.split()
}
#: Ops that only place data somewhere else.
MOVES = frozenset(_MOVED.split())
# Ops that make a tensor of nothing.
_MADE = (
    "arange full full_like zeros zeros_like ones empty scalar_tensor new_zeros iota fill new_empty new_full new_ones "
    "empty_like ones_like rand randn rand_like randn_like randint eye linspace inductor_seeds inductor_random "
    "inductor_randint"
)
_OF_ONE_TENSOR = (
    "neg abs relu clamp clamp_min clamp_max sign sgn floor ceil round trunc frac isnan isinf isfinite bitwise_not "
    "logical_not hardtanh leaky_relu relu6 square rsqrt sqrt reciprocal exp log sigmoid silu sin cos tan tanh log1p "
    "log2 log10 exp2 expm1 erf erfc hardswish hardsigmoid softplus elu gelu mish nan_to_num"
)
MAKES, UNARY = frozenset(_MADE.split()), frozenset(_OF_ONE_TENSOR.split())
# Ops that write where an index says: into a tensor of any size.
_SCATTERED = (
    "index_put index_put_ _unsafe_index_put scatter scatter_add scatter_reduce index_add index_fill masked_scatter "
    "embedding_dense_backward max_pool2d_with_indices_backward"
)
SCATTERS = frozenset(_SCATTERED.split())
#: Products, which leave a flat result that a fused kernel reads as a view of more dims.
PRODUCTS = frozenset({"mm", "addmm", "_scaled_mm", "_int_mm"})
_PREFIX = lazy_pattern(r"^triton_(?:poi|red|per|spl)_fused_(?P<ops>.*?)(?:_\d+)?$")


def fused_ops(name: str) -> tuple[str, ...] | None:
    """The ATen ops in a kernel's name; None when a part is not in the table.

    >>> fused_ops("triton_poi_fused__unsafe_view_mul_silu_2")
    ('_unsafe_view', 'mul', 'silu')
    """
    match = _PREFIX.match(name)
    if match is None:
        return None
    words = match["ops"].split("_")
    ops: list[str] = []
    start = 0
    while start < len(words):
        for end in range(len(words), start, -1):
            op = "_".join(words[start:end])
            if op in FLOPS_PER_ELEMENT:
                ops.append(op)
                start = end
                break
        else:
            return None
    return tuple(ops)
