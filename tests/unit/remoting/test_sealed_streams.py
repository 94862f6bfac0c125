"""Records of TLS that a thread which waits for its answer, or the loop, takes from the socket."""

from __future__ import annotations

import contextlib
import errno
import re
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordermq import core
from ordermq.core.streams import AnswerWait
from ordermq.errors import OrderMQError
from ordermq.remoting.command import RESPONSE_FLAG, Command, decode_frame, encode
from ordermq.remoting.thread_event import ThreadEvent
from ordermq.remoting.tls import TlsSession
from tests.waiting import killed_on_error

from .contexts import Contexts
from .test_reading import MAX_BYTES, WIRE, read_natively

LONG_MS = 20_000
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def pieces(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    """Return the data cut at these places, none of it empty."""
    borders = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for begin, end in pairwise(borders):
        yield data[begin:end]


class Sealed:
    """A stream of frames at one end of a socket, and the TLS of the other end.

    Attributes: session: of the stream, after the handshake.
    """

    def __init__(self, contexts: Contexts, newest: ssl.TLSVersion = VERSIONS[-1]) -> None:
        self.session = session = TlsSession(contexts.client_up_to(newest), "127.0.0.1")
        self._peer = contexts.server.wrap_bio(session.outgoing, session.incoming, server_side=True)
        for step in (session.ssl_object.do_handshake, self._peer.do_handshake) * 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                step()

    def records(self, data: bytes) -> bytes:
        """Return the records of what the server sends, at first behind those of tickets."""
        self._peer.write(data)
        return self.session.incoming.read()

    def close_notify(self) -> bytes:
        """Return the record by which the server ends the session."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._peer.unwrap()
        return self.session.incoming.read()


class Waiting:
    """One thread's wait for the answer to request 7, on a socket whose other end the test has."""

    def __init__(self, tls: Any) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._gate = select.epoll()
        self.stream = core.FrameStream(1 << 16, tls)
        self.stream.attach(self._ours.fileno(), self._gate.fileno())
        self.stream.trust()
        self._event = ThreadEvent()
        self.answer = core.AwaitedAnswer(
            self.stream, core.Outbox(self._ours.fileno()), 7, self._event.number
        )

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.stop()
        for each in (self._ours, self.theirs, self._gate):
            each.close()

    def read_by_owner(self) -> tuple[int, list[Command]]:
        """Read as the loop does; return what `receive` did, and the commands that were its own."""
        assert self.stream.begin()
        try:
            got = self.stream.receive(0.0)
            found = []
            while (frame := self.stream.frame()) is not None:
                found.append(decode_frame(*frame))
                self.stream.drop()
            return got, found
        finally:
            self.stream.end(True)


def answer_to(opaque: int, body: bytes = b"") -> Command:
    return Command(0, {"msgId": "A", "queueId": "1", "queueOffset": "5"}, body, opaque=opaque,
                   flag=RESPONSE_FLAG)  # fmt: skip


# The same frames come out, whatever records and reads they came in.


@settings(max_examples=60)
@given(
    WIRE,
    st.lists(st.integers(0, 400), max_size=4),
    st.lists(st.integers(0, 2_000), max_size=8),
    st.sampled_from(VERSIONS),
)
def test_records_in_pieces_make_the_frames_that_were_put_into_them(
    contexts: Contexts, data: bytes, borders: list[int], cuts: list[int], newest: ssl.TLSVersion
) -> None:
    sealed = Sealed(contexts, newest)
    records = b"".join(sealed.records(part) for part in pieces(data, borders))
    stream = core.FrameStream(MAX_BYTES, sealed.session)
    found: list[Command] = []
    got = 0
    is_broken = False
    for piece in pieces(records, cuts):
        stream.add(piece)
        assert stream.begin()
        got += max(stream.receive(), 0)
        while not is_broken and (frame := stream.frame()) is not None:
            try:
                found.append(decode_frame(*frame))
            except OrderMQError:
                is_broken = True
            stream.drop()
        stream.end(True)
    assert got == len(data)
    assert (found, is_broken or stream.is_broken) == read_natively(data, [])
    assert not stream.has_more


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2_000), max_size=8), st.sampled_from([0, 10, 20_000, 40_000]))
def test_a_thread_that_waits_deciphers_its_answer_whatever_pieces_it_comes_in(
    contexts: Contexts, cuts: list[int], size: int
) -> None:
    sealed = Sealed(contexts)
    records = sealed.records(encode(answer_to(7, b"x" * size)))
    with Waiting(sealed.session) as waiting:

        def send() -> None:
            for piece in pieces(records, cuts):
                waiting.theirs.sendall(piece)

        sending = threading.Thread(target=send)
        sending.start()
        assert waiting.answer.wait(LONG_MS) == AnswerWait.ANSWERED
        sending.join()
        assert waiting.answer.stored == ("A", 1, 5)
        assert len(waiting.answer.frame[2]) == size
        assert waiting.stream.counts == (len(encode(answer_to(7, b"x" * size))), 1)
        assert waiting.stream.buffered_bytes == 0


