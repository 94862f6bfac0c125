"""`order_by_key=True`: the keys of one queue beside each other, on a real broker."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    ConsumeResult,
    DeadLetter,
    Message,
    ParkKey,
    Producer,
    PushConsumer,
    Retry,
    Stop,
)
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.dispatch.failure_policy import FailureHandler, FailurePolicy
from ordermq.errors import ConfigError
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    """All keys in one queue: only lanes can run them beside each other."""
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=1) as running:
        yield running


def orders_queue(consumer: PushConsumer) -> Any:
    """The assigned queue of the topic, None before it is ours."""
    found = [queue for queue in consumer.assigned_queues() if queue.topic == "orders"]
    return consumer._live().control.find(found[0]) if found else None


class Together:
    """A listener that counts how many calls, and of how many keys, run at once."""

    def __init__(self, seen: Seen) -> None:
        self._lock = threading.Lock()
        self._running: dict[str | None, int] = defaultdict(int)
        self._seen = seen
        self.most = 0
        self.same_key = 0

    def __call__(self, messages: Any, context: Any) -> None:
        keys = [message.sharding_key for message in messages]
        with self._lock:
            for key in keys:
                self._running[key] += 1
            self.same_key = max(self.same_key, *(self._running[key] for key in keys))
            self.most = max(self.most, sum(self._running.values()))
        try:
            self._seen.take(messages, context)
        finally:
            with self._lock:
                for key in keys:
                    self._running[key] -= 1


def poisoned_by(body: bytes, is_healed: threading.Event, seen: Seen) -> Callable[[Any, Any], None]:
    """A listener that fails on `body` until it is healed."""

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == body and not is_healed.is_set():
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    return listen


@pytest.mark.parametrize("batch", [1, 8])
def test_every_key_arrives_in_order_and_the_watermark_is_committed(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, batch: int
) -> None:
    send_all(producer, numbered(2_000))
    listener = Together(seen)
    with make_consumer(listener, order_by_key=True, consume_message_batch_max_size=batch):
        seen.wait_for_count(2_000)
    assert_in_order(seen, 2_000)
    assert seen.duplicates() == 0
    assert listener.same_key == 1
    assert committed(broker) == 2_000


def test_messages_of_other_keys_run_while_one_key_waits(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(200))
    let_go = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        if messages[0].sharding_key == "k3":
            assert let_go.wait(20)
        seen.take(messages, context)

    with make_consumer(listen, order_by_key=True) as consumer:
        seen.wait_for_count(180)
        # Offset 3 is not done, so nothing above it is committed, whatever is done.
        held = orders_queue(consumer)
        eventually(lambda: held.committed_offset == 3, "the watermark committed")
        assert held.done_offset == 3
        assert seen.bodies_of("k3") == []
        let_go.set()
        seen.wait_for_count(200)
    assert_in_order(seen, 200)
    assert committed(broker) == 200


def test_no_more_than_max_in_flight_run_at_once(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(300, keys=30))
    barrier = threading.Barrier(4)
    running = Together(seen)

    def listen(messages: Any, context: Any) -> None:
        if seen.duplicates() == 0 and not barrier.broken:
            try:
                barrier.wait(5)  # four at once, or the test fails below
            except threading.BrokenBarrierError:
                return running(messages, context)
        return running(messages, context)

    with make_consumer(listen, order_by_key=True, max_in_flight_per_queue=4):
        seen.wait_for_count(300)
    assert not barrier.broken
    assert running.most <= 4
    assert_in_order(seen, 300, keys=30)


def test_async_listeners_of_many_keys_wait_at_the_same_time(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(500))
    running: set[str] = set()
    most = 0

    async def listen(messages: Any, context: Any) -> None:
        nonlocal most
        (key,) = {message.sharding_key for message in messages}
        assert key not in running
        running.add(key)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(key)
        seen.take(messages, context)

    with make_consumer(listen, order_by_key=True):
        seen.wait_for_count(500)
    assert_in_order(seen, 500)
    assert seen.duplicates() == 0
    assert most > 1


def test_a_failing_key_is_retried_in_order_and_others_do_not_wait_for_it(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(300))
    tries: dict[bytes, int] = defaultdict(int)
    lock = threading.Lock()

    def listen(messages: Any, context: Any) -> ConsumeResult | None:
        body = bytes(messages[0].body)
        with lock:
            tries[body] += 1
        if int(body) % 7 == 0 and tries[body] < 3:
            assert context.attempt == tries[body] - 1
            return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return None

    with make_consumer(listen, order_by_key=True, suspend_current_queue_time_ms=10):
        seen.wait_for_count(300)
    assert_in_order(seen, 300)
    assert seen.duplicates() == 0
    assert {count for body, count in tries.items() if int(body) % 7} == {1}


@pytest.mark.parametrize("keyless", ["lane", "barrier"])
def test_failing_messages_without_a_key_keep_their_order_too(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, keyless: str
) -> None:
    for number in range(60):
        key = f"k{number % 3}" if number % 2 else None
        producer.send(Message("orders", str(number).encode()), sharding_key=key)
    tries: dict[bytes, int] = defaultdict(int)

    def listen(messages: Any, context: Any) -> None:
        body = bytes(messages[0].body)
        tries[body] += 1
        if int(body) % 10 == 0 and tries[body] < 2:
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    with make_consumer(
        listen, order_by_key=True, keyless=keyless, suspend_current_queue_time_ms=10
    ):
        seen.wait_for_count(60)
    without = [int(body) for _, _, key, body in seen.deliveries if key is None]
    assert without == list(range(0, 60, 2))
    if keyless == "barrier":
        order = [offset for _, offset, _, _ in seen.deliveries]
        for place, (_, offset, key, _) in enumerate(seen.deliveries):
            if key is None:
                assert max(order[:place], default=-1) < offset < min(order[place + 1 :], default=99)


NEVER_MS = 30_000_000  # a pause that no test waits for


@pytest.mark.parametrize(
    "on_failure",
    [
        Retry(backoff_ms=NEVER_MS, max_ms=NEVER_MS),
        Retry(backoff_ms=NEVER_MS, max_ms=NEVER_MS, dead_letter_on=KeyError),
        DeadLetter(9, retry=Retry(backoff_ms=NEVER_MS, max_ms=NEVER_MS)),
        DeadLetter(retry=Retry(backoff_ms=NEVER_MS, max_ms=NEVER_MS), retry_on=ValueError),
        ParkKey(max_attempts=2),
    ],
    ids=["retry", "hopeless", "limit", "outage", "park"],
)
@pytest.mark.parametrize("result", ["raises", "suspends", "returns"])
def test_only_the_failing_key_of_a_call_of_several_waits(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    on_failure: FailurePolicy,
    result: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send_all(producer, numbered(80, keys=8))
    sizes: list[int] = []

    def listen(messages: Any, context: Any) -> ConsumeResult | int | None:
        sizes.append(len(messages))
        keys = [message.sharding_key for message in messages]
        if "k1" not in keys:
            seen.take(messages, context)
            return None
        if result == "raises":
            raise ValueError("a test's own failure")
        if result == "suspends":
            return ConsumeResult.SUSPEND
        place = keys.index("k1")
        seen.take(messages[:place], context)
        return place

    with make_consumer(
        listen,
        order_by_key=True,
        consume_message_batch_max_size=4,
        suspend_current_queue_time_ms=30_000,
        on_failure=on_failure,
    ):
        seen.wait_for_count(70)
    assert max(sizes) > 1
    assert seen.bodies_of("k1") == []
    for key in range(8):
        if key != 1:
            assert seen.bodies_of(f"k{key}") == [b"%d" % n for n in range(key, 80, 8)]
    if result == "raises":
        assert "offsets 0-3 will be retried at once, each message alone (attempt 1" in caplog.text


def test_a_pause_that_the_listener_asks_for_is_of_all_keys_of_its_call(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(4, keys=4))
    attempts: list[tuple[int, int]] = []

    def listen(messages: Any, context: Any) -> ConsumeResult | None:
        attempts.append((len(messages), context.attempt))
        if not context.attempt:
            context.suspend_ms = 10
            return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return None

    with make_consumer(
        listen,
        order_by_key=True,
        consume_message_batch_max_size=4,
        suspend_current_queue_time_ms=30_000,
    ):
        seen.wait_for_count(4)
    assert attempts == [(4, 0), (1, 1), (1, 1), (1, 1), (1, 1)]


def test_a_poisoned_message_goes_to_the_dead_letter_topic_alone(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(60, keys=3))

    def listen(messages: Any, context: Any) -> None:
        if any(bytes(m.body) == b"17" for m in messages):
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    with make_consumer(
        listen,
        order_by_key=True,
        consume_message_batch_max_size=3,
        max_attempts=3,
        on_failure=DeadLetter(),
        suspend_current_queue_time_ms=10,
    ) as consumer:
        seen.wait_for_count(59)
        eventually(lambda: consumer.statistics["diverted"] == 1, "a dead letter")
    assert [int(b) for b in seen.bodies_of("k2")] == [n for n in range(2, 60, 3) if n != 17]
    assert committed(broker) == 60


def test_a_parked_key_blocks_no_other_key(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(100))
    is_healed = threading.Event()

    with make_consumer(
        poisoned_by(b"24", is_healed, seen),
        order_by_key=True,
        max_attempts=2,
        on_failure=ParkKey(),
        suspend_current_queue_time_ms=10,
    ) as consumer:
        eventually(lambda: consumer.statistics["parked"] == 1, "the key is parked")
        send_all(producer, numbered(100, start=100))
        seen.wait_for_count(182)  # all but 24, 34, ... 194
        assert seen.bodies_of("k4") == [b"4", b"14"]
        assert list(consumer.parked_keys().values()) == [["k4"]]
        assert not consumer.unpark("k5")
        is_healed.set()
        assert consumer.unpark("k4")
        seen.wait_for_count(200)
        assert consumer.parked_keys() == {}
    assert_in_order(seen, 200)
    assert seen.duplicates() == 0
    assert committed(broker) == 200


def test_a_queue_continues_after_an_internal_error_while_listeners_run(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, released, together = threading.Event(), threading.Event(), threading.Barrier(10)
    count = FailureHandler.next_step

    def break_once(*arguments: Any) -> Any:
        if broken.is_set():
            return count(*arguments)
        broken.set()
        raise TypeError("a defect")

    def listen(messages: Any, context: Any) -> None:
        if not broken.is_set():
            together.wait(20.0)
            if messages[0].sharding_key == "k4":
                raise ValueError("a test's own failure")
            assert released.wait(20.0)
        seen.take(messages, context)

    monkeypatch.setattr(FailureHandler, "next_step", break_once)
    with make_consumer(listen, order_by_key=True):
        send_all(producer, numbered(10))
        assert broken.wait(20.0)
        released.set()
        eventually(lambda: committed(broker) == 10, "it restarts")
        send_all(producer, numbered(10, start=10))
        eventually(lambda: committed(broker) == 20, "and continues")
    assert seen.bodies_of("k4") in ([b"4", b"14"], [b"4", b"4", b"14"])  # its lease was given up


def test_stop_halts_all_keys_and_resume_continues(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(100))
    is_healed = threading.Event()

    with make_consumer(
        poisoned_by(b"24", is_healed, seen),
        order_by_key=True,
        max_attempts=2,
        on_failure=Stop(),
        suspend_current_queue_time_ms=10,
    ) as consumer:
        eventually(lambda: orders_queue(consumer) is not None, "assigned")
        held = orders_queue(consumer)
        eventually(lambda: held.is_paused, "the queue stopped")
        is_healed.set()
        consumer.resume(held.queue)
        seen.wait_for_count(100)
    assert_in_order(seen, 100)


@pytest.mark.parametrize("broker_tells", [True, False])
def test_a_moving_queue_repeats_only_what_ran_ahead_of_a_slower_key(
    make_consumer: MakeConsumer,
    broker: EmbeddedBroker,
    producer: Producer,
    broker_history: Path,
    seen: Seen,
    tmp_path: Path,
    broker_tells: bool,
) -> None:
    """Members come and go under load; the audit says what may come twice (I5)."""
    rng = random.Random(7)
    histories = [tmp_path / f"member{number}.jsonl" for number in range(5)]
    for number, history in enumerate(histories[:-1]):
        # A part for each of them, or a quick one would leave nothing for the next.
        part = numbered(375, start=375 * number)
        sent = threading.Thread(target=send_all, args=(producer, part))
        with make_consumer(seen.take, order_by_key=True, history=history):
            before = len(seen.deliveries)
            sent.start()
            seen.wait_for_count(before + rng.randrange(50, 200))
        sent.join()
    with make_consumer(seen.take, order_by_key=True, history=histories[-1]):
        eventually(lambda: committed(broker) == 1_500, "everything committed")
    broker.close()
    report = audit([*histories, broker_history] if broker_tells else histories)
    assert report.ok, report.violation
    assert report.delivered == 1_500
    for key in range(10):
        first_seen = list(dict.fromkeys(int(body) for body in seen.bodies_of(f"k{key}")))
        assert first_seen == list(range(key, 1_500, 10))


def test_parking_and_manual_commit_say_what_they_need(broker: EmbeddedBroker) -> None:
    with pytest.raises(ConfigError, match="needs order_by_key=True"):
        PushConsumer("g", name_servers=broker.name_servers, on_failure=ParkKey())
    with pytest.raises(ConfigError, match="needs auto_commit"):
        PushConsumer("g", name_servers=broker.name_servers, order_by_key=True, auto_commit=False)
    consumer = PushConsumer("g", name_servers=broker.name_servers, order_by_key=True)
    with pytest.raises(ConfigError, match="order_by_key: for @consumer"):
        consumer.concurrently(lambda messages, context: None)
