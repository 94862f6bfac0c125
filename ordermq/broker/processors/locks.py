"""Handlers of queue locks, with epochs for clients that ask for them
(docs/internals/protocol.md#queue-lock-requests)."""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.context import BrokerContext, Handler
from ordermq.errors import StoreError
from ordermq.model.names import check_group
from ordermq.remoting.admin_bodies import held_locks_to_body
from ordermq.remoting.bodies import LockBatch, locked_queues_to_body
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import LockExtHeader


def lock(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    batch = LockBatch.from_body(request.body)
    check_group(batch.group)
    # Java's clients do not send the field, and get exactly the reply of Java's broker.
    wants_epochs = LockExtHeader.from_ext(request.ext).epochs is not None

    def granted(epochs: Sequence[int], error: StoreError | None) -> None:
        if error is not None:
            context.reply_write_failed(connection, request, error)
            return
        # As in Java: the reply lists the queues that are locked now, refused ones are missing.
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
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"{len(epochs)} epochs for {len(batch.queues)} queues: expected one per queue",
        )
    done = context.when_durable(connection, request)
    context.locks.unlock(batch.group, batch.queues, batch.client_id, epochs, done)


def query(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Reply with each queue's holder; ordermq's own request, used by `ordermq locks`."""
    batch = LockBatch.from_body(request.body)
    held = [context.locks.held(batch.group, queue) for queue in batch.queues]
    connection.reply(request, ResponseCode.SUCCESS, body=held_locks_to_body(held))


HANDLERS: dict[int, Handler] = {
    RequestCode.LOCK_BATCH_MQ: lock,
    RequestCode.UNLOCK_BATCH_MQ: unlock,
    RequestCode.OMQ_QUERY_LOCKS: query,
}
