"""What a run says: latencies, throughput, goodput, occupancy and energy as numbers and frames, and the timeline of a
device as a recorded trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.backends.roofline_and_tile import over_idle_uj
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.hardware.power import Facility, FacilityEnergy, power_constants
from tracelens.hardware.recognition import recorded_properties
from tracelens.perf_models import PerfModel, recorded_signature
from tracelens.predict.serving.costs import FS_PER_US, Mix, StepCost
from tracelens.predict.serving.replica_state import RanSteps, Step, StepLog
from tracelens.predict.serving.simulation import Outcome
from tracelens.trace.writer import HostThread, RecordedKernel, RecordedLaunch, RecordedOp, RecordedTrace, write_trace
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature
from tracelens.types.units import MS_PER_S, duration_s

FS_PER_MS = 10**12
FS_PER_S = 10**15
#: Nothing is asked of the data center.
FACILITY = Facility()
_PERCENTILES = (50, 90, 99)
Floats = npt.NDArray[np.float64]


class Objectives(Record, frozen=True, kw_only=True):
    """Limits in ms that a request must keep to count as good; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """``ttft=500ms,tpot=50ms``. UsageError for anything else, a limit without its unit too."""
        found: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name not in ("ttft", "tpot", "e2e"):
                raise UsageError.unknown("objective", name, ("ttft", "tpot", "e2e"))
            found[f"{name}_ms"] = duration_s(value) * MS_PER_S
        return cls(**found)

    def __str__(self) -> str:
        """``TTFT 450 ms, TPOT 40 ms``."""
        given = ((name, getattr(self, f"{name}_ms")) for name in ("ttft", "tpot", "e2e"))
        return ", ".join(f"{name.upper()} {limit:,.6g} ms" for name, limit in given if limit is not None)


def per_request(outcome: Outcome) -> pd.DataFrame:
    """One row per request; times in ms, empty for what did not happen. TPOT needs at least two tokens."""
    log, requests = outcome.log, outcome.requests
    columns = {}
    for name in ("arrival", "scheduled", "first", "last"):
        times = np.array(getattr(log, name), dtype=np.float64)
        columns[name] = np.where(times < 0, np.nan, times / FS_PER_MS)
    output = np.asarray(requests.output_tokens, dtype=np.int64)
    rejected = np.zeros(len(output), dtype=bool)
    rejected[list(log.rejected)] = True
    first, last, arrival = columns["first"], columns["last"], columns["arrival"]
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(output > 1, (last - first) / (output - 1), np.nan)
    session = {"session": np.asarray(requests.sessions, dtype=np.int64)} if requests.sessions else {}
    return pd.DataFrame(
        {
            "request": np.arange(len(output)),
            **session,
            "input_tokens": np.asarray(requests.input_tokens, dtype=np.int64),
            "output_tokens": output,
            "arrival_ms": arrival,
            "queue_ms": columns["scheduled"] - arrival,
            "scheduled_to_first_ms": first - columns["scheduled"],
            "ttft_ms": first - arrival,
            "tpot_ms": tpot,
            "e2e_ms": last - arrival,
            "preempted": np.array(log.preempted, dtype=np.int64),
            "rejected": rejected,
        }
    )


def per_step(outcome: Outcome) -> pd.DataFrame:
    """The time series, one row per step and replica; empty unless the run was asked for it."""
    names = ("time_ms", "decoding", "waiting", "prefilling", "context_tokens", "blocks_in_use")
    frames = []
    for index, steps in enumerate(outcome.steps):
        frame = pd.DataFrame(steps.series or [], columns=list(names))
        frame["time_ms"] = frame["time_ms"].astype(float) / FS_PER_MS
        frame.insert(0, "replica", index)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def served_requests(outcome: Outcome, *, settled: bool = False) -> pd.DataFrame:
    """``per_request`` without rejected ones; ``settled``: of a closed loop those that neither came with the first ones
    nor finished while the load fell.
    """
    frame = per_request(outcome)
    if settled:
        count, users = len(frame), outcome.requests.concurrency or 1
        frame = frame.sort_values("arrival_ms", kind="stable").iloc[users : max(count - users, users + 1)]
    return frame[~frame["rejected"]]


