"""Makes a release: the source archive, a wheel in Python alone, and one with the compiled C files for each system.

    python -m pip install hatchling ziglang
    python .ci/wheels.py dist
    python .ci/wheels.py --check        where one of them is installed: its libraries load

One machine makes all of them: Zig's C compiler has the C libraries of other systems. The libraries call nothing of
Python, so a wheel serves every version of it; pip takes the wheel in Python alone where none of the others fits.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
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
    made = {path.name.rpartition("-")[2].removesuffix(".whl") for path in folder.glob("*.whl")}
    if missing := {"any", *SYSTEMS.values()} - made:
        raise SystemExit(f"no wheel was made for {', '.join(sorted(missing))}")


def check() -> None:
    import tracelens

    sources = sorted(Path(tracelens.__file__).parent.rglob("*.c"))
    for source in sources:
        ctypes.CDLL(str(source.with_suffix(".shared"))).tracelens_layout()
    print(f"{len(sources)} libraries of {tracelens.__file__} load")


if __name__ == "__main__":
    check() if sys.argv[1] == "--check" else main(Path(sys.argv[1]))
