"""`ordermq.Admin` on RocketMQ's brokers and name server (docs/operations.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ordermq import Admin, DeadLetter, PushConsumer
from ordermq.errors import LockRefused, StateError
from tests.interop.cluster import Cluster, eventually
from tests.interop.run import MEMBER_SETTINGS, Run


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.name_servers) as running:
        yield running


def bodies(messages: Any) -> list[int]:
    return [int(bytes(message.body)) for message in messages]


def test_topics_are_created_listed_described_and_deleted(run: Run, admin: Admin) -> None:
    made = admin.create_topic(run.topic, 3)
    assert len(made.queues) == 6
    assert {queue.broker_name for queue in made.queues} == {"broker-a", "broker-b"}
    with pytest.raises(StateError, match="the topic exists"):
        admin.create_topic(run.topic, 4)
    run.send(60)
    listed = {each.name: each for each in admin.topics()}
    assert (listed[run.topic].queues, listed[run.topic].brokers) == (6, ("broker-a", "broker-b"))
    # Topics of the brokers themselves, some of which each version has.
    own = {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "OFFSET_MOVED_EVENT"}
    assert not own & set(listed)
    assert own & {each.name for each in admin.topics(with_internal=True)}
    eventually(lambda: admin.topic(run.topic).messages == 60, "every message is counted")
    admin.delete_topic(run.topic)
    assert run.cluster.route(run.topic) == {}
    assert run.topic not in {each.name for each in admin.topics()}


def test_a_topic_may_be_on_one_broker_only(run: Run, admin: Admin) -> None:
    made = admin.create_topic(run.topic, 2, brokers=["broker-b"])
    assert {queue.broker_name for queue in made.queues} == {"broker-b"}
    assert run.cluster.route(run.topic) == {"broker-b": (2, 2, 6)}


def test_messages_are_peeked_without_a_group(run: Run, admin: Admin) -> None:
    admin.create_topic(run.topic, 1, brokers=["broker-a"])
    run.send(100)
    eventually(lambda: bodies(admin.peek(run.topic, 3)) == [97, 98, 99], "the newest")
    assert bodies(admin.peek(run.topic, 3, start="first")) == [0, 1, 2]
    assert bodies(admin.peek(run.topic, 2, start=40)) == [40, 41]
    assert bodies(admin.peek(run.topic, 100, start="first")) == list(range(100))
    assert admin.topic(run.topic).groups == ()


def test_a_topic_has_the_groups_that_consume_it_and_no_other(run: Run, admin: Admin) -> None:
    admin.create_topic(run.topic, 1)
    run.send(10)
    run.member("one")
    run.wait_for_all()
    run.members["one"].close()
    assert admin.topic(run.topic).groups == (run.group,)


def test_a_group_without_members_goes_on_from_the_offsets_it_is_given(
    run: Run, admin: Admin
) -> None:
    admin.create_topic(run.topic, 1)
    run.send(40)
    run.member("first")
    run.wait_for_all()
    run.members["first"].close()
    queues = [str(queue) for queue in admin.topic(run.topic).queues]
    assert [str(each.queue) for each in admin.reset(run.group, run.topic, 3)] == queues
    assert admin.group(run.group, [run.topic]).lag == 40 - 6
    ends = admin.reset(run.group, run.topic, "last")
    assert admin.group(run.group, [run.topic]).lag == 0
    assert sum(each.after for each in ends) == 40
    admin.reset(run.group, run.topic, datetime(2001, 1, 1, tzinfo=UTC))
    before = len(run.deliveries)
    run.member("second")
    eventually(lambda: len(run.deliveries) == before + 40, "all of it once more")


def test_live_members_all_move_though_the_broker_still_holds_a_former_owners_pulls(
    run: Run, admin: Admin
) -> None:
    admin.create_topic(run.topic, 2)
    run.send(60)
    run.member("one")
    run.wait_for_all()
    eventually(lambda: admin.group(run.group, [run.topic]).lag == 0, "all is committed")
    # "two" takes the queues of one broker over, whose pulls of "one" that broker goes on holding.
    run.member("two")
    run.wait_for_shares(one=2, two=2)
    moved = admin.reset(run.group, run.topic, "first")
    assert [(each.after, each.by_members, each.is_confirmed) for each in moved] == [
        (0, True, True)
    ] * 4
    places = {(delivery.queue, delivery.offset) for delivery in run.deliveries}

    def comes_again() -> bool:
        counts = Counter((delivery.queue, delivery.offset) for delivery in run.deliveries)
        return all(counts[place] >= 2 for place in places)

    eventually(comes_again, "everything again")


def test_live_members_move_to_an_offset_and_on_single_queues_if_the_broker_can(
    run: Run, admin: Admin
) -> None:
    admin.create_topic(run.topic, 2)
    run.send(60)
    run.member("one", broker_suspend_ms=1_000)
    run.wait_for_all()
    eventually(lambda: admin.group(run.group, [run.topic]).lag == 0, "all is committed")
    before = len(run.deliveries)
    if run.cluster.version.startswith("4."):
        with pytest.raises(StateError, match="on all queues of a topic and by time only"):
            admin.reset(run.group, run.topic, 3, queues=[1])
        return
    moved = admin.reset(run.group, run.topic, 3, queues=[1])
    assert {(each.queue.queue_id, each.after, each.is_confirmed) for each in moved} == {
        (1, 3, True)
    }
    ends = admin.topic(run.topic).queues
    again = sum(end.end - 3 for queue, end in ends.items() if queue.queue_id == 1)
    eventually(lambda: len(run.deliveries) == before + again, "what follows that offset")
    assert {delivery.queue.queue_id for delivery in run.deliveries[before:]} == {1}


def test_a_lock_of_a_member_that_is_not_online_refuses_the_reset(run: Run, admin: Admin) -> None:
    admin.create_topic(run.topic, 2, brokers=["broker-a"])
    run.send(20)
    eventually(lambda: admin.topic(run.topic).messages == 20, "all is stored")
    (_, second) = admin.topic(run.topic).queues
    with Admin(run.cluster.name_servers) as gone:
        address = run.cluster.addresses["broker-a"]
        assert gone._client.call(gone._client.api.lock(address, run.group, [second])).granted
    with pytest.raises(LockRefused, match="locked by a member that is not online"):
        admin.reset(run.group, run.topic, "last")


def test_dead_letters_are_sent_again_once_in_the_order_of_their_keys(
    run: Run, admin: Admin
) -> None:
    admin.create_topic(run.topic, 2)
    is_healed = False
    seen: list[tuple[str | None, int]] = []
    consumer = PushConsumer(
        run.group,
        name_servers=run.cluster.name_servers,
        on_failure=DeadLetter(max_attempts=1),
        pause_after_dead_letters=0,
        suspend_current_queue_time_ms=10,
        **MEMBER_SETTINGS | {"consume_message_batch_max_size": 1},
    )
    consumer.subscribe(run.topic)

    @consumer.orderly
    def listen(messages: Any, context: Any) -> None:
        if not is_healed and messages[0].sharding_key in ("k1", "k2"):
            raise ValueError("a test's own failure")
        seen.extend((each.sharding_key, int(bytes(each.body))) for each in messages)

    with consumer:
        run.send(160)
        eventually(lambda: consumer.statistics["diverted"] == 20, "twenty were given up")

        def waiting() -> int:
            return sum(each.waiting for each in admin.dead_letters() if each.group == run.group)

        eventually(lambda: waiting() == 20, "they are in the dead-letter topic")
        is_healed = True
        assert admin.redrive(run.group, count=5).sent == 5
        done = admin.redrive(run.group)
        assert (done.sent, done.left) == (15, 0)
        assert admin.redrive(run.group).sent == 0
        eventually(lambda: len(seen) == 160, "all came in the end")
    for key in range(16):
        numbers = [number for of, number in seen if of == f"k{key}"]
        assert numbers == list(range(key, 160, 16))


def test_a_deleted_group_is_gone_with_its_offsets(run: Run, admin: Admin) -> None:
    admin.create_topic(run.topic, 1)
    run.send(10)
    run.member("one")
    run.wait_for_all()
    with pytest.raises(StateError, match="members are online"):
        admin.delete_group(run.group)
    run.members["one"].close()
    assert run.group in {each.group for each in admin.groups()}
    # Brokers before RocketMQ 5 have no request that deletes offsets.
    is_whole = admin.delete_group(run.group)
    assert is_whole is not run.cluster.version.startswith("4.")
    assert run.group not in {each.group for each in admin.groups()}
    assert admin.group(run.group, [run.topic]).lag == (10 if is_whole else 0)
    assert f"%RETRY%{run.group}" not in {each.name for each in admin.topics(with_internal=True)}
    if is_whole:
        with pytest.raises(StateError, match="no broker knows the group"):
            admin.delete_group(run.group)
