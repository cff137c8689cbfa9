"""What the exchanges of a trace move: rows of the layer's combine, the share that leaves, DeepEP's estimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd
import pytest

from tests.conftest import part
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.reading.process_groups import ranks_of_kernels
from tracelens.analysis.verdict.verdict import summarize
from tracelens.extensions import load_extension
from tracelens.predict.network.deepep import distinct
from tracelens.report.result import Report

TABLE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "extensions" / "recorded_autograd.json").read_text(encoding="utf-8")
)
TOKENS, RECEIVED, HIDDEN, TOP_K, EXPERTS = 512, 1408, 7168, 8, 64
KERNELS = {"Dispatch": "void deep_ep::intranode::dispatch<8, 768, 8192>", "Combine": "deep_ep::intranode::combine"}


def layer(case: str, *, backward: bool = True, fp8_slot: bool = False) -> list[dict[str, Any]]:
    """The recorded calls of one layer, without their backward on request."""
    return [event for event in TABLE[case] if backward or not event["name"].endswith("Backward")]


def report(
    tmp_path: Path, calls: list[dict[str, Any]], device: str = "NVIDIA H100 80GB HBM3", **options: Any
) -> Analysis:
    """A trace of these calls, each with one kernel of 100 us, read as a report reads it."""
    events: list[dict[str, Any]] = []
    for number, event in enumerate(calls):
        start, args = 1000.0 * (number + 1), {k: v for k, v in event.items() if k != "name"}
        thread = 2 if event["name"].endswith("Backward") else 1
        backward = event["name"].replace("Backward", "")
        is_dispatch = ("Dispatch" in backward) != (thread == 2)
        host = {"ph": "X", "pid": 1, "tid": thread}
        events += [
            {**host, "cat": "cpu_op", "name": event["name"], "ts": start, "dur": 100, "args": args},
            {
                **host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 10, "dur": 5,
                "args": {"correlation": number + 1},
            },
            {
                "ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": start + 50, "dur": 100,
                "name": KERNELS["Dispatch" if is_dispatch else "Combine"],
                "args": {"correlation": number + 1, "device": 0, "stream": 7},
            },
        ]  # fmt: skip
    whole = {"deviceProperties": [{"id": 0, "name": device}], "traceEvents": events}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(whole), encoding="utf-8")
    return analyze(load(path), AnalysisOptions(**options))


def rows(analysis: Analysis) -> pd.DataFrame:
    return analysis.frames["unified_perf_summary"].set_index("name")


def sheet_rows(workbook: Path, title: str) -> dict[str, dict[str, Any]]:
    """The rows of a sheet by the text of their first cell, each a cell by header."""
    header, *found = openpyxl.load_workbook(workbook)[title].iter_rows(values_only=True)
    return {str(row[0]): dict(zip(header, row, strict=True)) for row in found}


@pytest.mark.parametrize("case", ["primus_fp8", "deep_ep_fp8"])
@pytest.mark.parametrize("backward", [True, False])
def test_an_fp8_dispatch_takes_its_size_from_the_layers_combine(tmp_path: Path, case: str, backward: bool):
    calls = layer(case, backward=backward)
    row = rows(report(tmp_path, calls)).loc[calls[0]["name"]]
    # 1 byte per element of 1408 rows; 7 of 8 ranks are others
    assert row["wire_mb"] == pytest.approx(RECEIVED * HIDDEN / 1e6)
    assert row["expected_remote_mb"] == pytest.approx(RECEIVED * HIDDEN / 1e6 * 7 / 8)
    assert row["copies_per_token"] == pytest.approx(RECEIVED / TOKENS)
    assert "'hidden': 7168" in row["perf_params"]


def test_an_fp8_dispatch_without_a_combine_has_no_bytes_and_no_model(tmp_path: Path):
    row = rows(report(tmp_path, TABLE["primus_fp8"][:1])).loc["MoEDispatch"]
    assert not row["has_perf_model"]
    assert pd.isna(row["wire_mb"])
    assert "no combine of the same layer" in row["note"]


@pytest.mark.parametrize("case", ["megatron", "primus", "deep_ep"])
def test_all_four_exchanges_of_a_layer_move_the_same_copies(tmp_path: Path, case: str):
    frame = rows(report(tmp_path, layer(case)))
    assert frame["wire_mb"].tolist() == pytest.approx([RECEIVED * HIDDEN * 2 / 1e6] * 4)
    assert frame["copies_per_token"].tolist() == pytest.approx([RECEIVED / TOKENS] * 4)
    assert set(frame["remote_from"]) == {"assumed: even routing over 8 ranks"}


def test_without_a_combine_even_routing_says_the_copies(tmp_path: Path):
    row = rows(report(tmp_path, TABLE["megatron"][:1])).loc["FusedDispatch"]
    copies = 8 * (1 - _missed(8))
    assert row["copies_per_token"] == pytest.approx(copies, rel=1e-3)
    assert row["rows_from"] == "even routing: top-8 of 64 experts over 8 ranks"


def _missed(ranks: int) -> float:
    """The chance that none of top-k distinct experts is on a rank."""
    missed = 1.0
    for drawn in range(TOP_K):
        missed *= (EXPERTS - EXPERTS / ranks - drawn) / (EXPERTS - drawn)
    return missed


def test_rows_sorted_by_expert_are_no_copies_per_rank(tmp_path: Path):
    frame = rows(report(tmp_path, layer("megatron_hybrid")))
    # 1408 rows of 512 tokens: about three experts per token
    copies = float(distinct(8, EXPERTS, 3))
    assert frame["copies_per_token"].tolist() == pytest.approx([copies] * 4, rel=1e-3)
    assert (
        frame.loc["HybridEPDispatch", "rows_from"] == "even routing: 2.75 experts per token of 64 experts over 8 ranks"
    )


#: Calls of which only [tokens, hidden] and a type were recorded: name, rows, type, bytes per element.
BARE = (
    ("DeepEPDispatch", 512, "c10::BFloat16", 2), ("DeepEPCombine", 1408, "c10::BFloat16", 2),
    ("DeepEPCombineBackward", 768, "c10::BFloat16", 2), ("DeepEPDispatchBackward", 896, "c10::BFloat16", 2),
)  # fmt: skip
FP8 = ("DeepEPDispatch", 640, "c10::Float8_e4m3fn", 1)


@pytest.mark.parametrize("calls", part([(BARE,), ((FP8, *BARE[1:]),)], 2))
def test_a_bare_exchange_has_an_effective_rate_of_all_its_rows_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: tuple[tuple[str, int, str, int], ...]
):
    monkeypatch.setitem(KERNELS, "Dispatch", "deep_ep::intranode::dispatch")
    bare = [{"name": name, "Input Dims": [[rows, HIDDEN]], "Input type": [dtype]} for name, rows, dtype, _ in calls]
    analysis = report(tmp_path, bare)
    # bytes over the 100 us of its kernel: 1 TB/s is 1e6 bytes per us
    expected = {name: rows * HIDDEN * width / 100 / 1e6 for name, rows, _, width in calls}
    shown = Report(analysis, summarize(analysis))
    shown.write(tmp_path / "out", csv=True, all_sheets=True)

    assert analysis.frames["unified_perf_summary"][["hbm_mb", "hbm_tb_s_mean", "hbm_tb_s_max"]].isna().all(axis=None)
    titles = {
        "effective_interconnect_tb_s_{}": "Effective interconnect bandwidth, {} (TB/s)",
        "remote_from": "Remote data from",
    }
    for sheet in ("EP_Communication", "unified_perf_summary"):
        table = pd.read_csv(tmp_path / "out" / "csv" / f"{sheet}.csv").set_index("name")
        book = sheet_rows(tmp_path / "out" / "report.xlsx", sheet)
        for name, tb_s in expected.items():
            for row, (rate, source) in ((table.loc[name], titles.keys()), (book[name], titles.values())):
                for statistic in ("mean", "median", "min", "max"):
                    assert float(row[rate.format(statistic)]) == pytest.approx(tb_s, rel=1e-6)
                found = next(row[header] for header in dict(row) if header.startswith(source))
                assert found.startswith("every row: at most, the ranks were not recorded")
        hbm = [header for header in table if header.startswith("hbm_")]
        assert table[hbm].isna().all(axis=None)

    records = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    for op in records["ops"]:
        assert op["effective_interconnect_tb_s_mean"] == pytest.approx(expected[op["name"]], rel=1e-6)
        assert op["remote_from"].startswith("every row: at most")
        assert op["hbm_mb"] is None
    (category,) = [row for row in records["categories"] if row["name"] == "EP_Communication"]
    assert category["wire_tb_s"] == pytest.approx(sum(expected.values()) / 4, rel=1e-6)
    assert category["wire_at_most"]
    assert "≤ " in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_ep_size_corrects_the_rate_of_a_bare_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(KERNELS, "Dispatch", "deep_ep::intranode::dispatch")
    bare = [{"name": name, "Input Dims": [[rows, HIDDEN]], "Input type": [dtype]} for name, rows, dtype, _ in BARE]
    analysis = report(tmp_path, bare, ep_size=4)
    row = rows(analysis).loc["DeepEPDispatch"]
    # As many copies as the layer's combine returns; 3 of 4 ranks are others
    assert row["effective_interconnect_tb_s_mean"] == pytest.approx(1408 * HIDDEN * 2 * 3 / 4 / 100 / 1e6)
    assert row["remote_from"] == "assumed: even routing over 4 ranks"
    (category,) = [row for row in summarize(analysis).categories if row.name == "EP_Communication"]
    assert not category.wire_at_most


def test_a_group_of_one_rank_sends_nothing_and_has_no_rate(tmp_path: Path):
    row = rows(report(tmp_path, layer("megatron"), ep_size=1)).loc["FusedDispatch"]
    assert pd.isna(row["effective_interconnect_tb_s_mean"])
    assert row["remote_from"] == "assumed: even routing over 1 ranks"


def test_unknown_ranks_give_no_remote_bytes_and_no_roofline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(KERNELS, "Dispatch", "some_dispatch_kernel")
    analysis = report(tmp_path, layer("megatron"))
    row = rows(analysis).loc["FusedDispatch"]
    assert row["wire_mb"] == pytest.approx(RECEIVED * HIDDEN * 2 / 1e6)
    assert pd.isna(row["expected_remote_mb"])
    assert pd.isna(row["roofline_us"])
    assert "--ep-size" in row["remote_from"]
    given = rows(report(tmp_path, layer("megatron"), ep_size=4)).loc["FusedDispatch"]
    assert given["expected_remote_mb"] == pytest.approx(RECEIVED * HIDDEN * 2 / 1e6 * 3 / 4)


def test_the_roofline_is_of_what_leaves_the_rank_and_deepeps_estimate_stands_beside(tmp_path: Path):
    analysis = report(tmp_path, layer("deep_ep"))
    assert analysis.device is not None
    assert analysis.device.link is not None
    gb_s = analysis.device.link.achievable_gb_s or analysis.device.link.gb_s
    row = rows(analysis).loc["DeepEPCombine"]
    assert row["roofline_us"] == pytest.approx(row["expected_remote_mb"] * 1e3 / gb_s)
    assert row["deepep_us"] > row["roofline_us"]
    other = report(tmp_path, layer("deep_ep"), device="AMD Instinct MI300X")
    assert rows(other)["deepep_us"].isna().all()


def test_two_layers_in_flight_keep_their_own_rows(tmp_path: Path):
    """D1 D2 C1 C2: the gradients say which rows are whose, and of one signature the mean is shown."""
    first, second = layer("megatron"), json.loads(json.dumps(layer("megatron")))
    for event in second:
        event["Sequence number"] += 100
    for event in (second[1], second[3]):
        event["Input Dims"][0] = [1024, HIDDEN]
    calls = [first[0], second[0], first[1], second[1], second[2], second[3], first[2], first[3]]
    frame = rows(report(tmp_path, calls))
    assert frame.loc["FusedDispatch", "copies_per_token"] == pytest.approx((RECEIVED + 1024) / 2 / TOKENS)
    combines = frame.loc["FusedCombine"]
    assert sorted(combines["copies_per_token"]) == pytest.approx([1024 / TOKENS, RECEIVED / TOKENS])


def test_an_extension_on_the_forward_alone_models_the_backward(tmp_path: Path):
    source = tmp_path / "mine.py"
    source.write_text(
        "from tracelens import EPComm, OpSignature, traced_as\n"
        '@traced_as("MyDispatch")\n'
        "def _dispatch(op: OpSignature) -> EPComm:\n"
        "    tokens, hidden = op.shape(0, rank=2)\n"
        '    return EPComm(tokens=tokens, hidden=hidden, dtype=op.dtype(0), phase="dispatch")\n',
        encoding="utf-8",
    )
    calls = [dict(e, name=e["name"].replace("Fused", "My")) for e in layer("megatron") if "Dispatch" in e["name"]]
    frame = rows(report(tmp_path, calls, extensions=(load_extension(source),)))
    back = frame.loc["MyDispatchBackward"]
    assert (back["category"], back["model"]) == ("EP_Communication", "EPComm")
    assert back["wire_mb"] == pytest.approx(RECEIVED * HIDDEN * 2 / 1e6)
    assert frame.loc["MyDispatch", "copies_per_token"] == pytest.approx(RECEIVED / TOKENS)


def test_deepeps_kernels_say_how_many_ranks_they_are_built_for():
    assert ranks_of_kernels(["void deep_ep::intranode::combine<__nv_bfloat16, 4, 768, 4096>(...)"]) == 4
    assert ranks_of_kernels(["void deep_ep::internode::dispatch<false, 2, false, 16384, 7>(...)"]) == 16
    assert ranks_of_kernels(["deep_ep::intranode::notify_dispatch<8>", "deep_ep::intranode::dispatch<4, 1>"]) is None
    assert ranks_of_kernels(["void deep_ep::layout::get_dispatch_layout<256, 32, 8>", "gemm<8>"]) is None


def test_rows_of_a_padded_buffer_are_no_copies(tmp_path: Path):
    """``num_worst_tokens`` pads what a rank receives to tokens x ranks, whatever arrives."""
    calls = json.loads(json.dumps(layer("deep_ep")))
    calls[0]["Concrete Inputs"][-1] = "4096"
    calls[1]["Input Dims"][0] = calls[3]["Input Dims"][0] = [4096, HIDDEN]
    frame = rows(report(tmp_path, calls))
    copies = float(distinct(8, EXPERTS, TOP_K))
    assert frame["copies_per_token"].tolist() == pytest.approx([copies] * 4)
    assert frame.loc["DeepEPCombine", "rows_from"] == "even routing: top-8 of 64 experts over 8 ranks"
