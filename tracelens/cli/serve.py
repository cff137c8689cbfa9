"""Simulate an LLM server: how many requests it holds, latencies, throughput, goodput, cost.

Without --rate, --concurrency or --replay it prints the load curve: one line per number of requests at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.files import option_fields
from tracelens.files.atomic_write import refuse_file_name, write_whole
from tracelens.files.option_fields import arguments_of, given_options, option, options_of, refuse_unread
from tracelens.files.say import emit, say, say_lines
from tracelens.predict.serving.serving_options import TOKENS, DeploymentOptions, EngineOptions, ServingConfig, names_of
from tracelens.types.records import pd

if TYPE_CHECKING:
    from tracelens.laboratory.scenarios import ScenarioComparison
    from tracelens.predict.serving.deployment import Deployment

_ASKED = "results"


class _Output(argparse.Action):
    """A place. ``--output`` once meant answer tokens: a number or a distribution still does, with a hint."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, flag: str | None = None) -> None:
        if flag == "--output" and re.fullmatch(TOKENS, values):
            option_fields.hint(
                f"output tokens are --output-tokens {values} now; -o/--output is where results go (./{values})"
            )
            namespace.output_tokens = values
        else:
            namespace.output = Path(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCommand(ServingConfig):
    """The options of ``tracelens.serve`` and those of the command alone."""

    config: Path | None = option(
        "experiment .toml, .json or .yaml; options on the command line take precedence", kind=Path, metavar="FILE",
        names="nothing",
    )  # fmt: skip
    model: str | None = option("bundled model, or a Hugging Face config", metavar="NAME|config.json", names="known")
    cluster: str | None = option(
        "cluster such as dgx-h100, or device such as h100-sxm",
        flags=("--cluster", "--device"),
        metavar="NAME|FILE",
        names="known",
    )
    sweep: str | None = option(
        "simulate each rate; rate=1..20..0.5 sets the step; concurrency=64: the load curve at these loads",
        metavar="rate=1..20", group=_ASKED,
    )  # fmt: skip
    find_max_goodput: bool = option("with --sweep and --slo: find the best rate", False, group=_ASKED)
    calibrate: Path | None = option(
        "fit host times to measured requests or a report.json", kind=Path, metavar="FILE", group=_ASKED, names="nothing"
    )
    export_profile: Path | None = option(
        "write the model's aggregated profile", kind=Path, metavar="FILE.json", group=_ASKED, names="nothing"
    )
    scenarios: bool = option(
        "compare the levels of detail, for this deployment or three built-in ones", False, group=_ASKED
    )
    simulator_profile: bool = option(
        "with --scenarios: profile the simulator itself at each level", False, group=_ASKED
    )
    batch: Path | None = option(
        "estimate every row of a table as a closed loop", kind=Path, metavar="points.csv", group=_ASKED, names="file"
    )
    trace: Path | None = option(
        "write the timeline of the first steps as a trace",
        kind=Path,
        metavar="out.json.gz",
        group=_ASKED,
        names="nothing",
    )
    output: Path | None = option(
        "folder for summary.json and CSV files, or a page FILE.html; the output file of --batch, --calibrate, "
        "--scenarios and a load curve (.csv, .json, .xlsx)",
        metavar="PATH", flags=("-o", "--output", "--out"), action=_Output, names="nothing",
    )  # fmt: skip
    format: str = option_fields.output_format("text")


_ALL = names_of(ServeCommand)
_MODES = ("sweep", "calibrate", "export_profile", "scenarios", "batch")
_DEPLOYED = names_of(DeploymentOptions) | {"config", "model", "cluster"}
#: What each mode reads; without one it is a run.
READ = {
    "scenarios": _ALL - set(_MODES) - {"lod", "trace", "slo", "price_per_gpu_hour", "find_max_goodput", "profile"},
    "batch": names_of(EngineOptions) | {"config", "output"},
    "calibrate": _DEPLOYED | {"output", "run_name", "policy"},
    "export_profile": _DEPLOYED | {"input_tokens", "output_tokens", "concurrency"},
    "sweep": _ALL - set(_MODES) - {"replay", "run_name", "concurrency"},
}


configure = arguments_of(ServeCommand)


def run(args: argparse.Namespace) -> int:
    args.settled = given_options(args, configure)
    if args.config is None:
        return _one(args, args)
    from tracelens.predict.serving.experiment import read_settings

    every = read_settings(args.config)
    if len(every) == 1:
        return _one(_with_config(args, args.config, every[0][1]), args)
    if args.trace is not None:
        raise UsageError(
            f"{args.config}: --trace records one run, but this file has {len(every)} frameworks; omit --trace"
        )
    code = 0
    args.documents = []
    for (name, settings), folder in zip(every, _folders([name for name, _ in every]), strict=True):
        one = _with_config(args, args.config, settings)
        if one.output is not None:
            one.output = Path(one.output) / folder
        if args.format == "text":
            engine = settings.get("engine", "no fitted engine")
            say(f"framework {name}: {engine}" if engine != name else f"framework {name}")
        elif any(getattr(one, mode) for mode in READ):
            raise UsageError(f"{args.config}: --format json takes several frameworks only for single runs; omit it")
        code = max(code, _one(one, args))
    if args.format == "json":
        named = [
            {"name": name, **{key: each[key] for key in each if key != "schema"}}
            for (name, _), each in zip(every, args.documents, strict=True)
        ]
        emit(json.dumps({"schema": "tracelens.serve.frameworks/1", "frameworks": named}, indent=2) + "\n")
    return code


def _folders(names: list[str]) -> list[str]:
    """A folder's name for each framework, of plain characters; with its number where two would be the same."""
    plain = [re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:60] or "_" for name in names]
    is_twice = [plain.count(name) > 1 for name in plain]
    return [f"{name}-{at}" if twice else name for at, (name, twice) in enumerate(zip(plain, is_twice, strict=True), 1)]


