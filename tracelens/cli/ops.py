"""List the op names that have a perf model or a category, with the file that defines it."""

from __future__ import annotations

import argparse
import sys

from tracelens import perf_models
from tracelens.extensions import NONE, Extension, bundled_extensions, load_extension, overlay
from tracelens.files.say import say
from tracelens.perf_models.base import models_of
from tracelens.registry import Claim, Registry

_HEADER = ("name", "category", "model", "source")
#: Characters; in a terminal a longer name has a line of its own, other longer cells move what follows.
_NAME_WIDTH, _WIDTHS = 44, (18, 22, 0)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--extension",
        action="append",
        default=[],
        metavar="NAME|FILE.py",
        help="extensions whose ops to list; default: all bundled ones; none: only core ops",
    )
    parser.add_argument("pattern", nargs="?", default="", help="only names that contain this text")


def run(args: argparse.Namespace) -> int:
    rows = [row for row in _rows(_extensions(args.extension)) if args.pattern in row[0]]
    for name, *others in (_HEADER, *rows):
        if len(name) > _NAME_WIDTH and sys.stdout is not None and sys.stdout.isatty():
            say(name)
            name = ""
        say("  ".join([name.ljust(_NAME_WIDTH), *map(str.ljust, others, _WIDTHS)]).rstrip())
    say()
    say(f"{len(rows)} names; -: none. A name between slashes is a regular expression. Add one: docs/extensions.md")
    return 0


def _extensions(given: list[str]) -> tuple[Extension, ...]:
    if not given:
        return bundled_extensions()
    return tuple(load_extension(name) for name in given if name != NONE)


def _rows(extensions: tuple[Extension, ...]) -> list[tuple[str, ...]]:
    rows: dict[str, tuple[str, ...]] = {}
    for name, claim in overlay(perf_models.categories(), extensions).items():
        rows[name] = (name, str(claim.options["category"]), "-", claim.origin)
    for name, claim in overlay(Registry("backward_of", {}), extensions).items():
        rows[name] = (name, _category(rows, name), f"backward of {claim.options['forward']}", claim.origin)
    for name, claim in overlay(Registry("holds_ops", {}), extensions).items():
        rows[name] = (name, _category(rows, name), "its inner ops", claim.origin)
    for name, claim in overlay(perf_models.pattern_bindings(), extensions).items():
        rows[name] = _row(f"/{name}/", claim)
    for name, claim in overlay(perf_models.bindings(), extensions).items():
        rows[name] = _row(name, claim)
    return sorted(rows.values())


def _category(rows: dict[str, tuple[str, ...]], name: str) -> str:
    return rows[name][1] if name in rows else "-"


def _row(name: str, claim: Claim) -> tuple[str, ...]:
    models = " | ".join(model.__name__ for model in models_of(claim))
    return (name, perf_models.category_of(claim) or "-", models or "-", claim.origin)
