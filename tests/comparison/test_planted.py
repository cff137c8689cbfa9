"""Of twelve kinds of changes planted in real recordings the first sentence says the cause, and its size to a tenth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.comparison import planted
from tests.comparison.edits import original, read_again
from tests.comparison.planted import Edit
from tests.conftest import TRACES
from tracelens.comparison.compare import compare_sides
from tracelens.comparison.compared import SOME_RANKS, Comparison
from tracelens.comparison.sides import Side

#: Of AMD and NVIDIA, of PyTorch 1.9 to 2.8, of one step to six, with modules, shapes, ranks and without.
RECORDINGS = {
    "ResNet on MI300X": ["mi300/resnet_act_checkpoint.json.gz"],
    "ResNet on V100": ["more/kineto/samples/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz"],
    "DLRM": ["hta/trace_filter/sampled_rank-0.json.gz"],
    "Qwen on MI300X": ["mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"],
    "collectives": ["hta/nccl_parser_config/nccl_data.json.gz"],
    "TorchRec, 4 ranks": [f"more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank{n}.pt.trace.json.gz" for n in range(4)],
    "DLRM, 4 ranks": [
        f"more/param/dlrm_8rank/worker{n}_step_12.{at}.pt.trace.json.gz"
        for n, at in enumerate((1694128201545, 1694128201556, 1694128201554, 1694128201557))
    ],
    "Megatron, 2 ranks": [f"more/megatron_pr1316_tp2/rank{n}.pt.trace.json.gz" for n in range(2)],
    "additions": ["hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"],
}
RANKS = ("TorchRec, 4 ranks", "DLRM, 4 ranks", "Megatron, 2 ranks")
KINDS = (
    "slow_kernel", "sync", "allocator", "data_loading", "one_to_three", "clock", "batch", "data_type", "compiled",
    "extra_layer", "lost_overlap", "slow_rank",
)  # fmt: skip
#: These have no shapes, no op that could be parted, no collective, or but one rank.
CANNOT = {
    *(
        (name, kind)
        for name in ("additions", "collectives")
        for kind in ("batch", "data_type", "one_to_three", "compiled", "extra_layer")
    ),
    *((name, "lost_overlap") for name in ("additions", "ResNet on V100", "Qwen on MI300X", *RANKS)),
    *((name, "slow_rank") for name in RECORDINGS if name not in RANKS),
    *((name, kind) for name in RANKS for kind in KINDS if kind != "slow_rank"),
}
#: Read and compared in less than a second; between them and the two kinds of another recording each kind is planted.
QUICK = ("DLRM", "Megatron, 2 ranks")
ALSO_QUICK = {("Qwen on MI300X", "batch"), ("Qwen on MI300X", "extra_layer")}
#: Shapes of jagged batches are others in each of its two steps: what is twice as large is not told from that.
MISSED = {("DLRM", "batch"), ("DLRM", "extra_layer")}


def cases() -> list[object]:
    return [
        pytest.param(
            name,
            kind,
            id=f"{kind}-{name}",
            marks=() if name in QUICK or (name, kind) in ALSO_QUICK else pytest.mark.sweep,
        )
        for name in RECORDINGS
        for kind in KINDS
        if (name, kind) not in CANNOT | MISSED
    ]


def compared(name: str, kind: str) -> tuple[planted.Planted, Comparison]:
    before = [original(TRACES / path) for path in RECORDINGS[name]]
    edits = [Edit(each) for each in before]
    made = getattr(planted, kind)(edits if kind == "slow_rank" else edits[0])
    after = [read_again(each, events).first for each, events in zip(before, made.events, strict=True)]
    sides = tuple(each.side.first for each in before), tuple(after)
    return made, compare_sides(*(Side(name=name, parts=(side,)) for side in sides))


@pytest.mark.shared
@pytest.mark.parametrize(("name", "kind"), cases())
def test_the_first_sentence_says_what_was_planted_and_how_much_it_is(shared_traces: Path, name: str, kind: str) -> None:
    made, found = compared(name, kind)
    first = found.changes[0]
    assert re.search(made.says, first.text), first.text
    own = [each.change_ms for each in found.ranks if each.is_alone] if first.cause == SOME_RANKS else [first.change_ms]
    # Of host time a step of the device may have a part, where it is ahead of it at the step's ends
    true = [made.size_ms, *([made.or_ms] if made.or_ms is not None else []), found.change_ms]
    assert any(own[0] == pytest.approx(size, rel=0.1) for size in true), (own, true)
    assert first.change_ms == pytest.approx(sum(found.rows[at].change_ms for at in first.rows))
