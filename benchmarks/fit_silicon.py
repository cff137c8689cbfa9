"""Fits the constants of the tile model on half of each measured table and reports the error on the other half.

    python benchmarks/fit_silicon.py FOLDER [--family gemm|prefill|decode|moe] [--device NAME ...] [--toml FILE]

FOLDER holds gemm.parquet, context_attention.parquet, generation_attention.parquet and moe.parquet (reading them takes
pyarrow). Halves are split by shape group, never by row: by (n, k), by (heads, key heads, head dimension, window), by
(hidden, ffn, experts, top k). Errors are |estimate / measured - 1| in percent, mean / median / 90th percentile, each
half by the constants of the other; roofline is max(flops, bytes) at the data sheet's rates. ``--toml`` writes constants
refitted on all groups, as a device file holds them.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracelens.analysis.estimation import attention_columns, moe_columns
from tracelens.analysis.fitting import Fit, fitted
from tracelens.backends import attention, matrix, moe
from tracelens.backends.columns import AttentionColumns, GEMMColumns
from tracelens.hardware import HardwareSpec
from tracelens.hardware.calibration import Calibration

PRECISION = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
FILES = {"gemm": "gemm", "prefill": "context_attention", "decode": "generation_attention", "moe": "moe"}
GROUPS = {
    "gemm": ["n", "k"],
    "prefill": ["num_heads", "num_key_value_heads", "head_dim", "window_size"],
    "decode": ["num_heads", "num_key_value_heads", "head_dim", "window_size"],
    "moe": ["hidden_size", "inter_size", "num_experts", "topk"],
}
#: (start, least, most) of each constant; a fraction of a peak is at most 1.
GEMM = {
    "matrix_efficiency": (0.85, 0.05, 1), "hbm_efficiency": (0.8, 0.05, 1), "launch_us": (3, 0.3, 40),
    "k_overhead": (128, 3, 3200), "l2_ratio": (3, 0.5, 40), "unit_ratio": (4, 1, 40),
    "split_us": (2, 0.05, 20), "row_ns": (3, 1e-3, 50), "single_row_us": (10, 0.01, 50),
    "host_us": (80, 5, 1000), "host_small_us": (60, 5, 1000), "host_unaligned_us": (90, 5, 1000),
    "host_fallback_us": (170, 5, 1000),
}  # fmt: skip
_TILE = ("matrix_efficiency", "hbm_efficiency", "launch_us", "k_overhead", "l2_ratio", "unit_ratio")
GEMM_NAMES = {
    "bf16": (*_TILE, "split_us"),
    "fp8": (*_TILE, "row_ns"),
    "fp8 blackwell": (*_TILE, "row_ns", "single_row_us"),
    "nvfp4": (*_TILE, "row_ns"),
    "fp8_block": (
        "matrix_efficiency", "hbm_efficiency", "l2_ratio", "row_ns",
        "host_us", "host_small_us", "host_unaligned_us", "host_fallback_us",
    ),
}  # fmt: skip
PREFILL = {
    "launch_us": (9, 1, 30), "group_us": (1, 0.02, 6), "matrix_efficiency": (0.85, 0.2, 1), "wide_head": (0.1, 1e-3, 2),
    "q_efficiency": (0.6, 0.02, 1), "kv_efficiency": (0.2, 0.02, 1), "tail": (0.6, 0.01, 3), "longest": (0.9, 0.3, 1.5),
}  # fmt: skip
DECODE = {
    "launch_us": (8, 1, 30), "group_us": (1.2, 0.02, 6), "tile_us": (0.5, 0.02, 8), "hbm_efficiency": (0.85, 0.2, 1),
    "combine_us": (1.5, 0.05, 20), "q_efficiency": (0.25, 0.02, 1), "split_cap": (25, 1, 200),
}  # fmt: skip
MOE = {
    "matrix_efficiency": (0.5, 0.05, 1), "hbm_efficiency": (0.85, 0.05, 1), "launch_us": (20, 2, 80),
    "sort_us": (9, 0.1, 80), "permute_passes": (1, 0.1, 20), "combine_passes": (8, 0.1, 100),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One device and precision of one family: ``estimate(constants, rows)`` prices some rows."""

    family: str
    device: HardwareSpec
    precision: str
    kernel: str | None
    bounds: dict[str, tuple[float, float, float]]
    rows: pd.DataFrame
    estimate: Callable[[Calibration, Any], Any]
    fit_on: Any

    def calibration(self, constants: dict[str, float]) -> Calibration:
        return Calibration(
            family=self.family, precision=self.precision, constants=constants, kernel=self.kernel, fitted_on="a fit"
        )


