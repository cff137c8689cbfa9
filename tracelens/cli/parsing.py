"""The parser of a command: which options ``VERB --help`` shows, two pages of help, refusals of one sentence with the
nearest name, and what a first word means that is no verb (``tracelens trace.json.gz``, ``tracelens FOLDER``).
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tracelens.cli.verbs import VERBS, verb
from tracelens.errors import InputError, UsageError
from tracelens.files.say import say, say_lines


class Common(NamedTuple):
    """``options``: names without dashes, or of a verb's own verbs, in their order; none: all of them."""

    options: str = ""
    examples: Sequence[str] = ()


@cache
def common_options() -> dict[str, Common]:
    """By verb, and by own verb of a verb (``help.toml``)."""
    import tomllib

    text = Path(__file__).with_name("help.toml").read_text(encoding="utf-8")
    return {name: Common(**said) for name, said in tomllib.loads(text).items()}


#: GB: a process has 0.064 resident once what `serve` loads is loaded, 0.106 of `report` (2026-11-28, Linux).
_LEAST_GB = 0.1
#: Title of the options that every command has.
EVERY = "every command"
_TITLES = {"positional arguments": "arguments"}
_WIDEST, _HELP_AT = 100, 30


#: Options of other verbs, the one that stands for them here, and what to say.
_INSTEAD = (
    ("--device", "--cluster", "--cluster takes a device, too, in its standard node"),
    ("--precision", "--dtype", "--dtype sets the element type"),
)


class Parser(argparse.ArgumentParser):
    """``--help`` shows what ``help.toml`` names, else all; ``--help-all`` all, in groups."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "add_help": False})
        self.every = self.add_argument_group(EVERY)
        self.every.add_argument("-h", "--help", action="help", help="show the common options")
        self.every.add_argument("--help-all", action=_HelpAll, help="show every option, in groups with defaults")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Refuses an unknown option before argparse asks for a missing one; ``models NAME`` is ``models show NAME``."""
        if self._subparsers is None:
            self._refuse_unknown(args or ())
        elif args and not args[0].startswith("-"):
            commands = self._subparsers._group_actions[0].choices or ()
            args = ["show", *args] if "show" in commands and args[0] not in commands else args
        return super().parse_known_args(args, namespace)

    def _refuse_unknown(self, words: Iterable[str]) -> None:
        for word in words:
            if word == "--":
                return
            name = word.partition("=")[0]
            if word.startswith("--") and not any(known.startswith(name) for known in self._option_string_actions):
                shown = [each for action in self._actions if not _is_hidden(action) for each in action.option_strings]
                listed = f"{self.prog} --help-all lists the options"
                for other, instead, hint in _INSTEAD:
                    listed = hint if name == other and instead in shown else listed
                raise UsageError.unknown(f"option of {self.prog}", name, shown, listed=listed)

    def error(self, message: str) -> NoReturn:
        what = message.replace("the following arguments are required", "required")
        raise UsageError(f"{what}; see {self.prog} --help")

    def _get_value(self, action: argparse.Action, arg_string: str) -> object:
        if action.type is Path and not arg_string:
            raise argparse.ArgumentError(action, "an empty path; an unset variable?")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            raise UsageError.unknown(
                f"command of {self.prog}", str(value), action.choices, listed=f"{self.prog} --help lists them"
            )
        name = action.option_strings[-1] if action.option_strings else (action.metavar or action.dest.upper())
        raise UsageError.unknown(f"value of {name}", str(value), map(str, action.choices))

    def _print_message(self, message: str, file: object = None) -> None:
        if message:
            say_lines(message.removesuffix("\n"))

    def format_help(self) -> str:
        """The page of ``--help``."""
        common = common_options().get(self.prog.removeprefix("tracelens "), Common())
        lines = _Lines(prog=self.prog)
        own = [action for action in self._actions if not _is_hidden(action) and action not in self.every._group_actions]
        below = _commands(own)
        options = _chosen([action for action in own if action.option_strings], common)
        lines.section("arguments", [action for action in own if not action.option_strings and action not in below])
        for action in below:
            names = common.options.split() or list(action.choices)
            lines.section("commands", [each for each in action._get_subactions() if each.dest in names])
        lines.section("options", options)
        if common.examples:
            lines.add_text("\n".join(["examples:", *(f"  {example}" for example in common.examples)]))
        lines.add_text(f"{self.prog} --help-all {self._more(below, options, common)}")
        return self._headed(lines)

    def _more(self, below: Sequence[object], options: Sequence[object], common: Common) -> str:
        if below and common.options:
            return f"lists all commands; {self.prog} COMMAND --help explains one."
        if below:
            return f"shows every option; {self.prog} COMMAND --help explains a command."
        count = sum(bool(action.option_strings) and not _is_hidden(action) for action in self._actions)
        return f"shows all {count} options, in groups." if len(options) < count else "shows every option."

    def format_all(self) -> str:
        """The page of ``--help-all``."""
        lines = _Lines(prog=self.prog)
        for title, actions in groups(self):
            below = _commands(actions)
            for action in below:
                lines.section("commands", action._get_subactions())
            lines.section(title, [action for action in actions if action not in below])
        return self._headed(lines)

    def _headed(self, lines: _Lines) -> str:
        about = [textwrap.fill(part, lines._width) for part in (self.description or "").split("\n\n") if part.strip()]
        return "\n\n".join([f"usage: {self._usage(lines)}", *about, lines.format_help()])

    def _usage(self, lines: _Lines) -> str:
        """The command with what it needs; the rest is ``[options]``."""
        either = [group._group_actions for group in self._mutually_exclusive_groups if group.required]
        parts = [self.prog, *(f"({' | '.join(map(lines.spelled, actions))})" for actions in either)]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                parts.append(str(action.metavar or "COMMAND"))
            elif action.required and action.option_strings:
                parts.append(lines.spelled(action))
            elif not action.option_strings:
                parts.append(lines.value(action))
        return " ".join([*parts, "[options]"])


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], **given: Any) -> None:
        super().__init__(option_strings, **{**given, "dest": argparse.SUPPRESS, "nargs": 0})
        self.default = argparse.SUPPRESS

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        if isinstance(parser, Parser):
            parser._print_message(parser.format_all())
        parser.exit()


