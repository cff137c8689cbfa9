"""Where each verb of the command is, and what ``tracelens`` and ``tracelens --help`` print.

A verb has its module of ``tracelens/cli`` for itself, with ``configure`` and ``run``, and the module's docstring is its
help; or it shares one: ``configure_VERB``, ``run_VERB``, and the docstring of ``run_VERB``. The command and whoever
offers the verbs in another way (``agents``) ask here, so neither imports the other.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import argparse

#: By group, for each verb: the module with its code and its line in ``tracelens --help``.
GROUPS = {
    "Look at traces": {
        "report": ("reporting", "show where the time went and how far it was from the hardware limit"),
        "compare": ("comparing", "show what changed between two recordings, and why"),
        "collectives": ("reporting", "compare the ranks of a job: bandwidth, waiting, slow ranks"),
        "whatif": ("whatif", "replay a step with a faster op, another device, fewer launches"),
        "query": ("fleet", "ask a trace, or a lake of traces, in SQL"),
        "check": ("check", "show what a trace contains and lacks"),
        "demo": ("reporting", "report on a bundled example trace"),
    },
    "Predict without a GPU": {
        "estimate": ("estimate", "estimate the time of one op or collective on a device"),
        "project": ("project", "predict a training step: time, MFU, memory per GPU"),
        "search": ("search", "find the fastest way to split a model over GPUs"),
        "serve": ("serve", "simulate an LLM server: latency, throughput, cost"),
        "route": ("route", "show where the tokens of an MoE layer go, and how long that takes"),
        "models": ("models_and_devices", "list the models that tracelens knows, or show one"),
        "devices": ("models_and_devices", "list the devices and clusters that tracelens knows, or show one"),
    },
    "Hand a trace on": {
        "convert": ("rewriting", "write a trace of any profiler in another format"),
        "slim": ("rewriting", "cut a trace to some steps, one rank or some categories"),
        "anonymize": ("rewriting", "remove names and paths from a trace; its figures stay"),
        "replay": ("rewriting", "write ops of a trace as scripts that run them alone"),
        "perfetto": ("rewriting", "write a trace for Perfetto, with rates, bounds and findings as tracks"),
        "fuse": ("rewriting", "merge the traces of a job's ranks into one file for Perfetto"),
    },
    "Automate and extend": {
        "baseline": ("comparing", "save a recording to compare later ones with"),
        "ingest": ("fleet", "add the tables of many traces to a lake, for query"),
        "mcp": ("fleet", "serve the analyses to agents as tools"),
        "skill": ("fleet", "write skill files that teach an agent to use tracelens"),
        "record": ("known", "print the lines that record what a question needs"),
        "calibrate": ("calibrating", "fit the constants of a device or cluster to measured times"),
        "score": ("calibrating", "compare predictions with measured values"),
        "extensions": ("known", "list, check or begin extensions for your own ops"),
        "ops": ("known", "list the op names that have a performance model"),
        "completion": ("completion", "print a shell completion script"),
    },
}
#: The module of each verb, by its name, sorted.
VERBS = {verb: module for verb, (module, _) in sorted(row for group in GROUPS.values() for row in group.items())}

_ABOUT = "tracelens shows how far a PyTorch profiler trace is from the limits of its hardware."
_LAST = """\
tracelens VERB --help shows the common options of a command, --help-all every option.
tracelens --version prints the version."""


class Verb(NamedTuple):
    """``about``: its help. ``configure`` adds its options to a parser; ``run`` returns its exit code."""

    about: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def verb(name: str) -> Verb:
    """Imports the module of a verb, and no other's."""
    module = importlib.import_module(f"tracelens.cli.{VERBS[name]}")
    if VERBS[name] == name:
        return Verb(module.__doc__ or "", module.configure, module.run)
    configure, run = getattr(module, f"configure_{name}"), getattr(module, f"run_{name}")
    return Verb(re.sub(r"\n +", "\n", run.__doc__ or "").rstrip(), configure, run)


def front_page(*, whole: bool) -> str:
    """What tracelens is and five commands; ``whole``: every verb in its group."""
    if not whole:
        commands = Path(__file__).with_name("front_page.txt").read_text(encoding="utf-8")
        return f"{_ABOUT}\n\n{commands.rstrip()}"
    lines = [_ABOUT, "", "usage: tracelens TRACE|FOLDER [options]", "       tracelens VERB [options]"]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<13}{line}" for name, (_, line) in group.items())]
    return "\n".join([*lines, "", _LAST])
