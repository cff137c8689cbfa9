"""Laws of comparisons, on real traces; of each trace with itself in ``tests/test_every_trace.py``."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pytest

import tracelens as tl
from tests.conftest import TRACES, part
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.comparison.compare import compare_sides, told_apart
from tracelens.comparison.compared import NOISE, Comparison
from tracelens.comparison.inputs import side_of
from tracelens.comparison.sides import Side
from tracelens.report.comparison_report import comparison_text
from tracelens.types.units import signed_ms

#: Ops above calls that launch too, kernels without ops, replayed graphs, collectives.
REPORTED = (
    "more/kineto/samples/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",  # kernels of 0 us
    "b200/eager_trace.json.gz", "hta/trace_filter/sampled_rank-0.json.gz", "more/megatron_pr1316_tp2/rank0.pt.trace.json.gz",
    "more/ao/quantize_vit/2025-01-10_5024ea90_8ea658/quant.json.gz", "inference/vllm_decode_full/graph_execution.json.gz",
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace.json.gz",
)  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", part(REPORTED, 7))
def test_a_report_and_its_own_trace_are_equal(name: str, shared_traces: Path, tmp_path: Path) -> None:
    tl.report(shared_traces / name).write(tmp_path / "report")
    sides = [side_of(path, AnalysisOptions()) for path in (tmp_path / "report", shared_traces / name)]
    for found in (compare_sides(*sides), compare_sides(*sides[::-1])):
        assert re.search(r"\n nothing changed( by 0.01 % of the step)?$", comparison_text(found))
        assert found.matched_share == (pytest.approx(1), pytest.approx(1))


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
    "ViT, int8, second recording": (
        "more/ao/quantize_vit/2025-01-10_eb21c325_4b77a6/bfloat16.json.gz",
        "more/ao/quantize_vit/2025-01-10_eb21c325_ed7231/quant.json.gz",
    ),
    "ViT, int8 in 2024": (
        "more/ao/quantize_vit/2024-03-18_a71c10ac_0aa04e/bfloat16.json.gz",
        "more/ao/quantize_vit/2024-03-18_a71c10ac_66d49f/quant.json.gz",
    ),
    "ViT, quantized and pruned": (
        "more/ao/static_quantize_prune_vit/2024-06-06_7b258e93_124f1f/bfloat16.json.gz",
        "more/ao/static_quantize_prune_vit/2024-06-06_7b258e93_d7a5a8/quant.json.gz",
    ),
    "mixture of experts, fused": (
        "more/tracelens_handmade_pairs/test01_moe_fused_vs_unfused/trace1.json.gz",
        "more/tracelens_handmade_pairs/test01_moe_fused_vs_unfused/trace2.json.gz",
    ),
    "attention, fused": (
        "more/tracelens_handmade_pairs/test03_attention_fused_vs_unfused/trace1.json.gz",
        "more/tracelens_handmade_pairs/test03_attention_fused_vs_unfused/trace2.json.gz",
    ),
    "two GPUs": ("more/nsys-ai/mfu_2gpu_before.sqlite.gz", "more/nsys-ai/mfu_2gpu_after.sqlite.gz"),
    "LayerNorm, written by hand": (
        "more/flashinfer-bench_nsys/40_LayerNorm_reference.sqlite.gz",
        "more/flashinfer-bench_nsys/40_LayerNorm_custom.sqlite.gz",
    ),
    "product, written by hand": (
        "more/flashinfer-bench_nsys/1_Square_matrix_multiplication__reference.sqlite.gz",
        "more/flashinfer-bench_nsys/1_Square_matrix_multiplication__custom.sqlite.gz",
    ),
    "product, recorded twice": (
        "more/flashinfer-bench_nsys/1_Square_matrix_multiplication__reference.sqlite.gz",
        "more/flashinfer-bench_nsys/1_Square_matrix_multiplication__reference_manual.sqlite.gz",
    ),
    "ResNet, data loaders": (
        "more/kineto/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
        "more/kineto/samples/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
    ),
    "GEMM": (
        "more/tracelens_handmade_pairs/test05_gemm_identical_runtime_roofline/trace1.json.gz",
        "more/tracelens_handmade_pairs/test05_gemm_identical_runtime_roofline/trace2.json.gz",
    ),
}


@lru_cache(maxsize=4)
def side(path: str) -> Side:
    return side_of(TRACES / path, AnalysisOptions())


def compared(names: tuple[str, str]) -> Comparison:
    return compare_sides(side(names[0]), side(names[1]))


@pytest.mark.shared
@pytest.mark.parametrize("names", part([(pair,) for pair in PAIRS.values()], 3), ids=PAIRS)
def test_the_parts_add_up_to_the_change_exactly(names: tuple[str, str], shared_traces: Path) -> None:
    found = compared(names)
    assert sum(row.change_ms for row in found.rows) == found.change_ms
    assert sum(change.change_ms for change in found.changes) == found.change_ms
    assert sorted(at for change in found.changes for at in change.rows) == list(range(len(found.rows)))


@pytest.mark.shared
@pytest.mark.parametrize("names", part([(pair,) for pair in PAIRS.values()], 3), ids=PAIRS)
def test_the_other_way_round_is_the_mirror_image(names: tuple[str, str], shared_traces: Path) -> None:
    there, back = compared(names), compared(names[::-1])
    assert back.change_ms == -there.change_ms
    assert back.matched_share == there.matched_share[::-1]
    if there.low_ms is not None and there.high_ms is not None:
        assert (back.low_ms, back.high_ms) == (pytest.approx(-there.high_ms), pytest.approx(-there.low_ms))
    # How many sentences there are, which may differ, decides of a thousandth of the change whether it is chance
    small = 1e-3 * abs(there.change_ms)
    said = [sorted(sign * change.change_ms for change in found.changes if abs(change.change_ms) >= small)
            for sign, found in ((1, there), (-1, back))]  # fmt: skip
    assert said[0] == pytest.approx(said[1], abs=small)
    assert sorted(
        ((row.a and row.a.ops) or (), (row.b and row.b.ops) or (), row.change_ms) for row in there.rows
    ) == sorted(((row.b and row.b.ops) or (), (row.a and row.a.ops) or (), -row.change_ms) for row in back.rows)


@pytest.mark.shared
@pytest.mark.parametrize("name", part(list(PAIRS), 3))
def test_kernel_time_is_matched(name: str, shared_traces: Path) -> None:
    assert min(compared(PAIRS[name]).matched_share) >= 0.95


@pytest.mark.sweep
@pytest.mark.shared
def test_the_page_has_the_five_largest_changes_of_each_pair_and_says_nothing_else(shared_traces: Path) -> None:
    page = Path(__file__).with_name("checked_by_hand.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| [^|]*\| (`[^|]+) \|", page, re.MULTILINE)
    quoted = [sentence for cell in cells for sentence in re.findall(r"`([^`]+)`", cell)]
    largest = [found.text for names in PAIRS.values() for found in compared(names).changes[:5] if found.cause != NOISE]

    def says(sentence: str, text: str) -> bool:
        head, *rest = sentence.split("…")
        return text.startswith(head) and all(part in text for part in rest)

    assert [text for text in largest if not any(says(sentence, text) for sentence in quoted)] == []
    said = [found.text for names in PAIRS.values() for found in compared(names).changes]
    # One step each: what chance may be is one sentence, checked row by row
    said += [
        f"{'idle' if row.is_idle else row.category} {signed_ms(row.change_ms)}: {row.why}"
        for names in PAIRS.values()
        for row in compared(names).rows
    ]
    assert [sentence for sentence in quoted if not any(says(sentence, text) for text in said)] == []


@pytest.mark.shared
def test_all_ranks_of_one_file_are_compared(shared_traces: Path) -> None:
    (run,) = side(PAIRS["two GPUs"][0]).parts
    assert [one.rank for one in run] == [0, 1]
    # Kernels, copies and memsets of each device in the file's tables
    assert [len(one.event_ns) for one in run] == [1993 + 510 + 133, 2017 + 510 + 136]


def test_sides_of_one_name_are_told_apart_by_the_shortest_path() -> None:
    assert told_apart("runs/old/rank0.json", "runs/new/rank0.json") == ["old/rank0.json", "new/rank0.json"]
    assert told_apart("x/a/t.json", "y/a/t.json") == ["x/a/t.json", "y/a/t.json"]
    assert told_apart("a/t.json", "a/t.json") == ["t.json", "t.json"]
