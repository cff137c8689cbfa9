"""Where each verb of the command is.

A verb has its module of ``tracelens/cli`` for itself, with ``configure`` and ``run``, and the module's docstring is its
help; or it shares one: ``configure_VERB``, ``run_VERB``, and the docstring of ``run_VERB``. The command and whoever
offers the verbs in another way (``agents``) ask here, so neither imports the other.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent
_SHARED = {
    "calibrating": ("calibrate", "score"),
    "comparing": ("baseline", "compare"),
    "fleet": ("ingest", "mcp", "query"),
    "known": ("extensions", "ops", "record"),
    "reporting": ("collectives", "demo", "report"),
    "rewriting": ("anonymize", "convert", "fuse", "perfetto", "replay", "slim"),
}
_ALONE = (
    "check", "completion", "devices", "estimate", "models", "project", "route", "search", "serve", "whatif",
)  # fmt: skip
#: The module of each verb, by its name, sorted.
VERBS = dict(
    sorted({**{name: name for name in _ALONE}, **{n: m for m, names in _SHARED.items() for n in names}}.items())
)


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


def about(name: str) -> str:
    """The first line of a verb's help, read without importing its module."""
    text = (_FOLDER / f"{VERBS[name]}.py").read_text(encoding="utf-8")
    place = r"\A" if VERBS[name] == name else rf"^def run_{name}\(.*\n    "
    found = re.search(rf'{place}"""(.*?)(?:"""|$)', text, re.MULTILINE)
    return found[1] if found else ""
