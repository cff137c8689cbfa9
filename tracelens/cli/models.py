"""List the models that tracelens knows, or show one, or any Hugging Face config.json, with its figures."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from typing import Any

from tracelens.files.safe_text import json_safe
from tracelens.files.say import emit, say, say_lines, say_table
from tracelens.predict.estimation.model_summary import ModelSummary, model_summary
from tracelens.predict.workload import ModelConfig

_HEADER = ("name", "parameters", "active", "layers", "cache B/token", "dtype", "label")


def configure(parser: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        summaries = [(model_summary(model), len(model.layers)) for model in ModelConfig.all()]
        if args.format == "json":
            _print_json([_document(summary) for summary, _ in summaries])
        else:
            _list(summaries)
        return 0
    summary = model_summary(ModelConfig.load(args.name), sequence=max(args.sequence, 1))
    if args.format == "json":
        _print_json(_document(summary))
    else:
        _show(summary)
    return 0


def _document(summary: ModelSummary) -> dict[str, Any]:
    return {"schema": "tracelens.model/1", **summary.to_dict()}


def _print_json(value: object) -> None:
    emit(json.dumps(json_safe(value), indent=2, allow_nan=False) + "\n")


def _list(summaries: Sequence[tuple[ModelSummary, int]]) -> None:
    say_table([_HEADER, *(_row(summary, layers) for summary, layers in summaries)], words=(0, 5, 6))
    say()
    say("active: parameters that one token uses. tracelens models show FILE reads any Hugging Face config.json")


def _row(summary: ModelSummary, layers: int) -> tuple[str, ...]:
    return (
        summary.name,
        _number(summary.parameters_total),
        _number(summary.parameters_active),
        str(layers),
        "-" if summary.cache_bytes_per_token is None else f"{summary.cache_bytes_per_token:.0f}",
        summary.dtype or "-",
        summary.label,
    )


def _show(s: ModelSummary) -> None:
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
    rows += [(f"  {part.replace('_', ' ')}", _share(flops, s)) for part, flops in s.flops_per_token.items()]
    if s.mlp_to_attention_ratio is not None:
        rows.append(("feed-forward / token mixing", f"{s.mlp_to_attention_ratio:.2f}"))
    if s.flops_per_image_patch is not None:
        rows.append(("FLOPs per image patch", _number(s.flops_per_image_patch)))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"  {name:<{width}}  {value}")
    for note in s.assumed:
        say_lines(textwrap.fill(note, 110, initial_indent="  note: ", subsequent_indent="    "))


def _share(flops: float, s: ModelSummary) -> str:
    return f"{_number(flops)} ({100 * flops / s.flops_per_token_total:.1f} %)"


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
