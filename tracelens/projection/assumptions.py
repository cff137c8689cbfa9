"""What a projection takes for granted instead of deriving it."""

from __future__ import annotations

import re

from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Shares of FSDP's transfers that cost nothing, whatever runs beside them: published constants of some stack."""

    forward_gather: float
    backward_gather: float
    scatter: float

    def __post_init__(self) -> None:
        for share in (self.forward_gather, self.backward_gather, self.scatter):
            if not 0 <= share <= 1:
                raise UsageError(f"a hidden share must be from 0 to 1 (or 0 to 100 %), not {share}")

    @classmethod
    def parse(cls, text: str) -> Hidden:
        """``"0.93"`` for all three, or ``"90,24,34"``: forward gather, backward gather, scatter; above 1 in percent."""
        try:
            shares = [float(part) for part in text.split(",")]
        except ValueError:
            shares = []
        if len(shares) not in (1, 3):
            raise UsageError(f"--fsdp-overlap takes one share or three, e.g. 0.93 or 90,24,34; got {text!r}")
        if max(shares) > 1:
            shares = [share / 100 for share in shares]
        forward, backward, scatter = shares * 3 if len(shares) == 1 else shares
        return cls(forward_gather=forward, backward_gather=backward, scatter=scatter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A device of pipeline rank ``stage`` that computes ``factor`` times as long; everyone waits for its gradients."""

    factor: float
    stage: int = 0

    def __post_init__(self) -> None:
        if not self.factor >= 1 or self.stage < 0:
            raise UsageError(f"straggler factor must be >= 1 and stage >= 0; got {self.stage}:{self.factor}")

    @classmethod
    def parse(cls, text: str) -> Straggler:
        """``"1.15"``, in the first stage, or ``"3:1.15"``."""
        found = re.fullmatch(r"(?:(\d+):)?(\d+(?:\.\d+)?)", text)
        if found is None:
            raise UsageError(f"--straggler takes a factor, or a stage and a factor, e.g. 1.15 or 3:1.15; got {text!r}")
        return cls(stage=int(found[1] or 0), factor=float(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``fsdp_hidden`` None: what FSDP's transfers cost beside computing follows from the timeline."""

    fsdp_hidden: Hidden | None = None
    straggler: Straggler | None = None


NO_OPTIONS = Options()
