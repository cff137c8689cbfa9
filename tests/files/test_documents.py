"""Documents that users give: what earlier versions of ours said is read by today's names."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.files.documents import FigureTable, report_ops


def test_the_ops_of_a_report_of_version_1_have_the_keys_of_today():
    """256 flops are 2.56e-7 GFLOP; None stays None."""
    signature = {
        "name": "aten::mm",
        "shapes": [[8, 2], [2, 8]],
        "dtypes": ["float"] * 2,
        "strides": None,
        "scalars": None,
    }
    old = {"signature": signature, "count": 6, "measured_us": 5.0, "flops": 256, "hbm_bytes": None, "bound": "memory"}
    today = {"name": "aten::mm", "operation_count": 6, "kernel_us_mean": 5.0, "gflops": 2.56e-7}
    assert report_ops({"ops": [old, today]}) == [
        {
            "name": "aten::mm", "input_dims": [[8, 2], [2, 8]], "input_types": ["float"] * 2, "input_strides": None,
            "concrete_inputs": None, "operation_count": 6, "kernel_us_mean": 5.0, "gflops": 2.56e-7, "hbm_mb": None,
            "roofline_bound": "memory",
        },
        today,
    ]  # fmt: skip


@dataclass
class Switched:
    on: bool = True
    off: bool = False


def test_a_switch_that_is_said_is_taken_and_one_that_is_not_keeps_its_default() -> None:
    for values, expected in (({}, (True, False)), ({"on": False, "off": True}, (False, True))):
        table = FigureTable(file="x.toml", path="", values=values, kind="test")
        found = Switched(**table.figures(Switched))
        assert (found.on, found.off) == expected
