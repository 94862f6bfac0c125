"""The broker for FastStream on an embedded broker: order, acknowledgement, replies, endings.

FastStream's own patterns for brokers are run by ci/frameworks.sh.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware, Depends, FastStream
from faststream.exceptions import NackMessage, SetupError, StopConsume
from faststream.security import SASLPlaintext, SASLScram256
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from ordermq import Admin, DeadLetter, Message
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.contrib.faststream import (
    OrderMQBroker,
    OrderMQResponse,
    OrderMQRouter,
    TestOrderMQBroker,
)
from ordermq.contrib.faststream.annotations import OrderMQMessage
from ordermq.testing import read, wait_until_consumed
from tests.component.broker.wire_client import WireClient

DEADLINE_S = 40.0
LEASE_MS = 3_000
# What a handler left in the middle goes elsewhere once its lock has expired.
SHORT_LEASE: dict[str, Any] = {"lock_max_live_ms": LEASE_MS, "lock_interval_ms": 500}
FROM_FIRST: dict[str, Any] = {"consume_from_where": "first_offset"}
FIRST: dict[str, Any] = {**FROM_FIRST, "suspend_current_queue_time_ms": 10}


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    config = BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=LEASE_MS)
    with EmbeddedBroker(config=config) as broker, Admin(broker.name_servers) as admin:
        admin.create_topic("orders", queues=1)
        yield broker


@pytest.fixture
def broker(embedded: EmbeddedBroker) -> OrderMQBroker:
    return OrderMQBroker(embedded.name_servers, group="shop", logger=None)


@asynccontextmanager
async def running(broker: OrderMQBroker) -> AsyncIterator[OrderMQBroker]:
    async with broker, asyncio.timeout(DEADLINE_S):
        await broker.start()
        yield broker


class Got:
    """Collects what handlers got; waits for so many of them."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._changed = asyncio.Condition()

    async def take(self, value: Any) -> None:
        async with self._changed:
            self.all.append(value)
            self._changed.notify_all()

    async def wait_for(self, count: int) -> list[Any]:
        async with self._changed, asyncio.timeout(DEADLINE_S):
            await self._changed.wait_for(lambda: len(self.all) >= count)
            return self.all


def test_a_failed_message_holds_its_queue_until_a_retry_succeeds(broker: OrderMQBroker) -> None:
    async def main() -> None:
        got = Got()

        @broker.subscriber("orders", **FIRST)
        async def handle(order: int, message: OrderMQMessage) -> None:
            await got.take((order, message.raw_message.reconsume_times))
            if order == 1 and message.raw_message.reconsume_times < 2:
                raise ConnectionError("a test's own failure")

        async with running(broker):
            for order in range(3):
                await broker.publish(order, "orders", sharding_key="k")
            assert await got.wait_for(5) == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]

    asyncio.run(main())


def test_by_key_a_failed_message_holds_its_key_alone(broker: OrderMQBroker) -> None:
    async def main() -> None:
        got, free = Got(), asyncio.Event()

        @broker.subscriber("orders", order="key", **FIRST)
        async def handle(order: str) -> None:
            if order == "a1":
                await free.wait()
            await got.take(order)

        async with running(broker):
            for order in ("a1", "a2", "b1", "b2"):
                await broker.publish(order, "orders", sharding_key=order[0])
            assert await got.wait_for(2) == ["b1", "b2"]
            free.set()
            assert await got.wait_for(4) == ["b1", "b2", "a1", "a2"]

    asyncio.run(main())


def test_without_order_calls_run_beside_each_other(broker: OrderMQBroker) -> None:
    async def main() -> None:
        all_run = asyncio.Barrier(3)

        @broker.subscriber("orders", order="none", **FIRST)
        async def handle(order: int) -> None:
            await all_run.wait()

        async with running(broker):
            for order in range(2):
                await broker.publish(order, "orders")
            await all_run.wait()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("policy", "fails", "expected"),
    [
        (AckPolicy.ACK, ValueError("a test's own failure"), ["1", "2"]),
        (AckPolicy.NACK_ON_ERROR, ValueError("a test's own failure"), ["1", "1", "2"]),
        (AckPolicy.NACK_ON_ERROR, NackMessage(suspend_ms=20), ["1", "1", "2"]),
        (AckPolicy.REJECT_ON_ERROR, ValueError("a test's own failure"), ["1", "2"]),
    ],
)
def test_a_policy_says_what_an_exception_means(
    broker: OrderMQBroker,
    embedded: EmbeddedBroker,
    policy: AckPolicy,
    fails: Exception,
    expected: list[str],
) -> None:
    async def main() -> None:
        got = Got()

        @broker.subscriber("orders", group="bill", ack_policy=policy, **FIRST)
        async def handle(order: str) -> None:
            await got.take(order)
            if len(got.all) == 1:
                raise fails

        async with running(broker):
            await broker.publish("1", "orders", sharding_key="k")
            await broker.publish("2", "orders", sharding_key="k")
            assert await got.wait_for(len(expected)) == expected

    asyncio.run(main())
    if policy is AckPolicy.REJECT_ON_ERROR:
        (letter,) = read(embedded.name_servers, "%DLQ%bill", 1)
        assert bytes(letter.body) == b"1"


