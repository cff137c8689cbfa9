"""Compiles the package's C files into the wheel, and packs its data smaller.

Without a C compiler the wheel is Python alone, and slower.

``CC`` is the compiler, else ``cc``. ``TRACELENS_WHEEL_PLATFORM`` is the platform in the wheel's name where the compiler
makes code for another system (``.ci/wheels.py``). ``TRACELENS_PURE_PYTHON=1`` leaves the libraries out.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# A library is loaded by its path and needs nothing of Python: with the name of a module it would be taken for one.
SUFFIX = ".shared"
# Contracted to fewer roundings, times would differ.
OPTIONS = ("-O3", "-std=c99", "-ffp-contract=off", "-shared", "-fPIC")
#: Folders of small files, each an archive in the wheel (``tracelens.files.documents.bundled``): a file of its own takes
#: as much again for its name and checksum as for what it says, and compresses without what its neighbours say, too.
PACKED = ("hardware/devices", "hardware/kernels", "predict/network/clusters", "predict/workload/models")
DEMO = "example_traces/moe_ep8/rank0.json.gz"
# Against what a stranger's text might do to them; a compiler or system that lacks one does without.
CHECKS = ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong")
LINKED = ("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack", "-Wl,-s")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """All libraries or none."""
        self.packed = tempfile.TemporaryDirectory()
        for name in () if version == "editable" else PACKED:
            archive = Path(self.packed.name, name).with_suffix(".zip")
            pack(Path(self.root, "tracelens", name), archive)
            build_data["force_include"][str(archive)] = f"tracelens/{name}.zip"
        demo = Path(self.packed.name, "demo_trace.json.xz")
        trace = gzip.decompress(Path(self.root, DEMO).read_bytes())
        demo.write_bytes(lzma.compress(trace, preset=9 | lzma.PRESET_EXTREME))
        build_data["force_include"][str(demo)] = f"tracelens/{demo.name}"
        if os.environ.get("TRACELENS_PURE_PYTHON") or (sys.platform == "win32" and not os.environ.get("CC")):
            return
        root = Path(self.root)
        sources = sorted(root.joinpath("tracelens").rglob("*.c"))
        if not all(compiled(source, source.with_suffix(SUFFIX)) for source in sources):
            return
        for library in (source.with_suffix(SUFFIX) for source in sources):
            build_data["force_include"][str(library)] = library.relative_to(root).as_posix()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{wheel_platform()}"


def pack(folder: Path, archive: Path) -> None:
    """Without compression: the wheel compresses all of it together."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(folder.iterdir()):
            packed.writestr(zipfile.ZipInfo(path.name), path.read_bytes())


def wheel_platform() -> str:
    return os.environ.get("TRACELENS_WHEEL_PLATFORM") or re.sub("[-.]", "_", sysconfig.get_platform())


def compiled(source: Path, library: Path) -> bool:
    """Whether the compiler (``CC``, else ``cc``) could make the library; it is there whole or not at all."""
    part = library.with_name(f"{library.name}.{os.getpid()}")
    options = [each for each in OPTIONS if each != "-fPIC" or not wheel_platform().startswith("win")]
    compiler, said = shlex.split(os.environ.get("CC") or "cc"), ""
    for more in ((*CHECKS, *LINKED), CHECKS, ()):
        command = [*compiler, *options, *more, "-o", str(part), str(source), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            return False
        if not done.returncode:
            part.replace(library)
            return True
        said = done.stderr.strip()[-300:]
    sys.stderr.write(f"tracelens is built without {source.name}: {said}\n")
    return False
