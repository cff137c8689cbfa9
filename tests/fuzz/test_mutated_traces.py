"""Mutated traces: no traceback, no hang, no crash, and what was readable is in the report.

Every mutation follows from its number, so a failure names what repeats it. The fast part of the numbers runs with
every test run; all of them with ``pytest -m sweep``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.conftest import TRACES, recorded_traces
from tests.fuzz.mutation import Sample, byte_edits, sampled
from tests.fuzz.survival import TIME_LIMIT_S, reported, survives, time_limit, zipped
from tracelens.errors import InputError
from tracelens.trace.tree import OpTree

SAMPLE_SEED = 20_26
BYTES_FAST, BYTES_ALL, BATCH = 16, 4000, 50
FIELDS_FAST, FIELDS_ALL, FIELDS_BATCH = 5, 1000, 125
#: All are read; one in this many goes through the whole command, which takes fifty times as long.
REPORTED_FAST, REPORTED_ALL, REPORTED_FIELDS = 8, 16, 5
#: What once failed stays: (number, which sample of the trace, trace).
REGRESSIONS = (
    (3385, 1, "transformer_step_cpu"),
    (2247, 15, "mi300/Falconsai_nsfw_image_detection__1016002"),
    (2560, 4, "hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace"),
    (4074, 6, "hta/critical_path/cuda_event_sync/event_sync_trace"),
    (7244, 8, "hta/critical_path/end_to_end/simple_add/input/trace"),
    (1979, 35, "torch_compile_triton/trace"),
    (3903, 81, "more/param/dlrm_8rank/worker4_step_12.1694128201547.pt.trace"),
)


class Samples(Sequence[Sample]):
    """Of each file and seed, made when it is first asked for."""

    def __init__(self, of: list[tuple[Path, int]]) -> None:
        self._of = of
        self._made = cache(lambda at: sampled(of[at][0], Random(of[at][1])))

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, at: Any) -> Any:
        return self._made(at)


@pytest.fixture(scope="module")
def samples(repository: Path) -> Sequence[Sample]:
    """Two of each small trace: of the repository's own, and of the real ones where they are."""
    paths = [repository / "example_traces" / name for name in ("moe_ep8/rank0.json.gz", "transformer_step_cpu.json.gz")]
    paths += [path for path in map(TRACES.joinpath, recorded_traces()) if path.stat().st_size < 150_000]
    return Samples([(path, SAMPLE_SEED + at) for at, path in enumerate([*paths, *paths])])


def check(
    number: int, samples: Sequence[Sample], folder: Path, capsys: pytest.CaptureFixture[str], *, every: int = 1
) -> None:
    random = Random(number)
    sample = samples[number % len(samples)]
    edits = byte_edits(sample, random)
    content = sample.edited(edits)
    readable = sample.readable(edits)
    if random.random() < 0.2:
        content = zipped(content)
    head = sample.spans[0][0]
    try:
        with time_limit(TIME_LIMIT_S):
            try:
                survives(content, readable, folder)
            except InputError:
                # Only where the text before the events was hit is a sentence as good as a report.
                if all(edit.start >= head for edit in edits):
                    raise
            if number % every == 0:
                reported(content, sample.readable_kernels(edits), folder, capsys)
    except BaseException as error:
        error.add_note(f"mutation {number} of {sample.name}: {[(e.start, e.stop, e.new[:60]) for e in edits]}")
        raise


def test_mutated_bytes(samples: Sequence[Sample], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(BYTES_FAST):
        check(number, samples, tmp_path, capsys, every=REPORTED_FAST)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(BYTES_FAST, BYTES_ALL, BATCH))
def test_all_mutated_bytes(
    first: int, samples: Sequence[Sample], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(first, first + BATCH):
        check(number, samples, tmp_path, capsys, every=REPORTED_ALL)


@pytest.mark.parametrize(("number", "which", "name"), REGRESSIONS)
def test_what_once_failed(
    number: int, which: int, name: str, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = repository / "example_traces" / f"{name}.json.gz"
    path = own if own.exists() else TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("../shared/data/traces is not there: real traces are not part of the repository")
    check(number, [sampled(path, Random(SAMPLE_SEED + which))], tmp_path, capsys)


_odd = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["", "0x7", "=1+1", "\x1b[31m", "../../x", "\ud800", "9" * 5000, [], {}, [[]], [[-1]], {"a": [{}]}, 10**400, -1, 0])
    | st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("name"), inner))
)  # fmt: skip
_keys = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "s", "bp"])
_arguments = st.sampled_from(
    ["correlation", "External id", "Sequence number", "stream", "device", "Input Dims", "Input type", "Input Strides",
     "Concrete Inputs", "Collective name", "Group size", "In msg nelems", "In split size", "Process Group Ranks", "dtype",
     "kernel_flop", "kernel_kwargs", "kernel_num_gb", "graph id", "graph node id", "name", "labels"]
)  # fmt: skip
_changes = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.sampled_from(["set", "drop", "set argument", "drop argument", "repeat", "replace", "swap"]),
        _keys,
        _arguments,
        _odd,
    ),
    min_size=1,
    max_size=6,
)


def changed(sample: Sample, changes: list[Any], metadata: list[Any]) -> bytes:
    """The trace with fields dropped, of other types and values, events repeated or no events at all."""
    trace = json.loads(sample.text)
    events: list[Any] = trace["traceEvents"]
    for place, what, key, argument, value in changes:
        at = place % len(events)
        event = events[at]
        if what == "replace" or not isinstance(event, dict):
            events[at] = value
        elif what == "repeat":
            events.insert(at, dict(event))
        elif what == "swap":
            other = (at + 7) % len(events)
            events[at], events[other] = events[other], event
        elif what == "drop":
            event.pop(key, None)
        elif what == "set":
            event[key] = value
        elif isinstance(event.get("args"), dict):
            event["args"] = {k: v for k, v in event["args"].items() if k != argument}
            if what == "set argument":
                event["args"][argument] = value
    for key, value in metadata:
        trace[key] = value
    return json.dumps(trace).encode()


_metadata = st.lists(
    st.tuples(
        st.sampled_from(["deviceProperties", "distributedInfo", "baseTimeNanoseconds", "schemaVersion", "displayTimeUnit", "x"]),
        _odd
        | st.just([{"name": 7, "totalGlobalMem": "x"}])
        | st.just({"rank": -5, "world_size": "many", "pg_config": [{"pg_name": 1, "ranks": "x"}, 3]}),
    ),
    max_size=2,
)  # fmt: skip


def check_fields(
    examples: int, part: int, samples: Sequence[Sample], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @seed(SAMPLE_SEED + part)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(which=st.integers(0, 1000), changes=_changes, metadata=_metadata)
    def example(which: int, changes: Any, metadata: Any) -> None:
        with time_limit(TIME_LIMIT_S):
            content = changed(samples[which % len(samples)], changes, metadata)
            table = survives(content, Counter(), folder)
            assert OpTree(table).self_check() == []
            if which % REPORTED_FIELDS == 0:
                reported(content, Counter(), folder, capsys)

    example()


def test_changed_fields(samples: Sequence[Sample], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_fields(FIELDS_FAST, 0, samples, tmp_path, capsys)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(1, 1 + FIELDS_ALL // FIELDS_BATCH))
def test_all_changed_fields(
    part: int, samples: Sequence[Sample], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_fields(FIELDS_BATCH, part, samples, tmp_path, capsys)
