"""A projected step: its parts add up, it obeys the laws, it comes near published steps, and rows have reasons."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tracelens as tl
from tests.conftest import examples, part
from tracelens.backends.base import System
from tracelens.backends.roofline_and_tile import works
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.hardware.power import kernel_power, power_constants
from tracelens.laboratory.training_rows import configuration, project_row
from tracelens.perf_models import WorkColumns
from tracelens.predict.network.topology import Group
from tracelens.predict.projection.overheads import Software
from tracelens.predict.projection.pipeline import hop_us, layer_counts
from tracelens.predict.projection.project import sweep
from tracelens.predict.projection.step import Projection, energy_of, levers, project
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import GroupPlacement, ParallelConfig
from tracelens.report.projection_report import energy_of_step
from tracelens.types.dtypes import DType

LLAMA = ModelConfig.load("llama3.1-8b")
NODE = ParallelConfig(tp=2, sequence_parallel=True, pp=2, dp=4, micro_batches=8)


@pytest.fixture(scope="module")
def hopper() -> System:
    return System.load("dgx-h100")


def step(p: ParallelConfig, system: System, model: ModelConfig = LLAMA, **options: object) -> Projection:
    return project(model, p, system, sequence=4096, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "p",
    [
        NODE,
        replace(NODE, recompute="full"),
        replace(NODE, attention="unfused", recompute="selective"),
        replace(NODE, vpp=4),
        ParallelConfig(dp=16, zero=3),
        replace(NODE, precision="fp8", tp_overlap="all"),
    ],
)
def test_the_breakdown_adds_up_to_the_step(p: ParallelConfig, hopper: System) -> None:
    found = step(p, hopper)
    assert sum(found.breakdown_us.values()) == pytest.approx(found.step_us)
    assert found.tokens_per_s_per_gpu == pytest.approx(p.global_batch * 4096 / p.ranks / found.step_us * 1e6)
    assert found.mfu == pytest.approx(found.tflops_gpu / (1978.9 if p.precision == "fp8" else 989.4))


@settings(max_examples=examples(25), deadline=None)
@given(
    zero=st.integers(0, 3), pp=st.sampled_from((1, 2, 4)), dp=st.sampled_from((1, 8)), micro_batches=st.sampled_from((4, 8)),
    schedule=st.sampled_from((None, "gpipe", "zb-h1", "zb-v", "dualpipe")), recompute=st.sampled_from(("none", "full")),
    ep_overlap=st.booleans(), tp_overlap=st.sampled_from(("none", "backward", "all")), graphs=st.sampled_from(("none", "partial", "full")),
)  # fmt: skip
def test_whatever_the_configuration_no_part_of_a_step_is_negative(
    schedule: str | None, dp: int, **degrees: object
) -> None:
    p = ParallelConfig(tp=2, sequence_parallel=True, dp=dp, ep=dp, **degrees)  # type: ignore[arg-type]
    assume(schedule != "dualpipe" or (p.pp % 2 == 0 and p.micro_batches >= 2 * p.pp))
    found = step(p, System.load("dgx-h100"), ModelConfig.load("qwen3-30b-a3b"), schedule=schedule)
    assert sum(found.breakdown_us.values()) == pytest.approx(found.step_us)
    assert min(found.breakdown_us.values()) > -1e-3


def test_layers_at_the_ends_compute_in_16_bits_all_the_same() -> None:
    """Of 32 layers in FP8 two keep the products of BF16: a sixteenth of the way from one step to the other,
    where BF16 is held down less than FP8."""
    system = System.load("dgx-b200")
    config = ParallelConfig(dp=8, micro_batches=8, precision="fp8")
    narrow, some, all_wide = (step(replace(config, bf16_layers=layers), system) for layers in ((0, 0), (1, 1), (99, 0)))
    wide = step(replace(config, precision="bf16"), system)
    assert narrow.step_us < some.step_us < all_wide.step_us
    assert all_wide.step_us == pytest.approx(wide.step_us)
    assert (some.step_us - narrow.step_us) / (wide.step_us - narrow.step_us) == pytest.approx(2 / 32, rel=0.02)
    parts = {op.model.dtype.label for layer in some.job.built["*-'"] for op in layer.ops if op.part == "gemm"}
    assert parts == {"bf16"}
    assert step(replace(config, precision="bf16", bf16_layers=(1, 1)), system).step_us == wide.step_us


def test_no_step_beats_the_data_sheet(hopper: System) -> None:
    assert 0 < (step(NODE, hopper).mfu or 0) < 1


def test_recomputing_costs_about_a_third_and_saves_memory(hopper: System) -> None:
    none, full = (step(replace(NODE, recompute=r), hopper) for r in ("none", "full"))
    assert 1.2 < full.step_us / none.step_us < 1.4
    assert full.peak_memory.activations < none.peak_memory.activations / 4
    assert full.tflops_gpu < none.tflops_gpu


def test_twice_the_micro_batches_take_less_than_twice_as_long(hopper: System) -> None:
    """The bubble, the last bucket and the optimizer come once."""
    one, two = (step(replace(NODE, micro_batches=m), hopper).step_us for m in (8, 16))
    assert 1 < two / one < 2


def test_interleaving_shortens_the_bubble(hopper: System) -> None:
    one, four = (step(replace(NODE, vpp=v), hopper) for v in (1, 4))
    assert four.bubble_share < one.bubble_share
    assert (one.schedule, four.schedule) == ("1f1b", "interleaved")


def test_a_model_that_does_not_fit_says_which_stage_needs_what(hopper: System) -> None:
    found = step(ParallelConfig(), hopper, ModelConfig.load("llama3.1-70b"))
    assert found.infeasible is not None
    assert found.infeasible.startswith("stage 0 needs 1")
    assert step(replace(NODE, recompute="full"), hopper).infeasible is None


def test_small_steps_are_bound_by_the_host(hopper: System) -> None:
    slow, none = Software(host_us_per_op=1000.0), Software(host_us_per_op=0.0)
    found = step(NODE, hopper, software=slow)
    assert found.breakdown_us["host"] > found.step_us / 2
    assert "host" not in step(NODE, hopper, software=none).breakdown_us
    graphed = [
        step(replace(NODE, graphs=graphs), hopper, software=slow).step_us for graphs in ("none", "partial", "full")
    ]
    assert graphed[0] > graphed[1] > graphed[2] == pytest.approx(step(NODE, hopper, software=none).step_us)


def test_reading_token_counts_back_costs_the_host_a_time_per_block_of_experts(hopper: System) -> None:
    """16 passes of 48 blocks each way, and nothing else to wait for."""
    p, model = ParallelConfig(dp=16, ep=8, micro_batches=16), ModelConfig.load("qwen3-30b-a3b")
    slow = Software(host_us_per_op=0.0, experts_us=1e6)
    found = step(p, hopper, model, software=slow)
    assert found.step_us == pytest.approx(16 * 48 * 2 * 1e6, rel=0.01)


def test_exchanges_beside_another_micro_batch_cost_the_host_a_time_per_block_of_experts(hopper: System) -> None:
    """As often, and nothing where exchanges are not overlapped, or where graphs replay the step."""
    p, model = ParallelConfig(dp=16, ep=8, micro_batches=16), ModelConfig.load("qwen3-30b-a3b")
    slow, none = (Software(host_us_per_op=0.0, overlap_us=us) for us in (1e6, 0.0))
    overlapped = replace(p, ep_overlap=True)
    assert step(overlapped, hopper, model, software=slow).step_us == pytest.approx(16 * 48 * 2 * 1e6, rel=0.01)
    for silent in (p, replace(overlapped, graphs="full")):
        steps = [step(silent, hopper, model, software=each).step_us for each in (slow, none)]
        assert steps[0] == steps[1]


def test_modules_are_recomputed_alone(hopper: System) -> None:
    """The feed-forward blocks' forward once more: their products, their norms, their collectives."""
    none, some, full = (
        step(replace(NODE, recompute=kind, recompute_modules=("mlp",)), hopper)
        for kind in ("none", "selective", "full")
    )
    again = some.breakdown_us["recompute"]
    assert 0.5 < again / full.breakdown_us["recompute"] < 0.8
    assert none.step_us < some.step_us < full.step_us
    with pytest.raises(UsageError, match="no module to recompute named 'mpl'; did you mean mlp"):
        replace(NODE, recompute_modules=("mpl",))


