"""Frameworks as files: what each does that tables of its measurements do not repeat, and its fitted constants.

A file says what was fitted on what, and how far projections of families that were left out were from their measurements
(``benchmarks/fit_profiles.py`` writes those parts).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tracelens.backends.base import Backend, System
from tracelens.errors import UsageError
from tracelens.files.documents import FigureTable, normalized
from tracelens.files.option_fields import BACKENDS, NO_INTERVAL
from tracelens.hardware import HardwareSpec
from tracelens.predict.projection.overheads import PLAIN, Software, kernel_factor
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import Attention, Gradients, ParallelConfig, TPOverlap
from tracelens.types.dtypes import Precision
from tracelens.types.records import Record

#: The bare model: nothing fitted.
IDEAL = "ideal"
#: Of a framework that no file names.
POOLED = "pooled"
#: Constants of every device without its own.
ANY = "any"
#: Kinds of steps whose errors differ: adapters of frozen weights are a kind of their own.
KINDS = ("dense", "moe", "lora")
#: Tables of residuals by what was left out.
LEFT_OUT = {"residuals": "families", "unseen": "devices and precisions", "elsewhere": "frameworks"}
#: Traits of a step that are numbers, and their names: what constants were fitted on goes up to one of each.
TRAITS = {
    "tp": "tensor ranks", "cp": "context ranks", "pp": "pipeline ranks", "ep": "expert ranks", "ranks": "ranks",
    "sequence": "tokens per sequence", "micro_batch": "sequences per micro-batch",
}  # fmt: skip
#: From which compute capability on devices multiply MXFP8: TransformerEngine's check_mxfp8_support; ROCm's: gfx950.
_BLOCK_SCALED = {"nvidia": (10, 0), "amd": (9, 5)}
_FOLDER = Path(__file__).parent
#: Beside those of every step: how many times as long a Grace CPU takes for what a host does.
_GRACE = "grace"
_CONSTANTS = frozenset({_GRACE, *(item.name for item in fields(Software))})
_PRECISIONS = frozenset({"bf16", "fp8", "mxfp8", "nvfp4"})


class Residuals(Record, frozen=True, kw_only=True):
    """Measured steps against projections by constants that were fitted without them.

    ``median`` and ``p90``: shares of the measured step. ``half`` and ``most``: between which multiples of the projected
    step half and nine tenths of the measured ones are, as far below it as above. ``left_out``: what was left out as a
    whole, ``"families"`` (models in one release), ``"devices and precisions"`` or ``"frameworks"``. ``beyond``: what no
    fitted step had as much of, for which ``half`` and ``most`` are wider.
    """

    left_out: str
    rows: int
    median: float
    p90: float
    half: tuple[float, float]
    most: tuple[float, float]
    beyond: tuple[str, ...] = ()

    def widened(self, beyond: Mapping[str, tuple[float, float]]) -> Residuals:
        """With what leaving all steps out that have more of a trait added to half and nine tenths of errors, by the
        trait: as factors, whose logarithms are added in quadrature.
        """
        if not beyond:
            return self
        own = np.log([self.half[1], self.most[1]])
        half, most = np.exp(np.hypot.reduce([own, *np.log(list(beyond.values()))])).tolist()
        return replace(self, half=(1 / half, half), most=(1 / most, most), beyond=tuple(beyond))


def traits(parallel: ParallelConfig, sequence: int) -> dict[str, int]:
    """Those of a step, by the names of ``TRAITS``."""
    return {name: sequence if name == "sequence" else getattr(parallel, name) for name in TRAITS}


class Framework(Record, frozen=True, kw_only=True):
    """One training framework. ``source``: where its behavior is written; ``fitted_on``: where its constants are from.

    ``products``: factors on matrix products by device (``"any"``: every other one) and precision. ``zero``,
    ``precision`` and ``ep``: what a table that does not say is taken to mean; None: it has to. ``selective_modules``:
    what its selective recomputation repeats; ``eager_memory``: how much longer its memory-bound operations take where
    nothing compiles them, ``rotary_memory``: how much longer rotary positions do where something does;
    ``fsdp``: 1 or 2, PyTorch's FSDP, which copies what it sends between its buffers and where it is used;
    ``separates_projections``: queries, keys, values and gates have products of their own; ``scales_by_row``: its FP8
    with scales by row is torchao's, and ``has_eager_loss`` (``ParallelConfig``). ``residuals`` by what was left out and
    by kind of model; ``seen``: the precisions of each device that its constants were fitted on. ``keeps_gathered``:
    FSDP gathers a layer's weights for its backward only where its forward is repeated. ``reach``: the most of each
    trait that its constants were fitted on; ``beyond``: by which factors more of one widens an interval.
    ``split_spread``: standard deviation of the logarithm of projected over measured among steps of one model on as many
    of the same devices, by one framework in one precision, families left out. What all splits of a job are off by alike
    does not make one the winner of a search.
    """

    name: str
    label: str = ""
    matches: tuple[str, ...] = ()
    sequence_parallel: bool = True
    attention: Attention = "flash"
    tp_overlap: TPOverlap = "none"
    nvfp4_tp_overlap: TPOverlap = "none"
    gradients: Gradients = "fp32"
    zero: int = 1
    precision: str = "bf16"
    ep: int | None = None
    recompute_modules: tuple[str, ...] = ()
    selective_modules: tuple[str, ...] = ()
    eager_memory: float = 1.0
    rotary_memory: float = 1.0
    fsdp: int = 0
    separates_projections: bool = False
    scales_by_row: bool = False
    has_eager_loss: bool = False
    source: str = ""
    fitted_on: str = ""
    constants: Mapping[str, float] = msgspec.field(default_factory=dict)
    products: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    has_pooled_constants: bool = False
    has_fused_loss: bool = False
    keeps_gathered: bool = False
    residuals: Mapping[tuple[str, str], Residuals] = msgspec.field(default_factory=dict)
    seen: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    reach: Mapping[str, int] = msgspec.field(default_factory=dict)
    split_spread: float = 0.0
    beyond: Mapping[str, tuple[float, float]] = msgspec.field(default_factory=dict)

    @classmethod
    def load(cls, name: str) -> Framework:
        """By name, or by what a table's ``framework`` column says: the file whose word comes first there, of those the
        longest; else pooled. ``ideal`` has no constants.
        """
        said = normalized(name)
        if said == IDEAL:
            return cls(name=IDEAL, label="nothing fitted")
        known = frameworks()
        if said in known:
            return known[said]
        found = [(said.find(word), -len(word), each.name) for each in known.values() for word in each.matches]
        named = [each for each in found if each[0] >= 0]
        return known[min(named)[2] if named else POOLED]

    def software(self, system: System, precision: str, attention: Attention = "flash") -> Software:
        """The constants of a step on ``system`` in ``precision`` with that attention kernel. UsageError for MXFP8 on a
        device that has none.
        """
        least, mine = _BLOCK_SCALED.get(system.device.vendor), system.device.compute
        if Precision.of(precision) is Precision.MXFP8 and least and mine and mine < least:
            raise UsageError(
                f"{system.device.name} has no mxfp8: FP8 in blocks of 32 needs compute capability "
                f"{least[0]}.{least[1]}; choose --precision fp8"
            )
        if self.has_pooled_constants:
            return self._own(frameworks()[POOLED].software(system, precision, attention))
        given: dict[str, Any] = dict(self.constants)
        device, grace = system.device, given.pop(_GRACE, 1.0)
        names = (*_names(system), ANY)
        table: Mapping[str, float] = next((self.products[name] for name in names if name in self.products), {})
        key = Precision.of(precision).calibrated.value
        given["products"] = table.get(key, table.get("bf16", 1.0))
        given["attention"] = given.get("attention", 1.0) * kernel_factor(attention, device)
        return self._own(replace(PLAIN, **given).hosted(grace if device.cpu == _GRACE else 1.0))

    def _own(self, software: Software) -> Software:
        """With what its file says of it, fitted or not."""
        return replace(
            software, rotary=self.rotary_memory, fsdp=self.fsdp,
            separate=float(self.separates_projections),
            gathers_again=0.0 if self.keeps_gathered else software.gathers_again,
        )  # fmt: skip

    def eager(self, software: Software) -> Software:
        """``software`` where nothing compiles its memory-bound operations, rotary positions among them."""
        return replace(software, memory=software.memory * self.eager_memory, rotary=1.0)

    def expected(
        self, model: ModelConfig, system: System, parallel: ParallelConfig, sequence: int, backends: str | Backend
    ) -> Residuals | None:
        """How far measured steps were from their projections where as little was known of them as of a step of
        ``model`` on ``system``: other models of the framework, where its constants were fitted on steps of this device
        and precision; devices and precisions left out, where on others; whole frameworks left out, where it has no
        constants of its own. Wider where the step has more of a trait than what was fitted. None for the bare model,
        for weights that stay gathered, which no measured step was, and for what is ``unmeasured``.
        """
        if self.name == IDEAL or self.keeps_gathered or unmeasured(system, backends):
            return None
        pooled, key = frameworks()[POOLED], Precision.of(parallel.precision).calibrated.value
        kind = "lora" if parallel.lora else "dense" if model.experts is None else "moe"
        own = self.residuals.get(("families", kind))
        is_seen = any(key in self.seen.get(name, ()) for name in _names(system))
        other = pooled.residuals.get(("frameworks", kind))
        found = other if own is None else own if is_seen else self.residuals.get(("devices and precisions", kind), own)
        reach = (pooled if self.has_pooled_constants else self).reach
        mine = traits(parallel, sequence)
        beyond = {
            f"{TRAITS[name]} above {most:,}": pooled.beyond[name]
            for name, most in reach.items()
            if mine[name] > most and name in pooled.beyond
        }
        return None if found is None else found.widened(beyond)

    def runs(self, attention: Attention) -> Attention:
        """The kernel behind ``attention``: the framework's own where a table says no more than flash."""
        return self.attention if attention == "flash" else attention


