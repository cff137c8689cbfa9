"""The operations of a batch of tokens on one device that holds the whole model, as perf models.

Shapes follow the usual implementations: fused query-key-value and gate-up projections, experts as grouped GEMMs. Left
out are operations that neither multiply matrices nor hold weights: rotary embedding, residual additions, the token
permutation around experts, the loss.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tracelens.workload.blocks import DENSE_LAYER, block_ops, last_residual_ops
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import ModelShape


def forward_ops(config: ModelShape, *, batch: int, sequence: int) -> tuple[LayerOp, ...]:
    """Embedding, blocks and logits for ``batch`` sequences of ``sequence`` tokens, equal blocks counted together."""
    made = Batch(shape=config, batch=batch, sequence=sequence)
    ops = [*made.embedding()]
    for letter, count in Counter(config.blocks).items():
        ops += [replace(op, count=op.count * count) for op in block_ops(made, letter)]
    return (*ops, *last_residual_ops(made), *made.head())


def further_token_ops(config: ModelShape, *, batch: int, sequence: int) -> tuple[LayerOp, ...]:
    """What predicting further tokens adds to a training step: per layer a projection of hidden state and embedding
    together, ``mtp_blocks``, and the logits once more (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    if not config.mtp_layers:
        return ()
    made = Batch(shape=config, batch=batch, sequence=sequence)
    ops = [
        made.norm("mtp.embedding_norm"),
        made.norm("mtp.hidden_norm"),
        made.linear("mtp.projection", config.hidden, 2 * config.hidden),
        *(replace(op, name=f"mtp.{op.name}") for letter in config.mtp_blocks for op in block_ops(made, letter)),
        made.norm("mtp.final_norm"),
        replace(made.logits(tied=True), name="mtp.logits"),
    ]
    return tuple(replace(op, count=op.count * config.mtp_layers) for op in ops)


def vision_ops(config: ModelShape, *, images: int, patches: int) -> tuple[LayerOp, ...]:
    """The vision tower on ``images`` of ``patches`` patches each; nothing without a tower."""
    tower = config.vision
    if tower is None:
        return ()
    shape = replace(
        _AS_TEXT, hidden=tower.hidden, ffn=tower.ffn, q_heads=tower.heads, kv_heads=tower.heads,
        head_dim=tower.head_dim, gated=tower.gated, qk_norm=tower.qk_norm, post_norms=tower.post_norms,
        norm=tower.norm, norm_bias=tower.norm == "layer" and tower.bias,
        qkv_bias=tower.bias, out_bias=tower.bias, mlp_bias=tower.bias, dtype=config.dtype,
        positions=tower.positions, bidirectional=True,
    )  # fmt: skip
    made = Batch(shape=shape, batch=images, sequence=patches)
    layer = [op for letter in DENSE_LAYER for op in block_ops(made, letter)]
    ops = [
        made.linear("patches", tower.hidden, tower.patch_elements, bias=tower.bias),
        *(op for op in made.embedding() if op.name == "positions"),
        *(replace(op, count=op.count * tower.layers) for op in layer),
    ]
    tokens = Batch(shape=shape, batch=images, sequence=max(patches // tower.merged, 1))
    projected: list[LayerOp] = [made.norm("projector.norm")]
    width = tower.hidden if tower.projector == 0 else tower.projector
    if tower.projector:
        projected.append(tokens.linear("projector.in", width, tower.hidden * tower.merged, bias=tower.bias))
    projected.append(tokens.linear("projector.out", tower.out, width, bias=tower.bias and tower.projector > 0))
    ops += [replace(op, count=op.count * (1 + tower.taps)) for op in projected]
    return tuple(replace(op, name=f"vision.{op.name}") for op in ops)


#: What a tower's layers have in common with a decoder's.
_AS_TEXT = ModelShape(blocks=DENSE_LAYER, hidden=1, vocab=0, q_heads=1, kv_heads=1)
