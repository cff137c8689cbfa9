"""Fixtures every room's tests use."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import tracelens
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.report.result import Report

REPOSITORY = Path(__file__).resolve().parent.parent
TRACES = REPOSITORY.parent / "shared" / "data" / "traces"
#: Folders of the real traces with files of other tools: execution traces, rocprof's JSON.
OTHER_TOOLS = {"et", "rocprof_v1", "rocprof_v2", "rocprofv3"}
#: With traces of PyTorch's profiler that hold no device events.
HOST_ONLY = {"cpu_only"}

#: Files whose tests share nothing but a parameter: those of one parameter run in one worker.
BY_PARAMETER = ("tests/test_every_trace.py",)
#: Files whose tests look at pages, in one browser: they run in one worker.
IN_BROWSER = tuple(f"tests/report/test_{name}.py" for name in ("every_page", "html_browser", "page_timeline"))

#: Reports written to memory do not wait for the disk; a small one (containers) is left alone.
MEMORY_DISK = Path("/dev/shm")  # noqa: S108 (only where pytest makes its own folder)
if MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > 4e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))

# Every process that a test starts would compile the package anew, which takes longer than most of what they do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

RealTrace = Callable[[str], Trace]
RealAnalysis = Callable[..., Analysis]

#: ``-m sweep``, all that takes long: every property of hypothesis is tried on more examples, too. ``fuzz`` is its older name.
SWEEP = "sweep or hypothesis"
# A loaded machine is no reason to fail.
settings.register_profile("quick", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=10)
settings.register_profile("sweep", settings.get_profile("quick"), max_examples=100)
settings.load_profile("quick")

# Modules, tests and their parameters stay until the end: no collection of garbage need look at them.
gc.disable()

#: Of the real traces of PyTorch's profiler, sorted by name, the quick suite takes every so many-th, and these:
ONE_TRACE_IN = 64
HARD_TRACES = (
    "hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",  # no device events
    "inference/vllm_decode_full/graph_execution.json.gz",  # replayed graphs with the trace of their capture
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace.json.gz",  # launches before its window
    "more/tracelens_handmade_pairs/test01_moe_fused_vs_unfused/trace1.json.gz",  # written by hand
)


def examples(many: int) -> int:
    """Of a property: as many with ``-m sweep``; else a tenth of them, and of fewer than a hundred a quarter up to ten."""
    few = max(2, min(many // 4, 10))
    return many if settings.get_current_profile_name() == "sweep" else max(few, many // 10)


def part(cases: Sequence[Any], one_in: int, hard: Collection[Any] = ()) -> list[Any]:
    """Parameters of a test: each ``one_in``-th case and the hard ones always, the others with ``-m sweep``."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if at % one_in == 0 or case in hard else pytest.mark.sweep,
        )
        for at, case in enumerate(cases)
    ]


