"""Text made to be searched again and again: twice as much costs twice as much. Ratios within one run, never seconds."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import tracelens
from tests.conftest import part
from tests.trace.event_texts import read_events
from tracelens.analysis.attribution.host_scopes import levels
from tracelens.analysis.attribution.steps import find_steps
from tracelens.analysis.loaded_trace import Trace
from tracelens.errors import TracelensError
from tracelens.extensions import bundled_extensions
from tracelens.files.safe_text import clipped
from tracelens.perf_models.inference_attention import annotated_numbers
from tracelens.perf_models.kernels import kernel_patterns
from tracelens.predict.workload.launch_files import _of_yaml
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import DEVICE_KINDS
from tracelens.trace.tree import OpTree

# Linear is 8 here, the square 64; between them lies what a busy machine adds.
TIMES, MOST = 8, 20
EVENTS = b",".join(b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":1}' % i for i in range(200))
LIST = b'{"traceEvents":[' + EVENTS


def cost(run: Callable[[], object]) -> float:
    """CPU seconds of the cheapest of three runs."""
    seconds = []
    for _ in range(3):
        before = time.process_time()
        run()
        seconds.append(time.process_time() - before)
    return min(seconds)


def grows_linearly(run: Callable[[int], object], size: int) -> bool:
    return cost(lambda: run(TIMES * size)) <= MOST * cost(lambda: run(size))


TEXTS: dict[str, tuple[bytes, bytes, bytes]] = {
    "a string without an end before the events": (b'{"', b'\\"', b""),
    "braces": (b"{", b"{", b""),
    "objects before no events": (b'{"a":[', b"{},", b""),
    "false keys": (b'{"a":[', b'{"traceEvents": []},', b'{}], "traceEvents": [{"ph":"X","ts":1}]}'),
    "a cut inside a name": (LIST + b',{"ph":"X","name":"', b'\\"', b""),
    "a cut inside a name of quotes": (LIST + b',{"ph":"X","name":"', b'a"b', b""),
    "a cut behind the events": (LIST + b'],"x":"', b'\\"', b""),
    "backslashes behind the events": (LIST + b'],"x":"', b"\\", b""),
    "NaN behind the events": (LIST + b'],"x":[', b"NaN,", b""),
    "white space": (LIST + b"],", b" ", b"x"),
    "false ends": (b'{"traceEvents": [{"ph": x},{}],"a":1', b',"a":[{}],"a":1', b""),
    "ends that no end follows": (LIST + b"}]", b',"a":{}]', b""),
    "false starts": (b'{"traceEvents": [', b'{"ph": "X", \\', b""),
    "brackets": (b'{"traceEvents": [', b"}]}", b""),
    "unclosed": (b'{"traceEvents": [', b'{"ph": "X", "args": {"l": [1, 2', b"]}"),
    "damaged events": (b'{"traceEvents":[', b'{"ph":"X","name":"\x01},', b""),
    "control characters": (b'{"traceEvents":[{"ph":"X","name":"', b"\x01", b'"},{"ph":"X","ts":1}]}'),
    "lone surrogates": (b'{"traceEvents":[{"ph":"X","name":"', b"\\ud800", b'"},{"ph":"X","ts":1}]}'),
}


@pytest.mark.parametrize("name", part(list(TEXTS), 6))
def test_reading_damaged_text_takes_time_in_proportion(name: str, tmp_path: Path) -> None:
    head, unit, tail = TEXTS[name]
    path = tmp_path / "t.json"

    def read(count: int) -> None:
        path.write_bytes(head + unit * count + tail)
        with suppress(TracelensError):
            read_trace(path)

    assert grows_linearly(read, 20_000 // len(unit))


@pytest.mark.sweep
def test_megabytes_of_braces_cost_less_than_as_much_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_PURE_PYTHON", "1")  # scanned events cost a third of that
    braces, events = tmp_path / "braces.json", tmp_path / "events.json"
    braces.write_bytes(b"{" * 4_000_000)
    events.write_bytes(LIST + (b"," + EVENTS) * (4_000_000 // len(EVENTS)) + b"]}")

    def read(path: Path) -> None:
        with suppress(TracelensError):
            read_trace(path)

    assert cost(lambda: read(braces)) < cost(lambda: read(events))


def test_a_name_of_many_digits_is_no_step_and_takes_time_in_proportion() -> None:
    def steps(count: int) -> None:
        name = "1" * count + "a1b"
        note = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": 0, "dur": 1}
        trace = Trace.of(read_events([note]))
        assert not find_steps(trace.table, trace.tree, trace.table.rows_of(DEVICE_KINDS)).steps
        assert clipped(name, 80) == "1" * 79 + "…"

    assert grows_linearly(steps, 100_000)


@pytest.mark.sweep
def test_annotations_and_launch_files_take_time_in_proportion() -> None:
    assert grows_linearly(lambda count: annotated_numbers("a" * count), 20_000)
    for unit in ("a ", "${a:", "[", "- ", "&a "):
        assert grows_linearly(lambda count, unit=unit: _read_or_refused("key: ${" + unit * count), 5_000), unit
    assert annotated_numbers("bs=2 toks=14721 ctx=[7803]") == {"bs": 2, "toks": 14721}
    assert _of_yaml("a-b:  ${X:12}  # note\nlist:\n- c: 'd'\ne:\n") == {"a_b": "12", "c": "d"}


def _read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        _of_yaml(text)


# Only ever matched from one place on, never searched for: each character is then looked at once per call.
MATCHED = {"_OPENING", "_SEPARATOR", "_NODE", "_ATOM_STEP", "_STEP", "_DETAILED", "_PLAIN", "_LINE", "_RUN", "_LAYER"}
MATCHED |= {
    "_TRIPLE",
    "_INSTANCE",
    "_NO_COUNTER",
    "_DMON",
    "_GATE",
    "_FRAME",
    "_NAME",
    "_START",
    "_SDK_START",
    "PUBLIC_OPS",
    "PUBLIC_KERNELS",
    "PUBLIC_FRAMES",
}


def patterns() -> Iterator[tuple[str, re.Pattern[str] | re.Pattern[bytes]]]:
    for module in pkgutil.walk_packages(tracelens.__path__, "tracelens."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, re.Pattern):
                    yield f"{module.name}.{name}", value
    for kind in kernel_patterns():
        yield f"kernels.toml.{kind.name}", re.compile(kind.regex)
    for extension in bundled_extensions():
        for text in extension.name_patterns:
            yield f"{extension.name}: {text}", re.compile(text)
        for source in extension.sources:
            for name, value in vars(source).items():
                if isinstance(value, re.Pattern):
                    yield f"{extension.name}.{name}", value


UNITS = ("a", "1", " ", "_", '"', '\\"', "\\", "{", "}", "} ", "[", "-", ",", ": ", "_1", "a1", "a=", "${a:")
LENGTH = 20_000
# So many times as long as one look at every character: linear patterns of 20 alternatives need 10, squares 250 and more.
MOST_LOOKS = 60
_LOOK = re.compile(r"(?:(?!\x02).)*+", re.DOTALL)


@pytest.mark.parametrize("first", part(range(4), 4))
def test_every_pattern_looks_at_each_character_a_few_times(first: int) -> None:
    allowed = MOST_LOOKS * cost(lambda: _LOOK.match("a" * LENGTH))
    found = dict(patterns())
    assert len(found) > 80
    slow = []
    for name, pattern in list(found.items())[first::4]:
        words = re.findall(r"[A-Za-z_]{2,}", str(pattern.pattern))
        run = pattern.match if name.rpartition(".")[2] in MATCHED else pattern.search
        for unit in dict.fromkeys((*UNITS, *words, "_".join(words) or "b")):
            text = (unit * (LENGTH // len(unit) + 1))[:LENGTH] + "\x01"
            given = text.encode() if isinstance(pattern.pattern, bytes) else text
            before = time.process_time()
            run(given)  # type: ignore[arg-type]
            spent = time.process_time() - before
            if spent > allowed and cost(lambda run=run, given=given: run(given)) > allowed:
                slow.append((name, unit))
                break
    assert not slow


def test_places_under_a_deep_stack_are_sorted_in_linear_time() -> None:
    def run(depth: int) -> None:
        above = np.arange(-1, depth - 1)
        by_depth = levels(np.array([depth - 1]), above)
        assert [len(by_depth), int(by_depth[-1][0])] == [depth, depth - 1]

    assert grows_linearly(run, 5_000)


def test_a_deep_tree_checks_itself_in_linear_time() -> None:
    def checked(depth: int) -> None:
        nested = ({"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": i, "dur": 2 * (depth - i)} for i in range(depth))  # fmt: skip
        assert trees.setdefault(depth, OpTree(read_events([*nested]))).self_check() == []

    trees: dict[int, OpTree] = {}
    assert grows_linearly(checked, 2_000)


def test_levels_of_a_forest_are_those_of_climbing_one_by_one() -> None:
    rng = np.random.default_rng(0)
    above = np.array([int(rng.integers(-1, max(i, 1))) if i else -1 for i in range(500)])
    at = rng.integers(0, 500, 300)
    depth_of: dict[int, int] = {}
    for place in at.tolist():
        chain = [place]
        while above[chain[-1]] >= 0:
            chain.append(int(above[chain[-1]]))
        depth_of |= {each: len(chain) - 1 - i for i, each in enumerate(chain)}
    expected = [sorted(p for p, d in depth_of.items() if d == depth) for depth in range(max(depth_of.values()) + 1)]
    assert [places.tolist() for places in levels(at, above)] == expected
