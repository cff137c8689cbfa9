"""Project a training step: time, throughput, MFU, memory per stage, where the time goes, the largest levers.

One configuration; with --sweep every combination of some values; or with --batch a CSV file of configurations (columns
as in docs/projection.md), answered row by row.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import filled_in, positive

if TYPE_CHECKING:
    from tracelens.projection.overheads import Software
    from tracelens.projection.project import Result
    from tracelens.projection.step import Projection

DOES_NOT_FIT = 3
PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", metavar="NAME|config.json", help="a bundled model, a Hugging Face config or a model file")
    add("--cluster", metavar="NAME|FILE.toml", help="a cluster, or a device in its standard node")
    add(
        "--launch",
        type=Path,
        metavar="FILE",
        help="take model and options from Megatron-LM's list of arguments, or Primus' .yaml; options given here win",
    )
    add("--nodes", type=positive, metavar="N", help="whole nodes of the cluster")
    add("--gpus", type=positive, metavar="N", help="devices, instead of --nodes")
    add("--sequence", type=positive, default=4096, metavar="TOKENS", help="default: %(default)s")
    add("--document", type=positive, metavar="TOKENS", help="of each text packed into a sequence (default: one text)")
    add("--global-batch", type=positive, metavar="SEQUENCES", help="default: 8 micro-batches per replica")
    add("--micro-batch", type=positive, default=1, metavar="SEQUENCES", help="default: %(default)s")
    for name, meaning in (
        ("tp", "tensor-parallel ranks"),
        ("pp", "pipeline ranks"),
        ("vpp", "chunks of layers per pipeline rank"),
        ("cp", "context-parallel ranks"),
        ("ep", "expert-parallel ranks"),
        ("etp", "tensor-parallel ranks of each expert"),
    ):
        add(f"--{name}", type=positive, default=1, metavar="N", help=f"{meaning}; default: 1")
    add("--zero", type=int, choices=(0, 1, 2, 3), default=1, help="what replicas divide; 3 is FSDP; default: 1")
    add("--shard", type=positive, metavar="RANKS", help="ranks that share states (HSDP); default: all replicas")
    add("--no-sequence-parallel", action="store_true", help="with --tp: norms on every rank's tokens in full")
    add(
        "--tp-overlap", choices=("none", "backward", "all"), default="none", help="collectives that run beside products"
    )
    add("--ep-overlap", action="store_true", help="experts' exchanges run beside another micro-batch's backward")
    add(
        "--fsdp-overlap",
        metavar="SHARE",
        help="fixed hidden shares of FSDP's transfers, 0.93 or 90,24,34 (forward gather, backward gather, scatter); "
        "default: from the timeline",
    )
    add("--straggler", metavar="[STAGE:]FACTOR", help="one device computes that much longer, e.g. 1.15 or 3:1.15")
    add("--precision", choices=PRECISIONS, default="bf16")
    add(
        "--bf16-layers", metavar="FIRST,LAST", help="how many of the first and last layers compute in BF16 all the same"
    )
    add("--gradients", choices=("fp32", "bf16"), default="fp32", help="what gradients are kept and summed in")
    add("--recompute", choices=("none", "selective", "full"), default="none")
    add(
        "--recompute-modules",
        default="core_attn",
        metavar="A,B",
        help="what selective recomputation repeats: core_attn layernorm mla_up_proj mlp moe moe_act shared_experts",
    )
    add("--graphs", choices=("none", "partial", "full"), default="none", help="launches that graphs replay")
    add("--dispatcher", choices=("deepep", "alltoall"), default="deepep", help="how tokens reach experts")
    add("--sequential-experts", action="store_true", help="a product per expert instead of a grouped one")
    add("--attention", choices=("flash", "unfused"), default="flash")
    add("--skew", metavar="zipf:1.1", default="uniform", help="load of experts, as in route; default: uniform")
    add("--schedule", metavar="NAME", help="1f1b, zb-v, ... (see the docs); default: 1f1b, interleaved with --vpp")
    add(
        "--backend",
        default=None,
        metavar="NAME|FAMILY=NAME,...",
        help="who prices operations; default: tile,collectives",
    )
    add("--gpu-clock-mhz", type=float, metavar="MHZ", help="the clock of estimates; default: the data sheet's")
    add("--host-us", type=float, metavar="US", help="host time per launched operation; default: 5")
    for name in ("products", "attention", "memory"):
        add(f"--{name}-factor", type=float, metavar="X", help=f"what the time of {name} is multiplied with; default: 1")
    add("--trace", type=Path, metavar="FOLDER", help="write the step as traces that report and Perfetto read")
    add("--trace-ranks", default="all", metavar="0,8", help="ranks to write; default: one per distinct rank")
    add(
        "--from-report",
        type=Path,
        metavar="report.json",
        help="operations take as long as in this report of a trace of one node; what was not recorded is modeled",
    )
    add(
        "--traced",
        metavar='"nodes=1 ep=8"',
        help="how the reported step was configured where it differs: with --from-report what the projection of that "
        "step does not explain is carried over, with --anchor it is what the factor belongs to",
    )
    add("--against", type=Path, metavar="TRACE", help="measured times beside projected ones: a trace or a report.json")
    add(
        "--anchor",
        metavar="report.json|ID",
        help="one measured step of this model and device as a factor; with --batch a row's id",
    )
    add("--batch", type=Path, metavar="POINTS.csv", help="project every row of a table instead")
    add("--sweep", action="append", metavar="tp=1,2,4", help="project every value; several: every combination")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="one step: FILE.json, or its operations as .csv or .xlsx; --sweep: the table, and beside it its plot as "
        ".svg; --batch: FILE.csv",
    )


def run(args: argparse.Namespace) -> int:
    from tracelens.errors import UsageError

    if args.batch:
        _refuse(args, "--batch", lambda name: name not in IN_BATCH)
        return _run_batch(args)
    if args.sweep:
        _refuse(args, "--sweep", lambda name: name in OF_ONE_STEP)
    if args.from_report:
        _refuse(args, "--from-report", lambda name: name in (*CONSTANTS, "straggler", "fsdp_overlap"))
    if args.launch:
        args = _launched(args)
    if not args.model or not args.cluster:
        raise UsageError("project takes --model and --cluster, or --batch")
    return _run_sweep(args) if args.sweep else _run_one(args)


def _refuse(args: argparse.Namespace, mode: str, ignored: Callable[[str], bool]) -> None:
    """UsageError for options that were given and that ``mode`` does not read."""
    from tracelens.errors import UsageError

    parser = argparse.ArgumentParser(add_help=False)
    configure(parser)
    unread = [
        "--" + name.replace("_", "-")
        for name, default in vars(parser.parse_args([])).items()
        if ignored(name) and getattr(args, name) != default
    ]
    if unread:
        raise UsageError(f"{mode} does not read {', '.join(unread)}")


CONSTANTS = ("host_us", "products_factor", "attention_factor", "memory_factor")
IN_BATCH = (*CONSTANTS, "batch", "output", "anchor", "backend", "gpu_clock_mhz", "skew")


def _run_one(args: argparse.Namespace) -> int:
    found = _measured(args, _project(args))
    beside = _beside(args.against, found) if args.against else ""
    # Files first: a reader that closes standard output must not cost them
    files = found.write_traces(args.trace, _ranks(args.trace_ranks)) if args.trace else ()
    if args.output:
        _write(found, args.output)
    print(_text(found))
    if args.against:
        print(f"\nprojected beside measured, us of one step of the busiest rank\n{beside}")
    if args.trace:
        print(f"wrote {len(files)} traces to {args.trace}")
    if args.output:
        print(f"wrote {args.output}")
    return DOES_NOT_FIT if found.projection.infeasible else 0


def _launched(args: argparse.Namespace) -> argparse.Namespace:
    """With what the launch configuration says, where an option has its default; says what it did not read."""
    from tracelens.workload.launch import read_launch

    found = read_launch(args.launch)
    options = dict(found.options)
    if args.nodes or args.gpus:
        options = {name: value for name, value in options.items() if name not in ("nodes", "gpus")}
    args = filled_in(args, configure, options, args.launch.name)
    taken = {name: value for name, value in options.items() if getattr(args, name) == value}
    print(f"{args.launch}: " + ", ".join(f"{name} {value}" for name, value in sorted(taken.items())))
    print(f"not read: {', '.join(found.ignored) or 'nothing'}")
    return argparse.Namespace(**{**vars(args), "model": args.model or found.model})


def _measured(args: argparse.Namespace, found: Result) -> Result:
    """With the times of a report, or a measured step's factor."""
    from tracelens.errors import UsageError
    from tracelens.projection.project import Result

    if args.traced and not (args.from_report or args.anchor):
        raise UsageError("--traced says how the step of --from-report or --anchor was configured")
    if args.from_report and args.anchor:
        raise UsageError("--from-report and --anchor both start from a measured step: give one")
    if args.anchor:
        from tracelens.projection.anchor import Anchor, measured_step_us

        path = Path(args.anchor)
        anchored = _project(_as_traced(args)).projection if args.traced else found.projection
        return Result(projection=Anchor.of(anchored, measured_step_us(path), path.name).on(found.projection))
    if args.from_report:
        from tracelens.backends.chain import chain
        from tracelens.calibration.measured_step import report_step
        from tracelens.projection.from_measured import project_from
        from tracelens.projection.step import BACKENDS

        asked = found.projection
        then = _project(_as_traced(args)).projection if args.traced else None
        made = project_from(
            report_step(args.from_report), asked.model, asked.parallel, asked.system,
            sequence=asked.sequence, base=chain(args.backend or BACKENDS), schedule=args.schedule,
            traced=None if then is None else (then.parallel, then.system),
        )  # fmt: skip
        print(f"measured in {args.from_report} (shares of each part's operations; the rest of the step is modeled)")
        for part, shares in made.sources.items():
            print(f"  {part:16} " + ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items())))
        return Result(projection=made.projection)
    return found