def test_a_slower_clock_slows_the_step_and_leaves_the_data_sheet_as_it_is(hopper: System) -> None:
    full, slow = (step(ParallelConfig(dp=8), system) for system in (hopper, hopper.at_clock(915)))
    assert 1.3 < slow.step_us / full.step_us < 2
    assert slow.mfu == pytest.approx(full.mfu * full.step_us / slow.step_us)


def test_factors_multiply_their_own_part_of_the_step(hopper: System) -> None:
    plain, doubled = (step(NODE, hopper, software=s) for s in (Software(), Software(attention=2.0)))
    assert doubled.breakdown_us["attention"] == pytest.approx(2 * plain.breakdown_us["attention"])
    assert doubled.breakdown_us["gemm"] == plain.breakdown_us["gemm"]
    with pytest.raises(UsageError, match="attention must be above 0, not 0"):
        Software(attention=0.0)


def test_levers_are_steps_of_their_own(hopper: System) -> None:
    p = replace(NODE, recompute="full")
    found = step(p, hopper)
    best = {lever.change: lever.gain for lever in levers(found, most=9)}
    assert best["no recomputation"] == pytest.approx(
        1 - step(replace(p, recompute="none"), hopper).step_us / found.step_us
    )
    assert list(best.values()) == sorted(best.values(), reverse=True)
    assert len(levers(found)) == 3


