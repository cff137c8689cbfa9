"""Step times for other simulators: those of our own server, and SGLang's simulator as a caller."""

from __future__ import annotations

import importlib.util
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens as tl
from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.predict.step_time import StepTimePredictor

PREDICT = StepTimePredictor("llama3.1-8b", "h100-sxm", engine="vllm")


def test_a_request_alone_takes_its_prompt_and_its_steps() -> None:
    """One prompt of 100 tokens and an answer of 4: a step with the prompt, then decode steps at 101, 102, 103 keys."""
    served = tl.serve("llama3.1-8b", "h100-sxm", engine="vllm", concurrency=1, requests=1, input=100, output=4).summary
    before_ms = PREDICT.cost.deployment.engine.request_us / 1e3  # HTTP and tokenization are no part of a step
    assert PREDICT([100], [0]).seconds * 1e3 + before_ms == pytest.approx(served["ttft_p50_ms"], rel=1e-9)
    steps = [PREDICT([1], [cached]).seconds * 1e3 for cached in (100, 101, 102)]
    assert sum(steps) / 3 == pytest.approx(served["tpot_p50_ms"], rel=1e-9)


def test_chunks_and_sequences_that_decode_are_one_step() -> None:
    both = PREDICT([1, 1, 512], [300, 40, 512]).seconds
    assert max(PREDICT([1, 1], [300, 40]).seconds, PREDICT([512], [512]).seconds) < both
    assert PREDICT([], []).seconds == 0


@settings(max_examples=examples(30))
@given(cached=st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_more_keys_or_sequences_never_take_less(cached: list[int]) -> None:
    # Another sequence may shorten the mean context: what a backend says of it may then be a hair less
    new = [1] * len(cached)
    one = PREDICT(new, cached).seconds
    assert PREDICT(new, [each + 100 for each in cached]).seconds >= one
    assert PREDICT([*new, 1], [*cached, 100]).seconds >= 0.99 * one


def test_the_interval_is_the_engine_s() -> None:
    found, most = PREDICT([1], [100]), PREDICT.cost.deployment.engine.residuals.most
    assert found.low_s == pytest.approx(found.seconds / most)
    assert found.high_s == pytest.approx(found.seconds * most)
    assert StepTimePredictor("gpt2", "h100-sxm", engine="ideal")([1], [5]).low_s is None


@pytest.mark.parametrize(("new", "cached"), [([1], []), ([0], [5]), ([1], [-1])])
def test_counts_that_cannot_be_are_refused(new: list[int], cached: list[int]) -> None:
    with pytest.raises(UsageError):
        PREDICT(new, cached)


@dataclass
class ScheduleRequest:
    """As SGLang's simulator has it: tokens of this forward pass, and those whose keys are cached."""

    extend_length: int
    past_kv_length: int


@dataclass
class ScheduleBatch:
    reqs: list[ScheduleRequest]


class InferTimePredictor:
    """The public interface of sglang_simulator.time_predictor.base: three facts, one method that returns seconds."""

    def __init__(self, model, hw, config, *args, **kwargs) -> None:
        self.model, self.hw, self.config = model, hw, config


def test_sglang_s_simulator_can_ask(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sglang_simulator", "sglang_simulator.time_predictor", "sglang_simulator.time_predictor.base"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    base = sys.modules["sglang_simulator.time_predictor.base"]
    base.InferTimePredictor, base.ScheduleBatch = InferTimePredictor, ScheduleBatch
    spec = importlib.util.spec_from_file_location("adapter", repository / "docs" / "examples" / "sglang_simulator.py")
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    predictor = adapter.TracelensTimePredictor(
        "model", "hw", "config", model_name="llama3.1-8b", device_name="h100-sxm", tp=1
    )
    assert predictor.model == "model"
    batch = ScheduleBatch(reqs=[ScheduleRequest(extend_length=1, past_kv_length=100)] * 8)
    own = StepTimePredictor("llama3.1-8b", "h100-sxm", engine="sglang")
    assert predictor.predict_infer_time(batch) == own([1] * 8, [100] * 8).seconds > 0
    assert predictor.predict_infer_time(ScheduleBatch(reqs=[])) == 0
