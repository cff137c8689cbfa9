"""DeepEP's published V1 tables, each EP size left out of its fit."""

from __future__ import annotations

import pytest

from benchmarks.route import published


@pytest.mark.sweep
@pytest.mark.shared
def test_no_row_of_the_published_tables_is_off_by_more_than_8_percent(shared_data):
    errors = published(shared_data)
    assert {kernel: sorted(sizes) for kernel, sizes in errors.items()} == {
        "low latency dispatch": [8, 16, 32, 64, 128, 256],
        "low latency combine": [8, 16, 32, 64, 128, 256],
        "normal dispatch": [8, 16, 32, 64],
        "normal combine": [8, 16, 32, 64],
    }
    assert max(abs(error) for sizes in errors.values() for error in sizes.values()) < 8
