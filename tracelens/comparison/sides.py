"""One side of a comparison: the distinct calls of its steps, when they ran, and what kind of work each does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.comparison.compared import IDLE, ComparedRow
from tracelens.types.records import Record

#: The functor of PyTorch's elementwise and reduction kernels is what tells them apart.
_FUNCTOR = re.compile(r"[Ff]unctor|_kernel_cuda|Op")
_WORD = re.compile(r"\w+")
#: Characters of a name in a sentence.
_WIDTH = 48
_NUMBERED = re.compile(r"_\d+(?:_kd)?$|(?:_\d+)?\.kd$")


@lru_cache(maxsize=1 << 14)
def family(kernel: str) -> str:
    """The kernel without what builds and problem sizes change.

    >>> family("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"), family("triton_poi_fused_add_gelu_7")
    ('nvjet_tst', 'triton_poi_fused_add_gelu')
    >>> family("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(int)")
    'vectorized_elementwise_kernel<CUDAFunctor_add>'
    >>> family("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn")
    'ampere_bf16_s16816gemm_bf16'
    >>> family("void (anonymous namespace)::softmax_warp_forward<float, float>(float*)")
    'softmax_warp_forward'
    >>> family("void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float>(int)")
    'vectorized_layer_norm_kernel'
    """
    # As GNU's demangler and as CUDA's call a namespace without a name
    named = kernel.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    head, _, arguments = named.partition("<")
    name = head.partition("(")[0].strip()
    for prefix in ("void ", "int ", "float "):
        name = name.removeprefix(prefix)
    name = name.rpartition("::")[2] or head
    if name.startswith("triton"):
        return _NUMBERED.sub("", name)
    is_generic = "elementwise" in name or "reduce" in name
    functor = next((word for word in _WORD.findall(arguments) if _FUNCTOR.search(word)), None) if is_generic else None
    words = name.split("_")
    # Sizes such as 128x64 or MT256x32x16 end what names have in common
    size = next((i for i, word in enumerate(words) if i and re.search(r"\d+x\d+", word)), len(words))
    kept = [word for word in words[:size] if not word.isdecimal()] or words[:1]
    return "_".join(kept) + (f"<{functor}>" if functor else "")


def different(before: str, after: str) -> tuple[str, str]:
    """Two kernels as short as tells them apart."""
    short = family(before), family(after)
    if short[0] != short[1]:
        return short
    same = next(
        (i for i, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), min(len(before), len(after))
    )
    return _around(before, same), _around(after, same)


def _around(name: str, at: int) -> str:
    """The name where it begins to differ, short enough for a sentence."""
    if len(name) <= _WIDTH:
        return name
    start = max(0, min(at - _WIDTH // 4, len(name) - _WIDTH))
    return ("…" if start else "") + name[start : start + _WIDTH] + ("…" if start + _WIDTH < len(name) else "")


Floats = npt.NDArray[np.float64]


class Call(Record, frozen=True, kw_only=True, array_like=True):
    """A distinct call: an op with its arguments, a kernel that stands for itself, or a cause of idle time.

    ``kernel`` is empty for a whole op, else the kernel that is meant; ``shapes``, ``dtypes``: as recorded. ``work``:
    the perf model with its dimensions, whatever their data types, so that it is the same on every device and in every
    precision. ``module``: the classes of the modules around it, outermost first. ``is_compiled``: whether it runs in a
    region that ``torch.compile`` made.
    """

    name: str
    category: str
    kernel: str = ""
    shapes: str | None = None
    dtypes: str | None = None
    module: str | None = None
    work: str | None = None
    is_compiled: bool = False

    @property
    def is_idle(self) -> bool:
        return self.category == IDLE

    @property
    def label(self) -> str:
        """What a row is called in print: the op, or the kernel where it stands for itself."""
        return family(self.kernel) if self.kernel else self.name


class CallWork(Record, frozen=True, kw_only=True, array_like=True):
    """What is known of one call's work; NaN is unknown. ``engine``: ``matrix_bf16``, None where nothing is computed."""

    flops: float = np.nan
    hbm_bytes: float = np.nan
    roofline_us: float = np.nan
    bound: str | None = None
    engine: str | None = None


class HostSeries(Record, frozen=True, kw_only=True, array_like=True):
    """Host calls of one name that say a ``cause`` of idle time: how many each step has, and their ns."""

    cause: str
    name: str
    count: tuple[float, ...]
    ns: tuple[float, ...]


