"""Find the best way to split a model over devices: degrees, micro-batch, schedule, memory savings, placement.

With --serve it finds the best deployment of a server instead: splits, replicas, separate prefill, batch limits.

Prints the fastest configurations that fit, per device count, and why the best one wins. The default rules estimate a
whole step; `--rules paper` is the published model of arXiv 2410.00273 (docs/search.md).
"""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.data_table import read_table
from tracelens.files.option_fields import (
    above_zero,
    arguments_of,
    comma_list,
    given_options,
    integer,
    option,
    options_of,
    output_option,
    positive,
    refuse_unread,
)
from tracelens.files.say import Progress, say, say_lines
from tracelens.predict.projection.projection_options import PUBLISHED, SWEPT, SearchOptions

if TYPE_CHECKING:
    from tracelens.predict.projection.search.request import Answer, Request
    from tracelens.predict.serving.best_deployment import Wanted

_SERVED = "search of a server (--serve)"
SCHEMA = "tracelens.search/1"
NOTHING_FITS = 3
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCommand(SearchOptions):
    """The options of ``tracelens.search`` and those of the command alone."""

    model: str = option("a bundled model, config.json, model file, or l=2048,e=25600,h=160,depth=128", MISSING)
    cluster: str = option("a cluster, a device, or a system of the paper (b200-nvs8); X-nvsN: domain of N", MISSING)
    global_batch: int | None = option("sequences per step; required without --serve", kind=positive, metavar="SAMPLES")  # type: ignore[assignment]
    serve: bool = option("search deployments of a server: tokens/s per GPU against tokens/s per user", False)
    input_tokens: str = option("prompt tokens, as in serve", "1024", metavar="N|KIND:MEAN:SPREAD", group=_SERVED)
    output_tokens: str = option("output tokens", "128", metavar="N|KIND:MEAN:SPREAD", group=_SERVED)
    concurrency: int | None = option(
        "requests at once in the whole deployment; default: every load", kind=integer, group=_SERVED
    )
    rate: float | None = option("arrivals per second: the fewest GPUs that hold them", kind=above_zero, group=_SERVED)
    slo: str | None = option(
        "limits that 99 %% of requests keep; default: MLPerf's", metavar="ttft=500ms,tpot=50ms", group=_SERVED
    )
    engine: tuple[str, ...] = option(
        "engines to search, as in serve; default: pooled over all", (), read=comma_list, metavar="NAME,NAME",
        group=_SERVED,
    )  # fmt: skip
    pareto: bool = option("also print the Pareto front: time, devices, memory; with energy: time, J", False)
    explain: int | None = option(
        "list every op of the configuration with this rank (0: the best)", kind=integer, metavar="RANK"
    )
    sweep: tuple[str, ...] = option(
        "repeat the search for every combination of flops, hbm_gb, hbm_gb_s, nvs, vector_flops, nvlink_gb_s, ib_gb_s, "
        "nvlink_us, ib_us, nvlink_eff, ib_eff, nic_factor, model, cluster; V..V doubles, V..V:N are N values",
        (), repeat=True, metavar="NAME=V/V,...", group=SWEPT,
    )  # fmt: skip
    executor: str = option(
        "where a sweep runs: processes, serial, dask://HOST:PORT, mpi", "processes", metavar="NAME", group=SWEPT
    )
    jobs: int | None = option(
        "worker processes of a sweep; default: one per core", kind=positive, metavar="N", group=SWEPT
    )
    plot: Path | None = option(
        "write plots of scaling, components, degrees, landscape, heat maps as SVG",
        kind=Path,
        metavar="FOLDER",
        group=SWEPT,
    )
    compare: Path | None = option(
        "compare with results of the published code", kind=Path, metavar="FILE.npy", group=PUBLISHED
    )
    save_system: Path | None = option(
        "write the system of --rules paper as JSON of the published code",
        kind=Path,
        metavar="FILE.json",
        group=PUBLISHED,
    )
    output: Path | None = output_option(
        "file to write: all columns as .csv, .json or .xlsx, a page as .html, or .npy as the published code does"
    )


configure = arguments_of(SearchCommand)

#: What --serve reads beside its own group, and its own group.
_SHARED = {
    "model", "cluster", "gpus", "max_gpus", "precision", "backend", "top", "fix", "forbid", "objective", "output",
    "serve",
}  # fmt: skip
#: Options of ``serve`` that --fix may give all deployments, beside the dimensions of the search.
_FIXABLE = ("kv", "speculate", "draft_model", "skew", "redundant_experts", "kv_tokens", "router")
_OWN = {"input_tokens", "output_tokens", "concurrency", "rate", "slo", "engine"}


def run(args: argparse.Namespace) -> int:
    if args.serve:
        from tracelens.predict.serving.best_deployment import plan
        from tracelens.report.export import refuse_unknown
        from tracelens.report.serving_report import plan_text, write_plan

        refuse_unread(args, configure, "--serve", lambda name: name not in _SHARED | _OWN)
        if args.output is not None:
            refuse_unknown(args.output, ".html")
        found = plan(_wanted(args))
        if args.output is not None:
            write_plan(found, args.output)
        say_lines(plan_text(found))
        if args.output is not None:
            say(f"wrote {args.output}")
        return 0 if found.points else NOTHING_FITS
    refuse_unread(args, configure, "a search without --serve", _OWN.__contains__)
    if args.global_batch is None:
        raise UsageError("required: --global-batch; see tracelens search --help")
    return _run_training(args)


