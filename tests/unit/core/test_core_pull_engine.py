"""The pull engine, driven by a broker of this test's own at the other end of a socket, plainly and
by TLS."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest

from ordermq.core import _cython as core
from ordermq.core.streams import ConnectionEnd, RequestGap, StreamEnd, StreamPlan
from ordermq.remoting.command import Command, Serialization, encode
from ordermq.remoting.tls import TlsSession
from tests.component.certificates import Authority
from tests.unit.core.stored_records import record

DEADLINE_S = 20.0
TEMPLATE = core.RequestTemplate(
    (b'{"extFields":{"queueOffset":"', b'"},"opaque":', b"}"),
    (RequestGap.OFFSET, RequestGap.REQUEST_ID),
    False,
    None,
)


class Limits(NamedTuple):
    fills_if_none_pending: bool = True
    messages: int = 1_000
    size_bytes: int = 1 << 30
    span: int = 1 << 40
    counts_pending: bool = False
    room: Any = None


class Broker:
    """Answers the pulls of one connection by hand.

    Args: contexts: of its TLS and the client's; None speaks plainly.
    """

    def __init__(self, contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> None:
        self.client, self.plain = socket.socketpair()
        self.client.setblocking(False)
        self.plain.settimeout(DEADLINE_S)
        self.socket, self.tls = self.plain, None
        if contexts is not None:
            with ThreadPoolExecutor(1) as pool:
                accepting = pool.submit(contexts[0].wrap_socket, self.plain, server_side=True)
                self.tls = TlsSession(contexts[1], "127.0.0.1")
                asyncio.run(self.tls.shake_hands(self.client))
                self.socket = accepting.result()

    def asked(self) -> tuple[int, int]:
        """The offset and the id of the next pull."""
        length, mark = struct.unpack(">iI", self._read(8))
        assert mark == length - 4
        header = json.loads(self._read(mark))
        return int(header["extFields"]["queueOffset"]), header["opaque"]

    def _read(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            got += self.socket.recv(size - len(got))
        return got

    def answer(
        self,
        opaque: int,
        offsets: range,
        code: int = 0,
        *,
        is_binary: bool = False,
        first_ids: dict[int, int] | None = None,
        **fields: str,
    ) -> None:
        """Answer with messages.

        Args: first_ids: by offset that of the message whose id and body it has; others their own.
        """
        ext = {"nextBeginOffset": str(offsets.stop), "maxOffset": "1000"} | fields
        first = {each: (first_ids or {}).get(each, each) for each in offsets}
        body = b"".join(
            record(offset=each, body=b"m%d" % first[each], properties=b"UNIQ_KEY\1%d" % first[each])
            for each in offsets
        )
        answer = Command(code, ext, body, opaque=opaque, flag=1)
        if is_binary:
            answer.serialization = Serialization.ROCKETMQ
        self.socket.sendall(encode(answer))


class Run:
    """An engine with one connection, and what it has told."""

    def __init__(self, contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> None:
        self._contexts = contexts
        self._sockets = [*socket.socketpair(), *socket.socketpair()]
        for each in self._sockets:
            each.setblocking(False)
        wake_read, wake_write, self.told, tell_write = self._sockets
        self.engine = core.PullEngine(
            wake_read.fileno(),
            wake_write.fileno(),
            tell_write.fileno(),
            time.CLOCK_MONOTONIC,
            1 << 16,
        )
        self.ended: list[tuple[Any, ConnectionEnd, int, bytes]] = []
        self.events: list[tuple[Any, StreamEnd, bool, int, bytes]] = []
        self.connect()

    def connect(self) -> None:
        self.broker = Broker(self._contexts)
        self.connection = core.PullConnection(
            self.engine, self.broker.client.fileno(), self.broker, self.broker.tls
        )

    def stream(self, queue: Any, offset: int = 0, **settings: Any) -> Any:
        plan = StreamPlan(
            TEMPLATE, b"0", (), True, False, 0, offset, 60_000, 10, False, Limits(),
            partial(core.MessageIndex.__new__, core.MessageIndex), 1 << 20,
        )._replace(**settings)  # fmt: skip
        made = core.PullStream(self.connection, queue, queue, plan)
        made.permit()
        made.start()
        return made

    def next_event(self) -> tuple[Any, StreamEnd, bool, int, bytes]:
        """The next event of a stream."""
        while not self.events:
            self.collect()
        return self.events.pop(0)

    def end(self) -> tuple[Any, ConnectionEnd, int, bytes]:
        """The end of a connection."""
        while not self.ended:
            self.collect()
        return self.ended.pop(0)

    def collect(self) -> None:
        assert select.select([self.told], [], [], DEADLINE_S)[0], "the engine told of nothing"
        self.told.recv(64)
        ended, events = self.engine.collect()
        self.ended += ended
        self.events += events

    def close(self) -> None:
        self.engine.close()
        self.engine.collect()
        for each in (*self._sockets, self.broker.client, self.broker.socket):
            each.close()


@pytest.fixture(scope="module")
def contexts(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = Authority(tmp_path_factory.mktemp("tls"), "authority")
    signed = authority.sign("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(signed.certificate, signed.key)
    server.num_tickets = 0  # a byte that comes at any time would hide a silent connection
    return server, ssl.create_default_context(cafile=authority.file)


@pytest.fixture(params=["plain", "TLS"])
def run(
    request: pytest.FixtureRequest, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> Iterator[Run]:
    made = Run(contexts if request.param == "TLS" else None)
    yield made
    made.close()


@pytest.fixture
def tls_run(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[Run]:
    made = Run(contexts)
    yield made
    made.close()


def until(condition: Callable[[], bool]) -> None:
    """Poll what only the engine's thread can tell, with a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def bodies(queue: Any, count: int) -> list[bytes]:
    found = []
    for index, first, number in queue.take_segments(count):
        found += [bytes(view.body) for view in index.views(core.MessageView, first, number)]
    queue._check()
    return found