def test_every_lever_of_a_step_that_does_not_fit_makes_it_fit(hopper: System) -> None:
    """8B with one replica per device needs ZeRO or recomputation."""
    p = ParallelConfig(dp=8, micro_batch=2, micro_batches=4)
    found = step(p, hopper, ModelConfig.load("llama3.1-8b"))
    assert found.infeasible is not None
    by_name = {lever.change: lever.gain for lever in levers(found, most=99)}
    other = step(replace(p, recompute="full"), hopper, ModelConfig.load("llama3.1-8b"))
    assert other.infeasible is None
    assert by_name["full recomputation"] == pytest.approx(1 - other.step_us / found.step_us)
    assert "micro-batch 4" not in by_name


@pytest.mark.sweep
def test_changes_are_tried_together_where_one_is_not_enough(hopper: System) -> None:
    """70B with 16 bytes a parameter is 1.1 TB: on 32 devices of 80 GB it needs shards and recomputation, or fewer
    replicas; eight devices of 80 GB hold it in no way.
    """
    model, p = ModelConfig.load("llama3.1-70b"), ParallelConfig(dp=32, micro_batches=4)
    found = step(p, hopper, model)
    by_name = {lever.change: lever.gain for lever in levers(found, most=99)}
    assert by_name
    assert all("," in change for change in by_name)
    other = step(replace(p, zero=3, recompute="full"), hopper, model)
    assert other.infeasible is None
    assert by_name["full recomputation, ZeRO 3"] == pytest.approx(1 - other.step_us / found.step_us)
    divided = step(replace(p, tp=4, pp=4, dp=2, micro_batches=64), hopper, model)
    assert (divided.infeasible is None) == ("tp 4, pp 4, dp 2" in by_name)
    assert levers(step(replace(p, dp=8), hopper, model)) == ()


def test_experts_are_exchanged_and_skewless(hopper: System) -> None:
    found = step(ParallelConfig(dp=16, ep=8), hopper, ModelConfig.load("qwen3-30b-a3b"))
    assert {"ep", "experts", "routing"} <= found.breakdown_us.keys()
    alone = step(ParallelConfig(dp=16), hopper, ModelConfig.load("qwen3-30b-a3b"))
    assert "ep" not in alone.breakdown_us


def test_a_device_without_a_count_of_units_takes_that_of_the_one_it_is_calibrated_like() -> None:
    found = step(ParallelConfig(dp=8), System.load("gb300"))
    assert any(note.startswith("compute units, clock and L2 size of NVIDIA GB200") for note in found.notes)
    assert set(found.answered_by) == {"tile"}


