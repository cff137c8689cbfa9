"""The multi-rank report: sheets under the names users know, JSON, text, and files."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import openpyxl
import pandas as pd
import pytest

import tracelens
from tests.conftest import part
from tracelens.analysis.ranks.rank_comparison import compare_ranks, rank_sheets
from tracelens.analysis.ranks.rank_files import find_traces
from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.files.executors import Serial
from tracelens.report import rank_report
from tracelens.report.rank_report import RankReport

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ranks"))
from planted import Job

KNOWN = {
    "nccl_summary_long", "nccl_summary_implicit_sync", "nccl_summary_all2allv", "nccl_long", "nccl_implicit_sync",
    "nccl_all2allv", "nccl_all2allv_heatmap", "straggler_summary",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("jobs") / "job"
    folder.mkdir()
    collectives = (("allreduce", "Float", 1_000_000), ("all_to_allv", "Half", 10_000))
    Job(ranks=4, rounds=2, straggler=2, exchange_tb_s=0.3, collectives=collectives).write(folder, "rank{}.json.gz")
    return folder


@pytest.fixture(scope="module")
def report(folder) -> RankReport:
    return RankReport(compare_ranks(find_traces([str(folder)]), executor=Serial(), name="job"))


def test_sheets_have_the_names_users_know(report):
    assert set(report) >= KNOWN | {"ep_summary", "ep_by_rank", "overlap", "step_cost", "ranks", "clocks"}
    assert list(report["straggler_summary"].columns) == [
        "rank", "cost_us", "caused_wait_us", "times_arrived_last", "times_arrived_first", "arrived_last_percent",
        "wait_us_sum", "wait_us_mean", "num_collectives", "duration_us_sum",
    ]  # fmt: skip


def test_every_shown_column_is_explained(report):
    for sheet in report.sheets:
        for column in sheet.columns:
            assert column.key in rank_sheets()[sheet.title].options["columns"], (sheet.title, column.key)
            assert column.meaning.endswith("."), (sheet.title, column.header)


def test_workbook_holds_every_sheet_and_says_what_was_cut(report, tmp_path, monkeypatch):
    monkeypatch.setattr(rank_report, "LONG_ROWS", 5)
    report.to_excel(tmp_path / "c.xlsx")
    book = openpyxl.load_workbook(tmp_path / "c.xlsx")
    single_calls = [sheet.title for sheet in report.sheets if sheet.json is None]
    assert book.sheetnames == ["about", *(title for title in report if title not in single_calls)]
    assert len(book.sheetnames) <= 14
    assert any(str(row[0]).startswith("rank 2 is late on its own by ") for row in book["about"].values)
    listed = {row[0] for row in book["about"].iter_rows(values_only=True)}
    assert {"nccl_implicit_sync", "ep_long", "nccl_long"} <= listed.intersection(single_calls)
    report.to_excel(tmp_path / "c.xlsx", all_sheets=True)
    book = openpyxl.load_workbook(tmp_path / "c.xlsx", read_only=True)
    assert book.sheetnames == ["about", *report]
    assert sum(1 for _ in book["nccl_long"].rows) == 1 + 5
    notes = [row for row in book["about"].iter_rows(values_only=True) if row[1] == "rows_left_out"]
    assert any(f"nccl_long has {len(report['nccl_long']):,} rows" in row[3] for row in notes)


def test_json_has_no_nan_and_the_same_bytes_each_time(report):
    text = report.to_json()
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["schema"] == "tracelens.collectives/2"
    assert document["tables"]["straggler_summary"][0]["rank"] == 2
    assert document["input"] == {"name": "job", "ranks": [0, 1, 2, 3], "world_size": 4}
    assert report.to_json() == text


def test_verdict_names_the_straggler_in_80_columns(report):
    lines = report.verdict().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(" rank 2 is late on its own by ") for line in lines)
    assert any("DeepEPDispatch" in line for line in lines)


def test_a_small_message_has_figures_and_no_word_is_cut(report, monkeypatch):
    """8 bytes among 134 MB are no 0.00 MB."""
    row = {"collective": "all_reduce", "group_name": "stream 84, no group", "full_mb": 8e-6, "bus_gb_s_median": 0.00058}
    judged = row | {"waiting_percent": 90.1, "verdict": "arrival-skew-dominated"}
    frames = report.result.frames | {"nccl_summary_implicit_sync": pd.DataFrame([judged])}
    monkeypatch.setattr(report, "result", replace(report.result, frames=frames))
    (line,) = [line for line in report.verdict().splitlines() if "all_reduce" in line]
    assert line == " all_reduce  stream 84, no group  0.0000080   0.00058   90.1 %  arrival skew"


def verdict_of(folder) -> str:
    return " ".join(RankReport(compare_ranks(find_traces([str(folder)]), executor=Serial())).verdict().split())


def test_that_a_rank_is_late_also_outside_of_steps_is_said(folder, report):
    """A rank's cost is that of the whole recording, beside the waiting in steps."""
    beyond = "   in the whole recording, with what lies outside of the steps"
    result = compare_ranks(find_traces([str(folder)]), executor=Serial(), name="job")
    assert beyond not in RankReport(result).verdict().splitlines()
    result.calls.step[0] = -1
    lines = RankReport(result).verdict().splitlines()
    assert lines[lines.index(beyond) - 1].startswith(" rank 2 is late on its own by ")


