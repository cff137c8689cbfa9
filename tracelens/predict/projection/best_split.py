"""The split of a training step that nobody gave: the fastest that fits, by the search of ``tracelens search``."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tracelens.predict.projection.projection_options import ProjectOptions, SearchOptions
from tracelens.predict.projection.search.request import Answer, Request, answer
from tracelens.predict.projection.search.systems import AS_THEY_ARE
from tracelens.types.records import Record

if TYPE_CHECKING:
    import pandas as pd

#: A step with one of these given is split as it says; the others are 1, and ZeRO 1.
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "zero", "shard")
#: Sequences per step and GPU where no global batch is given: as many as 8 micro-batches of 1 on as many replicas.
_SEQUENCES_PER_GPU = 8
#: Options of a projection that the search takes too, as such or fixed.
_SEARCHED = frozenset({
    "nodes", "gpus", "sequence", "global_batch", "micro_batch", "recompute", "precision", "backend", "framework",
})  # fmt: skip
#: What a search calls the degrees of a node, in the order in which a projection places them.
_PLACED = (("tp1", "nv_tp1"), ("tp2", "nv_tp2"), ("dp", "nv_dp"), ("pp", "nv_pp"))


class BestSplit(Record, frozen=True, kw_only=True):
    """``options`` of a projection that make the split; ``fitting``: how many splits fit. ``unsearched``: options given
    that the search does not know.
    """

    options: dict[str, Any]
    fitting: int
    is_batch_given: bool
    unsearched: tuple[str, ...]

    def on(self, asked: ProjectOptions) -> ProjectOptions:
        """``asked`` with this split."""
        return replace(asked, **self.options)

    @property
    def words(self) -> str:
        """The degrees above 1, ZeRO, micro-batch and recomputation."""
        given = self.options
        degrees = [f"{name} {given[name]}" for name in ("tp", "cp", "pp", "vpp", "ep") if given[name] > 1]
        parts = [" ".join(degrees) or "data parallelism alone", f"ZeRO {given['zero']}"]
        return ", ".join([*parts, f"micro-batch {given['micro_batch']}", f"recompute {given['recompute']}"])

    @property
    def sentence(self) -> str:
        """Which split this is, of how many, for which global batch."""
        source = "" if self.is_batch_given else f", {_SEQUENCES_PER_GPU} per GPU (--global-batch)"
        known = f" The search does not know {', '.join(self.unsearched)}." if self.unsearched else ""
        return (
            f"No degree was given, so tracelens took the fastest of {self.fitting:,} splits that fit: {self.words}. "
            f"The global batch is {self.options['global_batch']:,} sequences{source}.{known}"
        )

    def command(self, line: Collection[str], given: Collection[str]) -> list[str]:
        """``line`` with the options that ask for the split, one degree at least."""
        words = list(line)
        for name, value in self.options.items():
            if name not in given and (name == "tp" or value != getattr(ProjectOptions(), name)):
                words += [f"--{name.replace('_', '-')}", str(value)]
        return words


def best_split(
    model: str, cluster: str, asked: ProjectOptions, *, ranks: int, given: Collection[str]
) -> BestSplit | None:
    """The fastest split of ``ranks`` devices that fits and that a projection has options for; None where none fits.
    ``given``: the options that somebody gave, of which micro-batch and recomputation are kept.
    """
    fixed: dict[str, Any] = {"mbs": asked.micro_batch} if "micro_batch" in given else {}
    if "recompute" in given:
        fixed["recompute"] = "full" if asked.recompute == "full" else "none"
    batch = asked.global_batch or _SEQUENCES_PER_GPU * asked.micro_batch * ranks
    options, fitting = _searched(
        model, cluster,
        SearchOptions(
            gpus=ranks, global_batch=batch, sequence=asked.sequence, precision=(str(asked.precision),),  # type: ignore[arg-type]
            backend=asked.backend, framework=asked.framework, fix=tuple(f"{k}={v}" for k, v in fixed.items()),
        ),
    )  # fmt: skip
    if options is None:
        return None
    names = [each.name for each in fields(ProjectOptions)]
    unsearched = [f"--{name.replace('_', '-')}" for name in names if name in given and name not in _SEARCHED]
    kept = {"recompute": asked.recompute} if "recompute" in given else {}
    return BestSplit(
        options={**options, **kept, "global_batch": batch}, fitting=fitting,
        is_batch_given=asked.global_batch is not None, unsearched=tuple(unsearched),
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _searched(model: str, cluster: str, options: SearchOptions) -> tuple[dict[str, Any] | None, int]:
    """The options of the best split, and how many splits fit. Points of a sweep that ask the same are searched once."""
    found = answer(Request.of(model, cluster, options))
    rows = (row for _, row in found.best.iterrows() if row["mem"] <= found.rule_sets[0].capacity_gb)
    splits = (options_of_row(found, row) for row in rows)
    return next((split for split in splits if split), None), sum(map(len, found.ranking().values()))


def options_of_row(found: Answer, row: pd.Series) -> dict[str, Any] | None:
    """The options of a projection that make ``row``; None where it has none for all of it."""
    request, free, usual = found.request, int(row["nvs"]), []
    for degree, _ in _PLACED:
        usual.append(min(int(row[degree]), free))
        free //= usual[-1]
    has_options = row["strategy"] != "2d" and "=" not in request.model and "-nvs" not in request.cluster
    if not has_options or request.figures != AS_THEY_ARE or usual != [int(row[name]) for _, name in _PLACED]:
        return None
    degrees = {"tp": "tp1", "cp": "tp2", "pp": "pp", "vpp": "vpp", "ep": "ep", "zero": "zero", "micro_batch": "mbs"}
    return {**{name: int(row[column]) for name, column in degrees.items()}, "recompute": str(row["recompute"])}
