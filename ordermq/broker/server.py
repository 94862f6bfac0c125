"""The broker on its event loop: connections, request code -> processor, timers."""

from __future__ import annotations

import asyncio
import logging
import socket

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.consumer_offsets import ConsumerOffsets
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.delays import DelayedDelivery, TimedDelivery
from ordermq.broker.groups import GroupTable
from ordermq.broker.half_messages import HalfMessages
from ordermq.broker.locks import QueueLocks
from ordermq.broker.long_poll import HeldPull, HeldPulls
from ordermq.broker.processors import (
    admin,
    clients,
    locks,
    offsets,
    pull,
    recall,
    relay,
    reply,
    resets,
    search,
    send,
    send_back,
    topics,
    transactions,
)
from ordermq.broker.producers import ProducerTable
from ordermq.broker.retention import Retention
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Store
from ordermq.broker.timers import Timers
from ordermq.broker.topics import TopicTable
from ordermq.broker.transactions import TransactionChecks
from ordermq.clock import Clock
from ordermq.config import BrokerConfig
from ordermq.errors import ConfigError, ProtocolError, StoreError
from ordermq.events import Recorder
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.signing import refusal_of
from ordermq.remoting.tls import SHUTDOWN_TIMEOUT_S, server_context

log = logging.getLogger("ordermq.broker")

HANDLERS: dict[int, Handler] = {
    **topics.HANDLERS,
    **send.HANDLERS,
    **send_back.HANDLERS,
    **pull.HANDLERS,
    **offsets.HANDLERS,
    **locks.HANDLERS,
    **clients.HANDLERS,
    **admin.HANDLERS,
    **resets.HANDLERS,
    **search.HANDLERS,
    **relay.HANDLERS,
    **reply.HANDLERS,
    **transactions.HANDLERS,
    **recall.HANDLERS,
}
_CLOSE_GRACE_S = 1.0  # for clients to take their last answers


class BrokerServer:
    """Everything that happens on the loop; made there, and used there alone."""

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
        self._server: asyncio.Server | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._context = BrokerContext(
            config,
            clock,
            history,
            statistics,
            store,
            TopicTable(store, config),
            GroupTable(store, config),
            ConsumerOffsets(store),
            QueueLocks(store, config, clock, history, statistics, clients.notify),
            HeldPulls(clock, config.pull_recheck_interval_ms, statistics, self._release),
            HalfMessages(store, config, statistics),
            Timers(store, statistics),
            ProducerTable(config),
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port.

        Raises: OSError: the address cannot be listened on. ConfigError: nor with these
            certificates.
        """
        context, loop = self._context, asyncio.get_running_loop()
        context.store.on_append(context.held_pulls.on_append)
        delays = DelayedDelivery(context)
        context.store.start(loop, self._statistics)
        tls = server_context(self._config)
        self._server = await loop.create_server(
            self._connection,
            host,
            port,
            backlog=1024,
            ssl=tls,
            ssl_shutdown_timeout=None if tls is None else SHUTDOWN_TIMEOUT_S,
        )
        timed, checks = TimedDelivery(context), TransactionChecks(context)
        retention = Retention(context)
        jobs = (
            context.held_pulls.run(), delays.run(), timed.run(), checks.run(), retention.run(),
            self._sweep(),
        )  # fmt: skip
        self._timers = [loop.create_task(job) for job in jobs]
        for timer in self._timers:
            timer.add_done_callback(_report_death)
        first: socket.socket = self._server.sockets[0]
        return int(first.getsockname()[1])

    async def stop(self) -> None:
        """Take no more requests, finish the writes, answer them, close the connections."""
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        await self._context.jobs.cancel()
        if self._server is not None:
            self._server.close()
        self._context.store.stop_writing()
        await asyncio.sleep(0)  # the writer's last call into the loop
        for connection in list(self._connections):
            connection.close()
        deadline = asyncio.get_running_loop().time() + _CLOSE_GRACE_S
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)
        self._context.store.close()

    def _connection(self) -> BrokerConnection:
        return BrokerConnection(
            self._config.max_frame_bytes,
            self._statistics,
            self._handle,
            self._opened,
            self._closed,
        )

    def _opened(self, connection: BrokerConnection) -> None:
        self._connections.add(connection)
        self._statistics.connections += 1

    def _closed(self, connection: BrokerConnection) -> None:
        self._connections.discard(connection)
        self._statistics.connections -= 1
        self._context.held_pulls.disconnect(connection)
        self._context.locks.disconnect(connection)
        self._context.producers.disconnect(connection)
        for group in self._context.groups.disconnect(connection):
            clients.notify_members(group)

    def _handle(self, connection: BrokerConnection, request: Command) -> None:
        if request.is_response:
            connection.settle(request)
            return
        self._statistics.requests += 1
        if self._config.accounts:
            refusal = refusal_of(request, self._config.accounts)
            if refusal is not None:
                connection.reply(request, ResponseCode.NO_PERMISSION, remark=refusal)
                return
        handler = HANDLERS.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            connection.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            return
        try:
            handler(self._context, connection, request)
        except Exception as error:  # noqa: BLE001 - it is answered and logged
            self._answer_failure(connection, request, error)

    def _release(self, held: HeldPull) -> None:
        try:
            pull.release(self._context, held)
        except Exception as error:  # noqa: BLE001 - it is answered and logged
            self._answer_failure(held.connection, held.request, error)

    def _answer_failure(
        self, connection: BrokerConnection, request: Command, error: Exception
    ) -> None:
        """Whatever a handler raises becomes the answer, and the broker goes on."""
        if isinstance(error, NotClaimed):
            connection.reply(request, error.code, remark=error.remark)
        elif isinstance(error, ConfigError):
            connection.reply(request, ResponseCode.INVALID_PARAMETER, remark=str(error))
        elif isinstance(error, StoreError):
            self._context.refuse_write(connection, request, error)
        else:
            self._statistics.requests_failed += 1
            remark = str(error)
            if not isinstance(error, ProtocolError):
                remark = f"{type(error).__name__}: {error}"
                log.error(
                    "request failed code=%d client=%s", request.code, connection.peer,
                    exc_info=error,
                )  # fmt: skip
            connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)

    async def _sweep(self) -> None:
        """Drop silent members and expired locks, until cancelled."""
        context = self._context
        interval_ms = min(
            context.config.client_scan_interval_ms, max(context.locks.lease_ms // 4, 10)
        )
        while True:
            await context.clock.sleep_ms(interval_ms)
            context.locks.sweep()
            changed, gone = context.groups.expire(context.clock.now_ms())
            for group in changed:
                clients.notify_members(group)
            for member in gone:
                self._statistics.members_expired += 1
                log.warning(
                    "member dropped, no heartbeat for %d ms: client=%s address=%s",
                    context.config.client_expiry_ms, member.client_id, member.connection.peer,
                )  # fmt: skip
                member.connection.close()


def _report_death(timer: asyncio.Task[None]) -> None:
    if not timer.cancelled() and timer.exception() is not None:
        log.error("a broker timer died: restart the broker", exc_info=timer.exception())
