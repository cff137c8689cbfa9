"""Kernel names: communication is recognised in every build, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from tests.conftest import row_by_row
from tests.test_linear import grows_linearly
from tracelens.errors import UsageError
from tracelens.perf_models import KernelPattern, classify, kernel_patterns
from tracelens.perf_models.kernels import CopyPath, copy_path


def category_of(name: str) -> str | None:
    (found,) = classify([name], kernel_patterns())
    return None if found is None else found.category


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
        "void deep_ep::internode_ll::combine<true, 3, 7168>(void*, void*)",
        "primus_turbo::deep_ep::internode::notify_dispatch(int const*, int*)",
        "void uccl::intranode::cached_notify_combine<2>(void**, int*)",
        "_ZN7deep_ep9intranode8dispatchILi8EEEvP4int4Pf",
        "_ZN7deep_ep12internode_ll7combineILb1EEEvPvS1_",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
        "void deep_ep::internode::get_dispatch_layout<256>(long const*, int*)",
        "void uccl::intranode::barrier<8>(int**, int)",
        "void deep_ep::elastic::dispatch_impl<128, 4>(ncclDevComm, ncclWindow*)",
        "void hybrid_ep::dispatch_kernel<unsigned char, 4>(hybrid_ep::dispatch_kernel_param_t<unsigned char>)",
        "hybrid_ep::device_sync_kernel()",
        "void hybridep::dispatch<4>(void*)",
        "void mori::moe::some_new_kernel<float>(float*)",
        "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
        "EpCombineInterNodeV1Kernel_bf16",
        "void a2a_combine_recv_kernel<true, 16ul>(unsigned long)",
        "void (anonymous namespace)::dispatchKernel<10u>(int)",
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<x>(y)",
    ],
)
def test_expert_parallel_kernels_are_communication_in_any_outer_namespace(name: str):
    (found,) = classify([name], kernel_patterns())
    assert found is not None
    assert (found.category, found.communication, found.collective) == ("EP_Communication", True, False)


@pytest.mark.parametrize(
    "name", ["void myapp::dispatch<int>(int)", "void cutlass::dispatch_combine(int)", "void x::intranode::layout(int)"]
)
def test_other_functions_of_those_names_are_not(name: str):
    assert category_of(name) != "EP_Communication"


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_half",
        "mscclKernel_Sum_float_LL_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    ],
)
def test_nccl_kernels_are_collectives(name: str):
    (found,) = classify([name], kernel_patterns())
    assert found is not None
    assert (found.communication, found.collective) == (True, True)


def test_custom_all_reduce_is_communication_without_a_collective_record():
    (found,) = classify(["void vllm::cross_device_reduce_1stage<__half, 8>(...)"], kernel_patterns())
    assert found is not None
    assert (found.communication, found.collective) == (True, False)


def test_rocm_copies_that_are_kernels_are_copies():
    (found,) = classify(["__amd_rocclr_copyBuffer"], kernel_patterns())
    assert found is not None
    assert found.memcpy


@row_by_row(
    ("name", "category"),
    [
        ("void deep_gemm::transpose_fp32<512u>(float const*, float*)", "memory"),
        ("void fill_tensor_map_kernel<4>(CUtensorMap*)", "memory"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<1>(cute::TmaDescriptor)", "GEMM"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::Gemm<cute::Transpose, deep_ep::X>>(int)", "GEMM"),
        ("batched_transpose_32x32_half", "CONV_fwd"),
        ("void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**)", "CustomCollective"),
        ("kuserbuffers_pushsend", "CustomCollective"),
        ("_on_device_all_to_all_v_kernel", "CustomCollective"),
        ("_mxfp8_all_to_all_v_kernel", "CustomCollective"),
        ("void c10d::nvshmem_extension::allToAllV_2d<1>(void*)", "CustomCollective"),
        ("exchangeSplitAndOffset(long*, long*, int)", "CustomCollective"),
        ("void c10d::nvshmem_extension::all_to_all_vdev_2d_kernel<float>(float*)", "CustomCollective"),
        ("ncclDevKernel_AllToAllV_RING_LL(ncclDevComm*)", "record_param_comms"),
        ("triton_poi_fused_all_to_all_vdev_mul_0", "triton"),
        ("Cijk_Ailk_Bjlk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT192x256x64_MI16x16x1", "GEMM"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "GEMM"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_kernel__5x_cublas", "GEMM"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(x)", "GEMM"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_nn", "GEMM"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>(x)", "SDPA_fwd"),
        ("attn_fwd", "SDPA_fwd"),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8", "CONV_fwd"),
        ("MIOpenBatchNormFwdTrainSpatial", "NORM_fwd"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)", "NORM_fwd"),
        ("void flash_bwd_dq_dk_dv_loop_kernel<x>", "SDPA_bwd"),
        ("sm90_xmma_dgrad_implicit_gemm_x", "CONV_bwd"),
        ("MIOpenBatchNormBwdSpatial", "NORM_bwd"),
        ("volta_scudnn_128x64_stridedB_interior_nn_v1", "CONV_bwd"),
        ("maxwell_scudnn_128x128_stridedB_splitK_small_nn_v0", "CONV_bwd"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "CONV_fwd"),
        ("turing_fp16_s1688cudnn_fp16_256x64_sliced1x2_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "CONV_fwd"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)", "NORM_bwd"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(x)", "NORM_fwd"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<c10::BFloat16>(x)", "softmax"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x>(y)", "multi_tensor_apply"),
        ("triton_poi_fused__unsafe_view_mul_silu_2", "triton"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)", "reduce"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)", "elementwise"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<x>(y)", "memory"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16>(x)", "index"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "MoE_unfused"),
        ("_finalize_matmul_scatter_bf16", "MoE_unfused"),
        ("fused_moe_kernel", "MoE_unfused"),
        ("_combined_routing_compute", "MoE_aux"),
        ("_sum_bitmatrix_rows", "MoE_aux"),
        ("_topk_forward", "MoE_aux"),
        ("void vllm::moe::topkGatingSoftmax<8, 128>(float const*)", "MoE_aux"),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>(x)", "InferenceAttention"),
        ("void (anonymous namespace)::store_kvcache<2048l, 4, false, long>(x)", "InferenceAttention"),
        ("kernel_unified_attention_3d", "InferenceAttention"),
        ("reduce_segments", "InferenceAttention"),
        ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelI", "InferenceAttention"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePass", "RMSNorm"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64E", "RMSNorm"),
        ("void dynamic_per_token_scaled_quant_kernel<x>", "GroupQuant"),
        ("_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16", "elementwise"),
        ("void rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "RoPE_fwd"),
        ("_causal_conv1d_fwd_kernel", "SSM_fwd"),
        ("void causal_conv1d_bwd_kernel<x>", "SSM_bwd"),
        ("_chunk_scan_fwd_kernel", "SSM_fwd"),
        ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "InferenceAttention"),
        ("chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64", "SDPA_bwd"),
        ("prepare_wy_repr_bwd_kernel", "SDPA_bwd"),
        ("chunk_kda_fwd_kernel_intra_sub_inter", "InferenceAttention"),
        ("void deep_gemm::sm90_fp8_mqa_logits<64, 128>(x)", "InferenceAttention"),
        ("void deep_gemm::hc_pre_kernel<4>(x)", "mHC"),
        ("liger_cross_entropy_kernel", "CrossEntropy_fwd"),
        ("void fbgemm_gpu::permute_pooled_embs_kernel<float>(x)", "index"),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)", "EP_Communication"),
        ("_ZN5aiter14aiter_mhc_post_kernel", "mHC"),
        ("Memset (Device)", "memset"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0", "SDPA_fwd"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x1x1_kernel0_0", "SDPA_bwd"),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(x)", "SDPA_bwd"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(x)", "SDPA_bwd"),
        ("void cudnn::fusion::lean_reduction_kernel<4>(x)", "SDPA_fwd"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<x>::Params)", "SDPA_fwd"),
        (
            "fmha_cutlassB_bf16_aligned_128x128_k128_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<x>)",
            "SDPA_bwd",
        ),
        ("_attn_fwd", "SDPA_fwd"),
        ("_bwd_kernel_dq", "SDPA_bwd"),
        ("_fwd_kernel_stage1", "InferenceAttention"),
        ("void flashinfer::SinglePrefillWithKVCacheKernel<x>(y)", "InferenceAttention"),
        ("void vllm::merge_attn_states_kernel<__nv_bfloat16, 128>(x)", "InferenceAttention"),
        ("void flashinfer::PersistentVariableLengthMergeStatesKernel<8, 16, 8, 4>(x)", "InferenceAttention"),
        ("fused_recurrent_rwkv7_fwd_kernel", "InferenceAttention"),
        ("chunk_gla_bwd_kernel_dv", "SDPA_bwd"),
        ("_bmm_chunk_bwd_kernel", "SSM_bwd"),
        ("void cutlass::device_kernel<machete::MacheteKernelTemplate<cutlass::bfloat16_t>>(x)", "GEMM"),
        ("_w8a8_triton_block_scaled_mm", "GEMM"),
        ("_lora_shrink_kernel", "GEMM"),
        ("Custom_Cijk_Alik_Bljk_F8BS_BH_MT256x256x128", "GEMM"),
        ("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(x)", "CONV_fwd"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(x)", "CONV_fwd"),
        ("void at::native::(anonymous namespace)::conv_depthwise2d_grad_weight_kernel<float>(x)", "CONV_bwd"),
        ("void cudnn::batchnorm_bwtr_nhwc_semiPersist<__half, 512>(x)", "NORM_bwd"),
        ("void transformer_engine::normalization::ln_fwd_tuned_kernel<x>(y)", "NORM_fwd"),
        ("void transformer_engine::(anonymous namespace)::swizzle_row_scaling_kernel<int4, 128, 4>(x)", "memory"),
        ("void transformer_engine::mxfp8_kernel::cast_mxfp8_2D_kernel<x>(y)", "GroupQuant"),
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(x)", "GroupQuant"),
        ("void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(x)", "GroupQuant"),
        ("_unpermute_kernel", "MoE_aux"),
        ("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<x>>(y)", "index"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(x)", "sort"),
        ("void at_cuda_detail::cub::DeviceSelectSweepKernel<x>(y)", "index"),
        ("void at::native::tensor_kernel_scan_innermost_dim<long, std::plus<long>>(x)", "reduce"),
        (
            "at::native::xpu::VectorizedElementwiseKernel<4, at::native::xpu::PowImplUnaryFunctor1<float> >",
            "elementwise",
        ),
        ("some_kernel_nobody_knows", None),
    ],
)
def test_a_name_says_its_family(name: str, category: str | None):
    assert category_of(name) == category


def test_the_first_match_wins_so_added_patterns_go_first():
    mine = KernelPattern(name="mine", regex="nccl", category="mine")
    assert classify(["ncclKernel", "other_kernel"], [mine, *kernel_patterns()]) == [mine, None]


def test_a_broken_pattern_is_an_error_that_shows_it():
    with pytest.raises(UsageError, match="is not a regular expression"):
        classify(["kernel"], [KernelPattern(name="broken", regex="(", category="x")])


def test_more_names_than_are_remembered_are_all_classed(monkeypatch):
    monkeypatch.setattr("tracelens.perf_models.kernels._MOST_KNOWN", 3)
    names = [f"{word}_{number}" for number in range(4) for word in ("softmax", "unknown")]
    found = classify(names, kernel_patterns())
    assert [pattern and pattern.name for pattern in found] == ["softmax", None] * 4


def test_pattern_names_are_unique():
    names = [p.name for p in kernel_patterns()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "direction", "host_memory"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", "pinned"),
        ("Memcpy DtoH (Device -> Pageable)", "DtoH", "pageable"),
        ("Memcpy HtoD (Host -> Device)", "HtoD", "unknown"),
        ("Memcpy D2M", "DtoH", "unknown"),
        ("CopyHostToDevice", "HtoD", "unknown"),
        ("MEMORY_COPY_DEVICE_TO_HOST", "DtoH", "unknown"),
        ("[CUDA memcpy Host-to-Device]", "HtoD", "unknown"),
        ("Memcpy PtoP (Device -> Device)", "PtoP", None),
    ],
)
def test_a_copy_s_name_says_between_which_memories(name: str, direction: str, host_memory: str | None):
    assert copy_path(name) == CopyPath(direction=direction, host_memory=host_memory)


@pytest.mark.parametrize(
    "name",
    ["Memcpy DtoD (Device -> Device)", "Memcpy HtoH (Pinned -> Pageable)", "CopyDeviceToDevice", "Memset (Device)"],
)
def test_copies_within_a_memory_have_no_path(name: str):
    assert copy_path(name) is None


@pytest.mark.parametrize(
    "part", ["transpose", "EpDispatch", "a::", "symmetric_memory::", "all_to_all", "deep_ep", "1deep_ep", "copyH"]
)
def test_no_name_takes_long_to_class_as_communication_or_layout(part: str):
    """Each of these patterns reads a name in time linear in its length."""
    patterns = [p for p in kernel_patterns() if p.communication or p.rearranges]

    def run(size: int) -> None:
        classify([part * size], patterns)
        copy_path(part * size)

    assert grows_linearly(run, 500)