def test_a_precision_that_the_device_cannot_multiply_in_has_no_step_time() -> None:
    with pytest.raises(UsageError, match="a100-sxm-80gb has no fp8 rate"):
        step(replace(NODE, precision="fp8"), System.load("dgx-a100"))


def test_what_a_schedule_cannot_do_is_an_error_of_the_step(hopper: System) -> None:
    with pytest.raises(UsageError, match="2 pipeline ranks do not divide 3 micro-batches"):
        step(replace(NODE, vpp=2, micro_batches=3), hopper)


@pytest.mark.parametrize(
    ("layers", "parts", "expected"),
    [
        (8, 4, (2, 2, 2, 2)),
        (126, 16, (7, *(8,) * 14, 7)),
        (126, 128, (0, *(1,) * 126, 0)),
        # the head, and what predicts further tokens, stand on the last part
        (63, 4, (16, 16, 16, 15)),
        (61, 16, (*(4,) * 15, 1)),
        (17, 5, (4, 4, 4, 4, 1)),
    ],
)
def test_layers_are_divided_evenly_or_with_the_ends_as_layers(
    layers: int, parts: int, expected: tuple[int, ...]
) -> None:
    assert layer_counts(layers, parts) == expected
    assert sum(layer_counts(layers, parts)) == layers


def test_a_part_without_layers_is_an_error() -> None:
    with pytest.raises(UsageError, match="8 layers cannot be divided into 16 chunks"):
        layer_counts(8, 16)


# Megatron paper, arXiv 2205.05198, table 5, seconds: full recomputation, selective with sequence parallelism.
TABLE_5 = [
    ("megatron-22b", 8, 1, 1, 4, 4, 1.42, 1.10),
    ("gpt3-175b", 64, 8, 3, 1, 64, 18.13, 13.75),
    ("mt-nlg-530b", 280, 35, 3, 1, 280, 49.05, 37.83),
    ("megatron-1t", 512, 64, 1, 1, 512, 94.42, 71.49),
]


@pytest.mark.parametrize(("name", "ranks", "pp", "vpp", "mbs", "gbs", "full", "selective"), part(TABLE_5, 2))
def test_published_megatron_steps_with_nothing_fitted(
    name: str, ranks: int, pp: int, vpp: int, mbs: int, gbs: int, full: float, selective: float
) -> None:
    p = ParallelConfig.of(
        ranks=ranks, global_batch=gbs, tp=8, pp=pp, vpp=vpp, micro_batch=mbs, precision="fp16", recompute="full",
        attention="unfused",
    )  # fmt: skip
    system, model = System.load("dgx-a100"), ModelConfig.load(name)
    assert project(model, p, system, sequence=2048).step_us / 1e6 == pytest.approx(full, rel=0.10)
    p = replace(p, recompute="selective", sequence_parallel=True)
    assert project(model, p, system, sequence=2048).step_us / 1e6 == pytest.approx(selective, rel=0.10)


ROW = {
    "id": "1", "model": "llama3.1-8b", "kind": "dense", "gpu": "H100-80GB-SXM", "n_gpus": "8.0", "tp": "1.0", "pp": "1.0",
    "vp": "", "cp": "1.0", "ep": "", "etp": "", "dp": "8.0", "fsdp_shard": "0", "mbs": "1.0", "gbs": "128.0",
    "seq_len": "4096.0", "precision": "BF16", "recompute": "none", "framework": "", "schedule": "", "notes": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"n_gpus": "", "dp": ""}, "n_gpus is not stated"),
        ({"schedule": "looped-bfs"}, "schedule 'looped-bfs' is not modeled"),
        ({"precision": "int4"}, "precision 'int4' is not modeled"),
        ({"dp": "4.0"}, "tp 1 * pp 1 * cp 1 * dp 4 = 4 ranks, but the cluster has 8"),
        ({"mbs": "1.5"}, "mbs must be a whole number from 1 to 1e09, got '1.5'"),
        ({"model": "llama3.1-8"}, "no model named 'llama3.1-8'; did you mean"),
    ],
)
def test_a_row_that_is_not_projected_has_a_reason(changed: dict[str, str], reason: str) -> None:
    point = project_row(ROW | changed)
    assert point.projection is None
    assert (point.reason or "").startswith(reason)


