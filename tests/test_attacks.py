"""Every command that writes, attacked: its output is the old one or the new one, whole; nothing else is touched, left or run."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import part
from tests.fuzz.commands import command_on, ended, sound_files
from tests.fuzz.documents import FORMATS, KINETO, TIMES, as_csv, as_json, table
from tracelens.cli import main
from tracelens.cli.verbs import VERBS

CODES = (0, 1, 2, 3, 4, 5)
PROJECT = "--model gpt2 --cluster dgx-h100 --gpus 8 --global-batch 8"
SERVE = "serve --model gpt2 --device h100-sxm --rate 2 --requests 2 --input-tokens 8 --output-tokens 2"
#: OUT is what it writes.
WRITERS = (
    "report t.json -o OUT.json", "report t.json --csv -o OUT", "report t.json -o OUT.html", "report t.json -o OUT.xlsx",
    "compare t.json t.json -o OUT", "compare t.json t.json -o OUT.md", "collectives ranks -o OUT --executor serial",
    "anonymize t.json -o OUT.json", "slim t.json -o OUT.json.gz --category kernel", "whatif t.json --scale aten::mm=0.5 -o OUT.json",
    *(f"convert t.json -o OUT.{ending}" for ending in ("json", "pftrace", "pftrace.gz", "et", "parquet", "arrow")),
    "perfetto t.json -o OUT.json", "replay t.json -o OUT", "fuse ranks -o OUT.json --executor serial", "ingest ranks --to OUT --executor serial",
    "baseline save one t.json --baselines OUT", "query t.json --ready steps -o OUT.csv", "extensions new aten::mm --from t.json -o OUT.py", "demo -o OUT.json",
    "calibrate gemm.csv --device h100-sxm -o OUT.toml", "estimate gemm --batch table.csv -o OUT.csv", f"project {PROJECT} --tp 2 -o OUT.html", f"project {PROJECT} --trace OUT",
    f"search {PROJECT} --executor serial --top 2 -o OUT.csv", f"search {PROJECT} --executor serial --top 2 --plot OUT", f"{SERVE} -o OUT", f"{SERVE} --trace OUT.json.gz", "serve --model gpt2 --device h100-sxm --export-profile OUT.json",
    "route --tokens 64 --experts 8 --ranks 2 --topk 2 --seed 1 -o OUT.html", "route --tokens 64 --experts 8 --ranks 2 --topk 2 --seed 1 --save-routing OUT",
    "skill -o OUT",
)  # fmt: skip
#: Settings that are all left as they are; ranks of which one is left out.
EMPTY_IS_FINE, LEAVE_OUT = ("route settings",), ("kineto in fuse FILE", "kineto in collectives FILE")
ONLY_SHOW = ("check", "completion", "devices", "mcp", "models", "ops", "record", "score")
some = pytest.mark.parametrize("command", part(WRITERS, 22))


def test_every_verb_is_attacked_or_writes_nothing() -> None:
    assert {command.split()[0] for command in WRITERS} | {*ONLY_SHOW} == {*VERBS}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with inputs; beside it a folder for temporary files."""
    folder = tmp_path / "work"
    (folder / "ranks").mkdir(parents=True)
    (folder / "t.json").write_bytes(as_json(KINETO))
    for rank in range(2):
        info = {**KINETO["distributedInfo"], "rank": rank}
        (folder / "ranks" / f"rank{rank}.json").write_bytes(as_json({**KINETO, "distributedInfo": info}))
    (folder / "gemm.csv").write_bytes(as_csv(TIMES))
    (folder / "table.csv").write_bytes(as_csv(table(3, m=128, n=128, k=128, gemm_dtype="bf16", device="h200")))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(folder)
    return folder


def tree(folder: Path) -> dict[str, bytes | str]:
    """Every file, link and empty folder below a folder, by its path."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    }  # fmt: skip


def lawful(command: list[str], work: Path, *, expected: tuple[int, ...] = CODES) -> int:
    """Runs a command: a documented code, a sentence where it fails, and nothing left behind."""
    code, said = ended(command, seconds=10)
    assert code in expected, (code, said)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == (code in (1, 2, 3)), said
    left = [name for name in tree(work.parent) if name.endswith((".partial", ".old")) or name.startswith("temporary/")]
    assert not left
    return code


def given(command: str, out: Path | str) -> list[str]:
    return [word.replace("OUT", str(out)) for word in command.split()]


def output(command: str, folder: Path) -> Path:
    return Path(next(word for word in given(command, folder / "out") if word.startswith(str(folder))))


@some
def test_a_link_in_place_of_the_output_is_replaced_not_followed(command: str, work: Path) -> None:
    victims = work.parent / "victims"
    victims.mkdir()
    (victims / "file").write_text("precious")
    path = output(command, work)
    path.symlink_to(victims / ("file" if path.suffix else ""))
    lawful(given(command, work / "out"), work)
    assert (victims / "file").read_text() == "precious"


@some
def test_where_nothing_can_be_written_is_a_sentence(command: str, work: Path) -> None:
    before = tree(work)
    assert lawful(given(command, "/proc/none/out"), work) in (1, 2)
    assert lawful(given(command, "t.json/out"), work) in (1, 2)
    assert tree(work) == before


@contextlib.contextmanager
def full_after(most_bytes: int) -> Iterator[None]:
    """No file grows beyond this, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@some
