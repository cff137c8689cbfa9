"""Writes recorded_autograd.json: what PyTorch records for calls of autograd functions written in Python.

``PYTHONPATH=. python tests/extensions/record_autograd.py`` with PyTorch installed, on any CPU. The functions have the
names and the argument orders of Megatron-LM's and Primus-Turbo's token exchanges and do no communication: what is
recorded of a call depends on its arguments alone. Forward and backward are recorded, in order of time.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

PAGE = Path(__file__).with_name("recorded_autograd.json")
KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Sequence number", "Fwd thread id")
TOKENS, RECEIVED, HIDDEN, TOP_K, EXPERTS, LOCAL = 512, 1408, 7168, 8, 64, 8


class Group:
    """Stands for a process group, or a buffer: an object that no trace records."""


def function(name: str, forward: Callable[..., Any], gradients: Callable[..., Any]) -> type[torch.autograd.Function]:
    """An autograd function of that name; ``gradients`` of the shapes that ``ctx.shapes`` holds."""

    def run(ctx: Any, *given: Any) -> Any:
        ctx.given = len(given)
        return forward(*given)

    def backward(ctx: Any, *given: Any) -> Any:
        made = gradients(*given)
        return (*made, *(None for _ in range(ctx.given - len(made))))

    return type(name, (torch.autograd.Function,), {"forward": staticmethod(run), "backward": staticmethod(backward)})


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def dispatched(*_: Any) -> Any:
    """Rows that arrived, their choices and weights, the rows per expert, a handle."""
    counts = torch.zeros(LOCAL, dtype=torch.long)
    return bf16(RECEIVED, HIDDEN), torch.zeros(RECEIVED, TOP_K), counts, (1, 2)


def permuted(*_: Any) -> Any:
    return bf16(RECEIVED, HIDDEN), torch.zeros(RECEIVED), torch.zeros(LOCAL, dtype=torch.long), (1, 2)


def of_dispatch(*_: Any) -> Any:
    return bf16(TOKENS, HIDDEN), None, torch.zeros(TOKENS, TOP_K)


def of_pair(*_: Any) -> Any:
    return None, None, torch.zeros(TOKENS, TOP_K)


def of_hybrid(*_: Any) -> Any:
    return bf16(TOKENS, HIDDEN), None, torch.zeros(TOKENS, EXPERTS)


def combined(*_: Any) -> Any:
    return bf16(TOKENS, HIDDEN)


def of_combine(*_: Any) -> Any:
    return (bf16(RECEIVED, HIDDEN),)


def exchange(
    dispatch: str, combine: str, given: tuple[Any, ...], after: tuple[Any, ...], *, hybrid: bool = False
) -> None:
    """One layer: dispatch, something between, combine, and the way back."""
    is_pair = isinstance(given[0], tuple)
    gradients = of_hybrid if hybrid else of_pair if is_pair else of_dispatch
    rows, *_, handle = function(dispatch, permuted if hybrid else dispatched, gradients).apply(*given)
    back = function(combine, combined, of_combine).apply(
        rows * 1, *(handle if part is HANDLE else part for part in after)
    )
    back.sum().backward()


HANDLE = object()


def cases() -> dict[str, Callable[[], None]]:
    indices, weights = torch.zeros(TOKENS, TOP_K, dtype=torch.long), torch.zeros(TOKENS, TOP_K, requires_grad=True)
    x = bf16(TOKENS, HIDDEN).requires_grad_()
    pair = (torch.zeros(TOKENS, HIDDEN).to(torch.float8_e4m3fn), torch.zeros(TOKENS, HIDDEN // 128))
    chosen = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool)
    dense = torch.zeros(TOKENS, EXPERTS, requires_grad=True)
    group = Group()
    primus = (indices, weights, EXPERTS, group, True, False, 0)
    deep_ep = (indices, weights, EXPERTS, False, False, True, 0)
    q = bf16(128, 2, 16, 64).requires_grad_()

    def rope() -> None:
        rotated = function("FusedRoPEFunc", lambda t, *_: t * 1, lambda dy: (dy * 1,))
        rotated.apply(q, torch.zeros(128, 1, 1, 64), "sbhd", False, None, 1, 0).sum().backward()

    def grouped() -> None:
        made = function(
            "GroupedGemmFunc", lambda a, b, *_: bf16(RECEIVED, 2 * HIDDEN), lambda dy: (bf16(RECEIVED, HIDDEN),)
        )
        lengths = torch.zeros(LOCAL, dtype=torch.long)
        a = bf16(RECEIVED, HIDDEN).requires_grad_()
        made.apply(
            a, bf16(LOCAL, 2 * HIDDEN, HIDDEN), lengths, lengths, True, torch.bfloat16, {"format": "e4m3"}
        ).sum().backward()

    return {
        "megatron": lambda: exchange(
            "FusedDispatch", "FusedCombine", (x, indices, weights, EXPERTS, group, True, True), (group, HANDLE, True, True)
        ),
        "megatron_hybrid": lambda: exchange(
            "HybridEPDispatch", "HybridEPCombine",
            (x, chosen, dense, group, LOCAL, 32, 32, None, None, False, None, 128, 108), (HANDLE, None, 128, False),
            hybrid=True,
        ),
        "primus": lambda: exchange("MoEDispatch", "MoECombine", (x, *primus), (group, HANDLE, True, False)),
        "primus_fp8": lambda: exchange("MoEDispatch", "MoECombine", (pair, *primus), (group, HANDLE, True, False)),
        "deep_ep": lambda: exchange("DeepEPDispatch", "DeepEPCombine", (x, *deep_ep), (HANDLE, False, False)),
        "deep_ep_fp8": lambda: exchange("DeepEPDispatch", "DeepEPCombine", (pair, *deep_ep), (HANDLE, False, False)),
        "rope": rope,
        "grouped_gemm": grouped,
    }  # fmt: skip


def recorded(calls: Callable[[], None]) -> list[dict[str, Any]]:
    """The autograd functions' own events, by start."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        calls()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    own = [e for e in events if e.get("cat") == "cpu_op" and e["name"][0].isupper() and "Backward0" not in e["name"]]
    first = min(e["args"]["Sequence number"] for e in own)
    rows = []
    for event in sorted(own, key=lambda e: e["ts"]):
        args = {key: event["args"][key] for key in KEYS if key in event["args"]}
        rows.append({"name": event["name"], **args, "Sequence number": args["Sequence number"] - first})
    return rows


def main() -> None:
    lines = []
    for name, calls in cases().items():
        events = ",\n".join("  " + json.dumps(event) for event in recorded(calls))
        lines.append(f"{json.dumps(name)}: [\n{events}\n]")
    version = json.dumps({"PyTorch": torch.__version__})
    PAGE.write_text(f'{{\n"recorded with": {version},\n' + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