def test_answers_are_buffered_one_after_the_other_and_told_once(run: Run) -> None:
    queue = core.ProcessQueue("q")
    stream = run.stream(queue)
    for start in (0, 10, 20):
        offset, opaque = run.broker.asked()
        assert offset == start
        run.broker.answer(opaque, range(start, start + 10))
    assert run.broker.asked()[0] == 30  # so the third one is buffered
    owner, end, is_dispatched, _, _ = run.next_event()
    assert (owner, end, is_dispatched) == (queue, StreamEnd.GOES_ON, True)
    assert queue.is_dispatched
    assert (queue.next_pull_offset, queue.queue_end) == (30, 1_000)
    assert bodies(queue, 25) == [b"m%d" % each for each in range(25)]
    assert queue.commit() == 25
    assert bodies(queue, 100) == [b"m%d" % each for each in range(25, 30)]
    assert queue.commit() == 30
    pulls, messages, _, buckets = stream.take_counts()
    assert (pulls, messages, sum(buckets)) == (3, 30, 3)
    assert stream.take_counts() == (0, 0, 0, (0,) * 15)


class Lease(NamedTuple):
    epoch: int
    deadline_ms: int


def by_key() -> core.AssignedQueue:
    return core.AssignedQueue(
        "q",
        Lease(1, 1 << 60),
        0,
        claim=core.Claim,
        run=core.MessageRun,
        lanes=core.LaneMap("q", keyless="lane"),
    )


def test_lanes_are_filled_and_name_their_batches_until_all_is_done(run: Run) -> None:
    assigned = by_key()
    queue, lanes = assigned.process_queue, assigned.lanes
    run.stream(queue, lanes=lanes)
    run.broker.answer(run.broker.asked()[1], range(10))
    run.broker.answer(run.broker.asked()[1], range(10, 20))
    run.broker.asked()
    assert (lanes.message_count, queue.message_count) == (20, 20)
    found, batches = [], []
    for offset in range(20):
        claim, _ = assigned.claim(1, 0)  # none has a key: one at a time
        ((batch, _, _),) = claim.messages.segments
        batches.append(batch)
        found += [bytes(view.body) for view in claim.messages.views(core.MessageView)]
        assert claim.messages.offsets() == [offset]
        assigned.finish_lanes(claim, 1, 0, leaves=True)
    assert found == [b"m%d" % each for each in range(20)]
    assert batches == [batches[0]] * 10 + [batches[10]] * 10, "each was made once"
    assert (assigned.done_offset, queue.message_count) == (20, 0)
    del batch, claim
    batches[1:] = []
    gc.collect()
    assert not [one for one in gc.get_referrers(batches[0]) if isinstance(one, dict)]


