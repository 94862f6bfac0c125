"""Messages a second and milliseconds a call, over the last minute
(docs/internals/semantics.md#admin-requests)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ordermq
from ordermq.clock import ManualClock
from ordermq.consumer.queue.statistics import COUNTERS, ConsumerStatistics


def test_throughput_is_averaged_over_at_most_a_minute() -> None:
    clock = ManualClock(1_000_000)
    statistics = ConsumerStatistics(clock)
    for _ in range(30):
        statistics.consumed("orders", 10, 1, 5, 20)
        statistics.pulled("orders", 11, clock.now_ms() - 3)
        clock.advance(1_000)
    rates = statistics.rates("orders")
    assert (rates.consume_ok_tps, rates.consume_failed_tps) == (10.0, 1.0)
    assert (rates.pull_tps, rates.pull_rt_ms) == (11.0, 3.0)
    assert rates.consume_rt_ms == 4.0
    assert rates.consume_failed_messages == 30


def test_throughput_ignores_counts_older_than_a_minute_but_failures_count_for_an_hour() -> None:
    clock = ManualClock(1_000_000)
    statistics = ConsumerStatistics(clock)
    statistics.consumed("orders", 600, 7, 1, 50)
    clock.advance(70_000)
    rates = statistics.rates("orders")
    assert (rates.consume_ok_tps, rates.consume_rt_ms) == (0.0, 0.0)
    assert rates.consume_failed_messages == 7
    clock.advance(3_600_000)
    assert statistics.rates("orders").consume_failed_messages == 0


def test_topics_are_counted_apart_and_an_unknown_one_is_all_zero() -> None:
    statistics = ConsumerStatistics(ManualClock())
    statistics.consumed("a", 1, 0, 1, 0)
    assert statistics.topics() == ["a"]
    assert statistics.rates("b").consume_ok_tps == 0.0
    assert statistics["messages_done"] == statistics["batches"] == 1


def test_a_counter_begins_at_zero_and_another_name_raises_with_the_nearest_one() -> None:
    statistics = ConsumerStatistics(ManualClock())
    assert statistics["listener_errors"] == 0
    with pytest.raises(KeyError, match="no counter 'listner_errors'; did you mean 'listener_erro"):
        statistics["listner_errors"]
    with pytest.raises(KeyError, match="no counter 'no_such'"):
        statistics["no_such"]


def test_every_name_that_the_code_counts_is_a_counter() -> None:
    code = "".join(path.read_text() for path in Path(ordermq.__file__).parent.rglob("*.py"))
    counted = set(re.findall(r'tatistics\.add\(\s*"(\w+)"', code))
    counted |= set(re.findall(r'_counts\["(\w+)"\]', code))
    assert len(counted) > 20
    assert counted <= COUNTERS
