"""Calls that only their place pairs became one another only where their times allow it; two programs are said to be two."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from tests.comparison.test_compare_real import PAIRS
from tests.comparison.test_sentences import op, side
from tests.conftest import part
from tracelens.comparison.call_matching import MOST_TIMES
from tracelens.comparison.compare import compare, compare_sides
from tracelens.comparison.compared import FUSED, SPLIT, Comparison
from tracelens.comparison.places import SAME_PLACE
from tracelens.comparison.sides import role

MODELS = {
    "Qwen": "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "ResNet": "mi300/resnet_act_checkpoint.json.gz",
    "BERT": "mi300/gaunernst_bert-small-uncased__1016001.json.gz",
    "TimeSformer": "mi300/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "ViT": "mi300/Falconsai_nsfw_image_detection__1016002.json.gz",
}
#: Both are stacks of transformer blocks of the same ops, of other sizes: from outside that is one program.
ALIKE = {("BERT", "ViT")}


def said(found: Comparison) -> list[str]:
    return [note for note in found.notes if "look like different programs" in note]


@pytest.mark.shared
@pytest.mark.parametrize("pair", part([(pair,) for pair in combinations(MODELS, 2) if pair not in ALIKE], 4))
def test_two_models_are_said_to_be_different_programs_first_and_nothing_of_them_splits(
    shared_traces: Path, pair: tuple[str, str]
):
    found = compare(*(shared_traces / MODELS[name] for name in pair))
    assert found.notes[0].startswith("A and B look like different programs: ")
    rows = (*found.rows, *found.unchanged)
    assert {row.cause for row in rows}.isdisjoint({SPLIT, FUSED})
    for which, share in zip("ab", found.matched_share, strict=True):
        sides = [(row, one) for row in rows if (one := getattr(row, which)) is not None]
        both = sum(one.kernel_ms for row, one in sides if row.a and row.b)
        assert share == pytest.approx(both / sum(one.kernel_ms for _, one in sides))


@pytest.mark.shared
@pytest.mark.parametrize("pair", part(list(PAIRS), 5))
def test_one_program_before_and_after_a_change_is_never_said_to_be_two(shared_traces: Path, pair: str):
    """Quantized, compiled anew, fused by hand, on another vendor's device: 15 real pairs."""
    assert said(compare(*(shared_traces / each for each in PAIRS[pair]))) == []


@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize("pair", part([(("BERT", "ViT"),), *PAIRS], 5))
def test_nothing_becomes_what_takes_many_times_as_long(shared_traces: Path, pair: str | tuple[str, str]):
    paths = [MODELS[name] for name in pair] if isinstance(pair, tuple) else PAIRS[pair]
    found = compare(*(shared_traces / each for each in paths))
    for row in (*found.rows, *found.unchanged):
        if row.match != SAME_PLACE or row.a is None or row.b is None:
            continue
        if len(row.a.ops) == len(row.b.ops) == 1 and role(row.category, row.a.ops[0]) == role(
            row.category, row.b.ops[0]
        ):
            continue
        # A microsecond is the shortest time that says anything
        short, long = sorted((row.a.kernel_ms, row.b.kernel_ms))
        assert long <= MOST_TIMES * max(short, 1e-3) * (1 + 1e-9), row.why


def test_a_short_op_does_not_split_into_seven_hundred_times_its_time():
    """0.04 ms of one op, in whose place 28 ms of 494 other kernels stand: these are new."""
    around = op("mm", ("gemm", 9_000_000))
    before = side(*[around + op("ge", ("compare", 40_000)) + around] * 3)
    grown = [part for _ in range(247) for part in op("add", ("add", 57_000)) + op("mul", ("mul", 57_000))]
    after = side(*[around + grown + around] * 3)
    found = compare_sides(before, after)
    texts = [change.text for change in found.changes]
    assert not [text for text in texts if "split into" in text]
    assert any("new, 494 calls" in text for text in texts), texts
    assert any("aten::ge is gone, 1 call" in text for text in texts)


def test_an_op_that_splits_into_a_few_times_its_time_does():
    around = op("mm", ("gemm", 9_000_000))
    parts = op("add", ("add", 57_000)) + op("mul", ("mul", 57_000))
    found = compare_sides(
        side(*[around + op("gelu", ("gelu", 40_000)) + around] * 3), side(*[around + parts + around] * 3)
    )
    assert any("0.04 ms of aten::gelu (1 call) split into 0.114 ms" in change.text for change in found.changes)
