"""The operations of a batch of tokens on one device that holds the whole model, as perf models.

Shapes follow the usual implementations: fused query-key-value and gate-up projections, experts as grouped GEMMs. Left
out are operations that neither multiply matrices nor hold weights: rotary embedding, residual additions, the token
permutation around experts, the loss.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tracelens.workload.blocks import block_types
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import ModelShape


def forward_ops(config: ModelShape, *, batch: int, sequence: int) -> tuple[LayerOp, ...]:
    """Embedding, blocks and logits for ``batch`` sequences of ``sequence`` tokens, equal blocks counted together."""
    made, types = Batch(shape=config, batch=batch, sequence=sequence), block_types()
    ops = [*made.embedding()]
    for letter, count in Counter(config.blocks).items():
        ops += [replace(op, count=op.count * count) for op in types[letter].ops(made)]
    return (*ops, *made.head())


def further_token_ops(config: ModelShape, *, batch: int, sequence: int) -> tuple[LayerOp, ...]:
    """What predicting further tokens adds to a training step: per layer a projection of hidden state and embedding
    together, ``mtp_blocks``, and the logits once more (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    if not config.mtp_layers:
        return ()
    made, types = Batch(shape=config, batch=batch, sequence=sequence), block_types()
    ops = [
        made.norm("mtp.embedding_norm"),
        made.norm("mtp.hidden_norm"),
        made.linear("mtp.projection", config.hidden, 2 * config.hidden),
        *(replace(op, name=f"mtp.{op.name}") for letter in config.mtp_blocks for op in types[letter].ops(made)),
        made.norm("mtp.final_norm"),
        replace(made.logits(tied=True), name="mtp.logits"),
    ]
    return tuple(replace(op, count=op.count * config.mtp_layers) for op in ops)
