"""A sound document of every format that a user gives, how each is written, and the command that reads it."""

from __future__ import annotations

import contextlib
import copy
import csv
import gzip
import io
import json
import sqlite3
import struct
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

import tracelens
from tests.trace.formats.rewritten import nsight_systems, packets, rocpd, rocprofv3, xplane
from tracelens.trace.reading.wire import Wire, WireError, varint

PACKAGE = Path(tracelens.__file__).parent
#: What stands where something else belongs.
ODD: tuple[Any, ...] = (
    "", None, "abc", "1.5", "-1", "0", "1e18", "1e-320", "inf", "nan", "1e400", "x" * 5000, "true", "[1]", "=1+1",
    "\x1b]52;c;x\x07", "9" * 5000, 10**30, -1, 0, 1.5, True, [], {}, [[]], float("inf"), float("nan"), "../../x.toml", "\ud800",
    "12 GB", "1e3", 2**63, -(2**31), 1e300, 5e-324, "NaN", "\n", "a\x00b", [1, [2]], {"a": {"b": 1}}, [None], "None",
)  # fmt: skip


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


def table(rows: int, **row: Any) -> list[dict[str, Any]]:
    return [dict(row) for _ in range(rows)]


def read(*parts: str) -> dict[str, Any]:
    return tomllib.loads(PACKAGE.joinpath(*parts).read_text(encoding="utf-8"))


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def as_packed(document: Any) -> bytes:
    return gzip.compress(as_json(document), compresslevel=1, mtime=0)


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


def as_npy(document: Any) -> bytes:
    """An array of objects, one for each entry of a list."""
    entries = document if isinstance(document, list) else [document]
    array = np.empty(len(entries), object)
    for at, entry in enumerate(entries):
        array[at] = entry
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def as_csv(document: Any) -> bytes:
    file = io.StringIO()
    rows = [row if isinstance(row, dict) else {"": row} for row in document] if isinstance(document, list) else [{}]
    writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode("utf-8", "surrogatepass")


def as_cells(document: Any) -> bytes:
    """A table without a header."""
    return as_csv(document).partition(b"\n")[2]


