"""One type of precisions: what options, device files and tables call them."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from tracelens.errors import UsageError
from tracelens.predict.workload.parallel_config import PrecisionName
from tracelens.types.dtypes import CALIBRATED, TRAINED, DType, Precision


def test_a_precision_is_its_name():
    assert [json.loads(json.dumps(each)) for each in Precision] == list(Precision)
    assert f"{Precision.FP8}" == "fp8" == Precision.FP8
    assert repr(Precision.FP8) == repr("fp8")


@pytest.mark.parametrize(
    ("text", "meant"),
    [("bf16", Precision.BF16), ("BFloat16", Precision.BF16), ("float16", Precision.FP16), ("fp8-mx", Precision.MXFP8)],
)
def test_other_spellings_mean_the_same(text, meant):
    assert Precision.parse(text) is Precision.of(text) is meant


def test_an_unknown_precision_is_none_or_an_error():
    assert Precision.parse("int4") is None
    with pytest.raises(UsageError, match="no precision named 'fp9'"):
        Precision.of("fp9")


def test_no_spelling_means_two_precisions():
    spellings = [text for each in Precision for text in each.spellings]
    assert len(spellings) == len(set(spellings))


def test_scales_count_among_an_operands_bytes():
    assert Precision.MXFP8.width_bytes == 1 + 1 / 32
    assert Precision.NVFP4.width_bytes == DType.FP4_E2M1.width_bytes + 1 / 16
    assert all(each.width_bytes >= each.dtype.width_bytes for each in Precision)


def test_fp16_has_the_constants_of_bf16():
    assert Precision.FP16.calibrated is Precision.BF16
    assert set(CALIBRATED) == set(Precision) - {Precision.FP16}


def test_the_names_of_the_option_are_those_of_the_type():
    assert get_args(PrecisionName) == TRAINED