def test_an_answer_with_a_copy_is_handed_over_and_noted_up_to_it(run: Run) -> None:
    queue, window = core.ProcessQueue("q"), core.IdWindow(100)
    run.stream(queue, window=window)
    run.broker.answer(run.broker.asked()[1], range(10))
    run.broker.answer(run.broker.asked()[1], range(10, 20), first_ids={15: 3, 17: 12})
    while (event := run.next_event())[1] == StreamEnd.GOES_ON:
        pass
    assert (event[1], event[3]) == (StreamEnd.ANSWERED, 10)
    assert (queue.message_count, len(window)) == (10, 15)
    window._check()
    mark = struct.unpack_from(">I", event[4], 4)[0] & 0xFFFFFF
    index = core.MessageIndex(event[4][8 + mark :])
    assert window.drop_copies(index) == 2  # those noted before are none
    assert list(index.offsets) == [10, 11, 12, 13, 14, 16, 18, 19]
    run.stream(queue, offset=20, window=window)
    run.broker.answer(run.broker.asked()[1], range(20, 30))
    assert run.broker.asked()[0] == 30
    assert queue.message_count == 20


def test_cleared_lanes_are_filled_anew(run: Run) -> None:
    assigned = by_key()
    queue, lanes = assigned.process_queue, assigned.lanes
    run.stream(queue, lanes=lanes)
    run.broker.answer(run.broker.asked()[1], range(10))
    run.broker.asked()
    old, _ = assigned.claim(1, 0)
    assert assigned.lose()
    assert not assigned.regain(Lease(2, 1 << 60), 3), "its claim runs"
    assigned.finish_lanes(old, 1, 0, leaves=True)  # the flight of the time before
    assert assigned.regain(Lease(2, 1 << 60), 3)
    run.stream(queue, offset=3, lanes=lanes)
    run.broker.answer(run.broker.asked()[1], range(3, 10))
    run.broker.asked()
    claim, _ = assigned.claim(1, 0)
    assert claim.messages.offsets() == [3]
    (view,) = claim.messages.views(core.MessageView)
    assert bytes(view.body) == b"m3"


def test_a_batch_outlives_the_queue_and_keeps_its_failed_attempts_until_it_is_done(
    run: Run,
) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue)
    run.broker.answer(run.broker.asked()[1], range(10))
    run.broker.asked()
    [(first, _, _)] = queue.take_segments(3)
    queue.rollback()
    [(second, _, _)] = queue.take_segments(7)
    assert second is first
    queue.clear()
    gc.collect()
    assert [bytes(view.body) for view in first.views(core.MessageView, 8, 2)] == [b"m8", b"m9"]


@pytest.mark.parametrize(
    "fields",
    [
        {"code": 19},
        {"suggestWhichBrokerId": "1"},
        {"offsetDelta": "5"},
        {"nextBeginOffset": "x"},
        {"nextBeginOffset": "2000"},  # more than ten past the end
        {"nextBeginOffset": "5"},  # records behind it
        {"nextBeginOffset": "\u0661"},
    ],
)
def test_any_other_answer_ends_the_stream_and_is_handed_over_whole(
    run: Run, fields: dict[str, Any]
) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue)
    run.broker.answer(run.broker.asked()[1], range(10), **fields)
    owner, end, is_dispatched, offset, frame = run.next_event()
    assert (owner, end, is_dispatched, offset) == (queue, StreamEnd.ANSWERED, False, 0)
    length, mark = struct.unpack_from(">iI", frame)
    assert length == len(frame) - 4
    assert json.loads(frame[8 : 8 + mark])["flag"] == 1
    assert queue.message_count == 0


