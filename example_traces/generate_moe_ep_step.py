"""Generate one expert-parallel MoE training job as eight traces, one per rank: no GPU ran this.

    python -m example_traces.generate_moe_ep_step [FOLDER] [--rank N] [--popularity EXPONENT]

Three steps of a two-layer Megatron-style MoE transformer on eight MI300X: flash attention, a top-4 router over 32
experts (four per rank), DeepEP dispatch and combine, grouped GEMMs, gradients summed by RCCL while the backward runs,
fused AdamW. Names, schema slots, shapes and nesting follow the libraries' sources; kernel names are shortened. Kernel
times are computed: from the work that the perf models count, at the roofline of ``hardware/devices/mi300x.toml``
divided by the efficiencies below, with seeded noise. Host times come from the costs below.

Tokens are routed to experts of unequal popularity, so ranks receive different numbers of rows. Exchanges are
collective: no rank's ends before the last rank has started, so a fast rank's kernel lasts longer than the transfer.
The same code and device file give the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeAlias

import numpy as np

from tracelens.backends.base import System
from tracelens.backends.roofline_and_tile import Roofline
from tracelens.extensions import bundled_extensions, overlay
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, SDPA, Collective, EPComm, GroupedGEMM, PerfModel, SDPABackward, bindings
from tracelens.perf_models.elementwise import MultiTensor
from tracelens.trace.writer import (
    DistributedJob,
    HostThread,
    ProcessGroup,
    RecordedCall,
    RecordedKernel,
    RecordedLaunch,
    RecordedOp,
    RecordedTrace,
    write_trace,
)
from tracelens.types.dtypes import DType
from tracelens.types.signature import DeviceProperties, OpSignature

FOLDER = Path(__file__).resolve().parent / "moe_ep8"
DEVICE = "mi300x"
SEED = 518
RANKS, STEPS, FIRST_STEP, LAYERS = 8, 3, 10, 2
TOKENS, HIDDEN, VOCABULARY = 4096, 2048, 16384
HEADS, KV_HEADS, HEAD = 16, 4, 128
EXPERTS, TOP_K, FFN = 32, 4, 1408
LOCAL_EXPERTS = EXPERTS // RANKS
#: Popularity of the i-th most popular expert is (i + 1) ** -POPULARITY; 0: experts get equally many tokens
POPULARITY = 0.35

#: Share of the roofline (at achievable rates where the device file has them) that a kernel of each kind reaches
EFFICIENCY: tuple[tuple[type[PerfModel], float], ...] = (
    (GroupedGEMM, 0.62),
    (GEMM, 0.84),
    (SDPABackward, 0.42),
    (SDPA, 0.55),
    (EPComm, 0.7),
    (Collective, 0.7),
    (PerfModel, 0.72),
)
#: Ops without a perf model: one pass over every recorded tensor, at this share of the peak memory rate
UNMODELED_EFFICIENCY = 0.5
NOISE, SLOWEST_CLOCK = 0.03, 0.03
KERNEL_FLOOR_US, LATENCY_US, GAP_US, JITTER_US = 2.0, 5.0, 0.6, 3.0
OP_US, LAUNCH_US, PAUSE_US, COPY_GB_S = 2.2, 4.5, 0.9, 25.0
NOTIFY_US, LAYOUT_US, ALL_REDUCE_US, NLL_US = 9.0, 7.5, 10.0, 11.0
COMPUTE, RCCL, DEEP_EP = 0, 4, 8

MI300X = DeviceProperties(
    name="AMD Instinct MI300X",
    memory_bytes=206141652992,
    compute_major=9,
    compute_minor=4,
    compute_units=304,
    warp_size=64,
)
WORLD = ProcessGroup(name="0", ranks=tuple(range(RANKS)), description="default_pg")
EXPERT_GROUP = ProcessGroup(name="1", ranks=tuple(range(RANKS)), description="EXPERT_MODEL_PARALLEL_GROUP")

GEMM_KERNEL = "Cijk_{}_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB1_ISA942_PGR2_PLR1_WS64_WG32_8_1"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<8, at::native::{}, std::array<char*, {}ul> >"
UNROLLED = "void at::native::unrolled_elementwise_kernel<at::native::{}, std::array<char*, 2ul>, 4>"
REDUCE_SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::sum_functor<float>>>"
)
TOPK = (
    "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
    "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long>",
)
SCATTER = "void at::native::_scatter_gather_elementwise_kernel<128, 8>"
EMBEDDING = (
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>"
)
EMBEDDING_BACKWARD = (
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<c10::BFloat16, float, long>"
)
NORM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float>>>"
ADD = ELEMENTWISE.format("CUDAFunctor_add<c10::BFloat16>", 3)
ADD_FP32 = ELEMENTWISE.format("CUDAFunctor_add<float>", 3)
MULTIPLY = ELEMENTWISE.format("BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, MulFunctor>", 3)
FILL, FILL_FP32 = (ELEMENTWISE.format(f"FillFunctor<{name}>", 1) for name in ("c10::BFloat16", "float"))
SILU, SILU_BACKWARD = (ELEMENTWISE.format(f"silu_{name}kernel", 2) for name in ("", "backward_"))
LAYER_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"
LAYER_NORM_INPUT = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>"
)
LAYER_NORM_WEIGHTS = "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16, float>"
ADAMW = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
    "at::native::FusedOptimizerTensorListMetadata<4>, "
    "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, ADAM_MODE::ADAMW, false> >"
)
CK_GROUPED = "void ck_tile::kentry<1, ck_tile::GroupedGemmKernel<ck_tile::GemmPipelineAgBgCrCompV3, {}>>"
CK_FMHA = "void ck_tile::kentry<2, ck_tile::{}<ck_tile::TileFmhaShape<128, 128, 32, 128, 32, 128>, bf16, causal>>"
DISPATCH_LAYOUT = "void deep_ep::layout::get_dispatch_layout<256, 32, 8>"
NOTIFY_DISPATCH = "void deep_ep::intranode::notify_dispatch<8>"
DISPATCH = "void deep_ep::intranode::dispatch<8, 768, 8192>"
CACHED_NOTIFY_DISPATCH = "void deep_ep::intranode::cached_notify_dispatch<8>"
CACHED_NOTIFY_COMBINE = "void deep_ep::intranode::cached_notify_combine<8>"
COMBINE = "void deep_ep::intranode::combine<__hip_bfloat16, 8, 768, 4096>"

BF16, FP32, INT64 = DType.BF16, DType.FP32, DType.INT64


@dataclass(frozen=True, slots=True)
class Tensor:
    """A recorded tensor argument; contiguous unless strides are given."""

    shape: tuple[int, ...]
    dtype: DType = BF16
    strides: tuple[int, ...] | None = None

    @property
    def recorded_strides(self) -> tuple[int, ...]:
        if self.strides is not None:
            return self.strides
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    @property
    def transposed(self) -> Tensor:
        return Tensor(self.shape[::-1], self.dtype, self.recorded_strides[::-1])

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


QKV_WEIGHT, QKV_BIAS = Tensor(((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN)), Tensor(((HEADS + 2 * KV_HEADS) * HEAD,))
PROJECTION_WEIGHT, ROUTER_WEIGHT = Tensor((HIDDEN, HEADS * HEAD)), Tensor((EXPERTS, HIDDEN))
UP_WEIGHT, DOWN_WEIGHT = Tensor((LOCAL_EXPERTS, 2 * FFN, HIDDEN)), Tensor((LOCAL_EXPERTS, HIDDEN, FFN))
VOCABULARY_WEIGHT = Tensor((VOCABULARY, HIDDEN))
WEIGHTS = (
    VOCABULARY_WEIGHT,
    *(QKV_WEIGHT, QKV_BIAS, PROJECTION_WEIGHT, ROUTER_WEIGHT, UP_WEIGHT, DOWN_WEIGHT) * LAYERS,
    VOCABULARY_WEIGHT,
)
#: What a layer's all-reduce sums; experts live on one rank each, so their gradients are summed nowhere
LAYER_ELEMENTS = sum(weight.elements for weight in (QKV_WEIGHT, QKV_BIAS, PROJECTION_WEIGHT, ROUTER_WEIGHT))


#: One schema slot: a tensor, a tensor list, a number, a list of integers, or absent
Slot: TypeAlias = Tensor | list[Tensor] | tuple[int, ...] | float | None
#: Work that waits for other ranks: yields when this rank is ready (ns), is sent when the last one was
Turns: TypeAlias = Generator[int, int, None]


def call(name: str, *slots: Slot) -> OpSignature:
    """The signature a trace records for a call with these arguments.

    Of an autograd function PyTorch records tensors, numbers and None; objects and tuples are left out by the caller.
    """
    shapes: list[tuple[object, ...]] = []
    dtypes, scalars = [], []
    strides: list[tuple[object, ...]] = []
    for slot in slots:
        shape: tuple[object, ...] = ()
        stride: tuple[object, ...] = ()
        if isinstance(slot, Tensor):
            shape, stride, dtype, scalar = slot.shape, slot.recorded_strides, slot.dtype.traced, ""
        elif isinstance(slot, list):
            shape, stride = tuple(t.shape for t in slot), tuple(t.recorded_strides for t in slot)
            dtype, scalar = "TensorList", ""
        elif isinstance(slot, tuple):
            dtype, scalar = "ScalarList", str(list(slot))
        elif slot is None:
            dtype, scalar = "", ""
        else:
            dtype, scalar = "Scalar", _decimal(slot) if isinstance(slot, float) else str(slot)
        shapes.append(shape)
        strides.append(stride)
        dtypes.append(dtype)
        scalars.append(scalar)
    return OpSignature(
        name=name, shapes=tuple(shapes), dtypes=tuple(dtypes), strides=tuple(strides), scalars=tuple(scalars)
    )


def _decimal(value: float) -> str:
    """A double as C++ prints it: 17 digits, and a point in whole numbers."""
    text = f"{value:.17g}"
    return text if "." in text or "e" in text else f"{text}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Where one layer's tokens go in one step.

    ``copies[source, target]`` counts tokens with at least one expert on ``target``: DeepEP sends a token to a rank
    once. ``rows[target]`` counts (token, expert) pairs, the rows of that rank's grouped GEMMs.
    """

    copies: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]

    @classmethod
    def draw(cls, layer: int, step: int, exponent: float = POPULARITY) -> Routing:
        """Top-k without replacement by an exponential race, as if every rank's tokens saw the same popularity."""
        popularity = (1.0 + np.random.RandomState(SEED + layer).permutation(EXPERTS)) ** -exponent
        uniform = np.random.RandomState(SEED + 100 * step + layer).random_sample((RANKS, TOKENS, EXPERTS))
        race = -np.log(1.0 - uniform) / popularity
        chosen = np.argpartition(race, TOP_K, axis=2)[:, :, :TOP_K] // LOCAL_EXPERTS
        on_rank = (chosen[..., None] == np.arange(RANKS)).sum(axis=2)
        copies = (on_rank > 0).sum(axis=1)
        return cls(
            copies=tuple(tuple(int(n) for n in row) for row in copies),
            rows=tuple(int(n) for n in on_rank.sum(axis=(0, 1))),
        )

    def received(self, rank: int) -> int:
        """Tokens that arrive at ``rank``, its own included."""
        return sum(row[rank] for row in self.copies)

    @property
    def busiest_link(self) -> int:
        """The most tokens that one rank sends to, or receives from, the other ranks."""
        sent = [sum(row) - row[source] for source, row in enumerate(self.copies)]
        received = [self.received(rank) - self.copies[rank][rank] for rank in range(RANKS)]
        return max(*sent, *received)


