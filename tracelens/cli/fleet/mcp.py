"""Serve the analyses to agents as tools (Model Context Protocol, on standard input and output).

Reads below the given folders only, writes nothing, needs no network. Needs the SDK: pip install 'tracelens-perf[mcp]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", type=Path, nargs="+", required=True, metavar="FOLDER", help="folders below which tools may read"
    )


def run(args: argparse.Namespace) -> int:
    from tracelens.agents.tools import serve

    serve(args.root)
    return 0
