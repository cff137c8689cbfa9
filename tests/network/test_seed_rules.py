"""Golden values of the original simulator: times, rounds, bytes, and hashes of its logs."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from tracelens.errors import UsageError
from tracelens.laboratory.original_rules import simulate_seed
from tracelens.predict.network.packets import MeshRules

PRODUCTION = MeshRules()
CASE_2 = replace(PRODUCTION, links=2, initial_delay_ms=1, link_bytes_per_ms=150, packet_bytes=15, packet_delay_ms=2)
M1 = """0 1269 1035 1188 1377 1080 900 1143 | 1152 0 1125 1215 1134 1170 1161 1152 | 1206 1062 0 1035 1224 1125 1323 1071
| 1053 1188 1152 0 1080 1413 1179 1116 | 1197 1125 1071 1170 0 1179 1089 1188 | 1296 954 1143 1206 1152 0 1044 1161
| 1206 1260 1152 1116 1179 1044 0 1116 | 1071 1098 1323 918 1305 1170 1143 0"""
M2 = """0 783 774 1377 990 1188 747 1404 | 1845 0 945 1611 909 963 702 1602 | 1944 639 0 1530 855 1107 765 1548
| 1773 702 774 0 810 1053 837 1386 | 1755 630 900 1620 0 1080 927 1449 | 1836 738 819 1494 729 0 837 1674
| 1890 720 909 1503 873 1071 0 1449 | 1872 837 711 1332 972 990 954 0"""


def even(nbytes, ranks=8):
    return [[nbytes if i != j else 0 for j in range(ranks)] for i in range(ranks)]


def matrix(text):
    return [[int(word) for word in row.split()] for row in text.split("|")]


@pytest.mark.parametrize(
    ("load", "rules", "time_ms", "rounds", "moved"),
    [
        (even(1600), PRODUCTION, 256.0, 32, 89_600),
        (even(1500), CASE_2, 231.0, 10, 84_000),
        (even(1600), replace(PRODUCTION, packets_per_turn=1), 256.0, 32, 89_600),
        (even(1600), replace(PRODUCTION, packet_bytes=32), 200.0, 34, 89_600),
        (even(1600), replace(PRODUCTION, nic_bytes_per_round=700), 256.0, 32, 89_600),
        (even(1600), replace(PRODUCTION, nic_bytes_per_round=400), 640.0, 80, 89_600),
        (even(1600), replace(PRODUCTION, nic_bytes_per_round=200), 1152.0, 144, 89_600),
        (matrix(M1), PRODUCTION, 219.06, 28, 64_404),
        (matrix(M2), replace(PRODUCTION, links=2, packet_bytes=32), 108.87, 18, 64_134),
        ([[0, 10], [100, 0]], PRODUCTION, 11.1, 2, 110),
        ([[0, 10], [100, 0]], replace(PRODUCTION, links=2), 3.1, 1, 110),
    ],
    ids=[
        "case 1",
        "case 2",
        "1 per turn",
        "packet 32",
        "NIC 700",
        "NIC 400",
        "NIC 200",
        "M1",
        "M2",
        "1 link",
        "2 links",
    ],
)
def test_times_rounds_and_bytes_are_the_originals(load, rules, time_ms, rounds, moved):
    times, _ = simulate_seed(load, rules)
    assert (round(times.time_ms, 6), times.rounds, times.moved_bytes) == (time_ms, rounds, moved)


@pytest.mark.parametrize(
    ("load", "rules", "length", "sha256"),
    [
        (even(1600), PRODUCTION, 71_791, "45f9d1f9c7b36e89"),
        (even(1500), CASE_2, 61_994, "12c1fb623fe69460"),
        (matrix(M1), PRODUCTION, 57_954, "fbe8c5566c7a440e"),
        (matrix(M2), replace(PRODUCTION, links=2, packet_bytes=32), 47_121, "692e21b4b05bc62a"),
        ([[0, 3, 4, 1], [0] * 4, [0] * 4, [0] * 4], replace(PRODUCTION, packet_bytes=2, packets_per_turn=2), 647,
         "9a12a672777fb840"),
        ([[0, 3, 4, 1], [0] * 4, [0] * 4, [0] * 4], replace(PRODUCTION, packet_bytes=2, packets_per_turn=1), 647,
         "9a12a672777fb840"),
    ],
    ids=["case 1", "case 2", "M1", "M2", "section 3", "section 3, 1 per turn"],
)  # fmt: skip
def test_logs_are_the_originals_byte_for_byte(load, rules, length, sha256):
    _, log = simulate_seed(load, rules)
    assert (len(log), hashlib.sha256(log.encode()).hexdigest()[:16]) == (length, sha256)


def test_a_time_is_a_float_summed_in_the_order_of_rounds():
    times, log = simulate_seed(matrix(M2), replace(PRODUCTION, links=2, packet_bytes=32))
    assert times.time_ms == 108.86999999999998
    assert "COMM TIME: 108.86999999999998 ms" in log


def test_local_bytes_are_counted_and_do_not_travel():
    times, log = simulate_seed([[50, 10], [0, 7]], PRODUCTION)
    assert (times.local_bytes, times.moved_bytes) == (57, 10)
    assert "{0: {0: 0, 1: 10}, 1: {0: 0, 1: 0}}" in log


def test_nothing_to_send_takes_the_initial_delay():
    times, _ = simulate_seed(np.zeros((3, 3), int).tolist(), replace(PRODUCTION, initial_delay_ms=5))
    assert (times.time_ms, times.rounds) == (5, 0)


def test_what_these_rules_never_used_is_refused():
    with pytest.raises(UsageError, match="supports neither overlap nor"):
        simulate_seed(even(10, 2), replace(PRODUCTION, overlap=1.2))
