"""The eager traces against the tables that another tool made of them (docs/differences.md lists what differs on purpose).

Its tables are of the whole file, whatever steps that has: so are ours here.
"""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.conftest import RealAnalysis, part
from tracelens.analysis.loaded_trace import FILE
from tracelens.trace.table import Kind

pytestmark = pytest.mark.shared

EAGER = {
    "bert-h100": "h100/gaunernst_bert-small-uncased__1016001",
    "bert-mi300": "mi300/gaunernst_bert-small-uncased__1016001",
    "vit-mi300": "mi300/Falconsai_nsfw_image_detection__1016002",
    "qwen-mi300": "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005",
    "timesformer-mi300": "mi300/facebook_timesformer-base-finetuned-k400__1016002",
    "resnet-mi300": "mi300/resnet_act_checkpoint",
    "normalization": "perf_model/normalization/normalization_layer_test",
    "compiled": "torch_compile_triton/trace",
}
ARGUMENTS = ["name", "Input Dims", "Input type", "Input Strides", "Concrete Inputs"]
KEYS = ["name", "input_dims", "input_types", "input_strides", "concrete_inputs"]


def reference(shared_traces: Path, which: str, table: str) -> pd.DataFrame | None:
    folder = next(f for f in (shared_traces / EAGER[which]).parent.glob(f"{Path(EAGER[which]).name}*_csvs"))
    path = folder / f"{table}.csv"
    return pd.read_csv(path, keep_default_na=False) if path.exists() else None


def canonical(text: Any) -> Any:
    """Recorded arguments as nested tuples, however the table spells them; absent is None."""
    if text is None or text == "" or (isinstance(text, float) and math.isnan(text)):
        return None
    return freeze(ast.literal_eval(text))


def freeze(value: Any) -> Any:
    return tuple(freeze(v) for v in value) if isinstance(value, list | tuple) else value


def kernels_of(details: str) -> dict[str, int]:
    """Kernel name -> ns, exact."""
    found: dict[str, int] = {}
    pattern = r"'name': '(.*?)', 'stream'.*?'total_duration_us': (?:np\.float64\()?([0-9.e+-]+)"
    for name, us in re.findall(pattern, details):
        found[name] = found.get(name, 0) + round(float(us) * 1000)
    return found


#: All tests of a trace in a row: it is analyzed once.
of_each_trace = pytest.mark.parametrize("which", part(list(EAGER), 2), scope="module")
Grouped = dict[tuple[Any, ...], tuple[int, dict[str, int]]]


def grouped(frame: pd.DataFrame, columns: list[str], details: str) -> Grouped:
    """(name, arguments) -> (calls, ns by kernel name), summed over processes, threads and is_recompute."""
    result: Grouped = {}
    for row in frame.to_dict("records"):
        calls, kernels = result.get(key := arguments_key(row, columns), (0, {}))
        for name, ns in kernels_of(row[details]).items():
            kernels[name] = kernels.get(name, 0) + ns
        result[key] = (calls + int(row["operation_count"]), kernels)
    return result


def arguments_key(row: dict[str, Any], columns: list[str]) -> tuple[Any, ...]:
    return (row[columns[0]], *(canonical(row[c]) for c in columns[1:]))


@of_each_trace
def test_every_launching_op_call_has_the_same_count_and_kernel_time(
    shared_traces: Path, real_analysis: RealAnalysis, which: str
) -> None:
    """Kernel by kernel; what we have beyond the reference are memsets, which it does not link (no flow event)."""
    expected = grouped(reference(shared_traces, which, "ops_unique_args"), ARGUMENTS, "kernel_details_summary")
    ours = grouped(
        real_analysis(EAGER[which], steps=FILE, on_demand=True).frames["ops_unique_args"], KEYS, "kernel_details"
    )
    assert expected
    assert not [key[:2] for key in expected if key not in ours]
    for key, (calls, kernels) in expected.items():
        assert ours[key][0] == calls, key[:2]
        for name, ns in kernels.items():
            assert ours[key][1][name] == pytest.approx(ns, rel=1e-6), (key[:2], name)
        assert set(ours[key][1]) - set(kernels) <= {"Memset (Device)"}, key[:2]


@of_each_trace
def test_busy_unions_agree_within_the_float_step_of_the_reference(
    shared_traces: Path, real_analysis: RealAnalysis, which: str
) -> None:
    """The reference adds float µs: at 2^41..2^43 µs one step is 2^-11..2^-9 µs, at the start and end of every kernel."""
    found: dict[Any, tuple[float, float]] = {}
    for row in real_analysis(EAGER[which], steps=FILE, on_demand=True).frames["ops_unique_args"].to_dict("records"):
        us, memset = found.get(key := arguments_key(row, KEYS), (0.0, 0.0))
        added = kernels_of(row["kernel_details"]).get("Memset (Device)", 0) / 1e3
        found[key] = (us + row["direct_us_sum"], memset + added)
    theirs: dict[Any, tuple[float, int]] = {}
    for row in reference(shared_traces, which, "ops_unique_args").to_dict("records"):
        us, events = theirs.get(key := arguments_key(row, ARGUMENTS), (0.0, 0))
        kernels = row["kernel_details_summary"].count("'name'") * int(row["operation_count"])
        theirs[key] = (us + float(row["total_direct_kernel_time_sum"]), events + kernels)
    for key, (us, kernels) in theirs.items():
        total, memset = found[key]
        assert total - memset == pytest.approx(us, rel=1e-6, abs=2 * kernels * 2**-10), key[:2]


