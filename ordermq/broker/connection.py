"""One client's connection: bytes to requests, replies to bytes."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from typing import cast

from ordermq import core, forking
from ordermq.broker.connection_limits import ConnectionLimits
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store.group_commit import QueueLog
from ordermq.config import BrokerConfig
from ordermq.config.checks import join_address
from ordermq.errors import ProtocolError
from ordermq.model.stored_message import host_bytes
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command, Framer, encode

log = logging.getLogger("ordermq.broker")

_WRITE_HIGH_WATER = 4_194_304  # unsent bytes at which requests are no longer read
_FLOOD_BYTES = 65_536  # of one read; what is less comes from a client that waits for answers
_MAX_UNSTORED = 33_554_432  # received bytes of a connection whose writes are not stored
_MAX_UNSTORED_OF_ALL = 268_435_456  # of all connections
_FLUSH_BYTES = 262_144  # bytes of replies joined into one write
_MAX_PULLED = 65_536  # queues whose last pull is remembered per connection
_MAX_WRITERS = 1_024  # record writers kept per connection, for clients of very many queues


class RequestRefused(Exception):
    """Raised by a handler: the request is answered with this code and remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class BrokerConnection(asyncio.Protocol):
    """Reads requests and passes them on in arrival order; writes replies.

    Requests of a client that does not read its replies are not read either.

    Args:
        when_stored: calls back when all that was submitted to the store by now has ended.
        take_sends: handles plain sends at the beginning of received bytes, and returns how many
            bytes they take.
        handle: handles one or more requests from a position on, and returns how many; it replies
            now, later, or not at all.
        opened, closed: called when this connection was made and when it is lost.
    """

    def __init__(
        self,
        config: BrokerConfig,
        limits: ConnectionLimits,
        statistics: BrokerStatistics,
        when_stored: Callable[[Callable[[], None]], None],
        take_sends: Callable[[BrokerConnection, bytes], int],
        handle: Callable[[BrokerConnection, Command], None],
        opened: Callable[[BrokerConnection], None],
        closed: Callable[[BrokerConnection], None],
    ) -> None:
        self._config = config
        self._limits = limits
        # Without accounts no request is ever signed, and no client is trusted less than another.
        self.is_signed = not config.accounts
        self._framer = Framer(
            config.max_frame_bytes
            if self.is_signed
            else min(config.max_unsigned_frame_bytes, config.max_frame_bytes)
        )
        self._statistics = statistics
        self._when_stored = when_stored
        self._take_sends = take_sends
        self._handle = handle
        self._opened = opened
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._backlog: list[Command] = []  # received while the transport's buffer was full
        self._is_paused = False
        self._is_working = False
        self._is_held = False  # not read because its writes wait for the store
        self._unstored_bytes = 0
        self.unfinished_bytes = 0
        self.idle_checks = self.frame_checks = self.stalled_checks = 0
        self._unsent_bytes = 0  # at the last check
        # Requests of the broker to this client, by opaque.
        self._response_callbacks: dict[int, Callable[[Command | None], None]] = {}
        # Per connection, because a record holds its producer's address.
        self._writers: dict[tuple[str, int], core.contract.RecordWriter] = {}
        # The log of the last pull, by group and queue: a topic that is made anew has others.
        self._pulled: dict[tuple[str, str, int], int] = {}
        self._descriptor = -1
        self.peer = ""
        self.local_address = ""
        self._born_host = b""
        self._store_host = b""
        self.store_host_hex = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        forking.keep_from_children(self._descriptor)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        # Formatted once: every stored record and message id contains both addresses.
        self.peer, self.local_address = join_address(*peer[:2]), join_address(*local[:2])
        self._born_host, self._store_host = host_bytes(*peer[:2]), host_bytes(*local[:2])
        self.store_host_hex = self._store_host.hex().upper()
        self._opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        forking.closes(self._descriptor)
        self._out.clear()
        self._backlog.clear()
        # Waiting handlers get their answer now, not after a time-out.
        for opaque in list(self._response_callbacks):
            self.give_up(opaque)
        self._closed(self)

    def data_received(self, data: bytes) -> None:
        self.idle_checks = 0
        broken: ProtocolError | None = None
        received, taken = self._framer.join(data), 0
        # Behind a backlog nothing is handled yet: a connection's requests stay in order.
        if received and not self._backlog and self._is_open:
            taken = self._take_sends(self, received)
        try:
            commands = self._framer.split(received, taken)
        except ProtocolError as error:
            commands, broken = self._framer.completed, error
        if commands or taken:
            self.frame_checks = 0  # what is unfinished now is another frame
        unfinished = self._framer.buffered_bytes
        if unfinished != self.unfinished_bytes:
            self.unfinished_bytes = unfinished
            self._limits.note_unfinished(self, unfinished)
        if self._backlog:
            self._backlog += commands
        else:
            self._backlog = commands
            self._work()
        if len(data) >= _FLOOD_BYTES:
            self._note_flood(len(data))
        if broken is not None:
            # After a malformed frame the next one cannot be found. Earlier ones were handled.
            self._statistics.frames_refused += 1
            log.warning("closing connection: client=%s reason=%s", self.peer, broken)
            self.close()

    def _note_flood(self, size: int) -> None:
        """Stop reading a client that sends faster than the store writes."""
        # What waits for the store has no other bound: answers come only after it. Only long reads
        # are counted: a flood has no others.
        self._unstored_bytes += size
        self._limits.unstored_bytes += size

        def stored() -> None:
            self._unstored_bytes -= size
            self._limits.unstored_bytes -= size
            # One that has nothing left there goes on in any case: no other event wakes it.
            if self._is_held and (not self._unstored_bytes or not self._is_flooding(2)):
                self._is_held = False
                if self._transport is not None and not self._is_paused:
                    self._transport.resume_reading()

        self._when_stored(stored)
        if self._transport is not None and not self._is_held and self._is_flooding(1):
            self._is_held = True
            self._statistics.floods_held += 1
            self._transport.pause_reading()

    def _is_flooding(self, part: int) -> bool:
        return (
            self._unstored_bytes > _MAX_UNSTORED // part
            or self._limits.unstored_bytes > _MAX_UNSTORED_OF_ALL // part
        )

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        # The client has read. What fills the buffer again may be as much as waited before.
        self._unsent_bytes = sys.maxsize
        self._work()
        if self._transport is not None and not self._is_paused and not self._is_held:
            self._transport.resume_reading()

    def note_signed(self) -> None:
        """Note a request with a good signature: the client may send frames of full size."""
        self.is_signed = True
        self._framer.max_frame_bytes = self._config.max_frame_bytes

    def note_stalled(self) -> None:
        """Count a check of the limits if answers wait, and none has left since the last one."""
        if self._is_held:  # its silence is ours
            self.idle_checks = self.frame_checks = 0
        # While the buffer is full no request is handled, so only the client can make it shrink.
        unsent = self._transport_bytes() if self._is_paused else 0
        if unsent and unsent >= self._unsent_bytes:
            self.stalled_checks += 1
        else:
            self.stalled_checks = 0
        self._unsent_bytes = unsent

    def _transport_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def _is_open(self) -> bool:
        """True if requests may be handled: answers can be written, and the buffer is not full."""
        transport = self._transport
        return not (self._is_paused or transport is None or transport.is_closing())

    @property
    def max_frame_bytes(self) -> int:
        """The longest frame that this client may send now."""
        return self._framer.max_frame_bytes

    def _work(self) -> None:
        """Handle received requests until the transport's buffer is full."""
        commands, done = self._backlog, 0
        self._is_working = True
        while done < len(commands):
            # A handler's reply may fill the buffer, and its request may close the connection.
            if not self._is_open:
                break
            self._handle(self, commands[done])
            done += 1
        self._is_working = False
        self._backlog = commands[done:]
        self.flush()

    def writer(self, topic: str, queue_id: int) -> core.contract.RecordWriter:
        """Return the writer of this client's records for a queue.

        Cached, because it holds the encoded topic and both addresses of every record.
        """
        found = self._writers.get((topic, queue_id))
        if found is None:
            if len(self._writers) >= _MAX_WRITERS:
                self._writers.clear()
            found = core.RecordWriter(topic, queue_id, self._born_host, self._store_host)
            self._writers[topic, queue_id] = found
        return found

    def begins_life(self, key: tuple[str, str, int], log: QueueLog) -> bool:
        """Note a pull of a group's queue; return True if the last one was of an earlier life."""
        last = self._pulled.get(key)
        if last == log.row:
            return False
        if last is None and len(self._pulled) >= _MAX_PULLED:
            self._pulled.clear()
        self._pulled[key] = log.row
        return last is not None

    def is_of_earlier_life(self, key: tuple[str, str, int], log: QueueLog | None) -> bool:
        """Return True if the client last pulled a group's queue before its topic was deleted."""
        last = self._pulled.get(key)
        return last is not None and (log is None or last != log.row)

    def reply(
        self,
        request: Command,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> None:
        """Reply to a request, unless it is one-way."""
        if not request.is_oneway:
            self.send(encode(request.reply(code, ext, body, remark)))

    def send(self, frame: bytes, body: bytes = b"") -> None:
        """Write a frame, in one or two pieces."""
        # Frames of one loop iteration leave in one write: a system call costs more than joining.
        # Within `_work` the flush is at its end, so no callback is needed.
        if not self._out and not self._is_working:
            self._loop.call_soon(self.flush)
        self._out.append(frame)
        if body:
            self._out.append(body)
        self._out_bytes += len(frame) + len(body)
        if self._out_bytes > _FLUSH_BYTES:
            self.flush()

    def ask(self, request: Command, done: Callable[[Command | None], None]) -> None:
        """Send the client a request; `done` gets its response, None if there will be none."""
        self._response_callbacks[request.opaque] = done
        self.send(encode(request))

    def settle(self, response: Command) -> None:
        """Pass on a client's response; one without a waiter is ignored
        (docs/internals/protocol.md#flags-and-request-ids)."""
        self._end_wait(response.opaque, response)

    def give_up(self, opaque: int) -> None:
        """Stop waiting for the response to a request of the broker."""
        self._end_wait(opaque, None)

    def _end_wait(self, opaque: int, response: Command | None) -> None:
        done = self._response_callbacks.pop(opaque, None)
        if done is None:
            return
        try:
            done(response)
        except Exception as error:  # noqa: BLE001 - reported; the connection and the others go on
            self._loop.call_exception_handler(
                {"message": f"{self.peer}: response {opaque}", "exception": error}
            )

    def flush(self) -> None:
        """Write waiting frames to the transport."""
        if self._out:
            if self._transport is not None:
                self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._out.clear()
            self._out_bytes = 0
            # Answers to held pulls and notices come although no request is read any more.
            if self._is_paused and self._transport_bytes() > self._config.max_unsent_bytes:
                self._limits.close_slow_reader(
                    self, "it does not read answers, and too many wait (max_unsent_bytes)"
                )

    def close(self) -> None:
        """Close after everything written was sent."""
        # Once: asyncio's transport of TLS forgets its connection at a second time. It is neither
        # written to nor aborted any more then, and Python 3.11.2 (Debian 12) raises.
        if self._transport is not None and not self._transport.is_closing():
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close now, without sending what is buffered."""
        if self._transport is not None:
            self._transport.abort()
