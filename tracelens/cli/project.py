"""Project a training step: time, throughput, MFU, memory per stage, where the time goes, the largest levers.

One configuration, or with --batch a CSV file of them (columns as in docs/projection.md), answered row by row.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.projection.options import Options
    from tracelens.projection.software import Software
    from tracelens.projection.step import Lever, Projection

DOES_NOT_FIT = 3
PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", metavar="NAME|config.json", help="a bundled model, a Hugging Face config or a model file")
    add("--cluster", metavar="NAME|FILE.toml", help="a cluster, or a device in its standard node")
    add("--nodes", type=_positive, metavar="N", help="whole nodes of the cluster")
    add("--gpus", type=_positive, metavar="N", help="devices, instead of --nodes")
    add("--sequence", type=_positive, default=4096, metavar="TOKENS", help="default: %(default)s")
    add("--global-batch", type=_positive, metavar="SEQUENCES", help="default: 8 micro-batches per replica")
    add("--micro-batch", type=_positive, default=1, metavar="SEQUENCES", help="default: %(default)s")
    for name, meaning in (
        ("tp", "tensor-parallel ranks"),
        ("pp", "pipeline ranks"),
        ("vpp", "chunks of layers per pipeline rank"),
        ("cp", "context-parallel ranks"),
        ("ep", "expert-parallel ranks"),
        ("etp", "tensor-parallel ranks of each expert"),
    ):
        add(f"--{name}", type=_positive, default=1, metavar="N", help=f"{meaning}; default: 1")
    add("--zero", type=int, choices=(0, 1, 2, 3), default=1, help="what replicas divide; 3 is FSDP; default: 1")
    add("--shard", type=_positive, metavar="RANKS", help="ranks that share states (HSDP); default: all replicas")
    add("--no-sequence-parallel", action="store_true", help="with --tp: norms on every rank's tokens in full")
    add("--tp-overlap", action="store_true", help="tensor-parallel collectives run beside products")
    add("--ep-overlap", action="store_true", help="experts' exchanges run beside another micro-batch's backward")
    add(
        "--fsdp-overlap",
        metavar="SHARE",
        help="fixed hidden shares of FSDP's transfers, 0.93 or 90,24,34 (forward gather, backward gather, scatter); "
        "default: from the timeline",
    )
    add("--straggler", metavar="[STAGE:]FACTOR", help="one device computes that much longer, e.g. 1.15 or 3:1.15")
    add("--precision", choices=PRECISIONS, default="bf16")
    add("--recompute", choices=("none", "selective", "full"), default="none")
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
    add("--batch", type=Path, metavar="POINTS.csv", help="project every row of a table instead")
    add("-o", "--output", type=Path, metavar="FILE.csv", help="with --batch: the table with estimates and reasons")


def run(args: argparse.Namespace) -> int:
    return _run_batch(args) if args.batch else _run_one(args)


def _run_one(args: argparse.Namespace) -> int:
    from tracelens.backends.system import System
    from tracelens.errors import UsageError
    from tracelens.projection.recorded import write_traces
    from tracelens.projection.step import BACKENDS, levers, project
    from tracelens.workload.model_config import ModelConfig
    from tracelens.workload.parallel_config import ParallelConfig
    from tracelens.workload.routing import Skew

    if not args.model or not args.cluster:
        raise UsageError("project takes --model and --cluster, or --batch")
    model, system = ModelConfig.load(args.model), System.load(args.cluster).at_clock(args.gpu_clock_mhz)
    per_node = system.topology.ranks_per_node if system.topology is not None else None
    if (args.nodes is None) == (args.gpus is None):
        raise UsageError("project takes either --nodes or --gpus")
    if args.gpus is None and per_node is None:
        raise UsageError(f"{args.cluster}: how many devices a node has is not known; give --gpus")
    ranks = args.gpus or args.nodes * (per_node or 1)
    replicas = max(ranks // (args.tp * args.pp * args.cp), 1)
    parallel = ParallelConfig.of(
        ranks=ranks,
        global_batch=args.global_batch or 8 * args.micro_batch * replicas,
        tp=args.tp,
        sequence_parallel=args.tp > 1 and not args.no_sequence_parallel,
        pp=args.pp,
        vpp=args.vpp,
        cp=args.cp,
        ep=args.ep,
        etp=args.etp,
        zero=args.zero,
        shard=args.shard,
        micro_batch=args.micro_batch,
        precision=args.precision,
        recompute=args.recompute,
        attention=args.attention,
        tp_overlap=args.tp_overlap,
        ep_overlap=args.ep_overlap,
        skew=Skew.parse(args.skew),
    )
    backends = args.backend or BACKENDS
    software = _software(args)
    found = project(
        model, parallel, system,
        sequence=args.sequence, schedule=args.schedule, backends=backends, software=software, options=_options(args),
    )  # fmt: skip
    print(_text(found, levers(found)))
    if args.trace:
        files = write_traces(found.job, found.job.run(), args.trace, _ranks(args.trace_ranks))
        print(f"wrote {len(files)} traces to {args.trace}")
    return DOES_NOT_FIT if found.infeasible else 0


def _software(args: argparse.Namespace) -> Software:
    from tracelens.projection.software import PLAIN

    given = {
        "products": args.products_factor,
        "attention": args.attention_factor,
        "memory": args.memory_factor,
        "host_us_per_op": args.host_us,
    }
    return replace(PLAIN, **{name: value for name, value in given.items() if value is not None})


def _options(args: argparse.Namespace) -> Options:
    from tracelens.projection.options import Hidden, Options, Straggler

    return Options(
        fsdp_hidden=Hidden.parse(args.fsdp_overlap) if args.fsdp_overlap else None,
        straggler=Straggler.parse(args.straggler) if args.straggler else None,
    )


def _ranks(text: str) -> list[int] | None:
    """None for one per distinct rank."""
    from tracelens.errors import UsageError

    if text == "all":
        return None
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise UsageError(f"--trace-ranks takes all, or numbers of ranks like 0,8; got {text!r}")
    return [int(part) for part in text.split(",")]


def _run_batch(args: argparse.Namespace) -> int:
    import csv
    import io

    from tracelens.errors import InputError, UsageError
    from tracelens.projection.points import project_row
    from tracelens.projection.step import BACKENDS
    from tracelens.whole import whole_file
    from tracelens.workload.routing import Skew

    if args.output is None:
        raise UsageError("--batch needs -o FILE.csv")
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
    for row in rows:
        given = {name: row.get(name) or "" for name in columns}
        point = project_row(
            given,
            backends=args.backend or BACKENDS,
            gpu_clock_mhz=args.gpu_clock_mhz,
            software=_software(args),
            skew=Skew.parse(args.skew),
        )
        answered += point.projection is not None
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


def _text(found: Projection, levers: Iterable[Lever]) -> str:
    p = found.parallel
    mfu = "" if found.mfu is None else f", MFU {found.mfu:.1%} of the {p.computed_in.label} data sheet rate"
    backends = ", ".join(f"{name} {count}" for name, count in found.answered_by.items())
    routed = "" if found.model.experts is None else f", routing {p.skew}"
    lines = [
        f"{found.model.label} on {p.ranks} x {found.system.device.label}: {found.step_us / 1e6:.3f} s per step",
        (
            f"  tp {p.tp} pp {p.pp} vpp {p.vpp} cp {p.cp} dp {p.dp} ep {p.ep} etp {p.etp}, ZeRO {p.zero}, "
            f"{p.micro_batches} micro-batches of {p.micro_batch} x {found.sequence} tokens, {p.precision}, "
            f"recompute {p.recompute}, schedule {found.schedule if p.pp > 1 else 'none'}{routed}"
        ),
        f"  {found.tokens_s_gpu:.0f} tokens/s/GPU, {found.tflops_gpu:.0f} TFLOPS/GPU{mfu}",
        f"  operations priced by: {backends}",
        "",
        "where the time goes (busiest pipeline rank; communication is what stays exposed)",
    ]
    for part, time_us in sorted(found.breakdown_us.items(), key=lambda item: -item[1]):
        lines.append(f"  {part:16} {time_us / 1e3:12.1f} ms {time_us / found.step_us:7.1%}")
    lines += ["", "memory, GB       weights  grads  optim  activ  logits  other   peak"]
    stages = found.stages if len(found.stages) <= 8 else (*found.stages[:3], *found.stages[-3:])
    for stage in stages:
        parts = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.logits, stage.outside)
        figures = " ".join(f"{value / 1e9:6.1f}" for value in (*parts, stage.peak))
        lines.append(f"  stage {stage.stage:<5}    {figures}")
    if found.infeasible:
        lines.append(f"  does not fit: {found.infeasible}")
    lines += ["", "largest levers, each on its own"]
    lines += [f"  {lever.change:52} -{lever.gain:.1%}" for lever in levers] or ["  none of the changes tried helps"]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value
