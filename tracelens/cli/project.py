"""Project a training step: time, throughput, MFU, memory per stage, where the time goes, the largest levers.

Without a degree (--tp, --pp, --vpp, --cp, --ep, --etp, --zero, --shard) it takes the fastest split that fits.
One configuration; with --sweep every combination of some values; or with --batch a CSV file of configurations (columns
as in docs/projection.md), projected row by row.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import UsageError
from tracelens.files import option_fields
from tracelens.files.atomic_write import write_whole
from tracelens.files.data_table import read_rows
from tracelens.files.documents import is_report
from tracelens.files.option_fields import arguments_of, option, options_of, output_option, refuse_unread
from tracelens.files.say import say, say_lines
from tracelens.predict.projection.projection_options import ProjectOptions
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.token_routing import Skew
from tracelens.types.units import shared_by_all

if TYPE_CHECKING:
    from tracelens.predict.projection.project import Result

DOES_NOT_FIT = 3
_MEASURED = "measured steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectCommand(ProjectOptions):
    """The options of ``tracelens.project`` and those of the command alone."""

    model: str | None = option("bundled model, Hugging Face config or model file", metavar="NAME|config.json")
    cluster: str | None = option("cluster, or device in its standard node", metavar="NAME|FILE.toml")
    launch: Path | None = option(
        "read model and options from Megatron-LM's argument list or Primus's .yaml; options on the command line take "
        "precedence",
        kind=Path, metavar="FILE",
    )  # fmt: skip
    trace: Path | None = option(
        "write the step as Kineto traces, for `tracelens report` and Perfetto", kind=Path, metavar="FOLDER"
    )
    trace_ranks: str = option("ranks to write; default: one per distinct rank", "all", metavar="0,8")
    from_report: Path | None = option(
        "use operation times of this report of a one-node trace; model what was not recorded",
        kind=Path, metavar="report.json", group=_MEASURED,
    )  # fmt: skip
    traced: str | None = option(
        "configuration of the measured step, where it differs; with --from-report, its unexplained time is added",
        metavar='"nodes=1 ep=8"', group=_MEASURED,
    )  # fmt: skip
    anchor: str | None = option(
        "scale by one measured step of this model and device; with --batch a row's id",
        metavar="report.json|ID", group=_MEASURED,
    )  # fmt: skip
    against: Path | None = option(
        "show measured times of a trace or report.json beside projected ones",
        kind=Path,
        metavar="TRACE",
        group=_MEASURED,
    )
    batch: Path | None = option("project every row of a table instead", kind=Path, metavar="POINTS.csv")
    sweep: tuple[str, ...] = option(
        "project every value; repeatable, for every combination", (), repeat=True, metavar="tp=1,2,4"
    )
    output: Path | None = output_option(
        "one step: FILE.json, the page FILE.html, or its operations as .csv or .xlsx; --sweep: the table, and "
        "beside it its plot as .svg; --batch: FILE.csv"
    )


CONSTANTS = ("framework", "host_us", "gemm_factor", "attention_factor", "memory_factor")
IN_BATCH = (*CONSTANTS, "batch", "output", "anchor", "backend", "gpu_clock_mhz", "power_w", "skew")
OF_ONE_STEP = ("from_report", "traced", "against", "anchor", "trace", "trace_ranks")
NOT_SWEPT = (*OF_ONE_STEP, "launch", "sweep", "batch", "output", "help")


configure = arguments_of(ProjectCommand)


def run(args: argparse.Namespace) -> int:
    if args.batch:
        refuse_unread(args, configure, "--batch", lambda name: name not in IN_BATCH)
        return _run_batch(args)
    if args.sweep:
        refuse_unread(args, configure, "--sweep", lambda name: name in OF_ONE_STEP)
    if args.from_report:
        unread = (*CONSTANTS, "straggler", "fsdp_overlap")
        refuse_unread(args, configure, "--from-report", lambda name: name in unread)
    if args.launch:
        args = _launched(args)
    if not args.model or not args.cluster:
        raise UsageError(
            "name a model and a cluster, as in --model llama3-70b --cluster dgx-h100 (tracelens models list and "
            "devices list show them), or a table: --batch"
        )
    return _run_sweep(args) if args.sweep else _run_one(args)


def _run_one(args: argparse.Namespace) -> int:
    from tracelens.report.export import refuse_unknown, write_frame
    from tracelens.report.projection_report import step_text

    found = _measured(args, _project(args))
    beside = _beside(args.against, found) if args.against else ""
    # Files first: a reader that closes standard output must not cost them
    files = found.write_traces(args.trace, _ranks(args.trace_ranks)) if args.trace else ()
    if args.output and refuse_unknown(args.output, ".html") == ".html":
        from tracelens.report.projection_report import step_page

        write_whole(args.output, step_page(found))
    elif args.output and args.output.suffix == ".json":
        write_whole(args.output, found.to_json())
    elif args.output:
        write_frame(args.output, found.ops(found.run.busiest), {})
    if found.split is None and not _is_split(args):
        say("No degree was given, and no split fits: this is the step without any")
    say_lines(step_text(found))
    if found.split is not None:
        given = option_fields.given_options(args, configure)
        say(f"the same step: {shlex.join(['tracelens', *found.split.command(args.command_line, given)])}")
    if args.against:
        say_lines(f"\nprojected and measured times of a step on the busiest rank, us\n{beside}")
    if args.trace:
        say(f"wrote {len(files)} traces to {args.trace}")
    if args.output:
        say(f"wrote {args.output}")
    return DOES_NOT_FIT if found.projection.infeasible else 0


def _project(args: argparse.Namespace) -> Result:
    """With the best split where nobody gave one and one fits."""
    from tracelens.backends.base import System
    from tracelens.predict.projection.project import best_split, project, ranks_of

    asked = options_of(ProjectOptions, args)
    if _is_split(args):
        return project(args.model, args.cluster, asked)
    given = option_fields.given_options(args, configure) | set(getattr(args, "swept", ()))
    ModelConfig.load(args.model)  # an unknown name is said before what else is missing
    ranks = ranks_of(System.load(args.cluster), args.cluster, asked.nodes, asked.gpus)
    split = best_split(args.model, args.cluster, asked, ranks=ranks, given=given)
    found = project(args.model, args.cluster, asked if split is None else split.on(asked))
    return replace(found, split=split)


def _is_split(args: argparse.Namespace) -> bool:
    """Whether a degree is given, or comes with a launch file or with what was measured."""
    from tracelens.predict.projection.project import DEGREES

    given = option_fields.given_options(args, configure) | set(getattr(args, "swept", ()))
    return not given.isdisjoint((*DEGREES, "launch", "from_report", "traced", "against", "anchor"))


def _launched(args: argparse.Namespace) -> argparse.Namespace:
    """With what the launch configuration says, where an option has its default; says what it did not read."""
    from tracelens.predict.workload.launch_files import read_launch

    found = read_launch(args.launch)
    options = dict(found.options)
    if args.nodes or args.gpus:
        options = {name: value for name, value in options.items() if name not in ("nodes", "gpus")}
    args = option_fields.filled_in(args, configure, options, args.launch)
    taken = {name: value for name, value in options.items() if getattr(args, name) == value}
    say(f"{args.launch}: " + ", ".join(f"{name} {value}" for name, value in sorted(taken.items())))
    say(f"not read: {', '.join(found.ignored) or 'nothing'}")
    return argparse.Namespace(**{**vars(args), "model": args.model or found.model})


def _measured(args: argparse.Namespace, found: Result) -> Result:
    """With the times of a report, or a measured step's factor."""
    from tracelens.predict.projection.project import Result

    if args.traced and not (args.from_report or args.anchor):
        raise UsageError("--traced needs --from-report or --anchor, whose configuration it describes")
    if args.from_report and args.anchor:
        raise UsageError("give only one of --from-report and --anchor")
    if args.anchor:
        from tracelens.predict.projection.from_measured import Anchor, measured_step_us

        path = Path(args.anchor)
        anchored = _project(_as_traced(args)).projection if args.traced else found.projection
        return Result(projection=Anchor.of(anchored, measured_step_us(path), path.name).on(found.projection))
    if args.from_report:
        from tracelens.backends.chain import chain
        from tracelens.predict.calibration.measurements import report_step
        from tracelens.predict.projection.from_measured import project_from
        from tracelens.report.projection_report import part_words

        asked = found.projection
        then = _project(_as_traced(args)).projection if args.traced else None
        made = project_from(
            report_step(args.from_report), asked.model, asked.parallel, asked.system,
            sequence=asked.sequence, base=chain(args.backend), schedule=args.schedule,
            traced=None if then is None else (then.parallel, then.system),
        )  # fmt: skip
        say(f"measured in {args.from_report} (shares of each part's operations; the rest of the step is modeled)")
        for part, shares in made.sources.items():
            by_source = ", ".join(f"{name} {100 * share:.0f} %" for name, share in sorted(shares.items()))
            say(f"  {part_words(part):26} {by_source}")
        return Result(projection=made.projection)
    return found


