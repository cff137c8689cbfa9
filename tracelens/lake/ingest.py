"""Many traces into a lake: one task per trace through any executor, each trace's tables written whole or not at all.

A trace's part is a folder ``parts/NAME-DIGEST`` of one Parquet file per table. It is made under another name and moved
into place, so that a run that is killed leaves whole parts only, and the next one goes on with the others.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.analysis.tables import Tables, built_in_tables
from tracelens.errors import InputError, OutputError, UsageError
from tracelens.executors import outcomes
from tracelens.files.atomic_write import whole_file
from tracelens.schema import column_set, identifier, text

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.analyze import Analysis

MARK, PARTS, _MAKING = "lake.json", "parts", "making"
SCHEMA = "tracelens.lake/1"
#: What every row of a lake begins with: where it comes from.
ORIGIN = column_set(
    text("run", "run", "Folder of the trace below the ingested one; the trace's name where it has none."),
    identifier("rank", "rank", "Rank, where it is recorded or in the file's name."),
    text("date", "date", "UTC day on which recording began, as 2026-11-22; NULL where not recorded."),
    text("git_revision", "git_revision", "Revision in the trace's metadata (git_revision, git_commit, git_sha)."),
    text("trace_device", "trace_device", "Device that the trace was recognized to be from."),
    text("trace", "trace", "Path of the trace below the ingested folder."),
)
_REVISIONS = ("git_revision", "git_commit", "git_sha")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One trace, and where its part goes."""

    trace: str
    name: str
    lake: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
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
    _open_lake(lake)
    tasks, known = [], 0
    for path in _traces(folder, lake):
        task = Task(trace=str(path), name=path.relative_to(folder).as_posix(), lake=str(lake.absolute()))
        if _has(task):
            known += 1
        else:
            tasks.append(task)
    if not tasks and not known:
        raise InputError(f"no trace found in {folder} (looked for *.json and *.json.gz)")
    failed: list[tuple[str, str]] = []
    for done, outcome in enumerate(outcomes(executor, ingest_one, tasks), 1):
        if outcome.error:
            failed.append((outcome.item.name, outcome.error))
        if progress is not None:
            progress(done, len(tasks))
    shutil.rmtree(lake / _MAKING, ignore_errors=True)
    return Ingested(known=known, added=len(tasks) - len(failed), failed=tuple(sorted(failed)))


def ingest_one(task: Task) -> str:
    """Writes the part of one trace; its name. In a worker."""
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.loaded_trace import load
    from tracelens.analysis.options import Options

    trace = load(task.trace)
    analysis = analyze(trace, Options(cpu=not trace.table.has_device_events))
    part = _part(task)
    staging = Path(task.lake) / _MAKING / f"{part.name}.{os.getpid()}"
    staging.mkdir(parents=True)
    try:
        for name, frame in with_origin(analysis, task.name).items():
            _write(staging / f"{name}.parquet", frame)
        with suppress(OSError):  # another process was first with the same
            staging.rename(part)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return part.name


def with_origin(analysis: Analysis, name: str) -> dict[str, pd.DataFrame]:
    """The tables of a trace, each row with where it comes from."""
    table, device = analysis.trace.table, analysis.device
    first_ns = table.base_ns + int(table.start_ns.min()) if len(table) and table.base_ns else None
    revision = next((table.metadata[key] for key in _REVISIONS if isinstance(table.metadata.get(key), str)), None)
    origin = {
        "run": run_of(name),
        "rank": table.rank,
        "date": None if first_ns is None else datetime.fromtimestamp(first_ns / 1e9, UTC).strftime("%Y-%m-%d"),
        "git_revision": revision,
        "trace_device": None if device is None else device.name,
        "trace": name,
    }
    return {table_name: _joined(frame, origin) for table_name, frame in Tables(analysis).items()}


def run_of(name: str) -> str:
    """The folder of a trace, else its name without endings: ranks of a job stand in one folder."""
    folder, _, file = name.rpartition("/")
    return folder or file.partition(".")[0]


def _joined(frame: pd.DataFrame, origin: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd

    from tracelens.sql import typed

    rows = pd.DataFrame({key: [value] * len(frame) for key, value in origin.items()}, dtype=object)
    # A column of the same name of a table (rank of collectives) says the same
    own = frame.drop(columns=[key for key in origin if key in frame.columns])
    return pd.concat([typed(rows, ORIGIN), own.reset_index(drop=True)], axis=1)


def _write(path: Path, frame: pd.DataFrame) -> None:
    pa, pq = importlib.import_module("pyarrow"), _parquet()
    kinds = {"Int64": pa.int64(), "boolean": pa.bool_(), "float64": pa.float64()}
    fields = [pa.field(key, kinds.get(str(frame.dtypes[key]), pa.string())) for key in frame.columns]
    rows = pa.Table.from_pandas(frame, pa.schema(fields), preserve_index=False).replace_schema_metadata()
    pq.write_table(rows, path, compression="zstd")


def _open_lake(lake: Path) -> None:
    if not lake.absolute().parent.is_dir():
        raise OutputError(f"cannot write {lake}: there is no folder {lake.absolute().parent}")
    if lake.exists() and not is_lake(lake) and (not lake.is_dir() or any(lake.iterdir())):
        raise UsageError(f"{lake} exists and is not a lake; choose another folder with --to")
    (lake / PARTS).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(lake / _MAKING, ignore_errors=True)  # of a run that was killed
    with whole_file(lake / MARK) as file:
        file.write(json.dumps({"schema": SCHEMA, "tables": list(built_in_tables())}).encode() + b"\n")


def is_lake(folder: Path) -> bool:
    """Whether ``ingest`` wrote this folder."""
    try:
        return bool(json.loads((folder / MARK).read_bytes())["schema"] == SCHEMA)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def patterns() -> dict[str, str]:
    """Of each table, what its files are called below a lake."""
    return {name: f"{PARTS}/*/{name}.parquet" for name in built_in_tables()}


def _traces(folder: Path, lake: Path) -> Iterable[Path]:
    from tracelens.analysis.ranks.rank_files import find_traces

    inside = lake.resolve()
    return [path for path in find_traces([str(folder)]) if not path.resolve().is_relative_to(inside)]


def _part(task: Task) -> Path:
    """A folder that no other trace has: its path, size and time of change say which trace it is."""
    stat = Path(task.trace).stat()
    digest = hashlib.sha256(f"{task.name}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in task.name)[:80]
    return Path(task.lake) / PARTS / f"{safe}-{digest}"


def _has(task: Task) -> bool:
    return _part(task).is_dir()


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("a lake needs pyarrow: pip install 'tracelens-perf[lake]'") from None
