"""Schedules run as event graphs give their closed forms, time and activations alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens as tl
from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.predict.projection import pipeline, schedules
from tracelens.predict.projection.pipeline import Cost, TaskCosts
from tracelens.predict.projection.schedules import Kind, Plan, Task
from tracelens.predict.workload import memory, rank_ops
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig

F, D, W = 3.0, 3.5, 1.5
B = D + W
ZERO_BUBBLE = ["zb-h1", "zb-1p", "zb-v", "v-half", "v-min"]
EVERY = ["gpipe", "1f1b", "interleaved", *ZERO_BUBBLE, "dualpipe"]


def parts_of(name: str, v: int) -> tuple[int, int]:
    """Chunks per rank, and into how many of them a rank's share of the model is divided: DualPipe has it twice."""
    chunks = schedules.load(name).chunks(v)
    return chunks, 1 if name == "dualpipe" else chunks


def run(
    name: str,
    *,
    p: int,
    m: int,
    v: int = 1,
    f: float = F,
    d: float = D,
    w: float = W,
    hop: float = 0.0,
    later: float = 1.0,
) -> pipeline.Pipeline:
    """Balanced: a rank's whole share of a micro-batch takes f forward and d + w backward, and keeps 1."""
    chunks, share = parts_of(name, v)
    return pipeline.run(
        tasks_of(name, p=p, m=m, v=v, f=f, d=d, w=w, hop=hop),
        schedules.load(name).routes(p, chunks),
        costs=costs_of({"F": f / share, "D": d / share, "W": w / share, "B": (d + w) / share}, p, chunks),
        kept_bytes=[[1 / share] * chunks] * p,
        later_bytes=[[later / share] * chunks] * p,
        hops_us=[hop] * p,
    )


def costs_of(times: dict[Kind, float], p: int, chunks: int) -> TaskCosts:
    return TaskCosts(of={kind: [[Cost(time_us)] * chunks] * p for kind, time_us in times.items()})


def tasks_of(
    name: str, *, p: int, m: int, v: int = 1, f: float = F, d: float = D, w: float = W, hop: float = 0.0
) -> Sequence[Sequence[Task]]:
    chunks, share = parts_of(name, v)
    plan = Plan(
        ranks=p, chunks=chunks, micro_batches=m,
        forward_us=f / share, dgrad_us=d / share, wgrad_us=w / share, transfer_us=hop,
    )  # fmt: skip
    return schedules.load(name).tasks(plan)


@given(st.integers(1, 6), st.integers(1, 12))
def test_gpipe_and_1f1b_take_m_plus_p_minus_1(p: int, m: int) -> None:
    for name in ("gpipe", "1f1b"):
        assert run(name, p=p, m=m).time_us == pytest.approx((m + p - 1) * (F + B))


@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 4))
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, groups: int, v: int) -> None:
    m = groups * p
    assert run("interleaved", p=p, m=m, v=v).time_us == pytest.approx((m + (p - 1) / v) * (F + B))


@given(st.integers(1, 8), st.integers(0, 12), st.floats(1, 3), st.floats(1, 3), st.floats(0.2, 1))
def test_zb_h1_has_the_published_bubble(p: int, more: int, f: float, d: float, w: float) -> None:
    """(p-1)(F + D - W), which is (p-1)(F + B - 2W), for W no longer than F and D (arXiv 2401.10241, table 2)."""
    m = 2 * p + more
    expected = m * (f + d + w) + (p - 1) * (f + d - w)
    assert run("zb-h1", p=p, m=m, f=f, d=d, w=w).time_us == pytest.approx(expected)


@given(st.integers(1, 8), st.integers(0, 12))
def test_zb_1p_has_the_bubble_of_zb_h1_where_all_take_as_long(p: int, more: int) -> None:
    m = 2 * p + more
    assert run("zb-1p", p=p, m=m, f=1, d=1, w=1).time_us == 3 * m + p - 1


@given(st.integers(1, 12), st.integers(0, 12))
def test_zb_v_takes_six_passes_per_micro_batch_and_p_minus_1(p: int, more: int) -> None:
    """Of chunks, each half a rank's share: bubble rate (p-1)/(p-1+6m)."""
    m = 2 * p + more
    assert run("zb-v", p=p, m=m, f=2, d=2, w=2).time_us == 6 * m + p - 1


