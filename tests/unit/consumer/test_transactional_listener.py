"""A transaction around a listener call: when it begins, and what ends it how."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ordermq.consumer.dispatch.transactional_listener import async_transactional, transactional
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.offsets.offset_store import AsyncTransactionalStore, TransactionalStore
from ordermq.errors import ConfigError, StaleOwner, StateError, StoreError
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageRun
from ordermq.model.status import ConsumeResult

from .batches import QUEUE, batch


class Outage(Exception):
    """The database's own error."""


class FakeStore:
    """Notes what it is told; `begin_error` and `commit_error` are raised."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.begin_error: Exception | None = None
        self.commit_error: Exception | None = None
        self.connection = "the connection"

    def begin(self, group: str, queue: Any, epoch: int, first_offset: int) -> FakeStore:
        if self.begin_error is not None:
            raise self.begin_error
        self.told.append(("begin", group, queue, epoch, first_offset))
        return self

    def commit(self, next_offset: int) -> None:
        if self.commit_error is not None:
            raise self.commit_error
        self.told.append(("commit", next_offset))

    def roll_back(self) -> None:
        self.told.append("roll back")

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, Outage)


BEGUN = ("begin", "ns%g", QUEUE, 7, 10)


class Call:
    """One call of a listener with messages 10, 12 and 13 of a queue held in epoch 7."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.given_up: list[tuple[str, int]] = []
        one = batch([10, 12, 13])
        self.run = MessageRun([(one, 0, 3)])
        assigned = SimpleNamespace(
            queue=QUEUE,
            source=QUEUE,
            auto_commit=True,
            set_auto_commit=lambda is_on: None,
            lose_lease=lambda reason, generation: self.given_up.append((reason, generation)),
        )
        claim = SimpleNamespace(lease=Lease(7, 2_000_000, True), generation=3)
        self.context = ConsumeContext(cast(Any, assigned), cast(Any, claim), self.run, 0)

    def __call__(self, listener: Any, messages: Any = None, *, is_strict: bool = False) -> object:
        store = cast(TransactionalStore, self.store)
        wrapped = transactional(listener, store, "ns%g", is_strict=is_strict)
        return wrapped(self.run if messages is None else messages, self.context)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def call(store: FakeStore) -> Call:
    return Call(store)


@pytest.mark.parametrize("result", [None, ConsumeResult.SUCCESS, ConsumeResult.COMMIT, 3])
def test_success_commits_the_whole_batch(call: Call, store: FakeStore, result: Any) -> None:
    def listener(messages: Any, context: ConsumeContext) -> Any:
        assert context.transaction() == "the connection"
        assert context.transaction() == "the connection"
        return result

    assert call(listener) is result
    assert store.told == [BEGUN, ("commit", 14)]


@pytest.mark.parametrize(
    ("result", "told_on"),
    [
        (ConsumeResult.SUSPEND, ConsumeResult.SUSPEND),
        (ConsumeResult.ROLLBACK, ConsumeResult.SUSPEND),  # the dispatcher commits a ROLLBACK
        (0, 0),
        ("done", "done"),  # no result at all: the dispatcher says so
    ],
)
def test_everything_else_rolls_back(
    call: Call, store: FakeStore, result: Any, told_on: Any
) -> None:
    def listener(messages: Any, context: ConsumeContext) -> Any:
        context.transaction()
        return result

    assert call(listener) == told_on
    assert store.told == [BEGUN, "roll back"]


def test_an_outage_is_told_without_the_statement_and_its_parameters(
    call: Call, store: FakeStore
) -> None:
    store.commit_error = Outage("disk is full\n[SQL: INSERT]\n[parameters: (b'a body',)]")
    with pytest.raises(StoreError) as failed:
        call(lambda messages, context: context.transaction() and None)
    assert str(failed.value) == "the database of the offsets failed: disk is full"
    store.begin_error = StoreError("offsets in a_table: gone")
    with pytest.raises(StoreError) as failed:
        call(lambda messages, context: context.transaction() and None)
    assert failed.value is store.begin_error


def test_none_rolls_back_with_strict_results(call: Call, store: FakeStore) -> None:
    call(lambda messages, context: context.transaction() and None, is_strict=True)
    assert store.told == [BEGUN, "roll back"]


def test_a_partial_result_commits_up_to_the_first_message_that_is_not_done(
    call: Call, store: FakeStore
) -> None:
    assert call(lambda messages, context: (context.transaction(), 1)[1]) == 1
    assert store.told == [BEGUN, ("commit", 12)]