def _as_traced(args: argparse.Namespace) -> argparse.Namespace:
    """The options of the traced step: those of this one with what ``--traced`` says."""
    from tracelens.errors import UsageError

    names, points = _points(args.traced.split(), "--traced")
    values, *more = points
    if more:
        raise UsageError(f"--traced says how one step was configured, one value per option; got {args.traced!r}")
    given = dict(zip(names, values, strict=True))
    if {"nodes", "gpus"} & set(given):
        given = {"nodes": None, "gpus": None, **given}
    return argparse.Namespace(**{**vars(args), **given})


def _beside(path: Path, found: Result) -> str:
    """The projected step beside a measured one: of a trace or a report.json."""
    import tracelens
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.options import Options
    from tracelens.calibration.measured_step import report_step, trace_step
    from tracelens.projection.from_measured import against
    from tracelens.report.json_report import is_report

    step = report_step(path) if is_report(path) else trace_step(analyze(tracelens.load(path), Options()))
    table = against(found.projection, step)
    return table.to_string(index=False, na_rep="-", float_format=lambda value: f"{value:.5g}")


def _project(args: argparse.Namespace) -> Result:
    from tracelens.projection.project import project
    from tracelens.projection.step import BACKENDS

    return project(
        args.model,
        args.cluster,
        nodes=args.nodes,
        gpus=args.gpus,
        sequence=args.sequence,
        document=args.document,
        global_batch=args.global_batch,
        micro_batch=args.micro_batch,
        tp=args.tp,
        sequence_parallel=not args.no_sequence_parallel,
        pp=args.pp,
        vpp=args.vpp,
        cp=args.cp,
        ep=args.ep,
        etp=args.etp,
        zero=args.zero,
        shard=args.shard,
        precision=args.precision,
        gradients=args.gradients,
        bf16_layers=_first_and_last(args.bf16_layers),
        recompute=args.recompute,
        recompute_modules=args.recompute_modules.split(","),
        attention=args.attention,
        tp_overlap=args.tp_overlap,
        ep_overlap=args.ep_overlap,
        dispatcher=args.dispatcher,
        sequential_experts=args.sequential_experts,
        graphs=args.graphs,
        skew=args.skew,
        schedule=args.schedule,
        backend=args.backend or BACKENDS,
        software=_software(args),
        fsdp_overlap=args.fsdp_overlap,
        straggler=args.straggler,
        gpu_clock_mhz=args.gpu_clock_mhz,
    )