class Timing:
    """How long the device takes, without noise: roofline over efficiency, plus what the shortest kernel costs."""

    def __init__(self) -> None:
        self._system = System(device=HardwareSpec.load(DEVICE))
        self._roofline = Roofline()
        self._bindings = overlay(bindings(), bundled_extensions())
        self._known: dict[OpSignature, float] = {}

    def call_us(self, signature: OpSignature) -> float:
        """A recorded call, from its perf model."""
        if signature not in self._known:
            claim = self._bindings.get(signature.name)
            model = None if claim is None else claim.target(signature)
            if isinstance(model, MultiTensor):
                model = replace(model, dtype=FP32)  # the type of a tensor list is not recorded
            self._known[signature] = self._streamed_us(signature) if model is None else self.model_us(model)
        return self._known[signature]

    def price(self, signature: OpSignature, model: PerfModel) -> None:
        """The call is this operation, whether or not a perf model is bound to its name."""
        self._known[signature] = self.model_us(model)

    def model_us(self, model: PerfModel) -> float:
        """An operation of these dimensions. SystemExit when the device file lacks a rate it needs."""
        estimate = self._roofline.estimate(model, self._system)
        if estimate is None:
            raise SystemExit(f"{DEVICE} has no rate for {model}")
        efficiency = next(share for kind, share in EFFICIENCY if isinstance(model, kind))
        return KERNEL_FLOOR_US + estimate.time_us / efficiency

    def _streamed_us(self, signature: OpSignature) -> float:
        hbm = self._system.device.hbm
        if hbm is None or hbm.peak_tb_s is None:
            raise SystemExit(f"{DEVICE} has no memory rate")
        nbytes = 0.0
        for slot, text in zip(signature.shapes or (), signature.dtypes or (), strict=True):
            dtype = DType.parse(text)
            if dtype is not None:
                nbytes += math.prod(slot) * dtype.width_bytes
        return KERNEL_FLOOR_US + nbytes / (hbm.peak_tb_s * 1e6) / UNMODELED_EFFICIENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One entry of the autograd tape. ``sequence`` is None for gradient accumulation, which has no forward op."""

    name: str
    gradients: tuple[Slot, ...]
    sequence: int | None
    run: Callable[[], Turns]


@dataclass(slots=True)
class Rank:
    """One rank as time passes: a host that calls and launches, and device streams that follow."""

    rank: int
    timing: Timing
    now: int = field(init=False)
    random: Random = field(init=False)
    clock: float = field(init=False)
    earlier: RecordedKernel = field(init=False)
    stream_free: dict[int, int] = field(init=False)
    autograd_calls: list[RecordedCall] = field(default_factory=list)
    open_calls: list[list[RecordedCall]] = field(default_factory=lambda: [[]])
    tape: list[Node] = field(default_factory=list)
    sequence: int = 4000

    def __post_init__(self) -> None:
        self.random = Random(f"{SEED} rank {self.rank}")  # noqa: S311 - noise, not a secret
        self.clock = 1.0 + SLOWEST_CLOCK * self.random.random()
        self.now = 1_000_000 + int(200_000 * self.random.random())
        # The optimizer of the step before the first recorded one is still running when recording begins
        self.earlier = RecordedKernel(
            name=ADAMW, start_ns=self.now - 700_000, duration_ns=round(1_150_000 * self.clock), stream=COMPUTE
        )
        self.stream_free = dict.fromkeys((COMPUTE, RCCL, DEEP_EP), 0)
        self.stream_free[COMPUTE] = self.earlier.start_ns + self.earlier.duration_ns

    def spend(self, time_us: float) -> None:
        """Host time, with the spread it has in practice."""
        self.now += round(time_us * (0.8 + 0.4 * self.random.random()) * 1000)

    @contextlib.contextmanager
    def op(
        self,
        signature: OpSignature,
        *,
        sequence: int | None = None,
        forward_thread: int | None = None,
        annotation: bool = False,
    ) -> Iterator[None]:
        """A call round everything that the block calls and launches."""
        self.spend(PAUSE_US)
        start = self.now
        self.spend(OP_US)
        self.open_calls.append([])
        yield
        calls = tuple(self.open_calls.pop())
        self.spend(OP_US / 2)
        self.open_calls[-1].append(
            RecordedOp(
                signature=signature,
                start_ns=start,
                duration_ns=self.now - start,
                calls=calls,
                category="user_annotation" if annotation else "cpu_op",
                sequence_number=sequence,
                forward_thread=forward_thread,
            )
        )

    def launch(self, name: str, kernel: RecordedKernel | None = None, *, until: int = 0) -> None:
        """A runtime call that returns at ``until`` (ns) at the earliest."""
        self.spend(PAUSE_US)
        start = self.now
        self.spend(LAUNCH_US)
        self.now = max(self.now, until)
        kernels = () if kernel is None else (kernel,)
        self.open_calls[-1].append(
            RecordedLaunch(name=name, start_ns=start, duration_ns=self.now - start, kernels=kernels)
        )
        if kernel is not None:
            self.stream_free[kernel.stream] = kernel.start_ns + kernel.duration_ns

    def ready(self, *streams: int) -> int:
        """When work launched now can start: launched, and everything before it on these streams done."""
        launched = self.now + round((PAUSE_US + LAUNCH_US + LATENCY_US) * 1000)
        return max(launched, *(self.stream_free[stream] + round(GAP_US * 1000) for stream in streams))

    def wait_for(self, stream: int) -> None:
        """Later work on the compute stream starts after what runs on ``stream`` now."""
        self.launch("hipStreamWaitEvent")
        self.stream_free[COMPUTE] = max(self.stream_free[COMPUTE], self.stream_free[stream])

    def synchronize(self, stream: int) -> None:
        """The host waits for a stream."""
        self.launch("hipStreamSynchronize", until=self.stream_free[stream] + round(LATENCY_US * 1000))

    def run(self, name: str, time_us: float) -> None:
        """A kernel on the compute stream."""
        launch = "hipExtModuleLaunchKernel" if name.startswith("Cijk") else "hipLaunchKernel"
        self._enqueue(RecordedKernel(name=name, start_ns=0, duration_ns=0), time_us, launch)

    def copy(self, name: str, nbytes: int, time_us: float) -> None:
        """A copy between host and device on the compute stream."""
        details = (("bytes", nbytes),)
        copied = RecordedKernel(name=name, start_ns=0, duration_ns=0, category="gpu_memcpy", details=details)
        self._enqueue(copied, time_us, "hipMemcpyAsync")

    def fill(self, time_us: float) -> None:
        """A memset on the compute stream."""
        filled = RecordedKernel(name="Memset (Device)", start_ns=0, duration_ns=0, category="gpu_memset")
        self._enqueue(filled, time_us, "hipMemsetAsync")

    def _enqueue(self, kernel: RecordedKernel, time_us: float, launch: str) -> None:
        noise = 1.0 + NOISE * (2 * self.random.random() - 1)
        duration = round(time_us * self.clock * noise * 1000)
        self.launch(launch, replace(kernel, start_ns=self.ready(COMPUTE), duration_ns=duration, stream=COMPUTE))

    def leaf(self, signature: OpSignature, *kernels: str) -> None:
        """An op and its kernels; of several, the last takes four fifths of the time."""
        with self.op(signature):
            if not kernels:
                return
            time_us = self.timing.call_us(signature)
            *prepare, work = kernels
            for kernel in prepare:
                self.run(kernel, 0.2 * time_us / len(prepare))
            self.run(work, 0.8 * time_us if prepare else time_us)

    def together(self, kernel: RecordedKernel, transfer_us: float) -> Turns:
        """A kernel of all ranks, after the compute stream: it ends ``transfer_us`` after the last of them started."""
        start = self.ready(kernel.stream, COMPUTE) + round(JITTER_US * self.random.random() * 1000)
        latest = yield start
        duration = latest - start + round(transfer_us * 1000)
        self.launch("hipExtLaunchKernel", replace(kernel, start_ns=start, duration_ns=duration))

    def record(self, node: str, gradients: tuple[Slot, ...], backward: Callable[[], Turns]) -> int:
        """Puts a backward node on the tape and returns the sequence number that its forward op shares."""
        self.sequence += 1
        self.tape.append(Node(name=node, gradients=gradients, sequence=self.sequence, run=backward))
        return self.sequence

    def backward(self) -> Turns:
        """Every node of the tape, last first, on autograd's thread."""
        main, self.open_calls = self.open_calls, [self.autograd_calls]
        while self.tape:
            node = self.tape.pop()
            evaluate = OpSignature(name=f"autograd::engine::evaluate_function: {node.name}")
            thread = None if node.sequence is None else 1
            with (
                self.op(evaluate, sequence=node.sequence, forward_thread=thread),
                self.op(call(node.name, *node.gradients), sequence=node.sequence, forward_thread=thread),
            ):
                yield from node.run()
        self.open_calls = main

    def trace(self) -> RecordedTrace:
        """What this rank's profiler would have written."""
        process = 2000 + self.rank
        (main,) = self.open_calls
        return RecordedTrace(
            threads=(
                HostThread(thread_id=process, calls=tuple(main)),
                HostThread(thread_id=process + 100, calls=tuple(self.autograd_calls), name="pt_autograd_0"),
            ),
            devices=(MI300X,) * RANKS,
            device=self.rank,
            earlier_kernels=(self.earlier,),
            distributed=DistributedJob(rank=self.rank, world_size=RANKS, process_groups=(WORLD, EXPERT_GROUP)),
            process_id=process,
            labels=(
                ("traceName", f"GENERATED, no GPU ran this: example_traces/generate_moe_ep_step.py, rank {self.rank}"),
            ),
        )


