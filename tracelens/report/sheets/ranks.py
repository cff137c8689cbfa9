"""The sheets of a report on many ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import Analyzed, sheet
from tracelens.report.rank_columns import RANK_SETS

if TYPE_CHECKING:
    import pandas as pd


@sheet("ranks", columns=RANK_SETS["ranks"], order=510)
def ranks(result: Analyzed) -> pd.DataFrame | None:
    """One row per rank: its trace and where its device's time went."""
    return result.frames.get("ranks")


@sheet("straggler_summary", columns=RANK_SETS["straggler_summary"], order=520)
def straggler_summary(result: Analyzed) -> pd.DataFrame | None:
    """Ranks by what their late arrivals cost the others, the costliest first."""
    return result.frames.get("straggler_summary")


@sheet("step_cost", columns=RANK_SETS["step_cost"], order=530)
def step_cost(result: Analyzed) -> pd.DataFrame | None:
    """One row per step: the rank that kept the others waiting, and what that cost."""
    return result.frames.get("step_cost")


@sheet("ep_summary", columns=RANK_SETS["ep_summary"], order=540)
def ep_summary(result: Analyzed) -> pd.DataFrame | None:
    """Token exchanges by op and group: effective rates beside true ones."""
    return result.frames.get("ep_summary")


@sheet("ep_by_rank", columns=RANK_SETS["ep_by_rank"], order=550)
def ep_by_rank(result: Analyzed) -> pd.DataFrame | None:
    """Token exchanges by op, group and rank."""
    return result.frames.get("ep_by_rank")


@sheet("nccl_summary_implicit_sync", columns=RANK_SETS["nccl_summary_implicit_sync"], order=560)
def nccl_summary_implicit_sync(result: Analyzed) -> pd.DataFrame | None:
    """Matched collectives by group, collective, type and size."""
    return result.frames.get("nccl_summary_implicit_sync")


@sheet("nccl_summary_long", columns=RANK_SETS["nccl_summary_long"], order=570)
def nccl_summary_long(result: Analyzed) -> pd.DataFrame | None:
    """Communication calls of all ranks by what was called."""
    return result.frames.get("nccl_summary_long")


@sheet("nccl_summary_all2allv", columns=RANK_SETS["nccl_summary_all2allv"], order=580)
def nccl_summary_all2allv(result: Analyzed) -> pd.DataFrame | None:
    """All-to-alls by group."""
    return result.frames.get("nccl_summary_all2allv")


@sheet("overlap", columns=RANK_SETS["overlap"], order=590)
def overlap(result: Analyzed) -> pd.DataFrame | None:
    """Communication by group and collective: exposed, and what hid the rest."""
    return result.frames.get("overlap")


@sheet("pipeline_bubbles", columns=RANK_SETS["pipeline_bubbles"], order=600)
def pipeline_bubbles(result: Analyzed) -> pd.DataFrame | None:
    """One row per rank of a pipeline: computation, sends and receives, bubbles."""
    return result.frames.get("pipeline_bubbles")


@sheet("clocks", columns=RANK_SETS["clocks"], order=610)
def clocks(result: Analyzed) -> pd.DataFrame | None:
    """One row per host: its clock against the first host's."""
    return result.frames.get("clocks")


@sheet("groups", columns=RANK_SETS["groups"], order=620)
def groups(result: Analyzed) -> pd.DataFrame | None:
    """One row per process group, pair of ranks, or stream: how much of it was matched."""
    return result.frames.get("groups")


@sheet("nccl_all2allv_heatmap", columns=RANK_SETS["nccl_all2allv_heatmap"], order=630)
def nccl_all2allv_heatmap(result: Analyzed) -> pd.DataFrame | None:
    """Bytes from each rank to each other in all-to-alls."""
    return result.frames.get("nccl_all2allv_heatmap")


@sheet("nccl_all2allv", columns=RANK_SETS["nccl_all2allv"], order=640)
def nccl_all2allv(result: Analyzed) -> pd.DataFrame | None:
    """One row per matched all-to-all."""
    return result.frames.get("nccl_all2allv")


@sheet("nccl_implicit_sync", columns=RANK_SETS["nccl_implicit_sync"], order=650)
def nccl_implicit_sync(result: Analyzed) -> pd.DataFrame | None:
    """One row per matched collective."""
    return result.frames.get("nccl_implicit_sync")


@sheet("ep_long", columns=RANK_SETS["ep_long"], order=660)
def ep_long(result: Analyzed) -> pd.DataFrame | None:
    """One row per token exchange of a rank."""
    return result.frames.get("ep_long")


@sheet("nccl_long", columns=RANK_SETS["nccl_long"], order=670)
def nccl_long(result: Analyzed) -> pd.DataFrame | None:
    """One row per communication call of a rank."""
    return result.frames.get("nccl_long")
