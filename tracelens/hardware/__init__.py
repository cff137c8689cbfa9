"""What a device can do: one TOML file per device, every figure with its source."""

from tracelens.hardware.device_figures import BusBandwidth, Figure, Hbm, Link, Match, MatrixCores, Rate
from tracelens.hardware.recognition import Recognition, common, contradiction, describe, recognize
from tracelens.hardware.spec import HardwareSpec

__all__ = [
    "BusBandwidth", "Figure", "HardwareSpec", "Hbm", "Link", "Match", "MatrixCores", "Rate", "Recognition", "common",
    "contradiction", "describe", "recognize",
]  # fmt: skip
