"""Model and hardware FLOPs utilization, by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import part
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, StepWork, Trace, load
from tracelens.analysis.verdict.verdict import summarize
from tracelens.errors import UsageError
from tracelens.predict.workload import Experts, ModelConfig

#: Forward per token of a sequence of 512: weights 2 * (qkv 64x192 + out 64x64 + up and gate 64x512 + down 256x64 +
#: logits 64x1000), attention 2 * 4 heads * (512*513/2 pairs)/512 * (16 + 16)
MODEL = ModelConfig(
    name="tiny", label="tiny", source="by hand", blocks="*-", hidden=64, vocab=1000, ffn=256, gated=True, q_heads=4,
    kv_heads=4, head_dim=16,
)  # fmt: skip
WEIGHTS = 64 * 192 + 64 * 64 + 64 * 512 + 256 * 64 + 64 * 1000
FORWARD = 2 * WEIGHTS + 2 * 4 * (513 / 2) * (16 + 16)
PEAK, ACHIEVABLE = 1307.4e12, 708e12  # mi300x.toml, bf16
GEMM = 2 * 1024 * 4096 * 512


def embedding(trace: Any, at: float, indices: list[int], table: tuple[int, int] = (1000, 64)) -> None:
    trace.op(
        "aten::embedding", at, 2,
        **{"Input Dims": [list(table), indices, [], [], []], "Input type": ["c10::BFloat16", "long int", "", "", ""],
           "Concrete Inputs": ["", "", "-1", "False", "False"]},
    )  # fmt: skip


def attention(trace: Any, at: float, batch: int, sequence: int, s_kv: int | None = None, duration: float = 10) -> None:
    q, kv = [batch, 4, sequence, 16], [batch, 4, s_kv or sequence, 16]
    trace.op(
        "aten::_scaled_dot_product_flash_attention", at, 5,
        **{"Input Dims": [q, kv, kv, [], [], [], []], "Input type": ["c10::BFloat16"] * 3 + ["Scalar"] * 3 + [""],
           "Concrete Inputs": ["", "", "", "0.0", "True", "False", ""]},
    )  # fmt: skip
    trace.launch(at + 1, "fmha_fwd", at + 20, duration)


def steps(
    build: Callable[[], Any],
    *,
    indices: list[int] | None = None,
    backward: bool = True,
    attended: tuple[int, int] | None = None,
    calls: int = 1,
    table: tuple[int, int] = (1000, 64),
    **metadata: Any,
) -> Trace:
    """Three steps of 1,000 µs, each with ``calls`` forward passes and two GEMMs."""
    trace = build()
    for number in range(3):
        start = 1000.0 * number
        trace.op(f"ProfilerStep#{number}", start, 1000, cat="user_annotation")
        for call in range(calls):
            if indices is not None:
                embedding(trace, start + 5 + 3 * call, indices, table)
            if attended is not None:
                attention(trace, start + 100 + 100 * call, *attended)
        trace.mm(1024, 4096, 512, start + 20, start + 60, 40)
        if backward:
            trace.op("MmBackward0", start + 700, 20)
        trace.mm(512, 1024, 4096, start + 702, start + 760, 30)
    return trace.trace(**metadata)


def used(trace: Trace, model: ModelConfig = MODEL, **given: Any) -> Any:
    return summarize(analyze(trace, AnalysisOptions(work=StepWork(model=model, **given))))


def refusal(trace: Trace, **given: Any) -> str:
    summary = used(trace, **given)
    assert summary.utilization is None
    return next(notice.text for notice in summary.notices if notice.id == "no_utilization")


def test_training_by_hand(build):
    made = used(steps(build, indices=[2, 512])).utilization
    assert (made.work, made.tokens, made.sequence, made.ranks) == ("training", 1024, 512, 1)
    assert made.tokens_source == "aten::embedding indices [2, 512]"
    assert (made.dtype, made.time_us) == ("bf16", 1000.0)
    # forward and twice as much in the backward
    assert made.model_flops == pytest.approx(3 * FORWARD * 1024)
    assert made.mfu == pytest.approx(3 * FORWARD * 1024 / 1e-3 / PEAK)
    assert made.mfu_of_achievable == pytest.approx(3 * FORWARD * 1024 / 1e-3 / ACHIEVABLE)
    assert made.hardware_flops == 2 * GEMM
    assert made.hfu == pytest.approx(2 * GEMM / 1e-3 / PEAK)
    assert made.hfu_of_achievable == pytest.approx(2 * GEMM / 1e-3 / ACHIEVABLE)
    assert made.hardware_coverage == 1
    assert [step.step for step in made.steps] == [0, 1, 2]
    assert made.steps[0].mfu == pytest.approx(made.mfu)


def test_without_backward_ops_it_is_inference(build):
    made = used(steps(build, indices=[2, 512], backward=False)).utilization
    assert made.work == "inference"
    assert made.model_flops == pytest.approx(FORWARD * 1024)


def test_only_the_asked_steps_count(build):
    trace = steps(build, indices=[2, 512])
    made = summarize(analyze(trace, AnalysisOptions(work=StepWork(model=MODEL), steps="1"))).utilization
    assert [step.step for step in made.steps] == [1]
    assert made.hardware_flops == 2 * GEMM


def test_micro_batches_add_up(build):
    made = used(steps(build, indices=[2, 512], calls=4)).utilization
    assert made.tokens == 4 * 1024
    assert made.tokens_source == "aten::embedding indices [2, 512] x 4"


def test_a_smaller_table_of_the_same_width_holds_positions(build):
    trace = build()
    embedding(trace, 5, [2, 512])
    embedding(trace, 8, [1, 512], table=(512, 64))
    trace.mm(1024, 4096, 512, 20, 60, 40)
    assert used(trace.trace()).utilization.tokens == 1024


def test_sequence_first_indices_are_told_by_attention(build):
    made = used(steps(build, indices=[512, 2], attended=(2, 512))).utilization
    assert (made.tokens, made.sequence) == (1024, 512)


def test_attention_alone_says_the_tokens_when_each_layer_calls_it_once(build):
    made = used(steps(build, attended=(2, 512))).utilization
    assert (made.tokens, made.sequence) == (1024, 512)
    assert made.tokens_source == "attention over 2 x 512, once per layer"


def test_options_win_over_what_is_recorded(build):
    trace = steps(build, indices=[2, 512])
    made = used(trace, batch=3, sequence=256).utilization
    assert (made.tokens, made.sequence, made.tokens_source) == (768, 256, "--batch x --sequence")
    made = used(trace, tokens=2048).utilization
    assert (made.tokens, made.sequence) == (2048, 512)
    assert made.tokens_source == "--tokens-per-step; sequence: aten::embedding indices [2, 512]"


@pytest.mark.parametrize(
    ("recorded", "reason"),
    part(
        [
            ({}, "records neither a lookup of token embeddings nor attention with lengths"),
            ({"indices": [2, 512], "table": (1000, 32)}, "embedding is [1000, 32], the model's [1000, 64]"),
            (
                {"indices": [2, 512], "attended": (2, 300)},
                "token indices [2, 512] and attention over [300] do not agree",
            ),
            (
                {"attended": (2, 512), "calls": 3},
                "3 attention calls in a step for 1 layers do not determine the tokens per step",
            ),
            ({"indices": [2, 1], "attended": (2, 1, 512)}, "attention of a step is not over whole sequences"),
        ],
        3,
    ),
)
def test_what_is_not_determined_is_a_notice_and_no_figure(build, recorded, reason):
    assert reason in refusal(steps(build, **recorded))


def test_steps_of_different_size_are_not_averaged(build):
    trace = build()
    for number, rows in enumerate((2, 3)):
        trace.op(f"ProfilerStep#{number}", 1000.0 * number, 999, cat="user_annotation")
        embedding(trace, 1000.0 * number + 5, [rows, 512])
        trace.mm(1024, 4096, 512, 1000.0 * number + 20, 1000.0 * number + 60, 40)
    assert "steps look up different numbers of tokens" in refusal(trace.trace())


def test_without_steps_the_window_is_one(build):
    trace = build()
    embedding(trace, 5, [2, 512])
    trace.mm(1024, 4096, 512, 20, 60, 40).mm(1024, 4096, 512, 40, 160, 40)
    made = used(trace.trace()).utilization
    # from the first kernel's start at 60 to the second's end at 200
    assert (made.time_us, made.steps) == (140.0, ())
    assert made.hardware_flops == 2 * GEMM


def test_several_ranks_are_assumed_to_work_on_their_own_tokens_and_that_is_said(build):
    world = {"distributedInfo": {"rank": 0, "world_size": 8}}
    summary = used(steps(build, indices=[2, 512], **world))
    assert summary.utilization.ranks == 1
    (said,) = (notice.text for notice in summary.notices if notice.id == "utilization_assumes")
    assert said.startswith("MFU assumes that each of the 8 ranks does all the work on its own tokens")
    assert said.endswith("else pass --ranks")


def test_given_ranks_divide_the_work(build):
    world = {"distributedInfo": {"rank": 0, "world_size": 8}}
    summary = used(steps(build, indices=[2, 512], **world), ranks=4)
    assert summary.utilization.model_flops == pytest.approx(3 * FORWARD * 1024 / 4)
    assert "utilization_assumes" not in {notice.id for notice in summary.notices}


def test_a_recorded_tensor_parallel_group_needs_ranks(build):
    group = {"pg_name": "3", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": [0, 1, 2, 3]}
    world = {"distributedInfo": {"rank": 0, "world_size": 8, "pg_config": [group]}}
    assert "records a TENSOR_MODEL_PARALLEL_GROUP group of 4 ranks; pass --ranks" in refusal(
        steps(build, indices=[2, 512], **world)
    )
    assert used(steps(build, indices=[2, 512], **world), ranks=4).utilization.ranks == 4


def test_more_than_the_device_can_do_is_said(build):
    summary = used(steps(build, indices=[2, 512]), batch=100_000, sequence=512)
    assert summary.utilization.mfu > 1
    assert "utilization_above_peak" in {notice.id for notice in summary.notices}


def test_model_flops_above_the_executed_ones_are_said(build):
    # 20 times the tokens whose products the two GEMMs of a step are
    summary = used(steps(build, indices=[2, 512]), batch=100, sequence=512)
    assert 1 > summary.utilization.mfu > summary.utilization.hfu
    (said,) = (notice.text for notice in summary.notices if notice.id == "utilization_uncovered")
    assert "100 % of the device time is in ops with known FLOPs" in said


def test_without_a_device_there_are_flops_and_no_shares(build):
    trace = steps(build, indices=[2, 512], deviceProperties=[])
    made = used(trace).utilization
    assert made.model_flops > 0
    assert (made.mfu, made.hfu) == (None, None)


@pytest.mark.parametrize("given", [{"tokens": 8, "batch": 2, "sequence": 4}, {"batch": 2}])
def test_contradicting_options_are_refused(given):
    with pytest.raises(UsageError):
        StepWork(model=MODEL, **given)


def test_nothing_is_counted_without_a_model(build):
    summary = summarize(analyze(steps(build, indices=[2, 512]), AnalysisOptions()))
    assert summary.utilization is None
    assert not any("MFU" in notice.text for notice in summary.notices)


@pytest.mark.sweep
def test_executed_flops_of_the_generated_moe_are_the_models_and_the_scores_again(repository: Path):
    model = ModelConfig(
        name="moe", label="moe", source="example_traces/generate_moe_ep_step.py", blocks="*E*E", hidden=2048,
        vocab=16384, gated=True, q_heads=16, kv_heads=4, head_dim=128, experts=Experts(count=32, top_k=4, ffn=1408),
    )  # fmt: skip
    ranks = [
        used(load(repository / "example_traces" / "moe_ep8" / f"rank{rank}.json.gz"), model=model).utilization
        for rank in range(8)
    ]
    assert {(made.tokens, made.sequence) for made in ranks} == {(4096, 4096)}
    # 2 layers, 16 heads, 4096*4097/2 pairs: flash attention's backward computes the scores once more
    again = 2 * 2 * 16 * (4096 * 4097 // 2) * 128
    executed = sum(made.hardware_flops for made in ranks) / 8
    assert executed == pytest.approx(ranks[0].model_flops + again, rel=0.002)