def test_records_that_do_not_answer_the_pull_are_not_buffered(run: Run) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue, offset=5)
    run.broker.answer(run.broker.asked()[1], range(10))  # 0 to 4 were not asked for
    assert run.next_event()[1] == StreamEnd.ANSWERED
    run.stream(queue, queue_id=1)
    run.broker.answer(run.broker.asked()[1], range(10))
    assert run.next_event()[1] == StreamEnd.ANSWERED
    assert queue.message_count == 0


def test_a_binary_header_is_read_as_one_in_json(run: Run) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue)
    run.broker.answer(run.broker.asked()[1], range(10), is_binary=True)
    offset, opaque = run.broker.asked()
    assert (offset, queue.message_count, queue.queue_end) == (10, 10, 1_000)
    run.next_event()
    run.broker.answer(opaque, range(10, 20), is_binary=True, suggestWhichBrokerId="1")
    assert run.next_event()[1:4] == (StreamEnd.ANSWERED, False, 10)


def test_a_malformed_binary_header_is_handed_to_who_asked(run: Run) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue)
    answer = Command(0, {"maxOffset": "1"}, b"", opaque=run.broker.asked()[1], flag=1)
    answer.serialization = Serialization.ROCKETMQ
    frame = bytearray(encode(answer))
    frame[-1] = 0xFF  # no UTF-8
    run.broker.socket.sendall(frame)
    _, end, _, _, handed = run.next_event()
    assert (end, handed) == (StreamEnd.ANSWERED, bytes(frame))


@pytest.mark.parametrize("room", [1_000, 10])
def test_a_stream_of_one_answer_ends_behind_it(run: Run, room: int) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue, is_single=True, limits=Limits(messages=room))
    run.broker.answer(run.broker.asked()[1], range(10))
    assert run.next_event() == (queue, StreamEnd.ENDED, True, 10, b"")
    assert queue.message_count == 10


@pytest.mark.parametrize("taken_back", ["forbid", "clear", "reset", "permit"])
def test_no_answer_is_buffered_once_the_permit_is_void(run: Run, taken_back: str) -> None:
    queue, other = core.ProcessQueue("q"), core.ProcessQueue("other")
    stream = run.stream(queue)
    _, opaque = run.broker.asked()
    if taken_back == "forbid":
        stream.forbid()
    elif taken_back == "permit":
        # Another stream of the same queue, as after a seek.
        run.stream(queue, offset=100)
        assert run.broker.asked()[0] == 100
    else:
        getattr(queue, taken_back)(*([50] if taken_back == "reset" else []))
    run.broker.answer(opaque, range(10))
    assert run.next_event()[1] == StreamEnd.ENDED
    run.stream(other)  # what follows is not disturbed
    run.broker.answer(run.broker.asked()[1], range(10))
    assert run.next_event()[0] is other
    assert queue.message_count == 0


def test_a_late_answer_is_no_answer_to_another_pull_of_the_queue(run: Run) -> None:
    queue = core.ProcessQueue("q")
    first = run.stream(queue, offset=100)
    _, late = run.broker.asked()
    first.forbid()
    first.stop()
    assert run.next_event()[1] == StreamEnd.ENDED
    run.stream(queue, offset=0)  # a seek backwards
    offset, opaque = run.broker.asked()
    assert (offset, opaque == late) == (0, False)
    run.broker.answer(late, range(100, 110))
    run.broker.answer(opaque, range(10))
    assert run.broker.asked()[0] == 10
    assert (queue.first_pending, queue.last_pending) == (0, 9)


def test_a_full_queue_is_pulled_again_as_soon_as_half_of_it_is_done(run: Run) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue, limits=Limits(messages=15))
    run.broker.answer(run.broker.asked()[1], range(10))
    run.broker.answer(run.broker.asked()[1], range(10, 20))
    until(lambda: queue.message_count == 20)
    assert len(bodies(queue, 12)) == 12
    queue.commit()  # eight are left: more than half
    assert len(bodies(queue, 1)) == 1
    queue.commit()
    assert run.broker.asked()[0] == 20