def test_a_recipe_is_what_the_scripts_of_its_release_set() -> None:
    row = ROW | {
        "model": "Qwen3_30B_a3B", "kind": "moe", "gpu": "GB200", "ep": "8.0", "precision": "MXFP8", "recompute": "recipe",
        "framework": "Megatron-Bridge 26.04 NeMo Container",
    }  # fmt: skip
    before, after = project_row(row), project_row(row | {"framework": "Megatron-Bridge 26.06 NeMo Container"})
    assert before.projection is not None
    assert after.projection is not None
    assert (before.projection.parallel.graphs, after.projection.parallel.graphs) == ("partial", "full")
    assert before.projection.parallel.gradients == "bf16"
    assert after.projection.step_us < before.projection.step_us
    assert after.assumptions[0].startswith("recipe: no recomputation, graphs of the whole step, exchanges overlapped (")


@pytest.mark.parametrize(
    ("model", "gpu", "release", "expected"),
    [
        # qwen3_workload_base_configs.py at f29a269 (overlapped), 01b2977 (not), 148e830 (HybridEP)
        ("Qwen3_235B_a22B", "B300", "26.02.01", (True, "alltoall")),
        ("Qwen3_235B_a22B", "B300", "26.04", (False, "alltoall")),
        ("Qwen3_235B_a22B", "B300", "26.04.01", (False, "deepep")),
        # deepseek_llm_pretrain.py at 0132842: DeepEP and overlap on H100, neither on B200
        ("DeepSeekV3", "H100", "25.09", (True, "deepep")),
        ("DeepSeekV3", "B200", "25.11", (False, "alltoall")),
        # gpt_oss_llm_pretrain.py names a backend on B300 alone
        ("GPT OSS 120B", "B200", "26.02", (False, "alltoall")),
        ("GPT OSS 120B", "B300", "26.04", (False, "deepep")),
    ],
)
def test_exchanges_are_those_of_the_release(model: str, gpu: str, release: str, expected: tuple[bool, str]) -> None:
    row = ROW | {
        "model": model, "kind": "moe", "gpu": gpu, "n_gpus": "64", "dp": "64", "ep": "8", "recompute": "recipe",
        "framework": f"Megatron-Bridge {release} NeMo Container",
    }  # fmt: skip
    found = configuration(row)
    assert (found.parallel.ep_overlap, found.parallel.dispatcher) == expected
    assert ("(alltoall)" in found.assumptions[0]) == (expected[1] == "alltoall")


@pytest.mark.parametrize(
    ("gpu", "notes", "graphs"),
    [
        # llama3_workload_base_configs.py at 00919dc: cuda_graph_scope="mlp" for fine-tuning on GB200 and GB300
        ("GB200", "SFT Performance", "partial"),
        ("GB300", "LoRA Performance", "partial"),
        ("GB200", "Pre-Training Performance", "none"),
        ("H100", "SFT Performance", "none"),
    ],
)
def test_scripts_of_fine_tuning_are_for_rows_that_say_so(gpu: str, notes: str, graphs: str) -> None:
    row = ROW | {"model": "LLAMA3_70B", "gpu": gpu, "precision": "FP8", "recompute": "recipe"}
    row |= {"framework": "Megatron-Bridge 26.06 NeMo Container", "notes": notes}
    assert configuration(row).parallel.graphs == graphs


def test_a_row_says_what_was_assumed() -> None:
    assert project_row(ROW).assumptions == ()
    assert "recipe: no recomputation" in project_row(ROW | {"recompute": "recipe", "gpu": "H200"}).assumptions
    # 85.5 of 85.0 GB
    assert project_row(ROW | {"recompute": "recipe", "seq_len": "4352"}).assumptions == (
        "recipe: no recomputation", "2 of 32 layers recomputed, the fewest with which the step fits",
    )  # fmt: skip


