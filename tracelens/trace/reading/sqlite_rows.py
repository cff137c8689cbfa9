"""Tables of a SQLite database that somebody else wrote, as columns: read only, and no more than its file can hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.trace.reading.source import Source

if TYPE_CHECKING:
    import sqlite3

MAGIC = b"SQLite format 3\x00"
Ints = npt.NDArray[np.int64]
#: A missing value of an integer column.
ABSENT = -1
# Text and blobs beyond this are not names: SQLite refuses them.
_LONGEST_TEXT_BYTES = 16 << 20
_ROWS = 20_000
# Of rows with text: as many as the longest texts may be held before they are counted.
_TEXT_ROWS = 16
# An integer takes up to 20 characters where it is spelled.
_LONGEST_INTEGER = 20
# A row takes at least its length, its number, a header and a value.
_LEAST_ROW_BYTES = 4


class Database:
    """What readers ask of a database: the integer columns of a table, and texts by their number.

    All SQL is made of names that stand in this package (of tables with a process's number behind them: those that a
    pattern of hexadecimal digits allows). No index: rows come in the order of their table. Only plain tables are read:
    a view, a virtual table or a generated column would run what the file says.
    """

    def __init__(self, connection: sqlite3.Connection, source: Source, file_bytes: int) -> None:
        self._connection = connection
        self._source = source
        self._file_bytes = file_bytes
        self._most_rows = file_bytes // _LEAST_ROW_BYTES
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchmany(_ROWS)
        self.tables = frozenset(name for name, sql in tables if isinstance(sql, str) and sql.startswith("CREATE TABLE"))

    def columns(self, table: str) -> frozenset[str]:
        """Names of a table's stored columns; none when there is no such table."""
        if table not in self.tables:
            return frozenset()
        found = self._connection.execute(f'PRAGMA table_xinfo("{table}")').fetchmany(_ROWS)
        return frozenset(name for _, name, _, _, _, _, hidden in found if not hidden)

    def integers(self, table: str, *wanted: str) -> dict[str, Ints]:
        """Columns of a table, in the order of its rows; all ``ABSENT`` where the table does not have one."""
        there = self.columns(table)
        known = [name for name in wanted if name in there]
        found = {name: np.zeros(0, np.int64) for name in wanted}
        if known:
            spelled = ", ".join(f'COALESCE(CAST("{name}" AS INTEGER), {ABSENT})' for name in known)
            parts = [
                np.array(rows, np.int64).reshape(len(rows), len(known))
                for rows in self._rows(f'SELECT {spelled} FROM "{table}" NOT INDEXED')  # noqa: S608
            ]
            if parts:
                block = np.concatenate(parts)
                found = {name: np.full(len(block), ABSENT) for name in wanted}
                found |= {name: np.ascontiguousarray(block[:, i]) for i, name in enumerate(known)}
        return found

    def texts(self, table: str, *wanted: str) -> list[tuple[str, ...]]:
        """Columns of a small table as text; empty where the table does not have one."""
        there = self.columns(table)
        if not there.intersection(wanted):
            return []
        spelled = ", ".join(f"COALESCE(CAST(\"{name}\" AS TEXT), '')" if name in there else "''" for name in wanted)
        return list(self._text_rows(f'SELECT {spelled} FROM "{table}"'))  # noqa: S608

    def text_of(self, table: str, key: str, value: str, numbers: Iterable[int]) -> dict[int, str]:
        """The texts of some numbers: ``value`` of the rows whose ``key`` each is."""
        if not {key, value} <= self.columns(table):
            return {}
        wanted = set(numbers)
        statement = f'SELECT CAST("{key}" AS INTEGER), CAST("{value}" AS TEXT) FROM "{table}" NOT INDEXED'  # noqa: S608
        return {number: text for number, text in self._text_rows(statement) if number in wanted and text is not None}

    def _text_rows(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Rows whose texts together are no longer than the file: cells of a hostile one may share their bytes."""
        length = 0
        for rows in self._rows(statement, _TEXT_ROWS):
            for row in rows:
                length += sum(len(text) for text in row if isinstance(text, str) and len(text) > _LONGEST_INTEGER)
            if length > self._file_bytes:
                raise InputError(f"{self._source.name} is damaged: a table of it has more text than fits into the file")
            yield from rows

    def _rows(self, statement: str, at_a_time: int = _ROWS) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self._connection.execute(statement)
        cursor.arraysize = at_a_time
        count = 0
        while rows := cursor.fetchmany():
            count += len(rows)
            if count > self._most_rows:
                raise InputError(f"{self._source.name} is damaged: a table of it has more rows than fit into the file")
            self._source.limit.check(self._source.name, text_bytes=self._file_bytes, file_bytes=self._file_bytes)
            yield rows


@contextmanager
def opened(source: Source) -> Iterator[Database]:
    """The database of a file; InputError where SQLite finds it damaged."""
    import sqlite3

    path = source.file()
    try:
        with closing(_connection(path)) as connection:
            yield Database(connection, source, path.stat().st_size)
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise InputError(f"{source.name} is a SQLite database, but damaged ({error}): export it again") from error


def holds(source: Source, *tables: str) -> bool:
    """Whether the content is a database with one of these tables."""
    if not source.start.startswith(MAGIC):
        return False
    try:
        with opened(source) as database:
            return not database.tables.isdisjoint(tables)
    except InputError:
        return False


def _connection(path: Path) -> sqlite3.Connection:
    import sqlite3

    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_FUNCTION)
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT_BYTES)
    for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY"):
        connection.execute(f"PRAGMA {pragma}")
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY)
    return connection
