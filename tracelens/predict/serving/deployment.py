"""What is served and on what: model, precision, how a replica's devices share the work, and the engine's constants."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import math
import operator
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tracelens.backends import System
from tracelens.backends.base import hbm_peak
from tracelens.errors import InputError, UsageError
from tracelens.files.documents import FigureTable
from tracelens.files.option_fields import BACKENDS, NO_INTERVAL
from tracelens.hardware import HardwareSpec
from tracelens.predict.network.algorithms import algorithms
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.token_routing import Skew
from tracelens.types.dtypes import DType, spelled_type
from tracelens.types.records import Record

_ALL_REDUCE = "all_reduce/"
#: What an engine hides of the exchange with experts: nothing; of the dispatch, what shared experts compute meanwhile;
#: of one half of a batch, what the other half computes.
OVERLAPS = ("none", "shared-experts", "two-batch")
#: Before the step that needs them (LMCache, unless it loads layer by layer); each layer's while the one before it is
#: computed (SGLang's HiCache); or beside the steps of others (vLLM's OffloadingConnector: WAITING_FOR_REMOTE_KVS).
CACHE_LOADS = ("step", "layer", "beside")
#: Kernels of latent attention but those that a device's file has measured: ``costs.CutlassTimes``.
LATENT = ("cutlass",)
MTP_ACCEPTANCE = 0.85
#: Far above those in use; and SGLang's --max-loras-per-batch.
MOST_LORA_RANK, _USUAL_SLOTS = 1024, 8
#: Of weights that are stored with scales, the type of their elements.
_ELEMENTS = {"nvfp4": "fp4", "mxfp4": "fp4", "mxfp8": "fp8", "w8a16": "int8"}
#: Types of weights whose activations are FP16 on devices without BF16.
_HALVES = ("fp16", "int4", "w8a16")


class Parallelism(Record, frozen=True, kw_only=True):
    """How one replica's devices share the work: ``pp`` stages of ``tp`` x ``dp`` devices.

    ``tp`` shards heads and feed-forward layers, ``dp`` gives attention and dense layers different requests. The experts
    of a layer are spread over ``ep`` of the stage's devices, and sharded over the rest: each once, the first ones again
    until all devices hold as many; with ``redundant_experts`` copies and more, where the load is (EPLB). ``skew``: how
    unequal the experts are that tokens choose (None: as ``served_skew`` says); ``imbalance``, on top of it, the busiest
    device's share of the routed tokens over the mean.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    redundant_experts: int = 0
    imbalance: float = 1.0
    skew: Skew | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "ep"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.stage_devices % self.ep:
            raise UsageError(f"ep {self.ep} does not divide tp {self.tp} * dp {self.dp} = {self.stage_devices} devices")
        if self.redundant_experts < 0:
            raise UsageError(f"redundant_experts must be 0 or more, not {self.redundant_experts}")
        if not 1 <= self.imbalance < float("inf"):
            raise UsageError(f"imbalance must be at least 1 (busiest device over mean), not {self.imbalance:g}")

    @property
    def stage_devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.tp * self.dp

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.stage_devices * self.pp


class ServingPrecision(Record, frozen=True, kw_only=True):
    """Element types of weights and key-value cache; None: the model's own. Activations keep the model's type.

    ``linear``: attention's and dense layers' weights; ``experts``: the routed experts'. They are multiplied in that
    type where the device has a rate for it, else in the activations', as those of four bits and with ``is_widened``
    always are but FP4. Embedding and logits keep the model's type.
    """

    linear: DType | None = None
    experts: DType | None = None
    kv: DType | None = None
    is_widened: bool = False

    @classmethod
    def named(cls, name: str | None, model: ModelConfig) -> ServingPrecision:
        """``fp8``, ``int4`` ... as tables spell them, or None. Four bits are for the routed experts alone where a model
        has them, as gpt-oss.
        """
        if name is None:
            return cls()
        said = spelled_type(name) or name
        dtype = DType.parse(_ELEMENTS.get(said, said))
        if dtype is None or dtype.rate not in ("fp8", "fp4", "bf16", "fp16", "int8", "int4"):
            raise UsageError(f"weights must be bf16, fp16, fp8, fp4, int8 or int4, not {name!r}")
        if dtype.width_bytes < 1 and model.experts is not None:
            return cls(experts=dtype)
        return cls(linear=dtype, experts=dtype, is_widened=said == "w8a16")


