"""The sheet kernel_counters: counted beside modelled work, and what counters explain."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracelens
from tests.analysis.conftest import Builder
from tests.conftest import part
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.sheets.device_memory import why_below_roofline
from tracelens.trace.reading.counter_files import NO_NAME, CountedKernels, read_counters
from tracelens.trace.table import Kind

Build = Callable[[], Builder]
GEMM = "Cijk_Ailk_Bljk"
#: Bytes of a bf16 product of two 4096 x 4096 matrices, each moved once.
MODEL = 3 * 4096 * 4096 * 2


def products(builder: Builder, steps: int = 1) -> Builder:
    """Two products with one kernel and grid, told apart by their order alone, and a kernel without an op."""
    for step in range(steps):
        at = 3000 * step
        builder.mm(
            4096, 4096, 4096, at=10 + 100 * step, start=at + 100, duration=800, grid=[16, 16, 1], block=[256, 1, 1]
        )
        builder.mm(
            4096, 8192, 4096, at=20 + 100 * step, start=at + 900, duration=1600, grid=[16, 16, 1], block=[256, 1, 1]
        )
        builder.launch(30 + 100 * step, "alone", at + 2500, 50, grid=[1, 1, 1], block=[64, 1, 1])
    return builder


def counters(*launches: Mapping[str, Any], name: str = "c.csv") -> CountedKernels:
    """Of the two products and the other kernel, with these metrics each."""
    kernels = (GEMM, GEMM, "alone", "elsewhere")
    grids = ((16, 16, 1), (16, 16, 1), (1, 1, 1), (1, 1, 1))
    blocks = ((256, 1, 1), (256, 1, 1), (64, 1, 1), (64, 1, 1))
    places = [
        (kernel, None, ("1", "0"), grid, block)
        for kernel, grid, block, _ in zip(kernels, grids, blocks, launches, strict=False)
    ]
    keys = {key for launch in launches for key in launch}
    metrics = {key: np.array([launch.get(key, np.nan) for launch in launches], np.float64) for key in sorted(keys)}
    return CountedKernels.of(name, "test", places, metrics)


def sheet(builder: Builder, *files: CountedKernels) -> pd.DataFrame:
    return analyze(builder.trace(), AnalysisOptions(counters=files)).frames["kernel_counters"]


READ, WRITTEN, HITS = "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_sector_hit_rate.pct"
BUSY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"


def test_counted_bytes_stand_beside_the_models(build: Build) -> None:
    file = counters({READ: 1.5 * MODEL, WRITTEN: 0.5 * MODEL, HITS: 12}, {READ: 3e8, WRITTEN: 1e8}, {READ: 1e6}, {})
    frame = sheet(products(build(), steps=2), file)
    assert frame["kernel_name"].tolist() == [GEMM, GEMM, "alone", "elsewhere"], (
        "most time first, then what is not joined"
    )
    second, first, alone, elsewhere = (row for _, row in frame.iterrows())
    assert (first.op, first.counted, first.recorded, first.joined_by) == ("aten::mm", 1, 2, "sequence of launches")
    assert (first.input_dims, second.input_dims) == ("((4096, 4096), (4096, 4096))", "((4096, 8192), (8192, 4096))")
    assert first.model_mb == pytest.approx(MODEL / 1e6)
    assert first.hbm_mb == pytest.approx(2 * MODEL / 1e6)
    assert first.measured_over_model == pytest.approx(2)
    assert first.gflops == pytest.approx(2 * 4096**3 / 1e9)
    assert second.hbm_mb == pytest.approx(400)
    assert (first.kernel_us_mean, second.kernel_us_mean, alone.kernel_us_mean) == (800, 1600, 50)
    assert alone[["model_mb", "hbm_mb", "measured_over_model"]].isna().all(), "reads without writes are no traffic"
    assert (elsewhere.counted, elsewhere.recorded, elsewhere.not_joined) == (1, 0, NO_NAME)
    assert frame["counted"].sum() == len(file)


def test_metrics_of_several_files_meet_in_one_row(build: Build) -> None:
    """A run per group of metrics; each is joined by itself."""
    files = counters({READ: 1e6}, {}, name="a.csv"), counters({WRITTEN: 2e6, HITS: 50}, {}, name="b.csv")
    frame = sheet(products(build()), *files)
    first = frame[frame["input_dims"].str.startswith("((4096, 4096)", na=False)].iloc[0]
    assert first.l2_hit_percent == 50
    assert first.counted == 1


def test_bytes_of_a_call_are_those_of_all_its_kernels(build: Build) -> None:
    """Split-K: a product and a reduction in one call. With the reduction not counted, nothing is known of the call."""
    builder = build().mm(4096, 4096, 4096, at=10, start=100, duration=800)
    builder.launch(12, "splitk_reduce", 900, 100)

    def file(*names: str) -> CountedKernels:
        places = [(name, None, ("1", "0"), (0, 0, 0), (0, 0, 0)) for name in names]
        return CountedKernels.of(
            "c.csv", "test", places, {"dram__bytes.sum": np.array([MODEL, MODEL / 2])[: len(names)]}
        )

    both = sheet(builder, file(GEMM, "splitk_reduce"))
    assert both["measured_over_model"].tolist() == [pytest.approx(1.5)] * 2
    assert both["hbm_mb"].tolist() == [pytest.approx(MODEL / 1e6), pytest.approx(MODEL / 2e6)]
    alone = sheet(builder, file(GEMM))
    assert alone["measured_over_model"].isna().all()


SILENT = dict.fromkeys(
    ("measured_over_model", "l2_hit_percent", "hbm_percent", "tensor_percent", "vector_percent", "occupancy_percent",
     "sm_active_percent", "shared_memory_percent", "bank_conflict_percent", "waves_per_sm", "stall_percent"), np.nan
) | {"stall_reason": None, "percent_of_roofline": 40.0, "roofline_bound": "memory"}  # fmt: skip

CASES = {
    "read again": {"measured_over_model": 3.9, "l2_hit_percent": 12},
    "shared memory, conflicts": {"stall_reason": "short_scoreboard", "stall_percent": 45, "bank_conflict_percent": 60},
    "shared memory, pipe": {"stall_reason": "mio_throttle", "stall_percent": 45, "shared_memory_percent": 90},
    "latency": {
        "stall_reason": "long_scoreboard", "stall_percent": 70, "occupancy_percent": 12, "hbm_percent": 20
    },
    "pipe": {"stall_reason": "math_pipe_throttle", "stall_percent": 40, "tensor_percent": 91},
    "grid": {"waves_per_sm": 0.4, "sm_active_percent": 35},
}  # fmt: skip
SENTENCES = {
    "read again": "the L2 hits 12 % and HBM moves 3.9 times the model's bytes: it reads data more than once",
    "shared memory, conflicts": "waits for shared memory: 45 % of warp cycles (short_scoreboard), and bank conflicts are "
    "60 % of its accesses",
    "shared memory, pipe": "waits for shared memory: 45 % of warp cycles (mio_throttle), and the pipe to it is 90 % busy",
    "latency": "waits for global memory: 70 % of warp cycles (long_scoreboard), occupancy is 12 % and the HBM 20 % busy: "
    "too few warps hide latency",
    "pipe": "the tensor pipe is 91 % busy and warps wait for it 40 % of their cycles: it computes more than the model "
    "counts, or in a slower type",
    "grid": "the grid is 0.40 of what the device runs at a time, and its multiprocessors have work 35 % of the time: too "
    "few blocks",
}


@pytest.mark.parametrize("case", CASES)
def test_two_signs_explain_and_either_of_them_alone_does_not(case: str) -> None:
    signs = CASES[case]
    assert why_below_roofline({**SILENT, **signs}) == SENTENCES[case]
    for left_out in signs:
        assert why_below_roofline({**SILENT, **signs, left_out: SILENT[left_out]}) is None, left_out
    assert why_below_roofline({**SILENT, **signs, "percent_of_roofline": 96.0}) is None, "nothing to explain"
    assert why_below_roofline({**SILENT, **signs, "percent_of_roofline": None}) is None, "no roofline is known"


LARGE = 32768 * 8192 * 2
SMALL = 8192 * 256 * 2


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (4 * LARGE + SMALL, "A (537 MB) 4.0 times"),
        (1.4 * LARGE + SMALL, "data more than once"),  # 40 % of A: the small operand and halves of tiles may do that
        (LARGE + 60 * SMALL, "data more than once"),  # B sixty times, or half of A again
    ],
)
def test_a_large_operand_alone_explains_what_was_read_again(build: Build, read: float, said: str) -> None:
    """A of 537 MB does not fit into the 32 MiB of MI300X's L2, B of 4 MB fits into half of it."""
    builder = build().mm(32768, 8192, 256, at=10, start=100, duration=4000)
    metrics = {READ: read, WRITTEN: LARGE, HITS: 12.0, BUSY: 70.0}
    places = [(GEMM, None, ("1", "0"), (0, 0, 0), (0, 0, 0))]
    file = CountedKernels.of("c.csv", "test", places, {key: np.array([value]) for key, value in metrics.items()})
    (why,) = sheet(builder, file)["why"]
    assert why.endswith(f"times the model's bytes: it reads {said}")


