"""Connections of one client: one per address, opened on demand, replaced when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Collection, Iterator

from ordermq.client.outages import Outages
from ordermq.clock import Clock, wait_until_set
from ordermq.config import RemotingConfig
from ordermq.config.checks import split_address
from ordermq.errors import BrokerError, ConnectFailed, OrderMQError, StateError
from ordermq.forking import ProcessBound
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.connecting import connect_failed
from ordermq.remoting.connection import Connection
from ordermq.remoting.dialer import Dialer
from ordermq.remoting.reading import ReadingOf, transport_reading
from ordermq.remoting.shared_tasks import SharedTasks
from ordermq.remoting.time_limit import time_limit
from ordermq.remoting.tls import TlsSession, renewed_client_context

_log = logging.getLogger("ordermq.client")
_NOT_SERVED = (
    "the server does not serve this request: RocketMQ's proxy serves none of administration and no "
    "replies, an older broker none that came later; give the name servers' own addresses"
)
_NO_GROUP = (
    "the broker does not create it (autoCreateSubscriptionGroup=false): create it (mqadmin "
    "updateSubGroup), or check its name"
)
_NO_TOPIC = (
    "the broker does not create it (autoCreateTopicEnable=false): create it (`ordermq topics "
    "create`, mqadmin updateTopic), or check its name"
)
_APPLY_FIRST = " not exist, apply first please"  # followed by a link to a page of questions
_NO_READS = (
    "] pulling message is forbidden",
    "] pop message is forbidden",  # of a broker; of a topic a pop is answered "peeking"
    "] peeking message is forbidden",
    "has no read permission",
)
# Parts of the remarks of RocketMQ and of the embedded broker, each with what to do. Their code is
# that of an account without permission, of which none of them speaks.
_CLOSED = {
    ("subscription group no permission", "consumeEnable is off"): (
        "consumption by this group is disabled at the broker (consumeEnable=false): have an admin "
        "enable it (mqadmin updateSubGroup -s true), or consume as another group"
    ),
    ("broadcast way",): (
        "the group must not broadcast (consumeBroadcastEnable=false): have an admin allow it "
        "(mqadmin updateSubGroup -d true), or consume as a cluster"
    ),
    ("] sending message is forbidden", "has no write permission"): (
        "this is closed for sends (its perm lacks 2; an admin has withdrawn it, as before moving "
        "a topic or stopping a broker): have it opened (mqadmin updateTopicPerm -p 6, or "
        "updateBrokerConfig -k brokerPermission -v 6), or send elsewhere"
    ),
    ("] sending transaction message is forbidden",): (
        "the broker takes no transactions (rejectTransactionMessage=true): have an admin allow them"
    ),
    ("] is forbidden for topic[",): (
        "an admin has closed this topic to the group: have it opened, or consume as another group"
    ),
    ("recall failed, operation is forbidden",): (
        "the broker recalls no messages: have an admin allow it (recallMessageEnable=true)"
    ),
    _NO_READS: (
        "this is closed for reads (its perm lacks 4): have an admin open it (mqadmin "
        "updateTopicPerm -p 6, or updateBrokerConfig -k brokerPermission -v 6)"
    ),
}
_BUSY = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
# Remarks of refused sends that pass by themselves, all with SYSTEM_ERROR:
# https://github.com/apache/rocketmq/blob/rocketmq-all-5.3.3/broker/src/main/java/org/apache/rocketmq/broker/processor/SendMessageProcessor.java
_FOR_A_WHILE = (
    "in-sync replicas not enough",  # a new master's, until the others copy from it
    "create mapped file failed, server is busy or broken",
    "timer message is under flow control",
)
# Own addresses, of each of so many servers: brokers list a broken connection for two minutes, and
# one that was frozen lists it when it goes on, whoever was the master meanwhile.
_OWN_KEPT, _SERVERS_KEPT = 64, 256
_MAX_BACKOFF = 16  # times reconnect_delay_ms: 3.2 s with the default, short for a restart

# The reply to a broker's request: now, later, or None if this client does not serve it.
Answer = Command | asyncio.Task[Command] | None


class Connections(ProcessBound):
    """Connections of one client, by address; used on the I/O thread only.

    Args:
        on_request: called with a broker's address and its request; returns the answer or None.
        on_lost: called with an address whose connection ended and was not closed here.
        reading_of: chooses who reads a connection.
    """

    def __init__(
        self,
        clock: Clock,
        config: RemotingConfig,
        on_request: Callable[[str, Command], Answer],
        on_lost: Callable[[str], None],
        reading_of: ReadingOf = transport_reading,
    ) -> None:
        self.outages = Outages(clock)
        self.answered_ms: dict[str, int] = {}  # last answers to `request`; pulls and sends pass by
        # By a server's address, the newest last: this side's of each connection.
        self._own: dict[str, deque[str]] = {}
        self._clock = clock
        self._config = config
        self._on_request = on_request
        self._on_lost = on_lost
        self._reading_of = reading_of
        self._dialer = Dialer(clock)
        self._tls = renewed_client_context(config)
        self._open: dict[str, Connection] = {}
        self._heard: set[str] = set()  # addresses that sent something over connections that ended
        self._opening = SharedTasks[str, Connection]()
        self._not_before_ms: dict[str, tuple[int, int]] = {}  # address -> (when, pause)
        self._drops: dict[str, asyncio.Event] = {}  # by address; its next `drop` sets the event
        self._closed = False

    async def get(self, address: str) -> Connection:
        """Return the open connection to `address`; open it first if needed.

        After a failed connect the next one waits: `reconnect_delay_ms`, doubled up to 16 times.

        Raises: ConnectFailed: it cannot be opened. StateError: the client is closed.
            ConfigError: a file of the TLS settings cannot be used.
        """
        if self._closed:
            raise StateError("client is closed: create a new one", address=address)
        connection = self._open.get(address)
        if connection is not None and connection.is_open:
            return connection
        return await self._opening.result(
            address, lambda: asyncio.create_task(self._connect(address, self._next_drop(address)))
        )

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send a request to `address` and await its answer, whatever its code.

        Raises: as `get` and `Connection.request`.
        """
        connection = await self.writable(address)
        answer = await connection.begin_request(command, timeout_ms)
        self.answered_ms[address] = self._clock.now_ms()
        # Only an answer ends an outage: a frozen broker still accepts connections.
        if address in self.outages.ongoing:
            self.outages.answered(address)
        return self.explained(answer)

    async def open_socket(self, address: str) -> tuple[socket.socket, TlsSession | None]:
        """Open another connection to `address`, for the caller to read and write.

        Returns: the socket, and TLS after its handshake; None without TLS.
        Raises: as `get`, of the client's own connection, which is opened before.
        """
        dropped = self._next_drop(address)
        await self.writable(address)
        host, port = split_address(address)
        context = self._tls.current()
        tls = None if context is None else TlsSession(context, host)
        opened = None
        try:
            async with time_limit(self._config.connect_timeout_ms / 1000):
                opened = await self._dialer.open(host, port)
                if tls is not None:
                    await tls.shake_hands(opened)
                if dropped.is_set():
                    raise _dropped(address)
        except BaseException as error:
            if opened is not None:
                opened.close()
            if isinstance(error, OSError | TimeoutError):
                is_tls = tls is not None
                raise connect_failed(error, address, self._dialer, is_tls=is_tls) from error
            raise
        return opened, tls

    async def writable(self, address: str) -> Connection:
        """Return the open connection to `address` once it accepts bytes; raises as `get`."""
        connection = await self.get(address)
        await connection.writable()
        return connection

    def is_open(self, address: str) -> bool:
        """Return True if there is a connection to `address` now."""
        connection = self._open.get(address)
        return connection is not None and connection.is_open

    def own(self, address: str) -> Collection[str]:
        """Return this side's addresses of the last connections to `address`, open or not."""
        return self._own.get(address, ())

    def _keep_own(self, address: str, own: str) -> None:
        kept = self._own.pop(address, None) or deque(maxlen=_OWN_KEPT)
        kept.append(own)
        self._own[address] = kept
        if len(self._own) > _SERVERS_KEPT:
            del self._own[next(iter(self._own))]

    def drop(self, address: str, reason: str) -> None:
        """End what is kept of an address that no broker has any more.

        Requests in flight fail at once, with `ConnectionLost`, and those that wait for a connect
        with `ConnectFailed`: their callers go to the broker's new address, if it has one.
        """
        self._not_before_ms.pop(address, None)
        self.outages.forget(address)
        if (connection := self._open.get(address)) is not None:
            connection.abort(ConnectionError(reason))
        # Not cancelled: whoever waits for it would take that for its own cancellation.
        if (drop := self._drops.pop(address, None)) is not None:
            drop.set()

    def _next_drop(self, address: str) -> asyncio.Event:
        return self._drops.setdefault(address, asyncio.Event())

    def writable_now(self, address: str) -> Connection | None:
        """Return the connection to `address` if it is open and accepts bytes now, else None.

        From any thread: a dictionary look-up and two flags.
        """
        connection = self._open.get(address)
        if connection is None or not connection.is_open or not connection.is_writable:
            return None
        return connection

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Send the block's requests with one write per connection; the block must not await."""
        # One system call per request cost more than encoding the requests.
        held = list(self._open.values())
        for connection in held:
            connection.cork()
        try:
            yield
        finally:
            for connection in held:
                connection.uncork()

    def explained(self, answer: Command) -> Command:
        """Add the likely cause to the remark of an answer that refuses; return the answer."""
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            answer.remark = f"{(answer.remark or 'not supported').strip()}; {_NOT_SERVED}"
        elif answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            answer.remark = f"{(answer.remark or 'the group does not exist').strip()}; {_NO_GROUP}"
        elif answer.code == ResponseCode.TOPIC_NOT_EXIST and _APPLY_FIRST in (answer.remark or ""):
            topic = (answer.remark or "").partition(_APPLY_FIRST)[0]
            answer.remark = f"{topic} does not exist; {_NO_TOPIC}"
        elif is_denied(answer.code, answer.remark):
            remark = answer.remark or "no permission"
            answer.remark = f"{remark}; {_what_is_closed(remark) or self._who_asked()}"
        return answer

    def _who_asked(self) -> str:
        if not self._config.access_key:
            return (
                "the request was not signed: give access_key and secret_key if the server requires "
                "an account"
            )
        return (
            f"the request was signed as access_key={self._config.access_key!r}: check that key, "
            "its secret_key and the account's permissions"
        )

    async def close(self) -> None:
        """Close all connections; later requests raise `StateError`."""
        self._closed = True
        for opening in self._opening.running:
            opening.cancel()
        await asyncio.gather(
            *(connection.close() for connection in self._open.values()), return_exceptions=True
        )
        self._open.clear()

    async def _connect(self, address: str, dropped: asyncio.Event) -> Connection:
        when, pause = self._not_before_ms.get(address, (0, self._config.reconnect_delay_ms))
        if (wait := when - self._clock.now_ms()) > 0:
            await wait_until_set(dropped, self._clock, wait)
        if dropped.is_set():  # somebody else's server may listen there by now
            raise _dropped(address)
        # Not in the constructor: a certificate that cannot be read must fail the first request,
        # with an error that names the setting, and not the construction of a client.
        tls = self._tls.current()
        try:
            connection = await self._open_one(address, tls)
        except ConnectFailed:
            longest = self._config.reconnect_delay_ms * _MAX_BACKOFF
            if not dropped.is_set():
                self._not_before_ms[address] = (
                    self._clock.now_ms() + pause,
                    min(pause * 2, longest),
                )
            raise
        if dropped.is_set():
            error = _dropped(address)
            connection.abort(error)
            raise error
        self._not_before_ms.pop(address, None)
        self._keep_own(address, connection.own_address)
        self._open[address] = connection
        return connection

    async def _open_one(self, address: str, tls: ssl.SSLContext | None) -> Connection:
        """Connect once; for subclasses that speak another protocol."""
        connection = await Connection.open(
            address,
            self._clock,
            self._config,
            self,
            tls,
            self._dialer,
            self._reading_of,
        )
        connection.is_known = address in self._heard
        return connection

    # ConnectionEvents

    def on_request(self, connection: Connection, command: Command) -> None:
        try:
            answer = self._on_request(connection.address, command)
        except Exception:
            # The broker and its tool wait for an answer; the error itself is the caller's to log.
            self._answer(connection, command, _internal_error(command))
            raise
        if isinstance(answer, asyncio.Task):
            answer.add_done_callback(lambda task: self._answer_late(connection, command, task))
        else:
            self._answer(connection, command, answer)

    def _answer_late(
        self, connection: Connection, command: Command, task: asyncio.Task[Command]
    ) -> None:
        if task.cancelled() or task.exception() is not None:  # logged by `Runtime.spawn`
            self._answer(connection, command, _internal_error(command))
        else:
            self._answer(connection, command, task.result())

    def _answer(self, connection: Connection, command: Command, answer: Command | None) -> None:
        if command.is_oneway:
            return
        if answer is None:
            name = RequestCode(command.code).name if command.code in _KNOWN else "unknown"
            answer = command.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                # Java's remark, with its leading blank: admin tools print it as it comes.
                remark=f" request type {command.code} ({name}) not supported",
            )
        connection.respond(command, answer)

    def on_closed(self, connection: Connection, error: Exception | None) -> None:
        # A newer connection to the same address may have replaced this one already.
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
        if connection.has_heard:
            self._heard.add(connection.address)
        elif connection.peer is not None:
            # One of the host's addresses may be a server that hangs, and another one works.
            self._dialer.failed(*split_address(connection.address), connection.peer)
        if not self._closed:
            # Not a warning: brokers and name servers close connections that were idle for 120 s.
            # A request that fails because of it is reported by `outages`.
            _log.info("%s: connection lost: %s", connection.address, error or "closed by peer")
            self._on_lost(connection.address)


