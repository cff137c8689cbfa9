"""The review of predictions: what became of each row on the serving simulator, estimates and search, and launch files.

An outcome is "done", or the sentence that argues why not. Tests are ``file::function``, sentences of pages
``docs/page.md::words``.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import row_by_row

ROOT = Path(__file__).resolve().parents[2]
#: Row of the review -> (what it asks for, outcome, what holds it).
ROWS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "serving 1": ("MLA decodes over the latent; attention reads no more than the cache holds", "done", (
        "serving/test_engines.py::test_attention_of_a_decode_step_never_reads_more_than_the_cache_holds",
        "serving/test_engines.py::test_a_few_tokens_on_a_latent_cache_read_it_together",
    )),
    "serving 2": ("host time, batch effects, the burst of a closed loop; no bias by concurrency", "done", (
        "calibration/test_left_out.py::test_time_per_token_of_what_was_left_out",
        "serving/test_engines.py::test_the_column_chooses_the_engine_and_an_estimate_has_bounds",
        "serving/test_engines.py::test_prompts_of_a_closed_loop_come_one_by_one_where_answers_go_on_meanwhile",
        "serving/test_engines.py::test_equal_answers_after_all_prompts_wait_for_half_of_them",
    )),
    "serving 3": ("`arrival_time` is read, unknown keys of arrivals are an error", "done", (
        "serving/test_files.py::test_when_requests_arrive_is_read_or_refused",
    )),
    "serving 4": ("profiles: tp, exports, stage sums, several models", "done", (
        "serving/test_files.py::test_a_profile_s_work_is_shared_by_tensor_parallel_devices",
        "serving/test_files.py::test_layers_of_a_profile_add_up_per_stage",
    )),
    "serving 5": ("`experiment_config.yaml`: PyYAML, several frameworks, strategy, an example", "done", (
        "serving/test_files.py::test_the_example_of_several_frameworks_is_a_run_each_under_its_name",
        "serving/test_files.py::test_a_strategy_that_contradicts_its_degrees_is_refused",
        "projection/test_review_of_predictions.py::test_yaml_is_read_without_an_extra",
    )),
    "serving 6": ("`--scenarios` of any deployment, as JSON and xlsx; no option is dropped silently", "done", (
        "serving/test_pools_and_links.py::test_scenarios_take_any_deployment",
        "serving/test_pools_and_links.py::test_scenarios_are_written_as_json_and_as_a_workbook",
        "cli/test_serve_command.py::test_options_that_a_mode_would_not_read_are_refused",
    )),
    "serving 7": ("hand-overs occupy the link; contention never helps; high and medium differ where they should", "done", (
        "serving/test_pools_and_links.py::test_levels_differ_with_contention_only_where_hand_overs_take_the_links_of_collectives",
        "serving/test_pools_and_links.py::test_a_hand_over_occupies_its_hop",
        "serving/test_levels.py::test_contention_never_makes_anything_faster",
    )),
    "serving 8": ("an engine of another model or device is doubted; constants transfer", "done", (
        "serving/test_pools_and_links.py::test_constants_of_another_model_or_device_are_doubted",
        "serving/test_engines.py::test_without_a_name_the_pooled_constants_serve_and_say_what_to_expect",
        "calibration/test_left_out.py::test_time_per_token_of_what_was_left_out",
    )),
    "serving 9, instances": ("hardware and limits of their own, prefill and decode pools, power", "done", (
        "serving/test_pools_and_links.py::test_prompts_are_computed_on_the_hardware_of_their_own_replicas",
        "serving/test_pools_and_links.py::test_a_prefill_replica_has_degrees_and_limits_of_its_own",
    )),
    "serving 9, tiers": (
        "cache tiers",
        "Host memory and disks are done; CXL is not: no measured rate of reading a cache back from it is at hand.",
        (
            "serving/test_pools_and_links.py::test_prefixes_in_host_memory_are_read_back_and_not_computed",
            "serving/test_pools_and_links.py::test_pieces_that_leave_the_pool_are_kept_below_and_the_oldest_forgotten",
            "serving/test_sessions.py::test_what_leaves_host_memory_goes_to_disks_and_comes_back_through_it",
            "docs/serving.md::Prefix caches that replicas share; CXL.",
        ),
    ),
    "serving 9, sessions": (
        "agentic sessions",
        "Sessions are made, or replayed with what they share; pauses are given, as no trace at hand says how long tools take.",
        (
            "serving/test_files.py::test_hashes_become_shared_beginnings",
            "serving/test_sessions.py::test_a_turn_says_all_before_it_again_and_finds_whole_blocks_of_it",
            "docs/serving.md::Requests of a replayed file arrive when it says, whatever answers take.",
        ),
    ),
    "serving 9, waves": (
        "wave-synchronised data parallelism",
        "Ranks of a replica (`--dp`) step together, as the busiest; replicas behind a router share nothing to wait for.",
        (
            "serving/test_serving.py::test_a_skew_makes_the_busiest_device_slower",
            "docs/serving.md::A step takes as long as its busiest rank",
        ),
    ),
    "serving 10, direct": ("`--collective direct`", "done", (
        "serving/test_pools_and_links.py::test_an_all_reduce_may_be_direct",
    )),
    "serving 10, log": (
        "`comm_log.txt` under other rules",
        "Its lines are the rounds of the original's scheduler, which exist under its rules only; elsewhere `--log` is refused.",
        ("cli/test_route_command.py::test_the_two_steps_and_the_log", "cli/test_route_command.py::test_a_bad_parameter_is_one_sentence"),
    ),
    "estimates 1": ("`--backend origami` reaches Origami: forward, `--batch`, `--backward`", "done", (
        "backends/test_origami.py::test_the_command_asks_it_for_products_and_their_gradients",
        "backends/test_origami.py::test_a_table_of_products_is_asked_too",
        "cli/test_estimate_command.py::test_a_gradient_goes_to_the_backend_that_is_asked_for",
    )),
    "estimates 2": (
        "which Origami, and how near it is to Primus' own backend",
        "The unrelated package is refused; clocks are the device file's; no measurement at hand says whose FP8 is right.",
        (
            "backends/test_origami.py::test_an_unrelated_package_of_that_name_is_refused",
            "backends/test_origami.py::test_cycles_become_microseconds_at_the_device_clock",
            "backends/test_origami.py::test_fp8_takes_the_first_name_with_an_instruction",
        ),
    ),
    "estimates 3": ("rates on chip follow the matrix rate, of a kernel and of a step", "done", (
        "projection/test_search_dimensions.py::test_on_chip_time_follows_the_matrix_rate_and_not_the_memorys",
        "projection/test_search_dimensions.py::test_a_step_follows_the_matrix_rate_more_than_the_memorys",
    )),
    "estimates 4": ("FP8 products of MI350X and MI355X below the peak", "done", (
        "projection/test_row_spellings.py::test_fp8_products_of_a_device_without_constants_do_not_reach_the_peak",
    )),
    "search 1": (
        "one configuration is listed once",
        "Done under `corrected`; `paper` keeps the published space, number for number.",
        (
            "projection/test_search_request.py::test_a_split_is_one_candidate_whatever_the_strategy_that_comes_to_it",
            "projection/test_paper_rules.py::test_the_space_has_the_published_number_of_candidates",
        ),
    ),
    "search 2": ("`nic_factor`, axes of vector rate, links and latency, ranges", "done", (
        "projection/test_search_dimensions.py::test_twice_the_network_cards_halve_what_travels_between_domains",
        "projection/test_search_dimensions.py::test_figures_of_links_and_vectors_replace_a_systems_own",
        "projection/test_search_dimensions.py::test_ranges_double_or_are_divided_evenly",
    )),
    "search 3": (
        "unfused attention, `attention_recompute`, `sa_2d` under `paper` rules",
        "All three are done; no published row uses `sa_2d`: it agrees with hand arithmetic.",
        (
            "projection/test_search_dimensions.py::test_unfused_attention_keeps_scores_and_recomputing_does_not",
            "projection/test_search_dimensions.py::test_attention_is_an_option_of_the_papers_rules",
            "docs/search.md::is its two-dimensional attention `sa_2d`",
        ),
    ),
    "search 4": ("further dimensions, clusters side by side, resumption", "done", (
        "projection/test_search_dimensions.py::test_dimensions_outside_the_table_are_tried",
        "projection/test_search_dimensions.py::test_shards_within_a_node_and_tensor_ranks_of_experts_are_among_them",
        "projection/test_search_dimensions.py::test_clusters_of_a_sweep_are_compared_with_the_first",
        "cli/test_search_command.py::test_a_sweep_goes_on_where_it_stopped",
    )),
    "search 5": ("plain `mpirun` says what it does, and the right form", "done", (
        "cli/test_last_resort.py::test_one_of_several_ranks_says_that_each_does_all_of_the_work",
    )),
    "launch 1": ("what changes a named model is applied or refused; keys without effect are not called unread", "done", (
        "workload/test_launch_files.py::test_what_changes_a_named_model_is_applied",
        "workload/test_launch_files.py::test_what_makes_another_model_of_the_named_one_is_refused",
    )),
    "launch 2": ("base files: the distributed optimizer of `pre_trainer.yaml`", "done", (
        "workload/test_launch_files.py::test_base_files_count_below_the_file_that_extends_them",
        "workload/test_launch_files.py::test_primus_files_that_a_launch_names_are_found_above_it",
        "workload/test_launch_files.py::test_what_primus_base_file_says_is_known_where_it_is_not_at_hand",
    )),
    "launch 3": ("both turbo keys", "done", (
        "workload/test_launch_files.py::test_primus_yaml_names_its_model_and_its_turbo_switches",
        "workload/test_launch_files.py::test_both_names_of_primus_grouped_kernel_count",
        "workload/test_launch_files.py::test_a_switch_changes_its_option",
    )),
    "launch 4": ("`recompute_num_layers` of fewer layers", "done", (
        "workload/test_launch_files.py::test_a_part_of_the_layers_is_recomputed",
    )),
    "launch 5": ("`--against` meets every row of the written trace", "done", (
        "projection/test_recorded.py::test_a_written_trace_meets_every_row_of_its_own_projection",
    )),
    "launch 6": (
        "published by Primus",
        "Within a tenth, but Mixtral-8x22B's example does not fit; the published row, of other stages, did not run it.",
        (
            "projection/test_published_tables.py::test_published_steps_of_primus_are_within_a_tenth",
            "workload/test_launch_files.py::test_primus_examples_are_within_a_tenth_of_what_it_published",
            "projection/test_published_tables.py::test_steps_of_unknown_recomputation_repeat_the_fewest_layers_that_let_them_fit",
            "docs/projection.md::the published row states two chunks per stage, so it ran another file",
        ),
    ),
}  # fmt: skip


@row_by_row("row", ROWS)
def test_what_became_of_each_row_is_held_by_tests_that_exist(row: str) -> None:
    _, outcome, held = ROWS[row]
    assert outcome == "done" or outcome.endswith(".")
    tests = [name for name in held if not name.startswith("docs/")]
    assert tests
    for name in held:
        file, _, words = name.partition("::")
        if name in tests:
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {words}\(", text, re.MULTILINE), name
        else:
            assert words in " ".join((ROOT / file).read_text(encoding="utf-8").split()), name


def test_every_row_of_the_review_is_there() -> None:
    numbers = {(part, int(re.findall(r"\d+", number)[0])) for part, number in (row.split(" ", 1) for row in ROWS)}
    many = {"serving": 10, "estimates": 4, "search": 5, "launch": 6}
    assert numbers == {(part, number) for part, last in many.items() for number in range(1, last + 1)}


def test_yaml_is_read_without_an_extra() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    required = re.search(r"^dependencies = \[(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    assert required is not None
    assert "PyYAML" in required[1]
