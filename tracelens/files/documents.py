"""Text, JSON, TOML, YAML and npz files that a user gives, TOML files of figures read strictly, large documents."""

from __future__ import annotations

import difflib
import functools
import io
import json
import re
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from tracelens.errors import InputError, TracelensError
from tracelens.files.data_table import LARGEST, SMALLEST, reason, shown
from tracelens.files.memory_limit import before_reading, unrefused
from tracelens.types.units import BYTES_PER_MB, FLOPS_PER_GFLOP

if TYPE_CHECKING:
    import numpy as np

#: A file of this package, in its folder or in a wheel's archive.
BundledFile: TypeAlias = Path | zipfile.Path
#: What ``report.json`` is called in sentences.
REPORT = "a tracelens report.json"
#: A report of a large trace has some tens of MB.
MOST_BYTES = 2**30
#: Reading takes this much at a time, since a read allocates all that it may return.
_PIECE_BYTES = 2**20
_DEEPEST = 200
# A text or comment without an end reaches to that of the file, so that nothing is looked at twice
_TEXT_OR_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
#: What one array of an npz file may unpack to.
MOST_ARRAY_BYTES = 2**32


def is_report(path: Path) -> bool:
    """Whether a file is a ``report.json``, of any version."""
    before_reading(path)
    try:
        with path.open("rb") as file:
            head = file.read(200)
    except OSError:
        return False
    return head.replace(b" ", b"").replace(b"\n", b"").startswith(b'{"schema":"tracelens.report/')


#: What the first version of ``report.json`` called the columns of an op, and how many of its units make one of today's.
_OP_OF_VERSION_1 = {
    "count": "operation_count", "dims": "perf_params", "measured_us": "kernel_us_mean",
    "measured_median_us": "kernel_us_median", "measured_std_us": "kernel_us_std", "measured_min_us": "kernel_us_min",
    "estimated_us": "roofline_us", "bound": "roofline_bound", "remote_data_from": "remote_from",
    "effective_interconnect_tb_s": "effective_interconnect_tb_s_mean", "flops": "gflops", "hbm_bytes": "hbm_mb",
    "wire_bytes": "wire_mb", "shapes": "input_dims", "dtypes": "input_types", "strides": "input_strides",
    "scalars": "concrete_inputs",
}  # fmt: skip
_UNITS_OF_VERSION_1 = {"flops": FLOPS_PER_GFLOP, "hbm_bytes": BYTES_PER_MB, "wire_bytes": BYTES_PER_MB}


