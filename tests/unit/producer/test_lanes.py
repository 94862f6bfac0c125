"""One request of a queue at a time (docs/internals/semantics.md#ordered-sends, I15, protocol
V7)."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordermq.config import SendConfig
from ordermq.errors import (
    BrokerError,
    KeyFailed,
    ProtocolError,
    RequestTimeout,
    RouteError,
    StateError,
)
from ordermq.model.message_queue import MessageQueue
from ordermq.model.properties import encode
from ordermq.model.status import SendStatus
from ordermq.producer import queue_sender as lanes
from ordermq.producer.pending_message import Entry, batch_body, take_batch
from ordermq.producer.queue_sender import QueueLane

from .fake_broker import FATES, FakeBroker

QUEUE = MessageQueue("T", "broker-a", 3)
CONFIG = SendConfig(retry_times=2, retry_delay_ms=100)


def entry(
    name: str,
    key: str | None = None,
    *,
    body: bytes = b"x",
    is_alone: bool = False,
    done: list[str] | None = None,
) -> Entry:
    return entry_of([name], key, body=body, is_alone=is_alone, done=done)


def entry_of(
    names: Sequence[str],
    key: str | None = None,
    *,
    body: bytes = b"x",
    is_alone: bool = False,
    done: list[str] | None = None,
) -> Entry:
    """Several messages that stay together."""
    ended: Callable[[Entry], None] = (
        (lambda one: done.extend(one.unique_ids)) if done is not None else (lambda one: None)
    )
    texts = [encode({"UNIQ_KEY": name}) for name in names]
    size = sum(len(body) + len(text) for text in texts)
    return Entry(
        [body] * len(names), texts, list(names), [0] * len(names), size, key, is_alone, ended
    )


def name_of(one: Entry) -> str:
    (name,) = one.unique_ids
    return name


def names_of(batch: Sequence[Entry]) -> list[str]:
    return [name for one in batch for name in one.unique_ids]


def lane_of(broker: FakeBroker, config: SendConfig = CONFIG) -> QueueLane:
    return QueueLane(broker, "PG", QUEUE, config)  # type: ignore[arg-type]


def put(lane: QueueLane, *entries: Entry) -> None:
    """Hand them in together, as Intake does."""
    lane.put(entries)
    lane.begin()


def fates(*names: str) -> Callable[[], str]:
    """These fates in turn, then success."""
    left = deque(names)
    return lambda: left.popleft() if left else "stored"


async def settled(broker: FakeBroker, lane: QueueLane) -> None:
    """Let time pass until the lane has nothing under way."""
    while not lane.is_idle:
        await asyncio.sleep(0)
        broker.clock.advance(10)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def send_all(
    broker: FakeBroker, entries: Sequence[Entry], config: SendConfig = CONFIG
) -> QueueLane:
    """Put the entries one after the other, each after the one before was settled."""
    made: list[QueueLane] = []

    async def work() -> None:
        lane = lane_of(broker, config)
        made.append(lane)
        for one in entries:
            put(lane, one)
            await settled(broker, lane)

    run(work())
    return made[0]


# -- batches -------------------------------------------------------------------------------


def test_a_batch_body_is_written_byte_for_byte_as_java_does(
    vector: Callable[[str], bytes],
) -> None:
    def nothing(one: Entry) -> None:
        return None

    entries = [
        Entry([b"aa"], ["TAGS\x01TagA\x02"], ["1"], [0], 12, None, False, nothing),
        Entry([b"bb"], ["WAIT\x01true\x02"], ["2"], [0], 12, None, False, nothing),
    ]
    both = ([b"aa", b"bb"], ["TAGS\x01TagA\x02", "WAIT\x01true\x02"], ["1", "2"], [0, 0])
    assert batch_body(entries) == vector("messages/batch_body")
    assert batch_body([Entry(*both, 24, None, False, nothing)]) == vector("messages/batch_body")


def test_a_batch_ends_before_the_message_that_would_make_it_too_big() -> None:
    size = 100 + len("UNIQ_KEY\x011\x02")
    waiting = deque(entry(str(n), body=b"x" * 100) for n in range(5))
    assert names_of(take_batch(waiting, 2 * size)) == ["0", "1"]
    assert names_of(take_batch(waiting, 2 * size - 1)) == ["2"]
    assert names_of(take_batch(waiting, 1)) == ["3"]
    assert len(waiting) == 1


def test_a_message_that_must_be_alone_is_alone_and_keeps_its_place() -> None:
    waiting = deque([entry("1"), entry("2"), entry("3", is_alone=True), entry("4"), entry("5")])
    batches = []
    while waiting:
        batches.append(names_of(take_batch(waiting, 1_000)))
    assert batches == [["1", "2"], ["3"], ["4", "5"]]


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1), st.integers(1, 100))
def test_batches_in_a_row_are_the_messages_in_order(
    shapes: list[tuple[int, bool]], limit: int
) -> None:
    entries = [
        entry(str(n), body=bytes(size), is_alone=alone) for n, (size, alone) in enumerate(shapes)
    ]
    waiting, taken = deque(entries), []
    while waiting:
        batch = take_batch(waiting, limit)
        assert len(batch) == 1 or not any(one.is_alone for one in batch)
        taken += batch
    assert taken == entries


# -- one lane ------------------------------------------------------------------------------


def test_what_comes_while_a_request_is_under_way_goes_as_one_batch() -> None:
    async def work() -> None:
        broker, done = FakeBroker(), list[str]()
        lane = lane_of(broker)
        broker.gate.clear()
        put(lane, *(entry(name, name, done=done) for name in "abcd"))
        await asyncio.sleep(0)
        put(lane, *(entry(name, name, done=done) for name in "efg"))
        broker.gate.set()
        await settled(broker, lane)
        assert broker.requests == [["a", "b", "c", "d"], ["e", "f", "g"]]
        assert broker.stored == done == list("abcdefg")

    run(work())


def test_a_receipt_tells_where_each_message_of_a_batch_lies() -> None:
    async def work() -> None:
        broker = FakeBroker()
        broker.stored = ["older"] * 10
        broker.code = 12
        lane = lane_of(broker)
        entries = [entry("a"), entry("b")]
        put(lane, *entries)
        await settled(broker, lane)
        receipts = [one.outcome() for one in entries]
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
    entries = [entry_of("ab"), entry("c"), entry_of("def")]
    put_together(broker, lane_of(broker), entries)
    assert broker.requests == [list("abcdef")]
    receipts = [one for each in entries for one in each.outcomes()]
    assert [one.message_id for one in receipts] == list("abcdef")
    assert [one.queue_offset for one in receipts] == list(range(1, 7))
    assert [int(one.offset_message_id, 16) for one in receipts] == list(range(1, 7))


def test_a_failed_key_fails_all_of_a_batch() -> None:
    broker = FakeBroker(fates("lost", "lost", "lost"))
    lost, refused, other = entry_of("ab", "k"), entry_of("cd", "k"), entry_of("ef", "other")
    send_all(broker, [lost, refused, other])
    assert isinstance(lost.error, RequestTimeout)
    assert isinstance(refused.error, KeyFailed)
    assert broker.stored == ["e", "f"]


def test_a_single_message_goes_as_a_plain_send() -> None:
    broker = FakeBroker()
    one = entry("a")
    one.flags = [7]
    send_all(broker, [one])
    (header,) = broker.headers
    assert (header.batch, header.flag, header.properties) == (None, 7, one.properties[0])
    assert (header.topic, header.queue_id, header.broker_name) == ("T", 3, "broker-a")
    assert header.born_timestamp_ms == 1_700_000_000_000


def test_a_time_out_sends_the_same_message_again_before_any_successor() -> None:
    async def work() -> None:
        broker = FakeBroker(fates("stored, answer lost"))
        lane = lane_of(broker)
        first, second = entry("a", "k"), entry("b", "k")
        put(lane, first)
        await asyncio.sleep(0)
        put(lane, second)
        await settled(broker, lane)
        assert broker.requests == [["a"], ["a"], ["b"]]
        assert broker.stored == ["a", "a", "b"]
        assert first.receipts is not None
        assert first.outcome().queue_offset == 1

    run(work())


def test_a_try_again_waits_its_pause() -> None:
    async def work() -> None:
        broker = FakeBroker(fates("lost"))
        lane = lane_of(broker)
        put(lane, entry("a"))
        while not broker.requests or broker.in_flight:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        broker.clock.advance(99)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(broker.requests) == 1
        broker.clock.advance(1)
        await settled(broker, lane)
        assert len(broker.requests) == 2

    run(work())


def test_an_unknown_outcome_fails_the_key_until_it_is_resolved() -> None:
    async def work() -> None:
        broker = FakeBroker(fates("lost", "lost", "lost"))
        lane = lane_of(broker)
        lost, refused, other = entry("a", "k"), entry("b", "k"), entry("c", "other")
        put(lane, lost)
        await settled(broker, lane)
        put(lane, refused)
        put(lane, other)
        await settled(broker, lane)
        assert isinstance(lost.error, RequestTimeout)
        assert isinstance(refused.error, KeyFailed)
        assert "producer.resolve" in str(refused.error)
        assert broker.requests == [["a"], ["a"], ["a"], ["c"]]
        assert other.receipts is not None
        assert lane.resolve("k")
        assert not lane.resolve("k")
        again = entry("d", "k")
        put(lane, again)
        await settled(broker, lane)
        assert again.receipts is not None

    run(work())


def test_successors_that_were_waiting_fail_with_their_key_and_others_go_on() -> None:
    async def work() -> None:
        broker = FakeBroker(fates("lost", "lost", "lost"))
        lane = lane_of(broker)
        first = entry("a", "k")
        put(lane, first)
        await asyncio.sleep(0)
        waiting = [entry("b", "k"), entry("c", "other"), entry("d", "k"), entry("e")]
        put(lane, *waiting)
        await settled(broker, lane)
        assert [type(one.error) for one in waiting] == [
            KeyFailed, type(None), KeyFailed, type(None),
        ]  # fmt: skip
        assert broker.stored == ["c", "e"]

    run(work())


def test_messages_without_a_key_fail_nobody() -> None:
    broker = FakeBroker(fates("lost", "lost", "lost"))
    entries = [entry("a"), entry("b")]
    send_all(broker, entries)
    assert isinstance(entries[0].error, RequestTimeout)
    assert entries[1].receipts is not None


def test_a_refused_message_does_not_fail_its_key() -> None:
    broker = FakeBroker(fates("refused"))
    entries = [entry("a", "k"), entry("b", "k")]
    send_all(broker, entries)
    assert isinstance(entries[0].error, BrokerError)
    assert broker.stored == ["b"]
    assert entries[1].receipts is not None


def test_a_refusal_after_a_time_out_leaves_the_outcome_unknown() -> None:
    # The first try may still be on its way: whoever goes on now may be overtaken by it.
    broker = FakeBroker(fates("stored, answer lost", "refused"))
    entries = [entry("a", "k"), entry("b", "k")]
    send_all(broker, entries)
    assert isinstance(entries[0].error, BrokerError)
    assert isinstance(entries[1].error, KeyFailed)


def test_a_garbled_answer_leaves_the_outcome_unknown() -> None:
    broker = FakeBroker(fates("stored, answer garbled"))
    entries = [entry("a", "k"), entry("b", "k")]
    send_all(broker, entries)
    assert isinstance(entries[0].error, ProtocolError)
    assert isinstance(entries[1].error, KeyFailed)


def test_an_answer_for_another_number_of_messages_is_a_protocol_error() -> None:
    async def work() -> None:
        broker = FakeBroker()
        broker.acknowledged = 1
        lane = lane_of(broker)
        entries = [entry("a"), entry("b")]
        put(lane, *entries)
        await settled(broker, lane)
        for one in entries:
            assert isinstance(one.error, ProtocolError)
            assert "1 messages of 2" in str(one.error)

    run(work())


@pytest.mark.parametrize("is_started", [False, True])
def test_stopping_tells_everyone_who_waits(is_started: bool) -> None:
    async def work() -> None:
        broker = FakeBroker()
        broker.gate.clear()
        lane = lane_of(broker)
        first, second = entry("a", "k"), entry("b", "k")
        lane.put([first])
        if is_started:
            lane.begin()
        lane.put([second])
        await lane.stop()
        await asyncio.sleep(0)
        assert lane.is_idle
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
        lane = lane_of(broker)
        monkeypatch.setattr(broker.api, "stored", broken)
        entries = [entry("a", is_alone=True), entry("b")]
        put(lane, *entries)
        await settled(broker, lane)
        assert [type(one.error) for one in entries] == [StateError, StateError]
        assert "unknown" in str(entries[0].error)
        assert "was not sent" in str(entries[1].error)

    run(work())


def test_an_answer_after_the_lane_stopped_changes_nothing() -> None:
    async def work() -> None:
        broker, done = FakeBroker(), list[str]()
        broker.gate.clear()
        lane = lane_of(broker)
        one = entry("a", done=done)
        put(lane, one)
        await lane.stop()
        broker.gate.set()
        while broker.in_flight:
            await asyncio.sleep(0)
        assert done == ["a"]
        assert isinstance(one.error, StateError)
        assert one.receipts is None

    run(work())


def test_a_request_waits_until_the_connection_takes_bytes() -> None:
    async def work() -> None:
        broker = FakeBroker(is_writable=iter([False, False, True, True]).__next__)
        lane, first, second = lane_of(broker), entry("a", "k"), entry("b", "k")
        put(lane, first)
        assert not broker.requests
        put(lane, second)  # while the first waits: it may not pass
        await settled(broker, lane)
        assert broker.requests == [["a"], ["b"]]
        assert first.receipts is not None

    run(work())


def test_messages_that_fail_where_they_start_do_not_nest() -> None:
    # No route names the broker of thousands in a row.
    async def work() -> None:
        broker = FakeBroker()
        lane = lane_of(broker)

        def unrouted(broker_name: str) -> str:
            raise RouteError("no route", broker=broker_name)

        broker.master_of = unrouted  # type: ignore[method-assign]
        entries = [entry(str(n), is_alone=True) for n in range(5_000)]
        put(lane, *entries)
        assert lane.is_idle
        assert all(isinstance(one.error, RouteError) for one in entries)

    run(work())


def test_a_defect_in_sending_leaves_nobody_waiting() -> None:
    async def work() -> None:
        broker = FakeBroker()
        lane = lane_of(broker)

        def broken(*_: object) -> None:
            raise TypeError("a defect")

        broker.ask = broken  # type: ignore[method-assign]
        entries = [entry("a", is_alone=True), entry("b")]
        put(lane, *entries)
        await settled(broker, lane)
        assert [type(one.error) for one in entries] == [StateError, StateError]

    run(work())


def test_whoever_was_answered_is_told_even_if_the_next_request_cannot_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        broker = FakeBroker()
        lane = lane_of(broker)
        first = [entry("a"), entry("b")]
        put(lane, *first)
        waiting = entry("c")
        lane.put([waiting])

        def broken(*_: object) -> None:
            raise MemoryError("a defect")

        monkeypatch.setattr(lanes, "take_batch", broken)
        while broker.in_flight:
            await asyncio.sleep(0)
        assert [one.receipts and one.receipts[0].queue_offset for one in first] == [0, 1]
        assert isinstance(waiting.error, StateError)
        assert "was not sent" in str(waiting.error)
        assert lane.is_idle

    run(work())


def test_one_whose_caller_cannot_be_told_leaves_nobody_else_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(one: Entry) -> None:
        raise TypeError("a defect")

    broker, done = FakeBroker(fates("stored", "refused")), list[str]()
    for names in ("abc", "def"):
        entries = [entry(name, done=done) for name in names]
        entries[1].on_done = broken
        put_together(broker, lane_of(broker), entries)
    assert done == ["a", "c", "d", "f"]
    assert caplog.text.count(f"message b ({QUEUE}): not told") == 1
    assert caplog.text.count("message e (") == 1


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
)
def test_copies_of_a_key_are_stored_in_send_order_whatever_fails(
    steps: list[tuple[str, Any]], outcomes: list[str], max_batch_bytes: int, writable: list[bool]
) -> None:
    async def work() -> None:
        left = deque(writable)
        broker = FakeBroker(fates(*outcomes), lambda: not left or left.popleft())
        config = SendConfig(retry_times=1, retry_delay_ms=10, max_batch_bytes=max_batch_bytes)
        lane, sent, done = lane_of(broker, config), list[Entry](), list[str]()
        for step, argument in steps:
            if step == "put":
                key, count = argument
                names = [f"{len(sent):03}.{n}" for n in range(count)]
                sent.append(entry_of(names, key, done=done))
                put(lane, sent[-1])
            elif step == "land":
                broker.land()
            elif step == "resolve":
                broker.land()  # the user has looked: what was on its way is there or lost
                lane.resolve(argument)
            else:
                for _ in range(argument):
                    await asyncio.sleep(0)
                    broker.clock.advance(10)
        await settled(broker, lane)
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
    send_all(broker, [entry("short", body=b"x" * 99), entry("long", body=b"x" * 100)], config)
    assert [header.sys_flag for header in broker.headers] == [0, 0x301]
    assert broker.bodies[0] == b"x" * 99
    assert zlib.decompress(broker.bodies[1]) == b"x" * 100


def test_a_batch_is_never_compressed() -> None:
    broker = FakeBroker()
    config = replace(CONFIG, compress_msg_body_over_howmuch=100)

    async def work() -> None:
        lane = lane_of(broker, config)
        put(lane, *(entry(name, body=name.encode() * 200) for name in "abc"))
        await settled(broker, lane)

    run(work())
    assert [(header.batch, header.sys_flag) for header in broker.headers] == [(True, 0)]
    assert b"b" * 200 in broker.bodies[0]


def test_a_body_sent_again_is_the_same_compressed_one() -> None:
    broker = FakeBroker(fates("lost", "lost"))
    config = replace(CONFIG, compress_msg_body_over_howmuch=1)
    send_all(broker, [entry("a", body=b"x" * 100)], config)
    assert broker.stored == ["a"]
    assert [header.sys_flag for header in broker.headers] == [0x301] * 3
    assert len(set(broker.bodies)) == 1


# -- timed messages ------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "is_sent"), [(412, False), (413, True), (479, True)])
def test_a_broker_older_than_5_0_is_not_sent_a_timed_message(version: int, is_sent: bool) -> None:
    broker = FakeBroker()
    broker.version = version
    timed, plain = entry("timed", "k", is_alone=True), entry("plain", "k")
    timed.is_timed = True
    send_all(broker, [timed, plain])
    assert broker.stored == (["timed", "plain"] if is_sent else ["plain"])
    if not is_sent:
        assert isinstance(timed.error, BrokerError)
        assert "delay_level" in str(timed.error)


# -- unordered messages and other brokers --------------------------------------------------


def detouring(broker: FakeBroker, taken: list[str], *, takes: bool = True) -> QueueLane:
    def detour(queue: MessageQueue, one: Entry) -> bool:
        assert queue == QUEUE
        if takes:
            taken.extend(one.unique_ids)
            one.moves_left -= 1
            one.finish(None, None)
        return takes

    return QueueLane(broker, "PG", QUEUE, CONFIG, detour)  # type: ignore[arg-type]


def put_together(broker: FakeBroker, lane: QueueLane, entries: Sequence[Entry]) -> None:
    async def work() -> None:
        put(lane, *entries)
        await settled(broker, lane)

    run(work())


@pytest.mark.parametrize("fate", ["lost", "line cut", "busy"])
def test_what_may_go_anywhere_goes_to_another_broker_and_the_ordered_rest_is_tried_again(
    fate: str,
) -> None:
    broker, taken = FakeBroker(fates(fate)), list[str]()
    ordered, free = [entry("1", "k"), entry("3", "k")], [entry("2"), entry("4")]
    for one in free:
        one.moves_left = 1
    lane = detouring(broker, taken)
    put_together(broker, lane, [ordered[0], free[0], ordered[1], free[1]])
    assert taken == ["2", "4"]
    assert broker.stored == ["1", "3"]
    assert broker.requests == [["1", "2", "3", "4"], ["1", "3"]]


def test_a_message_every_broker_would_refuse_stays_and_fails() -> None:
    broker, taken = FakeBroker(fates("refused")), list[str]()
    free = entry("1")
    free.moves_left = 1
    put_together(broker, detouring(broker, taken), [free])
    assert taken == []
    assert isinstance(free.error, BrokerError)


def test_a_batch_that_may_go_anywhere_goes_to_another_broker_whole() -> None:
    broker, taken = FakeBroker(fates("busy")), list[str]()
    together, ordered = entry_of(["1", "2", "3"]), entry_of(["4", "5"], "k")
    together.moves_left = 1
    put_together(broker, detouring(broker, taken), [together, ordered])
    assert taken == ["1", "2", "3"]
    assert broker.requests == [["1", "2", "3", "4", "5"], ["4", "5"]]


def test_where_no_other_broker_takes_it_it_is_tried_here_again() -> None:
    broker, taken = FakeBroker(fates("busy")), list[str]()
    free = entry("1")
    free.moves_left = 1
    put_together(broker, detouring(broker, taken, takes=False), [free])
    assert broker.stored == ["1"]
    assert free.moves_left == 1


def detour_warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum("go to another broker" in record.getMessage() for record in caplog.records)


def test_that_messages_go_elsewhere_is_said_once_until_the_broker_stores_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, taken = FakeBroker(fates("busy", "busy", "stored", "busy")), list[str]()
    lane, said = detouring(broker, taken), list[int]()
    for name in "abcd":
        free = entry(name)
        free.moves_left = 1
        put_together(broker, lane, [free])
        said.append(detour_warnings(caplog))
    assert taken == ["a", "b", "d"]
    assert said == [1, 1, 1, 2]


def test_where_there_is_no_other_broker_none_is_said_to_be_gone_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = FakeBroker(fates("busy"))
    free = entry("a")
    free.moves_left = 1
    put_together(broker, detouring(broker, [], takes=False), [free])
    assert broker.stored == ["a"]
    assert detour_warnings(caplog) == 0
