"""A job of many ranks compared: every frame of the multi-rank report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pandas as pd

from tracelens.analysis.ranks import matching
from tracelens.analysis.ranks.matching import Clocks, JobCalls, align_clocks, match_calls
from tracelens.analysis.ranks.rank_files import RankOptions, RankProgress, ReadRanks, read_ranks
from tracelens.analysis.ranks.rank_summary import CommunicationCall, RankSummary, ranks_text
from tracelens.analysis.ranks.rank_times import DeviceUse, JobContext
from tracelens.analysis.verdict.summary import Notice
from tracelens.errors import InputError, NothingToAnalyzeError
from tracelens.files.executors import PROCESSES, open_executor
from tracelens.trace.reading.read import PowerLog, read_device_logs
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_US


class RanksAnalysis(Record, frozen=True, kw_only=True, eq=False):
    """Frames by title and their sources; ``calls`` on the first host's clock, ``devices`` as a log says by rank."""

    name: str
    ranks: Mapping[int, RankSummary]
    world_size: int | None
    calls: JobCalls
    clocks: Clocks
    frames: dict[str, pd.DataFrame]
    notices: tuple[Notice, ...]
    devices: Mapping[int, DeviceUse]

    @property
    def typical_skew_us(self) -> float:
        """Median over the matched calls of latest less earliest start: the effect that clocks must be better than."""
        found = matching.instances(self.calls)
        skew = (found.latest_start - found.earliest_start)[found.present > 1]
        return float(np.median(skew)) / NS_PER_US if len(skew) else 0.0


def compare_ranks(
    paths: Sequence[Path],
    options: RankOptions | None = None,
    *,
    executor: Executor | None = None,
    progress: RankProgress | None = None,
    name: str = "",
) -> RanksAnalysis:
    """The comparison of the traces at ``paths``, one per rank, each read by a worker of ``executor``.

    None: processes, one per core. A file that cannot be read, or whose worker dies, costs that rank and is named in
    ``notices``. InputError when none can be read; NothingToAnalyzeError when no trace holds communication.
    """
    options = options or RankOptions()
    if executor is None:
        with open_executor(PROCESSES) as own:
            return compare_ranks(paths, options, executor=own, progress=progress, name=name)
    return analyze_ranks(read_ranks(paths, options, executor=executor, progress=progress), options, name=name)


def analyze_ranks(read: ReadRanks, options: RankOptions, *, name: str = "") -> RanksAnalysis:
    """The comparison of summaries. NothingToAnalyzeError when none of them holds communication."""
    ranks = read.numbered.ranks
    are_logs = any(summary.log is not None for summary in ranks.values())
    if not are_logs and not any(len(summary.start) for summary in ranks.values()):
        raise NothingToAnalyzeError(
            f"no NCCL, RCCL, gloo, DeepEP or custom collective in {len(ranks)} "
            f"{'trace' if len(ranks) == 1 else 'traces'}: for a program without communication use 'tracelens report'"
        )
    calls = match_calls(ranks, ep_size=options.ep_size)
    if are_logs:
        from tracelens.analysis.ranks.job_logs import ended_together

        calls, clocks = ended_together(calls, ranks)
    else:
        calls, clocks = align_clocks(calls, ranks, options.ranks_per_node)
    devices, said = _used_devices(ranks, options.device_logs)
    job = JobContext(ranks=ranks, calls=calls, clocks=clocks, devices=devices)
    return RanksAnalysis(
        name=name,
        ranks=ranks,
        world_size=read.numbered.world_size,
        calls=calls,
        clocks=clocks,
        devices=devices,
        frames=_of_logs(job.frames) if are_logs else dict(job.frames),
        notices=(*_notices(read, calls, clocks, job.found), *said),
    )