def _one(args: argparse.Namespace, given: argparse.Namespace) -> int:
    """A run; ``given``: what the command line itself says."""
    if args.batch is not None and args.output is None:
        raise UsageError("--batch needs -o FILE.csv")
    mode = next((name for name in READ if getattr(args, name)), None)
    if mode is not None:
        read = READ[mode] | {mode}
        refuse_unread(given, configure, f"--{mode.replace('_', '-')}", lambda name: name not in read)
    else:
        _refuse_without_mode(args, given)
    asked = options_of(ServingConfig, args)
    if mode == "sweep" and args.sweep.startswith("concurrency"):
        if args.find_max_goodput:
            raise UsageError("--find-max-goodput needs --sweep rate=FROM..TO, from whose rates it chooses")
        mode = None
    if mode == "scenarios":
        return _scenarios(args, asked)
    if mode == "batch":
        return _batch(args, asked)
    if args.model is None or args.cluster is None:
        raise UsageError(
            "name a model and a device or cluster, as in --model llama3-8b --device h100 (tracelens models list and "
            "devices list show them), or --config, --scenarios or --batch"
        )
    if mode is None and (asked.rate, asked.concurrency, asked.replay) == (None, None, None):
        return _curve(args, given, asked)
    return _deployed(args, asked, mode)