@of_each_trace
def test_timeline_equals_the_reference_where_the_reference_sees_everything(
    shared_traces: Path, real_analysis: RealAnalysis, which: str
) -> None:
    table = reference(shared_traces, which, "gpu_timeline")
    if "is_recompute" in table.columns:
        pytest.skip("the reference splits this trace by is_recompute: its unions do not add up")
    found = real_analysis(EAGER[which], steps=FILE, on_demand=True)
    ours = found.frames["gpu_timeline"].set_index("type")["time_us"] / 1e3
    unseen = found.coverage.unlinked or (found.trace.table.kind == Kind.MEMSET).any()
    for row in table.to_dict("records"):
        theirs = float(row["time ms"])
        if not unseen:
            assert ours[row["type"]] == pytest.approx(theirs, rel=1e-6, abs=1e-4), row["type"]
        elif row["type"] in ("busy_time", "total_time"):
            assert ours[row["type"]] > theirs - 1e-3, row["type"]


@of_each_trace
@pytest.mark.parametrize("family", ["GEMM", "CONV_fwd", "CONV_bwd", "Normalization"])
def test_dimensions_and_flops_of_a_family_equal_the_reference(
    shared_traces: Path, real_analysis: RealAnalysis, which: str, family: str
) -> None:
    table = reference(shared_traces, which, family)
    if table is None:
        pytest.skip(f"no {family} in this trace")
    ours = {}
    for row in real_analysis(EAGER[which], steps=FILE, on_demand=True).families[family].to_dict("records"):
        key = (row["name"], *(canonical(row[c]) for c in KEYS[1:]))
        ours[key] = {name.replace("param_", "param: "): value for name, value in row.items()}
    first = [f"{c}_first" if c != "name" else c for c in ARGUMENTS]
    compared = 0
    for row in table.to_dict("records"):
        key = (row["name"], *(canonical(row[c]) for c in first[1:]))
        assert key in ours, key[:2]
        mine = ours[key]
        different = {
            column: (row[column], mine.get(column))
            for column in table.columns
            if column.startswith("param: ")
            and not same(row[column], mine.get(column))
            and not deliberate(row["name"], column, row, mine)
        }
        assert not different, (row["name"], key[1], different)
        if not flops_differ_on_purpose(row, mine):
            assert mine["gflops"] == pytest.approx(float(row["GFLOPS_first"]), rel=1e-9), (row["name"], key[1])
        compared += 1
    assert compared == len(table)


def same(theirs: Any, ours: Any) -> bool:
    a, b = plain(theirs), plain(ours)
    if isinstance(a, float | int) and isinstance(b, float | int) and not isinstance(a, bool):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b


def plain(value: Any) -> Any:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        try:
            return freeze(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            return value
    return value


def deliberate(name: str, column: str, theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    """docs/differences.md: the reference reads every norm as training and affine, and no bias of a convolution."""
    if "norm" in name:
        if column == "param: num_channels":
            return name == "aten::native_group_norm_backward"  # it takes the group count
        return column in ("param: is_training", "param: is_affine", "param: has_bias", "param: output_mask")
    if column == "param: transpose":
        return theirs[column] in ("", None)  # it reads them from kernel names, some of which say nothing
    return column == "param: bias" and name.startswith("aten::convolution") and plain(theirs[column]) in (False, ())


def flops_differ_on_purpose(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    return any(
        column in theirs
        and not same(theirs[column], ours.get(column))
        and deliberate(str(theirs["name"]), column, theirs, ours)
        for column in ("param: is_training", "param: is_affine", "param: has_bias", "param: bias", "param: output_mask")
    )


@of_each_trace
def test_at_least_95_percent_of_linked_computation_is_in_rows_with_a_model(
    real_analysis: RealAnalysis, which: str
) -> None:
    found = real_analysis(EAGER[which], steps=FILE, on_demand=True)
    unified = found.frames["unified_perf_summary"]
    linked = unified[unified["name"] != "(unlinked kernels)"]
    share = linked.loc[linked["has_perf_model"].astype(bool), "kernel_us_sum"].sum() / linked["kernel_us_sum"].sum()
    assert share >= 0.95


@of_each_trace
def test_every_kernel_is_in_exactly_one_unified_row(real_analysis: RealAnalysis, which: str) -> None:
    """Kernel time in the details of all rows = the summed duration of everything that is no collective."""
    found = real_analysis(EAGER[which], steps=FILE, on_demand=True)
    in_rows = sum(sum(kernels_of(text).values()) for text in found.frames["unified_perf_summary"]["kernel_details"])
    activity = found.activity
    assert in_rows == int(activity.duration[~activity.collective].sum())
