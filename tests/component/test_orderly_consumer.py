"""A listener's messages and the effects of its answers, on a real broker in the same process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from ordermq import (
    Admin,
    ConsumeResult,
    DeadLetter,
    LitePullConsumer,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    Stop,
)
from ordermq.broker import EmbeddedBroker
from ordermq.client.broker_api import BrokerApi
from ordermq.consumer.dispatch.worker_pool import stack_of_thread
from ordermq.consumer.fetch.life_watch import LifeWatch
from ordermq.consumer.listener import ConsumeContext
from ordermq.core import RecordWriter
from ordermq.errors import ConfigError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import dead_letter_topic
from tests.component.conftest import Seen, assert_in_order, eventually, numbered

MakeConsumer = Callable[..., PushConsumer]


def send_all(producer: Producer, events: list[tuple[Message, str]]) -> None:
    producer.send_many(events)


def committed(broker: EmbeddedBroker, topic: str = "orders", group: str = "g") -> int:
    """The sum of the group's committed offsets, asked over the wire."""
    with Producer("probe", name_servers=broker.name_servers) as probe:
        queues = probe.queues(topic)
        client = probe._live()
        api: BrokerApi = client.api

        async def read() -> int:
            found = [
                await api.query_offset(client.routes.master_of(q.broker_name), group, q)
                for q in queues
            ]
            return sum(offset or 0 for offset in found)

        return client.runtime.call(read())


@pytest.mark.parametrize("batch", [1, 32])
def test_every_key_arrives_in_order_and_everything_is_committed(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, batch: int
) -> None:
    send_all(producer, numbered(2_000))
    with make_consumer(seen.take, consume_message_batch_max_size=batch):
        seen.wait_for_count(2_000)
    assert_in_order(seen, 2_000)
    assert seen.duplicates() == 0
    assert committed(broker) == 2_000


def test_run_goes_on_with_a_started_consumer_until_a_signal(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(20))

    def end_when_seen() -> None:
        seen.wait_for_count(20)
        eventually(lambda: signal.getsignal(signal.SIGTERM) is not before, "run() waits for it")
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with make_consumer(seen.take) as consumer:
        ending = threading.Thread(target=end_when_seen)
        ending.start()
        assert consumer.run()
        ending.join()
        with pytest.raises(StateError, match="only once"):
            consumer.run()
    assert_in_order(seen, 20)


def test_messages_sent_while_a_consumer_waits_arrive_at_once(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(10))
    with make_consumer(seen.take):
        seen.wait_for_count(10)
        send_all(producer, numbered(90, start=10))
        seen.wait_for_count(100)
    assert_in_order(seen, 100)


def test_a_listener_that_blocks_holds_up_no_other_queue(
    producer: Producer, make_consumer: MakeConsumer
) -> None:
    # Each queue's first call waits until every queue is in a call: so each has its own thread,
    # though one thread serves them all as long as calls are quick.
    send_all(producer, numbered(400, keys=100))
    queues = len(producer.queues("orders"))
    assert queues > 1
    together = threading.Barrier(queues, timeout=20)
    begun: set[int] = set()
    met = threading.Semaphore(0)
    failed: list[BaseException] = []

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        queue = context.message_queue.queue_id
        if queue in begun:
            return
        begun.add(queue)
        try:
            together.wait()
        except threading.BrokenBarrierError as error:
            failed.append(error)
        met.release()

    with make_consumer(listen):
        for _ in range(queues):
            assert met.acquire(timeout=20)
    assert failed == []
    assert begun == set(range(queues))


