"""CPU seconds and memory of a report, beside ``gunzip`` + ``orjson.loads`` of the same file (the floor).

    python benchmarks/report.py [TRACE] [--megabytes 10 100 300 1000] [--runs 1] [--grow 0] [--keep FOLDER]

Makes its own traces: a small one (default: an example of this repository) repeated with shifted times and new ids, as
in ``read_trace.py``. With ``--grow``, that share of the copies also has names and shapes of its own, so that the tables
of names and signatures grow with the file.
Every figure is from a process of its own, with the default garbage collector and then without it. Loading and the floor
are without imports, the whole report with them, from compiled files as pip leaves them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from read_trace import REPOSITORY, copies

# Run in fresh processes: peak memory is a high-water mark.
_MEASURE = """
import gc, json, os, re, resource, sys
path, what, collector, output = sys.argv[1:]
def cpu():  # of the processes, too, that help to read
    return sum(os.times()[:4])
if collector == "gc-off":
    gc.disable()
started = 0.0
if what == "floor":
    import gzip, orjson
    started = cpu()
    with gzip.open(path) as file:
        kept = orjson.loads(file.read())
else:
    import tracelens
    if what == "load":
        tracelens.load
        started = cpu()
    kept = tracelens.load(path)
    if what == "report":
        tracelens.report(kept).write(output)
try:  # ru_maxrss starts from the parent's figure
    with open("/proc/self/status") as status:
        peak_mb = int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) * 1024 / 1e6
except OSError:
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
print(json.dumps([cpu() - started, peak_mb]))
"""

EXAMPLE = REPOSITORY / "example_traces" / "moe_ep8" / "rank0.json.gz"
_FIRST_DIM = re.compile(r'"Input Dims": \[\[(?=\d)')


def written(source: Path, target: Path, megabytes: float, grow: float) -> tuple[int, int]:
    """Writes ``target`` (gzip) from copies of ``source``; returns (bytes of JSON, events)."""
    size = count = 0
    grown = 0.0
    with gzip.open(target, "wt", compresslevel=3) as file:
        for number, (text, events) in enumerate(copies(source)):
            grown += grow if number else 0.0
            if grown >= 1:
                grown -= 1
                text = text.replace('"aten::', f'"copy{number}::')
                text = _FIRST_DIM.sub(f'"Input Dims": [[{number}, ', text)
            file.write(text)
            size, count = size + len(text), count + events
            if size >= megabytes * 1e6:
                break
        file.write("]}")
    return size + 2, count


def measured(path: Path, what: str, collector: str, output: Path) -> list[float]:
    """(CPU s, peak MB) of one process."""
    command = [sys.executable, "-c", _MEASURE, str(path.resolve()), what, collector, str(output.resolve())]
    # An installed package is compiled: a checkout that may not write its own would be compiled anew by every process.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "tracelens-benchmark-cache")
    # In another folder than a checkout's, so that what is installed is measured
    elsewhere = tempfile.gettempdir()
    result = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True)
    figures: list[float] = json.loads(result.stdout)
    return figures


def show(path: Path, json_mb: float, runs: int) -> None:
    for collector in ("gc-on", "gc-off"):
        seconds: dict[str, list[float]] = {"floor": [], "load": [], "report": []}
        peaks: dict[str, float] = {}
        for _ in range(runs):
            for what, figures in seconds.items():
                used, peaks[what] = measured(path, what, collector, path.with_suffix(".report"))
                figures.append(used)
        cpu = {what: statistics.median(figures) for what, figures in seconds.items()}
        allowed = {
            "floor": "",
            "load": "at most 0.60 x",
            "report": f"at most {cpu['floor'] + 1.5:.2f} s, {0.5 * json_mb + 250:.0f} MB",
        }
        for what, limit in allowed.items():
            ratio = f"{cpu[what] / cpu['floor']:.2f} x floor"
            print(
                f"  {collector:6} {what:6} CPU {cpu[what]:6.2f} s  peak {peaks[what]:5.0f} MB  {ratio}  {limit}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time and memory of a report beside gunzip + orjson.loads")
    parser.add_argument("trace", type=Path, nargs="?", default=EXAMPLE, help="a small trace to replicate")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[10, 100, 300, 1000], help="sizes of the JSON")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--grow", type=float, default=0.0, help="share of copies with new names and shapes, 0 to 1")
    parser.add_argument("--keep", type=Path, help="folder for the replicated traces (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Any = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measured(EXAMPLE, "report", "gc-on", folder / "first.report")  # compiles what is not yet
        for megabytes in args.megabytes:
            path = folder / f"{megabytes:g}mb.json.gz"
            size, events = written(args.trace, path, megabytes, args.grow)
            print(
                f"{size / 1e6:.0f} MB of JSON, {path.stat().st_size / 1e6:.1f} MB gzip, {events:,} events", flush=True
            )
            show(path, size / 1e6, args.runs)


if __name__ == "__main__":
    main()
