"""Answers that a waiting thread reads itself, plainly and by TLS: for all, once, and whatever ends
its wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import select
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ordermq import core
from ordermq.clock import SystemClock
from ordermq.config import RemotingConfig
from ordermq.core.streams import AnswerWait
from ordermq.errors import ConnectionLost, OrderMQError, ProtocolError
from ordermq.remoting.command import RESPONSE_FLAG, Command, Framer, decode_frame, encode
from ordermq.remoting.connection import Connection
from ordermq.remoting.headers import SendReplyHeader
from ordermq.remoting.reading import shared_reading, wait_for_event
from ordermq.remoting.response_futures import ResponseFuture
from ordermq.remoting.thread_event import ThreadEvent

from .contexts import Contexts
from .test_connection import Owner, echo
from .wire_server import TIMEOUT_S, Handler, Line, WireServer

LONG_MS = 60_000
MAX_BYTES = 1_000


class Told(ResponseFuture):
    """Keeps what it is told, and on which threads; a waiter of the thread that made it.

    Args: takes_on_caller: takes its answer on the thread that waited for it.
    """

    def __init__(self, *, takes_on_caller: bool = True) -> None:
        self.code = 1
        self.is_awaited = True
        self.callers = None
        self.takes_on_caller = takes_on_caller
        self.event = ThreadEvent.of_thread()
        self.answers: list[tuple[Command, str]] = []
        self.errors: list[Exception] = []

    @property
    def is_over(self) -> bool:
        return self.is_done

    @property
    def is_done(self) -> bool:
        return bool(self.answers or self.errors)

    def answered(self, command: Command) -> None:
        self.answers.append((command, threading.current_thread().name))
        self.event.set()

    def answered_on_caller(self, command: Command) -> bool:
        if self.takes_on_caller:
            self.answers.append((command, threading.current_thread().name))
        return self.takes_on_caller

    def failed(self, error: Exception) -> None:
        self.errors.append(error)
        self.event.set()

    def wait(self) -> None:
        """Wait as a caller of `send` does."""
        if self.callers is None:
            wait_for_event(self)
        else:
            self.callers.wait(self)


tls: Contexts | None = None  # of the test that runs; set by `run`


@pytest.fixture(params=[(loop, by) for loop in ("asyncio", "uvloop") for by in ("plain", "tls")])
def run(
    request: pytest.FixtureRequest, contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test's coroutine on either loop, with and without TLS, with a deadline."""
    loop, by = request.param
    monkeypatch.setattr(sys.modules[__name__], "tls", contexts if by == "tls" else None)
    new_loop = importlib.import_module(loop).new_event_loop

    def on_loop(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(work, 6 * TIMEOUT_S))

    return on_loop


Run = Callable[[Coroutine[Any, Any, None]], None]


def serving(handle: Handler) -> WireServer:
    return WireServer(handle, None if tls is None else tls.server)


async def connect(server: WireServer, owner: Owner | None = None) -> Connection:
    """Open; its time-outs are looked after, so that other threads may ask."""
    connection = await Connection.open(
        server.address,
        SystemClock(),
        RemotingConfig(),
        owner or Owner(),
        None if tls is None else tls.client,
        reading_of=shared_reading,
    )
    await connection.request(Command.request(2), LONG_MS)
    # That answer was the loop's: it would read the next ones, too, until one is a thread's.
    stream = getattr(connection._reading, "_stream")  # noqa: B009 - of one kind of reading
    assert stream.begin()
    stream.end(True)
    return connection


def ask(connection: Connection, told: Told, body: bytes = b"x") -> bool:
    command = Command.request(1, body=body)
    return connection.ask(command.opaque, encode(command), told, LONG_MS)


async def until_a_thread_reads(connection: Connection) -> None:
    # Asked of the kernel: taking the turn to see who has it could keep the thread from taking it.
    gate = getattr(connection._reading, "_gate").fileno()  # noqa: B009 - of one kind of reading
    state = Path(f"/proc/self/fdinfo/{gate}")
    while not re.search(r"events: +18\b", state.read_text()):  # 19 if open: the loop reads
        await asyncio.sleep(0)