def test_a_stream_that_is_full_by_bytes_or_span_ends(run: Run) -> None:
    for limits in (Limits(False, size_bytes=5), Limits(False, span=5)):
        queue = core.ProcessQueue("q")
        run.stream(queue, limits=limits)
        run.broker.answer(run.broker.asked()[1], range(10))
        event = run.next_event()
        while event[1] == StreamEnd.GOES_ON:
            event = run.next_event()
        assert event[1] == StreamEnd.ENDED
        assert queue.message_count == 10


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ConnectionEnd.GARBAGE),
        (struct.pack(">iI", 1 << 20, 4), ConnectionEnd.GARBAGE),  # longer than the longest
        (struct.pack(">iI", 8, 4) + b"nope", ConnectionEnd.GARBAGE),
        (b"", ConnectionEnd.CLOSED),
    ],
)
def test_a_connection_that_breaks_takes_its_streams_with_it(
    run: Run, sent: bytes, end: ConnectionEnd
) -> None:
    first, second = core.ProcessQueue("1"), core.ProcessQueue("2")
    run.stream(first)
    run.stream(second)
    run.broker.asked(), run.broker.asked()
    run.broker.socket.sendall(sent)
    run.broker.socket.close()
    owner, ended, number, data = run.end()
    assert (owner, ended) == (run.broker, end)
    assert data == sent
    assert number == (-1 if end is ConnectionEnd.CLOSED else 0)
    lost = {run.next_event()[:2], run.next_event()[:2]}
    assert lost == {(first, StreamEnd.LOST), (second, StreamEnd.LOST)}
    run.stream(first)  # too late
    assert run.next_event()[1] == StreamEnd.LOST


def test_a_pull_without_an_answer_times_out_and_a_silent_connection_is_given_up(run: Run) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue, timeout_ms=1)
    assert run.next_event()[1] == StreamEnd.TIMED_OUT
    assert run.end()[1] == ConnectionEnd.SILENT


def test_what_is_left_ends_with_the_engine(run: Run) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue)
    run.broker.asked()
    run.engine.close()
    ended, events = run.engine.collect()
    assert [each[1] for each in ended] == [ConnectionEnd.CLOSED]
    assert [each[1] for each in events] == [StreamEnd.LOST]
    with pytest.raises(RuntimeError, match="closed"):
        run.stream(queue)


# ---- TLS ----


def test_answers_over_several_records_are_put_together(tls_run: Run) -> None:
    queue = core.ProcessQueue("q")
    tls_run.stream(queue)
    for start in range(0, 400, 100):  # some 15 KB each, so of one record or two
        offset, opaque = tls_run.broker.asked()
        assert offset == start
        tls_run.broker.answer(opaque, range(start, start + 100))
    tls_run.broker.asked()
    assert bodies(queue, 1_000) == [b"m%d" % each for each in range(400)]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x17\x03\x03\x00\x20" + bytes(32),  # no peer enciphered this
        b"\x17\x03\x03\xff\xff" + bytes(32),  # longer than the longest
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_a_record_that_cannot_be_deciphered_ends_the_connection(tls_run: Run, sent: bytes) -> None:
    queue = core.ProcessQueue("q")
    tls_run.stream(queue)
    tls_run.broker.answer(tls_run.broker.asked()[1], range(10))
    tls_run.broker.asked()
    with socket.socket(fileno=os.dup(tls_run.broker.socket.fileno())) as beside:
        beside.sendall(sent)
    owner, end, _, _ = tls_run.end()
    assert (owner, end) == (tls_run.broker, ConnectionEnd.TLS)
    assert isinstance(tls_run.connection.tls_error, ssl.SSLError)
    while tls_run.next_event()[1] == StreamEnd.GOES_ON:
        pass
    assert bodies(queue, 100) == [b"m%d" % each for each in range(10)]