def _write(found: Result, path: Path) -> None:
    from tracelens.atomic_write import whole_file
    from tracelens.report.export import refuse_unknown, write_frame

    if refuse_unknown(path) != ".json":
        write_frame(path, found.ops(found.run.busiest), {})
        return
    with whole_file(path) as file:
        file.write(found.to_json().encode())


def _first_and_last(text: str | None) -> tuple[int, int]:
    from tracelens.errors import UsageError

    found = [part.strip() for part in (text or "0,0").split(",")]
    if len(found) != 2 or not all(part.isdecimal() for part in found):
        raise UsageError(f"--bf16-layers takes two numbers of layers, like 1,1; got {text!r}")
    return int(found[0]), int(found[1])


def _run_sweep(args: argparse.Namespace) -> int:
    import pandas as pd

    from tracelens.atomic_write import whole_file
    from tracelens.errors import TracelensError
    from tracelens.report.charts.sweep_chart import sweep_chart
    from tracelens.report.export import refuse_unknown, write_frame

    if args.output:
        refuse_unknown(args.output)
    names, points = _points(args.sweep, "--sweep")
    rows = []
    for values in points:
        asked = argparse.Namespace(**{**vars(args), **dict(zip(names, values, strict=True))})
        try:
            summary = _project(asked).summary
        except TracelensError as error:
            summary = {"reason": str(error)}
        rows.append({**dict(zip(names, values, strict=True)), **{name: summary.get(name) for name in SWEPT}})
    table = pd.DataFrame(rows, columns=[*names, *SWEPT])
    plot = args.output.with_suffix(".svg") if args.output else None
    if args.output and plot:
        write_frame(args.output, table, {"schema": "tracelens.project.sweep/1", "model": args.model})
        with whole_file(plot) as file:
            file.write(sweep_chart(table, names, f"{args.model} on {args.cluster}").encode())
    shown = table.assign(reason=table["reason"].fillna(table["does_not_fit"])).drop(columns="does_not_fit")
    print(shown.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.4g}"))
    if args.output:
        print(f"wrote {args.output} and {plot}")
    return 0 if table["step_time_s"].notna().any() else DOES_NOT_FIT