def unmeasured(system: System, backends: str | Backend) -> str | None:
    """What an interval lacks: measured times of the device's products, or of steps on its architecture, or the cost
    models that constants were fitted with. None where nothing is missing.
    """
    device = system.device
    if device.unmeasured:
        return device.unmeasured
    seen, mine = frameworks()[POOLED].seen, (device.vendor, device.compute)
    known = (HardwareSpec.load(name) for name in seen)
    if device.name in seen or any((each.vendor, each.compute) == mine for each in known):
        return None if backends == BACKENDS else NO_INTERVAL
    return f"no published step ran on the architecture of {device.label}: how far off this one is, is unknown"


def _names(system: System) -> tuple[str, ...]:
    return tuple(filter(None, (system.device.name, system.device.based_on)))


@functools.cache
def frameworks() -> dict[str, Framework]:
    """All files by name."""
    return {path.stem: _read(path) for path in sorted(_FOLDER.glob("*.toml"))}


def _read(path: Path) -> Framework:
    table = FigureTable.of_file(path, kind="framework")
    words = {name: table.text(name) for name in ("attention", "tp_overlap", "nvfp4_tp_overlap", "gradients")}
    given: dict[str, Any] = table.figures(Framework, apart=("name", "matches", "sequence_parallel", "zero"))
    given |= {name: word for name, word in words.items() if word is not None}
    zero = table.whole("zero", least=0)
    made = Framework(**given | {
        "name": path.stem,
        "matches": tuple(normalized(word) for word in table.texts("matches")),
        "sequence_parallel": not table.flag("without_sequence_parallelism"),
        "zero": 1 if zero is None else zero,
        "source": table.source("source"),
        "fitted_on": table.source("fitted_on"),
        "constants": table.numbers("constants", _CONSTANTS),
        "products": _products(table),
        "residuals": _residuals(table),
        "seen": _seen(table),
        "reach": {name: int(most) for name, most in table.numbers("reach", frozenset(TRAITS)).items()},
        "beyond": _beyond(table),
    })  # fmt: skip
    table.finish()
    return made


