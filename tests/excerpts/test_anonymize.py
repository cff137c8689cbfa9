"""An anonymized trace has the same report but for names, and no name of whoever recorded it."""

from __future__ import annotations

import ast
import gzip
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tests.analysis.conftest import Builder
from tests.conftest import REPOSITORY, TRACES, RealTrace, device_traces, part, recorded_files, row_by_row
from tests.trace.formats.test_xplane import tpu_of_ops
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.analysis.sheets import perf_summary
from tracelens.analysis.verdict.verdict import summarize
from tracelens.perf_models.kernels import classify, copy_path, kernel_patterns, precisions
from tracelens.report.excerpts.anonymize import Names, anonymize, is_number
from tracelens.trace.table import Kind
from tracelens.types.dtypes import DType

PRIVATE = "sekret"
#: With stacks and several ranks; compiled; the others with ``-m sweep``.
QUICK = ("torch_compile_triton/trace.json.gz",)


def figures(trace: Trace) -> dict[str, Any]:
    """All that a report says in numbers."""
    analysis = analyze(trace, AnalysisOptions())
    found, ops = summarize(analysis), analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    numbers = ops.select_dtypes("number").drop(columns=["example_row"], errors="ignore")
    rows = sorted(map(str, numbers.round(6).to_numpy().tolist()))
    return {
        "steps": found.steps, "busy": found.busy, "coverage": found.coverage, "categories": found.categories,
        "throughput": found.throughput, "findings": [(f.id, f.gain_us) for f in found.findings], "ops": rows,
    }  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", part(device_traces()[::-1], 1000, QUICK))
def test_the_report_is_the_same_but_for_names(real_trace: RealTrace, name: str, tmp_path: Path) -> None:
    trace = real_trace(name)
    path = tmp_path / trace.table.source.removesuffix(".gz")
    anonymize(trace, path)
    assert figures(load(path)) == figures(trace)


