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
from tracelens.report.figures import bound_sentence
from tracelens.report.terminal import verdict, wants_color


def test_the_whole_verdict(summary):
    assert verdict(summary, seconds=4.8, written=["moe-16b.report/"]).splitlines() == [
        " moe-16b in 4.8 s",
        " rank 3 of 8 · 4 steps (ProfilerStep) · MI300X · torch 2.9 · 600,345 events",
        " The GPU bounds the step: it is busy 91.8 %; GEMM takes 43.2 %, at 40 % of",
        "   its roofline.",
        " Fix finding 1 (op below roofline) first to save up to 16.3 ms (8.9 %,",
        "   medium certainty): mm 4096x14336x4096 bf16, 32 calls: 57 % of achievable.",
        "",
        " step 184.0 ms   10 % of dense bf16 peak",
        "     mean of 4: 181.8 to 186.2 ms",
        "     excluded: 36.0 ms of GPU work launched before profiling began",
        " matrix ops (50 % of GPU time) reach 23 % of peak, 42 % of achievable",
        " GPU busy 91.8 %  = compute 78.4 + exposed comm 11.9 + memcpy 1.5; idle 8.2 %",
        " coverage  perf model 91 % of GPU time · unlinked 3 % · shapes yes · stacks no",
        " extensions megatron",
        "",
        " per step                 ms     %        TFLOPS/s       TB/s bound by  roofline",
        " GEMM                   79.5  43.2 ██▋         520   1.10 HBM compute       40 %",
        " EP_Communication       21.7  11.8 ▊             -   210 GB/s link          47 %",
        " other                  14.9   8.1 ▌             -          - no model",
        " (idle)                 15.1   8.2 ▌",
        "",
        " look here first (counts of all 4 steps)               gain per step, certainty",
        " 1 mm 4096x14336x4096 bf16, 32 calls: 57 % of achievable  up to 16.3 ms, medium",
        " ! 14 device events have no recorded launch",
        " wrote moe-16b.report/",
    ]


def after(text: str, start: str, count: int = 1) -> list[str]:
    """So many lines from the one that begins so."""
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(start))
    return lines[at : at + count]


def test_utilization_is_one_line_below_the_step(summary, utilization):
    lines = after(verdict(replace(summary, utilization=utilization)), " matrix ops (", 2)
    assert lines[1] == " MFU 20 %, HFU 23 % (37, 42 % of achievable) · moe-16b training, 32,768 tokens"


def test_utilization_without_a_device_is_flops(summary, utilization):
    used = replace(utilization, mfu=None, mfu_of_achievable=None, hfu=None, hfu_of_achievable=None)
    lines = after(verdict(replace(summary, utilization=used)), " matrix ops (", 2)
    assert lines[1] == " 48.1 TFLOP per step · moe-16b training, 32,768 tokens"


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
    assert lines[-2:] == [" CPU time per step        ms     %", " GEMM                   76.6  76.3"]


def test_categories_have_lines_until_a_tenth_of_the_time_is_left(summary):
    """Of 184 ms: nine categories of a tenth and five of a hundredth, which together are half a tenth."""
    shares = [0.1] * 9 + [0.01] * 5
    rows = tuple(CategoryRow(name=f"c{i}", time_us=1e6 * share - i, share=share) for i, share in enumerate(shares))
    lines = [line.split()[:3] for line in after(verdict(replace(summary, categories=rows)), " c0", 10)]
    assert lines == [*([f"c{i}", "18.40", "10.0"] for i in range(9)), ["5", "more", "9.20"]]


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
        " 1 aten::_scaled_dot_product_flash_attention (16, 16, 559,   up to 3.67 ms, low",
        "   64), (16, 16, 559, 64), 24 calls: 9 % of the roofline",
        ' ! AMD 9.0, 104 units, 64.0 GiB, "AMD Radeon Graphics" fits mi210 and',
        "   mi250-gcd, which agree on bf16 181 TFLOPS, HBM 1.6 TB/s; choose one with",
        "   --device NAME",
    ]