def _as_traced(args: argparse.Namespace) -> argparse.Namespace:
    """The options of the traced step: those of this one with what ``--traced`` says."""
    names, points = _points(args.traced.split(), "--traced")
    values, *more = points
    if more:
        raise UsageError(f"--traced takes one value per option; got {args.traced!r}")
    given = dict(zip(names, values, strict=True))
    if {"nodes", "gpus"} & set(given):
        given = {"nodes": None, "gpus": None, **given}
    return argparse.Namespace(**{**vars(args), **given})


def _beside(path: Path, found: Result) -> str:
    """The projected step beside a measured one: of a trace or a report.json."""
    import tracelens
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.loaded_trace import AnalysisOptions
    from tracelens.predict.calibration.measurements import report_step, trace_step
    from tracelens.predict.projection.from_measured import against

    step = report_step(path) if is_report(path) else trace_step(analyze(tracelens.load(path), AnalysisOptions()))
    table = against(found.projection, step)
    return table.to_string(index=False, na_rep="-", float_format=lambda value: f"{value:.5g}")


def _run_sweep(args: argparse.Namespace) -> int:
    from tracelens.predict.projection.project import sweep
    from tracelens.report.export import refuse_unknown, write_frame
    from tracelens.report.projection_report import sweep_chart

    if args.output:
        refuse_unknown(args.output)
    names, points = _points(args.sweep, "--sweep")
    asked = (dict(zip(names, values, strict=True)) for values in points)
    notes: list[tuple[str, ...]] = []

    def projected(given: Mapping[str, object]) -> Result:
        found = _project(argparse.Namespace(**{**vars(args), **given, "swept": names}))
        notes.append(found.projection.notes)
        return found

    table = sweep(names, asked, projected)
    plot = args.output.with_suffix(".svg") if args.output else None
    if args.output and plot:
        write_frame(args.output, table, {"schema": "tracelens.project.sweep/1", "model": args.model})
        write_whole(plot, sweep_chart(table, names, f"{args.model} on {args.cluster}"))
    fits, reason = table["fits"].astype(object), table["reason"].fillna(table["does_not_fit"])
    shown = table.assign(fits=fits.where(fits.notna(), ""), reason=reason.fillna("")).drop(columns="does_not_fit")
    say_lines(shown.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.4g}"))
    for note in shared_by_all(notes):
        say(f"note: {note}")
    if args.output:
        say(f"wrote {args.output} and {plot}")
    return 0 if table["step_time_s"].notna().any() else DOES_NOT_FIT


