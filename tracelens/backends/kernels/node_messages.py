"""Messages within a node by the kernels of engines and libraries: all-reduce, and the all-to-all of experts.

All-reduce has constants for each number of GPUs: on PCIe the path between four is another than that between two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelTable, Rates, Sizes, Work

#: Bytes per element of a message by the type that tables name; NVFP4 with its scales.
_WIDTHS = {"half": 2.0, "bfloat16": 2.0, "int8": 1.0, "float": 4.0, "fp8": 1.0, "nvfp4": 0.5625}
#: Messages up to here go in one packet per rank; above, in pieces that follow each other.
_PACKET = 2.0**19
_LARGEST_STEP = 2.0**23


def _widths(types: Sequence[str]) -> Sizes:
    return {
        "width": np.array([_WIDTHS.get(name, 2.0) for name in types]),
        "scaled": np.array([float(name == "nvfp4") for name in types]),
    }


def _no_work(s: Sizes, _: Case) -> Work:
    """Neither arithmetic nor HBM traffic that counts: links set the time."""
    nothing = 0.0 * s["width"]
    return Work(flops=nothing, hbm_bytes=nothing)


def _reduced(s: Sizes, rates: Rates, _: Case) -> Costs:
    n, nbytes = s["num_gpus"], s["message_size"] * s["width"]
    share = 2 * (n - 1) / n
    us = {
        "ring": share * nbytes / rates.link,
        "packets": (n - 1) * np.minimum(nbytes, _PACKET) / rates.link,
        "pieces": np.sqrt(np.minimum(nbytes, _LARGEST_STEP) / _PACKET),
        "steps": np.log2(1 + nbytes / 2.0**12),
    }
    return Costs(us)


def _exchanged(s: Sizes, rates: Rates, _: Case) -> Costs:
    """``reached``: ranks that a token's experts lie on, as evenly as can be; of which one share is its own."""
    tokens, ranks, hidden = s["num_tokens"], s["moe_ep_size"], s["hidden_size"]
    reached = np.minimum(ranks, s["topk"])
    remote = reached * (ranks - 1) / ranks
    us = {
        "sent": tokens * remote * hidden * s["width"] / rates.link,
        "combined": 2 * tokens * remote * hidden / rates.link,
        "placed": tokens * reached * hidden * (s["width"] + 2) / rates.hbm,
        "scales": s["scaled"] * tokens * reached * hidden / rates.hbm,
        "tokens": tokens / 1000,
        "steps": np.log2(ranks),
        "pairs": tokens * ranks / 1000,
    }
    return Costs(us)


CUSTOM_ALLREDUCE = KernelTable(
    name="custom-allreduce", sizes=("num_gpus", "message_size"), cases=("num_gpus",),
    described=("allreduce_dtype", _widths), groups=("num_gpus", "message_size"), work=_no_work, costs=_reduced,
)  # fmt: skip
NCCL = KernelTable(
    name="nccl", sizes=("num_gpus", "message_size"), cases=("num_gpus",), described=("nccl_dtype", _widths),
    groups=("num_gpus", "message_size"), work=_no_work, costs=_reduced,
)  # fmt: skip
TRTLLM_ALLTOALL = KernelTable(
    name="trtllm-alltoall", sizes=("num_tokens", "hidden_size", "topk", "num_experts", "moe_ep_size"),
    described=("moe_dtype", _widths), groups=("moe_ep_size", "moe_dtype"), work=_no_work, costs=_exchanged,
)  # fmt: skip
