"""Many traces into a lake: one task per trace through any executor, each trace's tables written whole or not at all.

A trace's part is a folder of one Parquet file per table, below folders that say where it comes from as Hive names them:
``parts/run=.../rank=.../date=.../git_revision=.../tag=.../trace_device=.../NAME-DIGEST``. It is made under another name
and moved into place, so that a run that is killed leaves whole parts only, and the next one goes on with the others.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tracelens.analysis.sheets import columns_of
from tracelens.analysis.tables import Tables, built_in_tables
from tracelens.errors import InputError, OutputError, UsageError
from tracelens.files.atomic_write import whole_folder, write_whole
from tracelens.files.executors import outcomes
from tracelens.files.memory_limit import before_reading
from tracelens.files.safe_text import trace_name
from tracelens.files.sql import merge_files, query_files, typed
from tracelens.trace.reading.read import is_job_log
from tracelens.types.records import Record, pd

if TYPE_CHECKING:
    from tracelens.analysis.analyze import Analysis

MARK, PARTS, MERGED, _MAKING = "lake.json", "parts", "merged", "making"
SCHEMA = "tracelens.lake/4"
#: What every row of a lake begins with: where it comes from.
ORIGIN = columns_of("(lake)")
_REVISIONS, _TAGS = ("git_revision", "git_commit", "git_sha"), ("tag", "git_tag")
#: The columns that folders stand for, as Hive, Spark, pandas and DuckDB read them; the others stand in the files.
PARTITIONS = {key: column for key, column in ORIGIN.items() if key != "trace"}
_ALL_PARTS = "/".join("*" * (len(PARTITIONS) + 1))
#: Of a table's parts together; larger ones are read as they are: their rows cost a query more than their number.
_MOST_MERGED_BYTES = 10**9
#: What Hive calls a value that is not there.
_NULL = "__HIVE_DEFAULT_PARTITION__"
#: Characters of a partition's value, each of which takes up to 3 in a folder's name, of at most 255.
_LONGEST = 80


class IngestTask(Record, frozen=True, kw_only=True):
    """One trace, the name of its part, and the older parts of that file, which it replaces."""

    trace: str
    name: str
    part: str
    lake: str
    outdated: tuple[str, ...] = ()


class Ingested(Record, frozen=True, kw_only=True):
    """What became of the traces: how many were there, how many are new, (path, why) of those left out."""

    known: int
    added: int
    failed: tuple[tuple[str, str], ...]


def ingest(
    folder: Path, lake: Path, executor: Executor, *, progress: Callable[[int, int], None] | None = None
) -> Ingested:
    """Every trace below ``folder`` that the lake does not have. A trace that cannot be read costs itself only.

    InputError where there is no trace, UsageError where ``lake`` is something else.
    """
    _parquet()
    if not lake.absolute().parent.is_dir():
        raise OutputError(f"cannot write {lake}: there is no folder {lake.absolute().parent}")
    if lake.exists() and not is_lake(lake) and not _is_begun(lake):
        raise UsageError(f"{lake} exists and is not a lake; choose another folder with --to")
    lake.mkdir(exist_ok=True)
    write_whole(lake / MARK, json.dumps({"schema": SCHEMA, "tables": list(built_in_tables())}) + "\n")
    (lake / PARTS).mkdir(exist_ok=True)
    _clear(lake / _MAKING)
    tasks, known = _tasks(folder, lake)
    if not tasks and not known:
        raise InputError(f"no trace found in {folder} (a name that ends in .json, .json.gz ...)")
    failed: list[tuple[str, str]] = []
    for done, outcome in enumerate(outcomes(executor, ingest_one, tasks), 1):
        if outcome.error:
            failed.append((outcome.item.name, outcome.error))
        if progress is not None:
            progress(done, len(tasks))
    _clear(lake / _MAKING)
    _merge(lake)
    return Ingested(known=known, added=len(tasks) - len(failed), failed=tuple(sorted(failed)))


def _merge(lake: Path) -> None:
    """One file per table beside the parts, whose number would cost a query more than their rows do; nothing if done."""
    parts = sorted(path.relative_to(lake).as_posix() for path in (lake / PARTS).glob(_ALL_PARTS))
    state = {"parts": len(parts), "digest": _digest("\n".join(parts))}
    if state.items() <= _merged(lake).items():
        return
    with whole_folder(lake / MERGED) as folder:
        tables = [
            name
            for name, pattern in _files_of_parts().items()
            if 0 < sum(path.stat().st_size for path in lake.glob(pattern)) <= _MOST_MERGED_BYTES
            and merge_files(pattern, lake.resolve(), folder.resolve() / f"{name}.parquet", PARTITIONS)
        ]
        (folder / MARK).write_text(json.dumps({**state, "tables": tables}) + "\n")


def _merged(lake: Path) -> dict[str, Any]:
    """Which parts are merged, and the tables whose rows are."""
    before_reading(lake / MERGED / MARK)
    try:
        found: dict[str, Any] = json.loads((lake / MERGED / MARK).read_bytes())
    except (OSError, ValueError):
        return {"tables": []}
    return found


def _files_of_parts() -> dict[str, str]:
    return {name: f"{PARTS}/{_ALL_PARTS}/{name}.parquet" for name in built_in_tables()}


def _tasks(folder: Path, lake: Path) -> tuple[list[IngestTask], int]:
    """(what is to be read, how many traces the lake has)."""
    from tracelens.analysis.ranks.rank_files import find_traces

    parts = {path.name: path for path in (lake / PARTS).glob(_ALL_PARTS)}
    of_file: dict[str, list[str]] = {}
    for name, path in parts.items():
        of_file.setdefault(name.rpartition("-")[0], []).append(str(path))
    tasks, known = [], 0
    for path in find_traces([str(folder)]):
        if path.resolve().is_relative_to(lake.resolve()):
            continue
        part = _part(path)
        if part in parts:
            known += 1
            continue
        name, outdated = path.relative_to(folder).as_posix(), tuple(of_file.get(part.rpartition("-")[0], ()))
        tasks.append(IngestTask(trace=str(path), name=name, part=part, lake=str(lake.absolute()), outdated=outdated))
    return tasks, known


def ingest_one(task: IngestTask) -> str:
    """Writes the part of one trace; its name. In a worker."""
    tables, origin = _logged(task) if is_job_log(Path(task.trace)) else _analyzed(task)
    staging = Path(task.lake) / _MAKING / f"{task.part}.{os.getpid()}"
    staging.mkdir(parents=True)
    try:
        for name, frame in tables.items():
            _write(staging / f"{name}.parquet", frame.drop(columns=[*ORIGIN], errors="ignore"), task.name)
        folder = Path(task.lake, PARTS, *(f"{key}={_folder_text(origin[key])}" for key in PARTITIONS))
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # another process was first with the same
            staging.rename(folder / task.part)
        for outdated in task.outdated:
            shutil.rmtree(outdated, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return task.part


def _analyzed(task: IngestTask) -> tuple[Mapping[str, pd.DataFrame], dict[str, Any]]:
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.loaded_trace import AnalysisOptions, load

    trace = load(task.trace)
    analysis = analyze(trace, AnalysisOptions(cpu=not trace.table.has_device_events), on_demand=True)
    return Tables(analysis), origin_of(analysis, task.name)


def _logged(task: IngestTask) -> tuple[Mapping[str, pd.DataFrame], dict[str, Any]]:
    """Of a log of a job's collectives; the tables that it does not answer are empty."""
    from tracelens.analysis.ranks.job_logs import logged_tables

    summary, made = logged_tables(Path(task.trace))
    tables = {name: typed(made.get(name), claim.options["columns"]) for name, claim in built_in_tables().items()}
    began = made["traces"]["began"].iloc[0]
    run = task.name.rpartition("/")[0] or trace_name(task.name)
    return tables, dict.fromkeys(PARTITIONS) | {"run": run, "rank": summary.rank, "date": began and began[:10]}


