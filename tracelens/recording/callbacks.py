"""``tracelens.profile`` for trainers that call back: Hugging Face's Trainer and Lightning, neither of them imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracelens.recording.recorder import Recorder


class TrainerCallback:
    """Begins with training, ends a step with each batch, ends with training; every other hook does nothing.

    ``Trainer(callbacks=[TrainerCallback(tracelens.profile("traces"))])`` in Hugging Face's and Lightning's words.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Hugging Face: training begins."""
        self._recorder.__enter__()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Hugging Face: an optimizer step is done."""
        self._recorder.step()

    def on_train_start(self, *_: Any, **__: Any) -> None:
        """Lightning: training begins."""
        self._recorder.__enter__()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Lightning: a batch is done."""
        self._recorder.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Both: training is over."""
        self._recorder.__exit__(None, None, None)

    @property
    def state_key(self) -> str:
        """Lightning: under which name a checkpoint keeps it."""
        return "tracelens"

    def state_dict(self) -> dict[str, Any]:
        """Lightning: there is nothing to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lightning: see ``state_dict``."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_") or name in ("setup", "teardown"):
            return _nothing
        raise AttributeError(name)


def _nothing(*_: Any, **__: Any) -> None:
    return None
