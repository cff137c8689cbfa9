"""One operation has one answer: by the command, by a table and from Python, from the same constants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracelens as tl
from tests.conftest import part
from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.backends import System
from tracelens.cli import main
from tracelens.hardware import HardwareSpec
from tracelens.predict.estimation.communication import TokenExchange, collective_answer, exchange_answers
from tracelens.predict.estimation.estimate import operation_answers
from tracelens.predict.network.topology import Group

DEVICES = HardwareSpec.names()
#: Kind -> what the command is asked, and the row of a table that says the same.
KINDS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "gemm": ({"m": 8944, "n": 1024, "k": 2816, "b": 3}, {"m": 8944, "n": 1024, "k": 2816, "b": 3}, "gemm_dtype"),
    "grouped-gemm": (
        {"rows": "128,4096,0,77", "n": 4096, "k": 7168}, {"rows": "128,4096,0,77", "n": 4096, "k": 7168}, "gemm_dtype",
    ),
    "sdpa": (
        {"b": 2, "s_q": 4096, "q_heads": 32, "kv_heads": 8, "d_qk": 128, "window": 1024},
        {"b": 2, "s_q": 4096, "q_heads": 32, "kv_heads": 8, "d_qk": 128, "window": 1024}, "kv_cache_dtype",
    ),
    "moe": (
        {"tokens": 512, "hidden": 7168, "ffn": 2048, "experts": 256, "topk": 8, "ep": 8, "tp": 1},
        {
            "num_tokens": 512, "hidden_size": 7168, "inter_size": 2048, "num_experts": 256, "topk": 8, "moe_tp_size": 1,
            "moe_ep_size": 8, "distribution": "balanced", "gated": 1,
        }, "moe_dtype",
    ),
}  # fmt: skip
TYPES = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4")


def asked(kind: str, device: str, dtype: str, backend: str = "tile") -> tuple[float | None, pd.Series]:
    sizes, row, column = KINDS[kind]
    (answer,) = operation_answers(kind, sizes, device=device, dtype=dtype, backend=backend)
    found = tl.estimate(kind, {**row, column: dtype}, device=device, backend=backend).iloc[0]
    return None if answer.estimate is None else answer.estimate.time_us, found


@pytest.mark.parametrize("one_in", [5, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("kind", KINDS)
def test_command_and_python_agree_on_every_device_and_type(kind: str, one_in: int) -> None:
    for device, dtype in product(DEVICES[::one_in], TYPES if kind == "gemm" else ("bf16", "fp8")):
        one, row = asked(kind, device, dtype)
        assert (one is None) == bool(np.isnan(row["time_us"])), device
        assert bool(row["reason"]) == (one is None), device
        if one is not None:
            assert math.isclose(one, row["time_us"], rel_tol=1e-9), device


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", part(["tile", "roofline"], 2))
def test_a_file_of_rows_says_the_same(kind: str, backend: str, tmp_path: Path) -> None:
    _, row, column = KINDS[kind]
    devices = ("mi300x", "mi325x", "h100-sxm", "b200")
    pd.DataFrame([{**row, column: "bf16", "device": name} for name in devices]).to_csv(tmp_path / "in.csv", index=False)
    out = tmp_path / "out.csv"
    words = ["estimate", kind, "--batch", str(tmp_path / "in.csv"), "-o", str(out), "--backend", backend]
    assert main(words) == 0
    for name, found in zip(devices, pd.read_csv(out)["time_us"], strict=True):
        one, of_python = asked(kind, name, "bf16", backend)
        assert one is not None
        assert math.isclose(found, one, rel_tol=1e-9)
        assert math.isclose(found, of_python["time_us"], rel_tol=1e-9)


def test_the_command_prints_the_row_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = "estimate gemm --m 8944 --n 1024 --k 1024 --device mi300x"
    assert main(words.split()) == 0
    printed = float(capsys.readouterr().out.splitlines()[1].split()[1])
    found = tl.estimate("gemm", {"m": 8944, "n": 1024, "k": 1024, "gemm_dtype": "bf16"}, device="mi300x").iloc[0]
    assert printed == float(f"{found['time_us']:.4g}")
    assert found["measured_as"] == "gemm bf16 on mi300x"


def test_the_backward_of_attention_is_a_pass_of_a_table() -> None:
    sizes = {"b": 2, "s_q": 4096, "q_heads": 32, "kv_heads": 8, "d_qk": 192, "d_v": 128}
    both = operation_answers("sdpa", {**sizes, "backward": True}, device="mi300x")
    found = tl.estimate(
        "sdpa", pd.DataFrame([{**sizes, "pass": each} for each in ("backward", "forward")]), device="mi300x"
    )
    assert found["time_us"].tolist() == [answer.estimate.time_us for answer in reversed(both) if answer.estimate]
    assert found["measured_as"].tolist() == ["backward bf16 on mi300x", "prefill bf16 on mi300x"]


@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx-b200", "mi300x"])
def test_collectives_and_exchanges_agree(cluster: str, tmp_path: Path) -> None:
    """16 ranks are two nodes of 8."""
    system = System.load(cluster)
    one = collective_answer(system, "all_reduce", 1e8, Group(ranks=16)).time_us
    row = {"op": "all_reduce", "size": 1e8, "num_nodes": 2, "gpus_per_node": 8}
    found = tl.estimate("collective", row, cluster=cluster)["time_us"][0]
    pd.DataFrame([row]).to_csv(tmp_path / "in.csv", index=False)
    words = ["estimate", "collective", "--batch", str(tmp_path / "in.csv"), "--cluster", cluster]
    assert main([*words, "-o", str(tmp_path / "out.csv")]) == 0
    for time_us in (found, pd.read_csv(tmp_path / "out.csv")["time_us"][0]):
        assert math.isclose(time_us, one, rel_tol=1e-9)
    exchange = TokenExchange(tokens=4096, hidden=7168, topk=8, experts=256, ranks=16)
    times = {answer.operation: answer.time_us for answer in exchange_answers(system, exchange)}
    row = {"node_num": 2, "hidden_size": 7168, "num_token": 4096, "num_topk": 8, "num_experts": 256}
    table = tl.estimate("ep", row, cluster=cluster).iloc[0]
    for phase in ("dispatch", "combine"):
        assert math.isclose(table[f"{phase}_us_est"], times[phase], rel_tol=1e-9)
        assert math.isclose(table[f"{phase}_notify_us_est"], times[f"{phase} notify"], rel_tol=1e-9)


def test_an_error_is_printed_only_where_it_was_measured() -> None:
    """MI308X's products stand in nowhere with their error, nor MI355X's FP4 for its FP8."""
    rows = {"m": 8192, "n": 8192, "k": 8192}
    for device, dtype, said, error in (
        ("mi308x", "bf16", "aiter bfloat16 on mi308x", 10.4),
        ("mi300x", "bf16", "gemm bf16 on mi300x", None),
        ("mi325x", "bf16", "gemm bf16 on mi300x", None),
        ("mi300x", "int8", "aiter int8 on mi308x", None),
        ("mi355x", "fp8", "gemm bf16 on mi355x", None),
        ("mi355x", "fp8_rowwise", "aiter fp8_rowwise on mi355x", 8.7),
        ("mi350x", "fp8_rowwise", "aiter fp8_rowwise on mi355x", None),
        ("mi300x", "fp8_rowwise", "aiter fp8_rowwise on mi308x", None),
        ("h100", "bf16", "gemm bf16 on h100-sxm", 7.5),
    ):
        found = tl.estimate("gemm", {**rows, "gemm_dtype": dtype}, device=device).iloc[0]
        assert found["measured_as"] == said
        assert (
            np.isnan(found["error_percent"])
            if error is None
            else found["error_percent"] == pytest.approx(error, abs=0.06)
        )


def test_fp8_takes_no_kernel_of_another_type() -> None:
    """MI300X has 25 batched INT8 kernels that were tuned, MI355X FP4 ones; FP8 takes neither."""
    rows = pd.DataFrame({"m": [8192], "n": [8192], "k": [8192], "gemm_dtype": ["fp8"]})
    for device in ("mi300x", "mi325x", "mi350x", "mi355x"):
        for what in ("gemm", "gemm-aiter"):
            found = tl.estimate(what, rows, device=device)
            assert "int8" not in found["measured_as"][0]
            assert "fp4" not in found["measured_as"][0]


@pytest.mark.parametrize("what", ["gemm", "gemm-aiter"])
@pytest.mark.parametrize(("device", "dtype"), [("mi300x", "nvfp4"), ("mi325x", "mxfp4"), ("mi250x", "fp8")])
def test_a_type_that_the_device_lacks_is_refused_in_a_sentence(what: str, device: str, dtype: str) -> None:
    found = tl.estimate(what, {"m": 8192, "n": 8192, "k": 8192, "gemm_dtype": dtype}, device=device)
    assert np.isnan(found["time_us"][0])
    assert " has no matrix units for " in found["reason"][0]


def test_mi325x_is_as_much_faster_as_its_device_file_says() -> None:
    """843 TFLOPS/s sustained of the same 1307.4, where MI300X sustains 708: 1.19 times; FP8 1519 and 1273."""
    sizes = {"m": [16384], "n": [16384], "k": [16384]}
    for dtype, share in (("bf16", 843 / 708), ("fp8", 1519 / 1273)):
        table = pd.DataFrame({**sizes, "gemm_dtype": dtype})
        slow, fast = (tl.estimate("gemm", table, device=name)["time_us"][0] for name in ("mi300x", "mi325x"))
        assert slow / fast == pytest.approx(share, rel=0.02)
    attention = {"b": 4, "s_q": 8192, "q_heads": 32, "kv_heads": 8, "d_qk": 128}
    for which in ("forward", "backward"):
        slow, fast = (
            tl.estimate("sdpa", {**attention, "pass": which}, device=name)["time_us"][0]
            for name in ("mi300x", "mi325x")
        )
        assert 1.1 < slow / fast < 843 / 708 + 0.001


def test_a_batch_of_products_takes_as_long_as_that_many() -> None:
    one, eight = tl.estimate(
        "gemm", pd.DataFrame({"m": [8192] * 2, "n": 8192, "k": 8192, "b": [1, 8]}), device="mi300x"
    )["time_us"]
    assert eight / one == pytest.approx(8, rel=0.01)


def test_rows_of_measured_layers_are_layers_and_others_products() -> None:
    """An engine narrows A before an FP8 product: 8192 rows at 6.48 ns per pass of 2048, 4 passes at 1 + 3 * 0.6."""
    rows = pd.DataFrame({"m": [8192], "n": [8192], "k": [8192], "gemm_dtype": ["fp8"]})
    alone = tl.estimate("gemm", rows, device="h100")["time_us"][0]
    layer = tl.estimate("gemm", rows.assign(framework="vllm"), device="h100")["time_us"][0]
    assert layer - alone > 8192 * 6.48e-3 * 2.8
    assert tl.estimate("gemm", rows.assign(latency_ms=1.0), device="h100")["time_us"][0] == layer
    assert tl.estimate("gemm", rows, device="h100", library="vllm")["time_us"][0] == layer


TRACES = {
    "mi300x": (
        "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005", "mi300/facebook_timesformer-base-finetuned-k400__1016002",
        "mi300/gaunernst_bert-small-uncased__1016001", "mi300/Falconsai_nsfw_image_detection__1016002",
        "mi300/resnet_act_checkpoint",
    ),
    "h100-sxm": ("h100/gaunernst_bert-small-uncased__1016001",),
}  # fmt: skip


def products_of(analysis: Any) -> Iterator[tuple[tuple[int, int, int, int], float]]:
    """(m, n, k, b) of each GEMM signature, with the mean time of its kernels in us."""
    frame = analysis.frames["unified_perf_summary"]
    frame = frame[frame["example_row"] >= 0]
    rows = frame["example_row"].to_numpy(np.int64)
    readings = OpReadings(analysis.trace.table, Catalog(analysis.extensions), np.unique(rows).astype(np.int32))
    models = [readings.readings[code].model for code in readings.code_of(rows).tolist()]
    for model, time_us in zip(models, frame["kernel_us_mean"], strict=True):
        products = () if model is None or model.price_family() != "gemm" else model.products()
        if len(products) == 1 and model.compute_dtype.label == "bf16":
            m, n, k, b, *_ = products[0]
            yield (int(m), int(n), int(k), int(b)), float(time_us)


@pytest.mark.sweep
@pytest.mark.shared
def test_the_largest_products_of_real_traces_are_met_by_command_table_and_python(
    shared_traces: Path, tmp_path: Path
) -> None:
    """The ten GEMM signatures of the MI300X and H100 traces whose kernels take longest: median error at most 10 %."""
    found = []
    for device, names in TRACES.items():
        for name in names:
            analysis = tl.report(shared_traces / f"{name}.json.gz").result
            found += [(device, *product) for product in products_of(analysis)]
    largest = sorted(found, key=lambda row: -row[2])[:10]
    table = pd.DataFrame([dict(zip("mnkb", sizes, strict=True), device=device) for device, sizes, _ in largest])
    measured = np.array([time_us for *_, time_us in largest])
    table.to_csv(tmp_path / "in.csv", index=False)
    assert main(["estimate", "gemm", "--batch", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    ways = {
        "table": pd.read_csv(tmp_path / "out.csv")["time_us"].to_numpy(),
        "python": tl.estimate("gemm", table)["time_us"].to_numpy(),
        "command": np.array(
            [
                operation_answers("gemm", dict(zip("mnkb", sizes, strict=True)), device=device)[0].estimate.time_us
                for device, sizes, _ in largest
            ]
        ),
    }
    for estimated in ways.values():
        assert np.allclose(estimated, ways["python"], rtol=1e-9)
        assert np.median(np.abs(estimated / measured - 1)) < 0.10