class StepJoules(Record, frozen=True, kw_only=True):
    """J of a device in each step: by the power model (docs/energy.md) and between what they lie, and ``measured``; none
    where that is unknown. ``idle_w``: what the device draws while it waits, None where that is unknown.
    """

    modelled: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()
    idle_w: float | None = None

    def __post_init__(self) -> None:
        """ValueError for what a file has in place of joules."""
        numbers = (*self.modelled, *self.low, *self.high, *self.measured, self.idle_w or 0.0)
        if not all(number >= 0 for number in numbers):
            raise ValueError("joules must be numbers of 0 or more")
        if not len(self.modelled) == len(self.low) == len(self.high):
            raise ValueError("as many steps must have joules as have their bounds")


#: ``Recorded.device_label`` of a trace that does not say its device.
UNKNOWN_DEVICE = "unknown device"


class Recorded(Record, frozen=True, kw_only=True, eq=False):
    """One trace as columns over its units: calls of ops, or kernels that stand for themselves, by time of launch.

    ``call``: index into ``calls``; ``step``: which of ``durations_ns`` launched it; ``kernel_ns``: the summed duration
    of its device events. Every moment of a step belongs to one unit: ``piece_ns`` of step ``piece_step`` to
    ``piece_unit``, together ``durations_ns``. By device event: its unit, its kernel (of ``kernel_names``) and its
    duration. ``repeats``: how many calls a unit stands for. ``typical``: the step nearest the median. ``is_ordered``:
    whether units stand in order of launch. ``is_skewed``: whether launches end later than the ops in which they began,
    so that a kernel may stand under a neighbour of its op. ``host``: calls that say why a device was idle.
    ``joules``: of each step, None where neither a model nor samples say them.
    """

    source: str
    calls: tuple[Call, ...]
    rates: tuple[CallWork, ...]
    call: Ints
    step: Ints
    kernel_ns: Ints
    piece_unit: Ints
    piece_step: Ints
    piece_ns: Ints
    durations_ns: Ints
    event_unit: Ints
    event_kernel: Ints
    event_ns: Ints
    kernel_names: tuple[str, ...]
    repeats: Floats
    typical: int = 0
    rank: int | None = None
    device: str | None = None
    device_label: str = ""
    torch: str | None = None
    has_steps: bool = False
    is_ordered: bool = True
    is_skewed: bool = False
    host: tuple[HostSeries, ...] = ()
    joules: StepJoules | None = None


class Side(Record, frozen=True, kw_only=True, eq=False):
    """All recordings of one side: runs of the same thing, each of one or more ranks.

    ``parts``: by run, then rank. What is said of a step is the mean over the ranks, then over the steps of all runs.
    """

    name: str
    parts: tuple[tuple[Recorded, ...], ...]
    notes: tuple[str, ...] = msgspec.field(default=())

    @property
    def recordings(self) -> tuple[Recorded, ...]:
        return tuple(one for run in self.parts for one in run)

    @property
    def first(self) -> Recorded:
        """The recording used for alignment."""
        return self.parts[0][0]


def by_step(side: Side, rows: Sequence[Ints], count: int, what: str = "time") -> tuple[Floats, Floats | None]:
    """(row, step) of all runs: of each row the ns of each step that belong to it, the summed ns of the ``kernels`` that
    the step launched, or the number of its ``calls``; ``rows``: of each recording its units' rows.

    Ranks of a run wait for each other, so that a step is the mean of them. Where they recorded different numbers of
    steps, each run is one sample: the mean of the ranks' means. The second array is that of (rank, row, step), None
    where there is one rank, or where not every run has the same.
    """
    found = []
    for one, own in zip(side.recordings, rows, strict=True):
        known: dict[str, tuple[Any, Ints, Ints | Floats]] = {
            "time": (one.piece_unit, one.piece_step, one.piece_ns),
            "kernels": (slice(None), one.step, one.kernel_ns),
            "calls": (slice(None), one.step, one.repeats),
        }
        unit, step, values = known[what]
        steps = len(one.durations_ns)
        sums = np.bincount(own[unit] * steps + step, values, minlength=count * steps)
        found.append(sums.reshape(count, steps).astype(np.float64))
    return _of_runs(side, found)


def host_by_step(side: Side) -> dict[tuple[str, str], tuple[Floats, Floats]]:
    """(cause, name) of host calls -> how many the mean rank of each step has, and their ns."""
    keys = dict.fromkeys((each.cause, each.name) for one in side.recordings for each in one.host)
    found = []
    for what in ("count", "ns"):
        columns = []
        for one in side.recordings:
            of = {(each.cause, each.name): getattr(each, what) for each in one.host}
            none = (0.0,) * len(one.durations_ns)
            columns.append(np.array([of.get(key, none) for key in keys], np.float64).reshape(len(keys), len(none)))
        found.append(_of_runs(side, columns)[0])
    return {key: (found[0][at], found[1][at]) for at, key in enumerate(keys)}


