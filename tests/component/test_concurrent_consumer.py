"""A concurrent group on a real broker in the same process: no order, but nothing is lost."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ordermq import ConsumeResult, Message, MessageView, Producer, PushConsumer, Stop
from ordermq.broker import EmbeddedBroker, message_routing
from ordermq.client.broker_api import BrokerApi
from ordermq.consumer.dispatch.concurrent import ConcurrentDispatcher
from ordermq.consumer.listener import ConcurrentContext
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.errors import BrokerError, ConfigError, RequestTimeout, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import SCHEDULE_TOPIC, dead_letter_topic
from tests.component.conftest import DEADLINE_S, Seen, eventually, numbered
from tests.component.test_hand_off import Flow
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every delay level of the broker is 1 ms."""
    levels = len(message_routing.DELAY_LEVELS_MS)
    monkeypatch.setattr(message_routing, "DELAY_LEVELS_MS", (1,) * levels)


def numbers(seen: Seen) -> Counter[int]:
    return Counter(int(body) for _, _, _, body in seen.deliveries)


def each_once(count: int) -> Counter[int]:
    return Counter(range(count))


def waited_at_levels(broker: EmbeddedBroker) -> dict[int, int]:
    """Number of messages ever put into each delay level, asked over the wire."""
    with Producer("probe", name_servers=broker.name_servers) as probe:
        probe.queues("orders")
        client = probe._live()

        async def read() -> dict[int, int]:
            counts = {}
            for level in range(1, 19):
                queue = MessageQueue(SCHEDULE_TOPIC, "b", level - 1)
                count = await client.api.max_offset(client.routes.master_of("b"), queue)
                if count:
                    counts[level] = count
            return counts

        return client.runtime.call(read())


@pytest.mark.parametrize("batch", [1, 32])
def test_everything_arrives_once_and_is_committed(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, batch: int
) -> None:
    send_all(producer, numbered(1_000))
    with make_consumer(seen.take, concurrent=True, consume_message_batch_max_size=batch):
        seen.wait_for_count(1_000)
    assert numbers(seen) == each_once(1_000)
    assert committed(broker) == 1_000


def test_one_queue_is_consumed_by_as_many_listeners_as_there_are_threads(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(8, keys=1))
    all_there = threading.Barrier(8)

    def listen(messages: Any, context: Any) -> None:
        all_there.wait(DEADLINE_S)  # breaks, and fails the batch, unless eight are in here
        seen.take(messages, context)

    with make_consumer(listen, concurrent=True, consume_thread_count=8):
        seen.wait_for_count(8)
    assert numbers(seen) == each_once(8)


