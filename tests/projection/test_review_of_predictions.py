"""The rows of the review of predictions (serving simulator, estimates and search, launch files): each has a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
#: What was found, and the tests that hold what was wanted; what is argued instead stands in the page that is named.
ROWS = {
    "MLA decode over the latent": ("serving/test_engines.py::test_attention_of_a_decode_step_never_reads_more_than_the_cache_holds",),
    "bursts and host times of a closed loop": ("serving/test_engines.py::test_prompts_of_a_closed_loop_come_one_by_one_where_answers_go_on_meanwhile",),
    "arrival times": ("serving/test_files.py::test_when_requests_arrive_is_read_or_refused",),
    "profiles: tp, stages, models": (
        "serving/test_files.py::test_a_profile_s_work_is_shared_by_tensor_parallel_devices",
        "serving/test_files.py::test_layers_of_a_profile_add_up_per_stage",
    ),
    "experiment files": (
        "serving/test_files.py::test_the_example_of_several_frameworks_is_a_run_each",
        "serving/test_files.py::test_a_strategy_that_contradicts_its_degrees_is_refused",
    ),
    "scenarios of any deployment": (
        "serving/test_pools_and_links.py::test_scenarios_take_any_deployment",
        "serving/test_pools_and_links.py::test_scenarios_are_written_as_json_and_as_a_workbook",
    ),
    "contention": (
        "serving/test_pools_and_links.py::test_levels_differ_with_contention_only_where_hand_overs_take_the_links_of_collectives",
        "serving/test_pools_and_links.py::test_a_hand_over_occupies_its_hop",
    ),
    "constants of another deployment": ("serving/test_pools_and_links.py::test_constants_of_another_model_or_device_are_doubted",),
    "pools, tiers, power": (
        "serving/test_pools_and_links.py::test_prompts_are_computed_on_the_hardware_of_their_own_replicas",
        "serving/test_pools_and_links.py::test_prefixes_in_host_memory_are_read_back_and_not_computed",
    ),
    "direct all-reduce": ("serving/test_pools_and_links.py::test_an_all_reduce_may_be_direct",),
    "Origami": ("cli/test_estimate_command.py::test_a_gradient_goes_to_the_backend_that_is_asked_for",),
    "rates on chip": ("projection/test_search_dimensions.py::test_on_chip_time_follows_the_matrix_rate_and_not_the_memorys",),
    "FP8 on MI350X and MI355X": ("projection/test_row_spellings.py::test_fp8_products_of_a_device_without_constants_do_not_reach_the_peak",),
    "one split once": ("projection/test_search_request.py::test_a_split_is_one_candidate_whatever_the_strategy_that_comes_to_it",),
    "nic_factor, axes, ranges": (
        "projection/test_search_dimensions.py::test_twice_the_network_cards_halve_what_travels_between_domains",
        "projection/test_search_dimensions.py::test_figures_of_links_and_vectors_replace_a_systems_own",
        "projection/test_search_dimensions.py::test_ranges_double_or_are_divided_evenly",
    ),
    "unfused attention": ("projection/test_search_dimensions.py::test_unfused_attention_keeps_scores_and_recomputing_does_not",),
    "dimensions of a search": (
        "projection/test_search_dimensions.py::test_dimensions_outside_the_table_are_tried",
        "projection/test_search_dimensions.py::test_clusters_of_a_sweep_are_compared_with_the_first",
        "cli/test_search_command.py::test_a_sweep_goes_on_where_it_stopped",
    ),
    "plain mpirun": ("cli/test_last_resort.py::test_one_of_several_ranks_says_that_each_does_all_of_the_work",),
    "launch files: layers of a named model": (
        "workload/test_launch.py::test_what_changes_a_named_model_is_applied",
        "workload/test_launch.py::test_what_makes_another_model_of_the_named_one_is_refused",
    ),
    "launch files: base files": (
        "workload/test_launch.py::test_base_files_count_below_the_file_that_extends_them",
        "workload/test_launch.py::test_what_primus_base_file_says_is_known_where_it_is_not_at_hand",
    ),
    "launch files: turbo keys": (
        "workload/test_launch.py::test_primus_yaml_names_its_model_and_its_turbo_switches",
        "workload/test_launch.py::test_both_names_of_primus_grouped_kernel_count",
    ),
    "launch files: recompute_num_layers": ("workload/test_launch.py::test_a_part_of_the_layers_is_recomputed",),
    "published by Primus": ("projection/test_published_tables.py::test_published_steps_of_primus_are_within_a_tenth",),
    "--against a written trace": ("projection/test_recorded.py::test_a_written_trace_meets_every_row_of_its_own_projection",),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_review_has_its_test(row: str) -> None:
    for name in ROWS[row]:
        file, _, function = name.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(", text, re.MULTILINE), name
