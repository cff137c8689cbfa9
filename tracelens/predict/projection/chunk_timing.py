"""The kernels of a layer's pass on one rank, and one micro-batch through a rank's layers with the transfers that run
at the same time.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from tracelens.perf_models import Collective, EPComm
from tracelens.predict.projection.pipeline import OVERLAP_COST
from tracelens.predict.projection.schedules import Kind
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.rank_ops import RankLayer, RankOp, is_repeated
from tracelens.predict.workload.ranks import WHOLE_GATHER
from tracelens.types.records import Record

#: Time in us by what it is spent on.
Parts: TypeAlias = dict[str, float]
#: The share of the products' time that overlapped ring exchanges hide behind.
TP_HIDDEN = 0.6
#: Pieces of an exchange of which nothing has to come first.
UNDIVIDED = float("inf")
COMPUTE = "compute"


class Kernel(NamedTuple):
    """One operation on the device; ``again``: recomputed. A tuple, because a step has 100,000 of them."""

    op: RankOp
    start_us: float
    time_us: float
    stream: str
    again: bool = False


class Block(Record, frozen=True, kw_only=True):
    """Kernels, their times from the block's start in microseconds.

    ``parts`` adds up to ``time_us``: computing, and of communication what stays exposed. ``lead_us``: the most that any
    kernel's launch ends after the kernel's start when the host starts together with the block.
    """

    time_us: float
    parts: Mapping[str, float]
    kernels: tuple[Kernel, ...]
    lead_us: float

    def then(self, other: Block, host_us: float) -> Block:
        """``other`` right after this."""
        parts: Parts = defaultdict(float, self.parts)
        for part, time_us in other.parts.items():
            parts[part] += time_us
        moved = (kernel._replace(start_us=kernel.start_us + self.time_us) for kernel in other.kernels)
        return Block(
            time_us=self.time_us + other.time_us,
            parts=parts,
            kernels=(*self.kernels, *moved),
            lead_us=max(self.lead_us, len(self.kernels) * host_us + other.lead_us - self.time_us),
        )


EMPTY = Block(time_us=0.0, parts={}, kernels=(), lead_us=float("-inf"))


class Builder(Record, frozen=True, kw_only=True):
    """Makes blocks of operations that take ``price(op)``, launched every ``host_us``."""

    parallel: ParallelConfig
    price: Callable[[RankOp], float]
    host_us: float

    def layer(self, blocks: Sequence[RankLayer]) -> dict[Kind, Block]:
        """A block per kind of task for one layer, or for an end of the model."""
        ops = [op for block in blocks for op in block.ops]
        backward = list(itertools.chain.from_iterable(map(_backward, reversed(blocks))))
        again = self._again(blocks)
        return {
            "F": self.block(op for op in ops if op.phase == "forward"),
            "B": again.then(self.block(backward), self.host_us),
            "D": again.then(self.block(op for op in backward if op.phase == "dgrad"), self.host_us),
            "W": self.block(op for op in backward if op.phase == "wgrad"),
        }

    def block(self, ops: Iterable[RankOp]) -> Block:
        """``ops`` one after the other; tensor-parallel collectives overlap products where the configuration says so."""
        priced = [(op, self.price(op)) for op in ops]
        exposed = self._exposed_shares(priced)
        parts: Parts = defaultdict(float)
        kernels: list[Kernel] = []
        now = beside = 0.0
        lead = float("-inf")
        for launched, (op, time_us) in enumerate(priced, start=1):
            share = exposed.get(op.name, 1.0) if op.part == "tp" else 1.0
            start = now
            if op.part == "tp":
                start = max(now, beside)
                beside = start + time_us
            kernels.append(Kernel(op, start, time_us, _stream(op)))
            lead = max(lead, launched * self.host_us - now)
            parts[op.part] += share * time_us
            now += share * time_us
        return Block(time_us=now, parts=parts, kernels=tuple(kernels), lead_us=lead)

    def _exposed_shares(self, priced: Sequence[tuple[RankOp, float]]) -> dict[str, float]:
        """Exposed share of tensor-parallel collectives by name, where less than all. GEMMs in tp pieces, each
        overlapping the next piece's transfer: the first piece has nothing to hide behind, and GEMMs leave others only a
        part of their time. The gradients' GEMMs as a whole overlap only what column-parallel ones gather and scatter.
        """
        p = self.parallel
        pieces: float = p.tp if p.summa_blocks is None else p.summa_blocks
        hidden = TP_HIDDEN if p.summa_blocks is None else 1.0
        if p.tp_overlap != "all" and p.summa_blocks is None:
            pieces = UNDIVIDED
        beside = {op.name for op, _ in priced if self._runs_beside_products(op)}
        moved = sum(time_us for op, time_us in priced if op.part == "tp" and op.name in beside)
        products = sum(time_us for op, time_us in priced if op.part == "gemm")
        share = float(exposed_share(moved, products, pieces, hidden))
        return dict.fromkeys(beside, share)

    def _runs_beside_products(self, op: RankOp) -> bool:
        p = self.parallel
        if op.part != "tp" or op.name.startswith(WHOLE_GATHER):
            return False
        if p.tp_overlap == "all" or p.summa_blocks is not None:
            return True
        # Of a column-parallel product's two backward products a transfer waits for neither: the gather of its input,
        # which only wgrad reads, can run beside dgrad; the scatter of what dgrad made can run beside wgrad.
        waits_for_none = op.phase == "dgrad" and ".gather." in op.name
        return p.tp_overlap == "backward" and not p.lora and waits_for_none

    def _again(self, blocks: Sequence[RankLayer]) -> Block:
        """What recomputation runs before the backward."""
        ops = [op for block in blocks for op in block.ops if is_repeated(op, block.letter, self.parallel)]
        if not ops:
            return EMPTY
        made = self.block(ops)
        return Block(
            time_us=made.time_us,
            parts={"recompute": made.time_us} if made.time_us else {},
            kernels=tuple(kernel._replace(again=True) for kernel in made.kernels),
            lead_us=made.lead_us,
        )


def exposed_share(moved_us: Any, products_us: Any, pieces: Any, hidden: float) -> Any:
    """Exposed share of transfers in ``pieces`` that overlap GEMMs: the first piece, and what a share ``hidden`` of the
    GEMMs' time does not cover of the rest. Numbers or arrays.
    """
    first = moved_us / pieces
    exposed = first + np.maximum(0.0, moved_us - first - hidden * products_us)
    return np.where(moved_us > 0, exposed / np.where(moved_us > 0, moved_us, 1.0), 1.0)


def _backward(block: RankLayer) -> Iterable[RankOp]:
    """A forward's operations in reverse; what belongs to one of them stays in its order."""
    runs = [list(run) for _, run in itertools.groupby(block.ops, key=_base)]
    return (op for run in reversed(runs) for op in run if op.phase != "forward")


