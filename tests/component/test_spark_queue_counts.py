"""Another number of queues under keyed state, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq.errors import OrderingError
from ordermq.spark.stages import queue_counts
from ordermq.spark.stages.queue_counts import check_queue_counts
from ordermq.spark.stages.state_store import StateFolder
from tests.component.name_server import NameServer


class Topic:
    """The topic "orders" at brokers that need not run: only its route counts."""

    def __init__(self, folder: Path) -> None:
        self.names = NameServer()
        self._folder = folder
        (folder / "query/state").mkdir(parents=True)

    def has(self, **counts: int) -> None:
        for name in "abc":
            self.names.forget(name)
        for name, count in counts.items():
            self.names.tell(name, "127.0.0.1:9", "orders", count)

    def check(self, *, may_change: bool = False, is_new_worker: bool = False) -> None:
        if is_new_worker:
            queue_counts._seen.clear()
        folder = StateFolder(str(self._folder), "state", "query")
        client = {"name_servers": self.names.address, "group": "g"}
        check_queue_counts(folder, client, "orders", may_change=may_change)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    made = Topic(tmp_path)
    yield made
    made.names.close()


@pytest.mark.parametrize("is_new_worker", [True, False])
@pytest.mark.parametrize("counts", [{"a": 2, "b": 6}, {"a": 2, "b": 3}, {"a": 2, "c": 4}])
def test_more_and_fewer_queues_and_brokers_are_refused_until_they_are_allowed(
    topic, counts, is_new_worker, caplog
):
    topic.has(a=2, b=4)
    topic.check()
    topic.has(**counts)
    for _ in range(2):
        with pytest.raises(OrderingError, match=r"instead of 2 at a, 4 at b: use a new topic"):
            topic.check(is_new_worker=is_new_worker)
    with caplog.at_level(logging.WARNING):
        topic.check(may_change=True, is_new_worker=is_new_worker)
    assert "keys that have moved begin without state" in caplog.text
    topic.check(is_new_worker=is_new_worker)


def test_a_broker_that_is_away_for_a_while_changes_nothing(topic):
    topic.has(a=2, b=4)
    topic.check()
    topic.has(a=2)
    topic.check()
    topic.has(a=2, b=4)
    topic.check(is_new_worker=True)


def test_a_name_server_that_is_away_is_told_and_the_next_task_asks_again(topic, caplog):
    topic.has(a=2)
    topic.check()
    topic.names.close()
    with caplog.at_level(logging.WARNING):
        topic.check()
        topic.check()
    assert caplog.text.count("topic orders: not known whether it has other queues now") == 1
