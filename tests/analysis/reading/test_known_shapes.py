"""``--shapes``: a recording without shapes and one with them, of the same program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace.formats.rewritten import EXAMPLE, rocprofv3
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.verdict.verdict import input_notices
from tracelens.cli import main


def test_kernels_of_another_profiler_get_the_ops_and_shapes_of_the_same_run(tmp_path: Path) -> None:
    there = load(EXAMPLE)
    with_shapes = analyze(there, AnalysisOptions())
    alone = analyze(load(rocprofv3(tmp_path / "12_results.json")), AnalysisOptions())
    joined = analyze(load(tmp_path / "12_results.json"), AnalysisOptions(shapes=there))
    known = joined.known_shapes
    assert known is not None
    assert known.joined > 0.8 * known.kernels > 100
    assert "known_shapes" in {notice.id for notice in input_notices(joined)}

    def flops(analysis: Analysis) -> float:
        sheet = analysis.frames["unified_perf_summary"]
        return float(sheet["gflops"].fillna(0).mul(sheet["operation_count"]).sum())

    assert alone.trace.table.has_shapes is False
    assert flops(joined) > 0.9 * flops(with_shapes) > 0
    assert flops(joined) <= flops(with_shapes) * (1 + 1e-9)
    kernels = joined.frames["kernel_summary"]["duration_us_sum"].sum()
    assert round(kernels, 3) == round(alone.frames["kernel_summary"]["duration_us_sum"].sum(), 3), (
        "no device time is made or lost"
    )


@pytest.mark.sweep
def test_the_command_takes_the_file(tmp_path: Path) -> None:
    path = rocprofv3(tmp_path / "12_results.json")
    assert main(["report", str(path), "--shapes", str(EXAMPLE), "-o", str(tmp_path / "r.json")]) == 0
    assert "rank0.json.gz gives ops and shapes of" in (tmp_path / "r.json").read_text()
