"""``report.json`` against its shipped schema: complete, strict, deterministic."""

from __future__ import annotations

import copy
from dataclasses import replace

import jsonschema
import orjson
import pytest

from tracelens.analysis.verdict.summary import Coverage, DeviceSummary, InputSummary, Summary
from tracelens.files.documents import is_report
from tracelens.report.json_report import SCHEMA, json_bytes, schema, write_json

VALIDATOR = jsonschema.Draft202012Validator(schema())


@pytest.fixture
def report(analysis, summary, utilization) -> dict:
    summary = replace(summary, utilization=utilization)
    return orjson.loads(json_bytes(summary, analysis.frames["unified_perf_summary"]))


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(schema())


def test_a_full_report_is_valid(report):
    VALIDATOR.validate(report)
    assert report["schema"] == SCHEMA


def test_a_report_of_which_hardly_anything_is_known_is_valid():
    bare = Summary(
        input=InputSummary(file="x.json", events=0), device=DeviceSummary(id=None, label="unknown", matched_by="none")
    )
    VALIDATOR.validate(orjson.loads(json_bytes(bare, None)))


def objects(value, path=()):
    """Every object of a document, with its path."""
    if isinstance(value, dict):
        yield path, value
        for key, entry in value.items():
            yield from objects(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from objects(entry, (*path, index))


def test_the_schema_fails_when_any_key_is_missing(report):
    removed = 0
    for path, found in objects(report):
        if path and path[-1] == "perf_params":
            continue
        for key in found:
            broken = copy.deepcopy(report)
            at = broken
            for step in path:
                at = at[step]
            del at[key]
            assert not VALIDATOR.is_valid(broken), (*path, key)
            removed += 1
    assert removed > 100


def test_every_key_of_a_report_is_described_in_the_schema(report):
    closed = orjson.loads(orjson.dumps(schema()))
    for _, found in objects(closed):
        if "properties" in found and "required" in found:
            found["additionalProperties"] = False
    jsonschema.Draft202012Validator(closed).validate(report)


def test_a_folder_in_the_file_name_is_not_valid(report):
    report["input"]["file"] = "/home/me/x.json"
    assert not VALIDATOR.is_valid(report)


def test_an_op_carries_what_diff_and_calibration_read(report):
    gemm = report["ops"][0]
    assert {key: gemm[key] for key in ("name", "input_dims", "input_types", "input_strides", "concrete_inputs")} == {
        "name": "aten::mm",
        "input_dims": [[128, 512], [512, 256]],
        "input_types": ["c10::BFloat16", "c10::BFloat16"],
        "input_strides": [[512, 1], [256, 1]],
        "concrete_inputs": ["", ""],
    }
    assert gemm["perf_params"] == {"M": 128, "N": 256, "K": 512, "bias": False}
    assert (gemm["model"], gemm["operation_count"], gemm["backend"], gemm["roofline_bound"]) == (
        "GEMM",
        4,
        "roofline",
        "compute",
    )
    assert (gemm["kernel_us_mean"], gemm["kernel_us_std"], gemm["roofline_us"], gemm["launch_gap_us"]) == (
        10.0,
        None,
        5.0,
        1.5,
    )
    assert gemm["gflops"] == 2 * 128 * 256 * 512 / 1e9
    assert gemm["hbm_mb"] == 2 * (128 * 512 + 512 * 256 + 128 * 256) / 1e6


def test_a_token_exchange_has_wire_bytes_zero_flops_and_no_hbm_bytes(report):
    exchange = report["ops"][1]
    assert (exchange["gflops"], exchange["hbm_mb"], exchange["wire_mb"]) == (0, None, 4096 * 7168 * 2 / 1e6)


def test_what_is_not_determined_is_null(report):
    unknown = report["ops"][2]
    assert [unknown[key] for key in ("model", "perf_params", "roofline_us", "gflops", "roofline_bound")] == [None] * 5
    assert unknown["input_dims"] is None


def test_coverage_has_its_seven_keys(report):
    assert report["coverage"] == {
        "perf_model": 0.912, "flops": 0.5, "categorised": 0.99, "unlinked": 0.03, "communication": 0.12, "shapes": True, "stacks": False,
    }  # fmt: skip


def test_not_a_number_is_null(summary):
    content = orjson.loads(json_bytes(replace(summary, coverage=Coverage(perf_model=float("nan"))), None))
    assert content["coverage"]["perf_model"] is None


def test_lone_surrogates_do_not_stop_it(summary):
    content = orjson.loads(json_bytes(replace(summary, extensions=("a\ud800",)), None))
    assert content["extensions"] == ["a\ufffd"]


def test_the_same_input_gives_the_same_bytes(analysis, summary):
    ops = analysis.frames["unified_perf_summary"]
    assert json_bytes(summary, ops) == json_bytes(summary, ops.copy())
    assert next(iter(orjson.loads(json_bytes(summary, ops)))) == "schema"


def test_a_report_is_recognized_by_its_first_key(summary, tmp_path):
    write_json(tmp_path / "report.json", summary, None)
    (tmp_path / "other.json").write_text('{"traceEvents": [], "schema": "tracelens.report/1"}')
    assert is_report(tmp_path / "report.json")
    assert not is_report(tmp_path / "other.json")
    assert not is_report(tmp_path / "absent.json")
