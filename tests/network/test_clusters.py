"""The cluster files of the package, and what is said about a wrong one."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tracelens.errors import InputError, UsageError
from tracelens.files.documents import normalized
from tracelens.predict.network.algorithms import algorithms, collective_us
from tracelens.predict.network.cluster import FOLDER, LIBRARIES, Cluster, Library
from tracelens.predict.network.topology import Group, Protocol, Rates

MINIMAL = """
device = "h100-sxm"
library = "nccl"
[node]
ranks = 8
shape = "switch"
source = "acme data sheet"
[network]
cards = 4
card_gb_s = 25
source = "acme data sheet"
"""


def load(folder, text):
    path = folder / "my_cluster.toml"
    path.write_text(text, encoding="utf-8")
    return Cluster.load(path)


def test_a_minimal_file_takes_the_devices_link_and_the_librarys_latencies(tmp_path):
    cluster = load(tmp_path, MINIMAL)
    assert (cluster.name, cluster.label, cluster.ep_library, cluster.is_standard) == (
        "my_cluster",
        "my_cluster",
        None,
        False,
    )
    node, network = cluster.topology(Rates(peak_gb_s=450, all_gather_gb_s=336)).tiers
    assert (node.ranks, node.link.rates.peak_gb_s, node.link.rates.of("all_reduce")) == (8, 450, 336)
    assert (network.ranks, network.cards, network.link.rates.of("all_gather")) == (None, 4, 25)
    assert node.link.protocols == Library.load("nccl").node.protocols
    assert network.link.protocols == Library.load("nccl").network.protocols


def test_a_file_overrides_rates_protocols_overheads_and_the_chunk(tmp_path):
    text = (
        MINIMAL
        + """
[network.protocol.simple]
base_us = 1
hop_us = 2
tree_hop_us = 3
rate_share = 0.9
source = "fitted"
[network.all_to_all]
peer_us = 0.5
source = "fitted"
[node.rates]
all_gather_gb_s = 300
source = "measured"
[node.protocol.simple]
hop_us = 2
tree_hop_us = 3
rate_share = 1
source = "fitted"
[pipeline]
chunk_mb = 8
source = "fitted"
"""
    )
    cluster = load(tmp_path, text)
    topology = cluster.topology(Rates(peak_gb_s=450, all_gather_gb_s=336))
    assert [tier.link.protocols[0].base_us for tier in topology.tiers] == [0, 1]
    assert topology.tiers[0].link.rates.of("all_gather") == 300
    assert topology.tiers[1].link.peer_us == 0.5
    assert topology.chunk_bytes == 8e6
    assert cluster.sources["network.protocol.simple"] == cluster.sources["pipeline"] == "fitted"


def test_every_figure_of_a_file_arrives_at_its_link(tmp_path):
    """Each is another number; a tier without the table has no such cost."""
    cluster = load(
        tmp_path,
        """
