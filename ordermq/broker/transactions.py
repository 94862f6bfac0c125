"""How transactions end: by their producers' word, asked for if it does not come by itself.

What follows from the end and the end itself are one write: after a crash a half message still
waits, or is committed or dropped, once.
"""

from __future__ import annotations

import asyncio
import logging

from ordermq import core
from ordermq.broker.context import BrokerContext
from ordermq.broker.group_commit import Append, Done, Write
from ordermq.broker.half_messages import Half
from ordermq.broker.placing import restored
from ordermq.errors import StoreError
from ordermq.model import properties as props
from ordermq.model.names import HALF_TOPIC, UNDECIDED_TOPIC
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import RequestCode, TransactionFlag
from ordermq.remoting.command import ONEWAY_FLAG, Command
from ordermq.remoting.framing import encode
from ordermq.remoting.headers import CheckTransactionHeader

log = logging.getLogger("ordermq.broker")

KIND_BITS = int(TransactionFlag.COMMIT | TransactionFlag.ROLLBACK)
_AT_ONCE = 64  # questions between two turns of everything else


def commit(context: BrokerContext, half: Half, done: Done) -> None:
    """Store a half message in its real queue, behind what was committed before."""
    message = StoredMessage.read(context.halves.record(half))
    properties = _unmarked(message)
    again = restored(
        context,
        message,
        properties.pop(props.REAL_TOPIC, ""),
        int(properties.pop(props.REAL_QUEUE_ID, "0")),
        properties=props.encode(properties).encode(),
        sys_flag=message.sys_flag & ~KIND_BITS | TransactionFlag.COMMIT,
    )
    _leave(context, half, "transactions_committed", again, done)


def roll_back(context: BrokerContext, half: Half, done: Done) -> None:
    """Drop a half message."""
    _leave(context, half, "transactions_rolled_back", None, done)


def _give_up(context: BrokerContext, half: Half) -> None:
    """Nobody knows how it ended: put it where an operator finds it, as Java does."""
    message = StoredMessage.read(context.halves.record(half))
    properties = _unmarked(message)
    log.error(
        "transaction given up, its message is in %s now: transaction=%s group=%s topic=%s asked=%d",
        UNDECIDED_TOPIC, properties.get(props.UNIQ_KEY), half.group,
        properties.get(props.REAL_TOPIC), half.times_asked,
    )  # fmt: skip
    raw = props.encode(properties).encode()
    context.topics.ensure_internal(UNDECIDED_TOPIC)
    again = restored(
        context, message, UNDECIDED_TOPIC, 0, properties=raw, sys_flag=message.sys_flag
    )

    def finish(error: StoreError | None) -> None:
        # After an error it waits on and is given up again at the next look.
        if error is not None:
            context.statistics.writes_failed += 1

    _leave(context, half, "transactions_discarded", again, finish)


def _unmarked(message: StoredMessage) -> dict[str, str]:
    properties = props.decode_bytes(message.properties)
    properties.pop(props.TRANSACTION_PREPARED, None)
    return properties


def _leave(
    context: BrokerContext, half: Half, counter: str, again: Append | None, done: Done
) -> None:
    removal = context.halves.take(half)

    def finish(error: StoreError | None) -> None:
        if error is None:
            context.halves.left(removal)
            setattr(context.statistics, counter, getattr(context.statistics, counter) + 1)
        else:
            context.halves.put_back(half)
        done(error)

    context.append([] if again is None else [again], finish, removal.statements)


class TransactionChecks:
    """Asks producers how their transactions stand, on the loop thread."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Look at the waiting halves again and again, until cancelled."""
        context = self._context
        while True:
            await context.clock.sleep_ms(context.config.transaction_check_interval_ms)
            for number, half in enumerate(context.halves.all()):
                # It may have ended since the look began.
                if context.halves.get(half.offset) is half:
                    self._look_at(half)
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)

    def _look_at(self, half: Half) -> None:
        context, now_ms = self._context, self._context.clock.wall_ms()
        if now_ms < half.due_ms:
            return
        is_too_old = now_ms - half.stored_ms > context.config.transaction_max_age_ms
        if is_too_old or half.times_asked >= context.config.transaction_check_max:
            _give_up(context, half)
            return
        connection = context.producers.next_of(half.group, context.clock.now_ms())
        if connection is None:
            log.warning(
                "no live producer to ask how a transaction stands: group=%s offset=%d",
                half.group, half.offset,
            )  # fmt: skip
            return
        connection.send(encode(_question(context, half)))
        context.statistics.transactions_asked += 1
        # A count lost with a crash asks once more than it should.
        context.store.submit(Write(self._noted, statements=[context.halves.asked(half)]))

    def _noted(self, error: StoreError | None) -> None:
        if error is not None:
            self._context.statistics.writes_failed += 1


def _question(context: BrokerContext, half: Half) -> Command:
    """The record goes with its real topic and queue, as producers know them."""
    message = StoredMessage.read(context.halves.record(half))
    properties = props.decode_bytes(message.properties)
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
    place = f"{message.store_host.hex().upper()}{message.physical_offset:016X}"
    transaction_id = properties.get(props.UNIQ_KEY)
    header = CheckTransactionHeader(
        half.offset,
        message.physical_offset,
        transaction_id,
        transaction_id,
        place,
        HALF_TOPIC,
        context.config.broker_name,
    )
    question = Command.request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), bytes(record))
    question.flag = ONEWAY_FLAG
    return question
