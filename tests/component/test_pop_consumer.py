"""Consumers that pop: order and completeness over members that share, leave, freeze and die
(docs/internals/semantics.md#pop)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    Admin,
    AsyncConsumer,
    ConsumeResult,
    DeadLetter,
    Message,
    ParkKey,
    Producer,
    PushConsumer,
    Stop,
)
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker, server
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext
from ordermq.clock import SystemClock
from ordermq.config import BrokerConfig
from ordermq.consumer.pop.transport import RemotingPop
from ordermq.errors import ConfigError, ConnectionLost, StateError
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.pop import acks_from_body
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]
SHORT: dict[str, Any] = {"pop_invisible_ms": 1_500, "pop_poll_ms": 200, "lease_margin_ms": 200}


@pytest.fixture
def make(make_consumer: MakeConsumer) -> MakeConsumer:
    def make(listener: Any, **settings: Any) -> PushConsumer:
        return make_consumer(listener, consume_mode="pop", **{"pop_poll_ms": 200} | settings)

    return make


@pytest.mark.parametrize("by_key", [False, True])
def test_members_share_a_group_and_each_key_keeps_its_order(
    producer: Producer, make: MakeConsumer, seen: Seen, broker: EmbeddedBroker, by_key: bool
) -> None:
    for _ in range(3):
        make(seen.take, order_by_key=by_key).start()
    send_all(producer, numbered(2_000))
    seen.wait_for_count(2_000)
    assert_in_order(seen, 2_000)
    eventually(lambda: committed(broker) == 2_000, "all is acknowledged")
    assert seen.duplicates() == 0


class OtherClock(SystemClock):
    """The clock of a host whose time differs from the broker's."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("ahead_ms", [-10_000, 10_000])
def test_a_member_consumes_whatever_its_clock_says(
    producer: Producer, make: MakeConsumer, seen: Seen, ahead_ms: int, concurrent: bool
) -> None:
    make(seen.take, clock=OtherClock(ahead_ms), concurrent=concurrent).start()
    send_all(producer, numbered(100))
    seen.wait_for_count(100)


def test_a_coroutine_may_listen(producer: Producer, make: MakeConsumer, seen: Seen) -> None:
    async def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)

    make(listen).start()
    send_all(producer, numbered(200))
    seen.wait_for_count(200)
    assert_in_order(seen, 200)


def test_a_member_that_leaves_gives_back_what_it_has_not_begun(
    producer: Producer, make: MakeConsumer, seen: Seen
) -> None:
    inside, gate = threading.Event(), threading.Event()

    def slow(messages: Any, context: Any) -> None:
        inside.set()
        gate.wait(20)
        seen.take(messages, context)

    leaving = make(slow, pop_invisible_ms=60_000)
    leaving.start()
    send_all(producer, numbered(100, keys=1))
    assert inside.wait(20)
    other = make(seen.take, pop_invisible_ms=60_000)
    other.start()
    closing = threading.Thread(target=lambda: leaving.close(20))
    closing.start()
    eventually(lambda: leaving.assigned_queues() == [], "it is leaving")
    gate.set()
    # Long before the lease of a minute ends, by which a killed member's queue would come back.
    seen.wait_for_count(100)
    closing.join()
    assert_in_order(seen, 100, keys=1)
    assert seen.duplicates() == 0


