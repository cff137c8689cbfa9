"""Words without which a pattern finds nothing: they rule names out, and never one that the pattern finds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.perf_models import KernelPattern, classify, kernel_patterns
from tracelens.perf_models.kernels import required_words


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("nccl|(?i:RCCL)", ("nccl", "rccl")),
        ("_?gemm\\d*_x?", ("gemm",)),  # what may be missing says nothing
        ("(?:fwd|backward)+_norm", ("_norm",)),  # one word of several letters rules out more than two
        ("conv(?!_bias)|pool", ("conv", "pool")),
        ("conv|[a-z]+", ()),  # the second may be anything
        ("chunk_bwd_(?:kernel|x)", ("chunk_bwd_",)),
        ("(?<=a)b*", ()),
    ],
)
def test_words(regex: str, words: tuple[str, ...]) -> None:
    assert required_words(regex) == words


@settings(max_examples=examples(40))
@given(st.data())
def test_what_a_pattern_finds_holds_one_of_its_words(data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from([p for p in kernel_patterns() if "(?>" not in p.regex and "*+" not in p.regex]))
    found = data.draw(st.from_regex(re.compile(pattern.regex, re.ASCII), fullmatch=False))
    if found.isascii():
        words = required_words(pattern.regex)
        assert words
        assert any(word in found.lower() for word in words)


def test_many_names_are_classified_as_each_alone() -> None:
    ends = ("", "_bwd", "_fwd_kernel<float>", "(nccl)", " gemm", "ſK", "\n")
    words = dict.fromkeys(word for p in kernel_patterns() for word in required_words(p.regex))
    names = [f"{start}{word}{end}" for word in words for start in ("", "void ", "MoE_") for end in ends]
    own = (KernelPattern(name="own", regex=r"bwd$|^\w+\d", category="own"), *kernel_patterns())
    assert len(names) > 1000
    assert classify(names, own) == [next((p for p in own if p.matches(name)), None) for name in names]


def test_a_broken_pattern_is_the_same_error_for_many_names() -> None:
    with pytest.raises(UsageError, match="kernel pattern '\\(' is not a regular expression"):
        classify([f"op{i}" for i in range(1000)], [KernelPattern(name="own", regex="(", category="own")])
