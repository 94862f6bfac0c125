"""Reading ranges of queues as an executor does, without Spark."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from ordermq import Message, Producer, core
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.client.queue_life import NewLife
from ordermq.client.session import ClientSession
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, DataLoss, ProtocolError, RequestTimeout, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command
from ordermq.spark.options import SourceOptions
from ordermq.spark.source import queue_reader
from ordermq.spark.source.queue_lives import QueueLives
from ordermq.spark.source.queue_reader import QueueRange, read_ranges
from tests.component.conftest import eventually
from tests.component.damaging_proxy import DamagingProxy

Read = Callable[..., pa.Table]
NO_MARKS: Mapping[int, str] = {}


@pytest.fixture
def session(broker: EmbeddedBroker) -> Iterator[ClientSession]:
    made = ClientSession(broker.name_servers, RemotingConfig(offset_timeout_ms=5_000))
    yield made
    made.close()


@pytest.fixture
def batches(broker: EmbeddedBroker, session: ClientSession) -> Callable[..., Iterator[Any]]:
    """The record batches of these ranges of "orders", as (queue, start, end)."""

    def read(
        ranges: list[tuple[int, int, int]], marks: Mapping[int, str] = NO_MARKS, **more: str
    ) -> Iterator[Any]:
        given = {"name_servers": broker.name_servers, "topic": "orders"} | more
        wanted = [
            QueueRange("orders", "b", queue, start, end, marks.get(queue, ""))
            for queue, start, end in ranges
        ]
        return read_ranges(session, SourceOptions.of(given), wanted)

    return read


def fill(producer: Producer, sizes: dict[int, int], body: Callable[[int], bytes]) -> None:
    producer.send(Message("orders", body(0)), queue=MessageQueue("orders", "b", 0))
    for number, count in sizes.items():
        queue = MessageQueue("orders", "b", number)
        for first in range(number == 0, count, 100):
            numbers = range(first, min(first + 100, count))
            producer.send_batch([Message("orders", body(n)) for n in numbers], queue=queue)


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


def test_the_parts_that_follow_are_pulled_while_one_is_read(producer, batches, monkeypatch):
    fill(producer, {1: 3_000}, lambda n: b"%d" % n)
    begun, begin = [], queue_reader._Part.begin

    def noted(part: Any) -> None:
        begun.append(part)
        begin(part)

    monkeypatch.setattr(queue_reader._Part, "begin", noted)
    monkeypatch.setattr(queue_reader, "_MOST_PART_ROWS", 100)
    reading = batches([(1, 5, 2_995)], pull_batch_size="10", arrow_batch_rows="100")
    table = pa.Table.from_batches([next(reading)])
    assert 8 <= len(begun) <= 12  # of 30
    table = pa.concat_tables([table, pa.Table.from_batches(reading)])
    assert places(table) == [(1, n) for n in range(5, 2_995)]


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


def test_a_tag_filter_leaves_out_other_messages(producer, batches):
    queue = MessageQueue("orders", "b", 0)
    producer.send(Message("orders", b"0", tags="a"), queue=queue)
    for n in range(1, 400):
        # Parts of ten: of some every message passes, of some none does.
        producer.send(Message("orders", b"%d" % n, tags="ab"[n // 25 % 2]), queue=queue)
    wanted = [n for n in range(400) if n // 25 % 2 == 0]
    table = pa.Table.from_batches(batches([(0, 0, 400)], tags="a", pull_batch_size="10"))
    assert [int(body) for body in table["body"].to_pylist()] == wanted
    assert not list(batches([(0, 25, 50)], tags="a"))


def test_connections_that_are_lost_are_opened_again_and_no_message_is_missing(
    producer, batches, session, broker, monkeypatch
):
    monkeypatch.setattr(queue_reader, "_RETRY_MS", 1)
    monkeypatch.setattr(queue_reader, "_PART_BYTES", 1_000)  # so that much is still to be pulled
    fill(producer, {1: 1_000, 2: 1_000}, lambda n: b"%d" % n)

    async def drop() -> None:
        session.pulls.drop(broker.address)

    tables = []
    for rows in batches(
        [(1, 0, 1_000), (2, 0, 1_000)], pull_batch_size="10", arrow_batch_rows="90"
    ):
        tables.append(pa.Table.from_batches([rows]))
        session.call(drop())
    assert places(pa.concat_tables(tables)) == [(q, n) for q in (1, 2) for n in range(1_000)]


def test_damaged_answers_are_pulled_again(producer, broker, monkeypatch):
    monkeypatch.setattr(queue_reader, "_RETRY_MS", 1)
    fill(producer, {1: 1_000}, lambda n: b"%d" % n)
    draw, damaged = random.Random(4), []

    def damage(command: Command) -> None:
        if "nextBeginOffset" in command.ext and command.body and draw.random() < 0.2:
            damaged.append(command)
            command.body = command.body[:4] + bytes(4) + command.body[8:]  # no magic number

    with DamagingProxy(broker.address, damage) as proxy:
        session = ClientSession(proxy.address, RemotingConfig())
        given = {"name_servers": proxy.address, "topic": "orders", "pull_batch_size": "8"}
        options = SourceOptions.of(given | {"read_timeout_ms": "20000"})
        ranges = [QueueRange("orders", "b", 1, 0, 1_000)]
        with contextlib.closing(session):
            table = pa.Table.from_batches(read_ranges(session, options, ranges))
    assert places(table) == [(1, n) for n in range(1_000)]
    assert [int(body) for body in table["body"].to_pylist()] == list(range(1_000))
    assert len(damaged) > 10


def test_damage_that_stays_is_an_error_with_its_queue_and_offset(producer, broker):
    fill(producer, {1: 30}, lambda n: b"%d" % n)

    def damage(command: Command) -> None:
        if "nextBeginOffset" in command.ext and command.body:
            command.body = command.body[:4] + bytes(4) + command.body[8:]

    with DamagingProxy(broker.address, damage) as proxy:
        session = ClientSession(proxy.address, RemotingConfig())
        given = {"name_servers": proxy.address, "topic": "orders", "read_timeout_ms": "1"}
        ranges = [QueueRange("orders", "b", 1, 5, 30)]
        with (
            contextlib.closing(session),
            pytest.raises(ProtocolError, match=r"magic.*queue_id=1, offset=5"),
        ):
            list(read_ranges(session, SourceOptions.of(given), ranges))


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


def test_a_core_without_the_engine_is_refused_before_anything_is_read(batches, monkeypatch):
    monkeypatch.setattr(core, "HAS_ENGINE", False)
    told = (
        r"executors read with the pull engine, and the \w+ core has no engine: unset ORDERMQ_CORE"
    )
    with pytest.raises(StateError, match=told):
        batches([(0, 0, 1)])


def marks_of(session: ClientSession, rows: int) -> dict[int, str]:
    """The mark of queue 1 before an offset."""
    queue = MessageQueue("orders", "b", 1)
    lives = QueueLives(session, "g")
    session.call(session.address_of(queue))
    return {q.queue_id: str(mark) for q, mark in session.call(lives.mark({queue: rows})).items()}


def renew(broker: EmbeddedBroker) -> None:
    with Admin(name_servers=broker.name_servers) as admin:
        admin.delete_topic("orders")
        admin.create_topic("orders", 8)


@pytest.mark.parametrize("rows", [60, 5_000])
def test_a_queue_that_was_made_anew_since_its_offsets_were_taken_is_not_read(
    broker, producer, session, batches, rows, caplog
):
    fill(producer, {1: rows}, lambda n: b"%d" % n)
    marks = marks_of(session, rows)
    assert pa.Table.from_batches(batches([(1, 0, rows)], marks)).num_rows == rows
    renew(broker)
    fill(producer, {1: rows + 1}, lambda n: b"new")
    said = r"not the one that the DataFrame was made for: its message at offset .* queue_id=1"
    with pytest.raises(DataLoss, match=said):
        list(batches([(1, 0, rows)], marks))
    others = [(0, 0, 1), (1, 0, rows)]
    with caplog.at_level(logging.WARNING):
        table = pa.Table.from_batches(batches(others, marks, fail_on_data_loss="false"))
    assert places(table) == [(0, 0)]
    assert caplog.text.count("the queue is another one") == 1


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_queue_that_is_made_anew_while_it_is_read_is_an_error(
    broker, producer, session, batches, fails, caplog, monkeypatch
):
    monkeypatch.setattr(queue_reader, "_PART_BYTES", 1)  # an answer is taken before the next pull
    begun, begin = [], queue_reader._Part.begin

    def noted(part: Any) -> None:
        begun.append(part)
        begin(part)

    monkeypatch.setattr(queue_reader._Part, "begin", noted)
    fill(producer, {1: 1_000}, lambda n: b"%d" % n)
    marks = marks_of(session, 1_000)
    asked = {"pull_batch_size": "10", "arrow_batch_rows": "10", "fail_on_data_loss": fails}
    reading = batches([(1, 0, 1_000)], marks, **asked)
    assert places(pa.Table.from_batches([next(reading)]))[0] == (1, 0)
    ends = [30, *(n + 10 for n in range(130, 1_000, 130))]
    eventually(lambda: [part.answers.next for part in begun] == ends, "no pull under way")
    renew(broker)
    fill(producer, {1: 1_001}, lambda n: b"new")
    if fails == "true":
        said = r"not the one that the DataFrame was made for: its message at offset .* queue_id=1"
        with pytest.raises(DataLoss, match=said):
            list(reading)
        return
    with caplog.at_level(logging.WARNING):
        list(reading)
    assert caplog.text.count("the queue is another one") == 1


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_new_life_of_a_queue_that_no_answer_told_is_found_once_all_was_pulled(
    producer, session, batches, fails, caplog, monkeypatch
):
    """As with RocketMQ, where the topic was full again before the next pull."""
    asked = []

    async def told_late(_: Any, __: str, queue: MessageQueue, at: int, ___: Any) -> NewLife | None:
        asked.append(at)
        return None if len(asked) == 1 else NewLife(queue, at, 0, at, "it is new")

    monkeypatch.setattr(queue_reader, "new_life", told_late)
    fill(producer, {1: 1_000}, lambda n: b"%d" % n)
    reading = batches([(1, 0, 1_000)], marks_of(session, 1_000), fail_on_data_loss=fails)
    if fails == "true":
        with pytest.raises(
            DataLoss, match="not the one that the DataFrame was made for: it is new"
        ):
            list(reading)
    else:
        with caplog.at_level(logging.WARNING):
            assert pa.Table.from_batches(reading).num_rows == 1_000
        assert caplog.text.count("while it was read, it is new: rows of both are among") == 1
    assert len(asked) == 2


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_broker_that_cannot_tell_the_life_of_a_queue_behind_it_is_asked_again_unless_it_is_gone(
    producer, session, batches, is_gone, monkeypatch
):
    monkeypatch.setattr(queue_reader, "_RETRY_MS", 1)
    asked, ask = [], queue_reader.new_life

    async def refused(*args: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            return await ask(*args)
        if is_gone:
            raise BrokerError("no", response_code=ResponseCode.TOPIC_NOT_EXIST)
        raise RequestTimeout("no answer")

    fill(producer, {1: 1_000}, lambda n: b"%d" % n)
    marks = marks_of(session, 1_000)
    monkeypatch.setattr(queue_reader, "new_life", refused)
    reading = batches([(1, 0, 1_000)], marks, read_timeout_ms="50")
    if is_gone:
        assert pa.Table.from_batches(reading).num_rows == 1_000
        assert len(asked) == 2
        return
    with pytest.raises(RequestTimeout):
        list(reading)
    assert len(asked) > 2
