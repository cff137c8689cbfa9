"""``report --power FILE``: joules that were measured beside those that are modelled."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from openpyxl import load_workbook

import tracelens
from tests.conftest import part
from tests.report.test_energy import ALONE, MI300X, STEP_US, product_watts, recording
from tracelens.analysis.analyze import Analysis
from tracelens.analysis.page_charts import power_lines
from tracelens.errors import InputError
from tracelens.report.figures import beside_energy, energy_text, measured_text
from tracelens.report.result import Report
from tracelens.report.terminal import verdict
from tracelens.trace.reading.read import PowerLog, read_device_logs, read_power_log

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ROW = "{time}, {watts:.2f} W"


def timed(folder: Path, *, device: dict[str, object] | None = None, steps: int = 3) -> Path:
    """A recording that began at noon."""
    path = recording(folder, ALONE, steps=steps, **({} if device is None else {"device": device}))
    document = json.loads(path.read_text())
    document["baseTimeNanoseconds"] = int(NOON.timestamp()) * 10**9
    path.write_text(json.dumps(document))
    return path


def log(folder: Path, watts: list[float], *, every_us: int = 100, first_us: int = -200, hours: float = 0.0) -> Path:
    """Of nvidia-smi, whose times are those of the machine's time zone."""
    begin = NOON + timedelta(hours=hours, microseconds=first_us)
    times = [f"{begin + timedelta(microseconds=every_us * n):%Y/%m/%d %H:%M:%S.%f}" for n in range(len(watts))]
    rows = [ROW.format(time=time, watts=each) for time, each in zip(times, watts, strict=True)]
    path = folder / "power.csv"
    path.write_text("\n".join(["timestamp, power.draw [W]", *rows]) + "\n")
    return path


def reported(trace: Path, power: Path) -> Report:
    return tracelens.report(trace, power=power)


def test_a_constant_draw_takes_its_watts_times_the_step(tmp_path: Path) -> None:
    report = reported(timed(tmp_path), log(tmp_path, [500.0] * 60))
    found = report.summary.measured_power
    assert found is not None
    assert found.power_w == pytest.approx(500.0)
    assert found.energy_j == pytest.approx(500.0 * STEP_US * 1e-6)
    assert report.result.frames["steps"]["measured_j"].iloc[:3].tolist() == pytest.approx([0.5] * 3)


def test_samples_lie_on_a_line(tmp_path: Path) -> None:
    """From 200 to 800 W over 600 us: 200 us at 300 W in the mean, then 200 us at 500 W."""
    rising = PowerLog(
        source="x", time_ns=np.array([0, 300_000, 600_000]), power_w=np.array([200.0, 500.0, 800.0]), is_utc=True
    )
    joules = rising.joules(np.array([0, 200_000, 0]), np.array([400_000, 600_000, 600_000]))
    assert joules.tolist() == pytest.approx([400e-6 * 400, 400e-6 * 600, 600e-6 * 500])


def test_parts_of_a_log_add_up(tmp_path: Path) -> None:
    drawn = np.random.default_rng(7).uniform(100, 700, 50)
    whole = PowerLog(source="x", time_ns=np.arange(50) * 1000, power_w=drawn, is_utc=True)
    edges = np.array([500, 9_300, 21_000, 48_250])
    parts = whole.joules(edges[:-1], edges[1:])
    assert parts.sum() == pytest.approx(whole.joules(edges[:1], edges[-1:])[0])


@pytest.mark.parametrize("hours", [-8.0, 0.0, 5.75])
def test_a_local_time_zone_is_found(tmp_path: Path, hours: float) -> None:
    found = reported(timed(tmp_path), log(tmp_path, [420.0] * 60, hours=hours)).summary.measured_power
    assert found is not None
    assert found.power_w == pytest.approx(420.0)


def test_a_device_without_energies_is_measured(tmp_path: Path) -> None:
    report = reported(timed(tmp_path, device=MI300X), log(tmp_path, [600.0] * 60))
    assert report.summary.energy is None
    assert report.summary.measured_power is not None
    assert "measured 0.600 J, 600 W by 31 samples of power.csv" in verdict(report.summary)
    assert json.loads(report.to_json())["measured_power"]["energy_j"] == pytest.approx(0.6)


