"""The corrected rules: what they say of a configuration is what the event-graph projection of that step says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import part
from tracelens.backends.base import System
from tracelens.predict.projection.projection_options import Strategy
from tracelens.predict.projection.search import Constraints, fastest
from tracelens.predict.projection.search.space import RECOMPUTE, SCHEDULES, Space, placements
from tracelens.predict.projection.search.whole_step import CorrectedRules
from tracelens.predict.projection.step import project
from tracelens.predict.workload.model_config import ModelConfig

CASES: dict[str, tuple[str, str, Strategy, int, int, int]] = {
    "gpt-1t": ("megatron-1t", "dgx-b200", "1d", 2048, 512, 1024),
    "gpt-175b on 64": ("gpt3-175b", "dgx-a100", "1d", 2048, 64, 256),
    "llama-8b": ("llama3.1-8b", "dgx-h100", "1d", 4096, 64, 128),
    "llama-8b, 2 sequences per rank": ("llama3.1-8b", "dgx-b200", "1d", 2048, 256, 512),
    "small layers, launched late": ("gpt-1024x24", "dgx-b200", "1d", 1024, 32, 256),
    "llama-70b with context ranks": ("llama3.1-70b", "dgx-h100", "2d-seqp", 8192, 128, 128),
    "llama-405b, 126 layers": ("llama3.1-405b", "gb200-nvl72", "1d", 8192, 1024, 512),
    "llama-70b by SUMMA": ("llama3.1-70b", "dgx-h100", "2d", 4096, 64, 64),
    "mixtral": ("mixtral-8x7b", "mi300x", "1d", 4096, 64, 256),
    "olmoe, one micro-batch per replica": ("olmoe-1b-7b", "dgx-h100", "1d", 4096, 64, 256),
    "ernie, 28 layers in 10 chunks": ("ernie-4.5-21b-a3b", "dgx-h100", "1d", 4096, 64, 256),
    "kimi, transfers that each round trip waits for": ("kimi-k2", "dgx-b200", "1d", 4096, 128, 1024),
    "deepseek, 61 layers of two kinds": ("deepseek-v3-without-mtp", "dgx-b200", "1d", 4096, 512, 1024),
}


def rules(model: str, cluster: str, strategy: Strategy, sequence: int) -> CorrectedRules:
    space = Space(model=ModelConfig.load(model), strategy=strategy, sequence=sequence)
    return CorrectedRules(space=space, system=System.load(cluster))


@pytest.mark.parametrize("drawn", [2, pytest.param(20, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("case", part(sorted(CASES), len(CASES)))
def test_the_event_graph_agrees_on_the_winner_and_on_random_configurations(case: str, drawn: int) -> None:
    """1 % for the winner; the rest, of which the worst are within 3.9 % (3,000 configurations), that it is no accident."""
    model, cluster, strategy, sequence, gpus, batch = CASES[case]
    priced = rules(model, cluster, strategy, sequence)
    found = priced.feasible([gpus], global_batch=batch)
    space, step_s, needed = found.candidates, found.step_s, found.memory_gb
    best, *others = fastest(found, [gpus], 3).tolist()
    others += np.random.default_rng(3).choice(len(space), drawn, replace=False).tolist()
    for i in (best, *others):
        parallel = priced.parallel(space, i, global_batch=batch)
        again = project(priced.model, parallel, priced.system, sequence=sequence)
        assert step_s[i] == pytest.approx(again.step_us / 1e6, rel=0.01 if i == best else 0.04), parallel
        assert needed[i] == pytest.approx(again.peak_memory.peak / 1e9, rel=0.01), parallel
        assert again.infeasible is None


def test_the_parts_of_a_step_add_up() -> None:
    priced = rules("llama3.1-8b", "dgx-h100", "1d", 4096)
    times = priced.times(priced.feasible([16], global_batch=64).candidates, global_batch=64)
    assert sum(value for name, value in times.items() if name != "t") == pytest.approx(times["t"], rel=1e-12)
    assert min(value.min() for value in times.values()) > -1e-12


@pytest.mark.sweep
def test_less_free_memory_leaves_fewer_configurations() -> None:
    priced = rules("llama3.1-70b", "dgx-h100", "1d", 4096)
    half, full = (len(priced.feasible([64], global_batch=64, wanted=Constraints(headroom=h)).step_s) for h in (0.5, 0))
    assert 0 < half < full


def test_a_node_need_not_be_filled() -> None:
    """12 tensor ranks in nodes of 8 go 6 and 6; 16 ranks in nodes of 72 all fit into one."""
    assert placements((12, 1, 1, 1), 8).tolist() == [[6, 1, 1, 1]]
    assert placements((4, 1, 4, 1), 72).tolist() == [[4, 1, 4, 1]]
    assert placements((4, 1, 4, 1), 8).tolist() == [[2, 1, 4, 1], [4, 1, 2, 1]]


@pytest.mark.parametrize("name", part(["llama3.1-8b", "mixtral-8x7b"], 2))
def test_schedules_and_recomputed_modules_agree_with_the_event_graph(name: str) -> None:
    """2 % for ZB-H1 and selective recomputation, with equal memory; ZB-V, filled greedily, 4 % and no less memory."""
    priced = rules(name, "dgx-h100", "1d", 4096)
    narrow = priced.feasible([32], global_batch=64)
    found = priced.widened(narrow, top=len(narrow.step_s), global_batch=64)
    space, tried = found.candidates, set[tuple[str, str]]()
    for i in np.random.default_rng(5).permutation(np.arange(len(narrow.step_s), len(found.step_s))).tolist():
        schedule, recompute = SCHEDULES[space.schedule[i]], RECOMPUTE[space.recompute[i]]
        if (schedule, recompute) in tried:
            continue
        tried.add((schedule, recompute))
        again = project(
            priced.model, priced.parallel(space, i, global_batch=64), priced.system, sequence=4096,
            schedule=None if schedule == "1f1b" else schedule,
        )  # fmt: skip
        time, memory = found.step_s[i] / again.step_us * 1e6, found.memory_gb[i] / again.peak_memory.peak * 1e9
        assert time == pytest.approx(1, abs=0.04 if schedule == "zb-v" else 0.02), (schedule, recompute)
        assert 0.999 < memory < (1.3 if schedule == "zb-v" else 1.001), (schedule, recompute)
    assert {schedule for schedule, _ in tried} == set(SCHEDULES)


@pytest.mark.parametrize("forbidden", [(), ("recompute",), ("schedule", "vpp")])
def test_no_step_among_the_fastest_is_left_out_by_what_it_computes_at_least(forbidden: tuple[str, ...]) -> None:
    """A search for the best five against all, without that bound."""
    priced = rules("llama3.1-8b", "dgx-h100", "1d", 4096)
    wanted = Constraints(forbidden=frozenset(forbidden))
    narrow = priced.feasible([16, 32], global_batch=32, wanted=wanted)
    some, every = (priced.widened(narrow, top=top, global_batch=32, wanted=wanted) for top in (5, len(narrow.step_s)))
    assert len(narrow.step_s) < len(some.step_s) < len(every.step_s)
    for gpus in (16, 32):
        best = [np.sort(each.step_s[each.candidates.gpus == gpus])[:5].tolist() for each in (some, every)]
        assert best[0] == best[1]
    for name in forbidden:
        assert len(set(getattr(every.candidates, name).tolist())) == 1
