"""Small device traces: steps of a few products, as fast as asked, with any names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

PROPERTIES = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132}


def events(
    *, steps: int = 3, kernel_us: float = 100.0, op: str = "aten::mm", kernel: str = "gemm"
) -> list[dict[str, Any]]:
    """``steps`` steps of five ops ``op``, whose kernels take ``kernel_us`` each, a little more from call to call."""
    made: list[dict[str, Any]] = []
    number, at = 0, 1000.0
    shapes = {"Input Dims": [[256, 512], [512, 1024]], "Input type": ["float", "float"]}
    for step in range(steps):
        begin = at
        for call in range(5):
            number += 1
            duration = kernel_us * (1 + 0.001 * ((step * 5 + call) % 3))
            common = {"ph": "X", "pid": 1, "tid": 1}
            made += [
                {**common, "cat": "cpu_op", "name": op, "ts": at, "dur": 10, "args": {"External id": number, **shapes}},
                {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 2, "dur": 5,
                 "args": {"correlation": number, "External id": number}},
                {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": kernel, "ts": at + 20, "dur": duration,
                 "args": {"correlation": number, "External id": number, "stream": 7, "device": 0}},
            ]  # fmt: skip
            at += duration + 25
        made.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
                     "ts": begin - 1, "dur": at - begin})  # fmt: skip
        at += 5
    return made


def write(path: Path, *, rank: int | None = None, about: dict[str, Any] | None = None, **given: Any) -> Path:
    """A trace of ``events(**given)`` with further metadata ``about``: the same bytes each time."""
    document: dict[str, Any] = {"deviceProperties": [PROPERTIES], "traceEvents": events(**given), **(about or {})}
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": 2}
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path
