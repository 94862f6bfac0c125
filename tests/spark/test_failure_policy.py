"""Rows on which a stage's function fails, and queues whose lock is lost."""

from __future__ import annotations

import sys
import threading
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import eventually
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType
from test_apply_in_order import frame, run_stream, stream

from ordermq.broker import EmbeddedBroker
from ordermq.client.session import ClientSession
from ordermq.config import RemotingConfig
from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark import DeadLetter, ParkKey, apply_in_order, apply_with_state, unpark
from ordermq.spark.row_order import RowOrigins
from ordermq.spark.schema import ORIGIN_COLUMNS
from ordermq.spark.session import lease_client_id
from ordermq.spark.stages import failure_policy
from ordermq.spark.stages.apply_with_state import (
    _Frames,
    _FramesOfRows,
    _KeyProcessor,
    _RowForm,
    _StateKind,
)
from ordermq.spark.stages.failure_policy import ParkedKeys
from ordermq.spark.stages.output import OutputShape
from ordermq.spark.stages.stage_invocation import StageInvocation, StageSpec

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests

OUT = "queue_id int, offset bigint, sharding_key string"


def failing(*poisoned: int) -> Any:
    """A function that fails on offsets of queue 1."""

    def function(rows: Any) -> Any:
        wrong = [
            place["offset"]
            for place in rows.select(["queue_id", "offset"]).to_pylist()
            if place["queue_id"] == 1 and place["offset"] in poisoned
        ]
        if wrong:
            raise ValueError(f"poisoned {wrong[0]}")
        return rows.select(["queue_id", "offset", "sharding_key"])

    return function


def letters(spark: SparkSession, broker: EmbeddedBroker) -> list[Any]:
    import ordermq.spark

    ordermq.spark.register(spark)
    options = {"name_servers": broker.name_servers, "topic": "dead"}
    return spark.read.format("ordermq").options(**options).load().collect()


def test_a_failing_row_fails_the_query_and_is_named(spark: SparkSession) -> None:
    stage = apply_in_order(frame(spark), failing(37), OUT, engine="arrow", rows_per_call=1)
    with pytest.raises(Exception, match="FunctionFailed") as caught:
        stage.collect()
    for word in ("offset 37", "ValueError: poisoned 37", "queue_id=1", "DeadLetter(topic)"):
        assert word in str(caught.value)


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_failing_rows_go_to_the_dead_letter_topic_and_the_others_are_processed(
    spark: SparkSession, broker: EmbeddedBroker, max_in_flight: int
) -> None:
    counter = spark.sparkContext.accumulator(0)
    stage = apply_in_order(
        frame(spark),
        failing(0, 37, 38, 99),
        OUT,
        engine="arrow",
        on_failure=DeadLetter("dead", counter=counter),
        max_in_flight=max_in_flight,
        client_options={"name_servers": broker.name_servers},
    )
    rows = stage.collect()
    assert [row.offset for row in rows if row.queue_id == 1] == [
        offset for offset in range(100) if offset not in (0, 37, 38, 99)
    ]
    assert len(rows) == 396
    found = letters(spark, broker)
    assert sorted(row.body for row in found) == [b"1-0", b"1-37", b"1-38", b"1-99"]
    one = next(row for row in found if row.body == b"1-37")
    assert one.properties["omq_failed_queue"] == "orders@b/1"
    assert one.properties["omq_failed_offset"] == "37"
    assert one.properties["omq_error"] == "poisoned 37"
    assert counter.value == 4


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_a_failing_row_parks_its_key_and_the_keys_later_rows_follow_it_in_order(
    spark: SparkSession, broker: EmbeddedBroker, max_in_flight: int
) -> None:
    stage = apply_in_order(
        frame(spark),
        failing(37),
        OUT,
        engine="arrow",
        on_failure=ParkKey("dead"),
        max_in_flight=max_in_flight,
        client_options={"name_servers": broker.name_servers},
    )
    rows = stage.collect()
    key = "k" + str(37 * 7 % 5 * 4 + 1)
    parked = [n for n in range(37, 100) if n * 7 % 5 == 37 * 7 % 5]
    assert [row.offset for row in rows if row.queue_id == 1] == [
        offset for offset in range(100) if offset not in parked
    ]
    found = sorted(letters(spark, broker), key=lambda row: (row.queue_id, row.offset))
    assert [row.body for row in found] == [f"1-{n}".encode() for n in parked]
    assert {row.sharding_key for row in found} == {key}
    assert "its key is parked since offset 37" in found[-1].properties["omq_error"]


