"""What every rule declares, and docs/findings.md, which is made of it."""

from __future__ import annotations

from docs.generate_findings import PAGE, page
from tests.conftest import row_by_row
from tracelens.analysis.findings import built_in_rules
from tracelens.analysis.findings.rule import Rule
from tracelens.analysis.idle.idle_time import BEFORE_RECORDING, CAUSES

RULES = {claim.key: Rule.of(claim) for claim in built_in_rules().values()}


def test_the_page_is_that_of_the_rules() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


@row_by_row("cause", CAUSES)
def test_every_cause_of_idle_time_has_a_rule(cause: str) -> None:
    """But for one: who waits for work that was not recorded is not idle, and there is nothing to gain."""
    assert (f"idle: {cause}" in RULES) == (cause != BEFORE_RECORDING)


@row_by_row("kind", RULES)
def test_a_rule_says_all_that_its_section_needs(kind: str) -> None:
    advice = RULES[kind].advice
    assert RULES[kind].id.isidentifier()
    for sentence in (advice.sees, advice.costs, advice.wrong_when):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
    assert not advice.remedy.endswith(".")
    # What XLA compiled knows no torch.compile; of idle time in launches a function says so itself
    assert (
        ("torch" not in advice.remedy and "max-autotune" not in advice.remedy)
        or advice.in_xla
        or (kind == "idle: launch-bound")
    )
    assert len(f"try: {advice.in_xla}") <= 2 * 74
    assert "torch" not in advice.in_xla
    # two lines of the terminal
    assert len(f"try: {advice.remedy}") <= 2 * 74
