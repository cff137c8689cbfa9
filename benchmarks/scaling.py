"""How a report grows with what a trace has most of: ``python -m benchmarks.scaling [SHAPE ...] [--times 1]``.

Each shape is made at a size and at four times that; processor seconds and peak memory of ``tracelens report`` are
those of a process of its own, the cost of a trace of one op taken off. The exponents are those from the one to the
other; 1 is linear. ``--times 10`` takes ten times the sizes. Exit 1 where one is above ``MOST``.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.fixed_cost import REPORT
from benchmarks.scaling_shapes import SHAPES, Event, launched

#: Exponent above which a shape is said to grow faster than the trace.
MOST = 1.15
FACTOR = 4
# What a trace of one op takes, times this, and so many MB, are noise.
LEAST_SHARE, LEAST_MB = 0.4, 30.0


def write(path: Path, events: Iterator[Event]) -> None:
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for number, event in enumerate(events):
            file.write(("," if number else "") + json.dumps(event))
        file.write("]}")


class Cost(NamedTuple):
    """CPU seconds and peak MB of a report; ``loops``: the seconds in times of a loop that ran just before and after.

    A machine with other work takes longer for both.
    """

    seconds: float
    megabytes: float
    loops: float


_LOOP = """
import time
def loop():
    before, found = time.process_time(), {}
    for i in range(300_000):
        found[i % 5_000] = str(i)
    return time.process_time() - before
"""
_MEASURED = f"""{_LOOP}
loop()
first, before = loop(), time.process_time()
{REPORT.replace("sys.exit(main())", "main()")}
import re, resource
used, peak = time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
try:  # ru_maxrss starts from the parent's figure
    with open("/proc/self/status") as status:
        peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) / 1e3
except OSError:
    pass
print(used, peak, 2 * used / (first + loop()), file=sys.stderr)
"""


def measured(path: Path) -> Cost:
    """Of a report in a process of its own, the start of Python left out."""
    command = [sys.executable, "-c", _MEASURED, "report", str(path), "-o", str(path.with_suffix(".report"))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Cost(*(float(figure) for figure in done.stderr.split()[-3:]))


def least(costs: Iterable[Cost]) -> Cost:
    """The least of each figure."""
    return Cost(*(min(figures) for figures in zip(*costs, strict=True)))


def exponents(name: str, times: float, runs: int, path: Path, fixed: Cost) -> tuple[float, float]:
    """(of time, of memory) from a size of the shape to ``FACTOR`` times that; NaN where even that costs too little."""
    make, smallest = SHAPES[name]
    found = []
    for count in (int(smallest * times), FACTOR * int(smallest * times)):
        write(path, make(count))
        cost = least(measured(path) for _ in range(runs))
        found.append(Cost(*(all_of_it - part for all_of_it, part in zip(cost, fixed, strict=True))))
        file_mb = path.stat().st_size / 1e6
        print(
            f"  {count:>10,} {name:24} {file_mb:6.1f} MB: {cost.seconds:6.2f} s, {cost.megabytes:5.0f} MB", flush=True
        )
    few, many = found
    return _exponent(few.loops, many.loops, LEAST_SHARE * fixed.loops), _exponent(
        few.megabytes, many.megabytes, LEAST_MB
    )


def _exponent(few: float, many: float, least_of_many: float) -> float:
    return math.log(many / max(few, least_of_many / FACTOR), FACTOR) if many > least_of_many else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description="How the cost of a report grows with what a trace has most of")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"default: {' '.join(SHAPES)}")
    parser.add_argument("--times", type=float, default=1, help="times the sizes")
    parser.add_argument("-n", "--runs", type=int, default=1, help="of which the least counts")
    given = parser.parse_args()
    above = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        write(path, launched("aten::op", 1, 0))
        measured(path)
        fixed = least(measured(path) for _ in range(max(3, given.runs)))
        print(f"one op: {fixed.seconds:.2f} s, {fixed.megabytes:.0f} MB")
        for name in given.shapes or SHAPES:
            time, memory = exponents(name, given.times, given.runs, path, fixed)
            print(f"{name}: exponent of time {time:.2f}, of memory {memory:.2f}", flush=True)
            if time > MOST or memory > MOST:
                above.append(name)
    print(f"above {MOST}: {', '.join(above) or 'none'}")
    sys.exit(bool(above))


if __name__ == "__main__":
    main()
