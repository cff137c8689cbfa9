"""The roofs of a device over the ops of a trace: what bounds a point of the roofline chart."""

from __future__ import annotations

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.sheets.ops import unified_perf_summary
from tracelens.analysis.work.limits import rate_of
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRoof:
    """A horizontal line: ``spec`` (``matrix_bf16``), its data-sheet rate and the best measured one where known."""

    spec: str
    peak_tflops_s: float
    achievable_tflops_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """The rates of one device. ``compute``: of the specs that the trace's ops use, most device time first."""

    compute: tuple[ComputeRoof, ...]
    hbm_peak_tb_s: float | None = None
    hbm_achievable_tb_s: float | None = None


def roofs(analysis: Analysis) -> Roofs | None:
    """None where the device is not known or there was no device work."""
    device, ops = analysis.device, analysis.frames.get(unified_perf_summary.TITLE)
    if device is None or ops is None:
        return None
    used = ops.dropna(subset=["compute_spec"]).groupby("compute_spec")["kernel_us_sum"].sum()
    compute = []
    for spec, _ in sorted(used.items(), key=lambda entry: (-entry[1], str(entry[0]))):
        rate = rate_of(device, str(spec))
        if rate is not None:
            compute.append(
                ComputeRoof(
                    spec=str(spec),
                    peak_tflops_s=rate.peak_tflops_s,
                    achievable_tflops_s=rate.achievable_tflops_s,
                )
            )
    return Roofs(
        compute=tuple(compute),
        hbm_peak_tb_s=device.hbm.peak_tb_s if device.hbm is not None else None,
        hbm_achievable_tb_s=device.hbm.achievable_tb_s if device.hbm is not None else None,
    )
