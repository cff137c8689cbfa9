"""Which names say nothing about who recorded a trace: those of PyTorch, of CUDA and HIP, and of published libraries."""

from __future__ import annotations

from tracelens.lazy.patterns import lazy_pattern

#: Kinds of names -> names of them that everybody's traces have.
OPS = lazy_pattern(
    r"(?:aten|c10d|c10d_functional|_c10d_functional|prim|nccl|gloo|mpi|ucc|torch|autograd|symm_mem|quantized|_quantized"
    r"|torchao|_C|_C_cache_ops|_moe_C|vllm|sglang|aiter|fbgemm|xformers|flash_attn|flash_attn_3|flashinfer|mkldnn"
    r"|bitsandbytes|mslk|inductor|rocm|cudnn|transformer_engine|tex)::[\w.:]+(?: \(.*\))?"
    r"|(?:nccl|gloo|mpi|ucc):\w+|(?:All2All|AllGather|ReduceScatter|VariableBatchAll2All)\w+|\w*[A-Za-z]Backward\d+"
    r"|(?:Unsafe)?(?:SplitWithSizes|Split|Chunk|TensorSplit|Unbind)Backward|record_param_comms|triton_(?:poi|per|red|tem|for|mm|bmm|unk|spl|fused)\w*|triton__\w+"
    r"|Torch-Compiled Region(?:: [\d/]+)?|CompiledFunction(?:Backward)?|TorchDynamo Cache Lookup|CUDAGraph::replay"
    r"|\[memory\]|PyTorch Profiler \(\d+\)|(?:enumerate\(DataLoader\)#)?_\w*DataLoaderIter\.__next__"
    r"|DistributedDataParallel\.forward|FullyShardedDataParallel\.\w+|Optimizer\.(?:step|zero_grad)#\w+\.\w+"
    r"|Memcpy [\w >()-]+|Memset[\w ()]*|(?:Context|Event|Stream|Device) Sync(?:hronize)?|Stream Wait Event"
    r"|Activity Buffer Request|Lazy Function Loading|Buffer Flush|Instrumentation|Resource"
    r"|Runtime Triggered Module Loading|Command Buffer Full|Iteration Start: PyTorch Profiler|Record Window End"
    r"|ac2g|fwdbwd|Trace|INVALID"
)  # fmt: skip
CALLS = lazy_pattern(r"(?:cuda|hip|cu|hsa|nccl|rccl|roctx|nvtx|xpu|ur)[A-Z]\w*|INVALID")
#: What serving engines annotate their steps with: sizes and counts.
ENGINE_STEPS = lazy_pattern(
    r"(?:execute|capture)_[\w()]+|(?:step|prefill|decode)\[[\w =./,\[\]()]*\]|ProfilerStep(?:\*|#\d+)|## (?:forward"
    r"|backward|optimizer|zero_grad|data_load|decoder|encoder) ##"
)  # fmt: skip
KERNELS = lazy_pattern(
    r"(?:void )?(?:at|c10|cub|thrust|cudnn|cublas|cublasLt|cutlass|cute|flash|pytorch_flash|fmha\w*|vllm|sgl_\w+|aiter"
    r"|ck|ck_tile|rocprim|fbgemm_gpu|deep_ep|deep_gemm|moe|tensorrt_llm|trtllm|flashinfer|apex|transformer_engine"
    r"|cask_\w+|cutlass_\w+|\(anonymous namespace\)|at_cuda_detail)::.*"
    r"|(?:void )?(?:nccl|rccl|ncclDev|Cijk_|igemm_|miopen|MIOpen|nvjet|ampere_|volta_|turing_|hopper_|sm\d+_|cudnn_"
    r"|cutlass_|gemm|gemv|sgemm|hgemm|splitK|dot_kernel|reduce_1Block|fmha_|flash_|attn_|bmm_|triton_|cunn_|layer_norm|rms_norm"
    r"|multi_tensor_apply|elementwise|vectorized|Memcpy|Memset|__amd_rocclr_).*"
)  # fmt: skip
#: A Python frame of PyTorch itself, from its path on; the built-in methods of built-in types.
FRAMES = lazy_pattern(
    r"(?:[^/]*/){0,40}?(?P<public>torch/[\w/.-]+\.py\(\d+\): [\w.<>]+)"
    r"|(?P<builtin><built-in method \w+ of (?:Tensor|type|str|list|dict|tuple|set|int|float|bytes) object[^<>]*>"
    r"|<built-in (?:method|function) collect\b[^<>]*>)"
)  # fmt: skip
#: Modules of torch.nn.
MODULES = frozenset({
    "Linear", "Bilinear", "Identity", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
    "ConvTranspose3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "GroupNorm", "InstanceNorm1d",
    "InstanceNorm2d", "LayerNorm", "RMSNorm", "LocalResponseNorm", "Embedding", "EmbeddingBag", "Dropout", "Dropout1d",
    "Dropout2d", "ReLU", "ReLU6", "GELU", "SiLU", "ELU", "Tanh", "Sigmoid", "Softmax", "LogSoftmax", "Hardswish",
    "Hardsigmoid", "LeakyReLU", "PReLU", "Mish", "MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d",
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "Sequential", "ModuleList", "ModuleDict",
    "MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerEncoderLayer", "TransformerDecoder",
    "TransformerDecoderLayer", "LSTM", "GRU", "RNN", "Flatten", "Unflatten", "Upsample", "CrossEntropyLoss", "MSELoss",
    "NLLLoss", "L1Loss", "BCELoss", "BCEWithLogitsLoss", "KLDivLoss", "DataParallel", "DistributedDataParallel",
    "FullyShardedDataParallel", "PixelShuffle", "ZeroPad2d", "ConstantPad2d", "ReflectionPad2d",
})  # fmt: skip
#: What frameworks call process groups.
GROUPS = lazy_pattern(
    r"\d*|default_pg|undefined|(?:data|tensor|pipeline|expert|context|model|sequence|embedding|position|parallel|group|pg"
    r"|dp|tp|pp|ep|cp|sp|etp|edp|fsdp|ddp|hsdp|mesh|world|replicate|shard|with|and|intra|inter|node|partial|amax|_)+"
)