def test_answers_of_others_and_requests_in_one_record_reach_whom_they_are_for(
    contexts: Contexts,
) -> None:
    sealed = Sealed(contexts)
    frames = [answer_to(7), Command(40, {}, opaque=1), answer_to(8)]
    with Waiting(sealed.session) as waiting:
        waiting.theirs.sendall(sealed.records(b"".join(map(encode, frames))))
        assert waiting.answer.wait(LONG_MS) == AnswerWait.FOR_LOOP
        assert waiting.answer.is_here
        _, found = waiting.read_by_owner()
        assert [each.opaque for each in found] == [1, 8]


# Ends.


@pytest.mark.parametrize("newest", VERSIONS)
def test_what_came_before_the_end_of_a_session_counts(
    contexts: Contexts, newest: ssl.TLSVersion
) -> None:
    sealed = Sealed(contexts, newest)
    answer = sealed.records(encode(answer_to(7)))
    with Waiting(sealed.session) as waiting:
        waiting.theirs.sendall(answer + sealed.close_notify())  # and the connection stays open
        assert waiting.answer.wait(LONG_MS) == AnswerWait.FOR_LOOP
        assert waiting.answer.is_here
        assert waiting.stream.has_more
        assert waiting.read_by_owner() == (0, [])


@pytest.mark.parametrize("is_thread", [True, False])
@pytest.mark.parametrize(
    "garbage",
    [b"\x17\x03\x03\x00\x20" + b"?" * 32, b"\xff" * 40, b"\x15\x03\x03\x00\x02\x02\x28"],
    ids=["not deciphered", "no record", "plain alert"],
)
def test_garbage_ends_the_connection_behind_what_came_before(
    contexts: Contexts, garbage: bytes, is_thread: bool
) -> None:
    sealed = Sealed(contexts)
    answer = sealed.records(encode(answer_to(7)))
    with Waiting(sealed.session) as waiting:
        waiting.theirs.sendall(answer + garbage)
        if is_thread:
            assert waiting.answer.wait(LONG_MS) == AnswerWait.FOR_LOOP
            assert waiting.answer.is_here
        else:
            got, found = waiting.read_by_owner()
            assert got > 0
            assert [each.opaque for each in found] == [7]
        assert waiting.stream.has_more
        with pytest.raises(ssl.SSLError):
            waiting.read_by_owner()
        assert waiting.read_by_owner() == (0, [])


def test_half_a_record_in_front_of_the_end_is_nothing(contexts: Contexts) -> None:
    sealed = Sealed(contexts)
    answer = sealed.records(encode(answer_to(7)))
    with Waiting(sealed.session) as waiting:
        waiting.theirs.sendall(answer[:-1])
        waiting.theirs.shutdown(socket.SHUT_WR)
        assert waiting.answer.wait(LONG_MS) == AnswerWait.FOR_LOOP
        assert not waiting.answer.is_here
        assert waiting.read_by_owner() == (0, [])
        assert 0 < waiting.stream.buffered_bytes < len(answer)  # its whole records were tickets


# Other threads in the session, and exceptions.


def test_the_loop_waits_for_no_thread_that_is_in_the_session(contexts: Contexts) -> None:
    sealed = Sealed(contexts)
    with Waiting(sealed.session) as waiting:
        waiting.theirs.sendall(sealed.records(encode(answer_to(9))))
        with sealed.session.lock:
            assert waiting.read_by_owner() == (-1, [])
            assert waiting.stream.has_more
            assert sealed.session.encipher_soon(b"x", 0) is None
            assert sealed.session.close_notify() == b""
        got, found = waiting.read_by_owner()
        assert got > 0
        assert [each.opaque for each in found] == [9]
        assert not waiting.stream.has_more