def _base(op: RankOp) -> str:
    """The name of the operation that this is a part of: its product's of a quantization."""
    return op.name.rpartition(".")[0] if op.part in ("tp", "cp", "quantize") else op.name


def _stream(op: RankOp) -> str:
    if op.part in ("tp", "cp", "ep"):
        return op.part
    return "tp" if isinstance(op.model, Collective | EPComm) else COMPUTE


class Transfer(NamedTuple):
    """An overlapped collective: what blocks wait for by its ``key``, e.g. the gather of the third layer."""

    key: tuple[str, int]
    model: Collective
    time_us: float


class Placed(NamedTuple):
    """A block, or a transfer, in a pass. ``time_us`` is longer than its own where it shared the device."""

    what: Block | Transfer
    start_us: float
    time_us: float


class OverlappedTransfers(Record, frozen=True, kw_only=True):
    """Transfers on a stream of their own, one after the other, and when they are issued.

    ``first`` at ``first_us`` from the pass's start (negative: before it), ``with_block[i]`` when block i starts,
    ``last`` after the last block. Block i waits for the transfer ``needed[i]``. The stream is taken until ``busy_us``.
    ``waits``: the pass ends with its last transfer. ``part``: what exposed time is called.
    """

    part: str
    first: Sequence[Transfer] = ()
    first_us: float = 0.0
    with_block: Mapping[int, Sequence[Transfer]] = msgspec.field(default_factory=dict)
    last: Sequence[Transfer] = ()
    needed: Mapping[int, tuple[str, int]] = msgspec.field(default_factory=dict)
    busy_us: float = float("-inf")
    waits: bool = False


#: No transfers.
NOTHING = OverlappedTransfers(part="")


class Pass(Record, frozen=True, kw_only=True):
    """Times in microseconds from the pass's start; ``parts`` adds up to ``time_us``.

    ``host_us``: the least time from the host's start, ``launch_us`` what it spends. ``beside_us``: the end of the last
    transfer, 0 without one.
    """

    time_us: float
    parts: Mapping[str, float]
    host_us: float
    launch_us: float
    blocks: tuple[Placed, ...]
    transfers: tuple[Placed, ...] = ()
    beside_us: float = 0.0

    def later(self, host_us: float) -> Pass:
        """The device idle for ``host_us`` more, waiting for its host."""
        if not host_us:
            return self
        parts = defaultdict(float, self.parts)
        parts["host"] += host_us
        return replace(self, time_us=self.time_us + host_us, parts=parts)

    def kernels(self) -> Iterator[Kernel]:
        """Every kernel but the transfers', in the order of their launches."""
        for block, start_us, time_us in self.blocks:
            if not isinstance(block, Block):
                continue
            slower = time_us / block.time_us if block.time_us else 1.0
            for kernel in block.kernels:
                yield kernel._replace(start_us=start_us + slower * kernel.start_us, time_us=slower * kernel.time_us)


