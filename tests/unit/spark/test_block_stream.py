"""The order in which the sink sends the batches of one task."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from ordermq.errors import BrokerError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.sink.block_sender import MOST_ROWS, Block, BlockStream

SLOW, FAST = MessageQueue("orders", "b", 0), MessageQueue("orders", "b", 1)


class Sender:
    """Sends to a list. Sends to SLOW wait for `gate`; a body in `fails` is refused."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.gate = threading.Event()
        self.fails: set[bytes] = set()
        self.sent: defaultdict[MessageQueue, list[bytes]] = defaultdict(list)
        self.has_sent = threading.Condition()
        self.under_way = 0
        self.batch_queues = {FAST}
        self.asked: list[MessageQueue] = []
        self.as_records: defaultdict[MessageQueue, set[bool]] = defaultdict(set)

    def submit(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def stores_batches(self, queue: MessageQueue) -> bool:
        self.asked.append(queue)
        return queue in self.batch_queues

    async def send(self, queue: MessageQueue, body: bytes, *, as_record: bool) -> None:
        self.under_way += 1
        self.as_records[queue].add(as_record)
        try:
            while queue == SLOW and not self.gate.is_set():
                await asyncio.sleep(0)
            if body in self.fails:
                raise BrokerError("refused", response_code=1)
            with self.has_sent:
                self.sent[queue].append(body)
                self.has_sent.notify_all()
        finally:
            self.under_way -= 1

    def await_sent(self, queue: MessageQueue, count: int) -> None:
        with self.has_sent:
            assert self.has_sent.wait_for(lambda: len(self.sent[queue]) >= count, 30)


def blocks(*bodies: bytes) -> list[Block]:
    return [Block(body, 1) for body in bodies]


@pytest.fixture
def sender() -> Iterator[Sender]:
    made = Sender()
    thread = threading.Thread(target=made.loop.run_forever)
    thread.start()
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)
    thread.join(30)
    made.loop.close()


def test_a_queue_gets_its_batches_in_order_and_does_not_wait_for_another_one(sender):
    with BlockStream(sender, 1, is_bulk=False) as stream:
        for number in range(3):
            stream.send(
                {queue: blocks(b"%d a" % number, b"%d b" % number) for queue in (SLOW, FAST)}
            )
        sender.await_sent(FAST, 6)
        assert sender.sent[SLOW] == []
        sender.gate.set()
    wanted = [b"%d %s" % (number, half) for number in range(3) for half in (b"a", b"b")]
    assert sender.sent == {SLOW: wanted, FAST: wanted}


@pytest.mark.parametrize(
    ("most_bytes", "requests"), [(9, [b"0", b"123"]), (2, [b"0", b"12", b"3"])]
)
def test_what_waits_behind_a_request_goes_with_the_next_one_as_far_as_it_fits(
    sender, most_bytes, requests
):
    with BlockStream(sender, most_bytes, is_bulk=False) as stream:
        stream.send({SLOW: blocks(b"0"), FAST: blocks(b"begun")})
        sender.await_sent(FAST, 1)
        stream.send({SLOW: blocks(b"1", b"2")})
        stream.send({SLOW: blocks(b"3"), FAST: blocks(b"waiting")})
        sender.await_sent(FAST, 2)
        sender.gate.set()
    assert sender.sent[SLOW] == requests


def test_a_batch_that_is_larger_than_a_request_may_be_is_sent_alone(sender):
    sender.gate.set()
    with BlockStream(sender, 2, is_bulk=False) as stream:
        stream.send({SLOW: blocks(b"large", b"a", b"b", b"c")})
    assert sender.sent == {SLOW: [b"large", b"ab", b"c"]}


def test_a_request_has_no_more_rows_than_a_record_may_have(sender):
    sender.gate.set()
    sizes = [MOST_ROWS - 1, 1, 1, MOST_ROWS, 2]
    with BlockStream(sender, 100, is_bulk=False) as stream:
        stream.send({SLOW: [Block(b"%d" % number, rows) for number, rows in enumerate(sizes)]})
    assert sender.sent == {SLOW: [b"01", b"2", b"3", b"4"]}


@pytest.mark.parametrize("is_bulk", [True, False])
def test_only_rows_in_bulk_become_records_where_the_broker_stores_them(sender, is_bulk):
    sender.gate.set()
    with BlockStream(sender, 1, is_bulk=is_bulk) as stream:
        for _ in range(3):
            stream.send({queue: blocks(b"a", b"b") for queue in (SLOW, FAST)})
    assert sender.as_records == {SLOW: {False}, FAST: {is_bulk}}
    # Once per task and queue.
    assert sorted(sender.asked) == ([SLOW, FAST] if is_bulk else [])


def test_after_a_failure_nothing_more_is_sent_and_nothing_is_under_way_at_the_end(sender):
    sender.fails = {b"1"}
    with (
        pytest.raises(BrokerError, match="refused"),
        BlockStream(sender, 1, is_bulk=False) as stream,
    ):
        for number in range(20):
            stream.send({FAST: blocks(b"%d" % number)})
    assert sender.sent == {FAST: [b"0"]}
    assert sender.under_way == 0


def test_an_error_of_the_rows_waits_for_the_sends_before_it(sender):
    def rows() -> Iterator[int]:
        yield 0
        sender.gate.set()
        raise ValueError("a row")

    with pytest.raises(ValueError, match="a row"), BlockStream(sender, 1, is_bulk=False) as stream:
        for _ in rows():
            stream.send({SLOW: blocks(b"a", b"b")})
    assert sender.sent == {SLOW: [b"a", b"b"]}
    assert sender.under_way == 0
