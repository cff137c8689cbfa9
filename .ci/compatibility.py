"""The wheel under every promised Python that is here, with the oldest and the newest dependencies: a report, and tests.

python .ci/compatibility.py            every version of PYTHONS that is found (on the path, or pyenv's)
python .ci/compatibility.py 3.13 3.14  these; a version that is not found then fails
python .ci/compatibility.py newest     the newest that is found

Each combination is an environment of its own with the wheel, its dependencies and what the tests need; the tests run
beside the wheel, not in the checkout. Ends with 1 where one fails. Needs the network; uv is installed for the run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST, NEWEST = "lowest-direct", "highest"
#: Rooms that every report passes through: typed decoding, arithmetic on arrays, frames, workbooks, pages.
TESTED = ("tests/trace", "tests/analysis/sheets", "tests/report", "tests/files", "tests/test_records.py")
NEEDED = ("pytest", "pytest-xdist", "hypothesis", "jsonschema")
COPIED = (
    "tests",
    "example_traces",
    "reference_reports",
    "benchmarks",
    "docs",
    "extensions",
    "pyproject.toml",
    "README.md",
)


def main() -> int:
    asked = sys.argv[1:]
    if asked == ["newest"]:
        asked = [version for version in PYTHONS if found(version)][-1:]
    good = True
    with tempfile.TemporaryDirectory(prefix="compatibility-") as made:
        folder = Path(made)
        venv.create(folder / "tools", with_pip=True)
        tools = folder / "tools" / "bin"
        run(tools / "pip", "install", "--quiet", "uv")
        run(tools / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, REPOSITORY)
        (wheel,) = folder.glob("*.whl")
        for version in asked or PYTHONS:
            python = found(version)
            if python is None:
                print(f"Python {version}: not here")
                good = good and not asked
                continue
            for resolution in (OLDEST, NEWEST):
                good = (
                    holds(python, version, resolution, wheel, tools / "uv", folder / f"{version}-{resolution}") and good
                )
    return 0 if good else 1


def found(version: str) -> str | None:
    """An interpreter of this version that starts."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    known = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    says = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in map(str, filter(None, known)):
        done = subprocess.run([python, "-c", says], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return python
    return None


def holds(python: str, version: str, resolution: str, wheel: Path, uv: Path, folder: Path) -> bool:
    """Whether the wheel makes a report and the tests pass; says so, or what does not."""
    what = f"Python {version}, {'oldest' if resolution == OLDEST else 'newest'} dependencies"
    environment = folder / "env"
    try:
        run(uv, "venv", "--quiet", "--python", python, environment)
        into = ("--quiet", "--python", environment / "bin" / "python", "--only-binary", ":all:")
        run(uv, "pip", "install", *into, "--resolution", resolution, "-r", REPOSITORY / "pyproject.toml")
        run(uv, "pip", "install", *into, "--no-deps", wheel)
        kept = run(uv, "pip", "freeze", "--python", environment / "bin" / "python")
        (folder / "kept.txt").write_text("\n".join(line for line in kept.splitlines() if "==" in line))
        run(uv, "pip", "install", *into, "--constraint", folder / "kept.txt", *NEEDED)
        what += f" ({', '.join(line for line in kept.splitlines() if line.partition('==')[0] in DIRECT)})"
        shown = run(environment / "bin" / "tracelens", "demo", "-o", "demo.report", cwd=folder)
        if "look here first" not in shown:
            raise RuntimeError(f"no report: {shown}")
        for name in COPIED:
            copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
            copy(REPOSITORY / name, folder / name)
        pytest = (environment / "bin" / "python", "-P", "-m", "pytest", "-q", "-n", "auto", "-W", "default")
        tests = run(*pytest, *TESTED, cwd=folder)
    except (subprocess.CalledProcessError, RuntimeError) as error:
        print(f"{what}: FAILED: {error}\n{getattr(error, 'stdout', '')[-6000:]}{getattr(error, 'stderr', '')[-2000:]}")
        return False
    print(f"{what}: a report, {tests.strip().splitlines()[-1]}", flush=True)
    return True


#: The dependencies that ``pyproject.toml`` names, as ``pip freeze`` spells them.
DIRECT = {"numpy", "pandas", "openpyxl", "orjson", "msgspec", "pyyaml", "zlib-ng"}


def run(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [str(word) for word in command], check=True, capture_output=True, text=True, cwd=cwd, env=environment
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
