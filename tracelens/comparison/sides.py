"""One side of a comparison: the distinct calls of its steps, when they ran, and which part of each step is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from tracelens.comparison.alignment.kernel_names import family
from tracelens.comparison.compared import IDLE
from tracelens.lazy.records import dataclass

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A distinct call: an op with its arguments, a kernel that stands for itself, or a cause of idle time.

    ``kernel`` is empty for a whole op, else the kernel that is meant; ``shapes``, ``dtypes``: as recorded. ``work``:
    the perf model with its dimensions, whatever their data types, so that it is the same on every device and in every
    precision. ``module``: the classes of the modules around it, outermost first.
    """

    name: str
    category: str
    kernel: str = ""
    shapes: str | None = None
    dtypes: str | None = None
    module: str | None = None
    work: str | None = None

    def __post_init__(self) -> None:
        """TypeError for what a file has in place of a text: calls are keys."""
        if not all(isinstance(text, str) for text in (self.name, self.category, self.kernel)):
            raise TypeError("a call needs a name and a category")
        if not _are_texts_or_none(self.shapes, self.dtypes, self.module, self.work):
            raise TypeError(f"shapes, types, modules and work of {self.name[:40]!r} are no texts")

    @property
    def is_idle(self) -> bool:
        return self.category == IDLE

    @property
    def label(self) -> str:
        """What a row is called in print: the op, or the kernel where it stands for itself."""
        return family(self.kernel) if self.kernel else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What is known of one call's work; NaN is unknown. ``engine``: ``matrix_bf16``, None where nothing is computed."""

    flops: float = np.nan
    hbm_bytes: float = np.nan
    roofline_us: float = np.nan
    bound: str | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        """TypeError for what a file has in place of a text."""
        if not _are_texts_or_none(self.bound, self.engine):
            raise TypeError("what bounds a call, and what it computes in, must be texts")


def _are_texts_or_none(*values: object) -> bool:
    return all(isinstance(value, str | None) for value in values)


#: ``Recorded.device_label`` of a trace that does not say its device.
UNKNOWN_DEVICE = "unknown device"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """One trace as columns over its units: calls of ops, or kernels that stand for themselves, by time of launch.

    ``call``: index into ``calls``; ``step``: which of ``durations_ns`` launched it; ``kernel_ns``: the summed duration
    of its device events. Every moment of a step belongs to one unit: ``piece_ns`` of step ``piece_step`` to
    ``piece_unit``, together ``durations_ns``. By device event: its unit, its kernel (of ``kernel_names``) and its
    duration. ``repeats``: how many calls a unit stands for. ``typical``: the step nearest the median. ``is_ordered``:
    whether units stand in order of launch.
    """

    source: str
    calls: tuple[Call, ...]
    rates: tuple[Rates, ...]
    call: Ints
    step: Ints
    kernel_ns: Ints
    piece_unit: Ints
    piece_step: Ints
    piece_ns: Ints
    durations_ns: Ints
    event_unit: Ints
    event_kernel: Ints
    event_ns: Ints
    kernel_names: tuple[str, ...]
    repeats: Floats
    typical: int = 0
    rank: int | None = None
    device: str | None = None
    device_label: str = ""
    torch: str | None = None
    has_steps: bool = False
    is_ordered: bool = True

    def __post_init__(self) -> None:
        """TypeError where a file has another type in place of a text or a number."""
        texts = (self.source, self.device_label, *self.kernel_names)
        if not all(isinstance(text, str) for text in texts) or not _are_texts_or_none(self.device, self.torch):
            raise TypeError("source, device and kernels must be texts")
        if not isinstance(self.typical, int) or not isinstance(self.rank, int | None):
            raise TypeError("typical and rank must be whole numbers")
        if not isinstance(self.has_steps, bool) or not isinstance(self.is_ordered, bool):
            raise TypeError("has_steps and is_ordered must be true or false")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """All recordings of one side: runs of the same thing, each of one or more ranks.

    ``parts``: by run, then rank. What is said of a step is the mean over the ranks, then over the steps of all runs.
    """

    name: str
    parts: tuple[tuple[Recorded, ...], ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def recordings(self) -> tuple[Recorded, ...]:
        return tuple(one for run in self.parts for one in run)

    @property
    def first(self) -> Recorded:
        """The one whose order of calls stands for all."""
        return self.parts[0][0]


def by_step(side: Side, rows: Sequence[Ints], count: int) -> tuple[Floats, Floats | None]:
    """(row, step) of all runs: ns of each step that belong to each row; ``rows``: of each recording its units' rows.

    Ranks of a run wait for each other, so that a step is the mean of them. Where they recorded different numbers of
    steps, each run is one sample: the mean of the ranks' means. The second array is that of (rank, row, step), None
    where there is one rank, or where not every run has the same.
    """
    at, runs = iter(rows), []
    for run in side.parts:
        ranks = [_by_step(one, next(at), count) for one in run]
        if len({ranked.shape[1] for ranked in ranks}) > 1:
            ranks = [ranked.mean(axis=1, keepdims=True) for ranked in ranks]
        runs.append(np.stack(ranks))
    mean = np.concatenate([ranks.mean(axis=0) for ranks in runs], axis=1)
    of_runs = {tuple(one.rank for one in run) for run in side.parts}
    is_job = len(of_runs) == 1 and len(runs[0]) > 1
    return mean, np.concatenate(runs, axis=2) if is_job else None


def _by_step(one: Recorded, rows: Ints, count: int) -> Floats:
    found = np.zeros((count, len(one.durations_ns)), np.int64)
    np.add.at(found, (rows[one.piece_unit], one.piece_step), one.piece_ns)
    return found.astype(np.float64)


def weights(side: Side) -> list[float]:
    """What one step of each recording counts for in the mean step of the side."""
    sizes = [len({len(one.durations_ns) for one in run}) == 1 for run in side.parts]
    samples = [len(run[0].durations_ns) if even else 1 for run, even in zip(side.parts, sizes, strict=True)]
    return [
        count / sum(samples) / len(run) / len(one.durations_ns)
        for run, count in zip(side.parts, samples, strict=True)
        for one in run
    ]