def _used_devices(ranks: Mapping[int, RankSummary], paths: Sequence[Path]) -> tuple[dict[int, DeviceUse], list[Notice]]:
    """By rank what logs say of its device, and why not: with several hosts a log's file name must hold the host's."""
    logs: dict[Path, dict[int, PowerLog]] = {}
    wrong: dict[str, list[int]] = {}
    for path in paths:
        try:
            logs[path] = read_device_logs(path)
        except InputError as error:
            wrong[str(error)] = []
    own: dict[tuple[Path, int], list[int]] = {}
    for rank, summary in ranks.items():
        if (key := _device_of(summary, logs)) is not None:
            own.setdefault(key, []).append(rank)
        elif logs:
            wrong.setdefault("the logs of devices do not say which device is that of", []).append(rank)
    found = {}
    for (path, device), those in own.items():
        if len(those) > 1:
            wrong.setdefault(f"device {device} of {path.name} would be that of several:", []).extend(those)
            continue
        start, end = int(ranks[those[0]].start.min()), int(ranks[those[0]].end.max())
        try:
            found[those[0]] = _use_of(logs[path][device].during(start, end), start, end)
        except InputError as error:
            wrong.setdefault(str(error), [])
    texts = [f"{text} rank{'s' * (len(those) > 1)} {ranks_text(those)}" if those else text
             for text, those in wrong.items()]  # fmt: skip
    return found, [Notice(id="device_log", count=max(len(those), 1), text=text)
                   for text, those in zip(texts, wrong.values(), strict=True)]  # fmt: skip


def _device_of(summary: RankSummary, logs: Mapping[Path, Mapping[int, PowerLog]]) -> tuple[Path, int] | None:
    named = [path for path in logs if summary.host and summary.host in path.name] or list(logs)
    if len(named) == 1 and len(summary.start) and summary.device is not None and summary.device in logs[named[0]]:
        return named[0], summary.device
    return None


def _use_of(log: PowerLog, start: int, end: int) -> DeviceUse:
    within = (log.time_ns >= start) & (log.time_ns <= end)
    watts, clocks = log.power_w[within], log.clocks(start, end)
    watts = watts[~np.isnan(watts)]
    return DeviceUse(power_w=float(watts.mean()) if len(watts) else None,
                     clock_mhz=float(clocks.mean()) if len(clocks) else None)  # fmt: skip


#: Sheets that logs of collectives alone answer, and their columns that they do not.
_OF_CALLS: Mapping[str, tuple[str, ...]] = {
    "ranks": ("host", "total_us", "computation_us", "exposed_comm_us", "total_comm_us", "idle_us"),
    "unended": (), "straggler_summary": (), "groups": (), "nccl_summary_implicit_sync": (), "nccl_summary_long": (),
    "nccl_implicit_sync": ("end_skew_us",), "nccl_long": ("start_us", "exposed_us"), "nccl_all2allv": (),
    "nccl_summary_all2allv": (), "nccl_all2allv_heatmap": (),
}  # fmt: skip