class _Lines(argparse.RawDescriptionHelpFormatter):
    """One option to a line where it fits: ``-o, --output PATH  meaning; default: x``."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns - 2, _WIDEST)
        super().__init__(prog, max_help_position=_HELP_AT, width=width)

    def section(self, title: str, actions: Sequence[argparse.Action]) -> None:
        """Adds these under a title, nothing where there are none."""
        self.start_section(title)
        self.add_arguments(actions)
        self.end_section()

    def spelled(self, action: argparse.Action) -> str:
        """``-o FILE``."""
        return f"{action.option_strings[0]} {self.value(action)}"

    def value(self, action: argparse.Action) -> str:
        """``FILE [FILE ...]``."""
        return self._format_args(action, name_of_value(action))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        return " ".join(filter(None, [", ".join(action.option_strings), action.nargs != 0 and self.value(action)]))  # type: ignore[list-item]

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        return lambda size: (str(action.metavar or name_of_value(action)),) * size

    def _get_help_string(self, action: argparse.Action) -> str:
        return meaning(action)


def name_of_value(action: argparse.Action) -> str:
    """``FILE``, ``text|json``; ``N`` and ``NAME`` for a number and a text without a name of their own."""
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    if not action.option_strings:
        return action.dest.upper()
    return "NAME" if action.type is None else "N"


def meaning(action: argparse.Action) -> str:
    """What an option does, with its default; ``%`` is still doubled."""
    text = action.help or ""
    has_none = action.default in (None, "", argparse.SUPPRESS) or action.nargs == 0 or not action.default
    return text if has_none or not action.option_strings or "default" in text else f"{text}; default: %(default)s"


def groups(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """What ``--help-all`` shows, by title, in its order: what every command has comes last."""
    for group in sorted(parser._action_groups, key=lambda group: group.title == EVERY):
        actions = [action for action in group._group_actions if not _is_hidden(action)]
        if actions:
            title = group.title or ""
            yield _TITLES.get(title, title), actions


def parser_of(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a command line whose first word is a verb."""
    parser = Parser(prog="tracelens")
    known = verb(arguments[0])
    command = parser.add_subparsers().add_parser(arguments[0], description=known.about)
    known.configure(command)
    command.set_defaults(run=known.run)
    _add_every(command)
    return parser


def _add_every(command: Parser) -> None:
    """To a verb, or to each of its own verbs."""
    below = _commands(command._actions)
    command.every.add_argument(
        "-v", "--verbose", action="count", default=0, help="given twice (-vv), the same as --debug"
    )
    command.every.add_argument("--debug", action="store_true", help="show the traceback of an error")
    if not below:
        about = "stop above this much memory; default: 3/4 of the machine's or container's"
        command.every.add_argument("--max-memory", type=_memory_gb, metavar="GB", help=about)
    for action in below:
        for listed in action._choices_actions:
            own = action.choices[listed.dest]
            about = listed.help or ""
            own.description = own.description or f"{about[:1].upper()}{about[1:]}."
            _add_every(own)


def _commands(actions: Iterable[argparse.Action]) -> list[argparse._SubParsersAction[Any]]:
    return [action for action in actions if isinstance(action, argparse._SubParsersAction)]


def _chosen(options: Sequence[argparse.Action], common: Common) -> list[argparse.Action]:
    """The options that ``common`` names, in its order; all where it names none."""
    if not common.options:
        return list(options)
    by_name = {name: action for action in options for name in action.option_strings}
    return [by_name[f"--{name}"] for name in common.options.split() if f"--{name}" in by_name]


def _memory_gb(text: str) -> float:
    """A limit: libraries that do not get what they ask for while they are loaded end the process, or crawl."""
    from tracelens.files.option_fields import above_zero

    if (found := above_zero(text)) < _LEAST_GB:
        raise argparse.ArgumentTypeError(f"must be at least {_LEAST_GB}, which the libraries alone take, got {text}")
    return found


def _is_hidden(action: argparse.Action) -> bool:
    return action.help == argparse.SUPPRESS


#: Names in a folder that are looked at to find the one that was meant.
_MOST_NAMES = 2000


def with_verb(arguments: Sequence[str]) -> list[str]:
    """The command line with its verb: a file is reported, a folder is what it holds; UsageError for any other word."""
    first, *others = arguments
    if first in VERBS:
        return list(arguments)
    if first.startswith("-") and first != "-":
        listed = f"options follow a command or file: tracelens TRACE {first}"
        raise UsageError.unknown("option of tracelens", first, ("--help", "--help-all", "--version"), listed=listed)
    path = Path(first)
    if first != "-" and not _is_there(first):
        beside, listed = _names_beside(path), "tracelens --help lists the commands"
        if len(path.parts) > 1 or path.suffix:
            raise InputError(str(UsageError.unknown("file", first, beside, listed=listed)))
        raise UsageError.unknown("command or file", first, [*VERBS, *beside], listed=listed)
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
        say(f"{folder} is a lake: these are its tables and ready queries (tracelens query {shown} --list)")
        say()
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