def _wanted(args: argparse.Namespace) -> Wanted:
    """What --serve is asked. UsageError for a dimension that ``serve`` does not have."""
    from tracelens.predict.serving.best_deployment import DIMENSIONS, Wanted
    from tracelens.predict.serving.serving_options import ServingConfig

    asked = options_of(SearchOptions, argparse.Namespace(**{**vars(args), "global_batch": 1}))
    kept = {name: 0 if name.endswith("replicas") and name != "replicas" else 1 for name in asked.forbid}
    fixed = kept | asked.fixed()
    for name in fixed:
        if name not in (*DIMENSIONS, *_FIXABLE):
            raise UsageError.unknown("dimension of --serve", name, (*DIMENSIONS, *_FIXABLE))
    names = ("input_tokens", "output_tokens", "concurrency", "rate", "slo", "backend")
    is_given = "precision" in given_options(args, configure)
    engines = comma_list(args.engine) if args.engine else (None,)
    return Wanted(
        model=args.model, cluster=args.cluster, counts=asked.device_counts(), fixed=fixed, top=asked.top,
        asked=ServingConfig(**{name: getattr(args, name) for name in names}), engines=engines,
        weights=tuple(asked.precision) if is_given else (None,), objective=asked.objective,
    )  # fmt: skip


def _run_training(args: argparse.Namespace) -> int:
    from tracelens.laboratory.paper_systems import paper_system, system_json
    from tracelens.laboratory.published_results import differences, read_results
    from tracelens.predict.projection.search.request import Request, answer
    from tracelens.report.charts import write_plots
    from tracelens.report.export import refuse_unknown
    from tracelens.report.projection_report import search_text

    if args.output is not None:
        refuse_unknown(args.output, ".html", ".npy")
    request = Request.of(args.model, args.cluster, options_of(SearchOptions, args))
    if args.sweep:
        return _run_sweep(request, args)
    theirs = None if args.compare is None else read_results(args.compare)
    if args.save_system is not None:
        write_whole(args.save_system, system_json(paper_system(request.cluster)))
    found = answer(request)
    if args.output is not None:
        _write(found, args)
    say_lines(search_text(found, pareto=args.pareto, explain=args.explain))
    for line in differences(found.fits, theirs) if theirs is not None and len(found.fits) else ():
        say(line)
    if args.plot is not None and len(found.fits):
        say(f"wrote {', '.join(map(str, write_plots(args.plot, found.fits, found.ranking())))}")
    return 0 if len(found.fits) else NOTHING_FITS


def _write(found: Answer, args: argparse.Namespace) -> None:
    from tracelens.laboratory.published_results import results_npy
    from tracelens.report.export import write_frame
    from tracelens.report.projection_report import search_page

    request, fitting = found.request, found.front() if args.pareto else found.fits
    if args.output.suffix == ".html":
        write_whole(args.output, search_page(found))
    elif args.output.suffix == ".npy":
        if request.rules == "corrected" or not len(fitting):
            raise UsageError("-o FILE.npy takes fitting results of --rules paper or repaired; for others give FILE.csv")
        write_whole(args.output, results_npy(fitting))
    else:
        about = {"schema": SCHEMA, "model": request.model, "cluster": request.cluster, "rules": request.rules}
        write_frame(args.output, fitting if len(found.fits) else found.table, about)


def _run_sweep(request: Request, args: argparse.Namespace) -> int:
    from tracelens.files.executors import open_executor
    from tracelens.predict.projection.search.request import parse_axes, points, sweep
    from tracelens.report.charts import write_plots
    from tracelens.report.export import write_frame
    from tracelens.report.projection_report import compared

    if args.pareto or args.explain is not None:
        raise UsageError("--sweep cannot be combined with --pareto or --explain")
    if args.output is None or args.output.suffix != ".csv":
        raise UsageError("--sweep needs -o FILE.csv, from which a later run can resume")
    done = None
    if args.output.exists():
        done = read_table(args.output)
    requests = points(request, parse_axes(args.sweep))
    try:
        with open_executor(args.executor, jobs=args.jobs) as executor:
            table, errors = sweep(
                requests, executor, done=done, progress=Progress("searching", "points"),
                save=lambda rows: write_frame(args.output, rows, {}) if len(rows) else None,
            )  # fmt: skip
    except KeyboardInterrupt:
        say()
        say(f"interrupted; the same command goes on with what {args.output} has")
        return INTERRUPTED
    for reason in errors:
        say(f"no result: {reason}")
    say(f"{len(requests)} points, {len(table)} rows in {args.output}")
    for line in compared(table):
        say(line)
    if args.plot is not None and len(table):
        say(f"wrote {', '.join(map(str, write_plots(args.plot, table, {})))}")
    return 0 if len(table) else NOTHING_FITS
