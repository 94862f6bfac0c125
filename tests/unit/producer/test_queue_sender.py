"""One request per queue in flight (docs/internals/semantics.md#ordered-sends)."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordermq.config import SendConfig
from ordermq.core import take_batch
from ordermq.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    KeyFailed,
    ProtocolError,
    RequestTimeout,
    RouteError,
    StateError,
)
from ordermq.model.message_queue import MessageQueue
from ordermq.model.properties import encode
from ordermq.model.status import SendStatus
from ordermq.producer import queue_sender
from ordermq.producer.pending_message import PendingMessage, batch_body
from ordermq.producer.queue_sender import InFlightBatch, QueueSender
from ordermq.producer.request_reply import ReplyProtocol
from ordermq.producer.send_protocol import SendProtocol
from ordermq.remoting.bodies import BrokerData, TopicRoute
from ordermq.remoting.command import Command
from ordermq.remoting.headers import SendReplyHeader

from .fake_broker import FATES, FakeBroker

QUEUE = MessageQueue("T", "broker-a", 3)
CONFIG = SendConfig(retry_times=2, retry_delay_ms=100)


def pending(
    name: str,
    key: str | int | None = None,
    *,
    body: bytes = b"x",
    is_alone: bool = False,
    done: list[str] | None = None,
) -> PendingMessage:
    return pending_of([name], key, body=body, is_alone=is_alone, done=done)


def pending_of(
    names: Sequence[str],
    key: str | int | None = None,
    *,
    body: bytes = b"x",
    is_alone: bool = False,
    done: list[str] | None = None,
) -> PendingMessage:
    """Several messages that stay together."""
    ended: Callable[[PendingMessage], None] = (
        (lambda one: done.extend(one.unique_ids)) if done is not None else (lambda one: None)
    )
    texts = [encode({"UNIQ_KEY": name}) for name in names]
    size = sum(len(body) + len(text) for text in texts)
    return PendingMessage(
        [body] * len(names), texts, list(names), [0] * len(names), size, key, is_alone, ended
    )


def name_of(one: PendingMessage) -> str:
    (name,) = one.unique_ids
    return name


def names_of(batch: Sequence[PendingMessage]) -> list[str]:
    return [name for one in batch for name in one.unique_ids]


def sender_of(
    broker: FakeBroker,
    config: SendConfig = CONFIG,
    fallback: Callable[[MessageQueue, PendingMessage], bool] = lambda queue, one: False,
) -> QueueSender:
    protocol = SendProtocol(broker, "PG", QUEUE, config)  # type: ignore[arg-type]
    return QueueSender(broker, protocol, config, broker.failed_keys, fallback)  # type: ignore[arg-type]


def put(sender: QueueSender, *messages: PendingMessage) -> None:
    """Hand them in together, as the accumulator does."""
    sender.put(messages)
    sender.begin()


def fates(*names: str) -> Callable[[], str]:
    """These fates in turn, then success."""
    left = deque(names)
    return lambda: left.popleft() if left else "stored"


async def settled(broker: FakeBroker, sender: QueueSender) -> None:
    """Let time pass until the sender has nothing under way."""
    while not sender.is_idle:
        await asyncio.sleep(0)
        broker.clock.advance(10)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def send_all(
    broker: FakeBroker, messages: Sequence[PendingMessage], config: SendConfig = CONFIG
) -> QueueSender:
    """Put the messages one after the other, each after the one before was settled."""
    made: list[QueueSender] = []

    async def work() -> None:
        sender = sender_of(broker, config)
        made.append(sender)
        for one in messages:
            put(sender, one)
            await settled(broker, sender)

    run(work())
    return made[0]


# -- batches -------------------------------------------------------------------------------


def test_a_batch_body_is_written_byte_for_byte_as_java_does(
    vector: Callable[[str], bytes],
) -> None:
    def nothing(one: PendingMessage) -> None:
        return None

    messages = [
        PendingMessage([b"aa"], ["TAGS\x01TagA\x02"], ["1"], [0], 12, None, False, nothing),
        PendingMessage([b"bb"], ["WAIT\x01true\x02"], ["2"], [0], 12, None, False, nothing),
    ]
    both = ([b"aa", b"bb"], ["TAGS\x01TagA\x02", "WAIT\x01true\x02"], ["1", "2"], [0, 0])
    assert batch_body(messages) == vector("messages/batch_body")
    assert batch_body([PendingMessage(*both, 24, None, False, nothing)]) == vector(
        "messages/batch_body"
    )


def test_a_batch_ends_before_the_message_that_would_make_it_too_big() -> None:
    size = 100 + len("UNIQ_KEY\x011\x02")
    waiting = deque(pending(str(n), body=b"x" * 100) for n in range(5))
    assert names_of(take_batch(waiting, 2 * size, [])) == ["0", "1"]
    assert names_of(take_batch(waiting, 2 * size - 1, [])) == ["2"]
    assert names_of(take_batch(waiting, 1, [])) == ["3"]
    assert len(waiting) == 1


def test_a_message_that_must_be_alone_is_alone_and_keeps_its_place() -> None:
    waiting = deque(
        [pending("1"), pending("2"), pending("3", is_alone=True), pending("4"), pending("5")]
    )
    batches = []
    while waiting:
        batches.append(names_of(take_batch(waiting, 1_000, [])))
    assert batches == [["1", "2"], ["3"], ["4", "5"]]


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1), st.integers(1, 100))
def test_batches_in_a_row_are_the_messages_in_order(
    shapes: list[tuple[int, bool]], limit: int
) -> None:
    messages = [
        pending(str(n), body=bytes(size), is_alone=alone) for n, (size, alone) in enumerate(shapes)
    ]
    waiting, taken = deque(messages), []
    while waiting:
        batch = take_batch(waiting, limit, [])
        assert len(batch) == 1 or not any(one.is_alone for one in batch)
        taken += batch
    assert taken == messages


# -- one queue ------------------------------------------------------------------------------


def test_messages_that_arrive_while_a_request_is_in_flight_leave_as_one_batch() -> None:
    async def work() -> None:
        broker, done = FakeBroker(), list[str]()
        sender = sender_of(broker)
        broker.gate.clear()
        put(sender, *(pending(name, name, done=done) for name in "abcd"))
        await asyncio.sleep(0)
        put(sender, *(pending(name, name, done=done) for name in "efg"))
        broker.gate.set()
        await settled(broker, sender)
        assert broker.requests == [["a", "b", "c", "d"], ["e", "f", "g"]]
        assert broker.stored == done == list("abcdefg")

    run(work())


def test_a_receipt_tells_where_each_message_of_a_batch_lies() -> None:
    async def work() -> None:
        broker = FakeBroker()
        broker.stored = ["older"] * 10
        broker.code = 12
        sender = sender_of(broker)
        messages = [pending("a"), pending("b")]
        put(sender, *messages)
        await settled(broker, sender)
        receipts = [one.receipt() for one in messages]
        assert [receipt.queue_offset for receipt in receipts] == [10, 11]
        assert [receipt.message_id for receipt in receipts] == ["a", "b"]
        assert [receipt.offset_message_id for receipt in receipts] == [
            f"{10:032X}",
            f"{11:032X}",
        ]
        for receipt in receipts:
            assert receipt.message_queue == QUEUE
            assert receipt.status is SendStatus.FLUSH_SLAVE_TIMEOUT

    run(work())


def test_messages_that_stay_together_have_receipts_of_their_own() -> None:
    broker = FakeBroker()
    broker.stored = ["older"]
    messages = [pending_of("ab"), pending("c"), pending_of("def")]
    put_together(broker, sender_of(broker), messages)
    assert broker.requests == [list("abcdef")]
    receipts = [one for each in messages for one in each.all_receipts()]
    assert [one.message_id for one in receipts] == list("abcdef")
    assert [one.queue_offset for one in receipts] == list(range(1, 7))
    assert [int(one.offset_message_id, 16) for one in receipts] == list(range(1, 7))


def test_a_failed_key_fails_all_of_a_batch() -> None:
    broker = FakeBroker(fates("lost", "lost", "lost"))
    lost, refused, other = pending_of("ab", "k"), pending_of("cd", "k"), pending_of("ef", "other")
    send_all(broker, [lost, refused, other])
    assert isinstance(lost.error, RequestTimeout)
    assert isinstance(refused.error, KeyFailed)
    assert broker.stored == ["e", "f"]


def test_a_single_message_goes_as_a_plain_send() -> None:
    broker = FakeBroker()
    one = pending("a")
    one.flags = [7]
    send_all(broker, [one])
    (header,) = broker.headers
    assert (header.batch, header.flag, header.properties) == (None, 7, one.properties[0])
    assert (header.topic, header.queue_id, header.broker_name) == ("T", 3, "broker-a")
    assert header.born_timestamp_ms == 1_700_000_000_000


def test_a_time_out_sends_the_same_message_again_before_any_successor() -> None:
    async def work() -> None:
        broker = FakeBroker(fates("stored, answer lost"))
        sender = sender_of(broker)
        first, second = pending("a", "k"), pending("b", "k")
        put(sender, first)
        await asyncio.sleep(0)
        put(sender, second)
        await settled(broker, sender)
        assert broker.requests == [["a"], ["a"], ["b"]]
        assert broker.stored == ["a", "a", "b"]
        assert first.receipts is not None
        assert first.receipt().queue_offset == 1

    run(work())


def test_a_retry_waits_its_pause() -> None:
    async def work() -> None:
        broker = FakeBroker(fates("lost"))
        sender = sender_of(broker)
        put(sender, pending("a"))
        while not broker.requests or broker.in_flight:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        broker.clock.advance(99)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(broker.requests) == 1
        broker.clock.advance(1)
        await settled(broker, sender)
        assert len(broker.requests) == 2

    run(work())


def test_an_unknown_outcome_fails_the_key_until_it_is_resolved() -> None:
    async def work() -> None:
        broker = FakeBroker(fates("lost", "lost", "lost"))
        sender = sender_of(broker)
        lost, refused, other = pending("a", "k"), pending("b", "k"), pending("c", "other")
        put(sender, lost)
        await settled(broker, sender)
        put(sender, refused)
        put(sender, other)
        await settled(broker, sender)
        assert isinstance(lost.error, RequestTimeout)
        assert isinstance(refused.error, KeyFailed)
        assert "producer.resolve" in str(refused.error)
        assert broker.requests == [["a"], ["a"], ["a"], ["c"]]
        assert other.receipts is not None
        assert broker.failed_keys.resolve("T", "k")
        assert not broker.failed_keys.resolve("T", "k")
        again = pending("d", "k")
        put(sender, again)
        await settled(broker, sender)
        assert again.receipts is not None

    run(work())


def test_a_number_and_its_text_fail_as_one_key() -> None:
    """Consumers read both as one, and most selectors choose one queue for both."""
    broker = FakeBroker(fates("lost", "lost", "lost"))
    messages = [pending("a", 7), pending("b", "7"), pending("c", "8")]
    send_all(broker, messages)
    assert [type(one.error) for one in messages] == [RequestTimeout, KeyFailed, type(None)]
    assert broker.failed_keys.resolve("T", "7")
    assert not broker.failed_keys.resolve("T", 7)


def test_successors_that_were_waiting_fail_with_their_key_and_others_go_on() -> None:
    async def work() -> None:
        broker = FakeBroker(fates("lost", "lost", "lost"))
        sender = sender_of(broker)
        first = pending("a", "k")
        put(sender, first)
        await asyncio.sleep(0)
        waiting = [pending("b", "k"), pending("c", "other"), pending("d", "k"), pending("e")]
        put(sender, *waiting)
        await settled(broker, sender)
        assert [type(one.error) for one in waiting] == [
            KeyFailed, type(None), KeyFailed, type(None),
        ]  # fmt: skip
        assert broker.stored == ["c", "e"]

    run(work())


def test_messages_without_a_key_fail_nobody() -> None:
    broker = FakeBroker(fates("lost", "lost", "lost"))
    messages = [pending("a"), pending("b")]
    send_all(broker, messages)
    assert isinstance(messages[0].error, RequestTimeout)
    assert messages[1].receipts is not None


def test_a_refused_message_does_not_fail_its_key() -> None:
    broker = FakeBroker(fates("refused"))
    messages = [pending("a", "k"), pending("b", "k")]
    send_all(broker, messages)
    assert isinstance(messages[0].error, BrokerError)
    assert broker.stored == ["b"]
    assert messages[1].receipts is not None


def test_a_refusal_after_a_time_out_leaves_the_outcome_unknown() -> None:
    # The first try may still be on its way: whoever goes on now may be overtaken by it.
    broker = FakeBroker(fates("stored, answer lost", "refused"))
    messages = [pending("a", "k"), pending("b", "k")]
    send_all(broker, messages)
    error = messages[0].error
    assert isinstance(error, RequestTimeout), "a refusal says that nothing was stored"
    assert isinstance(error.__cause__, BrokerError)
    assert isinstance(messages[1].error, KeyFailed)


def test_a_broker_that_is_away_after_it_stored_a_message_is_not_told_as_not_stored() -> None:
    broker = FakeBroker(fates("line cut", *["unreachable"] * 9))
    message = pending("a")
    send_all(broker, [message])
    assert isinstance(message.error, ConnectionLost), "ConnectFailed says that nothing was sent"


def test_a_garbled_answer_leaves_the_outcome_unknown() -> None:
    broker = FakeBroker(fates("stored, answer garbled"))
    messages = [pending("a", "k"), pending("b", "k")]
    send_all(broker, messages)
    assert isinstance(messages[0].error, ProtocolError)
    assert isinstance(messages[1].error, KeyFailed)


def test_an_answer_for_another_number_of_messages_is_a_protocol_error() -> None:
    async def work() -> None:
        broker = FakeBroker()
        broker.acknowledged = 1
        sender = sender_of(broker)
        messages = [pending("a"), pending("b")]
        put(sender, *messages)
        await settled(broker, sender)
        for one in messages:
            assert isinstance(one.error, ProtocolError)
            assert "1 messages of 2" in str(one.error)

    run(work())


@pytest.mark.parametrize("is_started", [False, True])
def test_stopping_tells_everyone_who_waits(is_started: bool) -> None:
    async def work() -> None:
        broker = FakeBroker()
        broker.gate.clear()
        sender = sender_of(broker)
        first, second = pending("a", "k"), pending("b", "k")
        sender.put([first])
        if is_started:
            sender.begin()
        sender.put([second])
        await sender.stop()
        await asyncio.sleep(0)
        assert sender.is_idle
        assert isinstance(first.error, StateError)
        assert isinstance(second.error, StateError)
        assert "was not sent" in str(second.error)
        assert ("unknown" in str(first.error)) is is_started

    run(work())


def test_a_defect_in_reading_the_answer_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("a defect")

    async def work() -> None:
        broker = FakeBroker()
        sender = sender_of(broker)
        monkeypatch.setattr(broker.api, "stored", broken)
        messages = [pending("a", is_alone=True), pending("b")]
        put(sender, *messages)
        await settled(broker, sender)
        assert [type(one.error) for one in messages] == [StateError, StateError]
        assert "unknown" in str(messages[0].error)
        assert "was not sent" in str(messages[1].error)

    run(work())


def test_an_answer_after_the_sender_stopped_changes_nothing() -> None:
    async def work() -> None:
        broker, done = FakeBroker(), list[str]()
        broker.gate.clear()
        sender = sender_of(broker)
        one = pending("a", done=done)
        put(sender, one)
        await sender.stop()
        broker.gate.set()
        while broker.in_flight:
            await asyncio.sleep(0)
        assert done == ["a"]
        assert isinstance(one.error, StateError)
        assert one.receipts is None

    run(work())


def stored_at(offset: int, count: int = 1) -> Command:
    places = ",".join(f"{offset + i:032X}" for i in range(count))
    return Command(0, SendReplyHeader(places, QUEUE.queue_id, offset).to_ext())


def places_from(offset: int, count: int = 1) -> tuple[str, int, int]:
    """The same, as `AwaitedAnswer.stored` has it."""
    header = SendReplyHeader.from_ext(stored_at(offset, count).ext)
    return header.message_id, header.queue_id, header.queue_offset


@pytest.mark.parametrize("are_fields_read", [False, True])
def test_an_answer_read_on_the_callers_thread_is_left_to_the_loop_unless_it_only_wakes_threads(
    are_fields_read: bool,
) -> None:
    async def work() -> None:
        broker = FakeBroker()
        broker.gate.clear()
        sender = sender_of(broker)
        first, second = pending("a", is_alone=True), pending("b")
        put(sender, first, second)
        batch = sender._in_flight
        assert batch is not None
        assert not batch.answered_on_caller(stored_at(7))  # its caller may be a future
        assert not batch.stored_on_caller(*places_from(7))
        first.wakes_only = True
        assert not batch.stored_on_caller(*places_from(7, 2))  # of two messages
        assert not batch.answered_on_caller(Command(2, remark="busy"))
        assert not batch.answered_on_caller(Command(0, {"queueId": "3"}))
        assert first.receipts is None
        broker.in_flight = 0  # as if the broker had answered
        if are_fields_read:
            assert batch.stored_on_caller(*places_from(7))
        else:
            assert batch.answered_on_caller(stored_at(7))
        assert first.receipt().queue_offset == 7
        assert broker.requests == [["a"], ["b"]], "the next request follows at once"
        await sender.stop()

    run(work())


def test_an_answer_told_again_wakes_its_callers_and_sends_nothing_twice() -> None:
    async def work() -> None:
        broker, done = FakeBroker(), list[str]()
        broker.gate.clear()
        sender = sender_of(broker)
        one = pending("a", done=done)
        one.wakes_only = True
        put(sender, one)
        batch = sender._in_flight
        assert batch is not None
        # An exception in the middle: the batch is over, and nobody was told.
        assert batch._take_end()
        batch.answered(stored_at(7))
        assert sender.is_idle
        assert one.receipt().queue_offset == 7
        assert done == ["a", "a"]
        assert broker.requests == [["a"]]

    run(work())


def test_a_caller_that_ends_a_batch_while_the_sender_stops_begins_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        broker = FakeBroker()
        broker.gate.clear()
        sender, first, second = sender_of(broker), pending("a", is_alone=True), pending("b")
        first.wakes_only = True
        put(sender, first, second)

        async def overtaken(batch: InFlightBatch) -> None:
            assert batch.answered_on_caller(stored_at(7))

        monkeypatch.setattr(InFlightBatch, "stop", overtaken)
        await sender.stop()
        assert first.receipt().queue_offset == 7
        assert isinstance(second.error, StateError)
        assert sender.is_idle
        assert broker.requests == [["a"]]

    run(work())


def test_a_request_waits_until_the_connection_takes_bytes() -> None:
    async def work() -> None:
        broker = FakeBroker(is_writable=iter([False, False, True, True]).__next__)
        sender, first, second = sender_of(broker), pending("a", "k"), pending("b", "k")
        put(sender, first)
        assert not broker.requests
        put(sender, second)  # while the first waits: it may not pass
        await settled(broker, sender)
        assert broker.requests == [["a"], ["b"]]
        assert first.receipts is not None

    run(work())


def test_messages_that_fail_where_they_start_do_not_nest() -> None:
    # No route names the broker of thousands in a row.
    async def work() -> None:
        broker = FakeBroker()
        sender = sender_of(broker)

        def unrouted(broker_name: str) -> str:
            raise RouteError("no route", broker=broker_name)

        broker.master_of = unrouted  # type: ignore[method-assign]
        messages = [pending(str(n), is_alone=True) for n in range(5_000)]
        put(sender, *messages)
        assert sender.is_idle
        assert all(isinstance(one.error, RouteError) for one in messages)

    run(work())


def test_a_defect_in_sending_leaves_nobody_waiting() -> None:
    async def work() -> None:
        broker = FakeBroker()
        sender = sender_of(broker)

        def broken(*_: object) -> None:
            raise TypeError("a defect")

        broker.ask = broken  # type: ignore[method-assign]
        messages = [pending("a", is_alone=True), pending("b")]
        put(sender, *messages)
        await settled(broker, sender)
        assert [type(one.error) for one in messages] == [StateError, StateError]

    run(work())


def test_whoever_was_answered_is_told_even_if_the_next_request_cannot_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        broker = FakeBroker()
        sender = sender_of(broker)
        first = [pending("a"), pending("b")]
        put(sender, *first)
        waiting = pending("c")
        sender.put([waiting])

        def broken(*_: object) -> None:
            raise MemoryError("a defect")

        monkeypatch.setattr(queue_sender, "take_batch", broken)
        while broker.in_flight:
            await asyncio.sleep(0)
        assert [one.receipts and one.receipts[0].queue_offset for one in first] == [0, 1]
        assert isinstance(waiting.error, StateError)
        assert "was not sent" in str(waiting.error)
        assert sender.is_idle

    run(work())


def test_one_whose_caller_cannot_be_told_leaves_nobody_else_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(one: PendingMessage) -> None:
        raise TypeError("a defect")

    broker, done = FakeBroker(fates("stored", "refused")), list[str]()
    for names in ("abc", "def"):
        messages = [pending(name, done=done) for name in names]
        messages[1].on_done = broken
        put_together(broker, sender_of(broker), messages)
    assert done == ["a", "c", "d", "f"]
    assert caplog.text.count(f"message b ({QUEUE}): notifying its caller failed") == 1
    assert caplog.text.count("message e (") == 1


def test_a_request_that_cannot_be_made_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        broker = FakeBroker()
        sender = sender_of(broker)
        first, second, third = pending("a"), pending("b"), pending("c", is_alone=True)
        put(sender, first)
        sender.put([second, third])

        def broken(*_: object) -> None:
            raise MemoryError("a defect")

        # The request of the first is in flight; the next one is taken, and then not made.
        monkeypatch.setattr(queue_sender, "InFlightBatch", broken)
        monkeypatch.setattr(queue_sender.InFlightBatch, "start", broken, raising=False)
        await settled(broker, sender)
        assert first.receipts is not None
        for one in (second, third):
            assert isinstance(one.error, StateError)
            assert "was not sent" in str(one.error)

    run(work())


def test_a_later_outcome_changes_nothing() -> None:
    done: list[str] = []
    one = pending("a", done=done)
    one.finish(None, StateError("first"))
    one.finish([], None)
    assert done == ["a"]
    assert one.receipts is None


# -- one-way requests ----------------------------------------------------------------------


def oneway(name: str) -> PendingMessage:
    one = pending(name)
    one.is_oneway = True
    return one


def test_a_one_way_request_counts_as_sent_once_written_and_waits_for_the_one_in_flight() -> None:
    async def work() -> None:
        broker = FakeBroker()
        broker.gate.clear()
        sender = sender_of(broker)
        ordered, first, second = pending("a", "k"), oneway("b"), oneway("c")
        put(sender, ordered)
        await asyncio.sleep(0)
        put(sender, first, second)
        assert not broker.oneway
        broker.gate.set()
        await settled(broker, sender)
        assert broker.oneway == [["b", "c"]]
        assert broker.stored == ["a", "b", "c"]
        assert first.receipts == second.receipts == ()
        put(sender, oneway("d"))  # nothing is in flight: it leaves at once
        assert broker.oneway == [["b", "c"], ["d"]]
        assert sender.is_idle

    run(work())


def test_one_message_that_needs_an_answer_has_its_whole_request_answered() -> None:
    broker = FakeBroker()
    messages = [oneway("a"), pending("b", "k"), oneway("c")]
    put_together(broker, sender_of(broker), messages)
    assert not broker.oneway
    assert broker.requests == [["a", "b", "c"]]
    assert all(one.receipts for one in messages)


def test_a_one_way_message_to_an_unreachable_broker_is_tried_again_and_fails() -> None:
    async def work() -> None:
        broker, attempts = FakeBroker(), list[str]()
        sender = sender_of(broker)

        def unreachable(address: str) -> FakeBroker:
            attempts.append(address)
            raise ConnectFailed("refused", address=address)

        broker.writable_now = unreachable  # type: ignore[method-assign]
        one = oneway("a")
        put(sender, one)
        await settled(broker, sender)
        assert isinstance(one.error, ConnectFailed)
        assert len(attempts) == 3

    run(work())


# -- the order, whatever fails -------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.tuples(st.sampled_from(["k1", "k2", None]), st.integers(1, 3))
        ),
        st.tuples(st.just("let run"), st.integers(1, 30)),
        st.tuples(st.just("land"), st.none()),
        st.tuples(st.just("resolve"), st.sampled_from(["k1", "k2"])),
    ),
    min_size=4,
    max_size=30,
)


# Late ones more often than others: they are what breaks an order.
FATE = st.sampled_from(["late", "late", "late", "refused", *sorted(FATES)])


@settings(max_examples=300)
@given(
    STEPS,
    st.lists(FATE, min_size=3, max_size=30),
    st.integers(20, 200),
    st.lists(st.booleans(), max_size=10),
    st.sampled_from([30, 60, 100, 1 << 24]),
)
def test_copies_of_a_key_are_stored_in_send_order_whatever_fails(
    steps: list[tuple[str, Any]],
    outcomes: list[str],
    max_batch_bytes: int,
    writable: list[bool],
    max_body_bytes: int,
) -> None:
    async def work() -> None:
        left = deque(writable)
        broker = FakeBroker(fates(*outcomes), lambda: not left or left.popleft())
        broker.max_body_bytes = max_body_bytes
        config = SendConfig(retry_times=1, retry_delay_ms=10, max_batch_bytes=max_batch_bytes)
        sender, sent, done = sender_of(broker, config), list[PendingMessage](), list[str]()
        for step, argument in steps:
            if step == "put":
                key, count = argument
                names = [f"{len(sent):03}.{n}" for n in range(count)]
                sent.append(pending_of(names, key, done=done))
                put(sender, sent[-1])
            elif step == "land":
                broker.land()
            elif step == "resolve":
                broker.land()  # the user has looked: what was on its way is there or lost
                broker.failed_keys.resolve("T", argument)
            else:
                for _ in range(argument):
                    await asyncio.sleep(0)
                    broker.clock.advance(10)
        await settled(broker, sender)
        broker.land()

        assert sorted(done) == names_of(sent), "each is told once"
        acknowledged = names_of([one for one in sent if one.receipts is not None])
        assert set(acknowledged) <= set(broker.stored)
        requested = {name: at for at, names in enumerate(broker.requests) for name in names}
        for one in sent:
            assert len({requested.get(name) for name in one.unique_ids}) == 1, "it stays whole"
            for receipt, name in zip(one.receipts or (), one.unique_ids, strict=False):
                assert receipt.message_id == name == broker.stored[receipt.queue_offset]
        for key in ("k1", "k2"):
            mine = names_of([one for one in sent if one.key == key])
            first_copies = list(dict.fromkeys(name for name in broker.stored if name in mine))
            assert first_copies == sorted(first_copies)

    run(work())


# -- compressed bodies (docs/internals/protocol.md#system-flags)
# -----------------------------------------------------


def test_a_body_from_the_threshold_on_is_compressed_and_a_shorter_one_is_not() -> None:
    broker = FakeBroker()
    config = replace(CONFIG, compress_msg_body_over_howmuch=100)
    send_all(broker, [pending("short", body=b"x" * 99), pending("long", body=b"x" * 100)], config)
    assert [header.sys_flag for header in broker.headers] == [0, 0x301]
    assert broker.bodies[0] == b"x" * 99
    assert zlib.decompress(broker.bodies[1]) == b"x" * 100


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_body_that_compressing_makes_no_smaller_is_sent_as_it_is(kind: str) -> None:
    broker = FakeBroker()
    config = replace(CONFIG, compress_msg_body_over_howmuch=100, compress_type=kind)
    body = random.Random(7).randbytes(4_096)  # 4 MiB of it would be over the broker's limit
    send_all(broker, [pending("one", body=body)], config)
    assert [header.sys_flag for header in broker.headers] == [0]
    assert broker.bodies == [body]


def test_a_batch_is_never_compressed() -> None:
    broker = FakeBroker()
    config = replace(CONFIG, compress_msg_body_over_howmuch=100)

    async def work() -> None:
        sender = sender_of(broker, config)
        put(sender, *(pending(name, body=name.encode() * 200) for name in "abc"))
        await settled(broker, sender)

    run(work())
    assert [(header.batch, header.sys_flag) for header in broker.headers] == [(True, 0)]
    assert b"b" * 200 in broker.bodies[0]


def test_a_body_sent_again_is_the_same_compressed_one() -> None:
    broker = FakeBroker(fates("lost", "lost"))
    config = replace(CONFIG, compress_msg_body_over_howmuch=1)
    send_all(broker, [pending("a", body=b"x" * 100)], config)
    assert broker.stored == ["a"]
    assert [header.sys_flag for header in broker.headers] == [0x301] * 3
    assert len(set(broker.bodies)) == 1


# -- timed messages ------------------------------------------------------------------------


def test_a_broker_that_does_not_tell_its_version_fails_no_key() -> None:
    async def silent(address: str) -> int:
        raise RequestTimeout("no answer")

    broker = FakeBroker()
    broker.version_of = silent  # type: ignore[method-assign]
    timed, plain = pending("a", "k", is_alone=True), pending("b", "k")
    timed.is_timed = True
    send_all(broker, [timed, plain])
    assert isinstance(timed.error, ConnectFailed)
    assert broker.stored == ["b"]


@pytest.mark.parametrize(("version", "is_sent"), [(412, False), (413, True), (479, True)])
def test_a_broker_older_than_5_0_is_not_sent_a_timed_message(version: int, is_sent: bool) -> None:
    broker = FakeBroker()
    broker.version = version
    timed, plain = pending("timed", "k", is_alone=True), pending("plain", "k")
    timed.is_timed = True
    send_all(broker, [timed, plain])
    assert broker.stored == (["timed", "plain"] if is_sent else ["plain"])
    if not is_sent:
        assert isinstance(timed.error, BrokerError)
        assert "delay_level" in str(timed.error)


# -- unordered messages and other brokers --------------------------------------------------


def falling_back(broker: FakeBroker, taken: list[str], *, takes: bool = True) -> QueueSender:
    def fallback(queue: MessageQueue, one: PendingMessage) -> bool:
        assert queue == QUEUE
        if takes:
            taken.extend(one.unique_ids)
            one.fallbacks_left -= 1
            one.finish(None, None)
        return takes

    return sender_of(broker, CONFIG, fallback)


def put_together(
    broker: FakeBroker, sender: QueueSender, messages: Sequence[PendingMessage]
) -> None:
    async def work() -> None:
        put(sender, *messages)
        await settled(broker, sender)

    run(work())


@pytest.mark.parametrize("fate", ["lost", "line cut", "busy"])
def test_unordered_messages_go_to_another_broker_and_the_ordered_ones_are_sent_again(
    fate: str,
) -> None:
    broker, taken = FakeBroker(fates(fate)), list[str]()
    ordered, free = [pending("1", "k"), pending("3", "k")], [pending("2"), pending("4")]
    for one in free:
        one.fallbacks_left = 1
    sender = falling_back(broker, taken)
    put_together(broker, sender, [ordered[0], free[0], ordered[1], free[1]])
    assert taken == ["2", "4"]
    assert broker.stored == ["1", "3"]
    assert broker.requests == [["1", "2", "3", "4"], ["1", "3"]]


def test_a_message_every_broker_would_refuse_stays_and_fails() -> None:
    broker, taken = FakeBroker(fates("refused")), list[str]()
    free = pending("1")
    free.fallbacks_left = 1
    put_together(broker, falling_back(broker, taken), [free])
    assert taken == []
    assert isinstance(free.error, BrokerError)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_refusal_of_another_broker_does_not_say_that_nothing_is_stored(
    is_stopped: bool,
) -> None:
    """The first one may have stored the message."""
    first, second = FakeBroker(fates("stored, answer lost")), FakeBroker(fates("refused"))
    free = pending("1")
    free.fallbacks_left = 1

    async def work() -> None:
        other = sender_of(second)

        def fallback(queue: MessageQueue, one: PendingMessage) -> bool:
            one.fallbacks_left -= 1
            other.put([one])
            if not is_stopped:
                other.begin()
            return True

        sender = sender_of(first, CONFIG, fallback)
        put(sender, free)
        await settled(first, sender)
        if is_stopped:
            await other.stop()
        else:
            await settled(second, other)

    run(work())
    assert first.stored == ["1"]
    assert isinstance(free.error, RequestTimeout)


def test_a_reply_that_a_broker_may_have_pushed_is_not_told_as_refused() -> None:
    broker = FakeBroker(fates("refused", "lost"))
    brokers = [BrokerData(name, {0: "127.0.0.1:10911"}) for name in (QUEUE.broker_name, "broker-b")]
    broker.known = lambda topic: TopicRoute(tuple(brokers), ())  # type: ignore[attr-defined]
    request: Any = SimpleNamespace(topic="T", message_queue=QUEUE)
    reply = pending("a")

    async def work() -> None:
        protocol = ReplyProtocol(broker, "PG", request, "R", CONFIG, None)  # type: ignore[arg-type]
        sender = QueueSender(broker, protocol, CONFIG, broker.failed_keys)  # type: ignore[arg-type]
        put(sender, reply)
        await settled(broker, sender)

    run(work())
    assert isinstance(reply.error, RequestTimeout)
    assert isinstance(reply.error.__cause__, BrokerError)


def test_an_unordered_batch_goes_to_another_broker_whole() -> None:
    broker, taken = FakeBroker(fates("busy")), list[str]()
    together, ordered = pending_of(["1", "2", "3"]), pending_of(["4", "5"], "k")
    together.fallbacks_left = 1
    put_together(broker, falling_back(broker, taken), [together, ordered])
    assert taken == ["1", "2", "3"]
    assert broker.requests == [["1", "2", "3", "4", "5"], ["4", "5"]]


def test_without_another_broker_an_unordered_message_is_sent_here_again() -> None:
    broker, taken = FakeBroker(fates("busy")), list[str]()
    free = pending("1")
    free.fallbacks_left = 1
    put_together(broker, falling_back(broker, taken, takes=False), [free])
    assert broker.stored == ["1"]
    assert free.fallbacks_left == 1


def test_a_fallback_is_reported_with_the_broker_that_messages_are_taken_from() -> None:
    """One line tells it of all its queues."""
    broker, taken = FakeBroker(fates("busy", "busy", "stored", "busy")), list[str]()
    sender = falling_back(broker, taken)
    for name in "abcd":
        free = pending(name)
        free.fallbacks_left = 1
        put_together(broker, sender, [free])
    assert taken == ["a", "b", "d"]
    told = "broker-a: send failed; unordered messages go to another broker"
    assert broker.failures == [told] * 3


def test_without_another_broker_a_message_is_sent_again_and_that_is_reported() -> None:
    broker = FakeBroker(fates("busy"))
    free = pending("a")
    free.fallbacks_left = 1
    put_together(broker, falling_back(broker, [], takes=False), [free])
    assert broker.stored == ["a"]
    assert broker.failures == ["broker-a: send failed; retrying"]


# -- requests larger than the broker takes -------------------------------------------------


def test_messages_that_are_too_large_together_are_sent_apart_and_in_order() -> None:
    broker, done = FakeBroker(), list[str]()
    broker.max_body_bytes = 300
    messages = [pending(f"{n:02}", f"k{n % 2}", body=b"x" * 100, done=done) for n in range(10)]
    sender = sender_of(broker)
    put_together(broker, sender, messages)
    names = names_of(messages)
    assert broker.stored == names == done
    assert all(one.receipts is not None for one in messages)
    # What was learned stands: the next ones are refused no more.
    before = len(broker.requests)
    put_together(broker, sender, [pending(f"a{n}", "k0", body=b"x" * 100) for n in range(4)])
    assert broker.stored[10:] == ["a0", "a1", "a2", "a3"]
    assert [len(names) for names in broker.requests[before:]] == [2, 2]


def test_a_message_that_is_too_large_alone_fails_alone_also_with_another_broker() -> None:
    broker, taken = FakeBroker(), list[str]()
    broker.max_body_bytes = 300
    messages = [pending(name, "k") for name in ("1", "2", "4")]
    large = pending("3", "k", body=b"x" * 400)
    messages.insert(2, large)
    large.fallbacks_left = 1
    put_together(broker, falling_back(broker, taken), messages)
    assert broker.stored == ["1", "2", "4"]
    assert isinstance(large.error, BrokerError)
    assert "maxMessageSize" in str(large.error)
    assert taken == []
    assert broker.failed_keys.error_of("T", "k") is None, "nothing of it was stored"


def test_messages_that_stay_together_are_not_taken_apart() -> None:
    broker = FakeBroker()
    broker.max_body_bytes = 300
    together, other = pending_of(["1", "2", "3"], body=b"x" * 100), pending("4")
    put_together(broker, sender_of(broker), [together, other])
    assert broker.stored == ["4"]
    assert isinstance(together.error, BrokerError)


def test_a_copy_that_is_too_large_behind_a_lost_answer_stays_unknown() -> None:
    broker, done = FakeBroker(fates("stored, answer lost")), list[str]()
    messages = [pending(name, "k", body=b"x" * 100, done=done) for name in ("1", "2", "3")]

    async def work() -> None:
        sender = sender_of(broker)
        put(sender, *messages)
        while not broker.stored:
            await asyncio.sleep(0)
        broker.max_body_bytes = 150  # by an admin, at run time
        await settled(broker, sender)

    run(work())
    assert broker.stored == done == ["1", "2", "3"]
    assert isinstance(broker.failed_keys.error_of("T", "k"), KeyFailed)


def test_messages_that_wait_to_be_sent_apart_fail_with_their_producer() -> None:
    broker, done = FakeBroker(), list[str]()
    broker.max_body_bytes = 150
    messages = [pending(name, "k", body=b"x" * 100, done=done) for name in ("1", "2", "3")]

    async def work() -> None:
        sender = sender_of(broker)
        put(sender, *messages)
        while len(broker.requests) < 2:
            await asyncio.sleep(0)
        await sender.stop()
        assert sender.is_idle

    run(work())
    assert sorted(done) == ["1", "2", "3"]
    assert all(isinstance(one.error, StateError) for one in messages)