def cases(family: str, table: pd.DataFrame) -> list[Case]:
    """Every device and precision of a table."""
    key = {"gemm": "gemm_dtype", "moe": "moe_dtype"}.get(family, "kv_cache_dtype")
    found = []
    for (name, dtype), rows in table.groupby(["device", key], sort=False):
        device = HardwareSpec.load(str(name))
        make = {"gemm": _gemm, "moe": _moe}.get(family, lambda *a: _attention(family, *a))
        case = make(device, PRECISION[str(dtype)], rows.reset_index(drop=True))
        if case is not None:
            found.append(case)
    return sorted(found, key=lambda case: (case.device.name, case.precision))


def _major(device: HardwareSpec) -> tuple[int, int]:
    return (device.match.compute_major, device.match.compute_minor) if device.match else (0, 0)


def _gemm(device: HardwareSpec, precision: str, rows: pd.DataFrame) -> Case:
    kernel = "cublas" if precision == "bf16" else "cutlass"
    if precision == "fp8" and _major(device)[0] == 9:
        kernel = "cutlass-sm90"
    names = GEMM_NAMES["fp8 blackwell" if precision == "fp8" and _major(device)[0] == 10 else precision]
    m, n, k = (rows[c].to_numpy(float) for c in "mnk")

    def estimate(constants: Calibration, part: Any) -> Any:
        return matrix.price(GEMMColumns.of(precision, m[part], n[part], k[part], as_layer=True), device, constants)

    return Case(
        family="gemm", device=device, precision=precision, kernel=kernel, bounds={name: GEMM[name] for name in names},
        rows=rows, estimate=estimate, fit_on=np.ones(len(rows), bool),
    )  # fmt: skip


def _attention(family: str, device: HardwareSpec, precision: str, rows: pd.DataFrame) -> Case:
    architecture = _major(device)
    fp8 = precision == "fp8"
    kernel = {(9, 0): "flash-attention-3", (10, 0): "trtllm-gen", (8, 9): "ada"}.get(architecture, "flash-attention-2")
    kernel += "-fp8" if fp8 else ""
    columns = attention_columns(rows, precision)
    price = attention.forward if family == "prefill" else attention.decode
    fit_on = np.ones(len(rows), bool)
    if family == "prefill":
        # One new token is decoding, whatever the benchmark is called.
        fit_on &= columns.s > 1
    if fp8 and architecture != (9, 0):
        # These heads take a fallback up to 27 times slower there; reported, not fitted.
        fit_on &= ~((columns.q_heads == 64) & (columns.kv_heads == 4) & (columns.d_qk == 192))
    bounds = dict(PREFILL if family == "prefill" else DECODE)
    if family == "decode":
        name = "wide_head" if architecture == (9, 0) else "l2_efficiency"
        bounds[name] = (0.5, 0.05, 3 if name == "wide_head" else 1)

    def estimate(constants: Calibration, part: Any) -> Any:
        own = columns.take(part)
        if family == "decode":
            return price(own, device, constants)
        return _prefill(own, device, constants)

    return Case(
        family=family, device=device, precision=precision, kernel=kernel, bounds=bounds, rows=rows, estimate=estimate,
        fit_on=fit_on,
    )  # fmt: skip


