"""A verb's options as the JSON Schema of a tool, and a tool's arguments as the words of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tracelens.cli import verb_module
from tracelens.errors import UsageError

#: Options that no tool has: what they do is to write, to run code, to take long, or to say how the terminal looks.
_NEVER = {
    "csv", "extension", "extensions", "executor", "find_max_goodput", "format", "help", "jobs", "list", "max_memory",
    "open", "check", "scenarios", "sweep", "anchor", "traced", "trace_ranks", "baselines", "profile", "brief",
}  # fmt: skip
_INTEGERS, _NUMBERS = {"int", "positive", "whole"}, {"float", "above_zero"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parser_of(verb: str) -> argparse.ArgumentParser:
    """The verb's own parser, whose refusals are UsageErrors."""
    parser = _Parser(prog=verb, add_help=False)
    verb_module(verb).configure(parser)
    return parser


def properties(parser: argparse.ArgumentParser, paths: Collection[str]) -> dict[str, dict[str, Any]]:
    """JSON Schema by option name, of those that tools have; ``paths``: the options that are paths."""
    found: dict[str, dict[str, Any]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = {name: properties(each, paths) for name, each in action.choices.items()}
            # Kinds without options of their own are for tables, which tools do not read
            least = min(map(len, below.values()))
            kinds = [name for name, options in below.items() if len(options) > least]
            found[action.dest] = {"type": "string", "enum": kinds}
            for options in (below[kind] for kind in kinds):
                found |= {name: schema for name, schema in options.items() if name not in found}
        elif _is_offered(action, paths):
            found[action.dest] = _schema(action)
    return found


def required(parser: argparse.ArgumentParser, offered: Collection[str]) -> list[str]:
    """Names of the options that must be given."""
    return [action.dest for action in parser._actions if action.dest in offered and action.required]


def words(parser: argparse.ArgumentParser, arguments: Mapping[str, Any]) -> list[str]:
    """``arguments`` as a command line that ``parser`` reads; UsageError for a name that it does not know."""
    left = dict(arguments)
    line: list[str] = []
    flags: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and action.dest in left:
            kind = str(left.pop(action.dest))
            if kind not in action.choices:
                raise UsageError.unknown(action.dest, kind, action.choices)
            return [*line, *flags, kind, *words(action.choices[kind], left)]
        if action.dest in left:
            value = left.pop(action.dest)
            if not action.option_strings:
                line.append(str(value))
            elif action.nargs == 0:
                flags += [action.option_strings[-1]] if value else []
            else:
                given = value if isinstance(value, list) else [value]
                flags += [f"{action.option_strings[-1]}={each}" for each in given]
    if left:
        raise UsageError.unknown("argument", next(iter(left)), [action.dest for action in parser._actions])
    return [*line, *flags]


def _is_offered(action: argparse.Action, paths: Collection[str]) -> bool:
    if action.dest in paths:
        return True
    return action.help != argparse.SUPPRESS and action.dest not in _NEVER and action.type is not Path and (
        "output" not in action.dest or action.dest == "output_tokens"
    )  # fmt: skip


def _schema(action: argparse.Action) -> dict[str, Any]:
    kind = getattr(action.type, "__name__", "")
    schema: dict[str, Any] = {"type": "string"}
    if action.nargs == 0:
        schema = {"type": "boolean"}
    elif kind in _INTEGERS:
        schema = {"type": "integer"}
    elif kind in _NUMBERS:
        schema = {"type": "number"}
    elif action.choices:
        schema = {"type": "string", "enum": list(action.choices)}
    if isinstance(action, argparse._AppendAction):
        schema = {"type": "array", "items": schema}
    help_text = (action.help or "") % {"default": action.default}
    return {**schema, "description": help_text}
