"""What the caller of an analysis chose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracelens.errors import UsageError
from tracelens.extensions import Extension, detect_bundled, load_extension
from tracelens.lazy.records import dataclass

if TYPE_CHECKING:
    from tracelens.analysis.loaded_trace import Trace
    from tracelens.hardware import HardwareSpec
    from tracelens.trace.reading.memory_snapshot import DeviceMemory
    from tracelens.workload import ModelConfig

#: ``Options.overlap``: device events of one stream that run into the next stay as recorded, or end where it starts.
KEEP, CLIP = "keep", "clip"
#: ``Options.steps``: all of the file as one window, whatever steps it has.
FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What the caller says about a step: the model, and as much about its tokens as the trace does not record.

    ``tokens`` in one step, or ``batch`` sequences of ``sequence`` tokens. ``ranks``: among how many devices the work on
    these tokens is divided; None where the caller did not say.
    """

    model: ModelConfig
    tokens: int | None = None
    batch: int | None = None
    sequence: int | None = None
    ranks: int | None = None

    def __post_init__(self) -> None:
        """UsageError for figures that contradict or miss one another."""
        if self.batch is not None and self.tokens is not None:
            raise UsageError("--tokens-per-step and --batch mean the same; give only one")
        if self.batch is not None and self.sequence is None:
            raise UsageError("--batch needs --sequence (tokens per sequence)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the caller chose. ``device``: None recognizes it from the trace. ``extensions``: loaded ones.

    ``bundled``: let bundled extensions switch themselves on. ``ep_size``: ranks of the expert-parallel group, where the
    trace does not record it. ``steps``: ``3``, ``3-5``, ``steady``, ``file`` for all of the file, or None for
    the complete steps (all of the file where there are none).
    ``overlap``: ``keep`` or ``clip`` device events of one stream that run into the next. ``cpu``: tables of the CPU ops
    too, and a report at all where there is no GPU work. ``work``: the model that the
    trace's steps run, for its FLOPs utilization. ``capture``: the trace in which the graphs that this one replays were
    captured. ``shapes``: a trace of the same program with the shapes that this one lacks. ``memory_snapshot``: of the
    allocator of the same run.
    ``rank``: of a file in which several ranks were merged, the one to analyze; None is the first.
    """

    device: HardwareSpec | None = None
    extensions: tuple[Extension, ...] = ()
    bundled: bool = True
    steps: str | None = None
    ep_size: int | None = None
    overlap: str = KEEP
    cpu: bool = False
    backend: str = "roofline"
    clock_mhz: float | None = None
    work: StepWork | None = None
    capture: Trace | None = None
    shapes: Trace | None = None
    memory_snapshot: tuple[DeviceMemory, ...] | None = None
    rank: int | None = None


def active_extensions(names: Iterable[str], options: Options) -> tuple[Extension, ...]:
    """The caller's extensions, then the bundled ones whose op names occur in the trace."""
    given = {extension.name for extension in options.extensions}
    bundled = [load_extension(name) for name in detect_bundled(names) if name not in given] if options.bundled else []
    return (*options.extensions, *bundled)
