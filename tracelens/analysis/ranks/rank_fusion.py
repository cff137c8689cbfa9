"""Many ranks into one Perfetto file: clocks and counters from the analysis, writing by ``trace.fuse``."""

from __future__ import annotations

from collections.abc import Iterator, Set
from os import PathLike

import numpy as np

from tracelens.analysis.loaded_trace import Options, load
from tracelens.analysis.ranks.clocks import Clocks, HostClock, align_clocks
from tracelens.analysis.ranks.counters import rank_counters
from tracelens.analysis.ranks.matching import match_calls
from tracelens.analysis.ranks.parallel_reading import RankOptions, ReadRanks
from tracelens.analysis.ranks.rank_files import ranks_text
from tracelens.errors import UsageError
from tracelens.extensions import load_extension
from tracelens.trace.fuse import Fused, FusedRank, Kept, fuse


def fuse_ranks(
    read: ReadRanks,
    options: RankOptions,
    path: str | PathLike[str],
    *,
    kept: Kept | None = None,
    wanted: Set[int] | None = None,
    align: bool = True,
    counters: bool = True,
) -> tuple[Fused, Clocks]:
    """Writes the ranks (those in ``wanted``) to ``path``, each read again when its turn comes; and the clocks used.

    UsageError when none of the wanted ranks has a trace; else as ``trace.fuse.fuse``.
    """
    ranks = read.numbered.ranks
    chosen = [rank for rank in sorted(ranks) if wanted is None or rank in wanted]
    if not chosen:
        raise UsageError(f"no trace for ranks {ranks_text(wanted or ())}; there are traces for {ranks_text(ranks)}")
    if align:
        _, clocks = align_clocks(match_calls(ranks, ep_size=options.ep_size), ranks, options.ranks_per_node)
    else:
        clocks = Clocks(hosts=(HostClock(host="all", ranks=tuple(sorted(ranks))),), how="not aligned")
    origin = min(int(clocks.of_rank(rank).corrected(np.array([ranks[rank].begins_ns], np.int64))[0]) for rank in chosen)
    loaded = Options(extensions=tuple(load_extension(s) for s in options.extensions), bundled=options.bundled)

    def each() -> Iterator[FusedRank]:
        for rank in chosen:
            trace = load(read.paths[rank])
            tracks = rank_counters(trace, ranks[rank], loaded) if counters else ()
            yield FusedRank(rank=rank, table=trace.table, corrected=clocks.of_rank(rank).corrected, counters=tracks)

    return fuse(each(), path, origin_ns=origin, kept=kept), clocks
