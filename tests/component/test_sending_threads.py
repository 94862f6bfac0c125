"""A producer that is idle lets its caller write the request; the order stays
(docs/internals/semantics.md#ordered-sends)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ordermq import Message, Producer, SendReceipt
from ordermq.broker import EmbeddedBroker
from ordermq.producer.accumulator import SendRequest
from ordermq.producer.queue_sender import InFlightBatch, QueueSender
from ordermq.remoting.connection import Connection
from ordermq.remoting.reading import AnswerWaiter, CallersAnswer, can_share_reads
from tests.component.interruption import InterruptedAt

ROUNDS = 60


def message(number: int) -> Message:
    return Message("orders", str(number).encode())


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that put requests of the producer on the wire."""
    names: list[str] = []
    ask = Connection.ask

    def noting(self: Connection, *arguments: object) -> bool:
        is_asked = ask(self, *arguments)  # type: ignore[arg-type]
        if is_asked:
            names.append(threading.current_thread().name)
        return is_asked

    monkeypatch.setattr(Connection, "ask", noting)
    return names


def test_whoever_sends_alone_writes_the_request(producer: Producer, written: list[str]) -> None:
    for number in range(20):
        producer.send(message(number), sharding_key="k")
    mine = written.count(threading.current_thread().name)
    assert mine >= 10, written  # the first opens the connection, which is the I/O thread's to do


def test_beside_others_a_batch_is_written_by_its_caller_and_a_message_where_its_answer_is_read(
    broker: EmbeddedBroker, written: list[str], has_engine: bool
) -> None:
    with Producer("p", name_servers=broker.name_servers) as producer:
        me, queue = threading.current_thread().name, producer.queues("orders")[0]
        producer.send(message(0), queue=queue)
        senders = producer._senders
        assert senders is not None
        other = senders.sender_of(producer.queues("orders")[1])
        senders.in_flight.add(other)
        written.clear()
        for number in range(20):
            producer.send(message(number), queue=queue)
        if can_share_reads():
            assert written.count(me) >= 10, written
        else:  # it joins the others, on the I/O thread
            assert me not in written
        written.clear()
        for number in range(20):
            producer.send_batch([message(number), message(number)], queue=queue)
        assert written.count(me) >= 10, written
        senders.in_flight.discard(other)  # it will never be done: close would wait for it


def test_what_was_handed_in_before_is_stored_before_however_it_was_handed_in(
    producer: Producer,
) -> None:
    handed_in: list[int] = []
    offsets: dict[int, int] = {}

    def events(first: int) -> Iterator[tuple[Message, str]]:
        for number in range(first, first + 3):
            handed_in.append(number)  # as soon as it is taken from here
            yield message(number), "k"

    for first in range(0, 4 * ROUNDS, 4):
        ahead = producer.send_stream(events(first), max_in_flight=2)
        offsets[first] = next(ahead).queue_offset  # mostly the second is on its way now
        handed_in.append(first + 3)
        offsets[first + 3] = producer.send(message(first + 3), sharding_key="k").queue_offset
        offsets[first + 1], offsets[first + 2] = (receipt.queue_offset for receipt in ahead)
    assert [offsets[number] for number in handed_in] == list(range(4 * ROUNDS))
    assert handed_in != sorted(handed_in), "no message was sent while another was on its way"


def test_coroutines_that_begin_in_turn_are_stored_in_turn(producer: Producer) -> None:
    async def work() -> list[SendReceipt]:
        found: list[SendReceipt] = []
        for _ in range(ROUNDS):
            together = [producer.asend(message(n), sharding_key="k") for n in range(5)]
            found += await asyncio.gather(*together)
        return found

    receipts = asyncio.run(work())
    assert [receipt.queue_offset for receipt in receipts] == list(range(5 * ROUNDS))


@pytest.mark.parametrize("keys", [1, 3, 8])
def test_threads_keep_their_keys_in_order_and_one_request_per_queue_in_flight(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, keys: int, has_engine: bool
) -> None:
    twice: list[str] = []
    begun = InFlightBatch.__init__

    def checked(self: InFlightBatch, sender: QueueSender, batch: object) -> None:
        if sender._in_flight is not None:
            twice.append(str(sender.queue))
        begun(self, sender, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(InFlightBatch, "__init__", checked)

    def send(thread: int) -> list[SendReceipt]:
        key = f"k{thread % keys}"
        found = [producer.send(message(n), sharding_key=key) for n in range(ROUNDS // 2)]
        # Also what other ways of sending have between them.
        ahead = [producer.send_nowait(message(n), sharding_key=key) for n in range(2)]
        found += [producer.send(message(n), sharding_key=key) for n in range(ROUNDS // 2)]
        return [*found[: ROUNDS // 2], *(one.result(20) for one in ahead), *found[ROUNDS // 2 :]]

    with (
        Producer(
            "p",
            name_servers=broker.name_servers,
            default_topic_queue_nums=8,
        ) as producer,
        ThreadPoolExecutor(8) as pool,
    ):
        found = list(pool.map(send, range(8)))
    for receipts in found:
        offsets = [receipt.queue_offset for receipt in receipts]
        assert offsets == sorted(set(offsets))
    assert not twice
    everything = [(r.message_queue, r.queue_offset) for receipts in found for r in receipts]
    assert len(set(everything)) == 8 * (ROUNDS + 2)


def test_a_thread_that_sends_alone_reads_the_answer_itself(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []
    taken = InFlightBatch.stored_on_caller

    def noting(self: InFlightBatch, ids: str, queue_id: int, offset: int) -> bool:
        readers.append(threading.current_thread().name)
        return taken(self, ids, queue_id, offset)

    monkeypatch.setattr(InFlightBatch, "stored_on_caller", noting)
    for number in range(40):
        producer.send(message(number), sharding_key="k")
    mine = readers.count(threading.current_thread().name)
    assert mine >= 10 if can_share_reads() else not readers


def test_a_caller_that_is_interrupted_while_it_reads_leaves_nobody_waiting(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert producer._accumulator is not None
    queues, interrupted = producer.queues("orders"), 0
    main, place = threading.current_thread(), [0]
    wait = CallersAnswer.wait if can_share_reads() else SendRequest.wait

    def interrupting(self: CallersAnswer | SendRequest, waiter: AnswerWaiter) -> None:
        if threading.current_thread() is main and place[0]:
            with InterruptedAt(place[0]):
                wait(self, waiter)  # type: ignore[arg-type]
        else:
            wait(self, waiter)  # type: ignore[arg-type]

    for queue in queues[:2]:
        producer.send(message(0), queue=queue)
    monkeypatch.setattr(CallersAnswer if can_share_reads() else SendRequest, "wait", interrupting)
    # The answers of the other queue's messages, which are the loop's, are the interrupted caller's
    # to read.
    for at in range(1, 150, 2):
        place[0] = at
        others = [producer.send_nowait(message(n), queue=queues[1]) for n in range(2)]
        while not producer._accumulator.is_empty:  # else what follows goes behind them
            pass
        with contextlib.suppress(KeyboardInterrupt):
            producer.send(message(at), queue=queues[0])
            interrupted -= 1
        interrupted += 1
        place[0] = 0
        offsets = [other.result(10).queue_offset for other in others]
        assert offsets[1] == offsets[0] + 1
        first = producer.send(message(at), queue=queues[0]).queue_offset
        assert producer.send(message(at), queue=queues[0]).queue_offset == first + 1
    producer.flush(10)
    least = 4 if can_share_reads() else 1  # there is less to interrupt in a wait for the event
    assert interrupted >= least, "the interrupts came too late"
