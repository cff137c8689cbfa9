"""Write the reports of the example traces that tests compare with: ``python -m reference_reports.regenerate``.

Only tables and ``report.json`` are kept: text, so a change shows in a diff. The workbook holds the same sheets.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import tracelens

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "example_traces"
#: Report name -> (trace, options of ``tracelens.report``).
REPORTS: dict[str, tuple[str, dict[str, object]]] = {
    "moe_ep8_rank0": ("moe_ep8/rank0.json.gz", {}),
    "moe_ep8_rank5_steady": ("moe_ep8/rank5.json.gz", {"steps": "steady"}),
    "transformer_step_cpu": ("transformer_step_cpu.json.gz", {"cpu": True}),
}


def write_reports(folder: Path) -> None:
    """One folder per report: report.json and csv/."""
    for name, (trace, options) in REPORTS.items():
        report = tracelens.report(EXAMPLES / trace, **options)  # type: ignore[operator]
        target = folder / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        report.to_csv(target / "csv")
        (target / "report.json").write_text(report.to_json(), encoding="utf-8")


if __name__ == "__main__":
    write_reports(HERE)
