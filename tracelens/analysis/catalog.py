"""From a recorded op call to its perf model and category: the core's bindings with a report's extensions laid over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tracelens import perf_models
from tracelens.errors import SignatureError
from tracelens.extensions import Extension, overlay
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.kernels import KernelPattern
from tracelens.registry import Claim, Registry
from tracelens.signature import OpSignature

#: The category of everything nobody knows.
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is known of one distinct op call. ``note`` says why there is no model."""

    category: str | None
    model: PerfModel | None = None
    note: str = ""
    leaf_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionFailure:
    """An extension's binding that raised on one op call: the op loses its model, the report goes on."""

    name: str
    origin: str
    error: str


class Catalog:
    """Bindings, categories and kernel patterns of one report. Each distinct signature is read once."""

    def __init__(self, extensions: Iterable[Extension] = ()) -> None:
        extensions = tuple(extensions)
        self.bindings = overlay(perf_models.bindings(), extensions)
        self.families = overlay(perf_models.pattern_bindings(), extensions)
        self.categories = overlay(perf_models.categories(), extensions)
        added = overlay(Registry("kernel_pattern", {}), extensions)
        self.kernel_patterns: tuple[KernelPattern, ...] = (
            *(claim.target for claim in added.values()),
            *perf_models.kernel_patterns(),
        )
        self.failures: list[ExtensionFailure] = []
        self._readings: dict[OpSignature, Reading] = {}
        self._name_patterns = tuple((re.compile(key), claim) for key, claim in self.families.items())

    def read(self, signature: OpSignature) -> Reading:
        """The reading of one distinct call; never raises for what a trace contains."""
        reading = self._readings.get(signature)
        if reading is None:
            reading = self._readings[signature] = self._read(signature)
        return reading

    def knows(self, name: str) -> bool:
        """Whether a perf model is bound to this traced name."""
        return self._claim(name) is not None

    def _claim(self, name: str) -> Claim | None:
        if name in self.bindings:
            return self.bindings[name]
        return next((claim for pattern, claim in self._name_patterns if pattern.match(name)), None)

    def _read(self, signature: OpSignature) -> Reading:
        claim = self._claim(signature.name)
        category = self.categories[signature.name].options["category"] if signature.name in self.categories else None
        if claim is None:
            return Reading(category=category, note="no perf model")
        category = perf_models.category_of(claim) or category
        leaf_only = bool(claim.options.get("leaf_only"))
        try:
            model = claim.target(signature)
        except SignatureError as error:
            return Reading(category=category, note=str(error), leaf_only=leaf_only)
        except Exception as error:  # noqa: BLE001 - a binding is foreign code: it may cost its op, never the report
            failure = ExtensionFailure(
                name=signature.name, origin=claim.origin, error=f"{type(error).__name__}: {error}"
            )
            self.failures.append(failure)
            return Reading(
                category=category, note=f"binding at {claim.origin} raised {failure.error}", leaf_only=leaf_only
            )
        if model is None:
            return Reading(category=category, note="not determined by what was recorded", leaf_only=leaf_only)
        return Reading(category=category or model.category, model=model, leaf_only=leaf_only)