def test_few_samples_measure_nothing(tmp_path: Path) -> None:
    """One sample a second beside steps of a millisecond."""
    report = reported(timed(tmp_path), log(tmp_path, [600.0] * 4, every_us=1_000_000, first_us=-998_500))
    found = report.summary.measured_power
    assert found is not None
    assert (found.samples, found.energy_j, found.power_w) == (1, None, None)
    assert report.result.frames["steps"]["measured_j"].isna().all()
    assert "power not measured: 1 sample of power.csv" in verdict(report.summary)


def test_of_several_devices_the_recorded_one_counts(tmp_path: Path) -> None:
    times = [f"{(NOON + timedelta(microseconds=100 * n)).timestamp():.6f}" for n in range(-2, 60)]
    rows = [f"{time},{device},{100.0 + 300.0 * (device == 0)}" for time in times for device in (0, 1)]
    path = tmp_path / "amd.csv"
    path.write_text("\n".join(["timestamp,gpu,power_usage", *rows]) + "\n")
    found = reported(timed(tmp_path), path).summary.measured_power
    assert found is not None
    assert found.power_w == pytest.approx(400.0)


def test_clocks_are_told_where_they_were_sampled(tmp_path: Path) -> None:
    """60 samples from 200 us before on, every 100 us: 31 in the window of 3 ms, of which a third at 1,410 MHz."""
    (path := log(tmp_path, [500.0] * 60)).write_text(
        "\n".join(
            f"{line}, {'clocks.current.sm [MHz], clocks.max.sm [MHz]' if n == 0 else f'{1980 if n % 3 else 1410} MHz, 1980 MHz'}"
            for n, line in enumerate(path.read_text().splitlines())
        )
    )
    report = reported(timed(tmp_path), path)
    found = report.summary.measured_power
    assert found is not None
    assert (found.samples, found.least_clock_mhz) == (31, 1410)
    assert found.clock_mhz == pytest.approx((11 * 1410 + 20 * 1980) / 31)
    assert "500 W, SM clock 1,778 MHz (lowest 1,410) by 31 samples" in " ".join(verdict(report.summary).split())
    assert isinstance(report.result, Analysis)
    assert {mhz for _, mhz in power_lines(report.result)["SM clock"]} == {1410.0, 1980.0}
    assert "SM clock of the device, MHz (measured)" in report.to_html(tmp_path / "x.html").read_text()


DMON = """#Entity   POWER        SMCLK        TMPTR
ID        W            MHz          C
GPU 0     {watts}      1755         54
GPU 1     99.5         345          N/A
"""


def dmon(*, times: bool = True) -> str:
    """As ``dcgmi dmon`` of DCGM 3 and 4 prints it, its header again and again, behind ``ts`` where asked."""
    lines = []
    for n in range(40):
        at = NOON + timedelta(microseconds=100 * n - 200)
        head = f"{at:%Y-%m-%dT%H:%M:%S.%f%z} " if times else ""
        rows = (
            DMON.format(watts=400.0 + n).splitlines() if n % 10 == 0 else DMON.format(watts=400.0 + n).splitlines()[2:]
        )
        lines += [head + row for row in rows]
    return "\n".join(lines) + "\n"


def test_rows_of_dcgmi_are_read_with_the_times_before_them(tmp_path: Path) -> None:
    (path := tmp_path / "dmon.txt").write_text(dmon())
    found = reported(timed(tmp_path), path).summary.measured_power
    assert found is not None
    # Samples 2 to 32 of 402 to 432 W, on a line
    assert found.power_w == pytest.approx(417.0)
    assert (found.samples, found.clock_mhz, found.least_clock_mhz) == (31, 1755, 1755)
    assert sorted(read_device_logs(path)) == [0, 1]
    path.write_text(dmon(times=False))
    with pytest.raises(InputError, match=r"rows of dcgmi without times: record it with dcgmi dmon .* \| ts"):
        read_power_log(path, 0)


