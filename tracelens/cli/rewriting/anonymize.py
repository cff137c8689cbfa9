"""Write a trace without the names and paths of who recorded it.

Ops, kernels, modules, ranges and files that are not PyTorch's or a published library's get placeholders; stacks, hosts
and unknown arguments go. All times, sizes and shapes stay: the report is the same but for names.
"""

from __future__ import annotations

import argparse
from dataclasses import MISSING
from pathlib import Path

from tracelens.cli import refuse_input
from tracelens.files.say import say
from tracelens.lazy.records import dataclass
from tracelens.option_fields import add_options, option, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymizeCommand:
    """What is read, and where the result goes."""

    trace: Path = option("Kineto trace, .json or .json.gz", MISSING, kind=Path, flags=("trace",))
    output: Path = option(
        "file to write, .json or .json.gz", MISSING, kind=Path, metavar="FILE", flags=("-o", "--output")
    )


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, AnonymizeCommand)


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.loaded_trace import load
    from tracelens.excerpts.anonymize import anonymize

    asked = options_of(AnonymizeCommand, args)
    refuse_input(asked.output, [asked.trace])
    say(f" {anonymize(load(asked.trace), asked.output):,} names replaced")
    say(f" wrote {asked.output}")
    return 0
