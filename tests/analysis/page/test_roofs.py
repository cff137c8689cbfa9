"""The roofs of the device over the ops of a trace."""

from __future__ import annotations

from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.page_charts import roofs
from tracelens.hardware import HardwareSpec


def test_the_rates_that_the_ops_use_are_the_roofs(build):
    device = HardwareSpec.load("mi300x")
    found = roofs(analyze(build().mm(128, 128, 128, 0, 100, 10).trace(), AnalysisOptions(), on_demand=True))
    assert [roof.spec for roof in found.compute] == ["matrix_bf16"]
    assert found.compute[0].peak_tflops_s == device.matrix["bf16"].peak_tflops_s
    assert found.compute[0].achievable_tflops_s == device.matrix["bf16"].achievable_tflops_s
    assert (found.hbm_peak_tb_s, found.hbm_achievable_tb_s) == (device.hbm.peak_tb_s, device.hbm.achievable_tb_s)


def test_an_unknown_device_has_no_roofs(build):
    trace = build().mm(128, 128, 128, 0, 100, 10).trace(deviceProperties=[])
    analysis = analyze(trace, AnalysisOptions(), on_demand=True)
    assert (roofs(analysis) is None) == (analysis.device is None)


def test_without_device_work_there_are_no_roofs(build):
    assert roofs(analyze(build().op("aten::mm", 0, 5).trace(), AnalysisOptions(cpu=True), on_demand=True)) is None
