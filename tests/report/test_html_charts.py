"""Charts: what is drawn where."""

from __future__ import annotations

import re

import pytest

from tracelens.analysis.page_charts import ComputeRoof, Roofs
from tracelens.report.charts import (
    COLOR_CLASSES,
    REST,
    SHAPES,
    Part,
    Point,
    color_classes,
    marker,
    marker_shapes,
    roofline_chart,
    stacked_bar,
)

ROOFS = Roofs(
    compute=(ComputeRoof(spec="matrix_bf16", peak_tflops_s=1000.0, achievable_tflops_s=500.0),), hbm_peak_tb_s=5.0
)


def point(intensity: float, rate: float, row: int = 0) -> Point:
    return Point(
        row=row, label="aten::mm", intensity=intensity, tflops_s=rate, time_us=10.0, share=0.5, category="GEMM"
    )


def lines(chart: str, kind: str) -> list[dict[str, float]]:
    found = re.findall(rf'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" class="roof {kind}">', chart)
    found += [
        (a, c, b, d)
        for a, b, c, d in re.findall(
            rf'<line x1="([\d.]+)" x2="([\d.]+)" y1="([\d.]+)" y2="([\d.]+)" class="roof {kind}">', chart
        )
    ]
    return [dict(zip(("x1", "y1", "x2", "y2"), map(float, line), strict=True)) for line in found]


def test_every_category_with_a_color_has_a_shape_of_its_own():
    names = [f"category {i}" for i in range(COLOR_CLASSES + 3)]
    colors = color_classes(names)
    assert list(colors.values()) == [f"c{i}" for i in range(COLOR_CLASSES)] + [REST] * 3
    shapes = marker_shapes(colors)
    assert len({shapes[name] for name in names[: COLOR_CLASSES + 1]}) == COLOR_CLASSES + 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_marker_is_a_closed_path(shape):
    assert re.fullmatch(r"M[-\d. LaM]+z", marker(shape, 10.0, 20.0, 5.0))


def test_the_parts_of_a_bar_begin_where_the_ones_before_end():
    bar = stacked_bar(
        [Part(label="a", share=0.25, color="c0"), Part(label="b", share=0.5, color="c1"), Part(label="d", share=0.25, color="c2")],
        "time",
    )  # fmt: skip
    assert re.findall(r'<svg x="([\d.]+)%" width="([\d.]+)%"', bar) == [
        ("0.000", "25.000"), ("25.000", "50.000"), ("75.000", "25.000"),
    ]  # fmt: skip


def test_the_slope_meets_the_roof_of_the_data_sheet_at_their_quotient():
    """1000 TFLOPS/s over 5 TB/s: 200 operations per byte."""
    chart = roofline_chart([point(0.1, 0.4), point(1000.0, 400.0)], ROOFS, {"GEMM": "c0"})
    slope, roof = lines(chart, "peak")
    assert (slope["x2"], slope["y2"]) == pytest.approx((roof["x1"], roof["y1"]), abs=0.02)
    assert slope["y1"] > slope["y2"]
    (achievable,) = lines(chart, "achievable")
    assert achievable["y1"] == achievable["y2"] > roof["y1"]


def test_a_point_on_the_roof_is_drawn_on_it():
    chart = roofline_chart([point(1000.0, 1000.0), point(1.0, 1.0)], ROOFS, {"GEMM": "c0"})
    _, roof = lines(chart, "peak")
    centers = re.findall(r'<path d="M[\d.]+ ([\d.]+)a', chart)
    assert min(map(float, centers)) == pytest.approx(roof["y1"], abs=0.1)


def test_without_a_device_there_are_points_and_no_roofs():
    chart = roofline_chart([point(1.0, 1.0)], None, {})
    assert 'class="roof ' not in chart
    assert 'href="#ops-0"' in chart


@pytest.mark.parametrize(("intensity", "rate"), [(1e-9, 1e-12), (1e12, 1e9)])
def test_extreme_points_stay_on_the_chart(intensity, rate):
    chart = roofline_chart([point(intensity, rate), point(10.0, 10.0)], ROOFS, {"GEMM": "c0"})
    x, y = (float(v) for v in re.findall(r'<path d="M([\d.]+) ([\d.]+)a', chart)[0])
    assert 0 <= x <= 1180
    assert 0 <= y <= 470