@pytest.mark.shared
def test_what_a_gpu_waits_is_told_from_what_the_step_gains(shared_traces):
    """Rank 1's GPU waits 48 ms for rank 0, while its host works for as long: without waiting the host bounds the step."""
    files = sorted((shared_traces / "more" / "megatron_pr1316_tp2").glob("rank*.pt.trace.json.gz"))
    result = compare_ranks(files, executor=Serial(), name="job")
    said = RankReport(result).verdict().splitlines()
    at = next(n for n, line in enumerate(said) if line.endswith("ms waiting for rank 0"))
    assert said[at + 1].strip() == "GPUs wait that long; the step gains less where hosts need the time"
    (waited_us,) = result.frames["step_cost"]["cost_us"]
    finding = tracelens.report(files[1]).summary.findings[0]
    assert finding.id == "exposed_communication"
    assert 0 < finding.gain_us < waited_us / 4
    assert finding.limited_by.startswith("the host takes 48 ms of 58.8 ms")


def test_ranks_that_do_the_same_are_not_said_to_be_late(tmp_path):
    """They come last by turns, by less than a hundredth of the time."""
    Job(ranks=4, jitter_us=2.0).write(tmp_path)
    said = verdict_of(tmp_path)
    assert "ms waiting for the slowest rank of each" in said
    assert "late" not in said
    assert "ms waiting for rank" not in said


def test_ranks_that_are_late_together_are_named_together(tmp_path):
    Job(ranks=8, straggler=(2, 3)).write(tmp_path)
    assert re.search(
        r" ranks 2-3 are late together: each waits [\d.]+ ms in all, the others wait [\d.]+ ms", verdict_of(tmp_path)
    )


def test_a_rank_of_other_steps_or_of_another_job_is_named(tmp_path):
    Job(ranks=3).write(tmp_path)
    rank = tmp_path / "rank2.json"
    own = rank.read_text()
    rank.write_text(re.sub(r"ProfilerStep#(\d+)", r"ProfilerStep#7\1", own))
    assert re.search(r"! rank 2 recorded steps 7\d-7\d, the others \d-\d: ", verdict_of(tmp_path))
    Job(ranks=3, collectives=(("broadcast", "Half", 77),)).write(tmp_path, only=(2,))
    assert re.search(r"calls have no counterpart on another rank, .* of rank 2", verdict_of(tmp_path))


