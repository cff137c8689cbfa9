"""List available extensions, check that one loads, or begin one from the arguments that a trace recorded."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracelens.errors import UsageError
from tracelens.extensions import Extension, bundled_extensions, installed_extensions, load_extension
from tracelens.files.atomic_write import write_whole
from tracelens.files.say import emit, say


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|check|new")
    actions.add_parser("list", help="list bundled and installed extensions")
    check = actions.add_parser("check", help="load an extension and show what it adds")
    check.add_argument("extension", metavar="FILE", help="a .py file, a module, or a bundled or installed name")
    new = actions.add_parser("new", help="begin an extension for an op from the arguments that a trace recorded")
    new.add_argument("op", metavar="OP", help="the op's name as the trace spells it")
    new.add_argument("--from", dest="trace", metavar="TRACE", required=True, type=Path, help="a trace with the op")
    new.add_argument("-o", "--output", metavar="FILE", type=Path, help="a new .py file; default: printed")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        for extension in bundled_extensions():
            known = len(extension.traced_names) + len(extension.name_patterns)
            say(f"{extension.name:<22} bundled; switches itself on when one of its {known} ops occurs")
        for name, distribution in installed_extensions():
            say(f"{name:<22} installed by {distribution}; give --extension {name}")
        return 0
    if args.action == "new":
        return _begin(args)
    _show(load_extension(args.extension))
    return 0


def _begin(args: argparse.Namespace) -> int:
    if args.output is not None and args.output.exists():
        raise UsageError(f"-o {args.output} exists already; give the name of a new file")
    from tracelens.analysis.extension_stub import extension_stub
    from tracelens.analysis.loaded_trace import load

    text = extension_stub(load(args.trace), args.op)
    if args.output is None:
        emit(text)
        return 0
    write_whole(args.output, text)
    say(f"wrote {args.output}")
    return 0


def _show(extension: Extension) -> None:
    say(f"{extension.name} ({extension.origin}) loads")
    for kind, key, place in extension.additions():
        say(f"  {kind:<14} {key}  from {place}")
    if extension.note:
        say(f"  {extension.note}")