class ServingResiduals(NamedTuple):
    """By which factor at most the measured times of left-out families were longer or shorter than estimated: of half of
    them, and of nine tenths. ``left_out``: which of ``LEFT_OUT``; ``rows``: how many there are.
    """

    left_out: str
    half: float
    most: float
    rows: int


#: What was left out of a fit as a whole, the next further from what was fitted. ``apart``: a server with prefill
#: replicas or wide data parallelism, fitted nowhere.
LEFT_OUT = {
    "model": "models that were left out of the fit",
    "source": "sources of measurements that were left out as a whole",
    "engine": "engines that were left out",
    "device": "devices that were left out",
    "apart": "servers with prefill replicas or wide data parallelism, which are fitted nowhere",
}
#: The most data-parallel ranks of a server that an engine's constants were fitted to.
FITTED_DP = 8


class Release(NamedTuple):
    """Since when an engine's layers and sequences take so long, on devices of one compute capability (``9.4``: gfx942)
    or, where it is empty, of all; None: as the engine.
    """

    version: str
    since: datetime.date
    compute: str
    layer_us: float
    sequence_us: float | None


def _residuals(left_out: str, table: FigureTable) -> ServingResiduals:
    half, most = table.needed_number("half"), table.needed_number("most")
    rows = table.whole("rows")
    table.finish()
    if rows is None:
        raise table.error("rows", "must be a whole number, at least 1")
    return ServingResiduals(left_out, half, most, rows)


def _release(table: FigureTable) -> Release:
    version, day, compute = (table.text(name) or "" for name in ("version", "since", "compute"))
    layer_us, sequence_us = table.needed_number("layer_us"), table.number("sequence_us")
    table.finish()
    try:
        since = datetime.date.fromisoformat(day)
    except ValueError:
        raise table.error("since", "must be a date such as 2026-01-31") from None
    return Release(version, since, compute, layer_us, sequence_us)


def compute_of(device: HardwareSpec) -> str:
    """``9.0``, as devices report it; empty where it is not known."""
    return ".".join(map(str, device.compute or ()))


