"""Files of the published code (arXiv 2410.00273): a system as its JSON, its results as ``.npy``, its NCCL fits.

Its results are pickled objects, which may hold code. They are read as dictionaries, lists, texts and numbers alone.
"""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.errors import InputError, UsageError
from tracelens.files.data_table import Number
from tracelens.files.documents import expected, json_of
from tracelens.predict.projection.search.paper import LinkTier, NcclFits, PaperSystem, Sigmoid

if TYPE_CHECKING:
    import pandas as pd

_FIGURE, _SHARE = Number(least=1e-9, most=1e9), Number(least=1e-9, most=1)
_RANKS = Number(least=1, most=1 << 20, whole=True)
#: Figure of a system -> its key in the JSON file; rates TFLOP/s and GB/s, capacity GB, latencies s.
_KEYS = {
    "matrix_tflops_s": "matrix_flops_fp16", "vector_tflops_s": "vector_flops_fp16", "hbm_gb_s": "hbm_bandwidth",
    "hbm_gb": "hbm_capacity",
}  # fmt: skip
#: Where its code looks for the fits that ``"empirical": true`` asks for.
_FITS = Path("measurements/comm/nccl-benchmark-21209538.out")
_WORDS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
_MOST_BYTES = 2**28
_WHAT = "results of the published search (.npy)"
#: All that a pickle of arrays needs.
_NEEDED = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    ("numpy", "ndarray"), ("numpy", "dtype"),
}  # fmt: skip


def read_system(path: Path) -> PaperSystem:
    """A ``config-A100.json``. InputError, naming the key, for what is none.

    ``empirical`` true, or a file's name: collectives by its fits (``read_fits``), beside the JSON or one folder up.
    """
    given = json_of(path, "a system of the published code")
    if not isinstance(given, Mapping):
        raise InputError(f"{path} is not a system of the published code: its top level has no keys")

    def number(key: str, kind: Number = _FIGURE, default: float | None = None) -> float:
        if key not in given and default is None:
            raise InputError(f"{path} is not a system of the published code: it has no {key}")
        return kind.of(given.get(key, default), f"{path}: {key}")

    fast, slow = (
        LinkTier(
            gb_s=number(f"{link}_bandwidth"), efficiency=number(f"{link}_eff", _SHARE),
            latency_s=number(f"{link}_latency", Number(least=0, most=1)),
        )
        for link in ("nvlink", "ib")
    )  # fmt: skip
    return PaperSystem(
        name=path.stem.removeprefix("config-"), domain=int(number("nvlink_size", _RANKS)), fast=fast, slow=slow,
        nic_factor=number("nic_factor", default=1.0), nccl=_fits_of(path, given.get("empirical", False)),
        **{name: number(key) for name, key in _KEYS.items()},
    )  # fmt: skip


def _fits_of(path: Path, said: object) -> NcclFits | None:
    if said is False or said is None:
        return None
    name = Path(said) if isinstance(said, str) else _FITS
    places = [path.parent / name, path.parent.parent / name]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(
            f'{path}: empirical needs the NCCL fits, which are not at {places[0]}; name them: "empirical": "FILE"'
        )
    return read_fits(found)


def read_fits(path: Path) -> NcclFits:
    """Sigmoids of bandwidth over log2 of a message, by collective, devices per node and nodes. InputError."""
    what, found = "NCCL fits of the published code", {}
    with expected(path, what):
        for word, by_near in json_of(path, what).items():
            for near, by_nodes in by_near.items():
                for nodes, values in by_nodes.items():
                    place = _counted(near, "gpus_per_node_"), _counted(nodes, "num_nodes_")
                    found[_WORDS.get(word, word), *place] = Sigmoid(*map(float, values))
    if not found or not all(math.isfinite(value) for fit in found.values() for value in fit):
        raise InputError(f"{path} is not {what}: it has no finite fit")
    return NcclFits(found)


def _counted(key: str, prefix: str) -> int:
    if not key.startswith(prefix):
        raise ValueError(f"{key!r} is not {prefix}N")
    return int(key.removeprefix(prefix))


def system_json(system: PaperSystem) -> str:
    """The system as ``read_system`` and the published code read it."""
    links = {"nvlink": system.fast, "ib": system.slow}
    document = {
        **{key: getattr(system, name) for name, key in _KEYS.items()},
        **{f"{name}_bandwidth": link.gb_s for name, link in links.items()},
        **{f"{name}_eff": link.efficiency for name, link in links.items()},
        **{f"{name}_latency": link.latency_s for name, link in links.items()},
        "nvlink_size": system.domain, "nic_factor": system.nic_factor, "empirical": False, "summa_nb": 4,
        "element_size": 2e-09, "mask_element_size": 1e-09, "flops_units": 1e-12,
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


#: Columns of a configuration; all other columns of a row are its statistics.
_CONFIGURATION = ("dp", "tp", "tp1", "tp2", "pp", "mbs", "nb")
_APART = ("throughput", "mem", "n_gpus", "gpu", "nvs", "strategy", "rank", "model", "global_batch", *_CONFIGURATION)


def results_npy(table: pd.DataFrame) -> bytes:
    """Rows of one strategy and domain as the published code writes them: per device count, the best first.

    ``(nvs, best, worst, device counts, [(throughput, memory, configuration, statistics)])``. UsageError for rows of
    several strategies.
    """
    if "strategy" in table and table["strategy"].nunique() > 1:
        raise UsageError("a .npy file of the published code is of one --strategy")
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
    import pandas as pd

    rows = []
    with expected(path, _WHAT):
        for nvs, _, _, counts, configs in _unpickled(path):
            for gpus, found in zip(counts, configs, strict=False):
                for rank, (throughput, memory, configuration, statistics) in enumerate(found):
                    rows.append(
                        {"nvs": int(nvs), "n_gpus": int(gpus), "rank": rank, "throughput": float(throughput)}
                        | {str(key): value for key, value in (*statistics.items(), *configuration.items())}
                        | {"mem": float(memory)}
                    )
    frame = pd.DataFrame(rows)
    if not len(frame):
        raise InputError(f"{path} is not {_WHAT}: it has no configuration")
    renamed = {"nv_tp": "nv_tp1"}
    frame = frame.rename(columns={old: new for old, new in renamed.items() if new not in frame})
    return frame if "tp1" in frame or "tp" not in frame else frame.assign(tp1=frame["tp"], tp2=1)


def _unpickled(path: Path) -> Sequence[Any]:
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
