"""The ``tracelens`` command; ``tracelens.cli.verbs`` says in which module each verb is."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli.verbs import front_page
from tracelens.errors import MemoryLimitError, TracelensError, UsageError
from tracelens.files.say import flush, prepare_streams, say, say_lines

if TYPE_CHECKING:
    import argparse

INTERRUPTED, TERMINATED = 130, 143
#: Of what should not happen: a bug of ours, which the user can report.
FAILED = 70
#: Allocations between two looks for garbage of a process that runs one command, whose objects mostly live as long as
#: it: with Python's own 700 such looks took a twentieth of a report.
_GARBAGE_AFTER = 200_000
#: For NumPy, before it is imported. Of arrays that are soon let go, memory in huge pages cost more to clear than it
#: spared: a fourteenth of a report of 800 thousand kernels (docs/performance.md).
_HUGE_PAGES = "NUMPY_MADVISE_HUGEPAGE"

#: What these say on their own: what there is.
_LISTING = (["devices"], ["extensions"], ["models"])
#: First words that are no command.
_PAGES = ("-h", "--help", "--help-all", "--version")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code (docs/cli.md lists them)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    if not arguments or arguments[0] in _PAGES:
        return _page(arguments)
    if arguments in _LISTING:
        arguments.append("list")
    if argv is None:
        gc.set_threshold(_GARBAGE_AFTER)
        os.environ.setdefault(_HUGE_PAGES, "0")
        _warn_of_repetition()
    try:
        with _terminated_like_interrupted(), _on_this_machine(arguments) as local:
            args = _parsed(local)
            from tracelens.files.memory_limit import limited

            with limited(args.max_memory):
                code = int(args.run(args))
            flush()
            return code
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; what is left to flush has nowhere to go.
        _drop_output()
        return 0
    except BaseException as error:
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        code = _said(error, arguments)
        if argv is None and isinstance(error, MemoryError | MemoryLimitError):
            # Libraries that were refused memory while they were loaded do not survive their own end
            _drop_output()
            os._exit(code)
        return code
    finally:
        # A process that ends would otherwise walk all that it made once more; DuckDB prints what it then misses
        if argv is None and "duckdb" not in sys.modules:
            gc.freeze()


def _page(arguments: Sequence[str]) -> int:
    """What the command prints of itself."""
    if arguments[:1] == ["--version"]:
        import tracelens

        say(f"tracelens {tracelens.__version__}")
    else:
        say_lines(front_page(whole=bool(arguments)))
    return 0


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line, with all of its words as ``command_line``."""
    from tracelens.cli.parsing import parser_of, with_verb

    words = with_verb(arguments)
    args, unknown = parser_of(words).parse_known_args(words)
    if unknown:
        command, is_output = f"tracelens {words[0]}", hasattr(args, "output") and not unknown[0].startswith("-")
        advice = f"to name an output, write -o {unknown[0]}" if is_output else f"see {command} --help"
        raise UsageError(f"{command} does not take {unknown[0]!r}; {advice}")
    args.command_line = words
    return args


def _warn_of_repetition() -> None:
    """One of several ranks that MPI started says that each does all of the work: MPI's pool starts one only."""
    for launcher in ("OMPI_COMM_WORLD", "PMI"):
        if os.environ.get(f"{launcher}_RANK") == "1" and "mpi4py.futures" not in sys.modules:
            count = os.environ.get(f"{launcher}_SIZE", "several")
            _tell(
                f"MPI started this command {count} times, and each does all of it; commands with --executor mpi "
                f"share it as mpiexec -n {count} python -m mpi4py.futures $(which tracelens) ..."
            )
            return


def _said(error: BaseException, arguments: Sequence[str]) -> int:
    """The sentence that an error ends with; its exit code."""
    if isinstance(error, KeyboardInterrupt):
        stopped = isinstance(error, _Terminated)
        kept = "; ".join(getattr(error, "__notes__", ())) or "nothing was written"
        _tell(f"{'terminated' if stopped else 'interrupted'}; {kept}")
        return TERMINATED if stopped else INTERRUPTED
    code = error.exit_code if isinstance(error, TracelensError) else 1
    if isinstance(error, TracelensError):
        text = str(error)
    elif isinstance(error, MemoryError):  # on the way out of the limit, whose own sentence it cost
        from tracelens.files.memory_limit import shortage

        text = shortage()
    elif isinstance(error, OSError):
        text = f"{error.filename or 'the system'}: {error.strerror or error}"
    else:
        code, text = FAILED, _unexpected(error, arguments)
    _tell(f"error: {text}  (exit {code})")
    try:
        flush()
    except (TracelensError, OSError):
        _drop_output()
    if "--debug" in arguments or "-vv" in arguments:
        import traceback

        for line in "".join(traceback.format_exception(error)).splitlines():
            _tell(line)
    return code


def _drop_output() -> None:
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(text: str) -> None:
    with suppress(TracelensError, OSError, ValueError):
        say(text, to_stderr=True)


def _unexpected(error: BaseException, arguments: Sequence[str]) -> str:
    """A sentence on a bug of ours, and a file with all that a report of it needs."""
    import platform
    import tempfile
    import traceback

    import tracelens
    from tracelens.files.safe_text import without_secrets

    what = without_secrets(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    facts = f"tracelens {tracelens.__version__}, Python {platform.python_version()}, {platform.platform()}"
    text = f"{facts}\n{' '.join(map(repr, arguments))}\n\n{''.join(traceback.format_exception(error))}"
    sentence = f"this is a bug in tracelens ({what})"
    try:
        with tempfile.NamedTemporaryFile("wb", prefix="tracelens-error-", suffix=".txt", delete=False) as file:
            file.write(without_secrets(text).encode("utf-8", "backslashreplace"))
    except OSError:
        return f"{sentence}; please report it with what --debug shows"
    return f"{sentence}; please report it with {file.name}"


class _Terminated(KeyboardInterrupt):
    """SIGTERM: a batch system's or container's way to interrupt."""


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that what was half written is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _on_this_machine(arguments: list[str]) -> Iterator[list[str]]:
    """The arguments with what URLs name fetched for as long as the command runs."""
    if not any("://" in argument for argument in arguments):
        yield arguments
        return
    from tracelens.files.remote import fetched

    with fetched(arguments) as local:
        yield local


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose which processes read the traces."""
    from tracelens.files.option_fields import positive

    parser.add_argument(
        "--executor", default="processes", metavar="NAME",
        help="where traces are read: processes (default), serial, dask://HOST:PORT, mpi",
    )  # fmt: skip
    parser.add_argument("--jobs", type=positive, metavar="N", help="worker processes; default: one per core")


def add_extension(
    parser: argparse.ArgumentParser, about: str = "extension, as for report; repeatable", more: str = "|none"
) -> None:
    """Adds the option that names extensions; ``more``: what it takes besides names and files."""
    metavar = f"NAME|FILE.py{more}"
    parser.add_argument("--extension", action="append", default=[], metavar=metavar, help=about)


def refuse_input(output: Path, inputs: Iterable[Path]) -> None:
    """UsageError where a command would write over a file that it reads."""
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise UsageError(f"{output} would overwrite the input: choose another name with -o")
