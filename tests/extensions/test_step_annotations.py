"""What the step annotations of vLLM, SGLang and ATOM say."""

from __future__ import annotations

import pytest

from tests.conftest import row_by_row
from tracelens.extensions import bundled_extensions, detect_bundled, overlay
from tracelens.perf_models import AttentionSums, InferenceStep
from tracelens.registry import Registry

READERS = overlay(Registry("annotated_as", {}), bundled_extensions())
CONTEXT = AttentionSums(c_sq=14721, c_sk=14721, c_sqsq=108745533, c_sqsk=108745533)


def read(annotation: str) -> InferenceStep | None:
    (claim,) = (claim for prefix, claim in READERS.items() if annotation.startswith(prefix))
    return claim.target(annotation)


@row_by_row(("annotation", "step"), [
        (
            "execute_14721_context_2(sq14721sk14721sqsq108745533sqsk108745533)_generation_0(sq0sk0sqsq0sqsk0)",
            InferenceStep(
                context_requests=2, context_tokens=14721, generation_requests=0, generation_tokens=0, sums=CONTEXT
            ),
        ),
        (
            "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)_generation_3(sq3sk6144sqsq3sqsk6144)",
            InferenceStep(
                context_requests=2, context_tokens=6144, generation_requests=3, generation_tokens=3,
                sums=AttentionSums(c_sq=6144, c_sk=7144, c_sqsq=20971520, c_sqsk=23019520,
                                   g_sq=3, g_sk=6144, g_sqsq=3, g_sqsk=6144),
            ),
        ),
        (
            "execute_context_2(6144)_generation_3(3)",
            InferenceStep(context_requests=2, context_tokens=6144, generation_requests=3, generation_tokens=3),
        ),
        ("execute_new_1_cached_31", InferenceStep(context_requests=1, generation_requests=31)),
        (
            "execute_context_1(888_788544)_generation_0(0)",  # 888 * 888
            InferenceStep(
                context_requests=1, context_tokens=888, generation_requests=0, generation_tokens=0,
                sums=AttentionSums(c_sq=888, c_sk=888, c_sqsq=788544, c_sqsk=788544, assumed="no cached context"),
            ),
        ),
        (
            "execute_context_1(100_50000)_generation_2(2_9000)",  # 100 tokens on 500 keys; two tokens on 9000 in all
            InferenceStep(
                context_requests=1, context_tokens=100, generation_requests=2, generation_tokens=2,
                sums=AttentionSums(c_sq=100, c_sk=500, c_sqsq=10000, c_sqsk=50000,
                                   g_sq=2, g_sk=9000, g_sqsq=2, g_sqsk=9000),
            ),
        ),
        (
            "execute_context_2(100_50000)_generation_0(0)",  # whose past it is cannot be told
            InferenceStep(context_requests=2, context_tokens=100, generation_requests=0, generation_tokens=0),
        ),
        (
            "execute_context_1(888_788544)_generation_3(3)",
            InferenceStep(context_requests=1, context_tokens=888, generation_requests=3, generation_tokens=3),
        ),
        ("execute_diffusion_4_1024x1024", None),
        (
            "step[EXTEND bs=2 toks=14721 c_sq=14721 c_sqsq=108745533 c_sqsk=108745533 c_sk=14721]",
            InferenceStep(
                context_requests=2, context_tokens=14721, generation_requests=0, generation_tokens=0, sums=CONTEXT
            ),
        ),
        (
            "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]",
            InferenceStep(
                context_requests=0, context_tokens=0, generation_requests=64, generation_tokens=128,
                sums=AttentionSums(g_sq=128, g_sk=131072, g_sqsq=256, g_sqsk=262144),
            ),
        ),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
            InferenceStep(
                context_requests=1, context_tokens=5, generation_requests=1, generation_tokens=1,
                sums=AttentionSums(c_sq=5, c_sk=8, c_sqsq=25, c_sqsk=40, g_sq=1, g_sk=12, g_sqsq=1, g_sqsk=12),
            ),
        ),
        (
            "step[DECODE bs=64 g_sqsq=64 g_sqsk=100032 g_sk=100032]",  # one token each: 64 * 64 = 64 ** 2
            InferenceStep(
                context_requests=0, context_tokens=0, generation_requests=64, generation_tokens=64,
                sums=AttentionSums(g_sq=64, g_sk=100032, g_sqsq=64, g_sqsk=100032),
            ),
        ),
        (
            "step[DECODE bs=64 g_sqsq=256 g_sqsk=262144 g_sk=131072]",  # two tokens each: 64 * 256 = 128 ** 2
            InferenceStep(
                context_requests=0, context_tokens=0, generation_requests=64, generation_tokens=128,
                sums=AttentionSums(g_sq=128, g_sk=131072, g_sqsq=256, g_sqsk=262144),
            ),
        ),
        (
            "step[EXTEND bs=1 toks=1025 c_sqsq=1050625 c_sqsk=1050625 c_sk=1025]",
            InferenceStep(
                context_requests=1, context_tokens=1025, generation_requests=0, generation_tokens=0,
                sums=AttentionSums(c_sq=1025, c_sk=1025, c_sqsq=1050625, c_sqsk=1050625),
            ),
        ),
        (
            "step[TARGET_VERIFY bs=4 g_sq=16 g_sqsq=64 g_sqsk=4000 g_sk=1000]",
            InferenceStep(
                context_requests=0, context_tokens=0, generation_requests=4, generation_tokens=16,
                sums=AttentionSums(g_sq=16, g_sk=1000, g_sqsq=64, g_sqsk=4000),
            ),
        ),
        (
            "step[DRAFT_EXTEND_V2 bs=4 c_sq=16 c_sqsq=64 c_sqsk=4000 c_sk=1000]",
            InferenceStep(sums=AttentionSums(c_sq=16, c_sk=1000, c_sqsq=64, c_sqsk=4000)),
        ),
        (
            "step[DECODE g_sqsq=64 g_sqsk=100032 g_sk=100032]",  # of how many requests is not said
            InferenceStep(context_requests=0, context_tokens=0),
        ),
        ("step[IDLE bs=0]", None),
        (
            "step[EXTEND bs=2 toks=14721]",
            InferenceStep(context_requests=2, context_tokens=14721, generation_requests=0, generation_tokens=0),
        ),
        ("step[DECODE bs=64]", InferenceStep(context_requests=0, context_tokens=0, generation_requests=64)),
        ("step[MIXED bs=2]", InferenceStep()),
        (
            "prefill[bs=2 tok=14721 ctx=[7803, 6918] sqsq=108745533 sqsk=108745533 sk=14721]",
            InferenceStep(
                context_requests=2, context_tokens=14721, generation_requests=0, generation_tokens=0, sums=CONTEXT
            ),
        ),
        (
            "prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]",
            InferenceStep(context_requests=6, context_tokens=17408, generation_requests=0, generation_tokens=0),
        ),
        (
            "decode[bs=117/128 tok=117 d=117]",
            InferenceStep(
                context_requests=0, context_tokens=0, generation_requests=117, generation_tokens=117, padded_requests=128
            ),
        ),
        (
            "decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]",
            InferenceStep(
                context_requests=0, context_tokens=0, generation_requests=32, generation_tokens=128,
                sums=AttentionSums(g_sq=128, g_sk=65536, g_sqsq=512, g_sqsk=262144),
            ),
        ),
        ("decode[", None),
    ])  # fmt: skip
def test_an_annotation_gives_requests_tokens_and_the_sums_where_it_has_them(
    annotation: str, step: InferenceStep | None
):
    assert read(annotation) == step


def test_an_extension_switches_itself_on_for_its_annotations_and_for_names_with_a_number():
    assert detect_bundled(["execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk9sqsq1sqsk9)"]) == ["vllm"]
    assert detect_bundled(["step[DECODE bs=64]"]) == ["sglang"]
    assert detect_bundled(["decode[bs=4 tok=4]"]) == ["aiter"]
    assert detect_bundled(["sglang_profiler::quant_dynamic_mxfp4_quant_77"]) == ["sglang"]
    assert detect_bundled(["my step[1]", "sglang_profiler::unknown_7"]) == []


@pytest.mark.parametrize("text", ["capture_{}_FULL", "execute_context_0(0)_generation_{}(1)", "step[DECODE bs={}]"])
def test_a_number_of_thousands_of_digits_is_no_number_of_requests(text: str):
    step = read(text.format("9" * 5000))
    assert step is None or step.generation_requests is None