def leaves(rank: Rank, *ops: tuple[OpSignature, *tuple[str, ...]]) -> Callable[[], Turns]:
    """A backward of ops, each with its kernels, that waits for no other rank."""

    def backward() -> Turns:
        for signature, *kernels in ops:
            rank.leaf(signature, *kernels)
        yield from ()

    return backward


def linear(rank: Rank, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, reduced_elements: int = 0) -> None:
    """``aten::linear`` of [tokens, 1, k] and a weight [n, k], with its gradients; see ``accumulate``."""
    n, k = weight.shape
    flat, gradient, weight_t = Tensor((TOKENS, k)), Tensor((TOKENS, n)), weight.transposed
    backward: list[tuple[OpSignature, str]] = [
        (call("aten::mm", gradient, weight), GEMM_KERNEL.format("Ailk_Bljk")),
        (call("aten::mm", gradient.transposed, flat), GEMM_KERNEL.format("Ailk_Bjlk")),
    ]
    wrapper = contextlib.nullcontext() if bias else rank.op(call("aten::matmul", x, weight_t))
    if bias is None:
        node, product = "MmBackward0", call("aten::mm", flat, weight_t)
    else:
        node, product = "AddmmBackward0", call("aten::addmm", bias, flat, weight_t, 1, 1)
        backward.append((call("aten::sum", gradient, (0,), True, None), REDUCE_SUM))
    accumulate(rank, weight, reduced_elements)
    with rank.op(call("aten::linear", x, weight, bias)):
        rank.leaf(call("aten::t", weight))
        with wrapper:
            simple(rank, product, (GEMM_KERNEL.format("Alik_Bljk"),), node, gradient, *backward)


