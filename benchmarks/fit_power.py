"""Fits the energies of kernels on measured watts, and reports the error on shape groups not fitted.

    python benchmarks/fit_power.py FOLDER [--write] [--quiet]

FOLDER holds aiconfigurator's tables with ``power_w`` and ``power_limit_w`` by family (``gemm.parquet``; reading them
takes pyarrow), of kernels in a loop. Rows above 20 us are fitted, in two halves by shape group, never by row; errors
are |estimate / measured - 1| in percent, mean / median, each half by the energies of the other, at the measured time
and, after it, at the estimated one. ``scatter`` is how far readings are from the median of their nearest five by
shape, time and library.

``settled`` are readings that average at least six samples of NVML. Shorter loops lag: what NVML averages begins before
the loop, so kernels that do the same read up to a factor of two apart, all of them too low. The fit is of what a device
draws, not of what such a loop reads: to settled readings it is a median with a weight of three, to others the upper
quarter (an error above them counts a third). No model of shapes and times meets the readings that lag.

``--write`` puts energies fitted on all groups into the device files.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd

from tracelens.backends.base import ColumnBatch
from tracelens.backends.kernels import kernel_table
from tracelens.backends.roofline_and_tile import works
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import POWER_TERMS, FamilyPower, PowerConstants
from tracelens.hardware.power import STATE, KernelWork, kernel_power
from tracelens.hardware.spec import FOLDER
from tracelens.predict.calibration.device import quoted, replaced_tables, rounded
from tracelens.predict.calibration.fitting import Descent, gauss_newton
from tracelens.predict.estimation.estimate import estimate, precision_of
from tracelens.predict.estimation.table_kinds import KINDS, batches, with_sizes

COLUMNS = ("time_us", "hbm_bytes", "l2_bytes")
LEAST_US, SETTLED, MOST_SAMPLES = 20.0, 6, 60
GROUPS = {
    "gemm": ("n", "k"), "moe": ("hidden_size", "inter_size", "num_experts", "topk"),
    "context-attention": ("num_heads", "num_key_value_heads", "head_dim", "window_size"),
    "generation-attention": ("num_heads", "num_key_value_heads", "head_dim", "window_size"),
}  # fmt: skip
#: Fewer shape groups than these are divided further, by the ways in which ranks share a layer.
FEW, SHARES = 4, ("moe_tp_size", "moe_ep_size")
#: Start, least and most of a constant; of ``active_w`` the most is a share of the limit.
BOUNDS = {
    "sharpness": (3.0, 1.5, 12.0), "active_w": (60.0, 0.1, 0.25), "hbm_pj": (40.0, 0.01, 150.0),
    "l2_pj": (15.0, 0.01, 150.0), "flop_pj": (0.4, 0.005, 3.0),
    # chunks of a scan multiply more than the recurrence that FLOPs count
    "state_pj": (3.0, 0.005, 60.0),
}  # fmt: skip
_DESCENT = Descent(rounds=100, noise=0.05, step=1e-3, tolerance=1e-6)
_NEIGHBOURS = 5
#: Fewer rows say nothing.
ENOUGH = 20
FIGURES = (("watts", ""), ("watts", ", est. time"), ("energy", ", est. time"))
SETTLED_WEIGHT, LAG_WEIGHT, STARTS = 3.0, 1 / 3, (1.0, 0.3, 3.0)
LINK = (
    10.4,
    "NVIDIA Grace Hopper whitepaper: NVLink-C2C takes 1.3 pJ per bit; not measured for NVLink between devices",
)
SOURCE = (
    "aiconfigurator measured tables (Apache-2.0) with power_w, NVML in loops of 1 s or more: {rows} rows above 20 us, "
    "all shape groups; benchmarks/fit_power.py; error_percent, low and high: of each half by the energies of the other"
)


def samples(watts: float) -> int:
    """Over how many samples of whole mW a mean was taken, at least."""
    found = (n for n in range(1, MOST_SAMPLES) if abs(watts * 1e3 * n - round(watts * 1e3 * n)) < 2e-3)
    return next(found, MOST_SAMPLES)


def column_batches(name: str, table: pd.DataFrame) -> Iterator[tuple[np.ndarray, ColumnBatch]]:
    """Rows of one measured table and their batch, rows of types without estimates left out."""
    kernels = kernel_table(name)
    if kernels is not None:
        yield from batches(kernels, table, np.arange(len(table)))
        return
    sized = with_sizes(table, KINDS[name])
    for dtype, part in sized.groupby(KINDS[name].dtype):
        precision = precision_of(str(dtype))
        if precision is not None:
            yield part.index.to_numpy(), KINDS[name].columns(part, precision)


def joined(parts: list[tuple[np.ndarray, KernelWork]], rows: int) -> KernelWork:
    """One work of all rows."""
    first = parts[0][1]
    names = sorted({name for _, part in parts for name in part.flops})
    whole = {key: np.full(rows, np.nan) for key in COLUMNS}
    flops = {name: np.zeros(rows) for name in names}
    for at, part in parts:
        for key, values in whole.items():
            values[at] = getattr(part, key)
        for name, values in part.flops.items():
            flops[name][at] = values
    return KernelWork(family=first.family, flops=flops, **whole)


def part_of(work: KernelWork, at: np.ndarray) -> KernelWork:
    kept = {key: getattr(work, key)[at] for key in COLUMNS}
    return replace(work, flops={name: values[at] for name, values in work.flops.items()}, **kept)


def halves(rows: pd.DataFrame, keys: Sequence[str]) -> np.ndarray:
    """0 or 1 per row, rows of one shape group alike; of few groups by how a rank shares them, too."""
    shared = [name for name in SHARES if name in rows]
    for chosen in (keys, [*keys, *shared]):
        groups = rows[list(chosen)].astype(str).agg("/".join, axis=1)
        order = sorted(set(groups), key=lambda text: zlib.crc32(text.encode()))
        half = groups.map({text: at % 2 for at, text in enumerate(order)}).to_numpy()
        if len(order) >= FEW:
            break
    return half


def titles(name: str, rows: pd.DataFrame) -> pd.Series:
    """The row of ``[power]`` that each row of a table belongs to, as column batches name them."""
    convolves = rows.get("kernel_source", pd.Series("", rows.index)).str.contains("conv1d")
    return name + convolves.map({True: "-conv ", False: " "}) + rows["framework"]


class Family:
    """Kernels of one table by one library on one device: rows above 20 us, and their work at the measured time."""

    def __init__(self, name: str, family: str, device: HardwareSpec, table: pd.DataFrame) -> None:
        self.table, self.name, self.device = name, family, device
        own = table[table["latency_ms"] * 1e3 > LEAST_US].reset_index(drop=True)
        estimated = estimate(name, own)["time_us"].to_numpy(float)
        own = own[np.isfinite(estimated)].reset_index(drop=True)
        self.estimated_us = estimated[np.isfinite(estimated)]
        self.rows, self.watts = own, own["power_w"].to_numpy(float)
        us = own["latency_ms"].to_numpy(float) * 1e3
        parts = [
            (at[inner], work) for at, batch in column_batches(name, own) for inner, work in works(batch, device, us[at])
        ]
        self.work = replace(joined(parts, len(own)), family=family) if parts else None
        kernels = kernel_table(name)
        keys = [key for key in (GROUPS[name] if kernels is None else kernels.groups) if key in own]
        self.half = halves(own, keys)
        self.settled = np.array([samples(watts) >= SETTLED for watts in self.watts.tolist()])

    def bounds(self) -> dict[str, tuple[float, float, float]]:
        assert self.work is not None
        start, least, share = BOUNDS["active_w"]
        watts = (start, least, share * (self.device.tdp_w or 0.0))
        found = {"sharpness": BOUNDS["sharpness"], "active_w": watts, "l2_pj": BOUNDS["l2_pj"]}
        if self.work.hbm_bytes.any():
            found["hbm_pj"] = BOUNDS["hbm_pj"]
        return found | {
            f"flop_pj.{name}": BOUNDS["state_pj" if name == STATE else "flop_pj"] for name in self.work.flops
        }

    def fit(self, base: PowerConstants, rows: np.ndarray) -> FamilyPower:
        """On some rows, by logarithms, which see by how much an estimate is too small."""
        assert self.work is not None
        work, bounds = part_of(self.work, rows), self.bounds()
        target, settled = np.log(self.watts[rows]), self.settled[rows]
        low, high = (np.log([each[side] for each in bounds.values()]) for side in (1, 2))

        def weighted(x: np.ndarray) -> np.ndarray:
            made = row_of(dict(zip(bounds, np.exp(x).tolist(), strict=True)))
            off = np.log(kernel_power(with_row(base, self.name, made), work).power_w) - target
            return np.where(settled, SETTLED_WEIGHT * off, np.where(off > 0, LAG_WEIGHT * off, off))

        starts = (np.log([by * each[0] for each in bounds.values()]).clip(low, high) for by in STARTS)
        x, _ = min((gauss_newton(weighted, start, low, high, _DESCENT) for start in starts), key=lambda made: made[1])
        x, _ = gauss_newton(weighted, x, low, high, _DESCENT)
        return row_of(dict(zip(bounds, np.exp(x).tolist(), strict=True)))

    def unseen(self, base: PowerConstants) -> tuple[np.ndarray, np.ndarray]:
        """Estimates over readings by the energies of the other half, at measured and at estimated times."""
        ratio, at_estimate = np.ones(len(self.watts)), np.ones(len(self.watts))
        for side in (0, 1):
            of = self.half == side
            made = self.fit(base, ~of)
            ratio[of] = self.ratios(base, made)[of]
            at_estimate[of] = self.ratios(base, made, self.estimated_us)[of]
        return ratio, at_estimate

    def ratios(self, base: PowerConstants, row: FamilyPower, us: np.ndarray | None = None) -> np.ndarray:
        assert self.work is not None
        work = self.work if us is None else replace(self.work, time_us=us)
        return kernel_power(with_row(base, self.name, row), work).power_w / self.watts


def row_of(values: Mapping[str, float]) -> FamilyPower:
    """Constants at the least that is tried leave their term out."""
    values = {name: value for name, value in values.items() if value > 1.01 * BOUNDS[name.partition(".")[0]][1]}
    flops = {name.partition(".")[2]: value for name, value in values.items() if name.startswith("flop_pj.")}
    terms = {name: value for name, value in values.items() if name in POWER_TERMS}
    return FamilyPower(
        terms=terms, flop_pj=flops, sharpness=values.get("sharpness", BOUNDS["sharpness"][1]), low=1.0, high=1.0
    )


def with_row(base: PowerConstants, name: str, row: FamilyPower) -> PowerConstants:
    return replace(base, families={**base.families, name: row})


def scatter(family: Family) -> np.ndarray:
    """How far each reading is from the median of the nearest by shape, time and words."""
    rows = family.rows
    words = [name for name in rows if rows[name].dtype.kind not in "if" and name not in ("device", "version", "model")]
    sizes = [name for name in rows if rows[name].dtype.kind in "if" and not name.startswith("power_")]
    found = []
    for _, part in rows.groupby(words):
        if len(part) > _NEIGHBOURS:
            at = np.log1p(part[sizes].to_numpy(float))
            watts = part["power_w"].to_numpy(float)
            for row in range(len(part)):
                far = ((at - at[row]) ** 2).sum(axis=1)
                far[row] = np.inf
                found.append(np.median(watts[np.argsort(far, kind="stable")[:_NEIGHBOURS]]) / watts[row] - 1)
    return np.abs(found) * 100


def report(family: Family, base: PowerConstants, found: Errors, *, quiet: bool) -> FamilyPower:
    """Prints a row of errors; returns energies fitted on all groups, with what was not fitted's error and interval."""
    ratio, at_estimate = family.unseen(base)
    energy = at_estimate * family.estimated_us / (family.rows["latency_ms"].to_numpy(float) * 1e3)
    row = family.fit(base, np.ones(len(ratio), bool))
    settled = family.settled
    figures = dict(zip(("".join(each) for each in FIGURES), (ratio, at_estimate, energy), strict=True))
    for name, values in figures.items():
        for which, rows in (("settled", settled), ("all", np.ones(len(settled), bool))):
            found.setdefault((family.table, f"{name}, {which}"), []).append(np.abs(values[rows] - 1) * 100)
    if not quiet:
        shown = [np.abs(values[rows] - 1) * 100 for values in figures.values() for rows in (settled, settled | True)]
        cells = " | ".join(f"{each.mean():.1f} / {np.median(each):.1f}" if len(each) else "-" for each in shown)
        print(
            f"| {family.name} | {family.device.name} | {len(ratio)} | {int(settled.sum())} | {cells} "
            f"| {scatter(family).mean():.1f} | {constants_text(row)}", flush=True,
        )  # fmt: skip
    seen = ratio[settled] if settled.sum() >= ENOUGH else ratio
    low, high = np.percentile(1 / seen, (10, 90))
    error = float(np.abs(seen - 1).mean()) * 100
    return replace(row, low=min(float(low), 1.0), high=max(float(high), 1.0), error_percent=error, rows=len(ratio))


