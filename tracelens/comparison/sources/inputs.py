"""What a user may compare: a trace, a report, a baseline, or a folder of the ranks or the runs of one thing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tracelens.analysis.loaded_trace import Options, load
from tracelens.analysis.ranks.rank_files import find_traces
from tracelens.comparison.inputs import read_report
from tracelens.comparison.sides import Recorded, Side
from tracelens.comparison.sources.stored_side import PREFIX, baseline_path, is_stored, read_side
from tracelens.comparison.sources.traced_side import recorded_ranks
from tracelens.errors import InputError
from tracelens.files.documents import is_report


def side_of(given: str | Path, options: Options, baselines: Path | None = None) -> Side:
    """A path, or ``baseline:NAME``. InputError for what cannot be read, NothingToAnalyzeError without device work."""
    if str(given).startswith(PREFIX):
        return read_side(baseline_path(str(given).removeprefix(PREFIX), baselines or Path()))
    path = Path(given)
    if path.suffix == ".xlsx" and path.is_file():
        path = _document_beside(path)
    report = path / "report.json" if (path / "report.json").is_file() else path
    if is_report(report):
        return read_report(report, path.name or str(path))
    if path.is_file() and is_stored(path):
        return read_side(path)
    found = [one for file in find_traces([str(path)]) for one in recorded_ranks(load(file), options)]
    return Side(name=path.name or str(path), parts=_runs(found))


def _document_beside(workbook: Path) -> Path:
    """The report.json of a report's folder or of ``NAME.xlsx``. InputError where there is none."""
    for document in (workbook.with_name("report.json"), workbook.with_suffix(".json")):
        if is_report(document):
            return document
    raise InputError(
        f"{workbook} is a workbook without a report.json beside it: give the report's folder, or its trace"
    )


def _runs(found: Sequence[Recorded]) -> tuple[tuple[Recorded, ...], ...]:
    """Files of different ranks are one run; the n-th files of every rank the n-th run."""
    by_rank: dict[int | None, list[Recorded]] = defaultdict(list)
    for one in found:
        by_rank[one.rank].append(one)
    most = max(len(files) for files in by_rank.values())
    ranks = sorted(by_rank, key=lambda rank: -1 if rank is None else rank)
    return tuple(tuple(by_rank[rank][n] for rank in ranks if n < len(by_rank[rank])) for n in range(most))
