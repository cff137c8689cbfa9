"""Find the best way to split a model over devices: degrees, micro-batch, schedule, memory savings, placement.

Prints the fastest configurations that fit, per device count, why the winner wins, and the winner's step as the event
graph has it. The default rules price a whole step by this project's backends; `--rules paper` is the published model
of arXiv 2410.00273, exactly (docs/search.md).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.option_fields import above_zero, positive

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.projection.search.request import Answer, Request

NOTHING_FITS = 3
INTERRUPTED = 130
_SHOWN = (
    "strategy", "n_gpus", "throughput", "t", "mem", "tp1", "tp2", "pp", "vpp", "dp", "ep", "mbs", "zero", "recompute",
    "precision", "nb", "nv_tp1", "nv_tp2", "nv_dp", "nv_pp", "usd_per_mtoken", "j_per_token",
)  # fmt: skip
#: Shown only where some row differs from this.
_USUAL: dict[str, Any] = {"tp2": 1, "vpp": 1, "ep": 1, "precision": "bf16", "nv_tp2": 1, "recompute": "none"}
_PARTS = {
    "t_comp": "computing", "t_mem": "memory-bound operations", "t_tp_comm": "tensor and context communication",
    "t_ep_comm": "expert exchanges", "t_recompute": "recomputation", "t_host": "the host",
    "t_pp_comm": "transfers between stages", "t_bubble": "the pipeline bubble", "t_dp_comm": "weights and gradients",
    "t_optimizer": "the optimizer",
}  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, help="a bundled model, config.json, model file, or l=2048,e=25600,h=160,depth=128")
    add(
        "--cluster",
        required=True,
        help="a cluster, a device, or a system of the paper (b200-nvs8); X-nvsN: domain of N",
    )
    add("--strategy", choices=("1d", "2d", "2d-seqp", "all"), default="all", help="default: all")
    add("--gpus", metavar="N|N..M|N,M", help="device counts; N..M doubles from N")
    add("--max-gpus", type=positive, metavar="N", help="no more devices; alone: 1, 2, 4 ... N")
    add("--global-batch", type=positive, required=True, metavar="SAMPLES")
    add("--sequence", type=positive, metavar="TOKENS", help="default: the model's own, else 4096")
    add("--precision", default="bf16", metavar="P,P", help="bf16, fp16, fp8, mxfp8, nvfp4; several are searched")
    add("--rules", choices=("corrected", "paper", "repaired"), default="corrected", help="default: %(default)s")
    add("--backend", metavar="NAME|FAMILY=NAME,...", help="who prices operations; default: tile,collectives")
    add("--top", type=positive, default=10, metavar="N", help="per device count and strategy; default: %(default)s")
    add(
        "--fix", action="append", default=[], metavar="NAME=VALUE", help="e.g. tp=8, zero=1, recompute=none; repeatable"
    )
    add("--forbid", action="append", default=[], metavar="NAME", help="keep a dimension at 1, e.g. pp; repeatable")
    add("--memory-headroom", type=float, default=0.0, metavar="SHARE", help="of device memory to leave free")
    add("--objective", choices=("time", "cost", "energy"), default="time", help="what the winner is best in")
    add("--price-per-gpu-hour", type=above_zero, metavar="USD")
    add("--pareto", action="store_true", help="also print what nothing beats in time, devices and memory")
    add("--explain", type=int, metavar="RANK", help="list every operation of the RANK-th best, 0 the winner")
    add(
        "--sweep", action="append", default=[], metavar="NAME=V/V,...",
        help="search anew for every combination of flops, hbm_gb, hbm_gb_s, nvs, model, cluster; V..V doubles",
    )  # fmt: skip
    add("--executor", default="processes", metavar="NAME", help="of a sweep: processes, serial, dask://HOST:PORT, mpi")
    add("--jobs", type=positive, metavar="N", help="worker processes of a sweep; default: one per core")
    add("--plot", type=Path, metavar="FOLDER", help="scaling, components, degrees, landscape, heat maps as SVG")
    add("-o", "--output", type=Path, metavar="FILE", help="all columns as .csv, .json or .xlsx")


def run(args: argparse.Namespace) -> int:
    from tracelens.projection.search.request import answer
    from tracelens.report.charts.search_plots import write_plots
    from tracelens.report.export import refuse_unknown, write_frame

    if args.output is not None:
        refuse_unknown(args.output)
    request = request_of(args)
    if args.sweep:
        return _run_sweep(request, args)
    found = answer(request)
    if args.output is not None:
        about = {"model": request.model, "cluster": request.cluster, "rules": request.rules}
        fitting = found.front() if args.pareto else found.fits
        write_frame(args.output, fitting if len(found.fits) else found.table, about)
    print("\n".join(_text(found, args)))
    if args.plot is not None and len(found.fits):
        print(f"wrote {', '.join(map(str, write_plots(args.plot, found.fits, found.ranking())))}")
    return 0 if len(found.fits) else NOTHING_FITS


def _run_sweep(request: Request, args: argparse.Namespace) -> int:
    import pandas as pd

    from tracelens.errors import InputError, UsageError
    from tracelens.executors import open_executor
    from tracelens.projection.search.sweep import parse_axes, points, sweep
    from tracelens.report.charts.search_plots import write_plots
    from tracelens.report.export import write_frame

    if args.pareto or args.explain is not None:
        raise UsageError("--sweep writes a table of all points: leave out --pareto and --explain")
    if args.output is None or args.output.suffix != ".csv":
        raise UsageError("--sweep needs -o FILE.csv, which a later run goes on with")
    done = None
    if args.output.exists():
        try:
            done = pd.read_csv(args.output)
        except (OSError, ValueError) as error:
            raise InputError(f"{args.output} is there and no table of an earlier sweep: {error}") from error
    requests = points(request, parse_axes(args.sweep))
    try:
        with open_executor(args.executor, jobs=args.jobs) as executor:
            table, errors = sweep(
                requests, executor, done=done, progress=_progress,
                save=lambda rows: write_frame(args.output, rows, {}) if len(rows) else None,
            )  # fmt: skip
    except KeyboardInterrupt:
        print(f"\ninterrupted; the same command goes on with what {args.output} has")
        return INTERRUPTED
    for reason in errors:
        print(f"no result: {reason}")
    print(f"{len(requests)} points, {len(table)} rows in {args.output}")
    if args.plot is not None and len(table):
        print(f"wrote {', '.join(map(str, write_plots(args.plot, table, {})))}")
    return 0 if len(table) else NOTHING_FITS


def _progress(done: int, total: int) -> None:
    """A bar on stderr, when that is a terminal."""
    if sys.stderr.isatty():
        bar = "#" * (30 * done // max(total, 1))
        print(f"\r [{bar:30}] {done} of {total} points", end="\n" if done == total else "", file=sys.stderr, flush=True)


def request_of(args: argparse.Namespace) -> Request:
    """What the flags ask for. UsageError where they do not fit."""
    from tracelens.projection.projection_options import BACKENDS
    from tracelens.projection.search.request import Request
    from tracelens.projection.search.rules import Wanted
    from tracelens.projection.search.space import STRATEGIES

    return Request(
        model=args.model,
        cluster=args.cluster,
        gpus=tuple(_counts(args.gpus, args.max_gpus)),
        global_batch=args.global_batch,
        strategies=STRATEGIES if args.strategy == "all" else (args.strategy,),
        rules=args.rules,
        top=args.top,
        sequence=args.sequence,
        precisions=tuple(args.precision.split(",")),
        backends=args.backend or BACKENDS,
        wanted=Wanted(fixed=_fixed(args.fix), forbidden=frozenset(args.forbid), headroom=args.memory_headroom),
        objective=args.objective,
        price_per_gpu_hour=args.price_per_gpu_hour,
    )


def _text(found: Answer, args: argparse.Namespace) -> list[str]:
    lines = [*_asked(found), ""]
    if len(found.table):
        lines += [_table(found.best.sort_values("n_gpus", kind="stable")), ""]
        lines += _spread(found.fits)
    absent = [str(n) for n in sorted(set(found.request.gpus)) if n not in set(found.fits["n_gpus"])]
    if absent:
        lines.append(f"no feasible configuration on {', '.join(absent)} devices")
    if len(found.fits):
        lines += ["", *_winner(found)]
    elif len(found.table):
        need, have = found.best["mem"].iloc[0], found.rule_sets[0].capacity_gb
        lines.append(f"does not fit: needs {need:.1f} GB per device, the device has {have:.1f}")
    if args.pareto and len(found.fits):
        lines += ["", "nothing beats these in time, devices and memory at once", _table(found.front())]
    if args.explain is not None:
        rows = found.explained(args.explain)
        lines += [
            "",
            f"operations of row {args.explain}, seconds per step",
            rows.to_string(index=False, float_format=_short),
        ]
    return lines


def _asked(found: Answer) -> list[str]:
    """What was searched, and what was taken for granted."""
    from tracelens.projection.search.whole_step import CorrectedRules

    request, rules = found.request, found.rule_sets[0]
    batch = f"{request.global_batch} sequences of {rules.tokens_per_sample} tokens"
    lines = [f"{request.model} on {request.cluster}, {batch} per step, rules {request.rules}"]
    if isinstance(rules, CorrectedRules):
        lines += [f"note: {rules.system.note}"] if rules.system.note else []
        if not rules.model.vocab:
            lines.append("note: the model's vocabulary is not known; embedding and logits are left out")
    return lines


def _table(rows: pd.DataFrame) -> str:
    shown = [name for name in _SHOWN if name in rows and not rows[name].isna().all()]
    shown = [name for name in shown if name not in _USUAL or (rows[name] != _USUAL[name]).any()]
    units = {"throughput": "samples/s", "t": "t_s", "mem": "mem_gb"}
    return (
        rows[shown].rename(columns=units).to_string(index=False, float_format=lambda value: f"{value:.3f}", na_rep="")
    )


def _short(value: float) -> str:
    return "" if value == 0 else f"{value:.4g}"


def _spread(rows: pd.DataFrame) -> list[str]:
    lines = ["throughput of these, samples/s   highest     lowest"]
    for n, each in rows.groupby("n_gpus")["throughput"]:
        lines.append(f"  {n:>8} devices          {each.max():10.3f} {each.min():10.3f}")
    return lines


def _winner(found: Answer) -> list[str]:
    best = found.best.iloc[0]
    t = float(best["t"])
    lines = [f"why the winner wins: {t:.3f} s per step on {best['n_gpus']} devices, {best['mem']:.1f} GB of each"]
    parts = sorted(((float(best[name]), word) for name, word in _PARTS.items() if name in best), reverse=True)
    lines.append("  " + ", ".join(f"{value / t:.1%} {word}" for value, word in parts if value / t >= 0.005))
    for reason in found.reasons():
        most = f", {_PARTS[reason.part]} +{reason.part_s:.3f} s" if reason.part_s > 0 else ""
        change = f"{reason.dimension} {reason.value} and not {reason.other}"
        lines.append(f"  {change}: that is {reason.slower:.1%} slower at best{most}")
    again = found.rechecked()
    if again is not None:
        step_s = again.step_us / 1e6
        lines.append(f"re-checked by the event graph (tracelens project): {step_s:.3f} s, {step_s / t - 1:+.1%}")
    return lines


def _fixed(given: list[str]) -> dict[str, Any]:
    from tracelens.errors import UsageError

    fixed: dict[str, Any] = {}
    for item in (part for text in given for part in text.split(",")):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name or not value:
            raise UsageError(f"--fix takes NAME=VALUE, like tp=8; got {item!r}")
        fixed[name] = int(value) if value.isdecimal() else value
    return fixed


def _counts(text: str | None, most: int | None) -> list[int]:
    from tracelens.errors import UsageError

    if text is None:
        if most is None:
            raise UsageError("--gpus or --max-gpus says how many devices")
        text = f"1..{most}"
    try:
        first, dots, last = text.partition("..")
        counts = [int(n) for n in text.split(",")] if not dots else []
        n = int(first) if dots else 0
        while dots and 0 < n <= int(last):
            counts.append(n)
            n *= 2
    except ValueError:
        counts = []
    counts = [n for n in counts if most is None or n <= most]
    if not counts or min(counts) < 1:
        raise UsageError(f"--gpus takes 512, 512,1024 or 4..16384 (doubling), all at least 1; got {text!r}")
    return counts
