"""Planted jobs come back as they were planted, and the tables are those of a slow reference that shares no code."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import part
from tracelens.analysis.ranks import matching
from tracelens.analysis.ranks.matching import HostClock
from tracelens.analysis.ranks.rank_comparison import INCONCLUSIVE, SKEWED, TRANSFER, RanksAnalysis, compare_ranks
from tracelens.analysis.ranks.rank_files import RankOptions, find_traces
from tracelens.analysis.ranks.rank_summary import CommunicationCall
from tracelens.errors import InputError, NothingToAnalyzeError
from tracelens.files.executors import Serial
from tracelens.report.rank_report import RankReport


def loaded(name: str):
    """A module of tests/ranks."""
    path = Path(__file__).resolve().parents[2] / "ranks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"ranks_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


planted, reference = loaded("planted"), loaded("reference")
Clock, Job = planted.Clock, planted.Job


def compared(paths: list[Path], **options) -> RanksAnalysis:
    return compare_ranks(paths, RankOptions(**options), executor=Serial(), name="job")


def notices(result: RanksAnalysis) -> dict[str, str]:
    return {notice.id: notice.text for notice in result.notices}


def test_generator_and_reference_share_no_code_with_the_analyzer():
    for module in (planted, reference):
        assert "tracelens" not in {line.split()[1].split(".")[0] for line in Path(module.__file__).read_text().splitlines()
                                   if line.startswith(("import ", "from "))}  # fmt: skip


EVERY = tuple((name, dtype, 2_000_000) for name, dtype in zip(
    sorted(planted.FACTORS), ["Float", "BFloat16", "Half", "Float8_e4m3fn", "Long", "Char"] * 2, strict=True))  # fmt: skip


@pytest.mark.parametrize("straggler", part([3, None, 0], 3))
def test_tables_equal_the_reference(tmp_path, straggler):
    paths = Job(ranks=4, rounds=2, straggler=straggler, end_jitter_us=3, collectives=EVERY).write(tmp_path)
    expected, per_rank = reference.compare(paths)
    result = compared(paths)
    rows = result.frames["nccl_implicit_sync"].sort_values("collective_id", kind="stable").to_dict("records")
    assert len(rows) == len(expected)
    seen: dict[str, int] = {}
    by_key = {(e["group"], e["number"]): e for e in expected}
    for row in rows:
        number = seen[row["group_name"]] = seen.get(row["group_name"], -1) + 1
        e = by_key[row["group_name"], number]
        assert (row["collective"], row["last_rank"], row["first_rank"]) == (e["name"], e["last"], e["first"])
        got = [row[k] for k in ("comm_latency_us", "start_skew_us", "end_skew_us", "wait_per_rank_us", "bus_gb_s")]
        assert got == pytest.approx([e[k] for k in ("latency_us", "skew_us", "end_skew_us", "wait_us", "bus_gb_s")])
    for row in result.frames["straggler_summary"].to_dict("records"):
        e = per_rank[row["rank"]]
        got = [row[k] for k in ("wait_us_sum", "cost_us", "duration_us_sum")]
        assert got == pytest.approx([e["wait"] / 1000, e["cost"] / 1000, e["time"] / 1000])
        counts = [row[k] for k in ("times_arrived_last", "times_arrived_first", "num_collectives")]
        assert counts == [e["last"], e["first"], e["count"]]


@pytest.mark.parametrize("collective", part(sorted(planted.FACTORS), 3))
def test_planted_bandwidth_is_found_within_half_a_percent(tmp_path, collective):
    job = Job(ranks=4, rounds=3, bus_gb_s=173.0, straggler=2, collectives=((collective, "BFloat16", 8_000_000),))
    frame = compared(job.write(tmp_path)).frames["nccl_implicit_sync"]
    assert (frame["bus_gb_s"] / 173.0 - 1).abs().max() < 0.005


@pytest.mark.parametrize("straggler", part(range(8), 3))
def test_planted_straggler_is_first_and_costs_what_it_is_late(tmp_path, straggler):
    job = Job(ranks=8, rounds=4, straggler=straggler, late_us=400, jitter_us=10)
    result = compared(job.write(tmp_path))
    frame = result.frames["straggler_summary"].set_index("rank")["cost_us"]
    # Before each of 12 collectives of the world and of its pair; its partner, late for the world as well, is not late itself
    assert frame[straggler] == pytest.approx(3 * 4 * 2 * 400, rel=0.02)
    assert frame.drop(straggler).max() < 3 * 4 * 2 * 10
    assert set(result.frames["step_cost"]["slowest_rank"]) == {straggler}


def test_waits_at_the_same_moments_count_once(tmp_path):
    """A copy of every collective on a second stream, in a group of its own, lets nobody wait longer."""
    once, twice = tmp_path / "once", tmp_path / "twice"
    once.mkdir(), twice.mkdir()
    for path in Job(ranks=4, straggler=2, late_us=400).write(once):
        content = json.loads(path.read_text())
        beside = [copied(event) for event in content["traceEvents"] if "Collective name" in event.get("args", {})]
        content["traceEvents"] += beside
        (twice / path.name).write_text(json.dumps(content))
    single, double = (compared(sorted(folder.iterdir())).frames for folder in (once, twice))
    assert double["straggler_summary"]["num_collectives"].equals(2 * single["straggler_summary"]["num_collectives"])
    late, steps = "straggler_summary", "step_cost"
    columns = (
        (late, "cost_us"),
        (late, "wait_us_sum"),
        (late, "caused_wait_us"),
        (steps, "others_wait_us"),
        (steps, "cost_us"),
    )
    for sheet, column in columns:
        assert double[sheet][column].equals(single[sheet][column]), column
    assert double["straggler_summary"]["cost_us"].iloc[0] > 0


def without(paths: list[Path], rank: int, number: int, keys: tuple[str, ...]) -> list[Path]:
    """The job with the collective of that number of one rank without these arguments, or without its kernel ("all")."""
    content = json.loads(paths[rank].read_text())
    events = [event for event in content["traceEvents"] if "Collective name" in event.get("args", {})]
    chosen = events[number]
    if keys == ("all",):
        content["traceEvents"].remove(chosen)
    for key in keys:
        chosen["args"].pop(key, None)
    paths[rank].write_text(json.dumps(content))
    return paths


GROUP_KEYS = ("Process Group Name", "Process Group Ranks")


@pytest.mark.parametrize("number", part(range(24), 6))
@pytest.mark.parametrize("rank", part([0, 1], 2))
def test_a_call_that_lacks_its_group_is_that_of_the_others_of_its_stream(tmp_path, rank, number):
    """A recorded size of 4 or of 2 leaves one of the stream's two groups: every table is as with the group."""
    paths = Job(ranks=4, straggler=2, late_us=400, rounds=4).write(tmp_path)
    whole, lacking = compared(paths), compared(without(paths, rank, number, GROUP_KEYS))
    for title, frame in whole.frames.items():
        assert frame.equals(lacking.frames[title]), title
    assert notices(whole) == {}
    assert notices(lacking) == {
        "group_of_stream": "1 of 96 communication calls lack their process group: that of the other calls of their "
        "stream is used"
    }