def test_an_engine_with_tls_is_closed_before_its_first_step(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    for _ in range(5):
        Run(contexts).close()  # giving back a state that its thread never had would be fatal


def test_a_peer_that_closes_properly_has_closed(tls_run: Run) -> None:
    queue = core.ProcessQueue("q")
    tls_run.stream(queue)
    tls_run.broker.answer(tls_run.broker.asked()[1], range(10))
    tls_run.broker.asked()
    assert isinstance(tls_run.broker.socket, ssl.SSLSocket)
    tls_run.broker.socket.settimeout(0)
    with pytest.raises(ssl.SSLWantReadError):
        tls_run.broker.socket.unwrap()  # it sends its record, and the engine's does not come
    assert tls_run.end()[1:3] == (ConnectionEnd.CLOSED, -1)
    assert tls_run.connection.tls_error is None
    assert queue.message_count == 10


# ---- ready streams ----


def emptied(run: Run, queue: Any, offset: int) -> None:
    """Fill a stream's queue with one message, and consume that."""
    run.broker.answer(run.broker.asked()[1], range(offset, offset + 1))
    assert run.next_event()[1:3] == (StreamEnd.GOES_ON, True)
    assert bodies(queue, 10) == [b"m%d" % offset]
    queue.commit()
    queue.end_dispatch()


def taken(run: Run) -> Any:
    """The owner of the next ready stream."""
    found: list[Any] = []
    until(lambda: found.append(run.engine.take_ready()) or found[-1] is not None)
    return found[-1]


def test_a_stream_that_only_needs_a_worker_is_taken_by_one_or_told(run: Run) -> None:
    queue = core.ProcessQueue("q")
    run.stream(queue)
    emptied(run, queue, 0)
    assert run.engine.take_ready() is None
    run.broker.answer(run.broker.asked()[1], range(1, 2))
    assert taken(run) is queue
    assert run.engine.take_ready() is None  # once, and from here on nobody is expected
    assert bodies(queue, 10) == [b"m1"]
    queue.end_dispatch()
    run.broker.answer(run.broker.asked()[1], range(2, 3))
    assert run.next_event()[:3] == (queue, StreamEnd.GOES_ON, True)
    assert run.engine.take_ready() is None


def test_who_has_taken_one_and_does_not_come_again_is_not_waited_for(run: Run) -> None:
    first, second = core.ProcessQueue("a"), core.ProcessQueue("b")
    run.stream(first)
    emptied(run, first, 0)
    asked = run.broker.asked()[1]
    run.stream(second)
    emptied(run, second, 0)
    run.broker.answer(asked, range(1, 2))
    assert taken(run) is first
    run.broker.answer(run.broker.asked()[1], range(1, 2))  # of `second`; nobody takes it
    assert run.next_event()[:3] == (second, StreamEnd.GOES_ON, True)


def test_a_thread_waits_for_a_ready_stream_until_it_is_interrupted_or_all_ends(run: Run) -> None:
    queue, found = core.ProcessQueue("q"), SimpleQueue[Any]()
    run.stream(queue)
    emptied(run, queue, 0)

    def serve() -> None:
        while run.engine.wait_ready():
            found.put(run.engine.take_ready())
        found.put("closed")

    server = threading.Thread(target=serve)
    server.start()
    run.engine.interrupt()
    assert found.get(timeout=DEADLINE_S) is None
    run.broker.answer(run.broker.asked()[1], range(1, 2))
    assert found.get(timeout=DEADLINE_S) is queue
    run.engine.close()
    assert found.get(timeout=DEADLINE_S) == "closed"
    server.join(DEADLINE_S)
    assert not server.is_alive()


def test_a_stream_that_ends_while_it_is_ready_tells_so_with_its_end(run: Run) -> None:
    queue = core.ProcessQueue("q")
    stream = run.stream(queue)
    emptied(run, queue, 0)
    run.broker.answer(run.broker.asked()[1], range(1, 2))
    until(lambda: queue.is_dispatched)
    stream.stop()
    run.engine.close()
    (_, _, is_dispatched, offset, _) = run.engine.collect()[1][-1]
    assert (is_dispatched, offset) == (True, 2)
    assert run.engine.take_ready() is None


def test_limits_may_change_while_a_queue_is_full(run: Run) -> None:
    queue = core.ProcessQueue("q")
    stream = run.stream(queue, limits=Limits(False, messages=5))
    run.broker.answer(run.broker.asked()[1], range(10))
    assert run.next_event()[1] == StreamEnd.GOES_ON
    stream.limit(Limits(False, messages=50))
    assert run.broker.asked()[0] == 10


# ---- limits of what is pending, alone and together ----


def is_waiting(run: Run, stream: Any) -> bool:
    """Return whether a stream has no pull in flight, and has not ended."""
    return not stream.is_asking and not any(end for _, end, *_ in run.events)


def test_what_is_taken_makes_room_where_only_pending_messages_count(run: Run) -> None:
    queue = core.ProcessQueue("q")
    stream = run.stream(queue, limits=Limits(False, messages=15, counts_pending=True))
    run.broker.answer(run.broker.asked()[1], range(10))
    run.broker.answer(run.broker.asked()[1], range(10, 20))
    until(lambda: queue.message_count == 20)
    assert len(bodies(queue, 12)) == 12  # eight are left: more than half
    assert is_waiting(run, stream)
    assert len(bodies(queue, 1)) == 1
    assert run.broker.asked()[0] == 20


def test_queues_wait_for_the_room_they_share_and_are_told_once_half_of_it_is_free(
    run: Run,
) -> None:
    room = core.SharedRoom(15)
    first, second = core.ProcessQueue("a"), core.ProcessQueue("b")
    asked = []
    for queue in (first, second):
        run.stream(queue, limits=Limits(False, room=room))
        asked.append(run.broker.asked()[1])
    run.broker.answer(asked[0], range(10))
    asked[0] = run.broker.asked()[1]
    run.broker.answer(asked[1], range(10))
    until(lambda: room.pending == 20)
    run.broker.answer(asked[0], range(10, 12))
    until(lambda: room.pending == 22)
    assert len(bodies(first, 12)) == 12
    assert len(bodies(second, 2)) == 2  # eight are left: more than half
    assert len(bodies(second, 1)) == 1
    assert sorted(run.broker.asked()[0] for _ in range(2)) == [10, 12]
    assert room.pending == 7


@pytest.mark.parametrize("way", ["forbid", "stop", "revoke"])
def test_a_stream_that_waits_for_shared_room_can_be_ended(run: Run, way: str) -> None:
    room = core.SharedRoom(5)
    assigned = core.AssignedQueue("q", Lease(1, 1 << 60), 0, claim=core.Claim, run=core.MessageRun)
    stream = run.stream(assigned.process_queue, limits=Limits(False, room=room))
    run.broker.answer(run.broker.asked()[1], range(10))
    assert run.next_event()[1] == StreamEnd.GOES_ON
    until(lambda: is_waiting(run, stream))
    {"forbid": stream.forbid, "stop": stream.stop, "revoke": assigned.revoke}[way]()
    assert run.next_event()[1] == StreamEnd.ENDED
    assert len(bodies(assigned.process_queue, 10)) == 10  # nobody is there to be told
    assert room.pending == 0


def test_a_room_counts_the_queues_that_there_are(run: Run) -> None:
    room = core.SharedRoom(100)
    queues = [core.ProcessQueue("a"), core.ProcessQueue("b")]
    for queue in queues:
        queue.put_batch(
            core.MessageIndex(record(offset=3, body=b"m") + record(offset=4, body=b"m"))
        )
        stream = run.stream(queue, offset=5, limits=Limits(room=room))
        stream.stop()
        while run.next_event()[1] == StreamEnd.GOES_ON:
            pass
    assert room.pending == 4, "what was there before counts, too"
    queues[0].clear()
    assert room.pending == 2
    del queues[:], queue, stream
    run.events.clear()
    gc.collect()
    assert room.pending == 0
