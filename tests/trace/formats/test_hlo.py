"""HLO programs: what an instruction multiplies, computes, reads and writes, by hand, by XLA and by XProf."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.formats.rewritten import message
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.sheets import perf_summary
from tracelens.analysis.verdict.verdict import summarize
from tracelens.errors import NothingToAnalyzeError, SignatureError
from tracelens.perf_models import GEMM, SDPA
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.collective import Collective
from tracelens.perf_models.xla import HloOp, compiled_op
from tracelens.trace.reading.formats.hlo import TYPES, Program, _valid
from tracelens.trace.reading.formats.xplane import calls_of
from tracelens.trace.reading.wire import Wire
from tracelens.trace.table import Kind
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, freeze

NUMBER = {name: number for number, name in TYPES.items()}


def shape(dtype: str, *dims: int) -> bytes:
    return message((2, NUMBER[dtype]), *((3, n) for n in dims))


def several(*shapes: bytes) -> bytes:
    return message((2, 13), *((4, each) for each in shapes))


def instruction(number: int, name: str, opcode: str, of: bytes, *operands: int, **fields: int | str | bytes) -> bytes:
    """``fields``: by number, as ``f36``."""
    others = [(int(key[1:]), value) for key, value in fields.items()]
    return message((1, name), (2, opcode), (3, of), (35, number), *((36, each) for each in operands), *others)


def hlo_proto(*computations: list[bytes]) -> bytes:
    """Of computations by number from 1 on, the entry last; the last instruction of each is its root."""
    made = []
    for number, instructions in enumerate(computations, 1):
        root = {key: value for key, value, _ in Wire(instructions[-1]).fields(0, len(instructions[-1]))}[35]
        made.append(message((1, f"c{number}"), *((2, each) for each in instructions), (5, number), (6, root)))
    return message((1, message((1, "jit_f"), *((3, each) for each in made))))


def program(*computations: list[bytes]) -> Program:
    data = hlo_proto(*computations)
    return Program(Wire(data), 0, len(data))


def model(made: Program, name: str) -> PerfModel | None:
    """As from a file: what a signature holds are tuples."""
    signature = made.signature(name)
    assert signature is not None
    attributes = tuple((key, freeze(value)) for key, value in signature.attributes)
    found: PerfModel | None = compiled_op(replace(signature, attributes=attributes))
    return found


X, W = shape("bf16", 8, 64, 32), shape("bf16", 8, 32, 16)
DOT = message((1, 2), (2, 1), (3, 0), (4, 0))


def test_a_dot_is_a_product_of_what_its_numbers_say() -> None:
    made = program(
        [
            instruction(1, "x", "parameter", X),
            instruction(2, "w", "parameter", W),
            instruction(3, "dot.1", "dot", shape("f32", 8, 64, 16), 1, 2, f30=DOT),
        ]
    )
    found = model(made, "dot.1")
    assert isinstance(found, GEMM)
    assert (found.b, found.m, found.n, found.k, found.dtype) == (8, 64, 16, 32, DType.BF16)
    assert found.flops() == 2 * 8 * 64 * 16 * 32
    assert found.hbm_bytes() == 2 * 8 * 64 * 32 + 2 * 8 * 32 * 16 + 4 * 8 * 64 * 16
    assert made.signature("dot.2") is None


def test_a_fusion_does_what_is_in_it_and_reads_what_its_slices_take() -> None:
    """x[1000, 64] sliced to [8, 64], times w[64, 16], plus one: 2*8*16*64 + 8*16 operations."""
    out = shape("f32", 8, 16)
    inner = [
        instruction(1, "p0", "parameter", shape("f32", 1000, 64)),
        instruction(2, "p1", "parameter", shape("f32", 64, 16)),
        instruction(3, "s", "dynamic-slice", shape("f32", 8, 64), 1),
        instruction(4, "d", "dot", out, 3, 2, f30=message((1, 1), (2, 0))),
        instruction(5, "one", "constant", shape("f32")),
        instruction(6, "b", "broadcast", out, 5),
        instruction(7, "a", "add", out, 4, 6),
    ]
    entry = [
        instruction(11, "x", "parameter", shape("f32", 1000, 64)),
        instruction(12, "w", "parameter", shape("f32", 64, 16)),
        instruction(13, "fusion.1", "fusion", out, 11, 12, f38=1, f7=message((2, "jit(f)/dot"), (3, "a.py"), (4, 12))),
    ]
    found = model(program(inner, entry), "fusion.1")
    assert isinstance(found, GEMM)
    assert found.flops() == 2 * 8 * 16 * 64 + 8 * 16
    assert found.hbm_bytes() == 4 * (8 * 64 + 64 * 16 + 8 * 16)
    assert found.parameters().items() >= {"jax_op": "jit(f)/dot", "source": "a.py:12", "hlo": "fusion"}.items()


def test_an_update_in_place_moves_what_it_replaces() -> None:
    cache = shape("bf16", 4096, 128)
    inner = [
        instruction(1, "p0", "parameter", cache),
        instruction(2, "p1", "parameter", shape("bf16", 1, 128)),
        instruction(3, "at", "parameter", shape("s32")),
        instruction(4, "u", "dynamic-update-slice", cache, 1, 2, 3, 3),
        instruction(5, "root", "bitcast", cache, 4),
    ]
    entry = [
        instruction(11, "c", "parameter", cache),
        instruction(12, "new", "parameter", shape("bf16", 1, 128)),
        instruction(13, "i", "parameter", shape("s32")),
        instruction(14, "fusion", "fusion", cache, 11, 12, 13, f38=1),
    ]
    found = model(program(inner, entry), "fusion")
    assert found is not None
    assert (found.category, found.flops()) == ("memory", 0)
    assert found.hbm_bytes() == 2 * 128 + 4 + 2 * 128


def test_a_fusion_that_returns_its_operand_reads_it() -> None:
    inner = [
        instruction(1, "p0", "parameter", shape("f32", 64)),
        instruction(2, "r", "reshape", shape("f32", 8, 8), 1),
    ]
    entry = [
        instruction(11, "x", "parameter", shape("f32", 64)),
        instruction(12, "f", "fusion", shape("f32", 8, 8), 11, f38=1),
    ]
    found = model(program(inner, entry), "f")
    assert found is not None
    assert found.hbm_bytes() == 4 * 64 + 4 * 64


@pytest.mark.parametrize("nested", [True, False])
def test_a_librarys_product_returns_its_scratch_memory_beside_it(nested: bool) -> None:
    numbers = (
        '{"lhs_contracting_dimensions":["0"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],'
        '"rhs_batch_dimensions":[]}'
    )
    config = f'{{"alpha_real":1,"dot_dimension_numbers":{numbers}}}'
    made = program(
        [
            instruction(1, "x", "parameter", shape("bf16", 32, 64)),
            instruction(2, "w", "parameter", shape("bf16", 32, 16)),
            instruction(
                3, "custom-call.1", "custom-call", several(shape("bf16", 64, 16), shape("s8", 4 << 20)), 1, 2,
                f28="__cublas$gemm", f43=f'{{"gemm_backend_config":{config}}}' if nested else config,
            ),
        ]
    )  # fmt: skip
    found = model(made, "custom-call.1")
    assert isinstance(found, GEMM)
    assert (found.m, found.n, found.k) == (64, 16, 32)
    assert found.hbm_bytes() == 2 * (32 * 64 + 32 * 16 + 64 * 16)


def window(size: int, stride: int, padding: int, base: int = 1) -> bytes:
    return message((1, size), (2, stride), (3, padding), (4, padding), (5, 1), (6, base))


def convolution(name: str, target: str, *shapes: bytes) -> Program:
    """NCHW x OIHW -> NCHW with a window of 3 x 3, a stride of 1 and a padding of 1."""
    labels = message(
        (7, 0), (8, 1), (11, 2), (11, 3), (4, 0), (3, 1), (6, 2), (6, 3), (9, 0), (10, 1), (12, 2), (12, 3)
    )
    given = {"f28": target} if target else {}
    windows = message((1, window(3, 1, 1)), (1, window(3, 1, 1)))
    return program(
        [
            instruction(1, "a", "parameter", shapes[0]),
            instruction(2, "b", "parameter", shapes[1]),
            instruction(
                3, name, "custom-call" if target else "convolution", shapes[2], 1, 2, f15=windows, f16=labels, **given
            ),
        ]
    )


IMAGE, KERNEL, MADE = shape("f16", 2, 4, 8, 8), shape("f16", 16, 4, 3, 3), shape("f16", 2, 16, 8, 8)


@pytest.mark.parametrize(
    ("target", "shapes", "category"),
    [
        ("", (IMAGE, KERNEL, MADE), "CONV_fwd"),
        ("__cudnn$convForward", (IMAGE, KERNEL, several(MADE, shape("u8", 999))), "CONV_fwd"),
        ("__cudnn$convBackwardInput", (MADE, KERNEL, several(IMAGE, shape("u8", 999))), "CONV_bwd"),
        ("__cudnn$convBackwardFilter", (IMAGE, MADE, several(KERNEL, shape("u8", 999))), "CONV_bwd"),
    ],
)
def test_a_convolution_counts_what_lies_on_no_padding(
    target: str, shapes: tuple[bytes, bytes, bytes], category: str
) -> None:
    """Of 3 * 8 places in each dim, one at either end lies on padding: 22 * 22 for 2 images, 4 and 16 channels."""
    found = model(convolution("conv", target, *shapes), "conv")
    assert found is not None
    assert found.category == category
    assert found.flops() == 2 * (22 * 22) * 2 * 4 * 16
    assert found.hbm_bytes() == 2 * (2 * 4 * 64 + 16 * 4 * 9 + 2 * 16 * 64)


def test_a_reduction_takes_a_step_for_each_element_that_vanishes() -> None:
    made = program(
        [
            instruction(1, "x", "parameter", shape("f32", 16, 100)),
            instruction(2, "zero", "constant", shape("f32")),
            instruction(3, "sum", "reduce", shape("f32", 16), 1, 2, f14=1),
        ]
    )
    found = model(made, "sum")
    assert found is not None
    assert (found.category, found.flops(), found.hbm_bytes()) == ("reduce", 16 * 99, 4 * (1600 + 1 + 16))


def test_a_custom_call_has_the_flops_that_its_author_declares_or_none() -> None:
    def called(**fields: str) -> HloOp:
        made = program(
            [
                instruction(1, "x", "parameter", shape("bf16", 64)),
                instruction(2, "k", "custom-call", shape("bf16", 64), 1, **fields),
            ]
        )
        found = model(made, "k")
        assert isinstance(found, HloOp)
        return found

    silent = called(f28="__gpu$xla.gpu.triton", f43="not JSON")
    assert (silent.flops(), silent.hbm_bytes()) == (None, 2 * 64 + 2 * 64)
    config = '{"custom_call_config":{"body":"x","cost_estimate":{"flops":"1234","bytes_accessed":"99"}}}'
    declared = called(f28="tpu_custom_call", f43=config)
    assert (declared.flops(), declared.hbm_bytes()) == (1234, 99)


def test_attention_of_cudnn_is_counted_over_what_its_mask_leaves() -> None:
    shapes = [shape("bf16", 2, 128, heads, 64) for heads in (8, 2, 2)]
    config = (
        '{"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":["2","8","128","128"]},'
        '"mask_type":"CAUSAL"}}'
    )
    made = program(
        [
            *(instruction(i, f"p{i}", "parameter", each) for i, each in enumerate(shapes)),
            instruction(
                9, "fmha", "custom-call", several(shape("bf16", 2, 8, 128, 64), shape("u8", 0)), 0, 1, 2,
                f28="__cudnn$fmhaSoftmax", f43=config,
            ),
        ]
    )  # fmt: skip
    found = model(made, "fmha")
    assert isinstance(found, SDPA)
    assert (found.q_heads, found.kv_heads, found.d_qk) == (8, 2, 64)
    assert found.flops() == 2 * 8 * (2 * 128 * 129 // 2) * (64 + 64)


@pytest.mark.parametrize(
    ("fields", "ranks", "stride"),
    [
        ({"f49": message((1, 0), (1, 4), (1, 8), (1, 12))}, 4, 4),
        ({"f87": message((1, message((1, b"\x00\x01"))))}, 2, 1),
        # [4, 2] of 8 in the order of (1, 0): groups of 4, every second one
        ({"f87": message((2, message((1, 2), (2, 4), (3, 4), (3, 2), (4, 1), (4, 0))))}, 4, 2),
        ({}, None, 1),
    ],
)
def test_a_collective_knows_its_group(fields: dict[str, bytes], ranks: int | None, stride: int) -> None:
    made = program(
        [
            instruction(1, "x", "parameter", shape("bf16", 1024)),
            instruction(2, "all-reduce-start.1", "all-reduce-start", shape("bf16", 1024), 1, **fields),
            instruction(3, "all-reduce-done.1", "all-reduce-done", shape("bf16", 1024), 2),
        ]
    )
    found = model(made, "all-reduce-start.1")
    assert isinstance(found, Collective)
    assert (found.kind, found.elements_in, found.ranks, found.stride) == ("all_reduce", 1024, ranks, stride)
    assert found.wire_bytes() == (None if ranks is None else 2 * 1024 * 2 * (ranks - 1) / ranks)


def test_what_is_damaged_costs_its_op_alone() -> None:
    with pytest.raises(SignatureError, match=r"dot\.1: what the program says of it is damaged"):
        compiled_op(OpSignature(name="dot.1", attributes=(("kernel_kwargs", (("products", (("dot", 1),)),)),)))
    with pytest.raises(SignatureError, match="damaged"):
        compiled_op(OpSignature(name="dot.1", attributes=(("kernel_kwargs", "text"),)))


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(1, 4)), max_size=5))
def test_runs_of_an_op_are_its_launches_over_again(ops: list[tuple[list[int], int]]) -> None:
    """Each op launches kernels of different names, and runs so many times."""
    keys, names, calls = [], [], 0
    for op, (kernels, times) in enumerate(ops):
        distinct = list(dict.fromkeys(kernels))
        keys += [op] * len(distinct) * times
        names += distinct * times
        calls += times
    found = calls_of(np.array([keys], np.int64), np.array(names, np.int64))
    assert len(set(found.tolist())) == calls
    assert found.tolist() == sorted(found.tolist())


GPU_STATS = ("hlo_op", "program_id", "correlation_id", "Hlo Proto")
Launched = list[tuple[str, str, int]]


def gpu_profile(path: Path, kernels: Launched, host: list[tuple[int, str]]) -> Path:
    """Kernels (name, op, correlation) that run for 10 us each, one after the other; calls of the host (correlation, op)
    that launch them, or without a correlation run them themselves. The program multiplies [64, 32] by [32, 16] in ``dot.1`` and adds to that in ``add.2``."""
    out = shape("f32", 64, 16)
    proto = hlo_proto(
        [
            instruction(1, "x", "parameter", shape("f32", 64, 32)),
            instruction(2, "w", "parameter", shape("f32", 32, 16)),
            instruction(3, "dot.1", "dot", out, 1, 2, f30=message((1, 1), (2, 0))),
            instruction(4, "add.2", "add", out, 3, 3),
            instruction(5, "g", "parameter", shape("bf16", 1 << 20)),
            instruction(
                6, "all-reduce-start.3", "all-reduce-start", shape("bf16", 1 << 20), 5, f49=message((1, 0), (1, 2))
            ),
        ]
    )
    names = list(
        dict.fromkeys([*(name for name, _, _ in kernels), "cuLaunchKernel", "cuGraphLaunch", "dot.1", "add.2"])
    )

    def called(number: int, text: str) -> bytes:
        return message((1, number), (2, message((1, number), (2, text))))

    def event(name: str, at_us: int, op: str, correlation: int) -> tuple[int, bytes]:
        of_op = [(4, message((1, 1), (5, op))), (4, message((1, 2), (3, 7)))] if op else []
        when = (2, at_us * 10**6), (3, 10 * 10**6)
        return 4, message((1, names.index(name) + 1), *when, *of_op, (4, message((1, 3), (3, correlation))))

    events = [(4, called(i, name)) for i, name in enumerate(names, 1)]
    stats = [(5, called(i, name)) for i, name in enumerate(GPU_STATS, 1)]
    ran = [event(name, 1000 + 10 * at, op, number) for at, (name, op, number) in enumerate(kernels)]
    calls = [
        event(op if not number else "cuLaunchKernel" if op else "cuGraphLaunch", 10 * at, op, number)
        for at, (number, op) in enumerate(host)
    ]
    program_7 = message((1, 7), (2, message((1, 7), (2, "jit_f(7)"), (5, message((1, 4), (6, proto))))))
    planes = [
        message((2, "/host:metadata"), (4, program_7), *stats),
        message((2, "/host:CPU"), (3, message((1, 1), (2, "main"), *calls)), *events, *stats),
        message((2, "/device:GPU:0"), (3, message((1, 7), (2, "Stream #7(Kernel)"), *ran)), *events, *stats),
    ]
    path.write_bytes(message(*((1, plane) for plane in planes)))
    return path


SPLIT: Launched = [("gemm", "dot.1", 1), ("sum_of_splits", "dot.1", 2), ("loop_add", "add.2", 3)]
ONCE_MORE: Launched = [(name, op, number + 3) for name, op, number in SPLIT]


@pytest.mark.parametrize(
    ("kernels", "host", "names"),
    [
        # Launched one by one: the ops of the host
        ([*SPLIT, *ONCE_MORE], [(n, op) for _, op, n in (*SPLIT, *ONCE_MORE)], ["dot.1", "add.2"]),
        # By a graph, or without any recorded launch: the kernels say which op they are of
        ([(k, op, 9 + n // 4) for k, op, n in (*SPLIT, *ONCE_MORE)], [(9, ""), (10, "")], ["gemm", "loop_add"]),
        ([*SPLIT, *ONCE_MORE], [], ["gemm", "loop_add"]),
        # One kernel's launch was lost: it is of the op that launched the other
        ([*SPLIT, *ONCE_MORE], [(n, op) for _, op, n in (*SPLIT, *ONCE_MORE) if n != 5], ["dot.1", "add.2"]),
    ],
)
def test_an_op_of_a_gpu_is_counted_once_however_it_was_launched(
    tmp_path: Path, kernels: Launched, host: list[tuple[int, str]], names: list[str]
) -> None:
    """Twice 2 * 64 * 16 * 32 FLOPs in 20 us each, and twice 64 * 16 in 10."""
    found = analyze(load(gpu_profile(tmp_path / "g.xplane.pb", kernels, host)), AnalysisOptions())
    rows = found.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    assert rows["name"].tolist() == names
    columns = ["category", "operation_count", "kernels_per_call", "kernel_us_sum", "gflops"]
    assert rows[columns].to_numpy().tolist() == [
        ["GEMM", 2, 2.0, 40.0, 2 * 64 * 16 * 32 / 1e9],
        ["elementwise", 2, 1.0, 20.0, 64 * 16 / 1e9],
    ]
    summary = summarize(found)
    assert (summary.coverage.perf_model, summary.coverage.unlinked) == (1, 0)


def test_what_xla_runs_on_the_host_are_cpu_ops(tmp_path: Path) -> None:
    path = gpu_profile(tmp_path / "h.xplane.pb", [], [(0, "dot.1"), (0, "add.2"), (0, "dot.1")])
    with pytest.raises(NothingToAnalyzeError, match=r"has 3 CPU ops but nothing that ran on a device: pass --cpu"):
        analyze(load(path), AnalysisOptions())
    table = load(path).table
    ops = table.rows_of([Kind.CPU_OP])
    assert [table.name_of(row) for row in ops] == ["dot.1", "add.2", "dot.1"]
    assert table.signature_of(ops[0]).shapes == ((64, 32), (32, 16))


def test_a_collective_of_nccl_is_the_one_of_its_op(tmp_path: Path) -> None:
    """2^20 elements of 2 bytes among 2 ranks, in 10 us: 2 * (2 - 1) / 2 * 2 MiB / 10 us on the bus."""
    kernels: Launched = [
        *SPLIT,
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", "all-reduce-start.3", 4),
    ]
    path = gpu_profile(tmp_path / "g.xplane.pb", kernels, [(n, op) for _, op, n in kernels])
    (row,) = analyze(load(path), AnalysisOptions(), on_demand=True).frames["coll_analysis"].to_dict("records")
    assert (row["collective"], row["in_nelems"], row["group_size"], row["dtype"]) == ("all_reduce", 1 << 20, 2, "bf16")
    assert row["effective_bus_gb_s"] == pytest.approx((1 << 21) / 10e-6 / 1e9)


def test_a_program_that_is_damaged_costs_the_shapes_of_its_ops(tmp_path: Path) -> None:
    path = gpu_profile(tmp_path / "g.xplane.pb", SPLIT, [(n, op) for _, op, n in SPLIT])
    data = path.read_bytes()
    at = data.index(b"\x05jit_f\x1a") + len("\x05jit_f")
    path.write_bytes(data[:at] + b"\x0b" + data[at + 1 :])
    table = load(path).table
    assert not table.has_shapes
    assert any("program 7 is damaged" in note for note in table.losses.notes)


def test_a_source_line_is_that_of_the_stack_frame_where_no_file_is_named() -> None:
    x = shape("f32", 8)
    entry = [
        instruction(1, "x", "parameter", x),
        instruction(2, "neg", "negate", x, 1, f7=message((2, "jit(f)/neg"), (15, 2))),
    ]
    frames = message(
        (1, "a.py"), (1, "b.py"), (2, "f"), (3, message((1, 1), (3, 5))), (3, message((1, 2), (3, 7))),
        (4, message((1, 1))), (4, message((1, 2), (2, 1))),
    )  # fmt: skip
    computation = message((1, "c"), *((2, each) for each in entry), (5, 1), (6, 2))
    data = message((1, message((1, "jit_f"), (3, computation), (17, frames))))
    found = model(Program(Wire(data), 0, len(data)), "neg")
    assert found is not None
    assert found.parameters()["source"] == "b.py:7"


@given(
    st.integers(1, 9), st.integers(1, 12), st.integers(1, 4), st.integers(0, 4), st.integers(1, 3), st.integers(1, 3)
)
def test_places_on_no_padding_are_counted_as_one_by_one(
    size: int, results: int, kernel: int, padding: int, stride: int, dilation: int
) -> None:
    places = [r * stride - padding + k * dilation for r in range(results) for k in range(kernel)]
    for base in (1, 2):
        wanted = sum(0 <= at <= (size - 1) * base and at % base == 0 for at in places)
        assert _valid(size, results, (kernel, stride, padding, dilation, base)) == wanted


#: FLOPs and bytes of a call as XProf 2.24.2 says them (tool hlo_stats: rates times time over occurrences); its FLOPs of
#: a product of cuBLAS are 0, and here 2*m*n*k.
XPROF = {
    "tracelens_jax08_gemm": {
        "gemm_fusion_dot_general.1": (33_554_432, 393_216),
        "copy.1": (0, 4),
        ("custom-call.1", 8192): (2 * 8192 * 8192 * 4096, 268_435_456),
    },
    "tracelens_jax_conv_minimal_08": {
        "cudnn-conv.1": (32_715_571_200, 579_072_000),
        "input_transpose_fusion": (0, 1_144_053_760),
        "input_transpose_fusion.1": (0, 12_779_520),
        "loop_transpose_fusion": (0, 1_310_720),
    },
}


@pytest.mark.shared
@pytest.mark.parametrize("name", XPROF)
def test_real_profiles_say_what_xprof_says(name: str, shared_traces: Path) -> None:
    found = analyze(load(shared_traces / "more" / "xplane" / f"{name}.xplane.pb.gz"), AnalysisOptions())
    rows = found.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    for key, (flops, nbytes) in XPROF[name].items():
        op, *first = key if isinstance(key, tuple) else (key,)
        mine = rows[rows["name"] == op]
        if first:
            mine = mine[[str(dims).startswith(f"(({first[0]},") for dims in mine["input_dims"]]]
        assert len(mine)
        assert mine["gflops"].to_numpy() == pytest.approx(flops / 1e9, rel=1e-3)
        assert mine["hbm_mb"].to_numpy() == pytest.approx(nbytes / 1e6, rel=1e-3)
    coverage = summarize(found).coverage.perf_model
    assert coverage is not None
    assert coverage > 0.95


@pytest.mark.shared
def test_an_op_of_two_kernels_runs_once_for_both(shared_traces: Path) -> None:
    """8 devices convolve 5 times, by a kernel that unfolds the image and one that multiplies: 79 of these 80 in the file."""
    path = shared_traces / "more" / "xplane" / "tracelens_jax_conv_minimal_08.xplane.pb.gz"
    rows = analyze(load(path), AnalysisOptions(), on_demand=True).frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    mine = rows[rows["name"] == "cudnn-conv.1"]
    assert mine["operation_count"].sum() == 8 * 5
    assert (mine["operation_count"] * mine["kernels_per_call"]).sum() == 79
    assert prod(set(mine["gflops"])) == pytest.approx(32.7155712)