@pytest.mark.parametrize("number", part(range(1, 23), 6))
@pytest.mark.parametrize("keys", [(*GROUP_KEYS, "Group size"), ("all",)], ids=["of no size", "lost"])
def test_a_call_of_which_nothing_says_the_group_costs_no_other(tmp_path, number, keys):
    """Two groups on one stream may be it, so it is none of them; the others are matched as if it had been there."""
    paths = Job(ranks=4, straggler=2, late_us=400, rounds=4).write(tmp_path)
    costs = compared(paths).frames["straggler_summary"].set_index("rank")["cost_us"]
    result = compared(without(paths, 1, number, keys))
    groups = result.frames["groups"].set_index("group_name")
    assert groups.loc[["0", "1", "2"], "matched"].sum() in (36, 35)
    lost = result.frames["straggler_summary"].set_index("rank")["cost_us"]
    assert (lost - costs).abs().max() < 2 * 10 * 2, lost
    assert "group_of_stream" not in notices(result)


def test_a_group_is_lent_only_where_one_fits():
    def call(**given):
        return CommunicationCall(word=given.pop("word", "all_reduce"), name="x", **given)

    pair, world = (
        call(group="1", ranks=(0, 1), size=2, stream=20),
        call(group="0", ranks=(0, 1, 2, 3), size=4, stream=20),
    )

    def lent(*calls):
        return matching.with_groups(calls)[0].group

    assert lent(call(stream=20, size=2), pair, world) == "1"
    assert lent(call(stream=20), pair) == "1"
    assert lent(call(stream=20), pair, world) is None
    assert lent(call(stream=20, size=4), pair) is None
    assert lent(call(stream=21, size=2), pair) is None
    assert lent(call(stream=-1), call(group="1", stream=-1)) is None
    assert lent(call(stream=20, word="send"), pair) is None
    assert lent(call(stream=20, is_exchange=True), pair) is None


MS = 1_000_000


