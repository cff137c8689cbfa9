"""Report on the bundled example trace.

The trace is generated: three training steps of a small mixture-of-experts model on eight MI300X, as rank 0 would record
them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tracelens.errors import InputError

_IN_WHEEL = "demo_trace.json.gz"
_IN_CHECKOUT = Path("example_traces") / "moe_ep8" / "rank0.json.gz"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("tracelens_demo.report"), metavar="PATH", help="default: %(default)s/"
    )


def run(args: argparse.Namespace) -> int:
    from tracelens.cli import main

    return main(["report", str(example_trace()), "--output", str(args.output)])


def example_trace() -> Path:
    """The bundled trace: inside an installed package, or in a checkout. InputError where neither has it."""
    package = Path(__file__).resolve().parents[1]
    for path in (package / _IN_WHEEL, package.parent / _IN_CHECKOUT):
        if path.is_file():
            return path
    raise InputError(f"this installation lacks {_IN_WHEEL}: reinstall it, or report on your own trace")
