"""The current folder may hold foreign traces, and beside them files named like modules: none of them is run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import part
from tracelens.files.executors import IsolatedProcesses

MODULES = (
    "struct", "random", "numpy", "pandas", "json", "pickle", "typing", "threading", "multiprocessing", "msgspec",
    "tempfile", "selectors", "argparse", "ast", "zlib_ng", "orjson", "dataclasses", "__future__", "tracelens_extensions",
)  # fmt: skip
HOSTILE = "import os\nos.write(2, b'HOSTILE CODE RUNS')\n"
# What pip writes as the command ``tracelens``: its folder, not the current one, is first on the path.
SCRIPT = "import sys\nfrom tracelens.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def kernel(rank: int) -> dict[str, object]:
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": rank,
        "tid": 7,
        "ts": 10.0,
        "dur": 5.0,
        "args": {"stream": 7},
    }


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    folder = tmp_path / "mailed"
    folder.mkdir()
    for module in MODULES:
        (folder / f"{module}.py").write_text(HOSTILE)
    for rank in range(2):
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        text = json.dumps({"distributedInfo": info, "traceEvents": [kernel(rank)]})
        (folder / f"rank{rank}.json").write_text(text)
    return folder


def run(hostile: Path, *arguments: str, by_script: bool) -> subprocess.CompletedProcess[str]:
    script = hostile.parent / "bin" / "tracelens"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SCRIPT)
    start = [str(script)] if by_script else ["-m", "tracelens"]
    return subprocess.run([sys.executable, *start, *arguments], cwd=hostile, capture_output=True, text=True)


SWEEP = (
    "search",
    "--model",
    "gpt-1024x12",
    "--cluster",
    "dgx-a100",
    "--gpus",
    "8",
    "--global-batch",
    "8",
    "--sweep",
    "nvs=4/8",
)


@pytest.mark.parametrize(
    ("arguments", "by_script"),
    [
        pytest.param(("collectives", ".", "-o", "../ranks"), True, id="collectives"),
        pytest.param(("collectives", ".", "-o", "../ranks"), False, marks=pytest.mark.sweep, id="as a module"),
        pytest.param(("fuse", ".", "-o", "../fused.json.gz"), True, marks=pytest.mark.sweep, id="fuse"),
        pytest.param((*SWEEP, "--jobs", "2", "-o", "../search.csv"), True, marks=pytest.mark.sweep, id="search"),
        pytest.param(
            ("report", "rank0.json", "-o", "../report"), False, marks=pytest.mark.sweep, id="report as a module"
        ),
    ],
)
def test_no_command_imports_from_the_current_folder(hostile: Path, arguments: tuple[str, ...], by_script: bool) -> None:
    done = run(hostile, *arguments, by_script=by_script)
    assert "HOSTILE" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_the_hostile_files_do_run_where_python_itself_looks_in_the_folder(hostile: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import struct"], cwd=hostile, capture_output=True, text=True)
    assert "HOSTILE" in done.stderr


@pytest.mark.sweep
@pytest.mark.parametrize("name", part(["struct", "mine"], 2))
def test_a_name_of_an_extension_is_no_file_of_the_current_folder(hostile: Path, name: str) -> None:
    for file in (f"{name}.py", name):
        (hostile / file).write_text(HOSTILE)
    done = run(hostile, "report", "rank0.json", "-o", "../report", "--extension", name, by_script=True)
    assert "HOSTILE" not in done.stderr
    assert done.returncode == 2
    done = run(hostile, "report", "rank0.json", "-o", "../report", "--extension", f"./{name}", by_script=True)
    assert "HOSTILE" in done.stderr


def test_workers_leave_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with IsolatedProcesses(1) as processes:
        assert processes.submit(os.getenv, "PYTHONSAFEPATH").result() == "1"
    assert "PYTHONSAFEPATH" not in os.environ
    monkeypatch.setenv("PYTHONSAFEPATH", "yes")
    with IsolatedProcesses(1) as processes:
        assert processes.submit(abs, -1).result() == 1
    assert os.environ["PYTHONSAFEPATH"] == "yes"


def test_workers_that_would_ignore_the_safe_path_are_not_started() -> None:
    code = "from tracelens.files.executors import IsolatedProcesses; IsolatedProcesses(1)"
    done = subprocess.run([sys.executable, "-E", "-c", code], capture_output=True, text=True)
    assert "start python with -I or -EP" in done.stderr
    done = subprocess.run([sys.executable, "-E", "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