def job_of(steps: list[dict[int, list[tuple[int, int]]]]) -> matching.JobCalls:
    """One group's calls, by step and rank as (begin, end) in ms."""
    ranks = tuple(steps[0])
    rows = [
        (rank, begin * MS, end * MS, number + at * len(step[rank]))
        for at, step in enumerate(steps)
        for rank in ranks
        for number, (begin, end) in enumerate(step[rank])
    ]
    rank, start, end, instance = (np.array(column, np.int64) for column in zip(*sorted(rows), strict=True))
    instances, zeros = int(instance.max()) + 1, np.zeros(len(rows), np.int64)
    channel = matching.CommunicationChannel(
        label="0", ranks=ranks, size=len(ranks), is_exchange=False, is_point_to_point=False, has_group=True
    )
    return matching.JobCalls(
        ranks=ranks, messages=(CommunicationCall(word="all_reduce", name="all_reduce"),), channels=(channel,), rank=rank, start=start, end=end, message=zeros, step=zeros,
        exposed=end - start, op=zeros - 1, instance=instance, channel_of=np.zeros(instances, np.int64),
    )  # fmt: skip


def costs_ms(job: matching.JobCalls) -> dict[int, float]:
    found = matching.instances(job)
    cost = matching.own_cost_ns(job, found, matching.waiting_ns(job, found))
    return {rank: float(cost[found.last == position].sum()) / MS for position, rank in enumerate(job.ranks)}


def buckets(first: int, second: int, *, at: int, first_end: int, second_end: int) -> list[tuple[int, int]]:
    """When one rank begins two buckets of gradients in the step that begins at a time, and when they end on all."""
    return [(at + first, at + first_end), (at + second, at + second_end)]


@pytest.mark.parametrize("first_end", [33, 36])
def test_buckets_under_way_together_cost_one_delay(first_end):
    """Rank 1 sleeps 30 ms a step; the others begin both buckets before it begins one: 5 x 30 ms, not 5 x 60.

    Whether it begins the second at 35 ms as the first is done on it (33) or under way (36) changes nothing.
    """
    steps = [
        {
            rank: buckets(1 + late, 5 + late, at=100 * number, first_end=first_end, second_end=40)
            for rank, late in ((0, 0), (1, 30), (2, 0))
        }
        for number in range(5)
    ]
    assert costs_ms(job_of(steps)) == {0: 0, 1: 150, 2: 0}


def test_a_second_delay_between_two_buckets_is_added():
    """10 ms more before the second one: 30 + 10. On another rank they are that one's: it comes at 45, rank 1 at 35."""
    own = {0: buckets(1, 5, at=0, first_end=33, second_end=50), 1: buckets(31, 45, at=0, first_end=33, second_end=50)}
    assert costs_ms(job_of([own])) == {0: 0, 1: 40}
    other = {
        0: buckets(1, 45, at=0, first_end=33, second_end=50),
        1: buckets(31, 35, at=0, first_end=33, second_end=50),
    }
    assert costs_ms(job_of([other])) == {0: 10, 1: 30}


def test_calls_one_by_one_cost_each_its_own_delay():
    """The others wait for the first before they begin the second: 30 ms late to the first, 4 ms to the second."""
    one_by_one = {
        rank: buckets(first, second, at=0, first_end=33, second_end=45)
        for rank, first, second in ((0, 1, 35), (1, 31, 39), (2, 1, 35))
    }
    assert costs_ms(job_of([one_by_one])) == {0: 0, 1: 34, 2: 0}


def copied(event: dict) -> dict:
    """A device event as another group's on another stream."""
    group = {"Process Group Name": "copy of " + event["args"]["Process Group Name"], "stream": 21}
    launch = {"correlation": event["args"]["correlation"] + 1_000_000, "External id": None}
    return {**event, "tid": 21, "args": {**event["args"], **group, **launch}}


FAR = {1: Clock(offset_us=11e6, drift=20e-6), 2: Clock(offset_us=-3.7e6, drift=-35e-6), 3: Clock(offset_us=800.0)}


@pytest.mark.parametrize("seed", part(range(5), 3))
def test_planted_clocks_are_found_within_5_us_with_drift(tmp_path, seed):
    job = Job(ranks=8, ranks_per_host=2, rounds=12, clocks=FAR, end_jitter_us=3, straggler=5, seed=seed,
              collectives=(("allreduce", "BFloat16", 100_000_000),))  # fmt: skip
    result = compared(job.write(tmp_path))
    for number, clock in FAR.items():
        fitted = result.clocks.hosts[number]
        assert fitted.residual_us < 5
        for (group, _), ends in job.ends.items():
            for rank, end in ends.items():
                if job.host(rank) != number or group != "0":
                    continue
                shown = np.array([round(clock.shows(end) * 1000)])
                assert abs(int(fitted.corrected(shown)[0]) - end * 1000) < 5000
    assert result.frames["straggler_summary"]["rank"].iloc[0] == 5
    assert (result.frames["nccl_implicit_sync"]["bus_gb_s"] / job.bus_gb_s - 1).abs().max() < 0.005