def test_two_large_operands_leave_open_which_was_read_again(build: Build) -> None:
    builder = build().mm(16384, 1024, 16384, at=10, start=100, duration=4000)
    places = [(GEMM, None, ("1", "0"), (0, 0, 0), (0, 0, 0))]
    metrics = {READ: 3e9, WRITTEN: 6e8, HITS: 12.0, BUSY: 70.0}
    file = CountedKernels.of("c.csv", "test", places, {key: np.array([value]) for key, value in metrics.items()})
    (why,) = sheet(builder, file)["why"]
    assert why.endswith("it reads data more than once")


@pytest.mark.parametrize(
    "against",
    [
        {"hbm_percent": 20},
        {"roofline_bound": "compute"},
        {"l2_hit_percent": 80},
        {"measured_over_model": 1.1},
    ],
)
def test_more_bytes_do_not_explain_a_kernel_that_does_not_wait_for_them(against: dict[str, Any]) -> None:
    assert why_below_roofline({**SILENT, **CASES["read again"], **against}) is None


def test_a_busy_memory_is_no_latency() -> None:
    assert why_below_roofline({**SILENT, **CASES["latency"], "hbm_percent": 85}) is None


NCU_HEAD = (
    '"ID","Process ID","Kernel Name","Block Size","Grid Size","Device","Metric Name","Metric Unit","Metric Value"'
)


