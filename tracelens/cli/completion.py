"""Print a shell completion script for commands, options and names.

Add `source <(tracelens completion bash)` to ~/.bashrc, or the same with zsh to ~/.zshrc. For fish, write the script to
~/.config/fish/completions/tracelens.fish.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tracelens.cli.verbs import VERBS
from tracelens.files.say import emit

#: A word as it may stand in a script: what a shell would do something with is never completed.
_PLAIN = re.compile(r"[\w.,:/+-]+")
_ZSH = "autoload -Uz compinit bashcompinit && compinit -u && bashcompinit\n"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell to print the script for")


def run(args: argparse.Namespace) -> int:
    emit(script(args.shell, words()))
    return 0


def words() -> dict[str, tuple[str, ...]]:
    """What may come after each chain of verbs, and after each of their options with known values."""
    from tracelens.cli.parsing import parser_of

    names = _names()
    found = {key: values for name in VERBS for key, values in _below(parser_of([name]), "", names)}
    return found | {"": (*VERBS, "--help", "--version")}


def _below(
    parser: argparse.ArgumentParser, path: str, names: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    here: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            here += action.choices
            for name, below in action.choices.items():
                yield from _below(below, f"{path} {name}".strip(), names)
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            here += action.option_strings
            values = tuple(map(str, action.choices or names.get(action.dest, ())))
            yield from ((f"{path} {option}".strip(), values) for option in action.option_strings if values)
        else:
            here += map(str, action.choices or ())
    yield path, tuple(here)


def _names() -> dict[str, tuple[str, ...]]:
    """By option: what comes with tracelens under names."""
    from tracelens.hardware.spec import HardwareSpec
    from tracelens.predict.network.cluster import Cluster
    from tracelens.predict.workload.model_config import ModelConfig

    return {"device": HardwareSpec.names(), "cluster": Cluster.names(), "model": ModelConfig.names()}


def script(shell: str, known: Mapping[str, tuple[str, ...]]) -> str:
    """The completion of a shell, with all that it needs in it: no process is started for it."""
    shape, file = ('    case "{}"; echo {}', "fish") if shell == "fish" else ('    "{}") echo {} ;;', "bash")
    template = Path(__file__).with_name(f"completion.{file}").read_text(encoding="utf-8")
    rows = {key: " ".join(filter(_PLAIN.fullmatch, values)) for key, values in known.items()}
    cases = "\n".join(shape.format(key, text) for key, text in rows.items() if text)
    return (_ZSH if shell == "zsh" else "") + template.replace("@cases@", cases)
