"""What a model asks of its devices: shapes as TOML files, and the operations of a batch of tokens."""

from __future__ import annotations

from tracelens.predict.workload.batch_ops import forward_ops
from tracelens.predict.workload.layer_ops import LayerOp
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.model_shape import Experts, LatentAttention, Mamba

__all__ = ["Experts", "LatentAttention", "LayerOp", "Mamba", "ModelConfig", "forward_ops"]