def accumulate(rank: Rank, weight: Tensor, reduced_elements: int = 0) -> None:
    """Adds a weight's gradient to its fp32 sum; the last of a bucket starts the bucket's all-reduce."""

    def backward() -> Turns:
        rank.leaf(call("aten::add_", Tensor(weight.shape, FP32), weight, 1), ADD_FP32)
        if reduced_elements:
            yield from all_reduce(rank, reduced_elements)

    rank.tape.append(Node(name="torch::autograd::AccumulateGrad", gradients=(weight,), sequence=None, run=backward))


def all_reduce(rank: Rank, elements: int) -> Turns:
    """An fp32 sum over all ranks, on RCCL's stream."""
    details = (
        ("Collective name", "allreduce"),
        ("In msg nelems", elements),
        ("Out msg nelems", elements),
        ("Group size", RANKS),
        ("dtype", "Float"),
        ("In split size", "[]"),
        ("Out split size", "[]"),
        ("Process Group Name", WORLD.name),
        ("Process Group Description", WORLD.description),
        ("Process Group Ranks", str(list(WORLD.ranks))),
    )
    buffer = [Tensor((elements,), FP32)]
    comms = call("record_param_comms", buffer, None, None, 0, None, (), (), 0, 1, RANKS)
    kernel = RecordedKernel(
        name="ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        start_ns=0,
        duration_ns=0,
        stream=RCCL,
        details=details,
    )
    comms = replace(comms, attributes=tuple(sorted((*details, ("Rank", rank.rank)))))
    with rank.op(call("c10d::allreduce_", buffer, None, None, None, True, -1)), rank.op(comms):
        yield from rank.together(kernel, ALL_REDUCE_US + rank.timing.call_us(comms))


