"""Many served configurations at once: rows in, estimates or a reason out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracelens.backends import System
from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files.atomic_write import whole_file
from tracelens.serving.costs import StepCost
from tracelens.serving.deployment import Deployment, Engine, Parallelism, Precision
from tracelens.serving.requests import Requests
from tracelens.serving.simulation import Options, Outcome, simulate
from tracelens.workload import ModelConfig

FS_PER_MS = 10**12
NEEDED = ("model_path", "system", "isl", "osl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row: what is served, and ``concurrency`` requests of equal lengths in flight at any time."""

    model: str
    system: str
    precision: str | None
    input_tokens: int
    output_tokens: int
    concurrency: int
    parallelism: Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class PointEstimate:
    """Steady-state means, or the reason why there is none."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    reason: str = ""


def point_of(row: Mapping[str, Any]) -> Point:
    """A row of serving_points.csv's columns; UsageError says what a row lacks."""
    if str(row.get("mode") or "agg") != "agg":
        raise UsageError(f"--batch does not simulate mode {row.get('mode')}; use --prefill-replicas")
    name = "batch_size" if _is_missing(row.get("concurrency")) else "concurrency"
    precision = row.get("precision")
    return Point(
        model=str(row["model_path"]),
        system=str(row["system"]),
        precision=precision if isinstance(precision, str) and precision else None,
        input_tokens=_whole(row, "isl"),
        output_tokens=_whole(row, "osl"),
        concurrency=_whole(row, name),
        parallelism=Parallelism(
            tp=_whole(row, "tp_size", 1),
            pp=_whole(row, "pp_size", 1),
            dp=_whole(row, "attention_dp_size", 1),
            ep=_whole(row, "moe_ep_size", 1),
        ),
    )


def _whole(row: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value: Any = row.get(name)
    if _is_missing(value) or value == "":
        if default is None:
            raise UsageError(f"{name} is empty")
        return default
    try:
        number = int(float(value))
    except (OverflowError, ValueError):
        raise UsageError(f"{name} is not a number: {value!r}") from None
    if number == 0 and default is not None:
        return default
    if number < 1:
        raise UsageError(f"{name} must be at least 1, not {number}")
    return number


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


class PointSimulator:
    """Estimates points; step costs are shared between points that differ in load alone."""

    def __init__(self, engine: Engine, *, backend: str = "roofline", collective: str | None = None) -> None:
        self._engine = engine
        self._backend = backend
        self._collective = collective
        self._costs: dict[tuple[object, ...], StepCost] = {}

    def estimate(self, point: Point) -> PointEstimate:
        """A reason instead of figures where the point cannot be served."""
        try:
            return self._simulated(point)
        except TracelensError as error:
            return PointEstimate(reason=str(error))

    def _simulated(self, point: Point) -> PointEstimate:
        cost = self.cost(point)
        rounds = 3 if point.concurrency >= 32 else 5
        count = max(point.concurrency * rounds, 8)
        requests = Requests(
            arrival_fs=None,
            input_tokens=[point.input_tokens] * count,
            output_tokens=[point.output_tokens] * count,
            concurrency=point.concurrency,
        )
        outcome = simulate(cost.deployment, requests, Options(levels=("low",)), cost=cost)
        if outcome.log.rejected:
            return PointEstimate(reason=next(iter(outcome.log.rejected.values())))
        return steady(outcome, point.concurrency)

    def cost(self, point: Point) -> StepCost:
        """The point's step cost."""
        key = (point.model, point.system, point.precision, point.parallelism)
        found = self._costs.get(key)
        if found is None:
            model = ModelConfig.load(point.model)
            found = self._costs[key] = StepCost(
                Deployment(
                    model=model,
                    system=System.load(point.system),
                    parallelism=point.parallelism,
                    precision=Precision.named(point.precision, model),
                    engine=self._engine,
                    backend=self._backend,
                    collective=self._collective,
                )
            )
        return found


def steady(outcome: Outcome, concurrency: int) -> PointEstimate:
    """Means over requests that neither arrived in the first burst nor ran while the last ones drained."""
    log = outcome.log
    count = len(outcome.requests)
    first, last, arrival = (np.array(part, dtype=np.float64) / FS_PER_MS for part in (log.first, log.last, log.arrival))
    output = np.asarray(outcome.requests.output_tokens)
    inner = slice(concurrency, count - concurrency) if count > 2 * concurrency else slice(0, count)
    ttft = float((first - arrival)[inner].mean())
    made = output[inner] - 1
    tpot = float(((last - first)[inner][made > 0] / made[made > 0]).mean()) if (made > 0).any() else None
    return PointEstimate(ttft_ms=ttft, tpot_ms=tpot)


def read_points(path: Path) -> pd.DataFrame:
    """The rows of a CSV file. InputError where columns are missing."""
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}") from error
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise InputError(f"{path}: no column {', '.join(missing)}")
    return frame


def estimated(
    rows: Sequence[Mapping[str, Any]], engine: Engine, *, backend: str = "roofline"
) -> Iterator[PointEstimate]:
    """An estimate per row, in order."""
    simulator = PointSimulator(engine, backend=backend)
    for row in rows:
        try:
            yield simulator.estimate(point_of(row))
        except UsageError as error:
            yield PointEstimate(reason=str(error))


def batch(path: Path, output: Path, engine: Engine, *, backend: str = "roofline") -> tuple[int, int]:
    """Writes ``path`` with ``ttft_ms_est``, ``tpot_ms_est`` and ``reason`` added; (rows, rows with an estimate)."""
    frame = read_points(path)
    found = list(estimated([dict(row) for _, row in frame.iterrows()], engine, backend=backend))
    for name in ("ttft_ms", "tpot_ms"):
        frame[f"{name}_est"] = [getattr(each, name) for each in found]
    frame["reason"] = [each.reason for each in found]
    with whole_file(output) as file:
        file.write(frame.to_csv(index=False, lineterminator="\n").encode())
    return len(frame), sum(not each.reason for each in found)
