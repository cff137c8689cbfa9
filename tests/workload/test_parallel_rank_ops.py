"""What a rank computes and exchanges: shapes under tensor, context and expert parallelism."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import comb

import pytest

from tests.conftest import row_by_row
from tracelens.errors import UsageError
from tracelens.perf_models import GEMM, SDPA, Collective, EPComm, GroupedGEMM
from tracelens.perf_models.inference_attention import SelectiveAttention
from tracelens.predict.workload import rank_ops
from tracelens.predict.workload.memory import activation_bytes
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import Attention, ParallelConfig, PrecisionName
from tracelens.predict.workload.rank_ops import RankLayer
from tracelens.predict.workload.token_routing import Skew

LLAMA = ModelConfig.load("llama3.1-70b")
DEEPSEEK = ModelConfig.load("deepseek-v3")
S = 4096


def shapes(layer: RankLayer, name: str) -> list[tuple[int, int, int]]:
    return [(op.model.m, op.model.n, op.model.k) for op in layer.ops if op.name == name and isinstance(op.model, GEMM)]


def collectives(layer: RankLayer, phase: str) -> list[str]:
    return [op.model.kind for op in layer.ops if isinstance(op.model, Collective) and op.phase in phase]


def matrix_flops(layer: RankLayer) -> float:
    return sum(op.model.flops() or 0 for op in layer.ops if op.model.engine == "matrix")


def test_tensor_parallelism_divides_n_of_the_first_and_k_of_the_second_product() -> None:
    attention = rank_ops.block(LLAMA, ParallelConfig(tp=8, sequence_parallel=True), "*", S)
    qkv = (64 + 2 * 8) * 128 // 8
    assert shapes(attention, "attention.qkv") == [(S, qkv, 8192), (S, 8192, qkv), (8192, qkv, S)]
    assert shapes(attention, "attention.out") == [(S, 8192, 1024), (S, 1024, 8192), (1024, 8192, S)]


def test_output_layer_is_divided_too() -> None:
    head = rank_ops.head(LLAMA, ParallelConfig(tp=8, sequence_parallel=True), S)
    part = 128256 // 8
    assert shapes(head, "logits") == [(S, part, 8192), (S, 8192, part), (8192, part, S)]


def test_sequence_parallel_layers_gather_and_scatter_twice_forward_and_six_times_backward() -> None:
    """Forward one each per block, two blocks; backward the mirror, and the input once more for its weights."""
    p = ParallelConfig(tp=8, sequence_parallel=True)
    blocks = [rank_ops.block(LLAMA, p, letter, S) for letter in "*-"]
    forward = [kind for layer in blocks for kind in collectives(layer, "forward")]
    backward = [kind for layer in blocks for kind in collectives(layer, "dgrad")]
    assert forward == ["all_gather", "reduce_scatter"] * 2
    assert sorted(backward) == ["all_gather"] * 4 + ["reduce_scatter"] * 2


def test_without_sequence_parallelism_two_all_reduces_each_way() -> None:
    blocks = [rank_ops.block(LLAMA, ParallelConfig(tp=8), letter, S) for letter in "*-"]
    assert [collectives(layer, "forward") for layer in blocks] == [["all_reduce"]] * 2
    assert [collectives(layer, "dgrad") for layer in blocks] == [["all_reduce"]] * 2


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_ranks_together_do_the_whole_layers_work(tp: int) -> None:
    one, divided = (
        [rank_ops.block(LLAMA, ParallelConfig(tp=t, sequence_parallel=t > 1), letter, S) for letter in "*-"]
        for t in (1, tp)
    )
    assert tp * sum(map(matrix_flops, divided)) == sum(map(matrix_flops, one))
    # Norm weights are on every rank.
    assert tp * sum(b.dense for b in divided) - sum(b.dense for b in one) == (tp - 1) * 2 * 8192


def test_context_ranks_together_attend_every_pair() -> None:
    found = {}
    for cp in (1, 4):
        layer = rank_ops.block(LLAMA, ParallelConfig(cp=cp), "*", S)
        found[cp] = sum(op.model.flops() or 0 for op in layer.ops if type(op.model) is SDPA)
    assert 4 * found[4] == pytest.approx(found[1], rel=1e-3)


def test_latent_attention_has_six_products_forward_and_twelve_backward() -> None:
    """Queries down and up, keys and values down (with the rotary key) and up, out; the sixth is the rotary key's."""
    layer = rank_ops.block(DEEPSEEK, ParallelConfig(), "*", S)
    gemms = [op for op in layer.ops if isinstance(op.model, GEMM)]
    assert [op.phase for op in gemms].count("forward") == 5
    assert [op.phase for op in gemms].count("dgrad") == [op.phase for op in gemms].count("wgrad") == 5
    assert shapes(layer, "attention.kv_down")[0] == (S, 512 + 64, 7168)
    sdpa = next(op.model for op in layer.ops if type(op.model) is SDPA)
    assert (sdpa.d_qk, sdpa.d_v) == (128 + 64, 128)