def summary(
    outcome: Outcome,
    objectives: Objectives | None = None,
    *,
    price_per_gpu_hour: float | None = None,
    facility: Facility = FACILITY,
) -> dict[str, float | int | None]:
    """Every figure of a run by name, units in the names; None where it is not determined.

    The window is the whole run, from the first arrival to the last token: warm-up and drain are part of it. Energy is
    that of all devices: what their steps draw (``energy_of``) and what waiting ones do, with ``power_w_per_gpu``; where
    nobody measured energies, all devices at their power limits all the time.
    """
    frame = per_request(outcome)
    served = frame[~frame["rejected"]]
    first_arrival = float(frame["arrival_ms"].min()) if len(frame) else 0.0
    end = float((served["arrival_ms"] + served["e2e_ms"]).max()) if len(served) else first_arrival
    window_s = (end - first_arrival) / 1e3
    figures: dict[str, float | int | None] = {
        "submitted": len(frame),
        "completed": len(served),
        "rejected": int(frame["rejected"].sum()),
        "preempted": int(frame["preempted"].sum()),
        "window_s": window_s,
    }
    for name in ("ttft_ms", "queue_ms", "scheduled_to_first_ms", "tpot_ms", "e2e_ms"):
        figures |= _statistics(name, served[name].to_numpy(dtype=np.float64))
    figures |= _gap_statistics(outcome)
    output, given = int(served["output_tokens"].sum()), int(served["input_tokens"].sum())
    figures |= {
        "requests_per_s": _over(len(served), window_s),
        "output_tokens_per_s": _over(output, window_s),
        "total_tokens_per_s": _over(output + given, window_s),
    }
    if objectives is not None:
        good = within(served, objectives)
        figures["goodput_requests_per_s"] = _over(int(good.sum()), window_s)
        figures["good_share"] = _over(int(good.sum()), len(served))
    figures |= {
        "mean_waiting": _over(float(served["queue_ms"].sum()), window_s * 1e3),
        "mean_in_system": _over(float(served["e2e_ms"].sum()), window_s * 1e3),
        **_load(outcome, window_s),
    }
    energy = energy_of(outcome)
    if energy is not None:
        joules = energy.waiting_w * window_s + energy.over_j
        figures["energy_j_per_output_token"] = _over(joules, output)
        if not energy.is_limit:
            figures["power_w_per_gpu"] = _over(joules / outcome.devices, window_s)
        figures |= facility_figures(facility.of(joules, energy.host_w, window_s, output))
    if price_per_gpu_hour is not None:
        spent = price_per_gpu_hour * outcome.devices * window_s / 3600
        figures["cost_per_million_output_tokens"] = _over(spent * 1e6, output)
        figures["cost_per_million_tokens"] = _over(spent * 1e6, output + given)
    return figures


def facility_figures(found: FacilityEnergy | None) -> dict[str, float | int | None]:
    """By name, those that are known."""
    if found is None:
        return {}
    values = (found.j_per_token, found.usd_per_mtoken, found.co2_g_per_mtoken)
    return {name: value for name, value in zip(OF_FACILITY, values, strict=True) if value is not None}


#: What a token takes with all that stands around the devices, and its price.
OF_FACILITY = (
    "facility_j_per_output_token", "electricity_usd_per_million_output_tokens", "co2_g_per_million_output_tokens",
)  # fmt: skip


def _load(outcome: Outcome, window_s: float) -> dict[str, float | int | None]:
    """How full the replicas were, and what they did."""
    steps, time_fs = outcome.steps, window_s * FS_PER_S
    return {
        "mean_batch": _over(sum(log.decoded for log in steps), sum(log.decode_steps for log in steps)),
        "mean_context_tokens": _over(sum(log.context_time for log in steps), time_fs),
        "kv_pool_tokens": outcome.pool_tokens,
        "kv_peak_tokens": max(outcome.peak_blocks, default=0) * outcome.block_tokens,
        "prefill_tokens": sum(log.prefill_tokens for log in steps),
        "cached_prompt_tokens": sum(log.cached_tokens for log in steps),
        **_tiers(outcome),
        "utilization": _over(sum(log.busy for log in steps), time_fs * len(steps) * outcome.stages),
        "steps": sum(log.steps for log in steps),
        "events": outcome.events,
        "compute_events": sum(log.compute_events for log in steps),
        "exchange_events": sum(log.exchange_events for log in steps),
        "transfer_events": sum(log.transfer_events for log in steps),
        "devices": outcome.devices,
    }