def passed(blocks: Sequence[Block], host_us: float, overlapped: OverlappedTransfers = NOTHING) -> Pass:
    """``blocks`` in order, launched every ``host_us``.

    Computing and a transfer slow each other: computing takes ``OVERLAP_COST`` longer while a transfer runs.
    """
    side = _Side(overlapped)
    placed: list[Placed] = []
    now = waited = slowed = 0.0
    for index, block in enumerate(blocks):
        ready = side.ready(index, now)
        waited, now = waited + ready - now, ready
        side.issue_with(index, now)
        time_us = side.shared(now, block.time_us)
        slowed += time_us - block.time_us
        placed.append(Placed(block, now, time_us))
        now += time_us
    end = side.finish(now)
    waited, now = waited + end - now, end
    parts: Parts = defaultdict(float)
    launched, lead = 0, float("-inf")
    for block, at in zip(blocks, placed, strict=True):
        for part, time_us in block.parts.items():
            parts[part] += time_us
        lead = max(lead, launched * host_us + block.lead_us - at.start_us)
        launched += len(block.kernels)
    if waited + slowed > 0:
        parts[overlapped.part] += waited + slowed
    return Pass(
        time_us=now,
        parts=parts,
        host_us=now + lead,
        launch_us=launched * host_us,
        blocks=tuple(placed),
        transfers=tuple(side.placed),
        beside_us=side.free if side.placed else 0.0,
    )


class _Side:
    """The stream of the transfers."""

    def __init__(self, overlapped: OverlappedTransfers) -> None:
        self.overlapped = overlapped
        self.placed: list[Placed] = []
        self.free = overlapped.busy_us
        self.ends: dict[tuple[str, int], float] = {}
        self._issue(overlapped.first, overlapped.first_us)

    def ready(self, index: int, now: float) -> float:
        """When block ``index`` can start."""
        needed = self.overlapped.needed.get(index)
        return now if needed is None else max(now, self.ends[needed])

    def issue_with(self, index: int, now: float) -> None:
        self._issue(self.overlapped.with_block.get(index, ()), now)

    def shared(self, now: float, time_us: float) -> float:
        """The block's time including slowdown by transfers."""
        taken = self.free - now
        if taken <= 0:
            return time_us
        slow = 1 + OVERLAP_COST
        return time_us * slow if time_us * slow <= taken else time_us + taken * (1 - 1 / slow)

    def finish(self, now: float) -> float:
        """When the pass is over."""
        self._issue(self.overlapped.last, now)
        return max(now, self.free) if self.overlapped.waits else now

    def _issue(self, transfers: Sequence[Transfer], at_us: float) -> None:
        for transfer in transfers:
            start = max(self.free, at_us)
            self.free = start + transfer.time_us
            self.ends[transfer.key] = self.free
            self.placed.append(Placed(transfer, start, transfer.time_us))


def fixed(
    blocks: Sequence[Block], host_us: float, overlapped: OverlappedTransfers, hidden: Mapping[str, float]
) -> Pass:
    """As ``passed``, but of every transfer the share ``hidden`` of its kind costs nothing, whatever overlaps it."""
    issued = [overlapped.first, *(overlapped.with_block.get(i, ()) for i in range(len(blocks))), overlapped.last]
    exposed = sum(t.time_us * (1 - hidden[t.key[0]]) for transfers in issued for t in transfers)
    alone = passed(blocks, host_us)
    shift = exposed / max(len(blocks), 1)
    placed = [Placed(p.what, p.start_us + shift * (i + 1), p.time_us) for i, p in enumerate(alone.blocks)]
    transfers, free = [], 0.0
    for at, each in enumerate(issued):
        due = placed[at].start_us if at < len(placed) else alone.time_us + exposed
        start = min(max(free, due - sum(transfer.time_us for transfer in each)), due)
        shortened = (due - start) / max(sum(transfer.time_us for transfer in each), due - start) if due > start else 0.0
        for transfer in each:
            transfers.append(Placed(transfer, start, shortened * transfer.time_us))
            start += shortened * transfer.time_us
        free = due if each else free
    parts = {**alone.parts, overlapped.part: exposed} if exposed else alone.parts
    return Pass(
        time_us=alone.time_us + exposed,
        parts=parts,
        host_us=alone.host_us + exposed,
        launch_us=alone.launch_us,
        blocks=tuple(placed),
        transfers=tuple(transfers),
        beside_us=free,
    )


