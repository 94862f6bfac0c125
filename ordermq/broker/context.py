"""What every processor works with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.consumer_offsets import ConsumerOffsets
from ordermq.broker.group_commit import Append, Done, Statement, Write
from ordermq.broker.groups import GroupTable
from ordermq.broker.half_messages import HalfMessages
from ordermq.broker.locks import QueueLocks
from ordermq.broker.long_poll import HeldPulls
from ordermq.broker.producers import ProducerTable
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Store
from ordermq.broker.timers import Timers
from ordermq.broker.topics import Topic, TopicTable
from ordermq.clock import Clock
from ordermq.config import BrokerConfig
from ordermq.errors import StoreError
from ordermq.events import EventType, Recorder
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command


class NotClaimed(Exception):
    """A request is answered with this code and remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


_ANSWER_TIMEOUT_MS = 10_000  # as long as RocketMQ waits for a client


class Jobs:
    """What goes on after its handler returned; ended with the broker."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside everything else; it answers its own failures."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """End all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(slots=True)
class BrokerContext:
    """The broker's parts; all of them are used on the loop thread alone."""

    config: BrokerConfig
    clock: Clock
    history: Recorder
    statistics: BrokerStatistics
    store: Store
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    locks: QueueLocks
    held_pulls: HeldPulls
    halves: HalfMessages
    timers: Timers
    producers: ProducerTable
    jobs: Jobs = field(default_factory=Jobs)

    def ask(
        self,
        connection: BrokerConnection,
        question: Command,
        done: Callable[[Command | None], None],
    ) -> None:
        """Ask a client; `done` gets its answer, None if there is none within ten seconds."""

        async def give_up_later() -> None:
            await self.clock.sleep_ms(_ANSWER_TIMEOUT_MS)
            connection.give_up(question.opaque)

        connection.ask(question, done)
        self.jobs.begin(give_up_later())

    def append(
        self, appends: Sequence[Append], done: Done, statements: Sequence[Statement] = ()
    ) -> None:
        """Store messages, and with them the topics that no disk has yet."""
        topics: list[Topic] = []
        if self.topics.has_unsaved:
            topics, more = self.topics.unsaved()
            statements = [*more, *statements]

        def finish(error: StoreError | None) -> None:
            if error is None:
                self.topics.saved(topics)
                for append in appends:
                    self.statistics.messages_stored += len(append.records)
                    if self.history.enabled:
                        self._record_store(append)
            done(error)

        self.store.submit(Write(finish, appends, statements))

    def _record_store(self, append: Append) -> None:
        found = [
            props.decode_bytes(StoredMessage.read(bytes(record)).properties)
            for _, _, record in append.rows()
        ]
        first = append.first_offset
        self.history.record(
            EventType.STORE,
            topic=append.log.topic,
            broker=self.config.broker_name,
            queue=append.log.queue_id,
            offs=list(range(first, first + len(found))),
            keys=[properties.get(props.SHARDING_KEY) for properties in found],
            tags=[properties.get(props.TAGS) for properties in found],
        )

    def when_written(self, connection: BrokerConnection, request: Command) -> Done:
        """What answers a request once its write is durable, or has failed."""

        def finish(error: StoreError | None) -> None:
            if error is not None:
                self.refuse_write(connection, request, error)
                return
            connection.reply(request, ResponseCode.SUCCESS)

        return finish

    def refuse_write(
        self, connection: BrokerConnection, request: Command, error: StoreError
    ) -> None:
        """Answer a request whose write failed; the broker goes on."""
        self.statistics.writes_failed += 1
        connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=str(error))


# A handler answers by `connection.reply`, now or later, or raises: `NotClaimed` with its code,
# ConfigError for an illegal name or number, anything else as a broker error.
Handler = Callable[[BrokerContext, BrokerConnection, Command], None]