def _tiers(outcome: Outcome) -> dict[str, float | int | None]:
    """Of the cached prompt tokens, those from host memory, and those that disks gave to it; where there are such."""
    found: dict[str, float | int | None] = {}
    if outcome.requests.sessions and any(log.host_tokens for log in outcome.steps):
        found["host_prompt_tokens"] = sum(log.host_tokens for log in outcome.steps)
    if any(log.disk_tokens for log in outcome.steps):
        found["disk_prompt_tokens"] = sum(log.disk_tokens for log in outcome.steps)
    return found


class ServerEnergy(Record, frozen=True, kw_only=True):
    """What all devices of a run draw, without their hosts, NICs and fans: ``waiting_w`` W as long as it lasts, and
    ``over_j`` J more in its steps. ``is_limit``: it is the devices' limits. ``host_w``: of their hosts, NICs and fans,
    None where unknown.
    """

    waiting_w: float
    over_j: float = 0.0
    host_w: float | None = None
    is_limit: bool = False


#: Steps of a kind whose power is computed, each for as much of the time.
_PICKED = 8


def energy_of(outcome: Outcome, start: float = -math.inf, end: float = math.inf) -> ServerEnergy | None:
    """By what the steps of a run compute, those between two times in fs; the limits of its devices where nobody
    measured energies of one of them, None where a limit is unknown too.
    """
    waiting = limits = over_j = host_w = 0.0
    for cost, logs in _by_cost(outcome):
        devices, device = cost.deployment.parallelism.devices * len(logs), cost.system.device
        constants = power_constants(device)
        if device.tdp_w is None:
            return None
        limits += device.tdp_w * devices
        host_w += math.nan if cost.system.host_w is None else cost.system.host_w * devices
        waiting += math.nan if constants is None else constants.idle_w * devices
        for kind in ([log.decoding for log in logs], [log.prompts for log in logs]):
            times_fs = np.concatenate([each.times_fs(start, end) for each in kind])
            if constants is not None and times_fs.any():
                runs = [ran for each in kind for ran in each.kept]
                over_j += times_fs.sum() / FS_PER_S * over_waiting_w(cost, runs, times_fs)
    hosts = host_w if math.isfinite(host_w) else None
    if math.isfinite(waiting + over_j):
        return ServerEnergy(waiting_w=waiting, over_j=over_j, host_w=hosts)
    return ServerEnergy(waiting_w=limits, is_limit=True, host_w=hosts)


def energies_of(outcome: Outcome) -> str:
    """The devices whose measured energies ``energy_of`` takes."""
    names = set()
    for device in (cost.system.device for cost in outcome.costs):
        constants = power_constants(device)
        other = None if constants is None else constants.carried_from
        names.add(device.label if other is None else HardwareSpec.load(other).label)
    return " and ".join(sorted(names))


def _by_cost(outcome: Outcome) -> list[tuple[StepCost, list[StepLog]]]:
    """Replicas that are alike, by their logs."""
    found: dict[int, tuple[StepCost, list[StepLog]]] = {}
    for cost, log in zip(outcome.costs, outcome.steps, strict=True):
        found.setdefault(id(cost), (cost, []))[1].append(log)
    return list(found.values())


def over_waiting_w(cost: StepCost, runs: Sequence[RanSteps], times_fs: Floats) -> float:
    """W that the devices of a replica draw in these steps over what waiting ones do: the mean of steps that stand for
    as much of the time each, short and long ones; NaN where energies are unknown.
    """
    lengths_fs = np.array([ran.step_fs for ran in runs])
    order = np.argsort(lengths_fs, kind="stable")
    ends = np.cumsum(times_fs[order])
    at = np.searchsorted(ends, ends[-1] * (np.arange(_PICKED) + 0.5) / _PICKED)
    places, counts = np.unique(order[np.minimum(at, len(order) - 1)], return_counts=True)
    joules = over_waiting_j(cost, [runs[place].middle for place in places.tolist()])
    return float(np.average(joules / lengths_fs[places] * FS_PER_S, weights=counts))


