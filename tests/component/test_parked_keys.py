"""Keys parked in a topic: moved durably, known to every owner, replayed in order
(docs/internals/semantics.md#failure-policies)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import Admin, AsyncConsumer, Message, MessageView, ParkKey, Producer, PushConsumer
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.dispatch import parked_keys
from ordermq.errors import ConfigError, RequestTimeout, StateError
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]
SETTINGS: dict[str, Any] = {
    "order_by_key": True,
    "max_attempts": 2,
    "on_failure": ParkKey("parked"),
    "suspend_current_queue_time_ms": 10,
}

FROM_FIRST = {"consume_from_where": "first_offset", "commit_interval_ms": 50}


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=2) as running:
        yield running


class Poisoned:
    """A listener that fails at some numbers until it is healed."""

    def __init__(self, seen: Seen, *numbers: int) -> None:
        self.seen = seen
        self.poison = {str(number).encode() for number in numbers}

    def __call__(self, messages: Any, context: Any) -> None:
        if any(bytes(message.body) in self.poison for message in messages):
            raise ValueError("a test's own failure")
        self.seen.add(
            [(context.message_queue.queue_id, 0, m.sharding_key, bytes(m.body)) for m in messages]
        )


def bodies(seen: Seen, key: str) -> list[int]:
    return [int(body) for body in seen.bodies_of(key)]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_key_in_the_parking_topic_holds_no_commit_and_is_replayed_in_order(
    producer: Producer,
    broker: EmbeddedBroker,
    broker_history: Path,
    make_consumer: MakeConsumer,
    seen: Seen,
    tmp_path: Path,
    kind: str,
) -> None:
    send_all(producer, numbered(100))
    poisoned = Poisoned(seen, 24)

    async def listen_async(messages: Any, context: Any) -> None:
        poisoned(messages, context)

    listener = poisoned if kind == "plain" else listen_async
    history = tmp_path / "member.jsonl"
    with make_consumer(listener, history=history, **SETTINGS) as consumer:
        seen.wait_for_count(92)  # all but 24, 34, ... 94
        eventually(lambda: committed(broker) == 100, "the parked ones hold no commit")
        assert consumer.statistics["diverted"] == 8
        send_all(producer, numbered(50, start=100))
        seen.wait_for_count(137)
        eventually(lambda: consumer.statistics["diverted"] == 13, "later ones are parked, too")
        assert bodies(seen, "k4") == [4, 14]
        poisoned.poison.clear()
        assert consumer.unpark("k4")
        seen.wait_for_count(150)
        eventually(lambda: consumer.parked_keys() == {}, "unparked")
        send_all(producer, numbered(50, start=150))
        seen.wait_for_count(200)
        eventually(lambda: committed(broker) == 200, "all is committed")
    assert_in_order(seen, 200)
    broker.close()
    report = audit([history, broker_history])
    assert report.ok, report.violation
    assert report.diverted == 13


def test_a_queue_continues_after_a_key_was_parked_while_listeners_run(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    poisoned, released = Poisoned(seen, 4), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        if messages[0].sharding_key != "k4":
            assert released.wait(20.0)
        poisoned(messages, context)

    with make_consumer(listen, **SETTINGS) as consumer:
        send_all(producer, numbered(10))
        eventually(lambda: consumer.statistics["diverted"] == 1, "parked while others run")
        released.set()
        eventually(lambda: committed(broker) == 10, "all is committed")
        send_all(producer, numbered(90, start=10))
        seen.wait_for_count(90)
        eventually(lambda: consumer.statistics["diverted"] == 10, "the key stays parked")
    assert bodies(seen, "k4") == []


def test_the_next_owner_knows_what_is_parked_and_runs_nothing_newer_of_it(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(60))
    with make_consumer(Poisoned(seen, 13), **SETTINGS):
        eventually(lambda: committed(broker) == 60, "all is committed")
    assert bodies(seen, "k3") == [3]
    send_all(producer, numbered(60, start=60))
    with make_consumer(Poisoned(seen), **SETTINGS) as consumer:  # healed, but nobody unparked
        eventually(lambda: committed(broker) == 120, "all is committed")
        assert bodies(seen, "k3") == [3]
        assert list(consumer.parked_keys().values()) == [["k3"]]
        assert consumer.unpark("k3")
        seen.wait_for_count(120)
    assert_in_order(seen, 120)
    with make_consumer(Poisoned(seen), **SETTINGS) as consumer:  # and that was durable too
        send_all(producer, numbered(20, start=120))
        seen.wait_for_count(140)
        assert consumer.parked_keys() == {}
    assert_in_order(seen, 140)


def test_a_replay_that_fails_keeps_the_rest_parked_behind_what_it_did(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(100))
    poisoned = Poisoned(seen, 24, 64)
    with make_consumer(poisoned, **SETTINGS) as consumer:
        eventually(lambda: committed(broker) == 100, "all is committed")
        poisoned.poison = {b"64"}
        assert consumer.unpark("k4")
        eventually(lambda: consumer.statistics["listener_errors"] == 3, "it failed again")
        assert bodies(seen, "k4") == [4, 14, 24, 34, 44, 54]
        send_all(producer, numbered(20, start=100))
        eventually(lambda: committed(broker) == 120, "newer ones are parked behind")
        assert list(consumer.parked_keys().values()) == [["k4"]]
    poisoned.poison.clear()
    with make_consumer(poisoned, **SETTINGS) as consumer:
        eventually(lambda: list(consumer.parked_keys().values()) == [["k4"]], "known again")
        assert consumer.unpark("k4")
        seen.wait_for_count(120)
    assert_in_order(seen, 120)


def test_groups_that_share_a_topic_park_the_same_messages(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    """The broker must not take the record of the second group for a copy of the first one's."""
    send_all(producer, numbered(20))
    others, ids = Seen(), set()
    other = PushConsumer("other", name_servers=broker.name_servers, **SETTINGS | FROM_FIRST)
    poisoned = {"g": Poisoned(seen, 4), "other": Poisoned(others, 4)}
    other.subscribe("orders")
    other.orderly(poisoned["other"])
    with make_consumer(poisoned["g"], **SETTINGS) as consumer, other:
        for group in poisoned:
            eventually(lambda: committed(broker, group=group) == 20, "all is committed")  # noqa: B023
        with Admin(broker.name_servers) as admin:
            for group in poisoned:
                parked = admin.parked_messages("parked", group, "k4")
                assert [int(bytes(each.body)) for each in parked] == [4, 14]
                ids |= {each.message_id for each in parked}
        assert len(ids) == 2  # those that their producer gave them
        for group, member in (("g", consumer), ("other", other)):
            poisoned[group].poison.clear()
            assert member.unpark("k4")
        seen.wait_for_count(20)
        others.wait_for_count(20)
    assert_in_order(seen, 20)
    assert_in_order(others, 20)


