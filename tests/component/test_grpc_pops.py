"""Batches through a proxy that a member does not consume: given back at once, and again
(docs/internals/semantics.md#pop-through-a-proxy)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Iterable, Iterator, Sequence

import pytest

from ordermq.client.session import ClientSession
from ordermq.config import PopConfig, RemotingConfig
from ordermq.consumer.pop.grpc_pop import GrpcPop
from ordermq.consumer.pop.popped_batch import PoppedBatch
from ordermq.consumer.pop.returns import Returns
from ordermq.errors import BrokerError, ConnectionLost, Fenced
from ordermq.grpc.messages import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    Broker,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    Endpoints,
    Message,
    Permission,
    QueryRouteRequest,
    QueryRouteResponse,
    Queue,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
    SystemProperties,
    Timestamp,
)
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from tests.component.conftest import eventually
from tests.component.grpc_server import Asked, Said, grpc_server_thread

DAY_MS = 24 * 3_600_000
CONFIG = RemotingConfig(route_interval_ms=DAY_MS, heartbeat_interval_ms=DAY_MS, lock_timeout_ms=100)
POP = PopConfig(pop_invisible_ms=600_000, pop_poll_ms=1)
QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)
ALL = Subscription.parse("orders", "*", 1)
OK = Status(code=Code.OK)


class Proxy:
    """A proxy with one queue, whose messages it leases once, and again to the same attempt.

    Attributes:
        fails: says how the next changes of a lease fail: a status, or None for no answer.
        may_answer: receives are answered while this is set.
        is_losing: the answers of receives are lost.
        attempts: ids of the receives.
        given_back: offsets, as they were.
        refused: a status for the last message of the next acknowledgement.
        acknowledged: offsets, as they were.
        routes_asked: how often.
    """

    def __init__(self, offsets: Sequence[int] = (0, 1)) -> None:
        self.offsets = offsets
        self.fails: list[Status | None] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_losing = False
        self.attempts: list[str] = []
        self.given_back: list[int] = []
        self.refused: Status | None = None
        self.acknowledged: list[int] = []
        self.routes_asked = 0
        self._leased_to = ""

    def __call__(self, asked: Asked) -> Said | None:
        method = asked.headers[":path"].rpartition("/")[2]
        if method == "QueryRoute":
            request = QueryRouteRequest.from_bytes(asked.message)
            assert request.endpoints is not None
            self.routes_asked += 1
            return self._route(request.endpoints)
        if method == "ReceiveMessage":
            return self._receive(ReceiveMessageRequest.from_bytes(asked.message))
        if method == "AckMessage":
            return self._acknowledge(AckMessageRequest.from_bytes(asked.message))
        assert method == "ChangeInvisibleDuration"
        return self._change(ChangeInvisibleDurationRequest.from_bytes(asked.message))

    def _route(self, endpoints: Endpoints) -> Said:
        queue = Queue(
            permission=Permission.READ_WRITE, broker=Broker(name="broker-a", endpoints=endpoints)
        )
        return Said((QueryRouteResponse(status=OK, message_queues=[queue]).to_bytes(),))

    def _receive(self, request: ReceiveMessageRequest) -> Said | None:
        self.attempts.append(request.attempt_id)
        self.may_answer.wait(20)
        parts = []
        if self._leased_to in ("", request.attempt_id):
            self._leased_to = request.attempt_id
            messages = [message_at(at).to_bytes() for at in self.offsets]
            parts = [ReceiveMessageResponse(message=message) for message in messages]
        status = OK if parts else Status(code=Code.MESSAGE_NOT_FOUND)
        parts.append(ReceiveMessageResponse(status=status))
        if self.is_losing:
            return Said(status=14, reason="lost by the test")
        return Said(tuple(part.to_bytes() for part in parts))

    def _change(self, request: ChangeInvisibleDurationRequest) -> Said | None:
        assert request.invisible_duration is not None
        assert request.invisible_duration.seconds == request.invisible_duration.nanos == 0
        status = self.fails.pop(0) if self.fails else OK
        if status is None:
            return None
        if status is OK:
            self.given_back.append(int(request.receipt_handle.split()[-2]))
        return Said((ChangeInvisibleDurationResponse(status=status).to_bytes(),))

    def _acknowledge(self, request: AckMessageRequest) -> Said:
        # An entry has the fields of a result, but the status.
        entries = [AckMessageResultEntry.from_bytes(entry) for entry in request.entries]
        for entry in entries:
            entry.status = OK
        if self.refused is not None:
            entries[-1].status = self.refused
        self.acknowledged += [
            int(entry.receipt_handle.split()[-2]) for entry in entries if entry.status is OK
        ]
        status = OK if self.refused is None else Status(code=Code.MULTIPLE_RESULTS)
        return Said((AckMessageResponse(status=status, entries=entries).to_bytes(),))


def message_at(offset: int) -> Message:
    """A message with a receipt as RocketMQ writes it."""
    handle = f"0 1795813332842 600000 999 0 broker-a 0 {offset} {offset * 100}"
    return Message(
        system_properties=SystemProperties(
            message_id=f"id-{offset}", queue_offset=offset, receipt_handle=handle,
            delivery_attempt=1, born_timestamp=Timestamp.of_ms(1),
            store_timestamp=Timestamp.of_ms(2),
        ),
        body=b"body",
    )  # fmt: skip


class End:
    """The end of a member, which somebody waits for, or not."""

    def __init__(self) -> None:
        self.is_late = False

    async def unless_hurried(self, work: Awaitable[object]) -> bool:
        await work
        return True


class Kept:
    """Batches that wait for their queues, as of `PopLeases`, which renews them, too."""

    def __init__(self) -> None:
        self.batches: dict[MessageQueue, list[PoppedBatch]] = {}

    def keep(self, queue: MessageQueue, batches: Iterable[PoppedBatch]) -> None:
        self.batches.setdefault(queue, []).extend(batches)

    def take_waiting(self, queue: MessageQueue) -> PoppedBatch | None:
        waiting = self.batches.get(queue)
        return waiting.pop(0) if waiting else None

    def take_all_waiting(self, topic: str, broker_name: str) -> list[PoppedBatch]:
        assert (topic, broker_name) == ("orders", "broker-a")
        taken = [batch for waiting in self.batches.values() for batch in waiting]
        self.batches.clear()
        return taken


class Member:
    """The part of a member that talks to a proxy."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.end = End()
        assert session.proxy is not None
        returns = Returns(session, POP, self.end)
        self.pop = GrpcPop(session, session.proxy, "billing", POP, returns, is_ordered=True)
        self.kept = Kept()
        self.pop.keep_in(self.kept)

    def receive(self, queue: MessageQueue = QUEUE) -> Sequence[PoppedBatch]:
        return self.session.call(self.pop.receive(queue, ALL, "unused"))

    def receive_some(self) -> PoppedBatch:
        """Receive until there is a batch: each try waits for a millisecond only."""
        found: list[PoppedBatch] = []
        eventually(lambda: found.extend(self.receive()) or found, "there is a batch")
        return found[0]

    def leave(self, queue: MessageQueue = QUEUE) -> None:
        async def leave() -> None:
            self.pop.leave(queue)

        self.session.call(leave())

    def close(self) -> None:
        async def close() -> None:
            await self.pop.close(asyncio.sleep(0))

        self.session.call(close())


