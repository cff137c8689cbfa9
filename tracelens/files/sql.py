"""SQL over tables, by DuckDB (extra ``query``): statements that read, and nothing else.

A statement sees the tables that it is given and no file, extension, setting or Python variable.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.errors import InputError, UsageError
from tracelens.files.data_table import reason
from tracelens.files.memory_limit import command_limit, unrefused
from tracelens.types.records import Record, pd
from tracelens.types.units import BYTES_PER_GB

if TYPE_CHECKING:
    from tracelens.schema import ColumnSet

#: What a statement may take for sorting and joining (1e9 bytes), where the command may take as much.
MEMORY_GB = 2
#: Rows of a group of a merged file: what is held at once when it is written.
_GROUP_ROWS = 20_480
_WORD = re.compile(r"\w++")


class ReadyQuery(Record, frozen=True, kw_only=True):
    """A statement with a name, and in one sentence what it answers."""

    name: str
    about: str
    statement: str


@functools.cache
def ready_queries(package: str) -> Mapping[str, ReadyQuery]:
    """The statements of ``package``: files ``NAME.sql`` whose first line is ``-- what it answers``."""
    found = {}
    for file in sorted(resources.files(package).joinpath("ready").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            about, _, statement = file.read_text(encoding="utf-8").partition("\n")
            name = file.name.removesuffix(".sql")
            found[name] = ReadyQuery(name=name, about=about.removeprefix("-- "), statement=statement.strip())
    return found


def ready_query(queries: Mapping[str, ReadyQuery], name: str) -> ReadyQuery:
    """The query of that name; UsageError, naming near ones, where there is none."""
    if name not in queries:
        raise UsageError.unknown("ready query", name, queries)
    return queries[name]


def typed(frame: pd.DataFrame | None, columns: ColumnSet) -> pd.DataFrame:
    """``frame`` with exactly ``columns``, each of one type whatever was recorded; what was not recorded is NULL.

    Texts are VARCHAR, counts and identifiers BIGINT, flags BOOLEAN, all others DOUBLE.
    """
    made: dict[str, Any] = {}
    rows = pd.RangeIndex(0 if frame is None else len(frame))
    for key, column in columns.items():
        recorded = None if frame is None else frame.get(key)
        values: Any = pd.Series(None, rows, object) if recorded is None else recorded.reset_index(drop=True)
        if column.is_text:
            made[key] = values.astype("string")
        elif column.is_flag:
            made[key] = values.astype("boolean")
        else:
            numbers = pd.to_numeric(values, errors="coerce")
            made[key] = numbers.astype("Int64" if column.is_integer else "float64")
    return pd.DataFrame(made, columns=list(columns))


def sql_type(column: Any) -> str:
    return (
        (column.is_text and "VARCHAR") or (column.is_flag and "BOOLEAN") or (column.is_integer and "BIGINT") or "DOUBLE"
    )


#: How DuckDB begins to say what is missing.
_NO_TABLE, _NO_COLUMN = (
    re.compile("^Catalog Error: Table with name (.+) does not exist"),
    re.compile('column "([^"]+)" not found'),
)


def query(tables: Mapping[str, pd.DataFrame], statement: str) -> pd.DataFrame:
    """What one SELECT over ``tables`` answers. A table is only made if the statement names it.

    UsageError for a statement that does more than read, that DuckDB does not understand, or that needs more memory than
    ``MEMORY_GB``.
    """
    words = {word.lower() for word in _WORD.findall(statement)}
    with _locked() as connection:
        for name in tables:
            if name.lower() in words:
                connection.register(name, tables[name])
        return _answer(connection, statement, tables)


def query_files(
    patterns: Mapping[str, str],
    folder: Path,
    statement: str,
    partitions: ColumnSet,
    views: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """What one SELECT answers over tables that are Parquet files below ``folder``, see ``query``.

    ``patterns``: of each table, what its files are called, or its one file; ``partitions``: the columns that the
    folders of more than one stand for; ``views``: statements over the tables that are tables, too.
    """
    words = {word.lower() for word in _WORD.findall(statement)}
    used = {name: text for name, text in (views or {}).items() if name in words}
    words |= {word.lower() for text in used.values() for word in _WORD.findall(text)}
    with _locked(folder) as connection:
        for name in words & patterns.keys():
            if next(folder.glob(patterns[name]), None) is None:
                raise InputError(f"{folder} holds no table {name} yet")
            try:
                _create_view(connection, name, folder / patterns[name], partitions if "*" in patterns[name] else {})
            except _duckdb().Error as error:
                raise InputError(f"{folder}: table {name} cannot be read: {reason(error)}") from error
        for name, text in used.items():
            connection.execute(f"CREATE VIEW {name} AS {text}")
        return _answer(connection, statement, [*patterns, *(views or {})])


def merge_files(pattern: str, folder: Path, to: Path, partitions: ColumnSet) -> bool:
    """Writes the rows of all files of one table, in the order of the files' names, as one file in ``folder``.

    False where they cannot be read, or not within ``MEMORY_GB``.
    """
    with _locked(folder) as connection:
        try:
            _create_view(connection, "parts", folder / pattern, partitions)
            connection.execute(
                f"COPY (FROM parts) TO {_quoted(to)} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_GROUP_ROWS})"
            )
        except _duckdb().Error:
            to.unlink(missing_ok=True)
            return False
    return True


def _create_view(connection: Any, name: str, files: Path, partitions: ColumnSet) -> None:
    keys = ", ".join(partitions)
    types = ", ".join(f"{key}: {sql_type(column)}" for key, column in partitions.items())
    columns, hive = (f"{keys}, * EXCLUDE ({keys})", f"true, hive_types = {{{types}}}") if keys else ("*", "false")
    connection.execute(
        f"CREATE VIEW {name} AS SELECT {columns} "  # noqa: S608 - our names, quoted files
        f"FROM read_parquet({_quoted(files)}, hive_partitioning = {hive})"
    )


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _memory_gb() -> float:
    limit = command_limit()
    return MEMORY_GB if limit is None else min(MEMORY_GB, limit.most_bytes / BYTES_PER_GB)


@contextmanager
def _locked(folder: Path | None = None) -> Iterator[Any]:
    """A connection that reaches nothing but, if given, what is in ``folder``."""
    settings: dict[str, Any] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
        "memory_limit": f"{_memory_gb():g}GB",
        "temp_directory": "",
        "threads": 1,  # sums of the same rows in the same order: the same answer every time
    }
    duckdb = _duckdb()
    # It does not survive to be refused memory, and has a limit of its own
    with unrefused():
        connection = duckdb.connect(":memory:", config=settings)
        try:
            if folder is not None:
                connection.execute("SET allowed_directories=[?]", [str(folder)])
            connection.execute("SET enable_external_access=false")
            connection.execute("SET lock_configuration=true")
            yield connection
        finally:
            connection.close()


def _answer(connection: Any, statement: str, known: Iterable[str]) -> pd.DataFrame:
    duckdb = _duckdb()
    try:
        statement.encode()
        statements = connection.extract_statements(statement)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError(
                "a query must be one read-only statement: SELECT ..., WITH ... SELECT, DESCRIBE or SUMMARIZE"
            )
        answer: pd.DataFrame = connection.execute(statements[0]).df()
    except UnicodeEncodeError:
        raise UsageError("the query is not valid UTF-8") from None
    except duckdb.CatalogException as error:
        if missing := _NO_TABLE.search(str(error)):
            raise UsageError.unknown("table", missing[1], known) from None
        raise UsageError(_first_line(error)) from None
    except duckdb.OutOfMemoryException:
        needed = f"more than {_memory_gb():g} GB of memory"
        raise UsageError(f"the query needs {needed}: select fewer rows or columns") from None
    except duckdb.IOException as error:
        raise InputError(f"the tables cannot be read: {_first_line(error)}") from None
    except duckdb.Error as error:
        listed = "tracelens query --list shows every column"
        if missing := _NO_COLUMN.search(str(error)):
            columns = connection.execute("SELECT DISTINCT column_name FROM duckdb_columns() WHERE NOT internal").df()
            raise UsageError.unknown("column", missing[1], columns["column_name"], listed=listed) from None
        where = f"; {listed}" if isinstance(error, duckdb.BinderException) else ""
        raise UsageError(f"the query does not run: {_first_line(error)}{where}") from None
    return answer


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _duckdb() -> Any:
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise UsageError("queries need DuckDB: pip install 'tracelens-perf[query]'") from None
