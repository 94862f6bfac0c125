"""Bits flip between a broker and its consumers: nothing is lost, moved, altered or committed."""

from __future__ import annotations

import logging
import random
import threading
import zlib
from typing import Any

import pytest

from ordermq import ConsumeResult, LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import DecodeError, ProtocolError
from ordermq.remoting.command import Command
from tests.component.conftest import Seen, eventually
from tests.component.damaging_proxy import DamagingProxy

COUNT = 600
SETTINGS: dict[str, Any] = {
    "pull_delay_on_error_ms": 10,
    "consume_from_where": "first_offset",
    "commit_interval_ms": 50,
}
POP_SETTINGS: dict[str, Any] = SETTINGS | {
    "consume_mode": "pop",
    "pop_invisible_ms": 1_500,
    "pop_poll_ms": 200,
    "lease_margin_ms": 200,
}


class Flips:
    """Flips one bit in some of the answers with records.

    Args:
        seed: of the choice.
        share: of the answers that are damaged.
    """

    def __init__(self, seed: int, share: float = 0.5) -> None:
        self._draw = random.Random(seed)
        self._share = share
        self.count = 0
        self.is_on = threading.Event()
        self.is_on.set()

    def __call__(self, command: Command) -> None:
        if "nextBeginOffset" not in command.ext or not command.body or not self.is_on.is_set():
            return
        if self._draw.random() < self._share:
            body = bytearray(command.body)
            # Queue id, offset, or a bit of the body: what no other check would notice.
            at = self._draw.choice([14, 15, *range(20, 28), *range(88, 92)])
            body[at] ^= 1 << self._draw.randrange(8)
            command.body = bytes(body)
            self.count += 1


@pytest.fixture
def filled(broker: EmbeddedBroker) -> EmbeddedBroker:
    with Producer("p", name_servers=broker.address) as producer:
        for number in range(COUNT):
            producer.send(Message("orders", b"body %05d" % number), sharding_key="one")
    return broker


