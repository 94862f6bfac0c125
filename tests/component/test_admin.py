"""`ordermq.Admin` on an embedded broker: topics, groups, resets, peeks, dead letters
(docs/operations.md)."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from ordermq import Admin, DeadLetter, Message, Producer, PushConsumer
from ordermq.admin import dead_letters
from ordermq.admin.dead_letters import DeadLetterTopics
from ordermq.admin.handled_letters import HandledLetters
from ordermq.broker import EmbeddedBroker
from ordermq.cli.main import main
from ordermq.client.admin_api import AdminApi
from ordermq.config import BrokerConfig
from ordermq.errors import ConfigError, LockRefused, OrderingError, RouteError, StateError
from tests.component.conftest import Seen, eventually, numbered
from tests.component.docs_examples import DOCS, examples, run_example
from tests.component.test_orderly_consumer import committed

MakeConsumer = Callable[..., PushConsumer]


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.name_servers) as running:
        yield running


def bodies(messages: Any) -> list[int]:
    return [int(bytes(message.body)) for message in messages]


# Topics.


def test_a_topic_is_created_with_its_queues_listed_described_and_deleted(
    admin: Admin, producer: Producer
) -> None:
    assert admin.topics() == []
    made = admin.create_topic("orders", 3)
    assert (len(made.queues), made.messages, made.groups) == (3, 0, ())
    producer.send_many(numbered(30))  # the producer wants 8 queues and finds 3
    (listed,) = admin.topics()
    assert (listed.name, listed.queues, listed.brokers) == ("orders", 3, ("b",))
    assert listed.is_readable
    assert listed.is_writable
    state = admin.topic("orders")
    assert state.messages == 30
    assert all(ends.last_stored_ms for ends in state.queues.values() if ends.end)
    assert repr(state) == "<TopicState orders: 30 messages in 3 queues, groups: none>"
    admin.delete_topic("orders")
    assert admin.topics() == []
    with pytest.raises(RouteError, match="not found"):
        admin.topic("orders")


def test_a_topic_that_its_broker_names_as_a_group_is_none_unless_there_is_one(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def named(api: AdminApi, address: str, topic: str) -> list[str]:
        return ["billing", topic]  # as RocketMQ 5 answers

    monkeypatch.setattr(AdminApi, "topic_groups", named)
    admin.create_topic("orders", 1)
    assert admin.topic("orders").groups == ("billing",)
    admin.reset("orders", "orders", "first")
    assert admin.topic("orders").groups == ("billing", "orders")


def test_a_topic_that_exists_keeps_its_queues(admin: Admin) -> None:
    admin.create_topic("orders", 2)
    with pytest.raises(StateError, match="the topic exists"):
        admin.create_topic("orders", 4)
    assert len(admin.topic("orders").queues) == 2


@pytest.mark.parametrize(
    ("arguments", "settings", "reason"),
    [
        (("no such", 1), {}, "letters, digits"),
        (("orders", 0), {}, "expected 1..65535"),
        (("orders", True), {}, "expected 1..65535"),
        (("orders", 1), {"brokers": ["b", "c"]}, "no broker 'c': the cluster has b"),
        (("TBW102", 1), {}, "belongs to the brokers"),
    ],
)
def test_a_topic_that_cannot_be_made_says_why(
    admin: Admin, arguments: tuple[Any, ...], settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        admin.create_topic(*arguments, **settings)
    assert admin.topics() == []


def test_internal_topics_are_listed_when_asked_for(
    admin: Admin, producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    producer.send_many(numbered(1))
    with make_consumer(seen.take):
        seen.wait_for_count(1)
    assert [each.name for each in admin.topics()] == ["orders"]
    assert [each.name for each in admin.topics(with_internal=True)] == ["%RETRY%g", "orders"]
    assert admin.topic("orders").groups == ("g",)


# Messages without a group.


def test_messages_are_peeked_from_either_end_an_offset_and_a_time(
    admin: Admin, producer: Producer
) -> None:
    admin.create_topic("orders", 2)
    for number in range(100):  # one by one, so that their times ascend with their numbers
        producer.send(Message("orders", b"%d" % number), sharding_key=f"k{number % 2}")
    everything = admin.peek("orders", 100, start="first")
    assert sorted(bodies(everything)) == list(range(100))
    # Looked for, not taken as the first: 0 and 1 may have been stored in the same millisecond.
    queue = next(each.message_queue for each in everything if bytes(each.body) == b"0")
    assert bodies(admin.peek("orders", 3, queues=[queue.queue_id])) == [94, 96, 98]
    assert bodies(admin.peek("orders", 2, start=40, queues=[queue.queue_id])) == [80, 82]
    assert bodies(admin.peek("orders", 2, start=1_000)) == []
    assert admin.peek("orders", start=datetime.now(UTC).replace(year=2099)) == []
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    assert bodies(admin.peek("orders", 3, start=long_ago, queues=[queue.queue_id])) == [0, 2, 4]
    assert admin.groups() == []  # nobody joined, nothing was committed


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True])
def test_a_number_of_letters_that_is_none_is_refused(admin: Admin, count: Any) -> None:
    """Of 1.5 letters all would have been sent."""
    with pytest.raises(ConfigError, match="expected a whole number, 1 or more"):
        admin.redrive("g", count=count)


@pytest.mark.parametrize("wait_s", [-1, math.nan, math.inf, "3", True])
def test_a_time_to_wait_that_is_none_is_refused(admin: Admin, wait_s: Any) -> None:
    admin.create_topic("orders", 1)
    with pytest.raises(ConfigError, match="expected a number of seconds"):
        admin.reset("g", "orders", "first", wait_s=wait_s)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"count": 0}, "expected 1..10000"),
        ({"count": "7"}, "count='7': expected 1..10000"),
        ({"start": "middle"}, "expected 'first', 'last', a datetime, an age as '2h', or an offset"),
        ({"start": "99999999d"}, "expected 'first', 'last', a datetime, an age as '2h'"),
        ({"start": "999999999999d"}, "expected 'first', 'last', a datetime, an age as '2h'"),
        ({"start": -1}, "expected 'first'"),
        ({"start": 1_795_581_149_741}, "looks like a time in ms: give a datetime"),
        ({"queues": [9]}, "there is no queue 9"),
        ({"queues": 1}, r"queues=1: expected numbers of queues, as \[0, 3\]"),
        ({"queues": [True]}, "expected numbers of queues"),
        ({"queues": "01"}, "expected numbers of queues"),
    ],
)
def test_a_peek_that_makes_no_sense_is_refused(
    admin: Admin, settings: dict[str, Any], reason: str
) -> None:
    admin.create_topic("orders", 2)
    with pytest.raises(ConfigError, match=reason):
        admin.peek("orders", **settings)
    if "count" in settings:
        with pytest.raises(ConfigError, match=reason):
            admin.find_messages("orders", key="k", **settings)


# Groups and their offsets.


def test_a_group_is_listed_with_members_and_lag(
    admin: Admin, producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    producer.send_many(numbered(40))
    with make_consumer(seen.take) as consumer:
        seen.wait_for_count(40)
        eventually(lambda: [each.lag for each in admin.groups()] == [0], "all is committed")
        (listed,) = admin.groups()
        assert (listed.group, listed.members, listed.topics) == ("g", 1, ("orders",))
        state = admin.group("g", ["orders"])
        assert state.subscriptions[consumer.client_id]["orders"] == "*"
        assert repr(state) == "<GroupState g: 1 members, 8 queues, 0 messages behind>"
    producer.send_many(numbered(10, start=40))
    (listed,) = admin.groups()
    assert (listed.members, listed.lag) == (0, 10)


def test_what_a_member_has_consumed_is_never_beyond_the_end_of_its_queue(
    admin: Admin,
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer.send_many(numbered(8, keys=1))
    with make_consumer(seen.take) as consumer:
        seen.wait_for_count(8)

        def one_more() -> None:
            producer.send_many(numbered(1, keys=1, start=len(seen.deliveries)))
            eventually(
                lambda: all(not lag.messages for lag in consumer.lag().values()), "it is consumed"
            )

        for name in ("group_progress", "member_report"):
            asked = getattr(AdminApi, name)

            async def answer(*arguments: Any, _asked: Any = asked) -> Any:
                found = await _asked(*arguments)
                await asyncio.to_thread(one_more)  # the group goes on between two requests
                return found

            monkeypatch.setattr(AdminApi, name, answer)
        (progress,) = (each for each in admin.group("g", ["orders"]).progress.values() if each.end)
    assert progress.consumed is not None
    assert 8 <= progress.consumed <= progress.end


def test_a_group_is_shown_whose_members_wait_for_a_topic_that_no_broker_has(
    admin: Admin,
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
) -> None:
    producer.send_many(numbered(8, keys=1))
    consumer = make_consumer(seen.take)
    consumer.subscribe("later")
    with consumer:
        seen.wait_for_count(8)
        eventually(lambda: admin.group("g").members != (), "the broker knows the member")
        state = admin.group("g")
        assert state.absent == ("later",)
        assert {queue.topic for queue in state.progress} == {"orders"}
        with pytest.raises(RouteError, match="topic not found") as caught:
            admin.group("g", ["later"])
        assert "later" in str(caught.value)
        admin.create_topic("later", 1)
        assert admin.group("g").absent == ()
        with Admin(broker.name_servers) as other:
            other.delete_topic("later")
        assert admin.group("g").absent == ("later",), "it has known the topic's route before"


def test_a_group_without_members_is_moved_to_an_offset_a_time_and_either_end(
    admin: Admin, producer: Producer, broker: EmbeddedBroker
) -> None:
    admin.create_topic("orders", 2)
    producer.send_many(numbered(100))
    moved = admin.reset("g", "orders", "last")
    assert [each.before for each in moved] == [None, None]
    assert not any(each.by_members for each in moved)
    assert committed(broker) == 100
    assert str(moved[0]) == f"<QueueReset {moved[0].queue}: None to {moved[0].after}, stored>"
    assert [each.after for each in admin.reset("g", "orders", 7)] == [7, 7]
    for offset in (10**9, 1_795_581_149_741, moved[1].after + 1):
        with pytest.raises(
            ConfigError, match=rf"offset {offset}: expected 0 to \d+, which is what"
        ):
            admin.reset("g", "orders", offset)
    assert committed(broker) == 14, "nothing was moved"
    assert [each.after for each in admin.reset("g", "orders", moved[1].after, queues=[1])] == [
        moved[1].after
    ]
    assert committed(broker) == 7 + moved[1].after
    admin.reset("g", "orders", datetime(2001, 1, 1, tzinfo=UTC))
    assert committed(broker) == 0
    assert admin.group("g", ["orders"]).locks == {}  # none is left behind


def test_a_reset_to_a_time_to_come_would_skip_everything_and_is_refused(
    admin: Admin, producer: Producer, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a UTC time without its zone is, west of Greenwich; not so the present of another clock."""
    producer.send_many(numbered(10))
    admin.reset("g", "orders", "first")
    for hours in (1, 24 * 365 * 100):
        with pytest.raises(ConfigError, match=r"in the future.* look at the time zone.* 'last'"):
            admin.reset("g", "orders", datetime.now(UTC) + timedelta(hours=hours))
    assert committed(broker) == 0, "nothing was moved"
    admin.reset("g", "orders", datetime.now(UTC) + timedelta(seconds=30))
    assert committed(broker) == 10
    # The time is none to come for a broker whose clock is ahead.
    clock = broker._clock
    ahead_ms = clock.wall_ms() + 2 * 3_600_000
    monkeypatch.setattr(clock, "wall_ms", lambda: ahead_ms)
    admin.reset("g", "orders", "first")
    admin.reset("g", "orders", datetime.now(UTC) + timedelta(hours=1))
    assert committed(broker) == 10


