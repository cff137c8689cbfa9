"""Words that databases and CSV of ROCm's profilers share: calls, copies, properties of GPUs."""

from __future__ import annotations

import re
from typing import Any

from tracelens.lazy.patterns import lazy_pattern

_CATEGORIES = (("HIP", "hip_runtime"), ("HSA", "hsa_runtime"), ("RCCL", "rccl_runtime"))
_DIRECTION = lazy_pattern(r"(HOST|DEVICE)_?TO_?(HOST|DEVICE)", re.IGNORECASE)


def call_category(domain: str) -> str:
    """The category of a call by its domain; any other is the program's own range.

    >>> call_category("HIP_RUNTIME_API"), call_category("MARKER_CORE_API")
    ('hip_runtime', 'user_annotation')
    """
    return next((category for word, category in _CATEGORIES if word in domain.upper()), "user_annotation")


def copy_name(text: str) -> str:
    """As rocprofv3's JSON spells it.

    >>> copy_name("MEMORY_COPY_HOST_TO_DEVICE")
    'CopyHostToDevice'
    """
    match = _DIRECTION.search(text)
    return f"Copy{match[1].title()}To{match[2].title()}" if match else text


def gpu_properties(name: str, *, units: object, wave: object) -> dict[str, Any]:
    """An entry of ``deviceProperties``, as Kineto writes it, without what is not recorded.

    >>> gpu_properties("AMD Instinct MI300X", units=304, wave=None)
    {'name': 'AMD Instinct MI300X', 'numSms': 304}
    """
    known: dict[str, Any] = {"name": name} if name else {}
    sizes = {"numSms": units, "warpSize": wave}
    return known | {key: size for key, size in sizes.items() if isinstance(size, int) and size > 0}
