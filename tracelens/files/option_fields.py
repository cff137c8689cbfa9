"""Options declared once: a dataclass's fields as keywords, command-line arguments, settings of a file, rows of a page.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True, kw_only=True)
... class Load:
...     rate: float | None = option("arrivals per second", kind=float)
>>> parser = argparse.ArgumentParser(); add_options(parser, Load)
>>> options_of(Load, parser.parse_args(["--rate", "2"]))
Load(rate=2.0)
>>> build_options(Load, {"rat": 2})
Traceback (most recent call last):
tracelens.errors.UsageError: no option named 'rat'; did you mean rate?
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tracelens.errors import UsageError
from tracelens.files.say import say
from tracelens.types.records import Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
F = TypeVar("F", bound=Callable[..., Any])
_KEY = "option"

#: The cost model of operations wherever none is named: projections, searches and servers; the roofline comes last.
BACKENDS = "tile,collectives"
#: Of predictions by others, whose errors nobody measured.
NO_INTERVAL = "no interval is known by other cost models than the default"


class Option(Record, frozen=True, kw_only=True):
    """What a field means to a user, and how the command line spells it.

    ``kind`` reads one word of the command line, None keeps it as text; ``read`` makes the field's value of a text, for
    callers of the Python API too. ``flags`` replace ``--the-field's-name`` (a word without dashes is positional);
    ``old_flags``: former spellings that say a hint. ``also``: other keywords of the Python API. ``group``: title under
    which ``--help`` lists it; docs/options.toml has fuller texts for docs/cli.md. ``names``: what a file of settings
    may name by it: ``"file"`` one ``beside`` it, ``"known"`` also what tracelens knows, ``"nothing"`` where the command
    writes.
    """

    help: str
    kind: Callable[[str], Any] | None = None
    read: Callable[[str], Any] | None = None
    metavar: str | None = None
    choices: tuple[Any, ...] | None = None
    flags: tuple[str, ...] = ()
    old_flags: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    group: str | None = None
    repeat: bool = False
    action: type[argparse.Action] | None = None
    names: Literal["", "file", "known", "nothing"] = ""


def option(help: str, default: Any = None, **spelling: Any) -> Any:  # noqa: A002 - argparse's word
    """A dataclass field with an ``Option``. A default of False or True: a switch; ``MISSING``: a required option."""
    return field(default=default, metadata={_KEY: Option(help=help, **spelling)})


def output_option(help: str, default: Any = None, *, metavar: str = "FILE", **spelling: Any) -> Any:  # noqa: A002
    """``-o``, ``--output``: the path to write."""
    return option(help, default, kind=Path, metavar=metavar, flags=("-o", "--output"), **spelling)


def _declared(options: type[DataclassInstance]) -> list[tuple[Field[Any], Option]]:
    """The options, a class's own before those that it inherits."""
    place = {
        name: -i for i, one in enumerate(reversed(options.__mro__)) for name in vars(one).get("__annotations__", ())
    }
    found = [(each, each.metadata[_KEY]) for each in fields(options) if _KEY in each.metadata]
    return sorted(found, key=lambda item: place[item[0].name])


def _destination(each: Field[Any]) -> str:
    return f"no_{each.name}" if each.default is True else each.name


def add_options(parser: argparse.ArgumentParser, options: type[DataclassInstance]) -> None:
    """Adds an argument for every field of ``options`` that is an ``option``, in their order."""
    groups: dict[str | None, Any] = {None: parser}
    for each, declared in _declared(options):
        if declared.group not in groups:
            groups[declared.group] = parser.add_argument_group(declared.group)
        name = _destination(each)
        flags = declared.flags or (f"--{name.replace('_', '-')}",)
        text, default = declared.help, each.default
        if default not in (None, False, True, MISSING, "", ()) and "default: " not in text:
            text += "; default: %(default)s"
        given: dict[str, Any] = {"help": text}
        metavar = declared.metavar
        if not flags[0].startswith("-"):
            metavar = metavar or flags[0].upper()
        else:
            given["dest"] = name
            if default is MISSING:
                given["required"] = True
        if isinstance(default, bool):
            given["action"] = "store_true"
        else:
            given |= {"type": declared.kind, "metavar": metavar, "choices": declared.choices}
            given["default"] = None if default is MISSING else list(default) if declared.repeat else default
            if declared.repeat:
                given["action"] = "append"
        if declared.action is not None:
            given["action"] = declared.action
        action = groups[declared.group].add_argument(*flags, **given)
        action.names = declared.names
        for old in declared.old_flags:
            groups[declared.group].add_argument(
                old, action=Renamed, new=action, dest=name, default=given["default"], type=declared.kind,
                choices=declared.choices, help=argparse.SUPPRESS,
            )  # fmt: skip


