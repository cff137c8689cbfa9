"""Counters as Kineto's own code writes them: PyTorch records activities that ``kineto_counters.cpp`` hands to it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tracelens
from tracelens.trace.reading.counter_files import read_counters

PYTHON = os.environ.get("TRACELENS_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else "")
BUILD_AND_RECORD = """
import ctypes, subprocess, sys
from pathlib import Path
import torch
root = Path(torch.__file__).parent
subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", "-DFMT_HEADER_ONLY", f"-I{root}/include/kineto",
                f"-I{root}/include", sys.argv[1], "-o", "plugin.so", f"-L{root}/lib", "-ltorch_cpu", "-lc10"], check=True)
ctypes.CDLL("./plugin.so").register_counters()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    torch.ones(8) + 1
profiler.export_chrome_trace("t.json")
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON or shutil.which("g++") is None:
        pytest.skip("PyTorch (or TRACELENS_TORCH_PYTHON) and a C++ compiler are needed")
    folder, source = tmp_path_factory.mktemp("kineto"), Path(__file__).with_name("kineto_counters.cpp")
    done = subprocess.run(
        [PYTHON, "-c", BUILD_AND_RECORD, str(source)], cwd=folder, capture_output=True, text=True, check=False
    )
    if "fatal error" in done.stderr or "has no member named" in done.stderr:
        pytest.skip("this PyTorch's Kineto has no typed counters (2.13 has)")
    assert done.returncode == 0, done.stderr[-1000:]
    return folder / "t.json"


@pytest.mark.sweep
def test_ranges_and_samples_of_kinetos_own_writer(trace: Path) -> None:
    """Two kernels of 20 us; samples of 10 us read 0, 100, 200, 300 and 400 kB, and write 1 kB each."""
    found = read_counters(trace)
    assert found.name == ("void gemm<float, 128>(float*)", "__missing__")
    assert found.figures["hbm_bytes"].tolist() == [1_250_000.5, 2_250_000.5]
    measured = tracelens.report(trace, cpu=True, steps="file")["measured_hbm"]
    mb = dict(zip(measured["kernel_name"], measured["measured_mb"].round(6), strict=True))
    assert {name: mb.pop(name) for name in found.name} == {found.name[0]: 0.102, found.name[1]: 0.502}
    assert list(mb.values()) == [0.401], "after the last kernel"
