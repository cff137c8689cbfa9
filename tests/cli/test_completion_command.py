"""The completion scripts, in the shells that are here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.cli.completion import script, words
from tracelens.cli.verbs import VERBS

#: What was typed, and words that must, and must not, be offered.
TYPED = {
    "tracelens ": ({"report", "serve", "completion"}, {"--format"}),
    "tracelens ser": ({"serve"}, {"report"}),
    "tracelens serve --rat": ({"--rate"}, {"--tp"}),
    "tracelens serve --model llama3-8b --device mi3": ({"mi300x"}, {"--device"}),
    "tracelens report trace.json --format ": ({"text", "json"}, {"--open"}),
    "tracelens estimate gemm --k": ({"--k"}, {"--kv-heads"}),
    "tracelens trace.json --cs": ({"--csv"}, {"--format"}),
    "tracelens estimate gemm --help": ({"--help", "--help-all"}, {"--k"}),
    "tracelens completion ": ({"bash", "zsh", "fish"}, {"report"}),
}
ASK = {
    "bash": 'read -ra COMP_WORDS <<< "$LINE"; case "$LINE" in *" ") COMP_WORDS+=("");; esac; '
    'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tracelens; printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": 'complete -C "$LINE"',
}


@pytest.mark.parametrize("shell", sorted(ASK))
def test_a_shell_offers_what_fits(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on the path")
    made = tmp_path / "made"
    made.write_text(script(shell, words()))
    for line, (wanted, unwanted) in TYPED.items():
        asked = [shell, "-c", f". {made}; {ASK[shell]}"]
        done = subprocess.run(
            asked,
            env={"LINE": line, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        offered = {text.split("\t")[0] for text in done.stdout.split("\n")}
        assert wanted <= offered, line
        assert not unwanted & offered, line


def test_zsh_reads_the_script(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh on the path")
    made = tmp_path / "made"
    made.write_text(script("zsh", words()))
    done = subprocess.run(
        ["zsh", "-fc", f". {made}; echo ${{_comps[tracelens]}}"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "_tracelens" in done.stdout


def test_every_verb_is_completed(capsys: pytest.CaptureFixture[str]) -> None:
    known = words()
    assert set(known[""]) == {*VERBS, "--help", "--version"}
    assert set(VERBS) <= known.keys()
    assert main(["completion", "bash"]) == 0
    assert '"serve --lod"' not in capsys.readouterr().out


def test_a_word_that_a_shell_would_obey_is_left_out() -> None:
    assert "$(" not in script("bash", {"": ("report", "$(reboot)", "`id`", "a b")}).partition("_tracelens()")[0]
