"""Results of the published code (arXiv 2410.00273) as its ``.npy`` files: read, written, compared with a search.

They are pickled objects, which may hold code. They are read as dictionaries, lists, texts and numbers alone.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.errors import InputError, UsageError
from tracelens.files.documents import expected
from tracelens.files.memory_limit import before_reading
from tracelens.types.records import pd

_MOST_BYTES = 2**28
_WHAT = "results of the published search (.npy)"
#: All that a pickle of arrays needs.
_NEEDED = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    ("numpy", "ndarray"), ("numpy", "dtype"),
}  # fmt: skip
#: Columns of a configuration; all other columns of a row are its statistics.
_CONFIGURATION = ("dp", "tp", "tp1", "tp2", "pp", "mbs", "nb")
_APART = ("throughput", "mem", "n_gpus", "gpu", "nvs", "strategy", "rank", "model", "global_batch", *_CONFIGURATION)


def results_npy(table: pd.DataFrame) -> bytes:
    """Rows of one strategy and domain as the published code writes them: per device count, the best first.

    ``(nvs, best, worst, device counts, [(throughput, memory, configuration, statistics)])``. UsageError for rows of
    several strategies.
    """
    if "strategy" in table and table["strategy"].nunique() > 1:
        raise UsageError("-o FILE.npy holds one strategy; choose it with --strategy")
    rows = table.sort_values(["n_gpus", "throughput"], ascending=[True, False])
    configs = [
        [_entry({str(key): value for key, value in row.items()}) for row in part.to_dict("records")]
        for _, part in rows.groupby("n_gpus", sort=True)
    ]
    best, worst = ([of_count[at][0] for of_count in configs] for at in (0, -1))
    counts = np.array(sorted(set(rows["n_gpus"].tolist())), np.int64)
    plots = np.empty((1, 5), object)
    plots[0] = [int(rows["nvs"].iloc[0]), best, worst, counts, configs]
    content = io.BytesIO()
    np.save(content, plots, allow_pickle=True)
    return content.getvalue()


def _entry(row: Mapping[str, Any]) -> tuple[float, float, dict[str, Any], dict[str, Any]]:
    known = {key: value for key, value in row.items() if isinstance(value, str) or math.isfinite(value)}
    configuration = {key: int(known[key]) for key in _CONFIGURATION if key in known}
    statistics = {"mem": float(row["mem"])} | {
        key: value for key, value in known.items() if key not in _APART and isinstance(value, int | float)
    }
    return float(row["throughput"]), float(row["mem"]), configuration, statistics


def read_results(path: Path) -> pd.DataFrame:
    """A row per configuration of a results file: ``nvs``, ``n_gpus``, ``rank`` and the file's own names. InputError."""
    rows = []
    with expected(path, _WHAT):
        for nvs, _, _, counts, configs in _unpickled(path):
            for gpus, found in zip(counts, configs, strict=False):
                for rank, (throughput, memory, configuration, statistics) in enumerate(found):
                    row: dict[str, Any] = {
                        "nvs": int(nvs),
                        "n_gpus": int(gpus),
                        "rank": rank,
                        "throughput": float(throughput),
                    }
                    for key, value in (*statistics.items(), *configuration.items()):
                        if not isinstance(value, int | float | np.number):
                            said = f"{str(key)[:40]!r} of a configuration is {str(value)[:40]!r}"
                            raise ValueError(f"{said}, no number")
                        row[str(key)] = value
                    rows.append(row | {"mem": float(memory)})
    frame = pd.DataFrame(rows)
    if not len(frame):
        raise InputError(f"{path} is not {_WHAT}: it has no configuration")
    if "nv_tp1" not in frame:
        frame = frame.rename(columns={"nv_tp": "nv_tp1"})
    return frame if "tp1" in frame or "tp" not in frame else frame.assign(tp1=frame["tp"], tp2=1)


def _unpickled(path: Path) -> Sequence[Any]:
    before_reading(path)
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES / 1e6:.0f} MB")
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if not dtype.hasobject:
        raise ValueError("it holds numbers, not configurations")
    try:
        rows = _Plain(stream).load()
    except (pickle.UnpicklingError, EOFError, MemoryError) as error:
        raise ValueError(str(error) or "it ends too early") from error
    plain = np.asarray(rows, object).reshape(shape)
    return [list(row) for row in plain]


class _Plain(pickle.Unpickler):
    """Unpickles arrays, dictionaries, lists, texts and numbers; nothing that could run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NEEDED:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which results do not need")
        return super().find_class(module, name)


def differences(ours: pd.DataFrame, theirs: pd.DataFrame) -> list[str]:
    """What a search and a results file share, and by how much each column differs at most, as sentences."""
    ours = ours.assign(rank=ours.groupby("n_gpus").cumcount())
    both = ours.merge(theirs, on=["n_gpus", "rank"], suffixes=("", "_theirs"))
    lines = [f"{len(both)} of {len(theirs)} published configurations are of device counts that were searched"]
    apart = {
        name: float((both[name] / both[f"{name}_theirs"] - 1).abs().fillna(0).max())
        for name in ("throughput", "mem", *sorted(set(map(str, ours)) & set(map(str, theirs))))
        if f"{name}_theirs" in both and name != "n_gpus" and both[name].dtype.kind in "if"
    }
    worst = max(apart, key=lambda name: apart[name], default=None)
    if worst is not None:
        same = sum(value <= 1e-9 for value in apart.values())
        lines.append(
            f"{same} of {len(apart)} columns agree within 1e-9; the largest difference is {apart[worst]:.1e} ({worst})"
        )
    return lines
