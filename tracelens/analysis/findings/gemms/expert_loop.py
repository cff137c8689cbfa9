"""Many tiny GEMMs of the same weights' shape: experts that run one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.op_places import places_around
from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.work.limits import rate_of
from tracelens.lazy.patterns import lazy_pattern
from tracelens.units import FLOPS_PER_GFLOP, TERA_PER_S_IN_PER_US

if TYPE_CHECKING:
    import pandas as pd

#: GEMMs of one weight shape, and different numbers of rows among them, from which they are taken for experts.
_MANY, _DIFFERENT = 16, 3
#: Share of them whose number of rows is not that of the one before: batches change it from one step to the next only.
_CHANGING = 0.25
#: What says that there are experts: an op or kernel that picks or orders them, or a module's name.
_ROUTES = lazy_pattern(r"(?i)top_?k|router|routing|gating|(?:^|[^a-z])moe|experts?(?:[^a-z]|$)")
#: GEMMs that may lie between the router and the first expert: those of shared experts.
_BETWEEN = 4
#: Longest mean time of such a GEMM.
_SHORT_US = 50.0


@finding(
    "expert_loop",
    Advice(
        sees="Many short GEMMs with weights of one shape, whose number of rows changes from one to the next, behind a "
        "router (top-k) or in a module of experts: the experts run one after the other.",
        costs="Each expert's few tokens fill a part of the device for a few microseconds, and cost a launch each.",
        remedy="one grouped GEMM for all experts: torch._grouped_mm, grouped_gemm, Triton or the engine's fused MoE",
        wrong_when="Each expert has thousands of tokens: its own GEMM then fills the device.",
        references=("Gale et al., MegaBlocks, 2022, arXiv:2211.15841",),
    ),
)
def expert_loop(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time above that of their FLOPs and bytes at the device's rates."""
    device, (rows, models) = seen.device, seen.gemms
    short = (rows["kernel_us_mean"].to_numpy() < _SHORT_US) & (rows["gflops"].to_numpy() > 0)
    if device is None or device.hbm is None or device.hbm.tb_s is None or not short.any():
        return
    rows, models = rows[short], models[short]
    weights = [(model.n, model.k) for model in models.tolist()]
    experts = _of_experts(seen, rows, weights, [model.m for model in models.tolist()])
    rows = rows[np.array([each in experts for each in weights], np.bool_)]
    if rows.empty or not _are_routed_to(seen, rows):
        return
    rates = [rate_of(device, str(spec)) for spec in rows["compute_spec"]]
    tflops = np.array([np.nan if rate is None else rate.tflops_s for rate in rates], np.float64)
    least_us = np.fmax(
        rows["gflops"] * FLOPS_PER_GFLOP / tflops / TERA_PER_S_IN_PER_US, rows["hbm_mb"] / device.hbm.tb_s
    )
    rest = Candidate(
        why=": the experts run one after the other",
        claimed=seen.calls(rows, 1 - least_us / rows["kernel_us_mean"], spares_launches=True),
        computed="their time, less that of their FLOPs and bytes at the device's rates in one grouped GEMM",
    )
    yield from candidate_of_calls(seen, rows, "short GEMM", rest)


def _of_experts(
    seen: Observed, rows: pd.DataFrame, weights: Sequence[tuple[int, int]], heights: Sequence[int]
) -> set[tuple[int, int]]:
    """Shapes of weights that many of ``rows`` have, whose numbers of rows change from one call to the next."""
    by_weights: dict[tuple[int, int], dict[int, int]] = {}
    counts = Counter[tuple[int, int]]()
    for row, each, height, count in zip(rows.index, weights, heights, rows["operation_count"], strict=True):
        by_weights.setdefault(each, {})[row] = height
        counts[each] += count
    found = set()
    for each, height_of in by_weights.items():
        if counts[each] < _MANY * seen.steps or len(set(height_of.values())) < _DIFFERENT:
            continue
        events = seen.events_of(height_of)
        ordered = seen.row_of_event[events[np.argsort(seen.activity.start[events], kind="stable")]]
        in_turn = np.array([height_of[row] for row in ordered.tolist()])
        if np.count_nonzero(np.diff(in_turn)) >= _CHANGING * (len(in_turn) - 1):
            found.add(each)
    return found


def _are_routed_to(seen: Observed, rows: pd.DataFrame) -> bool:
    """Whether most of these GEMMs run soon after a router, or lie in modules of experts: many short GEMMs of changing
    heights are in diffusion models, too.
    """
    names, activity = seen.table.names, seen.activity
    if any(_ROUTES.search(place or "") for place in places_around(seen.tree, int(rows["example_row"].iloc[0]))):
        return True
    says = np.array([_ROUTES.search(name) is not None for name in names], np.bool_)
    of_op = np.where(activity.op >= 0, says[seen.table.name[np.maximum(activity.op, 0)]], False)
    is_gemm = np.zeros(len(activity), np.bool_)
    is_gemm[seen.events_of(seen.gemms[0].index)] = True
    ours = np.zeros(len(activity), np.bool_)
    ours[seen.events_of(rows.index)] = True
    told = np.flatnonzero(is_gemm | says[activity.name] | of_op)
    routed, others, found = False, 0, 0
    for at in told[np.argsort(activity.start[told], kind="stable")].tolist():
        if ours[at]:
            found += routed and others <= _BETWEEN
        elif is_gemm[at]:
            others += 1
        else:
            routed, others = True, 0
    return bool(2 * found > np.count_nonzero(ours))
