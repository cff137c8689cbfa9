"""What a projection and a search can be asked, as keywords and as options of the command."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from tracelens.errors import UsageError
from tracelens.files import option_fields
from tracelens.files.option_fields import BACKENDS, comma_list, duration_in, option, positive
from tracelens.predict.workload.parallel_config import PrecisionName, TrainingOptions
from tracelens.types.units import count

if TYPE_CHECKING:
    from tracelens.predict.projection.overheads import Software
    from tracelens.predict.workload.model_config import ModelConfig


#: Titles of groups of options.
_COSTS, PUBLISHED, SWEPT = "costs", "published model", "sweep and plots"
_cost = functools.partial(option, group=_COSTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectOptions(TrainingOptions):
    """What ``tracelens.project`` takes besides a model and a cluster. ``software``: constants that fields change."""

    nodes: int | None = option("whole nodes of the cluster", kind=positive, metavar="N")
    gpus: int | None = option("number of GPUs, instead of --nodes", kind=positive, metavar="N")
    sequence: int = option("tokens per sequence", 4096, kind=positive, metavar="TOKENS")
    document: int | None = option(
        "tokens per packed document; default: one document per sequence", kind=positive, metavar="TOKENS"
    )
    global_batch: int | None = option(
        "sequences per step; default: 8 micro-batches per replica, or 8 per GPU where the split is chosen",
        kind=positive,
        metavar="SEQUENCES",
    )
    fsdp_overlap: str | None = option(
        "hidden share of FSDP transfers, 0.93 or 90,24,34 (forward gather, backward gather, scatter); "
        "default: from the timeline",
        metavar="SHARE",
    )
    straggler: str | None = option("slow one GPU down by this factor, e.g. 1.15 or 3:1.15", metavar="[STAGE:]FACTOR")
    sequential_experts: bool = option("one GEMM per expert instead of a grouped GEMM", False)
    skew: str = option_fields.skew_of_experts("uniform")
    schedule: str | None = option(
        "pipeline schedule: 1f1b, zb-v, ...; default: 1f1b, interleaved with --vpp", metavar="NAME"
    )
    backend: str = option_fields.cost_model(BACKENDS, group=_COSTS)
    gpu_clock_mhz: float | None = option_fields.gpu_clock_mhz(group=_COSTS)
    power_w: float | None = _cost(
        "power limit per GPU, which lowers its clock", kind=float, metavar="W", flags=("--power",), also=("power",)
    )
    pue: float | None = option_fields.pue(group=_COSTS)
    price_per_kwh: float | None = option_fields.price_per_kwh(group=_COSTS)
    co2_per_kwh: float | None = option_fields.co2_per_kwh(group=_COSTS)
    framework: str | None = option_fields.framework(group=_COSTS)
    host_us: float | None = _cost(
        "host time per launched op; default: the framework's", kind=duration_in("us"), metavar="US"
    )
    gemm_factor: float | None = _cost(
        "factor on the time of GEMMs; default: the framework's",
        kind=float, metavar="X", old_flags=("--products-factor",), also=("products_factor",),
    )  # fmt: skip
    attention_factor: float | None = _cost(
        "factor on the time of attention; default: the framework's", kind=float, metavar="X"
    )
    memory_factor: float | None = _cost(
        "factor on the time of memory-bound ops; default: the framework's", kind=float, metavar="X"
    )
    software: Software | None = None

    def unread(self, model: ModelConfig) -> Iterator[str]:
        """Options that were set and that this step does not read, with the reason; names as on the command line."""
        default = ProjectOptions()
        for reason, is_so, names in (
            ("one pipeline stage", self.pp == 1, ("vpp", "schedule")),
            ("one tensor-parallel rank", self.tp == 1, ("tp_overlap", "sequence_parallel")),
            ("a model without experts", model.experts is None, _OF_EXPERTS),
            ("one expert-parallel rank", model.experts is not None and self.ep == 1, ("ep_overlap", "dispatcher")),
            (f"all layers compute in {self.precision}", str(self.precision) in ("bf16", "fp16"), ("bf16_layers",)),
            ("no FSDP, which is --zero 3", self.zero != 3, ("fsdp_overlap",)),
            ("full recomputation", self.recompute == "full", ("recompute_modules",)),
        ):
            flags = [
                "--no-sequence-parallel" if name == "sequence_parallel" else f"--{name.replace('_', '-')}"
                for name in names
                if getattr(self, name) != getattr(default, name)
            ]
            if is_so and flags:
                yield f"not read: {', '.join(flags)} ({reason})"


#: For the context, communication buffers and fragmentation, which a count of tensors does not have: a fastest split
#: otherwise fills 93 to 99 % of the memory.
HEADROOM = 0.06
_OF_EXPERTS = ("ep", "etp", "ep_overlap", "dispatcher", "sequential_experts", "skew")


#: 1d: tensor parallel with sequence parallel. 2d: SUMMA. 2d-seqp: tensor parallel times context parallel.
Strategy: TypeAlias = Literal["1d", "2d", "2d-seqp"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
#: What training frameworks run: a default must be a step that a user can start.
IN_FRAMEWORKS: tuple[Strategy, ...] = ("1d", "2d-seqp")
RuleSet: TypeAlias = Literal["corrected", "paper", "repaired"]
PaperAttention: TypeAlias = Literal["fused", "unfused", "recomputed", "summa"]
Objective: TypeAlias = Literal["time", "cost", "energy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What ``tracelens.search`` takes besides a model and a cluster. Texts are read as the command's are."""

    gpus: int | Collection[int] | str | None = option("device counts; N..M doubles from N", metavar="N|N..M|N,M")
    max_gpus: int | None = option("largest device count; without --gpus: 1, 2, 4 ... N", kind=positive, metavar="N")
    global_batch: int = option("sequences per step", MISSING, kind=positive, metavar="SAMPLES")
    strategy: Strategy | Literal["all"] | None = option(
        "how tensors are split; default: 1d and 2d-seqp, as in training frameworks; all with published rules",
        choices=(*STRATEGIES, "all"),
    )
    sequence: int | None = option(
        "tokens per sequence; default: the model's own, else 4096", kind=positive, metavar="TOKENS"
    )
    precision: Sequence[PrecisionName] = option(
        "precisions to search: bf16, fp16, fp8, mxfp8, nvfp4; default: bf16", ("bf16",), read=comma_list, metavar="P,P"
    )
    rules: RuleSet = option("cost model of a configuration", "corrected", choices=get_args(RuleSet), group=PUBLISHED)
    attention: PaperAttention = option(
        "attention of --rules paper and repaired; unfused: scores in memory; recomputed: scores computed again for "
        "the backward; summa: scores on the 2d grid",
        "fused", choices=get_args(PaperAttention), group=PUBLISHED,
    )  # fmt: skip
    backend: str = option_fields.cost_model(BACKENDS, group=_COSTS)
    framework: str | None = option_fields.framework(group=_COSTS)
    top: int = option("results per device count and strategy", 10, kind=positive, metavar="N")
    fix: Mapping[str, Any] | Sequence[str] = option(
        "fix a dimension, e.g. tp=8, zero=1, recompute=none; repeatable", (), repeat=True, metavar="NAME=VALUE"
    )
    forbid: Collection[str] = option("keep a dimension at 1, e.g. pp; repeatable", (), repeat=True, metavar="NAME")
    memory_headroom: float | None = option(
        f"share of device memory to leave free; default: {HEADROOM:g}, with published --rules 0",
        kind=float, metavar="SHARE",
    )  # fmt: skip
    objective: Objective = option(
        "what to minimize; energy: modelled, else at the devices' power limit", "time", choices=get_args(Objective)
    )
    price_per_gpu_hour: float | None = option_fields.price_per_gpu_hour()

    def headroom(self) -> float:
        """The share of memory that stays free."""
        if self.memory_headroom is not None:
            return self.memory_headroom
        return HEADROOM if self.rules == "corrected" else 0.0

    def strategies(self) -> tuple[Strategy, ...]:
        """The strategies to search."""
        if self.strategy is None:
            return IN_FRAMEWORKS if self.rules == "corrected" else STRATEGIES
        return STRATEGIES if self.strategy == "all" else (self.strategy,)

    def device_counts(self) -> tuple[int, ...]:
        """``gpus`` that are no more than ``max_gpus``. UsageError where there is none."""
        asked, most = self.gpus, self.max_gpus
        if asked is None and most is None:
            raise UsageError("give --gpus or --max-gpus")
        if isinstance(asked, int):
            return (asked,)
        if asked is not None and not isinstance(asked, str):
            return tuple(asked)
        text = asked or f"1..{most}"
        counts = [n for n in _counted(text) if most is None or n <= most]
        if not counts or min(counts) < 1:
            raise UsageError(f"--gpus takes 512, 512,1024 or 4..16384 (doubling), all at least 1; got {text!r}")
        return tuple(counts)

    def fixed(self) -> dict[str, Any]:
        """``fix`` by name. UsageError for what is no NAME=VALUE."""
        if isinstance(self.fix, Mapping):
            return dict(self.fix)
        fixed: dict[str, Any] = {}
        for item in (part for text in self.fix for part in text.split(",")):
            name, equals, value = (part.strip() for part in item.partition("="))
            if not equals or not name or not value:
                raise UsageError(f"--fix takes NAME=VALUE, like tp=8; got {item!r}")
            fixed[name] = int(value) if value.isdecimal() else value
        return fixed


def _counted(text: str) -> list[int]:
    first, dots, last = text.partition("..")
    try:
        if not dots:
            return [count(n) for n in text.split(",")]
        n, most = count(first), count(last)
    except UsageError:
        return []
    return [n << step for step in range(max(most, 1).bit_length()) if n << step <= most] if n > 0 else []