def constants_text(row: FamilyPower) -> str:
    named = {**row.terms, "sharpness": row.sharpness, **{f"pJ {name}": value for name, value in row.flop_pj.items()}}
    return " ".join(f"{name} {value:.3g}" for name, value in named.items())


def lines(power: PowerConstants) -> list[str]:
    """The ``[power]`` table of a device file."""
    found = [f"{key} = {rounded(getattr(power, key))}" for key in ("idle_w", "share", "most")]
    found += [
        f"link_pj = {LINK[0]}",
        f"link_source = {quoted(LINK[1])}",
        f"source = {quoted(power.source)}",
        "families = [",
    ]
    for name, row in power.families.items():
        cells = [f"family = {quoted(name)}", *(f"{key} = {rounded(value)}" for key, value in row.terms.items())]
        flops = ", ".join(f"{key} = {rounded(value)}" for key, value in row.flop_pj.items())
        cells += [f"flop_pj = {{ {flops} }}"] if flops else []
        cells += [f"{key} = {rounded(getattr(row, key))}" for key in ("sharpness", "low", "high", "error_percent")]
        found.append("  { " + ", ".join([*cells, f"rows = {row.rows}"]) + " },")
    return [*found, "]"]


Errors: TypeAlias = dict[tuple[str, str], list[np.ndarray]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="put the energies into the device files of the package")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args()
    tables = {path.stem.replace("_", "-"): pd.read_parquet(path) for path in sorted(args.folder.glob("*.parquet"))}
    found: Errors = {}
    columns = [f"{what}{time}, {which}" for what, time in FIGURES for which in ("settled", "all")]
    print(f"| family | device | rows | settled | {' | '.join(columns)} | scatter |")
    for name in sorted({name for table in tables.values() for name in table["device"].unique()}):
        device = HardwareSpec.load(str(name))
        every = pd.concat([table[table["device"] == name][["power_w", "power_limit_w"]] for table in tables.values()])
        over = every["power_w"] / every["power_limit_w"]
        base = PowerConstants(
            limit_w=float(every["power_limit_w"].iloc[0]), idle_w=float(every["power_w"].quantile(0.001)),
            share=float(over.quantile(0.98)), most=float(over.max()), link_pj=LINK[0], families={}, source="",
        )  # fmt: skip
        made: dict[str, FamilyPower] = {}
        for family_name, table in tables.items():
            long = table[(table["device"] == name) & (table["latency_ms"] * 1e3 > LEAST_US)]
            for title, own in long.groupby(titles(family_name, long)):
                family = Family(family_name, str(title), device, own) if len(own) >= ENOUGH else None
                if family is not None and family.work is not None:
                    made[family.name] = report(family, base, found, quiet=args.quiet)
        rows = sum(row.rows or 0 for row in made.values())
        power = replace(base, families=made, source=SOURCE.format(rows=rows))
        print(f"{device.name}: idle {power.idle_w:.0f} W, {power.share:.3f} of the limit, at most {power.most:.3f}")
        if args.write:
            file = FOLDER / f"{device.name}.toml"
            file.write_text(
                replaced_tables(file.read_text(encoding="utf-8"), {"power": lines(power)}), encoding="utf-8"
            )
    for family_name in tables:
        shown = [np.concatenate(found[family_name, column]) for column in columns]
        print(f"| {family_name} | all | " + " | ".join(f"{each.mean():.1f} / {np.median(each):.1f}" for each in shown))


if __name__ == "__main__":
    main()
