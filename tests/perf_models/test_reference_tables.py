"""Parameters and FLOPs of GEMM, convolution and normalization calls against another tool's tables.

The tables list each call's recorded arguments, so no trace is read here. Every difference is deliberate and stands in
``docs/differences.toml``, with its reason.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.generate_differences import PAGE, page, sections
from tracelens.perf_models import bindings
from tracelens.types.signature import OpSignature, freeze

FOLDERS = ("mi300", "h100", "perf_model", "torch_compile_triton")
SHEETS = ("GEMM", "CONV_fwd", "CONV_bwd", "Normalization")

#: (op, figure) that differ from the tables where they do, and in how many rows.
DIFFERENCES = {
    (op, row["figure"].strip("`")): row["tested"]
    for section in sections()
    for row in section["row"]
    if "tested" in row
    for op in re.findall(r"`([\w:]+)`", row["op"])
}


def rows(root: Path, sheet: str) -> Iterator[tuple[str, dict[str, str]]]:
    csv.field_size_limit(sys.maxsize)
    for folder in FOLDERS:
        for path in sorted((root / folder).glob(f"**/{sheet}.csv")):
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    yield path.parent.name, row


def signature(row: dict[str, str], suffix: str = "_first") -> OpSignature:
    fields = {"shapes": "Input Dims", "dtypes": "Input type", "strides": "Input Strides", "scalars": "Concrete Inputs"}
    return OpSignature(
        name=row["name"], **{key: freeze(ast.literal_eval(row[header + suffix])) for key, header in fields.items()}
    )


def same(ours: Any, theirs: str) -> bool:
    if theirs == "":
        return ours is None
    try:
        return float(ours) == float(theirs)
    except (TypeError, ValueError):
        return str(ours) == theirs


@pytest.mark.shared
def test_parameters_and_flops_equal_the_tables_but_for_the_listed_differences(shared_traces: Path):
    found: dict[tuple[str, str], int] = {}
    compared = 0
    for sheet in SHEETS:
        for _, row in rows(shared_traces, sheet):
            model = bindings()[row["name"]].target(signature(row))
            ours = model.parameters()
            theirs = {key.removeprefix("param: "): text for key, text in row.items() if key.startswith("param: ")}
            assert set(theirs) <= set(ours) | {"output_mask"}
            differing = [key for key, text in theirs.items() if not same(ours.get(key), text)]
            flops = float(row["GFLOPS_first"]) * 1e9
            if model.flops() != pytest.approx(flops, rel=1e-9, abs=0):
                differing.append("flops")
            for key in differing:
                found[row["name"], key] = found.get((row["name"], key), 0) + 1
            compared += 1
    assert compared > 100
    assert found == DIFFERENCES


@pytest.mark.shared
def test_gemm_bytes_equal_the_tables(shared_traces: Path):
    for _, row in rows(shared_traces, "GEMM"):
        model = bindings()[row["name"]].target(signature(row))
        mebibytes = float(row["Data Moved (MB)_first"])
        assert model.hbm_bytes() == pytest.approx(mebibytes * 2**20, rel=1e-9)


@pytest.mark.shared
def test_nearly_all_kernel_time_of_eager_traces_is_in_ops_with_a_model(shared_traces: Path):
    for folder in FOLDERS[:3]:
        for path in sorted((shared_traces / folder).glob("**/unified_perf_summary.csv")):
            total = modelled = 0.0
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    time_us = float(row["Kernel Time (µs)_sum"] or 0)
                    total += time_us
                    modelled += time_us if row["name"] in bindings() else 0.0
            assert modelled / total >= 0.95, path.parent.name


def test_the_page_of_differences_is_as_generated():
    assert len(DIFFERENCES) == 16
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m docs.generate_differences"