def over_waiting_j(cost: StepCost, mixes: Sequence[Mix]) -> Floats:
    """J that the devices of a replica draw in each step over what waiting ones do; NaN where energies are unknown.

    A step draws what its kernels do in the mean for as long as it computes: what an engine adds to them is mostly small
    kernels too, and ML.ENERGY's servers drew about as much in it. Exchanges that nothing hides wait, and devices whose
    experts have fewer tokens than others'.
    """
    constants, device = power_constants(cost.system.device), cost.system.device
    if constants is None:
        return np.full(len(mixes), np.nan)
    steps, models, counts, times = zip(*cost.step_operations(mixes, is_mean=True), strict=True)
    times_us = np.array(times) / FS_PER_US
    energy_uj = over_idle_uj(constants, models, times_us, device)
    joules, kernels_us = (
        np.bincount(steps, np.array(counts) * each, len(mixes)) for each in (1e-6 * energy_uj, times_us)
    )
    computes_us = np.array([cost.step_parts(mix)[0] / FS_PER_US for mix in mixes])
    if cost.deployment.parallelism.ep > 1:
        most, _, often, longest = zip(*cost.step_operations(mixes), strict=True)
        computes_us += kernels_us - np.bincount(most, np.array(often) * longest, len(mixes)) / FS_PER_US
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = cost.deployment.parallelism.stage_devices * joules * computes_us / kernels_us
    return found


#: Figures that say how a run was simulated, and so differ between levels of detail.
OF_THE_SIMULATOR = ("events", "compute_events", "exchange_events", "transfer_events")


def within(served: pd.DataFrame, objectives: Objectives) -> npt.NDArray[np.bool_]:
    """Whether each request kept the limits; a time that it does not have keeps them."""
    good = np.ones(len(served), dtype=bool)
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        limit = getattr(objectives, name)
        if limit is not None:
            values = served[name].to_numpy(dtype=np.float64)
            good &= np.isnan(values) | (values <= limit)
    return good


def _statistics(name: str, values: Floats) -> dict[str, float | int | None]:
    known = values[~np.isnan(values)]
    stem, unit = name.rsplit("_", 1)
    found: dict[str, float | int | None] = {f"{stem}_mean_{unit}": float(known.mean()) if len(known) else None}
    for percentile in _PERCENTILES:
        key = f"{stem}_p{percentile}_{unit}"
        found[key] = percentile_of(known, percentile) if len(known) else None
    return found


def percentile_of(values: Floats, percentile: int) -> float:
    """Of the known values the median, or the least one that ``percentile`` of a hundred do not exceed: a limit that as
    many keep is no lower. NaN where none is known.
    """
    known = values[~np.isnan(values)]
    method: Literal["linear", "inverted_cdf"] = "linear" if percentile == 50 else "inverted_cdf"
    return float(np.percentile(known, percentile, method=method)) if len(known) else math.nan


def _gap_statistics(outcome: Outcome) -> dict[str, float | int | None]:
    """Inter-token latencies over every gap between tokens; this mean weighs tokens, that of TPOT requests."""
    parts = [log.gaps() for log in outcome.steps]
    gaps = np.concatenate([part[0] for part in parts]) / FS_PER_MS
    weights = np.concatenate([part[1] for part in parts])
    names = ["itl_mean_ms", *(f"itl_p{percentile}_ms" for percentile in _PERCENTILES)]
    if not len(gaps):
        return dict.fromkeys(names)
    order = np.argsort(gaps, kind="stable")
    cumulative = np.cumsum(weights[order])
    total = int(cumulative[-1])
    found: dict[str, float | int | None] = {names[0]: float((gaps * weights).sum() / total)}
    for name, percentile in zip(names[1:], _PERCENTILES, strict=True):
        at = int(np.searchsorted(cumulative, percentile / 100 * total))
        found[name] = float(gaps[order[min(at, len(order) - 1)]])
    return found


def _over(amount: float, total: float) -> float | None:
    return amount / total if total > 0 else None