def private_trace() -> Trace:
    built = Builder()
    built.op(f"## {PRIVATE} iteration 1 ##", 0, 50, cat="user_annotation")
    built.op(f"/home/{PRIVATE}/model.py(12): {PRIVATE}_forward", 1, 40, cat="python_function")
    built.op(f"nn.Module: {PRIVATE}Block_3", 2, 38, cat="python_function")
    built.op(f"{PRIVATE}::op", 3, 30, **{"Call stack": PRIVATE, "Concrete Inputs": [f"/{PRIVATE}/x"], PRIVATE: PRIVATE,
                                         "Input Dims": [[8]], "Input type": [f"{PRIVATE}Type"]})  # fmt: skip
    built.launch(4, f"{PRIVATE}_kernel<float>", 60, 10, kernel_file=f"/home/{PRIVATE}/k.py")
    built.mm(64, 64, 64, 40, 80, 10)
    built.events.append({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": PRIVATE}})
    built.events.append({"ph": "i", "name": PRIVATE, "pid": 1, "tid": 1, "ts": 5, "s": "g", "cat": PRIVATE.upper()})
    return built.trace(
        traceName=f"/home/{PRIVATE}.json", host_name=PRIVATE,
        distributedInfo={"rank": 0, "world_size": 1, "backend": "nccl", PRIVATE: 1,
                         "pg_config": [{"pg_name": f"{PRIVATE}_pg", "ranks": [0], "host": PRIVATE}]},
    )  # fmt: skip


def test_no_private_name_is_left(tmp_path: Path) -> None:
    anonymize(private_trace(), tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    assert PRIVATE not in text.lower()
    assert "aten::mm" in text
    assert json.loads(text)["deviceProperties"]


def test_what_is_said_of_the_job_stands_in_its_order() -> None:
    said = {
        "rank": 0,
        "world_size": 1,
        "pg_count": 2,
        "nccl_version": "2.21.5",
        "pg_config": [{"ranks": [0], "pg_size": 1}],
    }
    for job in (said, dict(reversed(said.items()))):
        made = Names().metadata({"distributedInfo": job})["distributedInfo"]
        numbers = [key for key in job if key not in ("nccl_version", "pg_config")]
        assert list(made) == [*numbers, "nccl_version", "pg_config"]


def test_times_and_shapes_stay(tmp_path: Path) -> None:
    trace = private_trace()
    anonymize(trace, tmp_path / "a.json")
    new = load(tmp_path / "a.json").table
    assert new.start_ns.tolist() == trace.table.start_ns.tolist()
    assert new.duration_ns.tolist() == trace.table.duration_ns.tolist()
    assert [new.signature_of(row).shapes for row in range(len(new))] == [
        trace.table.signature_of(row).shapes for row in range(len(new))
    ]


def test_placeholders_are_the_same_for_the_same_name() -> None:
    names = Names()
    one, other = names.name("my.iteration 1", Kind.USER_ANNOTATION), names.name("my.iteration 2", Kind.USER_ANNOTATION)
    assert (one, other) == ("range1_iteration 1", "range1_iteration 2")
    assert names.name("MyFunctionBackward", Kind.CPU_OP) == "op1_backward"
    assert re.fullmatch(r"file1\.py\(3\): function1", names.name("mine.py(3): f", Kind.PYTHON_FUNCTION))
    assert names.name("/x/torch/nn/modules/linear.py(1): forward", Kind.PYTHON_FUNCTION).startswith("torch/nn/")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("acme data loading", "data load range1"),
        ("enumerate(DataLoader)#AcmeIter.__next__", "dataload range1"),
        ("acme.__next__", "range1 .__next__"),
        ("acme inductor_compile", "inductor_compile range1"),
        ("acme step 7", "range1_step 7"),
        ("acme layer 7", "range1_layer 7"),
        ("acme(B)", "range1_(b)"),
    ],
)
def test_a_range_still_says_why_the_device_was_idle(name: str, made: str) -> None:
    assert Names().name(name, Kind.USER_ANNOTATION).casefold() == made


#: In every planted word, and in nobody's name.
MARK, NUMBER = "qzx", "5551234567"
_FEW_LETTERS = "bcdfghjklmnpqrstvwxz"
#: Values that are digits by nature, and steps of serving engines, whose names hold counts.
_NUMBERED = re.compile(r"execute_|step\[|stream |thread |rank |[\d.,\s\[\]x]*\Z")


def planted(text: str, random: Random, *, is_name: bool) -> str:
    """The text with a random word in it: before, behind or at a border of what it is made of, or instead."""
    word = MARK + "".join(random.choices(_FEW_LETTERS, k=random.choice((4, 5, 9))))
    word = random.choice(
        (word, word.upper(), word.title(), f"/home/{word}/", f"<{word}::{word}>", f"{word}_", f" {word}")
    )
    if is_name and random.random() < 0.15 and not _NUMBERED.match(text):
        word = f" {NUMBER}"
    borders = [match.start() for match in re.finditer(r"(?<=\w)(?=\W|_)|(?<=\W)(?=\w)|(?<=[a-z])(?=[A-Z])", text)]
    at = random.choice((0, len(text), *borders, *borders))
    return word if random.random() < 0.15 else text[:at] + word + text[at:]


def strings(value: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every text at any depth: what holds it, its key there, and the keys above."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        where = f"{path}.{key}" if isinstance(value, dict) else path
        if isinstance(value[key], str):
            yield value, key, where
        else:
            yield from strings(value[key], where)


def plant(document: dict[str, Any], random: Random) -> int:
    """Plants a word into one text of each event, those of rare keys first, and into all metadata; returns how many."""
    counts: Counter[str] = Counter()
    for event in document["traceEvents"]:
        found = list(strings(event)) if isinstance(event, dict) else []
        if not found:
            continue
        holder, key, where = min(found, key=lambda each: counts[each[2]] + random.random() * (1 + counts[each[2]]))
        counts[where] += 1
        holder[key] = planted(holder[key], random, is_name=where == ".name" and event.get("ph") == "X")
        if isinstance(event.get("args"), dict) and random.random() < 0.2:
            event["args"][f"{MARK} key"] = event[MARK] = MARK
    around = {key: value for key, value in document.items() if key != "traceEvents"}
    for holder, key, _ in list(strings(around)):
        holder[key] = planted(holder[key], random, is_name=False)
        counts["metadata"] += 1
    document.update(around, **{MARK: 1, "hostname": MARK})
    return counts.total()


def planted_file(name: str, path: Path) -> int:
    """Writes a real trace with planted words; returns how many, 0 where it has no list of events."""
    document = json.loads(gzip.decompress((TRACES / name).read_bytes()))
    if not isinstance(document, dict) or "traceEvents" not in document:
        return 0
    many = plant(document, Random(name))  # noqa: S311
    path.write_text(json.dumps(document))
    return many


#: Compiled, and of several ranks; small.
PLANTED = (
    "torch_compile_triton/trace.json.gz",
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace.json.gz",
)


@pytest.mark.shared
@pytest.mark.parametrize("name", part([name for name in recorded_files() if "/et/" not in name][::-1], 1000, PLANTED))
def test_no_planted_word_survives(name: str, tmp_path: Path, shared_traces: Path) -> None:
    path, out = tmp_path / "t.json", tmp_path / "a.json"
    if not planted_file(name, path):
        pytest.skip("no list of events")
    anonymize(load(path), out)
    text = out.read_text()
    left = [text[max(0, at.start() - 80) : at.end() + 80] for at in re.finditer(f"(?i){MARK}|{NUMBER}", text)]
    assert left == []


S = "SECRET"
#: What survived (kernels, ops, ranges, frames), one of each kind.
LEAKED = (
    (Kind.KERNEL, f"void cutlass::Kernel2<acme::{S}>"), (Kind.KERNEL, f"void at::native::elementwise_kernel<{S}::F>"),
    (Kind.KERNEL, f"triton_{S}_kernel"), (Kind.KERNEL, f"triton_poi_fused_add_{S}_0"), (Kind.KERNEL, f"gemm_{S}"), (Kind.KERNEL, f"attn_{S}"),
    (Kind.KERNEL, f"moe::{S}"), (Kind.KERNEL, f"void (anonymous namespace)::{S}(float*)"), (Kind.KERNEL, f"acme{S}flash_bwd_{S}_kernel"),
    (Kind.KERNEL, f"Cijk_Alik_Bljk_{S}16_MT64x64x32"), (Kind.KERNEL, f"_ZN6{S}9gemm_{S}E"), (Kind.KERNEL, "gemm_gehe\u00efm_kernel"),
    (Kind.MEMCPY, f"Memcpy HtoD ({S} -> Device)"), (Kind.CPU_OP, f"_C::{S}"), (Kind.CPU_OP, f"aten::mm (/home/{S})"), (Kind.CPU_OP, f"aten::mm.{S}"),
    (Kind.CPU_OP, f"{S}Backward0"), (Kind.CPU_OP, f"autograd::engine::evaluate_function: {S}Backward0"), (Kind.CPU_OP, f"triton_tem_fused_{S}_mm_3"),
    (Kind.USER_ANNOTATION, f"Optimizer.step#{S}.step"), (Kind.USER_ANNOTATION, f"execute_{S}"), (Kind.USER_ANNOTATION, f"step[{S}=3]"),
    (Kind.USER_ANNOTATION, f"execute_context_1(8)_generation_0(0)_{S}"), (Kind.USER_ANNOTATION, f"nccl:{S}"),
    (Kind.USER_ANNOTATION, f"enumerate(DataLoader)#_{S}DataLoaderIter.__next__"), (Kind.USER_ANNOTATION, "user X 5551234567"),
    (Kind.USER_ANNOTATION, "step 5551234567"), (Kind.USER_ANNOTATION, f"## {S} forward ##"), (Kind.RUNTIME, f"cudaLaunch{S}"),
    (Kind.PYTHON_FUNCTION, f"/home/a/torch/{S}/model.py(12): {S}"), (Kind.PYTHON_FUNCTION, f"<built-in method {S} of Tensor object at 0x7f>"),
    (Kind.PYTHON_FUNCTION, f"nn.Module: {S}_1"), (Kind.PYTHON_FUNCTION, f"<built-in method collect of {S} object>"), (Kind.OTHER, S),
)  # fmt: skip


@row_by_row(("kind", "name"), LEAKED)
def test_what_survived_does_not(kind: Kind, name: str) -> None:
    made = Names([name]).name(name, kind)
    assert S.lower() not in made.lower()
    assert "\u00ef" not in made
    assert "555" not in made


def test_nothing_survives_in_a_field_of_another_type(tmp_path: Path) -> None:
    """Each argument and metadata field that is kept, with a text, a list of it and an object instead of its value."""
    arguments = ("Device", "dtype", "kind", "Addr", "Input Dims", "Input type", "Concrete Inputs", "stream", "grid", "scope", "correlation",
                 "Process Group Name", "Process Group Ranks", "kernel_backend", "kernel_kwargs", "kernel", "bytes", "cuda_sync_kind", "Collective name")  # fmt: skip
    around = (
        "schemaVersion",
        "displayTimeUnit",
        "baseTimeNanoseconds",
        "with_stack",
        "cupti_version",
        "pytorch_version",
        "trace_id",
        "username",
    )
    of_event = ("ph", "cat", "id", "bp", "s", "pid", "tid", "name", "ts")
    for wrong in (
        PRIVATE,
        [PRIVATE, [PRIVATE]],
        {PRIVATE: PRIVATE},
        f"12 {PRIVATE}",
        f"0x{PRIVATE}",
        f"[0, 1, {PRIVATE}]",
    ):
        op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
        events: list[dict[str, Any]] = [{**op, "ts": 10}, *({**op, "args": {key: wrong}} for key in arguments)]
        events += [
            {**event, key: wrong}
            for key in of_event
            for event in (op, {**op, "ph": "s", "cat": "ac2g"}, {**op, "ph": "i"})
        ]
        events += [{"ph": "M", "name": name, "pid": 1, "tid": 1, "args": {key: f"rank 3 \u00b7 {wrong}", "sort_index": wrong}}
                   for name in ("process_name", "thread_name", "process_labels", PRIVATE) for key in ("name", "labels")]  # fmt: skip
        device = dict.fromkeys(("id", "name", "uuid", "totalGlobalMem", PRIVATE), wrong)
        job = dict.fromkeys(("backend", "rank", "world_size", "nccl_version"), wrong)
        groups = {"pg_config": [dict.fromkeys(("pg_name", "pg_desc", "ranks", "pg_size", "backend_config"), wrong)]}
        for values in (dict.fromkeys(around, wrong), {"deviceProperties": [device], "distributedInfo": job | groups}):
            (tmp_path / "t.json").write_text(json.dumps({**values, "traceEvents": events}))
            anonymize(load(tmp_path / "t.json"), tmp_path / "a.json")
            text = (tmp_path / "a.json").read_text()
            assert PRIVATE not in text
            assert "aten::mm" in text


def constants(one_in: int) -> set[str]:
    """Every text that stands in so many-th of the files of tests."""
    paths = sorted((REPOSITORY / "tests").rglob("*.py"))[::one_in]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("one_in", [8, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_kernel_keeps_its_category_and_its_precision(one_in: int) -> None:
    """All that tests call a kernel and a pattern knows."""
    kernels = [
        text for text in sorted(constants(one_in)) if re.fullmatch(r"(?:void )?[\w:]{6,}[\w:<>(), *&=]{0,400}", text)
    ]
    kernels = [name for name, pattern in zip(kernels, classify(kernels, kernel_patterns()), strict=True) if pattern]
    assert len(kernels) > 500 // (2 * one_in)
    names = Names()
    made = [names.name(name, Kind.KERNEL) for name in kernels]
    patterns = zip(kernels, made, classify(kernels, kernel_patterns()), classify(made, kernel_patterns()), strict=True)
    assert [(a, b) for a, b, own, others in patterns if own != others] == []
    for dtype in (None, DType.FP32, DType.FP64, DType.BF16):
        found = zip(kernels, made, precisions(kernels, dtype), precisions(made, dtype), strict=True)
        assert [(a, b) for a, b, own, others in found if own != others] == []


def test_names_that_the_package_knows_stay() -> None:
    """Ops and calls that stand in its source, and what devices call themselves."""
    source = "".join(path.read_text(encoding="utf-8") for path in Path(tracelens.__file__).parent.rglob("*.py"))
    names = Names()
    ops = set(re.findall(r'"((?:aten|c10d|nccl|vllm|_C|aiter|symm_mem|record_param)\w*::\w+)"', source))
    calls = set(re.findall(r'"((?:cuda|hip)[A-Z]\w+)"', source))
    assert len(ops) > 200
    assert len(calls) > 5
    assert {op: made for op in ops if (made := names.name(op, Kind.CPU_OP)) != op} == {}
    assert {call: made for call in calls if (made := names.name(call, Kind.RUNTIME)) != call} == {}
    devices = Path(tracelens.__file__).parent / "hardware" / "devices"
    called = {name for path in devices.glob("*.toml") for key in ("aliases", "names")
              for name in _all(tomllib.loads(path.read_text(encoding="utf-8")), key)}  # fmt: skip
    assert len(called) > 100
    assert {name: names.word(name) for name in called if names.word(name) != name} == {}


def _all(document: dict[str, Any], key: str) -> list[str]:
    own = document.get(key, [])
    return own + [name for value in document.values() if isinstance(value, dict) for name in _all(value, key)]


@pytest.mark.parametrize(
    "name",
    [
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy PtoP (Peer -> Peer)",
        "CopyHostToDevice",
        "[CUDA memcpy Device-to-Host]",
    ],
)
def test_a_copy_keeps_its_path(name: str) -> None:
    assert copy_path(Names().name(name, Kind.MEMCPY)) == copy_path(name)


_parts = st.lists(
    st.sampled_from(
        ["acme", "Acme", "ACME", "zork", "gemm", "anon1", "anon", "12", "1234567", "_", "::", "<", "x", "moe", "\u00e9"]
    ),
    max_size=6,
)


@given(_parts.map("".join), _parts.map("".join))
def test_two_names_stay_two(one: str, other: str) -> None:
    names = Names()
    for kind in (Kind.KERNEL, Kind.CPU_OP):
        one, other = f"aten::{one}", f"aten::{other}"
        assert (names.name(one, kind) == names.name(other, kind)) == (one == other)


def test_numbers_of_ranges_keep_their_order() -> None:
    names = Names([f"user {number}" for number in (5551234567, 17, 5551234568, 99999)])
    made = [names.name(f"user {number}", Kind.USER_ANNOTATION) for number in (17, 99999, 5551234567, 5551234568)]
    assert made == ["range1 1", "range1 2", "range1 3", "range1 4"]
    assert Names(["step 900", "step 5551234567"]).name("step 5551234567", Kind.USER_ANNOTATION) == "range1_step 2"


@pytest.mark.parametrize(
    "text", ["1.5", "-1", "1e-5", "[0, 1, ...]", "0x7f00", "grid(100,)", "", "[]", "inf", "-1.5e+10, 3"]
)
def test_texts_of_numbers(text: str) -> None:
    assert is_number(text)


@pytest.mark.parametrize(
    "text",
    ["a", "1a", "0xzz", "1.2.3.4", "12 Jones", "e5", "1,2,ff", "infx", "1." * 50_000 + "x", "1.," * 50_000 + "x"],
)
def test_texts_that_are_no_numbers(text: str) -> None:
    assert not is_number(text)


def test_tiles_of_a_compiled_kernel_stay() -> None:
    given = {"kernel_kwargs": f"XBLOCK=16,R0_BLOCK=8,{PRIVATE}=3,waves_per_eu={PRIVATE},{PRIVATE}XBLOCK=4"}
    assert Names().arguments(given) == {"kernel_kwargs": "XBLOCK=16,R0_BLOCK=8"}
    assert Names().arguments({"kernel_kwargs": [PRIVATE]}) == {"kernel_kwargs": ""}


def test_deep_names_and_arguments_are_no_matter() -> None:
    names, deep = Names(), json.loads("[" * 400 + "]" * 400)
    prefix = "autograd::engine::evaluate_function: "
    assert PRIVATE not in names.name(500 * prefix + f"{PRIVATE}::op", Kind.CPU_OP)
    assert names.arguments({"Input Dims": deep, "stream": 7}) == {"stream": 7}
    assert str(names.arguments({"Concrete Inputs": deep, "Input type": deep})).count("[") == 2 * 8


def test_ops_of_xla_keep_their_figures_and_lose_their_names(tmp_path: Path) -> None:
    trace = load(tpu_of_ops(tmp_path / "t.xplane.pb"))
    anonymize(trace, tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    assert not re.search(r"train\.py|jit\(f\)", text)
    columns = ["category", "model", "operation_count", "kernel_us_sum", "gflops", "hbm_mb", "wire_mb"]
    own, made = (
        analyze(each, AnalysisOptions(), on_demand=True).frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE][columns]
        for each in (trace, load(tmp_path / "a.json"))
    )
    assert own["gflops"].notna().any()
    assert own.equals(made)