def origin_of(analysis: Analysis, name: str) -> dict[str, Any]:
    """Where a trace comes from, by column of ``PARTITIONS``; ``name``: its path below the ingested folder."""
    table, device = analysis.trace.table, analysis.device
    began_ns = table.began_ns

    def said(keys: tuple[str, ...]) -> str | None:
        return next((text for key in keys if isinstance(text := table.metadata.get(key), str) and text), None)

    return {
        # Ranks of a job stand in one folder
        "run": name.rpartition("/")[0] or trace_name(name),
        "rank": table.rank,
        "date": None if began_ns is None else datetime.fromtimestamp(began_ns / 1e9, UTC).strftime("%Y-%m-%d"),
        "git_revision": said(_REVISIONS),
        "tag": said(_TAGS),
        "trace_device": None if device is None else device.name,
    }


def _folder_text(value: str | int | None) -> str:
    """``value`` as one folder's name; the end of a long one is a digest of all of it."""
    if value is None:
        return _NULL
    value = str(value)
    if len(value.encode()) > _LONGEST:
        head = value.encode()[: _LONGEST - 9].decode(errors="ignore")
        value = f"{head}~{hashlib.sha256(value.encode()).hexdigest()[:8]}"
    return quote(value, safe="")


def _write(path: Path, frame: pd.DataFrame, trace: str) -> None:
    pa, pq = importlib.import_module("pyarrow"), _parquet()
    kinds = {"Int64": pa.int64(), "boolean": pa.bool_(), "float64": pa.float64()}
    columns = [pa.array(frame[key], kinds.get(str(frame.dtypes[key]), pa.string())) for key in frame.columns]
    rows = pa.table([pa.array([trace] * len(frame), pa.string()), *columns], ["trace", *frame.columns])
    pq.write_table(rows, path, compression="zstd")


