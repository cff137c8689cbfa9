"""Print a shell completion script for commands, options and names.

Add `source <(tracelens completion bash)` to ~/.bashrc, or the same with zsh to ~/.zshrc. For fish, write the script to
~/.config/fish/completions/tracelens.fish.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from string import Template

from tracelens.cli.verbs import VERBS
from tracelens.files.say import emit

#: A word as it may stand in a script: what a shell would do something with is never completed.
_PLAIN = re.compile(r"[\w.,:/+-]+")
#: ``WORDS``: what may come after the verbs so far, or after an option of theirs.
_BASH = Template("""\
_tracelens_words() {
  case "$$1" in
$cases
  esac
}
_tracelens() {
  local at=1 path= word found cur="$${COMP_WORDS[COMP_CWORD]}"
  while [ "$$at" -lt "$$COMP_CWORD" ]; do
    word="$${COMP_WORDS[at]}"
    found="$$(_tracelens_words "$${path:+$$path }$$word")"
    case "$$word" in
      -*) ;;
      *) if [ -n "$$found" ]; then path="$${path:+$$path }$$word"; else path="$${path:-report}"; fi ;;
    esac
    at=$$((at + 1))
  done
  found="$$(_tracelens_words "$${path:+$$path }$${COMP_WORDS[COMP_CWORD-1]}")"
  case "$${COMP_WORDS[COMP_CWORD-1]}" in
    -*) [ -n "$$found" ] || found="$$(_tracelens_words "$$path")" ;;
    *) found="$$(_tracelens_words "$$path")" ;;
  esac
  COMPREPLY=($$(compgen -W "$$found" -- "$$cur"))
}
complete -o default -F _tracelens tracelens
""")
_ZSH = "autoload -Uz compinit bashcompinit && compinit -u && bashcompinit\n"
_FISH = Template("""\
function __tracelens_words
  switch "$$argv[1]"
$cases
  end
end
function __tracelens
  set -l words (commandline -opc)
  set -l path ''
  for word in $$words[2..-1]
    string match -q -- '-*' $$word; and continue
    set -l key (string trim -- "$$path $$word")
    if test -n "$$(__tracelens_words $$key)"
      set path $$key
    else if test -z "$$path"
      set path report
    end
  end
  set -l found (__tracelens_words (string trim -- "$$path $$words[-1]"))
  string match -q -- '-*' $$words[-1]; and test -n "$$found"; or set found (__tracelens_words "$$path")
  string split -n ' ' -- "$$found"
end
complete -c tracelens -a '(__tracelens)'
""")


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
    shape, template = ('    case "{}"; echo {}', _FISH) if shell == "fish" else ('    "{}") echo {} ;;', _BASH)
    rows = {key: " ".join(filter(_PLAIN.fullmatch, values)) for key, values in known.items()}
    cases = "\n".join(shape.format(key, text) for key, text in rows.items() if text)
    return (_ZSH if shell == "zsh" else "") + template.substitute(cases=cases)
