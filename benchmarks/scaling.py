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
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fixed_cost import REPORT
from benchmarks.scaling_shapes import SHAPES, Event, launched

SIZES = 3


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
