"""AsyncProducer: sends awaited on the caller's loop, and what a cancelled caller is told."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ordermq import AsyncProducer, Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import (
    BrokerError,
    ConfigError,
    RequestTimeout,
    RequestTooLarge,
    StateError,
    UsedAfterFork,
)
from tests.component.conftest import eventually
from tests.component.forked import in_child
from tests.component.test_async_consumer import LOOPS, Run, limited, made, run, until
from tests.silent_addresses import stalled

__all__ = ["run"]  # a fixture


def made_producer(broker: EmbeddedBroker, **settings: Any) -> AsyncProducer:
    settings = {"default_topic_queue_nums": 8} | settings
    return AsyncProducer("p", name_servers=broker.name_servers, **settings)


def numbers(receipts: Any) -> list[int]:
    return [receipt.queue_offset for receipt in receipts]


def test_every_way_to_send_keeps_the_order_of_a_key(broker: EmbeddedBroker, run: Run) -> None:
    async def events() -> AsyncIterator[tuple[Message, str]]:
        for number in range(3):
            await asyncio.sleep(0)
            yield Message("orders", b"%d" % (7 + number)), "k"

    async def main() -> list[bytes]:
        async with made_producer(broker) as producer:
            first = await producer.send(Message("orders", b"0"), sharding_key="k")
            both = await producer.send_batch(
                [Message("orders", b"1"), Message("orders", b"2")], sharding_key="k"
            )
            tasks = [
                asyncio.create_task(producer.send(Message("orders", b"%d" % n), sharding_key="k"))
                for n in (3, 4)
            ]
            await asyncio.wait(tasks)
            future = producer.send_nowait(Message("orders", b"5"), sharding_key="k")
            assert future.get_loop() is asyncio.get_running_loop()
            producer.send_oneway(Message("orders", b"6"), sharding_key="k")
            many = await producer.send_many(events(), max_in_flight=2)
            plain = await producer.send_many([(Message("orders", b"10"), "k")])
            await producer.flush()
            assert future.done()
            assert numbers([first, *both, *(task.result() for task in tasks), future.result()]) == [
                0, 1, 2, 3, 4, 5,
            ]  # fmt: skip
            assert numbers([*many, *plain]) == [7, 8, 9, 10]
            assert (await producer.health()).is_ready
            assert len(await producer.queues("orders")) == 8
        async with made(broker) as consumer:
            bodies: list[bytes] = []
            async for batch in consumer:
                bodies += [bytes(message.body) for message in batch]
                if len(bodies) == 11:
                    break
        return bodies

    assert run(main()) == [b"%d" % number for number in range(11)]


def test_failures_are_raised_where_they_are_awaited(broker: EmbeddedBroker, run: Run) -> None:
    async def main() -> None:
        producer = made_producer(broker, max_message_bytes=100)
        with pytest.raises(StateError, match="not running"):
            await producer.send(Message("orders", b"early"))
        async with producer:
            with pytest.raises(ConfigError, match="max_message_bytes"):
                await producer.send(Message("orders", bytes(200)))
            with pytest.raises(ConfigError, match="one topic"):
                await producer.send_batch([Message("a", b"1"), Message("b", b"2")])
            with pytest.raises(ConfigError, match="max_in_flight=1"):
                await producer.send_many([], max_in_flight=1)
            unknown = (await producer.queues("orders"))[0]._replace(queue_id=77)
            with pytest.raises(BrokerError):
                await producer.send(Message("orders", b"x"), queue=unknown)
            with pytest.raises(BrokerError):
                await producer.send_nowait(Message("orders", b"x"), queue=unknown)
        with pytest.raises(StateError, match="not running"):
            await producer.send(Message("orders", b"late"))

    run(main())


def test_send_many_raises_the_first_failure_and_reports_no_other_as_lost(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def too_large() -> Iterator[tuple[Message, str]]:
        for number in range(10):
            yield Message("orders", bytes(200)), f"k{number}"
        raise ValueError("of the source")

    async def main(broker: EmbeddedBroker) -> None:
        async with made_producer(broker) as producer:
            await producer.send(Message("orders", b"the route is known"))
            for in_flight in (2, 256):
                with pytest.raises(RequestTooLarge):
                    await producer.send_many(too_large(), max_in_flight=in_flight)
            with pytest.raises(ValueError, match="of the source"):
                await producer.send_many(event for event in too_large() if event[1] == "none")
            await producer.flush()
        gc.collect()

    with EmbeddedBroker(config=BrokerConfig(max_message_bytes=100)) as broker:
        run(main(broker))
    assert not caplog.records


def test_a_cancelled_send_is_sent_all_the_same_and_says_so(
    producer: Producer, broker: EmbeddedBroker, run: Run
) -> None:
    producer.send(Message("orders", b"the first"), sharding_key="k")

    async def main() -> None:
        async with made_producer(broker) as own:
            sending = asyncio.create_task(own.send(Message("orders", b"x"), sharding_key="k"))
            await asyncio.sleep(0)  # it has handed its message over
            sending.cancel()
            with pytest.raises(asyncio.CancelledError) as raised:
                await sending
            assert "is sent all the same" in raised.value.__notes__[0]
            kept = own.send_nowait(Message("orders", b"y"), sharding_key="k")
            await own.flush()
            assert (await asyncio.shield(kept)).queue_offset == 2, "behind the cancelled one"

    run(main())


def test_a_failure_whose_caller_was_cancelled_is_logged(
    broker: EmbeddedBroker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ordermq.producer")

    async def main() -> None:
        async with made_producer(broker) as producer:
            await producer.send(Message("orders", b"makes the topic"))
            unknown = (await producer.queues("orders"))[0]._replace(queue_id=77)
            for each in (
                producer.send(Message("orders", b"x"), queue=unknown),
                producer.send_batch([Message("orders", b"y")] * 2, queue=unknown),
            ):
                sending = asyncio.create_task(each)
                await asyncio.sleep(0)
                sending.cancel()
                await asyncio.wait([sending])
                assert sending.cancelled()
            await producer.flush()
            told = "failed after its caller was cancelled"
            await until(lambda: caplog.text.count(told) >= 2, "both are logged")

    run(main())


def test_a_silent_server_holds_up_a_flush_and_a_cancelled_close_no_longer_than_asked(
    run: Run,
) -> None:
    async def main(address: str) -> None:
        producer = AsyncProducer("p", name_servers=address, request_timeout_ms=60_000)
        await producer.start()
        waiting = producer.send_nowait(Message("orders", b"y"), sharding_key="k")
        with pytest.raises(RequestTimeout, match="still wait"):
            await producer.flush(0.01)
        closing = asyncio.create_task(producer.close(600))
        await asyncio.sleep(0)
        assert not waiting.done()
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        with pytest.raises(StateError, match="not running"):
            await waiting

    with stalled() as address:
        run(main(address))


def test_a_close_that_is_hurried_before_its_thread_has_begun_it_does_not_wait() -> None:
    with stalled() as address:
        producer = Producer("p", name_servers=address, request_timeout_ms=60_000)
        producer.start()
        waiting = producer.send_nowait(Message("orders", b"y"), sharding_key="k")
        producer.hurry_close()
        producer.close(600)
        with pytest.raises(StateError, match=r"not running|stopped sending"):
            waiting.result(20)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_needs_a_producer_of_its_own(broker: EmbeddedBroker) -> None:
    async def main() -> None:
        async with made_producer(broker) as producer:
            await producer.send(Message("orders", b"the parent's"))

            async def of_child() -> None:
                with pytest.raises(UsedAfterFork, match="AsyncProducer p was created in process"):
                    await producer.send(Message("orders", b"x"))
                await producer.close()
                async with made_producer(broker) as own:
                    await own.send(Message("orders", b"the child's"))

            def child() -> None:
                asyncio.events._set_running_loop(None)  # this fork is made while a loop runs
                asyncio.run(of_child())

            in_child(child)
            await producer.send(Message("orders", b"the parent's"))

    asyncio.run(limited(main()))


def test_a_caller_whose_loop_is_closed_is_not_missed(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A blocking program may await single sends on loops of their own."""
    producer = made_producer(broker)
    asyncio.run(producer.start())
    offsets = set()
    for new_loop in LOOPS.values():
        with asyncio.Runner(loop_factory=new_loop) as runner:
            receipt = runner.run(producer.send(Message("orders", b"x"), sharding_key="k"))
            offsets.add(receipt.queue_offset)

    async def abandoned() -> None:
        producer.send_nowait(Message("orders", b"y"), sharding_key="k")

    asyncio.run(abandoned())
    asyncio.run(producer.close())
    assert offsets == {0, 1}
    eventually(lambda: "internal error" not in caplog.text, "nothing broke")
