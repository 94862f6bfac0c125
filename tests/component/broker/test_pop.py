"""POP: batches leased in order, held pops, fences, and what ends a lease
(docs/internals/protocol.md#pop)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.broker.pop_leases import PopLease
from ordermq.broker.store.backup import back_up
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import PullFlag, RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import QueueHeader
from ordermq.remoting.pop import (
    ANY_QUEUE,
    BROKERS_TIME,
    AckHeader,
    BatchAck,
    ChangeInvisibleHeader,
    PopHandle,
    PopHeader,
    PopReplyHeader,
    acks_to_body,
    offsets_of_reply,
)
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import BROKER, WireClient, records
from tests.component.conftest import eventually
from tests.pop_scripts import Popped, UnorderedPops, check_pops_without_order

MINUTE_MS = 60_000


class Member:
    """Pops of one member of the group."""

    def __init__(self, client: WireClient, clock: ManualClock) -> None:
        self.client = client
        self._clock = clock

    def start(self, queue_id: int = ANY_QUEUE, poll_ms: int = 0, **fields: Any) -> Command:
        given: dict[str, Any] = {
            "group": "group", "topic": "orders", "queue_id": queue_id, "max_messages": 32,
            "invisible_ms": MINUTE_MS, "poll_ms": poll_ms, "born_ms": self._clock.wall_ms(),
            "init_mode": 0, "order": True, "fenced": True,
        }  # fmt: skip
        header = PopHeader(**given | fields)
        return self.client.start(RequestCode.POP_MESSAGE, header.to_ext())

    def pop(self, queue_id: int = ANY_QUEUE, **fields: Any) -> dict[int, tuple[int, ...]]:
        """The offsets popped from each queue."""
        return popped(self.client.wait(self.start(queue_id, **fields)))

    def start_acknowledge(self, answer: Command, queue_id: int, *offsets: int) -> Command:
        ack = BatchAck("group", "orders", handle(answer, queue_id), offsets)
        body = acks_to_body(BROKER, [ack])
        return self.client.start(RequestCode.BATCH_ACK_MESSAGE, {"omqFenced": "true"}, body)

    def acknowledge(self, answer: Command, queue_id: int, *offsets: int) -> Command:
        return self.client.wait(self.start_acknowledge(answer, queue_id, *offsets))

    def change(
        self, answer: Command, queue_id: int, offset: int, invisible_ms: int, topic: str = "orders"
    ) -> Command:
        header = ChangeInvisibleHeader(
            "group", topic, queue_id, handle(answer, queue_id).text(offset), offset,
            invisible_ms, fenced=True,
        )  # fmt: skip
        return self.client.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())


def handle(answer: Command, queue_id: int) -> PopHandle:
    reply = PopReplyHeader.from_ext(answer.ext)
    (start,) = [part.start for part in offsets_of_reply(reply) if part.queue_id == queue_id]
    return PopHandle(
        start, reply.pop_ms, reply.invisible_ms, reply.revive_queue, "0", BROKER, queue_id
    )


def popped(answer: Command) -> dict[int, tuple[int, ...]]:
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return {}
    assert answer.code == ResponseCode.SUCCESS, answer
    return {
        part.queue_id: part.offsets
        for part in offsets_of_reply(PopReplyHeader.from_ext(answer.ext))
    }


def ticking(clock: ManualClock) -> Callable[[Callable[[], bool], str], None]:
    """Return an `eventually` whose clock goes on, as of `WireClient.wait`."""

    def wait(condition: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            clock.advance(100)
            return condition()

        eventually(look, what)

    return wait


@pytest.fixture
def one(connect: Connect, clock: ManualClock) -> Member:
    member = Member(connect("one"), clock)
    member.client.create_topic("orders", 2)
    return member


@pytest.fixture
def two(connect: Connect, clock: ManualClock) -> Member:
    return Member(connect("two"), clock)


def reset(member: Member, offset: int, **more: str) -> None:
    ext = {
        "topic": "orders", "group": "group", "timestamp": "-1", "offset": str(offset),
        "isForce": "true",
    }  # fmt: skip
    assert member.client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext | more).code == 0


def send(member: Member, count: int, queue_id: int = 0, **more: Any) -> None:
    for _ in range(count):
        assert member.client.send("orders", queue_id=queue_id, **more).code == 0


def test_a_pop_of_any_queue_leases_a_batch_of_each_and_no_other_member_gets_them(
    one: Member, two: Member
) -> None:
    send(one, 3, queue_id=0)
    send(one, 2, queue_id=1)
    answer = one.client.wait(one.start())
    assert popped(answer) == {0: (0, 1, 2), 1: (0, 1)}
    found = [(each.queue_id, each.queue_offset) for each in records(answer.body)]
    assert sorted(found) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    send(one, 1, queue_id=0)
    assert two.pop() == {}


def test_an_acknowledged_prefix_moves_the_group_and_the_rest_comes_again(
    one: Member, two: Member, clock: ManualClock
) -> None:
    send(one, 4)
    answer = one.client.wait(one.start(0))
    assert one.acknowledge(answer, 0, 0, 1).code == 0
    assert one.client.committed("group", "orders") == 2
    assert two.pop(0) == {}
    clock.advance(MINUTE_MS)
    again = two.client.wait(two.start(0))
    assert popped(again) == {0: (2, 3)}
    (part,) = offsets_of_reply(PopReplyHeader.from_ext(again.ext))
    assert part.deliveries == {2: 1, 3: 1}


def test_an_acknowledgement_behind_a_gap_moves_nothing(one: Member) -> None:
    send(one, 3)
    answer = one.client.wait(one.start(0))
    one.acknowledge(answer, 0, 1, 2)
    assert one.client.committed("group", "orders") == 0
    one.acknowledge(answer, 0, 0)
    assert one.client.committed("group", "orders") == 3


def test_a_late_acknowledgement_is_refused_where_the_client_asked_for_it_and_ignored_else(
    one: Member, two: Member, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    send(one, 3)
    late = one.client.wait(one.start(0))
    clock.advance(MINUTE_MS)
    assert two.pop(0) == {0: (0, 1, 2)}
    refused = one.acknowledge(late, 0, 0, 1, 2)
    assert refused.code == ResponseCode.OMQ_FENCED
    assert "has popped it again" in (refused.remark or "")
    assert one.change(late, 0, 0, MINUTE_MS).code == ResponseCode.OMQ_FENCED
    assert broker.statistics.commits_fenced == 2
    header = AckHeader("group", "orders", 0, handle(late, 0).text(2), 2)
    assert one.client.call(RequestCode.ACK_MESSAGE, header.to_ext()).code == 0
    assert one.client.committed("group", "orders") == 0


def test_an_acknowledgement_of_a_batch_nobody_knows_moves_no_offset(one: Member) -> None:
    # RocketMQ's broker, which forgets leases of the last seconds in a crash, would commit 3.
    send(one, 3)
    text = PopHandle(0, 1_700_000_000_000, MINUTE_MS, 999, "0", BROKER, 0).text(2)
    header = AckHeader("group", "orders", 0, text, 2)
    assert one.client.call(RequestCode.ACK_MESSAGE, header.to_ext()).code == 0
    assert one.pop(0) == {0: (0, 1, 2)}


def test_the_start_of_a_member_that_comes_late_takes_nothing_acknowledged_back(
    one: Member, two: Member
) -> None:
    send(one, 3)
    answer = one.client.wait(one.start(0))
    # Two had asked before, when no offset was stored; its start arrives behind what one has done.
    assert one.acknowledge(answer, 0, 0, 1, 2).code == 0
    assert two.client.commit("group", "orders", 0).code == 0
    assert one.client.committed("group", "orders") == 3
    assert two.pop(0) == {}


def test_a_commit_that_a_pull_carries_takes_nothing_acknowledged_back(
    one: Member, two: Member
) -> None:
    send(one, 4)
    answer = one.client.wait(one.start(0))
    one.acknowledge(answer, 0, 0, 1)
    commit = int(PullFlag.COMMIT_OFFSET)
    assert two.client.pull("orders", 0, flag=commit, commit_offset=1).code == 0
    assert one.client.committed("group", "orders") == 2
    # Nor while the acknowledgement is on its way to the disk.
    acknowledged = one.start_acknowledge(answer, 0, 2, 3)
    pulled = one.client.start_pull("orders", 0, flag=commit, commit_offset=3)
    assert one.client.wait(pulled).code == one.client.wait(acknowledged).code == 0
    assert one.client.committed("group", "orders") == 4
    assert two.pop(0) == {}


def test_renewing_one_message_keeps_its_queue_from_all_others(
    one: Member, two: Member, clock: ManualClock
) -> None:
    send(one, 3)
    answer = one.client.wait(one.start(0))
    clock.advance(MINUTE_MS - 1)
    one.change(answer, 0, 2, MINUTE_MS)
    clock.advance(MINUTE_MS - 1)
    assert two.pop(0) == {}
    clock.advance(1)
    assert two.pop(0) == {0: (0, 1, 2)}


def test_a_batch_that_is_given_back_goes_to_the_pop_that_waits(
    one: Member, two: Member, clock: ManualClock
) -> None:
    send(one, 2)
    answer = one.client.wait(one.start(0))
    waiting = two.start(poll_ms=10_000)
    two.client.round_trip()
    for offset in (0, 1):
        one.change(answer, 0, offset, 0)
    assert popped(two.client.wait(waiting, clock)) == {0: (0, 1)}


def test_a_waiting_pop_gets_a_message_that_comes_and_a_queue_that_is_free_again(
    one: Member, two: Member, clock: ManualClock
) -> None:
    waiting = one.start(poll_ms=10_000)
    one.client.round_trip()
    send(two, 1)
    answer = one.client.wait(waiting)
    assert popped(answer) == {0: (0,)}
    send(two, 1)
    waiting = two.start(poll_ms=10_000)
    two.client.round_trip()
    one.acknowledge(answer, 0, 0)
    assert popped(two.client.wait(waiting)) == {0: (1,)}


def test_a_waiting_pop_gets_a_lease_that_ran_out(
    one: Member, two: Member, clock: ManualClock
) -> None:
    waiting = two.start(poll_ms=5 * MINUTE_MS)
    two.client.round_trip()
    send(one, 2, queue_id=1)
    answer = two.client.wait(waiting)
    assert popped(answer)[1][0] == 0
    waiting = one.start(poll_ms=5 * MINUTE_MS)
    one.client.round_trip()
    clock.advance(MINUTE_MS - 1_000)  # else hundreds of ticks
    assert 1 in popped(one.client.wait(waiting, clock))


def test_a_waiting_pop_ends_at_its_deadline_and_with_its_connection(
    one: Member, two: Member, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    waiting = one.start(poll_ms=1_000)
    assert popped(one.client.wait(waiting, clock)) == {}
    two.start(poll_ms=1_000)
    eventually(lambda: broker.statistics.held_pops == 1, "it waits")
    two.client.close()
    eventually(lambda: broker.statistics.held_pops == 0, "it is gone")
    send(one, 1)
    assert one.pop() == {0: (0,)}


def test_a_pop_that_is_sent_again_under_its_id_gets_the_same_messages_uncounted(
    one: Member, two: Member
) -> None:
    send(one, 2)
    lost = one.client.wait(one.start(0, attempt_id="a"))
    again = one.client.wait(one.start(0, attempt_id="a"))
    assert popped(again) == {0: (0, 1)}
    (part,) = offsets_of_reply(PopReplyHeader.from_ext(again.ext))
    assert not any(part.deliveries.values())
    assert two.pop(0, attempt_id="b") == {}
    assert one.acknowledge(lost, 0, 0, 1).code == ResponseCode.OMQ_FENCED
    assert one.acknowledge(again, 0, 0, 1).code == 0


def test_tags_that_a_pop_does_not_want_are_passed_over_and_done(one: Member) -> None:
    for tag in ("x", "y", "x"):
        send(one, 1, properties={"TAGS": tag})
    answer = one.client.wait(one.start(0, expression="x"))
    assert popped(answer) == {0: (0, 2)}
    one.acknowledge(answer, 0, 0, 2)
    assert one.client.committed("group", "orders") == 3
    send(one, 2, properties={"TAGS": "y"})
    assert one.pop(0, expression="x") == {}
    assert one.client.committed("group", "orders") == 5


def test_a_lease_survives_a_restart_and_holds_for_its_whole_time_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "durable.db"
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        one = Member(client, clock)
        client.create_topic("orders", 1)
        send(one, 3)
        answer = one.client.wait(one.start(0))
        clock.advance(MINUTE_MS - 1)
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        two = Member(client, clock)
        clock.advance(MINUTE_MS - 1)
        assert two.pop(0) == {}
        assert two.acknowledge(answer, 0, 0).code == 0
        clock.advance(1)
        later = two.client.wait(two.start(0))
        assert popped(later) == {0: (1, 2)}
        assert handle(later, 0).pop_ms > handle(answer, 0).pop_ms
        assert two.acknowledge(answer, 0, 1, 2).code == ResponseCode.OMQ_FENCED


def test_a_batch_has_a_later_time_than_the_one_before_it_whatever_the_clock_says(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "durable.db"
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        one = Member(client, clock)
        client.create_topic("orders", 1)
        send(one, 2)
        answer = one.client.wait(one.start(0, max_messages=1))
        one.acknowledge(answer, 0, 0)
    behind = ManualClock(wall_ms=clock.wall_ms() - 10 * MINUTE_MS)
    with EmbeddedBroker(path, clock=behind) as broker, WireClient(broker.port) as client:
        one = Member(client, behind)
        assert handle(one.client.wait(one.start(0)), 0).pop_ms > handle(answer, 0).pop_ms


@pytest.mark.parametrize("order", [True, False])
def test_a_clock_that_was_set_back_makes_no_lease_longer(
    tmp_path: Path, clock: ManualClock, order: bool
) -> None:
    path = tmp_path / "durable.db"
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        one = Member(client, clock)
        client.create_topic("orders", 1)
        send(one, 2)
        answer = client.wait(one.start(0, order=order, max_messages=1))
        clock.advance(1_000)
        assert one.change(answer, 0, 0, MINUTE_MS).code == ResponseCode.SUCCESS
    behind = ManualClock(wall_ms=clock.wall_ms() - 60 * MINUTE_MS)
    with EmbeddedBroker(path, clock=behind) as broker, WireClient(broker.port) as client:
        one = Member(client, behind)
        assert one.pop(0, order=order) == ({} if order else {0: (1,)})

        def pop_all() -> None:
            found: list[int] = []

            def is_all() -> bool:
                found.extend(one.pop(0, order=order).get(0, ()))
                return len(found) == 2

            behind.advance(MINUTE_MS)
            ticking(behind)(is_all, "what nobody acknowledged")

        pop_all()  # of before
        pop_all()  # of now, under a later name than those had


def test_a_lease_of_a_store_of_before_is_read() -> None:
    lease = PopLease.of_text("[1000, 500, null, [3, 4], [], [[4, 9000]], []]")
    assert lease.ends() == [(3, 1_500), (4, 9_000)]
    assert lease.from_now(0).ends() == [(3, 500), (4, 8_000)]


def test_a_clock_that_was_set_back_keeps_a_restored_back_up_quiet_no_longer(
    tmp_path: Path, clock: ManualClock
) -> None:
    path, copy = tmp_path / "durable.db", tmp_path / "copy.db"
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        client.create_topic("orders", 1)
        send(Member(client, clock), 1)
    back_up(path, copy, lambda done, total: None)
    with EmbeddedBroker(copy, clock=clock):
        pass
    behind = ManualClock(wall_ms=clock.wall_ms() - 60 * MINUTE_MS)
    with EmbeddedBroker(copy, clock=behind) as broker, WireClient(broker.port) as client:
        one = Member(client, behind)
        send(one, 1)
        assert one.pop(0) == {}
        behind.advance(BrokerConfig().lock_max_live_ms)
        assert one.pop(0)[0]


def test_one_request_acknowledges_batches_in_order_and_without(one: Member) -> None:
    one.client.create_topic("parcels", 1)
    send(one, 1)
    one.client.send("parcels")
    ordered = one.client.wait(one.start(0))
    unordered = one.client.wait(one.start(0, topic="parcels", order=False))
    acks = [
        BatchAck("group", "orders", handle(ordered, 0), (0,)),
        BatchAck("group", "parcels", handle(unordered, 0), (0,)),
    ]
    answer = one.client.call(RequestCode.BATCH_ACK_MESSAGE, body=acks_to_body(BROKER, acks))
    assert answer.code == ResponseCode.SUCCESS
    assert one.client.committed("group", "orders") == 1
    assert one.change(unordered, 0, 0, MINUTE_MS, topic="parcels").ext["invisibleTime"] == "0"


def test_a_refused_request_acknowledges_nothing(one: Member) -> None:
    send(one, 1)
    popped_now = one.client.wait(one.start(0, order=False))
    acks = [BatchAck("group", topic, handle(popped_now, 0), (0,)) for topic in ("orders", "gone")]
    answer = one.client.call(RequestCode.BATCH_ACK_MESSAGE, body=acks_to_body(BROKER, acks))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert one.change(popped_now, 0, 0, MINUTE_MS).ext["invisibleTime"] != "0"


def test_a_group_that_was_deleted_as_it_popped_gets_nothing_again(
    one: Member, clock: ManualClock
) -> None:
    send(one, 2)
    one.client.heartbeat("group", {"orders": "*"})
    one.pop(0, order=False, max_messages=1)
    ext = {"groupName": "group", "cleanOffset": "true"}
    deletion = one.client.start(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
    assert one.pop(0, order=False, max_messages=1)
    assert one.client.wait(deletion).code == ResponseCode.SUCCESS
    assert one.client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext).code == ResponseCode.SUCCESS
    assert one.pop(0, order=False, group="other")

    def is_repeated(group: str) -> bool:
        where = QueueHeader(f"%RETRY%{group}_orders", 0).to_ext()
        return one.client.call(RequestCode.GET_MAX_OFFSET, where).code == ResponseCode.SUCCESS

    clock.advance(MINUTE_MS)
    ticking(clock)(lambda: is_repeated("other"), "what the other group did not acknowledge")
    assert not is_repeated("group")


def test_a_pop_is_too_old_only_by_every_clock(one: Member, clock: ManualClock) -> None:
    send(one, 2)

    def pop(born_ms: int) -> dict[int, tuple[int, ...]]:
        # Under the same attempt, so that no lease is in the way.
        return one.pop(0, born_ms=born_ms, attempt_id="one")

    found, steady_ms = {0: (0, 1)}, clock.wall_ms()
    assert pop(steady_ms - 500) == found
    assert pop(steady_ms - 501) == {}
    assert pop(BROKERS_TIME) == found
    for jump_ms in (10 * MINUTE_MS, -20 * MINUTE_MS):
        clock.jump_wall(jump_ms)
        assert pop(steady_ms) == found  # of who knows this broker's time from its answers
        assert pop(clock.wall_ms()) == found  # of who has the time of its host
        assert pop(min(steady_ms, clock.wall_ms()) - 501) == {}


def test_a_reset_ends_the_lease_and_nothing_of_it_counts(one: Member, two: Member) -> None:
    send(one, 3)
    answer = one.client.wait(one.start(0))
    reset(one, 1)
    assert one.acknowledge(answer, 0, 0, 1, 2).code == ResponseCode.OMQ_FENCED
    assert two.pop(0) == {0: (1, 2)}


def test_a_lease_that_a_reset_ended_does_not_come_back_with_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "durable.db"
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        one = Member(client, clock)
        client.create_topic("orders", 2)
        send(one, 3, queue_id=0)
        send(one, 2, queue_id=1)
        answer = one.client.wait(one.start())
        reset(one, 1, queueId="0")
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        one = Member(client, clock)
        assert one.acknowledge(answer, 0, 0, 1, 2).code == ResponseCode.OMQ_FENCED
        assert client.committed("group", "orders") == 1
        # The other queue was not reset: its lease holds.
        assert one.pop() == {0: (1, 2)}


def test_a_deleted_topic_ends_its_leases_and_the_pops_that_wait(
    one: Member, two: Member, clock: ManualClock
) -> None:
    send(one, 2)
    answer = one.client.wait(one.start(0))
    waiting = two.start(poll_ms=10_000)
    two.client.round_trip()
    assert one.client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    assert two.client.wait(waiting).code == ResponseCode.TOPIC_NOT_EXIST
    assert one.acknowledge(answer, 0, 0).code == ResponseCode.TOPIC_NOT_EXIST
    one.client.create_topic("orders", 2)
    send(one, 1)
    assert one.acknowledge(answer, 0, 0).code == ResponseCode.OMQ_FENCED
    assert two.pop(0) == {0: (0,)}


def test_a_new_group_starts_at_the_first_message_or_the_last_as_the_pop_says(
    clock: ManualClock,
) -> None:
    config = BrokerConfig(new_groups_start_at_zero=False)
    with EmbeddedBroker(config=config, clock=clock) as broker, WireClient(broker.port) as client:
        one = Member(client, clock)
        client.create_topic("orders", 1)
        send(one, 3)
        assert one.pop(0, group="first") == {0: (0, 1, 2)}
        assert one.pop(0, group="last", init_mode=1) == {0: (2,)}


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"max_messages": 33}, ResponseCode.INVALID_PARAMETER, "expected 1..32"),
        ({"max_messages": 0}, ResponseCode.INVALID_PARAMETER, "expected 1..32"),
        ({"invisible_ms": 0}, ResponseCode.INVALID_PARAMETER, "invisible time in ms: 0"),
        ({"queue_id": 2}, ResponseCode.INVALID_PARAMETER, "expected -1..1"),
        ({"expression_type": "SQL92"}, ResponseCode.SYSTEM_ERROR, "does not filter by SQL92"),
    ],
)
def test_a_pop_the_broker_cannot_serve_says_why(
    one: Member, fields: dict[str, Any], code: ResponseCode, reason: str
) -> None:
    answer = one.client.wait(one.start(**fields))
    assert answer.code == code
    assert reason in (answer.remark or "")


@pytest.mark.parametrize("text", ["", "1 2 3", "a 2 3 999 0 b 0 0", "1 2 3 999 0 b -1 0", "9" * 20])
def test_a_handle_that_is_none_is_refused(one: Member, text: str) -> None:
    send(one, 1)
    header = AckHeader("group", "orders", 0, text, 0)
    answer = one.client.call(RequestCode.ACK_MESSAGE, header.to_ext())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "handle" in (answer.remark or "") or "extraInfo" in (answer.remark or "")


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"acks":[1]}', b'{"acks":[{"c":"g"}]}',
     b'{"acks":[{"c":"g","t":"t","r":"0","so":0,"q":0,"rq":999,"pt":1,"it":1,"b":"?"}]}'],
)  # fmt: skip
def test_a_batch_ack_that_is_malformed_is_refused(one: Member, body: bytes) -> None:
    answer = one.client.call(RequestCode.BATCH_ACK_MESSAGE, {}, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    one.client.round_trip()


def test_a_pop_is_answered_once_its_lease_is_durable_and_not_at_all_where_it_is_not(
    one: Member, stop_writing: Callable[[], None]
) -> None:
    send(one, 1)
    stop_writing()
    assert one.client.wait(one.start(0)).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_accounts_pop_and_acknowledge_what_they_may_consume() -> None:
    from ordermq.broker.access import NEEDS

    body = acks_to_body(
        BROKER, [BatchAck("group", "orders", PopHandle(0, 1, 1, 999, "0", BROKER, 0), (0,))]
    )
    ext = {"consumerGroup": "group", "topic": "orders"}
    for code in (200_050, 200_051, 200_053, 200_151):
        needs = {(need.kind, need.name, need.actions)
                 for need in NEEDS[code](None, Command.request(code, ext, body))}  # type: ignore[arg-type]  # fmt: skip
        assert needs == {("Group", "group", ("SUB",)), ("Topic", "orders", ("SUB",))}


def test_pops_without_order_follow_the_rules(one: Member, clock: ManualClock) -> None:
    # As RocketMQ does, in tests/interop/test_pop.py.
    pops = UnorderedPops(one.client, "orders", "group", clock.wall_ms)
    check_pops_without_order(pops, BROKER, clock.advance, ticking(clock))


def test_a_pop_without_order_moves_the_group_and_no_late_start_takes_that_back(
    one: Member, two: Member
) -> None:
    send(one, 3)
    assert one.pop(0, order=False, max_messages=2) == {0: (0, 1)}
    assert one.client.committed("group", "orders") == 2
    assert two.client.commit("group", "orders", 0).code == 0
    assert two.pop(0, order=False) == {0: (2,)}


def test_leases_without_order_survive_a_restart_and_what_is_left_comes_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "durable.db"
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        client.create_topic("orders", 1)
        pops = UnorderedPops(client, "orders", "group", clock.wall_ms)
        for number in range(3):
            client.send("orders", str(number).encode())
        popped = pops.pop(BROKER, 3, MINUTE_MS)
        pops.acknowledge(popped[0], popped[1])
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        pops = UnorderedPops(client, "orders", "group", clock.wall_ms)
        clock.advance(MINUTE_MS - 1)
        assert pops.pop(BROKER, 3, MINUTE_MS) == []
        clock.advance(1)
        again: list[Popped] = []

        def comes() -> bool:
            again.extend(pops.pop(BROKER, 3, MINUTE_MS))
            return bool(again)

        ticking(clock)(comes, "what was not acknowledged")
        assert [(each.body, each.reconsume_times) for each in again] == [(b"2", 1)]
        pops.acknowledge(popped[2])  # late: nobody knows it any more
        pops.acknowledge(again[0])
        clock.advance(2 * MINUTE_MS)
        assert pops.pop(BROKER, 3, MINUTE_MS) == []


@pytest.mark.parametrize("is_given_out_again", [True, False])
def test_what_was_not_acknowledged_of_a_deleted_topic_does_not_come_in_its_next_life(
    one: Member, clock: ManualClock, is_given_out_again: bool
) -> None:
    pops = UnorderedPops(one.client, "orders", "group", clock.wall_ms)
    one.client.send("orders", b"old")
    pops.pop(BROKER, 1, 1_000)
    again: list[Popped] = []
    while is_given_out_again and not again:
        clock.advance(1_000)  # it is in the retry topic then
        again += pops.pop(BROKER, 1, 1_000)
    one.client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    one.client.create_topic("orders", 2)
    clock.advance(MINUTE_MS)
    one.client.send("orders", b"new")
    found: list[bytes] = []

    def comes() -> bool:
        found.extend(each.body for each in pops.pop(BROKER, 3, MINUTE_MS))
        return bool(found)

    ticking(clock)(comes, "the new one")
    clock.advance(2 * MINUTE_MS)
    comes()
    assert b"old" not in found


def test_a_group_and_a_topic_that_are_deleted_take_their_leases_along(
    one: Member, clock: ManualClock
) -> None:
    send(one, 2)
    assert one.pop(0, order=False, invisible_ms=1_000) == {0: (0, 1)}
    one.client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    one.client.create_topic("orders", 2)
    clock.advance(MINUTE_MS)
    send(one, 1)
    assert one.pop(0, order=False) == {0: (0,)}
    assert one.pop(0, order=False) == {}
