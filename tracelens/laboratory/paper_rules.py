"""The analytic model of arXiv 2410.00273, as published: the rule set ``paper``, defects included.

This is the project's one sanctioned copy of formulas and figures that it has better versions of elsewhere: it exists
to reproduce the published rows exactly. ``repairs`` mends, on demand, the three defects that the published code has:

* ``layernorm``: the 2D LayerNorm takes its local width from the sequence (l // m1), not the hidden size (e // m1);
* ``pipeline``: transfers between stages in different domains cost nothing as soon as two stages share a domain;
* ``all_reduce``: an all-reduce inside one domain, or all of it between domains, costs half of what a ring takes.

Volumes are GB (1e9 bytes), work TFLOP, rates TFLOP/s and GB/s, times s. ``//`` floors, as the published code does.
There is no causal mask, embedding, head, optimizer step or recompute in this model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.laboratory.paper_systems import Candidates, PaperSystem, enumerate_candidates, paper_shape, paper_system
from tracelens.predict.projection.projection_options import STRATEGIES, PaperAttention, Strategy
from tracelens.predict.projection.search import Constraints, Feasible
from tracelens.predict.projection.search.space import AlignedColumns, Shape, distinct
from tracelens.types.records import Record, pd

Floats = npt.NDArray[np.float64]
Repair = Literal["layernorm", "pipeline", "all_reduce"]
REPAIRS: tuple[Repair, ...] = ("layernorm", "pipeline", "all_reduce")
ELEMENT_GB = 2e-9  # 2 bytes
MASK_GB = 1e-9  # a dropout mask element is 1 byte
TFLOP = 1e-12
LAUNCH_S = 20e-6  # per op and pass
COMPUTE_EFFICIENCY = 0.8
OPTIMIZER_BYTES_PER_WEIGHT_BYTE = 6  # 12 bytes of state per 2-byte weight
#: What a layer's cost depends on.
LAYER_KEYS = ("m1", "m2", "micro_batch", "blocks", "near_m1", "near_m2")


class LayerCost(AlignedColumns, frozen=True, kw_only=True, eq=False):
    """One layer on one device, forward and backward; arrays over distinct (m1, m2, micro-batch, blocks, placement).

    ``weights_gb`` and ``stored_gb`` (activations kept for the backward pass); ``transfer_gb`` goes to the next stage.
    """

    forward_s: Floats
    backward_s: Floats
    compute_s: Floats
    exposed_memory_s: Floats
    communication_s: Floats
    tflop: Floats
    weights_gb: Floats
    stored_gb: Floats
    transfer_gb: Floats


class CollectiveVolume(NamedTuple):
    """A collective: ``axis`` is the group, ``m1`` or ``m2``."""

    kind: str
    axis: str
    volume_gb: Any


class _Pass(Record, frozen=False, kw_only=True):
    """Work of one pass of one op: TFLOP, GB through HBM, collectives; of a SUMMA product, those of each block."""

    tflop: Any
    hbm_gb: Any
    messages: tuple[CollectiveVolume, ...] = ()
    blocks: Any = None


class _Op(Record, frozen=False, kw_only=True):
    name: str
    forward: _Pass
    backward: _Pass
    is_matrix: bool
    weights_gb: Any = 0.0
    stored_gb: Any = 0.0


class PaperRules(Record, frozen=True, kw_only=True):
    """Prices candidates on a system. ``repairs`` names the defects to mend; none reproduces the published figures.
    ``attention``: ``unfused`` writes scores to memory, ``recomputed`` makes them again for the backward.
    """

    shape: Shape
    strategy: Strategy
    system: PaperSystem
    repairs: frozenset[Repair] = msgspec.field(default_factory=frozenset)
    attention: PaperAttention = "fused"

    @property
    def capacity_gb(self) -> float:
        return self.system.hbm_gb

    @property
    def tokens_per_sample(self) -> int:
        return self.shape.sequence

    def feasible(self, gpu_counts: Iterable[int], *, global_batch: int, wanted: Constraints) -> Feasible[Candidates]:
        space = enumerate_candidates(
            self.shape, self.strategy, gpu_counts, global_batch=global_batch, domain=self.system.domain
        )
        if wanted.fixed or wanted.forbidden:
            space = space.take(wanted.allows(self.degrees(space)))
        cost = layer_costs(self, space)
        needed = sum(memory_gb(self, space, cost, global_batch).values(), np.zeros(len(space)))
        if not wanted.is_one_configuration:
            fits = np.flatnonzero(needed <= self.system.hbm_gb * (1 - wanted.headroom))
            space, needed, cost = space.take(fits), needed[fits], cost.take(fits)
        return Feasible(candidates=space, step_s=step_times(self, space, cost, global_batch)["t"], memory_gb=needed)

    def table(self, candidates: Candidates, *, global_batch: int) -> dict[str, Any]:
        cost = layer_costs(self, candidates)
        memory = memory_gb(self, candidates, cost, global_batch)
        return {
            "gpu": self.system.name,
            "nvs": self.system.domain,
            **self.degrees(candidates),
            "nb": np.where(self.strategy == "2d", candidates.blocks, np.nan),
            "mem": sum(memory.values()),
            **step_times(self, candidates, cost, global_batch),
            **memory,
        }

    def explained(self, candidates: Candidates, *, global_batch: int) -> list[dict[str, Any]]:
        one = candidates.take(np.array([0]))
        keys = {name: getattr(one, name) for name in LAYER_KEYS}
        table = self.table(one, global_batch=global_batch)
        times = {name: float(table[name][0]) for name in ("t_pp_comm", "t_bubble", "t_dp_comm")}
        layers = self.shape.depth // int(one.pp[0])
        repeats = layers * (global_batch // int(one.dp[0]) // int(one.micro_batch[0]))
        rows = []
        for op in self._ops(keys):
            row: dict[str, Any] = {"op": op.name, "times": repeats}
            for side in ("forward", "backward"):
                work: _Pass = getattr(op, side)
                found, blocks = self._figures(op, work, keys), 1 if work.blocks is None else _first(work.blocks)
                sent = [message for message in found.messages if message[2] > 0]
                axis = sent[0][1] if sent else ""
                row |= {
                    f"{side}_tflop": found.tflop * repeats,
                    f"{side}_hbm_gb": found.hbm_gb * repeats,
                    f"{side}_comm": " + ".join(kind for kind, _, _ in sent),
                    f"{side}_group": f"{int(keys[axis][0])} ({int(keys[f'near_{axis}'][0])} per node)" if axis else "",
                    f"{side}_volume_gb": sum(gb for _, _, gb in sent) * repeats * blocks,
                    f"{side}_s": found.seconds * repeats,
                }
            kept = _first(op.stored_gb) * layers * min(int(one.pp[0]), repeats // layers)
            rows.append({**row, "weights_gb": _first(op.weights_gb) * layers, "activations_gb": kept})
        pipeline = times["t_pp_comm"] / 2
        return [
            *rows,
            {"op": "transfers between stages", "forward_s": pipeline, "backward_s": pipeline},
            {"op": "pipeline bubble", "forward_s": times["t_bubble"], "backward_s": 0.0},
            {"op": "gradients and weights between replicas", "forward_s": 0.0, "backward_s": times["t_dp_comm"]},
        ]

    def degrees(self, candidates: Candidates) -> dict[str, Any]:
        c = candidates
        return {
            "n_gpus": c.gpus, "dp": c.dp, "tp": c.m1 * c.m2, "tp1": c.m1, "tp2": c.m2, "pp": c.pp,
            "mbs": c.micro_batch, "nb": c.blocks, "nv_tp1": c.near_m1, "nv_tp2": c.near_m2, "nv_dp": c.near_dp,
            "nv_pp": c.near_pp,
        }  # fmt: skip

    def layer(self, keys: Mapping[str, Any]) -> LayerCost:
        """One layer for arrays ``m1 m2 micro_batch blocks near_m1 near_m2``."""
        ops = self._ops(keys)
        totals: dict[str, Any] = dict.fromkeys(LayerCost.__struct_fields__, 0.0)
        for op in ops:
            for side in ("forward", "backward"):
                one: _Pass = getattr(op, side)
                compute, exposed, communication = self._timed(op, one, keys)
                totals[f"{side}_s"] += compute + exposed + communication
                totals["compute_s"] += compute
                totals["exposed_memory_s"] += exposed
                totals["communication_s"] += communication
                totals["tflop"] += one.tflop
            totals["weights_gb"] += op.weights_gb
            totals["stored_gb"] += op.stored_gb
        totals["transfer_gb"] = next(op for op in ops if op.name == "ln1").stored_gb
        size = len(keys["m1"])
        return LayerCost(**{name: np.broadcast_to(np.asarray(v, float), (size,)) for name, v in totals.items()})

    def collective_s(self, volume_gb: Any, ranks: Any, near: Any, kind: str) -> Any:
        """Ring time of ``volume_gb`` over ``ranks``, ``near`` of them in each fast domain; 0 for one rank."""
        fast, slow = self.system.fast, self.system.slow
        ranks = np.asarray(ranks)
        nodes = ranks // near
        moved = volume_gb * (1.0 if kind in ("broadcast", "reduce") else (ranks - 1) / ranks)
        twice = 2.0 if kind == "all_reduce" else 1.0
        narrow = twice if "all_reduce" in self.repairs else 1.0
        all_slow = slow.latency_s * (ranks - 1) + narrow * moved / slow.effective_gb_s
        all_fast = fast.latency_s * (ranks - 1) + narrow * moved / fast.effective_gb_s
        mixed = twice * np.maximum(
            moved / (self.system.nic_factor * near * slow.effective_gb_s), moved / fast.effective_gb_s
        )
        mixed = mixed + slow.latency_s * (nodes - 1) + fast.latency_s * (ranks - nodes)
        time = np.where(np.asarray(near) == 1, all_slow, np.where(nodes == 1, all_fast, mixed))
        if self.system.nccl is not None:
            measured = self.system.nccl.seconds(volume_gb, ranks, near, kind)
            time = np.where(np.isnan(measured), time, measured)
        return np.where((ranks == 1) | (np.asarray(volume_gb) == 0), 0.0, time)

    def _timed(self, op: _Op, one: _Pass, keys: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Seconds of compute, of memory traffic beyond it, and of communication."""
        rate = self.system.matrix_tflops_s if op.is_matrix else self.system.vector_tflops_s
        compute = LAUNCH_S + one.tflop / (COMPUTE_EFFICIENCY * rate)
        exposed = np.maximum(one.hbm_gb / self.system.hbm_gb_s - compute, 0.0)
        communication: Any = 0.0
        for kind, axis, volume_gb in one.messages:
            communication = communication + self.collective_s(volume_gb, keys[axis], keys[f"near_{axis}"], kind)
        if one.blocks is not None:
            # SUMMA: one set of broadcasts up front, the rest hidden behind the products as far as they last.
            communication += np.maximum(one.blocks * communication - (compute + exposed), 0.0)
        return compute, exposed, communication

    def _figures(self, op: _Op, one: _Pass, keys: Mapping[str, Any]) -> PassFigures:
        """Of the first of ``keys``."""
        compute_s, memory_s, communication_s = (_first(value) for value in self._timed(op, one, keys))
        sent = tuple((m.kind, m.axis, _first(m.volume_gb)) for m in one.messages if keys[m.axis][0] > 1)
        return PassFigures(_first(one.tflop), _first(one.hbm_gb), sent, compute_s, memory_s, communication_s)

    def _ops(self, keys: Mapping[str, Any]) -> list[_Op]:
        shape, is_2d = self.shape, self.strategy == "2d"
        m1, m2, b = (np.asarray(keys[k]) for k in ("m1", "m2", "micro_batch"))
        seq, e = shape.sequence, shape.hidden
        f, rows_each = shape.width, seq // m2
        x = self._tokens(keys)
        product = self._summa if is_2d else self._linear
        wide = x * (f // m1)
        narrow = x * (e // m1) if is_2d else b * (seq // (m1 * m2)) * e
        norm_rows: Any
        norm_width: Any
        if is_2d:
            norm_rows, norm_width = x, (e if "layernorm" in self.repairs else seq) // m1
            gather = CollectiveVolume("all_reduce", "m1", 2 * x * ELEMENT_GB)
            scatter = CollectiveVolume("all_reduce", "m1", ((2 * e) // m1 + (2 * b * seq) // m2) * ELEMENT_GB)
        else:
            norm_rows, norm_width = b * (rows_each // m1), e
            gather = CollectiveVolume("all_gather", "m1", x * e * ELEMENT_GB)
            scatter = CollectiveVolume("reduce_scatter", "m1", x * e * ELEMENT_GB)
        fc2_bias = {"1d": (x, e), "2d-seqp": (b * (rows_each // m1), e), "2d": (x, e // m1)}[self.strategy]
        vproj_bias = (x, e) if self.strategy == "1d" else (x, e // m1)
        attention = {"fused": self._fused, "summa": self._summa_attention}.get(self.attention, self._unfused)
        return [
            product("fc1", e, f, "columns", keys),
            _bias("fc1_bias", x, f // m1),
            _Op(
                name="gelu", is_matrix=False, stored_gb=wide * ELEMENT_GB,
                forward=_vector(8 * wide, 2 * wide), backward=_vector(13 * wide, 3 * wide),
            ),
            _dropout("dropout1", wide),
            product("fc2", f, e, "rows", keys),
            _bias("fc2_bias", *fc2_bias),
            _dropout("dropout2", narrow),
            _dropout("dropout_v", narrow),
            _layernorm("ln1", norm_rows, norm_width, gather, scatter),
            _layernorm("ln2", norm_rows, norm_width, gather, scatter),
            product("qkv", e, 3 * e, "columns", keys),
            *attention(keys),
            product("vproj", e, e, "rows", keys),
            _bias("vproj_bias", *vproj_bias),
        ]  # fmt: skip

    def _tokens(self, keys: Mapping[str, Any]) -> Any:
        """Rows of a micro-batch's activations on a rank before they are divided further."""
        return np.asarray(keys["micro_batch"]) * (self.shape.sequence // np.asarray(keys["m2"]))

    def _linear(self, name: str, width_in: int, width_out: int, split: str, keys: Mapping[str, Any]) -> _Op:
        """``[x, width_in] @ [width_in, width_out]`` with rows or columns of the weight split over m1."""
        x, m1 = self._tokens(keys), keys["m1"]
        e, f = (width_in, width_out // m1) if split == "columns" else (width_in // m1, width_out)
        is_rows = split == "rows"
        summed = CollectiveVolume("reduce_scatter", "m1", x * (width_out if is_rows else width_in) * ELEMENT_GB)
        return _Op(
            name=name,
            is_matrix=True,
            weights_gb=e * f * ELEMENT_GB,
            stored_gb=x * e * ELEMENT_GB,
            forward=_Pass(
                tflop=x * f * (2 * e - 1) * TFLOP,
                hbm_gb=(x * e + x * f + e * f) * ELEMENT_GB,
                messages=(summed,) if is_rows else (),
            ),
            backward=_Pass(
                tflop=(x * e * (2 * f - 1) + e * f * (2 * x - 1)) * TFLOP,
                hbm_gb=(2 * e * f + 2 * x * e + 2 * x * f) * ELEMENT_GB,
                messages=() if is_rows else (summed,),
            ),
        )

    def _summa(self, name: str, width_in: int, width_out: int, _: str, keys: Mapping[str, Any]) -> _Op:
        """The same product on the m1 x m2 grid, in ``blocks`` broadcasts of both operands (SUMMA, 1997)."""
        x, m1, m2, blocks = self._tokens(keys), keys["m1"], keys["m2"], np.asarray(keys["blocks"])
        f = width_out // m1
        sets = (
            CollectiveVolume("broadcast", "m1", x * width_in * ELEMENT_GB / blocks),
            CollectiveVolume("broadcast", "m2", width_in * f * ELEMENT_GB / blocks),
        )
        reductions = tuple(CollectiveVolume("reduce", axis, volume) for _, axis, volume in sets)
        hbm_gb = (x * width_in + width_in * f + x * f * blocks) * ELEMENT_GB
        backward_tflop = (x * width_in * (2 * f - 1) + width_in * f * (2 * x - 1)) * TFLOP
        return _Op(
            name=name,
            is_matrix=True,
            weights_gb=(width_in // m2) * f * ELEMENT_GB,
            stored_gb=x * (width_in // m1) * ELEMENT_GB,
            forward=_Pass(tflop=2 * x * f * width_in * TFLOP, hbm_gb=hbm_gb, blocks=blocks, messages=sets),
            backward=_Pass(tflop=backward_tflop, hbm_gb=2 * hbm_gb, blocks=blocks, messages=sets + reductions),
        )

    def _fused(self, keys: Mapping[str, Any]) -> list[_Op]:
        """Fused attention; the softmax' flops are scaled up to the matrix engine, on which all of it is timed."""
        m1, m2, b = keys["m1"], keys["m2"], keys["micro_batch"]
        seq, q = self.shape.sequence, self.shape.hidden // self.shape.heads
        heads, rows = self.shape.heads // m1, seq // m2
        slowdown = self.system.matrix_tflops_s / self.system.vector_tflops_s
        x, y = b * heads * rows, b * heads * seq
        softmax = slowdown * (2 * x * seq + x * (seq - 1))
        softmax_backward = slowdown * (3 * x * seq + x * (seq - 1))
        dropout = slowdown * x * seq
        scores, values, keys_values = x * seq * (2 * q - 1), x * q * (2 * seq - 1), y * q * (2 * rows - 1)
        stored = 4 * x * q + 2 * x
        volume_gb = np.where(m2 > 1, 2 * b * heads * seq * q * ELEMENT_GB, 0.0)
        gather, scatter = (CollectiveVolume(kind, "m2", volume_gb) for kind in ("all_gather", "reduce_scatter"))
        forward = _Pass(
            tflop=(scores + softmax + dropout + values) * TFLOP,
            hbm_gb=(2 * x * q + 2 * y * q + x) * ELEMENT_GB,
            messages=(gather,),
        )
        backward = _Pass(
            tflop=(2 * scores + values + 2 * keys_values + softmax + softmax_backward + 2 * dropout) * TFLOP,
            hbm_gb=(2 * y * q + 2 * x * q + stored) * ELEMENT_GB,
            messages=(gather, scatter),
        )
        kept = stored * ELEMENT_GB
        return [_Op(name="attention", is_matrix=True, stored_gb=kept, forward=forward, backward=backward)]

    def _unfused(self, keys: Mapping[str, Any]) -> list[_Op]:
        """The same work as products, softmax and dropout of their own, whose scores go through memory.

        The scores' product gathers the keys over m2, the values' product the values.
        """
        m2, b = keys["m2"], keys["micro_batch"]
        seq, q = self.shape.sequence, self.shape.hidden // self.shape.heads
        heads, rows = self.shape.heads // keys["m1"], seq // m2
        x, y = b * heads * rows, b * heads * seq
        square, again = x * seq, float(self.attention == "recomputed")
        kept = 1.0 - again
        scores, values, keys_values = x * seq * (2 * q - 1), x * q * (2 * seq - 1), y * q * (2 * rows - 1)
        gb = (x * q + y * q + square) * ELEMENT_GB
        gradients_gb = (3 * x * q + y * q + 2 * square) * ELEMENT_GB
        volume_gb = np.where(m2 > 1, y * q * ELEMENT_GB, 0.0)
        gather, scatter = (CollectiveVolume(kind, "m2", volume_gb) for kind in ("all_gather", "reduce_scatter"))
        drop = _dropout("dropout_sa", square)
        drop.stored_gb *= kept
        twice = 1 + again
        drop.backward = _Pass(tflop=twice * drop.backward.tflop, hbm_gb=twice * drop.backward.hbm_gb)
        return [
            _Op(
                name="scores", is_matrix=True, stored_gb=2 * x * q * ELEMENT_GB,
                forward=_Pass(tflop=scores * TFLOP, hbm_gb=gb, messages=(gather,)),
                backward=_Pass(
                    tflop=(values + keys_values + again * scores) * TFLOP, hbm_gb=gradients_gb + again * gb,
                    messages=(gather, scatter),
                ),
            ),
            _softmax(square, x * (seq - 1), again),
            drop,
            _Op(
                name="values", is_matrix=True, stored_gb=(x * q + kept * square) * ELEMENT_GB,
                forward=_Pass(tflop=values * TFLOP, hbm_gb=gb, messages=(gather,)),
                backward=_Pass(
                    tflop=(scores + keys_values) * TFLOP, hbm_gb=gradients_gb, messages=(gather, scatter)
                ),
            ),
        ]  # fmt: skip

    def _summa_attention(self, keys: Mapping[str, Any]) -> list[_Op]:
        """Attention on the m1 x m2 grid (``sa_2d``): scores ``[l/m2, l/m1]`` of all heads, whose size m1 divides.

        Products are made in ``blocks``, as those of weights; softmax' sums are reduced over m1.
        """
        m1, m2, blocks = keys["m1"], keys["m2"], np.asarray(keys["blocks"])
        seq, size = self.shape.sequence, self.shape.hidden // self.shape.heads // m1
        each = keys["micro_batch"] * self.shape.heads
        rows, columns = seq // m2, seq // m1
        wide, tall, own = each * rows * seq, each * seq * size, each * rows * size
        square, sums = each * rows * columns, CollectiveVolume("all_reduce", "m1", each * rows * ELEMENT_GB)
        inner, outer = wide * (2 * size - 1), tall * (2 * rows - 1)
        hbm_gb = (wide + tall + own * blocks) * ELEMENT_GB
        of_scores, of_values = (volume * ELEMENT_GB / blocks for volume in (wide, tall))

        def sent(*kinds: str) -> tuple[CollectiveVolume, ...]:
            """Scores travel over m1, keys and values over m2: kinds in turn."""
            axes = (("m1", of_scores), ("m2", of_values)) * 2
            return tuple(CollectiveVolume(kind, *axis) for kind, axis in zip(kinds, axes, strict=False))

        softmax = _softmax(square, each * rows * (columns - 1), 0.0)
        softmax.forward.messages = softmax.backward.messages = (sums,)
        return [
            _Op(
                name="scores", is_matrix=True, stored_gb=2 * own * ELEMENT_GB,
                forward=_Pass(tflop=inner * TFLOP, hbm_gb=hbm_gb, blocks=blocks, messages=sent("reduce", "broadcast")),
                backward=_Pass(
                    tflop=(own * (2 * seq - 1) + outer) * TFLOP, hbm_gb=2 * hbm_gb, blocks=blocks,
                    messages=sent("broadcast", "broadcast", "broadcast", "reduce"),
                ),
            ),
            softmax,
            _dropout("dropout_sa", square),
            _Op(
                name="values", is_matrix=True, stored_gb=(square + own) * ELEMENT_GB,
                forward=_Pass(
                    tflop=2 * own * seq * TFLOP, hbm_gb=hbm_gb, blocks=blocks, messages=sent("broadcast", "broadcast")
                ),
                backward=_Pass(
                    tflop=(inner + outer) * TFLOP, hbm_gb=2 * hbm_gb, blocks=blocks,
                    messages=sent("reduce", "broadcast", "broadcast", "reduce"),
                ),
            ),
        ]  # fmt: skip


def _first(value: Any) -> float:
    return float(np.asarray(value, float).reshape(-1)[0])


def _vector(flops: Any, elements: Any) -> _Pass:
    return _Pass(tflop=flops * TFLOP, hbm_gb=elements * ELEMENT_GB)


def _softmax(elements: Any, additions: Any, again: float) -> _Op:
    """``again``: 1 where it is computed once more for the backward, and its result not kept."""
    flops = 2 * elements + additions
    return _Op(
        name="softmax", is_matrix=False, stored_gb=(1 - again) * elements * ELEMENT_GB,
        forward=_vector(flops, 2 * elements),
        backward=_vector(3 * elements + additions + again * flops, (3 + 2 * again) * elements),
    )  # fmt: skip


def _bias(name: str, rows: Any, width: Any) -> _Op:
    one = _vector(rows * width, rows * width + width)
    return _Op(name=name, is_matrix=False, forward=one, backward=one, weights_gb=width * ELEMENT_GB)


def _dropout(name: str, elements: Any) -> _Op:
    one = _Pass(tflop=elements * TFLOP, hbm_gb=2 * elements * ELEMENT_GB + elements * MASK_GB)
    return _Op(name=name, is_matrix=False, forward=one, backward=one, stored_gb=elements * MASK_GB)


def _layernorm(name: str, rows: Any, width: Any, gather: CollectiveVolume, scatter: CollectiveVolume) -> _Op:
    x = rows * width
    forward = _vector(9 * x, 2 * x + 2 * rows + 2 * width)
    backward = _vector(8 * x + 4 * rows * (width - 1), 5 * x + 2 * width)
    forward.messages, backward.messages = (gather,), (scatter,)
    return _Op(
        name=name, is_matrix=False, forward=forward, backward=backward,
        weights_gb=2 * width * ELEMENT_GB, stored_gb=x * ELEMENT_GB,
    )  # fmt: skip


class PassFigures(NamedTuple):
    """One pass of an operation: TFLOP, GB through memory, collectives, and the seconds of each.

    ``memory_s``: beyond ``compute_s``; ``messages``: (collective, group, GB).
    """

    tflop: float
    hbm_gb: float
    messages: tuple[tuple[str, str, float], ...]
    compute_s: float
    memory_s: float
    communication_s: float

    @property
    def seconds(self) -> float:
        return self.compute_s + self.memory_s + self.communication_s


class Operation(NamedTuple):
    """An operation of a layer on one device."""

    name: str
    forward: PassFigures
    backward: PassFigures
    weights_gb: float
    stored_gb: float

    @property
    def seconds(self) -> float:
        return self.forward.seconds + self.backward.seconds


class Layer(Record, frozen=True, kw_only=True):
    """One layer of a model on one device by the paper's rules, for looking at: ``layer["fc1"].forward.seconds``.

    ``tp1`` and ``tp2``: the grid; ``near_tp1``, ``near_tp2``: members of each in one fast domain, None: as many as fit.
    ``but(tp1=8)`` is the same with other figures, those of the rules too (``shape``, ``system``, ``attention``).
    """

    rules: PaperRules
    tp1: int = 1
    tp2: int = 1
    micro_batch: int = 1
    blocks: int = 1
    near_tp1: int | None = None
    near_tp2: int | None = None

    @property
    def operations(self) -> tuple[Operation, ...]:
        keys, rules = self._keys(), self.rules
        return tuple(
            Operation(
                op.name, rules._figures(op, op.forward, keys), rules._figures(op, op.backward, keys),
                _first(op.weights_gb), _first(op.stored_gb),
            )
            for op in rules._ops(keys)
        )  # fmt: skip

    def __getitem__(self, name: str) -> Operation:
        """UsageError for a name that the layer does not have."""
        found = {op.name: op for op in self.operations}
        if name not in found:
            raise UsageError.unknown("operation", name, found)
        return found[name]

    @property
    def forward_s(self) -> float:
        return sum(op.forward.seconds for op in self.operations)

    @property
    def backward_s(self) -> float:
        return sum(op.backward.seconds for op in self.operations)

    @property
    def stored_gb(self) -> float:
        """Activations that are kept for the backward pass."""
        return sum(op.stored_gb for op in self.operations)

    @property
    def weights_gb(self) -> float:
        return sum(op.weights_gb for op in self.operations)

    def but(self, **changes: Any) -> Layer:
        """With other figures, of the layer or of its rules; ``shape`` and ``system`` take tables of theirs."""
        own = {name: changes.pop(name) for name in tuple(changes) if name in self.__struct_fields__ and name != "rules"}
        for name in ("shape", "system"):
            if isinstance(changes.get(name), Mapping):
                changes[name] = replace(getattr(self.rules, name), **changes[name])
        return replace(self, rules=replace(self.rules, **changes), **own)

    def frame(self) -> Any:
        """A DataFrame, an operation per row."""
        names = ("tflop", "hbm_gb", "compute_s", "memory_s", "communication_s", "seconds")
        rows = [
            {"op": op.name, "weights_gb": op.weights_gb, "stored_gb": op.stored_gb}
            | {f"forward_{name}": getattr(op.forward, name) for name in names}
            | {f"backward_{name}": getattr(op.backward, name) for name in names}
            for op in self.operations
        ]
        return pd.DataFrame(rows).set_index("op")

    def __repr__(self) -> str:
        return (
            f"<Layer {self.rules.strategy}, {self.rules.attention} attention, grid {self.tp1} x {self.tp2}, "
            f"micro-batch {self.micro_batch}: forward {1e3 * self.forward_s:.4g} ms, "
            f"backward {1e3 * self.backward_s:.4g} ms, {self.stored_gb:.4g} GB kept>"
        )

    def _keys(self) -> dict[str, Any]:
        domain = self.rules.system.domain
        near1 = math.gcd(self.tp1, domain) if self.near_tp1 is None else self.near_tp1
        near2 = math.gcd(self.tp2, max(domain // near1, 1)) if self.near_tp2 is None else self.near_tp2
        values = (self.tp1, self.tp2, self.micro_batch, self.blocks, near1, near2)
        if min(values) < 1 or self.tp1 % near1 or self.tp2 % near2:
            raise UsageError("each degree must be at least 1, and a multiple of its members in a domain")
        return {name: np.array([value]) for name, value in zip(LAYER_KEYS, values, strict=True)}


def layer_costs(rules: PaperRules, candidates: Candidates) -> LayerCost:
    """The layer of every candidate, evaluated once per distinct key."""
    columns = [getattr(candidates, name) for name in LAYER_KEYS]
    first, inverse = distinct(columns)
    return rules.layer({name: each[first] for name, each in zip(LAYER_KEYS, columns, strict=True)}).take(inverse)


def memory_gb(rules: PaperRules, candidates: Candidates, cost: LayerCost, global_batch: int) -> dict[str, Floats]:
    """GB per device: weights, gradients, optimizer state, activations."""
    c = candidates
    layers = rules.shape.depth // c.pp
    micro_batches = global_batch // c.dp // c.micro_batch
    weights = cost.weights_gb * layers
    shared = c.dp * (c.m2 if rules.strategy == "2d-seqp" else 1)
    return {
        "wts_mem": weights,
        "wts_grad_mem": weights,
        "wts_optimizer_states_mem": OPTIMIZER_BYTES_PER_WEIGHT_BYTE * weights / shared,
        "acts_mem": cost.stored_gb * layers * np.minimum(c.pp, micro_batches),
    }


def step_times(rules: PaperRules, candidates: Candidates, cost: LayerCost, global_batch: int) -> dict[str, Floats]:
    """Seconds per step, ``t``, and what it is made of."""
    c = candidates
    layers = rules.shape.depth // c.pp
    micro_batches = global_batch // c.dp // c.micro_batch
    repeats = micro_batches * layers
    fast, slow = rules.system.fast, rules.system.slow
    slow_hop = slow.latency_s + cost.transfer_gb / slow.effective_gb_s
    fast_hop = fast.latency_s + cost.transfer_gb / fast.effective_gb_s
    hops = np.maximum(c.pp - 1, 1)
    slow_hops = np.trunc(c.pp / c.near_pp - 1)
    charged = slow_hop if "pipeline" in rules.repairs else 0.0
    mixed = ((c.pp - 1 - slow_hops) * fast_hop + slow_hops * charged) / hops
    pipeline = 2 * micro_batches * np.where(c.pp == 1, 0.0, np.where(c.near_pp == 1, slow_hop, mixed))
    busy = (cost.forward_s + cost.backward_s) * repeats + pipeline
    bubble = (c.pp - 1) * busy / micro_batches
    across, near = c.dp, c.near_dp
    if rules.strategy == "2d-seqp":
        across, near = c.dp * c.m2, c.near_dp * c.near_m2
    gather = rules.collective_s(cost.weights_gb, across, near, "all_gather")
    hidden = np.maximum(gather - cost.forward_s, 0) + np.maximum(gather - cost.backward_s, 0)
    data_parallel = 2 * gather + (layers - 1) * hidden
    return {
        "t": busy + bubble + data_parallel,
        "t_comp": cost.compute_s * repeats,
        "t_mem": cost.exposed_memory_s * repeats,
        "t_tp_comm": cost.communication_s * repeats,
        "t_dp_comm": data_parallel,
        "t_pp_comm": pipeline,
        "t_bubble": bubble,
        "flops_per_gpu": cost.tflop * repeats,
    }


def layer(
    model: str,
    cluster: str,
    *,
    strategy: Strategy = "1d",
    attention: PaperAttention = "fused",
    sequence: int | None = None,
    **degrees: int,
) -> Layer:
    """One layer of a model on one device by the paper's rules, as objects (``tl.layer``).

    ``degrees``: ``tp1``, ``tp2``, ``micro_batch``, ``blocks``, ``near_tp1``, ``near_tp2`` of ``Layer``; ``tp`` is
    ``tp1``. UsageError for others.
    """
    given = {"tp1" if name == "tp" else name: value for name, value in degrees.items()}
    known = [each.name for each in fields(Layer) if each.name != "rules"]
    for name in given:
        if name not in known:
            raise UsageError.unknown("degree", name, known)
    if strategy not in STRATEGIES:
        raise UsageError.unknown("strategy", strategy, STRATEGIES)
    rules = PaperRules(
        shape=paper_shape(model, sequence), strategy=strategy, system=paper_system(cluster), attention=attention
    )
    return Layer(rules=rules, **given)
