"""Measures the serving simulation: how fast it is, and how far from measured requests and points.

python benchmarks/serve.py speed
python benchmarks/serve.py requests ../shared/data/vllm_requests.csv
python benchmarks/serve.py points ../shared/data/serving_points.csv
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import resource
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.backends import System
from tracelens.errors import TracelensError
from tracelens.laboratory.configuration_rows import PointSimulator, ServingPoint, point_of, read_points
from tracelens.predict.calibration.engine_calibration import compare, fit
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import Deployment, Engine, Parallelism
from tracelens.predict.serving.requests import Arrivals, Lengths, Workload, read_requests
from tracelens.predict.serving.simulation import Options, simulate
from tracelens.predict.workload import ModelConfig

#: gpu in the file -> (model, tensor-parallel devices), from its own columns.
RUNS = {"RTX4090": ("llama3.1-8b", 1), "RTXPRO6000": ("qwen3-32b", 2)}
#: Limits of engines that the rows do not state; the constants are fitted.
LIMITS = Engine(max_num_seqs=1024, max_batched_tokens=8192)
#: Whose times are scaled: its constants were fitted on kernels of these devices, not on served models.
BACKEND = "tile"
#: Two constants: with host times per sequence and prompt as well, models that were left out came out worse.
SCALE = tuple(0.7 + 0.025 * index for index in range(17))
STEP_MS = tuple(0.25 * index for index in range(21))


def speed(count: int) -> None:
    """Events and requests per CPU second: 512 in, 128 out, one replica of an 8B model."""
    deployment = Deployment(model=ModelConfig.load("llama3.1-8b"), system=System.load("h100-sxm"))
    cost = StepCost(deployment)
    for rate in (8.0, 30.0):
        for level, most in (("high", 100), ("medium", count), ("low", count)):
            requests = Workload(
                arrivals=Arrivals(rate=rate), input=Lengths(mean=512), output=Lengths(mean=128), count=most, seed=1
            ).generate()
            times = []
            for _ in range(3):
                before = time.process_time()
                run = simulate(deployment, requests, Options(levels=(level,)), cost=cost)
                times.append(time.process_time() - before)
            cpu_s = statistics.median(times)
            print(f"rate {rate:g}/s {level:<7} {run.events / cpu_s:>12,.0f} events/s {most / cpu_s:>10,.0f} requests/s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


def requests(path: Path) -> None:
    """Constants fitted on the first 150 arrivals of each run, scored on the later ones; the whole run simulated."""
    for gpu, (model, tp) in RUNS.items():
        measured = read_requests(path, run=gpu)
        deployment = Deployment(model=ModelConfig.load(model), system=System.load(gpu), parallelism=Parallelism(tp=tp))
        engine = fit(deployment, measured, slice(0, 150))
        fitted = dataclasses.replace(deployment, engine=engine)
        print(engine.to_toml())
        for title, one in (("plain", dataclasses.replace(deployment, engine=_limits(engine))), ("fitted", fitted)):
            for part in (slice(0, 150), slice(150, 300)):
                errors = compare(one, measured, part)
                shown = ", ".join(
                    f"{name} {value:+.1f}" for name, value in dataclasses.asdict(errors).items() if name != "requests"
                )
                print(f"{gpu} {title} {part.start}-{part.stop}: {shown}")


def _limits(engine: Engine) -> Engine:
    """The same limits without fitted constants."""
    return Engine(
        max_num_seqs=engine.max_num_seqs, max_batched_tokens=engine.max_batched_tokens, kv_tokens=engine.kv_tokens
    )


def points(path: Path) -> None:
    """vLLM and TensorRT-LLM leave one model out, SGLang one degree of tensor parallelism; errors of those left out."""
    frame = read_points(path)
    rows = [dict(row) for _, row in frame.iterrows()]
    known = [(row, point_of(row)) for row in rows]
    surrogate = _Surrogate()
    plain, tiled = PointSimulator(LIMITS), PointSimulator(LIMITS, backend=BACKEND)
    scores: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for backend in ("vllm", "trtllm", "sglang"):
        mine = [(row, point) for row, point in known if row["backend"] == backend]
        split = (lambda pair: str(pair[1].parallelism.tp)) if backend == "sglang" else (lambda pair: pair[1].model)
        for left_out in sorted({split(pair) for pair in mine}):
            engine = surrogate.fitted([pair for pair in mine if split(pair) != left_out])
            simulator = PointSimulator(engine, backend=BACKEND)
            for row, point in (pair for pair in mine if split(pair) == left_out):
                ours, roofline, tile = (each.estimate(point) for each in (simulator, plain, tiled))
                if ours.reason or roofline.reason or not ours.tpot_ms or not roofline.tpot_ms or not tile.tpot_ms:
                    print("no estimate", row["id"], ours.reason or roofline.reason)
                    continue
                scores[backend, left_out].append(
                    (
                        ours.tpot_ms / row["tpot_ms"],
                        roofline.tpot_ms / row["tpot_ms"],
                        (ours.ttft_ms or 0) / row["ttft_ms"],
                        (roofline.ttft_ms or 0) / row["ttft_ms"],
                        tile.tpot_ms / row["tpot_ms"],
                    )
                )
            print(
                backend,
                "without",
                left_out,
                {k: v for k, v in dataclasses.asdict(engine).items() if k.endswith(("_us", "scale"))},
            )
            _print(f"{backend} on {left_out}", scores[backend, left_out])
    for backend in ("vllm", "trtllm", "sglang"):
        _print(backend, [each for key, found in scores.items() if key[0] == backend for each in found])
    _print("all", [each for found in scores.values() for each in found])


def _print(title: str, ratios: list[tuple[float, ...]]) -> None:
    if not ratios:
        return
    columns = np.array(ratios)
    errors = 100 * np.abs(columns - 1)
    medians, means = np.median(errors, axis=0), errors.mean(axis=0)
    shown = [
        f"{name} {medians[at]:.1f} % (mean {means[at]:.1f})"
        for name, at in (("fitted", 0), ("tile", 4), ("roofline", 1))
    ]
    print(
        f"{title:<40} {len(ratios):>4}  TPOT {', '.join(shown)}; TTFT {medians[2]:.1f} %, roofline {medians[3]:.1f} %",
        flush=True,
    )


class _Surrogate:
    """TPOT in closed form, to fit on: one decode step at mid-answer, and the prompts of the others in between."""

    def __init__(self) -> None:
        self._costs = PointSimulator(LIMITS, backend=BACKEND)
        self._parts: dict[ServingPoint, tuple[float, float] | None] = {}

    def fitted(self, pairs: list[tuple[dict[str, Any], ServingPoint]]) -> Engine:
        """The constants of a grid with the least mean, over models and degrees, of median relative errors."""
        known = [(row, point, parts) for row, point in pairs if (parts := self.parts(point)) is not None]
        data = np.array([parts for _, _, parts in known])
        target = np.array([row["tpot_ms"] for row, _, _ in known])
        kinds = np.array([f"{point.model} {point.parallelism.tp}" for _, point, _ in known])
        groups = [np.flatnonzero(kinds == kind) for kind in sorted(set(kinds.tolist()))]
        best = (np.inf, LIMITS)
        for scale, step in itertools.product(SCALE, STEP_MS):
            predicted = scale * data[:, 0] + data[:, 1] + step
            error = np.abs(predicted / target - 1)
            loss = float(np.mean([np.median(error[group]) for group in groups]))
            if loss < best[0] - 1e-9:
                engine = dataclasses.replace(LIMITS, device_scale=round(scale, 3), step_us=1e3 * step)
                best = loss, engine
        return best[1]

    def parts(self, point: ServingPoint) -> tuple[float, float] | None:
        """(compute ms, exchanges ms) of a token; None where the point cannot be served."""
        if point not in self._parts:
            try:
                cost = self._costs.cost(point)
            except TracelensError:
                self._parts[point] = None
                return None
            active = point.concurrency
            context = active * (point.input_tokens + point.output_tokens // 2)
            line = cost.decode_line(active, context)
            decode, handed = line.fixed - line.exchange + line.slope * context, line.exchange
            prompt, exchange = cost.mixed_time(point.input_tokens, [(point.input_tokens, 0)], 1, 1, 0, 0)
            others = (active - 1) / point.output_tokens
            compute_ms, exchange_ms = (decode + others * prompt) / 1e12, (handed + others * exchange) / 1e12
            self._parts[point] = compute_ms, exchange_ms
        return self._parts[point]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "requests", "points"))
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=20_000, help="requests of the speed run")
    args = parser.parse_args()
    if args.what == "speed":
        speed(args.count)
    elif args.path is None:
        parser.error("a file of measurements is needed")
    else:
        (requests if args.what == "requests" else points)(args.path)


if __name__ == "__main__":
    main()
