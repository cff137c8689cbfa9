"""Aggregated operation profiles: a model's work per token as JSON, exported at a stated point and imported literally.

``aggregated_ops.prefill`` has ``total_flops_per_prompt_token``, ``total_memory_bytes_per_prompt_token`` and
``critical_path_factor``; ``aggregated_ops.decode`` ``total_flops_per_token_in_batch``,
``total_memory_bytes_per_token_in_batch`` and the factor. Such numbers are linear in tokens and cannot say that decoding
reads the weights once per step, nor that the cache grows with context. So an export writes those parts beside them
(``constant_memory_bytes_per_iteration``, ``memory_bytes_per_context_token``, ``flops_per_context_token``) and the point
at which it is exact; an import of the three keys alone is taken at its word.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracelens.errors import InputError, UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.data_table import Number, shown
from tracelens.files.documents import expected, json_of, normalized
from tracelens.perf_models.base import ModelRecord
from tracelens.predict.serving.costs import Chunk, DecodeLine, LayerParts, StageWork, StepCost, StepLoad, span
from tracelens.predict.serving.deployment import Deployment
from tracelens.predict.workload import ModelConfig
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

_LAYERS = Number(least=1, most=1 << 20, whole=True)
_RANKS = Number(least=1, most=1 << 20, whole=True)
#: FLOPs or bytes of a token, or of a step.
_WORK = Number(most=1e18)


class AggregatedWork(ModelRecord, category="aggregate", engine="matrix"):
    """All operations of a phase as one: their flops and bytes, added up."""

    total_flops: float
    total_bytes: float
    dtype: DType | None = DType.BF16

    def flops(self) -> float:
        return self.total_flops

    def hbm_bytes(self) -> float:
        return self.total_bytes


class Phase(Record, frozen=True, kw_only=True):
    """Work per token of one phase, per device; the last three are 0 in a profile of the three keys alone."""

    flops: float
    memory_bytes: float
    critical_path_factor: float = 1.0
    constant_bytes: float = 0.0
    context_bytes: float = 0.0
    context_flops: float = 0.0

    def times(self, share: float) -> Phase:
        """A share of the work, as well done."""
        names = ("flops", "memory_bytes", "constant_bytes", "context_bytes", "context_flops")
        return replace(self, **{name: share * getattr(self, name) for name in names})


class Profile(Record, frozen=True, kw_only=True):
    """``layers`` is how many layers the work is spread over at high level of detail. ``tp``: the work is that of one
    of so many tensor-parallel devices; of a file that does not say, the whole model's.
    """

    prefill: Phase
    decode: Phase
    layers: int | None = None
    tp: int = 1
    #: (prefill, decode) of each layer, where the file has them and no sums of its own.
    parts: tuple[tuple[Phase, Phase], ...] = ()

    def on_one_of(self, tp: int) -> Profile:
        """The work of one of ``tp`` devices."""
        share = self.tp / tp
        if share == 1:
            return self
        parts = tuple((prefill.times(share), decode.times(share)) for prefill, decode in self.parts)
        return replace(self, prefill=self.prefill.times(share), decode=self.decode.times(share), parts=parts)

    def of_layers(self, first: int, end: int) -> Profile:
        """The sum of some of ``parts``."""
        prefill, decode = (
            Phase(flops=sum(one.flops for one in some), memory_bytes=sum(one.memory_bytes for one in some))
            for some in zip(*self.parts[first:end], strict=True)
        )
        return replace(self, prefill=prefill, decode=decode)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: str | None = None, said: str = "") -> Profile:
        """InputError for what is no such profile; of a file of several that of ``said``, else of ``model``.

        ``said``: a name as a user gave it, which the file may have as it is; ``model``: the model's own name.
        """
        text = _read(Path(path), [name for name in (said, model) if name])
        layers = text.get("layers")
        phases = text.get("aggregated_ops")
        parts: tuple[tuple[Phase, Phase], ...] = ()
        if phases is None and isinstance(layers, list) and layers:
            with expected(Path(path), "a profile"):
                phases = {
                    name: _summed([layer.get(name, {}) for layer in layers], f"{path}: layers")
                    for name in ("prefill", "decode")
                }
            where = f"{path}: layers"
            parts = tuple(
                (_phase(one["prefill"], "prompt_token", where), _phase(one["decode"], "token_in_batch", where))
                for one in layers
                if one.get("prefill") and one.get("decode")
            )
        if not isinstance(phases, dict):
            raise InputError(f"{path}: it has neither aggregated_ops nor layers")
        return cls(
            prefill=_phase(phases.get("prefill"), "prompt_token", f"{path}: aggregated_ops.prefill"),
            decode=_phase(phases.get("decode"), "token_in_batch", f"{path}: aggregated_ops.decode"),
            layers=len(layers) if isinstance(layers, list) and layers else None,
            parts=parts,
            tp=_RANKS.count(text.get("tensor_parallel", 1), f"{path}: tensor_parallel"),
        )


def _read(path: Path, names: Sequence[str]) -> dict[str, Any]:
    text = json_of(path, "a profile", comments=True)
    if not isinstance(text, dict):
        raise InputError(f"{path}: a profile must be a JSON object")
    if _is_of_one(text) or not text:
        return text
    # A database of models by name
    wanted = [key for name in names for key in text if normalized(key) == normalized(Path(name).name)]
    wanted += [key for key in text if _model_name(key) in names]
    if len(text) > 1 and not wanted:
        of = f", none of {names[-1]}" if names else "; --model says which"
        raise InputError(f"{path}: it has profiles of {', '.join(text)}{of}")
    found = text[wanted[0] if wanted else next(iter(text))]
    return found if isinstance(found, dict) else {}


def _is_of_one(text: Mapping[str, Any]) -> bool:
    return "aggregated_ops" in text or "layers" in text


def _model_name(key: str) -> str:
    """The name of the model that a file calls ``key``; the key itself where no model is called so."""
    try:
        return ModelConfig.named(key).name
    except (InputError, UsageError):
        return key


def model_of_profile(path: Path, name: str, *, tp: int, devices: int) -> ModelConfig | None:
    """A model that only a profile's file knows, under this name in it; None where the file does not have it.

    Its shape is not known: its weights and cache take no memory. Several devices exchange ``hidden_size`` numbers per
    token, which the file must say then: UsageError.
    """
    text = json_of(path, "a profile", comments=True)
    found = text.get(name) if isinstance(text, dict) and not _is_of_one(text) else None
    if not isinstance(found, dict):
        return None
    layers, hidden = found.get("layers"), found.get("hidden_size")
    if hidden is None and devices > 1:
        raise UsageError(
            f"{devices} devices exchange a token's hidden state, whose size {path} does not say: give {name} a "
            '"hidden_size" there'
        )
    count = len(layers) if isinstance(layers, list) and layers else found.get("layer_count", 1)
    note = f"{name} is known from {path.name} alone: no request waits for memory (--kv-tokens gives the cache a size)"
    return ModelConfig(
        name=name, label=name, source=path.name, notes=(note,), dtype=DType.BF16, vocab=tp, ffn=tp,
        blocks="*-" * _LAYERS.count(count, f"{path}: {name}.layer_count"), q_heads=tp, kv_heads=tp, head_dim=1,
        hidden=1 if hidden is None else _LAYERS.count(hidden, f"{path}: {name}.hidden_size"),
    )  # fmt: skip


def _summed(parts: Sequence[Any], where: str) -> dict[str, float]:
    total: Counter[str] = Counter()
    for part in parts:
        if not isinstance(part, dict):
            raise InputError(f"{where}: each layer needs prefill and decode")
        total.update({key: value for key, value in part.items() if key.startswith("total_")})
    return dict(total)


def _phase(values: Any, suffix: str, where: str) -> Phase:
    if not isinstance(values, Mapping):
        raise InputError(f"{where} is missing")

    def number(key: str, default: float | None = None) -> float:
        value = values.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise InputError(f"{where}.{key} must be {_WORK}, not {shown(value)}")
        return _WORK.of(value, f"{where}.{key}")

    return Phase(
        flops=number(f"total_flops_per_{suffix}"),
        memory_bytes=number(f"total_memory_bytes_per_{suffix}"),
        critical_path_factor=number("critical_path_factor", 1.0),
        constant_bytes=number("constant_memory_bytes_per_iteration", 0.0),
        context_bytes=number("memory_bytes_per_context_token", 0.0),
        context_flops=number("flops_per_context_token", 0.0),
    )


class ProfileCost(StepCost):
    """A step cost from a profile instead of the model's operations; exchanges and memory are still the model's."""

    def __init__(self, deployment: Deployment, profile: Profile) -> None:
        super().__init__(deployment)
        whole = profile.on_one_of(deployment.parallelism.tp)
        ends = list(itertools.accumulate((len(stage) for stage in self.stages), initial=0))
        apart = len(self.stages) > 1 and len(whole.parts) == len(self.layers)
        #: Of each stage, where the file says what each layer does; else of all.
        self._profiles = [whole.of_layers(*span) for span in itertools.pairwise(ends)] if apart else [whole]

    def mixed(
        self, tokens: int, chunks: Sequence[Chunk], rows: int, started: int, batch: int, context: int
    ) -> tuple[StageWork, ...]:
        """As ``StepCost.mixed``: a prefill and a decode phase, one after the other, spread evenly over a stage."""
        host = self._host(self._mixed_fs, started, batch, context)
        return self._spread(tokens, rows, self._phases(chunks, batch, context), host)

    def mixed_time(
        self, tokens: int, chunks: Sequence[Chunk], rows: int, started: int, batch: int, context: int
    ) -> tuple[int, int]:
        """As ``StepCost.mixed_time``."""
        works = self.mixed(tokens, chunks, rows, started, batch, context)
        return sum(work.compute_fs for work in works), sum(work.exchange_fs for work in works)

    def _line(self, batch: int, index: int) -> DecodeLine:
        low, high = span(batch, index)
        at_low, at_high = (self._phases((), batch, at) for at in (low, high))
        slopes = [(far - near) // (high - low) for near, far in zip(at_low, at_high, strict=True)]
        tokens = batch * self.queries
        fixed = [near - slope * low for near, slope in zip(at_low, slopes, strict=True)]
        works = self._spread(tokens, tokens, fixed, self._host(self._step_fs, 0, batch, low))
        layers = [(work, [0] * len(work.layers)) for work in works]
        for (_, of_layers), slope in zip(layers, slopes, strict=False):
            of_layers[0] = slope
        return DecodeLine(low, high, layers)

    def _phases(self, chunks: Sequence[Chunk], batch: int, context: int) -> list[int]:
        """The time of each of the profiles."""
        prompt, totals = sum(new for new, _ in chunks), []
        for profile in self._profiles:
            total = 0
            for phase, tokens, keys in ((profile.prefill, prompt, 0), (profile.decode, batch, context)):
                if tokens:
                    work = AggregatedWork(
                        total_flops=tokens * phase.flops + keys * phase.context_flops,
                        total_bytes=phase.constant_bytes + tokens * phase.memory_bytes + keys * phase.context_bytes,
                        dtype=self.deployment.model.dtype,
                    )
                    total += round(self._priced([work])[0] * phase.critical_path_factor)
            totals.append(total)
        return totals

    def _spread(self, tokens: int, rows: int, totals: Sequence[int], host: int) -> tuple[StageWork, ...]:
        load = StepLoad(tokens, self._rank.own(tokens), rows, "low_latency" if tokens == rows else "normal")
        if len(totals) == 1:
            each, rest = divmod(totals[0] + host, len(self.layers))
            return self._laid_out(load, dict.fromkeys(self.layers, LayerParts(each)), first=rest, last=0)
        works = self._laid_out(load, dict.fromkeys(self.layers, LayerParts(0)), first=host, last=0)
        return tuple(_adding(work, total) for work, total in zip(works, totals, strict=True))


def _adding(work: StageWork, total: int) -> StageWork:
    """A stage that computes ``total`` longer, its layers alike."""
    each, rest = divmod(total, sum(run.count for run in work.layers))
    first, *others = (replace(run, compute_fs=run.compute_fs + each) for run in work.layers)
    return replace(work, layers=(replace(first, compute_fs=first.compute_fs + rest), *others))


def exported(cost: StepCost, *, prompt: int, batch: int, context: int) -> dict[str, Any]:
    """One device's profile at a point: a prompt of ``prompt`` tokens, a batch of ``batch`` at ``context`` keys each.

    The factor is the time of the operations one after the other over the time of their sums.
    """
    prefill = _work(cost, prompt, [(prompt, 0)], 1, 0, 0)
    decode = _work(cost, batch, [], batch, batch, batch * context)
    more = _work(cost, batch, [], batch, batch, batch * (context + 1))
    twice = _work(cost, 2 * batch, [], 2 * batch, 2 * batch, 2 * batch * context)
    context_bytes = (more["bytes"] - decode["bytes"]) / batch
    context_flops = (more["flops"] - decode["flops"]) / batch
    # What doubling the batch adds, less its context, is what a token costs; the rest is read once per step
    token_bytes = max((twice["bytes"] - decode["bytes"]) / batch - context * context_bytes, 0.0)
    token_flops = (twice["flops"] - decode["flops"]) / batch - context * context_flops
    constant = max(decode["bytes"] - batch * (token_bytes + context * context_bytes), 0.0)
    return {
        "aggregated_ops": {
            "prefill": {
                "total_flops_per_prompt_token": prefill["flops"] / prompt,
                "total_memory_bytes_per_prompt_token": prefill["bytes"] / prompt,
                "critical_path_factor": prefill["factor"],
            },
            "decode": {
                "total_flops_per_token_in_batch": token_flops,
                "total_memory_bytes_per_token_in_batch": token_bytes,
                "critical_path_factor": decode["factor"],
                "constant_memory_bytes_per_iteration": constant,
                "memory_bytes_per_context_token": context_bytes,
                "flops_per_context_token": context_flops,
            },
        },
        "point": {"prompt_tokens": prompt, "batch": batch, "context_tokens": context},
        "model": cost.deployment.model.name,
        "device": cost.system.device.name,
        "layer_count": len(cost.layers),
        "tensor_parallel": cost.deployment.parallelism.tp,
    }


def export(cost: StepCost, path: Path, *, prompt: int, batch: int, context: int) -> None:
    """Writes ``exported`` to ``path``. OutputError when it cannot be written."""
    content = exported(cost, prompt=prompt, batch=batch, context=context)
    write_whole(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def _work(cost: StepCost, tokens: int, chunks: list[Chunk], rows: int, batch: int, context: int) -> dict[str, float]:
    before, after = cost.end_operations(tokens, rows)
    models = [model for _, model, _ in (*before, *after)]
    counts = [1] * len(models)
    for kind, count in Counter(cost.layers).items():
        layer = [model for _, model, _ in cost.layer_operations(kind, tokens, chunks, batch, context)]
        models += layer
        counts += [count] * len(layer)
    table = cost.estimates(models)
    one_by_one = sum(count * row.time_us for row, count in zip(table.rows(), counts, strict=True) if row is not None)
    flops = float(sum(count * (model.flops() or 0) for model, count in zip(models, counts, strict=True)))
    nbytes = float(sum(count * (model.hbm_bytes() or 0) for model, count in zip(models, counts, strict=True)))
    whole = AggregatedWork(total_flops=flops, total_bytes=nbytes, dtype=cost.deployment.model.dtype)
    summed = cost.estimates([whole]).row(0)
    return {
        "flops": flops,
        "bytes": nbytes,
        "factor": one_by_one / together if (together := summed.time_us if summed else 0.0) else 1.0,
    }


def step_cost(deployment: Deployment, profile: Profile | None = None) -> StepCost:
    """From the model's operations, or from ``profile``. UsageError for adapters, of which a profile says nothing."""
    if profile is not None and deployment.adapters is not None:
        raise UsageError("--lora needs the model's operations; omit --profile")
    return StepCost(deployment) if profile is None else ProfileCost(deployment, profile)
