"""Handlers of queue locks, with epochs for clients that ask for them
(docs/internals/protocol.md#queue-lock-requests)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.context import BrokerContext, Handler
from ordermq.errors import StoreError
from ordermq.model.names import check_group
from ordermq.remoting.admin_bodies import held_locks_to_body
from ordermq.remoting.bodies import LockBatch, locked_queues_to_body
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import LockExtHeader

_TWIN_TIMEOUT_MS = 1_000  # a live client answers within milliseconds


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

    def lock_now() -> None:
        try:
            context.locks.lock(batch.group, batch.queues, batch.client_id, connection, granted)
        except StoreError as error:  # the broker is closing; no handler may call this any more
            granted((), error)

    group = context.groups.get(batch.group)
    earlier = None if group is None else group.earlier_of(connection, batch.client_id)
    if earlier is None:
        lock_now()
    else:
        _lock_if_alone(context, connection, request, batch, earlier, lock_now)


def _lock_if_alone(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    batch: LockBatch,
    earlier: BrokerConnection,
    lock_now: Callable[[], None],
) -> None:
    """Lock for a client that reconnected; refuse a second one that has the id of a live one.

    The locks are their id's: two clients with one id would both hold them, under equal epochs.
    """

    def answered(response: Command | None) -> None:
        if response is None:
            # Nobody is there any more: the connection was cut without the broker being told.
            earlier.close()
            lock_now()
            return
        context.locks.refuse_twin(
            batch.group, len(batch.queues), batch.client_id, connection, earlier
        )
        connection.reply(
            request,
            ResponseCode.SYSTEM_ERROR,
            remark=f"client id {batch.client_id!r} of group {batch.group!r} is in use by another "
            f"live client, at {earlier.peer}: give each client an id of its own, in Java by its "
            "instanceName; or stop the other one",
        )

    # Every kind of consumer answers this, with whatever code.
    ext = {"consumerGroup": batch.group, "clientId": batch.client_id, "jstackEnable": "false"}
    question = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    context.ask(earlier, question, answered, _TWIN_TIMEOUT_MS)


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
