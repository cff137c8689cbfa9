"""The traces of a job read by workers, each reduced to its summary.

Imported by every worker: what only the comparison needs, pandas above all, stays out of here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from os import PathLike
from pathlib import Path

from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.analysis.ranks.rank_files import NumberedRanks, number_ranks
from tracelens.analysis.ranks.rank_summary import RankSummary, summarize_rank
from tracelens.errors import InputError
from tracelens.executors import outcomes
from tracelens.extensions import load_extension
from tracelens.lazy.records import dataclass
from tracelens.trace.provenance import merged_ranks

#: Called with (ranks done, ranks in all).
RankProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """What the caller chose. ``extensions``: names or paths, because workers load them themselves.

    ``ep_size`` and ``ranks_per_node``: consecutive ranks of an expert-parallel group and of a host, where the traces
    do not say.
    """

    extensions: tuple[str, ...] = ()
    bundled: bool = True
    ep_size: int | None = None
    ranks_per_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadRanks:
    """Summaries by rank and the files they are of; ``failed``: (file, why) of those that gave none."""

    numbered: NumberedRanks
    failed: tuple[tuple[str, str], ...]
    paths: Mapping[int, Path]


def read_ranks(
    paths: Sequence[Path], options: RankOptions, *, executor: Executor, progress: RankProgress | None = None
) -> ReadRanks:
    """The traces at ``paths``, each reduced by a worker. InputError when none can be read."""
    summaries: list[tuple[Path, RankSummary]] = []
    failed: list[tuple[str, str]] = []
    for done, outcome in enumerate(outcomes(executor, functools.partial(summarize_path, options=options), paths), 1):
        if outcome.value is not None:
            summaries += [(outcome.item, summary) for summary in outcome.value]
        else:
            failed.append((outcome.item.name, outcome.error.removeprefix(outcome.item.name).lstrip(": ")))
        if progress is not None:
            progress(done, len(paths))
    failed.sort()
    if not summaries:
        raise InputError("; ".join(f"{file}: {why}" for file, why in failed[:3]) or "there are no traces")
    numbered = number_ranks(summaries)
    path_of = {id(summary): path for path, summary in summaries}
    return ReadRanks(
        numbered=numbered,
        failed=tuple(failed),
        paths={rank: path_of[id(summary)] for rank, summary in numbered.ranks.items()},
    )


def summarize_path(path: str | PathLike[str], options: RankOptions) -> tuple[RankSummary, ...]:
    """What a worker does: one trace file, read and reduced, as each of the ranks that it holds. Errors as ``load``."""
    chosen = AnalysisOptions(
        extensions=tuple(load_extension(spec) for spec in options.extensions), bundled=options.bundled
    )
    trace = load(path)
    merged = merged_ranks(trace.table, trace.tree)
    if merged is None:
        return (summarize_rank(trace, chosen),)
    # Ranks that no process names are numbered by their first appearance, in the file as elsewhere
    return tuple(
        replace(summarize_rank(Trace.of(merged.table(trace.table, number)), chosen), rank=number)
        for number in merged.numbers
    )
