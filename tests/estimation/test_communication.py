"""Collectives and exchanges as tables and one by one, and the command that prints them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import tracelens as tl
from tracelens.backends.base import System
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.predict.estimation.communication import (
    TokenExchange,
    collective_answer,
    estimate_collectives,
    estimate_exchanges,
    exchange_answers,
    plain_word,
)
from tracelens.predict.network.topology import Group

MESSAGES = pd.DataFrame(
    {
        "op": ["allreduce", "allgather", "gather", "allreduce", "allreduce"],
        "size": [1 << 20, 1 << 20, 1 << 20, None, 1 << 20],
        "num_nodes": [2, 2, 2, 2, 1],
        "gpus_per_node": [4, 1, 4, 4, 8],
    }
)
EXCHANGES = pd.DataFrame(
    {
        "device": ["NVIDIA H200", "h100_sxm", "mi300x", "NVIDIA H200"],
        "op_name": ["normal", "ll", "normal", "ll"],
        "node_num": [1, 2, 1, 1], "hidden_size": 7168, "num_token": [4096, 128, 4096, 0], "num_topk": 8,
        "num_experts": 256, "dispatch_sms": 24, "combine_sms": 24,
    }
)  # fmt: skip


def test_each_row_has_a_time_or_a_reason():
    found = estimate_collectives(MESSAGES, cluster="perlmutter")
    assert found["time_us"].notna().tolist() == [True, True, False, False, False]
    assert found["reason"].tolist() == [
        "",
        "",
        "no algorithm for this collective",
        "row 5, column 'size' is empty; it must be a number from 1 to 1e15",
        "8 ranks per node, but the cluster has 4",
    ]
    assert found["backend"].tolist() == ["collectives", "collectives", "", "", ""]


def test_ranks_of_a_row_are_spread_over_their_nodes():
    found = estimate_collectives(MESSAGES, cluster="perlmutter")
    # one of the 4 ranks of each node: 2 ranks, 4 apart
    alone = collective_answer(System.load("perlmutter"), "all_gather", 1 << 20, Group(ranks=2, stride=4))
    assert found.loc[1, "time_us"] == alone.time_us


def test_exchanges_take_the_kernels_of_their_row_and_the_node_of_their_device():
    found = estimate_exchanges(EXCHANGES)
    exchange = TokenExchange(tokens=128, hidden=7168, topk=8, experts=256, ranks=16)
    answers = exchange_answers(System.load("h100-sxm"), exchange, kernels="low_latency")
    one = {answer.operation: answer.time_us for answer in answers}
    assert (found.loc[1, "dispatch_us_est"], found.loc[1, "combine_us_est"]) == (one["dispatch"], one["combine"])
    assert found["dispatch_us_est"].notna().tolist() == [True, True, True, False]


@pytest.mark.shared
@pytest.mark.parametrize("table", ["deepep_published.csv", "tables/ep_uccl_mori.csv"])
def test_every_published_exchange_has_a_time(shared_data, table):
    devices = {"H200": "h200-sxm", "H800": "h800-sxm", "SM90": "h100-sxm", "SM100": "b200", "MI300X": "mi300x"}
    for row in pd.read_csv(shared_data / table).itertuples():
        exchange = TokenExchange(tokens=row.tokens, hidden=row.hidden, topk=row.topk, experts=256, ranks=row.ep)
        kernels = "low_latency" if row.kernel == "low_latency" else "normal"
        sms = 20 if pd.isna(row.num_sms) else int(row.num_sms)
        answers = exchange_answers(System.load(devices[row.arch]), exchange, kernels=kernels, sms=sms)
        (time_us,) = (answer.time_us for answer in answers if answer.operation == row.op)
        assert time_us > 0
        if row.version == "UCCL-EP" and row.arch == "MI300X" and kernels == "low_latency":
            assert time_us == pytest.approx(row.latency_us, rel=0.05)


def test_ranks_within_a_larger_node_are_one_node():
    exchange = TokenExchange(tokens=128, hidden=7168, topk=8, experts=256, ranks=8)
    assert [answer.operation for answer in exchange_answers(System.load("gb200"), exchange)] == ["dispatch", "combine"]


def test_a_column_that_is_missing_or_no_cluster_is_an_error():
    with pytest.raises(UsageError, match="a table for collective needs the column 'op'"):
        estimate_collectives(MESSAGES.drop(columns="op"), cluster="perlmutter")
    with pytest.raises(UsageError, match="name one with --cluster or --device"):
        estimate_collectives(MESSAGES)


def test_the_notebook_function_takes_both_tables():
    assert tl.estimate("collective", MESSAGES, cluster="perlmutter").equals(
        estimate_collectives(MESSAGES, cluster="perlmutter")
    )
    assert tl.estimate("ep", EXCHANGES).equals(estimate_exchanges(EXCHANGES))


def test_spellings_of_collectives():
    assert [plain_word(text) for text in ("AllReduce", "_allgather_base", "mystery")] == [
        "all_reduce",
        "all_gather",
        "mystery",
    ]


def test_the_command_prints_systems_side_by_side(capsys):
    arguments = ["--op", "all_reduce", "--bytes", "1e9", "--ranks", "8", "--collective", "ring"]
    assert main(["estimate", "collective", *arguments, "--cluster", "dgx-h200,mi300x"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["system", "operation", "time", "µs", "peak", "µs", "GB/s", "error", "by"]
    assert [line.split()[0] for line in lines[1:]] == ["dgx-h200", "mi300x"]
    assert all(line.endswith("all_reduce/ring") for line in lines[1:])


def test_the_command_says_which_node_a_device_stands_in(capsys):
    arguments = ["--tokens", "4096", "--hidden", "7168", "--topk", "8", "--experts", "256", "--ranks", "8"]
    assert main(["estimate", "ep", *arguments, "--device", "h200"]) == 0
    assert "no cluster given: h200-sxm in its standard node, dgx-h200" in capsys.readouterr().out


def test_the_command_writes_tables_back(tmp_path, capsys):
    MESSAGES.to_csv(tmp_path / "in.csv", index=False)
    options = ["--batch", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), "--cluster", "perlmutter"]
    assert main(["estimate", "collective", *options]) == 0
    assert "5 rows, 3 without an answer" in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "out.csv")["time_us"].notna().sum() == 2


def test_the_command_asks_for_what_it_needs(capsys):
    assert main(["estimate", "collective", "--op", "all_reduce", "--device", "h200"]) == 2
    assert "--bytes is needed" in capsys.readouterr().err


@pytest.mark.shared
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_deepeps_notification_is_apart(shared_data, phase):
    table = pd.read_csv(shared_data / "deepep_normal.csv")
    table = table[table["node_num"] > 1]
    found = estimate_exchanges(table, device="h100-sxm")
    error = np.abs(found[f"{phase}_notify_us_est"] / table[f"{phase}_notify_us"] - 1)
    assert error.groupby(table["node_num"]).mean().max() < 0.21


@pytest.mark.shared
@pytest.mark.parametrize("table", ["deepep_ll.csv", "deepep_normal.csv"])
def test_no_row_of_measured_exchanges_is_refused(shared_data, table):
    found = estimate_exchanges(pd.read_csv(shared_data / table))
    assert set(found["reason"]) == {""}
    assert (found[["dispatch_us_est", "combine_us_est"]] > 0).all(axis=None)


def test_an_estimate_says_how_far_such_ones_were_from_measurements() -> None:
    """Perlmutter's collectives and DeepEP's exchanges were measured; other clusters' collectives were not."""
    errors = {
        name: collective_answer(System.load(name), "all_reduce", 1e9, Group(ranks=16)).error_percent
        for name in ("perlmutter", "dgx-h200")
    }
    assert errors == {"perlmutter": 9.0, "dgx-h200": None}
    exchange = TokenExchange(tokens=128, hidden=7168, topk=8, experts=256, ranks=16)
    said = {each.operation: each.error_percent for each in exchange_answers(System.load("dgx-h200"), exchange)}
    assert said == {"dispatch": 9.8, "combine": 7.5, "dispatch notify": None, "combine notify": None}
