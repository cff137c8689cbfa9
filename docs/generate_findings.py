"""Writes docs/findings.md from what the rules of findings declare: ``python -m docs.generate_findings``."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.findings.twins import TWINS, Change, Twin
from tracelens.analysis.findings import built_in_rules
from tracelens.analysis.findings.rule import Rule

PAGE = Path(__file__).resolve().parent / "findings.md"
_INTRODUCTION = """# Findings

What a report says under "look here first", rule by rule: what it sees, why that costs time, what to do, and when that
brings nothing. `report.json` has them under `findings`: each with its `gain_us` per step (or in the window), from
`gain_low_us` to `gain_high_us`, how it was `computed`, `where` it is, the sheet rows that prove it (`evidence`), the
`remedy`, and the `command` to go on with.

A gain is how much shorter the step gets, at most, when what the finding speaks of goes and the step is done again and
again: the dependencies of host and device are replayed (see [whatif.md](whatif.md)), and the next step begins when
the host can begin it. So the head start that the host had in the recording gains nothing, and kernels that become
shorter than the host's own time gain nothing more; `limited_by` says so with the figures. `tracelens whatif --apply
KEY` gives the same gain. The lower end of the range is what goes for sure, the upper end what comes out when all that
the finding speaks of goes, or an op reaches its roofline. `together` has the first three findings one on top of the
other: the step now, after the first, after the first two, after all three.

No moment of a step is in two findings: they stand in the order of the middle of what is sure and the gain, each keeps
the time that those above it leave, and together they gain at most the step. A finding gains at most the time that it
speaks of, also where the launches that go with it would spare more. What gains less than 0.5 % of the step is left
out; idle time and exposed communication of more than 15 % of the step are then said in a note. Idle time of an
unknown cause has no gain: nothing says what would spare it. An extension adds a rule with `@finding`: see
[extensions.md](extensions.md).

This page is generated: `python -m docs.generate_findings` writes it anew, and a test compares.
"""


_TWINS = """## When a rule stays silent

Each rule, and each cause of idle time, is tested on a recording on which it speaks and on one that looks alike and on
which it must stay silent. An edit changes one thing in a recording: the one that makes the sentence true or false.

| rule | speaks on | silent on | because there |
|---|---|---|---|
"""


def page() -> str:
    """The text of docs/findings.md."""
    sections = map(_section, sorted(map(Rule.of, built_in_rules().values()), key=_kind))
    return "\n".join(
        [_INTRODUCTION, *sections, _TWINS + "".join(map(_twin, sorted(TWINS, key=lambda twin: twin.kind)))]
    )


def _twin(twin: Twin) -> str:
    return f"| `{twin.kind}` | {_recording(*twin.speaks)} | {_recording(*twin.silent)} | {twin.why} |\n"


def _recording(name: str, changes: tuple[Change, ...]) -> str:
    return f"an edit of `{name}`" if changes else f"`{name}`"


def _kind(rule: Rule) -> str:
    return rule.kind


def _section(rule: Rule) -> str:
    says = rule.advice
    lines = [
        f"**Sees:** {says.sees}",
        f"**Costs:** {says.costs}",
        f"**Try:** {says.remedy}." + (f" In XLA: {says.in_xla}." if says.in_xla else ""),
        f"**No use when:** {says.wrong_when}",
        *([f"**Go on:** `{says.command}`"] if says.command else []),
        *([f"**References:** {'; '.join(says.references)}"] if says.references else []),
    ]
    return f"## `{rule.kind}`\n\n" + "".join(f"- {line}\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
