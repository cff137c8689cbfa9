"""What a table says beyond its columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import row_by_row
from tests.trace.event_texts import read_events
from tracelens.trace.table import Kind, kind_of_category
from tracelens.types.signature import DeviceProperties, OpSignature


def op(**args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 1, "dur": 1, "args": args}


@row_by_row(("category", "kind"), [
        ("cpu_op", Kind.CPU_OP), ("Operator", Kind.CPU_OP),
        ("cuda_runtime", Kind.RUNTIME), ("hip_runtime", Kind.RUNTIME), ("mtia_runtime", Kind.RUNTIME),
        ("xpu_runtime", Kind.RUNTIME), ("privateuse1_runtime", Kind.RUNTIME), ("Runtime", Kind.RUNTIME),
        ("cuda_driver", Kind.DRIVER), ("xpu_driver", Kind.DRIVER), ("privateuse1_driver", Kind.DRIVER),
        ("kernel", Kind.KERNEL), ("Kernel", Kind.KERNEL), ("gpu_memcpy", Kind.MEMCPY), ("Memcpy", Kind.MEMCPY),
        ("gpu_memset", Kind.MEMSET), ("Memset", Kind.MEMSET), ("user_annotation", Kind.USER_ANNOTATION),
        ("gpu_user_annotation", Kind.GPU_USER_ANNOTATION), ("python_function", Kind.PYTHON_FUNCTION),
        ("cuda_sync", Kind.SYNC), ("overhead", Kind.OVERHEAD), ("mtia_ccp_events", Kind.KERNEL), ("hpu_op", Kind.RUNTIME), ("mtia_insight", Kind.OTHER), ("Trace", Kind.OTHER), ("", Kind.OTHER),
    ])  # fmt: skip
def test_a_category_of_any_vendor_and_age_has_a_kind(category: str, kind: Kind) -> None:
    assert kind_of_category(category) is kind


@pytest.mark.parametrize(
    ("graph", "node", "id_"),
    [
        (2, 2 << 32, 2 << 32), (2, 2 << 32 | 7, 2 << 32 | 7),  # as CUPTI numbers them
        (2, 0, 2 << 32), (2, 7, 2 << 32 | 7), (-1, 7, 7),  # a number within the graph, or no number of the graph
        (0, 0, -1), (-1, 0, -1), (-1, -1, -1), (5, -1, -1),  # of no graph
        (2**40, 7, 7), (3, 9 << 32 | 1, 9 << 32 | 1),
    ],
)  # fmt: skip
def test_a_node_has_the_number_of_its_graph_in_its_id(graph: int, node: int, id_: int) -> None:
    recorded = {"graph id": graph, "graph node id": node}
    kernel = op(**{key: value for key, value in recorded.items() if value >= 0}) | {"cat": "kernel", "name": "k"}
    assert read_events([kernel]).graph_node.tolist() == [id_]
    assert read_events([kernel | {"cat": "cpu_op"}]).graph_node.tolist() == [-1], "an op is no node"


def test_a_step_that_pytorch_1_8_calls_an_operator_is_an_annotation() -> None:
    names = ("ProfilerStep#5", "aten::mm", "Optimizer.step#SGD.step")
    table = read_events([op() | {"cat": "Operator", "name": name} for name in names])
    assert table.kind.tolist() == [Kind.USER_ANNOTATION, Kind.CPU_OP, Kind.CPU_OP]


def test_a_signature_holds_what_was_recorded() -> None:
    table = read_events(
        [
            op(**{"Input Dims": [[2, 3], [[4], [5, 6]], []], "Input type": ["float", "TensorList", "Scalar"],
                  "Input Strides": [[3, 1], [], []], "Concrete Inputs": ["", "", "1"]}),
        ]
    )  # fmt: skip
    assert table.signature_of(0) == OpSignature(
        name="aten::mm",
        shapes=((2, 3), ((4,), (5, 6)), ()),
        dtypes=("float", "TensorList", "Scalar"),
        strides=((3, 1), (), ()),
        scalars=("", "", "1"),
    )
    assert table.has_shapes


def test_signatures_differ_by_arguments_and_names_and_are_parsed_once() -> None:
    table = read_events(
        [
            op(**{"Input Dims": [[1]]}),
            op(**{"Input Dims": [[2]]}),
            op(**{"Input Dims": [[1]]}),
            op(),
            op(x=1) | {"name": "b"},
        ]
    )
    assert table.signature.tolist() == [0, 1, 0, -1, -1]
    assert table.signature_of(0) is table.signature_of(2)
    assert table.signature_of(3) == OpSignature(name="aten::mm")
    assert table.signature_of(4) == OpSignature(name="b")


@pytest.mark.parametrize("slot", [2, "2", None, {"a": 1}, ["2"], [[2], 3], [[[2]]]])
def test_a_size_that_is_none_counts_as_absent(slot: object) -> None:
    signature = read_events([op(**{"Input Dims": [slot, [3]], "Input Strides": [slot, [1]]})]).signature_of(0)
    assert (signature.shapes, signature.strides) == (((), (3,)), ((), (1,)))


def test_whatever_is_recorded_makes_a_signature() -> None:
    odd = {"Collective name": {"a": [1]}, "In split size": [{"b": 1}], "Concrete Inputs": [{"c": 1}]}
    assert hash(read_events([op(**odd)]).signature_of(0))


def test_white_space_makes_no_other_signature() -> None:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from tracelens.trace.reading.read import read_trace

    compact = json.dumps(op(**{"Input Dims": [[1, 2]]}), separators=(",", ":"))
    indented = json.dumps(op(**{"Input Dims": [[1, 2]]}), indent=4)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_text(f'{{"traceEvents": [{compact}, {indented}]}}')
        assert read_trace(path).signature.tolist() == [0, 0]


def test_collectives_are_told_apart_by_their_own_arguments() -> None:
    recorded = {
        "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2, "dtype": "BFloat16",
        "In split size": "[]", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    table = read_events([op(**recorded), op(**recorded | {"In msg nelems": 9}), op(**recorded)])
    assert table.signature.tolist() == [0, 1, 0]
    assert table.signature_of(0).attributes == tuple(sorted(recorded.items()))
    assert table.signature_of(1).attribute("In msg nelems") == 9
    assert not table.has_shapes


def test_compiled_kernels_carry_their_work_but_not_their_hash() -> None:
    recorded = {"Input Dims": [[4]], "kernel_backend": "triton", "kernel_num_gb": 0.5, "kernel_flop": 100}
    table = read_events([op(**recorded, kernel_hash="a"), op(**recorded, kernel_hash="b")])
    assert table.signature.tolist() == [0, 0]
    assert table.signature_of(0).attributes == (
        ("kernel_backend", "triton"),
        ("kernel_flop", 100),
        ("kernel_num_gb", 0.5),
    )


def test_old_files_spell_their_dims_differently() -> None:
    table = read_events([op(**{"Input dims": [[3]]}), op(**{"Input Dims": [[3]]})])
    assert table.signature.tolist() == [0, 0]
    assert table.signature_of(0).shapes == ((3,),)


@pytest.mark.parametrize(
    ("source", "rank"),
    [
        ("rank-3.json.gz", 3), ("rank[12].json", 12), ("rank_4.pt.trace.json", 4), ("dp0_pp0_tp0_rank7.json", 7),
        ("graph_capture_rank_0.1773709742341309550.pt.trace.json.gz", 0), ("prank-1.json", None), ("trace.json", None),
    ],
)  # fmt: skip
def test_the_rank_is_in_the_file_name_unless_the_file_says_it(source: str, rank: int | None) -> None:
    assert read_events([], source=source).rank == rank
    assert read_events([], {"distributedInfo": {"rank": 5}}, source=source).rank == 5


def test_metadata_names_devices_world_and_groups() -> None:
    table = read_events(
        [],
        {
            "deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X", "numSms": 304}, "odd"],
            "distributedInfo": {
                "world_size": 8,
                "pg_config": [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": 1}, "odd"],
            },
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        },
    )
    assert table.device_properties() == [DeviceProperties(name="AMD Instinct MI300X", compute_units=304)]
    assert table.world_size == 8
    assert table.rank is None
    assert [(g.name, g.ranks) for g in table.process_groups()] == [("0", (0, 1)), ("1", ())]
    assert table.base_ns == 1_700_000_000_000_000_000


def test_a_table_without_metadata_knows_nothing_and_raises_nothing() -> None:
    table = read_events([])
    assert (table.rank, table.world_size, table.process_groups(), table.device_properties()) == (None, None, (), [])
    assert (table.base_ns, table.has_shapes, table.has_stacks, table.has_device_events) == (0, False, False, False)


def test_a_data_frame_spells_the_codes_out() -> None:
    table = read_events([op(correlation=3) | {"ts": 1.5, "dur": 0.25}, op() | {"cat": "kernel", "tid": "s"}])
    frame = table.to_pandas()
    assert frame["name"].tolist() == ["aten::mm", "aten::mm"]
    assert frame["kind"].tolist() == ["cpu_op", "kernel"]
    assert frame["tid"].tolist() == [2, "s"]
    assert frame["start_us"].tolist() == [1.5, 1.0]
    assert frame["duration_ns"].tolist() == [250, 1000]
    assert frame["correlation"].tolist() == [3, -1]


def test_args_are_empty_where_none_were_recorded() -> None:
    event = op()
    del event["args"]
    assert read_events([event]).args(0) == {}