def _of_logs(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Of logs of collectives alone: nothing of computation, steps and idle time, nor when a call began."""
    found = {title: frame if title in _OF_CALLS else frame.iloc[:0] for title, frame in frames.items()}
    for title, unknown in _OF_CALLS.items():
        if not found[title].empty:
            found[title] = found[title].assign(**dict.fromkeys(unknown))
    return found


def _notices(read: ReadRanks, calls: JobCalls, clocks: Clocks, found: matching.Instances) -> Iterator[Notice]:
    numbered = read.numbered
    for identifier, files in (("rank_lost", read.failed), ("duplicate_rank", numbered.left_out)):
        if files:
            text = "; ".join(f"{file}: {why}" for file, why in files[:5])
            more = f" and {len(files) - 5} more" if len(files) > 5 else ""
            yield Notice(id=identifier, count=len(files), text=f"left out: {text}{more}")
    if numbered.missing:
        text = f"ranks without a trace: {ranks_text(numbered.missing)} of {numbered.world_size}"
        yield Notice(id="missing_rank", count=len(numbered.missing), text=text)
    if numbered.how.startswith("parallel"):
        yield Notice(id="rank_numbering", count=len(numbered.ranks), text=f"ranks come from {numbered.how}")
    unplaced = [clock for clock in clocks.hosts[1:] if not clock.via]
    if unplaced:
        text = (
            f"no shared collective aligns the clock of {', '.join(c.host for c in unplaced[:5])}; times are as recorded"
        )
        yield Notice(id="clock_unplaced", count=len(unplaced), text=text)
    yield from _other_steps(numbered.ranks)
    if len(calls.ranks) > 1:
        yield from _unmatched(calls, found)
    yield from _ungrouped(calls)
    if any(summary.log is not None for summary in numbered.ranks.values()):
        from tracelens.analysis.ranks.job_logs import said_of_logs

        yield from (Notice(id="job_log", count=1, text=text) for text in said_of_logs(numbered.ranks))


def _other_steps(ranks: Mapping[int, RankSummary]) -> Iterator[Notice]:
    """Ranks that recorded none of the steps that most of them did."""
    steps = {rank: frozenset(summary.step_number[summary.step_number >= 0].tolist()) for rank, summary in ranks.items()}
    usual = Counter(own for own in steps.values() if own).most_common(1)
    other = [rank for rank, own in steps.items() if own and own.isdisjoint(usual[0][0])] if usual else []
    if other:
        own = ranks_text(sorted(frozenset().union(*(steps[rank] for rank in other))))
        text = (
            f"rank{'s' if len(other) > 1 else ''} {ranks_text(other)} recorded steps {own}, the others "
            f"{ranks_text(sorted(usual[0][0]))}: who waits for whom is known only in shared steps"
        )
        yield Notice(id="other_steps", count=len(other), text=text)


def _unmatched(calls: JobCalls, found: matching.Instances) -> Iterator[Notice]:
    """Calls whose counterparts on other ranks, some or all, are not in the traces."""
    without = (calls.instance < 0) | (found.present[calls.instance] == 1 if len(found.present) else False)
    alone = int(without.sum())
    if alone:
        by_rank = np.bincount(calls.rank[without], minlength=len(calls.ranks))
        most = int(by_rank.argmax())
        count = "all" if by_rank[most] == alone else f"{by_rank[most]:,}"
        of_one = f", {count} of rank {calls.ranks[most]}" if 2 * by_rank[most] > alone else ""
        text = f"{alone:,} of {len(calls.start):,} communication calls have no counterpart on another rank{of_one}"
        yield Notice(id="unmatched_calls", count=alone, text=text)
    sizes = [calls.channels[channel].size or 0 for channel in calls.channel_of.tolist()]
    partial = int(((found.present > 1) & (found.present < sizes)).sum()) if sizes else 0
    if partial:
        text = (
            f"{partial:,} collectives lack ranks of their group, so waits and bandwidths cover only the recorded ranks"
        )
        yield Notice(id="partial_collective", count=partial, text=text)


def _ungrouped(calls: JobCalls) -> Iterator[Notice]:
    """Calls without a process group, those that borrow one, and those of them that show no bandwidth."""
    of_stream, blank = _counted(calls, lambda message: message.is_group_of_stream)
    if of_stream:
        text = f"{_of(of_stream, calls, 'lack their process group')}: that of the other calls of their stream is used"
        text += f"; {_without_bandwidth(blank, of_stream, calls)}" if blank else ""
        yield Notice(id="group_of_stream", count=of_stream, text=text)
    ungrouped, unsized = _counted(calls, lambda message: message.group is None and not message.is_exchange)
    if ungrouped:
        is_every = all(message.group is None and not message.is_exchange for message in calls.messages)
        which = "no process groups were recorded" if is_every else _of(ungrouped, calls, "have no process group")
        said = [_without_bandwidth(unsized, ungrouped, calls)] if unsized else []
        if unsized < ungrouped:
            said.append("bandwidth assumes that the group is the whole job")
        if len(calls.ranks) > 1:
            said.insert(0, "calls that end together are paired")
        text = f"{which}: {'; '.join(said)}"
        yield Notice(id="group_unknown", count=ungrouped, text=text)


def _counted(calls: JobCalls, are: Callable[[CommunicationCall], bool]) -> tuple[int, int]:
    """(calls that are such, those of them whose group's size or bytes are not known)."""
    such = np.array([are(m) for m in calls.messages] or [False], bool)
    blank = np.array([m.size is None or m.in_bytes is None for m in calls.messages] or [False], bool)
    return int(such[calls.message].sum()), int((such & blank)[calls.message].sum())


def _without_bandwidth(unsized: int, ungrouped: int, calls: JobCalls) -> str:
    if unsized < ungrouped:
        return _of(unsized, calls, "have no bandwidth")
    rest = len(calls.start) - ungrouped
    return f"bandwidths cover only the other {rest:,}" if rest else "bandwidth is unknown"


def _of(count: int, calls: JobCalls, what: str) -> str:
    return f"{count:,} of {len(calls.start):,} communication calls {what}"
