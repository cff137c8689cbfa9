"""How long one step of a serving engine takes: for simulators that run an engine's own scheduler and ask for the time.

Plain numbers in, seconds out: ``StepTimePredictor("llama3.1-70b", "h100-sxm", tp=4)`` is asked with the new tokens of
each sequence in the batch and those that its cache holds. docs/examples has SGLang's simulator ask it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tracelens.backends import System
from tracelens.errors import UsageError
from tracelens.files.option_fields import build_options, takes
from tracelens.predict.serving.costs import FS_PER_US, StepCost
from tracelens.predict.serving.experiment import deployment_of
from tracelens.predict.serving.serving_options import DeploymentOptions
from tracelens.predict.workload import ModelConfig

_FS_PER_S = FS_PER_US * 1e6


class StepTime(NamedTuple):
    """``seconds`` of a step, and between which of them nine of ten measured times per token lie, of servers that the
    engine's fit left out; None without such a fit. The interval is not scored on single steps.
    """

    seconds: float
    low_s: float | None
    high_s: float | None


class StepTimePredictor:
    """The step times of one replica. ``given``: options of ``tracelens.serve`` that say what is served (``tp``, ``dp``,
    ``ep``, ``pp``, ``weights``, ``kv``, ``engine`` ...); without ``engine`` the pooled constants of the vendor.

    UsageError for options that do not fit, and for a model that cannot be divided as asked.
    """

    @takes(DeploymentOptions)
    def __init__(
        self,
        model: str | Path | ModelConfig,
        device: str | Path | System,
        config: DeploymentOptions | None = None,
        **given: Any,
    ) -> None:
        asked = build_options(DeploymentOptions, given, config)
        self.cost = StepCost(deployment_of(model, device, asked))
        self._ranks = self.cost.deployment.parallelism.dp
        spans = self.cost.deployment.spans("residuals")
        self._most = None if spans is None else spans.most

    def __call__(self, new_tokens: Sequence[int], cached_tokens: Sequence[int]) -> StepTime:
        """A step that computes ``new_tokens[i]`` tokens of sequence i, whose cache holds ``cached_tokens[i]``.

        A sequence decodes that has a cache and computes no more tokens than a decode step does (1, or with speculation
        the draft's and 1); others are prompts, or chunks of them, and yield a token. 0 for an empty batch. UsageError
        where the two are not equally long, or a count is below what it can be.
        """
        if len(new_tokens) != len(cached_tokens):
            raise UsageError(f"{len(new_tokens)} counts of new tokens for {len(cached_tokens)} of cached ones")
        if not new_tokens:
            return self._within(0)
        if min(new_tokens) < 1 or min(cached_tokens) < 0:
            raise UsageError("a sequence computes at least 1 new token after 0 or more cached ones")
        cost, queries, size = self.cost, self.cost.queries, len(new_tokens)
        if max(new_tokens) <= queries and min(cached_tokens):
            context = self._keys(cached_tokens)
            line = cost.decode_line(size, context)
            return self._within(line.fixed + line.slope * context)
        prompts, kept = [], []
        for new, cached in zip(new_tokens, cached_tokens, strict=True):
            if new <= queries and cached:
                kept.append(cached)
            else:
                prompts.append((new, cached))
        batch, context = len(kept), self._keys(kept)
        tokens = sum(new for new, _ in prompts) + batch * queries
        started = sum(not cached for _, cached in prompts)
        rows = len(prompts) + batch * queries
        return self._within(sum(cost.mixed_time(tokens, prompts, rows, started, batch, context)))

    def _keys(self, cached: Sequence[int]) -> int:
        """Keys of sequences that decode, as many on each data-parallel rank as on the busiest one."""
        total, size = sum(cached), len(cached)
        if self._ranks == 1:
            return total + size
        return size + self.cost.uneven(size, total, sum(each * each for each in cached))

    def _within(self, time_fs: int) -> StepTime:
        seconds, most = time_fs / _FS_PER_S, self._most
        return StepTime(seconds, None if most is None else seconds / most, None if most is None else seconds * most)
