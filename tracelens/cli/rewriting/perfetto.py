"""Write a trace for Perfetto with achieved rates, bounds and findings as tracks.

Each kernel gets its category, its rates and its share of the roofline as arguments; rates are counters, findings
a track each. Open the file at https://ui.perfetto.dev ("Open trace file"): it stays on this machine.
"""

from __future__ import annotations

import argparse

from tracelens.cli import refuse_input
from tracelens.cli.rewriting import TraceToTrace
from tracelens.files.say import say
from tracelens.option_fields import arguments_of, options_of

configure = arguments_of(TraceToTrace)


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.loaded_trace import AnalysisOptions, load
    from tracelens.excerpts.perfetto import write_perfetto

    asked = options_of(TraceToTrace, args)
    refuse_input(asked.output, [asked.trace])
    say(f" {write_perfetto(analyze(load(asked.trace), AnalysisOptions()), asked.output):,} events")
    say(f" wrote {asked.output}: open it at https://ui.perfetto.dev, from where nothing is sent")
    return 0
