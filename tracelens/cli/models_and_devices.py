"""The verbs ``models`` and ``devices``: what predictions know of models and hardware, with sources."""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import replace
from pathlib import Path

from tracelens.errors import InputError
from tracelens.files.safe_text import json_safe
from tracelens.files.say import emit, say, say_lines, say_table
from tracelens.hardware import HardwareSpec
from tracelens.predict.estimation.model_summary import ModelSummary, model_summary
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.model_config import weights_of_name
from tracelens.types.dtypes import DType

MODEL_SCHEMA = "tracelens.model/1"
_MODEL_HEADER = ("name", "parameters", "active", "layers", "cache B/token", "dtype", "label")


def configure_models(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show")
    listed = actions.add_parser("list", help="list every model with its main figures")
    show = actions.add_parser("show", help="show the figures of a model and what was assumed to count them")
    show.add_argument(
        "name", metavar="NAME|FILE", help="name, alias, model file or config.json, e.g. deepseek-v3, ./config.json"
    )
    show.add_argument(
        "--sequence", type=int, default=4096, metavar="TOKENS", help="prompt length for FLOPs per token; default: 4096"
    )
    for each in (listed, show):
        each.add_argument("--format", choices=("text", "json"), default="text", help="output format")


def run_models(args: argparse.Namespace) -> int:
    """List the models that tracelens knows, or show one, or any Hugging Face config.json, with its figures."""
    if args.action == "list":
        summaries = [(model_summary(model), len(model.layers)) for model in ModelConfig.all()]
        if args.format == "json":
            _print_json([{"schema": MODEL_SCHEMA, **summary.to_dict()} for summary, _ in summaries])
            return 0
        say_table([_MODEL_HEADER, *(_model_row(summary, layers) for summary, layers in summaries)], words=(0, 5, 6))
        say()
        say("active: parameters that one token uses. tracelens models show FILE reads any Hugging Face config.json")
        return 0
    model, said = ModelConfig.load(args.name), weights_of_name(args.name)
    if said is not None:
        note = f"these are figures of {model.name}: serve takes weights in {said}, as the name {args.name} says"
        model = replace(model, notes=(*model.notes, note))
    summary = model_summary(model, sequence=max(args.sequence, 1))
    if args.format == "json":
        _print_json({"schema": MODEL_SCHEMA, **summary.to_dict()})
    else:
        _show_model(summary)
    return 0


def _print_json(value: object) -> None:
    emit(json.dumps(json_safe(value), indent=2, allow_nan=False) + "\n")


def _model_row(summary: ModelSummary, layers: int) -> tuple[str, ...]:
    return (
        summary.name,
        _number(summary.parameters_total),
        _number(summary.parameters_active),
        str(layers),
        "-" if summary.cache_bytes_per_token is None else f"{summary.cache_bytes_per_token:.0f}",
        summary.dtype or "-",
        summary.label,
    )


def _show_model(s: ModelSummary) -> None:
    say(f"{s.label}: {_number(s.parameters_total)} parameters, {_number(s.parameters_active)} active")
    further, vision = s.parameters_further_tokens, s.parameters_vision
    blocks = ", ".join(f"{count} {name}" for name, count in s.layers.items())
    rows = [
        ("from", s.source),
        ("parameters in all", f"{s.parameters_total:,}"),
        ("active for a token", f"{s.parameters_active:,}"),
        *([("of the vision tower", f"{vision:,} (in all, not in active)")] if vision else []),
        *([("for further tokens", f"{further:,} (in neither)")] if further else []),
        ("blocks", blocks),
        ("element type", s.dtype or "not said"),
        *([("quantized", ", ".join(f"{part} {of}" for part, of in s.quantization.items()))] if s.quantization else []),
        ("weights", _bytes(s.weight_bytes)),
        ("cache per token", _bytes(s.cache_bytes_per_token)),
        ("kept per sequence", _bytes(s.state_bytes_per_sequence)),
        ("FLOPs per token", f"{_number(s.flops_per_token_total)} at prompts of {s.sequence:,} tokens"),
    ]
    shares = {part: f"{100 * flops / s.flops_per_token_total:.1f} %" for part, flops in s.flops_per_token.items()}
    rows += [(f"  {p.replace('_', ' ')}", f"{_number(s.flops_per_token[p])} ({share})") for p, share in shares.items()]
    if s.mlp_to_attention_ratio is not None:
        rows.append(("feed-forward / token mixing", f"{s.mlp_to_attention_ratio:.2f}"))
    if s.flops_per_image_patch is not None:
        rows.append(("FLOPs per image patch", _number(s.flops_per_image_patch)))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"  {name:<{width}}  {value}")
    for note in s.assumed:
        say_lines(textwrap.fill(note, 110, initial_indent="  note: ", subsequent_indent="    "))