async def in_thread(work: Callable[[], None]) -> None:
    """Run it on a thread of a name that begins with "mine"."""
    # Not of a pool, whose end would wait for the thread where the test has failed, and hold up the
    # loop, which the thread waits for.
    done = Future[None]()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            done.set_exception(error)

    threading.Thread(target=run, name="mine", daemon=True).start()
    await asyncio.wrap_future(done)


def test_a_thread_that_waits_reads_its_answer_itself(run: Run) -> None:
    async def when_read(line: Line, command: Command) -> None:
        if command.code == 1:
            await until_a_thread_reads(connection)
        echo(line, command)

    connection: Connection

    async def work() -> None:
        nonlocal connection
        async with serving(when_read) as server:
            connection = await connect(server)

            def rounds() -> None:
                for _ in range(30):
                    told = Told()
                    assert ask(connection, told)
                    told.wait()
                    readers.append(told.answers[0][1])

            readers: list[str] = []
            await in_thread(rounds)
            assert all(name.startswith("mine") for name in readers), readers
            # The loop reads again, now that nobody waits.
            answer = await connection.request(Command.request(3), LONG_MS)
            assert answer.is_response
            await connection.close()

    run(work())


def test_what_it_reads_for_other_threads_wakes_them_and_all_else_is_left_to_the_loop(
    run: Run,
) -> None:
    bodies = [b"0", b"1", b"2", b"refused", b"later"]

    async def work() -> None:
        held: list[Command] = []

        async def together(line: Line, command: Command) -> None:
            if command.code == 2:
                echo(line, command)
                return
            if command.is_response:  # to the notice below
                return
            held.append(command)
            if len(held) < len(bodies):
                return
            await until_a_thread_reads(connection)
            # A request of the server, and all answers, in one write.
            notice = Command(40, {"consumerGroup": "G"}, opaque=77)
            answers = [one.reply(int(one.body == b"refused")) for one in held]
            line.send_bytes(b"".join(encode(one) for one in [*answers[:2], notice, *answers[2:]]))

        owner = Owner()
        async with serving(together) as server:
            connection = await connect(server, owner)
            told: dict[bytes, Told] = {}

            def waits(body: bytes) -> None:
                told[body] = mine = Told(takes_on_caller=body != b"later")
                assert ask(connection, mine, body)
                mine.wait()

            await asyncio.gather(*(in_thread(lambda b=body: waits(b)) for body in bodies))
            await connection.request(Command.request(2), LONG_MS)
            assert [request.opaque for request in owner.requests] == [77]
            for body, one in told.items():
                ((answer, thread),) = one.answers
                assert answer.code == int(body == b"refused")
                if body in (b"refused", b"later"):
                    assert not thread.startswith("mine")
            assert sum(one.answers[0][1].startswith("mine") for one in told.values()) >= 2
            await connection.close()

    run(work())


def test_the_turn_to_read_passes_to_a_thread_that_still_waits(run: Run) -> None:
    async def work() -> None:
        async def in_order(line: Line, command: Command) -> None:
            if command.code == 2:
                echo(line, command)
                return
            # Each answer after the thread before it has gone: another one must have the turn.
            for one in server.requests[1:] if len(server.requests) == 6 else []:
                await until_a_thread_reads(connection)
                echo(line, one)
                while not told[one.body].answers:
                    await asyncio.sleep(0)

        async with serving(in_order) as server:
            connection = await connect(server)
            told: dict[bytes, Told] = {}

            def waits(body: bytes) -> None:
                told[body] = mine = Told()
                assert ask(connection, mine, body)
                mine.wait()

            bodies = [bytes([number]) for number in range(5)]
            await asyncio.gather(*(in_thread(lambda b=body: waits(b)) for body in bodies))
            assert all(one.answers[0][1].startswith("mine") for one in told.values())
            answer = await connection.request(Command.request(2), LONG_MS)
            assert answer.is_response  # the loop reads again
            await connection.close()

    run(work())


def test_a_request_that_its_caller_never_wrote_leaves_with_the_next_check(run: Run) -> None:
    async def work() -> None:
        async with serving(echo) as server:
            connection = await connect(server)
            told: list[Told] = []

            def asks() -> None:
                told.append(Told())
                assert ask(connection, told[0])
                # An exception, as of a signal, came before its wait.

            await in_thread(asks)
            while not told[0].is_done:
                await asyncio.sleep(0.001)
            assert not told[0].answers[0][1].startswith("mine")
            await connection.close()

    run(work())