def test_fields_of_dcgms_exporter(tmp_path: Path) -> None:
    rows = [f"{(NOON + timedelta(seconds=n)).timestamp()},{n % 2},{100 + n % 2},{1500 + n % 2}" for n in range(8)]
    (path := tmp_path / "dcgm.csv").write_text(
        "\n".join(["timestamp,gpu,DCGM_FI_DEV_POWER_USAGE,DCGM_FI_DEV_SM_CLOCK", *rows])
    )
    logs = read_device_logs(path)
    assert [logs[n].power_w.tolist() for n in (0, 1)] == [[100.0] * 4, [101.0] * 4]
    assert [logs[n].clocks(0, 2**62).tolist() for n in (0, 1)] == [[1500.0] * 4, [1501.0] * 4]


def test_amd_smi_s_cells_are_lists_its_times_whole_seconds_and_the_last_sample_of_one_counts(tmp_path: Path) -> None:
    """The form of the logs that InferenceX publishes: N/A is no sample, the clock is the first XCD's."""
    head = "timestamp,gpu,gfx_activity,jpeg_activity,socket_power,power_management,gfx_0_clk,gfx_0_min_clk,gfx_0_max_clk,gfx_0_clk_locked,gfx_1_clk,hotspot"  # fmt: skip
    row = """{},{},95,"['N/A', [0, 0]]",{},ENABLED,{},500,2100,DISABLED,132,40"""
    rows = [(1772939616, 0, 135, 133), (1772939616, 1, 140, 150), (1772939617, 0, "N/A", "N/A"),
            (1772939618, 0, 400, 1900), (1772939618, 0, 410, 1910)]  # fmt: skip
    (path := tmp_path / "amd.csv").write_text("\n".join([head, *(row.format(*each) for each in rows)]))
    found = read_power_log(path, 0)
    assert found.power_w.tolist() == [135.0, 410.0]
    assert found.clocks(0, 2**62).tolist() == [133.0, 1910.0]
    assert (found.time_ns // 10**9).tolist() == [1772939616, 1772939618]
    assert read_device_logs(path)[1].power_w.tolist() == [140.0]


def test_a_report_of_a_log_alone_says_where_it_belongs(tmp_path: Path) -> None:
    for text in (dmon(), "timestamp, power.draw [W]\n2026/03/01 12:00:00.1, 3 W\n"):
        (path := tmp_path / "own.csv").write_text(text)
        with pytest.raises(InputError, match=r"log of devices: use 'tracelens report TRACE --power own.csv'"):
            tracelens.report(path)


BAD = {
    "": "is empty: record it with nvidia-smi",
    "a,b\n1,2\n": "has no column of times and one of watts",
    "timestamp, power.draw [W]\n": "fewer than two samples with watts in it",
    "timestamp, power.draw [W]\nyesterday, 3 W\n": "line 2: 'yesterday' is not a date and time",
    "timestamp, power.draw [W]\n12, 3 W\n": "line 2: '12' is not a time since 1970",
    "timestamp, power.draw [W]\n2026/03/01 12:00:00.1, 3 W, 4\n": "line 2: 3 cells in place of 2",
    "timestamp, power.draw [W]\n" + 2 * "2026/03/01 12:00:00.1, 3 W\n": "line 3: a second sample of one moment",
    "timestamp, power.draw [W]\n2026/03/01 12:00:00.1, [N/A]\n": "fewer than two samples with watts in it",
    "timestamp, index, power.draw\n" + "".join(f"2026/03/01 12:00:0{n}, {n % 2 + 3}, 5 W\n" for n in range(6)):
        "fewer than two samples with watts of device 0 among those of 3, 4",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=list(BAD.values()))
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "power.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_power_log(path, 0)
    assert BAD[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_log_too_coarse_for_the_trace_is_not_said_to_be_of_another_time(tmp_path: Path) -> None:
    """A sample a second, of which none lies within three steps of a millisecond."""
    coarse = log(tmp_path, [400.0] * 20, every_us=1_000_000, first_us=-10_500_000, hours=2)
    with pytest.raises(InputError, match=r"power.csv has a sample every 1 s, and none in the 0.00\d* s of the trace: "):
        reported(timed(tmp_path), coarse)


def test_the_only_device_of_a_log_is_named_where_it_is_not_the_traces(tmp_path: Path) -> None:
    """Numbers differ under CUDA_VISIBLE_DEVICES, and where the log is of another device."""
    rows = "".join(f"2026/03/01 12:00:0{n}, {{index}}, 5 W\n" for n in range(3))
    for index, said in ((3, "power.csv (its device 3)"), (0, "power.csv")):
        (path := tmp_path / "power.csv").write_text("timestamp, index, power.draw\n" + rows.format(index=index))
        assert read_power_log(path, 0).source == said
    assert read_power_log(path, None).source == "power.csv"


def test_terminal_page_and_workbook_say_the_same_of_energy(tmp_path: Path) -> None:
    report = reported(timed(tmp_path), log(tmp_path, [500.0] * 60))
    report.write(tmp_path / "out")
    energy, measured = report.summary.energy, report.summary.measured_power
    assert energy is not None
    assert measured is not None
    lines = [*load_workbook(tmp_path / "out" / "report.xlsx")["about"].iter_rows(values_only=True)]
    rows = {row[0]: row[1] for row in reversed(lines)}  # the glossary of columns comes last
    assert rows["Modelled (J)"] == pytest.approx(energy.energy_j)
    assert (rows["  at least (J)"], rows["  at most (J)"]) == pytest.approx((energy.low_j, energy.high_j))
    assert rows["  power limit (W)"] == 700
    assert rows["Measured (J)"] == pytest.approx(0.5)
    said = " ".join(verdict(report.summary).split())
    shown = energy_text(energy, "h200-sxm")
    page = (tmp_path / "out" / "report.html").read_text()
    assert shown in said
    assert shown == f"energy {shown.split()[1]} J {beside_energy(energy, 'h200-sxm')}"
    assert f"<strong>{shown.split()[1]} J</strong>" in page
    assert beside_energy(energy, "h200-sxm") in page
    assert measured_text(measured) in page


def test_a_report_without_energies_has_no_word_of_them(tmp_path: Path) -> None:
    report = tracelens.report(timed(tmp_path, device=MI300X))
    report.write(tmp_path / "out")
    rows = [row[0] for row in load_workbook(tmp_path / "out" / "report.xlsx")["about"].iter_rows(values_only=True)]
    assert not any(str(each).startswith("Energy") for each in rows)
    assert "Energy per step" not in (tmp_path / "out" / "report.html").read_text()


def test_another_day_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no sample of the time of the trace, 0.00\d* s from 2026-03-01 12:00:00 UTC on"
    ):
        reported(timed(tmp_path), log(tmp_path, [400.0] * 60, hours=48))


def test_a_log_of_hours_is_refused(tmp_path: Path) -> None:
    """Without a time zone its samples could be those of any quarter of an hour."""
    with pytest.raises(InputError, match="fit the trace in 3 time zones: cut it to the run"):
        reported(timed(tmp_path), log(tmp_path, [400.0] * 1801, every_us=1_000_000, first_us=1000 - 900_000_000))


def test_a_trace_without_a_time_of_day_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trace.json does not record the time of day: --power needs"):
        reported(recording(tmp_path, ALONE), log(tmp_path, [400.0] * 60))


def test_the_power_under_the_timeline_is_that_of_kernels_and_of_waiting(tmp_path: Path) -> None:
    """Two products of 300 us in a step of 1000 us: their watts while they run, else 128; it adds up to the step's joules."""
    analysis = reported(timed(tmp_path), log(tmp_path, [300.0] * 60)).result
    assert isinstance(analysis, Analysis)
    lines = power_lines(analysis)
    time_ms, watts = np.array(lines["modelled"]).T
    runs = ((time_ms > 0.11) & (time_ms < 0.39)) | ((time_ms > 0.51) & (time_ms < 0.79))
    waits = (time_ms < 0.09) | ((time_ms > 0.41) & (time_ms < 0.49)) | (time_ms > 0.81)
    assert watts[runs] == pytest.approx(product_watts(300.0))
    assert watts[waits] == pytest.approx(128.0)
    whole = (watts * STEP_US * 1e-6 / len(watts)).sum()
    assert whole == pytest.approx(analysis.frames["steps"]["energy_j"].iloc[0], rel=1e-3)
    assert {watts for _, watts in lines["measured"]} == {300.0}
    assert len(lines["measured"]) == 11  # every 100 us, both ends included


def test_the_page_has_joules_beside_time_and_watts_under_the_timeline(tmp_path: Path) -> None:
    page = reported(timed(tmp_path), log(tmp_path, [300.0] * 60)).to_html(tmp_path / "page.html").read_text()
    assert "Modelled energy by category: 0.454 J per step" in page
    assert "Power of the device, W (modelled and measured)" in page
    unknown = tracelens.report(recording(tmp_path, ALONE, device=MI300X)).to_html(tmp_path / "other.html").read_text()
    assert "Modelled energy" not in unknown
    assert "Power of the device" not in unknown


def counted(
    folder: Path, name: str, values: list[float], *, key: str = "value", pid: int = 0, spaced: bool = False
) -> Path:
    """A recording of three steps with a counter every 100 us, from 200 us before the first on; no time of day."""
    path = recording(folder, ALONE, steps=3)
    document = json.loads(path.read_text())
    document["traceEvents"] += [
        {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": 100 * n - 200, "args": {key: value}}
        for n, value in enumerate(values)
    ]
    # Text that the scan in C leaves to the other reader
    document["traceEvents"] += [{"ph": "B", "name": "x", "pid": 9, "tid": 9, "ts": 0}] if spaced else []
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize(
    ("name", "key", "scale"),
    [
        ("GPU 0 Power (W)", "value", 1),
        ("GPU [0] Power", "mW", 1000),
        ("power", "power_draw", 1),
        ("Device 0: power", "kW", 1e-3),
    ],
)
def test_counters_of_the_recording_are_samples(tmp_path: Path, name: str, key: str, scale: float, spaced: bool) -> None:
    """500 W all the time: half a joule per step of 1 ms, whatever the unit and the reader."""
    report = tracelens.report(counted(tmp_path, name, [500.0 * scale] * 60, key=key, spaced=spaced))
    found = report.summary.measured_power
    assert found is not None
    assert found.power_w == pytest.approx(500.0)
    assert report.result.frames["steps"]["measured_j"].iloc[:3].tolist() == pytest.approx([0.5] * 3)
    assert "measured 0.500 J, 500 W by 31 samples of the recording's counters" in verdict(report.summary)


@pytest.mark.parametrize(
    ("name", "key", "value", "pid"),
    part(
        [
            ("GPU 0 Power limit (W)", "value", 700.0, 0),  # what it may draw
            ("CPU package power (W)", "value", 200.0, 0),  # no device
            ("GPU 0 Power", "value", 400_000.0, 0),  # mW, but that is not said
            ("GPU 1 Power (W)", "value", 400.0, 1),  # another device's
            ("GPU 0 utilization", "value", 90.0, 0),
        ],
        5,
    ),
)
def test_other_counters_are_no_samples(tmp_path: Path, name: str, key: str, value: float, pid: int) -> None:
    report = tracelens.report(counted(tmp_path, name, [value] * 60, key=key, pid=pid))
    assert report.summary.measured_power is None
    assert "measured" not in verdict(report.summary).split("energy", 1)[1].splitlines()[1]


def test_values_that_are_no_watts_are_passed_over_and_a_log_wins(tmp_path: Path) -> None:
    odd = [300.0, -1.0, "many", None, float("nan"), True, *[300.0] * 54]
    path = counted(tmp_path, "GPU 0 Power (W)", odd)  # type: ignore[arg-type]
    found = tracelens.report(path).summary.measured_power
    assert found is not None
    assert found.power_w == pytest.approx(300.0)
    one = tracelens.report(counted(tmp_path, "GPU 0 Power (W)", [300.0])).summary.measured_power
    assert one is None
    document = json.loads(path.read_text())
    document["baseTimeNanoseconds"] = int(NOON.timestamp()) * 10**9
    path.write_text(json.dumps(document))
    logged = reported(path, log(tmp_path, [450.0] * 60)).summary.measured_power
    assert logged is not None
    assert logged.source == "power.csv"
    assert logged.power_w == pytest.approx(450.0)
