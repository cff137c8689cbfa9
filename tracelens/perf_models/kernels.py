"""What a device kernel's name alone says about it: its family, and whether it communicates or copies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from tracelens.errors import UsageError
from tracelens.registry import Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPattern:
    """Kernels whose name contains ``regex`` (Python syntax, case matters). A module-level constant is an addition.

    ``communication`` kernels are the timeline's communication, with or without an op above them; ``collective`` ones
    belong to recorded collectives, which have their own sheets; ``memcpy`` ones are copies launched as kernels.
    """

    name: str
    regex: str
    category: str
    communication: bool = False
    collective: bool = False
    memcpy: bool = False

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return (Mark(kind="kernel_pattern", keys=(self.name,)),)

    def matches(self, kernel: str) -> bool:
        """Whether the pattern is found in a kernel's name. UsageError when it is no regular expression."""
        return _compiled(self.regex).search(kernel) is not None


def classify(names: Sequence[str], patterns: Iterable[KernelPattern]) -> list[KernelPattern | None]:
    """The first pattern that each kernel name contains, or None; so an extension's patterns go first."""
    ordered = tuple(patterns)
    return [next((p for p in ordered if p.matches(name)), None) for name in names]


@cache
def kernel_patterns() -> tuple[KernelPattern, ...]:
    """The built-in patterns of ``kernels.toml``, in the order in which they are tried."""
    text = files(__package__).joinpath("kernels.toml").read_text(encoding="utf-8")
    known = {f.name for f in fields(KernelPattern)}
    found: list[KernelPattern] = []
    for entry in tomllib.loads(text)["pattern"]:
        if unknown := set(entry) - known:
            raise UsageError(f"kernels.toml: pattern {entry.get('name')!r} has unknown keys {sorted(unknown)}")
        found.append(KernelPattern(**entry))
    return tuple(found)


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        raise UsageError(f"kernel pattern {regex!r} is no regular expression: {error}") from error
