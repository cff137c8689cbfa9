"""The original simulator's routing: its seeded golden values through its packet rules, and its two files."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import part
from tracelens.errors import InputError, UsageError
from tracelens.laboratory.original_rules import seed_routing, simulate_seed
from tracelens.predict.network.packets import MeshRules
from tracelens.predict.workload.token_routing import RoutingTable

RULES = MeshRules()
TEST_RULES = replace(RULES, links=2, link_bytes_per_ms=2, packet_bytes=1, packets_per_turn=2)


def played(rules=RULES, *, tokens=1024, experts=128, topk=8, ranks=8, ratio=0.5, weight=0.8, unit=9):
    table = seed_routing(tokens=tokens, experts=experts, topk=topk, hot=(ratio, weight), ranks=ranks, seed=0)
    load = np.zeros((ranks, ranks), int)
    np.add.at(load, (np.repeat(table.source, topk), (table.experts // (experts // ranks)).ravel()), unit)
    return simulate_seed(load.tolist(), rules)


@pytest.mark.parametrize(
    ("options", "time_ms", "rounds", "moved", "local"),
    part(
        [
            ({"weight": 0.5}, 211.13, 27, 64_152, 9_576),
            ({}, 212.23, 27, 65_223, 8_505),
            ({"ratio": 0.25}, 293.48, 37, 64_548, 9_180),
            ({"weight": 0.95}, 220.24, 28, 65_016, 8_712),
            ({"ratio": 1, "weight": 1}, 214.77, 27, 64_440, 9_288),
            ({"rules": replace(RULES, links=2)}, 108.23, 14, 65_223, 8_505),
            ({"rules": replace(RULES, packet_bytes=1)}, 2703.23, 27, 65_223, 8_505),
            ({"ranks": 16, "tokens": 4096}, 255.83, 32, 276_174, 18_738),
            ({"ranks": 32, "tokens": 4096}, 83.13, 11, 285_489, 9_423),
            ({"rules": TEST_RULES, "tokens": 40, "experts": 4, "topk": 2, "ranks": 4, "unit": 4}, 85.0, 17, 256, 64),
        ],
        5,
    ),
    ids=["0.5/0.5", "0.5/0.8", "0.25/0.8", "0.5/0.95", "1/1", "2 links", "packet 1", "16 ranks", "32 ranks", "test"],
)
def test_seeded_runs_are_the_originals(options, time_ms, rounds, moved, local):
    times, _ = played(**options)
    assert (round(times.time_ms, 6), times.rounds, times.moved_bytes, times.local_bytes) == (
        time_ms,
        rounds,
        moved,
        local,
    )


def test_the_log_of_the_test_parameters_is_the_originals():
    _, log = played(TEST_RULES, tokens=40, experts=4, topk=2, ranks=4, unit=4)
    assert (len(log), hashlib.sha256(log.encode()).hexdigest()[:16]) == (11_192, "b796981e7db8174e")


def test_files_come_back_as_they_were_written(tmp_path):
    hot = (0.5, 0.8)
    table = seed_routing(tokens=20, experts=8, topk=2, hot=hot, ranks=4, seed=7)
    table.save(tmp_path / "run")
    again = RoutingTable.load(tmp_path / "run", ranks=4)
    np.testing.assert_array_equal(again.experts, table.experts)
    np.testing.assert_array_equal(again.source, table.source)
    np.testing.assert_allclose(again.weights, table.weights, rtol=1e-6)
    first = (tmp_path / "run" / "weights.csv").read_text().splitlines()[5].split(",")
    assert (len(first), first[2:]) == (4, ["1", "5"])  # two weights, rank 5 mod 4, token 5


def test_a_file_that_does_not_fit_is_named(tmp_path):
    (tmp_path / "routing.csv").write_text("1,2\n3,4\n")
    (tmp_path / "weights.csv").write_text("0.5,0.5,0\n0.5,0.5,1\n")
    with pytest.raises(InputError, match=r"2 rows of 2 weights, rank and token expected, it has 2 rows of 3"):
        RoutingTable.load(tmp_path, ranks=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": 256}, "at most 128 experts"),
        ({"tokens": 40_000}, "32,768 tokens"),
        ({"topk": 200}, "top-k 200 needs at least as many experts"),
        ({"ranks": 7}, "128 experts do not divide over 7 ranks; give a map"),
        ({"ratio": 0}, "are no distribution|is not a valid distribution"),
    ],
)
def test_what_the_original_cannot_play_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        played(**options)
