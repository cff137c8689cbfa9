"""A collective algorithm is one file, of this package or of another."""

from __future__ import annotations

import sys

import pytest

from tracelens.predict.network import algorithms as room
from tracelens.predict.network.algorithms import algorithms, collective_us, of_library
from tracelens.predict.network.cluster import Library
from tracelens.predict.network.topology import Group, Protocol, Rates, Tier, TierLink, Topology

FILE = """
from tracelens.predict.network.algorithms import algorithm

@algorithm("all_reduce/instant", libraries=("nccl",))
def all_reduce(nbytes, group, topology):
    return 1.0 + 0.0 * nbytes
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A package beside this one that announces the module ``outside_algorithm``."""
    (tmp_path / "outside_algorithm.py").write_text(FILE)
    (tmp_path / "outside-1.0.dist-info").mkdir()
    (tmp_path / "outside-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (tmp_path / "outside-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{room.ENTRY_POINTS}]\ninstant = outside_algorithm\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    algorithms.cache_clear()
    yield
    algorithms.cache_clear()
    sys.modules.pop("outside_algorithm", None)


def test_an_installed_file_adds_an_algorithm_to_a_library(outside):
    link = TierLink(
        rates=Rates(peak_gb_s=100),
        protocols=(Protocol(name="simple", base_us=10, hop_us=2, tree_hop_us=3, rate_share=1.0),),
    )
    node = Topology(tiers=(Tier(ranks=8, shape="switch", link=link),), algorithms=of_library("nccl"))
    time, name = collective_us("all_reduce", 1e9, Group(ranks=8), node)
    assert (time.tolist(), name) == ([1.0], ("all_reduce/instant",))
    assert "all_reduce/instant" not in of_library("rccl")
    alone, _ = collective_us("all_reduce", 1e9, Group(ranks=8), node, "ring")
    assert alone[0] > 1000


def test_libraries_choose_from_what_their_sources_have():
    shared = {
        "all_gather/ring", "reduce_scatter/ring", "all_reduce/ring", "all_reduce/tree", "broadcast/ring", "reduce/ring",
        "all_to_all/direct", "all_to_all/pipelined", "send/p2p",
    }  # fmt: skip
    assert set(Library.load("nccl").algorithms) == shared | {"all_reduce/in_switch"}
    assert set(Library.load("rccl").algorithms) == shared