@pytest.mark.parametrize("ends", ["cut", "closed", "garbage"])
def test_the_end_of_the_connection_ends_the_wait(run: Run, ends: str) -> None:
    async def work() -> None:
        def handle(line: Line, command: Command) -> None:
            if command.code == 2:
                echo(line, command)
            elif ends == "garbage":
                line.send_bytes(b"\xff" * 64)
            elif ends == "closed":
                line.close()
            else:
                line.cut()

        owner = Owner()
        async with serving(handle) as server:
            connection = await connect(server, owner)

            def waits() -> None:
                told = Told()
                assert ask(connection, told)
                told.wait()
                assert isinstance(told.errors[0], ConnectionLost)
                late = Told()
                late.failed(told.errors[0])
                late.wait()  # without a connection

            await in_thread(waits)
        assert len(owner.closed) == 1
        assert isinstance(owner.closed[0], ProtocolError) == (ends == "garbage")

    run(work())


def test_an_answer_is_told_once_whatever_ends_the_connection_meanwhile(run: Run) -> None:
    outcomes: list[Told] = []

    def cutting(after: int) -> Handler:
        heard = [0]

        def handle(line: Line, command: Command) -> None:
            heard[0] += 1
            if heard[0] == after:
                line.cut()
            else:
                echo(line, command)

        return handle

    async def work() -> None:
        for after in range(2, 24):
            async with serving(cutting(after)) as server:
                connection = await connect(server)

                def waits(connection: Connection = connection) -> None:
                    is_open = True
                    while is_open:
                        told = Told()
                        is_open = ask(connection, told)
                        if is_open:
                            told.wait()
                            outcomes.append(told)
                            is_open = not told.errors

                await asyncio.gather(*(in_thread(waits) for _ in range(3)))

    run(work())
    assert all(len(told.answers) + len(told.errors) == 1 for told in outcomes)
    assert any(told.answers for told in outcomes)
    assert any(told.errors for told in outcomes)


def test_closing_while_a_thread_reads_ends_its_wait(run: Run) -> None:
    async def work() -> None:
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def silent_but_once(line: Line, command: Command) -> None:
            if command.code == 2:
                echo(line, command)
            else:
                asked.set()

        async with serving(silent_but_once) as server:
            connection = await connect(server)
            told: list[Told] = []

            def waits() -> None:
                told.append(Told())
                assert ask(connection, told[0])
                told[0].wait()

            waiting = loop.create_task(in_thread(waits))
            await asked.wait()
            await connection.close()
            await waiting
            assert isinstance(told[0].errors[0], ConnectionLost)

    run(work())


def test_the_loop_looks_again_where_another_thread_is_in_the_session(run: Run) -> None:
    async def work() -> None:
        async with serving(echo) as server:
            connection = await connect(server)
            if connection.tls is None:
                return
            reading, shared = connection._reading, connection._socket
            for is_asked_first in (False, True):
                if is_asked_first:
                    answer = connection.begin_request(Command.request(2), LONG_MS)
                with connection.tls.lock:  # as a thread has it that a signal handler has suspended
                    if not is_asked_first:
                        answer = connection.begin_request(Command.request(2), LONG_MS)
                    due, of = (
                        ("_is_look_due", reading) if is_asked_first else ("_is_flush_due", shared)
                    )
                    while not getattr(of, due):
                        await asyncio.sleep(0)
                    assert not answer.done()
                assert (await answer).is_response
            await connection.close()

    run(work())


# The stream of frames, compared with the framer in Python.

