"""Grids of measured times, and the files of aiconfigurator's layout that hold them.

Between measured points the logarithm of the time is linear in the logarithms of the sizes, over the cell of the grid
that encloses the shape; every corner that counts must have been measured, and outside of the grid there is no answer.
"""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.backends.base import Floats
from tracelens.errors import TracelensError
from tracelens.hardware import HardwareSpec
from tracelens.lazy.records import dataclass

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Logarithms of measured sizes along each axis, and of the times at their crossings; NaN where not measured."""

    axes: tuple[Floats, ...]
    log_us: npt.NDArray[np.float64]

    def at(self, sizes: Floats) -> Floats:
        """Times in us at the rows of ``sizes``, one column per axis."""
        inside, low, share = np.ones(len(sizes), bool), [], []
        for axis, values in zip(self.axes, np.log(sizes).T, strict=True):
            inside &= (values >= axis[0] - 1e-9) & (values <= axis[-1] + 1e-9)
            cell = np.clip(np.searchsorted(axis, values + 1e-9) - 1, 0, max(len(axis) - 2, 0))
            width = axis[np.minimum(cell + 1, len(axis) - 1)] - axis[cell]
            part = np.divide(values - axis[cell], width, out=np.zeros(len(values)), where=width > 0)
            low.append(cell)
            share.append(np.where(np.abs(part - part.round()) < 1e-6, part.round(), part))
        total = np.zeros(len(sizes))
        for corner in itertools.product((0, 1), repeat=len(self.axes)):
            weight = np.prod([s if side else 1 - s for side, s in zip(corner, share, strict=True)], axis=0)
            at = tuple(
                np.minimum(cell + side, len(axis) - 1) for cell, side, axis in zip(low, corner, self.axes, strict=True)
            )
            total += np.where(weight > 0, weight * self.log_us[at], 0.0)
        return np.where(inside, np.exp(total), np.nan)


def grid(points: pd.DataFrame, axes: tuple[str, ...]) -> Grid:
    """Of ``latency`` in ms over the columns ``axes``; of several times at a point the least."""
    fastest = points.groupby(list(axes))["latency"].min()
    sizes = [fastest.index.get_level_values(axis).to_numpy(np.float64) for axis in axes]
    values = [np.unique(size) for size in sizes]
    log_us = np.full([len(each) for each in values], np.nan)
    at = tuple(np.searchsorted(each, size) for each, size in zip(values, sizes, strict=True))
    log_us[at] = np.log(fastest.to_numpy(np.float64) * 1e3)
    return Grid(axes=tuple(np.log(each) for each in values), log_us=log_us)


def newest(folder: Path, names: tuple[str, ...], file: str) -> list[Path]:
    """The newest version of each framework's table: ``SYSTEM/FAMILY/FRAMEWORK/VERSION/``, before 0.10 no family."""
    newest: dict[str, Path] = {}
    for system in sorted(folder.iterdir()):
        if not system.is_dir() or _device_name(system.name) not in names:
            continue
        for path in sorted(system.rglob(f"{file}.*")):
            framework = path.parent.parent.name
            if path.suffix in (".parquet", ".txt", ".csv"):
                other = newest.get(framework)
                if other is None or _version(path) > _version(other):
                    newest[framework] = path
    return [newest[name] for name in sorted(newest)]


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.parent.name))


@functools.cache
def _device_name(folder: str) -> str | None:
    try:
        return HardwareSpec.load(folder).name
    except TracelensError:
        return None
