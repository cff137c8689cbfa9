"""A job of four ranks on CPUs that records itself: ``python recorded_job.py FOLDER when rounds [ranks]``.

``when``: torch.distributed is set up ``before`` the recording begins, ``inside`` it, or ``never``. Each process is one
of the ranks where a launcher says so (RANK), else starts four.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Of the Python that runs the tests: what tracelens imports, where PyTorch's Python has not got it
sys.path += os.environ.get("TRACELENS_PACKAGES", "").split(os.pathsep)

import tracelens

RANKS = 4


def work(rank: int, folder: str, when: str, rounds: int, ranks: tuple[int, ...]) -> None:
    """What a rank does: some steps with an all-reduce each, recorded ``rounds`` times, each into a folder of its own."""
    store = f"file://{folder}.store" if "RANK" not in os.environ else "env://"
    for number in range(rounds):
        if when == "before" and number == 0:
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
        with tracelens.profile(Path(folder, str(number)), skip=1, warmup=1, steps=1, ranks=ranks) as recorder:
            if when == "inside" and number == 0:
                dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
            for _ in range(8):
                product = torch.ones(64, 64) @ torch.ones(64, 64)
                if dist.is_initialized():
                    dist.all_reduce(product)
                recorder.step()
    if dist.is_initialized():
        # Or a rank that is done closes connections that others still use
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    folder, when, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ranks = tuple(int(text) for text in sys.argv[4:])
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), folder, when, rounds, ranks)
        # Ends as a rank of mp.spawn does. A gloo thread that still holds a tensor when Python takes itself down aborts
        # the process, with or without tracelens: https://github.com/pytorch/pytorch/pull/179291
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        os._exit(0)
    else:
        mp.spawn(work, (folder, when, rounds, ranks), nprocs=RANKS)
