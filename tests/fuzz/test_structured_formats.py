"""Documents of every format that a user gives, with any value, key or list replaced at any depth: a documented exit code,
one sentence, no traceback, no escape sequence, no hang.

Every case follows from its number; the first of each format run with every test run, 300 with ``-m sweep``, ``TRACELENS_FUZZ_CASES`` where that is set
(1600: 21,000 cases in all, about half an hour of processor time).
"""

from __future__ import annotations

import copy
import io
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

import tracelens
from tests.fuzz.test_other_formats import BAD, CONFIG, survives
from tracelens.cli import main

FAST, BATCH = 2, 100
ALL = int(os.environ.get("TRACELENS_FUZZ_CASES", "300"))
#: A case of these is a whole report.
REPORTS = ("kineto", "signatures", "memory snapshot")
PACKAGE = Path(tracelens.__file__).parent
ODD = (
    *BAD,
    "12 GB",
    "1e3",
    2**63,
    -(2**31),
    1e300,
    5e-324,
    "NaN",
    "\n",
    "a\x00b",
    [1, [2]],
    {"a": {"b": 1}},
    [None],
    "None",
)


def toml(document: dict[str, Any], path: str = "") -> str:
    """Good enough for what is given: whatever has no spelling in TOML is quoted."""
    plain = {key: value for key, value in document.items() if not isinstance(value, dict)}
    lines = [f"{json.dumps(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in document.items():
        if isinstance(value, dict):
            name = f"{path}{json.dumps(key)}"
            lines += [f"[{name}]", toml(value, f"{name}.")]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, float):
        return str(value)
    return json.dumps("none" if value is None else value)


def read(*parts: str) -> dict[str, Any]:
    return tomllib.loads(PACKAGE.joinpath(*parts).read_text(encoding="utf-8"))


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def as_lines(document: Any) -> bytes:
    return b"\n".join(map(as_json, document if isinstance(document, list) else [document]))


def as_toml(document: Any) -> bytes:
    return toml(document).encode("utf-8", "backslashreplace") if isinstance(document, dict) else as_json(document)


def as_yaml(document: Any) -> bytes:
    return yaml.safe_dump(document).encode("utf-8", "backslashreplace")


def as_npz(document: Any) -> bytes:
    file, arrays = io.BytesIO(), {}
    for key, value in document.items() if isinstance(document, dict) else ():
        try:
            arrays[key.encode(errors="replace").decode().replace("/", "").replace("\x00", "") or "a"] = np.array(value)
        except (ValueError, OverflowError):
            arrays["ragged"] = np.array(str(value))
    np.savez(file, **{key: each for key, each in arrays.items() if key != "file"})
    return file.getvalue()


def as_words(document: Any) -> bytes:
    return " ".join(f"--{key} {value}" for key, value in document.items()).encode("utf-8", "backslashreplace")