def _deployed(args: argparse.Namespace, asked: ServingConfig, mode: str | None) -> int:
    """A mode, or a run, of one deployment."""
    from tracelens.predict.serving.experiment import deployment_of

    if mode == "calibrate":  # what is fitted begins with nothing
        from tracelens.predict.serving.engines import IDEAL

        bare = dataclasses.replace(asked, engine=asked.engine or IDEAL)
        return _calibrate(args, deployment_of(args.model, args.cluster, bare))
    deployment = deployment_of(args.model, args.cluster, asked)
    if mode == "export_profile":
        from tracelens.predict.serving.costs import StepCost
        from tracelens.predict.serving.profile import export
        from tracelens.predict.serving.requests import Lengths

        prompt, answer = (max(1, round(Lengths.parse(text).mean)) for text in (args.input_tokens, args.output_tokens))
        batch = args.concurrency or 32
        export(StepCost(deployment), args.export_profile, prompt=prompt, batch=batch, context=prompt + answer // 2)
        say(f"wrote {args.export_profile}")
        return 0
    if mode == "sweep":
        from tracelens.predict.serving.experiment import experiment_of, find_max_goodput
        from tracelens.report.serving_report import sweep_text

        is_page = args.output is None or args.output.suffix == ".html"
        if not is_page or args.trace is not None or args.format != "text":
            raise UsageError("--sweep cannot be combined with --trace or --format, and its -o must be FILE.html")
        if args.find_max_goodput and not asked.slo:
            raise UsageError("--find-max-goodput needs --slo")
        rates = _span(args.sweep, "rate", "FROM..TO or rate=FROM..TO..STEP")
        experiment = experiment_of(deployment, dataclasses.replace(asked, rate=rates[0]), said=args.model)
        rows = find_max_goodput(experiment, rates)
        if args.output is not None:
            from tracelens.report.serving_report import sweep_page

            write_whole(args.output, sweep_page(rows))
        say_lines(sweep_text(rows, best=args.find_max_goodput))
        if args.output is not None:
            say(f"wrote {args.output}")
        return 0
    return _once(args, deployment, asked)


#: What a load curve does not read: its arrivals are closed loops.
_NOT_OF_A_CURVE = ("trace", "run_name", "arrivals", "variation", "duration")


def _curve(args: argparse.Namespace, given: argparse.Namespace, asked: ServingConfig) -> int:
    from tracelens.predict.serving.load_curve import load_curve
    from tracelens.report.serving_report import curve_json, curve_text, write_curve

    _refuse_other_file(args.output, ".html", ".csv", ".json", ".xlsx")
    mode = "a load curve (give --rate or --concurrency for one load)"
    refuse_unread(given, configure, mode, lambda name: name in _NOT_OF_A_CURVE)
    levels = [] if args.sweep is None else [round(n) for n in _span(args.sweep, "concurrency", "8..64..8")]
    curve = load_curve(args.model, args.cluster, asked, takes_tp="tp" not in args.settled, levels=levels)
    if args.output is not None:
        write_curve(curve, args.output)
    if args.format == "json":
        _say_json(args, curve_json(curve))
    else:
        say_lines(curve_text(curve))
        if args.output is not None:
            say(f"wrote {args.output}")
    return 0


def _say_json(args: argparse.Namespace, document: str) -> None:
    """Prints a document, or keeps it for the one of several frameworks."""
    if (documents := getattr(args, "documents", None)) is None:
        emit(document)
    else:
        documents.append(json.loads(document))


def _refuse_other_file(path: Path | None, *kinds: str) -> None:
    if path is not None and path.suffix not in kinds:
        refuse_file_name(path)


def _refuse_without_mode(args: argparse.Namespace, given: argparse.Namespace) -> None:
    """UsageError for options of a plain run that some mode alone reads, and for two loads on the command line."""
    if given.rate is not None and given.concurrency is not None:
        raise UsageError("--rate and --concurrency are two kinds of load: give one")
    if args.simulator_profile:
        raise UsageError("--simulator-profile needs --scenarios, whose levels it compares")
    if args.find_max_goodput:
        raise UsageError("--find-max-goodput needs --sweep, from whose rates it chooses")


def _with_config(args: argparse.Namespace, path: Path, settings: dict[str, Any]) -> argparse.Namespace:
    """With the options of an experiment file, where the command line does not give them."""
    if re.fullmatch(TOKENS, str(settings.get("output"))):
        settings = {"output_tokens" if name == "output" else name: value for name, value in settings.items()}
    args.settled |= settings.keys()
    return option_fields.filled_in(args, configure, settings, path)


def _once(args: argparse.Namespace, deployment: Deployment, asked: ServingConfig) -> int:
    from tracelens.predict.serving.experiment import experiment_of
    from tracelens.predict.serving.metrics import ServingTimeline
    from tracelens.report.serving_report import served_text, write_folder

    _refuse_other_file(args.output, ".html")
    names = ("rate", "concurrency", "requests", "duration", "shared_prefix")
    unused = [f"--{name.replace('_', '-')}" for name in names if getattr(asked, name)]
    if asked.replay is not None and unused:
        say(f"note: requests come from {asked.replay}; ignored: {', '.join(unused)}", to_stderr=True)
    experiment = experiment_of(deployment, asked, series=args.output is not None, said=args.model)
    cost = experiment.cost()
    timeline = ServingTimeline(cost) if args.trace is not None else None
    result = experiment.run(cost=cost, record=timeline)
    written = []
    if timeline is not None:
        written.append(str(timeline.write(args.trace)))
        if timeline.is_full:
            say("note: the trace has only the first steps", to_stderr=True)
    if args.output is not None and args.output.suffix == ".html":
        from tracelens.report.serving_report import served_page

        write_whole(args.output, served_page(result))
        written.append(str(args.output))
    elif args.output is not None:
        write_folder(result, args.output)
        written.append(f"{args.output}/")
    if args.format == "json":
        _say_json(args, result.to_json())
    else:
        say_lines(served_text(result))
        for path in written:
            say(f"wrote {path}")
    return 0 if result.summary["completed"] else NothingToAnalyzeError.exit_code


def _span(text: str, wanted: str, form: str) -> tuple[float, ...]:
    """The values of ``wanted`` that ``--sweep`` names. UsageError, with the ``form`` that it takes, for others."""
    name, _, span = text.partition("=")
    parts = span.split("..")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and wanted == "concurrency":
        numbers *= 2
    least = 1 if wanted == "concurrency" else 0
    if name != wanted or len(numbers) not in (2, 3) or not least <= numbers[0] <= numbers[1] or not numbers[0]:
        raise UsageError(f"--sweep takes {wanted}={form}, not {text!r}")
    step = numbers[2] if len(numbers) == 3 else 1.0
    if step < least or not step or (numbers[1] - numbers[0]) / step > 1000:
        raise UsageError(f"--sweep {text}: the step must be above 0 and give at most 1000 runs")
    count = int((numbers[1] - numbers[0]) / step + 1e-9) + 1
    return tuple(numbers[0] + index * step for index in range(count))


def _calibrate(args: argparse.Namespace, deployment: Deployment) -> int:
    from tracelens.predict.calibration.engine_calibration import calibrate

    engine = calibrate(deployment, args.calibrate, run=args.run_name, policy=args.policy)
    target = args.output or Path("engine.toml")
    write_whole(target, engine.to_toml())
    emit(engine.to_toml())
    say(f"wrote {target}")
    return 0


def _batch(args: argparse.Namespace, asked: ServingConfig) -> int:
    from tracelens.laboratory.configuration_rows import batch
    from tracelens.predict.serving.engines import IDEAL
    from tracelens.predict.serving.experiment import engine_of

    said = None if asked.engine is None else str(asked.engine)
    is_file = said is not None and ("/" in said or said.endswith(".toml"))
    engine = engine_of(asked if is_file else dataclasses.replace(asked, engine=None))
    if not is_file and asked.max_num_seqs is None:
        engine = dataclasses.replace(engine, max_num_seqs=1024, max_batched_tokens=8192)
    rows, good = batch(args.batch, args.output, engine, backend=asked.backend, engine_named=IDEAL if is_file else said)
    say(f"{good} of {rows} rows estimated, the others have a reason; wrote {args.output}")
    return 0


def _scenarios(args: argparse.Namespace, asked: ServingConfig) -> int:
    from tracelens.laboratory.scenarios import figures
    from tracelens.report.export import frame_json, refuse_unknown, write_frame
    from tracelens.report.serving_report import scenarios_text

    if args.output is not None:
        refuse_unknown(args.output)
    found = _compared(args, asked)
    frame, about = pd.DataFrame([figures(each) for each in found]), {"schema": "tracelens.scenarios/1"}
    if args.output is not None:
        write_frame(args.output, frame, about)
    if args.format == "json":
        emit(frame_json(frame, about).decode())
        return 0
    say_lines(scenarios_text(found))
    if args.output is not None:
        say(f"wrote {args.output}")
    return 0


def _compared(args: argparse.Namespace, asked: ServingConfig) -> list[ScenarioComparison]:
    """The levels of the deployment that is asked for, or of the three built-in ones."""
    from tracelens.laboratory.scenarios import SCENARIOS, bundled, compare, load_of, of_deployment
    from tracelens.predict.serving.experiment import deployment_of, experiment_of
    from tracelens.predict.serving.replica_state import Options

    count = asked.requests if isinstance(asked.requests, int) else 24
    cluster = args.cluster or "dgx-h100"
    if args.model is None:
        read = {"requests", "cluster", "contention", "jitter", "simulator_profile"}
        read |= {"config", "output", "format", "scenarios"}
        refuse_unread(args, configure, "--scenarios without --model", lambda name: name not in read)
        options = Options(contention=asked.contention, jitter=asked.jitter)
        return [
            compare(each, bundled(each, cluster), load_of(count), options, profiled=args.simulator_profile)
            for each in SCENARIOS
        ]
    open_rate = asked.rate is None and asked.concurrency is None and asked.replay is None
    asked = dataclasses.replace(asked, rate=2.0 if open_rate else asked.rate, requests=count)
    deployment = deployment_of(args.model, cluster, asked)
    experiment = experiment_of(deployment, asked)
    return [
        compare(
            of_deployment(deployment), deployment, experiment.requests(), experiment.options,
            profiled=args.simulator_profile,
        )
    ]  # fmt: skip