def test_a_consumer_started_before_its_topic_exists_gets_the_first_message(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    with make_consumer(seen.take):
        send_all(producer, numbered(5))
        seen.wait_for_count(5)


@pytest.mark.parametrize("is_seen_away", [True, False])
@pytest.mark.parametrize("concurrent", [True, False])
def test_the_new_queues_of_a_topic_that_is_made_anew_are_found_before_the_next_look_at_routes(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    is_seen_away: bool,
    concurrent: bool,
) -> None:
    with Admin(broker.name_servers) as admin:
        admin.create_topic("orders", 1)
        producer.send(Message("orders", b"old"))
        often = {"route_interval_ms": 600_000, "rebalance_interval_ms": 50}
        with make_consumer(seen.take, concurrent=concurrent, **often) as consumer:
            seen.wait_for_count(1)
            admin.delete_topic("orders")
            if is_seen_away:
                eventually(lambda: "was deleted" in str(consumer.health().reasons), "deletion told")
            admin.create_topic("orders", 4)
            with Producer("others", name_servers=broker.name_servers) as other:
                for queue in other.queues("orders"):
                    other.send(Message("orders", b"new"), queue=queue)
            seen.wait_for_count(5)
            assert {queue for queue, *_ in seen.deliveries[1:]} == {0, 1, 2, 3}
            eventually(lambda: not consumer.health().reasons, "nothing is told any more")


def test_async_listeners_get_the_same_order(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(500))

    async def listen(messages: Any, context: Any) -> None:
        await asyncio.sleep(0)
        seen.take(messages, context)

    with make_consumer(listen, consume_message_batch_max_size=8):
        seen.wait_for_count(500)
    assert_in_order(seen, 500)
    assert seen.duplicates() == 0


def test_a_raising_listener_gets_the_same_message_again_before_any_other_of_its_queue(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(200))
    failed: dict[int, int] = {}
    attempts: list[int] = []

    def listen(messages: Any, context: Any) -> None:
        queue = context.message_queue.queue_id
        if context.attempt:
            attempts.append(context.attempt)
        if failed.setdefault(queue, 0) < 2:
            failed[queue] += 1
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    with make_consumer(listen, suspend_current_queue_time_ms=10):
        seen.wait_for_count(200)
    assert_in_order(seen, 200)
    assert seen.duplicates() == 0
    assert max(attempts) == 2


def test_an_int_answer_commits_so_many_and_brings_the_rest_again(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(300))

    def listen(messages: Any, context: Any) -> int:
        done = (len(messages) + 1) // 2
        queue = context.message_queue.queue_id
        seen.add([(queue, m.queue_offset, m.sharding_key, bytes(m.body)) for m in messages[:done]])
        return done

    with make_consumer(listen, consume_message_batch_max_size=16, suspend_current_queue_time_ms=10):
        seen.wait_for_count(300)
    assert_in_order(seen, 300)
    assert seen.duplicates() == 0
    assert committed(broker) == 300


def test_manual_mode_commits_nothing_until_commit_and_rollback_brings_all_back(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(40, keys=1))
    rolled_back = threading.Event()

    def listen(messages: Any, context: Any) -> ConsumeResult:
        seen.take(messages, context)
        last = messages[-1].queue_offset
        if last == 19 and not rolled_back.is_set():
            rolled_back.set()
            return ConsumeResult.ROLLBACK
        return ConsumeResult.COMMIT if last in (29, 39) else ConsumeResult.SUCCESS

    with make_consumer(listen, auto_commit=False, suspend_current_queue_time_ms=10):
        seen.wait_for_count(60)
        eventually(lambda: committed(broker) == 40, "offset 40 committed")
    bodies = [int(body) for body in seen.bodies_of("k0")]
    assert bodies == [*range(20), *range(40)]


def test_a_poisoned_message_goes_to_the_dead_letter_topic_alone(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(60, keys=1))

    def listen(messages: Any, context: Any) -> None:
        if any(bytes(m.body) == b"17" for m in messages):
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    dead = Seen()
    with make_consumer(
        listen,
        consume_message_batch_max_size=8,
        max_attempts=3,
        on_failure=DeadLetter(),
        suspend_current_queue_time_ms=10,
    ):
        seen.wait_for_count(59)
    assert [int(b) for b in seen.bodies_of("k0")] == [n for n in range(60) if n != 17]
    assert committed(broker) == 60
    grave = PushConsumer(
        "gravedigger", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    grave.subscribe(dead_letter_topic("g"))
    grave.orderly(dead.take)
    with grave:
        dead.wait_for_count(1)
    assert dead.bodies_of("k0") == [b"17"]


def test_stop_halts_the_queue_and_resume_goes_on(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(20, keys=1))
    poisoned = threading.Event()
    failures = threading.Semaphore(0)

    def listen(messages: Any, context: Any) -> None:
        if messages[0].queue_offset == 5 and not poisoned.is_set():
            failures.release()
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    consumer = make_consumer(
        listen, max_attempts=2, on_failure=Stop(), suspend_current_queue_time_ms=10
    )
    with consumer:
        assert failures.acquire(timeout=10)
        assert failures.acquire(timeout=10)
        (queue,) = [q for q in consumer.assigned_queues() if q.queue_id == queue_of(seen)]
        eventually(lambda: consumer._live().control.find(queue).is_paused, "the queue stopped")
        assert len(seen.deliveries) == 5
        poisoned.set()
        consumer.resume(queue)
        seen.wait_for_count(20)
    assert_in_order(seen, 20, keys=1)


def queue_of(seen: Seen) -> int:
    return seen.deliveries[0][0]


def test_only_subscribed_tags_arrive_and_the_offset_passes_the_others(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, broker: EmbeddedBroker
) -> None:
    tags = ["paid", "refunded", "Aa", "BB"]  # "Aa" and "BB" share their Java hash
    events = [
        (Message("orders", str(n).encode(), tags=tags[n % 4]), f"k{n % 10}") for n in range(400)
    ]
    send_all(producer, events)
    with make_consumer(seen.take, tags="paid || Aa"):
        seen.wait_for_count(200)
        eventually(lambda: committed(broker) == 400, "the filtered tail is committed")
    assert {int(body) % 4 for _, _, _, body in seen.deliveries} == {0, 2}


def test_a_paused_queue_is_silent_until_resumed(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    consumer = make_consumer(seen.take)
    send_all(producer, numbered(1, keys=1))
    with consumer:
        seen.wait_for_count(1)
        (queue,) = [q for q in consumer.assigned_queues() if q.queue_id == queue_of(seen)]
        consumer.pause(queue)
        send_all(producer, numbered(50, keys=1, start=1))
        held = consumer._live().control.find(queue)
        eventually(lambda: held.process_queue.pending_count >= 32, "messages buffered")
        assert len(seen.deliveries) == 1
        consumer.resume(queue)
        seen.wait_for_count(51)
    assert_in_order(seen, 51, keys=1)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_members_of_one_instance_name_are_two_members(
    broker: EmbeddedBroker, producer: Producer, kind: Any
) -> None:
    def member(**settings: Any) -> Any:
        made = kind("g", name_servers=broker.name_servers, instance_name="till", **settings)
        made.subscribe("orders")
        if kind is PushConsumer:
            made.orderly(lambda messages, context: None)
        return made

    def share(of: Any) -> set[MessageQueue]:
        held = of.assigned_queues() if kind is PushConsumer else of.assignment()
        return {queue for queue in held if queue.topic == "orders"}

    send_all(producer, numbered(1, keys=1))
    settings = {} if kind is PushConsumer else {"ordered": True}
    with member(**settings) as one, member(**settings) as two:
        assert "@till#" in one.client_id
        assert one.client_id != two.client_id
        eventually(lambda: len(share(one)) == len(share(two)) > 0, "half of the queues each")
        assert not share(one) & share(two)


def test_what_could_never_be_called_or_subscribed_is_refused_at_once() -> None:
    for register in ("orderly", "concurrently"):
        for wrong in (None, "listen", lambda messages: None, lambda a, b, c: None):
            consumer = PushConsumer("g", name_servers="127.0.0.1:1")
            with pytest.raises(ConfigError, match="messages, context"):
                getattr(consumer, register)(wrong)
            getattr(consumer, register)(lambda messages, context, more=1: None)
    with pytest.raises(ConfigError, match="tag expression 5"):
        consumer.subscribe("orders", 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"on_failure='retry'.*ParkKey\(\)"):
        PushConsumer("g", name_servers="127.0.0.1:1", on_failure="retry")  # type: ignore[arg-type]
    for wrong in (None, 9876, [9876]):
        with pytest.raises(ConfigError, match=r"expected host:port, as 127\.0\.0\.1:9876"):
            PushConsumer("g", name_servers=wrong)  # type: ignore[arg-type]


def test_starting_without_listener_or_subscription_says_what_is_missing(
    broker: EmbeddedBroker,
) -> None:
    consumer = PushConsumer("g", name_servers=broker.name_servers)
    with pytest.raises(StateError, match="listener"):
        consumer.start()
    consumer.orderly(lambda messages, context: None)
    with pytest.raises(StateError, match="subscribe"):
        consumer.start()
    with pytest.raises(ConfigError, match="letters"):
        consumer.subscribe("no blanks")


def test_a_message_nobody_looked_at_never_becomes_an_object(
    producer: Producer, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ordermq.model import message as message_module

    made: list[MessageView] = []

    class Counted(message_module.MessageView):
        def __new__(cls, *arguments: Any) -> Counted:
            view = super().__new__(cls)
            made.append(view)
            return view

    monkeypatch.setattr(message_module, "MessageView", Counted)
    # Which looks at single messages, that no listener gets.
    monkeypatch.setattr(LifeWatch, "note_messages", lambda self: None)
    send_all(producer, numbered(500))
    done = threading.Semaphore(0)

    def listen(messages: Any, context: Any) -> None:
        for _ in range(len(messages)):
            done.release()

    with make_consumer(listen, consume_message_batch_max_size=32):
        for _ in range(500):
            assert done.acquire(timeout=20)
    # Where Python pulls, the first answer of a queue is looked at: it marks the queue's life.
    assert len(made) == len({view.message_queue for view in made})
    made.clear()
    written = RecordWriter("t", 0, bytes(8), bytes(8)).write(
        b"x", b"", flag=0, sys_flag=0, born_ms=0, stored_ms=0
    )
    ((_, _, record),) = written.rows(0, 0)
    batch = message_module.MessageBatch(MessageQueue("t", "b", 0), bytes(record))
    assert [*batch, *message_module.MessageRun([(batch, 0, 1)]), batch[0]] == made  # it counts


def test_a_raising_callback_stops_no_queue_and_every_queue_is_told_of_its_end(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(40))
    revoked: list[int] = []

    def on_assigned(queue: Any) -> None:
        raise ValueError("a test's own failure")

    consumer = make_consumer(
        seen.take, on_assigned=on_assigned, on_revoked=lambda queue: revoked.append(queue.queue_id)
    )
    with consumer:
        seen.wait_for_count(40)
    assert sorted(revoked) == list(range(8))  # not of the retry queue, which stays empty
    assert consumer.statistics["callback_errors"] == 8


def test_a_buffer_full_of_bytes_leaves_the_io_thread_free(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    body = random.Random(1).randbytes(100_000)  # nothing a producer could compress
    for _ in range(30):
        producer.send(Message("orders", body), sharding_key="k")
    let_go = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        assert let_go.wait(20)
        seen.take(messages, context)

    consumer = make_consumer(listen, pull_threshold_size_for_queue_mib=1)
    with consumer:
        member = consumer._live()
        try:
            eventually(
                lambda: any(
                    a.process_queue.size_bytes > 1 << 20
                    for a in list(member._rebalancer.assigned())
                ),
                "the buffer is full",
            )
            # Ten round trips through the loop: it continues while the buffer stays full.
            for _ in range(10):
                member._runtime.call(asyncio.sleep(0), timeout_s=5)
        finally:
            let_go.set()
        seen.wait_for_count(30)


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_queue_that_has_become_idle_is_committed_long_before_the_interval(
    broker: EmbeddedBroker,
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    concurrent: bool,
) -> None:
    send_all(producer, numbered(20, keys=4))
    with make_consumer(seen.take, concurrent=concurrent, commit_interval_ms=600_000):
        seen.wait_for_count(20)
        eventually(lambda: committed(broker) == 20, "its lag is 0")


def test_an_exception_that_comes_to_an_idle_thread_of_listeners_stops_nothing(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, caplog: Any
) -> None:
    """Libraries limit the time of a function so; theirs may come when the call has just ended."""
    got: list[bytes] = []
    threads: list[int] = []

    def listener(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        threads.append(threading.get_ident())
        got.extend(bytes(message.body) for message in messages)

    def is_idle(count: int) -> bool:
        return len(got) == count and "in _sleep" in stack_of_thread(threads[-1])

    with make_consumer(listener):
        for number in range(20):
            producer.send(Message("orders", b"%d" % number), sharding_key="k")
            eventually(partial(is_idle, number + 1), "an idle thread")
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(threads[-1]), ctypes.py_object(KeyboardInterrupt)
            )
        eventually(lambda: len(got) == 20, "all messages")
    assert got == [b"%d" % number for number in range(20)]
    assert "got KeyboardInterrupt between two calls; it goes on" in caplog.text
