"""Many served configurations at once: rows in, estimates or a reason out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracelens.backends import System
from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files.atomic_write import whole_file
from tracelens.files.data_table import FIRST_ROW, Number, csv_of, is_blank, is_file_name, read_table, shown
from tracelens.serving.costs import StepCost
from tracelens.serving.deployment import Deployment, Engine, Parallelism, Precision
from tracelens.serving.requests import LONGEST, Requests
from tracelens.serving.simulation import Options, Outcome, simulate
from tracelens.workload import ModelConfig

FS_PER_MS = 10**12
#: Requests, tokens and ranks of a row.
_SERVED = Number(least=1, most=LONGEST, whole=True)
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


def point_of(row: Mapping[str, Any], where: str = "") -> Point:
    """A row of serving_points.csv's columns; UsageError, beginning with ``where``, says what a row lacks."""
    for column in ("model_path", "system"):
        if not _name(row, column):
            raise UsageError(f"{where}{column} is empty")
    if is_file_name(_name(row, "system")):
        raise UsageError(f"{where}system names a device or a cluster, not a file: {shown(row['system'])}")
    if _name(row, "mode") not in ("", "agg"):
        raise UsageError(f"--batch does not simulate mode {shown(row['mode'])}; use --prefill-replicas")
    whole = functools.partial(_whole, row, where)
    return Point(
        model=_name(row, "model_path"),
        system=_name(row, "system"),
        precision=_name(row, "precision") or None,
        input_tokens=whole("isl"),
        output_tokens=whole("osl"),
        concurrency=whole("batch_size" if is_blank(row.get("concurrency")) else "concurrency"),
        parallelism=Parallelism(
            tp=whole("tp_size", 1),
            pp=whole("pp_size", 1),
            dp=whole("attention_dp_size", 1),
            ep=whole("moe_ep_size", 1),
        ),
    )


def _whole(row: Mapping[str, Any], where: str, name: str, default: int | None = None) -> int:
    value = row.get(name)
    if default is not None and (is_blank(value) or value == 0):
        return default
    try:
        return _SERVED.count(value, f"{where}{name}")
    except InputError as error:
        raise UsageError(str(error)) from None


def _name(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    return "" if is_blank(value) else str(value).strip()


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
    frame = read_table(path)
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise InputError(f"{path}: no column {', '.join(missing)}")
    return frame


def estimated(
    rows: Sequence[Mapping[str, Any]], engine: Engine, *, backend: str = "roofline"
) -> Iterator[PointEstimate]:
    """An estimate per row, in order."""
    simulator = PointSimulator(engine, backend=backend)
    for number, row in enumerate(rows, FIRST_ROW):
        try:
            yield simulator.estimate(point_of(row, f"row {number}: "))
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
        file.write(csv_of(frame))
    return len(frame), sum(not each.reason for each in found)