def test_filtered_messages_are_done_with_the_kept_ones(call: Call, store: FakeStore) -> None:
    kept = [call.run[0]]
    call(lambda messages, context: context.transaction() and None, kept)
    assert store.told == [BEGUN, ("commit", 14)]


def test_a_listener_that_asks_for_no_transaction_has_none(call: Call, store: FakeStore) -> None:
    assert call(lambda messages, context: None) is None
    assert call(lambda messages, context: ConsumeResult.ROLLBACK) is ConsumeResult.SUSPEND
    assert store.told == []


def test_an_exception_rolls_back_and_is_the_listeners_own(call: Call, store: FakeStore) -> None:
    def listener(messages: Any, context: ConsumeContext) -> None:
        context.transaction()
        raise ValueError("poison")

    with pytest.raises(ValueError, match="poison"):
        call(listener)
    assert store.told == [BEGUN, "roll back"]
    assert call.given_up == []


def test_an_error_of_the_database_is_a_store_error(call: Call, store: FakeStore) -> None:
    store.commit_error = Outage("server closed the connection")
    with pytest.raises(StoreError, match="database of the offsets failed: server closed"):
        call(lambda messages, context: context.transaction() and None)
    assert store.told == [BEGUN, "roll back"]


@pytest.mark.parametrize("where", ["begin_error", "commit_error"])
def test_a_stale_owner_gives_the_queue_up(call: Call, store: FakeStore, where: str) -> None:
    setattr(store, where, StaleOwner("a newer owner"))
    with pytest.raises(StaleOwner):
        call(lambda messages, context: context.transaction() and None)
    assert call.given_up == [("a newer owner", 3)]
    assert ("commit", 14) not in store.told


def test_a_listener_that_hides_a_transaction_that_did_not_begin_fails_all_the_same(
    call: Call, store: FakeStore
) -> None:
    store.begin_error = StoreError("unreachable")

    def listener(messages: Any, context: ConsumeContext) -> None:
        with pytest.raises(StoreError):
            context.transaction()

    with pytest.raises(StoreError, match="unreachable"):
        call(listener)


def test_manual_commits_are_refused_within_a_call(call: Call) -> None:
    def listener(messages: Any, context: ConsumeContext) -> None:
        context.auto_commit = True
        context.auto_commit = False

    with pytest.raises(ConfigError, match="a call's transaction commits"):
        call(listener)


def test_async_listeners_are_refused(call: Call, store: FakeStore) -> None:
    async def listener(messages: Any, context: ConsumeContext) -> None: ...

    with pytest.raises(ConfigError, match="plain functions only"):
        call(listener)
    with pytest.raises(ConfigError, match="plain functions only"):
        call(lambda messages, context: listener(messages, context))
    assert store.told == []


def test_without_such_a_store_there_is_no_transaction(call: Call) -> None:
    with pytest.raises(StateError, match=r"offset_store=ordermq\.sql\.SqlOffsetStore"):
        call.context.transaction()


class SlowStore(FakeStore):
    """A store of asyncio that commits when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_committing = asyncio.Event()
        self.may_commit = asyncio.Event()

    async def begin(self, *arguments: Any) -> FakeStore:  # type: ignore[override]
        return super().begin(*arguments)

    async def commit(self, next_offset: int) -> None:  # type: ignore[override]
        self.is_committing.set()
        await self.may_commit.wait()
        super().commit(next_offset)

    async def roll_back(self) -> None:  # type: ignore[override]
        super().roll_back()


def test_a_call_that_is_cancelled_ends_behind_the_commit_that_it_has_begun() -> None:
    async def listener(messages: Any, context: ConsumeContext) -> None:
        await cast(Any, context.transaction())

    async def work() -> None:
        store = SlowStore()
        call = Call(store)
        wrapped = async_transactional(
            listener, cast(AsyncTransactionalStore, store), "ns%g", is_strict=False
        )
        task = asyncio.ensure_future(wrapped(call.run, call.context))
        await store.is_committing.wait()
        task.cancel()
        await asyncio.wait((task,), timeout=0.01)
        assert not task.done()
        store.may_commit.set()
        await asyncio.wait((task,))
        assert task.cancelled()
        # Rolling back does nothing any more.
        assert store.told == [BEGUN, ("commit", 14), "roll back"]

    asyncio.run(work())