SWEPT = ("step_time_s", "tokens_s_gpu", "tflops_gpu", "mfu", "memory_gb", "does_not_fit", "reason")


def _points(asked: list[str], flag: str) -> tuple[list[str], Iterator[tuple[object, ...]]]:
    """The options that ``flag`` lists as ``args`` names them, and every combination of their values."""
    from tracelens.errors import UsageError

    parser = argparse.ArgumentParser(exit_on_error=False)
    configure(parser)
    known = {action.dest: action for action in parser._actions}
    swept: dict[str, list[object]] = {}
    for text in asked:
        option, separator, listed = text.partition("=")
        name = option.strip().lstrip("-").replace("-", "_")
        action = known.get(name)
        if not separator or not listed or action is None or name in NOT_SWEPT:
            raise UsageError(f"{flag} takes an option and its values, like tp=1,2,4; got {text!r}")
        if name in swept:
            raise UsageError(f"{flag} names {option.strip()} twice: list all its values once")
        values = listed.split(",")
        if action.nargs == 0:
            if not set(values) <= {"0", "1"}:
                raise UsageError(f"{flag} {option}: a switch is 0 or 1, got {listed!r}")
            swept[name] = [value == "1" for value in values]
        else:
            try:
                read = [parser.parse_args([action.option_strings[0], value]) for value in values]
            except argparse.ArgumentError as error:
                raise UsageError(f"{flag} {option}: {error.message}") from None
            swept[name] = [getattr(each, name) for each in read]
    return list(swept), itertools.product(*swept.values())


OF_ONE_STEP = ("from_report", "traced", "against", "anchor", "trace", "trace_ranks")
NOT_SWEPT = (*OF_ONE_STEP, "launch", "sweep", "batch", "output", "help")


def _software(args: argparse.Namespace) -> Software:
    from tracelens.projection.overheads import PLAIN

    given = {
        "products": args.products_factor,
        "attention": args.attention_factor,
        "memory": args.memory_factor,
        "host_us_per_op": args.host_us,
    }
    return replace(PLAIN, **{name: value for name, value in given.items() if value is not None})


