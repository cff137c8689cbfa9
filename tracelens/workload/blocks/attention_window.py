"""Attention to the nearest ``window`` keys."""

from __future__ import annotations

from typing import Any, ClassVar

from tracelens.workload.blocks.attention import Attention
from tracelens.workload.model_shape import ModelShape


class WindowedAttention(Attention):
    """Attention whose keys are the ``window`` before a token."""

    name: ClassVar[str] = "sliding_attention"

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"window": shape.window, **super().needs(shape)}

    def window(self, shape: ModelShape) -> int | None:
        return shape.window

    def cached_elements(self, shape: ModelShape) -> int:
        """None that stay: see ``window_bytes``."""
        return 0

    def window_bytes(self, shape: ModelShape, width: float) -> tuple[int, float]:
        return shape.window or 0, super().cached_elements(shape) * width


WINDOWED_ATTENTION = WindowedAttention(letter="w")