@settings(max_examples=examples(30))
@given(st.integers(1, 4), st.integers(0, 4), st.floats(1, 2), st.floats(1, 2), st.floats(0.5, 1))
def test_dualpipe_has_no_more_than_the_published_bubble(half: int, more: int, f: float, d: float, w: float) -> None:
    """(p/2-1)(FB + B - 3W) where a pair's forward waits for its backward, FB = F + B, B = D + W (arXiv 2412.19437, table 2)."""
    m = 4 * half + 2 * more
    bubble = run("dualpipe", p=2 * half, m=m, f=f, d=d, w=w).time_us - m * (f + d + w)
    assert -1e-9 <= bubble <= (half - 1) * ((f + d + w) + (d + w) - 3 * w) + 1e-9
    assert run("dualpipe", p=2 * half, m=m, f=1, d=1, w=1).time_us == 3 * m + half - 1


@pytest.mark.parametrize(("p", "m"), [(4, 12), (8, 20), (16, 40)])
@pytest.mark.parametrize(("f", "d", "w"), [(1.0, 1.0, 1.0), (1.0, 1.5, 0.8)])
def test_dualpipe_has_the_published_bubble_where_pairs_run_as_one(p: int, m: int, f: float, d: float, w: float) -> None:
    """(p/2-1)(FB + B - 3W), FB the time of a forward and a backward of which neither is done before the other."""
    b, fb = d + w, f + d + w
    order = schedules.load("dualpipe")
    found = pipeline.run(
        tasks_of("dualpipe", p=p, m=m),
        order.routes(p, 2),
        costs=replace(costs_of({"F": f, "D": d, "W": w, "B": b}, p, 2), pairs=lambda *_: (Cost(fb), Cost(fb))),
        kept_bytes=[[1.0, 1.0]] * p,
        later_bytes=[[1.0, 1.0]] * p,
        hops_us=[0.0] * p,
    )
    assert found.time_us - max(found.busy_us) == pytest.approx((p / 2 - 1) * (fb + b - 3 * w))
    assert max(found.kept_bytes) == p + 1


@pytest.mark.parametrize("p", [4, 6, 8, 12, 16])
def test_v_half_and_v_min_have_about_half_and_two_thirds_of_the_bubble_of_1f1b(p: int) -> None:
    """Bubbles in passes of a rank: 1.5 p and 2 p against 3 (p-1), each a small constant less."""
    m = 4 * p
    bubbles = {n: run(n, p=p, m=m, f=1, d=1, w=1).time_us - 3 * m for n in ("1f1b", "v-half", "v-min", "zb-v")}
    assert bubbles["1f1b"] == 3 * (p - 1)
    assert 1.5 * p - 3 <= bubbles["v-half"] <= 1.5 * p
    assert 2 * p - 3 <= bubbles["v-min"] <= 2 * p
    assert bubbles["zb-v"] < bubbles["v-half"] < bubbles["v-min"] < bubbles["1f1b"]


@pytest.mark.parametrize("p", [2, 4, 6, 8, 16])
def test_activations_kept_are_the_published_ones(p: int) -> None:
    """Micro-batches that the fullest rank keeps: p of 1F1B, ZB-H1, ZB-1P and ZB-V, p/2 and p/3 and a constant of V-half
    and V-min, p + 1 of DualPipe.
    """
    m = 3 * p
    most = {name: max(run(name, p=p, m=m, f=1, d=1, w=1).kept_bytes) for name in EVERY}
    for name in ("1f1b", "zb-h1", "zb-1p", "zb-v"):
        assert most[name] == p
    assert p / 2 + 1 <= most["v-half"] <= p / 2 + 1.5
    assert p / 3 + 0.5 <= most["v-min"] <= p / 3 + 1.5
    assert most["dualpipe"] == p + 1
    assert most["gpipe"] == m


@given(st.integers(1, 6), st.integers(1, 12))
def test_gpipe_keeps_every_micro_batch_and_1f1b_what_is_ahead(p: int, m: int) -> None:
    assert run("gpipe", p=p, m=m).kept_bytes == (m,) * p
    assert run("1f1b", p=p, m=m).kept_bytes == tuple(min(p - rank, m) for rank in range(p))


@pytest.mark.parametrize(("p", "v"), [(4, 2), (8, 3), (35, 3)])
def test_the_first_interleaved_rank_keeps_p_plus_p_minus_1_over_v(p: int, v: int) -> None:
    assert run("interleaved", p=p, m=2 * p, v=v).kept_bytes[0] == pytest.approx(p + (p - 1) / v)


