"""Writes recorded_aten.json: what PyTorch records for a call of each ATen op that the core binds.

``PYTHONPATH=. python tests/perf_models/record_aten.py`` with PyTorch and expecttest installed, on any CPU. Most calls are
the sample inputs of PyTorch's own operator database, forward and backward; the others stand in ``by_hand``. Ops of a device
that is not there are called on meta tensors, or on CPU tensors that want a gradient: they are
recorded, then refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracelens.errors import SignatureError
from tracelens.perf_models import bindings
from tracelens.types.signature import OpSignature, freeze

PAGE = Path(__file__).with_name("recorded_aten.json")
KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
#: As many distinct calls of an op are looked at, none longer than this.
MOST, LONGEST = 6, 900
FAMILIES_LEFT_OUT = ("linalg", "fft", "special", "signal", "svd", "masked", "sparse", "lobpcg", "eig")


class Recorder:
    """Collects the distinct recorded arguments of the wanted ops."""

    def __init__(self) -> None:
        self.wanted = {name for name in bindings() if name.startswith("aten::")}
        self.found: dict[str, list[list[Any]]] = {}

    def run(self, calls: Callable[[], object]) -> None:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded, contextlib.suppress(Exception):
            calls()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            recorded.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        for event in events:
            args = event.get("args", {})
            if event.get("cat") == "cpu_op" and event["name"] in self.wanted and args.get("Input Dims"):
                call, calls_so_far = [args.get(key) for key in KEYS], self.found.setdefault(event["name"], [])
                if call not in calls_so_far and len(calls_so_far) < MOST and len(json.dumps(call)) < LONGEST:
                    calls_so_far.append(call)


def signature(name: str, call: list[Any]) -> OpSignature:
    """The recorded arguments as a trace gives them."""
    dims, types, strides, scalars = call
    texts = tuple(str(value) for value in scalars)
    return OpSignature(name=name, shapes=freeze(dims), dtypes=tuple(types), strides=freeze(strides), scalars=texts)


def worth(name: str, call: list[Any]) -> tuple[int, int]:
    """How much a binding makes of a call; shorter ones are better."""
    points = 0
    with contextlib.suppress(SignatureError):
        model = bindings()[name].target(signature(name, call))
        if model is not None:
            points = 1 + 3 * bool(model.flops()) + 5 * bool(model.hbm_bytes())
    return points + min(2, sum(len(shape) > 1 for shape in call[0])), -len(json.dumps(call))


def database(recorder: Recorder) -> None:
    from torch import Tensor, float32
    from torch.testing._internal import common_methods_invocations as database

    lists = [getattr(database, f"foreach_{kind}_op_db") for kind in ("unary", "binary", "pointwise", "reduce", "other")]
    for op in itertools.chain(database.op_db, *lists):
        if any(word in op.name for word in FAMILIES_LEFT_OUT):
            continue

        def calls(op: Any = op) -> None:
            for sample in itertools.islice(op.sample_inputs("cpu", float32, requires_grad=op.supports_autograd), 3):
                out = op.op(sample.input, *sample.args, **sample.kwargs)
                first = out[0] if isinstance(out, tuple | list) and out else out
                if isinstance(first, Tensor) and first.requires_grad:
                    first.sum().backward()
                if op.inplace_variant is not None:
                    x = sample.input
                    copies = [t.detach().clone() for t in x] if isinstance(x, list) else x.detach().clone()
                    op.inplace_variant(copies, *sample.args, **sample.kwargs)

        recorder.run(calls)


def by_hand(device: str, grad: bool) -> tuple[Callable[[], object], ...]:
    import torch
    from torch.nn import functional

    A = torch.ops.aten

    def t(*shape: int, dtype: Any = torch.float32, wants: bool = grad) -> Any:
        made = torch.zeros(shape, dtype=dtype, device=device)
        return made.requires_grad_(wants and dtype.is_floating_point)

    def f(*shape: int) -> Any:
        return torch.zeros(shape, device=device)

    def i(*shape: int) -> Any:
        return torch.zeros(shape, device=device, dtype=torch.int64)

    x2, x4, q, rows = t(4, 8), t(2, 4, 8, 8), t(2, 4, 16, 8), t(2, 16, 4, 8)
    c, seed, w4, grouped = f(4), i(), t(6, 4, 3, 3), t(4, 1, 3, 3)
    adam = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
    sgd = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False}
    return (
        lambda: A.__and__.Tensor(i(4, 8), i(4, 8)),
        lambda: A.__or__.Tensor(i(4, 8), i(4, 8)),
        lambda: i(4, 8).bitwise_xor_(i(4, 8)),
        lambda: torch._amp_foreach_non_finite_check_and_unscale_([f(4, 8), f(8)], f(1), f(1)),
        lambda: A._batch_norm_no_update(x4, c, c, c, c, 0.1, 1e-5),
        lambda: A._native_batch_norm_legit_no_training(x4, c, c, c, c, 0.1, 1e-5),
        lambda: A.cudnn_batch_norm(x4, t(4), t(4), c, c, True, 0.1, 1e-5),
        lambda: A.miopen_batch_norm(x4, t(4), t(4), c, c, True, 0.1, 1e-5),
        lambda: A.cudnn_batch_norm_backward(x4, x4, t(4), c, c, c, c, 1e-5, f(8).to(torch.uint8)),
        lambda: A.miopen_batch_norm_backward(x4, x4, t(4), c, c, c, c, 1e-5),
        lambda: torch.concat([x2, x2]),
        lambda: A._conj_physical(f(4, 8).to(torch.complex64)),
        lambda: A._conv_depthwise2d(x4, grouped, [3, 3], t(4), [1, 1], [1, 1], [1, 1]),
        lambda: A.conv_depthwise3d(t(2, 4, 8, 8, 8), t(4, 1, 3, 3, 3), [3] * 3, t(4), [1] * 3, [1] * 3, [1] * 3),
        lambda: A.cudnn_convolution(x4, w4, [1, 1], [1, 1], [1, 1], 1, False, False, True),
        lambda: A.cudnn_convolution_transpose(
            x4, t(4, 6, 3, 3), [1, 1], [0, 0], [1, 1], [1, 1], 1, False, False, True
        ),
        lambda: A.cudnn_convolution_relu(x4, w4, t(6), [1, 1], [1, 1], [1, 1], 1),
        lambda: A.miopen_convolution(x4, w4, t(6), [1, 1], [1, 1], [1, 1], 1, False, False),
        lambda: A.miopen_convolution_transpose(
            x4, t(4, 6, 3, 3), t(6), [1, 1], [0, 0], [1, 1], [1, 1], 1, False, False
        ),
        lambda: A.miopen_convolution_relu(x4, w4, t(6), [1, 1], [1, 1], [1, 1], 1),
        lambda: A.miopen_depthwise_convolution(x4, grouped, t(4), [1, 1], [1, 1], [1, 1], 4, False, False),
        lambda: A.convolution_overrideable(x4, w4, t(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        lambda: A.convolution_backward_overrideable(
            t(2, 6, 8, 8), x4, w4, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3
        ),
        lambda: A._embedding_bag_forward_only(f(10, 8), i(6), i(3)),
        lambda: torch._fused_adam_([f(4, 8)], [f(4, 8)], [f(4, 8)], [f(4, 8)], [], [f()], lr=1e-3, **adam),
        lambda: torch._fused_adamw_([f(4, 8)], [f(4, 8)], [f(4, 8)], [f(4, 8)], [], [f()], lr=1e-3, **adam),
        lambda: torch._fused_sgd_(
            [f(4, 8)], [f(4, 8)], [f(4, 8)], maximize=False, is_first_step=False, **sgd
        ),
        lambda: torch._fused_adagrad_(
            [f(4, 8)], [f(4, 8)], [f(4, 8)], [f()], lr=0.1, lr_decay=0.0, weight_decay=0.0, eps=1e-8, maximize=False
        ),
        lambda: torch._foreach_addcdiv([f(4, 8)] * 2, [f(4, 8)] * 2, [f(4, 8)] * 2, 1.0),
        lambda: torch._foreach_addcdiv_([f(4, 8)] * 2, [f(4, 8)] * 2, [f(4, 8)] * 2, 1.0),
        lambda: torch._foreach_addcmul([f(4, 8)] * 2, [f(4, 8)] * 2, [f(4, 8)] * 2, 1.0),
        lambda: torch._foreach_addcmul_([f(4, 8)] * 2, [f(4, 8)] * 2, [f(4, 8)] * 2, 1.0),
        lambda: A._fused_dropout(x2, 0.5),
        lambda: A.native_dropout(x2, 0.5, True),
        lambda: A._masked_scale(x2, f(4, 8).to(torch.uint8), 2.0),
        lambda: A._masked_softmax(t(2, 4, 8, 8), f(8, 8).to(torch.bool), 3, 0),
        lambda: torch.special.softmax(x2, 1),
        lambda: A._fused_rms_norm_backward(x2, x2, [8], f(4, 1), f(8), [True, True]),
        lambda: torch._grouped_mm(
            t(32, 16, dtype=torch.bfloat16), t(4, 16, 32, dtype=torch.bfloat16), offs=f(4).to(torch.int32)
        ),
        lambda: torch._scaled_mm(
            f(16, 32).to(torch.float8_e4m3fn), f(16, 32).to(torch.float8_e4m3fn).t(), f(), f(),
            out_dtype=torch.bfloat16,
        ),
        lambda: A._scaled_mm_v2(
            f(16, 32).to(torch.float8_e4m3fn), f(16, 32).to(torch.float8_e4m3fn).t(), [f(16, 1)], [1], [0],
            [f(1, 16)], [1], [0], None, torch.bfloat16,
        ),
        lambda: f(8, 16).addmm_(f(8, 4), f(4, 16)),
        lambda: f(2, 8, 16).baddbmm_(f(2, 8, 4), f(2, 4, 16)),
        lambda: torch.batch_norm_stats(x4, 1e-5),
        lambda: torch.batch_norm_elemt(x4, c, c, c, c, 1e-5),
        lambda: torch.batch_norm_backward_reduce(x4, x4, c, c, c, True, True, True),
        lambda: torch.batch_norm_backward_elemt(x4, x4, c, c, c, c, c, i(4).to(torch.int32)),
        lambda: A._reshape_alias_copy(x2, [8, 4], [4, 1]),
        lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward(),
        lambda: torch.nn.LSTM(8, 16)(t(4, 2, 8))[0].sum().backward(),
        lambda: A._scaled_dot_product_attention_math(q, q, q, None, 0.0, True),
        lambda: A._scaled_dot_product_flash_attention(q, q, q, 0.0, True),
        lambda: A._scaled_dot_product_cudnn_attention(q, q, q, None, True, 0.0, True),
        lambda: A._scaled_dot_product_efficient_attention(q, q, q, None, True, 0.0, True),
        lambda: A._scaled_dot_product_flash_attention_backward(
            q, q, q, q, q, t(2, 4, 16), None, None, 16, 16, 0.0, True, i(2), i(2)
        ),
        lambda: A._scaled_dot_product_efficient_attention_backward(
            q, q, q, q, None, q, t(2, 4, 16), seed, seed, 0.0, [True, True, True, False], True
        ),
        lambda: A._scaled_dot_product_cudnn_attention_backward(
            q, q, q, q, q, t(2, 4, 16), seed, seed, None, None, None, 16, 16, 0.0, True
        ),
        lambda: A._flash_attention_forward(rows, rows, rows, None, None, 16, 16, 0.0, True, False),
        lambda: A._flash_attention_backward(
            rows, rows, rows, rows, rows, t(2, 4, 16), None, None, 16, 16, 0.0, True, i(2), i(2)
        ),
        lambda: A._efficient_attention_forward(rows, rows, rows, None, None, None, 16, 16, 0.0, 1, True),
        lambda: A._efficient_attention_backward(
            rows, rows, rows, rows, None, rows, None, None, 16, 16, t(2, 4, 16), 0.0, seed, seed, 1, False
        ),
        lambda: A.copy(x2, x2),
        lambda: A.zero(x2),
        lambda: A.gelu_(f(4, 8)),
        lambda: A.relu_(f(4, 8)),
        lambda: A.hardtanh_(f(4, 8)),
        lambda: A.hardswish_(f(4, 8)),
        lambda: torch.linalg.norm(x2),
        lambda: torch.multiply(x2, x2),
        lambda: functional.unfold(t(2, 3, 8, 8), [2, 2], padding=1, stride=2),
        lambda: A.upsample_nearest2d(t(2, 3, 8, 8), [16, 16]),
        lambda: A.upsample_nearest3d(t(2, 3, 4, 4, 4), [8, 8, 8]),
        lambda: A.upsample_nearest2d_backward(t(2, 3, 16, 16), [16, 16], [2, 3, 8, 8]),
        lambda: A.upsample_nearest3d_backward(t(2, 3, 8, 8, 8), [8, 8, 8], [2, 3, 4, 4, 4]),
        lambda: A.reflection_pad2d(t(2, 3, 8, 8), [1] * 4),
        lambda: A.replication_pad3d(t(2, 3, 4, 4, 4), [1] * 6),
    )  # fmt: skip


def main() -> None:
    recorder = Recorder()
    database(recorder)
    for device, grad in itertools.product(("cpu", "meta"), (True, False)):
        for call in by_hand(device, grad):
            recorder.run(call)
    best = {
        name: max(calls, key=lambda call, name=name: worth(name, call))
        for name, calls in sorted(recorder.found.items())
        if calls
    }
    rows = (f"{json.dumps(name)}: {json.dumps(call, separators=(',', ':'))}" for name, call in best.items())
    PAGE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
