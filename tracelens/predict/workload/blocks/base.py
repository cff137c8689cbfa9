"""What a type of residual block has to say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from tracelens.errors import UsageError
from tracelens.perf_models import PerfModel
from tracelens.predict.workload.layer_ops import Batch, LayerOp
from tracelens.predict.workload.model_shape import ModelShape
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.ranks import InferenceRank, RankOp, TrainingRank
from tracelens.registry import Mark
from tracelens.types.dtypes import Precision
from tracelens.types.records import Record

T = TypeVar("T")


def needed(figure: T | None, name: str) -> T:
    """A figure of the shape, ``name``, without which a model has no such block. UsageError where it is missing."""
    if figure is None:
        raise UsageError(f"a block needs the model's {name}")
    return figure


class SentTokens(NamedTuple):
    """What an exchange with experts sends: ``tokens`` of each device, of ``hidden`` elements of ``element_bytes`` each,
    to ``topk`` of ``experts``, copies counted.
    """

    tokens: float
    hidden: int
    topk: int
    experts: int
    element_bytes: float


class Message(NamedTuple):
    """A collective ``word`` of ``nbytes`` among ``ranks`` neighbors; ``routed``: of a dispatch or combine."""

    word: str
    nbytes: float
    ranks: int
    routed: SentTokens | None = None


class Kept(Record, frozen=True, kw_only=True):
    """What the backward of a rank keeps of a micro-batch is asked for this configuration."""

    shape: ModelShape
    parallel: ParallelConfig
    sequence: int

    @property
    def tokens(self) -> float:
        """Tokens of the rank's micro-batch, all tensor ranks' together."""
        return self.parallel.micro_batch * self.sequence / self.parallel.cp

    @property
    def rows(self) -> float:
        """Tokens that the rank holds between tensor-parallel regions."""
        return self.tokens / self.parallel.row_share

    @property
    def stored(self) -> float:
        """Bytes per element of a product's input as the gradient of its weights reads it: in the products' precision,
        to which Transformer Engine quantizes before it saves. Frozen weights have none.
        """
        return 0.0 if self.parallel.lora else min(2.0, Precision.of(self.parallel.precision).width_bytes)

    @property
    def activation_input(self) -> float:
        """Bytes per element of an activation function's input."""
        return 1.0 if self.parallel.activation_inputs == "fp8" else 2.0

    def repeats(self, module: str | None) -> bool:
        """Whether the backward makes this module's tensors again."""
        return self.parallel.recompute == "selective" and module in self.parallel.recompute_modules


@dataclass(frozen=True, kw_only=True)
class BlockType(ABC):
    """A type of residual block: an object of a subclass in a module of ``predict/workload/blocks``.

    ``name``: as in Hugging Face's lists of block types. ``mixes_tokens``: it begins a layer.
    ``waits_for_host``: a pass reads token counts back.
    ``divides_on_grid``: all its products can run on a SUMMA grid. ``recompute_module``: what selective recomputation
    calls the whole block. ``table`` and ``figures``: a model file's table for this type, and the dataclass it fills;
    ``ModelShape.block_figures`` has it. ``reads``: fields of the shape without which there is no such block.
    """

    name: ClassVar[str]
    mixes_tokens: ClassVar[bool] = False
    waits_for_host: ClassVar[bool] = False
    divides_on_grid: ClassVar[bool] = False
    recompute_module: ClassVar[str | None] = None
    table: ClassVar[str | None] = None
    figures: ClassVar[type | None] = None
    reads: ClassVar[tuple[str, ...]] = ()

    letter: str

    def __init_subclass__(cls, **facts: Any) -> None:
        """What a class' header says of it: ``class Attention(BlockType, name="attention", mixes_tokens=True)``."""
        for name, value in facts.items():
            setattr(cls, name, value)

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return (Mark(kind="block", keys=(self.letter,)),)

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        """Figures that a model with such a block must have, by name; None where it has not."""
        found = {name: getattr(shape, name) for name in self.reads}
        return found if self.table is None else {self.table: self.figures_of(shape), **found}

    def figures_of(self, shape: ModelShape) -> Any:
        """What the model file's table for this type says."""
        return dict(shape.block_figures).get(self.table or "")

    @abstractmethod
    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        """The forward pass on a device that holds the whole model."""

    @abstractmethod
    def kept_bytes(self, kept: Kept) -> float:
        """What the backward keeps of a micro-batch besides the norm's input and output."""

    def on_rank(self, rank: TrainingRank, ops: Sequence[LayerOp]) -> Iterator[RankOp]:
        """Forward and backward on one rank, in the order of the forward, but the residual addition."""
        yield from rank.gather("block.gather", rank.gathered)
        for op in ops:
            yield from self.op_on_rank(rank, op)
        yield from rank.scatter("block.scatter", rank.gathered)

    def op_on_rank(self, rank: TrainingRank, op: LayerOp) -> Iterator[RankOp]:
        """Forward, dgrad and wgrad of one of ``ops``, with what goes before and after it."""
        return rank.op(op)

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        """Numbers that tensor parallelism must divide evenly."""
        return ()

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        """Fields of ``shape`` as a tensor-parallel rank of an engine has them."""
        return {}

    def cores(self, shape: ModelShape, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        """What of an engine's step depends on how tokens lie in sequences: ``b`` sequences of ``new`` tokens each after
        ``past`` cached ones. The other operations are those of ``ops`` that are no core.
        """
        return ()

    def cached_elements(self, shape: ModelShape) -> int:
        """Elements of one token in the cache of keys and values."""
        return 0

    def cached_bytes(self, shape: ModelShape, width: float) -> float:
        """Bytes that a sequence's cache grows by with each token, of ``width`` each where nothing else is said."""
        return self.cached_elements(shape) * width

    def window_bytes(self, shape: ModelShape, width: float) -> tuple[int, float]:
        """How many of a sequence's last tokens are kept, where not all are, and the bytes of each."""
        return 0, 0.0

    def state_bytes(self, shape: ModelShape, width: float) -> float:
        """Bytes that an engine keeps of a sequence however long it is: states, a convolution's last tokens."""
        return 0.0

    def messages(self, rank: InferenceRank, tokens: int) -> Iterator[Message]:
        """What an engine's devices exchange after a block of ``tokens`` new tokens."""
        if rank.tp > 1:
            yield Message("all_reduce", rank.own(tokens) * rank.shape.hidden * rank.width, rank.tp)
