"""Counts, sizes and durations as people type them."""

from __future__ import annotations

import argparse
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.files.option_fields import byte_count, duration_in, whole
from tracelens.types.units import BYTES, COUNTS, SECONDS, count, duration_s, size_bytes


@given(st.integers(0, 10**9), st.sampled_from(sorted(COUNTS)), st.booleans())
def test_a_count_is_its_number_times_its_unit(n, unit, lower):
    assert count(f"{n}{unit.lower() if lower else unit}") == n * COUNTS[unit]


@given(st.integers(0, 10**6), st.sampled_from(sorted(BYTES)), st.sampled_from(["", " "]))
def test_a_size_is_its_number_times_its_unit(n, unit, space):
    assert size_bytes(f"{n}{space}{unit}") == n * BYTES[unit]


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(sorted(SECONDS)))
def test_a_duration_is_its_number_times_its_unit(n, thousandths, unit):
    value = Fraction(n) + Fraction(thousandths, 1000)
    assert duration_s(f"{n}.{thousandths:03}{unit}") == float(value * SECONDS[unit])


@given(st.integers(0, 10**12))
def test_digits_mean_themselves_however_they_are_grouped(n):
    assert count(str(n)) == count(f"{n:_}") == n
    assert count(f"{n}e0") == n


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_in_a_sentence(text):
    for read in (count, size_bytes, duration_s):
        try:
            assert read(text) == read(text.strip())
        except UsageError:
            continue


@pytest.mark.parametrize(
    "text", ["", "k", "--1", "1.5", "0x10", "1e-1", "nan", "inf", "8kk", "8 k k", "1,5", "8Z", "٣"]
)
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(UsageError, match="whole number"):
        count(text)


def test_a_duration_needs_its_unit_where_nothing_says_it():
    with pytest.raises(UsageError, match="needs its unit: write 500ms or 500s, not 500"):
        duration_s("500")
    with pytest.raises(UsageError, match="needs its unit: write 500ms"):
        tracelens.serve("llama3-8b", "h100", rate=1, requests=2, slo="ttft=500")
    assert duration_in("us")("1.5ms") == pytest.approx(1500)
    assert duration_in("us")("3") == pytest.approx(3)


def test_a_refusal_of_the_command_line_is_argparse_s():
    for read in (whole, byte_count, duration_in("ms")):
        with pytest.raises(argparse.ArgumentTypeError):
            read("many")


def test_the_command_takes_them(capsys):
    sizes = ["--n", "8192", "--k", "8Ki", "--device", "h100"]
    assert main(["estimate", "gemm", "--m", "8Ki", *sizes]) == main(["estimate", "gemm", "--m", "8192", *sizes]) == 0
    first, second = capsys.readouterr().out.split("device")[1:]
    assert first == second
    message = ["estimate", "collective", "--op", "all_reduce", "--ranks", "8", "--cluster", "dgx-h100", "--bytes"]
    assert main([*message, "1GB"]) == main([*message, "1e9"]) == 0
    first, second = capsys.readouterr().out.split("system")[1:]
    assert first == second
