"""The verbs ``extensions``, ``ops`` and ``record``: what tracelens knows, and what to record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import add_extension
from tracelens.errors import UsageError
from tracelens.files.say import emit, say, say_lines

if TYPE_CHECKING:
    from tracelens.extensions import Extension
    from tracelens.registry import Claim

_HEADER = ("name", "category", "model", "source")
#: Characters; in a terminal a longer name has a line of its own, other longer cells move what follows.
_NAME_WIDTH, _WIDTHS = 44, (18, 22, 0)


def configure_extensions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|check|new")
    actions.add_parser("list", help="list bundled and installed extensions")
    check = actions.add_parser("check", help="load an extension and show what it adds")
    check.add_argument("extension", metavar="FILE", help="a .py file, a module, or a bundled or installed name")
    new = actions.add_parser("new", help="begin an extension for an op from the arguments that a trace recorded")
    new.add_argument("op", metavar="OP", help="the op's name as the trace spells it")
    new.add_argument(
        "--from", dest="trace", metavar="TRACE", required=True, type=Path, help="trace that contains the op"
    )
    new.add_argument("-o", "--output", metavar="FILE", type=Path, help=".py file to write; default: print the code")


def run_extensions(args: argparse.Namespace) -> int:
    """List available extensions, check that one loads, or begin one from the arguments that a trace recorded."""
    from tracelens.extensions import bundled_extensions, installed_extensions, load_extension

    if args.action == "list":
        for extension in bundled_extensions():
            known = len(extension.traced_names) + len(extension.name_patterns)
            say(f"{extension.name:<22} bundled; switches itself on when one of its {known} ops occurs")
        for name, distribution in installed_extensions():
            say(f"{name:<22} installed by {distribution}; give --extension {name}")
        return 0
    if args.action == "new":
        return _begin(args)
    extension = load_extension(args.extension)
    say(f"{extension.name} ({extension.origin}) loads")
    for kind, key, place in extension.additions():
        say(f"  {kind:<14} {key}  from {place}")
    if extension.note:
        say(f"  {extension.note}")
    return 0


def _begin(args: argparse.Namespace) -> int:
    if args.output is not None and args.output.exists():
        raise UsageError(f"-o {args.output} exists already; give the name of a new file")
    from tracelens.analysis.loaded_trace import load
    from tracelens.files.atomic_write import write_whole
    from tracelens.report.excerpts.op_scripts import extension_stub

    text = extension_stub(load(args.trace), args.op)
    if args.output is None:
        emit(text)
        return 0
    write_whole(args.output, text)
    say(f"wrote {args.output}")
    return 0


def configure_ops(parser: argparse.ArgumentParser) -> None:
    add_extension(parser, "extensions whose ops to list; default: all bundled ones; none: only core ops", "")
    parser.add_argument("pattern", nargs="?", default="", help="list only names that contain this text")


def run_ops(args: argparse.Namespace) -> int:
    """List the op names that have a perf model or a category, with the file that defines it."""
    known = list(_rows(_extensions(args.extension)))
    rows = [row for row in known if args.pattern in row[0]]
    if not rows:
        raise UsageError.unknown("op", args.pattern, [row[0] for row in known])
    for name, *others in (_HEADER, *rows):
        if len(name) > _NAME_WIDTH and sys.stdout is not None and sys.stdout.isatty():
            say(name)
            name = ""
        say("  ".join([name.ljust(_NAME_WIDTH), *map(str.ljust, others, _WIDTHS)]).rstrip())
    say()
    say(f"{len(rows)} names; - means none, and a name between slashes is a regular expression (docs/extensions.md)")
    return 0


def _extensions(given: list[str]) -> tuple[Extension, ...]:
    from tracelens.extensions import NONE, bundled_extensions, load_extension

    if not given:
        return bundled_extensions()
    return tuple(load_extension(name) for name in given if name != NONE)


def _rows(extensions: tuple[Extension, ...]) -> list[tuple[str, ...]]:
    from tracelens import perf_models
    from tracelens.extensions import overlay
    from tracelens.registry import Registry

    rows: dict[str, tuple[str, ...]] = {}
    for name, claim in overlay(perf_models.categories(), extensions).items():
        rows[name] = (name, str(claim.options["category"]), "-", claim.origin)
    for name, claim in overlay(Registry("backward_of", {}), extensions).items():
        rows[name] = (name, rows.get(name, (name, "-"))[1], f"backward of {claim.options['forward']}", claim.origin)
    for name, claim in overlay(Registry("holds_ops", {}), extensions).items():
        rows[name] = (name, rows.get(name, (name, "-"))[1], "its inner ops", claim.origin)
    for name, claim in overlay(perf_models.pattern_bindings(), extensions).items():
        rows[name] = _row(f"/{name}/", claim)
    for name, claim in overlay(perf_models.bindings(), extensions).items():
        rows[name] = _row(name, claim)
    return sorted(rows.values())


def _row(name: str, claim: Claim) -> tuple[str, ...]:
    from tracelens import perf_models
    from tracelens.perf_models.base import models_of

    models = " | ".join(model.__name__ for model in models_of(claim))
    return (name, perf_models.category_of(claim) or "-", models or "-", claim.origin)


def configure_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for", dest="question", metavar="QUESTION", help='question in your own words, e.g. "why is the GPU idle"'
    )
    parser.add_argument(
        "--list", action="store_true", help="list the known questions and the recording options that each needs"
    )


def run_record(args: argparse.Namespace) -> int:
    """Print the lines that record what a question needs, and the command that answers it afterwards."""
    from tracelens.report.recorder import question_of, questions, snippet

    if args.list or args.question is None:
        for question in questions():
            options = ", ".join(f"{name}={value!r}" for name, value in question.options.items()) or "every rank"
            say_lines(f"{question.text}\n    {options}: {question.why}")
        return 0
    found = question_of(args.question)
    if found is None:
        raise UsageError(f"no question about {args.question!r}: tracelens record --list shows all questions")
    say_lines(f"# {found.text}: {found.why}\n{snippet(found)}\n# afterwards: {found.then}")
    return 0
