"""Fits the constants of the tile model on half of each measured table and reports the error on the other half.

    python benchmarks/fit_silicon.py FOLDER [--family gemm|prefill|decode|moe|latent] [--device NAME ...] [--write]

FOLDER holds gemm.parquet, context_attention.parquet, generation_attention.parquet and moe.parquet (reading them takes
pyarrow); for latent attention, FOLDER is ``systems/data`` of the package aiconfigurator-core. Halves are split by shape
group, never by row: by (n, k), by (heads, key heads, head dimension, window), by heads, by
(hidden, ffn, experts, top k). Errors are |estimate / measured - 1| in percent, mean / median / 90th percentile, each
half by the constants of the other; roofline is max(flops, bytes) at the data sheet's rates. ``--write`` puts constants
refitted on all groups into the device files of the package. All of it is ``predict.calibration.device``, which
``tracelens calibrate`` runs on a user's own measurements.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import Calibration
from tracelens.hardware.spec import FOLDER
from tracelens.predict.calibration import device
from tracelens.predict.calibration.device import Bounds, Floats, Mask, Measured
from tracelens.predict.calibration.measurements import table_measured
from tracelens.predict.estimation.table_kinds import KINDS

FILES = {"gemm": "gemm", "prefill": "context_attention", "decode": "generation_attention", "moe": "moe"}
#: Layers of BF16 experts by vLLM's kernel on B200, where ``moe``'s are TensorRT-LLM's; others agree, or are measured on
#: few shapes, or FP8, which its DeepGEMM multiplies in servers.
OWN = {"moe_vllm": {"framework": "vllm", "moe_dtype": "bfloat16", "device": "b200_sxm"}}
LATENT = {"latent": "*/mla/trtllm/*/generation_mla_perf.parquet"}
#: Where kernels for latent attention were measured; on others a general one is slower.
LATENT_SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm", "gb200")
WHAT = {
    "gemm": "gemm", "prefill": "context-attention", "decode": "generation-attention", "moe": "moe",
    "latent": "generation-mla", "moe_vllm": "moe",
}  # fmt: skip
#: Of expert layers, whose constants are many and whose groups are few, so many rows say as much as all.
_ENOUGH_ROWS = 1200
# Nine groups only: dealt by hand, so that both halves have small and large experts.
FIRST_EXPERTS = {"2048/512/256/8", "2688/1856/128/6", "4096/1024/512/10", "4096/14336/8/2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One device and precision of one family, and its rows of the table."""

    family: str
    device: HardwareSpec
    measured: Measured
    rows: pd.DataFrame

    @property
    def everything(self) -> Mask:
        return np.ones(len(self.measured.time_us), bool)

    @property
    def limits(self) -> dict[str, Bounds]:
        return device.bounds(self.measured.family, self.measured.precision, self.device)

    def halves(self) -> np.ndarray:
        """0 or 1 per row; rows of one shape group are in one half."""
        if self.measured.family != "moe":
            return self.measured.halves()
        return np.array([name not in FIRST_EXPERTS for name in self.measured.groups.tolist()], int)

    def fit(self, rows: Mask, limits: Mapping[str, Bounds]) -> Calibration:
        m = self.measured
        start = Calibration(
            family=m.family, precision=m.precision, constants={}, fitted_on="a fit",
            kernel=device.kernel(m.family, m.precision, self.device),
        )  # fmt: skip
        use = rows & m.use
        if m.family == "moe":
            use &= np.cumsum(use) % max(1, int(use.sum()) // _ENOUGH_ROWS) == 0
        found = device.fit(m, self.device, use, start=start, limits=limits)
        return replace(start, constants=found.constants)

    def errors(self, constants: Calibration, rows: Mask) -> Floats:
        return errors(self.measured.estimate(self.device, constants, rows), self.measured.time_us[rows])

    def unseen(self, limits: Mapping[str, Bounds]) -> Floats:
        """Error of each row under constants fitted on the other half."""
        half, found = self.halves(), np.empty(len(self.rows))
        for side in (0, 1):
            found[half == side] = self.errors(self.fit(half != side, limits), half == side)
        return found


def cases(family: str, table: pd.DataFrame, wanted: set[str]) -> Iterator[Case]:
    """Every device and precision of a table."""
    for name in sorted(table["device"].unique(), key=lambda name: HardwareSpec.load(name).name):
        device = HardwareSpec.load(str(name))
        if wanted and device.name not in wanted:
            continue
        own = table[table["device"] == name]
        dtype = KINDS[WHAT[family]].dtype
        parts = {each.precision: each for each in table_measured(own, device, family)}
        for precision, measured in sorted(parts.items()):
            spelled = "bfloat16" if precision == "bf16" else precision
            rows = own[own[dtype] == spelled].reset_index(drop=True)
            yield Case(family=family, device=device, measured=measured, rows=rows)


def read(folder: Path, family: str) -> pd.DataFrame:
    """The measured table; of latent attention one per device of the package, in a folder of its name; of kernels that a
    library has of its own those whose watts were read, too.
    """
    if family in FILES:
        return pd.read_parquet(folder / f"{FILES[family]}.parquet")
    if family in OWN:
        table = pd.read_parquet(folder.parent / "power" / f"{WHAT[family]}.parquet")
        return table[(table[list(OWN[family])] == OWN[family]).all(axis="columns")].reset_index(drop=True)
    tables = []
    for path in sorted(folder.glob(LATENT[family])):
        name = path.relative_to(folder).parts[0]
        if name in LATENT_SYSTEMS:
            tables.append(pd.read_parquet(path).assign(device=name))
    return pd.concat(tables, ignore_index=True)


def errors(estimated: Floats, measured: Floats) -> Floats:
    return np.abs(estimated / measured - 1) * 100


def summary(values: Floats) -> str:
    return f"{values.mean():5.1f} / {np.median(values):4.1f} / {np.percentile(values, 90):5.1f}"


def report(case: Case) -> tuple[Floats, Calibration]:
    """Prints one row; returns the errors on rows not fitted, and constants fitted on all of them."""
    measured, half = case.measured, case.halves()
    unseen = case.unseen(case.limits)
    priced = KINDS[WHAT[measured.family]].columns(case.rows, measured.precision).price(case.device)
    roof = errors(priced.peak_us, measured.time_us)
    beaten = (measured.time_us < priced.peak_us).mean() * 100
    parts = [summary(unseen[half == side]) for side in (0, 1)]
    extra = ""
    if measured.family == "moe":
        extra = " by distribution: " + ", ".join(
            f"{name} {unseen[at].mean():.1f}" for name, at in case.rows.groupby("distribution").indices.items()
        )
    print(
        f"| {case.device.name} | {measured.precision} | {len(unseen)} | {summary(unseen)} | {parts[0]} | {parts[1]} "
        f"| {roof.mean():.0f} / {np.median(roof):.0f} | {beaten:.1f} |{extra}",
        flush=True,
    )
    fitted_on = (
        f"aiconfigurator measured tables (Apache-2.0), {WHAT[measured.family]}: {len(unseen)} rows, all shape groups; "
        "benchmarks/fit_silicon.py"
    )
    everything = case.fit(case.everything, case.limits)
    own = replace(everything, family=case.family if case.family in OWN else measured.family)
    return unseen, replace(own, fitted_on=fitted_on, error_percent=float(unseen.mean()))


NEEDED = {"matrix_efficiency", "hbm_efficiency", "launch_us", "tile_us"}


def ablate(case: Case) -> None:
    """Mean error on unseen groups, then without each constant that can be left out."""
    parts = [f"{case.device.name} {case.measured.precision}"]
    removable = [name for name in case.limits if name not in NEEDED and not name.startswith("host_")]
    for left_out in ("", *removable):
        limits = {name: of for name, of in case.limits.items() if name != left_out}
        parts.append(f"{left_out or 'all'} {case.unseen(limits).mean():.1f}")
    print("; ".join(parts), flush=True)


def carried(case: Case, sister: HardwareSpec) -> None:
    """Mean error with a sister device's constants."""
    theirs = sister.calibration(case.measured.family, case.measured.precision)
    if theirs is not None:
        found = case.errors(theirs, case.everything)
        print(f"| {case.device.name} | {case.measured.precision} | {len(found)} | {summary(found)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=list(WHAT), action="append")
    parser.add_argument("--device", action="append", help="name; default: all")
    parser.add_argument("--ablate", action="store_true", help="what each constant is worth: refitted without it")
    parser.add_argument("--carry", metavar="NAME", help="errors with this device's shipped constants, nothing refitted")
    parser.add_argument("--write", action="store_true", help="put the constants into the device files of the package")
    args = parser.parse_args()
    wanted = {HardwareSpec.load(name).name for name in args.device or []}
    made: dict[str, list[Calibration]] = {}
    for family in args.family or FILES:
        table = read(args.folder, family)
        print(f"\n{family}: error in percent, mean / median / p90\n")
        print("| device | precision | rows | not fitted | half A | half B | roofline | below roofline % |")
        print("|-|-|-|-|-|-|-|-|")
        everything = []
        for case in cases(family, table, wanted):
            if args.ablate:
                ablate(case)
            elif args.carry:
                carried(case, HardwareSpec.load(args.carry))
            else:
                unseen, constants = report(case)
                everything.append(unseen)
                made.setdefault(case.device.name, []).append(constants)
        if everything:
            print(f"| all | | {sum(map(len, everything))} | {summary(np.concatenate(everything))} | | | | |")
    if args.write:
        for name, constants in made.items():
            file = FOLDER / f"{name}.toml"
            file.write_text(device.device_file(HardwareSpec.file_text(name), constants), encoding="utf-8")


if __name__ == "__main__":
    main()
