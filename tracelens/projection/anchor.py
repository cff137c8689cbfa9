"""One measured step as a factor on projections of the same model and device."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from tracelens.errors import InputError, UsageError
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
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        time_us = (
            (document["step"] or {}).get("time_us") if document["schema"].startswith("tracelens.report/") else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a tracelens report.json: {error}") from error
    if not isinstance(time_us, int | float) or not time_us > 0:
        raise InputError(
            f"{path}: it has no recorded step (call torch.profiler's step() in each iteration, and report again)"
        )
    return float(time_us)
