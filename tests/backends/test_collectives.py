"""Collectives and exchanges on a system: what is answered, by what, and how far off the measured tables it is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tracelens.backends import load
from tracelens.backends.base import System, link_rates
from tracelens.backends.collective_times import Collectives, MessageColumns, exchange_us, message_us
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.hardware.spec import FOLDER
from tracelens.perf_models import GEMM, Collective, EPComm
from tracelens.perf_models.base import WorkColumns
from tracelens.perf_models.collective import CustomCollective
from tracelens.predict.network.cluster import Cluster
from tracelens.predict.network.deepep import Exchanges
from tracelens.predict.network.topology import Group
from tracelens.types.dtypes import DType


@pytest.fixture(scope="module")
def h200() -> System:
    return System.load("dgx-h200")


def all_reduce(elements, ranks, stride=1):
    return Collective(kind="allreduce", elements_in=elements, elements_out=elements, ranks=ranks, stride=stride)


def test_the_backend_is_found_by_name():
    assert isinstance(load("collectives"), Collectives)


def test_a_device_alone_means_its_standard_node_and_says_so():
    system = System.load("H200")
    assert (system.device.name, system.cluster.name) == ("h200-sxm", "dgx-h200")
    assert system.note == "no cluster given: h200-sxm in its standard node, dgx-h200"
    assert System.load("dgx-h200").note is None


def test_a_cluster_called_like_its_device_is_the_device_in_its_standard_node():
    devices = {name for spec in HardwareSpec.all() for name in (spec.name, *spec.aliases)}
    for cluster in Cluster.all():
        assert cluster.device in HardwareSpec.names(), cluster.name
        assert System.of_cluster(cluster).topology.ranks_per_node == cluster.ranks_per_node
        if cluster.name in devices:
            assert System.load(cluster.name).cluster is cluster


def test_a_device_without_a_standard_node_has_no_topology_and_no_answer():
    system = System.of_device(HardwareSpec.load("l40s"))
    assert system.topology is None
    assert system.note == "no cluster given, and l40s has no standard node: no topology"
    assert Collectives().estimate(all_reduce(10**9, 8), system) is None
    with pytest.raises(UsageError, match="nothing says how several l40s are joined: name a cluster"):
        message_us(MessageColumns(word=["all_reduce"], nbytes=np.array([1e9]), group=[Group(ranks=8)]), system)


def test_an_unknown_name_is_explained():
    with pytest.raises(UsageError, match="no device or cluster named 'dgx-h2000'; did you mean"):
        System.load("dgx-h2000")


def test_files_of_devices_and_clusters_are_told_apart(tmp_path):
    device, cluster = tmp_path / "my_chip.toml", tmp_path / "my_cluster.toml"
    device.write_text('vendor = "acme"\n')
    cluster.write_text(
        'device = "h100-sxm"\nlibrary = "nccl"\n[node]\nranks = 4\nshape = "mesh"\nsource = "x"\n'
        '[network]\ncards = 1\ncard_gb_s = 12.5\nsource = "x"\n'
    )
    assert System.load(device).topology is None
    assert System.load(str(cluster)).topology.ranks_per_node == 4


def test_where_the_switch_adds_an_all_reduce_exceeds_the_ring():
    # 460.5 GB/s bus bandwidth of 8 ranks is 460.5 * 8 / 14 = 263.1 of message over time
    device = HardwareSpec.load("h200-sxm")
    assert link_rates(device, adds_in_switch=True).in_switch_gb_s == pytest.approx(263.1, abs=0.1)
    assert link_rates(device, adds_in_switch=False).of("all_reduce") == 337.4
    assert link_rates(HardwareSpec.load("a100-sxm-80gb"), adds_in_switch=False).of("all_reduce") == 222.3
    assert link_rates(HardwareSpec.load("mi300x"), adds_in_switch=False).of("all_gather") == 448 * 48 / 64
    assert link_rates(HardwareSpec.load("l40s"), adds_in_switch=False) is None
    # A chip with other memory has the same links; with fewer of them, the same share of their rate
    other, measured, fewer = (
        link_rates(HardwareSpec.load(name), adds_in_switch=True)
        for name in ("h100-sxm-96gb-hbm2e", "h100-sxm", "h800-sxm")
    )
    assert other == measured
    assert fewer.of("all_gather") == pytest.approx(336.0 * 200 / 450)


@pytest.mark.parametrize(
    ("name", "word", "published"),
    [
        ("dgx-h200", "all_reduce", 460.5), ("dgx-h200", "all_gather", 337.4), ("dgx-h200", "all_to_all", 317.5),
        ("dgx-a100", "all_reduce", 222.3), ("dgx-b200", "all_reduce", 704.0), ("dgx-b200", "all_to_all", 564.8),
    ],
)  # fmt: skip
def test_large_messages_reach_the_bus_bandwidth_of_the_device_file(name, word, published):
    columns = MessageColumns(word=[word], nbytes=np.array([2.0**29]), group=[Group(ranks=8)])
    time = message_us(columns, System.load(name))[0][0]
    share = (2 if word == "all_reduce" else 1) * 7 / 8
    assert 2**29 * share / time / 1e3 == pytest.approx(published, rel=0.03)


def test_rows_of_other_families_and_unknown_groups_have_no_answer(h200):
    custom = CustomCollective(kind="all_reduce", elements_in=8, elements_out=8, ranks=8)
    unknown = [all_reduce(8, None), Collective(kind="allreduce", elements_in=8, elements_out=8, ranks=8, dtype=None)]
    models = [GEMM(m=1, n=1, k=1), custom, *unknown, EPComm(tokens=8, hidden=8), all_reduce(1 << 20, 8)]
    table = Collectives().estimate_many(WorkColumns.of(models), h200)
    assert np.isnan(table.time_us).tolist() == [True, True, True, True, True, False]
    assert table.backend == (None,) * 5 + ("collectives",)
    assert table.bound[-1] == "wire"
    assert table.row(0) is None


def test_many_rows_are_the_rows_one_by_one(h200):
    models = [all_reduce(1 << k, 1 << r) for k in (4, 20, 28) for r in (1, 3, 5)]
    models += [all_reduce(1 << 20, 16, stride=8), Collective(kind="allgather", elements_in=8, elements_out=64, ranks=8)]
    table = Collectives().estimate_many(WorkColumns.of(models), h200)
    assert list(table.rows()) == [Collectives().estimate(model, h200) for model in models]
    assert (table.peak_us <= table.time_us).all()


def test_an_all_gather_is_priced_by_what_comes_out(h200):
    gathered = Collective(kind="_allgather_base", elements_in=1 << 20, elements_out=8 << 20, ranks=8)
    scattered = Collective(kind="reduce_scatter", elements_in=8 << 20, elements_out=1 << 20, ranks=8)
    assert Collectives().estimate(gathered, h200).time_us == Collectives().estimate(scattered, h200).time_us


def test_one_rank_per_node_pays_the_network(h200):
    near, far = (Collectives().estimate(all_reduce(1 << 28, 8, stride), h200).time_us for stride in (1, 8))
    assert far > 5 * near


def test_groups_of_the_ranks_in_between_share_the_cards_of_a_node(tmp_path):
    file = tmp_path / "few_cards.toml"
    file.write_text(
        'device = "h100-sxm"\nlibrary = "nccl"\n[node]\nranks = 8\nshape = "switch"\nsource = "x"\n'
        '[network]\ncards = 1\ncard_gb_s = 50\nsource = "x"\n'
    )
    found = Collectives().estimate(all_reduce(1 << 30, 2, stride=8), System.load(file))
    # 2 GiB of BF16 once each way through an eighth of one card
    assert found.peak_us == pytest.approx(2**31 / (50e3 / 8))
    assert found.time_us >= found.peak_us


def test_an_exchange_of_a_router_is_priced_by_deepeps_kernels(h200):
    model = EPComm(tokens=4096, hidden=7168, dtype=DType.FP8_E4M3FN, ranks=8, phase="dispatch", experts=256, topk=8)
    same = Exchanges(phase="dispatch", tokens=4096.0, hidden=7168.0, topk=8.0, experts=256.0, nodes=1.0)
    found = Collectives().estimate(model, h200)
    assert found.time_us == exchange_us(same, "normal", h200)[0]
    assert found.peak_us < found.time_us


def test_rows_without_a_router_are_an_all_to_all(h200):
    rows = EPComm(tokens=4096, hidden=7168, ranks=8)
    columns = MessageColumns(word=["all_to_all"], nbytes=np.array([4096 * 7168 * 2.0]), group=[Group(ranks=8)])
    assert Collectives().estimate(rows, h200).time_us == pytest.approx(message_us(columns, h200)[0][0])
    routed = EPComm(tokens=4096, hidden=7168, ranks=8, remote_share=0.875)
    assert Collectives().estimate(routed, h200) == Collectives().estimate(rows, h200)


def test_no_deepep_figure_is_invented_for_other_clusters():
    model = Exchanges(phase="combine", tokens=1.0, hidden=7168.0, topk=8.0, experts=256.0, nodes=1.0)
    with pytest.raises(UsageError, match="no DeepEP measurement applies to mi300x"):
        exchange_us(model, "normal", System.load("mi300x"))


def test_a_named_algorithm_is_taken(h200):
    columns = MessageColumns(word=["all_reduce"] * 2, nbytes=np.array([1e3, 1e9]), group=[Group(ranks=8)] * 2)
    assert message_us(columns, h200, "ring")[1] == ("all_reduce/ring",) * 2
    assert message_us(columns, h200)[1][1] == "all_reduce/in_switch"


@pytest.mark.shared
def test_nccl_on_perlmutter(shared_data):
    table = pd.read_csv(shared_data / "nccl_perlmutter.csv")
    words = table["op"].map({"allgather": "all_gather", "reducescatter": "reduce_scatter", "allreduce": "all_reduce"})
    groups = [
        Group(ranks=nodes * per_node, stride=4 // per_node)
        for nodes, per_node in zip(table["num_nodes"], table["gpus_per_node"], strict=True)
    ]
    columns = MessageColumns(word=list(words), nbytes=table["size"].to_numpy(float), group=groups)
    error = np.abs(message_us(columns, System.load("perlmutter"))[0] / table["time-o"] - 1)
    assert error.mean() < 0.09
    assert error[table["size"] >= 64 << 20].mean() < 0.045


@pytest.mark.parametrize(("cluster", "mean"), [("dgx-a100", 0.17), ("dgx-b200", 0.09), ("dgx-h100", 0.24)])
def test_nccl_over_infiniband(repository, cluster, mean):
    """As published of two nodes; fitted on all three, benchmarks/fit_network.py has the errors without each."""
    table = pd.read_csv(repository / "benchmarks" / "nccl_infiniband.csv").query("cluster == @cluster")
    count = len(table)
    columns = MessageColumns(
        word=["all_reduce"] * count, nbytes=table["size"].to_numpy(float), group=[Group(ranks=16)] * count
    )
    error = np.abs(message_us(columns, System.load(cluster))[0] / table["time_us"] - 1)
    assert error.mean() < mean


@pytest.mark.shared
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
@pytest.mark.parametrize("kernels", ["normal", "low_latency"])
def test_deepep_by_device_nodes_and_size(shared_data, h200, kernels, phase):
    """Constants of the package; benchmarks/fit_network.py has the errors on rows that were not fitted."""
    table = pd.read_csv(shared_data / ("deepep_normal.csv" if kernels == "normal" else "deepep_ll.csv"))
    measured = table[f"{phase}_transmit_us" if kernels == "normal" else f"{phase}_avg_t_us"]
    column = {name: table[name].to_numpy(float) for name in table if name.startswith(("num_", "hidden", "node"))}
    shapes = Exchanges(
        phase=phase, tokens=column["num_token"], hidden=column["hidden_size"], topk=column["num_topk"],
        experts=column["num_experts"], nodes=column["node_num"],
        sms=table[f"{phase}_sms"].to_numpy(float) if kernels == "normal" else 20.0,
    )  # fmt: skip
    error = np.abs(exchange_us(shapes, kernels, h200) / measured - 1)
    size = pd.cut(table["num_token"], [0, 16, 128, 1024, 1 << 30])
    by_cell = error.groupby([table["node_num"], size], observed=True).mean()
    assert by_cell.max() < 0.11
    assert error.groupby(table["node_num"]).mean().max() < 0.08


def test_a_calibrated_file_stands_in_the_node_of_the_device_that_it_is_based_on(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('based_on = "h100-sxm"\n' + (FOLDER / "h100-sxm.toml").read_text())
    system = System.load(str(file))
    assert (system.device.name, system.cluster.name) == ("mine", System.load("h100-sxm").cluster.name)


@pytest.mark.parametrize("name", ["b300", "gb300"])
@pytest.mark.parametrize("kernels", ["normal", "low_latency"])
def test_exchanges_of_a_device_without_a_published_count_of_units_are_answered_as_its_sisters(name, kernels):
    model = Exchanges(phase="combine", tokens=128.0, hidden=7168.0, topk=8.0, experts=256.0, nodes=1.0)
    assert System.load(name).device.compute_units is None
    sister = {"b300": "b200", "gb300": "gb200"}[name]
    assert exchange_us(model, kernels, System.load(name)) == exchange_us(model, kernels, System.load(sister))
