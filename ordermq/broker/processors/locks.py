"""Queue locks on the wire, with epochs for who asks
(docs/internals/protocol.md#queue-lock-requests)."""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.errors import StoreError
from ordermq.model.names import check_group
from ordermq.remoting.bodies import LockBatch, held_locks_to_body, locked_queues_to_body
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import LockExtHeader


def lock(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    batch = LockBatch.from_body(request.body)
    check_group(batch.group)
    wants_epochs = LockExtHeader.from_ext(request.ext).epochs is not None

    def granted(epochs: Sequence[int], error: StoreError | None) -> None:
        if error is not None:
            context.refuse_write(connection, request, error)
            return
        held = [(queue, e) for queue, e in zip(batch.queues, epochs, strict=True) if e]
        ext = {}
        if wants_epochs:
            ext = LockExtHeader(
                ",".join(str(epoch) for _, epoch in held),
                context.locks.lease_ms,
                context.store.broker_id,
            ).to_ext()
        body = locked_queues_to_body(queue for queue, _ in held)
        connection.reply(request, ResponseCode.SUCCESS, ext, body)

    context.locks.lock(batch.group, batch.queues, batch.client_id, connection, granted)


def unlock(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    batch = LockBatch.from_body(request.body)
    epochs = LockExtHeader.from_ext(request.ext).epoch_list()
    if epochs and len(epochs) != len(batch.queues):
        raise NotClaimed(
            ResponseCode.INVALID_PARAMETER,
            f"{len(epochs)} epochs for {len(batch.queues)} queues: expected one for each",
        )
    context.locks.unlock(batch.group, batch.queues, batch.client_id, epochs)
    connection.reply(request, ResponseCode.SUCCESS)


def query(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Who holds each of these queues; ours, for `ordermq locks`."""
    batch = LockBatch.from_body(request.body)
    held = [context.locks.held(batch.group, queue) for queue in batch.queues]
    connection.reply(request, ResponseCode.SUCCESS, body=held_locks_to_body(held))


HANDLERS: dict[int, Handler] = {
    RequestCode.LOCK_BATCH_MQ: lock,
    RequestCode.UNLOCK_BATCH_MQ: unlock,
    RequestCode.OMQ_QUERY_LOCKS: query,
}
