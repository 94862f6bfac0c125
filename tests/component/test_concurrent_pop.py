"""Concurrent consumers that pop: completeness over members that share, fail, hang, leave and die
(docs/internals/semantics.md#pop-without-order)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ordermq import Admin, DeadLetter, Message, MessageView, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.consumer.listener import ConcurrentContext
from ordermq.consumer.pop import leases
from ordermq.errors import ConfigError, StateError
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.headers import SendHeader
from tests.component.broker.wire_client import WireClient, batch_body
from tests.component.conftest import Seen, eventually, numbered
from tests.component.test_concurrent_consumer import each_once, numbers
from tests.component.test_orderly_consumer import send_all
from tests.component.test_pop_consumer import LostAnswers

Make = Callable[..., PushConsumer]
SHORT = {"pop_invisible_ms": 2_000, "lease_margin_ms": 200}


@pytest.fixture
def make(make_consumer: Callable[..., PushConsumer], monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(leases, "DELAY_LEVELS_MS", (1,) * 18)

    def make(listener: Any, **settings: Any) -> PushConsumer:
        given = {"consume_mode": "pop", "pop_poll_ms": 200} | settings
        return make_consumer(listener, concurrent=True, **given)

    return make


def test_members_share_the_messages_and_each_is_consumed_once(
    producer: Producer, make: Make, seen: Seen
) -> None:
    for _ in range(3):
        make(seen.take).start()
    send_all(producer, numbered(1_000))
    seen.wait_for_count(1_000)
    assert numbers(seen) == each_once(1_000)


def test_members_work_one_queue_side_by_side(
    producer: Producer, make: Make, broker: EmbeddedBroker
) -> None:
    # In order, the first member's batch would keep the queue from the second one.
    both = threading.Barrier(2)
    met = Counter[str]()

    def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
        if not met:
            both.wait(20)
        met[threading.current_thread().name] += 1

    for _ in range(2):
        make(listen, pop_batch_size=1, consume_thread_count=1).start()
    for number in range(4):
        producer.send(numbered(1, start=number)[0][0], queue=producer.queues("orders")[0])
    eventually(lambda: sum(met.values()) == 4, "two listeners have a message of one queue")


def test_a_failed_message_comes_again_with_its_topic_and_the_number_of_attempts(
    producer: Producer, make: Make, seen: Seen
) -> None:
    tries: list[tuple[str, int, int]] = []

    def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
        if messages[0].body == b"7":
            tries.append((messages[0].topic, messages[0].reconsume_times, context.attempt))
            if len(tries) < 4:
                raise ValueError
        seen.take(messages, context)

    make(listen).start()
    make(listen).start()
    send_all(producer, numbered(40))
    seen.wait_for_count(40)
    assert numbers(seen) == each_once(40)
    assert tries == [("orders", times, times) for times in range(4)]


def test_a_failed_message_of_the_longest_names_comes_again_also_after_a_restart(
    tmp_path: Path, broker_config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "DELAY_LEVELS_MS", (1,) * 18)
    group, topic, path = "g" * 120, "t" * 127, tmp_path / "long.db"
    tries: list[tuple[str, int]] = []

    def consume(broker: EmbeddedBroker, until: int) -> None:
        def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
            tries.append((messages[0].topic, messages[0].reconsume_times))
            if len(tries) < 4:
                raise ValueError

        consumer = PushConsumer(
            group,
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
            consume_mode="pop",
            pop_poll_ms=200,
        )
        consumer.subscribe(topic)
        consumer.concurrently(listen)
        with consumer:
            eventually(lambda: len(tries) >= until, "it comes again")

    with EmbeddedBroker(path, config=broker_config) as broker:
        with Producer("p", name_servers=broker.name_servers) as producer:
            producer.send(Message(topic, b"x"))
        consume(broker, 2)
    with EmbeddedBroker(path, config=broker_config) as broker:
        consume(broker, 4)
    assert {name for name, _ in tries} == {topic}
    # What a member that leaves has not begun is given back, and counts as an attempt, too.
    times = [each for _, each in tries]
    assert times[:2] == [0, 1]
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    "properties",
    [b"own\1" + b"x" * 32_760 + b"\2", b"own\1a\1b\2", b"own\1\xff\2"],
    ids=["no room", "a separator in a value", "no UTF-8"],
)
def test_the_properties_of_a_message_keep_no_other_from_coming_again(
    producer: Producer, make: Make, seen: Seen, broker: EmbeddedBroker, properties: bytes
) -> None:
    tries = Counter[bytes]()

    def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
        tries[bytes(messages[0].body)] += 1
        if tries[bytes(messages[0].body)] < 3:
            raise ValueError
        seen.add([(0, 0, None, bytes(messages[0].body))])

    send_all(producer, numbered(4))
    with WireClient(broker.port) as client:
        ext = SendHeader("pg", "orders", 0).to_ext()
        body = batch_body([b"odd"], properties)
        assert client.call(RequestCode.SEND_BATCH_MESSAGE, ext, body).code == 0
    make(listen, consume_from_where="first_offset").start()
    seen.wait_for_count(5)
    assert set(tries.values()) == {3}
    assert len(tries) == 5


def test_a_message_that_fails_for_good_goes_to_the_dead_letters(
    producer: Producer, make: Make, seen: Seen, broker: EmbeddedBroker
) -> None:
    tries: list[int] = []

    def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
        if messages[0].body == b"7":
            tries.append(messages[0].reconsume_times)
            raise ValueError
        seen.take(messages, context)

    make(listen, on_failure=DeadLetter(3)).start()
    send_all(producer, numbered(40))
    with Admin(broker.name_servers) as admin:
        eventually(
            lambda: [(each.group, each.waiting) for each in admin.dead_letters()] == [("g", 1)],
            "its dead letter",
        )
    seen.wait_for_count(39)
    assert tries == [0, 1, 2]


def test_a_message_that_fails_more_often_than_there_are_levels_comes_until_it_is_a_dead_letter(
    producer: Producer, make: Make, broker: EmbeddedBroker
) -> None:
    tries: list[int] = []

    def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
        tries.append(messages[0].reconsume_times)
        raise ValueError

    make(listen, on_failure=DeadLetter(19)).start()
    send_all(producer, numbered(1))
    with Admin(broker.name_servers) as admin:
        eventually(
            lambda: [(each.group, each.waiting) for each in admin.dead_letters()] == [("g", 1)],
            "its dead letter",
        )
    assert tries == list(range(19))


def test_a_listener_that_takes_longer_than_its_lease_keeps_it_by_renewals(
    producer: Producer, make: Make, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals = Counter[int]()

    def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
        if messages[0].body == b"0":
            eventually(lambda: renewals[0] >= 4, "it was renewed for longer than its lease")
        seen.take(messages, context)

    real = leases.PopLeases._renew

    async def renew(self: leases.PopLeases, assigned: Any) -> None:
        await real(self, assigned)
        renewals[0] += 1

    monkeypatch.setattr(leases.PopLeases, "_renew", renew)
    members = [make(listen, pop_invisible_ms=6_000) for _ in range(2)]
    for member in members:
        member.start()
    send_all(producer, numbered(10, keys=1))
    seen.wait_for_count(10)
    assert numbers(seen) == each_once(10)


def test_what_a_killed_member_had_comes_again_after_its_leases(
    producer: Producer, make: Make, seen: Seen, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    _with_a_member(broker, tmp_path, signal.SIGKILL, lambda: make(seen.take, **SHORT), producer)
    seen.wait_for(lambda all_: {int(each[3]) for each in all_} == set(range(80)), "all messages")


def test_what_a_frozen_member_had_comes_again_after_its_leases(
    producer: Producer, make: Make, seen: Seen, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    _with_a_member(broker, tmp_path, signal.SIGSTOP, lambda: make(seen.take, **SHORT), producer,
                   lambda: seen.wait_for(
                       lambda all_: {int(each[3]) for each in all_} == set(range(80)),
                       "all messages"))  # fmt: skip


def _with_a_member(
    broker: EmbeddedBroker,
    folder: Path,
    fate: signal.Signals,
    other: Callable[[], PushConsumer],
    producer: Producer,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Start a member that hangs in its listeners, and another one; and let the first one end so."""
    ready = folder / "ready"
    program = f"""
import pathlib, time
from ordermq import PushConsumer
consumer = PushConsumer("g", name_servers={broker.name_servers!r}, consume_mode="pop",
    consume_from_where="first_offset", pop_invisible_ms=2_000, pop_poll_ms=200)
consumer.subscribe("orders")
@consumer.concurrently
def hang(messages, context):
    pathlib.Path({str(ready)!r}).touch()
    time.sleep(60)
consumer.start()
time.sleep(60)
"""
    send_all(producer, numbered(80))
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        eventually(ready.exists, "the member hangs in its listeners")
        other().start()
        os.kill(process.pid, fate)
        then()
    finally:
        process.kill()
        process.wait()


