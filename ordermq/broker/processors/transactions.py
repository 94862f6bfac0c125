"""How transactions end, as their producers tell it (docs/internals/protocol.md#sending)."""

from __future__ import annotations

import logging

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.half_messages import Half
from ordermq.broker.transactions import commit, roll_back
from ordermq.remoting.codes import RequestCode, ResponseCode, TransactionFlag
from ordermq.remoting.command import Command
from ordermq.remoting.headers import EndTransactionHeader

log = logging.getLogger("ordermq.broker")


def end(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = EndTransactionHeader.from_ext(request.ext)
    if header.commit_or_rollback not in (TransactionFlag.COMMIT, TransactionFlag.ROLLBACK):
        log.info(
            "transaction still open: group=%s id=%s client=%s remark=%s",
            header.producer_group, header.message_id, connection.peer, request.remark,
        )  # fmt: skip
        connection.reply(request, ResponseCode.SUCCESS)
        return
    try:
        half = _half(context, header)
    except NotClaimed as refusal:
        # Clients ask for no answer; the word must not vanish.
        log.warning("client=%s: %s", connection.peer, refusal.remark)
        raise
    done = context.when_written(connection, request)
    if header.commit_or_rollback == TransactionFlag.COMMIT:
        commit(context, half, done)
    else:
        roll_back(context, half, done)


def _half(context: BrokerContext, header: EndTransactionHeader) -> Half:
    """The half message that is meant.

    Raises: NotClaimed: it ended before, or is another group's, or the two offsets disagree.
    """
    half = context.halves.get(header.half_offset)
    if half is None:
        reason = "no such half message waits: it ended before"
    elif half.group != header.producer_group:
        reason = f"the half message is of producer group {half.group!r}"
    elif context.halves.log.physical_offset(half.offset) != header.physical_offset:
        reason = "tranStateTableOffset and commitLogOffset name two messages"
    else:
        return half
    raise NotClaimed(
        ResponseCode.SYSTEM_ERROR,
        f"transaction {header.message_id!r} of group {header.producer_group!r}: {reason}",
    )


HANDLERS: dict[int, Handler] = {RequestCode.END_TRANSACTION: end}