def test_no_message_is_lost_altered_or_committed_unread_through_flipped_bits(
    filled: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    flips, seen = Flips(7), Seen()
    caplog.set_level(logging.INFO, "ordermq.consumer")
    with DamagingProxy(filled.address, flips) as proxy:
        consumer = PushConsumer("g", name_servers=proxy.address, pull_batch_size=16, **SETTINGS)
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with consumer:
            seen.wait_for_count(COUNT)
            counts = consumer.statistics
            eventually(lambda: counts["unreadable_queues"] == 0, "a good answer")
            # A look at the queue, beside its pulls, may just be answered.
            eventually(lambda: counts["bad_answers"] == flips.count, "each is counted")
            counted = flips.count
    with PullConsumer("g", name_servers=filled.address) as direct:
        queues = direct.fetch_subscribe_message_queues("orders")
        ends = {queue: direct.max_offset(queue) for queue in queues}
        assert sum(ends.values()) == COUNT
        for queue, end in ends.items():
            assert direct.fetch_consume_offset(queue, from_store=True) in (end, None)
    bodies = [body for _, _, _, body in seen.deliveries]
    assert bodies == [b"body %05d" % number for number in range(COUNT)]
    assert counted > 10
    said = [record for record in caplog.records if "dropped a bad answer" in record.message]
    assert 0 < len(said) <= counted
    assert all("pull at offset" in record.message for record in said)


@pytest.mark.parametrize("tags", ["*", "a"])
def test_messages_that_an_answer_to_a_pop_lacks_are_not_acknowledged(
    broker: EmbeddedBroker, tags: str
) -> None:
    """It names the offsets that it leased: acknowledged as a whole, what is not there were lost."""
    seen = Seen()
    damaged: list[int] = []

    def cut(command: Command) -> None:
        if "msgOffsetInfo" in command.ext and len(damaged) < 3:
            first_size = int.from_bytes(command.body[:4], "big")
            if first_size < len(command.body):  # one record of several, or none
                command.body = command.body[: first_size if damaged else 0]
                damaged.append(first_size)

    with Producer("p", name_servers=broker.address) as producer:
        for number in range(40):
            producer.send(Message("orders", b"%d" % number, tags="a"), sharding_key="one")
    with DamagingProxy(broker.address, cut) as proxy:
        consumer = PushConsumer(
            "g",
            name_servers=proxy.address,
            pop_batch_size=8,
            **POP_SETTINGS,
        )
        consumer.subscribe("orders", tags)
        consumer.orderly(seen.take)
        with consumer:
            seen.wait_for(lambda got: len({body for *_, body in got}) == 40, "each message")
            assert 0 < consumer.statistics["bad_answers"] <= len(damaged) == 3
    # A lease of a slow machine may be over before its listener is: what it had comes again.
    first = dict.fromkeys(int(body) for *_, body in seen.deliveries)
    assert list(first) == list(range(40))


def test_a_bad_answer_that_persists_stays_visible_and_is_logged_once(
    filled: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    flips, seen = Flips(7, share=1), Seen()
    with DamagingProxy(filled.address, flips) as proxy:
        consumer = PushConsumer("g", name_servers=proxy.address, **SETTINGS)
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with consumer:
            eventually(lambda: consumer.statistics["bad_answers"] > 20, "20 attempts")
            assert consumer.statistics["unreadable_queues"] == 1
            (reason,) = consumer.health().reasons
            assert reason.startswith("1 queues cannot be read, as orders@"), reason
            assert "pull body: " in reason
            said = [each for each in caplog.records if "dropped a bad answer" in each.message]
            assert len(said) == 1
            assert "orders@" in said[0].message
            assert "at offset 0" in said[0].message
            assert not seen.deliveries
            flips.is_on.clear()
            seen.wait_for_count(COUNT)
            assert consumer.statistics["unreadable_queues"] == 0
            assert consumer.health().is_ready


def test_a_popped_batch_of_batches_is_named_and_read_again(
    filled: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    # As RocketMQ 5 answers from a topic with queue.type=BatchCQ, where a record is leased as one
    # message and holds several.
    is_batch = threading.Event()
    is_batch.set()

    def mark(command: Command) -> None:
        if "msgOffsetInfo" in command.ext and command.body and is_batch.is_set():
            flags = int.from_bytes(command.body[36:40], "big") | 0x40 | 0x80
            command.body = command.body[:36] + flags.to_bytes(4, "big") + command.body[40:]

    seen = Seen()
    with DamagingProxy(filled.address, mark) as proxy:
        consumer = PushConsumer(
            "g",
            name_servers=proxy.address,
            **POP_SETTINGS,
        )
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with consumer:

            def reasons() -> list[str]:
                found = consumer.health().reasons
                return [each for each in found if "cannot be read" in each]

            eventually(lambda: bool(reasons()), "its health tells of it")
            assert "queue.type=BatchCQ" in reasons()[0]
            assert "consume_mode='pull'" in reasons()[0]
            assert not seen.deliveries
            is_batch.clear()
            seen.wait_for(lambda got: len({body for *_, body in got}) == COUNT, "each message")
            eventually(lambda: consumer.health().is_ready, "it is ready again")


def test_polled_and_pulled_messages_are_checked_as_well(filled: EmbeddedBroker) -> None:
    flips = Flips(9)
    with DamagingProxy(filled.address, flips) as proxy:
        bodies: list[bytes] = []
        lite = LitePullConsumer(
            "lite", name_servers=proxy.address, pull_delay_on_error_ms=10,
            pull_batch_size=16, consume_from_where="first_offset",
        )  # fmt: skip
        lite.subscribe("orders")
        with lite:
            while len(bodies) < COUNT:
                bodies += [bytes(message.body) for message in lite.poll(timeout_ms=5_000)]
        assert bodies == [b"body %05d" % number for number in range(COUNT)]
        flips.is_on.clear()
        with PullConsumer("direct", name_servers=proxy.address) as direct:
            (queue,) = (
                each
                for each in direct.fetch_subscribe_message_queues("orders")
                if direct.max_offset(each)
            )
            assert len(direct.pull(queue, "*", 0, 32).messages) == 32
            flips.is_on.set()
            damaged = Flips(1, share=1)
            proxy._damage = damaged
            with pytest.raises(ProtocolError, match="record 0"):
                direct.pull(queue, "*", 0, 32)


def test_checksums_can_be_left_unchecked(filled: EmbeddedBroker) -> None:
    def spoil(command: Command) -> None:
        if "nextBeginOffset" in command.ext and command.body:
            command.body = command.body.replace(b"body 00003", b"body xxxxx")

    seen = Seen()
    with DamagingProxy(filled.address, spoil) as proxy:
        consumer = PushConsumer("g", name_servers=proxy.address, check_crcs=False, **SETTINGS)
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with consumer:
            seen.wait_for_count(COUNT)
    assert seen.deliveries[3][3] == b"body xxxxx"


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_body_that_expands_beyond_the_limit_goes_the_way_of_the_failure_policy(
    broker: EmbeddedBroker, kind: str
) -> None:
    # 0.4 MB on the wire that were 400 MB in memory before there was a limit.
    with Producer(
        "p", name_servers=broker.address, compress_msg_body_over_howmuch=1, compress_type=kind
    ) as producer:
        for body in (b"first", bytes(4 << 20), b"last" * 20):
            producer.send(Message("orders", body), sharding_key="one")
    errors: list[Exception] = []
    seen = Seen()

    def listener(messages: Any, context: Any) -> ConsumeResult:
        try:
            seen.take(messages, context)
        except DecodeError as error:
            errors.append(error)
            raise
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        "g", name_servers=broker.address, max_decompressed_bytes=1 << 20, max_attempts=2,
        suspend_current_queue_time_ms=10, **SETTINGS,
    )  # fmt: skip
    consumer.subscribe("orders")
    consumer.orderly(listener)
    with consumer:
        seen.wait_for_count(2)
    assert [body for *_, body in seen.deliveries] == [b"first", b"last" * 20]
    assert len(errors) == 2
    assert all("becomes more than 1048576 bytes" in str(error) for error in errors)


def test_a_stored_checksum_is_that_of_the_stored_body(broker: EmbeddedBroker) -> None:
    body = bytes(range(256)) * 30
    with Producer("p", name_servers=broker.address) as producer:
        receipt = producer.send(Message("orders", body))
    with PullConsumer("direct", name_servers=broker.address) as direct:
        (message,) = direct.pull(receipt.message_queue, "*", 0, 1).messages
        stored = message.index.body[8:12]
        assert int.from_bytes(stored, "big") == zlib.crc32(message.stored_body) & 0x7FFFFFFF
        assert message.body == body
