"""The tests of the short and of the long leg, and of the oldest Spark.

The short leg (ci/spark.sh, in ci/test.sh too) is every test but those of `LONG`; `ci/spark.sh
--long` is all, and `--oldest` (in ci/test.sh, too) is `OLDEST` on the oldest Spark. `MUST_EXIST` is
what spark.md asks for, row by row, with at least one test of the short leg each, the cheapest that
shows it. tests/architecture/test_spark_legs.py holds the lists to the files.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Programs and clusters of their own, locks and workers that must expire, and tests whose plan
# another one of the short leg has run already.
LONG: Final[dict[str, tuple[str, ...]]] = {
    "test_copied_tables": ("test_a_delta_table_has_the_newest_rows_though_batches_run_again",),
    "test_endings": (
        "test_an_idle_program_releases_its_locks_at_every_kind_of_end",
        "test_a_busy_program_keeps_its_locks_at_every_kind_of_end",
    ),
    "test_executors": (
        "test_two_executors_keep_the_order_and_failed_tasks_lose_nothing",
        "test_repeats_of_two_concurrent_attempts_on_two_hosts_are_dropped",
        "test_a_stream_continues_after_its_idle_workers_were_killed",
    ),
    "test_order_after_shuffles": (
        "test_a_spilled_shuffle_breaks_sparks_groups_but_not_the_ordered_stages",
        "test_a_stream_by_key_is_in_order_although_its_shuffle_spills",
        "test_a_task_that_runs_again_returns_each_row_once_and_has_its_attempt_number",
        "test_order_holds_on_two_hosts_where_blocks_arrive_in_any_order",
    ),
    "test_failure_policy": ("test_a_stage_with_state_keeps_a_parked_key_in_its_state",),
    "test_apply_with_state": (
        "test_a_restarted_query_continues_with_its_state",
        "test_a_batch_query_has_state_too",
        "test_a_forgotten_state_begins_again_with_none",
    ),
    "test_keyed_state_kills": (
        "test_states_are_exact_after_two_kills_of_the_driver_and_one_of_a_worker",
    ),
    "test_sink": ("test_repeats_are_dropped_across_micro_batches_by_a_cursor",),
    "test_guide": ("test_every_example_runs",),
    # On the newest Spark, other tests of the short leg do the same.
    "test_versions": (
        "test_a_batch_goes_through_a_stage_and_a_column_function_into_another_topic",
        "test_a_session_that_has_found_the_format_by_itself_lets_it_be_registered",
        "test_max_rows_limits_each_batch_of_a_running_query_also_after_a_failed_one",
        "test_a_stream_is_written_to_a_topic",
        "test_runs_with_available_now_read_all_there_is_or_max_rows",
        "test_pushdown_runs_or_says_which_version_it_needs",
        "test_arrow_functions_are_accepted_or_the_error_says_which_version_they_need",
    ),
    "test_standalone": (
        "test_the_flights_on_a_standalone_cluster_equal_pandas_and_no_process_is_left",
    ),
}

# What differs by version, and the least that every version must do.
OLDEST: Final[dict[str, tuple[str, ...]]] = {
    "test_versions": LONG["test_versions"],
    "test_stream_source": ("test_a_stream_reads_every_message_once_in_queue_order",),
    "test_endings": ("test_a_stopped_idle_query_releases_its_locks",),
}


class Row(NamedTuple):
    """Tests of a row, as file::name."""

    short: tuple[str, ...]
    long: tuple[str, ...] = ()


MUST_EXIST: Final[dict[str, Row]] = {
    "kill matrix, lock state read at the broker": Row(
        (
            "test_endings::test_a_stopped_idle_query_releases_its_locks",
            "test_endings::test_a_finished_query_releases_its_locks",
            "test_endings::test_a_query_whose_batch_failed_keeps_its_locks",
            "test_endings::test_a_killed_reader_fails_the_query_and_its_locks_stay",
        ),
        (
            "test_endings::test_an_idle_program_releases_its_locks_at_every_kind_of_end",
            "test_endings::test_a_busy_program_keeps_its_locks_at_every_kind_of_end",
        ),
    ),
    "restart in mid-batch: the same range, partitions first": Row(
        ("test_stream_source::test_a_batch_that_failed_is_read_again_with_the_same_range",),
    ),
    "order where a shuffle spills, and on two hosts": Row(
        (
            "test_apply_in_order::test_a_spilled_sort_breaks_sparks_groups_but_not_the_ordered_stage",
        ),
        (
            "test_order_after_shuffles::"
            "test_a_spilled_shuffle_breaks_sparks_groups_but_not_the_ordered_stages",
            "test_order_after_shuffles::test_a_stream_by_key_is_in_order_although_its_shuffle_spills",
            "test_order_after_shuffles::test_order_holds_on_two_hosts_where_blocks_arrive_in_any_order",
        ),
    ),
    "retry and speculation": Row(
        (
            "test_executors::test_two_attempts_of_one_task_at_once_read_the_same",
            "test_sink::test_a_batch_that_is_killed_is_written_again_and_read_once",
        ),
        (
            "test_order_after_shuffles::"
            "test_a_task_that_runs_again_returns_each_row_once_and_has_its_attempt_number",
            "test_executors::test_two_executors_keep_the_order_and_failed_tasks_lose_nothing",
            "test_executors::test_repeats_of_two_concurrent_attempts_on_two_hosts_are_dropped",
        ),
    ),
    "stop in mid-batch with a second consumer waiting": Row(
        (
            "test_endings::test_locks_of_a_query_stopped_while_its_code_runs_live_on_for_the_executors",
        ),
    ),
    "SIGSTOP of the reader past the lease": Row(
        ("test_endings::test_a_reader_frozen_longer_than_its_lease_fails_the_query",),
    ),
    "offset text stable across dict orders": Row(
        ("test_stream_source::test_offset_texts_are_canonical_and_an_idle_query_makes_no_batch",),
    ),
    "worker idle for 75 s": Row(
        ("test_executors::test_a_stream_continues_in_workers_without_its_earlier_batches",),
        ("test_executors::test_a_stream_continues_after_its_idle_workers_were_killed",),
    ),
    "CREATE TABLE without options gives a helpful error": Row(
        (
            "test_batch_source::test_the_error_for_a_table_without_options_names_the_ways_to_give_them",
        ),
    ),
    "validateSchema both ways": Row(
        (
            "test_apply_in_order::test_output_columns_are_found_by_name_and_cast_with_and_without_validate_schema",
        ),
    ),
}
