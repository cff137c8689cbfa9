"""Rates and overheads of a cluster found again from collectives that were timed with known ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tracelens.backends.base import System
from tracelens.backends.collective_times import MessageColumns, message_us
from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.predict.calibration.cluster_calibration import (
    ClusterOutcome,
    _constants,
    _with,
    calibrate_cluster,
    cluster_file,
)
from tracelens.predict.estimation.communication import estimate_collectives
from tracelens.predict.network.cluster import Cluster
from tracelens.predict.network.topology import Group

DGX = System.load("dgx-h100")
KNOWN = {
    "network.rates.all_gather_gb_s": 31.0,
    "network.protocol.simple.hop_us": 9.0,
    "network.all_to_all.peer_us": 1.5,
    "network.all_to_all.sync_us": 40.0,
}


def measured(nodes: tuple[int, ...], *ops: str) -> pd.DataFrame:
    """Whole nodes of the DGX whose figures are ``KNOWN``, 16 KiB to 1 GiB."""
    rows = [(op, 2.0**power, n, 8) for op in ops for n in nodes for power in range(14, 31, 2)]
    table = pd.DataFrame(rows, columns=["op", "size", "num_nodes", "gpus_per_node"])
    columns = MessageColumns(
        word=[op for op, *_ in rows], nbytes=table["size"].to_numpy(float), group=[Group(ranks=8 * n) for *_, n, _ in rows]
    )  # fmt: skip
    return table.assign(time_us=message_us(columns, replace(DGX, topology=_with(DGX.topology, KNOWN)))[0])


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return measured((1, 2, 4, 8), "all_gather", "all_to_all")


@pytest.fixture(scope="module")
def found(table: pd.DataFrame) -> ClusterOutcome:
    return calibrate_cluster(table, DGX, "x.csv")


@pytest.mark.sweep
def test_figures_that_made_the_times_are_found_again(found):
    assert found.rows == 72
    assert found.before > 15
    assert found.after < 2
    assert found.unseen is not None
    for place in ("network.rates.all_gather_gb_s", "network.all_to_all.peer_us"):
        assert found.constants[place] == pytest.approx(KNOWN[place], rel=0.1)
    # An all-to-all takes the sum of its wait, its protocol's hop and base: 40 + 9 + 8.4 us of Simple, here of LL128
    latency = ("all_to_all.sync_us", "protocol.ll128.hop_us", "protocol.ll128.base_us")
    assert sum(found.constants[f"network.{name}"] for name in latency) == pytest.approx(57.4, rel=0.05)
    # No collective of the table adds in the switch.
    assert "node.rates.in_switch_gb_s" in found.open


def test_the_file_says_what_was_fitted_and_keeps_the_rest(table, found, tmp_path):
    text = cluster_file(Cluster.file_text("dgx-h100"), DGX.topology, found, 'of "x.csv"')
    (tmp_path / "mine.toml").write_text(text)
    mine = System.of_cluster(Cluster.load(tmp_path / "mine.toml"))
    rates = mine.topology.tiers[1].link.rates
    assert rates.all_gather_gb_s == pytest.approx(found.constants["network.rates.all_gather_gb_s"], rel=0.01)
    assert mine.topology.tiers[0].ranks == 8
    assert mine.cluster.sources["network.rates"] == 'of "x.csv"'
    again = estimate_collectives(table, cluster=str(tmp_path / "mine.toml"))
    error = np.abs(again["time_us"] / table["time_us"] - 1).mean()
    assert error * 100 == pytest.approx(found.after, abs=0.5)


def test_one_node_leaves_the_network_as_it_was():
    inside = measured((1,), "all_gather", "all_to_all")
    found = calibrate_cluster(inside, DGX, "x.csv")
    assert not any(place.startswith("network") for place in found.constants)
    assert found.unseen is None


def test_places_of_constants_are_those_of_a_cluster_file():
    everything = _constants(DGX.topology)
    assert _with(DGX.topology, everything) == DGX.topology


def test_other_tables_are_refused():
    with pytest.raises(InputError, match=r"x\.csv: a table of collectives needs the columns op, size"):
        calibrate_cluster(pd.DataFrame({"m": [1]}), DGX, "x.csv")


def test_the_command_writes_a_cluster_that_other_commands_take(tmp_path, capsys):
    measured((1, 4), "all_gather").to_csv(tmp_path / "x.csv", index=False)
    out = tmp_path / "mine.toml"
    assert main(["calibrate", str(tmp_path / "x.csv"), "--cluster", "dgx-h100", "-o", str(out)]) == 0
    assert "18 collectives: mean error" in capsys.readouterr().out
    message = ["--op", "all_gather", "--bytes", "1e9", "--ranks", "32"]
    assert main(["estimate", "collective", *message, "--cluster", f"dgx-h100,{out}"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    # 336 GB/s of a node's links, where 8 cards of 47.6 were no limit; 8 cards of 31 are one.
    assert float(second.split()[2]) / float(first.split()[2]) == pytest.approx(336 / (8 * 31), rel=0.05)


@pytest.mark.shared
@pytest.mark.sweep
def test_measured_collectives_of_perlmutter(shared_traces):
    table = pd.read_csv(shared_traces.parent / "nccl_perlmutter.csv").iloc[::2]
    found = calibrate_cluster(table, System.load("perlmutter"), "nccl_perlmutter.csv")
    assert found.unseen < 10
    assert found.after <= found.before
