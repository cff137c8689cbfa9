"""Text, JSON, TOML, YAML and npz files that a user gives: what is none, too large or too deep is one sentence."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.errors import InputError, TracelensError
from tracelens.files.before_reading import before_reading
from tracelens.files.data_table import reason
from tracelens.units import BYTES_PER_MB, FLOPS_PER_GFLOP

if TYPE_CHECKING:
    import numpy as np

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
    return [_op_of_version_1(op) if "signature" in op else op for op in document["ops"]]


def _op_of_version_1(op: Mapping[str, Any]) -> Mapping[str, Any]:
    flat = {**(op["signature"] or {}), **{key: value for key, value in op.items() if key != "signature"}}
    return {
        _OP_OF_VERSION_1.get(key, key): value / _UNITS_OF_VERSION_1[key]
        if key in _UNITS_OF_VERSION_1 and value
        else value
        for key, value in flat.items()
    }


@contextmanager
def expected(path: Path, what: str) -> Iterator[None]:
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
            raise InputError(f"{path} is not {what}: it has more than {MOST_BYTES / 1e9:.1f} GB")
        return content.decode("utf-8-sig")


def json_of(path: Path, what: str, *, comments: bool = False) -> Any:
    """What a JSON file holds. InputError for one that is none. ``comments``: ``//`` and ``/* */`` may stand in it."""
    with expected(path, what):
        text = text_of(path, what)
        return json.loads(_TEXT_OR_COMMENT.sub(lambda found: found[1] or " ", text) if comments else text)


def toml_of(path: Path, what: str = "a TOML file") -> dict[str, Any]:
    """What a TOML file holds. InputError for one that is none."""
    with expected(path, what):
        return tomllib.loads(text_of(path, what))


def yaml_of(path: Path, what: str) -> Any:
    """What a YAML file holds. InputError for one that is none, and for anchors: their content multiplies."""
    import yaml  # type: ignore[import-untyped]

    text = text_of(path, what)
    with expected(path, what):
        try:
            refuse_deep(text)
            if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
                raise InputError(f"{path} is not {what}: write out what its anchors stand for")
            return yaml.safe_load(text)
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
                        raise InputError(f"{path}: {member.filename} unpacks to {member.file_size / 1e9:.1f} GB")
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