def row_by_row(
    names: str | tuple[str, ...], rows: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, in one test: where rows are many and quick, most of the time of so many tests is pytest's.

    Every row is tried; what fails has its row as a note.
    """
    rows = list(rows)

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def whole(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            skipped: list[BaseException] = []
            for row in rows:
                given = {names: row} if isinstance(names, str) else dict(zip(names, row, strict=True))
                try:
                    test(**fixtures, **given)
                except pytest.skip.Exception as skip:
                    skipped.append(skip)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - raised below
                    error.add_note(f"row {row!r}"[:1000])
                    failed.append(error)
            if failed:
                raise failed[0] if len(failed) == 1 else BaseExceptionGroup(f"{len(failed)} rows", failed[:10])
            if len(skipped) == len(rows):
                raise skipped[0]

        del whole.__wrapped__  # type: ignore[attr-defined] # pytest would ask it for its arguments
        own = inspect.signature(test)
        left = [
            each for name, each in own.parameters.items() if name not in ({names} if isinstance(names, str) else names)
        ]
        whole.__signature__ = own.replace(parameters=left)  # type: ignore[attr-defined]
        return whole

    return decorated


def part_of_traces(names: Sequence[str]) -> list[Any]:
    """A test for each, most of them with ``-m sweep``. All tests that do so take the same, which are read once for them."""
    return part(names, ONE_TRACE_IN, HARD_TRACES)


def recorded_files() -> list[str]:
    """Every real file, of any tool, by its path below ``TRACES``; none where they are not."""
    return sorted(path.relative_to(TRACES).as_posix() for path in TRACES.rglob("*.json.gz"))


def recorded_traces() -> list[str]:
    """Those of PyTorch's profiler."""
    return [name for name in recorded_files() if not OTHER_TOOLS & set(name.split("/"))]


def device_traces() -> list[str]:
    """Those with device events."""
    return [name for name in recorded_traces() if not HOST_ONLY & set(name.split("/"))]


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Real traces, which are not part of the repository."""
    if not TRACES.is_dir():
        pytest.skip("../shared/data/traces is not there: real traces are not part of the repository")
    return TRACES


@pytest.fixture(scope="session")
def real_trace(shared_traces: Path) -> RealTrace:
    """A real trace by its path, with or without ``.json.gz``; read once for all tests that only look at it."""
    return lru_cache(maxsize=12)(lambda name: load(shared_traces / f"{name.removesuffix('.json.gz')}.json.gz"))


@pytest.fixture(scope="session")
def real_analysis(real_trace: RealTrace) -> RealAnalysis:
    """As ``real_trace``, analyzed: (name, name of its capture, ``on_demand``, further options)."""

    @lru_cache(maxsize=12)
    def analysis(name: str, capture: str | None = None, *, on_demand: bool = False, **options: Any) -> Analysis:
        captured = real_trace(capture) if capture else None
        return analyze(real_trace(name), AnalysisOptions(capture=captured, **options), on_demand=on_demand)

    return analysis


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Measured tables, which are not part of the repository either."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("../shared/data is not there: measured tables are not part of the repository")
    return path


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def moe_report(repository: Path) -> Report:
    """Of rank 0 of the example: for all tests that only look at it."""
    return tracelens.report(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")


@pytest.fixture(scope="session")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of two products on an MI300X: for tests of what becomes of a report, whatever it says."""
    sizes = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["c10::BFloat16"] * 2}
    host, device = {"ph": "X", "pid": 1, "tid": 1}, {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel"}
    events: list[dict[str, Any]] = []
    for step in range(2):
        events.append({**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": 200 * step, "dur": 190})
        for at in (200 * step + 10, 200 * step + 60):
            launched = {"correlation": at}
            events += [
                {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 20, "args": sizes},
                {**host, "cat": "cuda_runtime", "name": "hipLaunchKernel", "ts": at + 5, "dur": 5, "args": launched},
                {**device, "name": "Cijk", "ts": at + 20, "dur": 30, "args": {"stream": 7, "device": 0, **launched}},
            ]
    path = tmp_path_factory.mktemp("small") / "small.json"
    properties = [
        {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992, "numSms": 304, "warpSize": 64}
    ]
    path.write_text(json.dumps({"deviceProperties": properties, "traceEvents": events}))
    return path


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr in ("sweep", "fuzz", SWEEP):
        config.option.markexpr = SWEEP
        settings.load_profile("sweep")


def pytest_collection(session: pytest.Session) -> None:
    """Each worker (``-n``) imports the files in another order, so that no two compile the same ones in a fresh clone."""
    given: dict[str, Any] = getattr(session.config, "workerinput", {})
    paths = [session.config.rootpath / argument for argument in session.config.args]
    if given and all(path.is_dir() for path in paths):
        files = sorted(file for path in paths for file in path.rglob("test_*.py"))
        first = len(files) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
        for file in files[first:] if first else ():
            with suppress(Exception, pytest.skip.Exception):  # told when it is collected
                importlib.import_module(".".join(file.relative_to(REPOSITORY).with_suffix("").parts))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file run in one worker (``-n``), as they share what is slow to make; those of a sweep share nothing."""
    from xdist.scheduler import LoadScopeScheduling

    by_file = settings.get_current_profile_name() != "sweep"

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path, _, test = nodeid.partition("::")
            if path in BY_PARAMETER and "[" in test:
                return test.partition("[")[2]
            if not by_file:
                return nodeid
            if path.startswith("tests/structure/"):
                return "structure"
            return "browser" if path in IN_BROWSER else path

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What keeps a worker busy for longest is begun first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("wheel") is None)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 10, 100)