def test_live_members_are_moved_and_consume_again_in_order(
    admin: Admin, producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    producer.send_many(numbered(60))
    with make_consumer(seen.take):
        seen.wait_for_count(60)
        eventually(lambda: admin.group("g", ["orders"]).lag == 0, "all is committed")
        moved = admin.reset("g", "orders", "first")
        assert all(each.by_members and each.is_confirmed for each in moved)
        seen.wait_for_count(120)
        eventually(lambda: admin.group("g", ["orders"]).lag == 0, "all is committed again")
    for key in range(10):
        assert [int(body) for body in seen.bodies_of(f"k{key}")] == [*range(key, 60, 10)] * 2


def test_live_members_all_move_though_the_broker_still_holds_a_former_owners_pulls(
    admin: Admin, producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    producer.send_many(numbered(60))
    queues = len(admin.topic("orders").queues)
    with make_consumer(seen.take):
        seen.wait_for_count(60)
        with make_consumer(seen.take) as two:
            eventually(lambda: len(two.assigned_queues()) == queues // 2, "its share")
            eventually(lambda: admin.group("g", ["orders"]).lag == 0, "all is committed")
            moved = admin.reset("g", "orders", "first")
            assert [each.is_confirmed for each in moved] == [True] * queues
            seen.wait_for(
                lambda got: all(count > 1 for count in Counter(body for *_, body in got).values()),
                "everything again",
            )


def test_a_lock_of_a_member_that_is_not_online_refuses_the_reset(
    admin: Admin, producer: Producer, broker: EmbeddedBroker
) -> None:
    admin.create_topic("orders", 2)
    producer.send_many(numbered(20))
    (first, second) = admin.topic("orders").queues
    # As left behind by a member that was killed: its lock outlives its connection.
    with Admin(broker.name_servers) as gone:
        address = gone._client.name_servers.addresses[0]
        gone._client.call(gone._client.api.lock(address, "g", [second]))
    with pytest.raises(LockRefused, match=f"{second} is locked by a member that is not online"):
        admin.reset("g", "orders", "last")
    assert committed(broker) == 0
    locks = admin.group("g", ["orders"]).locks
    assert locks is not None
    assert list(locks) == [second]  # the one that it could take was given back
    assert len(admin.reset("g", "orders", "last", queues=[first.queue_id])) == 1


# Dead letters.


@pytest.fixture
def letters(producer: Producer, make_consumer: MakeConsumer, seen: Seen) -> None:
    """Group "g" has given up all of k1 and k2, ten messages each."""
    producer.send_many(numbered(100))

    def listen(messages: Any, context: Any) -> None:
        if messages[0].sharding_key in ("k1", "k2"):
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    policy = DeadLetter(max_attempts=1)
    with make_consumer(
        listen,
        on_failure=policy,
        pause_after_dead_letters=0,
        suspend_current_queue_time_ms=10,
    ) as consumer:
        seen.wait_for_count(80)
        eventually(lambda: consumer.statistics["diverted"] == 20, "twenty were given up")


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_sent_again_once_in_the_order_of_their_keys(
    admin: Admin, make_consumer: MakeConsumer, seen: Seen
) -> None:
    (found,) = admin.dead_letters()
    assert (found.group, found.messages, found.waiting) == ("g", 20, 20)
    assert len(admin.peek("%DLQ%g", 100)) == 20
    with make_consumer(seen.take):
        first = admin.redrive("g", count=7)
        assert (first.sent, first.left) == (7, 13)
        rest = admin.redrive("%DLQ%g")
        assert (rest.sent, rest.left) == (13, 0)
        seen.wait_for_count(100)
        assert admin.redrive("g").sent == 0
    for key in ("k1", "k2"):
        numbers = [int(body) for body in seen.bodies_of(key)]
        assert numbers == sorted(numbers)
        assert len(numbers) == 10
    (found,) = admin.dead_letters()
    assert (found.messages, found.waiting) == (20, 0)
    assert [each.group for each in admin.groups()] == ["g"]  # its own group is not shown


@pytest.mark.usefixtures("letters")
def test_a_letter_keeps_what_its_sender_gave_it(admin: Admin, producer: Producer) -> None:
    assert admin.redrive("g", count=1, to_topic="again").sent == 1
    (sent,) = admin.peek("again", 1)
    (letter,) = admin.peek("%DLQ%g", 1, start="first")
    assert bytes(sent.body) == bytes(letter.body)
    assert sent.sharding_key == letter.sharding_key
    assert sent.properties["omqRedriven"] == letter.message_id
    assert sent.reconsume_times == 0
    assert not {"RETRY_TOPIC", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"} & set(sent.properties)


def test_letters_behind_one_that_is_refused_are_neither_sent_nor_sent_twice() -> None:
    """They would overtake one of their key, and the offset could not say that they went."""
    config = BrokerConfig(auto_create_topics=False)

    def fail(messages: Any, context: Any) -> None:
        raise ValueError("a test's own failure")

    def letters(count: int) -> bool:
        return [each.messages for each in admin.dead_letters()] == [count]

    with EmbeddedBroker(config=config) as broker, Admin(broker.name_servers) as admin:
        for topic in ("gone", "orders"):
            admin.create_topic(topic, 1)
        consumer = PushConsumer(
            "g",
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
            on_failure=DeadLetter(max_attempts=1),
        )
        consumer.subscribe("gone")
        consumer.subscribe("orders")
        consumer.orderly(fail)
        with consumer, Producer("p", name_servers=broker.name_servers) as producer:
            producer.send(Message("gone", b"first"), sharding_key="k")
            eventually(lambda: letters(1), "the first is given up")
            producer.send_many([(Message("orders", b"%d" % n), "k") for n in range(5)])
            eventually(lambda: letters(6), "all are given up")
        admin.delete_topic("gone")
        (first, *_) = admin.waiting_letters("g")
        for _ in range(2):
            with pytest.raises(RouteError) as refused:
                admin.redrive("g")
            assert f"ordermq dlq skip g {first.message_id}" in refused.value.__notes__[0]
        assert admin.dead_letters()[0].waiting == 6
        assert admin.topic("orders").messages == 5, "none was sent again"
        typed = ["dlq", "redrive", "g", "--yes", "--name-servers", broker.name_servers]
        shown = CliRunner().invoke(main, typed)
        assert shown.exit_code == 3
        assert f"ordermq dlq skip g {first.message_id}" in " ".join(shown.stderr.split())
        admin.skip_letter("g", first.message_id)
        assert admin.redrive("g").sent == 5
        assert bodies(admin.peek("orders", 5)) == list(range(5))


@pytest.mark.usefixtures("letters")
def test_two_tools_do_not_send_the_same_letters(admin: Admin, broker: EmbeddedBroker) -> None:
    (queue,) = admin.topic("%DLQ%g").queues
    with Admin(broker.name_servers) as other:
        address = other._client.name_servers.addresses[0]
        other._client.call(other._client.api.lock(address, "ordermq_redrive", [queue]))
        with pytest.raises(LockRefused, match="another tool sends these dead letters"):
            admin.redrive("g")
    assert admin.dead_letters()[0].waiting == 20


@pytest.mark.usefixtures("letters")
def test_a_tool_that_stood_still_sends_nothing_that_another_one_has_sent(
    admin: Admin, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (queue,) = admin.topic("%DLQ%g").queues
    address = admin._client.name_servers.addresses[0]
    send, sent = DeadLetterTopics._send, []

    def pause(*given: Any) -> None:
        send(*given)
        sent.append(given)
        if len(sent) == 3:  # the lock ends, and another tool sends all that waits
            admin._client.call(admin._client.api.unlock(address, "ordermq_redrive", [queue], [0]))
            with Admin(broker.name_servers) as other:
                assert other.redrive("g", to_topic="again").left == 0

    monkeypatch.setattr(DeadLetterTopics, "_send", staticmethod(pause))
    monkeypatch.setattr(dead_letters, "_RENEWAL_MS", 0)
    with pytest.raises(LockRefused, match="the lock ended, as that of a process that stood still"):
        admin.redrive("g", to_topic="again")
    assert admin.topic("again").messages == 3 + 20
    assert admin.dead_letters()[0].waiting == 0


def waiting_of(admin: Admin, key: str) -> list[str]:
    letters = admin.waiting_letters("g", 100)
    return [each.message_id for each in letters if each.sharding_key == key]


@pytest.mark.usefixtures("letters")
def test_one_letter_is_sent_again_with_a_corrected_body(
    admin: Admin, make_consumer: MakeConsumer, seen: Seen
) -> None:
    # k2's first one: letters of k1 stand before it, so the group's offset cannot tell of it.
    ones, twos = waiting_of(admin, "k1"), waiting_of(admin, "k2")
    order = [each.message_id for each in admin.waiting_letters("g", 100)]
    chosen = max(ones[0], twos[0], key=order.index)
    done = admin.redrive("g", message_id=chosen, body=b"mended", to_topic="again")
    assert (done.sent, done.keys, done.left) == (1, 1, 19)
    (sent,) = admin.peek("again", 10)
    (letter,) = [each for each in admin.peek("%DLQ%g", 100) if each.message_id == chosen]
    assert bytes(sent.body) == b"mended"
    assert sent.properties["omqRedriven"] == chosen
    assert sent.sharding_key == letter.sharding_key
    with pytest.raises(StateError, match="was sent again or skipped before"):
        admin.redrive("g", message_id=chosen)
    assert chosen not in [each.message_id for each in admin.waiting_letters("g", 100)]
    assert len(admin.waiting_letters("g", 10, start="last")) == 10
    (found,) = admin.dead_letters()
    assert (found.messages, found.waiting) == (20, 19)
    # The rest goes without it, and each key in order.
    with make_consumer(seen.take):
        assert admin.redrive("g").sent == 19
        seen.wait_for_count(99)
    for key in ("k1", "k2"):
        numbers = [int(body) for body in seen.bodies_of(key)]
        assert numbers == sorted(numbers)
    assert admin.redrive("g").sent == 0
    assert admin.waiting_letters("g") == []
    assert [each.name for each in admin.topics()] == ["again", "orders"]


@pytest.mark.usefixtures("letters")
def test_one_letter_does_not_overtake_older_ones_of_its_key(admin: Admin) -> None:
    first, second, third, *_ = waiting_of(admin, "k1")
    with pytest.raises(OrderingError, match=f"2 older dead letters of key 'k1'.* with {first}"):
        admin.redrive("g", message_id=third)
    assert admin.dead_letters()[0].waiting == 20
    assert admin.redrive("g", message_id=first).left == 19
    assert admin.skip_letter("g", second).message_id == second
    assert admin.redrive("%DLQ%g", message_id=third.lower()).left == 17


@pytest.mark.usefixtures("letters")
def test_letters_that_are_handled_out_of_turn_are_passed_by_the_offset(admin: Admin) -> None:
    letters = [each.message_id for each in admin.waiting_letters("g", 100)]
    for each in reversed(letters[:5]):
        admin.skip_letter("g", each)
    assert list(admin.redrive_offsets("g").values()) == [5]
    for each in letters[6:8]:
        admin.skip_letter("g", each)
    assert admin.redrive("g", count=1).left == 12
    assert list(admin.redrive_offsets("g").values()) == [8]
    for each in reversed(letters[8:]):
        admin.skip_letter("g", each)
    assert list(admin.redrive_offsets("g").values()) == [20]


@pytest.mark.usefixtures("letters")
def test_the_marks_of_a_broker_are_read_once_for_all_groups(
    admin: Admin, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.send(Message("%DLQ%other", b"1"))
    admin.skip_letter("g", admin.waiting_letters("g")[1].message_id)
    brokers, marks = [], HandledLetters._marks

    def counted(self: HandledLetters, broker_name: str) -> Any:
        brokers.append(broker_name)
        return marks(self, broker_name)

    monkeypatch.setattr(HandledLetters, "_marks", counted)
    assert [(each.group, each.waiting) for each in admin.dead_letters()] == [
        ("g", 19),
        ("other", 1),
    ]
    assert brokers == ["b"]


@pytest.mark.usefixtures("letters")
def test_marks_of_a_deleted_topic_do_not_hide_letters_of_a_new_one(
    admin: Admin, producer: Producer
) -> None:
    letters = admin.waiting_letters("g", 100)
    for each in letters[1:4]:
        admin.skip_letter("g", each.message_id)
    admin.delete_topic("%DLQ%g")
    admin.create_topic("other", 1)
    for number in range(5):
        producer.send(Message("%DLQ%g", b"%d" % number))
    assert len(admin.waiting_letters("g")) == 5
    assert admin.dead_letters()[0].waiting == 5


@pytest.mark.usefixtures("letters")
def test_a_letter_that_is_not_there_is_named(admin: Admin) -> None:
    with pytest.raises(StateError, match="no dead letter has the id 00"):
        admin.redrive("g", message_id="00")
    with pytest.raises(StateError, match="no dead letter has the id 00"):
        admin.skip_letter("nobody", "00")
    with pytest.raises(ConfigError, match="message_id="):
        admin.redrive("g", body=b"1")
    with pytest.raises(ConfigError, match="exclude each other"):
        admin.redrive("g", message_id="00", count=1)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("%DLQ%fresh", "with the first dead letter of group 'fresh'"),
        ("%RETRY%fresh", "when the first member of group 'fresh' registers"),
        ("fresh", "check its name"),
    ],
)
def test_a_topic_of_a_group_that_is_not_there_says_who_creates_it(
    admin: Admin, topic: str, reason: str
) -> None:
    with pytest.raises(RouteError, match=reason):
        admin.topic(topic)
    with pytest.raises(RouteError, match=reason):
        admin.peek(topic)


def test_a_cluster_without_dead_letters_has_none(admin: Admin) -> None:
    assert admin.dead_letters() == []
    assert admin.redrive("nobody").sent == 0


# Namespaces.


def test_a_namespace_hides_the_others_topics_and_groups(
    broker: EmbeddedBroker, admin: Admin
) -> None:
    admin.create_topic("others", 1)
    at = {"name_servers": broker.name_servers, "namespace": "shop"}
    with Admin(**at) as own, Producer("p", **at) as producer:
        own.create_topic("orders", 2)
        producer.send(Message("orders", b"0"), sharding_key="k")
        assert [each.name for each in own.topics()] == ["orders"]
        assert own.topic("orders").messages == 1
        assert bodies(own.peek("orders")) == [0]
        own.reset("g", "orders", "last")
        (listed,) = own.groups()
        assert (listed.group, listed.topics, listed.lag) == ("g", ("orders",), 0)
    assert [each.name for each in admin.topics()] == ["others", "shop%orders"]


def test_the_name_servers_may_come_from_the_environment(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERMQ_NAME_SERVERS", broker.name_servers)
    with Admin() as admin:
        assert repr(admin) == f"<Admin of {broker.name_servers}>"
        assert admin.topics() == []


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    (example,) = examples((DOCS / "operations.md").read_text())
    done = run_example(example, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "<TopicState orders: 100 messages in 4 queues, groups: none>",
        "5 messages",
        "<GroupState billing: 0 members, 4 queues, 100 messages behind>",
    ]


def test_a_place_is_an_age_or_a_time_of_pandas_and_no_other_number(
    admin: Admin, producer: Producer
) -> None:
    for number in range(3):
        producer.send(Message("looked", b"%d" % number), sharding_key="a")
    for start in (timedelta(hours=1), pd.Timestamp.now() - pd.Timedelta("1h"), "1h"):
        assert len(admin.peek("looked", 10, start=start)) == 3
    for none in (pd.NaT, pd.NA, 1_700_000_000.5):
        with pytest.raises(ConfigError, match=r"^start=.*expected 'first', 'last', a datetime"):
            admin.peek("looked", 10, start=none)


# Deleting groups.


def consumed(make_consumer: MakeConsumer, producer: Producer, admin: Admin, seen: Seen) -> None:
    """Consume 20 messages in group "g", and leave one for a retry, and a dead letter."""
    with make_consumer(seen.take, concurrent=True):
        producer.send_many(numbered(20))
        eventually(lambda: admin.group("g", ["orders"]).lag == 0 and seen.deliveries, "done")
    for topic in ("%RETRY%g", "%DLQ%g"):
        producer.send(Message(topic, b"1"))


def test_a_deleted_group_is_gone_with_its_offsets_and_retries_and_a_later_one_is_new(
    admin: Admin, producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    consumed(make_consumer, producer, admin, seen)
    assert admin.delete_group("g")
    assert admin.groups() == []
    assert admin.group("g", ["orders"]).lag == 20
    assert "%RETRY%g" not in {each.name for each in admin.topics(with_internal=True)}
    assert [(each.group, each.waiting) for each in admin.dead_letters()] == [("g", 1)]
    with make_consumer(seen.take):
        seen.wait_for_count(40)
    assert seen.duplicates() == 20


def test_dead_letters_are_deleted_with_their_group_if_wanted(
    admin: Admin, producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    consumed(make_consumer, producer, admin, seen)
    admin.delete_group("g", with_dead_letters=True)
    assert admin.dead_letters() == []


def test_a_group_with_members_is_deleted_if_forced_only_and_they_go_on(
    admin: Admin, producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    with make_consumer(seen.take):
        producer.send_many(numbered(20))
        seen.wait_for_count(20)
        eventually(lambda: admin.group("g", ["orders"], ask_members=False).lag == 0, "committed")
        with pytest.raises(StateError, match="1 of its members are online"):
            admin.delete_group("g")
        assert admin.group("g", ["orders"], ask_members=False).lag == 0
        admin.delete_group("g", force=True)
        producer.send_many(numbered(20, start=2))
        seen.wait_for_count(40)
        eventually(lambda: admin.group("g", ["orders"], ask_members=False).lag == 0, "again")
    assert seen.duplicates() == 0


def test_a_group_that_no_broker_knows_is_not_deleted(admin: Admin) -> None:
    with pytest.raises(StateError, match="no broker knows the group"):
        admin.delete_group("g")
    admin.create_group("g")
    admin.delete_group("g")
    assert admin.groups() == []