def test_without_order_a_rejected_message_is_a_dead_letter(
    broker: OrderMQBroker, embedded: EmbeddedBroker
) -> None:
    async def main() -> None:
        @broker.subscriber(
            "orders", group="bill", order="none", ack_policy=AckPolicy.MANUAL, **FIRST
        )
        async def handle(order: str, message: OrderMQMessage) -> None:
            await message.reject()

        async with running(broker):
            await broker.publish("1", "orders")
            letters = await asyncio.to_thread(read, embedded.name_servers, "%DLQ%bill", 1)
            assert [bytes(each.body) for each in letters] == [b"1"]

    asyncio.run(main())


def test_a_message_that_is_not_acknowledged_is_redelivered_and_that_is_told(
    broker: OrderMQBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        got = Got()

        @broker.subscriber("orders", ack_policy=AckPolicy.MANUAL, **FIRST)
        async def handle(order: str, message: OrderMQMessage) -> None:
            await got.take(order)
            if len(got.all) > 2:
                await message.ack()

        async with running(broker):
            await broker.publish("1", "orders", sharding_key="k")
            await broker.publish("2", "orders", sharding_key="k")
            assert await got.wait_for(4) == ["1", "1", "1", "2"]

    with caplog.at_level(logging.WARNING, "ordermq.faststream"):
        asyncio.run(main())
    told = [record.message for record in caplog.records if record.name == "ordermq.faststream"]
    assert len(told) == 1
    assert told[0].startswith("orders@b/0 offset 0: its handler returned without ack()")


def test_a_batch_is_of_one_queue_and_done_or_redelivered_as_a_whole(
    broker: OrderMQBroker, embedded: EmbeddedBroker
) -> None:
    async def main() -> None:
        got = Got()

        @broker.subscriber("orders", group="bill", batch=True, max_records=3, **FIRST)
        async def handle(orders: list[int], message: OrderMQMessage) -> None:
            await got.take((orders, [each["n"] for each in message.batch_headers]))
            if len(got.all) == 1:
                raise ValueError("a test's own failure")

        await broker.connect()
        await broker.publish_batch(1, 2, 3, topic="orders", headers={"n": "x"}, sharding_key="k")
        async with running(broker):
            expected = [([1, 2, 3], ["x"] * 3)] * 2
            assert await got.wait_for(2) == expected
            await asyncio.to_thread(wait_until_consumed, embedded.name_servers, "bill", "orders")

    asyncio.run(main())


def test_a_request_gets_the_handlers_result_and_a_late_one_repeats_nothing(
    broker: OrderMQBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        got, free = Got(), asyncio.Event()

        @broker.subscriber("orders", group="bill", **FIRST)
        async def handle(order: dict[str, int]) -> OrderMQResponse:
            await got.take(order["id"])
            if order["id"] == 2:
                await free.wait()
            return OrderMQResponse({"bill": order["id"]}, headers={"by": "bill"}, tags="eu")

        async with running(broker):
            reply = await broker.request(
                {"id": 1}, "orders", timeout=DEADLINE_S, correlation_id="c"
            )
            assert await reply.decode() == {"bill": 1}
            assert (reply.headers["by"], reply.correlation_id) == ("bill", "c")
            assert reply.raw_message.tags == "eu"
            with pytest.raises(TimeoutError):
                await broker.request({"id": 2}, "orders", timeout=0.2)
            free.set()
            assert await (await broker.request({"id": 3}, "orders", timeout=DEADLINE_S)).decode()
            assert got.all == [1, 2, 3]

    asyncio.run(main())


def test_a_handler_that_is_cancelled_by_a_stop_has_done_nothing(
    embedded: EmbeddedBroker,
) -> None:
    def app(handler: Any) -> OrderMQBroker:
        broker = OrderMQBroker(
            embedded.name_servers, group="shop", logger=None, graceful_timeout=0.1
        )
        broker.subscriber("orders", **FIRST, **SHORT_LEASE)(handler)
        return broker

    async def main() -> None:
        begun, got = asyncio.Event(), Got()

        async def hang(order: str) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with running(app(hang)) as broker:
            await broker.publish("1", "orders", sharding_key="k")
            await begun.wait()
        async with running(app(got.take)):
            assert await got.wait_for(1) == ["1"]

    asyncio.run(main())


def test_a_handler_may_stop_its_subscriber_and_its_message_is_redelivered(
    broker: OrderMQBroker, embedded: EmbeddedBroker
) -> None:
    async def main() -> None:
        got = Got()

        @broker.subscriber("orders", **FIRST)
        async def stop(order: str) -> None:
            await got.take(order)
            raise StopConsume

        async with running(broker):
            await broker.publish("1", "orders", sharding_key="k")
            await broker.publish("2", "orders", sharding_key="k")
            await got.wait_for(1)
            (subscriber,) = broker.subscribers
            await subscriber.stop()
            assert got.all == ["1"]
        second = OrderMQBroker(embedded.name_servers, group="shop", logger=None)
        second.subscriber("orders", **FIRST)(got.take)
        async with running(second):
            assert await got.wait_for(3) == ["1", "1", "2"]

    asyncio.run(main())


def test_a_body_that_cannot_be_read_fails_like_a_handler(
    broker: OrderMQBroker, embedded: EmbeddedBroker
) -> None:
    async def main() -> None:
        got = Got()

        @broker.subscriber("orders", group="bill", on_failure=DeadLetter(max_attempts=2), **FIRST)
        async def handle(order: dict[str, int]) -> None:
            await got.take(order)

        async with running(broker) as started:
            producer = await started.connect()
            headers = {"content-type": "application/json"}
            garbage = Message("orders", b'{"id": \xff', properties=headers)
            await producer.send(garbage, sharding_key="k")
            await broker.publish({"id": 1}, "orders", sharding_key="k")
            assert await got.wait_for(1) == [{"id": 1}]

    asyncio.run(main())
    (letter,) = read(embedded.name_servers, "%DLQ%bill", 1)
    assert bytes(letter.body) == b'{"id": \xff'


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR])
@pytest.mark.parametrize(
    ("order", "batch"), [("queue", False), ("queue", True), ("key", False), ("none", False)]
)
def test_a_body_that_cannot_be_decompressed_is_passed_over_by_the_policy(
    broker: OrderMQBroker, embedded: EmbeddedBroker, policy: AckPolicy, order: Any, batch: bool
) -> None:
    with WireClient(embedded.port) as client:
        client.create_topic("orders", 1)
        for number in range(3):
            sys_flag = 0x301 if number == 1 else 0
            properties = {"UNIQ_KEY": f"id-{number}", "__SHARDINGKEY": "k"}
            client.send("orders", b"abc"[number:][:1], properties=properties, sys_flag=sys_flag)

    async def main() -> None:
        got = Got()
        more = {"batch": True} if batch else {}

        @broker.subscriber("orders", group="bill", ack_policy=policy, order=order, **FIRST, **more)
        async def handle(orders: Any) -> None:
            for each in orders if batch else [orders]:
                await got.take(each)

        async with running(broker):
            assert sorted(await got.wait_for(2)) == [b"a", b"c"]

    asyncio.run(main())
    if policy is AckPolicy.REJECT_ON_ERROR:
        (letter,) = read(embedded.name_servers, "%DLQ%bill", 1)
        assert bytes(letter.stored_body) == b"b"


