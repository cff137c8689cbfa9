"""For each rule of findings and each cause of idle time a recording on which it speaks, and its twin: one that looks
alike and in which it must stay silent. A twin differs from a recording, or from an edit of one, in the one thing that
makes the rule's sentence true. docs/findings.md has the table of them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
Events = list[Event]
#: Changes the events of a recording in place.
Change = Callable[[Events], None]

AO = "more/ao/quantize_vit"
BERT = "h100/gaunernst_bert-small-uncased__1016001"
DLRM = "more/param/dlrm_8rank/worker{}_step_12.{}.pt.trace"
DLRM_0, DLRM_7 = DLRM.format(0, 1694128201545), DLRM.format(7, 1694128201553)
LOADER_0 = "more/kineto/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace"
LOADER_4 = "more/kineto/samples/resnet50_num_workers_4/worker0.1623212756351.pt.trace"
MEGATRON = "more/megatron_pr1316_tp2/rank{}.pt.trace"
QWEN = "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005"
RESNET = "mi300/resnet_act_checkpoint"
STREAMS = "hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace"
TIMESFORMER = "mi300/facebook_timesformer-base-finetuned-k400__1016002"
VIT = "mi300/Falconsai_nsfw_image_detection__1016002"

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, kw_only=True)
class Twin:
    """``kind``: of the rule, or ``idle: `` and the cause. ``speaks``, ``silent``: a recording and what is changed in it."""

    kind: str
    speaks: tuple[str, tuple[Change, ...]]
    silent: tuple[str, tuple[Change, ...]]
    why: str


def row(
    kind: str, speaks: str, changes: list[Change], twin: list[Change] | str, why: str, base: str | None = None
) -> Twin:
    """``twin``: another recording, or what is changed instead of ``changes``, in ``base`` where that is another one."""
    silent = (twin, ()) if isinstance(twin, str) else (base or speaks, tuple(twin))
    return Twin(kind=kind, speaks=(speaks, tuple(changes)), silent=silent, why=why)


def _timed(events: Events) -> Events:
    return [event for event in events if event.get("ph") == "X"]


def _device(events: Events) -> Events:
    return sorted((e for e in _timed(events) if e.get("cat") in _DEVICE), key=lambda e: e["ts"])


def _call_of(events: Events, event: Event) -> Event:
    number = event["args"]["correlation"]
    return next(e for e in events if e.get("cat") in _CALLS and e["args"].get("correlation") == number)


def _gap(events: Events) -> tuple[float, float, Event]:
    """The longest time between two device events: (start, end, the event that ends it)."""
    found, until = (0.0, 0.0, events[0]), None
    for event in _device(events):
        if until is not None and event["ts"] - until > found[1] - found[0]:
            found = (until, event["ts"], event)
        until = max(until or 0.0, event["ts"] + event["dur"])
    return found


def in_gap(cat: str, name: str, *, other_thread: bool = False, **args: Any) -> Change:
    """The launching thread is at ``name`` for the longest gap, or another thread that launches nothing."""

    def change(events: Events) -> None:
        start, _, event = _gap(events)
        call = _call_of(events, event)
        tid = 99 if other_thread else call["tid"]
        length = call["ts"] - start - 2
        events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": call["pid"], "tid": tid, "ts": start + 1, "dur": length,
             "args": {"correlation": 10_000_001, **args}}
        )  # fmt: skip

    return change


def launched_before_gap(*, behind: str = "", **after: Any) -> Change:
    """What ends the longest gap was launched before it, directly ``behind`` a call; ``after``: what it is, instead."""

    def change(events: Events) -> None:
        start, _, event = _gap(events)
        call = _call_of(events, event)
        call["ts"], call["dur"] = start - 5, 1
        event.update(after)
        if behind:
            events.append({**copy.deepcopy(call), "name": behind, "ts": start - 7, "args": {"correlation": 10_000_002}})

    return change


def renamed(pattern: str, to: str, *cats: str) -> Change:
    """Everything so named has another name."""

    def change(events: Events) -> None:
        for event in _timed(events):
            if (not cats or event.get("cat") in cats) and re.search(pattern, event["name"]):
                event["name"] = to

    return change


def without(pattern: str, *cats: str) -> Change:
    """Nothing so named was recorded."""

    def change(events: Events) -> None:
        events[:] = [
            e for e in events
            if not ((not cats or e.get("cat") in cats) and re.search(pattern, str(e.get("name", ""))))
        ]  # fmt: skip

    return change


def called(op: str, where: Callable[[Event], bool] | None = None, **args: Any) -> Change:
    """The calls of an op have these arguments; a function is asked by number of the call."""

    def change(events: Events) -> None:
        calls = [e for e in _timed(events) if e.get("cat") == "cpu_op" and e["name"] == op and (not where or where(e))]
        for number, event in enumerate(sorted(calls, key=lambda e: e["ts"])):
            event["args"] |= {key: value(number) if callable(value) else value for key, value in args.items()}

    return change


def times_as_long(factor: float) -> Change:
    """The whole recording takes that many times as long."""

    def change(events: Events) -> None:
        first = min(e["ts"] for e in events if "ts" in e)
        for event in events:
            if "ts" in event:
                event["ts"] = first + (event["ts"] - first) * factor
            if "dur" in event:
                event["dur"] *= factor

    return change


def lasting(op: str, us: float) -> Change:
    """The kernels that an op launches last so long."""

    def change(events: Events) -> None:
        ops = [e for e in _timed(events) if e.get("cat") == "cpu_op" and e["name"] == op]
        numbers = {
            e["args"].get("correlation") for e in _timed(events) if e.get("cat") in _CALLS
            if any(o["tid"] == e["tid"] and o["ts"] <= e["ts"] < o["ts"] + o["dur"] for o in ops)
        }  # fmt: skip
        for event in _device(events):
            if event["args"].get("correlation") in numbers and event["cat"] == "kernel":
                event["dur"] = us

    return change


def kernels_of(op: str, name: str) -> Change:
    """The kernels that an op launches are called ``name``."""

    def change(events: Events) -> None:
        ops = [e for e in _timed(events) if e.get("cat") == "cpu_op" and e["name"] == op]
        numbers = {
            e["args"].get("correlation") for e in _timed(events) if e.get("cat") in _CALLS
            if any(o["tid"] == e["tid"] and o["ts"] <= e["ts"] < o["ts"] + o["dur"] for o in ops)
        }  # fmt: skip
        for event in _device(events):
            if event["args"].get("correlation") in numbers and event["cat"] == "kernel":
                event["name"] = name

    return change


def of_kernels(pattern: str, **args: Any) -> Change:
    """Kernels so named have these arguments."""

    def change(events: Events) -> None:
        for event in _device(events):
            if re.search(pattern, event["name"]):
                event["args"] |= args

    return change


def returning(call: str, us: float) -> Change:
    """Calls of the runtime return after so long."""

    def change(events: Events) -> None:
        for event in _timed(events):
            if event.get("cat") in _CALLS and re.search(call, event["name"]):
                event["dur"] = us

    return change


def last_wait(us: float, *, then_a_kernel: bool = False) -> Change:
    """The last synchronization of the device, and its step, last longer; then a kernel is launched in that step."""

    def change(events: Events) -> None:
        step = next(e for e in _timed(events) if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation")
        wait = max((e for e in _timed(events) if e["name"] == "cudaDeviceSynchronize"), key=lambda e: e["ts"])
        wait["dur"] += us
        end = wait["ts"] + wait["dur"]
        step["dur"] = end + 20 - step["ts"]
        if then_a_kernel:
            event, args = _device(events)[-1], {"correlation": 10_000_003}
            events.append({**copy.deepcopy(_call_of(events, event)), "ts": end + 2, "dur": 2, "args": args})
            events.append({**copy.deepcopy(event), "ts": end + 6, "dur": 3, "args": {**event["args"], **args}})

    return change


def on_two_streams(events: Events) -> None:
    """Device events run on two streams by turns."""
    for number, event in enumerate(_device(events)):
        if number % 2:
            event["tid"] = event["args"]["stream"] = 7777


def busy_throughout(events: Events) -> None:
    """A kernel on a stream of its own runs all the time."""
    found = _device(events)
    first, last = found[0]["ts"], max(e["ts"] + e["dur"] for e in found)
    kernel = {**copy.deepcopy(found[0]), "cat": "kernel", "name": "compute_kernel", "tid": 7777, "ts": first}
    kernel |= {"dur": last - first, "args": {"stream": 7777, "device": found[0]["args"].get("device", 0)}}
    events.append(kernel)


def kernel_at_the_start(events: Events) -> None:
    """Each step begins with a launch."""
    event = _device(events)[0]
    call = _call_of(events, event)
    for number, step in enumerate(
        [e for e in _timed(events) if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"]
    ):
        args = {"correlation": 20_000_000 + number}
        events.append({**copy.deepcopy(call), "ts": step["ts"] + 1, "dur": 1, "args": args})
        events.append({**copy.deepcopy(event), "ts": step["ts"] + 3, "dur": 1, "args": {**event["args"], **args}})


def memory(used_gb: float, held_gb: float) -> Change:
    """The allocator recorded what it holds and what is in use."""

    def change(events: Events) -> None:
        events[:] = [e for e in events if e.get("name") != "[memory]"]
        op = next(e for e in _timed(events) if e.get("cat") == "cpu_op")
        args = {"Device Type": 1, "Device Id": 0, "Addr": 4096, "Bytes": int(used_gb * 1e9),
                "Total Allocated": int(used_gb * 1e9), "Total Reserved": int(held_gb * 1e9)}  # fmt: skip
        place = {"pid": op["pid"], "tid": op["tid"], "ts": op["ts"] + 0.5}
        events.append({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", **place, "args": args})

    return change


def engine_steps(names: list[str]) -> Change:
    """The step is cut into an engine's steps of equal length."""

    def change(events: Events) -> None:
        step = next(e for e in _timed(events) if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation")
        events.remove(step)
        weights = [5 if "context_1" in name else 1 for name in names]
        at, each = step["ts"], step["dur"] / sum(weights)
        for name, weight in zip(names, weights, strict=True):
            events.append({**copy.deepcopy(step), "name": name, "ts": at, "dur": each * weight - 0.01})
            at += each * weight

    return change


def _weights(k: int, n: int) -> Callable[[Event], bool]:
    """Calls of addmm with such weights."""
    return lambda event: event["args"]["Input Dims"][2] == [k, n]


def _addmm(m: int, k: int, n: int) -> list[list[int]]:
    return [[n], [m, k], [k, n], [], []]


#: BERT, so slow that its kernels may be anything.
SLOW = times_as_long(50)
FLOATS = ["float", "float", "float", "Scalar", "Scalar"]
FP8 = ["c10::BFloat16", "c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "Scalar", "Scalar"]
STRIDES = [[1], [4096, 1], [4096, 1], [], []]
LARGE = called("aten::addmm", **{"Input Dims": _addmm(4096, 4096, 4096), "Input Strides": STRIDES})
EXPERTS = called("aten::addmm", _weights(512, 512), **{"Input Dims": lambda i: _addmm(8 * (1 + i % 4), 512, 512)})
CACHE = {"Input type": ["TensorList", "Scalar"], "Concrete Inputs": ["", "-2"], "Input Strides": [[], []]}
LOGITS = {"Input type": ["float", "Scalar", "Scalar"], "Concrete Inputs": ["", "1", "False"]}
DECODES, PROMPT = "execute_context_0(0)_generation_8(8)", "execute_context_1(512)_generation_0(0)"
UNEVEN = {"Collective name": "all_to_allv", "In split size": "[6144, 0]", "Out split size": "[3072, 3072]"}
EVEN = {**UNEVEN, "In split size": "[3072, 3072]"}
CALL, FRAME, RANGE = "cuda_runtime", "python_function", "user_annotation"
NO_MALLOC = without("^cudaMalloc$", CALL)

TWINS = (
    row("allocator_retries", "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank1.pt.trace", [],
        [without("^cudaMalloc$", CALL)], "memory is given back and not asked for again"),
    row("attention_from_parts", TIMESFORMER, [], [renamed("^aten::_?softmax", "aten::sigmoid", "cpu_op")],
        "between the two batched GEMMs is no softmax"),
    row("conv_layout_changes", "mi210/gpu_only_trace", [], [renamed("^batched_transpose_", "SubTensorOpWithScalar1d")],
        "the kernels round the convolutions compute"),
    row("expert_imbalance", MEGATRON.format(1), [of_kernels("nccl", **UNEVEN)], [of_kernels("nccl", **EVEN)],
        "the recorded split sizes are even"),
    row("expert_loop", BERT, [times_as_long(3), EXPERTS, renamed("^aten::native_layer_norm$", "aten::topk", "cpu_op")],
        [times_as_long(3), EXPERTS], "short GEMMs of changing heights, as in diffusion models, without a router"),
    row("exposed_communication", MEGATRON.format(1), [], MEGATRON.format(0),
        "the same all-reduces on the rank that comes last: 21 µs each"),
    row("exposed_copies", "more/torchbench/trace", [], [busy_throughout], "a kernel runs beside the copies"),
    row("fp32_without_tf32", BERT, [SLOW, LARGE, called("aten::addmm", **{"Input type": FLOATS}), lasting("aten::addmm", 3000),
         kernels_of("aten::addmm", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3")],
        [SLOW, LARGE, called("aten::addmm", **{"Input type": FLOATS}), lasting("aten::addmm", 3000),
         kernels_of("aten::addmm", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x8_stage3")],
        "the kernels' names say TF32"),
    row("fp8_candidates", BERT, [SLOW, LARGE, lasting("aten::addmm", 300), called("aten::addmm", _weights(4096, 4096),
         **{"Input type": lambda i: FP8 if i == 0 else ["c10::BFloat16"] * 3 + ["Scalar"] * 2})],
        [SLOW, LARGE, lasting("aten::addmm", 300)], "nothing in the program is in FP8"),
    row("growing_cache", BERT, [SLOW, renamed("^aten::gelu$", "aten::cat", "cpu_op"), lasting("aten::cat", 900),
         called("aten::cat", **{"Input Dims": [[[1, 8, 4000, 64], [1, 8, 1, 64]], []], **CACHE})],
        [SLOW, renamed("^aten::gelu$", "aten::cat", "cpu_op"), lasting("aten::cat", 900),
         called("aten::cat", **{"Input Dims": [[[1, 8, 4000, 64], [1, 8, 4000, 64]], []], **CACHE})],
        "two halves of one length are joined, as in rotary embeddings"),
    row("host_before_first_launch", BERT, [], [kernel_at_the_start], "the step begins with a launch: the same work comes later"),
    row("idle", f"{AO}/2025-01-10_5024ea90_aef3ea/bfloat16", [], f"{AO}/2024-03-18_a71c10ac_0aa04e/bfloat16",
        "one cause alone is long enough to be named"),
    row("idle: Python garbage collection", STREAMS, [in_gap(FRAME, "Python GC")], [in_gap(FRAME, "Python GC", other_thread=True)],
        "a thread that launches nothing collects"),
    row("idle: Python or other host work", STREAMS, [], [in_gap(RANGE, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")],
        "the time has a name: the host waits for data"),
    row("idle: allocator", STREAMS, [NO_MALLOC, in_gap(CALL, "cudaFree")], [NO_MALLOC, in_gap(CALL, "cudaMemGetInfo")], "the call allocates nothing"),
    row("idle: another rank", STREAMS, [launched_before_gap(behind="cuStreamWaitValue32_v2")],
        [launched_before_gap(name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", cat="kernel")],
        "a collective that has not started waits for its stream, not for a rank"),
    row("idle: between queued kernels", f"{AO}/2024-03-18_a71c10ac_0aa04e/bfloat16", [], [on_two_streams],
        "the kernel before ran on another stream"),
    row("idle: blocking copy or synchronization", BERT, [last_wait(2000, then_a_kernel=True)], [last_wait(2000)],
        "it is the profiler's own synchronization as it stops"),
    row("idle: communication on the host", STREAMS, [in_gap(RANGE, "gloo:all_reduce")], [in_gap(RANGE, "nccl:all_reduce")],
        "NCCL's collectives are only launched by the host"),
    row("idle: compilation", STREAMS, [in_gap(RANGE, "compile_fx_inner")], [in_gap("cpu_op", "CompiledFunction")],
        "compiled code runs; nothing is compiled"),
    row("idle: copy engine busy", STREAMS, [launched_before_gap(name="Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy")],
        [launched_before_gap(name="Memcpy DtoD (Device -> Device)", cat="gpu_memcpy")], "a copy within the device needs no copy engine"),
    row("idle: data loading", LOADER_0, [], [renamed("DataLoader", "evaluate.metrics")], "the annotation speaks of something else"),
    row("idle: device wait, cause not recorded", STREAMS, [launched_before_gap()], [],
        "the launch came at the end of the gap: the host is late"),
    row("idle: event wait", STREAMS, [launched_before_gap(behind="cudaStreamWaitEvent")],
        [launched_before_gap(behind="cudaEventRecord")], "the stream was told to record an event, not to wait for one"),
    row("idle: first-time loading", STREAMS, [in_gap("cuda_driver", "cuModuleLoadData")], [in_gap("cuda_driver", "cuModuleUnload")],
        "nothing is loaded"),
    row("idle: graph capture", STREAMS, [in_gap(CALL, "cudaGraphInstantiate")], [in_gap(CALL, "cudaGraphDestroy")],
        "no graph is captured or made ready"),
    row("idle: launch latency", VIT, [], QWEN, "as many eager launches, and the queue is never empty"),
    row("idle: launch-bound", BERT, [], QWEN, "as many eager launches, and the host is ahead"),
    row("idle: profiler overhead", STREAMS, [in_gap("overhead", "Activity Buffer Request")],
        [in_gap("overhead", "Lazy Function Loading")], "the recorded overhead is of the program's first kernels"),
    row("idle: stream dependency", f"{AO}/2024-03-18_a71c10ac_0aa04e/bfloat16", [on_two_streams], [],
        "all kernels run on one stream"),
    row("idle: unknown", STREAMS, [without("", "cpu_op", *_CALLS)], [], "the launches were recorded"),
    row("idle: waiting for requests or the scheduler", STREAMS, [in_gap(FRAME, "selectors.py(452): select")],
        [in_gap(FRAME, "selectors.py(298): register")], "the frame does not wait"),
    row("idle: work from before recording", STREAMS, [launched_before_gap(), without("^PyTorch Profiler")],
        [launched_before_gap()], "the recording had begun 42 ms before: no stream is busy for so long"),
    row("layout_copies", QWEN, [], [called("aten::copy_", **{"Input Strides": []})], "where the tensors lie was not recorded"),
    row("low_batch_decode", BERT, [SLOW, called("aten::addmm", **{"Input Dims": _addmm(8, 4096, 4096), "Input Strides": STRIDES}), lasting("aten::addmm", 300)],
        [SLOW, called("aten::addmm", **{"Input Dims": _addmm(512, 4096, 4096), "Input Strides": STRIDES}), lasting("aten::addmm", 300)],
        "the same weights are read for 512 rows"),
    row("memory_fragmentation", BERT, [SLOW, memory(10, 60), in_gap(CALL, "cudaMalloc")], [SLOW, memory(55, 60), in_gap(CALL, "cudaMalloc")],
        "what the allocator holds is in use"),
    row("op_below_roofline: attention", BERT, [], [times_as_long(0.3)], "the same attention in 3 µs: no longer than its launch"),
    row("op_below_roofline: compute", BERT, [SLOW, LARGE, lasting("aten::addmm", 600)], [SLOW, LARGE, lasting("aten::addmm", 140)],
        "the same GEMMs at their roofline"),
    row("op_below_roofline: memory", QWEN, [], [times_as_long(0.2)], "the same ops at HBM's rate"),
    row("optimizer_passes", DLRM_7, [], [renamed(r"^Optimizer\.step", "Optimizer.zero_grad#SGD")], "the kernels are not those of a step of the optimizer"),
    row("prefill_stalls_decode", BERT, [engine_steps([DECODES, DECODES, PROMPT, DECODES, DECODES])],
        [engine_steps([PROMPT, DECODES, DECODES, DECODES, DECODES])], "nothing is decoded yet when the prompt comes"),
    row("queue_drained_by_waits", DLRM_0, [], [renamed("Synchronize$", "cudaStreamQuery", CALL), returning("^cudaMemcpyAsync$", 2)],
        "the host asks and does not wait"),
    row("recomputation", RESNET, [memory(40, 45)], [memory(180, 185)], "the memory is full: it is what checkpointing pays for"),
    row("short_kernels", f"{AO}/2025-01-10_eb21c325_4b77a6/bfloat16", [], [times_as_long(10)], "as many kernels, each long enough"),
    row("slow_convolutions", RESNET, [], [times_as_long(0.1)], "the same convolutions, ten times as fast"),
    row("type_casts", QWEN, [], [called("aten::copy_", **{"Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"]})],
        "source and target have one type"),
    row("unaligned_gemms", BERT, [], [called("aten::addmm", _weights(512, 30522), **{"Input Dims": _addmm(141, 512, 30528), "Input Strides": [[1], [512, 1], [1, 512], [], []]})],
        "the vocabulary is a multiple of 64 elements"),
    row("unfused_elementwise", QWEN, [], "torch_compile_triton/trace", "compiled: Triton kernels do what were elementwise kernels in a row"),
    row("unfused_loss", BERT, [SLOW, renamed("^aten::gelu$", "aten::_log_softmax", "cpu_op"), lasting("aten::_log_softmax", 900),
         called("aten::_log_softmax", **{"Input Dims": [[1024, 32000], [], []], **LOGITS})],
        [SLOW, renamed("^aten::gelu$", "aten::_log_softmax", "cpu_op"), lasting("aten::_log_softmax", 900),
         called("aten::_log_softmax", **{"Input Dims": [[1024, 1000], [], []], **LOGITS})],
        "a thousand classes are no vocabulary"),
    row("wave_quantization", BERT, [SLOW, called("aten::addmm", **{"Input Dims": _addmm(64 * 7, 8192, 64 * 19), "Input Strides": [[1], [8192, 1], [1216, 1], [], []]}), lasting("aten::addmm", 200),
         kernels_of("aten::addmm", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1")],
        [SLOW, called("aten::addmm", **{"Input Dims": _addmm(64 * 12, 8192, 64 * 11), "Input Strides": [[1], [8192, 1], [704, 1], [], []]}), lasting("aten::addmm", 200),
         kernels_of("aten::addmm", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1")],
        "132 tiles fill the 132 units of the device"),
)  # fmt: skip