def test_a_full_disk_leaves_the_old_output(command: str, work: Path) -> None:
    path = output(command, work)
    lawful(given(command, work / "out"), work, expected=(0,))
    before = tree(work)
    largest = max(len(content) for name, content in before.items() if name.startswith(path.name))
    for most_bytes in (0, largest // 2, largest - 1):
        with full_after(most_bytes):
            code = lawful(given(command, work / "out"), work)
        if code:
            assert tree(work) == before
        else:  # nothing to add, or something smaller by chance
            assert {*tree(work)} >= {*before}
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with full_after(0):
        assert lawful(given(command, work / "out"), work) == 1
    assert not path.exists() or not any(tree(path).values())


@pytest.mark.parametrize("command", part((*WRITERS, "devices list", "ops grouped", "check t.json"), 11))
def test_a_stdout_that_is_closed_or_that_nobody_reads_is_no_error(command: str, work: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as broken:  # noqa: PTH123 - a descriptor
        for out, stream in (("one", None), ("two", broken)):
            with contextlib.redirect_stdout(stream):
                assert main(given(command, work / out)) == 0


@some
def test_a_current_folder_that_is_gone_changes_nothing(command: str, work: Path) -> None:
    words = [str(work / word) if (work / word).exists() else word for word in given(command, work / "out")]
    (work / "gone").mkdir()
    os.chdir(work / "gone")
    (work / "gone").rmdir()
    try:
        lawful(words, work, expected=(0,))
    finally:
        os.chdir(work)


#: Beside a trace that was mailed: what Python, its tools and ours could take for their own.
FOREIGN = (
    "tracelens.py", "numpy.py", "pandas.py", "orjson.py", "duckdb.py", "pyarrow.py", "yaml.py", "sitecustomize.py", "usercustomize.py", "conftest.py", "resource.py",
    "inference.py", "__init__.py", "__main__.py", "tracelens_extensions.py", "h100-sxm", "h100-sxm.toml", "mi300x", "mi300x.toml", "gpt2", "gpt2.toml", "config.json", "dgx-h100", "dgx-h100.toml",
    "aten::mm", "grouped", "slowest", "slowest.sql", ".env", ".netrc", "pyproject.toml", "tracelens.toml", ".tracelensrc", "setup.cfg", "matplotlibrc", "pandas.pth", ".duckdbrc",
)  # fmt: skip
HOSTILE = "import os\nos.write(2, b'HOSTILE CODE RUNS')\n"
SCRIPT = "import sys\nfrom tracelens.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def of_a_shell(words: list[str], work: Path) -> subprocess.Popen[str]:
    """The installed command, with no HOME, an unknown language, and ASCII for its texts."""
    script = work.parent / "tracelens"
    script.write_text(SCRIPT)
    bare = {"LC_ALL": "xx_YY.odd", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TMPDIR": tempfile.gettempdir()}
    command = [sys.executable, str(script), *words]
    return subprocess.Popen(command, cwd=work, env=bare, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("command", part(WRITERS, 32))
def test_foreign_files_in_the_current_folder_and_a_bare_environment_change_nothing(command: str, work: Path) -> None:
    lawful(given(command, work / "sound"), work, expected=(0,))
    for name in FOREIGN:
        (work / name).write_text(HOSTILE)
    (work / "tracelens_extensions").mkdir()
    with of_a_shell(given(command, work / "out"), work) as process:
        said = "".join(process.communicate())
    assert "HOSTILE" not in said
    assert process.returncode == 0, said
    names = {name.replace("sound", "out", 1) for name in tree(work) if name.startswith("sound")}
    assert {name for name in tree(work) if name.startswith("out")} == names
    assert not [name for name in tree(work.parent) if name.startswith("temporary/")]


@pytest.mark.sweep
@pytest.mark.parametrize("command", WRITERS)
def test_two_writers_at_once_both_succeed_and_leave_one_output(command: str, work: Path) -> None:
    lawful(given(command, work / "alone"), work, expected=(0,))
    with of_a_shell(given(command, work / "out"), work) as one, of_a_shell(given(command, work / "out"), work) as other:
        said = [*one.communicate(), *other.communicate()]
    codes = sorted((one.returncode, other.returncode))
    # A stub of an extension is written by hand from there on: it never takes the place of a file
    assert codes == [0, 0] or (codes == [0, 2] and command.startswith("extensions new")), said
    names = {name.replace("alone", "out", 1) for name in tree(work) if name.startswith("alone")}
    assert {name for name in tree(work) if name.startswith("out")} == names
    assert not [name for name in tree(work.parent) if name.endswith((".partial", ".old"))]


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sound_files(tmp_path_factory.mktemp("around"))


@pytest.mark.parametrize("name", part([name for name in FORMATS if name != "lake's table"], 9))
def test_what_is_no_file_in_place_of_an_input_is_a_sentence(name: str, around: dict[str, Path], work: Path) -> None:
    words = command_on(name, b"", around, work)
    path = work / FORMATS[name][2]
    refused = (0, 1, 2) if name in LEAVE_OUT else (1, 2)
    lawful(words, work, expected=(0, *CODES) if name in EMPTY_IS_FINE else (*refused, 3))
    path.unlink()
    lawful(words, work, expected=refused)
    path.mkdir()
    lawful(words, work, expected=refused)
    path.rmdir()
    for device in ("/dev/zero", "/dev/null"):
        path.symlink_to(device)
        lawful(words, work, expected=refused)
        path.unlink()
    if words[:2] != ["report", str(path)]:  # that one reads from pipes, and waits for what writes into them
        os.mkfifo(path)
        lawful(words, work, expected=refused)
