"""Failed batches of polling consumers: one behaviour with listeners (docs/failures.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ordermq import (
    AsyncConsumer,
    DeadLetter,
    LitePullConsumer,
    ParkKey,
    Producer,
    Retry,
    Stop,
)
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.dispatch import failure_policy, polled_failures
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.errors import ConfigError, StateError
from tests.component.conftest import eventually, numbered
from tests.component.test_failure_rules import dead_letters
from tests.component.test_orderly_consumer import committed, send_all

QUICK = Retry(backoff_ms=10, factor=2, max_ms=40)
Handle = Callable[[Any], None]
# Polls until all is handled; `handle` raises where a batch fails.
Polls = Callable[[EmbeddedBroker, Handle, Callable[[], bool], dict[str, Any]], Any]
SETTINGS: dict[str, Any] = {
    "consume_from_where": "first_offset",
    "auto_commit_interval_ms": 50,
    "poll_batch_size": 4,
}


def subscribed(broker: EmbeddedBroker, **settings: Any) -> LitePullConsumer:
    consumer = LitePullConsumer("g", name_servers=broker.name_servers, **SETTINGS | settings)
    consumer.subscribe("orders")
    return consumer


def by_poll(
    broker: EmbeddedBroker, handle: Handle, is_over: Callable[[], bool], settings: dict[str, Any]
) -> Any:
    consumer = subscribed(broker, ordered=True, **settings)
    with consumer:
        while not is_over():
            with consumer.poll(20) as batch:
                handle(batch)
        eventually(lambda: all_done(consumer), "all is done")
        return consumer.statistics


def by_batches(
    broker: EmbeddedBroker, handle: Handle, is_over: Callable[[], bool], settings: dict[str, Any]
) -> Any:
    consumer = subscribed(broker, ordered=True, **settings)
    with consumer:
        for batch in consumer.batches():
            with batch:
                handle(batch)
            if is_over():
                break
        eventually(lambda: all_done(consumer), "all is done")
        return consumer.statistics


def by_async_for(
    broker: EmbeddedBroker, handle: Handle, is_over: Callable[[], bool], settings: dict[str, Any]
) -> Any:
    async def main() -> Any:
        consumer = AsyncConsumer(
            "g", "orders", name_servers=broker.name_servers, **SETTINGS | settings
        )
        async with consumer:
            async for batch in consumer:
                with batch:
                    handle(batch)
                if is_over():
                    break
            return consumer.statistics

    return asyncio.run(main())


def by_leaving_the_loop(
    broker: EmbeddedBroker, handle: Handle, is_over: Callable[[], bool], settings: dict[str, Any]
) -> Any:
    """Without `with batch:`: an exception leaves the loop, and the program enters it again."""

    async def main() -> Any:
        consumer = AsyncConsumer(
            "g", "orders", name_servers=broker.name_servers, **SETTINGS | settings
        )
        async with consumer:
            while not is_over():
                try:
                    async for batch in consumer.batches(50):
                        handle(batch)
                        await batch.commit()
                except ValueError:
                    continue
            return consumer.statistics

    return asyncio.run(main())


def all_done(consumer: LitePullConsumer) -> bool:
    return sum(lag.messages for lag in consumer.lag().values()) == 0


POLLS = pytest.mark.parametrize(
    "polls", [by_poll, by_batches, by_async_for, by_leaving_the_loop], ids=lambda way: way.__name__
)


@POLLS
def test_a_batch_that_fails_is_counted_paused_and_redelivered_in_order(
    producer: Producer, broker: EmbeddedBroker, polls: Polls
) -> None:
    send_all(producer, numbered(20, keys=1))
    tries: list[int] = []
    seen: list[int] = []

    def handle(batch: Any) -> None:
        numbers = [int(message.body) for message in batch]
        if 5 in numbers:
            tries.append(batch[numbers.index(5)].reconsume_times)
            if len(tries) < 4:
                raise ValueError("a test's own failure")
        seen.extend(numbers)

    statistics = polls(broker, handle, lambda: len(seen) == 20, {"on_failure": QUICK})
    assert seen == list(range(20))
    assert tries == [0, 1, 2, 3]
    assert statistics["batches_failed"] == 3


@POLLS
def test_a_message_that_keeps_failing_becomes_a_dead_letter_and_no_other(
    producer: Producer, broker: EmbeddedBroker, polls: Polls
) -> None:
    send_all(producer, numbered(20, keys=1))
    tries: Counter[int] = Counter()
    seen: list[int] = []

    def handle(batch: Any) -> None:
        numbers = [int(message.body) for message in batch]
        tries.update(numbers)
        if 5 in numbers:
            raise ValueError("a test's own failure")
        seen.extend(numbers)

    polls(broker, handle, lambda: len(seen) == 19, {"on_failure": DeadLetter(3, retry=QUICK)})
    assert seen == [number for number in range(20) if number != 5]
    assert tries[5] == 3
    eventually(lambda: dead_letters(broker) == ["5"], "the message is a dead letter")


def test_a_stopped_poller_is_not_ready_and_goes_on_by_resume(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(20, keys=2))
    consumer = subscribed(
        broker,
        ordered=True,
        on_failure=DeadLetter(1, retry=QUICK),
        pause_after_dead_letters=2,
        poll_batch_size=1,
    )
    with consumer:
        while not consumer.statistics["dead_letter_stops"]:
            with consumer.poll(20) as batch:
                if batch:
                    raise NameError("a test's own typo")
        assert not consumer.health().is_ready
        assert "2 dead letters among 2 messages of orders" in consumer.health().reasons[0]
        assert not consumer.poll(20)
        consumer.resume()
        seen = 0
        while seen < 18:
            with consumer.poll(200) as batch:
                seen += len(batch)
        assert consumer.health().is_ready
    assert len(dead_letters(broker)) == 2


def test_a_batch_is_done_at_the_end_of_its_block(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(4, keys=1))
    consumer = subscribed(broker, ordered=True)
    with consumer:
        with consumer.poll(10_000) as batch:
            count = len(batch)
        eventually(lambda: committed(broker) == count, "it is committed, and nobody polled again")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_is_no_failure_is_raised_and_the_batch_comes_again_at_once(
    producer: Producer, broker: EmbeddedBroker, error: type[BaseException]
) -> None:
    send_all(producer, numbered(4, keys=1))
    consumer = subscribed(broker, ordered=True)
    with consumer:
        batch = consumer.poll(10_000)
        with pytest.raises(error), batch:
            raise error
        again = consumer.poll(10_000)
        assert again.first_offset == batch.first_offset
        assert again[0].reconsume_times == 0


def test_times_of_polls_have_units(producer: Producer, broker: EmbeddedBroker) -> None:
    send_all(producer, numbered(4, keys=1))
    consumer = subscribed(broker)
    with consumer:
        batch = consumer.poll("10s")
        assert len(batch) == 4
        assert not consumer.poll(timedelta(milliseconds=1))
        assert [*consumer.batches("1ms")] == []
        assert consumer.offset_for_timestamp(batch.message_queue, "1h") == 0
        with pytest.raises(ConfigError, match="timeout_ms='3': expected ms as an int, a text with"):
            consumer.poll("3")


def test_a_stopped_queue_goes_on_by_resume(producer: Producer, broker: EmbeddedBroker) -> None:
    send_all(producer, numbered(4, keys=1))
    consumer = subscribed(broker, ordered=True, on_failure=Stop(1), poll_batch_size=1)
    with consumer:
        while not consumer.statistics["batches_failed"]:
            with consumer.poll(20) as batch:
                if batch:
                    raise ValueError("a test's own failure")
        eventually(lambda: any(each.is_paused for each in consumer.held_queues()), "it stops")
        consumer.resume()
        assert consumer.poll(10_000).first_offset == 0


def test_without_order_nothing_can_be_told(producer: Producer, broker: EmbeddedBroker) -> None:
    send_all(producer, numbered(4, keys=1))
    consumer = subscribed(broker)
    with consumer:
        batch = consumer.poll(10_000)
        with pytest.raises(StateError, match="needs ordered=True"), batch:
            pass
        with pytest.raises(StateError, match="needs ordered=True"):
            consumer.fail()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"on_failure": DeadLetter()}, "needs ordered=True"),
        ({"on_failure": ParkKey(), "ordered": True}, "keys are parked by a listener"),
        ({"on_failure": "retry", "ordered": True}, "expected Retry"),
        ({"dead_letter_window": 5}, "expected at least pause_after_dead_letters=10"),
    ],
)
def test_what_could_not_act_is_refused_at_construction(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LitePullConsumer("g", name_servers="127.0.0.1:1", **settings)


def test_a_letter_is_committed_at_once_while_a_later_batch_is_out(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(2, keys=1))
    settings = {"auto_commit_interval_ms": 600_000, "poll_batch_size": 1}
    policy = DeadLetter(9, dead_letter_on=(ValueError,))
    with subscribed(broker, ordered=True, on_failure=policy, **settings) as consumer:
        with consumer.poll("10s"):
            raise ValueError("a test's own failure")
        with consumer.poll("10s") as batch:
            assert [message.body for message in batch] == [b"1"]
            eventually(lambda: committed(broker) == 1, "the letter is committed")


def test_blocking_polls_of_several_cells_of_a_notebook_go_on_with_each_other(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(8, keys=1))

    async def cell(call: Callable[[], Any]) -> Any:
        return call()

    # As ipykernel does: each cell is a task of its own, all on the main thread.
    with (
        contextlib.closing(asyncio.new_event_loop()) as loop,
        subscribed(broker, ordered=True, poll_batch_size=2) as consumer,
    ):
        got: list[int] = []
        for _ in range(3):
            batch = loop.run_until_complete(cell(lambda: consumer.poll("10s")))
            got += [int(message.body) for message in batch]
        loop.run_until_complete(cell(consumer.commit))
        assert committed(broker) == 6
        batch = loop.run_until_complete(cell(lambda: next(iter(consumer.batches("10s")))))
        got += [int(message.body) for message in batch]
        loop.run_until_complete(consumer.acommit())
        assert committed(broker) == 8
        assert got == list(range(8))
        assert consumer.statistics["listener_errors"] == 0


@pytest.mark.parametrize("place", ["letter", "commit"])
def test_an_internal_error_while_a_batch_is_settled_stops_no_queue(
    producer: Producer, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """As where a dead letter finds no memory: else the batch would stay out for ever."""
    room, name = {
        "letter": (failure_policy, "send_dead_letter"),
        "commit": (OffsetCommitter, "commit_last"),
    }[place]
    work, failures = getattr(room, name), []

    async def fail_once(*given: Any) -> Any:
        if not failures:
            failures.append(1)
            raise MemoryError
        return await work(*given)

    monkeypatch.setattr(room, name, fail_once)
    monkeypatch.setattr(polled_failures, "_ERROR_PAUSE_MS", 10)
    send_all(producer, numbered(20))
    got: set[int] = set()

    def handle(batch: Any) -> None:
        numbers = [int(bytes(message.body)) for message in batch]
        if 7 in numbers:
            raise ValueError("a test's own failure")
        got.update(numbers)

    settings = {"on_failure": DeadLetter(2, retry=QUICK)}
    statistics = by_poll(broker, handle, lambda: len(got) == 19, settings)
    assert failures
    assert statistics["internal_errors"] == 1
    assert statistics["dead_letters"] == 1
