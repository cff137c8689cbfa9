"""List the op names that have a perf model or a category, with the file that defines it."""

from __future__ import annotations

import argparse

from tracelens import perf_models
from tracelens.extensions import NONE, Extension, bundled_extensions, load_extension, overlay
from tracelens.perf_models.base import models_of
from tracelens.registry import Claim, Registry

_HEADER = ("name", "model", "category", "source")


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
    widths = [max(len(row[i]) for row in (_HEADER, *rows)) for i in range(len(_HEADER))]
    for row in (_HEADER, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()
    print(f"{len(rows)} names; -: none. A name between slashes is a regular expression. Add one: docs/extensions.md")
    return 0


def _extensions(given: list[str]) -> tuple[Extension, ...]:
    if not given:
        return bundled_extensions()
    return tuple(load_extension(name) for name in given if name != NONE)


def _rows(extensions: tuple[Extension, ...]) -> list[tuple[str, ...]]:
    rows: dict[str, tuple[str, ...]] = {}
    for name, claim in overlay(perf_models.categories(), extensions).items():
        rows[name] = (name, "-", str(claim.options["category"]), claim.origin)
    for name, claim in overlay(Registry("backward_of", {}), extensions).items():
        rows[name] = (name, f"backward of {claim.options['forward']}", _category(rows, name), claim.origin)
    for name, claim in overlay(Registry("holds_ops", {}), extensions).items():
        rows[name] = (name, "its inner ops", _category(rows, name), claim.origin)
    for name, claim in overlay(perf_models.pattern_bindings(), extensions).items():
        rows[name] = _row(f"/{name}/", claim)
    for name, claim in overlay(perf_models.bindings(), extensions).items():
        rows[name] = _row(name, claim)
    return sorted(rows.values())


def _category(rows: dict[str, tuple[str, ...]], name: str) -> str:
    return rows[name][2] if name in rows else "-"


def _row(name: str, claim: Claim) -> tuple[str, ...]:
    models = " | ".join(model.__name__ for model in models_of(claim))
    return (name, models or "-", perf_models.category_of(claim) or "-", claim.origin)
