"""Measures how much longer than the tile model says the longest measured products take, as device files hold it.

    python benchmarks/fit_sustained.py FOLDER [--flops 1e13] [--write]

FOLDER holds gemm.parquet (reading it takes pyarrow). The tile model's constants rest on thousands of products, most of
them done before the device's power limit lowered its clock. A training step never gives it that rest, so projections
slow their products down as the longest ones, by precision, since each draws a power of its own: the geometric mean of
measured over estimated times. The estimate is the table's layer, quantizing included.

H100 and H200 are one die at one power limit: where the tables have the older one's long products faster, its clocks
were another day's, and it gets the newer one's rate.

Devices of which no such table is at hand have the products of a whole layer, published for one model (``LAYERS``).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from tracelens.backends.base import System
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import Calibration
from tracelens.hardware.spec import FOLDER
from tracelens.predict.calibration.device import device_file
from tracelens.predict.projection.overheads import completed

PRECISION = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}
RATE = {"bf16": "bf16", "fp8": "fp8", "nvfp4": "fp4"}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The twelve products of a transformer layer, forward and both gradients, 100 times in a row.

    ``milliseconds`` by precision, operands quantized beforehand. ``sisters`` are the same chip with other power: their
    times are these in proportion to the best short runs of both.
    """

    device: str
    tokens: int
    hidden: int
    ffn: int
    milliseconds: dict[str, float]
    sisters: tuple[str, ...]
    source: str

    def shapes(self) -> np.ndarray:
        """(m, n, k) of each product."""
        h, f = self.hidden, self.ffn
        forward = [(self.tokens, n, k) for n, k in ((3 * h, h), (h, h), (f, h), (h, f))]
        return np.array([shape for m, n, k in forward for shape in ((m, n, k), (m, k, n), (n, k, m))], np.float64)


LAYERS = (
    Layer(
        device="b300", tokens=31 * 512, hidden=4096, ffn=16384, sisters=("gb300",),
        milliseconds={"bf16": 13.102, "fp8": 6.812, "nvfp4": 3.764},
        source="TransformerEngine docs/examples/gemm_profiling/gemm_profiling.rst at 8f2e635, pre-quantized",
    ),
)  # fmt: skip


#: One die at one power limit, the older product first.
ONE_DIE = (("h100-sxm", "h200-sxm"),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flops", type=float, default=1e13, help="what counts as long")
    parser.add_argument("--write", action="store_true", help="put it into the device files of the package")
    args = parser.parse_args()
    table = pd.read_parquet(args.folder / "gemm.parquet")
    table = table[(2 * table.m * table.n * table.k > args.flops) & table.gemm_dtype.isin(list(PRECISION))]
    devices = {name: HardwareSpec.load(str(name)) for name in table.device.unique()}
    made = {devices[name].name: tabled(devices[name], rows, args.flops) for name, rows in table.groupby("device")}
    for older, newer in ONE_DIE:
        made[older] = tied(HardwareSpec.load(older), made[older], HardwareSpec.load(newer), made[newer], table)
    for name, found in made.items():
        show(HardwareSpec.load(name), found, write=args.write)
    for layer in LAYERS:
        for name in (layer.device, *layer.sisters):
            show(HardwareSpec.load(name), published(name, layer), write=args.write)


def tied(
    older: HardwareSpec,
    mine: Iterable[Calibration],
    newer: HardwareSpec,
    theirs: Iterable[Calibration],
    table: pd.DataFrame,
) -> Iterable[Calibration]:
    """``mine`` with no precision in which the older device's long products take less than the newer one's."""
    known = {each.precision: each for each in theirs}
    shapes = table[["m", "n", "k"]].drop_duplicates().to_numpy(np.float64)
    for each in mine:
        times = [estimate(device, each.precision, shapes, as_layer=True) for device in (newer, older)]
        least = known[each.precision]["slowdown"] * float(np.exp(np.log(times[0] / times[1]).mean()))
        if least > each["slowdown"]:
            said = f"{newer.label}'s rate, the same die at the same limit: by its own table {each['slowdown']:.3g}"
            each = sustained(each.precision, least, f"{said}; benchmarks/fit_sustained.py")
        yield each


def show(device: HardwareSpec, made: Iterable[Calibration], *, write: bool) -> None:
    made = list(made)
    print(f"{device.name}: " + ", ".join(f"{each.precision} {each['slowdown']:.3g}" for each in made))
    if write:
        file = FOLDER / f"{device.name}.toml"
        file.write_text(device_file(file.read_text(encoding="utf-8"), made), encoding="utf-8")


def tabled(device: HardwareSpec, rows: pd.DataFrame, flops: float) -> list[Calibration]:
    made = []
    for dtype, some in rows.groupby("gemm_dtype"):
        shapes = some[["m", "n", "k"]].to_numpy(np.float64)
        estimated_us = estimate(device, PRECISION[str(dtype)], shapes, as_layer=True)
        if estimated_us is None:
            continue
        longer = 1e3 * some.latency_ms.to_numpy() / estimated_us
        said = (
            f"aiconfigurator measured tables (Apache-2.0), gemm: the {len(some)} products above "
            f"{flops / 1e12:.0f} TFLOP, geometric mean over the constants above; benchmarks/fit_sustained.py"
        )
        made.append(sustained(PRECISION[str(dtype)], float(np.exp(np.log(longer).mean())), said))
    return made


def published(name: str, layer: Layer) -> Iterable[Calibration]:
    system, _ = completed(System.load(name))
    base = HardwareSpec.load(layer.device)
    for precision, milliseconds in layer.milliseconds.items():
        key = RATE[precision]
        faster = system.device.best_shape[key].value / base.best_shape[key].value
        estimated_us = estimate(system.device, precision, layer.shapes(), as_layer=False)
        if estimated_us is None:
            continue
        scaled = f", {faster:.3g} times as fast: as their best short runs" if name != layer.device else ""
        yield sustained(
            precision,
            1e3 * milliseconds / faster / float(estimated_us.sum()),
            f"{layer.source}: {base.label}, {milliseconds} ms for the products of a layer of hidden {layer.hidden}, "
            f"{layer.tokens} tokens{scaled}; benchmarks/fit_sustained.py",
        )


def estimate(device: HardwareSpec, precision: str, shapes: np.ndarray, *, as_layer: bool) -> np.ndarray | None:
    """The tile model's times; None where the device has no constants."""
    m, n, k = shapes.T
    found = replace(GEMMColumns.of(precision, m, n, k), as_layer=as_layer).price(device)
    return None if found is None else found.time_us


def sustained(precision: str, slowdown: float, fitted_on: str) -> Calibration:
    return Calibration(
        family="sustained", precision=RATE[precision], constants={"slowdown": slowdown}, fitted_on=fitted_on
    )


if __name__ == "__main__":
    main()
