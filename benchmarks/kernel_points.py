"""Estimates of the tile model beside published kernel throughputs, the fastest library at each shape.

    python benchmarks/kernel_points.py kernel_points.csv [--device NAME]

Points without a full shape (averages, missing heads) or of a device class ("B200-class") that names none are listed as
left out; the latter are priced on B200.
"""

from __future__ import annotations

import argparse
import re

import pandas as pd

from tracelens.backends import System
from tracelens.backends.roofline_and_tile import Tile
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM, GroupedGEMMVariableK, PerfModel
from tracelens.types.dtypes import DType

DEVICES = {"Blackwell (B200/B300, see PR)": "b200", "B200-class SM100": "b200"}


def model_of(row: pd.Series) -> PerfModel | None:
    """The operation of one point; None where the shape is not complete."""
    sizes = {key: int(value) for key, value in re.findall(r"([A-Z](?:/G)?)=(\d+)", row["shape"])}
    fp8 = str(row["dtype"]).startswith("fp8")
    types = {"dtype": DType.FP8_E4M3FN if fp8 else DType.BF16, "dtype_out": DType.BF16}
    op = row["op"]
    if op == "gemm" and {"M", "N", "K"} <= set(sizes):
        scales = sizes["M"] * sizes["K"] // 128 if row["dtype"] == "fp8_block" else 0
        return GEMM(m=sizes["M"], n=sizes["N"], k=sizes["K"], scale_elements=scales, **types)
    if op.startswith("grouped_gemm") and {"G", "M/G", "N", "K"} <= set(sizes):
        kind = GroupedGEMMVariableK if op.endswith("wgrad") else GroupedGEMM
        n, k = (sizes["K"], sizes["N"]) if op.endswith("dgrad") else (sizes["N"], sizes["K"])
        return kind(m=sizes["G"] * sizes["M/G"], n=n, k=k, groups=sizes["G"], **types)
    if op.startswith("sdpa") and {"B", "S", "D"} <= set(sizes):
        heads = sizes.get("H") or sizes.get("HQ")
        # The flash-attention benchmark keeps heads * D at 2048 and batch * S at 32768 where it names no heads.
        if heads is None and sizes["B"] * sizes["S"] == 32768 and "FA4" in str(row["library"]):
            heads = 2048 // sizes["D"]
        if heads is None:
            return None
        causal = "causal=True" in row["shape"] or (" causal" in row["shape"] and "causal=False" not in row["shape"])
        forward = SDPA(
            b=sizes["B"], s_q=sizes["S"], s_kv=sizes["S"], q_heads=heads, kv_heads=heads, d_qk=sizes["D"],
            d_v=sizes["D"], mask="top_left" if causal else "none",
        )  # fmt: skip
        return forward.backward() if op == "sdpa_bwd" else forward
    return None


def points(path: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(usable points with their model, the fastest library each; points left out)."""
    table = pd.read_csv(path)
    table["model"] = [model_of(row) for _, row in table.iterrows()]
    usable = table[table["model"].notna() & table["latency_ms"].notna()]
    left = table.drop(usable.index)
    fastest = usable.loc[usable.groupby(["op", "gpu", "dtype", "shape"])["latency_ms"].idxmin()].sort_index()
    fastest = fastest.assign(device=[HardwareSpec.load(DEVICES.get(gpu, gpu)).name for gpu in fastest["gpu"]])
    return fastest, left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points")
    parser.add_argument("--device")
    args = parser.parse_args()
    usable, left = points(args.points)
    if args.device:
        usable = usable[usable["device"] == HardwareSpec.load(args.device).name]
    tile, rows = Tile(), []
    for _, row in usable.iterrows():
        found = tile.estimate(row["model"], System(device=HardwareSpec.load(row["device"])))
        error = None if found is None else (found.time_us / row["latency_ms"] / 1e3 - 1) * 100
        rows.append((row["op"], row["device"], row["dtype"], error))
        shown = "no estimate" if found is None else f"{found.time_us:9.1f} us  {error:+6.1f} %"
        print(f"{row['device']:10} {row['op']:20} {row['shape']:40} {row['latency_ms'] * 1e3:9.1f} us  {shown}")
    frame = pd.DataFrame(rows, columns=["op", "device", "dtype", "error"]).dropna()
    frame["error"] = frame["error"].abs()
    print("\n| device | op | dtype | points | mean | median | largest |\n|-|-|-|-|-|-|-|")
    for (device, op, dtype), errors in frame.groupby(["device", "op", "dtype"])["error"]:
        print(
            f"| {device} | {op} | {dtype} | {len(errors)} | {errors.mean():.1f} | {errors.median():.1f} "
            f"| {errors.max():.1f} |"
        )
    print(f"\nleft out: {len(left)} points without a full shape or time")


if __name__ == "__main__":
    main()