def _internal_error(command: Command) -> Command:
    remark = "internal error of the client (see its log)"
    return command.reply(ResponseCode.SYSTEM_ERROR, remark=remark)


def _what_is_closed(remark: str) -> str:
    """Return what to do about a topic, group or broker that is closed for all accounts; else ""."""
    for parts, remedy in _CLOSED.items():
        if any(part in remark for part in parts):
            return remedy
    return ""


def is_denied(code: int, remark: str | None) -> bool:
    """Return True if an answer denies permission, so that a retry is useless."""
    # RocketMQ 5 has a code for it; the plain ACL of 4.x and 5.x answers SYSTEM_ERROR with an
    # AclException in its remark.
    if code == ResponseCode.SYSTEM_ERROR:
        return "AclException" in (remark or "")
    return code == ResponseCode.NO_PERMISSION


def is_closed_for_reads(error: Exception) -> bool:
    """Return True if a broker hands out no messages because an admin has withdrawn a permission."""
    return (
        isinstance(error, BrokerError)
        and error.response_code == ResponseCode.NO_PERMISSION
        and any(remark in str(error) for remark in _NO_READS)
    )


def is_busy(error: BrokerError) -> bool:
    """Return True if a broker that is overloaded, ending or a new master did nothing, and may
    do it later.
    """
    if error.response_code == ResponseCode.SYSTEM_ERROR:
        return any(remark in str(error) for remark in _FOR_A_WHILE)
    return error.response_code in _BUSY


def _dropped(address: str) -> ConnectFailed:
    return ConnectFailed("no broker has this address any more", address=address)


_KNOWN = frozenset(RequestCode)


def is_forbidden(error: OrderMQError) -> bool:
    """Return True if a broker refuses until an admin has changed something there."""
    return isinstance(error, BrokerError) and (
        error.response_code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        or is_denied(error.response_code, str(error))
    )