def test_the_command_answers_a_table_row_by_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "points.csv", tmp_path / "out.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows([ROW, ROW | {"n_gpus": "", "dp": ""}])
    assert main(["project", "--batch", str(table), "-o", str(out)]) == 0
    assert "1 of 2 rows projected" in capsys.readouterr().out
    first, second = csv.DictReader(out.read_text().splitlines())
    assert float(first["step_time_s_est"]) == pytest.approx(project_row(ROW).projection.step_us / 1e6, abs=1e-4)  # type: ignore[union-attr]
    assert (second["step_time_s_est"], second["reason"]) == ("", "n_gpus is not stated")


def test_the_command_prints_the_step_and_says_when_it_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["project", "--model", "llama3.1-70b", "--cluster", "dgx-h100", "--nodes", "8"]
    assert main([*arguments, "--tp", "8", "--pp", "2"]) == 0
    shown = capsys.readouterr().out
    assert "64 x NVIDIA H100" in shown
    for word in ("tokens/s/GPU", "MFU", "memory, GB", "peak of 85.0", "stage 1", "largest levers"):
        assert word in shown
    assert main([*arguments, "--tp", "1"]) == 3
    assert "does not fit: stage 0 needs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llama3.1-8b"], "name a model and a cluster, as in --model llama3-70b --cluster dgx-h100"),
        (["--model", "llama3.1-8b", "--cluster", "dgx-h100"], "how many GPUs? Give --gpus N, or --nodes N"),
        (
            ["--model", "llama3.1-8b", "--cluster", "dgx-h100", "--nodes", "1", "--gpus", "8"],
            "only one of --nodes and --gpus",
        ),
        (
            ["--model", "llama3.1-8b", "--cluster", "dgx-h100", "--nodes", "1", "--tp", "3"],
            "tp 3 * pp 1 * cp 1 * dp 2 = 6 ranks, but the cluster has 8",
        ),
    ],
)
def test_the_command_explains_what_does_not_fit(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["project", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_dividing_gradients_saves_memory_and_reduces_them_after_every_micro_batch(hopper: System) -> None:
    one, two = (step(replace(NODE, dp=8, zero=z), hopper) for z in (1, 2))
    assert two.peak_memory.gradients == pytest.approx(one.peak_memory.gradients / 8)
    assert two.breakdown_us["dp"] > one.breakdown_us["dp"]


def test_neighbors_in_one_node_make_tensor_parallelism_cheap(hopper: System) -> None:
    """8 tensor ranks in a node, or one in each of 8 nodes with the pipeline inside."""
    p = ParallelConfig(tp=8, sequence_parallel=True, pp=8, micro_batches=16)
    inside, spread = (
        step(replace(p, placement=place), hopper)
        for place in (GroupPlacement(node=8, tp=8), GroupPlacement(node=8, pp=8))
    )
    assert step(p, hopper).step_us == inside.step_us
    assert spread.breakdown_us["tp"] > 3 * inside.breakdown_us["tp"]


def test_a_hop_is_the_mean_over_those_inside_and_between_nodes(hopper: System) -> None:
    """8 stages, 4 to a node: 6 hops inside, 1 between."""
    assert hopper.topology is not None
    mean, inside, between = (
        hop_us(1e8, Group(ranks=ranks, stride=stride), hopper.topology) for ranks, stride in ((8, 2), (2, 2), (2, 8))
    )
    assert mean == pytest.approx((6 * inside + between) / 7)


def test_a_placement_that_does_not_fit_a_node_shows_the_product() -> None:
    with pytest.raises(UsageError, match=r"tp 4 \* cp 1 \* dp 4 \* pp 1 = 16 ranks of a node, but it has 8"):
        GroupPlacement(node=8, tp=4, dp=4)


def test_a_step_s_energy_is_that_of_its_calls_and_of_waiting() -> None:
    """One rank, one layer: every call's watts over idle times its time, and idle for as long as the step takes."""
    model = replace(ModelConfig.load("llama3.1-8b"), blocks="*-")
    found = project(model, ParallelConfig.of(ranks=1, global_batch=2), System.load("h200-sxm"), sequence=4096)
    energy, constants = energy_of(found), power_constants(found.system.device)
    assert energy is not None
    assert constants is not None
    joules = constants.idle_w * found.step_us * 1e-6
    calls = [(kernel.op, kernel.time_us, count) for each, count in found.run.counted(0) for kernel in each.kernels()]
    calls += [(op, time_us, 1) for op, time_us in found.run.finish[0].ops]
    for op, time_us, count in calls:
        times = np.array([time_us / op.count])
        for _, work in works(WorkColumns.of([op.model]), found.system.device, times) if time_us else ():
            watts = float(kernel_power(constants, work).power_w[0]) - constants.idle_w
            joules += count * watts * time_us * 1e-6
    assert energy.step_j == pytest.approx(joules, rel=1e-9)
    assert energy.power_w == pytest.approx(joules / found.step_us * 1e6, rel=1e-9)
    assert energy.token_j == pytest.approx(joules / (2 * 4096), rel=1e-9)
    assert constants.idle_w < energy.power_w < 700


@given(
    tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]), cluster=st.sampled_from(["dgx-h100", "dgx-b200"]),
    clock=st.sampled_from([900.0, 1200.0, 1500.0]),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_a_step_draws_at_least_what_waiting_does_at_most_the_limit_and_less_at_a_lower_clock(
    tp: int, pp: int, cluster: str, clock: float
) -> None:
    model, parallel = ModelConfig.load("llama3.1-8b"), ParallelConfig.of(ranks=16, global_batch=64, tp=tp, pp=pp)
    system = System.load(cluster)
    whole, slow = (energy_of(project(model, parallel, at, sequence=4096)) for at in (system, system.at_clock(clock)))
    constants = power_constants(system.device)
    assert whole is not None
    assert slow is not None
    assert constants is not None
    assert constants.idle_w < slow.power_w < whole.power_w <= constants.most * constants.limit_w


def test_a_device_without_measured_energies_has_none() -> None:
    model, parallel = ModelConfig.load("llama3.1-8b"), ParallelConfig.of(ranks=8, global_batch=8)
    for device in ("dgx-a100", "mi300x"):
        assert energy_of(project(model, parallel, System.load(device), sequence=4096)) is None


def test_a_token_costs_what_hosts_and_the_data_center_add_by_hand() -> None:
    """DGX H200: 2,880 W per node besides its GPUs; PUE 1.25; 0.10 USD and 400 g of CO2 per kWh of 3.6 MJ."""
    asked = {"gpus": 16, "zero": 3, "global_batch": 32}
    plain = tl.project("llama3.1-8b", "dgx-h200", **asked)
    found = tl.project("llama3.1-8b", "dgx-h200", **asked, pue=1.25, price_per_kwh=0.1, co2_per_kwh=400.0)
    assert plain.energy is not None
    hosts_j = 2 * 2880 * plain.projection.step_us * 1e-6
    tokens = 32 * 4096
    assert plain.summary["facility_j_token"] == pytest.approx((plain.energy.step_j + hosts_j) / tokens)
    whole = 1.25 * (plain.energy.step_j + hosts_j) / tokens
    assert found.summary["facility_j_token"] == pytest.approx(whole)
    assert found.summary["electricity_usd_per_mtoken"] == pytest.approx(whole * 1e6 / 3.6e6 * 0.1)
    assert found.summary["co2_g_per_mtoken"] == pytest.approx(whole * 1e6 / 3.6e6 * 400)
    assert found.summary["energy_j_token"] == plain.summary["energy_j_token"]
    assert energy_of_step(found)[1].startswith("with hosts (360 W per GPU), PUE 1.25: ")
    points = [{"zero": 1}, {"zero": 3}]
    table = sweep(["zero"], points, lambda given: tl.project("llama3.1-8b", "dgx-h200", **asked | dict(given)))
    assert table["power_w_gpu"].between(128, 700).all()


def test_what_hosts_draw_is_unknown_on_other_clusters_and_nothing_is_said_of_devices_that_nobody_measured() -> None:
    asked = {"gpus": 8, "zero": 3, "global_batch": 16}
    b200 = tl.project("llama3.1-8b", "dgx-b200", **asked)
    assert "facility_j_token" not in b200.summary
    assert len(energy_of_step(b200)) == 1
    assert energy_of_step(tl.project("llama3.1-8b", "dgx-b200", **asked, pue=1.1))[1].startswith(
        "without hosts, PUE 1.1:"
    )
    a100 = tl.project("llama3.1-8b", "dgx-a100", **asked)
    assert energy_of_step(a100) == []
    assert not [name for name in a100.summary if "energy" in name or "power" in name or "facility" in name]
    priced = tl.project("llama3.1-8b", "dgx-a100", **asked, price_per_kwh=0.1)
    assert energy_of_step(priced) == ["energy unknown: nobody measured what NVIDIA A100 SXM4 80GB draws"]
    with pytest.raises(UsageError, match=r"at least 1, not 0\.9"):
        tl.project("llama3.1-8b", "dgx-h200", **asked, pue=0.9)


@pytest.mark.parametrize("watts", [200.0, 300.0, 450.0, 600.0, 700.0])
def test_a_step_under_a_power_limit_draws_no_more_and_is_no_faster(watts: float) -> None:
    asked = {"gpus": 8, "zero": 3, "global_batch": 16}
    full, held = (
        tl.project("llama3.1-8b", "dgx-h200", **asked),
        tl.project("llama3.1-8b", "dgx-h200", **asked, power_w=watts),
    )
    assert held.energy is not None
    assert full.energy is not None
    assert 128 <= held.energy.power_w <= watts
    assert held.energy.step_j <= full.energy.step_j * (1 + 1e-9)
    assert held.projection.step_us >= full.projection.step_us
    assert [note for note in held.projection.notes if "a limit of" in note] == (
        ["a limit of 700 W changes nothing: that of h200-sxm is 700 W"] if watts >= 700 else []
    )


@pytest.mark.parametrize("name", HardwareSpec.names())
def test_a_step_on_one_device_needs_no_links_and_has_an_interval_only_where_steps_were_measured(name: str) -> None:
    """Or a refusal in one plain sentence. At rates alone, nothing says how much longer a real step takes."""
    device, asked = HardwareSpec.load(name), {"gpus": 1, "tp": 1, "recompute": "full"}
    if device.rate("matrix", DType.BF16) is None or not (device.hbm and device.hbm.peak_tb_s):
        with pytest.raises(UsageError, match=rf"^({name} has no|no backend can estimate [\w ]+ on) [^=(]{{1,90}}$"):
            tl.project("llama3.2-1b", name, **asked)
        return
    found = tl.project("llama3.2-1b", name, **asked)
    is_measured = device.calibration("gemm", "bf16") is not None
    has_steps = not name.startswith(("l4", "l20", "rtx"))  # compute capability 8.9
    assert (found.expected is not None) == (is_measured and has_steps)
    said = [
        note.split(" of ")[0] for note in found.projection.notes if note.startswith(("no measured", "no published"))
    ]
    assert said == ["no measured GEMM times"] * (not is_measured) + ["no published step ran on the architecture"] * (
        is_measured and not has_steps
    )


def test_devices_without_a_known_cluster_are_joined_by_their_link_or_pcie_or_refused() -> None:
    """A cluster of them was asked for although ``--cluster`` was given."""
    found = tl.project("llama3.2-1b", "rtx-4090", gpus=2, tp=2)
    assert found.projection.notes[0] == "no cluster of rtx-4090 is known: nodes of 8 by PCIe at 32 GB/s, else dgx-a100"
    with pytest.raises(UsageError, match="nothing says how several tpu-v5e are joined: name a cluster of it"):
        tl.project("llama3.2-1b", "tpu-v5e", gpus=2, tp=2)


def test_a_precision_that_a_device_lacks_is_refused_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["project", "--model", "llama3.1-8b", "--cluster", "dgx-a100", "--gpus", "8", "--precision", "fp8"]) == 2
    )
    said = "no backend can estimate GEMM in fp8 on a100-sxm-80gb: choose another --precision"
    assert said in capsys.readouterr().err