def test_a_listener_that_takes_longer_than_its_lease_keeps_it_by_renewals(
    producer: Producer, make: MakeConsumer, seen: Seen
) -> None:
    def slow(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if messages[0].body == b"0":
            time.sleep(3)  # two leases

    members = [make(slow, **SHORT), make(slow, **SHORT)]
    for member in members:
        member.start()
    send_all(producer, numbered(100, keys=1))
    seen.wait_for_count(100)
    assert_in_order(seen, 100, keys=1)
    assert seen.duplicates() == 0
    assert sum(member.statistics.as_dict().get("leases_lost", 0) for member in members) == 0


def test_a_member_that_cannot_renew_stops_before_the_next_one_starts(
    producer: Producer, make: MakeConsumer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def extend(self: RemotingPop, batch: Any) -> None:
        raise ConnectionLost("cut by the test")

    frozen, over = threading.Event(), threading.Event()

    def freezes(messages: Any, context: Any) -> None:
        frozen.set()
        eventually(context.is_revoked, "the lease is over")
        over.set()

    with monkeypatch.context() as patch:
        patch.setattr(RemotingPop, "extend", extend)
        one = make(freezes, **SHORT)
        one.start()
        send_all(producer, numbered(50, keys=1))
        assert frozen.wait(20)
        two = make(lambda messages, context: (seen.take(messages, context), None)[1], **SHORT)
        two.start()
        assert over.wait(20)
        assert seen.deliveries == []
        seen.wait_for_count(50)
        one.close(10)
    assert_in_order(seen, 50, keys=1)
    assert one.statistics.as_dict()["leases_lost"] >= 1


def test_keys_of_a_killed_member_go_on_after_its_leases(
    producer: Producer, make: MakeConsumer, seen: Seen, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    program = f"""
import pathlib, time
from ordermq import PushConsumer
consumer = PushConsumer("g", name_servers={broker.name_servers!r}, consume_mode="pop",
    consume_from_where="first_offset", pop_invisible_ms=1_500, pop_poll_ms=200)
consumer.subscribe("orders")
@consumer.orderly
def hang(messages, context):
    pathlib.Path({str(ready)!r}).touch()
    time.sleep(60)
consumer.start()
time.sleep(60)
"""
    send_all(producer, numbered(80))
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        eventually(ready.exists, "the member hangs in a batch")
        make(seen.take, **SHORT).start()
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    seen.wait_for_count(80)
    assert_in_order(seen, 80)
    assert seen.duplicates() == 0


def test_a_broker_that_is_started_again_keeps_the_leases(
    tmp_path: Path, seen: Seen, broker_config: BrokerConfig
) -> None:
    path, port = tmp_path / "kept.db", 0
    first = EmbeddedBroker(path, config=broker_config).start()
    port = first.port
    inside, gate = threading.Event(), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        inside.set()
        gate.wait(20)
        seen.take(messages, context)

    members = []
    with Producer("p", name_servers=first.name_servers) as producer:
        send_all(producer, numbered(100, keys=1))
    try:
        for _ in range(2):
            member = PushConsumer(
                "g", name_servers=first.name_servers, consume_mode="pop", pop_poll_ms=200,
                consume_from_where="first_offset",
            )  # fmt: skip
            member.subscribe("orders")
            member.orderly(listen)
            members.append(member)
            member.start()
        assert inside.wait(20)
        first.close()
        with EmbeddedBroker(path, port=port, config=broker_config):
            gate.set()
            seen.wait_for_count(100)
            assert_in_order(seen, 100, keys=1)
            assert seen.duplicates() == 0
            assert sum(member.statistics.as_dict().get("leases_lost", 0) for member in members) == 0
            for member in members:
                member.close(10)
    finally:
        first.close()
        for member in members:
            member.close(1)


class LostAnswers:
    """Does what a request asks for, and drops its answer: every second one of a code."""

    def __init__(self, patch: pytest.MonkeyPatch, code: int) -> None:
        self.lost = 0
        self._count = 0
        self._handler = server.HANDLERS[code]
        patch.setitem(server.HANDLERS, code, self._handle)

    def _handle(
        self, context: BrokerContext, connection: BrokerConnection, request: Command
    ) -> None:
        self._count += 1
        if self._count % 2:
            self._handler(context, connection, request)
            return
        self.lost += 1
        self._handler(context, Silent(connection), request)  # type: ignore[arg-type]


class Silent:
    """A connection whose answers are lost."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def reply(self, *_: object, **__: object) -> None:
        return None


@pytest.mark.parametrize("is_concurrent", [False, True])
def test_messages_that_expired_unread_are_counted_and_told(
    producer: Producer,
    make: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_concurrent: bool,
) -> None:
    # That brokers say so is tested with their retention.
    telling = [5]
    handler = server.HANDLERS[RequestCode.POP_MESSAGE]

    class Telling(Silent):
        def reply(self, request: Any, code: int, ext: Any = None, *more: object) -> None:
            if code == ResponseCode.SUCCESS and telling:
                ext = {**ext, "omqExpired": str(telling.pop())}
            self._connection.reply(request, code, ext, *more)  # type: ignore[arg-type]

    def pop(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        handler(context, Telling(connection), request)  # type: ignore[arg-type]

    monkeypatch.setitem(server.HANDLERS, RequestCode.POP_MESSAGE, pop)
    consumer = make(seen.take, concurrent=is_concurrent)
    consumer.start()
    send_all(producer, numbered(50))
    seen.wait_for_count(50)
    assert consumer.statistics["skipped"] == 5
    assert len([text for text in caplog.messages if "5 messages expired unread" in text]) == 1


def refuse(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    connection.reply(request, ResponseCode.SYSTEM_ERROR, remark="refused by the test")


def lose(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Lose a request."""


def lose_answer(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Do what is asked, and lose the answer."""
    handler = HANDLERS[request.code]
    handler(context, Silent(connection), request)  # type: ignore[arg-type]


HANDLERS = dict(server.HANDLERS)


@pytest.mark.parametrize("first", [refuse, lose, lose_answer])
def test_what_could_not_be_given_back_at_once_is_given_back_again(
    producer: Producer,
    make: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    first: Callable[..., None],
) -> None:
    inside = threading.Event()
    given_back: set[str] = set()

    def change(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        is_first = request.ext["offset"] not in given_back
        given_back.add(request.ext["offset"])
        (first if is_first else HANDLERS[code])(context, connection, request)

    def slow(messages: Any, context: Any) -> None:
        inside.set()
        eventually(context.is_revoked, "its queue is given up")
        seen.take(messages, context)

    monkeypatch.setitem(server.HANDLERS, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
    # Nothing is renewed during the test, and no lease ends.
    send_all(producer, numbered(50, keys=1))
    leaving = make(slow, pop_invisible_ms=600_000, lock_timeout_ms=100)
    leaving.start()
    assert inside.wait(20)
    make(seen.take, pop_invisible_ms=600_000).start()
    leaving.close(20)
    seen.wait_for_count(50)
    assert given_back
    assert_in_order(seen, 50, keys=1)
    assert seen.duplicates() == 0


def test_what_a_lost_answer_brought_is_given_back_when_the_member_leaves(
    producer: Producer, make: MakeConsumer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    popped: list[str] = []

    def pop(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        is_answered = not is_losing or request.ext["attemptId"] in popped
        popped.append(request.ext["attemptId"])
        (HANDLERS[RequestCode.POP_MESSAGE] if is_answered else lose_answer)(
            context, connection, request
        )

    is_losing = True
    monkeypatch.setitem(server.HANDLERS, RequestCode.POP_MESSAGE, pop)
    leaving = make(
        seen.take,
        pop_invisible_ms=600_000,
        request_timeout_ms=100,
        pull_delay_on_error_ms=600_000,  # so that it does not ask again by itself
    )
    send_all(producer, numbered(50, keys=1))
    leaving.start()
    eventually(lambda: leaving.statistics.as_dict().get("pull_errors", 0) >= 4, "answers are lost")
    is_losing = False
    leaving.close(20)
    make(seen.take, pop_invisible_ms=600_000).start()
    seen.wait_for_count(50)
    assert_in_order(seen, 50, keys=1)
    assert seen.duplicates() == 0


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.POP_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    ],
)
def test_lost_answers_lose_no_message_and_no_order(
    producer: Producer, make: MakeConsumer, seen: Seen, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    lost = LostAnswers(monkeypatch, code)
    quick = {"request_timeout_ms": 100, "offset_timeout_ms": 100, "pull_delay_on_error_ms": 10}

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            eventually(lambda: lost.lost > 0, "a renewal went without its answer")

    for _ in range(2):
        make(listen, **SHORT | quick | {"pop_poll_ms": 50, "pop_invisible_ms": 3_000}).start()
    send_all(producer, numbered(200))
    seen.wait_for(lambda all_: len({(q, o) for q, o, _, _ in all_}) == 200, "all messages")
    eventually(lambda: lost.lost > 0, "an answer was lost")
    for key in range(10):
        got = [int(body) for body in seen.bodies_of(f"k{key}")]
        # A lease that no renewal reached in time ends, and what was not acknowledged comes again.
        if code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            got = list(dict.fromkeys(got))
        assert got == list(range(key, 200, 10)), "each once: a pop is repeated under its id"


def test_a_batch_that_was_given_up_is_not_acknowledged_any_more(
    producer: Producer, make: MakeConsumer, seen: Seen, monkeypatch: pytest.MonkeyPatch,
    broker: EmbeddedBroker,
) -> None:  # fmt: skip
    """An acknowledgement that is repeated, whose lease the member has dropped meanwhile."""
    acknowledge, is_cut = RemotingPop.acknowledge, True
    tries: list[tuple[int, bool]] = []  # the batch, and whether the connection stood

    async def cut(self: RemotingPop, batch: Any, end: int) -> None:
        tries.append((batch.epoch, not is_cut))
        if is_cut:
            raise ConnectionLost("cut by the test")
        await acknowledge(self, batch, end)

    monkeypatch.setattr(RemotingPop, "acknowledge", cut)
    one = make(seen.take, pop_invisible_ms=3_000)
    send_all(producer, numbered(5, keys=1))
    one.start()
    eventually(lambda: len(tries) >= 2, "it is repeated")
    member = one._member
    assert member is not None
    for assigned in member._rebalancer.assigned():
        if assigned.lease is not None and assigned.lease.is_lock:
            assigned.lose_lease("as with a connection that broke")
    count = len(tries)
    eventually(lambda: not member._locks._batches, "the batch is given up")  # type: ignore[attr-defined]
    is_cut = False
    eventually(lambda: committed(broker) == 5, "the next batch has them again")
    assert len(tries) > count
    assert all(epoch > tries[0][0] for epoch, is_sent in tries if is_sent)


def test_failing_messages_are_retried_and_then_left_to_the_dead_letters(
    producer: Producer, make: MakeConsumer, seen: Seen, broker: EmbeddedBroker
) -> None:
    attempts: dict[bytes, int] = defaultdict(int)

    def listen(messages: Any, context: Any) -> None:
        body = bytes(messages[0].body)
        attempts[body] += 1
        if body in (b"3", b"7") and (body == b"7" or attempts[body] < 3):
            raise ValueError(body)
        seen.take(messages, context)

    make(listen, on_failure=DeadLetter(4), suspend_current_queue_time_ms=10).start()
    send_all(producer, numbered(40, keys=1))
    seen.wait_for_count(39)
    assert [int(body) for body in seen.bodies_of("k0")] == [n for n in range(40) if n != 7]
    assert (attempts[b"3"], attempts[b"7"]) == (3, 4)
    with Admin(broker.name_servers) as admin:
        assert [(each.group, each.waiting) for each in admin.dead_letters()] == [("g", 1)]


def test_a_stopped_queue_keeps_its_messages_until_resume(
    producer: Producer, make: MakeConsumer, seen: Seen
) -> None:
    failing = [True]

    def listen(messages: Any, context: Any) -> ConsumeResult:
        if failing[0]:
            return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return ConsumeResult.SUCCESS

    one = make(listen, on_failure=Stop(2), suspend_current_queue_time_ms=10, **SHORT)
    one.start()
    send_all(producer, numbered(10, keys=1))
    eventually(lambda: any(each.is_paused for each in one.held_queues()), "the queue stops")
    failing[0] = False
    one.resume()
    seen.wait_for_count(10)
    assert_in_order(seen, 10, keys=1)


def test_fence_tokens_of_a_queue_grow_from_batch_to_batch(
    producer: Producer, make: MakeConsumer, seen: Seen
) -> None:
    tokens: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def listen(messages: Any, context: Any) -> None:
        tokens[context.message_queue.queue_id].append(context.fence_token)
        seen.take(messages, context)

    for _ in range(2):
        make(listen, pop_batch_size=4).start()
    send_all(producer, numbered(300))
    seen.wait_for_count(300)
    for each in tokens.values():
        assert each == sorted(set(each))


def test_a_broker_that_does_not_fence_gives_no_token(
    producer: Producer, make: MakeConsumer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = server.HANDLERS[RequestCode.POP_MESSAGE]

    def like_rocketmq(
        context: BrokerContext, connection: BrokerConnection, request: Command
    ) -> None:
        request.ext.pop("omqFenced")
        handler(context, connection, request)

    monkeypatch.setitem(server.HANDLERS, RequestCode.POP_MESSAGE, like_rocketmq)
    problems: list[str] = []

    def listen(messages: Any, context: Any) -> None:
        try:
            _ = context.fence_token
        except StateError as error:
            problems.append(str(error))
        seen.take(messages, context)

    make(listen).start()
    send_all(producer, numbered(5))
    seen.wait_for_count(5)
    assert len(problems) == 5
    assert "use consume_mode='pull'" in problems[0]


@pytest.mark.parametrize("count", [3, 20])
def test_a_batch_of_a_topic_that_was_made_anew_is_not_acknowledged(
    producer: Producer,
    make: MakeConsumer,
    broker: EmbeddedBroker,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    """RocketMQ's broker would move the group behind its offsets, over messages of the new topic."""
    pop, acknowledge = (
        server.HANDLERS[code] for code in (RequestCode.POP_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)
    )
    acknowledged: list[int] = []

    def pop_like_rocketmq(
        context: BrokerContext, connection: BrokerConnection, request: Command
    ) -> None:
        request.ext.pop("omqFenced")
        pop(context, connection, request)

    def note(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        acknowledged.extend(ack.handle.pop_ms for ack in acks_from_body(request.body))
        acknowledge(context, connection, request)

    monkeypatch.setitem(server.HANDLERS, RequestCode.POP_MESSAGE, pop_like_rocketmq)
    monkeypatch.setitem(server.HANDLERS, RequestCode.BATCH_ACK_MESSAGE, note)
    monkeypatch.setattr("ordermq.consumer.pop.transport.QUIET_MS", 0)
    inside, gate = threading.Event(), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        if messages[0].body == b"old":
            inside.set()
            gate.wait(30)
        else:
            seen.take(messages, context)

    with Admin(broker.name_servers) as admin:
        admin.create_topic("orders", queues=1)
        for _ in range(5):
            producer.send(Message("orders", b"old"), sharding_key="k0")
        make(listen, pop_batch_size=5).start()
        assert inside.wait(30)
        deleted_ms = time.time_ns() // 1_000_000
        admin.delete_topic("orders")
        admin.create_topic("orders", queues=1)
        with Producer("p2", name_servers=broker.name_servers) as other:
            send_all(other, numbered(count, keys=1))
        gate.set()
        seen.wait_for_count(count)
        assert_in_order(seen, count, keys=1)
        eventually(lambda: committed(broker) == count, "all is acknowledged")
    assert min(acknowledged) > deleted_ms  # by the time of the pop


def test_an_admin_moves_a_group_that_pops(
    producer: Producer, make: MakeConsumer, seen: Seen, broker: EmbeddedBroker
) -> None:
    make(seen.take).start()
    send_all(producer, numbered(50))
    seen.wait_for_count(50)
    eventually(lambda: committed(broker) == 50, "all is acknowledged")
    with Admin(broker.name_servers) as admin:
        state = admin.group("g")
        assert (state.pops, state.lag) == (True, 0)
        moved = admin.reset("g", "orders", "first")
        assert all(each.is_confirmed for each in moved)
    seen.wait_for_count(100)
    for key in range(10):
        got = [int(body) for body in seen.bodies_of(f"k{key}")]
        assert got == list(range(key, 50, 10)) * 2


def test_a_paused_member_leaves_its_queues_to_the_others(
    producer: Producer, make: MakeConsumer, seen: Seen
) -> None:
    idle = Seen()
    one = make(idle.take)
    one.start()
    one.pause()
    make(seen.take).start()
    send_all(producer, numbered(100))
    seen.wait_for_count(100)
    assert idle.deliveries == []
    one.resume()


def test_tags_are_filtered(producer: Producer, make_consumer: MakeConsumer, seen: Seen) -> None:
    from ordermq import Message

    make_consumer(seen.take, tags="a || b", consume_mode="pop").start()
    for number in range(90):
        producer.send(
            Message("orders", str(number).encode(), tags="abc"[number % 3]), sharding_key="k0"
        )
    seen.wait_for_count(60)
    assert [int(body) for body in seen.bodies_of("k0")] == [n for n in range(90) if n % 3 < 2]


def test_lag_is_that_of_the_group_whoever_has_consumed(
    producer: Producer, make: MakeConsumer, seen: Seen, broker: EmbeddedBroker
) -> None:
    one = make(seen.take)
    one.start()
    one.pause()
    make(seen.take).start()
    send_all(producer, numbered(100))
    seen.wait_for_count(100)
    eventually(lambda: committed(broker) == 100, "all is acknowledged")
    assert sum(each.messages for each in one.lag().values()) == 0


def test_the_history_of_members_that_pop_passes_the_audit(
    producer: Producer, make: MakeConsumer, seen: Seen, broker: EmbeddedBroker, tmp_path: Path,
    broker_history: Path,
) -> None:  # fmt: skip
    histories = [tmp_path / f"{number}.jsonl" for number in range(2)]
    members = [make(seen.take, history=path) for path in histories]
    for member in members:
        member.start()
    send_all(producer, numbered(300))
    seen.wait_for_count(300)
    for member in members:
        assert member.close(10)
    report = audit([*histories, broker_history])
    assert report.ok, report.violations


def test_members_that_pop_and_members_that_pull_are_told_of_each_other(
    producer: Producer, make: MakeConsumer, make_consumer: MakeConsumer, seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    send_all(producer, numbered(1))
    popping, pulling = make(seen.take), make_consumer(seen.take)
    popping.start()
    pulling.start()
    eventually(lambda: "each message is consumed twice" in caplog.text, "a warning")
    eventually(lambda: "is consumed twice" in str(popping.health().reasons), "its health says so")
    pulling.close(10)
    eventually(lambda: popping.health().is_ready, "all members pop")


def test_members_that_pop_in_order_and_without_are_told_of_each_other(
    producer: Producer, make: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(1))
    ordered = make(seen.take)
    unordered = make(seen.take, concurrent=True)
    ordered.start()
    unordered.start()
    for member, here in ((ordered, "in order"), (unordered, "without order")):
        told = f"each message is consumed twice, {here} here"
        eventually(
            lambda member=member, told=told: told in str(member.health().reasons),  # type: ignore[misc]
            "its health says so",
        )
    unordered.close(10)
    eventually(lambda: ordered.health().is_ready, "all members pop in order")


def test_a_broker_before_rocketmq_5_is_named(
    producer: Producer, make: MakeConsumer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(server.HANDLERS, RequestCode.POP_MESSAGE)
    send_all(producer, numbered(1))
    one = make(seen.take)
    one.start()
    eventually(lambda: not one.health().is_ready, "it says so")
    assert any("needs brokers of RocketMQ 5" in reason for reason in one.health().reasons)


def test_positions_are_the_brokers(producer: Producer, make: MakeConsumer, seen: Seen) -> None:
    one = make(seen.take)
    one.start()
    send_all(producer, numbered(1))
    seen.wait_for_count(1)
    queue = one.assigned_queues()[0]
    with pytest.raises(StateError, match="another member may have the next batch"):
        one.seek(queue, 0)
    with pytest.raises(StateError, match="another member may have the next batch"):
        one.seek_to_time(queue, 0)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"message_model": "broadcasting"}, "goes to one member"),
        ({"auto_commit": False}, "held back"),
        ({"on_failure": ParkKey(), "order_by_key": True}, "use Retry"),
        ({"deduplicate": 100}, "is not known"),
        ({"offset_store": object()}, "the broker alone decides"),
    ],
)
def test_what_cannot_be_with_pop_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        PushConsumer("g", name_servers="127.0.0.1:1", consume_mode="pop", **settings)


def test_a_lease_that_could_be_over_before_it_arrives_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most half of pop_invisible_ms"):
        PushConsumer("g", name_servers="127.0.0.1:1", pop_invisible_ms=1_000, pop_poll_ms=501)


def test_a_listener_may_not_hold_back_messages_that_were_popped(
    producer: Producer, make: MakeConsumer, seen: Seen
) -> None:
    problems: list[str] = []

    def listen(messages: Any, context: Any) -> None:
        try:
            context.auto_commit = False
        except ConfigError as error:
            problems.append(str(error))
        seen.take(messages, context)

    make(listen).start()
    send_all(producer, numbered(3))
    seen.wait_for_count(3)
    assert len(problems) == 3


def test_an_async_consumer_pops(producer: Producer, broker: EmbeddedBroker) -> None:
    got: list[bytes] = []

    async def consume() -> None:
        has_all = asyncio.Event()
        consumer = AsyncConsumer(
            "g", name_servers=broker.name_servers, consume_mode="pop", pop_poll_ms=200,
            consume_from_where="first_offset",
        )  # fmt: skip
        consumer.subscribe("orders")

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:
            got.extend(bytes(message.body) for message in messages)
            if len(got) >= 50:
                has_all.set()

        async with consumer, asyncio.timeout(20):
            await has_all.wait()

    send_all(producer, numbered(50, keys=1))
    asyncio.run(consume())
    assert got == [str(number).encode() for number in range(50)]