def test_a_member_that_leaves_gives_back_what_it_has_not_begun(
    producer: Producer, make: Make, seen: Seen
) -> None:
    inside, gate = threading.Event(), threading.Event()

    def slow(messages: list[MessageView], context: ConcurrentContext) -> None:
        inside.set()
        gate.wait(20)
        seen.take(messages, context)

    leaving = make(slow, pop_invisible_ms=60_000, consume_thread_count=2)
    leaving.start()
    send_all(producer, numbered(100))
    assert inside.wait(20)
    other = make(seen.take, pop_invisible_ms=60_000)
    other.start()
    closing = threading.Thread(target=lambda: leaving.close(20))
    closing.start()
    eventually(lambda: leaving.assigned_queues() == [], "it is leaving")
    gate.set()
    # Long before the leases of a minute end.
    seen.wait_for_count(100)
    closing.join()
    assert numbers(seen) == each_once(100)


def test_a_broker_that_is_started_again_keeps_the_leases_and_repeats_what_is_left(
    tmp_path: Path, make: Make, seen: Seen
) -> None:
    path = tmp_path / "kept.db"
    inside, gate = threading.Event(), threading.Event()

    def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
        inside.set()
        gate.wait(20)
        seen.take(messages, context)

    first = EmbeddedBroker(path).start()
    member = PushConsumer(
        "g", name_servers=first.name_servers, consume_mode="pop", pop_poll_ms=200,
        consume_from_where="first_offset", pop_invisible_ms=10_000,
    )  # fmt: skip
    member.subscribe("orders")
    member.concurrently(listen)
    try:
        with Producer("p", name_servers=first.name_servers) as producer:
            send_all(producer, numbered(100))
        member.start()
        assert inside.wait(20)
        first.close()
        with EmbeddedBroker(path, port=first.port):
            gate.set()
            seen.wait_for(lambda all_: {int(each[3]) for each in all_} == set(range(100)), "all")
            member.close(10)
    finally:
        first.close()
        member.close(1)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.POP_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    ],
)
def test_lost_answers_lose_no_message(
    producer: Producer, make: Make, seen: Seen, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    lost = LostAnswers(monkeypatch, code)
    failed = set[bytes]()

    def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
        body = bytes(messages[0].body)
        if int(body) % 50 == 0 and body not in failed:
            failed.add(body)
            raise ValueError
        seen.take(messages, context)

    # Not shorter: of a pop whose answer comes late, the messages come again after their leases.
    quick = {"request_timeout_ms": 800, "offset_timeout_ms": 200, "pull_delay_on_error_ms": 10}
    for _ in range(2):
        make(listen, **SHORT | quick | {"pop_poll_ms": 50}).start()
    send_all(producer, numbered(200))
    seen.wait_for(lambda all_: {int(each[3]) for each in all_} == set(range(200)), "all messages")
    eventually(lambda: lost.lost > 0, "an answer was lost")


def test_a_history_is_refused_with_the_reason(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="could not tell what is lost"):
        make(lambda messages, context: None, history=tmp_path / "history.jsonl")


def test_a_fence_token_is_refused_with_the_reason(producer: Producer, make: Make) -> None:
    problems: list[str] = []

    def listen(messages: list[MessageView], context: ConcurrentContext) -> None:
        with pytest.raises(StateError) as raised:
            _ = context.fence_token
        problems.append(str(raised.value))

    make(listen).start()
    send_all(producer, numbered(1))
    eventually(lambda: bool(problems), "a call")
    assert "side by side" in problems[0]