def test_bandwidth_needs_no_clock(tmp_path):
    job = Job(ranks=4, ranks_per_host=2, rounds=6, clocks={1: Clock(offset_us=11e6)}, bus_gb_s=300)
    assert (compared(job.write(tmp_path)).frames["nccl_implicit_sync"]["bus_gb_s"] / 300 - 1).abs().max() < 0.005


def test_ranks_of_one_host_keep_their_clock(tmp_path):
    job = Job(ranks=4, ranks_per_host=4, end_jitter_us=50)
    result = compared(job.write(tmp_path))
    assert [clock.offset_ns for clock in result.clocks.hosts] == [0.0]
    start, rank = result.calls.start, result.calls.rank
    assert int(start[rank == 0][0]) == round(job.starts["0", 0][0] * 1000)


def test_no_skew_verdict_when_the_clocks_are_less_certain_than_the_skew(tmp_path):
    job = Job(ranks=4, ranks_per_host=2, jitter_us=2, end_jitter_us=400, clocks={1: Clock(offset_us=5e6)},
              collectives=(("allreduce", "Float", 100_000_000),))  # fmt: skip
    result = compared(job.write(tmp_path))
    assert result.clocks.residual_us > result.typical_skew_us
    assert set(result.frames["nccl_summary_implicit_sync"]["verdict"]) == {INCONCLUSIVE}


def test_verdict_says_waiting_or_transfer(tmp_path):
    for name, late, elements, word in (("a", 5000, 1000, SKEWED), ("b", 0, 100_000_000, TRANSFER)):
        folder = tmp_path / name
        folder.mkdir()
        job = Job(ranks=4, straggler=1, late_us=late, collectives=(("allreduce", "Float", elements),))
        frame = compared(job.write(folder)).frames["nccl_summary_implicit_sync"]
        assert frame.loc[frame["group_name"] == "0", "verdict"].tolist() == [word]


def test_true_exchange_rate_is_the_planted_one_and_effective_ones_are_lower(tmp_path):
    job = Job(ranks=4, rounds=3, exchange_tb_s=0.25, straggler=1, late_us=500)
    frame = compared(job.write(tmp_path)).frames["ep_long"]
    dispatch = frame[frame["name"] == "DeepEPDispatch"]
    # The rank with most rows sets the time of all; of 4 ranks' rows 3/4 leave
    number = dispatch.groupby("rank").cumcount()
    fastest = dispatch["true_interconnect_tb_s"].astype(float).groupby(number).max()
    assert (fastest / (0.25 * 3 / 4) - 1).abs().max() < 0.005
    waiting = dispatch[dispatch["rank"] != 1]
    # At most 8192 x 2048 x 2 bytes take 134 µs at 0.25 TB/s; the straggler lets the others wait 500 µs
    assert (waiting["effective_interconnect_tb_s"] < 0.05).all()
    late = dispatch[dispatch["rank"] == 1]
    assert late["effective_interconnect_tb_s"].tolist() == pytest.approx(
        late["true_interconnect_tb_s"].astype(float).tolist(), rel=0.01
    )
    assert set(dispatch["last_rank"]) == {1}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_dispatch_moves_the_copies_that_its_layer_s_combine_returns(tmp_path, ranks):
    job = Job(ranks=ranks, rounds=1, steps=1, exchange_tb_s=0.25)
    frame = compared(job.write(tmp_path)).frames["ep_long"]
    rows = job.shapes["DeepEPCombine"]
    assert min(rows.values()) != max(rows.values())
    sources = {"DeepEPDispatch": "rows of the layer's combine", "DeepEPCombine": "recorded"}
    assert len(frame) == 2 * ranks
    for row in frame.to_dict("records"):
        exchanged_mb = rows[row["rank"]] * job.hidden * 2 / 1e6
        assert (row["rows"], row["rows_from"]) == (rows[row["rank"]], sources[row["name"]])
        assert row["wire_mb"] == pytest.approx(exchanged_mb)
        assert row["expected_remote_mb"] == pytest.approx(exchanged_mb * (ranks - 1) / ranks)
        assert row["remote_from"] == f"assumed: even routing over {ranks} ranks"


