"""Makes a release: the source archive, a wheel in Python alone, one with the compiled C files for each system, and what
they need as a CycloneDX document.

    python -m pip install --require-hashes -r .ci/release.txt
    python .ci/wheels.py dist
    python .ci/wheels.py --check        where one of them is installed: its libraries load

One machine makes all of them: Zig's C compiler has the C libraries of other systems. The libraries call nothing of
Python, so a wheel serves every version of it; pip takes the wheel in Python alone where none of the others fits.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Zig's name of a system -> the platform in the name of its wheel.
SYSTEMS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64",
    "x86_64-macos.11.0": "macosx_11_0_x86_64",
    "aarch64-macos.11.0": "macosx_11_0_arm64",
    "x86_64-windows-gnu": "win_amd64",
}


def build(folder: Path, kind: str, **variables: str) -> None:
    """A build in a copy of the tracked files: libraries of this machine stay what they are."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    with tempfile.TemporaryDirectory() as copy:
        for name in filter(None, tracked.split("\0")):
            target = Path(copy, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder.resolve())]
        subprocess.run(command, cwd=copy, env={**os.environ, **variables}, check=True)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    build(folder, "sdist")
    build(folder, "wheel", TRACELENS_PURE_PYTHON="1")
    for system, platform in SYSTEMS.items():
        compiler = f"{sys.executable} -m ziglang cc -s -target {system}"
        build(folder, "wheel", CC=compiler, TRACELENS_WHEEL_PLATFORM=platform)
    (folder / "sbom.cdx.json").write_text(json.dumps(bill_of_materials(), indent=2) + "\n")
    made = {path.name.rpartition("-")[2].removesuffix(".whl") for path in folder.glob("*.whl")}
    if missing := {"any", *SYSTEMS.values()} - made:
        raise SystemExit(f"no wheel was made for {', '.join(sorted(missing))}")


def bill_of_materials() -> dict[str, object]:
    """The package and what it requires, with the versions that CI tests (.ci/lock.txt)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / ".ci" / "lock.txt").read_text(), re.MULTILINE))
    names = [re.split(r"[^A-Za-z0-9_.-]", need)[0].lower() for need in project["dependencies"]]
    parts = [
        {"type": "library", "name": name, "version": locked[name], "purl": f"pkg:pypi/{name}@{locked[name]}"}
        for name in names
    ]
    whole = {
        "type": "library",
        "name": project["name"],
        "version": project["version"],
        "purl": f"pkg:pypi/{project['name']}@{project['version']}",
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": whole},
        "components": parts,
    }


def check() -> None:
    import tracelens

    sources = sorted((ROOT / "tracelens").rglob("*.c"))
    for source in sources:
        library = Path(tracelens.__file__).parent / source.relative_to(ROOT / "tracelens").with_suffix(".shared")
        ctypes.CDLL(str(library)).tracelens_layout()
    print(f"{len(sources)} libraries of {tracelens.__file__} load")


if __name__ == "__main__":
    check() if sys.argv[1] == "--check" else main(Path(sys.argv[1]))
