"""What overlaps in a pass follows from what runs at the same time; the host, hops, blocks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tracelens.perf_models import Collective, EPComm
from tracelens.predict.network.topology import Group, Protocol, Rates, Tier, TierLink, Topology
from tracelens.predict.projection import pipeline, schedules
from tracelens.predict.projection.chunk_timing import (
    Block,
    Builder,
    Kernel,
    OverlappedTransfers,
    Transfer,
    fixed,
    merged,
    passed,
)
from tracelens.predict.projection.pipeline import Cost, TaskCosts, hops_us
from tracelens.predict.projection.schedules import Plan
from tracelens.predict.workload.parallel_config import ParallelConfig, TPOverlap
from tracelens.predict.workload.rank_ops import RankLayer, RankOp

GATHER = Collective(kind="all_gather", elements_in=1, elements_out=8, ranks=8)
OP = RankOp(name="product", phase="forward", part="gemm", model=GATHER)
SENT = RankOp(name="experts.dispatch", phase="forward", part="ep", model=EPComm(tokens=1, hidden=1))


def block(*times: float, stream: str = "compute", part: str = "gemm") -> Block:
    kernels, at = [], 0.0
    for time_us in times:
        kernels.append(Kernel(OP if stream == "compute" else SENT, at, time_us, stream))
        at += time_us
    return Block(time_us=at, parts={part: at}, kernels=tuple(kernels), lead_us=0.0)


def exchanging(*segments: tuple[str, float]) -> Block:
    """Computing and exchanges in turn."""
    made = block()
    for stream, time_us in segments:
        made = made.then(block(time_us, stream=stream, part="ep" if stream == "ep" else "gemm"), 0.0)
    return made


def transfer(kind: str, layer: int, time_us: float) -> Transfer:
    return Transfer((kind, layer), GATHER, time_us)


def gathered(*times: float) -> OverlappedTransfers:
    """Each layer's weights gathered while the one before it runs."""
    return OverlappedTransfers(
        part="fsdp",
        first=[transfer("gather", 0, times[0])],
        with_block={i: [transfer("gather", i + 1, time_us)] for i, time_us in enumerate(times[1:])},
        needed={i: ("gather", i) for i in range(len(times))},
    )


def test_a_gather_hides_behind_the_layer_before_it() -> None:
    """Layers of 100, gathers of 30: the first is exposed; two layers compute beside one, slower: at the rate 1/1.3
    30 us do 23.08 of work.
    """
    found = passed([block(100.0)] * 3, 0.0, gathered(30, 30, 30))
    assert found.time_us == pytest.approx(30 + 2 * (100 + 30 - 30 / 1.3) + 100)
    assert found.parts["fsdp"] == pytest.approx(found.time_us - 300)
    assert sum(found.parts.values()) == pytest.approx(found.time_us)


def test_what_computing_does_not_hide_is_waited_for() -> None:
    """Layers of 100, gathers of 250: every layer waits for its own."""
    found = passed([block(100.0)] * 3, 0.0, gathered(250, 250, 250))
    assert found.time_us == pytest.approx(3 * 250 + 100)
    assert [placed.start_us for placed in found.transfers] == [0, 250, 500]


def test_the_last_scatter_counts_where_the_pass_waits() -> None:
    beside = OverlappedTransfers(part="fsdp", last=[transfer("scatter", 0, 40)])
    assert passed([block(100.0)], 0.0, beside).time_us == 100
    found = passed([block(100.0)], 0.0, replace(beside, waits=True))
    assert (found.time_us, found.parts["fsdp"]) == (140, 40)


def test_transfers_that_began_before_the_pass_are_waited_for_less() -> None:
    beside = OverlappedTransfers(part="dp", first=[transfer("gather", 0, 80)], first_us=-50, needed={0: ("gather", 0)})
    assert passed([block(100.0)], 0.0, beside).time_us == 130
    assert passed([block(100.0)], 0.0, replace(beside, first_us=-80)).time_us == 100


def test_fixed_shares_cost_what_they_leave() -> None:
    """Three gathers of 30, 90 % hidden: 9."""
    found = fixed([block(100.0)] * 3, 0.0, gathered(30, 30, 30), {"gather": 0.9})
    assert (found.time_us, found.parts["fsdp"]) == (pytest.approx(309), pytest.approx(9))
    assert sum(placed.time_us for placed in found.transfers) <= 90


def test_two_micro_batches_hide_each_others_exchanges() -> None:
    """Each computes 50, exchanges 40, computes 50. The backward goes first; its exchange hides behind the forward's
    first part, the forward's behind the backward's last, at the rate 1/1.3 while they share the device.
    """
    one = passed([exchanging(("compute", 50), ("ep", 40), ("compute", 50))], 0.0)
    assert one.time_us == 140
    both = merged(one, one)
    assert both is not None
    forward, backward = both
    slower = 40 - 40 / 1.3
    assert backward.time_us == pytest.approx(50 + 50 + slower + 50 + slower)
    assert forward.time_us == pytest.approx(200 + 2 * slower)
    assert sum(forward.parts.values()) + sum(backward.parts.values()) == pytest.approx(forward.time_us)
    assert merged(passed([block(10.0)], 0.0), passed([block(10.0)], 0.0)) is None


