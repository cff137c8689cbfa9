"""Many ranks in one Perfetto file: clocks and counter tracks from the analysis, writing by ``trace.rewriting``."""

from __future__ import annotations

from collections.abc import Iterator, Set
from os import PathLike

import numpy as np

from tracelens.analysis.attribution.activity import device_activity
from tracelens.analysis.attribution.calls import unified_calls, with_communicating_ops
from tracelens.analysis.intervals import Floats, Ints
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, active_extensions, load
from tracelens.analysis.ranks.matching import Clocks, HostClock, align_clocks, match_calls
from tracelens.analysis.ranks.rank_files import RankOptions, ReadRanks
from tracelens.analysis.ranks.rank_summary import NOTIFY, CommunicationCall, RankSummary, ranks_text
from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.reading.op_readings import read_ops
from tracelens.errors import UsageError
from tracelens.extensions import load_extension
from tracelens.perf_models.collective import Collective
from tracelens.trace.rewriting import CounterTrack, EventFilter, Fused, FusedRank, fuse
from tracelens.types.dtypes import DType

#: Values of a track; a bin is at least ``_LEAST_BIN_NS`` long.
_BINS, _LEAST_BIN_NS = 1000, 20_000


def rank_counters(trace: Trace, summary: RankSummary, options: AnalysisOptions) -> tuple[CounterTrack, ...]:
    """The tracks of one rank, on the table's own clock; none without device events.

    Work counts where it is known: FLOPs of calls with a perf model, spread over the kernels of the call; bytes that a
    collective must send or an exchange is expected to, over its whole duration, waiting included.
    """
    table, tree = trace.table, trace.tree
    catalog = Catalog(active_extensions(table.names, options))
    activity = device_activity(table, tree, catalog.kernel_patterns)
    if not len(activity):
        return ()
    first, last = int(activity.start.min()), int(activity.end.max())
    width = max(_LEAST_BIN_NS, -(-(last - first) // _BINS))
    edges = np.arange(first, last + width, width, dtype=np.int64)
    if len(edges) < 2:
        edges = np.array([first, first + width], np.int64)

    callers, readings = read_ops(trace, catalog, activity)
    calls, _ = unified_calls(table, with_communicating_ops(activity, callers, readings), readings, callers)
    flops_of_code = np.array([0 if r.model is None else r.model.flops() or 0 for r in readings.readings] or [0], float)
    code = readings.code_of(calls.row)
    flops = np.where((code >= 0) & (calls.kernel_name < 0), flops_of_code[np.maximum(code, 0)], 0.0)
    duration = activity.duration[calls.events]
    total = np.bincount(calls.call_of_event, weights=duration, minlength=len(flops))
    rate = (flops / np.maximum(total, 1))[calls.call_of_event]
    computed = _per_bin(activity.start[calls.events], activity.end[calls.events], rate, edges)

    order = np.argsort(activity.start, kind="stable")
    start, end = activity.start[order], np.maximum.accumulate(activity.end[order])
    start = np.maximum(start, np.concatenate((start[:1], end[:-1])))
    busy = _per_bin(start, np.maximum(start, end), np.ones(len(start), np.float64), edges)

    base = table.base_ns
    sent = _per_bin(summary.start - base, summary.end - base, _wire_rates(summary), edges)
    tracks = (("busy", "share", busy / width), ("TFLOPS/s", "TFLOPS/s", computed / width / 1e3),
              ("interconnect", "TB/s", sent / width / 1e3))  # fmt: skip
    return tuple(
        CounterTrack(name=name, unit=unit, times_ns=edges, values=np.append(values, 0.0))
        for name, unit, values in tracks
        if values.any()
    )


def _wire_rates(summary: RankSummary) -> Floats:
    """Bytes per ns of each communication call of a rank; 0 where they are not known."""
    duration = np.maximum(summary.end - summary.start, 1).astype(float)
    nbytes: Floats = np.array([_wire_bytes(m) for m in summary.messages] or [0.0], np.float64)[summary.message]
    moves = np.array([m.is_exchange and m.word != NOTIFY for m in summary.messages] or [False])[summary.message]
    of_op = np.flatnonzero(moves & (summary.op >= 0))
    if len(of_op):
        op = summary.op[of_op]
        members = summary.expert_group.ranks if summary.expert_group is not None else ()
        remote = [(kind.exchanged_bytes or 0.0, kind.remote_share(summary.rank, members)) for kind in summary.ops]
        wire = np.array([0.0 if share is None else nbytes * share.share for nbytes, share in remote], np.float64)
        wire = wire[summary.op_kind[op]]
        nbytes[of_op] = wire * duration[of_op] / np.bincount(op, weights=duration[of_op])[op]
    return nbytes / duration


def _wire_bytes(message: CommunicationCall) -> float:
    if message.elements_in is None or message.elements_out is None:
        return 0.0
    model = Collective(
        kind=message.word,
        elements_in=message.elements_in,
        elements_out=message.elements_out,
        ranks=message.size,
        dtype=DType.parse(message.dtype),
    )
    return float(model.wire_bytes() or 0.0)


def _per_bin(start: Ints, end: Ints, rate: Floats, edges: Ints) -> Floats:
    """The sum over intervals of rate times the time in each bin."""
    first = int(edges[0])

    def grown(since: Ints) -> Floats:
        """By each edge, what grew at each rate since its time."""
        order = np.argsort(since, kind="stable")
        rates = np.concatenate((np.zeros(1), np.cumsum(rate[order])))
        moments = np.concatenate(([0.0], np.cumsum(rate[order] * (since[order] - first))))
        count = np.searchsorted(since[order], edges, side="right")
        return rates[count] * (edges - first) - moments[count]

    return np.maximum(np.diff(grown(start) - grown(end)), 0.0)


def fuse_ranks(
    read: ReadRanks,
    options: RankOptions,
    path: str | PathLike[str],
    *,
    kept: EventFilter | None = None,
    wanted: Set[int] | None = None,
    align: bool = True,
    counters: bool = True,
) -> tuple[Fused, Clocks]:
    """Writes the ranks (those in ``wanted``) to ``path``, each read again when its turn comes; and the clocks used.

    UsageError when none of the wanted ranks has a trace; else as ``trace.rewriting.fuse``.
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
    loaded = AnalysisOptions(extensions=tuple(load_extension(s) for s in options.extensions), bundled=options.bundled)

    def each() -> Iterator[FusedRank]:
        for rank in chosen:
            trace = load(read.paths[rank])
            tracks = rank_counters(trace, ranks[rank], loaded) if counters else ()
            yield FusedRank(rank=rank, table=trace.table, corrected=clocks.of_rank(rank).corrected, counters=tracks)

    return fuse(each(), path, origin_ns=origin, kept=kept), clocks
