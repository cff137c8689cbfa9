"""GEMMs whose last wave of tiles leaves most of the device idle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import percent
from tracelens.analysis.verdict.summary import Said
from tracelens.lazy.patterns import lazy_pattern
from tracelens.perf_models.matrix.gemm import GEMM

#: Tiles of hipBLASLt (MT128x128x64) and of cutlass, cuBLAS and nvjet (tilesize128x64x32, _128x64_, _128x64x32_).
_TILE = lazy_pattern(r"(?:MT|tilesize|_)(\d{2,3})x(\d{2,3})(?:x\d{1,3})?(?=_)")
#: Kernels that also split the sum, or hand out work in other pieces than tiles.
_SPLITS = lazy_pattern(r"(?i)split_?k|stream_?k|_SK\d|GSU(?:[2-9]|\d\d)|MultipleBuffer")
#: Share of the device that must be idle, on average over the waves.
_MUCH_IDLE = 0.15


@finding(
    "wave_quantization",
    Advice(
        sees="GEMMs whose tiles, by the size in the kernel's name, do not fill the compute units in the last wave; "
        "of those that HBM bounds, only where some units have no tile at all.",
        costs="A wave takes as long for one tile as for one on every compute unit: the rest of the device waits.",
        remedy="change batch or sequence so that tiles fill whole waves, or let max-autotune choose split-K, stream-K",
        wrong_when="Other kernels run beside it and use the idle units.",
        references=(
            "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html",
            "Osama et al., Stream-K, 2023, arXiv:2301.03598",
        ),
    ),
)
def wave_quantization(seen: Observed) -> Iterator[Candidate]:
    """Gain: the share of their waves in which units are idle, at most their time above the roofline; of those bound by
    memory, above what the tile model expects, as no tiles make them read at the peak rate.
    """
    units, (gemms, models) = None if seen.device is None else seen.device.compute_units, seen.gemms
    if units is None or gemms.empty:
        return
    each = zip(models, gemms["kernel_details"], gemms["roofline_bound"], strict=True)
    idle = np.array([_idle_share(*gemm, units) for gemm in each])
    unfilled = idle > _MUCH_IDLE
    gemms, models, idle = gemms[unfilled], models[unfilled], idle[unfilled]
    if gemms.empty:
        return
    expected_us, _ = seen.expected_us(models.tolist())
    least_us = np.where(gemms["roofline_bound"] == "memory", expected_us, gemms["roofline_us"])
    share = np.minimum(idle, 1 - least_us / gemms["kernel_us_mean"])
    much = share > _MUCH_IDLE
    rows, share, idle = gemms[much], share[much], idle[much]
    if rows.empty:
        return
    lost = float((idle * rows["kernel_us_sum"]).sum() / rows["kernel_us_sum"].sum())
    rest = Candidate(
        why=f": their tiles leave {percent(lost)} of the compute units' time unused (wave quantization)",
        claimed=seen.calls(rows, share, low=0.0),
        computed="1 - waves / whole waves, with the tile of the kernel's name, at most the time above the roofline, or "
        "above what the tile model expects of those bound by memory",
        certainty="low",
        figures=(Said(what="unused", value=lost, unit="share"),),
    )
    yield from candidate_of_calls(seen, rows, "GEMM", rest)


def _idle_share(gemm: GEMM, kernels: object, bound: str | None, units: int) -> float:
    """What part of the waves is idle; NaN where the kernel does not say how it tiles. The better of both directions.

    NaN too where memory keeps the units waiting in every wave, so that a last one of few tiles reads as fast as the
    others: there it matters only that some units have no tile at all. Nor do tiles matter beside a launch.
    """
    found = _TILE.search(str(kernels))
    if found is None or _SPLITS.search(str(kernels)):
        return np.nan
    a, b = (int(text) for text in found.groups())
    tiles = min(-(-gemm.m // m) * -(-gemm.n // n) for m, n in ((a, b), (b, a))) * gemm.b
    if tiles <= 0 or bound not in ("compute", "memory") or (bound == "memory" and tiles >= units):
        return np.nan
    return 1 - tiles / (units * -(-tiles // units))