class Engine(Record, frozen=True, kw_only=True):
    """A serving engine: its limits, its memory, and what a step costs beside the device's work.

    ``step_us`` is the host's time per step, ``sequence_us`` per sequence that the step decodes, ``prompt_us`` per
    prompt that it starts; in them nothing overlaps with the device. ``compute_efficiency`` and ``hbm_efficiency``
    are shares of the data sheet's peaks that replace the device file's achievable rates, ``link_efficiency`` is the
    share of the links' rates that collectives reach; None keeps those. ``device_scale`` multiplies whatever the
    backend says of an operation, ``prompt_scale`` on top of it what prompts add to a step: their share of what is
    linear in tokens, and their attention; ``request_us`` is what a request waits for in the front end before the
    scheduler sees it (HTTP), ``token_us`` for each token of its prompt (tokenization), ``handover_us`` on its way from
    a prefill replica to one that decodes, beside its cache's transfer; ``recv_interval``: the scheduler looks for
    requests at every so manieth decode step. ``layer_us`` is what launches and the host add to each layer of
    a step, ``prompt_layer_us`` in a step with prompts, which no captured graph replays (None: as much). ``releases``:
    those that were measured, oldest first. ``policy``: how it forms batches; ``quantized_kv``: the type of its cache
    beside quantized attention weights. ``overlap``: one of ``OVERLAPS``; ``cache_load``: when prefixes come back from
    host memory, one of ``CACHE_LOADS``; ``graph_batches``: the sizes of decode batches that it captured as graphs, to
    which others are padded (``1,2,4,8-64:8``: and every 8 from 8 to 64); ``expert_rows``: of how many rows the blocks
    are of which it multiplies one for each FP8 expert whatever its rows, in fused layers as slow as measured ones (0:
    only rows that there are, as fast as the products of which layers are made but in steps with prompts on one
    data-parallel rank); ``kernels``: the library whose own constants in a device's file are its kernels';
    ``pads_prompts``: data-parallel ranks pad steps with prompts to the longest, and experts compute the padding;
    ``eager_drafts``: with drafts, steps of data-parallel ``ranks`` or ``all`` take ``prompt_layer_us``;
    ``chance_ranks``: in which pools, where prompts are computed apart, a request goes to a data-parallel rank by
    chance (``none``, ``prefill``, ``both``); ``gathers``: data-parallel ranks give all tokens to ``all`` experts
    (SGLang without --moe-a2a-backend), or only where these are on no more devices than a token has experts (``few``);
    ``latent``: by which kernels it computes latent attention (``LATENT``), empty: as the device's file has them;
    ``launches_ahead``: a decode step is launched before the last one ended, so that a cache which comes then misses it;
    ``keeps_sent``: a prompt that is complete is one of its replica's sequences until its cache is where it decodes.
    ``residuals``: where measured points were beside estimates of the time per token, ``first_residuals`` of the time to
    the first one, by what was left out (``LEFT_OUT``); ``computes``, ``most_devices``: on devices of which capabilities
    points ran, and on how many at most. ``kv_tokens`` overrides the pool that is computed from ``memory_share`` of the
    device's memory less weights, activations and ``runtime_gib``. ``watermark`` is the share of the pool that admission
    leaves free. ``source`` says where the constants come from, ``fitted_model`` and ``fitted_device`` of what, where
    that is one model on one device.
    """

    name: str = "default"
    source: str = "no measurement: host time 0"
    fitted_model: str = ""
    fitted_device: str = ""
    max_num_seqs: int = 256
    max_batched_tokens: int = 2048
    block_tokens: int = 16
    kv_tokens: int | None = None
    memory_share: float = 0.9
    #: 23.6 GiB visible x 0.9 - 14.96 GiB weights - 5.05 GiB (41,408 tokens x 128 KiB, vllm_requests.csv) on an RTX 4090
    #: leave 1.2 GiB, of which activations (2,048 tokens) are about 0.2.
    runtime_gib: float = 1.0
    watermark: float = 0.01
    preemption: str = "recompute"
    step_us: float = 0.0
    sequence_us: float = 0.0
    prompt_us: float = 0.0
    compute_efficiency: float | None = None
    hbm_efficiency: float | None = None
    link_efficiency: float | None = None
    device_scale: float = 1.0
    prompt_scale: float = 1.0
    request_us: float = 0.0
    token_us: float = 0.0
    handover_us: float = 0.0
    recv_interval: int = 1
    layer_us: float = 0.0
    prompt_layer_us: float | None = None
    releases: tuple[Release, ...] = ()
    policy: str = "chunked-prefill"
    quantized_kv: str = ""
    overlap: str = ""
    cache_load: str = ""
    graph_batches: str = ""
    expert_rows: int = 0
    kernels: str = ""
    pads_prompts: bool = False
    eager_drafts: str = ""
    chance_ranks: str = ""
    gathers: str = ""
    launches_ahead: bool = False
    latent: str = ""
    keeps_sent: bool = False
    residuals: tuple[ServingResiduals, ...] = ()
    first_residuals: tuple[ServingResiduals, ...] = ()
    computes: tuple[str, ...] = ()
    most_devices: int | None = None

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.block_tokens < 1:
            raise UsageError("max_num_seqs and block_tokens must be at least 1")
        if self.recv_interval < 1:
            raise UsageError(f"recv_interval must be at least 1, not {self.recv_interval}")
        if self.max_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_batched_tokens {self.max_batched_tokens} cannot hold a token of each of max_num_seqs "
                f"{self.max_num_seqs} sequences"
            )
        if self.kv_tokens is not None and self.kv_tokens < 1:
            raise UsageError(f"kv_tokens must be at least 1, not {self.kv_tokens}")
        for name in ("memory_share", "watermark", "compute_efficiency", "hbm_efficiency", "link_efficiency"):
            share = getattr(self, name)
            if share is not None and not (0 <= share <= 1 if name == "watermark" else 0 < share <= 1):
                raise UsageError(f"{name} must be a share of at most 1, not {share:g}")
        choices = {
            "chance_ranks": ("none", "prefill", "both"), "eager_drafts": ("ranks", "all"), "latent": LATENT,
            "gathers": ("few", "all"),
        }  # fmt: skip
        for name, known in {"overlap": OVERLAPS, "cache_load": CACHE_LOADS, **choices}.items():
            if (said := getattr(self, name)) and said not in known:
                raise UsageError.unknown(name, said, known)
        captured_sizes(self.graph_batches)
        if self.preemption not in ("recompute", "swap"):
            raise UsageError(f"preemption must be recompute or swap, not {self.preemption!r}")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Engine:
        """An ``engine.toml`` as ``--calibrate`` writes it. InputError for a file that is missing or wrong."""
        table = FigureTable.of_file(Path(path), kind="engine")
        given: dict[str, Any] = {"name": Path(path).stem, "source": table.source("source")} | table.figures(cls)
        for name in ("residuals", "first_residuals"):
            parts = table.tables(name, frozenset(LEFT_OUT))
            given[name] = tuple(_residuals(left_out, part) for left_out, part in parts.items())
        given["releases"] = tuple(sorted(map(_release, table.rows("releases")), key=lambda each: each.since))
        table.finish()
        try:
            return cls(**given)
        except UsageError as error:
            raise InputError(f"{path}: {error}") from error

    def to_toml(self) -> str:
        """The file that ``load`` reads. A host time of 0 is the default and not written."""
        lines = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value and isinstance(value, str | int | float):
                lines.append(f"{item.name} = {_toml(value)}")
        return "\n".join(lines) + "\n"

    def released(self, day: datetime.date | None, device: HardwareSpec) -> Engine:
        """The engine as it was on ``day`` on such a device: the last release by then, of earlier days the first; the
        newest where the day is not known. As it is where no release was measured there.
        """
        known = [each for each in self.releases if each.compute in ("", compute_of(device))]
        if not known:
            return self
        out = [each for each in known if day is None or each.since <= day] or known[:1]
        found = out[-1]
        sequence_us = self.sequence_us if found.sequence_us is None else found.sequence_us
        return dataclasses.replace(self, layer_us=found.layer_us, sequence_us=sequence_us)

    def cached(self, precision: ServingPrecision) -> ServingPrecision:
        """``precision`` with the engine's type of cache where it names none and attention's weights are quantized."""
        if precision.kv is not None or precision.linear is None or precision.linear.width_bytes > 1:
            return precision
        return dataclasses.replace(precision, kv=DType.parse(self.quantized_kv)) if self.quantized_kv else precision

    def doubt(self, model: str, device: str) -> str | None:
        """What a reader must know of constants that were fitted to one model on one device; None of the same one."""
        fitted = (self.fitted_model, self.fitted_device)
        if not any(fitted) or fitted == (model, device):
            return None
        return (
            f"engine {self.name} was fitted on {self.fitted_model}, {self.fitted_device}, not {model}, {device}: "
            "its constants may be wrong here (30 % in one measured case)"
        )

    def tuned(self, system: System) -> System:
        """The system whose device runs the engine's kernels and reaches these efficiencies instead of its file's
        achievable rates.
        """
        device = system.device.with_kernels_of(self.kernels)
        if self.compute_efficiency is not None:
            share = self.compute_efficiency
            device = dataclasses.replace(
                device,
                matrix={
                    key: dataclasses.replace(rate, achievable_tflops_s=share * rate.peak_tflops_s)
                    for key, rate in device.matrix.items()
                },
            )
        if self.hbm_efficiency is not None and device.hbm is not None and device.hbm.peak_tb_s is not None:
            hbm = dataclasses.replace(device.hbm, achievable_tb_s=self.hbm_efficiency * device.hbm.peak_tb_s)
            device = dataclasses.replace(device, hbm=hbm)
        return dataclasses.replace(system, device=device)


