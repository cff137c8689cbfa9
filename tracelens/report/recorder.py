"""``tracelens.profile``: PyTorch's profiler with the options of a report, callbacks of trainers, what to record."""

from __future__ import annotations

import functools
import gzip
import importlib
import multiprocessing
import operator
import os
import re
import secrets
import shutil
import sys
import threading
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from tracelens.errors import OutputError, TracelensError, UsageError
from tracelens.files.option_fields import build_options, option, positive, takes, whole
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
        """UsageError for a value of another kind and a count that cannot be."""
        if isinstance(self.ranks, str) or not isinstance(self.ranks, Iterable):
            raise UsageError(f"ranks must be numbers of ranks like (0, 8), or left out for all; got {self.ranks!r}")
        object.__setattr__(self, "ranks", tuple(_whole("each of ranks", rank) for rank in self.ranks))
        for name, least in (("steps", 1), ("skip", 0), ("warmup", 0)):
            _whole(name, getattr(self, name), least)
        for each in fields(self):
            if isinstance(each.default, bool) and not isinstance(getattr(self, each.name), bool):
                raise UsageError(f"{each.name} must be True or False; got {getattr(self, each.name)!r}")
        limit = self.limit_mb
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0):
            raise UsageError(f"limit_mb must be a number of MB above 0, or None for no limit; got {limit!r}")


def _whole(name: str, value: Any, least: int = 0) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < least:
        raise UsageError(f"{name} must be a whole number, at least {least}; got {value!r}")
    return number


#: Of gzip: 6 takes four times as long for files a tenth smaller.
_LEVEL = 1


class TraceFiles:
    """The files of one process in a folder: ``rank3.json.gz``, later ones ``rank3_2.json.gz``; none is overwritten.

    ``ranks``: those that are wanted, all if empty. OutputError where the folder cannot be written to, UsageError for
    what is no path.
    """

    def __init__(self, folder: str | PathLike[str], *, ranks: tuple[int, ...], report: bool) -> None:
        try:
            self._folder = Path(folder)
        except TypeError:
            raise UsageError(f"the first argument is the folder to record into; got {folder!r}") from None
        self._ranks, self._report = ranks, report
        self._rank: int | None = None
        self._written: list[Path] = []
        self._probe: Path | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Makes the folder: that it cannot be written to is told before training, not after."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot record into {self._folder}: {error.strerror}") from None
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise OutputError(f"cannot record into {self._folder}: no permission to write there")

    def is_wanted(self) -> bool:
        """Whether this process is one of the ranks; True as long as nothing says which one it is."""
        rank = current_rank()
        self._rank = self._rank if rank is None else rank
        return not self._ranks or self._rank is None or self._rank in self._ranks

    def write(self, profiler: Any) -> None:
        """Exports now, compresses in a thread that the process waits for when it ends."""
        if self._probe is not None:
            self._probe.unlink()
            self._probe = None
        if (file := self._exported(profiler)) is not None:
            self._finish(file)

    def probe(self, profiler: Any) -> int:
        """Bytes of the JSON of a first trace, which is only kept if no other follows; 0 if it is not wanted."""
        self._probe = self._exported(profiler)
        return 0 if self._probe is None else self._probe.stat().st_size

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

    def _exported(self, profiler: Any) -> Path | None:
        """The trace under a name of its own; None for a rank that is not wanted, and after a warning."""
        if not self.is_wanted() or (self._ranks and self._rank_at_last() not in (None, *self._ranks)):
            return None
        path = _unheard_of(self._folder, ".json")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
        except OSError as error:
            # What is being trained is worth more than its trace
            warnings.warn(f"tracelens could not write a trace into {self._folder}: {error}", stacklevel=2)
            return None
        return path

    def _rank_at_last(self) -> int | None:
        """0 for a program of one process; None for one of several that nothing tells apart."""
        return 0 if self._rank is None and multiprocessing.parent_process() is None else self._rank

    def _finish(self, file: Path) -> None:
        rank, number = self._rank_at_last(), len(self._threads) + 1
        name = f"process{os.getpid()}" if rank is None else f"rank{rank}"
        thread = threading.Thread(target=self._compress, args=(file, name, number), name="tracelens-write")
        self._threads.append(thread)
        thread.start()

    def _compress(self, file: Path, name: str, number: int) -> None:
        part = _unheard_of(self._folder, ".part")
        path = _numbered(self._folder, name, number)
        try:
            with (
                file.open("rb") as source,
                part.open("xb") as sink,
                gzip.GzipFile(path.name, "wb", _LEVEL, sink, mtime=0) as packed,
            ):
                shutil.copyfileobj(source, packed, 1 << 20)
            first, path = path, _claimed(self._folder, name, number)
            part.replace(path)
            self._written.append(path)
            if path != first:
                text = f"{first} was there already: wrote {path.name}; give every run a folder of its own"
                warnings.warn(f"tracelens.profile: {text}", stacklevel=1)
            if self._report:
                from tracelens.report import report

                report(path, cpu=True).write(path.with_name(f"{path.name.removesuffix('.json.gz')}.report"))
        except (OSError, TracelensError) as error:
            warnings.warn(f"tracelens could not write {path} or its report: {error}", stacklevel=1)
        finally:
            part.unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def _unheard_of(folder: Path, suffix: str) -> Path:
    """A name that no other process chooses, on this host or another."""
    return folder / f".tracelens-{os.getpid()}-{secrets.token_hex(8)}{suffix}"


