"""The broker on its event loop: connections, request code -> handler, background jobs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ordermq.broker.access import Access
from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.connection_limits import ConnectionLimits
from ordermq.broker.context import BrokerContext, Handler
from ordermq.broker.held_pops import HeldPop
from ordermq.broker.listener import Listener
from ordermq.broker.long_polling import HeldPull
from ordermq.broker.processors import (
    client_requests,
    groups,
    locks,
    offsets,
    pop,
    pull,
    query_message,
    send,
    topics,
)
from ordermq.broker.processors.received_sends import received_sends
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Store
from ordermq.broker.store.store import loading
from ordermq.clock import Clock
from ordermq.config import BrokerConfig
from ordermq.errors import ConfigError, ProtocolError, StoreError, error_text
from ordermq.events import GuardedRecorder, Recorder
from ordermq.health import BrokerHealth, are_alive, loop_reasons
from ordermq.loggers import LogErrors, dropped_lines
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.signing import refusal_reason
from ordermq.remoting.tls import renewed_server_context
from ordermq.supervisor import Supervisor, every

log = logging.getLogger("ordermq.broker")

HANDLERS: dict[int, Handler] = {
    **send.HANDLERS,
    **pull.HANDLERS,
    **pop.HANDLERS,
    **offsets.HANDLERS,
    **locks.HANDLERS,
    **groups.HANDLERS,
    **topics.HANDLERS,
    **query_message.HANDLERS,
    **client_requests.HANDLERS,
}
_LOG_REFUSALS_MS = 60_000  # between two lines, or an account could fill the log
_CLOSE_GRACE_S = 1.0  # time for clients to read their last replies


class BrokerServer:
    """Accepts connections and handles requests; made and used on the loop thread."""

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        clock: Clock,
        history: Recorder,
        statistics: BrokerStatistics,
    ) -> None:
        self._config = config
        self._statistics = statistics
        self._connections: set[BrokerConnection] = set()
        self._limits = ConnectionLimits(config, clock, statistics)
        self._listener: Listener | None = None
        self.supervisor = Supervisor(clock, log, self._count_internal_error)
        guarded = GuardedRecorder(history, self._count_history_error)
        with loading(store.path):
            self._context = BrokerContext(
                store,
                config,
                clock,
                guarded,
                statistics,
                self._answer_held,
                self._look_at_pop,
            )
        self._received_sends = received_sends(self._context)
        self._access = Access(config.policies) if config.policies else None
        self._log_refusals_from_ms = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port.

        Raises: OSError: the address is not available. ConfigError: a certificate is unusable.
        """
        loop = asyncio.get_running_loop()
        self._context.store.start(loop, self._statistics)
        tls = renewed_server_context(self._config, log)
        tls.current()  # a file that cannot be used fails the start, not the first handshake
        self._listener = Listener(self._limits, self._new_connection, tls)
        bound = self._listener.open(host, port)
        loop.set_exception_handler(self._on_error)
        self._start_loops()
        return bound

    def _start_loops(self) -> None:
        clock, start = self._context.clock, self.supervisor.start
        self._context.start_loops(self.supervisor)
        # A quarter of the lease: a waiting member learns of an expired lock after at most 5/4
        # of it.
        most_ms = max(self._context.locks.lease_ms // 4, 10)
        interval_ms = min(self._config.client_scan_interval_ms, most_ms)
        expire = every(clock, interval_ms, self._expire_members_and_locks)
        start("expiry", expire, longest_pause_ms=interval_ms)
        start("connection limits", every(clock, self._limits.interval_ms, self._limit))

    def health(self) -> BrokerHealth:
        """Return the broker's health at this moment; on the loop thread."""
        store, loops = self._context.store, self.supervisor.troubled()
        reasons = loop_reasons(loops)
        if not store.is_writing:
            reasons.append("the store's thread has ended: restart the broker")
        if store.failed_commits:
            reasons.append(
                f"the store could not write {store.failed_commits} times in a row: free space on "
                "its disk, or check the disk"
            )
        is_alive = are_alive(loops) and store.is_writing
        return BrokerHealth(
            is_alive=is_alive,
            is_ready=is_alive and not reasons,
            reasons=tuple(reasons),
            loops=loops,
            internal_errors=self._statistics.internal_errors,
            log_errors=LogErrors.count,
            log_lines_dropped=dropped_lines(),
            connections=self._statistics.connections,
            failed_commits=store.failed_commits,
        )

    async def stop(self) -> None:
        """Accept no more requests, finish the writes, answer them, close the connections."""
        await self.supervisor.stop()
        await self._context.cancel_spawned()
        if self._listener is not None:
            await self._listener.close()
        self._context.store.stop_writing()
        # The writer thread's last call_soon_threadsafe: it sends the last replies.
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.close()
        # Polled: connections report their end through `_closed`, and there is nobody to wait for
        # beyond this grace.
        deadline = asyncio.get_running_loop().time() + _CLOSE_GRACE_S
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)
        self._context.store.close()

    def _new_connection(self) -> BrokerConnection:
        return BrokerConnection(
            self._config,
            self._limits,
            self._statistics,
            self._context.when_stored,
            self._take_sends,
            self._handle,
            self._opened,
            self._closed,
        )

    def _opened(self, connection: BrokerConnection) -> None:
        self._connections.add(connection)
        self._statistics.connections += 1

    def _closed(self, connection: BrokerConnection) -> None:
        self._connections.discard(connection)
        self._limits.release(connection)
        self._statistics.connections -= 1
        self._context.long_polling.disconnect(connection)
        self._context.held_pops.disconnect(connection)
        self._context.locks.disconnect(connection)
        self._context.producers.disconnect(connection)
        for group in self._context.groups.disconnect(connection):
            group.notify_members()

    def _take_sends(self, connection: BrokerConnection, received: bytes) -> int:
        """Handle plain sends at the beginning of received bytes; return the bytes they take."""
        return self._received_sends.take(connection, received)

    def _handle(self, connection: BrokerConnection, request: Command) -> None:
        if request.is_response:
            connection.settle(request)
            return
        self._statistics.requests += 1
        if self._config.accounts:
            refusal = refusal_reason(request, self._config.accounts)
            if refusal is not None:
                connection.reply(request, ResponseCode.NO_PERMISSION, remark=refusal)
                return
            if not connection.is_signed:
                connection.note_signed()
        if self._access is not None and not self._may(connection, request):
            return
        handler = HANDLERS.get(request.code)
        if handler is None:
            # The text of Java's broker, with its leading blank.
            remark = f" request type {request.code} not supported"
            connection.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            return
        try:
            handler(self._context, connection, request)
        except Exception as error:  # noqa: BLE001 - it is answered and logged
            self._reply_error(connection, request, error)

    def _may(self, connection: BrokerConnection, request: Command) -> bool:
        """Return True if a signed request's account may make it; else it is answered."""
        assert self._access is not None
        try:
            refusal = self._access.refusal_reason(self._context, request)
        except Exception as error:  # noqa: BLE001 - it is answered and logged
            self._reply_error(connection, request, error)
            return False
        if refusal is not None:
            if request.is_oneway:
                self._log_refusal(connection, refusal)
            connection.reply(request, ResponseCode.NO_PERMISSION, remark=refusal)
        return refusal is None

    def _log_refusal(self, connection: BrokerConnection, refusal: str) -> None:
        # The client is told nothing, as with the state of a transaction: its producer would be
        # asked in vain until the broker gives the message up.
        now_ms = self._context.clock.now_ms()
        if now_ms >= self._log_refusals_from_ms:
            self._log_refusals_from_ms = now_ms + _LOG_REFUSALS_MS
            log.warning(
                "a one-way request is refused: client=%s reason=%s", connection.peer, refusal
            )

    def _answer_held(self, held: HeldPull) -> None:
        try:
            pull.answer_held(self._context, held)
        except Exception as error:  # noqa: BLE001 - it is answered and logged
            self._reply_error(held.connection, held.request, error)

    def _look_at_pop(self, held: HeldPop) -> bool:
        try:
            return pop.look_again(self._context, held)
        except Exception as error:  # noqa: BLE001 - it is answered and logged
            self._reply_error(held.connection, held.request, error)
            return True

    def _reply_error(
        self, connection: BrokerConnection, request: Command, error: Exception
    ) -> None:
        """Answer a request whose handler raised; the broker continues."""
        if isinstance(error, RequestRefused):
            connection.reply(request, error.code, remark=error.remark)
        elif isinstance(error, ConfigError):
            connection.reply(request, ResponseCode.INVALID_PARAMETER, remark=str(error))
        elif isinstance(error, StoreError):
            self._context.reply_write_failed(connection, request, error)
        else:
            self._statistics.requests_failed += 1
            remark = str(error)
            # A malformed request is the client's error: it gets the text, our log no traceback.
            if not isinstance(error, ProtocolError):
                remark = error_text(error)
                log.error(
                    "request failed: code=%d client=%s", request.code, connection.peer,
                    exc_info=error,
                )  # fmt: skip
            connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)

    async def _limit(self) -> None:
        """Close connections that are beyond a limit of time."""
        self._limits.check()

    async def _expire_members_and_locks(self) -> None:
        """Drop members without heartbeats, and expired locks."""
        context = self._context
        context.locks.sweep()
        changed, gone = context.groups.expire(context.clock.now_ms())
        for group in changed:
            group.notify_members()
        for member in gone:
            self._statistics.members_expired += 1
            log.warning(
                "dropping member, no heartbeat for %d ms: client=%s address=%s",
                context.config.client_expiry_ms, member.client_id, member.connection.peer,
            )  # fmt: skip
            # If it is alive after all, it reconnects and registers with its next heartbeat.
            member.connection.close()

    def _count_internal_error(self) -> None:
        self._statistics.internal_errors += 1

    def _count_history_error(self) -> None:
        self._statistics.history_errors += 1

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take an error of a callback or task, which nobody has got."""
        self._count_internal_error()
        log.error(
            "internal error (please report): %s",
            context["message"],
            exc_info=context.get("exception"),
        )
