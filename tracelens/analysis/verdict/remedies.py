"""What to try about a finding: one remedy per kind, and the page that lists them."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.analysis.idle import host_time, idle_time


@dataclass(frozen=True, slots=True)
class Remedy:
    """``seen``: what the kind of finding sees. ``remedy``: what to try. ``wrong_when``: when it brings nothing."""

    seen: str
    remedy: str
    wrong_when: str


#: By kind: the id of a finding, and where one id has several remedies, its cause or bound behind a colon.
REMEDIES: dict[str, Remedy] = {
    "attention_from_parts": Remedy(
        "A batched GEMM, a softmax and a batched GEMM that follow one another: attention whose scores go through HBM.",
        "call torch.nn.functional.scaled_dot_product_attention (attn_implementation='sdpa'), or FlashAttention",
        "The attention weights themselves are needed, or the mask is one that no fused kernel takes.",
    ),
    "exposed_communication": Remedy(
        "Communication during which nothing computes.",
        "overlap it (larger or earlier buckets, async ops), or split otherwise: see `tracelens collectives`, `search`",
        "One rank is late: the time is then another rank's work, which `tracelens collectives` shows.",
    ),
    "exposed_copies": Remedy(
        "Copies during which nothing else runs on the device.",
        "use pinned memory and non_blocking=True on another stream, or keep the data on the device",
        "The next kernel needs the data at once and there is no other work to do.",
    ),
    "fp32_without_tf32": Remedy(
        "FP32 GEMMs or convolutions whose kernels, by their names, did not use TF32 on a device that has it.",
        "torch.set_float32_matmul_precision('high') (torch.backends.cudnn.allow_tf32 = True), or autocast to BF16",
        "The model needs all 24 bits of FP32's significand.",
    ),
    "idle: " + host_time.ALLOCATOR: Remedy(
        "The GPU is idle while the host allocates or frees memory.",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no empty_cache() in the loop, steady shapes, smaller batch",
        "It is the first step, in which the allocator's pool grows.",
    ),
    "idle: " + host_time.CAPTURE: Remedy(
        "The GPU is idle while the host captures a graph.",
        "capture during warm-up and profile later steps",
        "It happens once per run.",
    ),
    "idle: " + host_time.COMMUNICATION: Remedy(
        "The GPU is idle while the host communicates (gloo, MPI, a barrier).",
        "move it to the device's backend or off the critical path; fewer barriers and object collectives",
        "The ranks must meet there, and another rank is late.",
    ),
    "idle: " + host_time.COMPILATION: Remedy(
        "The GPU is idle while Dynamo, Inductor or Triton compiles.",
        "profile after warm-up; if it comes back, look for recompilations (TORCH_LOGS=recompiles), mark dynamic dims",
        "It is the first step.",
    ),
    "idle: " + host_time.DATA_LOADING: Remedy(
        "The GPU is idle while the host waits for data.",
        "more DataLoader workers, prefetch_factor, pin_memory=True, persistent_workers; preprocess ahead or on the GPU",
        "Storage is the limit: measure reading alone.",
    ),
    "idle: " + host_time.FIRST_LOAD: Remedy(
        "The GPU is idle while kernels or libraries are loaded for the first time.",
        "profile after warm-up steps",
        "It recurs in every process start and start-up time is what matters.",
    ),
    "idle: " + host_time.GARBAGE: Remedy(
        "The GPU is idle while Python collects garbage.",
        "gc.freeze() after set-up, gc.disable() and gc.collect() at chosen steps, fewer objects per step",
        "It lies between steps where the host waits anyhow.",
    ),
    "idle: " + host_time.HOST_WORK: Remedy(
        "The GPU is idle while the launching thread runs Python or other code that launches nothing.",
        "look at the longest gaps in idle_gaps and record with_stack=True; move this work ahead or to another thread",
        "The trace holds no step loop: what lies before the first launch is set-up.",
    ),
    "idle: " + host_time.LAUNCH_BOUND: Remedy(
        "The GPU's queue is empty while the host launches: kernels are shorter than their launches.",
        "CUDA or HIP graphs, torch.compile(mode='reduce-overhead'), fused kernels, a larger batch",
        "The profiler itself slows the host down: compare the step time without it.",
    ),
    "idle: " + host_time.PROFILER: Remedy(
        "The GPU is idle while the profiler writes or allocates.",
        "record fewer activities (no stacks, shapes or memory) or fewer steps; a run without the profiler has less",
        "Never: this time is not of the program.",
    ),
    "idle: " + host_time.SYNCHRONIZATION: Remedy(
        "The GPU is idle after the host waited for it: .item(), a blocking copy, a synchronize.",
        "keep the value on the device, log every N steps, non_blocking=True with pinned memory",
        "The host needs the value to decide what comes next.",
    ),
    "idle: " + idle_time.ANOTHER_RANK: Remedy(
        "The GPU waits in a collective until another rank arrives.",
        "see which rank is late with `tracelens collectives` and why with its own report",
        "All ranks are late in turn: then the load is uneven from step to step.",
    ),
    "idle: " + idle_time.COPY_ENGINE: Remedy(
        "The GPU waits for a copy between host and device.",
        "start the copy earlier on a stream of its own, with pinned memory",
        "The path itself is full: see the sheet copies.",
    ),
    "idle: " + idle_time.EVENT_WAIT: Remedy(
        "The stream was told to wait for an event that came late.",
        "look for what the event waits for in idle_gaps and on the critical path: another stream, process or rank",
        "The wait is wanted, as between a server's batches without requests.",
    ),
    "idle: " + idle_time.LATENCY: Remedy(
        "The queue was empty; this is the time from the launch to the start of the kernel.",
        "CUDA or HIP graphs, fewer and longer kernels",
        "The queue is rarely empty: then nothing is gained.",
    ),
    "idle: " + idle_time.QUEUED: Remedy(
        "Kernels were queued, and the GPU still paused between them.",
        "CUDA or HIP graphs, fused kernels, programmatic dependent launch",
        "Clocks of the trace are coarse: gaps of a microsecond may be rounding.",
    ),
    "idle: " + idle_time.STREAM_DEPENDENCY: Remedy(
        "One stream waited for the end of another one's work.",
        "start the other stream's work earlier, or split it so that the waiting part comes first",
        "The order is the program's own.",
    ),
    "idle: " + idle_time.UNRECORDED: Remedy(
        "Work was queued and did not start; what it waited for was not recorded.",
        "record enable_cuda_sync_events=True (torch.profiler's _ExperimentalConfig), or look at the other streams",
        "Another process shares the device.",
    ),
    "idle: " + idle_time.UNKNOWN: Remedy(
        "Nothing was recorded of why the GPU was idle.",
        "record CPU activity and the CUDA or HIP runtime together with the kernels",
        "The file was cut.",
    ),
    "idle": Remedy(
        "The GPU is idle for several causes, none of them long alone.",
        "see idle_causes; graphs and a larger batch help against most of them",
        "The steps are few and short: set-up weighs more than it does later.",
    ),
    "op_below_roofline: attention": Remedy(
        "Attention below its roofline.",
        "another attention backend (FlashAttention, cuDNN, AITER, FlashInfer), or a head size that its kernels prefer",
        "Short sequences or a decode step: the kernel is then bound by its start or by reading the cache.",
    ),
    "op_below_roofline: compute": Remedy(
        "Calls that compute below the peak rate of their precision.",
        "another kernel (max-autotune, a tuned GEMM library), padded dims, larger M, or a narrower precision",
        "The achievable time (--backend tile) is near the measured one: the peak is out of reach for this shape.",
    ),
    "op_below_roofline": Remedy(
        "Calls that move their bytes below the HBM rate.",
        "fuse them with their neighbors (torch.compile), use contiguous inputs, or a fused kernel of the framework",
        "They overlap with other work, which then bounds the step.",
    ),
    "short_kernels": Remedy(
        "Many kernels that take hardly longer than their launch.",
        "torch.compile, foreach or fused optimizers, CUDA or HIP graphs, a larger batch",
        "They run beside longer kernels of another stream.",
    ),
    "unaligned_gemms": Remedy(
        "GEMMs with rows that do not start at multiples of a load instruction's width.",
        "pad the odd dimension (vocabulary, hidden size, classes) to a multiple of 64 elements",
        "The padded work costs more than the faster kernel saves: small dims.",
    ),
    "unfused_elementwise": Remedy(
        "Elementwise kernels that run back to back on one stream.",
        "torch.compile the module, or use the framework's fused kernel (SwiGLU, bias + activation, RoPE)",
        "Values between them are needed by the backward pass, which must then read them.",
    ),
}


def remedy(kind: str) -> str:
    """What to try about a kind of finding; a cause or bound without a remedy of its own has that of its id."""
    return (REMEDIES.get(kind) or REMEDIES[kind.partition(":")[0]]).remedy