def test_a_group_that_was_not_recorded_has_as_many_ranks_as_its_kernels_say(tmp_path):
    paths = Job(ranks=2, ranks_per_host=2, rounds=1, steps=1, exchange_tb_s=0.25).write(tmp_path)
    for path in paths:
        trace = json.loads(path.read_text())
        trace["distributedInfo"]["pg_config"] = [
            g for g in trace["distributedInfo"]["pg_config"] if g["pg_name"] != "ep"
        ]
        path.write_text(json.dumps(trace))
    frame = compared(paths).frames["ep_long"]
    assert set(frame["remote_from"]) == {"assumed: even routing over 8 ranks"}


def test_all_ranks_dispatch_as_many_rows_as_all_combine():
    found = compared(find_traces([str(Path(__file__).parents[3] / "example_traces" / "moe_ep8")]))
    assert sorted(found.ranks) == list(range(8))
    summary = found.frames["ep_summary"].set_index("name")
    total = summary.loc["DeepEPCombine", "rows"]
    long = found.frames["ep_long"]
    assert total == long.loc[long["name"] == "DeepEPCombine", "tokens"].sum()
    assert summary.loc["DeepEPDispatch", "rows"] == total
    assert summary.loc["DeepEPCombineBackward", "rows"] == summary.loc["DeepEPDispatchBackward", "rows"]
    dispatched = long.loc[long["name"] == "DeepEPDispatch", "tokens"].sum()
    assert 3 < total / dispatched < 5
    assert (summary["expected_remote_mb"] / summary["wire_mb"]).tolist() == pytest.approx([7 / 8] * 4)
    # Every exchange of the example runs its links at the same rate
    assert summary["true_interconnect_tb_s"].max() / summary["true_interconnect_tb_s"].min() < 1.01


def edited(paths: list[Path], change) -> None:
    for path in paths:
        trace = json.loads(path.read_text())
        for event in trace["traceEvents"]:
            change(event)
        path.write_text(json.dumps(trace))


def test_recorded_split_sizes_say_which_tokens_stay(tmp_path):
    paths = Job(ranks=4, rounds=1, steps=1, exchange_tb_s=0.25).write(tmp_path)

    def split(event):
        if event["name"] == "DeepEPDispatch":
            event["args"] |= {"Group size": 4, "In split size": "[1000, 1000, 1000, 1096]"}

    edited(paths, split)
    frame = compared(paths).frames["ep_long"]
    own = {0: 1000, 1: 1000, 2: 1000, 3: 1096}
    for row in frame[frame["name"] == "DeepEPDispatch"].to_dict("records"):
        expected = 4096 * 2048 * 2 * (1 - own[row["rank"]] / 4096) / 1e6
        assert row["expected_remote_mb"] == pytest.approx(expected)
        assert (row["rows"], row["rows_from"], row["remote_from"]) == (4096, "recorded", "split sizes")


def test_recorded_tokens_per_expert_say_which_tokens_stay(tmp_path):
    paths = Job(ranks=2, ranks_per_host=2, rounds=1, steps=1, exchange_tb_s=0.25).write(tmp_path)

    def count(event):
        if event["name"] == "DeepEPDispatch":
            event["args"]["Input type"][1] = "ScalarList"
            event["args"]["Concrete Inputs"] = ["", "[10, 20, 30, 40]"]

    edited(paths, count)
    frame = compared(paths).frames["ep_long"]
    rows = frame[frame["name"] == "DeepEPDispatch"].set_index("rank")
    # two experts per rank: rank 0 keeps 10 + 20 of 100, rank 1 keeps 30 + 40
    assert rows.loc[0, "expected_remote_mb"] == pytest.approx(0.7 * rows.loc[0, "wire_mb"])
    assert rows.loc[1, "expected_remote_mb"] == pytest.approx(0.3 * rows.loc[1, "wire_mb"])
    assert set(rows["remote_from"]) == {"token counts"}


def test_heat_map_has_what_was_sent_by_global_rank(tmp_path):
    paths = Job(ranks=4, rounds=1, steps=1, collectives=(("all_to_allv", "Half", 1000),)).write(tmp_path)
    sent: dict[tuple[int, int], int] = {}
    for path in paths:
        rank, calls = reference.calls_of(path)
        for call in calls:
            for target, count in zip(
                json.loads(call["Process Group Ranks"]), json.loads(call["In split size"]), strict=True
            ):
                if target != rank:
                    sent[rank, target] = sent.get((rank, target), 0) + 2 * count
    frame = compared(paths).frames["nccl_all2allv_heatmap"]
    got = {(r["src_rank"], r["dst_rank"]): r["sent_mb_sum"] for r in frame.to_dict("records")}
    assert got == pytest.approx({key: nbytes / 1e6 for key, nbytes in sent.items()})