def test_a_parked_key_stays_parked_in_later_micro_batches_until_it_is_unparked(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    directory = str(tmp_path / "parked")
    stage = apply_in_order(
        stream(spark),
        failing(7),
        OUT,
        engine="arrow",
        on_failure=ParkKey("dead", directory=directory),
        client_options={"name_servers": broker.name_servers},
    )
    rows = run_stream(stage, tmp_path / "checkpoint", "parking")
    parked = [n for n in range(7, 100) if n * 7 % 5 == 7 * 7 % 5]
    assert [row.offset for row in rows if row.queue_id == 1] == [
        offset for offset in range(100) if offset not in parked
    ]
    found = sorted(letters(spark, broker), key=lambda row: (row.queue_id, row.offset))
    assert [row.body for row in found] == [f"1-{n}".encode() for n in parked]
    known = ParkedKeys(directory)
    known.load()
    (key,) = known.keys
    assert unpark(directory, key)
    assert not unpark(directory, key)


def test_parking_in_a_stream_needs_a_directory(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="directory="):
        apply_in_order(stream(spark), failing(1), OUT, on_failure=ParkKey("dead"))


def test_a_stage_by_another_key_sends_failing_rows_to_the_dead_letter_topic(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    stage = apply_in_order(
        frame(spark),
        failing(37),
        OUT,
        key="plane",
        engine="arrow",
        on_failure=ParkKey("dead", key="plane"),
        client_options={"name_servers": broker.name_servers},
    )
    rows = stage.collect()
    plane = 37 * 5 % 7
    parked = [
        (queue, n)
        for queue in (1, 2, 3)
        for n in range(100)
        if n * 5 % 7 == plane and (queue > 1 or n >= 37)
    ]
    assert len(rows) == 400 - len(parked)
    assert Counter(bytes(row.body) for row in letters(spark, broker)) == Counter(
        f"{queue}-{n}".encode() for queue, n in parked
    )


def test_a_stage_with_state_keeps_a_parked_key_in_its_state(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    def function(rows: Any, state: Any) -> Any:
        if 7 in set(rows["offset"]):
            raise ValueError("poisoned 7")
        seen = (state or {"seen": 0})["seen"] + len(rows)
        return rows[["queue_id", "offset", "sharding_key"]], {"seen": seen}

    store = "spark.sql.streaming.stateStore.providerClass"
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set(store, rocks)
    try:
        stage = apply_with_state(
            stream(spark, queues=1),
            function,
            OUT,
            "seen bigint",
            on_failure=ParkKey("dead"),
            client_options={"name_servers": broker.name_servers},
        )
        rows = run_stream(stage, tmp_path, "parked_state")
    finally:
        spark.conf.unset(store)
    parked = [n for n in range(7, 100) if n * 7 % 5 == 7 * 7 % 5]
    assert sorted(row.offset for row in rows) == [n for n in range(100) if n not in parked]
    found = sorted(letters(spark, broker), key=lambda row: (row.queue_id, row.offset))
    assert [row.body for row in found] == [f"0-{n}".encode() for n in parked]


class StoredValue:
    """A key's value in Spark's store."""

    def __init__(self) -> None:
        self.value: Any = None

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value

    def getValueState(self, *_: Any) -> StoredValue:
        return self  # the handle, too, by which a stage finds it


@pytest.mark.parametrize("kind", [_RowForm, _FramesOfRows, _Frames])
def test_a_failed_call_leaves_no_trace_in_lists_and_maps_of_rows_and_state(kind: Any) -> None:
    """Without a session: the processor as Spark calls it."""
    attempts: list[int] = []

    def function(rows: Any, state: Any) -> Any:
        attempts.append(len(rows))
        found = state or {"seen": []}
        maps = [row.marks for row in rows] if kind is _RowForm else list(rows["marks"])
        for each in maps:
            found["seen"].append(each.pop("n"))
        if len(attempts) in (2, 3):
            raise ValueError("not yet")
        return None, found

    shape = StructType().add("topic", "string").add("broker", "string").add("queue_id", "integer")
    shape.add("offset", "long").add("marks", MapType(StringType(), LongType()))
    state = StructType().add("seen", ArrayType(LongType()))
    output = OutputShape(shape, "UTC")
    policy = DeadLetter("dead", max_attempts=3)
    spec = StageSpec(function, False, "pandas", output, "s", "", policy, None, None)
    kept = _StateKind(state, OutputShape(state, "UTC"))
    form = kind(shape, output, may_call_again=True)
    stage = _KeyProcessor(spec, form, ("topic", "broker", "queue_id", "offset"), kept, False, None)
    store = StoredValue()
    stage.init(store)  # type: ignore[arg-type]
    for numbers in ([0], [1, 2]):
        rows = [Row(*shape.names)("t", "b", 0, n, {"n": n}) for n in numbers]
        given = [pd.DataFrame(rows, columns=shape.names)] if kind is _Frames else rows
        assert not list(stage.handleInputRows(("k",), iter(given), None))
    assert attempts == [1, 2, 1, 1, 1]
    assert list(store.value[0]) == [0, 1, 2]


ROW = StructType().add("topic", "string").add("broker", "string").add("queue_id", "integer")
ROW.add("offset", "long").add("marks", ArrayType(LongType()))


def spec_of(function: Any, engine: Any, policy: DeadLetter) -> StageSpec:
    output = OutputShape(ROW, "UTC")
    stage = uuid.uuid4().hex  # as each stage has it: process queues are kept by it
    return StageSpec(function, False, engine, output, stage, "", policy, None, None)


def call_queue(spec: StageSpec, values: list[tuple[Any, ...]]) -> None:
    """Call a stage's function, which returns no rows, with rows of one queue."""
    schema = spec.output.schema
    rows = pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, each, strict=True)) for each in values], schema=schema
    )
    offsets = RowOrigins(rows).offsets
    queue = MessageQueue("t", "b", 0)
    assert not list(StageInvocation(spec).call_queue(rows, queue, offsets, 0, len(values)))


