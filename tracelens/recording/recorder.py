"""``tracelens.profile``: PyTorch's profiler with the options that a report needs, for a few steps of some ranks."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from tracelens.errors import UsageError
from tracelens.option_fields import made, takes
from tracelens.recording.recording_options import RecordingOptions
from tracelens.recording.trace_files import TraceFiles
from tracelens.units import BYTES_PER_MB


class Recorder:
    """A context manager; ``step()`` ends a training step. On a rank that is not recorded both do nothing.

    ``steps``: how many are recorded, once the first one has shown how large they are; ``forecast_bytes``: what their
    JSON will take, None before; ``files``: the traces that are written.
    """

    def __init__(self, folder: str | PathLike[str], options: RecordingOptions) -> None:
        self.options = options
        self.steps = options.steps
        self.forecast_bytes: int | None = None
        self._folder = Path(folder)
        self._files: TraceFiles | None = None
        self._profiler: Any = None
        #: Ends a step. Where this rank is recorded it is the profiler's own: nothing is added to a step.
        self.step: Callable[[], None] = _nothing

    @property
    def files(self) -> tuple[Path, ...]:
        """The traces written so far; waits for those on their way."""
        return () if self._files is None else self._files.wait()

    def __enter__(self) -> Recorder:
        rank = current_rank()
        if self.options.ranks and rank not in self.options.ranks:
            return self
        torch = _torch_profiler()
        activities = [torch.ProfilerActivity.CPU]
        if torch.ProfilerActivity.CUDA in torch.supported_activities():
            activities.append(torch.ProfilerActivity.CUDA)
        self._files = TraceFiles(self._folder, rank, report=self.options.report)
        self._action = torch.ProfilerAction
        self._profiler = torch.profile(
            activities=activities,
            schedule=self.action_of,
            record_shapes=self.options.shapes,
            profile_memory=self.options.memory,
            with_stack=self.options.stacks,
            on_trace_ready=self._ready,
        )
        self._profiler.__enter__()
        self.step = self._profiler.step
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._profiler is not None:
            self._profiler.__exit__(*failure)
            self._profiler, self.step = None, _nothing
        if self._files is not None:
            self._files.keep_probe()

    def action_of(self, step: int) -> Any:
        """What the profiler does in a step: skip, warm up, record one to see its size, skip one, warm up, record."""
        options, action = self.options, self._action
        at = step - options.skip - options.warmup
        if at < 0:
            return action.NONE if step < options.skip else action.WARMUP
        if options.limit_mb is not None:
            if at == 0:
                return action.RECORD_AND_SAVE
            # How large it was is known a step later
            if at == 1 or self.steps == 0:
                return action.NONE
            at -= 2 + options.warmup
            if at < 0:
                return action.WARMUP
        if at >= self.steps:
            return action.NONE
        return action.RECORD_AND_SAVE if at == self.steps - 1 else action.RECORD

    def _ready(self, profiler: Any) -> None:
        files, limit_mb = self._files, self.options.limit_mb
        if files is None:
            return
        if limit_mb is None or self.forecast_bytes is not None:
            files.write(profiler)
            return
        step_bytes = files.probe(profiler)
        room = int(limit_mb * BYTES_PER_MB // max(step_bytes, 1))
        self.steps = min(self.options.steps, room)
        self.forecast_bytes = step_bytes * max(self.steps, 1)
        if self.steps < self.options.steps:
            warnings.warn(
                f"tracelens.profile: a step takes {step_bytes / BYTES_PER_MB:,.0f} MB of JSON, so "
                f"{max(self.steps, 1)} of {self.options.steps} steps are recorded; limit_mb={limit_mb:g} is the limit",
                stacklevel=2,
            )


@takes(RecordingOptions)
def profile(folder: str | PathLike[str] = "traces", options: RecordingOptions | None = None, **given: Any) -> Recorder:
    """Records some steps into ``folder``, a file ``rankN.json.gz`` per rank: ``with tracelens.profile() as p``.

    Call ``p.step()`` at the end of every step. Files are compressed beside the program, which need not wait for them.
    UsageError where PyTorch is missing.
    """
    return Recorder(folder, made(RecordingOptions, given, options))


class handler:  # noqa: N801 - reads as torch.profiler's own tensorboard_trace_handler does
    """For ``torch.profiler.profile(on_trace_ready=tracelens.handler("traces"))``: writes traces as ``profile`` does.

    ``ranks``: only these; default: all. ``report``: also report on each file.
    """

    def __init__(
        self, folder: str | PathLike[str] = "traces", *, ranks: Iterable[int] = (), report: bool = False
    ) -> None:
        self._ranks = tuple(ranks)
        self._folder, self._report = Path(folder), report
        self._files: TraceFiles | None = None

    def __call__(self, profiler: Any) -> None:
        rank = current_rank()
        if self._ranks and rank not in self._ranks:
            return
        self._files = self._files or TraceFiles(self._folder, rank, report=self._report)
        self._files.write(profiler)

    @property
    def files(self) -> tuple[Path, ...]:
        """The traces written so far; waits for those on their way."""
        return () if self._files is None else self._files.wait()


def _nothing() -> None:
    return None


def current_rank() -> int:
    """This process's rank: what ``torchrun``, Slurm or MPI say; 0 for a job of one process."""
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return 0


def _torch_profiler() -> Any:
    try:
        return importlib.import_module("torch.profiler")
    except ImportError:
        raise UsageError("tracelens.profile records with PyTorch: pip install 'tracelens-perf[record]'") from None