def report_ops(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The ops of a ``report.json`` of any version, by the keys that columns have now."""
    found = []
    for op in document["ops"]:
        if "signature" in op:  # of version 1
            flat = {**(op["signature"] or {}), **{key: value for key, value in op.items() if key != "signature"}}
            flat |= {key: flat[key] / unit for key, unit in _UNITS_OF_VERSION_1.items() if flat.get(key)}
            op = {_OP_OF_VERSION_1.get(key, key): value for key, value in flat.items()}
        found.append(op)
    return found


@contextmanager
def expected(path: BundledFile, what: str) -> Iterator[None]:
    """Around code that walks a document of another program: what it lacks is an InputError that names ``path``."""
    try:
        yield
    except TracelensError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise InputError(f"{path} is not {what}: it is nested too deep") from error
    except KeyError as error:
        raise InputError(f"{path} is not {what}: it has no {reason(error)}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not {what}: {reason(error)}") from error


def text_of(path: Path, what: str) -> str:
    """A text file. InputError for one that is missing, no text or larger than anything of its kind."""
    before_reading(path)
    with expected(path, what):
        content = bytearray()
        with path.open("rb") as file:
            while len(content) <= MOST_BYTES and (piece := file.read(_PIECE_BYTES)):
                content += piece
        if len(content) > MOST_BYTES:
            raise InputError(f"{path} is not {what}: it is larger than {MOST_BYTES / 1e9:.1f} GB")
        return content.decode("utf-8-sig")


def json_of(path: Path, what: str, *, comments: bool = False) -> Any:
    """What a JSON file holds. InputError for one that is none. ``comments``: ``//`` and ``/* */`` may stand in it."""
    with expected(path, what):
        text = text_of(path, what)
        return json.loads(_TEXT_OR_COMMENT.sub(lambda found: found[1] or " ", text) if comments else text)


def toml_of(path: BundledFile, what: str = "a TOML file") -> dict[str, Any]:
    """What a TOML file holds. InputError for one that is none."""
    with expected(path, what):
        return tomllib.loads(text_of(path, what) if isinstance(path, Path) else path.read_text(encoding="utf-8"))


def yaml_of(path: Path, what: str) -> Any:
    """What a YAML file holds, its keys texts. InputError for one that is none, and for anchors, which multiply."""
    import yaml  # type: ignore[import-untyped]

    text = text_of(path, what)
    with expected(path, what):
        try:
            refuse_deep(text)
            if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
                raise InputError(f"{path} is not {what}: YAML anchors are not read; write out what they stand for")
            found = yaml.safe_load(text)
            # ValueError for a key that is no text, such as one left empty
            left = [found]
            while left:
                one = left.pop()
                if isinstance(one, Mapping):
                    for key in one:
                        if not isinstance(key, str):
                            raise ValueError(f"its key {key!r} is not a name")
                    left += one.values()
                elif isinstance(one, list):
                    left += one
            return found
        except yaml.YAMLError as error:
            raise ValueError(reason(error)) from error


def refuse_deep(text: str) -> None:
    """ValueError for brackets within brackets so deep that reading YAML would take the square of their number."""
    depth = 0
    for found in re.finditer(r"[\[{]|[]}]", text):
        depth = max(0, depth + (1 if found[0] in "[{" else -1))
        if depth > _DEEPEST:
            raise ValueError("it is nested too deep")


def settings_of(path: Path, what: str) -> Mapping[str, Any]:
    """The top level of a TOML, JSON or YAML file, by its ending. InputError where it has no keys."""
    readers: dict[str, Callable[[Path, str], Any]] = {".json": json_of, ".yaml": yaml_of, ".yml": yaml_of}
    found = readers.get(path.suffix, toml_of)(path, what)  # type: ignore[no-untyped-call]
    if not isinstance(found, Mapping):
        raise InputError(f"{path} is not {what}: its top level has no keys")
    return found


def beside(source: Path, name: str, *, within: Path | None = None) -> Path:
    """The file that a configuration names: in its folder or below it, also where links lead. InputError for another.
    ``within``: a folder above, whose files belong together and may name each other.
    """
    said, found = PurePath(name), source.parent / name
    try:
        is_inside = found.resolve().is_relative_to((within or source.parent).resolve())
    except (OSError, RuntimeError, ValueError):
        is_inside = False
    if said.is_absolute() or (within is None and ".." in said.parts) or not is_inside:
        raise _elsewhere(source, name)
    return found


def told(source: Path, name: str) -> str | Path:
    """A file ``beside`` a configuration, or a name that tracelens knows. InputError for a file of another folder."""
    said = PurePath(name)
    if said.is_absolute() or ".." in said.parts or name.lower().endswith((".toml", ".json")):
        return beside(source, name)
    # What takes a name takes a file whose name has folders, and a model's folder.
    tried = [said / "config.json", *([said] if len(said.parts) > 1 else [])]
    with suppress(OSError):  # a name that is too long for a file
        if any((source.parent / each).is_file() for each in tried):
            return beside(source, name)
        if any(Path(each).is_file() for each in tried):
            raise _elsewhere(source, name)
    return name


def _elsewhere(source: Path, name: str) -> InputError:
    what = f"{source}: {shown(name)} does not lie beside the file that names it"
    return InputError(f"{what}; copy it there, or name it on the command line")


def arrays_of(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an npz file, all of finite numbers. InputError for others, and for what unpacks to too much."""
    import numpy as np

    what = "an .npz file of numbers"
    found = {}
    before_reading(path)
    with expected(path, what):
        try:
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if member.file_size > MOST_ARRAY_BYTES:
                        raise InputError(
                            f"{path}: {member.filename} unpacks to {member.file_size / 1e9:.1f} GB, too much"
                        )
            with np.load(path, allow_pickle=False) as archive:
                for name in archive.files:
                    found[name] = archive[name]
        except (EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise ValueError(reason(error)) from error
        for name, values in found.items():
            if values.dtype.kind not in "iuf":
                raise InputError(f"{path}: {name} must hold numbers, it holds {values.dtype}")
            if not np.isfinite(values).all():
                at = np.unravel_index(int(np.flatnonzero(~np.isfinite(values).ravel())[0]), values.shape)
                raise InputError(f"{path}: {name}{[int(i) for i in at]} is not a finite number")
    return found


def normalized(name: str) -> str:
    """``H100_80GB SXM`` -> ``h100-80gb-sxm``: how names and aliases of devices, clusters and models are compared."""
    return re.sub(r"[\s_\-/]+", "-", name.strip().casefold())


@functools.cache
def bundled(folder: Path) -> BundledFile:
    """A folder of this package's data; a wheel has one archive of its files in its place (``hatch_build.py``)."""
    archive = folder.with_suffix(".zip")
    if not archive.is_file():
        return folder
    # In memory: processes that were forked would move each other's place in an open file
    return zipfile.Path(zipfile.ZipFile(io.BytesIO(archive.read_bytes())))


class FigureTable:
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
    def of_file(cls, path: BundledFile, *, kind: str = "device") -> FigureTable:
        """InputError when the file is missing or is no TOML."""
        return cls(file=path.name, path="", values=toml_of(path), kind=kind)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def key(self, name: str) -> str:
        """``hbm.peak_tb_s``."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, should: str) -> InputError:
        """``my_chip.toml: hbm.peak_tb_s must be a number above 0, got "8,0"``."""
        value = self._values.get(name)
        text = str(value).lower() if isinstance(value, bool) else shown(value).replace("'", '"')
        given = f", got {text}" if name in self._values else ", but is missing"
        return InputError(f"{self.file}: {self.key(name)} {should}{given}")

    def _value(self, name: str, kinds: type | tuple[type, ...], fits: Callable[[Any], bool], should: str) -> Any:
        """A value of one of ``kinds`` (a bool is no number) which ``fits``; None when absent."""
        self._read.add(name)
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool) or not fits(value):
            raise self.error(name, should)
        return value

    def number(self, name: str) -> float | None:
        """A number above 0; None when absent."""
        value = self._value(name, (int, float), lambda x: SMALLEST <= x <= LARGEST, "must be a number above 0")
        return None if value is None else float(value)

    def number_or_zero(self, name: str) -> float | None:
        """A number from 0 on; None when absent."""
        value = self._values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
            self._read.add(name)
            return 0.0
        return self.number(name)

    def whole(self, name: str, *, least: int = 1) -> int | None:
        """A whole number, at least ``least``; None when absent."""
        should = f"must be a whole number, at least {least}"
        return self._value(name, int, lambda x: least <= x <= LARGEST, should)

    def needed_number(self, name: str) -> float:
        value = self.number(name)
        if value is None:
            raise self.error(name, "must be a number above 0")
        return value

    def text(self, name: str) -> str | None:
        return self._value(name, str, lambda x: bool(x.strip()), "must be a string")

    def source(self, name: str) -> str:
        """Where figures come from: without it a file does not load."""
        value = self.text(name)
        if value is None:
            raise self.error(name, "must say where the figure comes from")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._listed(name, lambda x: isinstance(x, str) and bool(x.strip()), "strings"))

    def flag(self, name: str) -> bool:
        return bool(self.switch(name))

    def switch(self, name: str) -> bool | None:
        """None where it is not said."""
        return self._value(name, bool, lambda _: True, "must be true or false")

    def table(self, name: str) -> FigureTable | None:
        values = self._value(name, dict, lambda _: True, "must be a table")
        return None if values is None else self._below(self.key(name), values)

    def _below(self, path: str, values: Mapping[str, Any]) -> FigureTable:
        return FigureTable(file=self.file, path=path, values=values, kind=self.kind)

    def _listed(self, name: str, fits: Callable[[Any], bool], what: str) -> list[Any]:
        return self._value(name, list, lambda items: all(map(fits, items)), f"must be a list of {what}") or []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def rows(self, name: str) -> tuple[FigureTable, ...]:
        items = self._listed(name, lambda x: isinstance(x, dict), "tables")
        return tuple(self._below(f"{self.key(name)}[{at}]", item) for at, item in enumerate(items))

    def tables(self, name: str, known: frozenset[str]) -> dict[str, FigureTable]:
        """The tables below ``name``, by their last word, which must be one of ``known``."""
        parent = self._of_known(name, known)
        inner = {} if parent is None else {word: parent.table(word) for word in parent._values}
        return {word: table for word, table in inner.items() if table is not None}

    def numbers(self, name: str, known: frozenset[str]) -> dict[str, float]:
        """The numbers of the table ``name``, by key, each one of ``known``."""
        inner = self._of_known(name, known)
        return {} if inner is None else {word: inner.needed_number(word) for word in inner._values}

    def _of_known(self, name: str, known: frozenset[str]) -> FigureTable | None:
        """The table ``name``. InputError where a key of it is not ``known``."""
        inner = self.table(name)
        for word in () if inner is None else inner._values:
            if inner is not None and word not in known:
                raise inner._unknown(word, known)
        return inner

    def figures(self, kind: type[Any], apart: Collection[str] = ()) -> dict[str, Any]:
        """The numbers, switches and texts of a record that the table says, by field; those that are absent keep their
        defaults. ``apart``: fields that are read elsewhere. InputError where one without a default is missing.
        """
        found: dict[str, Any] = {}
        for each in fields(kind):
            said = each.type.__name__ if isinstance(each.type, type) else str(each.type)
            is_needed = each.default is MISSING and each.default_factory is MISSING
            read = _READERS.get(said.removesuffix(" | None"))
            if read is not None and each.name not in apart:
                value = read(self, each.name, is_needed and not said.endswith("None"), each.default == 0)
                found |= {each.name: value} if value is not None or is_needed else {}
        return found

    def finish(self) -> None:
        """InputError for a key that nothing reads: a misspelled figure must not be silently absent."""
        for name in self._values:
            if name not in self._read:
                raise self._unknown(name, frozenset(self._read))

    def _unknown(self, name: str, known: frozenset[str]) -> InputError:
        close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
        hint = f"did you mean {self.key(close[0])}?" if close else f"known there: {', '.join(sorted(known))}"
        return InputError(f"{self.file}: {self.key(name)} is not a key of a {self.kind} file; {hint}")


def _whole(table: FigureTable, name: str, is_needed: bool, may_be_0: bool) -> int | None:
    value = table.whole(name, least=1 - may_be_0)
    if value is None and is_needed:
        raise table.error(name, "must be a whole number, at least 1")
    return value


#: By the type of a record's field, as it is spelled: of a table, the field's name, whether it must be there and may be
#: 0, what the table says; None where it says nothing.
_READERS: Mapping[str, Callable[[FigureTable, str, bool, bool], Any]] = {
    "int": _whole,
    "float": lambda table, name, is_needed, _: table.needed_number(name) if is_needed else table.number(name),
    "bool": lambda table, name, *_: table.switch(name),
    "str": lambda table, name, is_needed, _: table.source(name) if is_needed else table.text(name),
    "tuple[str, ...]": lambda table, name, *_: table.texts(name) or None,
}


def json_encoded(document: Any, option: int | None = None) -> bytes:
    """``orjson.dumps``. MemoryError where the command has taken more than it may afterwards."""
    with unrefused():
        return orjson.dumps(document, option=option)


def json_decoded(text: bytes) -> Any:
    """``orjson.loads``. MemoryError where the command has taken more than it may afterwards."""
    with unrefused():
        return orjson.loads(text)
