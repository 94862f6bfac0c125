"""User code that raises what asyncio takes for its own: nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from ordermq import (
    AsyncConsumer,
    DeadLetter,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    Retry,
    TransactionProducer,
    TransactionState,
)
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.group.rebalance import _all_of
from tests.component.conftest import Seen, eventually

KINDS = [StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt, asyncio.CancelledError]
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def send_ten(broker: EmbeddedBroker) -> None:
    with Producer("pg", name_servers=broker.name_servers) as producer:
        producer.send_many((Message("orders", b"%d" % n), "key") for n in range(10))


@kinds
@pytest.mark.parametrize("place", ["on_assigned", "on_revoked"])
def test_a_callback_stops_neither_its_queue_nor_the_end(
    broker: EmbeddedBroker, kind: type[BaseException], place: str
) -> None:
    send_ten(broker)
    seen = Seen()

    def callback(queue: MessageQueue) -> NoReturn:
        raise kind("a test's own")

    consumer = PushConsumer(
        "g",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        **{place: callback},  # type: ignore[arg-type] # one of two
    )
    consumer.subscribe("orders")
    consumer.orderly(seen.take)
    with consumer:
        seen.wait_for_count(10)
        assert consumer.close() is True
    assert [body for *_, body in seen.deliveries] == [b"%d" % n for n in range(10)]
    eventually(lambda: consumer.statistics["callback_errors"] > 0, "the error is counted")


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
def test_a_callback_on_the_callers_loop_stops_neither(
    broker: EmbeddedBroker, kind: type[BaseException]
) -> None:
    send_ten(broker)
    seen = Seen()

    async def callback(queue: MessageQueue) -> NoReturn:
        raise kind("a test's own")

    async def consume() -> None:
        consumer = AsyncConsumer(
            "g",
            "orders",
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
            on_assigned=callback,
            on_revoked=callback,
        )

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:
            seen.take(messages, context)

        async with consumer:
            await asyncio.to_thread(seen.wait_for_count, 10)
            assert await consumer.close() is True

    asyncio.run(consume())
    assert len(seen.deliveries) == 10


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@kinds
def test_what_a_listener_raises_counts_as_its_failure(
    broker: EmbeddedBroker, kind: type[BaseException], is_async: bool
) -> None:
    send_ten(broker)
    seen = Seen()
    tries: list[bytes] = []

    def listen(messages: Any, context: Any) -> None:
        tries.extend(bytes(message.body) for message in messages)
        if tries[-1] == b"5":
            raise kind("a test's own")
        seen.take(messages, context)

    async def listen_async(messages: Any, context: Any) -> None:
        listen(messages, context)

    consumer = PushConsumer(
        "g",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        on_failure=DeadLetter(2, retry=Retry(backoff_ms=10)),
    )
    consumer.subscribe("orders")
    consumer.orderly(listen_async if is_async else listen)
    with consumer:
        seen.wait_for_count(9)
        assert consumer.close() is True
        counts = consumer.statistics.as_dict()
    assert tries == [b"%d" % n for n in (0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9)]
    assert (counts["listener_errors"], counts["dead_letters"]) == (2, 1)


class OddStore:
    """Keeps offsets in memory; the first two calls of one kind raise."""

    def __init__(self, kind: type[BaseException], call: str) -> None:
        self._kind = kind
        self._call = call
        self.failures = 0
        self.offsets: dict[MessageQueue, int] = {}

    def open(self) -> None: ...

    def take_over(self, group: str, queue: MessageQueue, epoch: int, /) -> int | None:
        return self.read(group, queue)

    def read(self, group: str, queue: MessageQueue, /) -> int | None:
        self._may_fail("read")
        return self.offsets.get(queue)

    def write(
        self, group: str, queue: MessageQueue, offset: int, epoch: int, /, *, is_reset: bool = False
    ) -> None:
        self._may_fail("write")
        self.offsets[queue] = offset

    def _may_fail(self, call: str) -> None:
        if call == self._call and self.failures < 2:
            self.failures += 1
            raise self._kind("a test's own")


@pytest.mark.parametrize("kind", [*KINDS, ValueError])
@pytest.mark.parametrize("call", ["read", "write"])
def test_a_store_of_offsets_is_asked_again_and_nothing_comes_twice(
    broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
    call: str,
) -> None:
    send_ten(broker)
    seen = Seen()
    store = OddStore(kind, call)
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset", offset_store=store
    )
    consumer.subscribe("orders")
    consumer.orderly(seen.take)
    with consumer:
        seen.wait_for_count(10)
        assert consumer.close() is True
    assert store.failures == 2
    assert len(seen.deliveries) == 10
    assert 10 in store.offsets.values()
    assert "internal error" not in caplog.text
    assert f"OddStore raised {kind.__name__}" in caplog.text or kind in (
        StopIteration,
        asyncio.CancelledError,  # in words of a RuntimeError
    )


@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError])
def test_a_local_transaction_that_is_awaited_is_unknown(
    broker: EmbeddedBroker, kind: type[BaseException]
) -> None:
    def execute(message: Message, argument: Any) -> TransactionState:
        raise kind("a test's own")

    with TransactionProducer(
        "pg",
        execute=execute,
        check=lambda message: TransactionState.ROLLBACK,
        name_servers=broker.name_servers,
    ) as producer:
        receipt = asyncio.run(producer.asend_in_transaction(Message("orders", b"1")))
    assert receipt.state is TransactionState.UNKNOWN


def test_queues_are_taken_to_the_end_before_an_error_begins_another_pass() -> None:
    ended = []

    async def take(turns: int, error: BaseException | None) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        ended.append(turns)
        if error is not None:
            raise error

    with pytest.raises(ValueError, match="of one queue"):
        asyncio.run(_all_of([take(1, ValueError("of one queue")), take(5, None)]))
    assert ended == [1, 5]
