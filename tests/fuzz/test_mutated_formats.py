"""Mutated files of every format but Kineto's: a table that holds, or one sentence; no traceback, no hang, no flood.

Every mutation follows from its number; the fast part runs with every test run, all of them with ``pytest -m sweep``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.survival import TIME_LIMIT_S, time_limit
from tests.trace.formats.rewritten import nsight_systems, packets, rocpd, rocprof_csv, rocprofv3, xplane
from tests.trace.formats.test_hlo import ONCE_MORE, SPLIT, gpu_profile
from tests.trace.formats.test_rocprof import event
from tests.trace.formats.test_xplane import tpu_of_ops
from tests.trace.test_unpacking import tarred, zipped
from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.trace.reading import formats
from tracelens.trace.reading.read import read_trace
from tracelens.trace.tree import OpTree

FAST, ALL, BATCH = 10, 1000, 100
#: One in this many goes through the whole command.
REPORTED = 250
TOKENS = (b"\x00", b"\xff" * 12, b"\x80" * 40, b"9" * 40, b'"', b"[" * 2000, b"null", b"-1", b"\x0a\x7f", b"'; DROP TABLE x; --", b"=1+1")  # fmt: skip


def rocprof(path: Path) -> Path:
    events = [event(f"hipLaunchKernel{i}", 2, 51, i * 50_000, i * 50_000 + 900) for i in range(60)]
    events += [event(f"k{i}", 8, 1, i * 50_000 + 5_000, i * 50_000 + 9_000, dev_id=0, stream_id=1) for i in range(60)]
    path.write_text(json.dumps({"traceEvents": events, "otherData": {"Agent3.DeviceType": "GPU"}}))
    return path


def packed(pack: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def made(path: Path) -> Path:
        content = rocprof(path).read_bytes()
        path.write_bytes(pack(content))
        return path

    return made


SAMPLES: dict[str, Callable[[Path], Path]] = {
    "nsight_systems": nsight_systems,
    "rocprofv3": rocprofv3,
    "rocprof": rocprof,
    "rocpd": rocpd,
    "rocprof_csv": lambda path: rocprof_csv(path.parent),
    "perfetto": packets,
    "xplane": xplane,
    "xplane_of_a_tpu": tpu_of_ops,
    "xplane_with_programs": lambda path: gpu_profile(path, [*SPLIT, *ONCE_MORE], [(n, op) for _, op, n in SPLIT]),
    "zip": packed(zipped),
    "tar": packed(tarred),
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("formats")
    return {name: make(folder / name).read_bytes() for name, make in SAMPLES.items()}


def test_every_format_is_mutated() -> None:
    assert set(formats.readers()) <= set(SAMPLES)


def mutated(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        # Half of the places in the head: schemas, names and lengths stand there.
        at = random.randrange(len(changed) if random.random() < 0.5 else min(len(changed), 8192))
        match random.randrange(5):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at] = random.randrange(256)
            case 2:
                token = random.choice(TOKENS)
                changed[at : at + random.choice((0, len(token)))] = token
            case 3:
                del changed[at : at + random.choice((1, 8, 300))]
            case _:
                changed[at : at + 64] = bytes(64)
    if random.random() < 0.1:
        del changed[random.randrange(1, len(changed)) :]
    return bytes(changed)


def check(name: str, number: int, data: bytes, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = Random(f"{name} {number}")
    path = folder / "t.bin"
    path.write_bytes(mutated(data, random))
    try:
        with time_limit(TIME_LIMIT_S):
            sentence = "t.bin "
            try:
                table = read_trace(path)
                assert len(table) <= 3 * path.stat().st_size
                assert OpTree(table).self_check() == []
            except InputError as error:
                sentence = str(error)
            assert sentence.startswith("t.bin ")
            assert "\n" not in sentence
            if number % REPORTED == REPORTED - 1:
                assert main(["report", str(path), "-o", str(folder / "out"), "--cpu"]) in (0, 1, 3)
                assert "Traceback" not in capsys.readouterr().err
    except BaseException as error:
        error.add_note(f"mutation {number} of {name}")
        raise


@pytest.mark.parametrize("name", SAMPLES)
def test_mutated_files(
    name: str, samples: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(FAST):
        check(name, number, samples[name], tmp_path, capsys)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(FAST, ALL, BATCH))
@pytest.mark.parametrize("name", SAMPLES)
def test_all_mutated_files(
    name: str, first: int, samples: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(first, min(first + BATCH, ALL)):
        check(name, number, samples[name], tmp_path, capsys)
