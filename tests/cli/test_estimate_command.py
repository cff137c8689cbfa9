"""``tracelens estimate``: one operation side by side, and tables."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import tracelens as tl
from tests.conftest import part
from tracelens.backends.chain import OPTIONAL
from tracelens.cli import main
from tracelens.errors import UsageError

#: What ``estimate`` says of watts.
DRAWN = [f"{name}{end}" for name in ("power_w", "energy_mj") for end in ("", "_low", "_high")] + ["power_measured_as"]


def test_devices_stand_side_by_side(capsys):
    assert main(["estimate", "gemm", "--m", "8192", "--n", "8192", "--k", "8192", "--device", "h200,b200"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["device", "time"]
    assert (first.split()[0], second.split()[0]) == ("h200-sxm", "b200")
    assert float(first.split()[1]) > float(second.split()[1])


@pytest.mark.parametrize(("size", "rate"), [(16, "<0.01"), (64, r"0\.\d\d"), (65536, r"\d{3}")])
def test_every_rate_and_time_is_readable(capsys, size: int, rate: str):
    """Neither a rate of 0 for a product of 16, nor a power of ten for one of 65,536 that takes 0.7 s."""
    sizes = [text for name in "mnk" for text in (f"--{name}", str(size))]
    assert main(["estimate", "gemm", *sizes, "--device", "h200-sxm"]) == 0
    _, row = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rate, row.split()[2])
    assert "e+" not in row


def test_backward_prints_each_gradient_apart(capsys):
    main(["estimate", "gemm", "--m", "512", "--n", "1024", "--k", "2048", "--device", "h200", "--backward"])
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]] == ["forward", "dgrad", "wgrad"]


def test_a_missing_size_is_named(capsys):
    assert main(["estimate", "gemm", "--m", "8", "--n", "8", "--device", "h100"]) == 2
    assert "--k is needed" in capsys.readouterr().err


def test_a_table_keeps_its_rows_and_says_why_some_have_no_time(tmp_path):
    rows = pd.DataFrame(
        {
            "device": ["h100_sxm", "h100_sxm", "nobody", "h100_sxm"],
            "gemm_dtype": ["bfloat16", "int3", "bfloat16", "bfloat16"],
            "m": [128, 128, 128, 0], "n": [4096] * 4, "k": [4096] * 4,
        }
    )  # fmt: skip
    rows.to_csv(tmp_path / "in.csv", index=False)
    assert main(["estimate", "gemm", "--batch", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    out = pd.read_csv(tmp_path / "out.csv")
    added = ["time_us", "bound", "backend", "measured_as", "error_percent", "reason", *DRAWN]
    assert list(out.columns) == ["device", "gemm_dtype", "m", "n", "k", *added]
    assert out["measured_as"].fillna("").tolist() == ["gemm bf16 on h100-sxm", "", "", ""]
    assert out["backend"].fillna("").tolist() == ["tile", "", "", ""]
    assert out["time_us"].notna().tolist() == [True, False, False, False]
    assert out["reason"].fillna("").tolist() == [
        "",
        "there are no estimates for type 'int3'; use for example bf16 or fp8",
        "no device named 'nobody'",
        "row 5, column 'm' must be a whole number from 1 to 1e15, got 0",
    ]


def test_a_table_keeps_watts_of_its_own_and_ours_get_an_ending():
    rows = pd.DataFrame(
        {"m": [8192, 4096], "n": [8192] * 2, "k": [8192] * 2, "power_w": [1.0, 2.0], "energy_mj_low": 3}
    )
    found = tl.estimate("gemm", rows, device="h200")
    assert found["power_w"].tolist() == [1, 2]
    assert found["energy_mj_low"].tolist() == [3, 3]
    assert {"power_w_est", "power_w_low", "energy_mj", "energy_mj_low_est"} <= set(found)
    assert (found["power_w_low"] <= found["power_w_est"]).all()
    assert (found["power_w_est"] <= found["power_w_high"]).all()
    assert found["energy_mj"].to_numpy() == pytest.approx((found["power_w_est"] * found["time_us"] * 1e-3).to_numpy())
    without = tl.estimate("gemm", rows.drop(columns=["power_w", "energy_mj_low"]), device="h200")
    assert without["power_w"].tolist() == found["power_w_est"].tolist()


def test_watts_that_nobody_measured_are_empty_in_every_kind_of_table():
    for name, sizes in {
        "gemm": {"m": 8192, "n": 8192, "k": 8192}, "quantize-matrix": {"m": 8192, "k": 8192},
        "moe": {"num_tokens": 512, "hidden_size": 7168, "inter_size": 2048, "topk": 8, "num_experts": 256},
    }.items():  # fmt: skip
        unknown, known = (tl.estimate(name, sizes, device=device).iloc[0] for device in ("mi300x", "h200"))
        assert unknown["time_us"] > 0
        assert np.isnan([unknown[column] for column in DRAWN[:-1]]).all()
        assert unknown["power_measured_as"] == ""
        assert known["power_measured_as"] == f"{name} vllm on h200-sxm"


def test_the_answer_says_whose_watts_it_has_and_where_there_are_none(capsys):
    sizes = ["--m", "8192", "--n", "8192", "--k", "8192"]
    assert main(["estimate", "gemm", *sizes, "--device", "h200,h100,mi300x"]) == 0
    header, own, carried, unknown, *notes = capsys.readouterr().out.splitlines()
    assert ("power W" in header, "energy mJ" in header) == (True, True)
    assert len(re.findall(r"\d \([\d,]+ to [\d,]+\)", own)) == 2
    assert len(re.findall(r"\d \([\d,]+ to [\d,]+\)", carried)) == 2
    assert unknown.split()[-7:-5] == ["unknown", "unknown"]
    assert notes == [
        "h100-sxm: watts by the energies of h200-sxm, with a wider interval: nobody measured its own",
    ]


def test_the_answer_says_that_units_and_clock_are_another_device_s_once_and_not_of_one_that_has_its_own(capsys):
    sizes = ["--m", "8192", "--n", "8192", "--k", "8192"]
    assert main(["estimate", "gemm", *sizes, "--device", "b300,b200"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("compute units")]
    assert said == [
        "compute units, clock and L2 size of NVIDIA B200 SXM 180GB: those of NVIDIA B300 SXM 288GB are not in its file"
    ]


def test_a_lower_clock_takes_longer_and_fewer_watts():
    usual, slow = (
        tl.estimate("gemm", {"m": 8192, "n": 8192, "k": 8192}, device="h200", gpu_clock_mhz=mhz).iloc[0]
        for mhz in (None, 1000.0)
    )
    assert slow["time_us"] > usual["time_us"]
    assert slow["power_w"] < usual["power_w"]


def test_the_device_may_be_an_option():
    rows = pd.DataFrame({"m": [4096], "n": [4096], "k": [4096]})
    found = tl.estimate("gemm", rows, device="mi300x")
    assert found["time_us"][0] >= 2 * 4096**3 / 1307.4e6
    with pytest.raises(UsageError, match="no column 'device'"):
        tl.estimate("gemm", rows)


def test_one_operation_from_python_is_a_mapping() -> None:
    rows = pd.DataFrame({"m": [8192], "n": [8192], "k": [8192]})
    found = tl.estimate("gemm", {"m": 8192, "n": 8192, "k": 8192}, device="h200")
    assert found["time_us"].tolist() == tl.estimate("gemm", rows, device="h200")["time_us"].tolist()


@pytest.mark.parametrize(
    ("what", "table", "said"),
    [
        (tl.GEMM(m=1, n=1, k=1), "h100", "estimate takes a name like 'gemm' first, not a GEMM"),
        ("gemm", [8192, 8192], "a DataFrame, or a mapping of column names to sizes, not a list"),
        ("gemm", {"m": 8192}, "needs the column 'n'"),
    ],
)
def test_what_cannot_be_estimated_is_refused_in_words(what, table, said) -> None:
    with pytest.raises(UsageError, match=said):
        tl.estimate(what, table, device="h100")


def test_a_missing_column_is_named():
    with pytest.raises(UsageError, match="needs the column 'k'"):
        tl.estimate("gemm", pd.DataFrame({"m": [1], "n": [1]}), device="h100")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("what", "file", "most"),
    part(
        [
            ("gemm", "gemm", 10),
            ("context-attention", "context_attention", 10),
            ("generation-attention", "generation_attention", 10),
            ("moe", "moe", 13),
        ],
        4,
    ),
)
def test_measured_tables_are_met(shared_traces, what, file, most):
    pytest.importorskip("pyarrow")
    table = pd.read_parquet(shared_traces.parent / "silicon" / f"{file}.parquet").iloc[::10]
    found = tl.estimate(what, table)
    error = (found["time_us"] / found["latency_ms"] / 1e3 - 1).abs() * 100
    assert found["time_us"].notna().all()
    assert error[table["device"] != "l40s"].mean() < most


def test_a_table_that_cannot_be_written_is_one_sentence(tmp_path, capsys):
    pd.DataFrame({"m": [8], "n": [8], "k": [8]}).to_csv(tmp_path / "in.csv", index=False)
    out = tmp_path / "no such folder" / "out.csv"
    assert main(["estimate", "gemm", "--batch", str(tmp_path / "in.csv"), "-o", str(out), "--device", "h100"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_table_takes_one_device(tmp_path, capsys):
    pd.DataFrame({"m": [8], "n": [8], "k": [8]}).to_csv(tmp_path / "in.csv", index=False)
    assert main(["estimate", "gemm", "--batch", str(tmp_path / "in.csv"), "--device", "h100,b200"]) == 2
    assert "column 'device'" in capsys.readouterr().err


def test_parquet_goes_in_and_out(tmp_path):
    pytest.importorskip("pyarrow")
    pd.DataFrame({"m": [128, 256], "n": [4096] * 2, "k": [4096] * 2}).to_parquet(tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    assert main(["estimate", "gemm", "--batch", str(tmp_path / "in.parquet"), "-o", str(out), "--device", "h100"]) == 0
    assert pd.read_parquet(out)["time_us"].is_monotonic_increasing


def test_a_table_of_latent_attention_names_only_heads():
    rows = pd.DataFrame({"batch_size": [32, 32], "isl": [1, 1], "num_heads": [16, 128], "step": [8191, 8191]})
    found = tl.estimate("generation-mla", rows, device="h200")
    # 32 caches of 8192 rows of 576 in bf16, at 4.8 TB/s.
    assert found["time_us"][0] >= 32 * 8191 * 576 * 2 / 4.8e6
    assert found["time_us"][1] > found["time_us"][0]
    assert found["backend"].tolist() == ["tile", "tile"]


def test_an_absent_package_is_said_on_stderr(capsys, monkeypatch):
    monkeypatch.setitem(OPTIONAL, "origami", lambda: "not here")
    size = ["--m", "512", "--n", "512", "--k", "512"]
    assert main(["estimate", "gemm", *size, "--device", "mi300x", "--backend", "origami,tile"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "note: backend origami has no answers: not here\n"
    assert printed.out.splitlines()[1].endswith("tile")


def test_a_gradient_goes_to_the_backend_that_is_asked_for(capsys):
    sizes = "--b 4 --s-q 2048 --q-heads 16 --d-qk 192 --d-v 128 --device h100 --backward --backend roofline"
    assert main(["estimate", "sdpa", *sizes.split()]) == 0
    gradient = capsys.readouterr().out.splitlines()[2].split()
    # 16 heads of 4 * 2048 * 2049 / 2 pairs: QK^T, dQ and dK over 192, dP and dV over 128, at 794.5 TFLOPS/s
    assert float(gradient[2]) == pytest.approx(2 * 16 * 4 * 2048 * 2049 / 2 * (3 * 192 + 2 * 128) / 794.5e6, rel=1e-3)
    assert gradient[-1] == "roofline"


@pytest.mark.parametrize(
    "words",
    [
        "sdpa --s-q 64 --q-heads 8 --d-qk 64 --device h100 --kv-heads -8",
        "sdpa --s-q 64 --q-heads 8 --d-qk 64 --device h100 --window -5",
        "collective --op all_reduce --ranks 8 --cluster dgx-h100 --bytes=-1",
        "ep --hidden 7168 --topk 8 --experts 64 --ranks 16 --device h200 --tokens -4",
        "ep --hidden 7168 --topk 8 --experts 64 --ranks 16 --device h200 --tokens 4 --sms 0",
    ],
)
def test_sizes_that_nothing_has_are_refused(words, capsys):
    assert main(["estimate", *words.split()]) == 2
    assert capsys.readouterr().out == ""


def test_an_impossible_row_costs_no_other_its_answer():
    rows = pd.DataFrame(
        {
            "num_tokens": [128, 128, 128], "hidden_size": [2048] * 3, "inter_size": [1024] * 3, "topk": [2, 20, 4],
            "num_experts": [8] * 3, "moe_tp_size": [1] * 3, "moe_ep_size": [1] * 3, "distribution": ["balanced"] * 3,
        }
    )  # fmt: skip
    found = tl.estimate("moe", rows, device="h100")
    assert found["time_us"].notna().tolist() == [True, False, True]
    assert found["reason"].tolist() == ["", "top-k 20 needs at least as many experts, there are 8", ""]


def test_a_type_that_the_device_has_no_rate_for_has_no_estimate(capsys):
    sizes = {"m": [8192], "n": [8192], "k": [8192]}
    found = tl.estimate("gemm", pd.DataFrame({**sizes, "gemm_dtype": ["fp8"]}), device="a100")
    assert found["time_us"].isna().all()
    assert found["reason"].tolist() == [
        "a100-sxm-80gb has no matrix units for fp8: its file has fp64, tf32, fp16, bf16, int8, int4"
    ]
    words = "estimate gemm --m 8192 --n 8192 --k 8192 --dtype fp8 --device a100,h100"
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "no backend can answer" in lines[1]
    assert lines[2].endswith("tile")
    assert main(words.removesuffix(",h100").split()) == 3
    capsys.readouterr()
    # a cache in FP8 is widened: 4096 * 4097 / 2 pairs of 32 heads in BF16, at 312 TFLOPS/s at most
    words = "estimate sdpa --s-q 4096 --q-heads 32 --d-qk 128 --dtype fp8 --device a100 --backend roofline"
    assert main(words.split()) == 0
    assert float(capsys.readouterr().out.splitlines()[1].split()[1]) > 2 * 32 * 4096 * 4097 / 2 * 256 / 312e6


@pytest.mark.parametrize("kind", ["moe-mxfp4", "wideep-moe", "moe-aiter"])
def test_a_table_of_experts_whose_rows_are_all_refused_says_why(kind: str) -> None:
    table = pd.DataFrame([{"num_tokens": -1, "moe_dtype": "mxfp4", "distribution": "balanced", "framework": "trtllm"}])
    sizes = ("hidden_size", "inter_size", "topk", "num_experts", "num_slots", "moe_tp_size", "moe_ep_size")
    table = table.assign(**dict.fromkeys(sizes, 64), moe_kernel="cutlass")
    found = tl.estimate(kind, table, device="h200")
    assert "num_tokens" in found["reason"][0]
    assert np.isnan(found["time_us"][0])