def test_a_trace_that_begins_later_is_matched_by_what_its_calls_are(tmp_path):
    job = Job(ranks=4, rounds=4, straggler=3, collectives=EVERY[:5])
    paths = job.write(tmp_path)
    trace = json.loads(paths[2].read_text())
    kernels = [
        e for e in trace["traceEvents"] if "Collective name" in e.get("args", {}) and e["args"]["Group size"] == 4
    ]
    gone = {e["ts"] for e in sorted(kernels, key=lambda e: e["ts"])[:3]}
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["ts"] not in gone]
    paths[2].write_text(json.dumps(trace))
    result = compared(paths)
    frame = result.frames["nccl_implicit_sync"]
    world = frame[frame["group_name"] == "0"]
    assert world["ranks_present"].tolist() == [3] * 3 + [4] * (len(world) - 3)
    assert (world["bus_gb_s"] / job.bus_gb_s - 1).abs().max() < 0.005
    assert "3 collectives lack ranks" in notices(result)["partial_collective"]


@pytest.mark.parametrize(
    "name", ["rank[{}].json", "rank-{}.json", "job_dp0_pp0_tp{0}_rank{0}.json", "TP-{}-DP-0-PP-0-EP-0.json"]
)
def test_ranks_come_from_file_names_where_the_trace_does_not_say(tmp_path, name):
    for path in Job(ranks=4).write(tmp_path, name):
        trace = json.loads(path.read_text())
        del trace["distributedInfo"]["rank"]
        path.write_text(json.dumps(trace))
    result = compared(find_traces([str(tmp_path)]))
    assert sorted(result.ranks) == [0, 1, 2, 3]


def test_the_recorded_rank_wins_over_the_file_name(tmp_path):
    Job(ranks=2, ranks_per_host=2).write(tmp_path, "rank7{}.json")
    assert sorted(compared(find_traces([str(tmp_path)])).ranks) == [0, 1]


def test_missing_duplicate_and_broken_ranks_are_named(tmp_path):
    job = Job(ranks=8)
    job.write(tmp_path, only=(0, 1, 2, 5))
    (tmp_path / "again_rank2.json").write_bytes((tmp_path / "rank2.json").read_bytes())
    (tmp_path / "rank6.json").write_text('{"traceEv')
    result = compared(find_traces([str(tmp_path)]))
    assert sorted(result.ranks) == [0, 1, 2, 5]
    said = notices(result)
    assert said["missing_rank"] == "ranks without a trace: 3-4, 6-7 of 8"
    assert "rank2.json" in said["duplicate_rank"]
    assert said["rank_lost"].startswith("left out: rank6.json: ")


def test_a_trace_without_any_rank_among_several_is_an_error(tmp_path):
    paths = Job(ranks=2, ranks_per_host=2).write(tmp_path, "trace_{}.json")
    for path in paths:
        trace = json.loads(path.read_text())
        del trace["distributedInfo"]["rank"]
        path.write_text(json.dumps(trace))
    with pytest.raises(InputError, match=r"the rank of .* is unknown"):
        compared(paths)


def test_a_folder_with_one_rank_only_has_no_waits(tmp_path):
    result = compared(Job(ranks=8).write(tmp_path, only=(5,)))
    assert result.frames["straggler_summary"].empty
    assert len(result.frames["nccl_long"]) > 0


def test_traces_without_communication_are_nothing_to_compare(tmp_path):
    paths = Job(ranks=2, ranks_per_host=2, collectives=()).write(tmp_path)
    with pytest.raises(NothingToAnalyzeError):
        compared(paths)


def test_exposed_communication_is_what_no_computation_covers(tmp_path):
    def event(name, start, duration, stream, **args):
        return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": duration,
                "args": {"device": 0, "stream": stream, **args}}  # fmt: skip

    group = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2,
             "dtype": "Float", "In msg nelems": 100, "Out msg nelems": 100}  # fmt: skip
    for rank in (0, 1):
        events = [
            event("ncclDevKernel_AllReduce", 100, 100, 20, **group),
            event("Cijk_Ailk", 80, 50, 7),
            event("void at::native::vectorized_elementwise_kernel<4>", 150, 10, 7),
        ]
        (tmp_path / f"rank{rank}.json").write_text(
            json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events})
        )
    row = compared(find_traces([str(tmp_path)])).frames["overlap"].iloc[0]
    # 100 µs on each of two ranks: 30 under the GEMM, 10 under the elementwise kernel
    assert (row["duration_us_sum"], row["exposed_us_sum"], row["hidden_us_sum"]) == (200, 120, 80)
    assert row["hidden_by"] == "GEMM 30.0 %, elementwise 10.0 %"