@contextlib.contextmanager
def member_at(proxy: Proxy) -> Iterator[Member]:
    with grpc_server_thread(proxy) as address:
        session = ClientSession(f"grpc://{address}", CONFIG)
        try:
            session.call(session.routes.get("orders"))
            yield Member(session)
        finally:
            proxy.may_answer.set()
            session.close()


@pytest.mark.parametrize(
    "failure",
    [Status(code=Code.TOO_MANY_REQUESTS), Status(code=Code.PROXY_TIMEOUT), None],
)
def test_a_batch_that_could_not_be_given_back_is_given_back_again(failure: Status | None) -> None:
    proxy = Proxy()
    with member_at(proxy) as member:
        batch = member.receive_some()
        proxy.fails = [failure, failure]
        member.session.call(member.pop.give_back(batch))
    assert set(proxy.given_back) == {0, 1}


def test_only_what_failed_is_given_back_again() -> None:
    proxy = Proxy((3, 4, 5))
    with member_at(proxy) as member:
        batch = member.receive_some()
        proxy.fails = [Status(code=Code.TOO_MANY_REQUESTS)]
        member.session.call(member.pop.give_back(batch))
    assert set(proxy.given_back) == {3, 4, 5}


def test_nothing_is_repeated_by_a_member_that_waits_no_longer() -> None:
    proxy = Proxy((3,))
    with member_at(proxy) as member:
        batch = member.receive_some()
        proxy.fails = [Status(code=Code.TOO_MANY_REQUESTS)]
        member.end.is_late = True
        member.session.call(member.pop.give_back(batch))
    assert proxy.given_back == []


def test_what_others_have_already_is_not_given_back_again() -> None:
    proxy = Proxy((3,))
    with member_at(proxy) as member:
        batch = member.receive_some()
        proxy.fails = [Status(code=Code.INVALID_RECEIPT_HANDLE)]
        member.session.call(member.pop.give_back(batch))
    assert proxy.given_back == []


def test_what_a_waiting_receive_brings_for_a_queue_that_was_given_up_goes_back_at_once() -> None:
    proxy = Proxy()
    proxy.may_answer.clear()
    with member_at(proxy) as member:
        assert member.receive() == ()
        eventually(lambda: proxy.attempts, "a receive waits at the proxy")
        member.leave()
        proxy.may_answer.set()
        eventually(lambda: set(proxy.given_back) == {0, 1}, "it is given back")
    assert not member.kept.batches