def _prefill(own: AttentionColumns, device: HardwareSpec, constants: Calibration) -> Any:
    found = attention.forward(own, device, constants)
    single = own.s == 1
    decoding = device.calibration("decode", own.precision)
    if found is not None and single.any() and decoding is not None:
        other = attention.decode(own.take(single), device, decoding)
        if other is not None:
            found.time_us[single] = other.time_us
    return found


def _moe(device: HardwareSpec, precision: str, rows: pd.DataFrame) -> Case:
    blackwell, hopper = _major(device)[0] == 10, _major(device) == (9, 0)
    columns = moe_columns(rows, precision)
    bounds = dict(MOE)
    if _major(device)[0] == 8:
        bounds["l2_ratio"] = (1.5, 0.3, 20)
    bounds["wide_ffn" if blackwell else "k_overhead"] = (0.3, 1e-3, 5) if blackwell else (0.7, 1e-2, 20)

    def estimate(constants: Calibration, part: Any) -> Any:
        return moe.price(columns.take(part), device, constants)

    if hopper and precision == "fp8":
        # Hopper's per-tensor kernel streams weights at a sixth of the peak: start there.
        bounds |= {"matrix_efficiency": (0.17, 0.05, 1), "hbm_efficiency": (0.15, 0.05, 1), "k_overhead": (8, 1e-2, 40)}
        bounds |= {"launch_us": (29, 2, 80), "combine_passes": (6, 0.1, 100), "permute_passes": (0.4, 0.05, 20)}
    kernel = "replayed" if _major(device) == (8, 0) else "plain"
    if blackwell or (hopper and precision != "bf16"):
        kernel = "padded"
    return Case(
        family="moe", device=device, precision=precision, bounds=bounds, rows=rows, estimate=estimate,
        kernel=kernel, fit_on=np.ones(len(rows), bool),
    )  # fmt: skip