@pytest.mark.parametrize("longest", [None, 2])
def test_a_pipeline_stands_still_for_its_known_share(tmp_path, longest):
    # GPipe's forward: p = 4 stages, m = 6 microbatches of 1000 µs: each stage idles (p - 1) of m + p - 1 slots. Where one
    # stage computes longest the others take 500 of its 990 µs: 6 x 990 and 6 x 500, 3.735 ms on average
    stages, batches, slot = 4, 6, 1000.0
    for rank in range(stages):
        events, correlation = [], 0
        for batch in range(batches):
            start = (rank + batch) * slot
            computes = slot - 10 if longest in (None, rank) else 500.0
            calls = [("Cijk_Ailk", start, computes, 7, {})]
            if rank < stages - 1:
                calls.append(
                    (
                        "ncclDevKernel_SendRecv",
                        start + slot - 10,
                        10,
                        20,
                        {"Collective name": "send", "Dst Rank": rank + 1},
                    )
                )
            if rank > 0:
                ready = (rank + batch - 1) * slot + slot
                free = (rank + batch - 1) * slot + slot - 10 if batch else 0.0
                calls.append(
                    (
                        "ncclDevKernel_SendRecv",
                        free,
                        ready - free,
                        21,
                        {"Collective name": "recv", "Src Rank": rank - 1},
                    )
                )
            for name, at, duration, stream, more in calls:
                correlation += 1
                meta = {"Process Group Name": "pp", "Process Group Ranks": "[0, 1, 2, 3]", "Group size": 4, "dtype": "BFloat16",
                        "In msg nelems": 1000, "Out msg nelems": 1000, **more} if more else {}  # fmt: skip
                events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": at, "dur": duration,
                               "args": {"device": rank, "stream": stream, "correlation": correlation, **meta}})  # fmt: skip
                events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1 + 3 * correlation,
                               "dur": 1, "args": {"correlation": correlation}})  # fmt: skip
        end = (stages + batches - 1) * slot
        marker = {"ph": "X", "cat": "gpu_memset", "name": "Memset", "pid": 0, "tid": 7, "dur": 0.0}
        events += [{**marker, "ts": at, "args": {"device": rank, "stream": 9}} for at in (0.0, end - 10.0)]
        info = {"rank": rank, "world_size": stages}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    result = compared(find_traces([str(tmp_path)]))
    frame = result.frames["pipeline_bubbles"]
    assert frame["stage"].tolist() == [0, 1, 2, 3]
    shown = RankReport(result).verdict()
    assert "1 pipeline of 4 ranks: " in shown
    if longest is None:
        assert frame["bubble_percent"].tolist() == pytest.approx([100 * 3 / 9] * 4, abs=1.0)
        assert "computes longest" not in shown
    else:
        assert "stage 2 computes longest: 5.940 ms per step, 3.735 on average" in shown
    assert " late " not in shown, "every stage waits for its turn: none is late"
    assert result.frames["straggler_summary"].empty
    assert set(result.frames["nccl_implicit_sync"]["collective"]) == {"send/recv"}


def test_drift_is_taken_away_over_the_whole_trace():
    clock = HostClock(host="b", ranks=(1,), offset_ns=1000.0, drift=1e-5, at_ns=10**18)
    # one second later the clock is 10 µs further ahead
    assert clock.corrected(np.array([10**18, 10**18 + 10**9])).tolist() == [10**18 - 1000, 10**18 + 10**9 - 11_000]


def test_a_rank_is_reduced_to_little_memory(tmp_path):
    result = compared(Job(ranks=2, ranks_per_host=2, rounds=50, padding=20).write(tmp_path))
    summary = result.ranks[0]
    # 56 bytes a call and nothing per computing kernel
    assert summary.nbytes < 100 * len(summary.start) + 2000


@pytest.mark.shared
@pytest.mark.parametrize("pairs", [matching._MOST_PAIRS, 5_000])
def test_calls_are_paired_by_their_ends_also_where_only_some_vote_on_the_offset(monkeypatch, pairs):
    monkeypatch.setattr(matching, "_MOST_PAIRS", pairs)
    random = np.random.default_rng(0)
    end = np.cumsum(random.integers(50_000, 2_000_000, 300))
    start = end - random.integers(10_000, 40_000, 300)
    kept = np.sort(random.choice(300, 180, replace=False))
    theirs = end[kept] + 123_456_789 + random.integers(-3_000, 3_000, 180)
    found = matching._by_ends(start, end, theirs - (end - start)[kept], theirs)
    assert found.tolist() == kept.tolist()


