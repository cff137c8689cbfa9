"""What a model asks of its devices: shapes as TOML files, and the operations of a batch of tokens."""

from tracelens.workload.layers import LayerOp, forward_ops
from tracelens.workload.model_config import (
    Experts,
    FlopsPerToken,
    LatentAttention,
    Mamba,
    ModelConfig,
    ParameterCount,
)

__all__ = [
    "Experts",
    "FlopsPerToken",
    "LatentAttention",
    "LayerOp",
    "Mamba",
    "ModelConfig",
    "ParameterCount",
    "forward_ops",
]
