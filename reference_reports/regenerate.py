"""Write the reports of the example traces that tests compare with: ``python -m reference_reports.regenerate``.

Only tables and ``report.json`` are kept: text, so a change shows in a diff. The workbook holds the same sheets.
The last digits of a sum depend on the processor: a line stays where nothing else of it differs.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from pathlib import Path

import tracelens

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "example_traces"
#: Report name -> (trace, options of ``tracelens.report``).
REPORTS: dict[str, tuple[str, dict[str, object]]] = {
    "moe_ep8_rank0": ("moe_ep8/rank0.json.gz", {}),
    "moe_ep8_rank0_tracelens": ("moe_ep8/rank0.json.gz", {"column_names": "tracelens", "steps": "file"}),
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


_NUMBER = re.compile(r"(-?\d+\.\d+(?:e[-+]?\d+)?)")


def is_same(line: str, other: str) -> bool:
    """Whether two lines differ in the last digits of numbers at most."""
    mine, theirs = _NUMBER.split(line), _NUMBER.split(other)
    return mine[::2] == theirs[::2] and all(
        math.isclose(float(a), float(b), rel_tol=1e-12) for a, b in zip(mine[1::2], theirs[1::2], strict=True)
    )


def renew(folder: Path, fresh: Path) -> None:
    """Makes the files of ``folder`` those of ``fresh``; lines that are the same stay as they are."""
    for old in [
        path for path in folder.rglob("*") if path.is_file() and not (fresh / path.relative_to(folder)).exists()
    ]:
        old.unlink()
    for made in [path for path in fresh.rglob("*") if path.is_file()]:
        kept, text = folder / made.relative_to(fresh), made.read_text(encoding="utf-8")
        if kept.exists():
            lines, before = text.splitlines(keepends=True), kept.read_text(encoding="utf-8").splitlines(keepends=True)
            if len(lines) == len(before):
                pairs = zip(lines, before, strict=True)
                text = "".join(theirs if is_same(mine, theirs) else mine for mine, theirs in pairs)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_reports(Path(folder))
        for name in REPORTS:
            renew(HERE / name, Path(folder) / name)