def differences(a: Mapping[str, float | int | None], b: Mapping[str, float | int | None]) -> dict[str, float]:
    """Relative difference of every figure that both runs have, those of the simulator left out."""
    found = {}
    for name, left in a.items():
        right = b.get(name)
        if name in OF_THE_SIMULATOR or left is None or right is None:
            continue
        found[name] = 0.0 if left == right else abs(left - right) / max(abs(left), abs(right))
    return found


FS_PER_NS = 1_000_000


class ServingTimeline:
    """Collects the first ``most`` steps of replica 0 and writes what its first device did in them.

    Every step is an annotation, every operation a kernel that ends when the simulation says, in whole nanoseconds; the
    host's time is the gap before a step's first kernel. Products and attention have their shapes and types; other
    operations their name alone. In a pipeline it is the first stage's device.
    """

    def __init__(self, cost: StepCost, *, most: int = 200) -> None:
        self._cost = cost
        self._most = most
        self._steps: list[Step] = []

    def __call__(self, replica: int, step: Step) -> None:
        """Takes a step in, as ``Simulation(record=...)`` hands it over."""
        if replica == 0 and len(self._steps) < self._most:
            self._steps.append(step)

    @property
    def is_full(self) -> bool:
        """Whether later steps were left out."""
        return len(self._steps) == self._most

    def write(self, path: Path) -> Path:
        """OutputError when the file cannot be written; UsageError without a step."""
        calls = tuple(self._step(number, step) for number, step in enumerate(self._steps))
        trace = RecordedTrace(
            threads=(HostThread(thread_id=1, calls=calls, name="server"),),
            devices=(recorded_properties(self._cost.system.device),),
            labels=(("generated_by", "tracelens serve: a simulation, no device ran this"),),
        )
        return write_trace(trace, path)

    def _step(self, number: int, step: Step) -> RecordedOp:
        calls = []
        time = step.start
        before, after = self._cost.end_operations(step.tokens, step.batch * self._cost.queries + len(step.chunks))
        kinds = iter(self._cost.stages[0])
        last_stage = len(step.stages) == 1
        work = step.stages[0]
        total = sum(run.count for run in work.layers)
        index = 0
        for run in work.layers:
            for _ in range(run.count):
                ops = self._cost.layer_operations(next(kinds), step.tokens, step.chunks, step.batch, step.context)
                if index == 0:
                    ops = [*before, *ops]
                if index == total - 1 and last_stage:
                    ops = [*ops, *after]
                index += 1
                # What the layer takes beyond its operations is the host's time before them
                end = time + run.compute_fs
                time = max(time, end - sum(fs for _, _, fs in ops))
                for name, model, fs in ops:
                    calls.append(_op(name, model, time, min(time + fs, end)))
                    time = min(time + fs, end)
                time = end
                for exchange in run.exchanges:
                    word = exchange.name.partition("/")[0]
                    kernel = f"ncclDevKernel_{''.join(part.title() for part in word.split('_'))}_Sum_bf16_RING_LL"
                    calls.append(_launched(OpSignature(name=f"serve::{word}"), kernel, time, time + exchange.time_fs))
                    time += exchange.time_fs
        start_ns, end_ns = step.start // FS_PER_NS, max(step.end, time) // FS_PER_NS
        return RecordedOp(
            signature=OpSignature(name=f"ProfilerStep#{number}"),
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            calls=tuple(calls),
            category="user_annotation",
        )


def _op(name: str, model: PerfModel, start: int, end: int) -> RecordedOp:
    signature = recorded_signature(model) or OpSignature(name=f"serve::{name}")
    return _launched(signature, name, start, end)


def _launched(signature: OpSignature, kernel: str, start: int, end: int) -> RecordedOp:
    """An op that spans its kernel, so that calls nest whatever the durations are."""
    start_ns, end_ns = start // FS_PER_NS, end // FS_PER_NS
    recorded = RecordedKernel(name=kernel, start_ns=start_ns, duration_ns=end_ns - start_ns, stream=7)
    launch = RecordedLaunch(
        name="cudaLaunchKernel", start_ns=start_ns, duration_ns=end_ns - start_ns, kernels=(recorded,)
    )
    return RecordedOp(signature=signature, start_ns=start_ns, duration_ns=end_ns - start_ns, calls=(launch,))
