"""Projections from measured steps: a factor on other projections, and recorded operations that take as long again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tracelens.backends.base import Backend, System
from tracelens.backends.measured import EFFICIENCY, MEASURED, MeasuredBackend, MeasuredStep, key_of
from tracelens.errors import InputError, UsageError
from tracelens.files.documents import REPORT, expected, json_of
from tracelens.perf_models import WorkColumns
from tracelens.predict.projection.chunk_timing import Transfer
from tracelens.predict.projection.overheads import PLAIN
from tracelens.predict.projection.step import Projection, project
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.types.records import Record, pd
from tracelens.types.units import US_PER_S

#: What a breakdown calls the share of a step that only the measured one explains.
MEASURED_PART = "measured, not explained"


class Anchor(Record, frozen=True, kw_only=True):
    """``factor``: measured over projected time of the step called ``name``. UsageError unless it is above 0."""

    factor: float
    name: str

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise UsageError(f"the anchor {self.name} must have a time above 0; its factor is {self.factor:g}")

    @classmethod
    def of(cls, found: Projection, measured_us: float, name: str) -> Anchor:
        """``found`` is the projection of the step that took ``measured_us``."""
        return cls(factor=measured_us / found.step_us, name=name)

    def on(self, found: Projection) -> Projection:
        """``found`` as much longer, or shorter, as the measured step was than its own projection."""
        more = (self.factor - 1) * found.step_us
        return replace(
            found,
            step_us=found.step_us + more,
            breakdown_us={**found.breakdown_us, MEASURED_PART: more},
            tflops_gpu=found.tflops_gpu / self.factor,
            mfu=None if found.mfu is None else found.mfu / self.factor,
            notes=(*found.notes, f"scaled by {self.factor:.3f} to match {self.name}"),
        )


def measured_step_us(path: Path) -> float:
    """The mean step of a ``report.json``. InputError for another file, and for a trace without steps."""
    document = json_of(path, REPORT)
    with expected(path, REPORT):
        is_report = document["schema"].startswith("tracelens.report/")
        time_us = (document["step"] or {}).get("time_us") if is_report else None
    if not isinstance(time_us, int | float) or not 0 < time_us < float("inf"):
        raise InputError(
            f"{path}: it has no recorded step (call torch.profiler's step() in each iteration, and report again)"
        )
    return float(time_us)


#: What a breakdown calls the measured step's share that nothing explains, launch gaps included.
TRACED_PART = "as traced, unexplained"
#: Nothing launches: gaps come from the trace.
_GAPLESS = replace(PLAIN, host_us_per_op=0.0)


class FromTrace(Record, frozen=True, kw_only=True):
    """A projection from a measured step. ``sources``: of each part of the step, the shares of its operations' time that
    were measured themselves, have a measured efficiency, and are modeled.
    """

    projection: Projection
    sources: dict[str, dict[str, float]]


def project_from(
    measured: MeasuredStep,
    model: ModelConfig,
    parallel: ParallelConfig,
    system: System,
    *,
    sequence: int,
    base: Backend,
    traced: tuple[ParallelConfig, System] | None = None,
    schedule: str | None = None,
) -> FromTrace:
    """``parallel`` on ``system`` with the efficiencies of ``measured``.

    ``traced``: how the measured step was configured. Then its time beyond its own projection, launch gaps included, is
    added, as often as layers are passed: what changes is what the two projections differ in.
    """
    backend = MeasuredBackend(measured, base, (traced or (parallel, system))[1])
    found = project(model, parallel, system, sequence=sequence, schedule=schedule, backends=backend, software=_GAPLESS)
    sources = _sources(found)
    if traced is None:
        return FromTrace(projection=found, sources=sources)
    then = project(model, traced[0], traced[1], sequence=sequence, backends=backend, software=_GAPLESS)
    more = (measured.step_us - then.step_us) * _passes(found) / _passes(then)
    step_us = found.step_us + more
    took, idle, own = (us / US_PER_S for us in (measured.step_us, measured.idle_us, then.step_us))
    note = f"the traced step took {took:.4f} s (idle {idle:.4f} s), its own projection {own:.4f} s"
    return FromTrace(
        projection=replace(
            found,
            step_us=step_us,
            breakdown_us={**found.breakdown_us, TRACED_PART: more},
            tflops_gpu=found.tflops_gpu * found.step_us / step_us,
            mfu=None if found.mfu is None else found.mfu * found.step_us / step_us,
            notes=(*found.notes, note),
        ),
        sources=sources,
    )


def _passes(found: Projection) -> float:
    """Layers times micro-batches of one rank."""
    return found.parallel.micro_batches * len(found.model.layers) / found.parallel.pp


def _sources(found: Projection) -> dict[str, dict[str, float]]:
    job, spent = found.job, defaultdict[str, Counter[str]](Counter)
    ops = [op for layers in job.built.values() for layer in layers for op in layer.ops]
    answers = job.backend.estimate_many(WorkColumns.of(op.model for op in ops), job.system)
    for op, time_us, name in zip(ops, answers.time_us.tolist(), answers.backend, strict=True):
        spent[op.part][name if name in (MEASURED, EFFICIENCY) else "modeled"] += time_us
    return {part: {name: us / sum(of.values()) for name, us in of.items()} for part, of in sorted(spent.items())}


def against(found: Projection, measured: MeasuredStep) -> pd.DataFrame:
    """Projected and measured time of each operation and collective in a step of the busiest rank, and of the step.

    Operations of steps that ``--trace`` wrote have the same names but for their phases and collectives.

    Columns ``what``, ``projected_calls``, ``measured_calls``, ``projected_us``, ``measured_us`` (of one step),
    ``ratio``. Operations are the same where they do the same work, whatever they are called; rows with one side only
    are on the other side something else, or not there.
    """
    ran = found.job.run()
    both: dict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    names: dict[Hashable, str] = {}
    for one, count in ran.counted(ran.busiest):
        done = [(kernel.op.model, f"{kernel.op.name}.{kernel.op.phase}", kernel.time_us) for kernel in one.kernels()]
        moved = [placed.what for placed in one.transfers if isinstance(placed.what, Transfer)]
        done += [(transfer.model, f"{transfer.key[0]} of weights", transfer.time_us) for transfer in moved]
        for model, name, time_us in done:
            key = key_of(model) or name
            names.setdefault(key, name)
            both[key][0] += count
            both[key][2] += count * time_us
    for op, time_us in ran.finish[ran.busiest].ops:
        names[op.name] = op.name
        both[op.name][0] += 1
        both[op.name][2] += time_us
    for call in measured.calls:
        key = (None if call.model is None else key_of(call.model)) or call.name
        names.setdefault(key, call.name)
        both[key][1] += call.count
        both[key][3] += call.count * call.time_us
    _meet(both, names)
    order = sorted(both, key=lambda key: (-max(both[key][2:]), names[key]))
    rows = [(names[key], *both[key]) for key in order]
    rows.append(("step", 1.0, 1.0, found.step_us, measured.step_us))
    columns = ["what", "projected_calls", "measured_calls", "projected_us", "measured_us"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["ratio"] = frame["projected_us"].where(frame["measured_us"] > 0) / frame["measured_us"]
    return frame


#: What written traces and PyTorch call what a projection calls otherwise.
_PHASES = {"input_gradient": "dgrad", "weight_gradient": "wgrad"}
_EXCHANGES = ("all_to_allv", "all_to_all")


def _meet(both: dict[Hashable, list[float]], names: Mapping[Hashable, str]) -> None:
    """Adds rows with one side only to those of the other side that are the same: gradients by their phase's other
    name, exchanges of experts together, the sum of the gradients' norm to the one all-reduce that is left.
    """
    projected = {names[key]: key for key, row in both.items() if row[0] and not row[1]}
    for key in [key for key, row in both.items() if row[1] and not row[0]]:
        for name in _same(names[key], projected):
            mine = both.pop(projected.pop(name))
            both[key][0] += mine[0]
            both[key][2] += mine[2]


def _same(said: str, projected: Iterable[str]) -> list[str]:
    """What of a projection is what a trace calls ``said``."""
    if said in _EXCHANGES:
        return [name for name in projected if re.fullmatch(r"experts\.(dispatch|combine)\.(forward|dgrad)", name)]
    stem, _, phase = said.rpartition(".")
    wanted = "gradient_norm.all_reduce" if said == "allreduce" else f"{stem}.{_PHASES.get(phase, phase)}"
    return [name for name in projected if name == wanted]
