"""``tracelens.profile``: PyTorch's profiler with the options that a report needs, the files that it writes,
callbacks of trainers, and what to record for a question.
"""

from __future__ import annotations

import gzip
import importlib
import os
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from tracelens.errors import TracelensError, UsageError
from tracelens.option_fields import build_options, option, positive, takes, whole
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_MB


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


#: Of gzip: 6 takes four times as long for files a tenth smaller.
_LEVEL = 1


class TraceFiles:
    """The files of one rank in a folder: ``rank3.json.gz``, later ones ``rank3_2.json.gz``."""

    def __init__(self, folder: Path, rank: int, *, report: bool) -> None:
        self._folder, self._rank, self._report = folder, rank, report
        self._written: list[Path] = []
        self._probe: Path | None = None
        self._threads: list[threading.Thread] = []

    def write(self, profiler: Any) -> None:
        """Exports now, compresses in a thread that the process waits for when it ends."""
        if self._probe is not None:
            self._probe.unlink()
            self._probe = None
        self._finish(_exported(profiler, self._folder))

    def probe(self, profiler: Any) -> int:
        """Bytes of the JSON of a first trace, which is only kept if no other follows."""
        self._probe = _exported(profiler, self._folder)
        return self._probe.stat().st_size

    def keep_probe(self) -> None:
        """Writes the first trace if no other followed."""
        if self._probe is not None:
            self._finish(self._probe)
            self._probe = None

    def wait(self) -> tuple[Path, ...]:
        """The files, all of them whole."""
        for thread in self._threads:
            thread.join()
        return tuple(self._written)

    def _finish(self, file: Path) -> None:
        number = len(self._threads) + 1
        path = self._folder / f"rank{self._rank}{f'_{number}' if number > 1 else ''}.json.gz"
        thread = threading.Thread(target=self._compress, args=(file, path), name="tracelens-write")
        self._threads.append(thread)
        thread.start()

    def _compress(self, file: Path, path: Path) -> None:
        part = path.with_name(f"{path.name}.part")
        try:
            with (
                file.open("rb") as source,
                part.open("wb") as sink,
                gzip.GzipFile(path.name, "wb", _LEVEL, sink, mtime=0) as packed,
            ):
                shutil.copyfileobj(source, packed, 1 << 20)
            part.replace(path)
            self._written.append(path)
            if self._report:
                from tracelens.report import report

                report(path, cpu=True).write(path.with_name(f"{path.name.removesuffix('.json.gz')}.report"))
        except (OSError, TracelensError) as error:
            warnings.warn(f"tracelens could not write {path} or its report: {error}", stacklevel=1)
        finally:
            part.unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def _exported(profiler: Any, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=".tracelens-", suffix=".json", dir=folder, delete=False) as file:
        path = Path(file.name)
    profiler.export_chrome_trace(str(path))
    return path


class StepRecorder:
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

    def __enter__(self) -> StepRecorder:
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
                f"{max(self.steps, 1)} of {self.options.steps} steps are recorded; limit_mb={limit_mb:g} limits it",
                stacklevel=2,
            )


@takes(RecordingOptions)
def profile(
    folder: str | PathLike[str] = "traces", options: RecordingOptions | None = None, **given: Any
) -> StepRecorder:
    """Records some steps into ``folder``, a file ``rankN.json.gz`` per rank: ``with tracelens.profile() as p``.

    Call ``p.step()`` at the end of every step. Files are compressed beside the program, which need not wait for them.
    UsageError where PyTorch is missing.
    """
    return StepRecorder(folder, build_options(RecordingOptions, given, options))


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


def _nothing(*_: Any, **__: Any) -> None:
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


