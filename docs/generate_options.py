"""Writes the tables of options in docs/cli.md from the command itself: ``python -m docs.generate_options``."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tracelens.cli.parsing import groups, meaning, name_of_value
from tracelens.cli.verbs import GROUPS, VERBS
from tracelens.cli.verbs import verb as verb_of

PAGE = Path(__file__).resolve().parent / "cli.md"
#: Generated text stands between these lines; the rest of the page is written by hand.
BEGIN, END = "<!-- options of {verb}: python -m docs.generate_options -->\n", "<!-- end of options -->\n"
COMMANDS, LISTED = "<!-- commands: python -m docs.generate_options -->\n", "<!-- end of commands -->\n"
#: Of a verb's own verbs, fewer than these without an option are named beside it.
_FEW = 4
#: The verb whose options are told in full, and how many another one shares where it refers to them.
_TOLD, _MANY = "report", 6
#: Groups whose options come without a heading.
_UNTITLED = ("arguments", "options")


def page(text: str) -> str:
    """``text`` with the commands and all tables as they are now; a new verb gets a place after the others."""
    text = _between(COMMANDS, LISTED, f"```\n{_commands()}```\n", text)
    for verb in VERBS:
        begin = BEGIN.format(verb=verb)
        if begin not in text:
            text = text.replace("## Exit codes", f"## {verb}\n\n{begin}{END}\n## Exit codes", 1)
        text = _between(begin, END, table(verb), text)
    return text


def _between(begin: str, end: str, made: str, text: str) -> str:
    return re.sub(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", lambda _: made, text, count=1, flags=re.DOTALL)


def _commands() -> str:
    """The verbs in their groups, as ``tracelens --help`` lists them."""
    parts = [
        f"# {title}\n" + "".join(f"{f'tracelens {verb}':<24}{line}\n" for verb, (_, line) in group.items())
        for title, group in GROUPS.items()
    ]
    return "\n".join(parts)


def table(verb: str) -> str:
    """The options of a verb as rows, grouped as by ``--help-all``; those that ``report`` has, too, are only named."""
    parser = _parser(verb)
    told = [] if verb == _TOLD else _rows(_parser(_TOLD)._actions)
    again = [row for row in _rows(parser._actions) if row in told]
    again = again if len(again) >= _MANY else []
    found = []
    for title, actions in groups(parser):
        if own := [row for row in _rows(actions) if row not in again]:
            found += [*([] if title in _UNTITLED else [(f"**{title}**", "")]), *own]
    if again:
        names = ", ".join(f"`{name.strip('`').partition(' ')[0]}`" for name, _ in again)
        found.append((names, f"as for [{_TOLD}](#{_TOLD})"))
    rows = "".join(f"| {name} | {_cell(text)} |\n" for name, text in found)
    return f"| option | meaning |\n|---|---|\n{rows}"


def _parser(verb: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    verb_of(verb).configure(parser)
    return parser


def _rows(actions: Iterable[argparse.Action]) -> list[tuple[str, str]]:
    rows = []
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            rows += _rows_below(action)
        elif action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            rows.append((f"`{_cell(_spelled(action))}`", _meaning(action)))
    return rows


def _rows_below(action: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[tuple[str, str]]:
    """What most of a verb's own verbs take, once; then each of them with its other options, equal ones together."""
    options = {name: _rows(parser._actions) for name, parser in action.choices.items()}
    without = {
        row: [name for name, rows in options.items() if row not in rows] for rows in options.values() for row in rows
    }
    shared = [row for row, names in without.items() if len(names) < min(len(options) / 2, _FEW)]
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for verb in action._choices_actions:
        own = tuple(row for row in options[verb.dest] if row not in shared)
        alike.setdefault((verb.help or "", own), []).append(verb.dest)
    rows = []
    for option, text in shared:
        others = ", ".join(f"`{name}`" for name in without[option, text])
        rows.append((option, f"{text} (all but {others})" if others else text))
    for (about, own), names in alike.items():
        rows.append((", ".join(f"`{name}`" for name in names), about))
        before = names[0] if len(names) == 1 else "..."
        rows += [(f"`{before} {name.strip('`')}`", text) for name, text in own]
    return rows


def _spelled(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings) or action.dest.upper()
    return f"{names} {name_of_value(action)}" if action.option_strings and action.nargs != 0 else names


@cache
def _in_full() -> dict[tuple[str, str | None], str]:
    """By name and help of an option: what is said of it here instead. KeyError for an option that there is not."""
    told = tomllib.loads(PAGE.with_name("options.toml").read_text(encoding="utf-8"))
    found = {}
    for verb, texts in told.items():
        helps = {action.dest: action.help for action in _parser(verb)._actions}
        found |= {(name, helps[name]): text for name, text in texts.items()}
    return found


def _meaning(action: argparse.Action) -> str:
    text = _in_full().get((action.dest, action.help)) or meaning(action) % {"default": action.default}
    chosen = f" ({', '.join(map(str, action.choices))})" if action.choices and action.metavar else ""
    return text + chosen


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
