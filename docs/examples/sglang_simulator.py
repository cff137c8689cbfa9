"""tracelens as the time predictor of SGLang's simulator (tools/sglang-simulator of sgl-project/sglang, #33824).

The simulator runs SGLang's scheduler on a CPU and asks an ``InferTimePredictor`` how long each batch takes.
"""

from sglang_simulator.simulation.manager.config import ConfigManager
from sglang_simulator.time_predictor.base import InferTimePredictor, ScheduleBatch

from tracelens.predict.step_time import StepTimePredictor


class TracelensTimePredictor(InferTimePredictor):
    """``model_name`` and ``device_name`` as ``tracelens models`` and ``tracelens devices`` list them; the split is that
    of the simulated server's arguments unless ``deployment`` gives another.
    """

    def __init__(self, model, hw, config, *, model_name: str, device_name: str, **deployment) -> None:
        super().__init__(model, hw, config)
        split = {name: getattr(config, f"{name}_size", None) or 1 for name in ("tp", "pp", "dp", "ep")}
        self._predict = StepTimePredictor(model_name, device_name, **{"engine": "sglang", **split, **deployment})

    def predict_infer_time(self, batch: ScheduleBatch) -> float:
        """Seconds of one forward pass over the batch, host time of SGLang's loop included."""
        new = [request.extend_length for request in batch.reqs]
        return self._predict(new, [request.past_kv_length for request in batch.reqs]).seconds


def use_tracelens(model_name: str, device_name: str, **deployment) -> None:
    """Has the simulator ask tracelens, whatever its configuration names: it knows no predictors but its own."""

    def chosen(model, hw, config) -> TracelensTimePredictor:
        return TracelensTimePredictor(model, hw, config, model_name=model_name, device_name=device_name, **deployment)

    ConfigManager.get_inference_time_predictor = staticmethod(chosen)
