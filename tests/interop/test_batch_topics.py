"""Topics whose brokers store what the sink sends in a request as one record (docs/spark.md)."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from ordermq import Admin, ConsumeResult, PullConsumer, PushConsumer
from ordermq.errors import RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import dead_letter_topic
from ordermq.spark.options import SinkOptions, SourceOptions
from ordermq.spark.session import shared_session
from ordermq.spark.sink.block_sender import block_sender
from ordermq.spark.sink.row_encoder import RowEncoder
from ordermq.spark.source.queue_reader import QueueRange, read_ranges
from tests.interop.cluster import DEADLINE_S, Cluster, eventually
from tests.interop.run import MEMBER_SETTINGS, Run

ROWS, KEYS = 6_000, 16


@pytest.fixture(autouse=True)
def requires_batch_topics(cluster: Cluster) -> None:
    if cluster.version.startswith("4."):
        pytest.skip("batch topics came with RocketMQ 5")


def write(run: Run, **more: list[str]) -> dict[MessageQueue, int]:
    """Write rows as Spark's sink does, 1,000 a request; return the ends of the queues."""
    servers = run.cluster.name_servers
    with Admin(servers) as admin:
        admin.create_topic(run.topic, 2, brokers=["broker-a"], stores_batches=True)
    columns = ["sharding_key", "body", *more]
    options = SinkOptions.of({"name_servers": servers, "topic": run.topic}, dict.fromkeys(columns))
    sender = block_sender(servers, options.config, options.group, options.selector)
    encoder = RowEncoder(options, columns, sender.queues, ("query", 0), 0)
    for first in range(0, ROWS, 2_000):
        numbers = range(first, first + 2_000)
        keys = [f"k{number % KEYS}" for number in numbers]
        values = {"sharding_key": keys, "body": [str(number).encode() for number in numbers]}
        more_values = {name: texts * len(numbers) for name, texts in more.items()}
        with sender.stream(is_bulk=encoder.is_bulk) as stream:
            stream.send(encoder.encode(pa.RecordBatch.from_pydict(values | more_values)))
    run.sent = ROWS
    ends: dict[MessageQueue, int] = {}

    def are_all_there() -> bool:  # a broker indexes behind its answers
        ends.update((queue, found.end) for queue, found in admin.topic(run.topic).queues.items())
        return sum(ends.values()) == ROWS

    with Admin(servers) as admin:
        eventually(are_all_there, "all rows")
    return ends


def test_members_stop_and_go_on_within_a_record(run: Run) -> None:
    ends = write(run)
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as puller:
        for queue, end in ends.items():
            found = puller.pull(queue, "*", 700, 32)
            # All of the record that is left, and more than 32: it is stored as one.
            assert [message.queue_offset for message in found.messages] == list(
                range(700, found.next_begin_offset)
            )
            assert 32 < len(found.messages) < end - 700
            message = found.messages[3]
            with Admin(run.cluster.name_servers) as admin:
                at = admin.find_messages(run.topic, message_id=message.offset_message_id, count=5)
            # A place in a broker's log has a record.
            assert [each.message.queue_offset for each in at] == list(
                range(at[0].message.queue_offset, at[0].message.queue_offset + 5)
            )
            assert at[0].message.offset_message_id == message.offset_message_id
    listen = run.listener("one")

    def stop_half_way(messages: Any, context: Any) -> ConsumeResult | None:
        if run.count_of("one") > ROWS // 2:
            return ConsumeResult.SUSPEND
        listen(messages, context)
        return None

    one = PushConsumer(
        run.group,
        name_servers=run.cluster.name_servers,
        **MEMBER_SETTINGS | {"consume_message_batch_max_size": 7},
    )
    one.subscribe(run.topic)
    one.orderly(stop_half_way)
    with one:  # it may have stopped before anybody counts
        eventually(lambda: run.count_of("one") > ROWS // 2, "half of the rows")
    assert run.count_of("one") < ROWS
    java = run.java_member("java")
    run.wait_for_more(ROWS // 10, "java")
    java.leave()
    run.member("two")
    run.wait_for_all()
    run.assert_keys_in_order()
    assert {int(one.body) for one in run.deliveries} == set(range(ROWS))


def test_tasks_read_ranges_that_begin_and_end_within_a_record(run: Run) -> None:
    ends = write(run)
    given = {"name_servers": run.cluster.name_servers, "topic": run.topic}
    options = SourceOptions.of(given | {"columns": "queue_id,offset,sharding_key,body"})
    session = shared_session(options.name_servers, options.remoting)
    bodies: list[bytes] = []
    for queue, end in ends.items():
        for low in range(0, end, 350):
            high = min(low + 350, end)
            rows = [
                row
                for batch in read_ranges(session, options, [range_of(queue, low, high)])
                for row in batch.to_pylist()
            ]
            assert [row["offset"] for row in rows] == list(range(low, high))
            bodies += [row["body"] for row in rows]
    assert sorted(map(int, bodies)) == list(range(ROWS))


def range_of(queue: MessageQueue, low: int, high: int) -> QueueRange:
    return QueueRange(queue.topic, queue.broker_name, queue.queue_id, low, high)


def test_rows_with_tags_are_records_of_their_own_and_found_by_them(run: Run) -> None:
    write(run, tags=["paid"])
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as puller:
        queue = puller.fetch_subscribe_message_queues(run.topic)[0]
        assert len(puller.pull(queue, "paid", 0, 32).messages) == 32
        assert len(puller.pull(queue, "open", 0, 32).messages) == 0


def test_members_that_pop_say_that_the_topic_is_to_be_pulled(run: Run) -> None:
    write(run)
    consumer = PushConsumer(
        run.group,
        name_servers=run.cluster.name_servers,
        consume_mode="pop",
        consume_from_where="first_offset",
    )
    consumer.subscribe(run.topic)
    consumer.orderly(run.listener("popping"))
    with consumer:
        eventually(
            lambda: any("consume_mode='pull'" in text for text in consumer.health().reasons),
            "its health tells of it",
        )
    assert not run.deliveries


@pytest.mark.parametrize("way", ["orderly", "concurrently"])
def test_a_message_of_a_record_becomes_a_dead_letter_alone(run: Run, way: str) -> None:
    write(run)
    poison = {7, 2_500, 5_999}
    seen = threading.Semaphore(0)

    def listen(messages: Any, context: Any) -> None:
        for message in messages:
            if int(bytes(message.body)) in poison:
                raise ValueError("a test's own failure")
            seen.release()

    consumer = PushConsumer(
        run.group,
        name_servers=run.cluster.name_servers,
        consume_from_where="first_offset",
        consume_message_batch_max_size=1,
        **({"max_attempts": 1} if way == "orderly" else {"max_reconsume_times": 0}),
    )
    consumer.subscribe(run.topic)
    getattr(consumer, way)(listen)
    with consumer, Admin(run.cluster.name_servers) as admin:
        for _ in range(ROWS - len(poison)):
            assert seen.acquire(timeout=DEADLINE_S)

        def dead() -> list[int]:
            try:
                found = admin.peek(dead_letter_topic(run.group), start="first")
            except RouteError:
                return []  # its broker makes it with the first one
            return sorted(int(bytes(message.body)) for message in found)

        eventually(lambda: dead() == sorted(poison), "its dead letters")
        assert consumer.health().is_ready