def test_experts_get_the_rows_of_their_ranks_tokens() -> None:
    """T top_k rows stay T top_k: each rank sends as many as it receives; 256 / 64 experts are local."""
    layer = rank_ops.block(DEEPSEEK, ParallelConfig(dp=64, ep=64), "E", S)
    up = next(op.model for op in layer.ops if type(op.model) is GroupedGEMM)
    assert (up.m, up.n, up.k, up.groups) == (S * 8, 2 * 2048, 7168, 4)
    assert layer.expert == 4 * 3 * 7168 * 2048


def test_exchanged_tokens_are_divided_by_tp_and_cp() -> None:
    def rows(p: ParallelConfig) -> int:
        layer = rank_ops.block(DEEPSEEK, p, "E", S)
        sent = next(op.model for op in layer.ops if isinstance(op.model, EPComm))
        return round(sent.wire_bytes() / 7168 / 2 * p.ep / (p.ep - 1))

    one = rows(ParallelConfig(dp=32, ep=8))
    # 8 (1 - C(224, 8) / C(256, 8)) = 5.296 distinct ranks per token
    assert one == round(S * 8 * (1 - comb(224, 8) / comb(256, 8)))
    assert rows(ParallelConfig(tp=2, sequence_parallel=True, dp=32, ep=8)) == pytest.approx(one / 2, abs=1)
    assert rows(ParallelConfig(tp=2, sequence_parallel=True, cp=4, dp=32, ep=8)) == pytest.approx(one / 8, abs=1)


def test_ranks_that_share_an_expert_gather_the_rows_of_all_of_them() -> None:
    """4,096 tokens on tp 4 with top 2: 2,048 rows of a rank, 8,192 of four, 2 bytes * 4,096 each; products do as much
    work as whole experts on each rank. Kept beside the activations is the input of all four.
    """
    mixtral = ModelConfig.load("mixtral-8x7b")
    whole = ParallelConfig(tp=4, sequence_parallel=True, dp=8, ep=8)
    layers = {etp: rank_ops.block(mixtral, replace(whole, etp=etp), "E", 4096) for etp in (1, 4)}
    products = {etp: [op.model for op in made.ops if op.part == "experts"] for etp, made in layers.items()}
    assert sum(op.flops() for op in products[4]) == sum(op.flops() for op in products[1])
    assert layers[1].expert == 4 * layers[4].expert
    moved = [(op.name, op.phase, op.model.wire_bytes()) for op in layers[4].ops if isinstance(op.model, Collective)]
    sent = 3 / 4 * 8192 * 4096 * 2
    assert moved == [
        ("experts.dispatch.all_gather", "forward", sent),
        ("experts.dispatch.reduce_scatter", "dgrad", sent),
        ("experts.combine.reduce_scatter", "forward", sent),
        ("experts.combine.all_gather", "dgrad", sent),
    ]
    kept = [activation_bytes(mixtral, replace(whole, etp=etp), "E", 4096) for etp in (1, 4)]
    assert kept[1] - kept[0] == (8192 - 2048) * 4096 * 2


def test_a_plain_dispatcher_sends_a_copy_per_chosen_expert() -> None:
    """8 of them, of which 7/8 leave the rank; DeepEP's kernels get the rank's own tokens."""
    sent = {}
    for dispatcher in ("alltoall", "deepep"):
        p = replace(ParallelConfig(dp=32, ep=8), dispatcher=dispatcher)
        sent[dispatcher] = next(
            op.model for op in rank_ops.block(DEEPSEEK, p, "E", S).ops if isinstance(op.model, EPComm)
        )
    assert sent["alltoall"].wire_bytes() == S * 8 * 7168 * 2 * 7 / 8
    assert (sent["deepep"].tokens, sent["deepep"].phase, sent["deepep"].topk) == (S, "dispatch", 8)


