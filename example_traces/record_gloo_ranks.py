"""Record two ranks that exchange tensors with PyTorch's gloo backend on CPUs: one trace per rank.

    python -m example_traces.record_gloo_ranks [FOLDER]

Needs PyTorch. Times are measured, so they differ each time. Rank 1 sleeps before every step, so it arrives last at
the step's first collective. The machine's name is left out of the files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "gloo_ranks2"
RANKS, STEPS, ELEMENTS, LATE_S = 2, 3, 1 << 20, 0.02
#: Of the metadata only what says how the recording was made
KEPT = ("schemaVersion", "record_shapes", "distributedInfo", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents")


def exchange(rank: int, folder: str, port: int) -> None:
    """Every kind of collective, ``STEPS`` times, under the profiler."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    x = torch.ones(ELEMENTS)
    received, gathered = torch.empty_like(x), [torch.empty_like(x) for _ in range(RANKS)]
    splits = [ELEMENTS // 4, ELEMENTS - ELEMENTS // 4]
    splits = splits if rank == 0 else splits[::-1]
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for step in range(STEPS):
            with record_function(f"iteration {step}"):
                time.sleep(LATE_S * rank)
                dist.all_reduce(x)
                dist.all_gather(gathered, x)
                dist.broadcast(x, src=0)
                dist.all_to_all_single(received, x, splits, splits)
                if rank == 0:
                    dist.send(x, 1)
                else:
                    dist.recv(x, 0)
                dist.all_reduce(x, async_op=True).wait()
                dist.barrier()
    profiler.export_chrome_trace(str(Path(folder) / f"rank{rank}.json"))
    dist.destroy_process_group()


def record(folder: Path) -> list[Path]:
    """Writes ``rank0.json.gz`` and ``rank1.json.gz`` to ``folder``."""
    import socket

    import torch.multiprocessing

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.spawn(exchange, (scratch, port), nprocs=RANKS)
        for rank in range(RANKS):
            trace = json.loads((Path(scratch) / f"rank{rank}.json").read_text())
            text = json.dumps({key: trace[key] for key in KEPT if key in trace} | {"host_name": "one machine"})
            path = folder / f"rank{rank}.json.gz"
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
            paths.append(path)
    return paths


def main() -> None:
    """Records both ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    for path in record(parser.parse_args().folder):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
