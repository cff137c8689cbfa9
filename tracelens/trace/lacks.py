"""Why a trace has no shapes or no Python frames, as far as the file itself says, and what records them."""

from __future__ import annotations

from tracelens.lazy.records import dataclass
from tracelens.trace.table import Kind, Recorder, TraceTable

#: PyTorch names steps in a trace only where the profiler has a schedule: ``record_steps``, torch/profiler/profiler.py.
STEPS_ADVICE = "profile with schedule=torch.profiler.schedule(...) and call profiler.step() once per iteration"
_RANGES_ADVICE = "put each iteration into a range with its number ('iteration 7')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """``what`` is missing, in the words of a sentence, ``because`` of what, and the ``option`` that records it: empty
    where it was set.
    """

    what: str
    because: str
    option: str

    def __str__(self) -> str:
        return f"{self.what}: {self.advice}" if self.option else self.what

    @property
    def advice(self) -> str:
        """What to do; empty where nothing helps."""
        return f"use {self.option}" if "(" in self.option or "=" in self.option else self.option


def no_shapes(table: TraceTable) -> Lack:
    """Of a trace in which no event has shapes."""
    recorder = table.recorder
    if recorder == Recorder() and not (table.kind == Kind.CPU_OP).any():
        what = "no CPU ops were recorded"
        return Lack(what=what, because=what, option="add ProfilerActivity.CPU to activities")
    if _was_on(table, "record_shapes"):
        what = "no op has shapes, although record_shapes was on"
        return Lack(what=what, because=what, option="")
    return Lack(what="no shapes were recorded", because=recorder.no_shapes, option=recorder.shapes_option)


def no_stacks(table: TraceTable) -> Lack:
    """Of a trace without Python frames."""
    what = "no Python frames were recorded"
    if _was_on(table, "with_stack"):
        because = "the file has no Python frames, although with_stack was on"
        return Lack(what=what, because=because, option="")
    return Lack(what=what, because=table.recorder.no_stacks, option="with_stack=True")


def steps_advice(table: TraceTable) -> str:
    """What makes steps of a recording like this one."""
    return STEPS_ADVICE if _by_torch(table) else _RANGES_ADVICE


def no_runtime_calls(table: TraceTable) -> str:
    """Why a trace has no calls of the runtime."""
    advice = "add ProfilerActivity.CPU to activities" if _by_torch(table) else "trace the CUDA or HIP API too"
    return f"no runtime calls were recorded: {advice}"


def without(table: TraceTable, what: str, option: str) -> str:
    """Why a trace has no ``what`` (plural), which torch.profiler records with an ``option``."""
    if _by_torch(table):
        return f"no {what} were recorded: pass {option} to the profiler"
    none = f"{table.recorder.file} has no {what}"
    # Where torch.profiler could record the shapes, it could record these
    return f"{none}; torch.profiler records them with {option}" if "torch" in table.recorder.shapes_option else none


def lacks_sync_events(table: TraceTable) -> bool:
    """Whether CUDA's profiler was not told to record which event a stream waits for; ROCm's cannot."""
    return "cudaStreamWaitEvent" in table.names and not len(table.event_waits)


def _by_torch(table: TraceTable) -> bool:
    return table.recorder.file == Recorder().file


def _was_on(table: TraceTable, option: str) -> bool:
    """Kineto notes the options of the profiler that were on."""
    return table.metadata.get(option) == 1
