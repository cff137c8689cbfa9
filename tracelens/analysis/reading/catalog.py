"""From a recorded op call to its perf model and category: the core's bindings with a report's extensions laid over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from typing import Any, TypeVar

from tracelens import perf_models
from tracelens.errors import SignatureError
from tracelens.extensions import TREE_HOOK, Extension, TimeLimitError, overlay, time_limit
from tracelens.files.memory_limit import raise_at_limit
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.collective import CustomCollective, EPComm
from tracelens.perf_models.gemm import GEMM, GEMMBackward
from tracelens.perf_models.inference_attention import InferenceStep
from tracelens.perf_models.kernels import ComputeType, KernelPattern
from tracelens.perf_models.surroundings import InnerOp, OpCall
from tracelens.perf_models.triton_kernels import BACKEND, TRITON, compiled_kernel
from tracelens.perf_models.xla import XLA, compiled_op
from tracelens.registry import Claim, Registry
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature

Made = TypeVar("Made")
#: How long a binding may take for one distinct op call; one that takes longer is not asked again. The slowest of the
#: core takes 1 ms.
BINDING_LIMIT_S = 5.0
# FLOPs or bytes of one call: hours on any device.
_MOST_WORK = 2**63
#: The category of everything nobody knows.
OTHER = "other"
#: Categories of ops and kernels that exchange data between devices, beside NCCL's own.
COMMUNICATION = (EPComm.category, CustomCollective.category)
#: Categories of matrix products.
PRODUCTS = (GEMM.category, "GroupedGEMM_fwd", "GroupedGEMM_bwd")
#: Note of an op that nothing here knows.
NO_MODEL = "no perf model"
# How the note of an op begins whose binding raised, and what is said where another binding is used for that.
_RAISED, _BY_REPLACED = "binding at ", "which has the model that the extension replaced"


class Reading(Record, frozen=True, kw_only=True):
    """What is known of one distinct op call. ``note`` says why there is no model.

    ``computed_in``: what its kernels' names say that its products run in; None where they are silent. ``of_rest``: the
    op holds operations that are ops of their own, and the model is of the rest.
    """

    category: str | None
    model: PerfModel | None = None
    note: str = ""
    leaf_only: bool = False
    computed_in: ComputeType | None = None
    of_rest: bool = False

    @property
    def communicates(self) -> bool:
        """Whether the op exchanges data between devices: by its model, whatever its category, or by its category."""
        model = self.model
        exchanges = isinstance(model, EPComm | CustomCollective) or (model is not None and bool(model.wire_bytes()))
        return exchanges or self.category in COMMUNICATION

    @property
    def has_work(self) -> bool:
        """Whether its model knows bytes, or FLOPs other than zero."""
        model = self.model
        return model is not None and (model.hbm_bytes() is not None or bool(model.flops()) or bool(model.wire_bytes()))

    @property
    def compute_dtype(self) -> DType | None:
        """The element type whose compute rate applies."""
        if self.computed_in is not None:
            return self.computed_in.dtype
        return None if self.model is None else self.model.compute_dtype

    @property
    def compute_spec(self) -> str | None:
        """Engine and precision: ``matrix_tf32``; None where the call computes nothing, or in an unknown type."""
        if self.model is None or self.model.engine == "none":
            return None
        dtype = self.model.compute_dtype
        label = self.computed_in.label if self.computed_in is not None else dtype.label if dtype is not None else None
        return None if label is None else f"{self.model.engine}_{label}"


class ExtensionFailure(Record, frozen=True, kw_only=True):
    """A binding that raised on one op call: that costs the ``loss`` of it, and the report goes on.

    ``is_own``: the binding is of tracelens itself, not of an extension.
    """

    name: str
    origin: str
    error: str
    loss: str = "which has no model now"
    is_own: bool = False


#: Which binding reads what a compiler made, by the attribute ``kernel_backend``.
_COMPILED = {
    backend: Claim(key=backend, target=read, options={}, source=read)
    for backend, read in ((TRITON, compiled_kernel), (XLA, compiled_op))
}


class Catalog:
    """Bindings, categories and kernel patterns of one report. Each distinct signature is read once."""

    def __init__(self, extensions: Iterable[Extension] = ()) -> None:
        extensions = tuple(extensions)
        self.bindings = overlay(perf_models.bindings(), extensions)
        # What a caller's extension replaced, for what it does not say or fails on.
        self._replaced = overlay(perf_models.bindings(), [e for e in extensions if e.is_bundled])
        self.families = overlay(perf_models.pattern_bindings(), extensions)
        self.categories = overlay(perf_models.categories(), extensions)
        added = overlay(Registry("kernel_pattern", {}), extensions)
        self.kernel_patterns: tuple[KernelPattern, ...] = (
            *(claim.target for claim in added.values()),
            *perf_models.kernel_patterns(),
        )
        self.annotation_readers = overlay(perf_models.annotation_readers(), extensions)
        self.inner_ops = overlay(Registry("holds_ops", {}), extensions)
        self._backward_of = overlay(Registry("backward_of", {}), extensions)
        self.tree_hooks = overlay(Registry(TREE_HOOK, {}), extensions)
        #: Names of ops in which a tree hook made ops of their own; arguments that it gave to rows of the trace.
        self.split_by_hooks: set[str] = set()
        self.arguments_by_hooks: dict[int, tuple[tuple[str, Any], ...]] = {}
        self.failures: list[ExtensionFailure] = []
        self._hanging: dict[tuple[str, str], str] = {}
        self._readings: dict[OpSignature, Reading] = {}
        self._name_patterns = tuple((re.compile(key), claim) for key, claim in self.families.items())

    def read(self, signature: OpSignature) -> Reading:
        """The reading of one distinct call; never raises for what a trace contains."""
        reading = self._readings.get(signature)
        if reading is None:
            reading = self._readings[signature] = self._read(signature)
        return reading

    def read_backward(self, signature: OpSignature, forward: OpSignature) -> Reading | None:
        """Reading of an unbound backward op by its forward's model; None if bound, or if that knows no backward."""
        if self.knows(signature.name):
            return None
        model, by = self._backward_model(self.read(forward).model, signature, forward), ""
        if model is None and (claim := self._replaced_claim(forward.name)) is not None:
            ahead = self._read_by(claim, forward, loss="whose backward has no model now").model
            model, by = self._backward_model(ahead, signature, forward), " by the model that an extension replaced"
        if model is None:
            return None
        own = self.read(signature).category
        return Reading(category=own or model.category, model=model, note=f"as the backward of {forward.name}{by}")

    def _backward_model(self, ahead: object, signature: OpSignature, forward: OpSignature) -> PerfModel | None:
        claim, backward = self._claim(forward.name), getattr(ahead, "backward", None)
        if claim is None or not callable(backward):
            return None
        try:
            with self._limited(claim, signature.name):
                model = backward(signature) if isinstance(ahead, EPComm) else backward()
                if isinstance(model, tuple) and len(model) == 2 and all(isinstance(part, GEMM) for part in model):
                    model = GEMMBackward(grad_a=model[0], grad_b=model[1])
                if isinstance(model, PerfModel):
                    _check_work(model)
                    return model
        except SignatureError:
            return None
        except (Exception, TimeLimitError) as error:  # noqa: BLE001 - foreign code, as in _called
            self.note_failure(claim, signature.name, error)
        return None

    def _replaced_claim(self, name: str) -> Claim | None:
        """The binding of this name that a class written for another program replaced; None without one."""
        claim = self.bindings.get(name)
        return None if claim is None or not hasattr(claim.target, "__stands_for__") else self._replaced.get(name)

    def is_backward(self, name: str) -> bool:
        """Whether ``BackwardOf`` marks this name."""
        return name in self._backward_of

    def backward_partners(self) -> dict[str, tuple[str, ...]]:
        """Forward op -> the backward ops that ``BackwardOf`` marks as its own."""
        names: dict[str, tuple[str, ...]] = {}
        for name, claim in self._backward_of.items():
            forward = claim.options["forward"]
            names[forward] = (*names.get(forward, ()), name)
        return names

    def inner_ops_of(self, call: OpCall) -> tuple[InnerOp, ...] | str:
        """What a call that ``holds_ops`` marks consists of, or why it stays whole."""
        name = call.signature.name
        claim = self.inner_ops[name]
        try:
            with self._limited(claim, name):
                found = tuple(claim.target(call))
                kernels = [op.kernel for op in found]
                if len(set(kernels)) < len(kernels) or not set(kernels) <= set(range(len(call.kernels))):
                    raise ValueError(f"returned kernels {kernels} for a call with {len(call.kernels)}")
                return found
        except SignatureError as error:
            return str(error)
        except (Exception, TimeLimitError) as error:  # noqa: BLE001 - foreign code, as in _called
            self.note_failure(claim, name, error)
            return f"{name}: the extension failed"

    def knows(self, name: str) -> bool:
        """Whether a perf model is bound to this traced name."""
        return self._claim(name) is not None

    def category_of(self, name: str) -> str | None:
        """The category of calls of this name, whatever their arguments; None when it is not known."""
        claim = self._claim(name)
        own = None if claim is None else perf_models.category_of(claim)
        return own or (self.categories[name].options["category"] if name in self.categories else None)

    def is_per_step(self, name: str) -> bool:
        """Whether the binding of this name reads the sums of the step around its op."""
        claim = self._claim(name)
        return claim is not None and bool(claim.options.get("per_step"))

    def asks(self, name: str) -> frozenset[str]:
        """What the binding of this name wants to know of the surroundings of an op that does not say enough."""
        claim = self._claim(name)
        return frozenset(claim.options.get("asks", ())) if claim is not None else frozenset()

    def inference_step(self, annotation: str) -> InferenceStep | None:
        """What an annotation says of an inference step's requests; None when it is no such step's."""
        for prefix, claim in self.annotation_readers.items():
            if annotation.startswith(prefix):
                try:
                    step = self._called(claim, annotation, annotation, InferenceStep)
                except SignatureError:
                    return None
                return None if isinstance(step, ExtensionFailure) else step
        return None

    def _claim(self, name: str) -> Claim | None:
        if name in self.bindings:
            return self.bindings[name]
        return next((claim for pattern, claim in self._name_patterns if pattern.match(name)), None)

    def _read(self, signature: OpSignature) -> Reading:
        made_by, category = signature.attribute(BACKEND), self.category_of(signature.name)
        # XLA's ops have names that say nothing, Triton's may have a binding of their own
        claim = (None if made_by == XLA else self._claim(signature.name)) or _COMPILED.get(made_by)
        if claim is None:
            return Reading(category=category, note=NO_MODEL)
        category = perf_models.category_of(claim) or category
        reading = self._read_by(claim, signature)
        if reading.model is None and reading.note.startswith(_RAISED):
            replaced = self._replaced_claim(signature.name)
            instead = None if replaced is None else self._read_by(replaced, signature)
            if instead is not None and instead.model is not None:
                self.failures[-1] = replace(self.failures[-1], loss=_BY_REPLACED)
                reading = replace(instead, note=f"{_BY_REPLACED}: {reading.note}")
        own = reading.model.category if reading.model is not None else None
        of_rest = signature.name in self.inner_ops or signature.name in self.split_by_hooks
        return replace(
            reading, category=reading.category or category or own, of_rest=of_rest,
            leaf_only=of_rest or bool(claim.options.get("leaf_only")),
        )  # fmt: skip

    def _read_by(self, claim: Claim, signature: OpSignature, loss: str = "") -> Reading:
        category = perf_models.category_of(claim)
        try:
            model = self._called(claim, signature.name, signature, PerfModel)
        except SignatureError as error:
            return Reading(category=category, note=str(error))
        if isinstance(model, ExtensionFailure):
            self.failures[-1] = replace(model, loss=loss or model.loss)
            return Reading(category=category, note=f"{_RAISED}{claim.origin} raised {model.error}")
        return Reading(
            category=category, model=model, note="not determined by what was recorded" if model is None else ""
        )

    def _called(self, claim: Claim, name: str, argument: object, kind: type[Made]) -> Made | ExtensionFailure | None:
        """What a mark's function makes of one call or annotation; the failure, also noted, when it raises or hangs."""
        try:
            with self._limited(claim, name):
                made = claim.target(argument)
                if made is not None and not isinstance(made, kind):
                    raise TypeError(f"returned a {type(made).__name__}, not a {kind.__name__}")
                if isinstance(made, PerfModel):
                    _check_work(made)
                return made
        except SignatureError:
            raise
        except (Exception, TimeLimitError) as error:  # noqa: BLE001 - foreign code: it may cost its op, never the report
            return self.note_failure(claim, name, error)

    @contextmanager
    def _limited(self, claim: Claim, name: str) -> Iterator[None]:
        """Ends a binding that takes too long with TimeLimitError, later calls at once; our own for this name only."""
        hanging = (claim.origin, name if _is_own(claim) else "")
        if hanging in self._hanging:
            raise TimeLimitError(self._hanging[hanging])
        try:
            with time_limit(BINDING_LIMIT_S):
                yield
        except TimeLimitError as error:
            self._hanging[hanging] = str(error)
            raise

    def note_failure(self, claim: Claim, name: str, error: BaseException, **loss: str) -> ExtensionFailure:
        """That a marked object failed on a call of this name; ``loss``: what that costs it."""
        raise_at_limit(error)
        failure = ExtensionFailure(
            name=name, origin=claim.origin, error=f"{type(error).__name__}: {error}", is_own=_is_own(claim), **loss
        )
        self.failures.append(failure)
        return failure


def _is_own(claim: Claim) -> bool:
    """Whether the marked object is of tracelens itself."""
    return str(getattr(claim.target, "__module__", "")).startswith("tracelens.")


def _check_work(model: PerfModel) -> None:
    """Raises here, where it costs one op, what a model's own methods would raise later for the whole report."""
    try:
        work = {"flops": model.flops(), "hbm_bytes": model.hbm_bytes(), "wire_bytes": model.wire_bytes()}
        for name, amount in work.items():
            if amount is not None and not isinstance(amount, Real):
                raise TypeError(f"{name}() returned a {type(amount).__name__}, not a number")
        is_possible = all(0 <= (n or 0) < _MOST_WORK for n in work.values())
    except OverflowError:
        is_possible = False
    if not is_possible:
        raise SignatureError("the recorded dimensions are negative or impossibly large")
    parameters, texts = model.parameters(), (model.category, model.sheet, model.engine)
    if not isinstance(parameters, dict) or not all(isinstance(text, str) for text in (*parameters, *texts)):
        raise TypeError("parameters() must return a dict; category, sheet and engine must be strings")
    _ = model.compute_dtype