def as_parquet(document: Any) -> bytes:
    """Columns by name; what Arrow has no type for, as text."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {}
    for key, values in document.items() if isinstance(document, dict) else ():
        try:
            columns[str(key).encode(errors="replace").decode()] = arrow.array(
                values if isinstance(values, list) else [values]
            )
        except (arrow.ArrowException, ValueError, TypeError, OverflowError):
            columns["text"] = arrow.array([repr(values)])
    rows = max(map(len, columns.values()), default=0)
    even = {key: arrow.chunked_array([each, arrow.nulls(rows - len(each), each.type)]) for key, each in columns.items()}
    file = io.BytesIO()
    try:
        parquet.write_table(arrow.table(even), file)
    except arrow.ArrowNotImplementedError:  # an object without keys
        return b"PAR1"
    return file.getvalue()


def as_sqlite(document: Any) -> bytes:
    """Tables of rows by name."""
    with (
        tempfile.NamedTemporaryFile(suffix=".db") as file,
        contextlib.closing(sqlite3.connect(file.name)) as connection,
    ):
        connection.execute("CREATE TABLE empty (x)")
        for name, rows in document.items() if isinstance(document, dict) else ():
            rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
            columns = list(dict.fromkeys(_column(key) for row in rows for key in row)) or ["x"]
            with contextlib.suppress(sqlite3.Error, UnicodeEncodeError):
                connection.execute(f"CREATE TABLE {_column(name)} ({', '.join(columns)})")
                for row in rows:
                    values = [value if _fits_sqlite(value) else str(value) for value in row.values()]
                    marks = ", ".join("?" * len(values))
                    columns = ", ".join(map(_column, row))
                    connection.execute(f"INSERT INTO {_column(name)} ({columns}) VALUES ({marks})", values)  # noqa: S608
        connection.commit()
        return Path(file.name).read_bytes()


def _column(name: Any) -> str:
    return '"' + str(name).replace("\x00", "").replace('"', "").encode(errors="replace").decode()[:200] + '"'


def _fits_sqlite(value: Any) -> bool:
    return value is None or isinstance(value, str | float) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def of_sqlite(make: Callable[[Path], Path]) -> dict[str, Any]:
    """The first rows of every table that ``make`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(make(Path(folder) / "made.db"))
        connection.row_factory = sqlite3.Row
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = {name: connection.execute(f'SELECT * FROM "{name}" LIMIT 40').fetchall() for name in names}  # noqa: S608
        connection.close()
    return {name: [dict(row) for row in rows] for name, rows in tables.items()}


def of_json(make: Callable[[Path], Path]) -> dict[str, Any]:
    """What ``make`` writes, with the first entries of its lists."""
    with tempfile.TemporaryDirectory() as folder:
        return _shortened(json.loads(make(Path(folder) / "made.json").read_bytes()))


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    return [_shortened(each) for each in value[:40]] if isinstance(value, list) else value


def as_protobuf(document: Any) -> bytes:
    """A message: a list of [field number, value], where a list is a message again."""
    out = b""
    for entry in document if isinstance(document, list) else ():
        number, value = (*entry, 0, 0)[:2] if isinstance(entry, list) else (1, entry)
        tag = number << 3 if isinstance(number, int) and 0 < number < 2**29 else 8
        if isinstance(value, int):
            out += varint(tag) + varint(value % 2**64)
        elif isinstance(value, float):
            out += varint(tag | 1) + struct.pack("<d", value)
        else:
            data = as_protobuf(value) if isinstance(value, list) else str(value).encode("utf-8", "surrogatepass")
            out += varint(tag | 2) + varint(len(data)) + data
    return out


def sound(name: str, folder: Path) -> Any:
    """The document of a format; of those that a command writes, what stands in ``folder``."""
    document = FORMATS[name][0]
    if isinstance(document, str):
        return json.loads((folder / document).read_text())
    return document() if callable(document) else document


@cache
def of_protobuf(make: Callable[[Path], Path], most: int) -> list[Any]:
    """What ``make`` writes, of each message the first fields of a number; what reads as a text is one."""
    with tempfile.TemporaryDirectory() as folder:
        return _fields(make(Path(folder) / "made.pb").read_bytes(), most)


def _fields(data: bytes, most: int) -> list[Any]:
    counts: Counter[int] = Counter()
    found: list[Any] = []
    for number, value, end in Wire(data).fields(0, len(data)):
        counts[number] += 1
        if counts[number] <= most:
            found.append([number, value if end < 0 else _text_or_message(data[value:end], most)])
    return found


def _text_or_message(data: bytes, most: int) -> Any:
    if data.isascii() and data.decode().isprintable():
        return data.decode()
    try:
        return _fields(data, most)
    except WireError:
        return data.decode("utf-8", "replace")


def as_module(document: Any) -> bytes:
    """An extension whose perf model answers what the document says."""
    given = document if isinstance(document, dict) else {}
    lines = [
        f"    def {name}(self): return {_python(value)}"
        for name, value in given.items()
        if str(name).isidentifier() and name != "category"
    ]
    return "\n".join([
        "from dataclasses import dataclass", "from typing import ClassVar", "import tracelens as tl",
        "@dataclass(frozen=True, slots=True, kw_only=True)", "class Mine(tl.PerfModel):",
        f"    category: ClassVar[str] = {_python(given.get('category', 'mine'))}", *lines,
        f"@tl.traced_as({_python(given.get('name', 'aten::mm'))})", "def _mine(op): return Mine()",
    ]).encode("utf-8", "surrogatepass")  # fmt: skip


def _python(value: Any) -> str:
    return f"float({str(value)!r})" if isinstance(value, float) else ascii(value)


def as_words(document: Any) -> bytes:
    return " ".join(f"--{key} {value}" for key, value in document.items()).encode("utf-8", "backslashreplace")


CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "torch_dtype": "bfloat16", "rope_scaling": {"type": "x"},
}  # fmt: skip
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
        {**LANE, "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 0, "dur": 80},
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

PROFILE = {"aggregated_ops": {"prefill": {"total_flops_per_prompt_token": 1.5e9, "total_memory_bytes_per_prompt_token": 1e6, "critical_path_factor": 1.1}, "decode": {"total_flops_per_token_in_batch": 2e9, "total_memory_bytes_per_token_in_batch": 1.2e6, "critical_path_factor": 1.0}}}  # fmt: skip
TIMES = [
    {"m": m, "n": n, "k": n, "gemm_dtype": "bf16", "latency_ms": 1e-11 * m * n * n / 5 + 0.01}
    for m in (16, 4096)
    for n in (1024, 4096, 8192)
]
ROCPROF = {"traceEvents": [{"ph": "X", "name": name, "pid": str(pid), "tid": "51", "ts": "10", "dur": "1", "args": {"BeginNs": str(at), "EndNs": str(at + 900), "DurationNs": "900", "pid": "50", "tid": "51", "dev-id": "0", "stream-id": "1"}} for name, pid, at in (("hipLaunchKernel", 2, 10_000), ("k", 8, 12_000))], "otherData": {"Agent3.DeviceType": "GPU"}}  # fmt: skip

PUBLISHED_SYSTEM = {"matrix_flops_fp16": 312, "vector_flops_fp32": 19.5, "vector_flops_fp16": 78, "hbm_bandwidth": 1555, "hbm_capacity": 80, "nvlink_bandwidth": 300, "nvlink_eff": 0.7, "nvlink_latency": 2.5e-6, "ib_bandwidth": 25, "ib_eff": 0.7, "ib_latency": 5e-6, "nvlink_size": 4, "nic_factor": 1, "empirical": False, "summa_nb": 4, "element_size": 2e-9, "mask_element_size": 1e-9, "flops_units": 1e-12}  # fmt: skip
_LAYOUT = {"dp": 2, "tp": 4, "pp": 1, "mbs": 1}
PUBLISHED = [[4, [6.5], [6.5], [8], [[[6.5, 40.0, _LAYOUT, {"t": 39.0, "nv_tp": 4, "nv_dp": 1, "nv_pp": 1}]]]]]
KERNELS = table(3, Kind="KERNEL_DISPATCH", Agent_Id="Agent 4", Queue_Id=1, Stream_Id=2, Thread_Id=9, Kernel_Name="Cijk_Ailk_Bjlk_BBS", Correlation_Id=4, Start_Timestamp=9000, End_Timestamp=9900, Workgroup_Size_X=64, Workgroup_Size_Y=1, Workgroup_Size_Z=1, Grid_Size_X=640, Grid_Size_Y=1, Grid_Size_Z=1)  # fmt: skip
_ENGINE = {"device": "h100_sxm", "framework": "sglang", "version": "0.5.14"}
_TYPES = {"mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "gemm_type": "bfloat16"}
_MLA = {**_ENGINE, **_TYPES, "num_heads": 16, "batch_size": 4, "isl": 256, "tp_size": 1, "step": 256}
_ATTENTION = {"device": "h100_sxm", "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "batch_size": 4, "isl": 128, "num_heads": 8, "num_key_value_heads": 1, "head_dim": 64, "step": 0, "window_size": 128}  # fmt: skip
_EXPERTS = {"num_tokens": 64, "hidden_size": 2880, "inter_size": 2880, "topk": 4, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 16, "distribution": "balanced"}  # fmt: skip
_STATES = {
    **_ENGINE,
    "phase": "context",
    "batch_size": 8,
    "seq_len": 512,
    "num_tokens": 4096,
    "d_model": 1024,
    "d_conv": 4,
}
_HEADS = {"num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 16, "head_v_dim": 128}
_DELTA = {**_STATES, **_HEADS, "kernel_source": "chunk_gated_delta_rule"}
#: A row of each table that ``estimate KIND --batch`` reads.
ROWS: dict[str, dict[str, Any]] = {
    "grouped-gemm": {"n": 256, "k": 256, "gemm_dtype": "bf16", "rows": "128,77", "device": "h200"}, "sdpa": {"s_q": 64, "q_heads": 8, "d_qk": 64, "kv_cache_dtype": "bf16", "device": "h200"},
    "context-attention": _ATTENTION, "generation-attention": {**_ATTENTION, "isl": 1, "step": 511}, "encoder-attention": {**_ENGINE, "batch_size": 4, "isl": 512, "num_heads": 16, "head_dim": 72, "attn_dtype": "bfloat16"},
    "context-mla": _MLA, "generation-mla": {**_MLA, "isl": 1}, "mla-context-module": {**_MLA, "architecture": "DeepseekV3ForCausalLM"}, "mla-generation-module": {**_MLA, "isl": 1, "architecture": "DeepseekV3ForCausalLM"},
    "dsa-context-module": {**_MLA, "architecture": "GlmMoeDsaForCausalLM"}, "dsa-generation-module": {**_MLA, "isl": 1, "architecture": "GlmMoeDsaForCausalLM"},
    "moe-mxfp4": {**_ENGINE, **_EXPERTS, "moe_dtype": "w4a16_mxfp4"}, "wideep-moe": {**_ENGINE, **_EXPERTS, "framework": "trtllm", "moe_dtype": "fp8_block", "moe_kernel": "cutlass", "num_slots": 128}, "moe-aiter": {**_EXPERTS, "device": "mi355x", "moe_dtype": "mxfp4", "gated": "1", "q_type": "per_1x32"},
    "mla-bmm": {**_ENGINE, "bmm_dtype": "bfloat16", "num_tokens": 64, "num_heads": 16}, "quantize-matrix": {**_ENGINE, "m": 64, "k": 512, "quant_dtype": "fp8"}, "quantize-scale": {**_ENGINE, "m": 64, "k": 512, "quant_dtype": "fp8"},
    "custom-allreduce": {**_ENGINE, "framework": "vllm", "allreduce_dtype": "bfloat16", "num_gpus": 8, "message_size": 32768, "backend": "vllm_eager"}, "nccl": {"device": "h100_sxm", "nccl_dtype": "half", "num_gpus": 8, "message_size": 262144},
    "trtllm-alltoall": {"device": "gb200", "framework": "trtllm", "kernel_source": "NVLinkOneSided", "moe_dtype": "nvfp4", "num_tokens": 128, "hidden_size": 7168, "topk": 8, "num_experts": 256, "moe_ep_size": 16, "distribution": "balanced"},
    "gdn": _DELTA, "kda": _DELTA, "mamba2": {**_STATES, "kernel_source": "causal_conv1d_fn", "d_state": 128, "nheads": 64, "head_dim": 64, "n_groups": 8, "chunk_size": 128},
    "gemm-aiter": {"device": "mi300x", "gemm_dtype": "fp8_block", "m": 512, "n": 512, "k": 512, "library": "ck", "batch": 1, "preshuffled": "False", "cu_num": 304},
    "ep": {"device": "h200_sxm", "op_name": "normal", "node_num": 1, "hidden_size": 4096, "num_token": 128, "num_topk": 8, "num_experts": 256, "dispatch_sms": 20},
}  # fmt: skip

Write = Callable[[Any], bytes]
TO, TO_CSV, TO_TOML = ("-o", "FILE.out.json"), ("-o", "FILE.out.csv"), ("-o", "FILE.out.toml")
PROJECT = ["project", "--model", "gpt2", "--cluster", "dgx-h100", "--gpus", "8", "--tp", "1", "--global-batch", "8"]
#: Of each format: a sound document, how it is written, its file's name, and the command that reads it.
FORMATS: dict[str, tuple[Any, Write, str, list[str]]] = {
    "device": (read("hardware", "devices", "h100-sxm.toml"), as_toml, "d.toml", ["devices", "check", "FILE"]),
    "device in use": (read("hardware", "devices", "mi300x.toml"), as_toml, "d.toml", ["estimate", "gemm", "--m", "64", "--n", "64", "--k", "64", "--device", "FILE"]),
    "cluster": (read("predict", "network", "clusters", "perlmutter.toml"), as_toml, "c.toml", ["estimate", "collective", "--op", "all_reduce", "--bytes", "1MiB", "--ranks", "8", "--cluster", "FILE"]),
    "model": (read("predict", "workload", "models", "qwen3-30b-a3b.toml"), as_toml, "m.toml", ["models", "show", "FILE"]),
    "engine": (read("predict", "serving", "engines", "vllm.toml"), as_toml, "e.toml", [*SERVE, "--engine", "FILE"]),
    "config.json": (CONFIG, as_json, "config.json", ["models", "show", "FILE"]),
    "experiment": (EXPERIMENT, as_yaml, "x.yaml", ["serve", "--config", "FILE"]),
    "requests": ([REQUEST, {**REQUEST, "timestamp": 9}], as_lines, "r.jsonl", [*SERVE[:-4], "--replay", "FILE"]),
    "launch": (LAUNCH, as_words, "run.sh", ["project", "--cluster", "dgx-h100", "--gpus", "8", "--launch", "FILE"]),
    "launch YAML": (PRIMUS, as_yaml, "p.yaml", ["project", "--cluster", "dgx-h100", "--gpus", "8", "--launch", "FILE"]),
    "npz": ({"experts": [[0, 1], [2, 3]], "weights": [[0.5, 0.5], [0.1, 0.9]]}, as_npz, "r.npz", ["route", "--topk", "2", "--ranks", "1", "--routing", "FILE"]),
    "kineto": (KINETO, as_json, "t.json", ["report", "FILE", *TO]),
    "signatures": (SIGNATURES, as_json, "t.json", ["report", "FILE", "--device", "h100-sxm", *TO]),
    "memory snapshot": (SNAPSHOT, as_json, "s.json", ["report", "TRACE", "--memory-snapshot", "FILE", *TO]),
    "counters": ([{"ID": str(n), "Process ID": "7", "Kernel Name": "k", "Block Size": "(64, 1, 1)", "Grid Size": "(9, 1, 1)", "Device": "0", "Metric Name": metric, "Metric Unit": unit, "Metric Value": "1,024.5"} for n in range(2) for metric, unit in (("dram__bytes.sum", "Kbyte"), ("gpu__time_duration.sum", "usecond"))], as_csv, "c.csv", ["report", "TRACE", "--counters", "FILE", *TO]),
    "counters of ROCm": (table(3, Dispatch_Id=1, Kernel_Name="k", Grid_Size=1024, Workgroup_Size=64, TCC_HIT_sum=3, TCC_MISS_sum=4, Start_Timestamp=1000, End_Timestamp=2000), as_csv, "c.csv", ["report", "TRACE", "--counters", "FILE", *TO]),
    "capture": (KINETO, as_json, "t.json", ["report", "TRACE", "--capture", "FILE", *TO]),
    "shapes": (KINETO, as_json, "t.json", ["report", "TRACE", "--shapes", "FILE", *TO]),
    "report.json": ("report.json", as_json, "r.json", ["compare", "FILE", "BESIDE"]),
    "report.json in a fit": ("report.json", as_json, "r.json", ["calibrate", "FILE", "--device", "mi300x", *TO_TOML]),
    "report.json in a projection": ("report.json", as_json, "r.json", [*PROJECT, "--from-report", "FILE"]),
    "report.json as an anchor": ("report.json", as_json, "r.json", [*PROJECT, "--anchor", "FILE"]),
    "report.json of a server": ("report.json", as_json, "r.json", [*SERVE[:-4], "--calibrate", "FILE", *TO_TOML]),
    "baseline": ("baseline.json", as_packed, "b.json.gz", ["compare", "baseline:b", "TRACE", "--baselines", "HERE"]),
    "profile": (PROFILE, as_json, "p.json", [*SERVE, "--profile", "FILE"]),
    "served cluster": (read("predict", "network", "clusters", "dgx-h100.toml"), as_toml, "c.toml", ["project", "--model", "gpt2", "--cluster", "FILE", "--gpus", "8", "--tp", "1", "--global-batch", "8"]),
    "route settings": ({"experts": 8, "tokens": 64, "topk": 2, "ranks": 2, "seed": 1}, as_toml, "r.toml", ["route", "--config", "FILE"]),
    "placement": ([{"a": 0}, {"a": 1}, {"a": 0}, {"a": 1}], as_cells, "p.csv", ["route", "--tokens", "64", "--experts", "4", "--ranks", "2", "--topk", "2", "--placement", "FILE"]),
    "routing": (table(3, a=0, b=1), as_cells, "in.csv", ["route", "--topk", "2", "--ranks", "1", "--routing", "FILE"]),
    "gemm table": (table(3, m=128, n=128, k=128, gemm_dtype="bf16", device="h200"), as_csv, "in.csv", ["estimate", "gemm", "--batch", "FILE", *TO_CSV]),
    "collective table": (table(3, op="all_reduce", size=1048576, num_nodes=2, gpus_per_node=4, cluster="perlmutter"), as_csv, "in.csv", ["estimate", "collective", "--batch", "FILE", *TO_CSV]),
    "moe table": (table(3, num_tokens=128, hidden_size=4096, inter_size=1024, topk=2, num_experts=8, moe_tp_size=1, moe_ep_size=1, distribution="balanced", device="h200"), as_csv, "in.csv", ["estimate", "moe", "--batch", "FILE", *TO_CSV]),
    "parquet table": ({"m": [128] * 3, "n": [64] * 3, "k": [256] * 3, "gemm_dtype": ["bf16"] * 3, "device": ["h200"] * 3}, as_parquet, "in.parquet", ["estimate", "gemm", "--batch", "FILE", *TO_CSV]),
    "times": (TIMES, as_csv, "gemm.csv", ["calibrate", "FILE", "--device", "h100-sxm", *TO_TOML]),
    "arrivals": (table(3, arrival_s=0, input_toks=8, output_toks=4), as_csv, "in.csv", [*SERVE[:-4], "--replay", "FILE"]),
    "served points": (table(2, model_path="llama3.1-8b", system="h100_sxm", isl=64, osl=4, concurrency=2, tp_size=1), as_csv, "in.csv", ["serve", "--batch", "FILE", *TO_CSV]),
    "projected points": (table(2, model="gpt2", gpu="h100", n_gpus=8, tp=1, pp=1, global_batch=8, seq_len=128), as_csv, "in.csv", ["project", "--batch", "FILE", *TO_CSV]),
    "scores": ([{"family": "a", "measured": 1.5, "predicted": 1.0, "low": 0.5, "high": 2}, {"family": "b", "measured": 2, "predicted": 1, "low": 0.5, "high": 2}], as_csv, "in.csv", ["score", "FILE"]),
    "extension": ({"flops": 7, "hbm_bytes": 8, "wire_bytes": 0, "parameters": {"m": 1}, "category": "mine", "name": "aten::mm"}, as_module, "mine.py", ["report", "TRACE", "--extension", "FILE", *TO]),
    "nsight systems": (of_sqlite(nsight_systems), as_sqlite, "t.sqlite", ["report", "FILE", "--cpu", *TO]),
    "rocpd": (of_sqlite(rocpd), as_sqlite, "t.db", ["report", "FILE", "--cpu", *TO]),
    "rocprofv3": (of_json(rocprofv3), as_json, "t.json", ["report", "FILE", "--cpu", *TO]),
    "rocprof": (ROCPROF, as_json, "t.json", ["report", "FILE", "--cpu", *TO]),
    "rocprofv3's CSV": (KERNELS, as_csv, "12_kernel_trace.csv", ["report", "FILE", "--cpu", *TO]),
    "perfetto": (partial(of_protobuf, packets, 60), as_protobuf, "t.pftrace", ["report", "FILE", "--cpu", *TO]),
    "xplane": (partial(of_protobuf, xplane, 12), as_protobuf, "t.xplane.pb", ["report", "FILE", "--cpu", *TO]),
    "collective times": (table(6, size=1048576, op="allreduce", **{"time-o": 90.5}, num_nodes=2, gpus_per_node=4), as_csv, "nccl.csv", ["calibrate", "FILE", "--cluster", "perlmutter", *TO_TOML]),
    "results of the published code": (PUBLISHED, as_npy, "p.npy", ["search", "--model", "gpt2", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "8", "--executor", "serial", "--compare", "FILE"]),
    "published system": (PUBLISHED_SYSTEM, as_json, "config-A100.json", ["search", "--model", "gpt3", "--gpus", "64", "--global-batch", "256", "--rules", "paper", "--strategy", "1d", "--executor", "serial", "--cluster", "FILE"]),
    "trace beside a projection": (KINETO, as_json, "t.json", [*PROJECT, "--against", "FILE"]),
    "lake's mark": ("lake/lake.json", as_json, "LAKE/lake.json", ["query", "LAKE", "SELECT * FROM ops"]),
    "lake's table": ({"name": ["a", "b"], "category": ["GEMM", None], "operation_count": [1, 2], "kernel_us_sum": [1.5, 2.5]}, as_parquet, "LAKE/merged/ops.parquet", ["query", "LAKE", "SELECT name, kernel_us_sum FROM ops"]),
    **{f"{kind} rows": ([row, row], as_csv, "in.csv", ["estimate", kind, "--batch", "FILE", *TO_CSV]) for kind, row in ROWS.items()},
    **{f"kineto in {' '.join(command[:2])}": (KINETO, as_json, "t.json", command) for command in (
        ["check", "FILE"], ["compare", "FILE", "TRACE"], ["compare", "TRACE", "FILE"], ["whatif", "FILE", "--scale", "aten::mm=0.5"], ["whatif", "FILE", "--graphs"],
        ["replay", "FILE", "-o", "FOLDER"], ["slim", "FILE", "--steps", "3", *TO], ["anonymize", "FILE", *TO], ["perfetto", "FILE", *TO], ["convert", "FILE", "-o", "FILE.pftrace"],
        ["fuse", "FILE", "TRACE", "--executor", "serial", *TO], ["collectives", "FILE", "TRACE", "--executor", "serial", *TO], ["query", "FILE", "SELECT * FROM kernels"],
        ["extensions", "new", "aten::mm", "--from", "FILE"], ["calibrate", "FILE", "--device", "mi300x", *TO_TOML], ["baseline", "save", "one", "FILE", "--baselines", "FOLDER"],
    )},
}  # fmt: skip


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