def arguments_of(options: type[DataclassInstance]) -> Callable[[argparse.ArgumentParser], None]:
    return lambda parser: add_options(parser, options)


class Renamed(argparse.Action):
    """A former spelling of an option: it does the same and says how the option is spelled now."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, new: argparse.Action, **given: Any) -> None:
        super().__init__(option_strings, dest, **given)
        self.new = new

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        self.now(option)(parser, namespace, values, option)

    def now(self, option: str | None) -> argparse.Action:
        """The option as it is spelled now, with a hint."""
        hint(f"{option} is called {self.new.option_strings[-1]} now")
        return self.new


def hint(text: str) -> None:
    """Tells the user of the command, on stderr."""
    say(f"hint: {text}", to_stderr=True)


def options_of(options: type[T], args: argparse.Namespace) -> T:
    given = {}
    for each, declared in _declared(options):
        value = getattr(args, _destination(each))
        given[each.name] = not value if each.default is True else tuple(value) if declared.repeat else value
    return build_options(options, given)


def build_options(options: type[T], given: Mapping[str, Any], base: T | None = None) -> T:
    """``options`` with these fields, the others as in ``base`` or by default; texts are read where a field says how.

    UsageError for a name that is no field, with the nearest, and for a required one that is missing.
    """
    named = {each.name: each for each in fields(options)}
    also = {name: each.name for each, declared in _declared(options) for name in declared.also}
    values: dict[str, Any] = {}
    for name, value in given.items():
        each = named.get(also.get(name, name))
        if each is None:
            raise UsageError.unknown("option", name, named)
        read = each.metadata[_KEY].read if _KEY in each.metadata else None
        values[each.name] = read(value) if read is not None and isinstance(value, str) else value
    if base is None:
        missing = [name for name, each in named.items() if each.default is MISSING and name not in values]
        if missing:
            raise UsageError(f"give {', '.join(missing)} too")
        return options(**values)
    if not isinstance(base, options):
        raise UsageError(f"give options by their names, as name=value, or as one {options.__name__}; got {base!r}")
    return replace(base, **values)


def takes(options: type[DataclassInstance]) -> Callable[[F], F]:
    """For a function with ``**given``: its signature and docstring list the fields of ``options`` as keywords."""

    def mark(function: F) -> F:
        own = list(inspect.signature(function).parameters.values())[:-1]
        keywords = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
            for each in fields(options)
            if each.name not in {one.name for one in own}
        ]
        rows = [f"{each.name}: {declared.help.replace('%%', '%')}" for each, declared in _declared(options)]
        vars(function)["__signature__"] = inspect.Signature([*own, *keywords])
        function.__doc__ = "\n\n    ".join([(function.__doc__ or "").rstrip(), "\n    ".join(rows)])
        return function

    return mark


def filled_in(
    args: argparse.Namespace,
    configure: Callable[[argparse.ArgumentParser], None],
    settings: Mapping[str, object],
    path: Path,
) -> argparse.Namespace:
    """``args`` with what a file says for the options that the command line leaves out, whatever their defaults.

    UsageError, naming the file, for a name that is no option, a value that does not fit and a place to write to;
    InputError for a file to read that does not lie beside it.
    """
    source = path.name
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    configure(parser)
    known = {
        text[2:].replace("-", "_"): (text, action)
        for action in parser._actions
        for text in action.option_strings
        if text.startswith("--")
    }
    words = []
    for name, value in settings.items():
        if name not in known:
            raise UsageError.unknown(f"setting in {source}", name, known)
        text, action = known[name]
        if action.nargs == 0:
            if not isinstance(value, bool):
                raise UsageError(f"{source}: {name} must be true or false, not {value!r}")
            words += [text] if value else []
        elif value is not None:
            words.append(f"{text}={_as_told(path, action, str(value))}")
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a hint was given when the command line was read
            found, _ = parser.parse_known_args([*words, *args.command_line])
    except argparse.ArgumentError as error:
        raise UsageError(f"{source}: {error}") from None
    return argparse.Namespace(**{**vars(args), **vars(found)})


def _as_told(path: Path, action: argparse.Action, value: str) -> str | Path:
    """What a file says for an option: it decides nothing outside its folder."""
    from tracelens.files.documents import beside, told

    names = getattr(action, "names", "") or ("nothing" if action.type is Path else "")
    if names == "nothing":
        name = max(action.option_strings, key=len)
        raise UsageError(f"{path.name}: only the command line says where to write: leave {name[2:]} out, give {name}")
    return beside(path, value) if names == "file" else told(path, value) if names == "known" else value


def given_options(args: argparse.Namespace, configure: Callable[[argparse.ArgumentParser], None]) -> set[str]:
    """The options that the command line gives, also those that it gives their default."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    configure(parser)
    changed = {each.dest for each in parser._actions if getattr(args, each.dest, each.default) != each.default}
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    with contextlib.redirect_stderr(io.StringIO()):  # a hint was given when the command line was read
        found, _ = parser.parse_known_args(getattr(args, "command_line", []))
    return changed | set(vars(found))


