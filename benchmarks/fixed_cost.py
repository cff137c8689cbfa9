"""What a report costs before there is anything to report: ``python -m benchmarks.fixed_cost [TRACE] [-n RUNS]``.

Processor seconds of ``tracelens report`` on a small trace beside those of importing NumPy, pandas and openpyxl, in
turn, each in its own process. Both slow down alike on a busy machine: the ratio is the figure. Python compiles what it
imports on the first run: start it without ``PYTHONDONTWRITEBYTECODE``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

IMPORTS = "import numpy, pandas, openpyxl"
REPORT = "import sys; from tracelens.cli import main; sys.exit(main())"


def small_trace(path: Path) -> Path:
    """An op with its launch and its kernel."""
    lane = {"ph": "X", "pid": 1, "tid": 1, "dur": 20}
    sizes = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["c10::BFloat16"] * 2}
    events = [
        {**lane, "cat": "cpu_op", "name": "aten::mm", "ts": 1, "args": sizes},
        {**lane, "cat": "cuda_runtime", "name": "hipLaunchKernel", "ts": 5, "dur": 5, "args": {"correlation": 1}},
        {
            **lane,
            "cat": "kernel",
            "name": "Cijk",
            "pid": 0,
            "tid": 7,
            "ts": 30,
            "args": {"correlation": 1, "stream": 7},
        },
    ]
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}], "traceEvents": events}))
    return path


def cpu_s(*arguments: object) -> float:
    """Of one Python process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("-n", "--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = given.trace or small_trace(Path(folder) / "small.json")
        report = ("-c", REPORT, "report", trace, "-o", Path(folder) / "out")
        cpu_s(*report)
        runs = [(cpu_s("-c", IMPORTS), cpu_s(*report)) for _ in range(given.runs)]
    imports, reports = (min(seconds) for seconds in zip(*runs, strict=True))
    print(f"imports {imports:.2f} s, report {reports:.2f} s of processor time (least of {given.runs}): ", end="")
    print(f"{reports / imports:.2f} x")


if __name__ == "__main__":
    main()
