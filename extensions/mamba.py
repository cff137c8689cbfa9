"""Mamba and its causal convolution (Dao-AILab ``causal_conv1d``, state-spaces ``mamba_ssm``)."""

from __future__ import annotations

from tracelens import CategoryOf, OpSignature, SignatureError, traced_as
from tracelens.perf_models import CausalConv1d, CausalConv1dBackward, MambaChunkScan, bind
from tracelens.perf_models.base import with_fields_of


@traced_as("DaoAILab::_causal_conv1d_bwd_cpp")
def _conv_backward(op: OpSignature) -> CausalConv1dBackward:
    """(x [b,c,l], weight [c,k], bias, dout, ...)."""
    return with_fields_of(_read(op, 1), CausalConv1dBackward)


def _read(op: OpSignature, weight: int) -> CausalConv1d:
    b, channels, *length = op.shape(0)
    rows, width = op.shape(weight, rank=2)
    if rows != channels:
        raise SignatureError(f"{op.name}: {channels} channels and a weight of {rows}")
    return CausalConv1d(
        b=b,
        channels=channels,
        length=length[0] if length else 1,
        width=width,
        bias=op.has(weight + 1),
        dtype=op.dtype(0),
    )


@traced_as("MambaSplitConv1dScanCombinedFn")
def _chunk_scan(op: OpSignature) -> MambaChunkScan:
    """(zxbcdt [b,t,w], conv weight [cc,dc], conv bias, dt_bias [h], A, D, chunk_size, ..., headdim, ngroups, ...).

    The head size and the number of groups stand at 15 and 16 where one argument before them was not recorded, else at
    16 and 17. ``w = 2*h*p + 2*g*n + h`` gives the state size n.
    """
    b, tokens, width = op.shape(0, rank=3)
    conv_channels, conv_width = op.shape(1, rank=2)
    heads, chunk = op.shape(3, rank=1)[0], op.literal(6)
    for at in (15, 16):
        head_dim, groups = op.literal(at), op.literal(at + 1)
        if not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in (chunk, head_dim, groups)):
            continue
        states = width - 2 * heads * head_dim - heads
        if states > 0 and states % (2 * groups) == 0:
            return MambaChunkScan(
                b=b,
                tokens=tokens,
                width=width,
                conv_channels=conv_channels,
                conv_width=conv_width,
                heads=heads,
                head_dim=head_dim,
                state=states // (2 * groups),
                groups=groups,
                chunk=chunk,
                dtype=op.dtype(0),
            )
    raise SignatureError(f"{op.name}: the chunk, head size and groups were not recorded")


#: The gradient of the output does not show the state's size.
CHUNK_SCAN_BACKWARD = CategoryOf(category="SSM_bwd", names=("MambaSplitConv1dScanCombinedFnBackward",))


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    # (x [b,c,l], weight [c,k], bias, ...)
    bind(_read, "DaoAILab::_causal_conv1d_fwd_cpp", weight=1),
    # (x [b,c] or [b,c,l], conv_state, weight [c,k], bias, ...): the state is left out
    bind(_read, "DaoAILab::_causal_conv1d_update_cpp", weight=2),
)  # fmt: skip
