"""The roofline: arithmetic by hand, and the laws that every estimate obeys."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.backends import System, backends, load
from tracelens.backends.base import Backend
from tracelens.backends.roofline_and_tile import Roofline
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec, common
from tracelens.perf_models import GEMM
from tracelens.perf_models.base import PerfModel, WorkColumns
from tracelens.types.dtypes import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(PerfModel):
    """An operation whose work is what the test says."""

    category: ClassVar[str] = "test"

    work_flops: float | None = 0
    work_hbm: float | None = 0
    work_wire: float | None = 0
    dtype: DType | None = DType.BF16

    def flops(self):
        return self.work_flops

    def hbm_bytes(self):
        return self.work_hbm

    def wire_bytes(self):
        return self.work_wire


class MatrixJob(Job):
    __slots__ = ()
    engine: ClassVar[str] = "matrix"


def on(name):
    return System(device=HardwareSpec.load(name))


def estimate(op, name="mi300x"):
    return Roofline().estimate(op, on(name))


def test_a_large_gemm_is_bound_by_achievable_compute():
    # 708e12 flops at 708 achievable, 1307.4 peak TFLOPS; 5.3e9 bytes at 5.3 TB/s.
    found = estimate(MatrixJob(work_flops=708e12, work_hbm=5.3e9))
    assert found.compute_us == pytest.approx(1e6)
    assert found.memory_us == pytest.approx(1e3)
    assert found.time_us == found.compute_us
    assert found.peak_us == pytest.approx(1e6 * 708 / 1307.4)
    assert (found.bound, found.rate_basis, found.backend) == ("compute", "achievable", "roofline")


def test_a_rate_that_nobody_measured_is_the_peak_and_says_so():
    found = estimate(MatrixJob(work_flops=312e12, work_hbm=1), "a100-sxm-40gb")
    assert found.time_us == found.peak_us == pytest.approx(1e6)
    assert found.rate_basis == "peak"


def test_a_copy_is_bound_by_memory():
    found = estimate(Job(work_flops=0, work_hbm=5.3e6))
    assert (found.time_us, found.bound, found.rate_basis) == (pytest.approx(1.0), "memory", None)


def test_a_token_exchange_is_bound_by_the_link():
    found = estimate(Job(work_flops=0, work_hbm=None, work_wire=448e6))  # 448 GB/s, one direction
    assert (found.time_us, found.bound) == (pytest.approx(1e3), "wire")
    assert found.memory_us is None


@pytest.mark.parametrize("dtype", [None, DType.BOOL, DType.BF16])
def test_an_unknown_compute_rate_leaves_memory_time(dtype):
    # The MI300X file has no bf16 vector rate.
    found = estimate(Job(work_flops=1e15, work_hbm=5.3e6, dtype=dtype))
    assert (found.time_us, found.bound, found.compute_us, found.rate_basis) == (
        pytest.approx(1.0),
        "memory",
        None,
        None,
    )


def test_unknown_bytes_leave_compute_time():
    found = estimate(MatrixJob(work_flops=708e6, work_hbm=None))
    assert (found.time_us, found.bound, found.memory_us) == (pytest.approx(1.0), "compute", None)


def test_nothing_known_is_no_estimate():
    assert estimate(Job(work_flops=None, work_hbm=None, work_wire=None)) is None


def test_a_device_without_a_link_has_no_wire_time():
    found = estimate(Job(work_flops=0, work_hbm=1.6e6, work_wire=1e6), "mi210")
    assert (found.wire_us, found.bound, found.time_us) == (None, "memory", pytest.approx(1.0))


def test_no_work_takes_no_time_and_is_bound_by_nothing():
    found = estimate(Job(work_flops=0, work_hbm=0, work_wire=0))
    assert (found.time_us, found.peak_us, found.bound) == (0.0, 0.0, None)


def test_a_tie_goes_to_compute_then_memory():
    gaudi = HardwareSpec.load("gaudi3")  # 1243 achievable TFLOPS, 3.7 TB/s, 600 GB/s: work for exactly 1 us each
    tie = Roofline().estimate(MatrixJob(work_flops=1243e6, work_hbm=3.7e6, work_wire=600e3), System(device=gaudi))
    assert (tie.compute_us, tie.memory_us, tie.wire_us, tie.bound) == (1.0, 1.0, 1.0, "compute")
    tie = Roofline().estimate(MatrixJob(work_flops=0, work_hbm=3.7e6, work_wire=600e3), System(device=gaudi))
    assert tie.bound == "memory"


def test_what_two_devices_agree_on_still_times_memory():
    agreed = common([HardwareSpec.load("mi350x"), HardwareSpec.load("mi355x")])
    found = Roofline().estimate(Job(work_flops=1e6, work_hbm=8e6), System(device=agreed))
    assert (found.time_us, found.bound, found.compute_us) == (pytest.approx(1.0), "memory", None)


def test_no_rows_give_no_rows():
    table = Roofline().estimate_many(WorkColumns.of([]), on("mi300x"))
    assert (len(table), table.time_us.shape, list(table.rows())) == (0, (0,), [])


amounts = st.one_of(st.none(), st.just(0), st.floats(1e-3, 1e18), st.integers(0, 10**18))
jobs = st.builds(
    lambda kind, **work: kind(**work),
    st.sampled_from([Job, MatrixJob]),
    work_flops=amounts,
    work_hbm=amounts,
    work_wire=amounts,
    dtype=st.sampled_from([None, *DType]),
)
systems = st.sampled_from(HardwareSpec.names()).map(on)


@given(jobs, systems)
def test_an_estimate_never_beats_the_peak_of_the_device(job, system):
    found = Roofline().estimate(job, system)
    if found is None:
        return
    device = system.device
    slack = 1 + 1e-12
    assert found.time_us * slack >= found.peak_us >= 0
    rate = device.rate(job.engine, job.dtype)
    if rate is not None and job.work_flops:
        assert job.work_flops <= found.time_us * rate.peak_tflops_s * 1e6 * slack
    if job.work_hbm and device.hbm is not None and device.hbm.peak_tb_s:
        assert job.work_hbm <= found.time_us * device.hbm.peak_tb_s * 1e6 * slack
    if job.work_wire and device.link is not None:
        assert job.work_wire <= found.time_us * device.link.gb_s * 1e3 * slack


@given(jobs, systems, st.floats(1, 10), st.sampled_from(["work_flops", "work_hbm", "work_wire"]))
def test_more_work_never_takes_less_time(job, system, factor, what):
    amount = getattr(job, what)
    if amount is None:
        return
    small, large = (
        Roofline().estimate(job, system),
        Roofline().estimate(replace(job, **{what: amount * factor}), system),
    )
    if small is not None and large is not None:
        assert large.time_us >= small.time_us * (1 - 1e-12)
        assert large.peak_us >= small.peak_us * (1 - 1e-12)


@given(st.lists(jobs, max_size=6), systems)
def test_many_rows_are_the_rows_one_by_one(rows, system):
    roofline = Roofline()
    table = roofline.estimate_many(WorkColumns.of(rows), system)
    assert list(table.rows()) == [roofline.estimate(row, system) for row in rows]
    assert len(table) == len(rows)


@given(jobs, systems)
def test_time_is_the_largest_known_part_and_the_bound_names_it(job, system):
    found = Roofline().estimate(job, system)
    if found is None:
        return
    parts = {"compute": found.compute_us, "memory": found.memory_us, "wire": found.wire_us}
    assert found.time_us == max(part for part in parts.values() if part is not None)
    assert (found.bound is None) == (found.time_us == 0)
    if found.bound is not None:
        assert parts[found.bound] == found.time_us


def test_unknown_is_nan_in_columns_and_none_in_rows():
    table = Roofline().estimate_many(WorkColumns.of([Job(work_flops=None, work_hbm=None, work_wire=None)]), on("l4"))
    assert np.isnan(table.time_us[0])
    assert math.isnan(table.peak_us[0])
    assert table.row(0) is None


def test_a_product_in_a_type_without_a_rate_has_no_time_and_no_bound():
    """A T4 multiplies no BF16: its 6.3 MB, 20 us of its memory, say nothing about a product of 2.1 GFLOPs."""
    models = [GEMM(m=1024, n=1024, k=1024, dtype=dtype) for dtype in (DType.BF16, DType.FP16)]
    bf16, fp16 = (Roofline().estimate(model, on("t4")) for model in models)
    assert bf16 is None
    assert fp16.bound == "compute"
    assert fp16.time_us == pytest.approx(2 * 1024**3 / 65e6)


def test_the_roofline_is_found_by_its_name():
    assert "roofline" in backends()
    found = load("roofline")
    assert isinstance(found, Backend)
    assert found.name == "roofline"


def test_an_unknown_backend_proposes_a_close_one():
    with pytest.raises(UsageError, match="no backend named 'roofl1ne'; did you mean roofline"):
        load("roofl1ne")