def test_a_number_stays_with_its_unit_and_a_cause_with_its_share(summary):
    why = "GPU idle 95 %: Python or other host work; 1 gap, the longest 18.5 ms"
    finding = Finding(id="idle", op=None, gain_us=18_500.0, certainty="low", why=why)
    causes = (("launch-bound", 0.539), ("Python or other host work", 0.292), ("launch latency", 0.024), ("GC", 0.004))
    busy = replace(summary.busy, compute=0.01, idle=0.856, idle_causes=causes)
    text = verdict(replace(summary, busy=busy, findings=(finding,), notices=()))
    assert after(text, "     idle:", 2) == [
        "     idle: launch-bound 53.9 + Python or other host work 29.2 +",
        "           launch latency 2.4 + others 0.4",
    ]
    assert text.splitlines()[-2:] == [
        " 1 GPU idle 95 %: Python or other host work; 1 gap, the      up to 18.5 ms, low",
        "   longest 18.5 ms",
    ]


def test_what_to_try_is_said_to_its_end(summary):
    remedy = "leave the allocator room (smaller batch, checkpointing), no empty_cache() in the loop, and " + "x" * 60
    first, second = replace(summary.findings[0], remedy="first of all"), replace(summary.findings[0], remedy=remedy)
    lines = verdict(replace(summary, findings=(first, second), notices=())).splitlines()
    assert " ".join(line.strip() for line in lines[-3:]) == f"try: {remedy}"
    assert "medium certainty): first of all." in " ".join(line.strip() for line in lines)
    assert not any("try: first of all" in line for line in lines), "what the first fix is stands above"


def test_a_command_to_type_is_whole_and_a_shell_joins_its_lines(summary):
    command = "tracelens extensions new triton::fused_moe_kernel --from trace_of_rank_12.json.gz -o my_ops.py"
    unseen = Unseen(share=0.6, because="no perf model", ops=("mine::unknown",), command=command)
    lines = verdict(replace(summary, unseen=unseen)).splitlines()
    at = next(i for i, line in enumerate(lines) if "tracelens extensions" in line)
    assert " ".join(line.strip() for line in lines[at : at + 2]).replace(" \\ ", " ") == command


def test_idle_causes_beyond_three_lines_are_added_up_and_no_number_is_cut(summary):
    causes = tuple((f"a cause of idle time, number {i}", (9 - i) / 100) for i in range(9))
    text = verdict(replace(summary, busy=replace(summary.busy, idle_causes=causes)))
    # 34 characters each, so a line of 69 holds one; the others are 6 + 5 + 4 + 3 + 2 + 1 = 21 %
    assert after(text, "     idle:", 3) == [
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
        " copy                  28.00  93.3 █████▋        -  26.1 GB/s PCIe          41 %",
        " GEMM                  10.00  33.3 ██            -          - no model",
        " (overlap)             -9.00 -30.0",
        " (idle)                 1.00   3.3 ▎",
    ]


def test_what_is_said_of_steps_is_two_lines(summary):
    steps = replace(
        summary.steps, on_device=3, host_us=162_000.0, before_events=968, before_us=27_800.0, skipped_us=3_390.0
    )
    assert after(verdict(replace(summary, steps=steps)), "     mean of 4", 2) == [
        "     mean of 4: 181.8 to 186.2 ms; the host takes 162.0 ms per step and starts",
        "     3 of them while the GPU runs earlier work",
    ]


def test_notices_beyond_the_third_are_counted(summary):
    notices = tuple(Notice(id="a", count=1, text=f"note {i}") for i in range(5))
    lines = verdict(replace(summary, notices=notices)).splitlines()
    assert lines[-2:] == [" ! note 2", " ! 2 more notes in the sheet about, and under warnings in report.json"]
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
def test_it_never_exceeds_80_columns_and_48_lines_but_for_categories(summary, written):
    lines = verdict(summary, seconds=1.0, written=written).split("\n")
    assert len(lines) <= 48 + len(summary.categories)
    assert max(map(display_width, lines)) <= 80


def test_idle_time_worth_a_line_names_its_causes(summary: Summary) -> None:
    causes = (("launch-bound", 0.07), ("synchronization", 0.0118), ("unknown", 0.0002))
    text = verdict(replace(summary, busy=replace(summary.busy, idle_causes=causes)))
    assert "\n     idle: launch-bound 7.0 + synchronization 1.2\n" in text
    little = replace(summary.busy, idle=0.009, idle_causes=causes)
    assert "idle:" not in verdict(replace(summary, busy=little))


