"""A verb's options as the JSON Schema of a tool, and a tool's arguments as the words of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tracelens.errors import UsageError
from tracelens.verbs import verb_module

#: Options that no tool has: what they do is to write, to run code, to take long, or to say how the terminal looks.
_NEVER = {
    "csv", "extension", "extensions", "executor", "find_max_goodput", "format", "help", "jobs", "list", "max_memory",
    "open", "check", "scenarios", "sweep", "anchor", "traced", "trace_ranks", "baselines", "profile", "brief",
}  # fmt: skip
_INTEGERS, _NUMBERS = {"int", "integer", "positive", "whole"}, {"float", "above_zero"}

#: Of numbers, and of characters of a text.
_LARGEST, _LONGEST = 10**15, 2000
_KINDS = {
    "boolean": "true or false",
    "integer": f"a whole number up to {_LARGEST:.0e}",
    "number": f"a number up to {_LARGEST:.0e}",
    "string": f"a text of at most {_LONGEST} characters",
}


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


def checked(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``arguments`` as ``schema`` (of a tool) types them; UsageError for one that it does not know or of another type.

    A number stands for its text and one value for a list of it; integers may be written as 8.0.
    """
    known = schema["properties"]
    for name in (*arguments, *schema.get("required", ())):
        if name not in known:
            raise UsageError.unknown("argument", str(name)[:80], known)
        if name not in arguments:
            raise UsageError(f"the argument {name} is missing: {known[name].get('description', 'it must be given')}")
    return {name: _checked(name, known[name], value) for name, value in arguments.items()}


def _checked(name: str, schema: Mapping[str, Any], value: Any) -> Any:
    kind = schema["type"]
    if kind == "array":
        return [_checked(name, schema["items"], each) for each in (value if isinstance(value, list) else [value])]
    if not _FITS[kind](value):
        raise UsageError(f"{name} must be {_KINDS[kind]}, not {str(value)[:80]!r}")
    return int(value) if kind == "integer" else str(value) if kind == "string" else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_text(value: Any) -> bool:
    # Half a character (a lone surrogate) is none: nothing could print it
    return isinstance(value, str) and len(value) <= _LONGEST and not any("\ud800" <= c <= "\udfff" for c in value)


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == int(value),
    "string": lambda value: _is_number(value) or _is_text(value),
}


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
