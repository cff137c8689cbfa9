"""Thousands of kernel names are classified as each of them alone."""

from __future__ import annotations

import re

import pytest

from tracelens.errors import UsageError
from tracelens.perf_models import KernelPattern, classify, kernel_patterns


def test_many_names_are_classified_as_each_alone() -> None:
    ends = ("", "_bwd", "_fwd_kernel<float>", "(nccl)", " gemm", "ſK", "\n")
    words = dict.fromkeys(word for p in kernel_patterns() for word in re.findall("[a-z]{3,}", p.regex.lower()))
    names = [f"{start}{word}{end}" for word in words for start in ("", "void ", "MoE_") for end in ends]
    own = (KernelPattern(name="own", regex=r"bwd$|^\w+\d", category="own"), *kernel_patterns())
    assert len(names) > 1000
    assert classify(names, own) == [next((p for p in own if p.matches(name)), None) for name in names]


def test_a_broken_pattern_is_the_same_error_for_many_names() -> None:
    with pytest.raises(UsageError, match="kernel pattern '\\(' is not a regular expression"):
        classify([f"op{i}" for i in range(1000)], [KernelPattern(name="own", regex="(", category="own")])
