"""`close` of one thread while another one is in `start`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from ordermq import Admin, LitePullConsumer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.client.runtime import Runtime
from ordermq.consumer.group.group_member import GroupMember
from ordermq.errors import StateError
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import eventually


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def make(
    kind: type[PushConsumer] | type[LitePullConsumer], broker: EmbeddedBroker
) -> PushConsumer | LitePullConsumer:
    consumer = kind("g", name_servers=broker.name_servers)
    consumer.subscribe("orders")
    if isinstance(consumer, PushConsumer):
        consumer.orderly(lambda messages, context: None)
    return consumer


def started(
    consumer: PushConsumer | LitePullConsumer, outcome: list[BaseException | None]
) -> threading.Thread:
    """Start a consumer in a thread, which appends the error, or None, to `outcome`."""

    def start() -> None:
        try:
            consumer.start()
        except BaseException as error:  # noqa: BLE001 - whatever it is
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=start)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
@pytest.mark.parametrize("step", ["__init__", "start", "_join"])
def test_a_close_during_the_start_leaves_nothing_that_consumes(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[PushConsumer] | type[LitePullConsumer],
    step: str,
) -> None:
    consumer = make(kind, broker)
    reached, goes_on = threading.Event(), threading.Event()
    plain = getattr(GroupMember, step)

    def waiting(self: GroupMember, *arguments: object) -> object:
        reached.set()
        assert goes_on.wait(20)
        return plain(self, *arguments)

    async def waiting_in_io(self: GroupMember) -> None:
        reached.set()
        await plain(self)

    monkeypatch.setattr(GroupMember, step, waiting_in_io if step == "_join" else waiting)
    outcome: list[BaseException | None] = []
    thread = started(consumer, outcome)
    assert reached.wait(20)
    assert consumer.close() is True
    goes_on.set()
    thread.join(20)
    # It had started when `close` came, or says what ended it.
    assert outcome == [None] or isinstance(outcome[0], StateError)
    assert outcome != [None] or step == "_join"
    assert not consumer.health().is_alive
    with WireClient(broker.port) as tool:
        eventually(lambda: tool.members("g") == [], "nothing is left in the group")
    with pytest.raises(StateError, match="only once"):
        consumer.start()


@pytest.mark.parametrize("others", [False, True], ids=["last client", "one of two"])
@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_a_start_that_a_close_cancels_says_so(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[PushConsumer] | type[LitePullConsumer],
    others: bool,
) -> None:
    # A thread of its own, which ends with its last client whatever other tests have left.
    monkeypatch.setattr(Runtime, "_shared", None)
    consumer = make(kind, broker)
    reached, cancels = threading.Event(), threading.Event()

    async def joining(self: GroupMember) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not cancels.is_set():
            reached.set()
            await asyncio.sleep(0.001)
        if others:  # else the end of the I/O thread does it
            task.cancel()
        await asyncio.Event().wait()

    monkeypatch.setattr(GroupMember, "_join", joining)
    outcome: list[BaseException | None] = []
    with contextlib.ExitStack() as stack:
        if others:
            stack.enter_context(Admin(broker.name_servers))
        thread = started(consumer, outcome)
        assert reached.wait(20)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        eventually(lambda: consumer._is_close_called, "close has begun")
        cancels.set()
        for each in (closing, thread):
            each.join(20)
            assert not each.is_alive()
    assert [type(each) for each in outcome] == [StateError]
    assert "close() was called while start()" in str(outcome[0])


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_a_consumer_that_was_not_started_may_be_closed_and_started(
    broker: EmbeddedBroker, kind: type[PushConsumer] | type[LitePullConsumer]
) -> None:
    consumer = make(kind, broker)
    assert consumer.close() is True
    with consumer:
        assert consumer.health().is_alive
