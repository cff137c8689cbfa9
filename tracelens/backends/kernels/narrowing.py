"""Passes that narrow BF16 rows to FP8: with a scale that is known, and what finding a row's scale adds."""

from __future__ import annotations

import numpy as np

from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelTable, Rates, Sizes, Work

#: Rows that a unit takes per us; a usual launch of one block per row.
_ROWS_PER_UNIT_US = 100.0
_ELEMENTS_PER_US = 1024.0
#: Elements that a block takes at once, and those that it keeps until its scale is known.
_BLOCK_ELEMENTS, _HELD_ELEMENTS = 256.0, 8192.0
#: What the name of a difference of two measured kernels has between theirs.
_DIFFERENCE = "_minus_"


def _narrowed(s: Sizes, _: Case) -> Work:
    """Two bytes read and one written per element."""
    return Work(flops=0 * s["m"], hbm_bytes=3 * s["m"] * s["k"])


def _scaled(s: Sizes, _: Case) -> Work:
    """The pass that only reads: the difference of two measurements, which finds the rows in L2."""
    return Work(flops=0 * s["m"], hbm_bytes=0 * s["m"])


def _costs(s: Sizes, rates: Rates, _: Case) -> Costs:
    nbytes = 3 * s["m"] * s["k"]
    us = {"l2": nbytes / rates.l2, "row": s["k"] / _ELEMENTS_PER_US, "rows": s["m"] / rates.units / _ROWS_PER_UNIT_US}
    return Costs(us, nbytes)


def _scale_costs(s: Sizes, rates: Rates, case: Case) -> Costs:
    """A row of one warp's width needs no exchange between warps; rows wider than a block's registers are read again.

    A difference of two passes is what finding the scale adds to a pass that waits for HBM meanwhile: less, the longer
    it waits, except for what is read again.
    """
    found = _costs(s, rates, case)
    exchanged = found.us["rows"] * np.minimum(s["k"] / _BLOCK_ELEMENTS, 1)
    again = 2 * s["m"] * np.maximum(s["k"] - _HELD_ELEMENTS, 0) / rates.hbm
    us = {**found.us, "exchanged": exchanged, "again": again}
    beneath = _DIFFERENCE in case.get("kernel_source", "")
    return Costs(us, found.streamed, after=("again",) if beneath else (), beneath=beneath)


QUANTIZE_MATRIX = KernelTable(
    name="quantize-matrix", sizes=("m", "k"), cases=("quant_dtype",), groups=("m", "k"), work=_narrowed, costs=_costs
)
QUANTIZE_SCALE = KernelTable(
    name="quantize-scale", sizes=("m", "k"), cases=("quant_dtype",), groups=("m", "k"), work=_scaled,
    costs=_scale_costs,
)  # fmt: skip
