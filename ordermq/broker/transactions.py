"""Transactions: half messages, their commit or rollback, and the checks sent to producers.

A half message waits in a log of its own until its producer ends the transaction. What follows
from the end and the end itself are one write: after a crash the half message still waits, or
the transaction has ended, once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import OrderedDict
from dataclasses import dataclass

from ordermq import core
from ordermq.broker.connection import RequestRefused
from ordermq.broker.groups import ProducerTable
from ordermq.broker.message_routing import MessageRouting
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Append, Done, PendingLog, Statement, Store, Write
from ordermq.broker.topics import TopicTable
from ordermq.clock import Clock, SteadyWall
from ordermq.config import BrokerConfig
from ordermq.errors import StoreError
from ordermq.model import properties as props
from ordermq.model.names import HALF_TOPIC, UNDECIDED_TOPIC
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import RequestCode, ResponseCode, TransactionFlag
from ordermq.remoting.command import ONEWAY_FLAG, Command, encode
from ordermq.remoting.rare_headers import CheckTransactionHeader, EndTransactionHeader

log = logging.getLogger("ordermq.broker")

# The bits of a sys_flag that say half, committed or rolled back.
TRANSACTION_BITS = int(TransactionFlag.COMMIT | TransactionFlag.ROLLBACK)
_ENDED_KEPT = 10_000
_ENDED = {
    "transactions_committed": ": it was committed",
    "transactions_rolled_back": ": it was rolled back, by the answer to a check or before",
    "transactions_discarded": f": it was given up after the last check, now in {UNDECIDED_TOPIC}",
}
_TIME_TO_COME_BACK_MS = 3_600_000  # of producers, after a start of the broker
_CHECKS_AT_ONCE = 64  # half messages looked at before other requests get the loop


@dataclass(slots=True, eq=False)
class HalfMessage:
    """One waiting half message.

    Args:
        message_id: that its producer gave it, the id of the transaction; empty if it has none.
    """

    offset: int
    message_id: str
    producer_group: str
    stored_ms: int
    due_ms: int  # the producer is not asked before
    times_asked: int


class Transactions:
    """The waiting half messages, on the loop thread; memory holds a few words and an id of each."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        producers: ProducerTable,
        routing: MessageRouting,
        config: BrokerConfig,
        clock: Clock,
        steady: SteadyWall,
        statistics: BrokerStatistics,
    ) -> None:
        self._store = store
        self._topics = topics
        self._producers = producers
        self._routing = routing
        self._config = config
        self._clock = clock
        self._steady = steady
        self._started_ms = steady.ms()
        self._statistics = statistics
        self._pending = PendingLog(store, HALF_TOPIC)
        self._waiting: dict[int, HalfMessage] = {}
        self._ending = 0  # of those whose ends are being written
        # The newest ones: the id and the counter of each.
        self._ended: OrderedDict[int, tuple[str, str]] = OrderedDict()
        # Only what checks need is kept; a half message's record is read again when it ends.
        for offset, times_asked in self._pending.load():
            message = StoredMessage.read(self._pending.record(offset))
            self.add(offset, props.decode_bytes(message.properties), times_asked, message.stored_ms)

    def add(
        self,
        offset: int,
        properties: dict[str, str],
        times_asked: int = 0,
        stored_ms: int = sys.maxsize,
    ) -> None:
        """Add a durable half message; without a store time, one that was stored now."""
        timeout_ms = self._config.transaction_timeout_ms
        # The clock may have been ahead when it was stored.
        stored_ms = min(stored_ms, self._steady.ms())
        self._wait(
            HalfMessage(
                offset,
                properties.get(props.UNIQ_KEY, ""),
                properties.get(props.PRODUCER_GROUP, ""),
                stored_ms,
                stored_ms + _immunity_ms(properties.get(props.CHECK_IMMUNITY_S), timeout_ms),
                times_asked,
            )
        )

    def find(self, header: EndTransactionHeader) -> HalfMessage:
        """Return the half message that a request wants to end.

        Raises: RequestRefused: it has ended, belongs to another group, or the two offsets of
            the request disagree.
        """
        half = self._waiting.get(header.half_offset)
        # The place alone does not tell: a broker that lost its last messages, as one whose back-up
        # was restored, has another transaction there.
        if half is None or not _is_named(header, half.message_id):
            ended = _ENDED.get(self._counter_of(header), "")
            reason = f"no such half message waits: the transaction has already ended{ended}"
        elif half.producer_group != header.producer_group:
            reason = f"the half message belongs to producer group {half.producer_group!r}"
        # Both offsets must name one message: a stale request must not end another transaction.
        elif self._pending.log.physical_offset(half.offset) != header.physical_offset:
            reason = "tranStateTableOffset and commitLogOffset name two messages"
        else:
            return half
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"transaction {header.message_id!r} of group {header.producer_group!r}: {reason}",
        )

    def is_ended_so(self, header: EndTransactionHeader) -> bool:
        """Return True if a transaction has ended as a request wants it to."""
        is_commit = header.commit_or_rollback == TransactionFlag.COMMIT
        wanted = "transactions_committed" if is_commit else "transactions_rolled_back"
        return self._counter_of(header) == wanted

    def _counter_of(self, header: EndTransactionHeader) -> str:
        """Return the counter of the transaction of a request that has ended; empty: not known."""
        message_id, counter = self._ended.get(header.half_offset, ("", ""))
        return counter if _is_named(header, message_id) else ""

    def commit(self, half: HalfMessage, done: Done) -> None:
        """Append a half message to its real queue, after everything committed before.

        Raises: RequestRefused: its topic was deleted; it waits on.
        """
        message = StoredMessage.read(self._pending.record(half.offset))
        properties = _without_mark(message)
        topic = properties.pop(props.REAL_TOPIC, "")
        committed = self._routing.restored(
            message,
            topic,
            int(properties.pop(props.REAL_QUEUE_ID, "0")),
            properties=props.encode(properties).encode(),
            sys_flag=message.sys_flag & ~TRANSACTION_BITS | TransactionFlag.COMMIT,
        )
        if committed is None:
            # A yes would say that there is a message. Its producer is asked again, and at last it
            # is where operators find it.
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"transaction {half.message_id!r} of group {half.producer_group!r}: its topic "
                f"{topic!r} was deleted, and this broker does not create topics: create it, and "
                "the next check commits it",
            )
        self._end(half, "transactions_committed", committed, done)

    def roll_back(self, half: HalfMessage, done: Done) -> None:
        """Drop a half message."""
        self._end(half, "transactions_rolled_back", None, done)

    async def check_all(self) -> None:
        """Check the waiting half messages; one that cannot be checked keeps none from it."""
        broken = None
        for number, half in enumerate(list(self._waiting.values())):
            try:
                # It may have ended while the loop below gave way to other requests.
                if self._waiting.get(half.offset) is half:
                    self._check(half)
            except Exception as error:  # noqa: BLE001 - raised below
                broken = error
            if number % _CHECKS_AT_ONCE == _CHECKS_AT_ONCE - 1:
                await asyncio.sleep(0)
        if broken is not None:
            raise broken

    def _check(self, half: HalfMessage) -> None:
        now_ms = self._steady.ms()
        if now_ms < half.due_ms:
            return
        if half.times_asked >= self._config.transaction_check_max:
            self._give_up(half)
            return
        connection = self._producers.next_of(half.producer_group, self._clock.now_ms())
        if connection is None:
            # No check is ever counted.
            if self._is_too_old(half, now_ms):
                self._give_up(half)
                return
            log.warning(
                "cannot check transaction, its group has no live producer: group=%s offset=%d",
                half.producer_group, half.offset,
            )  # fmt: skip
            return
        connection.send(encode(self._check_request(half)))
        self._statistics.transactions_asked += 1
        # Not awaited: a count that is lost in a crash costs one check more than configured.
        self._store.submit(Write(self._count_failed_write, statements=[self._asked(half)]))

    def _is_too_old(self, half: HalfMessage, now_ms: int) -> bool:
        most_ms = self._config.transaction_max_age_ms
        # In this run, too: the clock may have been behind when it was stored, or be ahead now. Or
        # the broker was away for days, and its producers are just coming back.
        since_ms = now_ms - self._started_ms
        return now_ms - half.stored_ms > most_ms and since_ms > min(most_ms, _TIME_TO_COME_BACK_MS)

    def _give_up(self, half: HalfMessage) -> None:
        """Move an undecided message to a topic for operators, as Java's broker does."""
        message = StoredMessage.read(self._pending.record(half.offset))
        properties = _without_mark(message)
        log.error(
            "giving up transaction, moved its message: to=%s transaction=%s group=%s topic=%s "
            "checks=%d",
            UNDECIDED_TOPIC, properties.get(props.UNIQ_KEY), half.producer_group,
            properties.get(props.REAL_TOPIC), half.times_asked,
        )  # fmt: skip
        raw = props.encode(properties).encode()
        self._topics.keep(self._topics.internal(UNDECIDED_TOPIC))
        moved = self._routing.restored(
            message, UNDECIDED_TOPIC, 0, properties=raw, sys_flag=message.sys_flag
        )
        # If the write fails, the half message waits on and is given up again at the next check.
        self._end(half, "transactions_discarded", moved, self._count_failed_write)

    def _count_failed_write(self, error: StoreError | None) -> None:
        if error is not None:
            self._statistics.writes_failed += 1

    def _end(self, half: HalfMessage, counter: str, append: Append | None, done: Done) -> None:
        # Taken out before the write: a second request must not end the same transaction.
        del self._waiting[half.offset]
        self._ending += 1
        removal = self._pending.removal(half.offset)

        def finish(error: StoreError | None) -> None:
            self._ending -= 1
            if error is None:
                self._pending.removed(removal)
                setattr(self._statistics, counter, getattr(self._statistics, counter) + 1)
                self._ended[half.offset] = half.message_id, counter
                if len(self._ended) > _ENDED_KEPT:
                    self._ended.popitem(last=False)
            else:
                self._waiting[half.offset] = half
            # Last: whoever sees that none waits any more sees what became of them, too.
            self._count_waiting()
            done(error)

        self._routing.append([] if append is None else [append], finish, removal.statements)

    def _wait(self, half: HalfMessage) -> None:
        self._waiting[half.offset] = half
        self._count_waiting()

    def _count_waiting(self) -> None:
        self._statistics.half_messages = len(self._waiting) + self._ending

    def _asked(self, half: HalfMessage) -> Statement:
        half.times_asked += 1
        # The number of checks is the row's number in the pending log, so it survives a restart.
        return self._pending.renumber(half.offset, half.times_asked)

    def _check_request(self, half: HalfMessage) -> Command:
        """Return CHECK_TRANSACTION_STATE with the record as the producer knows it."""
        message = StoredMessage.read(self._pending.record(half.offset))
        properties = props.decode_bytes(message.properties)
        # Written again with its real topic and queue: the stored record names the half topic.
        writer = core.RecordWriter(
            properties.get(props.REAL_TOPIC, ""),
            int(properties.get(props.REAL_QUEUE_ID, "0")),
            message.born_host,
            message.store_host,
        )
        block = writer.write(
            message.body,
            message.properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            stored_ms=message.stored_ms,
            reconsume_times=message.reconsume_times,
        )
        ((_, _, record),) = block.rows(half.offset, message.physical_offset)
        message_id = f"{message.store_host.hex().upper()}{message.physical_offset:016X}"
        transaction_id = properties.get(props.UNIQ_KEY)
        header = CheckTransactionHeader(
            half.offset,
            message.physical_offset,
            transaction_id,
            transaction_id,
            message_id,
            HALF_TOPIC,
            self._config.broker_name,
        )
        request = Command.request(
            RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), bytes(record)
        )
        # One-way: the producer answers with END_TRANSACTION, as its application decides.
        request.flag = ONEWAY_FLAG
        return request


def _is_named(header: EndTransactionHeader, message_id: str) -> bool:
    """Return False if a request is about another transaction than the one of a message id."""
    # Clients send the id as one of the two, some with an id of the broker's as the other.
    named = [each for each in (header.message_id, header.transaction_id) if each]
    return not message_id or not named or message_id in named


def _without_mark(message: StoredMessage) -> dict[str, str]:
    properties = props.decode_bytes(message.properties)
    properties.pop(props.TRANSACTION_PREPARED, None)
    return properties


def _immunity_ms(text: str | None, timeout_ms: int) -> int:
    """Return how long a producer must not be asked; malformed or -1: the broker's timeout."""
    try:
        seconds = int(text) if text else -1
    except ValueError:
        seconds = -1
    return timeout_ms if seconds < 0 else seconds * 1_000