def refuse_unread(
    args: argparse.Namespace,
    configure: Callable[[argparse.ArgumentParser], None],
    mode: str,
    is_unread: Callable[[str], bool],
) -> None:
    """UsageError for options that were given and that ``mode`` does not read."""
    parser = argparse.ArgumentParser(add_help=False)
    configure(parser)
    unread = [
        next(text for text in action.option_strings if text.startswith("--"))
        for action in parser._actions
        if action.option_strings
        and action.help != argparse.SUPPRESS
        and is_unread(action.dest)
        and getattr(args, action.dest) != action.default
    ]
    if unread:
        raise UsageError(f"{mode} does not read {', '.join(unread)}")


def positive(text: str) -> int:
    """A count from the command line."""
    return integer(text, least=1)


def whole(text: str) -> int:
    """A count from the command line that may be none."""
    return integer(text, least=0)


def integer(text: str, *, least: int | None = None) -> int:
    """A whole number from the command line, ``8k`` and ``1e6`` too; what it is for says which ones fit."""
    from tracelens.types.units import count

    with _refused():
        return count(text, least=least)


def byte_count(text: str) -> int:
    """A size from the command line, ``64MB`` or in bytes."""
    from tracelens.types.units import size_bytes

    with _refused():
        return size_bytes(text)


def duration_in(unit: str) -> Callable[[str], float]:
    """Reads a duration from the command line, in ``unit`` where it names none."""

    def read(text: str) -> float:
        from tracelens.types.units import SECONDS, duration_s

        with _refused():
            return duration_s(text, unit=unit) / float(SECONDS[unit])

    return read


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """What cannot be read is refused with the name of the option."""
    try:
        yield
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def above_zero(text: str) -> float:
    """An amount from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def comma_list(text: str) -> tuple[str, ...]:
    """``"a,b"`` as its parts."""
    return tuple(text.split(","))


def _shared(help: str, **spelling: Any) -> Callable[..., Any]:  # noqa: A002
    def again(default: Any = None, help: str = help, **more: Any) -> Any:  # noqa: A002
        return option(help, default, **{**spelling, **more})

    return again


#: Options that several commands have, spelled here; each may be given another default or group.
gpu_clock_mhz = _shared("GPU clock; default: the data sheet's", kind=float, metavar="MHZ")
skew_of_experts = _shared("distribution of tokens over experts, as in route", metavar="zipf:1.1")
cost_model = _shared("cost model of ops, e.g. tile, or gemm=tile,sdpa=roofline", metavar="NAME|FAMILY=NAME,...")
framework = _shared(
    "constants fitted to megatron, llm-foundry, torchtitan ...; ideal: none; default: pooled over all", metavar="NAME"
)
price_per_gpu_hour = _shared("price of a GPU hour", kind=above_zero, metavar="USD")
pue = _shared("power of the data center over that of its servers, e.g. 1.3", kind=above_zero, metavar="RATIO")
price_per_kwh = _shared("price of electricity, for USD per million tokens", kind=above_zero, metavar="USD")
co2_per_kwh = _shared("carbon dioxide of electricity, for grams per million tokens", kind=above_zero, metavar="G")
output_format = _shared("output format", choices=("text", "json"))