def test_sampled_ranks_without_groups_are_paired_where_calls_end_together(shared_traces):
    result = compared(find_traces([str(shared_traces / "hta" / "trace_filter")]))
    frame = result.frames["nccl_implicit_sync"]
    # of ten kernels on each rank five end within 1 ms of one on the other
    assert frame["end_skew_us"].tolist() == [332.0, 189.0, 0.0, 55.0, 8.0]
    assert frame["start_skew_us"].tolist() == [84.0, 1292.0, 4859.0, 3302.0, 22328.0]
    # all-gathers show by output and input that their groups are half the job
    assert set(frame["group_size"]) <= {64, 128}
    assert "bandwidth assumes that the group is the whole job" in notices(result)["group_unknown"]


@pytest.mark.shared
def test_recorded_metadata_of_a_real_trace_is_read(shared_traces):
    result = compared(find_traces([str(shared_traces / "hta" / "nccl_parser_config")]))
    long = result.frames["nccl_long"]
    assert set(long["collective"]) == {"allreduce", "broadcast"}
    assert set(long["group_name"]) == {"0"}
    assert notices(result)["missing_rank"] == "ranks without a trace: 1 of 2"


@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize(
    ("folder", "waiting"), [("more/megatron_pr1316_tp2", {1}), ("more/param/dlrm_8rank", {0, 1, 3, 4, 5})]
)
def test_a_rank_alone_blames_waiting_where_all_ranks_show_it(shared_traces, real_analysis, folder, waiting):
    """What one rank's report says of its collectives, against how long that rank waited in them by all ranks' traces."""
    calls = compared(find_traces([str(shared_traces / folder)])).frames["nccl_long"]
    blamed = set()
    for path in sorted((shared_traces / folder).glob("*.json.gz")):
        analysis = real_analysis(path.relative_to(shared_traces).as_posix())
        for found in (each for each in analysis.findings if each.id == "exposed_communication"):
            said = {figure.what: figure.value for figure in found.figures}
            mine = calls[(calls["rank"] == analysis.trace.table.rank) & (calls["in_mb"] == said["bytes sent"])]
            waited = mine["wait_us"].sum() / mine["duration_us"].sum()
            if "mostly waits for a late rank" in found.why:
                assert waited > 0.5, (path.name, found.why)
                blamed.add(analysis.trace.table.rank)
            assert "all latency" not in found.why or waited < 0.5, (path.name, found.why)
    assert blamed == waiting


_OF_A_CALL = ("Process Group Name", "Process Group Description", "Process Group Ranks", "Group size", "Collective name",
              "In msg nelems", "Out msg nelems", "dtype")  # fmt: skip


def megatron_rank(shared_traces: Path, folder: Path, *, ungrouped: int) -> RanksAnalysis:
    """Rank 0 of a real job alone; as many of its collectives, on the host and on the device, without what they are."""
    path = shared_traces / "more" / "megatron_pr1316_tp2" / "rank0.pt.trace.json.gz"
    whole = json.loads(gzip.decompress(path.read_bytes()))
    kernels = [e for e in whole["traceEvents"] if e.get("cat") == "kernel" and "nccl" in e["name"]]
    bare = {event["args"]["External id"] for event in kernels[5 : 5 + ungrouped]}
    for event in whole["traceEvents"]:
        is_call = event.get("name") == "record_param_comms" or "nccl" in event.get("name", "")
        if is_call and event.get("args", {}).get("External id") in bare:
            for key in _OF_A_CALL:
                event["args"].pop(key, None)
    (folder / "rank0.json").write_text(json.dumps(whole))
    return compared(find_traces([str(folder)]))


@pytest.mark.shared
@pytest.mark.parametrize(
    ("ungrouped", "said"),
    [(1, "of the other calls of their stream is used; bandwidths cover only the other 12"), (0, "")],
)  # fmt: skip
def test_one_call_without_its_group_leaves_the_others_their_bandwidth(
    shared_traces: Path, tmp_path: Path, ungrouped: int, said: str
):
    result = megatron_rank(shared_traces, tmp_path, ungrouped=ungrouped)
    assert notices(result).get("group_of_stream", "").endswith(said)
    assert bool(said) == ("group_of_stream" in notices(result))
    calls = result.frames["nccl_summary_long"]
    known = calls[calls["effective_bus_gb_s"].notna()]
    assert known["operation_count"].sum() == 13 - ungrouped
    # an all-reduce of two ranks: 2(n-1)/n is 1, and 1 GB/s is 1000 bytes per us
    assert known["effective_bus_gb_s"].tolist() == pytest.approx(
        (known["in_mb"] * 1e6 / known["duration_us_median"] / 1e3).tolist()
    )
    assert "bus GB/s, waiting included" in RankReport(result).verdict()
