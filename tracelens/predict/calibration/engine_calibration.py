"""An engine's constants from measured requests: host times, and the size of its cache."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.errors import InputError, UsageError
from tracelens.files.data_table import COUNT
from tracelens.files.documents import REPORT, expected, json_of, report_ops
from tracelens.predict.calibration.fitting import coordinate_search
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import Deployment, Engine
from tracelens.predict.serving.metrics import per_request
from tracelens.predict.serving.replica_state import Options
from tracelens.predict.serving.requests import MeasuredRequests, Requests, read_requests
from tracelens.predict.serving.simulation import simulate
from tracelens.types.records import Record


class Errors(Record, frozen=True, kw_only=True):
    """Simulated over measured, minus one, in percent. ``*_mean`` and ``e2e_p50`` compare the figures of the whole part,
    with their sign; ``*_median`` is the median absolute error of a request.
    """

    requests: int
    scheduled_to_first_mean: float
    ttft_mean: float
    tpot_mean: float
    tpot_median: float
    e2e_p50: float
    e2e_median: float


def calibrate(deployment: Deployment, path: Path, *, run: str | None = None, policy: str | None = None) -> Engine:
    """The deployment's engine with constants fitted on a measurement.

    A request file with times: host time per step and sequence, and efficiencies, by simulating the whole run and
    comparing the first half of its requests. A ``report.json``: the host time that its op calls waited for.
    InputError for a file that says neither.
    """
    if path.suffix == ".json":
        found = _from_report(deployment.engine, path)
        if found is not None:
            return found
    measured = read_requests(path, run=run)
    half = len(measured.requests) // 2
    return fit(deployment, measured, slice(0, max(half, 1)), policy=policy)


def fit(deployment: Deployment, measured: MeasuredRequests, part: slice, *, policy: str | None = None) -> Engine:
    """Constants that make the requests of ``part`` right, by coordinate search over a loss of mean relative errors."""
    if measured.first_s is None or measured.last_s is None:
        raise InputError(f"{measured.requests.source}: it has no times of first and last tokens to fit")
    facts = dict(measured.facts)
    engine = dataclasses.replace(
        deployment.engine,
        name=f"fitted on {measured.requests.source}",
        fitted_model=deployment.model.name,
        fitted_device=deployment.system.device.name,
        source=f"{measured.requests.source}, {' '.join(facts.get(key, '') for key in ('gpu', 'model'))}: "
        f"requests {part.start} to {part.stop} of {len(measured.requests)}",
        max_num_seqs=int(float(facts.get("max_num_seqs", deployment.engine.max_num_seqs))),
        max_batched_tokens=int(float(facts.get("max_batched_tokens", deployment.engine.max_batched_tokens))),
    )
    if facts.get("num_kv_tokens"):
        engine = dataclasses.replace(engine, kv_tokens=int(float(facts["num_kv_tokens"])))
    # Where each constant starts, and its first step
    tried = {
        "hbm_efficiency": (0.85, 0.08),
        "compute_efficiency": (0.7, 0.12),
        "step_us": (1000.0, 800.0),
        "sequence_us": (5.0, 8.0),
    }
    if not facts.get("num_kv_tokens"):
        tried["memory_share"] = engine.memory_share, 0.03
    if deployment.parallelism.devices > 1:
        tried["link_efficiency"] = 0.5, 0.15

    def loss(candidate: dict[str, float]) -> float:
        if any(not 0 < value <= 1 for name, value in candidate.items() if name.endswith("efficiency")):
            return float("inf")
        if min(candidate["step_us"], candidate["sequence_us"]) < 0 or candidate.get("memory_share", 0.5) > 0.98:
            return float("inf")
        served = dataclasses.replace(deployment, engine=dataclasses.replace(engine, **candidate))  # type: ignore[arg-type]
        try:
            found = compare(served, measured, part, policy=policy)
        except UsageError:
            return float("inf")
        return (
            abs(found.tpot_mean) + found.tpot_median + abs(found.e2e_p50) + found.e2e_median
            + 0.5 * abs(found.ttft_mean) + 0.1 * abs(found.scheduled_to_first_mean)
        )  # fmt: skip

    compare(dataclasses.replace(deployment, engine=engine), measured, part, policy=policy)
    starts, steps = (dict(zip(tried, column, strict=True)) for column in zip(*tried.values(), strict=True))
    values = coordinate_search(loss, starts, steps)
    rounded = {name: float(f"{value:.4g}") for name, value in values.items()}
    return dataclasses.replace(engine, **rounded)  # type: ignore[arg-type]


def compare(deployment: Deployment, measured: MeasuredRequests, part: slice, *, policy: str | None = None) -> Errors:
    """The whole run simulated, the requests of ``part`` compared."""
    if measured.first_s is None or measured.last_s is None:
        raise InputError(f"{measured.requests.source}: it has no times of first and last tokens to compare with")
    requests: Requests = measured.requests
    outcome = simulate(deployment, requests, Options(policy=policy, levels=("low",)), cost=StepCost(deployment))
    frame = per_request(outcome).iloc[part]
    arrival = np.asarray(requests.arrival_fs or [], dtype=float)[part] / 1e15
    output = np.asarray(requests.output_tokens)[part]
    first, last = np.asarray(measured.first_s)[part], np.asarray(measured.last_s)[part]
    scheduled = arrival if measured.scheduled_s is None else np.asarray(measured.scheduled_s)[part]
    true = {
        "scheduled_to_first_ms": (first - scheduled) * 1e3,
        "ttft_ms": (first - arrival) * 1e3,
        "tpot_ms": np.where(output > 1, (last - first) / np.maximum(output - 1, 1), np.nan) * 1e3,
        "e2e_ms": (last - arrival) * 1e3,
    }

    def mean(name: str) -> float:
        return 100 * (float(np.nanmean(frame[name])) / float(np.nanmean(true[name])) - 1)

    def median(name: str) -> float:
        return 100 * float(np.nanmedian(np.abs(frame[name].to_numpy(dtype=float) / true[name] - 1)))

    return Errors(
        requests=len(frame),
        scheduled_to_first_mean=mean("scheduled_to_first_ms"),
        ttft_mean=mean("ttft_ms"),
        tpot_mean=mean("tpot_ms"),
        tpot_median=median("tpot_ms"),
        e2e_p50=100 * (float(np.nanmedian(frame["e2e_ms"])) / float(np.nanmedian(true["e2e_ms"])) - 1),
        e2e_median=median("e2e_ms"),
    )


def _from_report(engine: Engine, path: Path) -> Engine | None:
    """Host time per op call times the calls of a step, from the gaps that a trace report measured; None for others."""
    document = json_of(path, REPORT)
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("tracelens.report/"):
        return None
    with expected(path, REPORT):
        waits, ratios = _waits_and_ratios(report_ops({"ops": [], **document}))
        step = document.get("step")
        steps = COUNT.count((step.get("count") if isinstance(step, dict) else None) or 1, f"{path}: step.count")
    if not waits and not ratios:
        raise InputError(f"{path}: its ops have neither launch gaps nor estimates to calibrate from")
    share = round(statistics.median(ratios), 4) if ratios else None
    return dataclasses.replace(
        engine,
        name=path.stem,
        source=f"{path.name}: launch gaps of {len(waits)} ops, {steps} steps; median roofline share of {len(ratios)}",
        step_us=round(sum(waits) / steps, 3),
        hbm_efficiency=engine.hbm_efficiency if share is None else share,
        compute_efficiency=engine.compute_efficiency if share is None else share,
    )


def _waits_and_ratios(ops: Iterable[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Host time (us) of the calls of each op, and of the roofline over the measured time, where a report has them."""
    waits, ratios = [], []
    for op in ops:
        gap, count = op.get("launch_gap_us"), op.get("operation_count")
        if isinstance(gap, (int, float)) and isinstance(count, int):
            waits.append(gap * count)
        took, least = op.get("kernel_us_mean"), op.get("roofline_us")
        if isinstance(took, (int, float)) and isinstance(least, (int, float)) and took > 0 and least > 0:
            ratios.append(min(least / took, 1.0))
    return waits, ratios
