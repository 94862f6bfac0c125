"""Keyed state on a topic that gets more queues: keys move away from their states."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from ordermq import Message, Producer
from ordermq.admin.admin import Admin
from ordermq.spark import apply_with_keyed_state
from ordermq.spark.versions import END_OF_AVAILABLE_NOW
from tests.spark.conftest import DEADLINE_S, Broker, needs

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests

KEYS = 8


def count(rows: Any, states: Any) -> Any:
    keys = rows["sharding_key"]
    rows["n"] = keys.map(states["n"]) + rows.groupby("sharding_key").cumcount() + 1
    states["n"] += rows.groupby("sharding_key", sort=False).size()
    return rows[["sharding_key", "n"]], states


@pytest.fixture
def counts(spark: Any, broker: Broker, tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Counts the messages of each key, and returns the highest count of each that a run gave."""

    def run(**more: Any) -> dict[str, int]:
        options = {"name_servers": broker.name_servers, "topic": "orders"}
        rows = spark.readStream.format("ordermq").options(**options).load()
        found: dict[str, int] = {}

        def take(batch: Any, number: int) -> None:
            for row in batch.collect():
                found[row.sharding_key] = max(found.get(row.sharding_key, 0), row.n)

        counted = apply_with_keyed_state(
            rows, count, "sharding_key STRING, n BIGINT", "n BIGINT", initial={"n": 0},
            directory=str(tmp_path / "states"), **more,
        )  # fmt: skip
        writer = counted.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(DEADLINE_S)
        return found

    return run


def send(broker: Broker) -> None:
    with Producer("p", name_servers=broker.name_servers) as producer:
        for number in range(5 * KEYS):
            producer.send(Message("orders", b"x"), sharding_key=f"k{number % KEYS}")


@needs(END_OF_AVAILABLE_NOW)  # before, a run reads the new queues a run later
def test_keys_that_would_leave_their_states_fail_the_query(
    broker: Broker, counts: Callable[..., dict[str, int]]
) -> None:
    with Admin(name_servers=broker.name_servers) as admin:
        admin.create_topic("orders", 2)
    send(broker)
    assert counts() == {f"k{n}": 5 for n in range(KEYS)}
    broker.widen("orders", 6)
    send(broker)
    with pytest.raises(Exception, match=r"6 at b instead of 2 at b: .*allow_queue_change=True"):
        counts()
    found = counts(allow_queue_change=True)
    assert sorted(set(found.values())) == [5, 10]  # those that have moved begin again
    send(broker)
    assert sorted(set(counts().values())) == [10, 15]  # the new number is the known one now
