"""How a report grows with what a trace has most of: ``python -m benchmarks.scaling [SHAPE ...] [--times 1]``.

Each shape is made at three sizes, each twice the last; processor seconds and peak memory of ``tracelens report`` are
those of a process of its own, the cost of a trace of one op taken off. The exponent is that of the largest two sizes;
1 is linear. ``--times 10`` takes ten times the sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.fixed_cost import REPORT

Event = dict[str, Any]
SIZES = 3


def host(name: str, at: int, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {"External id": at, **args},
    }


def launched(name: str, at: int, ts: float, tid: int = 1, stream: int = 7, dims: object = None) -> Iterator[Event]:
    """An op of 8 us, its launch and its kernel."""
    shapes = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * 2} if dims else {}
    yield host(name, at, ts, 8, tid=tid, **shapes)
    yield host("cudaLaunchKernel", at, ts + 1, 5, cat="cuda_runtime", tid=tid, correlation=at)
    args = {"External id": at, "correlation": at, "stream": stream, "device": 0}
    yield {
        "ph": "X",
        "cat": "kernel",
        "name": f"{name}_kernel",
        "pid": 0,
        "tid": stream,
        "ts": ts + 6,
        "dur": 3,
        "args": args,
    }


def kernels(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from launched(f"aten::op{at % 50}", at, 10 * at)


def names(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from launched(f"aten::op{at}", at, 10 * at)


def signatures(count: int) -> Iterator[Event]:
    for at in range(count):
        yield from launched("aten::mm", at, 10 * at, dims=[[8, 16 + at], [16 + at, 8]])


def steps(count: int) -> Iterator[Event]:
    for at in range(count):
        yield host(f"ProfilerStep#{at}", at, 10 * at, 9, cat="user_annotation")
        yield from launched("aten::op", at + count, 10 * at + 0.5)


def frames(count: int) -> Iterator[Event]:
    """A Python stack as deep as the trace is long."""
    for at in range(count):
        yield host(f"f{at % 100}.py(1): f", at, at, 2 * (count - at) + 10, cat="python_function")
    yield from launched("aten::op", count + 1, count)


def nested_ops(count: int) -> Iterator[Event]:
    """Ops 500 deep, again and again."""
    for at in range(count):
        depth, pile = at % 500, at // 500
        yield host(f"aten::op{depth}", at, 1100 * pile + depth, 2 * (500 - depth) + 20)
        if depth == 499:
            yield from launched("aten::leaf", count + pile, 1100 * pile + 500)


def threads(count: int) -> Iterator[Event]:
    """Ten ops in each of many threads."""
    for at in range(count):
        yield from launched(f"aten::op{at % 50}", at, 10 * at, tid=1 + at // 10)


def streams(count: int) -> Iterator[Event]:
    """Ten kernels on each of many streams."""
    for at in range(count):
        yield from launched(f"aten::op{at % 50}", at, 10 * at, stream=7 + at // 10)


#: With the smallest of its sizes.
SHAPES: dict[str, tuple[Callable[[int], Iterator[Event]], int]] = {
    "kernels": (kernels, 100_000),
    "names": (names, 5_000),
    "signatures": (signatures, 5_000),
    "steps": (steps, 5_000),
    "frames": (frames, 10_000),
    "nested_ops": (nested_ops, 100_000),
    "threads": (threads, 50_000),
    "streams": (streams, 20_000),
}


def write(path: Path, events: Iterator[Event]) -> None:
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for number, event in enumerate(events):
            file.write(("," if number else "") + json.dumps(event))
        file.write("]}")


def measured(path: Path) -> tuple[float, float]:
    """CPU seconds and peak MB of a report."""
    peak = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, file=sys.stderr)"
    code = f"{REPORT.replace('sys.exit(main())', 'main()')}; {peak}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", code, "report", str(path), "-o", str(path.with_suffix(".report"))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, float(done.stderr.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="How the cost of a report grows with what a trace has most of")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"default: {' '.join(SHAPES)}")
    parser.add_argument("--times", type=float, default=1, help="times the sizes")
    parser.add_argument("-n", "--runs", type=int, default=1, help="of which the least counts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        write(path, launched("aten::op", 1, 0))
        measured(path)
        fixed = min(measured(path)[0] for _ in range(max(2, given.runs)))
        print(f"one op: {fixed:.2f} s")
        for name in given.shapes or SHAPES:
            make, least = SHAPES[name]
            seconds = []
            for doubled in range(SIZES):
                count = int(least * given.times) << doubled
                write(path, make(count))
                used, peak_mb = min(measured(path) for _ in range(given.runs))
                seconds.append(used - fixed)
                print(
                    f"  {count:>10,} {name:11} {path.stat().st_size / 1e6:6.0f} MB: {used:6.2f} s, {peak_mb:5.0f} MB",
                    flush=True,
                )
            print(f"{name}: exponent {math.log2(seconds[-1] / seconds[-2]):.2f}", flush=True)


if __name__ == "__main__":
    main()