def exchange(rank: Rank, notify: str, move: str, tokens: int, *, host_waits: bool = False) -> Turns:
    """DeepEP: ranks agree on who sends what, then rows move; the compute stream continues afterwards.

    ``host_waits``: a forward dispatch tells the host how many tokens arrive, so the host cannot run ahead.
    """
    moved_us = rank.timing.model_us(EPComm(tokens=tokens, hidden=HIDDEN, dtype=BF16))
    kernel = RecordedKernel(name=notify, start_ns=0, duration_ns=0, stream=DEEP_EP, grid=(RANKS + 1, 1, 1))
    yield from rank.together(kernel, NOTIFY_US)
    if host_waits:
        rank.now = max(rank.now, rank.stream_free[DEEP_EP])
    yield from rank.together(replace(kernel, name=move, grid=(64, 1, 1)), moved_us)
    rank.wait_for(DEEP_EP)


def layer_norm(rank: Rank, x: Tensor) -> None:
    """Over the hidden dimension, with weight and bias."""
    weight, statistics = Tensor((HIDDEN,)), Tensor((*x.shape[:-1], 1), FP32)
    backward = call(
        "aten::native_layer_norm_backward", x, x, (HIDDEN,), statistics, statistics, weight, weight, (True, True, True)
    )
    with rank.op(call("aten::layer_norm", x, (HIDDEN,), weight, weight, 1e-05, True)):
        forward_call = call("aten::native_layer_norm", x, (HIDDEN,), weight, weight, 1e-05)
        kernels = (backward, LAYER_NORM_WEIGHTS, LAYER_NORM_INPUT)
        simple(rank, forward_call, (LAYER_NORM,), "NativeLayerNormBackward0", x, kernels)


