"""What ``tracelens.profile`` costs over ``torch.profiler`` itself: the same steps by each in turn (needs PyTorch).

    python benchmarks/recording.py [--pairs 15] [--steps 10]

Both record the same three of ``--steps`` steps with shapes, and write a compressed file; each pair runs in either order
in turn. CPU seconds of the loop and of writing; the ratio is of the sums, with the quartiles of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Target: cost over that of torch.profiler itself.
MOST_RATIO = 1.02


def main() -> int:
    """The measurement; 1 where the target is missed."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    import tracelens

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    weights = [torch.randn(256, 256, requires_grad=True) for _ in range(8)]
    batch = torch.randn(64, 256)

    def train_step() -> None:
        value = batch
        for weight in weights:
            value = (value @ weight).relu()
        value.sum().backward()

    def recorded(make: Callable[[Path], Any]) -> float:
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            with make(Path(folder)) as recorder:
                for _ in range(asked.steps):
                    train_step()
                    recorder.step()
            written = list(getattr(recorder, "files", ())) or list(Path(folder).iterdir())
            cost = time.process_time() - began
            assert len(written) == 1
        return cost

    def plain(folder: Path) -> Any:
        return profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=2, warmup=2, active=3, repeat=1),
            record_shapes=True,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(folder / "rank0.json.gz")),
        )

    def ours(folder: Path) -> Any:
        return tracelens.profile(folder, skip=2, warmup=2, steps=3, limit_mb=None)

    for make in (plain, ours):
        recorded(make)
    pairs = []
    for number in range(asked.pairs):
        first, second = (plain, ours) if number % 2 else (ours, plain)
        costs = {first: recorded(first), second: recorded(second)}
        pairs.append((costs[ours], costs[plain]))
    ratio = sum(mine for mine, _ in pairs) / sum(theirs for _, theirs in pairs)
    low, middle, high = statistics.quantiles([mine / theirs for mine, theirs in pairs], n=4)
    print(f"tracelens.profile {ratio:.3f} x torch.profiler (pairs: {low:.3f}, median {middle:.3f}, {high:.3f})")
    return 0 if ratio <= MOST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
