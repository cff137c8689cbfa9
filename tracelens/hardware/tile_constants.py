"""Constants of the estimating backends, per device: what each one means, and what it was fitted on.

A device file holds them as ``[calibrated.FAMILY.PRECISION]``, or says ``[calibrated] like = "h100-sxm"`` where nobody
measured it and a sister's constants are used. Where a constant is absent, its term is left out or takes
the value that its meaning names.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from tracelens.dtypes import CALIBRATED
from tracelens.errors import UsageError
from tracelens.files.toml_figures import Table
from tracelens.lazy.records import dataclass

K = TypeVar("K")

#: Family -> constant -> meaning. Fractions are of the data-sheet rate and at most 1.
CONSTANTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "gemm": {
            "matrix_efficiency": "fraction of the matrix peak that the inner loop sustains",
            "hbm_efficiency": "fraction of the HBM peak",
            "launch_us": "launch, first loads, last stores",
            "k_overhead": "prologue and epilogue of a tile, as elements of k",
            "store_efficiency": "fraction of the HBM peak at which finished tiles are written",
            "l2_ratio": "L2 rate over HBM rate",
            "unit_ratio": "the HBM rate of one compute unit over its even share",
            "split_us": "the reduction kernel of a split k",
            "row_ns": "quantizing one row of A, first 2048 elements",
            "single_row_us": "the detour that the library takes for m = 1",
            "host_us": "time the host needs to launch the kernels of one call",
            "host_small_us": "the same for at most 24 rows",
            "host_unaligned_us": "the same where the rows are no multiple of 4",
            "host_fallback_us": "the same where n or k do not fill the blocks of scales",
        },
        "prefill": {
            "launch_us": "launch, scheduling",
            "group_us": "start and end of one work-group",
            "matrix_efficiency": "fraction of the matrix peak",
            "wide_head": "power of head_dim / 128 by which wide heads slow down",
            "q_efficiency": "fraction of the HBM peak for Q and O",
            "kv_efficiency": "fraction of the HBM peak for writing K and V into the cache",
            "tail": "share of a work-group's time lost in the last wave",
            "longest": "factor on the longest work-group",
        },
        "backward": {
            "launch_us": "each of three launches: dO * O, the gradients, dQ to its type",
            "group_us": "start and end of one work-group",
            "matrix_efficiency": "fraction of the matrix peak",
        },
        "decode": {
            "launch_us": "launch, scheduling",
            "group_us": "start and end of one work-group",
            "tile_us": "one compute unit on 16 KiB of the cache",
            "hbm_efficiency": "fraction of the HBM peak",
            "l2_efficiency": "fraction of the HBM peak where the cache stays in L2",
            "wide_head": "power of head_dim / 128 by which wide heads slow down",
            "combine_us": "merging the parts of a split sequence",
            "q_efficiency": "fraction of the HBM peak for Q, O and the new row of K and V",
            "split_cap": "most parts that a sequence is split into",
        },
        "latent": {
            "launch_us": "launch, scheduling",
            "group_us": "start and end of one work-group",
            "tile_us": "one compute unit on 16 KiB of the cache",
            "matrix_efficiency": "fraction of the matrix peak, for many heads, whose products take longer than loads",
            "hbm_efficiency": "fraction of the HBM peak",
            "combine_us": "merging the parts of a split sequence",
            "q_efficiency": "fraction of the HBM peak for Q, O and the new row of the cache",
            "split_cap": "most parts that a sequence is split into",
        },
        "moe": {
            "matrix_efficiency": "fraction of the matrix peak",
            "hbm_efficiency": "fraction of the HBM peak for weights and rows",
            "l2_efficiency": "fraction of 64 bytes per clock and unit at which tiles are loaded",
            "overlap": "norm by which computing and HBM traffic combine; 1: one after the other",
            "cache": "share of L2 that weights fill before a repeated call misses them",
            "spill": "slow-down where the weights of one expert exceed L2",
            "spill_cache": "share of L2 at which half of that slow-down is there",
            "launch_us": "launches of routing, the GEMMs and the sum",
            "k_overhead": "prologue and epilogue of a tile, in blocks of 64 elements of k",
            "least_ffn": "width that narrower experts are padded to",
            "unaligned": "slow-down of widths that are no multiple of 16",
            "copies_us": "sorting, per ten doublings of the tokens' copies",
            "depth_us": "loops over a thousand elements of hidden and ffn",
            "experts_us": "per hundred experts of all ranks",
            "active_us": "per hundred experts with rows",
            "permute_passes": "HBM passes of permuting and quantizing rows, over the least",
            "activate_passes": "HBM passes of activating, over the least",
            "combine_passes": "passes over tokens of other ranks in the weighted sum",
        },
        "sustained": {
            "slowdown": "over gemm's constants: products in a row, at the clock that power allows",
        },
        "memory_bound": {
            "hbm_efficiency": "fraction of the HBM peak",
            "launch_us": "launch floor",
        },
        "origami": {
            "slowdown": "measured time of GEMMs of 4096 rows or more over Origami's at the data sheet's clock",
            "rows_power": "power of rows / 4096 by which smaller GEMMs are less slowed",
        },
        "origami_prefill": {"slowdown": "measured time of attention over Origami's"},
        "origami_backward": {"slowdown": "measured time of attention's backward over Origami's"},
    }
)  # fmt: skip
#: Constants without which a row says nothing.
NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("matrix_efficiency", "hbm_efficiency"),
        "prefill": ("matrix_efficiency", "launch_us"),
        "backward": ("matrix_efficiency", "launch_us"),
        "decode": ("hbm_efficiency", "tile_us", "launch_us"),
        "latent": ("hbm_efficiency", "tile_us", "launch_us"),
        "moe": ("matrix_efficiency", "hbm_efficiency", "launch_us"),
        "sustained": ("slowdown",),
        "memory_bound": ("hbm_efficiency", "launch_us"),
        "origami": ("slowdown",),
        "origami_prefill": ("slowdown",),
        "origami_backward": ("slowdown",),
    }
)
#: Rows of ``[calibrated.memory_bound.*]``: what the op does with its bytes.
STREAMS = frozenset({"stream", "permute", "optimizer"})
#: Rows of ``[calibrated.sustained.*]``: the rates of matrix products.
SUSTAINED = frozenset({"bf16", "fp8", "fp4"})
_ROWS = {"memory_bound": STREAMS, "sustained": SUSTAINED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fitted constants of one family and precision.

    ``kernel`` names the tile choice they belong to, ``fitted_on`` the data, ``error_percent`` the mean absolute error
    on shape groups that were not fitted, None where nobody could measure it. ``carried_from`` is the device whose
    constants stand in.
    """

    family: str
    precision: str
    constants: Mapping[str, float]
    kernel: str | None = None
    fitted_on: str
    error_percent: float | None = None
    carried_from: str | None = None

    def __getitem__(self, name: str) -> float:
        return self.constants[name]

    def get(self, name: str, absent: float) -> float:
        """The constant, or what leaves its term out."""
        return self.constants.get(name, absent)

    def chosen(self, kernels: Mapping[str, K]) -> K | None:
        """What ``kernel`` names, None where the row names none. UsageError for a name that is not among ``kernels``."""
        if self.kernel is None or self.kernel in kernels:
            return kernels.get(self.kernel or "")
        raise UsageError.unknown(f"kernel of calibrated.{self.family}.{self.precision}", self.kernel, kernels)


def read(root: Table) -> tuple[dict[tuple[str, str], Calibration], str | None]:
    """The ``[calibrated]`` table of a device file: its rows, and the device that it is like."""
    table = root.table("calibrated")
    if table is None:
        return {}, None
    found: dict[tuple[str, str], Calibration] = {}
    for family, names in CONSTANTS.items():
        rows = _ROWS.get(family, frozenset[str](CALIBRATED))
        for precision, row in table.tables(family, rows).items():
            needed = NEEDED[family]
            numbers = {name: row.needed_number(name) if name in needed else row.number(name) for name in names}
            constants = {name: value for name, value in numbers.items() if value is not None}
            for name, value in constants.items():
                if name.endswith("_efficiency") and value > 1:
                    raise row.error(name, "is a fraction of the peak, at most 1")
            found[family, precision] = Calibration(
                family=family,
                precision=precision,
                constants=MappingProxyType(constants),
                kernel=row.text("kernel"),
                fitted_on=row.source("fitted_on"),
                error_percent=row.number("error_percent"),
            )
            row.finish()
    like = table.text("like")
    table.finish()
    return found, like
