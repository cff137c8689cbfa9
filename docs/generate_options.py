"""Writes the tables of options in docs/cli.md from the command itself: ``python -m docs.generate_options``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tracelens.verbs import verb_module, verbs

PAGE = Path(__file__).resolve().parent / "cli.md"
#: Generated text stands between these lines; the rest of the page is written by hand.
BEGIN, END = "<!-- options of {verb}: python -m docs.generate_options -->\n", "<!-- end of options -->\n"


def page(text: str) -> str:
    """``text`` with every table as the command has it now; a verb without a place gets one at the end of the tables."""
    for verb in verbs():
        begin = BEGIN.format(verb=verb)
        made = f"{begin}{table(verb)}{END}"
        if begin in text:
            text = re.sub(f"{re.escape(begin)}.*?{re.escape(END)}", lambda _, made=made: made, text, flags=re.DOTALL)
        else:
            text = text.replace("## Exit codes", f"## {verb}\n\n{made}\n## Exit codes", 1)
    return text


def table(verb: str) -> str:
    """The options of a verb, and of its own verbs, as rows."""
    parser = argparse.ArgumentParser(add_help=False)
    verb_module(verb).configure(parser)
    return "| option | meaning |\n|---|---|\n" + "".join(_rows(parser, ""))


def _rows(parser: argparse.ArgumentParser, before: str) -> list[str]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action._choices_actions:
                rows.append(f"| `{before}{below.dest}` | {_cell(below.help or '')} |\n")
                rows += _rows(action.choices[below.dest], f"{before}{below.dest} ")
        elif action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            rows.append(f"| `{before}{_cell(_spelled(action))}` | {_cell(_meaning(action))} |\n")
    return rows


def _spelled(action: argparse.Action) -> str:
    value = (
        "" if action.nargs == 0 else action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
    )
    names = ", ".join(action.option_strings) or action.dest.upper()
    return f"{names} {value}" if action.option_strings and action.nargs != 0 else names


def _meaning(action: argparse.Action) -> str:
    text = getattr(action, "note", "") or (action.help or "") % {"default": action.default}
    chosen = f" ({', '.join(map(str, action.choices))})" if action.choices and action.metavar else ""
    return text + chosen


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