def simple(
    rank: Rank,
    signature: OpSignature,
    kernels: tuple[str, ...],
    node: str,
    gradient: Tensor,
    *backward: tuple[OpSignature, *tuple[str, ...]],
) -> None:
    """An op with kernels of its own, whose backward ``node`` is given ``gradient`` and runs ``backward``."""
    sequence = rank.record(node, (gradient,), leaves(rank, *backward))
    with rank.op(signature, sequence=sequence):
        time_us = rank.timing.call_us(signature)
        for kernel in kernels:
            rank.run(kernel, time_us / len(kernels))


def residual(rank: Rank, x: Tensor) -> None:
    """The sum of a block's input and output. Backward, the two branches' gradients are summed."""
    simple(rank, call("aten::add", x, x, 1), (ADD,), "AddBackward0", x, (call("aten::add", x, x, 1), ADD))


def to_float(rank: Rank, x: Tensor) -> None:
    """From bf16; backward, back again."""
    wide = Tensor(x.shape, FP32)
    sequence = rank.record(
        "ToCopyBackward0",
        (wide,),
        leaves(rank, (call("aten::copy_", x, wide, False), UNROLLED.format("bfloat16_copy_kernel"))),
    )
    inner = call("aten::_to_copy", x, 6, None, None, None, False, None)
    with rank.op(call("aten::to", x, 6, False, False, None)), rank.op(inner, sequence=sequence):
        rank.leaf(call("aten::copy_", wide, x, False), UNROLLED.format("float_copy_kernel"))


def attention(rank: Rank, x: Tensor) -> None:
    """Grouped-query flash attention between its two projections."""
    scale = 1 / math.sqrt(HEAD)
    q, kv = Tensor((1, TOKENS, HEADS, HEAD)), Tensor((1, TOKENS, KV_HEADS, HEAD))
    lse, rng = Tensor((1, HEADS, TOKENS), FP32), Tensor((2,), INT64)
    linear(rank, x, QKV_WEIGHT, QKV_BIAS, reduced_elements=LAYER_ELEMENTS)
    tensors = (q, q, kv, kv, q, lse, q, kv, kv)  # dO, q, k, v, o, log-sum-exp, dq, dk, dv
    gradients = call("flash_attn::_flash_attn_backward", *tensors, 0.0, scale, True, -1, -1, 0.0, None, False, rng)
    model = SDPA(
        b=1, s_q=TOKENS, s_kv=TOKENS, q_heads=HEADS, kv_heads=KV_HEADS, d_qk=HEAD, d_v=HEAD, mask="bottom_right"
    )
    rank.timing.price(gradients, model.backward())
    kernels = [CK_FMHA.format(f"FmhaBwd{part}Kernel") for part in ("OGradDotO", "ConvertQGrad", "DQDKDV")]
    sequence = rank.record("FlashAttnFuncBackward", (q,), leaves(rank, (gradients, *kernels)))
    outer = call("FlashAttnFunc", q, kv, kv, 0.0, scale, True, (-1, -1), 0.0, None, False, False, True)
    with rank.op(outer, sequence=sequence):
        inner = call("flash_attn::_flash_attn_forward", q, kv, kv, 0.0, scale, True, -1, -1, 0.0, None, False)
        rank.timing.price(inner, model)
        rank.leaf(inner, CK_FMHA.format("FmhaFwdKernel"))
    linear(rank, x, PROJECTION_WEIGHT)


def router(rank: Rank, x: Tensor) -> None:
    """Scores of all experts, and each token's best."""
    scores = Tensor((TOKENS, EXPERTS), FP32)
    best, indices = Tensor((TOKENS, TOP_K), FP32), Tensor((TOKENS, TOP_K), INT64)
    linear(rank, x, ROUTER_WEIGHT)
    to_float(rank, Tensor((TOKENS, EXPERTS)))
    softmax = "void (anonymous namespace)::softmax_warp_{}<float, float, float, 5, false, false>"
    with rank.op(call("aten::softmax", scores, -1, None)):
        simple(
            rank,
            call("aten::_softmax", scores, -1, False),
            (softmax.format("forward"),),
            "SoftmaxBackward0",
            scores,
            (call("aten::_softmax_backward_data", scores, scores, -1, 6), softmax.format("backward")),
        )
    simple(
        rank,
        call("aten::topk", scores, TOP_K, -1, True, True),
        TOPK,
        "TopkBackward0",
        best,
        (call("aten::scatter_", scores, -1, indices, best), SCATTER),
    )


def grouped_gemm(rank: Rank, rows: int, weight: Tensor) -> None:
    """Each row times its expert's weight [n, k]; the gradient of the weights sums over each expert's rows."""
    _, n, k = weight.shape
    x, gradient = Tensor((rows, k)), Tensor((rows, n))
    lengths, offsets = Tensor((LOCAL_EXPERTS,), INT64), Tensor((LOCAL_EXPERTS + 1,), INT64)

    def product(a: Tensor, b: Tensor, suffix: str, flags: tuple[bool, ...]) -> None:
        with rank.op(call(f"primus_turbo::grouped_gemm{suffix}_impl", a, b, lengths, offsets, *flags, None, 1, False)):
            name = f"primus_turbo_cpp_extension::ck_grouped_gemm{suffix}"
            rank.leaf(call(name, a, b, lengths, offsets, *flags, None), CK_GROUPED.format(suffix.lstrip("_") or "m"))

    def backward() -> Turns:
        product(gradient, weight, "", (False, False))
        product(gradient, x, "_variable_k", (True, False, False))
        yield from ()

    sequence = rank.record("GroupedGemmFuncBackward", (gradient,), backward)
    with rank.op(call("GroupedGemmFunc", x, weight, lengths, offsets, True, None), sequence=sequence):
        product(x, weight, "", (False, True))


