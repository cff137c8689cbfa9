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
    engine = PREDICT.cost.deployment.engine
    before_ms = (engine.request_us + 100 * engine.token_us) / 1e3  # HTTP and tokenization are no part of a step
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
    found, most = PREDICT([1], [100]), PREDICT.cost.deployment.spans("residuals").most
    assert found.low_s == pytest.approx(found.seconds / most)
    assert found.high_s == pytest.approx(found.seconds * most)
    assert StepTimePredictor("gpt2", "h100-sxm", engine="ideal")([1], [5]).low_s is None


@pytest.mark.parametrize(("new", "cached"), [([1], []), ([0], [5]), ([1], [-1])])
def test_counts_that_cannot_be_are_refused(new: list[int], cached: list[int]) -> None:
    with pytest.raises(UsageError):
        PREDICT(new, cached)


def adapter(
    name: str, repository: Path, monkeypatch: pytest.MonkeyPatch, **modules: types.SimpleNamespace
) -> types.ModuleType:
    """An example of docs, beside stand-ins for the modules that it imports; ``__`` for a dot."""
    for dotted in modules:
        parts = dotted.split("__")
        for depth in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), types.ModuleType(parts[depth - 1]))
    for dotted, content in modules.items():
        vars(sys.modules[dotted.replace("__", ".")]).update(vars(content))
    spec = importlib.util.spec_from_file_location(name, repository / "docs" / "examples" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@dataclass
class ScheduleRequest:
    """As SGLang's simulator has it: tokens of this forward pass, and those whose keys are cached."""

    extend_length: int = 0
    past_kv_length: int = 0


@dataclass
class ScheduleBatch:
    reqs: list[ScheduleRequest]


class InferTimePredictor:
    """The public interface of sglang_simulator.time_predictor.base: three facts, one method that returns seconds."""

    def __init__(self, model, hw, config, *args, **kwargs) -> None:
        self.model, self.hw, self.config = model, hw, config


class ConfigManager:
    """Of sglang_simulator.simulation.manager.config: the scheduler gets its predictor here."""

    @classmethod
    def get_inference_time_predictor(cls, model, hw, sched_config):
        raise ValueError("Unknown predictor name")


def test_sglang_s_simulator_can_ask(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = adapter(
        "sglang_simulator", repository, monkeypatch,
        sglang_simulator__time_predictor__base=types.SimpleNamespace(
            InferTimePredictor=InferTimePredictor, ScheduleBatch=ScheduleBatch
        ),
        sglang_simulator__simulation__manager__config=types.SimpleNamespace(ConfigManager=ConfigManager),
    )  # fmt: skip
    found.use_tracelens("llama3.1-8b", "h100-sxm")
    config = types.SimpleNamespace(tp_size=2, dp_size=1, ep_size=1)
    predictor = ConfigManager.get_inference_time_predictor("model", "hw", config)
    assert (predictor.model, predictor.hw, predictor.config) == ("model", "hw", config)
    own = StepTimePredictor("llama3.1-8b", "h100-sxm", engine="sglang", tp=2)
    # As the simulator makes them: a decode step of sequences with 101 tokens, a chunk beside one of them, nothing
    decoding = ScheduleBatch(reqs=[ScheduleRequest(1, 100)] * 8)
    mixed = ScheduleBatch(reqs=[ScheduleRequest(1, 100), ScheduleRequest(512, 0)])
    assert predictor.predict_infer_time(decoding) == own([1] * 8, [100] * 8).seconds > 0
    assert predictor.predict_infer_time(mixed) == own([1, 512], [100, 0]).seconds > 0
    assert predictor.predict_infer_time(ScheduleBatch(reqs=[])) == 0


class AicEngine:
    """Of aiconfigurator_core: what AISimulate's runner loads from a compiled specification."""

    @staticmethod
    def from_spec(spec: bytes, systems_path: str | None = None):
        raise ValueError("no specification")


def compile_engine(model: str, system: str, backend: str, **options: object) -> bytes:
    raise LookupError(f"no data for {model} on {system}")


def runner_s_engine(**options: object):
    """The calls of AISimulate's runner (crates/python of ai-dynamo/aisimulate, 0.12.0.dev2) that make its timing model."""
    core, sdk = sys.modules["aiconfigurator_core"], sys.modules["aiconfigurator_core.sdk.engine"]
    return core.AicEngine.from_spec(sdk.compile_engine("model", "system", "vllm", **options), None)


def test_aisimulate_can_ask(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = adapter(
        "aisimulate", repository, monkeypatch,
        aiconfigurator_core__sdk__engine=types.SimpleNamespace(compile_engine=compile_engine),
        aiconfigurator_core=types.SimpleNamespace(AicEngine=AicEngine),
    )  # fmt: skip
    with found.tracelens_times("llama3.1-8b", "h100-sxm"):
        engine = runner_s_engine(tp_size=2, pp_size=1, attention_dp_size=1, moe_ep_size=None, forward_model="fpm")
    own = StepTimePredictor("llama3.1-8b", "h100-sxm", engine="vllm", tp=2)
    assert engine.fpm_decode_kv_ceiling() is None
    # 3 prompts of 512 tokens, 128 of each cached; 3 sequences with 100, 100 and 101 keys; in ms
    assert engine.predict_prefill_latency(3, 512, 128) == 1e3 * own([384] * 3, [128] * 3).seconds > 0
    assert engine.predict_decode_latency_total(3, 301) == 1e3 * own([1] * 3, [101, 100, 100]).seconds > 0
    assert engine.predict_prefill_latency(1, 64, 64) == engine.predict_decode_latency_total(0, 0) == 0
    with pytest.raises(LookupError):
        runner_s_engine()
