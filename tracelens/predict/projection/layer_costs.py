"""What layers are made of and take on a rank: what the event graph of a step and the closed form of a search share."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tracelens.backends.base import Backend, System
from tracelens.backends.chain import chain
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import PerfModel
from tracelens.predict.projection.overheads import priced
from tracelens.predict.workload import rank_ops
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.rank_ops import RankLayer
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GIB

#: How the name of a layer ends that computes in BF16 between narrower ones, and of one that is not recomputed among
#: those that are.
WIDE, KEPT = "'", "~"
_chain = functools.cache(chain)


def backend_of(backends: str | Backend) -> Backend:
    """Backends by their names, or as they are."""
    return _chain(backends) if isinstance(backends, str) else backends


def blocks_of(name: str) -> str:
    """The letters of a layer's blocks, without its marks."""
    return name.rstrip(WIDE + KEPT)


class LayerCosts(Record, frozen=True, kw_only=True, eq=False):
    """The layers of ``model`` for sequences of ``sequence`` tokens, at the times of ``backend`` on ``system``."""

    model: ModelConfig
    system: System
    sequence: int
    backend: Backend

    @classmethod
    def of(cls, model: ModelConfig, system: System, sequence: int, backends: str | Backend) -> LayerCosts:
        """With the system ``completed``, and backends by name or as they are."""
        return cls(model=model, system=completed(system)[0], sequence=sequence, backend=backend_of(backends))

    @property
    def capacity(self) -> float | None:
        """Bytes of device memory; None where it is not known."""
        hbm = self.system.device.hbm
        return None if hbm is None or hbm.nominal_gib is None else hbm.nominal_gib * BYTES_PER_GIB

    def layers(self, names: Iterable[str], parallel_of: Callable[[str], ParallelConfig]) -> dict[str, list[RankLayer]]:
        """The blocks of each distinct layer, and the ends. ``parallel_of``: how layers with such marks are computed.

        UsageError where tp or ep do not divide what they divide.
        """
        made: dict[str, RankLayer] = {}
        built: dict[str, list[RankLayer]] = {}
        for name in dict.fromkeys(names):
            marks = name[len(blocks_of(name)) :]
            for letter in blocks_of(name):
                if letter + marks not in made:
                    made[letter + marks] = rank_ops.block(self.model, parallel_of(marks), letter, self.sequence)
            built[name] = [made[letter + marks] for letter in blocks_of(name)]
        return {**built, **rank_ops.ends(self.model, parallel_of(""), self.sequence)}

    def priced(self, names: Mapping[PerfModel, str]) -> tuple[dict[PerfModel, float], Counter[str]]:
        """Microseconds of each operation, all of one step, and how many each backend priced.

        UsageError, by the operation's name, for one that no backend prices.
        """
        prices, found = priced(names, self.backend, self.system)
        return prices, Counter(name for name in found.backend if name is not None)


def completed(system: System) -> tuple[System, str | None]:
    """``system`` with the count of compute units and the clock of the device that constants are carried over from,
    where the device's file has none; and what was taken.
    """
    device = system.device
    if device.calibrated_like is None:
        return system, None
    like = HardwareSpec.load(device.calibrated_like)
    taken = {key: like.chip[key] for key in ("compute_units", "clock") if key not in device.chip and key in like.chip}
    if not taken:
        return system, None
    named = " and ".join(key.replace("_", " ") for key in taken)
    completed = replace(device, chip={**device.chip, **taken})
    return replace(system, device=completed), f"{named} of {like.label}: those of {device.label} are not in its file"