def _number(value: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "not known: the element type is not"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g} B"


_DEVICE_HEADER = ("name", "vendor", "bf16 TFLOPS", "achievable", "HBM TB/s", "GB", "link GB/s", "doubtful")


def configure_devices(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|check")
    actions.add_parser("list", help="list every device with its main rates, and the clusters")
    show = actions.add_parser("show", help="show every figure of a device with its source")
    show.add_argument("name", metavar="NAME", help="name, alias or device file, e.g. mi300x")
    check = actions.add_parser("check", help="load a device file, or all bundled ones, and report errors")
    check.add_argument("file", metavar="FILE", nargs="?", help="e.g. my_chip.toml; default: every bundled device")


def run_devices(args: argparse.Namespace) -> int:
    """List the devices and clusters that tracelens knows, show a device with its sources, or check a device file."""
    if args.action == "list":
        from tracelens.backends.chain import OPTIONAL
        from tracelens.predict.network.cluster import Cluster

        say_table([_DEVICE_HEADER, *map(_device_row, HardwareSpec.all())], words=(0, 1, 7))
        say()
        say("Rates are dense (no 2:4 sparsity), links per GPU and direction; - is unknown.")
        say_lines(textwrap.fill(f"Clusters of these devices, for --cluster: {', '.join(Cluster.names())}", 100))
        for name, why in OPTIONAL.items():
            absent = why()
            say(f"Optional backend {name}: {'available' if absent is None else 'absent, ' + absent}")
        say("doubtful: sources disagree, see tracelens devices show NAME. To add a device, see docs/devices.md")
        return 0
    if args.action == "show":
        device = HardwareSpec.load(args.name)
        say(f"{device.name}: {device.label}")
        say(f"  made by {device.vendor}; also called {', '.join(device.aliases) or '-'}")
        if device.note:
            say_lines(textwrap.fill(device.note, 100, initial_indent="  ", subsequent_indent="  "))
        say()
        figures = device.figures()
        width = max((len(figure.key) for figure in figures), default=0)
        for figure in figures:
            mark = "?" if figure.doubtful else " "
            say(f"{mark} {figure.key:<{width}} {_figure(figure.value):>9}  {figure.source}")
            if figure.note:
                say(f"  {'':<{width}} {'':>9}  ({figure.note})")
        if any(figure.doubtful for figure in figures):
            say()
            say("? doubtful: sources disagree")
        return 0
    return _check(args.file)


def _device_row(device: HardwareSpec) -> tuple[str, ...]:
    bf16 = device.rate("matrix", DType.BF16)
    hbm, link = device.hbm, device.link
    return (
        device.name,
        device.vendor,
        _figure(bf16.peak_tflops_s if bf16 else None),
        _figure(bf16.achievable_tflops_s if bf16 else None),
        _figure(hbm.peak_tb_s if hbm else None),
        _figure(hbm.capacity_gb if hbm else None),
        _figure(link.gb_s if link else None),
        ", ".join(_short(key) for key in device.doubtful()),
    )


def _check(file: str | None) -> int:
    if file is not None:
        # A path, whatever it is called: a name would find a device of the package instead.
        _checked(HardwareSpec.load(Path(file)), Path(file).name)
        return 0
    wrong = 0
    for name in HardwareSpec.names():
        try:
            _checked(HardwareSpec.load(name), f"{name}.toml")
        except InputError as error:
            wrong += 1
            say(error)
    return InputError.exit_code if wrong else 0


def _checked(device: HardwareSpec, file: str) -> None:
    units, cores = device.compute_units, device.matrix_cores
    compared = sum(
        cores is not None and units is not None and cores.tflops_s(dtype, units) is not None for dtype in device.matrix
    )
    parts = [f"{len(device.figures())} figures, each with a source"]
    if compared:
        parts.append(f"{compared} of {len(device.matrix)} matrix rates recomputed from units x matrix cores x clock")
    elif device.matrix:
        parts.append("no [matrix_cores]: that the matrix rates are dense was not recomputed")
    if device.doubtful():
        parts.append(f"doubtful: {', '.join(_short(key) for key in device.doubtful())}")
    if device.match is None:
        parts.append("no [match]: never recognized from a trace, only chosen with --device")
    if device.hbm is None or device.hbm.peak_tb_s is None:
        parts.append("no HBM rate: no memory time")
    say(f"{file}: ok; {'; '.join(parts)}")


def _short(key: str) -> str:
    """``matrix.fp64.peak_tflops_s`` -> ``matrix.fp64``."""
    return key.rsplit(".", 1)[0].removeprefix("chip.")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