def halves(rows: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """0 or 1 per row; rows of one shape group are in one half."""
    keys = ["/".join(f"{value:g}" for value in row) for row in rows[columns].fillna(0).to_numpy(float)]
    if columns == GROUPS["moe"]:
        # Nine groups only: dealt by hand, so that both halves have small and large experts.
        first = {"2048/512/256/8", "2688/1856/128/6", "4096/1024/512/10", "4096/14336/8/2"}
        return np.array([key not in first for key in keys], int)
    return np.array([zlib.crc32(key.encode()) % 2 for key in keys])


def fit(case: Case, rows: np.ndarray) -> Fit:
    measured = case.rows["latency_ms"].to_numpy(float)[rows] * 1e3
    return fitted(lambda c: case.estimate(case.calibration(c), rows).time_us, measured, case.bounds)


def errors(estimated: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return np.abs(estimated / measured - 1) * 100


def summary(values: np.ndarray) -> str:
    return f"{values.mean():5.1f} / {np.median(values):4.1f} / {np.percentile(values, 90):5.1f}"


def report(case: Case) -> tuple[np.ndarray, dict[str, float]]:
    """Prints one row; returns the errors on rows not fitted, and constants fitted on all of them."""
    half = halves(case.rows, GROUPS[case.family])
    measured = case.rows["latency_ms"].to_numpy(float) * 1e3
    unseen = np.empty(len(measured))
    for side in (0, 1):
        found = fit(case, (half != side) & case.fit_on)
        other = half == side
        unseen[other] = errors(case.estimate(case.calibration(found.constants), other).time_us, measured[other])
    everything = fit(case, case.fit_on)
    priced = case.estimate(case.calibration(everything.constants), np.ones(len(measured), bool))
    roof = errors(priced.peak_us, measured)
    beaten = (measured < priced.peak_us).mean() * 100
    parts = [summary(unseen[half == side]) for side in (0, 1)]
    extra = ""
    if case.family == "moe":
        extra = " by distribution: " + ", ".join(
            f"{name} {unseen[at].mean():.1f}" for name, at in case.rows.groupby("distribution").indices.items()
        )
    print(
        f"| {case.device.name} | {case.precision} | {len(measured)} | {summary(unseen)} | {parts[0]} | {parts[1]} "
        f"| {roof.mean():.0f} / {np.median(roof):.0f} | {beaten:.1f} |{extra}",
        flush=True,
    )
    return unseen, everything.constants


NEEDED = {"matrix_efficiency", "hbm_efficiency", "launch_us", "tile_us"}


def ablate(case: Case) -> None:
    """Mean error on unseen groups, then without each constant that can be left out."""
    half = halves(case.rows, GROUPS[case.family])
    measured = case.rows["latency_ms"].to_numpy(float) * 1e3
    parts = [f"{case.device.name} {case.precision}"]
    removable = [name for name in case.bounds if name not in NEEDED and not name.startswith("host_")]
    for left_out in ("", *removable):
        fewer = replace(case, bounds={name: of for name, of in case.bounds.items() if name != left_out})
        found = []
        for side in (0, 1):
            constants = fit(fewer, (half != side) & case.fit_on).constants
            other = half == side
            found.append(errors(case.estimate(case.calibration(constants), other).time_us, measured[other]))
        parts.append(f"{left_out or 'all'} {np.concatenate(found).mean():.1f}")
    print("; ".join(parts), flush=True)


def carried(case: Case, sister: HardwareSpec) -> None:
    """Mean error with a sister device's constants."""
    theirs = sister.calibration(case.family, case.precision)
    if theirs is not None:
        measured = case.rows["latency_ms"].to_numpy(float) * 1e3
        found = case.estimate(theirs, np.ones(len(measured), bool)).time_us
        print(
            f"| {case.device.name} | {case.precision} | {len(measured)} | {summary(errors(found, measured))} |",
            flush=True,
        )


def toml(case: Case, unseen: np.ndarray, constants: dict[str, float]) -> str:
    lines = [f"[calibrated.{case.family}.{case.precision}]"]
    lines += [f"{name} = {float(f'{value:.3g}'):g}" for name, value in constants.items()]
    if case.kernel:
        lines.append(f'kernel = "{case.kernel}"')
    lines.append(
        f'fitted_on = "aiconfigurator measured tables (Apache-2.0), {FILES[case.family]}: {len(case.rows)} rows, '
        'all shape groups; benchmarks/fit_silicon.py"'
    )
    lines.append(f"error_percent = {unseen.mean():.1f}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=list(FILES), action="append")
    parser.add_argument("--device", action="append", help="name; default: all")
    parser.add_argument("--ablate", action="store_true", help="what each constant is worth: refitted without it")
    parser.add_argument("--carry", metavar="NAME", help="errors with this device's shipped constants, nothing refitted")
    parser.add_argument("--toml", type=Path, help="folder for one file of constants per device")
    args = parser.parse_args()
    wanted = {HardwareSpec.load(name).name for name in args.device or []}
    blocks: dict[str, list[str]] = {}
    for family in args.family or FILES:
        table = pd.read_parquet(args.folder / f"{FILES[family]}.parquet")
        print(f"\n{family}: error in percent, mean / median / p90\n")
        print("| device | precision | rows | not fitted | half A | half B | roofline | below roofline % |")
        print("|-|-|-|-|-|-|-|-|")
        everything = []
        for case in cases(family, table):
            if wanted and case.device.name not in wanted:
                continue
            if args.ablate:
                ablate(case)
                continue
            if args.carry:
                carried(case, HardwareSpec.load(args.carry))
                continue
            unseen, constants = report(case)
            everything.append(unseen)
            blocks.setdefault(case.device.name, []).append(toml(case, unseen, constants))
        if everything:
            print(f"| all | | {sum(map(len, everything))} | {summary(np.concatenate(everything))} | | | | |")
    if args.toml is not None:
        args.toml.mkdir(parents=True, exist_ok=True)
        for name, texts in blocks.items():
            (args.toml / f"{name}.toml").write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
