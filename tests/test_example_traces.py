"""The example traces read, link and nest; the generated ones can be made again, byte for byte."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from example_traces import generate_moe_ep_step as moe
from tracelens.extensions import bundled_extensions, overlay
from tracelens.hardware import HardwareSpec, recognize
from tracelens.perf_models import bindings
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import DEVICE_KINDS, Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.dtypes import DType

FOLDER = Path(moe.__file__).parent
CPU = FOLDER / "transformer_step_cpu.json.gz"
RANKS = [FOLDER / "moe_ep8" / f"rank{rank}.json.gz" for rank in range(8)]


@cache
def tree_of(path: Path) -> OpTree:
    return OpTree(read_trace(path))


def rows(table: TraceTable, kind: Kind, part: str) -> list[int]:
    return [int(row) for row in np.flatnonzero(table.kind == kind) if part in table.name_of(int(row))]


def first_shapes(path: Path, name: str) -> list[tuple[int, ...]]:
    """D0 of every call of ``name``, in order of time."""
    table = tree_of(path).table
    found = [row for row in rows(table, Kind.CPU_OP, name) if table.name_of(row) == name]
    return [table.signature_of(row).shape(0) for row in sorted(found, key=lambda row: int(table.start_ns[row]))]


@pytest.mark.parametrize("path", [CPU, *RANKS], ids=lambda path: path.name)
def test_every_example_reads_whole_and_its_tree_holds(path):
    tree = tree_of(path)
    assert not tree.table.losses
    assert tree.overlaps == 0
    assert tree.self_check() == []


def test_every_example_has_a_line_in_the_readme():
    readme = (FOLDER / "README.md").read_text()
    for path in sorted(FOLDER.rglob("*.json.gz")):
        assert path.name in readme or path in RANKS, f"{path.name} is not in example_traces/README.md"
    assert "Generated, no GPU ran this" in readme
    assert "Recorded on a CPU, because no GPU was at hand" in readme


def test_the_examples_stay_small():
    assert CPU.stat().st_size < 150_000
    assert sum(path.stat().st_size for path in RANKS) < 600_000


def test_the_recorded_trace_holds_three_steps_of_forward_backward_and_adamw_with_shapes():
    tree = tree_of(CPU)
    table = tree.table
    assert [table.name_of(row) for row in rows(table, Kind.USER_ANNOTATION, "ProfilerStep#")] == [
        "ProfilerStep#3",
        "ProfilerStep#4",
        "ProfilerStep#5",
    ]
    assert table.has_shapes
    assert not table.has_device_events
    # Two layers of qkv, projection, up, down: 8 addmm a step, of which up is [4*128, 256] x [256, 1024]
    products = Counter(first_shapes(CPU, "aten::addmm"))
    assert sum(products.values()) == 3 * 8
    assert products[(1024,)] == 3 * 2
    assert len(rows(table, Kind.CPU_OP, "aten::_fused_adamw_")) == 3
    assert len(rows(table, Kind.CPU_OP, "aten::_scaled_dot_product_flash_attention_for_cpu_backward")) >= 3 * 2


def test_the_recorded_trace_names_no_machine():
    trace = json.loads(gzip.decompress(CPU.read_bytes()))
    known = {"schemaVersion", "deviceProperties", "record_shapes", "with_stack", "displayTimeUnit"}
    assert set(trace) <= known | {"baseTimeNanoseconds", "traceName", "traceEvents"}
    texts = [event["name"] for event in trace["traceEvents"]]
    texts += [str(event["args"]) for event in trace["traceEvents"] if event.get("ph") == "M"]
    assert [text for text in texts if text.startswith("/") or "'/" in text] == []


def test_a_rank_is_generated_again_byte_for_byte(tmp_path):
    (written,) = moe.write(tmp_path, [3])
    again, committed = gzip.decompress(written.read_bytes()), gzip.decompress(RANKS[3].read_bytes())
    if again != committed:
        lines = zip(again.splitlines(), committed.splitlines(), strict=False)
        new, old = next(pair for pair in lines if pair[0] != pair[1])
        pytest.fail(
            "the generator, a perf model or a device file changed: run `python -m example_traces.generate_moe_ep_step`\n"
            f"first difference, generated: {new!r}\ncommitted: {old!r}"
        )


@pytest.mark.parametrize("path", RANKS, ids=lambda path: path.name)
def test_every_kernel_has_its_launch_but_the_one_that_ran_when_recording_began(path):
    tree = tree_of(path)
    table = tree.table
    (unlinked,) = tree.unlinked
    assert "FusedAdamMathFunctor" in table.name_of(int(unlinked))
    device = np.flatnonzero(np.isin(table.kind, DEVICE_KINDS))
    assert table.start_ns[unlinked] == table.start_ns[device].min()
    linked = device[tree.launch[device] >= 0]
    assert len(linked) == len(device) - 1
    assert (table.kind[tree.op[linked]] == Kind.CPU_OP).all()


def test_each_rank_says_who_it_is_and_on_what_it_would_have_run():
    for rank, path in enumerate(RANKS):
        table = tree_of(path).table
        assert (table.rank, table.world_size) == (rank, 8)
        assert {g.name: g.ranks for g in table.process_groups()} == {"0": tuple(range(8)), "1": tuple(range(8))}
        device = recognize(table.device_properties()[0]).device
        assert device == HardwareSpec.load("mi300x")
        assert "GENERATED" in table.metadata["traceName"]


@pytest.mark.sweep
def test_deep_ep_records_local_tokens_on_dispatch_and_arrived_tokens_on_combine():
    for rank, path in enumerate(RANKS):
        # 2 layers x 3 steps; backward runs the layers in reverse, with the conventions reversed
        arrived = [moe.Routing.draw(layer, step).received(rank) for step in (10, 11, 12) for layer in (0, 1)]
        backward = [arrived[i] for i in (1, 0, 3, 2, 5, 4)]
        assert first_shapes(path, "DeepEPDispatch") == [(4096, 2048)] * 6
        assert first_shapes(path, "DeepEPCombine") == [(tokens, 2048) for tokens in arrived]
        assert first_shapes(path, "DeepEPCombineBackward") == [(4096, 2048)] * 6
        assert first_shapes(path, "DeepEPDispatchBackward") == [(tokens, 2048) for tokens in backward]
        # more arrive than leave: a token goes to up to four ranks
        assert min(arrived) > 4096


def test_ranks_receive_different_numbers_of_tokens_and_none_is_lost():
    for layer in (0, 1):
        routing = moe.Routing.draw(layer, 10)
        assert sum(routing.rows) == 8 * 4096 * 4  # every token has four experts
        assert len({routing.received(rank) for rank in range(8)}) == 8
        for source in routing.copies:
            assert 4096 <= sum(source) <= 4 * 4096  # one to four ranks each
            assert max(source) <= 4096


@pytest.mark.parametrize("part", ["::dispatch<", "::combine<", "notify", "ncclDevKernel"])
def test_an_exchange_ends_on_all_ranks_at_once_and_the_last_to_start_waits_for_nobody(part):
    tables = [tree_of(path).table for path in RANKS]
    kernels = [rows(table, Kind.KERNEL, part) for table in tables]
    assert len({len(found) for found in kernels}) == 1
    assert kernels[0]
    starts = np.array([table.start_ns[found] for table, found in zip(tables, kernels, strict=True)])
    durations = np.array([table.duration_ns[found] for table, found in zip(tables, kernels, strict=True)])
    ends = starts + durations
    assert (ends == ends[0]).all()
    assert (durations.argmin(axis=0) == starts.argmax(axis=0)).all()
    assert (durations.max(axis=0) > durations.min(axis=0)).all()


def test_collective_kernels_carry_the_fields_of_their_record_param_comms():
    tree = tree_of(RANKS[0])
    table = tree.table
    kernels = rows(table, Kind.KERNEL, "ncclDevKernel")
    # per step: output projection, two layers, embedding, the gradients' norm
    assert len(kernels) == 3 * 5
    for kernel in kernels:
        op = int(tree.op[kernel])
        assert table.name_of(op) == "record_param_comms"
        signature, args = table.signature_of(op), table.args(kernel)
        for key in ("Collective name", "In msg nelems", "Group size", "dtype", "Process Group Name"):
            assert signature.attribute(key) == args[key]
    sizes = sorted({table.args(kernel)["In msg nelems"] for kernel in kernels})
    # 1 norm; qkv [3072, 2048] + bias + projection [2048, 2048] + router [32, 2048]; vocabulary [16384, 2048]
    assert sizes == [1, 3072 * 2048 + 3072 + 2048 * 2048 + 32 * 2048, 16384 * 2048]


def test_flash_attention_is_recorded_at_the_slots_of_its_schema():
    table = tree_of(RANKS[0]).table
    (forward, *_), (backward, *_) = (
        rows(table, Kind.CPU_OP, f"flash_attn::_flash_attn_{direction}") for direction in ("forward", "backward")
    )
    q, kv = (1, 4096, 16, 128), (1, 4096, 4, 128)
    recorded = table.signature_of(forward)
    assert [recorded.shape(i) for i in range(3)] == [q, kv, kv]
    assert (recorded.literal(3), recorded.literal(5)) == (0.0, True)  # dropout, causal
    recorded = table.signature_of(backward)
    assert [recorded.shape(i) for i in range(4)] == [q, q, kv, kv]
    assert (recorded.literal(9), recorded.literal(11)) == (0.0, True)


def test_forward_and_backward_of_one_op_are_linked():
    tree = tree_of(RANKS[0])
    table = tree.table
    pairs = {
        (table.name_of(int(tree.forward[row])), table.name_of(row))
        for name in ("DeepEPDispatchBackward", "DeepEPCombineBackward", "FlashAttnFuncBackward", "AddmmBackward0")
        for row in rows(table, Kind.CPU_OP, name)
        if not table.name_of(row).startswith("autograd::")
    }
    assert pairs == {
        ("DeepEPDispatch", "DeepEPDispatchBackward"),
        ("DeepEPCombine", "DeepEPCombineBackward"),
        ("FlashAttnFunc", "FlashAttnFuncBackward"),
        ("aten::addmm", "AddmmBackward0"),
    }


def test_the_work_of_nearly_all_kernels_is_known_to_a_perf_model():
    tree = tree_of(RANKS[0])
    table = tree.table
    known = overlay(bindings(), bundled_extensions())
    modeled = total = 0
    for row in np.flatnonzero(np.isin(table.kind, DEVICE_KINDS) & (tree.launch >= 0)):
        op = int(tree.op[row])
        total += int(table.duration_ns[row])
        while op >= 0 and table.name_of(op) not in known:
            op = int(tree.op_parent[op])
        modeled += int(table.duration_ns[row]) if op >= 0 else 0
    assert modeled > 0.95 * total
    signature = table.signature_of(rows(table, Kind.CPU_OP, "DeepEPCombine")[0])
    assert known["DeepEPCombine"].target(signature).dtype is DType.BF16