def _points(asked: list[str], flag: str) -> tuple[list[str], Iterator[tuple[object, ...]]]:
    """The options that ``flag`` lists as ``args`` names them, and every combination of their values."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    configure(parser)
    known = {text.strip("-").replace("-", "_"): action for action in parser._actions for text in action.option_strings}
    swept: dict[str, list[object]] = {}
    for text in asked:
        option, separator, listed = text.partition("=")
        action = known.get(option.strip().lstrip("-").replace("-", "_"))
        if not separator or not listed or (action is not None and action.dest in NOT_SWEPT):
            raise UsageError(f"{flag} takes OPTION=VALUE,..., like tp=1,2,4; got {text!r}")
        if action is None:
            raise UsageError.unknown(f"option for {flag}", option.strip(), known)
        if isinstance(action, option_fields.Renamed):
            action = action.now(option.strip())
        if action.dest in swept:
            raise UsageError(f"{flag} names {option.strip()} twice: list all its values once")
        swept[action.dest] = _values(parser, action, listed, f"{flag} {option}")
    return list(swept), itertools.product(*swept.values())


def _values(parser: argparse.ArgumentParser, action: argparse.Action, listed: str, asked: str) -> list[object]:
    """The values in ``listed`` as ``args`` would have them; ``asked``: what an error names."""
    values = listed.split(",")
    if action.nargs == 0:
        if not set(values) <= {"0", "1"}:
            raise UsageError(f"{asked}: a switch is 0 or 1, got {listed!r}")
        return [value == "1" for value in values]
    try:
        return [getattr(parser.parse_args([action.option_strings[0], value]), action.dest) for value in values]
    except argparse.ArgumentError as error:
        raise UsageError(f"{asked}: {error.message}") from None


def _ranks(text: str) -> list[int] | None:
    """None for one per distinct rank."""
    if text == "all":
        return None
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise UsageError(f"--trace-ranks takes all, or rank numbers like 0,8; got {text!r}")
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def _run_batch(args: argparse.Namespace) -> int:
    from tracelens.laboratory.training_rows import ESTIMATES, RowOptions, project_rows
    from tracelens.predict.projection.frameworks import named
    from tracelens.predict.projection.project import constants_of
    from tracelens.report.export import write_rows

    if args.output is None:
        raise UsageError("--batch needs -o FILE.csv")
    rows, columns = read_rows(args.batch)
    options = RowOptions(
        framework=named(args.framework).name if args.framework else None,
        constants=constants_of(options_of(ProjectOptions, args)),
        backends=args.backend,
        gpu_clock_mhz=args.gpu_clock_mhz,
        power_w=args.power_w,
        skew=Skew.parse(args.skew),
    )
    answers, answered = project_rows(rows, anchor=args.anchor, options=options)
    write_rows(args.output, [*columns, *ESTIMATES], answers)
    say(f"{answered} of {len(rows)} rows projected, the others have a reason; wrote {args.output}")
    return 0