def test_notices_are_cut_before_what_to_try_and_that_before_the_table(summary: Summary) -> None:
    """Three findings of three lines and two to try, three notices of two, four categories of a fifth of the time."""
    rows = tuple(replace(summary.categories[0], name=f"category {i}", share=0.2, time_us=100.0 - i) for i in range(4))
    small = tuple(replace(rows[0], name=f"small {i}", share=0.02, time_us=10.0 - i) for i in range(6))
    finding = replace(summary.findings[0], why="long words " * 12, remedy="try this")
    notice = replace(summary.notices[0], text="a note of some words " * 6)
    crowded = replace(summary, categories=(*rows, *small), findings=(finding,) * 3, notices=(notice,) * 3)
    text = verdict(crowded, written=["a", "b"])
    assert len(text.splitlines()) <= 44
    assert all(f" category {i} " in text for i in range(4))
    assert "! 2 more notes" in text
    assert "try this" not in text.partition("look here first")[2]
    short = verdict(replace(crowded, findings=(replace(finding, why="short"),)))
    assert short.count(" ! a note of") == 3
    assert " small 2 " in short


def test_figures_that_cannot_be_are_marked_where_they_stand(summary: Summary) -> None:
    """Above 100 % of a peak, of what is achievable or of a roofline; 100 % is no mark."""
    rate = replace(summary.throughput, window_of_peak=1.2, of_peak=1.004, of_achievable=1.006)
    rows = (replace(summary.categories[0], of_roofline=1.18), *summary.categories[1:])
    text = verdict(replace(summary, throughput=rate, categories=rows))
    assert "120 % (!) of dense bf16 peak" in text
    assert "100 % of peak, 101 % (!) of achievable" in text
    assert " 118 % (!)\n" in text
    assert text.count("\n (!) above 100 %") == 1
    assert "(!)" not in verdict(summary)


def test_the_first_sentence_says_what_bounds_a_step_or_what_is_seen(summary: Summary) -> None:
    """Host: 0.95 of the step is its own work. GPU: busy for 90 %. Both, or neither: how long it was busy, and most of the
    rest.
    """
    steps, busy = replace(summary.steps, count=1, time_us=33_700.0), summary.busy
    host = replace(
        summary,
        steps=replace(steps, host_work_us=33_100.0),
        busy=replace(busy, idle=0.02, compute=0.98, exposed_comm=0.0, memcpy=0.0),
    )
    assert bound_sentence(host) == (
        "The host and the GPU both bound this step: host work takes 33.1 of 33.7 ms, and the GPU is busy 98.0 %."
    )
    alone = replace(host, busy=replace(host.busy, idle=0.2, compute=0.8))
    assert bound_sentence(alone) == (
        "The host bounds this step: host work takes 33.1 of 33.7 ms, and the GPU is busy 80.0 %."
    )
    waits = replace(host, steps=replace(steps, host_work_us=31_000.0))
    assert (
        bound_sentence(waits)
        == "The GPU bounds this step: it is busy 98.0 %; GEMM takes 43.2 %, at 40 % of its roofline."
    )
    moving = replace(waits, busy=replace(busy, compute=0.3, exposed_comm=0.62, memcpy=0.0, idle=0.08))
    assert bound_sentence(moving) == "The GPU bounds this step: it is busy 92.0 %; exposed communication takes 62.0 %."
    late = replace(host, busy=replace(busy, compute=0.02, exposed_comm=0.8, memcpy=0.0, idle=0.18))
    assert bound_sentence(late) == (
        "Exposed communication takes 80.0 % of this step; the GPU is busy 82.0 % of it and computes 2.0 %."
    )
    idle = replace(
        busy, compute=0.6, exposed_comm=0.0, memcpy=0.0, idle=0.4, idle_causes=(("allocator", 0.3), ("unknown", 0.1))
    )
    assert bound_sentence(replace(waits, busy=idle)) == (
        "The GPU is busy 60.0 % of this step and idle 40.0 %, mainly allocator (30.0 %)."
    )


def test_another_device_than_the_recorded_one_heads_the_report(summary: Summary) -> None:
    chosen = replace(summary.device, label="AMD Instinct MI300X", recorded="NVIDIA H100")
    text = " ".join(line.strip() for line in verdict(replace(summary, device=chosen)).splitlines()[:3])
    assert "recorded on NVIDIA H100, limits of AMD Instinct MI300X" in text
