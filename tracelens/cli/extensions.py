"""List available extensions, or check that a file, module or installed name loads."""

from __future__ import annotations

import argparse

from tracelens.extensions import Extension, bundled_extensions, installed_extensions, load_extension


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|check")
    actions.add_parser("list", help="list bundled and installed extensions")
    check = actions.add_parser("check", help="load an extension and show what it adds")
    check.add_argument("extension", metavar="FILE", help="a .py file, a module, or a bundled or installed name")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        for extension in bundled_extensions():
            known = len(extension.traced_names)
            print(f"{extension.name:<22} bundled; switches itself on when one of its {known} op names occurs")
        for name, distribution in installed_extensions():
            print(f"{name:<22} installed by {distribution}; give --extension {name}")
        return 0
    _show(load_extension(args.extension))
    return 0


def _show(extension: Extension) -> None:
    print(f"{extension.name} ({extension.origin}) loads")
    for kind, key, place in extension.additions():
        print(f"  {kind:<14} {key}  from {place}")
    if extension.note:
        print(f"  {extension.note}")
