"""Requests and their replies over an embedded broker, with the real clock."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, MessageView, Producer, PushConsumer, SendCall, TransactionProducer
from ordermq import TransactionState as State
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import BrokerError, ConfigError, ReplyTimeout, RouteError, StateError
from ordermq.remoting.bodies import BrokerData
from tests.component.conftest import DEADLINE_S, eventually

TIMEOUT_MS = 10_000


@pytest.fixture
def asker(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer("asks", name_servers=broker.name_servers) as running:
        yield running


@pytest.fixture
def answerer(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer("answers", name_servers=broker.name_servers) as running:
        yield running


def upper(message: MessageView) -> bytes:
    return bytes(message.body).upper()


@pytest.fixture
def shouting(
    answerer: Producer, make_consumer: Callable[..., PushConsumer]
) -> Iterator[PushConsumer]:
    """A consumer of "orders" that replies in capitals."""

    def listen(messages: Sequence[MessageView], context: Any) -> None:
        for message in messages:
            if message.wants_reply:
                answerer.reply(message, upper(message))

    with make_consumer(listen) as consumer:
        yield consumer


def collected(
    make_consumer: Callable[..., PushConsumer], count: int
) -> tuple[PushConsumer, list[MessageView], Callable[[], list[MessageView]]]:
    """A consumer that keeps what comes, and how to wait for so many."""
    got: list[MessageView] = []
    consumer = make_consumer(lambda messages, _: got.extend(messages))

    def wait() -> list[MessageView]:
        eventually(lambda: len(got) >= count, f"{count} requests arrive")
        return got

    return consumer, got, wait


@pytest.mark.usefixtures("shouting")
def test_a_request_returns_what_a_listener_replies(asker: Producer, broker: EmbeddedBroker) -> None:
    asker.send(Message("orders", b"no request"))
    reply = asker.request(Message("orders", b"how much"), TIMEOUT_MS, sharding_key="k1")
    assert bytes(reply.body) == b"HOW MUCH"
    assert reply.topic == "DefaultCluster_REPLY_TOPIC"
    assert reply.get_property("MSG_TYPE") == "reply"
    assert reply.get_property("TTL") == str(TIMEOUT_MS)
    assert reply.born_host.startswith("127.0.0.1:")
    eventually(lambda: broker.statistics.replies_pushed == 1, "it is counted, once acknowledged")


def test_a_reply_has_tags_keys_and_properties_and_may_be_large(
    asker: Producer, answerer: Producer, make_consumer: Callable[..., PushConsumer]
) -> None:
    body = b"large " * 20_000

    def listen(messages: Sequence[MessageView], context: Any) -> None:
        for message in messages:
            receipt = answerer.reply(
                message, body, tags="paid", keys=["o-1", "o-2"], properties={"vat": "7 %"}
            )
            assert receipt.message_queue.topic == "DefaultCluster_REPLY_TOPIC"

    with make_consumer(listen):
        reply = asker.request(Message("orders", b"?"), TIMEOUT_MS)
    assert bytes(reply.body) == body
    assert (reply.tags, list(reply.keys)) == ("paid", ["o-1", "o-2"])
    assert reply.get_property("vat") == "7 %"


@pytest.mark.usefixtures("shouting")
def test_many_async_requests_at_once_each_get_their_own_reply(asker: Producer) -> None:
    async def ask() -> list[MessageView]:
        return await asyncio.gather(
            *(
                asker.arequest(
                    Message("orders", f"n{number}".encode()), TIMEOUT_MS,
                    sharding_key=f"k{number % 7}",
                )
                for number in range(100)
            )
        )  # fmt: skip

    replies = asyncio.run(ask())
    assert [bytes(reply.body) for reply in replies] == [f"N{n}".encode() for n in range(100)]


def test_an_async_listener_replies(
    asker: Producer, answerer: Producer, make_consumer: Callable[..., PushConsumer]
) -> None:
    async def listen(messages: Sequence[MessageView], context: Any) -> None:
        for message in messages:
            await answerer.areply(message, upper(message))

    with make_consumer(listen):
        assert bytes(asker.request(Message("orders", b"a"), TIMEOUT_MS).body) == b"A"


def test_a_request_that_nobody_replies_to_says_where_it_lies(asker: Producer) -> None:
    queue = asker.queues("orders")[1]
    asker.send(Message("orders", b"before"), queue=queue)
    with pytest.raises(ReplyTimeout, match=r"within 150 ms; the broker has it.*`reply`") as caught:
        asker.request(Message("orders", b"?"), 150, queue=queue)
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.topic, caught.value.broker) == ("orders", "b")
    assert (caught.value.queue_id, caught.value.offset) == (1, 1)


def test_a_reply_that_comes_too_late_is_dropped_and_told(
    asker: Producer, answerer: Producer, make_consumer: Callable[..., PushConsumer],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    consumer, _, wait = collected(make_consumer, 1)
    with consumer, caplog.at_level(logging.WARNING, "ordermq.producer"):
        with pytest.raises(ReplyTimeout):
            asker.request(Message("orders", b"?"), 300)
        answerer.reply(wait()[0], b"late")
    assert "came too late" in caplog.text


def test_a_request_that_was_not_sent_in_time_says_so_and_hooks_hear_of_it() -> None:
    ended: list[BaseException | None] = []

    class Ends:
        def before(self, call: SendCall) -> None: ...

        def after(self, call: SendCall) -> None:
            ended.append(call.exception)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asker = Producer("asks", name_servers=f"127.0.0.1:{silent.getsockname()[1]}")
        asker.add_hook(Ends())
        with asker, pytest.raises(ReplyTimeout, match="was not sent within 100 ms"):
            asker.request(Message("orders", b"?"), 100)
    assert isinstance(ended[0], ReplyTimeout)


def test_of_two_replies_the_first_counts(
    asker: Producer, answerer: Producer, make_consumer: Callable[..., PushConsumer]
) -> None:
    def listen(messages: Sequence[MessageView], context: Any) -> None:
        for message in messages:
            answerer.reply(message, b"first")
            answerer.reply(message, b"second")

    with make_consumer(listen):
        for _ in range(3):
            assert bytes(asker.request(Message("orders", b"?"), TIMEOUT_MS).body) == b"first"


def test_a_cancelled_request_leaves_nobody_waiting(asker: Producer) -> None:
    asker.send(Message("orders", b"the topic"))

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asker.arequest(Message("orders", b"?"), TIMEOUT_MS), 0.1)

    asyncio.run(ask())
    assert asker._requests is not None
    waiting = asker._requests._waiting
    eventually(lambda: not waiting, "nobody waits")


def test_a_producer_that_is_closed_ends_its_requests(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer]
) -> None:
    asker = Producer("asks", name_servers=broker.name_servers)
    asker.start()
    consumer, _, wait = collected(make_consumer, 1)
    failed: list[Exception] = []

    def ask() -> None:
        try:
            asker.request(Message("orders", b"?"), 60_000)
        except StateError as error:
            failed.append(error)

    with consumer:
        asking = threading.Thread(target=ask)
        asking.start()
        wait()
        asker.close()
        asking.join(DEADLINE_S)
    assert "closed while it waited for a reply" in str(failed[0])


def test_a_reply_to_somebody_who_left_is_an_error(
    broker: EmbeddedBroker, answerer: Producer, make_consumer: Callable[..., PushConsumer]
) -> None:
    consumer, _, wait = collected(make_consumer, 1)
    with consumer:
        with Producer("asks", name_servers=broker.name_servers) as asker:
            with pytest.raises(ReplyTimeout):
                asker.request(Message("orders", b"?"), 300)
            (request,) = wait()
        with pytest.raises(BrokerError, match=r"requester no longer waits.*not found"):
            answerer.reply(request, b"too late")


def test_what_is_no_request_cannot_be_replied_to(
    asker: Producer, answerer: Producer, make_consumer: Callable[..., PushConsumer]
) -> None:
    consumer, _, wait = collected(make_consumer, 1)
    with consumer:
        asker.send(Message("orders", b"news"))
        (news,) = wait()
    assert not news.wants_reply
    with pytest.raises(ConfigError, match=r"is no request.*offset=0"):
        answerer.reply(news, b"thanks")


def test_properties_of_requests_and_replies_are_not_the_users(asker: Producer) -> None:
    for name in ("TTL", "CORRELATION_ID", "REPLY_TO_CLIENT", "MSG_TYPE", "CLUSTER"):
        with pytest.raises(ConfigError, match=f"property '{name}'"):
            asker.request(Message("orders", b"?", properties={name: "mine"}))
        asker.send(Message("orders", b"plain", properties={name: "mine"}))
    for wrong in (0, "0s", "soon", b"x"):
        with pytest.raises(ConfigError, match="timeout_ms="):
            asker.request(Message("orders", b"?"), wrong)  # type: ignore[arg-type]


def test_a_request_that_cannot_be_sent_fails_at_once() -> None:
    with (
        EmbeddedBroker(config=BrokerConfig(auto_create_topics=False)) as broker,
        Producer("asks", name_servers=broker.name_servers) as asker,
        pytest.raises(RouteError, match="topic not found on any broker"),
    ):
        asker.request(Message("orders", b"?"), 60_000)


@pytest.mark.usefixtures("shouting")
def test_a_transaction_producer_asks_too(broker: EmbeddedBroker) -> None:
    with TransactionProducer(
        "both", check=lambda _: State.UNKNOWN, name_servers=broker.name_servers
    ) as asker:
        assert bytes(asker.request(Message("orders", b"a"), TIMEOUT_MS).body) == b"A"


def test_a_tenants_requests_are_replied_to_within_its_namespace(broker: EmbeddedBroker) -> None:
    settings = {"name_servers": broker.name_servers, "namespace": "tenant"}
    with Producer("answers", **settings) as answerer, Producer("asks", **settings) as asker:
        consumer = PushConsumer("g", consume_from_where="first_offset", **settings)
        consumer.subscribe("orders")
        consumer.orderly(
            lambda messages, _: [answerer.reply(one, upper(one)) for one in messages] and None
        )
        with consumer:
            reply = asker.request(Message("orders", b"a"), TIMEOUT_MS)
    assert (bytes(reply.body), reply.topic) == (b"A", "DefaultCluster_REPLY_TOPIC")


def test_clients_of_one_instance_name_get_their_own_replies(broker: EmbeddedBroker) -> None:
    """Equal names in one process, as one setting for all of it makes them."""
    settings = {"name_servers": broker.name_servers, "instance_name": "shop"}
    with (
        Producer("asks", **settings) as first,
        Producer("asks", **settings) as second,
        Producer("answers", **settings) as answerer,
    ):
        consumer = PushConsumer("g", consume_from_where="first_offset", **settings)
        consumer.subscribe("orders")
        consumer.orderly(
            lambda messages, _: [answerer.reply(one, upper(one)) for one in messages] and None
        )
        with consumer:
            for number in range(3):
                for asker in (first, second):
                    body = f"{asker is first}-{number}".encode()
                    reply = asker.request(Message("orders", body), TIMEOUT_MS)
                    assert bytes(reply.body) == body.upper()
            second.close()
            assert bytes(first.request(Message("orders", b"a"), TIMEOUT_MS).body) == b"A"


def test_after_the_broker_came_back_requests_are_replied_to_again(
    tmp_path: Path, broker_config: BrokerConfig
) -> None:
    path = tmp_path / "again.db"
    with EmbeddedBroker(path, config=broker_config) as broker:
        port, servers = broker.port, broker.name_servers
        asker = Producer("asks", name_servers=servers)
        asker.start()
        asker.send(Message("orders", b"the topic"))
        with pytest.raises(ReplyTimeout):
            asker.request(Message("orders", b"?"), 1)
    with (
        EmbeddedBroker(path, config=broker_config, port=port),
        Producer("answers", name_servers=servers) as answerer,
    ):
        consumer = PushConsumer("g", name_servers=servers, consume_from_where="first_offset")
        consumer.subscribe("orders")

        @consumer.orderly
        def listen(messages: Sequence[MessageView], context: Any) -> None:
            for message in messages:
                if bytes(message.body) == b"a":
                    answerer.reply(message, upper(message))

        with consumer:
            assert bytes(asker.request(Message("orders", b"a"), TIMEOUT_MS).body) == b"A"
        asker.close()


def test_closing_sends_a_reply_that_was_just_handed_in(
    asker: Producer, broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer]
) -> None:
    consumer, _, wait = collected(make_consumer, 1)

    async def reply(request: MessageView, number: int) -> int:
        answerer = Producer("answers", name_servers=broker.name_servers)
        answerer.start()  # its route of the topic is unknown: the reply waits for it
        replying = asyncio.create_task(answerer.areply(request, str(number).encode()))
        await asyncio.sleep(0)
        await asyncio.to_thread(answerer.close)
        return (await asyncio.wait_for(replying, 5)).queue_offset

    with consumer, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asker.request, Message("orders", b"?"), 10_000)
        (request,) = wait()
        for number in range(10):
            assert asyncio.run(reply(request, number)) >= 0
        assert bytes(asked.result().body) == b"0"


def test_a_request_keeps_its_place_between_the_sends_of_its_key(
    asker: Producer, broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer]
) -> None:
    consumer, got, _ = collected(make_consumer, 1)
    asker.send(Message("orders", b"warm"))

    async def work() -> None:
        for number in range(0, 60, 3):
            bodies = [str(number + n).encode() for n in range(3)]
            first = asyncio.create_task(asker.asend(Message("orders", bodies[0]), sharding_key="k"))
            asking = asyncio.create_task(
                asker.arequest(Message("orders", bodies[1]), TIMEOUT_MS, sharding_key="k")
            )
            last = asyncio.create_task(asker.asend(Message("orders", bodies[2]), sharding_key="k"))
            await asyncio.gather(first, last)
            asking.cancel()

    with consumer:
        asyncio.run(work())
        eventually(lambda: len(got) >= 61, "all arrive")
    assert [int(message.body) for message in got if bytes(message.body) != b"warm"] == list(
        range(60)
    )


def test_a_reply_goes_by_another_broker_if_the_requests_broker_is_away(
    asker: Producer,
    answerer: Producer,
    make_consumer: Callable[..., PushConsumer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer, _, wait = collected(make_consumer, 1)
    with consumer, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asker.request, Message("orders", b"?"), TIMEOUT_MS)
        (request,) = wait()
        answerer.queues("orders")  # the route is known
        request.index.queue = request.message_queue._replace(broker_name="away")
        # The discard port: nobody listens.
        answerer._live().routes._learn(BrokerData("away", {0: "127.0.0.1:9"}))
        receipt = answerer.reply(request, b"!")
        assert receipt.message_queue.broker_name == "b"
        assert bytes(asked.result().body) == b"!"
    # The failure is reported of the broker that failed, not of the one tried next.
    assert "127.0.0.1:9: send failed" in caplog.text