class Interruption:
    """Raises as a signal handler does, once, in place of a call."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.is_due = True

    def __call__(self, *arguments: Any) -> Any:
        if self.is_due:
            self.is_due = False
            raise KeyboardInterrupt
        return self._call(*arguments)


def parts(session: TlsSession, **changed: Any) -> Any:
    """Return the parts of a session, with some of them changed."""
    names = ("incoming", "outgoing", "read", "write", "lock", "wants_more", "ended", "failed")
    return SimpleNamespace(**{name: getattr(session, name) for name in names} | changed)


def test_an_exception_before_records_are_taken_loses_none(contexts: Contexts) -> None:
    sealed = Sealed(contexts)
    lock = SimpleNamespace(
        acquire=Interruption(sealed.session.lock.acquire), release=sealed.session.lock.release
    )
    with Waiting(parts(sealed.session, lock=lock)) as waiting:
        waiting.theirs.sendall(sealed.records(encode(answer_to(7))))
        with pytest.raises(KeyboardInterrupt):
            waiting.answer.wait(LONG_MS)
        assert waiting.stream.has_more
        _, found = waiting.read_by_owner()
        assert [each.opaque for each in found] == [7]
        assert not sealed.session.lock.locked()


def test_an_exception_while_a_record_is_deciphered_ends_the_connection(contexts: Contexts) -> None:
    sealed = Sealed(contexts)
    read = Interruption(sealed.session.read)
    with Waiting(parts(sealed.session, read=read)) as waiting:
        waiting.theirs.sendall(sealed.records(encode(answer_to(7))))
        with pytest.raises(KeyboardInterrupt):
            waiting.answer.wait(LONG_MS)
        with pytest.raises(OSError, match="a read was interrupted") as raised:
            waiting.read_by_owner()
        assert raised.value.errno == errno.ECONNABORTED
        assert not sealed.session.lock.locked()


# Changes of keys, which the standard library cannot make.


def test_new_keys_of_the_server_are_used_and_answered(contexts: Contexts) -> None:
    command = ["openssl", "s_server", "-accept", "127.0.0.1:0", "-naccept", "1", "-tls1_3"]
    shown = ["-cert", contexts.certificate.certificate, "-key", contexts.certificate.key]
    started = subprocess.Popen(
        [*command, *shown], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    with killed_on_error(started) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        told = b""
        while (where := re.search(rb"ACCEPT 127\.0\.0\.1:(\d+)", told)) is None:
            told += server.stdout.read(4_096)
        with socket.create_connection(("127.0.0.1", int(where[1]))) as opened:
            session = TlsSession(contexts.client, "127.0.0.1")
            while True:
                try:
                    session.ssl_object.do_handshake()
                except ssl.SSLWantReadError:
                    opened.sendall(session.outgoing.read())
                    session.incoming.write(opened.recv(1 << 16))
                else:
                    break
            opened.sendall(session.outgoing.read() + session.encipher(b"before"))
            while b"before" not in told:
                told += server.stdout.read(4_096)
            stream, event = core.FrameStream(1 << 16, session), ThreadEvent()
            with contextlib.closing(select.epoll()) as gate:
                stream.attach(opened.fileno(), gate.fileno())
                stream.trust()
                outbox = core.Outbox(opened.fileno())
                for opaque in (7, 8, 9, 10):
                    if opaque > 7:  # else tickets are on the way
                        server.stdin.write(b"K\n")  # new keys, and a request for the client's
                        assert select.select([opened], [], [], LONG_MS / 1_000)[0]
                    server.stdin.write(encode(answer_to(opaque)))
                    answer = core.AwaitedAnswer(stream, outbox, opaque, event.number)
                    assert answer.wait(LONG_MS) == AnswerWait.ANSWERED
                    assert answer.stored == ("A", 1, 5)
                    # The session answers by itself: that leaves in front of the next request.
                    opened.sendall(session.encipher(b"after %d" % opaque))
                    while b"after %d" % opaque not in told:
                        told += server.stdout.read(4_096)
                stream.stop()
        server.stdin.close()
        server.wait(20)
