"""CSV: all digits, headers of the workbook, and nothing that a spreadsheet would evaluate."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.sheets.perf_summary import UNIFIED_PERF_SUMMARY_COLUMNS as UNIFIED
from tracelens.files.cells import frame_csv
from tracelens.report.assembly import NamedSheets, assemble, make_sheet


def test_a_whole_table():
    frame = pd.DataFrame(
        {"name": ["=1", "-x", "+y", "@z", "\t=1", 'a,"b"'], "gflops": [0.1 + 0.2, -1.0, float("nan"), 2.0, 3.0, 4.0]}
    )
    assert frame_csv(make_sheet("t", frame, UNIFIED).frame).decode() == (
        "name,gflops\n'=1,0.30000000000000004\n'-x,-1.0\n'+y,\n'@z,2.0\n'\t'=1,3.0\n\"a,\"\"b\"\"\",4.0\n"
    )


def test_one_file_per_sheet_in_utf8(analysis, tmp_path):
    NamedSheets(assemble(analysis).sheets).to_csv(tmp_path / "csv")
    names = sorted(path.name for path in (tmp_path / "csv").iterdir())
    assert names == [
        "EP_Communication.csv",
        "GEMM.csv",
        "gpu_timeline.csv",
        "kernel_summary.csv",
        "unified_perf_summary.csv",
    ]
    header = (tmp_path / "csv" / "GEMM.csv").read_text(encoding="utf-8").splitlines()[0]
    assert "kernel_us_sum" in header
    assert header.startswith("name,param_M,")
