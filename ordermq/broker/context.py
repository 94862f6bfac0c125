"""The broker's parts, as every request handler gets them, and what handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.consumer_offsets import ConsumerOffsets, OffsetKey
from ordermq.broker.delayed_messages import DelayedMessages, TimedMessages
from ordermq.broker.groups import GroupTable, ProducerTable, notify_rebalance
from ordermq.broker.held_pops import HeldPop, HeldPops
from ordermq.broker.long_polling import HeldPull, LongPolling
from ordermq.broker.message_routing import DeliveryParts, MessageRouting
from ordermq.broker.open_pops import OpenPops
from ordermq.broker.pop_leases import PopLeases
from ordermq.broker.queue_locks import QueueLocks
from ordermq.broker.recent_sends import recent_sends
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Done, Retention, Store, Write
from ordermq.broker.topics import TopicTable, is_internal_name, is_system_topic
from ordermq.broker.transactions import Transactions
from ordermq.clock import Clock, SteadyWall
from ordermq.config import BrokerConfig
from ordermq.errors import ProtocolError, StoreError, error_text
from ordermq.events import GuardedRecorder
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.time_limit import sleep_and_read
from ordermq.supervisor import Supervisor, every

# The version of every table that is sent to tools; the embedded broker keeps no versions of its
# tables.
DATA_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}
_RESPONSE_TIMEOUT_MS = 10_000  # of requests to clients, as in RocketMQ's broker


class BrokerContext:
    """The parts of one broker, built in the order in which they depend on each other.

    All of them are used on the loop thread alone.

    Args:
        answer_held: answers a held pull.
        look_at_pop: answers a held pop, or returns False.
    """

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        clock: Clock,
        history: GuardedRecorder,
        statistics: BrokerStatistics,
        answer_held: Callable[[HeldPull], None],
        look_at_pop: Callable[[HeldPop], bool],
    ) -> None:
        self.store = store
        self.config = config
        self.clock = clock
        self.begun_ms = clock.now_ms()
        self.history = history
        self.statistics = statistics
        self.steady = steady = SteadyWall(clock)
        store.adopt_back_up(clock.wall_ms(), config.lock_max_live_ms)
        self.topics = TopicTable(store, config)
        self.groups = GroupTable(store, config)
        self.producers = ProducerTable(config)
        self.offsets = ConsumerOffsets(store)
        # The tables above and the locks load what the database has, so a restarted broker
        # answers its first request as the old one would have.
        self.locks = QueueLocks(store, config, clock, history, statistics, notify_rebalance)
        self.long_polling = LongPolling(
            clock, config.pull_recheck_interval_ms, statistics, answer_held
        )
        store.on_append(self.long_polling.on_append)
        self.held_pops = HeldPops(clock, steady, statistics, look_at_pop)
        store.on_append(self.held_pops.on_append)
        self.pop_leases = PopLeases(
            store,
            self.offsets,
            steady,
            store.quiet_ms(clock.wall_ms(), config.lock_max_live_ms),
            lambda key: self.held_pops.wake(key[:2], key[2]),
        )
        self.routing = MessageRouting(
            store, self.topics, config, clock, steady, history, statistics
        )
        delivery = DeliveryParts(store, self.routing, self.offsets, clock, steady)
        self.open_pops = OpenPops(delivery, self.held_pops.wake_readers)
        logs = [log for log in store.logs() if not is_internal_name(log.topic)]
        self.recent_sends = recent_sends(config.duplicate_window, store, logs, clock)
        self.delayed = DelayedMessages(delivery)
        self.timed = TimedMessages(delivery, statistics)
        self.transactions = Transactions(
            store, self.topics, self.producers, self.routing, config, clock, steady, statistics
        )
        self._retention = Retention(store, config, clock, steady, statistics, is_system_topic)
        self._tasks: set[asyncio.Task[None]] = set()

    def start_loops(self, supervisor: Supervisor) -> None:
        """Begin the loops that run from start to stop; they need the running store."""
        clock, config = self.clock, self.config
        supervisor.start("held pulls", self.long_polling.round)
        supervisor.start("held pops", self.held_pops.round)
        supervisor.start("open pops", self.open_pops.round)
        supervisor.start("delayed messages", self.delayed.round)
        supervisor.start("timed messages", self.timed.round)
        check_ms, trim_ms = config.transaction_check_interval_ms, config.retention_interval_ms
        check_all, trim = self.transactions.check_all, self._retention.trim
        supervisor.start("transaction checks", every(clock, check_ms, check_all))
        supervisor.start("retention", every(clock, trim_ms, trim))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine after its handler has returned; the broker's stop cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        # Kept, because the loop holds tasks only weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ask(
        self,
        connection: BrokerConnection,
        request: Command,
        done: Callable[[Command | None], None],
        timeout_ms: int = _RESPONSE_TIMEOUT_MS,
    ) -> None:
        """Send a request to a client; `done` gets its response, None if it does not answer."""

        # A late response finds no callback any more and is ignored by the connection.
        async def give_up_later() -> None:
            await sleep_and_read(self.clock, timeout_ms)
            connection.give_up(request.opaque)

        connection.ask(request, done)
        self.spawn(give_up_later())

    def is_behind(self, key: OffsetKey, offset: int) -> bool:
        """Return True if a commit would move a group that pops back."""
        return any(each.is_behind(key, offset) for each in (self.pop_leases, self.open_pops))

    def is_moving(self, key: OffsetKey) -> bool:
        """Return True while a reset, a pop or a change of a queue's lease is not durable.

        A commit now would undo it.
        """
        pops = self.pop_leases.is_changing(key) or self.open_pops.is_popping(key)
        return pops or self.offsets.is_resetting(key)

    async def cancel_spawned(self) -> None:
        """Cancel everything that was spawned, and wait for its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def when_stored(self, then: Callable[[], None]) -> None:
        """Call `then` when all writes that were submitted by now have ended."""
        try:
            self.store.submit(Write(lambda _: then()))
        except StoreError:  # the broker is closing: nothing waits any more
            then()

    def when_durable(
        self,
        connection: BrokerConnection,
        request: Command,
        then: Callable[[], None] | None = None,
    ) -> Done:
        """Return the `done` of a request's write: call `then`, or reply with SUCCESS.

        If the write failed, the request is answered with the error instead.
        """

        def finish(error: StoreError | None) -> None:
            if error is not None:
                self.reply_write_failed(connection, request, error)
            elif then is not None:
                try:
                    then()
                except RequestRefused as refusal:
                    connection.reply(request, refusal.code, remark=refusal.remark)
                except StoreError as failure:  # it writes, and the broker is closing by now
                    self.reply_write_failed(connection, request, failure)
                except Exception as raised:
                    # The write is durable, but its client must not wait for the answer for ever.
                    remark = error_text(raised)
                    connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)
                    raise
            else:
                connection.reply(request, ResponseCode.SUCCESS)

        return finish

    def reply_write_failed(
        self, connection: BrokerConnection, request: Command, error: StoreError
    ) -> None:
        """Answer a request whose write failed; the broker continues."""
        self.statistics.writes_failed += 1
        # A broker that is closing stored nothing and will be back: clients send again, as to one of
        # RocketMQ's that is shutting down. Any other failure is told to them at once.
        code = ResponseCode.SYSTEM_ERROR
        if not self.store.is_writing:
            code = ResponseCode.SERVICE_NOT_AVAILABLE
        connection.reply(request, code, remark=str(error))


def required_field(request: Command, name: str) -> str:
    """Return a field of a request.

    Raises: ProtocolError: it is missing.
    """
    value = request.ext.get(name)
    if value is None:
        raise ProtocolError(f"request {request.code}: field {name!r} is missing")
    return value


def number_field(request: Command, name: str, default: int | None = None) -> int:
    """Return a field of a request as a number.

    Raises: ProtocolError: it is not a number, or is missing and has no default.
    """
    if default is not None and not request.ext.get(name):
        return default
    text = required_field(request, name)
    try:
        return int(text)
    except ValueError:
        raise ProtocolError(
            f"request {request.code}: field {name!r} is {text!r}, not a number"
        ) from None


# A handler replies with `connection.reply`, now or later. Or it raises: `RequestRefused` with its
# code, ConfigError for an illegal name or number, anything else is answered as a broker error.
Handler = Callable[[BrokerContext, BrokerConnection, Command], None]