def test_after_the_inputs_gradient_only_what_the_weights_gradient_reads_is_kept() -> None:
    """Stage 3 of ZB-H1 puts three off: 1 + 3 * 0.25 instead of 4."""
    assert run("zb-h1", p=4, m=8, later=0.25).kept_bytes == (4.0, 3.25, 2.5, 1.75)


def test_weights_gradients_of_a_gpt_layer_read_32_sbh() -> None:
    """Inputs 1 + 1 + 1 + 4, gradients of outputs 3 + 1 + 4 + 1 hidden widths of 2 bytes (arXiv 2401.10241, M_W)."""
    model, p = ModelConfig.load("gpt3-175b"), ParallelConfig(tp=1)
    blocks = [rank_ops.block(model, p, letter, 2048) for letter in "*-"]
    assert sum(memory.wgrad_bytes(block, p) for block in blocks) == 32 * 2048 * model.hidden


def test_transfers_take_time_there_and_back() -> None:
    """One micro-batch through three ranks: two hops forward, two back."""
    found = run("1f1b", p=3, m=1, hop=0.5)
    assert found.time_us == 3 * (F + B) + 4 * 0.5
    assert found.transfer_us == (0.5, 1.0, 0.5)


def test_a_transfer_waits_for_the_one_before_it() -> None:
    """Forwards of 1 every 1, transfers of 2: the tenth arrives after 1 + 10 * 2."""
    found = run("gpipe", p=2, m=10, f=1, d=1, w=0, hop=2.0)
    assert found.starts_us[1][9] == 1 + 10 * 2


def test_the_v_turns_round_without_a_transfer() -> None:
    """One micro-batch, two ranks: one hop down, one up, and as many back."""
    assert run("zb-v", p=2, m=1, hop=0.5).time_us == 2 * (F + D) + W / 2 + 4 * 0.5


