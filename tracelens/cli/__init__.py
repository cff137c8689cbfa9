"""The ``tracelens`` command: one file per verb, found by listing this folder and those in it."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from tracelens.errors import TracelensError, UsageError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code (docs/cli.md lists them)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(arguments)
    args = parser.parse_args(arguments)
    args.command_line = arguments
    try:
        return int(args.run(args))
    except TracelensError as error:
        print(f"error: {_safe(str(error))}  (exit {error.exit_code})", file=sys.stderr)
        if args.verbose >= 2:
            import traceback

            traceback.print_exc()
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; what is left to flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _safe(message: str) -> str:
    """An error's lines without anything that a terminal would obey: they name what files and extensions hold."""
    from tracelens.files.safe_text import terminal_text

    return "\n".join(map(terminal_text, message.split("\n")))


def verbs() -> list[str]:
    """Names of all commands."""
    return sorted(_files())


def verb_module(verb: str) -> ModuleType:
    """The module of a verb."""
    place = _files()[verb].relative_to(Path(__file__).parent).with_suffix("")
    return importlib.import_module(".".join((__name__, *place.parts)))


def _files() -> dict[str, Path]:
    """The file of each verb."""
    return {path.stem: path for path in Path(__file__).parent.rglob("*.py") if path.stem != "__init__"}


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tracelens",
        description="Shows how far a PyTorch profiler trace is from the limits of its hardware.",
        epilog="tracelens VERB --help explains one command.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(title="commands", metavar="VERB", required=True)
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    known = verbs()
    for verb in known:
        if verb == chosen:
            module = verb_module(verb)
            command = commands.add_parser(
                verb,
                help=_summary(module.__doc__),
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            _configure(module, command)
        else:
            # Their first lines are only read where they are shown: reading them takes as long as the arguments.
            commands.add_parser(verb, help=None if chosen in known else _summary(_docstring(verb)))
    return parser


def _configure(module: ModuleType, command: argparse.ArgumentParser) -> None:
    module.configure(command)
    command.add_argument("-v", "--verbose", action="count", default=0, help="print more to stderr; -vv adds tracebacks")
    command.set_defaults(run=module.run)


def _docstring(verb: str) -> str | None:
    """A verb's docstring without importing it: ``--help`` stays fast."""
    return ast.get_docstring(ast.parse(_files()[verb].read_text(encoding="utf-8")))


def _summary(docstring: str | None) -> str:
    return (docstring or "").strip().split("\n", 1)[0]


def refuse_input(output: Path, inputs: Iterable[Path]) -> None:
    """UsageError where a command would write over a file that it reads."""
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise UsageError(f"{output} would overwrite the input: choose another name with -o")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import tracelens

        print(f"tracelens {tracelens.__version__}")
        parser.exit()