def _products(table: FigureTable) -> dict[str, Mapping[str, float]]:
    found = table.tables("products", frozenset({*HardwareSpec.names(), ANY}))
    made: dict[str, Mapping[str, float]] = {}
    for device, part in found.items():
        numbers = {key: part.number(key) for key in sorted(_PRECISIONS)}
        part.finish()
        made[device] = {key: value for key, value in numbers.items() if value is not None}
    return made


def _residuals(table: FigureTable) -> dict[tuple[str, str], Residuals]:
    made: dict[tuple[str, str], Residuals] = {}
    for name, left_out in LEFT_OUT.items():
        for kind, part in table.tables(name, frozenset(KINDS)).items():
            median, p90, half, most = map(part.needed_number, ("median", "p90", "half", "most"))
            made[left_out, kind] = Residuals(
                left_out=left_out, rows=part.whole("rows") or 0, median=median, p90=p90,
                half=(1 / half, half), most=(1 / most, most),
            )  # fmt: skip
            part.finish()
    return made


def _beyond(table: FigureTable) -> dict[str, tuple[float, float]]:
    made: dict[str, tuple[float, float]] = {}
    for name, part in table.tables("beyond", frozenset(TRAITS)).items():
        part.whole("rows")
        made[name] = part.needed_number("half"), part.needed_number("most")
        part.finish()
    return made


def _seen(table: FigureTable) -> dict[str, tuple[str, ...]]:
    part = table.table("seen")
    if part is None:
        return {}
    made = {name: part.texts(name) for name in HardwareSpec.names()}
    part.finish()
    return {name: precisions for name, precisions in made.items() if precisions}


def named(name: str | None) -> Framework:
    """What ``--framework`` says: a file's name or a word that one matches; None: pooled. UsageError for another."""
    if name is None:
        return frameworks()[POOLED]
    found = Framework.load(name)
    if found.name == POOLED and normalized(name) != POOLED:
        raise UsageError.unknown("framework", name, [*frameworks(), IDEAL])
    return found