def _numbered(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}{f'_{number}' if number > 1 else ''}.json.gz"


def _claimed(folder: Path, name: str, number: int) -> Path:
    """The first free name from ``number`` on, as an empty file: of processes that ask at once each gets another."""
    while True:
        path = _numbered(folder, name, number)
        try:
            path.open("xb").close()
        except FileExistsError:
            number += 1
        else:
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
        self._files = TraceFiles(folder, ranks=options.ranks, report=options.report)
        self._profiler: Any = None
        #: Ends a step. Where this rank is recorded it is the profiler's own: nothing is added to a step.
        self.step: Callable[[], None] = _nothing

    @property
    def files(self) -> tuple[Path, ...]:
        """The traces written so far; waits for those on their way."""
        return self._files.wait()

    def __enter__(self) -> StepRecorder:
        if not self._files.is_wanted():
            return self
        try:
            torch = importlib.import_module("torch.profiler")
        except ImportError:
            raise UsageError("tracelens.profile records with PyTorch: pip install 'tracelens-perf[record]'") from None
        activities = [torch.ProfilerActivity.CPU]
        if torch.ProfilerActivity.CUDA in torch.supported_activities():
            activities.append(torch.ProfilerActivity.CUDA)
        self._files.open()
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
        self._files.keep_probe()

    def action_of(self, step: int) -> Any:
        """What the profiler does in a step: skip, warm up, record one to see its size, skip one, warm up, record."""
        options, action = self.options, self._action
        at = step - options.skip - options.warmup
        if options.skip <= step < options.skip + options.warmup and not self._files.is_wanted():
            # The job was set up after the block had begun
            self.steps = 0
        if step < options.skip or self.steps == 0:
            return action.NONE
        if at < 0:
            return action.WARMUP
        if options.limit_mb is not None:
            if at == 0:
                return action.RECORD_AND_SAVE
            # How large it was is known a step later
            if at == 1:
                return action.NONE
            at -= 2 + options.warmup
            if at < 0:
                return action.WARMUP
        if at >= self.steps:
            return action.NONE
        return action.RECORD_AND_SAVE if at == self.steps - 1 else action.RECORD

    def _ready(self, profiler: Any) -> None:
        files, limit_mb = self._files, self.options.limit_mb
        if limit_mb is None or self.forecast_bytes is not None:
            files.write(profiler)
            return
        step_bytes = files.probe(profiler)
        if step_bytes == 0:
            self.steps = 0
            return
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
        options = build_options(RecordingOptions, {"ranks": ranks, "report": report})
        self._files = TraceFiles(folder, ranks=options.ranks, report=options.report)

    def __call__(self, profiler: Any) -> None:
        self._files.write(profiler)

    @property
    def files(self) -> tuple[Path, ...]:
        """The traces written so far; waits for those on their way."""
        return self._files.wait()


def _nothing(*_: Any, **__: Any) -> None:
    return None


def current_rank() -> int | None:
    """This process's rank: what ``torch.distributed`` says once it is set up, else ``torchrun``, MPI or Slurm.

    None where none of them does: a program of one process, or one that is yet to call ``init_process_group``.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    if (rank := _number("RANK")) is not None:
        return rank
    if multiprocessing.parent_process() is not None:
        # MPI and Slurm number the processes that they start; those that mp.spawn starts inherit their parent's number
        return None
    # In a Slurm allocation mpirun's processes inherit the number of the task that started them
    of_mpi = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK")
    return next((rank for name in of_mpi if (rank := _number(name)) is not None), _slurm_rank())


def _slurm_rank() -> int | None:
    """A task is a rank, unless there is a task per node whose processes have a ``LOCAL_RANK`` each."""
    task, local = _number("SLURM_PROCID"), _number("LOCAL_RANK")
    if task is None or local is None or _number("SLURM_NTASKS") != _number("SLURM_NNODES"):
        return task
    of_node = 0 if task == 0 else _number("LOCAL_WORLD_SIZE")
    return None if of_node is None else task * of_node + local


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


class TrainerCallback:
    """Begins with training, ends a step with each batch, ends with training; every other hook does nothing.

    ``Trainer(callbacks=[TrainerCallback(tracelens.profile("traces"))])`` in Hugging Face's and Lightning's words.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._recorder.__enter__()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """An optimizer step, or in Lightning a batch, is done."""
        self._recorder.step()

    #: What Lightning calls them.
    on_train_start, on_train_batch_end = on_train_begin, on_step_end

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
    options: Mapping[str, bool | int | tuple[int, ...]] = msgspec.field(default_factory=dict)


@functools.cache
def questions() -> tuple[Question, ...]:
    """The first is the one to fall back on; of others, the one that shares most words with what is asked."""
    text = Path(__file__).with_name("questions.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["questions"], tuple[Question, ...])


_WORD = re.compile(r"[a-z]+")


def question_of(text: str) -> Question | None:
    """The question that shares most words with ``text``; None where none does."""
    asked = set(_WORD.findall(text.lower()))
    common = {question.text: len(asked & set(question.words.split())) for question in questions()}
    most = [question for question in questions() if common[question.text] == max(common.values()) > 0]
    return next((question for question in most if question is not questions()[0]), most[0] if most else None)


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