def test_experts_one_by_one_do_the_same_work_in_as_many_products() -> None:
    p = ParallelConfig(dp=64, ep=64)
    grouped, alone = (rank_ops.block(DEEPSEEK, replace(p, grouped=g), "E", S) for g in (True, False))
    products = [op.model for op in alone.ops if op.name == "experts.up"]
    assert len(products) == 4 * 3
    assert {(g.m, g.n, g.k) for g in products} == {(8192, 4096, 7168), (8192, 7168, 4096), (7168, 4096, 8192)}
    assert matrix_flops(alone) == matrix_flops(grouped)


def test_a_skew_loads_the_busiest_rank_and_its_links() -> None:
    def busiest(skew: str) -> tuple[int, int]:
        layer = rank_ops.block(DEEPSEEK, ParallelConfig(dp=64, ep=64, skew=Skew.parse(skew)), "E", S)
        up = next(op.model for op in layer.ops if type(op.model) is GroupedGEMM)
        sent = next(op.model for op in layer.ops if isinstance(op.model, EPComm))
        return up.m, sent.wire_bytes()

    (rows, sent), (skewed_rows, skewed_sent) = busiest("uniform"), busiest("zipf:1.1")
    assert skewed_rows > 2 * rows
    # a token goes to a rank once, however many of its experts are there
    assert 1.2 * sent < skewed_sent < skewed_rows / rows * sent


def test_narrow_precision_narrows_products_and_not_attention_or_logits() -> None:
    p = ParallelConfig(precision="fp8")
    attention, head = rank_ops.block(LLAMA, p, "*", S), rank_ops.head(LLAMA, p, S)
    labels = {op.name: op.model.dtype.label for op in (*attention.ops, *head.ops) if op.model.engine == "matrix"}
    assert labels["attention.qkv"] == labels["attention.out"] == "fp8_e4m3fn"
    assert labels["attention.sdpa"] == labels["logits"] == "bf16"
    assert sum(op.part == "quantize" for op in attention.ops) == 2 * 2


@pytest.mark.parametrize(("precision", "written"), [("fp8", 2 * 1.0), ("mxfp8", 2 * 1.0), ("nvfp4", 2 * 0.5)])
def test_a_scale_of_the_whole_tensor_costs_another_read(precision: PrecisionName, written: float) -> None:
    mlp = rank_ops.block(LLAMA, ParallelConfig(precision=precision), "-", S)
    moved = next(op.model.hbm_bytes() for op in mlp.ops if op.name == "mlp.up.quantize" and op.phase == "forward")
    reads = 1 if precision == "mxfp8" else 2
    assert moved == S * 8192 * (2 * reads + written)


def test_the_mx_format_has_scales_of_both_operands_along_k() -> None:
    mlp = rank_ops.block(LLAMA, ParallelConfig(precision="mxfp8"), "-", S)
    products = [op.model for op in mlp.ops if op.name == "mlp.down" and isinstance(op.model, GEMM)]
    assert [(p.m, p.n, p.k) for p in products] == [(S, 8192, 28672), (S, 28672, 8192), (28672, 8192, S)]
    assert [p.scale_elements for p in products] == [
        (S + 8192) * 896, (S + 28672) * 256, (28672 + 8192) * 128,
    ]  # fmt: skip


def test_what_a_narrow_product_reads_is_narrowed_before_it_is_gathered() -> None:
    """A quarter of the rows is quantized on each of four ranks, and one byte per element gathered instead of two."""
    p = ParallelConfig(tp=4, sequence_parallel=True, precision="fp8")
    mlp = rank_ops.block(LLAMA, p, "-", S)
    widths = {op.name: op.model.dtype.width_bytes for op in mlp.ops if isinstance(op.model, Collective)}
    assert widths == {
        "block.gather.all_gather": 1, "block.gather.reduce_scatter": 2,
        "block.scatter.reduce_scatter": 2, "block.scatter.all_gather": 1,
    }  # fmt: skip
    read = {(op.name, op.phase): op.model.hbm_bytes() / 6 for op in mlp.ops if op.part == "quantize"}
    assert read == {
        ("mlp.up.quantize", "forward"): S // 4 * 8192, ("mlp.up.quantize", "dgrad"): S * 2 * 28672 // 4,
        ("mlp.down.quantize", "forward"): S * 28672 // 4, ("mlp.down.quantize", "dgrad"): S // 4 * 8192,
    }  # fmt: skip


