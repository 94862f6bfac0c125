"""Transactional listeners: each call in a transaction that moves the queue's offset
(docs/exactly-once.md).

The transaction begins where the listener asks for it, and ends before the call counts as done. So
a database that fails makes a failed call, which is delivered again as any other; and a call whose
transaction was committed, but whose outcome was not learned, is found out at its next delivery: the
stored offset is ahead of it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from ordermq.callables import is_async
from ordermq.client.runtime import shielded
from ordermq.consumer.listener import (
    TRANSACTIONAL,
    ConsumeContext,
    ListenerResults,
    judge,
)
from ordermq.consumer.offsets.offset_store import (
    AsyncTransaction,
    AsyncTransactionalStore,
    Transaction,
    TransactionalStore,
    first_line,
)
from ordermq.errors import ConfigError, Fenced, StoreError
from ordermq.model.message import MessageView
from ordermq.model.status import ConsumeResult

PlainListener = Callable[[Sequence[MessageView], ConsumeContext], object]
AsyncListener = Callable[[Sequence[MessageView], ConsumeContext], Awaitable[object]]
_NO_COROUTINES = (
    "an offset store with transactions calls plain functions only: its database calls would block "
    "the event loop; take AsyncSqlOffsetStore for `async def` listeners of an AsyncConsumer, or "
    "leave the listener's `async` out"
)
_NO_PLAIN_LISTENERS = (
    "an offset store of asyncio is for `async def` listeners, which await its transactions; write "
    "the listener so, or take SqlOffsetStore"
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
            _raise_outage(error, store)
            raise

    return call


def async_transactional(
    listener: Any, store: AsyncTransactionalStore, group: str, *, is_strict: bool
) -> AsyncListener:
    """Return the `async def` listener with a transaction around each call, as `transactional`.

    Raises: ConfigError: a plain listener.
    """
    if not is_async(listener):
        raise ConfigError(_NO_PLAIN_LISTENERS, group=group)
    results = replace(TRANSACTIONAL, is_strict=is_strict)

    async def call(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        scope = _AsyncScope(store, group, context)
        context.offer_transaction(scope.connection)
        try:
            return await scope.end(await listener(messages, context), messages, results)
        except Fenced as error:
            await scope.roll_back()
            context.give_up(str(error))
            raise
        except BaseException as error:
            await scope.roll_back()
            _raise_outage(error, store)
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
        result = _told(result, self._error)
        if (transaction := self._transaction) is None:
            return result  # nothing was written; the offset follows with the next commit
        next_offset = _next_offset(result, messages, self._context, results)
        if next_offset is None:
            self.roll_back()
        else:
            transaction.commit(next_offset)
        return result

    def roll_back(self) -> None:
        if self._transaction is not None:
            self._transaction.roll_back()


class _AsyncScope:
    """The same of an `async def` listener."""

    def __init__(self, store: AsyncTransactionalStore, group: str, context: ConsumeContext) -> None:
        self._store = store
        self._group = group
        self._context = context
        self._transaction: AsyncTransaction | None = None
        self._error: Exception | None = None
        self._beginning = asyncio.Lock()  # a listener may ask from several tasks

    async def connection(self) -> Any:
        """Return the connection of the transaction; begins it at the first call."""
        async with self._beginning:
            if self._transaction is None:
                epoch, first_offset = self._context.fence_token
                queue = self._context.message_queue
                try:
                    self._transaction = await self._store.begin(
                        self._group, queue, epoch, first_offset
                    )
                except Exception as error:
                    self._error = error
                    raise
            return self._transaction.connection

    async def end(
        self, result: object, messages: Sequence[MessageView], results: ListenerResults
    ) -> object:
        result = _told(result, self._error)
        if (transaction := self._transaction) is None:
            return result
        next_offset = _next_offset(result, messages, self._context, results)
        if next_offset is None:
            await self.roll_back()
        else:
            # To its end: of one that is cut short nobody knows whether it happened.
            await shielded(transaction.commit(next_offset))
        return result

    async def roll_back(self) -> None:
        if self._transaction is not None:
            # To its end: a connection that is not given back is lost to the pool.
            await shielded(self._transaction.roll_back())


def _raise_outage(
    error: BaseException, store: TransactionalStore | AsyncTransactionalStore
) -> None:
    """Raise StoreError for an error of a call that is its database's."""
    if isinstance(error, StoreError):
        return  # it says so itself
    if isinstance(error, Exception) and store.is_outage(error):
        raise StoreError(f"the database of the offsets failed: {first_line(error)}") from error


def _told(result: object, error: Exception | None) -> object:
    """Return the result of a listener for the dispatcher.

    Raises: `error`, that of `begin`: the listener has caught it and went on, and what it did is not
        in the database.
    """
    if error is not None:
        raise error
    # The dispatcher would commit it, as Java does.
    return ConsumeResult.SUSPEND if result is ConsumeResult.ROLLBACK else result


def _next_offset(
    result: object,
    messages: Sequence[MessageView],
    context: ConsumeContext,
    results: ListenerResults,
) -> int | None:
    """Return the offset to commit for a result; None: roll back."""
    try:
        verdict = judge(result, len(messages), results)
    except ConfigError:
        return None  # the dispatcher says the same again, in its place
    if not verdict.done:
        return None
    if verdict.done < len(messages):
        return messages[verdict.done].queue_offset
    # The end of the whole batch: a filter may have kept messages behind the last one away.
    return context.messages.last_offset + 1
