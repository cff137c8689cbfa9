"""Write a trace without the names and paths of who recorded it.

Ops, kernels, modules, ranges and files that are not PyTorch's or a published library's get placeholders; stacks, hosts
and unknown arguments go. All times, sizes and shapes stay: the report is the same but for names.
"""

from __future__ import annotations

import argparse

from tracelens.cli import refuse_input
from tracelens.cli.rewriting import TraceToTrace
from tracelens.files.say import say
from tracelens.option_fields import arguments_of, options_of

configure = arguments_of(TraceToTrace)


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.loaded_trace import load
    from tracelens.excerpts.anonymize import anonymize

    asked = options_of(TraceToTrace, args)
    refuse_input(asked.output, [asked.trace])
    say(f" {anonymize(load(asked.trace), asked.output):,} names replaced")
    say(f" wrote {asked.output}")
    return 0
