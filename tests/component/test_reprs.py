"""Reprs of what a user holds in a debugger or a log, and messages that are sent again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ordermq import DeadLetter, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.broker.statistics import BrokerStatistics
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.model.names import dead_letter_topic
from tests.component.conftest import Seen, eventually

MakeConsumer = Callable[..., PushConsumer]


def test_a_context_a_receipt_and_statistics_tell_place_and_counts(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    told: list[str] = []

    def listen(messages: Any, context: Any) -> None:
        told.extend([repr(context), repr(messages)])
        seen.take(messages, context)

    receipt = producer.send(Message("orders", b"paid"), sharding_key="o-17")
    queue = receipt.message_queue
    assert repr(receipt) == f"<SendReceipt {queue} offset=0 SEND_OK id={receipt.message_id}>"
    with make_consumer(listen) as consumer:
        seen.wait_for_count(1)
    assert told == [
        f"<ConsumeContext {queue} offsets=0..0 attempt=0>",
        f"<MessageRun {queue} offsets=0..0 1 messages>",
    ]
    assert re.search(r"<ConsumerStatistics .*messages_done=1\b", repr(consumer.statistics))
    assert "=0" not in repr(consumer.statistics)
    assert repr(ConsumerStatistics()) == "<ConsumerStatistics nothing counted>"


def test_a_broker_tells_its_address_and_its_file(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker.db")
    assert repr(broker) == f"<EmbeddedBroker, not started, {tmp_path / 'broker.db'}>"
    with broker:
        assert repr(broker) == f"<EmbeddedBroker {broker.address}, {tmp_path / 'broker.db'}>"
        with Producer("p", name_servers=broker.name_servers) as producer:
            producer.send(Message("orders", b"paid"))
    assert ", closed, " in repr(broker)
    assert "messages_stored=1" in repr(broker.statistics)
    assert repr(BrokerStatistics()) == "<BrokerStatistics nothing counted>"
    assert repr(EmbeddedBroker()) == "<EmbeddedBroker, not started, in memory>"


def test_a_dead_letter_is_sent_again_as_it_was(
    broker: EmbeddedBroker, producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    def refuse(messages: Any, context: Any) -> None:
        raise RuntimeError("no")

    producer.send(
        Message("orders", b"paid", tags="t", keys=("k",), properties={"region": "eu"}, flag=7),
        sharding_key="o-17",
    )
    with make_consumer(refuse, on_failure=DeadLetter(1)) as consumer:
        eventually(lambda: consumer.statistics["diverted"] == 1, "a dead letter")
    copies: list[Any] = []

    def send_again(messages: Any, context: Any) -> None:
        for view in messages:
            again = producer.send(Message.from_view(view), sharding_key=view.sharding_key)
            assert again.message_id != view.message_id
        seen.take(messages, context)

    redrive = PushConsumer(
        "redrive", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    redrive.subscribe(dead_letter_topic("g"))
    redrive.orderly(send_again)
    with redrive:
        seen.wait_for_count(1)

    def look(messages: Any, context: Any) -> None:
        copies.extend(
            (view.topic, bytes(view), view.tags, view.keys, view.flag, view.reconsume_times,
             view.sharding_key, view.get_property("region"))
            for view in messages
        )  # fmt: skip
        seen.take(messages, context)

    with make_consumer(look):
        seen.wait_for_count(2)
    assert copies == [("orders", b"paid", "t", ["k"], 7, 0, "o-17", "eu")]