def swiglu(rank: Rank, rows: int) -> None:
    """``silu(gate) * up * probability``; gate and up are the halves of one tensor."""
    half = Tensor((rows, FFN), BF16, (2 * FFN, 1))
    full, probability = Tensor((rows, FFN)), Tensor((rows, 1), FP32)
    simple(
        rank,
        call("aten::silu", half),
        (SILU,),
        "SiluBackward0",
        full,
        (call("aten::silu_backward", full, half), SILU_BACKWARD),
    )
    simple(
        rank,
        call("aten::mul", full, half),
        (MULTIPLY,),
        "MulBackward0",
        full,
        (call("aten::mul", full, full), MULTIPLY),
        (call("aten::mul", full, half), MULTIPLY),
    )
    simple(
        rank,
        call("aten::mul", full, probability),
        (MULTIPLY,),
        "MulBackward0",
        full,
        (call("aten::mul", full, probability), MULTIPLY),
        (call("aten::mul", full, full), MULTIPLY),
        (call("aten::sum", full, (1,), True, None), REDUCE_SUM),
    )


def experts(rank: Rank, routing: Routing) -> None:
    """Rows sorted by expert, through the experts, and summed per token again."""
    tokens, rows = routing.received(rank.rank), routing.rows[rank.rank]
    received, sorted_rows = Tensor((tokens, HIDDEN)), Tensor((rows, HIDDEN))
    row_map, probabilities = Tensor((tokens, LOCAL_EXPERTS), DType.INT32), Tensor((tokens, LOCAL_EXPERTS), FP32)
    index = Tensor((rows, HIDDEN), INT64, (1, 0))
    permute = call("TokenPermuteMaskMap", received, row_map, rows, probabilities)

    def unpermute() -> Turns:
        rank.run("_unpermute_kernel", rank.timing.call_us(permute))
        yield from ()

    sequence = rank.record("TokenPermuteMaskMapBackward", (sorted_rows, None, probabilities), unpermute)
    with rank.op(permute, sequence=sequence):
        rank.run("_permute_kernel", rank.timing.call_us(permute))
    accumulate(rank, UP_WEIGHT)
    grouped_gemm(rank, rows, UP_WEIGHT)
    swiglu(rank, rows)
    accumulate(rank, DOWN_WEIGHT)
    grouped_gemm(rank, rows, DOWN_WEIGHT)
    with rank.op(call("aten::zeros", (tokens, HIDDEN), None, None, None, None)):
        rank.leaf(call("aten::fill_", received, 0), FILL)
    simple(
        rank,
        call("aten::scatter_add_", received, 0, index, sorted_rows),
        (SCATTER,),
        "ScatterAddBackward0",
        received,
        (call("aten::gather", received, 0, index, False), SCATTER),
    )


def mixture(rank: Rank, x: Tensor, routing: Routing) -> Turns:
    """Router, dispatch, experts, combine."""
    router(rank, x)
    tokens, busiest = routing.received(rank.rank), routing.busiest_link
    local, received = Tensor((TOKENS, HIDDEN)), Tensor((tokens, HIDDEN))
    indices, best = Tensor((TOKENS, TOP_K), INT64), Tensor((TOKENS, TOP_K), FP32)
    combine = partial(exchange, rank, CACHED_NOTIFY_COMBINE, COMBINE, busiest)
    gradients = (received, None, Tensor((tokens, TOP_K), FP32), None, None)
    sequence = rank.record("DeepEPDispatchBackward", gradients, combine)
    with rank.op(call("DeepEPDispatch", local, indices, best, EXPERTS, False, False, False, 0), sequence=sequence):
        rank.run(DISPATCH_LAYOUT, LAYOUT_US)
        yield from exchange(rank, NOTIFY_DISPATCH, DISPATCH, busiest, host_waits=True)
    experts(rank, routing)
    sequence = rank.record(
        "DeepEPCombineBackward", (local,), partial(exchange, rank, CACHED_NOTIFY_DISPATCH, DISPATCH, busiest)
    )
    with rank.op(call("DeepEPCombine", received, False, False), sequence=sequence):
        yield from combine()