def joules_by_step(side: Side, what: str) -> Floats | None:
    """J of a device (the mean rank) in each step of all runs; None where a recording does not know ``what``."""
    of_each = [() if one.joules is None else getattr(one.joules, what) for one in side.recordings]
    if any(len(joules) != len(one.durations_ns) for joules, one in zip(of_each, side.recordings, strict=True)):
        return None
    return _of_runs(side, [np.array([joules], np.float64) for joules in of_each])[0][0]


def _of_runs(side: Side, found: Sequence[Floats]) -> tuple[Floats, Floats | None]:
    """(row, step) of the mean rank of all runs, and (rank, row, step); of what each recording has by (row, step)."""
    at, runs = iter(found), []
    for run in side.parts:
        ranks = [next(at) for _ in run]
        if len({ranked.shape[1] for ranked in ranks}) > 1:
            ranks = [ranked.mean(axis=1, keepdims=True) for ranked in ranks]
        runs.append(np.stack(ranks))
    mean = np.concatenate([ranks.mean(axis=0) for ranks in runs], axis=1)
    of_runs = {tuple(one.rank for one in run) for run in side.parts}
    is_job = len(of_runs) == 1 and len(runs[0]) > 1
    return mean, np.concatenate(runs, axis=2) if is_job else None


def weights(side: Side) -> list[float]:
    """What one step of each recording counts for in the mean step of the side."""
    sizes = [len({len(one.durations_ns) for one in run}) == 1 for run in side.parts]
    samples = [len(run[0].durations_ns) if even else 1 for run, even in zip(side.parts, sizes, strict=True)]
    return [
        count / sum(samples) / len(run) / len(one.durations_ns)
        for run, count in zip(side.parts, samples, strict=True)
        for one in run
    ]


PRODUCT, ATTENTION, COMMUNICATION, COPY, STREAMING = "product", "attention", "communication", "copy", "streaming"
_SOFTMAX = "softmax"
_ROLES = (
    (PRODUCT, ("GEMM", "GroupedGEMM", "CONV", "RNN", "MoE_fused", "MoE_unfused")),
    (ATTENTION, ("SDPA", "InferenceAttention", "SSM")),
    (COMMUNICATION, ("collectives", "EP_Communication", "CustomCollective", "record_param_comms", "MoE_comm")),
    (COPY, ("copy", "memcpy")),
)
#: Ops of experts' exchanges that sort rows in a rank's own memory.
_LOCAL = ("TokenPermute", "_OperationFuser")
#: What cuBLAS, CUTLASS and Tensile run after the product whose parts it adds.
_ADDS_PARTS = re.compile(r"(?i:splitk_?reduce|reduce_?split_?k|PostGSU)")
#: Inductor's templates of matrix products.
_TEMPLATES = ("triton_tem_", "triton_mm", "triton_bmm")


def role(category: str, name: str = "") -> str:
    """Of a category, or of what is called so; all that only streams memory is of one kind.

    >>> role("MoE_comm_fwd", "any_dispatch"), role("MoE_comm_fwd", "TokenPermuteMaskMap")
    ('communication', 'streaming')
    """
    if name.startswith(_TEMPLATES):
        return PRODUCT
    if name.startswith(_LOCAL):
        return STREAMING
    return next((name for name, prefixes in _ROLES if category.startswith(prefixes)), STREAMING)


def row_role(row: ComparedRow) -> str:
    """Of a compared row."""
    return role(row.category, row.name)


def call_role(call: Call) -> str:
    """Of a call; a kernel of a softmax that stands for itself is that of attention from parts."""
    if call.kernel and _ADDS_PARTS.search(call.kernel):
        return STREAMING
    if call.kernel and call.category == _SOFTMAX:
        return ATTENTION
    return role(call.category, call.kernel or call.name)


def roles_of(calls: Sequence[Call], order: Ints) -> list[str]:
    """Of the calls in this order; the products on both sides of a softmax's kernel are of its attention."""
    known = [call_role(call) for call in calls]
    found = [known[number] for number in order.tolist()]
    for at, number in enumerate(order.tolist()):
        if calls[number].kernel and calls[number].category == _SOFTMAX:
            for near in (at - 1, at + 1):
                if 0 <= near < len(found) and found[near] == PRODUCT and calls[order[near]].kernel:
                    found[near] = ATTENTION
    return found
