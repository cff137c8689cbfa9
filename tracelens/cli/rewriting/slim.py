"""Cut a trace to some steps, one rank, or some categories.

The result is a Kineto trace: of steps, as if recording had begun with the first of them.
"""

from __future__ import annotations

import argparse
from dataclasses import MISSING
from pathlib import Path

from tracelens.cli import refuse_input
from tracelens.files.say import say
from tracelens.lazy.records import dataclass
from tracelens.option_fields import arguments_of, comma_list, option, options_of, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimCommand:
    """What stays, and where it goes."""

    trace: Path = option("Kineto trace, .json or .json.gz", MISSING, kind=Path, flags=("trace",))
    output: Path = option(
        "file to write, .json or .json.gz", MISSING, kind=Path, metavar="FILE", flags=("-o", "--output")
    )
    steps: str | None = option("only these steps", metavar="3|3-5|steady")
    rank: int | None = option("only this rank of a file with several", kind=whole, metavar="N")
    category: tuple[str, ...] = option(
        "only these categories (kernel, gpu_memcpy, cpu_op ...)", (), kind=comma_list, metavar="NAME,..."
    )


configure = arguments_of(SlimCommand)


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.loaded_trace import load
    from tracelens.excerpts.anonymize import Cut, slim

    asked = options_of(SlimCommand, args)
    refuse_input(asked.output, [asked.trace])
    cut = Cut(steps=asked.steps, rank=asked.rank, categories=tuple(asked.category))
    kept, events = slim(load(asked.trace), asked.output, cut)
    say(f" {kept:,} of {events:,} events")
    say(f" wrote {asked.output}")
    return 0
