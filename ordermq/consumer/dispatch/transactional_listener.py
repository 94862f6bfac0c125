"""Transactional listeners: each call in a transaction that moves the queue's offset
(docs/exactly-once.md).

The transaction begins where the listener asks for it, and ends before the call counts as done. So
a database that fails makes a failed call, which is delivered again as any other; and a call whose
transaction was committed, but whose outcome was not learned, is found out at its next delivery: the
stored offset is ahead of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ordermq.consumer.listener import (
    TRANSACTIONAL,
    ConsumeContext,
    ListenerResults,
    judge,
)
from ordermq.consumer.offsets.offset_store import Transaction, TransactionalStore
from ordermq.errors import ConfigError, Fenced, StoreError
from ordermq.model.message import MessageView
from ordermq.model.status import ConsumeResult

PlainListener = Callable[[Sequence[MessageView], ConsumeContext], object]
_NO_COROUTINES = (
    "an offset store with transactions calls plain functions only: its database calls would block "
    "the event loop; leave the listener's `async` out, or give no offset_store"
)


def transactional(
    listener: Any, store: TransactionalStore, group: str, *, is_strict: bool
) -> PlainListener:
    """Return the listener with a transaction around each call.

    Args:
        group: as the store knows it.
        is_strict: None counts as SUSPEND, as in Java.
    Raises: ConfigError: an `async def` listener.
    """
    if inspect.iscoroutinefunction(listener):
        raise ConfigError(_NO_COROUTINES, group=group)
    results = replace(TRANSACTIONAL, is_strict=is_strict)

    def call(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        scope = _Scope(store, group, context)
        context.offer_transaction(scope.connection)
        try:
            result = listener(messages, context)
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()  # else Python warns that it was never awaited
                raise ConfigError(_NO_COROUTINES, group=group)
            return scope.end(result, messages, results)
        except Fenced as error:
            scope.roll_back()
            # Another member may own the queue, or the database is ahead of what is buffered here.
            # Either way only a new grant tells where to go on.
            context.give_up(str(error))
            raise
        except BaseException as error:
            scope.roll_back()
            if isinstance(error, Exception) and store.is_outage(error):
                raise StoreError(f"the database of the offsets failed: {error}") from error
            raise

    return call


class _Scope:
    """The transaction of one call, if its listener asks for one."""

    __slots__ = ("_context", "_error", "_group", "_store", "_transaction")

    def __init__(self, store: TransactionalStore, group: str, context: ConsumeContext) -> None:
        self._store = store
        self._group = group
        self._context = context
        self._transaction: Transaction | None = None
        self._error: Exception | None = None

    def connection(self) -> Any:
        """Return the connection of the transaction; begins it at the first call."""
        if self._transaction is None:
            epoch, first_offset = self._context.fence_token
            queue = self._context.message_queue
            try:
                self._transaction = self._store.begin(self._group, queue, epoch, first_offset)
            except Exception as error:
                self._error = error
                raise
        return self._transaction.connection

    def end(
        self, result: object, messages: Sequence[MessageView], results: ListenerResults
    ) -> object:
        """Commit what the result says is done, and return the result for the dispatcher."""
        if self._error is not None:
            # The listener has caught it and went on: what it did is not in the database.
            raise self._error
        if result is ConsumeResult.ROLLBACK:
            result = ConsumeResult.SUSPEND  # the dispatcher would commit it, as Java does
        if (transaction := self._transaction) is None:
            return result  # nothing was written; the offset follows with the next commit
        try:
            verdict = judge(result, len(messages), results)
        except ConfigError:
            self.roll_back()
            return result  # the dispatcher says the same again, in its place
        if not verdict.done:
            self.roll_back()
        elif verdict.done < len(messages):
            transaction.commit(messages[verdict.done].queue_offset)
        else:
            # Of the whole batch: a filter may have kept messages behind the last one away.
            transaction.commit(self._context.messages.last_offset + 1)
        return result

    def roll_back(self) -> None:
        if self._transaction is not None:
            self._transaction.roll_back()
