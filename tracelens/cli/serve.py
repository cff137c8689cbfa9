"""Simulate an LLM server under load: latencies, throughput, goodput, cost.

tracelens serve --model llama3.1-70b --cluster dgx-h100 --tp 4 --rate 2 --input 1024 --output 256 --requests 2000
tracelens serve --scenarios
tracelens serve --batch points.csv -o out.csv
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.errors import UsageError
from tracelens.option_fields import filled_in

if TYPE_CHECKING:
    from tracelens.serving.deployment import Deployment, Engine
    from tracelens.serving.experiment import Experiment, Result
    from tracelens.serving.requests import Workload
    from tracelens.serving.simulation import Options

_KEYS = (
    ("requests", ("completed", "rejected", "preempted", "window_s")),
    ("first token ms", ("ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms")),
    ("  from scheduling", tuple(f"scheduled_to_first_{part}_ms" for part in ("mean", "p50", "p90", "p99"))),
    ("per token ms", ("tpot_mean_ms", "tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms")),
    ("between tokens ms", ("itl_mean_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms")),
    ("end to end ms", ("e2e_mean_ms", "e2e_p50_ms", "e2e_p90_ms", "e2e_p99_ms")),
    ("throughput /s", ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")),
    ("load", ("mean_waiting", "mean_batch", "utilization")),
    ("cache tokens", ("kv_pool_tokens", "kv_peak_tokens", "mean_context_tokens", "cached_prompt_tokens")),
    ("simulation", ("events", "compute_events", "exchange_events", "transfer_events")),
)
_SHORT = {"mean", "p50", "p90", "p99"}
#: Options that name files: beside the experiment file that gives them.
_FILES = {"engine", "profile", "replay", "trace", "out", "batch", "calibrate", "export_profile"}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    served = parser.add_argument_group("what is served")
    served.add_argument(
        "--config", type=Path, metavar="FILE", help="experiment .toml, .json or .yaml; options override it"
    )
    served.add_argument("--model", metavar="NAME|config.json", help="a model of the package, or a Hugging Face config")
    served.add_argument(
        "--cluster", "--device", metavar="NAME|FILE", help="e.g. dgx-h100, or a device such as h100-sxm"
    )
    for name, what in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "attention data"), ("ep", "expert")):
        served.add_argument(f"--{name}", type=int, default=1, help=f"{what}-parallel devices")
    served.add_argument(
        "--skew", metavar="zipf:1.1", default="uniform", help="load of experts, as in route; default: uniform"
    )
    served.add_argument(
        "--imbalance",
        type=float,
        default=1.0,
        help="on top of --skew: busiest device's share of routed tokens over the mean",
    )
    served.add_argument("--weights", metavar="TYPE", help="fp8 or fp4 weights; default: the model's type")
    served.add_argument("--kv", metavar="TYPE", help="element type of the key-value cache; default: the model's")
    served.add_argument(
        "--engine", type=Path, metavar="engine.toml", help="host times and limits, as --calibrate writes them"
    )
    for name, what in (
        ("max-num-seqs", "most sequences that decode at once"),
        ("max-batched-tokens", "most new tokens of a step"),
        ("kv-tokens", "size of the cache; default: what memory leaves"),
        ("block-tokens", "tokens of a cache block"),
    ):
        served.add_argument(f"--{name}", type=int, help=what)
    served.add_argument("--preemption", choices=("recompute", "swap"))
    served.add_argument("--speculate", metavar="TOKENS:ACCEPTANCE", help="speculative decoding, e.g. 4:0.7")
    served.add_argument("--draft-model", metavar="NAME", help="the model that guesses, for --speculate")

    run_group = parser.add_argument_group("how")
    run_group.add_argument(
        "--policy", default="chunked-prefill", help="static, continuous, chunked-prefill, prefill-first"
    )
    run_group.add_argument("--replicas", type=int, default=1)
    run_group.add_argument(
        "--prefill-replicas", type=int, default=0, help="replicas for prompts alone; --replicas then decode"
    )
    run_group.add_argument(
        "--kv-link", type=float, metavar="GB/s", help="link for caches between them; default: the network"
    )
    run_group.add_argument("--router", default="round-robin", help="round-robin, least-loaded, prefix-aware")
    run_group.add_argument("--order", default="fcfs", help="fcfs, sjf, priority")
    run_group.add_argument(
        "--lod", default="medium", metavar="LEVEL[,LEVEL]", help="high, medium or low; one per replica mixes"
    )
    run_group.add_argument(
        "--contention", action="store_true", help="collectives and hand-overs wait for the devices' ports"
    )
    run_group.add_argument(
        "--collective", default="ring", help="all-reduce algorithm: ring, tree ..., seed_simple, or auto"
    )
    run_group.add_argument("--backend", default="roofline", help="e.g. tile, or gemm=tile,sdpa=roofline")
    run_group.add_argument("--profile", type=Path, metavar="FILE.json", help="step cost from an aggregated profile")

    load = parser.add_argument_group("requests")
    load.add_argument("--rate", type=float, help="arrivals per second")
    load.add_argument("--arrivals", default="poisson", help="poisson, gamma, constant, burst")
    load.add_argument(
        "--variation", type=float, default=1.0, help="gamma: coefficient of variation; burst: requests at once"
    )
    load.add_argument("--concurrency", type=int, help="a closed loop of so many requests instead of a rate")
    load.add_argument(
        "--input", default="1024", metavar="N|KIND:MEAN:SPREAD", help="prompt tokens, e.g. lognormal:1024:0.8"
    )
    load.add_argument("--output", default="128", metavar="N|KIND:MEAN:SPREAD", help="answer tokens")
    load.add_argument("--requests", type=int, help="how many; default 1000, without --duration")
    load.add_argument("--duration", metavar="TIME", help="arrivals of this long, e.g. 1h; the run then drains")
    load.add_argument("--seed", type=int, default=0)
    load.add_argument("--shared-prefix", type=int, default=0, metavar="TOKENS", help="prompts begin with a shared text")
    load.add_argument("--shared-groups", type=int, default=1, help="of so many different ones")
    load.add_argument("--replay", type=Path, metavar="FILE", help="requests of a trace (formats: docs/serving.md)")
    load.add_argument("--run", dest="run_name", metavar="GPU", help="which run of a file that holds several")

    ask = parser.add_argument_group("what is asked")
    ask.add_argument("--slo", metavar="ttft=500ms,tpot=50ms", help="goodput under these limits")
    ask.add_argument("--price-per-gpu-hour", type=float, metavar="PRICE")
    ask.add_argument("--sweep", metavar="rate=1..20", help="a run per rate; rate=1..20..0.5 sets the step")
    ask.add_argument("--find-max-goodput", action="store_true", help="with --sweep and --slo: the best rate")
    ask.add_argument(
        "--calibrate", type=Path, metavar="FILE", help="fit host times on measured requests or a report.json"
    )
    ask.add_argument("--export-profile", type=Path, metavar="FILE.json", help="write the model's aggregated profile")
    ask.add_argument("--scenarios", action="store_true", help="the three comparisons of levels of detail")
    ask.add_argument("--batch", type=Path, metavar="points.csv", help="estimate every row, closed loop")
    ask.add_argument(
        "--trace", type=Path, metavar="out.json.gz", help="write the timeline of the first steps as a trace"
    )
    add(
        "-o",
        "--out",
        type=Path,
        metavar="PATH",
        help="folder for summary.json and CSVs; the file of --batch, --calibrate",
    )
    add("--format", choices=("text", "json"), default="text", help="what stdout carries")


def run(args: argparse.Namespace) -> int:
    if args.config is not None:
        args = _with_config(args, args.config)
    if args.scenarios:
        return _scenarios()
    if args.batch is not None:
        return _batch(args)
    deployment = _deployment(args)
    if args.calibrate is not None:
        return _calibrate(args, deployment)
    if args.export_profile is not None:
        return _export(args, deployment)
    experiment = _experiment(args, deployment)
    if args.sweep is not None:
        return _sweep(args, experiment)
    if args.find_max_goodput:
        raise UsageError("--find-max-goodput needs --sweep: it picks one of its rates")
    return _once(args, experiment)


def _with_config(args: argparse.Namespace, path: Path) -> argparse.Namespace:
    """With the options of an experiment file, where the command line does not give them."""
    from tracelens.serving.experiment import read_settings

    settings = {name: value for name, value in read_settings(path).items() if name != "config"}
    for name in _FILES & settings.keys():
        settings[name] = path.parent / str(settings[name])
    return filled_in(args, configure, settings, path.name)


def _engine(args: argparse.Namespace) -> Engine:
    from tracelens.serving.deployment import Engine

    engine = Engine.load(args.engine) if args.engine is not None else Engine()
    names = ("max_num_seqs", "max_batched_tokens", "kv_tokens", "block_tokens", "preemption")
    given: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if "max_num_seqs" in given and "max_batched_tokens" not in given:
        given["max_batched_tokens"] = max(engine.max_batched_tokens, given["max_num_seqs"])
    return dataclasses.replace(engine, **given)


def _deployment(args: argparse.Namespace) -> Deployment:
    from tracelens.backends import System
    from tracelens.dtypes import DType
    from tracelens.serving.deployment import Deployment, Parallelism, Precision, Speculation
    from tracelens.workload import ModelConfig
    from tracelens.workload.token_routing import Skew

    if args.model is None or args.cluster is None:
        raise UsageError("serve needs --model and --cluster (or --config, --scenarios, --batch)")
    model = ModelConfig.load(args.model)
    kv = DType.parse(args.kv) if args.kv else None
    if args.kv and (kv is None or not kv.is_floating):
        raise UsageError(f"a cache of keys and values is bf16, fp16, fp8 or fp4, not {args.kv!r}")
    if args.draft_model and not args.speculate:
        raise UsageError("--draft-model guesses for --speculate, which is not given")
    speculation = None
    if args.speculate:
        tokens, _, acceptance = str(args.speculate).partition(":")
        try:
            speculation = Speculation(
                draft_tokens=int(tokens),
                acceptance=float(acceptance),
                draft=ModelConfig.load(args.draft_model) if args.draft_model else None,
            )
        except ValueError:
            raise UsageError(f"--speculate is TOKENS:ACCEPTANCE, e.g. 4:0.7, not {args.speculate!r}") from None
    return Deployment(
        model=model,
        system=System.load(args.cluster),
        parallelism=Parallelism(
            tp=args.tp, pp=args.pp, dp=args.dp, ep=args.ep, imbalance=args.imbalance, skew=Skew.parse(args.skew)
        ),
        precision=dataclasses.replace(Precision.named(args.weights, model), kv=kv),
        engine=_engine(args),
        backend=args.backend,
        collective=None if args.collective == "auto" else args.collective,
        speculation=speculation,
    )


def _options(args: argparse.Namespace) -> Options:
    from tracelens.serving.simulation import Options

    return Options(
        policy=args.policy,
        router=args.router,
        replicas=args.replicas,
        prefill_replicas=args.prefill_replicas,
        levels=tuple(args.lod.split(",")),
        contention=args.contention,
        order=args.order,
        kv_link_gb_s=args.kv_link,
        series=args.out is not None,
    )


def _workload(args: argparse.Namespace) -> Workload:
    from tracelens.serving.metrics import duration_s
    from tracelens.serving.requests import Arrivals, Lengths, Workload

    closed = args.concurrency is not None
    if not closed and args.rate is None and args.sweep is None and args.replay is None:
        raise UsageError("say how requests come: --rate, --concurrency or --replay")
    names = ("rate", "concurrency", "requests", "duration", "shared_prefix")
    unused = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name)]
    if args.replay is not None and unused:
        print(f"note: the requests are those of {args.replay}; {', '.join(unused)} not used", file=sys.stderr)
    duration = duration_s(args.duration) if args.duration else None
    return Workload(
        arrivals=Arrivals(
            kind="closed" if closed else args.arrivals,
            rate=args.rate,
            variation=args.variation,
            concurrency=args.concurrency,
        ),
        input=Lengths.parse(args.input),
        output=Lengths.parse(args.output),
        count=1000 if args.requests is None and duration is None else args.requests,
        duration_s=duration,
        seed=args.seed,
        shared_tokens=args.shared_prefix,
        shared_groups=args.shared_groups,
    )


def _experiment(args: argparse.Namespace, deployment: Deployment) -> Experiment:
    from tracelens.serving.experiment import Experiment
    from tracelens.serving.metrics import Objectives
    from tracelens.serving.profile import Profile
    from tracelens.serving.replay import read_requests

    return Experiment(
        deployment=deployment,
        options=_options(args),
        workload=_workload(args),
        replay=read_requests(args.replay, run=args.run_name).requests if args.replay is not None else None,
        profile=Profile.load(args.profile) if args.profile is not None else None,
        objectives=Objectives.parse(args.slo) if args.slo else None,
        price_per_gpu_hour=args.price_per_gpu_hour,
    )


def _once(args: argparse.Namespace, experiment: Experiment) -> int:
    cost = experiment.cost()
    timeline = None
    if args.trace is not None:
        from tracelens.serving.timeline import Timeline

        timeline = Timeline(cost)
    result = experiment.run(cost=cost, record=timeline)
    written = []
    if timeline is not None:
        written.append(str(timeline.write(args.trace)))
        if timeline.is_full:
            print("note: the trace holds the first steps only", file=sys.stderr)
    if args.out is not None:
        written.append(_write(result, args.out))
    if args.format == "json":
        sys.stdout.write(result.to_json())
    else:
        _print(result)
        for path in written:
            print(f"written: {path}")
    return 0


def _write(result: Result, folder: Path) -> str:
    from tracelens.atomic_write import whole_folder

    with whole_folder(folder) as staging:
        (staging / "summary.json").write_text(result.to_json(), encoding="utf-8")
        result.requests.to_csv(staging / "requests.csv", index=False, lineterminator="\n")
        result.steps.to_csv(staging / "steps.csv", index=False, lineterminator="\n")
    return f"{folder}/"


def _print(result: Result) -> None:
    figures = result.summary
    for title, names in _KEYS:
        cells = [f"{_label(name)} {_number(figures.get(name))}" for name in names]
        print(f"{title:<18} {'   '.join(cells)}")
    extra = {name: value for name, value in figures.items() if name.startswith(("good", "cost_"))}
    for name, value in extra.items():
        print(f"{name.replace('_', ' '):<34} {_number(value)}")
    outcome = result.outcome
    print(f"{'wall clock':<18} {outcome.wall_s:.3f} s, {outcome.events / max(outcome.wall_s, 1e-9):,.0f} events/s")
    for note in result.notes:
        print(f"note: {note}")


def _label(name: str) -> str:
    words = name.split("_")
    short = [word for word in words if word in _SHORT]
    return short[0] if short else name.replace("_per_s", "").replace("_", " ")


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _sweep(args: argparse.Namespace, experiment: Experiment) -> int:
    from tracelens.serving.experiment import find_max_goodput

    if args.out is not None or args.trace is not None or args.format != "text":
        raise UsageError("--sweep prints a table: -o, --trace and --format are for a single run")
    if args.find_max_goodput and experiment.objectives is None:
        raise UsageError("--find-max-goodput needs --slo: without limits every request is good")
    rows = find_max_goodput(experiment, _rates(args.sweep))
    print(f"{'rate':>8} {'ttft p99 ms':>12} {'tpot p99 ms':>12} {'requests/s':>11} {'goodput/s':>10} {'good':>6}")
    for rate, result in rows:
        figures = result.summary
        cells = (
            ("ttft_p99_ms", 12), ("tpot_p99_ms", 12), ("requests_per_s", 11), ("goodput_requests_per_s", 10),
            ("good_share", 6),
        )  # fmt: skip
        print(f"{rate:>8g} " + " ".join(f"{_number(figures.get(name)):>{width}}" for name, width in cells))
    if args.find_max_goodput:
        rate, best = max(rows, key=lambda row: (row[1].summary.get("goodput_requests_per_s") or 0.0, -row[0]))
        goodput = best.summary.get("goodput_requests_per_s")
        print(f"most goodput at rate {rate:g}: {_number(goodput)} requests/s within the limits")
    return 0


def _rates(text: str) -> tuple[float, ...]:
    name, _, span = text.partition("=")
    parts = span.split("..")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if name != "rate" or len(numbers) not in (2, 3) or not 0 < numbers[0] <= numbers[1]:
        raise UsageError(f"--sweep is rate=FROM..TO or rate=FROM..TO..STEP, not {text!r}")
    step = numbers[2] if len(numbers) == 3 else 1.0
    if step <= 0 or (numbers[1] - numbers[0]) / step > 1000:
        raise UsageError(f"--sweep {text}: the step must be above 0, and at most 1000 runs come of it")
    count = int((numbers[1] - numbers[0]) / step + 1e-9) + 1
    return tuple(numbers[0] + index * step for index in range(count))


def _calibrate(args: argparse.Namespace, deployment: Deployment) -> int:
    from tracelens.atomic_write import whole_file
    from tracelens.serving.engine_calibration import calibrate

    engine = calibrate(deployment, args.calibrate, run=args.run_name, policy=args.policy)
    target = args.out or Path("engine.toml")
    with whole_file(target) as file:
        file.write(engine.to_toml().encode())
    print(engine.to_toml(), end="")
    print(f"written: {target}")
    return 0


def _export(args: argparse.Namespace, deployment: Deployment) -> int:
    from tracelens.serving.costs import StepCost
    from tracelens.serving.profile import export
    from tracelens.serving.requests import Lengths

    prompt, answer = (max(1, round(Lengths.parse(text).mean)) for text in (args.input, args.output))
    batch = args.concurrency or 32
    export(StepCost(deployment), args.export_profile, prompt=prompt, batch=batch, context=prompt + answer // 2)
    print(f"written: {args.export_profile}")
    return 0


def _batch(args: argparse.Namespace) -> int:
    from tracelens.serving.configuration_rows import batch

    if args.out is None:
        raise UsageError("--batch needs -o FILE.csv")
    engine = _engine(args)
    if args.engine is None and args.max_num_seqs is None:
        engine = dataclasses.replace(engine, max_num_seqs=1024, max_batched_tokens=8192)
    rows, good = batch(args.batch, args.out, engine, backend=args.backend)
    print(f"{good} of {rows} rows estimated, the others have a reason; written: {args.out}")
    return 0


def _scenarios() -> int:
    from tracelens.serving.scenarios import COMPARED, SCENARIOS, compare, conclusion

    found = [compare(scenario) for scenario in SCENARIOS]
    rows: list[tuple[str, list[str]]] = [
        ("", [f"{each.scenario.name}: {each.scenario.title}" for each in found]),
        ("wall clock high s", [f"{each.high_wall_s:.4f}" for each in found]),
        ("wall clock medium s", [f"{each.medium_wall_s:.4f}" for each in found]),
        ("speed-up", [f"{each.speed_up:.1f}" for each in found]),
        ("events high", [f"{each.high_events:,}" for each in found]),
        ("events medium", [f"{each.medium_events:,}" for each in found]),
        ("event reduction", [f"{each.event_reduction:.1f}" for each in found]),
        ("compute events", [f"{each.high_compute_events / each.medium_compute_events:.0f}x" for each in found]),
        (
            "layers abstracted alone",
            [f"{each.high_events / each.layers_only_events:.2f}x fewer events" for each in found],
        ),
        (
            "collectives alone",
            [f"{each.high_events / each.collectives_only_events:.2f}x fewer events" for each in found],
        ),
    ]
    for name in COMPARED:
        rows.append((f"{name} high", [_number(each.high.get(name)) for each in found]))
        rows.append((f"{name} medium", [_number(each.medium.get(name)) for each in found]))
        rows.append(("  difference", [f"{100 * each.differences.get(name, 0.0):.1e} %" for each in found]))
    widths = [max(len(row[1][column]) for row in rows) for column in range(len(found))]
    for title, cells in rows:
        shown = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        print(f"{title:<28} {shown}")
    for each in found:
        print(f"{each.scenario.name}: {_where(each.high)}")
    print(conclusion(found))
    return 0


def _where(figures: Mapping[str, float | int | None]) -> str:
    compute, transfer = int(figures["compute_events"] or 0), int(figures["transfer_events"] or 0)
    total = int(figures["events"] or 1)
    return (
        f"in detail {100 * compute / total:.0f} % of events are compute, {100 * transfer / total:.0f} % link transfers"
    )
