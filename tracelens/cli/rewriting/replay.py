"""Write ops of a trace as scripts that run them alone, with the time to expect.

A script needs PyTorch and nothing else; it holds shapes, types, strides and scalars of the op, and nothing else of the
trace.
"""

from __future__ import annotations

import argparse
from dataclasses import MISSING
from pathlib import Path

from tracelens.files.say import say
from tracelens.lazy.records import dataclass
from tracelens.option_fields import arguments_of, option, options_of, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCommand:
    """Which ops, and where their scripts go."""

    trace: Path = option("Kineto trace, .json or .json.gz", MISSING, kind=Path, flags=("trace",))
    op: str | None = option("every distinct call of this op", metavar="NAME")
    top: int | None = option("the distinct calls with most kernel time; default: 10", kind=positive, metavar="N")
    output: Path | None = option(
        "folder to write; default: TRACE.ops/", kind=Path, metavar="FOLDER", flags=("-o", "--output")
    )


configure = arguments_of(ReplayCommand)


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.loaded_trace import load
    from tracelens.errors import UsageError
    from tracelens.excerpts.op_scripts import op_scripts, write_scripts
    from tracelens.files.remote import folder_beside
    from tracelens.files.safe_text import terminal_text, trace_name

    asked = options_of(ReplayCommand, args)
    if asked.op is not None and asked.top is not None:
        raise UsageError("--op and --top mean different ops; give only one")
    folder = asked.output or folder_beside(asked.trace) / f"{trace_name(asked.trace.name)}.ops"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: -o must be a folder")
    top = asked.top if asked.op is not None or asked.top is not None else 10
    scripts = op_scripts(load(asked.trace), op=asked.op, top=top)
    write_scripts(scripts, folder)
    for script in scripts:
        what = script.file or f"left out: {script.why}"
        say(terminal_text(f" {script.kernel_us:10,.1f} µs x {script.calls:<6} {script.name:<40} {what}"))
    say(f" wrote {folder}/")
    return 0