class TrainerCallback:
    """Begins with training, ends a step with each batch, ends with training; every other hook does nothing.

    ``Trainer(callbacks=[TrainerCallback(tracelens.profile("traces"))])`` in Hugging Face's and Lightning's words.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Hugging Face: training begins."""
        self._recorder.__enter__()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Hugging Face: an optimizer step is done."""
        self._recorder.step()

    def on_train_start(self, *_: Any, **__: Any) -> None:
        """Lightning: training begins."""
        self._recorder.__enter__()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Lightning: a batch is done."""
        self._recorder.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Both: training is over."""
        self._recorder.__exit__(None, None, None)

    @property
    def state_key(self) -> str:
        """Lightning: under which name a checkpoint keeps it."""
        return "tracelens"

    def state_dict(self) -> dict[str, Any]:
        """Lightning: there is nothing to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lightning: see ``state_dict``."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_") or name in ("setup", "teardown"):
            return _nothing
        raise AttributeError(name)


class Question(Record, frozen=True, kw_only=True):
    """``words``: what people call it by; ``options``: of ``tracelens.profile``; ``then``: what answers it."""

    text: str
    words: str
    then: str
    why: str
    options: Mapping[str, object] = msgspec.field(default_factory=dict)


#: The first is the one to fall back on; of others, the one that shares most words with what is asked.
QUESTIONS = (
    Question(
        text="where does the time go", words="time slow fast step bottleneck overview profile",
        why="shapes give FLOPs, bytes and rooflines; three steps show how much steps vary",
        then="tracelens report traces/rank0.json.gz", options={"ranks": (0,)},
    ),
    Question(
        text="why is rank 3 slow, or communication",
        words="rank ranks straggler stragglers communication collective collectives nccl rccl allreduce network",
        why="waiting shows only beside the ranks that are waited for: every rank, the same steps",
        then="tracelens collectives traces/",
    ),
    Question(
        text="which line of my code or which module is slow",
        words="line code stack stacks module modules layer layers python source function",
        why="stacks name modules and lines; they slow the host, so measure times without them",
        then="tracelens report traces/rank0.json.gz", options={"ranks": (0,), "stacks": True, "steps": 1},
    ),
    Question(
        text="what takes the memory", words="memory oom allocation allocations allocated reserved fragmentation",
        why="an event per allocation", then="tracelens report traces/rank0.json.gz",
        options={"ranks": (0,), "memory": True, "steps": 1},
    ),
    Question(
        text="why is the GPU idle", words="idle gap gaps host cpu launch utilization busy dataloader",
        why="idle time has its cause in the host's calls; stacks would slow exactly those", options={"ranks": (0,)},
        then="tracelens report traces/rank0.json.gz",
    ),
    Question(
        text="how far are the kernels from the hardware's limit",
        words="flops tflops mfu roofline gemm gemms kernel kernels attention limit peak efficiency bandwidth hbm",
        why="shapes and types of every op; more calls of each show its spread", options={"ranks": (0,), "steps": 5},
        then="tracelens report traces/rank0.json.gz --model NAME",
    ),
    Question(
        text="is it slower than before", words="slower regression compare before version commit upgrade gate",
        why="a change is told from noise by the spread of steps: more of them, both recorded the same way",
        options={"ranks": (0,), "steps": 8}, then="tracelens compare before/rank0.json.gz traces/rank0.json.gz",
    ),
    Question(
        text="what would another device, batch or precision bring",
        words="whatif device batch precision fuse overlap scale",
        why="a replay needs launches, streams and synchronizations, which every recording has",
        options={"ranks": (0,)}, then="tracelens whatif traces/rank0.json.gz --device mi355x",
    ),
)  # fmt: skip

_WORD = re.compile(r"[a-z]+")


def question_of(text: str) -> Question | None:
    """The question that shares most words with ``text``; None where none does."""
    asked = set(_WORD.findall(text.lower()))
    common = {question.text: len(asked & set(question.words.split())) for question in QUESTIONS}
    most = [question for question in QUESTIONS if common[question.text] == max(common.values()) > 0]
    return next((question for question in most if question is not QUESTIONS[0]), most[0] if most else None)


def snippet(question: Question) -> str:
    """Python to put around a training loop."""
    given = "".join(f", {name}={value!r}" for name, value in question.options.items())
    return (
        "import tracelens\n\n"
        f'with tracelens.profile("traces"{given}) as recorder:\n'
        "    for batch in batches:\n"
        "        train_step(batch)\n"
        "        recorder.step()\n"
    )