def ncu(tmp_path: Path, kernel: str = GEMM) -> Path:
    metrics = {
        "dram__bytes.sum": ("Mbyte", "400"), HITS: ("%", "12"),
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "75"), "gpu__time_duration.sum": ("furlong", "1"),
    }  # fmt: skip
    rows = [
        f'"0","7","{kernel}","(256, 1, 1)","(16, 16, 1)","0","{key}","{u}","{v}"' for key, (u, v) in metrics.items()
    ]
    path = tmp_path / "ncu.csv"
    path.write_text("\n".join(["==PROF== Connected", NCU_HEAD, *rows]))
    return path


def trace_file(builder: Builder, tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    mi300x = {"id": 0, "name": "AMD Instinct MI300X", "numSms": 304, "warpSize": 64}
    path.write_text(json.dumps({"deviceProperties": [mi300x], "traceEvents": builder.events}))
    return path


def test_the_report_says_what_was_joined_and_why_a_kernel_is_slow(build: Build, tmp_path: Path) -> None:
    builder = build()
    for n in range(8):
        builder.mm(4096, 4096, 4096, at=10 * n, start=100 + 800 * n, duration=800, grid=[16, 16, 1], block=[256, 1, 1])
    path = trace_file(builder, tmp_path)
    made = tracelens.report(path, counters=[ncu(tmp_path)])
    over = 400e6 / MODEL
    why = f"the L2 hits 12 % and HBM moves {over:.1f} times the model's bytes: it reads data more than once"
    assert made["kernel_counters"]["why"].tolist() == [why]
    finding = next(each for each in made.summary.findings if each.id == "op_below_roofline")
    assert finding.why.endswith(f"; counters: {why}")
    notices = {notice.id: notice.text for notice in made.summary.notices}
    assert (
        notices["counters"] == f"--counters: 1 of 1 launch joined; counted HBM bytes over the model's: GEMM {over:.2f}"
    )
    assert "furlong" in notices["counter_units"]
    plain = tracelens.report(path)
    assert "kernel_counters" not in list(plain)
    assert not any("counters" in finding.why for finding in plain.summary.findings)


def test_names_of_a_counter_file_stay_text(build: Build, tmp_path: Path) -> None:
    path = trace_file(products(build()), tmp_path)
    out = tmp_path / "r"
    made = tracelens.report(path, counters=[ncu(tmp_path, "=cmd|'<script>alert(1)</script>'")])
    made.write(out, csv=True)
    assert "<script>alert(1)" not in (out / "report.html").read_text(encoding="utf-8")
    assert ",=cmd" not in (out / "csv" / "kernel_counters.csv").read_text(encoding="utf-8")
    (notice,) = (each.text for each in made.summary.notices if each.id == "counters")
    assert notice == "--counters: 0 of 1 launch joined; not joined: 1, as the trace has no kernel of this name"


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    part(["h100/gaunernst_bert-small-uncased__1016001.json.gz", "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"], 2),
)
def test_every_kernel_of_a_real_trace_is_joined_with_its_own_op(
    real_trace: Callable[[str], Trace], tmp_path: Path, name: str
) -> None:
    """The trace's own kernels as Nsight Compute would write them, each with a number of bytes of its own."""
    trace = real_trace(name)
    table, tree = trace.table, trace.tree
    rows = np.flatnonzero(table.kind == Kind.KERNEL)
    launch = tree.launch[rows]
    rows = rows[np.lexsort((table.start_ns[rows], np.where(launch >= 0, table.start_ns[launch], table.start_ns[rows])))]
    with (path := tmp_path / "ncu.csv").open("w", newline="") as file:
        write = csv.writer(file, quoting=csv.QUOTE_ALL).writerow
        write(next(csv.reader([NCU_HEAD])))
        for number, row in enumerate(rows.tolist()):
            args, kernel = table.args(row), table.name_of(row).replace("ul>", ">").replace("> >", ">>")
            sizes = (f"({', '.join(map(str, args[what]))})" if what in args else "" for what in ("block", "grid"))
            write([number, 7, kernel, *sizes, 0, "dram__bytes.sum", "byte", f"{1000 + number:,}"])
    counted_of = dict(zip(rows.tolist(), range(1000, 1000 + len(rows)), strict=True))
    options = AnalysisOptions(counters=(read_counters(path),), steps="file")
    analysis = analyze(trace, options, on_demand=True)
    frame = analysis.frames["kernel_counters"]
    assert frame["not_joined"].isna().all()
    assert frame["counted"].sum() == len(rows)
    assert (frame["counted"] == frame["recorded"]).all()
    assert analysis.row_of_event is not None
    expected: dict[tuple[int, str], list[int]] = {}
    for row, of in zip(analysis.activity.rows.tolist(), analysis.row_of_event.tolist(), strict=True):
        if row in counted_of:
            expected.setdefault((of, table.name_of(row)), []).append(counted_of[row])
    found = {(row["_row"], row["kernel_name"]): row["hbm_mb"] * 1e6 for row in frame.to_dict("records")}
    assert found == {key: pytest.approx(np.mean(values)) for key, values in expected.items()}


def test_a_report_without_counters_imports_none_of_it(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = "tracelens.trace.reading.counter_files"
    monkeypatch.delitem(sys.modules, reading, raising=False)
    tracelens.report(trace_file(products(build()), tmp_path)).to_json()
    assert reading not in sys.modules
