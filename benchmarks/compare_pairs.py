"""How long comparing takes beside loading: python -m benchmarks.compare_pairs A B [A B ...]

Loading both is ``tl.load`` of every file of both sides: reading, columns and the op tree, nothing analyzed. Comparing
is ``tl.compare``, which loads them too. CPU seconds, the least of ``REPEATS`` in one process that has done each before,
so that neither counts imports; "process" is ``tracelens compare`` as a user starts it, imports included, over a process
that only imports and loads.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from tracelens.analysis.loaded_trace import load
from tracelens.analysis.ranks.rank_files import find_traces
from tracelens.comparison.compare import compare

REPEATS = 25
_LOADS = (
    "import sys; import tracelens; from tracelens.analysis.ranks.rank_files import find_traces\n"
    "[tracelens.load(f) for f in find_traces(sys.argv[1:])]"
)


def cpu_s(runs: Sequence[Callable[[], object]]) -> list[float]:
    """The least CPU seconds of each, taken in turns."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(REPEATS):
        for run, own in zip(runs, taken, strict=True):
            began = time.process_time()
            run()
            own.append(time.process_time() - began)
    return [min(own) for own in taken]


def process_s(command: list[str]) -> float:
    """CPU seconds of a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(paths: list[str]) -> None:
    print(f"{'load both':>10}{'compare':>10}{'ratio':>8}{'process':>9}{'matched A':>11}{'B':>8}   B against A")
    for a, b in zip(paths[::2], paths[1::2], strict=True):
        found = compare(a, b)
        files = [*find_traces([a]), *find_traces([b])]
        loading, comparing = cpu_s([lambda files=files: [load(file) for file in files], lambda a=a, b=b: compare(a, b)])
        whole = process_s([sys.executable, "-m", "tracelens", "compare", a, b])
        process = whole / process_s([sys.executable, "-c", _LOADS, a, b])
        shares = "".join(f"{100 * share:>9.1f} %" for share in found.matched_share)
        print(f"{loading:>9.3f}s{comparing:>9.3f}s{comparing / loading:>8.2f}{process:>9.2f}{shares}   {b} {a}")


if __name__ == "__main__":
    main(sys.argv[1:])