label = "Acme"
device = "h100-sxm"
library = "nccl"
algorithms = ["all_reduce/ring"]
aliases = ["pod"]
note = "a note"
standard = true
ep_library = "deepep"
error_percent = 12
[node]
ranks = 4
shape = "mesh"
adds_in_switch = true
source = "a"
[node.rates]
all_gather_gb_s = 31
all_reduce_gb_s = 32
all_to_all_gb_s = 33
in_switch_gb_s = 34
source = "b"
[node.in_switch]
latency_us = 41
source = "c"
[node.all_to_all]
sync_us = 42
source = "d"
[node.protocol.ll]
hop_us = 54
tree_hop_us = 55
rate_share = 0.5
source = "i"
[network]
cards = 2
card_gb_s = 25
nodes = 16
source = "e"
[network.rates]
all_gather_gb_s = 21
all_reduce_gb_s = 22
all_to_all_gb_s = 25
alone_gb_s = 24
source = "f"
[network.protocol.ll]
base_us = 51
hop_us = 52
tree_hop_us = 53
rate_share = 1
source = "g"
[network.all_to_all]
peer_us = 43
source = "h"
""",
    )
    assert (cluster.label, cluster.aliases, cluster.note, cluster.ep_library) == ("Acme", ("pod",), "a note", "deepep")
    assert (cluster.is_standard, cluster.adds_in_switch, cluster.error_percent) == (True, True, 12)
    found = cluster.topology(Rates(peak_gb_s=450, all_gather_gb_s=336))
    assert (found.algorithms, found.chunk_bytes) == (("all_reduce/ring",), 4 * 2**20)
    node, network = found.tiers
    assert (node.ranks, node.shape, network.ranks, network.cards) == (4, "mesh", 64, 2)
    assert node.link.rates == Rates(
        peak_gb_s=450, all_gather_gb_s=31, all_reduce_gb_s=32, all_to_all_gb_s=33, in_switch_gb_s=34
    )
    assert network.link.rates == Rates(
        peak_gb_s=25, all_gather_gb_s=21, all_reduce_gb_s=22, all_to_all_gb_s=25, alone_gb_s=24
    )
    assert [(link.peer_us, link.sync_us, link.in_switch_us) for link in (node.link, network.link)] == [
        (0, 42, 41),
        (43, 0, 0),
    ]
    assert network.link.protocols == (Protocol(name="ll", base_us=51, hop_us=52, tree_hop_us=53, rate_share=1),)
    assert node.link.protocols == (Protocol(name="ll", base_us=0, hop_us=54, tree_hop_us=55, rate_share=0.5),)
    bare = load(tmp_path, MINIMAL).topology(Rates(peak_gb_s=450))
    assert [(tier.link.peer_us, tier.link.sync_us) for tier in bare.tiers] == [(0, 0), (0, 0)]
    assert (bare.tiers[0].link.in_switch_us, bare.tiers[1].link.in_switch_us) == (25, 0)
    assert {name: cluster.sources[name] for name in ("node", "node.rates", "node.in_switch", "node.all_to_all")} == {
        "node": "a",
        "node.rates": "b",
        "node.in_switch": "c",
        "node.all_to_all": "d",
    }
    assert [cluster.sources[f"network{part}"] for part in ("", ".rates", ".protocol.ll", ".all_to_all")] == list("efgh")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('device = "h100-sxm"', "", "my_cluster.toml: device must be a string, but is missing"),
        ("ranks = 8", "ranks = 1", "my_cluster.toml: node.ranks must be a whole number, at least 2, got 1"),
        ('shape = "switch"', 'shape = "torus"', 'my_cluster.toml: node.shape must be "switch" or "mesh", got "torus"'),
        ("cards = 4", "card = 4", "my_cluster.toml: network.cards must be a whole number, at least 1, but is missing"),
        ("card_gb_s = 25", 'card_gb_s = "25"', 'my_cluster.toml: network.card_gb_s must be a number above 0, got "25"'),
        ("card_gb_s = 25", "card_gb_s = 25\ncrads = 4", "my_cluster.toml: network.crads is not a key of a cluster file; did you mean network.cards?"),
        ('card_gb_s = 25\nsource = "acme data sheet"', "card_gb_s = 25", "my_cluster.toml: network.source must say where the figure comes from"),
        ('library = "nccl"', 'library = "nccl"\nalias = "x"', "my_cluster.toml: alias is not a key of a cluster file; did you mean aliases?"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_an_error_that_names_the_key(tmp_path, old, new, message):
    with pytest.raises(InputError) as caught:
        load(tmp_path, MINIMAL.replace(old, new))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("[network.rates]\nall_gather_gb_s = 26\nsource = 'x'", "network.rates.all_gather_gb_s must not be above card_gb_s 25, got 26"),
        ("[network.protocol.ll]\nhop_us = 1\ntree_hop_us = 1\nrate_share = 2\nsource = 'x'", "network.protocol.ll.rate_share must not be above 1, got 2"),
        ("[network.protocol.ll]\nhop_us = 1\ntree_hop_us = 1\nrate_share = 1\nsource = 'x'", "network.protocol must be of the same protocols as node.protocol: ll, ll128, simple"),
        ("[network.protocol.ll64]\nhop_us = 1", "network.protocol.ll64 is not a key of a cluster file; did you mean network.protocol.ll?"),
    ],
)  # fmt: skip
def test_a_figure_that_cannot_be_is_an_error(tmp_path, added, message):
    with pytest.raises(InputError, match=r"my_cluster\.toml") as caught:
        load(tmp_path, MINIMAL + added)
    assert message in str(caught.value)


def test_names_forgive_case_and_separators_and_unknown_ones_are_explained():
    assert Cluster.load("DGX_H100").name == "dgx-h100"
    assert Cluster.load("hgx h100").name == "dgx-h100"
    with pytest.raises(UsageError, match="no cluster named 'dgx-h10'; did you mean dgx-h100"):
        Cluster.load("dgx-h10")
    with pytest.raises(UsageError, match="no communication library named 'ncc'; did you mean nccl"):
        Library.load("ncc")


def test_the_files_of_the_package_load_and_names_are_unique():
    assert {path.stem for path in FOLDER.glob("*.toml")} == {cluster.name for cluster in Cluster.all()}
    claimed = defaultdict(set)
    for cluster in Cluster.all():
        assert cluster.name == normalized(cluster.name)
        for spelling in (cluster.name, *cluster.aliases):
            claimed[normalized(spelling)].add(cluster.name)
    assert {spelling: names for spelling, names in claimed.items() if len(names) > 1} == {}


def test_a_device_has_one_standard_node():
    devices = [cluster.device for cluster in Cluster.all() if cluster.is_standard]
    assert len(devices) == len(set(devices))
    assert Cluster.standard("h200-sxm").name == "dgx-h200"
    assert Cluster.standard("l4") is None
    for cluster in Cluster.all():
        if cluster.is_standard:
            assert Cluster.standard(cluster.device) == cluster  # not overlooked by how its file is written


def test_libraries_choose_from_algorithms_that_exist():
    for path in LIBRARIES.glob("*.toml"):
        assert set(Library.load(path.stem).algorithms) <= set(algorithms())
    for cluster in Cluster.all():
        assert set(cluster.algorithms) <= set(algorithms())


def test_every_table_of_figures_says_where_they_come_from():
    for cluster in Cluster.all():
        assert {"node", "network", "node.protocol.simple", "network.protocol.simple"} <= set(cluster.sources), (
            cluster.name
        )
        assert all(cluster.sources.values())


def test_an_all_to_all_costs_what_the_file_says_per_peer_and_per_call_0_included(tmp_path):
    """Seven peers of a node at 28 us each; without, the same message takes 196 us less."""
    text = MINIMAL + '[node.all_to_all]\npeer_us = {peer}\nsync_us = 0\nsource = "Primus\' first calibration"\n'
    times = []
    for peer in (28, 0):
        found = load(tmp_path, text.format(peer=peer)).topology(Rates(peak_gb_s=450))
        assert (found.tiers[0].link.peer_us, found.tiers[0].link.sync_us) == (peer, 0)
        group = Group(ranks=found.tiers[0].ranks)
        times.append(collective_us("all_to_all", 1e6, group, found)[0][0])
    assert times[0] - times[1] == pytest.approx(28 * (group.ranks - 1))
    with pytest.raises(InputError, match="must be a number above 0"):
        load(tmp_path, text.format(peer=-1))
