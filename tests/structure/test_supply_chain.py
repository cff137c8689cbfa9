"""What CI and a release install and run is what somebody looked at; SECURITY.md promises nothing that no test holds."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

#: Beginnings of the promises at the head of SECURITY.md, each with the tests that hold it.
PROMISES = {
    "nothing in a trace becomes code": ("tests/test_hostile.py::test_no_cell_of_the_workbook_is_a_formula", "tests/test_hostile.py::test_the_page_has_no_markup_from_a_trace", "tests/test_hostile.py::test_the_terminal_gets_no_escape_sequence_from_a_trace", "tests/test_names.py::test_no_line_of_an_answer_begins_with_what_a_name_holds", "tests/test_names.py::test_a_comment_on_a_pull_request_pings_nobody"),
    "reading takes time in proportion": ("tests/test_linear.py::*", "tests/cli/test_pipes_and_limits.py::test_memory_stays_within_the_limit_and_what_fits_is_reported", "tests/test_limits.py::test_too_little_memory_is_a_sentence_wherever_it_ends"),
    "a configuration (experiment": ("tests/cli/test_files_of_strangers.py::test_no_setting_of_an_experiment_file_opens_or_makes_a_file_elsewhere", "tests/cli/test_files_of_strangers.py::test_only_the_command_line_says_where_to_write"),
    "what a URL sends": ("tests/test_limits.py::test_a_store_that_never_ends_is_left",),
    "a pipe or a device": ("tests/cli/test_pipes_and_limits.py::*",),
    "an output file is complete": ("tests/test_attacks.py::test_a_link_in_place_of_the_output_is_replaced_not_followed", "tests/test_faults.py::test_a_verb_killed_before_any_changing_call_leaves_the_old_output_or_the_new_one", "tests/test_faults.py::test_a_disk_that_is_full_at_any_changing_call_is_a_sentence_and_leaves_nothing_half", "tests/files/test_atomic_write.py::*"),
    "`--extension FILE.py` runs": ("tests/test_current_folder.py::*",),
    "in TensorBoard a page": ("tests/integrations/test_shells.py::test_the_tab_offers_pages_of_ours_and_nothing_else", "tests/integrations/test_real_packages.py::test_tensorboard_serves_the_page_and_knows_the_tab", "tests/integrations/test_shells.py::test_a_trace_goes_to_perfetto_once_under_a_name_that_nobody_guesses"),
    "the file about a bug": ("tests/test_limits.py::test_the_file_about_a_bug_holds_no_secret",),
    "what CI and a release install": ("tests/structure/test_supply_chain.py::test_every_action_is_a_commit", "tests/structure/test_supply_chain.py::test_nothing_is_installed_without_a_hash_where_a_release_is_made"),
}  # fmt: skip


def promises(repository: Path) -> list[str]:
    head = (repository / "SECURITY.md").read_text().split("## Threat model")[0]
    return re.findall(r"^- (.*(?:\n  .*)*)", head, re.MULTILINE)


def test_every_promise_has_a_test_that_exists(repository: Path) -> None:
    said = promises(repository)
    for sentence in said:
        assert sum(sentence.startswith(start) for start in PROMISES) == 1, sentence
    assert len(said) == len(PROMISES)
    for name in (name for names in PROMISES.values() for name in names):
        file, _, test = name.partition("::")
        defined = re.findall(r"^def (test_\w+)", (repository / file).read_text(), re.MULTILINE)
        assert test in defined or (test == "*" and defined), name


def test_every_test_that_the_threat_model_names_is_there(repository: Path) -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", (repository / "SECURITY.md").read_text())
    assert named
    assert not [name for name in named if not (repository / name).exists()]


def test_every_action_is_a_commit(repository: Path) -> None:
    files = [*(repository / ".github" / "workflows").glob("*.yml"), repository / "action.yml"]
    used = [line for file in files for line in re.findall(r"uses: (.*)", file.read_text())]
    assert len(used) > 10
    assert not [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)]


def test_nothing_is_installed_without_a_hash_where_a_release_is_made(repository: Path) -> None:
    """Of the first environment of .ci/run, which judges a change, and of the job that builds a release."""
    judged = (repository / ".ci" / "run").read_text()
    assert ".[dev,docs]" not in judged
    for file in ("lock", "integrations"):
        assert re.search(rf"--require-hashes -r \.ci/{file}\.txt \|\|\n\s+\{{.*exit 1; \}}", judged)
    builds = (repository / ".github" / "workflows" / "wheels.yml").read_text().partition("  installed:")[0]
    assert all("--require-hashes" in line for line in builds.splitlines() if "pip install" in line)
    for file in ("lock.txt", "integrations.txt", "release.txt"):
        text = (repository / ".ci" / file).read_text().replace(" \\\n   ", "")
        assert all("--hash=sha256:" in line for line in text.splitlines() if line and not line.startswith("#"))
    assert {"hatchling", "ziglang"} <= set(re.findall(r"^([a-z-]+)==", text, re.MULTILINE))
    assert "attest-build-provenance" in builds


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_says_what_it_is_made_of(repository: Path) -> None:
    document = _module(repository / ".ci" / "wheels.py").bill_of_materials()
    names = {each["name"]: each["version"] for each in document["components"]}
    assert {"numpy", "pandas", "orjson", "msgspec"} <= set(names)
    assert all(re.fullmatch(r"[\d.]+\w*", version) for version in names.values())
    assert document["metadata"]["component"]["name"] == "tracelens-perf"


@pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("readelf") is None, reason="needs a C compiler and readelf"
)
def test_compiled_files_are_hardened_where_the_compiler_can(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    build = _module(repository / "hatch_build.py")
    source = repository / "tracelens" / "trace" / "reading" / "chrome" / "scan_events.c"
    assert build.compiled(source, tmp_path / "library.shared")
    shown = subprocess.run(["readelf", "-dlW", str(tmp_path / "library.shared")], capture_output=True, text=True).stdout
    assert "BIND_NOW" in shown
    assert "GNU_RELRO" in shown
    assert re.search(r"GNU_STACK.* RW +0x", shown)


def test_a_compiler_without_these_flags_makes_the_library_all_the_same(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hatchling")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\ncase "$*" in *-fstack*|*-Wl*) echo unknown >&2; exit 1;; esac\nexec cc "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("CC", str(old))
    build = _module(repository / "hatch_build.py")
    assert build.compiled(repository / "tracelens" / "trace" / "nest.c", tmp_path / "nest.shared")
