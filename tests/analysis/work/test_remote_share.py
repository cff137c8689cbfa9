"""Which share of an exchange leaves its rank, and where that is known from."""

from __future__ import annotations

import json

import pytest

from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.reading.process_groups import all_to_all_share, remote_share, share_of_others
from tracelens.perf_models import EPComm
from tracelens.types.signature import OpSignature

EIGHT = tuple(range(8, 16))


def share_of(model=None, *, rank=8, members=EIGHT, ep_size=None, scalars=(), dtypes=(), **attributes):
    signature = OpSignature(
        name="dispatch", shapes=((),) * len(scalars), dtypes=dtypes, strides=None, scalars=scalars,
        attributes=tuple((name.replace("_", " ").capitalize(), value) for name, value in attributes.items()),
    )  # fmt: skip
    found = remote_share(model or EPComm(tokens=10, hidden=4), signature, rank=rank, members=members, ep_size=ep_size)
    return None if found is None else (found.share, found.source)


def test_recorded_rows_per_rank_or_expert_settle_it():
    # 30 of 100 rows are rank 8's own: with two experts per rank 10 + 20
    assert share_of(In_split_size=(30, *(10,) * 7)) == (0.7, "split sizes")
    counts = (10, 20, *(5,) * 14)
    assert share_of(scalars=(str(list(counts)),), dtypes=("ScalarList",)) == (0.7, "token counts")


def test_without_them_even_routing_is_assumed_and_said():
    assert share_of(ep_size=8) == (0.875, "assumed: even routing over 8 ranks")
    assert share_of(ep_size=8, Group_size=4) == (0.75, "assumed: even routing over 4 ranks")
    assert share_of() is None


@pytest.mark.parametrize(
    ("rank", "members"), [(None, EIGHT), (3, EIGHT), (8, ()), (8, (8, 9, 10))], ids=["no rank", "other", "none", "odd"]
)
def test_counts_that_nobody_can_place_are_not_used(rank, members):
    assert share_of_others((30, *(10,) * 7), rank, members) is None


def test_a_model_that_knows_its_share_has_it_in_its_bytes():
    assert share_of(EPComm(tokens=10, hidden=4, remote_share=0.5), ep_size=8) == (1.0, "its perf model")


def test_an_all_to_all_says_what_it_sent_to_itself():
    recorded = {"Process Group Ranks": "[0, 1, 2, 3]", "In split size": "[1, 1, 6, 2]"}
    found = all_to_all_share(recorded, rank=2)
    assert (found.share, found.source) == (pytest.approx(0.4), "split sizes")
    even = all_to_all_share(recorded | {"In split size": "[]"}, rank=2)
    assert (even.share, even.source) == (0.75, "even split")
    assert all_to_all_share({"Group size": 4}, rank=2) is None
    assert all_to_all_share(recorded | {"Process Group Ranks": "[0, 1, ...]"}, rank=2) is None


def test_a_report_has_the_all_to_alls_remote_bytes_and_where_they_are_from(tmp_path):
    args = {
        "stream": 7, "device": 0, "Collective name": "all_to_allv", "In msg nelems": 1000, "Out msg nelems": 1000,
        "Group size": 4, "dtype": "BFloat16", "Process Group Name": "1", "Process Group Ranks": "[0, 1, 2, 3]",
    }  # fmt: skip
    splits = ("[100, 500, 300, 100]", "[]")
    kernels = [
        {
            "ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "pid": 0, "tid": 7, "ts": 10 * i, "dur": 5 - i,
            "args": args | {"In split size": split},
        }
        for i, split in enumerate(splits)
    ]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": kernels}), encoding="utf-8")
    frame = analyze(load(path), AnalysisOptions(), on_demand=True).frames["coll_analysis"]
    # 1,000 elements of 2 bytes: half of them, and a quarter, stay
    assert frame.expected_remote_mb.tolist() == pytest.approx([0.001, 0.0015])
    assert frame.remote_from.tolist() == ["split sizes", "even split"]
