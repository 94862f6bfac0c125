"""Messages a second and milliseconds a call, over the last minute
(docs/internals/semantics.md#admin-requests)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ordermq
from ordermq.clock import ManualClock
from ordermq.consumer.queue.statistics import COUNTERS, ConsumerStatistics, QueueCounts
from ordermq.model.message_queue import MessageQueue

QUEUE = MessageQueue("orders", "b", 3)


def test_throughput_is_averaged_over_at_most_a_minute() -> None:
    clock = ManualClock(1_000_000)
    statistics = ConsumerStatistics(clock)
    for _ in range(30):
        statistics.consumed(QUEUE, 10, 1, 5, 20)
        statistics.pulled(QUEUE, 11, clock.now_ms() - 3)
        clock.advance(1_000)
    rates = statistics.rates("orders")
    assert (rates.consume_ok_tps, rates.consume_failed_tps) == (10.0, 1.0)
    assert (rates.pull_tps, rates.pull_rt_ms) == (11.0, 3.0)
    assert rates.consume_rt_ms == 4.0
    assert rates.consume_failed_messages == 30


def test_throughput_ignores_counts_older_than_a_minute_but_failures_count_for_an_hour() -> None:
    clock = ManualClock(1_000_000)
    statistics = ConsumerStatistics(clock)
    statistics.consumed(QUEUE, 600, 7, 1, 50)
    clock.advance(70_000)
    rates = statistics.rates("orders")
    assert (rates.consume_ok_tps, rates.consume_rt_ms) == (0.0, 0.0)
    assert rates.consume_failed_messages == 7
    clock.advance(3_600_000)
    assert statistics.rates("orders").consume_failed_messages == 0


def test_topics_are_counted_apart_and_an_unknown_one_is_all_zero() -> None:
    statistics = ConsumerStatistics(ManualClock())
    statistics.consumed(MessageQueue("a", "b", 0), 1, 0, 1, 0)
    assert statistics.topics() == ["a"]
    assert statistics.rates("b").consume_ok_tps == 0.0
    assert statistics["messages_done"] == statistics["batches"] == 1


def test_a_counter_begins_at_zero_and_another_name_raises_with_the_nearest_one() -> None:
    statistics = ConsumerStatistics(ManualClock())
    assert statistics["listener_errors"] == 0
    with pytest.raises(KeyError, match="no counter 'listner_errors'; did you mean 'listener_erro"):
        statistics["listner_errors"]
    for read in (dict, list, lambda counters: "pulls" in counters):
        with pytest.raises(TypeError, match=r"all by as_dict\(\)"):
            read(statistics)  # type: ignore[operator]
    with pytest.raises(KeyError, match="no counter 'no_such'"):
        statistics["no_such"]


def test_every_name_that_the_code_counts_is_a_counter() -> None:
    code = "".join(path.read_text() for path in Path(ordermq.__file__).parent.rglob("*.py"))
    counted = set(re.findall(r'tatistics\.add\(\s*"(\w+)"', code))
    counted |= set(re.findall(r'_counts\["(\w+)"\]', code))
    assert len(counted) > 20
    assert counted <= COUNTERS


def test_every_counter_and_state_is_explained() -> None:
    explained = set(re.findall(r"\w+", str(ConsumerStatistics.__doc__)))
    assert set(ConsumerStatistics().as_dict()) | COUNTERS <= explained


def test_a_queue_has_totals_of_its_own() -> None:
    statistics = ConsumerStatistics(ManualClock())
    statistics.consumed(QUEUE, 5, 1, 2, 3)
    statistics.consumed(QUEUE, 2, 0, 1, 3)
    statistics.add("hand_offs", queue=QUEUE)
    statistics.add("hand_offs")
    statistics.committed(MessageQueue("a", "b", 0), 0)
    found = statistics.of_queues()
    assert found == {
        QUEUE: QueueCounts(messages_done=7, messages_failed=1, hand_offs=1),
        MessageQueue("a", "b", 0): QueueCounts(commits=1),
    }
    statistics.consumed(QUEUE, 1, 0, 1, 0)
    assert found[QUEUE].messages_done == 7, "a copy"
    assert (statistics["hand_offs"], statistics["commits"]) == (2, 1)


def test_durations_of_pulls_and_commits_are_kept_by_topic() -> None:
    statistics = ConsumerStatistics(ManualClock(1_000))
    statistics.pulled(QUEUE, 1, 990)
    statistics.pulled_many(QUEUE, 2, 9, 300, [0, 0, 0, 0, 0, 0, 2, *[0] * 8])
    statistics.committed(QUEUE, 997)
    found = {kind: counts.read() for kind, counts in statistics.durations().items()}
    pulls = (0, 1, 0, 0, 0, 0, 2, *[0] * 8)
    assert found == {
        ("receive", QUEUE.topic): (pulls, 310_000_000),
        ("commit", QUEUE.topic): ((1, *[0] * 14), 3_000_000),
    }
