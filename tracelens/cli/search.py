"""Find the best way to split a model over devices, by the analytic model of arXiv 2410.00273.

Prints the fastest configurations that fit, per device count. The rule set `paper` reproduces the published rows
exactly; `repaired` mends its three defects (docs/search.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

NOTHING_FITS = 3
_SHOWN = (
    "n_gpus",
    "strategy",
    "throughput",
    "t",
    "mem",
    "tp1",
    "tp2",
    "pp",
    "dp",
    "mbs",
    "nv_tp1",
    "nv_tp2",
    "nv_dp",
    "nv_pp",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, help="gpt3-175b, gpt3-1t, vit-era5, or l=2048,e=25600,h=160,depth=128")
    add(
        "--cluster",
        required=True,
        metavar="GPU-nvsN",
        help="the paper's systems: a100|h200|b200|b200-next with -nvs4, -nvs8, -nvs64 ...",
    )
    add("--strategy", choices=("1d", "2d", "2d-seqp", "all"), default="all")
    add("--gpus", required=True, metavar="N|N..M|N,M", help="device counts; N..M doubles from N")
    add("--global-batch", type=int, required=True, metavar="SAMPLES")
    add("--top", type=int, default=10, metavar="N")
    add("--rules", choices=("paper", "repaired"), default="paper")
    add("-o", "--output", type=Path, metavar="FILE.csv", help="write the table with all columns")


def run(args: argparse.Namespace) -> int:
    import pandas as pd

    from tracelens.projection.search import search
    from tracelens.projection.search.paper import REPAIRS, PaperRules, PaperSystem, load_shape
    from tracelens.projection.search.space import STRATEGIES
    from tracelens.whole import whole_file

    device, domain = _system(args.cluster)
    shape, counts = load_shape(args.model), _counts(args.gpus)
    frames = [
        search(
            PaperRules(
                shape=shape,
                strategy=strategy,
                system=PaperSystem.load(device, domain=domain),
                repairs=frozenset(REPAIRS if args.rules == "repaired" else ()),
            ),
            counts,
            global_batch=args.global_batch,
            top=args.top,
            model=args.model,
        )
        for strategy in (STRATEGIES if args.strategy == "all" else (args.strategy,))
    ]
    table = pd.concat(frames, ignore_index=True)
    if args.output:
        with whole_file(args.output) as file:
            file.write(table.to_csv(index=False).encode())
    print(_text(table, counts))
    return 0 if len(table) else NOTHING_FITS


def _text(table: pd.DataFrame, counts: list[int]) -> str:
    best = table.sort_values(["n_gpus", "throughput"], ascending=[True, False], kind="stable")
    lines = [best[list(_SHOWN)].to_string(index=False, float_format=lambda v: f"{v:.3f}")] if len(best) else []
    absent = [str(n) for n in counts if n not in set(table["n_gpus"])]
    if absent:
        lines.append(f"no feasible configuration on {', '.join(absent)} devices")
    return "\n".join(lines)


def _system(text: str) -> tuple[str, int]:
    from tracelens.errors import UsageError

    device, separator, domain = text.lower().rpartition("-nvs")
    if not separator or not domain.isdecimal() or int(domain) < 1:
        raise UsageError(f"--cluster takes a system of the paper and its domain size, like b200-nvs8; got {text!r}")
    return device, int(domain)


def _counts(text: str) -> list[int]:
    from tracelens.errors import UsageError

    try:
        first, dots, last = text.partition("..")
        counts = [int(n) for n in text.split(",")] if not dots else []
        n = int(first) if dots else 0
        while dots and n <= int(last):
            counts.append(n)
            n *= 2
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise UsageError(f"--gpus takes 512, 512,1024 or 4..16384 (doubling), all at least 1; got {text!r}")
    return counts
