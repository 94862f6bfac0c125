"""Which tests make the short leg, and which only the long one runs: the one list of it.

The short leg (ci/spark.sh, in ci/test.sh too) is every test but those of `LONG`; `ci/spark.sh
--long` is all. `MUST_EXIST` is what spark.md asks for, row by row, with at least one test of the
short leg each, the cheapest that shows it. tests/architecture/test_spark_legs.py holds both lists
to the files.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Programs and clusters of their own, locks and workers that must expire, and tests whose plan
# another one of the short leg has run already.
LONG: Final[dict[str, tuple[str, ...]]] = {
    "test_endings": (
        "test_however_an_idle_program_ends_its_locks_are_given_up",
        "test_however_a_busy_program_ends_its_locks_are_kept",
    ),
    "test_executors": (
        "test_two_executors_keep_the_order_and_failed_tasks_lose_nothing",
        "test_two_attempts_at_once_on_two_hosts_write_repeats_that_a_reader_drops",
        "test_a_stream_goes_on_after_its_idle_workers_were_killed",
    ),
    "test_order_after_shuffles": (
        "test_a_shuffle_that_spills_breaks_sparks_groups_and_not_our_stages",
        "test_a_stream_by_key_is_in_order_although_its_shuffle_spills",
        "test_a_task_that_is_run_again_gives_each_row_once_and_knows_its_attempt",
        "test_order_holds_on_two_hosts_where_blocks_arrive_in_any_order",
    ),
    "test_failure_policy": ("test_a_stage_with_state_keeps_a_parked_key_in_its_state",),
    "test_apply_with_state": (
        "test_a_restarted_query_goes_on_with_its_state",
        "test_a_batch_query_has_state_too",
        "test_a_state_that_is_forgotten_begins_anew",
    ),
    "test_sink": (
        "test_repeats_are_dropped_across_micro_batches_by_a_cursor",
        "test_by_target_queue_sorts_a_stream_for_the_sink",
    ),
    "test_standalone": (
        "test_the_flights_on_a_standalone_cluster_equal_pandas_and_nothing_stays_behind",
    ),
}


class Row(NamedTuple):
    """Tests of a row, as file::name."""

    short: tuple[str, ...]
    long: tuple[str, ...] = ()


MUST_EXIST: Final[dict[str, Row]] = {
    "kill matrix, lock state read at the broker": Row(
        (
            "test_endings::test_a_stopped_idle_query_gives_its_locks_up",
            "test_endings::test_a_query_that_came_to_its_end_gives_its_locks_up",
            "test_endings::test_a_query_whose_batch_failed_keeps_its_locks",
            "test_endings::test_a_killed_reader_ends_the_query_and_its_locks_stay",
        ),
        (
            "test_endings::test_however_an_idle_program_ends_its_locks_are_given_up",
            "test_endings::test_however_a_busy_program_ends_its_locks_are_kept",
        ),
    ),
    "restart in mid-batch: the same range, partitions first": Row(
        ("test_stream_source::test_a_batch_that_failed_is_read_again_with_the_same_range",),
    ),
    "order where a shuffle spills, and on two hosts": Row(
        ("test_apply_in_order::test_a_sort_that_spills_breaks_sparks_groups_and_not_our_stage",),
        (
            "test_order_after_shuffles::"
            "test_a_shuffle_that_spills_breaks_sparks_groups_and_not_our_stages",
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
            "test_a_task_that_is_run_again_gives_each_row_once_and_knows_its_attempt",
            "test_executors::test_two_executors_keep_the_order_and_failed_tasks_lose_nothing",
            "test_executors::"
            "test_two_attempts_at_once_on_two_hosts_write_repeats_that_a_reader_drops",
        ),
    ),
    "stop in mid-batch with a second consumer waiting": Row(
        ("test_endings::test_nobody_else_gets_a_message_while_a_stopped_querys_code_still_runs",),
    ),
    "SIGSTOP of the reader past the lease": Row(
        ("test_endings::test_a_reader_that_was_frozen_past_its_lease_ends_the_query",),
    ),
    "offset text stable across dict orders": Row(
        ("test_stream_source::test_offset_texts_are_canonical_and_an_idle_query_makes_no_batch",),
    ),
    "worker idle for 75 s": Row(
        ("test_executors::test_a_stream_goes_on_in_workers_that_saw_none_of_its_batches_before",),
        ("test_executors::test_a_stream_goes_on_after_its_idle_workers_were_killed",),
    ),
    "CREATE TABLE without options gives a helpful error": Row(
        ("test_batch_source::test_a_table_without_options_says_how_to_give_them",),
    ),
    "validateSchema both ways": Row(
        ("test_apply_in_order::test_columns_are_found_by_name_and_cast_whatever_spark_validates",),
    ),
}
