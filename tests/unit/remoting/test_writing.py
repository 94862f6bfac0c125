"""Outboxes: what threads add leaves whole and in order, by them or by the loop's transport."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq import core
from ordermq.remoting.tls import TlsSession
from ordermq.remoting.writing import DirectOutbox, Outbox

from .contexts import Contexts

OutboxOf = Callable[[socket.socket], Outbox]


def native(shared: socket.socket) -> Outbox:
    return core.Outbox(shared.fileno())


OUTBOXES: list[OutboxOf] = [DirectOutbox] if not core.HAS_ENGINE else [DirectOutbox, native]

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([1, 40, 3_000, 60_000, 300_000])),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("read"), st.sampled_from([1, 5_000, 200_000])),
    ),
    max_size=40,
)


class Request:
    is_asked = False


class Wire:
    """A small socket with an outbox at one end, beside the loop's transport, and a reader."""

    def __init__(self, outbox_of: OutboxOf) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        self.ours.setblocking(False)
        self.theirs.setblocking(False)
        self.outbox = outbox_of(self.ours)
        self.transport = b""  # what it has to write
        self.received = bytearray()
        self.is_told = False  # by a flush: the loop will take the rest

    def close(self) -> None:
        self.outbox.close()
        self.ours.close()
        self.theirs.close()

    def write_transport(self) -> None:
        while self.transport:
            try:
                self.transport = self.transport[self.ours.send(self.transport) :]
            except BlockingIOError:
                return

    def take(self) -> None:
        self.is_told = False
        self.transport += self.outbox.take()
        self.write_transport()

    def flush(self) -> None:
        self.is_told = not self.outbox.flush() or self.is_told

    def read(self, count: int) -> int:
        with contextlib.suppress(BlockingIOError):
            data = self.theirs.recv(count)
            self.received += data
            self.write_transport()
            return len(data)
        return 0


@pytest.mark.parametrize("outbox_of", OUTBOXES)
@given(steps=_STEPS)
def test_what_is_added_arrives_whole_and_in_order_whoever_writes_it(
    outbox_of: OutboxOf, steps: list[tuple[str, int]]
) -> None:
    wire, added = Wire(outbox_of), bytearray()
    with contextlib.closing(wire):
        for number, (step, size) in enumerate(steps):
            if step == "append" and not wire.transport:  # as `SharedSocket.is_free` asks
                data = bytes([number]) * size
                assert wire.outbox.append(data, Request())
                added += data
            elif step == "flush":
                wire.flush()
            elif step == "take":
                wire.take()
            elif step == "read":
                wire.read(size)
        wire.flush()
        if wire.is_told:
            wire.take()
        while wire.read(1 << 20) or wire.transport:
            pass
        assert wire.received == added


@pytest.mark.parametrize("outbox_of", OUTBOXES)
def test_a_broken_connection_is_an_error_of_the_write(outbox_of: OutboxOf) -> None:
    wire = Wire(outbox_of)
    with contextlib.closing(wire):
        wire.theirs.close()
        with pytest.raises(OSError, match="roken pipe"):
            wire.outbox.append(b"x", Request())
            wire.outbox.flush()


@pytest.mark.parametrize("outbox_of", OUTBOXES)
def test_a_closed_outbox_uses_its_socket_no_more(outbox_of: OutboxOf) -> None:
    wire = Wire(outbox_of)
    with contextlib.closing(wire):
        while not wire.is_told:
            assert wire.outbox.append(b"x" * 100_000, Request())
            wire.flush()
        wire.outbox.close()
        while wire.read(1 << 20):
            pass
        received = len(wire.received)
        wire.outbox.flush()
        assert wire.read(1 << 20) == 0
        assert len(wire.received) == received
        assert outbox_of is DirectOutbox or not wire.outbox.append(b"x", Request())


@pytest.mark.parametrize("outbox_of", OUTBOXES)
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@given(sizes=st.lists(st.sampled_from([1, 300, 16_384, 40_000]), max_size=5))
def test_frames_leave_in_records_in_the_order_in_which_they_were_added(
    contexts: Contexts, outbox_of: OutboxOf, newest: ssl.TLSVersion, sizes: list[int]
) -> None:
    session = TlsSession(contexts.client_up_to(newest), "127.0.0.1")
    peer = contexts.server.wrap_bio(session.outgoing, session.incoming, server_side=True)
    for step in (session.ssl_object.do_handshake, peer.do_handshake) * 2:
        with contextlib.suppress(ssl.SSLWantReadError):
            step()
    wire, added, opened = Wire(outbox_of), b"", b""
    with contextlib.closing(wire):
        for number, size in enumerate(sizes):
            request, data = Request(), bytes([number]) * size
            assert wire.outbox.append_sealed(data, request, session)
            assert request.is_asked
            added += data
        wire.flush()
        wire.take()
        while wire.read(1 << 20) or wire.transport:
            pass
        assert not session.lock.locked()
    session.outgoing.write(wire.received)
    with contextlib.suppress(ssl.SSLWantReadError):
        while data := peer.read(1 << 20):
            opened += data
    assert opened == added


@pytest.mark.parametrize("outbox_of", OUTBOXES)
def test_a_session_that_cannot_encipher_is_an_error_and_free_again(
    contexts: Contexts, outbox_of: OutboxOf
) -> None:
    session, request = TlsSession(contexts.client, "127.0.0.1"), Request()
    session.incoming.write(b"no record of a server")
    wire = Wire(outbox_of)
    with contextlib.closing(wire), pytest.raises(ssl.SSLError):
        wire.outbox.append_sealed(b"x", request, session)
    assert not request.is_asked
    assert not session.lock.locked()