def test_an_empty_body_travels_as_one_byte_and_arrives_empty(
    broker: OrderMQBroker, embedded: EmbeddedBroker
) -> None:
    async def main() -> None:
        got = Got()

        @broker.subscriber("orders", **FIRST)
        async def handle(message: OrderMQMessage) -> None:
            await got.take((message.body, message.headers.get("empty-body")))

        async with running(broker):
            await broker.publish(None, "orders")
            assert await got.wait_for(1) == [(b"", "1")]

    asyncio.run(main())
    (stored,) = read(embedded.name_servers, "orders", 1)
    assert bytes(stored.body) == b"\0"


def test_messages_are_read_without_a_handler_and_the_last_one_is_redelivered(
    embedded: EmbeddedBroker,
) -> None:
    async def main() -> None:
        read_: list[Any] = []
        for count in 2, 1:
            broker = OrderMQBroker(embedded.name_servers, group="shop", logger=None)
            subscriber = broker.subscriber("orders", **FROM_FIRST)
            async with running(broker):
                if not read_:
                    for order in range(2):
                        await broker.publish(order, "orders", sharding_key="k")
                for _ in range(count):
                    message = await subscriber.get_one(timeout=DEADLINE_S)
                    assert message is not None
                    read_.append(await message.decode())
        assert read_ == [0, 1, 1]

    asyncio.run(main())