def test_the_host_runs_ahead_until_something_is_received() -> None:
    """Tasks of 10 us on the device and 30 for the host: alone they take what the host takes; a device that has 50 to
    do hides what the host needs for the next one.
    """
    order = schedules.load("1f1b")

    def time_us(forward: Cost, backward: Cost) -> float:
        tasks = order.tasks(Plan(ranks=1, chunks=1, micro_batches=4))
        return pipeline.run(
            tasks, order.routes(1, 1), costs=TaskCosts(of={"F": [[forward]], "B": [[backward]]}),
            kept_bytes=[[1.0]], later_bytes=[[1.0]], hops_us=[0.0],
        ).time_us  # fmt: skip

    late = Cost(time_us=10, host_us=30, launch_us=30)
    assert time_us(late, late) == 8 * 30
    assert time_us(late, Cost(time_us=50, host_us=50, launch_us=30)) == pytest.approx(30 + 4 * 50 + 3 * 10)


@pytest.mark.parametrize(
    ("overlap", "products_us", "exposed_us"),
    [("none", 50.0, 60.0), ("backward", 50.0, 20.0), ("backward", 20.0, 20.0 + 40.0 - 24.0), ("all", 50.0, 15.0)],
)
def test_tensor_parallel_collectives_beside_the_gradients_products(
    overlap: TPOverlap, products_us: float, exposed_us: float
) -> None:
    """Three collectives of 20 us and two products: two of the three go beside the gradients of a column-parallel
    product, hidden for 60 % of the products' time; in pieces, the first of four stays.
    """
    names = ("block.gather.all_gather", "block.gather.reduce_scatter", "block.scatter.all_gather")
    ops = [RankOp(name=name, phase="dgrad", part="tp", model=GATHER) for name in names]
    ops += [RankOp(name="mlp.up", phase=phase, part="gemm", model=GATHER) for phase in ("dgrad", "wgrad")]
    builder = Builder(
        parallel=ParallelConfig(tp=4, tp_overlap=overlap),
        price=lambda op: 20.0 if op.part == "tp" else products_us,
        host_us=0.0,
    )
    made = builder.layer([RankLayer(letter="-", ops=tuple(ops), dense=1)])["B"]
    assert made.parts["tp"] == pytest.approx(exposed_us)
    assert made.time_us == pytest.approx(exposed_us + 2 * products_us)
    on_wire = sorted((k.start_us, k.start_us + k.time_us) for k in made.kernels if k.op.part == "tp")
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(on_wire))


def test_hops_within_a_node_are_fast() -> None:
    """Stages of 4 ranks in nodes of 8: every other hop leaves the node; so does the last one, back to the first."""
    free = Protocol(name="simple", base_us=0, hop_us=0, tree_hop_us=0, rate_share=1.0)
    nodes = Topology(
        tiers=(
            Tier(ranks=8, link=TierLink(rates=Rates(peak_gb_s=400), protocols=(free,))),
            Tier(ranks=None, cards=8, link=TierLink(rates=Rates(peak_gb_s=50), protocols=(free,))),
        ),
        algorithms=("send/p2p",),
    )
    assert hops_us(4e6, Group(ranks=4, stride=4), nodes) == [10, 80, 10, 80]
    assert hops_us(4e6, Group(ranks=4, stride=8), nodes) == [80] * 4
    assert hops_us(4e6, Group(ranks=2, stride=1), nodes) == [10, 10]


def test_a_block_runs_backwards_but_for_what_belongs_to_one_operation() -> None:
    """Down's two gradients before up's; a quantization before the gradients that read it."""

    def op(name: str, phase: str, part: str = "gemm") -> RankOp:
        return RankOp(name=name, phase=phase, part=part, model=GATHER)  # type: ignore[arg-type]

    ops = [op(f"mlp.{n}", phase) for n in ("up", "down") for phase in ("forward", "dgrad", "wgrad")]
    ops.insert(0, op("mlp.up.quantize", "dgrad", "quantize"))
    builder = Builder(parallel=ParallelConfig(), price=lambda _: 1.0, host_us=0.0)
    made = builder.layer([RankLayer(letter="-", ops=tuple(ops), dense=0)])
    names = [f"{kernel.op.name} {kernel.op.phase}" for kernel in made["B"].kernels]
    assert names == [
        "mlp.down dgrad", "mlp.down wgrad", "mlp.up.quantize dgrad", "mlp.up dgrad", "mlp.up wgrad",
    ]  # fmt: skip
    assert (made["F"].time_us, made["D"].time_us, made["W"].time_us) == (2, 3, 2)
