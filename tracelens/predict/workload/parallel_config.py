"""How one training step is divided among ranks and computed: the options of a projection, degrees, batch, precision,
recomputation, and strides of groups; docs/projection.md says how each is modeled.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tracelens.errors import UsageError
from tracelens.files.option_fields import build_options, comma_list, integer, option, positive
from tracelens.predict.network.topology import Group
from tracelens.predict.workload.token_routing import UNIFORM, Skew
from tracelens.types.dtypes import TRAINED, DType, Precision
from tracelens.types.records import Record

#: Those of ``dtypes.TRAINED``.
PrecisionName: TypeAlias = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
Recompute: TypeAlias = Literal["none", "selective", "full"]
#: What gradients are kept and summed in.
Gradients: TypeAlias = Literal["fp32", "bf16"]
#: What Adam's two moments are kept in: Megatron's ``--exp-avg-dtype``; the master weight stays in fp32.
Moments: TypeAlias = Literal["fp32", "bf16", "fp8"]
#: What the inputs of activation functions are kept in: Megatron's ``--activation-func-fp8-input-store``.
KeptInputs: TypeAlias = Literal["bf16", "fp8"]
#: ``flash``: the framework's own kernel on that device; else a generation of it, or scores that go through memory.
Attention: TypeAlias = Literal["flash", "unfused", "fa1", "fa2", "fa3", "fa4", "cudnn"]
#: Which launches CUDA graphs replay: none, a layer's parts between host decisions, the whole step.
Graphs: TypeAlias = Literal["none", "partial", "full"]
TPOverlap: TypeAlias = Literal["none", "backward", "all"]
#: How tokens reach experts: a copy per chosen expert, or one per rank, and over the network one per node.
Dispatcher: TypeAlias = Literal["alltoall", "deepep"]
#: What selective recomputation runs again, as Megatron-LM's ``--recompute-modules`` names it, and single operations:
#: attention_out, mlp_act, mlp_down, rope.
MODULES = (
    "attention_out", "core_attn", "layernorm", "mla_up_proj", "mlp", "mlp_act", "mlp_down", "moe", "moe_act", "rope",
    "shared_experts",
)  # fmt: skip
_PARALLELISM, _COMPUTING = "parallelism", "computation"
_divided, _computed = (functools.partial(option, group=title) for title in (_PARALLELISM, _COMPUTING))
_degree = functools.partial(_divided, default=1, kind=positive, metavar="N")


def _first_and_last(text: str) -> tuple[int, int]:
    found = [part.strip() for part in text.split(",")]
    if len(found) != 2 or not all(part.isdecimal() for part in found):
        raise UsageError(f"--bf16-layers takes two layer counts, like 1,1; got {text!r}")
    return int(found[0]), int(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """One field per option, with what it means; docs/projection.md says how each is modeled."""

    tp: int = _degree("tensor-parallel ranks")
    pp: int = _degree("pipeline ranks")
    vpp: int = _degree("chunks of layers per pipeline rank")
    cp: int = _degree("context-parallel ranks")
    ep: int = _degree("expert-parallel ranks")
    etp: int = _degree("tensor-parallel ranks of each expert")
    zero: int = _divided(
        "what data-parallel replicas shard: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights (FSDP)",
        1,
        kind=int,
        choices=(0, 1, 2, 3),
    )
    shard: int | None = _divided("ranks to shard over (HSDP); default: all replicas", kind=positive, metavar="RANKS")
    sequence_parallel: bool = _divided("with --tp: run norms and residuals on all tokens on every rank", True)
    micro_batch: int = _divided("sequences per micro-batch", 1, kind=positive, metavar="SEQUENCES")
    tp_overlap: TPOverlap = option(
        "tensor-parallel collectives overlapped with GEMMs", "none", choices=get_args(TPOverlap), group=_COMPUTING
    )
    ep_overlap: bool = _computed("expert exchanges overlapped with another micro-batch's backward", False)
    precision: Precision | PrecisionName = option(
        "compute precision of GEMMs with weights", "bf16", choices=TRAINED, group=_COMPUTING
    )
    bf16_layers: tuple[int, int] = _computed(
        "number of first and last layers that compute in BF16, whatever --precision; default: none",
        (0, 0), read=_first_and_last, metavar="FIRST,LAST",
    )  # fmt: skip
    gradients: Gradients = option(
        "precision of stored and summed gradients", "fp32", choices=get_args(Gradients), group=_COMPUTING
    )
    moments: Moments = option("precision of Adam's two moments", "fp32", choices=get_args(Moments), group=_COMPUTING)
    activation_inputs: KeptInputs = option(
        "precision in which inputs of activation functions are kept for the backward pass",
        "bf16", choices=get_args(KeptInputs), group=_COMPUTING,
    )  # fmt: skip
    recompute: Recompute = option(
        "what the backward pass recomputes", "none", choices=get_args(Recompute), group=_COMPUTING
    )
    recompute_modules: tuple[str, ...] = _computed(
        f"modules to recompute with --recompute selective: {' '.join(MODULES)}; default: core_attn",
        ("core_attn",), read=comma_list, metavar="A,B",
    )  # fmt: skip
    recompute_layers: int | None = _computed(
        "with --recompute full: how many of the model's layers; default: all", kind=positive, metavar="LAYERS"
    )
    lora: int = _computed(
        "LoRA: train adapters of this rank on attention's GEMMs, all else frozen; 0: train everything",
        0, kind=int, metavar="RANK",
    )  # fmt: skip
    fused_loss: bool = _computed("cross entropy on 16-bit logits; the gradient overwrites them", False)
    offload_layers: int = _computed(
        "layers whose activations are offloaded to CPU memory; transfers count as hidden",
        0, kind=integer, metavar="LAYERS",
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


def stride(node: int, ranks: Any, near: Any) -> Any:
    """Stride of ``ranks`` ranks of which ``near`` stand in each node of ``node``."""
    return np.maximum(1, node // np.maximum(1, np.minimum(near, ranks)))


class PlacedRanks(Record, frozen=True, kw_only=True):
    """Degrees of parallelism, and how many members of each group stand in one node of ``node`` ranks.

    All but ``node`` and ``is_grid`` (SUMMA, which shares weights out among context ranks too) are ints or arrays.
    """

    node: int
    is_grid: bool
    tp: Any
    cp: Any
    dp: Any
    ep: Any
    etp: Any = 1
    near_tp: Any
    near_cp: Any
    near_dp: Any

    @property
    def copies(self) -> Any:
        """Ranks with the same dense weights."""
        return self.dp if self.is_grid else self.dp * self.cp

    @property
    def expert_copies(self) -> Any:
        """Ranks with the same experts' weights."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def tp_stride(self) -> Any:
        return stride(self.node, self.tp, self.near_tp)

    @property
    def cp_stride(self) -> Any:
        return stride(self.node, self.cp, self.near_cp)

    @property
    def dp_stride(self) -> Any:
        """Stride of the ranks with the same dense weights."""
        return stride(self.node, self.copies, self.near_dp * (1 if self.is_grid else self.near_cp))

    @property
    def ep_stride(self) -> Any:
        """Tensor ranks lie between expert ranks, unless the experts need those ranks too (folded)."""
        folded = (self.cp * self.dp) % self.ep != 0
        shared = np.where(folded, np.maximum(1, self.near_tp // self.etp), 1)
        return stride(self.node, self.ep, self.near_dp * self.near_cp * shared)

    @property
    def expert_dp_stride(self) -> Any:
        """Stride of the ranks with the same experts' weights."""
        near_experts = np.minimum(self.ep, np.maximum(1, self.node // self.ep_stride))
        near = self.near_tp * self.near_dp * self.near_cp // (self.etp * near_experts)
        return stride(self.node, self.expert_copies, near)


_CHOICES = {
    each.name: each.metadata["option"].choices
    for each in fields(TrainingOptions)
    if each.name != "zero" and each.metadata["option"].choices
}
_DEGREES = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "micro_batch", "micro_batches")


class GroupPlacement(Record, frozen=True, kw_only=True):
    """How many members of each group stand in one node of ``node`` ranks; their product is at most ``node``.

    UsageError when it is more.
    """

    node: int
    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        together = self.tp * self.cp * self.dp * self.pp
        if together > self.node or min(self.tp, self.cp, self.dp, self.pp) < 1:
            raise UsageError(
                f"placement tp {self.tp} * cp {self.cp} * dp {self.dp} * pp {self.pp} = {together} ranks of a node, "
                f"but it has {self.node}"
            )

    def group(self, ranks: int, near: int) -> Group:
        """``ranks`` ranks, ``near`` of them in each node."""
        return Group(ranks=ranks, stride=int(stride(self.node, ranks, near)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig(TrainingOptions):
    """The options of a step, and how many replicas and passes share its batch. Ranks are numbered tensor, context,
    data, pipeline: tensor ranks are neighbors.

    ``ep`` ranks and ``etp`` are taken from the ranks of a stage, tp * cp * dp. ``micro_batch`` sequences of each of
    ``micro_batches`` passes per replica. ``shard`` None: all dp * cp ranks. ``tp_overlap`` ``"backward"``: collectives
    around the gradients of column-parallel products, ``"all"``: in pieces, those that products feed and follow.
    ``summa_blocks``: products run on the grid of tp * cp ranks, which share all weights out, in so many blocks whose
    operands are broadcast along rows and columns (SUMMA, van de Geijn and Watts, 1997); None: context ranks hold the
    same weights. ``grouped`` False: experts' products one by one. ``skew``: how unequal the experts are that tokens
    choose. ``placement``: which ranks share a node, where it is not the order above. ``scales_by_row``: FP8
    as torchao's with a scale per row: tensor ranks narrow a product's input and its output's gradient after they
    gathered them, and once more by columns. ``eager_loss``: cross entropy is PyTorch's own, not compiled.
    ``fused_adapters``: products of adapters scale and add to what they stand beside.
    UsageError for degrees that do not fit each other.
    """

    sequence_parallel: bool = False
    dp: int = 1
    micro_batches: int = 1
    grouped: bool = True
    skew: Skew = UNIFORM
    placement: GroupPlacement | None = None
    summa_blocks: int | None = None
    scales_by_row: bool = False
    eager_loss: bool = False
    fused_adapters: bool = False

    def __post_init__(self) -> None:
        for name in _DEGREES:
            value = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        self._check_words()
        if len(self.bf16_layers) != 2 or any(type(count) is not int or count < 0 for count in self.bf16_layers):
            raise UsageError(f"bf16_layers must be two layer counts, like (1, 1), not {self.bf16_layers!r}")
        if self.stage_ranks % (self.ep * self.etp):
            raise UsageError(
                f"ep {self.ep} * etp {self.etp} = {self.ep * self.etp} does not divide "
                f"tp {self.tp} * cp {self.cp} * dp {self.dp} = {self.stage_ranks} ranks of a stage"
            )
        if self.shard is not None and (self.shard < 1 or self.copies % self.shard):
            raise UsageError(f"shard {self.shard} does not divide dp {self.dp} * cp {self.cp} = {self.dp * self.cp}")
        if self.summa_blocks is not None and (self.summa_blocks < 1 or self.ep * self.etp > 1):
            raise UsageError("SUMMA needs at least one block, and supports no experts")

    def _check_words(self) -> None:
        if self.offload_layers < 0:
            raise UsageError(f"offload_layers must not be negative, not {self.offload_layers}")
        if self.lora < 0:
            raise UsageError(f"lora must be the rank of adapters, at least 1, or 0; not {self.lora}")
        if self.zero not in (0, 1, 2, 3):
            raise UsageError(f"zero must be 0, 1, 2 or 3, not {self.zero}")
        for module in self.recompute_modules:
            if module not in MODULES:
                raise UsageError.unknown("module to recompute", module, MODULES)
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise UsageError.unknown(name, str(getattr(self, name)), known)

    @classmethod
    def of(cls, *, ranks: int, global_batch: int, dp: int | None = None, **fields: Any) -> ParallelConfig:
        """For ``ranks`` devices and ``global_batch`` sequences per step; ``dp`` None is what the ranks leave.
        Modules or a number of layers to recompute ask for selective or full recomputation by themselves.

        UsageError, with the product, when they do not come out even.
        """
        tp, pp, cp, micro_batch = (fields.get(name, 1) for name in ("tp", "pp", "cp", "micro_batch"))
        replicas = dp if dp is not None else max(ranks // (tp * pp * cp), 1)
        product = f"tp {tp} * pp {pp} * cp {cp} * dp {replicas} = {tp * pp * cp * replicas}"
        if tp * pp * cp * replicas != ranks:
            raise UsageError(f"{product} ranks, but the cluster has {ranks}")
        if global_batch % (micro_batch * replicas):
            raise UsageError(
                f"micro-batch {micro_batch} * dp {replicas} = {micro_batch * replicas} sequences per pass do not "
                f"divide the global batch {global_batch}"
            )
        asked = build_options(
            cls, {**fields, "dp": replicas, "micro_batches": global_batch // (micro_batch * replicas)}
        )
        if asked.recompute == "none" and asked.recompute_layers is not None:
            return replace(asked, recompute="full")
        if asked.recompute == "none" and asked.recompute_modules != cls().recompute_modules:
            return replace(asked, recompute="selective")
        return asked

    @property
    def ranks(self) -> int:
        """tp * pp * cp * dp."""
        return self.stage_ranks * self.pp

    @property
    def stage_ranks(self) -> int:
        """Ranks that hold the same layers: tp * cp * dp."""
        return self.tp * self.cp * self.dp

    @property
    def copies(self) -> int:
        """Ranks with the same dense weights."""
        return self.dp * (self.cp if self.summa_blocks is None else 1)

    @property
    def global_batch(self) -> int:
        """Sequences per step."""
        return self.micro_batch * self.micro_batches * self.dp

    @property
    def computed_in(self) -> DType:
        """What weights' products are computed in."""
        return Precision.of(self.precision).dtype

    @property
    def gradient_width(self) -> DType:
        """What gradients are kept and summed in."""
        return DType.BF16 if self.gradients == "bf16" else DType.FP32

    @property
    def optimizer_bytes(self) -> float:
        """Per parameter: the fp32 master weight and two moments."""
        return 4 + 2 * {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0}[self.moments]

    @property
    def width(self) -> DType:
        """What activations travel and are stored in."""
        return DType.FP16 if self.precision == "fp16" else DType.BF16

    @property
    def row_share(self) -> int:
        """By how many ranks tokens are divided between tensor-parallel regions."""
        return self.tp if self.sequence_parallel else 1

    def _group(self, kind: str, ranks: int, stride: int) -> Group:
        """``ranks`` ranks, ``stride`` apart where ``placement`` does not say how the group of that kind stands."""
        if self.placement is not None:
            place = self.placement
            placed = PlacedRanks(
                node=place.node, is_grid=self.summa_blocks is not None, tp=self.tp, cp=self.cp, dp=self.dp, ep=self.ep,
                etp=self.etp, near_tp=place.tp, near_cp=place.cp, near_dp=place.dp,
            )  # fmt: skip
            stride = int(getattr(placed, f"{kind}_stride"))
        return Group(ranks=ranks, stride=stride)

    @property
    def tp_group(self) -> Group:
        return self._group("tp", self.tp, 1)

    @property
    def cp_group(self) -> Group:
        return self._group("cp", self.cp, self.tp)

    @property
    def dp_group(self) -> Group:
        """Ranks with the same dense weights: data- and, but for SUMMA, context-parallel ones."""
        return self._group("dp", self.copies, self.tp * (1 if self.summa_blocks is None else self.cp))

    @property
    def shard_group(self) -> Group:
        """Ranks among which states are divided."""
        return Group(ranks=self.shard or self.copies, stride=self.dp_group.stride)

    @property
    def expert_shard_group(self) -> Group:
        """Ranks among which experts' states are divided: tensor ranks too, where these do not split experts."""
        group = self.expert_dp_group
        return group if self.shard is None else Group(ranks=min(group.ranks, self.shard), stride=group.stride)

    @property
    def replica_group(self) -> Group:
        """Ranks with the same shard; more than one in HSDP only."""
        shard = self.shard_group
        return Group(ranks=self.copies // shard.ranks, stride=shard.stride * shard.ranks)

    @property
    def ep_group(self) -> Group:
        """Tensor ranks lie between expert ranks, unless the experts need those ranks too (folded)."""
        is_folded = (self.cp * self.dp) % self.ep != 0
        return self._group("ep", self.ep, self.etp if is_folded else max(self.tp, self.etp))

    @property
    def expert_dp_group(self) -> Group:
        """Ranks with the same experts' weights."""
        ranks = self.stage_ranks // (self.ep * self.etp)
        return self._group("expert_dp", ranks, min(self.ep * self.etp, self.stage_ranks // ranks))

    @property
    def pp_group(self) -> Group:
        placed = self.placement
        return Group(ranks=self.pp, stride=self.stage_ranks) if placed is None else placed.group(self.pp, placed.pp)
