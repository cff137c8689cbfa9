"""What is recorded: declared once for ``tracelens.profile`` and the snippets of ``tracelens record``."""

from __future__ import annotations

from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.option_fields import option, positive, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """What ``tracelens.profile`` takes beside a folder."""

    steps: int = option("steps to record", 3, kind=positive)
    skip: int = option("steps before that run without the profiler: compilation, allocation, autotuning", 5, kind=whole)
    warmup: int = option("steps that run with it and are not recorded", 2, kind=whole)
    ranks: tuple[int, ...] = option("only these ranks; default: all", (), kind=whole, repeat=True)
    shapes: bool = option("record shapes: without them there are no FLOPs, bytes or rooflines", True)
    memory: bool = option("record every allocation: memory over time; files grow", False)
    stacks: bool = option("record Python frames and modules: slows the host, files several times larger", False)
    limit_mb: float | None = option(
        "uncompressed size of a file: one step is recorded to see its size, then as many as fit; None: no limit", 1000.0
    )
    report: bool = option("report on each file as soon as it is written", False)

    def __post_init__(self) -> None:
        """UsageError for a count that cannot be."""
        if self.steps < 1 or self.skip < 0 or self.warmup < 0 or (self.limit_mb is not None and self.limit_mb <= 0):
            raise UsageError("steps must be at least 1, skip and warmup at least 0, limit_mb above 0")