@pytest.mark.parametrize("kind", [_RowForm, _FramesOfRows, _Frames, None])
def test_each_failing_row_has_all_its_attempts(
    monkeypatch: pytest.MonkeyPatch, kind: type[_RowForm] | None
) -> None:
    """Without a session, as above; without a form it is a stage without state."""
    sent: list[int] = []
    monkeypatch.setattr(
        failure_policy, "send_dead_letter", lambda _, __, row, *more: sent.append(row["offset"])
    )
    calls: list[list[int]] = []

    def function(rows: Any, *state: Any) -> Any:
        if kind is None:
            offsets = rows.column("offset").to_pylist()
        else:
            offsets = [row.offset for row in rows] if kind is _RowForm else list(rows["offset"])
        calls.append(offsets)
        if offsets[0] < 2 and (len(offsets) > 1 or calls.count(offsets) == 1):
            raise ValueError("not yet")
        return (None, {"n": 1}) if state else None

    values = [("t", "b", 0, number, [number, number]) for number in range(6)]
    policy = DeadLetter("dead", max_attempts=2)
    if kind is None:
        call_queue(spec_of(function, "arrow", policy), values)
    else:
        form = kind(ROW, OutputShape(ROW, "UTC"), may_call_again=True)
        state = StructType().add("n", "long")
        spec = spec_of(function, "pandas", policy)
        kept = _StateKind(state, OutputShape(state, "UTC"))
        stage = _KeyProcessor(spec, form, ORIGIN_COLUMNS, kept, False, None)
        stage.init(StoredValue())  # type: ignore[arg-type]
        given: list[Any] = [Row(*ROW.names)(*each) for each in values]
        if kind is _Frames:
            given = [pd.DataFrame(values, columns=ROW.names)]
            given[0]["marks"] = given[0]["marks"].map(np.array)
        assert not list(stage.handleInputRows(("k",), iter(given), None))
    assert not sent
    assert [each for each in calls if len(each) == 1] == [[0], [0], [1], [1]]
    assert calls[-1] == [2, 3, 4, 5]  # whole again