REQUEST = {"timestamp": 0, "input_length": 64, "output_length": 4, "hash_ids": [1]}
SERVE = ["serve", "--model", "llama3.1-8b", "--device", "h100-sxm", "--requests", "2", "--rate", "2"]
LAUNCH = {"num-layers": 2, "hidden-size": 256, "num-attention-heads": 8, "seq-length": 128, "global-batch-size": 8, "micro-batch-size": 1, "ffn-hidden-size": 512, "vocab-size": 1000, "tensor-model-parallel-size": 2, "pipeline-model-parallel-size": 1}  # fmt: skip
OVERRIDES = {"seq_length": 512, "global_batch_size": 8, "micro_batch_size": 1, "tensor_model_parallel_size": 1, "expert_model_parallel_size": 1}  # fmt: skip
PRIMUS = {"modules": {"pre_trainer": {"framework": "megatron", "config": "pre_trainer.yaml", "model": "llama3.1_8B.yaml", "overrides": OVERRIDES}}}  # fmt: skip
LANE = {"ph": "X", "pid": 1, "tid": 1, "dur": 20}
SHAPES = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["c10::BFloat16"] * 2, "Input Strides": [[64, 1], [1, 64]], "Concrete Inputs": ["", ""], "External id": 1, "Sequence number": 3}  # fmt: skip
KINETO = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "warpSize": 64, "numSms": 304}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
        {**LANE, "cat": "cpu_op", "name": "aten::mm", "ts": 1, "args": SHAPES},
        {**LANE, "cat": "cuda_runtime", "name": "hipLaunchKernel", "ts": 5, "dur": 5, "args": {"correlation": 1, "External id": 1}},
        {**LANE, "cat": "kernel", "name": "Cijk", "pid": 0, "tid": 7, "ts": 30, "args": {"correlation": 1, "stream": 7, "device": 0, "grid": [4, 1, 1], "block": [256, 1, 1]}},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 1, "tid": 1, "ts": 5},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 0, "tid": 7, "ts": 30, "bp": "e"},
        {**LANE, "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 8, "ts": 55, "args": {"stream": 8, "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 9, "s": "t", "args": {"Total Allocated": 10, "Bytes": 5, "Addr": 7, "Device Id": 0, "Device Type": 1, "Total Reserved": 20}},
    ],
}  # fmt: skip
SIGNATURES = {"traceEvents": [{**LANE, "cat": "cpu_op", "name": name, "ts": 100 * at + 1, "args": {"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims), "Input Strides": [], "Concrete Inputs": concrete, "External id": at}} for at, (name, dims, concrete) in enumerate([("aten::addmm", [[8], [4, 8], [8, 8]], ["", "", "", "1", "1"]), ("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3], []], ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]), ("aten::_scaled_dot_product_flash_attention", [[1, 2, 8, 16]] * 3, ["", "", "", "0.", "False"])])] + [{**LANE, "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 500, "args": {"stream": 7, "External id": 0}}]}  # fmt: skip
SNAPSHOT = {"segments": [{"device": 0, "address": 1, "total_size": 64, "blocks": [{"size": 64, "state": "active_allocated", "address": 1, "frames": [{"filename": "a.py", "line": 3, "name": "f"}]}]}], "device_traces": [[{"action": "alloc", "addr": 1, "size": 64, "time_us": 5, "frames": []}]]}  # fmt: skip
EXPERIMENT = {"model": "llama3.1-8b", "cluster": "h100-sxm", "rate": 2, "requests": 2, "input": "64", "output": "4"}

Write = Callable[[Any], bytes]
#: Of each format: a sound document, how it is written, its file's name, and the command that reads it.
FORMATS: dict[str, tuple[Any, Write, str, list[str]]] = {
    "device": (read("hardware/devices", "h100-sxm.toml"), as_toml, "d.toml", ["devices", "check", "FILE"]),
    "device in use": (read("hardware/devices", "mi300x.toml"), as_toml, "d.toml", ["estimate", "gemm", "--m", "64", "--n", "64", "--k", "64", "--device", "FILE"]),
    "cluster": (read("network", "clusters", "perlmutter.toml"), as_toml, "c.toml", ["estimate", "collective", "--op", "all_reduce", "--bytes", "1MiB", "--ranks", "8", "--cluster", "FILE"]),
    "model": (read("workload", "models", "qwen3-30b-a3b.toml"), as_toml, "m.toml", ["models", "show", "FILE"]),
    "engine": (read("serving", "engines", "vllm.toml"), as_toml, "e.toml", [*SERVE, "--engine", "FILE"]),
    "config.json": (CONFIG, as_json, "config.json", ["models", "show", "FILE"]),
    "experiment": (EXPERIMENT, as_yaml, "x.yaml", ["serve", "--config", "FILE"]),
    "requests": ([REQUEST, {**REQUEST, "timestamp": 9}], as_lines, "r.jsonl", [*SERVE[:-4], "--replay", "FILE"]),
    "launch": (LAUNCH, as_words, "run.sh", ["project", "--cluster", "dgx-h100", "--gpus", "8", "--launch", "FILE"]),
    "launch YAML": (PRIMUS, as_yaml, "p.yaml", ["project", "--cluster", "dgx-h100", "--gpus", "8", "--launch", "FILE"]),
    "npz": ({"experts": [[0, 1], [2, 3]], "weights": [[0.5, 0.5], [0.1, 0.9]]}, as_npz, "r.npz", ["route", "--topk", "2", "--ranks", "1", "--routing", "FILE"]),
    "kineto": (KINETO, as_json, "t.json", ["report", "FILE", "-o", "FILE.report.json"]),
    "signatures": (SIGNATURES, as_json, "t.json", ["report", "FILE", "--device", "h100-sxm", "-o", "FILE.report.json"]),
    "memory snapshot": (SNAPSHOT, as_json, "s.json", ["report", "TRACE", "--memory-snapshot", "FILE", "-o", "FILE.report.json"]),
    "report.json": ("REPORT", as_json, "r.json", ["compare", "FILE", "BESIDE"]),
}  # fmt: skip
VERBS = ("estimate gemm --m 64 --n 64 --k 64 --device h100-sxm", "devices show h100-sxm", "models show gpt2", "route --tokens 64 --experts 8 --ranks 2 --topk 2 --seed 1",
    "estimate collective --op all_reduce --bytes 1MiB --cluster dgx-h100 --ranks 8", "estimate sdpa --b 1 --s-q 64 --q-heads 4 --d-qk 64 --device mi300x", "ops grouped", "query x.parquet SELECT", "check x.json",
    "project --model gpt2 --cluster dgx-h100 --gpus 8 --global-batch 8 --tp 2", "serve --model gpt2 --device h100-sxm --rate 2 --requests 2 --input 8 --output 2")  # fmt: skip


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys or positions, at any depth."""
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    found = [(document, key) for key in keys]
    return found + [place for key in keys for place in places(document[key])]


def changed(document: Any, random: Random) -> Any:
    document = copy.deepcopy(document)
    for _ in range(random.choice((1, 1, 2, 4))):
        all_places = places(document)
        if not all_places:
            return document
        container, key = random.choice(all_places)
        match random.randrange(6):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[str(random.choice(ODD))] = container.pop(key)
            case 2:
                other, place = random.choice(all_places)
                container[key] = copy.deepcopy(other[place])
            case _:
                container[key] = copy.deepcopy(random.choice(ODD))
    return document


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound files that stand beside a changed one."""
    folder = tmp_path_factory.mktemp("around")
    trace, report = folder / "t.json", folder / "report.json"
    trace.write_bytes(as_json(KINETO))
    main(["report", str(trace), "-o", str(report)])
    return {"TRACE": trace, "BESIDE": report}


def check(name: str, number: int | None, around: dict[str, Path], folder: Path, capsys: Any) -> None:
    document, written, file, command = FORMATS[name]
    document = json.loads(around["BESIDE"].read_text()) if document == "REPORT" else document
    if number is not None:
        document = changed(document, Random(f"{name} {number}"))
    path = folder / file
    path.write_bytes(written(document))
    (folder / f"{file}.report.json").unlink(missing_ok=True)
    named = {**around, "FILE": path, "FILE.report.json": f"{path}.report.json"}
    try:
        if number is None:
            assert main([str(named.get(word, word)) for word in command]) == 0
            capsys.readouterr()
        else:
            survives([str(named.get(word, word)) for word in command], capsys)
    except BaseException as error:
        error.add_note(f"case {number} of {name}")
        raise


@pytest.mark.parametrize("name", FORMATS)
def test_changed_documents(
    name: str, around: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (None, *range(FAST)):
        check(name, number, around, tmp_path, capsys)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "first"),
    [(name, at) for name in FORMATS for at in range(FAST, ALL // 4 if name in REPORTS else ALL, BATCH)],
)
def test_all_changed_documents(
    name: str, first: int, around: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(first, first + BATCH):
        check(name, number, around, tmp_path, capsys)


def words(number: int) -> list[str]:
    random = Random(f"argv {number}")
    given = random.choice(VERBS).split()
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(given) + 1)
        bad = str(random.choice(ODD)).replace("\x00", "") or "x"
        match random.randrange(4):
            case 0:
                given.insert(at, bad)
            case 1:
                del given[at : at + 1]
            case 2:
                given.insert(
                    at,
                    random.choice(("--", "-o", "--device", "--model", "--tp", "--seed", "--batch", "-h", "--format")),
                )
            case _:
                given[at : at + 1] = [bad]
    return given


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.sweep) for at in range(BATCH, max(ALL, BATCH + 1), BATCH))]
)
def test_changed_arguments(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(first, first + (BATCH if first else FAST)):
        given = words(number)
        try:
            survives(given, capsys)
        except BaseException as error:
            error.add_note(f"arguments {number}: {given}")
            raise