def test_command_writes_and_prints(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["collectives", str(folder), "-o", str(out), "--csv", "--executor", "serial"]) == 0
    assert "rank 2 is late" in capsys.readouterr().out
    assert sorted(p.name for p in out.iterdir()) == ["collectives.html", "collectives.json", "collectives.xlsx", "csv"]
    assert main(["collectives", str(folder), "-o", str(out), "--format", "json", "--executor", "serial"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "tracelens.collectives/2"


def test_command_writes_the_one_file_that_was_asked_for(folder, tmp_path, capsys):
    for name, start in (("one.xlsx", b"PK"), ("one.json", b"{")):
        out = tmp_path / name
        assert main(["collectives", str(folder), "-o", str(out), "--executor", "serial"]) == 0
        assert out.read_bytes().startswith(start)
        assert capsys.readouterr().out.endswith(f" wrote {out}\n")


def test_command_gives_the_exit_codes(folder, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    for arguments, code in (
        ([str(tmp_path / "nothing*.json")], 1),
        ([str(folder), "-o", str(tmp_path / "mine")], 2),
        ([str(folder), "--executor", "slurm", "-o", str(tmp_path / "o")], 2),
    ):
        assert main(["collectives", *arguments]) == code
    Job(ranks=2, ranks_per_host=2, collectives=()).write(tmp_path, "quiet_rank{}.json")
    quiet = ["collectives", str(tmp_path / "quiet*"), "--executor", "serial", "-o", str(tmp_path / "q")]
    assert main(quiet) == 3
    assert "without communication" in capsys.readouterr().err


def test_fuse_command_writes_one_file(folder, tmp_path, capsys):
    out = tmp_path / "all.json.gz"
    assert main(["fuse", str(folder), "-o", str(out), "--executor", "serial", "--ranks", "0-1", "--window", "0:5"]) == 0
    assert out.is_file()
    assert "2 ranks (0-1)" in capsys.readouterr().out
    assert main(["fuse", str(folder), "-o", str(out), "--executor", "serial", "--category", "cpu_opp"]) == 0
    assert "no event has --category cpu_opp" in capsys.readouterr().err
    assert main(["fuse", str(folder), "-o", str(out), "--executor", "serial", "--ranks", "x"]) == 2


def test_generated_example_has_true_rates_above_effective_ones(repository):
    result = compare_ranks(
        find_traces([str(repository / "example_traces" / "moe_ep8")]), executor=Serial(), name="moe_ep8"
    )
    frame = result.frames["ep_summary"].set_index("name")
    assert set(frame.index) == {"DeepEPDispatch", "DeepEPCombine", "DeepEPDispatchBackward", "DeepEPCombineBackward"}
    assert (frame["true_interconnect_tb_s"].astype(float) > frame["effective_interconnect_tb_s"].astype(float)).all()
    assert result.notices == ()


@pytest.mark.sweep
def test_the_ranks_of_packed_traces_are_compared_from_python(repository: Path, tmp_path: Path) -> None:
    for rank, (ending, packed) in enumerate(
        [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
    ):
        text = gzip.decompress((repository / "example_traces" / "moe_ep8" / f"rank{rank}.json.gz").read_bytes())
        (tmp_path / f"rank{rank}.json{ending}").write_bytes(packed(text))
    with ThreadPoolExecutor(1) as executor:
        report = tracelens.collectives(tmp_path, executor=executor)
    assert sorted(report.result.ranks) == [0, 1, 2, 3]
    assert report.result.name == tmp_path.name


def with_clocks(folder: Path, mhz: dict[int, float], **more) -> str:
    """The verdict on a job in which rank 1 is late, beside a log of each device's clock."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for path in Job(ranks=4, straggler=1, **more).write(folder):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"baseTimeNanoseconds": int(noon.timestamp()) * 10**9}))
    rows = [f"{(noon + timedelta(seconds=1, milliseconds=5 * n)).timestamp()},{device},{clock},{300 + device}"
            for n in range(20) for device, clock in mhz.items()]  # fmt: skip
    (folder / "gpu.csv").write_text("\n".join(["timestamp,index,clocks.current.sm [MHz],power.draw [W]", *rows]))
    report = tracelens.collectives(folder)
    shown = report["straggler_summary"]
    if "sm_clock_mhz" in shown:
        assert dict(zip(shown["rank"], shown["sm_clock_mhz"], strict=True)) == mhz
        assert dict(zip(shown["rank"], shown["power_w"], strict=True)) == {n: 300.0 + n for n in mhz}
    return " ".join(report.verdict().split())


def test_the_clock_of_a_late_rank_is_told_where_it_is_lower(tmp_path):
    said = with_clocks(tmp_path, {0: 1980.0, 1: 1410.0, 2: 1965.0, 3: 1980.0})
    assert "rank 1 is late on its own" in said
    assert "its device ran at 1,410 MHz, those of the others at 1,980 (median)" in said


@pytest.mark.sweep
@pytest.mark.parametrize("slow", part([2, None], 2))
def test_a_clock_that_is_not_that_of_the_late_rank_explains_nothing(tmp_path, slow):
    said = with_clocks(tmp_path, {rank: 1410.0 if rank == slow else 1980.0 for rank in range(4)})
    assert "rank 1 is late on its own" in said
    assert "its device ran" not in said


def test_devices_of_two_hosts_are_not_mixed_up(tmp_path):
    """Both hosts have a device 0 and 1, and nothing says of which the log is."""
    said = with_clocks(tmp_path, {0: 1980.0, 1: 1410.0}, ranks_per_host=2)
    assert "its device ran" not in said
    assert "device 0 of gpu.csv would be that of several: ranks 0, 2" in said


@pytest.mark.sweep
def test_a_log_of_another_day_and_a_log_alone(tmp_path):
    with_clocks(tmp_path, dict.fromkeys(range(4), 1980.0))
    (tmp_path / "gpu.csv").write_text("timestamp,index,power\n" + "".join(f"{2e9 + n},0,5\n" for n in range(3)))
    assert "gpu.csv has no sample of the time" in " ".join(tracelens.collectives(tmp_path).verdict().split())
    (tmp_path / "gpu.csv").write_text(
        "timestamp,index,power\n" + "".join(f"{2e9 + n},{n % 2 + 7},5\n" for n in range(4))
    )
    said = " ".join(tracelens.collectives(tmp_path).verdict().split())
    assert "the logs of devices do not say which device is that of ranks 0-3" in said
    with pytest.raises(InputError, match=r"gpu.csv is a log of devices: give it with the traces"):
        tracelens.collectives(tmp_path / "gpu.csv")