def forward(rank: Rank, routings: tuple[Routing, ...]) -> Turns:
    """Embedding, layers, output projection, loss."""
    x, tokens = Tensor((TOKENS, 1, HIDDEN)), Tensor((TOKENS, 1), INT64)
    accumulate(rank, VOCABULARY_WEIGHT, VOCABULARY_WEIGHT.elements)
    simple(
        rank,
        call("aten::embedding", VOCABULARY_WEIGHT, tokens, -1, False, False),
        (EMBEDDING,),
        "EmbeddingBackward0",
        x,
        (call("aten::embedding_dense_backward", x, tokens, VOCABULARY, -1, False), EMBEDDING_BACKWARD),
    )
    for routing in routings:
        layer_norm(rank, x)
        attention(rank, x)
        residual(rank, x)
        layer_norm(rank, x)
        yield from mixture(rank, x, routing)
        residual(rank, x)
    layer_norm(rank, x)
    linear(rank, x, VOCABULARY_WEIGHT, reduced_elements=VOCABULARY_WEIGHT.elements)
    logits, labels = Tensor((TOKENS, VOCABULARY), FP32), Tensor((TOKENS,), INT64)
    to_float(rank, Tensor(logits.shape))
    softmax = "void at::native::(anonymous namespace)::cunn_SoftMax{}<4, float, float, float>"
    nll = "void at::native::(anonymous namespace)::nll_loss_{}_reduce_cuda_kernel_2d<float, float, long>"
    scalar = Tensor((), FP32)
    with rank.op(call("aten::cross_entropy_loss", logits, labels, None, 1, -100, 0.0)):
        with rank.op(call("aten::log_softmax", logits, 1, 6)):
            simple(
                rank,
                call("aten::_log_softmax", logits, 1, False),
                (softmax.format("Forward"),),
                "LogSoftmaxBackward0",
                logits,
                (call("aten::_log_softmax_backward_data", logits, logits, 1, 6), softmax.format("Backward")),
            )
        with rank.op(call("aten::nll_loss_nd", logits, labels, None, 1, -100)):
            given = call("aten::nll_loss_backward", scalar, logits, labels, None, 1, -100, scalar)
            backward = leaves(rank, (call("aten::zero_", logits), FILL_FP32), (given, nll.format("backward")))
            sequence = rank.record("NllLossBackward0", (scalar,), backward)
            with rank.op(call("aten::nll_loss_forward", logits, labels, None, 1, -100), sequence=sequence):
                rank.run(nll.format("forward"), NLL_US)


def update(rank: Rank) -> Turns:
    """The gradients' norm over all ranks, which the host reads, then AdamW."""
    rank.wait_for(RCCL)
    sums = Tensor((sum(weight.elements for weight in WEIGHTS),), FP32)
    norm = call("aten::linalg_vector_norm", sums, 2.0, None, False, None)
    rank.leaf(norm, NORM)
    yield from all_reduce(rank, 1)
    rank.wait_for(RCCL)
    with rank.op(call("aten::item", Tensor((), FP32))), rank.op(call("aten::_local_scalar_dense", Tensor((), FP32))):
        rank.copy("Memcpy DtoH (Device -> Host)", 4, KERNEL_FLOOR_US)
        rank.synchronize(COMPUTE)
    wide = [Tensor(weight.shape, FP32) for weight in WEIGHTS]
    steps = [Tensor((), FP32)] * len(WEIGHTS)
    adamw = call(
        "aten::_fused_adamw_", wide, wide, wide, wide, None, steps,
        3e-4, 0.9, 0.95, 0.1, 1e-8, False, False, None, None,
    )  # fmt: skip
    with rank.op(OpSignature(name="Optimizer.step#AdamW.step"), annotation=True):
        rank.leaf(adamw, ADAMW)


def training(rank: Rank, routings: tuple[tuple[Routing, ...], ...]) -> Turns:
    """All recorded steps of one rank."""
    batch = Tensor((2, TOKENS), INT64)
    sums = Tensor((sum(weight.elements for weight in WEIGHTS),), FP32)
    for number, layers in enumerate(routings, start=FIRST_STEP):
        with rank.op(OpSignature(name=f"ProfilerStep#{number}"), annotation=True):
            outer, inner = (
                call("aten::_to_copy", batch, 4, 0, 0, None, True, None),
                call("aten::copy_", batch, batch, True),
            )
            with rank.op(outer), rank.op(inner):
                nbytes = batch.elements * 8
                rank.copy("Memcpy HtoD (Host -> Device)", nbytes, KERNEL_FLOOR_US + nbytes / (COPY_GB_S * 1e3))
            with rank.op(call("aten::zero_", sums)):
                rank.fill(rank.timing.call_us(call("aten::zero_", sums)))
            yield from forward(rank, layers)
            yield from rank.backward()
            yield from update(rank)


def generate(popularity: float = POPULARITY) -> list[RecordedTrace]:
    """The traces of all ranks: every rank advances to its next exchange, then the last one's start is told to all."""
    timing = Timing()
    routings = tuple(
        tuple(Routing.draw(layer, step, popularity) for layer in range(LAYERS))
        for step in range(FIRST_STEP, FIRST_STEP + STEPS)
    )
    ranks = [Rank(number, timing) for number in range(RANKS)]
    turns = [training(rank, routings) for rank in ranks]
    starts = [next(turn) for turn in turns]
    while starts:
        latest = max(starts)
        starts = []
        for turn in turns:
            with contextlib.suppress(StopIteration):
                starts.append(turn.send(latest))
    return [rank.trace() for rank in ranks]


def write(folder: Path, ranks: Iterable[int] = range(RANKS), popularity: float = POPULARITY) -> list[Path]:
    """Writes the traces of ``ranks`` into ``folder`` as ``rank<n>.json.gz``."""
    traces = generate(popularity)
    folder.mkdir(parents=True, exist_ok=True)
    return [write_trace(traces[rank], folder / f"rank{rank}.json.gz") for rank in ranks]


def main() -> None:
    """Writes all ranks, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--rank", type=int, choices=range(RANKS))
    parser.add_argument("--popularity", type=float, default=POPULARITY, metavar="EXPONENT")
    given = parser.parse_args()
    for path in write(given.folder, range(RANKS) if given.rank is None else (given.rank,), given.popularity):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