@functools.cache
def captured_sizes(said: str) -> tuple[int, ...]:
    """The sizes that ``Engine.graph_batches`` says, in order. UsageError for what it cannot be."""
    found: set[int] = set()
    for part in filter(None, said.replace(" ", "").split(",")):
        matched = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}):(\d{1,5}))?", part)
        if matched is None or "0" in matched.group(1, 3):
            raise UsageError(f"graph_batches must be sizes and ranges such as 1,2,4,8-64:8, not {said!r}")
        first, last, step = matched.groups()
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return tuple(sorted(found))


def _toml(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


class Speculation(Record, frozen=True, kw_only=True):
    """Speculative decoding: ``draft_tokens`` guesses per step, each right with probability ``acceptance`` where all
    before it were; or with one by position, of which the last holds for all further ones.

    A step then yields 1 + a1 + a1 a2 + ... tokens on average, with one acceptance (1 - a^(k+1)) / (1 - a) (Leviathan et
    al., 2023, equation 1). ``draft`` is the model that guesses, None where guessing costs nothing (n-grams).
    """

    draft_tokens: int
    acceptance: float | tuple[float, ...]
    draft: ModelConfig | None = None

    def __post_init__(self) -> None:
        if self.draft_tokens < 1 or not all(0 <= each <= 1 for each in self.by_position):
            raise UsageError("speculation needs at least one draft token and an acceptance between 0 and 1")
        if isinstance(self.acceptance, tuple) and not 1 <= len(self.acceptance) <= self.draft_tokens:
            raise UsageError(
                f"{len(self.acceptance)} acceptances for {self.draft_tokens} draft tokens: give at most one each"
            )

    @classmethod
    def of_model(cls, model: ModelConfig, text: str = "mtp") -> Speculation:
        """The model's own layers that predict further tokens: ``mtp``, or ``mtp:3:0.85,0.7`` as ``parse`` reads what
        follows. More tokens than layers come from the last layer again. DeepSeek-V3's report: "between 85% and 90%" of
        the second tokens are accepted (arXiv 2412.19437, section 5.4.3). UsageError for a model without such layers.
        """
        if not model.mtp_layers:
            raise UsageError(
                f"{model.name} has no layers that predict further tokens: give --speculate TOKENS:ACCEPTANCE"
            )
        own = dataclasses.replace(model, blocks=model.mtp_blocks, mtp_layers=0, mtp_blocks="")
        tokens, _, acceptance = text.removeprefix("mtp").lstrip(":").partition(":")
        said = f"{tokens or model.mtp_layers}:{acceptance or MTP_ACCEPTANCE}"
        return dataclasses.replace(cls.parse(said), draft=own)

    @classmethod
    def parse(cls, text: str, draft: str | None = None) -> Speculation:
        """``"4:0.7"``: so many tokens, each right with that probability; ``"3:0.85,0.7"``: the first with 0.85, others
        with 0.7. ``draft`` is the name of a model.
        """
        tokens, _, said = text.partition(":")
        try:
            each = tuple(float(part) for part in said.split(","))
            acceptance = each[0] if len(each) == 1 else each
            return cls(
                draft_tokens=int(tokens), acceptance=acceptance, draft=ModelConfig.load(draft) if draft else None
            )
        except ValueError:
            raise UsageError(
                f"--speculate takes TOKENS:ACCEPTANCE, e.g. 4:0.7 or 3:0.85,0.7,0.5, not {text!r}"
            ) from None

    @property
    def by_position(self) -> tuple[float, ...]:
        """The acceptance of each draft token where all before it were accepted."""
        said = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,)
        return (*said, *said[-1:] * (self.draft_tokens - len(said)))

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step yields on average."""
        chances: Iterator[float] = itertools.accumulate(self.by_position, operator.mul)
        return 1.0 + sum(chances)


class Adapters(Record, frozen=True, kw_only=True):
    """LoRA adapters of a server: ``count`` different ones of ``rank``, of which requests choose with equal chance, and
    of which a data-parallel rank has ``slots`` in its memory, and in a batch (vLLM's ``--max-loras``).
    """

    rank: int
    count: int = 1
    slots: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MOST_LORA_RANK:
            raise UsageError(f"--lora must be a rank from 1 to {MOST_LORA_RANK}, not {self.rank}")
        if self.count < 1 or self.slots < 1:
            raise UsageError(f"--adapters and --max-loras must be at least 1, not {self.count} and {self.slots}")

    @classmethod
    def of(cls, rank: int, count: int | None, slots: int | None) -> Adapters | None:
        """None of rank 0. UsageError for a number of adapters without a rank."""
        if not rank:
            if count is not None or slots is not None:
                raise UsageError("--adapters and --max-loras need --lora RANK")
            return None
        many = 1 if count is None else count
        return cls(rank=rank, count=many, slots=min(many, _USUAL_SLOTS) if slots is None else slots)

    def met(self, sequences: int) -> int:
        """How many different ones so many requests need, rounded: those that chance leaves out are missing, and more
        than there are slots for are not taken in.
        """
        chosen = self.count * -math.expm1(sequences * math.log1p(-1 / self.count)) if self.count > 1 else 1.0
        return max(min(round(chosen), self.slots, sequences), 1) if sequences else 0


def as_served(model: ModelConfig, device: HardwareSpec, weights: str | None = None) -> ModelConfig:
    """The model with 16 bits per element where its own are FP32 or not stated, with a note that says so; in FP16 where
    ``weights`` are and the device multiplies no BF16.

    As engines take such a checkpoint by default (vLLM, ``--dtype auto``): many are published in the type of training.
    """
    is_half = "bf16" not in device.matrix and "fp16" in device.matrix
    is_told = is_half and model.dtype is DType.BF16 and spelled_type(weights or "") in _HALVES
    if model.dtype not in (None, DType.FP32) and not is_told:
        return model
    taken, stated = DType.FP16 if is_half else DType.BF16, model.dtype or "no stated type"
    why = "as the weights' type says" if is_told else "as engines do by default"
    note = f"{model.name} is of {stated}: served in {taken}, {why}"
    return dataclasses.replace(model, dtype=taken, notes=(*model.notes, note))


class Deployment(Record, frozen=True, kw_only=True):
    """A model on a system, with everything that decides how long a step takes.

    ``collective`` names the algorithm of all-reduces, None leaves the choice to the library's rule.
    """

    model: ModelConfig
    system: System
    parallelism: Parallelism = msgspec.field(default_factory=Parallelism)
    precision: ServingPrecision = msgspec.field(default_factory=ServingPrecision)
    engine: Engine = msgspec.field(default_factory=Engine)
    backend: str = BACKENDS
    collective: str | None = "ring"
    speculation: Speculation | None = None
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        known = [name.removeprefix(_ALL_REDUCE) for name in algorithms() if name.startswith(_ALL_REDUCE)]
        if self.collective is not None and self.collective not in known:
            raise UsageError.unknown("all-reduce algorithm", self.collective, known)
        if hbm_peak(self.system.device) is None:
            raise UsageError(f"{self.system.device.name} has no HBM rate: add one to its file (docs/devices.md)")

    @property
    def unscored(self) -> str | None:
        """Why no interval is known of what the engine has intervals of."""
        if self.backend != BACKENDS:
            return NO_INTERVAL
        return self.system.device.unmeasured if self.engine.residuals else None

    def spans(self, name: str, *, is_apart: bool = False, is_known: bool = False) -> ServingResiduals | None:
        """The engine's ``residuals`` or ``first_residuals`` of what the server is like, one of ``LEFT_OUT``, or of what
        is next nearer to the fit; None where the engine has none, or what is ``unscored``. ``is_apart``: it has prefill
        replicas; ``is_known``: measurements of its source were fitted.
        """
        if self.unscored:
            return None
        engine, names = self.engine, list(LEFT_OUT)
        like = "model" if is_known else "engine" if engine.name.startswith("pooled") else "source"
        if engine.computes and compute_of(self.system.device) not in engine.computes:
            like = "device"
        if is_apart or self.parallelism.dp > FITTED_DP:
            like = "apart"
        known = {each.left_out: each for each in getattr(engine, name)}
        return next((known[each] for each in names[names.index(like) :: -1] if each in known), None)

    def beyond(self, devices: int) -> str | None:
        """What no measured server of the engine had, of one on so many devices; None where there is nothing."""
        engine, device, found = self.engine, self.system.device, []
        if engine.computes and compute_of(device) not in engine.computes:
            found.append(device.label)
        if engine.most_devices and devices > engine.most_devices:
            found.append(f"{devices} devices (at most {engine.most_devices} were measured)")
        return (
            f"this server is beyond what was ever measured with such an engine: {' and '.join(found)}"
            if found
            else None
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed of the model, and of the one that guesses for it."""
        draft = None if self.speculation is None else self.speculation.draft
        return tuple(dict.fromkeys([*self.model.notes, *(draft.notes if draft is not None else ())]))
