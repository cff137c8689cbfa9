"""A perf model that the tile backend prices is one file: the class says its family, the pricer stands beside it."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens.backends import System
from tracelens.backends.chain import chain
from tracelens.backends.roofline_and_tile import Tile
from tracelens.extensions import load_extension
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, WorkColumns

FILE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tracelens.backends.base import Priced, pricer
from tracelens.types.dtypes import DType
from tracelens.perf_models import GEMM, PerfModel, traced_as
from tracelens.perf_models.gemm import Product


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(PerfModel):
    """A scan of a family of its own."""

    engine: ClassVar[str] = "matrix"
    priced_as: ClassVar[str] = "scan"
    length: int
    dtype: DType = DType.BF16

    def flops(self):
        return 2 * self.length

    def hbm_bytes(self):
        return 4 * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Twice(PerfModel):
    """Two products in one op, priced as every other product."""

    engine: ClassVar[str] = "matrix"
    priced_as: ClassVar[str] = "gemm"
    one: GEMM
    dtype: DType = DType.BF16

    def flops(self):
        return 2 * self.one.flops()

    def hbm_bytes(self):
        return 2 * self.one.hbm_bytes()

    def products(self) -> tuple[Product, ...]:
        return self.one.products() * 2


@pricer("scan")
def scans(work, device):
    """A microsecond per 1000 elements, on any device."""
    time = np.array([model.length / 1000 for model in work.models])
    return Priced(time_us=time, compute_us=time, memory_us=np.zeros(len(time)), peak_us=np.zeros(len(time)))


@traced_as("outside::scan")
def _scan(op) -> Scan:
    return Scan(length=op.shape(0)[0])
'''
H100 = System(device=HardwareSpec.load("h100"))


@pytest.fixture
def outside(tmp_path):
    """The module of an extension's file."""
    path = tmp_path / "outside.py"
    path.write_text(FILE)
    return load_extension(path).sources[0]


def test_a_class_with_a_pricer_beside_it_is_priced_by_it(outside):
    scan = outside.Scan(length=8_000_000)
    assert Tile().estimate(scan, H100).time_us == 8000
    found = chain("tile").estimate_many(WorkColumns.of([scan, GEMM(m=64, n=64, k=64)]), H100)
    assert found.backend == ("tile", "tile")
    assert found.time_us[0] == 8000
    assert found.bound[0] == "compute"


def test_a_class_of_a_known_family_is_priced_as_that_family(outside):
    one = GEMM(m=4096, n=4096, k=4096)
    twice = outside.Twice(one=one)
    assert Tile().estimate(twice, H100).time_us == pytest.approx(2 * Tile().estimate(one, H100).time_us)


def test_a_pricer_from_outside_never_beats_the_data_sheet(outside):
    scan = outside.Scan(length=10**12)
    least = 4 * 10**12 / (H100.device.hbm.peak_tb_s * 1e6)
    assert Tile().estimate(outside.Scan(length=1000), H100).peak_us > 0
    assert Tile().estimate(scan, H100).time_us == pytest.approx(max(1e9, least))


def test_a_family_without_a_pricer_is_left_to_the_next_backend(outside, monkeypatch):
    monkeypatch.setattr(outside.Scan, "priced_as", "unheard of")
    found = chain("tile").estimate_many(WorkColumns.of([outside.Scan(length=1000)]), H100)
    assert found.backend == ("roofline",)
    assert np.isfinite(found.time_us).all()
