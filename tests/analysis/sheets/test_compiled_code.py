"""What torch.compile says of its kernels, beside a trace: logs, what tlparse makes of them, and files that are damaged.

``torch_trace.log`` is from TORCH_TRACE of PyTorch 2.13.0 on a CPU (a model with ``print`` in ``forward``, called with
4, 4, 5 and 6 rows), cut to the artifacts that are read; its paths and the other parts of its metrics are left out.
``triton_trace.log`` is what Inductor of PyTorch 2.13.0 and Triton 3.9.0 wrote for an H100 whose properties were told it
(fake tensors on a machine without one: the code was generated and not run), cut alike.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens
from tests.analysis.conftest import Builder
from tests.conftest import examples
from tracelens.errors import InputError
from tracelens.report.result import Report
from tracelens.trace.reading.compiled_code import CompiledKernel, read_compiled_code

LOG = Path(__file__).with_name("torch_trace.log")
TRITON = Path(__file__).with_name("triton_trace.log")
#: As PyTorch's documentation of provenance tracking and torch/_inductor/debug.py have them.
MAPPINGS = {
    "preToPost": {"mul": ["mul_2"], "y": ["add_1"]},
    "postToPre": {"mul_2": ["mul"], "add_1": ["y"]},
    "cppCodeToPost": {"triton_poi_fused_add_mul_0:1": ["mul_2", "add_1"], "extern_kernels.mm:2": ["mm"]},
}
STACKS = {
    "triton_poi_fused_add_mul_0:1": ['  File "/home/me/net.py", line 31, in forward\n    y = x * 2 + 1\n        ^\n']
}
#: As in torch_compile_debug of PaliC/triton-data, PyTorch 2.5.
OUTPUT_CODE = """\
# kernel path: /tmp/torchinductor_me/eh/ceht27vbsmlt6ox5m7xhqumvk5yvhnv6w4p3xfjvfagojzfql7rr.py
# Topologically Sorted Source Nodes: [x_117, y], Original ATen: [aten.convolution, aten.relu]
# Source node to ATen node mapping:
#   x_117 => convolution_31
triton_poi_fused_convolution_relu_0 = async_compile.triton('triton_poi_fused_convolution_relu_0', '''
import triton
"""


def tlparse(folder: Path, graph: str = "-_0_0_0", number: int = 5, **more: Any) -> Path:
    below = folder / graph
    below.mkdir(parents=True, exist_ok=True)
    (below / f"inductor_provenance_tracking_node_mappings_{number}.json").write_text(json.dumps(MAPPINGS))
    (below / f"inductor_provenance_tracking_kernel_stack_traces_{number + 1}.json").write_text(json.dumps(STACKS))
    for name, text in more.items():
        (below / f"{name}_{number + 2}.txt").write_text(text)
    return folder


def report(built: Builder, path: Path | None) -> Report:
    return tracelens.report(built.trace(), inductor=path, bundled=False)


def test_a_log_has_the_ops_lines_and_graphs_of_its_kernels() -> None:
    found = read_compiled_code(LOG)
    gelu = next(each for each in found.kernels if each.name == "cpp_fused_gelu_0" and each.graph == "0/0")
    assert gelu == CompiledKernel(
        name="cpp_fused_gelu_0",
        graph="0/0",
        key="fli7ckocae3ljejxwm6c466vxdrbsgodurkrqpvhdtn22xuprvds",
        ops=("mul", "add", "erf"),
        nodes=("y",),
        lines=("/home/me/model.py:6 in forward: y = F.gelu(s.a(x))",),
    )
    assert [(each.line, each.resumed) for each in found.breaks] == [("/home/me/model.py:7", ("1/0", "1/1"))] * 2
    assert found.breaks[0].reason.startswith("Dynamo does not know how to trace builtin operator `print`")
    assert [(each.graph, each.line, each.took_s) for each in found.recompilations] == [
        ("0/1", "/home/me/model.py:5 in forward", 19.055173),
        ("1/1", "/home/me/model.py:7 in torch_dynamo_resume_in_forward_at_7", 17.836354),
    ]
    assert found.recompilations[0].reason == "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5"


def payloads(kind: str) -> dict[str, str]:
    """Of each compilation of the Triton log the lines behind its record of a kind, read without the reader."""
    found: dict[str, str] = {}
    graph = ""
    for line in TRITON.read_text().splitlines():
        if not line.startswith("\t"):
            record = json.loads(line[line.index("{") :])
            known = kind in record or record.get("artifact", {}).get("name") == kind
            graph = f"{record['frame_id']}/{record['frame_compile_id']}" if known else ""
        elif graph:
            found[graph] = found.get(graph, "") + line[1:] + "\n"
    return found


def test_triton_kernels_are_those_of_the_generated_code_and_its_mappings() -> None:
    found = read_compiled_code(TRITON).kernels
    code, mappings = payloads("inductor_output_code"), payloads("inductor_provenance_tracking_node_mappings")
    stacks, keys = payloads("inductor_provenance_tracking_kernel_stack_traces"), payloads("fx_graph_cache_miss")
    for graph, text in code.items():
        mine = {each.name: each for each in found if each.graph == graph}
        made = set(re.findall(r"async_compile\.triton\('(\w+)'", text))
        assert made == set(re.findall(r"(triton_\w+)\.run\(", text)) == {name for name in mine if "triton" in name}
        both = json.loads(mappings[graph])
        for name, nodes in both["cppCodeToPost"].items():
            kernel = mine[name.partition(":")[0]]
            assert set(kernel.nodes) == {pre for node in nodes for pre in both["postToPre"].get(node, ())}
            lines = {
                int(line) for stack in json.loads(stacks[graph])[name] for line in re.findall(r"line (\d+)", stack)
            }
            assert {int(line.split(":")[1].split()[0]) for line in kernel.lines} == lines
            assert kernel.key == json.loads(keys[graph])["key"]
    assert sorted((each.graph, each.name) for each in found) == [
        ("0/0", "extern_kernels.mm"), ("0/0", "triton_per_fused_add_gelu_mean_1"),
        ("0/0", "triton_per_fused_add_gelu_sum_3"), ("0/0", "triton_red_fused_add_gelu_mean_0"),
        ("0/0", "triton_red_fused_add_gelu_sum_2"), ("1/0", "triton_poi_fused_add_gelu_0"),
        ("2/0", "triton_poi_fused_add_gelu_0"),
    ]  # fmt: skip


def test_a_log_of_aotinductor_names_no_compilation(tmp_path: Path) -> None:
    """Records as in tests/inputs/inductor_provenance_aot_log.txt of pytorch/tlparse (PyTorch of May 2025, an H100): no
    frame, no handles, the nodes of a kernel twice, metrics of no compilation.
    """
    nodes = {
        "triton_poi_fused_addmm_gelu_2": ["mul_3", "add_tensor", "erf"],
        "aoti_torch_cuda_mm_out": ["mm_default_1"],
    }
    pre = {"mul_3": ["gelu"], "erf": ["gelu"], "add_tensor": ["addmm"], "mm_default_1": ["linear"]}
    artifacts = {
        "inductor_triton_kernel_to_post_grad_nodes": nodes,
        "inductor_provenance_tracking_node_mappings": {"postToPre": pre, "cppCodeToPost": nodes, "preToPost": {}},
    }
    head = "V0521 11:53:23.626000 3076301 /data/users/me/torch/_inductor/compile_fx.py:975] "
    log = [f'{head}{{"compilation_metrics": {{"compile_id": null, "co_name": null}}, "stack": []}}\n']
    for name, payload in artifacts.items():
        record = {
            "artifact": {"name": name, "encoding": "json"},
            "stack": [{"line": 98, "name": "main"}],
            "has_payload": "7",
        }
        log.append(f"{head}{json.dumps(record)}\n\t{json.dumps(payload)}\n")
    (tmp_path / "aot_log.txt").write_text("".join(log))
    gelu, mm = read_compiled_code(tmp_path / "aot_log.txt").kernels
    assert (gelu.ops, gelu.nodes, gelu.graph) == (("mul", "add_tensor", "erf"), ("gelu", "addmm"), "-/-")
    assert (mm.name, mm.ops, mm.nodes) == ("aoti_torch_cuda_mm_out", ("mm_default",), ("linear",))
    built = Builder().launch(1, "triton_poi_fused_addmm_gelu_2", 10, 30)
    (row,) = report(built, tmp_path / "aot_log.txt")["compiled_kernels"].to_dict("records")
    assert (row["joined_by"], row["source_nodes"]) == ("name", "gelu, addmm")


def test_kernel_information_says_what_the_log_says(tmp_path: Path) -> None:
    """As torch._inductor.debug.create_kernel_information_json of the same run wrote it for ``second``."""
    frames = (("16, in second", "return F.gelu(z)"), ("15, in second", "z = x + b"))
    known = {
        "stack_traces": [f'  File "/home/me/model.py", line {at}\n    {code}\n    ^^^^^\n' for at, code in frames],
        "post_grad_nodes": ["convert_element_type_1", "mul_2", "mul", "convert_element_type", "add", "add_1", "erf"],
        "pre_grad_nodes": ["gelu", "z"],
    }
    (tmp_path / "kernel_information.json").write_text(json.dumps({"triton_poi_fused_add_gelu_0:1": known}))
    (found,) = read_compiled_code(tmp_path).kernels
    (of_log,) = (each for each in read_compiled_code(TRITON).kernels if each.graph == "2/0")
    assert (found.name, found.lines, set(found.nodes)) == (of_log.name, of_log.lines, set(of_log.nodes))


def test_two_graphs_that_share_a_triton_kernel_keep_their_lines() -> None:
    """``first`` (1/0, line 11) and ``second`` (2/0, lines 15 and 16); a third launch is outside of both."""
    name, built = "triton_poi_fused_add_gelu_0", Builder()
    for at, region in ((0, "Torch-Compiled Region: 1/0"), (100, "Torch-Compiled Region: 2/0")):
        built.op(region, at, 50).launch(at + 1, name, at + 10, 30)
    rows = report(built.launch(201, name, 210, 30), TRITON)["compiled_kernels"].to_dict("records")
    lines = {row["graph"]: (row["joined_by"], re.findall(r"model\.py:(\d+)", row["source_lines"])) for row in rows}
    assert lines == {
        "1/0": ("compilation", ["11"]), "2/0": ("compilation", ["16", "15"]),
        "1/0, 2/0": ("name, of 2 kernels", ["11", "16", "15"]),
    }  # fmt: skip


def test_the_hash_of_its_code_tells_a_kernel_from_others_of_its_name() -> None:
    """PyTorch records it with the op that launches a Triton kernel; the log has it in the path of the code."""
    paths = {graph: re.findall(r"# kernel path: \S*/(\w+)\.py", text)
             for graph, text in payloads("inductor_output_code").items()}  # fmt: skip
    name, built = "triton_poi_fused_add_gelu_0", Builder()
    codes = [*paths["2/0"], *paths["1/0"], "cunknown"]
    for at, code in zip((0, 100, 200), codes, strict=True):
        built.op(name, at, 50, kernel_backend="triton", kernel_hash=code).launch(at + 1, name, at + 10, 30)
    built.launch(301, name, 310, 30)
    rows = report(built, TRITON)["compiled_kernels"].to_dict("records")
    assert sorted(row["kernels"] for row in rows) == [1, 1, 2], "what is told alike is one row"
    found = {row["graph"]: (row["joined_by"], re.findall(r"model\.py:(\d+)", row["source_lines"])) for row in rows}
    assert found == {
        "2/0": ("hash of its code", ["16", "15"]), "1/0": ("hash of its code", ["11"]),
        "1/0, 2/0": ("name, of 2 kernels", ["11", "16", "15"]),
    }  # fmt: skip


def test_what_tlparse_makes_of_a_log_says_the_same(tmp_path: Path) -> None:
    """Its folders: FRAME_NUMBER_ATTEMPT, artifacts numbered in their order; metrics are in raw.jsonl."""
    lines, metrics, number, start = LOG.read_text().splitlines(), [], 0, 0
    while start < len(lines):
        end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("\t")), len(lines))
        record = json.loads(lines[start][lines[start].index("{") :])
        payload = "\n".join(line[1:] for line in lines[start + 1 : end])
        start, number = end, number + 1
        if "compilation_metrics" in record:
            metrics.append(json.dumps(record))
            continue
        name, kind = record["artifact"]["name"], "json" if record["artifact"]["encoding"] == "json" else "txt"
        frame = "_".join(str(record.get(key, "-")) for key in ("frame_id", "frame_compile_id", "attempt"))
        (tmp_path / f"-_{frame}").mkdir(exist_ok=True)
        (tmp_path / f"-_{frame}" / f"{name}_{number}.{kind}").write_text(payload)
    (tmp_path / "raw.jsonl").write_text("\n".join(metrics))
    log, made = read_compiled_code(LOG), read_compiled_code(tmp_path)
    assert sorted(map(repr, made.kernels)) == sorted(map(repr, log.kernels))
    assert sorted(map(repr, made.breaks)) == sorted(map(repr, log.breaks))
    assert sorted(map(repr, made.recompilations)) == sorted(map(repr, log.recompilations))


def test_a_folder_with_its_log_is_read_once(tmp_path: Path) -> None:
    tlparse(tmp_path)
    (tmp_path / "raw.log").write_bytes(LOG.read_bytes())
    assert read_compiled_code(tmp_path) == read_compiled_code(LOG)


def test_other_files_of_inductor(tmp_path: Path) -> None:
    (tmp_path / "model__0_inference_0.0").mkdir()
    (tmp_path / "model__0_inference_0.0" / "output_code.py").write_text(OUTPUT_CODE)
    known = {"triton_red_fused_sum_1:4": {"stack_traces": STACKS["triton_poi_fused_add_mul_0:1"],
                                          "post_grad_nodes": ["sum_1"], "pre_grad_nodes": ["total"]}}  # fmt: skip
    (tmp_path / "kernel_information.json").write_text(json.dumps(known))
    total, convolution = read_compiled_code(tmp_path).kernels
    assert (total.name, total.ops, total.nodes) == ("triton_red_fused_sum_1", ("sum",), ("total",))
    assert total.lines == ("/home/me/net.py:31 in forward: y = x * 2 + 1",)
    assert (convolution.name, convolution.graph) == ("triton_poi_fused_convolution_relu_0", "model__0_inference_0.0")
    assert (convolution.ops, convolution.nodes) == (("aten.convolution", "aten.relu"), ("x_117", "y"))


def test_kernels_are_joined_and_those_that_are_not_are_named(tmp_path: Path) -> None:
    """30 + 10 us of a kernel that the files have, 60 us of one that they do not."""
    built = Builder().launch(1, "triton_poi_fused_add_mul_0", 10, 30).launch(2, "triton_poi_fused_add_mul_0", 50, 10)
    made = report(built.launch(3, "triton_red_fused_mean_7", 70, 60), tlparse(tmp_path))
    first, second = made["compiled_kernels"].to_dict("records")
    assert (first["kernel_name"], first["joined_by"]) == ("triton_red_fused_mean_7", "not in the files")
    assert second == {
        "kernel_name": "triton_poi_fused_add_mul_0", "graph": "0/0", "kernels": 2, "duration_us_sum": 40.0,
        "percent_of_kernels": 40.0, "ops": "mul, add", "source_nodes": "mul, y",
        "source_lines": "/home/me/net.py:31 in forward: y = x * 2 + 1", "joined_by": "name",
    }  # fmt: skip
    (notice,) = [each for each in made.summary.notices if each.id == "compiled_code"]
    assert (
        notice.text
        == "--inductor says the ops of 2 compiled kernels (40 % of their time), not of triton_red_fused_mean_7"
    )


@pytest.mark.parametrize("recorded", ["compilation", "FX graph", None])
def test_kernels_of_the_same_name_are_told_apart_by_what_runs_round_them(tmp_path: Path, recorded: str | None) -> None:
    tlparse(tmp_path, "-_0_0_0")
    tlparse(tmp_path, "-_4_2_0")
    other = json.dumps(STACKS).replace("line 31", "line 90")
    (tmp_path / "-_4_2_0" / "inductor_provenance_tracking_kernel_stack_traces_6.json").write_text(other)
    (tmp_path / "-_4_2_0" / "fx_graph_cache_miss_9.json").write_text('{"key": "fabc"}')
    built = Builder()
    if recorded == "compilation":
        built.op("Torch-Compiled Region: 4/2", 0, 9)
    if recorded == "FX graph":
        built.op("## Call CompiledFxGraph fabc ##", 0, 9, cat="user_annotation")
    (row,) = report(built.launch(1, "triton_poi_fused_add_mul_0", 10, 30), tmp_path)["compiled_kernels"].to_dict(
        "records"
    )
    if recorded is None:
        assert (row["graph"], row["joined_by"]) == ("0/0, 4/2", "name, of 2 kernels")
    else:
        assert (row["graph"], row["joined_by"]) == ("4/2", recorded)
    assert ("net.py:31" in row["source_lines"]) == (recorded is None)
    assert "net.py:90" in row["source_lines"]


def broken_step(resumed: str, host: str = "") -> Builder:
    """A kernel before a break, 10 to 60 us, and one behind it, to 1010; its code began at 940: 880 of 1000 us."""
    built = Builder().op("Torch-Compiled Region: 0/0", 0, 20).launch(1, "cpp_fused_gelu_0", 10, 50)
    if host:
        built.op(host, 100, 820)
    built.op(f"Torch-Compiled Region: {resumed}", 940, 30)
    return built.launch(950, "cpp_fused_add_mul_relu_threshold_backward_0", 960, 50)


def findings(built: Builder, path: Path | None = LOG) -> dict[str, str]:
    return {each.id: each.why for each in report(built, path).summary.findings}


def test_a_graph_break_behind_which_the_device_waits_is_a_finding_with_its_line() -> None:
    why = findings(broken_step("1/0"))["graph_break"]
    assert why.startswith("torch.compile ends a graph at me/model.py:7 (Dynamo does not know how to trace")
    assert why.endswith("the GPU idles 88 % of the time until the code behind it launches")


def test_without_the_code_behind_it_in_the_trace_or_without_idle_time_a_break_is_no_finding() -> None:
    assert "graph_break" not in findings(broken_step("7/0"))
    assert "graph_break" not in findings(broken_step("1/0"), None)
    busy = broken_step("1/0").launch(5, "gemm", 60, 900)
    assert "graph_break" not in findings(busy)


def test_a_recompilation_during_which_the_device_idles_is_a_finding_with_its_line() -> None:
    found = findings(broken_step("1/1", "entire_frame_compile (dynamo_timed)"))
    assert found["recompilation"].startswith(
        "torch.compile compiles me/model.py:7 in torch_dynamo_resume_in_forward_at_7 again (1/0: tensor 'x' size mismatch"
    )
    assert "recompilation" not in findings(broken_step("1/1"))
    assert "recompilation" not in findings(broken_step("1/0", "entire_frame_compile (dynamo_timed)"))


def test_breaks_and_recompilations_are_counted_by_line() -> None:
    rows = report(broken_step("1/0"), LOG)["graph_breaks"].to_dict("records")
    assert [(row["event"], row["source_line"], row["times"]) for row in rows] == [
        ("graph break", "/home/me/model.py:7", 2),
        ("recompilation", "/home/me/model.py:5 in forward", 1),
        ("recompilation", "/home/me/model.py:7 in torch_dynamo_resume_in_forward_at_7", 1),
    ]
    assert rows[1]["compile_us"] == pytest.approx(19_055_173)


DAMAGED = {
    "inductor_provenance_tracking_node_mappings_1.json": ('{"cppCodeToPost": {"a": ["b"]', "is damaged"),
    "inductor_provenance_tracking_kernel_stack_traces_1.json": ('{"a": 3}', "is damaged: Expected `array`"),
    "kernel_information.json": ("[]", "is damaged: Expected `object`, got `array`"),
    "recompile_reasons_1.json": ("[3]", "is damaged: Expected `str`, got `int`"),
    "raw.jsonl": ('{"compilation_metrics": {"compile_id": ', "line 1 is damaged"),
    "a.log": ('V0127 17:17:45.175000 1175001 a/b.py:2] {"artifact": {"name": \n', "line 1 is damaged"),
    "notes.txt": ("nothing", "has no files of torch.compile: give a log of TORCH_TRACE"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    content, said = DAMAGED[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        read_compiled_code(tmp_path)
    assert "\n" not in str(refused.value)
    assert name in str(refused.value) or name == "notes.txt"


def test_a_log_may_be_called_anything_and_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_bytes(LOG.read_bytes())
    assert read_compiled_code(tmp_path / "rank0.txt") == read_compiled_code(LOG)
    with pytest.raises(InputError, match=r"nowhere cannot be read: No such file"):
        read_compiled_code(tmp_path / "nowhere")


def test_metrics_of_another_form_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "raw.jsonl").write_text('{"compilation_metrics": {"compile_id": [1]}}')
    with pytest.raises(InputError, match="compilation_metrics"):
        read_compiled_code(tmp_path)


@settings(max_examples=examples(60))
@given(at=st.integers(0, 23_000), junk=st.binary(max_size=20))
def test_a_log_with_foreign_bytes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
) -> None:
    content = LOG.read_bytes()
    file = tmp_path_factory.getbasetemp() / "junk.log"
    file.write_bytes(content[:at] + junk + content[at + len(junk) :])
    try:
        read_compiled_code(file)
    except InputError as refused:
        said = str(refused)
    else:
        said = ""
    assert "\n" not in said


def test_links_out_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    tlparse(tmp_path / "outside")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "a").symlink_to(tmp_path / "outside")
    (tmp_path / "given" / "kernel_information.json").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match=r"has no files of torch\.compile"):
        read_compiled_code(tmp_path / "given")


@pytest.mark.sweep
def test_a_report_without_the_option_does_not_load_the_reader(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps({"traceEvents": broken_step("1/0").events}))
    code = (
        f"import sys, tracelens; r = tracelens.report({str(trace)!r}); r.to_json(); r.verdict()\n"
        "assert not [m for m in sys.modules if 'compiled_code' in m]\n"
        "assert not {'compiled_kernels', 'graph_breaks'} & set(r)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