def _clear(making: Path) -> None:
    """Removes what runs that were killed left, and the folder unless another run works there."""
    for left in making.glob("*"):
        if not _is_running(left.suffix[1:]):
            shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):
        making.rmdir()


def _is_running(pid: str) -> bool:
    """Whether there is another process of that number here; False where the system does not tell."""
    if os.name != "posix" or not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _is_begun(folder: Path) -> bool:
    """Whether it is an empty folder, or another ``ingest`` writes its mark there now."""
    begun = f".{MARK.removesuffix('.json')}."
    return folder.is_dir() and (is_lake(folder) or all(entry.name.startswith(begun) for entry in folder.iterdir()))


def is_lake(folder: Path) -> bool:
    """Whether ``ingest`` wrote this folder; UsageError where an earlier version did."""
    before_reading(folder / MARK)
    try:
        schema = str(json.loads((folder / MARK).read_bytes())["schema"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if schema != SCHEMA and schema.startswith("tracelens.lake/"):
        raise UsageError(f"{folder} is a {schema}, whose tables were others: ingest its traces into a new folder")
    return schema == SCHEMA


def ask(lake: Path, statement: str) -> pd.DataFrame:
    """What one SELECT over the tables of a lake answers, as the last ingest that ended left it."""
    merged = {name: f"{MERGED}/{name}.parquet" for name in _merged(lake)["tables"]}
    files, axes = {**_files_of_parts(), **merged}, (resources.files(__package__) / "axes.sql").read_text()
    return query_files(files, lake.resolve(), statement, PARTITIONS, {"axes": axes})


def parts_of(lake: Path) -> int:
    """How many traces a lake holds, also one that is being written."""
    return sum(1 for _ in (lake / PARTS).glob(_ALL_PARTS))


def _part(trace: Path) -> str:
    """Which file it is, then which state of it: its size and time of change."""
    stat = trace.stat()
    place = _digest(os.path.abspath(trace))  # noqa: PTH100 - a link is a trace of its own
    safe = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in trace.name)[:60]
    return f"{safe}-{place}-{_digest(f'{stat.st_size} {stat.st_mtime_ns}')}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("a lake needs pyarrow: pip install 'tracelens-perf[lake]'") from None
