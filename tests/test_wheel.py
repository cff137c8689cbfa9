"""The wheel, installed outside the clone: what a user of ``pip install`` has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import openpyxl
import pytest

pytestmark = pytest.mark.wheel


def wheel_of(source: Path, folder: Path) -> Path:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    if find_spec("hatchling"):
        quick = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        build = quick if source.is_dir() else [*build, "--no-build-isolation"]
    built = subprocess.run(build, cwd=source if source.is_dir() else None, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"no wheel could be built here (no network?): {built.stderr.strip().splitlines()[-1:]}")
    return next(folder.glob("tracelens_perf-*.whl"))


@pytest.mark.sweep
@pytest.mark.parametrize(("compiler", "is_compiled"), [("cc", True), ("/nowhere/cc", False), ("false", False)])
def test_c_files_are_compiled_into_the_wheel_where_a_compiler_is(
    compiler: str, is_compiled: bool, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_compiled and (sys.platform == "win32" or shutil.which(compiler) is None):
        pytest.skip("no C compiler here")
    monkeypatch.setenv("CC", compiler)
    wheel = wheel_of(repository, tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl") is not is_compiled
    names = ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith(".c")]
    libraries = {Path(name).stem for name in names if name.endswith(".shared")}
    assert libraries == ({path.stem for path in (repository / "tracelens").rglob("*.c")} if is_compiled else set())


@pytest.mark.sweep
def test_a_wheel_for_another_system_is_named_after_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    monkeypatch.setenv("TRACELENS_WHEEL_PLATFORM", "manylinux_2_17_aarch64")
    assert wheel_of(repository, tmp_path).name.endswith("-py3-none-manylinux_2_17_aarch64.whl")


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(repository, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of a new virtual environment that holds the wheel; dependencies come from the running one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env")
    binaries = folder / "env" / "bin"
    install = [sys.executable, "-m", "pip", "--python", str(binaries / "python"), "install", "--quiet", "--no-deps"]
    install.append("--no-compile")  # what is imported is compiled then
    subprocess.run([*install, str(wheel)], check=True)
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    packages = next(path for path in sys.path if path.endswith("site-packages") and (Path(path) / "numpy").is_dir())
    (site / "dependencies.pth").write_text(packages)
    return binaries


def test_the_wheel_holds_each_c_file_compiled_where_a_compiler_is(wheel: Path, repository: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith(".c")]
    made = {Path(name).stem for name in names if name.endswith(".shared")}
    assert made in (set(), {path.stem for path in (repository / "tracelens").rglob("*.c")})
    assert made or shutil.which("cc") is None
    assert {"tracelens/py.typed", "tracelens/demo_trace.json.xz", "tracelens_extensions/megatron.py"} <= set(names)
    files = {path.relative_to(repository).as_posix() for path in (repository / "tracelens").rglob("*.py")}
    assert files <= set(names)


def test_the_wheel_has_each_data_file_and_packs_the_folders_of_many(installed: Path, tmp_path: Path) -> None:
    """Its names, figures and demo are those of the checkout."""
    script = (
        "import tracelens, zipfile; from tracelens.hardware.spec import FOLDER, HardwareSpec as D\n"
        "from tracelens.predict.network.cluster import Cluster as C\n"
        "from tracelens.predict.workload.model_config import ModelConfig as M\n"
        "from tracelens.backends.kernels.kernel_costs import fitted_constants\n"
        "print(FOLDER.is_dir(), [repr(sorted(map(repr, each.all()))) for each in (C, D, M)], D.file_text('h100'))\n"
        "print(M.with_windows()[0].name, fitted_constants('generation-mla'), fitted_constants('none'))"
    )
    kept = run([installed / "python", "-c", script], tmp_path).stdout
    here = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert kept == here.replace("True", "False", 1)
    assert len(kept) > 200_000


def run(command: list[object], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.sweep
def test_deepep_is_communication_in_workbook_and_json(installed: Path, repository: Path, tmp_path: Path) -> None:
    trace = repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
    done = run([installed / "tracelens", "report", trace, "--all-sheets", "-o", tmp_path / "out"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "EP_Communication" in done.stdout
    book = openpyxl.load_workbook(tmp_path / "out" / "report.xlsx", read_only=True)
    header, *rows = book["EP_Communication"].iter_rows(values_only=True)
    names = {row[header.index("Name")] for row in rows}
    assert names == {"DeepEPDispatch", "DeepEPCombine", "DeepEPDispatchBackward", "DeepEPCombineBackward"}
    for row in rows:
        # a combine, and a dispatch's gradient, are given the copies; their way there makes them
        gives_tokens = row[header.index("Name")] in ("DeepEPDispatch", "DeepEPCombineBackward")
        copies = row[header.index("Parameter copies")] if gives_tokens else 1
        wire = row[header.index("Parameter tokens")] * copies * row[header.index("Parameter hidden")] * 2
        # the copies are written with four digits
        assert row[header.index("Interconnect data (MB)")] == pytest.approx(wire / 1e6, rel=2e-5)
        assert row[header.index("Compute rate, mean (TFLOPS/s)")] == 0
    assert not [title for title in header if title.startswith("HBM bandwidth")]
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    category = next(c for c in document["categories"] if c["name"] == "EP_Communication")
    assert category["time_us"] > 0
    assert {op["model"] for op in document["ops"] if op["category"] == "EP_Communication"} == {
        "DeepEPDispatch",
        "DeepEPCombine",
    }


@pytest.mark.sweep
def test_the_api_gives_the_same_rows(installed: Path, repository: Path, tmp_path: Path) -> None:
    trace = repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
    code = (
        "import tracelens as tl, tracelens_extensions.megatron, pathlib, sys;"
        f"assert not str(pathlib.Path(tl.__file__)).startswith({str(repository)!r});"
        f"r = tl.report(tl.load({str(trace)!r}));"
        "f = r['EP_Communication'];"
        "print(tl.__version__, sorted(set(f['name'])), f['effective_interconnect_tb_s_mean'].notna().all())"
    )
    done = run([installed / "python", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(" ", 1)[1].strip().endswith("'DeepEPDispatchBackward'] True")


@pytest.mark.sweep
def test_the_demo_the_skills_and_the_type_marker_are_installed(installed: Path, tmp_path: Path) -> None:
    done = run([installed / "tracelens", "demo"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "MI300X" in done.stdout
    assert {path.name for path in (tmp_path / "tracelens_demo.report").iterdir()} >= {"report.xlsx", "report.json"}
    package = next((installed.parent / "lib").glob("python*/site-packages/tracelens"))
    assert (package / "py.typed").is_file()
    assert run([installed / "tracelens", "skill"], tmp_path).returncode == 0
    assert len(list(tmp_path.glob(".claude/skills/tracelens-*/SKILL.md"))) == 4


@pytest.mark.sweep
def test_the_wheel_of_the_source_distribution_holds_the_same_files(
    wheel: Path, repository: Path, tmp_path: Path
) -> None:
    """Built by the back end itself."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    built = subprocess.run(build, cwd=repository, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"no source distribution could be built here: {built.stderr.strip().splitlines()[-1:]}")
    source = next(tmp_path.glob("tracelens_perf-*.tar.gz"))
    names = sorted(ZipFile(wheel_of(source, tmp_path)).namelist())
    assert names == sorted(ZipFile(wheel).namelist())
    assert {"tracelens/py.typed", "tracelens/demo_trace.json.xz", "tracelens_extensions/megatron.py"} <= set(names)