def test_dependencies_middlewares_routers_and_publishers_work_together(
    broker: OrderMQBroker, embedded: EmbeddedBroker
) -> None:
    class Order(BaseModel):
        id: int

    class Counting(BaseMiddleware):
        consumed = 0

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            type(self).consumed += 1
            return await call_next(msg)

    def tax() -> int:
        return 20

    router = OrderMQRouter(prefix="eu-", middlewares=(Counting,))
    got: list[Any] = []

    @router.subscriber("orders", **FIRST)
    @router.publisher("bills", headers={"kind": "bill"}, sharding_key="b")
    async def bill(order: Order, rate: int = Depends(tax)) -> dict[str, int]:
        got.append((order, rate))
        return {"bill": order.id}

    async def main() -> None:
        broker.include_router(router)
        async with running(broker):
            await broker.publish({"id": 17}, "eu-orders", sharding_key="k")
            (stored,) = await asyncio.to_thread(read, embedded.name_servers, "eu-bills", 1)
            assert json.loads(bytes(stored.body)) == {"bill": 17}
            assert (stored.sharding_key, stored.get_property("kind")) == ("b", "bill")

    asyncio.run(main())
    assert got == [(Order(id=17), 20)]
    assert Counting.consumed == 1
    document = AsyncAPI(broker).to_specification().to_jsonable()
    assert sorted(document["channels"]) == ["eu-bills:Publisher", "eu-orders:Bill"]
    assert document["servers"]["development"]["protocol"] == "rocketmq"


def test_in_a_test_handlers_are_called_without_a_network_or_at_an_embedded_broker() -> None:
    broker = OrderMQBroker("127.0.0.1:1", logger=None)
    app = FastStream(broker)

    @broker.subscriber("orders", **FIRST)
    @broker.publisher("bills")
    async def bill(order: int) -> int:
        if order < 0:
            raise ValueError("a test's own failure")
        return order * 2

    async def main() -> None:
        async with TestOrderMQBroker(broker) as tested:
            await tested.publish(17, "orders")
            bill.mock.assert_called_once_with(17)
            with pytest.raises(ValueError, match="own failure"):
                await tested.publish(-1, "orders")
            assert await (await tested.request(1, "orders")).decode() == 2
        async with TestOrderMQBroker(broker, embedded=True) as tested, asyncio.timeout(DEADLINE_S):
            assert await tested.ping(DEADLINE_S)
            await tested.publish(18, "orders")
            await bill.wait_call(DEADLINE_S)
            bill.mock.assert_called_once_with(18)
        assert broker.name_servers == "127.0.0.1:1"

    asyncio.run(main())
    assert app.brokers == [broker]


def test_what_could_not_act_is_refused_with_a_way_out(broker: OrderMQBroker) -> None:
    with pytest.raises(SetupError, match=r"AckPolicy\.ACK commits whatever the handler raises"):
        broker.subscriber("orders", ack_policy=AckPolicy.ACK_FIRST)
    with pytest.raises(SetupError, match="a subscriber needs a topic"):
        broker.subscriber()
    with pytest.raises(SetupError, match="expected 'queue', 'key' or 'none'"):
        broker.subscriber("orders", order="total")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="max_reconsume_times"):
        broker.subscriber("orders", order="none", on_failure=DeadLetter())
    with pytest.raises(SetupError, match="expected an OrderMQRouter, got object"):
        broker.include_router(object())
    with pytest.raises(SetupError, match="SASLPlaintext"):
        OrderMQBroker("127.0.0.1:1", security=SASLScram256("a", "b"))
    secured = OrderMQBroker("127.0.0.1:1", security=SASLPlaintext("key", "secret", use_ssl=True))
    assert secured.config.broker_config.remoting == {
        "tls": True,
        "access_key": "key",
        "secret_key": "secret",
    }


def test_subscribers_that_would_take_each_others_messages_are_refused() -> None:
    async def main(*groups: tuple[str, str]) -> None:
        broker = OrderMQBroker("127.0.0.1:1", group="shop", logger=None)
        for topic, group in groups:

            @broker.subscriber(topic, group=group)
            async def handle(order: int) -> None: ...

        async with TestOrderMQBroker(broker) as tested:
            await tested.publish(1, "orders")

    with pytest.raises(SetupError, match="group 'bill': two subscribers, of bills and of orders"):
        asyncio.run(main(("orders", "bill"), ("bills", "bill")))
    with pytest.raises(SetupError, match=r"group 'shop-orders'.*nobody has named a group"):
        asyncio.run(main(("orders", ""), ("orders", "")))
    asyncio.run(main(("orders", "bill"), ("orders", "bill"), ("orders", "post"), ("bills", "")))


def test_a_broker_that_is_away_does_not_answer_a_ping() -> None:
    async def main() -> None:
        broker = OrderMQBroker("127.0.0.1:1", logger=None, connect_timeout_ms=50)
        assert not await broker.ping(0.2)

    asyncio.run(main())
    gc.collect()
