"""Offset stores: a group's offsets in a place of the user's choice instead of the brokers
(docs/exactly-once.md)."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeGuard, cast, runtime_checkable

from ordermq.callables import is_async, require_methods, require_plain
from ordermq.errors import own_text
from ordermq.model.message_queue import MessageQueue


class OffsetStore(Protocol):
    """Keeps the next offset and the epoch of each queue of a group; `offset_store=` of a consumer.

    Plain functions, called on threads of their own, of several queues at the same time. One store
    may serve many consumers; nothing here closes it.

    An owner of a queue has an epoch, which is greater than those of all owners before
    (docs/internals/semantics.md#fencing). Whatever a store writes, it writes on condition that no
    greater epoch has taken the queue over.

    Raises: StoreError: it cannot be reached or written now; the same is tried again later.
        StaleOwner: a newer owner took the queue over; nothing was written.
    """

    def open(self) -> None:
        """Get ready, at the start of each consumer; may create tables."""

    def take_over(self, group: str, queue: MessageQueue, epoch: int, /) -> int | None:
        """Make `epoch` the owner, durably, and return the next offset; None if it has none."""

    def read(self, group: str, queue: MessageQueue, /) -> int | None:
        """Return the next offset of any queue; None if it has none."""

    def write(
        self,
        group: str,
        queue: MessageQueue,
        next_offset: int,
        epoch: int,
        /,
        *,
        is_reset: bool = False,
    ) -> None:
        """Store the next offset of the owner `epoch`, durably.

        Args:
            is_reset: move it even backwards. Otherwise a smaller one than the stored changes
                nothing.
        """


class Transaction(Protocol):
    """A transaction of the user's database around one listener call."""

    @property
    def connection(self) -> Any:
        """The value of `context.transaction()` for the listener."""

    def commit(self, next_offset: int, /) -> None:
        """Commit the listener's changes and the queue's next offset, both or neither.

        Raises: as `OffsetStore`; the database's own errors. Nothing was committed, except where
            the connection broke: then the next owner finds out from the stored offset.
        """

    def roll_back(self) -> None:
        """Undo the listener's changes; a second call, and one after `commit`, does nothing."""


@runtime_checkable
class TransactionalStore(OffsetStore, Protocol):
    """An offset store in the user's database: listeners write in transactions that move the offset,
    so each message takes effect exactly once."""

    def begin(
        self, group: str, queue: MessageQueue, epoch: int, first_offset: int, /
    ) -> Transaction:
        """Begin a transaction, on the listener's thread.

        Args:
            first_offset: of the messages in the listener's hands. If the stored next offset is
                greater, they had their effects already.
        Raises: as `OffsetStore`; StaleOwner also if the stored offset is ahead.
        """

    def is_outage(self, error: BaseException, /) -> bool:
        """Return whether a listener's error is the database's and no fault of the messages."""


class StoreClaim(NamedTuple):
    """Ownership of one popped batch, as an offset store grants it.

    Args:
        epoch: the owner's, greater than those of all owners before.
        next_offset: of the queue; None if it has none.
    """

    epoch: int
    next_offset: int | None


class ClaimingStore(TransactionalStore, Protocol):
    """A store that gives out the epochs itself, as members need that pop: their brokers have none
    (docs/internals/semantics.md#effects-of-popped-batches)."""

    def claim(self, group: str, queue: MessageQueue, /) -> StoreClaim:
        """Make the caller the newest owner of a queue, durably; earlier ones are refused from then
        on."""


class AsyncTransaction(Protocol):
    """As `Transaction`, to be awaited."""

    @property
    def connection(self) -> Any:
        """The value of `await context.transaction()` for the listener."""

    async def commit(self, next_offset: int, /) -> None:
        """As `Transaction.commit`."""

    async def roll_back(self) -> None:
        """As `Transaction.roll_back`."""


class AsyncTransactionalStore(Protocol):
    """As `TransactionalStore`, for `async def` listeners of an `AsyncConsumer`: its coroutines run
    on the loop that started the consumer."""

    async def open(self) -> None:
        """As `OffsetStore.open`."""

    async def take_over(self, group: str, queue: MessageQueue, epoch: int, /) -> int | None:
        """As `OffsetStore.take_over`."""

    async def read(self, group: str, queue: MessageQueue, /) -> int | None:
        """As `OffsetStore.read`."""

    async def write(
        self,
        group: str,
        queue: MessageQueue,
        next_offset: int,
        epoch: int,
        /,
        *,
        is_reset: bool = False,
    ) -> None:
        """As `OffsetStore.write`."""

    async def begin(
        self, group: str, queue: MessageQueue, epoch: int, first_offset: int
    ) -> AsyncTransaction:
        """As `TransactionalStore.begin`, in the listener's task."""

    def is_outage(self, error: BaseException, /) -> bool:
        """As `TransactionalStore.is_outage`."""


class AsyncClaimingStore(AsyncTransactionalStore, Protocol):
    """As `ClaimingStore`."""

    async def claim(self, group: str, queue: MessageQueue, /) -> StoreClaim:
        """As `ClaimingStore.claim`."""


AnyOffsetStore = OffsetStore | AsyncTransactionalStore
_EXPECTED = "an offset store, as ordermq.sql.SqlOffsetStore(...); without one the brokers keep them"
_FUNCTIONS = "open", "take_over", "read", "write"


def first_line(error: BaseException) -> str:
    """Return what a database's error says, without the statement and its parameters.

    SQLAlchemy's errors go on with those, which may be a message's content: no log has that.
    """
    return own_text(error).partition("\n")[0]


def is_async_store(store: object) -> TypeGuard[AsyncTransactionalStore]:
    """Return whether a store is to be awaited, as those of asyncio's applications are."""
    return isinstance(store, TransactionalStore) and all(map(is_async, _functions_of(store)))


def require_plain_store(store: object) -> None:
    """Check that it is an offset store, whose functions are plain ones.

    Raises: ConfigError: it is none, or one is asynchronous.
    """
    require_methods("offset_store", store, *_FUNCTIONS, expected=_EXPECTED)
    require_plain("offset_store", *_functions_of(cast("OffsetStore", store)))


def may_claim(store: object) -> TypeGuard[ClaimingStore | AsyncClaimingStore]:
    """Return whether members that pop may use a store."""
    return isinstance(store, TransactionalStore) and hasattr(store, "claim")


def _functions_of(store: OffsetStore) -> list[object]:
    begin = [store.begin] if isinstance(store, TransactionalStore) else []
    claim = [store.claim] if may_claim(store) else []
    return [store.open, store.take_over, store.read, store.write, *begin, *claim]
