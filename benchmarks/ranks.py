"""Comparing many ranks: time per rank beside a single load, peak memory of the parent, growth with the ranks.

    python benchmarks/ranks.py [--ranks 8 64 256] [--megabytes 20] [--jobs 2] [--keep FOLDER]

Eight ranks of a made-up job (tests/ranks/planted.py) of the given size of JSON are written, then copied under new rank
numbers with their groups widened. A single load is the mean CPU time of loading the same files with as many workers,
half of them before and half after the job: what else the machine does then slows both alike.
Workers start and import anew for each job, and that counts as well.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "ranks"))
TEMPLATES = 8
#: Of the largest number of ranks: the parent's memory, and CPU time per rank over that of a single load.
MOST_PARENT_MB, MOST_RATIO = 1000, 1.3
#: Of CPU time per rank, largest over smallest number of ranks: above 1, the job grows faster than its ranks.
MOST_GROWTH = 1.1

_LOAD = """
import json, sys, time
from tracelens.analysis.loaded_trace import load
def cost(path):
    wall, cpu = time.perf_counter(), time.process_time()
    load(path)
    return time.perf_counter() - wall, time.process_time() - cpu
def main():
    from tracelens.analysis.ranks.rank_files import find_traces
    from tracelens.files.executors import open_executor
    jobs = int(sys.argv[2])
    with open_executor("processes", jobs=jobs) as executor:
        costs = list(executor.map(cost, find_traces([sys.argv[1]])[int(sys.argv[3])::2]))[jobs:]
    print(json.dumps([sum(column) / len(costs) for column in zip(*costs)]))
if __name__ == "__main__":
    main()
"""
_COMPARE = """
import json, re, resource, sys, time
def main():
    # Workers import this file too, and in the command they do not import what only the parent needs
    from tracelens.analysis.ranks.rank_files import find_traces
    from tracelens.analysis.ranks.rank_comparison import compare_ranks
    from tracelens.files.executors import open_executor
    w, c = time.perf_counter(), time.process_time()
    with open_executor("processes", jobs=int(sys.argv[2])) as executor:
        result = compare_ranks(find_traces([sys.argv[1]]), executor=executor)
    wall, parent = time.perf_counter() - w, time.process_time() - c
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open("/proc/self/status") as status:
        peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) / 1024
    kept = sum(s.nbytes for s in result.ranks.values()) / 1e6
    cpu = children.ru_utime + children.ru_stime
    print(json.dumps([wall, cpu, parent, peak, kept, len(result.ranks), len(result.frames["nccl_long"])]))
if __name__ == "__main__":
    main()
"""


def write_templates(folder: Path, megabytes: float) -> list[bytes]:
    """The JSON of ``TEMPLATES`` ranks, each of about the size."""
    from planted import Job

    options = {"ranks": TEMPLATES, "ranks_per_host": 8, "steps": 4, "rounds": 20, "straggler": 5, "exchange_tb_s": 0.3}
    sizes = [Job(**options, padding=padding).write(folder)[0].stat().st_size for padding in (0, 20)]
    padding = max(0, round((megabytes * 1e6 - sizes[0]) / ((sizes[1] - sizes[0]) / 20)))
    paths = Job(**options, padding=padding).write(folder)
    texts = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    return texts


def widened(text: bytes, rank: int, ranks: int) -> bytes:
    """A template as ``rank`` of ``ranks``: its world group is all of them, its pair its own."""
    template = rank % TEMPLATES
    pair, own = template - template % 2, rank - rank % 2
    small, large = json.dumps(list(range(TEMPLATES))).encode(), json.dumps(list(range(ranks))).encode()
    head, found, rest = text.partition(b'"traceEvents"')
    info = json.loads(head.rstrip().rstrip(b",") + b"}")["distributedInfo"]
    info |= {"rank": rank, "world_size": ranks}
    info["pg_config"] = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(ranks))},
        {
            "pg_name": "ep",
            "pg_desc": "EXPERT_MODEL_PARALLEL_GROUP",
            "ranks": list(range(own - own % 8, own - own % 8 + 8)),
        },
    ]
    rest = rest.replace(b'"Process Group Ranks": "' + small + b'"', b'"Process Group Ranks": "' + large + b'"')
    rest = rest.replace(b'"Group size": 8', b'"Group size": %d' % ranks)
    rest = rest.replace(b'"[%d, %d]"' % (pair, pair + 1), b'"[%d, %d]"' % (own, own + 1))
    head = json.dumps({"host_name": f"node-{rank // 8}", "distributedInfo": info}).encode()
    return head[:-1] + b"," + found + rest


def run(code: str, *arguments: str) -> list[float]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        # Spawned workers read the script again, so it has to be a file
        script.write(code)
        script.flush()
        command = [sys.executable, script.name, *arguments]
        environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: list[float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Prints one line per number of ranks; exit 1 where the largest misses what is asked of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the traces (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        texts = write_templates(folder, args.megabytes)
        size = sum(map(len, texts)) / len(texts) / 1e6
        per_rank: list[float] = []
        holds = True
        for ranks in sorted(args.ranks):
            job = folder / f"job{ranks}"
            job.mkdir(exist_ok=True)
            for rank in range(ranks):
                path = job / f"rank{rank}.json.gz"
                if not path.exists():
                    content = gzip.compress(widened(texts[rank % TEMPLATES], rank, ranks), 1, mtime=0)
                    path.write_bytes(content)
            before = run(_LOAD, str(job), str(args.jobs), "0")
            wall, cpu, parent, peak, kept, read, calls = run(_COMPARE, str(job), str(args.jobs))
            after = run(_LOAD, str(job), str(args.jobs), "1")
            wall_one, cpu_one = ((a + b) / 2 for a, b in zip(before, after, strict=True))
            ratio = (cpu + parent) / ranks / cpu_one
            holds = read == ranks and peak < MOST_PARENT_MB and ratio < MOST_RATIO
            per_rank.append(ratio)
            print(
                f"{ranks:4} ranks of {size:.1f} MB: a load {wall_one:.2f} s wall {cpu_one:.2f} s CPU; "
                f"job {wall:.1f} s wall, {cpu:.1f} s CPU in workers, {parent:.1f} s in the parent; "
                f"CPU per rank {ratio:.2f}x a load; parent peak {peak:.0f} MB; "
                f"columns {kept:.1f} MB; {int(calls):,} calls",
                flush=True,
            )
            if args.keep is None:
                for path in job.iterdir():
                    path.unlink()
    growth = per_rank[-1] / per_rank[0]
    print(f"CPU per rank, in loads, grows {growth:.2f}x from {min(args.ranks)} to {max(args.ranks)} ranks")
    sys.exit(0 if holds and growth < MOST_GROWTH else 1)


if __name__ == "__main__":
    main()