def _ranks(text: str) -> list[int] | None:
    """None for one per distinct rank."""
    from tracelens.errors import UsageError

    if text == "all":
        return None
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise UsageError(f"--trace-ranks takes all, or numbers of ranks like 0,8; got {text!r}")
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def _run_batch(args: argparse.Namespace) -> int:
    import csv
    import io

    from tracelens.atomic_write import whole_file
    from tracelens.errors import InputError, UsageError
    from tracelens.projection.batch_rows import RowAnchor, project_row
    from tracelens.projection.step import BACKENDS
    from tracelens.workload.token_routing import Skew

    if args.output is None:
        raise UsageError("--batch needs -o FILE.csv")
    backends, software = args.backend or BACKENDS, _software(args)
    try:
        with args.batch.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{args.batch} cannot be read as a table: {error}") from error
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, *ESTIMATES], lineterminator="\n")
    writer.writeheader()
    answered = 0
    anchor = RowAnchor.of(rows, args.anchor, backends=backends, software=software) if args.anchor else None
    for row in rows:
        given = {name: row.get(name) or "" for name in columns}
        point = project_row(
            given,
            backends=backends,
            gpu_clock_mhz=args.gpu_clock_mhz,
            software=software,
            skew=Skew.parse(args.skew),
        )
        answered += point.projection is not None
        point = point if anchor is None else anchor.on(point, given)
        found = _estimates(point.projection) if point.projection else {}
        writer.writerow({**given, **found, "assumed": "; ".join(point.assumptions), "reason": point.reason or ""})
    with whole_file(args.output) as out:
        out.write(text.getvalue().encode())
    print(f"{answered} of {len(rows)} rows projected, the others have a reason; wrote {args.output}")
    return 0


ESTIMATES = ("step_time_s_est", "tokens_s_gpu_est", "tflops_gpu_est", "memory_gb_est", "assumed", "reason")


def _estimates(found: Projection) -> dict[str, str]:
    return {
        "step_time_s_est": f"{found.step_us / 1e6:.4f}",
        "tokens_s_gpu_est": f"{found.tokens_s_gpu:.1f}",
        "tflops_gpu_est": f"{found.tflops_gpu:.1f}",
        "memory_gb_est": f"{found.peak_memory.peak / 1e9:.1f}",
    }


def _text(result: Result) -> str:
    found = result.projection
    p = found.parallel
    mfu = "" if found.mfu is None else f", MFU {found.mfu:.1%} of the {p.computed_in.label} data sheet rate"
    backends = ", ".join(f"{name} {count}" for name, count in found.answered_by.items())
    narrow = "" if p.gradients == "fp32" else f", {p.gradients} gradients"
    routed = "" if found.model.experts is None else f", routing {p.skew}"
    lines = [
        f"{found.model.label} on {p.ranks} x {found.system.device.label}: {found.step_us / 1e6:.3f} s per step",
        (
            f"  tp {p.tp} pp {p.pp} vpp {p.vpp} cp {p.cp} dp {p.dp} ep {p.ep} etp {p.etp}, ZeRO {p.zero}, "
            f"{p.micro_batches} micro-batches of {p.micro_batch} x {found.sequence} tokens, {p.precision}{narrow}, "
            f"recompute {p.recompute}, schedule {found.schedule if p.pp > 1 else 'none'}{routed}"
        ),
        f"  {found.tokens_s_gpu:.0f} tokens/s/GPU, {found.tflops_gpu:.0f} TFLOPS/GPU{mfu}",
        f"  operations priced by: {backends}",
        "",
        "where the time goes (busiest pipeline rank; communication is what stays exposed)",
    ]
    for part, time_us in sorted(found.breakdown_us.items(), key=lambda item: -item[1]):
        lines.append(f"  {part:16} {time_us / 1e3:12.1f} ms {time_us / found.step_us:7.1%}")
    communication = result.communication
    if len(communication):
        lines += ["", "communication, ms       runs    exposed"]
        for stream, time_us, _, exposed_us in communication.itertuples(index=False):
            lines.append(f"  {stream:16} {time_us / 1e3:10.1f} {exposed_us / 1e3:10.1f}")
    work = result.experts
    if work is not None:
        rows = f"{work.local_experts} per rank, {work.rows_per_expert:.0f} rows each, h {work.hidden}, f {work.ffn}"
        sent = f"{work.tokens} tokens per rank, {work.copies:.0f} copies leave it"
        lines += ["", f"experts: {rows}, {work.mode}; {sent}"]
    lines += ["", "memory, GB       weights  grads  optim  activ  logits  other   peak"]
    stages = found.stages if len(found.stages) <= 8 else (*found.stages[:3], *found.stages[-3:])
    for stage in stages:
        parts = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.logits, stage.outside)
        figures = " ".join(f"{value / 1e9:6.1f}" for value in (*parts, stage.peak))
        lines.append(f"  stage {stage.stage:<5}    {figures}")
    if found.infeasible:
        lines.append(f"  does not fit: {found.infeasible}")
    lines += ["", "largest levers, each on its own"]
    lines += [f"  {lever.change:52} -{lever.gain:.1%}" for lever in result.levers] or [
        "  none of the changes tried helps"
    ]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)
