"""The verdict: a screen of 80 columns, and nothing that a terminal would obey."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.analysis.verdict.summary import (
    Busy,
    CategoryRow,
    Coverage,
    DeviceSummary,
    Finding,
    InputSummary,
    Notice,
    Steps,
    Summary,
    Unseen,
)
from tracelens.files.safe_text import display_width
from tracelens.report.terminal import verdict, wants_color


def test_the_whole_verdict(summary):
    assert verdict(summary, seconds=4.8, written=["moe-16b.report/"]).splitlines() == [
        " moe-16b",
        " rank 3 of 8 · 4 steps (ProfilerStep) · MI300X · torch 2.9 · 600,345 events in …",
        " step 184.0 ms   10 % of dense bf16 peak",
        "     mean of 4: 181.8 to 186.2 ms",
        "     excluded: 36.0 ms of GPU work launched before profiling began",
        " matrix ops, 50 % of GPU time: 23 % of peak, 42 % of achievable",
        " GPU busy 91.8 %  = compute 78.4 + exposed comm 11.9 + memcpy 1.5; idle 8.2 %",
        " coverage  perf model 91 % of GPU time · unlinked 3 % · shapes yes · stacks no",
        " extensions megatron",
        "",
        " per step                  ms      % TFLOPS/s       TB/s  bound by  of roofline",
        " GEMM                    79.5   43.2      520   1.10 HBM  compute          40 %",
        " EP_Communication        21.7   11.8        -   210 GB/s  link             47 %",
        " other                   14.9    8.1        -          -  no model",
        " (idle)                  15.1    8.2",
        "",
        " look here first (counts: all 4 steps)                            gain per step",
        " 1 mm 4096x14336x4096 bf16, 32 calls: 57 % of achievable                16.3 ms",
        " ! 14 device events have no recorded launch",
        " wrote moe-16b.report/",
    ]


def test_utilization_is_one_line_below_the_step(summary, utilization):
    lines = verdict(replace(summary, utilization=utilization)).splitlines()
    assert lines[6] == " MFU 20 %, HFU 23 % (37, 42 % of achievable) · moe-16b training, 32,768 tokens"


def test_utilization_without_a_device_is_flops(summary, utilization):
    used = replace(utilization, mfu=None, mfu_of_achievable=None, hfu=None, hfu_of_achievable=None)
    lines = verdict(replace(summary, utilization=used)).splitlines()
    assert lines[6] == " 48.1 TFLOP per step · moe-16b training, 32,768 tokens"


def test_without_device_steps_and_gpu_work_it_says_what_is_known():
    bare = Summary(
        input=InputSummary(file="cpu.json", events=12),
        device=DeviceSummary(id=None, label="unknown device", matched_by="none"),
    )
    assert verdict(bare).splitlines() == [
        " cpu  unknown device (no spec) · 12 events",
        " coverage  shapes no · stacks no",
    ]


def test_cpu_time_has_no_columns_of_a_device(summary):
    rows = (CategoryRow(name="GEMM", time_us=76_600.0, share=0.763),)
    lines = verdict(replace(summary, busy=None, categories=rows, findings=(), notices=())).splitlines()
    assert lines[-2:] == [" CPU time per step         ms      %", " GEMM                    76.6   76.3"]


def test_categories_beyond_the_eighth_line_are_added_up(summary):
    rows = tuple(CategoryRow(name=f"c{i}", time_us=1000.0 * (9 - i), share=0.1) for i in range(9))
    lines = verdict(replace(summary, categories=rows)).splitlines()
    # Each runs for a tenth of the step's 184 ms
    assert [line.split()[:3] for line in lines[11:19]] == [[f"c{i}", "18.40", "10.0"] for i in range(7)] + [
        ["2", "more", "36.80"]
    ]


def test_a_long_sentence_continues_on_the_next_lines_to_its_end(summary):
    why = (
        "aten::_scaled_dot_product_flash_attention (16, 16, 559, 64), (16, 16, 559, 64), 24 calls: 9 % of the roofline"
    )
    fits = (
        'AMD 9.0, 104 units, 64.0 GiB, "AMD Radeon Graphics" fits mi210 and mi250-gcd, which agree on bf16 181 TFLOPS'
    )
    finding = Finding(id="a", op=None, gain_us=3670.0, certainty="low", why=why)
    notice = Notice(id="a", count=1, text=f"{fits}, HBM 1.6 TB/s; choose one with --device NAME")
    assert verdict(replace(summary, findings=(finding,), notices=(notice,))).splitlines()[-5:] == [
        " 1 aten::_scaled_dot_product_flash_attention (16, 16, 559, 64), (16,    3.67 ms",
        "   16, 559, 64), 24 calls: 9 % of the roofline",
        ' ! AMD 9.0, 104 units, 64.0 GiB, "AMD Radeon Graphics" fits mi210 and',
        "   mi250-gcd, which agree on bf16 181 TFLOPS, HBM 1.6 TB/s; choose one with",
        "   --device NAME",
    ]


def test_a_number_stays_with_its_unit_and_a_cause_with_its_share(summary):
    why = "GPU idle 95 %: Python or other host work; 1 gap, the longest 18.5 ms"
    finding = Finding(id="idle", op=None, gain_us=18_500.0, certainty="low", why=why)
    causes = (("launch-bound", 0.539), ("Python or other host work", 0.292), ("launch latency", 0.024), ("GC", 0.004))
    busy = replace(summary.busy, compute=0.01, idle=0.856, idle_causes=causes)
    lines = verdict(replace(summary, busy=busy, findings=(finding,), notices=())).splitlines()
    assert lines[7:9] == [
        "     idle: launch-bound 53.9 + Python or other host work 29.2 +",
        "           launch latency 2.4 + others 0.4",
    ]
    assert lines[-2:] == [
        " 1 GPU idle 95 %: Python or other host work; 1 gap, the longest         18.5 ms",
        "   18.5 ms",
    ]


def test_what_to_try_is_said_to_its_end(summary):
    remedy = "leave the allocator room (smaller batch, checkpointing), no empty_cache() in the loop, and " + "x" * 60
    finding = replace(summary.findings[0], remedy=remedy)
    lines = verdict(replace(summary, findings=(finding,), notices=())).splitlines()
    assert " ".join(line.strip() for line in lines[-3:]) == f"try: {remedy}"


def test_a_command_to_type_is_whole_and_a_shell_joins_its_lines(summary):
    command = "tracelens extensions new triton::fused_moe_kernel --from trace_of_rank_12.json.gz -o my_ops.py"
    unseen = Unseen(share=0.6, because="no perf model", ops=("mine::unknown",), command=command)
    lines = verdict(replace(summary, unseen=unseen)).splitlines()
    at = next(i for i, line in enumerate(lines) if "tracelens extensions" in line)
    assert " ".join(line.strip() for line in lines[at : at + 2]).replace(" \\ ", " ") == command


def test_idle_causes_beyond_three_lines_are_added_up_and_no_number_is_cut(summary):
    causes = tuple((f"a cause of idle time, number {i}", (9 - i) / 100) for i in range(9))
    lines = verdict(replace(summary, busy=replace(summary.busy, idle_causes=causes))).splitlines()
    # 34 characters each, so a line of 69 holds one; the others are 6 + 5 + 4 + 3 + 2 + 1 = 21 %
    assert lines[7:10] == [
        "     idle: a cause of idle time, number 0 9.0 +",
        "           a cause of idle time, number 1 8.0 +",
        "           a cause of idle time, number 2 7.0 + others 21.0",
    ]


def test_milliseconds_and_percent_of_the_table_are_the_same_time(summary):
    """Two streams that copy for 27 ms each in a step of 30 ms, 26 of them at the same time, beside 10 ms of kernels."""
    rows = (
        CategoryRow(name="copy", time_us=54_000.0, share=28 / 30, wire_tb_s=0.0261, bound="PCIe", of_roofline=0.41),
        CategoryRow(name="GEMM", time_us=10_000.0, share=10 / 30),
    )
    busy = Busy(compute=10 / 30, exposed_comm=0.0, memcpy=19 / 30, idle=1 / 30, total_us=60_000.0)
    steps = Steps(count=2, time_us=30_000.0)
    lines = verdict(Summary(input=summary.input, device=summary.device, busy=busy, steps=steps, categories=rows))
    assert lines.splitlines()[-4:] == [
        " copy                   28.00   93.3        -  26.1 GB/s  PCIe             41 %",
        " GEMM                   10.00   33.3        -          -  no model",
        " (at the same time)     -9.00  -30.0",
        " (idle)                  1.00    3.3",
    ]


def test_what_is_said_of_steps_is_two_lines(summary):
    steps = replace(
        summary.steps, on_device=3, host_us=162_000.0, before_events=968, before_us=27_800.0, skipped_us=3_390.0
    )
    assert verdict(replace(summary, steps=steps)).splitlines()[3:5] == [
        "     mean of 4: 181.8 to 186.2 ms, host ahead of the GPU in 3 of 4 (162.0 ms of",
        "     host time)",
    ]


def test_notices_beyond_the_third_are_counted(summary):
    notices = tuple(Notice(id="a", count=1, text=f"note {i}") for i in range(5))
    lines = verdict(replace(summary, notices=notices)).splitlines()
    assert lines[-2:] == [" ! note 2", " ! 2 more notes: sheet about, or warnings in report.json"]
    assert verdict(replace(summary, notices=notices[:3])).splitlines()[-1] == " ! note 2"


def test_trace_text_cannot_drive_the_terminal(summary):
    evil = "x\x1b]0;pwned\x07\x9b2J\u202e\r\n\x00"
    hostile = replace(
        summary,
        input=replace(summary.input, file=evil),
        findings=(Finding(id="a", op=evil, gain_us=None, certainty="low", why=evil),),
        notices=(Notice(id="a", count=1, text=evil),),
        categories=(CategoryRow(name=evil, time_us=1.0, share=0.1, bound=evil),),
        extensions=(evil,),
    )
    text = verdict(hostile)
    assert not [c for c in text if (ord(c) < 0x20 and c != "\n") or 0x7F <= ord(c) <= 0x9F or c == "\u202e"]


def test_color_is_ours_alone_and_off_by_default(summary):
    assert "\x1b" not in verdict(summary)
    plain, colored = verdict(summary), verdict(summary, color=True)
    for code in ("\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"):
        assert code in colored
        colored = colored.replace(code, "")
    assert colored == plain


def test_no_color_and_pipes_are_respected(monkeypatch):
    class Stream:
        def __init__(self, is_terminal):
            self.isatty = lambda: is_terminal

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_color(Stream(True))
    assert not wants_color(Stream(False))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Stream(True))


words = st.text(max_size=120)
amounts = st.none() | st.floats(0, 1e12)
summaries = st.builds(
    Summary,
    input=st.builds(InputSummary, file=words, events=st.integers(0, 10**12), ranks=st.lists(st.integers(0, 9999), max_size=9).map(tuple), torch_version=st.none() | words),
    device=st.builds(DeviceSummary, id=st.none() | words, label=words, matched_by=words),
    coverage=st.builds(Coverage, perf_model=st.none() | st.floats(0, 1)),
    busy=st.none() | st.builds(Busy, compute=st.floats(0, 1), exposed_comm=st.floats(0, 1), memcpy=st.floats(0, 1), idle=st.floats(0, 1), total_us=amounts),
    steps=st.none() | st.builds(Steps, count=st.integers(1, 10**6), time_us=st.floats(0, 1e12), spread=st.none() | st.floats(0, 100)),
    categories=st.lists(st.builds(CategoryRow, name=words, time_us=st.floats(0, 1e12), share=st.floats(0, 10), tflops_s=amounts, wire_tb_s=amounts, hbm_tb_s=amounts, bound=st.none() | words, of_roofline=amounts), max_size=30).map(tuple),
    findings=st.lists(st.builds(Finding, id=words, op=st.none(), gain_us=amounts, certainty=words, why=words, remedy=words), max_size=10).map(tuple),
    notices=st.lists(st.builds(Notice, id=words, count=st.integers(0), text=words), max_size=40).map(tuple),
    extensions=st.lists(words, max_size=5).map(tuple),
    unseen=st.none() | st.builds(Unseen, share=st.floats(0, 1), because=words, ops=st.lists(words, max_size=3).map(tuple), command=st.none() | words),
)  # fmt: skip


@settings(max_examples=examples(50), deadline=None)
@given(summaries, st.lists(words, max_size=5))
def test_it_never_exceeds_48_lines_of_80_columns(summary, written):
    lines = verdict(summary, seconds=1.0, written=written).split("\n")
    assert len(lines) <= 48
    assert max(map(display_width, lines)) <= 80


def test_idle_time_worth_a_line_names_its_causes(summary: Summary) -> None:
    causes = (("launch-bound", 0.07), ("synchronization", 0.0118), ("unknown", 0.0002))
    text = verdict(replace(summary, busy=replace(summary.busy, idle_causes=causes)))
    assert "\n     idle: launch-bound 7.0 + synchronization 1.2\n" in text
    little = replace(summary.busy, idle=0.009, idle_causes=causes)
    assert "idle:" not in verdict(replace(summary, busy=little))


def test_a_verdict_of_many_lines_shows_fewer_categories(summary: Summary) -> None:
    """Three findings and three notices of two lines each leave room for fewer than eight of twelve categories."""
    rows = tuple(replace(summary.categories[0], name=f"category {i}", time_us=100.0 - i) for i in range(12))
    finding = replace(summary.findings[0], why="long words " * 12, remedy="try this")
    notice = replace(summary.notices[0], text="a note of some words " * 6)
    text = verdict(
        replace(summary, categories=rows, findings=(finding,) * 3, notices=(notice,) * 3), written=["a", "b"]
    )
    assert len(text.splitlines()) <= 36
    assert " more " in text
