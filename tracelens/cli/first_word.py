"""What a command line means whose first word is no verb: ``tracelens trace.json.gz``, ``tracelens FOLDER``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from tracelens.cli.verbs import VERBS
from tracelens.errors import InputError, UsageError
from tracelens.files.say import say

#: Names in a folder that are looked at to find the one that was meant.
_MOST_NAMES = 2000


def with_verb(arguments: Sequence[str]) -> list[str]:
    """The command line with its verb: a verb before a file of that name, a file is reported, a folder is what it holds.

    UsageError for a word that is neither, with the nearest.
    """
    first, *others = arguments
    if first in VERBS:
        return list(arguments)
    if first.startswith("-") and first != "-":
        listed = f"options follow a command or file: tracelens TRACE {first}"
        raise UsageError.unknown("option of tracelens", first, ("--help", "--help-all", "--version"), listed=listed)
    path = Path(first)
    if first != "-" and not _is_there(first):
        raise _neither(first, path)
    if others and not others[0].startswith("-") and _is_there(others[0]):
        pair = shlex.join([first, others[0]])
        raise UsageError(
            f"several traces need a command: tracelens compare {pair} for two recordings, "
            f"tracelens collectives {pair} ... for the ranks of a job"
        )
    return [*_folder(path), *others] if path.is_dir() else ["report", *arguments]


def _is_there(text: str) -> bool:
    try:
        return text != "" and Path(text).exists()
    except (OSError, ValueError):
        return False


def _neither(first: str, path: Path) -> UsageError | InputError:
    beside, listed = _names_beside(path), "tracelens --help lists the commands"
    if len(path.parts) > 1 or path.suffix:
        return InputError(str(UsageError.unknown("file", first, beside, listed=listed)))
    return UsageError.unknown("command or file", first, [*VERBS, *beside], listed=listed)


def _names_beside(path: Path) -> list[str]:
    try:
        found = [str(path.parent / each.name) for _, each in zip(range(_MOST_NAMES), path.parent.iterdir())]  # noqa: B905
    except (OSError, ValueError):
        return []
    return [name for name in found if not Path(name).name.startswith(".")]


def _folder(folder: Path) -> list[str]:
    """The command for a folder, after a note that names it."""
    from tracelens.analysis.ranks.rank_files import find_traces
    from tracelens.files.documents import is_report
    from tracelens.report.lake.ingest import is_lake

    shown = shlex.quote(str(folder))
    if is_lake(folder):
        say(f"{folder} is a lake: these are its tables and ready queries (tracelens query {shown} --list)\n")
        return ["query", str(folder), "--list"]
    of_trace, of_job = is_report(folder / "report.json"), (folder / "collectives.json").is_file()
    if of_trace or of_job:
        page = folder / ("report.html" if of_trace else "collectives.html")
        raise UsageError(f"{folder} is a report that tracelens wrote, not a trace: open {page}")
    traces = find_traces([str(folder)])
    if len(traces) == 1:
        say(f"note: {folder} holds one trace: tracelens report {shlex.quote(str(traces[0]))}", to_stderr=True)
        return ["report", str(traces[0])]
    say(f"note: {folder} holds {len(traces)} traces: tracelens collectives {shown}", to_stderr=True)
    return ["collectives", str(folder)]
