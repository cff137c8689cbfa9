"""Which kernel's constants stand for a call: its own, else the nearest by device, library, kernel and types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tracelens.backends.kernels import kernel_table
from tracelens.backends.kernels.kernel_costs import chosen_constants, constants_of_device
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import KernelConstants

TABLE = kernel_table("quantize-matrix")
ASKED = {"framework": "vllm", "kernel_source": "fast", "version": "2", "quant_dtype": "fp8"}


def row(device: str = "h200-sxm", **other: str) -> KernelConstants:
    return KernelConstants(device=device, case={**ASKED, **other}, constants={}, rows=1)


#: Each one farther from a call on an H200 than the one before it.
NEAR_TO_FAR = (
    row(),
    row(version="1"),
    row(kernel_source="slow"),
    row(kernel_source="slow", version="1"),
    row(framework="trtllm"),
    row(framework="trtllm", kernel_source="slow"),
    row("h100-sxm"),  # of its architecture
    row("b200"),  # of another one
    row(quant_dtype="int8"),
)


@pytest.mark.parametrize("at", range(len(NEAR_TO_FAR)))
def test_the_nearest_kernel_is_taken(at: int):
    """A kernel's version weighs least, then its name, its library, its device; types most."""
    assert TABLE is not None
    found = chosen_constants(TABLE, HardwareSpec.load("h200-sxm"), ASKED, tuple(reversed(NEAR_TO_FAR[at:])))
    assert found == (NEAR_TO_FAR[at],)


def test_what_a_call_leaves_open_is_every_kernel_of_the_nearest():
    assert TABLE is not None
    case: Mapping[str, str] = {"quant_dtype": "fp8"}
    rows = (row(), row(framework="trtllm"), row("h100-sxm"))
    assert chosen_constants(TABLE, HardwareSpec.load("h200-sxm"), case, rows) == rows[:2]
    assert chosen_constants(TABLE, HardwareSpec.load("h200-sxm"), case, ()) == ()


@pytest.mark.parametrize(
    ("device", "near", "far"),
    [
        ("b300", "b200", "h200-sxm"),  # its sister
        ("h100-sxm", "h200-sxm", "a100-sxm-80gb"),  # its architecture, another one
        ("mi325x", "mi300x", "mi355x"),  # gfx942 before gfx950
        ("mi300x", "mi355x", "h200-sxm"),  # AMD's next before NVIDIA's
    ],
)
def test_a_device_that_nobody_measured_takes_the_most_alike(device: str, near: str, far: str):
    assert TABLE is not None
    rows = (row(far), row(near))
    assert chosen_constants(TABLE, HardwareSpec.load(device), ASKED, rows) == (rows[1],)


def test_a_sister_counts_more_than_a_version():
    assert TABLE is not None
    rows = (row("b200"), row("b300", version="1"))
    assert chosen_constants(TABLE, HardwareSpec.load("b300"), ASKED, rows) == (rows[0],)


def test_a_kernel_of_another_operation_stands_for_none():
    table = kernel_table("gdn")
    assert table is not None
    device = HardwareSpec.load("h200-sxm")
    call = {"phase": "context", "kernel_source": "chunk_delta"}
    for other in ({"phase": "generation"}, {"kernel_source": "conv1d"}):
        alone = KernelConstants(device="h200-sxm", case={**call, **other}, constants={}, rows=1)
        assert chosen_constants(table, device, call, (alone,)) == ()


def test_a_devices_own_constants_stand_in_the_place_of_the_same_kernels_published_ones():
    device = HardwareSpec.load("h200-sxm")
    published = constants_of_device("gdn", device)
    assert constants_of_device("no-such-table", device) == ()
    mine = next(each for each in published if each.device == "h200-sxm")
    own = replace(mine, constants={"launch_us": 1.0})
    found = constants_of_device("gdn", replace(device, kernels={"gdn": (own,)}))
    same = [each for each in published if each.device == "h200-sxm"
            and all(each.case.get(key) == text for key, text in mine.case.items() if key != "version")]  # fmt: skip
    assert found == (own, *(each for each in published if each not in same))
    # of another device they are further ones
    other = constants_of_device("gdn", replace(HardwareSpec.load("b200"), kernels={"gdn": (own,)}))
    assert mine in other