def test_the_slowest_stage_paces_the_steady_state() -> None:
    """m = 10 on the slow rank, plus the first forward before and the last backward after it."""
    found = pipeline.run(
        tasks_of("1f1b", p=2, m=10),
        schedules.load("1f1b").routes(2, 1),
        costs=TaskCosts(of={"F": [[Cost(1.0)], [Cost(2.0)]], "B": [[Cost(1.0)], [Cost(2.0)]]}),
        kept_bytes=[[1.0], [1.0]],
        later_bytes=[[1.0], [1.0]],
        hops_us=[0.0, 0.0],
    )
    assert found.time_us == 1 + 10 * 4 + 1
    assert found.busy_us == (20.0, 40.0)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(EVERY), st.integers(1, 9), st.integers(1, 24), st.integers(2, 3),
    st.floats(0.5, 3), st.floats(0.5, 3), st.floats(0.1, 3), st.floats(0, 2),
)  # fmt: skip
def test_every_rank_passes_every_micro_batch_once_in_order_and_nothing_beats_the_ideal(
    name: str, p: int, m: int, v: int, f: float, d: float, w: float, hop: float
) -> None:
    v = v if name in ("interleaved", "gpipe") else 1
    if name == "interleaved":
        m = max(m // p, 1) * p
    if name == "dualpipe":
        p, m = 2 * p, max(2 * m, 4 * p)
    chunks, share = parts_of(name, v)
    tasks, routes = tasks_of(name, p=p, m=m, v=v, f=f, d=d, w=w, hop=hop), schedules.load(name).routes(p, chunks)
    found = run(name, p=p, m=m, v=v, f=f, d=d, w=w, hop=hop)
    end = {}
    for rank, mine in enumerate(tasks):
        assert len(mine) == len(set(mine))
        for task, start, stop in zip(mine, found.starts_us[rank], found.ends_us[rank], strict=True):
            end[task.kind, task.micro_batch, rank, task.chunk] = start, stop
        assert list(found.starts_us[rank]) == sorted(found.starts_us[rank])
    passed = 0
    for route in routes:
        mine = {task.micro_batch for task in tasks[route[0][0]] if task.chunk == route[0][1]}
        passed += len(mine)
        for micro_batch in mine:
            ready = 0.0
            for rank, chunk in route:
                start, stop = end.pop(("F", micro_batch, rank, chunk))
                assert start >= ready
                ready = stop
            for rank, chunk in reversed(route):
                whole = end.pop(("B", micro_batch, rank, chunk), None)
                start, stop = whole or end.pop(("D", micro_batch, rank, chunk))
                assert start >= ready
                ready = stop
                if whole is None:
                    assert end.pop(("W", micro_batch, rank, chunk))[0] >= stop
    assert passed == m
    assert not end
    assert found.time_us >= m * (f + d + w) * (1 - 1e-12)
    assert found.time_us >= p * (f + d) + w / share - 1e-9


@given(st.floats(0.2, 2), st.floats(0.2, 2))
def test_a_zero_bubble_schedule_is_no_slower_than_1f1b_where_weights_take_no_longer_than_the_rest(
    f_more: float, d_more: float
) -> None:
    f, d, w = 1 + f_more, 1 + d_more, 1.0
    plain = run("1f1b", p=6, m=18, f=f, d=d, w=w).time_us
    for name in ("zb-h1", "zb-1p", "zb-v"):
        assert run(name, p=6, m=18, f=f, d=d, w=w).time_us <= plain * (1 + 1e-9)


def test_bundled_schedules_are_found_and_unknown_ones_are_not() -> None:
    assert sorted(schedules.schedules()) == sorted(EVERY)
    with pytest.raises(UsageError, match="no pipeline schedule named '1f1c'; did you mean 1f1b"):
        schedules.load("1f1c")


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("1f1b", 2, "schedule 1f1b needs 1 chunk per rank, not 2; interleaved and gpipe take any number"),
        ("zb-v", 3, "schedule zb-v needs 2 chunks per rank, not 3"),
        ("dualpipe", 2, "schedule dualpipe needs one chunk per rank and direction, not 2"),
    ],
)
def test_a_schedule_says_how_many_chunks_it_has(name: str, asked: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        schedules.load(name).chunks(asked)


def test_numbers_that_a_schedule_cannot_do_are_errors() -> None:
    with pytest.raises(UsageError, match="schedule interleaved: 4 pipeline ranks do not divide 6 micro-batches"):
        tasks_of("interleaved", p=4, m=6, v=2)
    with pytest.raises(UsageError, match=r"schedule dualpipe: needs an even number of ranks .* got 4 and 6"):
        tasks_of("dualpipe", p=4, m=6)


def test_a_schedule_that_waits_for_itself_is_an_error() -> None:
    """Each rank wants its own backward before anything else."""
    tasks = [[Task("B", 0, 0), Task("F", 0, 0)]] * 2
    with pytest.raises(UsageError, match=r"the schedule deadlocks on ranks \[0, 1\]"):
        pipeline.run(
            tasks, schedules.load("1f1b").routes(2, 1), costs=costs_of({"F": 1.0, "B": 1.0}, 2, 1),
            kept_bytes=[[1.0]] * 2, later_bytes=[[1.0]] * 2, hops_us=[0.0] * 2,
        )  # fmt: skip


@pytest.mark.parametrize("micro_batches", [16, 64])
def test_the_order_of_published_schedules_on_mi300x(micro_batches: int) -> None:
    """Llama-2-7B, 8 MI300X, pp 8, tokens/s/GPU and GB (Primus): ZB-V 11347 / 18.1, interleaved 10974 / 21.4, V-min 8897
    / 11.9. Their number of micro-batches is not stated.
    """
    found = {
        name: tl.project(
            "llama2-7b", "mi300x", gpus=8, pp=8, vpp=vpp, schedule=name, global_batch=micro_batches
        ).projection
        for name, vpp in (("zb-v", 1), ("interleaved", 2), ("v-min", 1))
    }
    speed = {name: each.tokens_per_s_per_gpu for name, each in found.items()}
    assert speed["zb-v"] > speed["interleaved"] > speed["v-min"]
    kept = {name: each.peak_memory.peak for name, each in found.items()}
    assert kept["interleaved"] > kept["zb-v"] > kept["v-min"]


def test_the_order_of_published_schedules_with_experts() -> None:
    """Qwen3-235B, 32 MI355X, pp 4, ep 8, tokens/s/GPU (Primus): interleaved(3) 3012, ZB-V 2953, V-half 2913. ZB-V's three
    passes are less equal here, so it gains less on interleaving than in a dense model, and V-half loses.
    """
    speed = {
        name: tl.project(
            "qwen3-235b-a22b", "mi355x", gpus=32, pp=4, vpp=vpp, ep=8, schedule=name, global_batch=128
        ).projection.tokens_per_s_per_gpu
        for name, vpp in (("interleaved", 3), ("zb-v", 1), ("v-half", 1))
    }
    assert speed["zb-v"] / speed["interleaved"] < 1.01
    assert speed["v-half"] < speed["zb-v"]
