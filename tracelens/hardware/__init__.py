"""What a device can do: one TOML file per device, every figure with its source."""

from tracelens.hardware.recognition import Recognition, contradiction, describe, recognize
from tracelens.hardware.spec import (
    BusBandwidth,
    Figure,
    HardwareSpec,
    Hbm,
    Link,
    Match,
    MatrixCores,
    Rate,
    common,
)

__all__ = [
    "BusBandwidth",
    "Figure",
    "HardwareSpec",
    "Hbm",
    "Link",
    "Match",
    "MatrixCores",
    "Rate",
    "Recognition",
    "common",
    "contradiction",
    "describe",
    "recognize",
]
