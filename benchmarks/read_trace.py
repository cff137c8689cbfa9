"""How long reading a trace takes, and how much memory, beside ``gzip`` + ``orjson.loads`` of the same file.

    python benchmarks/read_trace.py TRACE [--megabytes 17 103 312] [--runs 5] [--keep FOLDER]

A small trace is replicated with shifted times and new ids up to each size. Every figure is from a process of its own;
the two readers alternate, so that the ratio survives a busy machine. Names and signatures do not grow with the size: a
recorded trace as large is somewhat slower to read.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
_ID_KEYS = ("correlation", "External id", "Ev Idx", "Python id", "Python parent id", "Sequence number")

# Run in fresh processes: peak memory is a high-water mark, and imports are part of neither time.
_MEASURE = """
import gc, json, os, re, resource, sys, time
def cpu_s():  # of the processes, too, that help to read
    return sum(os.times()[:4])
def peak_mb():
    try:  # ru_maxrss starts from the parent's figure
        with open("/proc/self/status") as status:
            return int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
if sys.argv[2] == "floor":
    import gzip, orjson
    def read(path):
        return orjson.loads(gzip.open(path).read())
else:
    from tracelens.trace.reading.read import read_trace as read
if sys.argv[3] == "gc-off":
    gc.disable()
wall, cpu = time.perf_counter(), cpu_s()
kept = read(sys.argv[1])
wall, cpu = time.perf_counter() - wall, cpu_s() - cpu
print(json.dumps([wall, cpu, peak_mb()]))
"""


def replicated(source: Path, target: Path, megabytes: float) -> tuple[int, int]:
    """Writes ``target`` (gzip) from copies of ``source``; returns (bytes of JSON, events)."""
    size, count = 2, 0
    with gzip.open(target, "wt", compresslevel=3) as file:
        for text, events in copies(source):
            file.write(text)
            size, count = size + len(text), count + events
            if size >= megabytes * 1e6:
                break
        file.write("]}")
    return size, count


def copies(source: Path) -> Iterator[tuple[str, int]]:
    """Text and number of events of one copy after the other, without end; the first has the head of the file too.

    What follows them is ``]}``. Times are shifted and ids new in each.
    """
    content = source.read_bytes()
    trace = json.loads(gzip.decompress(content) if source.suffix == ".gz" else content)
    events = trace.pop("traceEvents")
    times = [e["ts"] for e in events if e.get("ph") == "X"]
    span = max(times) - min(times) + 1000
    step = 1 + max((v for e in events for v in _ids(e)), default=0)
    head = json.dumps(trace)[:-1] + (", " if trace else "") + '"traceEvents": ['
    for copy in itertools.count():
        lines = [json.dumps(_shifted(e, copy * span, copy * step)) for e in events if copy == 0 or e["ph"] != "M"]
        yield (",\n" if copy else head) + ",\n".join(lines), len(lines)


def _ids(event: dict[str, Any]) -> list[int]:
    args = event.get("args") or {}
    return [v for v in (event.get("id"), *(args.get(k) for k in _ID_KEYS)) if isinstance(v, int)]


def _shifted(event: dict[str, Any], time_us: float, ids: int) -> dict[str, Any]:
    event = dict(event)
    if event.get("ph") != "M" and "ts" in event:
        event["ts"] = round(event["ts"] + time_us, 3)
    if isinstance(event.get("id"), int):
        event["id"] += ids
    if event.get("args"):
        event["args"] = {k: v + ids if k in _ID_KEYS and isinstance(v, int) else v for k, v in event["args"].items()}
    return event


def measured(path: Path, reader: str, collector: str) -> list[float]:
    """(wall s, CPU s, peak RSS MB) of one reading in a fresh process."""
    command = [sys.executable, "-c", _MEASURE, str(path), reader, collector]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    figures: list[float] = json.loads(result.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading time and memory beside gzip + orjson.loads")
    parser.add_argument("trace", type=Path, help="a small trace to replicate")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[17, 103, 312], help="sizes of the JSON")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder for the replicated traces (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for megabytes in args.megabytes:
            path = folder / f"{megabytes:g}mb.json.gz"
            size, events = replicated(args.trace, path, megabytes)
            print(f"{size / 1e6:.0f} MB of JSON, {path.stat().st_size / 1e6:.1f} MB gzip, {events:,} events")
            for collector in ("gc-on", "gc-off"):
                runs = {reader: [] for reader in ("floor", "tracelens")}  # type: dict[str, list[list[float]]]
                for _ in range(args.runs):
                    for reader, figures in runs.items():
                        figures.append(measured(path, reader, collector))
                median = {r: [statistics.median(column) for column in zip(*f, strict=True)] for r, f in runs.items()}
                for reader, (wall, cpu, memory) in median.items():
                    print(f"  {collector:6} {reader:9} wall {wall:6.2f} s  CPU {cpu:6.2f} s  peak {memory:6.0f} MB")
                wall, cpu, memory = (a / b for a, b in zip(median["tracelens"], median["floor"], strict=True))
                print(f"  {collector:6} ratio     wall {wall:6.2f}    CPU {cpu:6.2f}    peak {memory:6.2f}")


if __name__ == "__main__":
    main()
