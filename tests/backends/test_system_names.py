"""Devices as published tables spell them: an order of words, a size of memory, a power limit, a machine's name."""

from __future__ import annotations

import pytest

from tracelens.backends.base import System, system_of
from tracelens.errors import UsageError
from tracelens.hardware.power import power_constants


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("H100-80GB-SXM", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("H100 SXM 80GB", "h100-sxm"),
        ("8x NVIDIA H100 SXM", "h100-sxm"),
        ("H100 (SXM, 80 GB) x 8", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100 80GB", "a100-sxm-80gb"),
        ("80GB A100", "a100-sxm-80gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("MI300X 192GB", "mi300x"),
        ("A3 Mega H100", "h100-sxm"),
        ("BM.GPU.H100.8", "h100-sxm"),
        ("NVIDIA H200 SXM 141GB", "h200-sxm"),
    ],
)
def test_a_device_in_any_spelling(text: str, device: str) -> None:
    found, note = system_of(text)
    assert found.device.name == device
    assert note is None or note.endswith(f" read as {device}")


@pytest.mark.parametrize(("text", "watts"), [("H100-80GB-SXM (350 W)", 350), ("H100-80GB-SXM-500W", 500)])
def test_a_power_limit_slows_the_device_down(text: str, watts: float) -> None:
    """Of 700 W the device draws 128 while it waits: what is left above that of what was, to the power of 1/1.7."""
    found, note = system_of(text)
    constants = power_constants(found.device)
    assert constants is not None
    left, all_of_it = (constants.share * limit - 128 for limit in (watts, 700))
    assert found.device.clock_scale == pytest.approx((left / all_of_it) ** (1 / 1.7))
    assert note == f"{text} read as h100-sxm at {watts} W"


@pytest.mark.parametrize("text", ["H100 40GB", "MI300X 80GB", "no such chip 80GB", "Z100"])
def test_another_memory_or_an_unknown_name_is_no_device(text: str) -> None:
    with pytest.raises(UsageError):
        system_of(text)


def test_no_limit_is_the_same_system() -> None:
    system = System.load("h100")
    assert system.at_power(None) is system.at_clock(None) is system
    assert system.at_power(2 * 700).device.clock_scale == 1
    assert system.at_clock(system.device.clock_mhz / 2).device.clock_scale == pytest.approx(0.5)


def test_without_measured_energies_the_clock_follows_the_same_law() -> None:
    system = System.load("a100-sxm-80gb")
    assert system.at_power(200).device.clock_scale == pytest.approx(0.5 ** (1 / 1.7))


def test_a_lower_limit_is_never_faster_and_one_that_waiting_exceeds_is_refused() -> None:
    system = System.load("h200-sxm")
    clocks = [system.at_power(watts).device.clock_scale for watts in range(200, 760, 20)]
    assert clocks == sorted(clocks)
    with pytest.raises(UsageError, match="above the 128 W"):
        system.at_power(100)
