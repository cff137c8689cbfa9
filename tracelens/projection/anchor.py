"""One measured step as a factor on projections of the same model and device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tracelens.errors import InputError, UsageError
from tracelens.files.documents import REPORT, expected, json_of
from tracelens.lazy.records import dataclass
from tracelens.projection.step import Projection

#: What a breakdown calls the share of a step that only the measured one explains.
PART = "measured, not explained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
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
            breakdown_us={**found.breakdown_us, PART: more},
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
