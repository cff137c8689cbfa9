"""tracelens as the step times of NVIDIA's AISimulate (ai-dynamo/aisimulate, release 0.12).

AISimulate runs its engines' schedulers in Rust. Its runner takes step times from one provider, ``aic``: it compiles
``aiconfigurator_core.sdk.engine.compile_engine(...)``, loads ``aiconfigurator_core.AicEngine.from_spec(...)`` and asks
that object, with ``forward_model: fpm``, for the milliseconds of a batch of prompts and of a decode step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from unittest.mock import patch

from tracelens.predict.step_time import StepTimePredictor


class TracelensEngine:
    """The methods of ``AicEngine`` that the runner calls; counts are of one attention data-parallel rank."""

    def __init__(self, predict: StepTimePredictor) -> None:
        self._predict = predict

    def fpm_decode_kv_ceiling(self) -> None:
        """No bound on the context."""

    def predict_prefill_latency(self, batch_size: int, isl: int, prefix: int = 0) -> float:
        """Prompts of ``isl`` tokens, of which ``prefix`` are cached."""
        new = max(isl - prefix, 0)
        return 1e3 * self._predict([new] * batch_size, [prefix] * batch_size).seconds if new else 0.0

    def predict_decode_latency_total(self, batch_size: int, total_past_kv_tokens: int) -> float:
        """A decode step of sequences with so many cached tokens in all."""
        each, more = divmod(total_past_kv_tokens, max(batch_size, 1))
        cached = [max(each + (at < more), 1) for at in range(batch_size)]
        return 1e3 * self._predict([1] * batch_size, cached).seconds


@contextmanager
def tracelens_times(model_name: str, device_name: str, **deployment: object) -> Iterator[None]:
    """While open, AISimulate's runs in this process take their step times from tracelens. The names are those of
    ``tracelens models`` and ``tracelens devices``; the split comes from AISimulate's configuration.
    """

    def compiled(_model: str, _system: str, backend: str, **split: object) -> TracelensEngine:
        degrees = {"tp": "tp_size", "pp": "pp_size", "dp": "attention_dp_size", "ep": "moe_ep_size"}
        asked = {name: split.get(key) or 1 for name, key in degrees.items()}
        return TracelensEngine(StepTimePredictor(model_name, device_name, **{"engine": backend, **asked, **deployment}))

    class Loaded:
        @staticmethod
        def from_spec(engine: TracelensEngine, _systems_path: str | None) -> TracelensEngine:
            return engine

    core, sdk = import_module("aiconfigurator_core"), import_module("aiconfigurator_core.sdk.engine")
    with patch.object(sdk, "compile_engine", compiled), patch.object(core, "AicEngine", Loaded):
        yield
