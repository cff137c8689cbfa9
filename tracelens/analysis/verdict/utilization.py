"""Model FLOPs and hardware FLOPs utilization: what a model's step asks of this device, and what the device executed,
beside what it could have done in the same time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.loaded_trace import StepWork
from tracelens.analysis.verdict.summary import Notice, StepUtilization, Utilization
from tracelens.errors import SignatureError
from tracelens.lazy.records import dataclass
from tracelens.trace.table import Kind, TraceTable
from tracelens.units import NS_PER_US, TERA_PER_S_IN_PER_US

if TYPE_CHECKING:
    from tracelens.analysis.analyze import Analysis
    from tracelens.dtypes import DType
    from tracelens.hardware import HardwareSpec
    from tracelens.workload import ModelConfig

Floats = npt.NDArray[np.float64]
_BACKWARD = re.compile(r"backward", re.IGNORECASE)
# How Megatron-Core and torchtitan describe groups whose ranks share the work on one batch of tokens.
_SHARED_WORK = re.compile(
    r"(?:tensor(?:_and_context)?(?:_model)?_parallel|pipeline(?:_model)?_parallel|context_parallel|mesh_(?:tp|pp|cp)|tp|pp|cp)"
    r"(?:_group)?",
    re.IGNORECASE,
)


_Pairs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """Tokens of one step, the length of a sequence, and where both are from."""

    count: int
    sequence: int
    source: str


def utilization(analysis: Analysis) -> tuple[Utilization | None, tuple[Notice, ...]]:
    """MFU and HFU of the analyzed steps (without steps: of the whole window); None, with the reason, where unknown."""
    work = analysis.options.work
    if work is None:
        return None, ()
    notices = [_notice("model_note", note) for note in work.model.notes]
    if analysis.executed is None:
        return None, (_notice("no_utilization", f"no MFU for {work.model.name}: no GPU work was recorded"), *notices)
    windows = _windows(analysis)
    found = _given(work)
    if found is None:
        try:
            found = _recorded(analysis, work, windows)
        except SignatureError as error:
            text = f"no MFU for {work.model.name}: {error}; give --batch and --sequence"
            return None, (_notice("no_utilization", text), *notices)
    shared, ranks_source = _ranks(analysis, work)
    if shared is None:
        return None, (_notice("no_utilization", f"no MFU for {work.model.name}: {ranks_source}"), *notices)
    if work.ranks is None and (analysis.trace.table.world_size or 1) > 1:
        notices.insert(0, _notice("utilization_assumes", f"MFU {ranks_source}; else pass --ranks"))
    made = _made(analysis, work, found, shared, ranks_source)
    return made, (*_doubts(made), *notices)


def _doubts(made: Utilization) -> Iterator[Notice]:
    """What is wrong with an MFU that cannot be."""
    if made.mfu is not None and made.mfu > 1:
        text = f"MFU is {100 * made.mfu:.0f} %: the model, --ranks or the tokens per step do not match this trace"
        yield _notice("utilization_above_peak", text)
    elif made.mfu is not None and made.mfu > (made.hfu or 0):
        covered = f"{100 * (made.hardware_coverage or 0):.0f} % of the device time is in ops with known FLOPs"
        yield _notice(
            "utilization_uncovered", f"MFU is above HFU: {covered}; the rest may contain the missing matrix FLOPs"
        )


def _notice(identifier: str, text: str) -> Notice:
    return Notice(id=identifier, count=1, text=text)


def _made(analysis: Analysis, work: StepWork, tokens: _Tokens, ranks: int, ranks_source: str) -> Utilization:
    training = _has_backward(analysis)
    per_token = work.model.flops_per_token(tokens.sequence)
    model_flops = (per_token.training if training else per_token.forward) * tokens.count / ranks
    dtype = (analysis.executed.dtype if analysis.executed is not None else None) or work.model.dtype
    peak, achievable = _rates(analysis.device, dtype)
    steps = _timed_steps(analysis)
    time_us = float(np.mean([time for _, time, _ in steps]))
    done = [flops for _, _, flops in steps if flops]
    hardware_flops = float(np.mean(done)) if done else None
    return Utilization(
        model=work.model.name,
        work="training" if training else "inference",
        tokens=tokens.count,
        sequence=tokens.sequence,
        tokens_source=tokens.source,
        ranks=ranks,
        ranks_source=ranks_source,
        dtype=dtype.label if dtype is not None else None,
        time_us=time_us,
        model_flops=model_flops,
        hardware_flops=hardware_flops,
        hardware_coverage=analysis.coverage.flops,
        mfu=_share(model_flops, time_us, peak),
        mfu_of_achievable=_share(model_flops, time_us, achievable),
        hfu=_share(hardware_flops, time_us, peak),
        hfu_of_achievable=_share(hardware_flops, time_us, achievable),
        steps=tuple(
            StepUtilization(
                step=number, time_us=time, mfu=_share(model_flops, time, peak), hfu=_share(flops or None, time, peak)
            )
            for number, time, flops in steps
            if number is not None
        ),
    )


def _rates(device: HardwareSpec | None, dtype: DType | None) -> tuple[float | None, float | None]:
    """(peak, achievable) TFLOPS/s of the matrix units."""
    rate = device.rate("matrix", dtype) if device is not None and dtype is not None else None
    return (None, None) if rate is None else (rate.peak_tflops_s, rate.achievable_tflops_s)


def _share(flops: float | None, time_us: float, tflops_s: float | None) -> float | None:
    if flops is None or tflops_s is None or not time_us:
        return None
    return flops / time_us / TERA_PER_S_IN_PER_US / tflops_s


def _timed_steps(analysis: Analysis) -> list[tuple[int | None, float, float]]:
    """(number, µs, executed FLOPs) of the complete analyzed steps; one without a number for a trace without steps."""
    times, executed = analysis.step_times, analysis.executed
    flops = executed.flops_by_step if executed is not None else np.zeros(max(1, len(times)))
    if not analysis.selected_steps:
        return [(None, analysis.timeline.total_ns / NS_PER_US, float(flops.sum()))]
    duration = times.duration_ns / NS_PER_US
    return [(times.steps[i].number, float(duration[i]), float(flops[i])) for i in analysis.complete_steps]


def _windows(analysis: Analysis) -> list[tuple[int, int]]:
    """Host windows (ns) of the complete analyzed steps; one over everything without steps."""
    times = analysis.step_times
    if not analysis.selected_steps:
        return [(0, int(np.iinfo(np.int64).max))]
    return [(times.steps[i].start_ns, times.steps[i].end_ns) for i in analysis.complete_steps]


def _given(work: StepWork) -> _Tokens | None:
    if work.sequence is None:
        return None
    if work.batch is not None:
        return _Tokens(count=work.batch * work.sequence, sequence=work.sequence, source="--batch x --sequence")
    if work.tokens is not None:
        return _Tokens(count=work.tokens, sequence=work.sequence, source="--tokens-per-step, --sequence")
    return None


def _recorded(analysis: Analysis, work: StepWork, windows: list[tuple[int, int]]) -> _Tokens:
    """Tokens of a step as the trace records them. SignatureError says why they are not determined."""
    lookups = [_looked_up(analysis.trace.table, work.model, window) for window in windows]
    attended = [_attended(analysis, window) for window in windows]
    if all(lookups):
        found = _of_lookups(lookups, attended, work)
    elif all(attended):
        found = _of_attention(attended, work)
    else:
        raise SignatureError("the trace records neither a lookup of token embeddings nor attention with lengths")
    if work.tokens is not None:
        return replace(found, count=work.tokens, source=f"--tokens-per-step; sequence: {found.source}")
    given = "; --sequence" if work.sequence is not None else ""
    return replace(found, sequence=work.sequence or found.sequence, source=found.source + given)


def _of_lookups(lookups: list[_Pairs], attended: list[_Pairs], work: StepWork) -> _Tokens:
    counts = {sum(a * b for a, b in calls) for calls in lookups}
    if len(counts) != 1:
        raise SignatureError("steps look up different numbers of tokens")
    first = lookups[0][0]
    sequence = work.sequence or _sequence(first, {s for calls in attended for _, s in calls})
    times = f" x {len(lookups[0])}" if len(lookups[0]) > 1 else ""
    return _Tokens(count=counts.pop(), sequence=sequence, source=f"aten::embedding indices {list(first)}{times}")


def _of_attention(attended: list[_Pairs], work: StepWork) -> _Tokens:
    shapes = {shape for calls in attended for shape in calls}
    if len(shapes) != 1:
        raise SignatureError("attention calls have different shapes")
    rows, sequence = shapes.pop()
    calls, layers = len(attended[0]), work.model.attention_blocks
    if calls != layers and work.tokens is None:
        raise SignatureError(
            f"{calls} attention calls in a step for {layers} layers do not determine the tokens per step"
        )
    source = f"attention over {rows} x {sequence}, once per layer"
    return _Tokens(count=rows * sequence, sequence=sequence, source=source)


def _sequence(indices: tuple[int, int], attended: set[int]) -> int:
    """Which dim of the looked-up indices is the sequence: the one that attention is over; the last without attention.

    Megatron keeps ``[sequence, batch]``, others ``[batch, sequence]``.
    """
    if not attended:
        return indices[1]
    if len(attended) == 1 and (length := next(iter(attended))) in indices:
        return length
    raise SignatureError(f"token indices {list(indices)} and attention over {sorted(attended)} do not agree")


def _looked_up(table: TraceTable, model: ModelConfig, window: tuple[int, int]) -> list[tuple[int, int]]:
    """The indices' shape of every lookup in the largest table of embeddings, the vocabulary's.

    SignatureError when that table is not as wide as the model.
    """
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for row in _rows_named(table, "aten::embedding", window):
        signature = table.signature_of(row)
        weights, indices = signature.shape(0, rank=2), signature.shape_or_scalar(1)
        if len(indices) == 2:
            found.setdefault(weights, []).append((indices[0], indices[1]))
    if not found:
        return []
    largest = max(found)
    if largest[1] != model.hidden:
        raise SignatureError(f"the trace's embedding is {list(largest)}, the model's [{model.vocab}, {model.hidden}]")
    return found[largest]


def _attended(analysis: Analysis, window: tuple[int, int]) -> list[tuple[int, int]]:
    """(sequences, tokens in each) of every forward attention; SignatureError when one is not over whole sequences."""
    found = []
    for row, model in analysis.executed.attention if analysis.executed is not None else ():
        if _is_within(analysis.trace.table, row, window):
            if model.s_q is None or model.s_q != model.s_kv:
                raise SignatureError("attention of a step is not over whole sequences of recorded length")
            found.append((model.b, model.s_q))
    return found


def _rows_named(table: TraceTable, name: str, window: tuple[int, int]) -> list[int]:
    if name not in table.names:
        return []
    rows = np.flatnonzero((table.kind == Kind.CPU_OP) & (table.name == table.names.index(name))).tolist()
    return [row for row in rows if _is_within(table, row, window)]


def _is_within(table: TraceTable, row: int, window: tuple[int, int]) -> bool:
    return bool(window[0] <= table.start_ns[row] < window[1])


def _has_backward(analysis: Analysis) -> bool:
    """Whether an op of the analyzed steps is named after a gradient: then the steps are training."""
    table = analysis.trace.table
    named = np.array([_BACKWARD.search(name) is not None for name in table.names] or [False], bool)
    rows = np.flatnonzero((table.kind == Kind.CPU_OP) & named[table.name])
    start = table.start_ns[rows]
    return any(bool(((start >= first) & (start < end)).any()) for first, end in _windows(analysis))


def _ranks(analysis: Analysis, work: StepWork) -> tuple[int | None, str]:
    """Devices that share the work on the tokens, and where that is from; None, with the reason, when it is open."""
    table = analysis.trace.table
    if work.ranks is not None:
        return work.ranks, "--ranks"
    world = table.world_size or 1
    if world == 1:
        return 1, "one rank"
    for group in table.process_groups():
        mine = table.rank is None or table.rank in group.ranks
        if mine and len(group.ranks) > 1 and _SHARED_WORK.fullmatch(group.description):
            return None, (
                f"the trace records a {group.description} group of {len(group.ranks)} ranks; "
                "pass --ranks, the number of ranks that share the work on these tokens"
            )
    return 1, f"assumes that each of the {world} ranks does all the work on its own tokens (data or expert parallel)"
