"""What the caller of a comparison chose."""

from __future__ import annotations

from pathlib import Path

from tracelens.comparison.gates import Gate
from tracelens.lazy.records import dataclass
from tracelens.option_fields import option


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """What ``tl.compare`` and ``tracelens compare`` take beside the two sides."""

    gate: tuple[str, ...] = option(
        "fail (exit code 4) on such a change: 'step<+3%%', 'GEMM.percent_of_roofline>-2'; repeatable", (),
        repeat=True, metavar="EXPRESSION",
        note="fails, with exit code 4, where the change is beyond the limit and more than chance explains; repeatable. "
        "`step<+3%`, `idle<+0.5ms`, `comm<+5%`, `GEMM<+3%`, `aten::mm<+2%`, `GEMM.percent_of_roofline>-2`, "
        "`coverage>-1` ([compare.md](compare.md))",
    )  # fmt: skip
    steps: str | None = option(
        "only these steps of both sides: 3, 3-5 or steady; default: all complete ones", metavar="N|N-M|steady",
        note="only these steps of both sides: `3`, `3-5`, or `steady` (without the first); default: all complete ones",
    )  # fmt: skip
    device: str | None = option("device of both sides; default: recognized from each trace", metavar="NAME|spec.toml")
    extension: tuple[str, ...] = option(
        "extension to use beside the bundled ones; repeatable", (), repeat=True, metavar="FILE|MODULE"
    )
    baselines: Path = option(
        "folder of named baselines", Path(".tracelens/baselines"), kind=Path, metavar="FOLDER",
        note="folder in which `baseline:NAME` is looked for",
    )  # fmt: skip

    @property
    def gates(self) -> tuple[Gate, ...]:
        return tuple(Gate.parse(text) for text in self.gate)
