"""How long one projection takes: the first in a process after imports, later ones, and by the number of GPUs.

python benchmarks/project_time.py
"""

from __future__ import annotations

import subprocess
import sys
import time

MODELS = (
    ("llama3.1-8b", "dgx-h100", {"tp": 2, "dp": 4, "micro_batches": 16}),
    ("llama3.1-70b", "dgx-h100", {"dp": 64, "zero": 3, "micro_batches": 2}),
    ("llama3.1-405b", "dgx-h100", {"tp": 8, "pp": 16, "vpp": 4, "dp": 8, "micro_batches": 64}),
    ("megatron-1t", "dgx-a100", {"tp": 8, "pp": 64, "dp": 1, "micro_batches": 512}),
    ("deepseek-v3", "gb200-nvl72", {"pp": 16, "dp": 128, "ep": 64, "micro_batches": 64, "ep_overlap": True}),
)
REPEATS = 5


def once(model: str, cluster: str, degrees: dict[str, int]) -> float:
    """Seconds of one projection, of a model and a cluster that are read anew."""
    from tracelens.backends.base import System
    from tracelens.predict.projection.step import project
    from tracelens.predict.workload.model_config import ModelConfig
    from tracelens.predict.workload.parallel_config import ParallelConfig

    parallel = ParallelConfig(**{"sequence_parallel": degrees.get("tp", 1) > 1, **degrees})  # type: ignore[arg-type]
    start = time.perf_counter()
    project(ModelConfig.load(model), parallel, System.load(cluster), sequence=4096)
    return time.perf_counter() - start


def main() -> None:
    print("| model | GPUs | tasks | first, ms | later, ms |\n|---|---|---|---|---|")
    for model, cluster, degrees in MODELS:
        code = (
            f"import sys; sys.path.insert(0, {sys.path[0]!r}); import project_time, tracelens.predict.projection.step; "
            f"print(project_time.once{model, cluster, degrees!r})"
        )
        first = min(
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
            for _ in range(3)
        )
        later = min(once(model, cluster, degrees) for _ in range(REPEATS))
        ranks, tasks = 1, 2
        for degree in ("tp", "pp", "dp"):
            ranks *= degrees.get(degree, 1)
        for count in ("pp", "vpp", "micro_batches"):
            tasks *= degrees.get(count, 1)
        print(f"| {model} | {ranks} | {tasks} | {first * 1e3:.0f} | {later * 1e3:.0f} |")
    print("\nThe same layout on more replicas, ms (the least of several):")
    for replicas in (4, 128):
        layout = {"tp": 8, "pp": 16, "vpp": 4, "dp": replicas, "micro_batches": 64}
        took = min(once("llama3.1-405b", "dgx-h100", layout) for _ in range(2 * REPEATS))
        print(f"{8 * 16 * replicas} GPUs: {took * 1e3:.0f}")


if __name__ == "__main__":
    main()
