"""Laws of comparisons, on real traces."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from tests.conftest import TRACES, device_traces
from tracelens.analysis.options import Options
from tracelens.comparison.compare import compare_sides
from tracelens.comparison.compared import Comparison
from tracelens.comparison.sides import Side
from tracelens.comparison.sources.inputs import side_of

#: Real recordings of one thing before and after a change, or on two devices.
PAIRS = {
    "bert on MI300X and H100": (
        "mi300/gaunernst_bert-small-uncased__1016001.json.gz",
        "h100/gaunernst_bert-small-uncased__1016001.json.gz",
    ),
    "torchrec, quantized communication": (
        "more/torchrec_pr1460/sst_long_a2a_optimizer_5",
        "more/torchrec_pr1460/sst_long_a2a_optimizer_5_qcomm_runA",
    ),
    "ViT, two recordings": (
        "more/ao/quantize_vit/2025-01-10_5024ea90_aef3ea/bfloat16.json.gz",
        "more/ao/quantize_vit/2025-01-10_eb21c325_4b77a6/bfloat16.json.gz",
    ),
    "ViT, int8": (
        "more/ao/quantize_vit/2025-01-10_5024ea90_aef3ea/bfloat16.json.gz",
        "more/ao/quantize_vit/2025-01-10_5024ea90_8ea658/quant.json.gz",
    ),
    "mixture of experts, fused": (
        "more/tracelens_handmade_pairs/test01_moe_fused_vs_unfused/trace1.json.gz",
        "more/tracelens_handmade_pairs/test01_moe_fused_vs_unfused/trace2.json.gz",
    ),
    "attention, fused": (
        "more/tracelens_handmade_pairs/test03_attention_fused_vs_unfused/trace1.json.gz",
        "more/tracelens_handmade_pairs/test03_attention_fused_vs_unfused/trace2.json.gz",
    ),
}


@lru_cache(maxsize=4)
def side(path: str) -> Side:
    return side_of(TRACES / path, Options())


def compared(names: tuple[str, str]) -> Comparison:
    return compare_sides(side(names[0]), side(names[1]))


@pytest.mark.shared
@pytest.mark.parametrize("name", device_traces())
def test_a_trace_has_not_changed_against_itself(name: str, shared_traces: Path) -> None:
    found = compare_sides(side(name), side(name))
    assert found.change_ms == 0
    assert found.rows == ()
    assert found.changes == ()
    assert found.matched_share == (1.0, 1.0)


@pytest.mark.shared
@pytest.mark.parametrize("names", PAIRS.values(), ids=PAIRS)
def test_the_parts_add_up_to_the_change_exactly(names: tuple[str, str], shared_traces: Path) -> None:
    found = compared(names)
    assert sum(row.change_ms for row in found.rows) == found.change_ms
    assert sum(change.change_ms for change in found.changes) == found.change_ms
    assert sorted(at for change in found.changes for at in change.rows) == list(range(len(found.rows)))


@pytest.mark.shared
@pytest.mark.parametrize("names", PAIRS.values(), ids=PAIRS)
def test_the_other_way_round_is_the_mirror_image(names: tuple[str, str], shared_traces: Path) -> None:
    there, back = compared(names), compared(names[::-1])
    assert back.change_ms == -there.change_ms
    assert back.matched_share == there.matched_share[::-1]
    assert sorted(
        ((row.a and row.a.ops) or (), (row.b and row.b.ops) or (), row.change_ms) for row in there.rows
    ) == sorted(((row.b and row.b.ops) or (), (row.a and row.a.ops) or (), -row.change_ms) for row in back.rows)
