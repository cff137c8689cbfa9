"""Write a trace of any profiler in another format.

The ending of the file to write says which: .json (Kineto), .pftrace (Perfetto protobuf), each packed with .gz behind;
.et (Chakra, for network simulators), .parquet, .arrow. What the recording does not have, the result does not have.
"""

from __future__ import annotations

import argparse
from dataclasses import MISSING
from pathlib import Path

from tracelens.cli import refuse_input
from tracelens.files.say import say
from tracelens.lazy.records import dataclass
from tracelens.option_fields import arguments_of, option, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertCommand:
    """What is read, and where the result goes."""

    trace: Path = option("trace of any profiler (docs/formats.md)", MISSING, kind=Path, flags=("trace",))
    output: Path = option("file to write", MISSING, kind=Path, metavar="FILE", flags=("-o", "--output"))


configure = arguments_of(ConvertCommand)


def run(args: argparse.Namespace) -> int:
    from tracelens.excerpts.converting import convert
    from tracelens.trace.reading.read import read_trace

    asked = options_of(ConvertCommand, args)
    refuse_input(asked.output, [asked.trace])
    table = read_trace(asked.trace)
    for note in table.losses.notes:
        say(f" {note}")
    say(f" {convert(table, asked.output):,} records of {table.source}, {table.recorder.file}")
    say(f" wrote {asked.output}")
    return 0