def test_a_message_that_is_parked_again_after_a_seek_is_there_again(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    """Also those that the key had before the one that failed: all of them were asked for."""
    send_all(producer, numbered(40))
    poisoned = Poisoned(seen, 24)
    with make_consumer(poisoned, **SETTINGS) as consumer:
        eventually(lambda: committed(broker) == 40, "all is committed")
        (queue,) = consumer.parked_keys()
        consumer.seek(queue, 0)
        eventually(lambda: consumer.statistics["diverted"] == 6, "the whole key is parked")
        poisoned.poison = {b"24", b"4"}
        assert consumer.unpark("k4")
        eventually(lambda: consumer.statistics["listener_errors"] == 3, "it failed again")
        poisoned.poison.clear()
        assert consumer.unpark("k4")
        seen.wait_for(lambda _: len(seen.bodies_of("k4")) == 6, "all of them once more")
        assert bodies(seen, "k4") == [4, 14, 24, 34, 4, 14]
        poisoned.poison = {b"24"}
        consumer.seek(queue, 0)
        eventually(lambda: consumer.statistics["diverted"] == 8, "parked for another time")
        poisoned.poison.clear()
        assert consumer.unpark("k4")
        seen.wait_for(lambda _: len(seen.bodies_of("k4")) == 10, "and done for another time")
        assert bodies(seen, "k4")[6:] == [4, 14, 24, 34]


def test_what_a_topic_made_anew_has_of_a_parked_key_is_parked_behind_the_old(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    """Its offsets begin again, before those of what is parked."""
    send_all(producer, numbered(60))
    poisoned = Poisoned(seen, 24)
    with make_consumer(poisoned, **SETTINGS) as consumer, Admin(broker.name_servers) as admin:
        eventually(lambda: committed(broker) == 60, "all is committed")
        admin.delete_topic("orders")
        admin.create_topic("orders", queues=2)
        send_all(producer, numbered(30, start=60))
        eventually(lambda: consumer.statistics["diverted"] == 7, "the new ones are parked, too")
        poisoned.poison.clear()
        assert consumer.unpark("k4")
        seen.wait_for(lambda _: len(seen.bodies_of("k4")) == 9, "none is lost")
    assert bodies(seen, "k4") == list(range(4, 90, 10))


def test_a_key_of_a_paused_queue_stays_parked_and_the_log_says_why(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send_all(producer, numbered(40))
    poisoned = Poisoned(seen, 4)
    with make_consumer(poisoned, **SETTINGS) as consumer:
        eventually(lambda: committed(broker) == 40, "all is committed")
        poisoned.poison.clear()
        consumer.pause()
        assert consumer.unpark("k4")
        eventually(lambda: "unpark it again" in caplog.text, "the log says so")
        assert list(consumer.parked_keys().values()) == [["k4"]]
        consumer.resume()
        assert consumer.unpark("k4")
        seen.wait_for_count(40)
    assert_in_order(seen, 40)


def test_a_parking_topic_is_not_for_broadcasting(broker: EmbeddedBroker) -> None:
    with pytest.raises(ConfigError, match="not for broadcasting"):
        PushConsumer(
            "g", name_servers=broker.name_servers, message_model="broadcasting", **SETTINGS
        )


@pytest.mark.parametrize("error", [RequestTimeout("a time-out"), ValueError("a defect")])
def test_a_message_stays_where_it_is_until_its_copy_is_stored(
    error: Exception,
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    send_all(producer, numbered(40))
    stored = parked_keys.ParkedKeys._store
    is_open = threading.Event()

    async def store(self: Any, message: Any, key: bytes) -> None:
        if not is_open.is_set():
            raise error
        await stored(self, message, key)

    monkeypatch.setattr(parked_keys.ParkedKeys, "_store", store)
    monkeypatch.setattr(parked_keys, "_RETRY_MS", 10)
    with make_consumer(Poisoned(seen, 4), **SETTINGS) as consumer:
        seen.wait_for_count(36)
        held = [a for a in consumer._live()._rebalancer.assigned() if a.queue.topic == "orders"]
        assert sum(item.done_offset for item in held) < 40
        is_open.set()
        eventually(lambda: committed(broker) == 40, "its copies are stored")
        assert consumer.statistics["diverted"] == 4
    assert bodies(seen, "k4") == []


def test_a_member_that_lost_its_lease_parks_nothing_beside_the_next_owner(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_all(producer, numbered(60))
    stored = parked_keys.ParkedKeys._store
    was_lost: list[bool] = []

    async def store(self: Any, message: Any, key: bytes) -> None:
        held = consumer._live().control.find(message.message_queue)
        was_lost.append(held.is_revoked())
        await stored(self, message, key)
        if len(was_lost) == 1:
            held.lose_lease("a test's own reason")

    monkeypatch.setattr(parked_keys.ParkedKeys, "_store", store)
    poisoned = Poisoned(seen, 4)
    with make_consumer(poisoned, lock_retry_ms=20, **SETTINGS) as consumer:
        eventually(lambda: committed(broker) == 60, "all is committed")
        poisoned.poison.clear()
        assert consumer.unpark("k4")
        seen.wait_for(lambda _: b"54" in seen.bodies_of("k4"), "all of the key")
    # One more: its DIVERT did not count, so the next owner has stored it again.
    assert was_lost == [False] * 7
    assert bodies(seen, "k4") == list(range(4, 60, 10))


def test_a_tool_has_the_owner_go_on_with_a_key_in_order(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(100))
    poisoned = Poisoned(seen, 24, 33)
    with make_consumer(poisoned, **SETTINGS), Admin(broker.name_servers) as admin:
        eventually(lambda: committed(broker) == 100, "all is committed")
        found = {each.key: each for each in admin.parked("parked")}
        assert {key: each.messages for key, each in found.items()} == {"k3": 7, "k4": 8}
        assert [int(bytes(m.body)) for m in admin.parked_messages("parked", "g", "k4")] == [
            *range(24, 100, 10)
        ]
        assert admin.parked("parked", group="another") == []
        poisoned.poison = {b"33"}  # k4 is healed, k3 is not
        (asked,) = admin.redrive_parked("parked", "g", "k4")
        assert asked.key == "k4"
        send_all(producer, numbered(100, start=100))
        eventually(lambda: "k4" not in {each.key for each in admin.parked("parked")}, "unparked")
        seen.wait_for(lambda _: len(seen.bodies_of("k4")) == 20, "all of k4")
        assert bodies(seen, "k4") == list(range(4, 200, 10))
        with pytest.raises(StateError, match="'k4' is not parked"):
            admin.redrive_parked("parked", "g", ["k4"])
        eventually(lambda: committed(broker) == 200, "all is committed")
        assert bodies(seen, "k3") == [3, 13, 23]


def test_a_request_that_comes_while_no_member_is_online_waits_for_the_owner(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(60))
    with make_consumer(Poisoned(seen, 13), **SETTINGS):
        eventually(lambda: committed(broker) == 60, "all is committed")
    with Admin(broker.name_servers) as admin:
        (asked,) = admin.redrive_parked("parked", "g")
        assert (asked.key, asked.messages, asked.first_offset >= 0) == ("k3", 5, True)
        assert [each.is_asked for each in admin.parked("parked")] == [True]
        with make_consumer(Poisoned(seen), **SETTINGS):
            eventually(lambda: admin.parked("parked") == [], "the new owner did it")
    assert_in_order(seen, 60)


def test_a_listener_that_fails_again_is_asked_once_and_the_rest_stays_parked(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(100))
    poisoned = Poisoned(seen, 24)
    with make_consumer(poisoned, **SETTINGS) as consumer, Admin(broker.name_servers) as admin:
        eventually(lambda: committed(broker) == 100, "all is committed")
        poisoned.poison = {b"64"}
        admin.redrive_parked("parked", "g")
        eventually(
            lambda: [each.messages for each in admin.parked("parked")] == [4], "up to the failure"
        )
        assert bodies(seen, "k4") == [4, 14, 24, 34, 44, 54]
        assert [each.is_asked for each in admin.parked("parked")] == [False]
        poisoned.poison.clear()
        admin.redrive_parked("parked", "g", ["k4"])
        eventually(lambda: consumer.parked_keys() == {}, "all of it")
    assert_in_order(seen, 100)


@pytest.mark.parametrize("later", [3, 40], ids=["shorter", "longer"])
def test_a_request_in_a_parking_topic_that_was_made_anew_is_found(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    later: int,
) -> None:
    """Also where the new log has grown beyond what was read of the old one."""
    looks: list[bool] = []
    look = parked_keys.ParkedKeys._look_for_requests

    async def counted(self: parked_keys.ParkedKeys) -> bool:
        is_held = await look(self)
        looks.append(is_held)
        return is_held

    monkeypatch.setattr(parked_keys.ParkedKeys, "_look_for_requests", counted)
    monkeypatch.setattr(parked_keys, "_WATCH_MS", 100)
    send_all(producer, numbered(100))
    poisoned = Poisoned(seen, 4)
    with make_consumer(poisoned, **SETTINGS) as consumer, Admin(broker.name_servers) as admin:
        eventually(lambda: committed(broker) == 100, "all is committed")
        begun = len(looks)
        eventually(lambda: len(looks) > begun + 1, "the log is read")
        admin.delete_topic("parked")
        message = Message("orders", b"first of the new log")
        producer.send(message, sharding_key="k4")
        eventually(lambda: consumer.statistics["diverted"] == 11, "parked in another log")
        admin.redrive_parked("parked", "g", ["k4"])
        send_all(producer, [(Message("orders", b"later"), "k4")] * later)
        eventually(lambda: consumer.parked_keys() == {}, "the request was found")
        seen.wait_for(lambda _: len(seen.bodies_of("k4")) == 1 + later, "all of the new log")


def test_requests_are_still_found_after_a_read_of_the_log_failed(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_all(producer, numbered(40))
    poisoned = Poisoned(seen, 4)
    look, failures = parked_keys.ParkedKeys._look_for_requests, []

    async def fail_once(self: parked_keys.ParkedKeys) -> bool:
        if not failures:
            failures.append(1)
            raise RuntimeError("a test's own failure")
        return await look(self)

    monkeypatch.setattr(parked_keys.ParkedKeys, "_look_for_requests", fail_once)
    monkeypatch.setattr(parked_keys, "_WATCH_MS", 50)
    with make_consumer(poisoned, **SETTINGS), Admin(broker.name_servers) as admin:
        eventually(lambda: committed(broker) == 40, "all is committed")
        poisoned.poison.clear()
        admin.redrive_parked("parked", "g")
        eventually(lambda: admin.parked("parked") == [], "the request was found")
    assert failures == [1]
    assert_in_order(seen, 40)


def place_of(message: MessageView) -> tuple[object, ...]:
    """Return what names a message, and what was sent with it."""
    queue = message.message_queue
    return (
        message.topic, message.stored_topic, queue, message.queue_id, message.offset,
        message.message_id, message.born_timestamp_ms, message.flag, message.tags, message.keys,
        message.properties.get("colour"), message.sharding_key, bytes(message.body),
    )  # fmt: skip


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_a_message_that_was_parked_is_again_at_the_place_where_it_came_from(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, namespace: str
) -> None:
    before: dict[bytes, tuple[object, ...]] = {}
    after: dict[bytes, tuple[object, ...]] = {}
    tokens: list[tuple[int, int]] = []
    is_mended = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        for message in messages:
            if is_mended.is_set():
                after[bytes(message.body)] = place_of(message)
                tokens.append(context.fence_token)
                assert context.behind >= 1
            else:
                before[bytes(message.body)] = place_of(message)
                raise ValueError("a test's own failure")

    settings = SETTINGS | {"namespace": namespace, "max_in_flight_per_queue": 1}
    with Producer(
        "p", name_servers=broker.name_servers, namespace=namespace, default_topic_queue_nums=2
    ) as producer:
        # Others first, so that no offset of the parking topic is by chance that of the queue.
        for number in range(6):
            message = Message("orders", b"%d" % number, tags="red", keys=["a", "b"])
            message.properties["colour"] = "blue"
            producer.send(message, sharding_key=f"k{number}")
        with make_consumer(listen, **settings) as consumer:
            eventually(lambda: consumer.statistics["diverted"] == 6, "all are parked")
            with Admin(broker.name_servers, namespace=namespace) as admin:
                shown = {
                    bytes(message.body): place_of(message)
                    for number in range(6)
                    for message in admin.parked_messages("parked", "g", f"k{number}")
                }
            is_mended.set()
            for number in range(6):
                assert consumer.unpark(f"k{number}")
            eventually(lambda: consumer.parked_keys() == {}, "all are unparked")
    assert len({place[3] for place in before.values()}) == 2, "of both queues"
    assert after == before == shown
    assert sorted(offset for _, offset in tokens) == sorted(
        int(str(place[4])) for place in before.values()
    )


def test_a_row_per_message_counts_each_once_also_behind_a_parking_topic(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, tmp_path: Path
) -> None:
    database = sqlite3.connect(tmp_path / "shop.db", check_same_thread=False)
    database.executescript(
        "CREATE TABLE seen (topic, broker, queue, offset, UNIQUE (topic, broker, queue, offset));"
        "CREATE TABLE balance (account PRIMARY KEY, cents);"
    )
    alone, is_mended = threading.Lock(), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        for message in messages:
            if message.sharding_key == "k4" and not is_mended.is_set():
                raise ValueError("a test's own failure")
            queue = message.message_queue
            place = (queue.topic, queue.broker_name, queue.queue_id, message.offset)
            with alone, database:
                row = "INSERT INTO seen VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
                if database.execute(row, place).rowcount:
                    database.execute(
                        "INSERT INTO balance VALUES (?, 1) "
                        "ON CONFLICT (account) DO UPDATE SET cents = cents + 1",
                        (message.sharding_key,),
                    )

    send_all(producer, numbered(100))
    with make_consumer(listen, **SETTINGS) as consumer:
        eventually(lambda: committed(broker) == 100, "the others are done")
        is_mended.set()
        assert consumer.unpark("k4")
        eventually(lambda: consumer.parked_keys() == {}, "unparked")
    assert dict(database.execute("SELECT * FROM balance")) == {f"k{n}": 10 for n in range(10)}
    database.close()


def test_an_async_consumer_unparks_a_key_and_its_log_names_the_command(
    producer: Producer, broker: EmbeddedBroker, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    poisoned = Poisoned(seen, 4)
    consumer = AsyncConsumer(
        "g", "orders", name_servers=broker.name_servers, consume_from_where="first_offset",
        **SETTINGS,
    )  # fmt: skip

    @consumer.orderly
    async def listen(messages: Any, context: Any) -> None:
        poisoned(messages, context)

    send_all(producer, numbered(20))

    async def main() -> None:
        async with consumer:
            while not await consumer.parked_keys() or consumer.statistics["diverted"] < 2:
                await asyncio.sleep(0.01)
            assert [*(await consumer.parked_keys()).values()] == [["k4"]]
            assert "unpark('k4'), or `ordermq parked redrive parked g k4`" in caplog.text
            assert not await consumer.unpark("k3")
            poisoned.poison.clear()
            assert await consumer.unpark("k4")
            await asyncio.to_thread(seen.wait_for_count, 20)

    asyncio.run(main())
    assert_in_order(seen, 20)
