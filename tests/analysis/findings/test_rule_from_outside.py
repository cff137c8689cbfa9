"""A rule is one file: what it declares and what it sees, in tracelens or outside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracelens
from tests.analysis.conftest import Builder
from tracelens.analysis.findings import built_in_rules
from tracelens.extensions import load_extension


@pytest.fixture
def example(repository: Path, tmp_path: Path) -> Path:
    """The rule of docs/extensions.md."""
    page = (repository / "docs" / "extensions.md").read_text(encoding="utf-8")
    (code,) = [
        code for code in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if "@finding" in code
    ]
    path = tmp_path / "my_rules.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_an_extension_adds_a_rule(example: Path, build: type[Builder]) -> None:
    """A sort of 200 and one of 100 µs, of which nine tenths can go; the GEMM between them has its own finding."""
    b = build()
    for at, start, duration in ((0, 10, 200), (60, 1_000, 100)):
        b.op("aten::sort", at, 5, **{"Input Dims": [[4096]], "Input type": ["long int"]})
        b.launch(at + 1, "radixSortKVInPlace", start, duration)
    b.mm(4096, 4096, 4096, at=6, start=210, duration=790)
    report = tracelens.report(b.trace(), extensions=[example])
    (finding,) = [f for f in report.summary.findings if f.id == "slow_sort"]
    assert finding.gain_us == pytest.approx(270)
    assert finding.time_us == pytest.approx(300)
    assert finding.why == "tokens are sorted 2 times"
    assert finding.remedy == "count the tokens of each expert and add up (my_lib.fast_sort)"
    assert finding.evidence[0].row["name"] == "aten::sort"
    assert "slow_sort" not in built_in_rules()
    assert [addition[:2] for addition in load_extension(example).additions()] == [("finding", "slow_sort")]


def test_a_rule_of_an_extension_replaces_a_built_in_one(build: type[Builder]) -> None:
    b = build().mm(4096, 4096, 4096, at=0, start=10, duration=4000)

    @tracelens.finding(
        "op_below_roofline: compute", tracelens.Advice(sees="S.", costs="C.", remedy="r", wrong_when="W.")
    )
    def nothing(seen: object) -> list[tracelens.Candidate]:
        return []

    assert "op_below_roofline" in {f.id for f in tracelens.report(b.trace()).summary.findings}
    assert "op_below_roofline" not in {f.id for f in tracelens.report(b.trace(), extensions=[nothing]).summary.findings}