def test_async_listeners_run_at_once_up_to_the_thread_count(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(200, keys=1))
    running = most = 0

    async def listen(messages: Any, context: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        seen.take(messages, context)

    with make_consumer(listen, concurrent=True, consume_thread_count=4):
        seen.wait_for_count(200)
    assert numbers(seen) == each_once(200)
    assert most == 4


def test_a_listener_that_does_not_return_holds_the_commit_but_not_the_others(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(50, keys=1))
    let_go = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"7":
            assert let_go.wait(DEADLINE_S)
        seen.take(messages, context)

    with make_consumer(listen, concurrent=True):
        seen.wait_for_count(49)
        eventually(lambda: committed(broker) == 7, "what is below the slow message is committed")
        let_go.set()
        seen.wait_for_count(50)
    assert numbers(seen) == each_once(50)
    assert committed(broker) == 50


@pytest.mark.usefixtures("quick_retries")
def test_a_failed_message_is_redelivered_from_the_retry_topic_with_its_own_topic_restored(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(100))
    places: list[tuple[str, str, int, int]] = []

    def listen(messages: Any, context: Any) -> None:
        (message,) = messages
        if bytes(message.body) == b"17":
            place = message.topic, message.stored_topic, context.attempt, message.reconsume_times
            places.append(place)
            if context.attempt < 3:
                raise ValueError("a test's own failure")
        seen.take(messages, context)

    consumer = make_consumer(listen, concurrent=True)
    with consumer:
        seen.wait_for_count(100)
    assert numbers(seen) == each_once(100)
    retried = [("orders", "%RETRY%g", attempt, attempt) for attempt in (1, 2, 3)]
    assert places == [("orders", "orders", 0, 0), *retried]
    assert committed(broker) == 100
    assert waited_at_levels(broker) == {3: 1, 4: 1, 5: 1}  # longer each time
    assert consumer.statistics["sent_back"] == consumer.statistics["listener_errors"] == 3


@pytest.mark.usefixtures("quick_retries")
def test_the_unacknowledged_part_of_a_batch_is_redelivered_at_the_requested_level(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    for number in range(40):
        producer.send(Message("orders", str(number).encode()), sharding_key="k")

    def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> ConsumeResult:
        done = len(messages) if context.attempt else len(messages) // 2
        context.ack_index = done - 1
        context.delay_level = 9
        queue = context.message_queue.queue_id
        seen.add([(queue, m.queue_offset, m.sharding_key, bytes(m.body)) for m in messages[:done]])
        return ConsumeResult.SUCCESS

    with make_consumer(listen, concurrent=True, consume_message_batch_max_size=8):
        seen.wait_for_count(40)
    assert numbers(seen) == each_once(40)
    assert waited_at_levels(broker) == {9: 20}
    assert committed(broker) == 40


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("how", ["too often", "at once"])
def test_a_message_that_fails_for_good_goes_to_the_dead_letter_topic(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, how: str
) -> None:
    send_all(producer, numbered(30))
    attempts: list[int] = []

    def listen(messages: Any, context: Any) -> ConsumeResult | None:
        if bytes(messages[0].body) == b"17":
            attempts.append(context.attempt)
            context.delay_level = -1 if how == "at once" else 0
            return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return None

    dead = Seen()
    grave = PushConsumer(
        "gravedigger", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    grave.subscribe(dead_letter_topic("g"))
    grave.concurrently(dead.take)
    with make_consumer(listen, concurrent=True, max_reconsume_times=2), grave:
        seen.wait_for_count(29)
        dead.wait_for_count(1)
    assert [body for _, _, _, body in dead.deliveries] == [b"17"]
    assert attempts == ([0] if how == "at once" else [0, 1, 2])
    assert committed(broker) == 30


def refuse(times: int, error: Exception, monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """Make the first calls of a request of every client fail."""
    calls: list[int] = []
    real = getattr(BrokerApi, name)

    async def failing(api: BrokerApi, address: str, header: Any, *more: Any) -> Any:
        is_ours = name == "send_back" or header.topic.startswith("%RETRY%")
        if is_ours:
            calls.append(len(calls))
            if len(calls) <= times:
                raise error
        return await real(api, address, header, *more)

    monkeypatch.setattr(BrokerApi, name, failing)
    return calls


@pytest.mark.usefixtures("quick_retries")
def test_a_message_the_broker_does_not_take_back_is_sent_to_the_retry_topic(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = BrokerError("a test's own refusal", response_code=1)
    refuse(1_000, refused, monkeypatch, "send_back")
    send_all(producer, numbered(20))
    attempts: list[int] = []

    def listen(messages: Any, context: Any) -> int:
        if bytes(messages[0].body) == b"17":
            attempts.append(context.attempt)
            if len(attempts) < 3:
                return 0
        seen.take(messages, context)
        return len(messages)

    with make_consumer(listen, concurrent=True):
        seen.wait_for_count(20)
    assert numbers(seen) == each_once(20)
    assert attempts == [0, 1, 2]
    assert waited_at_levels(broker) == {3: 1, 4: 1}


@pytest.mark.usefixtures("quick_retries")
def test_a_message_no_broker_stores_again_is_retried_in_place_and_holds_the_commit(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed_out = RequestTimeout("a test's own time-out")
    refuse(1_000, timed_out, monkeypatch, "send_back")
    refuse(1_000, timed_out, monkeypatch, "send")
    send_all(producer, numbered(20, keys=1))
    heal = threading.Event()
    places: list[tuple[str, int]] = []

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"3":
            places.append((messages[0].stored_topic, context.attempt))
            if not heal.is_set():
                raise ValueError("a test's own failure")
        seen.take(messages, context)

    consumer = make_consumer(listen, concurrent=True, send_back_retry_ms=10)
    with consumer:
        seen.wait_for_count(19)
        eventually(lambda: len(places) >= 3, "several tries")
        eventually(lambda: committed(broker) == 3, "only what is below is committed")
        heal.set()
        seen.wait_for_count(20)
    assert places == [("orders", attempt) for attempt in range(len(places))]
    assert numbers(seen) == each_once(20)
    assert committed(broker) == 20
    assert consumer.statistics["send_back_errors"] == len(places) - 1


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_queue_restarts_after_an_internal_error_while_other_batches_run(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    broken, settle = threading.Event(), ConcurrentDispatcher._settle_call

    def break_once(*arguments: Any) -> None:
        if not broken.is_set():
            broken.set()
            raise TypeError("a defect")
        settle(*arguments)

    def listen(messages: Any, context: Any) -> int:
        seen.take(messages, context)
        return len(messages)  # a result that the dispatcher judges

    async def listen_async(messages: Any, context: Any) -> int:
        return listen(messages, context)

    monkeypatch.setattr(ConcurrentDispatcher, "_settle_call", break_once)
    send_all(producer, numbered(20, keys=1))
    consumer = make_consumer(listen if kind == "plain" else listen_async, concurrent=True)
    with consumer:
        eventually(lambda: committed(broker) == 20, "everything is committed")
        assert consumer.statistics["internal_errors"] == 1
    assert set(numbers(seen)) == set(each_once(20))


@pytest.mark.parametrize("place", ["_move_one", "_send_back"])
def test_messages_are_redelivered_after_an_internal_error_while_they_are_sent_back(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """The batch was neither done nor sent back, and `close` waited for it without end."""
    broken, work = threading.Event(), getattr(ConcurrentDispatcher, place)

    async def break_once(*arguments: Any) -> Any:
        if not broken.is_set():
            broken.set()
            raise TypeError("a defect")
        return await work(*arguments)

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if not broken.is_set():
            raise ValueError("a test's own failure")

    monkeypatch.setattr(ConcurrentDispatcher, place, break_once)
    send_all(producer, numbered(4, keys=1))
    consumer = make_consumer(listen, concurrent=True, send_back_retry_ms=10)
    with consumer:
        eventually(lambda: committed(broker) == 4, "everything is committed")
        assert consumer.statistics["internal_errors"] == 1
    assert set(numbers(seen)) == set(range(4))


def test_a_queue_that_broke_restarts_after_the_last_of_its_running_batches(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue restarts only after its batches have ended, and those end after the first try."""
    broken, let_go, tried = threading.Event(), threading.Event(), threading.Event()
    settle, regain = ConcurrentDispatcher._settle_call, AssignedQueue.regain

    def break_once(*arguments: Any) -> None:
        if not broken.is_set():
            broken.set()
            raise TypeError("a defect")
        settle(*arguments)

    def regain_told(*arguments: Any) -> bool:
        is_regained = regain(*arguments)
        tried.set()
        return is_regained

    def listen(messages: Any, context: Any) -> int:
        if bytes(messages[0].body) == b"1" and not tried.is_set():
            assert let_go.wait(DEADLINE_S)
        seen.take(messages, context)
        return len(messages)  # a result that the dispatcher judges

    monkeypatch.setattr(ConcurrentDispatcher, "_settle_call", break_once)
    monkeypatch.setattr(AssignedQueue, "regain", regain_told)
    send_all(producer, numbered(20, keys=1))
    with make_consumer(listen, concurrent=True):
        assert tried.wait(DEADLINE_S)
        let_go.set()
        eventually(lambda: committed(broker) == 20, "everything is committed")
    assert set(numbers(seen)) == set(each_once(20))


@pytest.mark.usefixtures("quick_retries")
def test_a_message_whose_listener_hangs_is_sent_back_and_its_late_result_ignored(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(20, keys=1))
    let_go, hung = threading.Event(), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"5" and not hung.is_set():
            hung.set()
            assert let_go.wait(DEADLINE_S)
            raise ValueError("a test's own late failure")
        seen.take(messages, context)

    consumer = make_consumer(listen, concurrent=True, consume_timeout_ms=50)
    with consumer:
        seen.wait_for_count(20)
        eventually(lambda: committed(broker) == 20, "the hung message no longer holds the commit")
        let_go.set()
    assert numbers(seen) == each_once(20)
    assert consumer.statistics["timed_out"] == consumer.statistics["sent_back"] == 1
    assert consumer.statistics["listener_errors"] == 0


def test_a_close_without_the_end_of_a_batch_says_that_it_is_redelivered_not_of_locks(
    producer: Producer, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> None:
        entered.set()
        go_on.wait(DEADLINE_S)

    producer.send(Message("orders", b"0"), sharding_key="k")
    consumer = make_consumer(listen, concurrent=True)
    consumer.start()
    assert entered.wait(DEADLINE_S)
    assert not consumer.close(0.05)
    go_on.set()
    (told,) = [text for text in caplog.messages if "closing with batches in progress" in text]
    assert told.endswith("; what is not committed is redelivered")
    assert "lock" not in told


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("batch", [1, 5])
def test_listeners_that_fail_and_hang_at_random_lose_nothing(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, batch: int
) -> None:
    """All kinds of failures among successes, while another member comes and goes."""
    send_all(producer, numbered(1_000))
    chance, choosing, hung = random.Random(batch), threading.Lock(), threading.Event()

    def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> object:
        with choosing:
            luck = chance.random()
        if luck < 0.02:
            raise ValueError("a test's own failure")
        if luck < 0.04:
            return ConsumeResult.SUSPEND
        if luck < 0.06:
            context.ack_index = len(messages) // 2 - 1
            seen.take(messages[: len(messages) // 2], context)
            return None
        if luck < 0.062:
            hung.wait(1)  # beyond its time-out; the messages are sent back meanwhile, or then
            raise ValueError("a test's own late failure")
        seen.take(messages, context)
        return None

    settings = {"concurrent": True, "consume_message_batch_max_size": batch}
    consumer = make_consumer(listen, **settings, consume_timeout_ms=100)
    with consumer:
        seen.wait_for_count(300)
        with make_consumer(listen, **settings, consume_timeout_ms=100) as second:
            eventually(lambda: len(second.assigned_queues()) >= 4, "a share")
        seen.wait_for(
            lambda deliveries: len({body for _, _, _, body in deliveries}) == 1_000,
            "all of them succeed in the end",
        )
        eventually(lambda: committed(broker) == 1_000, "everything is committed")
        hung.set()
    assert consumer.statistics["internal_errors"] == 0


def test_after_a_graceful_close_the_next_owner_repeats_nothing(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(16))
    settings = {"concurrent": True, "commit_interval_ms": 60_000}
    with Flow(producer, keys=10, sent=16) as flow:
        first = make_consumer(seen.take, **settings)
        first.start()
        seen.wait_for_count(100)
        assert first.close(10)
        second = make_consumer(seen.take, **settings)
        second.start()
        seen.wait_for_count(len(seen.deliveries) + 100)
    seen.wait_for_count(flow.sent)
    assert second.close(10)
    assert numbers(seen) == each_once(flow.sent)
    assert committed(broker) == flow.sent


def test_members_that_join_and_leave_under_load_lose_nothing(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(16))
    with Flow(producer, keys=10, sent=16) as flow:
        first = make_consumer(seen.take, concurrent=True)
        first.start()
        seen.wait_for_count(50)
        for _ in range(2):
            second = make_consumer(seen.take, concurrent=True)
            second.start()
            eventually(lambda second=second: len(second.assigned_queues()) >= 4, "a share")
            seen.wait_for_count(len(seen.deliveries) + 100)
            assert second.close(10)
    seen.wait_for(
        lambda deliveries: len({body for _, _, _, body in deliveries}) == flow.sent,
        f"all {flow.sent} messages",
    )
    assert first.close(10)
    assert committed(broker) == flow.sent


def test_a_concurrent_group_takes_no_lock(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(20))
    with make_consumer(seen.take, concurrent=True):
        seen.wait_for_count(20)
        with Producer("probe", name_servers=broker.name_servers) as probe:
            queues = probe.queues("orders")
            client = probe._live()
            address = client.routes.master_of("b")
            grant = client.runtime.call(client.api.lock(address, "g", queues))
    assert set(grant.granted) == set(queues)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"max_attempts": 3}, "max_attempts"),
        ({"auto_commit": False}, "auto_commit"),
        ({"on_failure": Stop()}, "on_failure"),
    ],
)
def test_settings_for_ordered_groups_only_are_refused(settings: dict[str, Any], name: str) -> None:
    consumer = PushConsumer("g", name_servers="127.0.0.1:1", **settings)
    with pytest.raises(ConfigError, match=f"{name}.*for @consumer.orderly only"):
        consumer.concurrently(lambda messages, context: None)


def test_a_consumer_has_one_listener_of_either_kind() -> None:
    consumer = PushConsumer("g", name_servers="127.0.0.1:1")

    @consumer.concurrently
    def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> None:
        context.delay_level = 3

    with pytest.raises(StateError, match="a listener already"):
        consumer.orderly(lambda messages, context: None)
    with pytest.raises(StateError, match="a listener already"):
        consumer.concurrently(listen)
