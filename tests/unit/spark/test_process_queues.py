"""Process queues that a Spark worker keeps between tasks."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from ordermq.errors import OrderingError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.session import RunningTask
from ordermq.spark.stages.stage_invocation import ProcessQueues

QUEUE = MessageQueue("orders", "b", 0)
TASK = RunningTask("stage", "query", 7, 0, 0, 100)


def run(table: ProcessQueues, task: RunningTask, first: int, end: int) -> list[int]:
    """One task's rows through its process queue; the offsets taken."""
    process_queue = table.get(task, QUEUE, first, 0.0)
    process_queue.put_columns(array("q", range(first, end)), array("Q", range(end - first)))
    taken = list(process_queue.take_columns(100)[0])
    process_queue.commit()
    process_queue._check()
    return taken


def test_a_replayed_batch_goes_through_the_same_queue_again() -> None:
    table = ProcessQueues()
    assert run(table, TASK, 10, 20) == list(range(10, 20))
    # The same batch and attempt number, as after a restart from the checkpoint.
    assert run(table, replace(TASK, task_attempt=101), 10, 20) == list(range(10, 20))
    assert len(table) == 1


def test_later_rows_of_the_same_task_use_the_same_queue() -> None:
    table = ProcessQueues()
    assert run(table, TASK, 10, 20) + run(table, TASK, 20, 25) == list(range(10, 25))
    assert table.get(TASK, QUEUE, 25).next_uncommitted == 25


def test_a_later_batch_that_begins_before_the_end_of_an_earlier_one_is_refused() -> None:
    table = ProcessQueues()
    run(table, TASK, 10, 20)
    later = replace(TASK, batch_id=8, task_attempt=102)
    with pytest.raises(OrderingError, match="begins at offset 19, but batch 7 ended at 19"):
        run(table, later, 19, 25)
    assert run(table, later, 20, 25) == list(range(20, 25))


def test_two_stages_of_one_query_do_not_share_a_queue() -> None:
    table = ProcessQueues()
    assert run(table, TASK, 10, 20) == run(table, replace(TASK, stage="other"), 10, 20)
    assert len(table) == 2


def test_the_number_and_age_of_queues_are_bounded() -> None:
    table = ProcessQueues(max_queues=3, max_idle_s=60.0)
    for number in range(5):
        table.get(TASK, MessageQueue("orders", "b", number), 0, float(number))
    assert len(table) == 3
    table.get(TASK, MessageQueue("orders", "b", 9), 0, 63.5)
    assert len(table) == 2  # 2 and 3 were last used more than 60 s before