def test_texts_packed_into_a_sequence_attend_within_themselves() -> None:
    """Sixteen texts of 256 tokens have a sixteenth of the scores of one of 4096; everything else stays."""
    packed = replace(LLAMA, document=256)
    whole, parts = (rank_ops.block(m, ParallelConfig(tp=8, sequence_parallel=True), "*", S) for m in (LLAMA, packed))
    scores = [next(op.model for op in layer.ops if isinstance(op.model, SDPA)) for layer in (whole, parts)]
    assert scores[1].flops() == pytest.approx(scores[0].flops() / 16, rel=0.01)
    others = [[op for op in layer.ops if op.part != "attention"] for layer in (whole, parts)]
    assert others[0] == others[1]
    assert replace(LLAMA, document=8192).flops_per_token(S) == LLAMA.flops_per_token(S)
    assert packed.flops_per_token(S).training < LLAMA.flops_per_token(S).training


@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_context_ranks_share_texts_that_are_longer_than_their_part(attention: Attention) -> None:
    """Each of 8 ranks does an eighth of the scores of texts of 4096 tokens, whose keys lie on two ranks."""

    def work(model: ModelConfig, cp: int) -> float:
        layer = rank_ops.block(model, ParallelConfig(cp=cp, attention=attention), "*", 4 * S)
        return sum(op.model.flops() or 0 for op in layer.ops if op.part == "attention")

    packed = replace(LLAMA, document=S)
    assert work(packed, 8) == pytest.approx(work(packed, 1) / 8, rel=1e-3)
    assert work(packed, 1) == pytest.approx(work(LLAMA, 1) / 4, rel=1e-3)


def test_texts_that_do_not_fill_a_sequence_are_as_many_as_come_nearest() -> None:
    def texts(document: int, batch: int) -> list[tuple[int, int | None]]:
        layer = rank_ops.block(replace(LLAMA, document=document), ParallelConfig(micro_batch=batch), "*", S)
        return [(op.model.b, op.model.s_q) for op in layer.ops if isinstance(op.model, SDPA) and op.phase == "forward"]

    assert [*texts(400, 1), *texts(700, 1), *texts(3000, 4)] == [(10, 400), (6, 700), (5, 3000)]


def test_adam_reads_and_writes_thirty_bytes_per_parameter() -> None:
    adam = next(op for op in rank_ops.optimizer(1_000_000, ParallelConfig()) if op.name == "adam")
    assert adam.model.hbm_bytes() == 30_000_000


def test_a_rank_count_that_does_not_divide_is_named() -> None:
    with pytest.raises(UsageError, match="tp 3 does not divide"):
        rank_ops.block(LLAMA, ParallelConfig(tp=3), "*", S)
    with pytest.raises(UsageError, match="ep 3 does not divide 256 experts"):
        rank_ops.block(DEEPSEEK, ParallelConfig(dp=3, ep=3), "E", S)
    with pytest.raises(UsageError, match="cp 3 does not divide the sequence of 4096"):
        rank_ops.block(LLAMA, ParallelConfig(cp=3), "*", S)


def whole(model: ModelConfig) -> list[tuple[int, RankLayer]]:
    """Every part of the model on one rank, and how often it occurs."""
    p = ParallelConfig()
    blocks = [(count, rank_ops.block(model, p, letter, S)) for letter, count in Counter(model.blocks).items()]
    return [*blocks, (1, rank_ops.embedding(model, p, S)), (1, rank_ops.head(model, p, S))]


@row_by_row("name", ModelConfig.names())
def test_one_rank_alone_does_the_models_work_with_the_models_weights(name: str) -> None:
    """The model's own count, from the same shapes; the scores that flash attention computes again are extra here."""
    model = replace(ModelConfig.load(name), mtp_layers=0)
    flops = 0.0
    for count, layer in whole(model):
        again = [op.model for op in layer.ops if type(op.model) in (SDPA, SelectiveAttention)]
        flops += count * (matrix_flops(layer) - sum((m.flops() or 0) * m.d_qk / (m.d_qk + m.d_v) for m in again))
    assert flops == pytest.approx(S * model.flops_per_token(S).training, rel=2e-3)
    held = sum(count * (layer.dense + layer.expert) for count, layer in whole(model))
    assert held == pytest.approx(model.parameters().total, rel=1e-4)