def test_rows_of_a_parked_key_beside_a_failing_row_are_sent_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(
        failure_policy, "send_dead_letter", lambda _, __, row, *more: sent.append(row["offset"])
    )

    def function(rows: Any) -> Any:
        if {0, 13}.intersection(rows.column("offset").to_pylist()):
            raise ValueError("poisoned")

    values = [("t", "b", 0, number, "a" if number < 8 else "b") for number in range(16)]
    shape = StructType(ROW.fields[:-1]).add("sharding_key", "string")
    spec = spec_of(function, "arrow", ParkKey("dead"))
    call_queue(replace(spec, output=OutputShape(shape, "UTC")), values)
    assert sent == [*range(8), 13, 14, 15]


class Locks:
    """Takes and gives back a queue's lock at the broker, under any client id."""

    def __init__(self, name_servers: str, group: str) -> None:
        self._name_servers = name_servers
        self._group = group

    def lock(self, client_id: str, queue: MessageQueue) -> bool:
        async def ask(client: ClientSession, address: str) -> bool:
            return queue in (await client.api.lock(address, self._group, [queue])).granted

        return bool(self._run(client_id, queue, ask))

    def unlock(self, client_id: str, queue: MessageQueue) -> None:
        async def ask(client: ClientSession, address: str) -> None:
            await client.api.unlock(address, self._group, [queue], [0])

        self._run(client_id, queue, ask)

    def _run(self, client_id: str, queue: MessageQueue, ask: Any) -> Any:
        client = ClientSession(self._name_servers, RemotingConfig(), client_id)

        async def work() -> Any:
            return await ask(client, await client.address_of(queue))

        try:
            return client.call(work())
        finally:
            client.close()


def test_user_code_is_not_called_again_once_another_member_has_the_queue(
    spark: SparkSession, broker: EmbeddedBroker, producer: Any, tmp_path: Path
) -> None:
    from ordermq import Message

    producer.send(Message("orders", b"-"))  # the topic exists, and has a route
    calls, go = tmp_path / "calls", tmp_path / "go"

    def slow(rows: Any) -> Any:
        with calls.open("a") as log:
            log.write(f"{rows.column('offset')[0].as_py()}\n")
        if rows.column("offset")[0].as_py() == 50:
            waiting = threading.Event()
            while not go.exists():
                waiting.wait(0.01)
        return rows.select(["queue_id", "offset", "sharding_key"])

    queue = MessageQueue("orders", "b", 0)
    stage = apply_in_order(
        frame(spark, queues=1, lease=77),
        slow,
        OUT,
        engine="arrow",
        rows_per_call=10,
        client_options={"name_servers": broker.name_servers, "group": "etl"},
        fence_interval_ms=0,
    )
    failures: list[BaseException] = []

    def run() -> None:
        try:
            stage.collect()
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    locks = Locks(broker.name_servers, "etl")
    try:
        eventually(lambda: calls.exists() and "50" in calls.read_text(), "the call of offset 50")
        assert not locks.lock("other", queue)
        locks.unlock(lease_client_id("etl", 77), queue)  # as a driver that leaves
        assert locks.lock("other", queue)
    finally:
        go.touch()
        runner.join(60)
    assert calls.read_text().split() == ["0", "10", "20", "30", "40", "50"]
    assert "LockLost" in str(failures[0])
    assert "another member holds" in str(failures[0])


def test_the_lease_check_needs_the_group(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="client_options"):
        apply_in_order(frame(spark, lease=77), failing(), OUT)
    with pytest.raises(ConfigError, match="'group'"):
        options = {"name_servers": "127.0.0.1:1"}
        apply_in_order(frame(spark, lease=77), failing(), OUT, client_options=options)
