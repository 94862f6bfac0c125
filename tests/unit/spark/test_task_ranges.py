"""Queues packed into tasks, and ranges cut into parts."""

import random

from hypothesis import given
from hypothesis import strategies as st

from ordermq.model.message_queue import MessageQueue
from ordermq.spark.source.task_ranges import pack, split, task_count

ranges = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(1, 5_000)), min_size=1, max_size=60
).map(
    lambda spans: [
        (MessageQueue("t", "b", number), start, start + size)
        for number, (start, size) in enumerate(spans)
    ]
)


@given(ranges, st.integers(1, 80), st.randoms(use_true_random=False))
def test_every_queue_is_whole_in_one_task_whatever_the_order_of_the_ranges(found, tasks, draw):
    packed = pack(found, tasks)
    assert len(packed) == min(tasks, len(found))
    assert all(packed)
    assert sorted(each for task in packed for each in task) == found
    assert all(task == sorted(task) for task in packed)
    shuffled = list(found)
    draw.shuffle(shuffled)
    assert pack(shuffled, tasks) == packed


@given(ranges, st.integers(1, 20))
def test_no_task_has_more_rows_than_another_by_more_than_its_largest_queue(found, tasks):
    packed = pack(found, tasks)
    # With the cost of a queue counted in, as the packing does.
    loads = [sum(end - start + 200 for _, start, end in task) for task in packed]
    largest = max(end - start + 200 for _, start, end in found)
    assert max(loads) - min(loads) <= largest


def test_without_a_number_each_queue_has_a_task_of_its_own():
    found = [(MessageQueue("t", "b", number), 0, 5) for number in range(7)]
    assert pack(found, None) == [[each] for each in found]


def test_the_default_follows_the_cores_and_the_backlog_and_never_exceeds_the_queues():
    def queues(count, rows):
        return [(MessageQueue("t", "b", number), 0, rows) for number in range(count)]

    assert task_count(queues(3, 10), None) == 3
    few, many = task_count(queues(5_000, 10), None), task_count(queues(5_000, 100_000), None)
    assert 4 <= few < many == 5_000
    assert task_count(queues(5_000, 10), 7) == 7
    assert task_count(queues(5, 10), 7) == 5


@given(ranges, st.integers(1, 200))
def test_parts_cover_each_range_exactly(found, parts):
    cut = split(found, parts)
    rows = sum(end - start for _, start, end in found)
    assert len(cut) >= min(parts, rows)
    assert all(start < end for _, start, end in cut)
    random.Random(1).shuffle(cut)
    for queue, start, end in found:
        at = start
        for _, low, high in sorted(each for each in cut if each[0] == queue):
            assert low == at
            at = high
        assert at == end
