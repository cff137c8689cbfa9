"""How fast the search is: ``python -m benchmarks.search [--quick]``, one core.

Candidates per second under the paper's rules, the same over the plain loop that the tests keep, all nine systems and
three strategies of the published grid, and the corrected rules with the tile backend at 16,384 devices. Processor time,
because a busy machine only adds to the clock's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.projection.plain_paper_step import plain_step
from tracelens.laboratory.paper_rules import PaperRules
from tracelens.laboratory.paper_systems import Candidates, PaperSystem, enumerate_candidates, load_shape
from tracelens.predict.projection.projection_options import STRATEGIES
from tracelens.predict.projection.search import ANYTHING, Constraints, fastest
from tracelens.predict.projection.search.request import Request, answer

GPUS = [2**i for i in range(2, 15)]
BATCH = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one system and one strategy of the corrected rules")
    quick = parser.parse_args().quick
    one = _rules("B200", 64, "2d")
    count = len(enumerate_candidates(one.shape, one.strategy, GPUS, global_batch=BATCH, domain=64))
    took = _cpu_s(lambda: _search(one))
    print(f"paper rules, {count:,} candidates: {took:.2f} s, {count / took / 1e6:.2f} million candidates/s")
    print(f"  {count / took / _plain_per_s(one):,.0f} times the plain loop")
    systems = [("B200", 64)] if quick else [(gpu, nvs) for gpu in ("A100", "H200", "B200") for nvs in (4, 8, 64)]
    grid = [_rules(gpu, nvs, strategy) for gpu, nvs in systems for strategy in STRATEGIES]
    took = _cpu_s(lambda: [_search(rules) for rules in grid])
    print(f"paper rules, {len(systems)} systems, 3 strategies, 13 device counts: {took:.1f} s")
    wide = Request(model="gpt3-1t", cluster="b200-nvs8", gpus=(16384,), global_batch=BATCH, strategies=("1d",))
    asked = {
        f"16,384 devices, {each}": replace(wide, strategies=(each,)) for each in (("1d",) if quick else STRATEGIES)
    }
    asked["DeepSeek-V3 on 2,048 H800"] = Request(
        model="deepseek-v3", cluster="dgx-h800", gpus=(2048,), global_batch=15360, strategies=("1d", "2d-seqp"),
        wanted=Constraints(headroom=0.06),
    )  # fmt: skip
    for what, request in asked.items():
        found: list[Any] = []
        took = _cpu_s(lambda request=request, found=found: found.append(answer(request)))
        count = sum(len(each.step_s) for each in found[0].found)
        print(f"corrected rules, tile backend, {what}: {count:,} that fit, {took:.1f} s")


def _rules(gpu: str, nvs: int, strategy: Any) -> PaperRules:
    return PaperRules(shape=load_shape("gpt3_1T"), strategy=strategy, system=PaperSystem.load(gpu, domain=nvs))


def _search(rules: PaperRules) -> Any:
    found = rules.feasible(GPUS, global_batch=BATCH, wanted=ANYTHING)
    return found.candidates.take(fastest(found, GPUS, 10))


def _plain_per_s(rules: PaperRules) -> float:
    """Candidates per second of one call of scalar arithmetic each."""
    space = enumerate_candidates(rules.shape, rules.strategy, [1024], global_batch=BATCH, domain=rules.system.domain)
    some = space.take(np.random.default_rng(1).choice(len(space), 2000, replace=False))
    each = [{name: int(getattr(some, name)[i]) for name in Candidates.__struct_fields__} for i in range(len(some))]
    return len(each) / _cpu_s(lambda: [plain_step(rules, one, BATCH) for one in each])


def _cpu_s(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    main()
