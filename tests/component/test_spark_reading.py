"""Reading ranges of queues as an executor does, without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.client.session import ClientSession
from ordermq.config import RemotingConfig
from ordermq.errors import DataLoss, RequestTimeout
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.source import queue_reader
from ordermq.spark.source.queue_reader import QueueRange, read_ranges

Read = Callable[..., pa.Table]


@pytest.fixture
def session(broker: EmbeddedBroker) -> Iterator[ClientSession]:
    made = ClientSession(broker.name_servers, RemotingConfig(offset_timeout_ms=5_000))
    yield made
    made.close()


@pytest.fixture
def batches(broker: EmbeddedBroker, session: ClientSession) -> Callable[..., Iterator[Any]]:
    """The record batches of these ranges of "orders", as (queue, start, end)."""

    def read(ranges: list[tuple[int, int, int]], **more: str) -> Iterator[Any]:
        given = {"name_servers": broker.name_servers, "topic": "orders"} | more
        wanted = [QueueRange("orders", "b", queue, start, end) for queue, start, end in ranges]
        return read_ranges(session, SourceOptions.of(given), wanted)

    return read


def fill(producer: Producer, sizes: dict[int, int], body: Callable[[int], bytes]) -> None:
    producer.send(Message("orders", body(0)), queue=MessageQueue("orders", "b", 0))
    for number, count in sizes.items():
        queue = MessageQueue("orders", "b", number)
        for first in range(number == 0, count, 100):
            numbers = range(first, min(first + 100, count))
            producer.send_batch([Message("orders", body(n)) for n in numbers], queue=queue)


def limit_answers(session: ClientSession, most: int) -> list[int]:
    """Let the broker answer with at most so many messages; returns the pulls under way."""
    pull, under_way, counts = session.api.pull, 0, []

    async def limited(address: str, header: Any, timeout_ms: int) -> Any:
        nonlocal under_way
        header.max_messages = min(header.max_messages, most)
        under_way += 1
        counts.append(under_way)
        try:
            return await pull(address, header, timeout_ms)
        finally:
            under_way -= 1

    session.api.pull = limited  # type: ignore[method-assign]
    return counts


def places(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["queue_id"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_a_task_reads_its_queues_whole_and_one_after_the_other(producer, batches):
    sizes = {0: 250, 1: 1, 3: 600, 4: 30, 5: 90, 6: 400, 7: 3}
    fill(producer, sizes, lambda n: b"%d" % n)
    ranges = [(queue, 0, count) for queue, count in sizes.items()]
    few = list(batches(ranges))
    assert len(few) == 1  # small ones are joined
    table = pa.Table.from_batches(batches(ranges, arrow_batch_rows="64"))
    assert pa.Table.from_batches(few).combine_chunks().equals(table.combine_chunks())
    assert places(table) == [(q, n) for q, count in sizes.items() for n in range(count)]
    assert [int(body) for body in table["body"].to_pylist()] == [n for _, n in places(table)]


def test_several_pulls_of_a_queue_are_under_way_at_once(producer, batches, session):
    fill(producer, {1: 3_000}, lambda n: b"%d" % n)
    counts = limit_answers(session, 32)
    table = pa.Table.from_batches(batches([(1, 5, 2_995)], arrow_batch_rows="1000"))
    assert places(table) == [(1, n) for n in range(5, 2_995)]
    assert max(counts) == 16 + 1
    # Nothing is pulled twice: one longer pull tells how far an answer goes, in each chunk.
    assert len(counts) <= 3 * (1_000 // 32 + 2)


@pytest.mark.parametrize("seed", range(3))
def test_answers_cut_short_by_their_size_leave_no_gap(producer, batches, seed):
    draw = random.Random(seed)
    bodies = [b"x" * draw.choice((1, 10, 700, 3_000)) for _ in range(900)]
    fill(producer, {2: 900}, lambda n: bodies[n])
    table = pa.Table.from_batches(
        batches([(2, 0, 900)], pull_batch_bytes="4096", arrow_batch_rows="200")
    )
    assert places(table) == [(2, n) for n in range(900)]
    assert table["body"].to_pylist() == bodies


def test_a_tag_filter_reads_one_pull_after_the_other(producer, batches, session):
    queue = MessageQueue("orders", "b", 0)
    producer.send(Message("orders", b"0", tags="a"), queue=queue)
    for n in range(1, 400):
        producer.send(Message("orders", b"%d" % n, tags="ab"[n % 2]), queue=queue)
    counts = limit_answers(session, 32)
    table = pa.Table.from_batches(batches([(0, 0, 400)], tags="a"))
    assert [int(body) for body in table["body"].to_pylist()] == list(range(0, 400, 2))
    assert max(counts) == 1


def test_pulls_that_fail_are_sent_again_and_no_message_is_missing(producer, batches, session):
    fill(producer, {1: 1_000, 2: 1_000}, lambda n: b"%d" % n)
    pull, asked, draw = session.api.pull, 0, random.Random(4)

    async def failing(address: str, header: Any, timeout_ms: int) -> Any:
        nonlocal asked
        asked += 1
        header.max_messages = min(header.max_messages, 50)
        if asked < 30 and draw.random() < 0.2:
            raise RequestTimeout("no answer", address=address)
        return await pull(address, header, timeout_ms)

    session.api.pull = failing  # type: ignore[method-assign]
    table = pa.Table.from_batches(batches([(1, 0, 1_000), (2, 0, 1_000)]))
    assert places(table) == [(q, n) for q in (1, 2) for n in range(1_000)]


def test_damaged_answers_are_pulled_again_until_a_chunk_comes_whole(
    producer, batches, session, monkeypatch
):
    monkeypatch.setattr(queue_reader, "_RETRY_MS", 1)
    fill(producer, {1: 1_000}, lambda n: b"%d" % n)
    pull, draw, rows = session.api.pull, random.Random(4), []

    async def damaging(address: str, header: Any, timeout_ms: int) -> Any:
        header.max_messages = min(header.max_messages, 8)
        code, reply, body = await pull(address, header, timeout_ms)
        rows.append(header.max_messages)
        if draw.random() < 0.2:
            body = bytes(body[:4]) + bytes(4) + bytes(body[8:])  # no record's magic number
        return code, reply, body

    session.api.pull = damaging  # type: ignore[method-assign]
    # All 125 answers are whole once in a million million reads.
    table = pa.Table.from_batches(batches([(1, 0, 1_000)], read_timeout_ms="20000"))
    assert places(table) == [(1, n) for n in range(1_000)]
    assert [int(body) for body in table["body"].to_pylist()] == list(range(1_000))
    assert sum(rows) < 20_000  # and most of what came whole was kept


def test_messages_missing_at_the_end_of_a_queue_are_an_error(producer, batches):
    fill(producer, {1: 100}, lambda n: b"%d" % n)
    with pytest.raises(DataLoss, match=r"the queue ends at offset 100.*queue_id=1"):
        list(batches([(1, 0, 120)], read_timeout_ms="1"))
    rows = pa.Table.from_batches(
        batches([(1, 0, 120)], read_timeout_ms="1", fail_on_data_loss="false")
    )
    assert places(rows) == [(1, n) for n in range(100)]


def test_a_read_that_ends_early_leaves_no_pull_behind(producer, batches, session):
    fill(producer, dict.fromkeys(range(8), 200), lambda n: b"%d" % n)
    reading = batches([(n, 0, 200) for n in range(8)], pull_batch_size="10")
    assert next(reading).num_rows
    reading.close()
    assert session.api  # the fixture's close waits for what is under way
