"""Which files are the ranks of a job, which rank each one is, and their summaries, each read by a worker.

Imported by every worker: what only the comparison needs, pandas above all, stays out of here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from os import PathLike
from pathlib import Path

from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.analysis.ranks.rank_summary import RankSummary, summarize_rank
from tracelens.errors import InputError, UsageError
from tracelens.extensions import load_extension
from tracelens.files.executors import outcomes
from tracelens.trace.provenance import merged_ranks
from tracelens.trace.reading.read import is_device_log, is_job_log
from tracelens.trace.reading.source import is_trace
from tracelens.types.records import Record

_DIGITS = re.compile(r"(\d+)")
# TP-0-DP-1-PP-0-EP-0 (SGLang), dp0_pp1_tp0_dcp0_ep0 (vLLM): the outermost degree first.
_DEGREES = ("pp", "dp", "pcp", "ep", "cp", "tp", "dcp")
_COORDINATE = re.compile(rf"(?<![a-z])({'|'.join(_DEGREES)})[-_]?(\d+)(?!\d)", re.IGNORECASE)


class NumberedRanks(Record, frozen=True, kw_only=True):
    """Summaries by rank, and what has to be said about how they came by it.

    ``left_out``: (file, why) of traces whose rank another file already is. ``missing``: ranks of the job without a
    trace; None where the job's size is not known. ``how``: what the ranks were read from.
    """

    ranks: dict[int, RankSummary]
    left_out: tuple[tuple[str, str], ...]
    missing: tuple[int, ...] | None
    world_size: int | None
    how: str


def find_traces(given: Iterable[str]) -> list[Path]:
    """Trace files of files, folders (any depth) and globs, each once, in natural order. InputError for none."""
    found: dict[Path, None] = {}
    for text in given:
        path = Path(text)
        try:
            if path.is_dir():
                files = _in_folder(path)
            elif path.exists():
                files = [path]
            else:
                pattern = str(path.relative_to(path.anchor))
                files = [f for f in Path(path.anchor or ".").glob(pattern) if f.is_file()] if text else []
        except (OSError, ValueError) as error:
            raise InputError(f"cannot search for traces at {text!r}: {error}") from error
        if not files:
            raise InputError(f"no trace found at {text!r}: a trace's name ends in .json, .json.gz ...")
        found |= dict.fromkeys(sorted(files, key=_natural))
    return list(found)


def find_logs_of_devices(given: Iterable[str], traces: Sequence[Path]) -> tuple[list[Path], tuple[Path, ...]]:
    """(the traces that are no log of devices, the logs among them and in the folders that were given)."""
    inside = (file for text in given if Path(text).is_dir() for file in sorted(Path(text).rglob("*.csv")))
    logs = tuple(dict.fromkeys(f for f in (*traces, *inside) if not _is_report(f) and is_device_log(f)))
    left = [path for path in traces if path not in logs]
    if not left:
        raise InputError(f"{logs[0].name} is a log of devices: give it with the traces of the job's ranks")
    return left, logs


def _in_folder(path: Path) -> list[Path]:
    """Traces; where there are none, logs of the job's collectives, which end in anything."""
    inside = [f for f in path.rglob("*") if f.is_file() and not _is_report(f)]
    return [f for f in inside if is_trace(f)] or [f for f in inside if is_job_log(f)]


def job_folder(given: str | PathLike[str], paths: Sequence[Path]) -> Path:
    """What a job is named after: the folder that was given, else that of the first trace."""
    first = Path(given)
    return (first if first.is_dir() else paths[0].parent).absolute()


def number_ranks(summaries: Iterable[tuple[Path, RankSummary]]) -> NumberedRanks:
    """Every summary under its rank: what the trace or its file name says, else parallel coordinates in the file name.

    Of two traces of one rank the one with more communication calls is used (then the first by name); the other is
    named. InputError when a trace says nothing at all about its rank while there are several.
    """
    entries = sorted(summaries, key=lambda entry: _natural(entry[0]))
    known: list[tuple[int, Path, RankSummary]] = []
    placed: list[tuple[tuple[int, ...], Path, RankSummary]] = []
    for path, summary in entries:
        if summary.rank is not None:
            known.append((summary.rank, path, summary))
        elif found := {key.lower(): int(value) for key, value in _COORDINATE.findall(path.name)}:
            placed.append((tuple(found.get(degree, 0) for degree in _DEGREES), path, summary))
        elif len(entries) == 1:
            known.append((0, path, summary))
        else:
            raise InputError(
                f"the rank of {path.name} is unknown: it has no distributedInfo, and its name has no rank0, rank-0, "
                f"rank[0] or TP-0; to report on it alone, use tracelens report {path}"
            )
    how = "the traces or their file names"
    if placed:
        order = {place: rank for rank, place in enumerate(sorted({place for place, _, _ in placed}))}
        known += [(order[place], path, summary) for place, path, summary in placed]
        how = f"parallel coordinates in the file names, numbered in the order {', '.join(_DEGREES)}"
    return _numbered(known, how)


def _numbered(known: Iterable[tuple[int, Path, RankSummary]], how: str) -> NumberedRanks:
    ranks: dict[int, RankSummary] = {}
    left_out = []
    for rank, path, summary in sorted(known, key=lambda entry: (entry[0], -len(entry[2].start), _natural(entry[1]))):
        if rank in ranks:
            left_out.append((path.name, f"rank {rank} is already {ranks[rank].source}"))
        else:
            ranks[rank] = summary
    sizes = {s.world_size for s in ranks.values() if s.world_size is not None}
    world_size = max(sizes, default=None)
    missing = None if world_size is None else tuple(rank for rank in range(world_size) if rank not in ranks)
    return NumberedRanks(ranks=ranks, left_out=tuple(left_out), missing=missing, world_size=world_size, how=how)


def parse_ranks(text: str) -> frozenset[int]:
    """``0-3,8`` as ranks; UsageError for anything else."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise UsageError(f"ranks are numbers and ranges like 0-3,8; got {text!r}")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def _is_report(path: Path) -> bool:
    return any(part.endswith(".report") for part in path.parts)


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(str(path))]


#: Called with (ranks done, ranks in all).
RankProgress = Callable[[int, int], None]


class RankOptions(Record, frozen=True, kw_only=True):
    """What the caller chose. ``extensions``: names or paths, because workers load them themselves.

    ``ep_size`` and ``ranks_per_node``: consecutive ranks of an expert-parallel group and of a host, where the traces
    do not say. ``device_logs``: of the power and clocks of the ranks' devices.
    """

    extensions: tuple[str, ...] = ()
    bundled: bool = True
    ep_size: int | None = None
    ranks_per_node: int | None = None
    device_logs: tuple[Path, ...] = ()


class ReadRanks(Record, frozen=True, kw_only=True, eq=False):
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
    if any(summary.log is not None for _, summary in summaries):
        from tracelens.analysis.ranks.job_logs import placed

        summaries = placed(summaries)
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
    if is_job_log(Path(path)):
        from tracelens.analysis.ranks.job_logs import read_job_log

        return read_job_log(Path(path))
    trace = load(path)
    merged = merged_ranks(trace.table, trace.tree)
    if merged is None:
        return (summarize_rank(trace, chosen),)
    # Ranks that no process names are numbered by their first appearance, in the file as elsewhere
    return tuple(
        replace(summarize_rank(Trace.of(merged.table(trace.table, number)), chosen), rank=number)
        for number in merged.numbers
    )
