"""How a training step is divided among devices and computed: the options of a projection and of ``ParallelConfig``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from tracelens.errors import UsageError
from tracelens.option_fields import comma_list, integer, option, positive
from tracelens.types.dtypes import TRAINED, Precision

#: Those of ``dtypes.TRAINED``.
PrecisionName: TypeAlias = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
Recompute: TypeAlias = Literal["none", "selective", "full"]
#: What gradients are kept and summed in.
Gradients: TypeAlias = Literal["fp32", "bf16"]
#: ``flash``: the framework's own kernel on that device; else a generation of it, or scores that go through memory.
Attention: TypeAlias = Literal["flash", "unfused", "fa1", "fa2", "fa3", "fa4", "cudnn"]
#: Which launches CUDA graphs replay: none, a layer's parts between host decisions, the whole step.
Graphs: TypeAlias = Literal["none", "partial", "full"]
TPOverlap: TypeAlias = Literal["none", "backward", "all"]
#: How tokens reach experts: a copy per chosen expert, or one per rank, and over the network one per node.
Dispatcher: TypeAlias = Literal["alltoall", "deepep"]
#: What selective recomputation runs again, as Megatron-LM's ``--recompute-modules`` names it, and single operations:
#: attention_out, mlp_act, mlp_down.
MODULES = (
    "attention_out", "core_attn", "layernorm", "mla_up_proj", "mlp", "mlp_act", "mlp_down", "moe", "moe_act",
    "shared_experts",
)  # fmt: skip

_DEGREES, _COMPUTING = "parallelism", "computation"


def _first_and_last(text: str) -> tuple[int, int]:
    found = [part.strip() for part in text.split(",")]
    if len(found) != 2 or not all(part.isdecimal() for part in found):
        raise UsageError(f"--bf16-layers takes two layer counts, like 1,1; got {text!r}")
    return int(found[0]), int(found[1])


def _degree(help: str) -> Any:  # noqa: A002
    return option(help, 1, kind=positive, metavar="N", group=_DEGREES)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """One field per option, with what it means; docs/projection.md says how each is modeled."""

    tp: int = _degree("tensor-parallel ranks")
    pp: int = _degree("pipeline ranks")
    vpp: int = _degree("chunks of layers per pipeline rank")
    cp: int = _degree("context-parallel ranks")
    ep: int = _degree("expert-parallel ranks")
    etp: int = _degree("tensor-parallel ranks of each expert")
    zero: int = option(
        "what data-parallel replicas shard: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights (FSDP)",
        1,
        kind=int,
        choices=(0, 1, 2, 3),
        group=_DEGREES,
    )
    shard: int | None = option(
        "ranks to shard over (HSDP); default: all replicas", kind=positive, metavar="RANKS", group=_DEGREES
    )
    sequence_parallel: bool = option(
        "with --tp: run norms and residuals on all tokens on every rank", True, group=_DEGREES
    )
    micro_batch: int = option("sequences per micro-batch", 1, kind=positive, metavar="SEQUENCES", group=_DEGREES)
    tp_overlap: TPOverlap = option(
        "tensor-parallel collectives overlapped with GEMMs", "none", choices=get_args(TPOverlap), group=_COMPUTING
    )
    ep_overlap: bool = option(
        "expert exchanges overlapped with another micro-batch's backward", False, group=_COMPUTING
    )
    precision: Precision | PrecisionName = option(
        "compute precision of GEMMs with weights", "bf16", choices=TRAINED, group=_COMPUTING
    )
    bf16_layers: tuple[int, int] = option(
        "number of first and last layers that compute in BF16, whatever --precision; default: none",
        (0, 0), read=_first_and_last, metavar="FIRST,LAST", group=_COMPUTING,
    )  # fmt: skip
    gradients: Gradients = option(
        "precision of stored and summed gradients", "fp32", choices=get_args(Gradients), group=_COMPUTING
    )
    recompute: Recompute = option(
        "what the backward pass recomputes", "none", choices=get_args(Recompute), group=_COMPUTING
    )
    recompute_modules: tuple[str, ...] = option(
        f"modules to recompute with --recompute selective: {' '.join(MODULES)}; default: core_attn",
        ("core_attn",), read=comma_list, metavar="A,B", group=_COMPUTING,
    )  # fmt: skip
    recompute_layers: int | None = option(
        "with --recompute full: how many of the model's layers; default: all",
        kind=positive, metavar="LAYERS", group=_COMPUTING,
    )  # fmt: skip
    lora: int = option(
        "LoRA: train adapters of this rank on attention's GEMMs, all else frozen; 0: train everything",
        0, kind=int, metavar="RANK", group=_COMPUTING,
    )  # fmt: skip
    fused_loss: bool = option("cross entropy on 16-bit logits; the gradient overwrites them", False, group=_COMPUTING)
    offload_layers: int = option(
        "layers whose activations are offloaded to CPU memory; transfers count as hidden",
        0, kind=integer, metavar="LAYERS", group=_COMPUTING,
    )  # fmt: skip
    graphs: Graphs = option(
        "which kernel launches CUDA graphs replay", "none", choices=get_args(Graphs), group=_COMPUTING
    )
    dispatcher: Dispatcher = option(
        "how tokens reach experts", "deepep", choices=get_args(Dispatcher), group=_COMPUTING
    )
    attention: Attention = option(
        "attention kernel; flash: the framework's own; unfused: scores are written to memory",
        "flash",
        choices=get_args(Attention),
        group=_COMPUTING,
    )

    def training(self) -> dict[str, Any]:
        """The fields above by name."""
        return {each.name: getattr(self, each.name) for each in fields(TrainingOptions)}
