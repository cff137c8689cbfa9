"""What a device kernel's name alone says about it: its family, and whether it communicates or copies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from importlib.resources import files

from tracelens.errors import UsageError
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.perf_models.required_words import Words, required_words
from tracelens.registry import Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPattern:
    """Kernels whose name contains ``regex`` (Python syntax, case matters). A module-level constant is an addition.

    ``communication`` kernels are the timeline's communication, with or without an op above them; ``collective`` ones
    belong to recorded collectives, which have their own sheets; ``memcpy`` ones are copies launched as kernels;
    ``rearranges`` ones only lay out the operands of others, so no matrix product's model speaks of them.
    """

    name: str
    regex: str
    category: str
    communication: bool = False
    collective: bool = False
    memcpy: bool = False
    rearranges: bool = False

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return (Mark(kind="kernel_pattern", keys=(self.name,)),)

    def matches(self, kernel: str) -> bool:
        """Whether the pattern is found in a kernel's name. UsageError when it is no regular expression."""
        expression, in_lower_case = _compiled(self.regex)
        return expression.search(kernel.lower() if in_lower_case else kernel) is not None


def classify(names: Sequence[str], patterns: Iterable[KernelPattern]) -> list[KernelPattern | None]:
    """The first pattern that each kernel name contains, or None; so an extension's patterns go first."""
    ordered = tuple(patterns)
    known = _classified(ordered)
    words = [_words(p.regex) if len(names) >= _MANY else () for p in ordered]
    found = []
    for name in names:
        if name not in known:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[name] = _first(name, zip(ordered, words, strict=True))
        found.append(known[name])
    return found


#: Kernel names whose pattern is remembered: ranks, and both sides of a comparison, run the same kernels.
_MOST_KNOWN = 1 << 16
#: Names from which it pays to know which words a pattern needs: a quarter of the time, for that of compiling it again.
_MANY = 500


def _first(name: str, patterns: Iterable[tuple[KernelPattern, Words]]) -> KernelPattern | None:
    if not name.isascii():  # letters beyond may match others without being their lower case
        return next((pattern for pattern, _ in patterns if pattern.matches(name)), None)
    holds = name.lower().__contains__
    possible = (pattern for pattern, words in patterns if not words or any(map(holds, words)))
    return next((pattern for pattern in possible if pattern.matches(name)), None)


@lru_cache(maxsize=4)
def _classified(_: tuple[KernelPattern, ...]) -> dict[str, KernelPattern | None]:
    """What is remembered of some patterns."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPath:
    """Between which memories a copy went: ``direction`` is HtoD, DtoH or PtoP; ``host_memory`` is pinned, pageable or
    unknown, and None between devices."""

    direction: str
    host_memory: str | None = None


def copy_path(name: str) -> CopyPath | None:
    """The path of a recorded copy, by its name; None for one within a memory, or when the name does not say.

    >>> copy_path("Memcpy HtoD (Pinned -> Device)")
    CopyPath(direction='HtoD', host_memory='pinned')
    """
    found = _ENDS.search(name)
    ends = tuple(_MEMORY[word[0].upper()] for word in found.groups()) if found else ()
    if ends == ("P", "P"):
        return CopyPath(direction="PtoP")
    if "H" not in ends or ends == ("H", "H"):
        return None
    memory = next((word for word in ("pinned", "pageable") if word in name.lower()), "unknown")
    return CopyPath(direction="to".join(ends), host_memory=memory)


# Kineto ("Memcpy HtoD (Pinned -> Device)"), oneAPI ("Memcpy M2D"), ROCm ("CopyHostToDevice",
# MEMORY_COPY_HOST_TO_DEVICE) and Nsight Systems ("[CUDA memcpy Host-to-Device]").
_END = "(host|device|peer|[HDPMA])"
_ENDS = lazy_pattern(rf"(?i)(?:memcpy|copy)[ _]*{_END}[ _-]*(?:to|2)[ _-]*{_END}(?![a-z])")
# M is oneAPI's name for host memory, A an array of the device.
_MEMORY = {"H": "H", "M": "H", "D": "D", "A": "D", "P": "P"}


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
def _words(regex: str) -> Words:
    _compiled(regex)  # whose error says which pattern is no regular expression
    return required_words(regex)


@cache
def _compiled(regex: str) -> tuple[re.Pattern[str], bool]:
    """The expression, and whether it is to be searched in lower case: as ``(?i)`` without capitals, in a third of the
    time."""
    pattern = regex.removeprefix("(?i)")
    in_lower_case = pattern != regex and pattern == pattern.lower()
    try:
        return re.compile(pattern if in_lower_case else regex), in_lower_case
    except re.error as error:
        raise UsageError(f"kernel pattern {regex!r} is not a regular expression: {error}") from error