_HEADERS = st.sampled_from([b'{"code":0,"opaque":1}', b'{"code":1,"extFields":{"a":"b"}}', b"{}"])
_FRAMES = st.builds(
    lambda header, body: (
        (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body
    ),
    _HEADERS,
    st.binary(max_size=40),
)
WIRE = st.lists(st.one_of(_FRAMES, st.binary(max_size=12)), max_size=6).map(b"".join)


def read_natively(data: bytes, cuts: list[int]) -> tuple[list[Command], bool]:
    """Return the commands of a stream, and whether it was found malformed."""
    stream = core.FrameStream(MAX_BYTES)
    commands: list[Command] = []
    borders = sorted(cut % (len(data) + 1) for cut in cuts)
    for begin, end in zip([0, *borders], [*borders, len(data)], strict=True):
        stream.add(data[begin:end])
        while (frame := stream.frame()) is not None:
            assert stream.frame() == frame, "it was not dropped"
            try:
                commands.append(decode_frame(*frame))
            except OrderMQError:
                return commands, True
            stream.drop()
    return commands, stream.is_broken


@given(WIRE, st.lists(st.integers(0, 400), max_size=5))
def test_the_stream_finds_the_frames_that_the_framer_finds(data: bytes, cuts: list[int]) -> None:
    framer, is_broken = Framer(MAX_BYTES), False
    try:
        expected = framer.feed(data)
    except ProtocolError:
        expected, is_broken = framer.completed, True
    assert read_natively(data, cuts) == (expected, is_broken)


def test_a_stream_keeps_a_frame_longer_than_its_buffer() -> None:
    stream = core.FrameStream(1_000_000)
    frame = encode(Command.request(1, body=b"x" * 700_000))
    for begin in range(0, len(frame), 50_000):
        assert stream.frame() is None
        stream.add(frame[begin : begin + 50_000])
    assert stream.buffered_bytes == len(frame)
    found = stream.frame()
    assert found is not None
    assert len(found[2]) == 700_000
    stream.drop()
    assert stream.buffered_bytes == 0
    assert stream.rest() == b""


# Answers as the thread that waits gets them, compared with the header in Python.

_TEXTS = st.one_of(
    st.sampled_from(["0", "7", "-1", "1" * 18, "1" * 19, "", "1_0", " 3", "\u0663", 'a"b', "A,B"]),
    st.text(max_size=5),
    st.integers(0, 9),
)
_FIELDS = st.dictionaries(
    st.sampled_from(["msgId", "queueId", "queueOffset", "recallHandle", "TRACE_ON", "other"]),
    _TEXTS,
    max_size=6,
)


def awaited(answer: Command) -> tuple[int, core.contract.AwaitedAnswer]:
    """Wait for an answer on this thread; return how the wait ended."""
    ours, theirs = socket.socketpair()
    stream, event = core.FrameStream(1 << 16), ThreadEvent()
    with ours, theirs, contextlib.closing(select.epoll()) as gate:
        stream.attach(ours.fileno(), gate.fileno())
        stream.trust()
        theirs.sendall(encode(answer))
        outbox = core.Outbox(ours.fileno())
        found = core.AwaitedAnswer(stream, outbox, answer.opaque, event.number)
        said = found.wait(10_000)
        stream.stop()
    return said, found


@given(_FIELDS, st.sampled_from([0, 0, 0, 1, 10]))
@example({"msgId": "", "queueId": "0", "queueOffset": "0"}, 0)
def test_what_a_send_stored_is_read_as_by_the_header_or_left_to_it(
    fields: dict[str, Any], code: int
) -> None:
    answer = Command(code, fields, opaque=1 << 30, flag=RESPONSE_FLAG)
    said, found = awaited(answer)
    texts = {name: str(value) for name, value in fields.items()}
    if said == AnswerWait.FOR_LOOP:
        assert found.stored is None
        is_plain = all(type(value) is str and '"' not in value for value in fields.values())
        escaped = any(not value.isprintable() or "\\" in value for value in texts.values())
        assert code != 0 or not is_plain or escaped
        return
    assert said == AnswerWait.ANSWERED
    assert decode_frame(*found.frame).ext == texts
    try:
        header = SendReplyHeader.from_ext(texts)
    except ProtocolError:
        assert found.stored is None
        return
    if found.stored is not None:
        assert found.stored == (header.message_id, header.queue_id, header.queue_offset)
        assert header.recall_handle is None
    else:
        numbers = texts["queueId"], texts["queueOffset"]
        is_usual = texts["msgId"] != "" and all(number.isdecimal() for number in numbers)
        assert "recallHandle" in texts or not is_usual or header.queue_offset >= 10**18


def test_a_usual_answer_is_read_natively() -> None:
    header = SendReplyHeader("7F00000100002A9F0000000000000400", 3, 7)
    said, found = awaited(Command(0, header.to_ext(), opaque=1 << 30, flag=RESPONSE_FLAG))
    assert said == AnswerWait.ANSWERED
    assert found.stored == (header.message_id, 3, 7)
