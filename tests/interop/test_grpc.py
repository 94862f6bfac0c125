"""Producers and members that speak gRPC, at a real proxy of RocketMQ."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    Admin,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from ordermq.errors import BrokerError
from tests.forwarding import Forwarder
from tests.interop.cluster import Cluster, eventually
from tests.interop.own_cluster import own_cluster
from tests.interop.popping import (
    bury_one,
    count_once,
    kill_one_of_two,
    poll_and_iterate,
    share_join_and_leave,
)
from tests.interop.run import Run

# A first test has its cluster made, which takes a minute and a half on a busy machine.
pytestmark = pytest.mark.timeout(300)

QUEUES = {"broker-a": 4, "broker-b": 4}
# A proxy starts every group at the end, and leases for ten seconds at least.
MEMBER = {"consume_from_where": "last_offset", "pop_invisible_ms": 10_000}


@pytest.fixture(scope="module")
def proxied(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if cluster.version.startswith("4."):
        pytest.skip("the proxy came with RocketMQ 5")
    settings = {
        "enableMixedMessageType": "true",
        "recallMessageEnable": "true",
        "transactionTimeOut": "1000",
        "transactionCheckInterval": "1000",
    }
    place = tmp_path_factory.mktemp("proxied") / "rocketmq"
    with own_cluster(
        cluster.version, place, "--proxy=cluster", "--brokers=2", **settings
    ) as running:
        yield running


@pytest.fixture
def behind(run: Run, proxied: Cluster) -> Run:
    """The run at the proxied cluster, with its topic and its ordered group."""
    run.cluster = proxied
    run.producers_name_servers = run.members_name_servers = proxied.grpc
    proxied.put_topic(run.topic, QUEUES, message_type="MIXED")
    with Admin(proxied.name_servers) as admin:
        admin.create_group(run.group, is_orderly=True)
    return run


@pytest.mark.parametrize("by_key", [False, True])
def test_members_share_join_and_leave_and_keep_the_order_of_keys(behind: Run, by_key: bool) -> None:
    share_join_and_leave(behind, order_by_key=by_key, **MEMBER)


def test_a_killed_member_delays_its_keys_by_its_leases_and_none_is_lost(behind: Run) -> None:
    kill_one_of_two(behind, **MEMBER)


def test_connections_that_break_under_waiting_receives_bring_nothing_twice(behind: Run) -> None:
    """The proxy holds those receives on, while the members ask anew
    (docs/internals/semantics.md#pop)."""
    seen: list[int] = []
    admin = Admin(behind.cluster.name_servers)

    def send_and_wait() -> None:
        """Return when all is consumed and acknowledged: what is not may come again."""
        behind.send(16)
        eventually(lambda: len(set(seen)) == behind.sent, "all that was sent")
        eventually(lambda: admin.group(behind.group, [behind.topic]).lag == 0, "acknowledged")

    def member(endpoint: str) -> PushConsumer:
        quick = MEMBER | {"pull_delay_on_error_ms": 10}
        consumer = PushConsumer(behind.group, name_servers=endpoint, **quick)
        consumer.subscribe(behind.topic)
        consumer.orderly(
            lambda messages, _: seen.extend(int(bytes(each.body)) for each in messages)
        )
        return consumer

    port = 0
    with admin, contextlib.ExitStack() as stack:
        for rounds in range(8):
            target = behind.cluster.grpc.removeprefix("grpc://")
            with Forwarder(port, target) as forwarder:
                port = int(forwarder.address.rpartition(":")[2])
                if rounds == 0:
                    for _ in range(2):
                        stack.enter_context(member(f"grpc://{forwarder.address}"))
                # The first ones may come before the members wait again.
                for _ in range(4):
                    send_and_wait()
        # One that came twice comes while its connection stands: behind what was sent last.
        with Forwarder(port, target):
            send_and_wait()
            stack.close()
    assert sorted(seen) == list(range(behind.sent))


def test_a_batch_that_takes_longer_than_its_lease_is_renewed(behind: Run) -> None:
    seen: list[tuple[str, int]] = []
    times: list[float] = []
    consumers = []
    for name in ("one", "two"):
        consumer = PushConsumer(behind.group, name_servers=behind.cluster.grpc, **MEMBER)
        consumer.subscribe(behind.topic)

        @consumer.orderly
        def listen(messages: Sequence[Any], context: Any, name: str = name) -> None:
            if not times:
                times.append(time.monotonic())
                time.sleep(25.0)  # two and a half leases: the work of the listener
            seen.extend((name, int(bytes(each.body))) for each in messages)

        consumer.start()
        consumers.append(consumer)
    behind.send(40, keys=1)
    eventually(lambda: len(seen) >= 40, "all of the key")
    for consumer in consumers:
        assert consumer.close(30.0)
    assert [number for _, number in seen] == list(range(40))


def test_what_comes_for_a_released_queue_is_no_dead_letter_and_comes_when_it_is_resumed(
    behind: Run,
) -> None:
    """Each receive for the other queue finds it, and a proxy counts how often it delivers one."""
    seen: list[bytes] = []
    consumer = PushConsumer(behind.group, name_servers=behind.cluster.grpc, **MEMBER)
    consumer.subscribe(behind.topic)
    consumer.orderly(lambda messages, _: seen.extend(bytes(each.body) for each in messages))
    with consumer, Producer("placing", name_servers=behind.cluster.name_servers) as producer:
        released, other = (MessageQueue(behind.topic, "broker-a", number) for number in (0, 1))
        consumer.pause(released, release=True)
        producer.send(Message(behind.topic, b"kept"), queue=released)
        for number in range(60):
            body = b"%d" % number
            producer.send(Message(behind.topic, body), queue=other)
            eventually(lambda body=body: body in seen, "the other queue is consumed")
        assert b"kept" not in seen
        consumer.resume(released)
        eventually(lambda: b"kept" in seen, "it came when its queue was resumed")
    assert len(seen) == 61


def test_a_message_that_keeps_failing_goes_to_the_dead_letters(behind: Run) -> None:
    bury_one(behind, behind.cluster.grpc, **MEMBER)


def test_tasks_and_pollers_share_a_group_and_keep_the_order_of_keys(behind: Run) -> None:
    poll_and_iterate(behind, behind.cluster.grpc, **MEMBER)


def test_effects_are_in_a_database_once(behind: Run, tmp_path: Path) -> None:
    count_once(behind, behind.cluster.grpc, tmp_path / "app.db", **MEMBER)


def test_a_group_that_is_not_ordered_is_refused_at_the_start(behind: Run) -> None:
    group = f"{behind.group}-plain"
    with Admin(behind.cluster.name_servers) as admin:
        admin.create_group(group, is_orderly=False)
    consumer = PushConsumer(group, name_servers=behind.cluster.grpc, **MEMBER)
    consumer.subscribe(behind.topic)
    consumer.orderly(lambda messages, context: None)
    with pytest.raises(BrokerError, match=r"updateSubGroup .* -o true"):
        consumer.start()


def test_members_without_order_share_repeat_and_bury(behind: Run) -> None:
    group = f"{behind.group}-plain"
    with Admin(behind.cluster.name_servers) as admin:
        admin.create_group(group, is_orderly=False)
    tries: list[tuple[int, str]] = []
    done: list[int] = []

    def listen(messages: Sequence[Any], context: Any) -> None:
        number = int(messages[0].body)
        if number in (7, 8):
            tries.append((number, messages[0].topic))
            context.delay_level = 1
            if number == 8 or messages[0].reconsume_times < 1:
                raise ValueError
        done.append(number)

    consumers = []
    for _ in range(2):
        consumer = PushConsumer(
            group, name_servers=behind.cluster.grpc, max_reconsume_times=1, **MEMBER
        )
        consumer.subscribe(behind.topic)
        consumer.concurrently(listen)
        consumer.start()
        consumers.append(consumer)
    try:
        behind.send(200)
        eventually(lambda: len(done) >= 199, "all but the buried one")
        with Admin(behind.cluster.name_servers) as admin:
            eventually(
                lambda: any(
                    (each.group, each.waiting) == (group, 1) for each in admin.dead_letters()
                ),
                "its dead letter",
            )
    finally:
        for consumer in consumers:
            assert consumer.close(30.0)
    assert sorted(done) == [number for number in range(200) if number != 8]
    assert sorted(tries) == [(number, behind.topic) for number in (7, 7, 8, 8)]


def test_what_a_message_carries_arrives_and_tags_choose(behind: Run) -> None:
    got: list[Any] = []
    consumer = PushConsumer(behind.group, name_servers=behind.cluster.grpc, **MEMBER)
    consumer.subscribe(behind.topic, "red || green")
    consumer.orderly(lambda messages, context: got.extend(messages))
    with consumer:
        with Producer("shop", name_servers=behind.cluster.grpc) as producer:
            producer.send(Message(behind.topic, b"no", tags="blue"), sharding_key="k")
            sent = producer.send(
                Message(
                    behind.topic,
                    b"x" * 9_000,  # is compressed
                    tags="red",
                    keys=["a", "b"],
                    properties={"country": "Österreich"},
                ),
                sharding_key="k",
            )
            batch = [Message(behind.topic, str(each).encode(), tags="green") for each in range(5)]
            producer.send_batch(batch)
        eventually(lambda: len(got) == 6, "the red and the green ones")
    red = next(each for each in got if each.tags == "red")
    assert bytes(red.body) == b"x" * 9_000
    assert (red.keys, red.sharding_key) == (["a", "b"], "k")
    assert red.get_property("country") == "Österreich"
    assert red.message_id == sent.message_id
    assert (red.queue_id, red.queue_offset) == (sent.message_queue.queue_id, sent.queue_offset)
    assert {bytes(each.body) for each in got if each.tags == "green"} == {
        str(each).encode() for each in range(5)
    }


def test_timed_messages_come_when_they_are_due_and_can_be_recalled(behind: Run) -> None:
    got: list[tuple[float, bytes]] = []
    consumer = PushConsumer(behind.group, name_servers=behind.cluster.grpc, **MEMBER)
    consumer.subscribe(behind.topic)

    @consumer.orderly
    def listen(messages: Sequence[Any], context: Any) -> None:
        got.extend((time.time(), bytes(each.body)) for each in messages)

    with consumer, Producer("shop", name_servers=behind.cluster.grpc) as producer:
        due_ms = int(time.time() * 1_000) + 4_000
        producer.send(Message(behind.topic, b"later", deliver_at_ms=due_ms))
        gone = producer.send(Message(behind.topic, b"never", delay_ms=4_000))
        if not behind.cluster.version.startswith(("5.0", "5.1", "5.2")):
            assert gone.recall_handle is not None
            producer.recall(behind.topic, gone.recall_handle)
        producer.send(Message(behind.topic, b"now"))
        eventually(lambda: {body for _, body in got} >= {b"now", b"later"}, "what is due")
    came = {body: at for at, body in got}
    assert came[b"later"] >= due_ms / 1_000 - 1.0  # RocketMQ's timers have a second's precision
    assert b"never" not in came


def test_transactions_are_committed_rolled_back_and_checked(behind: Run) -> None:
    topic = f"{behind.topic}-half"
    behind.cluster.put_topic(topic, QUEUES, message_type="TRANSACTION")
    got: list[bytes] = []
    checked: list[str] = []
    consumer = PushConsumer(behind.group, name_servers=behind.cluster.grpc, **MEMBER)
    consumer.subscribe(topic)
    consumer.orderly(lambda messages, context: got.extend(bytes(each.body) for each in messages))

    def check(message: Any) -> TransactionState:
        checked.append(bytes(message.body).decode())
        return TransactionState.COMMIT

    with (
        consumer,
        TransactionProducer(
            "shop", check=check, topics=[topic], name_servers=behind.cluster.grpc
        ) as producer,
    ):
        for text, state in (
            ("yes", TransactionState.COMMIT),
            ("no", TransactionState.ROLLBACK),
            ("ask", TransactionState.UNKNOWN),
        ):
            producer.send_in_transaction(
                Message(topic, text.encode()), execute=lambda message, argument, s=state: s
            )
        # The broker gathers the ends of transactions for 3 s. One that checks each second asks
        # again before it has seen them, and stores once more what is committed again.
        eventually(lambda: {b"ask", b"yes"} <= set(got), "the committed ones")
    assert set(got) == {b"ask", b"yes"}
    assert set(checked) == {"ask"}
