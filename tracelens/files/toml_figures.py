"""Reading a TOML file of figures strictly: every figure a number above 0 with a source, no key that nothing reads."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.files.data_table import LARGEST, SMALLEST, shown
from tracelens.files.documents import toml_of


def normalized(name: str) -> str:
    """``H100_80GB SXM`` -> ``h100-80gb-sxm``: how names and aliases of devices, clusters and models are compared."""
    return re.sub(r"[\s_\-/]+", "-", name.strip().casefold())


def parsed(path: Path) -> dict[str, Any]:
    """What a TOML file holds. InputError when it is missing or is none."""
    return toml_of(path)


class Table:
    """One table of a TOML file. Remembers which keys were read, so that ``finish`` can name the others.

    ``kind`` is what the file describes, for messages.
    """

    def __init__(self, *, file: str, path: str, values: Mapping[str, Any], kind: str = "device") -> None:
        self.file = file
        self.path = path
        self.kind = kind
        self._values = values
        self._read: set[str] = set()

    @classmethod
    def of_file(cls, path: Path, *, kind: str = "device") -> Table:
        """InputError when the file is missing or is no TOML."""
        return cls(file=path.name, path="", values=parsed(path), kind=kind)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def key(self, name: str) -> str:
        """``hbm.peak_tb_s``."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, should: str) -> InputError:
        """``my_chip.toml: hbm.peak_tb_s must be a number above 0, got "8,0"``."""
        given = f", got {_shown(self._values[name])}" if name in self._values else ", it is missing"
        return InputError(f"{self.file}: {self.key(name)} {should}{given}")

    def number(self, name: str) -> float | None:
        """A number above 0; None when absent."""
        self._read.add(name)
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not SMALLEST <= value <= LARGEST:
            raise self.error(name, "must be a number above 0")
        return float(value)

    def number_or_zero(self, name: str) -> float | None:
        """A number from 0 on; None when absent."""
        value = self._values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
            self._read.add(name)
            return 0.0
        return self.number(name)

    def whole(self, name: str, *, least: int = 1) -> int | None:
        """A whole number, at least ``least``; None when absent."""
        self._read.add(name)
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
            raise self.error(name, f"must be a whole number, at least {least}")
        return value

    def needed_number(self, name: str) -> float:
        value = self.number(name)
        if value is None:
            raise self.error(name, "must be a number above 0")
        return value

    def text(self, name: str) -> str | None:
        self._read.add(name)
        value = self._values.get(name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.error(name, "must be a text")
        return value

    def source(self, name: str) -> str:
        """Where figures come from: without it a file does not load."""
        value = self.text(name)
        if value is None:
            raise self.error(name, "must say where the figure comes from")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        self._read.add(name)
        value = self._values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise self.error(name, "must be a list of texts")
        return tuple(value)

    def flag(self, name: str) -> bool:
        self._read.add(name)
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def table(self, name: str) -> Table | None:
        self._read.add(name)
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "must be a table")
        return Table(file=self.file, path=self.key(name), values=value, kind=self.kind)

    @property
    def names(self) -> tuple[str, ...]:
        """Every key of the table."""
        return tuple(self._values)

    def rows(self, name: str) -> tuple[Table, ...]:
        """The tables of a list."""
        self._read.add(name)
        value = self._values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(name, "must be a list of tables")
        paths = (f"{self.key(name)}[{at}]" for at in range(len(value)))
        return tuple(
            Table(file=self.file, path=path, values=item, kind=self.kind)
            for path, item in zip(paths, value, strict=True)
        )

    def tables(self, name: str, known: frozenset[str]) -> dict[str, Table]:
        """The tables below ``name``, by their last word, which must be one of ``known``."""
        parent = self.table(name)
        if parent is None:
            return {}
        found: dict[str, Table] = {}
        for word in parent._values:
            if word not in known:
                raise parent._unknown(word, known)
            inner = parent.table(word)
            if inner is not None:
                found[word] = inner
        return found

    def numbers(self, name: str, known: frozenset[str]) -> dict[str, float]:
        """The numbers of the table ``name``, by key, each one of ``known``."""
        inner = self.table(name)
        if inner is None:
            return {}
        for word in inner._values:
            if word not in known:
                raise inner._unknown(word, known)
        return {word: inner.needed_number(word) for word in inner._values}

    def finish(self) -> None:
        """InputError for a key that nothing reads: a misspelled figure must not be silently absent."""
        for name in self._values:
            if name not in self._read:
                raise self._unknown(name, frozenset(self._read))

    def _unknown(self, name: str, known: frozenset[str]) -> InputError:
        close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
        hint = f"did you mean {self.key(close[0])}?" if close else f"known there: {', '.join(sorted(known))}"
        return InputError(f"{self.file}: {self.key(name)} is not a key of a {self.kind} file; {hint}")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else shown(value).replace("'", '"')