def merged(forward: Pass, backward: Pass) -> tuple[Pass, Pass] | None:
    """A forward that overlaps another micro-batch's backward: where one exchanges tokens with other ranks, the other
    computes.

    None where neither exchanges anything. Each of the two takes the device as soon as it can, the backward first.
    Computing that overlaps an exchange takes ``OVERLAP_COST`` longer.
    """
    sources = (backward, forward)
    lanes = [_segments(one) for one in sources]
    if not any(stream == "ep" for lane in lanes for stream, _, _ in lane):
        return None
    placed = _two_lanes([[(stream, time_us) for stream, time_us, _ in lane] for lane in lanes])
    parts = [{part: time_us for part, time_us in one.parts.items() if part != "ep"} for one in sources]
    made = [_at_times(*each) for each in zip(sources, lanes, placed, strict=True)]
    exposed = max(one.time_us for one in made) - sum(sum(own.values()) for own in parts)
    if exposed >= 0:
        parts[0]["ep"] = exposed
    else:
        parts = _given_back(parts, -exposed)
    back, ahead = (replace(one, parts=own) for one, own in zip(made, parts, strict=True))
    return ahead, back


def _at_times(one: Pass, lane: Sequence[tuple[str, float, list[Kernel]]], times: Sequence[tuple[float, float]]) -> Pass:
    """``one`` with its segments, ``lane``, from when to when ``times`` says."""
    # What a pass waits for after its last kernel
    tail = one.time_us - sum(time_us for _, time_us, _ in lane)
    blocks = []
    for (_, time_us, kernels), (start, end) in zip(lane, times, strict=True):
        first = kernels[0].start_us
        moved = tuple(kernel._replace(start_us=kernel.start_us - first) for kernel in kernels)
        block = Block(time_us=time_us, parts={}, kernels=moved, lead_us=0.0)
        blocks.append(Placed(block, start, end - start))
    return replace(one, time_us=times[-1][1] + tail, blocks=tuple(blocks))


def _given_back(passes: Sequence[Mapping[str, float]], hidden_us: float) -> list[dict[str, float]]:
    """Parts of ``passes`` less what they waited for and another one's computing hides."""
    made = []
    for parts in passes:
        left = dict(parts)
        for part in ("dp", "fsdp"):
            less = min(left.get(part, 0.0), hidden_us)
            if less:
                left[part] -= less
                hidden_us -= less
        made.append(left)
    return made


def _segments(one: Pass) -> list[tuple[str, float, list[Kernel]]]:
    """What runs without a break on the device or between ranks: stream, time, kernels."""
    made: list[tuple[str, float, list[Kernel]]] = []
    for kernel in one.kernels():
        stream = "ep" if kernel.stream == "ep" else COMPUTE
        if made and made[-1][0] == stream:
            _, _, kernels = made[-1]
            kernels.append(kernel)
            made[-1] = (stream, kernel.start_us + kernel.time_us - kernels[0].start_us, kernels)
        else:
            made.append((stream, kernel.time_us, [kernel]))
    return made


def _two_lanes(lanes: Sequence[Sequence[tuple[str, float]]]) -> list[list[tuple[float, float]]]:
    """Start and end of every segment of lanes that share a device and a link; the first lane goes first."""
    at = [0] * len(lanes)
    left = [next((time_us for _, time_us in lane), 0.0) for lane in lanes]
    running: dict[str, int] = {}
    placed: list[list[tuple[float, float]]] = [[] for _ in lanes]
    starts = [0.0] * len(lanes)
    now = 0.0
    while any(position < len(lane) for position, lane in zip(at, lanes, strict=True)):
        for index, lane in enumerate(lanes):
            waits = at[index] < len(lane) and index not in running.values()
            if waits and running.setdefault(lane[at[index]][0], index) == index:
                starts[index] = now
        slow = 1 + OVERLAP_COST if len(running) > 1 else 1.0
        rates = dict.fromkeys(running, 1.0) | {COMPUTE: 1 / slow}
        step = min(left[index] / rates[stream] for stream, index in running.items())
        now += step
        for stream, index in list(running.items()):
            left[index] -= step * rates[stream]
            if left[index] <= 1e-9:
                placed[index].append((starts[index], now))
                at[index] += 1
                left[index] = next((time_us for _, time_us in lanes[index][at[index] :]), 0.0)
                del running[stream]
    return placed