def test_what_waits_for_a_queue_goes_back_when_it_is_given_up() -> None:
    proxy = Proxy()
    proxy.may_answer.clear()
    with member_at(proxy) as member:
        assert member.receive() == ()
        proxy.may_answer.set()
        eventually(lambda: member.kept.batches, "nobody has asked for it yet")
        member.leave()
        eventually(lambda: set(proxy.given_back) == {0, 1}, "it is given back")


@pytest.mark.parametrize("given_up", [True, False])
def test_what_comes_for_a_queue_that_does_not_ask_while_others_do_is_kept_until_it_asks(
    given_up: bool,
) -> None:
    """Given back at once it came with each receive, and at the 17th was a dead letter."""
    proxy = Proxy()
    proxy.may_answer.clear()
    with member_at(proxy) as member:
        assert member.receive(OTHER) == ()
        if given_up:
            assert member.receive() == ()
            member.leave()
        proxy.may_answer.set()
        eventually(lambda: QUEUE in member.kept.batches, "it is kept")
        for _ in range(3):
            assert member.receive(OTHER) == ()
        assert proxy.given_back == []
        [batch] = member.receive()
        assert batch.offsets == (0, 1)
        assert proxy.given_back == []


def test_what_is_kept_for_a_queue_goes_back_when_no_other_asks_any_more() -> None:
    proxy = Proxy()
    proxy.may_answer.clear()
    with member_at(proxy) as member:
        assert member.receive(OTHER) == ()
        proxy.may_answer.set()
        eventually(lambda: QUEUE in member.kept.batches, "it is kept")
        member.leave(OTHER)
        eventually(lambda: set(proxy.given_back) == {0, 1}, "it is given back")


def test_the_route_is_asked_for_when_a_message_comes_from_a_queue_that_is_not_held() -> None:
    proxy = Proxy()
    proxy.may_answer.clear()
    with member_at(proxy) as member:
        asked = proxy.routes_asked
        assert member.receive(OTHER) == ()
        proxy.may_answer.set()
        eventually(lambda: proxy.routes_asked > asked, "the queue may be new in the route")


def test_a_queue_that_was_given_up_may_be_asked_for_again() -> None:
    proxy = Proxy()
    with member_at(proxy) as member:
        proxy.may_answer.clear()
        assert member.receive() == ()
        member.leave()
        assert member.receive() == ()
        proxy.may_answer.set()
        assert member.receive_some().offsets == (0, 1)
    assert proxy.given_back == []


def test_what_a_lost_answer_brought_is_given_back_at_the_close() -> None:
    proxy = Proxy()
    proxy.is_losing = True
    with member_at(proxy) as member:
        with contextlib.suppress(ConnectionLost):  # told to whoever still waits
            assert member.receive() == ()
        [feed] = member.pop._feeds.values()
        eventually(lambda: feed._attempts._unanswered, "an answer was lost")
        proxy.is_losing = False
        member.close()
    assert set(proxy.given_back) == {0, 1}
    assert proxy.attempts[0] == proxy.attempts[-1]


def test_a_receive_that_broke_is_not_asked_for_again_while_the_proxy_may_hold_it() -> None:
    proxy = Proxy()
    proxy.is_losing = True
    with member_at(proxy) as member:
        for count in (1, 2, 3):
            with contextlib.suppress(ConnectionLost):  # told to whoever still waits
                assert member.receive() == ()
            eventually(lambda count=count: len(proxy.attempts) >= count, "a receive is lost")
        [feed] = member.pop._feeds.values()
        eventually(lambda: len(feed._attempts._unanswered) >= 3, "their ids are kept")
    assert len(set(proxy.attempts)) == len(proxy.attempts), "of one id two would lease"


def test_an_acknowledgement_names_each_message() -> None:
    proxy = Proxy((3, 4, 5))
    with member_at(proxy) as member:
        batch = member.receive_some()
        member.session.call(member.pop.acknowledge(batch, 5))
        assert (proxy.acknowledged, batch.acknowledged) == ([3, 4], 5)
        member.session.call(member.pop.acknowledge(batch, 6))
    assert proxy.acknowledged == [3, 4, 5]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status(code=Code.INVALID_RECEIPT_HANDLE), Fenced),
        (Status(code=Code.TOO_MANY_REQUESTS), BrokerError),
    ],
)
def test_an_acknowledgement_that_was_taken_in_part_was_not_taken(
    status: Status, kind: type[Exception]
) -> None:
    proxy = Proxy()
    with member_at(proxy) as member:
        batch = member.receive_some()
        proxy.refused = status
        with pytest.raises(kind):
            member.session.call(member.pop.acknowledge(batch, batch.end))
        assert not batch.is_acknowledged
        proxy.refused = None
        member.session.call(member.pop.acknowledge(batch, batch.end))
        assert batch.is_acknowledged
