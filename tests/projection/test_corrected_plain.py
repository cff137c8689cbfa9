"""The corrected rules beside the obvious way: one configuration at a time, op by op, in plain Python numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.conftest import part
from tracelens.backends.base import System
from tracelens.backends.chain import chain
from tracelens.perf_models import GEMM, GroupedGEMM, WorkColumns
from tracelens.predict.network.algorithms import collective_us
from tracelens.predict.network.topology import Group
from tracelens.predict.projection.overheads import slowdown
from tracelens.predict.projection.pipeline import layer_counts
from tracelens.predict.projection.projection_options import Strategy
from tracelens.predict.projection.search.space import Space
from tracelens.predict.projection.search.whole_step import CorrectedRules
from tracelens.predict.workload import memory, rank_ops
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig

SLOW = 1.3
HOST_US = 5.0
ENDS = ("embedding", "head")


class Plain:
    """A model on a cluster. Prices are kept, because the same operations come back in many configurations."""

    def __init__(self, model: ModelConfig, system: System, sequence: int) -> None:
        self.model, self.system, self.sequence = model, system, sequence
        self.backend = chain("tile,collectives")
        self.prices: dict[Any, float] = {}
        self.built: dict[Any, Any] = {}

    def price(self, op: Any) -> float:
        if op not in self.prices:
            self.learn([op])
        return self.prices[op]

    def learn(self, ops: list[Any]) -> None:
        new = [op for op in dict.fromkeys(ops) if op not in self.prices]
        if not new:
            return
        found = self.backend.estimate_many(WorkColumns.of(new), self.system)
        for op, time_us, name in zip(new, found.time_us.tolist(), found.backend, strict=True):
            held = name == "tile" and isinstance(op, GEMM | GroupedGEMM)
            self.prices[op] = time_us * (slowdown("bf16", self.system.device) if held else 1.0)

    def message(self, word: str, nbytes: float, group: Group) -> float:
        if group.ranks == 1 or nbytes == 0:
            return 0.0
        key = (word, nbytes, group)
        if key not in self.prices:
            self.prices[key] = float(collective_us(word, nbytes, group, self.system.topology)[0][0])
        return self.prices[key]

    def layers(self, p: ParallelConfig) -> dict[str, Any]:
        # What a layer does depends neither on the schedule nor on how states are divided.
        key = (p.tp, p.cp, p.dp, p.ep, p.micro_batch, p.summa_blocks, p.pp > 1, p.placement)
        if key not in self.built:
            letters = {x: rank_ops.block(self.model, p, x, self.sequence) for x in set(self.model.blocks)}
            built = {layer: [letters[x] for x in layer] for layer in set(self.model.layers)}
            built["embedding"] = [rank_ops.embedding(self.model, p, self.sequence)]
            built["head"] = [rank_ops.head(self.model, p, self.sequence)]
            self.learn([op.model for blocks in built.values() for b in blocks for op in b.ops])
            self.built[key] = built
        return self.built[key]

    def chunks(self, p: ParallelConfig) -> list[list[list[str]]]:
        """[rank][chunk], names of layers."""
        parts, at = [], 0
        for count in layer_counts(len(self.model.layers), p.pp * p.vpp):
            parts.append(list(self.model.layers[at : at + count]))
            at += count
        parts[0].insert(0, "embedding")
        parts[-1].append("head")
        return [parts[rank :: p.pp] for rank in range(p.pp)]

    def step(self, p: ParallelConfig) -> tuple[float, float]:
        """Seconds and GB."""
        built, chunks = self.layers(p), self.chunks(p)
        forward, backward, gather, scatter = {}, {}, {}, {}
        for name, blocks in built.items():
            times = {"forward": 0.0, "backward": 0.0}
            for side in times:
                ops = [op for b in blocks for op in b.ops if (op.phase == "forward") == (side == "forward")]
                moved = sum(op.count * self.price(op.model) for op in ops if op.part == "tp" or is_sum(op))
                rest = sum(self.price(op.model) for op in ops if op.part != "tp" and not is_sum(op))
                if p.summa_blocks is not None:
                    first = moved / p.summa_blocks
                    products = sum(self.price(op.model) for op in ops if op.part == "gemm")
                    moved = first + max(0.0, moved - first - products)
                times[side] = moved + rest
            if p.recompute == "full" and name not in ENDS:
                times["backward"] += times["forward"]
            forward[name], backward[name] = times["forward"], times["backward"]
            dense, expert = sum(b.dense for b in blocks), sum(b.expert for b in blocks)
            shared = p.expert_dp_group
            width = 2 if p.zero == 3 else 4
            gather[name] = self.message("all_gather", 2.0 * dense, p.dp_group) + self.message(
                "all_gather", 2.0 * expert, shared
            )
            scatter[name] = self.message("reduce_scatter", width * float(dense), p.dp_group)
            scatter[name] += self.message("reduce_scatter", width * float(expert), shared)
        passes = [[self.passes(p, chunk, forward, backward, gather, scatter) for chunk in mine] for mine in chunks]
        ran = self.pipeline(p, passes)
        ends = self.ends(p, chunks, passes, (forward, backward, gather, scatter)) if p.zero < 3 else 0.0
        optimizer = max(self.optimizer(p, mine) for mine in chunks)
        return (ran + ends + optimizer) / 1e6, max(self.memory(p, rank, mine) for rank, mine in enumerate(chunks)) / 1e9

    def passes(
        self, p: ParallelConfig, chunk: list[str], forward: Any, backward: Any, gather: Any, scatter: Any
    ) -> tuple[float, float]:
        """A micro-batch's forward and backward through a chunk."""
        ahead = sum(forward[n] for n in chunk) + self.fsdp(p, chunk, forward, gather, {})
        busy = sum(backward[n] for n in chunk)
        back = busy + self.fsdp(p, chunk[::-1], backward, gather, scatter)
        if p.zero == 2:
            back = max(self.reducing(chunk, backward, scatter, scatter[chunk[0]]))
        host = [HOST_US * self.launched(p, chunk, side) for side in ("forward", "backward")]
        return (ahead**3 + host[0] ** 3) ** (1 / 3), (back**3 + host[1] ** 3) ** (1 / 3)

    def reducing(self, chunk: list[str], backward: Any, scatter: Any, free: float) -> tuple[float, float]:
        """A backward's end, and when the gradients of all its layers but the last are reduced."""
        now = 0.0
        for i, name in enumerate(chunk[::-1]):
            free = max(free, now) + scatter[chunk[-i]] if i else free
            now += stretched(backward[name], free - now)
        return now, free

    def waiting(self, chunk: list[str], forward: Any, gather: Any, first: float) -> float:
        """A forward's end whose layers' weights are gathered from ``first`` on."""
        now, came, last = 0.0, first, first + sum(gather[n] for n in chunk)
        for name in chunk:
            came += gather[name]
            start = max(now, came)
            now = start + stretched(forward[name], last - start)
        return now

    def ends(self, p: ParallelConfig, chunks: Any, passes: Any, layers: Any) -> float:
        """What the first micro-batch's forwards and the last one's backwards take longer, on their way through."""
        forward, backward, gather, scatter = layers
        hop, others, last = self.hop(p), min(p.pp, p.micro_batches) - 1, p.pp - 1
        found = []
        for shared in (False, True):
            ready, came, gathered = [0.0] * p.pp, 0.0, [0.0] * p.pp
            for chunk in range(p.vpp):
                for rank in range(p.pp):
                    names, start = chunks[rank][chunk], max(came, ready[rank])
                    took = self.waiting(names, forward, gather, gathered[rank] - start)
                    hosted = (took**3 + (HOST_US * self.launched(p, names, "forward")) ** 3) ** (1 / 3)
                    end = start + (hosted if shared else passes[rank][chunk][0])
                    gathered[rank] += sum(gather[n] for n in names)
                    ready[rank], came = end + others * passes[rank][chunk][0], end + hop
            first = end
            ready = [-passes[last][-1][0] + (last - rank) * hop for rank in range(p.pp)]
            ready = [at + sum(passes[r][-1][1] for r in range(rank, last)) for rank, at in enumerate(ready)]
            came, reduced = 0.0, [0.0] * p.pp
            for chunk in reversed(range(p.vpp)):
                for rank in reversed(range(p.pp)):
                    names, start = chunks[rank][chunk], max(came, ready[rank])
                    took, until = self.reducing(names, backward, scatter, reduced[rank] - start)
                    hosted = (took**3 + (HOST_US * self.launched(p, names, "backward")) ** 3) ** (1 / 3)
                    closes = shared and (p.zero < 2 or chunk == 0)
                    end = start + (hosted if closes else passes[rank][chunk][1])
                    reduced[rank] = start + max(took, until) + scatter[names[0]] if closes else 0.0
                    ready[rank] = end + others * passes[rank][max(chunk - 1, 0)][1]
                    came = end + hop
            found.append(first + max(end, *reduced))
        return found[1] - found[0]

    def launched(self, p: ParallelConfig, chunk: list[str], side: str) -> int:
        count = 0
        for name in chunk:
            ops = [op for b in self.layers(p)[name] for op in b.ops]
            ahead = sum(op.phase == "forward" for op in ops)
            count += ahead if side == "forward" else len(ops) - ahead + ahead * (p.recompute == "full")
        return count

    def fsdp(self, p: ParallelConfig, chunk: list[str], busy: Any, gather: Any, scatter: Any) -> float:
        """A layer's gather beside the layer before it, its scatter beside the one after it, in running order."""
        if p.zero != 3:
            return 0.0
        total = gather[chunk[0]] + (scatter[chunk[-1]] if scatter else 0.0)
        for i, name in enumerate(chunk):
            coming = gather[chunk[i + 1]] if i + 1 < len(chunk) else 0.0
            gone = scatter[chunk[i - 1]] if i and scatter else 0.0
            total += beside(coming + gone, busy[name])
        return total

    def hop(self, p: ParallelConfig) -> float:
        hop = 0.0
        if p.pp > 1:
            nbytes = 2.0 * p.micro_batch * self.sequence * self.model.hidden / (p.tp * p.cp)
            node = self.system.topology.ranks_per_node
            far = p.pp_group.domains(node) - 1
            hop = (p.pp - 1 - far) * self.message("send", nbytes, Group(ranks=2, stride=p.pp_group.stride))
            hop = (hop + far * self.message("send", nbytes, Group(ranks=2, stride=node))) / (p.pp - 1)
        return hop

    def pipeline(self, p: ParallelConfig, passes: list[list[tuple[float, float]]]) -> float:
        hop = self.hop(p)
        m, each = p.micro_batches, [sum(f + b for f, b in mine) for mine in passes]
        longest, once = max(each), sum(each)
        if p.vpp > 1:
            slowest = sum(max(mine[c][side] for mine in passes) for c in range(p.vpp) for side in (0, 1))
            filled = p.pp * (slowest - longest) + (once - longest) / p.vpp
            return m * longest + filled + 2 * (p.vpp * p.pp - 1) * hop
        paced = waits = 0.0
        for rank, ((f, b),) in enumerate(passes):
            after, under_way = sum(each[rank + 1 :]), p.pp - rank
            ahead = min(under_way, m) - 1
            wait = max(0.0, after - ahead * f) + (max(0.0, after - ahead * b) if m > under_way else 0.0)
            paced = max(paced, sum(each[:rank]) + m * (f + b) + wait)
        differs = [0, *(rank for rank in range(1, p.pp) if each[rank] != each[rank - 1]), p.pp]
        for first, end in itertools.combinations(differs, 2):
            late = sum(each[first:end]) + 2 * (end - first - 1) * hop - (end - first) * longest
            waits = max(waits, (m - 1) // (end - first) * max(0.0, late))
        return paced + 2 * (p.pp - 1) * hop + waits

    def parameters(self, p: ParallelConfig, mine: list[list[str]]) -> tuple[int, int]:
        blocks = [b for chunk in mine for name in chunk for b in self.layers(p)[name]]
        return sum(b.dense for b in blocks), sum(b.expert for b in blocks)

    def optimizer(self, p: ParallelConfig, mine: list[list[str]]) -> float:
        state = memory.states(*self.parameters(p, mine), p)
        ops = rank_ops.optimizer(state.optimizer / 12, ParallelConfig(dp=p.ranks))
        return sum(self.price(op.model) for op in ops)

    def memory(self, p: ParallelConfig, rank: int, mine: list[list[str]]) -> float:
        state = memory.states(*self.parameters(p, mine), p)
        names = [name for chunk in mine for name in chunk]
        arguments = (self.model, p)
        total = state.weights + state.gradients + state.optimizer + 2.5e9
        if p.zero == 3:
            # weights of two layers and gradients of one
            total += 2 * 3 * max(b.dense + b.expert for name in names for b in self.layers(p)[name])
        kept = [
            sum(
                memory.activation_bytes(*arguments, x, self.sequence)
                for name in chunk
                if name not in ENDS
                for x in name
            )
            for chunk in mine
        ]
        groups = [range(p.vpp)] * -(-p.micro_batches // p.pp)
        forwards, backwards = (
            [c for group in groups for c in group[::way] for _ in range(p.pp)][: p.micro_batches * p.vpp]
            for way in (1, -1)
        )
        ahead = p.pp - rank if p.vpp == 1 else 2 * (p.pp - rank - 1) + (p.vpp - 1) * p.pp + 1
        held = most = sum(kept[chunk] for chunk in forwards[:ahead])
        for forward, backward in zip(forwards[ahead:], backwards, strict=False):
            held += kept[forward] - kept[backward]
            most = max(most, held)
        total += most
        total += max(
            (memory.working_bytes(*arguments, name, self.sequence) for name in names if name not in ENDS), default=0.0
        )
        return total + (memory.logits_bytes(*arguments, self.sequence) if "head" in names else 0.0)


def is_sum(op: Any) -> bool:
    """A collective outside the parts that say so: of the vocabulary."""
    return (
        hasattr(op.model, "wire_bytes")
        and type(op.model).__name__ == "Collective"
        and op.part not in ("tp", "cp", "ep")
    )


def beside(transfer_us: float, busy_us: float) -> float:
    return max(transfer_us - busy_us, min(transfer_us, SLOW * busy_us) * (1 - 1 / SLOW))


def stretched(busy_us: float, transfer_us: float) -> float:
    return busy_us + (1 - 1 / SLOW) * min(max(transfer_us, 0.0), SLOW * busy_us)


@pytest.mark.parametrize("one_in", [40, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    ("name", "cluster", "strategy", "gpus", "batch", "count"),
    part([
        ("llama3.1-8b", "dgx-h100", "1d", 32, 64, 800),
        ("llama3.1-8b", "dgx-a100", "2d-seqp", 32, 32, 500),
        ("gpt3-175b", "dgx-b200", "2d", 64, 16, 400),
        ("mixtral-8x7b", "dgx-h100", "1d", 32, 32, 400),
        ("deepseek-v2-lite", "dgx-h100", "1d", 16, 32, 150),
    ], 3),
)  # fmt: skip
def test_arrays_agree_with_a_plain_loop(
    name: str, cluster: str, strategy: Strategy, gpus: int, batch: int, count: int, one_in: int
) -> None:
    model, system = ModelConfig.load(name), System.load(cluster)
    priced = CorrectedRules(space=Space(model=model, strategy=strategy, sequence=2048), system=system)
    found = priced.feasible([gpus], global_batch=batch)
    chosen = np.random.default_rng(11).choice(len(found.step_s), min(count // one_in, len(found.step_s)), replace=False)
    plain = Plain(model, system, 2048)
    for i in chosen.tolist():
        parallel = priced.parallel(found.candidates, i, global_batch=batch)
        step_s, memory_gb = plain.step(parallel)
        assert found.step_s[i] == pytest.approx(step_s, rel=1e-9), parallel
        assert found.memory_gb[i] == pytest.approx(memory_gb, rel=1e-9), parallel
